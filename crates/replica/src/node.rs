//! A node: a replica, its membership and its log, as one engine.

use std::collections::VecDeque;

use remora_nic::Now;

use crate::Time;
use crate::ddp::{Config, Job, JobId, Marks, Message, Reached, Replica, ReplicaOutput, Reply, Request, Step, View};
use crate::ledger::Ledger;
use crate::log::{self, Decoded, Known, LogEnd, Record};
use crate::member::{MemberOutput, Membership, Mutation, Notice, Standing, Timing};
use crate::patience::Patience;
use crate::types::{Key, NodeId, NodeSet};

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

/// What counts of a log. It may be made bit by bit; bytes are for another thread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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

    /// One record more.
    fn push(&mut self, record: Record) {
        self.length += log::length(&record);
        self.records.push(record);
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Its bytes. It is durable as a whole or not at all, and says so.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length);
        self.records.iter().for_each(|record| log::encode(record, Known::First(self.length), &mut bytes));
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

/// A shorter log that is made. Each turn brings some of the replica's records; what the log gets meanwhile goes there too, as it
/// may be newer than what was gathered.
#[derive(Clone, Debug, Default)]
struct Gathering {
    snapshot: Snapshot,
    /// The last record that was gathered.
    last: Option<Key>,
    /// When records were gathered last, and how often at that time.
    at: (Time, u32),
}

/// One node of a cluster.
#[derive(Clone, Debug)]
pub struct ReplicaNode {
    replica: Replica,
    member: Membership,
    ledger: Ledger<Token>,
    gathering: Option<Gathering>,
    out: VecDeque<NodeOutput>,
    found: LogEnd,
    lost: bool,
    patience: Patience,
    /// Records for which there is none.
    waiting: VecDeque<(Record, JobId)>,
}

/// Bytes of a full disk's room that are kept for membership: a node that could not change views would be of no use.
const RESERVE: usize = 256 << 10;
/// How often records are gathered at one time, that of a turn: thousands of packets and requests may come in one.
const GATHERS: u32 = 64;
/// A log is compacted when it is this much longer (bytes) than what it holds.
const SLACK: usize = 1 << 20;

impl ReplicaNode {
    /// Starts a node with its log as it was found. An empty one is that of a node that takes part for the first time, if
    /// the others say so too; otherwise it has been lost, as one that holds [`log::Record::Damaged`] says of itself.
    pub fn new(config: Config, now: Time, bytes: &[u8]) -> Self {
        Self::with_slack(config, now, bytes, SLACK)
    }

