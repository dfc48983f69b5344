//! What the responder answers: responses to READs and atomics, once or again, and acknowledgements (sections 9.7.5.1 and
//! 9.7.5.2).

use remora_memory::{Access, Reference};
use remora_wire::{Aeth, AtomicAckEth, Bth, NakCode, Opcode, Psn, Reth, Syndrome};

use super::CREDITS;
use super::Refusal::{self, Nak};
use crate::ctx::Ctx;
use crate::packet::{Writer, pad_of};
use crate::qp::QueuePair;
use crate::queue::{TxBatch, run_packets};
use crate::selective::{LATER, PROBE, SELECTIVE};
use crate::types::*;

/// A READ or atomic that was carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub psn: Psn,
    pub psns: u32,
    pub kind: Kind,
    /// Response packets `next..psns` are to be sent.
    pub next: u32,
    /// The response starts at this packet: for a replay that asks for a part.
    pub first: u32,
    /// All was sent once; what is to be sent now is a replay.
    pub answered: bool,
}

impl Resource {
    /// It is a READ of a full packet or more.
    pub fn has_long(&self, mtu: u32) -> bool {
        matches!(self.kind, Kind::Read { len, .. } if len >= mtu)
    }
}

/// A part of a READ's response that a peer asks for again who keeps the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replay {
    /// The first PSN of the READ.
    pub psn: Psn,
    /// Response packets `next..end` are to be sent, of those from `first` on.
    pub first: u32,
    pub next: u32,
    pub end: u32,
}

/// Such parts that may wait to be sent; more are forgotten, and asked for once more.
const REPLAYS: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Read { va: u64, rkey: u32, len: u32 },
    Atomic { original: u64 },
}

impl QueuePair {
    pub(super) fn resource_room(&self) -> bool {
        self.resp.max_resources > 0
            && (self.resp.resources.len() < self.resp.max_resources
                || self.resp.resources.front().is_some_and(|r| r.answered))
    }

    /// Remembers a READ or atomic. A peer with more of them outstanding than agreed breaks the rules.
    pub(super) fn add_resource(&mut self, resource: Resource) -> Result<(), Refusal> {
        if !self.resource_room() {
            return Err(Nak(NakCode::InvalidRequest));
        }
        if self.resp.resources.len() >= self.resp.max_resources {
            // A new request shows that the peer has the old answer: a replay of it is not wanted any more.
            if let Some(old) = self.resp.resources.pop_front() {
                self.resp.unsent = self.resp.unsent.saturating_sub(1);
                self.resp.pending -= usize::from(old.next < old.psns);
                self.resp.replays.retain(|replay| replay.psn != old.psn);
            }
        }
        self.resp.resources.push_back(resource);
        self.resp.pending += 1;
        self.resp.count_message();
        // Its response acknowledges everything before it.
        (self.resp.ack, self.resp.owed) = (None, 0);
        Ok(())
    }

    /// A request that was carried out before: its answer was lost, or the peer lost patience.
    pub(super) fn handle_duplicate(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) {
        // Its first packets may all be lost, and it asks with the one PSN that nobody else knows.
        if bth.reserved7 & PROBE != 0 && bth.psn + 1 == self.resp.expected {
            self.note_peer(ctx, bth);
        }
        ctx.counters.duplicates += 1;
        match bth.opcode {
            Opcode::RcReadRequest => {
                let Ok(reth) = Reth::parse(rest) else { return };
                self.replay_read(bth.psn, reth);
            }
            Opcode::RcCompareSwap | Opcode::RcFetchAdd => {
                let found = self.resp.resources.iter().rposition(|r| r.psn == bth.psn);
                if let Some(at) = found
                    && let r = &mut self.resp.resources[at]
                    && matches!(r.kind, Kind::Atomic { .. })
                    && r.next == r.psns
                {
                    r.next = 0;
                    self.resp.pending += 1;
                    self.resp.unsent = self.resp.unsent.min(at);
                }
            }
            _ if bth.reserved7 & PROBE != 0
                && self.peer_selective
                && matches!(
                    self.resp.ack,
                    None | Some(Syndrome::Ack { .. } | Syndrome::Nak(NakCode::SequenceError))
                ) =>
            {
                self.resp.asked = true;
                self.resp.ack = Some(Syndrome::Nak(NakCode::SequenceError));
            }
            // A NAK that is due says more than an ACK would.
            _ if self.resp.ack.is_none() => self.resp.ack = Some(Syndrome::Ack { credits: CREDITS }),
            _ => {}
        }
    }

