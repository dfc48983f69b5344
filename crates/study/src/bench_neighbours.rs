//! What a client of a node notices of another one that takes all it may of something.

use std::time::{Duration, Instant};

use remora_kernel::{Status, op};
use remora_lab::guest::{Deed, Guest, GuestPlan};
use remora_lab::stats::Latencies;
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_service::control;
use remora_wasm::{Isolation, ModuleLimits};

use crate::bench_wasm::module;
use crate::compare::{Progress, Watch};
use crate::nodes::NodeProcess;
use crate::{MeasuredRows, StudyError};

/// A greedy neighbour may cost so many times what an honest one does.
pub const GOAL: f64 = 2.0;
/// Calls that a client has under way at most.
const CALLS: usize = 256;
/// Connections that an address has at most.
const CONNECTIONS: usize = remora_service::CONNECTIONS as usize;
/// Bytes of the streams.
const STREAM: usize = 64 << 10;
/// How long the other client has to get what it may, before its neighbour is measured.
const SETTLE: Duration = Duration::from_millis(300);

/// Deeds of a neighbour that a measurement waits for at least, and for how long at most.
const DEEDS: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct NeighboursBench {
    /// Rounds; what counts is the tail of all together.
    pub rounds: u32,
    /// How long each measurement of a round runs.
    pub time: Duration,
    /// The link of all clients.
    pub link: LinkKind,
}

/// What clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Places in the NIC's pool of calls.
    Places,
    /// Payload streams, and the room for what nobody has read.
    Streams,
    /// Buffers of the host's replies.
    Replies,
    /// Memory, in bytes and regions.
    Memory,
    /// Connections.
    Connections,
    /// Turns of the NIC thread.
    NicCpu,
    /// Turns of the host thread.
    HostCpu,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Places, Self::Streams, Self::Replies, Self::Memory, Self::Connections, Self::NicCpu, Self::HostCpu];

    /// As tables spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Places => "pool places",
            Self::Streams => "payload streams",
            Self::Replies => "reply buffers",
            Self::Memory => "allocations",
            Self::Connections => "connections",
            Self::NicCpu => "NIC CPU",
            Self::HostCpu => "host CPU",
        }
    }

    /// What the neighbour does, one at a time.
    fn neighbour(self) -> (&'static str, Deed) {
        match self {
            Self::Places | Self::Connections | Self::NicCpu => ("a call to the NIC", call()),
            Self::Streams => ("a stream of 64 KB", Deed::Stream { op: op::CHECKSUM, len: STREAM }),
            Self::Replies | Self::HostCpu => ("a call to the host", Deed::Host { op: op::GET, params: vec![0; 4] }),
            Self::Memory => ("4 KB allocated, freed", Deed::Borrow(4096)),
        }
    }

    /// What an honest client does as much of as it may.
    fn honest(self, modules: &Modules) -> (&'static str, GuestPlan) {
        let host = |op| Deed::Host { op, params: vec![0; 4] };
        match self {
            Self::Places => ("calls, one by connection", plan(call(), CONNECTIONS, 1)),
            Self::Streams => ("streams of 1 MB", plan(Deed::Stream { op: op::CHECKSUM, len: 1 << 20 }, CONNECTIONS, 1)),
            Self::Replies => ("calls to the host", plan(host(control::op::CPU), 4, CALLS / 4)),
            Self::Memory => ("4 KB allocated, freed", plan(Deed::Borrow(4096), 1, CALLS)),
            Self::Connections => ("connects and leaves", plan(Deed::Visit, CONNECTIONS, 1)),
            Self::NicCpu => ("calls of 1 us", plan(Deed::Nic { op: modules.work, params: vec![] }, 1, CALLS)),
            Self::HostCpu => ("calls of 1 us", plan(host(modules.work), 1, CALLS)),
        }
    }

    /// What a greedy one does.
    fn greedy(self, modules: &Modules) -> (&'static str, GuestPlan) {
        match self {
            Self::Places => ("payload that never comes", plan(Deed::Promise { op: op::CHECKSUM }, CONNECTIONS, 1)),
            Self::Streams => {
                ("streams that nobody reads", plan(Deed::Stream { op: modules.deaf, len: 1 << 20 }, CONNECTIONS, 1))
            }
            Self::Replies => {
                let deed = Deed::Host { op: control::op::CPU, params: vec![] };
                ("replies that nobody takes", GuestPlan { takes_replies: false, ..plan(deed, 4, CALLS / 4) })
            }
            Self::Memory => ("regions until refused, left behind", plan(Deed::Hoard(4096), 1, CALLS)),
            // More than it may have: the others are refused, and asked for again.
            Self::Connections => ("more and more connections", plan(Deed::Stay, CONNECTIONS + 8, 1)),
            Self::NicCpu => ("calls that spin", plan(Deed::Nic { op: modules.spin, params: vec![] }, 1, CALLS)),
            Self::HostCpu => ("calls that spin", plan(Deed::Host { op: modules.spin, params: vec![] }, 1, CALLS)),
        }
    }
}

