//! Building a packet in place: headers one after the other, payload, pad, room for the ICRC.

use remora_memory::Reference;
use remora_wire::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ICRC_LEN, Ieth, ImmDt, Reth};

/// Bytes that fill a payload up to a multiple of four.
pub(crate) fn pad_of(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

use crate::queue::{Placed, Room, STRAIGHT, Target};

/// Writes one packet. `out` has room for the largest: the caller checks that once, for a whole batch.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    /// The room in shared memory that the packet goes to, and how much of it is there already.
    room: Option<&'a Room>,
    placed: Placed,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8], bth: &Bth) -> Self {
        Self::within((out, None), bth)
    }

    /// As [`new`](Self::new), of a packet whose payload may go straight to where it is sent from.
    pub fn within((out, room): (&'a mut [u8], Option<&'a Room>), bth: &Bth) -> Self {
        bth.emit(out);
        Self { out, at: Bth::LEN, room, placed: Placed::No }
    }

    fn next(&mut self, len: usize) -> &mut [u8] {
        let at = self.at;
        self.at += len;
        &mut self.out[at..at + len]
    }

    pub fn reth(&mut self, header: Reth) {
        header.emit(self.next(Reth::LEN));
    }

    pub fn aeth(&mut self, header: Aeth) {
        header.emit(self.next(Aeth::LEN));
    }

    pub fn atomic(&mut self, header: AtomicEth) {
        header.emit(self.next(AtomicEth::LEN));
    }

    pub fn atomic_ack(&mut self, header: AtomicAckEth) {
        header.emit(self.next(AtomicAckEth::LEN));
    }

    pub fn imm(&mut self, header: ImmDt) {
        header.emit(self.next(ImmDt::LEN));
    }

    pub fn ieth(&mut self, header: Ieth) {
        header.emit(self.next(Ieth::LEN));
    }

    pub fn deth(&mut self, header: Deth) {
        header.emit(self.next(Deth::LEN));
    }

    /// Where the payload goes.
    pub fn payload(&mut self, len: usize) -> &mut [u8] {
        &mut self.out[self.at..self.at + len]
    }

    /// Where the payload goes, all headers being there.
    pub fn target(&mut self, len: usize) -> Target<'_> {
        match self.room {
            Some(room) if len >= STRAIGHT => {
                let start = room.start + Room::GAP;
                // With what follows them up to a word, which the payload overwrites.
                let there = room.buffer.write(start, &self.out[..self.at.next_multiple_of(8)]);
                debug_assert!(there.is_ok(), "there is room for a packet");
                self.placed = Placed::Whole;
                Target::Shared(&room.buffer, start + self.at, len)
            }
            _ => Target::Private(self.payload(len)),
        }
    }

    /// Refers to the payload, all headers being there.
    pub fn refer(&mut self, reference: Reference) {
        let Some(room) = self.room else { return };
        let start = room.start + Room::GAP;
        let there = room.buffer.write(start, &reference.to_bytes()).is_ok()
            && room.buffer.write(start + Reference::LEN, &self.out[..self.at.next_multiple_of(8)]).is_ok();
        debug_assert!(there, "there is room for a packet");
        self.placed = Placed::Referred(Reference::LEN + self.at);
    }

    /// How much of the packet stands where it is sent from. Pad and ICRC are whatever stood there.
    pub fn placed(&self) -> Placed {
        self.placed
    }

    /// Pads `len` bytes of payload, leaves the ICRC zero; the packet's length.
    pub fn finish(self, len: usize) -> usize {
        let end = self.at + len;
        let total = end + pad_of(len) as usize + ICRC_LEN;
        if self.placed == Placed::No {
            self.out[end..total].fill(0);
        }
        total
    }
}
