//! One node's part of a state, and what each event makes of it: the engine is asked once, then it is looked up.
//!
//! A node knows nothing but its own part, so a step of the system is a step of one node. Of those there are some
//! thousands, where states of the system are counted in millions: parts and messages are kept once and named by number,
//! and a state of the system is a few numbers.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hash};
use std::sync::Arc;

use remora_replica::ddp::{
    Body, Job, JobId, Marks, Message, Meta, Names, Op, Replica, ReplicaOutput, Reply, Stamp, View, Write,
};
use remora_replica::types::{Key, NodeId, Timestamp};

use super::system::{Options, RECORDS};
use crate::search::Print;

/// A node: its replica while it is up, its jobs under way, and its log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Local {
    pub id: NodeId,
    pub replica: Option<Replica>,
    pub jobs: BTreeMap<JobId, Job>,
    /// The newest version in the log.
    pub log: BTreeMap<Key, Write>,
    /// The epoch that the log knows.
    pub epoch: u64,
}

/// A message under way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Envelope {
    pub to: NodeId,
    pub from: NodeId,
    pub message: Message,
}

/// Names a [`Local`].
pub(crate) type LocalId = u32;
/// Names an [`Envelope`].
pub(crate) type EnvelopeId = u32;

/// What happens to one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Event {
    /// A request, and how often it was sent before.
    Submit(u8, u8),
    Deliver(EnvelopeId),
    Done(JobId),
    Crash,
    Restart,
    LoseLease,
    Install(View),
    Timeout,
}

/// What nobody knows yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unknown {
    /// What comes of an event of a node.
    Effect(LocalId, Event),
    /// What a node is under other names, by their number.
    Local(usize, LocalId),
    /// What a message is.
    Envelope(usize, EnvelopeId),
}

/// What comes of it.
#[derive(Debug)]
pub(crate) struct Effect {
    pub next: LocalId,
    pub sends: Vec<EnvelopeId>,
    /// Timestamps that requests were given.
    pub seen: Vec<(u8, Timestamp)>,
    pub replies: Vec<Reply>,
}

/// What is asked of a [`Local`] in each state, looked up once.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub up: bool,
    /// Where the node is; no epoch while it is down.
    pub view: View,
    pub serves: bool,
    pub merging: bool,
    pub caught_up: bool,
    /// Each record's metadata, while the node is up.
    pub metas: [Meta; RECORDS],
    /// What a client that asks now is told, if it can read.
    pub readable: [Option<Timestamp>; RECORDS],
    /// Which requests have left a mark there that they were done, as bits; and whose write it is, if that was done.
    pub done: [u8; RECORDS],
    pub maker: [Option<u8>; RECORDS],
    /// The newest version of each record that survives a crash.
    pub durable: [Timestamp; RECORDS],
    /// Which requests have left a mark there.
    pub durably_done: [u8; RECORDS],
    /// Jobs under way.
    pub jobs: Vec<JobId>,
    /// The node without what nobody will ask as long as not all crash; often itself.
    pub plain: LocalId,
}

/// Quick, and the same in each run.
type Quick = BuildHasherDefault<Print>;

/// Numbers for things, each kept once.
#[derive(Debug)]
struct Numbers<T> {
    ids: HashMap<Arc<T>, u32, Quick>,
    things: Vec<Arc<T>>,
}

impl<T: Eq + Hash> Numbers<T> {
    fn id(&mut self, thing: T) -> u32 {
        if let Some(&id) = self.ids.get(&thing) {
            return id;
        }
        let (id, thing) = (self.things.len() as u32, Arc::new(thing));
        self.ids.insert(thing.clone(), id);
        self.things.push(thing);
        id
    }
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { ids: HashMap::default(), things: Vec::new() }
    }
}

/// All parts and messages that were met so far, and what came of which event.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    locals: Numbers<Local>,
    facts: Vec<Facts>,
    envelopes: Numbers<Envelope>,
    effects: HashMap<(LocalId, Event), Effect, Quick>,
    renamed_locals: HashMap<(usize, LocalId), LocalId, Quick>,
    renamed_envelopes: HashMap<(usize, EnvelopeId), EnvelopeId, Quick>,
}

impl Locals {
    pub fn local(&self, id: LocalId) -> &Local {
        &self.locals.things[id as usize]
    }

    pub fn envelope(&self, id: EnvelopeId) -> &Envelope {
        &self.envelopes.things[id as usize]
    }

