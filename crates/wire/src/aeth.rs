//! ACK extended transport header.

use crate::ParseError;
use crate::field::{be32, front, front_mut, put};

/// ACK extended transport header (section 9.3.5): how far the responder came and what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// Acknowledgement or its refusal.
    pub syndrome: Syndrome,
    /// Message sequence number: messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// What an acknowledgement says (section 9.7.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Done up to this packet.
    Ack {
        /// Encoded count of receive work requests, 5 bits; 31 is "no credit in use".
        credits: u8,
    },
    /// Receiver not ready: try again after the time of [`rnr_timer_ns`].
    RnrNak {
        /// Encoded time, 5 bits.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A byte with bit 7 set, or 0x40 to 0x5f.
    Reserved(u8),
}

/// Why a request was refused (section 9.7.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A PSN is missing.
    SequenceError,
    /// The request is not one that this queue pair takes.
    InvalidRequest,
    /// Key, address, length or right is wrong.
    RemoteAccess,
    /// The responder failed by its own fault.
    RemoteOperational,
    /// Invalid reliable datagram.
    InvalidRd,
    /// Reserved, 5 to 31.
    Other(u8),
}

impl Syndrome {
    /// The syndrome that a byte stands for.
    #[inline]
    pub const fn from_u8(byte: u8) -> Self {
        let low = byte & 0x1f;
        match byte >> 5 {
            0 => Self::Ack { credits: low },
            1 => Self::RnrNak { timer: low },
            3 => Self::Nak(match low {
                0 => NakCode::SequenceError,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidRd,
                other => NakCode::Other(other),
            }),
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire.
    #[inline]
    pub const fn as_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => {
                0x60 | match code {
                    NakCode::SequenceError => 0,
                    NakCode::InvalidRequest => 1,
                    NakCode::RemoteAccess => 2,
                    NakCode::RemoteOperational => 3,
                    NakCode::InvalidRd => 4,
                    NakCode::Other(other) => other & 0x1f,
                }
            }
            Self::Reserved(byte) => byte,
        }
    }
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let word = be32(front::<{ Self::LEN }>("AETH", bytes)?, 0);
        Ok(Self { syndrome: Syndrome::from_u8((word >> 24) as u8), msn: word & 0xff_ffff })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let word = u32::from(self.syndrome.as_u8()) << 24 | self.msn & 0xff_ffff;
        put(front_mut::<{ Self::LEN }>(out), 0, word.to_be_bytes());
    }
}

/// Time to wait after an RNR NAK in nanoseconds (section 9.7.5.2.8). Takes the low five bits of `code`.
#[inline]
pub const fn rnr_timer_ns(code: u8) -> u64 {
    /// Hundredths of a millisecond.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    TABLE[(code & 31) as usize] as u64 * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_survives() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_u8(byte).as_u8(), byte);
        }
        assert_eq!(Syndrome::from_u8(0x1f), Syndrome::Ack { credits: 31 });
        assert_eq!(Syndrome::from_u8(0x2c), Syndrome::RnrNak { timer: 12 });
        assert_eq!(Syndrome::from_u8(0x60), Syndrome::Nak(NakCode::SequenceError));
        assert_eq!(Syndrome::from_u8(0x62), Syndrome::Nak(NakCode::RemoteAccess));
    }

    #[test]
    fn rnr_timers() {
        for (code, ns) in [(0, 655_360_000), (1, 10_000), (12, 640_000), (14, 1_280_000), (31, 491_520_000)] {
            assert_eq!(rnr_timer_ns(code), ns, "code {code}");
        }
    }
}
