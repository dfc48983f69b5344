//! Selective repeat: the requester sends again what was lost, and nothing else.
//!
//! A standard responder takes packets in order only: a gap makes it drop all that follows, and the requester goes back N. Two
//! engines of this kind do better, after IRN's manner (Mittal et al., *Revisiting Network Support for RDMA*, SIGCOMM 2018).
//! Each says in a reserved bit of its packets ([`SELECTIVE`]), which others ignore, that it keeps what comes early. A NAK to
//! such a peer carries, behind the AETH, which of the 256 PSNs from the missing one on are there. A packet that is sent again
//! says ([`RESUME`]) that its successor need not follow: without that word nothing kept is carried out, so that to slip a
//! forged request in takes more than to guess one of 256 PSNs. READ responses that come early are kept as well, and of a
//! READ only the missing part is asked for again; but of one of up to [`ONE_PASS`] bytes all that comes behind it too, as
//! who reads a version at either end of a structure relies on it that a READ goes upwards.
//!
//! What was sent before something that has arrived, and has not arrived, is lost: links seldom reorder, and what was late
//! costs one packet. When nothing arrives any more, neither does news of a loss. A path that has lost something is therefore
//! asked ([`PROBE`]), after a few round trips of silence, what has come: with a SEND of no bytes and a PSN that was used
//! already, which no receive is taken for, and which such a NAK answers behind all responses. The ACK timeout stays what it is.

use remora_wire::{Bth, Opcode, Psn};

use crate::arrival::Body;
use crate::ctx::Ctx;
use crate::packet::Writer;
use crate::qp::QueuePair;
use crate::queue::{SendWqe, TxBatch};
use crate::reorder::WINDOW;
use crate::types::*;

/// The sender keeps packets that come early, and reads which of its own were kept. A bit of the BTH's 7 reserved ones.
pub(crate) const SELECTIVE: u8 = 0x40;
/// The packet behind this one is known to be kept: the responder goes on with it.
pub(crate) const RESUME: u8 = 0x20;

/// The sender asks what has come, or tells who asked.
pub(crate) const PROBE: u8 = 0x10;
/// Of a request: its sender is in no hurry for an acknowledgement. Of an answer: such requests are acknowledged without being
/// asked for it.
pub(crate) const LATER: u8 = 0x08;

/// A READ of so many bytes at most lands as it was read in one pass: no part of it is older than one in front of it.
const ONE_PASS: u32 = 4096;

/// The time without news after which a path is probed: at least, at most, and before round trips were measured. A peer that
/// waits for a core now and then makes long ones of them, and a probe costs little.
const PROBE_MIN: Time = 100_000;
const PROBE_MAX: Time = 10_000_000;
const PROBE_FIRST: Time = 1_000_000;
/// Doublings of that time, while no news come.
const PROBE_DOUBLINGS: u8 = 6;
/// PSNs without a loss after which all is as before the first.
const CLEAN: u32 = 1 << 16;

/// A set of PSNs of one window.
#[derive(Clone, Copy, Debug, Default)]
struct PsnSet([u64; WINDOW as usize / 64]);

impl PsnSet {
    fn at(psn: Psn) -> (usize, u64) {
        let place = psn.get() % WINDOW;
        (place as usize / 64, 1 << (place % 64))
    }

    fn has(&self, psn: Psn) -> bool {
        let (word, bit) = Self::at(psn);
        self.0[word] & bit != 0
    }

    fn insert(&mut self, psn: Psn) {
        let (word, bit) = Self::at(psn);
        self.0[word] |= bit;
    }

    fn remove(&mut self, psn: Psn) {
        let (word, bit) = Self::at(psn);
        self.0[word] &= !bit;
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; WINDOW as usize / 64]
    }
}

/// When something was sent: the run, and its PSN. In a run PSNs go up.
type Sent = (u32, Psn);

fn before(a: Sent, b: Sent) -> bool {
    a.0 < b.0 || a.0 == b.0 && a.1.distance(b.1) < 0
}

