//! A cluster of engines in simulated time: clients, network, disks, clocks and faults around them.
//!
//! A storm has two phases. Until [`Plan::calm_at`] faults happen, and whatever is answered must be right. Then all heals,
//! and every request must finish; at last every key is read at every node.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use remora_replica::bounds::Bounds;
use remora_replica::ddp::{Model, Reply, Request};

use crate::carriage::{Carriage, Station};
use crate::clock::Clock;
use crate::disk::{Disk, DiskCounts, DiskWrite};
use crate::durability::{Finding, check_history};
use crate::engine::{Body, Boot, Engine, EngineOutput, View};
use crate::events::{MS, Queue, SECOND, Time, US};
use crate::history::History;
use crate::nemesis::{self, KINDS};
use crate::net::{NetCounts, Network};
use crate::rng::{Purpose, Rng};
use crate::story::Story;
use crate::turns::{Held, Pauses};
use crate::workload::{Actor, Workload};

/// All that makes up a storm. Equal plans give equal storms.
#[derive(Clone, Debug)]
pub struct Plan<C> {
    /// The seed of every random choice.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// What the engines are told.
    pub config: C,
    /// What must not be lost.
    pub model: Model,
    /// How messages travel.
    pub carriage: Carriage,
    /// What clients do.
    pub workload: Workload,
    /// Faults.
    pub schedule: Vec<nemesis::ScheduledFault>,
    /// When faults end.
    pub calm_at: Time,
    /// Nodes (bits) that stay down after that; a minority.
    pub absent: u64,
    /// A seeded fault of the world; for checks only.
    pub mutant: Option<Mutant>,
}

/// Seeded faults of worlds, by which storms show that they can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A node reads its clock before it takes input.
    ClockFirst,
    /// A node's clock stands still while the node does, as some do while a machine sleeps.
    ClockSleeps,
}

/// How long after the faults everything may take. Far more than any timeout, so that only hanging counts as hanging.
pub const PATIENCE: Time = 60 * SECOND;

/// Events in a storm, and events that may wait at one moment: many times what any storm needs.
const MAX_EVENTS: u64 = 6_000_000;
const MAX_QUEUED: usize = 200_000;

/// Requests that a client has under way at most: eight clients then have as many names as a record remembers.
const MAX_WINDOW: u64 = 4;

/// Timeouts that an engine may have due at one moment.
const MAX_TIMEOUTS: usize = 1000;

impl<C> Plan<C> {
    /// The storm of a seed: some 20 to 60 seconds of faults and five to ten of calm.
    pub fn new(seed: u64, nodes: usize, model: Model, config: C) -> Self {
        let mut rng = Rng::new(seed, Purpose::Shape);
        let calm_at = rng.between(15, 60) * SECOND;
        let mut workload = Workload {
            clients: rng.between(2, 8) as u32,
            keys: rng.between(1, 4) as u32,
            pause: rng.between(20, 300) * MS,
            writes: *rng.pick(&[200_000, 500_000, 800_000]),
            scopes: model.facts().scopes,
            ..Workload::default()
        };
        let mut absent = 0;
        if rng.chance(300_000) {
            (0..nodes.saturating_sub(1) / 2).for_each(|_| absent |= 1 << rng.below(nodes as u64));
        }
        let schedule = nemesis::schedule(seed, nodes, calm_at);
        // What products ship with, and less.
        let shipped = Bounds::SHIPPED;
        workload.window = if rng.chance(700_000) { 1 } else { rng.between(2, MAX_WINDOW) as u32 };
        workload.silence = *rng.pick(&[workload.silence, shipped.silence]);
        workload.timeout = *rng.pick(&[workload.timeout / 2, workload.timeout]);
        workload.retry = rng.chance(900_000);
        let mut later = Rng::new(seed, Purpose::LaterShape);
        workload.watch = later.chance(500_000).then(|| later.between(30, 200) * MS);
        let carriage = Carriage::default();
        Self { seed, nodes, config, model, carriage, workload, schedule, calm_at, absent, mutant: None }
    }
}

/// Why a storm failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No order explains what clients saw, or something was lost that the model keeps.
    Wrong(Finding),
    /// Requests that did not finish in the calm, and the nodes that they were sent to last.
    Stuck(Vec<(usize, Body)>),
    /// The engine panicked, or did what no engine may.
    Broken(String),
}

