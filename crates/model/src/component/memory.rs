//! DRAM and HBM: channels over which addresses are interleaved, each with its part of the bandwidth and its queue.

use crate::platform;
use crate::resource::{Channel, Order, Usage};
use crate::time::Ps;

/// What a memory is like.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryParams {
    /// An idle load of one line, its transfer included.
    pub latency_ps: u64,
    /// Of all channels together, as can be used.
    pub bandwidth_bytes_per_s: f64,
    /// Channels; for HBM pseudo-channels.
    pub channels: usize,
    /// Consecutive bytes on one channel.
    pub interleave_bytes: u64,
    /// Bytes that one load brings at least.
    pub line_bytes: u64,
    /// How its queues are served.
    pub order: Order,
}

impl MemoryParams {
    /// DRAM that is interleaved by lines, as on servers.
    pub fn dram(latency_ps: u64, bandwidth_bytes_per_s: f64, channels: usize) -> Self {
        let order = Order::InTurn;
        Self { latency_ps, bandwidth_bytes_per_s, channels, interleave_bytes: 64, line_bytes: 64, order }
    }
}

/// As one channel: platform files give the bandwidth of all channels.
impl From<&platform::Dram> for MemoryParams {
    fn from(dram: &platform::Dram) -> Self {
        Self { order: dram.order, ..Self::dram(dram.latency, dram.bandwidth, 1) }
    }
}

/// A memory.
#[derive(Clone, Debug)]
pub struct MemoryChannels {
    channels: Vec<Channel>,
    /// The latency without the transfer of a line.
    rest: Ps,
    interleave: u64,
    line: u64,
}

impl MemoryChannels {
    /// An idle memory.
    pub fn new(params: &MemoryParams) -> Self {
        let count = params.channels.max(1);
        let channel = Channel::new(params.bandwidth_bytes_per_s / count as f64).ordered(params.order);
        Self {
            rest: Ps(params.latency_ps) - channel.time(params.line_bytes),
            channels: vec![channel; count],
            interleave: params.interleave_bytes.max(1),
            line: params.line_bytes.max(1),
        }
    }

    /// Reads bytes: when the first line and the last are here.
    pub fn read(&mut self, at: Ps, address: u64, bytes: u64) -> (Ps, Ps) {
        let (first, last) = self.transfer(at, address, bytes);
        (first + self.rest, last + self.rest)
    }

    /// Writes bytes: when the channels have taken them. Nobody waits for the cells.
    pub fn write(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        self.transfer(at, address, bytes).1
    }

    /// When the first line and the last have passed their channels.
    fn transfer(&mut self, at: Ps, address: u64, bytes: u64) -> (Ps, Ps) {
        let end = address.saturating_add(bytes.max(1)).next_multiple_of(self.line);
        let mut from = address / self.line * self.line;
        let (mut first, mut last) = (None, at);
        if let [channel] = &mut self.channels[..] {
            let (start, done) = channel.serve(at, end - from);
            return (start + channel.time(self.line), done);
        }
        while from < end {
            let piece = from / self.interleave;
            let to = (piece + 1).saturating_mul(self.interleave).min(end);
            let count = self.channels.len() as u64;
            let channel = &mut self.channels[(piece % count) as usize];
            let (start, done) = channel.serve(at, to - from);
            first = first.or(Some(start + channel.time(self.line)));
            last = last.max(done);
            from = to;
        }
        (first.unwrap_or(last), last)
    }

    /// How busy the channels were over `span`: the busiest is what binds.
    pub fn usage(&self, name: &'static str, span: Ps) -> Usage {
        let all: Vec<_> = self.channels.iter().map(|channel| channel.usage(name, span)).collect();
        crate::resource::binding(&all).copied().unwrap_or(Usage::idle(name))
    }

    /// Bytes moved since the last reset.
    pub fn bytes(&self) -> u64 {
        self.channels.iter().map(Channel::bytes).sum()
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.channels.iter_mut().for_each(Channel::reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_the_latency_and_a_run_the_bandwidth() {
        // 20 GB/s: a line takes 3.2 ns of the channel; 4 KB take 204.8 ns, 80 - 3.2 ns after which the last is here.
        let mut dram = MemoryChannels::new(&MemoryParams::dram(80_000, 20e9, 1));
        assert_eq!(dram.read(Ps::ZERO, 0, 64), (Ps(80_000), Ps(80_000)));
        let at = Ps(1_000_000);
        assert_eq!(dram.read(at, 4096, 4096), (at + Ps(80_000), at + Ps(204_800 + 76_800)));
        // Bytes across a line's end bring both lines.
        assert_eq!(dram.read(at + at, 60, 8).1, at + at + Ps(83_200));
        assert_eq!(dram.bytes(), 64 + 4096 + 128);
    }

    #[test]
    fn lines_spread_over_channels_that_queue_each_for_itself() {
        // Two channels of 10 GB/s: a line takes 6.4 ns; four lines take two turns of each.
        let params = MemoryParams::dram(80_000, 20e9, 2);
        let mut dram = MemoryChannels::new(&params);
        assert_eq!(dram.read(Ps::ZERO, 0, 256), (Ps(80_000), Ps(86_400)));
        // Strides of two lines all hit one channel: eight take 8 x 6.4 ns of it, and the other is idle.
        let mut dram = MemoryChannels::new(&params);
        let last = (0..8).map(|n| dram.read(Ps::ZERO, n * 128, 64).1).max();
        assert_eq!(last, Some(Ps(7 * 6_400 + 80_000)));
        assert_eq!(dram.usage("DRAM", Ps(51_200)).busy, 1.0);
    }

    #[test]
    fn hbm_reaches_its_bandwidth_on_many_channels_only() {
        // U280: 32 pseudo-channels of 13.3 GB/s (Shuhai, arXiv 2005.04324). 32 reads of 64 B go on at once: 4.8 ns;
        // from one channel they take 32 times as long.
        let params = MemoryParams {
            latency_ps: 106_700,
            bandwidth_bytes_per_s: 425.6e9,
            channels: 32,
            interleave_bytes: 256,
            line_bytes: 64,
            order: Order::InTurn,
        };
        let spread = |stride: u64| {
            let mut hbm = MemoryChannels::new(&params);
            (0..32).map(|n| hbm.read(Ps::ZERO, n * stride, 64).1).max().unwrap_or_default() - Ps(106_700)
        };
        assert_eq!(spread(256), Ps::ZERO);
        let line = Channel::new(13.3e9).time(64);
        assert_eq!(spread(256 * 32), line * 31);
    }
}
