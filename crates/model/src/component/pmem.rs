//! Persistent memory: a medium of 256 B lines behind a buffer that combines writes.
//!
//! A store is durable once the buffer has it (the ADR domain). The medium writes whole lines: 64 B stores to random
//! places cost it four times their bytes, neighbours that meet in the buffer cost it their own (Yang et al., FAST 2020).
//! What a partial line's read before its write costs is not modelled.

use super::cache::{Cache, CacheAccess, CacheParams};
use crate::platform;
use crate::resource::{Channel, Usage};
use crate::time::Ps;

/// What persistent memory is like.
#[derive(Clone, Debug, PartialEq)]
pub struct PmemParams {
    /// A random load of one line.
    pub read_ps: u64,
    /// A store until it is durable.
    pub write_ps: u64,
    /// Bytes a second that the medium reads.
    pub read_bytes_per_s: f64,
    /// Bytes a second that the medium writes.
    pub write_bytes_per_s: f64,
    /// Bytes of a line of the medium.
    pub line_bytes: u64,
    /// Bytes of the buffer that combines writes.
    pub combining_bytes: u64,
}

impl From<&platform::Pmem> for PmemParams {
    fn from(pmem: &platform::Pmem) -> Self {
        Self {
            read_ps: pmem.read_latency,
            write_ps: pmem.write_latency,
            read_bytes_per_s: pmem.read_bandwidth,
            write_bytes_per_s: pmem.write_bandwidth,
            line_bytes: pmem.line,
            combining_bytes: pmem.combining,
        }
    }
}

/// Persistent memory.
#[derive(Clone, Debug)]
pub struct Pmem {
    params: PmemParams,
    reads: Channel,
    writes: Channel,
    /// Lines not written to the medium yet.
    combining: Cache,
    /// Bytes of stores, and bytes that the medium wrote.
    written: (u64, u64),
}

/// Ways of the combining buffer.
const WAYS: usize = 8;

impl Pmem {
    /// Idle, with an empty buffer.
    pub fn new(params: &PmemParams) -> Self {
        let size_bytes = params.combining_bytes.max(params.line_bytes);
        let lines = (size_bytes / params.line_bytes.max(1)) as usize;
        let combining = Cache::new(&CacheParams {
            size_bytes,
            line_bytes: params.line_bytes,
            ways: WAYS.min(lines),
            io_ways: 0,
            hit_ps: 0,
        });
        Self {
            reads: Channel::new(params.read_bytes_per_s),
            writes: Channel::new(params.write_bytes_per_s),
            combining,
            written: (0, 0),
            params: params.clone(),
        }
    }

    /// Loads bytes: when all are here. The medium reads whole lines.
    pub fn read(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let lines = self.combining.lines(address, bytes);
        let bytes = (lines.end() - lines.start() + 1) * self.params.line_bytes;
        let rest = Ps(self.params.read_ps) - self.reads.time(self.params.line_bytes);
        self.reads.serve(at, bytes).1 + rest
    }

    /// Stores bytes: when they are durable. A line that must leave the buffer for them waits its turn at the medium.
    pub fn write(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let mut taken = at;
        for line in self.combining.lines(address, bytes) {
            if self.combining.access(line, CacheAccess::Store).written_back.is_some() {
                taken = taken.max(self.writes.serve(at, self.params.line_bytes).0);
                self.written.1 += self.params.line_bytes;
            }
        }
        self.written.0 += bytes;
        taken + Ps(self.params.write_ps)
    }

    /// Bytes that the medium writes for each byte stored, what the buffer still holds included.
    pub fn amplification(&self) -> Option<f64> {
        let media = self.written.1 + self.combining.dirty() as u64 * self.params.line_bytes;
        (self.written.0 > 0).then(|| media as f64 / self.written.0 as f64)
    }

    /// How busy the medium was over `span`, reading and writing.
    pub fn usage(&self, span: Ps) -> [Usage; 2] {
        [self.reads.usage("persistent memory reads", span), self.writes.usage("persistent memory writes", span)]
    }

    /// Starts counting how busy it is anew.
    pub fn reset(&mut self) {
        self.reads.reset();
        self.writes.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six Optane modules, as in RAMBDA's platform.
    fn optane() -> PmemParams {
        PmemParams {
            read_ps: 305_000,
            write_ps: 90_000,
            read_bytes_per_s: 39.4e9,
            write_bytes_per_s: 13.9e9,
            line_bytes: 256,
            combining_bytes: 96 << 10,
        }
    }

    #[test]
    fn neighbours_combine_and_strangers_do_not() {
        let store = |stride: u64| {
            let mut pmem = Pmem::new(&optane());
            for n in 0..40_000 {
                pmem.write(Ps::ZERO, n * stride, 64);
            }
            pmem.amplification().unwrap_or_default()
        };
        assert_eq!((store(64), store(256), store(1024)), (1.0, 4.0, 4.0));
    }

    #[test]
    fn a_store_is_durable_in_the_buffer_until_the_medium_is_behind() {
        // 64 B stores to lines of their own: the medium writes 256 B for each, so 13.9 / 4 = 3.475 GB/s of stores pass:
        // 18.4 ns each. 40 000 at once: the 384 that the buffer takes cost nothing.
        let mut pmem = Pmem::new(&optane());
        assert_eq!(pmem.write(Ps::ZERO, 0, 64), Ps(90_000));
        let last = (1..40_000).map(|n| pmem.write(Ps::ZERO, n * 256, 64)).max().unwrap_or_default();
        let each = last.0 as f64 / (40_000.0 - 384.0) / 1e3;
        assert!((each - 18.417).abs() < 0.02, "{each}");
    }

    #[test]
    fn a_load_brings_whole_lines() {
        // 256 B at 39.4 GB/s: 6.5 ns, within the latency. 4 KB: 104 ns, of which 6.5 are in the latency.
        let mut pmem = Pmem::new(&optane());
        assert_eq!(pmem.read(Ps::ZERO, 0, 64), Ps(305_000));
        let at = Ps(1_000_000);
        let done = pmem.read(at, 0, 4096) - at;
        assert!((done.as_ns() - (305.0 + 15.0 * 256.0 / 39.4)).abs() < 0.01, "{done}");
    }
}
