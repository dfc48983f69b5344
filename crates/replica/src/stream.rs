//! Frames over reliable connections.
//!
//! A connection carries a stream of bytes in SENDs; a frame is its length (4 bytes, little-endian) and so many bytes, and
//! the next one begins at a multiple of 16, as what is no whole block costs a cipher as much as eight that are.
//! Whatever is queued between two flushes shares SENDs, and a long frame takes several. Receives come from one shared
//! queue, send buffers from one pool. A peer has no right to any memory: all it can do is send.
//!
//! Of the pool every connection has one buffer for itself, and of the rest half of what is left to all (a dynamic
//! threshold: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). So peers that
//! take nothing hold their own connections up and nobody else's; [`Streams::lazy`] says who they are. What is queued and
//! what has come in part is memory too: [`Streams::heaviest`] says whose is the most.
//!
//! A connection may be sealed ([`Streams::seal`]): then each SEND carries one sealed record.
//!
//! [`Streams`] is an engine beside a [`Nic`] and has no clock: whoever drives the NIC calls
//! [`Streams::poll`] after it has moved, and [`Streams::flush`] when it has queued its frames.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use remora_memory::RegisterError;
use remora_memory::{Access, Buffer, Pd, Region};
use remora_nic::NicError;
use remora_nic::{
    CqId, Data, Nic, QpInit, QpType, Qpn, SendOp, SendWr, Sge, SrqId, WcOpcode, WcStatus, WorkCompletion,
};

use crate::Time;
use crate::seal::{Seal, TAG};

/// Bytes of one SEND at most.
const SLOT: usize = 16 << 10;
/// Where frames begin, and records end: a cipher's block.
const BLOCK: usize = 16;
const _: () = assert!(SLOT.is_multiple_of(BLOCK) && TAG.is_multiple_of(BLOCK));
/// SENDs under way on one connection at most; what more there is waits for their acknowledgement.
const WINDOW: u32 = 32;
/// Bytes of memory that a connection keeps when it has nothing in it; favoured ones keep what they had.
const KEPT: usize = 1 << 20;
/// Marks the work requests of SENDs.
const SEND: u64 = 1 << 32;

/// How many connections there may be, and buffers for them.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Receives for all connections.
    pub receives: u32,
    /// Send buffers for all connections that have none of their own; at least as many as there may be of these.
    pub sends: u32,
    /// Connections that have buffers of their own beside these: see [`Streams::favour`].
    pub favoured: u32,
    /// Largest frame (bytes) that is taken unless the connection says otherwise.
    pub frame: usize,
}

impl Sizes {
    /// Send buffers, those of favoured connections with them.
    const fn slots(&self) -> u32 {
        self.sends + self.favoured * WINDOW
    }

    /// How much memory (bytes) receives take.
    pub const fn receive_bytes(&self) -> usize {
        self.receives as usize * SLOT
    }

    /// How much memory (bytes) send buffers take.
    pub const fn send_bytes(&self) -> usize {
        self.slots() as usize * SLOT
    }
}

/// All connections of a device that carry frames.
pub struct Streams {
    sizes: Sizes,
    pd: Pd,
    cq: CqId,
    srq: SrqId,
    receives: (Buffer, Arc<Region>),
    /// How many of them are in use: as many as may come at once. They are filled in turn, and more would only take the
    /// place of other things in the caches.
    posted: u32,
    pool: Pool,
    streams: BTreeMap<Qpn, Stream>,
    /// Streams that have something to send, or had.
    dirty: Vec<Qpn>,
    /// Completions taken from the queue and not looked at yet.
    later: VecDeque<WorkCompletion>,
}

#[derive(Default)]
struct Stream {
    /// What is to be sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Taken from `out`, and not posted yet.
    filled: Option<Filled>,
    dirty: bool,
    in_flight: u32,
    /// When the peer last took something, or was first given something to take.
    moved: Time,
    seal: Option<Box<Seal>>,
    /// What has arrived and is not a whole frame yet.
    inbound: Vec<u8>,
    frame: usize,
    favoured: bool,
}

/// A send buffer with what is to be sent.
#[derive(Clone, Copy)]
struct Filled {
    slot: u32,
    bytes: u32,
}

/// Something happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Bytes came: see [`Streams::take`].
    Bytes(Qpn),
    /// It carries nothing any more.
    Broken(Qpn),
}

/// What a NIC has no room for, or refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// Of queue pairs and queues.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// Of memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Bytes that came, and how far they have been read.
pub struct Inbound {
    bytes: Vec<u8>,
    at: usize,
    limit: usize,
}

/// A frame is longer than may be.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

