//! The requester half of a queue pair: sends requests, takes acknowledgements and responses, and goes back N.
//!
//! InfiniBand specification, volume 1, sections 9.7.3 (requester), 9.7.5.1 (PSNs) and 9.9 (errors).

use remora_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Ieth, ImmDt, NakCode, Opcode, Psn, Reth, Syndrome, rnr_timer_ns,
};

use crate::arrival::Body;
use crate::attr::QpAttr;
use crate::ctx::Ctx;
use crate::packet::{Writer, pad_of};
use crate::qp::QueuePair;
use crate::queue::{SendWqe, Source, TxBatch};
use crate::reorder::{ReorderBuffer, WINDOW};
use crate::selective::{Again, PROBE, RESUME, SELECTIVE, Selective};
use crate::types::*;
use crate::uc::unreliable;

/// Ask for an acknowledgement at least this often, so that the window never stands still.
const ACK_EVERY: u32 = 64;

/// State of the requester half.
#[derive(Debug)]
pub(crate) struct Requester {
    timeout: u8,
    retry_count: u8,
    rnr_retry: u8,
    max_rd_atomic: u8,
    /// The next element to transmit, between `sq.head` and `sq.started`; and its next packet.
    cursor: u64,
    packet: u32,
    /// The first PSN never used.
    next_psn: Psn,
    /// The oldest PSN not acknowledged.
    pub(crate) unacked: Psn,
    /// The first PSN never sent.
    pub(crate) sent_psn: Psn,
    /// READs and atomics started and not complete.
    rd_atomics: u8,
    retries: u8,
    rnr_retries: u8,
    /// Since the last acknowledgement request.
    since_ack_request: u32,
    /// Transmission waits for the RNR timer.
    rnr_wait: bool,
    /// Went back for a lost response already; once is enough until something arrives.
    went_back: bool,
    /// What got lost of late, if anything ever did and the peer keeps what comes early.
    pub(crate) selective: Option<Box<Selective>>,
    /// Responses that came early.
    pub(crate) early: ReorderBuffer,
    /// The element at this position cannot be sent: it fails with this status once all before it are complete.
    fault: Option<(u64, WcStatus)>,
    /// The world was told that the queue is drained (SQD).
    drained: bool,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            cursor: 0,
            packet: 0,
            next_psn: Psn::new(0),
            unacked: Psn::new(0),
            sent_psn: Psn::new(0),
            rd_atomics: 0,
            retries: 0,
            rnr_retries: 0,
            since_ack_request: 0,
            rnr_wait: false,
            went_back: false,
            selective: None,
            early: ReorderBuffer::default(),
            fault: None,
            drained: false,
        }
    }
}

impl Requester {
    /// RTR to RTS.
    pub fn start(&mut self, attr: &QpAttr, psn: Psn) {
        *self = Self { next_psn: psn, unacked: psn, sent_psn: psn, cursor: self.cursor, ..Self::default() };
        self.adopt(attr);
        (self.retries, self.rnr_retries) = (attr.retry_count, attr.rnr_retry);
    }

    /// Timers and limits from now on.
    pub fn adopt(&mut self, attr: &QpAttr) {
        (self.timeout, self.retry_count, self.rnr_retry) = (attr.timeout, attr.retry_count, attr.rnr_retry);
        self.max_rd_atomic = attr.max_rd_atomic;
        self.retries = self.retries.min(attr.retry_count);
        self.rnr_retries = self.rnr_retries.min(attr.rnr_retry);
    }

    pub fn stop(&mut self) {
        self.rnr_wait = false;
        self.rd_atomics = 0;
        self.fault = None;
    }

    /// Transmission stops at the started elements (SQD), or goes on (RTS).
    pub fn set_draining(&mut self) {
        self.drained = false;
    }

    /// Transmission goes on with the element at this position, none before it being left (SQE to RTS).
    pub fn skip_to(&mut self, at: u64) {
        (self.cursor, self.packet) = (at, 0);
    }

    /// The next element to transmit.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Packets of the element at the cursor that were sent, of late.
    pub fn packets_sent(&self) -> u32 {
        self.packet
    }

    /// Whether the RNR timer runs.
    pub fn waits_for_receiver(&self) -> bool {
        self.rnr_wait
    }

    /// In SQD: whether all that had started is complete.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// The first PSN never used: for queries.
    pub fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Uses up one PSN (datagrams).
    pub fn take_psn(&mut self) -> Psn {
        let psn = self.next_psn;
        self.next_psn = psn + 1;
        psn
    }

