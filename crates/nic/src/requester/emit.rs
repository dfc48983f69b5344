//! Sends requests: which packet is next, and what is in it.

use remora_wire::{AtomicEth, Bth, Ieth, ImmDt, Opcode, Psn, Reth};

use super::{ACK_EVERY, CAUTIOUS, FEW, MOST_OUTSTANDING};
use crate::ctx::Ctx;
use crate::packet::{Writer, pad_of};
use crate::qp::QueuePair;
use crate::queue::{SendWqe, Source, TxBatch, run_packets};
use crate::reorder::WINDOW;
use crate::selective::{Again, LATER, RESUME, SELECTIVE};
use crate::types::*;
use crate::uc::unreliable;

impl QueuePair {
    /// Whether the requester could send a packet now.
    #[inline]
    pub(crate) fn request_ready(&self) -> bool {
        // Nothing is left.
        if self.req.cursor == self.sq.tail && self.req.selective.is_none() {
            return false;
        }
        self.request_is_due()
    }

    fn request_is_due(&self) -> bool {
        if !self.sends() || self.req.rnr_wait {
            return false;
        }
        if self.req.selective.as_ref().is_some_and(|losses| losses.is_due()) {
            return true;
        }
        if self.req.fault.is_some_and(|(at, _)| at == self.req.cursor) {
            return false;
        }
        let next = if self.req.cursor < self.sq.started {
            self.resume_psn()
        } else {
            if self.sq.started == self.sq.tail || self.state == QpState::Sqd {
                return false;
            }
            let wqe = self.sq.get(self.sq.started);
            if wqe.is_local() {
                return self.sq.started == self.sq.head;
            }
            if wqe.fence && self.req.rd_atomics > 0 {
                return false;
            }
            if wqe.wants_response() && self.req.rd_atomics >= self.req.max_rd_atomic {
                return false;
            }
            // A long READ can take all PSNs that may be outstanding.
            let outstanding = self.req.next_psn.distance(self.req.unacked) as u32;
            // Where packets get lost, no more of a response than can be kept behind one that did.
            let most = if self.req.selective.is_some() && wqe.wants_response() { WINDOW } else { MOST_OUTSTANDING };
            if outstanding > 0 && outstanding.saturating_add(self.psns_of(wqe)) > most {
                return false;
            }
            self.req.next_psn
        };
        (0..self.window() as i32).contains(&next.distance(self.req.unacked))
    }

    /// PSNs that may be outstanding.
    pub(super) fn window(&self) -> u32 {
        if self.req.cautious { CAUTIOUS } else { WINDOW }
    }

    pub(super) fn resume_psn(&self) -> Psn {
        self.sq.get(self.req.cursor).first_psn + self.req.packet
    }

    /// Builds the next request packet into `batch`. False if there is nothing to send.
    pub(crate) fn emit_request(&mut self, ctx: &mut Ctx, now: Time, batch: &mut TxBatch) -> bool {
        if !self.request_ready() {
            return false;
        }
        if self.req.selective.is_some() {
            if self.emit_again(ctx, now, batch) {
                if self.deadline.is_none() {
                    self.arm(now);
                }
                return true;
            }
            if !self.request_ready() {
                return false;
            }
        }
        while self.local_is_next() {
            if let Err(status) = self.run_local(ctx) {
                self.fail_head(ctx, status);
            }
            if !self.request_ready() {
                return false;
            }
        }
        if self.req.cursor == self.sq.started {
            self.start_element();
        }
        let (psn, before) = (self.resume_psn(), self.req.sent_psn);
        let psns = match self.build_request(ctx, batch) {
            Ok(psns) => psns,
            Err(status) => {
                self.req.fault = Some((self.req.cursor, status));
                self.after_completion(ctx);
                return self.ask_for_ack() && self.emit_request(ctx, now, batch);
            }
        };
        if let Some(losses) = &mut self.req.selective {
            losses.note_sent(now, psn, psns, psn.distance(before) < 0);
        }
        if self.deadline.is_none() {
            self.arm(now);
        }
        true
    }

