//! Building a packet in place: headers one after the other, payload, pad, room for the ICRC.

use remora_wire::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ICRC_LEN, Ieth, ImmDt, Reth};

/// Bytes that fill a payload up to a multiple of four.
pub(crate) fn pad_of(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

/// Writes one packet. `out` has room for the largest: the caller checks that once, for a whole batch.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8], bth: &Bth) -> Self {
        bth.emit(out);
        Self { out, at: Bth::LEN }
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

    /// Pads `len` bytes of payload, leaves the ICRC zero; the packet's length.
    pub fn finish(self, len: usize) -> usize {
        let end = self.at + len;
        let total = end + pad_of(len) as usize + ICRC_LEN;
        self.out[end..total].fill(0);
        total
    }
}
