//! Rings in memory as the ingress of a device's calls: taps that signal, and WRITEs that carry answers.

use std::sync::Arc;

use remora_kernel::Status;
use remora_memory::{Buffer, Region};
use remora_nic::{Data, Nic, NicError, Qpn, SendOp, SendWr, WriteTap};
use remora_ring::{Notify, PushError, Receiver, RingEnd, RingError, RingShape, RingWrite, Sender, Signals};
use remora_service::{RingCall, RingData, RingPair, RingPost, RingReply, Rings, WorkId};

use crate::Error;
use crate::device::Bell;

/// Sends outstanding on a queue pair from which on its rings wait: what is pushed meanwhile shares a WRITE, and replies of
/// other kinds find room.
pub(crate) const RING_SENDS: u32 = 32;

/// Rings' shape, and how frames are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Of both rings.
    pub shape: RingShape,
    /// How the node is told of requests.
    pub notify: Notify,
}

impl Default for RingConfig {
    /// The default shape; a request's WRITE is its signal.
    fn default() -> Self {
        Self { shape: RingShape::default(), notify: Notify::Ring }
    }
}

/// One side's memory of a pair of rings.
pub struct RingMemory {
    /// The ring that the peer fills: [`RingShape::memory`] bytes of zeros, with the right of remote WRITE.
    pub ring: (Buffer, Arc<Region>),
    /// Where what goes to the peer's ring is laid down: [`RingShape::bytes`] at least.
    pub copy: (Buffer, Arc<Region>),
}

impl RingMemory {
    /// Whether it has the bytes that the shape needs.
    fn fits(&self, shape: RingShape) -> bool {
        self.ring.0.len() >= shape.memory() && self.copy.0.len() >= shape.bytes()
    }

    /// This side's end.
    fn end(&self, config: RingConfig, notify: Notify) -> Result<RingEnd, Error> {
        if !self.fits(config.shape) {
            return Err(Error::Argument("the memory of a pair of rings is shorter than its shape asks for".into()));
        }
        let sender = Sender::new(config.shape, self.copy.0.clone());
        Ok(RingEnd::new(sender, Receiver::new(config.shape, self.ring.0.clone()), notify))
    }
}

/// A caller's pair of rings, for one who has a queue pair to who serves them.
pub struct RingPort {
    notify: Notify,
    end: RingEnd,
    memory: RingMemory,
    /// The request ring: address and key.
    requests: (u64, u32),
    /// The reply handed out last.
    reply: Vec<u8>,
}

impl RingPort {
    /// Over memory of the queue pair's protection domain, to a request ring at `requests` (address and key).
    pub fn new(memory: RingMemory, config: RingConfig, requests: (u64, u32)) -> Result<Self, Error> {
        let mut end = memory.end(config, config.notify)?;
        // The server asks for room that it has not heard of.
        end.expect(0);
        Ok(Self { notify: config.notify, end, memory, requests, reply: Vec::new() })
    }

    /// The shape of its rings.
    pub fn shape(&self) -> RingShape {
        self.end.shape()
    }

    /// Keys of its own regions.
    pub fn keys(&self) -> [u32; 2] {
        [self.memory.ring.1.key(), self.memory.copy.1.key()]
    }

    /// Puts a call into the ring. It leaves with the next [`post`](Self::post).
    #[inline]
    pub fn push(&mut self, call: &RingCall, params: &[u8]) -> Result<Result<(), PushError>, RingError> {
        self.end.push(&[&call.encode(), params])
    }

    /// Posts what there is to write by a queue pair, calls that were pushed since the last time together. Pointers complete:
    /// take completions, or their queue overflows.
    #[inline]
    pub fn post(&mut self, nic: &mut Nic, qp: Qpn) {
        while self.end.wants_write() && nic.sends_outstanding(qp).is_ok_and(|sends| sends < RING_SENDS.into()) {
            let Some(write) = self.end.poll_write() else { return };
            let copy = (self.memory.copy.1.va(), self.memory.copy.1.key());
            // Of frames and their pointer the second is signalled: it completes after the first.
            let signaled = self.notify == Notify::Pointer && matches!(write, RingWrite::Pointer { .. });
            let (op, data) = RingData::of(write, copy, self.requests);
            // A queue pair that takes nothing is lost, which its completions say.
            let _ = post_write(nic, qp, op, &data, signaled);
        }
    }

