//! `remora bench model`.

use std::fmt::Write;

use remora_lab::bench::BenchRow;
use remora_study::bench_model::{ModelBench, ModelReport};
use remora_study::machine::Machine;
use serde_json::json;

use crate::Failure;
use crate::bench::{rows_json, rows_table};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};

const EXAMPLES: &str = "\
Examples:
  remora bench model                    the event core beside a binary heap and SimGrid
  remora bench model --json model.json  the same for programs";

/// Options of `remora bench model`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchModel {
    /// Rounds, of which the best counts: other work on the machine only ever slows one down
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to::<u32>(1..=1000))]
    pub rounds: u32,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// The event core beside its peers.
pub fn run(args: &BenchModel) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let bench = ModelBench { rounds: args.rounds, seed: args.seed };
    let ModelReport { measured, no_simgrid } = bench.run(&mut display.going());
    display.clear();
    let text = |rows: &[BenchRow]| {
        let mut text = rows_table(rows);
        if let Some(why) = &no_simgrid {
            let _ = writeln!(text, "\nNo figures of SimGrid: {why}.");
        }
        text
    };
    args.json.show_measured(measured, "rows", text, |rows| {
        json!({
            "format": "remora-bench-model/1",
            "version": env!("REMORA_VERSION"),
            "machine": Machine::describe(),
            "rounds": args.rounds,
            "seed": args.seed,
            "rows": rows_json(rows),
            "no_simgrid": no_simgrid,
        })
    })
}
