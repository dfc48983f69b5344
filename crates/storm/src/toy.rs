//! A tiny store to test storms with: node 0 holds the only copy, the others pass requests on. It is right, unless it is
//! told to have a bug; and a storm must tell which.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use remora_replica::ddp::{Outcome, Reply, Request};

use crate::disk::DiskWrite;
use crate::engine::{Action, Boot, Engine, EngineOutput, Op, Value, View};
use crate::events::Time;
use crate::rng::mix;
use crate::values::{after, answer, operations};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// Answers before the log is durable.
    EarlyReply,
    /// Forgets which requests it has done.
    Amnesia,
    /// Other nodes answer reads with what they saw go by.
    StaleCache,
    /// Does not answer a request that comes again.
    Silence,
    /// Does not look at checksums when it starts.
    TrustsTornLog,
}

#[derive(Clone, Debug)]
pub enum Message {
    Ask(Request),
    Answer(Request, Outcome),
}

/// Bytes of a log record: checksum, key, size of the batch, whether there is a value, value, client, number, whether there
/// was a value, that one, which node was asked, and its tag; and padding.
const RECORD: usize = 96;
const WORDS: usize = 10;

pub struct Toy {
    bug: Bug,
    node: usize,
    values: BTreeMap<u32, u64>,
    /// The last request of each client and its results.
    sessions: BTreeMap<u64, (u64, Vec<Value>)>,
    /// Requests that were done: which node was asked, and its tag.
    asked: BTreeSet<(u64, u64)>,
    /// Bytes for which there is room, if the disk is full; and the requests that wait for more.
    room: Option<usize>,
    crowd: Vec<(usize, Request)>,
    /// Answers that wait for a token to be durable: token, node to answer, request.
    waiting: VecDeque<(u64, usize, Request, Outcome)>,
    written: u64,
    durable: u64,
    out: VecDeque<EngineOutput<Message>>,
    marks: [u64; 2],
}

impl Toy {
    fn serve(&mut self, from: usize, request: Request) {
        let ops = operations(&request.op);
        if self.room.is_some_and(|room| room < ops.len() * RECORD) {
            return self.crowd.push((from, request));
        }
        let session = request.session;
        let known = session.and_then(|session| self.sessions.get(&session.client)).cloned();
        let known = known.filter(|(number, _)| session.is_some_and(|session| *number >= session.sequence));
        let results = match known {
            Some((number, _)) if session.is_some_and(|session| number > session.sequence) => return,
            Some(_) if self.bug == Bug::Silence => return,
            Some((_, results)) if self.bug != Bug::Amnesia => {
                self.marks[0] += 1;
                results
            }
            // The network repeats messages, and a request without a session has nothing else to be known by.
            _ if session.is_none() && self.asked.contains(&(from as u64, request.tag)) => return,
            _ => self.perform(from as u64, &request, &ops),
        };
        let outcome = answer(&ops, &results);
        if self.written == self.durable || self.bug == Bug::EarlyReply {
            return self.answer(from, request, outcome);
        }
        self.waiting.push_back((self.written, from, request, outcome));
    }

    fn perform(&mut self, from: u64, request: &Request, ops: &[Op]) -> Vec<Value> {
        let found: Vec<Value> = ops.iter().map(|op| self.values.get(&op.key).copied()).collect();
        let (client, number) = request.session.map_or((0, 0), |session| (session.client, session.sequence));
        if client != 0 {
            self.sessions.insert(client, (number, found.clone()));
        }
        let mut bytes = Vec::new();
        for (op, &found) in ops.iter().zip(&found) {
            let new = after(op.action, found);
            self.set(op.key, new);
            let words = [u64::from(op.key), ops.len() as u64, u64::from(new.is_some()), new.unwrap_or(0)];
            let more = [client, number, u64::from(found.is_some()), found.unwrap_or(0)];
            bytes.extend(encode(&[&words[..], &more, &[from, request.tag]].concat()));
        }
        self.asked.insert((from, request.tag));
        self.room = self.room.map(|room| room - bytes.len());
        self.write(DiskWrite::Append(bytes));
        found
    }

