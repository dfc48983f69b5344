//! The host's memory behind its cache, as cores, devices and the accelerator see it.

use super::{RING_BYTES, RINGS};
use crate::component::cache::{Cache, CacheAccess};
use crate::component::device_writes::{Destination, DeviceWrites, LineMemory};
use crate::component::memory::MemoryChannels;
use crate::component::nvm::Nvm;
use crate::platform::Platform;
use crate::resource::Usage;
use crate::time::Ps;

/// Bytes of a line.
pub const LINE: u64 = 64;

/// What the host's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMemory {
    /// DRAM.
    Dram,
    /// Persistent memory.
    Persistent,
}

/// The memory itself.
#[derive(Clone, Debug)]
enum Lines {
    Dram(MemoryChannels),
    Persistent(Box<Nvm>),
}

/// The host.
pub struct Host {
    lines: Lines,
    cache: Cache,
    devices: DeviceWrites,
    /// Where devices' writes go.
    destination: Destination,
    /// A load of DRAM alone, which is part of what is known of ways to it.
    dram: Ps,
    /// How far each ring is filled.
    filled: Vec<u64>,
}

impl Host {
    /// The host of a platform with so many rings; `None` if it has no such memory.
    pub fn new(platform: &Platform, memory: HostMemory, past_cache: bool, rings: usize) -> Option<Self> {
        let lines = match memory {
            HostMemory::Dram => Lines::Dram(MemoryChannels::new(&(&platform.dram).into())),
            HostMemory::Persistent => Lines::Persistent(Box::new(Nvm::new(&platform.nvm.as_ref()?.into()))),
        };
        let ways = platform.ring_server.as_ref()?.ddio_ways;
        // The processor's setting is off; packets to volatile memory carry the hint.
        let destination = Destination::of(false, !past_cache);
        // A run is too short to fill the cache, and what it then evicts is what devices cost persistent memory: rings that
        // were written side by side filled it before.
        let fills = memory == HostMemory::Persistent && destination == Destination::Cache;
        let rings = if fills { rings as u64 } else { 0 };
        let line = |ring, n| (RINGS + ring * RING_BYTES) / LINE + n;
        let before = (0..RING_BYTES / LINE).flat_map(|n| (0..rings).map(move |ring| line(ring, n)));
        Some(Self {
            lines,
            cache: Cache::new(&(&platform.cache).into()),
            devices: DeviceWrites::new(&platform.cache, ways).filled(before),
            destination,
            dram: Ps(platform.dram.latency),
            filled: Vec::new(),
        })
    }

    /// The place of a ring's next entry: entries follow each other, by whole lines.
    pub fn entry(&mut self, ring: usize, bytes: u64) -> u64 {
        if self.filled.len() <= ring {
            self.filled.resize(ring + 1, 0);
        }
        let at = self.filled[ring];
        self.filled[ring] = (at + bytes.next_multiple_of(LINE).max(LINE)) % RING_BYTES;
        RINGS + ring as u64 * RING_BYTES + at
    }

    /// A write from outside lands: when it can be seen.
    pub fn land(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        match &mut self.lines {
            Lines::Dram(dram) => self.devices.write(at, (address, bytes), self.destination, dram),
            Lines::Persistent(nvm) => self.devices.write(at, (address, bytes), self.destination, nvm.as_mut()),
        }
    }

    /// A core loads or stores a line: when memory has brought it; `None` if it was in the cache.
    pub fn core(&mut self, at: Ps, line: u64, writes: bool) -> Option<Ps> {
        let access = if writes { CacheAccess::Store } else { CacheAccess::Load };
        let found = self.cache.access(line, access);
        if let Some(dirty) = found.written_back {
            self.memory(at, dirty, true);
        }
        if found.hit { None } else { Some(self.memory(at, line, false)) }
    }

    /// What a hit of a core takes.
    pub fn hit_time(&self) -> Ps {
        self.cache.hit_time()
    }

    /// What memory takes for an accelerator's access beyond an idle load of DRAM.
    pub fn beyond_dram(&mut self, at: Ps, address: u64, bytes: u64, writes: bool) -> Ps {
        let lines = address / LINE..=(address + bytes.max(1) - 1) / LINE;
        let last = lines.map(|line| self.memory(at, line, writes)).max().unwrap_or(at);
        if writes { last - at } else { (last - at) - self.dram }
    }

    fn memory(&mut self, at: Ps, line: u64, writes: bool) -> Ps {
        let memory: &mut dyn LineMemory = match &mut self.lines {
            Lines::Dram(dram) => dram,
            Lines::Persistent(nvm) => nvm.as_mut(),
        };
        if writes { memory.write_line(at, line) } else { memory.read_line(at, line) }
    }

    /// What persistent media wrote for each byte that they were given.
    pub fn amplification(&self) -> Option<f64> {
        match &self.lines {
            Lines::Dram(_) => None,
            Lines::Persistent(nvm) => nvm.amplification(),
        }
    }

    /// How busy memory was over `span`.
    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        match &self.lines {
            Lines::Dram(dram) => vec![dram.usage("host memory", span)],
            Lines::Persistent(nvm) => nvm.usage(span).to_vec(),
        }
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        match &mut self.lines {
            Lines::Dram(dram) => dram.reset(),
            Lines::Persistent(nvm) => nvm.reset(),
        }
    }
}
