//! PCI Express between a device and its host: transactions cut into packets (TLPs), tags, posted writes, doorbells.
//!
//! Each direction is a channel of its own. A DMA read sends requests up and gets completions with data down; a DMA write
//! goes up, a store of a core to the device comes down, and nobody waits for an answer to either. Sizes and headers as
//! in Neugebauer et al., SIGCOMM 2018. Flow-control credits and ordering rules are not modelled.

use crate::platform;
use crate::resource::{Channel, Order, Pool, Usage};
use crate::time::{Ps, up};

/// What a PCIe connection is like.
#[derive(Clone, Debug, PartialEq)]
pub struct PcieParams {
    /// A DMA read of 64 B by an idle device, from its request to the last byte.
    pub read_ps: u64,
    /// A posted DMA write of 64 B until a core can see it.
    pub write_ps: u64,
    /// A store of 8 B by a core until the device sees it.
    pub mmio_ps: u64,
    /// Bytes a second in each direction, headers of TLPs included.
    pub bandwidth_bytes_per_s: f64,
    /// Bytes of a TLP beside its payload.
    pub tlp_overhead_bytes: u64,
    /// Payload of a TLP at most (MPS).
    pub max_payload_bytes: u64,
    /// Bytes that one read request asks for at most (MRRS).
    pub max_request_bytes: u64,
    /// Read requests under way at most.
    pub tags: usize,
    /// How its queues are served.
    pub order: Order,
}

impl From<&platform::Pcie> for PcieParams {
    fn from(pcie: &platform::Pcie) -> Self {
        Self {
            read_ps: pcie.read_latency,
            write_ps: pcie.write_latency,
            mmio_ps: pcie.mmio_latency,
            bandwidth_bytes_per_s: pcie.bandwidth,
            tlp_overhead_bytes: pcie.tlp_overhead,
            max_payload_bytes: pcie.max_payload,
            max_request_bytes: pcie.max_request,
            tags: pcie.tags as usize,
            order: pcie.order,
        }
    }
}

impl PcieParams {
    /// Bytes that a transfer takes on the link: each packet of it has a header. Of sizes that are means, too.
    pub fn on_bus(&self, bytes: f64) -> f64 {
        let packets = up(bytes / self.max_payload_bytes as f64).max(1.0);
        bytes + packets * self.tlp_overhead_bytes as f64
    }

    /// Requests that a read is cut into.
    pub fn requests(&self, bytes: f64) -> f64 {
        up(bytes / self.max_request_bytes as f64).max(1.0)
    }

    /// What the link takes for the line that latencies are given for, header included.
    pub fn line(&self) -> Ps {
        Channel::new(self.bandwidth_bytes_per_s).time(LINE + self.tlp_overhead_bytes)
    }
}

/// Bytes a second that `lanes` of a generation, 1 to 5, carry each way, encoding taken off (PCI Express Base
/// Specification: 8b/10b up to 5 GT/s, 128b/130b from 8 GT/s on). `None` for other generations.
pub fn raw_bandwidth(generation: u32, lanes: u32) -> Option<f64> {
    let (giga_transfers, coding) = match generation {
        1 => (2.5, 0.8),
        2 => (5.0, 0.8),
        3 => (8.0, 128.0 / 130.0),
        4 => (16.0, 128.0 / 130.0),
        5 => (32.0, 128.0 / 130.0),
        _ => return None,
    };
    Some(giga_transfers * 1e9 / 8.0 * coding * f64::from(lanes))
}

/// Bytes of the accesses that latencies are given for.
const LINE: u64 = 64;
/// Bytes of a doorbell.
pub const DOORBELL: u64 = 8;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the host to the device.
    Down,
    /// From the device to the host.
    Up,
}

/// A device's connection to its host.
#[derive(Clone, Debug)]
pub struct Pcie {
    params: PcieParams,
    /// Device to host: read requests, DMA writes.
    up: Channel,
    /// Host to device: completions with data, stores of cores.
    down: Channel,
    tags: Pool,
    /// Latencies without the transfers that they contain.
    read_rest: Ps,
    write_rest: Ps,
    mmio_rest: Ps,
}

