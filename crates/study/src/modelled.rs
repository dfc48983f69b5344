//! Calls against modelled hardware: a store loaded into a modelled node, and a closed loop in modelled time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use remora_kernel::{Kernel, Placement};
use remora_lab::stats::Latencies;
use remora_lab::writer::{WriterConfig, fill_object};
use remora_memory::Region;
use remora_model::resource::Usage;
use remora_model::time::Ps;
use remora_model::world::{Counts, Done, Energy, Pair, PairSpec, WorldError, Writer};
use remora_real::{LinkKind, RemoteRegion};
use remora_service::{CallKind, Choice, Full, MAX_CALLS, Placer, Placing, Ticket, is_result};
use serde::{Deserialize, Serialize};

use crate::StudyError;
use crate::auto::{Chooser, Traced};
use crate::calling::{Calling, Calls};
use crate::connection::{CallAnswer, Caller, Storage};
use crate::load::{self, Trouble, Until};

/// Part of the calls of a measurement that come before it, unmeasured.
const WARM_UP: u64 = 6;
/// Calls before a measurement at chosen places, in parts of those of it.
const LEARNING: u64 = 8;

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

/// How calls come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offered {
    /// So many under way at once: the next starts when one ends.
    InFlight(u32),
    /// So many a second, independently of each other and of what is under way; of these never more than some.
    Arriving {
        /// Calls a second.
        per_s: f64,
        /// Calls under way at most; others wait, and their latency counts.
        slots: u32,
        /// When they come.
        seed: u64,
    },
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
    /// The 99.9th.
    #[serde(default)]
    pub p999_ns: u64,
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
    /// Calls came at a rate, and more of them than ended: latencies say how long one looked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fell_behind: bool,
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
    /// Who chooses places, among those that calls can go to.
    placer: Option<Placer>,
    /// The ticket of each timed call, by its tag.
    tickets: Vec<Option<Ticket>>,
    under_way: usize,
    auto: Option<u64>,
    /// Who chooses when the node does not, or does: the one that is not [`placer`](Self::placer) now.
    other: Option<Placer>,
    /// The node chooses between its NIC and its host.
    by_node: bool,
}

impl Modelled {
    /// A pair that serves calls in one placement.
    pub fn new(spec: &PairSpec, placement: Placement) -> Result<Self, ModelError> {
        let pair = Pair::new(&spec.clone().serving(placement))?;
        Ok(Self::of(pair, placement))
    }

