//! `remora storm rack`.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use remora_storm::check::rack::RACK_MUTANTS;
use remora_storm::events::SECOND;
use remora_storm::rack::{RACK_FAULTS, RackCase, RackStormReport, run as storm};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{Json, not_complete, print};
use crate::progress::{Display, stop_flag};
use crate::quantity::{count, up_to};

pub const EXAMPLES: &str = "\
Each storm has flows of its own to another rack, by links of its own, which are cut, slow down, stall and come back for one \
simulated second; and nodes that pass buffers by reference and die. Every byte must be taken once and in order, as it was \
sent, every buffer have one holder, and all must have come in the end. Storms use the seeds N, N+1, ... in turn.

Examples:
  remora storm rack                          a thousand storms from a fresh seed
  remora storm rack --seed 1 --storms 10     the same ten again
  remora storm rack --mutant all             seeded faults of the engine";

/// Options of `remora storm rack`.
#[derive(Debug, clap::Args)]
pub struct StormRack {
    /// The first storm's seed [default: a fresh one]
    #[arg(long, value_name = "N", value_parser = count)]
    seed: Option<u64>,
    /// Storms to run
    #[arg(long, value_name = "N", default_value = "1000", value_parser = up_to::<u64>(1..=1_000_000_000))]
    storms: u64,
    /// Seed this fault into the engine and show in which storm it is found; `all` for each in turn, `list` for their names
    #[arg(long, value_name = "NAME", conflicts_with_all = ["json"])]
    mutant: Option<String>,
    /// The sums for programs.
    #[command(flatten)]
    json: Json,
}

#[derive(Default)]
struct Sums {
    storms: u64,
    simulated: u64,
    bytes: u64,
    segments: u64,
    twice: u64,
    silent: u64,
    faults: [u64; RACK_FAULTS.len()],
}

/// Storms over racks.
pub fn run(args: &StormRack) -> Result<(), Failure> {
    if let Some(name) = &args.mutant {
        return mutants(args, name);
    }
    let display = Display::new(stop_flag());
    // A fresh seed, short enough to be typed.
    let first = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 24);
    let (mut sums, started) = (Sums::default(), Instant::now());
    for index in 0..args.storms {
        if display.stopped() {
            break;
        }
        display.part(&format!("{index} storms"), index as f64 / args.storms as f64);
        let case = RackCase { seed: first.wrapping_add(index), seeded: None };
        let report = storm(&case);
        if let Some(failure) = &report.failure {
            display.clear();
            let told = print(&format!("{failure}\nReplay: {}\n", case.command()));
            return Err(Failure::Failed(format!("the storm of seed {} failed", case.seed)).and(told));
        }
        sums.add(&report);
    }
    display.clear();
    let whole = sums.storms == args.storms;
    let missing = (!whole).then(|| format!("interrupted; {} of {} storms were run", sums.storms, args.storms));
    let wall = started.elapsed().as_secs_f64();
    let text = not_complete(missing.as_deref()) + &sums.table(first, wall);
    args.json.show(&text, || sums.figures(first, wall))?;
    if whole { Ok(()) } else { Err(Failure::Interrupted) }
}

/// Storms that a seeded fault may take until it is found.
const MUTANT_STORMS: u64 = 1000;

/// Shows that seeded faults are found.
fn mutants(args: &StormRack, name: &str) -> Result<(), Failure> {
    let names = RACK_MUTANTS.map(|mutant| mutant.name);
    if name == "list" {
        return print(&(names.join("\n") + "\n"));
    }
    let chosen: Vec<_> = RACK_MUTANTS.iter().filter(|mutant| name == "all" || name == mutant.name).collect();
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("no seeded fault {name:?}: {}, or all", names.join(", "))));
    }
    let first = args.seed.unwrap_or(1);
    for mutant in chosen {
        let found = (0..MUTANT_STORMS).map(|n| first.wrapping_add(n)).find_map(|seed| {
            let failure = storm(&RackCase { seed, seeded: Some(mutant.seeded) }).failure?;
            Some((seed, failure.lines().next().unwrap_or_default().to_string()))
        });
        let Some((seed, failure)) = found else {
            return Err(Failure::Failed(format!("{} was not found from seed {first} on", mutant.name)));
        };
        print(&format!("{}: found in the storm of seed {seed}: {failure}\n", mutant.name))?;
    }
    Ok(())
}

impl Sums {
    fn add(&mut self, report: &RackStormReport) {
        self.storms += 1;
        self.simulated += report.simulated;
        self.bytes += report.bytes;
        self.segments += report.segments;
        self.twice += report.twice;
        self.silent += report.silent;
        self.faults.iter_mut().zip(report.faults).for_each(|(sum, count)| *sum += count);
    }

    fn faults(&self) -> Vec<(&'static str, u64)> {
        let mut rows: Vec<_> = RACK_FAULTS.into_iter().zip(self.faults).collect();
        rows.push(("a NIC was given up as silent", self.silent));
        rows
    }

    fn figures(&self, seed: u64, wall: f64) -> Value {
        let faults: Value = self.faults().into_iter().map(|(name, n)| (name.to_string(), json!(n))).collect();
        json!({
            "format": "remora-storm-rack/1", "seed": seed, "storms": self.storms,
            "simulated_seconds": self.simulated as f64 / SECOND as f64, "wall_seconds": wall,
            "bytes": self.bytes, "segments": self.segments, "segments_twice": self.twice, "faults": faults,
        })
    }

    fn table(&self, seed: u64, wall: f64) -> String {
        let simulated = self.simulated as f64 / SECOND as f64;
        let mut out = format!(
            "{} storms from seed {seed}: {simulated:.0} s simulated in {wall:.1} s\n\
             {} bytes in {} segments, of which {} brought nothing new\n\nFaults\n",
            self.storms, self.bytes, self.segments, self.twice
        );
        for (name, count) in self.faults() {
            let _ = writeln!(out, "  {name:<38} {count:>10}");
        }
        out
    }
}
