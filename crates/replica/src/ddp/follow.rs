//! The follower (figures 2 and 3, right; figure 8), and what it shares with the coordinator: the local write.

use super::config::Mutation;
use super::message::{AckKind, Body, Write};
use super::record::{Spin, Then};
use super::replica::{Job, Replica, StepKind, Where};
use crate::Time;
use crate::types::{Key, NodeId, NodeSet, Timestamp};

/// A write on its way into local memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Local {
    pub write: Write,
    pub origin: Origin,
    pub stage: Stage,
}

/// Who has the write made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Origin {
    /// A client of this node.
    Client,
    /// These, who get the ACK.
    Peers(NodeSet),
}

impl Origin {
    /// Does this node get an ACK?
    pub(crate) fn is_owed(self, node: NodeId) -> bool {
        matches!(self, Self::Peers(peers) if peers.has(node))
    }
}

/// How far a local write is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Stage {
    /// Between host and NIC.
    Crossing,
    /// Waits for the WRLock.
    Queued,
    /// Being written under the WRLock, or in the vFIFO.
    Writing,
}

impl Replica {
    /// INV (lines 26 to 40).
    pub(crate) fn inv(&mut self, from: NodeId, write: Write) {
        let (key, ts) = (write.key, write.ts);
        if self.catch_up.taking.merging {
            // Whoever coordinates again knows that everyone, this node too, has everyone's log.
            self.end_merging();
        }
        self.step(self.engine(), StepKind::Dispatch, write.bytes());
        self.step(self.engine(), StepKind::ReadMeta, 0);
        let mine = ts.node == self.config.id;
        if mine && self.driven.get(&(key, ts)).is_some_and(|driven| driven.write.rmw && driven.client.is_some()) {
            // Somebody replays a read-modify-write that lives here: only one of us may decide whether it happens.
            return;
        }
        let behind_fifo = self.config.fifo().is_some();
        if let Some(Local { origin: Origin::Peers(peers), stage, .. }) = self.locals.get_mut(&(key, ts))
            && !(behind_fifo && *stage == Stage::Writing)
        {
            *peers = peers.with(from);
            return;
        }
        let of_client = |local: &Local| local.origin == Origin::Client;
        if !behind_fifo && self.locals.get(&(key, ts)).is_some_and(of_client) {
            // Somebody replays what is on its way into local memory here. When it is there, who asks again hears of it.
            return;
        }
        // Most that comes now changes it.
        let meta = self.records.get_mut(key).map(|record| record.meta).unwrap_or_default();
        let newest = meta.volatile_ts;
        let origin = Origin::Peers(NodeSet::one(from));
        if let Some(scope) = write.scope
            && ts <= newest
            && meta.durable_ts < newest
        {
            // Here already, as state of another node; or what superseded it is the scope's now.
            self.scope_write(scope, key, newest);
        }
        if ts == newest {
            self.updated(&write, origin);
        } else if ts < newest && !self.config.mutant(Mutation::NoObsolete) {
            self.obsolete(&write, origin);
        } else if write.rmw && self.put_crosses(key, ts) {
            self.send(NodeSet::one(from), Body::Refuse(key, ts));
        } else if !self.fifo_room() {
            self.marks.fifo_full += 1;
            self.send(NodeSet::one(from), Body::Busy(key, ts));
        } else {
            self.step(self.engine(), StepKind::RdLock, 0);
            let now = self.now;
            let record = self.record(key);
            record.since = now;
            if record.snatch(ts) {
                self.marks.snatches += 1;
            }
            if let Some(scope) = write.scope {
                self.scope_write(scope, key, ts);
            }
            self.unsettled.insert(key);
            self.local(write, origin);
        }
    }

    /// VAL, VAL_C or VAL_P (lines 41 to 44).
    pub(crate) fn val(&mut self, key: Key, ts: Timestamp, kind: AckKind) {
        self.step(self.engine(), StepKind::Dispatch, 0);
        if self.config.mutant(Mutation::UnlockByNonOwner) {
            self.record(key).meta.rd_lock = None;
        }
        self.raise(key, ts, kind);
        self.settle(key);
    }

