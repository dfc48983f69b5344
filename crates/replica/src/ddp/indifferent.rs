//! What makes no difference when it happens: for a search of all orders of events, which may then try one of them.
//!
//! Three things that follow from each other's order are: which versions a replica takes (INVs and its own writes), who
//! waits for an RDLock when it is released, and what is durable when somebody looks. The rest only raises: global
//! timestamps, sets of acknowledgements, answers. These come out the same in any order, and the sooner the more a
//! client may rely on.

use super::catch_up::Stream;
use super::coordinate::Driven;
use super::message::{AckKind, Body, Message};
use super::replica::{JobId, Replica};
use crate::types::{Key, NodeId, NodeSet, Timestamp};

/// What may still come to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// No crash, no new view, and no message twice.
    pub calm: bool,
    /// Its clients' requests.
    pub asks: Asks,
    /// Acknowledgements of a read-modify-write that has begun again meanwhile: they are answered with what is known then.
    pub late_acks: bool,
    /// There will never be more versions than this; FIFOs with as many entries are not full.
    pub versions: usize,
}

/// Requests that may still come to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    /// None.
    Nothing,
    /// First attempts to put or delete: they wait for no RDLock but a read-modify-write's.
    Puts,
    /// Any.
    Anything,
}

impl Replica {
    /// Does it make no difference when this message arrives, among all else that comes here until it does?
    pub fn is_indifferent(&self, from: NodeId, message: &Message, ahead: &Ahead) -> bool {
        match message.body {
            _ if message.epoch != self.view.epoch => false,
            Body::Ack(key, ts, kind) => self.counts(from, key, ts, kind) || self.ends(from, key, ts, kind, ahead),
            Body::Val(key, ts, kind) => self.may_raise(key, ts, kind, ahead),
            Body::PersistAck(scope, number) => {
                let missing = |acked: NodeSet| !acked.with(from).covers(self.peers());
                let flush = self.scopes.flushes.get(&(scope, self.config.id)).filter(|flush| flush.number == number);
                ahead.calm || flush.is_some_and(|flush| missing(flush.acked))
            }
            Body::StateAck(_) => self.catch_up.streams.get(&from).is_none_or(Stream::is_last),
            // What follows waits for persists alone.
            Body::Persist(..) | Body::PersistVal(..) => ahead.calm,
            _ => false,
        }
    }

    /// Does it make no difference when this job ends, among all else that comes here until it does?
    pub fn is_indifferent_job(&self, job: JobId, ahead: &Ahead) -> bool {
        let room = self.config.fifo().is_some_and(|entries| entries >= ahead.versions);
        match job {
            JobId::Drain(..) => room,
            // Out of the vFIFO; it was taken when it went in.
            JobId::Apply(key, ts) => room && self.may_raise(key, ts, AckKind::Both, ahead),
            // Something newer is durable already: all that comes of it is an acknowledgement.
            JobId::Persist(key, ts) => {
                let acks_own = self.config.model.facts().acks_persists() && self.driven.contains_key(&(key, ts));
                ahead.calm && ts < self.meta(key).durable_ts && !acks_own
            }
            JobId::PersistScope(_) => ahead.calm,
            JobId::Cross(..) => false,
        }
    }

    /// An acknowledgement of which others are still missing. One of a read-modify-write that has begun again meanwhile, or
    /// whose replay was refused, would be answered instead; so may be one that comes twice.
    fn counts(&self, from: NodeId, key: Key, ts: Timestamp, kind: AckKind) -> bool {
        let missing = |acked: NodeSet| !acked.with(from).covers(self.peers());
        let news = |driven: &Driven| kind.c() && !driven.acked_c.has(from) || kind.p() && !driven.acked_p.has(from);
        let counts = |driven: &Driven| (!kind.c() || missing(driven.acked_c)) && (!kind.p() || missing(driven.acked_p));
        let driven = self.driven.get(&(key, ts));
        driven.is_some_and(|driven| driven.rmw.is_none() && !driven.write.rmw && news(driven) && counts(driven))
    }

