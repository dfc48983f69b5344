//! Datagram extended transport header.

use crate::ParseError;
use crate::field::{be32, front, front_mut, low24, put};

/// Datagram extended transport header (section 9.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Deth {
    /// Key that the receiving queue pair must have.
    pub qkey: u32,
    /// Reserved.
    pub reserved: u8,
    /// Sending queue pair, 24 bits.
    pub src_qp: u32,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("DETH", bytes)?;
        Ok(Self { qkey: be32(b, 0), reserved: b[4], src_qp: low24(b, 4) })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        put(out, 0, self.qkey.to_be_bytes());
        put(out, 4, self.src_qp.to_be_bytes());
        out[4] = self.reserved;
    }
}
