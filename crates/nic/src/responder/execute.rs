//! Carries out the request whose turn it is, after every check that the specification asks for (section 9.7.4.1).

use remora_memory::{Access, Region};
use remora_wire::rpc::RpcHeader;
use remora_wire::{AtomicEth, Bth, Ieth, ImmDt, NakCode, Opcode, Reth};

use super::Refusal::{Local, Lost, Nak, NotReady};
use super::answers::{Kind, Resource};
use super::{MAX_MESSAGE, Message, Refusal};
use crate::arrival::Body;
use crate::ctx::Ctx;
use crate::qp::QueuePair;
use crate::queue::run_packets;
use crate::tap::WriteTap;
use crate::types::*;

impl QueuePair {
    /// Carries out the expected packet. Returns the PSNs it takes.
    pub(crate) fn execute(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &Body<'_>) -> Result<u32, Refusal> {
        use Opcode::*;
        let op = bth.opcode;
        let continues = op.is_middle() || op.is_last();
        let in_message = !matches!(self.resp.message, Message::None);
        if continues != in_message {
            return Err(Nak(NakCode::InvalidRequest));
        }
        match op {
            RcSendFirst | RcSendMiddle | RcSendLast | RcSendLastImm | RcSendLastInv | RcSendOnly | RcSendOnlyImm
            | RcSendOnlyInv => self.execute_send(ctx, bth, rest),
            RcWriteFirst | RcWriteMiddle | RcWriteLast | RcWriteLastImm | RcWriteOnly | RcWriteOnlyImm => {
                self.execute_write(ctx, bth, rest)
            }
            RcReadRequest => self.execute_read(ctx, bth, rest.headers()),
            RcCompareSwap | RcFetchAdd => self.execute_atomic(ctx, bth, rest.headers()),
            RpcParams => self.execute_rpc(ctx, rest.headers()),
            RpcWriteFirst | RpcWriteMiddle | RpcWriteLast | RpcWriteOnly => {
                self.execute_rpc_write(ctx, bth, rest.headers())
            }
            _ => Err(Nak(NakCode::InvalidRequest)),
        }
    }

    /// FIRST and MIDDLE carry exactly one MTU, LAST at least a byte, nothing more than one MTU (section 9.7.4.1.6). What stands for
    /// many packets in a row is as long as they are. Returns the PSNs that it takes.
    fn check_length(&self, op: Opcode, data: &Body<'_>) -> Result<u32, Refusal> {
        let (len, mtu) = (data.len(), self.mtu as usize);
        let psns = if len <= mtu { 1 } else { len.div_ceil(mtu) };
        let most = if data.is_referred() { run_packets(self.mtu) as usize } else { 1 };
        let fits = psns <= most
            && match () {
                _ if op.is_first() || op.is_middle() => len == psns * mtu,
                _ if op.is_last() => len > 0,
                _ => true,
            };
        if fits { Ok(psns as u32) } else { Err(Nak(NakCode::InvalidRequest)) }
    }

    fn execute_send(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &Body<'_>) -> Result<u32, Refusal> {
        let op = bth.opcode;
        let Trailers { imm, invalidate, len } = Trailers::parse(op, rest.headers())?;
        let data = rest.skip(len);
        let psns = self.check_length(op, &data)?;
        let offset = match self.resp.message {
            Message::None => 0,
            Message::Send { offset } => offset,
            _ => return Err(Nak(NakCode::InvalidRequest)),
        };
        if !self.resp.in_message() && !self.take_recv(ctx) {
            return Err(NotReady);
        }
        self.resp.message = Message::None;
        let pd = self.recv_pd(ctx);
        let end = offset.saturating_add(data.len() as u32);
        let landed = match end <= MAX_MESSAGE {
            true => ctx.scatter(&mut self.local_region, pd, &self.recv.sges, offset as usize, data),
            false => Err(WcStatus::LocalLength),
        };
        if data.is_stale() {
            (self.recv_held, self.resp.message) = match offset {
                0 => (true, Message::None),
                offset => (false, Message::Send { offset }),
            };
            return Err(Lost);
        }
        if let Err(status) = landed {
            let wc = self.wc(self.recv.wr_id, status, WcOpcode::Recv, 0);
            self.complete_recv(ctx, wc, true);
            return Err(Local(status));
        }
        if !(op.is_last() || op.is_only()) {
            self.resp.message = Message::Send { offset: end };
            return Ok(psns);
        }
        if let Some(rkey) = invalidate
            && ctx.regions.registry().invalidate(self.binder(), rkey).is_err()
        {
            let wc = self.wc(self.recv.wr_id, WcStatus::LocalProtection, WcOpcode::Recv, 0);
            self.complete_recv(ctx, wc, true);
            return Err(Local(WcStatus::RemoteAccess));
        }
        self.resp.count_message();
        let wc = WorkCompletion {
            imm,
            invalidated: invalidate,
            ..self.wc(self.recv.wr_id, WcStatus::Success, WcOpcode::Recv, end)
        };
        self.complete_recv(ctx, wc, bth.solicited);
        Ok(psns)
    }

