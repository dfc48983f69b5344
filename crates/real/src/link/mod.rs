//! Links: how RoCE v2 packets get from one IP address to another.
//!
//! A packet here is what stands in the UDP datagram: BTH to ICRC, both included. A link owns its
//! sockets or rings and blocks nowhere; the device that drives the NIC engine polls its links.
//!
//! | link          | reaches                          | ICRC                                          |
//! |---------------|----------------------------------|-----------------------------------------------|
//! | [`loopback`]  | this process                     | not used: packets stay in private memory      |
//! | [`shm`]       | processes of the same user, here | not used: memory, not a wire                  |
//! | [`udp`]       | any RoCE v2 peer                 | filled in and checked, the IP ID excepted     |
//! | [`packet`]    | any RoCE v2 peer over IPv4       | filled in and checked whole; `CAP_NET_RAW`    |
//!
//! Links stack: [`lossy`], [`traced`] and [`pcap`] wrap any of them, and each other: see [`Layers`].

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use remora_memory::Lookahead;
use remora_nic::{Lane, Packet, Room};
use rustix::net::sockopt;

pub use interface::interface_of;
pub use kind::{LinkKind, UnknownLink};
pub use layers::Layers;

pub mod admission;
mod groups;
mod interface;
mod kind;
mod layers;
pub mod loopback;
pub mod lossy;
pub mod packet;
pub mod pcap;
pub mod shm;
pub(crate) use shm::unix_socket;
#[cfg(test)]
pub(crate) mod testing;
pub mod traced;
pub mod udp;

use layers::forward;

/// Longest packet that a link carries, in bytes: 4096 of payload, the longest headers, the ICRC, and room to spare.
pub const MAX_PACKET: usize = 4096 + 128;

/// Shortest packet, in bytes: a BTH and an ICRC. Links drop what is shorter.
pub const MIN_PACKET: usize = 16;

/// A non-blocking carrier of RoCE v2 packets. Nothing allocates per call once traffic flows.
pub trait Link: Send {
    /// What kind of link.
    fn kind(&self) -> LinkKind;

    /// Largest path MTU that the link carries, in bytes of payload: 256, 512, 1024, 2048 or 4096.
    fn max_mtu(&self) -> usize;

    /// Makes sure that packets to `peer` have a way, where that takes more than an address. False if they have none.
    ///
    /// # Errors
    ///
    /// What the system says when it has no memory or descriptors left.
    fn reach(&mut self, _peer: IpAddr) -> io::Result<bool> {
        Ok(true)
    }

    /// Sends the packets lying back to back in `bytes`, with the lengths `lens`, to `to`.
    ///
    /// The last four bytes of every packet are room for the ICRC, which the link fills in where it is checked.
    /// Returns how many packets were taken. Fewer than `lens` holds means that the link is full: offer the rest later.
    /// A packet that the network refuses counts as taken and [lost](LinkStats::dropped), as on any network.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `to` is of the wrong address family or `lens` exceeds `bytes`; `NotConnected` if the link
    /// knows of no such peer and never will by itself (shared memory).
    fn send(&mut self, to: IpAddr, bytes: &mut [u8], lens: &[u16]) -> io::Result<usize>;

    /// Hands received packets with their source addresses to `sink`, at most a few hundred, and returns how many.
    ///
    /// The packet is private memory: its sender cannot change it any more. Where the link has an ICRC it is good.
    ///
    /// # Errors
    ///
    /// Only what makes the link useless for good. What a peer or the network does is counted, not returned.
    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize>;

