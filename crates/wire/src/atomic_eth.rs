//! Atomic extended transport header.

use crate::ParseError;
use crate::field::{be32, be64, front, front_mut, put};

/// Atomic extended transport header (section 9.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8.
    pub va: u64,
    /// Key of the responder's region.
    pub rkey: u32,
    /// CMP_SWAP: the value to store if the comparison holds. FETCH_ADD: the value to add.
    pub swap_or_add: u64,
    /// CMP_SWAP: the value to compare with. FETCH_ADD: unused.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("AtomicETH", bytes)?;
        Ok(Self { va: be64(b, 0), rkey: be32(b, 8), swap_or_add: be64(b, 12), compare: be64(b, 20) })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        put(out, 0, self.va.to_be_bytes());
        put(out, 8, self.rkey.to_be_bytes());
        put(out, 12, self.swap_or_add.to_be_bytes());
        put(out, 20, self.compare.to_be_bytes());
    }
}
