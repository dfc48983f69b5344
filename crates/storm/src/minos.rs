//! MINOS in a storm: the adapter of its engine, and the cases that storms run.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use remora_replica::ddp::Model;
use remora_replica::ddp::{self, JobId, Offload, Op as DdpOp, Outcome as DdpOutcome, Refusal, Session};
use remora_replica::member::Notice::{Beat, Grant};
use remora_replica::member::Standing;
use remora_replica::node::{Change, NodeOutput, Packet, ReplicaNode};
use remora_replica::types::{NodeId, NodeSet, Value as Bytes};

use crate::cluster::{Failure, Plan, Report, run, run_with};
use crate::disk::Write;
use crate::engine::{Action, Body, Boot, End, Engine, EngineOutput, Op, Outcome, Request, View, is_counter};
use crate::events::Time;
use crate::rng::mix;
use crate::shrink::shrink;
use crate::story::Story;

/// Where the engine runs, and whether its work in local memory takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// MINOS-B: on the host.
    B,
    /// MINOS-O: on host and NIC.
    O,
    /// As B, with local writes under the WRLock that take time.
    W,
    /// As O, with ways over PCIe and out of the vFIFO that take time.
    P,
}

impl Deployment {
    const ALL: [Self; 4] = [Self::B, Self::O, Self::W, Self::P];

    fn name(self) -> &'static str {
        match self {
            Self::B => "b",
            Self::O => "o",
            Self::W => "w",
            Self::P => "p",
        }
    }

    fn takes_time(self) -> bool {
        matches!(self, Self::W | Self::P)
    }
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Deployment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|deployment| deployment.name() == text);
        named.ok_or_else(|| format!("no deployment {text:?}: b, o, w or p"))
    }
}

/// One storm: all that is needed to have it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// The persistency model.
    pub model: Model,
    /// Where the engine runs.
    pub deployment: Deployment,
}

/// How far two clocks drift apart at most: twice what the nemesis does to one.
const DRIFT_PPM: u32 = 10_000;

/// Cases that failed once, and must not fail again.
const KNOWN: &str = include_str!("../seeds/minos.txt");

/// The cases of `seeds/minos.txt`.
pub fn known_cases() -> Vec<Case> {
    KNOWN.lines().filter(|line| !line.starts_with('#')).filter_map(Case::parse).collect()
}

impl Case {
    /// The storm of a seed; what is not given follows from the seed.
    pub fn new(seed: u64, nodes: usize, model: Option<Model>, deployment: Option<Deployment>) -> Self {
        let drawn = mix(seed);
        let model = model.unwrap_or(Model::ALL[(drawn % 5) as usize]);
        let deployment = deployment.unwrap_or(Deployment::ALL[(drawn / 5 % 4) as usize]);
        Self { seed, nodes, model, deployment }
    }

    /// Reads what [`Case::line`] writes.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (seed, nodes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (model, deployment) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { seed, nodes, model, deployment })
    }

    /// A line of `seeds/minos.txt`.
    pub fn line(&self) -> String {
        format!("{} {} {} {}", self.seed, self.nodes, self.model, self.deployment)
    }

    /// The command that runs it again.
    pub fn command(&self) -> String {
        let Self { seed, nodes, model, deployment } = self;
        format!("remora storm minos --storms 1 --seed {seed} --nodes {nodes} --model {model} --deployment {deployment}")
    }

    /// Runs the storm and checks it.
    pub fn run(&self) -> Report {
        run::<Minos>(&self.plan())
    }

    /// Shrinks a failing storm. Gives its story, of at most `lines` lines, and how many faults are left.
    pub fn story(&self, report: Report, lines: usize, progress: impl FnMut(usize)) -> (String, usize) {
        let (plan, report) = shrink::<Minos>(&self.plan(), report, progress);
        let key = report.failure.as_ref().and_then(Failure::key);
        let (report, story) = run_with::<Minos>(&plan, Story::about(key));
        (story.tell(&report, lines), plan.schedule.len())
    }

    fn plan(&self) -> Plan<Config> {
        let config = Config { nodes: self.nodes, model: self.model, deployment: self.deployment, seed: self.seed };
        Plan::new(self.seed, self.nodes, self.model, config)
    }
}

/// Room for the longest value, in whole words.
const MAX_VALUE: usize = 8 + 704;

/// A number as a value: eight bytes for counters; for others more, whose length and content follow from the number.
fn encode(key: u32, number: u64) -> Bytes {
    let mut bytes = [0; MAX_VALUE];
    let length = fill(&mut bytes, key, number);
    bytes[..length].into()
}

