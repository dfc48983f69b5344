//! `remora storm`.

use std::fmt::Write;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use remora_storm::carriage::Carriage;
use remora_storm::cluster::{Failure as Found, StormReport};
use remora_storm::events::SECOND;
use remora_storm::export;
use remora_storm::minos::{self, Case, MARKS, Model, StormDeployment};
use remora_storm::nemesis::KINDS;
use remora_storm::totals::Totals;
use serde_json::{Value, json};

use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

/// What to storm.
#[derive(Debug, clap::Subcommand)]
pub enum StormCommand {
    /// The replicated store, under any of its persistency models
    #[command(after_help = EXAMPLES)]
    Minos(StormMinos),
}

const EXAMPLES: &str = "\
Each storm is a cluster of its own, of 20 to 70 simulated seconds: first with faults, then without. Storms use the \
seeds N, N+1, ... in turn, and all models and deployments unless one is named.

Examples:
  remora storm minos                                   an hour of simulated time from a fresh seed
  remora storm minos --hours 10000 --model synch       through the night
  remora storm minos --seed 7 --storms 1 --export h.json   one storm, and its history for other checkers
  remora storm minos --ci                              two minutes of fresh seeds, and all that ever failed";

/// Options of `remora storm minos`.
#[derive(Debug, clap::Args)]
pub struct StormMinos {
    /// The first storm's seed [default: a fresh one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Nodes of each cluster
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u8).range(1..=16))]
    nodes: u8,
    /// Simulated time to run for [default: 1, unless --seconds, --storms or --ci says when to end]
    #[arg(long, value_name = "H", value_parser = positive)]
    hours: Option<f64>,
    /// Wall time to run for
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Storms to run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    storms: Option<u64>,
    /// When writes are durable, of synch, strict, renf, event and scope [default: each in turn]
    #[arg(long, value_name = "MODEL", value_parser = clap::value_parser!(Model))]
    model: Option<Model>,
    /// Where the engine runs: b is the host, o is host and NIC; w and p are the same with local writes, and the way
    /// over PCIe, that take time [default: each in turn]
    #[arg(long, value_name = "PLACE", value_parser = clap::value_parser!(StormDeployment))]
    deployment: Option<StormDeployment>,
    /// How messages travel: plain is each by itself, nic is as frames over the software NIC's connections [default: plain,
    /// and nic in one storm of four]
    #[arg(long, value_name = "HOW", value_parser = clap::value_parser!(Carriage))]
    carriage: Option<Carriage>,
    /// Write the history of the last storm as JSON
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Also write the sums as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How many lines of a failing storm's story are told, the last ones before the failure
    #[arg(long, value_name = "N", default_value = "200")]
    lines: usize,
    /// For continuous integration: every seed that ever failed, then fresh ones, two minutes in all unless --seconds
    /// is given; rare branches that no storm reaches are a failure
    #[arg(long)]
    ci: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&number: &f64| number > 0.0 && number.is_finite());
    number.ok_or_else(|| "give a number above 0".into())
}

/// How long the form for continuous integration runs.
const CI_SECONDS: f64 = 120.0;

/// Storms over the replicated store.
pub fn run(what: &StormCommand) -> Result<(), Failure> {
    let StormCommand::Minos(args) = what;
    let mut run = Run::new(args);
    let outcome = run.storms();
    run.display.clear();
    let text = run.table();
    print(&text, &text);
    if let Some(path) = &args.json {
        write_file(path, &run.json())?;
    }
    outcome?;
    run.all_marks_reached()
}

/// Storms one after another.
struct Run<'a> {
    args: &'a StormMinos,
    display: Display,
    stop: Arc<AtomicBool>,
    start: Instant,
    seed: u64,
    totals: Totals,
}

