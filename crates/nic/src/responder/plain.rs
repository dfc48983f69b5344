//! The packet that comes most often: a WRITE that is one packet, and whose turn it is, on a connection about which nothing is
//! out of the ordinary.
//!
//! It is carried out here, after every check that the general way ([`super::execute`]) makes, each made once. A packet with
//! which anything is not so plain is left to that before anything has changed, so that all refusals are its own. See
//! [`NicConfig::plain`](crate::NicConfig::plain).

use std::net::IpAddr;

use remora_memory::Access;
use remora_wire::{Bth, ICRC_LEN, Opcode, Psn, Reth, Syndrome};

use super::execute::show;
use super::{CREDITS, Responder};
use crate::ctx::Ctx;
use crate::nic::Nic;
use crate::qp::QueuePair;
use crate::selective::LATER;
use crate::types::*;

impl Responder {
    /// Whether the packet with this PSN is the one that is expected, and nothing else is to be thought of.
    #[inline]
    fn is_ordinary(&self, psn: Psn) -> bool {
        psn == self.expected
            && self.established
            && !self.waiting
            && self.refusals == 0
            && !self.in_message()
            && self.early.is_empty()
            && matches!(self.ack, None | Some(Syndrome::Ack { .. }))
    }
}

impl QueuePair {
    /// Carries out a plain WRITE from the peer. `None`, and nothing has changed, if the general way is to look at it.
    #[inline]
    fn take_plain_write(&mut self, ctx: &mut Ctx, link: u8, bth: &Bth, reth: &Reth, payload: &[u8]) -> Option<()> {
        let ordinary = self.init.kind == QpType::Rc
            && self.receives()
            && self.congestion.is_none()
            && !bth.fecn
            && self.resp.is_ordinary(bth.psn)
            && self.attr.access.contains(Access::REMOTE_WRITE)
            && reth.len as usize == payload.len()
            && (1..=self.mtu).contains(&reth.len);
        if !ordinary {
            return None;
        }
        let (by, range) = (self.binder(), (reth.va, reth.len.into()));
        let region = ctx.remote(&mut self.remote_region, (by, reth.rkey), range, Access::REMOTE_WRITE)?;
        region.write(reth.va, payload).ok()?;
        if let Some(tap) = ctx.taps.find(reth.rkey) {
            show(tap, region, reth.va, payload, 0);
            tap.ended();
        }
        self.note_peer(ctx, bth);
        self.resp.expected = bth.psn + 1;
        self.resp.count_message();
        ctx.counters.writes += 1;
        ctx.counters.received(link);
        if bth.ack_req {
            self.resp.ack = Some(Syndrome::Ack { credits: CREDITS });
        } else if bth.reserved7 & LATER != 0 {
            self.owe(ctx);
        }
        Some(())
    }
}

impl Nic {
    /// Takes a packet that is a plain WRITE. `None`, and nothing has changed, if the general way is to look at it.
    #[inline]
    pub(crate) fn handle_plain(
        &mut self,
        now: Time,
        link: u8,
        (src, dst): (IpAddr, IpAddr),
        packet: &[u8],
    ) -> Option<()> {
        if packet.first() != Some(&Opcode::RcWriteOnly.as_u8()) || !self.ctx.plain {
            return None;
        }
        let bth = Bth::parse(packet).ok()?;
        let reth = Reth::parse(packet.get(Bth::LEN..)?).ok()?;
        let end = packet.len().checked_sub(ICRC_LEN + usize::from(bth.pad))?;
        let payload = packet.get(Bth::LEN + Reth::LEN..end)?;
        if bth.version != 0 || bth.pkey & 0x7fff != 0x7fff {
            return None;
        }
        let qp = self.qps.get_mut(bth.dest_qp).filter(|qp| qp.route.is_some_and(|route| route.is(link, src, dst)))?;
        qp.take_plain_write(&mut self.ctx, link, &bth, &reth, payload)?;
        let answers = qp.resp.ack.is_some();
        self.now = now;
        self.ctx.counters.rx_packets += 1;
        self.ctx.counters.rx_bytes += packet.len() as u64;
        if answers {
            self.note(bth.dest_qp);
        }
        Some(())
    }
}
