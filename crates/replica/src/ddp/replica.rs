//! A replica: what it holds, what goes in and what comes out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::catch_up::{Stream, Taking};
use super::config::{Config, Reached, View};
use super::coordinate::{Batch, Driven};
use super::follow::Local;
use super::message::{Body, Message, Write};
use super::record::{Client, Meta, Record, Spin, Then};
use super::records::Records;
use super::request::{Outcome, Refusal, Reply, Request, Stamp};
use super::scope::{Flush, FlushId, FlushStage, Scope};
use crate::Time;
use crate::types::{Key, NodeId, NodeSet, ScopeId, Timestamp, Value};

/// What a replica asks its world for, in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReplicaOutput {
    /// Send this to each of `to`. More than one only where the NIC broadcasts.
    Send {
        /// The receivers.
        to: NodeSet,
        /// The message.
        message: Message,
    },
    /// Do this, then say [`Replica::done`]. Jobs may end in any order.
    Job(Job),
    /// Tell the client.
    Reply(Reply),
    /// This was done here, for a world that charges for it.
    Step(Step),
}

/// Work that a replica leaves to its world.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Job {
    /// Make the write durable: into the log, or the dFIFO if there is one.
    Persist(Write),
    /// Note in the log that the scope is complete.
    PersistScope(ScopeId),
    /// Write to local memory: under WRLock, or out of the vFIFO.
    Apply(Write),
    /// Move the write from dFIFO to log.
    Drain(Key, Timestamp),
    /// Carry the write from host to NIC.
    Cross(Write),
}

impl Job {
    /// Its name.
    pub fn id(&self) -> JobId {
        match self {
            Self::Persist(write) => JobId::Persist(write.key, write.ts),
            Self::PersistScope(scope) => JobId::PersistScope(*scope),
            Self::Apply(write) => JobId::Apply(write.key, write.ts),
            Self::Drain(key, ts) => JobId::Drain(*key, *ts),
            Self::Cross(write) => JobId::Cross(write.key, write.ts),
        }
    }
}

/// Names a job. Two that are under way have different names, but for notes of the end of one scope, which are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum JobId {
    /// [`Job::Persist`].
    Persist(Key, Timestamp),
    /// [`Job::PersistScope`].
    PersistScope(ScopeId),
    /// [`Job::Apply`].
    Apply(Key, Timestamp),
    /// [`Job::Drain`].
    Drain(Key, Timestamp),
    /// [`Job::Cross`].
    Cross(Key, Timestamp),
}

/// Which processor did a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Where {
    /// A host core.
    Host,
    /// A core of the NIC.
    Nic,
}

/// Something done that costs time. Sends and jobs are outputs of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Step {
    /// Where.
    pub on: Where,
    /// What.
    pub kind: StepKind,
    /// Bytes of content that it moves.
    pub bytes: usize,
}

/// What a step is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StepKind {
    /// Take a request or message, and find its record.
    Dispatch,
    /// Read timestamps (Obsolete, spins).
    ReadMeta,
    /// Compare-and-swap on RDLock_Owner.
    RdLock,
    /// Compare-and-swap on WRLock.
    WrLock,
    /// Set timestamps.
    WriteMeta,
    /// Write the record to local memory.
    LocalWrite,
    /// Put the record into the vFIFO.
    EnqueueVolatile,
    /// Put the record into the dFIFO.
    EnqueueDurable,
    /// A message over PCIe between host and NIC, for this many followers.
    Pcie(u8),
    /// Unpack a batched message for this many followers.
    Unpack(u8),
}

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// How often rare things happened, for tests that must have reached them.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct Marks { $($(#[$doc])* pub $name: u64),* }

        impl Marks {
            /// Each with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds another's.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

marks! {
    /// RDLocks snatched from an older write.
    snatches,
    /// Writes found obsolete.
    obsolete,
    /// Writes of a dead coordinator that a follower replayed.
    replays,
    /// Read-modify-writes begun again since a newer write came between.
    rmw_retries,
    /// Messages sent again.
    resends,
    /// Messages of another epoch, dropped.
    stale,
    /// Requests or INVs refused because a FIFO was full.
    fifo_full,
    /// View changes while a `[PERSIST]sc` was under way here.
    view_change_in_persist,
    /// Catch-ups finished by this node as a learner.
    rejoins,
    /// Merges of logs after the crash of all nodes.
    full_recoveries,
    /// Requests found done already.
    duplicates,
    /// Attempts at requests that came after a later attempt.
    overtaken,
    /// Requests refused because a disk was full.
    disk_full,
    /// Times that the others were left to go on without this node, as its disk did nothing.
    stuck,
}

/// What is on its way to the log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ToLog {
    /// Writes, and who is told when they are there.
    pub persisting: BTreeMap<(Key, Timestamp), NodeSet>,
    /// Records whose newest version is to go to the log, and when. Each stands here once: [`Record::dirty`] says so.
    pub dirty: Vec<Key>,
    pub write_back_at: Time,
    /// What is in the dFIFO, or on its way there.
    pub dfifo: BTreeSet<(Key, Timestamp)>,
}

