//! MINOS in a storm: the adapter of its engine, and the cases that storms run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use remora_nic::Now;
use remora_replica::bounds::Bounds;
pub use remora_replica::ddp::Model;
use remora_replica::ddp::{self, JobId, Offload, Request};
use remora_replica::frames::{decode_packet, encode_packet, split};
use remora_replica::member::Notice::{Beat, Grant};
use remora_replica::member::{self, Standing};
use remora_replica::node::{Change, NodeOutput, Packet, ReplicaNode};
use remora_replica::types::{NodeId, NodeSet};

use crate::carriage::Carriage;
use crate::cluster::{Failure, Mutant, Plan, StormReport, run, run_with};
use crate::disk::DiskWrite;
use crate::engine::{Boot, Engine, EngineOutput, View};
use crate::events::Time;
use crate::rng::mix;
use crate::shrink::shrink;
use crate::story::Story;
use crate::values::decode;

/// Where the engine runs, and whether its work in local memory takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormDeployment {
    /// MINOS-B: on the host.
    B,
    /// MINOS-O: on host and NIC.
    O,
    /// As B, with local writes under the WRLock that take time.
    W,
    /// As O, with ways over PCIe and out of the vFIFO that take time.
    P,
}

impl StormDeployment {
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

impl fmt::Display for StormDeployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for StormDeployment {
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
    pub deployment: StormDeployment,
    /// How messages travel.
    pub carriage: Carriage,
}

/// A seeded fault of membership, or of the world around the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormMutant {
    /// Its name on the command line.
    pub name: &'static str,
    engine: Option<member::Mutation>,
    world: Option<Mutant>,
}

impl StormMutant {
    const fn world(name: &'static str, world: Mutant) -> Self {
        Self { name, engine: None, world: Some(world) }
    }

    const fn engine(name: &'static str, engine: member::Mutation) -> Self {
        Self { name, engine: Some(engine), world: None }
    }
}

/// Seeded faults that storms find.
pub const STORM_MUTANTS: [StormMutant; 3] = [
    StormMutant::world("clock-first", Mutant::ClockFirst),
    StormMutant::world("clock-sleeps", Mutant::ClockSleeps),
    StormMutant::engine("empty-is-new", member::Mutation::EmptyIsNew),
];

/// How far two clocks drift apart at most: twice what the nemesis does to one.
const DRIFT_PPM: u32 = 10_000;

/// Cases that failed once, and must not fail again.
const KNOWN: &str = include_str!("../seeds/minos.txt");

/// The cases of `seeds/minos.txt`.
pub fn known_cases() -> Vec<Case> {
    KNOWN.lines().filter(|line| !line.starts_with('#')).filter_map(Case::parse).collect()
}

impl Case {
    /// The storm of a seed; what is not given follows from the seed. Of one in four messages travel over NICs.
    pub fn new(
        seed: u64,
        nodes: usize,
        model: Option<Model>,
        deployment: Option<StormDeployment>,
        carriage: Option<Carriage>,
    ) -> Self {
        let drawn = mix(seed);
        let model = model.unwrap_or(Model::ALL[(drawn % 5) as usize]);
        let deployment = deployment.unwrap_or(StormDeployment::ALL[(drawn / 5 % 4) as usize]);
        let carriage = carriage.unwrap_or(if drawn >> 20 & 3 == 0 { Carriage::Nic } else { Carriage::Plain });
        Self { seed, nodes, model, deployment, carriage }
    }