/// Appends a frame of what `write` appends.
pub fn put_frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out.resize(start + (out.len() - start).next_multiple_of(BLOCK), 0);
}

impl Inbound {
    /// Bytes of frames of at most `limit` bytes.
    pub fn new(bytes: Vec<u8>, limit: usize) -> Self {
        Self { bytes, at: 0, limit }
    }

    /// Where the next whole frame lies.
    pub fn next_frame(&mut self) -> Result<Option<Range<usize>>, TooLong> {
        let Some(head) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk()) else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length > self.limit {
            return Err(TooLong);
        }
        let end = self.at + (4 + length).next_multiple_of(BLOCK);
        if end > self.bytes.len() {
            return Ok(None);
        }
        let start = std::mem::replace(&mut self.at, end) + 4;
        Ok(Some(start..start + length))
    }

    /// What was not a whole frame yet.
    pub fn rest(mut self) -> Vec<u8> {
        self.bytes.drain(..self.at);
        self.bytes
    }

    /// The bytes.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }
}

impl Streams {
    /// Without connections; with memory of [`Sizes::receive_bytes`] and [`Sizes::send_bytes`].
    pub fn new(nic: &mut Nic, sizes: Sizes, receives: Buffer, sends: Buffer) -> Result<Self, StreamError> {
        let registry = nic.registry().clone();
        let pd = registry.alloc_pd();
        let register = |buffer: Buffer, bytes: usize| -> Result<(Buffer, Arc<Region>), StreamError> {
            let region = registry.register(pd, &buffer, 0, bytes, None, Access::LOCAL_WRITE)?;
            Ok((buffer, region))
        };
        let count = sizes.slots();
        let receives = register(receives, sizes.receive_bytes())?;
        let sends = register(sends, sizes.send_bytes())?;
        let cq = nic.create_cq(sizes.receives + count)?;
        let srq = nic.create_srq(pd, sizes.receives, 1)?;
        Ok(Self {
            sizes,
            pd,
            cq,
            srq,
            receives,
            posted: 0,
            pool: Pool::new(sends, sizes.sends, count),
            streams: BTreeMap::new(),
            dirty: Vec::new(),
            later: VecDeque::new(),
        })
    }

    /// Where completions go.
    pub fn cq(&self) -> CqId {
        self.cq
    }

    /// A queue pair in INIT, to be connected.
    pub fn open(&mut self, nic: &mut Nic) -> Result<Qpn, StreamError> {
        let init = QpInit {
            srq: Some(self.srq),
            max_send_wr: WINDOW,
            max_inline: 0,
            max_rpc: 0,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInit::new(QpType::Rc, self.pd, self.cq, self.cq)
        };
        let qpn = nic.create_qp(init)?;
        nic.to_init(qpn, Access::empty(), 0)?;
        self.streams.insert(qpn, Stream { frame: self.sizes.frame, ..Stream::default() });
        self.pool.common += 1;
        let wanted = (self.streams.len() as u32).saturating_mul(WINDOW).min(self.sizes.receives);
        while self.posted < wanted {
            self.post_receive(nic, self.posted);
            self.posted += 1;
        }
        Ok(qpn)
    }

    /// Frames of this connection may be so long, in bytes.
    pub fn set_frame(&mut self, qpn: Qpn, bytes: usize) {
        if let Some(stream) = self.streams.get_mut(&qpn) {
            stream.frame = bytes;
        }
    }

    /// Frames of this connection may be so long, in bytes, and there are always buffers for it, however many others use.
    pub fn favour(&mut self, qpn: Qpn, bytes: usize) {
        self.set_frame(qpn, bytes);
        if let Some(stream) = self.streams.get_mut(&qpn)
            && !std::mem::replace(&mut stream.favoured, true)
        {
            self.pool.common -= 1;
        }
    }

    /// From now on what leaves on this connection is sealed, and what comes must be, if there is a seal.
    pub fn seal(&mut self, qpn: Qpn, seal: Option<Seal>) {
        if let Some(stream) = self.streams.get_mut(&qpn) {
            stream.seal = seal.map(Box::new);
        }
    }

    /// Ends a connection, whatever state it is in.
    pub fn close(&mut self, nic: &mut Nic, qpn: Qpn) {
        let Some(stream) = self.streams.remove(&qpn) else { return };
        self.pool.common -= u32::from(!stream.favoured);
        if let Some(Filled { slot, .. }) = stream.filled {
            self.pool.release(slot);
        }
        // What is under way completes as flushed and gives its buffer back by its number.
        let _ = nic.to_error(qpn);
        while let Some(wc) = nic.poll_cq(self.cq) {
            self.later.push_back(wc);
        }
        let _ = nic.destroy_qp(qpn);
    }

