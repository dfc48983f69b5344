//! What a NIC keeps of its queue pairs and memory regions: in a cache on the NIC, and all of it in host memory. A message
//! needs the context of its queue pair and the entry of its region; what is not there is read over PCIe first.
//!
//! Which of many a message belongs to is drawn evenly: one connection stands for all that a NIC has.

use super::cache::{Cache, CacheAccess, CacheParams};
use super::pcie::Pcie;
use crate::draw::mixed;
use crate::platform;
use crate::time::Ps;

/// What is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct NicStateParams {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Bytes of a queue pair's context.
    pub queue_pair_bytes: u64,
    /// Bytes of a region's entry, and what of its translation an access needs.
    pub region_bytes: u64,
}

impl From<&platform::NicState> for NicStateParams {
    fn from(state: &platform::NicState) -> Self {
        Self { cache_bytes: state.cache, queue_pair_bytes: state.queue_pair, region_bytes: state.region }
    }
}

/// What a NIC serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Connected queue pairs.
    pub queue_pairs: u64,
    /// Registered regions.
    pub regions: u64,
}

impl Default for Served {
    fn default() -> Self {
        Self { queue_pairs: 1, regions: 1 }
    }
}

/// Bytes that are read and kept together.
const LINE: u64 = 64;
const WAYS: usize = 8;

impl NicStateParams {
    /// Bytes that are read for what a message needs, if nothing of it is in the cache, and the part of the time for which it
    /// is not.
    pub fn missing(&self, served: Served) -> (f64, f64) {
        let (pair, region) = (lines(self.queue_pair_bytes), lines(self.region_bytes));
        let all = (served.queue_pairs * pair + served.regions * region) * LINE;
        let missing = (1.0 - self.cache_bytes as f64 / all as f64).max(0.0);
        (((pair + region) * LINE) as f64, missing)
    }
}

fn lines(bytes: u64) -> u64 {
    bytes.div_ceil(LINE).max(1)
}

/// The cache, and what does not fit in it.
#[derive(Clone, Debug)]
pub struct NicState {
    cache: Cache,
    params: NicStateParams,
    served: Served,
    /// Draws of queue pairs and regions.
    drawn: u64,
}

impl NicState {
    /// An empty cache; `None` if all that is served fits in it, for then nothing is ever missing.
    pub fn new(params: &NicStateParams, served: Served) -> Option<Self> {
        let cache = CacheParams { size_bytes: params.cache_bytes, line_bytes: LINE, ways: WAYS, hit_ps: 0 };
        let (cache, params) = (Cache::new(&cache), params.clone());
        (params.missing(served).1 > 0.0).then_some(Self { cache, params, served, drawn: 0 })
    }

    /// A message begins at `at`: when the NIC has what it needs for it.
    pub fn look_up(&mut self, at: Ps, pcie: &mut Pcie) -> Ps {
        let (pair, region) = (lines(self.params.queue_pair_bytes), lines(self.params.region_bytes));
        let pairs = self.served.queue_pairs.max(1);
        let first = self.draw(pairs) * pair;
        let second = pairs * pair + self.draw(self.served.regions.max(1)) * region;
        let runs = [first..first + pair, second..second + region];
        let missing =
            runs.into_iter().flatten().filter(|line| !self.cache.access(*line, CacheAccess::Load).hit).count();
        if missing == 0 { at } else { pcie.read(at, missing as u64 * LINE).1 }
    }

    /// One of so many, all alike: the same sequence in every run.
    fn draw(&mut self, of: u64) -> u64 {
        self.drawn += 1;
        ((u128::from(mixed(self.drawn)) * u128::from(of)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::pcie::PcieParams;
    use super::*;

    fn params() -> NicStateParams {
        NicStateParams { cache_bytes: 2 << 20, queue_pair_bytes: 375, region_bytes: 64 }
    }

    /// Of 850 ns.
    fn pcie() -> Pcie {
        Pcie::new(&PcieParams { read_ps: 850_000, ..PcieParams::example() })
    }

    #[test]
    fn what_fits_is_never_missing_and_of_more_the_part_that_does_not_fit() {
        // A context takes 6 lines, 384 B: 2 MiB hold 5,461 of them.
        let of = |queue_pairs| NicState::new(&params(), Served { queue_pairs, regions: 1 });
        assert!(of(10).is_none() && of(5_000).is_none());
        let mut last = 0.0;
        for pairs in [6_000, 10_000, 30_000, 100_000] {
            let (mut state, mut pcie) = (of(pairs).unwrap(), pcie());
            (0..60_000).for_each(|_| _ = state.look_up(Ps::ZERO, &mut pcie));
            let waits = (0..60_000).filter(|_| state.look_up(Ps::ZERO, &mut pcie) > Ps::ZERO).count();
            let waits = waits as f64 / 60_000.0;
            let (_, missing) = params().missing(Served { queue_pairs: pairs, regions: 1 });
            // Least recently used over sets keeps a little less than what fits.
            assert!((waits - missing).abs() < 0.13, "{pairs}: {waits} of {missing}");
            assert!(waits > last, "{pairs}");
            last = waits;
        }
    }

    #[test]
    fn a_miss_is_a_read_over_pcie_and_a_hit_is_nothing() {
        let mut state = NicState::new(&params(), Served { queue_pairs: 1 << 40, regions: 1 }).unwrap();
        let mut pcie = pcie();
        // Context and region, 7 lines: the round trip of 850 ns, and 448 B with two headers instead of 64 B with one.
        let first = state.look_up(Ps::ZERO, &mut pcie);
        assert_eq!(first, Ps(850_000 + (448 + 2 * 24 - 64 - 24) * 125));
    }
}
