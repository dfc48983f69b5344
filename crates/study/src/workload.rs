//! Which record the next operation asks for: uniform, or the scrambled zipfian of YCSB.
//!
//! Sources: Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994 (the zipfian); Cooper et
//! al., "Benchmarking cloud serving systems with YCSB", SoCC 2010, and its core workload package (scrambling, keys).

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// YCSB's skew.
pub const THETA: f64 = 0.99;

/// Ranks that YCSB scrambles, however many records there are: popular ones then stay popular when the store grows.
const RANKS: u64 = 10_000_000_000;

/// The generalised harmonic number of [`RANKS`] at [`THETA`], which takes minutes to sum up.
const ZETA_RANKS: f64 = 26.469_028_201_783_02;

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
pub struct Picker {
    rng: ChaCha8Rng,
    records: u64,
    zipfian: Option<Zipfian>,
}

impl Picker {
    /// Numbers of 0 to `records` - 1; `records` of 0 counts as 1.
    pub fn new(distribution: Distribution, records: u64, seed: u64) -> Self {
        let zipfian = (distribution == Distribution::Zipfian).then(|| Zipfian::with_zeta(RANKS, THETA, ZETA_RANKS));
        Self { rng: ChaCha8Rng::seed_from_u64(seed), records: records.max(1), zipfian }
    }

    /// The next record number.
    pub fn pick(&mut self) -> u64 {
        match &self.zipfian {
            Some(zipfian) => fnv1a_64(zipfian.rank(unit(&mut self.rng))) % self.records,
            None => below(&mut self.rng, self.records),
        }
    }
}

/// Zipfian ranks by Gray et al.'s closed form: rank 0 is the most popular.
pub struct Zipfian {
    ranks: f64,
    zeta: f64,
    second: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Over `ranks` ranks with skew `theta`, between 0 and 1. Takes time in proportion to `ranks`.
    pub fn new(ranks: u64, theta: f64) -> Self {
        Self::with_zeta(ranks, theta, zeta(ranks, theta))
    }

    fn with_zeta(ranks: u64, theta: f64, zeta_ranks: f64) -> Self {
        let zeta_2 = zeta(2.min(ranks), theta);
        let ranks = ranks as f64;
        Self {
            ranks,
            zeta: zeta_ranks,
            second: zeta_2,
            alpha: 1.0 / (1.0 - theta),
            eta: (1.0 - (2.0 / ranks).powf(1.0 - theta)) / (1.0 - zeta_2 / zeta_ranks),
        }
    }

    /// The rank that the number `u`, uniform in 0..1, stands for.
    pub fn rank(&self, u: f64) -> u64 {
        let area = u * self.zeta;
        if area < 1.0 {
            return 0;
        }
        if area < self.second {
            return 1;
        }
        let rank = self.ranks * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        rank.min(self.ranks - 1.0) as u64
    }
}

/// The generalised harmonic number: the sum of 1 / i^theta for i from 1 to n.
fn zeta(n: u64, theta: f64) -> f64 {
    (1..=n).map(|i| (i as f64).powf(-theta)).sum()
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

/// A number uniform in 0..1, with 53 bits.
fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
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
    fn zipfian_ranks_come_as_often_as_zipf_says() {
        let (ranks, draws) = (1000, 2_000_000);
        let zipfian = Zipfian::new(ranks, THETA);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut counts = vec![0u32; ranks as usize];
        (0..draws).for_each(|_| counts[zipfian.rank(unit(&mut rng)) as usize] += 1);
        let expected = |rank: u64| f64::from(draws) * ((rank + 1) as f64).powf(-THETA) / zeta(ranks, THETA);
        // The first two ranks are exact; the closed form approximates the rest.
        for (rank, tolerance) in [(0, 0.02), (1, 0.02), (2, 0.35), (9, 0.1), (99, 0.1)] {
            let ratio = f64::from(counts[rank as usize]) / expected(rank);
            assert!((ratio - 1.0).abs() < tolerance, "rank {rank}: {ratio} of the expected count");
        }
        let head: u32 = counts[..100].iter().sum();
        let share = f64::from(head) / f64::from(draws);
        let exact = zeta(100, THETA) / zeta(ranks, THETA);
        assert!((share - exact).abs() < 0.015, "the first tenth gets {share}, should get {exact}");
    }

    #[test]
    fn the_constant_is_the_harmonic_number_of_ten_billion_ranks() {
        // Euler and Maclaurin: beyond m the sum is an integral, and half a term at either end.
        let (m, n) = (100_000u64, RANKS as f64);
        let power = 1.0 - THETA;
        let tail = (n.powf(power) - (m as f64).powf(power)) / power;
        let ends = (n.powf(-THETA) - (m as f64).powf(-THETA)) / 2.0;
        let sum = zeta(m, THETA) + tail + ends;
        assert!((sum - ZETA_RANKS).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn scrambling_spreads_the_popular_records() {
        let counts = counts(Distribution::Zipfian, 1000, 500_000);
        // The two most popular ranks lie where their hashes put them.
        let hottest = (0..counts.len()).max_by_key(|&i| counts[i]).unwrap();
        assert_eq!(hottest as u64, fnv1a_64(0) % 1000);
        let share = counts[hottest] as f64 / 500_000.0;
        let floor = 1.0 / ZETA_RANKS;
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