    /// The last acknowledgement, where nobody waits for what it releases; or one of a write that is certain to happen.
    fn ends(&self, from: NodeId, key: Key, ts: Timestamp, kind: AckKind, ahead: &Ahead) -> bool {
        let Some(driven) = self.driven.get(&(key, ts)) else { return false };
        let acked_c = if kind.c() { driven.acked_c.with(from) } else { driven.acked_c };
        let happens = driven.rmw.is_none() || acked_c.covers(self.view.all());
        happens && self.may_raise(key, ts, kind, ahead)
    }

    /// Global timestamps only grow, so what raises nothing now never will.
    fn raises(&self, key: Key, ts: Timestamp, kind: AckKind) -> bool {
        let meta = self.meta(key);
        kind.c() && ts > meta.glb_volatile_ts || kind.p() && ts > meta.glb_durable_ts
    }

    /// A VAL that raises nothing any more, a message of an epoch that is over, or of one in which this node has no part:
    /// as if it were not there.
    pub fn is_dead(&self, message: &Message) -> bool {
        match message.body {
            _ if message.epoch != self.view.epoch => message.epoch < self.view.epoch,
            _ if !self.view.all().has(self.config.id) => true,
            Body::Val(key, ts, kind) => !self.raises(key, ts, kind),
            _ => false,
        }
    }

    /// Versions that this replica is yet to acknowledge to a node, when a job is done or a spin is over.
    pub fn owes(&self, to: NodeId) -> impl Iterator<Item = (Key, Timestamp)> {
        let persists = self.to_log.persisting.iter().filter(move |(_, owed)| owed.has(to)).map(|(&id, _)| id);
        let acks_persists = self.config.model.facts().acks_persists();
        // Behind a vFIFO they were acknowledged when they went in.
        let under_lock = self.config.fifo().is_none();
        let made = self.locals.iter().filter(move |(_, local)| local.origin.is_owed(to)).map(|(&id, _)| id);
        let spins = self.records.iter().flat_map(move |(key, record)| {
            record.spins.iter().filter(move |spin| spin.then.acks(to)).map(move |spin| (key, spin.ts))
        });
        persists.filter(move |_| acks_persists).chain(made.filter(move |_| under_lock)).chain(spins)
    }

    /// Do global timestamps do nothing but grow by this, or by the local write of this version?
    fn may_raise(&self, key: Key, ts: Timestamp, kind: AckKind, ahead: &Ahead) -> bool {
        // VAL_P by itself releases nothing.
        let releases = kind != AckKind::Persistency || !self.config.model.facts().validates_twice();
        // A newer write holds the RDLock: this one releases nothing now, nor later.
        let outrun = self.meta(key).rd_lock.is_some_and(|owner| owner > ts);
        let quiet = ahead.calm && !ahead.late_acks && !self.drives_rmw(key, ts);
        quiet && (!releases || outrun || self.nobody_waits(key, ahead))
    }

    /// Nobody here waits for the record's RDLock, nor will: it matters to readers alone when it is released, and they
    /// see more the sooner it is.
    fn nobody_waits(&self, key: Key, ahead: &Ahead) -> bool {
        let record = self.records.get(key);
        let waited = record.is_some_and(|record| !record.waiting.is_empty());
        let may_wait = match ahead.asks {
            Asks::Nothing => false,
            Asks::Puts => record.is_some_and(|record| record.rmw),
            Asks::Anything => true,
        };
        !waited && !may_wait
    }

    /// Is there an older read-modify-write of this node that may have to begin again? A newer one, there now or begun
    /// later, looks at newer timestamps.
    fn drives_rmw(&self, key: Key, before: Timestamp) -> bool {
        self.driven.range((key, Timestamp::ZERO)..(key, before)).any(|(_, driven)| driven.rmw.is_some())
    }
}
