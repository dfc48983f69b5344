//! `remora bench minos`: the replicated store beside etcd and Redis, three nodes each, under YCSB's operations.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::TypedValueParser;
use remora_cluster::Model;
use remora_kernel::Placement;
use remora_lab::stats::median;
use remora_real::LinkKind;
use remora_study::compare::{Progress, Watch};
use remora_study::peers::cluster::Cluster;
use remora_study::peers::cores::Spread;
use remora_study::peers::drive::{Load, Loaded, Outcome};
use remora_study::peers::etcd::{self, Etcd};
use remora_study::peers::redis::{self, AppendOnly, Redis};
use remora_study::peers::{Ask, Done, PeerError, Store, disk};
use remora_study::ycsb::{self, Mix, Popularity};
use tempfile::TempDir;

use crate::args::{self, one_of};
use crate::cluster::Shape;
use crate::cluster_children::{Children, Settings};
use crate::progress::{Display, stop_flag};
use crate::{Failure, bench_minos_show as show, print};

/// How long a cluster may take until it serves.
const START: Duration = Duration::from_secs(20);
/// A node that is silent for so long is taken to have failed.
const SUSPECT_MS: u64 = 2000;

const EXAMPLES: &str = "\
Three nodes of each store, on this machine, with their data on one disk. One thread drives them, with as many \
requests under way as there are clients. Remora's nodes poll: with fewer cores than processes each is kept on one, in \
turn; etcd and Redis sleep when they wait, and go where the system has them. A scan (E) is its reads one after \
another, a read-modify-write (F) a read and a write.

Examples:
  remora bench minos                                     all models and both deployments, etcd, Redis
  remora bench minos --models synch --workloads a,b,c    three of YCSB's workloads, one model
  remora bench minos --skew 0.9 --clients 16 --csv o.csv another skew, another number of clients
  remora bench minos --peers none --seconds 2            only Remora, longer
  remora bench minos --at remora-cluster                 a cluster that `remora cluster` has started";

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
    /// Measure the cluster that runs in this directory, instead of starting some
    #[arg(long, value_name = "DIR", conflicts_with_all = ["models", "deployments", "link"])]
    pub at: Option<PathBuf>,
    /// How nodes and clients reach each other
    #[arg(long, value_name = "LINK", default_value = "shm", value_parser = link())]
    pub link: LinkKind,
    /// What is done: only updates, only reads, or core workloads of YCSB
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "writes,reads,a")]
    pub workloads: Vec<Workload>,
    /// Skews of the zipfian by which records are chosen
    #[arg(long, value_name = "S", value_delimiter = ',', default_value = "0.99", value_parser = skew)]
    pub skew: Vec<f64>,
    /// Numbers of clients, each with one request under way
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,64", value_parser = args::up_to(1..=1024))]
    pub clients: Vec<u32>,
    /// What else to measure: etcd, redis, or none
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "etcd,redis")]
    pub peers: Vec<Peer>,
    /// When Redis makes its log durable: no (it has none), everysec, always
    #[arg(long, value_name = "WHEN", default_value = "everysec")]
    pub redis_log: RedisLog,
    /// Records, loaded before
    #[arg(long, value_name = "N", default_value = "1000", value_parser = args::up_to(1..=10_000_000))]
    pub records: u32,
    /// Bytes of a value
    #[arg(long, value_name = "N", default_value = "1000", value_parser = args::up_to(16..=1 << 20))]
    pub value_bytes: u32,
    /// How long each workload runs
    #[arg(long, value_name = "TIME", default_value = "0.4", value_parser = args::seconds)]
    pub seconds: Duration,
    /// Seed of the operations
    #[arg(long, value_name = "N", default_value = "42")]
    pub seed: u64,
    /// Where the stores keep their data, in a directory of its own; best on a disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the figures as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// A link between nodes of a cluster, by its name.
fn link() -> impl TypedValueParser<Value = LinkKind> {
    one_of([(LinkKind::Shm.name(), "Shared memory"), (LinkKind::Udp.name(), "RoCE v2 over UDP")])
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Updates only.
    Writes,
    /// Reads only, as in C.
    Reads,
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of the latest, 5 % inserts.
    D,
    /// 95 % scans, 5 % inserts.
    E,
    /// Half reads, half read-modify-writes.
    F,
}