    /// Reads what [`Case::line`] writes.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (seed, nodes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (model, deployment) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let carriage = words.next().map_or(Some(Carriage::Plain), |word| word.parse().ok())?;
        Some(Self { seed, nodes, model, deployment, carriage })
    }

    /// A line of `seeds/minos.txt`.
    pub fn line(&self) -> String {
        let Self { seed, nodes, model, deployment, carriage } = self;
        match carriage {
            Carriage::Plain => format!("{seed} {nodes} {model} {deployment}"),
            Carriage::Nic => format!("{seed} {nodes} {model} {deployment} {carriage}"),
        }
    }

    /// The command that runs it again.
    pub fn command(&self) -> String {
        let Self { seed, nodes, model, deployment, carriage } = self;
        format!(
            "remora storm minos --storms 1 --seed {seed} --nodes {nodes} --model {model} --deployment {deployment} \
             --carriage {carriage}"
        )
    }

    /// Runs the storm and checks it.
    pub fn run(&self) -> StormReport {
        run::<Minos>(&self.plan(None))
    }

    /// Runs the storm with a seeded fault.
    pub fn run_mutant(&self, mutant: StormMutant) -> StormReport {
        run::<Minos>(&self.plan(Some(mutant)))
    }

    /// Shrinks a failing storm. Gives its story, of at most `lines` lines, and how many faults are left.
    pub fn story(&self, report: StormReport, lines: usize, progress: impl FnMut(usize)) -> (String, usize) {
        let (plan, report) = shrink::<Minos>(&self.plan(None), report, progress);
        let key = report.failure.as_ref().and_then(Failure::key);
        let (report, story) = run_with::<Minos>(&plan, Story::about(key));
        (story.tell(&report, lines), plan.schedule.len())
    }

    /// The bounds are those that products ship with, and smaller ones.
    fn plan(&self, mutant: Option<StormMutant>) -> Plan<Config> {
        let (drawn, shipped) = (mix(self.seed), Bounds::SHIPPED);
        let config = Config {
            nodes: self.nodes,
            model: self.model,
            deployment: self.deployment,
            seed: self.seed,
            stamps: shipped.stamps,
            // Now and then fewer than clients leave behind, so that nodes forget some.
            max_scopes: if drawn >> 13 & 3 == 0 { 3 } else { shipped.max_scopes },
            fifo: if drawn >> 18 & 1 == 0 { 5 } else { shipped.fifo },
            // About as long as one value.
            packet: if drawn >> 19 & 1 == 0 { 500 } else { shipped.peer_frame / 2 },
            // So that logs are compacted often, or seldom.
            slack: if drawn >> 22 & 1 == 0 { 4 << 10 } else { 1 << 20 },
            mutation: mutant.and_then(|mutant| mutant.engine),
        };
        let mut plan = Plan::new(self.seed, self.nodes, self.model, config);
        plan.mutant = mutant.and_then(|mutant| mutant.world);
        // Every other storm clients take a scope's number again after PERSIST, and at another node.
        plan.carriage = self.carriage;
        plan.workload.scopes_a_number = if drawn >> 15 & 1 == 0 { 1 } else { 4 };
        // As many as there are names: with fewer a request that is sent again may be done again.
        let names = plan.workload.names();
        assert!(names <= shipped.stamps, "{names} names, and a record remembers {}", shipped.stamps);
        plan.config.stamps = if drawn >> 16 & 1 == 0 { names } else { shipped.stamps };
        plan
    }
}

/// What all nodes of a cluster share.
#[derive(Clone, Debug)]
pub struct Config {
    nodes: usize,
    model: Model,
    deployment: StormDeployment,
    seed: u64,
    stamps: usize,
    max_scopes: usize,
    fifo: u16,
    packet: usize,
    slack: usize,
    mutation: Option<member::Mutation>,
}

/// A node.
struct Minos {
    node: ReplicaNode,
    /// Requests in progress, by their tags.
    requests: BTreeSet<u64>,
    /// What is still to be sent, and to whom.
    rest: VecDeque<(NodeSet, Packet)>,
    /// Bytes up to which INVs of a batch share a message.
    packet: usize,
    /// What is being done in local memory, by the time when it is done and a number.
    jobs: BTreeMap<(Time, u64), JobId>,
    next_job: u64,
    seed: u64,
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
    "disk_full",
    "stuck",
];

