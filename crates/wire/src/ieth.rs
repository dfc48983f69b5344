//! Invalidate extended transport header.

use crate::ParseError;
use crate::field::{be32, front, front_mut, put};

/// Invalidate extended transport header (section 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ieth {
    /// Key that the receiver is to invalidate.
    pub rkey: u32,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        Ok(Self { rkey: be32(front::<{ Self::LEN }>("IETH", bytes)?, 0) })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        put(front_mut::<{ Self::LEN }>(out), 0, self.rkey.to_be_bytes());
    }
}
