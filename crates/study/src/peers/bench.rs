//! The replicated store beside etcd and Redis, three nodes each on this machine, under YCSB's operations; or a chain beside
//! them, under transactions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use remora_cluster::{ClusterClientConfig, Guard, Model};
use remora_kernel::Placement;
use remora_lab::bench::{BenchGoal, BenchRow};
use remora_lab::stats::median;
use remora_real::LinkKind;
use tempfile::TempDir;

use super::chain::{ChainPeer, Manner};
use super::cluster::ClusterPeer;
use super::cores::Spread;
use super::drive::{Driven, Loaded, StoreLoad};
use super::etcd::{self, Etcd};
use super::redis::{self, AppendOnly, Redis};
use super::{Ask, Done, PeerError, PeerStore, disk};
use crate::compare::{Progress, Watch};
use crate::nodes::{ClusterProcesses, ClusterSettings, ClusterShape};
use crate::ycsb::YcsbWorkload;
use crate::{MeasuredRows, StudyError};

/// How long a cluster may take until it serves.
const START: Duration = Duration::from_secs(20);
/// A node that is silent for so long is taken to have failed.
const SUSPECT: Duration = Duration::from_secs(2);

/// As tables name group verbs that keep writers apart; they run on NICs.
const LOCKED_VERBS: &str = "group + locks";

/// What is measured of which stores.
#[derive(Clone, Debug)]
pub struct StoreBench {
    /// When writes of Remora's clusters are durable; none of them, and a chain instead, if there is none.
    pub models: Vec<Model>,
    /// Where the protocol runs.
    pub deployments: Vec<Placement>,
    /// Measure the cluster that runs in this directory, instead of starting some.
    pub at: Option<PathBuf>,
    /// How nodes and clients of clusters that are started reach each other.
    pub link: LinkKind,
    /// Whether what their nodes and clients send is sealed.
    pub sealed: bool,
    /// What is done.
    pub workloads: Vec<YcsbWorkload>,
    /// Skews of the zipfian by which records are chosen.
    pub skews: Vec<f64>,
    /// Numbers of clients, each with one request under way.
    pub clients: Vec<u32>,
    /// Operations a second that arrive whatever stores answer; `None`: clients ask as soon as they have their answer.
    pub arrivals_per_s: Option<f64>,
    /// Whether etcd is measured.
    pub etcd: bool,
    /// Whether Redis is measured.
    pub redis: bool,
    /// When Redis makes its log durable.
    pub append_only: AppendOnly,
    /// Records, loaded before.
    pub records: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// How long each workload runs.
    pub time: Duration,
    /// Seed of the operations.
    pub seed: u64,
    /// Where the stores keep their data, in a directory of its own.
    pub directory: PathBuf,
}

/// One load of one store.
pub struct StoreRow {
    /// The store.
    pub store: String,
    /// What was done.
    pub workload: YcsbWorkload,
    /// The skew.
    pub skew: f64,
    /// Requests under way.
    pub clients: u32,
    /// What came.
    pub outcome: Driven,
}

/// What a run tells beside its rows.
pub struct StoreNotes {
    /// Stores that could not be measured, and why.
    pub absent: Vec<(String, String)>,
    /// The median of an append made durable by fdatasync, in nanoseconds, just before each store and at the end.
    pub appends_ns: Vec<(String, u64)>,
}

impl StoreBench {
    /// Bytes of memory that a store's three nodes take at least, together.
    pub fn bytes(&self) -> u64 {
        let (records, bytes) = (self.records.into(), self.value_bytes.into());
        // A chain's nodes keep all twice.
        3 * if self.models.is_empty() { 2 * ChainPeer::room(records, bytes) } else { records * bytes }
    }

    /// Measures everything; rows come by store.
    pub fn run(&self, watch: &dyn Watch) -> Result<(MeasuredRows<StoreRow>, StoreNotes), StudyError> {
        let (mut absent, mut appends_ns) = (Vec::new(), Vec::new());
        let mut subjects = self.subjects()?;
        subjects.retain(|subject| {
            let why = subject.absent().map(|why| (subject.name(), why));
            let here = why.is_none();
            absent.extend(why);
            here
        });
        let wanted = subjects.len() * self.loads().len();
        let measured = MeasuredRows::by(wanted, |rows| self.measure(&subjects, rows, &mut appends_ns, watch));
        Ok((measured, StoreNotes { absent, appends_ns }))
    }