    /// Starts a node, as [`new`](Self::new) does, whose log is compacted when it is `slack` bytes longer than twice what it
    /// holds.
    pub fn with_slack(config: Config, now: Time, bytes: &[u8], slack: usize) -> Self {
        let Decoded { records, length, end } = log::decode(bytes);
        let (mut durable, mut writes) = (None, Vec::new());
        let mut damaged = matches!(end, LogEnd::Damaged(_));
        // Of a first record that was not written whole nobody has heard.
        let new = records.is_empty() && !damaged;
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
                // It is no log of records.
                Record::Bytes(..) => damaged = true,
            }
        }
        // A log that has begun, and does not say which view it is of, has lost its first record.
        damaged |= matches!(end, LogEnd::Damaged(_)) || durable.is_none() && !new;
        let durable = durable.unwrap_or_default();
        let status = match durable.view.epoch {
            _ if damaged => Standing::Damaged,
            _ if new => Standing::New,
            0 => Standing::Starting,
            _ => Standing::Joining,
        };
        let member = Membership::new(now, config.id, config.nodes, timing(&config), durable, status);
        let patience = Patience::new(config.stuck, now);
        let mut node = Self {
            replica: Replica::new(config),
            member,
            ledger: Ledger::new(length, slack),
            gathering: None,
            out: VecDeque::new(),
            found: end,
            lost: false,
            patience,
            waiting: VecDeque::new(),
        };
        if matches!(status, Standing::Joining | Standing::Damaged) {
            node.replica.load(durable.view.epoch, writes, !damaged);
        }
        // The tail is cut; damage is remembered, since without the bad record nobody could see it.
        if new && end != LogEnd::Whole {
            let (number, change) = node.ledger.change(Change::Replace(Vec::new()), Token::Nothing);
            node.out.push_back(NodeOutput::Log(number, change));
        } else if damaged || end != LogEnd::Whole {
            // First, so that it is not taken for a torn tail if it is damaged itself.
            let mut records: Vec<Record> = damaged.then_some(Record::Damaged).into_iter().collect();
            records.push(Record::Member(node.member.durable()));
            records.extend(node.replica.snapshot(None).map(Record::Write));
            let replace = |snapshot: Snapshot| Change::Replace(snapshot.encode());
            let (number, change) = node.ledger.replace(Snapshot::new(records), Token::Nothing, replace);
            node.out.push_back(NodeOutput::Log(number, change));
        }
        node.pump(now);
        node
    }

    /// With a seeded fault of membership; for checks only.
    pub fn mutated(mut self, mutation: Option<Mutation>) -> Self {
        self.member = self.member.mutated(mutation);
        self
    }

    /// How the log ended with which it was started.
    pub fn found(&self) -> LogEnd {
        self.found
    }

    /// Whether the other nodes know of things that its log must have held, and does not, though it looks whole: the disk came
    /// back empty, or without the log's end.
    pub fn has_lost_its_log(&self) -> bool {
        self.lost
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

    /// What it says of itself to others.
    pub fn standing(&self) -> Standing {
        self.member.status()
    }

    /// Its state in a few words, for people.
    pub fn describe(&self) -> String {
        let (replica, member) = (self.replica.describe(), self.member.describe());
        format!("{member}; {replica}; {} syncs awaited", self.ledger.awaited())
    }

    /// Takes a client's request.
    pub fn submit(&mut self, now: &Now, request: Request) {
        self.replica.submit(now.time(), request);
        self.pump(now.time());
    }

    /// Takes a packet.
    pub fn handle(&mut self, now: &Now, from: NodeId, packet: Packet) {
        match packet {
            Packet::Replica(message) => self.replica.handle(now.time(), from, message),
            // An answer is heard as a beat is.
            Packet::Member(_) if self.patience.is_over() => {}
            Packet::Member(notice) => self.member.handle(now.time(), from, notice),
        }
        self.pump(now.time());
    }

    /// All changes of the log up to this token are durable.
    pub fn persisted(&mut self, now: &Now, token: u64) {
        let now = now.time();
        self.patience.begin(now);
        while let Some(token) = self.ledger.persisted(token) {
            match token {
                Token::Job(job) => self.replica.done(now, job),
                Token::Member(number) => self.member.persisted(now, number),
                Token::Nothing => {}
            }
        }
        self.pump(now);
    }

    /// The disk is full, and the log has room for so many bytes more, those counted that it was given and that are not durable
    /// yet; `None`: it is not full (any more). While any member's disk is, no node takes writes of clients; what is under
    /// way is made durable as far as there is room, and else when there is.
    pub fn set_room(&mut self, now: &Now, room: Option<usize>) {
        self.ledger.set_room(room);
        self.member.set_full(room.is_some());
        while let Some((record, job)) = self.waiting.pop_front() {
            if !self.fits(&record) {
                self.waiting.push_front((record, job));
                break;
            }
            self.append(&record, Token::Job(job));
        }
        self.pump(now.time());
    }

    /// Members and learners whose disks are full, as far as is known.
    pub fn full(&self) -> NodeSet {
        self.member.full()
    }

    /// The last [`Change::Compact`] has come to nothing, for want of room: once more.
    pub fn compact(&mut self) {
        self.begin_gathering();
    }

    /// A [`NodeOutput::Job`] has been done.
    pub fn done(&mut self, now: &Now, job: JobId) {
        self.replica.done(now.time(), job);
        self.pump(now.time());
    }

    /// When [`ReplicaNode::timeout`] is due.
    pub fn next_timeout(&self) -> Time {
        let member = if self.patience.is_over() { Time::MAX } else { self.member.next_timeout() };
        self.replica.next_timeout().unwrap_or(Time::MAX).min(member)
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: &Now) {
        let now = now.time();
        self.replica.timeout(now);
        // A full disk has a rule of its own.
        let waits = self.ledger.awaited() > 0 && !self.ledger.is_full();
        let before = self.patience.is_over();
        self.patience.look(now, waits, || self.member.is_spare());
        self.replica.marks.stuck += u64::from(self.patience.is_over() && !before);
        // Who says nothing is suspected.
        if !self.patience.is_over() {
            self.member.timeout(now);
        }
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
        self.replica.set_closed(!self.member.full().is_empty());
        self.replica.set_behind(self.ledger.open_bytes() > self.replica.config().backlog);
        if self.ledger.is_long() {
            self.begin_gathering();
        }
        self.gather(now);
    }

    fn member_asks(&mut self, now: Time, asked: MemberOutput) {
        match asked {
            MemberOutput::Send(to, notice) => {
                self.out.push_back(NodeOutput::Send(NodeSet::one(to), Packet::Member(notice)));
            }
            MemberOutput::Persist(number, durable) => self.append(&Record::Member(durable), Token::Member(number)),
            MemberOutput::Lease(until) => self.replica.set_lease(now, until),
            MemberOutput::Forgot => {
                self.lost = true;
                self.append(&Record::Damaged, Token::Nothing);
            }
            MemberOutput::Install(view) => {
                let joined = self.replica.joined();
                self.replica.install(now, view);
                if self.replica.joined() != joined {
                    // Jobs from before would speak of records that are gone.
                    let jobs = self.ledger.open().filter(|token| matches!(token, Token::Job(_)));
                    jobs.for_each(|token| *token = Token::Nothing);
                    self.waiting.clear();
                    // And what was gathered is what is reset.
                    self.gathering = None;
                    self.append(&Record::Reset, Token::Nothing);
                }
                if self.replica.status().is_none() && self.member.astray() {
                    // It has forgotten that it had caught up: damage that looked like a torn tail.
                    self.lost = true;
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
                self.persist(Record::Write(write), id);
            }
            ReplicaOutput::Job(Job::PersistScope(scope)) => {
                self.persist(Record::Scope(scope), JobId::PersistScope(scope));
            }
            // The log is what the dFIFO drains to, and here it is both.
            ReplicaOutput::Job(Job::Drain(key, ts)) => self.replica.done(now, JobId::Drain(key, ts)),
            ReplicaOutput::Job(job) => self.out.push_back(NodeOutput::Job(job)),
        }
        if let Some(status) = self.replica.status() {
            self.member.set_status(status);
        }
    }

    /// Appends a record of the replica's, now or when there is room.
    fn persist(&mut self, record: Record, job: JobId) {
        if self.waiting.is_empty() && self.fits(&record) {
            self.append(&record, Token::Job(job));
        } else {
            self.waiting.push_back((record, job));
        }
    }

    fn fits(&self, record: &Record) -> bool {
        self.ledger.fits(record, RESERVE)
    }

    fn append(&mut self, record: &Record, token: Token) {
        if let Some(gathering) = &mut self.gathering {
            gathering.snapshot.push(record.clone());
        }
        let (number, change) = self.ledger.append(record, token);
        self.out.push_back(NodeOutput::Log(number, change));
    }

    /// A log with just what counts is to be made: the newest version of each record, tombstones too, and membership.
    fn begin_gathering(&mut self) {
        if self.gathering.is_none() {
            // Damage is remembered until the log is begun again.
            let damaged = (self.member.status() == Standing::Damaged).then_some(Record::Damaged);
            let records = damaged.into_iter().chain([Record::Member(self.member.durable())]).collect();
            let snapshot = Snapshot::new(records);
            self.gathering = Some(Gathering { snapshot, ..Gathering::default() });
        }
    }

    /// Some records more of it. All at once would be milliseconds for each ten thousand, in which nobody hears of this node.
    fn gather(&mut self, now: Time) {
        let Some(Gathering { snapshot, last, at }) = &mut self.gathering else { return };
        *at = if at.0 == now { (now, at.1 + 1) } else { (now, 1) };
        if at.1 > GATHERS {
            return;
        }
        let mut left = self.replica.config().gathers;
        for write in self.replica.snapshot(*last).take(left) {
            left -= 1;
            *last = Some(write.key);
            snapshot.push(Record::Write(write));
        }
        if left > 0
            && let Some(Gathering { snapshot, .. }) = self.gathering.take()
        {
            let (number, change) = self.ledger.replace(snapshot, Token::Nothing, Change::Compact);
            self.out.push_back(NodeOutput::Log(number, change));
        }
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
