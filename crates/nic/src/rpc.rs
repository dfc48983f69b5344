//! The RPC verbs' bookkeeping (StRoM section 5): calls that wait for a kernel, round-robin between connections,
//! payload streams, and the buffers that both use over and over.

use std::collections::VecDeque;

use remora_wire::rpc::{FLAG_ANYWHERE, FLAG_STREAM, RpcHeader, reply_imm, status};

use crate::ctx::Ctx;
use crate::nic::Nic;
use crate::numbers::QpTable;
use crate::qp::QueuePair;
use crate::queue::Source;
use crate::types::*;

/// A kernel call that arrived from a peer or was posted to this NIC.
#[derive(Debug)]
pub struct RpcRequest {
    /// The queue pair it came by; its protection domain bounds what the kernel may touch.
    pub qpn: u32,
    /// Kernel op-code.
    pub op: u64,
    /// No kernel has this op-code: the host's fallback runs it.
    pub fallback: bool,
    /// Posted to the local NIC: the reply goes to local memory.
    pub local: bool,
    /// Whether a payload stream follows.
    pub stream: bool,
    /// Whether the caller leaves it to the node if its NIC or its host runs it: never if a payload stream follows.
    pub anywhere: bool,
    /// Names the call among those of one engine; stream chunks and the reply carry it.
    pub id: u64,
    /// Work request, for local calls.
    pub(crate) wr_id: u64,
    /// Parameters after the RPC header.
    pub params: Vec<u8>,
    /// An empty buffer that the kernel's reply goes into.
    pub reply: Vec<u8>,
    pub(crate) header: RpcHeader,
}

impl RpcRequest {
    /// The caller's limit on the reply's length in bytes.
    pub fn reply_capacity(&self) -> u32 {
        self.header.reply_capacity
    }

    /// The queue pair it came by.
    pub fn qp(&self) -> Qpn {
        Qpn(self.qpn)
    }
}

/// A piece of the payload stream of an RPC WRITE.
#[derive(Debug)]
pub struct StreamChunk {
    /// The call it belongs to.
    pub id: u64,
    /// Payload bytes of one or several packets.
    pub data: Vec<u8>,
    /// Whether the stream ends here.
    pub last: bool,
    pub(crate) packets: usize,
}

/// What one queue pair has in the table.
#[derive(Debug, Default)]
struct PerQp {
    waiting: VecDeque<RpcRequest>,
    /// Calls accepted whose replies are not complete.
    outstanding: u32,
    /// In the round-robin list.
    listed: bool,
    /// Pieces of payload streams, and whether it is in the list of those that have some.
    chunks: VecDeque<StreamChunk>,
    streaming: bool,
    held: Held,
    /// Whose share it counts against, if not its own.
    client: Option<u32>,
    /// Calls with lower ids came before the queue pair was last created or reset.
    first_id: u64,
}

/// What is held for a queue pair, or for all of a client.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// The packets that pieces of payload streams came in.
    packets: usize,
    /// Bytes of replies that the peer has not acknowledged.
    reply_bytes: usize,
}

/// Calls of all queue pairs of one engine.
#[derive(Debug)]
pub(crate) struct RpcTable {
    per_qp: QpTable<PerQp>,
    ready: VecDeque<u32>,
    /// Queue pairs with chunks.
    streaming: VecDeque<u32>,
    /// Packets that may wait in chunks and no more do, and bytes up to which several make one chunk.
    packets_left: usize,
    chunk_bytes: usize,
    /// Bytes of all replies that are not yet acknowledged, which may be more than [`REPLY_BYTES`]: a call's length shows
    /// only when it ends.
    reply_bytes: usize,
    /// By client.
    clients: Vec<Held>,
    buffers: Vec<Vec<u8>>,
    next_id: u64,
    kernels: Vec<u64>,
    pub fallback: bool,
}