impl Failure {
    /// A key that it is about.
    pub fn key(&self) -> Option<u32> {
        match self {
            Self::Wrong(finding) => Some(finding.key),
            Self::Stuck(requests) => requests.iter().find_map(|(_, body)| match body {
                Body::Ops(ops) => ops.first().map(|op| op.key),
                Body::PersistScope => None,
            }),
            Self::Broken(_) => None,
        }
    }

    /// Whether both failed alike, as far as a shrunk storm can.
    pub fn resembles(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// What happened in a storm.
#[derive(Debug)]
pub struct StormReport {
    /// What clients saw.
    pub history: History,
    /// Simulated time, ns.
    pub simulated: Time,
    /// Faults that took effect, by kind.
    pub faults: [u64; KINDS.len()],
    /// The network's.
    pub net: NetCounts,
    /// The disks', added up.
    pub disk: DiskCounts,
    /// How often each of the engine's marks was reached.
    pub marks: Vec<u64>,
    /// Keys whose histories were too hard to check.
    pub unchecked: usize,
    /// What failed, if anything did.
    pub failure: Option<Failure>,
}

/// Runs a storm and checks it.
pub fn run<E: Engine>(plan: &Plan<E::Config>) -> StormReport {
    run_with::<E>(plan, Story::silent()).0
}

/// Runs a storm and checks it, and tells its story.
pub fn run_with<E: Engine>(plan: &Plan<E::Config>, story: Story) -> (StormReport, Story) {
    let mut cluster = Cluster::<E>::new(plan, story);
    let ended = catch_unwind(AssertUnwindSafe(|| cluster.run()));
    let mut failure = match ended {
        Ok(failure) => failure,
        Err(panic) => Some(Failure::Broken(format!("panic: {}", panic_text(&*panic)))),
    };
    cluster.count_marks();
    let history = std::mem::take(&mut cluster.history);
    let mut unchecked = 0;
    match check_history(&history, plan.model) {
        Ok(keys) => unchecked = keys.len(),
        // What is wrong comes before what hangs.
        Err(finding) if !matches!(failure, Some(Failure::Broken(_))) => failure = Some(Failure::Wrong(finding)),
        Err(_) => {}
    }
    let report = StormReport {
        history,
        simulated: cluster.now,
        faults: cluster.faults,
        net: cluster.net.counts,
        disk: cluster.disk_counts(),
        marks: cluster.marks,
        unchecked,
        failure,
    };
    (report, cluster.story)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_string()
}

/// What happens in simulated time.
#[derive(Debug)]
pub(crate) enum Event<M> {
    /// A message reaches a node.
    Message { from: usize, to: usize, message: M },
    /// A packet reaches a node's NIC.
    Packet { from: usize, to: usize, packet: Vec<u8> },
    /// A timer of a node's NIC may be due.
    NicTimer { node: usize, start: u64 },
    /// A client's call reaches a node.
    Call { node: usize, client: usize, line: u64 },
    /// A client hears that its connection stands, with which life of a node, or that there is none any more.
    Line { client: usize, line: u64, peer: Option<(usize, u64)> },
    /// A request reaches a node.
    Request { node: usize, life: u64, client: usize, line: u64, request: Request },
    /// A reply reaches a client.
    Reply { client: usize, line: u64, reply: Reply },
    /// A pause of a client ends.
    Wake { client: usize },
    /// A client may be due to lose patience.
    ClientTimer { client: usize },
    /// A sync has ended.
    Synced { node: usize, start: u64 },
    /// A node's timer may be due.
    Timer { node: usize, start: u64 },
    /// A scheduled fault begins.
    Fault { index: usize },
    /// A fault ends.
    FaultEnds { index: usize },
    /// A node that is down starts.
    Start { node: usize, start: u64 },
    /// Faults are over.
    Calm,
}

/// One node: its engine, and what the world does to it.
pub(crate) struct Node<E: Engine> {
    /// `None` while it is down. In a box, since it is taken out while the world does what it asks.
    pub engine: Option<Box<E>>,
    /// Its NIC, where messages travel as frames.
    pub station: Option<Box<Station>>,
    pub disk: Disk,
    pub clock: Clock,
    /// Counts starts and ends, so that what was meant for an earlier life is told apart.
    pub life: u64,
    pub starts: u64,
    /// When it stands still.
    pub pauses: Pauses,
    /// What waits for it to move again.
    pub held: Held<E::Message>,
    /// Extra latency of syncs, ns.
    pub slow_disk: Time,
    /// Nodes that, as it knew last, may become the only member of a view.
    pub alone: u64,
    /// Bytes for which there is room on its disk, if it is full.
    pub room: Option<usize>,
    /// The next sync fails and the node stays down this long.
    pub fail_sync: Option<Time>,
    /// Requests under way by the tags that the node gave them: client, connection, and the client's tag.
    pub asked: BTreeMap<u64, (usize, u64, u64)>,
    pub last_tag: u64,
    /// When the earliest timer event in the queue comes.
    armed: Option<Time>,
    disk_rng: Rng,
}

/// A running storm.
pub(crate) struct Cluster<'a, E: Engine> {
    pub plan: &'a Plan<E::Config>,
    pub now: Time,
    pub queue: Queue<Event<E::Message>>,
    pub nodes: Vec<Node<E>>,
    pub net: Network,
    pub clients: Vec<Actor>,
    pub history: History,
    pub story: Story,
    pub faults: [u64; KINDS.len()],
    pub calm: bool,
    /// Reads left to do at the end, as (node, key).
    pub last_reads: Vec<(usize, u32)>,
    pub failure: Option<Failure>,
    marks: Vec<u64>,
    scratch: Vec<u64>,
    /// The latest view seen.
    epoch: u64,
    /// Its members.
    pub members: u64,
    /// Members of it that have kept their memory since they belong to it.
    holders: u64,
    /// Nodes whose log was damaged and that have not been members since.
    pub damaged: u64,
    sync_latency: Time,
    events: u64,
}

impl<'a, E: Engine> Cluster<'a, E> {
    fn new(plan: &'a Plan<E::Config>, story: Story) -> Self {
        let seed = plan.seed;
        let mut rng = Rng::new(seed, Purpose::World);
        let base = *rng.pick(&[20 * US, 200 * US, 2 * MS]);
        let sync_latency = *rng.pick(&[20 * US, 500 * US, 5 * MS]);
        let node = |index: usize| Node {
            engine: None,
            station: None,
            disk: Disk::default(),
            clock: Clock::new(rng.below(1000 * SECOND)),
            life: 0,
            starts: 0,
            pauses: Pauses::default(),
            held: Vec::new(),
            slow_disk: 0,
            alone: 0,
            fail_sync: None,
            room: None,
            asked: BTreeMap::new(),
            last_tag: 0,
            armed: None,
            disk_rng: Rng::new(seed, Purpose::Disk(index as u32)),
        };
        let client = |index| Actor::new(seed, index, plan.nodes, &plan.workload);
        Self {
            plan,
            now: 0,
            queue: Queue::default(),
            nodes: (0..plan.nodes).map(node).collect(),
            net: Network::new(plan.nodes, base, Rng::new(seed, Purpose::Network)),
            clients: (0..plan.workload.clients).map(client).collect(),
            history: History::default(),
            story,
            faults: [0; KINDS.len()],
            calm: false,
            last_reads: Vec::new(),
            failure: None,
            marks: vec![0; E::MARKS.len()],
            scratch: vec![0; E::MARKS.len()],
            epoch: 0,
            members: 0,
            holders: 0,
            damaged: 0,
            sync_latency,
            events: 0,
        }
    }