/// Writes a number's value to `bytes` and says how long it is.
fn fill(bytes: &mut [u8; MAX_VALUE], key: u32, number: u64) -> usize {
    let padding = if is_counter(key) { 0 } else { (mix(number) % 700) as usize };
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    for (at, word) in (0..).zip(bytes[8..].chunks_exact_mut(8).take(padding.div_ceil(8))) {
        word.copy_from_slice(&mix(number ^ at).to_le_bytes());
    }
    8 + padding
}

/// The number of a value. One that was never written is the engine's fault: the storm stops at the panic.
fn decode(key: u32, bytes: &Bytes) -> u64 {
    let Some(number) = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
        panic!("a value of {} bytes that nobody wrote", bytes.len())
    };
    let mut expected = [0; MAX_VALUE];
    let length = fill(&mut expected, key, number);
    assert!(**bytes == expected[..length], "a value that nobody wrote: {bytes:?}");
    number
}

fn op(op: &Op) -> DdpOp {
    let key = u64::from(op.key);
    let value = |number| encode(op.key, number);
    match op.action {
        Action::Get => DdpOp::Get(key),
        Action::Put(number) => DdpOp::Put(key, value(number)),
        Action::Delete => DdpOp::Delete(key),
        Action::CompareSwap { expected, new } => {
            DdpOp::CompareSwap { key, expected: expected.map(value), new: Some(value(new)) }
        }
        Action::FetchAdd(delta) => DdpOp::FetchAdd(key, delta),
    }
}

/// How one operation ended. An outcome of another kind than the operation's is the engine's fault.
fn end(op: &Op, outcome: &DdpOutcome) -> End {
    let value = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| decode(op.key, bytes));
    match (op.action, outcome) {
        (_, DdpOutcome::Unknown) => End::Unknown,
        (_, DdpOutcome::Refused(Refusal::Busy | Refusal::NotServing)) => End::Refused,
        (Action::Get, DdpOutcome::Value(found)) => End::Done(value(found)),
        (Action::Put(_) | Action::Delete, DdpOutcome::Written) => End::Done(None),
        (Action::CompareSwap { expected, .. }, DdpOutcome::Swapped) => End::Done(expected),
        (Action::CompareSwap { .. }, DdpOutcome::NotSwapped(found)) => End::Done(value(found)),
        // No counter is ever 0 but by absence: numbers written are not, and additions are of at least 1.
        (Action::FetchAdd(_), DdpOutcome::Added(found)) => End::Done((*found != 0).then_some(*found)),
        _ => panic!("{outcome:?} for {op:?}"),
    }
}

fn outcome(body: &Body, outcome: &DdpOutcome) -> Outcome {
    let ops = match (body, outcome) {
        (_, DdpOutcome::Unknown) => return Outcome::Unknown,
        (_, DdpOutcome::Refused(Refusal::Busy | Refusal::NotServing | Refusal::UnknownScope)) => {
            return Outcome::Refused;
        }
        (Body::PersistScope, DdpOutcome::Persisted) => return Outcome::Done(Vec::new()),
        (Body::Ops(ops), _) => ops,
        (Body::PersistScope, _) => panic!("{outcome:?} for a scope"),
    };
    let ends: Vec<End> = match outcome {
        DdpOutcome::Batch(outcomes) if outcomes.len() == ops.len() => {
            ops.iter().zip(outcomes).map(|(op, outcome)| end(op, outcome)).collect()
        }
        _ => vec![end(&ops[0], outcome)],
    };
    if ends.contains(&End::Unknown) { Outcome::Unknown } else { Outcome::Done(ends) }
}

/// What all nodes of a cluster share.
#[derive(Clone, Debug)]
pub struct Config {
    nodes: usize,
    model: Model,
    deployment: Deployment,
    seed: u64,
}

/// A node.
struct Minos {
    node: ReplicaNode,
    /// Requests in progress by their tags.
    requests: BTreeMap<u64, Request>,
    next_tag: u64,
    /// What a message to many is still to be sent to.
    rest: Option<(NodeSet, Packet)>,
    /// What is being done in local memory, by the time when it is done and a number.
    jobs: BTreeMap<(Time, u64), JobId>,
    next_job: u64,
    seed: u64,
    /// So many of a client's scopes in turn have the same number here.
    scopes_a_number: u64,
}

/// Work in local memory takes up to about as long as a message, and now and then much longer (ns).
const JOB: Time = 20_000;
const LONG_JOB: Time = 1_000_000;

/// The engine's rare branches that a long storm must reach.
pub const MARKS: &[&str] = &[
    "snatches",
    "obsolete",
    "replays",
    "rmw_retries",
    "resends",
    "stale",
    "fifo_full",
    "view_change_in_persist",
    "rejoins",
    "full_recoveries",
    "duplicates",
    "overtaken",
];

