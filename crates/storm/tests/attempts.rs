//! Requests that are sent again, closer together than storms have them: a few clients of one record, who wait for an
//! answer for a short time or none, messages and jobs in any order, and nodes that crash and come back empty.

use remora_replica::ddp::{
    Config, Deployment, JobId, Message, Model, Offload, Op, Outcome, Replica, ReplicaOutput, Request, Session, View,
};
use remora_replica::types::{NodeId, NodeSet, Value};
use remora_storm::linear::{Effect, Invocation, Verdict, check};
use remora_storm::rng::{Purpose, Rng};

const KEY: u64 = 7;
const NODES: u8 = 3;
const CLIENTS: u64 = 3;
/// Requests of each client.
const REQUESTS: u64 = 4;
/// After so many events nothing is lost, nobody crashes, and clients wait.
const ROUGH: u64 = 600;

/// What may happen next.
#[derive(Clone)]
enum Ahead {
    Message(NodeId, NodeId, Message),
    Job(NodeId, u64, JobId),
    Request(NodeId, u64, Request),
    View(NodeId, View),
}

/// A client, which has one request at a time.
struct Client {
    session: Session,
    op: Op,
    /// Of the last attempt, to whose answer alone it listens.
    tag: u64,
    /// Its request in the history; `None` when all are answered.
    call: Option<usize>,
}

