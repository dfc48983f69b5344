//! One point of a figure: a modelled cluster of the engine, and YCSB's operations on it.

use remora_model::cluster::{ClusterError, ClusterSpec, Costs, ModelCluster, WorkerAsk, WorkerDone, WorkerLoad};
use remora_model::platform::{Platform, PlatformError};
use remora_model::time::Ps;
use remora_replica::ddp::{Deployment, Model, Offload};
use serde::{Deserialize, Serialize};

use super::login::Logins;
use super::readings::Chosen;
use crate::ycsb::{Generator, Mix, Popularity, YcsbOperation};

/// Writes of a scope. Neither the paper nor its sources give one; PERSIST is not part of a write's latency.
const SCOPE: u64 = 10;

/// All that a point depends on, beside the platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setup {
    /// The persistency model.
    pub model: String,
    /// Where the protocol runs.
    pub deployment: AblationStep,
    /// Nodes.
    pub nodes: u64,
    /// Per cent of the operations that write.
    pub writes: u64,
    /// Records.
    pub records: u64,
    /// Zipfian skew; 0 is uniform.
    pub theta: f64,
    /// Time of a record's persist in nanoseconds, for the dFIFO too; 0 is the platform's.
    pub persist_ns: u64,
    /// Entries of each FIFO; 0 is the platform's, more than 10,000 no bound.
    pub fifo: u64,
    /// Round trip between nodes in microseconds; 0 is the platform's.
    pub rtt_us: u64,
    /// The Login function of this application instead of YCSB.
    pub login: Option<Login>,
    /// Per cent of Social's GETs that find something.
    pub hit: u64,
}

/// Steps of the ablation (figure 12), from MINOS-B to MINOS-O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AblationStep {
    /// MINOS-B.
    B,
    /// MINOS-B on NICs that broadcast.
    BBroadcast,
    /// Offload, coherence, and FIFOs instead of the WRLock.
    Combined,
    /// With broadcast.
    CombinedBroadcast,
    /// With batching.
    CombinedBatching,
    /// MINOS-O: with both.
    O,
}

/// An application of DeathStar whose Login is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Login {
    /// Social Network: one GET; when it misses, a look-up and one SET.
    Social,
    /// Media Microservices: three GETs.
    Media,
}

impl AblationStep {
    /// In order.
    pub const ALL: [Self; 6] =
        [Self::B, Self::BBroadcast, Self::Combined, Self::CombinedBroadcast, Self::CombinedBatching, Self::O];
}

impl Default for Setup {
    /// The default workload (section VII).
    fn default() -> Self {
        Self {
            model: Model::Synch.to_string(),
            deployment: AblationStep::B,
            nodes: 5,
            writes: 50,
            records: 100_000,
            theta: 0.99,
            persist_ns: 0,
            fifo: 0,
            rtt_us: 0,
            login: None,
            hit: 100,
        }
    }
}

/// What a point came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointFigures {
    /// Mean latency of a write in nanoseconds.
    pub write_ns: f64,
    /// Its part of communication.
    pub communication_ns: f64,
    /// Mean latency of a read.
    pub read_ns: f64,
    /// Mean latency of a function.
    pub login_ns: f64,
    /// Writes a second, all nodes together.
    pub writes_per_s: f64,
    /// Reads a second.
    pub reads_per_s: f64,
    /// The part of the time that host cores and NIC cores were busy.
    pub busy: (f64, f64),
    /// Events that it took.
    pub events: u64,
}

/// Why a point cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PointError {
    /// The platform is not what it should be.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// It says nothing of replication.
    #[error("platform {0} describes no replication on SmartNICs")]
    NoReplication(String),
    /// No such model, or counts that make no cluster.
    #[error("{0}")]
    Setup(String),
    /// The model cannot go on.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl Setup {
    /// The modelled cluster.
    pub(super) fn spec(&self, platform: &Platform, readings: Chosen) -> Result<ClusterSpec, PointError> {
        let none = || PointError::NoReplication(platform.name.clone());
        let mut changes = Vec::new();
        if self.persist_ns > 0 {
            let ps = (self.persist_ns * 1000) as f64;
            changes.push(("replication.persist", ps));
            if !readings.host_sweep {
                changes.push(("replication.dfifo_write", ps));
            }
        }
        if self.rtt_us > 0 {
            changes.push(("ethernet.latency", (self.rtt_us * 500_000) as f64));
        }
        let platform = platform.with(&changes)?;
        let replication = platform.replication.as_ref().ok_or_else(none)?;
        let entries = if self.fifo == 0 { replication.fifo_entries } else { self.fifo };
        let fifos = Some(u16::try_from(entries).unwrap_or(u16::MAX));
        let offload = |batching, broadcast| Deployment::Offload(Offload { fifos, batching, broadcast });
        let deployment = match self.deployment {
            AblationStep::B | AblationStep::BBroadcast => Deployment::Baseline,
            AblationStep::Combined => offload(false, false),
            AblationStep::CombinedBroadcast => offload(false, true),
            AblationStep::CombinedBatching => offload(true, false),
            AblationStep::O => offload(true, true),
        };
        if !(2..=64).contains(&self.nodes) || self.records == 0 || !(0.0..1.0).contains(&self.theta) {
            return Err(PointError::Setup(format!("no cluster: {self:?}")));
        }
        Ok(ClusterSpec {
            costs: Costs::new(&platform).ok_or_else(none)?,
            nodes: self.nodes as u8,
            workers: replication.workers as u16,
            model: self.model.parse().map_err(PointError::Setup)?,
            deployment,
            host_broadcast: self.deployment == AblationStep::BBroadcast,
            readings: readings.cluster,
        })
    }

    /// Runs it: `requests` of each node are measured, after a quarter as many that are not.
    pub fn run(&self, platform: &Platform, requests: u64, seed: u64) -> Result<PointFigures, PointError> {
        self.run_on(&self.spec(platform, Chosen::default())?, requests, seed)
    }

    /// Runs it, as [`run`](Self::run) does, on a cluster of `spec`.
    pub(super) fn run_on(&self, spec: &ClusterSpec, requests: u64, seed: u64) -> Result<PointFigures, PointError> {
        let mut cluster = ModelCluster::new(spec);
        let mut sums = match self.login {
            Some(login) => {
                let mut logins = Logins::new(login, self.hit, spec, requests, seed);
                cluster.run(&mut logins)?;
                logins.outcome()
            }
            None => {
                let mut ycsb = Ycsb::new(self, spec, requests, seed);
                cluster.run(&mut ycsb)?;
                ycsb.sums.outcome()
            }
        };
        (sums.busy, sums.events) = (cluster.busy(), cluster.events());
        Ok(sums)
    }
}

