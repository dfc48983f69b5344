//! Seeded random numbers, one independent stream for each purpose.
//!
//! A storm draws network delays, disk faults, client operations and so on from streams of their own, so that taking one
//! fault out of a schedule does not change what the others draw.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// What a stream is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Sizes and rates of the whole storm.
    Shape,
    /// Of what came later: what a seed had before stays as it was.
    LaterShape,
    /// Latencies of the world, and where its clocks start.
    World,
    /// The schedule of faults.
    Nemesis,
    /// Faults of kinds that came later: those of a seed before stay as they were.
    LaterNemesis,
    /// When disks are full.
    FullDisks,
    /// Delays, drops and duplicates.
    Network,
    /// Disk latencies of one node.
    Disk(u32),
    /// Operations of one client.
    Client(u32),
    /// What one engine may use, such as election timeouts.
    Engine(u32),
    /// Details of one fault, by its own seed.
    Fault,
}

impl Purpose {
    fn number(self) -> u64 {
        let (kind, index) = match self {
            Self::Shape => (0, 0),
            Self::Nemesis => (1, 0),
            Self::LaterNemesis => (8, 0),
            Self::LaterShape => (9, 0),
            Self::World => (7, 0),
            Self::FullDisks => (10, 0),
            Self::Network => (2, 0),
            Self::Disk(node) => (3, node),
            Self::Client(client) => (4, client),
            Self::Engine(node) => (5, node),
            Self::Fault => (6, 0),
        };
        kind << 32 | u64::from(index)
    }
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// The stream of `seed` for `purpose`.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(purpose.number());
        Self(rng)
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 if `bound` is 0. The bias of a 64-bit product is far below what a storm could notice.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True with a probability of `ppm` in a million. Draws nothing when the answer is certain.
    pub fn chance(&mut self, ppm: u32) -> bool {
        match ppm {
            0 => false,
            1_000_000.. => true,
            _ => self.0.next_u32() < (u64::from(ppm) * (1 << 32) / 1_000_000) as u32,
        }
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// An index by weight. The weights must not all be 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.below(weights.iter().map(|&weight| u64::from(weight)).sum());
        for (index, &weight) in weights.iter().enumerate() {
            match left.checked_sub(u64::from(weight)) {
                Some(rest) => left = rest,
                None => return index,
            }
        }
        weights.len() - 1
    }
}

/// Mixes a number into one that looks random (the finalizer of SplitMix64, Steele et al., OOPSLA 2014).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_repeatable_and_differ() {
        let draw = |seed, purpose| Rng::new(seed, purpose).draw();
        assert_eq!(draw(1, Purpose::Network), draw(1, Purpose::Network));
        assert_ne!(draw(1, Purpose::Network), draw(1, Purpose::Nemesis));
        assert_ne!(draw(1, Purpose::Client(0)), draw(1, Purpose::Client(1)));
        assert_ne!(draw(1, Purpose::Network), draw(2, Purpose::Network));
    }

    #[test]
    fn ranges_and_chances() {
        let mut rng = Rng::new(7, Purpose::Shape);
        assert!((0..1000).all(|_| (3..=5).contains(&rng.between(3, 5))));
        let hits = (0..100_000).filter(|_| rng.chance(250_000)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        assert!(!rng.chance(0) && rng.chance(1_000_000));
        let mut counts = [0; 3];
        (0..10_000).for_each(|_| counts[rng.weighted(&[1, 0, 3])] += 1);
        assert!(counts[1] == 0 && (2_200..2_800).contains(&counts[0]), "{counts:?}");
    }
}
