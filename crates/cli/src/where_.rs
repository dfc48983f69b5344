//! `remora where`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use clap::builder::TypedValueParser;
use remora_model::platform::{NicDevice, Platform};
use remora_real::LinkKind;
use remora_study::format::{rate, time};

use remora_study::where_::{Answer, Candidate, Goal, Operation, OperationError, WhereOptions, decide};

use crate::args::one_of;
use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

const EXAMPLES: &str = "\
Examples:
  remora where studies/where/list.toml --on strom-10g
  remora where studies/where/get.toml --on rambda --on bluefield2 --by rate --csv get.csv
  remora probe --out here.toml && remora where my.toml --on here.toml --link shm";

/// WhereOptions of `remora where`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Where {
    /// The operation: a TOML file; studies/where has templates
    #[arg(value_name = "OP")]
    pub operation: PathBuf,
    /// A built-in platform (see `remora platform list`) or a platform file; may be given more than once
    #[arg(long, value_name = "PLATFORM", required = true)]
    pub on: Vec<String>,
    /// What decides
    #[arg(long, value_enum, default_value = "latency")]
    pub by: By,
    /// The link, on a platform that `remora probe` wrote
    #[arg(long, default_value = "udp", value_parser = link())]
    pub link: LinkKind,
    /// Points at which the open values are tried together
    #[arg(long, value_name = "N", default_value = "256", value_parser = crate::args::up_to(0..=100_000))]
    pub points: u32,
    /// Operations to simulate for each placement that lies close; 0 is the screen alone
    #[arg(long, value_name = "N", default_value = "20000", value_parser = crate::args::up_to(0..=10_000_000))]
    pub simulate: u32,
    /// Flip points to print
    #[arg(long, value_name = "N", default_value = "6")]
    pub flips: usize,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42")]
    pub seed: u64,
    /// Also write everything as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write a line for each platform and placement as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The median latency under the operation's load.
    Latency,
    /// Operations a second at saturation.
    Rate,
    /// Operations per joule.
    Energy,
}

/// A link of the software NIC, by its name.
fn link() -> impl TypedValueParser<Value = LinkKind> {
    one_of([(LinkKind::Udp.name(), "RoCE v2 over UDP"), (LinkKind::Shm.name(), "Shared memory")])
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Read { .. } => Self::Failed(error.to_string()),
            OperationError::At { .. } => Self::Usage(error.to_string()),
        }
    }
}

/// Decides for each platform, prints the answers.
pub fn run(args: &Where) -> Result<(), Failure> {
    let operation = Operation::load(&args.operation)?;
    let platforms: Result<Vec<_>, _> = args.on.iter().map(|name| Platform::load(name)).collect();
    let options = WhereOptions {
        goal: match args.by {
            By::Latency => Goal::Latency,
            By::Rate => Goal::Rate,
            By::Energy => Goal::Energy,
        },
        link: args.link,
        points: args.points as usize,
        simulated: args.simulate,
        seed: args.seed,
    };
    let display = Display::new(stop_flag());
    // Less is over before a bar could be read.
    let slow = args.points > 2_000 || args.simulate > 200_000;
    let (mut text, mut answers, mut csv) = (String::new(), Vec::new(), CSV_HEAD.to_string());
    for (n, platform) in platforms?.iter().enumerate() {
        if slow {
            display.part(&platform.name, n as f64 / args.on.len() as f64);
        }
        if options.goal == Goal::Energy && platform.power.is_none() {
            return Err(Failure::Usage(format!("{} has no section [power]: energy is not known", platform.name)));
        }
        let start = Instant::now();
        let Some(answer) = decide(platform, &operation, &options) else {
            return Err(Failure::Usage(format!("{} has no placement", platform.name)));
        };
        let _ = writeln!(text, "{}", show(args, platform, &operation, &answer, start.elapsed().as_secs_f64()));
        csv += &csv_lines(&operation.title, &platform.name, &answer);
        answers.push(serde_json::json!({
            "platform": platform.name,
            "values": platform.params.shares(),
            "answer": answer,
        }));
    }
    display.clear();
    let write = |path: &Path, content: &str| {
        let failed = |e| Failure::Failed(format!("cannot write {}: {e}", path.display()));
        std::fs::write(path, content).map_err(failed)
    };
    if let Some(path) = &args.csv {
        write(path, &csv)?;
    }
    if let Some(path) = &args.json {
        let all = serde_json::json!({
            "format": "remora-where/1",
            "version": env!("CARGO_PKG_VERSION"),
            "operation": operation.title,
            "seed": args.seed,
            "answers": answers,
        });
        write(path, &format!("{all:#}\n"))?;
    }
    print(&text, &text);
    Ok(())
}

const CSV_HEAD: &str = "operation,platform,place,alone_ns,p50_ns,p99_ns,p50_low_ns,p50_high_ns,ops_per_s,\
    saturation_per_s,ops_per_joule,binding,utilisation,simulated_p50_ns,simulated_p99_ns,simulated_ops_per_s\n";

