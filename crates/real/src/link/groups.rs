//! IP multicast groups of a UDP link: a socket for each, on the link's interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use remora_wire::UDP_PORT;
use remora_wire::icrc::{IcrcFlow, IcrcVerdict};
use socket2::{Domain, Protocol, Socket, Type};

use super::{LinkStats, MAX_PACKET, MIN_PACKET, is_passing, set_buffers, set_int_option};

/// Datagrams taken from one group in one call.
const RX_BATCH: usize = 16;

/// The groups that a link has joined.
pub struct Groups {
    joined: Vec<(IpAddr, UdpSocket)>,
    buffer: Box<[u8]>,
}

impl Groups {
    pub fn new() -> Groups {
        // One byte more than any packet has: longer ones are seen to be too long.
        Groups { joined: Vec::new(), buffer: vec![0; MAX_PACKET + 1].into() }
    }

    /// Joins `group` on the interface that has the address `local` and the index `interface`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the two are not of one address family, or what the system says.
    pub fn join(&mut self, group: IpAddr, local: IpAddr, interface: u32) -> io::Result<()> {
        if self.joined.iter().any(|(ip, _)| *ip == group) {
            return Ok(());
        }
        let address = match group {
            IpAddr::V4(_) => SocketAddr::new(group, UDP_PORT),
            IpAddr::V6(group) => SocketAddrV6::new(group, UDP_PORT, 0, interface).into(),
        };
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        // Other processes on this host may have joined it too.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        match (group, local) {
            (IpAddr::V4(group), IpAddr::V4(local)) => {
                socket.bind(&address.into())?;
                socket.join_multicast_v4(&group, &local)?;
                set_int_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
            }
            (IpAddr::V6(group), IpAddr::V6(_)) => {
                socket.set_only_v6(true)?;
                socket.bind(&address.into())?;
                socket.join_multicast_v6(&group, interface)?;
            }
            _ => {
                let message = format!("{local} cannot join {group}: another address family");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        set_buffers(&socket)?;
        self.joined.push((group, socket.into()));
        Ok(())
    }

    /// Leaves a group; one that was not joined is no error.
    pub fn leave(&mut self, group: IpAddr) {
        self.joined.retain(|(ip, _)| *ip != group);
    }

    /// Hands the datagrams to groups to `sink`, with their sources and the groups. What `local` itself has sent is left
    /// out: its engine has seen to its own members.
    pub fn recv(
        &mut self,
        local: IpAddr,
        stats: &mut LinkStats,
        sink: &mut dyn FnMut(IpAddr, IpAddr, &[u8]),
    ) -> io::Result<usize> {
        let mut packets = 0;
        for (group, socket) in &self.joined {
            for _ in 0..RX_BATCH {
                stats.syscalls += 1;
                let (len, from) = match socket.recv_from(&mut self.buffer) {
                    Ok(received) => received,
                    Err(e) if is_passing(&e) => break,
                    Err(e) => return Err(e),
                };
                if from.ip() == local {
                    continue;
                }
                let packet = &self.buffer[..len];
                if !(MIN_PACKET..=MAX_PACKET).contains(&len) {
                    stats.malformed += 1;
                } else if !is_good(from, *group, packet) {
                    stats.bad_icrc += 1;
                } else {
                    stats.received(from.ip(), len);
                    sink(from.ip(), *group, packet);
                    packets += 1;
                }
            }
        }
        Ok(packets)
    }

    pub fn wait_fds(&self, out: &mut Vec<RawFd>) {
        out.extend(self.joined.iter().map(|(_, socket)| socket.as_raw_fd()));
    }
}

/// Whether the ICRC of a packet is right, as far as one can tell without its IP ID.
fn is_good(from: SocketAddr, group: IpAddr, packet: &[u8]) -> bool {
    let flow = match (from.ip(), group) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => IcrcFlow::v4(src, dst, from.port(), UDP_PORT),
        (IpAddr::V6(src), IpAddr::V6(dst)) => IcrcFlow::v6(src, dst, from.port(), UDP_PORT),
        _ => return false,
    };
    flow.verify(0, packet) != IcrcVerdict::Bad
}

/// Sends of this socket to groups leave by the interface that has the address.
pub fn send_by(socket: &Socket, local: IpAddr, interface: u32) -> io::Result<()> {
    match local {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ok(()),
        IpAddr::V4(local) => socket.set_multicast_if_v4(&local),
        IpAddr::V6(_) => socket.set_multicast_if_v6(interface),
    }
}