impl Default for ToLog {
    fn default() -> Self {
        let (persisting, dfifo) = (BTreeMap::new(), BTreeSet::new());
        Self { persisting, dirty: Vec::new(), write_back_at: Time::MAX, dfifo }
    }
}

/// Batches under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Batches {
    pub open: BTreeMap<u64, Batch>,
    pub next: u64,
    /// Writes that wait to leave as one INV, while a batch is taken apart.
    pub gathering: Option<Vec<Write>>,
}

/// Open scopes, and what is under way to end some.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Scopes {
    pub open: BTreeMap<ScopeId, Scope>,
    pub flushes: BTreeMap<FlushId, Flush>,
    /// The number of the last PERSIST that this node coordinated.
    pub last_flush: u64,
}

/// How this node, and those whom it helps, come to have the state.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct CatchUp {
    /// States on their way to learners, or in recovery to everyone.
    pub streams: BTreeMap<NodeId, Stream>,
    pub taking: Taking,
    pub joined: u64,
    /// What it has comes from its log, and it has taken part in no view since.
    pub loaded: bool,
}

/// One node's share of the protocol.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Replica {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) view: View,
    /// Reads are served before this.
    pub(crate) lease: Time,
    pub(crate) records: Records,
    /// Writes that this node coordinates or replays.
    pub(crate) driven: BTreeMap<(Key, Timestamp), Box<Driven>>,
    /// Of those, read-modify-writes that somebody will never acknowledge in this epoch.
    pub(crate) refused: BTreeSet<(Key, Timestamp)>,
    /// Writes on their way into local memory.
    pub(crate) locals: BTreeMap<(Key, Timestamp), Local>,
    pub(crate) to_log: ToLog,
    /// Records that may expect something of another node.
    pub(crate) unsettled: BTreeSet<Key>,
    pub(crate) batches: Batches,
    pub(crate) scopes: Scopes,
    pub(crate) catch_up: CatchUp,
    pub(crate) tick: Time,
    /// No writes of clients are taken.
    pub(crate) closed: bool,
    /// Much waits for the log.
    pub(crate) behind: bool,
    pub(crate) out: VecDeque<ReplicaOutput>,
    pub(crate) marks: Marks,
}

