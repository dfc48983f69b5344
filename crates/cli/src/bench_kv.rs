//! `remora bench kv`.

use std::fmt::Write;
use std::time::Duration;

use remora_study::kv::{KEY, KvPlan, KvReport, KvRow, VALUE, run as measure};
use remora_study::machine::Machine;
use serde_json::json;

use crate::Failure;
use crate::bench::{rows_json, rows_table};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};

const EXAMPLES: &str = "\
Examples:
  remora bench kv                               10 million pairs, beside memcached and Redis where they are installed
  remora bench kv --pairs 1M --batches 1,32     fewer pairs, and fewer numbers of requests at once
  remora bench kv --pairs 100M --alone          as many as RAMBDA has, without other stores
  remora bench kv --json kv.json                the same for programs";

/// Options of `remora bench kv`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchKv {
    /// Pairs of 64 bytes in each store
    #[arg(long, value_name = "N", default_value = "10M", value_parser = quantity::count)]
    pub pairs: u64,
    /// Requests under way at once
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8,32", value_parser = up_to::<u16>(1..=32))]
    pub batches: Vec<u16>,
    /// Time for each figure
    #[arg(long, value_name = "S", default_value = "0.6", value_parser = quantity::seconds)]
    pub seconds: Duration,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Measure no other stores
    #[arg(long)]
    pub alone: bool,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// Key-value stores beside each other.
pub fn run(args: &BenchKv) -> Result<(), Failure> {
    if !(1..=1_000_000_000).contains(&args.pairs) {
        return Err(Failure::Usage("--pairs: from 1 to 1000M".into()));
    }
    let display = Display::new(stop_flag());
    let plan = KvPlan {
        pairs: args.pairs,
        batches: args.batches.iter().map(|&batch| batch.into()).collect(),
        time: args.seconds,
        seed: args.seed,
        peers: !args.alone,
    };
    quantity::in_memory("--pairs", plan.bytes())?;
    let outcome = measure(&plan, &mut display.going());
    display.clear();
    let (report, measured) = outcome?;
    args.json.show_measured(
        measured,
        "rows",
        |rows| table(&report, rows, args.alone),
        |rows| {
            let goals = rows_json(&report.goals(rows));
            let mut report = json!(report);
            report["rows"] = json!(rows);
            json!({
                "format": "remora-bench-kv/1",
                "version": env!("REMORA_VERSION"),
                "machine": Machine::describe(),
                "seed": args.seed,
                "seconds": args.seconds.as_secs_f64(),
                "report": report,
                "goals": goals,
            })
        },
    )
}

fn table(report: &KvReport, rows: &[KvRow], alone: bool) -> String {
    let mut out = format!(
        "{} pairs of {} bytes, one core that serves, one client; operations a second\n",
        report.pairs,
        KEY + VALUE
    );
    let _ = write!(out, "{:<22} {:>7}", "", "at once");
    for (n, store) in report.stores.iter().enumerate() {
        let _ = write!(out, " {store:>10}{}", if n > 0 { "   times" } else { "" });
    }
    out.push('\n');
    for row in rows {
        let _ = write!(out, "{:<22} {:>7}", format!("{} % GET, {}", row.gets, row.popularity), row.batch);
        for (n, rate) in row.ops_per_s.iter().enumerate() {
            let _ = write!(out, " {:>8.0} k", rate / 1e3);
            if let Some(times) = row.times(n).filter(|_| n > 0) {
                let _ = write!(out, " {times:>7.2}");
            }
        }
        out.push('\n');
    }
    let _ = write!(out, "\n{}\n", rows_table(&report.goals(rows)));
    for (store, seconds) in report.stores.iter().zip(&report.filled_s) {
        let _ = writeln!(out, "Filling {store} took {seconds:.1} s.");
    }
    let _ = writeln!(out, "{} operations, every answer verified.", report.verified);
    if report.stores.len() < 3 && !alone {
        let _ = writeln!(out, "With memcached and redis-server installed (Debian) their figures stand here too.");
    }
    out
}
