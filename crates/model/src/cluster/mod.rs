//! A modelled cluster: replicas of MINOS on hosts with SmartNICs, joined by a network without loss.
//!
//! The engine is [`remora_replica::ddp::Replica`] as it is. It tells what it does in steps, messages and jobs; this
//! world says how long each takes and where, after a platform's section `replication`. A node has host cores and NIC
//! cores, each set behind one queue, PCIe both ways and a network port both ways. A core that persists waits for it, as
//! in the paper's emulation; the dFIFO and what is on a link occupy none.
//!
//! In MINOS-B each message crosses PCIe at both ends and runs on host cores; in MINOS-O the NIC's cores take it. A
//! SmartNIC whose FIFOs are full leaves writes where they are until there is room, so that nothing is refused or sent
//! again.

mod costs;
mod links;
mod node;
mod run;

use remora_replica::ddp::{Config, Deployment, JobId, Message, Model, Op, Refusal, Request, View, Where};
use remora_replica::types::{Key, NodeId, NodeSet, Value};

pub use costs::Costs;

use crate::event::Queue;
use crate::time::Ps;
use links::Links;
use node::Node;

/// What a cluster is like.
#[derive(Clone, Debug)]
pub struct Spec {
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
}

/// What a worker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Read a record.
    Read(Key),
    /// Write a record.
    Write(Key),
    /// End the worker's scope. Only with the Scope model, and after a write.
    Persist,
}

/// How a worker's request went.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// What it was.
    pub ask: Ask,
    /// When it ended.
    pub at: Ps,
    /// From asking to the answer.
    pub latency: Ps,
    /// The part of a write's latency that the messages took which its answer waited for, from the beginning of their
    /// sending to their arrival; the rest is computation, with waiting for cores and for persists. Zero for reads.
    pub communication: Ps,
}

/// Workers: what they ask for.
pub trait Load {
    /// The next request of a worker; `None` ends it.
    fn next(&mut self, node: u8, worker: u16) -> Option<Ask>;
    /// A request has ended.
    fn done(&mut self, node: u8, worker: u16, done: &Done);
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
    Message { from: NodeId, message: Message, communication: Ps },
    /// A job has been done; taking its write apart takes a time first.
    Done { job: JobId, unpack: Ps },
    /// Host work of a time, after which a worker has its answer.
    Answer { worker: u16, work: Ps, communication: Ps },
    /// Host work of a time: a message that the NIC handed up.
    Notice { work: Ps },
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A task is there.
    Ready { node: u8, on: Where, task: u32 },
    /// A core goes on with a task that belongs to it.
    GoOn { node: u8, on: Where, task: u32 },
    /// A core is free.
    Free { node: u8, on: Where },
    /// A FIFO may have room again.
    Room { node: u8 },
    /// An entry has left the dFIFO.
    Drained { node: u8, task: u32 },
    /// A worker has its answer.
    Answered { node: u8, worker: u16 },
}

/// A worker's request.
#[derive(Clone, Copy, Debug)]
struct Pending {
    ask: Ask,
    since: Ps,
    communication: Ps,
}

/// A cluster.
pub struct Cluster {
    spec: Spec,
    queue: Queue<Event>,
    nodes: Vec<Node>,
    links: Links,
    tasks: Vec<Option<Task>>,
    free: Vec<u32>,
    /// The content of every write.
    value: Value,
    events: u64,
    failure: Option<Refusal>,
}