    fn measure(
        &self,
        subjects: &[Subject],
        rows: &mut Vec<StoreRow>,
        appends_ns: &mut Vec<(String, u64)>,
        watch: &dyn Watch,
    ) -> Result<(), StudyError> {
        // On one disk with the cluster that runs: how long its syncs take is held against it.
        let (directory, loads) = (temporary(self.at.as_ref().unwrap_or(&self.directory))?, self.loads());
        let total = subjects.len() * (loads.len() + 1);
        let mut done = 0;
        let mut step = |next: &str| {
            watch.progress(Progress::Measuring { done, total, next });
            done += 1;
        };
        // The disk is not the same from minute to minute, so each store has its own.
        let append =
            || disk::appends(directory.path(), self.value_bytes as usize, self.time / 2, &|| watch.stop()).map(middle);
        for subject in subjects {
            let name = subject.name();
            step(&format!("{name}: starting and loading"));
            appends_ns.push((name.clone(), append()?));
            let (room, stop) = (temporary(directory.path())?, || watch.stop());
            let mut store = subject.start(self, room.path(), &stop)?;
            let (records, bytes) = (u64::from(self.records), self.value_bytes as usize);
            let mut loaded = Loaded::new(&mut *store, records, bytes, self.most_clients(), &stop)?;
            for &(workload, skew, clients) in &loads {
                step(&format!("{name}: {}, {clients} at once", workload.name));
                let outcome = loaded.drive(&StoreLoad {
                    mix: workload.mix,
                    transaction: workload.transaction,
                    popularity: workload.popularity(skew),
                    clients: clients as usize,
                    arrivals_per_s: self.arrivals_per_s,
                    time: self.time,
                    seed: self.seed,
                })?;
                rows.push(StoreRow { store: name.clone(), workload, skew, clients, outcome });
            }
        }
        appends_ns.push(("end".into(), append()?));
        Ok(())
    }

    fn seals(&self) -> bool {
        Guard::of(self.sealed, self.link) == Guard::Sealed
    }

    fn most_clients(&self) -> usize {
        self.clients.iter().copied().max().unwrap_or(1) as usize
    }

    fn subjects(&self) -> Result<Vec<Subject>, StudyError> {
        let mut subjects: Vec<Subject> = match &self.at {
            Some(directory) => vec![Subject::Running(Box::new(ClusterSettings::read(directory)?))],
            None => {
                let deployments =
                    |model: Model| self.deployments.iter().map(move |&place| Subject::Started(model, place));
                let chains = self.deployments.iter().filter(|_| self.models.is_empty());
                let manners = |&place: &Placement| {
                    let verbs =
                        [Manner::Verbs, Manner::LockedVerbs].into_iter().filter(move |_| place == Placement::Nic);
                    // What is sealed is shown to no READ.
                    let reads = [Manner::OneSided].into_iter().filter(|_| !self.seals());
                    [Manner::Whole]
                        .into_iter()
                        .chain(reads)
                        .chain(verbs)
                        .map(move |manner| Subject::Chain(place, manner))
                };
                let chains = chains.flat_map(manners);
                self.models.iter().flat_map(|&model| deployments(model)).chain(chains).collect()
            }
        };
        subjects.extend(self.etcd.then_some(Subject::Etcd));
        subjects.extend(self.redis.then_some(Subject::Redis));
        Ok(subjects)
    }

    /// Workload, skew and clients of each load of a store.
    pub fn loads(&self) -> Vec<(YcsbWorkload, f64, u32)> {
        let clients = |w, s| self.clients.iter().map(move |&c| (w, s, c));
        let skews = |w| self.skews.iter().flat_map(move |&s| clients(w, s));
        self.workloads.iter().flat_map(|&w| skews(w)).collect()
    }

    /// What Remora aims at, where both sides of it were measured.
    pub fn goals(&self, rows: &[StoreRow], notes: &StoreNotes) -> Vec<BenchRow> {
        let mut goals = Vec::new();
        let append = |store: &str| notes.appends_ns.iter().find(|append| append.0 == store).map(|append| append.1);
        for &skew in &self.skews {
            for deployment in ["host", "nic"] {
                for &clients in &self.clients {
                    let find = |store: &str, workload| {
                        rows.iter().find(|row| {
                            (row.store.as_str(), row.workload.name, row.skew, row.clients)
                                == (store, workload, skew, clients)
                        })
                    };
                    let mut compare = |model: &str, peer: &str, workload, times| {
                        let (ours, theirs) = (find(&format!("{model} {deployment}"), workload)?, find(peer, workload)?);
                        let rate = |row: &StoreRow| (row.outcome.writes.rate + row.outcome.reads.rate) / 1e3;
                        let what = format!("{} {}, {clients} at once", ours.store, workload);
                        let goal = Some(BenchGoal::RatioAtLeast(times));
                        goals.push(row(what, "k/s", format!("{peer}, the same"), (rate(ours), rate(theirs)), goal));
                        Some(())
                    };
                    compare("chain", "etcd", "4,2", 3.0);
                    if deployment == "nic" {
                        compare("chain", LOCKED_VERBS, "4,2", 1.0);
                    }
                    compare("synch", "etcd", "writes", 3.0);
                    compare("event", "redis WAIT 2", "writes", 3.0);
                    compare("synch", "etcd", "reads", 20.0);
                    if let (1, Some(ours)) = (clients, find(&format!("synch {deployment}"), "writes")) {
                        let one = append(&ours.store).unwrap_or(0) as f64 / 1e3;
                        let figures = (ours.outcome.writes.p50_ns as f64 / 1e3, one);
                        let goal = Some(BenchGoal::RatioAtMost(2.0));
                        goals.push(row(
                            format!("{} write, p50", ours.store),
                            "us",
                            "one fdatasync, just before".into(),
                            figures,
                            goal,
                        ));
                    }
                }
            }
        }
        goals
    }
}