    /// Nobody needs what waits to be sent on a connection, or has come on it: it is about to be closed.
    pub fn drop_queued(&mut self, qpn: Qpn) {
        if let Some(stream) = self.streams.get_mut(&qpn) {
            (stream.out, stream.sent, stream.inbound) = (Vec::new(), 0, Vec::new());
        }
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self, qpn: Qpn) -> usize {
        self.streams.get(&qpn).map_or(0, |stream| stream.out.len() - stream.sent)
    }

    /// Bytes that have come and were not taken.
    pub fn arrived(&self, qpn: Qpn) -> usize {
        self.streams.get(&qpn).map_or(0, |stream| stream.inbound.len())
    }

    /// Peers that are not favoured and have taken nothing of what was sent to them for longer than `patience` (ns).
    pub fn lazy(&self, now: Time, patience: Time) -> impl Iterator<Item = Qpn> {
        let lazy = move |stream: &Stream| {
            !stream.favoured && stream.in_flight > 0 && now.saturating_sub(stream.moved) > patience
        };
        self.streams.iter().filter(move |(_, stream)| lazy(stream)).map(|(&qpn, _)| qpn)
    }

    /// Which of those that are not favoured holds the most memory, if together they hold more than `most` bytes: queued for
    /// them, or come from them in part.
    pub fn heaviest(&self, most: usize) -> Option<Qpn> {
        let common = || self.streams.iter().filter(|(_, stream)| !stream.favoured);
        let held = |stream: &Stream| stream.out.len() + stream.inbound.len();
        let all: usize = common().map(|(_, stream)| held(stream)).sum();
        let heaviest = common().max_by_key(|(_, stream)| held(stream));
        heaviest.filter(|_| all > most).map(|(&qpn, _)| qpn)
    }

    /// Queues a frame that `write` appends.
    pub fn frame(&mut self, qpn: Qpn, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(stream) = self.streams.get_mut(&qpn) else { return };
        put_frame(&mut stream.out, write);
        if !std::mem::replace(&mut stream.dirty, true) {
            self.dirty.push(qpn);
        }
    }

    /// Posts what is queued, as far as there is room. Returns how many SENDs.
    pub fn flush(&mut self, nic: &mut Nic, now: Time) -> usize {
        let mut posted = 0;
        let (streams, pool) = (&mut self.streams, &mut self.pool);
        self.dirty.retain(|&qpn| {
            let Some(stream) = streams.get_mut(&qpn) else { return false };
            posted += stream.flush(nic, qpn, pool, now);
            stream.dirty
        });
        posted
    }

    /// The next thing that happened.
    pub fn poll(&mut self, nic: &mut Nic, now: Time) -> Option<Arrival> {
        while let Some(wc) = self.later.pop_front().or_else(|| nic.poll_cq(self.cq)) {
            if let Some(arrival) = self.complete(nic, now, wc) {
                return Some(arrival);
            }
        }
        None
    }

    fn complete(&mut self, nic: &mut Nic, now: Time, wc: WorkCompletion) -> Option<Arrival> {
        let stream = self.streams.get_mut(&wc.qpn);
        if wc.wr_id & SEND != 0 {
            self.pool.release(wc.wr_id as u32);
            let stream = stream?;
            stream.in_flight = stream.in_flight.saturating_sub(1);
            stream.moved = now;
            return (wc.status != WcStatus::Success).then_some(Arrival::Broken(wc.qpn));
        }
        let slot = wc.wr_id as u32;
        let mut arrival = None;
        if let Some(stream) = stream {
            let good = wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv;
            let took = good && stream.receive(&self.receives.0, slot, wc.byte_len as usize);
            arrival = Some(if took { Arrival::Bytes(wc.qpn) } else { Arrival::Broken(wc.qpn) });
        }
        self.post_receive(nic, slot);
        arrival
    }

    /// What has come on a connection; to be given back.
    pub fn take(&mut self, qpn: Qpn) -> Inbound {
        let Some(stream) = self.streams.get_mut(&qpn) else { return Inbound::new(Vec::new(), 0) };
        Inbound::new(std::mem::take(&mut stream.inbound), stream.frame)
    }

    /// Keeps what was not a whole frame.
    pub fn give_back(&mut self, qpn: Qpn, inbound: Inbound) {
        if let Some(stream) = self.streams.get_mut(&qpn) {
            stream.inbound = inbound.rest();
            let peak = stream.inbound.is_empty() && !stream.favoured && stream.inbound.capacity() > KEPT;
            if peak {
                stream.inbound = Vec::new();
            }
        }
    }

