//! `remora bench neighbours`: what a client notices of another one that takes all it may of something.

use std::fmt::Write;
use std::time::Duration;

use remora_real::LinkKind;
use remora_study::bench_neighbours::{GOAL, NeighbourRow, NeighboursBench};
use remora_study::format::{rate, time};
use remora_study::machine::Machine;
use serde_json::{Value, json};

use crate::Failure;
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};

/// Options of `remora bench neighbours`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  remora bench neighbours
  remora bench neighbours --seconds 0.2 --rounds 1 --json neighbours.json")]
pub struct BenchNeighbours {
    /// Rounds, whose tails count together
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to::<u32>(1..=1000))]
    pub rounds: u32,
    /// How long each measurement of a round runs
    #[arg(long, value_name = "TIME", default_value = "0.5", value_parser = quantity::seconds)]
    pub seconds: Duration,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// Measures and prints.
pub fn run(args: &BenchNeighbours) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let bench = NeighboursBench { rounds: args.rounds, time: args.seconds, link: LinkKind::Shm };
    let measured = bench.run(&display);
    display.clear();
    args.json.show_measured(measured, "rows", |rows| table(args, rows), |rows| to_json(args, rows))
}

fn table(args: &BenchNeighbours, rows: &[NeighbourRow]) -> String {
    let mut out = format!(
        "A neighbour's p99 over shm, {} x {} each: alone, beside an honest client doing as much, beside one that takes all \
         it may\n",
        args.rounds,
        time(args.seconds.as_nanos() as f64)
    );
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{:<15} {:<21} {:>8} {:>8} {:>8} {:>5}  <= {GOAL} x",
        "", "the neighbour", "alone", "honest", "greedy", "ratio"
    );
    for row in rows {
        let [alone, honest, greedy] = row.p99.map(time);
        let met = if row.met() { "met" } else { "missed" };
        let line = format!(
            "{:<15} {:<21} {alone:>8} {honest:>8} {greedy:>8} {:>5.2}  {met}\n  honest: {} ({}/s); greedy: {} ({}/s)",
            row.resource.name(),
            row.deed,
            row.ratio(),
            row.others[0],
            rate(row.ended[0].0),
            row.others[1],
            rate(row.ended[1].0)
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn to_json(args: &BenchNeighbours, rows: &[NeighbourRow]) -> Value {
    let row = |row: &NeighbourRow| {
        let other = |at: usize| {
            json!({
                "does": row.others[at], "ended_per_s": row.ended[at].0, "refused": row.refused[at],
                "last_status": row.ended[at].1.map(|status| format!("{status:?}")),
            })
        };
        json!({
            "resource": row.resource.name(), "neighbour": row.deed,
            "p50_ns": { "alone": row.p50[0], "honest": row.p50[1], "greedy": row.p50[2] },
            "p99_ns": { "alone": row.p99[0], "honest": row.p99[1], "greedy": row.p99[2] },
            "ratio": row.ratio(), "met": row.met(), "honest": other(0), "greedy": other(1),
        })
    };
    json!({
        "format": "remora-bench-neighbours/1",
        "version": env!("REMORA_VERSION"),
        "machine": Machine::describe(),
        "rounds": args.rounds,
        "seconds": args.seconds.as_secs_f64(),
        "goal": GOAL,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