/// A kernel call like any, though its parameters are bad: it needs no memory.
fn call() -> Deed {
    Deed::Nic { op: op::GET, params: vec![0; 4] }
}

fn plan(deed: Deed, connections: usize, depth: usize) -> GuestPlan {
    GuestPlan { deed, connections, depth, takes_replies: true }
}

/// Op-codes of the modules that guests call.
struct Modules {
    /// Computes for about a microsecond.
    work: u64,
    /// Computes for as long as it is let.
    spin: u64,
    /// Does so, and never reads the payload that it is for.
    deaf: u64,
}

impl Modules {
    fn deploy(client: &mut Client) -> Result<Self, StudyError> {
        let mut deploy = |name: &str, import: &str, body: &str| {
            let text = format!(
                r#"(module {import} (memory (export "memory") 1) (global (export "params") i32 (i32.const 1024))
                  (func (export "run") (param i32) (result i32) {body} (i32.const 0)))"#
            );
            let bytes = module(&text)?;
            let limits = ModuleLimits { fuel: ModuleLimits::MAX.fuel, ..ModuleLimits::default() };
            Ok::<_, StudyError>(client.deploy_kernel(name, &bytes, limits, Isolation::Reused, false)?.op)
        };
        let next_chunk = r#"(import "remora" "next_chunk" (func (param i32 i32) (result i32)))"#;
        let count =
            "(local.set 0 (i32.const 400)) (loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))";
        Ok(Self {
            work: deploy("bench-work", "", count)?,
            spin: deploy("bench-spin", "", "(loop $l (br $l))")?,
            deaf: deploy("bench-deaf", next_chunk, "(loop $l (br $l))")?,
        })
    }
}

/// A neighbour's deeds: alone, beside an honest client, beside a greedy one. Times in nanoseconds.
#[derive(Clone, Debug)]
pub struct NeighbourRow {
    /// What is shared.
    pub resource: Resource,
    /// What the neighbour does.
    pub deed: &'static str,
    /// What the honest client does, and the greedy one.
    pub others: [&'static str; 2],
    /// Medians.
    pub p50: [f64; 3],
    /// The 99th percentiles.
    pub p99: [f64; 3],
    /// Deeds of the other clients that ended, a second, and how the last one did.
    pub ended: [(f64, Option<Status>); 2],
    /// Connections of the other clients that the node refused or ended.
    pub refused: [u64; 2],
}

impl NeighbourRow {
    /// The tail beside a greedy client over that beside an honest one.
    pub fn ratio(&self) -> f64 {
        self.p99[2] / self.p99[1]
    }

