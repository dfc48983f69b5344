//! RoCE v2 in whole IPv4 packets, through a packet socket and a raw one. Needs `CAP_NET_RAW`.
//!
//! Here the link, not the kernel, builds the IP and UDP headers as RoCE v2 wants them: a source port for each queue
//! pair of the peer, so that routers with several paths use them all, UDP checksum 0, DF set, TTL 64. It sees the IP ID
//! of what it receives, so that the ICRC is checked to its full 32 bits.
//!
//! It receives by a packet socket, before the kernel looks at the packet; a UDP socket that drops everything holds the
//! port, lest the kernel answer each packet that the port is unreachable. It sends by a raw IP socket, for which the
//! kernel finds the route and the neighbour's Ethernet address; a packet socket would need its own ARP, and the kernel
//! refuses what that sends from one address of 127.0.0.0/8 to another.
//!
//! Packets of this host's own UDP sockets arrive before the kernel has segmented them; the virtio header that precedes
//! each frame tells how it would, and the link does it instead.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use remora_wire::UDP_PORT;
use remora_wire::icrc::{self, IcrcFlow, IcrcVerdict};
use remora_wire::ip::{ETHERTYPE_IPV4, Ethernet, Ipv4, PROTOCOL_UDP, Udp};
use remora_wire::packet::source_port;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use socket2::{Domain, Protocol, Socket, Type};

use super::{
    CE, ECT, Link, LinkKind, LinkStats, MAX_PACKET, MIN_PACKET, check_lens, ib_mtu, interface, is_full, is_passing,
    mark_congested, overhead, set_buffers, set_int_option,
};

/// Frames taken in one call of [`Link::recv`].
const RX_BATCH: usize = 64;

/// `struct virtio_net_hdr`, in front of every frame received: flags, segmentation type, and four 16-bit numbers in the
/// machine's byte order, of which the second is the length of the segments.
const VIRTIO: usize = 10;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
const VIRTIO_UDP_SEGMENTS: u8 = 5;

const HEADERS: usize = Ipv4::LEN + Udp::LEN;

/// The longest frame that the kernel may hand over, not yet segmented.
const RX_BYTES: usize = VIRTIO + Ethernet::LEN + 65536;

/// A packet socket on the interface of one address, with what it takes to send.
pub struct PacketLink {
    local: Ipv4Addr,
    interface_mtu: usize,
    receiver: OwnedFd,
    sender: Socket,
    /// Holds the port.
    _holder: UdpSocket,
    tx: Box<[u8]>,
    rx: Box<[u8]>,
    stats: LinkStats,
}

impl PacketLink {
    /// Takes the packets to port 4791 of `ip` off the interface that has the address.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without `CAP_NET_RAW`, `Unsupported` for IPv6, `AddrInUse` if the port is taken,
    /// `AddrNotAvailable` if no interface has the address.
    pub fn bind(ip: IpAddr) -> io::Result<PacketLink> {
        let IpAddr::V4(local) = ip else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, format!("{ip}: packet sockets carry IPv4 only")));
        };
        let interface = interface::owning(ip)?;
        let holder = UdpSocket::bind((local, UDP_PORT))
            .map_err(|e| io::Error::new(e.kind(), format!("UDP {local}:{UDP_PORT}: {e}")))?;
        socket::attach_filter(&holder, &[socket::DROP])?;
        let receiver = socket::open().map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => {
                io::Error::new(e.kind(), "packet sockets need CAP_NET_RAW: run as root, or use the udp link")
            }
            _ => e,
        })?;
        set_int_option(&receiver, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        set_int_option(&receiver, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        set_buffers(&receiver)?;
        socket::attach_filter(&receiver, &socket::roce_to(local))?;
        socket::bind(&receiver, interface.index)?;
        // This protocol number stands for packets that come with their IP header.
        let sender = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
        sender.set_nonblocking(true)?;
        set_buffers(&sender)?;
        Ok(PacketLink {
            local,
            interface_mtu: interface.mtu,
            receiver,
            sender,
            _holder: holder,
            tx: vec![0; HEADERS + MAX_PACKET].into(),
            rx: vec![0; RX_BYTES].into(),
            stats: LinkStats::default(),
        })
    }

    /// Delivers the packets in the first `len` bytes of `rx`.
    fn deliver(&mut self, len: usize, sink: &mut dyn FnMut(IpAddr, &[u8])) {
        if let Some(Frame { congested: true, segment, .. }) = Frame::parse(&self.rx[..len]) {
            mark_congested(&mut self.rx[VIRTIO + Ethernet::LEN + HEADERS..len], segment);
        }
        let Some(frame) = Frame::parse(&self.rx[..len]) else {
            self.stats.malformed += 1;
            return;
        };
        self.stats.malformed += u64::from(frame.payload.is_empty());
        for (n, packet) in frame.payload.chunks(frame.segment).enumerate() {
            if !(MIN_PACKET..=MAX_PACKET).contains(&packet.len()) {
                self.stats.malformed += 1;
            } else if !frame.checks(n as u16, packet) {
                self.stats.bad_icrc += 1;
            } else {
                self.stats.received(frame.src.into(), packet.len());
                sink(frame.src.into(), packet);
            }
        }
    }
}

