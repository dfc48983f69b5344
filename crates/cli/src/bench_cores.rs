//! `remora bench cores`.

use remora_lab::bench::CoresPlan;
use remora_study::machine::Machine;
use serde_json::json;

use crate::Failure;
use crate::bench::{rows_json, rows_table};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::up_to;

const EXAMPLES: &str = "\
Examples:
  remora bench cores                    a pair of client and engine on each core, beside one pair
  remora bench cores --pairs 4          on four of them
  remora bench cores --json cores.json  the same for programs";

/// Options of `remora bench cores`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchCores {
    /// Pairs, each on a core of its own, as far as there are cores [default: as many as cores, at least two]
    #[arg(long, value_name = "N", value_parser = up_to::<u16>(1..=256))]
    pub pairs: Option<u16>,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// Pairs on all cores beside one.
pub fn run(args: &BenchCores) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let cores = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 256) as u16);
    let plan = CoresPlan::new(args.pairs.unwrap_or(cores));
    let measured = remora_lab::bench::cores(plan, &mut display.going());
    display.clear();
    args.json.show_measured(measured, "rows", rows_table, |rows| {
        json!({
            "format": "remora-bench-cores/1",
            "version": env!("REMORA_VERSION"),
            "machine": Machine::describe(),
            "pairs": plan.pairs,
            "rows": rows_json(rows),
        })
    })
}
