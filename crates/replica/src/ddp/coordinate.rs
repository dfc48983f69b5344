//! The coordinator (figures 2 and 3, left; figure 8): client requests, and the acknowledgements of their writes.

use super::config::{Mutation, Reached};
use super::follow::Origin;
use super::message::{AckKind, Body, Write};
use super::record::{Client, Spin, Then, Waiting, stamped};
use super::replica::{Replica, StepKind, Where};
use super::request::{Op, Outcome, Refusal, Request, Session, Stamp};
use crate::Time;
use crate::types::{Key, NodeId, NodeSet, ScopeId, Timestamp, Value};

use std::collections::BTreeSet;

/// A write that this node drives: a client's, or one replayed for a coordinator that is gone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Driven {
    /// Who is told, until told.
    pub client: Option<(Client, Outcome)>,
    /// What a read-modify-write does if it must begin again.
    pub rmw: Option<Box<Waiting>>,
    /// The version that it read.
    pub read: Timestamp,
    /// Who has updated its volatile replica, this node included.
    pub acked_c: NodeSet,
    /// Who has it durable, this node included; nobody in models that do not ask.
    pub acked_p: NodeSet,
    /// VAL_C has been sent.
    pub validated: bool,
    /// INVs have been sent: it is known outside.
    pub sent: bool,
    /// What the INV carries.
    pub write: Write,
    pub since: Time,
}

/// A batch's operations.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Batch {
    client: Client,
    left: usize,
    outcomes: Vec<Outcome>,
}

impl Replica {
    /// A request from outside.
    pub(crate) fn begin(&mut self, request: Request) {
        let client = Client::Tag(request.tag);
        self.step(Where::Host, StepKind::Dispatch, 0);
        if !self.serves() {
            return self.refuse(client, Refusal::NotServing);
        }
        let scoped = self.config.model.facts().scopes;
        if request.scope.is_some() != scoped && (request.scope.is_some() || matches!(request.op, Op::Persist)) {
            return self.refuse(client, Refusal::NoScope);
        }
        match (request.op, request.scope) {
            (Op::Persist, Some(_)) if self.closed => self.refuse(client, Refusal::Full),
            (Op::Persist, Some(scope)) => self.flush(client, scope),
            (Op::Persist, None) => self.refuse(client, Refusal::NoScope),
            (Op::Batch(ops), scope) => self.batch(client, request.session, scope, ops),
            (op, scope) => self.start(Waiting { client, session: request.session, scope, op }),
        }
    }

    /// Starts all operations of a batch, with one message to each follower.
    fn batch(&mut self, client: Client, session: Option<Session>, scope: Option<ScopeId>, ops: Vec<Op>) {
        let keys: BTreeSet<Key> = ops.iter().filter_map(Op::key).collect();
        if ops.iter().any(|op| op.key().is_none()) || session.is_some() && keys.len() < ops.len() {
            return self.refuse(client, Refusal::Nested);
        }
        if ops.is_empty() {
            return self.reply(client, Outcome::Batch(Vec::new()));
        }
        let number = self.batches.next;
        self.batches.next += 1;
        let outcomes = vec![Outcome::Unknown; ops.len()];
        self.batches.open.insert(number, Batch { client, left: ops.len(), outcomes });
        self.batches.gathering = Some(Vec::new());
        for (index, op) in (0..).zip(ops) {
            self.start(Waiting { client: Client::Part(number, index), session, scope, op });
        }
        let writes = self.batches.gathering.take().unwrap_or_default();
        if !writes.is_empty() {
            self.send(self.peers(), Body::Inv(writes));
        }
    }

    pub(crate) fn part_done(&mut self, number: u64, index: u32, outcome: Outcome) {
        let Some(batch) = self.batches.open.get_mut(&number) else { return };
        batch.outcomes[index as usize] = outcome;
        batch.left -= 1;
        if batch.left == 0
            && let Some(batch) = self.batches.open.remove(&number)
        {
            self.reply(batch.client, Outcome::Batch(batch.outcomes));
        }
    }

