//! One point of a figure: what is run, and what came.

use remora_model::platform::Platform;
use remora_model::rack_world::{FabricSpec, RackSystem, RackWorldError, RackWorldSpec, run};
use remora_model::time::Ps;
use remora_rack::Mapping;
use serde::{Deserialize, Serialize};

use super::loads;

/// Bytes of a stream.
const STREAM: u64 = 16 << 20;
/// Traffic is counted in slices of so long (figure 13).
const SLICE: Ps = Ps(100_000_000_000);

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// A ring all-reduce.
    AllReduce,
    /// From each node to each.
    AllToAll,
    /// PageRank.
    PageRank,
    /// A breadth-first search.
    Search,
    /// An iteration of ResNet18's training.
    ResNet,
    /// An iteration of a language model's training.
    LanguageModel,
    /// Three mappers and a reducer.
    WordCount,
    /// A key-value cluster.
    KeyValue,
    /// There and back.
    PingPong,
    /// Streams.
    Streams,
}

/// What joins the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// ToR switches.
    Tor,
    /// The interconnect itself as a network: ToR switches with links as fast as that.
    Interconnect,
    /// DFabric.
    DFabric,
}

/// A mechanism that is off, or another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Without {
    /// The DRAM cache.
    Cache,
    /// More memory devices than one.
    MemoryPool,
    /// More NICs than one's own.
    NicPool,
    /// More subflows than one.
    Subflows,
    /// Subflows put together again.
    Resequencing,
    /// NICs chosen by what they have to send: a hash chooses.
    Depth,
    /// Queues polled at once: one after the other.
    PollingAtOnce,
    /// TCP without small queues: it has them.
    LargeQueues,
}

impl Without {
    /// In the order of table 4.
    pub const ALL: [Self; 8] = [
        Self::Cache,
        Self::MemoryPool,
        Self::NicPool,
        Self::Subflows,
        Self::Resequencing,
        Self::Depth,
        Self::PollingAtOnce,
        Self::LargeQueues,
    ];
}

/// All that a point depends on, beside the platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setup {
    /// What is run.
    pub run: Run,
    /// What joins the nodes.
    pub system: System,
    /// A NIC has this part of the interconnect's bandwidth.
    pub theta: u64,
    /// NICs of a node; of DFabric those of a pool, or 0 for one a node.
    pub nics: u64,
    /// NICs beyond those of a pool.
    pub added: u64,
    /// Bytes of a message.
    pub bytes: u64,
    /// Streams at once.
    pub streams: u64,
    /// Whether a pair of nodes is in one rack.
    pub within: bool,
    /// Whether a receiver copies nothing.
    pub uncopied: bool,
    /// What is off.
    pub without: Vec<Without>,
    /// The bandwidth of each memory device in Mb/s; 0 for the platform's.
    pub device_mbps: u64,
    /// Whether memory is as far as that of commercial devices behind two switches.
    pub commercial: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            run: Run::AllReduce,
            system: System::DFabric,
            theta: 1,
            nics: 0,
            added: 0,
            bytes: 4 << 20,
            streams: 1,
            within: false,
            uncopied: false,
            without: Vec::new(),
            device_mbps: 0,
            commercial: false,
        }
    }
}

/// What a point came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointFigures {
    /// Until all was done, and the part of it in which no program computed.
    pub seconds: f64,
    /// The part of it in which no program computed.
    pub communication: f64,
    /// Bytes that programs received.
    pub delivered: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Mean round trip in microseconds.
    pub round_trip_us: f64,
    /// Mb/s in each slice of 100 ms: within racks and between them.
    pub slices: Vec<(f64, f64)>,
    /// Packets dropped, and timeouts.
    pub dropped: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// What was busiest, and how busy.
    pub binding: (String, f64),
    /// Events that it took.
    pub events: u64,
}

impl Setup {
    /// Runs it.
    pub fn run(&self, platform: &Platform, seed: u64) -> Result<PointFigures, RackWorldError> {
        let lacks = |what| RackWorldError::Lacks(platform.name.clone(), what);
        let costs = platform.rack.as_ref().ok_or_else(|| lacks("racks that share memory and NICs"))?;
        let interconnect = platform.accel.as_ref().ok_or_else(|| lacks("CXL link"))?.bandwidth;
        let nodes = loads::nodes(platform);
        let programs = match self.run {
            Run::AllReduce => loads::all_reduce(nodes, self.bytes),
            Run::AllToAll => loads::all_to_all(nodes, self.bytes),
            Run::PageRank => loads::page_rank(nodes, costs, seed),
            Run::Search => loads::search(nodes, costs, seed),
            Run::ResNet => loads::resnet(nodes),
            Run::LanguageModel => loads::language_model(nodes),
            Run::WordCount => loads::word_count(nodes),
            Run::KeyValue => loads::key_value(nodes, self.bytes),
            Run::PingPong => loads::ping_pong(nodes, if self.within { 1 } else { nodes / 2 }, self.bytes),
            Run::Streams => loads::streams(nodes, self.streams as usize, self.within, STREAM),
        };
        let off = |what| self.without.contains(&what);
        let (system, theta) = match self.system {
            System::Tor => (RackSystem::Baseline { nics: self.nics.max(1) }, self.theta),
            System::Interconnect => (RackSystem::Baseline { nics: 1 }, 1),
            System::DFabric => {
                let pool = if self.nics == 0 { nodes as u64 / 2 } else { self.nics };
                let nics = if off(Without::NicPool) { 1 } else { pool + self.added } as usize;
                let fabric = FabricSpec {
                    mapping: if off(Without::Depth) { Mapping::Static } else { Mapping::Depth },
                    subflows: u16::from(off(Without::Subflows)),
                    resequenced: !off(Without::Resequencing),
                    cached: !off(Without::Cache),
                    devices: u64::from(off(Without::MemoryPool)),
                    device_share: match self.device_mbps {
                        0 => 1.0,
                        mbps => mbps as f64 * 125e3 / costs.device_bandwidth,
                    },
                    polls_at_once: !off(Without::PollingAtOnce),
                    read: self.commercial.then_some(Ps(costs.commercial)),
                    hops: u64::from(self.commercial),
                    ..FabricSpec::whole(nics)
                };
                (RackSystem::Fabric(fabric), self.theta)
            }
        };
        let spec = RackWorldSpec {
            // The baseline's kernel is as it is everywhere.
            small_queues: !matches!(system, RackSystem::Fabric(_)) || off(Without::LargeQueues),
            system,
            nic_bytes_per_s: interconnect / theta.max(1) as f64,
            programs,
            receive_copied: !self.uncopied,
            slice: SLICE,
        };
        let came = run(platform, &spec)?;
        let slice = |bytes: u64| bytes as f64 * 8.0 / SLICE.as_secs() / 1e6;
        let pings = came.marks.first().map_or(&[][..], |marks| marks);
        let trips = pings.len().saturating_sub(1).max(1) as f64;
        let span = pings.last().copied().unwrap_or_default() - pings.first().copied().unwrap_or_default();
        Ok(PointFigures {
            seconds: came.end.as_secs(),
            communication: (came.end - came.computed).as_secs(),
            delivered: came.delivered,
            requests: if self.run == Run::KeyValue { loads::requests(nodes) } else { 0 },
            round_trip_us: span.as_ns() / 1e3 / trips,
            slices: came.slices.iter().map(|&(within, between)| (slice(within), slice(between))).collect(),
            dropped: came.dropped,
            timeouts: came.timeouts,
            binding: came.binding,
            events: came.events,
        })
    }
}
