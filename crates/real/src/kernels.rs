//! Kernels on the NIC: calls by RPC verbs and by rings into the task pool, replies back.

use std::sync::{Arc, Mutex};

use remora_kernel::{Call, Limits, Runner, Status, op};
use remora_memory::{Lookahead, Registry};
use remora_nic::{Nic, QpState, Qpn, RpcRequest, StreamChunk, Time};
use remora_service::{
    Asker, CallStats, CallTable, KvBlocks, NodePlacer, Offered, RingAsker, RingFault, Rings, RpcVerbs, Two,
};
use remora_wasm::KernelSet;

use crate::Error;
use crate::device::{Bell, Clock};
use crate::rings::{self, RingConfig, RingMemory};

/// Kernel calls that run at once on a NIC: RAMBDA's table of outstanding requests has half as many, and here one client
/// alone has half.
pub const POOL: usize = 512;
/// Steps that each call makes in one go. Enough for a look-up; a long one does not hold up the packets of others.
pub(crate) const ROUNDS: usize = 4;

/// The kernels of a NIC and the calls that run.
pub struct Kernels {
    runner: Box<dyn Runner + Send>,
    ops: Vec<u64>,
    calls: CallTable<Asker<RpcRequest, RingAsker>>,
    rings: Rings,
    /// Whether RPC verbs or rings are asked first.
    turn: bool,
    /// Of a node that places calls.
    placing: Option<Box<NodePlaces>>,
}

/// What a node's NIC has to place calls with.
struct NodePlaces {
    placer: NodePlacer,
    clock: Clock,
    /// When calls were looked for last; none if that was long ago, as nobody called.
    looked_at: Option<Time>,
    /// When those that have come now did, about.
    came: Time,
    /// Wakes the host.
    bell: Arc<Bell>,
}

impl NodePlaces {
    /// Calls are looked for. What has come since the last time has waited for half of the time since then, on average.
    fn look(&mut self) {
        let now = self.clock.now();
        let waited = self.looked_at.map_or(0, |before| (now - before) / 2);
        (self.looked_at, self.came) = (Some(now), now - waited);
    }
}

impl Kernels {
    /// The built-in kernels; a call reaches what its queue pair could reach by verbs.
    pub fn builtins(registry: &Arc<Registry>, limits: Limits) -> Self {
        Self::new(remora_kernel::host_runner(registry.clone(), true, POOL, limits), op::BUILTINS.to_vec())
    }

    /// The kernels of a set, which may change; the NIC is told of its modules by [`Nic::deploy`].
    pub fn of(kernels: &KernelSet, registry: &Arc<Registry>, limits: Limits) -> Self {
        let runner = remora_wasm::host_runner(kernels.clone(), registry.clone(), true, POOL, limits);
        let modules = kernels.list().into_iter().map(|entry| entry.op);
        Self::new(runner, op::BUILTINS.into_iter().chain(modules).collect())
    }

    /// Any kernels: a runner, and the op-codes it knows. One client has half of what the runner takes.
    pub fn new(runner: Box<dyn Runner + Send>, ops: Vec<u64>) -> Self {
        let calls = CallTable::new(runner.capacity());
        Self { runner, ops, calls, rings: Rings::default(), turn: false, placing: None }
    }

    /// The same, where a call may take so long (ns).
    pub fn with_deadline(mut self, deadline: Time) -> Self {
        self.calls.set_deadline(deadline);
        self
    }

    /// Tells of calls that reserve blocks of key-value stores.
    pub(crate) fn noting(mut self, blocks: Arc<Mutex<KvBlocks>>) -> Self {
        self.calls.note_blocks(blocks);
        self
    }

    /// Counts calls from now on, if `wanted`.
    pub(crate) fn counting(mut self, wanted: bool) -> Self {
        if wanted {
            self.calls.count_calls();
        }
        self
    }

    /// Calls that have ended, by op-code, if they are counted.
    pub(crate) fn stats(&self) -> Option<&CallStats> {
        self.calls.stats()
    }

    /// From now on `placer` says where calls run whose callers leave it open; `bell` wakes the host.
    pub(crate) fn place_by(&mut self, placer: NodePlacer, bell: Arc<Bell>) {
        let (clock, looked_at, came) = (Clock::start(), None, 0);
        self.placing = Some(Box::new(NodePlaces { placer, clock, looked_at, came, bell }));
    }

    /// What says so, if anything does.
    pub(crate) fn placer(&mut self) -> Option<&mut NodePlacer> {
        self.placing.as_mut().map(|placing| &mut placing.placer)
    }

    /// Answers a call that the host has run.
    pub(crate) fn answer(&mut self, nic: &mut Nic, call: Call, status: Status) {
        let Self { calls, rings, turn, placing, .. } = self;
        ended(placing, &call, status);
        calls.finish(&mut Two { first: RpcVerbs::new(nic), second: rings, turn }, call, status);
    }

    /// Calls by this queue pair count as `client`'s: see [`remora_service::Clients`]. It has so many times the share of one of
    /// weight 1.
    pub fn assign(&mut self, qpn: Qpn, client: u32, weight: u32) {
        self.calls.assign(qpn, client);
        self.rings.set_weight(client, weight);
        self.runner.set_weight(client, weight);
    }

    /// Where links say what they will bring next: kernels on streams may ask for it.
    pub fn lookahead(&self) -> &Arc<Lookahead> {
        self.calls.streams().lookahead()
    }

    /// Op-codes that the kernels answer to.
    pub fn ops(&self) -> &[u64] {
        &self.ops
    }

