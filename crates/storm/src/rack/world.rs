//! Two racks, the links between them, and time.

use remora_rack::{FlowId, FlowPolicy, NicId, NicPool, NicState, Resequencer, Segment};

use super::{LinkFault, RackLink, RackStormReport};
use crate::events::{MS, Queue, SECOND, Time, US};
use crate::rng::{Purpose, Rng};

/// Bytes of a packet.
const PACKET: u64 = 4096;
/// All must have arrived so long after the faults: that is, after what is still on a slow way when they end is through.
const PATIENCE: Time = 100 * SECOND;

#[derive(Debug)]
enum Event {
    /// A segment arrives, and the sender hears of it unless the link's life is over.
    Arrive {
        life: u32,
        segment: Segment,
    },
    Hear {
        life: u32,
        segment: Segment,
    },
    Read(FlowId),
    Allow(FlowId, u64),
    Fault(u16, LinkFault),
    Failed(u16),
    Tick,
    Calm,
}

struct Way {
    link: RackLink,
    slower: u64,
    free_at: Time,
    last_arrival: Time,
    cut: bool,
    heard_of_cut: bool,
    /// Counts the times it came back.
    life: u32,
}

struct Stream {
    id: FlowId,
    bytes: u64,
    receiver: Resequencer,
    /// Which bytes were kept, where each is looked at.
    kept: Option<Vec<bool>>,
    taken: u64,
}

/// The racks.
pub(super) struct World {
    rng: Rng,
    now: Time,
    queue: Queue<Event>,
    pool: NicPool,
    policy: FlowPolicy,
    ways: Vec<Way>,
    streams: Vec<Stream>,
    tick_at: Time,
    calm: bool,
    /// By when all must have arrived, once that is known.
    end: Time,
    report: RackStormReport,
}

impl World {
    pub fn new(seed: u64, policy: FlowPolicy, links: &[RackLink]) -> Self {
        let way = |link: &RackLink| Way {
            link: *link,
            slower: 1,
            free_at: 0,
            last_arrival: 0,
            cut: false,
            heard_of_cut: false,
            life: 0,
        };
        Self {
            rng: Rng::new(seed, Purpose::Network),
            now: 0,
            queue: Queue::default(),
            pool: NicPool::new(policy, links.len() as u16, 0),
            policy,
            ways: links.iter().map(way).collect(),
            streams: Vec::new(),
            tick_at: Time::MAX,
            calm: false,
            end: Time::MAX,
            report: RackStormReport::default(),
        }
    }

    /// A flow of so many bytes, each of which is looked at.
    pub fn flow(&mut self, bytes: u64) {
        self.open(bytes, Some(vec![false; bytes as usize]));
    }

    /// A flow whose bytes are only counted, and taken at once.
    pub fn endless(&mut self, bytes: u64) {
        self.open(bytes, None);
    }

    fn open(&mut self, bytes: u64, kept: Option<Vec<bool>>) {
        let id = FlowId(self.streams.len() as u64);
        self.pool.open(id);
        self.pool.offer(id, bytes);
        self.streams.push(Stream { id, bytes, receiver: Resequencer::new(&self.policy), kept, taken: 0 });
        self.queue.push(0, Event::Read(id));
    }

    pub fn fault(&mut self, at: Time, nic: u16, fault: LinkFault) {
        self.queue.push(at, Event::Fault(nic, fault));
    }

    /// Runs until a time. Returns the bytes that were taken.
    pub fn until(&mut self, end: Time) -> u64 {
        self.pump();
        while self.report.failure.is_none() && self.queue.next_time().is_some_and(|at| at <= end) {
            let Some((at, event)) = self.queue.pop() else { break };
            self.now = at;
            self.handle(event);
            self.pump();
        }
        assert!(self.report.failure.is_none(), "{:?}", self.report.failure);
        self.streams.iter().map(|stream| stream.taken).sum()
    }

