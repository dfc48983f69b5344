//! Atomic ACK extended transport header.

use crate::ParseError;
use crate::field::{be64, front, front_mut, put};

/// Atomic ACK extended transport header (section 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        Ok(Self { original: be64(front::<{ Self::LEN }>("AtomicAckETH", bytes)?, 0) })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        put(front_mut::<{ Self::LEN }>(out), 0, self.original.to_be_bytes());
    }
}