    /// From `now` on the peer has its time to say something.
    pub(super) fn arm(&mut self, now: Time) {
        let timeout = self.req.timeout().map(|t| now + t);
        let selective = self.repeats_selectively();
        self.deadline = match &mut self.req.selective {
            Some(losses) if selective => {
                losses.timeout_at = timeout;
                Some(losses.deadline(now))
            }
            _ => timeout,
        };
    }

    /// Sends the last packet before the cursor again, now asking for an acknowledgement: the work request at the cursor is
    /// faulty, so that nothing behind that packet will ask. False if all before it is acknowledged or asked for.
    fn ask_for_ack(&mut self) -> bool {
        if self.state == QpState::Err || self.req.since_ack_request == 0 {
            return false;
        }
        let psn = self.sq.get(self.req.cursor).first_psn;
        let outstanding = psn.distance(self.req.unacked) > 0;
        if outstanding {
            self.req.since_ack_request = ACK_EVERY;
            self.go_back_to(psn + 0xff_ffff);
        }
        outstanding
    }

    /// Who is slow, and has little under way, hears of it sooner.
    pub(super) fn ack_every(&self) -> u32 {
        if self.congestion.is_some() || self.req.cautious { ACK_EVERY / 8 } else { ACK_EVERY }
    }

    /// PSNs that the element takes.
    fn psns_of(&self, wqe: &SendWqe) -> u32 {
        match wqe.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 1,
            _ if wqe.len <= self.mtu => 1,
            _ => wqe.len.div_ceil(self.mtu),
        }
    }

    /// Whether a READ or atomic would wait for ever.
    pub(crate) fn never_answered(&self) -> bool {
        self.sends() && self.req.max_rd_atomic == 0
    }

    /// Gives the next element its PSNs.
    pub(crate) fn start_element(&mut self) {
        let psns = self.psns_of(self.sq.get(self.sq.started));
        let psn = self.req.next_psn;
        let wqe = self.sq.get_mut(self.sq.started);
        wqe.first_psn = psn;
        wqe.answered = 0;
        wqe.psns = psns;
        let response = wqe.wants_response();
        self.req.next_psn = psn + psns;
        self.req.rd_atomics += u8::from(response);
        self.sq.started += 1;
        self.req.packet = 0;
    }

    /// One packet of the element at the cursor, and moves the cursor on. Returns the PSNs that were sent or asked for.
    pub(crate) fn build_request(&mut self, ctx: &mut Ctx, batch: &mut TxBatch) -> Result<u32, WcStatus> {
        let index = self.req.packet;
        let psns = self.build_packet(ctx, batch, (self.req.cursor, index), None)?;
        let wqe = self.sq.get(self.req.cursor);
        self.req.packet = index + psns;
        if self.req.packet >= wqe.psns {
            self.req.cursor += 1;
            self.req.packet = match self.req.cursor < self.sq.started {
                true => self.sq.get(self.req.cursor).answered_packets(),
                false => 0,
            };
        }
        Ok(psns)
    }

    /// The packet `index` of the element `at`, or several in a row that refer to their payload; for a READ the request for what
    /// is left of its response, or for the part of it that is asked for again. Returns the PSNs that it takes or asks for.
    pub(crate) fn build_packet(
        &mut self,
        ctx: &mut Ctx,
        batch: &mut TxBatch,
        (at, index): (u64, u32),
        again: Option<Again>,
    ) -> Result<u32, WcStatus> {
        let Some(route) = self.route else { return Err(WcStatus::LocalQpOperation) };
        let mtu = self.mtu as usize;
        let (wqe, sges, inline) = self.sq.parts(at);
        let psn = wqe.first_psn + index;
        let offset = index as usize * mtu;
        let left = wqe.len as usize - offset.min(wqe.len as usize);
        let reliable = self.init.kind == QpType::Rc;
        // A peer acknowledges what it has copied: until then, and no longer, bytes that are referred to stay what they are.
        let (mut reference, mut packets) = (None, 1);
        if reliable && batch.may_refer() && wqe.is_moved_alone() {
            // What is sent again is what the peer asks for, and begins where it does.
            let most = match psn.distance(self.req.sent_psn) >= 0 {
                true => {
                    let room = self.window().saturating_sub(psn.distance(self.req.unacked) as u32);
                    run_packets(self.mtu).min(wqe.psns - index).min(room).max(1)
                }
                false => 1,
            };
            let len = left.min(most as usize * mtu);
            if let Some((place, len)) = ctx.locate(&mut self.local_region, self.init.pd, sges, offset, (len, mtu)) {
                reference = batch.name(&place, len);
                packets = if reference.is_some() { len.div_ceil(mtu) as u32 } else { 1 };
            }
        }
        let mut len = left.min(packets as usize * mtu);
        let (mut first, mut last) = (index == 0, index + packets == wqe.psns);
        if wqe.wants_response() {
            (first, last, len) = (true, true, 0);
        }
        let opcode = request_opcode(wqe.op, first, last);
        let opcode = if reliable { opcode } else { unreliable(opcode) };
        // Work on this side waits for what comes before it, and so may a READ where packets get lost.
        let next = at + 1;
        let waits = |next: &SendWqe| next.is_local() || self.req.selective.is_some() && next.wants_response();
        let end_of_work = last && (next == self.sq.tail || waits(self.sq.get(next)));
        let report = last && (wqe.signaled || self.init.sq_sig_all);
        // A patient peer acknowledges by itself. What is waited for is the completion of one of a few, room, and what work behind
        // it waits for.
        let patient = self.peer_patient && ctx.patient;
        let hurry = match patient {
            true => {
                last && (self.is_awaited(self.sq.started, report) || next < self.sq.tail && waits(self.sq.get(next)))
            }
            false => report || end_of_work,
        };
        let ack_req =
            reliable && (hurry || again.is_some() || self.req.since_ack_request + packets >= self.ack_every());
        let later = if patient && last { LATER } else { 0 };
        let resume = if again.as_ref().is_some_and(|again| again.resume) { RESUME } else { 0 };
        let bth = Bth {
            solicited: last && wqe.solicited,
            pad: pad_of(len),
            ack_req,
            reserved7: if reliable && ctx.selective { SELECTIVE | resume | later } else { 0 },
            ..Bth::new(opcode, self.attr.dest_qp, psn)
        };
        let mut writer = Writer::within(batch.spaces(), &bth);
        match wqe.op {
            SendOp::Write { va, rkey } | SendOp::WriteImm { va, rkey, .. } if first => {
                writer.reth(Reth { va, rkey, len: wqe.len });
            }
            SendOp::Rpc { op } | SendOp::RpcWrite { op } if first => {
                writer.reth(Reth { va: op, rkey: 0, len: wqe.len });
            }
            SendOp::Read { va, rkey } => {
                let va = va.wrapping_add(offset as u64);
                let left = wqe.len - offset.min(wqe.len as usize) as u32;
                let asked = again.as_ref().map_or(left, |again| again.psns.saturating_mul(self.mtu));
                writer.reth(Reth { va, rkey, len: left.min(asked) });
            }
            SendOp::CompareSwap { va, rkey, compare, swap } => {
                writer.atomic(AtomicEth { va, rkey, swap_or_add: swap, compare });
            }
            SendOp::FetchAdd { va, rkey, add } => {
                writer.atomic(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
            }
            _ => {}
        }
        match wqe.op {
            SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } if last => writer.imm(ImmDt(imm)),
            SendOp::SendInvalidate(rkey) if last => writer.ieth(Ieth { rkey }),
            _ => {}
        }
        match (wqe.source, reference) {
            (Source::List(_), Some(reference)) => {
                writer.refer(reference);
                self.referred = true;
                ctx.counters.tx_referred += 1;
            }
            (Source::List(_), None) if len > 0 => {
                ctx.gather(&mut self.local_region, self.init.pd, sges, offset, writer.target(len))
                    .ok_or(WcStatus::LocalProtection)?;
            }
            (Source::List(_), None) => {}
            (Source::Inline | Source::Buffer | Source::Reply, _) => {
                let from = inline.get(offset..offset + len).ok_or(WcStatus::LocalLength)?;
                writer.payload(len).copy_from_slice(from);
            }
        }
        let placed = writer.placed();
        let total = writer.finish(len);
        batch.note_placed(placed);
        let (psns, response) = (wqe.psns, wqe.wants_response());
        if let Source::List(_) = wqe.source
            && reference.is_none()
        {
            batch.note_fetched(len);
        }
        batch.commit(route, total);
        if again.is_none() {
            self.req.since_ack_request = if ack_req { 0 } else { self.req.since_ack_request + packets };
        }
        let taken = if response { psns - index } else { packets };
        self.note_sent(ctx, route.link, (psn, taken), total, last);
        Ok(taken)
    }

    /// A packet of so many bytes is in a batch, whose PSNs are these, perhaps the last of its message.
    #[inline]
    pub(super) fn note_sent(&mut self, ctx: &mut Ctx, link: u8, (psn, psns): (Psn, u32), bytes: usize, last: bool) {
        ctx.counters.tx_packets += 1;
        ctx.counters.tx_bytes += bytes as u64;
        if psn.distance(self.req.sent_psn) < 0 {
            ctx.counters.retransmits += 1;
        } else if last {
            ctx.counters.sent(link);
        }
        let end = psn + psns;
        if end.distance(self.req.sent_psn) > 0 {
            self.req.sent_psn = end;
        }
    }

    /// Whether somebody waits for the last of the work requests before `started`, one that `reports` its completion or does
    /// not, to be acknowledged by a patient peer: for one of a few completions, or for room.
    #[inline]
    pub(super) fn is_awaited(&self, started: u64, reports: bool) -> bool {
        reports && started - self.sq.head <= FEW || self.sq.is_half_full()
    }
}

