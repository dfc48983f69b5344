//! Where a device's writes to the host go: into some ways of the last-level cache (DDIO), or past it to memory. Which, the
//! processor's setting and the packet's processing hint (TPH) say together (RAMBDA, section III-D).
//!
//! The cache evicts at random within the ways that devices may fill; a fixed sequence stands for chance. What is evicted
//! goes to memory line by line, in that order.

use super::memory::MemoryChannels;
use crate::platform;
use crate::time::Ps;

const LINE: u64 = 64;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The last-level cache.
    Cache,
    /// Memory.
    Memory,
}

impl Destination {
    /// A write goes past the cache only where neither the processor nor the packet wants it there (figure 5).
    pub fn of(ddio: bool, tph: bool) -> Self {
        if ddio || tph { Self::Cache } else { Self::Memory }
    }
}

/// Memory that takes lines.
pub trait LineMemory {
    /// Reads a line: when it is here.
    fn read_line(&mut self, at: Ps, line: u64) -> Ps;
    /// Writes a line: when it is taken.
    fn write_line(&mut self, at: Ps, line: u64) -> Ps;
}

/// The part of the cache that devices fill.
#[derive(Clone, Debug)]
pub struct DeviceWrites {
    sets: u64,
    ways: usize,
    /// Sets of ways: the number of a line, plus 1; 0: empty. All are dirty.
    lines: Vec<u64>,
    /// The state of what stands for chance.
    chance: u64,
}

impl DeviceWrites {
    /// `ways` of the ways of a cache.
    pub fn new(cache: &platform::Cache, ways: u64) -> Self {
        let ways = ways.clamp(1, cache.ways) as usize;
        let sets = (cache.size / LINE / cache.ways).max(1);
        Self { sets, ways, lines: vec![0; sets as usize * ways], chance: 1 }
    }

    /// Full of these lines, as it is after a long run.
    pub fn filled(mut self, lines: impl IntoIterator<Item = u64>) -> Self {
        for line in lines {
            self.place(line);
        }
        self
    }

    /// A device writes whole lines from `address` on: when all are taken. Past the cache a line is read for ownership too.
    pub fn write(
        &mut self,
        at: Ps,
        (address, bytes): (u64, u64),
        destination: Destination,
        memory: &mut impl LineMemory,
    ) -> Ps {
        let mut taken = at;
        for line in address / LINE..=(address + bytes.max(1) - 1) / LINE {
            let done = match destination {
                Destination::Cache => self.fill(at, line, memory),
                Destination::Memory => {
                    self.drop_line(line);
                    // The read goes on beside the write, which nobody waits for.
                    memory.read_line(at, line);
                    memory.write_line(at, line)
                }
            };
            taken = taken.max(done);
        }
        taken
    }

    /// Puts a line into the cache; one that must leave for it goes to memory.
    fn fill(&mut self, at: Ps, line: u64, memory: &mut impl LineMemory) -> Ps {
        self.place(line).map_or(at, |evicted| memory.write_line(at, evicted))
    }

    /// Puts a line into the cache: the one that left for it.
    fn place(&mut self, line: u64) -> Option<u64> {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let victim = (self.chance >> 33) as usize % self.ways;
        let set = self.set(line);
        if set.contains(&(line + 1)) {
            return None;
        }
        let way = set.iter().position(|&tag| tag == 0).unwrap_or(victim);
        std::mem::replace(&mut set[way], line + 1).checked_sub(1)
    }

    fn drop_line(&mut self, line: u64) {
        self.set(line).iter_mut().filter(|tag| **tag == line + 1).for_each(|tag| *tag = 0);
    }

    fn set(&mut self, line: u64) -> &mut [u64] {
        let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = ((u128::from(hash) * u128::from(self.sets)) >> 64) as usize * self.ways;
        &mut self.lines[set..set + self.ways]
    }
}

/// Plain DRAM: reads and writes of lines over its channels.
impl LineMemory for MemoryChannels {
    fn read_line(&mut self, at: Ps, line: u64) -> Ps {
        self.read(at, line * LINE, LINE).1
    }

    fn write_line(&mut self, at: Ps, line: u64) -> Ps {
        self.write(at, line * LINE, LINE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryParams;
    use super::super::nvm::tests::optane;
    use super::*;

    /// RAMBDA's host: 27.5 MB in 11 ways, of which devices fill two.
    fn cache() -> DeviceWrites {
        DeviceWrites::new(&platform::Cache { size: 27_500_000, latency: 20_000, ways: 11 }, 2)
    }

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    #[test]
    fn only_with_neither_setting_are_writes_memorys() {
        let all = [(false, false), (false, true), (true, false), (true, true)];
        let to = all.map(|(ddio, tph)| Destination::of(ddio, tph));
        assert_eq!(to, [Destination::Memory, Destination::Cache, Destination::Cache, Destination::Cache]);
        for (ddio, tph) in all {
            let (mut cache, mut dram) = (cache(), MemoryChannels::new(&MemoryParams::dram(85_000, 120e9, 1)));
            let mut state = 7;
            for n in 0..20_000 {
                let line = random(&mut state) % 16_384;
                cache.write(Ps(n * 18_000), (line * 64, 64), Destination::of(ddio, tph), &mut dram);
            }
            // As many bytes are read as are written: each line is read for ownership.
            let part = dram.bytes() as f64 / (2.0 * 20_000.0 * 64.0);
            let past = !ddio && !tph;
            assert!(if past { part == 1.0 } else { part < 0.05 }, "{ddio} {tph}: {part}");
        }
    }

    #[test]
    fn lines_that_come_in_order_meet_in_the_buffer_and_those_evicted_at_random_do_not() {
        // Sixteen logs of 1 MB, each written in order, round and round.
        let amplification = |destination| {
            let (mut cache, mut nvm) = (cache(), optane());
            for n in 0..400_000u64 {
                let (log, line) = (n % 16, n / 16 % 16_384);
                cache.write(Ps(n * 20_000), ((log << 20) + line * 64, 64), destination, &mut nvm);
            }
            nvm.amplification().unwrap()
        };
        let (past, through) = (amplification(Destination::Memory), amplification(Destination::Cache));
        assert!((past - 1.0).abs() < 0.01, "{past}");
        assert!(through > 3.0 && through <= 4.0, "{through}");
    }
}
