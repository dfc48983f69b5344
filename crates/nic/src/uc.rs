//! Unreliable connections: SEND and WRITE in packets that nobody acknowledges. A message that misses a packet is lost
//! as a whole and in silence; the next one starts anew.
//!
//! InfiniBand specification, volume 1, sections 9.8.2 and 9.9.3.

use remora_wire::{Bth, Opcode};

use crate::ctx::Ctx;
use crate::qp::QueuePair;
use crate::queue::TxBatch;
use crate::responder::Refusal;
use crate::types::*;

/// The op-codes of SEND and WRITE lie this far behind those of the reliable connection.
const OFFSET: u8 = Opcode::UcSendFirst.as_u8() - Opcode::RcSendFirst.as_u8();

/// The unreliable connection's op-code for the same packet. Those that it does not have stay as they are.
pub(crate) fn unreliable(op: Opcode) -> Opcode {
    Opcode::from_u8(op.as_u8() + OFFSET).unwrap_or(op)
}

/// The reliable connection's op-code for the same packet.
fn reliable(op: Opcode) -> Opcode {
    Opcode::from_u8(op.as_u8() - OFFSET).unwrap_or(op)
}

impl QueuePair {
    /// Whether a packet could be sent now. A message that has begun goes out whole, also while draining.
    pub(crate) fn unreliable_ready(&self) -> bool {
        let begun = self.req.cursor() < self.sq.started;
        self.sends() && (begun || self.state != QpState::Sqd && self.sq.started < self.sq.tail)
    }

    /// Builds the next packet into `batch`; with its last packet a message is complete. False if there is none.
    pub(crate) fn emit_unreliable(&mut self, ctx: &mut Ctx, batch: &mut TxBatch) -> bool {
        if !self.unreliable_ready() {
            return false;
        }
        while self.local_is_next() {
            if let Err(status) = self.run_local(ctx) {
                self.stop_sending(ctx, status);
            }
            if !self.unreliable_ready() {
                return false;
            }
        }
        if self.req.cursor() == self.sq.started {
            self.start_element();
        }
        if let Err(status) = self.build_request(ctx, batch) {
            // The rest of a message that has begun is never sent: the peer drops what it has of it.
            self.stop_sending(ctx, status);
            return false;
        }
        if self.req.cursor() > self.sq.head {
            self.complete_send(ctx, WcStatus::Success, 0);
            self.after_completion(ctx);
        }
        true
    }

    /// The oldest send fails, and those behind it are flushed; receiving goes on.
    pub(crate) fn stop_sending(&mut self, ctx: &mut Ctx, status: WcStatus) {
        self.state = QpState::Sqe;
        self.complete_send(ctx, status, 0);
        self.flush_sends(ctx);
    }

    /// A packet from the peer; `rest` is what follows the BTH, without pad and ICRC.
    pub(crate) fn handle_unreliable(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) {
        let op = bth.opcode;
        let starts = op.is_first() || op.is_only();
        if starts || bth.psn != self.resp.expected_psn() {
            // What was arriving lacks its end, or this packet its beginning.
            self.drop_message();
        }
        if !starts && !self.resp.in_message() {
            return;
        }
        self.resp.expect(bth.psn + 1);
        self.established(ctx);
        match self.execute(ctx, &Bth { opcode: reliable(op), ..*bth }, &rest.into()) {
            Ok(_) => {}
            Err(Refusal::Local(status)) => self.fail(ctx, status),
            Err(Refusal::Nak(_) | Refusal::NotReady | Refusal::Lost) => self.drop_message(),
        }
    }
}
