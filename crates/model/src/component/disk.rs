//! A disk: requests under way, bandwidth, and what it takes until written data are durable.

use crate::resource::{Channel, Pool, Usage};
use crate::time::Ps;

/// What a disk is like.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskParams {
    /// A read of one block, alone.
    pub read_ps: u64,
    /// A write of one block until the disk has it, alone.
    pub write_ps: u64,
    /// From a request to sync until all that the disk had is durable, its write cache being empty of other work.
    pub sync_ps: u64,
    /// Bytes a second, reads and writes together.
    pub bandwidth_bytes_per_s: f64,
    /// Requests under way at most.
    pub queue: usize,
    /// Bytes of a block.
    pub block_bytes: u64,
}

/// A disk.
#[derive(Clone, Debug)]
pub struct Disk {
    params: DiskParams,
    queue: Pool,
    medium: Channel,
    /// When the disk has all writes so far.
    written: Ps,
}

impl Disk {
    /// An idle disk.
    pub fn new(params: &DiskParams) -> Self {
        let (queue, medium) = (Pool::new(params.queue), Channel::new(params.bandwidth_bytes_per_s));
        Self { queue, medium, written: Ps::ZERO, params: params.clone() }
    }

    /// Reads bytes: when all are here.
    pub fn read(&mut self, at: Ps, bytes: u64) -> Ps {
        self.serve(at, bytes, Ps(self.params.read_ps))
    }

    /// Writes bytes: when the disk has them. They are durable only after a sync.
    pub fn write(&mut self, at: Ps, bytes: u64) -> Ps {
        let done = self.serve(at, bytes, Ps(self.params.write_ps));
        self.written = self.written.max(done);
        done
    }

    /// Makes all writes so far durable: when they are.
    pub fn sync(&mut self, at: Ps) -> Ps {
        at.max(self.written) + Ps(self.params.sync_ps)
    }

    /// Whole blocks pass the medium; the latency has the transfer of one in it.
    fn serve(&mut self, at: Ps, bytes: u64, latency: Ps) -> Ps {
        let block = self.params.block_bytes.max(1);
        let begun = self.queue.acquire(at);
        let (_, moved) = self.medium.serve(begun, bytes.max(1).next_multiple_of(block));
        let done = moved + (latency - self.medium.time(block));
        self.queue.release(begun, done);
        done
    }

    /// How busy its queue and its medium were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 2] {
        [self.queue.usage("disk queue", span), self.medium.usage("disk", span)]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.queue.reset();
        self.medium.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flash disk: 4 KB take 80 us to read, 20 us to write; 2 GB/s.
    fn flash() -> DiskParams {
        DiskParams {
            read_ps: 80_000_000,
            write_ps: 20_000_000,
            sync_ps: 500_000_000,
            bandwidth_bytes_per_s: 2e9,
            queue: 32,
            block_bytes: 4096,
        }
    }

    #[test]
    fn one_request_takes_the_latency_and_the_rest_of_its_bytes() {
        // 64 KB are 16 blocks of 2.048 us, one of which is in the latency.
        let mut disk = Disk::new(&flash());
        assert_eq!(disk.read(Ps::ZERO, 4096), Ps(80_000_000));
        let at = Ps::from_us(1000);
        assert_eq!(disk.read(at, 65_536) - at, Ps(80_000_000 + 15 * 2_048_000));
    }

    #[test]
    fn the_queue_bounds_small_reads_and_the_medium_large_ones() {
        // With 4 under way, 400 reads are 100 rounds of 80 us; those of a round pass the medium 2.048 us apart.
        let mut disk = Disk::new(&DiskParams { queue: 4, ..flash() });
        let last = (0..400).map(|_| disk.read(Ps::ZERO, 4096)).max();
        assert_eq!(last, Some(Ps(100 * 80_000_000 + 3 * 2_048_000)));
        // 100 reads of 1 MB: 256 blocks each at 2 GB/s, and the latency of the last block.
        let mut disk = Disk::new(&flash());
        let last = (0..100).map(|_| disk.read(Ps::ZERO, 1 << 20)).max();
        assert!(last.is_some_and(|last| last.0.abs_diff(25_600 * 2_048_000) < 4 * 80_000_000));
    }

    #[test]
    fn a_sync_waits_for_the_writes_before_it() {
        let mut disk = Disk::new(&flash());
        assert_eq!(disk.write(Ps::ZERO, 100), Ps(20_000_000));
        assert_eq!(disk.sync(Ps(1_000_000)), Ps(520_000_000));
        assert_eq!(disk.sync(Ps(900_000_000)), Ps(1_400_000_000));
    }
}
