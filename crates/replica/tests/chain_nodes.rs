//! Nodes of a chain with their membership, one of which has a memory that is not what it should be.

use std::collections::VecDeque;

use remora_nic::Now;
use remora_replica::chain::{
    ChainConfig, ChainNode, ChainNodeOutput, ChainOutcome, ChainRefusal, ChainRequest, Extent, Transaction, Tuple,
};
use remora_replica::member::Standing;
use remora_replica::types::{NodeId, NodeSet};

const DATA: usize = 4096;

/// Messages arrive at once, and writes are durable at once, but for those of a node whose disk takes nothing.
struct Nodes {
    nodes: Vec<ChainNode>,
    images: Vec<Vec<u8>>,
    now: u64,
    outcomes: VecDeque<ChainOutcome>,
    /// Whose, and what it was given.
    stuck: Option<(usize, Vec<u64>)>,
}

impl Nodes {
    fn new() -> Self {
        let images = vec![vec![0; Self::config(0).layout().bytes()]; 3];
        let mut it = Self { nodes: Vec::new(), images, now: 1, outcomes: VecDeque::new(), stuck: None };
        it.start();
        it
    }

    fn config(node: u8) -> ChainConfig {
        ChainConfig { ring: 1 << 10, ..ChainConfig::new(NodeId(node), NodeSet::first(3), DATA) }
    }

    /// All (again), with their memory as it is.
    fn start(&mut self) {
        let start = |(node, image): (u8, &Vec<u8>)| ChainNode::new(Self::config(node), self.now, image);
        self.nodes = (0..).zip(&self.images).map(start).collect();
        self.run();
    }

    fn run(&mut self) {
        let now = Now::simulated(self.now);
        loop {
            let mut messages = Vec::new();
            for (index, (node, image)) in self.nodes.iter_mut().zip(&mut self.images).enumerate() {
                while let Some(output) = node.poll() {
                    match output {
                        ChainNodeOutput::Send(to, packet) => messages.push((NodeId(index as u8), to, packet)),
                        ChainNodeOutput::Write(token, at, bytes) => {
                            image[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                            match &mut self.stuck {
                                Some((stuck, late)) if *stuck == index => late.push(token),
                                _ => node.persisted(&now, token),
                            }
                        }
                        ChainNodeOutput::Reply(reply) => self.outcomes.push_back(reply.outcome),
                    }
                }
            }
            if messages.is_empty() {
                return;
            }
            for (from, to, packet) in messages {
                self.nodes[usize::from(to.0)].handle(&now, from, packet);
            }
        }
    }

    fn pass(&mut self) {
        self.now += 5_000_000;
        let now = Now::simulated(self.now);
        self.nodes.iter_mut().for_each(|node| node.timeout(&now));
        self.run();
    }

    fn until_all_serve(&mut self) {
        let serves =
            |node: &ChainNode| node.standing() == Standing::Serving && node.view().members == NodeSet::first(3);
        for _ in 0..10_000 {
            if self.nodes.iter().all(serves) {
                return;
            }
            self.pass();
        }
        let states: Vec<String> = self.nodes.iter().map(ChainNode::describe).collect();
        panic!("{}", states.join("\n"));
    }

    fn ask(&mut self, node: usize, transaction: Transaction) -> ChainOutcome {
        // It may serve only when it has its lease.
        for _ in 0..100 {
            let request = ChainRequest { tag: 1, session: None, transaction: transaction.clone() };
            self.nodes[node].submit(&Now::simulated(self.now), request);
            self.run();
            match self.outcomes.pop_front() {
                Some(ChainOutcome::Refused(ChainRefusal::NotServing)) => self.pass(),
                Some(outcome) => return outcome,
                None => panic!("no answer"),
            }
        }
        panic!("it does not serve")
    }
}

fn write(number: u64) -> Transaction {
    let data = [number as u8; 64][..].into();
    Transaction { writes: vec![Tuple { offset: 64 * (number % 16), data }], ..Transaction::default() }
}

/// After a crash of all each tells what it has. Who has less than others have applied says that it has lost something.
#[test]
fn a_node_that_lacks_what_others_have_applied_catches_up_before_it_counts() {
    for old in 0..3 {
        let mut nodes = Nodes::new();
        nodes.until_all_serve();
        assert_eq!(nodes.ask(0, write(0)), ChainOutcome::Done(Vec::new()));
        let image = nodes.images[old].clone();
        for number in 1..48 {
            assert_eq!(nodes.ask(0, write(number)), ChainOutcome::Done(Vec::new()));
        }
        nodes.images[old] = image;
        nodes.now += 1_000_000_000;
        nodes.start();
        nodes.until_all_serve();
        assert!(nodes.nodes[old].has_lost_its_memory(), "node {old}");
        assert_eq!(nodes.ask(0, write(48)), ChainOutcome::Done(Vec::new()));
        for node in 0..3 {
            let reads = (0..16).map(|cell| Extent { offset: 64 * cell, length: 1 }).collect();
            let ChainOutcome::Done(read) = nodes.ask(node, Transaction { reads, ..Transaction::default() }) else {
                panic!("node {node} does not answer")
            };
            let read: Vec<u8> = read.iter().map(|value| value[0]).collect();
            let expected: Vec<u8> = [48].into_iter().chain(33..48).collect();
            assert_eq!(read, expected, "node {node}, and {old} was old");
        }
    }
}

/// A disk that neither does nor fails what it is asked for keeps nobody else waiting for long.
#[test]
fn a_node_whose_disk_takes_nothing_is_left_out() {
    for stuck in 0..3 {
        let mut nodes = Nodes::new();
        nodes.until_all_serve();
        assert_eq!(nodes.ask(0, write(0)), ChainOutcome::Done(Vec::new()));
        nodes.stuck = Some((stuck, Vec::new()));
        let request = ChainRequest { tag: 1, session: None, transaction: write(1) };
        nodes.nodes[0].submit(&Now::simulated(nodes.now), request);
        let others: Vec<usize> = (0..3).filter(|node| *node != stuck).collect();
        let goes_on = |nodes: &Nodes| {
            others.iter().all(|&node| {
                let view = nodes.nodes[node].view();
                view.members.len() == 2 && view.learners.is_empty() && nodes.nodes[node].standing() == Standing::Serving
            })
        };
        let begin = nodes.now;
        while !goes_on(&nodes) {
            nodes.pass();
            assert!(nodes.now < begin + 30_000_000_000, "all wait for node {stuck}");
        }
        // Whoever asked is answered, or does not know.
        assert!(nodes.outcomes.drain(..).all(|it| matches!(it, ChainOutcome::Done(_) | ChainOutcome::Unknown)));
        assert_eq!(nodes.ask(others[0], write(2)), ChainOutcome::Done(Vec::new()));
        assert!(goes_on(&nodes), "it has no place as long as its disk takes nothing");
        // It goes on, and so does its node.
        let (_, late) = nodes.stuck.take().expect("it is stuck");
        let now = Now::simulated(nodes.now);
        late.into_iter().for_each(|token| nodes.nodes[stuck].persisted(&now, token));
        nodes.until_all_serve();
        assert_eq!(nodes.ask(0, write(3)), ChainOutcome::Done(Vec::new()));
    }
}
