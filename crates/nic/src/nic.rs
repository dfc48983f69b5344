//! The engine: tables of queue pairs and queues, packets in, packets out, timers.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use remora_memory::{Access, Pd, Registry};
use remora_wire::rpc::RpcHeader;
use remora_wire::{Bth, ICRC_LEN, Psn, Service};

use crate::cm::CmConfig;
use crate::connect::{Management, QP1};
use crate::ctx::{Ctx, Srq};
use crate::post::{check_limit, push_recv};
use crate::qp::QueuePair;
use crate::queue::{Armed, CompletionQueue, RecvQueue, TxBatch};
use crate::rpc::{RpcRequest, RpcTable, StreamChunk, index_of};
use crate::timer::Timers;
use crate::types::*;

/// Sizes and identity of an engine.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Seeds packet and queue pair numbers. Take it from the system's entropy; a fixed one makes runs repeatable.
    pub seed: [u8; 32],
    /// Queue pairs that may live at once, at most 65,533.
    pub max_qp: u32,
    /// Pieces of payload streams that may wait for their kernels, over all queue pairs.
    pub max_stream_chunks: usize,
    /// The connection manager's limits and times.
    pub cm: CmConfig,
}

impl NicConfig {
    /// 16,384 queue pairs and 1,024 stream chunks.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed, max_qp: 16_384, max_stream_chunks: 1024, cm: CmConfig::default() }
    }
}

/// A RoCE v2 NIC as a pure state machine.
///
/// It reads no clock and owns no socket: the world passes the time and packets in and takes packets, completions and
/// events out. After any call that may have caused work, call [`Nic::poll_transmit`] until it returns false, arm a
/// timer for [`Nic::poll_timeout`], and take [`Nic::poll_event`], [`Nic::poll_rpc`] and [`Nic::poll_stream`].
pub struct Nic {
    qps: Vec<Slot>,
    free: VecDeque<u32>,
    live: u32,
    max_qp: u32,
    pub(crate) ctx: Ctx,
    active: VecDeque<u32>,
    timers: Timers,
    rng: ChaCha12Rng,
    pub(crate) management: Management,
    /// The last time that the world told.
    now: Time,
}

impl std::fmt::Debug for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nic").field("queue_pairs", &self.live).finish_non_exhaustive()
    }
}

/// A place in the queue pair table. The generation makes numbers of destroyed queue pairs stay unknown for long.
#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    used: bool,
    qp: Option<Box<QueuePair>>,
}

/// Table indices 0 and 1 are the management queue pairs' numbers.
const RESERVED_SLOTS: u32 = 2;

impl Nic {
    /// An engine over the regions of `registry`.
    pub fn new(config: &NicConfig, registry: Arc<Registry>) -> Self {
        let mut qps = Vec::new();
        qps.resize_with(RESERVED_SLOTS as usize, Slot::default);
        let mut rng = ChaCha12Rng::from_seed(config.seed);
        let management = Management::new(rng.next_u64(), Psn::new(rng.next_u32()), config.cm.clone());
        Self {
            qps,
            free: VecDeque::new(),
            live: 0,
            max_qp: config.max_qp.min(0x1_0000 - RESERVED_SLOTS),
            ctx: Ctx {
                registry,
                cqs: Vec::new(),
                srqs: Vec::new(),
                events: VecDeque::with_capacity(64),
                rpc: RpcTable::new(config.max_stream_chunks),
                counters: Counters::default(),
            },
            active: VecDeque::new(),
            timers: Timers::default(),
            rng,
            management,
            now: 0,
        }
    }

    // Getters.

