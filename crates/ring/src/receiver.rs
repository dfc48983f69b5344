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
    /// The message that is being taken in pieces.
    part: Option<Part>,
}

/// A message of which a part is taken, as it was when that began: the peer may write over it since.
#[derive(Clone, Copy)]
struct Part {
    at: usize,
    len: usize,
    credit: u32,
    taken: usize,
}

impl Receiver {
    /// An empty ring. `ring` has [`RingShape::memory`] bytes, which are 0.
    pub fn new(shape: RingShape, ring: Buffer) -> Self {
        assert!(ring.len() >= shape.memory(), "the memory is as long as the ring and its pointer word");
        Self { shape, ring, head: 0, told: 0, walked: 0, longest: shape.longest(), part: None }
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

    /// The next message, if it is whole: where its frame begins, its length and its credit.
    #[inline]
    fn next_whole(&self) -> Result<Option<Part>, RingError> {
        let at = self.shape.offset(self.head);
        // All offsets are in bounds, and words aligned: memory begins at a page.
        let Some((len, credit)) = parse_front(self.ring.load_u64(at).unwrap_or(0)) else { return Ok(None) };
        let entry = (at / self.shape.entry() as usize) as u32;
        if len as usize > self.longest {
            return Err(RingError::Length { entry, len, most: self.longest as u32 });
        }
        let last = (at + frame_len(len as usize) - 8) % self.shape.bytes();
        match (self.ring.load_u64(last).unwrap_or(0) >> 56) as u8 {
            MARK => Ok(Some(Part { at, len: len as usize, credit, taken: 0 })),
            0 => Ok(None),
            found => Err(RingError::Mark { entry, found }),
        }
    }

    /// Takes the next message, if it is whole, and returns the credit that it brings. The message replaces what is in
    /// `front`, cut short if that is shorter, and what is left of it what is in `out`; `front` is as long as what of it is
    /// there.
    #[inline]
    pub fn poll(&mut self, front: &mut &mut [u8], out: &mut Vec<u8>) -> Result<Option<u32>, RingError> {
        let Some(Part { at, len, credit, .. }) = self.next_whole()? else { return Ok(None) };
        let in_front = front.len().min(len);
        *front = &mut std::mem::take(front)[..in_front];
        out.resize(len - in_front, 0);
        self.read(at + FRONT, front);
        self.read(at + FRONT + in_front, out);
        self.clear(at, frame_len(len));
        self.head += self.shape.entries_of(frame_len(len));
        Ok(Some(credit))
    }

    /// The length of the next message, if it is whole, without taking it, and as much of it in `front` as fits there. From
    /// then on it is taken by [`take_part`](Self::take_part) alone, as long as it is now, whatever the peer writes.
    pub(crate) fn peek(&mut self, front: &mut [u8]) -> Result<Option<usize>, RingError> {
        if self.part.is_none() {
            self.part = self.next_whole()?;
        }
        let Some(Part { at, len, .. }) = self.part else { return Ok(None) };
        let in_front = front.len().min(len);
        self.read(at + FRONT, &mut front[..in_front]);
        Ok(Some(len))
    }

    /// Takes up to `most` bytes more of the message that was looked at, but for its first `skip`, and appends them to `out`.
    /// Returns the credit that it brings when that was all of it.
    pub(crate) fn take_part(&mut self, skip: usize, out: &mut Vec<u8>, most: usize) -> Option<u32> {
        let Part { at, len, credit, taken } = self.part?;
        let from = taken.max(skip.min(len));
        let (before, more) = (out.len(), most.min(len - from));
        if taken == 0 {
            out.reserve_exact(len - from);
        }
        out.resize(before + more, 0);
        self.read(at + FRONT + from, &mut out[before..]);
        // Its first word stays until the end: the ring has a message so long.
        self.clear(at + FRONT + taken, from + more - taken);
        if from + more < len {
            self.part = Some(Part { taken: from + more, ..self.part? });
            return None;
        }
        self.part = None;
        self.clear(at + FRONT + len, frame_len(len) - FRONT - len);
        self.clear(at, FRONT);
        self.head += self.shape.entries_of(frame_len(len));
        Some(credit)
    }

    /// Where in the ring this is, in it or in its next round.
    #[inline]
    fn within(&self, at: usize) -> usize {
        if at < self.shape.bytes() { at } else { at - self.shape.bytes() }
    }

    /// Resets bytes to 0 that begin here or, beyond its end, in the ring's next round.
    #[inline]
    fn clear(&self, at: usize, len: usize) {
        let at = self.within(at);
        let here = len.min(self.shape.bytes() - at);
        let _ = self.ring.fill(at, here, 0);
        if here < len {
            let _ = self.ring.fill(0, len - here, 0);
        }
    }

    /// Copies bytes out that begin here or, beyond its end, in the ring's next round.
    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        let at = self.within(at);
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

    /// Whether the peer should be told of its credit without a message: if it does not know of a quarter of the ring, if
    /// it may believe that a message of up to `longest` bytes, which it is to send, has no room, or if it asks.
    #[inline]
    pub fn credit_is_due(&self, longest: usize) -> bool {
        let (untold, entries) = (self.head - self.told, u64::from(self.shape.entries()));
        if untold == 0 {
            return false;
        }
        let longest = match longest {
            0 => 0,
            _ => self.shape.entries_of_message(longest.min(self.shape.longest())),
        };
        untold >= entries / 4 || untold > entries - longest || self.is_asked()
    }

    /// Whether the peer has a message that goes further than the room that it knows of: its pointer word says so. One that
    /// it wrote long ago says nothing.
    #[inline]
    fn is_asked(&self) -> bool {
        let wanted = self.pointer().0.wrapping_sub(self.told as u32);
        let entries = self.shape.entries();
        entries < wanted && wanted <= 2 * entries
    }
}
