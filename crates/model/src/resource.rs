//! Shared things and their queues, by reservation: whoever asks learns at once when he is served.
//!
//! `serve(at, work)` is asked at any moment for a request that arrives at `at`, and returns when its service starts and
//! ends. Requests are served in the order of asking, except that one that arrives earlier may use a time at which the
//! server is idle between reservations made before: a component may reserve the way back of a round trip while the
//! way there begins, without blocking what passes meanwhile. While requests are asked for in the order in which they
//! arrive, all this is a first-come-first-served queue.

mod order;
mod usage;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

pub use order::Order;
pub use usage::{Usage, binding};

use crate::time::Ps;
use order::Turns;
use usage::Meter;

/// Idle times between reservations that are remembered, of which the oldest are forgotten first. It takes as many as there may be
/// ahead of the present, or what comes now would wait behind what comes back later: reads of PCIe have up to 256 tags.
const GAPS: usize = 512;

/// The reservations of one server.
#[derive(Clone, Debug)]
struct Timeline {
    /// The end of the last reservation.
    free: Ps,
    /// Idle times before that, in order: start and end.
    gaps: VecDeque<(Ps, Ps)>,
}

impl Timeline {
    fn new() -> Self {
        Self { free: Ps::ZERO, gaps: VecDeque::new() }
    }

    /// The earliest start of `work` from `at` on, and the gap in which it lies.
    fn find(&self, at: Ps, work: Ps) -> (Ps, Option<usize>) {
        let mut found = (self.free.max(at), None);
        if at >= self.free {
            return found;
        }
        for (index, &(start, end)) in self.gaps.iter().enumerate().rev() {
            if end < at + work || end <= at {
                break;
            }
            let start = start.max(at);
            if start + work <= end {
                found = (start, Some(index));
            }
        }
        found
    }

    fn reserve(&mut self, start: Ps, work: Ps, gap: Option<usize>) {
        let end = start + work;
        let Some(index) = gap else {
            if start > self.free {
                self.gaps.push_back((self.free, start));
            }
            self.free = end;
            self.forget();
            return;
        };
        let (from, to) = self.gaps[index];
        match (from < start, end < to) {
            (false, false) => {
                self.gaps.remove(index);
            }
            (false, true) => self.gaps[index].0 = end,
            (true, false) => self.gaps[index].1 = start,
            (true, true) => {
                self.gaps[index].1 = start;
                self.gaps.insert(index + 1, (end, to));
                self.forget();
            }
        }
    }

    fn forget(&mut self) {
        if self.gaps.len() > GAPS {
            self.gaps.pop_front();
        }
    }
}

/// Equal slots behind one queue, such as cores.
#[derive(Clone, Debug)]
pub struct Server {
    slots: Vec<Timeline>,
    meter: Meter,
    turns: Turns,
}

impl Server {
    /// So many idle slots, at least one. Serving takes time in proportion to them: for hundreds there is [`Pool`].
    pub fn new(slots: usize) -> Self {
        let slots = (0..slots.max(1)).map(|_| Timeline::new()).collect();
        Self { slots, meter: Meter::default(), turns: Turns::default() }
    }

    /// The same, serving in this order.
    pub fn ordered(self, order: Order) -> Self {
        Self { turns: order.into(), ..self }
    }

    /// Serves a request that arrives at `at` and takes `work`: start and end.
    pub fn serve(&mut self, at: Ps, work: Ps) -> (Ps, Ps) {
        let (slot, mut start, gap) = self.find(at, work);
        if self.turns.lets_by(at, start, gap.is_some()) {
            // Its own place stays free for who comes next.
            start += work;
        }
        self.slots[slot].reserve(start, work, gap);
        self.meter.count(at, start, work);
        (start, start + work)
    }

    /// As [`serve`](Self::serve), by one slot of them all.
    pub fn serve_on(&mut self, slot: usize, at: Ps, work: Ps) -> (Ps, Ps) {
        let Some(timeline) = self.slots.get_mut(slot) else { return (at, at) };
        let (start, gap) = timeline.find(at, work);
        timeline.reserve(start, work, gap);
        self.meter.count(at, start, work);
        (start, start + work)
    }

    /// When a request that arrives at `at` and takes `work` would start.
    pub fn start(&self, at: Ps, work: Ps) -> Ps {
        self.find(at, work).1
    }

    /// When all that is reserved ends.
    pub fn end(&self) -> Ps {
        self.slots.iter().map(|slot| slot.free).max().unwrap_or_default()
    }