    /// Answers a READ again from the packet on that the peer asks for. A range that was not granted is ignored.
    fn replay_read(&mut self, psn: Psn, reth: Reth) {
        let (mtu, selective) = (self.mtu, self.peer_selective);
        let found = self.resp.resources.iter().rposition(|r| {
            let ahead = psn.distance(r.psn);
            ahead >= 0 && (ahead as u32) < r.psns
        });
        let Some(at) = found else { return };
        let r = &mut self.resp.resources[at];
        let Kind::Read { va, rkey, len } = r.kind else { return };
        let skip = psn.distance(r.psn) as u32;
        let Some(offset) = skip.checked_mul(mtu).filter(|&offset| offset <= len) else { return };
        let left = len - offset;
        // A part ends with a packet of its own.
        let part = selective && reth.len < left && reth.len > 0 && reth.len.is_multiple_of(mtu);
        if reth.va != va.wrapping_add(offset.into()) || reth.rkey != rkey || reth.len != left && !part {
            return;
        }
        if !selective {
            self.resp.pending += usize::from(r.next == r.psns);
            (r.next, r.first) = (skip, skip);
            self.resp.unsent = self.resp.unsent.min(at);
        } else if skip < r.next && self.resp.replays.len() < REPLAYS {
            // What has not been sent yet will be.
            let end = (if part { skip + reth.len / mtu } else { r.psns }).min(r.next);
            self.resp.replays.push_back(Replay { psn: r.psn, first: skip, next: skip, end });
        }
    }

    /// Builds the next response packet into `batch`. False if there is nothing to send.
    pub(crate) fn emit_response(&mut self, ctx: &mut Ctx, batch: &mut TxBatch) -> bool {
        let Some(route) = self.route else { return false };
        let total = if self.resp.pending > 0 || !self.resp.replays.is_empty() {
            match self.emit_resource(ctx, batch) {
                Some(total) => total,
                None => return false,
            }
        } else if let Some(syndrome) = self.resp.ack.take() {
            self.emit_ack(ctx, syndrome, batch)
        } else {
            return false;
        };
        batch.commit(route, total);
        ctx.counters.tx_packets += 1;
        ctx.counters.tx_bytes += total as u64;
        true
    }

    fn emit_ack(&mut self, ctx: &Ctx, syndrome: Syndrome, batch: &mut TxBatch) -> usize {
        self.resp.owed = 0;
        // What is missing says more than what is not.
        let syndrome = match syndrome {
            Syndrome::Ack { .. } if !self.resp.early.is_empty() => Syndrome::Nak(NakCode::SequenceError),
            _ => syndrome,
        };
        let psn = match syndrome {
            Syndrome::Ack { .. } => self.resp.to_acknowledge(),
            _ => self.resp.expected,
        };
        let asked = if std::mem::take(&mut self.resp.asked) { PROBE } else { 0 };
        let bth = self.answer(ctx, Opcode::RcAck, psn);
        let bth = Bth { reserved7: bth.reserved7 | asked, ..bth };
        let mut writer = Writer::new(batch.space(), &bth);
        writer.aeth(Aeth { syndrome, msn: self.resp.msn });
        if syndrome != Syndrome::Nak(NakCode::SequenceError) || !self.peer_selective {
            return writer.finish(0);
        }
        let map = self.resp.early.bitmap(psn);
        writer.payload(map.len()).copy_from_slice(&map);
        writer.finish(map.len())
    }

    /// The BTH of an answer.
    fn answer(&self, ctx: &Ctx, opcode: Opcode, psn: Psn) -> Bth {
        let later = if ctx.patient && self.peer_selective { LATER } else { 0 };
        let reserved7 = if ctx.selective { SELECTIVE | later } else { 0 };
        Bth { reserved7, ..Bth::new(opcode, self.attr.dest_qp, psn) }
    }

