//! A node: a replica, its membership and its log, as one engine.

use std::collections::VecDeque;

use crate::Time;
use crate::ddp::{Config, Job, JobId, Marks, Message, Reached, Replica, ReplicaOutput, Reply, Request, Step, View};
use crate::log::{self, Decoded, LogEnd, Record};
use crate::member::{Durable, MemberOutput, Membership, Notice, Standing, Timing};
use crate::types::{NodeId, NodeSet};

/// What nodes send each other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Packet {
    /// Of the replication protocol.
    Replica(Message),
    /// Of membership.
    Member(Notice),
}

/// These bytes are no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a packet of the replication protocol")]
pub struct BadPacket;

/// What a node asks its world for, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeOutput {
    /// Send this to each of them.
    Send(NodeSet, Packet),
    /// Change the log and make the change durable, then say [`ReplicaNode::persisted`] with the token. Changes become durable
    /// in the order of their tokens; many may be made durable at once.
    Log(u64, Change),
    /// Tell the client.
    Reply(Reply),
    /// Do this, then say [`ReplicaNode::done`]. Only with `stepped` in the configuration.
    Job(Job),
    /// This was done here. Only with `steps` in the configuration.
    Step(Step),
}

/// A change of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// These bytes at its end.
    Append(Vec<u8>),
    /// These bytes instead of all that was before; either all of it happens or nothing.
    Replace(Vec<u8>),
    /// This snapshot instead of all that was before, which counts as much: until the replacement has happened, however long
    /// that takes, what comes behind it may be appended to the old log and be durable there. In the end it must stand
    /// behind the snapshot.
    Compact(Snapshot),
}

/// What counts of a log. It is cheap to make; bytes are for another thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    records: Vec<Record>,
    length: usize,
}

impl Snapshot {
    /// A log of just these records.
    pub fn new(records: Vec<Record>) -> Self {
        let length = records.iter().map(log::length).sum();
        Self { records, length }
    }

    /// Its bytes. It is durable as a whole or not at all, and says so.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        self.records.iter().for_each(|record| log::encode(record, self.length, &mut bytes));
        bytes
    }
}

/// What becomes durable with a token.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Token {
    Job(JobId),
    Member(u64),
    Nothing,
}

/// One node of a cluster.
#[derive(Clone, Debug)]
pub struct ReplicaNode {
    replica: Replica,
    member: Membership,
    next_token: u64,
    /// What is not durable yet, and how long (bytes) the log is with it.
    tokens: VecDeque<(u64, Token, usize)>,
    /// Bytes in the log, how many are known to be durable, and how many it may have before it is compacted.
    length: usize,
    durable: usize,
    compact_at: usize,
    slack: usize,
    out: VecDeque<NodeOutput>,
    found: LogEnd,
}

/// A log is compacted when it is this much longer (bytes) than what it holds.
const SLACK: usize = 1 << 20;

impl ReplicaNode {
    /// Starts a node with its log as it was found; an empty one means that it takes part for the first time. A node
    /// whose log was lost must be given [`log::Record::Damaged`] as its log.
    pub fn new(config: Config, now: Time, bytes: &[u8]) -> Self {
        Self::with_slack(config, now, bytes, SLACK)
    }

