//! A side whose peer shares memory with it.

use remora_memory::Buffer;

use crate::end::{Notify, RingEnd, RingWrite};
use crate::receiver::Receiver;
use crate::sender::{PushError, Sender};
use crate::{RingError, RingShape};

/// One side of a pair of rings in memory that both sides share: what is put in is there, by plain stores.
pub struct SharedEnd {
    end: RingEnd,
    theirs: Buffer,
}

impl SharedEnd {
    /// The side that fills `theirs` and reads `ours`, rings of this shape with their words behind them
    /// ([`RingShape::memory`]).
    pub fn new(shape: RingShape, theirs: &Buffer, ours: &Buffer) -> Self {
        let (sender, receiver) = (Sender::new(shape, theirs.clone()), Receiver::new(shape, ours.clone()));
        Self { end: RingEnd::new(sender, receiver, Notify::Ring), theirs: theirs.clone() }
    }

    /// The shape of the rings.
    pub fn shape(&self) -> RingShape {
        self.end.shape()
    }

    /// See [`RingEnd::push`].
    pub fn push(&mut self, parts: &[&[u8]]) -> Result<Result<(), PushError>, RingError> {
        self.end.push(parts)
    }

    /// See [`RingEnd::poll`].
    pub fn poll(&mut self, out: &mut Vec<u8>) -> Result<bool, RingError> {
        self.end.poll(out)
    }

    /// See [`RingEnd::poll_split`].
    pub fn poll_split(&mut self, front: &mut &mut [u8], out: &mut Vec<u8>) -> Result<bool, RingError> {
        self.end.poll_split(front, out)
    }

    /// Tells the other side how far this one has read, if that is due.
    pub fn tell(&mut self) {
        while let Some(write) = self.end.poll_write() {
            // Frames are where they belong.
            if let RingWrite::Pointer { offset, word } = write {
                let told = self.theirs.store_u64(offset, word);
                debug_assert!(told.is_ok(), "the word lies behind the ring");
            }
        }
    }
}
