//! The responder half of a queue pair: checks each request in the specification's order, carries it out, answers.
//!
//! InfiniBand specification, volume 1, section 9.7.4 (responder) and 9.7.5.2 (responses).

use std::collections::VecDeque;

use remora_memory::{Access, Region};
use remora_wire::rpc::RpcHeader;
use remora_wire::{Aeth, AtomicAckEth, AtomicEth, Bth, Ieth, ImmDt, NakCode, Opcode, Psn, Reth, Syndrome};

use crate::ctx::Ctx;
use crate::packet::{Writer, pad_of};
use crate::qp::QueuePair;
use crate::queue::TxBatch;
use crate::reorder::{ReorderBuffer, WINDOW};
use crate::selective::{PROBE, RESUME, SELECTIVE};
use crate::tap::WriteTap;
use crate::types::*;

/// Credits of every ACK: "no end-to-end credits given", as Linux' software NIC says.
const CREDITS: u8 = 0x1f;

/// State of the responder half.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The PSN expected next.
    pub(crate) expected: Psn,
    /// Messages completed, 24 bits.
    msn: u32,
    /// A NAK for `expected` is out: packets ahead of it are dropped in silence until it comes.
    waiting: bool,
    /// RNR NAKs for `expected`.
    refusals: u8,
    ack: Option<Syndrome>,
    message: Message,
    /// READs and atomics, the last ones, for answering and for duplicates.
    resources: VecDeque<Resource>,
    max_resources: usize,
    /// Resources with response packets to send.
    pending: usize,
    replays: VecDeque<Replay>,
    /// The peer asks what has come.
    asked: bool,
    established: bool,
    /// The call whose payload stream comes next, and its op-code.
    stream: Option<(u64, u64)>,
    /// Requests that came early.
    pub(crate) early: ReorderBuffer,
}

/// The message whose packets are arriving.
#[derive(Debug)]
enum Message {
    None,
    /// Into the queue pair's current receive.
    Send {
        offset: u32,
    },
    Write {
        va: u64,
        rkey: u32,
        remaining: u32,
        total: u32,
    },
    RpcWrite {
        id: u64,
        remaining: u32,
    },
}

/// A READ or atomic that was carried out.
#[derive(Clone, Copy, Debug)]
struct Resource {
    psn: Psn,
    psns: u32,
    kind: Kind,
    /// Response packets `next..psns` are to be sent.
    next: u32,
    /// The response starts at this packet: for a replay that asks for a part.
    first: u32,
    /// All was sent once; what is to be sent now is a replay.
    answered: bool,
}

/// A part of a READ's response that a peer asks for again who keeps the rest.
#[derive(Clone, Copy, Debug)]
struct Replay {
    /// The first PSN of the READ.
    psn: Psn,
    /// Response packets `next..end` are to be sent, of those from `first` on.
    first: u32,
    next: u32,
    end: u32,
}

/// Such parts that may wait to be sent; more are forgotten, and asked for once more.
const REPLAYS: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read { va: u64, rkey: u32, len: u32 },
    Atomic { original: u64 },
}

/// The code of 0.96 ms, up to which a peer that is refused again and again is to wait longer and longer.
const PATIENT: u8 = 13;

/// The timer code of an RNR NAK: at first `min`, and then the next one each time. (0 is the longest.)
fn rnr_timer(min: u8, refusals: u8) -> u8 {
    if min == 0 || min >= PATIENT { min } else { min.saturating_add(refusals).min(PATIENT) }
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            expected: Psn::new(0),
            msn: 0,
            waiting: false,
            refusals: 0,
            ack: None,
            message: Message::None,
            resources: VecDeque::new(),
            max_resources: 0,
            pending: 0,
            replays: VecDeque::new(),
            asked: false,
            established: false,
            stream: None,
            early: ReorderBuffer::default(),
        }
    }
}