/// The id of calls that were refused at once: their payload streams are dropped.
const REFUSED: u64 = 0;
/// Bytes of replies that are not yet acknowledged: a call whose client has more of them than are left to all waits.
const REPLY_BYTES: usize = 64 << 20;
/// Spare buffers kept for the next calls.
const SPARE_BUFFERS: usize = 4096;
/// A spare buffer above this size is given back to the system instead.
const SPARE_BYTES: usize = 1 << 20;

impl RpcTable {
    pub fn new(max_chunks: usize, chunk_bytes: usize) -> Self {
        Self {
            per_qp: QpTable::default(),
            ready: VecDeque::new(),
            streaming: VecDeque::new(),
            packets_left: max_chunks,
            chunk_bytes,
            reply_bytes: 0,
            clients: Vec::new(),
            buffers: Vec::new(),
            next_id: 1,
            kernels: Vec::new(),
            fallback: false,
        }
    }

    pub fn deploy(&mut self, op: u64) {
        if !self.knows(op) {
            self.kernels.push(op);
        }
    }

    pub fn remove(&mut self, op: u64) {
        self.kernels.retain(|&k| k != op);
    }

    pub fn knows(&self, op: u64) -> bool {
        self.kernels.contains(&op)
    }

    /// Makes room for a queue pair. `capacity` calls of it may be outstanding.
    pub fn open(&mut self, qpn: u32, capacity: u32) {
        self.clear(qpn);
        let first_id = self.next_id;
        if self.per_qp.get(qpn).is_none() {
            self.per_qp.insert(qpn, PerQp::default());
        }
        let Some(entry) = self.per_qp.get_mut(qpn) else { return };
        (entry.outstanding, entry.listed, entry.first_id) = (0, false, first_id);
        let missing = (capacity as usize).saturating_sub(entry.waiting.capacity());
        entry.waiting.reserve(missing);
    }

    /// Forgets what a queue pair has here beside calls that [wait](Self::drop_waiting).
    fn clear(&mut self, qpn: u32) {
        let Some(entry) = self.per_qp.get_mut(qpn) else { return };
        let Held { packets, reply_bytes } = std::mem::take(&mut entry.held);
        // It leaves the list when it is next looked at.
        entry.chunks.clear();
        self.reply_bytes -= reply_bytes;
        self.packets_left += packets;
        if let Some(client) = entry.client.take().and_then(|client| self.clients.get_mut(client as usize)) {
            client.reply_bytes -= reply_bytes;
            client.packets -= packets;
        }
    }

    /// What this queue pair holds counts as `client`'s from now on, with what that client's others hold.
    fn assign(&mut self, qpn: u32, client: u32) {
        let Some(entry) = self.per_qp.get_mut(qpn) else { return };
        let (held, former) = (entry.held, entry.client.replace(client));
        let at = client as usize;
        self.clients.resize(self.clients.len().max(at + 1), Held::default());
        if let Some(former) = former {
            let former = &mut self.clients[former as usize];
            (former.packets, former.reply_bytes) =
                (former.packets - held.packets, former.reply_bytes - held.reply_bytes);
        }
        let client = &mut self.clients[at];
        (client.packets, client.reply_bytes) = (client.packets + held.packets, client.reply_bytes + held.reply_bytes);
    }

    /// What a queue pair's client holds. `None` if there is no such queue pair.
    #[inline]
    fn held(&self, qpn: u32) -> Option<Held> {
        let entry = self.per_qp.get(qpn)?;
        Some(entry.client.map_or(entry.held, |client| self.clients[client as usize]))
    }

    /// Changes what is held for a queue pair, and so for its client.
    #[inline]
    fn hold(&mut self, qpn: u32, change: impl Fn(&mut Held)) {
        let Some(entry) = self.per_qp.get_mut(qpn) else { return };
        change(&mut entry.held);
        if let Some(client) = entry.client {
            change(&mut self.clients[client as usize]);
        }
    }

    /// The queue pair is gone; no call of it waits.
    pub fn close(&mut self, qpn: u32) {
        self.clear(qpn);
        self.per_qp.remove(qpn);
    }

    #[inline]
    fn entry(&mut self, qpn: u32) -> Option<&mut PerQp> {
        self.per_qp.get_mut(qpn)
    }