/// What a requester knows of a path that has lost something, of the `WINDOW` PSNs from the oldest one unacknowledged.
#[derive(Debug)]
pub(crate) struct Selective {
    /// Before this PSN the peer has carried out all requests.
    executed: Psn,
    /// Request packets that the peer keeps.
    there: PsnSet,
    /// To be sent, or of a READ's response to be asked for, again.
    lost: PsnSet,
    /// The present run and the last PSN sent in it.
    last: Sent,
    /// The run in which each was sent last, and that of what was sent last for the first time.
    runs: [u32; WINDOW as usize],
    base: u32,
    /// PSNs acknowledged since something was lost.
    clean: u32,
    /// Round trip and its deviation, smoothed (RFC 6298), nanoseconds; 0 before the first was measured.
    rtt: Time,
    deviation: Time,
    /// A packet sent once, and when: the next round trip to be measured.
    sample: Option<(Psn, Time)>,
    /// When the peer was heard last, and the probes since.
    heard: Time,
    probes: u8,
    /// A probe is to be sent; when the last one was, and what had been sent last by then.
    probe_due: bool,
    probed: (Time, Sent),
    /// When the ACK timeout runs out.
    pub timeout_at: Option<Time>,
}

/// The PSNs from `from` to before `to`, a window of them at most.
fn psns(from: Psn, to: Psn) -> impl Iterator<Item = Psn> {
    (0..to.distance(from).clamp(0, WINDOW as i32) as u32).map(move |ahead| from + ahead)
}

impl Selective {
    fn new(unacked: Psn, last: Psn) -> Self {
        Self {
            executed: unacked,
            there: PsnSet::default(),
            lost: PsnSet::default(),
            last: (0, last),
            runs: [0; WINDOW as usize],
            base: 0,
            clean: 0,
            rtt: 0,
            deviation: 0,
            sample: None,
            heard: 0,
            probes: 0,
            probe_due: false,
            probed: (0, (0, last)),
            timeout_at: None,
        }
    }

    /// Whether something is to be sent again, or a probe is to be sent.
    pub fn is_due(&self) -> bool {
        self.probe_due || !self.lost.is_empty()
    }

    fn sent_at(&self, psn: Psn) -> Sent {
        (self.runs[(psn.get() % WINDOW) as usize], psn)
    }

    /// `psns` PSNs from `psn` on were sent, or asked for, at `now`, for the first time or `again`.
    pub fn note_sent(&mut self, now: Time, psn: Psn, psns: u32, again: bool) {
        let run = self.last.0.wrapping_add(u32::from(psn.distance(self.last.1) <= 0));
        for ahead in 0..psns.min(WINDOW) {
            self.runs[((psn + ahead).get() % WINDOW) as usize] = run;
        }
        self.last = (run, psn + psns.saturating_sub(1));
        if !again {
            self.base = run;
        }
        // An answer to what was sent twice does not tell to which (Karn).
        self.sample = if again { None } else { self.sample.or(Some((psn, now))) };
    }

    /// All is sent anew, from some PSN on.
    pub fn go_back(&mut self) {
        (self.there, self.lost, self.sample) = (PsnSet::default(), PsnSet::default(), None);
    }

    /// The peer has carried out every request before `psn`: what it kept of them, it keeps no more.
    fn executed_to(&mut self, psn: Psn) {
        for psn in psns(self.executed, psn) {
            self.there.remove(psn);
        }
        if psn.distance(self.executed) > 0 {
            self.executed = psn;
        }
    }

    /// The peer was heard, with news or not.
    fn hear(&mut self, now: Time) {
        (self.heard, self.probes) = (now, 0);
    }

    /// The oldest PSN unacknowledged moved on.
    pub fn progress(&mut self, now: Time, from: Psn, to: Psn) {
        for psn in psns(from, to) {
            self.lost.remove(psn);
            // Of a long READ's response, that PSN's place is the next one's now.
            self.runs[(psn.get() % WINDOW) as usize] = self.base;
        }
        self.clean = self.clean.saturating_add(to.distance(from).max(0) as u32);
        self.hear(now);
        self.executed_to(to);
        if let Some((psn, at)) = self.sample
            && psn.distance(to) < 0
        {
            self.sample = None;
            self.measured(now.saturating_sub(at));
        }
    }

    /// Whether so much has come without a loss that the path may be taken for one that loses nothing.
    pub fn is_over(&self) -> bool {
        self.clean >= CLEAN && self.lost.is_empty() && self.there.is_empty()
    }