impl Engine for Minos {
    type Config = Config;
    type Message = Packet;
    const MARKS: &'static [&'static str] = MARKS;

    fn start(config: &Config, boot: Boot) -> Self {
        let mut engine = ddp::Config::new(NodeId(boot.node as u8), NodeSet::first(config.nodes as u8), config.model);
        engine.drift_ppm = DRIFT_PPM;
        // Clients that gave up come back under new names, and few keys get all the writes.
        engine.stamps = 256;
        let drawn = mix(config.seed);
        // In event the log gets each version, or the newest of some milliseconds.
        engine.write_back = if drawn >> 12 & 1 == 0 { 0 } else { 5_000_000 };
        // Now and then fewer than clients leave behind, so that nodes forget some.
        engine.max_scopes = if drawn >> 13 & 3 == 0 { 3 } else { engine.max_scopes };
        engine.stepped = config.deployment.takes_time();
        if matches!(config.deployment, Deployment::O | Deployment::P) {
            // Each optimisation by itself now and then.
            let on = |bit: u32| drawn >> bit & 7 != 0;
            let fifos = on(0).then_some(if on(3) { 5 } else { 1 });
            engine.deployment = ddp::Deployment::Offload(Offload { fifos, batching: on(6), broadcast: on(9) });
        }
        // Every other storm clients take a scope's number again after PERSIST, and at another node.
        let scopes_a_number = if drawn >> 15 & 1 == 0 { 1 } else { 4 };
        let node = ReplicaNode::new(engine, boot.now, &boot.log);
        let (jobs, seed) = (BTreeMap::new(), mix(boot.seed ^ mix(boot.starts)));
        Self { node, requests: BTreeMap::new(), next_tag: 0, rest: None, jobs, next_job: 0, seed, scopes_a_number }
    }

    fn handle(&mut self, now: Time, from: usize, message: Packet) {
        self.node.handle(now, NodeId(from as u8), message);
    }

    fn submit(&mut self, now: Time, request: &Request) {
        self.next_tag += 1;
        let tag = self.next_tag;
        let op = match &request.body {
            Body::PersistScope => DdpOp::Persist,
            Body::Ops(ops) if ops.len() == 1 => op(&ops[0]),
            Body::Ops(ops) => DdpOp::Batch(ops.iter().map(op).collect()),
        };
        let session = Session { client: request.client, sequence: request.number, attempt: request.attempt };
        let scope =
            (self.node.replica().config().model == Model::Scope).then_some(request.scope / self.scopes_a_number);
        self.requests.insert(tag, request.clone());
        self.node.submit(now, ddp::Request { tag, session: Some(session), scope, op });
    }

    fn persisted(&mut self, now: Time, token: u64) {
        self.node.persisted(now, token);
    }

    fn timeout(&mut self, now: Time) {
        while let Some(job) = self.jobs.first_entry().filter(|job| job.key().0 <= now) {
            self.node.done(now, job.remove());
        }
        self.node.timeout(now);
    }

    fn next_timeout(&self) -> Option<Time> {
        let job = self.jobs.first_key_value().map_or(Time::MAX, |((due, _), _)| *due);
        Some(self.node.next_timeout().min(job)).filter(|&due| due < Time::MAX)
    }

    fn poll(&mut self, now: Time) -> Option<EngineOutput<Packet>> {
        loop {
            if let Some((nodes, message)) = self.rest.take()
                && let Some(to) = nodes.iter().next()
            {
                let left = nodes.without(to);
                self.rest = (!left.is_empty()).then(|| (left, message.clone()));
                return Some(EngineOutput::Send { to: to.0.into(), message });
            }
            return Some(match self.node.poll()? {
                NodeOutput::Send(to, message) => {
                    self.rest = Some((to, message));
                    continue;
                }
                NodeOutput::Log(token, Change::Append(bytes)) => {
                    EngineOutput::Write { token, write: Write::Append(bytes) }
                }
                NodeOutput::Log(token, Change::Replace(bytes)) => {
                    EngineOutput::Write { token, write: Write::Replace(bytes) }
                }
                NodeOutput::Log(token, Change::Compact(snapshot)) => {
                    EngineOutput::Write { token, write: Write::Replace(snapshot.encode()) }
                }
                NodeOutput::Reply(reply) => self.reply(&reply),
                NodeOutput::Job(job) => {
                    self.next_job += 1;
                    let drawn = mix(self.seed ^ self.next_job);
                    let time = if drawn.is_multiple_of(32) { LONG_JOB } else { JOB };
                    self.jobs.insert((now + mix(drawn) % time, self.next_job), job.id());
                    continue;
                }
                NodeOutput::Step(_) => continue,
            });
        }
    }

    fn marks(&self, counts: &mut [u64]) {
        for (name, reached) in self.node.marks().iter() {
            if let Some(index) = MARKS.iter().position(|mark| *mark == name) {
                counts[index] = reached;
            }
        }
    }

    fn view(&self) -> View {
        let (view, replica) = (self.node.view(), self.node.replica());
        let serves = replica.status() == Some(Standing::Serving) && replica.view().epoch == view.epoch;
        let alone = self.node.pending().filter(|next| next.members.len() == 1);
        let alone = alone.fold(NodeSet::EMPTY, |set, next| set.or(next.members)).0;
        View { epoch: view.epoch, members: view.members.0, serves, alone }
    }

    fn state(&self) -> String {
        self.node.describe()
    }

    fn concerns(message: &Packet, key: u32) -> bool {
        let key = u64::from(key);
        let Packet::Replica(message) = message else { return !matches!(message, Packet::Member(Beat(..) | Grant(_))) };
        match &message.body {
            ddp::Body::Inv(writes) => writes.iter().any(|write| write.key == key),
            ddp::Body::Ack(of, ..) | ddp::Body::Refuse(of, _) | ddp::Body::Busy(of, _) | ddp::Body::Val(of, ..) => {
                *of == key
            }
            ddp::Body::Persist(_, _, writes) => writes.iter().any(|write| write.0 == key),
            ddp::Body::State(_, entries, _) => entries.iter().any(|entry| entry.write.key == key),
            _ => false,
        }
    }

    fn describe(message: &Packet) -> String {
        use ddp::Body::{Ack, Busy, Inv, Persist, Refuse, State, Val};
        let message = match message {
            Packet::Replica(message) => message,
            Packet::Member(notice) => return format!("{notice:?}"),
        };
        let what = match &message.body {
            Inv(writes) => format!("INV {}", writes.iter().map(describe_write).collect::<Vec<_>>().join(", ")),
            Ack(key, ts, kind) => format!("ACK {kind:?} k{key} {ts}"),
            Refuse(key, ts) => format!("refuse k{key} {ts}"),
            Busy(key, ts) => format!("busy k{key} {ts}"),
            Val(key, ts, kind) => format!("VAL {kind:?} k{key} {ts}"),
            Persist(scope, _, writes) => {
                let writes: Vec<String> = writes.iter().map(|(key, ts)| format!("k{key} {ts}")).collect();
                format!("PERSIST {scope:x} of {}", writes.join(", "))
            }
            State(number, entries, last) => {
                let writes: Vec<String> = entries.iter().map(|entry| describe_write(&entry.write)).collect();
                format!("state {number}{} {}", if *last { " (last)" } else { "" }, writes.join(", "))
            }
            other => format!("{other:?}"),
        };
        format!("[{}] {what}", message.epoch)
    }
}

