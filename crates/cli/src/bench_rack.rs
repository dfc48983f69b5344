//! `remora bench rack`.

use std::time::Duration;

use remora_lab::bench::{RackDeed, RackPlan, rack};
use remora_real::on_core;
use remora_study::machine::Machine;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::json;

use crate::bench::{rows_json, rows_table};
use crate::output::{Json, print};
use crate::progress::{Display, stop_flag};
use crate::{Failure, preload, quantity};

const EXAMPLES: &str = "\
Examples:
  remora bench rack                     connections in a rack beside the kernel's TCP on loopback
  remora bench rack --seconds 1         longer
  remora bench rack --json rack.json    the same for programs";

/// Options of `remora bench rack`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchRack {
    /// Time for each figure, three of which make a row
    #[arg(long, value_name = "S", default_value = "0.3", value_parser = quantity::seconds)]
    pub seconds: Duration,
    /// Be the program that takes connections
    #[arg(long, hide = true)]
    pub serve: bool,
    /// Be the program that makes them, and does this
    #[arg(long, hide = true, requires = "port")]
    pub call: Option<RackDeed>,
    /// Be this one of the ring that reduces
    #[arg(long, hide = true)]
    pub reduce: Option<usize>,
    /// At this address
    #[arg(long, hide = true, default_value = "127.0.0.1")]
    pub at: std::net::IpAddr,
    /// Where the other program listens
    #[arg(long, hide = true)]
    pub port: Option<u16>,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// Connections in a rack beside the kernel's.
pub fn run(args: &BenchRack) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::Failed(e.to_string());
    if args.serve || args.call.is_some() || args.reduce.is_some() {
        // However the bench ends that has started it.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
    }
    // A core for each: left to the system, both are on one core in one run and on two in the next, which makes five times.
    if args.serve {
        return on_core(0, remora_lab::bench::rack_serve).map_err(failed);
    }
    if let (Some(deed), Some(port)) = (args.call, args.port) {
        let figure = on_core(1, || remora_lab::bench::rack_call(deed, port, args.seconds)).map_err(failed)?;
        return print(&format!("{figure}\n"));
    }
    if let Some(rank) = args.reduce {
        let figure = remora_lab::bench::rack_reduce(rank, args.at, args.seconds).map_err(failed)?;
        return print(&format!("{figure}\n"));
    }
    preload::SOCKETS.find(None)?;
    let remora = std::env::current_exe().map_err(failed)?;
    let display = Display::new(stop_flag());
    let measured = rack(&RackPlan { remora, time: args.seconds }, &mut display.going());
    display.clear();
    args.json.show_measured(measured, "rows", rows_table, |rows| {
        json!({
            "format": "remora-bench-rack/1",
            "version": env!("REMORA_VERSION"),
            "machine": Machine::describe(),
            "seconds": args.seconds.as_secs_f64(),
            "rows": rows_json(rows),
        })
    })
}
