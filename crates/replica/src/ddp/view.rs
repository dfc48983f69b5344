//! A new view: who is gone, whose writes are replayed, and what is sent again. Timers are here too.

use std::ops::Bound;

use super::catch_up::Taking;
use super::config::{Mutation, View};
use super::coordinate::Driven;
use super::follow::Stage;
use super::message::{Body, Write};
use super::record::{Client, Then};
use super::replica::{Job, Replica, ReplicaOutput};
use super::request::Outcome;
use super::scope::FlushStage;
use crate::Time;
use crate::member::Standing;
use crate::types::{Key, NodeSet, Timestamp};

/// After this many retry times without news of a write its follower replays it.
const PATIENCE: Time = 4;

impl Replica {
    /// Enters a view, as all nodes that hear of it do, in the order of epochs. Before any node enters it, the leases of
    /// those that it leaves out must have run out.
    pub fn install(&mut self, now: Time, view: View) {
        self.now = now;
        if view.epoch <= self.view.epoch {
            return;
        }
        let late = self.config.mutant(Mutation::OldAcks);
        if !late {
            self.finish_locals();
        }
        let me = self.config.id;
        let before = std::mem::replace(&mut self.view, view);
        if late {
            self.finish_locals();
        }
        let learns = view.learners.has(me);
        let fit = before.members.has(me) || before.learners.has(me) && self.catch_up.taking.caught_up;
        let stays = fit && view.members.has(me) || before.learners.has(me) && learns;
        // Only at the start, or when everyone comes from a crash, is a log of its own what a member has.
        let from_log = self.catch_up.loaded && view.recovery || before.all().is_empty() && view.epoch == 1;
        self.marks.view_change_in_persist += u64::from(!self.scopes.flushes.is_empty());
        if !stays && !from_log && view.members.has(me) {
            // They took it for its former life. It keeps its log, and silent until a view has it as a learner.
            self.view.members = view.members.without(me);
        } else if !stays && !from_log {
            self.forget();
            self.catch_up.joined += u64::from(learns);
        } else {
            self.catch_up.loaded = false;
        }
        self.catch_up.taking = Taking {
            learning: learns && !(stays && self.catch_up.taking.caught_up),
            caught_up: learns && stays && self.catch_up.taking.caught_up,
            merging: view.recovery,
            ..Taking::default()
        };
        if !self.view.all().has(me) {
            return;
        }
        for owed in self.to_log.persisting.values_mut() {
            *owed = NodeSet::EMPTY;
        }
        for record in self.records.values_mut() {
            record.spins.retain(|spin| matches!(spin.then, Then::Reply(..)));
        }
        self.drive_again();
        self.replay_orphans();
        self.flush_again();
        self.start_streams();
    }

    /// Loads what a log has, before anything else. The view that the log knows is over for this node. With a log that is not
    /// `whole` it is no member of a view of those who have crashed, whoever proposed it before they knew.
    pub fn load(&mut self, epoch: u64, writes: Vec<Write>, whole: bool) {
        self.view = View { epoch, ..View::default() };
        self.catch_up.loaded = whole;
        for write in writes {
            let record = self.record(write.key);
            if write.ts > record.meta.volatile_ts {
                record.take(&write);
                let ts = write.ts;
                (record.meta.applied_ts, record.meta.durable_ts) = (ts, ts);
                // RDLocks are volatile: what was complete is not known now.
                record.meta.rd_lock = Some(ts);
                record.reserved = ts.version;
            }
        }
    }

    /// What a log must have at least, in the order of keys: the newest version of each record behind this one.
    pub fn snapshot(&self, behind: Option<Key>) -> impl Iterator<Item = Write> {
        let behind = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let written = self
            .records
            .range((behind, Bound::Unbounded))
            .filter(|(_, record)| record.meta.volatile_ts > Timestamp::ZERO);
        written.map(|(key, record)| record.as_write(key))
    }

    /// What it says of itself to others; `None` while it has no place in a view.
    pub fn status(&self) -> Option<Standing> {
        let me = self.config.id;
        if self.view.members.has(me) {
            Some(if self.catch_up.taking.merging { Standing::Merging } else { Standing::Serving })
        } else if self.view.learners.has(me) {
            Some(if self.catch_up.taking.caught_up { Standing::Ready } else { Standing::Learning })
        } else {
            None
        }
    }

    /// How often it began anew.
    pub fn joined(&self) -> u64 {
        self.catch_up.joined
    }

