//! A modelled cluster: replicas of MINOS on hosts with SmartNICs, joined by a network without loss.
//!
//! The engine is [`remora_replica::ddp::Replica`] as it is. It tells what it does in steps, messages and jobs; this
//! world says how long each takes and where, after a platform's section `replication`. A node has PCIe both ways, a
//! network port both ways, host cores and NIC cores.
//!
//! Each host core has a thread with an endpoint of its own, as eRPC has it (MINOS section VII): a worker's messages go
//! from its thread to one thread of each other node, and the answers come back there. A thread does one thing at a time;
//! while a worker waits it does what else comes. A core that persists waits for it, as in the paper's emulation. The
//! NIC's cores share one queue.
//!
//! In MINOS-B each message crosses PCIe at both ends and runs on host cores; in MINOS-O the NIC's cores take it. vFIFO
//! and dFIFO are hardware: a record's way into them and out of them takes time, but no core. An entry is taken from when
//! its write begins until it has left over PCIe; it is in the host's memory, and in its log, some time later. A write
//! that finds no entry free waits at the NIC until there is one, so that nothing is refused or sent again.

mod costs;
mod links;
mod node;
mod readings;
mod run;

use remora_replica::ddp::{
    Body, Config, Deployment, JobId, Message, Model, Offload, Op, Refusal, Request, View, Where,
};
use remora_replica::types::{Key, NodeId, NodeSet, Value};

pub use costs::Costs;
pub use readings::Readings;

use crate::event::WheelQueue;
use crate::time::Ps;
use links::Links;
use node::{Node, Processor};

/// What a cluster is like.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// What everything takes.
    pub costs: Costs,
    /// Nodes, 2 to 64.
    pub nodes: u8,
    /// Clients of each node, with one request under way each.
    pub workers: u16,
    /// When writes are durable.
    pub model: Model,
    /// Where the protocol runs.
    pub deployment: Deployment,
    /// MINOS-B with NICs that send a message to many as one; MINOS-O has a switch of its own for that.
    pub host_broadcast: bool,
    /// How the text is read.
    pub readings: Readings,
}

/// What a worker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerAsk {
    /// Read a record.
    Read(Key),
    /// Write a record.
    Write(Key),
    /// End the worker's scope. Only with the Scope model, and after a write.
    Persist,
}

/// How a worker's request went.
#[derive(Clone, Copy, Debug)]
pub struct WorkerDone {
    /// What it was.
    pub ask: WorkerAsk,
    /// When it ended.
    pub at: Ps,
    /// From asking to the answer.
    pub latency: Ps,
    /// The part of a write's latency that the messages took which its answer waited for, from the beginning of their
    /// sending to their arrival; the rest is computation, with waiting for cores and for persists. Zero for reads.
    pub communication: Ps,
}

/// Workers: what they ask for.
pub trait WorkerLoad {
    /// The next request of a worker; `None` ends it.
    fn next(&mut self, node: u8, worker: u16) -> Option<WorkerAsk>;
    /// A request has ended.
    fn done(&mut self, node: u8, worker: u16, done: &WorkerDone);
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The engine refused a request.
    #[error("the replica refused a request: {0}")]
    Refused(Refusal),
    /// Nothing can happen any more, and workers still wait.
    #[error("nothing can happen in the modelled cluster, and {0} workers wait: this is a fault of Remora")]
    Stuck(usize),
}

/// What is on its way to a processor.
#[derive(Debug)]
enum Task {
    /// A worker's request.
    Request(u16),
    /// A peer's message, with the communication time of what it answers.
    Message { from: NodeId, message: Message, communication: Ps, arrived: Ps },
    /// What is said when a record is in the vFIFO.
    Say { to: NodeSet, message: Message, communication: Ps },
    /// A job has been done; taking its write apart takes a time first.
    Done { job: JobId, unpack: Ps },
    /// Host work of a time, after which a worker has its answer.
    Answer { worker: u16, work: Ps, communication: Ps },
    /// Host work of a time: a message that the NIC handed up.
    Notice { work: Ps },
}

/// A thread of a node's host, or the NIC's cores. What these do belongs to a thread too: its answers go there.
#[derive(Clone, Copy, Debug)]
struct Place {
    node: u8,
    on: Where,
    thread: u8,
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A task is there.
    Ready(Place, u32),
    /// A core goes on with a task that belongs to it.
    GoOn(Place, u32),
    /// A core is free.
    Free(Place),
    /// A record is in the vFIFO, and begins to leave it.
    Leaves(Place, JobId),
    /// A record is in the dFIFO.
    InDurable { node: u8 },
    /// A record has left the vFIFO.
    LeftVolatile { node: u8 },
    /// A record has left the dFIFO.
    LeftDurable { node: u8 },
    /// What has left the dFIFO is in the log.
    Drained { node: u8, job: JobId },
    /// A worker has its answer.
    Answered { node: u8, worker: u16 },
}

