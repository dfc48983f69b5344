//! `remora compare --kernel`: a user's kernel at the client, on the node's NIC and on its host cores.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;

use remora_kernel::{Placement, Status};
use remora_lab::MeasuredRows;
use remora_lab::stats::is_level;
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_study::StudyError;
use remora_study::format::{count, rate, time};
use remora_study::kernel_calls::{KernelFigures, Params};
use remora_study::measure::IN_FLIGHT;
use remora_study::nodes::NodeProcess;
use remora_study::report::{KernelBar, KernelPage};
use remora_wasm::{INLINE_FUEL, ModuleLimits};

use crate::Failure;
use crate::args;
use crate::capture::Capture;
use crate::kernel::{explain, name_of, put, reason};
use crate::kernel_build;
use crate::kernel_params::encode;
use crate::kernel_run::{self, Profile};
use crate::output::not_complete;
use crate::progress::{Display, stop_flag};

/// What `--data` names.
pub fn data(args: &args::Compare) -> Result<Option<Vec<u8>>, Failure> {
    args.data.as_deref().map(kernel_build::read).transpose()
}

/// Measures and prints.
pub fn run(args: &args::Compare, file: &Path) -> Result<(), Failure> {
    let module = kernel_build::load(file)?;
    let bytes = data(args)?;
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
    let profile = kernel_run::profile(&module, args.bounds.limits(), &args.args, bytes.as_deref());
    let mut left_out = Vec::new();
    let measure =
        Measure { args, file, module: &module, bytes: bytes.as_deref(), capture: &capture, display: &display };
    let mut measured =
        MeasuredRows { rows: Vec::new(), wanted: links.len() * args.places(&Placement::REAL).len(), cut: None };
    measured.cut = measure.all(&links, node, &mut measured.rows, &mut left_out).err();
    display.clear();
    drop(child);
    let missing = measured.missing("figures");
    let MeasuredRows { rows, cut, .. } = measured.or_nothing()?;
    let mut text = not_complete(missing.as_deref());
    let depends = Depends { profile: profile.as_ref(), limits: args.bounds.limits() };
    text += &table(args, file, &rows, &left_out, &depends);
    let mut figures = json(file, &rows, profile.as_ref());
    figures["incomplete"] = missing.into();
    args.json.show(&text, || figures.clone())?;
    let bar = |row: &KernelFigures| KernelBar { place: row.place, p50_ns: row.p50_ns as f64, per_s: row.per_s };
    let groups = rows
        .chunk_by(|a, b| a.link == b.link)
        .map(|rows| (format!("Over {}", rows[0].link.title()), rows.iter().map(bar).collect()));
    let groups = if depends.have_figures(&rows) { groups.collect() } else { Vec::new() };
    write_page(args, file, groups, &text, &figures)?;
    cut.map_or_else(|| check(args, &rows, &depends), Err)
}

/// Writes the page, unless none is wanted.
pub fn write_page(
    args: &args::Compare,
    file: &Path,
    groups: Vec<(String, Vec<KernelBar>)>,
    text: &str,
    json: &serde_json::Value,
) -> Result<(), Failure> {
    if args.no_html {
        return Ok(());
    }
    let (kernel, command) = (file.display().to_string(), crate::compare::command());
    let page = KernelPage { kernel: &kernel, command: &command, groups, text, json }.html();
    crate::output::write(&args.html, page.as_bytes())?;
    args.json.print(&format!("Report with plots: {}\n", args.html.display()))
}

/// What is measured.
struct Measure<'a> {
    args: &'a args::Compare,
    file: &'a Path,
    module: &'a [u8],
    bytes: Option<&'a [u8]>,
    capture: &'a Capture,
    display: &'a Display,
}