    /// The local ACK timeout (sections 9.9.2.1.1 and 12.7.34), doubled with each retry up to fourfold, which the
    /// specification allows: a peer whose process waits for a core is late, not dead. At the usual settings a dead one
    /// is noticed after 1.8 s.
    fn timeout(&self) -> Option<Time> {
        let used = self.retry_count.saturating_sub(self.retries);
        (self.timeout != 0).then(|| (4096u64 << self.timeout.min(31)) << used.min(2))
    }
}

impl QueuePair {
    /// Whether the requester could send a packet now.
    pub(crate) fn request_ready(&self) -> bool {
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
            // At most 2^23 PSNs may be outstanding (section 9.7.5.1.1): a long READ can take them all.
            let outstanding = self.req.next_psn.distance(self.req.unacked) as u32;
            // Where packets get lost, no more of a response than can be kept behind one that did.
            let most = if self.req.selective.is_some() && wqe.wants_response() { WINDOW } else { 1 << 23 };
            if outstanding > 0 && outstanding.saturating_add(self.psns_of(wqe)) > most {
                return false;
            }
            self.req.next_psn
        };
        (0..WINDOW as i32).contains(&next.distance(self.req.unacked))
    }

    fn resume_psn(&self) -> Psn {
        self.sq.get(self.req.cursor).first_psn + self.req.packet
    }

    /// Builds the next request packet into `batch`. False if there is nothing to send.
    pub(crate) fn emit_request(&mut self, ctx: &mut Ctx, now: Time, batch: &mut TxBatch) -> bool {
        if !self.request_ready() {
            return false;
        }
        if self.emit_again(ctx, now, batch) {
            if self.deadline.is_none() {
                self.arm(now);
            }
            return true;
        }
        if !self.request_ready() {
            return false;
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
        let (psn, before, wqe) = (self.resume_psn(), self.req.sent_psn, self.sq.get(self.req.cursor));
        let psns = if wqe.wants_response() { wqe.psns - self.req.packet } else { 1 };
        if let Err(status) = self.build_request(ctx, batch) {
            self.req.fault = Some((self.req.cursor, status));
            self.after_completion(ctx);
            return self.ask_for_ack() && self.emit_request(ctx, now, batch);
        }
        if let Some(losses) = &mut self.req.selective {
            losses.note_sent(now, psn, psns, psn.distance(before) < 0);
        }
        if self.deadline.is_none() {
            self.arm(now);
        }
        true
    }

    /// From `now` on the peer has its time to say something.
    fn arm(&mut self, now: Time) {
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

    /// PSNs that the element takes.
    fn psns_of(&self, wqe: &SendWqe) -> u32 {
        match wqe.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 1,
            _ => wqe.len.div_ceil(self.mtu).max(1),
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

    /// One packet of the element at the cursor, and moves the cursor on.
    pub(crate) fn build_request(&mut self, ctx: &mut Ctx, batch: &mut TxBatch) -> Result<(), WcStatus> {
        let index = self.req.packet;
        self.build_packet(ctx, batch, (self.req.cursor, index), None)?;
        let wqe = self.sq.get(self.req.cursor);
        self.req.packet = if wqe.wants_response() { wqe.psns } else { index + 1 };
        if self.req.packet >= wqe.psns {
            self.req.cursor += 1;
            self.req.packet = match self.req.cursor < self.sq.started {
                true => self.sq.get(self.req.cursor).answered_packets(),
                false => 0,
            };
        }
        Ok(())
    }

    /// The packet `index` of the element `at`; for a READ the request for what is left of its response, or for the part of
    /// it that is asked for again.
    pub(crate) fn build_packet(
        &mut self,
        ctx: &mut Ctx,
        batch: &mut TxBatch,
        (at, index): (u64, u32),
        again: Option<Again>,
    ) -> Result<(), WcStatus> {
        let Some(route) = self.route else { return Err(WcStatus::LocalQpOperation) };
        let mtu = self.mtu as usize;
        let (wqe, sges, inline) = self.sq.parts(at);
        let psn = wqe.first_psn + index;
        let offset = index as usize * mtu;
        let mut len = (wqe.len as usize - offset.min(wqe.len as usize)).min(mtu);
        let (mut first, mut last) = (index == 0, index + 1 == wqe.psns);
        if wqe.wants_response() {
            (first, last, len) = (true, true, 0);
        }
        let reliable = self.init.kind == QpType::Rc;
        let opcode = request_opcode(wqe.op, first, last);
        let opcode = if reliable { opcode } else { unreliable(opcode) };
        // Work on this side waits for what comes before it, and so may a READ where packets get lost.
        let next = at + 1;
        let waits = |next: &SendWqe| next.is_local() || self.req.selective.is_some() && next.wants_response();
        let end_of_work = last && (next == self.sq.tail || waits(self.sq.get(next)));
        let report = last && (wqe.signaled || self.init.sq_sig_all);
        let ack_req =
            reliable && (report || end_of_work || again.is_some() || self.req.since_ack_request + 1 >= ACK_EVERY);
        let resume = if again.as_ref().is_some_and(|again| again.resume) { RESUME } else { 0 };
        let bth = Bth {
            solicited: last && wqe.solicited,
            pad: pad_of(len),
            ack_req,
            reserved7: if reliable && ctx.selective { SELECTIVE | resume } else { 0 },
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
        match wqe.source {
            Source::List(_) if len > 0 => {
                ctx.gather(&mut self.local_region, self.init.pd, sges, offset, writer.target(len))
                    .ok_or(WcStatus::LocalProtection)?;
            }
            Source::List(_) => {}
            Source::Inline | Source::Buffer | Source::Reply => {
                let from = inline.get(offset..offset + len).ok_or(WcStatus::LocalLength)?;
                writer.payload(len).copy_from_slice(from);
            }
        }
        let placed = writer.placed();
        let total = writer.finish(len);
        batch.note_placed(placed);
        let (psns, response) = (wqe.psns, wqe.wants_response());
        if let Source::List(_) = wqe.source {
            batch.note_fetched(len);
        }
        batch.commit(route, total);
        ctx.counters.tx_packets += 1;
        ctx.counters.tx_bytes += total as u64;
        if psn.distance(self.req.sent_psn) < 0 {
            ctx.counters.retransmits += 1;
        } else if last {
            ctx.counters.sent(route.link);
        }
        if again.is_none() {
            self.req.since_ack_request = if ack_req { 0 } else { self.req.since_ack_request + 1 };
        }
        let end = if response { psn + (psns - index) } else { psn + 1 };
        if end.distance(self.req.sent_psn) > 0 {
            self.req.sent_psn = end;
        }
        Ok(())
    }

    /// The oldest element ends with `status`, and the queue pair with it.
    fn fail_head(&mut self, ctx: &mut Ctx, status: WcStatus) {
        if !self.sq.is_empty() {
            self.complete_send(ctx, status, 0);
        }
        self.fail(ctx, status);
    }

    /// An ACK or NAK from the peer.
    fn handle_ack(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, aeth: Aeth, map: &[u8]) {
        let psn = bth.psn;
        // Who keeps something, or is asked what has come, and has all, names the first PSN never sent.
        let gap = aeth.syndrome == Syndrome::Nak(NakCode::SequenceError) && self.peer_selective;
        if !self.is_outstanding(psn) && (!gap || psn != self.req.sent_psn) {
            return;
        }
        self.note_peer(ctx, bth);
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                if self.acknowledge(ctx, now, psn + 1) {
                    match self.repeats_selectively() {
                        true => self.handle_later_ack(now, psn),
                        false => self.go_back_for_response(ctx, now),
                    }
                }
            }
            Syndrome::RnrNak { timer } => {
                self.acknowledge(ctx, now, psn);
                self.receiver_not_ready(ctx, now, psn, timer);
            }
            Syndrome::Nak(code) => {
                let stuck = self.acknowledge(ctx, now, psn);
                let asked = bth.reserved7 & PROBE != 0 && self.req.selective.is_some();
                let selective = gap && self.repeats_selectively();
                let status = match code {
                    NakCode::SequenceError if selective && self.handle_selective_nak(now, psn, map, asked) => return,
                    NakCode::SequenceError if psn == self.req.sent_psn => return,
                    NakCode::SequenceError if stuck => return self.go_back_for_response(ctx, now),
                    NakCode::SequenceError => return self.retry(ctx, now, psn),
                    NakCode::InvalidRequest => WcStatus::RemoteInvalidRequest,
                    NakCode::RemoteAccess => WcStatus::RemoteAccess,
                    _ => WcStatus::RemoteOperation,
                };
                self.fail_head(ctx, status);
            }
            Syndrome::Reserved(_) => {}
        }
    }

    /// Whether `psn` was sent and is not acknowledged. What a long message has yet to send is not: of all PSNs as few as
    /// may be are worth guessing.
    fn is_outstanding(&self, psn: Psn) -> bool {
        psn.distance(self.req.unacked) >= 0 && psn.distance(self.req.sent_psn) < 0
    }

    /// Everything before `psn` is acknowledged. True if a READ or atomic among it still lacks its response.
    fn acknowledge(&mut self, ctx: &mut Ctx, now: Time, psn: Psn) -> bool {
        let mut stuck = false;
        while self.sq.head < self.sq.started {
            let wqe = self.sq.get(self.sq.head);
            if wqe.wants_response() {
                stuck = wqe.first_psn.distance(psn) < 0;
                break;
            }
            if wqe.last_psn().distance(psn) >= 0 {
                break;
            }
            self.complete_send(ctx, WcStatus::Success, 0);
        }
        let reached = match self.sq.head < self.sq.started {
            true => {
                let wqe = self.sq.get(self.sq.head);
                if wqe.wants_response() { wqe.first_psn + wqe.answered } else { psn }
            }
            false => self.req.next_psn,
        };
        let reached = if reached.distance(psn) > 0 { psn } else { reached };
        self.progress(ctx, now, reached);
        self.after_completion(ctx);
        stuck
    }

    /// The peer has taken everything before `psn`: timers and retry counters start anew, if that is news.
    fn progress(&mut self, ctx: &mut Ctx, now: Time, psn: Psn) {
        if psn.distance(self.req.unacked) > 0 {
            let before = std::mem::replace(&mut self.req.unacked, psn);
            self.req.early.forget(&mut ctx.reorder, before, psn.distance(before) as u32);
            if let Some(losses) = &mut self.req.selective {
                losses.progress(now, before, psn);
                if losses.is_over() {
                    self.req.selective = None;
                }
            }
            self.req.retries = self.req.retry_count;
            self.req.rnr_retries = self.req.rnr_retry;
            self.req.went_back = false;
            self.req.rnr_wait = false;
            self.arm(now);
        }
        if self.sq.head == self.sq.started && !self.req.rnr_wait {
            self.deadline = None;
        }
        // What was acknowledged before it was sent again need not be sent again.
        if self.req.cursor < self.sq.head {
            self.req.cursor = self.sq.head;
            self.req.packet = 0;
        }
        if self.req.cursor < self.sq.started && self.resume_psn().distance(self.req.unacked) < 0 {
            let first = self.sq.get(self.req.cursor).first_psn;
            self.req.packet = self.req.unacked.distance(first).max(0) as u32;
        }
    }

    /// What may be due when elements have completed: a fault whose turn has come, or the end of draining.
    pub(crate) fn after_completion(&mut self, ctx: &mut Ctx) {
        if let Some((at, status)) = self.req.fault
            && at == self.sq.head
        {
            return self.fail_head(ctx, status);
        }
        if self.state == QpState::Sqd && self.sq.head == self.sq.started && !self.req.drained {
            self.req.drained = true;
            if self.attr.notify_drained {
                ctx.events.push_back(Event::SqDrained(self.qpn));
            }
        }
    }

    /// Transmission starts again at `psn`.
    pub(crate) fn go_back_to(&mut self, psn: Psn) {
        if let Some(losses) = &mut self.req.selective {
            losses.go_back();
        }
        let mut at = self.sq.head;
        while at + 1 < self.sq.started && self.sq.get(at).last_psn().distance(psn) < 0 {
            at += 1;
        }
        if at < self.sq.started {
            self.req.cursor = at;
            self.req.packet = psn.distance(self.sq.get(at).first_psn).max(0) as u32;
        }
    }

    /// A sequence NAK or a timeout: counts as a retry.
    fn retry(&mut self, ctx: &mut Ctx, now: Time, psn: Psn) {
        if self.req.retries == 0 {
            return self.fail_head(ctx, WcStatus::RetryExceeded);
        }
        self.req.retries -= 1;
        self.req.since_ack_request = ACK_EVERY;
        self.go_back_to(psn);
        self.arm(now);
    }

    /// A later acknowledgement shows that a response was lost: ask again, once.
    fn go_back_for_response(&mut self, ctx: &mut Ctx, now: Time) {
        if !self.req.went_back && self.sq.head < self.sq.started {
            self.req.went_back = true;
            let wqe = self.sq.get(self.sq.head);
            let psn = wqe.first_psn + wqe.answered;
            self.retry(ctx, now, psn);
        }
    }

    fn receiver_not_ready(&mut self, ctx: &mut Ctx, now: Time, psn: Psn, timer: u8) {
        if self.req.rnr_wait {
            return; // the same NAK, twice
        }
        if self.req.rnr_retries == 0 {
            return self.fail_head(ctx, WcStatus::RnrRetryExceeded);
        }
        if self.req.rnr_retries != 7 {
            self.req.rnr_retries -= 1;
        }
        self.go_back_to(psn);
        // The peer is there: what got lost while it was not ready says nothing about the path.
        self.req.retries = self.req.retry_count;
        self.req.rnr_wait = true;
        self.deadline = Some(now + rnr_timer_ns(timer));
    }

    /// The deadline has passed.
    pub(crate) fn handle_qp_timeout(&mut self, ctx: &mut Ctx, now: Time) {
        self.deadline = None;
        if !self.sends() {
            return;
        }
        if self.req.rnr_wait {
            self.req.rnr_wait = false;
            self.arm(now);
        } else if self.sq.head < self.sq.started && !self.probe(now) {
            ctx.counters.timeouts += 1;
            self.req.went_back = false;
            self.note_timeout(now);
            let unacked = self.req.unacked;
            self.retry(ctx, now, unacked);
        }
    }

    /// An acknowledgement or a response from the peer; `rest` is what follows the BTH, without pad and ICRC.
    pub(crate) fn handle_response(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, rest: Body<'_>) {
        let header = if bth.opcode.has_aeth() { Aeth::LEN } else { 0 };
        let data = rest.skip(header);
        match bth.opcode {
            Opcode::RcAck => {
                if let Ok(aeth) = Aeth::parse(rest.headers()) {
                    self.handle_ack(ctx, now, bth, aeth, data.headers());
                }
            }
            _ if !self.answers_head(ctx, now, bth, rest) => {}
            Opcode::RcAtomicAck => self.handle_atomic_ack(ctx, now, bth.psn, data.headers()),
            _ => self.handle_read_response(ctx, now, bth, data),
        }
    }

    /// The next packet of the READ at the head.
    fn handle_read_response(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, data: Body<'_>) {
        let (wqe, sges, _) = self.sq.parts(self.sq.head);
        let SendOp::Read { .. } = wqe.op else {
            return self.fail_head(ctx, WcStatus::BadResponse);
        };
        let offset = wqe.answered as usize * self.mtu as usize;
        let expected = (wqe.len as usize - offset).min(self.mtu as usize);
        let last = wqe.answered + 1 == wqe.psns;
        let ends = bth.opcode.is_last() || bth.opcode.is_only();
        // Where a part was asked for again, an end may come before the end.
        if data.len() != expected || last && !ends || ends && !last && !self.peer_selective {
            return self.fail_head(ctx, WcStatus::BadResponse);
        }
        let len = wqe.len;
        if let Err(status) = ctx.scatter(&mut self.local_region, self.init.pd, sges, offset, data) {
            return self.fail_head(ctx, status);
        }
        self.response_taken(ctx, now, bth.psn, last, len);
    }

    /// The old value of the atomic at the head.
    fn handle_atomic_ack(&mut self, ctx: &mut Ctx, now: Time, psn: Psn, data: &[u8]) {
        let Ok(ack) = AtomicAckEth::parse(data) else { return };
        let (wqe, sges, _) = self.sq.parts(self.sq.head);
        let (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) = wqe.op else {
            return self.fail_head(ctx, WcStatus::BadResponse);
        };
        let data = ack.original.to_ne_bytes();
        if let Err(status) = ctx.scatter(&mut self.local_region, self.init.pd, sges, 0, data[..].into()) {
            return self.fail_head(ctx, status);
        }
        self.response_taken(ctx, now, psn, true, 8);
    }

    /// Whether a response is the next one that the oldest request waits for. A gap asks for the lost ones.
    fn answers_head(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, rest: Body<'_>) -> bool {
        let psn = bth.psn;
        if !self.is_outstanding(psn) {
            return false;
        }
        self.note_peer(ctx, bth);
        // A response acknowledges everything before it (section 9.7.5.1.2).
        let stuck = self.acknowledge(ctx, now, psn);
        if self.state == QpState::Err || self.sq.head == self.sq.started {
            return false;
        }
        let wqe = self.sq.get(self.sq.head);
        let expected = wqe.first_psn + wqe.answered;
        if psn == expected && wqe.wants_response() {
            return true;
        }
        if stuck && psn.distance(expected) > 0 {
            match self.repeats_selectively() {
                true => self.keep_response(ctx, now, bth, rest),
                false => self.go_back_for_response(ctx, now),
            }
        }
        false
    }

    fn response_taken(&mut self, ctx: &mut Ctx, now: Time, psn: Psn, last: bool, byte_len: u32) {
        let head = self.sq.head;
        self.sq.get_mut(head).answered += 1;
        if last {
            self.req.rd_atomics = self.req.rd_atomics.saturating_sub(1);
            self.complete_send(ctx, WcStatus::Success, byte_len);
        }
        self.progress(ctx, now, psn + 1);
        self.after_completion(ctx);
    }
}

impl SendWqe {
    /// Packets of the element that need not be asked for again.
    fn answered_packets(&self) -> u32 {
        if self.wants_response() { self.answered } else { 0 }
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