impl Workload {
    fn load(self, skew: f64) -> (Mix, Popularity) {
        let core = match self {
            Self::Writes => return (Mix::writes(100), Popularity::Zipfian(skew)),
            Self::Reads | Self::C => ycsb::Workload::C,
            Self::A => ycsb::Workload::A,
            Self::B => ycsb::Workload::B,
            Self::D => ycsb::Workload::D,
            Self::E => ycsb::Workload::E,
            Self::F => ycsb::Workload::F,
        };
        let latest = matches!(core.popularity(), Popularity::Latest(_));
        (core.mix(), if latest { Popularity::Latest(skew) } else { Popularity::Zipfian(skew) })
    }

    /// As options and files spell it.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }
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

fn skew(text: &str) -> Result<f64, String> {
    let skew = text.parse().ok().filter(|skew: &f64| *skew > 0.0 && *skew < 1.0);
    skew.ok_or_else(|| "give a number between 0 and 1, such as 0.99".into())
}

/// One load of one store.
pub struct Row {
    /// The store.
    pub store: String,
    /// What was done.
    pub workload: Workload,
    /// The skew.
    pub skew: f64,
    /// Requests under way.
    pub clients: u32,
    /// What came.
    pub outcome: Outcome,
}

/// A cluster whose nodes end with this value.
struct Started {
    cluster: Cluster,
    _nodes: Children,
    _spread: Spread,
}

impl Started {
    fn start(
        model: Model,
        deployment: Placement,
        link: LinkKind,
        clients: usize,
        directory: &Path,
    ) -> Result<Self, Failure> {
        let (persistency, deployment, link) = (Some(model), Some(deployment), Some(link));
        // On a machine with more to do than cores a node may have to wait for one.
        let suspect = Some(SUSPECT_MS);
        let shape = Shape { nodes: Some(3), persistency, deployment, link, log: None, suspect };
        let nodes = Children::start(directory, Settings::open(directory, &shape)?)?;
        nodes.await_service(START)?;
        let Settings { addresses, link, .. } = nodes.settings();
        let cluster = Cluster::connect(addresses, *link, model, clients)?;
        let spread = Spread::over((0..nodes.len()).filter_map(|node| nodes.process(node)));
        Ok(Self { cluster, _nodes: nodes, _spread: spread })
    }
}

impl Store for Started {
    fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError> {
        self.cluster.submit(slot, ask)
    }

    fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError> {
        self.cluster.wait(done)
    }
}

/// All of a run.
pub struct Report {
    /// Rows by store, in the order in which they were measured.
    pub rows: Vec<Row>,
    /// Stores that could not be measured, and why.
    pub absent: Vec<(String, String)>,
    /// The median of an append made durable by fdatasync, in nanoseconds, just before each store and at the end.
    pub appends_ns: Vec<(String, u64)>,
}

/// A store to be measured.
enum Subject {
    /// A cluster that is started.
    Started(Model, Placement),
    /// One that runs.
    Running(Box<Settings>),
    Etcd,
    Redis,
}

impl Subject {
    fn name(&self) -> String {
        match self {
            Self::Started(model, deployment) => format!("{model} {deployment}"),
            Self::Running(settings) => format!("{} {}", settings.persistency, settings.deployment),
            Self::Etcd => "etcd".into(),
            Self::Redis => "redis WAIT 2".into(),
        }
    }

    /// Why it cannot be.
    fn absent(&self) -> Option<String> {
        let missing = |package| Some(format!("not installed: apt-get install {package}"));
        match self {
            Self::Etcd if !Etcd::installed() => missing(etcd::PACKAGE),
            Self::Redis if !Redis::installed() => missing(redis::PACKAGE),
            _ => None,
        }
    }

    fn start(&self, args: &BenchMinos, directory: &Path) -> Result<Box<dyn Store>, Failure> {
        let clients = args.most_clients();
        Ok(match self {
            Self::Started(model, place) => Box::new(Started::start(*model, *place, args.link, clients, directory)?),
            Self::Running(settings) => {
                let Settings { addresses, link, persistency, .. } = settings.as_ref();
                Box::new(Cluster::connect(addresses, *link, *persistency, clients)?)
            }
            Self::Etcd => Box::new(Etcd::start(directory, clients)?),
            Self::Redis => Box::new(Redis::start(directory, clients, args.redis_log.append_only())?),
        })
    }
}

impl BenchMinos {
    fn most_clients(&self) -> usize {
        self.clients.iter().copied().max().unwrap_or(1) as usize
    }

