//! Frames over reliable connections.
//!
//! A connection carries a stream of bytes in SENDs; a frame is its length (4 bytes, little-endian) and so many bytes.
//! Whatever is queued between two flushes shares SENDs, and a long frame takes several. Receives come from one shared
//! queue, send buffers from one pool. A peer has no right to any memory: all it can do is send.
//!
//! [`Streams`] is an engine beside a [`Nic`] and has no time of its own: whoever drives the NIC calls
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

/// Bytes of one SEND at most.
const SLOT: usize = 16 << 10;
/// SENDs under way on one connection at most; what more there is waits for their acknowledgement.
const WINDOW: u32 = 32;
/// Marks the work requests of SENDs.
const SEND: u64 = 1 << 32;

/// How many connections there may be, and buffers for them.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Receives for all connections.
    pub receives: u32,
    /// Send buffers for all connections.
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
    sends: (Buffer, Arc<Region>),
    free: Vec<u32>,
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
    dirty: bool,
    in_flight: u32,
    /// What has arrived and is not a whole frame yet.
    inbound: Vec<u8>,
    frame: usize,
    favoured: bool,
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
        let frame = self.at + 4..self.at + 4 + length;
        if frame.end > self.bytes.len() {
            return Ok(None);
        }
        self.at = frame.end;
        Ok(Some(frame))
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
        let free = (0..count).rev().collect();
        let (streams, dirty, later) = (BTreeMap::new(), Vec::new(), VecDeque::new());
        Ok(Self { sizes, pd, cq, srq, receives, posted: 0, sends, free, streams, dirty, later })
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
        if let Some(stream) = self.streams.get_mut(&qpn) {
            stream.favoured = true;
        }
    }

    /// Ends a connection, whatever state it is in.
    pub fn close(&mut self, nic: &mut Nic, qpn: Qpn) {
        if self.streams.remove(&qpn).is_none() {
            return;
        }
        // What is under way completes as flushed and gives its buffer back by its number.
        let _ = nic.to_error(qpn);
        while let Some(wc) = nic.poll_cq(self.cq) {
            self.later.push_back(wc);
        }
        let _ = nic.destroy_qp(qpn);
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self, qpn: Qpn) -> usize {
        self.streams.get(&qpn).map_or(0, |stream| stream.out.len() - stream.sent)
    }

    /// Queues a frame that `write` appends.
    pub fn frame(&mut self, qpn: Qpn, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(stream) = self.streams.get_mut(&qpn) else { return };
        let start = stream.out.len();
        stream.out.extend_from_slice(&[0; 4]);
        write(&mut stream.out);
        let length = (stream.out.len() - start - 4) as u32;
        stream.out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        if !std::mem::replace(&mut stream.dirty, true) {
            self.dirty.push(qpn);
        }
    }

    /// Posts what is queued, as far as there is room. Returns how many SENDs.
    pub fn flush(&mut self, nic: &mut Nic) -> usize {
        let mut posted = 0;
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|&qpn| {
            let Some(stream) = self.streams.get_mut(&qpn) else { return false };
            let kept = if stream.favoured { 0 } else { self.sizes.favoured * WINDOW };
            while stream.sent < stream.out.len()
                && stream.in_flight < WINDOW
                && self.free.len() > kept as usize
                && let Some(slot) = self.free.pop()
            {
                let end = stream.out.len().min(stream.sent + SLOT);
                let bytes = &stream.out[stream.sent..end];
                let offset = slot as usize * SLOT;
                // In bounds: a slot is as long.
                let _ = self.sends.0.write(offset, bytes);
                let (va, lkey) = (self.sends.1.va() + offset as u64, self.sends.1.key());
                let sges = [Sge { va, len: bytes.len() as u32, lkey }];
                let wr = SendWr::new(SEND | u64::from(slot), SendOp::Send, Data::List(&sges));
                if nic.post_send(qpn, &wr).is_err() {
                    // Not connected yet, or not any more: a completion or an event says which.
                    self.free.push(slot);
                    break;
                }
                posted += 1;
                stream.sent = end;
                stream.in_flight += 1;
            }
            if stream.sent == stream.out.len() {
                stream.out.clear();
                stream.sent = 0;
                stream.dirty = false;
            } else if stream.sent > 1 << 20 {
                stream.out.drain(..stream.sent);
                stream.sent = 0;
            }
            stream.dirty
        });
        self.dirty = dirty;
        posted
    }

    /// The next thing that happened.
    pub fn poll(&mut self, nic: &mut Nic) -> Option<Arrival> {
        while let Some(wc) = self.later.pop_front().or_else(|| nic.poll_cq(self.cq)) {
            if let Some(arrival) = self.complete(nic, wc) {
                return Some(arrival);
            }
        }
        None
    }

    fn complete(&mut self, nic: &mut Nic, wc: WorkCompletion) -> Option<Arrival> {
        let stream = self.streams.get_mut(&wc.qpn);
        if wc.wr_id & SEND != 0 {
            self.free.push(wc.wr_id as u32);
            let stream = stream?;
            stream.in_flight = stream.in_flight.saturating_sub(1);
            return (wc.status != WcStatus::Success).then_some(Arrival::Broken(wc.qpn));
        }
        let slot = wc.wr_id as u32;
        let mut arrival = None;
        if let Some(stream) = stream {
            if wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv {
                let start = stream.inbound.len();
                stream.inbound.resize(start + wc.byte_len as usize, 0);
                // In bounds: the NIC put no more there.
                let _ = self.receives.0.read(slot as usize * SLOT, &mut stream.inbound[start..]);
                arrival = Some(Arrival::Bytes(wc.qpn));
            } else {
                arrival = Some(Arrival::Broken(wc.qpn));
            }
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
    pub fn give_back(&mut self, qpn: Qpn, mut inbound: Inbound) {
        if let Some(stream) = self.streams.get_mut(&qpn) {
            inbound.bytes.drain(..inbound.at);
            stream.inbound = inbound.bytes;
        }
    }

    fn post_receive(&self, nic: &mut Nic, slot: u32) {
        let va = self.receives.1.va() + u64::from(slot) * SLOT as u64;
        let sge = Sge { va, len: SLOT as u32, lkey: self.receives.1.key() };
        // There is room: as many receives exist as the queue holds.
        let _ = nic.post_srq_recv(self.srq, u64::from(slot), &[sge]);
    }
}