    fn find(&self, at: Ps, work: Ps) -> (usize, Ps, Option<usize>) {
        let mut best = (0, Ps::MAX, None);
        for (number, slot) in self.slots.iter().enumerate() {
            let (start, gap) = slot.find(at, work);
            if start < best.1 || number == 0 {
                best = (number, start, gap);
            }
            if start == at {
                break;
            }
        }
        best
    }

    /// How busy it was over `span`.
    pub fn usage(&self, name: &'static str, span: Ps) -> Usage {
        self.meter.usage(name, self.slots.len(), span)
    }

    /// Forgets how busy it was; reservations stand.
    pub fn reset(&mut self) {
        self.meter = Meter::default();
    }
}

/// A pipeline: takes an item each interval; an item leaves it a latency after it entered.
#[derive(Clone, Debug)]
pub struct Pipeline {
    server: Server,
    interval: Ps,
    latency: Ps,
}

impl Pipeline {
    /// An empty pipeline.
    pub fn new(interval: Ps, latency: Ps) -> Self {
        Self { server: Server::new(1), interval, latency }
    }

    /// The same, serving in this order.
    pub fn ordered(self, order: Order) -> Self {
        Self { server: self.server.ordered(order), ..self }
    }

    /// Passes `items`, at least one: when the first and the last of them leave.
    pub fn serve(&mut self, at: Ps, items: u64) -> (Ps, Ps) {
        let (start, end) = self.server.serve(at, self.interval * items.max(1));
        (start + self.latency, end - self.interval + self.latency)
    }

    /// How busy it was over `span`.
    pub fn usage(&self, name: &'static str, span: Ps) -> Usage {
        self.server.usage(name, span)
    }

    /// Forgets how busy it was; reservations stand.
    pub fn reset(&mut self) {
        self.server.reset();
    }
}

/// A server of bytes: a link, a bus, a channel of memory.
#[derive(Clone, Debug)]
pub struct Channel {
    server: Server,
    channels: usize,
    /// Picoseconds a byte in units of 2^-24.
    per_byte: u64,
    bytes: u64,
}

/// Picoseconds that a byte takes of one of so many channels, in units of 2^-24.
fn per_byte(bytes_per_s: f64, channels: usize) -> u64 {
    (channels as f64 * 1e12 * f64::from(1 << 24) / bytes_per_s).ceil() as u64
}

impl Channel {
    /// Idle, of so many bytes a second.
    pub fn new(bytes_per_s: f64) -> Self {
        Self::parallel(bytes_per_s, 1)
    }

    /// So many channels, each with its part of the bandwidth, such as those of memory.
    pub fn parallel(bytes_per_s: f64, channels: usize) -> Self {
        let channels = channels.max(1);
        Self { server: Server::new(channels), channels, per_byte: per_byte(bytes_per_s, channels), bytes: 0 }
    }

    /// The same, serving in this order.
    pub fn ordered(self, order: Order) -> Self {
        Self { server: self.server.ordered(order), ..self }
    }

    /// Has another bandwidth for what is to come.
    pub fn set_rate(&mut self, bytes_per_s: f64) {
        self.per_byte = per_byte(bytes_per_s, self.channels);
    }