    /// Raises the global timestamps. By maximum: VALs may arrive in another order than their writes'.
    pub(crate) fn raise(&mut self, key: Key, ts: Timestamp, kind: AckKind) {
        let set = self.config.mutant(Mutation::NoMaximum);
        self.step(self.engine(), StepKind::WriteMeta, 0);
        let meta = &mut self.record(key).meta;
        if kind.c() {
            meta.glb_volatile_ts = if set { ts } else { meta.glb_volatile_ts.max(ts) };
        }
        if kind.p() {
            meta.glb_durable_ts = if set { ts } else { meta.glb_durable_ts.max(ts) };
        }
    }

    /// Is there room in vFIFO and dFIFO, and before the log, for one more write?
    pub(crate) fn fifo_room(&self) -> bool {
        if self.behind {
            return false;
        }
        let Some(entries) = self.config.fifo() else { return true };
        let crossing = self.locals.values().filter(|local| local.stage == Stage::Crossing).count();
        self.locals.len() < entries && self.to_log.dfifo.len() + crossing < entries
    }

    /// Is a newer write of a client, that does not depend on what is here, on its way from host to NIC? It knows nothing
    /// of a read-modify-write that comes now, and will overwrite it with its mark (see [`super::Session`]).
    fn put_crosses(&self, key: Key, than: Timestamp) -> bool {
        let mut newer = self.locals.range((key, than)..).take_while(|((of, _), _)| *of == key);
        newer.any(|(_, local)| local.stage == Stage::Crossing && !local.write.rmw)
    }

    /// From host to NIC.
    pub(crate) fn cross(&mut self, write: Write) {
        if !self.config.stepped {
            return self.local(write, Origin::Client);
        }
        let local = Local { write: write.clone(), origin: Origin::Client, stage: Stage::Crossing };
        self.locals.insert((write.key, write.ts), local);
        self.job(Job::Cross(write));
    }

    /// The write has arrived at the NIC.
    pub(crate) fn crossed(&mut self, key: Key, ts: Timestamp) {
        let crossing = self.locals.get(&(key, ts)).is_some_and(|local| local.stage == Stage::Crossing);
        if crossing && let Some(local) = self.locals.remove(&(key, ts)) {
            self.local(local.write, local.origin);
        }
    }

    /// Lines 9 to 18 and 32 to 39: into local memory, if it is not obsolete by now, and towards the log.
    pub(crate) fn local(&mut self, mut write: Write, origin: Origin) {
        let (key, ts, on) = (write.key, write.ts, self.engine());
        if self.config.fifo().is_none() {
            self.step(on, StepKind::WrLock, 0);
            let record = self.record(key);
            if record.meta.wr_lock.is_some() {
                record.writers.push_back(ts);
                self.locals.insert((key, ts), Local { write, origin, stage: Stage::Queued });
                return;
            }
            return self.locked(write, origin);
        }
        if self.is_obsolete(key, ts) {
            return self.obsolete(&write, origin);
        }
        if self.read_something_else(&write) {
            return self.drop_outdated(key, ts);
        }
        if origin == Origin::Client {
            self.marked(&mut write);
            self.send_inv(&write);
        }
        // volatileTS moves when the write enters the vFIFO, not when it leaves: the client may hear of the write and
        // send its next one through this node before the drain, and that one must get a newer timestamp.
        self.take(&write);
        self.step(on, StepKind::EnqueueVolatile, write.bytes());
        if self.config.stepped {
            self.locals.insert((key, ts), Local { write: write.clone(), origin, stage: Stage::Writing });
            self.job(Job::Apply(write.clone()));
        }
        self.updated(&write, origin);
        if !self.config.stepped {
            self.made(&write, origin);
        }
    }