struct World {
    rng: Rng,
    nodes: Vec<Option<Replica>>,
    /// How often each began.
    lives: Vec<u64>,
    view: View,
    ahead: Vec<Ahead>,
    clients: Vec<Client>,
    calls: Vec<Invocation>,
    tags: u64,
    now: u64,
    /// Ways on which messages are late.
    slow: Vec<(NodeId, NodeId)>,
    crashes: u32,
    config: Config,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, Purpose::Shape);
        let all = NodeSet::first(NODES);
        let mut config = Config::new(NodeId(0), all, *rng.pick(&Model::ALL));
        config.stepped = rng.chance(500_000);
        if rng.chance(500_000) {
            let fifos = rng.chance(700_000).then_some(5);
            config.deployment = Deployment::Offload(Offload { fifos, ..Offload::FULL });
        }
        let node = |rng: &mut Rng| NodeId(rng.below(NODES.into()) as u8);
        let slow = (0..rng.below(4)).map(|_| (node(&mut rng), node(&mut rng))).collect();
        let crashes = *rng.pick(&[2_000, 10_000, 30_000]);
        let mut world = Self {
            rng,
            nodes: (0..NODES).map(|_| None).collect(),
            lives: vec![0; usize::from(NODES)],
            view: View::first(all),
            ahead: Vec::new(),
            clients: Vec::new(),
            calls: Vec::new(),
            tags: 0,
            now: 1,
            slow,
            crashes,
            config,
        };
        all.iter().for_each(|id| world.start(id));
        for client in 0..CLIENTS {
            let session = Session { client, sequence: 0, attempt: 0 };
            world.clients.push(Client { session, op: Op::Get(KEY), tag: 0, call: None });
            world.next(client as usize);
        }
        world
    }

    /// A node begins, with nothing, in the newest view.
    fn start(&mut self, id: NodeId) {
        let mut replica = Replica::new(Config { id, ..self.config.clone() });
        replica.install(self.now, self.view);
        replica.set_lease(self.now, u64::MAX);
        self.lives[usize::from(id.0)] += 1;
        self.nodes[usize::from(id.0)] = Some(replica);
        self.pump(id);
    }

    /// A view comes to all others, to each at some time.
    fn change(&mut self, members: NodeSet, learners: NodeSet) {
        self.view = View { epoch: self.view.epoch + 1, members, learners, recovery: false };
        let view = self.view;
        let up = view.all().iter().filter(|id| self.nodes[usize::from(id.0)].is_some());
        self.ahead.extend(up.map(|id| Ahead::View(id, view)));
    }

    fn pump(&mut self, id: NodeId) {
        let at = usize::from(id.0);
        while let Some(output) = self.nodes[at].as_mut().and_then(Replica::poll) {
            match output {
                ReplicaOutput::Send { to, message } => {
                    self.ahead.extend(to.iter().map(|to| Ahead::Message(id, to, message.clone())));
                }
                ReplicaOutput::Job(job) => self.ahead.push(Ahead::Job(id, self.lives[at], job.id())),
                ReplicaOutput::Reply(reply) => self.answered(reply.tag, &reply.outcome),
                ReplicaOutput::Step(_) => {}
            }
        }
    }

    fn answered(&mut self, tag: u64, outcome: &Outcome) {
        let Some(index) = self.clients.iter().position(|client| client.tag == tag) else { return };
        let rough = self.now < ROUGH;
        let Some(call) = self.clients[index].call.filter(|_| !rough || self.rng.chance(800_000)) else { return };
        let invocation = &mut self.calls[call];
        match (&mut invocation.effect, outcome) {
            (_, Outcome::Unknown | Outcome::Refused(_)) => return self.attempt(index),
            (Effect::Get(value), Outcome::Value(read)) => *value = read.as_ref().map(number),
            (Effect::FetchAdd { found, .. }, Outcome::Added(before)) => {
                *found = Some((*before != 0).then_some(*before));
            }
            (Effect::CompareSwap { expected, found, .. }, Outcome::Swapped) => *found = Some(*expected),
            (Effect::CompareSwap { found, .. }, Outcome::NotSwapped(other)) => {
                *found = Some(other.as_ref().map(number));
            }
            (Effect::Put(_) | Effect::Delete, Outcome::Written) => {}
            (effect, _) => panic!("{outcome:?} for {effect:?}"),
        }
        invocation.returned = Some(self.now);
        self.next(index);
    }

    /// A client's next request.
    fn next(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.call = None;
        if client.session.sequence == REQUESTS {
            client.tag = 0;
            return;
        }
        client.session = Session { sequence: client.session.sequence + 1, attempt: 0, ..client.session };
        let new = 1000 * (1 + self.calls.len() as u64);
        let seen = self.nodes.iter().flatten().next().and_then(|node| node.peek(KEY));
        let expected = seen.as_ref().map(number);
        let (op, effect) = match self.rng.below(10) {
            0..4 => (Op::Put(KEY, value(new)), Effect::Put(new)),
            4 => (Op::Delete(KEY), Effect::Delete),
            5 | 6 => (Op::FetchAdd(KEY, 1), Effect::FetchAdd { delta: 1, found: None }),
            7 | 8 => (
                Op::CompareSwap { key: KEY, expected: seen, new: Some(value(new)) },
                Effect::CompareSwap { expected, new, found: None },
            ),
            _ => (Op::Get(KEY), Effect::Get(None)),
        };
        client.op = op;
        self.call(index, effect);
    }

    fn call(&mut self, index: usize, effect: Effect) {
        self.clients[index].call = Some(self.calls.len());
        self.calls.push(Invocation {
            invoked: self.now,
            returned: None,
            effect,
            firm_write: true,
            firm_read: true,
            attempt: None,
        });
        self.ask(index);
    }

    fn attempt(&mut self, index: usize) {
        self.clients[index].session.attempt += 1;
        self.ask(index);
    }

    fn ask(&mut self, index: usize) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|&at| self.nodes[at].is_some()).collect();
        let at = *self.rng.pick(&up);
        self.tags += 1;
        let client = &mut self.clients[index];
        client.tag = self.tags;
        let reads = matches!(client.op, Op::Get(_));
        let session = (!reads).then_some(client.session);
        let scope = (self.config.model == Model::Scope && !reads).then_some(1);
        let request = Request { session, scope, ..Request::new(self.tags, client.op.clone()) };
        self.ahead.push(Ahead::Request(NodeId(at as u8), self.lives[at], request));
    }

    fn event(&mut self) {
        self.now += 1;
        let rough = self.now < ROUGH;
        if rough && self.rng.chance(30_000) {
            let index = self.rng.below(CLIENTS) as usize;
            if self.clients[index].call.is_some() {
                self.attempt(index);
            }
        }
        if rough && self.rng.chance(self.crashes) && self.view.members == NodeSet::first(NODES) {
            let id = NodeId(self.rng.below(NODES.into()) as u8);
            self.nodes[usize::from(id.0)] = None;
            self.change(self.view.members.without(id), NodeSet::EMPTY);
        }
        let late: Vec<NodeId> = NodeSet::first(NODES).minus(self.view.members).iter().collect();
        for id in late {
            if !self.rng.chance(10_000) {
                continue;
            }
            match &self.nodes[usize::from(id.0)] {
                None => {
                    self.change(self.view.members, NodeSet::one(id));
                    self.start(id);
                }
                Some(node) if node.view() == self.view && node.caught_up() => {
                    self.change(self.view.members.with(id), NodeSet::EMPTY);
                }
                Some(_) => {}
            }
        }
        if self.ahead.is_empty() || self.rng.chance(5_000) {
            self.tick();
        }
        if self.ahead.is_empty() {
            return;
        }
        let mut at = self.rng.below(self.ahead.len() as u64) as usize;
        if rough
            && let Ahead::Message(from, to, _) = self.ahead[at]
            && self.slow.contains(&(from, to))
            && self.rng.chance(900_000)
        {
            at = self.rng.below(self.ahead.len() as u64) as usize;
        }
        let lossy = rough && matches!(self.ahead[at], Ahead::Message(..));
        let next = if lossy && self.rng.chance(50_000) { self.ahead[at].clone() } else { self.ahead.swap_remove(at) };
        if lossy && self.rng.chance(100_000) {
            return;
        }
        let now = self.now;
        let (Ahead::Message(_, id, _) | Ahead::Job(id, ..) | Ahead::Request(id, ..) | Ahead::View(id, _)) = next;
        let life = self.lives[usize::from(id.0)];
        let Some(node) = &mut self.nodes[usize::from(id.0)] else { return };
        match next {
            Ahead::Message(from, _, message) => node.handle(now, from, message),
            Ahead::Job(_, of, job) if of == life => node.done(now, job),
            Ahead::Request(_, of, request) if of == life => node.submit(now, request),
            Ahead::View(_, view) => {
                node.install(now, view);
                node.set_lease(now, u64::MAX);
            }
            Ahead::Job(..) | Ahead::Request(..) => {}
        }
        self.pump(id);
    }

    /// All is late that may be.
    fn tick(&mut self) {
        for id in NodeSet::first(NODES).iter() {
            if let Some(node) = &mut self.nodes[usize::from(id.0)] {
                node.timeout(self.now * self.config.retry);
            }
            self.pump(id);
        }
        // Whose node is gone hears of it in the end.
        if self.now >= ROUGH && self.ahead.is_empty() && self.nodes.iter().all(Option::is_some) {
            let waiting: Vec<usize> = (0..self.clients.len()).filter(|&at| self.clients[at].call.is_some()).collect();
            waiting.into_iter().for_each(|index| self.attempt(index));
        }
    }

    fn run(mut self) -> Result<(), String> {
        while self.clients.iter().any(|client| client.call.is_some()) {
            self.event();
            if self.now > 40 * ROUGH {
                let told: Vec<String> = self.nodes.iter().flatten().map(Replica::describe).collect();
                return Err(format!("it does not end: {told:#?}"));
            }
        }
        // What was sent before may come yet. Then all read.
        for _ in 0..3000 {
            self.event();
        }
        for index in 0..self.clients.len() {
            self.clients[index].session.sequence = REQUESTS;
            self.clients[index].op = Op::Get(KEY);
            self.call(index, Effect::Get(None));
        }
        while self.clients.iter().any(|client| client.call.is_some()) {
            self.event();
        }
        match check(&self.calls) {
            Verdict::Violation(rest) => {
                let Config { model, deployment, stepped, .. } = &self.config;
                Err(format!("{model}, {deployment:?}, stepped {stepped}: {rest:?} of {:#?}", self.calls))
            }
            Verdict::Linearizable | Verdict::GaveUp => Ok(()),
        }
    }
}

fn value(number: u64) -> Value {
    number.to_le_bytes().as_slice().into()
}

fn number(value: &Value) -> u64 {
    u64::from_le_bytes(value.as_ref().try_into().expect("eight bytes"))
}

/// Seeds that failed once: marks that some nodes had and others not, and a put that could be read though a newer one,
/// which did not know it, was on its way.
const FOUND: [u64; 3] = [29_656, 42_138, 150_757];

#[test]
fn a_request_is_done_once_however_often_it_is_sent() {
    for seed in FOUND.into_iter().chain(0..3000) {
        if let Err(found) = World::new(seed).run() {
            panic!("seed {seed}: {found}");
        }
    }
}
