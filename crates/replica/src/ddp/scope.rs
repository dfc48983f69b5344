//! Scopes and [PERSIST]sc (figure 3, vii and viii).

use super::config::Mutation;
use super::message::Body;
use super::record::Client;
use super::replica::{Job, Replica};
use super::request::{Outcome, Refusal};
use crate::Time;
use crate::types::{Key, NodeId, NodeSet, ScopeId, Timestamp};

use std::collections::BTreeMap;

/// An open scope: of each record that it wrote, the newest version.
pub(crate) type Scope = BTreeMap<Key, Timestamp>;

/// A [PERSIST]sc under way, at its coordinator or at a follower.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Flush {
    /// Whom the coordinator answers.
    pub client: Option<Client>,
    /// Whom a follower answers.
    pub to: NodeSet,
    /// What must be durable.
    pub writes: Scope,
    pub stage: FlushStage,
    /// Who has all of it durable.
    pub acked: NodeSet,
    pub since: Time,
}

/// How far a flush is here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum FlushStage {
    /// The coordinator waits until the scope's writes are complete.
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
    pub(crate) fn scope_room(&self, scope: ScopeId) -> bool {
        self.scopes.contains_key(&scope) || self.scopes.len() < self.config.max_scopes
    }

    /// Remembers that the scope wrote this.
    pub(crate) fn scope_write(&mut self, scope: ScopeId, key: Key, ts: Timestamp) {
        if !self.scope_room(scope) {
            // Only INVs come here: the oldest is forgotten. Its coordinator knows it still.
            self.scopes.pop_first();
        }
        let newest = self.scopes.entry(scope).or_default().entry(key).or_default();
        *newest = ts.max(*newest);
    }

    /// A client ends its scope.
    pub(crate) fn flush(&mut self, client: Client, scope: ScopeId) {
        if self.flushes.get(&scope).is_some_and(|flush| flush.client.is_some()) {
            return self.refuse(client, Refusal::Busy);
        }
        if !self.scopes.contains_key(&scope) {
            return self.refuse(client, Refusal::UnknownScope);
        }
        let flush = Flush {
            client: Some(client),
            to: NodeSet::EMPTY,
            writes: Scope::new(),
            stage: FlushStage::Writes,
            acked: NodeSet::EMPTY,
            since: self.now,
        };
        self.flushes.insert(scope, flush);
        self.flush_goes_on(scope);
    }

    /// [PERSIST]sc at a follower.
    pub(crate) fn persist_scope(&mut self, from: NodeId, scope: ScopeId, writes: Vec<(Key, Timestamp)>) {
        let now = self.now;
        let flush = self.flushes.entry(scope).or_insert_with(|| Flush {
            client: None,
            to: NodeSet::EMPTY,
            writes: Scope::new(),
            stage: FlushStage::Durable,
            acked: NodeSet::EMPTY,
            since: now,
        });
        flush.to = flush.to.with(from);
        if flush.client.is_none() && flush.stage != FlushStage::Noted {
            // What the coordinator knows of, which may have begun anew in the middle of the scope, and what this node does.
            let known = self.scopes.get(&scope).into_iter().flatten().map(|(&key, &ts)| (key, ts));
            for (key, ts) in writes.into_iter().chain(known) {
                let newest = flush.writes.entry(key).or_default();
                *newest = ts.max(*newest);
            }
        }
        if flush.stage == FlushStage::Noted {
            self.send(NodeSet::one(from), Body::PersistAck(scope));
        } else {
            self.flush_goes_on(scope);
        }
    }

    /// [ACK_P]sc.
    pub(crate) fn scope_ack(&mut self, from: NodeId, scope: ScopeId) {
        match self.flushes.get_mut(&scope) {
            Some(flush) => {
                flush.acked = flush.acked.with(from);
                self.flush_goes_on(scope);
            }
            None => self.send(NodeSet::one(from), Body::PersistVal(scope)),
        }
    }

    /// [VAL_P]sc.
    pub(crate) fn scope_val(&mut self, scope: ScopeId) {
        if self.flushes.get(&scope).is_some_and(|flush| flush.client.is_none()) {
            self.end_scope(scope);
        }
    }

    /// The log has the scope's end.
    pub(crate) fn scope_persisted(&mut self, scope: ScopeId) {
        let Some(flush) = self.flushes.get_mut(&scope) else { return };
        flush.stage = FlushStage::Noted;
        flush.acked = flush.acked.with(self.config.id);
        let to = std::mem::take(&mut flush.to);
        self.send(to, Body::PersistAck(scope));
        self.flush_goes_on(scope);
    }

    /// Something that flushes wait for has happened.
    pub(crate) fn flushes_go_on(&mut self) {
        let waiting = |flush: &Flush| matches!(flush.stage, FlushStage::Writes | FlushStage::Durable);
        let scopes: Vec<ScopeId> = self.flushes.iter().filter(|(_, f)| waiting(f)).map(|(&scope, _)| scope).collect();
        for scope in scopes {
            self.flush_goes_on(scope);
        }
    }

    fn flush_goes_on(&mut self, scope: ScopeId) {
        let Some(flush) = self.flushes.get(&scope) else { return };
        if flush.stage == FlushStage::Writes {
            if self.driven.values().any(|driven| driven.write.scope == Some(scope)) {
                return;
            }
            let writes = self.scopes.get(&scope).cloned().unwrap_or_default();
            let list = writes.iter().map(|(&key, &ts)| (key, ts)).collect();
            if let Some(flush) = self.flushes.get_mut(&scope) {
                flush.writes = writes;
                flush.stage = FlushStage::Durable;
            }
            self.send(self.peers(), Body::Persist(scope, list));
        }
        let Some(flush) = self.flushes.get(&scope) else { return };
        if flush.stage == FlushStage::Durable {
            let durable = |(&key, &ts): (&Key, &Timestamp)| self.meta(key).durable_ts >= ts;
            if !flush.writes.iter().all(durable) && !self.config.mutant(Mutation::EmptyScope) {
                return;
            }
            if let Some(flush) = self.flushes.get_mut(&scope) {
                flush.stage = FlushStage::Noting;
            }
            return self.job(Job::PersistScope(scope));
        }
        if flush.client.is_some() && flush.stage == FlushStage::Noted && flush.acked.covers(self.view.all()) {
            self.send(self.peers(), Body::PersistVal(scope));
            let client = flush_client(self.end_scope(scope));
            if let Some(client) = client {
                self.reply(client, Outcome::Persisted);
            }
        }
    }

    /// Forgets a scope that is durable everywhere.
    fn end_scope(&mut self, scope: ScopeId) -> Option<Flush> {
        let flush = self.flushes.remove(&scope)?;
        self.scopes.remove(&scope);
        for (&key, &ts) in &flush.writes {
            self.raise(key, ts, super::AckKind::Persistency);
        }
        Some(flush)
    }
}

fn flush_client(flush: Option<Flush>) -> Option<Client> {
    flush.and_then(|flush| flush.client)
}
