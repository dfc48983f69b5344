//! One direction of an Ethernet link.

use crate::platform;
use crate::resource::{Channel, Order, Usage};
use crate::time::Ps;

/// Bytes on the wire that a frame has beside its payload: preamble 8, header 14, FCS 4, gap 12 (IEEE 802.3).
pub const FRAME_OVERHEAD: u64 = 38;
/// Bytes on the wire of the shortest frame: 64, preamble and gap.
const LEAST: u64 = 84;

/// What a link is like.
#[derive(Clone, Debug, PartialEq)]
pub struct EthernetParams {
    /// Bytes a second.
    pub rate_bytes_per_s: f64,
    /// MAC, PHY of both sides and cable, one way.
    pub latency_ps: u64,
    /// Bytes on the wire that a packet has beside what [`Ethernet::send`] is told: at least [`FRAME_OVERHEAD`], with the
    /// headers that the caller does not count.
    pub overhead_bytes: u64,
    /// How its queues are served.
    pub order: Order,
}

impl From<&platform::Ethernet> for EthernetParams {
    fn from(ethernet: &platform::Ethernet) -> Self {
        Self {
            rate_bytes_per_s: ethernet.rate,
            latency_ps: ethernet.latency,
            overhead_bytes: ethernet.overhead,
            order: ethernet.order,
        }
    }
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Ethernet {
    wire: Channel,
    rate: f64,
    latency: Ps,
    overhead: u64,
}

impl Ethernet {
    /// An idle link.
    pub fn new(params: &EthernetParams) -> Self {
        let wire = Channel::new(params.rate_bytes_per_s).ordered(params.order);
        let (rate, latency) = (params.rate_bytes_per_s, Ps(params.latency_ps));
        Self { wire, rate, latency, overhead: params.overhead_bytes }
    }

    /// From now on it has this part of its rate, 1 for all of it.
    pub fn cap(&mut self, part: f64) {
        self.wire.set_rate(self.rate * part);
    }

    /// Sends a packet that is ready at `at`: when its first and its last bit arrive.
    pub fn send(&mut self, at: Ps, bytes: u64) -> (Ps, Ps) {
        self.pass((at, at), bytes)
    }

    /// Sends a packet whose first and last bit are ready at these times, cut through.
    pub fn pass(&mut self, at: (Ps, Ps), bytes: u64) -> (Ps, Ps) {
        let (first, last) = self.wire.pass(at, self.on_wire(bytes));
        (first + self.latency, last + self.latency)
    }

    /// Bytes that a packet takes on the wire.
    pub fn on_wire(&self, bytes: u64) -> u64 {
        (bytes + self.overhead).max(LEAST)
    }

    /// Bytes on the wire since the last reset, preambles and gaps included.
    pub fn bytes(&self) -> u64 {
        self.wire.bytes()
    }

    /// How busy it was over `span`.
    pub fn usage(&self, span: Ps) -> Usage {
        self.wire.usage("wire", span)
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.wire.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_take_their_bytes_and_gaps() {
        // 10 Gb/s is 0.8 ns a byte: 1500 B and 38 B take 1230.4 ns; a byte takes the 84 B of the shortest frame.
        let params = EthernetParams {
            rate_bytes_per_s: 1.25e9,
            latency_ps: 500_000,
            overhead_bytes: FRAME_OVERHEAD,
            order: Order::InTurn,
        };
        let mut link = Ethernet::new(&params);
        assert_eq!(link.send(Ps::ZERO, 1500), (Ps(500_000), Ps(1_730_400)));
        assert_eq!(link.send(Ps::ZERO, 1).1, Ps(1_230_400 + 67_200 + 500_000));
        assert_eq!(link.bytes(), 1538 + 84);
    }

    #[test]
    fn halving_the_rate_doubles_the_time_on_the_wire_only() {
        let params = EthernetParams {
            rate_bytes_per_s: 0.625e9,
            latency_ps: 500_000,
            overhead_bytes: FRAME_OVERHEAD,
            order: Order::InTurn,
        };
        assert_eq!(Ethernet::new(&params).send(Ps::ZERO, 1500).1, Ps(2 * 1_230_400 + 500_000));
        let mut capped = Ethernet::new(&EthernetParams { rate_bytes_per_s: 1.25e9, ..params });
        capped.cap(0.5);
        assert_eq!(capped.send(Ps::ZERO, 1500).1, Ps(2 * 1_230_400 + 500_000));
        capped.cap(1.0);
        assert_eq!(capped.send(Ps(10_000_000), 1500).1, Ps(10_000_000 + 1_230_400 + 500_000));
    }

    #[test]
    fn small_messages_reach_the_ceiling_of_the_wire() {
        // 25 Gb/s: responses of 8 B with 82 B of headers are 90 B: 28.8 ns, 34.7 M/s.
        let params =
            EthernetParams { rate_bytes_per_s: 3.125e9, latency_ps: 0, overhead_bytes: 82, order: Order::InTurn };
        let mut link = Ethernet::new(&params);
        let last = (0..1000).map(|_| link.send(Ps::ZERO, 8).1).max();
        assert_eq!(last, Some(Ps(28_800_000)));
        assert_eq!(link.usage(Ps(57_600_000)).busy, 0.5);
    }
}