impl Minos {
    fn reply(&mut self, reply: &ddp::Reply) -> EngineOutput<Packet> {
        let Some(request) = self.requests.remove(&reply.tag) else { panic!("{reply:?} to nobody") };
        let outcome = outcome(&request.body, &reply.outcome);
        EngineOutput::Reply { client: request.client, number: request.number, attempt: request.attempt, outcome }
    }
}

fn describe_write(write: &ddp::Write) -> String {
    let value = write.value.as_ref().map(|value| decode(write.key as u32, value));
    let kind = if write.rmw { " rmw" } else { "" };
    format!("k{} {}{kind} = {}", write.key, write.ts, crate::story::show(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_as_they_are_written() {
        for seed in 0..20 {
            let case = Case::new(seed, 5, None, None);
            assert_eq!(Case::parse(&case.line()), Some(case));
        }
        assert_eq!(Case::parse("7 5 synch"), None);
        assert_eq!(Case::parse("7 5 nothing b"), None);
        let lines = KNOWN.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).count();
        assert_eq!(known_cases().len(), lines, "every line of seeds/minos.txt is a case");
    }

    #[test]
    fn values_say_which_number_they_hold() {
        for (key, number) in [(0, 1), (1, 1), (1, 77 << 20), (3, u64::MAX)] {
            assert_eq!(decode(key, &encode(key, number)), number);
        }
        assert_eq!(encode(0, 9).len(), 8);
        assert!(encode(1, 9) != encode(1, 10) && (0..50).any(|number| encode(1, number).len() > 500));
    }

    /// A few storms of every model; the long ones are `remora storm minos`.
    #[test]
    fn storms_pass_and_repeat() {
        for (seed, model) in (1..).zip(Model::ALL) {
            let case = Case::new(seed, 3, Some(model), None);
            let report = case.run();
            assert_eq!(report.failure, None, "{}", case.command());
            assert_eq!(report.unchecked, 0);
            if seed == 1 {
                assert_eq!(case.run().history.records, report.history.records, "storms repeat");
            }
        }
    }
}