    /// Runs until all has arrived, or should have.
    pub fn run(mut self, calm: Time) -> RackStormReport {
        self.queue.push(calm, Event::Calm);
        self.pump();
        while self.report.failure.is_none() {
            let done = self.calm && self.streams.iter().all(|stream| stream.taken == stream.bytes);
            let next = if done { None } else { self.queue.pop() };
            let Some((at, event)) = next.filter(|(at, _)| *at < self.end) else {
                let left = self.streams.iter().find(|stream| stream.taken < stream.bytes);
                if let Some(Stream { id, bytes, taken, .. }) = left {
                    let why = format!("of flow {} only {taken} of {bytes} bytes were taken in the end", id.0);
                    self.report.failure = Some(why);
                }
                break;
            };
            self.now = at;
            self.handle(event);
            self.pump();
        }
        self.report.simulated = self.now;
        self.report.bytes = self.streams.iter().map(|stream| stream.taken).sum();
        self.report
    }

    fn wrong(&mut self, what: String) {
        self.report.failure.get_or_insert(format!("after {:.3} ms {what}", self.now as f64 / MS as f64));
    }

    /// NICs take what there is.
    fn pump(&mut self) {
        while let Some(segment) = self.pool.poll(self.now) {
            self.report.segments += 1;
            self.carry(segment);
        }
        let next = self.pool.next_timeout().unwrap_or(Time::MAX);
        if next < self.tick_at {
            self.tick_at = next;
            self.queue.push(next.max(self.now), Event::Tick);
        }
    }

