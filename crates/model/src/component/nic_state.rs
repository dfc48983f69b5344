//! What a NIC keeps of its queue pairs and memory regions: in a cache on the NIC, and all of it in host memory. A message
//! needs the context of its queue pair and the entry of its region; what is not there is read over PCIe first.
//!
//! Which of many a message belongs to is drawn evenly: the few that a world has stand for all that a NIC has. Messages of
//! one of these few keep their order: who waits for its context has those behind it wait.

use std::collections::HashMap;

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

/// Bytes that are read together.
const LINE: u64 = 64;

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

/// What a message finds there. The cache is as it is after a while: as each message is as probably for one queue pair as for
/// another, what is not there is drawn as well.
#[derive(Clone, Debug)]
pub struct NicState {
    /// Bytes that are read for a message, and of 2^64 messages how many find them missing.
    bytes: u64,
    missing: u64,
    /// Messages so far.
    drawn: u64,
    /// When the last message of each of the world's queue pairs had what it needs, each way.
    known: HashMap<(u32, Way), Ps>,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// A command to the NIC.
    Out,
    /// A packet from the wire.
    In,
}

impl NicState {
    /// `None` if all that is served fits in the cache, for then nothing is ever missing.
    pub fn new(params: &NicStateParams, served: Served) -> Option<Self> {
        let (bytes, missing) = params.missing(served);
        let (bytes, missing) = (bytes as u64, (missing * u64::MAX as f64) as u64);
        (missing > 0).then(|| Self { bytes, missing, drawn: 0, known: HashMap::new() })
    }

    /// A message of one of the world's queue pairs begins at `at`: when the NIC has what it needs for it.
    pub fn look_up(&mut self, message: (u32, Way), at: Ps, pcie: &mut Pcie) -> Ps {
        self.drawn += 1;
        let here = if mixed(self.drawn) < self.missing { pcie.read(at, self.bytes).1 } else { at };
        let known = self.known.entry(message).or_default();
        *known = here.max(*known);
        *known
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
            // From the first message on: each of a queue pair of its own.
            let waits = (0..60_000).filter(|n| state.look_up((*n, Way::In), Ps::ZERO, &mut pcie) > Ps::ZERO).count();
            let waits = waits as f64 / 60_000.0;
            let (_, missing) = params().missing(Served { queue_pairs: pairs, regions: 1 });
            assert!((waits - missing).abs() < 0.01, "{pairs}: {waits} of {missing}");
            assert!(waits > last, "{pairs}");
            last = waits;
        }
    }

    #[test]
    fn a_miss_is_a_read_over_pcie_and_a_hit_is_nothing() {
        let mut state = NicState::new(&params(), Served { queue_pairs: 1 << 40, regions: 1 }).unwrap();
        let mut pcie = pcie();
        // Context and region, 7 lines: the round trip of 850 ns, and 448 B with two headers instead of 64 B with one.
        let first = state.look_up((7, Way::In), Ps::ZERO, &mut pcie);
        assert_eq!(first, Ps(850_000 + (448 + 2 * 24 - 64 - 24) * 125));
    }

    #[test]
    fn messages_of_a_queue_pair_keep_their_order_each_way() {
        let mut state = NicState::new(&params(), Served { queue_pairs: 11_000, regions: 1 }).unwrap();
        let mut pcie = pcie();
        let mut at = |message, n: u64| (state.look_up(message, Ps(10_000 * n), &mut pcie), Ps(10_000 * n));
        let mut last = Ps::ZERO;
        for n in 0..1_000 {
            let (here, _) = at((7, Way::In), n);
            assert!(here >= last, "{n}: {here:?} before {last:?}");
            last = here;
        }
        // Half of them miss, which takes as long as 85 of them are apart: none went on before the last read was there. Of
        // another queue pair, and the other way, one that misses nothing goes on at once.
        for other in [(8, Way::In), (7, Way::Out)] {
            let (here, now) = at(other, 1_000);
            assert!(here == now || here > now + Ps(850_000), "{other:?}: {here:?} at {now:?}");
        }
    }
}
