//! Kernels on the NIC: calls from the engine into the task pool, replies back.

use std::sync::Arc;

use remora_kernel::{Limits, Runner, Status, op};
use remora_memory::{Lookahead, Registry};
use remora_nic::{Nic, QpState, RpcRequest, StreamChunk};
use remora_service::{CallTable, Ingress, Offered, RpcVerbs};
use remora_wasm::KernelSet;

/// Kernel calls that run at once on a NIC: RAMBDA's table of outstanding requests has half as many, and here one client
/// alone has half.
pub const POOL: usize = 512;
/// Steps that each call makes in one go. Enough for a look-up; a long one does not hold up the packets of others.
pub(crate) const ROUNDS: usize = 4;

/// The kernels of a NIC and the calls that run.
pub struct Kernels {
    runner: Box<dyn Runner + Send>,
    ops: Vec<u64>,
    calls: CallTable<RpcRequest>,
    /// A piece of a stream whose kernel has not caught up.
    chunk: Option<StreamChunk>,
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
        Self { runner, ops, calls, chunk: None }
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
    pub(crate) fn progress(&mut self, nic: &mut Nic) -> usize {
        let mut work = 0;
        self.start_waiting(nic);
        let alive = |qp| nic.qp_state(qp).is_ok_and(|state| !matches!(state, QpState::Err | QpState::Reset));
        self.calls.streams_mut().break_off(alive);
        for _ in 0..ROUNDS {
            self.feed(nic);
            if self.runner.in_flight() == 0 {
                break;
            }
            work += 1;
            self.run(nic);
        }
        work
    }

    /// Has kernels take what their streams brought, while it is in the cache and more packets are on their way. Only
    /// where no other calls run: those have their steps when all packets are in.
    #[inline]
    pub(crate) fn stream(&mut self, nic: &mut Nic) {
        self.start_waiting(nic);
        if self.runner.in_flight() <= self.calls.streams().len() && self.feed(nic) {
            self.run(nic);
        }
    }

    fn start_waiting(&mut self, nic: &mut Nic) {
        let mut ingress = RpcVerbs::new(nic);
        while let Some(call) = self.calls.take(&mut ingress) {
            // There is room: the calls has as many calls under way as the runner takes.
            if let Err(call) = self.runner.start(call) {
                self.calls.finish(&mut ingress, call, Status::Busy);
            }
        }
    }

    /// Gives streams what came for them: the first whose kernel has not read all yet gets a copy, further such ones wait
    /// until it has run. Returns whether one got something.
    fn feed(&mut self, nic: &mut Nic) -> bool {
        let mut fed = false;
        while let Some(mut chunk) = self.chunk.take().or_else(|| nic.poll_stream()) {
            let later = match self.calls.streams_mut().offer(chunk.id, &mut chunk.data, chunk.last, fed) {
                Offered::Taken => false,
                Offered::Later => true,
                // Its call may wait for room in the pool. If none does, it is gone.
                Offered::Unknown => RpcVerbs::new(nic).is_waiting(),
            };
            if later {
                self.chunk = Some(chunk);
                return fed;
            }
            fed = true;
            nic.recycle(chunk.data);
        }
        fed
    }

    /// Gives running kernels one more turn, whether there are any or not: the runner then forgets stale regions.
    pub(crate) fn refresh(&mut self, nic: &mut Nic) {
        self.run(nic);
    }

    fn run(&mut self, nic: &mut Nic) {
        let Self { runner, calls, .. } = self;
        let mut ingress = RpcVerbs::new(nic);
        runner.poll(&mut |call, status| calls.finish(&mut ingress, call, status));
    }
}