    /// A round trip took so long.
    fn measured(&mut self, rtt: Time) {
        let rtt = rtt.clamp(1, 1_000_000_000);
        (self.rtt, self.deviation) = match self.rtt {
            0 => (rtt, rtt / 2),
            old => ((7 * old + rtt) / 8, (3 * self.deviation + old.abs_diff(rtt)) / 4),
        };
    }

    /// How long nothing may be heard before the path is probed.
    fn patience(&self) -> Time {
        let calm = (2 * self.rtt).max(self.rtt + 4 * self.deviation);
        let once = if self.rtt == 0 { PROBE_FIRST } else { calm.clamp(PROBE_MIN, PROBE_MAX) };
        once << self.probes.min(PROBE_DOUBLINGS)
    }

    /// When to act if nothing is heard after `since`: at the next probe, or when the ACK timeout runs out.
    pub fn deadline(&self, since: Time) -> Time {
        let probe = since + self.patience();
        self.timeout_at.map_or(probe, |at| at.min(probe))
    }
}

impl QueuePair {
    /// What this half knows of losses, from now on. The deadline that stands is the ACK timeout's, if it is not the RNR
    /// timer's, which sets a new one when it runs out.
    fn losses(&mut self, now: Time) -> &mut Selective {
        let (unacked, sent, waits, deadline) =
            (self.req.unacked, self.req.sent_psn, self.req.waits_for_receiver(), &mut self.deadline);
        self.req.selective.get_or_insert_with(|| {
            let mut losses = Selective::new(unacked, sent + 0xff_ffff);
            losses.heard = now;
            if !waits {
                losses.timeout_at = *deadline;
                *deadline = Some(losses.deadline(now));
            }
            Box::new(losses)
        })
    }

    /// The ACK timeout ran out: from now on silence is not waited out.
    pub(crate) fn note_timeout(&mut self, now: Time) {
        if self.repeats_selectively() {
            self.losses(now).clean = 0;
        }
    }

    /// The peer has carried out every request before `psn`.
    fn note_executed(&mut self, now: Time, psn: Psn) {
        self.losses(now).executed_to(psn);
    }

    /// Whether only what was lost is sent again. Who wants no retry gets none.
    pub(crate) fn repeats_selectively(&self) -> bool {
        self.peer_selective && self.attr.retry_count > 0
    }

    /// A packet that only the peer can have sent tells what the peer can do.
    #[inline]
    pub(crate) fn note_peer(&mut self, ctx: &Ctx, bth: &Bth) {
        self.peer_selective |= ctx.selective && bth.reserved7 & SELECTIVE != 0;
        self.peer_patient |= ctx.patient && bth.reserved7 & (SELECTIVE | LATER) == SELECTIVE | LATER;
    }

    /// A NAK at `psn` from a peer that keeps what comes early: `map` says what it has from there on. False if it has nothing,
    /// and was not `asked`.
    pub(crate) fn handle_selective_nak(&mut self, now: Time, psn: Psn, map: &[u8], asked: bool) -> bool {
        let (unacked, sent) = (self.req.unacked, self.req.sent_psn);
        let losses = self.losses(now);
        if psn.distance(losses.executed) < 0 {
            return true; // it was overtaken by a later one
        }
        losses.executed_to(psn);
        let (asked_at, mark) = losses.probed;
        if asked && losses.probes == 1 && !losses.probe_due {
            losses.measured(now.saturating_sub(asked_at));
        }
        losses.hear(now);
        let mut newest: Option<Sent> = asked.then_some((mark.0, mark.1 + 1));
        for ahead in 0..WINDOW {
            let psn = psn + ahead;
            if psn.distance(sent) >= 0 || psn.distance(unacked) >= WINDOW as i32 {
                break;
            }
            if map.get(ahead as usize / 8).is_none_or(|byte| byte & 1 << (ahead % 8) == 0) {
                losses.there.remove(psn);
                continue;
            }
            losses.there.insert(psn);
            let at = losses.sent_at(psn);
            newest = newest.filter(|&other| before(at, other)).or(Some(at));
        }
        if let Some(newest) = newest {
            if losses.there.has(psn) && before(losses.sent_at(psn), newest) {
                // It has this very one, and waits for the word to go on.
                losses.lost.insert(psn);
            }
            self.note_losses(newest, |_| true);
        }
        // What it has and was never sent is somebody else's.
        asked || map.iter().any(|&byte| byte != 0)
    }

