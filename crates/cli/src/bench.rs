//! `remora bench`.

use std::fmt::Write;
use std::time::Instant;

use remora_lab::MeasuredRows;
use remora_lab::bench::{BenchGoal, BenchReport, BenchRow};
use remora_store::bench::{GetBench, GetRow, Way};
use remora_study::machine::Machine;
use serde_json::{Value, json};

use crate::Failure;
use crate::args;
use crate::progress::{Display, stop_flag};
use crate::quantity;

/// GETs of one measurement.
const GETS: u64 = 400_000;

/// The NIC beside raw probes.
pub fn nic(args: &args::BenchNic) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let BenchReport { core_to_core_ns, measured, ucx } = remora_lab::bench::run(&mut display.going());
    display.clear();
    let (before, after) = core_to_core_ns;
    let text = |rows: &[BenchRow]| {
        let mut out = rows_table(rows);
        if ucx.is_empty() {
            let _ = writeln!(out, "\nWith ucx_perftest installed (Debian: ucx-utils) its figures stand here too.");
        }
        let _ = writeln!(out, "\nA cache line between two cores and back: {before:.0} ns before, {after:.0} ns after.");
        out
    };
    args.json.show_measured(measured, "rows", text, |rows| nic_json(core_to_core_ns, rows))
}

