//! Persistent memory: media that are written in blocks of some lines, behind a buffer in which lines of a block meet.
//!
//! How many bytes the media write for each that they are given comes out of the order in which lines come: those of a block
//! that come together are written as one.

use super::device_writes::LineMemory;
use crate::platform;
use crate::resource::{Channel, Order, Usage};
use crate::time::Ps;

const LINE: u64 = 64;

/// Persistent memory.
#[derive(Clone, Debug)]
pub struct Nvm {
    params: NvmParams,
    reads: Channel,
    writes: Channel,
    /// Blocks in the buffer, by use, the latest last: number, and a bit for each line that was written.
    buffer: Vec<(u64, u64)>,
    /// Bytes that were asked to be written, that the media wrote, and that they read.
    counts: (u64, u64, u64),
}

/// What persistent memory is like.
#[derive(Clone, Debug, PartialEq)]
pub struct NvmParams {
    /// A load alone.
    pub read_ps: u64,
    /// Bytes a second that the media read.
    pub read_bytes_per_s: f64,
    /// Bytes a second that they write.
    pub write_bytes_per_s: f64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks of the buffer.
    pub buffer_blocks: usize,
    /// How its queues are served.
    pub order: Order,
}

impl From<&platform::Nvm> for NvmParams {
    fn from(nvm: &platform::Nvm) -> Self {
        Self {
            read_ps: nvm.latency,
            read_bytes_per_s: nvm.read,
            write_bytes_per_s: nvm.write,
            block_bytes: nvm.block,
            buffer_blocks: nvm.buffer as usize,
            order: nvm.order,
        }
    }
}

impl Nvm {
    /// Idle, with an empty buffer.
    pub fn new(params: &NvmParams) -> Self {
        Self {
            reads: Channel::new(params.read_bytes_per_s).ordered(params.order),
            writes: Channel::new(params.write_bytes_per_s).ordered(params.order),
            buffer: Vec::with_capacity(params.buffer_blocks + 1),
            counts: (0, 0, 0),
            params: params.clone(),
        }
    }

    /// Bytes that the media wrote for each byte that they were given since the last reset, once all in the buffer is
    /// written too; `None` if none was given.
    pub fn amplification(&self) -> Option<f64> {
        let waiting = self.buffer.len() as u64 * self.params.block_bytes;
        let (given, written, _) = self.counts;
        (given > 0).then(|| (written + waiting) as f64 / given as f64)
    }

    /// Bytes that the media read and wrote since the last reset.
    pub fn bytes(&self) -> (u64, u64) {
        (self.counts.2, self.counts.1)
    }

    /// How busy the media were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 2] {
        [self.reads.usage("NVM reads", span), self.writes.usage("NVM writes", span)]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.counts = (0, 0, 0);
        self.reads.reset();
        self.writes.reset();
    }

    fn read_block(&mut self, at: Ps) -> Ps {
        self.counts.2 += self.params.block_bytes;
        self.reads.serve(at, self.params.block_bytes).1
    }
}

impl LineMemory for Nvm {
    /// A line brings its block from the media, unless the buffer has it.
    fn read_line(&mut self, at: Ps, line: u64) -> Ps {
        let block = line * LINE / self.params.block_bytes;
        if self.buffer.iter().any(|&(held, _)| held == block) {
            return at + Ps(self.params.read_ps);
        }
        let transfer = self.reads.time(self.params.block_bytes);
        self.read_block(at) + (Ps(self.params.read_ps) - transfer)
    }

    /// A line waits in the buffer for others of its block. The block that was used least lately leaves for a new one: if
    /// some of its lines are missing, it is read first.
    fn write_line(&mut self, at: Ps, line: u64) -> Ps {
        let block_bytes = self.params.block_bytes;
        let (block, bit) = (line * LINE / block_bytes, 1 << (line % (block_bytes / LINE)));
        self.counts.0 += LINE;
        let held = self.buffer.iter().rposition(|&(held, _)| held == block);
        let written = held.map_or(0, |held| self.buffer.remove(held).1);
        self.buffer.push((block, written | bit));
        if self.buffer.len() <= self.params.buffer_blocks {
            return at;
        }
        let (_, written) = self.buffer.remove(0);
        let whole = (1 << (block_bytes / LINE)) - 1;
        let from = if written == whole { at } else { self.read_block(at) };
        self.counts.1 += block_bytes;
        self.writes.serve(from, block_bytes).0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Six Optane modules.
    pub fn optane() -> Nvm {
        Nvm::new(&NvmParams {
            read_ps: 305_000,
            read_bytes_per_s: 39.4e9,
            write_bytes_per_s: 13.9e9,
            block_bytes: 256,
            buffer_blocks: 384,
            order: Order::InTurn,
        })
    }

    #[test]
    fn a_load_brings_a_block_and_media_are_bound_by_blocks() {
        let mut nvm = optane();
        assert_eq!(nvm.read_line(Ps::ZERO, 5), Ps(305_000));
        // 1000 lines of as many blocks are 256 kB at 39.4 GB/s.
        let last = (0..1000).map(|n| nvm.read_line(Ps(1_000_000), n * 4)).max().unwrap();
        let rate = 256_000.0 / (last - Ps(1_000_000) - Ps(305_000)).as_ns();
        assert!((rate / 39.4 - 1.0).abs() < 0.02, "{rate}");
        assert_eq!(nvm.bytes(), (1001 * 256, 0));
    }
}