fn row(what: String, unit: &'static str, peer: String, figures: (f64, f64), goal: Option<BenchGoal>) -> BenchRow {
    let (value, peer_value) = figures;
    BenchRow { what, value, unit, peer, peer_value, ratio: value / peer_value, goal }
}

fn middle(times: Vec<u64>) -> u64 {
    median(times.into_iter().map(|ns| ns as f64)).round() as u64
}

fn temporary(parent: &Path) -> Result<TempDir, StudyError> {
    let made = tempfile::Builder::new().prefix("remora-bench-").tempdir_in(parent);
    made.map_err(|e| StudyError::Failed(format!("cannot make a directory in {}: {e}", parent.display())))
}

/// A cluster whose nodes end with this value.
struct Started<P> {
    cluster: P,
    _nodes: ClusterProcesses,
    _spread: Spread,
}

impl<P> Started<P> {
    /// One that keeps records of a model, or if there is none a chain with room for them.
    fn start(
        bench: &StoreBench,
        model: Option<Model>,
        deployment: Placement,
        (directory, stop): (&Path, &dyn Fn() -> bool),
        connect: impl FnOnce(&ClusterClientConfig) -> Result<P, PeerError>,
    ) -> Result<Self, StudyError> {
        let room = ChainPeer::room(bench.records.into(), bench.value_bytes.into());
        let shape = ClusterShape {
            nodes: Some(3),
            persistency: model,
            deployment: Some(deployment),
            link: Some(bench.link),
            chain: model.is_none().then_some(room),
            log: None,
            // On a machine with more to do than cores a node may have to wait for one.
            suspect: Some(SUSPECT),
            sealed: Some(bench.sealed),
        };
        let nodes = ClusterProcesses::start(directory, ClusterSettings::open(directory, &shape)?, stop)?;
        nodes.await_service(START, stop)?;
        let cluster = connect(&nodes.settings().client())?;
        let spread = Spread::over((0..nodes.len()).filter_map(|node| nodes.process(node)));
        Ok(Self { cluster, _nodes: nodes, _spread: spread })
    }
}

impl<P: PeerStore> PeerStore for Started<P> {
    fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError> {
        self.cluster.submit(slot, ask)
    }

    fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError> {
        self.cluster.wait(done)
    }
}

/// A store to be measured.
enum Subject {
    /// A cluster that is started.
    Started(Model, Placement),
    /// A chain that is started, and how transactions are carried out.
    Chain(Placement, Manner),
    /// One that runs.
    Running(Box<ClusterSettings>),
    Etcd,
    Redis,
}

impl Subject {
    fn name(&self) -> String {
        match self {
            Self::Started(model, deployment) => format!("{model} {deployment}"),
            Self::Chain(deployment, Manner::Whole) => format!("chain {deployment}"),
            Self::Chain(deployment, Manner::OneSided) => format!("one-sided {deployment}"),
            Self::Chain(_, Manner::Verbs) => "group verbs".into(),
            Self::Chain(_, Manner::LockedVerbs) => LOCKED_VERBS.into(),
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

    fn start(
        &self,
        bench: &StoreBench,
        directory: &Path,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn PeerStore>, StudyError> {
        let (clients, at) = (bench.most_clients(), (directory, stop));
        Ok(match self {
            Self::Started(model, place) => Box::new(Started::start(bench, Some(*model), *place, at, |config| {
                ClusterPeer::connect(config, *model, clients)
            })?),
            Self::Chain(place, manner) => Box::new(Started::start(bench, None, *place, at, |config| {
                let records = (bench.records.into(), bench.value_bytes.into());
                ChainPeer::connect(config, *manner, records, clients)
            })?),
            Self::Running(settings) => {
                Box::new(ClusterPeer::connect(&settings.client(), settings.persistency, clients)?)
            }
            Self::Etcd => Box::new(Etcd::start(directory, clients)?),
            Self::Redis => Box::new(Redis::start(directory, clients, bench.append_only)?),
        })
    }
}
