//! `remora bench partition`: an index in two parts while its border moves.

use std::fmt::Write;
use std::time::Duration;

use remora_real::LinkKind;
use remora_study::bench_partition::{GOAL, PartitionBench, PartitionRow};
use remora_study::format::{rate, time};
use remora_study::machine::Machine;
use remora_study::workload;
use serde_json::{Value, json};

use crate::Failure;
use crate::args::{Distribution, link};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, count, node_bytes, up_to};

/// Bytes that a key takes, about: as a pair to load, and in trees with room for twice as many.
const KEY_BYTES: u64 = 16 + 40;

/// Options of `remora bench partition`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
One index in two B-trees: the lower keys are served by a node's host thread, the others by its NIC thread. Calls are timed \
while the border between the two stands still, and while it moves to and fro; each result is checked.

Examples:
  remora bench partition
  remora bench partition --from 0 --to 100 --leaves 16
  remora bench partition --keys 10M --distribution zipfian --json partition.json")]
pub struct BenchPartition {
    /// Keys to load
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = up_to::<u32>(1..=100_000_000))]
    keys: u32,
    /// How keys are drawn
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// The border moves between so many percent of the keys ...
    #[arg(long, value_name = "PERCENT", default_value = "25", value_parser = up_to::<u8>(0..=100))]
    from: u8,
    /// ... and so many. Where it does not move it stands half-way
    #[arg(long, value_name = "PERCENT", default_value = "75", value_parser = up_to::<u8>(0..=100))]
    to: u8,
    /// Rounds, whose latencies count together
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to::<u32>(1..=1000))]
    rounds: u32,
    /// How long each measurement of a round runs
    #[arg(long, value_name = "TIME", default_value = "0.5", value_parser = quantity::seconds)]
    seconds: Duration,
    /// Bytes of a node of the trees: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = node_bytes)]
    node_bytes: usize,
    /// Calls under way at once
    #[arg(long, value_name = "N", default_value = "8", value_parser = up_to::<u16>(1..=128))]
    in_flight: u16,
    /// Leaves that one call of the mover moves; it makes one after the other
    #[arg(long, value_name = "N", default_value = "4", value_parser = up_to::<u32>(1..=1_000_000))]
    leaves: u32,
    /// How clients reach the node
    #[arg(long, value_name = "LINK", default_value = "shm", value_parser = link())]
    link: LinkKind,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42", value_parser = count)]
    seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

/// Measures and prints.
pub fn run(args: &BenchPartition) -> Result<(), Failure> {
    quantity::in_memory("--keys", KEY_BYTES * u64::from(args.keys))?;
    if args.from == args.to {
        return Err(Failure::Usage(format!("the border is to move, and not from {0} % to {0} %", args.from)));
    }
    let display = Display::new(stop_flag());
    let bench = PartitionBench {
        keys: args.keys.into(),
        distribution: match args.distribution {
            Distribution::Zipfian => workload::Distribution::Zipfian,
            Distribution::Uniform => workload::Distribution::Uniform,
        },
        percents: [args.from, args.to],
        rounds: args.rounds,
        time: args.seconds,
        node_bytes: args.node_bytes,
        in_flight: args.in_flight.into(),
        leaves: args.leaves,
        link: args.link,
        seed: args.seed,
    };
    let measured = bench.run(&display);
    display.clear();
    args.json.show_measured(measured, "rows", |rows| table(args, rows), |rows| to_json(args, &bench, rows))
}

fn table(args: &BenchPartition, rows: &[PartitionRow]) -> String {
    let mut out = format!(
        "{} keys over {}, {} calls under way, {} x {}: with a border that stands\nstill, and one that moves between {} and \
         {} %; tails to {GOAL} x\n",
        args.keys,
        args.link,
        args.in_flight,
        args.rounds,
        time(args.seconds.as_nanos() as f64),
        args.from,
        args.to,
    );
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{:<10} {:<12} {:>8} {:>8} {:>8} {:>8} {:>5}",
        "", "at", "p50", "moving", "p99", "moving", "ratio"
    );
    for row in rows {
        let [p50, p99] = [row.p50, row.p99].map(|both| both.map(|ns| time(ns as f64)));
        let _ = writeln!(
            out,
            "{:<10} {:<12} {:>8} {:>8} {:>8} {:>8} {:>5.2}  {}",
            row.work.name(),
            row.place.name(),
            p50[0],
            p50[1],
            p99[0],
            p99[1],
            row.ratio(),
            if row.met() { "met" } else { "missed" },
        );
        let _ = writeln!(
            out,
            "  {} and {} calls/s; {} pairs moved a second, {:.1} % sent on",
            rate(row.rate[0]),
            rate(row.rate[1]),
            rate(row.moved),
            100.0 * row.redirected,
        );
    }
    out
}

fn to_json(args: &BenchPartition, bench: &PartitionBench, rows: &[PartitionRow]) -> Value {
    let row = |row: &PartitionRow| {
        json!({
            "work": row.work.name(), "place": row.place.name(),
            "p50_ns": { "still": row.p50[0], "moving": row.p50[1] },
            "p99_ns": { "still": row.p99[0], "moving": row.p99[1] },
            "calls_per_s": { "still": row.rate[0], "moving": row.rate[1] },
            "moved_per_s": row.moved, "redirected": row.redirected, "ratio": row.ratio(), "met": row.met(),
        })
    };
    json!({
        "format": "remora-bench-partition/1",
        "version": env!("REMORA_VERSION"),
        "machine": Machine::describe(),
        "keys": args.keys,
        "distribution": bench.distribution.name(),
        "percents": bench.percents,
        "rounds": args.rounds,
        "seconds": args.seconds.as_secs_f64(),
        "node_bytes": args.node_bytes,
        "in_flight": args.in_flight,
        "leaves": args.leaves,
        "link": args.link.name(),
        "seed": args.seed,
        "goal": GOAL,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