/// A received frame, taken apart.
struct Frame<'a> {
    src: Ipv4Addr,
    id: u16,
    congested: bool,
    ip_packet: &'a [u8],
    flow: IcrcFlow,
    /// The UDP payload, of one packet or of several with `segment` bytes each.
    payload: &'a [u8],
    segment: usize,
}

impl<'a> Frame<'a> {
    /// None unless it is RoCE v2 over IPv4.
    fn parse(bytes: &'a [u8]) -> Option<Frame<'a>> {
        let (virtio, frame) = bytes.split_at_checked(VIRTIO)?;
        let ethernet = Ethernet::parse(frame).ok()?;
        let ip = Ipv4::parse(&frame[Ethernet::LEN..]).ok()?;
        let ip_packet = &frame[Ethernet::LEN..][..usize::from(ip.total_len)];
        let udp = Udp::parse(&ip_packet[Ipv4::LEN..]).ok()?;
        if ethernet.ethertype != ETHERTYPE_IPV4 || ip.protocol != PROTOCOL_UDP || udp.dst_port != UDP_PORT {
            return None;
        }
        let payload = &ip_packet[Ipv4::LEN + Udp::LEN..];
        let segment = match virtio[1] {
            VIRTIO_UDP_SEGMENTS => usize::from(u16::from_ne_bytes([virtio[4], virtio[5]])),
            _ => payload.len(),
        };
        let flow = IcrcFlow::v4(ip.src, ip.dst, udp.src_port, udp.dst_port);
        let congested = ip.tos & CE == CE;
        Some(Frame { src: ip.src, id: ip.id, congested, ip_packet, flow, payload, segment: segment.max(1) })
    }

    /// Whether the ICRC of the `n`th packet is right.
    fn checks(&self, n: u16, packet: &[u8]) -> bool {
        if packet.len() == self.payload.len() {
            icrc::verify_ip(self.ip_packet) == Ok(true)
        } else {
            self.flow.verify(self.id.wrapping_add(n), packet) == IcrcVerdict::Good
        }
    }
}

impl Link for PacketLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Packet
    }

    fn max_mtu(&self) -> usize {
        ib_mtu(self.interface_mtu)
    }

    fn send(&mut self, to: IpAddr, bytes: &mut [u8], lens: &[u16]) -> io::Result<usize> {
        check_lens(bytes, lens)?;
        let IpAddr::V4(dst) = to else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{to}: packet sockets carry IPv4 only")));
        };
        let longest = lens.iter().max().map_or(0, |&len| usize::from(len));
        if longest + overhead(to) > self.interface_mtu {
            self.stats.dropped += lens.len() as u64;
            return Ok(lens.len());
        }
        let address = SocketAddrV4::new(dst, 0).into();
        let (mut port, mut flow) = (0, None);
        let (mut done, mut at) = (0, 0);
        for &len in lens {
            let packet = &mut bytes[at..at + usize::from(len)];
            if port != source_port(packet) {
                (port, flow) = (source_port(packet), None);
            }
            flow.get_or_insert_with(|| IcrcFlow::v4(self.local, dst, port, UDP_PORT)).fill(0, packet);
            let (ip, rest) = self.tx.split_at_mut(Ipv4::LEN);
            let (udp, payload) = rest.split_at_mut(Udp::LEN);
            let udp_len = Udp::LEN as u16 + len;
            let (total_len, protocol, src) = (Ipv4::LEN as u16 + udp_len, PROTOCOL_UDP, self.local);
            Ipv4 { tos: ECT, total_len, id: 0, dont_fragment: true, ttl: 64, protocol, src, dst }.emit(ip);
            Udp { src_port: port, dst_port: UDP_PORT, len: udp_len, checksum: 0 }.emit(udp);
            payload[..packet.len()].copy_from_slice(packet);
            self.stats.syscalls += 1;
            match self.sender.send_to(&self.tx[..HEADERS + packet.len()], &address) {
                Ok(_) => self.stats.sent(to, 1, packet.len()),
                Err(e) if is_full(&e) => {
                    self.stats.full += 1;
                    break;
                }
                Err(_) => self.stats.dropped += 1,
            }
            done += 1;
            at += usize::from(len);
        }
        Ok(done)
    }

    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        let before = self.stats.rx_packets;
        for _ in 0..RX_BATCH {
            self.stats.syscalls += 1;
            match net::recv(&self.receiver, &mut *self.rx, RecvFlags::DONTWAIT) {
                Ok((_, len)) => self.deliver(len.min(RX_BYTES), sink),
                Err(Errno::AGAIN) => break,
                Err(e) if is_passing(&e.into()) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok((self.stats.rx_packets - before) as usize)
    }

    fn wait_fds(&self, out: &mut Vec<RawFd>) {
        out.push(self.receiver.as_raw_fd());
    }

    /// A socket stays readable as long as frames wait in it: nothing to arm.
    fn arm(&mut self) -> bool {
        true
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

/// The system calls that neither the standard library nor rustix wraps.
pub(super) mod socket {
    use super::*;
    use crate::link::admission::op;
    use std::os::fd::FromRawFd;

    use libc::{BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MSH, BPF_RET, BPF_W};

    /// Refuses the packet.
    pub const DROP: libc::sock_filter = op(BPF_RET | BPF_K, 0, 0, 0);

    /// Accepts frames with a UDP datagram to port 4791 of `ip`.
    pub fn roce_to(ip: Ipv4Addr) -> [libc::sock_filter; 11] {
        let is = |value, no| op(BPF_JMP | BPF_JEQ | BPF_K, 0, no, value);
        [
            op(BPF_LD | BPF_H | BPF_ABS, 0, 0, 12),
            is(ETHERTYPE_IPV4.into(), 8),
            op(BPF_LD | BPF_B | BPF_ABS, 0, 0, 23),
            is(PROTOCOL_UDP.into(), 6),
            op(BPF_LD | BPF_W | BPF_ABS, 0, 0, 30),
            is(ip.into(), 4),
            // The length of the IP header, then the port 2 bytes into what follows it.
            op(BPF_LDX | BPF_B | BPF_MSH, 0, 0, 14),
            op(BPF_LD | BPF_H | BPF_IND, 0, 0, 16),
            is(UDP_PORT.into(), 1),
            op(BPF_RET | BPF_K, 0, 0, u32::MAX),
            DROP,
        ]
    }

    pub fn attach_filter(socket: impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
        attach(socket, libc::SO_ATTACH_FILTER, program)
    }

    /// Has a program say which of the sockets at one address, by its place, a datagram is for.
    pub fn attach_choice(socket: impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
        attach(socket, libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }

    fn attach(socket: impl AsFd, option: i32, program: &[libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: the kernel copies the program, which is as long as it says, and does not write to it.
        match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const program).cast(), size) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes a socket's filter away, if it has one.
    pub fn detach_filter(socket: impl AsFd) -> io::Result<()> {
        super::super::set_int_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
    }

    /// A packet socket that receives nothing until it is bound.
    pub fn open() -> io::Result<OwnedFd> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a system call without pointers.
        match unsafe { libc::socket(libc::AF_PACKET, kind, 0) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the descriptor is new, and nobody else's.
            fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        }
    }

    /// Receives the IPv4 frames of the interface with this index.
    pub fn bind(socket: &OwnedFd, index: u32) -> io::Result<()> {
        // SAFETY: a sockaddr_ll is plain integers, for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ETHERTYPE_IPV4.to_be();
        address.sll_ifindex = index as i32;
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is as long as `size` says.
        match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::{collect, in_namespace, in_veth_pair, packets, readable};
    use crate::link::udp::UdpLink;

    fn ip(d: u8) -> IpAddr {
        Ipv4Addr::new(127, 3, 0, d).into()
    }

    /// Sends runs of equal packets and odd ones, and expects them at the other end but for the ICRC.
    fn exchange(a: &mut dyn Link, from: IpAddr, b: &mut dyn Link, to: IpAddr) {
        let longest = a.max_mtu() as u16 + 20;
        let (mut bytes, lens) = packets(&[100, 100, 100, 60, 16, longest, longest, 32]);
        assert_eq!(a.send(to, &mut bytes, &lens).unwrap(), lens.len());
        let mut at = 0;
        for ((source, packet), &len) in collect(b, lens.len()).into_iter().zip(&lens) {
            assert_eq!(source, from);
            assert_eq!(packet, bytes[at..at + usize::from(len)]);
            at += usize::from(len);
        }
        assert_eq!((b.stats().bad_icrc, b.stats().malformed), (0, 0));
    }

    #[test]
    fn queue_pairs_have_source_ports_of_their_own() {
        let port = |qpn: u32| source_port(&[&[0; 4], &qpn.to_be_bytes()[..], &[0; 8]].concat());
        let ports: std::collections::HashSet<u16> = (0..1000).map(port).collect();
        assert!(ports.len() > 990 && ports.iter().all(|&port| port >= 0xc000), "{} ports", ports.len());
        assert_eq!(port(77), port(77), "and keep them");
    }

    /// The full check of this link shows that the UDP link knows the IP IDs its packets leave with.
    #[test]
    fn it_talks_to_udp_sockets_on_loopback() {
        in_namespace(|| {
            let (mut a, mut b) = (PacketLink::bind(ip(1)).unwrap(), UdpLink::bind(ip(2)).unwrap());
            assert_eq!(a.max_mtu(), 4096);
            exchange(&mut a, ip(1), &mut b, ip(2));
            assert!(!readable(&a));
            exchange(&mut b, ip(2), &mut a, ip(1));
            let mut c = PacketLink::bind(ip(3)).unwrap();
            exchange(&mut a, ip(1), &mut c, ip(3));
            exchange(&mut c, ip(3), &mut a, ip(1));
            assert_eq!(a.recv(&mut |_, _| panic!("its own packets come back")).unwrap(), 0);
        });
    }

    #[test]
    fn it_checks_all_of_the_icrc() {
        in_namespace(|| {
            let (node, peer_ip) = (Ipv4Addr::new(127, 3, 0, 1), Ipv4Addr::new(127, 3, 0, 2));
            let mut link = PacketLink::bind(node.into()).unwrap();
            let peer = UdpSocket::bind((peer_ip, 0)).unwrap();
            let flow = IcrcFlow::v4(peer_ip, node, peer.local_addr().unwrap().port(), UDP_PORT);
            set_int_option(&peer, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE).unwrap();
            let mut good = [3; 64];
            flow.fill(0, &mut good);
            // Right for an IP ID that the packet does not have: a UDP socket could not tell.
            let mut numbered = [4; 64];
            flow.fill(0x1234, &mut numbered);
            for datagram in [&numbered[..], &[], &[1; 15], &good] {
                peer.send_to(datagram, (node, UDP_PORT)).unwrap();
            }
            peer.send_to(&good, (node, UDP_PORT + 1)).unwrap();
            assert_eq!(collect(&mut link, 1), [(IpAddr::V4(peer_ip), good.to_vec())]);
            assert_eq!((link.stats().bad_icrc, link.stats().malformed), (1, 2));
        });
    }

    #[test]
    fn it_crosses_a_wire_and_the_kernel_keeps_quiet() {
        let (a_ip, b_ip) = (Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2));
        in_veth_pair(a_ip, b_ip, move |other| {
            let mut a = PacketLink::bind(a_ip.into()).unwrap();
            assert_eq!(a.max_mtu(), 1024);
            let (mut bytes, lens) = packets(&[64]);
            for nobody in [Ipv4Addr::new(10, 77, 0, 9), Ipv4Addr::new(192, 0, 2, 1)] {
                assert_eq!(a.send(nobody.into(), &mut bytes, &lens).unwrap(), 1);
            }
            assert_eq!(a.stats().dropped, 1, "one has no route; that nobody has the other shows later");
            let mut b = other.run(|| UdpLink::bind(b_ip.into()).unwrap());
            exchange(&mut a, a_ip.into(), &mut b, b_ip.into());
            exchange(&mut b, b_ip.into(), &mut a, a_ip.into());
            drop(b);
            // Another test may just start a child process, which holds the port until it has become another program.
            let bind = || remora_testing::eventually("the port", || PacketLink::bind(b_ip.into()).ok());
            let mut b = other.run(bind);
            exchange(&mut a, a_ip.into(), &mut b, b_ip.into());
            exchange(&mut b, b_ip.into(), &mut a, a_ip.into());
            let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
            let mut icmp = snmp.lines().filter(|line| line.starts_with("Icmp:")).map(str::split_whitespace);
            let (names, counts) = (icmp.next().unwrap(), icmp.next().unwrap());
            let unreachable = names.zip(counts).find(|(name, _)| *name == "OutDestUnreachs").unwrap();
            assert_eq!(unreachable.1, "0");
        });
    }

    #[test]
    fn frames_of_any_bytes_are_survived() {
        use proptest::prelude::*;
        proptest!(|(bytes in prop::collection::vec(any::<u8>(), 0..200), segment: u16)| {
            Frame::parse(&bytes);
            // And ones that pass for RoCE v2, with any length of segments.
            let mut frame = vec![0; VIRTIO + Ethernet::LEN + HEADERS];
            frame[1] = VIRTIO_UDP_SEGMENTS;
            frame[4..6].copy_from_slice(&segment.to_ne_bytes());
            Ethernet { dst: [1; 6], src: [2; 6], ethertype: ETHERTYPE_IPV4 }.emit(&mut frame[VIRTIO..]);
            let (len, loopback) = ((Udp::LEN + bytes.len()) as u16, Ipv4Addr::LOCALHOST);
            let (total_len, protocol) = (Ipv4::LEN as u16 + len, PROTOCOL_UDP);
            Ipv4 { tos: 0, total_len, id: 0, dont_fragment: true, ttl: 64, protocol, src: loopback, dst: loopback }
                .emit(&mut frame[VIRTIO + Ethernet::LEN..]);
            Udp { src_port: 1, dst_port: UDP_PORT, len, checksum: 0 }
                .emit(&mut frame[VIRTIO + Ethernet::LEN + Ipv4::LEN..]);
            frame.extend(&bytes);
            let parsed = Frame::parse(&frame).unwrap();
            prop_assert_eq!(parsed.payload, &bytes[..]);
            for (n, packet) in parsed.payload.chunks(parsed.segment).enumerate() {
                parsed.checks(n as u16, packet);
            }
        });
    }
}
