//! The requests that come most often: a WRITE that is one packet, or a READ that one answers, whose turn it is, on a connection
//! about which nothing is out of the ordinary.
//!
//! They are carried out here, after every check that the general way ([`super::execute`]) makes, each made once. A packet
//! with which anything is not so plain is left to that before anything has changed, so that all refusals are its own. See
//! [`crate::plain`].

use remora_memory::Access;
use remora_wire::{Bth, Psn, Reth, Syndrome};

use super::Responder;
use super::answers::{Kind, Resource};
use super::execute::show;
use crate::ctx::Ctx;
use crate::qp::QueuePair;
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
    pub(crate) fn take_plain_write(&mut self, ctx: &mut Ctx, bth: &Bth, reth: &Reth, payload: &[u8]) -> Option<()> {
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
        self.resp.count_message();
        ctx.counters.writes += 1;
        // What `request_taken` does of a WRITE where nothing was refused and nothing came early.
        ctx.counters.received(self.route.map_or(0, |route| route.link));
        self.resp.expected = self.resp.expected + 1;
        self.resp.trailing = 0;
        self.note_asked(ctx, bth);
        Some(())
    }

    /// As [`take_plain_write`](Self::take_plain_write), of a READ.
    #[inline]
    pub(crate) fn take_plain_read(&mut self, ctx: &mut Ctx, bth: &Bth, reth: &Reth) -> Option<()> {
        if !self.is_plain_request(bth, reth, Access::REMOTE_READ) {
            return None;
        }
        let (by, range) = (self.binder(), (reth.va, reth.len.into()));
        let region = ctx.remote(&mut self.remote_region, (by, reth.rkey), range, Access::REMOTE_READ)?;
        let lease = region.lease();
        let kind = Kind::Read { va: reth.va, rkey: reth.rkey, len: reth.len };
        self.add_resource(Resource { psn: bth.psn, psns: 1, kind, next: 0, first: 0, answered: false }).ok()?;
        ctx.read_asked(lease);
        self.note_peer(ctx, bth);
        self.request_taken(ctx, bth, 1);
        Some(())
    }
}
