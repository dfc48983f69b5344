//! Source ports of their own for queue pairs whose packets pass a router: routers choose among ways of equal cost by them
//! (RoCE v2, annex A17.9.2).
//!
//! A socket has one source port, so there are some more sockets, which only send: each queue pair's packets leave by one of
//! them, always the same. Peers of the same network get theirs from port 4791, as there is nothing to choose between, and firewalls
//! that let answers in know them as such.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use quinn_udp::UdpSocketState;
use remora_wire::packet::source_port;

use super::{UdpPort, ask_for_marks, ports};
use crate::link::interface::Networks;
use crate::link::packet::socket::{DROP, attach_filter};

/// Ways that there are from one address: as many as routers have ports to choose from, mostly.
const WAYS: usize = 16;
/// Source ports for entropy.
const ENTROPY: std::ops::RangeInclusive<u16> = 0xc000..=0xffff;
/// Ports that are tried for a way until one is free.
const TRIES: u16 = 64;

/// A socket that only sends.
pub(super) struct Way {
    pub port: u16,
    pub socket: UdpSocket,
    pub state: UdpSocketState,
}

/// The ways of one link.
#[derive(Default)]
pub(super) struct Ways {
    /// Made when the first peer beyond a router is sent to; empty where they cannot be.
    all: Option<Vec<Way>>,
    /// The networks that this host stands in, and when they were asked for.
    near: Option<(Networks, Instant)>,
    /// The last peer, and whether a router lies between.
    last: Option<(IpAddr, bool)>,
}

/// How long networks are taken to be what they were.
const FRESH: Duration = Duration::from_secs(1);

impl Ways {
    /// Whether packets to a peer leave by ways.
    #[inline]
    pub fn lead_to(&mut self, to: IpAddr, port: &UdpPort) -> bool {
        match self.last {
            Some((last, beyond)) if last == to => beyond,
            _ => self.find_out(to, port),
        }
    }

    #[cold]
    fn find_out(&mut self, to: IpAddr, port: &UdpPort) -> bool {
        // Where the source is to be named with each packet it is as with near ones.
        let routed = !port.ip().is_loopback() && !port.ip().is_unspecified() && !self.is_near(to);
        let beyond = routed && !self.all.get_or_insert_with(|| open(port)).is_empty();
        self.last = Some((to, beyond));
        beyond
    }

    /// Whether no router lies between, or nobody knows. Strangers may have the device send to any number of addresses.
    fn is_near(&mut self, to: IpAddr) -> bool {
        if self.near.as_ref().is_none_or(|(_, asked)| asked.elapsed() > FRESH) {
            self.near = Networks::ask().ok().map(|networks| (networks, Instant::now()));
        }
        self.near.as_ref().is_none_or(|(networks, _)| networks.has(to))
    }

    /// The way with this number.
    pub fn get(&self, way: usize) -> Option<&Way> {
        self.all.as_ref()?.get(way)
    }

    /// Which way a packet goes; `None` for messages of connection management, which come from the port that they go to.
    #[inline]
    pub fn of(&self, packet: &[u8]) -> Option<usize> {
        let ways = self.all.as_ref().map_or(0, Vec::len);
        let managed = packet[5..8] == [0, 0, 1];
        (!managed).then(|| usize::from(source_port(packet))).and_then(|port| port.checked_rem(ways))
    }
}

/// As many as there can be; none where the system has no room for any.
fn open(port: &UdpPort) -> Vec<Way> {
    // Other links of this address begin elsewhere, and so find theirs sooner.
    let first = std::process::id() as u16 ^ u16::from(port.lane().index()).wrapping_mul(977);
    let mut ports = (0..).map(|n: u16| ENTROPY.start() | first.wrapping_add(n.wrapping_mul(1019)) & 0x3fff);
    let way = |_| {
        let way = ports.by_ref().take(TRIES.into()).find_map(|number| bind(port.address(), number).ok());
        way.filter(|way| ENTROPY.contains(&way.port))
    };
    (0..WAYS).map_while(way).collect()
}

fn bind(address: SocketAddr, port: u16) -> io::Result<Way> {
    let mut address = address;
    address.set_port(port);
    let socket = ports::bind(address, false)?;
    // Nobody answers to it.
    attach_filter(&socket, &[DROP])?;
    let socket = UdpSocket::from(socket);
    let state = UdpSocketState::new((&socket).into())?;
    ask_for_marks(&socket, address.ip())?;
    Ok(Way { port, socket, state })
}