    /// Hands replies that have landed to `done`: the call's tag, its status, the reply.
    #[inline]
    pub fn poll(&mut self, done: &mut dyn FnMut(u32, Status, &[u8])) -> Result<(), RingError> {
        loop {
            let mut bytes = [0; RingReply::LEN];
            let mut front = &mut bytes[..];
            match self.end.poll_split(&mut front, &mut self.reply)? {
                true if front.len() == RingReply::LEN => {}
                // No reply: nobody waits for it.
                true => continue,
                false => return Ok(()),
            }
            let RingReply { tag, status } = RingReply::decode(&bytes);
            done(tag, status, &self.reply);
        }
    }
}

/// Signals a ring when something lands in its memory.
struct RingTap {
    signals: Arc<Signals>,
    ring: u32,
    notify: Notify,
    /// Where the pointer word is.
    pointer: u64,
    /// Whom to wake, if he may be asleep.
    bell: Option<Arc<Bell>>,
}

impl WriteTap for RingTap {
    #[inline]
    fn saw(&mut self, offset: u64, data: &[u8]) {
        // The pointer is the first half of its word, which comes in one piece, as it is aligned.
        let at = self.pointer.checked_sub(offset).and_then(|at| data.get(at as usize..)?.first_chunk());
        match (at, self.notify) {
            (Some(pointer), _) => self.signals.set_pointer(self.ring, u32::from_le_bytes(*pointer)),
            (None, Notify::Ring) => self.signals.set(self.ring),
            (None, Notify::Pointer) => return,
        }
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// Opens a pair of rings for the client behind a queue pair, whose response ring is at `responses` (address and key).
/// Returns its number.
pub(crate) fn open(
    rings: &mut Rings,
    nic: &mut Nic,
    (qpn, client): (Qpn, u32),
    memory: &RingMemory,
    (config, responses): (RingConfig, (u64, u32)),
    bell: Option<Arc<Bell>>,
) -> Result<u32, Error> {
    // Replies are found in the ring: nobody has to be told of them.
    let mut end = memory.end(config, Notify::Ring)?;
    // Every reply tells of room.
    end.expect(0);
    let pd = nic.qp_init(qpn)?.pd;
    let copy = (memory.copy.1.va(), memory.copy.1.key());
    let ring = rings
        .open(client, RingPair { qpn, pd, end, notify: config.notify, copy, responses })
        .map_err(|e| Error::Argument(e.to_string()))?;
    let pointer = config.shape.pointer() as u64;
    let tap = RingTap { signals: rings.signals().clone(), ring, notify: config.notify, pointer, bell };
    if let Err(e) = nic.attach_tap(memory.ring.1.key(), Box::new(tap)) {
        rings.close(ring);
        return Err(e.into());
    }
    Ok(ring)
}

/// Posts what rings have to write. Returns how many WRITEs.
pub(crate) fn post(rings: &mut Rings, nic: &mut Nic) -> usize {
    let mut posted = 0;
    while rings.wants_write() {
        let room = |qpn| nic.sends_outstanding(qpn).is_ok_and(|sends| sends < RING_SENDS.into());
        let Some(RingPost { qpn, op, data }) = rings.next_write(room) else { break };
        // A queue pair that is gone takes nothing: its rings go with it.
        let _ = post_write(nic, qpn, op, &data, false);
        posted += 1;
    }
    while let Some(qpn) = rings.poll_denied() {
        nic.wrong_key(qpn);
    }
    posted
}

/// Posts one WRITE of a ring.
#[inline]
pub(crate) fn post_write(nic: &mut Nic, qpn: Qpn, op: SendOp, data: &RingData, signaled: bool) -> Result<(), NicError> {
    let id = WorkId::Unnamed.encode();
    let wr = |data| {
        let wr = SendWr::new(id, op, data);
        if signaled { wr } else { wr.unsignaled() }
    };
    match data {
        RingData::Frames(sge) => nic.post_send(qpn, &wr(Data::List(std::slice::from_ref(sge)))),
        RingData::Pointer(word) => nic.post_send(qpn, &wr(Data::Inline(word))),
    }
}
