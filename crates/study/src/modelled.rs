//! Calls against modelled hardware: a store loaded into a modelled node, and a closed loop in modelled time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use remora_kernel::{Kernel, Status};
use remora_lab::stats::Latencies;
use remora_memory::Region;
use remora_model::resource::Usage;
use remora_model::time::Ps;
use remora_model::world::{Energy, Pair, PairSpec, WorldError, Writer};
use remora_real::{RemoteRegion, WriterConfig, fill_object};
use remora_service::Full;
use serde::{Deserialize, Serialize};

use crate::load::Trouble;
use crate::measure::Counts;
use crate::run::{Calls, Outcome};
use crate::target::Target;
use remora_kernel::Placement;
use remora_real::LinkKind;

/// Part of the calls of a measurement that come before it, unmeasured.
const WARM_UP: u64 = 6;

/// Why a modelled run ended early.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The world cannot go on.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A result was not what it had to be.
    #[error("wrong result in the model at the {placement:?}: {what}")]
    Wrong {
        /// Where the kernel ran.
        placement: Placement,
        /// What came, and what should have.
        what: String,
    },
    /// Nothing is left to happen, though calls are under way.
    #[error("the model stands still with {0} calls under way: a packet was lost, or a kernel waits for nothing")]
    Still(u32),
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

impl ModelError {
    /// What ended a loop of calls in a placement.
    pub(crate) fn of(placement: Placement, trouble: Trouble) -> Self {
        match trouble {
            Trouble::Wrong(what) => Self::Wrong { placement, what },
            Trouble::Still(under_way) => Self::Still(under_way),
            // Modelled time goes on only with events; calls that are made again for ever are no progress either.
            Trouble::Stuck(_) => Self::Still(0),
            Trouble::Interrupted => Self::Interrupted,
        }
    }
}

/// What came of a modelled measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Operations done, each verified.
    pub verified: u64,
    /// Operations a second of modelled time.
    pub ops_per_s: f64,
    /// The 1st percentile of latency.
    pub p1_ns: u64,
    /// The median latency.
    pub p50_ns: u64,
    /// The 99th percentile of latency.
    pub p99_ns: u64,
    /// The mean latency.
    pub mean_ns: f64,
    /// Requests that waited for the network.
    pub round_trips_per_op: f64,
    /// Bytes of Ethernet frames with their gaps, both ways.
    pub wire_bytes_per_op: f64,
    /// Reads of an object beyond the first.
    pub rereads_per_op: f64,
    /// What was busiest, and for which part of its time.
    pub binding: String,
    /// That part.
    pub binding_busy: f64,
    /// How busy everything was.
    pub usage: Vec<Busy>,
    /// Joules of client and node for each operation, if the platform says what power they take.
    pub joules_per_op: Option<f64>,
    /// Events that it took.
    pub events: u64,
}

/// How busy something was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// What: `node NIC transmit`.
    pub name: String,
    /// The part of its time.
    pub busy: f64,
}

/// A pair of modelled machines that a store can be loaded into.
pub struct Modelled {
    pair: Pair,
    placement: Placement,
    regions: HashMap<u32, Arc<Region>>,
}

impl Modelled {
    /// A pair that serves calls in one placement.
    pub fn new(spec: &PairSpec, placement: Placement) -> Result<Self, ModelError> {
        let pair = Pair::new(&spec.clone().serving(placement))?;
        Ok(Self { pair, placement, regions: HashMap::new() })
    }

