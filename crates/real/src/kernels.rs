//! Kernels on the NIC: calls from the engine into the task pool, replies back.

use std::collections::HashMap;
use std::sync::Arc;

use remora_kernel::{Call, Feed, Limits, Runner, op};
use remora_memory::{Lookahead, Registry};
use remora_nic::{Nic, QpState, Qpn, RpcRequest, StreamChunk};
use remora_wasm::KernelSet;

/// Kernel calls that run at once on a NIC: RAMBDA's table of outstanding requests.
pub const POOL: usize = 256;
/// Bytes of a payload stream that may wait for their kernel.
const STREAM_BUFFER: usize = 256 << 10;
/// Steps that each call makes in one go. Enough for a look-up; a long one does not hold up the packets of others.
pub(crate) const ROUNDS: usize = 4;

/// The kernels of a NIC and the calls that run.
pub struct Kernels {
    runner: Box<dyn Runner + Send>,
    ops: Vec<u64>,
    /// The call with tag `n` answers request `n`.
    requests: Vec<Option<RpcRequest>>,
    free: Vec<u32>,
    spare: Vec<Call>,
    /// Payload streams that have not come to their end, by the call's id.
    feeds: HashMap<u64, Input>,
    /// A piece of a stream whose kernel has not caught up.
    chunk: Option<StreamChunk>,
    ended: Vec<(RpcRequest, u8)>,
    lookahead: Arc<Lookahead>,
}

/// A payload stream on its way in.
struct Input {
    qp: Qpn,
    /// `None` once the kernel has ended: what still comes is dropped.
    feed: Option<Feed>,
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

    /// Any kernels: a runner, and the op-codes it knows.
    pub fn new(runner: Box<dyn Runner + Send>, ops: Vec<u64>) -> Self {
        let capacity = runner.capacity();
        Self {
            runner,
            ops,
            requests: (0..capacity).map(|_| None).collect(),
            free: (0..capacity as u32).rev().collect(),
            spare: Vec::with_capacity(capacity),
            feeds: HashMap::new(),
            chunk: None,
            ended: Vec::with_capacity(capacity),
            lookahead: Arc::default(),
        }
    }

    /// Where links say what they will bring next: kernels on streams may ask for it.
    pub fn lookahead(&self) -> &Arc<Lookahead> {
        &self.lookahead
    }

    /// Op-codes that the kernels answer to.
    pub fn ops(&self) -> &[u64] {
        &self.ops
    }

    /// Starts waiting calls, feeds streams, runs all calls some steps, sends replies. Returns how much there was to do.
    pub(crate) fn progress(&mut self, nic: &mut Nic) -> usize {
        let mut work = 0;
        self.start_waiting(nic);
        self.break_off(nic);
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
        if self.runner.in_flight() <= self.feeds.len() && self.feed(nic) {
            self.run(nic);
        }
    }

    fn start_waiting(&mut self, nic: &mut Nic) {
        while nic.wants_rpc()
            && let Some(index) = self.free.pop()
        {
            match nic.poll_rpc() {
                Some(request) => self.start(nic, request, index),
                None => self.free.push(index),
            }
        }
    }

    fn start(&mut self, nic: &Nic, mut request: RpcRequest, index: u32) {
        let mut call = self.spare.pop().unwrap_or_default();
        call.recycle(request.op, request.reply_capacity());
        call.tag = index.into();
        call.qpn = request.qpn;
        call.pd = nic.qp_init(request.qp()).ok().map(|init| init.pd);
        std::mem::swap(&mut call.params, &mut request.params);
        std::mem::swap(&mut call.reply, &mut request.reply);
        if request.stream {
            let feed = Some(call.open_stream(STREAM_BUFFER));
            call.stream().look_ahead(self.lookahead.clone());
            self.feeds.insert(request.id, Input { qp: request.qp(), feed });
        }
        self.requests[index as usize] = Some(request);
        // There is room: as many tags exist as the runner takes.
        if let Err(call) = self.runner.start(call) {
            self.spare.push(call);
        }
    }

    /// Breaks off the streams of lost connections: their kernels would wait for ever.
    fn break_off(&mut self, nic: &Nic) {
        if !self.feeds.is_empty() {
            let alive = |qp| nic.qp_state(qp).is_ok_and(|state| !matches!(state, QpState::Err | QpState::Reset));
            self.feeds.retain(|_, input| alive(input.qp));
        }
    }

    /// Gives streams what came for them: the first whose kernel has not read all yet gets a copy, further such ones wait
    /// until it has run. Returns whether one got something.
    fn feed(&mut self, nic: &mut Nic) -> bool {
        let mut fed = false;
        while let Some(mut chunk) = self.chunk.take().or_else(|| nic.poll_stream()) {
            let taken = match self.feeds.get_mut(&chunk.id) {
                Some(Input { feed: Some(feed), .. }) if fed && !feed.is_empty() => false,
                Some(Input { feed, .. }) => feed.as_mut().is_none_or(|feed| feed.give(&mut chunk.data, chunk.last)),
                // Its call may wait for room in the pool. If none does, it is gone.
                None => !nic.wants_rpc(),
            };
            if !taken {
                self.chunk = Some(chunk);
                return fed;
            }
            fed = true;
            if chunk.last {
                self.feeds.remove(&chunk.id);
            }
            nic.recycle(chunk.data);
        }
        fed
    }

    /// Gives running kernels one more turn, whether there are any or not: the runner then forgets stale regions.
    pub(crate) fn refresh(&mut self, nic: &mut Nic) {
        self.run(nic);
    }

    fn run(&mut self, nic: &mut Nic) {
        let Self { runner, requests, free, spare, feeds, ended, .. } = self;
        runner.poll(&mut |mut call, status| {
            let index = call.tag as usize;
            if let Some(mut request) = requests[index].take() {
                std::mem::swap(&mut call.params, &mut request.params);
                std::mem::swap(&mut call.reply, &mut request.reply);
                if let Some(input) = feeds.get_mut(&request.id) {
                    input.feed = None;
                }
                ended.push((request, status.code()));
                free.push(index as u32);
            }
            spare.push(call);
        });
        for (mut request, status) in ended.drain(..) {
            // Only a whole reply is worth sending.
            if status != 0 {
                request.reply.clear();
            }
            nic.rpc_reply(request, status);
        }
    }
}
