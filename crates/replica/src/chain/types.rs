//! What a chain speaks of: transactions, entries of the redo log, messages, configuration.

use std::sync::Arc;

use super::layout::Layout;
use super::sessions::MARK;
use crate::Time;
use crate::ddp::Session;
use crate::types::{NodeId, NodeSet, Value};

/// A range of the data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// Bytes and where they are: the (data, length, offset) of the paper.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tuple {
    /// Where they begin.
    pub offset: u64,
    /// The bytes.
    pub data: Value,
}

impl Tuple {
    /// Where it is.
    pub fn extent(&self) -> Extent {
        Extent { offset: self.offset, length: self.data.len() as u32 }
    }
}

/// What is done as a whole, or not at all.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Transaction {
    /// What is read; as it was before the writes.
    pub reads: Vec<Extent>,
    /// What must be there; otherwise nothing is written.
    pub expects: Vec<Tuple>,
    /// What is written.
    pub writes: Vec<Tuple>,
}

impl Transaction {
    /// All that it touches.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.reads.iter().copied().chain(self.expects.iter().chain(&self.writes).map(Tuple::extent))
    }
}

/// A client's request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChainRequest {
    /// Comes back with the reply.
    pub tag: u64,
    /// Names a request that writes, so that it is done at most once however often it is sent.
    pub session: Option<Session>,
    /// What to do.
    pub transaction: Transaction,
}

/// Why nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChainRefusal {
    /// The replica is not in a view, or may have been left out of one.
    NotServing,
    /// Writes go to the head, which is this node.
    NotHead(NodeId),
    /// It reaches beyond the data, writes a byte twice, or has more parts, bytes or keys than there may be.
    Invalid,
    /// Too many wait, or for too many keys.
    Busy,
    /// A member's disk is full.
    Full,
}

impl std::fmt::Display for ChainRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotServing => f.write_str("no node serves"),
            Self::NotHead(head) => write!(f, "node {head} takes what writes"),
            Self::Invalid => f.write_str("it reaches beyond the data, writes a byte twice, or is too large"),
            Self::Busy => f.write_str("too many wait"),
            Self::Full => f.write_str("a node's disk is full"),
        }
    }
}

/// How a transaction ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChainOutcome {
    /// It was done, and durable at all replicas; this was read.
    Done(Vec<Value>),
    /// Something else was there than expected: nothing was written; this was read. To an attempt after the first: something else
    /// was there for an earlier one, and this is there now, which may be what was expected.
    Unequal(Vec<Value>),
    /// An attempt before this one was done, and durable at all replicas. What that read is not kept.
    Before,
    /// It was not done and will not be.
    Refused(ChainRefusal),
    /// It may have been done.
    Unknown,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChainReply {
    /// The request's.
    pub tag: u64,
    /// How it ended.
    pub outcome: ChainOutcome,
}

/// An entry of the redo log.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    /// Counts up from 1.
    pub seq: u64,
    /// The view in which the head made it.
    pub epoch: u64,
    /// What it writes.
    pub writes: Arc<[Tuple]>,
}

/// What replicas say to each other. Those of another epoch than the receiver's do not count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChainMessage {
    /// To the next in the chain: append these. None of them asks for an acknowledgement.
    Forward(Vec<Entry>),
    /// To the one before: all up to this entry are durable from here on, all bytes before this place of the ring are free
    /// from here on, and all up to this entry are applied from here on.
    Ack(u64, u64, u64),
    /// At the begin of a view, to its head: in which view my log was last everybody's, up to which entry it is applied, and
    /// what follows.
    State(u64, u64, Vec<Entry>),
    /// The head's answer: up to which entry it has applied, where in the ring that ends, and what follows.
    Sync(u64, u64, Vec<Entry>),
    /// A learner wants this piece of the data.
    Want(u64),
    /// A piece, as it was when this entry was applied; and whether it is the last.
    Piece(u64, u64, Value, bool),
    /// To the next in the chain: all up to this entry are durable everywhere. Apply them.
    Commit(u64),
}