    /// Starts one operation, or lets it wait for the RDLock.
    pub(crate) fn start(&mut self, waiting: Waiting) {
        if !self.serves() {
            return self.refuse(waiting.client, Refusal::NotServing);
        }
        let Waiting { client, session, scope, op } = waiting;
        // A request sent again is done as a read-modify-write: it must not overwrite what came after its first attempt.
        // Nor may a first attempt that comes late overwrite what came after a later one.
        let again = session.is_some_and(|session| session.attempt > 0);
        let reads = again || op.key().is_some_and(|key| self.undecided(key) || self.knows(key, session));
        let scope = scope.filter(|_| !matches!(op, Op::Get(_)));
        match op {
            Op::Put(key, value) if !reads => self.put(client, key, Some(value), session, scope),
            Op::Delete(key) if !reads => self.put(client, key, None, session, scope),
            Op::Get(key) | Op::Put(key, _) | Op::Delete(key) | Op::CompareSwap { key, .. } | Op::FetchAdd(key, _) => {
                let waiting = Waiting { client, session, scope, op };
                self.step(Where::Host, StepKind::ReadMeta, 0);
                match self.records.get_mut(key) {
                    Some(record) if record.meta.rd_lock.is_some() => record.waiting.push_back(waiting),
                    _ => self.start_unlocked(key, waiting),
                }
            }
            Op::Batch(_) | Op::Persist => self.refuse(client, Refusal::Nested),
        }
    }

    /// Is the newest version, here or on its way into local memory, a read-modify-write that may yet be refused? A
    /// write on top of it would carry its mark, or leave it out, without knowing whether it happens; so it waits, as
    /// reads do.
    fn undecided(&self, key: Key) -> bool {
        let Some(record) = self.records.get(key) else { return false };
        let Some(owner) = record.meta.rd_lock else { return false };
        let coming = || self.locals.get(&(key, owner)).is_some_and(|local| local.write.rmw);
        record.rmw || owner > record.meta.volatile_ts && coming()
    }

    /// Does the record remember this request of the client, or a later one?
    fn knows(&self, key: Key, session: Option<Session>) -> bool {
        session.is_some() && self.records.get(key).is_some_and(|record| record.stamp(session).is_some())
    }

    /// A read, or a read-modify-write's read, of a record that is not locked.
    fn start_unlocked(&mut self, key: Key, waiting: Waiting) {
        let client = waiting.client;
        let record = self.records.get(key);
        let value = record.and_then(|record| record.value.clone());
        if let Op::Get(_) = waiting.op {
            return self.reply(client, Outcome::Value(value));
        }
        let (session, scope) = (waiting.session, waiting.scope);
        let anew = self.config.mutant(Mutation::DoneAnew);
        let stamp = record.and_then(|record| record.stamp(session)).filter(|_| !anew);
        if let Some(outcome) = stamp.zip(session).and_then(|(stamp, session)| done_before(&waiting.op, session, stamp))
        {
            let overtaken = outcome == Outcome::Unknown;
            *(if overtaken { &mut self.marks.overtaken } else { &mut self.marks.duplicates }) += 1;
            let meta = self.meta(key);
            if let Some(scope) = scope.filter(|_| meta.durable_ts < meta.volatile_ts) {
                // The scope's write may have been known to another node alone, whose write this node has on top of it.
                self.scope_write(scope, key, meta.volatile_ts);
            }
            // It may be read, and its mark with it, before it is as far as its answer says.
            let early = self.config.mutant(Mutation::EarlyRepeat);
            let durable = self.config.model.facts().answer == Reached::Durable && !early;
            if durable && !overtaken && meta.glb_durable_ts < meta.volatile_ts {
                let then = Then::Reply(client, outcome);
                return self.record(key).spins.push(Spin { ts: meta.volatile_ts, itself: true, durable, then });
            }
            return self.reply(client, outcome);
        }
        let (new, outcome) = modify(&waiting.op, value);
        let done = match outcome {
            Outcome::Added(before) => Some(before),
            Outcome::Swapped | Outcome::Written => Some(0),
            _ => None,
        };
        let unmarked = self.config.mutant(Mutation::UnmarkedFailure);
        if done.is_none() && session.is_none_or(|session| session.attempt == 0 || unmarked) {
            return self.reply(client, outcome);
        }
        // What comes to nothing is written all the same if it was sent before: its mark stops earlier attempts.
        if !self.admit(client, key, scope, new.as_ref()) {
            return;
        }
        let record = self.record(key);
        // Hermes (section 3.6): a read-modify-write's version is one above what it read and a write's two above, so
        // that of a read-modify-write and a write that both saw the same version the write is newer.
        let version = record.meta.volatile_ts.version.saturating_add(1);
        record.reserved = version;
        let ts = Timestamp { version, node: self.config.id };
        let write = Write { key, ts, value: new, rmw: true, scope, stamps: own_mark(session, done) };
        self.drive(write, client, outcome, Some(Box::new(waiting)));
    }

