//! A short way for the packets that come most often, on a reliable connection about which nothing is out of the ordinary: a
//! WRITE of one packet, a READ that one packet answers, and that answer. Who sends such, and SENDs, has one as well.
//!
//! [`NicConfig::plain`](crate::NicConfig::plain) turns it off. A test holds engines with and without it against each other:
//! whatever is asked of them, and whatever a peer makes up, they say and do the same.

use std::net::IpAddr;

use remora_wire::{Aeth, Bth, ICRC_LEN, Opcode, Reth};

use crate::nic::Nic;
use crate::types::Time;

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
                WRITE => qp.take_plain_write(ctx, &bth, &reth, payload)?,
                _ if payload.is_empty() => qp.take_plain_read(ctx, &bth, &reth)?,
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
