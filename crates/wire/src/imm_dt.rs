//! Immediate data.

use crate::ParseError;
use crate::field::{be32, front, front_mut, put};

/// Immediate data (section 9.3): four bytes for the receiver's completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        Ok(Self(be32(front::<{ Self::LEN }>("ImmDt", bytes)?, 0)))
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        put(front_mut::<{ Self::LEN }>(out), 0, self.0.to_be_bytes());
    }
}