    fn set(&mut self, key: u32, value: Value) {
        match value {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
    }

    fn write(&mut self, write: DiskWrite) {
        self.written += 1;
        self.out.push_back(EngineOutput::Write { token: self.written, write });
    }

    fn answer(&mut self, to: usize, request: Request, outcome: Outcome) {
        self.out.push_back(match to == self.node {
            true => EngineOutput::Reply(Reply { tag: request.tag, outcome }),
            false => EngineOutput::Send { to, message: Message::Answer(request, outcome) },
        });
    }

    /// Applies whole requests from the log up to the first damage. Says how many bytes are good.
    fn recover(&mut self, log: &[u8]) -> usize {
        let (mut good, mut batch) = (0, Vec::new());
        for (index, record) in log.chunks_exact(RECORD).enumerate() {
            let Some(words) = decode(record, self.bug == Bug::TrustsTornLog) else { break };
            batch.push(words);
            if batch.len() as u64 >= words[1] {
                good = (index + 1) * RECORD;
                let found = batch.iter().map(|words| (words[6] == 1).then_some(words[7])).collect();
                self.sessions.insert(words[4], (words[5], found));
                self.asked.insert((words[8], words[9]));
                for words in batch.drain(..) {
                    self.set(words[0] as u32, (words[2] == 1).then_some(words[3]));
                }
            }
        }
        good
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(1, |sum, &byte| mix(sum ^ u64::from(byte)))
}

fn encode(words: &[u64]) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    for (index, word) in words.iter().enumerate() {
        record[8 + index * 8..16 + index * 8].copy_from_slice(&word.to_le_bytes());
    }
    let sum = checksum(&record[8..]);
    record[..8].copy_from_slice(&sum.to_le_bytes());
    record
}

fn decode(record: &[u8], trust: bool) -> Option<[u64; WORDS]> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| record[at * 8 + byte]));
    (trust || word(0) == checksum(&record[8..])).then(|| std::array::from_fn(|index| word(index + 1)))
}

impl Engine for Toy {
    type Config = Bug;
    type Message = Message;
    const MARKS: &'static [&'static str] = &["asked again", "recovered"];

    fn start(&bug: &Bug, boot: Boot) -> Self {
        let (values, sessions, asked) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let (waiting, out) = (VecDeque::new(), VecDeque::new());
        let (room, crowd, node) = (None, Vec::new(), boot.node);
        let (written, durable, marks) = (0, 0, [0, u64::from(!boot.log.is_empty())]);
        let mut toy = Self { bug, node, values, sessions, asked, room, crowd, waiting, written, durable, out, marks };
        let good = toy.recover(&boot.log);
        if good < boot.log.len() {
            toy.write(DiskWrite::Replace(boot.log[..good].to_vec()));
        }
        toy
    }

    fn handle(&mut self, _: Time, from: usize, message: Message) {
        match message {
            Message::Ask(request) => self.serve(from, request),
            Message::Answer(request, outcome) => {
                for (op, found) in crate::values::found(&operations(&request.op), &outcome) {
                    if op.action == Action::Get {
                        self.set(op.key, found);
                    }
                }
                self.answer(self.node, request, outcome);
            }
        }
    }

    fn submit(&mut self, _: Time, request: Request) {
        if self.node == 0 {
            return self.serve(0, request);
        }
        let ops = operations(&request.op);
        let cached = |op: &Op| self.values.get(&op.key).copied();
        if self.bug == Bug::StaleCache && ops.iter().all(|op| op.action == Action::Get && cached(op).is_some()) {
            let found: Vec<Value> = ops.iter().map(cached).collect();
            return self.answer(self.node, request, answer(&ops, &found));
        }
        self.out.push_back(EngineOutput::Send { to: 0, message: Message::Ask(request) });
    }

    fn persisted(&mut self, _: Time, token: u64) {
        self.durable = token;
        while self.waiting.front().is_some_and(|waiting| waiting.0 <= token) {
            let Some((_, from, request, outcome)) = self.waiting.pop_front() else { return };
            self.answer(from, request, outcome);
        }
    }

    fn set_room(&mut self, _: Time, room: Option<usize>) {
        self.room = room;
        for (from, request) in std::mem::take(&mut self.crowd) {
            self.serve(from, request);
        }
    }

    fn timeout(&mut self, _: Time) {}

    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn poll(&mut self, _: Time) -> Option<EngineOutput<Message>> {
        self.out.pop_front()
    }

    fn marks(&self, counts: &mut [u64]) {
        counts.copy_from_slice(&self.marks);
    }

    fn view(&self) -> View {
        // One copy cannot survive the loss of its disk: the storm leaves the only member's alone.
        View { epoch: 1, members: 1, serves: self.node == 0, alone: 1 }
    }

    fn concerns(message: &Message, key: u32) -> bool {
        let (Message::Ask(request) | Message::Answer(request, _)) = message;
        operations(&request.op).iter().any(|op| op.key == key)
    }
}

