//! What all machines of a fabric share: the event queue, packets under way, the network between them.

use std::net::IpAddr;

use super::network::{Network, Step};
use crate::draw::mixed;
use crate::event::WheelQueue;
use crate::time::Ps;

/// What happens at a time. NICs are counted over the whole fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A NIC sees a command of the host, or its doorbell.
    Command {
        /// The NIC.
        nic: u16,
        /// Number of the command.
        post: u32,
    },
    /// A NIC has the whole command.
    Take {
        /// The NIC.
        nic: u16,
        /// Number of the command.
        post: u32,
    },
    /// A NIC may build more packets.
    Transmit {
        /// The NIC.
        nic: u16,
    },
    /// The first bit of a packet is at a port that others share.
    Hop {
        /// Number of the packet.
        packet: u32,
    },
    /// The last bit of a packet has arrived.
    Arrive {
        /// Number of the packet.
        packet: u32,
    },
    /// A NIC has received a packet: its protocol engine takes it.
    Receive {
        /// Number of the packet.
        packet: u32,
    },
    /// A protocol timer runs out.
    Timer {
        /// The NIC.
        nic: u16,
    },
    /// Software sees that something has completed.
    Notice {
        /// The NIC whose software it is.
        nic: u16,
        /// Number of the notice.
        notice: u32,
    },
    /// A kernel has what it waited for.
    Wake {
        /// Number of the place where it runs.
        place: u16,
        /// Number of the kernel at that place.
        task: u32,
    },
    /// A place has worked through a chunk of a payload stream.
    Chunk {
        /// The NIC that received it.
        nic: u16,
        /// The call's id in the NIC's engine, its low half.
        call: u32,
    },
    /// A kernel's answer reaches the NIC's engine.
    Answer {
        /// Number of the answer.
        answer: u32,
    },
    /// A call ends.
    Finish {
        /// Number of the connection.
        connection: u16,
        /// Number of the call on it.
        call: u32,
    },
}

/// A packet between two NICs: BTH to ICRC.
#[derive(Debug, Default)]
pub struct NicPacket {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The NIC that it goes to.
    pub to: u16,
    /// The NIC that sent it, bytes that it takes on the wire, ports behind it, and when its first and last bit are there.
    way: (u16, u32, u16, (Ps, Ps)),
    /// Its sender's address.
    pub from: Option<IpAddr>,
    /// Its receiver's address.
    pub dst: Option<IpAddr>,
}

/// One entry of a trace: when, what, and the packet's bytes if it is about one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// When it happened.
    pub time: Ps,
    /// What happened.
    pub event: Event,
    /// The packet, for [`Event::Receive`].
    pub bytes: Vec<u8>,
}

/// The part of a fabric that its machines share.
pub struct Bus {
    /// What will happen.
    pub queue: WheelQueue<Event>,
    /// Switches, and the ways through them.
    pub network: Network,
    packets: Vec<NicPacket>,
    free: Vec<u32>,
    /// Everything that happened, if somebody wants to know.
    pub trace: Option<Vec<TraceEntry>>,
    /// Events taken so far.
    pub events: u64,
    /// Of 2^64 packets so many are lost.
    loss: u64,
    /// The number of the packet sent last, from one that the seed gives.
    sent: u64,
    /// Packets lost on their way since usage was last forgotten.
    pub lost: u64,
    /// Packets marked at ports, ever.
    pub marked: u64,
}

/// The byte of a packet, and the bit there, by which a link shows the NIC that it met congestion: the BTH's FECN, which the ICRC
/// leaves out.
const FECN: (usize, u8) = (4, 0x80);

impl Bus {
    /// Nothing under way; this part of packets will be lost, which ones the seed says.
    pub fn new(network: Network, (loss, seed): (f64, u64)) -> Self {
        let loss = (loss.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        let (queue, packets, free) = (WheelQueue::new(), Vec::new(), Vec::new());
        Self { queue, network, packets, free, trace: None, events: 0, loss, sent: mixed(seed), lost: 0, marked: 0 }
    }

    /// The next event and its time.
    pub fn take_next(&mut self) -> Option<(Ps, Event)> {
        let (time, event) = self.queue.pop()?;
        self.events += 1;
        if let Some(trace) = &mut self.trace {
            let bytes = match event {
                Event::Receive { packet } => self.packets[packet as usize].bytes.clone(),
                _ => Vec::new(),
            };
            trace.push(TraceEntry { time, event, bytes });
        }
        Some((time, event))
    }

    /// A NIC has sent a packet, of so many bytes on the wire, whose first and last bit are at the other end of its cable at
    /// these times.
    pub fn launch(&mut self, bytes: &[u8], (from, to): (u16, u16), ips: (IpAddr, IpAddr), (wire, at): (u64, (Ps, Ps))) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.packets.push(NicPacket::default());
            self.packets.len() as u32 - 1
        });
        let packet = &mut self.packets[number as usize];
        packet.bytes.clear();
        packet.bytes.extend_from_slice(bytes);
        (packet.to, packet.from, packet.dst) = (to, Some(ips.0), Some(ips.1));
        packet.way = (from, wire as u32, 0, at);
        self.sent = self.sent.wrapping_add(1);
        if self.loss > 0 && mixed(self.sent) < self.loss {
            self.lost += 1;
            self.free.push(number);
            return;
        }
        self.go_on(number, false);
    }

    /// The first bit of a packet is at a port that others share.
    pub fn hop(&mut self, number: u32) {
        self.go_on(number, true);
    }

    fn go_on(&mut self, number: u32, asks: bool) {
        let packet = &mut self.packets[number as usize];
        let (from, wire, hop, at) = packet.way;
        let (step, marked) = self.network.forward((from, packet.to), wire.into(), hop, at, asks);
        if marked && let Some(byte) = packet.bytes.get_mut(FECN.0) {
            self.marked += 1;
            *byte |= FECN.1;
        }
        match step {
            Step::Arrives(last) => self.queue.push(last, Event::Arrive { packet: number }),
            Step::Asks { hop, at } => {
                packet.way = (from, wire, hop, at);
                self.queue.push(at.0, Event::Hop { packet: number });
            }
            Step::Dropped => self.free.push(number),
        }
    }

    /// A packet under way.
    pub fn packet(&self, number: u32) -> &NicPacket {
        &self.packets[number as usize]
    }

    /// Takes a packet off its way; give it back with [`Bus::land`].
    pub fn take(&mut self, number: u32) -> NicPacket {
        std::mem::take(&mut self.packets[number as usize])
    }

    /// The packet has arrived.
    pub fn land(&mut self, number: u32, packet: NicPacket) {
        self.packets[number as usize] = packet;
        self.free.push(number);
    }
}
