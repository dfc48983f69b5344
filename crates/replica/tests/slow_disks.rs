//! Nodes of which one has a disk that neither does nor fails what it is asked for, for some seconds or longer.

use std::collections::VecDeque;

use remora_nic::Now;
use remora_replica::bounds::{BACKLOG, MAX_VALUE};
use remora_replica::ddp::{Config, Deployment, Model, Offload, Op, Outcome, Refusal, Request};
use remora_replica::member::Standing;
use remora_replica::node::{Change, NodeOutput, ReplicaNode};
use remora_replica::types::{NodeId, NodeSet};

const SECOND: u64 = 1_000_000_000;

/// Messages arrive at once, and writes are durable at once, but for those of a node whose disk takes nothing.
struct Nodes {
    model: Model,
    nodes: Vec<ReplicaNode>,
    now: u64,
    /// Requests so far.
    number: u64,
    outcomes: VecDeque<Outcome>,
    stuck: Option<Stuck>,
    /// Whose machines are off.
    off: NodeSet,
}

/// Whose disk it is, what it was given, and how many bytes of records that is.
#[derive(Default)]
struct Stuck {
    node: usize,
    late: Vec<u64>,
    bytes: usize,
}

impl Nodes {
    fn new(count: u8, model: Model) -> Self {
        Self::deployed(count, model, Deployment::Baseline)
    }

    fn deployed(count: u8, model: Model, deployment: Deployment) -> Self {
        let config = |id| Config { deployment, ..Config::new(NodeId(id), NodeSet::first(count), model) };
        let nodes = (0..count).map(|id| ReplicaNode::new(config(id), 1, &[])).collect();
        let mut this =
            Self { model, nodes, now: 1, number: 0, outcomes: VecDeque::new(), stuck: None, off: NodeSet::EMPTY };
        this.run();
        this.until(60 * SECOND, |nodes| nodes.all_serve());
        this
    }

    fn run(&mut self) {
        let now = Now::simulated(self.now);
        loop {
            let mut messages = Vec::new();
            for (index, node) in self.nodes.iter_mut().enumerate() {
                while let Some(output) = node.poll() {
                    match output {
                        NodeOutput::Send(to, packet) => messages.push((NodeId(index as u8), to, packet)),
                        NodeOutput::Log(token, change) => match &mut self.stuck {
                            Some(stuck) if stuck.node == index => {
                                stuck.late.push(token);
                                stuck.bytes += if let Change::Append(bytes) = change { bytes.len() } else { 0 };
                            }
                            _ => node.persisted(&now, token),
                        },
                        NodeOutput::Reply(reply) => self.outcomes.push_back(reply.outcome),
                        NodeOutput::Job(job) => node.done(&now, job.id()),
                        NodeOutput::Step(_) => {}
                    }
                }
            }
            if messages.is_empty() {
                return;
            }
            for (from, to, packet) in messages.into_iter().filter(|(from, ..)| !self.off.has(*from)) {
                to.minus(self.off)
                    .iter()
                    .for_each(|to| self.nodes[usize::from(to.0)].handle(&now, from, packet.clone()));
            }
        }
    }

    fn pass(&mut self) {
        self.now += 5_000_000;
        let now = Now::simulated(self.now);
        self.nodes.iter_mut().filter(|node| node.next_timeout() <= now.time()).for_each(|node| node.timeout(&now));
        self.run();
    }

    fn until(&mut self, most: u64, mut is_so: impl FnMut(&Self) -> bool) {
        let end = self.now + most;
        while !is_so(self) {
            assert!(self.now < end, "{}: {}", self.model, self.describe());
            self.pass();
        }
    }

    fn describe(&self) -> String {
        self.nodes.iter().map(ReplicaNode::describe).collect::<Vec<_>>().join("\n")
    }

    fn all_serve(&self) -> bool {
        let everybody = NodeSet::first(self.nodes.len() as u8);
        self.nodes.iter().all(|node| {
            node.standing() == Standing::Serving && node.view().members == everybody && node.replica().serves()
        })
    }

    fn submit(&mut self, node: usize, op: Op) {
        let scoped = self.model == Model::Scope && !matches!(op, Op::Get(_));
        self.number += 1;
        let request = Request { scope: scoped.then_some(7), ..Request::new(self.number, op) };
        self.nodes[node].submit(&Now::simulated(self.now), request);
        self.run();
    }

    fn stick(&mut self, node: usize) {
        self.stuck = Some(Stuck { node, ..Stuck::default() });
    }

    /// The answer, as soon as there is one.
    fn ask(&mut self, node: usize, op: Op) -> Outcome {
        self.submit(node, op);
        self.until(10 * SECOND, |nodes| !nodes.outcomes.is_empty());
        self.outcomes.pop_front().expect("an answer")
    }

    /// The disk goes on, and so does its node.
    fn goes_on(&mut self) {
        let Stuck { node, late, .. } = self.stuck.take().expect("one is stuck");
        let now = Now::simulated(self.now);
        late.into_iter().for_each(|token| self.nodes[node].persisted(&now, token));
        self.run();
    }
}

