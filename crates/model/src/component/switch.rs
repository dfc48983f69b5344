//! An output port of a switch: a buffer of some bytes before a link.

use crate::platform;
use crate::resource::{Channel, Order, Usage};
use crate::time::Ps;

/// What a port does with a packet that its buffer has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Drops it.
    Drop,
    /// Holds it back at its sender until there is room, and with it what comes behind (priority flow control).
    Pause,
}

/// What a port is like.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchParams {
    /// First bit in to first bit out of an idle port.
    pub latency_ps: u64,
    /// Bytes a second of the link behind the port.
    pub rate_bytes_per_s: f64,
    /// Bytes that may wait at the port, the packet being sent included.
    pub buffer_bytes: u64,
    /// What becomes of packets beyond.
    pub when_full: WhenFull,
    /// How its queues are served.
    pub order: Order,
}

impl SwitchParams {
    /// From the sections of a switch and of the links that join it.
    pub fn new(switch: &platform::Switch, link: &platform::Ethernet, when_full: WhenFull) -> Self {
        Self {
            latency_ps: switch.latency,
            rate_bytes_per_s: link.rate,
            buffer_bytes: switch.buffer,
            when_full,
            order: switch.order,
        }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// Its first and its last bit leave the port at these times.
    Sent(Ps, Ps),
    /// There was no room.
    Dropped,
}

/// An output port.
#[derive(Clone, Debug)]
pub struct Port {
    link: Channel,
    latency: Ps,
    /// What the link takes for a full buffer.
    room: Ps,
    when_full: WhenFull,
    dropped: u64,
    paused: Ps,
}

impl Port {
    /// An idle port.
    pub fn new(params: &SwitchParams) -> Self {
        let link = Channel::new(params.rate_bytes_per_s).ordered(params.order);
        Self {
            room: link.time(params.buffer_bytes),
            latency: Ps(params.latency_ps),
            when_full: params.when_full,
            dropped: 0,
            paused: Ps::ZERO,
            link,
        }
    }

    /// Forwards a packet of so many bytes on the wire whose first and last bit come in at these times. A packet is cut
    /// through: its last bit leaves the latency after it came in, if the port is idle.
    pub fn forward(&mut self, (first, last): (Ps, Ps), bytes: u64) -> Forward {
        // The link is never idle while anything waits: what waits is what it still has to send.
        let arrived = first + self.latency;
        let over = (self.link.end() - arrived + self.link.time(bytes)) - self.room;
        if over > Ps::ZERO {
            match self.when_full {
                WhenFull::Drop => {
                    self.dropped += 1;
                    return Forward::Dropped;
                }
                WhenFull::Pause => self.paused += over,
            }
        }
        let (first, last) = self.link.pass((arrived, last + self.latency), bytes);
        Forward::Sent(first, last)
    }

    /// Bytes' worth of time that waits at `at`.
    pub fn backlog(&self, at: Ps) -> Ps {
        self.link.end() - at
    }

    /// Packets dropped since the last reset.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Time for which packets were held back at their senders since the last reset, all together.
    pub fn paused(&self) -> Ps {
        self.paused
    }

    /// How busy the link was over `span`.
    pub fn usage(&self, span: Ps) -> Usage {
        self.link.usage("switch port", span)
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.link.reset();
        (self.dropped, self.paused) = (0, Ps::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 Gb/s, 0.8 ns a byte; room for four packets of 1000 B.
    fn port(when_full: WhenFull) -> Port {
        Port::new(&SwitchParams {
            latency_ps: 400_000,
            rate_bytes_per_s: 1.25e9,
            buffer_bytes: 4000,
            when_full,
            order: Order::InTurn,
        })
    }

    #[test]
    fn a_packet_takes_the_latency_and_its_bytes() {
        let sent = |first, last| Forward::Sent(Ps(first), Ps(last));
        assert_eq!(port(WhenFull::Drop).forward((Ps::ZERO, Ps::ZERO), 1000), sent(400_000, 1_200_000));
        // What comes in more slowly leaves no sooner than it has come.
        assert_eq!(port(WhenFull::Drop).forward((Ps::ZERO, Ps(2_000_000)), 1000), sent(400_000, 2_400_000));
    }

    #[test]
    fn incast_beyond_the_buffer_is_dropped() {
        // Ten packets at once: four fit, one after the other by 800 ns. 800 ns later there is room for one.
        let mut port = port(WhenFull::Drop);
        let out: Vec<_> = (0..10).map(|_| port.forward((Ps::ZERO, Ps::ZERO), 1000)).collect();
        let sent = |n: u64| Forward::Sent(Ps(400_000 + (n - 1) * 800_000), Ps(400_000 + n * 800_000));
        assert_eq!(out[..4], [sent(1), sent(2), sent(3), sent(4)]);
        assert!(out[4..].iter().all(|out| *out == Forward::Dropped));
        assert_eq!(port.forward((Ps(800_000), Ps(800_000)), 1000), sent(5));
        assert_eq!((port.dropped(), port.forward((Ps(800_000), Ps(800_000)), 1000)), (6, Forward::Dropped));
    }

    #[test]
    fn flow_control_loses_nothing_and_says_how_long_senders_waited() {
        // The fifth to tenth of ten wait 800, 1600 .. 4800 ns for room: 16.8 us together.
        let mut port = port(WhenFull::Pause);
        let last = (0..10).map(|_| port.forward((Ps::ZERO, Ps::ZERO), 1000)).last();
        assert_eq!(last, Some(Forward::Sent(Ps(400_000 + 9 * 800_000), Ps(400_000 + 10 * 800_000))));
        assert_eq!((port.dropped(), port.paused()), (0, Ps(16_800_000)));
    }
}