/// The op-code of a request packet by its operation and place in the message.
fn request_opcode(op: SendOp, first: bool, last: bool) -> Opcode {
    use Opcode::*;
    let pick = |f, m, l, o| match (first, last) {
        (true, true) => o,
        (true, false) => f,
        (false, false) => m,
        (false, true) => l,
    };
    match op {
        SendOp::Send => pick(RcSendFirst, RcSendMiddle, RcSendLast, RcSendOnly),
        SendOp::SendImm(_) => pick(RcSendFirst, RcSendMiddle, RcSendLastImm, RcSendOnlyImm),
        SendOp::SendInvalidate(_) => pick(RcSendFirst, RcSendMiddle, RcSendLastInv, RcSendOnlyInv),
        SendOp::Write { .. } => pick(RcWriteFirst, RcWriteMiddle, RcWriteLast, RcWriteOnly),
        SendOp::WriteImm { .. } => pick(RcWriteFirst, RcWriteMiddle, RcWriteLastImm, RcWriteOnlyImm),
        SendOp::Read { .. } => RcReadRequest,
        SendOp::CompareSwap { .. } => RcCompareSwap,
        SendOp::FetchAdd { .. } => RcFetchAdd,
        // No packet is built for these.
        SendOp::LocalInvalidate(_) | SendOp::Bind(_) => RcSendOnly,
        SendOp::Rpc { .. } => RpcParams,
        SendOp::RpcWrite { .. } => pick(RpcWriteFirst, RpcWriteMiddle, RpcWriteLast, RpcWriteOnly),
    }
}
