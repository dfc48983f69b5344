//! One side of a pair of rings.

use std::ops::Range;

use crate::receiver::Receiver;
use crate::sender::{PushError, Sender};
use crate::{RingError, RingShape};

/// How the peer is told that frames have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The WRITE that lands in the ring is the signal: one WRITE for all frames that were pushed together. So do rings
    /// that lie within the cpoll region (RAMBDA, section III-B, first approach), and those that somebody polls.
    Ring,
    /// The pointer word behind the ring is written after the frames: a second WRITE, by the same doorbell. For where
    /// watching whole rings would take too much room (section III-B, figure 3c).
    Pointer,
}

/// What to write to the peer's memory, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingWrite {
    /// These bytes of the sender's memory, to the same offset of the ring.
    Frames(Range<usize>),
    /// This word to this offset: filled up to, in its lower half; read up to, in its upper.
    Pointer {
        /// Where the peer's pointer word is.
        offset: usize,
        /// What to write, in 8 bytes, little-endian.
        word: u64,
    },
}

/// One side: a ring that it fills, and one that it reads.
pub struct RingEnd {
    sender: Sender,
    receiver: Receiver,
    notify: Notify,
    /// Frames went out, and the pointer word did not yet.
    pointer_is_due: bool,
    /// The longest message that the peer is to send.
    expected: usize,
    /// The credit in the peer's pointer word when it was looked at last, and how far our ring was filled then.
    pointer: u32,
    looked_at: u64,
}

/// Entries after which the pointer word is looked at, if not before: one that was written long ago says nothing, as it counts
/// modulo 2^32.
const LOOK_EVERY: u64 = 1 << 20;

impl RingEnd {
    /// A side that tells its peer of frames as `notify` says.
    pub fn new(sender: Sender, receiver: Receiver, notify: Notify) -> Self {
        Self { sender, receiver, notify, pointer_is_due: false, expected: usize::MAX, pointer: 0, looked_at: 0 }
    }

    /// The ring that it fills.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The ring that it reads.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// The shape of the ring that it fills.
    pub fn shape(&self) -> RingShape {
        self.sender.shape()
    }

    /// The longest message that the peer may be about to send while nothing goes to it that would tell it of room; 0 if
    /// something always does, as a reply to each request. Until this is said that is any length, and the peer is told of
    /// room at once.
    pub fn expect(&mut self, longest: usize) {
        self.expected = longest;
    }

    /// Messages of the peer may have so many bytes at most, if not fewer for the ring's sake.
    pub fn accept_up_to(&mut self, longest: usize) {
        self.receiver.accept_up_to(longest);
    }

    /// Takes the credit of the pointer word, if that is new. The peer writes it where messages would bring none, and so it may
    /// have been overtaken by theirs.
    fn look_at_pointer(&mut self) {
        let credit = self.receiver.pointer().1;
        if credit != std::mem::replace(&mut self.pointer, credit) {
            self.sender.take_hint(credit);
        }
        self.looked_at = self.sender.tail();
    }

    /// Puts a message in, which is `parts` one behind the other. If there is no room, looks whether the peer has told of
    /// some, in the pointer word or in messages that wait.
    #[inline]
    pub fn push(&mut self, parts: &[&[u8]]) -> Result<Result<(), PushError>, RingError> {
        let credit = self.receiver.head() as u32;
        let mut pushed = self.sender.push(credit, parts);
        if pushed == Err(PushError::Full) {
            self.look_at_pointer();
            if let Some(credit) = self.receiver.newest_credit() {
                self.sender.take_credit(credit)?;
            }
            pushed = self.sender.push(credit, parts);
        } else if self.sender.tail() - self.looked_at >= LOOK_EVERY {
            self.look_at_pointer();
        }
        if pushed.is_ok() {
            self.receiver.tell();
        }
        Ok(pushed)
    }

    /// Takes the next message. True if there was one, which is all that `out` holds then.
    #[inline]
    pub fn poll(&mut self, out: &mut Vec<u8>) -> Result<bool, RingError> {
        self.poll_split(&mut &mut [][..], out)
    }

    /// As [`poll`](Self::poll), with the first bytes of the message in `front` and the rest in `out`. A message that is
    /// shorter leaves `front` as long as it is.
    #[inline]
    pub fn poll_split(&mut self, front: &mut &mut [u8], out: &mut Vec<u8>) -> Result<bool, RingError> {
        match self.receiver.poll(front, out)? {
            Some(credit) => self.sender.take_credit(credit).map(|()| true),
            None => Ok(false),
        }
    }

    /// What is to be written to the peer's memory next. Nothing may be written to it in another order.
    #[inline]
    pub fn poll_write(&mut self) -> Option<RingWrite> {
        if let Some(range) = self.sender.poll_write() {
            self.pointer_is_due = self.notify == Notify::Pointer;
            return Some(RingWrite::Frames(range));
        }
        if !self.pointer_is_due && !self.receiver.credit_is_due(self.expected) {
            return None;
        }
        self.pointer_is_due = false;
        let word = self.sender.tail() & 0xffff_ffff | self.receiver.tell() << 32;
        Some(RingWrite::Pointer { offset: self.sender.shape().pointer(), word })
    }

    /// Whether there is something to write.
    #[inline]
    pub fn wants_write(&self) -> bool {
        self.sender.has_unwritten() || self.pointer_is_due || self.receiver.credit_is_due(self.expected)
    }
}
