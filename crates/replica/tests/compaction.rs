//! A log that is made shorter while the node goes on.

use remora_nic::Now;
use remora_replica::ddp::{Config, Model, Op, Outcome, Request};
use remora_replica::log::LogEnd;
use remora_replica::member::Standing;
use remora_replica::node::{Change, NodeOutput, ReplicaNode};
use remora_replica::types::{NodeId, NodeSet};

const KEYS: u64 = 500;

/// A node alone, and the two files of its log: while a shorter one is made, what comes goes to the old one.
struct Alone {
    node: ReplicaNode,
    log: Vec<u8>,
    now: u64,
    answer: Option<Outcome>,
    compactions: u32,
}

impl Alone {
    fn start(log: Vec<u8>, now: u64) -> Self {
        let this = Self::found(log, now);
        assert_eq!((this.node.found(), this.node.standing()), (LogEnd::Whole, Standing::Serving));
        this
    }

    fn found(log: Vec<u8>, now: u64) -> Self {
        let config = Config { gathers: 3, ..Config::new(NodeId(0), NodeSet::first(1), Model::Synch) };
        let node = ReplicaNode::with_slack(config, now, &log, 20_000);
        let mut this = Self { node, log, now, answer: None, compactions: 0 };
        for _ in 0..200 {
            this.now += 50_000_000;
            this.node.timeout(&Now::simulated(this.now));
            this.run();
        }
        this
    }

    fn run(&mut self) {
        let now = Now::simulated(self.now);
        while let Some(output) = self.node.poll() {
            match output {
                NodeOutput::Log(token, change) => {
                    match change {
                        Change::Append(bytes) => self.log.extend_from_slice(&bytes),
                        Change::Replace(bytes) => self.log = bytes,
                        Change::Compact(snapshot) => {
                            self.compactions += 1;
                            self.log = snapshot.encode();
                            assert_eq!(self.log.len(), snapshot.length());
                        }
                    }
                    self.node.persisted(&now, token);
                }
                NodeOutput::Reply(reply) => self.answer = Some(reply.outcome),
                NodeOutput::Job(job) => self.node.done(&now, job.id()),
                NodeOutput::Send(..) | NodeOutput::Step(_) => {}
            }
        }
    }

    fn ask(&mut self, op: Op) -> Outcome {
        self.now += 1000;
        self.node.submit(&Now::simulated(self.now), Request::new(1, op));
        self.run();
        self.answer.take().expect("an answer")
    }
}

#[test]
fn what_is_written_while_a_log_is_made_shorter_is_in_it() {
    let mut alone = Alone::start(Vec::new(), 0);
    let mut newest = [0; KEYS as usize];
    for number in 1..20_000u64 {
        // Those that were gathered, those that were not, and new ones.
        let key = number * 7919 % KEYS.min(100 + number / 10);
        assert_eq!(alone.ask(Op::Put(key, number.to_le_bytes().as_slice().into())), Outcome::Written);
        newest[key as usize] = number;
        if number % 1000 == 0 {
            // A crash, most often in the midst of it.
            alone = Alone { compactions: alone.compactions, ..Alone::start(alone.log, alone.now) };
            for key in 0..KEYS {
                let number = Some(newest[key as usize]).filter(|&number| number > 0);
                let value = number.map(|number| number.to_le_bytes().as_slice().into());
                assert_eq!(alone.ask(Op::Get(key)), Outcome::Value(value), "record {key}");
            }
        }
    }
    assert!(alone.compactions > 10, "{}", alone.compactions);
}

/// The thread that gathers a million records at once is silent for longer than a node may be.
#[test]
fn a_turn_gathers_some_records_and_no_more() {
    let mut alone = Alone::start(Vec::new(), 0);
    for key in 0..KEYS {
        assert_eq!(alone.ask(Op::Put(key, [1; 8].as_slice().into())), Outcome::Written);
    }
    let before = alone.compactions;
    alone.node.compact();
    let mut turns = 0;
    while alone.compactions == before {
        alone.now += 1000;
        alone.node.timeout(&Now::simulated(alone.now));
        alone.run();
        turns += 1;
        assert!(turns < KEYS);
    }
    assert!(turns >= KEYS / 3, "{turns} turns");
    // However much comes in a turn: all of it has the turn's time.
    alone.node.compact();
    let read = |alone: &mut Alone| {
        let now = Now::simulated(alone.now);
        (0..KEYS).for_each(|key| alone.node.submit(&now, Request::new(key, Op::Get(key))));
        alone.run();
        alone.compactions - before
    };
    assert_eq!(read(&mut alone), 1, "not in one turn");
    alone.now += 1000;
    assert_eq!(read(&mut alone), 1);
    alone.now += 1000;
    assert_eq!(read(&mut alone), 2);
}

/// Who has lost records must not count as one who has all of them, in whatever file its log stands.
#[test]
fn damage_is_remembered_by_a_shorter_log() {
    let mut alone = Alone::start(Vec::new(), 0);
    for key in 0..50 {
        assert_eq!(alone.ask(Op::Put(key, [1; 8].as_slice().into())), Outcome::Written);
    }
    let middle = alone.log.len() / 2;
    alone.log[middle] ^= 1;
    let mut damaged = Alone::found(alone.log, alone.now);
    assert!(matches!(damaged.node.found(), LogEnd::Damaged(_)), "{:?}", damaged.node.found());
    damaged.node.compact();
    while damaged.compactions == 0 {
        damaged.now += 1000;
        damaged.node.timeout(&Now::simulated(damaged.now));
        damaged.run();
    }
    let again = Alone::found(damaged.log, damaged.now);
    assert_eq!((again.node.found(), again.node.standing()), (LogEnd::Whole, Standing::Damaged));
}