/// A worker's request.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ask: WorkerAsk,
    /// Whether its thread has begun a write.
    writes: bool,
    since: Ps,
    communication: Ps,
}

/// A cluster.
pub struct ModelCluster {
    spec: ClusterSpec,
    queue: WheelQueue<Event>,
    nodes: Vec<Node>,
    links: Links,
    tasks: Vec<Option<Task>>,
    free: Vec<u32>,
    /// The content of every write.
    value: Value,
    events: u64,
    failure: Option<Refusal>,
}

impl ModelCluster {
    /// All nodes are up and members; no record has been written.
    pub fn new(spec: &ClusterSpec) -> Self {
        let members = NodeSet::first(spec.nodes);
        // Entries are counted here, from when they are taken; the engine would have to refuse.
        let deployment = match spec.deployment {
            Deployment::Offload(offload) => {
                Deployment::Offload(Offload { fifos: offload.fifos.map(|_| u16::MAX), ..offload })
            }
            Deployment::Baseline => Deployment::Baseline,
        };
        let mut spec = spec.clone();
        if spec.readings.free_receive {
            (spec.costs.host_dispatch, spec.costs.nic_dispatch) = (0, 0);
        }
        let spec = &spec;
        let node = |id| {
            let config =
                Config { deployment, stepped: true, steps: true, ..Config::new(NodeId(id), members, spec.model) };
            Node::new(config, spec)
        };
        let mut nodes: Vec<Node> = (0..spec.nodes).map(node).collect();
        for node in &mut nodes {
            node.replica.install(0, View::first(members));
            node.replica.set_lease(0, u64::MAX);
        }
        Self {
            queue: WheelQueue::new(),
            nodes,
            links: Links::new(&spec.costs, usize::from(spec.nodes)),
            tasks: Vec::new(),
            free: Vec::new(),
            value: vec![0; spec.costs.record as usize].into(),
            events: 0,
            failure: None,
            spec: spec.clone(),
        }
    }

