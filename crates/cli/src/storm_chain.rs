//! `remora storm chain`.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Instant;

use remora_replica::chain::{ChainMarks, ChainMutation};
use remora_storm::chain::{
    CHAIN_STORM_MUTANTS, ChainCase, ChainEnd, ChainFailure, ChainStormReport, LOOKS, export, run as storm,
};
use remora_storm::events::SECOND;
use remora_storm::nemesis::KINDS;
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{Json, not_complete, print};
use crate::progress::{Display, stop_flag};
use crate::quantity::{count, up_to};
use crate::shards::write_file;

pub const EXAMPLES: &str = "\
Each storm is a chain of its own, of 10 to 40 simulated seconds with faults, and then without. Clients read lists, in every \
other storm also by one-sided READs of the head, and append to them; what they saw must be strictly serializable, which cycles of dependencies decide after Elle's manner. \
Storms use the seeds N, N+1, ... in turn.

Examples:
  remora storm chain                                     a hundred storms from a fresh seed
  remora storm chain --seed 1 --storms 10                the same ten again
  remora storm chain --seed 7 --storms 1 --export h.edn  one storm, and its history as Elle reads it (.json: as JSON)
  remora storm chain --mutant all                        seeded faults of the engine
  remora storm chain --ci                                two hundred storms of known seeds, and all rare branches reached";

/// Options of `remora storm chain`.
#[derive(Debug, clap::Args)]
pub struct StormChain {
    /// The first storm's seed [default: a fresh one]
    #[arg(long, value_name = "N", value_parser = count)]
    seed: Option<u64>,
    /// Nodes of each chain
    #[arg(long, value_name = "N", default_value = "3", value_parser = up_to::<u8>(1..=16))]
    nodes: u8,
    /// Storms to run
    #[arg(long, value_name = "N", default_value = "100", value_parser = up_to::<u64>(1..=1_000_000_000))]
    storms: u64,
    /// Seed this fault into the engine and show in which storm it is found; `all` for each in turn, `list` for their names
    #[arg(long, value_name = "NAME", conflicts_with_all = ["json", "export", "ci"])]
    mutant: Option<String>,
    /// Write the history of the last storm: list-append as Elle reads it, EDN, or JSON where the name ends so
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    export: Option<PathBuf>,
    /// The sums for programs.
    #[command(flatten)]
    json: Json,
    /// For continuous integration: two hundred storms of known seeds; rare branches that none reaches are a failure
    #[arg(long, conflicts_with_all = ["seed", "storms"])]
    ci: bool,
}

/// Storms of continuous integration, from seed 1 on.
const CI_STORMS: u64 = 200;

#[derive(Default)]
struct Sums {
    storms: u64,
    simulated: u64,
    transactions: u64,
    unknown: u64,
    failed: u64,
    messages: u64,
    blackouts: u64,
    lost_lines: u64,
    faults: [u64; KINDS.len()],
    marks: [u64; ChainMarks::NAMES.len()],
    looks: [u64; LOOKS.len()],
}

/// Storms over chains.
pub fn run(args: &StormChain) -> Result<(), Failure> {
    if let Some(name) = &args.mutant {
        return mutants(args, name);
    }
    let display = Display::new(stop_flag());
    // A fresh seed, short enough to be typed.
    let fresh = || RandomState::new().hash_one(0) >> 24;
    let (first, storms) = if args.ci { (1, CI_STORMS) } else { (args.seed.unwrap_or_else(fresh), args.storms) };
    let (mut sums, started, mut saved) = (Sums::default(), Instant::now(), Ok(()));
    for index in 0..storms {
        if display.stopped() {
            break;
        }
        display.part(&format!("{index} storms"), index as f64 / storms as f64);
        let case = ChainCase { seed: first.wrapping_add(index), nodes: args.nodes.into(), mutation: None };
        let report = storm(&case);
        sums.add(&report);
        if let Some(path) = args.export.as_ref().filter(|_| report.failure.is_some() || index + 1 == storms) {
            saved = save(path, &report);
        }
        if let Some(failure) = &report.failure {
            display.clear();
            let text = format!("{}\n{}\nReplay: {}\n", describe(failure), report.states.join("\n"), case.command());
            let failed = Failure::Failed(format!("the storm of seed {} failed", case.seed));
            return Err(failed.and(print(&text)).and(saved));
        }
    }
    display.clear();
    let whole = sums.storms == storms;
    let missing = (!whole).then(|| format!("interrupted; {} of {storms} storms were run", sums.storms));
    let figures = sums.figures(first, started.elapsed().as_secs_f64());
    let text = not_complete(missing.as_deref()) + &sums.table(first, started.elapsed().as_secs_f64());
    args.json.show(&text, || figures)?;
    saved?;
    if !whole {
        return Err(Failure::Interrupted);
    }
    let missed: Vec<&str> = sums.marks().into_iter().filter(|row| row.1 == 0).map(|row| row.0).collect();
    if args.ci && !missed.is_empty() {
        return Err(Failure::Failed(format!("no storm reached: {}", missed.join(", "))));
    }
    Ok(())
}

