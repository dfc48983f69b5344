//! PCIe and network ports. Messages are cut through: the next link begins when the first byte is there.

use super::costs::Costs;
use crate::resource::Channel;
use crate::time::Ps;

/// Which way over PCIe.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pcie {
    /// From the host to the NIC.
    Down,
    /// From the NIC to the host.
    Up,
}

/// A node's links, each way.
#[derive(Clone, Debug)]
struct Ports {
    down: Channel,
    up: Channel,
    out: Channel,
    inn: Channel,
}

/// When a message's first and last byte are there.
pub(super) type Span = (Ps, Ps);

/// All nodes' links.
#[derive(Clone, Debug)]
pub(super) struct Links {
    ports: Vec<Ports>,
    pcie_latency: Ps,
    wire_latency: Ps,
    overhead: u64,
}

impl Links {
    pub(super) fn new(costs: &Costs, nodes: usize) -> Self {
        let (pcie, wire) = (Channel::new(costs.pcie_bandwidth), Channel::new(costs.wire_bandwidth));
        let ports = Ports { down: pcie.clone(), up: pcie, out: wire.clone(), inn: wire };
        Self {
            ports: vec![ports; nodes],
            pcie_latency: Ps(costs.pcie_latency),
            wire_latency: Ps(costs.wire_latency),
            overhead: costs.wire_overhead,
        }
    }

    /// Over a node's PCIe.
    pub(super) fn pcie(&mut self, node: u8, way: Pcie, at: Span, bytes: u64) -> Span {
        let ports = &mut self.ports[usize::from(node)];
        let channel = match way {
            Pcie::Down => &mut ports.down,
            Pcie::Up => &mut ports.up,
        };
        through(channel, at, bytes, self.pcie_latency)
    }

    /// From one NIC to another.
    pub(super) fn wire(&mut self, from: u8, to: u8, at: Span, bytes: u64) -> Span {
        let bytes = bytes + self.overhead;
        let arrives = through(&mut self.ports[usize::from(from)].out, at, bytes, self.wire_latency);
        through(&mut self.ports[usize::from(to)].inn, arrives, bytes, Ps::ZERO)
    }
}

fn through(channel: &mut Channel, (first, last): Span, bytes: u64, latency: Ps) -> Span {
    let (start, end) = channel.serve(first, bytes);
    (start + latency, end.max(last) + latency)
}
