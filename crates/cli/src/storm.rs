//! `remora storm`.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use remora_storm::carriage::Carriage;
use remora_storm::cluster::{Failure as Found, StormReport};
use remora_storm::events::SECOND;
use remora_storm::export;
use remora_storm::minos::{self, Case, MARKS, Model, STORM_MUTANTS, StormDeployment};
use remora_storm::nemesis::KINDS;
use remora_storm::shard::Shard;
use remora_storm::totals::Totals;
use remora_study::format::folded;
use serde_json::{Value, json};

use crate::output::{Json, not_complete, print};
use crate::progress::{Display, stop_flag};
use crate::quantity::{count, up_to};
use crate::shards::{Gathered, add, result, write_file};
use crate::{Failure, storm_chain, storm_rack};

/// What to storm.
#[derive(Debug, clap::Subcommand)]
pub enum StormCommand {
    /// The replicated store, under any of its persistency models
    #[command(after_help = EXAMPLES)]
    Minos(StormMinos),
    /// A chain of replicas: transactions of several keys, and whether they are strictly serializable
    #[command(after_help = storm_chain::EXAMPLES)]
    Chain(storm_chain::StormChain),
    /// A rack: flows by links that fail, and buffers that nodes pass and die with
    #[command(after_help = storm_rack::EXAMPLES)]
    Rack(storm_rack::StormRack),
    /// Put the results of shards together, and say which are missing, failed or there twice
    #[command(after_help = "Example: remora storm merge results/storm-*.json")]
    Merge {
        /// The shards' files, as `--shard I/N --json FILE` wrote them
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
}

const EXAMPLES: &str = "\
Each storm is a cluster of its own, of 20 to 70 simulated seconds: first with faults, then without. Storms use the \
seeds N, N+1, ... in turn, and all models and deployments unless one is named.

Examples:
  remora storm minos                                   an hour of simulated time from a fresh seed
  remora storm minos --hours 10000 --model synch       through the night
  remora storm minos --seed 7 --storms 1 --export h.json   one storm, and its history for other checkers
  remora storm minos --mutant all                      seeded faults: an old clock, one that sleeps, a lost disk
  remora storm minos --ci                              two minutes of fresh seeds, and all that ever failed
  remora storm minos --seed 1 --hours 100 --shard 0/4 --json 0.json   the first of four processes' part; see deploy/";

/// Options of `remora storm minos`.
#[derive(Debug, clap::Args)]
pub struct StormMinos {
    /// The first storm's seed [default: a fresh one]
    #[arg(long, value_name = "N", value_parser = count)]
    seed: Option<u64>,
    /// Nodes of each cluster
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to::<u8>(1..=16))]
    nodes: u8,
    /// Simulated time to run for [default: 1, unless --seconds, --storms or --ci says when to end]
    #[arg(long, value_name = "H", value_parser = positive)]
    hours: Option<f64>,
    /// Wall time to run for
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Storms to run
    #[arg(long, value_name = "N", value_parser = up_to::<u64>(1..=1_000_000_000))]
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
    /// Seed this fault into the engine, or into the world around it, and show in which storm it is found; `all` for each in
    /// turn, `list` for their names
    #[arg(long, value_name = "NAME", conflicts_with_all = ["json", "export", "shard", "hours", "seconds", "lines", "ci"])]
    mutant: Option<String>,
    /// Write the history of the last storm as JSON
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    export: Option<PathBuf>,
    /// The sums for programs.
    #[command(flatten)]
    json: Json,
    /// Do one part of a run that is split among N processes, from 0/N to N-1/N: of the seeds every Nth, of --storms and
    /// --hours as much as falls to it
    #[arg(long, value_name = "I/N", requires = "seed", conflicts_with = "ci", value_parser = clap::value_parser!(Shard))]
    shard: Option<Shard>,
    /// How many lines of a failing storm's story are told, the last ones before the failure
    #[arg(long, value_name = "N", default_value = "200", value_parser = up_to::<usize>(0..=1_000_000))]
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
    let args = match what {
        StormCommand::Minos(args) => args,
        StormCommand::Chain(args) => return storm_chain::run(args),
        StormCommand::Rack(args) => return storm_rack::run(args),
        StormCommand::Merge { files } => return merge(files),
    };
    if let Some(name) = &args.mutant {
        return mutants(args, name);
    }
    let mut run = Run::new(args);
    let outcome = run.storms();
    run.display.clear();
    let figures = run.figures();
    let interrupted = matches!(outcome, Err(Failure::Interrupted));
    let missing =
        interrupted.then(|| format!("interrupted; {:.0} % of what was asked for was run", 100.0 * run.part()));
    let text = not_complete(missing.as_deref()) + &table(&format!("from seed {}", run.seed), &figures);
    let failure = outcome.as_ref().err().filter(|e| !matches!(e, Failure::Interrupted)).map(|e| e.to_string());
    let result = result("storm", run.shard(), run.parameters(), failure.as_deref(), outcome.is_ok(), figures);
    let told = args.json.print(&text).and_then(|()| args.json.write_line(result));
    if let Err(failure) = outcome {
        return Err(failure.and(told));
    }
    told?;
    run.all_marks_reached()
}

/// Storms that a seeded fault may take until it is found.
const MUTANT_STORMS: u64 = 1000;