/// Figures, each with those of its peers below it.
pub fn rows_table(rows: &[BenchRow]) -> String {
    let mut out = String::new();
    for (n, row) in rows.iter().enumerate() {
        let figure = |value: f64| format!("{} {}", three_digits(value), row.unit);
        let goal = match (row.goal, row.met()) {
            (Some(goal), Some(met)) => {
                format!("{} {}", goal_text(goal, row.unit), if met { "met" } else { "missed" })
            }
            _ => String::new(),
        };
        let own = figure(row.value);
        // One figure beside several peers stands once.
        let is_again = n > 0 && rows[n - 1].what == row.what && rows[n - 1].value.to_bits() == row.value.to_bits();
        if !is_again {
            let _ = writeln!(out, "{:<38} {own:>10}", row.what);
        }
        let theirs = if row.peer_value.is_finite() { figure(row.peer_value) } else { String::new() };
        let ratio = if row.is_ratio() { format!("{:.2} x", row.ratio) } else { "-".into() };
        let line = format!("  {:<36} {theirs:>10} {ratio:>9}  {goal}", row.peer);
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn goal_text(goal: BenchGoal, unit: &str) -> String {
    match goal {
        BenchGoal::RatioAtMost(limit) => format!("<= {limit} x:"),
        BenchGoal::RatioAtLeast(limit) => format!(">= {limit} x:"),
        BenchGoal::ValueAtLeast(limit) => format!(">= {limit} {unit}:"),
    }
}

/// Measured rows for programs.
pub fn rows_json(rows: &[BenchRow]) -> Value {
    let row = |row: &BenchRow| {
        json!({
            "what": row.what,
            "value": row.value,
            "unit": row.unit,
            "peer": row.peer,
            "peer_value": row.peer_value,
            "ratio": row.ratio,
            "goal": row.goal.map(|goal| goal_text(goal, row.unit).trim_end_matches(':').to_string()),
            "met": row.met(),
        })
    };
    rows.iter().map(row).collect()
}

fn nic_json((core_to_core_before_ns, core_to_core_after_ns): (f64, f64), rows: &[BenchRow]) -> Value {
    let machine = Machine { core_to_core_before_ns, core_to_core_after_ns, ..Machine::describe() };
    json!({
        "format": "remora-bench-nic/1",
        "version": env!("REMORA_VERSION"),
        "machine": machine,
        "rows": rows_json(rows),
    })
}

/// GETs of one core by the number in flight.
pub fn kernel(args: &args::BenchKernel) -> Result<(), Failure> {
    quantity::in_memory("--table", args.table)?;
    let display = Display::new(stop_flag());
    display.part("building the table", 0.0);
    let failed = |e| Failure::Failed(format!("cannot build a table of {} MB: {e}", args.table >> 20));
    let bench = GetBench::new(args.table, args.seed).map_err(failed)?;
    let (start, wanted) = (Instant::now(), args.rounds as usize);
    let rounds = MeasuredRows::by(wanted, |rounds| {
        while rounds.len() < wanted {
            display.part("GETs", (rounds.len() + 1) as f64 / (wanted + 1) as f64);
            if display.stopped() {
                return Err(Failure::Interrupted);
            }
            rounds.push(bench.run(GETS, || start.elapsed().as_nanos() as u64));
        }
        Ok(())
    });
    display.clear();
    let text = |rounds: &[Vec<GetRow>]| kernel_table(args, &bench, &best(rounds));
    args.json.show_measured(rounds, "rounds", text, |rounds| kernel_json(args, &bench, &best(rounds)))
}

/// The best of each row.
fn best(rounds: &[Vec<GetRow>]) -> Vec<GetRow> {
    let of = |at: usize| rounds.iter().map(|rows| rows[at]).min_by(|a, b| a.ns_per_op.total_cmp(&b.ns_per_op));
    (0..rounds.first().map_or(0, Vec::len)).filter_map(of).collect()
}

fn kernel_table(args: &args::BenchKernel, bench: &GetBench, rows: &[GetRow]) -> String {
    let plain = rows.iter().find(|row| row.way == Way::Plain).map_or(f64::NAN, |row| row.ops_per_s);
    let (megabytes, pages, rounds) = (args.table >> 20, bench.page_kind(), args.rounds);
    let mut out =
        format!("GETs of one core from a hash table of {megabytes} MB on {pages:?} pages, best of {rounds}\n");
    let _ = writeln!(out, "{:>10} {:>10} {:>8} {:>14}", "in flight", "M GET/s", "ns/GET", "x plain loop");
    for row in rows {
        let (way, rate, ratio) = (row.way.to_string(), row.ops_per_s / 1e6, row.ops_per_s / plain);
        let _ = writeln!(out, "{way:>10} {rate:>10.1} {:>8.1} {ratio:>14.2}", row.ns_per_op);
    }
    out
}

fn kernel_json(args: &args::BenchKernel, bench: &GetBench, rows: &[GetRow]) -> Value {
    let row = |row: &GetRow| {
        let in_flight = if let Way::Calls(in_flight) = row.way { Some(in_flight) } else { None };
        let (way, ops_per_s, ns_per_op) = (row.way.to_string(), row.ops_per_s, row.ns_per_op);
        json!({ "way": way, "in_flight": in_flight, "ops_per_s": ops_per_s, "ns_per_op": ns_per_op })
    };
    json!({
        "format": "remora-bench-kernel/1",
        "version": env!("REMORA_VERSION"),
        "machine": Machine::describe(),
        "table_bytes": args.table,
        "pages": format!("{:?}", bench.page_kind()),
        "rounds": args.rounds,
        "seed": args.seed,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nothing_there_is_no_ratio() {
        let row = |peer_value: f64| {
            let (what, peer, goal) = ("a rate".into(), "a peer".into(), Some(BenchGoal::RatioAtLeast(3.0)));
            BenchRow { what, value: 5.0, unit: "k/s", peer, peer_value, ratio: 5.0 / peer_value, goal }
        };
        let shown = rows_table(&[row(2.0), row(0.0), row(f64::NAN)]);
        assert!(shown.contains("2.00 k/s    2.50 x  >= 3 x: missed"), "{shown}");
        assert!(
            !["inf", "NaN"].iter().any(|bad| shown.contains(bad)) && shown.matches("missed").count() == 1,
            "{shown}"
        );
        assert_eq!(rows_json(&[row(0.0)])[0]["met"], Value::Null);
    }
}