    pub fn facts(&self, id: LocalId) -> &Facts {
        &self.facts[id as usize]
    }

    pub fn number(&mut self, options: &Options, local: Local) -> LocalId {
        let id = self.locals.id(local);
        if self.facts.len() <= id as usize {
            let facts = self.local(id).facts(options);
            self.facts.push(facts);
            let plain = self.local(id).without_log(options);
            self.facts[id as usize].plain = plain.map_or(id, |plain| self.number(options, plain));
        }
        id
    }

    /// What comes of this event.
    pub fn effect(&self, node: LocalId, event: Event) -> Result<&Effect, Unknown> {
        self.effects.get(&(node, event)).ok_or(Unknown::Effect(node, event))
    }

    /// The node under other names.
    pub fn renamed_local(&self, names: usize, local: LocalId) -> Result<LocalId, Unknown> {
        self.renamed_locals.get(&(names, local)).copied().ok_or(Unknown::Local(names, local))
    }

    /// The message under other names.
    pub fn renamed_envelope(&self, names: usize, envelope: EnvelopeId) -> Result<EnvelopeId, Unknown> {
        self.renamed_envelopes.get(&(names, envelope)).copied().ok_or(Unknown::Envelope(names, envelope))
    }

    /// Finds out, by asking the engine or by exchanging names.
    pub fn learn(&mut self, options: &Options, names: &[Names], unknown: Unknown) -> Marks {
        match unknown {
            Unknown::Effect(node, event) if self.effect(node, event).is_err() => return self.ask(options, node, event),
            Unknown::Effect(..) => {}
            Unknown::Local(which, id) => {
                let renamed = self.local(id).renamed(&names[which]);
                let renamed = self.number(options, renamed);
                self.renamed_locals.insert((which, id), renamed);
            }
            Unknown::Envelope(which, id) => {
                let Envelope { to, from, message } = self.envelope(id);
                let names = &names[which];
                let (to, from, message) = (names.node(*to), names.node(*from), names.message(message));
                let renamed = self.envelopes.id(Envelope { to, from, message });
                self.renamed_envelopes.insert((which, id), renamed);
            }
        }
        Marks::default()
    }

    /// Asks the engine.
    fn ask(&mut self, options: &Options, node: LocalId, event: Event) -> Marks {
        let mut local = self.local(node).clone();
        let message = match event {
            Event::Deliver(envelope) => Some(self.envelope(envelope).clone()),
            _ => None,
        };
        local.step(options, event, message);
        let id = local.id;
        let (mut outputs, mut marks) = (Vec::new(), Marks::default());
        if let Some(replica) = &mut local.replica {
            marks = replica.take_marks();
            outputs.extend(std::iter::from_fn(|| replica.poll()));
        }
        let (mut sends, mut seen, mut replies) = (Vec::new(), Vec::new(), Vec::new());
        for output in outputs {
            match output {
                ReplicaOutput::Send { to, message } => {
                    if let Body::Inv(writes) = &message.body {
                        writes.iter().for_each(|write| see(options, write, &mut seen));
                    }
                    let envelope = |to| Envelope { to, from: id, message: message.clone() };
                    sends.extend(to.iter().map(|to| self.envelopes.id(envelope(to))));
                }
                ReplicaOutput::Job(job) => {
                    local.jobs.insert(job.id(), job);
                }
                ReplicaOutput::Reply(reply) => replies.push(reply),
                ReplicaOutput::Step(_) => {}
            }
        }
        let effect = Effect { next: self.number(options, local), sends, seen, replies };
        self.effects.insert((node, event), effect);
        marks
    }
}

impl Local {
    /// This node without its log, if it has one, and is down, has no place in its view, or has done nothing since it was
    /// up again.
    fn without_log(&self, options: &Options) -> Option<Self> {
        let loaded = |log: &BTreeMap<Key, Write>| {
            let mut replica = Replica::new(options.config(self.id));
            replica.load(self.epoch, log.values().cloned().collect(), true);
            replica
        };
        let replica = match &self.replica {
            _ if self.log.is_empty() => return None,
            Some(replica) if *replica == loaded(&self.log) => Some(loaded(&BTreeMap::new())),
            Some(replica) if replica.view().all().has(self.id) => return None,
            replica => replica.clone(),
        };
        Some(Self { replica, log: BTreeMap::new(), ..self.clone() })
    }

