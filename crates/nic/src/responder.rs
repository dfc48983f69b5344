//! The responder half of a queue pair: checks each request in the specification's order, carries it out, answers.
//!
//! InfiniBand specification, volume 1, section 9.7.4 (responder) and 9.7.5.2 (responses).

mod answers;
mod execute;
mod plain;

use std::collections::VecDeque;

use remora_wire::{Bth, NakCode, Opcode, Psn, Reth, Syndrome};

use answers::{Replay, Resource};

use crate::arrival::Body;
use crate::ctx::Ctx;
use crate::qp::QueuePair;
use crate::reorder::{ReorderBuffer, WINDOW};
use crate::requester::MOST_OUTSTANDING;
use crate::selective::{LATER, RESUME};
use crate::types::*;

/// Credits of every ACK: "no end-to-end credits given", as Linux' software NIC says.
const CREDITS: u8 = 0x1f;

/// State of the responder half.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The PSN expected next.
    pub(crate) expected: Psn,
    /// PSNs of READs and atomics right before that: more than may be outstanding count as so many.
    trailing: u32,
    /// Messages completed, 24 bits.
    msn: u32,
    /// The PSN behind the newest request that came early.
    newest: Psn,
    /// A NAK for `expected` is out: packets ahead of it are dropped in silence until it comes.
    waiting: bool,
    /// RNR NAKs for `expected`.
    refusals: u8,
    ack: Option<Syndrome>,
    message: Message,
    /// READs and atomics, the last ones, for answering and for duplicates.
    resources: VecDeque<Resource>,
    max_resources: usize,
    /// Resources with response packets to send, and one before which there are none.
    pending: usize,
    unsent: usize,
    replays: VecDeque<Replay>,
    /// The peer asks what has come.
    asked: bool,
    /// Messages that are not acknowledged, and in no hurry; and whether the engine knows that there are some.
    owed: u32,
    owing: bool,
    established: bool,
    /// The call whose payload stream comes next, and its op-code.
    stream: Option<(u64, u64)>,
    /// Requests that came early.
    pub(crate) early: ReorderBuffer,
}

/// The message whose packets are arriving.
#[derive(Debug)]
enum Message {
    None,
    /// Into the queue pair's current receive.
    Send {
        offset: u32,
    },
    Write {
        va: u64,
        rkey: u32,
        remaining: u32,
        total: u32,
    },
    RpcWrite {
        id: u64,
        remaining: u32,
    },
}

/// Messages that one acknowledgement is for at most, where nobody waits for it.
const OWED: u32 = 16;

/// The code of 0.96 ms, up to which a peer that is refused again and again is to wait longer and longer.
const PATIENT: u8 = 13;

/// The timer code of an RNR NAK: at first `min`, and then the next one each time. (0 is the longest.)
fn rnr_timer(min: u8, refusals: u8) -> u8 {
    if min == 0 || min >= PATIENT { min } else { min.saturating_add(refusals).min(PATIENT) }
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            expected: Psn::new(0),
            trailing: 0,
            msn: 0,
            newest: Psn::new(0),
            waiting: false,
            refusals: 0,
            ack: None,
            message: Message::None,
            resources: VecDeque::new(),
            max_resources: 0,
            pending: 0,
            unsent: 0,
            replays: VecDeque::new(),
            asked: false,
            owed: 0,
            owing: false,
            established: false,
            stream: None,
            early: ReorderBuffer::default(),
        }
    }
}

impl Responder {
    pub fn start(&mut self, expected: Psn) {
        *self = Self { expected, newest: expected, owing: self.owing, ..Self::default() };
    }

    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    /// READs and atomics that the peer may have outstanding.
    pub fn set_resources(&mut self, max: u8) {
        self.max_resources = max.into();
        self.resources.reserve(self.max_resources.saturating_sub(self.resources.len()));
    }

    /// Stops carrying out requests. A NAK that is due still goes out, after the responses to the READs before it.
    pub fn stop(&mut self) {
        if !matches!(self.ack, Some(Syndrome::Nak(_))) {
            self.ack = None;
            self.pending = 0;
            self.replays.clear();
            self.resources.clear();
            self.unsent = 0;
        }
        self.owed = 0;
    }

    /// The next request is refused, as one with a wrong key.
    pub fn refuse_access(&mut self) {
        self.ack = Some(Syndrome::Nak(NakCode::RemoteAccess));
    }

    /// Whether the oldest response to be sent has full packets.
    pub fn has_long(&self, mtu: u32) -> bool {
        self.pending > 0 && self.next_unsent().is_some_and(|at| self.resources[at].has_long(mtu))
    }

    /// The place of the oldest READ or atomic that has response packets to send.
    fn next_unsent(&self) -> Option<usize> {
        let from = self.unsent.min(self.resources.len());
        Some(from + self.resources.range(from..).position(|r| r.next < r.psns)?)
    }

    /// Whether a message has begun and not ended.
    pub fn in_message(&self) -> bool {
        !matches!(self.message, Message::None)
    }