impl Measure<'_> {
    fn all(
        &self,
        links: &[LinkKind],
        node: IpAddr,
        rows: &mut Vec<KernelFigures>,
        left_out: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let Self { args, file, module, bytes, capture, display } = *self;
        let params = |data, call, out: &mut Vec<u8>| encode(&args.args, data, call, out);
        let total = (links.len() * args.places(&Placement::REAL).len()) as u64;
        for link in links {
            let local = args.local.filter(|_| !node.is_loopback()).map_or_else(|| at_local(node, Ok), Ok)?;
            let layers = capture.layers();
            let config = ClientConfig { link: Some(*link), layers, mtu: args.mtu, ..ClientConfig::new(node, local) };
            let connect = || Client::connect(config.clone());
            let mut client = match connect() {
                Ok(client) => client,
                Err(error) if args.links.is_empty() => {
                    left_out.push(format!("{link}: {error}"));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let name = format!("compare-{}", std::process::id());
            let (limits, isolation) = (args.bounds.limits(), args.bounds.isolation());
            let entry = client.deploy_kernel(&name, module, limits, isolation, false)?;
            let local = client.local_kernels().deploy_at(Some(entry.op), &name, module, limits, isolation);
            local.map_err(|e| Failure::Failed(format!("{}: {e}", file.display())))?;
            let data = put(&mut client, bytes)?;
            let mut measured = Ok(());
            for placement in &args.places(&Placement::REAL) {
                display.advance(rows.len() as u64, total, &format!("{} at the {placement} over {link}", name_of(file)));
                let user = (entry.op, data, &params as Params<'_>);
                match KernelFigures::measure(&mut client, user, *placement, args.seconds, &|| display.stopped()) {
                    Ok(row) => {
                        let denied = row.failed == Some(Status::AccessDenied);
                        rows.push(row);
                        // Who is denied memory again and again has no connection any more.
                        if denied {
                            break;
                        }
                    }
                    // At the client an access is a verb, and one that is denied costs the connection.
                    Err(StudyError::Target(error)) if *placement == Placement::Client && error.is_denied() => {
                        rows.push(KernelFigures::failed(*link, *placement, Status::AccessDenied));
                        break;
                    }
                    // What a user's kernel waits for nobody knows here.
                    Err(StudyError::Stuck { after, .. }) => {
                        measured = Err(Failure::Failed(format!(
                            "no result over {link} at the {placement} for {} s: the node has stopped, or the kernel waits \
                             for something",
                            after.as_secs()
                        )));
                        break;
                    }
                    Err(error) => {
                        measured = Err(Failure::from(error));
                        break;
                    }
                }
            }
            let mut removed = client.remove_kernel(&name);
            if removed.is_err() {
                // The connection may have ended, or have calls under way; a node that is gone has nothing to remove.
                drop(client);
                removed = connect().and_then(|mut again| again.remove_kernel(&name));
            }
            measured?;
            if rows.iter().any(|row| row.failed.is_some()) {
                return Ok(());
            }
            removed?;
        }
        Ok(())
    }
}

/// A kernel that fails has no figures that mean anything, nor has one that is kept from what it is for. One that answers
/// differently in two places is wrong, or its data changed.
fn check(args: &args::Compare, rows: &[KernelFigures], depends: &Depends<'_>) -> Result<(), Failure> {
    if let Some((row, status)) = rows.iter().find_map(|row| row.failed.map(|status| (row, status))) {
        let KernelFigures { place, link, .. } = row;
        let why = reason(status, &args.args);
        let hint = "see it with `remora kernel run FILE --data ... --args ... --trace`";
        return Err(Failure::Failed(format!("the kernel fails at the {place} over {link}, with {why}: {hint}")));
    }
    if let Some((status, why)) = depends.kept_from(rows) {
        return Err(Failure::Failed(format!("the kernel ends with {}: {why}", reason(status, &args.args))));
    }
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

/// What the figures depend on beside place and link.
struct Depends<'a> {
    profile: Option<&'a Profile>,
    /// What a call may use.
    limits: ModuleLimits,
}

impl Depends<'_> {
    /// The kernel's own status, if each place's calls end with one and a bound keeps them from what they want.
    fn kept_from(&self, rows: &[KernelFigures]) -> Option<(Status, String)> {
        let status = rows.first()?.status;
        let own = rows.iter().all(|row| matches!(row.status, Status::Other(_)));
        Some((status, self.profile?.beyond(&self.limits).filter(|_| own)?))
    }

    /// Whether figures mean anything: calls that fail, or are kept from what they are for, are no faster in one place than in
    /// another.
    fn have_figures(&self, rows: &[KernelFigures]) -> bool {
        rows.iter().all(|row| row.failed.is_none()) && self.kept_from(rows).is_none()
    }

    /// What a call uses up, and the flag that would make it quicker.
    fn text(&self) -> String {
        let Some(Profile { calls, fuel, accesses, bytes }) = self.profile else { return String::new() };
        let mut text = format!(
            "a call uses up to {} fuel, {} accesses and {} bytes (the first {calls}, run here)\n",
            count(*fuel),
            count(*accesses),
            count(*bytes)
        );
        // Half as much again, for calls that were not among the first.
        let enough = fuel + fuel / 2;
        if self.limits.fuel > INLINE_FUEL && enough <= INLINE_FUEL {
            text += &format!(
                "--fuel {INLINE_FUEL} would do, and make calls at nic and host quicker: with more (here {}) a call can be \
                 suspended, which costs time\n",
                count(self.limits.fuel)
            );
        } else if self.limits.fuel > INLINE_FUEL {
            text += &format!(
                "with more than {INLINE_FUEL} fuel a call can be suspended, which costs time at nic and host: fewer \
                 instructions may turn the verdict round\n"
            );
        }
        text
    }
}

/// How calls ended in each place, if they are to have no figures; `of` is a link, or what else a place is of.
pub fn ends(of: &str, rows: impl Iterator<Item = (String, Placement, Status)>) -> String {
    let mut text = format!("{of:<12} {:<7} a call ends with\n", "place");
    for (of, place, status) in rows {
        text += &format!("{of:<12} {:<7} {status:?}\n", place.name());
    }
    text
}

/// What stands above figures of calls that end otherwise than well.
pub fn ending(status: Status, args: &args::Compare) -> String {
    let what = match status {
        Status::Ok => return String::new(),
        Status::Other(_) => "; what that means the kernel alone says",
        _ => "",
    };
    format!("the first call ended with {}{what}: the figures are of calls that end so\n", explain(status, &args.args))
}

fn table(
    args: &args::Compare,
    file: &Path,
    rows: &[KernelFigures],
    left_out: &[String],
    depends: &Depends<'_>,
) -> String {
    let left_out: String = left_out.iter().map(|reason| format!("left out: {reason}\n")).collect();
    if !depends.have_figures(rows) {
        let rows = rows.iter().map(|row| (row.link.to_string(), row.place, row.failed.unwrap_or(row.status)));
        return format!("{}, no figures\n\n{}{left_out}", file.display(), ends("link", rows));
    }
    let mut text = format!("{}, one call at a time and {} at once\n", file.display(), IN_FLIGHT[1]);
    let status = rows.iter().map(|row| row.status).find(|&status| status != Status::Ok);
    text += &ending(status.unwrap_or(Status::Ok), args);
    text.push('\n');
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
    text + &depends.text() + &left_out
}

fn json(file: &Path, rows: &[KernelFigures], profile: Option<&Profile>) -> serde_json::Value {
    let rows: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "link": row.link, "place": row.place.name(), "calls": row.calls,
                "p50_ns": row.p50_ns, "p99_ns": row.p99_ns, "calls_per_s": row.per_s, "round_trips_per_call": row.trips,
                "status": row.status.code(), "failed": row.failed.map(Status::code),
            })
        })
        .collect();
    let profile = profile.map(|profile| {
        serde_json::json!({ "calls": profile.calls, "fuel": profile.fuel, "accesses": profile.accesses, "bytes": profile.bytes })
    });
    serde_json::json!({
        "format": "remora-compare-kernel/1",
        "version": env!("REMORA_VERSION"),
        "kernel": file.display().to_string(),
        "per_call_at_most": profile,
        "rows": rows,
    })
}
