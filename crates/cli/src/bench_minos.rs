//! `remora bench minos`: the replicated store beside etcd and Redis, three nodes each, under YCSB's operations.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use remora_cluster::Model;
use remora_kernel::Placement;
use remora_real::LinkKind;
use remora_study::peers::bench::StoreBench;
use remora_study::peers::redis::AppendOnly;
use remora_study::ycsb::{WORKLOADS, YcsbWorkload};

use crate::args::one_of;
use crate::output::{self, Json};
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};
use crate::{Failure, bench_minos_show as show};

const EXAMPLES: &str = "\
Three nodes of each store, on this machine, with their data on one disk. One thread drives them, with as many \
requests under way as there are clients. Remora's nodes poll: with fewer cores than processes each is kept on one, in \
turn; etcd and Redis sleep when they wait, and go where the system has them. A scan (E) is its reads one after \
another, a read-modify-write (F) a read and a write.

Examples:
  remora bench minos                                     all models and both deployments, etcd, Redis
  remora bench minos --models synch --workloads a,b,c    three of YCSB's workloads, one model
  remora bench minos --skew 0.9 --clients 16 --csv o.csv   another skew, another number of clients
  remora bench minos --peers none --seconds 2            only Remora, longer
  remora bench minos --link udp --unsealed               in the clear: sealing costs the difference
  remora bench minos --at remora-cluster --overwrite     a cluster that `remora cluster` has started; its records may be lost";

/// Options of `remora bench minos`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchMinos {
    /// When writes are durable
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "synch,strict,renf,event,scope")]
    pub models: Vec<Model>,
    /// Where the protocol runs: on a host thread, on the NIC thread
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "host,nic",
        value_parser = remora_cluster::placement)]
    pub deployments: Vec<Placement>,
    /// Measure the cluster that runs in this directory, instead of starting some; with --overwrite, as records are loaded into
    /// it, from key 0 on
    #[arg(long, value_name = "DIR", conflicts_with_all = ["models", "deployments", "link", "directory"])]
    pub at: Option<PathBuf>,
    /// What the cluster of --at holds may be lost
    #[arg(long, requires = "at")]
    pub overwrite: bool,
    /// How nodes and clients reach each other
    #[arg(long, value_name = "LINK", default_value = "shm", value_parser = link())]
    pub link: LinkKind,
    /// Nodes and clients send in the clear over UDP too: what sealing costs is the difference
    #[arg(long, conflicts_with = "at")]
    pub unsealed: bool,
    /// What is done: only updates, only reads, or core workloads of YCSB
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "writes,reads,a", value_parser = workload())]
    pub workloads: Vec<YcsbWorkload>,
    /// Skews of the zipfian by which records are chosen
    #[arg(long, value_name = "S", value_delimiter = ',', default_value = "0.99", value_parser = skew)]
    pub skew: Vec<f64>,
    /// Numbers of clients, each with one request under way
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64", value_parser = up_to::<u32>(1..=1024))]
    pub clients: Vec<u32>,
    /// Operations a second that arrive whatever the stores answer, and wait for a client that is free; latencies count
    /// from their arrival [default: clients ask as soon as they have their answer]
    #[arg(long, value_name = "N", value_parser = per_second)]
    pub rate: Option<f64>,
    /// What else to measure: etcd, redis, or none
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "etcd,redis")]
    pub peers: Vec<Peer>,
    /// When Redis makes its log durable: no (it has none), everysec, always
    #[arg(long, value_name = "WHEN", default_value = "everysec")]
    pub redis_log: RedisLog,
    /// Records, loaded before
    #[arg(long, value_name = "N", default_value = "1000", value_parser = up_to::<u32>(1..=10_000_000))]
    pub records: u32,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "1000", value_parser = up_to::<u32>(16..=1 << 20))]
    pub value_bytes: u32,
    /// How long each workload runs
    #[arg(long, value_name = "TIME", default_value = "0.4", value_parser = quantity::seconds)]
    pub seconds: Duration,
    /// Seed of the operations
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Where the stores keep their data, in a directory of its own; best on a disk. With --at it is in that cluster's
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
    /// Also write the figures as CSV
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    pub csv: Option<PathBuf>,
}

