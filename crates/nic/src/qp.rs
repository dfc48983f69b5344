//! A queue pair: its states, its two halves, and what both share.

use remora_memory::{Binder, Pd};
use remora_wire::{Bth, Opcode};

use crate::arrival::Body;
use crate::attr::QpAttr;
use crate::congestion::Congestion;
use crate::ctx::Ctx;
use crate::met::Last;
use crate::queue::{RecvQueue, RecvWqe, SendQueue, Source, TxBatch};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::types::*;

/// Packets that one queue pair may send before the next one's turn.
pub(crate) const BURST: usize = 32;

/// Wrong keys of a peer's kernels that end its connection, as one does on the wire; a kernel may follow a pointer into
/// memory that has just been given back.
const WRONG_KEYS: u64 = 16;
/// How long it takes until one is forgiven, nanoseconds.
const FORGIVEN: Time = 60_000_000_000;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub qpn: Qpn,
    pub init: QpInit,
    pub state: QpState,
    pub attr: QpAttr,
    /// That of the address vector.
    pub route: Option<Route>,
    /// Bytes of payload in a packet: the path MTU, or for datagrams the port's.
    pub mtu: u32,
    pub sq: SendQueue,
    pub rq: RecvQueue,
    /// The receive that was last taken from its queue.
    pub recv: RecvWqe,
    /// It was taken for a message that came to nothing: the next one has it.
    pub recv_held: bool,
    pub req: Requester,
    pub resp: Responder,
    /// The peer keeps packets that come early, as this side does.
    pub peer_selective: bool,
    /// The peer acknowledges by itself what it is not to acknowledge at once.
    pub peer_patient: bool,
    /// What is known of congestion on its path, since there was any.
    pub congestion: Option<Box<Congestion>>,
    /// Packets of it have referred to their payload.
    pub referred: bool,
    /// Windows of type 2 may be bound to it.
    pub has_windows: bool,
    /// In the engine's list of queue pairs with something to send.
    pub active: bool,
    /// When the retransmission or RNR timer runs out.
    pub deadline: Option<Time>,
    /// The earliest entry for this queue pair in the engine's timer heap.
    pub timer_entry: Option<Time>,
    /// The region that sends last gathered from: most work requests use one over and over.
    pub local_region: Last,
    /// The region that the peer last named.
    pub remote_region: Last,
    /// By when all wrong keys of the peer's kernels are forgiven.
    wrong_until: Time,
}

impl QueuePair {
    /// A number that changes with each packet that only the peer can have sent.
    pub fn reached(&self) -> u64 {
        u64::from(self.resp.expected.get()) << 24 | u64::from(self.req.unacked.get())
    }

    pub fn new(qpn: Qpn, init: QpInit, port_mtu: u32) -> Self {
        let capacity = if init.srq.is_some() { 0 } else { init.max_recv_wr };
        Self {
            qpn,
            init,
            state: QpState::Reset,
            attr: QpAttr::default(),
            route: None,
            mtu: port_mtu,
            sq: SendQueue::new(init.max_send_wr, init.max_rpc, init.max_send_sge, init.max_inline),
            rq: RecvQueue::new(capacity, init.max_recv_sge),
            recv: RecvWqe::new(),
            recv_held: false,
            req: Requester::default(),
            resp: Responder::default(),
            peer_selective: false,
            peer_patient: false,
            congestion: None,
            referred: false,
            has_windows: false,
            active: false,
            deadline: None,
            timer_entry: None,
            local_region: None,
            remote_region: None,
            wrong_until: 0,
        }
    }

    pub fn pd(&self) -> Pd {
        self.init.pd
    }

    /// Who it is to memory windows.
    pub fn binder(&self) -> Binder {
        Binder { pd: self.init.pd, qp: self.qpn.0 }
    }

    /// Takes the next posted receive into `recv`. False if there is none.
    #[must_use]
    pub fn take_recv(&mut self, ctx: &mut Ctx) -> bool {
        if std::mem::take(&mut self.recv_held) {
            return true;
        }
        let Some(id) = self.init.srq else { return self.rq.pop_into(&mut self.recv) };
        let Some(Some(srq)) = ctx.srqs.get_mut(id.0 as usize) else { return false };
        let taken = srq.queue.pop_into(&mut self.recv);
        if srq.limit > 0 && srq.queue.len() < srq.limit {
            srq.limit = 0;
            ctx.events.push_back(Event::SrqLimit(id));
        }
        taken
    }

    /// The protection domain of its receives' buffers: a shared receive queue has its own.
    pub fn recv_pd(&self, ctx: &Ctx) -> Pd {
        let shared = self.init.srq.and_then(|id| ctx.srqs.get(id.0 as usize)?.as_ref());
        shared.map_or(self.init.pd, |srq| srq.pd)
    }

