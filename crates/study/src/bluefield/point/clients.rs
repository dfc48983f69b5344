//! Threads of the compute node that keep calls under way to the host and the card of the storage node.

use std::sync::Arc;
use std::time::Duration;

use remora_kernel::Placement;
use remora_memory::Region;
use remora_model::time::Ps;
use remora_model::world::{ConnectionId, Fabric, RawVerb};

use super::Outcome;
use super::made::{Made, MadeKernels};
use crate::bluefield::study::{At, Setup};
use crate::calling::{Calls, Checked};
use crate::load::{self, Begun, CallEnd, Trouble, Until};
use crate::modelled::ModelError;

/// Machines of the fabric.
pub(super) const CLIENT: u16 = 0;
pub(super) const HOST: u16 = 1;
pub(super) const CARD: u16 = 2;
const NAMES: [&str; 3] = ["client", "host", "card"];
/// Operations before those that are measured, in parts of them.
const WARM_UP: u64 = 4;

impl At {
    /// Its machine's number.
    pub(super) fn machine(self) -> u16 {
        match self {
            Self::Host => HOST,
            Self::Card => CARD,
        }
    }
}

/// How calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// By threads of the machine itself: no network is between.
    There,
    /// By SEND, and a WRITE back.
    Call,
    /// By one-sided verbs of the client.
    Verbs,
}

/// The compute node and what it talks to.
pub(super) struct World {
    pub(super) fabric: Fabric,
    pub(super) trees: Made,
    /// Each thread's connections, to the host and to the card.
    connections: Vec<[ConnectionId; 2]>,
}

impl World {
    /// With so many threads of the storage node's machines, and of the compute node.
    pub(super) fn new(ground: &super::Ground, setup: &Setup) -> Result<Self, ModelError> {
        let kernels = MadeKernels::default();
        let spec = ground.fabric(setup.threads);
        let mut fabric = Fabric::with_kernels(&spec, kernels.clone(), &remora_kernel::op::BUILTINS)?;
        let mut connections = Vec::new();
        for _ in 0..setup.clients.max(1) {
            connections.push([fabric.connect(CLIENT, HOST)?, fabric.connect(CLIENT, CARD)?]);
        }
        Ok(Self { fabric, trees: kernels.0, connections })
    }

    /// Keeps so many calls of each thread under way and measures `count` of them; `machine` says where a call goes.
    pub(super) fn measure(
        mut self,
        (calls, how): (&mut dyn Calls, How),
        machine: &dyn Fn(u64) -> u16,
        (ahead, count): (u64, u64),
    ) -> Result<Outcome, ModelError> {
        let in_flight = self.connections.len() as u64 * ahead.max(1);
        let warm_up = (count / WARM_UP).max(2 * in_flight);
        let (mut sum, mut ended, mut since) = (0.0, 0, Ps::ZERO);
        let mut asking =
            Asking { ids: vec![0; in_flight as usize], params: Vec::new(), world: &mut self, calls, how, machine };
        let mut tally = |(), from: Ps, at: Ps| {
            ended += 1;
            if ended == warm_up {
                since = at;
            } else if ended > warm_up {
                sum += (at - from).as_ns();
            }
        };
        let until = Until::Ended(warm_up + count);
        load::closed(&mut asking, in_flight as u32, until, &mut tally, &|| false)?;
        let (span, measured) = ((self.fabric.now() - since).as_secs(), ended - warm_up);
        Ok(Outcome {
            mean_ns: sum / measured.max(1) as f64,
            ops_per_s: measured as f64 / span.max(1e-12),
            detail: self.busiest(),
            events: self.fabric.events(),
        })
    }

    /// The mean of so many SENDs to a machine and back, half of the time.
    pub(super) fn send_latency(
        mut self,
        at: At,
        (bytes, inline): (u64, bool),
        count: u64,
    ) -> Result<Outcome, ModelError> {
        let region: Arc<Region> = self.fabric.alloc(at.machine(), bytes)?;
        let connection = self.connections[0][usize::from(at.machine() - HOST)];
        let mut sum = 0.0;
        for _ in 0..count {
            let full = |_| ModelError::Still(1);
            let verb = RawVerb::SendPingPong { inline };
            self.fabric.submit_raw(connection, verb, &region, bytes as u32, 0).map_err(full)?;
            if !self.fabric.poll(&mut |done| sum += done.latency.as_ns())? {
                return Err(ModelError::Still(1));
            }
        }
        let mean_ns = sum / count as f64 / 2.0;
        let detail = if inline { "in the command" } else { "fetched" }.into();
        Ok(Outcome { mean_ns, detail, events: self.fabric.events(), ..Outcome::default() })
    }

    /// What was busiest.
    fn busiest(&self) -> String {
        let of = |machine: u16| {
            let usage = self.fabric.usage(machine).into_iter();
            usage.map(move |usage| (usage.busy, format!("{} {}", NAMES[usize::from(machine)], usage.name)))
        };
        let busiest = (CLIENT..=CARD).flat_map(of).max_by(|a, b| a.0.total_cmp(&b.0));
        busiest.map_or("-".into(), |(busy, name)| format!("{name} ({:.0} % busy)", busy * 100.0))
    }
}

/// Calls under way.
struct Asking<'a> {
    world: &'a mut World,
    calls: &'a mut dyn Calls,
    how: How,
    machine: &'a dyn Fn(u64) -> u16,
    /// The call of each slot. A thread has every n-th.
    ids: Vec<u64>,
    params: Vec<u8>,
}

impl Asking<'_> {
    fn submit(&mut self, slot: u32) -> Result<(), ModelError> {
        let Self { world: World { fabric, connections, .. }, calls, params, .. } = self;
        let id = self.ids[slot as usize];
        params.clear();
        calls.params(id, params);
        let side = usize::from((self.machine)(id) - HOST);
        let (connection, op) = (connections[slot as usize % connections.len()][side], calls.op_of(id));
        let submitted = match self.how {
            How::There => fabric.submit_at_node(connection, op, params, slot),
            How::Call => fabric.submit(connection, Placement::Host, op, params, slot),
            How::Verbs => fabric.submit(connection, Placement::Client, op, params, slot),
        };
        submitted.map_err(|_| ModelError::Still(self.ids.len() as u32))
    }
}

impl load::Target for Asking<'_> {
    type Told = ();
    type Error = ModelError;

    fn patience(&self) -> Duration {
        Duration::MAX
    }

    fn now(&self) -> Ps {
        self.world.fabric.now()
    }

    fn begin(&mut self, slot: u32, _: Ps) -> Result<Begun, ModelError> {
        self.ids[slot as usize] = self.calls.next();
        self.submit(slot).map(|()| Begun::Yes)
    }

    fn again(&mut self, slot: u32) -> Result<(), ModelError> {
        self.submit(slot)
    }

    fn poll(&mut self, _: Ps, ended: &mut impl FnMut(u32, Ps, CallEnd<()>)) -> Result<bool, ModelError> {
        let Self { world, calls, ids, .. } = self;
        Ok(world.fabric.poll(&mut |done| {
            let end = match calls.check(ids[done.tag as usize], done.status, done.reply) {
                Ok(Checked::Verified { .. }) => CallEnd::Right(()),
                Ok(Checked::GaveUp) => CallEnd::Again,
                Err(what) => CallEnd::Wrong(what),
            };
            ended(done.tag, done.at, end);
        })?)
    }

    fn trouble(&self, trouble: Trouble) -> ModelError {
        ModelError::of(if self.how == How::Verbs { Placement::Client } else { Placement::Host }, trouble)
    }
}