/// Shows that seeded faults are found.
fn mutants(args: &StormMinos, name: &str) -> Result<(), Failure> {
    let names = || STORM_MUTANTS.iter().map(|mutant| mutant.name).collect::<Vec<_>>();
    if name == "list" {
        let text = names().join("\n") + "\n";
        print(&text)?;
        return Ok(());
    }
    let chosen: Vec<_> = STORM_MUTANTS.iter().filter(|mutant| name == "all" || name == mutant.name).collect();
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("no seeded fault {name:?}: {}, or all", names().join(", "))));
    }
    let first = args.seed.unwrap_or(1);
    for mutant in chosen {
        let case = |seed| Case::new(seed, args.nodes.into(), args.model, args.deployment, args.carriage);
        let found = (0..args.storms.unwrap_or(MUTANT_STORMS)).map(|n| first.wrapping_add(n)).find_map(|seed| {
            let failure = case(seed).run_mutant(*mutant).failure?;
            matches!(failure, Found::Wrong(_)).then(|| (seed, describe(&failure)))
        });
        let Some((seed, what)) = found else {
            return Err(Failure::Failed(format!("{} was not found from seed {first} on", mutant.name)));
        };
        let text = format!("{}: found in the storm of seed {seed}: {what}\n", mutant.name);
        print(&text)?;
    }
    Ok(())
}

/// Puts the results of shards together.
fn merge(files: &[PathBuf]) -> Result<(), Failure> {
    let gathered = Gathered::read("storm", files);
    let mut figures = json!({});
    gathered.figures.iter().for_each(|shard| add(&mut figures, shard));
    if !gathered.figures.is_empty() {
        let seed = &gathered.parameters["seed"];
        print(&folded(&table(&format!("of {} shards from seed {seed}", gathered.figures.len()), &figures)))?;
    }
    gathered.verdict()
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
        let (known, seed, args, shard) = (known.into_iter(), self.seed, self.args, self.shard());
        if args.storms.is_some_and(|storms| shard.share(storms) == 0) {
            return Ok(());
        }
        let fresh = (0..).filter(move |&index| shard.has(index)).map(|index| {
            let seed = seed.wrapping_add(index);
            Case::new(seed, args.nodes.into(), args.model, args.deployment, args.carriage)
        });
        for case in known.chain(fresh) {
            let report = case.run();
            self.totals.add(&report);
            let (part, stop) = (self.part(), self.stop.load(Ordering::Relaxed));
            let is_last = report.failure.is_some() || stop || part >= 1.0;
            let exported = match &args.export {
                Some(path) if is_last => write_file(path, &export::to_json(&report.history, case.model, case.seed)),
                _ => Ok(()),
            };
            if report.failure.is_some() {
                return Err(self.tell(&case, report).and(exported));
            }
            exported?;
            let what = format!(
                "{} storms, {} simulated",
                self.totals.storms,
                time(self.totals.simulated as f64 / SECOND as f64)
            );
            self.display.part(&what, part.min(1.0));
            if stop {
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
        let shard = self.shard();
        let by_count = self.args.storms.map(|storms| self.totals.storms as f64 / shard.share(storms) as f64);
        let hours = self.args.hours.or((by_wall.is_none() && by_count.is_none()).then_some(1.0));
        let by_hours =
            hours.map(|hours| self.totals.simulated as f64 * shard.of as f64 / (hours * 3600.0 * SECOND as f64));
        [by_wall, by_count, by_hours].into_iter().flatten().fold(0.0, f64::max)
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
        // The failure itself is told in any case.
        let _ = print(&text);
        let keep = format!("add `{}` to crates/storm/seeds/minos.txt once it is fixed", case.line());
        Failure::Failed(format!("{what}; {keep}"))
    }

    fn shard(&self) -> Shard {
        self.args.shard.unwrap_or(Shard::WHOLE)
    }

    /// What all shards of a run have in common.
    fn parameters(&self) -> Value {
        let StormMinos { nodes, hours, seconds, storms, model, deployment, carriage, .. } = self.args;
        json!({
            "seed": self.seed, "nodes": nodes, "hours": hours, "seconds": seconds, "storms": storms,
            "model": model.map(|model| model.to_string()),
            "deployment": deployment.map(|deployment| deployment.to_string()),
            "carriage": carriage.map(|carriage| carriage.to_string()),
        })
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

    fn figures(&self) -> Value {
        json!({
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

/// Sums of storms, `of` which.
fn table(of: &str, figures: &Value) -> String {
    let count = |name: &str| figures[name].as_u64().unwrap_or(0);
    let seconds = |name: &str| figures[name].as_f64().unwrap_or(0.0);
    let (simulated, wall) = (seconds("simulated_seconds"), seconds("wall_seconds"));
    let mut out = format!(
        "{} storms {of}: {} simulated in {wall:.1} s, {:.0} x real time\n",
        count("storms"),
        time(simulated),
        simulated / wall.max(1e-9)
    );
    let _ = writeln!(
        out,
        "{} operations ({} of unknown outcome), {} messages, {} syncs",
        count("operations"),
        count("unknown_outcomes"),
        count("messages"),
        count("syncs")
    );
    if count("unchecked_keys") > 0 {
        let _ = writeln!(out, "{} histories of a key were too hard to check", count("unchecked_keys"));
    }
    for (title, name) in [("Faults injected", "faults"), ("Rare branches reached", "marks")] {
        let _ = writeln!(out, "\n{title}");
        for (name, count) in figures[name].as_object().into_iter().flatten() {
            let _ = writeln!(out, "  {name:<34} {:>10}", count.as_u64().unwrap_or(0));
        }
    }
    out
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
fn time(seconds: f64) -> String {
    if seconds < 3600.0 { format!("{seconds:.0} s") } else { format!("{:.2} h", seconds / 3600.0) }
}