    /// The same with one kernel of the user's, by its op-code.
    pub fn with_kernel<K: Kernel + Clone + 'static>(
        spec: &PairSpec,
        placement: Placement,
        (kernel, op): (K, u64),
    ) -> Result<Self, ModelError> {
        let pair = Pair::with_kernels(&spec.clone().serving(placement), kernel, &[op])?;
        Ok(Self { pair, placement, regions: HashMap::new() })
    }

    /// Serves calls in another placement from now on; none may be under way.
    pub fn place(&mut self, placement: Placement) {
        self.placement = placement;
        self.pair.serve(placement);
    }

    /// Nobody changes the node's memory any more.
    pub fn stop_writing(&mut self) {
        self.pair.set_writer(None);
    }

    /// The pair.
    pub fn pair(&mut self) -> &mut Pair {
        &mut self.pair
    }

    /// The region of a place in the store.
    pub fn region(&self, key: u32) -> Option<Arc<Region>> {
        self.regions.get(&key).cloned()
    }

    /// Lets a writer rewrite `objects` objects of a region in turn, `updates_per_s` a second in all (0: as fast as a
    /// core can). A core writes a line in the time of a cache hit.
    pub fn start_writer(&mut self, key: u32, (object, objects): (u32, u32), updates_per_s: u32) {
        let Some(region) = self.region(key) else { return };
        let line = self.pair.spec().node.cache.latency;
        let spread = Ps(u64::from(object).div_ceil(64) * line);
        let every = match updates_per_s {
            0 => spread,
            rate => Ps(1_000_000_000_000 / u64::from(rate)),
        };
        let size = (object as usize, u64::from(objects));
        let writer = Writer::steady(region, size, fill_object, (every, spread), self.pair.now());
        self.pair.set_writer(Some(writer));
    }

    /// Runs `count` calls, one after the other.
    pub fn run_in_order(&mut self, calls: &mut dyn Calls, count: u64) -> Result<(), ModelError> {
        self.run(calls, 1, count, &|| false).map(|_| ())
    }

    /// Runs `count` calls with `in_flight` of them under way at once, after some that are not measured.
    pub fn measure(
        &mut self,
        calls: &mut dyn Calls,
        in_flight: u32,
        count: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Measured, ModelError> {
        self.run(calls, in_flight, (count / WARM_UP).max(u64::from(in_flight)), stop)?;
        self.pair.reset_usage();
        let (start, events, before) = (self.pair.now(), self.pair.events(), self.pair.counts());
        let (latencies, rereads, sum) = self.run(calls, in_flight, count, stop)?;
        let span = self.pair.now() - start;
        let counts = self.pair.counts();
        let per_op = |total: f64| total / latencies.count().max(1) as f64;
        let usage = usage(&self.pair);
        let binding = usage.iter().max_by(|a, b| a.busy.total_cmp(&b.busy)).cloned();
        Ok(Measured {
            verified: latencies.count(),
            ops_per_s: latencies.count() as f64 / span.as_secs().max(1e-12),
            p1_ns: latencies.quantile(0.01),
            p50_ns: latencies.quantile(0.5),
            p99_ns: latencies.quantile(0.99),
            mean_ns: per_op(sum.as_ns()),
            round_trips_per_op: per_op((counts.round_trips - before.round_trips) as f64),
            wire_bytes_per_op: per_op((counts.wire_bytes - before.wire_bytes) as f64),
            rereads_per_op: per_op(rereads as f64),
            binding: binding.as_ref().map(|b| b.name.clone()).unwrap_or_default(),
            binding_busy: binding.map_or(0.0, |b| b.busy),
            usage,
            joules_per_op: self.pair.energy().map(|Energy { client, node }| per_op(client + node)),
            events: self.pair.events() - events,
        })
    }

    /// A closed loop: as soon as a call ends, the next one begins.
    fn run(
        &mut self,
        calls: &mut dyn Calls,
        in_flight: u32,
        count: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Latencies, u64, Ps), ModelError> {
        let (mut latencies, mut rereads, mut sum) = (Latencies::new(), 0, Ps::ZERO);
        let mut ids = vec![(0u64, Ps::ZERO); in_flight as usize];
        let mut ready: Vec<(u32, bool)> = (0..in_flight).rev().map(|tag| (tag, true)).collect();
        let (mut begun, mut params, mut under_way, mut turns) = (0, Vec::new(), 0u32, 0u32);
        while begun < count || under_way > 0 {
            while let Some((tag, fresh)) = ready.pop_if(|(_, fresh)| !*fresh || begun < count) {
                if fresh {
                    ids[tag as usize] = (calls.next(), Ps::ZERO);
                    begun += 1;
                }
                params.clear();
                calls.params(ids[tag as usize].0, &mut params);
                // No more are under way than a pair takes.
                let _ = self.pair.submit(self.placement, calls.op(), &params, tag);
                under_way += 1;
            }
            let mut wrong = None;
            let went_on = self.pair.poll(&mut |done| {
                under_way -= 1;
                let (id, spent) = &mut ids[done.tag as usize];
                *spent += done.latency;
                match calls.check(*id, done.status, done.reply) {
                    Ok(Outcome::Verified { rereads: more }) => {
                        latencies.record(Duration::from_nanos((spent.0 + 500) / 1000));
                        sum += *spent;
                        rereads += more;
                        ready.push((done.tag, true));
                    }
                    Ok(Outcome::GaveUp) => ready.push((done.tag, false)),
                    Err(what) => wrong = Some(what),
                }
            })?;
            if let Some(what) = wrong {
                return Err(ModelError::Wrong { placement: self.placement, what });
            }
            if !went_on {
                return Err(ModelError::Still(under_way));
            }
            turns += 1;
            if turns.is_multiple_of(1024) && stop() {
                return Err(ModelError::Interrupted);
            }
        }
        Ok((latencies, rereads, sum))
    }
}

/// How busy everything of client and node was.
pub fn usage(pair: &Pair) -> Vec<Busy> {
    let [client, node] = pair.hardware();
    let of = |machine: &str, usage: Vec<Usage>| {
        let used = usage.into_iter().filter(|usage| usage.served > 0);
        used.map(|usage| Busy { name: format!("{machine} {}", usage.name), busy: usage.busy }).collect::<Vec<_>>()
    };
    let mut all = of("client", client.usage(pair.now()));
    all.extend(of("node", node.usage(pair.now())));
    all
}

/// Loading only: what a store needs of a target.
impl Target for Modelled {
    fn link(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn submit(&mut self, _: Placement, _: u64, _: &[u8], _: u32) -> Result<(), Full> {
        Err(Full)
    }

    fn poll(&mut self, _: &mut dyn FnMut(u32, Status, &[u8])) -> Result<usize, remora_real::Error> {
        Ok(0)
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn node_cpu_ns(&mut self) -> Result<u64, remora_real::Error> {
        Ok(0)
    }

    fn alloc(&mut self, len: u64) -> Result<RemoteRegion, remora_real::Error> {
        let failed = |e: WorldError| remora_real::Error::Argument(e.to_string());
        let region = self.pair.alloc(len.max(8)).map_err(failed)?;
        let remote = RemoteRegion { va: region.va(), key: region.key(), len };
        self.regions.insert(remote.key, region);
        Ok(remote)
    }

    fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), remora_real::Error> {
        let failed = |what: String| remora_real::Error::Argument(what);
        let known = self.region(region.key).ok_or_else(|| failed("no such region in the model".into()))?;
        known.write(region.va + offset, data).map_err(|e| failed(e.to_string()))
    }

    fn start_writer(&mut self, _: &RemoteRegion, _: &WriterConfig) -> Result<(), remora_real::Error> {
        Ok(())
    }

    fn stop_writer(&mut self) -> Result<u64, remora_real::Error> {
        Ok(0)
    }
}
