//! A replica as it would be if nodes had each other's names: for a search in which nodes that are alike count once.
//!
//! The engine asks of a node's name only whether it is another's, with two exceptions: timestamps of one version are
//! ordered by it, and the first member gives learners the state. So where neither of the two can come out otherwise, a
//! replica under other names does the same, under other names.
//!
//! All fields are named here, so that one that is added later cannot be forgotten.

use std::collections::BTreeMap;

use super::catch_up::{Part, Taking};
use super::config::{Config, View};
use super::coordinate::Driven;
use super::follow::{Local, Origin};
use super::message::{Body, Entry, Message, Write};
use super::record::{Meta, Record, Spin, Then};
use super::replica::{CatchUp, Job, JobId, Replica, Scopes, ToLog};
use super::scope::{Flush, Scope};
use crate::types::{Key, NodeId, NodeSet, Timestamp};

/// Other names for nodes: each is another one's.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Names(Vec<NodeId>);

impl Names {
    /// `names` has each of the first so many nodes once.
    pub fn new(names: Vec<NodeId>) -> Self {
        Self(names)
    }

    /// A node's.
    pub fn node(&self, id: NodeId) -> NodeId {
        self.0.get(usize::from(id.0)).copied().unwrap_or(id)
    }

    /// Some nodes'.
    pub fn set(&self, nodes: NodeSet) -> NodeSet {
        nodes.iter().map(|id| self.node(id)).fold(NodeSet::EMPTY, NodeSet::with)
    }

    /// The version as its coordinator would name it.
    pub fn timestamp(&self, ts: Timestamp) -> Timestamp {
        // Before all writes there is no coordinator.
        if ts == Timestamp::ZERO { ts } else { Timestamp { version: ts.version, node: self.node(ts.node) } }
    }

    /// A view.
    pub fn view(&self, View { epoch, members, learners, recovery }: View) -> View {
        View { epoch, members: self.set(members), learners: self.set(learners), recovery }
    }

    /// A write.
    pub fn write(&self, write: &Write) -> Write {
        Write { ts: self.timestamp(write.ts), ..write.clone() }
    }

    /// What a replica says.
    pub fn message(&self, Message { epoch, body }: &Message) -> Message {
        let body = match body {
            Body::Inv(writes) => Body::Inv(writes.iter().map(|write| self.write(write)).collect()),
            Body::Ack(key, ts, kind) => Body::Ack(*key, self.timestamp(*ts), *kind),
            Body::Refuse(key, ts) => Body::Refuse(*key, self.timestamp(*ts)),
            Body::Busy(key, ts) => Body::Busy(*key, self.timestamp(*ts)),
            Body::Val(key, ts, kind) => Body::Val(*key, self.timestamp(*ts), *kind),
            Body::Persist(scope, number, writes) => Body::Persist(*scope, *number, self.versions(writes)),
            Body::PersistAck(..) | Body::PersistVal(..) | Body::StateAck(_) | Body::Merged(_) => body.clone(),
            Body::State(number, entries, last) => {
                Body::State(*number, entries.iter().map(|entry| self.entry(entry)).collect(), *last)
            }
        };
        Message { epoch: *epoch, body }
    }

    /// Work that a replica leaves to its world.
    pub fn job(&self, job: &Job) -> Job {
        match job {
            Job::Persist(write) => Job::Persist(self.write(write)),
            Job::PersistScope(scope) => Job::PersistScope(*scope),
            Job::Apply(write) => Job::Apply(self.write(write)),
            Job::Drain(key, ts) => Job::Drain(*key, self.timestamp(*ts)),
            Job::Cross(write) => Job::Cross(self.write(write)),
        }
    }

    /// Its name.
    pub fn job_id(&self, job: JobId) -> JobId {
        match job {
            JobId::Persist(key, ts) => JobId::Persist(key, self.timestamp(ts)),
            JobId::PersistScope(scope) => JobId::PersistScope(scope),
            JobId::Apply(key, ts) => JobId::Apply(key, self.timestamp(ts)),
            JobId::Drain(key, ts) => JobId::Drain(key, self.timestamp(ts)),
            JobId::Cross(key, ts) => JobId::Cross(key, self.timestamp(ts)),
        }
    }

    /// A replica that has nothing to [`Replica::poll`], and takes part in no batch.
    pub fn replica(&self, replica: &Replica) -> Replica {
        let Replica { config, now, view, lease, records, driven, refused, locals, .. } = replica;
        let Replica { to_log, unsettled, batches, scopes, catch_up, tick, out, marks, .. } = replica;
        let config = Config { id: self.node(config.id), nodes: self.set(config.nodes), ..config.clone() };
        let mut records = records.clone();
        records.values_mut().for_each(|record| *record = self.record(record));
        Replica {
            config,
            now: *now,
            view: self.view(*view),
            lease: *lease,
            records,
            driven: self.keyed(driven, |driven| Box::new(self.driven(driven))),
            refused: refused.iter().map(|&id| self.version(id)).collect(),
            locals: self.keyed(locals, |local| self.local(local)),
            to_log: self.to_log(to_log),
            unsettled: unsettled.clone(),
            batches: batches.clone(),
            scopes: self.scopes(scopes),
            catch_up: self.catch_up(catch_up),
            tick: *tick,
            closed: replica.closed,
            behind: replica.behind,
            out: out.clone(),
            marks: *marks,
        }
    }

    fn version(&self, (key, ts): (Key, Timestamp)) -> (Key, Timestamp) {
        (key, self.timestamp(ts))
    }

