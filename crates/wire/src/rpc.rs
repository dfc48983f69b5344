//! Remora's RPC header, its reply's status byte, and the immediate data that ends a call.
//!
//! StRoM (section 5.1) leaves the parameters of an RPC to the kernel. Remora puts this header in front of them, so that
//! the responder knows where the reply goes before the kernel runs, and the kernel need not. The RETH of the packet has
//! the kernel's op-code for its address, 0 for its key, and the bytes of the message, this header included, for its
//! length.

use crate::ParseError;
use crate::field::{be32, be64, front, front_mut, put};

/// Flag: an RPC WRITE payload stream with the same op-code follows on this queue pair.
pub const FLAG_STREAM: u32 = 1;
/// Flag: the caller leaves it to the node whether its NIC or its host runs the kernel. For a node that has
/// said that it chooses; an older one would refuse the call.
pub const FLAG_ANYWHERE: u32 = 2;

/// The front of the RPC parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RpcHeader {
    /// Where the reply goes, in the requester's memory.
    pub reply_va: u64,
    /// Key of the requester's region.
    pub reply_rkey: u32,
    /// Bytes that the reply may have.
    pub reply_capacity: u32,
    /// Names the call in the reply's immediate data, 24 bits.
    pub tag: u32,
    /// [`FLAG_STREAM`], [`FLAG_ANYWHERE`] or 0.
    pub flags: u32,
}

impl RpcHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer, if the tag has more than 24 bits, or if a
    /// flag is set that this version does not know: it may change what the rest means.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("RPC header", bytes)?;
        let header = Self {
            reply_va: be64(b, 0),
            reply_rkey: be32(b, 8),
            reply_capacity: be32(b, 12),
            tag: be32(b, 16),
            flags: be32(b, 20),
        };
        let wrong = |field, value: u32, expected| {
            Err(ParseError::Field { header: "RPC header", field, value: value.into(), expected })
        };
        if header.tag > 0xff_ffff {
            return wrong("tag", header.tag, "a number of 24 bits");
        }
        if header.flags & !(FLAG_STREAM | FLAG_ANYWHERE) != 0 {
            return wrong("flags", header.flags, "a sum of 1 (stream) and 2 (anywhere)");
        }
        Ok(header)
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter. Of the tag only 24 bits are taken.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        put(out, 0, self.reply_va.to_be_bytes());
        put(out, 8, self.reply_rkey.to_be_bytes());
        put(out, 12, self.reply_capacity.to_be_bytes());
        put(out, 16, (self.tag & 0xff_ffff).to_be_bytes());
        put(out, 20, self.flags.to_be_bytes());
    }
}

/// Statuses that an engine gives by itself or acts on; all others are a kernel's, and named by `remora_kernel::Status`.
pub mod status {
    /// The reply is whole.
    pub const OK: u8 = 0;
    /// No kernel has the op-code, and the host has no fallback.
    pub const UNKNOWN_OP: u8 = 2;
    /// The kernel named memory that its caller may not reach.
    pub const ACCESS_DENIED: u8 = 4;
    /// The reply is longer than the requester's room for it.
    pub const REPLY_TOO_LONG: u8 = 7;
}

/// Immediate data of the WRITE that ends a call: the low 24 bits of the tag, then the status.
#[inline]
pub const fn reply_imm(tag: u32, status: u8) -> u32 {
    tag << 8 | status as u32
}

/// Tag and status of immediate data that [`reply_imm`] made.
#[inline]
pub const fn parse_reply_imm(imm: u32) -> (u32, u8) {
    (imm >> 8, imm as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_survive() {
        for byte in 0..=255 {
            assert_eq!(parse_reply_imm(reply_imm(0xab_cdef, byte)), (0xab_cdef, byte));
        }
    }

    #[test]
    fn unknown_bits_are_refused() {
        let good = RpcHeader { reply_va: 7, reply_rkey: 8, reply_capacity: 9, tag: 0xff_ffff, flags: 3 };
        let mut bytes = [0; RpcHeader::LEN];
        good.emit(&mut bytes);
        assert_eq!(RpcHeader::parse(&bytes), Ok(good));
        for (at, bit) in [(16, 1), (23, 4), (20, 0x80)] {
            let mut bad = bytes;
            bad[at] |= bit;
            let error = RpcHeader::parse(&bad).unwrap_err();
            assert!(error.to_string().starts_with("RPC header: "), "{error}");
        }
    }
}