    fn run(&mut self) -> Option<Failure> {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for client in 0..self.clients.len() {
            for _ in 0..self.plan.workload.window {
                let pause = self.clients[client].pause(&self.plan.workload);
                self.wake_after(client, pause);
            }
        }
        for node in (0..self.nodes.len()).filter(|_| self.plan.workload.watch.is_some()) {
            let index = self.clients.len();
            self.clients.push(Actor::watcher(self.plan.seed, index as u32, node, &self.plan.workload));
            self.wake(index);
        }
        for (index, event) in self.plan.schedule.iter().enumerate() {
            self.queue.push(event.at, Event::Fault { index });
        }
        self.queue.push(self.plan.calm_at, Event::Calm);
        while self.failure.is_none() && !self.finished() {
            match self.queue.pop() {
                Some((at, event)) if at <= self.plan.calm_at + PATIENCE => {
                    self.now = at;
                    self.step(event);
                    self.events += 1;
                    if self.events > MAX_EVENTS || self.queue.len() > MAX_QUEUED {
                        return Some(Failure::Broken("messages without end".into()));
                    }
                }
                _ => {
                    self.tell_states();
                    return Some(Failure::Stuck(self.waiting()));
                }
            }
        }
        self.failure.take()
    }

    fn finished(&self) -> bool {
        self.calm && self.last_reads.is_empty() && self.clients.iter().all(|client| client.flights.is_empty())
    }