    fn execute_write(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &Body<'_>) -> Result<u32, Refusal> {
        let op = bth.opcode;
        let (mut va, rkey, mut remaining, total, skip) = match self.resp.message {
            Message::None => {
                let reth = Reth::parse(rest.headers()).map_err(|_| Nak(NakCode::InvalidRequest))?;
                if reth.len > MAX_MESSAGE {
                    return Err(Nak(NakCode::InvalidRequest));
                }
                (reth.va, reth.rkey, reth.len, reth.len, Reth::LEN)
            }
            Message::Write { va, rkey, remaining, total } => (va, rkey, remaining, total, 0),
            _ => return Err(Nak(NakCode::InvalidRequest)),
        };
        let Trailers { imm, len, .. } = Trailers::parse(op, rest.headers().get(skip..).unwrap_or_default())?;
        let data = rest.skip(skip + len);
        let ends = op.is_last() || op.is_only();
        let psns = self.check_length(op, &data)?;
        let len = data.len() as u32;
        if len > remaining || ends != (len == remaining) {
            return Err(Nak(NakCode::InvalidRequest));
        }
        // The whole range is checked before its first byte is written.
        if remaining > 0 {
            self.remote_region(ctx, rkey, va, remaining.into(), Access::REMOTE_WRITE)?;
        }
        if imm.is_some() && !self.take_recv(ctx) {
            return Err(NotReady);
        }
        let region = self.remote_region.as_deref().filter(|_| len > 0);
        let tap = region.and_then(|_| ctx.taps.find(rkey));
        // A tap sees what lands, whatever the peer does to it meanwhile.
        let shown = match tap {
            Some(_) => data.copy(&mut ctx.private).ok_or(Nak(NakCode::InvalidRequest))?,
            None => &[],
        };
        let came = data;
        let data = if tap.is_some() { shown.into() } else { data };
        // What a tap is to see is not to change its mind.
        let early = tap.is_some() && came.is_stale();
        let landed = early || region.is_none_or(|region| data.land(region, va, data.len()).is_ok());
        if came.is_stale() || !landed {
            self.recv_held = imm.is_some();
            return Err(if landed { Lost } else { Nak(NakCode::RemoteAccess) });
        }
        if let Some(region) = region
            && let Some(tap) = tap
        {
            show(tap, region, va, shown, (remaining - len) as usize);
            if ends {
                tap.ended();
            }
        }
        va = va.wrapping_add(len.into());
        remaining -= len;
        if !ends {
            self.resp.message = Message::Write { va, rkey, remaining, total };
            return Ok(psns);
        }
        self.resp.message = Message::None;
        self.resp.count_message();
        ctx.counters.writes += 1;
        if imm.is_some() {
            let wc =
                WorkCompletion { imm, ..self.wc(self.recv.wr_id, WcStatus::Success, WcOpcode::RecvWriteImm, total) };
            self.complete_recv(ctx, wc, bth.solicited);
        }
        Ok(psns)
    }

    fn execute_read(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) -> Result<u32, Refusal> {
        let reth = Reth::parse(rest).map_err(|_| Nak(NakCode::InvalidRequest))?;
        if rest.len() != Reth::LEN || reth.len > MAX_MESSAGE {
            return Err(Nak(NakCode::InvalidRequest));
        }
        if reth.len > 0 {
            let region = self.remote_region(ctx, reth.rkey, reth.va, reth.len.into(), Access::REMOTE_READ)?;
            ctx.read_asked(region.lease());
        }
        let psns = reth.len.div_ceil(self.mtu).max(1);
        let kind = Kind::Read { va: reth.va, rkey: reth.rkey, len: reth.len };
        self.add_resource(Resource { psn: bth.psn, psns, kind, next: 0, first: 0, answered: false })?;
        Ok(psns)
    }

    fn execute_atomic(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) -> Result<u32, Refusal> {
        let eth = AtomicEth::parse(rest).map_err(|_| Nak(NakCode::InvalidRequest))?;
        if rest.len() != AtomicEth::LEN || eth.va % 8 != 0 {
            return Err(Nak(NakCode::InvalidRequest));
        }
        if !self.resource_room() {
            return Err(Nak(NakCode::InvalidRequest));
        }
        let region = self.remote_region(ctx, eth.rkey, eth.va, 8, Access::REMOTE_ATOMIC)?;
        let original = match bth.opcode {
            Opcode::RcCompareSwap => region.compare_swap(eth.va, eth.compare, eth.swap_or_add),
            _ => region.fetch_add(eth.va, eth.swap_or_add),
        }
        .map_err(|_| Nak(NakCode::RemoteAccess))?;
        let kind = Kind::Atomic { original };
        self.add_resource(Resource { psn: bth.psn, psns: 1, kind, next: 0, first: 0, answered: false })?;
        Ok(1)
    }

