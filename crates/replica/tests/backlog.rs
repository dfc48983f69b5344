//! A disk that is slower than clients are, where those do not wait for it.

use remora_nic::Now;
use remora_replica::bounds::{BACKLOG, MAX_VALUE};
use remora_replica::ddp::{Config, Deployment, Model, Offload, Op, Outcome, Refusal, Request};
use remora_replica::member::Standing;
use remora_replica::node::{Change, NodeOutput, ReplicaNode};
use remora_replica::types::{NodeId, NodeSet};

/// Three nodes whose messages arrive at once, and one of which has a log that is not written before the test says so.
struct Nodes {
    nodes: Vec<ReplicaNode>,
    now: u64,
    outcomes: Vec<Outcome>,
    slow: Option<usize>,
    late: Vec<u64>,
    waits: usize,
}

impl Nodes {
    fn new(config: impl Fn(NodeId) -> Config) -> Self {
        let nodes = NodeSet::first(3).iter().map(|id| ReplicaNode::new(config(id), 1, &[])).collect();
        let mut this = Self { nodes, now: 1, outcomes: Vec::new(), slow: None, late: Vec::new(), waits: 0 };
        this.run();
        while !this.nodes.iter().all(|node| node.standing() == Standing::Serving && node.replica().serves()) {
            this.pass();
        }
        this
    }

    fn pass(&mut self) {
        self.now += 5_000_000;
        let now = Now::simulated(self.now);
        self.nodes.iter_mut().for_each(|node| node.timeout(&now));
        self.run();
    }

    fn run(&mut self) {
        let now = Now::simulated(self.now);
        loop {
            let mut messages = Vec::new();
            for (index, node) in self.nodes.iter_mut().enumerate() {
                while let Some(output) = node.poll() {
                    match output {
                        NodeOutput::Send(to, packet) => messages.push((NodeId(index as u8), to, packet)),
                        NodeOutput::Log(token, change) if self.slow == Some(index) => {
                            let Change::Append(bytes) = change else { continue };
                            self.waits += bytes.len();
                            self.late.push(token);
                        }
                        NodeOutput::Log(token, _) => node.persisted(&now, token),
                        NodeOutput::Reply(reply) => self.outcomes.push(reply.outcome),
                        NodeOutput::Job(job) => node.done(&now, job.id()),
                        NodeOutput::Step(_) => {}
                    }
                }
            }
            if messages.is_empty() {
                return;
            }
            for (from, to, packet) in messages {
                to.iter().for_each(|to| self.nodes[usize::from(to.0)].handle(&now, from, packet.clone()));
            }
        }
    }

    fn put(&mut self, number: u64, scope: bool) {
        let op = Op::Put(number % 8, vec![number as u8; MAX_VALUE].into());
        let request = Request { scope: scope.then_some(7), ..Request::new(number, op) };
        self.nodes[0].submit(&Now::simulated(self.now), request);
        self.run();
    }
}

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
            let mut nodes = Nodes::new(|id| Config { deployment, ..Config::new(id, NodeSet::first(3), model) });
            nodes.slow = Some(slow);
            for number in 0..400 {
                nodes.put(number, model == Model::Scope);
                // A client of each address has so much at a node at most, and asks again later.
                if number % 16 == 15 {
                    nodes.pass();
                }
            }
            assert!(nodes.waits < BACKLOG + 32 * MAX_VALUE, "{model} {deployment:?} {slow}: {} MB", nodes.waits >> 20);
            let busy = nodes.outcomes.iter().filter(|it| **it == Outcome::Refused(Refusal::Busy)).count();
            assert!(slow != 0 || busy > 100, "{model} {deployment:?}: {busy} are asked again later");
            // The disk takes what waits, and writes go on.
            nodes.slow = None;
            let now = Now::simulated(nodes.now);
            std::mem::take(&mut nodes.late).into_iter().for_each(|token| nodes.nodes[slow].persisted(&now, token));
            nodes.run();
            (0..100).for_each(|_| nodes.pass());
            nodes.outcomes.clear();
            nodes.put(1000, model == Model::Scope);
            assert_eq!(nodes.outcomes, [Outcome::Written], "{model} {deployment:?} {slow}");
        }
    }
}
