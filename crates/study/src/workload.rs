//! Which record the next operation asks for: uniform, or the scrambled zipfian of YCSB ([`crate::ycsb`]).

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

use crate::ycsb::{Generator, Mix, Popularity};

/// YCSB's skew.
pub const THETA: f64 = 0.99;

/// How popular the records are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// YCSB's scrambled zipfian with constant 0.99.
    #[default]
    Zipfian,
    /// Every record alike.
    Uniform,
}

impl Distribution {
    /// As `--distribution` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zipfian => "zipfian",
            Self::Uniform => "uniform",
        }
    }
}

/// Draws record numbers. The same seed draws the same numbers.
pub struct Picker(Generator);

impl Picker {
    /// Numbers of 0 to `records` - 1; `records` of 0 counts as 1.
    pub fn new(distribution: Distribution, records: u64, seed: u64) -> Self {
        let popularity = match distribution {
            Distribution::Zipfian => Popularity::Zipfian(THETA),
            Distribution::Uniform => Popularity::Uniform,
        };
        Self(Generator::with(Mix::writes(0), popularity, records, 0, seed))
    }

    /// The next record number.
    pub fn pick(&mut self) -> u64 {
        self.0.record()
    }
}

/// FNV-1a with 64 bits over the number's bytes, the lowest first.
pub fn fnv1a_64(number: u64) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    number.to_le_bytes().into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The key of the `number`th generated record, as YCSB names it when inserts are hashed.
pub fn key(number: u64) -> String {
    // YCSB takes the absolute value of the signed hash.
    format!("user{}", (fnv1a_64(number) as i64).unsigned_abs())
}

/// A number uniform in 0..n. The bias is below n / 2^64.
pub(crate) fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution, records: u64, draws: usize) -> Vec<usize> {
        let mut picker = Picker::new(distribution, records, 7);
        let mut counts = vec![0; records as usize];
        (0..draws).for_each(|_| counts[picker.pick() as usize] += 1);
        counts
    }

    #[test]
    fn scrambling_spreads_the_popular_records() {
        let counts = counts(Distribution::Zipfian, 1000, 500_000);
        // The two most popular ranks lie where their hashes put them.
        let hottest = (0..counts.len()).max_by_key(|&i| counts[i]).unwrap();
        assert_eq!(hottest as u64, (fnv1a_64(0) as i64).unsigned_abs() % 1000);
        let share = counts[hottest] as f64 / 500_000.0;
        let floor = 1.0 / crate::ycsb::SCRAMBLED_ZETA;
        assert!((floor..floor + 0.004).contains(&share), "the hottest record gets {share}");
        assert!(counts.iter().filter(|&&n| n > 0).count() > 990, "the tail reaches everywhere");
    }

    #[test]
    fn uniform_is_uniform() {
        let counts = counts(Distribution::Uniform, 100, 1_000_000);
        assert!(counts.iter().all(|n| (9_500..10_500).contains(n)), "{counts:?}");
    }

    #[test]
    fn one_record_is_picked_always_and_the_seed_decides() {
        assert_eq!(counts(Distribution::Zipfian, 1, 100), [100]);
        let draw = |seed| {
            let mut picker = Picker::new(Distribution::Zipfian, 1 << 20, seed);
            (0..50).map(|_| picker.pick()).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn keys_are_those_of_ycsb() {
        // The published offset basis and prime: the hash of eight zero bytes.
        assert_eq!(fnv1a_64(0), 0xa8c7_f832_281a_39c5);
        assert_eq!(key(0), "user6284781860667377211");
    }
}
