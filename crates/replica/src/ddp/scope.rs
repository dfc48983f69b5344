//! Scopes and `[PERSIST]sc` (figure 3, vii and viii).

use super::config::Mutation;
use super::message::Body;
use super::record::Client;
use super::replica::{Job, Replica};
use super::request::{Outcome, Refusal};
use crate::Time;
use crate::bounds::SCOPE_OVER;
use crate::types::{Key, NodeId, NodeSet, ScopeId, Timestamp};

use std::collections::BTreeMap;

/// Of each record that a scope wrote, the newest version.
pub(crate) type Writes = BTreeMap<Key, Timestamp>;

/// An open scope.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Scope {
    pub writes: Writes,
    /// When it wrote last.
    pub since: Time,
}

/// Of the scopes that there is room for, so many are forgotten at once at most: one in this many.
const FORGET: usize = 8;

/// A `[PERSIST]sc` by its scope and its coordinator.
pub(crate) type FlushId = (ScopeId, NodeId);

/// A `[PERSIST]sc` under way, at its coordinator or at a follower.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Flush {
    /// Which of its coordinator's.
    pub number: u64,
    /// Whom the coordinator answers.
    pub client: Option<Client>,
    /// What it is about: what the coordinator knows of the scope.
    pub writes: Vec<(Key, Timestamp)>,
    /// At a follower what it knows of the scope besides, and has durable too before it acknowledges. At the coordinator
    /// the scope's writes that were under way when it was asked, until they are complete.
    pub more: Vec<(Key, Timestamp)>,
    pub stage: FlushStage,
    /// Who has all of it durable.
    pub acked: NodeSet,
    pub since: Time,
}

/// How far a flush is here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum FlushStage {
    /// The coordinator waits until writes that are under way are complete.
    Writes,
    /// Waits until they are durable here.
    Durable,
    /// Waits until the scope's end is noted in the log.
    Noting,
    /// All is durable here.
    Noted,
}

impl Replica {
    /// Is the scope known, or is there room for one more?
    pub(crate) fn scope_room(&mut self, scope: ScopeId) -> bool {
        if self.scopes.open.contains_key(&scope) {
            return true;
        }
        if self.scopes.open.len() >= self.config.max_scopes {
            self.forget_scopes();
        }
        self.scopes.open.len() < self.config.max_scopes
    }

    /// May the scope write this record too? All that it wrote goes into one PERSIST.
    pub(crate) fn scope_takes(&self, scope: ScopeId, key: Key) -> bool {
        let writes = self.scopes.open.get(&scope).map(|scope| &scope.writes);
        writes.is_none_or(|writes| writes.len() < self.config.scope_keys || writes.contains_key(&key))
    }

    /// Forgets scopes that are durable here and wrote longest ago: clients may have left without PERSIST. Each node waits
    /// at a PERSIST for what it knows itself, and of these nothing is left to wait for.
    fn forget_scopes(&mut self) {
        let durable = |(&key, &ts): (&Key, &Timestamp)| self.meta(key).durable_ts >= ts;
        let forgettable = self.scopes.open.iter().filter(|(_, scope)| scope.writes.iter().all(durable));
        let mut oldest: Vec<(Time, ScopeId)> = forgettable.map(|(&id, scope)| (scope.since, id)).collect();
        oldest.sort_unstable();
        for (_, scope) in oldest.into_iter().take(self.config.max_scopes.div_ceil(FORGET)) {
            self.scopes.open.remove(&scope);
        }
    }

    /// Remembers that the scope wrote this.
    pub(crate) fn scope_write(&mut self, scope: ScopeId, key: Key, ts: Timestamp) {
        // A coordinator has made sure of room. What others let in is remembered in any case, and they bound it.
        self.scope_room(scope);
        let now = self.now;
        let scope = self.scopes.open.entry(scope).or_default();
        scope.since = now;
        let newest = scope.writes.entry(key).or_default();
        *newest = ts.max(*newest);
    }

    /// A client asks for PERSIST.
    pub(crate) fn flush(&mut self, client: Client, scope: ScopeId) {
        let id = (scope, self.config.id);
        if self.scopes.flushes.contains_key(&id) {
            return self.refuse(client, Refusal::Busy);
        }
        if !self.scopes.open.contains_key(&scope) {
            return self.refuse(client, Refusal::UnknownScope);
        }
        self.scopes.last_flush += 1;
        // Not those that begin meanwhile: clients that keep writing would keep it from ending.
        let under_way = self.driven.iter().filter(|(_, driven)| driven.write.scope == Some(scope));
        let flush = Flush {
            number: self.scopes.last_flush,
            client: Some(client),
            writes: Vec::new(),
            more: under_way.map(|(&write, _)| write).collect(),
            stage: FlushStage::Writes,
            acked: NodeSet::EMPTY,
            since: self.now,
        };
        self.scopes.flushes.insert(id, flush);
        self.flush_goes_on(id);
    }

    /// `[PERSIST]sc` at a follower. A coordinator has one of a scope at a time, so a newer one says that the last is over.
    pub(crate) fn persist_scope(&mut self, from: NodeId, scope: ScopeId, number: u64, writes: Vec<(Key, Timestamp)>) {
        let id = (scope, from);
        match self.scopes.flushes.get(&id) {
            Some(flush) if flush.number > number => return,
            Some(flush) if flush.number == number => {
                if flush.stage == FlushStage::Noted {
                    self.send(NodeSet::one(from), Body::PersistAck(scope, number));
                }
                return;
            }
            _ => drop(self.end_flush(id)),
        }
        // The coordinator may have begun anew in the middle of the scope.
        let more = self.scope_writes(scope);
        let (stage, since) = (FlushStage::Durable, self.now);
        let flush = Flush { number, client: None, writes, more, stage, acked: NodeSet::EMPTY, since };
        self.scopes.flushes.insert(id, flush);
        self.flush_goes_on(id);
    }