    /// Whether the call came by the present life of its queue pair.
    pub fn is_current(&mut self, qpn: u32, id: u64) -> bool {
        self.entry(qpn).is_some_and(|e| id >= e.first_id)
    }

    /// Whether another call of this queue pair can be taken.
    pub fn has_room(&mut self, qpn: u32, capacity: u32) -> bool {
        self.entry(qpn).is_some_and(|e| e.outstanding < capacity)
    }

    /// Takes a call; the caller has asked `has_room`. Returns its id.
    pub fn accept(&mut self, qpn: u32, op: u64, header: RpcHeader, params: &[u8], local: Option<u64>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut buffer = self.buffer();
        buffer.extend_from_slice(params);
        let request = RpcRequest {
            qpn,
            op,
            fallback: !self.knows(op),
            local: local.is_some(),
            stream: header.flags & FLAG_STREAM != 0,
            anywhere: header.flags & (FLAG_STREAM | FLAG_ANYWHERE) == FLAG_ANYWHERE,
            id,
            wr_id: local.unwrap_or(0),
            params: buffer,
            reply: self.buffer(),
            header,
        };
        self.begin(qpn);
        let Some(entry) = self.entry(qpn) else { return id };
        entry.waiting.push_back(request);
        if !entry.listed {
            entry.listed = true;
            self.ready.push_back(qpn);
        }
        id
    }

    /// The next waiting call, one queue pair after the other of those that `may`.
    pub fn poll(&mut self, may: impl Fn(Qpn) -> bool) -> Option<RpcRequest> {
        let left = REPLY_BYTES.saturating_sub(self.reply_bytes);
        for _ in 0..self.ready.len() {
            let qpn = self.ready.pop_front()?;
            if !may(Qpn(qpn)) {
                self.ready.push_back(qpn);
                continue;
            }
            if self.held(qpn).is_some_and(|held| held.reply_bytes >= left) {
                self.ready.push_back(qpn);
                continue;
            }
            let Some(entry) = self.entry(qpn) else { continue };
            entry.listed = false;
            let request = entry.waiting.pop_front();
            if !entry.waiting.is_empty() {
                entry.listed = true;
                self.ready.push_back(qpn);
            }
            if request.is_some() {
                return request;
            }
        }
        None
    }