    /// Runs until all workers have ended.
    pub fn run(&mut self, load: &mut dyn WorkerLoad) -> Result<(), ClusterError> {
        for node in 0..self.spec.nodes {
            (0..self.spec.workers).for_each(|worker| self.ask(node, worker, load));
        }
        while let Some((now, event)) = self.queue.pop() {
            self.events += 1;
            match event {
                Event::Ready(place, task) => {
                    self.processor(place).queue.push_back((place.thread, task));
                    self.assign(now, place);
                }
                Event::GoOn(place, task) => self.execute(now, place, task),
                Event::Free(place) => {
                    self.processor(place).idle += 1;
                    self.assign(now, place);
                }
                Event::Leaves(place, job) => self.leaves(now, place, job),
                Event::InDurable { node } => self.nodes[usize::from(node)].in_dfifo += 1,
                Event::LeftVolatile { node } => {
                    self.nodes[usize::from(node)].in_vfifo -= 1;
                    self.room(now, node);
                }
                Event::LeftDurable { node } => {
                    self.nodes[usize::from(node)].in_dfifo -= 1;
                    self.room(now, node);
                }
                Event::Drained { node, job } => self.nodes[usize::from(node)].replica.done(now.0 / 1000, job),
                Event::Answered { node, worker } => {
                    let pending = self.nodes[usize::from(node)].workers[usize::from(worker)].take();
                    if let Some(Pending { ask, since, communication, .. }) = pending {
                        let latency = now - since;
                        let communication = communication.min(latency);
                        load.done(node, worker, &WorkerDone { ask, at: now, latency, communication });
                        self.ask(node, worker, load);
                    }
                }
            }
            if let Some(refusal) = self.failure {
                return Err(ClusterError::Refused(refusal));
            }
        }
        let waiting = self.nodes.iter().flat_map(|node| &node.workers).filter(|worker| worker.is_some()).count();
        if waiting > 0 { Err(ClusterError::Stuck(waiting)) } else { Ok(()) }
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The part of the time so far that cores were busy, over all nodes: host cores and NIC cores.
    pub fn busy(&self) -> (f64, f64) {
        let span = self.queue.now().0.max(1) as f64 * f64::from(self.spec.nodes);
        let of = |on| {
            let busy: f64 = self.nodes.iter().map(|node| node.busy(on) as f64).sum();
            busy / (span * self.spec.costs.cores(on) as f64)
        };
        (of(Where::Host), of(Where::Nic))
    }

    /// The engine of a node.
    pub fn replica(&self, node: u8) -> Option<&remora_replica::ddp::Replica> {
        self.nodes.get(usize::from(node)).map(|node| &node.replica)
    }

    /// A worker's next request.
    fn ask(&mut self, node: u8, worker: u16, load: &mut dyn WorkerLoad) {
        let Some(ask) = load.next(node, worker) else { return };
        let now = self.queue.now();
        let pending = Pending { ask, writes: false, since: now, communication: Ps::ZERO };
        self.nodes[usize::from(node)].workers[usize::from(worker)] = Some(pending);
        let place = Place { node, on: Where::Host, thread: self.thread(node, worker) };
        self.ready(now, place, Task::Request(worker));
    }

    /// What the engine hears of a worker's request.
    fn request(&mut self, node: u8, worker: u16) -> Option<Request> {
        let scoped = self.spec.model.facts().scopes;
        let (value, nodes) = (self.value.clone(), u64::from(self.spec.nodes));
        let state = &mut self.nodes[usize::from(node)];
        let scopes = &mut state.scopes[usize::from(worker)];
        // A number that no other worker of the cluster uses.
        let workers = u64::from(self.spec.workers);
        let scope = (*scopes * nodes + u64::from(node)) * workers + u64::from(worker);
        let op = match state.workers[usize::from(worker)]?.ask {
            WorkerAsk::Read(key) => Op::Get(key),
            WorkerAsk::Write(key) => Op::Put(key, value),
            WorkerAsk::Persist => {
                *scopes += 1;
                Op::Persist
            }
        };
        let scope = (scoped && !matches!(op, Op::Get(_))).then_some(scope);
        Some(Request { scope, ..Request::new(u64::from(worker), op) })
    }

    fn keep(&mut self, task: Task) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.tasks[slot as usize] = Some(task);
                slot
            }
            None => {
                self.tasks.push(Some(task));
                self.tasks.len() as u32 - 1
            }
        }
    }

    fn take(&mut self, slot: u32) -> Option<Task> {
        let task = self.tasks[slot as usize].take();
        self.free.push(slot);
        task
    }

    fn ready(&mut self, at: Ps, place: Place, task: Task) {
        let task = self.keep(task);
        self.queue.push(at, Event::Ready(place, task));
    }

    /// The thread that a worker's requests belong to, here and at other nodes.
    fn thread(&self, node: u8, worker: u16) -> u8 {
        let number = u64::from(node) * u64::from(self.spec.workers) + u64::from(worker);
        (number % self.spec.costs.host_cores) as u8
    }

    fn processor(&mut self, place: Place) -> &mut Processor {
        self.nodes[usize::from(place.node)].processor(place.on, place.thread)
    }

    /// Gives tasks to idle cores.
    fn assign(&mut self, now: Ps, at: Place) {
        loop {
            let processor = self.processor(at);
            if processor.idle == 0 {
                return;
            }
            let Some((thread, task)) = processor.order.take(&mut processor.queue) else { return };
            if self.must_wait(at.node, task) {
                self.nodes[usize::from(at.node)].stalled.push_back((thread, task));
                continue;
            }
            if let Some(other) = self.instead(at, task) {
                self.processor(other).queue.push_back((other.thread, task));
                self.assign(now, other);
                continue;
            }
            self.processor(at).idle -= 1;
            self.execute(now, Place { thread, ..at }, task);
        }
    }

    /// Would this write find a FIFO full?
    fn must_wait(&self, node: u8, task: u32) -> bool {
        if self.nodes[usize::from(node)].has_room() {
            return false;
        }
        match self.tasks[task as usize].as_ref() {
            Some(Task::Message { message, .. }) => matches!(message.body, Body::Inv(_)),
            Some(Task::Done { job, .. }) => matches!(job, JobId::Cross(..)),
            _ => false,
        }
    }

    /// The thread that takes a peer's message or a worker's request instead of one that spins until its write is answered.
    fn instead(&self, at: Place, task: u32) -> Option<Place> {
        if !self.spec.readings.spin_on_acks || at.on == Where::Nic || !self.spins(at) {
            return None;
        }
        let others = match self.tasks[task as usize].as_ref()? {
            Task::Request(_) => true,
            Task::Message { message, .. } => {
                matches!(message.body, Body::Inv(_) | Body::Val(..) | Body::Persist(..) | Body::PersistVal(..))
            }
            _ => false,
        };
        let threads = self.spec.costs.host_cores as u8;
        let mut rest = (1..threads).map(|n| Place { thread: (at.thread + n) % threads, ..at });
        rest.find(|place| others && !self.spins(*place))
    }

    /// Whether a worker of this thread has begun a write that is not answered.
    fn spins(&self, at: Place) -> bool {
        let workers = self.nodes[usize::from(at.node)].workers.iter().zip(0..);
        workers
            .filter(|(pending, _)| pending.is_some_and(|pending| pending.writes))
            .any(|(_, worker)| self.thread(at.node, worker) == at.thread)
    }

    /// A FIFO has an entry more: what waited for one comes first.
    fn room(&mut self, now: Ps, node: u8) {
        let place = Place { node, on: Where::Nic, thread: 0 };
        while let Some(waiting) = self.nodes[usize::from(node)].stalled.pop_back() {
            self.processor(place).queue.push_front(waiting);
        }
        self.assign(now, place);
    }
}

#[cfg(test)]
mod tests;
