//! `remora bench ring`.

use remora_lab::bench::RingPlan;
use remora_study::machine::Machine;
use serde_json::json;

use crate::Failure;
use crate::bench::{rows_json, rows_table};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::up_to;

const EXAMPLES: &str = "\
Examples:
  remora bench ring                     calls by rings in memory beside WRITEs and RPC verbs
  remora bench ring --connected 4000    with more clients that are silent
  remora bench ring --json ring.json    the same for programs";

/// Options of `remora bench ring`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchRing {
    /// Clients that are connected while ten of them call
    #[arg(long, value_name = "N", default_value = "1000", value_parser = up_to::<u16>(10..=4000))]
    pub connected: u16,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// Calls by rings beside their peers.
pub fn run(args: &BenchRing) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let plan = RingPlan { connected: args.connected.into(), ..RingPlan::default() };
    let measured = remora_lab::bench::ring(plan, &mut display.going());
    display.clear();
    args.json.show_measured(measured, "rows", rows_table, |rows| {
        json!({
            "format": "remora-bench-ring/1",
            "version": env!("REMORA_VERSION"),
            "machine": Machine::describe(),
            "connected": args.connected,
            "rows": rows_json(rows),
        })
    })
}
