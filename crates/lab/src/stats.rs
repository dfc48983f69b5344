//! The statistics of all measurements: medians, percentiles, what counts as level, and rounds measured by turns.
//!
//! A machine drifts: caches, clocks and neighbours differ from round to round, and then they differ for both of two
//! contestants alike. So only ratios within a round are compared ([`is_slower`]). What remains is not normal, for one
//! may be twice as slow in a round in which two threads shared a core. Wilcoxon's signed-rank test needs no such shape:
//! under the hypothesis that neither is slower, the logarithm of the ratio is as likely to lie as far below zero as above.
//! The test asks how many of the 2^n ways to give the observed sizes a sign make the slower one as slow as it was, or
//! slower ([`chance`]).

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

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

/// How much more the second of two is than the first, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The second over the first: the median of the ratios of each round of one to each of the other.
    pub ratio: f64,
    /// Where the ratio lies with 95 % probability.
    pub interval: (f64, f64),
}

/// The change from `before` to `after`, each measured in some rounds that have nothing to do with each other. The
/// interval is that of Hodges and Lehmann: between two of the sorted ratios of all pairs, which ones Mann and Whitney's test
/// says. It assumes no more than that both spread alike. `None` if there are too few rounds to be that sure: four of
/// each will do.
pub fn change(before: &[f64], after: &[f64]) -> Option<Change> {
    let mut ratios: Vec<f64> = before.iter().flat_map(|before| after.iter().map(move |after| after / before)).collect();
    if ratios.iter().any(|ratio| !ratio.is_finite()) {
        return None;
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let outside = pairs_outside(before.len(), after.len())?;
    Some(Change {
        ratio: median(ratios.iter().copied()),
        interval: (ratios[outside], ratios[ratios.len() - 1 - outside]),
    })
}

/// How many of the pairs' sorted ratios lie outside of the interval at either end; `None` if even all of them are no
/// interval.
fn pairs_outside(before: usize, after: usize) -> Option<usize> {
    // ways[u]: the ways in which u of all pairs have the first one larger. It is a Gaussian binomial coefficient: the product
    // of (1 - q^(after + i)) / (1 - q^i) for each i up to `before`.
    let mut ways = vec![0.0; before * after + 1];
    ways[0] = 1.0;
    for i in 1..=before {
        for u in (after + i..ways.len()).rev() {
            ways[u] -= ways[u - after - i];
        }
        for u in i..ways.len() {
            ways[u] += ways[u - i];
        }
    }
    let bound = ways.iter().sum::<f64>() * SIGNIFICANT / 2.0;
    let mut sum = 0.0;
    let within = ways.iter().take_while(|&&ways| {
        sum += ways;
        sum <= bound
    });
    within.count().checked_sub(1)
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

    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, outside of which nothing is.
        self.0.add(&other.0).expect("histograms of the same bounds");
    }

    /// All of it, as HdrHistogram's own tools read it: V2, compressed, in Base64. Empty if there is not the memory.
    pub fn encoded(&self) -> String {
        let mut bytes = Vec::new();
        match V2DeflateSerializer::new().serialize(&self.0, &mut bytes) {
            Ok(_) => STANDARD.encode(bytes),
            Err(_) => String::new(),
        }
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
    fn a_change_is_known_once_there_are_rounds_enough() {
        let rounds = [100.0, 101.0, 102.0, 103.0];
        let twice = change(&rounds, &rounds.map(|ns| 2.0 * ns)).unwrap();
        assert!((twice.ratio - 2.0).abs() < 0.01 && twice.interval.0 > 1.9 && twice.interval.1 < 2.1, "{twice:?}");
        let same = change(&rounds, &rounds).unwrap();
        assert!(same.interval.0 < 1.0 && same.interval.1 > 1.0 && same.ratio == 1.0, "{same:?}");
        assert_eq!((change(&rounds[..3], &rounds[..3]), change(&[], &rounds)), (None, None));
        assert_eq!(change(&[0.0, 1.0, 1.0, 1.0], &rounds), None);
        // Mann and Whitney's table of critical values, two-sided, 0.05.
        let critical = [(4, 4, 0), (5, 5, 2), (8, 8, 13), (10, 10, 23), (4, 10, 5), (20, 20, 127)];
        for (before, after, least) in critical {
            assert_eq!(pairs_outside(before, after), Some(least), "{before} and {after} rounds");
        }
    }

    #[test]
    fn a_histogram_is_read_by_others() {
        let mut some = Latencies::new();
        (1..=1000).for_each(|us| some.record(Duration::from_micros(us)));
        let mut all = Latencies::new();
        all.add(&some);
        all.add(&some);
        let bytes = STANDARD.decode(all.encoded()).unwrap();
        let read: Histogram<u64> =
            hdrhistogram::serialization::Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        assert_eq!((read.len(), read.value_at_quantile(0.5)), (2000, all.quantile(0.5)));
        assert!(all.encoded().starts_with("HISTF"));
    }

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
