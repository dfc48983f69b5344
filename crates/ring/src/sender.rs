//! The side that fills a ring.

use std::ops::Range;

use remora_memory::Buffer;

use crate::RingError;
use crate::frame::{FRONT, MARK, frame_len, front};
use crate::shape::RingShape;

/// Bytes of a frame that is put together before it is laid down, at most.
const TOGETHER: usize = 16 << 10;

/// Fills a ring in the peer's memory.
///
/// Frames are laid down in memory of the same shape at the same places, from where WRITEs take them. That may be the
/// ring itself, where both sides share memory: stores go in ascending order, as a WRITE's bytes land.
///
/// A WRITE takes bytes from this memory whenever it is sent, and so also when it is sent again. They are overwritten when
/// the peer has read them, and one that has read them takes no notice of what is sent again.
pub struct Sender {
    shape: RingShape,
    copy: Buffer,
    /// Entries that the peer has read, as far as it has told.
    head: u64,
    /// Entries filled.
    tail: u64,
    /// Entries handed out by [`poll_write`](Self::poll_write).
    written: u64,
    /// Bytes of the last frame's last entry.
    last: u32,
    frame: Vec<u8>,
}

/// Why a message does not go into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// It goes into none of this shape.
    #[error("a message of {len} bytes: this ring has room for {most}")]
    TooLong {
        /// Its length.
        len: usize,
        /// What there may be.
        most: usize,
    },
    /// The peer has to read first.
    #[error("the ring is full until the peer has read some of it")]
    Full,
}

impl Sender {
    /// An empty ring. `copy` has the bytes of its entries at least.
    pub fn new(shape: RingShape, copy: Buffer) -> Self {
        assert!(copy.len() >= shape.bytes(), "the memory is as long as the ring");
        Self { shape, copy, head: 0, tail: 0, written: 0, last: 0, frame: Vec::with_capacity(256) }
    }

    /// Its shape.
    pub fn shape(&self) -> RingShape {
        self.shape
    }

    /// Entries filled since the beginning.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Entries of which it is not known that the peer has read them.
    #[inline]
    pub fn unread(&self) -> u64 {
        self.tail - self.head
    }

    /// Whether there is room for a message of so many bytes now.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        self.shape.entries_of_message(len) <= u64::from(self.shape.entries()) - self.unread()
    }

    /// Puts a message in, which is `parts` one behind the other, with a credit for the ring of the other way.
    #[inline]
    pub fn push(&mut self, credit: u32, parts: &[&[u8]]) -> Result<(), PushError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > self.shape.longest() {
            return Err(PushError::TooLong { len, most: self.shape.longest() });
        }
        if !self.has_room(len) {
            return Err(PushError::Full);
        }
        let bytes = frame_len(len);
        if bytes > TOGETHER {
            return self.lay(credit, parts, &mut 0, usize::MAX).map(|_| ());
        }
        self.frame.clear();
        self.frame.extend_from_slice(&front(len as u32, credit).to_le_bytes());
        parts.iter().for_each(|part| self.frame.extend_from_slice(part));
        self.frame.resize(bytes, 0);
        self.frame[bytes - 1] = MARK;
        // Zeros up to the next entry: what stood there would go along with frames behind this one.
        self.frame.resize(self.whole(bytes), 0);
        self.put(0);
        self.pushed(bytes);
        Ok(())
    }

    /// As [`push`](Self::push), of a message of which `laid` bytes are laid down: up to `most` more, which are counted there.
    /// True when that was all of it. Nothing else may be pushed meanwhile.
    pub fn lay(&mut self, credit: u32, parts: &[&[u8]], laid: &mut usize, most: usize) -> Result<bool, PushError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > self.shape.longest() {
            return Err(PushError::TooLong { len, most: self.shape.longest() });
        }
        if !self.has_room(len) {
            return Err(PushError::Full);
        }
        if *laid == 0 {
            self.frame.clear();
            self.frame.extend_from_slice(&front(len as u32, credit).to_le_bytes());
            self.put(0);
        }
        let (mut skip, mut left) = (*laid, most);
        for part in parts {
            let here = &part[skip.min(part.len())..];
            let here = &here[..left.min(here.len())];
            skip = skip.saturating_sub(part.len());
            self.write(FRONT + *laid, here);
            (*laid, left) = (*laid + here.len(), left - here.len());
        }
        if *laid < len {
            return Ok(false);
        }
        let bytes = frame_len(len);
        self.frame.clear();
        self.frame.resize(self.whole(bytes) - FRONT - len, 0);
        self.frame[bytes - 1 - FRONT - len] = MARK;
        self.put(FRONT + len);
        self.pushed(bytes);
        Ok(true)
    }

    /// Bytes of the entries of a frame.
    #[inline]
    fn whole(&self, frame: usize) -> usize {
        self.shape.entries_of(frame) as usize * self.shape.entry() as usize
    }

    /// Lays down what was put together, so far behind the beginning of the next frame.
    #[inline]
    fn put(&self, offset: usize) {
        self.write(offset, &self.frame);
    }

    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) {
        let at = (self.shape.offset(self.tail) + offset) & (self.shape.bytes() - 1);
        let (here, rest) = bytes.split_at(bytes.len().min(self.shape.bytes() - at));
        // In bounds: the shape's offsets are, and `new` has seen the memory's length.
        let _ = self.copy.write(at, here);
        if !rest.is_empty() {
            let _ = self.copy.write(0, rest);
        }
    }

    /// A frame of so many bytes is laid down.
    #[inline]
    fn pushed(&mut self, bytes: usize) {
        self.last = self.shape.entry() - (self.whole(bytes) - bytes) as u32;
        self.tail += self.shape.entries_of(bytes);
    }

    /// Whether frames wait for a WRITE.
    #[inline]
    pub fn has_unwritten(&self) -> bool {
        self.written != self.tail
    }

    /// The next bytes to be written to the peer's ring, at the same offset there: all that was pushed since, but for what
    /// lies behind the end of the ring, which is the next.
    #[inline]
    pub fn poll_write(&mut self) -> Option<Range<usize>> {
        if self.written == self.tail {
            return None;
        }
        let start = self.shape.offset(self.written);
        let to_end = (self.shape.bytes() - start) as u64 / u64::from(self.shape.entry());
        let entries = to_end.min(self.tail - self.written);
        self.written += entries;
        let mut end = start + entries as usize * self.shape.entry() as usize;
        if self.written == self.tail {
            end -= (self.shape.entry() - self.last) as usize;
        }
        Some(start..end)
    }

    /// The peer may have read up to here, modulo 2^32; nothing happens if that is not what it was sent since it last said so.
    pub(crate) fn take_hint(&mut self, credit: u32) {
        let ahead = u64::from(credit.wrapping_sub(self.head as u32));
        if ahead <= self.unread() {
            self.head += ahead;
        }
    }

    /// The peer has read up to here, modulo 2^32. What it said before is said again by messages that were under way.
    #[inline]
    pub fn take_credit(&mut self, credit: u32) -> Result<(), RingError> {
        let ahead = u64::from(credit.wrapping_sub(self.head as u32));
        if ahead <= self.unread() {
            self.head += ahead;
            return Ok(());
        }
        let behind = (self.head as u32).wrapping_sub(credit);
        match behind < 1 << 31 && u64::from(behind) <= self.head {
            true => Ok(()),
            false => Err(RingError::Credit { credit, head: self.head, tail: self.tail }),
        }
    }
}
