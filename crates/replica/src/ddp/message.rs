//! What replicas say to each other.

use super::request::Stamp;
use crate::types::{Key, ScopeId, Timestamp, Value};

/// A message. One of another epoch than the receiver's is not for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Message {
    /// The sender's epoch.
    pub epoch: u64,
    /// What it says.
    pub body: Body,
}

/// What a message says. `_C` and `_P` of the paper are [`AckKind`]s.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Body {
    /// INV: take these writes, and let nobody read the records until VAL. A batch has more than one.
    Inv(Vec<Write>),
    /// ACK, ACK_C, ACK_P.
    Ack(Key, Timestamp, AckKind),
    /// No ACK: this read-modify-write has read what is no longer the newest.
    Refuse(Key, Timestamp),
    /// No room in a FIFO: ask again.
    Busy(Key, Timestamp),
    /// VAL, VAL_C, VAL_P.
    Val(Key, Timestamp, AckKind),
    /// `[PERSIST]sc`, which of its coordinator's, and the scope's writes.
    Persist(ScopeId, u64, Vec<(Key, Timestamp)>),
    /// `[ACK_P]sc`.
    PersistAck(ScopeId, u64),
    /// `[VAL_P]sc`.
    PersistVal(ScopeId, u64),
    /// A part of the sender's state, by number; the last one says so.
    State(u64, Vec<Entry>, bool),
    /// The part with this number is durable here.
    StateAck(u64),
    /// Recovery: the sender has everyone's log durable. It may ask whether the receiver has.
    Merged(bool),
}

/// A record as one node hands it to another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    /// Its newest version at the sender.
    pub write: Write,
    /// The sender's glb_volatileTS.
    pub glb_volatile_ts: Timestamp,
    /// The sender's glb_durableTS.
    pub glb_durable_ts: Timestamp,
}

/// Of what an ACK or VAL speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AckKind {
    /// Consistency and persistency: ACK, VAL.
    Both,
    /// Consistency: ACK_C, VAL_C.
    Consistency,
    /// Persistency: ACK_P, VAL_P.
    Persistency,
}

impl AckKind {
    /// Does it speak of consistency?
    pub const fn c(self) -> bool {
        !matches!(self, Self::Persistency)
    }

    /// Does it speak of persistency?
    pub const fn p(self) -> bool {
        !matches!(self, Self::Consistency)
    }
}

/// A write as INV, log and catch-up carry it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Write {
    /// The record.
    pub key: Key,
    /// TS_WR.
    pub ts: Timestamp,
    /// The record's content; `None` removes it (a tombstone, which is a version like any other).
    pub value: Option<Value>,
    /// A read-modify-write: it must not be taken after a newer write.
    pub rmw: bool,
    /// The scope it belongs to.
    pub scope: Option<ScopeId>,
    /// Requests that the record remembers, newest last.
    pub stamps: Vec<Stamp>,
}

impl Write {
    /// Bytes of its content.
    pub fn bytes(&self) -> usize {
        self.value.as_ref().map_or(0, |value| value.len())
    }
}