    /// The requests that have not finished.
    fn waiting(&self) -> Vec<(usize, Body)> {
        let node = |client: &Actor| client.node(client.requests.node());
        let flights = self.clients.iter().flat_map(|client| client.flights.values().map(move |it| (node(client), it)));
        flights.map(|(node, flight)| (node, flight.body.clone())).collect()
    }

    /// What each node has come to.
    fn tell_states(&mut self) {
        for (node, place) in self.nodes.iter().enumerate() {
            let state = || place.engine.as_ref().map_or("down".into(), |engine| engine.state());
            self.story.say(self.now, || format!("node {node}: {}", state()));
        }
    }

    pub(crate) fn step(&mut self, event: Event<E::Message>) {
        match event {
            Event::Message { to: node, .. }
            | Event::Packet { to: node, .. }
            | Event::Call { node, .. }
            | Event::Request { node, .. }
            | Event::Synced { node, .. }
                if self.waits(node) =>
            {
                self.nodes[node].held.push(event);
            }
            Event::Message { from, to, message } => {
                let local = self.local(to);
                let Some(engine) = &mut self.nodes[to].engine else { return };
                self.story.message::<E>(self.now, from, to, &message);
                engine.handle(local, from, message);
                self.pump(to);
            }
            Event::Packet { from, to, packet } => self.packet(from, to, &packet),
            Event::NicTimer { node, start } if self.nodes[node].life == start => self.nic_timer(node),
            Event::Call { node, client, line } => self.called(node, client, line),
            Event::Line { client, line, peer } => self.line(client, line, peer),
            Event::Request { node, life, client, line, request } => self.asked(node, life, client, line, request),
            Event::Synced { node, start } if self.nodes[node].life == start => self.synced(node),
            Event::Timer { node, start } if self.nodes[node].life == start => self.timer(node),
            Event::Start { node, start } if self.nodes[node].life == start => self.start(node),
            Event::Synced { .. } | Event::Timer { .. } | Event::Start { .. } | Event::NicTimer { .. } => {}
            Event::Reply { client, line, reply } => self.reply(client, line, reply),
            Event::Wake { client } => self.wake(client),
            Event::ClientTimer { client } => self.client_timer(client),
            Event::Fault { index } => self.fault(index),
            Event::FaultEnds { index } => self.fault_ends(index),
            Event::Calm => self.calm_down(),
        }
    }

    /// Starts a node that is down.
    pub fn start(&mut self, node: usize) {
        let nodes = self.plan.nodes;
        let place = &mut self.nodes[node];
        if place.engine.is_some() {
            return;
        }
        let now = place.clock.local(self.now);
        let seed = crate::rng::mix(self.plan.seed ^ crate::rng::mix((node as u64) << 32 | place.starts));
        let boot = Boot { node, nodes, now, log: place.disk.read(), seed, starts: place.starts };
        self.story.say(self.now, || format!("node {node} starts with a log of {} bytes", boot.log.len()));
        let mut engine = Box::new(E::start(&self.plan.config, boot));
        if place.room.is_some() {
            engine.set_room(now, place.room);
        }
        place.engine = Some(engine);
        place.life += 1;
        place.starts += 1;
        place.armed = None;
        if self.plan.carriage == Carriage::Nic {
            place.station = Some(Box::new(Station::new(node, nodes, seed)));
            return self.station_turn(node);
        }
        self.pump(node);
    }

    fn synced(&mut self, node: usize) {
        if let Some(down) = self.nodes[node].fail_sync.take() {
            return self.sync_failed(node, down);
        }
        let now = self.local(node);
        for token in self.nodes[node].disk.end_sync() {
            if let Some(engine) = &mut self.nodes[node].engine {
                engine.persisted(now, token);
            }
        }
        self.pump(node);
    }

    fn timer(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        if place.armed != Some(self.now) {
            return;
        }
        if place.pauses.until > self.now {
            place.armed = None;
            return;
        }
        place.armed = None;
        let now = place.clock.local(self.now);
        let Some(engine) = &mut place.engine else { return };
        for _ in 0..MAX_TIMEOUTS {
            if engine.next_timeout().is_none_or(|due| due > now) {
                return self.pump(node);
            }
            engine.timeout(now);
        }
        self.failure = Some(Failure::Broken(format!("node {node}: timeouts never end")));
    }

