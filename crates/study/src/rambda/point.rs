//! One point of a figure: what is run, and what came.

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use remora_model::component::device_writes::{Destination, DeviceWrites};
use remora_model::component::memory::MemoryChannels;
use remora_model::component::nic_cores::{NicCoreParams, NicCores};
use remora_model::platform::Platform;
use remora_model::ring_server::transaction::{self, Replicator, Transaction};
use remora_model::ring_server::{
    self, AccelSpec, ApplicationMemory, Feed, HostMemory, NetworkSpec, Notification, RingFigures, RingServerError,
    RingServerSpec, ThreadSpec, Unit,
};
use remora_model::time::Ps;
use serde::{Deserialize, Serialize};

use super::loads::{Rows, Store, Walks};
use crate::workload::below;

/// Accesses of a request to a card's core (figure 1), bytes of each of its buffers, and requests of a point.
const CARD_ACCESSES: u64 = 100;
const CARD_BUFFER: u64 = 1 << 30;
const CARD_REQUESTS: u64 = 300;
/// The device's writes of figure 5: bytes a second, bytes of the buffer that they are spread over (which the text does not
/// say), and lines of a point.
const DEVICE_RATE: f64 = 3.5e9;
const DEVICE_BUFFER: u64 = 1 << 20;
const DEVICE_LINES: u64 = 200_000;
/// Rings of the microbenchmark, and requests under way in each.
const RINGS: usize = 16;
const RING_WINDOW: u32 = 32;
/// Clients of the store, and requests that each has under way where they are not those of a batch.
const CLIENTS: usize = 10;
const CLIENT_WINDOW: u32 = 32;
/// Requests of a point.
const REQUESTS: u64 = 20_000;
/// Queries of a point.
const QUERIES: u64 = 3_000;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// A core of the card reads its own memory and the host's.
    CardAccesses,
    /// A device writes to the host at random.
    DeviceWrites,
    /// Walks of a list, asked for from the other socket.
    List,
    /// GETs and PUTs of a key-value store, over the network.
    Store,
    /// Replicated transactions.
    Transaction,
    /// Reduction of embedding rows.
    Rows,
}

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Host cores.
    Host,
    /// The card's cores, with a part of the host's memory on the card.
    Card,
    /// The card's cores, with all on the card.
    CardAlone,
    /// The accelerator.
    Accelerator,
    /// The accelerator, which polls.
    PollingAccelerator,
    /// The accelerator behind CXL.
    CxlAccelerator,
    /// The accelerator with DDR of its own (LD).
    DdrAccelerator,
    /// The accelerator with HBM of its own (LH).
    HbmAccelerator,
}

/// All that a point depends on, beside the platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setup {
    /// What is run.
    pub run: Run,
    /// Who serves.
    pub server: Server,
    /// Threads of a host or card.
    pub threads: u64,
    /// Requests taken at once, or replies for which a doorbell is rung.
    pub batch: u64,
    /// Requests under way of each client; 0 is a batch.
    pub window: u64,
    /// Per cent of accesses that go to the host's memory.
    pub host_share: u64,
    /// Whether the processor puts devices' writes into its cache.
    pub ddio: bool,
    /// Whether packets ask for that.
    pub hint: bool,
    /// Whether the host's memory is persistent.
    pub persistent: bool,
    /// Whether keys are zipfian.
    pub zipfian: bool,
    /// Per cent of PUTs.
    pub puts: u64,
    /// Keys that a transaction reads.
    pub reads: u64,
    /// Keys that it writes.
    pub writes: u64,
    /// Bytes of a value.
    pub bytes: u64,
    /// Mean items of a query.
    pub items: u64,
    /// Whether sums of groups are memoized.
    pub memoized: bool,
    /// Queries that the accelerator works on at once; 0 is as many as fit.
    pub outstanding: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            run: Run::Store,
            server: Server::Host,
            threads: 10,
            batch: 32,
            window: 0,
            host_share: 0,
            ddio: false,
            hint: false,
            persistent: false,
            zipfian: false,
            puts: 0,
            reads: 0,
            writes: 1,
            bytes: 64,
            items: 45,
            memoized: false,
            outstanding: 0,
        }
    }
}

