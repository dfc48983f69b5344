//! What is sent most often, a WRITE or SEND of one packet, out of one piece of memory or the command itself, or a READ that
//! one packet answers into one piece; on a connection about which nothing is out of the ordinary.
//!
//! The general way ([`super::emit`]) asks of each packet again what holds for all of a run. Here that is decided once.
//! Nothing is left out: key, rights, bounds and window are checked, and acknowledgements asked for, as they are there. What is
//! not so plain is left to it before anything has changed, so that all errors are its own. See [`crate::plain`].

use remora_memory::Access;
use remora_wire::{Bth, ICRC_LEN, Opcode, Psn, Reth};

use super::Requester;
use crate::ctx::Ctx;
use crate::packet::pad_of;
use crate::qp::{BURST, QueuePair};
use crate::queue::{STRAIGHT, Source, TxBatch};
use crate::selective::{LATER, SELECTIVE};
use crate::types::*;

impl Requester {
    /// Whether nothing was lost or refused, or waits.
    #[inline]
    fn is_ordinary(&self) -> bool {
        self.selective.is_none() && self.fault.is_none() && !self.rnr_wait
    }
}

impl QueuePair {
    /// Sends the plain ones among the next work requests, a burst at most. Returns how many packets those are.
    pub(crate) fn emit_plain(&mut self, ctx: &mut Ctx, now: Time, batch: &mut TxBatch, route: Route) -> usize {
        let ordinary = ctx.plain
            && self.state == QpState::Rts
            && self.congestion.is_none()
            && self.req.is_ordinary()
            && self.req.cursor == self.sq.started
            && self.peer_patient
            && ctx.patient
            && !batch.has_room();
        if !ordinary {
            return 0;
        }
        let (window, every) = (self.window() as i32, self.ack_every());
        let mtu = self.mtu;
        let reserved7 = if ctx.selective { SELECTIVE | LATER } else { 0 };
        let all_report = self.init.sq_sig_all;
        let (mut sent, mut bytes) = (0, 0);
        while sent < BURST && self.sq.started < self.sq.tail && !batch.is_full() {
            let (at, psn) = (self.sq.started, self.req.next_psn);
            let (wqe, sges, inline) = self.sq.parts(at);
            let of = |va, rkey| Some(Reth { va, rkey, len: wqe.len });
            let (opcode, reth, len) = match wqe.op {
                SendOp::Write { va, rkey } => (Opcode::RcWriteOnly, of(va, rkey), wqe.len as usize),
                SendOp::Send => (Opcode::RcSendOnly, None, wqe.len as usize),
                SendOp::Read { va, rkey } if self.req.rd_atomics < self.req.max_rd_atomic => {
                    (Opcode::RcReadRequest, of(va, rkey), 0)
                }
                _ => break,
            };
            let in_window = (0..window).contains(&psn.distance(self.req.unacked));
            if !(1..=mtu).contains(&wqe.len) || len >= STRAIGHT || !in_window || wqe.fence {
                break;
            }
            let start = Bth::LEN + if reth.is_some() { Reth::LEN } else { 0 };
            let end = start + len;
            let out = batch.space();
            let fetched = match (wqe.source, sges) {
                // A READ has no payload, and brings some.
                (Source::List(_), _) if len == 0 => 0,
                (Source::List(_), [sge]) => {
                    let range = (sge.va, len as u64);
                    let key = (self.init.pd, sge.lkey);
                    let region = ctx.local(&mut self.local_region, key, range, Access::empty());
                    if region.is_none_or(|region| region.read(sge.va, &mut out[start..end]).is_err()) {
                        break;
                    }
                    len
                }
                (Source::Inline, _) => {
                    out[start..end].copy_from_slice(inline);
                    0
                }
                _ => break,
            };
            let waits = at + 1 < self.sq.tail && self.sq.get(at + 1).is_local();
            let hurry = waits || self.is_awaited(at + 1, wqe.signaled || all_report);
            let ack_req = hurry || self.req.since_ack_request + 1 >= every;
            let (solicited, pad) = (wqe.solicited, pad_of(len));
            Bth { solicited, pad, ack_req, reserved7, ..Bth::new(opcode, self.attr.dest_qp, psn) }.emit(out);
            if let Some(reth) = reth {
                reth.emit(&mut out[Bth::LEN..]);
            }
            // Pad and ICRC are up to seven bytes; a packet's place has more.
            out[end..end + 8].fill(0);
            let total = end + usize::from(pad) + ICRC_LEN;
            batch.commit_plain(route, total, fetched);
            self.start_plain(at, psn);
            self.req.since_ack_request = if ack_req { 0 } else { self.req.since_ack_request + 1 };
            (sent, bytes) = (sent + 1, bytes + total);
        }
        if sent > 0 {
            self.req.sent_psn = self.req.next_psn;
            ctx.counters.sent_all(route.link, sent, bytes);
            if self.deadline.is_none() {
                self.arm(now);
            }
        }
        sent
    }

    /// The element at the cursor has its PSN, the only one that it takes, and was sent: what
    /// [`start_element`](Self::start_element) and the cursor's move do of such.
    #[inline]
    fn start_plain(&mut self, at: u64, psn: Psn) {
        let wqe = self.sq.get_mut(at);
        (wqe.first_psn, wqe.psns, wqe.answered) = (psn, 1, 0);
        self.req.rd_atomics += u8::from(wqe.wants_response());
        self.req.next_psn = psn + 1;
        self.sq.started = at + 1;
        (self.req.cursor, self.req.packet) = (at + 1, 0);
    }

    /// Takes a plain READ's whole response. `None`, and nothing has changed, if the general way is to look at it.
    #[inline]
    pub(crate) fn take_plain_response(&mut self, ctx: &mut Ctx, now: Time, bth: &Bth, payload: &[u8]) -> Option<()> {
        let ordinary = self.init.kind == QpType::Rc
            && self.state == QpState::Rts
            && self.congestion.is_none()
            && !bth.fecn
            && self.req.is_ordinary()
            && self.req.early.is_empty()
            && self.is_next_response(bth.psn);
        if !ordinary {
            return None;
        }
        let (wqe, sges, _) = self.sq.parts(self.sq.head);
        let (SendOp::Read { .. }, [sge]) = (wqe.op, sges) else { return None };
        if wqe.psns != 1 || wqe.len as usize != payload.len() {
            return None;
        }
        let (len, range) = (wqe.len, (sge.va, wqe.len.into()));
        let region = ctx.local(&mut self.local_region, (self.init.pd, sge.lkey), range, Access::LOCAL_WRITE)?;
        region.write(sge.va, payload).ok()?;
        self.note_peer(ctx, bth);
        self.response_taken(ctx, now, (bth.psn, 1), true, len);
        Some(())
    }

    /// Whether the oldest work request is one that was sent, and begins with this PSN.
    #[inline]
    fn is_next_response(&self, psn: Psn) -> bool {
        let Self { sq, req, .. } = self;
        psn.distance(req.sent_psn) < 0 && sq.head < sq.started && sq.get(sq.head).first_psn == psn
    }
}