    /// As [`recv`](Link::recv), of packets that may stand in memory which their senders can write. A link without such
    /// memory has none.
    ///
    /// # Errors
    ///
    /// As for [`recv`](Link::recv).
    fn recv_in_place(&mut self, sink: &mut dyn FnMut(IpAddr, Packet<'_>)) -> io::Result<usize> {
        self.recv(&mut |from, bytes| sink(from, Packet::Private(bytes)))
    }

    /// Room in which packets to `to` may be put together, to be sent by [`send_lent`](Link::send_lent). `None` if the link
    /// has no such memory or it is full: [`send`](Link::send) them.
    fn lend(&mut self, _to: IpAddr) -> Option<Room> {
        None
    }

    /// Sends what was put together in the room lent last: packets of these lengths, each [`Room::GAP`] bytes behind where it
    /// may begin at the earliest; bit by bit, those that [refer](remora_nic::TxBatch::referred) to their payload.
    fn send_lent(&mut self, _to: IpAddr, _lens: &[u16], _referred: u64) {}

    /// Has the link say there what it will hand over next, where it knows.
    fn look_ahead(&mut self, _lookahead: &Arc<Lookahead>) {}

    /// Whom packets may be for from now on: others need not be handed over.
    fn admit(&mut self, _admission: &admission::Admission<'_>) {}

    /// Joins an IP multicast group: packets to it come by [`recv_groups`](Link::recv_groups). Any link that sends to an
    /// address can send to a group.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the link carries no multicast, or what the system says.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let message = format!("the {} link carries no multicast: {group} cannot be joined", self.kind());
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    /// Leaves a multicast group.
    fn leave(&mut self, _group: IpAddr) {}

    /// Hands packets to joined groups with their sources and groups to `sink`, like [`recv`](Link::recv).
    ///
    /// # Errors
    ///
    /// Only what makes the link useless for good.
    fn recv_groups(&mut self, _sink: &mut dyn FnMut(IpAddr, IpAddr, &[u8])) -> io::Result<usize> {
        Ok(0)
    }

    /// Appends the descriptors to wait for (`POLLIN`) once [`arm`](Link::arm) allows sleep. They change as peers
    /// come and go.
    fn wait_fds(&self, out: &mut Vec<RawFd>);

    /// Asks peers to wake the descriptors. False if packets wait already: call [`recv`](Link::recv), do not sleep.
    fn arm(&mut self) -> bool;

    /// Takes back what [`arm`](Link::arm) asked for. Without an `arm` before, it does nothing.
    fn disarm(&mut self);

    /// Counters since the link was made.
    fn stats(&self) -> LinkStats;
}

/// What a link has done since it was made. All fields only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, as IP packets: the IP and UDP headers count, whether or not the link has any.
    pub tx_bytes: u64,
    /// Packets handed to the sink.
    pub rx_packets: u64,
    /// Bytes of those, as IP packets.
    pub rx_bytes: u64,
    /// Packets received and dropped because the ICRC was wrong.
    pub bad_icrc: u64,
    /// Packets received and dropped because they were too short, too long or not RoCE v2 at all.
    pub malformed: u64,
    /// Packets that the network or the link refused, or lost on purpose.
    pub dropped: u64,
    /// Times that [`Link::send`] took fewer packets than offered.
    pub full: u64,
    /// System calls made.
    pub syscalls: u64,
}

impl LinkStats {
    /// The sum of two links'.
    pub fn add(&mut self, other: &Self) {
        // All of them, or this does not compile.
        let Self { tx_packets, tx_bytes, rx_packets, rx_bytes, bad_icrc, malformed, dropped, full, syscalls } = *other;
        self.tx_packets += tx_packets;
        self.tx_bytes += tx_bytes;
        self.rx_packets += rx_packets;
        self.rx_bytes += rx_bytes;
        self.bad_icrc += bad_icrc;
        self.malformed += malformed;
        self.dropped += dropped;
        self.full += full;
        self.syscalls += syscalls;
    }

    /// Adds links of one device to those of others, by kind.
    pub(crate) fn add_by_kind(sums: &mut Vec<(LinkKind, Self)>, links: Vec<(LinkKind, Self)>) {
        for (kind, stats) in links {
            match sums.iter_mut().find(|(other, _)| *other == kind) {
                Some((_, sum)) => sum.add(&stats),
                None => sums.push((kind, stats)),
            }
        }
    }

    fn sent(&mut self, to: IpAddr, packets: usize, bytes: usize) {
        self.tx_packets += packets as u64;
        self.tx_bytes += (bytes + packets * overhead(to)) as u64;
    }