    /// The WRLock is this write's.
    fn locked(&mut self, mut write: Write, origin: Origin) {
        let (key, ts) = (write.key, write.ts);
        self.step(self.engine(), StepKind::ReadMeta, 0);
        if self.is_obsolete(key, ts) {
            return self.obsolete(&write, origin);
        }
        if self.read_something_else(&write) {
            return self.drop_outdated(key, ts);
        }
        self.record(key).meta.wr_lock = Some(ts);
        if origin == Origin::Client {
            self.marked(&mut write);
            self.send_inv(&write);
        }
        if self.config.stepped {
            self.locals.insert((key, ts), Local { write: write.clone(), origin, stage: Stage::Writing });
            self.job(Job::Apply(write));
        } else {
            self.made(&write, origin);
        }
    }

    /// Local memory has the write.
    pub(crate) fn applied(&mut self, key: Key, ts: Timestamp) {
        if self.locals.get(&(key, ts)).is_none_or(|local| local.stage != Stage::Writing) {
            return;
        }
        if let Some(Local { write, origin, .. }) = self.locals.remove(&(key, ts)) {
            self.made(&write, origin);
        }
    }

    /// Local memory has the write; unless `stepped` it was never on its way there.
    fn made(&mut self, write: &Write, origin: Origin) {
        let (key, ts) = (write.key, write.ts);
        self.step(self.engine(), StepKind::LocalWrite, write.bytes());
        if self.config.fifo().is_some() {
            let meta = &mut self.record(key).meta;
            meta.applied_ts = meta.applied_ts.max(ts);
            return self.settle(key);
        }
        // State from another node does not wait for the WRLock.
        let overtaken = self.is_obsolete(key, ts);
        self.record(key).meta.wr_lock = None;
        if !overtaken {
            self.take(write);
            self.record(key).meta.applied_ts = ts;
        }
        match origin {
            Origin::Peers(_) if overtaken => self.obsolete(write, origin),
            _ => self.updated(write, origin),
        }
        self.settle(key);
        while self.record(key).meta.wr_lock.is_none()
            && let Some(next) = self.record(key).writers.pop_front()
        {
            if let Some(local) = self.locals.remove(&(key, next)) {
                self.locked(local.write, local.origin);
            }
        }
    }

    fn take(&mut self, write: &Write) {
        let keeps = self.config.mutant(Mutation::KeptMarks);
        let record = self.record(write.key);
        let before = if keeps { record.stamps.clone() } else { Vec::new() };
        record.take(write);
        for stamp in before {
            if record.stamps.iter().all(|kept| kept.client != stamp.client) {
                record.stamps.insert(0, stamp);
            }
        }
    }

    fn is_obsolete(&self, key: Key, ts: Timestamp) -> bool {
        ts < self.meta(key).volatile_ts && !self.config.mutant(Mutation::NoObsolete)
    }

    /// The volatile replica is up to date with the write: ACK_C, and on to the log.
    fn updated(&mut self, write: &Write, origin: Origin) {
        let (key, ts) = (write.key, write.ts);
        match origin {
            Origin::Client => {
                if let Some(driven) = self.driven.get_mut(&(key, ts)) {
                    driven.acked_c = driven.acked_c.with(self.config.id);
                }
                self.persist(write, NodeSet::EMPTY);
                self.progress(key, ts);
            }
            Origin::Peers(peers) => {
                if let Some(&kind) = self.config.model.facts().acks.iter().find(|kind| !kind.p()) {
                    self.send(peers, Body::Ack(key, ts, kind));
                }
                if self.config.mutant(Mutation::AckBeforePersist) {
                    self.ack_persist(peers, key, ts);
                }
                self.persist(write, peers);
            }
        }
    }

    /// Has the write made durable, or finds that it is; `peers` are told.
    pub(crate) fn persist(&mut self, write: &Write, peers: NodeSet) {
        let (key, ts) = (write.key, write.ts);
        if self.config.writes_back() && self.records.get(key).is_some_and(|record| record.dirty) {
            // Nobody waits for it, and its turn comes.
            return;
        }
        if let Some(owed) = self.to_log.persisting.get_mut(&(key, ts)) {
            *owed = owed.or(peers);
        } else if self.meta(key).durable_ts >= ts {
            self.ack_persist(peers, key, ts);
            self.own_persist(key, ts);
        } else if self.config.writes_back() {
            self.mark_dirty(key);
        } else {
            self.to_log.persisting.insert((key, ts), peers);
            if self.config.fifo().is_some() {
                self.step(Where::Nic, StepKind::EnqueueDurable, write.bytes());
                self.to_log.dfifo.insert((key, ts));
            }
            self.job(Job::Persist(write.clone()));
        }
    }

