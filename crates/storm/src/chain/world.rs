//! Nodes of a chain in simulated time: clients, network, persistent memory, clocks and faults around them.
//!
//! Until some moment faults happen, and whatever is answered must be right. Then all heals, every transaction must finish,
//! and every list is read at every node.

use std::panic::{AssertUnwindSafe, catch_unwind};

use remora_nic::Now;
use remora_replica::chain::{
    ChainConfig, ChainMarks, ChainNode, ChainOutcome, ChainPacket, ChainRefusal, ChainReply, ChainRequest, Transaction,
    WindowRead,
};
use remora_replica::ddp::Session;
use remora_replica::member::Standing;
use remora_replica::types::{NodeId, NodeSet};

use super::kept::{Asks, Kept, Node};
use super::lists::{self, LIST, MOST};
use super::looks::{Back, Sent};
use super::memory::Memory;
use super::{ChainCase, ChainEnd, ChainFailure, ChainOp, ChainStormReport, ChainTxn, LOOKS, elle};
use crate::clock::Clock;
use crate::disk::{Disk, DiskWrite};
use crate::events::{MS, Queue, SECOND, Time, US};
use crate::nemesis::{self, KINDS, ScheduledFault, StormFault, is_spare};
use crate::net::Network;
use crate::rng::{Purpose, Rng};
use crate::shown::Shown;

/// How long after the faults everything may take: only hanging counts as hanging.
const PATIENCE: Time = 60 * SECOND;
/// Events of a storm: many times what any needs.
const MAX_EVENTS: u64 = 5_000_000;
/// Attempts that a client makes at a transaction that writes; then it does not know how that ended.
const ATTEMPTS: u32 = 4;
/// Lists that there is room for. Clients leave those that are full.
const LISTS: u64 = 512;
/// Keys of a transaction at most.
const KEYS_AT_ONCE: u64 = 3;
/// Twice what the nemesis does to one clock.
const DRIFT_PPM: u32 = 10_000;

pub(super) enum Event {
    Message { from: usize, to: usize, packet: Box<ChainPacket> },
    Request { node: usize, life: u64, client: usize, request: ChainRequest },
    Reply { client: usize, reply: ChainReply },
    Look { node: usize, life: u64, sent: Sent },
    Looked(Back),
    Wake { client: usize },
    GivesUp { client: usize, tag: u64 },
    Flushed { node: usize, life: u64 },
    Timer { node: usize, life: u64 },
    Fault { index: usize },
    FaultEnds { index: usize },
    Start { node: usize, life: u64 },
    Calm,
}

pub(super) struct Place {
    node: Option<Node>,
    kept: Kept,
    /// Bytes for which there is room on its disk, if it is full; and for how long it is to be down when its next sync fails.
    room: Option<usize>,
    fail_sync: Option<Time>,
    /// What READs find there.
    pub shown: Option<Shown>,
    pub clock: Clock,
    pub life: u64,
    still_until: Time,
    slow: Time,
    armed: Option<Time>,
    /// Nodes that are the only member of a view which this one knows to be decided or proposed, as it last said.
    alone: u64,
    rng: Rng,
}

/// A client: it asks one thing at a time.
pub(super) struct Client {
    pub rng: Rng,
    pub node: usize,
    pub tag: u64,
    /// What it asked for last, and how often it was asked for before.
    pub request: Transaction,
    attempt: u32,
    sequence: u64,
    /// What it waits for: where in the history it is.
    pub asked: Option<usize>,
    /// The READs that it makes instead of asking, and which view's key it has.
    pub look: Option<(WindowRead, u64)>,
    /// What it has read, to append to.
    found: Vec<(u64, Vec<u32>)>,
    /// Reads of the end: which node, and from which key on.
    pub last_reads: Vec<(usize, u64)>,
}