/// What a point came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointFigures {
    /// Operations a second.
    pub per_s: f64,
    /// Mean latency in nanoseconds.
    pub mean_ns: f64,
    /// The 99th percentile.
    pub p99_ns: f64,
    /// Bytes that memory read and wrote in a second.
    pub memory_bytes_per_s: (f64, f64),
    /// Power of what serves and of the rest of the server.
    pub watts: f64,
    /// What was busiest, and how busy.
    pub binding: (String, f64),
    /// Bytes that persistent media wrote for each that they were given.
    pub amplification: Option<f64>,
    /// Events that it took.
    pub events: u64,
}

impl Setup {
    /// Runs it.
    pub fn run(&self, platform: &Platform, seed: u64) -> Result<PointFigures, RingServerError> {
        match self.run {
            Run::CardAccesses => self.card_accesses(platform, seed),
            Run::DeviceWrites => Ok(self.device_writes(platform, seed)),
            Run::Transaction => self.transaction(platform),
            Run::List | Run::Store | Run::Rows => {
                let spec = self.spec(platform, seed)?;
                let figures = match self.run {
                    Run::List => ring_server::run(platform, &spec, &mut Walks::new(seed))?,
                    Run::Rows => {
                        let wide = matches!(self.server, Server::Host);
                        ring_server::run(platform, &spec, &mut Rows::new(self.items, self.memoized, wide, seed))?
                    }
                    _ => ring_server::run(platform, &spec, &mut Store::new(platform, self.zipfian, self.puts, seed))?,
                };
                Ok(self.figures(platform, &figures))
            }
        }
    }

    fn spec(&self, platform: &Platform, seed: u64) -> Result<RingServerSpec, RingServerError> {
        let lacks = || RingServerError::Lacks(platform.name.clone(), "server of rings");
        let costs = platform.ring_server.as_ref().ok_or_else(lacks)?;
        let threads = ThreadSpec {
            threads: self.threads as usize,
            batch: self.batch as usize,
            misses: if self.run == Run::Rows { costs.row_lines as usize } else { 0 },
            cache_bytes: 0,
            cached_bytes: 0,
            disturbed: self.run == Run::Store,
        };
        let accelerator = |memory, notification| {
            let outstanding = self.outstanding as usize;
            Unit::Accelerator(AccelSpec { memory, notification, doorbell_batch: self.batch as u32, outstanding })
        };
        let unit = match self.server {
            Server::Host => Unit::Host(threads),
            Server::Card => Unit::Card(ThreadSpec {
                cache_bytes: costs.card_cache / Store::SCALE,
                cached_bytes: Store::TOGETHER,
                ..threads
            }),
            Server::CardAlone => Unit::Card(threads),
            Server::Accelerator => accelerator(ApplicationMemory::Host, Notification::Cpoll),
            Server::PollingAccelerator => accelerator(ApplicationMemory::Host, Notification::Polling),
            Server::CxlAccelerator => accelerator(ApplicationMemory::HostByCxl, Notification::Cpoll),
            Server::DdrAccelerator => accelerator(ApplicationMemory::LocalDdr, Notification::Cpoll),
            Server::HbmAccelerator => accelerator(ApplicationMemory::LocalHbm, Notification::Cpoll),
        };
        let threaded = matches!(self.server, Server::Host | Server::Card | Server::CardAlone);
        let feed = match self.run {
            Run::Store => {
                // Threads are fed by batches; the accelerator takes what comes.
                let window = match self.window {
                    0 if threaded => self.batch as u32,
                    0 => CLIENT_WINDOW,
                    window => window as u32,
                };
                Feed::Network(NetworkSpec { clients: CLIENTS, window, together: threaded })
            }
            _ => Feed::Socket { rings: RINGS, window: RING_WINDOW },
        };
        let memory = if self.persistent { HostMemory::Persistent } else { HostMemory::Dram };
        // The hint goes with packets to DRAM only; the processor's own setting is off unless it is always on.
        let past_cache = self.persistent && !self.ddio;
        let requests = if self.run == Run::Rows { QUERIES } else { REQUESTS };
        Ok(RingServerSpec { unit, feed, memory, past_cache, requests, seed })
    }