impl<'a> Run<'a> {
    fn new(args: &'a StormMinos) -> Self {
        let stop = stop_flag();
        // A fresh seed, short enough to be typed.
        let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 24);
        let display = Display::new(stop.clone());
        Self { args, display, stop, start: Instant::now(), seed, totals: Totals::default() }
    }

    fn storms(&mut self) -> Result<(), Failure> {
        let known = if self.args.ci { minos::known_cases() } else { Vec::new() };
        let (known, seed, args) = (known.into_iter(), self.seed, self.args);
        let fresh = (0..).map(|index| {
            let seed = seed.wrapping_add(index);
            Case::new(seed, args.nodes.into(), args.model, args.deployment, args.carriage)
        });
        for case in known.chain(fresh) {
            self.storm(&case)?;
            let part = self.part();
            let what = format!("{} storms, {} simulated", self.totals.storms, time(self.totals.simulated));
            self.display.part(&what, part.min(1.0));
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted);
            }
            if part >= 1.0 {
                break;
            }
        }
        Ok(())
    }

    /// How much of what was asked for is done, from 0 to 1 or more.
    fn part(&self) -> f64 {
        let wall = self.args.seconds.or(self.args.ci.then_some(CI_SECONDS));
        let by_wall = wall.map(|wall| self.start.elapsed().as_secs_f64() / wall);
        let by_count = self.args.storms.map(|storms| self.totals.storms as f64 / storms as f64);
        let hours = self.args.hours.or((by_wall.is_none() && by_count.is_none()).then_some(1.0));
        let by_hours = hours.map(|hours| self.totals.simulated as f64 / (hours * 3600.0 * SECOND as f64));
        [by_wall, by_count, by_hours].into_iter().flatten().fold(0.0, f64::max)
    }

    fn storm(&mut self, case: &Case) -> Result<(), Failure> {
        let report = case.run();
        self.totals.add(&report);
        if let Some(path) = &self.args.export
            && (report.failure.is_some() || self.part() >= 1.0)
        {
            write_file(path, &export::to_json(&report.history, case.model, case.seed))?;
        }
        if report.failure.is_some() { Err(self.tell(case, report)) } else { Ok(()) }
    }

    /// Shrinks a failing storm and tells its story.
    fn tell(&self, case: &Case, report: StormReport) -> Failure {
        let what = report.failure.as_ref().map(describe).unwrap_or_default();
        self.display.say(&format!("seed {} fails; shrinking", case.seed));
        // An engine that panics has said where by now.
        std::panic::set_hook(Box::new(|_| {}));
        let (story, faults) = case.story(report, self.args.lines, |runs| {
            self.display.say(&format!("seed {} fails; shrinking, {runs} runs", case.seed));
        });
        self.display.clear();
        let text = format!("{story}\nFaults left: {faults}. Replay: {}\n", case.command());
        print(&text, &text);
        let keep = format!("add `{}` to crates/storm/seeds/minos.txt once it is fixed", case.line());
        Failure::Failed(format!("{what}; {keep}"))
    }

    fn table(&self) -> String {
        let (totals, wall) = (&self.totals, self.start.elapsed().as_secs_f64());
        let simulated = totals.simulated as f64 / SECOND as f64;
        let mut out = format!(
            "{} storms from seed {}: {} simulated in {wall:.1} s, {:.0} x real time\n",
            totals.storms,
            self.seed,
            time(totals.simulated),
            simulated / wall
        );
        let _ = writeln!(
            out,
            "{} operations ({} of unknown outcome), {} messages, {} syncs",
            totals.operations, totals.unknown, totals.net.sent, totals.disk.syncs
        );
        if totals.unchecked > 0 {
            let _ = writeln!(out, "{} histories of a key were too hard to check", totals.unchecked);
        }
        let rows = |out: &mut String, title: &str, rows: &[(&str, u64)]| {
            let _ = writeln!(out, "\n{title}");
            for (name, count) in rows {
                let _ = writeln!(out, "  {name:<34} {count:>10}");
            }
        };
        rows(&mut out, "Faults injected", &self.fault_rows());
        rows(&mut out, "Rare branches reached", &self.mark_rows());
        out
    }

    fn fault_rows(&self) -> Vec<(&'static str, u64)> {
        let Totals { net, disk, .. } = &self.totals;
        let mut rows: Vec<_> = KINDS.into_iter().zip(self.totals.faults).collect();
        rows.extend([
            ("messages dropped", net.dropped),
            ("messages duplicated", net.duplicated),
            ("messages lost in partitions", net.cut),
            ("connections of nodes broken", net.broken),
            ("unsynced writes lost", disk.lost_writes),
            ("unsynced writes torn", disk.torn_writes),
            ("bad sectors read", disk.sector_errors),
            ("all memory lost at once", self.totals.blackouts),
        ]);
        rows
    }

    fn mark_rows(&self) -> Vec<(&'static str, u64)> {
        MARKS.iter().copied().zip(self.totals.marks.iter().copied()).collect()
    }

    fn json(&self) -> Value {
        json!({
            "seed": self.seed,
            "storms": self.totals.storms,
            "simulated_seconds": self.totals.simulated as f64 / SECOND as f64,
            "wall_seconds": self.start.elapsed().as_secs_f64(),
            "operations": self.totals.operations,
            "unknown_outcomes": self.totals.unknown,
            "unchecked_keys": self.totals.unchecked,
            "messages": self.totals.net.sent,
            "syncs": self.totals.disk.syncs,
            "faults": object(self.fault_rows()),
            "marks": object(self.mark_rows()),
        })
    }

    /// In continuous integration, a branch that no storm reaches is a storm that tests too little.
    fn all_marks_reached(&self) -> Result<(), Failure> {
        let missed: Vec<&str> = self.mark_rows().into_iter().filter(|row| row.1 == 0).map(|row| row.0).collect();
        if !self.args.ci || missed.is_empty() {
            return Ok(());
        }
        Err(Failure::Failed(format!("no storm reached: {}", missed.join(", "))))
    }
}

fn describe(found: &Found) -> String {
    match found {
        Found::Wrong(finding) => format!("no order explains what clients saw of key {}", finding.key),
        Found::Stuck(requests) => format!("{} requests never finish after the faults", requests.len()),
        Found::Broken(what) => format!("the engine broke: {what}"),
    }
}

fn object(rows: Vec<(&str, u64)>) -> Value {
    rows.into_iter().map(|(name, count)| (name.to_string(), json!(count))).collect()
}

/// Simulated time for people.
fn time(ns: u64) -> String {
    let seconds = ns as f64 / SECOND as f64;
    if seconds < 3600.0 { format!("{seconds:.0} s") } else { format!("{:.2} h", seconds / 3600.0) }
}

fn write_file(path: &Path, json: &Value) -> Result<(), Failure> {
    fs::write(path, format!("{json}\n")).map_err(|e| Failure::Failed(format!("writing {}: {e}", path.display())))
}
