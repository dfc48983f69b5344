//! `remora bench wasm`: kernels as WebAssembly beside native ones, and what a hostile one costs its neighbours.

use std::fmt::Write;
use std::time::Duration;

use remora_study::bench_wasm::{HOSTILE, IN_FLIGHT, Neighbour, WasmBench, WasmGoal, WasmPair, WasmRow};
use remora_study::format::{rate, time};
use remora_study::machine::Machine;
use serde_json::{Value, json};

use crate::Failure;
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};

/// Options of `remora bench wasm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  remora bench wasm
  remora bench wasm --table 256M --rounds 5 --json wasm.json")]
pub struct BenchWasm {
    /// Size of the hash table
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = quantity::megabytes)]
    pub table: u64,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value = "7", value_parser = up_to::<u32>(1..=1000))]
    pub rounds: u32,
    /// How long each measurement of a round runs
    #[arg(long, value_name = "TIME", default_value = "0.1", value_parser = quantity::seconds)]
    pub seconds: Duration,
    /// Seed of the table
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// Measures and prints.
pub fn run(args: &BenchWasm) -> Result<(), Failure> {
    quantity::in_memory("--table", args.table)?;
    let display = Display::new(stop_flag());
    let bench = WasmBench { table: args.table, rounds: args.rounds, time: args.seconds, seed: args.seed };
    let measured = bench.run(&display);
    display.clear();
    args.json.show_measured(measured, "rows", |rows| table(args, rows), |rows| to_json(args, rows))
}

fn pairs(rows: &[WasmRow]) -> impl Iterator<Item = &WasmPair> {
    rows.iter().filter_map(|row| if let WasmRow::Pair(pair) = row { Some(pair) } else { None })
}

fn neighbours(rows: &[WasmRow]) -> impl Iterator<Item = &Neighbour> {
    rows.iter().filter_map(|row| if let WasmRow::Neighbour(neighbour) = row { Some(neighbour) } else { None })
}

fn table(args: &BenchWasm, rows: &[WasmRow]) -> String {
    let mut out = format!(
        "Time of a call, {IN_FLIGHT} at once if not said otherwise, table of {} KB, median of {}\n",
        args.table >> 10,
        args.rounds
    );
    // Writing to a string does not fail.
    let _ = writeln!(out, "{:<35} {:>8} {:>8} {:>6} {:>5}  goal at most", "", "native", "module", "+ ns", "x");
    for pair in pairs(rows) {
        let goal = match (pair.goal, pair.met()) {
            (Some(goal), Some(met)) => {
                let what = match goal {
                    WasmGoal::More(ns) => time(ns),
                    WasmGoal::Times(times) => format!("{times} x"),
                };
                format!("{what} {}", if met { "met" } else { "missed" })
            }
            _ => String::new(),
        };
        let (native, wasm) = (time(pair.native), time(pair.wasm));
        let (more, times) = (pair.wasm - pair.native, pair.wasm / pair.native);
        let line = format!("{:<35} {native:>8} {wasm:>8} {more:>6.0} {times:>5.2}  {goal}", pair.what);
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let _ = writeln!(
        out,
        "\nA neighbour's native GETs, one at a time over shm, beside a client with {HOSTILE} calls of a kernel"
    );
    let _ = writeln!(
        out,
        "{:<5} {:<24} {:>9} {:>9} {:>9} {:>8}  ends with",
        "place", "that", "p50", "p99", "p99.9", "calls/s"
    );
    for row in neighbours(rows) {
        let [p50, p99, p999] = [row.p50, row.p99, row.p999].map(time);
        let status = row.status.map_or(String::new(), |status| format!("{status:?}"));
        let line = format!(
            "{:<5} {:<24} {p50:>9} {p99:>9} {p999:>9} {:>8}  {status}",
            row.place.name(),
            row.beside,
            rate(row.others)
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn to_json(args: &BenchWasm, rows: &[WasmRow]) -> Value {
    let pair = |pair: &WasmPair| json!({ "what": pair.what, "native_ns": pair.native, "wasm_ns": pair.wasm, "met": pair.met() });
    let neighbour = |row: &Neighbour| {
        json!({
            "place": row.place.name(), "beside": row.beside, "p50_ns": row.p50, "p99_ns": row.p99, "p999_ns": row.p999,
            "other_calls_per_s": row.others, "other_status": row.status.map(|status| format!("{status:?}")),
        })
    };
    json!({
        "format": "remora-bench-wasm/1",
        "version": env!("REMORA_VERSION"),
        "machine": Machine::describe(),
        "table_bytes": args.table,
        "rounds": args.rounds,
        "pairs": pairs(rows).map(pair).collect::<Vec<_>>(),
        "neighbours": neighbours(rows).map(neighbour).collect::<Vec<_>>(),
    })
}