    /// Whether that is within the goal.
    pub fn met(&self) -> bool {
        self.ratio() <= GOAL
    }
}

/// What one measurement adds up to.
#[derive(Default)]
struct Sum {
    latencies: Latencies,
    ended: u64,
    status: Option<Status>,
    refused: u64,
    took: Duration,
}

impl NeighboursBench {
    /// Measures all resources.
    pub fn run(&self, watch: &dyn Watch) -> MeasuredRows<NeighbourRow> {
        MeasuredRows::by(Resource::ALL.len(), |rows| self.rows(rows, watch))
    }

    fn rows(&self, rows: &mut Vec<NeighbourRow>, watch: &dyn Watch) -> Result<(), StudyError> {
        for resource in Resource::ALL {
            let mut sums: [Sum; 3] = Default::default();
            // A node for each: what one left behind is not the next one's.
            let node = at_free_loopback(Ok)?;
            let _child = NodeProcess::start(node)?;
            let config = |local| ClientConfig { link: Some(self.link), ..ClientConfig::new(node, local) };
            let mut deployer = at_local(node, |local| Client::connect(config(local)))?;
            let modules = Modules::deploy(&mut deployer)?;
            let (deed, neighbour) = resource.neighbour();
            let plans = [resource.honest(&modules), resource.greedy(&modules)];
            for round in 0..self.rounds {
                let part = (rows.len() as f64 + f64::from(round) / f64::from(self.rounds)) / Resource::ALL.len() as f64;
                watch.progress(Progress::Part { what: resource.name(), part });
                let others = [None, Some(plans[0].1.clone()), Some(plans[1].1.clone())];
                for (sum, other) in sums.iter_mut().zip(others) {
                    let guest =
                        |plan: GuestPlan| at_local(node, |local| Guest::new(node, local, self.link, plan.clone()));
                    let mut neighbour = guest(plan(neighbour.clone(), 1, 1))?;
                    let mut other = other.map(guest).transpose()?;
                    self.measure(&mut neighbour, other.as_mut(), sum, watch)?;
                }
            }
            let quantile = |part| sums.each_ref().map(|sum| sum.latencies.quantile(part) as f64);
            let [_, honest, greedy] = &sums;
            rows.push(NeighbourRow {
                resource,
                deed,
                others: [plans[0].0, plans[1].0],
                p50: quantile(0.5),
                p99: quantile(0.99),
                ended: [honest, greedy].map(|sum| (sum.ended as f64 / sum.took.as_secs_f64(), sum.status)),
                refused: [honest.refused, greedy.refused],
            });
        }
        watch.progress(Progress::Part { what: "done", part: 1.0 });
        Ok(())
    }

    /// The neighbour's deeds beside another client's, by turns in this thread.
    fn measure(
        &self,
        neighbour: &mut Guest,
        mut other: Option<&mut Guest>,
        sum: &mut Sum,
        watch: &dyn Watch,
    ) -> Result<(), StudyError> {
        let (start, mut count) = (Instant::now(), 0);
        loop {
            let spent = start.elapsed();
            // What ended while the other one got what it may is no part of it.
            let measuring = spent >= SETTLE;
            if spent >= SETTLE + self.time && (count >= DEEDS || spent >= PATIENCE) {
                sum.took += spent - SETTLE;
                break;
            }
            neighbour.poll()?;
            if let Some(other) = &mut other {
                other.poll()?;
                let done = other.take_done();
                sum.status = done.last().map(|(status, _)| *status).or(sum.status);
                sum.ended += if measuring { done.len() as u64 } else { 0 };
            }
            for (_, took) in neighbour.take_done().into_iter().filter(|_| measuring) {
                count += 1;
                sum.latencies.record(Duration::from_nanos(took));
            }
            if watch.stop() {
                return Err(StudyError::Interrupted);
            }
        }
        sum.refused += other.as_ref().map_or(0, |other| other.refused());
        if count == 0 {
            let (time, beside) = (PATIENCE.as_secs(), if other.is_some() { "beside another" } else { "alone" });
            return Err(StudyError::Failed(format!("a neighbour {beside} was not served once in {time} s")));
        }
        Ok(())
    }
}