pub(super) struct World {
    seed: u64,
    config: ChainConfig,
    pub now: Time,
    pub queue: Queue<Event>,
    pub places: Vec<Place>,
    pub net: Network,
    pub clients: Vec<Client>,
    history: Vec<ChainTxn>,
    schedule: Vec<ScheduledFault>,
    faults: [u64; KINDS.len()],
    marks: [u64; ChainMarks::NAMES.len()],
    /// Whether clients make one-sided reads, and how these ended.
    pub looking: bool,
    pub look_ends: [u64; LOOKS.len()],
    calm: bool,
    next_value: u32,
    /// Lists below this one are full.
    oldest: u64,
    keys: u64,
    pause: Time,
    flush: Time,
    /// After so long a client asks again, or does not know how its transaction ended.
    pub timeout: Time,
    /// The newest view's epoch and members; who of them has kept its memory since; whose memory was wiped.
    epoch: u64,
    members: u64,
    holders: u64,
    wiped: u64,
    blackouts: u64,
    /// What a node appended to its log on a full disk beyond what it was told that there is room for.
    too_much: Option<String>,
}

/// Runs a storm and checks it.
pub fn run(case: &ChainCase) -> ChainStormReport {
    let mut world = World::new(case);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    let stuck = match ended {
        Ok(stuck) => stuck.err().map(ChainFailure::Stuck),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or(panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Some(ChainFailure::Broken(text.unwrap_or_default()))
        }
    };
    (0..world.places.len()).for_each(|node| world.count_marks(node));
    // What is wrong comes before what hangs.
    let wrong = match &stuck {
        Some(ChainFailure::Broken(_)) => None,
        _ => world.too_much.take().or_else(|| elle::check(&world.history).err()).map(ChainFailure::Wrong),
    };
    let failure = wrong.or(stuck);
    let state = |place: &Place| place.engine().map_or("down".into(), ChainNode::describe);
    ChainStormReport {
        states: if failure.is_some() { world.places.iter().map(state).collect() } else { Vec::new() },
        simulated: world.now,
        faults: world.faults,
        net: world.net.counts,
        blackouts: world.blackouts,
        lost_lines: world.places.iter().map(|place| place.kept.lost_lines()).sum(),
        marks: world.marks,
        looks: world.look_ends,
        history: world.history,
        failure,
    }
}

impl World {
    fn new(case: &ChainCase) -> Self {
        let seed = case.seed;
        let mut rng = Rng::new(seed, Purpose::Shape);
        let calm_at = rng.between(10, 40) * SECOND;
        let clients = rng.between(2, 6);
        let mut config = ChainConfig::new(NodeId(0), NodeSet::first(case.nodes as u8), (LISTS * LIST) as usize);
        config.ring = *rng.pick(&[4 << 10, 64 << 10]);
        config.piece = *rng.pick(&[2 << 10, 64 << 10]);
        let mut later = Rng::new(seed, Purpose::LaterShape);
        config.at_once = *later.pick(&[1, 2, 1024]);
        // As processes have it.
        let logged = later.chance(333_333);
        // So few that sessions are forgotten.
        config.sessions = if later.chance(250_000) { 2 } else { config.sessions };
        (config.drift_ppm, config.mutation) = (DRIFT_PPM, case.mutation);
        let mut world = Rng::new(seed, Purpose::World);
        let base = *world.pick(&[20 * US, 200 * US, 2 * MS]);
        let flush = *world.pick(&[US, 500 * US, 10 * MS]);
        let place = |index: usize| Place {
            node: None,
            kept: match logged {
                true => Kept::Disk(Disk::default()),
                false => Kept::Memory(Memory::new(config.layout().bytes())),
            },
            room: None,
            fail_sync: None,
            shown: None,
            clock: Clock::new(world.below(1000 * SECOND)),
            life: 0,
            still_until: 0,
            slow: 0,
            armed: None,
            alone: 0,
            rng: Rng::new(seed, Purpose::Disk(index as u32)),
        };
        let client = |index: u64| Client {
            rng: Rng::new(seed, Purpose::Client(index as u32)),
            node: index as usize % case.nodes,
            tag: 0,
            request: Transaction::default(),
            attempt: 0,
            sequence: 0,
            asked: None,
            look: None,
            found: Vec::new(),
            last_reads: Vec::new(),
        };
        let mut queue = Queue::default();
        queue.push(calm_at, Event::Calm);
        let schedule = nemesis::schedule(seed, case.nodes, calm_at);
        for (index, fault) in schedule.iter().enumerate() {
            queue.push(fault.at, Event::Fault { index });
        }
        let places = (0..case.nodes).map(place).collect();
        Self {
            seed,
            now: 0,
            queue,
            places,
            net: Network::new(case.nodes, base, Rng::new(seed, Purpose::Network)),
            clients: (0..clients).map(client).collect(),
            history: Vec::new(),
            schedule,
            faults: [0; KINDS.len()],
            marks: [0; ChainMarks::NAMES.len()],
            // What a seed of the others had before stays as it was.
            looking: seed % 2 == 1,
            look_ends: [0; LOOKS.len()],
            calm: false,
            next_value: 0,
            oldest: 0,
            keys: rng.between(2, 5),
            pause: rng.between(20, 100) * MS,
            flush,
            timeout: *rng.pick(&[20 * MS, 200 * MS, SECOND]),
            epoch: 0,
            members: 0,
            holders: 0,
            wiped: 0,
            blackouts: 0,
            too_much: None,
            config,
        }
    }

