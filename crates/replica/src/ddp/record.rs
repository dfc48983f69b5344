//! A record and its metadata (figure 1a).

use std::collections::VecDeque;

use super::message::{AckKind, Write};
use super::request::{Op, Outcome, Session, Stamp};
use crate::Time;
use crate::types::{Key, NodeId, ScopeId, Timestamp, Value};

/// A record's metadata, for checks and for looking at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Meta {
    /// The version here in volatile memory.
    pub volatile_ts: Timestamp,
    /// The newest version known to be in volatile memory everywhere.
    pub glb_volatile_ts: Timestamp,
    /// The newest version known to be durable everywhere.
    pub glb_durable_ts: Timestamp,
    /// RDLock_Owner: while set, nobody reads.
    pub rd_lock: Option<Timestamp>,
    /// WRLock's owner: the write that is being made in local memory.
    pub wr_lock: Option<Timestamp>,
    /// The version that has left the vFIFO for the host's memory; without a vFIFO as `volatile_ts`.
    pub applied_ts: Timestamp,
    /// The newest version that is durable here.
    pub durable_ts: Timestamp,
}

/// Whom an answer goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Client {
    /// The request with this tag.
    Tag(u64),
    /// One operation of a batch.
    Part(u64, u32),
}

/// A ConsistencySpin or PersistencySpin as an entry of a waiting list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Spin {
    /// Until glb_volatileTS is above this.
    pub ts: Timestamp,
    /// Or has come to this.
    pub itself: bool,
    /// And glb_durableTS too.
    pub durable: bool,
    /// Then do this.
    pub then: Then,
}

/// What follows a spin.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Then {
    Ack(NodeId, AckKind),
    Reply(Client, Outcome),
}

impl Then {
    /// Does it acknowledge to this node?
    pub(crate) fn acks(&self, node: NodeId) -> bool {
        matches!(self, Self::Ack(to, _) if *to == node)
    }
}

/// A request that waits until the record can be read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Waiting {
    pub client: Client,
    pub session: Option<Session>,
    pub scope: Option<ScopeId>,
    pub op: Op,
}

/// A record: content, metadata, and who waits for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Record {
    pub meta: Meta,
    /// The content at `volatile_ts`.
    pub value: Option<Value>,
    pub stamps: Vec<Stamp>,
    pub rmw: bool,
    pub scope: Option<ScopeId>,
    /// The newest version that a client's write here was given: timestamps are unique only if it is reserved.
    pub reserved: u64,
    /// Reads and read-modify-writes, in order of arrival.
    pub waiting: VecDeque<Waiting>,
    pub spins: Vec<Spin>,
    /// Writes that want the WRLock, in order.
    pub writers: VecDeque<Timestamp>,
    /// The newest version is to go to the log in a while.
    pub dirty: bool,
    /// Since when something has been expected of another node.
    pub since: Time,
}

impl Record {
    /// The record at `volatile_ts` as a write.
    pub fn as_write(&self, key: Key) -> Write {
        Write {
            key,
            ts: self.meta.volatile_ts,
            value: self.value.clone(),
            rmw: self.rmw,
            scope: self.scope,
            stamps: self.stamps.clone(),
        }
    }

    /// Takes a write's content, and its marks in place of those that were here: nodes that have a version have the same
    /// marks. What is lost so was done by a write that this one's maker had not seen, which nobody reads (see
    /// [`super::Replica::marked`]).
    pub fn take(&mut self, write: &Write) {
        self.meta.volatile_ts = write.ts;
        self.value.clone_from(&write.value);
        self.stamps.clone_from(&write.stamps);
        self.rmw = write.rmw;
        self.scope = write.scope;
    }

    /// "Snatch RDLock": taken if it is free or an older write's.
    pub fn snatch(&mut self, ts: Timestamp) -> bool {
        let snatched = self.meta.rd_lock.is_some_and(|owner| owner < ts);
        if self.meta.rd_lock.is_none() || snatched {
            self.meta.rd_lock = Some(ts);
        }
        snatched
    }

    /// Of this client's request, what the record remembers.
    pub fn stamp(&self, session: Option<Session>) -> Option<&Stamp> {
        let session = session?;
        self.stamps.iter().find(|stamp| stamp.client == session.client && stamp.sequence >= session.sequence)
    }
}

/// `known`, of which at most `room` are kept, with the mark of a request as the newest, unless a later one of its client
/// is known.
pub(crate) fn stamped(known: &[Stamp], room: usize, own: Option<Stamp>) -> Vec<Stamp> {
    let Some(own) = own else { return known.to_vec() };
    if known.iter().any(|stamp| stamp.client == own.client && stamp.sequence > own.sequence) {
        return known.to_vec();
    }
    let mut stamps: Vec<Stamp> = known.iter().filter(|stamp| stamp.client != own.client).cloned().collect();
    if stamps.len() >= room.max(1) {
        stamps.remove(0);
    }
    stamps.push(own);
    stamps
}