fn save(path: &Path, report: &ChainStormReport) -> Result<(), Failure> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return write_file(path, &export::to_json(&report.history));
    }
    crate::output::write(path, export::to_edn(&report.history).as_bytes())
}

/// Storms that a seeded fault may take until it is found.
const MUTANT_STORMS: u64 = 1000;

/// Shows that seeded faults are found.
fn mutants(args: &StormChain, name: &str) -> Result<(), Failure> {
    let names = CHAIN_STORM_MUTANTS.map(|(name, _)| name);
    if name == "list" {
        return print(&(names.join("\n") + "\n"));
    }
    let chosen: Vec<(&str, ChainMutation)> =
        CHAIN_STORM_MUTANTS.into_iter().filter(|(mutant, _)| name == "all" || name == *mutant).collect();
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("no seeded fault {name:?}: {}, or all", names.join(", "))));
    }
    let first = args.seed.unwrap_or(1);
    for (name, mutation) in chosen {
        let found = (0..MUTANT_STORMS).map(|n| first.wrapping_add(n)).find_map(|seed| {
            let report = storm(&ChainCase { seed, nodes: args.nodes.into(), mutation: Some(mutation) });
            let found = |failure: &ChainFailure| !matches!(failure, ChainFailure::Broken(_));
            report.failure.filter(found).map(|failure| (seed, failure))
        });
        let Some((seed, failure)) = found else {
            return Err(Failure::Failed(format!("{name} was not found from seed {first} on")));
        };
        print(&format!("{name}: found in the storm of seed {seed}: {}\n", describe(&failure)))?;
    }
    Ok(())
}

fn describe(failure: &ChainFailure) -> String {
    match failure {
        ChainFailure::Wrong(what) => what.clone(),
        ChainFailure::Stuck(what) => format!("after the faults {what}"),
        ChainFailure::Broken(what) => format!("the engine broke: {what}"),
    }
}

impl Sums {
    fn add(&mut self, report: &ChainStormReport) {
        let count = |end: ChainEnd| report.history.iter().filter(|txn| txn.end == end).count() as u64;
        self.storms += 1;
        self.simulated += report.simulated;
        self.transactions += count(ChainEnd::Done);
        self.unknown += count(ChainEnd::Unknown);
        self.failed += count(ChainEnd::Failed);
        self.messages += report.net.sent;
        self.blackouts += report.blackouts;
        self.lost_lines += report.lost_lines;
        self.faults.iter_mut().zip(report.faults).for_each(|(sum, count)| *sum += count);
        self.marks.iter_mut().zip(report.marks).for_each(|(sum, count)| *sum += count);
        self.looks.iter_mut().zip(report.looks).for_each(|(sum, count)| *sum += count);
    }

    /// Rare branches.
    fn marks(&self) -> Vec<(&'static str, u64)> {
        ChainMarks::NAMES.into_iter().zip(self.marks).chain(LOOKS.into_iter().zip(self.looks)).collect()
    }

    fn faults(&self) -> Vec<(&'static str, u64)> {
        let mut rows: Vec<_> = KINDS.into_iter().zip(self.faults).filter(|row| row.1 > 0).collect();
        rows.extend([("unflushed lines of memory lost", self.lost_lines), ("all memory lost at once", self.blackouts)]);
        rows
    }

    fn figures(&self, seed: u64, wall: f64) -> Value {
        let object =
            |rows: Vec<(&str, u64)>| rows.into_iter().map(|(name, n)| (name.to_string(), json!(n))).collect::<Value>();
        json!({
            "format": "remora-storm-chain/1", "seed": seed, "storms": self.storms,
            "simulated_seconds": self.simulated as f64 / SECOND as f64, "wall_seconds": wall,
            "transactions": self.transactions, "unknown_outcomes": self.unknown, "refused": self.failed,
            "messages": self.messages, "faults": object(self.faults()),
            "marks": object(self.marks()),
        })
    }

    fn table(&self, seed: u64, wall: f64) -> String {
        let simulated = self.simulated as f64 / SECOND as f64;
        let mut out = format!(
            "{} storms from seed {seed}: {simulated:.0} s simulated in {wall:.1} s\n\
             {} transactions done, {} refused, {} of unknown outcome, {} messages\n",
            self.storms, self.transactions, self.failed, self.unknown, self.messages
        );
        for (title, rows) in [("Faults injected", self.faults()), ("Rare branches reached", self.marks())] {
            let _ = writeln!(out, "\n{title}");
            rows.iter().for_each(|(name, count)| {
                let _ = writeln!(out, "  {name:<38} {count:>10}");
            });
        }
        out
    }
}