/// A seed for each node.
pub(super) fn node_seed(seed: u64, node: u8) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(node))
}

/// YCSB's operations, a generator for each node.
struct Ycsb {
    generators: Vec<Generator>,
    /// Requests that each node has yet to begin.
    left: Vec<u64>,
    /// Whether a node has none left: what the others do from then on is no load of the cluster's.
    ended: bool,
    measured: u64,
    scoped: bool,
    workers: usize,
    /// Writes since each worker's last PERSIST.
    unpersisted: Vec<u64>,
    sums: Sums,
}

/// What was measured.
#[derive(Default)]
struct Sums {
    writes: (u64, u64),
    communication: u64,
    reads: (u64, u64),
    first: Option<Ps>,
    last: Ps,
}

impl Ycsb {
    fn new(setup: &Setup, spec: &ClusterSpec, requests: u64, seed: u64) -> Self {
        let popularity = if setup.theta == 0.0 { Popularity::Uniform } else { Popularity::Zipfian(setup.theta) };
        let mix = Mix::writes(setup.writes.min(100) as u8);
        let generator = |node| Generator::with(mix, popularity, setup.records, requests, node_seed(seed, node));
        Self {
            generators: (0..spec.nodes).map(generator).collect(),
            left: vec![requests + requests / 4; usize::from(spec.nodes)],
            ended: false,
            measured: requests,
            scoped: spec.model.facts().scopes,
            workers: usize::from(spec.workers),
            unpersisted: vec![0; usize::from(spec.nodes) * usize::from(spec.workers)],
            sums: Sums::default(),
        }
    }
}

impl WorkerLoad for Ycsb {
    fn next(&mut self, node: u8, worker: u16) -> Option<WorkerAsk> {
        let number = usize::from(node) * self.workers + usize::from(worker);
        if self.scoped && self.unpersisted[number] == SCOPE {
            self.unpersisted[number] = 0;
            return Some(WorkerAsk::Persist);
        }
        let left = &mut self.left[usize::from(node)];
        let Some(fewer) = left.checked_sub(1) else {
            self.ended = true;
            return None;
        };
        *left = fewer;
        Some(match self.generators[usize::from(node)].draw() {
            YcsbOperation::Update(record) => {
                self.unpersisted[number] += 1;
                WorkerAsk::Write(record)
            }
            YcsbOperation::Read(record) => WorkerAsk::Read(record),
            // The mix has no others.
            YcsbOperation::Insert(record) | YcsbOperation::ReadModifyWrite(record) => WorkerAsk::Read(record),
            YcsbOperation::Scan { start, .. } => WorkerAsk::Read(start),
        })
    }

    fn done(&mut self, _: u8, _: u16, done: &WorkerDone) {
        // From when all nodes are warm until the first has ended.
        if self.ended || self.left.iter().any(|left| *left > self.measured) {
            return;
        }
        let sums = &mut self.sums;
        let begun = *sums.first.get_or_insert(done.at);
        sums.last = sums.last.max(done.at).max(begun);
        match done.ask {
            WorkerAsk::Write(_) => {
                sums.writes = (sums.writes.0 + 1, sums.writes.1 + done.latency.0);
                sums.communication += done.communication.0;
            }
            WorkerAsk::Read(_) => sums.reads = (sums.reads.0 + 1, sums.reads.1 + done.latency.0),
            WorkerAsk::Persist => {}
        }
    }
}

impl Sums {
    fn outcome(&self) -> PointFigures {
        let mean = |sum: u64, count: u64| if count == 0 { 0.0 } else { sum as f64 / count as f64 / 1e3 };
        let span = (self.last - self.first.unwrap_or_default()).as_secs().max(1e-12);
        PointFigures {
            write_ns: mean(self.writes.1, self.writes.0),
            communication_ns: mean(self.communication, self.writes.0),
            read_ns: mean(self.reads.1, self.reads.0),
            writes_per_s: self.writes.0 as f64 / span,
            reads_per_s: self.reads.0 as f64 / span,
            ..PointFigures::default()
        }
    }
}