    pub fn waiting(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A call of this queue pair is outstanding from now on.
    pub fn begin(&mut self, qpn: u32) {
        if let Some(entry) = self.entry(qpn) {
            entry.outstanding += 1;
        }
    }

    /// A reply of this queue pair is complete, or will never be.
    pub fn replied(&mut self, qpn: u32) {
        if let Some(entry) = self.entry(qpn) {
            entry.outstanding = entry.outstanding.saturating_sub(1);
        }
    }

    /// Forgets a call of a queue pair that no kernel has started: its work request, if it is a local one. `None` if
    /// there is none left.
    pub fn drop_waiting(&mut self, qpn: u32) -> Option<Option<u64>> {
        let request = self.entry(qpn)?.waiting.pop_front()?;
        self.replied(qpn);
        self.recycle(request.params);
        self.recycle(request.reply);
        Some(request.local.then_some(request.wr_id))
    }

    /// An empty buffer.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_else(|| Vec::with_capacity(4096))
    }

    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && buffer.capacity() <= SPARE_BYTES && self.buffers.len() < SPARE_BUFFERS {
            buffer.clear();
            if self.buffers.is_empty() {
                self.buffers.reserve_exact(SPARE_BUFFERS);
            }
            self.buffers.push(buffer);
        }
    }

    /// A reply of so many bytes is on its way.
    #[inline]
    pub fn hold_reply(&mut self, qpn: u32, bytes: usize) {
        if self.per_qp.get(qpn).is_some() {
            self.hold(qpn, |held| held.reply_bytes += bytes);
            self.reply_bytes += bytes;
        }
    }

    /// A reply of so many bytes has arrived, or never will.
    #[inline]
    pub fn release_reply(&mut self, qpn: u32, bytes: usize) {
        if let Some(entry) = self.per_qp.get(qpn) {
            let bytes = bytes.min(entry.held.reply_bytes);
            self.hold(qpn, |held| held.reply_bytes -= bytes);
            self.reply_bytes -= bytes;
        }
    }

    /// Whether one more packet of this queue pair's payload streams may wait: while its client has fewer of them than are
    /// left to all, so that one whose kernels do not read fills half of the room at most.
    pub fn chunk_room(&self, qpn: u32) -> bool {
        self.held(qpn).is_some_and(|held| held.packets < self.packets_left)
    }

    pub fn push_chunk(&mut self, qpn: u32, id: u64, data: &[u8], last: bool) {
        if id == REFUSED {
            return;
        }
        let chunk_bytes = self.chunk_bytes;
        self.hold(qpn, |held| held.packets += 1);
        let Some(entry) = self.entry(qpn) else { return };
        // What nobody has taken yet grows, so that a reader who is behind has fewer and longer pieces to take.
        if let Some(chunk) = entry.chunks.back_mut().filter(|chunk| chunk.id == id && !chunk.last)
            && chunk.data.len() + data.len() <= chunk_bytes
        {
            chunk.data.extend_from_slice(data);
            chunk.last = last;
            chunk.packets += 1;
            self.packets_left -= 1;
            return;
        }
        let listed = std::mem::replace(&mut entry.streaming, true);
        if !listed {
            self.streaming.push_back(qpn);
        }
        self.packets_left -= 1;
        let mut buffer = self.buffer();
        buffer.extend_from_slice(data);
        if let Some(entry) = self.entry(qpn) {
            entry.chunks.push_back(StreamChunk { id, data: buffer, last, packets: 1 });
        }
    }

    /// Whether there is a chunk that grows no more.
    #[inline]
    pub fn has_whole_chunk(&self) -> bool {
        let first = self.streaming.front().and_then(|&qpn| self.per_qp.get(qpn));
        first.is_some_and(|first| {
            let whole = |chunk: &StreamChunk| chunk.last || chunk.data.len() >= self.chunk_bytes;
            first.chunks.front().is_some_and(whole) || first.chunks.len() > 1
        }) || self.streaming.len() > 1
    }

    /// Whether there may be a chunk.
    pub fn has_chunks(&self) -> bool {
        !self.streaming.is_empty()
    }

    /// Takes the oldest chunk of a queue pair, if `take` takes it: one queue pair after the other is asked for. A chunk
    /// whose call waits stays.
    pub fn poll_chunk(&mut self, mut take: impl FnMut(&mut StreamChunk) -> bool) -> Option<StreamChunk> {
        for _ in 0..self.streaming.len() {
            let qpn = self.streaming.pop_front()?;
            let Some(entry) = self.per_qp.get_mut(qpn) else { continue };
            let Some(first) = entry.chunks.front_mut() else {
                entry.streaming = false;
                continue;
            };
            // A queue pair's calls have ascending ids.
            let waits = entry.waiting.front().is_some_and(|call| call.id <= first.id);
            let chunk = if !waits && take(first) { entry.chunks.pop_front() } else { None };
            entry.streaming = !entry.chunks.is_empty();
            if entry.streaming {
                self.streaming.push_back(qpn);
            }
            if let Some(chunk) = chunk {
                self.hold(qpn, |held| held.packets = held.packets.saturating_sub(chunk.packets));
                self.packets_left += chunk.packets;
                return Some(chunk);
            }
        }
        None
    }
}

impl QueuePair {
    /// Takes a kernel call from the peer, or (`local` with its work request's id) from this host. Returns its id.
    /// Without a kernel or a fallback it is answered at once (StRoM section 5.1).
    pub(crate) fn accept_rpc(
        &mut self,
        ctx: &mut Ctx,
        op: u64,
        header: RpcHeader,
        params: &[u8],
        local: Option<u64>,
    ) -> u64 {
        if ctx.rpc.knows(op) || ctx.rpc.fallback {
            return ctx.rpc.accept(self.qpn.0, op, header, params, local);
        }
        ctx.rpc.begin(self.qpn.0);
        let reply = ctx.rpc.buffer();
        match local {
            None => self.push_reply(ctx, header, status::UNKNOWN_OP, reply),
            Some(wr_id) => self.finish_local(ctx, wr_id, header, status::UNKNOWN_OP, reply),
        }
        REFUSED
    }