/// A link between nodes of a cluster, by its name.
pub fn link() -> impl TypedValueParser<Value = LinkKind> {
    one_of([(LinkKind::Shm.name(), "Shared memory"), (LinkKind::Udp.name(), "RoCE v2 over UDP")])
}

/// What is done, by its name.
fn workload() -> impl TypedValueParser<Value = YcsbWorkload> {
    let values = WORKLOADS.map(|workload| PossibleValue::new(workload.name).help(workload.about));
    PossibleValuesParser::new(values).try_map(|name| YcsbWorkload::named(&name).ok_or("there is no such workload"))
}

/// Other stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// etcd, three members.
    Etcd,
    /// Redis, a primary and two replicas.
    Redis,
    /// None.
    None,
}

/// When Redis makes its log durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RedisLog {
    /// It writes none.
    No,
    /// Every second.
    Everysec,
    /// Before it answers.
    Always,
}

impl RedisLog {
    /// As Redis is told.
    pub fn append_only(self) -> AppendOnly {
        match self {
            Self::No => AppendOnly::No,
            Self::Everysec => AppendOnly::EverySecond,
            Self::Always => AppendOnly::Always,
        }
    }
}

/// What arrives and is not yet served waits in memory.
fn per_second(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| (0.001..=1e7).contains(rate));
    rate.ok_or_else(|| "give a number from 0.001 to 10000000, such as 5000".into())
}

pub fn skew(text: &str) -> Result<f64, String> {
    let skew = text.parse().ok().filter(|skew: &f64| *skew > 0.0 && *skew < 1.0);
    skew.ok_or_else(|| "give a number between 0 and 1, such as 0.99".into())
}

impl BenchMinos {
    fn bench(&self) -> StoreBench {
        StoreBench {
            models: self.models.clone(),
            deployments: self.deployments.clone(),
            at: self.at.clone(),
            link: self.link,
            sealed: !self.unsealed,
            workloads: self.workloads.clone(),
            skews: self.skew.clone(),
            clients: self.clients.clone(),
            arrivals_per_s: self.rate,
            etcd: self.peers.contains(&Peer::Etcd),
            redis: self.peers.contains(&Peer::Redis),
            append_only: self.redis_log.append_only(),
            records: self.records,
            value_bytes: self.value_bytes,
            time: self.seconds,
            seed: self.seed,
            directory: self.directory.clone(),
        }
    }
}

/// Measures and prints.
pub fn run(args: &BenchMinos) -> Result<(), Failure> {
    if let (Some(dir), false) = (&args.at, args.overwrite) {
        let why = format!(
            "--at {}: records are loaded into that cluster, in place of those that it holds from key 0 on; say --overwrite \
             too if they may be lost",
            dir.display()
        );
        return Err(Failure::Usage(why));
    }
    measure("remora-bench-minos/1", &args.bench(), &args.json, args.csv.as_deref())
}

/// Measures and prints, as JSON in this format.
pub fn measure(format: &str, bench: &StoreBench, json: &Json, csv_file: Option<&Path>) -> Result<(), Failure> {
    quantity::in_memory("--records", bench.bytes())?;
    let display = Display::new(stop_flag());
    let outcome = bench.run(&display);
    display.clear();
    let (measured, notes) = outcome?;
    let csv = (!measured.rows.is_empty()).then(|| show::csv(&measured.rows));
    let shown = json.show_measured(
        measured,
        "rows",
        |rows| show::table(bench, rows, &notes),
        |rows| show::json(format, bench, rows, &notes),
    );
    if let (Some(path), Some(csv)) = (csv_file, csv) {
        output::write(path, csv.as_bytes())?;
    }
    shown
}