    fn figures(&self, platform: &Platform, figures: &RingFigures) -> PointFigures {
        let (latencies, ns) = (&figures.latencies, |ps: u64| ps as f64 / 1e3);
        let mean = latencies.iter().map(|&ps| ns(ps)).sum::<f64>() / latencies.len().max(1) as f64;
        PointFigures {
            per_s: figures.per_s,
            mean_ns: mean,
            p99_ns: latencies.get(latencies.len() * 99 / 100).map_or(0.0, |&ps| ns(ps)),
            watts: self.watts(platform),
            binding: figures.binding.clone(),
            amplification: figures.amplification,
            events: figures.events,
            ..PointFigures::default()
        }
    }

    /// Power of what serves at full load, and of the rest of the server.
    fn watts(&self, platform: &Platform) -> f64 {
        let (Some(power), Some(costs)) = (&platform.power, &platform.ring_server) else { return 0.0 };
        let serves = match self.server {
            Server::Host => power.host_active,
            Server::Card | Server::CardAlone => power.nic_active,
            // One core polls completions.
            _ => power.accel_active + power.host_active / platform.host.cores as f64,
        };
        serves + costs.rest_power
    }

    /// A core of the card reads lines one after the other, some of its own memory and some of the host's.
    fn card_accesses(&self, platform: &Platform, seed: u64) -> Result<PointFigures, RingServerError> {
        let lacks = || RingServerError::Lacks(platform.name.clone(), "cores on its NIC");
        let card = platform.nic_cores.as_ref().ok_or_else(lacks)?;
        let mut card = NicCores::new(&NicCoreParams::new(card, &platform.host));
        let (mut rng, mut at) = (ChaCha8Rng::seed_from_u64(seed), Ps::ZERO);
        let mut latencies = Vec::new();
        for _ in 0..CARD_REQUESTS {
            let begun = at;
            for access in 0..CARD_ACCESSES {
                let to_host = (access + 1) * self.host_share / CARD_ACCESSES > access * self.host_share / CARD_ACCESSES;
                at = match to_host {
                    true => card.host_read(at).1,
                    false => card.load(at, below(&mut rng, CARD_BUFFER / 64) * 64, 64),
                };
            }
            latencies.push((at - begun).0);
        }
        latencies.sort_unstable();
        let per_s = CARD_REQUESTS as f64 / at.as_secs();
        let events = CARD_REQUESTS * CARD_ACCESSES;
        Ok(self.figures(platform, &RingFigures { per_s, latencies, events, ..RingFigures::default() }))
    }

    /// A device writes lines at random to DRAM.
    fn device_writes(&self, platform: &Platform, seed: u64) -> PointFigures {
        let ways = platform.ring_server.as_ref().map_or(1, |costs| costs.ddio_ways);
        let mut cache = DeviceWrites::new(&platform.cache, ways);
        let mut dram = MemoryChannels::new(&(&platform.dram).into());
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let to = Destination::of(self.ddio, self.hint);
        let line = Ps::transfer(64, DEVICE_RATE);
        let mut bytes = 0;
        for n in 0..DEVICE_LINES {
            let address = below(&mut rng, DEVICE_BUFFER / 64) * 64;
            cache.write(line * n, (address, 64), to, &mut dram);
            bytes = dram.bytes();
        }
        let seconds = (line * DEVICE_LINES).as_secs();
        // Past the cache a line is read for each that is written; what the cache evicts is written alone.
        let (reads, writes) = if to == Destination::Memory { (bytes / 2, bytes / 2) } else { (0, bytes) };
        PointFigures {
            per_s: DEVICE_LINES as f64 / seconds,
            memory_bytes_per_s: (reads as f64 / seconds, writes as f64 / seconds),
            events: DEVICE_LINES,
            ..PointFigures::default()
        }
    }

    fn transaction(&self, platform: &Platform) -> Result<PointFigures, RingServerError> {
        let by = match self.server {
            Server::Card | Server::CardAlone | Server::Host => Replicator::GroupVerbs,
            _ => Replicator::Accelerators,
        };
        let what = Transaction { reads: self.reads, writes: self.writes, bytes: self.bytes };
        let lacks = || RingServerError::Lacks(platform.name.clone(), "persistent memory and who replicates it");
        let latency = transaction::latency(platform, by, what).ok_or_else(lacks)?.as_ns();
        Ok(PointFigures {
            per_s: 1e9 / latency,
            mean_ns: latency,
            p99_ns: latency,
            events: 1,
            ..PointFigures::default()
        })
    }
}