/// A line for each placement, the best first. What is not known or was not simulated is empty.
fn csv_lines(operation: &str, platform: &str, answer: &Answer) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut out = String::new();
    for (candidate, interval) in answer.ranking.iter().zip(&answer.intervals) {
        let Candidate { place, alone_ns, p50_ns, p99_ns, ops_per_s, saturation_per_s, utilisation, .. } = candidate;
        let (low, high) = interval.p50_ns;
        let joule = candidate.ops_per_joule.map_or(String::new(), |ops| ops.to_string());
        let simulated = answer.simulated.iter().find(|run| run.place == *place);
        let simulated = simulated.map_or(",,".into(), |run| format!("{},{},{}", run.p50_ns, run.p99_ns, run.ops_per_s));
        let _ = writeln!(
            out,
            "{},{},{place},{alone_ns},{p50_ns},{p99_ns},{low},{high},{ops_per_s},{saturation_per_s},{joule},{},\
             {utilisation},{simulated}",
            quoted(operation),
            quoted(platform),
            quoted(candidate.binding)
        );
    }
    out
}

fn show(args: &Where, platform: &Platform, operation: &Operation, answer: &Answer, seconds: f64) -> String {
    let mut out = format!("{} on {} ({})\n", operation.title, platform.name, platform.title);
    let _ = writeln!(out, "{}\n", answer.line);
    candidates(&mut out, answer);
    simulations(&mut out, answer);
    if let [best, ..] = &answer.ranking[..] {
        let parts: Vec<_> = best.parts.iter().map(|(what, ns)| format!("{what} {}", time(*ns))).collect();
        let _ = writeln!(out, "\n{} alone: {}", best.place, parts.join(", "));
        if !answer.flips.is_empty() && args.flips > 0 {
            out += "\nWhat would have to change:\n";
        }
        for flip in answer.flips.iter().take(args.flips) {
            let _ = writeln!(out, "  {}", flip.line(best.place));
        }
    }
    if !answer.contributions.is_empty() {
        let _ = writeln!(
            out,
            "\nOpen values that matter (best at {:.0} % of {} points of a Latin hypercube, seed {}):",
            answer.certainty * 100.0,
            args.points,
            args.seed
        );
        for value in answer.contributions.iter().take(4) {
            let ((low, high), swing) = (&value.range, value.swing * 100.0);
            let _ = writeln!(
                out,
                "  {} from {low} to {high} ({}) moves the first two by {swing:.0} %",
                value.path, value.status
            );
        }
    }
    let _ = writeln!(out, "\n{}; {seconds:.2} s. {}", platform.params.shares_text(), left_out(platform));
    out
}

/// What the screen leaves out.
fn left_out(platform: &Platform) -> &'static str {
    match platform.placements.nic {
        Some(NicDevice::Software) => "Left out: the scheduler, and what else runs on the cores.",
        _ => "Left out: loss and retransmission, translation misses of the NIC, cache pollution by DMA, NUMA.",
    }
}

fn candidates(out: &mut String, answer: &Answer) {
    let _ = writeln!(
        out,
        "{:<8}{:>10}{:>10}{:>10}{:>12}{:>12}{:>10}  {:<32}p50 over open values",
        "place", "alone", "p50", "p99", "ops/s", "at most", "ops/J", "limited by"
    );
    for (candidate, interval) in answer.ranking.iter().zip(&answer.intervals) {
        let Candidate { place, alone_ns, p50_ns, p99_ns, ops_per_s, saturation_per_s, .. } = candidate;
        let joule = candidate.ops_per_joule.map_or("-".into(), rate);
        let limit = format!("{} ({:.0} % used)", candidate.binding, candidate.utilisation * 100.0);
        let (low, high) = interval.p50_ns;
        let _ = writeln!(
            out,
            "{place:<8}{:>10}{:>10}{:>10}{:>12}{:>12}{joule:>10}  {limit:<32}{} to {}",
            time(*alone_ns),
            time(*p50_ns),
            time(*p99_ns),
            rate(*ops_per_s),
            rate(*saturation_per_s),
            time(low),
            time(high)
        );
    }
}

fn simulations(out: &mut String, answer: &Answer) {
    for run in &answer.simulated {
        let _ = writeln!(
            out,
            "simulated way: {} p50 {}, p99 {}, {} ops/s ({} events)",
            run.place,
            time(run.p50_ns),
            time(run.p99_ns),
            rate(run.ops_per_s),
            run.events
        );
    }
    for run in &answer.world {
        let joule = run.joules_per_op.map_or(String::new(), |joules| format!(", {} ops/J", rate(1.0 / joules)));
        let _ = writeln!(
            out,
            "engine and kernel in modelled time: {} p50 {}, p99 {}, {} ops/s{joule}, busiest {}",
            run.place,
            time(run.p50_ns as f64),
            time(run.p99_ns as f64),
            rate(run.ops_per_s),
            run.binding
        );
    }
}
