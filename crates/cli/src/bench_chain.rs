//! `remora bench chain`: transactions on a chain of three nodes beside etcd and Redis.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use remora_kernel::Placement;
use remora_real::LinkKind;
use remora_study::peers::bench::StoreBench;
use remora_study::ycsb::{TRANSACTIONS, YcsbWorkload};

use crate::Failure;
use crate::bench_minos::{Peer, RedisLog, link, measure, skew};
use crate::output::Json;
use crate::quantity::{self, up_to};

const EXAMPLES: &str = "\
Three nodes of each store, on this machine, with their data on one disk. A transaction reads and writes different records, \
all at once: RAMBDA's (4,2) and (0,1), and (4,0). One thread drives the stores, with as many transactions under way as \
there are clients; every value that is read is checked. A chain answers when a transaction is synced at all three nodes, etcd \
when it is at two; Redis' replicas have it in memory, and its own log is as --redis-log says. One-sided is the same chain whose clients \
READ what they only read in the head's memory, in rows of reads alone; where what nodes send is sealed there is none. Group verbs are HyperLoop's manner on the same chain of NICs, \
one key after the other: a one-sided READ of the head for each key that is read, for each that is written a pass along the chain that is its WRITE \
and its FLUSH, and, with locks, one before that is a CAS and one after that is another, for the lock of each key that is written, durable as all \
passes are: that keeps writers apart, and readers see half of a transaction either way.

Examples:
  remora bench chain                                  (4,2) transactions, and the others
  remora bench chain --transactions 4,2 --clients 64,256 --value-bytes 1024
  remora bench chain --peers none --seconds 2         only Remora, longer";

/// Options of `remora bench chain`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchChain {
    /// Reads and writes of a transaction; may be given again
    #[arg(long, value_name = "READS,WRITES", default_values = ["4,2", "0,1", "4,0"], value_parser = transactions())]
    transactions: Vec<YcsbWorkload>,
    /// Where the protocol runs: on a host thread, on the NIC thread
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "host,nic",
        value_parser = remora_cluster::placement)]
    deployments: Vec<Placement>,
    /// How nodes and clients reach each other
    #[arg(long, value_name = "LINK", default_value = "shm", value_parser = link())]
    link: LinkKind,
    /// Nodes and clients send in the clear over UDP too: what sealing costs is the difference
    #[arg(long)]
    unsealed: bool,
    /// Skews of the zipfian by which records are chosen
    #[arg(long, value_name = "S", value_delimiter = ',', default_value = "0.5", value_parser = skew)]
    skew: Vec<f64>,
    /// Numbers of clients, each with one transaction under way
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64", value_parser = up_to::<u32>(1..=1024))]
    clients: Vec<u32>,
    /// What else to measure: etcd, redis, or none
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "etcd,redis")]
    peers: Vec<Peer>,
    /// When Redis makes its log durable: no (it has none), everysec, always
    #[arg(long, value_name = "WHEN", default_value = "always")]
    redis_log: RedisLog,
    /// Records, loaded before
    #[arg(long, value_name = "N", default_value = "100k", value_parser = up_to::<u32>(64..=10_000_000))]
    records: u32,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "64", value_parser = up_to::<u32>(16..=64 << 10))]
    value_bytes: u32,
    /// How long each row runs
    #[arg(long, value_name = "TIME", default_value = "0.4", value_parser = quantity::seconds)]
    seconds: Duration,
    /// Seed of the transactions
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    seed: u64,
    /// Where the stores keep their data, in a directory of its own; best on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
    /// Also write the figures as CSV
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    csv: Option<PathBuf>,
}

/// Reads and writes, by their numbers.
fn transactions() -> impl TypedValueParser<Value = YcsbWorkload> {
    let values = TRANSACTIONS.map(|workload| PossibleValue::new(workload.name).help(workload.about));
    let named = |name: String| TRANSACTIONS.into_iter().find(|workload| workload.name == name);
    PossibleValuesParser::new(values).try_map(move |name| named(name).ok_or("there are no such transactions"))
}

/// Measures and prints.
pub fn run(args: &BenchChain) -> Result<(), Failure> {
    let bench = StoreBench {
        models: Vec::new(),
        deployments: args.deployments.clone(),
        at: None,
        link: args.link,
        sealed: !args.unsealed,
        workloads: args.transactions.clone(),
        skews: args.skew.clone(),
        clients: args.clients.clone(),
        arrivals_per_s: None,
        etcd: args.peers.contains(&Peer::Etcd),
        redis: args.peers.contains(&Peer::Redis),
        append_only: args.redis_log.append_only(),
        records: args.records,
        value_bytes: args.value_bytes,
        time: args.seconds,
        seed: args.seed,
        directory: args.directory.clone(),
    };
    measure("remora-bench-chain/1", &bench, &args.json, args.csv.as_deref())
}