    /// Starts waiting calls, feeds streams, runs all calls some steps, sends replies. Returns how much there was to do.
    pub(crate) fn progress(&mut self, now: Time, nic: &mut Nic) -> usize {
        if self.is_still(nic) {
            self.placing.iter_mut().for_each(|placing| placing.looked_at = None);
            return 0;
        }
        let mut work = 0;
        self.rings.begin_turn(now);
        self.placing.iter_mut().for_each(|placing| placing.look());
        self.start_waiting(now, nic);
        let alive = |qp| nic.qp_state(qp).is_ok_and(|state| !matches!(state, QpState::Err | QpState::Reset));
        self.calls.streams_mut().break_off(alive);
        for _ in 0..ROUNDS {
            self.feed(nic);
            if self.runner.in_flight() == 0 {
                break;
            }
            work += 1;
            self.run(nic);
            if self.runner.is_spent() {
                break;
            }
        }
        if work > 0 || self.at_host() > 0 {
            let Self { runner, calls, rings, turn, placing, .. } = self;
            let drop = |tag| {
                let Some(placing) = placing else { return runner.cancel(tag) };
                // The host drops what it runs, and hands it back.
                let dropped = !placing.placer.end_at_host(tag) && runner.cancel(tag);
                if dropped {
                    placing.placer.ended(tag, Status::Overdue, || placing.clock.now());
                }
                dropped
            };
            calls.end_overdue(now, &mut Two { first: RpcVerbs::new(nic), second: rings, turn }, drop);
        }
        if self.rings.wants_write() {
            work += rings::post(&mut self.rings, nic);
        }
        // A long message that is copied piece by piece.
        work += usize::from(self.rings.is_copying());
        while let Some(number) = self.rings.poll_released() {
            self.calls.release(number);
        }
        work
    }

    /// Whether nobody calls, as at most turns of a NIC.
    #[inline]
    fn is_still(&self, nic: &Nic) -> bool {
        let calls = nic.wants_rpc() || nic.wants_stream() || !self.calls.streams().is_empty();
        !calls && self.rings.is_still() && self.runner.in_flight() == 0 && self.at_host() == 0
    }

    /// Calls that the host runs for the NIC.
    #[inline]
    fn at_host(&self) -> usize {
        self.placing.as_ref().map_or(0, |placing| placing.placer.at_host())
    }

    /// Has kernels take what their streams brought, while it is in the cache and more packets are on their way. Only
    /// where no other calls run: those have their steps when all packets are in.
    #[inline]
    pub(crate) fn stream(&mut self, now: Time, nic: &mut Nic) {
        if nic.wants_rpc() {
            self.placing.iter_mut().for_each(|placing| placing.look());
        }
        self.start_waiting(now, nic);
        if self.runner.in_flight() <= self.calls.streams().len() && self.feed(nic) {
            self.run(nic);
        }
    }

    fn start_waiting(&mut self, now: Time, nic: &mut Nic) {
        let Self { runner, calls, rings, turn, placing, .. } = self;
        let mut ingress = Two { first: RpcVerbs::new(nic), second: rings, turn };
        while let Some(mut call) = calls.take(now, &mut ingress) {
            if let Some(placing) = placing {
                let came = placing.came;
                let Some(here) = placing.placer.place(call, || came) else { continue };
                call = here;
            }
            // There is room: the table has as many calls under way as the runner takes.
            if let Err(call) = runner.start(call) {
                ended(placing, &call, Status::Busy);
                calls.finish(&mut ingress, call, Status::Busy);
            }
        }
        if let Some(placing) = placing
            && placing.placer.wants_host()
        {
            placing.bell.ring();
        }
    }

    /// Opens a pair of rings: see [`rings::open`].
    pub(crate) fn open_rings(
        &mut self,
        nic: &mut Nic,
        qpn: Qpn,
        memory: &RingMemory,
        terms: (RingConfig, (u64, u32)),
    ) -> Result<u32, Error> {
        let client = self.calls.shares().client_of(qpn);
        rings::open(&mut self.rings, nic, (qpn, client), memory, terms, None)
    }

    /// Closes a pair of rings.
    pub(crate) fn close_rings(&mut self, ring: u32) {
        self.rings.close(ring);
        while let Some(number) = self.rings.poll_released() {
            self.calls.release(number);
        }
    }

    /// A client that wrote to its ring what none writes that keeps to the rules.
    pub(crate) fn ring_fault(&mut self) -> Option<RingFault> {
        self.rings.poll_fault()
    }

    /// Gives streams what came for them: the first whose kernel has not read all yet gets a copy, further such ones wait
    /// until it has run, and hold up no others. Returns whether one got something.
    fn feed(&mut self, nic: &mut Nic) -> bool {
        let (mut fed, streams) = (false, self.calls.streams_mut());
        loop {
            // A piece whose call is gone is dropped.
            let take =
                |chunk: &mut StreamChunk| streams.offer(chunk.id, &mut chunk.data, chunk.last, fed) != Offered::Later;
            let Some(chunk) = nic.poll_stream_of(take) else { return fed };
            fed = true;
            nic.recycle(chunk.data);
        }
    }

    /// Gives running kernels one more turn, whether there are any or not: the runner then forgets stale regions.
    pub(crate) fn refresh(&mut self, nic: &mut Nic) {
        self.run(nic);
    }

    fn run(&mut self, nic: &mut Nic) {
        let Self { runner, calls, rings, turn, placing, .. } = self;
        let mut ingress = Two { first: RpcVerbs::new(nic), second: rings, turn };
        runner.poll(&mut |call, status| {
            ended(placing, &call, status);
            calls.finish(&mut ingress, call, status);
        });
    }
}

/// A call has ended, of which who places calls may want to know.
#[inline]
fn ended(placing: &mut Option<Box<NodePlaces>>, call: &Call, status: Status) {
    if let Some(placing) = placing {
        let clock = placing.clock;
        placing.placer.ended(call.tag, status, || clock.now());
    }
}