    /// The next packet that is asked for again, or of the oldest READ or atomic that has some to send.
    fn emit_resource(&mut self, ctx: &mut Ctx, batch: &mut TxBatch) -> Option<usize> {
        let replay = self.resp.replays.front().copied();
        let index = match replay {
            Some(replay) => self.resp.resources.iter().rposition(|r| r.psn == replay.psn)?,
            None => {
                let at = self.resp.next_unsent()?;
                self.resp.unsent = at;
                at
            }
        };
        let r = self.resp.resources[index];
        let Replay { first, next, end, .. } =
            replay.unwrap_or(Replay { psn: r.psn, first: r.first, next: r.next, end: r.psns });
        let psn = r.psn + next;
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: CREDITS }, msn: self.resp.msn };
        let mut psns = 1;
        let total = match r.kind {
            Kind::Atomic { original } => {
                let bth = self.answer(ctx, Opcode::RcAtomicAck, psn);
                let mut writer = Writer::new(batch.space(), &bth);
                writer.aeth(aeth);
                writer.atomic_ack(AtomicAckEth { original });
                writer.finish(0)
            }
            Kind::Read { va, rkey, len } => {
                let offset = next * self.mtu;
                let va = va.wrapping_add(offset.into());
                // What is asked for again goes packet by packet.
                let most = if replay.is_none() { run_packets(self.mtu).min(end - next) } else { 1 };
                let mtu = self.mtu;
                let part = |packets: u32| (len - offset).min(packets * mtu) as usize;
                let reference = self.name_for_peer(ctx, rkey, va, part(most), batch);
                psns = if reference.is_some() { most } else { 1 };
                let n = part(psns);
                let opcode = match (next == first, next + psns == end) {
                    (true, true) => Opcode::RcReadResponseOnly,
                    (true, false) => Opcode::RcReadResponseFirst,
                    (false, false) => Opcode::RcReadResponseMiddle,
                    (false, true) => Opcode::RcReadResponseLast,
                };
                let bth = Bth { pad: pad_of(n), ..self.answer(ctx, opcode, psn) };
                let mut writer = Writer::within(batch.spaces(), &bth);
                if opcode.has_aeth() {
                    writer.aeth(aeth);
                }
                if let Some(reference) = reference {
                    writer.refer(reference);
                    ctx.counters.tx_referred += 1;
                } else if n > 0 && !self.read_for_peer(ctx, rkey, va, n, &mut writer) {
                    // The region went away between request and response, or the lease that it is under is over.
                    self.resp.expected = psn;
                    self.resp.ack = Some(Syndrome::Nak(NakCode::RemoteAccess));
                    self.fail(ctx, WcStatus::RemoteAccess);
                    self.resp.ack = None;
                    self.resp.stop();
                    let nak = Syndrome::Nak(NakCode::RemoteAccess);
                    return Some(self.emit_ack(ctx, nak, batch));
                }
                let placed = writer.placed();
                let total = writer.finish(n);
                batch.note_placed(placed);
                if reference.is_none() {
                    batch.note_fetched(n);
                }
                total
            }
        };
        if let Some(replay) = self.resp.replays.front_mut() {
            replay.next += 1;
            if replay.next == end {
                self.resp.replays.pop_front();
            }
            return Some(total);
        }
        let r = &mut self.resp.resources[index];
        r.next += psns;
        if r.next == r.psns {
            r.answered = true;
            self.resp.pending -= 1;
        }
        Some(total)
    }

    fn read_for_peer(&mut self, ctx: &mut Ctx, rkey: u32, va: u64, len: usize, writer: &mut Writer<'_>) -> bool {
        let Ok(region) = self.remote_region(ctx, rkey, va, len as u64, Access::REMOTE_READ) else { return false };
        ctx.is_within(region.lease()) && writer.target(len).fill(region, va, len).is_some()
    }

    /// Names bytes that the peer may read to it, if it has been lent them.
    fn name_for_peer(&mut self, ctx: &Ctx, rkey: u32, va: u64, len: usize, batch: &TxBatch) -> Option<Reference> {
        if !batch.may_refer() {
            return None;
        }
        let region = self.remote_region(ctx, rkey, va, len as u64, Access::REMOTE_READ).ok()?;
        if region.lease().is_some() {
            // It would look at them when the lease may be over.
            return None;
        }
        batch.name(&region.place(va, len)?, len)
    }
}