    /// Does what the engine wants done.
    pub fn pump(&mut self, node: usize) {
        let local = self.local(node);
        let Some(mut engine) = self.nodes[node].engine.take() else { return };
        while let Some(output) = engine.poll(local) {
            match output {
                EngineOutput::Send { to, message } if self.nodes[node].station.is_some() => {
                    if let Some(station) = &mut self.nodes[node].station {
                        station.send(to, |out| E::encode(&message, out));
                    }
                }
                EngineOutput::Send { to, message } => {
                    let mut arrivals = self.net.send(self.now, node, to);
                    let Some(first) = arrivals.next() else { continue };
                    if let Some(second) = arrivals.next() {
                        self.queue.push(second, Event::Message { from: node, to, message: message.clone() });
                    }
                    self.queue.push(first, Event::Message { from: node, to, message });
                }
                EngineOutput::Write { token, write } => {
                    self.takes_room(node, &write);
                    self.nodes[node].disk.write(token, write);
                }
                EngineOutput::Reply(reply) => self.answers(node, reply),
            }
        }
        self.transmit(node);
        self.watch(node, &*engine);
        let place = &mut self.nodes[node];
        place.engine = Some(engine);
        if place.disk.begin_sync() {
            let latency = self.sync_latency + place.disk_rng.below(self.sync_latency) + place.slow_disk;
            self.queue.push(self.now + latency, Event::Synced { node, start: place.life });
        }
        self.arm(node);
    }

    /// On a full disk no engine may append more than it was told that there is room for.
    fn takes_room(&mut self, node: usize, write: &DiskWrite) {
        if let (Some(room), DiskWrite::Append(bytes)) = (&mut self.nodes[node].room, write) {
            match room.checked_sub(bytes.len()) {
                Some(rest) => *room = rest,
                None => {
                    let text = format!("node {node} appends {} bytes where there is room for {room}", bytes.len());
                    self.failure = Some(Failure::Broken(text));
                }
            }
        }
    }

    /// Puts the engine's next timeout into the queue, unless an earlier event is there already.
    pub fn arm(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        let Some(due) = place.engine.as_ref().and_then(|engine| engine.next_timeout()) else { return };
        let at = place.clock.global(due).max(self.now);
        if place.armed.is_none_or(|armed| at < armed) {
            place.armed = Some(at);
            self.queue.push(at, Event::Timer { node, start: place.life });
        }
    }

    /// Keeps track of who holds the state in memory.
    fn watch(&mut self, node: usize, engine: &E) {
        let View { epoch, members, serves, alone } = engine.view();
        self.nodes[node].alone = alone;
        if epoch > self.epoch {
            let lost = self.holders & !members;
            self.story.say(self.now, || format!("view {epoch} of nodes {members:#b}; without {lost:#b}"));
            (self.epoch, self.members) = (epoch, members);
            self.holders &= members;
        }
        if epoch == self.epoch && serves {
            self.holders |= 1 << node;
            self.damaged &= !(1 << node);
        }
    }

    /// A node ends, and starts again unless it stays down. Its disk is the caller's.
    pub fn stop(&mut self, node: usize, down: Option<Time>) {
        self.count_marks_of(node);
        let place = &mut self.nodes[node];
        (place.engine, place.station) = (None, None);
        place.life += 1;
        place.held.clear();
        place.pauses = Pauses::default();
        place.armed = None;
        place.fail_sync = None;
        place.asked.clear();
        let start = place.life;
        if let Some(down) = down {
            self.queue.push(self.now + down, Event::Start { node, start });
        }
        self.holders &= !(1 << node);
    }

    /// To be called after nodes have stopped: was that all that held the state?
    pub fn note_blackout(&mut self, holders_before: u64) {
        if holders_before != 0 && self.holders == 0 {
            self.story.say(self.now, || "BLACKOUT: no member of the view has its memory any more".into());
            self.history.blackouts.push(self.now);
        }
    }

    /// Those who hold the state in memory, as bits.
    pub fn holders(&self) -> u64 {
        self.holders
    }

    fn count_marks_of(&mut self, node: usize) {
        if let Some(engine) = &self.nodes[node].engine {
            self.scratch.fill(0);
            engine.marks(&mut self.scratch);
            self.marks.iter_mut().zip(&self.scratch).for_each(|(sum, count)| *sum += count);
        }
    }

    fn count_marks(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.count_marks_of(node));
    }

    fn disk_counts(&self) -> DiskCounts {
        let mut sum = DiskCounts::default();
        self.nodes.iter().for_each(|node| sum.add(node.disk.counts));
        sum
    }
}
