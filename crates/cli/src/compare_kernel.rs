//! `remora compare --kernel`: a user's kernel at the client, on the node's NIC and on its host cores.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use remora_kernel::{Placement, Status};
use remora_lab::stats::{Latencies, is_level};
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_study::format::{rate, time};

use crate::args;
use crate::capture::Capture;
use crate::child::ChildNode;
use crate::kernel::{explain, name_of, put};
use crate::kernel_build;
use crate::kernel_params::{Place, encode};
use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

/// Calls under way at once when the rate is measured.
const IN_FLIGHT: u32 = 64;

/// The kernel at one place over one link.
struct Row {
    link: LinkKind,
    place: Placement,
    calls: u64,
    p50_ns: u64,
    p99_ns: u64,
    per_s: f64,
    /// Round trips that a call took.
    trips: f64,
    /// Of statuses and replies of the same calls in each place: replies must be alike.
    digest: u64,
    status: Status,
}

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
    let data = data(args)?;
    let display = Display::new(stop_flag());
    let links = if args.links.is_empty() { vec![LinkKind::Udp, LinkKind::Shm] } else { args.links.clone() };
    let capture = Capture::open(args.pcap.as_deref())?;
    let (node, child) = match args.node {
        Some(node) => (node, None),
        None => {
            let node = at_free_loopback(Ok)?;
            (node, Some(ChildNode::start_captured(node, args.pcap.as_deref())?))
        }
    };
    let total = (links.len() * args.placements.len()) as u64;
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for link in &links {
        let local = match args.local.filter(|_| !node.is_loopback()) {
            Some(local) => local,
            None => at_local(node, Ok)?,
        };
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
        let place = put(&mut client, data.as_deref())?;
        for placement in &args.placements {
            display.advance(rows.len() as u64, total, &format!("{} at the {} over {}", name_of(file), placement, link));
            rows.push(measure(&mut client, args, entry.op, place, *placement, &display)?);
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

fn measure(
    client: &mut Client,
    args: &args::Compare,
    op: u64,
    place: Place,
    placement: Placement,
    display: &Display,
) -> Result<Row, Failure> {
    let mut params = Vec::new();
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    let mut first = Status::Ok;
    // The same calls in each place, and what they answered.
    for call in 0..32 {
        params.clear();
        encode(&args.args, place, call, &mut params);
        let (status, reply) = client.call(placement, op, &params)?;
        if call == 0 {
            first = status;
        }
        for byte in std::iter::once(&status.code()).chain(&reply) {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    let time = args.seconds;
    let before = client.counters();
    let mut latencies = Latencies::new();
    let begin = Instant::now();
    let mut call = 0;
    while begin.elapsed() < time || latencies.count() < 32 {
        params.clear();
        encode(&args.args, place, call, &mut params);
        let start = Instant::now();
        client.call(placement, op, &params)?;
        latencies.record(start.elapsed());
        call += 1;
        if display.stopped() {
            return Err(Failure::Interrupted);
        }
    }
    let after = client.counters();
    let trips = (after.round_trips - before.round_trips) as f64 / latencies.count() as f64;
    let (calls, per_s) = rate_of(client, args, op, place, placement, time, &mut params)?;
    Ok(Row {
        link: client.link(),
        place: placement,
        calls: calls + latencies.count(),
        p50_ns: latencies.quantile(0.5),
        p99_ns: latencies.quantile(0.99),
        per_s,
        trips,
        digest,
        status: first,
    })
}

/// Calls a second with many under way, and how many there were.
fn rate_of(
    client: &mut Client,
    args: &args::Compare,
    op: u64,
    place: Place,
    placement: Placement,
    time: Duration,
    params: &mut Vec<u8>,
) -> Result<(u64, f64), Failure> {
    let (mut sent, mut done, begin) = (0u64, 0u64, Instant::now());
    loop {
        let running = begin.elapsed() < time;
        while running && sent - done < IN_FLIGHT.into() {
            params.clear();
            encode(&args.args, place, sent, params);
            if client.submit(placement, op, params, 0).is_err() {
                break;
            }
            sent += 1;
        }
        client.poll(&mut |_, _, _| done += 1)?;
        if !running && done == sent {
            return Ok((done, done as f64 / begin.elapsed().as_secs_f64()));
        }
    }
}

/// A kernel that answers differently in two places is wrong, or its data changed.
fn check(rows: &[Row]) -> Result<(), Failure> {
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

fn table(file: &Path, rows: &[Row], left_out: &[String]) -> String {
    let mut text = format!("{}, one call at a time and {IN_FLIGHT} at once\n\n", file.display());
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

fn json(file: &Path, rows: &[Row]) -> String {
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