impl Pcie {
    /// An idle connection.
    pub fn new(params: &PcieParams) -> Self {
        let link = Channel::new(params.bandwidth_bytes_per_s).ordered(params.order);
        let tlp = |bytes: u64| link.time(bytes + params.tlp_overhead_bytes);
        Self {
            read_rest: Ps(params.read_ps) - tlp(0) - tlp(LINE),
            write_rest: Ps(params.write_ps) - tlp(LINE),
            mmio_rest: Ps(params.mmio_ps) - tlp(DOORBELL),
            tags: Pool::new(params.tags).ordered(params.order),
            up: link.clone(),
            down: link,
            params: params.clone(),
        }
    }

    /// The device reads host memory: when the first line and the last byte are there. Each request has a tag.
    pub fn read(&mut self, at: Ps, bytes: u64) -> (Ps, Ps) {
        let (mut first, mut last) = (None, at);
        let mut left = bytes.max(1);
        while left > 0 {
            let part = left.min(self.params.max_request_bytes.max(1));
            left -= part;
            let begun = self.tags.acquire(at);
            let (_, sent) = self.up.serve(begun, self.params.tlp_overhead_bytes);
            let (start, done) = self.down.serve(sent + self.read_rest, self.on_bus(part));
            self.tags.release(begun, done);
            let line = start + self.down.time(part.min(LINE) + self.params.tlp_overhead_bytes);
            first = first.or(Some(line));
            last = last.max(done);
        }
        (first.unwrap_or(last), last)
    }

    /// The device writes host memory: when the link has taken the last byte, and when a core can see it.
    pub fn write(&mut self, at: Ps, bytes: u64) -> (Ps, Ps) {
        let taken = self.up.serve(at, self.on_bus(bytes)).1;
        (taken, taken + self.write_rest)
    }

    /// A message whose first and last byte are there at these times is handed to the other side, cut through: when its
    /// first and last byte are there.
    pub fn pass(&mut self, way: Way, at: (Ps, Ps), bytes: u64) -> (Ps, Ps) {
        let bytes = self.on_bus(bytes);
        let channel = match way {
            Way::Down => &mut self.down,
            Way::Up => &mut self.up,
        };
        let (first, last) = channel.pass(at, bytes);
        (first + self.write_rest, last + self.write_rest)
    }

    /// Data of somebody else's access, whose latency is known, go one way from `at` on: when the first line and the last
    /// byte have.
    pub fn carry(&mut self, way: Way, at: Ps, bytes: u64) -> (Ps, Ps) {
        let (line, bytes) = (self.line(), self.on_bus(bytes));
        let channel = match way {
            Way::Down => &mut self.down,
            Way::Up => &mut self.up,
        };
        let (start, last) = channel.serve(at, bytes);
        ((start + line).min(last), last)
    }

    /// A core writes to the device: when the device sees the last byte. A doorbell is [`DOORBELL`] bytes; a core that
    /// combines writes sends a command of 64 B in one TLP.
    pub fn mmio_write(&mut self, at: Ps, bytes: u64) -> Ps {
        self.down.serve(at, self.on_bus(bytes)).1 + self.mmio_rest
    }

    /// What the link takes for a line.
    pub fn line(&self) -> Ps {
        self.params.line()
    }

    /// Bytes that a transfer takes on the link.
    pub fn on_bus(&self, bytes: u64) -> u64 {
        self.params.on_bus(bytes as f64) as u64
    }

    /// How busy both directions and the tags were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 3] {
        [
            self.up.usage("PCIe to host", span),
            self.down.usage("PCIe to device", span),
            self.tags.usage("PCIe tags", span),
        ]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.up.reset();
        self.down.reset();
        self.tags.reset();
    }
}

