//! The baseline: nodes with NICs of their own, a ToR switch in each rack, and a link between these.

use super::Event;
use super::flow::Packet;
use crate::component::ethernet::{Ethernet, EthernetParams};
use crate::component::switch::{Forward, Port, SwitchParams, WhenFull};
use crate::event::WheelQueue;
use crate::platform::{Platform, RackCosts};
use crate::resource::Usage;
use crate::time::Ps;

/// The network of the baseline.
pub(super) struct Tor {
    /// Nodes of a rack.
    nodes: usize,
    /// What nodes send.
    nics: Vec<Ethernet>,
    /// Ports to nodes, and to the other rack.
    down: Vec<Port>,
    up: Vec<Port>,
    hop: Ps,
    overhead: u64,
    /// Packets under way between two ports: their last bit.
    last: Vec<Ps>,
}

impl Tor {
    /// With so many NICs of a rate at each node, taken together. `None` if the platform has no switch.
    pub fn new(platform: &Platform, costs: &RackCosts, nodes: usize, rate: f64, overhead: u64) -> Option<Self> {
        let switch = platform.switch.as_ref()?;
        let hop = platform.nic.as_ref()?.ethernet.latency;
        let order = platform.nic.as_ref()?.ethernet.order;
        let wire = EthernetParams { rate_bytes_per_s: rate, latency_ps: hop, overhead_bytes: overhead, order };
        let port = |rate| {
            Port::new(&SwitchParams {
                latency_ps: switch.latency,
                rate_bytes_per_s: rate,
                buffer_bytes: switch.buffer,
                when_full: WhenFull::Drop,
                order: switch.order,
            })
        };
        Some(Self {
            nodes,
            nics: vec![Ethernet::new(&wire); 2 * nodes],
            down: vec![port(rate); 2 * nodes],
            up: vec![port(rate * costs.uplinks as f64); 2],
            hop: Ps(hop),
            overhead,
            last: Vec::new(),
        })
    }

    /// A node sends a packet: when its last bit has left.
    pub fn send(
        &mut self,
        now: Ps,
        (number, packet): (u32, &Packet),
        node: usize,
        queue: &mut WheelQueue<Event>,
    ) -> Ps {
        let (first, last) = self.nics[node].send(now, packet.len.into());
        self.keep(number, last);
        queue.push(first, Event::AtSwitch(number));
        last - self.hop
    }

    /// A packet's first bit is at its rack's switch. False: it was dropped.
    pub fn at_switch(
        &mut self,
        now: Ps,
        (number, packet): (u32, &Packet),
        (from, to): (usize, usize),
        queue: &mut WheelQueue<Event>,
    ) -> bool {
        let (rack, far) = (from / self.nodes, to / self.nodes);
        if rack == far {
            return self.at_port(now, (number, packet), to, queue);
        }
        let bytes = self.on_wire(packet);
        match self.up[rack].forward((now, self.last[number as usize]), bytes) {
            Forward::Sent(first, last) => {
                self.keep(number, last + self.hop);
                queue.push(first + self.hop, Event::AtPort(number));
                true
            }
            Forward::Dropped => false,
        }
    }

    /// A packet's first bit is at the port to its node. False: it was dropped.
    pub fn at_port(
        &mut self,
        now: Ps,
        (number, packet): (u32, &Packet),
        to: usize,
        queue: &mut WheelQueue<Event>,
    ) -> bool {
        let bytes = self.on_wire(packet);
        match self.down[to].forward((now, self.last[number as usize]), bytes) {
            Forward::Sent(_, last) => {
                queue.push(last, Event::Arrive(number));
                true
            }
            Forward::Dropped => false,
        }
    }

    fn on_wire(&self, packet: &Packet) -> u64 {
        (u64::from(packet.len) + self.overhead).max(84)
    }

    fn keep(&mut self, number: u32, last: Ps) {
        if self.last.len() <= number as usize {
            self.last.resize(number as usize + 1, Ps::ZERO);
        }
        self.last[number as usize] = last;
    }

    /// Packets that no port had room for.
    pub fn dropped(&self) -> u64 {
        self.down.iter().chain(&self.up).map(Port::dropped).sum()
    }

    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        let up = self.up.iter().map(|port| Usage { name: "link between the racks", ..port.usage(span) });
        let down = self.down.iter().map(|port| Usage { name: "port to a node", ..port.usage(span) });
        let nics = self.nics.iter().map(|nic| Usage { name: "a node's NIC", ..nic.usage(span) });
        up.chain(down).chain(nics).collect()
    }
}
