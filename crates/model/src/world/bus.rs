//! What all machines of a world share: the event queue, packets under way, the cables and switch between them.

use std::net::IpAddr;

use crate::event::Queue;
use crate::time::Ps;

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A NIC sees a command of the host, or its doorbell.
    Command {
        /// Whose NIC.
        machine: u16,
        /// Number of the command.
        post: u32,
    },
    /// A NIC has the whole command.
    Take {
        /// Whose NIC.
        machine: u16,
        /// Number of the command.
        post: u32,
    },
    /// A NIC may build more packets.
    Transmit {
        /// Whose NIC.
        machine: u16,
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
        /// Whose NIC.
        machine: u16,
    },
    /// Software sees that something has completed.
    Notice {
        /// Whose software.
        machine: u16,
        /// Number of the notice.
        notice: u32,
    },
    /// A kernel has what it waited for.
    Wake {
        /// Where it runs.
        place: u8,
        /// Number of the kernel at that place.
        task: u32,
    },
    /// A place has worked through a chunk of a payload stream.
    Chunk {
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
        /// Number of the call.
        call: u32,
    },
}

/// A packet between two NICs: BTH to ICRC.
#[derive(Debug, Default)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The machine that it goes to.
    pub to: u16,
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

/// The part of a world that its machines share.
pub struct Bus {
    /// What will happen.
    pub queue: Queue<Event>,
    packets: Vec<Packet>,
    free: Vec<u32>,
    /// Everything that happened, if somebody wants to know.
    pub trace: Option<Vec<TraceEntry>>,
    /// Events taken so far.
    pub events: u64,
}

impl Default for Bus {
    fn default() -> Self {
        Self::new()
    }
}

impl Bus {
    /// Nothing under way.
    pub fn new() -> Self {
        Self { queue: Queue::new(), packets: Vec::new(), free: Vec::new(), trace: None, events: 0 }
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

    /// Puts a packet under way: a number by which events know it.
    pub fn launch(&mut self, bytes: &[u8], to: u16, from: IpAddr, dst: IpAddr) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.packets.push(Packet::default());
            self.packets.len() as u32 - 1
        });
        let packet = &mut self.packets[number as usize];
        packet.bytes.clear();
        packet.bytes.extend_from_slice(bytes);
        (packet.to, packet.from, packet.dst) = (to, Some(from), Some(dst));
        number
    }

    /// A packet under way.
    pub fn packet(&self, number: u32) -> &Packet {
        &self.packets[number as usize]
    }

    /// Takes a packet off its way; give it back with [`Bus::land`].
    pub fn take(&mut self, number: u32) -> Packet {
        std::mem::take(&mut self.packets[number as usize])
    }

    /// The packet has arrived.
    pub fn land(&mut self, number: u32, packet: Packet) {
        self.packets[number as usize] = packet;
        self.free.push(number);
    }
}