    /// A pair that serves one kernel of the user's, by its op-code, in one placement.
    pub fn with_kernel<K: Kernel + Clone + 'static>(
        spec: &PairSpec,
        placement: Placement,
        (kernel, op): (K, u64),
    ) -> Result<Self, ModelError> {
        let pair = Pair::with_kernels(&spec.clone().serving(placement), kernel, &[op])?;
        Ok(Self::of(pair, placement))
    }

    fn of(pair: Pair, placement: Placement) -> Self {
        let (regions, tickets) = (HashMap::new(), vec![None; MAX_CALLS]);
        Self { pair, placement, regions, placer: None, tickets, under_way: 0, auto: None, other: None, by_node: false }
    }

    /// Leaves the choice between NIC and host to the node from now on, or no longer: a client that chooses has then itself and
    /// the NIC.
    fn leave_to_node(&mut self, by_node: bool) {
        if self.by_node != by_node {
            self.by_node = by_node;
            std::mem::swap(&mut self.placer, &mut self.other);
        }
        if by_node && self.placer.is_none() {
            self.pair.place_calls(Placing::Auto);
        }
    }

    /// Chooses the place of each call from now on, among some that a node serves at once; calls are of this class.
    pub fn choose(&mut self, places: &[Placement], class: u64) -> Result<(), ModelError> {
        if self.placer.is_none() {
            self.placer = Some(Placer::new(places, 1));
        }
        // Calls to the host come by another way than those to the NIC or the accelerator.
        let served = places.iter().copied().find(|place| matches!(place, Placement::Nic | Placement::Accelerator));
        self.place(served.unwrap_or(Placement::Host))?;
        self.auto = Some(class);
        Ok(())
    }

    /// Serves calls in another placement from now on; none may be under way.
    pub fn place(&mut self, placement: Placement) -> Result<(), ModelError> {
        (self.placement, self.auto) = (placement, None);
        Ok(self.pair.serve(placement)?)
    }

    /// The pair.
    pub fn pair(&mut self) -> &mut Pair {
        &mut self.pair
    }

    /// The region of a place in the store.
    pub fn region(&self, key: u32) -> Option<Arc<Region>> {
        self.regions.get(&key).cloned()
    }

    /// Runs `count` calls, one after the other.
    pub fn run_in_order(&mut self, calls: &mut dyn Calls, count: u64) -> Result<(), ModelError> {
        let placement = self.placement;
        Calling::new(self, calls, placement).run(1, Until::Begun(count), &mut |_, _, _| {}, &|| false).map(drop)
    }

    /// Runs `count` calls with `in_flight` of them under way at once, after some that are not measured.
    pub fn measure(
        &mut self,
        calls: &mut dyn Calls,
        in_flight: u32,
        count: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Measured, ModelError> {
        self.measure_load(calls, Offered::InFlight(in_flight), count, stop)
    }

    /// Runs `count` calls as they come, after some that are not measured. Of a closed loop as many are under way from the first
    /// of them to the last, so that rate and latency are those of that many; what has begun by then ends unmeasured.
    pub fn measure_load(
        &mut self,
        calls: &mut dyn Calls,
        offered: Offered,
        count: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Measured, ModelError> {
        let (placement, auto) = (self.placement, self.auto);
        let warm_up = match offered {
            // Who chooses has to learn first.
            _ if auto.is_some() => LEARNING * count,
            Offered::InFlight(under_way) => (count / WARM_UP).max(u64::from(under_way)),
            Offered::Arriving { .. } => count / WARM_UP,
        };
        match offered {
            Offered::InFlight(under_way) => {
                let calling = Calling::new(self, calls, placement).auto(auto);
                let (mut calling, mut turns) = calling.turns(under_way, Until::Over);
                let mut ended = 0;
                while ended < warm_up && turns.turn(&mut calling, &mut |_, _, _| ended += 1, stop)? {}
                let mut taken = calling.caller().count();
                while taken.latencies.count() < count
                    && turns.turn(&mut calling, &mut |more, since, at| taken.add(more, since, at), stop)?
                {
                }
                let measured = calling.caller().counted(&taken);
                turns.finish();
                while turns.turn(&mut calling, &mut |_, _, _| {}, stop)? {}
                Ok(measured)
            }
            Offered::Arriving { per_s, slots, seed } => {
                let mut run = |model: &mut Self, count, tally: &mut dyn FnMut(u64, Ps, Ps)| {
                    let mut arrivals = load::Arrivals::poisson(per_s, seed);
                    let calling = Calling::new(model, calls, placement).auto(auto);
                    let mut tally = |more, since, at| tally(more, since, at);
                    calling.run_open(&mut arrivals, slots, Until::Begun(count), &mut tally, stop)
                };
                run(self, warm_up, &mut |_, _, _| {})?;
                let (mut taken, mut times) = (self.count(), Vec::new());
                let mut tally = |more, since, at| {
                    taken.add(more, since, at);
                    times.push((since, at));
                };
                run(self, count, &mut tally)?;
                Ok(Measured { fell_behind: falls_behind(&times), ..self.counted(&taken) })
            }
        }
    }

    /// Begins to count.
    fn count(&mut self) -> Taken {
        self.pair.reset_usage();
        let (start, events, before) = (self.pair.now(), self.pair.events(), self.pair.counts());
        Taken { start, events, before, latencies: Latencies::new(), rereads: 0, sum: Ps::ZERO }
    }

    /// What it has come to.
    fn counted(&self, taken: &Taken) -> Measured {
        let Taken { start, events, before, latencies, rereads, sum } = taken;
        let (span, counts) = (self.pair.now() - *start, self.pair.counts());
        let per_op = |total: f64| total / latencies.count().max(1) as f64;
        let usage = usage(&self.pair);
        let binding = usage.iter().max_by(|a, b| a.busy.total_cmp(&b.busy)).cloned();
        Measured {
            verified: latencies.count(),
            ops_per_s: latencies.count() as f64 / span.as_secs().max(1e-12),
            p1_ns: latencies.quantile(0.01),
            p50_ns: latencies.quantile(0.5),
            p99_ns: latencies.quantile(0.99),
            p999_ns: latencies.quantile(0.999),
            mean_ns: per_op(sum.as_ns()),
            round_trips_per_op: per_op((counts.round_trips - before.round_trips) as f64),
            wire_bytes_per_op: per_op((counts.wire_bytes - before.wire_bytes) as f64),
            rereads_per_op: per_op(*rereads as f64),
            binding: binding.as_ref().map(|b| b.name.clone()).unwrap_or_default(),
            binding_busy: binding.map_or(0.0, |b| b.busy),
            usage,
            joules_per_op: self
                .pair
                .energy(u64::from(self.placement == Placement::Host))
                .map(|Energy { client, node }| per_op(client + node)),
            events: self.pair.events() - events,
            fell_behind: false,
        }
    }
}

/// Of the calls that come while the later half of all do, so many may be left waiting beyond those that were before; and so many
/// in any case.
const LEFT: f64 = 0.1;
const LEFT_LEAST: f64 = 10.0;

/// Whether of calls that came and ended at these times ever more waited.
fn falls_behind(times: &[(Ps, Ps)]) -> bool {
    let mut came: Vec<Ps> = times.iter().map(|(since, _)| *since).collect();
    came.sort_unstable();
    let (Some(&last), Some(&half)) = (came.last(), came.get(came.len() / 2)) else { return false };
    let waiting = |at: Ps| times.iter().filter(|(since, end)| *since <= at && *end > at).count() as f64;
    waiting(last) - waiting(half) > (LEFT * came.len() as f64 / 2.0).max(LEFT_LEAST)
}

/// What is counted of calls from a time on.
struct Taken {
    start: Ps,
    events: u64,
    before: Counts,
    latencies: Latencies,
    rereads: u64,
    sum: Ps,
}

impl Taken {
    fn add(&mut self, rereads: u64, since: Ps, at: Ps) {
        self.latencies.record(load::duration(at - since));
        self.rereads += rereads;
        self.sum += at - since;
    }
}

/// How busy everything of client and node was.
pub fn usage(pair: &Pair) -> Vec<Busy> {
    let [client, node] = pair.usage();
    let of = |machine: &str, usage: Vec<Usage>| {
        let used = usage.into_iter().filter(|usage| usage.served > 0);
        // What was asked for before and served meanwhile is no more and no less, in the mean, than what is still to be served.
        let busy = |usage: Usage| Busy { name: format!("{machine} {}", usage.name), busy: usage.busy.min(1.0) };
        used.map(busy).collect::<Vec<_>>()
    };
    let mut all = of("client", client);
    all.extend(of("node", node));
    all
}

/// Nanoseconds of modelled time.
fn ns(at: Ps) -> u64 {
    at.0 / 1000
}

impl Traced for Modelled {
    fn serve(&mut self, who: Chooser, places: &[Placement]) -> Result<bool, ModelError> {
        let has_both = [Placement::Nic, Placement::Host].iter().all(|place| places.contains(place));
        self.leave_to_node(who == Chooser::Node && has_both);
        match who {
            Chooser::Place(place) => self.place(place)?,
            Chooser::Client => self.choose(places, u64::MAX)?,
            Chooser::Node if !has_both => return Ok(false),
            Chooser::Node => {
                let here = |place: &Placement| matches!(place, Placement::Client | Placement::Nic);
                let places: Vec<_> = places.iter().copied().filter(here).collect();
                self.choose(&places, u64::MAX)?;
            }
        }
        Ok(true)
    }

    fn cap_links(&mut self, part: f64) -> bool {
        self.pair.cap_links(part);
        true
    }
}

impl Caller for Modelled {
    type Error = ModelError;

    fn now(&self) -> Ps {
        self.pair.now()
    }

    /// Modelled time goes on only when something happens.
    fn patience(&self) -> Duration {
        Duration::MAX
    }

    fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        self.pair.submit(placement, op, params, tag).map_err(|_| Full)?;
        self.under_way += 1;
        Ok(())
    }

    fn submit_auto(&mut self, (op, class): (u64, u64), params: &[u8], tag: u32) -> Result<Placement, Full> {
        let Some(placer) = &mut self.placer else {
            return self.submit(self.placement, op, params, tag).map(|()| self.placement);
        };
        let pair = &self.pair;
        let Choice { placement, ticket } = placer.choose(CallKind { op, class }, self.under_way, || ns(pair.now()));
        let submitted = match self.by_node && placement == Placement::Nic {
            true => {
                let left = self.pair.submit_anywhere(op, params, tag).map_err(|_| Full);
                self.under_way += usize::from(left.is_ok());
                left
            }
            false => self.submit(placement, op, params, tag),
        };
        match (&submitted, ticket) {
            (Ok(()), _) => self.tickets[tag as usize % MAX_CALLS] = ticket,
            (Err(_), Some(ticket)) => self.placer.iter_mut().for_each(|placer| placer.cancelled(ticket)),
            (Err(_), None) => {}
        }
        submitted.map(|()| placement)
    }

    fn placer(&mut self) -> Option<&mut Placer> {
        self.placer.as_mut()
    }

    fn poll(&mut self, done: &mut dyn FnMut(CallAnswer<'_>)) -> Result<bool, ModelError> {
        self.poll_until(Ps::MAX, done)
    }

    fn poll_until(&mut self, until: Ps, done: &mut dyn FnMut(CallAnswer<'_>)) -> Result<bool, ModelError> {
        let Self { placer, tickets, under_way, .. } = self;
        let mut answer = |Done { tag, status, reply, at, .. }: Done<'_>| {
            *under_way = under_way.saturating_sub(1);
            if let Some(ticket) = tickets.get_mut(tag as usize).and_then(Option::take)
                && let Some(placer) = placer
            {
                placer.ended(ticket, ns(at), is_result(status));
            }
            done(CallAnswer { tag, status, reply, at: Some(at) });
        };
        Ok(self.pair.poll_until(until, &mut answer)?)
    }

    fn refused(&self, _: Placement) -> ModelError {
        ModelError::Still(MAX_CALLS as u32)
    }

    fn trouble(&self, placement: Placement, trouble: Trouble) -> ModelError {
        ModelError::of(placement, trouble)
    }
}

impl Storage for Modelled {
    fn link(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn alloc(&mut self, len: u64) -> Result<RemoteRegion, StudyError> {
        let region = self.pair.alloc(len.max(8))?;
        let remote = RemoteRegion { va: region.va(), key: region.key(), len };
        self.regions.insert(remote.key, region);
        Ok(remote)
    }

    fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), StudyError> {
        let failed = |what: String| StudyError::Target(remora_real::Error::Argument(what));
        let known = self.region(region.key).ok_or_else(|| failed("no such region in the model".into()))?;
        known.write(region.va + offset, data).map_err(|e| failed(e.to_string()))
    }

    /// Lets a writer rewrite the objects of a region in turn. A core writes a line in the time of a cache hit.
    fn start_writer(&mut self, region: &RemoteRegion, config: &WriterConfig) -> Result<(), StudyError> {
        let Some(region) = self.region(region.key) else { return Ok(()) };
        let WriterConfig { object_size, objects, updates_per_s } = *config;
        let line = self.pair.spec().node.cache.latency;
        let spread = Ps(u64::from(object_size).div_ceil(64) * line);
        let every = match updates_per_s {
            0 => spread,
            rate => Ps(1_000_000_000_000 / u64::from(rate)),
        };
        let size = (object_size as usize, u64::from(objects));
        let writer = Writer::steady(region, size, fill_object, (every, spread), self.pair.now());
        self.pair.set_writer(Some(writer));
        Ok(())
    }

    /// What it has written is not counted.
    fn stop_writer(&mut self) -> Result<u64, StudyError> {
        self.pair.set_writer(None);
        Ok(0)
    }
}