    /// A response ahead of the one that is awaited: it is kept, and those before it are asked for again.
    pub(crate) fn keep_response(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, rest: &Body<'_>) {
        let near = bth.psn.distance(self.req.unacked) < WINDOW as i32;
        let missing = self.responses_missing_before(bth.psn);
        self.note_missing(now, missing);
        self.note_executed(now, bth.psn + 1);
        let losses = self.losses(now);
        losses.hear(now);
        // What is asked for again comes before what is still to come: this tells of nothing but its own run.
        let newest = if near { losses.sent_at(bth.psn) } else { (losses.base, bth.psn) };
        if near && !self.may_keep(bth.psn) {
            self.losses(now).lost.insert(bth.psn);
        } else if let (Some(rest), Some(route)) = (rest.private(), self.route)
            && near
            && !self.req.early.has(bth.psn)
        {
            self.req.early.keep(&mut ctx.reorder, route.remote, bth, rest);
        }
        self.note_losses(newest, |psn| psn.0 == newest.0);
    }

    /// Whether a response that comes early is kept: of a short READ only if none is missing in front of it.
    fn may_keep(&self, psn: Psn) -> bool {
        let of = |wqe: &&SendWqe| wqe.last_psn().distance(psn) >= 0;
        (self.sq.head..self.sq.started)
            .map(|at| self.sq.get(at))
            .find(of)
            .is_none_or(|wqe| wqe.len > ONE_PASS || wqe.first_psn == psn || self.req.early.has(psn + 0xff_ffff))
    }

    /// Responses that have not come though this one has, which comes early, and that this is the first to tell of.
    fn responses_missing_before(&mut self, psn: Psn) -> u32 {
        let (newest, unacked) = (self.req.newest, self.req.unacked);
        let from = if newest.distance(unacked) > 0 { newest } else { unacked };
        if psn.distance(from) < 0 {
            return 0;
        }
        self.req.newest = psn + 1;
        let reads = (self.sq.head..self.sq.started).map(|at| self.sq.get(at)).filter(|wqe| wqe.wants_response());
        let of = |wqe: &SendWqe| {
            let before = |psn: Psn| psn.distance(wqe.first_psn).clamp(0, wqe.psns as i32) as u32;
            before(psn) - before(from)
        };
        reads.map(of).sum()
    }

    /// An ACK of `psn` came, which comes after all responses, though one to a request before it did not.
    pub(crate) fn handle_later_ack(&mut self, now: Time, psn: Psn) {
        self.note_executed(now, psn + 1);
        if psn.distance(self.req.unacked) < WINDOW as i32 {
            let newest = self.losses(now).sent_at(psn);
            self.note_losses(newest, |_| true);
        }
    }

    /// What was sent at `newest` has arrived: all that was sent before, and is missing, is lost, if it is `of` those that this
    /// tells of.
    fn note_losses(&mut self, newest: Sent, of: impl Fn(Sent) -> bool) {
        let Some(mut losses) = self.req.selective.take() else { return };
        self.each_missing(losses.executed, |psn| {
            let at = losses.sent_at(psn);
            if !losses.there.has(psn) && before(at, newest) && of(at) {
                losses.lost.insert(psn);
                losses.clean = 0;
            }
        });
        self.req.selective = Some(losses);
    }

    /// The PSNs, within the window, of packets that were sent and may be missing: requests that the peer has not carried out,
    /// and responses to those before `executed`.
    fn each_missing(&self, executed: Psn, mut f: impl FnMut(Psn)) {
        let near = |psn: Psn| psn.distance(self.req.unacked) < WINDOW as i32;
        for at in self.sq.head..self.sq.started.min(self.req.cursor() + 1) {
            let wqe = self.sq.get(at);
            let sent = if at < self.req.cursor() { wqe.psns } else { self.req.packets_sent() };
            let answered = wqe.wants_response() && wqe.first_psn.distance(executed) < 0;
            let range = match wqe.wants_response() {
                _ if sent == 0 => 0..0,
                true if at == self.req.cursor() => 0..0,
                true if answered => wqe.answered..wqe.psns,
                true => 0..1,
                false => {
                    let done = executed.distance(wqe.first_psn).max(self.req.unacked.distance(wqe.first_psn));
                    done.max(0) as u32..sent
                }
            };
            for psn in range.map(|index| wqe.first_psn + index) {
                if !near(psn) {
                    return;
                }
                if !answered || !self.req.early.has(psn) {
                    f(psn);
                }
            }
        }
    }

