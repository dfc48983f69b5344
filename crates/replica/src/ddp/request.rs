//! What clients ask, and what they are told.

use crate::types::{Key, ScopeId, Value};

/// A client's request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Request {
    /// Comes back with the reply.
    pub tag: u64,
    /// Who asks, so that a request sent again after a fail-over is done once.
    pub session: Option<Session>,
    /// The scope that its writes belong to; `Op::Persist` ends it.
    pub scope: Option<ScopeId>,
    /// What to do.
    pub op: Op,
}

impl Request {
    /// A request outside sessions and scopes.
    pub const fn new(tag: u64, op: Op) -> Self {
        Self { tag, session: None, scope: None, op }
    }
}

/// A client's name and the number of its request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Session {
    /// The client; unique in the cluster.
    pub client: u64,
    /// Counts up with each new request of the client, stays with one sent again. A record remembers as many of
    /// its last clients as [`super::Config::stamps`] says: a request sent again when so many others have written the record
    /// since is done again.
    pub sequence: u64,
    /// How often the request was sent before, to any node, with an unknown outcome. Only the answer to the last attempt
    /// counts: a client that has asked elsewhere no longer listens to whom it asked first.
    pub attempt: u32,
}

/// A client's last request that changed a record, or was sent again and did not, as the record remembers it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    /// The client.
    pub client: u64,
    /// The number of its request.
    pub sequence: u64,
    /// Which attempt at it this was.
    pub attempt: u32,
    /// It was done, and a fetch-and-add found this; `None` if it came to nothing, as no earlier attempt may do it then.
    pub done: Option<u64>,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// Read the record.
    Get(Key),
    /// Set the record.
    Put(Key, Value),
    /// Remove the record.
    Delete(Key),
    /// Set the record to `new` if it is `expected`; `None` is absence.
    CompareSwap {
        /// The record.
        key: Key,
        /// What it must be.
        expected: Option<Value>,
        /// What it becomes.
        new: Option<Value>,
    },
    /// Add to the record, a number of eight bytes, little-endian; an absent record is 0. Wraps around.
    FetchAdd(Key, u64),
    /// Several of the above, in one round; not atomic. Within a session each key may occur once.
    Batch(Vec<Op>),
    /// End the request's scope: make all its writes durable (`[PERSIST]sc`).
    Persist,
}

impl Op {
    /// The record of an operation on one.
    pub(crate) fn key(&self) -> Option<Key> {
        match self {
            Self::Get(key) | Self::Put(key, _) | Self::Delete(key) | Self::FetchAdd(key, _) => Some(*key),
            Self::CompareSwap { key, .. } => Some(*key),
            Self::Batch(_) | Self::Persist => None,
        }
    }
}

/// An answer to a request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reply {
    /// The request's.
    pub tag: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// What was read; `None` if there is no such record.
    Value(Option<Value>),
    /// Put or deleted.
    Written,
    /// Compared equal, and swapped.
    Swapped,
    /// Compared unequal with this; nothing changed.
    NotSwapped(Option<Value>),
    /// Added to this number.
    Added(u64),
    /// The scope is durable.
    Persisted,
    /// Of each operation in order.
    Batch(Vec<Outcome>),
    /// Nothing was done.
    Refused(Refusal),
    /// The node lost its membership or crashed meanwhile: it may have been done or not, or may still be. Or a later
    /// attempt has taken its place.
    Unknown,
}

/// Why nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    /// The node is no member, or has no lease; ask another.
    #[error("the node does not serve now: ask another member")]
    NotServing,
    /// A bounded resource (vFIFO, dFIFO, scopes, a scope's records) is used up; ask again later.
    #[error("the node has no room for the request: ask again later")]
    Busy,
    /// The disk of a node is full. Reads go on; ask again when there is room.
    #[error("the disk of a node is full: reads go on, and writes again when there is room on it")]
    Full,
    /// Fetch-and-add needs a record of eight bytes.
    #[error("the record is not a number of eight bytes")]
    NotANumber,
    /// Only the Scope model has scopes, and PERSIST needs one.
    #[error("no scope: PERSIST and scoped writes need the scope model and a scope")]
    NoScope,
    /// Nothing is known of the scope here, so nothing can be promised; write again.
    #[error("the scope is not known here: write its records again")]
    UnknownScope,
    /// Longer than the configuration allows. In the answer to a batch: there was no room for this content. To PERSIST: its
    /// scope has come to more records than can be listed, by way of several nodes; write again in others.
    #[error("the value, the answer or the scope is longer than the cluster takes")]
    TooLong,
    /// Batches and PERSIST do not go into batches, nor a key twice into a session's.
    #[error("a batch holds reads and writes only, and within a session each key once")]
    Nested,
}
