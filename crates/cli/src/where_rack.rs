//! `remora where rack`.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_model::platform::Platform;
use remora_study::format::{bytes, digits, plural, rate, time, wrap};
use remora_study::where_::rack::{RackAnswer, RackOptions, RackRow, Workload, missing, pool};

use crate::Failure;
use crate::output::{self, Json};
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};

pub const EXAMPLES: &str = "\
The engine runs the workload in two racks of the platform: without a pool, each node with a NIC behind a ToR switch, then \
with pools of one NIC, of two and so on, and with the memory of each pool faster and slower, until it is what binds.

Examples:
  remora where rack all-reduce --on dfabric --ratio 8
      NICs with an eighth of the bandwidth that there is within a rack
  remora where rack stream --on dfabric --ratio 8 --device-bandwidth 250Mb/s
      with slow memory
  remora where rack my.toml --on my-racks.toml --nics 16 --gain 10 --json rack.json";

/// Options of `remora where rack`.
#[derive(Debug, clap::Args)]
pub struct WhereRack {
    /// What nodes do: all-reduce, all-to-all, incast, page-rank, stream, or a TOML file (docs/formats.md)
    #[arg(value_name = "WORKLOAD")]
    workload: PathBuf,
    /// A platform with a section [rack], such as dfabric, or a platform file; may be given more than once
    #[arg(long, value_name = "PLATFORM", required = true)]
    on: Vec<String>,
    /// NICs of a rack's pool at most
    #[arg(long, value_name = "N", default_value = "8", value_parser = up_to::<u16>(1..=64))]
    nics: u16,
    /// By how many per cent one more NIC has to be faster to be worth it
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    gain: f64,
    /// Bytes, instead of what the workload says
    #[arg(long, value_name = "BYTES", value_parser = quantity::size)]
    size: Option<u64>,
    /// Bytes that programs send and receive at once
    #[arg(long, value_name = "BYTES", value_parser = quantity::size)]
    message: Option<u64>,
    /// Nodes of each rack
    #[arg(long, value_name = "N", value_parser = up_to::<u32>(1..=32))]
    nodes: Option<u32>,
    /// How many times a NIC's bandwidth there is within a rack
    #[arg(long, value_name = "TIMES")]
    ratio: Option<f64>,
    /// Memory devices of each rack's pool
    #[arg(long, value_name = "N", value_parser = up_to::<u16>(1..=1024))]
    devices: Option<u16>,
    /// The bandwidth of each of them
    #[arg(long, value_name = "RATE", value_parser = quantity::bandwidth)]
    device_bandwidth: Option<f64>,
    /// Threads [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = up_to::<u16>(1..=256))]
    jobs: Option<u16>,
    /// Seed of every random choice: that of page-rank's graph
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

/// Nothing is shown of how far it is before so long: less is over before it could be read.
const QUIET: Duration = Duration::from_secs(1);

fn percent(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches('%').trim().parse().ok().filter(|value| (0.0..=1000.0).contains(value));
    value.ok_or_else(|| "give per cent from 0 to 1000".into())
}

/// The workload, but for what is given.
fn workload(args: &WhereRack) -> Result<Workload, Failure> {
    let mut workload = Workload::load(&args.workload)?;
    workload.size = args.size.or(workload.size);
    workload.message = args.message.or(workload.message);
    workload.nodes = args.nodes.or(workload.nodes);
    workload.ratio = args.ratio.or(workload.ratio);
    let wrong = |(key, what): (&str, String)| Failure::Usage(format!("--{key} {what}"));
    workload.check().map(|()| workload).map_err(wrong)
}

/// Answers for each platform.
pub fn run(args: &WhereRack) -> Result<(), Failure> {
    let workload = workload(args)?;
    let platforms: Result<Vec<_>, _> = args.on.iter().map(|name| Platform::load(name)).collect();
    let platforms = platforms?;
    let jobs = args.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let options = RackOptions {
        nics: args.nics,
        gain: args.gain / 100.0,
        devices: args.devices,
        device_bandwidth: args.device_bandwidth,
        jobs,
        seed: args.seed,
    };
    if let Some(what) = platforms.iter().find_map(|platform| missing(platform, &workload, &options)) {
        return Err(Failure::Usage(what));
    }
    let (stop, began) = (stop_flag(), Instant::now());
    let display = Display::new(stop.clone());
    let (mut text, mut answers, mut rows) = (String::new(), Vec::new(), 0);
    let each = usize::from(args.nics) + 1;
    let all = platforms.len() * each;
    for (n, platform) in platforms.iter().enumerate() {
        let start = Instant::now();
        let answer = pool(platform, &workload, &options, &stop, &mut |done, _| {
            if began.elapsed() > QUIET {
                let done = n * each + done;
                display.part(&format!("{done} of {all} runs, {}", platform.name), done as f64 / all as f64);
            }
        });
        // What was answered before is kept.
        let answer = match answer.map_err(crate::reproduce::failure) {
            Err(Failure::Interrupted) if !answers.is_empty() => break,
            answer => answer?,
        };
        text += &show(platform, &workload, &answer, start.elapsed().as_secs_f64());
        rows += answer.rows.len();
        answers.push(serde_json::json!({
            "platform": platform.name,
            "values": platform.params.shares(),
            "answer": answer,
        }));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    display.clear();
    let incomplete = (rows < all || stop.load(Ordering::Relaxed))
        .then(|| format!("interrupted; {rows} of {all} runs are here, and the last may lack when its memory binds"));
    text.insert_str(0, &output::not_complete(incomplete.as_deref()));
    args.json.show(&text, || {
        serde_json::json!({
            "format": "remora-where-rack/1",
            "version": env!("REMORA_VERSION"),
            "workload": workload.title,
            "size": workload.size,
            "message": workload.message,
            "gain": options.gain,
            "seed": args.seed,
            "answers": answers,
            "incomplete": incomplete,
        })
    })?;
    incomplete.map_or(Ok(()), |_| Err(Failure::Interrupted))
}

fn show(platform: &Platform, workload: &Workload, answer: &RackAnswer, seconds: f64) -> String {
    let mut out = String::new();
    let size = workload.size.map_or(String::new(), |size| format!(" of {}", bytes(size)));
    let message = workload.message.map_or(String::new(), |size| format!(" in messages of {}", bytes(size)));
    wrap(&mut out, 0, "", &format!("{}{size}{message} on {} ({})", workload.title, platform.name, platform.title));
    let (nodes, devices) = (plural(answer.nodes as f64, "node"), plural(answer.devices as f64, "memory device"));
    let (nic, within) = (rate(answer.nic_bytes_per_s), rate(answer.interconnect_bytes_per_s));
    let device = rate(answer.device_bytes_per_s);
    let racks = format!("Racks of {nodes}, {within}B/s within, NICs of {nic}B/s, pools of {devices} of {device}B/s");
    wrap(&mut out, 0, "", &racks);
    for line in [&answer.line, &answer.memory_line] {
        if !line.is_empty() {
            wrap(&mut out, 0, "", line);
        }
    }
    out.push('\n');
    table(&mut out, answer);
    let legend = "NICs: of each rack's pool; none: each node has one behind a ToR switch. goodput: what all programs received. \
                  next: by how much it is faster than the row above. busiest: what limits it, and how much of the time it \
                  was in use. memory: of all devices of a pool together; with less it is the busiest.";
    wrap(&mut out, 0, "", legend);
    if let Some(row) = answer.rows.first().filter(|row| row.timeouts > 0) {
        let (dropped, timeouts) = (plural(row.dropped as f64, "packet"), plural(row.timeouts as f64, "timeout"));
        let lost = format!(
            "Without a pool switches dropped {dropped}, and TCP waited for {timeouts}: part of that row's time."
        );
        wrap(&mut out, 0, "", &lost);
    }
    out.push('\n');
    let left = "Left out: what else the racks carry, loss but for full ports, NICs that fail.";
    wrap(&mut out, 0, "", &format!("{}; {seconds:.2} s. {left}", platform.params.shares_text()));
    out.push('\n');
    out
}

fn table(out: &mut String, answer: &RackAnswer) {
    let _ = writeln!(
        out,
        "{:<4}{:>9}{:>11}{:>9}{:>7}  {:<27}{:>11}",
        "NICs", "time", "goodput", "speed-up", "next", "busiest", "memory"
    );
    let mut above: Option<&RackRow> = None;
    for row in &answer.rows {
        let RackRow { nics, seconds, bytes_per_s, speedup, binding, utilisation, .. } = row;
        // From no pool to a pool is no step of one NIC.
        let next = above.filter(|above| above.nics > 0).map(|above| 100.0 * (above.seconds / seconds - 1.0));
        let _ = writeln!(
            out,
            "{:<4}{:>9}{:>11}{:>9}{:>7}  {:<27}{:>11}",
            if *nics == 0 { "none".into() } else { nics.to_string() },
            time(seconds * 1e9),
            format!("{}B/s", rate(*bytes_per_s)),
            format!("{} x", digits(*speedup)),
            next.map_or(String::new(), |next| format!("{:+.0} %", next.round() + 0.0)),
            format!("{binding} {:.0} %", utilisation * 100.0),
            row.memory_binds_below.map_or("-".into(), |least| format!("{}B/s", rate(least))),
        );
        above = Some(row);
    }
}