    /// Builds a packet that was lost, or a request for a part of a READ's response that was, into `batch`. False if there is
    /// none.
    pub(crate) fn emit_again(&mut self, ctx: &mut Ctx, now: Time, batch: &mut TxBatch) -> bool {
        let (unacked, cursor, sent) = (self.req.unacked, self.req.cursor(), self.req.packets_sent());
        if let (Some(losses), Some(route)) = (&mut self.req.selective, self.route)
            && std::mem::take(&mut losses.probe_due)
        {
            losses.probed = (now, losses.last);
            let psn = unacked + 0xff_ffff;
            let bth = Bth { reserved7: SELECTIVE | PROBE, ..Bth::new(Opcode::RcSendOnly, self.attr.dest_qp, psn) };
            let total = Writer::new(batch.space(), &bth).finish(0);
            batch.commit(route, total);
            ctx.counters.tx_packets += 1;
            ctx.counters.tx_bytes += total as u64;
            return true;
        }
        if self.req.selective.as_ref().is_none_or(|losses| losses.lost.is_empty()) {
            return false;
        }
        for psn in (0..WINDOW).map(|ahead| unacked + ahead) {
            let Some(losses) = &mut self.req.selective else { return false };
            if !losses.lost.has(psn) {
                continue;
            }
            losses.lost.remove(psn);
            let of = |at: &u64| self.sq.get(*at).last_psn().distance(psn) >= 0;
            let Some(at) = (self.sq.head..self.sq.started).find(of) else { continue };
            let wqe = self.sq.get(at);
            let index = psn.distance(wqe.first_psn);
            if index < 0 || at > cursor || at == cursor && index as u32 >= sent {
                continue; // it has yet to be sent, or to be sent again
            }
            let mut psns = 1;
            if wqe.wants_response() {
                if wqe.first_psn.distance(losses.executed) < 0 {
                    while losses.lost.has(psn + psns) && index as u32 + psns < wqe.psns && psns < WINDOW {
                        losses.lost.remove(psn + psns);
                        psns += 1;
                    }
                } else if index == 0 {
                    psns = wqe.psns;
                } else {
                    continue;
                }
            }
            let next = psn + psns;
            let resume = next.distance(unacked) < WINDOW as i32 && losses.there.has(next);
            if self.build_packet(ctx, batch, (at, index as u32), Some(Again { psns, resume })).is_err() {
                // It cannot be built any more: let the way of all packets find out why.
                self.go_back_to(psn);
                return false;
            }
            if let Some(losses) = &mut self.req.selective {
                losses.note_sent(now, psn, psns, true);
            }
            return true;
        }
        false
    }

    /// Responses that were kept, and whose turn has come.
    pub(crate) fn take_early_responses(&mut self, ctx: &mut Ctx, now: Time) {
        while self.sends() && !self.req.early.is_empty() {
            let waits = |at: &u64| self.sq.get(*at).wants_response();
            let Some(at) = (self.sq.head..self.sq.started).find(waits) else { return };
            let wqe = self.sq.get(at);
            let Some(kept) = self.req.early.take(wqe.first_psn + wqe.answered) else { return };
            self.handle_response(ctx, now, &kept.bth, &kept.rest().into());
            ctx.reorder.give(kept);
        }
    }

    /// Nothing was heard for a while, and the path has lost something before: the peer is asked what has come. False if it is
    /// time for the ACK timeout.
    pub(crate) fn probe(&mut self, now: Time) -> bool {
        let selective = self.repeats_selectively();
        let Some(losses) = self.req.selective.as_mut().filter(|_| selective) else { return false };
        if losses.timeout_at.is_some_and(|at| at <= now) {
            return false;
        }
        let since = if losses.probes == 0 { losses.heard } else { losses.probed.0 };
        if now >= since + losses.patience() {
            losses.probes = losses.probes.saturating_add(1);
            losses.probe_due = true;
            self.deadline = Some(losses.deadline(now));
        } else {
            self.deadline = Some(losses.deadline(since));
        }
        true
    }
}

/// How a packet is built that is sent again.
pub(crate) struct Again {
    /// Of a READ: the response packets that are asked for.
    pub psns: u32,
    /// The packet behind it is there.
    pub resume: bool,
}