    fn renamed(&self, names: &Names) -> Self {
        let Self { id, replica, jobs, log, epoch } = self;
        Self {
            id: names.node(*id),
            replica: replica.as_ref().map(|replica| names.replica(replica)),
            jobs: jobs.iter().map(|(&id, job)| (names.job_id(id), names.job(job))).collect(),
            log: log.iter().map(|(&key, write)| (key, names.write(write))).collect(),
            epoch: *epoch,
        }
    }

    fn facts(&self, options: &Options) -> Facts {
        let (mut durable, mut durably_done) = ([Timestamp::ZERO; RECORDS], [0; RECORDS]);
        for (record, write) in options.keys().map(|key| self.log.get(&key)).enumerate() {
            let Some(write) = write else { continue };
            (durable[record], durably_done[record]) = (write.ts, done(&write.stamps));
        }
        let jobs = self.jobs.keys().copied().collect();
        let Some(replica) = &self.replica else { return Facts { durable, durably_done, jobs, ..Facts::default() } };
        let serves = replica.serves();
        let mut facts = Facts {
            up: true,
            view: replica.view(),
            serves,
            merging: replica.merging(),
            caught_up: replica.caught_up(),
            durable,
            durably_done,
            jobs,
            ..Facts::default()
        };
        for (record, key) in options.keys().enumerate() {
            let (meta, marks) = (replica.meta(key), replica.remembers(key));
            facts.metas[record] = meta;
            facts.readable[record] = (serves && meta.rd_lock.is_none()).then_some(meta.volatile_ts);
            facts.done[record] = done(marks);
            facts.maker[record] = marks.last().filter(|mark| mark.done.is_some()).map(|mark| mark.client as u8);
        }
        facts
    }

    fn step(&mut self, options: &Options, event: Event, message: Option<Envelope>) {
        match event {
            Event::Submit(number, attempt) => {
                self.with(|replica| replica.submit(0, options.attempt(number, attempt)));
            }
            Event::Deliver(_) => {
                if let Some(Envelope { from, message, .. }) = message {
                    self.with(|replica| replica.handle(0, from, message));
                }
            }
            Event::Done(job) => self.done(job),
            Event::Crash => {
                self.replica = None;
                self.jobs.clear();
            }
            Event::Restart => {
                let mut replica = Replica::new(options.config(self.id));
                replica.load(self.epoch, self.log.values().cloned().collect(), true);
                self.replica = Some(replica);
            }
            Event::LoseLease => self.with(|replica| replica.set_lease(0, 0)),
            Event::Install(view) => self.install(view),
            Event::Timeout => self.with(|replica| replica.timeout(0)),
        }
    }

    fn with(&mut self, act: impl FnOnce(&mut Replica)) {
        if let Some(replica) = &mut self.replica {
            act(replica);
        }
    }

    fn done(&mut self, job: JobId) {
        if let Some(Job::Persist(write)) = self.jobs.remove(&job) {
            let newer = self.log.get(&write.key).is_none_or(|old| old.ts < write.ts);
            if newer {
                self.log.insert(write.key, write);
            }
        }
        self.with(|replica| replica.done(0, job));
    }

    fn install(&mut self, view: View) {
        let id = self.id;
        let joined = self.replica.as_ref().map(Replica::joined);
        self.epoch = view.epoch;
        self.with(|replica| {
            replica.install(0, view);
            let serves = replica.view().members.has(id);
            replica.set_lease(0, if serves { u64::MAX } else { 0 });
        });
        if self.replica.as_ref().map(Replica::joined) != joined {
            // It begins anew, and its log with it.
            self.log.clear();
            self.jobs.clear();
        }
    }
}

/// Requests that were done, as marks say.
fn done(marks: &[Stamp]) -> u8 {
    marks.iter().filter(|mark| mark.done.is_some()).fold(0, |bits, mark| bits | 1 << mark.client)
}

/// Notes which timestamp a request's write has.
fn see(options: &Options, write: &Write, seen: &mut Vec<(u8, Timestamp)>) {
    if options.numbered() {
        return seen.extend(write.stamps.last().map(|mark| (mark.client as u8, write.ts)));
    }
    for number in 0..options.writes {
        let (at, request) = options.request(number);
        let ours = match &request.op {
            Op::Put(_, value) => write.value.as_ref() == Some(value),
            Op::FetchAdd(key, _) => write.rmw && write.key == *key && write.ts.node == at,
            _ => false,
        };
        if ours {
            seen.push((number, write.ts));
        }
    }
}
