//! Calls and replies as they go into rings. All numbers are little-endian.

use remora_kernel::Status;

/// What stands in front of a call's parameters in a request ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCall {
    /// Which kernel.
    pub op: u64,
    /// Comes back with the reply.
    pub tag: u32,
    /// Bytes of reply that the caller has room for.
    pub room: u32,
}

impl RingCall {
    /// Bytes in front of the parameters.
    pub const LEN: usize = 16;

    /// The bytes.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.op.to_le_bytes());
        out[8..12].copy_from_slice(&self.tag.to_le_bytes());
        out[12..].copy_from_slice(&self.room.to_le_bytes());
        out
    }

    /// What bytes say.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, tag @ .., r0, r1, r2, r3] = *bytes;
        Self {
            op: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            tag: u32::from_le_bytes(tag),
            room: u32::from_le_bytes([r0, r1, r2, r3]),
        }
    }
}

/// What stands in front of a reply in a response ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingReply {
    /// The call's.
    pub tag: u32,
    /// How it ended.
    pub status: Status,
}

impl RingReply {
    /// Bytes in front of the reply.
    pub const LEN: usize = 8;

    /// The bytes.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        (u64::from(self.tag) | u64::from(self.status.code()) << 32).to_le_bytes()
    }

    /// What bytes say.
    #[inline]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let word = u64::from_le_bytes(*bytes);
        Self { tag: word as u32, status: Status::from_code((word >> 32) as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_replies_are_read_as_written() {
        let call = RingCall { op: 0x1122_3344_5566_7788, tag: 0x99aa_bbcc, room: 0xddee_ff00 };
        assert_eq!(RingCall::decode(&call.encode()), call);
        for code in [0, 7, 11, 255] {
            let reply = RingReply { tag: u32::MAX - 1, status: Status::from_code(code) };
            assert_eq!(RingReply::decode(&reply.encode()), reply);
        }
    }
}