#[cfg(test)]
impl PcieParams {
    /// 8 GB/s, 125 ps a byte, and StRoM's read round trip of 1.5 us.
    pub(crate) fn example() -> Self {
        Self {
            read_ps: 1_500_000,
            write_ps: 300_000,
            mmio_ps: 250_000,
            bandwidth_bytes_per_s: 8e9,
            tlp_overhead_bytes: 24,
            max_payload_bytes: 256,
            max_request_bytes: 512,
            tags: 64,
            order: Order::InTurn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> PcieParams {
        PcieParams::example()
    }

    #[test]
    fn generations_and_lanes() {
        // 8 GT/s x 128/130 / 8 b x 8 lanes = 7.877 GB/s.
        assert!(raw_bandwidth(3, 8).is_some_and(|rate| (rate / 7.877e9 - 1.0).abs() < 1e-4));
        assert_eq!(raw_bandwidth(4, 8), raw_bandwidth(3, 16));
        assert_eq!(raw_bandwidth(2, 4), Some(2e9));
        assert_eq!(raw_bandwidth(6, 16), None);
    }

    #[test]
    fn a_read_takes_its_round_trip_and_the_transfer_of_what_is_beyond_a_line() {
        let mut pcie = Pcie::new(&params());
        assert_eq!(pcie.read(Ps::ZERO, 64), (Ps(1_500_000), Ps(1_500_000)));
        // 4 KB are 8 requests and 16 completions of 256 + 24 B: 4480 B or 560 ns down, of which the 88 B or 11 ns of a
        // line are in the 1500 ns.
        let at = Ps(1_000_000_000);
        let (first, last) = pcie.read(at, 4096);
        assert_eq!((first - at, last - at), (Ps(1_500_000), Ps(2_049_000)));
    }

    #[test]
    fn doubling_the_round_trip_adds_it_once_to_a_read() {
        let twice = PcieParams { read_ps: 3_000_000, ..params() };
        assert_eq!(Pcie::new(&twice).read(Ps::ZERO, 4096).1, Ps(3_549_000));
    }

    #[test]
    fn tags_bound_the_rate_of_small_reads() {
        // 80 reads of 64 B with 8 tags are ten rounds of 1500 ns; the data of a round follow each other by 11 ns.
        for (read_ps, rounds) in [(1_500_000, 15_000_000), (3_000_000, 30_000_000)] {
            let mut pcie = Pcie::new(&PcieParams { tags: 8, read_ps, ..params() });
            let last = (0..80).map(|_| pcie.read(Ps::ZERO, 64).1).max();
            assert_eq!(last, Some(Ps(rounds + 7 * 11_000)));
            let usages = pcie.usage(Ps(rounds));
            assert_eq!(crate::resource::binding(&usages).map(|usage| usage.name), Some("PCIe tags"));
        }
    }

    #[test]
    fn writes_are_posted_at_the_rate_of_the_link() {
        // 1024 B are 4 TLPs, 1120 B: 140 ns. The second of two waits for the first; the latency overlaps.
        let mut pcie = Pcie::new(&params());
        assert_eq!(pcie.write(Ps::ZERO, 64), (Ps(11_000), Ps(300_000)));
        let at = Ps(1_000_000);
        assert_eq!([0, 0].map(|_| pcie.write(at, 1024).0), [at + Ps(140_000), at + Ps(280_000)]);
    }

    #[test]
    fn doorbells_pass_whatever_number_of_reads_waits_for_its_data() {
        // Lines each 20 ns take 55 % of the way down, and 75 of them are under way: those that come back later take no turn of a
        // doorbell, which waits for a line of 11 ns at most.
        let mut pcie = Pcie::new(&PcieParams { tags: 256, ..params() });
        for n in 0..500 {
            let at = Ps(20_000 * n);
            pcie.read(at, 64);
            let seen = pcie.mmio_write(at, DOORBELL) - at;
            assert!(seen <= Ps(250_000 + 11_000), "{seen} with {n} reads before it");
        }
    }

    #[test]
    fn doorbells_pass_while_a_read_waits_for_its_data() {
        let mut pcie = Pcie::new(&params());
        pcie.read(Ps::ZERO, 4096);
        // The completions come after 1.5 us and do not delay what comes down before.
        assert_eq!(pcie.mmio_write(Ps(100_000), DOORBELL), Ps(350_000));
        // A command of 64 B is 56 B or 7 ns longer than a doorbell.
        assert_eq!(pcie.mmio_write(Ps(200_000), 64), Ps(457_000));
    }
}