    fn versions(&self, writes: &[(Key, Timestamp)]) -> Vec<(Key, Timestamp)> {
        writes.iter().map(|&id| self.version(id)).collect()
    }

    fn keyed<T>(&self, map: &BTreeMap<(Key, Timestamp), T>, of: impl Fn(&T) -> T) -> BTreeMap<(Key, Timestamp), T> {
        map.iter().map(|(&id, value)| (self.version(id), of(value))).collect()
    }

    fn by_node<T>(&self, map: &BTreeMap<NodeId, T>, of: impl Fn(&T) -> T) -> BTreeMap<NodeId, T> {
        map.iter().map(|(&id, value)| (self.node(id), of(value))).collect()
    }

    fn entry(&self, Entry { write, glb_volatile_ts, glb_durable_ts }: &Entry) -> Entry {
        let (glb_volatile_ts, glb_durable_ts) = (self.timestamp(*glb_volatile_ts), self.timestamp(*glb_durable_ts));
        Entry { write: self.write(write), glb_volatile_ts, glb_durable_ts }
    }

    fn meta(&self, meta: Meta) -> Meta {
        let Meta { volatile_ts, glb_volatile_ts, glb_durable_ts, rd_lock, wr_lock, applied_ts, durable_ts } = meta;
        Meta {
            volatile_ts: self.timestamp(volatile_ts),
            glb_volatile_ts: self.timestamp(glb_volatile_ts),
            glb_durable_ts: self.timestamp(glb_durable_ts),
            rd_lock: rd_lock.map(|ts| self.timestamp(ts)),
            wr_lock: wr_lock.map(|ts| self.timestamp(ts)),
            applied_ts: self.timestamp(applied_ts),
            durable_ts: self.timestamp(durable_ts),
        }
    }

    fn record(&self, record: &Record) -> Record {
        let Record { meta, value, stamps, rmw, scope, reserved, waiting, spins, writers, dirty, since } = record;
        let then = |then: &Then| match then {
            Then::Ack(node, kind) => Then::Ack(self.node(*node), *kind),
            Then::Reply(..) => then.clone(),
        };
        let spin = |Spin { ts, itself, durable, then: next }: &Spin| Spin {
            ts: self.timestamp(*ts),
            itself: *itself,
            durable: *durable,
            then: then(next),
        };
        Record {
            meta: self.meta(*meta),
            value: value.clone(),
            stamps: stamps.clone(),
            rmw: *rmw,
            scope: *scope,
            reserved: *reserved,
            waiting: waiting.clone(),
            spins: spins.iter().map(spin).collect(),
            writers: writers.iter().map(|&ts| self.timestamp(ts)).collect(),
            dirty: *dirty,
            since: *since,
        }
    }

    fn driven(&self, driven: &Driven) -> Driven {
        let Driven { client, rmw, read, acked_c, acked_p, validated, sent, write, since } = driven;
        Driven {
            client: client.clone(),
            rmw: rmw.clone(),
            read: self.timestamp(*read),
            acked_c: self.set(*acked_c),
            acked_p: self.set(*acked_p),
            validated: *validated,
            sent: *sent,
            write: self.write(write),
            since: *since,
        }
    }

    fn local(&self, Local { write, origin, stage }: &Local) -> Local {
        let origin = match *origin {
            Origin::Client => Origin::Client,
            Origin::Peers(peers) => Origin::Peers(self.set(peers)),
        };
        Local { write: self.write(write), origin, stage: *stage }
    }

    fn to_log(&self, ToLog { persisting, dirty, write_back_at, dfifo }: &ToLog) -> ToLog {
        ToLog {
            persisting: self.keyed(persisting, |&owed| self.set(owed)),
            dirty: dirty.clone(),
            write_back_at: *write_back_at,
            dfifo: dfifo.iter().map(|&id| self.version(id)).collect(),
        }
    }

    fn scopes(&self, Scopes { open, flushes, last_flush }: &Scopes) -> Scopes {
        let scope = |Scope { writes, since }: &Scope| Scope {
            writes: writes.iter().map(|(&key, &ts)| (key, self.timestamp(ts))).collect(),
            since: *since,
        };
        let flush = |Flush { number, client, writes, more, stage, acked, since }: &Flush| Flush {
            number: *number,
            client: *client,
            writes: self.versions(writes),
            more: self.versions(more),
            stage: *stage,
            acked: self.set(*acked),
            since: *since,
        };
        Scopes {
            open: open.iter().map(|(&id, of)| (id, scope(of))).collect(),
            flushes: flushes.iter().map(|(&(id, node), of)| ((id, self.node(node)), flush(of))).collect(),
            last_flush: *last_flush,
        }
    }

    fn catch_up(&self, CatchUp { streams, taking, joined, loaded }: &CatchUp) -> CatchUp {
        let Taking { learning, caught_up, merging, parts, whole, merged } = taking;
        let taking = Taking {
            learning: *learning,
            caught_up: *caught_up,
            merging: *merging,
            parts: self.by_node(parts, |part| self.part(part)),
            whole: self.set(*whole),
            merged: self.set(*merged),
        };
        CatchUp { streams: self.by_node(streams, Clone::clone), taking, joined: *joined, loaded: *loaded }
    }

    fn part(&self, Part { number, last, missing, acked }: &Part) -> Part {
        let missing = missing.iter().map(|&id| self.version(id)).collect();
        Part { number: *number, last: *last, missing, acked: *acked }
    }
}