impl Replica {
    /// A replica that has taken part in nothing yet: no view, no lease.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            now: 0,
            view: View::default(),
            lease: 0,
            records: Records::default(),
            driven: BTreeMap::new(),
            refused: BTreeSet::new(),
            locals: BTreeMap::new(),
            to_log: ToLog::default(),
            unsettled: BTreeSet::new(),
            batches: Batches::default(),
            scopes: Scopes::default(),
            catch_up: CatchUp::default(),
            tick: 0,
            closed: false,
            behind: false,
            out: VecDeque::new(),
            marks: Marks::default(),
        }
    }

    /// This node.
    pub fn id(&self) -> NodeId {
        self.config.id
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The view that it is in; epoch 0 before the first.
    pub fn view(&self) -> View {
        self.view
    }

    /// Whether writes of clients are refused, as there is no room for them.
    pub fn set_closed(&mut self, closed: bool) {
        self.closed = closed;
    }

    /// Whether so much waits for the log that writes are to wait for it too, though their writers would not.
    pub fn set_behind(&mut self, behind: bool) {
        let facts = self.config.model.facts();
        self.behind = behind && facts.answer == Reached::Updated && !self.config.writes_back();
    }

    /// What happened so far.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// What happened since this was last asked.
    pub fn take_marks(&mut self) -> Marks {
        std::mem::take(&mut self.marks)
    }

    /// Is there something to [`Replica::poll`]?
    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// What it knows and waits for, for people.
    pub fn describe(&self) -> String {
        let locked = self.records.iter().filter(|(_, record)| record.meta.rd_lock.is_some());
        let locked: Vec<String> = locked.map(|(key, record)| locked_text(key, record)).collect();
        let driven: Vec<String> = self.driven.iter().map(|((key, ts), d)| driven_text(*key, *ts, d)).collect();
        let Taking { learning, caught_up, merging, whole, merged, .. } = &self.catch_up.taking;
        format!(
            "replica in {}, learning {learning}, caught up {caught_up}, merging {merging} (whole {whole}, merged {merged}), \
             streams to {:?}, locked [{}], drives [{}], refused {:?}, persisting {}",
            self.view,
            self.catch_up.streams.keys().collect::<Vec<_>>(),
            locked.join(", "),
            driven.join(", "),
            self.refused,
            self.to_log.persisting.len()
        )
    }

    /// A record's metadata.
    pub fn meta(&self, key: Key) -> Meta {
        self.records.get(key).map(|record| record.meta).unwrap_or_default()
    }

    /// Does it await acknowledgements of this write?
    pub fn drives(&self, key: Key, ts: Timestamp) -> bool {
        self.driven.contains_key(&(key, ts))
    }

    /// A record's newest content here, whether it may be read or not.
    pub fn peek(&self, key: Key) -> Option<Value> {
        self.records.get(key).and_then(|record| record.value.clone())
    }

    /// The requests that a record remembers here, newest last.
    pub fn remembers(&self, key: Key) -> &[Stamp] {
        self.records.get(key).map_or(&[], |record| &record.stamps)
    }

    /// Whether a PERSIST waits for this node's log.
    pub fn persists_scope(&self) -> bool {
        self.scopes.flushes.values().any(|flush| matches!(flush.stage, FlushStage::Durable | FlushStage::Noting))
    }

    /// Does it take requests?
    pub fn serves(&self) -> bool {
        self.view.members.has(self.config.id)
            && !self.catch_up.taking.merging
            && (self.now < self.lease || self.config.mutant(super::Mutation::NoLease))
    }

    /// Reads may be served until `until`, by this node's clock.
    pub fn set_lease(&mut self, now: Time, until: Time) {
        self.now = now;
        self.lease = until;
    }

    /// Takes a client's request. Its reply comes in time, or after [`Replica::install`] as [`Outcome::Unknown`].
    pub fn submit(&mut self, now: Time, request: Request) {
        self.now = now;
        self.begin(request);
    }

    /// Takes a peer's message. One that makes no sense is dropped.
    pub fn handle(&mut self, now: Time, from: NodeId, message: Message) {
        self.now = now;
        let known = self.view.all().has(from) && self.view.all().has(self.config.id) && from != self.config.id;
        if message.epoch != self.view.epoch || !known {
            self.marks.stale += 1;
            return;
        }
        match message.body {
            Body::Inv(writes) => writes.into_iter().for_each(|write| self.inv(from, write)),
            Body::Ack(key, ts, kind) => self.ack(from, key, ts, kind),
            Body::Refuse(key, ts) => self.refused(key, ts),
            Body::Busy(..) => {}
            Body::Val(key, ts, kind) => self.val(key, ts, kind),
            Body::Persist(scope, number, writes) => self.persist_scope(from, scope, number, writes),
            Body::PersistAck(scope, number) => self.scope_ack(from, scope, number),
            Body::PersistVal(scope, number) => self.scope_val(from, scope, number),
            Body::State(number, entries, last) => self.state(from, number, entries, last),
            Body::StateAck(number) => self.state_ack(from, number),
            Body::Merged(asks) => self.peer_merged(from, asks),
        }
    }

    /// A job has been done. Says nothing to one that is not known.
    pub fn done(&mut self, now: Time, job: JobId) {
        self.now = now;
        match job {
            JobId::Persist(key, ts) => self.persisted(key, ts),
            JobId::PersistScope(scope) => self.scope_persisted(scope),
            JobId::Apply(key, ts) => self.applied(key, ts),
            JobId::Drain(key, ts) => {
                self.to_log.dfifo.remove(&(key, ts));
            }
            JobId::Cross(key, ts) => self.crossed(key, ts),
        }
    }

    /// The next output; `None` when nothing is to be done before the next input.
    pub fn poll(&mut self) -> Option<ReplicaOutput> {
        self.out.pop_front()
    }

    pub(crate) fn record(&mut self, key: Key) -> &mut Record {
        self.records.make(key)
    }

    /// Everyone else of the view.
    pub(crate) fn peers(&self) -> NodeSet {
        self.view.all().without(self.config.id)
    }

    pub(crate) fn send(&mut self, to: NodeSet, body: Body) {
        let message = Message { epoch: self.view.epoch, body };
        if to.is_empty() {
        } else if self.config.offload().is_some_and(|offload| offload.broadcast) {
            self.out.push_back(ReplicaOutput::Send { to, message });
        } else {
            for node in to.iter() {
                self.out.push_back(ReplicaOutput::Send { to: NodeSet::one(node), message: message.clone() });
            }
        }
    }

    pub(crate) fn job(&mut self, job: Job) {
        self.out.push_back(ReplicaOutput::Job(job));
    }

    pub(crate) fn step(&mut self, on: Where, kind: StepKind, bytes: usize) {
        if self.config.steps {
            self.out.push_back(ReplicaOutput::Step(Step { on, kind, bytes }));
        }
    }

    /// Where the protocol's part behind line 8 of figure 2 runs.
    pub(crate) fn engine(&self) -> Where {
        if self.config.offload().is_some() { Where::Nic } else { Where::Host }
    }

    pub(crate) fn reply(&mut self, client: Client, outcome: Outcome) {
        match client {
            Client::Tag(tag) => self.out.push_back(ReplicaOutput::Reply(Reply { tag, outcome })),
            Client::Part(batch, index) => self.part_done(batch, index, outcome),
        }
    }

    pub(crate) fn refuse(&mut self, client: Client, refusal: Refusal) {
        self.reply(client, Outcome::Refused(refusal));
    }

    /// After a change of `key`'s metadata: releases the RDLock if its owner is through, and wakes whoever waited.
    pub(crate) fn settle(&mut self, key: Key) {
        let enforced = self.config.model.facts().holds_reads();
        let Some(record) = self.records.get_mut(key) else { return };
        let awaited = !record.spins.is_empty() || !record.waiting.is_empty();
        let meta = &mut record.meta;
        let newest = meta.glb_volatile_ts;
        if let Some(owner) = meta.rd_lock
            && owner <= meta.glb_volatile_ts
            && (!enforced || owner <= meta.glb_durable_ts)
            && owner <= meta.applied_ts
        {
            meta.rd_lock = None;
            self.step(self.engine(), StepKind::RdLock, 0);
            if self.config.mutant(super::Mutation::LostWakeup) {
                return;
            }
        }
        if self.drop_refused(key, newest) || awaited {
            self.wake(key);
        }
    }

    /// Ends the spins that are over, and starts what waited for the RDLock.
    pub(crate) fn wake(&mut self, key: Key) {
        let Some(record) = self.records.get_mut(key) else { return };
        let (volatile, durable) = (record.meta.glb_volatile_ts, record.meta.glb_durable_ts);
        let over = |spin: &Spin| {
            let past = |now: Timestamp| now > spin.ts || spin.itself && now == spin.ts;
            past(volatile) && (!spin.durable || past(durable))
        };
        let ended: Vec<Spin> = record.spins.extract_if(.., |spin| over(spin)).collect();
        for Spin { ts, then, .. } in ended {
            match then {
                Then::Ack(node, kind) => self.send(NodeSet::one(node), Body::Ack(key, ts, kind)),
                Then::Reply(client, outcome) => self.reply(client, outcome),
            }
        }
        while let Some(record) = self.records.get_mut(key)
            && record.meta.rd_lock.is_none()
            && let Some(waiting) = record.waiting.pop_front()
        {
            self.start(waiting);
        }
    }
}

fn locked_text(key: Key, record: &Record) -> String {
    let Meta { volatile_ts, glb_volatile_ts, glb_durable_ts, durable_ts, applied_ts, .. } = record.meta;
    let (rmw, waiting, spins) = (record.rmw, record.waiting.len(), record.spins.len());
    format!(
        "k{key} {volatile_ts} rmw {rmw} everywhere {glb_volatile_ts} durable {glb_durable_ts} here {durable_ts} applied \
         {applied_ts} waiting {waiting} spins {spins}"
    )
}

fn driven_text(key: Key, ts: Timestamp, driven: &Driven) -> String {
    let Driven { acked_c, acked_p, sent, .. } = driven;
    format!("k{key} {ts} sent {sent} acked {acked_c} durable {acked_p} rmw {}", driven.write.rmw)
}
