//! A link that tells of every packet.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use remora_wire::Bth;

use super::{Link, LinkKind, forward};

/// Hears of packets, on the thread that drives the link: it should be quick.
pub type Tracer = Arc<dyn Fn(&Passed<'_>) + Send + Sync>;

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The link has taken it.
    Sent,
    /// The link hands it over.
    Received,
}

/// A packet that went by. As text it is a line: `udp > 127.0.0.2 RcWriteOnly qp 0x000012 psn 7 ack 84 B`.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    /// Over which link.
    pub link: LinkKind,
    /// Which way it went.
    pub direction: Direction,
    /// To whom, or from whom. To a multicast group it is the group if sent, the sender if received.
    pub peer: IpAddr,
    /// From BTH to ICRC.
    pub packet: &'a [u8],
}

impl fmt::Display for Passed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = match self.direction {
            Direction::Sent => '>',
            Direction::Received => '<',
        };
        write!(f, "{} {arrow} {} ", self.link, self.peer)?;
        match Bth::parse(self.packet) {
            Ok(Bth { opcode, dest_qp, psn, ack_req, .. }) => {
                let ack = if ack_req { " ack" } else { "" };
                write!(f, "{opcode:?} qp {dest_qp:#08x} psn {}{ack}", psn.get())?;
            }
            Err(e) => write!(f, "({e})")?,
        }
        write!(f, " {} B", self.packet.len())
    }
}

/// A link whose packets a [`Tracer`] hears of: those it sends when it has taken them, those it receives before anybody
/// else sees them.
pub struct Traced<L> {
    inner: L,
    tracer: Tracer,
}

impl<L: Link> Traced<L> {
    /// Wraps `inner`.
    pub fn new(inner: L, tracer: Tracer) -> Traced<L> {
        Traced { inner, tracer }
    }
}

impl<L: Link> Link for Traced<L> {
    forward!(self => self.inner; kind max_mtu reach look_ahead admit join leave wait_fds arm disarm stats);

    fn send(&mut self, to: IpAddr, bytes: &mut [u8], lens: &[u16]) -> io::Result<usize> {
        let taken = self.inner.send(to, bytes, lens)?;
        let (link, mut rest) = (self.inner.kind(), &*bytes);
        for &len in &lens[..taken] {
            let (packet, after) = rest.split_at(usize::from(len));
            (self.tracer)(&Passed { link, direction: Direction::Sent, peer: to, packet });
            rest = after;
        }
        Ok(taken)
    }

    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        let (link, tracer) = (self.inner.kind(), &self.tracer);
        self.inner.recv(&mut |peer, packet| {
            tracer(&Passed { link, direction: Direction::Received, peer, packet });
            sink(peer, packet);
        })
    }

    fn recv_groups(&mut self, sink: &mut dyn FnMut(IpAddr, IpAddr, &[u8])) -> io::Result<usize> {
        let (link, tracer) = (self.inner.kind(), &self.tracer);
        self.inner.recv_groups(&mut |peer, group, packet| {
            tracer(&Passed { link, direction: Direction::Received, peer, packet });
            sink(peer, group, packet);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::loopback::Hub;
    use crate::link::testing::{collect, ip};
    use parking_lot::Mutex;
    use remora_wire::{Opcode, Psn};

    #[test]
    fn each_packet_is_a_line() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let said = lines.clone();
        let hub = Hub::new();
        let tracer: Tracer = Arc::new(move |passed| said.lock().push(passed.to_string()));
        let mut link = Traced::new(hub.join(ip(1)).unwrap(), tracer);
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcAck, 0x12, Psn::new(7)) };
        let mut bytes = [0; 84 + 16];
        bth.emit(&mut bytes);
        link.send(ip(1), &mut bytes, &[84, 16]).unwrap();
        assert_eq!(collect(&mut link, 2).len(), 2);
        let lines = lines.lock();
        assert_eq!(lines[0], "loopback > 127.0.0.1 RcAck qp 0x000012 psn 7 ack 84 B");
        assert!(lines[1].starts_with("loopback > 127.0.0.1 RcSendFirst qp 0x000000"));
        assert_eq!(lines[2], lines[0].replace('>', "<"));
        assert_eq!(lines.len(), 4);
    }
}
