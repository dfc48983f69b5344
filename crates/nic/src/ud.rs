//! Unreliable datagrams: one packet a message, no acknowledgement.
//!
//! InfiniBand specification, volume 1, section 9.8.3; RoCE v2 puts the IP header where the GRH would be (annex A17).

use std::net::IpAddr;

use remora_wire::ip::{Ipv4, Ipv6, PROTOCOL_UDP, Udp};
use remora_wire::{Bth, Deth, ICRC_LEN, ImmDt, Opcode};

use crate::ctx::{Ctx, Multicast};
use crate::packet::{Writer, pad_of};
use crate::qp::QueuePair;
use crate::queue::{Source, Target, TxBatch};
use crate::types::*;

/// Bytes in front of every received datagram where the global route header lies.
pub const GRH_LEN: usize = 40;

impl QueuePair {
    /// Whether a datagram waits to be sent, and to where.
    pub(crate) fn datagram_route(&self) -> Option<Route> {
        if self.state != QpState::Rts || self.sq.started == self.sq.tail {
            return None;
        }
        self.sq.get(self.sq.started).dest.map(|d| d.route)
    }

    /// Sends the next datagram; it completes at once. False if there is none.
    pub(crate) fn emit_datagram(&mut self, ctx: &mut Ctx, batch: &mut TxBatch) -> bool {
        let Some(route) = self.datagram_route() else { return false };
        let psn = self.req.take_psn();
        let (wqe, sges, inline) = self.sq.parts(self.sq.started);
        let Some(dest) = wqe.dest else { return false };
        let (opcode, imm) = match wqe.op {
            SendOp::SendImm(imm) => (Opcode::UdSendOnlyImm, Some(imm)),
            _ => (Opcode::UdSendOnly, None),
        };
        let len = wqe.len as usize;
        let bth = Bth { solicited: wqe.solicited, pad: pad_of(len), ..Bth::new(opcode, dest.qpn, psn) };
        let mut writer = Writer::new(batch.space(), &bth);
        // A queue key with the highest bit set stands for the queue pair's own.
        let qkey = if dest.qkey >> 31 == 1 { self.attr.qkey } else { dest.qkey };
        writer.deth(Deth { qkey, reserved: 0, src_qp: self.qpn.0 });
        if let Some(imm) = imm {
            writer.imm(ImmDt(imm));
        }
        let payload = writer.payload(len);
        let gathered = match wqe.source {
            Source::List(_) => {
                ctx.gather(&mut self.local_region, self.init.pd, sges, 0, Target::Private(payload)).is_some()
            }
            _ => inline.get(..len).is_some_and(|from| {
                payload.copy_from_slice(from);
                true
            }),
        };
        let total = writer.finish(len);
        self.sq.started += 1;
        if !gathered {
            self.stop_sending(ctx, WcStatus::LocalProtection);
            return false;
        }
        if route.remote.is_multicast() {
            let mut packet = ctx.rpc.buffer();
            packet.extend_from_slice(&batch.space()[..total]);
            ctx.multicast.push_back(Multicast { route, from: self.qpn, packet });
        }
        batch.commit(route, total);
        ctx.counters.tx_packets += 1;
        ctx.counters.tx_bytes += total as u64;
        ctx.counters.sent(route.link);
        self.complete_send(ctx, WcStatus::Success, 0);
        true
    }

    /// A datagram from `src`; `rest` is what follows the BTH. What does not fit is dropped, as the service allows.
    pub(crate) fn handle_datagram(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8], src: IpAddr, dst: IpAddr) -> bool {
        let Ok(deth) = Deth::parse(rest) else { return false };
        if deth.qkey != self.attr.qkey {
            return false;
        }
        let mut data = &rest[Deth::LEN..];
        let mut imm = None;
        if bth.opcode.has_imm() {
            let Ok(header) = ImmDt::parse(data) else { return false };
            imm = Some(header.0);
            data = &data[ImmDt::LEN..];
        }
        if data.len() > self.mtu as usize {
            return false;
        }
        if !self.take_recv(ctx) {
            return false;
        }
        let pd = self.recv_pd(ctx);
        let grh = grh(src, dst, rest.len() + usize::from(bth.pad));
        let sges = &self.recv.sges;
        let landed = ctx
            .scatter(&mut self.local_region, pd, sges, 0, grh[..].into())
            .and_then(|()| ctx.scatter(&mut self.local_region, pd, sges, GRH_LEN, data.into()));
        let status = landed.err().unwrap_or(WcStatus::Success);
        let wc = WorkCompletion {
            imm,
            src_qp: deth.src_qp,
            src: Some(src),
            ..self.wc(self.recv.wr_id, status, WcOpcode::Recv, (GRH_LEN + data.len()) as u32)
        };
        self.complete_recv(ctx, wc, bth.solicited);
        if status != WcStatus::Success {
            self.fail(ctx, status);
        }
        true
    }
}

/// The 40 bytes in front of a datagram: an IPv6 header, or 20 unused bytes and an IPv4 header (annex A17.4.5.1).
///
/// `len` counts what follows the BTH, up to the ICRC. An engine does not see the IP header, so that this is the one
/// that RoCE v2 senders use: TTL 64, DF, identification 0. Its checksum is right, as libibverbs wants it before it
/// takes the header for IPv4.
fn grh(src: IpAddr, dst: IpAddr, len: usize) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let payload = Udp::LEN + Bth::LEN + len + ICRC_LEN;
    match (src.to_canonical(), dst.to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total_len = (Ipv4::LEN + payload) as u16;
            let protocol = PROTOCOL_UDP;
            Ipv4 { tos: 0, total_len, id: 0, dont_fragment: true, ttl: 64, protocol, src, dst }.emit(&mut grh[20..]);
        }
        (src, dst) => {
            let v6 = |ip: IpAddr| match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let (payload_len, next_header) = (payload as u16, PROTOCOL_UDP);
            let (traffic_class, flow_label, hop_limit) = (0, 0, 64);
            let (src, dst) = (v6(src), v6(dst));
            Ipv6 { traffic_class, flow_label, payload_len, next_header, hop_limit, src, dst }.emit(&mut grh);
        }
    }
    grh
}