impl Engine for Minos {
    type Config = Config;
    type Message = Packet;
    const MARKS: &'static [&'static str] = MARKS;

    fn start(config: &Config, boot: Boot) -> Self {
        let mut engine = ddp::Config::new(NodeId(boot.node as u8), NodeSet::first(config.nodes as u8), config.model);
        engine.drift_ppm = DRIFT_PPM;
        (engine.stamps, engine.max_scopes) = (config.stamps, config.max_scopes);
        let drawn = mix(config.seed);
        // In event the log gets each version, or the newest of some milliseconds.
        engine.write_back = if drawn >> 12 & 1 == 0 { 0 } else { Bounds::SHIPPED.write_back };
        engine.gathers = if drawn >> 23 & 1 == 0 { 1 } else { 64 };
        // A disk is slow for less than half a second.
        engine.stuck = if drawn >> 24 & 3 == 0 { 2 * engine.lease } else { engine.stuck };
        engine.backlog = if drawn >> 26 & 3 == 0 { 2000 } else { engine.backlog };
        engine.stepped = config.deployment.takes_time();
        if matches!(config.deployment, StormDeployment::O | StormDeployment::P) {
            // Each optimisation by itself now and then.
            let on = |bit: u32| drawn >> bit & 7 != 0;
            let fifos = on(0).then_some(if on(3) { config.fifo } else { 1 });
            engine.deployment = ddp::Deployment::Offload(Offload { fifos, batching: on(6), broadcast: on(9) });
        }
        let node = ReplicaNode::with_slack(engine, boot.now, &boot.log, config.slack).mutated(config.mutation);
        let (jobs, seed) = (BTreeMap::new(), mix(boot.seed ^ mix(boot.starts)));
        Self { node, requests: BTreeSet::new(), rest: VecDeque::new(), packet: config.packet, jobs, next_job: 0, seed }
    }

    fn handle(&mut self, now: Time, from: usize, message: Packet) {
        self.node.handle(&Now::simulated(now), NodeId(from as u8), message);
    }

    fn submit(&mut self, now: Time, request: Request) {
        self.requests.insert(request.tag);
        self.node.submit(&Now::simulated(now), request);
    }

    fn persisted(&mut self, now: Time, token: u64) {
        self.node.persisted(&Now::simulated(now), token);
    }

    fn set_room(&mut self, now: Time, room: Option<usize>) {
        self.node.set_room(&Now::simulated(now), room);
    }

    fn timeout(&mut self, now: Time) {
        let now = Now::simulated(now);
        while let Some(job) = self.jobs.first_entry().filter(|job| job.key().0 <= now.time()) {
            self.node.done(&now, job.remove());
        }
        self.node.timeout(&now);
    }

    fn next_timeout(&self) -> Option<Time> {
        let job = self.jobs.first_key_value().map_or(Time::MAX, |((due, _), _)| *due);
        Some(self.node.next_timeout().min(job)).filter(|&due| due < Time::MAX)
    }

    fn poll(&mut self, now: Time) -> Option<EngineOutput<Packet>> {
        loop {
            if let Some((nodes, message)) = self.rest.pop_front()
                && let Some(to) = nodes.iter().next()
            {
                let left = nodes.without(to);
                if !left.is_empty() {
                    self.rest.push_front((left, message.clone()));
                }
                return Some(EngineOutput::Send { to: to.0.into(), message });
            }
            return Some(match self.node.poll()? {
                NodeOutput::Send(to, message) => {
                    split(message, self.packet, |part| self.rest.push_back((to, part)));
                    continue;
                }
                NodeOutput::Log(token, Change::Append(bytes)) => {
                    EngineOutput::Write { token, write: DiskWrite::Append(bytes) }
                }
                NodeOutput::Log(token, Change::Replace(bytes)) => {
                    EngineOutput::Write { token, write: DiskWrite::Replace(bytes) }
                }
                NodeOutput::Log(token, Change::Compact(snapshot)) => {
                    EngineOutput::Write { token, write: DiskWrite::Compact(snapshot.encode()) }
                }
                NodeOutput::Reply(reply) => {
                    assert!(self.requests.remove(&reply.tag), "{reply:?} to nobody");
                    EngineOutput::Reply(reply)
                }
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

    fn encode(message: &Packet, out: &mut Vec<u8>) {
        encode_packet(message, 0, out);
    }

    fn decode(bytes: &[u8]) -> Option<Packet> {
        decode_packet(bytes).map(|(packet, _)| packet)
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
            let case = Case::new(seed, 5, None, None, None);
            assert_eq!(Case::parse(&case.line()), Some(case));
        }
        assert_eq!(Case::parse("7 5 synch"), None);
        assert_eq!(Case::parse("7 5 nothing b"), None);
        let lines = KNOWN.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).count();
        assert_eq!(known_cases().len(), lines, "every line of seeds/minos.txt is a case");
    }

    /// A few storms of every model; the long ones are `remora storm minos`.
    #[test]
    fn storms_pass_and_repeat() {
        for (seed, model) in (1..).zip(Model::ALL) {
            let case = Case::new(seed, 3, Some(model), None, Some(Carriage::Plain));
            let report = case.run();
            assert_eq!(report.failure, None, "{}", case.command());
            assert_eq!(report.unchecked, 0);
            if seed == 1 {
                assert_eq!(case.run().history.records, report.history.records, "storms repeat");
            }
        }
    }

    /// Each is found among the first storms; `remora storm minos --mutant all` shows how.
    #[test]
    fn each_seeded_fault_is_found() {
        for mutant in STORM_MUTANTS {
            let wrong = |seed: &u64| {
                let report = Case::new(*seed, 3, None, None, None).run_mutant(mutant);
                matches!(report.failure, Some(Failure::Wrong(_)))
            };
            assert!((1..300).any(|seed| wrong(&seed)), "{}", mutant.name);
        }
    }

    /// Old files count for long, and some are what a crash leaves.
    #[test]
    fn storms_end_compactions_and_some_fail_before() {
        let (mut compacted, mut uncompacted) = (0, 0);
        for seed in 0..40 {
            let case = Case::new(seed, 3, None, None, Some(Carriage::Plain));
            let report = case.run();
            assert_eq!(report.failure, None, "{}", case.command());
            compacted += report.disk.compacted;
            uncompacted += report.disk.uncompacted;
        }
        assert!(compacted > 100 && uncompacted > 10, "{compacted} {uncompacted}");
    }

    /// Storms over NICs: packets are lost, doubled and overtaken, connections break and are made anew.
    #[test]
    fn storms_over_nics_pass_and_repeat() {
        for (seed, model) in [(1, Model::Synch), (2, Model::Scope)] {
            let case = Case::new(seed, 3, Some(model), None, Some(Carriage::Nic));
            let report = case.run();
            assert_eq!((&report.failure, report.unchecked), (&None, 0), "{}", case.command());
            let answered =
                report.history.records.iter().filter(|record| matches!(record.end, crate::engine::End::Done(_)));
            assert!(report.net.broken > 0, "connections break");
            assert!(answered.count() * 10 > report.history.records.len() * 9, "most are answered");
            if seed == 1 {
                assert_eq!(case.run().history.records, report.history.records, "storms repeat");
            }
        }
    }
}