    /// Sends a kernel's reply: an RDMA WRITE with immediate into the caller's memory.
    pub(crate) fn push_reply(&mut self, ctx: &mut Ctx, header: RpcHeader, mut status: u8, mut reply: Vec<u8>) {
        limit_reply(&header, &mut status, &mut reply);
        if matches!(self.state, QpState::Err | QpState::Reset) || !self.sq.has_slot() {
            ctx.rpc.recycle(reply);
            return ctx.rpc.replied(self.qpn.0);
        }
        let at = self.sq.tail;
        let imm = reply_imm(header.tag, status);
        let wqe = self.sq.get_mut(at);
        wqe.wr_id = 0;
        wqe.op = SendOp::WriteImm { va: header.reply_va, rkey: header.reply_rkey, imm };
        wqe.signaled = false;
        wqe.fence = false;
        wqe.solicited = true;
        wqe.dest = None;
        wqe.has_stream = false;
        wqe.len = reply.len() as u32;
        wqe.source = Source::Reply;
        wqe.answered = 0;
        ctx.rpc.hold_reply(self.qpn.0, reply.len());
        wqe.buffer = reply;
        self.sq.tail += 1;
    }

    /// Ends a call of this host: the reply lands in local memory, then the call completes.
    pub(crate) fn finish_local(
        &mut self,
        ctx: &mut Ctx,
        wr_id: u64,
        header: RpcHeader,
        mut status: u8,
        mut reply: Vec<u8>,
    ) {
        limit_reply(&header, &mut status, &mut reply);
        let sge = Sge { va: header.reply_va, len: header.reply_capacity, lkey: header.reply_rkey };
        let pd = self.pd();
        let landed = ctx.scatter(&mut self.local_region, pd, &[sge], 0, reply[..].into());
        let wc = WorkCompletion {
            imm: Some(reply_imm(header.tag, status)),
            ..self.wc(wr_id, landed.err().unwrap_or(WcStatus::Success), WcOpcode::LocalRpc, reply.len() as u32)
        };
        ctx.rpc.recycle(reply);
        ctx.rpc.replied(self.qpn.0);
        if !ctx.push_wc(self.init.send_cq, wc, false) {
            self.fail(ctx, WcStatus::LocalQpOperation);
        }
    }
}

