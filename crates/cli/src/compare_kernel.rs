//! `remora compare --kernel`: a user's kernel at the client, on the node's NIC and on its host cores.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use remora_kernel::Status;
use remora_lab::stats::is_level;
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_study::format::{rate, time};
use remora_study::kernel_calls::{KernelFigures, Params};
use remora_study::measure::IN_FLIGHT;
use remora_study::nodes::NodeProcess;

use crate::args;
use crate::capture::Capture;
use crate::kernel::{explain, name_of, put};
use crate::kernel_build;
use crate::kernel_params::encode;
use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

/// What `--data` names.
pub fn data(args: &args::Compare) -> Result<Option<Vec<u8>>, Failure> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|e| Failure::Failed(format!("cannot read {}: {e}", path.display())))
    };
    args.data.as_ref().map(read).transpose()
}

/// Measures and prints.
pub fn run(args: &args::Compare, file: &Path) -> Result<(), Failure> {
    let module = kernel_build::load(file)?;
    let bytes = data(args)?;
    let params = |data, call, out: &mut Vec<u8>| encode(&args.args, data, call, out);
    let display = Display::new(stop_flag());
    let links = if args.links.is_empty() { vec![LinkKind::Udp, LinkKind::Shm] } else { args.links.clone() };
    let capture = Capture::open(args.pcap.as_deref())?;
    let (node, child) = match args.node {
        Some(node) => (node, None),
        None => {
            let node = at_free_loopback(Ok)?;
            (node, Some(NodeProcess::start_captured(node, args.pcap.as_deref())?))
        }
    };
    let total = (links.len() * args.placements.len()) as u64;
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for link in &links {
        let local = args.local.filter(|_| !node.is_loopback()).map_or_else(|| at_local(node, Ok), Ok)?;
        let config = ClientConfig { link: Some(*link), layers: capture.layers(), ..ClientConfig::new(node, local) };
        let mut client = match Client::connect(config) {
            Ok(client) => client,
            Err(error) if args.links.is_empty() => {
                left_out.push(format!("{}: {error}", link));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let name = format!("compare-{}", std::process::id());
        let (limits, isolation) = (args.bounds.limits(), args.bounds.isolation());
        let entry = client.deploy_kernel(&name, &module, limits, isolation, false)?;
        let local = client.local_kernels().deploy_at(Some(entry.op), &name, &module, limits, isolation);
        local.map_err(|e| Failure::Failed(format!("{}: {e}", file.display())))?;
        let data = put(&mut client, bytes.as_deref())?;
        for placement in &args.placements {
            display.advance(rows.len() as u64, total, &format!("{} at the {} over {}", name_of(file), placement, link));
            let user = (entry.op, data, &params as Params<'_>);
            rows.push(KernelFigures::measure(&mut client, user, *placement, args.seconds, &|| display.stopped())?);
        }
        client.remove_kernel(&name)?;
    }
    display.clear();
    drop(child);
    if let Some(path) = &args.json {
        write(path, &json(file, &rows))?;
    }
    let text = table(file, &rows, &left_out);
    print(&text, &text);
    check(&rows)
}

/// A kernel that answers differently in two places is wrong, or its data changed.
fn check(rows: &[KernelFigures]) -> Result<(), Failure> {
    match rows.iter().find(|row| row.digest != rows[0].digest) {
        None => Ok(()),
        Some(row) => Err(Failure::Failed(format!(
            "the kernel answers differently at the {} over {} and at the {} over {}: does it change what it reads, or keep \
             something between calls (--fresh)?",
            rows[0].place.name(),
            rows[0].link,
            row.place.name(),
            row.link
        ))),
    }
}

fn table(file: &Path, rows: &[KernelFigures], left_out: &[String]) -> String {
    let mut text = format!("{}, one call at a time and {} at once\n\n", file.display(), IN_FLIGHT[1]);
    let mut line = |cells: [&str; 7]| {
        let [link, place, p50, p99, per_s, trips, calls] = cells;
        // Writing to a string does not fail.
        let _ = writeln!(text, "{link:<7} {place:<7} {p50:>10} {p99:>10} {per_s:>12} {trips:>12} {calls:>10}");
    };
    line(["link", "place", "p50", "p99", "calls/s", "trips/call", "calls"]);
    for row in rows {
        let cells = [
            row.link.to_string(),
            row.place.name().into(),
            time(row.p50_ns as f64),
            time(row.p99_ns as f64),
            rate(row.per_s),
            format!("{:.1}", row.trips),
            row.calls.to_string(),
        ];
        line(cells.each_ref().map(|cell: &String| cell.as_str()));
    }
    text.push('\n');
    let mut links: Vec<LinkKind> = rows.iter().map(|row| row.link).collect();
    links.dedup();
    for link in links {
        let of = || rows.iter().filter(|row| row.link == link);
        let best = of().map(|row| row.p50_ns as f64).fold(f64::INFINITY, f64::min);
        let fast: Vec<&str> =
            of().filter(|row| is_level(best, row.p50_ns as f64)).map(|row| row.place.name()).collect();
        let most = of().map(|row| row.per_s).fold(0.0, f64::max);
        let many: Vec<&str> = of().filter(|row| is_level(row.per_s, most)).map(|row| row.place.name()).collect();
        let _ = writeln!(
            text,
            "over {link}: quickest at the {}; most calls a second at the {}",
            fast.join(" and "),
            many.join(" and ")
        );
    }
    if let Some(row) = rows.iter().find(|row| row.status != Status::Ok) {
        let _ = writeln!(text, "the first call ended with {}", explain(row.status));
    }
    for reason in left_out {
        let _ = writeln!(text, "left out: {reason}");
    }
    text
}

fn json(file: &Path, rows: &[KernelFigures]) -> String {
    let rows: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "kernel": file.display().to_string(), "link": row.link, "place": row.place.name(), "calls": row.calls,
                "p50_ns": row.p50_ns, "p99_ns": row.p99_ns, "calls_per_s": row.per_s, "round_trips_per_call": row.trips,
                "status": row.status.code(),
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(rows))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| {
        let hint = if e.kind() == ErrorKind::NotFound { ": its directory does not exist" } else { "" };
        Failure::Failed(format!("cannot write {}: {e}{hint}", path.display()))
    })
}