    fn run(&mut self) -> Result<(), String> {
        (0..self.places.len()).for_each(|node| self.start(node));
        (0..self.clients.len()).for_each(|client| self.wake_after(client));
        let mut events = 0;
        while !self.finished() {
            let Some((at, event)) = self.queue.pop() else { return Err("nothing happens any more".into()) };
            self.now = at;
            events += 1;
            if at > PATIENCE + 100 * SECOND || events > MAX_EVENTS {
                return Err(format!(
                    "{} clients wait for ever",
                    self.clients.iter().filter(|it| !it.is_done()).count()
                ));
            }
            self.step(event);
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.calm && self.clients.iter().all(Client::is_done)
    }

    fn step(&mut self, event: Event) {
        // Whatever comes to a node that stands still waits.
        if let Event::Message { to: node, .. }
        | Event::Request { node, .. }
        | Event::Look { node, .. }
        | Event::Flushed { node, .. }
        | Event::Timer { node, .. } = &event
        {
            let until = self.places[*node].still_until;
            if until > self.now {
                return self.queue.push(until, event);
            }
        }
        match event {
            Event::Message { from, to, packet } => {
                self.turn(to, |node, now| node.handle(now, NodeId(from as u8), *packet))
            }
            Event::Request { node, life, client, request } if self.places[node].life == life => {
                let tag = (client as u64) << 32 | request.tag;
                self.turn(node, |it, now| it.submit(now, ChainRequest { tag, ..request }));
            }
            Event::Reply { client, reply } => self.replied(client, reply),
            Event::Look { node, life, sent } if self.places[node].life == life => self.looks(node, sent),
            Event::Looked(back) => self.looked(back),
            Event::Wake { client } => self.ask(client),
            Event::GivesUp { client, tag }
                if self.clients[client].tag == tag && self.clients[client].asked.is_some() =>
            {
                self.clients[client].node = (self.clients[client].node + 1) % self.places.len();
                self.again_or(client, ChainEnd::Unknown);
            }
            Event::Flushed { node, life } if self.places[node].life == life => {
                if let Some(down) = self.places[node].fail_sync.take() {
                    // What was to be synced may be on the disk or not, and the node ends rather than to go on.
                    let mut rng = Rng::new(self.seed ^ self.now, Purpose::Fault);
                    self.end_nodes(1 << node, down, Some((&mut rng, 500_000)));
                } else if let Some(token) = self.places[node].kept.end_flush() {
                    self.turn(node, |it, now| it.persisted(now, token));
                }
            }
            Event::Timer { node, life }
                if self.places[node].life == life && self.places[node].armed == Some(self.now) =>
            {
                self.places[node].armed = None;
                self.turn(node, |it, now| it.timeout(now));
            }
            Event::Start { node, life } if self.places[node].life == life => self.start(node),
            Event::Fault { index } => self.fault(index),
            Event::FaultEnds { index } => self.fault_ends(index),
            Event::Calm => self.calm_down(),
            Event::Request { .. }
            | Event::Look { .. }
            | Event::GivesUp { .. }
            | Event::Flushed { .. }
            | Event::Start { .. } => {}
            // It may stand for one that came later, while the node stood still.
            Event::Timer { node, .. } => self.arm(node),
        }
    }

    fn start(&mut self, node: usize) {
        let place = &mut self.places[node];
        if place.node.is_none() {
            let config = ChainConfig { id: NodeId(node as u8), ..self.config.clone() };
            let started = place.kept.start(config, place.clock.local(self.now));
            place.shown = self.looking.then(|| Shown::new(started.engine().chain()));
            place.node = Some(started);
            place.life += 1;
            place.armed = None;
            let room = place.room;
            self.turn(node, |it, now| {
                if room.is_some() {
                    it.set_room(now, room);
                }
            });
        }
    }

    /// Something happens to a node, and it does what comes of that.
    fn turn(&mut self, node: usize, what: impl FnOnce(&mut Node, &Now)) {
        let place = &mut self.places[node];
        let Some(mut engine) = place.node.take() else { return };
        what(&mut engine, &Now::simulated(place.clock.local(self.now)));
        while let Some(output) = engine.poll() {
            match output {
                Asks::Send(to, packet) => {
                    for at in self.net.send(self.now, node, to.0.into()) {
                        let packet = Box::new(packet.clone());
                        self.queue.push(at, Event::Message { from: node, to: to.0.into(), packet });
                    }
                }
                Asks::Write(token, at, bytes) => {
                    let place = &mut self.places[node];
                    if let Some(shown) = &mut place.shown {
                        shown.write(engine.engine().chain(), at, &bytes);
                    }
                    if let Kept::Memory(memory) = &mut place.kept {
                        memory.write(token, at, bytes);
                    }
                }
                Asks::Data(offset, bytes) => {
                    if let Some(shown) = &mut self.places[node].shown {
                        shown.write_data(engine.engine().chain(), offset, &bytes);
                    }
                }
                Asks::Log(token, write) => {
                    let place = &mut self.places[node];
                    if let (Some(room), DiskWrite::Append(bytes)) = (&mut place.room, &write) {
                        match room.checked_sub(bytes.len()) {
                            Some(rest) => *room = rest,
                            None => {
                                let why =
                                    format!("node {node} appends {} bytes where there is room for {room}", bytes.len());
                                self.too_much.get_or_insert(why);
                            }
                        }
                    }
                    if let Kept::Disk(disk) = &mut place.kept {
                        disk.write(token, write);
                    }
                }
                Asks::Reply(ChainReply { tag, outcome }) => {
                    let (client, tag) = ((tag >> 32) as usize, tag & 0xffff_ffff);
                    if let Some(delay) = self.net.client_delay() {
                        self.queue.push(self.now + delay, Event::Reply { client, reply: ChainReply { tag, outcome } });
                    }
                }
            }
        }
        self.watch(node, engine.engine());
        let place = &mut self.places[node];
        place.node = Some(engine);
        if place.kept.begin_flush() {
            let latency = self.flush + place.rng.below(self.flush) + place.slow;
            self.queue.push(self.now + latency, Event::Flushed { node, life: place.life });
        }
        self.arm(node);
    }

    fn arm(&mut self, node: usize) {
        let place = &mut self.places[node];
        let Some(due) = place.engine().map(ChainNode::next_timeout) else { return };
        let at = place.clock.global(due).max(self.now + 1);
        if place.armed.is_none_or(|armed| at < armed || armed < self.now) {
            place.armed = Some(at);
            self.queue.push(at, Event::Timer { node, life: place.life });
        }
    }

    /// Keeps track of who holds the state in memory.
    fn watch(&mut self, node: usize, engine: &ChainNode) {
        let view = engine.view();
        let alone = engine.pending().filter(|view| view.members.len() == 1);
        self.places[node].alone = alone.fold(0, |set, view| set | view.members.0);
        if view.epoch > self.epoch {
            (self.epoch, self.members) = (view.epoch, view.members.0);
            self.holders &= self.members;
        }
        let serves = engine.chain().status() == Some(Standing::Serving) && engine.chain().view().epoch == self.epoch;
        if serves {
            self.holders |= 1 << node;
            self.wiped &= !(1 << node);
        }
    }

    // Clients.

    fn wake_after(&mut self, client: usize) {
        let pause = self.clients[client].rng.below(2 * self.pause);
        self.queue.push(self.now + pause, Event::Wake { client });
    }

    /// The client begins a transaction: it appends to what it has just read, or reads.
    fn ask(&mut self, client: usize) {
        if self.clients[client].asked.is_some() {
            return;
        }
        let (oldest, keys) = (self.oldest, self.keys);
        let it = &mut self.clients[client];
        let found = std::mem::take(&mut it.found);
        let (mut transaction, mut ops) = (Transaction::default(), Vec::new());
        if let Some(&(node, from)) = it.last_reads.last() {
            it.node = node;
            ops.extend((from..from + KEYS_AT_ONCE).map(|key| ChainOp::Read(key, Vec::new())));
        } else if self.calm {
            return;
        } else if found.is_empty() {
            let count = it.rng.between(1, KEYS_AT_ONCE.min(keys));
            let first = it.rng.below(keys);
            ops.extend((0..count).map(|step| ChainOp::Read(oldest + (first + step) % keys, Vec::new())));
            // Reads may be asked of any member.
            if it.rng.chance(500_000) {
                it.node = it.rng.below(self.places.len() as u64) as usize;
            }
        } else {
            for (key, list) in found {
                ops.push(ChainOp::Read(key, Vec::new()));
                transaction.expects.push(lists::tuple(key, &list));
                if list.len() >= MOST || it.rng.chance(200_000) {
                    self.oldest = self.oldest.max(if list.len() >= MOST { key + 1 } else { 0 });
                    continue;
                }
                self.next_value += 1;
                ops.push(ChainOp::Append(key, self.next_value));
                let list = [list, vec![self.next_value]].concat();
                transaction.writes.push(lists::tuple(key, &list));
            }
        }
        if !transaction.expects.is_empty() && transaction.writes.is_empty() {
            // All were full, or it did not want to: others may be found.
            return self.wake_after(client);
        }
        transaction.reads = ops.iter().filter(|op| op.is_read()).map(|op| lists::extent(op.key())).collect();
        it.asked = Some(self.history.len());
        (it.request, it.attempt, it.sequence) = (transaction, 0, it.sequence + 1);
        self.history.push(ChainTxn { client, called: self.now, returned: 0, end: ChainEnd::Unknown, ops });
        if !self.begins_to_look(client) {
            self.send(client);
        }
    }

    /// An attempt at what the client asks for.
    fn send(&mut self, client: usize) {
        let it = &mut self.clients[client];
        it.tag += 1;
        let (tag, node, transaction) = (it.tag, it.node, it.request.clone());
        let session = Session { client: client as u64, sequence: it.sequence, attempt: it.attempt };
        let session = (!transaction.writes.is_empty()).then_some(session);
        let life = self.places[node].life;
        if let Some(delay) = self.net.client_delay() {
            let request = ChainRequest { tag, session, transaction };
            self.queue.push(self.now + delay, Event::Request { node, life, client, request });
        }
        self.queue.push(self.now + self.timeout, Event::GivesUp { client, tag });
    }

    /// Asks again for what may have been done, or ends so.
    fn again_or(&mut self, client: usize, end: ChainEnd) {
        let it = &mut self.clients[client];
        if it.request.writes.is_empty() || it.attempt + 1 == ATTEMPTS {
            return self.ended(client, end);
        }
        it.attempt += 1;
        self.send(client);
    }

    pub(super) fn replied(&mut self, client: usize, ChainReply { tag, outcome }: ChainReply) {
        let it = &mut self.clients[client];
        let Some(index) = it.asked.filter(|_| it.tag == tag) else { return };
        let txn = &mut self.history[index];
        let end = match &outcome {
            ChainOutcome::Done(read) | ChainOutcome::Unequal(read) if txn.ops.iter().all(ChainOp::is_read) => {
                txn.fill(read);
                if it.last_reads.pop().is_none() {
                    it.found = txn.reads();
                }
                ChainEnd::Done
            }
            ChainOutcome::Done(read) => {
                txn.fill(read);
                ChainEnd::Done
            }
            // Nobody says any more what it read.
            ChainOutcome::Before => {
                txn.ops.retain(|op| !op.is_read());
                ChainEnd::Done
            }
            // As if it had been asked to read.
            ChainOutcome::Unequal(read) => {
                txn.ops.retain(ChainOp::is_read);
                txn.fill(read);
                ChainEnd::Done
            }
            ChainOutcome::Refused(refusal) => {
                it.node = match refusal {
                    ChainRefusal::NotHead(head) => head.0.into(),
                    _ => (it.node + 1) % self.places.len(),
                };
                if it.attempt > 0 {
                    // An earlier attempt may have been taken, or be still.
                    return self.again_or(client, ChainEnd::Unknown);
                }
                ChainEnd::Failed
            }
            ChainOutcome::Unknown => return self.again_or(client, ChainEnd::Unknown),
        };
        if let ChainOutcome::Refused(ChainRefusal::NotHead(_)) = outcome {
            // What it has read may still be there.
            self.clients[client].found = self.history[index].expected(&self.history, client);
        }
        self.ended(client, end);
    }

    fn ended(&mut self, client: usize, end: ChainEnd) {
        let Some(index) = self.clients[client].asked.take() else { return };
        let txn = &mut self.history[index];
        (txn.returned, txn.end) = (self.now, end);
        if end != ChainEnd::Done {
            txn.ops.iter_mut().for_each(ChainOp::forget);
        }
        self.wake_after(client);
    }

    // Faults.

    fn fault(&mut self, index: usize) {
        if self.calm {
            return;
        }
        let ScheduledFault { fault, seed, .. } = self.schedule[index];
        let mut rng = Rng::new(seed, Purpose::Fault);
        if self.begin(fault, &mut rng) {
            self.faults[fault.kind(self.places.len())] += 1;
            if let Some(lasts) = fault.lasts() {
                self.queue.push(self.now + lasts, Event::FaultEnds { index });
            }
        }
    }

    /// Says whether it could happen.
    fn begin(&mut self, fault: StormFault, rng: &mut Rng) -> bool {
        match fault {
            StormFault::Crash { nodes, down, keep } => return self.end_nodes(nodes, down, Some((rng, keep))),
            StormFault::Kill { nodes, down } => return self.end_nodes(nodes, down, None),
            StormFault::Pause { node, lasts } => self.places[node].still_until = self.now + lasts,
            StormFault::Partition { from, to, both, .. } => self.cut(from, to, both, true),
            StormFault::Weather { weather, .. } => self.net.set_weather(weather),
            StormFault::SlowLink { from, to, extra, .. } => self.net.slow(1 << from, to, extra),
            StormFault::SlowDisk { node, extra, .. } => self.places[node].slow = extra,
            StormFault::Skew { node, ppm, .. } => self.skew(node, ppm),
            StormFault::Wipe { node, down } => {
                // One at a time until it is a member again.
                let alone = self.places.iter().fold(0, |set, place| set | place.alone);
                let spare = is_spare(node, self.places.len(), self.members, alone);
                if self.wiped != 0 || !spare || self.places[node].node.is_none() {
                    return false;
                }
                self.wiped = 1 << node;
                self.end_nodes(1 << node, down, None);
                self.places[node].kept.wipe();
            }
            // What a log file suffers.
            StormFault::BadSectors { node, count, down } => {
                let alone = self.places.iter().fold(0, |set, place| set | place.alone);
                let spare = is_spare(node, self.places.len(), self.members, alone);
                let place = &mut self.places[node];
                let Kept::Disk(disk) = &mut place.kept else { return false };
                if self.wiped != 0 || !spare || place.node.is_none() || disk.spoil(rng, count) == 0 {
                    return false;
                }
                self.wiped = 1 << node;
                return self.end_nodes(1 << node, down, Some((rng, 500_000)));
            }
            StormFault::FailSync { node, down } => match &self.places[node].kept {
                Kept::Disk(_) => self.places[node].fail_sync = Some(down),
                Kept::Memory(_) => return false,
            },
            StormFault::FullDisk { node, left, .. } => {
                let place = &self.places[node];
                if matches!(place.kept, Kept::Memory(_)) || place.still_until > self.now {
                    return false;
                }
                self.set_room(node, Some(left));
            }
            // Which the engine's type of a clock's reading forbids.
            StormFault::PauseInTurn { .. } => return false,
        }
        true
    }

    fn fault_ends(&mut self, index: usize) {
        match self.schedule[index].fault {
            _ if self.calm => {}
            StormFault::Partition { from, to, both, .. } => self.cut(from, to, both, false),
            StormFault::Weather { .. } => self.net.calm(),
            StormFault::SlowLink { from, to, .. } => self.net.slow(1 << from, to, 0),
            StormFault::SlowDisk { node, .. } => self.places[node].slow = 0,
            StormFault::FullDisk { node, .. } => self.set_room(node, None),
            StormFault::Skew { node, .. } => self.skew(node, 0),
            _ => {}
        }
    }

    fn end_nodes(&mut self, nodes: u64, down: Time, mut machine: Option<(&mut Rng, u32)>) -> bool {
        let (before, mut any) = (self.holders, false);
        for node in (0..self.places.len()).filter(|node| nodes >> node & 1 == 1) {
            if self.places[node].node.is_none() {
                continue;
            }
            any = true;
            self.count_marks(node);
            let place = &mut self.places[node];
            place.kept.end(machine.as_mut().map(|(rng, keep)| (&mut **rng, *keep)));
            place.node = None;
            place.life += 1;
            place.still_until = 0;
            // Not all at the same moment.
            let extra = machine.as_mut().map_or(0, |(rng, _)| rng.below(SECOND / 10));
            self.queue.push(self.now + down + extra, Event::Start { node, life: place.life });
            self.holders &= !(1 << node);
        }
        self.blackouts += u64::from(before != 0 && self.holders == 0);
        any
    }

    fn calm_down(&mut self) {
        self.calm = true;
        self.net.heal();
        for node in 0..self.places.len() {
            self.places[node].slow = 0;
            self.places[node].still_until = 0;
            self.places[node].fail_sync = None;
            self.set_room(node, None);
            self.skew(node, 0);
            self.start(node);
        }
        let end = self.oldest + self.keys;
        for node in 0..self.places.len() {
            let reads = (0..end).step_by(KEYS_AT_ONCE as usize).map(|key| (node, key));
            let clients = self.clients.len();
            let it = &mut self.clients[node % clients];
            it.last_reads.extend(reads);
            it.found.clear();
        }
        (0..self.clients.len()).for_each(|client| self.wake_after(client));
    }

    fn cut(&mut self, from: u64, to: u64, both: bool, on: bool) {
        self.net.cut(from, to, on);
        if both {
            self.net.cut(to, from, on);
        }
    }

    /// A node's disk has room for so many bytes more, or for all there may be.
    fn set_room(&mut self, node: usize, room: Option<usize>) {
        if std::mem::replace(&mut self.places[node].room, room) != room {
            self.turn(node, |it, now| it.set_room(now, room));
        }
    }

    fn skew(&mut self, node: usize, ppm: i32) {
        self.places[node].clock.set_rate(self.now, ppm);
        self.arm(node);
    }

    fn count_marks(&mut self, node: usize) {
        if let Some(engine) = self.places[node].engine() {
            self.marks.iter_mut().zip(engine.chain().marks().counts()).for_each(|(sum, count)| *sum += count);
        }
    }
}

impl Place {
    /// The node, to look at.
    pub fn engine(&self) -> Option<&ChainNode> {
        self.node.as_ref().map(Node::engine)
    }
}

impl Client {
    fn is_done(&self) -> bool {
        self.asked.is_none() && self.last_reads.is_empty()
    }
}