    /// The regions that queue pairs of this engine reach.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.ctx.registry
    }

    /// Counts since the engine was made.
    pub fn counters(&self) -> Counters {
        self.ctx.counters
    }

    /// Live queue pairs.
    pub fn qp_count(&self) -> u32 {
        self.live
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Result<QpState, NicError> {
        Ok(self.qp(qpn)?.state)
    }

    /// What a queue pair was created with.
    pub fn qp_init(&self, qpn: Qpn) -> Result<QpInit, NicError> {
        Ok(self.qp(qpn)?.init)
    }

    /// The next PSNs of a queue pair: to be sent first, and to be received.
    pub fn qp_psns(&self, qpn: Qpn) -> Result<(Psn, Psn), NicError> {
        let qp = self.qp(qpn)?;
        Ok((qp.req.next_psn(), qp.resp.expected_psn()))
    }

    /// Sends posted on a queue pair and not complete, kernels' replies included.
    pub fn sends_outstanding(&self, qpn: Qpn) -> Result<u64, NicError> {
        let qp = self.qp(qpn)?;
        Ok(qp.sq.tail - qp.sq.head)
    }

    /// A PSN to start with, unknown to anyone outside.
    pub fn random_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32())
    }

    fn qp(&self, qpn: Qpn) -> Result<&QueuePair, NicError> {
        self.qps
            .get(index_of(qpn.0))
            .and_then(|slot| slot.qp.as_deref())
            .filter(|qp| qp.qpn == qpn)
            .ok_or(NicError::NoSuch("queue pair"))
    }

    /// Runs `f` on a queue pair; whatever it made ready to send or set as a deadline is noted.
    fn with_qp<R>(&mut self, qpn: Qpn, f: impl FnOnce(&mut QueuePair, &mut Ctx) -> R) -> Result<R, NicError> {
        let qp = self
            .qps
            .get_mut(index_of(qpn.0))
            .and_then(|slot| slot.qp.as_deref_mut())
            .filter(|qp| qp.qpn == qpn)
            .ok_or(NicError::NoSuch("queue pair"))?;
        let result = f(qp, &mut self.ctx);
        if !qp.active && qp.has_work() {
            qp.active = true;
            self.active.push_back(qpn.0);
        }
        self.timers.update(qp);
        Ok(result)
    }

    // Completion queues.

    /// A completion queue for `capacity` completions.
    pub fn create_cq(&mut self, capacity: u32) -> CqId {
        let queue = Some(CompletionQueue::new(capacity.max(1)));
        CqId(place(&mut self.ctx.cqs, queue))
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), NicError> {
        if self.cq(cq)?.users > 0 {
            return Err(NicError::InUse("completion queue"));
        }
        self.ctx.cqs[cq.0 as usize] = None;
        Ok(())
    }

    fn cq(&mut self, cq: CqId) -> Result<&mut CompletionQueue, NicError> {
        self.ctx.cqs.get_mut(cq.0 as usize).and_then(Option::as_mut).ok_or(NicError::NoSuch("completion queue"))
    }

    /// Takes the oldest completion.
    pub fn poll_cq(&mut self, cq: CqId) -> Option<WorkCompletion> {
        self.cq(cq).ok()?.ring.pop_front()
    }

    /// Completions waiting.
    pub fn cq_len(&self, cq: CqId) -> usize {
        self.ctx.cqs.get(cq.0 as usize).and_then(Option::as_ref).map_or(0, |queue| queue.ring.len())
    }

    /// Raises one [`Event::Completion`] at the next completion, or only at the next solicited or failed one.
    /// Completions already there raise none: poll once more after arming.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), NicError> {
        let queue = self.cq(cq)?;
        queue.armed = match (queue.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        Ok(())
    }

    // Shared receive queues.

    /// A shared receive queue.
    pub fn create_srq(&mut self, pd: Pd, capacity: u32, max_sge: u32) -> Result<SrqId, NicError> {
        check_limit("receive scatter-gather elements", max_sge.into(), MAX_SGE.into())?;
        check_limit("receive work requests", capacity.into(), 1 << 20)?;
        let srq = Srq { queue: RecvQueue::new(capacity, max_sge), pd, limit: 0, users: 0 };
        Ok(SrqId(place(&mut self.ctx.srqs, Some(srq))))
    }

    fn srq(&mut self, srq: SrqId) -> Result<&mut Srq, NicError> {
        self.ctx.srqs.get_mut(srq.0 as usize).and_then(Option::as_mut).ok_or(NicError::NoSuch("shared receive queue"))
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), NicError> {
        if self.srq(srq)?.users > 0 {
            return Err(NicError::InUse("shared receive queue"));
        }
        self.ctx.srqs[srq.0 as usize] = None;
        Ok(())
    }

    /// Raises one [`Event::SrqLimit`] when fewer than `limit` receives are left.
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), NicError> {
        self.srq(srq)?.limit = limit;
        Ok(())
    }

    /// Posts a receive for whichever queue pair needs one first.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr_id: u64, sges: &[Sge]) -> Result<(), NicError> {
        push_recv(&mut self.srq(srq)?.queue, wr_id, sges)
    }

    // Queue pairs.

    /// A queue pair in state RESET.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, NicError> {
        check_limit("receive scatter-gather elements", init.max_recv_sge.into(), MAX_SGE.into())?;
        check_limit("send scatter-gather elements", init.max_send_sge.into(), MAX_SGE.into())?;
        check_limit("send work requests", init.max_send_wr.into(), 1 << 16)?;
        check_limit("receive work requests", init.max_recv_wr.into(), 1 << 16)?;
        check_limit("kernel calls", init.max_rpc.into(), 1 << 16)?;
        check_limit("inline bytes", init.max_inline.into(), MAX_INLINE.into())?;
        if self.live >= self.max_qp {
            return Err(NicError::Exhausted("queue pair"));
        }
        self.cq(init.send_cq)?;
        self.cq(init.recv_cq)?;
        if let Some(srq) = init.srq {
            self.srq(srq)?.users += 1;
        }
        self.cq(init.send_cq)?.users += 1;
        self.cq(init.recv_cq)?.users += 1;
        // The oldest free slot, so that a number comes back as late as possible.
        let index = match self.free.len() as u32 + self.live < self.max_qp {
            true => {
                self.qps.push(Slot::default());
                self.qps.len() as u32 - 1
            }
            false => self.free.pop_front().ok_or(NicError::Exhausted("queue pair"))?,
        };
        let slot = &mut self.qps[index as usize];
        // Starts anywhere, so that a program that starts again does not come with the numbers it had before.
        slot.generation = match slot.used {
            true => slot.generation.wrapping_add(1),
            false => self.rng.next_u32() as u8,
        };
        slot.used = true;
        let qpn = Qpn(u32::from(slot.generation) << 16 | index);
        slot.qp = Some(Box::new(QueuePair::new(qpn, init)));
        self.live += 1;
        self.ctx.rpc.open(qpn.0, init.max_rpc);
        Ok(qpn)
    }

    /// Destroys a queue pair. Requests still posted vanish without completions.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), NicError> {
        let (init, has_windows) = (self.qp(qpn)?.init, self.qp(qpn)?.has_windows);
        if has_windows {
            self.ctx.registry.unbind_windows(qpn.0);
        }
        while self.ctx.rpc.drop_waiting(qpn.0).is_some() {}
        self.qps[index_of(qpn.0)].qp = None;
        self.free.push_back(index_of(qpn.0) as u32);
        self.live -= 1;
        self.cq(init.send_cq)?.users -= 1;
        self.cq(init.recv_cq)?.users -= 1;
        if let Some(srq) = init.srq {
            self.srq(srq)?.users -= 1;
        }
        Ok(())
    }

    /// RESET to INIT, with the rights that the peer has through this queue pair and, for UD, the queue key.
    pub fn to_init(&mut self, qpn: Qpn, access: Access, qkey: u32) -> Result<(), NicError> {
        self.transition(qpn, QpState::Init, &[QpState::Reset, QpState::Init], |qp, _| {
            qp.access = access;
            qp.qkey = qkey;
        })
    }

    /// INIT to RTR.
    pub fn to_rtr(&mut self, qpn: Qpn, attr: RtrAttr) -> Result<(), NicError> {
        if !matches!(attr.path_mtu, 256 | 512 | 1024 | 1408 | 2048 | 4096) {
            let (value, allowed) = (attr.path_mtu.into(), "use 256, 512, 1024, 2048 or 4096 (or StRoM's 1408)");
            return Err(NicError::Attribute { what: "the path MTU", value, allowed });
        }
        check_limit("the RNR timer code", attr.min_rnr_timer.into(), 31)?;
        self.transition(qpn, QpState::Rtr, &[QpState::Init], |qp, _| {
            qp.route = Some(attr.route);
            qp.dest_qp = attr.dest_qp & 0xff_ffff;
            qp.mtu = attr.path_mtu;
            qp.min_rnr_timer = attr.min_rnr_timer;
            qp.resp.start(attr.rq_psn, attr.max_dest_rd_atomic);
        })
    }

    /// RTR to RTS; or SQD or SQE back to RTS, for which the attributes are ignored.
    pub fn to_rts(&mut self, qpn: Qpn, attr: RtsAttr) -> Result<(), NicError> {
        check_limit("the ACK timeout code", attr.timeout.into(), 31)?;
        check_limit("the retry count", attr.retry_count.max(attr.rnr_retry).into(), 7)?;
        let from = self.qp(qpn)?.state;
        self.transition(qpn, QpState::Rts, &[QpState::Rtr, QpState::Sqd, QpState::Sqe], |qp, _| match from {
            QpState::Rtr => qp.req.start(attr),
            QpState::Sqe => qp.req.skip_to(qp.sq.head),
            _ => {}
        })
    }

    /// RTS to SQD: started sends finish, then [`Event::SqDrained`].
    pub fn to_sqd(&mut self, qpn: Qpn) -> Result<(), NicError> {
        self.transition(qpn, QpState::Sqd, &[QpState::Rts], |qp, ctx| {
            qp.req.set_draining();
            qp.state = QpState::Sqd;
            qp.after_completion(ctx);
        })
    }

    /// Any state to ERR: everything posted completes as flushed.
    pub fn to_error(&mut self, qpn: Qpn) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| qp.enter_error(ctx))
    }

    /// Any state to RESET: everything posted vanishes, and windows of type 2 that it has bound are unbound.
    pub fn to_reset(&mut self, qpn: Qpn) -> Result<(), NicError> {
        let slot = &mut self.qps[index_of(qpn.0)];
        let Some(qp) = slot.qp.as_deref_mut().filter(|qp| qp.qpn == qpn) else {
            return Err(NicError::NoSuch("queue pair"));
        };
        let (active, entry, max_rpc) = (qp.active, qp.timer_entry, qp.init.max_rpc);
        if qp.has_windows {
            self.ctx.registry.unbind_windows(qpn.0);
        }
        *qp = QueuePair::new(qpn, qp.init);
        (qp.active, qp.timer_entry) = (active, entry);
        while self.ctx.rpc.drop_waiting(qpn.0).is_some() {}
        // Replies to calls from before go nowhere.
        self.ctx.rpc.open(qpn.0, max_rpc);
        Ok(())
    }

    fn transition(
        &mut self,
        qpn: Qpn,
        to: QpState,
        allowed: &[QpState],
        f: impl FnOnce(&mut QueuePair, &mut Ctx),
    ) -> Result<(), NicError> {
        let from = self.qp(qpn)?.state;
        if !allowed.contains(&from) {
            return Err(NicError::Transition { from, to });
        }
        self.with_qp(qpn, |qp, ctx| {
            qp.state = to;
            f(qp, ctx);
        })
    }

    // Posting.

    /// Posts a send. In ERR and SQE it completes as flushed.
    #[inline]
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| qp.post_send(ctx, wr))?
    }

    /// Posts a receive. In ERR it completes as flushed.
    pub fn post_recv(&mut self, qpn: Qpn, wr_id: u64, sges: &[Sge]) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| {
            if qp.init.srq.is_some() {
                return Err(NicError::Unsupported("the queue pair takes its receives from a shared receive queue"));
            }
            if qp.state == QpState::Reset {
                return Err(NicError::State(qp.state));
            }
            push_recv(&mut qp.rq, wr_id, sges)?;
            if qp.state == QpState::Err {
                qp.flush(ctx);
            }
            Ok(())
        })?
    }

    /// Calls the kernel `op` at the peer (StRoM listing 5, `postRpc`). `params` are the bytes after the RPC header.
    /// The reply comes as a WRITE with immediate into `header.reply_va`: post a receive for it.
    pub fn post_rpc(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        op: u64,
        header: &RpcHeader,
        params: &[u8],
    ) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| qp.post_rpc(ctx, wr_id, op, header, params))?
    }

    /// Calls the kernel `op` at the peer with a payload stream behind the parameters (`postRpcWrite`).
    /// Up to 2 GB; the buffer belongs to the NIC until the work request completes.
    pub fn post_rpc_write(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        op: u64,
        header: &RpcHeader,
        params: &[u8],
        payload: &[Sge],
    ) -> Result<(), NicError> {
        let header = RpcHeader { flags: header.flags | remora_wire::rpc::FLAG_STREAM, ..*header };
        self.with_qp(qpn, |qp, ctx| {
            if qp.sq.user + 2 > qp.sq.max_user {
                return Err(NicError::Full);
            }
            // Checked before the parameters go: half a call would leave the peer waiting for its stream.
            qp.check_post(&SendWr::new(wr_id, SendOp::RpcWrite { op }, Data::List(payload)))?;
            if qp.state != QpState::Err {
                qp.post_rpc_wr(ctx, wr_id, op, &header, params, true)?;
            }
            qp.post_send(ctx, &SendWr::new(wr_id, SendOp::RpcWrite { op }, Data::List(payload)))
        })?
    }

    /// Calls the kernel `op` of this NIC (StRoM section 5.2): it sees the memory of the queue pair's protection
    /// domain, and its reply lands at `header.reply_va` of the local region `header.reply_rkey`.
    /// Completes as [`WcOpcode::LocalRpc`] on the send queue.
    pub fn post_local_rpc(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        op: u64,
        header: &RpcHeader,
        params: &[u8],
    ) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| {
            if matches!(qp.state, QpState::Reset | QpState::Err) {
                return Err(NicError::State(qp.state));
            }
            if !ctx.rpc.has_room(qpn.0, qp.init.max_rpc) {
                return Err(NicError::Full);
            }
            qp.accept_rpc(ctx, op, *header, params, Some(wr_id));
            Ok(())
        })?
    }

    // Kernels.

    /// From now on calls with this op-code go to [`Nic::poll_rpc`] as kernel calls.
    pub fn deploy(&mut self, op: u64) {
        self.ctx.rpc.deploy(op);
    }

    /// From now on calls with this op-code are unknown.
    pub fn undeploy(&mut self, op: u64) {
        self.ctx.rpc.remove(op);
    }

    /// Whether calls with unknown op-codes go to the host ([`RpcRequest::fallback`]) instead of being refused.
    pub fn set_fallback(&mut self, on: bool) {
        self.ctx.rpc.fallback = on;
    }

    /// The next call to run, one queue pair after the other. Leave calls here while there is no room to run them:
    /// when a queue pair's share is used up, its peer gets RNR NAKs.
    pub fn poll_rpc(&mut self) -> Option<RpcRequest> {
        self.ctx.rpc.poll()
    }

    /// The next piece of a payload stream. Give its bytes back with [`Nic::recycle`].
    pub fn poll_stream(&mut self) -> Option<StreamChunk> {
        self.ctx.rpc.poll_chunk()
    }

    /// Takes back a buffer that the engine handed out.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.ctx.rpc.recycle(buffer);
    }

    /// Ends a call: its `reply` goes to the caller with the status (see [`remora_wire::rpc::RpcStatus`]).
    pub fn rpc_reply(&mut self, request: RpcRequest, status: u8) {
        let RpcRequest { qpn, id, local, wr_id, params, reply, header, .. } = request;
        self.ctx.rpc.recycle(params);
        if !self.ctx.rpc.is_current(qpn, id) {
            return self.ctx.rpc.recycle(reply);
        }
        // A queue pair that is gone wants no reply.
        let _ = self.with_qp(Qpn(qpn), |qp, ctx| match local {
            true => qp.finish_local(ctx, wr_id, header, status, reply),
            false => qp.push_reply(ctx, header, status, reply),
        });
    }

    // Packets and time.

    /// A packet from `src` that arrived at `dst` by `link`: BTH to ICRC. The link has checked the ICRC, or has none.
    pub fn handle_packet(&mut self, now: Time, link: u8, src: IpAddr, dst: IpAddr, packet: &[u8]) {
        self.now = now;
        self.ctx.counters.rx_packets += 1;
        self.ctx.counters.rx_bytes += packet.len() as u64;
        if self.dispatch(now, link, src, dst, packet).is_none() {
            self.ctx.counters.dropped += 1;
        }
    }

    /// `None` if nobody wants the packet.
    fn dispatch(&mut self, now: Time, link: u8, src: IpAddr, dst: IpAddr, packet: &[u8]) -> Option<()> {
        let bth = Bth::parse(packet).ok()?;
        let end = packet.len().checked_sub(ICRC_LEN + usize::from(bth.pad))?;
        let rest = packet.get(Bth::LEN..end)?;
        let op = bth.opcode;
        // Extension headers are complete; parsers below can rely on it.
        if op.header_len() > end || bth.version != 0 || bth.pkey & 0x7fff != 0x7fff {
            return None;
        }
        if op.service() == Service::Cnp {
            self.ctx.counters.cnps += 1;
            return Some(());
        }
        if bth.dest_qp == QP1 {
            let taken = self.management.handle(now, link, (src, dst), &bth, rest);
            self.pump_cm();
            return taken.then_some(());
        }
        let qpn = Qpn(bth.dest_qp);
        let wanted = self.with_qp(qpn, |qp, ctx| {
            if !qp.receives() {
                return false;
            }
            let from_peer = qp.route == Some(Route { local: dst, remote: src, link });
            match (qp.init.kind, op.service()) {
                (QpType::Ud, Service::Ud) => return qp.handle_datagram(ctx, &bth, rest, src, dst),
                (QpType::Rc, Service::Rc | Service::Rpc) if from_peer => qp.handle_reliable(ctx, now, &bth, rest),
                (QpType::Uc, Service::Uc) if from_peer => qp.handle_unreliable(ctx, &bth, rest),
                _ => return false,
            }
            true
        });
        matches!(wanted, Ok(true)).then_some(())
    }

    /// Fills `batch` with packets for one destination. False if there was nothing to send.
    /// The last four bytes of each are zero, for the link to put the ICRC in.
    pub fn poll_transmit(&mut self, now: Time, batch: &mut TxBatch) -> bool {
        batch.clear();
        self.management.emit(batch);
        if !batch.is_empty() {
            return true;
        }
        for _ in 0..self.active.len() {
            if batch.is_full() {
                break;
            }
            let Some(qpn) = self.active.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(index_of(qpn)).and_then(|slot| slot.qp.as_deref_mut()) else { continue };
            if qp.qpn.0 != qpn {
                continue;
            }
            qp.emit(&mut self.ctx, now, batch);
            qp.active = qp.has_work();
            if qp.active {
                self.active.push_back(qpn);
            }
            self.timers.update(qp);
        }
        !batch.is_empty()
    }

    /// When [`Nic::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        match (self.timers.next(), self.management.cm.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((entry, qpn)) = self.timers.pop(now) {
            let _ = self.with_qp(Qpn(qpn), |qp, ctx| {
                if qp.timer_entry == Some(entry) {
                    qp.timer_entry = None;
                }
                if qp.deadline.is_some_and(|deadline| deadline <= now) {
                    qp.handle_qp_timeout(ctx, now);
                }
            });
        }
        let Self { timers, qps, live, .. } = self;
        timers.prune(2 * *live as usize + 64, |time, qpn| {
            let qp = qps.get(index_of(qpn)).and_then(|slot| slot.qp.as_deref());
            qp.is_some_and(|qp| qp.qpn.0 == qpn && qp.timer_entry == Some(time))
        });
        self.management.cm.handle_timeout(now);
        self.pump_cm();
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.pump_cm();
        let event = self.ctx.events.pop_front()?;
        if let Event::Established(qpn) = event {
            self.management.cm.mark_established(self.now, qpn.0);
        }
        Some(event)
    }

    /// Whether a packet waits to be sent.
    pub fn wants_transmit(&self) -> bool {
        !self.active.is_empty() || self.management.cm.wants_transmit()
    }

    /// Whether a kernel call waits.
    pub fn wants_rpc(&self) -> bool {
        self.ctx.rpc.waiting()
    }
}

/// Puts `item` into the first free place.
fn place<T>(table: &mut Vec<Option<T>>, item: Option<T>) -> u32 {
    let index = table.iter().position(Option::is_none).unwrap_or_else(|| {
        table.push(None);
        table.len() - 1
    });
    table[index] = item;
    index as u32
}
