//! `remora bench stream`.

use remora_lab::bench::stream::StreamBench;
use remora_study::machine::Machine;
use serde_json::json;

use crate::Failure;
use crate::bench::{rows_json, rows_table};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};

const EXAMPLES: &str = "\
Examples:
  remora bench stream                        shuffle, sketch, checksum and compression beside plain WRITEs
  remora bench stream --bits 4 --rounds 21   into 16 partitions, with more rounds
  remora bench stream --json stream.json     the same for programs";

/// Options of `remora bench stream`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchStream {
    /// Rounds, in each of which everything takes its turn; medians count
    #[arg(long, value_name = "N", default_value = "9", value_parser = up_to::<u16>(1..=1000))]
    pub rounds: u16,
    /// Log2 of the number of partitions
    #[arg(long, value_name = "N", default_value = "8", value_parser = up_to::<u8>(0..=10))]
    pub bits: u8,
    /// Seed of the values
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// Stream kernels beside their peers.
pub fn run(args: &BenchStream) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let bench = StreamBench { rounds: args.rounds.into(), bits: args.bits, seed: args.seed };
    let measured = bench.run(&mut display.going());
    display.clear();
    args.json.show_measured(measured, "rows", rows_table, |rows| {
        json!({
            "format": "remora-bench-stream/1",
            "version": env!("REMORA_VERSION"),
            "machine": Machine::describe(),
            "rounds": args.rounds,
            "partitions": 1 << args.bits,
            "seed": args.seed,
            "rows": rows_json(rows),
        })
    })
}
