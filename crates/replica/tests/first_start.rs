//! An empty log: of a new cluster, or what is left of a disk.

use remora_nic::Now;
use remora_replica::ddp::{Config, Model, Op, Outcome, Request};
use remora_replica::log::{LogEnd, Record, decode};
use remora_replica::member::Standing;
use remora_replica::node::{Change, NodeOutput, ReplicaNode};
use remora_replica::types::{NodeId, NodeSet};

const MS: u64 = 1_000_000;

/// A cluster whose messages come at once and whose disks are quick.
struct Cluster {
    nodes: Vec<Option<ReplicaNode>>,
    logs: Vec<Vec<u8>>,
    now: u64,
    answers: Vec<(usize, Outcome)>,
}

impl Cluster {
    fn new(count: usize) -> Self {
        let (nodes, logs) = ((0..count).map(|_| None).collect(), vec![Vec::new(); count]);
        Self { nodes, logs, now: 7, answers: Vec::new() }
    }

    fn start(&mut self, node: usize) {
        let config = Config::new(NodeId(node as u8), NodeSet::first(self.nodes.len() as u8), Model::Synch);
        self.nodes[node] = Some(ReplicaNode::new(config, self.now, &self.logs[node]));
    }

    fn standing(&self, node: usize) -> Standing {
        self.nodes[node].as_ref().expect("it is up").standing()
    }

    /// Time passes.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += MS;
            for node in 0..self.nodes.len() {
                if let Some(engine) = &mut self.nodes[node]
                    && engine.next_timeout() <= self.now
                {
                    engine.timeout(&Now::simulated(self.now));
                }
            }
            while (0..self.nodes.len()).any(|node| self.work(node)) {}
        }
    }

    /// Does what a node asks for. False if it asks for nothing.
    fn work(&mut self, node: usize) -> bool {
        let now = Now::simulated(self.now);
        let Some(output) = self.nodes[node].as_mut().and_then(ReplicaNode::poll) else { return false };
        match output {
            NodeOutput::Send(to, packet) => {
                for to in to.iter().map(|to| usize::from(to.0)) {
                    if let Some(engine) = &mut self.nodes[to] {
                        engine.handle(&now, NodeId(node as u8), packet.clone());
                    }
                }
            }
            NodeOutput::Log(token, change) => {
                match change {
                    Change::Append(bytes) => self.logs[node].extend_from_slice(&bytes),
                    Change::Replace(bytes) => self.logs[node] = bytes,
                    Change::Compact(snapshot) => self.logs[node] = snapshot.encode(),
                }
                self.nodes[node].iter_mut().for_each(|engine| engine.persisted(&now, token));
            }
            NodeOutput::Reply(reply) => self.answers.push((node, reply.outcome)),
            NodeOutput::Job(job) => self.nodes[node].iter_mut().for_each(|engine| engine.done(&now, job.id())),
            NodeOutput::Step(_) => {}
        }
        true
    }

    fn ask(&mut self, node: usize, op: Op) -> Outcome {
        let now = Now::simulated(self.now);
        self.nodes[node].as_mut().expect("it is up").submit(&now, Request::new(1, op));
        for _ in 0..1000 {
            if let Some(at) = self.answers.iter().position(|(from, _)| *from == node) {
                return self.answers.remove(at).1;
            }
            self.run(1);
        }
        panic!("no answer");
    }
}

fn put(number: u8) -> Op {
    Op::Put(1, vec![number].into())
}

fn value(number: u8) -> Outcome {
    Outcome::Value(Some(vec![number].into()))
}

#[test]
fn a_new_cluster_begins_when_all_are_there() {
    let mut cluster = Cluster::new(3);
    cluster.start(0);
    cluster.start(1);
    cluster.run(1000);
    assert_eq!((cluster.standing(0), cluster.standing(1)), (Standing::New, Standing::New), "they wait for the third");
    cluster.start(2);
    cluster.run(100);
    assert!((0..3).all(|node| cluster.standing(node) == Standing::Serving));
    assert_eq!(cluster.ask(2, put(1)), Outcome::Written);
    assert_eq!(cluster.ask(0, Op::Get(1)), value(1));
}

#[test]
fn a_member_whose_disk_is_empty_has_lost_it_and_is_not_new() {
    for up in [[1, 2].as_slice(), &[0, 1, 2]] {
        let mut cluster = Cluster::new(3);
        (0..3).for_each(|node| cluster.start(node));
        cluster.run(100);
        assert_eq!(cluster.ask(0, put(1)), Outcome::Written);
        // It comes back at once, before anybody has missed it; or all come back, and nobody has been in a view before.
        up.iter().for_each(|&node| cluster.nodes[node] = None);
        cluster.logs[2].clear();
        up.iter().for_each(|&node| cluster.start(node));
        assert_eq!(cluster.standing(2), Standing::New);
        for _ in 0..10_000 {
            cluster.run(1);
            let engine = cluster.nodes[2].as_ref().expect("it is up");
            if engine.replica().serves() {
                break;
            }
        }
        let records = decode(&cluster.logs[2]).records;
        assert!(records.contains(&Record::Damaged), "its log says so, should it end again");
        assert_eq!((cluster.standing(2), cluster.ask(2, Op::Get(1))), (Standing::Serving, value(1)));
    }
}

#[test]
fn a_first_record_that_was_not_written_whole_is_as_good_as_none() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|node| cluster.start(node));
    cluster.run(100);
    let whole = cluster.logs[0].clone();
    let first = (1..).find(|&length| decode(&whole[..length]).end == LogEnd::Whole).expect("a record");
    let mut cluster = Cluster::new(3);
    cluster.logs[0] = whole[..first - 1].to_vec();
    (0..3).for_each(|node| cluster.start(node));
    assert_eq!(cluster.standing(0), Standing::New);
    cluster.run(100);
    assert!((0..3).all(|node| cluster.standing(node) == Standing::Serving));
}
