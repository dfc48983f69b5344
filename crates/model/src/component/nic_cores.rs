//! Cores on the card of a NIC, with a cache and memory of their own; host memory is far.

use super::cache::{Cache, CacheAccess, CacheParams};
use super::core::{CoreParams, Cores};
use super::memory::{MemoryChannels, MemoryParams};
use crate::platform;
use crate::resource::Usage;
use crate::time::{Ps, nearest};

/// What such a card is like.
#[derive(Clone, Debug, PartialEq)]
pub struct NicCoreParams {
    /// The cores.
    pub cores: CoreParams,
    /// Work done in a time, as a part of what a host core does.
    pub speed: f64,
    /// Their last-level cache.
    pub cache: CacheParams,
    /// Memory on the card.
    pub memory: MemoryParams,
    /// One access of 64 B to host memory, alone.
    pub host_read_ps: u64,
    /// Time of the core for each such access when it has many under way; at most the same alone.
    pub host_pipelined_ps: u64,
}

impl NicCoreParams {
    /// From the section of a platform file, which says what a core does of what a host core does: so its clock is the
    /// host's at that part, and so is what turning from one task to another costs.
    pub fn new(card: &platform::NicCores, host: &platform::Core) -> Self {
        Self {
            cores: CoreParams {
                cores: card.cores as usize,
                clock_hz: host.clock * card.speed,
                misses: card.misses as usize,
                switch_ps: (host.switch as f64 / card.speed) as u64,
                order: card.order,
            },
            speed: card.speed,
            cache: CacheParams { size_bytes: card.cache_size, line_bytes: 64, ways: 16, hit_ps: card.cache_latency },
            memory: MemoryParams { order: card.order, ..MemoryParams::dram(card.dram_latency, card.dram_bandwidth, 1) },
            host_read_ps: card.host_read,
            host_pipelined_ps: card.host_pipelined,
        }
    }
}

/// Cores on a card.
#[derive(Clone, Debug)]
pub struct NicCores {
    params: NicCoreParams,
    /// The cores.
    pub cores: Cores,
    cache: Cache,
    memory: MemoryChannels,
}

impl NicCores {
    /// Idle cores with an empty cache.
    pub fn new(params: &NicCoreParams) -> Self {
        Self {
            cores: Cores::new(&params.cores),
            cache: Cache::new(&params.cache),
            memory: MemoryChannels::new(&params.memory),
            params: params.clone(),
        }
    }

    /// Runs work that would take a host core so long: when it starts and ends.
    pub fn run(&mut self, at: Ps, host_work: Ps) -> (Ps, Ps) {
        self.cores.run(at, Ps(nearest(host_work.0 as f64 / self.params.speed) as u64))
    }

    /// Loads from memory on the card: when all bytes are here.
    pub fn load(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let mut last = at;
        for line in self.cache.lines(address, bytes) {
            let done = if self.cache.access(line, CacheAccess::Load).hit {
                at + self.cache.hit_time()
            } else {
                self.cores.miss(at, |start| self.memory.read(start, line * 64, 64).1)
            };
            last = last.max(done);
        }
        last
    }

    /// Reads a line of host memory: when the core is free for more, and when the data are here.
    pub fn host_read(&mut self, at: Ps) -> (Ps, Ps) {
        let (_, free) = self.cores.run(at, Ps(self.params.host_pipelined_ps));
        (free, free + (Ps(self.params.host_read_ps) - Ps(self.params.host_pipelined_ps)))
    }

    /// How busy cores, misses and memory were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 3] {
        let [cores, misses] = self.cores.usage(span);
        let rename = |name, usage: Usage| Usage { name, ..usage };
        [rename("NIC cores", cores), rename("NIC core misses", misses), self.memory.usage("NIC memory", span)]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.cores.reset();
        self.cache.reset();
        self.memory.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Order;

    /// BlueField-2's eight A72 as in RAMBDA.
    fn bluefield() -> NicCoreParams {
        NicCoreParams {
            cores: CoreParams { cores: 8, clock_hz: 2.5e9, misses: 6, switch_ps: 15_000, order: Order::InTurn },
            speed: 0.75,
            cache: CacheParams { size_bytes: 6_000_000, line_bytes: 64, ways: 16, hit_ps: 35_000 },
            memory: MemoryParams::dram(145_000, 18.5e9, 1),
            host_read_ps: 2_250_000,
            host_pipelined_ps: 650_000,
        }
    }

    #[test]
    fn work_takes_longer_than_on_a_host_core() {
        // 300 ns of a host core are 400 ns here.
        assert_eq!(NicCores::new(&bluefield()).run(Ps::ZERO, Ps(300_000)), (Ps::ZERO, Ps(400_000)));
    }

    #[test]
    fn a_load_misses_once_and_then_hits() {
        let mut card = NicCores::new(&bluefield());
        assert_eq!(card.load(Ps::ZERO, 128, 64), Ps(145_000));
        assert_eq!(card.load(Ps(200_000), 128, 64), Ps(235_000));
        assert_eq!(card.usage(Ps(145_000))[2].served, 1);
    }

    #[test]
    fn host_memory_is_far_and_costs_the_core_time() {
        // One access: 2250 ns. 32 on 8 cores: four for each core, 650 ns apart, the last after 4 x 650 + 1600 ns.
        let mut card = NicCores::new(&bluefield());
        assert_eq!(card.host_read(Ps::ZERO), (Ps(650_000), Ps(2_250_000)));
        let at = Ps(10_000_000);
        let last = (0..32).map(|_| card.host_read(at).1).max();
        assert_eq!(last, Some(at + Ps(4 * 650_000 + 1_600_000)));
    }
}