impl Responder {
    pub fn start(&mut self, expected: Psn) {
        *self = Self { expected, ..Self::default() };
    }

    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0xff_ffff;
    }

    /// READs and atomics that the peer may have outstanding.
    pub fn set_resources(&mut self, max: u8) {
        self.max_resources = max.into();
        self.resources.reserve(self.max_resources.saturating_sub(self.resources.len()));
    }

    /// Stops carrying out requests. A NAK that is due still goes out, after the responses to the READs before it.
    pub fn stop(&mut self) {
        if !matches!(self.ack, Some(Syndrome::Nak(_))) {
            self.ack = None;
            self.pending = 0;
            self.replays.clear();
            self.resources.clear();
        }
    }

    /// The next request is refused, as one with a wrong key.
    pub fn refuse_access(&mut self) {
        self.ack = Some(Syndrome::Nak(NakCode::RemoteAccess));
    }

    /// Whether a message has begun and not ended.
    pub fn in_message(&self) -> bool {
        !matches!(self.message, Message::None)
    }

    /// The PSN of an ACK: the last one taken, but never that of a READ or atomic, which its response alone acknowledges
    /// (section 9.7.5.1). A peer may take a READ that an ACK names for complete, as Linux' software NIC does, though the
    /// response was lost. Only the ACK of a duplicate could name one.
    fn to_acknowledge(&self) -> Psn {
        let mut next = self.expected;
        for r in self.resources.iter().rev() {
            if r.psn + r.psns != next {
                break;
            }
            next = r.psn;
        }
        next + 0xff_ffff
    }

    /// The PSN expected next.
    pub fn expect(&mut self, psn: Psn) {
        self.expected = psn;
    }

    /// The PSN expected next: for queries.
    pub fn expected_psn(&self) -> Psn {
        self.expected
    }
}

/// A request refused.
pub(crate) enum Refusal {
    /// The peer is told so.
    Nak(NakCode),
    /// No receive, or no room for a kernel call.
    NotReady,
    /// The receive was at fault and has completed with this status.
    Local(WcStatus),
}

use Refusal::{Local, Nak, NotReady};

impl QueuePair {
    /// Whether a response or acknowledgement waits to be sent.
    pub(crate) fn response_ready(&self) -> bool {
        self.resp.pending > 0 || !self.resp.replays.is_empty() || self.resp.ack.is_some()
    }

    /// A request packet; `rest` is what follows the BTH, without pad and ICRC.
    pub(crate) fn handle_request(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) {
        if self.resp.early.is_empty() {
            return self.take_request(ctx, bth, rest);
        }
        let before = self.resp.expected;
        self.take_request(ctx, bth, rest);
        let taken = self.resp.expected.distance(before) as u32;
        self.resp.early.forget(&mut ctx.reorder, before, taken);
        // The last one that was carried out, once more?
        let read = self.resp.resources.back().filter(|r| r.psn == bth.psn).map_or(1, |r| r.psns);
        if taken == 0 && bth.psn + read != before {
            return;
        }
        if bth.reserved7 & RESUME != 0 {
            while self.receives()
                && let Some(kept) = self.resp.early.take(self.resp.expected)
            {
                let before = self.resp.expected;
                self.take_request(ctx, &kept.bth, kept.rest());
                ctx.reorder.give(kept.into_room());
                self.resp.early.forget(&mut ctx.reorder, before, self.resp.expected.distance(before) as u32);
            }
        }
        if !self.resp.early.is_empty() && self.resp.ack.is_none() {
            self.resp.ack = Some(Syndrome::Nak(NakCode::SequenceError));
        }
    }