    /// A client-write that does not depend on what was there.
    fn put(
        &mut self,
        client: Client,
        key: Key,
        value: Option<Value>,
        session: Option<Session>,
        scope: Option<ScopeId>,
    ) {
        if !self.admit(client, key, scope, value.as_ref()) {
            return;
        }
        let record = self.record(key);
        let version = record.meta.volatile_ts.version.max(record.reserved).saturating_add(2);
        record.reserved = version;
        let ts = Timestamp { version, node: self.config.id };
        let write = Write { key, ts, value, rmw: false, scope, stamps: own_mark(session, Some(0)) };
        self.drive(write, client, Outcome::Written, None);
    }

    /// Is there room for a client's write?
    fn admit(&mut self, client: Client, key: Key, scope: Option<ScopeId>, value: Option<&Value>) -> bool {
        if value.is_some_and(|value| value.len() > self.config.max_value) {
            self.refuse(client, Refusal::TooLong);
            return false;
        }
        if self.closed {
            self.marks.disk_full += 1;
            self.refuse(client, Refusal::Full);
            return false;
        }
        let fifo_room = self.fifo_room();
        self.marks.fifo_full += u64::from(!fifo_room);
        let room = fifo_room && scope.is_none_or(|scope| self.scope_room(scope) && self.scope_takes(scope, key));
        if !room {
            self.refuse(client, Refusal::Busy);
        }
        room
    }

    /// Lines 4 to 8 of figure 2, then on to the local write; in MINOS-O over PCIe to the NIC.
    fn drive(&mut self, write: Write, client: Client, outcome: Outcome, rmw: Option<Box<Waiting>>) {
        let (key, ts) = (write.key, write.ts);
        let driven = Driven {
            client: Some((client, outcome)),
            rmw,
            read: self.meta(key).volatile_ts,
            acked_c: NodeSet::EMPTY,
            acked_p: NodeSet::EMPTY,
            validated: false,
            sent: false,
            write: write.clone(),
            since: self.now,
        };
        self.driven.insert((key, ts), Box::new(driven));
        self.step(Where::Host, StepKind::ReadMeta, 0);
        self.step(Where::Host, StepKind::RdLock, 0);
        if self.record(key).snatch(ts) {
            self.marks.snatches += 1;
        }
        if let Some(scope) = write.scope {
            self.scope_write(scope, key, ts);
        }
        self.engine_goes_on(write);
    }

    /// Gives a client's write, which has its own mark at most, those of the version that it follows here: just before
    /// the others hear of it, and what is older and comes later finds it newer. So whatever is older than this write has
    /// left its mark in it, or is not acknowledged here before this write is everywhere: then nobody reads it, and a
    /// later attempt does it anew.
    pub(crate) fn marked(&mut self, write: &mut Write) {
        if self.config.mutant(Mutation::LostMarks) {
            return;
        }
        let room = self.config.stamps;
        write.stamps = stamped(&self.record(write.key).stamps, room, write.stamps.pop());
        if let Some(driven) = self.driven.get_mut(&(write.key, write.ts)) {
            driven.write.stamps.clone_from(&write.stamps);
        }
    }

    /// The INV to the followers, when the local write is certain to happen (line 11).
    pub(crate) fn send_inv(&mut self, write: &Write) {
        let (key, ts) = (write.key, write.ts);
        if let Some(driven) = self.driven.get_mut(&(key, ts)) {
            driven.sent = true;
            driven.since = self.now;
        }
        match &mut self.batches.gathering {
            Some(writes) => writes.push(write.clone()),
            None => self.send(self.peers(), Body::Inv(vec![write.clone()])),
        }
        if self.config.mutant(Mutation::EarlyVal) {
            self.send(self.peers(), Body::Val(key, ts, self.config.model.facts().vals[0]));
        }
    }

    /// Lines 6 and 16: the client's write has become obsolete before anybody heard of it.
    pub(crate) fn drop_obsolete(&mut self, key: Key, ts: Timestamp) {
        let Some(driven) = self.driven.remove(&(key, ts)) else { return };
        self.refused.remove(&(key, ts));
        let Some((client, outcome)) = driven.client else { return };
        if let Some(rmw) = driven.rmw {
            return self.again(key, *rmw);
        }
        if let Some(scope) = driven.write.scope {
            // What the scope must have durable now is the write that superseded this one.
            let newer = self.meta(key).volatile_ts;
            self.scope_write(scope, key, newer);
        }
        let durable = self.config.model.facts().acks_persists();
        let then = Then::Reply(client, outcome);
        self.record(key).spins.push(Spin { ts, itself: false, durable, then });
        self.settle(key);
        self.flushes_go_on();
    }