impl Nic {
    /// Calls the kernel `op` at the peer (StRoM listing 5, `postRpc`). `params` are the bytes after the RPC header.
    /// The reply comes as a WRITE with immediate into `header.reply_va`: post a receive for it.
    pub fn post_rpc(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        op: u64,
        header: &RpcHeader,
        params: &[u8],
    ) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| qp.post_rpc(ctx, wr_id, op, header, params))?
    }

    /// Calls the kernel `op` at the peer with a payload stream behind the parameters (`postRpcWrite`).
    /// Up to 2 GB; the buffer belongs to the NIC until the work request completes.
    pub fn post_rpc_write(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        op: u64,
        header: &RpcHeader,
        params: &[u8],
        payload: &[Sge],
    ) -> Result<(), NicError> {
        let header = RpcHeader { flags: header.flags | FLAG_STREAM, ..*header };
        self.with_qp(qpn, |qp, ctx| {
            if qp.sq.user + 2 > qp.sq.max_user {
                return Err(NicError::Full);
            }
            // Checked before the parameters go: half a call would leave the peer waiting for its stream.
            qp.check_post(&SendWr::new(wr_id, SendOp::RpcWrite { op }, Data::List(payload)))?;
            if qp.state != QpState::Err {
                qp.post_rpc_wr(ctx, wr_id, op, &header, params, true)?;
            }
            qp.post_send(ctx, &SendWr::new(wr_id, SendOp::RpcWrite { op }, Data::List(payload)))
        })?
    }

    /// Calls the kernel `op` of this NIC (StRoM section 5.2): it sees the memory of the queue pair's protection
    /// domain, and its reply lands at `header.reply_va` of the local region `header.reply_rkey`.
    /// Completes as [`WcOpcode::LocalRpc`] on the send queue.
    pub fn post_local_rpc(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        op: u64,
        header: &RpcHeader,
        params: &[u8],
    ) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| {
            if matches!(qp.state, QpState::Reset | QpState::Err) {
                return Err(NicError::State(qp.state));
            }
            if !ctx.rpc.has_room(qpn.0, qp.init.max_rpc) {
                return Err(NicError::Full);
            }
            qp.accept_rpc(ctx, op, *header, params, Some(wr_id));
            Ok(())
        })?
    }

    /// From now on calls with this op-code go to [`Nic::poll_rpc`] as kernel calls.
    pub fn deploy(&mut self, op: u64) {
        self.ctx.rpc.deploy(op);
    }

    /// From now on calls with this op-code are unknown.
    pub fn undeploy(&mut self, op: u64) {
        self.ctx.rpc.remove(op);
    }

    /// Whether calls with unknown op-codes go to the host ([`RpcRequest::fallback`]) instead of being refused.
    pub fn set_fallback(&mut self, on: bool) {
        self.ctx.rpc.fallback = on;
    }

    /// The next call to run, one queue pair after the other. Leave calls here while there is no room to run them:
    /// when a queue pair's share is used up, its peer gets RNR NAKs.
    pub fn poll_rpc(&mut self) -> Option<RpcRequest> {
        self.ctx.rpc.poll(|_| true)
    }

    /// Like [`poll_rpc`](Self::poll_rpc), but calls of queue pairs that may not start one now are left here.
    #[inline]
    pub fn poll_rpc_of(&mut self, may: impl Fn(Qpn) -> bool) -> Option<RpcRequest> {
        self.ctx.rpc.poll(may)
    }

    /// The next piece of a payload stream whose call was [taken](Self::poll_rpc). Give its bytes back with
    /// [`Nic::recycle`].
    pub fn poll_stream(&mut self) -> Option<StreamChunk> {
        self.ctx.rpc.poll_chunk(|_| true)
    }

    /// The next piece of a payload stream that `take` takes: it is shown the oldest piece of each queue pair, one after
    /// the other. What it does not take stays, and what comes behind it on the same queue pair, and holds up no other.
    #[inline]
    pub fn poll_stream_of(&mut self, take: impl FnMut(&mut StreamChunk) -> bool) -> Option<StreamChunk> {
        self.ctx.rpc.poll_chunk(take)
    }

    /// Whether a piece of a payload stream waits.
    #[inline]
    pub fn wants_stream(&self) -> bool {
        self.ctx.rpc.has_chunks()
    }

    /// Whether a piece of a payload stream waits that further packets do not make longer.
    #[inline]
    pub fn has_stream(&self) -> bool {
        self.ctx.rpc.has_whole_chunk()
    }

    /// What is held for the calls of this queue pair counts as `client`'s, a small number, together with what is held for
    /// that client's others: replies that are not acknowledged, and payload that no kernel has read. Until the queue pair is
    /// reset; one that is nobody's has a share of its own.
    pub fn assign_client(&mut self, qpn: Qpn, client: u32) {
        self.ctx.rpc.assign(qpn.0, client);
    }

    /// Takes back a buffer that the engine handed out.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.ctx.rpc.recycle(buffer);
    }

    /// Ends a call: its `reply` goes to the caller with the status byte `code`.
    pub fn rpc_reply(&mut self, request: RpcRequest, code: u8) {
        let RpcRequest { qpn, id, local, wr_id, params, reply, header, .. } = request;
        self.ctx.rpc.recycle(params);
        if !self.ctx.rpc.is_current(qpn, id) {
            return self.ctx.rpc.recycle(reply);
        }
        // A queue pair that is gone wants no reply.
        let _ = self.with_qp(Qpn(qpn), |qp, ctx| match local {
            true => qp.finish_local(ctx, wr_id, header, code, reply),
            false => qp.push_reply(ctx, header, code, reply),
        });
        if code == status::ACCESS_DENIED && !local {
            self.wrong_key(Qpn(qpn));
        }
    }

    /// A kernel that this queue pair's peer called named memory that the peer may not reach. After 16 within minutes the
    /// queue pair fails, so that keys cannot be tried faster than connections are made. [`rpc_reply`](Self::rpc_reply)
    /// counts by itself.
    pub fn wrong_key(&mut self, qpn: Qpn) {
        let now = self.now;
        let _ = self.with_qp(qpn, |qp, ctx| qp.wrong_key(ctx, now));
    }
}

