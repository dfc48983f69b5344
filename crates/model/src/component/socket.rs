//! The link between a host's two sockets: what a core or a device of one does with the other's memory (NUMA).
//!
//! A load that misses goes there and its line comes back, which takes a hop both ways in all; data share the link's
//! bandwidth. Snoops and their filters are in the hop.

use crate::platform;
use crate::resource::{Channel, Usage};
use crate::time::Ps;

/// A link.
#[derive(Clone, Debug)]
pub struct SocketLink {
    /// Data towards the socket that asks, and away from it.
    inwards: Channel,
    outwards: Channel,
    hop: Ps,
}

impl SocketLink {
    /// An idle link.
    pub fn new(sockets: &platform::Sockets) -> Self {
        let link = Channel::new(sockets.bandwidth).ordered(sockets.order);
        Self { inwards: link.clone(), outwards: link, hop: Ps(sockets.hop) }
    }

    /// Bytes whose first and last line the other socket's memory has at these times: when they are here.
    pub fn read(&mut self, there: (Ps, Ps), bytes: u64) -> (Ps, Ps) {
        let (first, last) = self.inwards.pass(there, bytes);
        (first + self.hop, last + self.hop)
    }

    /// Bytes for the other socket's memory, which nobody waits for: when the link has taken them.
    pub fn write(&mut self, at: Ps, bytes: u64) -> Ps {
        self.outwards.serve(at, bytes).1
    }

    /// How busy both directions were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 2] {
        [self.inwards.usage("link from the other socket", span), self.outwards.usage("link to the other socket", span)]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.inwards.reset();
        self.outwards.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Order;

    fn link() -> SocketLink {
        SocketLink::new(&platform::Sockets { hop: 58_000, bandwidth: 40e9, order: Order::InTurn })
    }

    #[test]
    fn a_line_takes_the_hop_and_many_take_the_bandwidth() {
        // A line passes in 1.6 ns, which its memory's own transfer hides but for the start.
        let (first, last) = link().read((Ps(90_000), Ps(90_000)), 64);
        assert!(first <= last && (148.0..150.0).contains(&last.as_ns()), "{first} {last}");
        // 1000 pages at once: 40 GB/s, and the hop once.
        let mut link = link();
        let end = (0..1000).map(|_| link.read((Ps::ZERO, Ps::ZERO), 4096).1).max().unwrap();
        let by_hand = 1000.0 * 4096.0 / 40.0 + 58.0;
        assert!((end.as_ns() / by_hand - 1.0).abs() < 0.01, "{end}, by hand {by_hand} ns");
        assert!(link.usage(end)[0].busy > 0.99 && link.usage(end)[1].busy == 0.0);
    }

    #[test]
    fn both_directions_are_apart() {
        let mut link = link();
        assert_eq!(link.write(Ps::ZERO, 4096), Ps(102_400));
        assert_eq!(link.read((Ps::ZERO, Ps::ZERO), 64).0, self::link().read((Ps::ZERO, Ps::ZERO), 64).0);
    }
}
