//! `remora bench btree`.

use remora_study::bench_btree::{BtreeBench, Keys, key_bytes};
use remora_study::machine::Machine;
use remora_study::workload;
use serde_json::json;

use crate::Failure;
use crate::args::Distribution;
use crate::bench::{rows_json, rows_table};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, count, node_bytes, up_to};

const EXAMPLES: &str = "\
Examples:
  remora bench btree                         10 M dense keys, drawn uniformly, by one core and by two
  remora bench btree --sparse --distribution zipfian
  remora bench btree --keys 100M --rounds 3  needs about 15 GB
  remora bench btree --key-bytes 32 --node-bytes 1024     keys that are bytes
  remora bench btree --node-bytes 1024 --in-flight 16 --json btree.json";

/// Bytes that a key takes in all maps together, about: 100 million took 15 GB.
const KEY_BYTES: u64 = 150;

/// Options of `remora bench btree`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchBtree {
    /// Keys to load
    #[arg(long, value_name = "N", default_value = "10000000", value_parser = up_to::<u32>(1..=1_000_000_000))]
    keys: u32,
    /// Keys far apart, instead of 0, 1, 2 and so on
    #[arg(long)]
    sparse: bool,
    /// Bytes of a key, 8 to 256; without it keys are numbers. Nodes of 256, 512, 1024 and 2048 bytes hold keys of 32, 80, 184 and 256
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(8..=256))]
    key_bytes: Option<u16>,
    /// How keys are drawn
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Cores: figures for one, then for each number up to this
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(1..=64))]
    cores: u8,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to::<u32>(1..=1000))]
    rounds: u32,
    /// Bytes of a node of Remora's tree: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = node_bytes)]
    node_bytes: usize,
    /// Calls in flight on each core
    #[arg(long, value_name = "N", default_value = "16", value_parser = up_to::<u16>(1..=512))]
    in_flight: u16,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42", value_parser = count)]
    seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

/// The tree beside its peers.
pub fn run(args: &BenchBtree) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let bench = BtreeBench {
        keys: args.keys.into(),
        spread: if args.sparse { Keys::Sparse } else { Keys::Dense },
        key_bytes: args.key_bytes.map(usize::from),
        distribution: match args.distribution {
            Distribution::Zipfian => workload::Distribution::Zipfian,
            Distribution::Uniform => workload::Distribution::Uniform,
        },
        lookups: (1 << 20).min(u64::from(args.keys).next_power_of_two()),
        cores: args.cores.into(),
        rounds: args.rounds,
        node_bytes: args.node_bytes,
        in_flight: args.in_flight.into(),
        seed: args.seed,
    };
    let with_inserted = format!("--keys {}, with those that {} rounds insert,", args.keys, args.rounds);
    quantity::in_memory(&with_inserted, KEY_BYTES * bench.keys_in_all())?;
    let most = key_bytes(args.node_bytes);
    if args.key_bytes.is_some_and(|len| usize::from(len) > most) {
        return Err(Failure::Usage(format!(
            "nodes of {} bytes hold keys of up to {most}: use larger ones",
            args.node_bytes
        )));
    }
    let measured = bench.run(&mut display.going());
    display.clear();
    args.json.show_measured(measured, "rows", rows_table, |rows| {
        json!({
            "format": "remora-bench-btree/1",
            "version": env!("REMORA_VERSION"),
            "machine": Machine::describe(),
            "keys": args.keys,
            "sparse": args.sparse,
            "key_bytes": args.key_bytes,
            "distribution": bench.distribution.name(),
            "rounds": args.rounds,
            "node_bytes": args.node_bytes,
            "in_flight": args.in_flight,
            "seed": args.seed,
            "rows": rows_json(rows),
        })
    })
}