    fn received(&mut self, from: IpAddr, bytes: usize) {
        self.rx_packets += 1;
        self.rx_bytes += (bytes + overhead(from)) as u64;
    }
}

/// Bytes of IP and UDP header in front of a packet.
fn overhead(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// The largest InfiniBand MTU at or under an interface's MTU less 80 bytes of headers, at least 256.
fn ib_mtu(interface_mtu: usize) -> usize {
    let room = interface_mtu.saturating_sub(80);
    [4096, 2048, 1024, 512].into_iter().find(|&mtu| mtu <= room).unwrap_or(256)
}

/// What the kernel may buffer of what we send, in bytes: some tens of full sends.
const SEND_BUFFER: usize = 4 << 20;

/// What the kernel may buffer of what we receive, in bytes: what a peer sends in the ten milliseconds or so for which
/// another process may have the core. Unreliable transports slow down for nobody, and nobody sends again for them.
const RECEIVE_BUFFER: usize = 32 << 20;

/// Gives a socket the buffers that links want, 32 MB to receive into and 4 MB to send from, or what the system's limit
/// leaves of them.
///
/// # Errors
///
/// What setsockopt(2) says.
pub fn set_buffers(socket: impl AsFd) -> io::Result<()> {
    // The forced sizes pass the limit, which only root may.
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
    }
    if sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER)?;
    }
    Ok(())
}

/// Sets a socket option whose value is an int, such as `UDP_SEGMENT`.
///
/// # Errors
///
/// What setsockopt(2) says.
pub fn set_int_option(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the option's value is the int pointed to; one that wants another size is refused.
    match unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// All lanes of an address with so many engines.
fn lanes(count: u16) -> io::Result<Vec<Lane>> {
    let lanes: Vec<Lane> = (0..=u8::MAX).filter_map(|index| Lane::new(index, count)).collect();
    match lanes.is_empty() {
        false => Ok(lanes),
        true => {
            let why = format!("{count} engines at one address: at least one, and at most {}", Lane::MOST);
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
    }
}

/// The ECN bits of an IP header: its sender hears of congestion; and the packet met some (RFC 3168).
const ECT: u8 = 0b10;
const CE: u8 = 0b11;

/// Says to the engine, in the BTH's FECN, that packets met congestion. The ICRC leaves that byte out.
fn mark_congested(packets: &mut [u8], each: usize) {
    for flags in packets.chunks_mut(each.max(1)).filter_map(|packet| packet.get_mut(4)) {
        *flags |= 0x80;
    }
}

/// The socket or the interface takes no more for now.
fn is_full(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::WouldBlock || e.raw_os_error() == Some(libc::ENOBUFS)
}

/// Nothing there, or what an ICMP message or a short memory did to the socket: the next packet may come all the same.
fn is_passing(e: &io::Error) -> bool {
    const PASSING: [i32; 11] = [
        libc::EAGAIN,
        libc::EINTR,
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::ENETDOWN,
        libc::EPROTO,
        libc::EMSGSIZE,
        libc::ENOBUFS,
        libc::ENOMEM,
    ];
    e.raw_os_error().is_some_and(|code| PASSING.contains(&code))
}

/// Refuses lengths that do not fit the buffer: a caller's mistake, which must not become a panic in the device.
fn check_lens(bytes: &[u8], lens: &[u16]) -> io::Result<()> {
    let (total, valid) = lens.iter().fold((0, true), |(total, valid), &len| {
        let len = usize::from(len);
        (total + len, valid & (MIN_PACKET..=MAX_PACKET).contains(&len))
    });
    if valid && total <= bytes.len() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("packets of {total} bytes in a buffer of {}; each must have {MIN_PACKET} to {MAX_PACKET}", bytes.len()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ib_mtu_is_the_largest_below_the_interface_less_80() {
        let cases =
            [(65536, 4096), (9000, 4096), (4176, 4096), (4175, 2048), (1500, 1024), (1400, 1024), (576, 256), (0, 256)];
        for (interface, expected) in cases {
            assert_eq!(ib_mtu(interface), expected, "interface MTU {interface}");
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let bytes = [0; 64];
        assert!(check_lens(&bytes, &[32, 32]).is_ok());
        assert!(check_lens(&bytes, &[32, 33]).is_err());
        assert!(check_lens(&bytes, &[15]).is_err());
        assert!(check_lens(&bytes, &[u16::MAX]).is_err());
    }
}