    /// What `bytes` take, rounded up.
    pub fn time(&self, bytes: u64) -> Ps {
        let time = (u128::from(bytes) * u128::from(self.per_byte)).div_ceil(1 << 24);
        Ps(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// Moves bytes that are there at `at`: when the first starts and the last has passed.
    pub fn serve(&mut self, at: Ps, bytes: u64) -> (Ps, Ps) {
        self.bytes += bytes;
        self.server.serve(at, self.time(bytes))
    }

    /// Moves bytes whose first and last are there at these times, cut through: when the first starts and the last has
    /// passed, which is not before it was there.
    pub fn pass(&mut self, (first, last): (Ps, Ps), bytes: u64) -> (Ps, Ps) {
        let (start, end) = self.serve(first, bytes);
        (start, end.max(last))
    }

    /// When bytes that are there at `at` would start.
    pub fn start(&self, at: Ps, bytes: u64) -> Ps {
        self.server.start(at, self.time(bytes))
    }

    /// When all that is reserved has passed.
    pub fn end(&self) -> Ps {
        self.server.end()
    }

    /// Bytes moved since the last reset.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How busy it was over `span`.
    pub fn usage(&self, name: &'static str, span: Ps) -> Usage {
        self.server.usage(name, span)
    }

    /// Forgets how busy it was; reservations stand.
    pub fn reset(&mut self) {
        self.server.reset();
        self.bytes = 0;
    }
}

/// Tokens that requests hold while they are under way: PCIe tags, misses of a core, entries of a buffer.
///
/// Take with [`Pool::acquire`], find out how long the request takes, then give back with [`Pool::release`], in that
/// order for each request. Requests get tokens in the order of asking.
#[derive(Clone, Debug)]
pub struct Pool {
    tokens: usize,
    /// When tokens that are out come back.
    back: BinaryHeap<Reverse<Ps>>,
    meter: Meter,
    turns: Turns,
}

impl Pool {
    /// So many tokens, at least one.
    pub fn new(tokens: usize) -> Self {
        let tokens = tokens.max(1);
        Self { tokens, back: BinaryHeap::with_capacity(tokens), meter: Meter::default(), turns: Turns::default() }
    }

    /// The same, serving in this order.
    pub fn ordered(self, order: Order) -> Self {
        Self { turns: order.into(), ..self }
    }

    /// When a request that arrives at `at` gets a token.
    pub fn acquire(&mut self, at: Ps) -> Ps {
        let start = match self.back.peek() {
            Some(&Reverse(back)) if self.back.len() >= self.tokens => {
                self.back.pop();
                match self.turns.lets_by(at, at.max(back), false) {
                    true => at.max(self.second(back)),
                    false => at.max(back),
                }
            }
            _ => at,
        };
        self.meter.wait(at, start);
        start
    }

    /// Leaves the first token for who comes next, and takes the one that is back after it, if there is one.
    #[cold]
    fn second(&mut self, first: Ps) -> Ps {
        self.back.peek_mut().map_or(first, |mut second| std::mem::replace(&mut second.0, first))
    }

    /// The request that got a token at `start` gives it back at `end`.
    pub fn release(&mut self, start: Ps, end: Ps) {
        self.meter.held(end - start);
        // More releases than requests would make tokens: they are ignored.
        if self.back.len() < self.tokens {
            self.back.push(Reverse(end.max(start)));
        }
    }

    /// Tokens out at `at`.
    pub fn held(&self, at: Ps) -> usize {
        self.back.iter().filter(|back| back.0 > at).count()
    }

    /// When a request that arrives at `at` would get a token.
    pub fn start(&self, at: Ps) -> Ps {
        match self.back.peek() {
            Some(&Reverse(back)) if self.back.len() >= self.tokens => at.max(back),
            _ => at,
        }
    }

    /// How much of the tokens' time was held over `span`.
    pub fn usage(&self, name: &'static str, span: Ps) -> Usage {
        self.meter.usage(name, self.tokens, span)
    }

    /// Forgets how busy it was; tokens that are out stay out.
    pub fn reset(&mut self) {
        self.meter = Meter::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NS: Ps = Ps(1_000);

    #[test]
    fn a_server_serves_in_order_and_says_how_busy_it_was() {
        let mut server = Server::new(1);
        // Arrivals at 0, 1, 2 ns of 10 ns each wait 0, 9, 18 ns; one at 100 ns finds it idle.
        for (arrival, start) in [(0, 0), (1, 10), (2, 20), (100, 100)] {
            assert_eq!(server.serve(NS * arrival, NS * 10), (NS * start, NS * (start + 10)));
        }
        let usage = server.usage("server", NS * 110);
        assert_eq!((usage.served, usage.waited, usage.longest), (4, Ps(27_000 / 4), NS * 18));
        assert!((usage.busy - 40.0 / 110.0).abs() < 1e-12);
    }

    #[test]
    fn slots_share_one_queue() {
        let mut server = Server::new(2);
        let starts = [0, 0, 0, 0].map(|at| server.serve(NS * at, NS * 10).0);
        assert_eq!(starts, [Ps::ZERO, Ps::ZERO, NS * 10, NS * 10]);
        assert_eq!(server.usage("server", NS * 20).busy, 1.0);
    }

    #[test]
    fn the_past_of_a_reservation_is_open_to_what_arrives_earlier() {
        let mut server = Server::new(1);
        // The way back of a round trip, in 1500 ns, does not block what passes now.
        assert_eq!(server.serve(NS * 1500, NS * 10).0, NS * 1500);
        assert_eq!(server.serve(NS * 20, NS * 10).0, NS * 20);
        assert_eq!(server.serve(NS * 25, NS * 10).0, NS * 30);
        assert_eq!(server.serve(NS * 5, NS * 15).0, NS * 5);
        // 1 ns before 1500 ns is too little for 10 ns.
        assert_eq!(server.serve(NS * 1499, NS * 10).0, NS * 1510);
        assert_eq!(server.serve(Ps::ZERO, NS * 6).0, NS * 40);
        assert_eq!(server.serve(Ps::ZERO, NS * 5).0, Ps::ZERO);
    }

    #[test]
    fn a_pipeline_overlaps_its_items() {
        // An item each 2 ns, through in 50 ns: three leave at 50, 52, 54 ns; the next of an arrival at 1 ns at 56 ns.
        let mut pipeline = Pipeline::new(NS * 2, NS * 50);
        assert_eq!(pipeline.serve(Ps::ZERO, 3), (NS * 50, NS * 54));
        assert_eq!(pipeline.serve(NS, 1), (NS * 56, NS * 56));
    }

    #[test]
    fn a_channel_moves_bytes_at_its_bandwidth_and_never_faster() {
        // 10 Gb/s is 0.8 ns a byte.
        let mut channel = Channel::new(1.25e9);
        assert_eq!(channel.serve(Ps::ZERO, 1500), (Ps::ZERO, NS * 1200));
        assert_eq!(channel.serve(NS, 64), (NS * 1200, Ps(1_251_200)));
        // At 3 GB/s a byte takes 333.3 ps.
        assert_eq!(Channel::new(3e9).time(1), Ps(334));
        // Two channels of half the bandwidth each: twice the time, two at once.
        let mut memory = Channel::parallel(20e9, 2);
        assert_eq!([0, 0, 0].map(|_| memory.serve(Ps::ZERO, 64).1), [Ps(6_400), Ps(6_400), Ps(12_800)]);
    }

    #[test]
    fn a_pool_lets_so_many_through_at_once() {
        // Two tokens, held 100 ns each: a fifth of a microsecond for four.
        let mut pool = Pool::new(2);
        let starts = [0, 1, 2, 3].map(|at| {
            let start = pool.acquire(NS * at);
            pool.release(start, start + NS * 100);
            start
        });
        assert_eq!(starts, [Ps::ZERO, NS * 1, NS * 100, NS * 101]);
        assert_eq!((pool.held(NS * 50), pool.held(NS * 200)), (2, 1));
        assert_eq!(pool.usage("tags", NS * 200).busy, 1.0);
    }

    #[test]
    fn the_binding_resource_is_the_busiest() {
        let usage = |name, busy, waited| Usage { name, busy, waited: Ps(waited), longest: Ps(waited), served: 1 };
        let all = [usage("wire", 0.7, 5), usage("PCIe", 0.9, 1), usage("cores", 0.9, 2)];
        assert_eq!(binding(&all).map(|usage| usage.name), Some("cores"));
        assert_eq!(binding(&[]), None);
    }

    proptest! {
        #[test]
        fn reservations_never_overlap_nor_start_before_their_arrival(
            requests in prop::collection::vec((0u64..3_000, 0u64..200), 1..120),
        ) {
            let mut server = Server::new(1);
            let mut taken: Vec<(Ps, Ps)> = Vec::new();
            for (at, work) in requests {
                let foreseen = server.start(Ps(at), Ps(work));
                let (start, end) = server.serve(Ps(at), Ps(work));
                prop_assert!(start == foreseen && start >= Ps(at) && end == start + Ps(work));
                prop_assert!(taken.iter().all(|&(from, to)| end <= from || to <= start), "{taken:?} {start} {end}");
                if work > 0 {
                    taken.push((start, end));
                }
            }
        }

        #[test]
        fn in_the_order_of_arrival_slots_are_a_first_come_first_served_queue(
            slots in 1usize..5,
            requests in prop::collection::vec((0u64..300, 0u64..900), 1..120),
        ) {
            let (mut server, mut pool) = (Server::new(slots), Pool::new(slots));
            let mut free = vec![Ps::ZERO; slots];
            let mut at = Ps::ZERO;
            for (later, work) in requests {
                at += Ps(later);
                free.sort_unstable();
                let start = free[0].max(at);
                free[0] = start + Ps(work);
                prop_assert_eq!(server.serve(at, Ps(work)).0, start);
                let begun = pool.acquire(at);
                pool.release(begun, begun + Ps(work));
                prop_assert_eq!(begun, start);
            }
        }
    }
}