    /// The PSN of an ACK: the last one taken, but never that of a READ or atomic, which its response alone acknowledges
    /// (section 9.7.5.1). A peer may take a READ that an ACK names for complete, as Linux' software NIC does, though the
    /// response was lost. Only the ACK of a duplicate could name one.
    fn to_acknowledge(&self) -> Psn {
        self.expected + (0xff_ffff - self.trailing)
    }

    /// Requests that have not come though this one has, which comes early, and that this is the first to tell of.
    pub fn missing_before(&mut self, bth: &Bth, rest: &Body<'_>, mtu: u32) -> u32 {
        let newest = if self.newest.distance(self.expected) > 0 { self.newest } else { self.expected };
        let missing = bth.psn.distance(newest);
        // Who was told to come back later starts anew from there.
        if missing < 0 || self.refusals > 0 || missing >= WINDOW as i32 {
            return 0;
        }
        let read = matches!(bth.opcode, Opcode::RcReadRequest).then(|| Reth::parse(rest.headers()).ok()).flatten();
        self.newest = bth.psn + read.map_or(1, |reth| reth.len.div_ceil(mtu).max(1));
        missing as u32
    }

    /// The PSN expected next.
    pub fn expect(&mut self, psn: Psn) {
        self.expected = psn;
    }

    /// The PSN expected next: for queries.
    pub fn expected_psn(&self) -> Psn {
        self.expected
    }
}

/// A request refused.
pub(crate) enum Refusal {
    /// The peer is told so.
    Nak(NakCode),
    /// No receive, or no room for a kernel call.
    NotReady,
    /// The receive was at fault and has completed with this status.
    Local(WcStatus),
    /// Its sender took back what it refers to while it was carried out: as if it had not come.
    Lost,
}

use Refusal::{Local, Lost, Nak, NotReady};

impl QueuePair {
    /// Whether a response or acknowledgement waits to be sent.
    pub(crate) fn response_ready(&self) -> bool {
        self.resp.pending > 0 || !self.resp.replays.is_empty() || self.resp.ack.is_some()
    }

    /// Whether an acknowledgement waits to be sent, and no data before it.
    pub(crate) fn answer_is_next(&self) -> bool {
        self.resp.pending == 0 && self.resp.replays.is_empty() && self.resp.ack.is_some()
    }

    /// A request packet; `rest` is what follows the BTH, without pad and ICRC.
    pub(crate) fn handle_request(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &Body<'_>) {
        if self.resp.early.is_empty() {
            return self.take_request(ctx, bth, rest);
        }
        let before = self.resp.expected;
        // Or is it the last one that was carried out, once more?
        let read = self.resp.resources.back().filter(|r| r.psn == bth.psn).map_or(1, |r| r.psns);
        self.take_request(ctx, bth, rest);
        let taken = self.resp.expected != before;
        if bth.reserved7 & RESUME != 0 && (taken || bth.psn + read == before) {
            while self.receives()
                && let Some(kept) = self.resp.early.take(self.resp.expected)
            {
                self.take_request(ctx, &kept.bth, &kept.rest().into());
                ctx.reorder.give(kept);
            }
        }
        if taken && !self.resp.early.is_empty() && self.resp.ack.is_none() {
            self.resp.ack = Some(Syndrome::Nak(NakCode::SequenceError));
        }
    }