    /// The record's newest version goes to the log in a while.
    fn mark_dirty(&mut self, key: Key) {
        if std::mem::replace(&mut self.record(key).dirty, true) {
            return;
        }
        if self.to_log.dirty.is_empty() {
            self.to_log.write_back_at = self.now.saturating_add(self.config.write_back);
        }
        self.to_log.dirty.push(key);
    }

    /// Has the newest versions of records made durable. They need no room in the dFIFO: all are in memory. Of each record
    /// one version at a time: however long the log takes, no more than the records themselves waits for it.
    pub(crate) fn write_back(&mut self) {
        self.to_log.write_back_at = Time::MAX;
        for key in std::mem::take(&mut self.to_log.dirty) {
            let Some(record) = self.records.get_mut(key) else { continue };
            record.dirty = false;
            let ts = record.meta.volatile_ts;
            let under_way =
                self.to_log.persisting.range((key, Timestamp::ZERO)..).next().is_some_and(|(id, _)| id.0 == key);
            if record.meta.durable_ts < ts && !under_way {
                let write = record.as_write(key);
                self.to_log.persisting.insert((key, ts), NodeSet::EMPTY);
                self.job(Job::Persist(write));
            }
        }
    }

    /// The log (or the dFIFO) has the write.
    pub(crate) fn persisted(&mut self, key: Key, ts: Timestamp) {
        let Some(peers) = self.to_log.persisting.remove(&(key, ts)) else { return };
        let meta = &mut self.record(key).meta;
        meta.durable_ts = meta.durable_ts.max(ts);
        let newer = meta.durable_ts < meta.volatile_ts;
        if newer && self.config.writes_back() {
            self.mark_dirty(key);
        }
        if self.to_log.dfifo.contains(&(key, ts)) {
            self.job(Job::Drain(key, ts));
        }
        self.ack_persist(peers, key, ts);
        self.own_persist(key, ts);
        self.flushes_go_on();
        self.look_durable();
    }

    fn own_persist(&mut self, key: Key, ts: Timestamp) {
        if self.config.model.facts().acks_persists()
            && let Some(driven) = self.driven.get_mut(&(key, ts))
        {
            driven.acked_p = driven.acked_p.with(self.config.id);
            self.progress(key, ts);
        }
    }

    fn ack_persist(&mut self, peers: NodeSet, key: Key, ts: Timestamp) {
        if let Some(&kind) = self.config.model.facts().acks.iter().find(|kind| kind.p()) {
            self.send(peers, Body::Ack(key, ts, kind));
        }
    }

    /// handleObsolete (lines 1 to 3 and 23 to 25): answer when what superseded the write is as far as the model wants.
    fn obsolete(&mut self, write: &Write, origin: Origin) {
        let (key, ts) = (write.key, write.ts);
        self.marks.obsolete += 1;
        let Origin::Peers(peers) = origin else { return self.drop_obsolete(key, ts) };
        if write.rmw && !self.config.mutant(Mutation::AcceptStaleRmw) {
            return self.send(peers, Body::Refuse(key, ts));
        }
        for &kind in self.config.model.facts().acks {
            for peer in peers.iter() {
                let spin = Spin { ts, itself: false, durable: kind.p(), then: Then::Ack(peer, kind) };
                if self.config.mutant(Mutation::NoConsistencySpin) {
                    self.send(NodeSet::one(peer), Body::Ack(key, ts, kind));
                } else if !self.record(key).spins.contains(&spin) {
                    self.record(key).spins.push(spin);
                }
            }
        }
        self.wake(key);
    }
}