    /// Completes a receive.
    pub fn complete_recv(&mut self, ctx: &mut Ctx, wc: WorkCompletion, solicited: bool) {
        if !ctx.push_wc(self.init.recv_cq, wc, solicited) {
            self.fail(ctx, WcStatus::LocalQpOperation);
        }
    }

    /// Goes into the error state after an error of its own, and tells the world.
    pub fn fail(&mut self, ctx: &mut Ctx, why: WcStatus) {
        if self.state != QpState::Err {
            ctx.events.push_back(Event::QpFatal(self.qpn, why));
            self.enter_error(ctx);
        }
    }

    /// A kernel of the peer named memory that the peer may not reach.
    pub fn wrong_key(&mut self, ctx: &mut Ctx, now: Time) {
        self.wrong_until = self.wrong_until.max(now) + FORGIVEN;
        if self.wrong_until - now > WRONG_KEYS * FORGIVEN && self.receives() {
            ctx.events.push_back(Event::QpAccessError(self.qpn));
            self.resp.refuse_access();
            self.fail(ctx, WcStatus::RemoteAccess);
        }
    }

    /// Enters the error state: every posted request completes as flushed.
    pub fn enter_error(&mut self, ctx: &mut Ctx) {
        let news = std::mem::replace(&mut self.state, QpState::Err) != QpState::Err;
        self.congestion = None;
        self.deadline = None;
        self.req.stop();
        self.resp.stop();
        self.forget_early(ctx);
        self.flush(ctx);
        if news && self.init.srq.is_some() {
            ctx.events.push_back(Event::LastWqe(self.qpn));
        }
    }

    /// Gives back the room of all packets that came early.
    pub fn forget_early(&mut self, ctx: &mut Ctx) {
        self.req.early.clear(&mut ctx.reorder);
        self.resp.early.clear(&mut ctx.reorder);
    }

    /// Completes everything posted as flushed.
    pub fn flush(&mut self, ctx: &mut Ctx) {
        self.flush_sends(ctx);
        self.drop_message();
        if std::mem::take(&mut self.recv_held) {
            self.flush_recv(ctx);
        }
        while self.rq.pop_into(&mut self.recv) {
            self.flush_recv(ctx);
        }
        while let Some(call) = ctx.rpc.drop_waiting(self.qpn.0) {
            if let Some(wr_id) = call {
                let wc = self.wc(wr_id, WcStatus::Flushed, WcOpcode::LocalRpc, 0);
                ctx.push_wc(self.init.send_cq, wc, false);
            }
        }
    }

    /// Completes every posted send as flushed.
    pub fn flush_sends(&mut self, ctx: &mut Ctx) {
        while !self.sq.is_empty() {
            self.complete_send(ctx, WcStatus::Flushed, 0);
        }
    }

    fn flush_recv(&mut self, ctx: &mut Ctx) {
        let wc = self.wc(self.recv.wr_id, WcStatus::Flushed, WcOpcode::Recv, 0);
        // An overrun queue drops the completion: the queue pair is in error already.
        ctx.push_wc(self.init.recv_cq, wc, true);
    }

    /// A completion of this queue pair with the optional fields empty.
    pub fn wc(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode, byte_len: u32) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            status,
            opcode,
            byte_len,
            imm: None,
            invalidated: None,
            qpn: self.qpn,
            src_qp: 0,
            src: None,
        }
    }

    /// Payload of sends that have not completed may be referred to by packets that the peer has not taken: it is not to take them.
    pub fn take_all_back(&self, ctx: &Ctx) {
        (self.sq.head..self.sq.started).for_each(|at| self.take_back(ctx, at));
    }

    /// As [`take_all_back`](Self::take_all_back), of the send at this position.
    fn take_back(&self, ctx: &Ctx, at: u64) {
        let (wqe, sges, _) = self.sq.parts(at);
        if self.referred && !wqe.wants_response() {
            ctx.end_terms(sges);
        }
    }

    /// Removes the oldest send and reports it if it asks for that or failed.
    pub fn complete_send(&mut self, ctx: &mut Ctx, status: WcStatus, byte_len: u32) {
        let at = self.sq.head;
        if status != WcStatus::Success && at < self.sq.started {
            self.take_back(ctx, at);
        }
        self.sq.head += 1;
        self.sq.started = self.sq.started.max(self.sq.head);
        let halves = self.sq.get(at).has_stream;
        if halves && status != WcStatus::Success {
            // The call ends here: its payload stream, the next element, is part of the same work request.
            self.sq.head += 1;
            self.sq.started = self.sq.started.max(self.sq.head);
            self.sq.user -= 1;
        }
        let wqe = self.sq.get_mut(at);
        if wqe.source == Source::Buffer {
            ctx.rpc.recycle(std::mem::take(&mut wqe.buffer));
        }
        if wqe.source == Source::Reply {
            ctx.rpc.release_reply(self.qpn.0, wqe.len as usize);
            ctx.rpc.recycle(std::mem::take(&mut wqe.buffer));
            ctx.rpc.replied(self.qpn.0);
            return;
        }
        let opcode = match wqe.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::Write,
            SendOp::Read { .. } => WcOpcode::Read,
            SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
            SendOp::Bind(_) => WcOpcode::Bind,
            SendOp::Rpc { .. } | SendOp::RpcWrite { .. } => WcOpcode::Rpc,
        };
        self.sq.user -= 1;
        let wqe = self.sq.get(at);
        let (wr_id, report) =
            (wqe.wr_id, status != WcStatus::Success || !halves && (wqe.signaled || self.init.sq_sig_all));
        if report {
            let wc = self.wc(wr_id, status, opcode, byte_len);
            if !ctx.push_wc(self.init.send_cq, wc, false) {
                self.fail(ctx, WcStatus::LocalQpOperation);
            }
        }
    }

    /// When its timer runs out, or what is held back may go on.
    #[inline]
    pub fn next_timer(&self) -> Option<Time> {
        let wakes = self.congestion.as_ref().and_then(|congestion| congestion.wakes_at());
        match (self.deadline, wakes) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether packets of the peer are processed.
    pub fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether the send queue works.
    pub fn sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }
}