/// What a replica is told at its start.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ChainConfig {
    /// Its own number.
    pub id: NodeId,
    /// All nodes of the cluster.
    pub nodes: NodeSet,
    /// Bytes of data.
    pub data: usize,
    /// Bytes of the ring. An entry takes a quarter of it at most.
    pub ring: usize,
    /// Bytes that are locked together: a key.
    pub cell: u64,
    /// Transactions that wait at most.
    pub waiting: usize,
    /// Keys that transactions that write want at most, one and all together: each costs the head time.
    pub keys: usize,
    /// Sessions whose last request is remembered: those that wrote last.
    pub sessions: u32,
    /// Bytes that a learner gets at a time.
    pub piece: usize,
    /// Entries that are sent again at a time, and that are kept if they come before one that they follow: 1 or more.
    pub at_once: usize,
    /// After so long (ns) what was not answered is sent again.
    pub retry: Time,
    /// A lease's length (ns).
    pub lease: Time,
    /// Silence (ns) after which a node is suspected.
    pub suspect: Time,
    /// How far two clocks may drift apart, in a million.
    pub drift_ppm: u32,
    /// A seeded fault; for checks only.
    pub mutation: Option<ChainMutation>,
}

impl ChainConfig {
    /// 64-byte keys, a ring of 1,024 times 256 bytes, and the times of the other services.
    pub fn new(id: NodeId, nodes: NodeSet, data: usize) -> Self {
        Self {
            id,
            nodes,
            data,
            ring: 256 << 10,
            cell: 64,
            waiting: 4096,
            keys: 1 << 17,
            sessions: 1024,
            piece: 64 << 10,
            at_once: 1024,
            retry: 20_000_000,
            lease: 100_000_000,
            suspect: 200_000_000,
            drift_ppm: 1000,
            mutation: None,
        }
    }

    /// How the persistent memory is laid out.
    pub fn layout(&self) -> Layout {
        Layout { ring: self.ring, data: self.data + self.sessions as usize * MARK }
    }
}

/// Seeded faults, by which checks show that they can fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChainMutation {
    /// A replica acknowledges what is not durable yet.
    EarlyAck,
    /// A replica applies, and shows, what it does not know to be durable everywhere.
    EarlyShow,
    /// The head answers before the chain has acknowledged.
    EarlyAnswer,
    /// Transactions do not wait for each other's keys.
    NoQueue,
    /// Reads do not wait for entries under way.
    DirtyRead,
    /// When a view begins the head keeps its own log, however short.
    OwnLog,
    /// The ring's checksums are not looked at after a crash.
    TrustsTorn,
    /// A learner is ready before it has the data.
    EarlyReady,
    /// A learner does not apply again what came before a piece did.
    SkipRedo,
    /// Reads are answered without a lease.
    NoLease,
    /// A request that is sent again is done again.
    ForgetsSessions,
    /// Entries that came early leave no room for the one that they wait for.
    KeepsEarly,
    /// The head's window stays open when its lease is over.
    NoFence,
    /// It is open before the head has applied what the view begins with.
    EarlyWindow,
    /// A learner asks for data for which its disk has no room.
    FillsDisk,
}

/// How often rare branches were reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ChainMarks {
    /// Transactions that waited for a key.
    pub queued: u64,
    /// Transactions that waited for room in the ring, or for their answers.
    pub full: u64,
    /// Reads that waited for an entry under way.
    pub dirty_reads: u64,
    /// Entries that a head found in others' logs when a view began.
    pub merged: u64,
    /// Entries that came before one that they follow.
    pub early: u64,
    /// Entries applied again behind a piece of data.
    pub reapplied: u64,
    /// Learners that have caught up.
    pub caught_up: u64,
    /// Torn ends of rings that were found.
    pub torn: u64,
    /// Views in which all came from a crash.
    pub recoveries: u64,
    /// Messages of other views.
    pub stale: u64,
    /// Requests that were known from an earlier attempt.
    pub repeated: u64,
}

impl ChainMarks {
    /// Their names.
    pub const NAMES: [&str; 11] = [
        "waited for a key",
        "waited for room in the ring",
        "reads that waited for an entry",
        "entries merged from other logs",
        "entries out of order",
        "entries applied again behind a piece",
        "learners that caught up",
        "torn rings",
        "recoveries of all",
        "messages of other views",
        "requests known from an earlier attempt",
    ];

    /// In the order of their names.
    pub fn counts(&self) -> [u64; 11] {
        let Self { queued, full, dirty_reads, merged, early, reapplied, caught_up, torn, recoveries, stale, repeated } =
            *self;
        [queued, full, dirty_reads, merged, early, reapplied, caught_up, torn, recoveries, stale, repeated]
    }
}