    /// All that depends on membership is lost: clients do not learn what became of their requests.
    fn forget(&mut self) {
        self.catch_up.loaded = false;
        let mut clients: Vec<Client> = Vec::new();
        let driven = std::mem::take(&mut self.driven);
        clients.extend(driven.into_values().filter_map(|driven| driven.client).map(|(client, _)| client));
        let flushes = std::mem::take(&mut self.scopes.flushes);
        clients.extend(flushes.into_values().filter_map(|flush| flush.client));
        for (_, record) in std::mem::take(&mut self.records).iter() {
            clients.extend(record.waiting.iter().map(|waiting| waiting.client));
            for spin in &record.spins {
                if let Then::Reply(client, _) = spin.then {
                    clients.push(client);
                }
            }
        }
        for client in clients {
            self.reply(client, Outcome::Unknown);
        }
        // What the log gets from here on is of the next life.
        self.out.retain(|output| !matches!(output, ReplicaOutput::Job(Job::Persist(_) | Job::PersistScope(_))));
        self.to_log.persisting.clear();
        self.refused.clear();
        self.to_log.dirty.clear();
        self.to_log.write_back_at = Time::MAX;
        self.to_log.dfifo.clear();
        self.scopes.open.clear();
        self.unsettled.clear();
        self.batches.open.clear();
        self.lease = 0;
    }

    /// The view change waits for writes that are under way in local memory: they are done in the view that ends, whose
    /// acknowledgements do not count in the next one.
    fn finish_locals(&mut self) {
        while let Some((&(key, ts), local)) = self.locals.iter().find(|(_, local)| local.stage != Stage::Queued) {
            match local.stage {
                Stage::Crossing => self.crossed(key, ts),
                _ => self.applied(key, ts),
            }
        }
    }

    /// ACK sets begin anew: INVs go to everyone in the view.
    fn drive_again(&mut self) {
        let ids: Vec<(Key, Timestamp)> = self.driven.keys().copied().collect();
        for (key, ts) in ids {
            let (meta, durable) = (self.meta(key), self.config.model.facts().acks_persists());
            let Some(driven) = self.driven.get_mut(&(key, ts)) else { continue };
            // As at any follower, once a newer write is here: a read-modify-write is refused, and another write is over
            // when the newer one is everywhere. Who made that one, and would not acknowledge this one before, may be gone.
            let newer = meta.volatile_ts > ts;
            let refused = newer && (driven.write.rmw || !self.config.mutant(Mutation::CountsItself));
            if refused && !driven.write.rmw {
                self.drop_obsolete(key, ts);
                continue;
            }
            driven.validated = false;
            let me = NodeSet::one(self.config.id);
            driven.acked_c = if refused { NodeSet::EMPTY } else { me };
            driven.acked_p = if durable && meta.durable_ts >= ts { me } else { NodeSet::EMPTY };
            let write = driven.write.clone();
            if refused {
                self.refused.insert((key, ts));
            } else {
                self.refused.remove(&(key, ts));
            }
            self.send_inv(&write);
            self.persist(&write, NodeSet::EMPTY);
            self.progress(key, ts);
            self.settle(key);
        }
    }