mod tests {
    use super::*;
    use crate::cluster::{Failure, Plan, StormReport, run, run_with};
    use crate::nemesis::KINDS;
    use crate::shrink::shrink;
    use crate::story::Story;
    use crate::totals::Totals;
    use remora_replica::ddp::Model;

    fn storm(seed: u64, bug: Bug) -> StormReport {
        run::<Toy>(&Plan::new(seed, 3, Model::Synch, bug))
    }

    #[test]
    fn a_correct_store_survives() {
        let mut totals = Totals::default();
        // 193 has a crash that loses a write and keeps a later one: behind a hole, and not in its place.
        for seed in (0..40).chain([193]) {
            let report = storm(seed, Bug::None);
            assert_eq!((&report.failure, report.unchecked), (&None, 0), "seed {seed}");
            totals.add(&report);
        }
        assert!(totals.operations > 10_000 && totals.unknown > 100, "{totals:?}");
        assert!(totals.marks.iter().all(|&count| count > 20), "{totals:?}");
        assert!(totals.blackouts > 20 && totals.disk.torn_writes > 0, "{totals:?}");
        // The other nodes have nothing on their disks that could go bad.
        let bad_sectors = |kind| KINDS[kind] == "bad sectors";
        assert!((0..KINDS.len()).all(|kind| totals.faults[kind] > 0 || bad_sectors(kind)), "{totals:?}");
    }

    #[test]
    fn storms_repeat() {
        let (one, two) = (storm(5, Bug::None), storm(5, Bug::None));
        assert_eq!(one.history.records, two.history.records);
        assert_eq!((one.simulated, one.net, one.faults), (two.simulated, two.net, two.faults));
        assert_ne!(one.history.records, storm(6, Bug::None).history.records);
    }

    #[test]
    fn each_bug_is_found() {
        for bug in [Bug::EarlyReply, Bug::Amnesia, Bug::StaleCache, Bug::TrustsTornLog] {
            let found = (0..200).any(|seed| matches!(storm(seed, bug).failure, Some(Failure::Wrong(_))));
            assert!(found, "{bug:?}");
        }
        let stuck = (0..50).any(|seed| matches!(storm(seed, Bug::Silence).failure, Some(Failure::Stuck(_))));
        assert!(stuck);
    }

    #[test]
    fn a_failing_storm_shrinks_to_a_short_story() {
        let bug = Bug::EarlyReply;
        let plan_of = |seed| Plan::new(seed, 3, Model::Synch, bug);
        let fails = |seed: &u64| matches!(run::<Toy>(&plan_of(*seed)).failure, Some(Failure::Wrong(_)));
        let plan = plan_of((0..200).find(fails).unwrap());
        let (small, report) = shrink::<Toy>(&plan, run::<Toy>(&plan), |_| {});
        assert!(matches!(report.failure, Some(Failure::Wrong(_))));
        assert!(small.schedule.len() <= 3, "{:?}", small.schedule);
        let Some(Failure::Wrong(finding)) = report.failure else { unreachable!() };
        let (again, story) = run_with::<Toy>(&small, Story::about(Some(finding.key)));
        assert_eq!(again.failure, Some(Failure::Wrong(finding)), "told as it happened");
        let text = story.tell(&again, 1000);
        assert!(text.contains("FAULT: ") && text.contains(" asks: "), "{text}");
    }
}
