//! The requester half of a queue pair: its state; acknowledgements and responses; going back N. `emit` sends requests.
//!
//! InfiniBand specification, volume 1, sections 9.7.3 (requester), 9.7.5.1 (PSNs) and 9.9 (errors).

mod emit;
mod plain;

use remora_wire::{Aeth, AtomicAckEth, Bth, NakCode, Opcode, Psn, Syndrome, rnr_timer_ns};

use crate::arrival::Body;
use crate::attr::QpAttr;
use crate::ctx::Ctx;
use crate::qp::QueuePair;
use crate::queue::{SendWqe, run_packets};
use crate::reorder::ReorderBuffer;
use crate::selective::{PROBE, Selective};
use crate::types::*;

/// Ask for an acknowledgement at least this often, so that the window never stands still.
const ACK_EVERY: u32 = 64;

/// Messages under way of which one's completion is waited for, if the peer can tell what is not; of more, several complete at once.
const FEW: u64 = 4;

/// PSNs that may be outstanding if the first ones were lost: the path seems to carry little, and the peer is not known yet.
const CAUTIOUS: u32 = 16;

/// PSNs that may be outstanding: as many as one can be told to be ahead of another (section 9.7.5.1.1 allows one more).
pub(crate) const MOST_OUTSTANDING: u32 = (1 << 23) - 1;

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
    /// Something was lost before the peer has acknowledged anything; and whether it has.
    cautious: bool,
    heard: bool,
    /// The PSN behind the newest response that came early.
    pub(crate) newest: Psn,
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
            cautious: false,
            heard: false,
            newest: Psn::new(0),
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
        *self =
            Self { next_psn: psn, unacked: psn, sent_psn: psn, newest: psn, cursor: self.cursor, ..Self::default() };
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
            (self.req.heard, self.req.cautious) = (true, false);
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
        self.req.cautious = !self.req.heard;
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
            self.notice_silence(now);
            let unacked = self.req.unacked;
            self.retry(ctx, now, unacked);
        }
    }

    /// An acknowledgement or a response from the peer; `rest` is what follows the BTH, without pad and ICRC.
    pub(crate) fn handle_response(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, rest: &Body<'_>) {
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
            _ => self.handle_read_response(ctx, now, bth, &data),
        }
    }

    /// The next packet of the READ at the head.
    fn handle_read_response(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, data: &Body<'_>) {
        let (wqe, sges, _) = self.sq.parts(self.sq.head);
        let SendOp::Read { .. } = wqe.op else {
            return self.fail_head(ctx, WcStatus::BadResponse);
        };
        let mtu = self.mtu as usize;
        let offset = wqe.answered as usize * mtu;
        // What refers to its payload may stand for many packets in a row.
        let most = if data.is_referred() { run_packets(self.mtu) as usize } else { 1 };
        let psns = data.len().div_ceil(mtu).clamp(1, most);
        let expected = (wqe.len as usize - offset).min(psns * mtu);
        let psns = psns as u32;
        let last = wqe.answered + psns == wqe.psns;
        let ends = bth.opcode.is_last() || bth.opcode.is_only();
        // Where a part was asked for again, an end may come before the end.
        if data.len() != expected || last && !ends || ends && !last && !self.peer_selective {
            return self.fail_head(ctx, WcStatus::BadResponse);
        }
        let len = wqe.len;
        if let Err(status) = ctx.scatter(&mut self.local_region, self.init.pd, sges, offset, *data) {
            return self.fail_head(ctx, status);
        }
        // The peer took back what it referred to: as if the response had not come.
        if data.is_stale() {
            return;
        }
        self.response_taken(ctx, now, (bth.psn, psns), last, len);
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
        self.response_taken(ctx, now, (psn, 1), true, 8);
    }

    /// Whether a response is the next one that the oldest request waits for. A gap asks for the lost ones.
    fn answers_head(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, rest: &Body<'_>) -> bool {
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

    #[inline]
    fn response_taken(&mut self, ctx: &mut Ctx, now: Time, (psn, psns): (Psn, u32), last: bool, byte_len: u32) {
        let head = self.sq.head;
        self.sq.get_mut(head).answered += psns;
        if last {
            self.req.rd_atomics = self.req.rd_atomics.saturating_sub(1);
            self.complete_send(ctx, WcStatus::Success, byte_len);
        }
        self.progress(ctx, now, psn + psns);
        self.after_completion(ctx);
    }
}

impl SendWqe {
    /// Packets of the element that need not be asked for again.
    fn answered_packets(&self) -> u32 {
        if self.wants_response() { self.answered } else { 0 }
    }
}