    fn subjects(&self) -> Result<Vec<Subject>, Failure> {
        let mut subjects: Vec<Subject> = match &self.at {
            Some(directory) => vec![Subject::Running(Box::new(Settings::read(directory)?))],
            None => {
                let deployments =
                    |model: Model| self.deployments.iter().map(move |&place| Subject::Started(model, place));
                self.models.iter().flat_map(|&model| deployments(model)).collect()
            }
        };
        if self.peers.contains(&Peer::Etcd) {
            subjects.push(Subject::Etcd);
        }
        if self.peers.contains(&Peer::Redis) {
            subjects.push(Subject::Redis);
        }
        Ok(subjects)
    }

    /// Workload, skew and clients of each load of a store.
    pub fn loads(&self) -> Vec<(Workload, f64, u32)> {
        let clients = |w: Workload, s: f64| self.clients.iter().map(move |&c| (w, s, c));
        let skews = |w: Workload| self.skew.iter().flat_map(move |&s| clients(w, s));
        self.workloads.iter().flat_map(|&w| skews(w)).collect()
    }
}

impl From<PeerError> for Failure {
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::Interrupted => Self::Interrupted,
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Measures and prints.
pub fn run(args: &BenchMinos) -> Result<(), Failure> {
    let stop = stop_flag();
    let display = Display::new(stop.clone());
    let report = measure(args, &display, &stop);
    display.clear();
    let report = report?;
    let text = show::table(args, &report);
    print(&text, &text);
    if let Some(path) = &args.csv {
        let failed = |e| Failure::Failed(format!("cannot write {}: {e}", path.display()));
        std::fs::write(path, show::csv(&report)).map_err(failed)?;
    }
    crate::bench::write_json(args.json.as_deref(), show::json(args, &report))
}

fn measure(args: &BenchMinos, display: &Display, stop: &Arc<AtomicBool>) -> Result<Report, Failure> {
    let directory = temporary(&args.directory)?;
    let (subjects, loads) = (args.subjects()?, args.loads());
    let total = subjects.len() * (loads.len() + 1);
    let mut done = 0;
    let mut step = |next: &str| {
        display.progress(Progress::Measuring { done, total, next });
        done += 1;
    };
    let mut report = Report { rows: Vec::new(), absent: Vec::new(), appends_ns: Vec::new() };
    // The disk is not the same from minute to minute, so each store has its own.
    let append = || disk::appends(directory.path(), args.value_bytes as usize, args.seconds / 2);
    for subject in &subjects {
        let name = subject.name();
        if let Some(why) = subject.absent() {
            report.absent.push((name, why));
            continue;
        }
        step(&format!("{name}: starting and loading"));
        report.appends_ns.push((name.clone(), median_of(append()?)));
        let room = temporary(directory.path())?;
        let mut store = subject.start(args, room.path())?;
        let (records, bytes) = (u64::from(args.records), args.value_bytes as usize);
        let mut loaded = Loaded::new(&mut *store, records, bytes, args.most_clients(), stop)?;
        for &(workload, skew, clients) in &loads {
            step(&format!("{name}: {}, {clients} at once", workload.name()));
            let (mix, popularity) = workload.load(skew);
            let load = Load { mix, popularity, clients: clients as usize, time: args.seconds, seed: args.seed };
            let outcome = loaded.drive(&load)?;
            report.rows.push(Row { store: name.clone(), workload, skew, clients, outcome });
        }
    }
    report.appends_ns.push(("end".into(), median_of(append()?)));
    Ok(report)
}

fn median_of(times: Vec<u64>) -> u64 {
    median(times.into_iter().map(|ns| ns as f64)).round() as u64
}

fn temporary(parent: &Path) -> Result<TempDir, Failure> {
    let made = tempfile::Builder::new().prefix("remora-bench-").tempdir_in(parent);
    made.map_err(|e| Failure::Failed(format!("cannot make a directory in {}: {e}", parent.display())))
}