    fn carry(&mut self, segment: Segment) {
        let len = u64::from(segment.len);
        let way = &mut self.ways[usize::from(segment.nic.0)];
        if way.cut && way.heard_of_cut {
            return self.wrong(format!("NIC {}, which is down, was given a segment", segment.nic.0));
        }
        if way.cut {
            return;
        }
        let packets = len.div_ceil(PACKET).max(1);
        let lost = (0..packets).filter(|_| self.rng.chance(way.link.lost)).count() as u64;
        let wire = (len + lost * PACKET) * 8;
        let time = (u128::from(wire) * u128::from(way.slower) * u128::from(SECOND) / u128::from(way.link.rate)) as u64;
        way.free_at = way.free_at.max(self.now) + time;
        // What was lost comes a round trip later, and what lies behind it on the same way waits.
        let again = if lost > 0 { 2 * way.link.latency + 20 * US } else { 0 };
        way.last_arrival = way.last_arrival.max(way.free_at + way.link.latency + again);
        self.queue.push(way.last_arrival, Event::Arrive { life: way.life, segment });
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive { life, segment } => {
                let way = &self.ways[usize::from(segment.nic.0)];
                let (here, latency) = (!way.cut && life == way.life, way.link.latency);
                // Some of what was on a way that was cut arrives all the same.
                if here || self.rng.chance(300_000) {
                    self.arrive(&segment);
                }
                if here {
                    self.queue.push(self.now + latency, Event::Hear { life, segment });
                }
            }
            Event::Hear { life, segment } => {
                let way = &self.ways[usize::from(segment.nic.0)];
                if !way.cut && life == way.life {
                    self.pool.done(self.now, segment.tag);
                }
            }
            Event::Read(flow) => self.read(flow),
            Event::Allow(flow, limit) => self.pool.allow(flow, limit),
            Event::Fault(nic, fault) => self.strike(nic, fault),
            Event::Failed(nic) => {
                let way = &mut self.ways[usize::from(nic)];
                if way.cut && !way.heard_of_cut {
                    way.heard_of_cut = true;
                    self.pool.failed(self.now, NicId(nic));
                    if self.calm {
                        self.queue.push(self.now + MS, Event::Fault(nic, LinkFault::Return));
                    }
                }
            }
            Event::Tick => {
                self.tick_at = Time::MAX;
                let silent = |pool: &NicPool, nic: usize| pool.state(NicId(nic as u16)) == Some(NicState::Silent);
                let before = (0..self.ways.len()).filter(|nic| silent(&self.pool, *nic)).count();
                self.pool.tick(self.now);
                let after = (0..self.ways.len()).filter(|nic| silent(&self.pool, *nic)).count();
                self.report.silent += (after - before) as u64;
            }
            Event::Calm => {
                self.calm = true;
                self.end = PATIENCE + self.ways.iter().map(|way| way.free_at).fold(self.now, Time::max);
                for nic in 0..self.ways.len() {
                    self.ways[nic].slower = 1;
                    self.strike(nic as u16, LinkFault::Return);
                }
            }
        }
    }

    fn strike(&mut self, nic: u16, fault: LinkFault) {
        let way = &mut self.ways[usize::from(nic)];
        match fault {
            LinkFault::Cut(heard) if !way.cut => {
                way.cut = true;
                self.report.faults[0] += 1;
                self.queue.push(self.now + heard, Event::Failed(nic));
            }
            LinkFault::Return if way.heard_of_cut => {
                (way.cut, way.heard_of_cut, way.life) = (false, false, way.life + 1);
                (way.free_at, way.last_arrival) = (self.now, self.now);
                self.report.faults[1] += 1;
                self.pool.restored(self.now, NicId(nic));
            }
            LinkFault::Slow(times) => {
                way.slower = times;
                self.report.faults[2] += 1;
            }
            LinkFault::Stall(time) => {
                way.free_at = way.free_at.max(self.now) + time;
                way.last_arrival = way.last_arrival.max(way.free_at);
                self.report.faults[3] += 1;
            }
            LinkFault::Cut(_) | LinkFault::Return => {}
        }
    }

    fn arrive(&mut self, segment: &Segment) {
        let gone = self.pool.arrived(segment.flow).unwrap_or(0);
        let stream = &mut self.streams[segment.flow.0 as usize];
        let (kept, mut new, mut wrong) = (&mut stream.kept, false, None);
        let accepted = stream.receiver.accept(segment.offset, segment.len, |range| {
            new = true;
            if range.start < gone {
                wrong = Some(format!("byte {} came from memory that was given away", range.start));
            }
            let Some(kept) = kept else { return };
            for at in range {
                if std::mem::replace(&mut kept[at as usize], true) {
                    wrong = Some(format!("byte {at} was kept twice"));
                }
            }
        });
        self.report.twice += u64::from(!new);
        if let Err(beyond) = accepted {
            wrong = Some(beyond.to_string());
        }
        if let Some(what) = wrong {
            self.wrong(format!("of flow {} {what}", segment.flow.0));
        }
    }

    /// A receiver takes what is there, or a part, and does something else for a while.
    fn read(&mut self, flow: FlowId) {
        let stream = &mut self.streams[flow.0 as usize];
        let ready = stream.receiver.ready();
        let there = ready.end - ready.start;
        let eager = self.calm || stream.kept.is_none();
        let len = if eager { there } else { self.rng.between(0, there) };
        let missing =
            stream.kept.as_ref().and_then(|kept| (ready.start..ready.start + len).find(|at| !kept[*at as usize]));
        let out_of_order = ready.start != stream.taken;
        stream.receiver.take(len);
        stream.taken += len;
        if len > 0 {
            let latency = self.ways.iter().map(|way| way.link.latency).min().unwrap_or(0);
            self.queue.push(self.now + latency, Event::Allow(flow, stream.receiver.limit()));
        }
        if stream.taken < stream.bytes {
            let pause = match there {
                0 if eager => MS / 2,
                _ if eager => 50 * US,
                _ => self.rng.between(10 * US, 20 * MS),
            };
            self.queue.push(self.now + pause, Event::Read(flow));
        }
        if let Some(at) = missing.or(out_of_order.then_some(ready.start)) {
            self.wrong(format!("of flow {} byte {at} was taken, which had not come", flow.0));
        }
    }
}
