//! The statistics of all measurements: medians, percentiles, what counts as level, and rounds measured by turns.
//!
//! A machine drifts: caches, clocks and neighbours differ from round to round, and then they differ for both of two
//! contestants alike. So only ratios within a round are compared ([`is_slower`]). What remains is not normal, for one
//! may be twice as slow in a round in which two threads shared a core. Wilcoxon's signed-rank test needs no such shape:
//! under the hypothesis that neither is slower, the logarithm of the ratio is as likely to lie as far below zero as above.
//! The test asks how many of the 2^n ways to give the observed sizes a sign make the slower one as slow as it was, or
//! slower ([`chance`]).

use std::time::Duration;

use hdrhistogram::Histogram;

/// Times within this factor of each other are level.
pub const LEVEL: f64 = 1.05;

/// The largest chance that one which is no slower is taken to be.
pub const SIGNIFICANT: f64 = 0.05;

/// Whether a time lies within 5 % of the least, so that neither wins; of rates, whether the most lies within 5 % of one.
pub fn is_level(least: f64, other: f64) -> bool {
    other <= least * LEVEL
}

/// The middle one; between two the mean; of none no number.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

/// The least and the largest; 0 of none.
pub fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let both = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    let ends = |value: f64| (value, value);
    let mut values = values.into_iter();
    values.next().map(ends).map_or((0.0, 0.0), |first| values.fold(first, both))
}

/// Whether the second was slower than the first, by more than what counts as level, in rounds that tell. Both have a time
/// for each round.
pub fn is_slower(first: &[f64], second: &[f64]) -> bool {
    let ratios: Vec<f64> = first.iter().zip(second).map(|(first, second)| second / first).collect();
    median(ratios.iter().copied()) > LEVEL && chance(&ratios) <= SIGNIFICANT
}

/// The probability, if neither was slower, of so large a sum of ranks of the rounds in which the second was slower.
/// `ratios` are the second's times over the first's, a round each; those of exactly 1 say nothing.
pub fn chance(ratios: &[f64]) -> f64 {
    let mut differences: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).filter(|d| *d != 0.0).collect();
    differences.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let ranks = doubled_ranks(&differences);
    let slower: usize = ranks.iter().zip(&differences).filter(|(_, d)| **d > 0.0).map(|(rank, _)| rank).sum();
    // ways[s]: the part of all signs whose positive ranks sum up to s.
    let mut ways = vec![0.0; ranks.iter().sum::<usize>() + 1];
    ways[0] = 1.0;
    for rank in ranks {
        for sum in (0..ways.len()).rev() {
            let with = if sum >= rank { ways[sum - rank] } else { 0.0 };
            ways[sum] = (ways[sum] + with) / 2.0;
        }
    }
    ways[slower..].iter().sum()
}

/// Twice the rank of each size, from 2 on: sizes that are equal share the mean of their ranks.
fn doubled_ranks(sorted: &[f64]) -> Vec<usize> {
    let mut ranks = Vec::with_capacity(sorted.len());
    for tied in sorted.chunk_by(|a, b| a.abs() == b.abs()) {
        let first = ranks.len() + 1;
        ranks.extend(std::iter::repeat_n(2 * first + tied.len() - 1, tied.len()));
    }
    ranks
}

