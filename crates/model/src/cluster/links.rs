//! What joins the nodes: PCIe between host and NIC, and a network of one switch, made of the components that all machines
//! are made of. Messages are cut through: the next link begins when the first byte is there.

use super::costs::Costs;
use crate::component::ethernet::{Ethernet, EthernetParams};
use crate::component::pcie::{Pcie, PcieParams, Way};
use crate::component::switch::{Forward, Port, SwitchParams, WhenFull};
use crate::time::Ps;

/// A node's PCIe, its cable to the switch, and the switch's port to it.
#[derive(Clone, Debug)]
struct Ports {
    pcie: Pcie,
    /// Beside that, for what leaves the vFIFO and the dFIFO, if they have it for themselves.
    drains: [Pcie; 2],
    wire: Ethernet,
    port: Port,
}

/// When a message's first and last byte are there.
pub(super) type Span = (Ps, Ps);

/// All nodes' links.
#[derive(Clone, Debug)]
pub(super) struct Links {
    ports: Vec<Ports>,
}

impl Links {
    pub(super) fn new(costs: &Costs, nodes: usize) -> Self {
        let Costs { wire_latency, wire_bandwidth, wire_overhead, link_orders: (_, order), .. } = *costs;
        let wire = EthernetParams {
            rate_bytes_per_s: wire_bandwidth,
            latency_ps: wire_latency,
            overhead_bytes: wire_overhead,
            order,
        };
        // The latency between two NICs has the switch in it, and nothing is lost for want of room.
        let port = SwitchParams {
            latency_ps: 0,
            rate_bytes_per_s: wire_bandwidth,
            buffer_bytes: u64::MAX,
            when_full: WhenFull::Pause,
            order,
        };
        let pcie = Pcie::new(&pcie(costs));
        let drains = [pcie.clone(), pcie.clone()];
        let ports = Ports { pcie, drains, wire: Ethernet::new(&wire), port: Port::new(&port) };
        Self { ports: vec![ports; nodes] }
    }

    /// Over a node's PCIe.
    pub(super) fn pcie(&mut self, node: u8, way: Way, at: Span, bytes: u64) -> Span {
        self.ports[usize::from(node)].pcie.pass(way, at, bytes)
    }

    /// Up a node's PCIe, by a way that only one of the FIFOs has: the vFIFO, 0, or the dFIFO, 1.
    pub(super) fn drain(&mut self, node: u8, fifo: usize, at: Span, bytes: u64) -> Span {
        self.ports[usize::from(node)].drains[fifo].pass(Way::Up, at, bytes)
    }

    /// From one NIC to another.
    pub(super) fn wire(&mut self, from: u8, to: u8, at: Span, bytes: u64) -> Span {
        let wire = &mut self.ports[usize::from(from)].wire;
        let (bytes, at) = (wire.on_wire(bytes), wire.pass(at, bytes));
        match self.ports[usize::from(to)].port.forward(at, bytes) {
            Forward::Sent(first, last) => (first, last),
            // A port that holds senders back drops nothing.
            Forward::Dropped => at,
        }
    }
}

/// MINOS gives the latency of a traversal without the bytes (Table III), and a bandwidth that messages have to themselves:
/// the component's latency has the transfer of a line in it, and no TLP has a header here.
fn pcie(costs: &Costs) -> PcieParams {
    let mut params = PcieParams {
        read_ps: 0,
        write_ps: 0,
        mmio_ps: 0,
        bandwidth_bytes_per_s: costs.pcie_bandwidth,
        tlp_overhead_bytes: 0,
        max_payload_bytes: u64::MAX,
        max_request_bytes: u64::MAX,
        tags: 1,
        order: costs.link_orders.0,
    };
    params.write_ps = costs.pcie_latency + params.line().0;
    params
}