    /// Has the record changed since this read-modify-write of a client read it? Between host and NIC it may.
    pub(crate) fn read_something_else(&self, write: &Write) -> bool {
        if !write.rmw || self.config.mutant(Mutation::StaleRead) {
            return false;
        }
        let driven = self.driven.get(&(write.key, write.ts));
        driven.is_some_and(|driven| driven.rmw.is_some() && driven.read != self.meta(write.key).volatile_ts)
    }

    /// Such a read-modify-write begins again, when what is there instead can be read. Nobody has heard of it.
    pub(crate) fn drop_outdated(&mut self, key: Key, ts: Timestamp) {
        let Some(driven) = self.driven.remove(&(key, ts)) else { return };
        self.refused.remove(&(key, ts));
        let newest = self.meta(key).volatile_ts;
        let scope = driven.write.scope.and_then(|scope| self.scopes.open.get_mut(&scope));
        if let Some(written) = scope.and_then(|scope| scope.writes.get_mut(&key)).filter(|written| **written == ts) {
            *written = newest;
        }
        let meta = &mut self.record(key).meta;
        if meta.rd_lock == Some(ts) {
            meta.rd_lock = Some(newest);
        }
        if let Some(rmw) = driven.rmw {
            self.again(key, *rmw);
        }
    }

    /// A read-modify-write that lost begins again when the winner can be read.
    fn again(&mut self, key: Key, waiting: Waiting) {
        self.marks.rmw_retries += 1;
        self.record(key).waiting.push_back(waiting);
        self.settle(key);
        // A PERSIST may have waited for it.
        self.flushes_go_on();
    }

    /// ACK, ACK_C or ACK_P.
    pub(crate) fn ack(&mut self, from: NodeId, key: Key, ts: Timestamp, kind: AckKind) {
        self.step(self.engine(), StepKind::Dispatch, 0);
        if let Some(offload) = self.config.offload()
            && !offload.batching
        {
            self.step(Where::Nic, StepKind::Pcie(1), 0);
        }
        if let Some(driven) = self.driven.get_mut(&(key, ts)) {
            if kind.c() {
                driven.acked_c = driven.acked_c.with(from);
            }
            if kind.p() {
                driven.acked_p = driven.acked_p.with(from);
            }
            return self.progress(key, ts);
        }
        // Its VAL was lost: the follower asks by acknowledging again.
        let meta = self.meta(key);
        let durable = self.config.model.facts().acks_persists();
        if ts <= meta.glb_durable_ts && durable && ts <= meta.glb_volatile_ts {
            self.send(NodeSet::one(from), Body::Val(key, ts, AckKind::Both));
        } else if ts <= meta.glb_volatile_ts && !self.config.model.facts().holds_reads() {
            self.send(NodeSet::one(from), Body::Val(key, ts, AckKind::Consistency));
        }
    }

    /// This read-modify-write will not be: somebody has seen a newer write, which is on its way here too.
    pub(crate) fn refused(&mut self, key: Key, ts: Timestamp) {
        if let Some(driven) = self.driven.get(&(key, ts)) {
            if driven.write.rmw {
                self.refused.insert((key, ts));
            }
            self.settle(key);
        }
    }

    /// Refused read-modify-writes begin again once a newer write is complete: then no replay can revive them either,
    /// since everyone has the newer write.
    /// `newest` is that write's timestamp. Whether any did.
    pub(crate) fn drop_refused(&mut self, key: Key, newest: Timestamp) -> bool {
        let dead: Vec<_> = self.refused.range((key, Timestamp::ZERO)..(key, newest)).copied().collect();
        if dead.is_empty() {
            return false;
        }
        for id in dead {
            self.refused.remove(&id);
            if let Some(rmw) = self.driven.remove(&id).and_then(|driven| driven.rmw) {
                self.marks.rmw_retries += 1;
                self.record(key).waiting.push_back(*rmw);
            }
        }
        // A PERSIST may have waited for it.
        self.flushes_go_on();
        true
    }