    fn execute_rpc(&mut self, ctx: &mut Ctx, rest: &[u8]) -> Result<u32, Refusal> {
        let reth = Reth::parse(rest).map_err(|_| Nak(NakCode::InvalidRequest))?;
        let data = &rest[Reth::LEN..];
        self.check_length(Opcode::RpcParams, &data.into())?;
        let header = RpcHeader::parse(data).map_err(|_| Nak(NakCode::InvalidRequest))?;
        if reth.len as usize != data.len() || self.resp.stream.is_some() {
            return Err(Nak(NakCode::InvalidRequest));
        }
        if !ctx.rpc.has_room(self.qpn.0, self.init.max_rpc) {
            return Err(NotReady);
        }
        let id = self.accept_rpc(ctx, reth.va, header, &data[RpcHeader::LEN..], None);
        if header.flags & remora_wire::rpc::FLAG_STREAM != 0 {
            self.resp.stream = Some((reth.va, id));
        }
        self.resp.count_message();
        Ok(1)
    }

    fn execute_rpc_write(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) -> Result<u32, Refusal> {
        let op = bth.opcode;
        let (id, remaining, data) = match self.resp.message {
            Message::None => {
                let reth = Reth::parse(rest).map_err(|_| Nak(NakCode::InvalidRequest))?;
                match self.resp.stream {
                    Some((kernel, id)) if kernel == reth.va => (id, reth.len, &rest[Reth::LEN..]),
                    _ => return Err(Nak(NakCode::InvalidRequest)),
                }
            }
            Message::RpcWrite { id, remaining } => (id, remaining, rest),
            _ => return Err(Nak(NakCode::InvalidRequest)),
        };
        self.check_length(op, &data.into())?;
        let ends = op.is_last() || op.is_only();
        let len = data.len() as u32;
        if len > remaining || ends != (len == remaining) {
            return Err(Nak(NakCode::InvalidRequest));
        }
        if !ctx.rpc.chunk_room(self.qpn.0) {
            return Err(NotReady);
        }
        ctx.rpc.push_chunk(self.qpn.0, id, data, ends);
        if ends {
            self.resp.message = Message::None;
            self.resp.stream = None;
            self.resp.count_message();
        } else {
            self.resp.message = Message::RpcWrite { id, remaining: remaining - len };
        }
        Ok(1)
    }

    /// The region that the peer may use so through this queue pair, or the NAK that it gets.
    pub(super) fn remote_region(
        &mut self,
        ctx: &Ctx,
        rkey: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<&Region, Refusal> {
        if !self.attr.access.contains(need) {
            return Err(Nak(NakCode::RemoteAccess));
        }
        let by = self.binder();
        ctx.remote(&mut self.remote_region, (by, rkey), (va, len), need).ok_or(Nak(NakCode::RemoteAccess))
    }
}

/// Bytes of a payload that a tap sees at a time.
const SHOWN: u64 = 1024;

/// Shows a tap what was written at `va`, in pieces. With each piece the cache is asked for as many bytes of where the next
/// packet goes, so that they come from memory meanwhile; all at once they would hold up the tap. `to_come` bytes of the
/// message are left.
pub(super) fn show(tap: &mut dyn WriteTap, region: &Region, va: u64, mut data: &[u8], mut to_come: usize) {
    let mut offset = va.wrapping_sub(region.va());
    let mut next = va.wrapping_add(data.len() as u64);
    while !data.is_empty() {
        // So that no aligned word is in two pieces.
        let (piece, rest) = data.split_at(data.len().min((SHOWN - offset % SHOWN) as usize));
        let ahead = piece.len().min(to_come);
        region.prefetch(next, ahead);
        tap.saw(offset, piece);
        (data, to_come) = (rest, to_come - ahead);
        offset = offset.wrapping_add(piece.len() as u64);
        next = next.wrapping_add(ahead as u64);
    }
}

/// The extension headers next to the payload.
struct Trailers {
    imm: Option<u32>,
    invalidate: Option<u32>,
    /// Their bytes.
    len: usize,
}

impl Trailers {
    /// From the front of `bytes`, if the operation has some.
    #[inline]
    fn parse(op: Opcode, bytes: &[u8]) -> Result<Self, Refusal> {
        if op.has_imm() {
            let imm = ImmDt::parse(bytes).map_err(|_| Nak(NakCode::InvalidRequest))?;
            Ok(Self { imm: Some(imm.0), invalidate: None, len: ImmDt::LEN })
        } else if op.has_ieth() {
            let ieth = Ieth::parse(bytes).map_err(|_| Nak(NakCode::InvalidRequest))?;
            Ok(Self { imm: None, invalidate: Some(ieth.rkey), len: Ieth::LEN })
        } else {
            Ok(Self { imm: None, invalidate: None, len: 0 })
        }
    }
}
