//! The packets that come most often: a WRITE that is one packet, a READ that one answers, and that answer; whose turn it is,
//! on a connection about which nothing is out of the ordinary.
//!
//! They are carried out here, after every check that the general way ([`super::execute`]) makes, each made once. A packet
//! with which anything is not so plain is left to that before anything has changed, so that all refusals are its own. See
//! [`NicConfig::plain`](crate::NicConfig::plain).

use std::net::IpAddr;

use remora_memory::Access;
use remora_wire::{Aeth, Bth, ICRC_LEN, Opcode, Psn, Reth, Syndrome};

use super::answers::{Kind, Resource};
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
    /// Whether a request is plain that asks for `need`.
    #[inline]
    fn is_plain_request(&self, bth: &Bth, reth: &Reth, need: Access) -> bool {
        self.init.kind == QpType::Rc
            && self.receives()
            && self.congestion.is_none()
            && !bth.fecn
            && self.resp.is_ordinary(bth.psn)
            && self.attr.access.contains(need)
            && (1..=self.mtu).contains(&reth.len)
    }

    /// Carries out a plain WRITE from the peer. `None`, and nothing has changed, if the general way is to look at it.
    #[inline]
    fn take_plain_write(&mut self, ctx: &mut Ctx, link: u8, bth: &Bth, reth: &Reth, payload: &[u8]) -> Option<()> {
        if !self.is_plain_request(bth, reth, Access::REMOTE_WRITE) || reth.len as usize != payload.len() {
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

    /// As [`take_plain_write`](Self::take_plain_write), of a READ.
    #[inline]
    fn take_plain_read(&mut self, ctx: &mut Ctx, link: u8, bth: &Bth, reth: &Reth) -> Option<()> {
        if !self.is_plain_request(bth, reth, Access::REMOTE_READ) {
            return None;
        }
        let (by, range) = (self.binder(), (reth.va, reth.len.into()));
        ctx.remote(&mut self.remote_region, (by, reth.rkey), range, Access::REMOTE_READ)?;
        let kind = Kind::Read { va: reth.va, rkey: reth.rkey, len: reth.len };
        self.add_resource(Resource { psn: bth.psn, psns: 1, kind, next: 0, first: 0, answered: false }).ok()?;
        self.note_peer(ctx, bth);
        self.resp.expected = bth.psn + 1;
        ctx.counters.received(link);
        Some(())
    }
}

impl Nic {
    /// Takes a packet that is plain. `None`, and nothing has changed, if the general way is to look at it.
    #[inline]
    pub(crate) fn handle_plain(
        &mut self,
        now: Time,
        link: u8,
        (src, dst): (IpAddr, IpAddr),
        packet: &[u8],
    ) -> Option<()> {
        const WRITE: u8 = Opcode::RcWriteOnly.as_u8();
        const READ: u8 = Opcode::RcReadRequest.as_u8();
        const RESPONSE: u8 = Opcode::RcReadResponseOnly.as_u8();
        let op = *packet.first()?;
        if !matches!(op, WRITE | READ | RESPONSE) || !self.ctx.plain {
            return None;
        }
        let bth = Bth::parse(packet).ok()?;
        let end = packet.len().checked_sub(ICRC_LEN + usize::from(bth.pad))?;
        if bth.version != 0 || bth.pkey & 0x7fff != 0x7fff {
            return None;
        }
        let Self { qps, ctx, .. } = self;
        let qp = qps.get_mut(bth.dest_qp).filter(|qp| qp.route.is_some_and(|route| route.is(link, src, dst)))?;
        let has_news = if op == RESPONSE {
            qp.take_plain_response(ctx, now, &bth, packet.get(Bth::LEN + Aeth::LEN..end)?)?;
            true
        } else {
            let reth = Reth::parse(packet.get(Bth::LEN..)?).ok()?;
            let payload = packet.get(Bth::LEN + Reth::LEN..end)?;
            match op {
                WRITE => qp.take_plain_write(ctx, link, &bth, &reth, payload)?,
                _ if payload.is_empty() => qp.take_plain_read(ctx, link, &bth, &reth)?,
                _ => return None,
            }
            qp.response_ready()
        };
        self.now = now;
        self.ctx.counters.rx_packets += 1;
        self.ctx.counters.rx_bytes += packet.len() as u64;
        if has_news {
            self.note(bth.dest_qp);
        }
        Some(())
    }
}
