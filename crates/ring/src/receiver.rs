//! The side that reads a ring.

use remora_memory::Buffer;

use crate::RingError;
use crate::frame::{FRONT, MARK, frame_len, parse_front};
use crate::shape::RingShape;

/// Reads a ring that the peer fills in memory of ours.
pub struct Receiver {
    shape: RingShape,
    ring: Buffer,
    /// Entries read.
    head: u64,
    /// Entries that the peer knows to be read.
    told: u64,
    /// Entries whose credits were looked at without reading them.
    walked: u64,
    /// The longest message that there may be.
    longest: usize,
}

impl Receiver {
    /// An empty ring. `ring` has [`RingShape::memory`] bytes, which are 0.
    pub fn new(shape: RingShape, ring: Buffer) -> Self {
        assert!(ring.len() >= shape.memory(), "the memory is as long as the ring and its pointer word");
        Self { shape, ring, head: 0, told: 0, walked: 0, longest: shape.longest() }
    }

    /// Its shape.
    pub fn shape(&self) -> RingShape {
        self.shape
    }

    /// Takes no longer messages than this.
    pub(crate) fn accept_up_to(&mut self, longest: usize) {
        self.longest = longest.min(self.shape.longest());
    }

    /// Entries read since the beginning.
    #[inline]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The pointer word: how far the peer has filled the ring, and how far it has read that of the other way, both
    /// modulo 2^32. Zeros until the peer writes some.
    #[inline]
    pub fn pointer(&self) -> (u32, u32) {
        let word = self.ring.load_u64(self.shape.pointer()).unwrap_or(0);
        (word as u32, (word >> 32) as u32)
    }

    /// Entries that came since the last was read, if the peer has filled the ring up to `tail`: what several signals that
    /// came as one stand for.
    #[inline]
    pub fn arrived(&self, tail: u32) -> Result<u32, RingError> {
        let arrived = tail.wrapping_sub(self.head as u32);
        // A pointer from before the last frame was read: its signal is late.
        if arrived > u32::MAX - 4 * RingShape::MOST_ENTRIES {
            return Ok(0);
        }
        match arrived <= self.shape.entries() {
            true => Ok(arrived),
            false => Err(RingError::Pointer { tail, head: self.head, entries: self.shape.entries() }),
        }
    }

    /// Takes the next message, if it is whole, and returns the credit that it brings. The message replaces what is in
    /// `front`, cut short if that is shorter, and what is left of it what is in `out`; `front` is as long as what of it is
    /// there.
    #[inline]
    pub fn poll(&mut self, front: &mut &mut [u8], out: &mut Vec<u8>) -> Result<Option<u32>, RingError> {
        let at = self.shape.offset(self.head);
        // All offsets are in bounds, and words aligned: memory begins at a page.
        let Some((len, credit)) = parse_front(self.ring.load_u64(at).unwrap_or(0)) else { return Ok(None) };
        let entry = (at / self.shape.entry() as usize) as u32;
        if len as usize > self.longest {
            return Err(RingError::Length { entry, len, most: self.longest as u32 });
        }
        let bytes = frame_len(len as usize);
        let last = (at + bytes - 8) % self.shape.bytes();
        match (self.ring.load_u64(last).unwrap_or(0) >> 56) as u8 {
            MARK => {}
            0 => return Ok(None),
            found => return Err(RingError::Mark { entry, found }),
        }
        let len = len as usize;
        let in_front = front.len().min(len);
        *front = &mut std::mem::take(front)[..in_front];
        out.resize(len - in_front, 0);
        self.read(at + FRONT, front);
        self.read(at + FRONT + in_front, out);
        let here = bytes.min(self.shape.bytes() - at);
        let _ = self.ring.fill(at, here, 0);
        if here < bytes {
            let _ = self.ring.fill(0, bytes - here, 0);
        }
        self.head += self.shape.entries_of(bytes);
        Ok(Some(credit))
    }

    /// Copies bytes out that begin here or, beyond its end, in the ring's next round.
    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        let at = if at < self.shape.bytes() { at } else { at - self.shape.bytes() };
        let to_end = self.shape.bytes() - at;
        if out.len() <= to_end {
            let _ = self.ring.read(at, out);
            return;
        }
        let (here, rest) = out.split_at_mut(to_end);
        let _ = self.ring.read(at, here);
        let _ = self.ring.read(0, rest);
    }

    /// The credit of the newest message that waits whole, without taking it, if it came since this was last asked: what is
    /// walked over once is not again, however long it waits.
    pub fn newest_credit(&mut self) -> Option<u32> {
        let (mut at, mut newest) = (self.walked.max(self.head), None);
        while at < self.head + u64::from(self.shape.entries()) {
            let start = self.shape.offset(at);
            let Some((len, credit)) = parse_front(self.ring.load_u64(start).unwrap_or(0)) else { break };
            let bytes = frame_len(len as usize);
            if len as usize > self.longest {
                break;
            }
            let last = (start + bytes - 8) % self.shape.bytes();
            if (self.ring.load_u64(last).unwrap_or(0) >> 56) as u8 != MARK {
                break;
            }
            newest = Some(credit);
            at += self.shape.entries_of(bytes);
        }
        self.walked = at;
        newest
    }

    /// Whether a message waits, whole or in part.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.ring.load_u64(self.shape.offset(self.head)).is_ok_and(|word| word != 0)
    }

    /// The credit for the peer, modulo 2^32, which is now being told.
    #[inline]
    pub(crate) fn tell(&mut self) -> u64 {
        self.told = self.head;
        self.head & 0xffff_ffff
    }

    /// Whether the peer should be told of its credit without a message: if it does not know of a quarter of the ring, or
    /// if it may believe that a message of up to `longest` bytes, which it is to send, has no room.
    #[inline]
    pub fn credit_is_due(&self, longest: usize) -> bool {
        let (untold, entries) = (self.head - self.told, u64::from(self.shape.entries()));
        if untold == 0 {
            return false;
        }
        let longest = match longest {
            0 => 0,
            _ => self.shape.entries_of(frame_len(longest.min(self.shape.longest()))),
        };
        untold >= entries / 4 || untold > entries - longest
    }
}