    /// Looks whether a write has the acknowledgements for its next step (steps e and f, and line 19).
    pub(crate) fn progress(&mut self, key: Key, ts: Timestamp) {
        let mut all = self.view.all();
        if self.config.mutant(Mutation::SkipAck)
            && let Some(last) = self.peers().iter().last()
        {
            all = all.without(last);
        }
        let Some(driven) = self.driven.get_mut(&(key, ts)) else { return };
        if !driven.sent || !driven.acked_c.covers(all) {
            return;
        }
        // It has happened: from now on a newer write does not undo it.
        driven.rmw = None;
        driven.write.rmw = false;
        let facts = self.config.model.facts();
        let durable = !facts.acks_persists() || driven.acked_p.covers(all);
        let first = facts.acks_twice() && !std::mem::replace(&mut driven.validated, true);
        let client = (first && facts.answer == Reached::Updated).then(|| driven.client.take()).flatten();
        self.refused.remove(&(key, ts));
        if !durable && !facts.acks_twice() {
            return;
        }
        if first {
            self.raise(key, ts, AckKind::Consistency);
            if facts.validates_twice() {
                self.send(self.peers(), Body::Val(key, ts, AckKind::Consistency));
            }
            self.answer(client);
        }
        if durable {
            self.finish(key, ts, facts.last_val());
        }
        if !facts.acks_persists() {
            self.flushes_go_on();
        }
        self.settle(key);
    }

    /// All acknowledgements are in: VAL to the followers, and the client hears of it. MINOS-B answers last (section
    /// III-B), MINOS-O first (figure 7).
    fn finish(&mut self, key: Key, ts: Timestamp, kind: AckKind) {
        self.raise(key, ts, kind);
        let (client, val) = (self.driven.remove(&(key, ts)).and_then(|driven| driven.client), Body::Val(key, ts, kind));
        if self.config.offload().is_some() {
            self.answer(client);
            self.send(self.peers(), val);
        } else {
            self.send(self.peers(), val);
            self.answer(client);
        }
    }

    /// Tells the client, unless it has been told.
    fn answer(&mut self, client: Option<(Client, Outcome)>) {
        if let Some((client, outcome)) = client {
            if let Some(offload) = self.config.offload() {
                self.step(Where::Nic, StepKind::Pcie(u8::from(offload.batching)), 0);
            }
            self.reply(client, outcome);
        }
    }

    /// Line 9 onwards happens where the protocol's engine is; in MINOS-O behind PCIe.
    fn engine_goes_on(&mut self, write: Write) {
        let Some(offload) = self.config.offload() else { return self.local(write, Origin::Client) };
        let followers = self.peers().len() as u8;
        let messages = if offload.batching { 1 } else { followers };
        self.step(Where::Host, StepKind::Pcie(messages), write.bytes());
        if offload.batching {
            self.step(Where::Nic, StepKind::Unpack(followers), write.bytes());
        }
        self.cross(write);
    }
}

/// What a request leaves in its own write, before that has the marks of others.
fn own_mark(session: Option<Session>, done: Option<u64>) -> Vec<Stamp> {
    let mark = |Session { client, sequence, attempt }| Stamp { client, sequence, attempt, done };
    session.map(mark).into_iter().collect()
}

/// The answer to an attempt at what has been done already, or that a later attempt has overtaken; `None` if it is to be
/// done.
fn done_before(op: &Op, session: Session, stamp: &Stamp) -> Option<Outcome> {
    match stamp.done.filter(|_| stamp.sequence == session.sequence) {
        Some(before) => Some(match op {
            Op::CompareSwap { .. } => Outcome::Swapped,
            Op::FetchAdd(..) => Outcome::Added(before),
            _ => Outcome::Written,
        }),
        None => ((stamp.sequence, stamp.attempt) > (session.sequence, session.attempt)).then_some(Outcome::Unknown),
    }
}

/// What an operation makes of a record's content, and its answer.
fn modify(op: &Op, value: Option<Value>) -> (Option<Value>, Outcome) {
    match op {
        Op::CompareSwap { expected, new, .. } if *expected == value => (new.clone(), Outcome::Swapped),
        Op::CompareSwap { .. } => (value.clone(), Outcome::NotSwapped(value)),
        Op::FetchAdd(_, delta) => match number(value.as_ref()) {
            Some(before) => {
                let sum = before.wrapping_add(*delta);
                (Some(Value::from(sum.to_le_bytes().as_slice())), Outcome::Added(before))
            }
            None => (value, Outcome::Refused(Refusal::NotANumber)),
        },
        Op::Put(_, value) => (Some(value.clone()), Outcome::Written),
        _ => (None, Outcome::Written),
    }
}

/// A record as a number; an absent one is 0.
fn number(value: Option<&Value>) -> Option<u64> {
    let Some(value) = value else { return Some(0) };
    Some(u64::from_le_bytes(value.as_ref().try_into().ok()?))
}