/// Latencies to three digits, up to a minute.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    pub fn new() -> Self {
        const MINUTE_NS: u64 = 60_000_000_000;
        // Constant bounds, within those that the histogram allows.
        Self(Histogram::new_with_bounds(1, MINUTE_NS, 3).expect("valid bounds"))
    }

    /// Adds one. Longer than a minute counts as a minute.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(latency.as_nanos().min(u128::from(u64::MAX)) as u64);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency in nanoseconds that the part `q` of operations does not exceed; 0 if there are none.
    pub fn quantile(&self, q: f64) -> u64 {
        self.0.value_at_quantile(q)
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_and_ranges() {
        assert_eq!([median([3.0, 1.0, 2.0]), median([4.0, 1.0])], [2.0, 2.5]);
        assert!(median([]).is_nan());
        assert_eq!([range([3.0, 1.0, 2.0]), range([])], [(1.0, 3.0), (0.0, 0.0)]);
        assert!(is_level(100.0, 105.0) && is_level(100.0, 100.0) && !is_level(100.0, 105.1));
    }

    #[test]
    fn quantiles_are_within_a_thousandth() {
        let mut latencies = Latencies::new();
        assert_eq!((latencies.quantile(0.5), latencies.count()), (0, 0));
        (1..=2000).for_each(|us| latencies.record(Duration::from_micros(us)));
        for (part, us) in [(0.01, 20), (0.5, 1000), (0.99, 1980), (0.999, 1998)] {
            let exact = f64::from(us) * 1000.0;
            assert!((latencies.quantile(part) as f64 / exact - 1.0).abs() < 0.001, "{part}");
        }
    }

    #[test]
    fn slower_is_more_than_level_in_enough_rounds() {
        let rounds = [1.1, 1.2, 1.3, 1.4, 1.5];
        assert!(is_slower(&[1.0; 5], &rounds));
        assert!(!is_slower(&[1.0; 4], &rounds[1..]), "in four it could be chance");
        assert!(!is_slower(&[1.0; 20], &[1.04; 20]), "4 % are level, however sure");
    }

    #[test]
    fn chances_are_those_of_the_tables() {
        // All of n rounds: one way of 2^n. Of ten, ranks of 10 or less on the other side: 43 ways of 1024.
        assert_eq!(chance(&[1.1, 1.2, 1.3, 1.4, 1.5]), 1.0 / 32.0);
        let ten = |faster: &[usize]| {
            let ratio = |n: usize| (if faster.contains(&n) { -1.0 } else { 1.0 } * n as f64 / 100.0).exp();
            chance(&(1..=10).map(ratio).collect::<Vec<_>>())
        };
        assert!((ten(&[10]) - 43.0 / 1024.0).abs() < 1e-12);
        assert!((ten(&[1, 2, 3, 4]) - 43.0 / 1024.0).abs() < 1e-12, "the same sum of ranks");
        assert!((ten(&[11]) - 1.0 / 1024.0).abs() < 1e-12);
        assert_eq!((chance(&[]), chance(&[1.0, 1.0])), (1.0, 1.0));
    }

    #[test]
    fn equal_sizes_share_their_ranks() {
        assert_eq!(doubled_ranks(&[1.0, -2.0, 2.0, 3.0]), [2, 5, 5, 8]);
        // Two of the same size: both, one, the other or none.
        assert_eq!((chance(&[2.0, 0.5]), chance(&[2.0, 2.0])), (0.75, 0.25));
    }

    proptest! {
        #[test]
        fn a_chance_is_what_counting_all_signs_gives(sizes in proptest::collection::vec(-3i8..=3, 1..9)) {
            let ratios: Vec<f64> = sizes.iter().map(|&s| f64::from(s).exp2()).collect();
            let mut sorted: Vec<f64> = ratios.iter().map(|r| r.ln()).filter(|d| *d != 0.0).collect();
            sorted.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
            let ranks = doubled_ranks(&sorted);
            let positive = |signs: u32| -> usize {
                ranks.iter().enumerate().filter(|(n, _)| signs >> n & 1 == 1).map(|(_, rank)| rank).sum()
            };
            let signs = (0..sorted.len()).fold(0, |all, n| all | u32::from(sorted[n] > 0.0) << n);
            let all = 1u32 << ranks.len();
            let as_large = (0..all).filter(|&other| positive(other) >= positive(signs)).count();
            prop_assert!((chance(&ratios) - as_large as f64 / f64::from(all)).abs() < 1e-12);
        }
    }
}
