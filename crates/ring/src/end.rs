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
    /// This word to this offset: filled up to, or to be filled, in its lower half; read up to, in its upper.
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
    /// The peer is to be asked for room up to here, if it was not; and how far it was asked for last.
    ask: Option<u64>,
    asked: u64,
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
        Self {
            sender,
            receiver,
            notify,
            pointer_is_due: false,
            ask: None,
            asked: 0,
            expected: usize::MAX,
            pointer: 0,
            looked_at: 0,
        }
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
        let pushed = self.with_room(parts, |sender, credit| sender.push(credit, parts))?;
        if pushed.is_ok() {
            self.receiver.tell();
        }
        Ok(pushed)
    }

    /// As [`push`](Self::push), piece by piece: lays down up to `most` bytes more of a message, of which `laid` are laid down
    /// and counted there. True when the message is in. No other may be pushed meanwhile.
    pub fn push_part(
        &mut self,
        parts: &[&[u8]],
        laid: &mut usize,
        most: usize,
    ) -> Result<Result<bool, PushError>, RingError> {
        let begins = *laid == 0;
        let pushed = self.with_room(parts, |sender, credit| sender.lay(credit, parts, laid, most))?;
        // The word in front has the credit, and is laid down first.
        if begins && pushed.is_ok() {
            self.receiver.tell();
        }
        Ok(pushed)
    }

    #[inline]
    fn with_room<T>(
        &mut self,
        parts: &[&[u8]],
        mut push: impl FnMut(&mut Sender, u32) -> Result<T, PushError>,
    ) -> Result<Result<T, PushError>, RingError> {
        let credit = self.receiver.head() as u32;
        let mut pushed = push(&mut self.sender, credit);
        if let Err(PushError::Full) = pushed {
            self.look_for_room()?;
            pushed = push(&mut self.sender, credit);
            if pushed.is_err() {
                self.ask_for(parts);
            }
        } else if self.sender.tail() - self.looked_at >= LOOK_EVERY {
            self.look_at_pointer();
        }
        Ok(pushed)
    }

    /// Looks whether the peer has told of room.
    fn look_for_room(&mut self) -> Result<(), RingError> {
        self.look_at_pointer();
        match self.receiver.newest_credit() {
            Some(credit) => self.sender.take_credit(credit),
            None => Ok(()),
        }
    }

    /// A message has no room. The peer tells of room when that is a quarter of the ring; who needs what it may not tell of
    /// asks, in the pointer word.
    fn ask_for(&mut self, parts: &[&[u8]]) {
        let (shape, len) = (self.shape(), parts.iter().map(|part| part.len()).sum());
        let entries = u64::from(shape.entries());
        let needed = shape.entries_of_message(len);
        let wanted = self.sender.tail() + needed;
        if self.notify == Notify::Ring && (entries - entries / 4..=entries).contains(&needed) && wanted > self.asked {
            self.ask = Some(wanted);
        }
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

    /// The length of the next message, if it is whole, without taking it, and as much of it in `front` as fits there. It is
    /// then to be taken by [`poll_part`](Self::poll_part), and is as long as it is now whatever the peer writes.
    pub fn peek(&mut self, front: &mut [u8]) -> Result<Option<usize>, RingError> {
        self.receiver.peek(front)
    }

    /// Appends up to `most` bytes more of the message that was [looked at](Self::peek) to `out`, but for its first `skip`.
    /// True when that was all of it.
    pub fn poll_part(&mut self, skip: usize, out: &mut Vec<u8>, most: usize) -> Result<bool, RingError> {
        match self.receiver.take_part(skip, out, most) {
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
        if !self.wants_pointer() {
            return None;
        }
        self.pointer_is_due = false;
        self.asked = self.ask.take().unwrap_or(self.asked);
        // Who asks tells of nothing by the pointer: how far the ring is filled is for who does.
        let word = self.sender.tail().max(self.asked) & 0xffff_ffff | self.receiver.tell() << 32;
        Some(RingWrite::Pointer { offset: self.sender.shape().pointer(), word })
    }

    /// Whether there is something to write.
    #[inline]
    pub fn wants_write(&self) -> bool {
        self.sender.has_unwritten() || self.wants_pointer()
    }

    #[inline]
    fn wants_pointer(&self) -> bool {
        self.pointer_is_due || self.ask.is_some() || self.receiver.credit_is_due(self.expected)
    }
}
