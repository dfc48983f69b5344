//! Packet sequence numbers.

use std::fmt;
use std::ops::Add;

/// A packet sequence number: 24 bits that wrap.
///
/// It has no order, because numbers on a circle have none: ask for the signed [`distance`](Psn::distance).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number, less than 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// How far `self` is ahead of `from`, from -2^23 to 2^23 - 1; negative if it is behind.
    #[inline]
    pub const fn distance(self, from: Psn) -> i32 {
        // The difference's sign bit is bit 23; the shifts carry it to the top and back.
        (self.0.wrapping_sub(from.0) << 8) as i32 >> 8
    }
}

impl Add<u32> for Psn {
    type Output = Psn;

    #[inline]
    fn add(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(Psn::new(0xff_ffff) + 1, Psn::new(0));
        assert_eq!(Psn::new(5) + u32::MAX, Psn::new(4));
        assert_eq!(Psn::new(0x1_000_002).get(), 2);
    }

    #[test]
    fn distance_is_signed_and_crosses_zero() {
        for (a, b, distance) in [
            (5, 3, 2),
            (3, 5, -2),
            (1, 0xff_ffff, 2),
            (0xff_ffff, 1, -2),
            (0x7f_ffff, 0, 0x7f_ffff),
            (0x80_0000, 0, -0x80_0000),
        ] {
            assert_eq!(Psn::new(a).distance(Psn::new(b)), distance, "{a:#x} from {b:#x}");
        }
    }
}