fn put(value: &[u8]) -> Op {
    Op::Put(3, value.into())
}

/// Writes, PERSIST, and in some models reads wait for every disk. One that does nothing keeps them waiting for some seconds.
#[test]
fn a_node_whose_disk_takes_nothing_is_left_out() {
    for (model, stuck) in Model::ALL.into_iter().flat_map(|model| [(model, 0), (model, 2)]) {
        let mut nodes = Nodes::new(3, model);
        assert_eq!(nodes.ask(0, put(b"before")), Outcome::Written);
        nodes.stick(stuck);
        // Whoever asked is answered, or does not know.
        nodes.submit(1, put(b"meanwhile"));
        if model == Model::Scope {
            nodes.submit(1, Op::Persist);
        }
        let others = [1, 2 - stuck];
        let left_out = |nodes: &Nodes| {
            others.iter().all(|&node| {
                let (view, node) = (nodes.nodes[node].view(), &nodes.nodes[node]);
                view.members.len() == 2 && view.learners.is_empty() && node.replica().serves()
            })
        };
        nodes.until(30 * SECOND, left_out);
        let asked = if model == Model::Scope { 2 } else { 1 };
        nodes.until(SECOND, |nodes| nodes.outcomes.len() == asked);
        let all = nodes.outcomes.drain(..).collect::<Vec<_>>();
        assert!(all.iter().all(|it| matches!(it, Outcome::Written | Outcome::Persisted)), "{all:?}");
        assert_eq!(nodes.ask(others[1], Op::Get(3)), Outcome::Value(Some(b"meanwhile"[..].into())), "{model}");
        assert_eq!(nodes.ask(others[1], put(b"without")), Outcome::Written, "{model}");
        if model == Model::Scope {
            assert_eq!(nodes.ask(others[1], Op::Persist), Outcome::Persisted);
        }
        nodes.until(SECOND, left_out);
        nodes.goes_on();
        nodes.until(60 * SECOND, Nodes::all_serve);
        assert_eq!(nodes.ask(stuck, Op::Get(3)), Outcome::Value(Some(b"without"[..].into())), "{model}");
        assert_eq!(nodes.ask(stuck, put(b"after")), Outcome::Written, "{model}");
    }
}

/// A node that the others cannot do without helps nobody by its silence: reads go on.
#[test]
fn a_node_without_which_there_is_no_majority_stays() {
    for (count, off) in [(1, 0), (2, 0), (3, 1)] {
        let mut nodes = Nodes::new(count, Model::Synch);
        assert_eq!(nodes.ask(0, put(b"before")), Outcome::Written);
        if off > 0 {
            nodes.off = NodeSet::one(NodeId(2));
            nodes.until(10 * SECOND, |nodes| {
                nodes.nodes[0].view().members.len() == 2 && nodes.nodes[1].replica().serves()
            });
        }
        nodes.stick(0);
        nodes.submit(0, Op::Put(4, b"meanwhile"[..].into()));
        for _ in 0..40 {
            (0..100).for_each(|_| nodes.pass());
            let last = usize::from(count) - 1 - off;
            assert_eq!(nodes.ask(last, Op::Get(3)), Outcome::Value(Some(b"before"[..].into())), "{count}, {off} off");
        }
        nodes.goes_on();
        nodes.until(SECOND, |nodes| !nodes.outcomes.is_empty());
        assert_eq!(nodes.outcomes.pop_front(), Some(Outcome::Written));
    }
}

/// Where clients do not wait for the disk they may outrun it, and no node's memory is without bound.
#[test]
fn what_waits_for_a_slow_disk_is_bounded() {
    let offload = Deployment::Offload(Offload { fifos: Some(16_384), ..Offload::FULL });
    for (model, deployment) in [
        (Model::Scope, Deployment::Baseline),
        (Model::Scope, offload),
        (Model::REnf, Deployment::Baseline),
        (Model::REnf, offload),
    ] {
        // The coordinator's disk, and a follower's.
        for slow in [0, 2] {
            let mut nodes = Nodes::deployed(3, model, deployment);
            nodes.stick(slow);
            for number in 0..400u64 {
                nodes.submit(0, Op::Put(number % 8, vec![number as u8; MAX_VALUE].into()));
                // A client of each address has so much at a node at most, and asks again later.
                if number % 16 == 15 {
                    nodes.pass();
                }
            }
            let waits = nodes.stuck.as_ref().map_or(0, |stuck| stuck.bytes);
            assert!(waits < BACKLOG + 32 * MAX_VALUE, "{model} {deployment:?} {slow}: {} MB", waits >> 20);
            let busy = nodes.outcomes.iter().filter(|it| **it == Outcome::Refused(Refusal::Busy)).count();
            assert!(slow != 0 || busy > 100, "{model} {deployment:?}: {busy} are asked again later");
            // The disk takes what waits, and writes go on.
            nodes.goes_on();
            (0..100).for_each(|_| nodes.pass());
            nodes.outcomes.clear();
            nodes.submit(0, Op::Put(0, [1; 8][..].into()));
            assert_eq!(nodes.outcomes, [Outcome::Written], "{model} {deployment:?} {slow}");
        }
    }
}