    fn post_receive(&self, nic: &mut Nic, slot: u32) {
        let va = self.receives.1.va() + u64::from(slot) * SLOT as u64;
        let sge = Sge { va, len: SLOT as u32, lkey: self.receives.1.key() };
        // There is room: as many receives exist as the queue holds.
        let _ = nic.post_srq_recv(self.srq, u64::from(slot), &[sge]);
    }
}

impl Stream {
    /// Posts what is queued, as far as there is room.
    fn flush(&mut self, nic: &mut Nic, qpn: Qpn, pool: &mut Pool, now: Time) -> usize {
        let mut posted = 0;
        while self.in_flight < WINDOW {
            let Some(filled) = self.filled.take().or_else(|| self.fill(pool)) else { break };
            let sges = [pool.sge(filled)];
            let wr = SendWr::new(SEND | u64::from(filled.slot), SendOp::Send, Data::List(&sges));
            if nic.post_send(qpn, &wr).is_err() {
                // Not connected yet, or not any more: a completion or an event says which.
                self.filled = Some(filled);
                break;
            }
            if self.in_flight == 0 {
                self.moved = now;
            }
            posted += 1;
            self.in_flight += 1;
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            self.dirty = self.filled.is_some();
            if !self.favoured && self.out.capacity() > KEPT {
                self.out = Vec::new();
            }
        } else if self.sent > 1 << 20 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        posted
    }

    /// Fills a send buffer, if there is something to send and a buffer for it.
    fn fill(&mut self, pool: &mut Pool) -> Option<Filled> {
        let tag = if self.seal.is_some() { TAG } else { 0 };
        let end = self.out.len().min(self.sent + SLOT - tag);
        if self.sent == end {
            return None;
        }
        let slot = pool.take(self)?;
        let offset = slot as usize * SLOT;
        let bytes = &mut self.out[self.sent..end];
        let length = bytes.len() + tag;
        // In bounds, both: a slot is as long.
        if let Some(seal) = &mut self.seal {
            let tag = seal.seal(bytes);
            let _ = pool.memory.0.write(offset + bytes.len(), &tag);
        }
        let _ = pool.memory.0.write(offset, bytes);
        self.sent = end;
        Some(Filled { slot, bytes: length as u32 })
    }

    /// Takes what came into a receive. Not if it is not sealed as it must be.
    fn receive(&mut self, receives: &Buffer, slot: u32, bytes: usize) -> bool {
        let start = self.inbound.len();
        self.inbound.resize(start + bytes, 0);
        // In bounds: the NIC put no more there.
        let _ = receives.read(slot as usize * SLOT, &mut self.inbound[start..]);
        let Some(seal) = &mut self.seal else { return true };
        let opens = seal.open(&mut self.inbound[start..]).is_ok();
        // What does not open is nobody's.
        self.inbound.truncate(if opens { start + bytes - TAG } else { start });
        opens
    }
}

/// Send buffers.
struct Pool {
    memory: (Buffer, Arc<Region>),
    free: Vec<u32>,
    /// For those who have none of their own.
    sends: u32,
    /// Connections that have none of their own.
    common: u32,
    /// Which buffers in use are not the first of such a connection, and how many these are.
    extra: Vec<bool>,
    extras: u32,
}

impl Pool {
    fn new(memory: (Buffer, Arc<Region>), sends: u32, count: u32) -> Self {
        let (free, extra) = ((0..count).rev().collect(), vec![false; count as usize]);
        Self { memory, free, sends, common: 0, extra, extras: 0 }
    }

    /// A buffer for a connection, if it may have one more.
    fn take(&mut self, stream: &Stream) -> Option<u32> {
        let extra = !stream.favoured && stream.in_flight > 0;
        let left = self.sends.saturating_sub(self.common).saturating_sub(self.extras);
        // It has as many as are in flight, of which all but the first count.
        if extra && stream.in_flight > left / 2 {
            return None;
        }
        let slot = self.free.pop()?;
        self.extra[slot as usize] = extra;
        self.extras += u32::from(extra);
        Some(slot)
    }

    fn release(&mut self, slot: u32) {
        self.extras -= u32::from(std::mem::take(&mut self.extra[slot as usize]));
        self.free.push(slot);
    }

    fn sge(&self, Filled { slot, bytes }: Filled) -> Sge {
        Sge { va: self.memory.1.va() + u64::from(slot) * SLOT as u64, len: bytes, lkey: self.memory.1.key() }
    }
}

#[cfg(test)]
mod tests;