    /// A request packet that has arrived, or that was kept and whose turn has come.
    fn take_request(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) {
        let ahead = bth.psn.distance(self.resp.expected);
        if ahead < 0 {
            return self.handle_duplicate(ctx, bth, rest);
        }
        if ahead > 0 {
            // Who was told to come back later starts anew from there.
            let near = self.is_selective() && self.resp.refusals == 0 && ahead < WINDOW as i32;
            if near && self.resp.early.keep(&mut ctx.reorder, bth, rest) {
                // Each tells the peer what is there now.
                self.resp.ack = Some(Syndrome::Nak(NakCode::SequenceError));
                ctx.counters.sequence_naks += u64::from(!std::mem::replace(&mut self.resp.waiting, true));
                return;
            }
            if !self.resp.waiting {
                self.resp.waiting = true;
                self.resp.ack = Some(Syndrome::Nak(NakCode::SequenceError));
                ctx.counters.sequence_naks += 1;
            }
            return;
        }
        self.note_peer(ctx, bth);
        self.resp.waiting = false;
        // A NAK that was due for this very packet is void now.
        if matches!(self.resp.ack, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. })) {
            (self.resp.ack, self.resp.asked) = (None, false);
        }
        self.established(ctx);
        let outcome = self.execute(ctx, bth, rest).map_err(|refusal| match refusal {
            Local(WcStatus::LocalLength) => Nak(NakCode::InvalidRequest),
            Local(WcStatus::RemoteAccess) => Nak(NakCode::RemoteAccess),
            Local(_) => Nak(NakCode::RemoteOperational),
            other => other,
        });
        match outcome {
            // Its completion queue overran: the message is not delivered as far as anyone can tell.
            Ok(_) if self.state == QpState::Err => self.resp.ack = Some(Syndrome::Nak(NakCode::RemoteOperational)),
            Ok(psns) => {
                self.resp.refusals = 0;
                self.resp.expected = self.resp.expected + psns;
                if bth.opcode.is_last() || bth.opcode.is_only() {
                    ctx.counters.received(self.route.map_or(0, |route| route.link));
                }
                if bth.ack_req && psns > 0 && !is_answered(bth.opcode) {
                    self.resp.ack = Some(Syndrome::Ack { credits: CREDITS });
                }
            }
            Err(NotReady) => {
                self.resp.early.clear(&mut ctx.reorder);
                self.resp.waiting = true;
                self.resp.ack =
                    Some(Syndrome::RnrNak { timer: rnr_timer(self.attr.min_rnr_timer, self.resp.refusals) });
                self.resp.refusals = self.resp.refusals.saturating_add(1);
                ctx.counters.rnr_naks += 1;
            }
            Err(Local(status)) => self.fail(ctx, status),
            Err(Nak(code)) => {
                self.resp.ack = Some(Syndrome::Nak(code));
                let (why, event) = match code {
                    NakCode::RemoteAccess => (WcStatus::RemoteAccess, Some(Event::QpAccessError(self.qpn))),
                    NakCode::RemoteOperational => (WcStatus::RemoteOperation, None),
                    _ => (WcStatus::RemoteInvalidRequest, Some(Event::QpRequestError(self.qpn))),
                };
                ctx.events.extend(event);
                self.fail(ctx, why);
            }
        }
    }

    /// The first packet tells the world that the peer is there.
    pub(crate) fn established(&mut self, ctx: &mut Ctx) {
        if !std::mem::replace(&mut self.resp.established, true) {
            ctx.events.push_back(Event::Established(self.qpn));
        }
    }

    /// Forgets the message that is arriving; its receive, if it has one, is there for the next.
    pub(crate) fn drop_message(&mut self) {
        let message = std::mem::replace(&mut self.resp.message, Message::None);
        self.recv_held |= matches!(message, Message::Send { .. });
    }

    /// Carries out the expected packet. Returns the PSNs it takes.
    pub(crate) fn execute(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) -> Result<u32, Refusal> {
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
            RcReadRequest => self.execute_read(ctx, bth, rest),
            RcCompareSwap | RcFetchAdd => self.execute_atomic(ctx, bth, rest),
            RpcParams => self.execute_rpc(ctx, rest),
            RpcWriteFirst | RpcWriteMiddle | RpcWriteLast | RpcWriteOnly => self.execute_rpc_write(ctx, bth, rest),
            _ => Err(Nak(NakCode::InvalidRequest)),
        }
    }

    /// FIRST and MIDDLE carry exactly one MTU, LAST at least a byte, nothing more than one MTU (section 9.7.4.1.6).
    fn check_length(&self, op: Opcode, len: usize) -> Result<(), Refusal> {
        let mtu = self.mtu as usize;
        let fits = match () {
            _ if op.is_first() || op.is_middle() => len == mtu,
            _ if op.is_last() => (1..=mtu).contains(&len),
            _ => len <= mtu,
        };
        if fits { Ok(()) } else { Err(Nak(NakCode::InvalidRequest)) }
    }

    fn execute_send(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) -> Result<u32, Refusal> {
        let op = bth.opcode;
        let Trailers { imm, invalidate, data } = split_trailers(op, rest)?;
        self.check_length(op, data.len())?;
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
        if let Err(status) = landed {
            let wc = self.wc(self.recv.wr_id, status, WcOpcode::Recv, 0);
            self.complete_recv(ctx, wc, true);
            return Err(Local(status));
        }
        if !(op.is_last() || op.is_only()) {
            self.resp.message = Message::Send { offset: end };
            return Ok(1);
        }
        if let Some(rkey) = invalidate
            && ctx.registry.invalidate(self.binder(), rkey).is_err()
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
        Ok(1)
    }

    fn execute_write(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) -> Result<u32, Refusal> {
        let op = bth.opcode;
        let (mut va, rkey, mut remaining, total, rest) = match self.resp.message {
            Message::None => {
                let reth = Reth::parse(rest).map_err(|_| Nak(NakCode::InvalidRequest))?;
                if reth.len > MAX_MESSAGE {
                    return Err(Nak(NakCode::InvalidRequest));
                }
                (reth.va, reth.rkey, reth.len, reth.len, &rest[Reth::LEN..])
            }
            Message::Write { va, rkey, remaining, total } => (va, rkey, remaining, total, rest),
            _ => return Err(Nak(NakCode::InvalidRequest)),
        };
        let Trailers { imm, data, .. } = split_trailers(op, rest)?;
        let ends = op.is_last() || op.is_only();
        self.check_length(op, data.len())?;
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
        if region.is_some_and(|region| region.write(va, data).is_err()) {
            self.recv_held = imm.is_some();
            return Err(Nak(NakCode::RemoteAccess));
        }
        if let Some(region) = region
            && let Some(tap) = ctx.taps.find(rkey)
        {
            show(tap, region, va, data, (remaining - len) as usize);
            if ends {
                tap.ended();
            }
        }
        va = va.wrapping_add(len.into());
        remaining -= len;
        if !ends {
            self.resp.message = Message::Write { va, rkey, remaining, total };
            return Ok(1);
        }
        self.resp.message = Message::None;
        self.resp.count_message();
        ctx.counters.writes += 1;
        if imm.is_some() {
            let wc =
                WorkCompletion { imm, ..self.wc(self.recv.wr_id, WcStatus::Success, WcOpcode::RecvWriteImm, total) };
            self.complete_recv(ctx, wc, bth.solicited);
        }
        Ok(1)
    }

    fn execute_read(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) -> Result<u32, Refusal> {
        let reth = Reth::parse(rest).map_err(|_| Nak(NakCode::InvalidRequest))?;
        if rest.len() != Reth::LEN || reth.len > MAX_MESSAGE {
            return Err(Nak(NakCode::InvalidRequest));
        }
        if reth.len > 0 {
            self.remote_region(ctx, reth.rkey, reth.va, reth.len.into(), Access::REMOTE_READ)?;
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
        self.check_length(Opcode::RpcParams, data.len())?;
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
        self.check_length(op, data.len())?;
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
    fn remote_region(&mut self, ctx: &Ctx, rkey: u32, va: u64, len: u64, need: Access) -> Result<&Region, Refusal> {
        if !self.attr.access.contains(need) {
            return Err(Nak(NakCode::RemoteAccess));
        }
        let by = self.binder();
        ctx.remote(&mut self.remote_region, (by, rkey), (va, len), need).ok_or(Nak(NakCode::RemoteAccess))
    }

    fn resource_room(&self) -> bool {
        self.resp.max_resources > 0
            && (self.resp.resources.len() < self.resp.max_resources
                || self.resp.resources.front().is_some_and(|r| r.answered))
    }

    /// Remembers a READ or atomic. A peer with more of them outstanding than agreed breaks the rules.
    fn add_resource(&mut self, resource: Resource) -> Result<(), Refusal> {
        if !self.resource_room() {
            return Err(Nak(NakCode::InvalidRequest));
        }
        if self.resp.resources.len() >= self.resp.max_resources {
            // A new request shows that the peer has the old answer: a replay of it is not wanted any more.
            if let Some(old) = self.resp.resources.pop_front() {
                self.resp.pending -= usize::from(old.next < old.psns);
                self.resp.replays.retain(|replay| replay.psn != old.psn);
            }
        }
        self.resp.resources.push_back(resource);
        self.resp.pending += 1;
        self.resp.count_message();
        // Its response acknowledges everything before it.
        self.resp.ack = None;
        Ok(())
    }

    /// A request that was carried out before: its answer was lost, or the peer lost patience.
    fn handle_duplicate(&mut self, ctx: &mut Ctx, bth: &Bth, rest: &[u8]) {
        ctx.counters.duplicates += 1;
        match bth.opcode {
            Opcode::RcReadRequest => {
                let Ok(reth) = Reth::parse(rest) else { return };
                self.replay_read(bth.psn, reth);
            }
            Opcode::RcCompareSwap | Opcode::RcFetchAdd => {
                let found = self.resp.resources.iter_mut().rev().find(|r| r.psn == bth.psn);
                if let Some(r) = found
                    && matches!(r.kind, Kind::Atomic { .. })
                    && r.next == r.psns
                {
                    r.next = 0;
                    self.resp.pending += 1;
                }
            }
            _ if bth.reserved7 & PROBE != 0
                && self.is_selective()
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
        let (mtu, selective) = (self.mtu, self.is_selective());
        let found = self.resp.resources.iter_mut().rev().find(|r| {
            let ahead = psn.distance(r.psn);
            ahead >= 0 && (ahead as u32) < r.psns
        });
        let Some(r) = found else { return };
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
            self.emit_ack(ctx.selective, syndrome, batch)
        } else {
            return false;
        };
        batch.commit(route, total);
        ctx.counters.tx_packets += 1;
        ctx.counters.tx_bytes += total as u64;
        true
    }

    fn emit_ack(&mut self, selective: bool, syndrome: Syndrome, batch: &mut TxBatch) -> usize {
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
        let bth = self.answer(selective, Opcode::RcAck, psn);
        let bth = Bth { reserved7: bth.reserved7 | asked, ..bth };
        let mut writer = Writer::new(batch.space(), &bth);
        writer.aeth(Aeth { syndrome, msn: self.resp.msn });
        if syndrome != Syndrome::Nak(NakCode::SequenceError) || !self.is_selective() {
            return writer.finish(0);
        }
        let map = self.resp.early.bitmap(psn);
        writer.payload(map.len()).copy_from_slice(&map);
        writer.finish(map.len())
    }

    /// The BTH of an answer.
    fn answer(&self, selective: bool, opcode: Opcode, psn: Psn) -> Bth {
        Bth { reserved7: if selective { SELECTIVE } else { 0 }, ..Bth::new(opcode, self.attr.dest_qp, psn) }
    }

    /// The next packet that is asked for again, or of the oldest READ or atomic that has some to send.
    fn emit_resource(&mut self, ctx: &mut Ctx, batch: &mut TxBatch) -> Option<usize> {
        let replay = self.resp.replays.front().copied();
        let index = match replay {
            Some(replay) => self.resp.resources.iter().position(|r| r.psn == replay.psn)?,
            None => self.resp.resources.iter().position(|r| r.next < r.psns)?,
        };
        let r = self.resp.resources[index];
        let Replay { first, next, end, .. } =
            replay.unwrap_or(Replay { psn: r.psn, first: r.first, next: r.next, end: r.psns });
        let psn = r.psn + next;
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: CREDITS }, msn: self.resp.msn };
        let total = match r.kind {
            Kind::Atomic { original } => {
                let bth = self.answer(ctx.selective, Opcode::RcAtomicAck, psn);
                let mut writer = Writer::new(batch.space(), &bth);
                writer.aeth(aeth);
                writer.atomic_ack(AtomicAckEth { original });
                writer.finish(0)
            }
            Kind::Read { va, rkey, len } => {
                let offset = next * self.mtu;
                let n = (len - offset).min(self.mtu) as usize;
                let opcode = match (next == first, next + 1 == end) {
                    (true, true) => Opcode::RcReadResponseOnly,
                    (true, false) => Opcode::RcReadResponseFirst,
                    (false, false) => Opcode::RcReadResponseMiddle,
                    (false, true) => Opcode::RcReadResponseLast,
                };
                let bth = Bth { pad: pad_of(n), ..self.answer(ctx.selective, opcode, psn) };
                let mut writer = Writer::new(batch.space(), &bth);
                if opcode.has_aeth() {
                    writer.aeth(aeth);
                }
                let va = va.wrapping_add(offset.into());
                if n > 0 && !self.read_for_peer(ctx, rkey, va, writer.payload(n)) {
                    // The region went away between request and response.
                    self.resp.expected = psn;
                    self.resp.ack = Some(Syndrome::Nak(NakCode::RemoteAccess));
                    self.fail(ctx, WcStatus::RemoteAccess);
                    self.resp.ack = None;
                    self.resp.stop();
                    let nak = Syndrome::Nak(NakCode::RemoteAccess);
                    return Some(self.emit_ack(ctx.selective, nak, batch));
                }
                let total = writer.finish(n);
                batch.note_fetched(n);
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
        r.next += 1;
        if r.next == r.psns {
            r.answered = true;
            self.resp.pending -= 1;
        }
        Some(total)
    }

    fn read_for_peer(&mut self, ctx: &Ctx, rkey: u32, va: u64, out: &mut [u8]) -> bool {
        match self.remote_region(ctx, rkey, va, out.len() as u64, Access::REMOTE_READ) {
            Ok(region) => region.read(va, out).is_ok(),
            Err(_) => false,
        }
    }
}

/// The largest message: 2^31 bytes (section 9.7.2).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// READs and atomics are answered by their responses, not by an ACK.
fn is_answered(op: Opcode) -> bool {
    matches!(op, Opcode::RcReadRequest | Opcode::RcCompareSwap | Opcode::RcFetchAdd)
}

/// Bytes of a payload that a tap sees at a time.
const SHOWN: u64 = 1024;

/// Shows a tap what was written at `va`, in pieces. With each piece the cache is asked for as many bytes of where the next
/// packet goes, so that they come from memory meanwhile; all at once they would hold up the tap. `to_come` bytes of the
/// message are left.
fn show(tap: &mut dyn WriteTap, region: &Region, va: u64, mut data: &[u8], mut to_come: usize) {
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

/// The extension headers next to the payload, and the payload.
struct Trailers<'a> {
    imm: Option<u32>,
    invalidate: Option<u32>,
    data: &'a [u8],
}

fn split_trailers(op: Opcode, rest: &[u8]) -> Result<Trailers<'_>, Refusal> {
    if op.has_imm() {
        let imm = ImmDt::parse(rest).map_err(|_| Nak(NakCode::InvalidRequest))?;
        Ok(Trailers { imm: Some(imm.0), invalidate: None, data: &rest[ImmDt::LEN..] })
    } else if op.has_ieth() {
        let ieth = Ieth::parse(rest).map_err(|_| Nak(NakCode::InvalidRequest))?;
        Ok(Trailers { imm: None, invalidate: Some(ieth.rkey), data: &rest[Ieth::LEN..] })
    } else {
        Ok(Trailers { imm: None, invalidate: None, data: rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_again_is_to_wait_longer() {
        let codes = |min: u8| [0, 1, 5, 255].map(|refusals| rnr_timer(min, refusals));
        assert_eq!([codes(1), codes(12)], [[1, 2, 6, 13], [12, 13, 13, 13]]);
        assert_eq!([codes(0), codes(20)], [[0; 4], [20; 4]]);
    }

    #[test]
    fn msns_have_24_bits() {
        let mut responder = Responder { msn: 0xff_fffe, ..Responder::default() };
        let next = [(); 3].map(|()| {
            responder.count_message();
            responder.msn
        });
        assert_eq!(next, [0xff_ffff, 0, 1]);
    }
}