impl Cluster {
    /// All nodes are up and members; no record has been written.
    pub fn new(spec: &Spec) -> Self {
        let members = NodeSet::first(spec.nodes);
        let node = |id| {
            let config = Config {
                deployment: spec.deployment,
                stepped: true,
                steps: true,
                ..Config::new(NodeId(id), members, spec.model)
            };
            Node::new(config, spec)
        };
        let mut nodes: Vec<Node> = (0..spec.nodes).map(node).collect();
        for node in &mut nodes {
            node.replica.install(0, View::first(members));
            node.replica.set_lease(0, u64::MAX);
        }
        Self {
            queue: Queue::new(),
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
    pub fn run(&mut self, load: &mut dyn Load) -> Result<(), ClusterError> {
        for node in 0..self.spec.nodes {
            (0..self.spec.workers).for_each(|worker| self.ask(node, worker, load));
        }
        while let Some((now, event)) = self.queue.pop() {
            self.events += 1;
            match event {
                Event::Ready { node, on, task } => {
                    self.nodes[usize::from(node)].processor(on).queue.push_back(task);
                    self.assign(now, node, on);
                }
                Event::GoOn { node, on, task } => self.execute(now, node, on, task),
                Event::Free { node, on } => {
                    self.nodes[usize::from(node)].processor(on).idle += 1;
                    self.assign(now, node, on);
                }
                Event::Room { node } => self.room(now, node),
                Event::Drained { node, task } => self.drained(now, node, task),
                Event::Answered { node, worker } => {
                    let pending = self.nodes[usize::from(node)].workers[usize::from(worker)].take();
                    if let Some(Pending { ask, since, communication }) = pending {
                        let latency = now - since;
                        let communication = communication.min(latency);
                        load.done(node, worker, &Done { ask, at: now, latency, communication });
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
            let busy: f64 = self.nodes.iter().map(|node| node.busy(on).0 as f64).sum();
            busy / (span * self.spec.costs.cores(on) as f64)
        };
        (of(Where::Host), of(Where::Nic))
    }

    /// The engine of a node.
    pub fn replica(&self, node: u8) -> Option<&remora_replica::ddp::Replica> {
        self.nodes.get(usize::from(node)).map(|node| &node.replica)
    }

    /// A worker's next request.
    fn ask(&mut self, node: u8, worker: u16, load: &mut dyn Load) {
        let Some(ask) = load.next(node, worker) else { return };
        let now = self.queue.now();
        let pending = Pending { ask, since: now, communication: Ps::ZERO };
        self.nodes[usize::from(node)].workers[usize::from(worker)] = Some(pending);
        self.ready(now, node, Where::Host, Task::Request(worker));
    }

    /// What the engine hears of a worker's request.
    fn request(&mut self, node: u8, worker: u16) -> Option<Request> {
        let scoped = self.spec.model == Model::Scope;
        let (value, nodes) = (self.value.clone(), u64::from(self.spec.nodes));
        let state = &mut self.nodes[usize::from(node)];
        let scopes = &mut state.scopes[usize::from(worker)];
        // A number that no other worker of the cluster uses.
        let workers = u64::from(self.spec.workers);
        let scope = (*scopes * nodes + u64::from(node)) * workers + u64::from(worker);
        let op = match state.workers[usize::from(worker)]?.ask {
            Ask::Read(key) => Op::Get(key),
            Ask::Write(key) => Op::Put(key, value),
            Ask::Persist => {
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

    fn ready(&mut self, at: Ps, node: u8, on: Where, task: Task) {
        let task = self.keep(task);
        self.queue.push(at, Event::Ready { node, on, task });
    }

    /// Gives tasks to idle cores.
    fn assign(&mut self, now: Ps, node: u8, on: Where) {
        loop {
            let state = &mut self.nodes[usize::from(node)];
            let processor = state.processor(on);
            if processor.idle == 0 {
                return;
            }
            let Some(task) = processor.queue.pop_front() else { return };
            if self.must_wait(node, task) {
                self.nodes[usize::from(node)].stalled.push_back((on, task));
                continue;
            }
            self.nodes[usize::from(node)].processor(on).idle -= 1;
            self.execute(now, node, on, task);
        }
    }

    /// Would this write find a FIFO full?
    fn must_wait(&self, node: u8, task: u32) -> bool {
        let state = &self.nodes[usize::from(node)];
        if state.has_room() {
            return false;
        }
        match self.tasks[task as usize].as_ref() {
            Some(&Task::Request(worker)) => {
                matches!(state.workers[usize::from(worker)], Some(Pending { ask: Ask::Write(_), .. }))
            }
            Some(Task::Message { message, .. }) => matches!(message.body, remora_replica::ddp::Body::Inv(_)),
            _ => false,
        }
    }

    /// A FIFO has an entry more: what waited for one comes first.
    fn room(&mut self, now: Ps, node: u8) {
        let state = &mut self.nodes[usize::from(node)];
        while let Some((on, task)) = state.stalled.pop_back() {
            state.processor(on).queue.push_front(task);
        }
        self.assign(now, node, Where::Nic);
        self.assign(now, node, Where::Host);
    }

    fn drained(&mut self, now: Ps, node: u8, task: u32) {
        if let Some(Task::Done { job, .. }) = self.take(task) {
            let state = &mut self.nodes[usize::from(node)];
            state.in_dfifo -= 1;
            state.replica.done(now.0 / 1000, job);
        }
        self.room(now, node);
    }
}

#[cfg(test)]
mod tests;
