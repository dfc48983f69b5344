//! Flush extended transport header.

use crate::ParseError;
use crate::field::{be32, front, front_mut, put};

/// Flush extended transport header (annex A19); a [`Reth`](crate::Reth) follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Feth {
    /// PLT, 4 bits: [`GLOBAL_VISIBILITY`](Self::GLOBAL_VISIBILITY), [`PERSISTENCE`](Self::PERSISTENCE) or both.
    pub placement: u8,
    /// SEL, 2 bits: [`RANGE`](Self::RANGE) or [`REGION`](Self::REGION).
    pub selectivity: u8,
    /// Reserved, 26 bits.
    pub reserved: u32,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// Placement: the data can be seen by everyone at the responder.
    pub const GLOBAL_VISIBILITY: u8 = 1;
    /// Placement: the data outlives a loss of power.
    pub const PERSISTENCE: u8 = 2;
    /// Selectivity: what the RETH names.
    pub const RANGE: u8 = 0;
    /// Selectivity: the whole region of the RETH's key.
    pub const REGION: u8 = 1;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let word = be32(front::<{ Self::LEN }>("FETH", bytes)?, 0);
        Ok(Self { placement: word as u8 & 0xf, selectivity: (word >> 4) as u8 & 3, reserved: word >> 6 })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter. Of each field only its bits are taken.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let low = self.placement & 0xf | (self.selectivity & 3) << 4;
        put(front_mut::<{ Self::LEN }>(out), 0, (self.reserved << 6 | u32::from(low)).to_be_bytes());
    }
}
