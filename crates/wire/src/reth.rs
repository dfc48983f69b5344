//! RDMA extended transport header.

use crate::ParseError;
use crate::field::{be32, be64, front, front_mut, put};

/// RDMA extended transport header (section 9.3.3): what a READ or WRITE is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Reth {
    /// Virtual address at the responder; in RPC packets the kernel's op-code.
    pub va: u64,
    /// Key of the responder's region; 0 in RPC packets.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("RETH", bytes)?;
        Ok(Self { va: be64(b, 0), rkey: be32(b, 8), len: be32(b, 12) })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        put(out, 0, self.va.to_be_bytes());
        put(out, 8, self.rkey.to_be_bytes());
        put(out, 12, self.len.to_be_bytes());
    }
}