    /// A request packet that has arrived, or that was kept and whose turn has come.
    fn take_request(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &Body<'_>) {
        let ahead = bth.psn.distance(self.resp.expected);
        if ahead < 0 {
            return self.handle_duplicate(ctx, bth, rest.headers());
        }
        if ahead > 0 {
            // Who was told to come back later starts anew from there.
            let near = self.peer_selective && self.resp.refusals == 0 && ahead < WINDOW as i32;
            // On a link that shares memory nothing comes early, but by a fault of the peer's.
            let early = rest.private().zip(self.route).filter(|_| near);
            let kept =
                early.is_some_and(|(rest, route)| self.resp.early.keep(&mut ctx.reorder, route.remote, bth, rest));
            let told = std::mem::replace(&mut self.resp.waiting, true);
            ctx.counters.sequence_naks += u64::from(!told);
            // Each that is kept tells the peer what is there now.
            if kept || !told {
                self.resp.ack = Some(Syndrome::Nak(NakCode::SequenceError));
            }
            return;
        }
        self.note_peer(ctx, bth);
        self.resp.waiting = false;
        // A NAK that was due for this very packet is void now.
        if matches!(self.resp.ack, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. })) {
            (self.resp.ack, self.resp.asked) = (None, false);
        }
        self.established(ctx);
        let executed = if rest.is_stale() { Err(Lost) } else { self.execute(ctx, bth, rest) };
        // The program hears of it by its receive, which has completed in error.
        let told = matches!(executed, Err(Local(WcStatus::LocalLength)));
        let outcome = executed.map_err(|refusal| match refusal {
            Local(WcStatus::LocalLength) => Nak(NakCode::InvalidRequest),
            Local(WcStatus::RemoteAccess) => Nak(NakCode::RemoteAccess),
            Local(_) => Nak(NakCode::RemoteOperational),
            other => other,
        });
        match outcome {
            // Its completion queue overran: the message is not delivered as far as anyone can tell.
            Ok(_) if self.state == QpState::Err => self.resp.ack = Some(Syndrome::Nak(NakCode::RemoteOperational)),
            Ok(psns) => self.request_taken(ctx, bth, psns),
            Err(NotReady) => {
                self.resp.early.clear(&mut ctx.reorder);
                self.resp.waiting = true;
                self.resp.ack =
                    Some(Syndrome::RnrNak { timer: rnr_timer(self.attr.min_rnr_timer, self.resp.refusals) });
                self.resp.refusals = self.resp.refusals.saturating_add(1);
                ctx.counters.rnr_naks += 1;
            }
            Err(Lost) => {
                self.resp.waiting = true;
                self.resp.ack = Some(Syndrome::Nak(NakCode::SequenceError));
                ctx.counters.sequence_naks += 1;
            }
            Err(Local(status)) => self.fail(ctx, status),
            Err(Nak(code)) => {
                self.resp.ack = Some(Syndrome::Nak(code));
                let (why, event) = match code {
                    NakCode::RemoteAccess => (WcStatus::RemoteAccess, Some(Event::QpAccessError(self.qpn))),
                    NakCode::RemoteOperational => (WcStatus::RemoteOperation, None),
                    _ => (WcStatus::RemoteInvalidRequest, Some(Event::QpRequestError(self.qpn))),
                };
                ctx.events.extend(event.filter(|_| !told));
                self.fail(ctx, why);
            }
        }
    }

    /// The expected packet, of so many PSNs, was carried out.
    #[inline]
    fn request_taken(&mut self, ctx: &mut Ctx, bth: &Bth, psns: u32) {
        self.resp.refusals = 0;
        self.resp.expected = self.resp.expected + psns;
        match is_answered(bth.opcode) {
            true => self.resp.trailing = (self.resp.trailing + psns).min(MOST_OUTSTANDING),
            false if psns > 0 => self.resp.trailing = 0,
            false => {}
        }
        self.resp.early.forget(&mut ctx.reorder, bth.psn, psns);
        if bth.opcode.is_last() || bth.opcode.is_only() {
            ctx.counters.received(self.route.map_or(0, |route| route.link));
        }
        if psns > 0 && !is_answered(bth.opcode) {
            self.note_asked(ctx, bth);
        }
    }

    /// A packet was carried out that is acknowledged as its sender asks.
    #[inline]
    fn note_asked(&mut self, ctx: &mut Ctx, bth: &Bth) {
        if bth.ack_req {
            self.resp.ack = Some(Syndrome::Ack { credits: CREDITS });
        } else if bth.reserved7 & LATER != 0 {
            self.owe(ctx);
        }
    }

    /// A message is to be acknowledged, in no hurry: with others, or when nothing else is to be done.
    fn owe(&mut self, ctx: &mut Ctx) {
        self.resp.owed += 1;
        if self.resp.owed >= OWED {
            self.resp.ack = Some(Syndrome::Ack { credits: CREDITS });
        } else if !std::mem::replace(&mut self.resp.owing, true) {
            ctx.owing.push(self.qpn.0);
        }
    }

    /// What is owed is to be acknowledged now. A NAK that is due says more.
    pub(crate) fn pay(&mut self) {
        self.resp.owing = false;
        if self.resp.owed > 0 && self.receives() && self.resp.ack.is_none() {
            self.resp.ack = Some(Syndrome::Ack { credits: CREDITS });
        }
    }

    /// The first packet tells the world that the peer is there.
    pub(crate) fn established(&mut self, ctx: &mut Ctx) {
        if !std::mem::replace(&mut self.resp.established, true) {
            ctx.events.push_back(Event::Established(self.qpn));
        }
    }

    /// Forgets the message that is arriving; its receive, if it has one, is there for the next.
    pub(crate) fn drop_message(&mut self) {
        let message = std::mem::replace(&mut self.resp.message, Message::None);
        self.recv_held |= matches!(message, Message::Send { .. });
    }
}

/// The largest message: 2^31 bytes (section 9.7.2).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// READs and atomics are answered by their responses, not by an ACK.
fn is_answered(op: Opcode) -> bool {
    matches!(op, Opcode::RcReadRequest | Opcode::RcCompareSwap | Opcode::RcFetchAdd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_again_is_to_wait_longer() {
        let codes = |min: u8| [0, 1, 5, 255].map(|refusals| rnr_timer(min, refusals));
        assert_eq!([codes(1), codes(12)], [[1, 2, 6, 13], [12, 13, 13, 13]]);
        assert_eq!([codes(0), codes(20)], [[0; 4], [20; 4]]);
    }

    #[test]
    fn msns_have_24_bits() {
        let mut responder = Responder { msn: 0xff_fffe, ..Responder::default() };
        let next = [(); 3].map(|()| {
            responder.count_message();
            responder.msn
        });
        assert_eq!(next, [0xff_ffff, 0, 1]);
    }
}
