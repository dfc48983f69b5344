//! Several engines at one address: whom a packet is for is told by the first byte of its number.

use rand_core::RngCore;

use crate::types::Qpn;

/// Which engine this is of several at one address, that each have queue pairs, and connections, of their own.
///
/// A packet names its queue pair, and a message of connection management a connection; the first byte of that number,
/// modulo how many engines there are, is the engine's index. Whatever brings packets to one address (a network card that
/// hashes, a kernel that has a program for it) can hand each to its engine by that byte, and knows no state. A call, which
/// names no connection of the one that is called, goes by its caller's number: see [`CmConfig::ids`](crate::cm::CmConfig).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    index: u8,
    of: u16,
}

impl Lane {
    /// The only one.
    pub const ONLY: Self = Self { index: 0, of: 1 };

    /// Lanes that there may be at one address.
    pub const MOST: u16 = 256;

    /// Number `index` of `of`. `None` if there is no such, or there are more than [`MOST`](Self::MOST).
    pub const fn new(index: u8, of: u16) -> Option<Self> {
        if (index as u16) < of && of <= Self::MOST { Some(Self { index, of }) } else { None }
    }

    /// Which one, from 0 on.
    pub const fn index(self) -> u8 {
        self.index
    }

    /// How many there are.
    pub const fn of(self) -> u16 {
        self.of
    }

    /// The index of the engine, of `of`, that has this queue pair.
    pub const fn whose(qpn: Qpn, of: u16) -> u8 {
        ((qpn.0 >> 16) as u8 as u16 % of) as u8
    }

    /// 32 random bits, of which the first eight are its.
    pub(crate) fn draw(self, rng: &mut impl RngCore) -> u32 {
        loop {
            let drawn = rng.next_u32();
            let first = (drawn >> 24) as u16;
            let first = first - first % self.of + u16::from(self.index);
            if let Ok(first) = u8::try_from(first) {
                return u32::from(first) << 24 | drawn & 0xff_ffff;
            }
        }
    }
}

impl Default for Lane {
    fn default() -> Self {
        Self::ONLY
    }
}

#[cfg(test)]
mod tests {
    use super::{Lane, Qpn};
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use rand_chacha::ChaCha8Rng;
    use rand_core::{RngCore, SeedableRng};

    proptest! {
        #[test]
        fn each_number_is_one_lanes(of in 1..=Lane::MOST, index in any::<u8>(), seed in any::<u64>()) {
            let lane = Lane::new(index, of);
            prop_assert_eq!(lane.is_some(), u16::from(index) < of);
            if let Some(lane) = lane {
                let drawn = lane.draw(&mut ChaCha8Rng::seed_from_u64(seed));
                prop_assert_eq!(Lane::whose(Qpn(drawn >> 8), of), index);
            }
        }
    }

    #[test]
    fn lanes_that_cannot_be_are_none() {
        assert_eq!(Lane::new(0, 0), None);
        assert_eq!(Lane::new(0, 257), None);
        let (mut a, mut b) = (ChaCha8Rng::seed_from_u64(3), ChaCha8Rng::seed_from_u64(3));
        assert_eq!(Lane::ONLY.draw(&mut a), b.next_u32(), "who is alone has what is drawn");
    }
}