    /// Followers replay, with unchanged timestamps, the writes whose coordinator is gone and whose VAL never came.
    fn replay_orphans(&mut self) {
        if self.config.mutant(Mutation::NoReplay) || self.catch_up.taking.merging {
            return;
        }
        let members = self.view.members;
        let orphan = |ts: Timestamp| !members.has(ts.node);
        let keys: Vec<Key> = self
            .records
            .iter()
            .filter(|(_, record)| self.expects(&record.meta) && orphan(record.meta.volatile_ts))
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            self.replay(key);
        }
    }

    /// Is a VAL missing?
    fn expects(&self, meta: &super::Meta) -> bool {
        let val_p = self.config.model.facts().validates_twice() && meta.glb_durable_ts < meta.volatile_ts;
        meta.rd_lock.is_some() || val_p
    }

    fn replay(&mut self, key: Key) {
        let Some(record) = self.records.get(key) else { return };
        let write = record.as_write(key);
        let (ts, me, durable) = (write.ts, NodeSet::one(self.config.id), self.config.model.facts().acks_persists());
        if self.driven.contains_key(&(key, ts)) {
            return;
        }
        let driven = Driven {
            client: None,
            rmw: None,
            read: ts,
            acked_c: me,
            acked_p: if durable && record.meta.durable_ts >= ts { me } else { NodeSet::EMPTY },
            validated: false,
            sent: false,
            write: write.clone(),
            since: self.now,
        };
        self.marks.replays += 1;
        self.driven.insert((key, ts), Box::new(driven));
        self.send_inv(&write);
        self.persist(&write, NodeSet::EMPTY);
        self.progress(key, ts);
    }

    /// Coordinators ask again; what a follower was asked, it will be asked again.
    fn flush_again(&mut self) {
        self.scopes.flushes.retain(|_, flush| flush.client.is_some());
        let me = self.config.id;
        let mut again = Vec::new();
        for (&(scope, _), flush) in &mut self.scopes.flushes {
            flush.acked = if flush.acked.has(me) { NodeSet::one(me) } else { NodeSet::EMPTY };
            flush.since = self.now;
            if flush.stage != FlushStage::Writes {
                again.push(Body::Persist(scope, flush.number, flush.writes.clone()));
            }
        }
        for body in again {
            self.send(self.peers(), body);
        }
    }

    /// When [`Replica::timeout`] is next due, if ever.
    pub fn next_timeout(&self) -> Option<Time> {
        let idle = self.driven.is_empty()
            && self.unsettled.is_empty()
            && self.scopes.flushes.is_empty()
            && self.catch_up.streams.is_empty()
            && !self.catch_up.taking.merging;
        let tick = if idle || !self.view.all().has(self.config.id) { Time::MAX } else { self.tick };
        Some(tick.min(self.to_log.write_back_at)).filter(|&at| at < Time::MAX)
    }

    /// Time has passed: sends again what was not answered.
    pub fn timeout(&mut self, now: Time) {
        self.now = now;
        if now >= self.to_log.write_back_at {
            self.write_back();
        }
        if now < self.tick {
            return;
        }
        // Messages are sent again when they are between one and two ticks old.
        self.tick = now + self.config.retry / 2;
        let retry = self.config.retry;
        let late = |since: Time| now >= since.saturating_add(retry);
        let driven: Vec<_> = self.driven.iter().filter(|(_, d)| d.sent && late(d.since)).map(|(&id, _)| id).collect();
        for id in driven {
            self.resend(id);
        }
        let all = self.view.all();
        let mut asked = Vec::new();
        for (&(scope, coordinator), flush) in &mut self.scopes.flushes {
            if !late(flush.since) {
                continue;
            }
            let again = match flush.stage {
                FlushStage::Writes => continue,
                _ if flush.client.is_some() => {
                    (all.minus(flush.acked), Body::Persist(scope, flush.number, flush.writes.clone()))
                }
                // Its VAL_P may be lost.
                FlushStage::Noted => (NodeSet::one(coordinator), Body::PersistAck(scope, flush.number)),
                FlushStage::Durable | FlushStage::Noting => continue,
            };
            flush.since = now;
            asked.push(again);
        }
        for (to, body) in asked {
            self.marks.resends += 1;
            self.send(to.without(self.config.id), body);
        }
        for key in self.unsettled.clone() {
            self.ask(key);
        }
        self.stream_timeout();
    }

    fn resend(&mut self, id: (Key, Timestamp)) {
        let all = self.view.all();
        let durable = self.config.model.facts().acks_persists();
        let Some(driven) = self.driven.get_mut(&id) else { return };
        driven.since = self.now;
        let acked = if durable { driven.acked_c.and(driven.acked_p) } else { driven.acked_c };
        let write = driven.write.clone();
        self.marks.resends += 1;
        self.send(all.minus(acked).without(self.config.id), Body::Inv(vec![write]));
    }

    /// A VAL does not come: acknowledges again, and if that does not help replays the write.
    fn ask(&mut self, key: Key) {
        let Some(record) = self.records.get(key) else { return };
        let (meta, since) = (record.meta, record.since);
        let ts = meta.volatile_ts;
        if !self.expects(&meta) {
            self.unsettled.remove(&key);
            return;
        }
        let age = self.now.saturating_sub(since);
        if age < self.config.retry || self.driven.contains_key(&(key, ts)) || self.catch_up.taking.merging {
            return;
        }
        if age >= PATIENCE * self.config.retry && !self.config.mutant(Mutation::NoReplay) {
            self.record(key).since = self.now;
            return self.replay(key);
        }
        let to = NodeSet::one(ts.node).and(self.peers());
        self.marks.resends += 1;
        let durable = meta.durable_ts >= ts;
        for &kind in self.config.model.facts().acks.iter().filter(|kind| durable || !kind.p()) {
            self.send(to, Body::Ack(key, ts, kind));
        }
    }
}