    /// Starts a node, as [`new`](Self::new) does, whose log is compacted when it is `slack` bytes longer than twice what it
    /// holds.
    pub fn with_slack(config: Config, now: Time, bytes: &[u8], slack: usize) -> Self {
        let Decoded { records, length, end } = log::decode(bytes);
        let first = records.is_empty() && end != log::LogEnd::Damaged(0) && bytes.is_empty();
        let mut damaged = matches!(end, LogEnd::Damaged(_));
        let (mut durable, mut writes) = (None, Vec::new());
        for record in records {
            match record {
                Record::Write(write) => writes.push(write),
                Record::Scope(_) => {}
                Record::Member(state) => durable = Some(state),
                Record::Reset => {
                    writes.clear();
                    damaged = false;
                }
                Record::Damaged => damaged = true,
            }
        }
        // A log that has begun, and does not say which view it is of, has lost its first record.
        damaged |= matches!(end, LogEnd::Damaged(_)) || durable.is_none() && !first;
        let view = View::first(config.nodes);
        let status = match (first, damaged) {
            (true, _) => Standing::Serving,
            (_, true) => Standing::Damaged,
            _ => Standing::Joining,
        };
        let durable = durable.unwrap_or(Durable { view, ..Durable::default() });
        let member = Membership::new(now, config.id, config.nodes, timing(&config), durable, status);
        let mut node = Self::with(Replica::new(config), member, slack);
        (node.length, node.durable, node.found) = (length, length, end);
        if first {
            node.member.begin();
        } else {
            node.replica.load(durable.view.epoch, writes);
        }
        if damaged || end != LogEnd::Whole {
            // The tail is cut; damage is remembered, since without the bad record nobody could see it.
            node.replace(damaged, |snapshot| Change::Replace(snapshot.encode()));
        }
        node.pump(now);
        node
    }

    fn with(replica: Replica, member: Membership, slack: usize) -> Self {
        Self {
            replica,
            member,
            next_token: 0,
            tokens: VecDeque::new(),
            length: 0,
            durable: 0,
            compact_at: slack,
            slack,
            out: VecDeque::new(),
            found: LogEnd::Whole,
        }
    }

    /// How the log ended with which it was started.
    pub fn found(&self) -> LogEnd {
        self.found
    }

    /// The protocol's state, to look at.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// What happened so far.
    pub fn marks(&self) -> &Marks {
        self.replica.marks()
    }

    /// The newest view that it knows.
    pub fn view(&self) -> View {
        self.member.view()
    }

    /// Views that may follow, as far as it has a part in that.
    pub fn pending(&self) -> impl Iterator<Item = View> {
        self.member.pending()
    }

    /// Its state in a few words, for people.
    pub fn describe(&self) -> String {
        let (replica, member) = (self.replica.describe(), self.member.describe());
        format!("{member}; {replica}; {} syncs awaited", self.tokens.len())
    }

    /// Takes a client's request.
    pub fn submit(&mut self, now: Time, request: Request) {
        self.replica.submit(now, request);
        self.pump(now);
    }

    /// Takes a packet.
    pub fn handle(&mut self, now: Time, from: NodeId, packet: Packet) {
        match packet {
            Packet::Replica(message) => self.replica.handle(now, from, message),
            Packet::Member(notice) => self.member.handle(now, from, notice),
        }
        self.pump(now);
    }

    /// All changes of the log up to this token are durable.
    pub fn persisted(&mut self, now: Time, token: u64) {
        while let Some((_, token, length)) = self.tokens.pop_front_if(|(number, ..)| *number <= token) {
            self.durable = self.durable.max(length);
            match token {
                Token::Job(job) => self.replica.done(now, job),
                Token::Member(number) => self.member.persisted(now, number),
                Token::Nothing => {}
            }
        }
        self.pump(now);
    }

    /// A [`NodeOutput::Job`] has been done.
    pub fn done(&mut self, now: Time, job: JobId) {
        self.replica.done(now, job);
        self.pump(now);
    }