    /// `[ACK_P]sc`.
    pub(crate) fn scope_ack(&mut self, from: NodeId, scope: ScopeId, number: u64) {
        let id = (scope, self.config.id);
        match self.scopes.flushes.get_mut(&id).filter(|flush| flush.number == number) {
            Some(flush) => {
                flush.acked = flush.acked.with(from);
                self.flush_goes_on(id);
            }
            None => self.send(NodeSet::one(from), Body::PersistVal(scope, number)),
        }
    }

    /// `[VAL_P]sc`.
    pub(crate) fn scope_val(&mut self, from: NodeId, scope: ScopeId, number: u64) {
        let id = (scope, from);
        if self.scopes.flushes.get(&id).is_some_and(|flush| flush.number == number) {
            self.end_flush(id);
        }
    }

    /// The log has the scope's end.
    pub(crate) fn scope_persisted(&mut self, scope: ScopeId) {
        let me = self.config.id;
        let of_scope = self.scopes.flushes.range_mut((scope, NodeId(0))..=(scope, NodeId(u8::MAX)));
        let noted: Vec<(NodeId, u64)> = of_scope
            .filter(|(_, flush)| flush.stage == FlushStage::Noting)
            .map(|(&(_, coordinator), flush)| {
                flush.stage = FlushStage::Noted;
                flush.acked = flush.acked.with(me);
                (coordinator, flush.number)
            })
            .collect();
        for (coordinator, number) in noted {
            if coordinator == me {
                self.flush_goes_on((scope, me));
            } else {
                self.send(NodeSet::one(coordinator), Body::PersistAck(scope, number));
            }
        }
    }

    /// Something that flushes wait for has happened.
    pub(crate) fn flushes_go_on(&mut self) {
        let waiting = |flush: &Flush| matches!(flush.stage, FlushStage::Writes | FlushStage::Durable);
        let ids: Vec<FlushId> =
            self.scopes.flushes.iter().filter(|(_, flush)| waiting(flush)).map(|(&id, _)| id).collect();
        for id in ids {
            self.flush_goes_on(id);
        }
    }

    /// What the scope wrote, as far as this node knows. In place of a read-modify-write of its own that may yet begin
    /// again, what that read: it includes what the scope wrote before.
    fn scope_writes(&self, scope: ScopeId) -> Vec<(Key, Timestamp)> {
        let certain = |(&key, &ts): (&Key, &Timestamp)| match self.driven.get(&(key, ts)) {
            Some(driven) if driven.rmw.is_some() => (key, driven.read),
            _ => (key, ts),
        };
        self.scopes.open.get(&scope).into_iter().flat_map(|scope| &scope.writes).map(certain).collect()
    }

    fn flush_goes_on(&mut self, id: FlushId) {
        let scope = id.0;
        let Some(flush) = self.scopes.flushes.get(&id) else { return };
        if flush.stage == FlushStage::Writes {
            if flush.more.iter().any(|write| self.driven.contains_key(write)) {
                return;
            }
            let (number, writes) = (flush.number, self.scope_writes(scope));
            if writes.len() > SCOPE_OVER * self.config.scope_keys {
                // Nobody would take it.
                let client = self.scopes.flushes.remove(&id).and_then(|flush| flush.client);
                return client.into_iter().for_each(|client| self.refuse(client, Refusal::TooLong));
            }
            if let Some(flush) = self.scopes.flushes.get_mut(&id) {
                flush.writes.clone_from(&writes);
                flush.more.clear();
                flush.stage = FlushStage::Durable;
            }
            self.send(self.peers(), Body::Persist(scope, number, writes));
        }
        let Some(flush) = self.scopes.flushes.get(&id) else { return };
        if flush.stage == FlushStage::Durable {
            let durable = |&(key, ts): &(Key, Timestamp)| self.meta(key).durable_ts >= ts;
            let all = flush.writes.iter().chain(&flush.more).all(durable);
            if !all && !self.config.mutant(Mutation::EmptyScope) {
                return;
            }
            if let Some(flush) = self.scopes.flushes.get_mut(&id) {
                flush.stage = FlushStage::Noting;
            }
            return self.job(Job::PersistScope(scope));
        }
        if flush.client.is_some() && flush.stage == FlushStage::Noted && flush.acked.covers(self.view.all()) {
            self.send(self.peers(), Body::PersistVal(scope, flush.number));
            let client = self.end_flush(id).and_then(|flush| flush.client);
            if let Some(client) = client {
                self.reply(client, Outcome::Persisted);
            }
        }
    }

    /// What it is about is durable everywhere, and leaves the scope. What was written since stays.
    fn end_flush(&mut self, id: FlushId) -> Option<Flush> {
        let flush = self.scopes.flushes.remove(&id)?;
        for &(key, ts) in &flush.writes {
            self.raise(key, ts, super::AckKind::Persistency);
        }
        if let Some(scope) = self.scopes.open.get_mut(&id.0) {
            for (key, ts) in &flush.writes {
                if scope.writes.get(key).is_some_and(|newest| newest <= ts) {
                    scope.writes.remove(key);
                }
            }
            if scope.writes.is_empty() {
                self.scopes.open.remove(&id.0);
            }
        }
        Some(flush)
    }
}