impl QueuePair {
    /// Whether it has something to send.
    pub(crate) fn has_work(&self) -> bool {
        match self.init.kind {
            QpType::Rc => match &self.congestion {
                None => self.response_ready() || self.request_ready(),
                Some(congestion) if congestion.has_news() => true,
                Some(congestion) if congestion.is_held() => self.answer_is_next(),
                Some(_) => self.response_ready() || self.request_ready(),
            },
            QpType::Uc => self.unreliable_ready(),
            QpType::Ud => self.datagram_route().is_some(),
        }
    }

    /// Sends one burst. Requests come before acknowledgements: the short ACK then ends a run of equal packets,
    /// which one segmented send can carry.
    pub(crate) fn emit(&mut self, ctx: &mut Ctx, now: Time, batch: &mut TxBatch) {
        match self.init.kind {
            QpType::Rc => {
                let Some(route) = self.route else { return };
                if !batch.accepts(route) {
                    return;
                }
                if self.congestion.is_some() {
                    self.emit_notification(ctx, batch);
                }
                let plain = self.emit_plain(ctx, now, batch, route);
                let most = if self.request_ready() { BURST } else { plain };
                for _ in plain..most {
                    if batch.is_full() || !self.may_send(now) || !self.emit_request(ctx, now, batch) {
                        break;
                    }
                    self.charge(now, batch.last_len());
                }
                let most = if self.response_ready() { BURST } else { 0 };
                for _ in 0..most {
                    let may_send = self.answer_is_next() || self.may_send(now);
                    if batch.is_full() || !may_send || !self.emit_response(ctx, batch) {
                        break;
                    }
                    self.charge(now, batch.last_len());
                }
            }
            QpType::Uc => {
                let Some(route) = self.route else { return };
                for _ in 0..BURST {
                    if !batch.accepts(route) || !self.emit_unreliable(ctx, batch) {
                        break;
                    }
                }
            }
            QpType::Ud => {
                for _ in 0..BURST {
                    match self.datagram_route() {
                        Some(route) if batch.accepts(route) => {
                            self.emit_datagram(ctx, batch);
                        }
                        _ => break,
                    }
                }
            }
        }
    }

    /// Whether its next packet is likely to be full.
    #[inline]
    pub(crate) fn has_long(&self) -> bool {
        let mtu = self.mtu;
        let at = self.req.cursor();
        let request = || at < self.sq.tail && self.sq.get(at).has_long(mtu);
        self.init.kind == QpType::Rc && (self.resp.has_long(mtu) || request())
    }

    /// A packet for a reliable connection, from its peer.
    pub(crate) fn handle_reliable(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, rest: &Body<'_>) {
        use Opcode::*;
        let is_response = matches!(
            bth.opcode,
            RcAck | RcAtomicAck | RcReadResponseFirst | RcReadResponseMiddle | RcReadResponseLast | RcReadResponseOnly
        );
        self.note_arrival(now, bth, is_response, rest);
        match is_response {
            true => {
                if self.sends() {
                    self.handle_response(ctx, now, bth, rest);
                    self.take_early_responses(ctx, now);
                }
            }
            false => self.handle_request(ctx, bth, rest),
        }
    }
}