    /// When [`ReplicaNode::timeout`] is due.
    pub fn next_timeout(&self) -> Time {
        self.replica.next_timeout().unwrap_or(Time::MAX).min(self.member.next_timeout())
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        self.replica.timeout(now);
        self.member.timeout(now);
        self.pump(now);
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<NodeOutput> {
        self.out.pop_front()
    }

    /// Passes on what replica and membership ask for, until both are quiet.
    fn pump(&mut self, now: Time) {
        loop {
            if let Some(asked) = self.member.poll() {
                self.member_asks(now, asked);
            } else if let Some(asked) = self.replica.poll() {
                self.replica_asks(now, asked);
            } else {
                break;
            }
        }
        if self.length > self.compact_at {
            self.replace(false, Change::Compact);
        }
    }

    fn member_asks(&mut self, now: Time, asked: MemberOutput) {
        match asked {
            MemberOutput::Send(to, notice) => {
                self.out.push_back(NodeOutput::Send(NodeSet::one(to), Packet::Member(notice)));
            }
            MemberOutput::Persist(number, durable) => self.append(&Record::Member(durable), Token::Member(number)),
            MemberOutput::Lease(until) => self.replica.set_lease(now, until),
            MemberOutput::Install(view) => {
                let joined = self.replica.joined();
                self.replica.install(now, view);
                if self.replica.joined() != joined {
                    // Jobs from before would speak of records that are gone.
                    let jobs = self.tokens.iter_mut().filter(|(_, token, _)| matches!(token, Token::Job(_)));
                    jobs.for_each(|(_, token, _)| *token = Token::Nothing);
                    self.append(&Record::Reset, Token::Nothing);
                }
                if self.replica.status().is_none() && self.member.astray() {
                    // It has forgotten that it had caught up: damage that looked like a torn tail.
                    self.append(&Record::Damaged, Token::Nothing);
                    self.member.set_status(Standing::Damaged);
                }
            }
        }
        if let Some(status) = self.replica.status() {
            self.member.set_status(status);
        }
    }

    fn replica_asks(&mut self, now: Time, asked: ReplicaOutput) {
        match asked {
            ReplicaOutput::Send { to, message } => self.out.push_back(NodeOutput::Send(to, Packet::Replica(message))),
            ReplicaOutput::Reply(reply) => self.out.push_back(NodeOutput::Reply(reply)),
            ReplicaOutput::Step(step) => self.out.push_back(NodeOutput::Step(step)),
            ReplicaOutput::Job(Job::Persist(write)) => {
                let id = JobId::Persist(write.key, write.ts);
                self.append(&Record::Write(write), Token::Job(id));
            }
            ReplicaOutput::Job(Job::PersistScope(scope)) => {
                self.append(&Record::Scope(scope), Token::Job(JobId::PersistScope(scope)));
            }
            // The log is what the dFIFO drains to, and here it is both.
            ReplicaOutput::Job(Job::Drain(key, ts)) => self.replica.done(now, JobId::Drain(key, ts)),
            ReplicaOutput::Job(job) => self.out.push_back(NodeOutput::Job(job)),
        }
        if let Some(status) = self.replica.status() {
            self.member.set_status(status);
        }
    }

    fn append(&mut self, record: &Record, token: Token) {
        let mut bytes = Vec::new();
        log::encode(record, self.durable, &mut bytes);
        self.length += bytes.len();
        self.log(Change::Append(bytes), token);
    }

    fn log(&mut self, change: Change, token: Token) {
        let number = self.next_token;
        self.next_token += 1;
        self.tokens.push_back((number, token, self.length));
        self.out.push_back(NodeOutput::Log(number, change));
    }

    /// A log with just what counts: the newest version of each record, tombstones too, and membership.
    fn replace(&mut self, damaged: bool, change: impl FnOnce(Snapshot) -> Change) {
        // First, so that it is not taken for a torn tail if it is damaged itself.
        let mut records: Vec<Record> = damaged.then_some(Record::Damaged).into_iter().collect();
        records.push(Record::Member(self.member.durable()));
        records.extend(self.replica.snapshot().map(Record::Write));
        let snapshot = Snapshot::new(records);
        // What went before is in another file.
        self.tokens.iter_mut().for_each(|(_, _, length)| *length = 0);
        self.durable = snapshot.length;
        self.length = snapshot.length;
        self.compact_at = 2 * self.length + self.slack;
        self.log(change(snapshot), Token::Nothing);
    }
}

fn timing(config: &Config) -> Timing {
    let drift = config.lease / 1_000_000 * u64::from(config.drift_ppm) * 3;
    let strong = config.model.facts().answer == Reached::Durable;
    Timing {
        beat: config.lease / 5,
        lease: config.lease,
        term: config.lease + drift + 1000,
        suspect: config.suspect,
        recover: strong.then_some(20 * config.suspect),
    }
}