/// A reply that the caller has no room for is replaced by its refusal.
fn limit_reply(header: &RpcHeader, code: &mut u8, reply: &mut Vec<u8>) {
    if reply.len() > header.reply_capacity as usize {
        reply.clear();
        *code = status::REPLY_TOO_LONG;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes packets of `qpns` in turn for as long as there is room; how many of each.
    fn fill(table: &mut RpcTable, qpns: &[u32]) -> Vec<usize> {
        let mut pushed = vec![0; qpns.len()];
        loop {
            let before: usize = pushed.iter().sum();
            for (count, &qpn) in pushed.iter_mut().zip(qpns) {
                if table.chunk_room(qpn) {
                    table.push_chunk(qpn, 1, b"x", false);
                    *count += 1;
                }
            }
            if pushed.iter().sum::<usize>() == before {
                return pushed;
            }
        }
    }

    #[test]
    fn a_client_has_one_share_however_many_queue_pairs_it_has() {
        let mut table = RpcTable::new(100, 1);
        (1..=4).for_each(|qpn| table.open(qpn, 1));
        [(1, 0), (2, 0), (3, 1)].into_iter().for_each(|(qpn, client)| table.assign(qpn, client));
        assert_eq!(fill(&mut table, &[1, 2]), [25, 25], "half together");
        assert_eq!(fill(&mut table, &[3]), [25], "half of what is left");
        assert_eq!(fill(&mut table, &[4]), [13], "one that is nobody's has a share of its own");
        table.hold_reply(1, 40 << 20);
        assert_eq!(table.held(2).map(|held| held.reply_bytes), Some(40 << 20));
        // What is read, and what a queue pair that goes had, is free again; the client's other keeps its own.
        while let Some(chunk) = table.poll_chunk(|chunk| chunk.id == 1) {
            table.recycle(chunk.data);
        }
        assert_eq!((table.packets_left, table.held(2).map(|held| held.packets)), (100, Some(0)));
        fill(&mut table, &[1, 2]);
        table.close(1);
        let Held { packets, reply_bytes } = table.held(2).expect("it is there");
        assert_eq!((packets, reply_bytes, table.reply_bytes), (25, 0, 0));
        table.assign(2, 1);
        assert_eq!((table.held(3).map(|held| held.packets), table.clients[0].packets), (Some(25), 0));
        table.close(2);
        assert_eq!((table.packets_left, table.clients[1].packets), (100, 0));
    }

    #[test]
    fn replies_of_more_bytes_than_there_may_be_leave_the_limit_where_it_was() {
        const LONG: usize = 3 * REPLY_BYTES / 4;
        let mut table = RpcTable::new(1, 1);
        table.open(1, 8);
        let header = RpcHeader { reply_va: 0, reply_rkey: 0, reply_capacity: 0, tag: 0, flags: 0 };
        for _ in 0..3 {
            // Both calls began before either had a reply.
            (0..2).for_each(|_| table.hold_reply(1, LONG));
            (0..2).for_each(|_| table.release_reply(1, LONG));
        }
        table.hold_reply(1, REPLY_BYTES / 2 + 1);
        table.accept(1, 7, header, &[], None);
        assert!(table.poll(|_| true).is_none(), "it has more than are left to all");
        table.release_reply(1, REPLY_BYTES / 2 + 1);
        assert!(table.poll(|_| true).is_some());
    }
}
