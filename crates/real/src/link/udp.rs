//! RoCE v2 over UDP sockets, with segmentation and receive offload.
//!
//! One unconnected socket on port 4791, and for peers beyond a router some that only send. The kernel builds the IP header,
//! with these fields known because the ICRC covers them: DF is set, so an unconnected socket sends IP ID 0, and the segments of one GSO send are numbered
//! 0, 1, 2, .... A receiver does not see the IP ID. It expects that same numbering and otherwise accepts the one ID
//! with which the ICRC would be right (see [`IcrcVerdict`]), so the check is of 32 bits for our own packets and of 16 for
//! those of peers that number otherwise. The [`packet`](super::packet) link sees the ID and always checks all 32.

mod ports;
mod runs;
mod ways;

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use remora_wire::UDP_PORT;
use remora_wire::icrc::{IcrcFlow, IcrcVerdict};

use ports::Stray;
pub use ports::UdpPort;
use runs::Run;
use ways::Ways;

use super::admission::Admission;
use super::groups::Groups;
use super::packet::socket::{attach_filter, detach_filter};
use super::{
    ECT, Link, LinkKind, LinkStats, MAX_PACKET, MIN_PACKET, check_lens, ib_mtu, interface::Interface, is_full,
    is_passing, mark_congested, overhead, set_int_option,
};

/// Longest run of packets that the kernel coalesces.
const RX_BYTES: usize = 1 << 16;
/// Datagrams taken in one call when they come faster than one at a time.
const RX_BATCH: usize = 8;

/// Longest run of packets in one send: the largest UDP payload over IPv6 (and under that over IPv4).
const TX_BYTES: usize = 65535 - 40 - 8;

/// Peers whose view of our address is remembered when bound to the wildcard address.
const MAX_SOURCES: usize = 4096;

/// A UDP socket on port 4791.
pub struct UdpLink {
    port: UdpPort,
    state: UdpSocketState,
    /// Bound address, maybe the wildcard.
    local: IpAddr,
    /// Interface of a link-local IPv6 address, else 0.
    scope: u32,
    interface_mtu: usize,
    /// What packets say of congestion. Within one host there is none to be marked.
    ecn: Option<EcnCodepoint>,
    tx: Path,
    rx: Path,
    ways: Ways,
    /// Room for `RX_BATCH` datagrams.
    rx_buffer: Box<[u8]>,
    /// Calls in a row that brought most of what they asked for: from the fifth on several datagrams are asked for.
    busy: u32,
    /// Bound to the wildcard address: which of our addresses each peer talks to.
    sources: HashMap<IpAddr, IpAddr>,
    /// The index of the interface that has the bound address; 0 for the wildcard.
    interface: u32,
    groups: Groups,
    stats: LinkStats,
}

/// The last flow seen in one direction, as its ICRC seed costs as much as that of a short packet.
struct Path {
    from: SocketAddr,
    to: IpAddr,
    flow: IcrcFlow,
}

impl Path {
    fn new(from: SocketAddr, to: IpAddr) -> Option<Path> {
        let flow = match (from.ip(), to) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IcrcFlow::v4(src, dst, from.port(), UDP_PORT),
            (IpAddr::V6(src), IpAddr::V6(dst)) => IcrcFlow::v6(src, dst, from.port(), UDP_PORT),
            _ => return None,
        };
        Some(Path { from, to, flow })
    }
}

impl UdpLink {
    /// Binds port 4791 of `ip`, which may be the wildcard address.
    ///
    /// # Errors
    ///
    /// As [`UdpPort::bind`].
    pub fn bind(ip: IpAddr) -> io::Result<UdpLink> {
        UdpLink::at(UdpPort::bind(ip, 1)?.remove(0))
    }

    /// Carries what comes to one of the sockets of an address.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another link has it, or what the system says of the socket's options.
    pub fn at(port: UdpPort) -> io::Result<UdpLink> {
        port.take()?;
        UdpLink::over(port.clone()).inspect_err(|_| port.give_back())
    }

    fn over(port: UdpPort) -> io::Result<UdpLink> {
        let (ip, address, socket) = (port.ip(), port.address(), port.socket());
        let Interface { mtu: interface_mtu, index: interface } = port.interface();
        let scope = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
        let state = UdpSocketState::new(socket.into())?;
        if !ip.is_unspecified() {
            stop_reporting_destination(socket, ip)?;
        }
        let ecn = (!ip.is_loopback()).then_some(EcnCodepoint::Ect0);
        if ecn.is_some() {
            ask_for_marks(socket, ip)?;
        }
        let unused = || Path::new(address, ip).expect("one family");
        Ok(UdpLink {
            port,
            state,
            local: ip,
            scope,
            interface_mtu,
            ecn,
            tx: unused(),
            rx: unused(),
            ways: Ways::default(),
            rx_buffer: vec![0; RX_BATCH * RX_BYTES].into(),
            busy: 0,
            sources: HashMap::new(),
            interface,
            groups: Groups::new(),
            stats: LinkStats::default(),
        })
    }

    /// Takes `N` datagrams at most.
    #[inline]
    fn take<const N: usize>(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        let mut metas = [RecvMeta::default(); N];
        let mut room = self.rx_buffer.chunks_exact_mut(RX_BYTES);
        let mut buffers: [_; N] = std::array::from_fn(|_| IoSliceMut::new(room.next().unwrap_or_default()));
        self.stats.syscalls += 1;
        let came = match self.state.recv(self.port.socket().into(), &mut buffers, &mut metas) {
            Ok(came) => came,
            Err(e) if is_passing(&e) => 0,
            Err(e) => return Err(e),
        };
        self.busy = if 2 * came > N { self.busy.saturating_add(1) } else { 0 };
        let before = self.stats.rx_packets;
        for (at, meta) in metas[..came].iter().enumerate() {
            self.deliver(at * RX_BYTES, meta, sink);
        }
        Ok((self.stats.rx_packets - before) as usize)
    }

    /// Hands over the packets of a datagram that lies at `start` of the buffer.
    #[inline]
    fn deliver(&mut self, start: usize, meta: &RecvMeta, sink: &mut dyn FnMut(IpAddr, &[u8])) {
        let (from, to) = (meta.addr.ip(), meta.dst_ip.unwrap_or(self.local));
        if self.rx.from != meta.addr || self.rx.to != to {
            let Some(path) = Path::new(meta.addr, to) else { return };
            self.rx = path;
            if self.local.is_unspecified() {
                self.learn(from, to);
            }
        }
        let run = &mut self.rx_buffer[start..start + meta.len];
        if meta.ecn == Some(EcnCodepoint::Ce) {
            mark_congested(run, meta.stride);
        }
        self.stats.malformed += u64::from(run.is_empty());
        for (id, packet) in run.chunks(meta.stride.max(1)).enumerate() {
            if !(MIN_PACKET..=MAX_PACKET).contains(&packet.len()) {
                self.stats.malformed += 1;
            } else if self.rx.flow.verify(id as u16, packet) == IcrcVerdict::Bad {
                self.stats.bad_icrc += 1;
            } else if let Some(taken) = self.port.passes_on((from, to), packet) {
                self.stats.dropped += u64::from(!taken);
            } else {
                self.stats.received(from, packet.len());
                sink(from, packet);
            }
        }
    }

    /// Hands over what came to other engines' sockets.
    #[cold]
    fn deliver_strays(&mut self, strays: Vec<Stray>, sink: &mut dyn FnMut(IpAddr, &[u8])) -> usize {
        for ((from, to), packet) in &strays {
            if self.local.is_unspecified() {
                self.learn(*from, *to);
            }
            self.stats.received(*from, packet.len());
            sink(*from, packet);
        }
        strays.len()
    }

    /// The address that packets to `to` leave from.
    fn source_for(&mut self, to: IpAddr) -> io::Result<IpAddr> {
        if !self.local.is_unspecified() {
            return Ok(self.local);
        }
        if let Some(&source) = self.sources.get(&to) {
            return Ok(source);
        }
        // Connecting a datagram socket sends nothing; it asks the routing table.
        let probe = UdpSocket::bind(SocketAddr::new(self.local, 0))?;
        probe.connect(endpoint(to, self.scope))?;
        let source = probe.local_addr()?.ip();
        self.learn(to, source);
        Ok(source)
    }

    fn learn(&mut self, peer: IpAddr, ours: IpAddr) {
        if self.sources.len() < MAX_SOURCES || self.sources.contains_key(&peer) {
            self.sources.insert(peer, ours);
        }
    }

    /// Fills in the ICRCs of the first packets, as many as go into the runs of one call, of so many packets each. Returns how
    /// many runs these are.
    fn prepare(&self, segments: usize, mut bytes: &mut [u8], mut lens: &[u16], all: &mut [Run]) -> usize {
        let mut count = 0;
        for place in all {
            let Some(&segment) = lens.first() else { break };
            let (packets, total) = run(lens, segments);
            *place = Run { packets, bytes: total, segment };
            for (id, &len) in lens[..packets].iter().enumerate() {
                let (packet, after) = bytes.split_at_mut(usize::from(len));
                self.tx.flow.fill(id as u16, packet);
                bytes = after;
            }
            lens = &lens[packets..];
            count += 1;
        }
        count
    }

    /// Makes `self.tx` the path to `to` from this port. False if there is no route.
    fn aim(&mut self, to: IpAddr, port: u16) -> io::Result<bool> {
        let same = self.tx.to == to && self.tx.from.port() == port;
        if same && (self.tx.from.ip() == self.local || self.sources.get(&to) == Some(&self.tx.from.ip())) {
            return Ok(true);
        }
        if to.is_ipv4() != self.local.is_ipv4() {
            let message = format!("{to} cannot be reached from {}: another address family", self.local);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let Ok(source) = self.source_for(to) else {
            return Ok(false);
        };
        let path = Path::new(SocketAddr::new(source, port), to);
        Ok(path.map(|path| self.tx = path).is_some())
    }

    /// Sends by one of the ways, or from the link's own port.
    fn send_by(&mut self, way: Option<usize>, to: IpAddr, bytes: &mut [u8], lens: &[u16]) -> io::Result<usize> {
        let port = way.and_then(|way| self.ways.get(way)).map_or(UDP_PORT, |way| way.port);
        let reachable = self.aim(to, port)?;
        let longest = lens.iter().max().map_or(0, |&len| usize::from(len));
        if !reachable || longest + overhead(to) > self.interface_mtu {
            self.stats.dropped += lens.len() as u64;
            return Ok(lens.len());
        }
        let destination = endpoint(to, self.scope);
        let src_ip = self.local.is_unspecified().then_some(self.tx.from.ip());
        let (mut done, mut at) = (0, 0);
        while done < lens.len() {
            let segments = self.sender(way).1.max_gso_segments();
            let mut all = [Run::default(); runs::MOST];
            // Where the source is to be named with each, they go one by one.
            let most = if src_ip.is_some() { 1 } else { runs::MOST };
            let count = self.prepare(segments, &mut bytes[at..], &lens[done..], &mut all[..most]);
            let all = &all[..count];
            if count > 1 {
                self.stats.syscalls += 1;
                match runs::send(self.sender(way).0, &destination.into(), &bytes[at..], all) {
                    Ok(taken) => {
                        let packets = all[..taken].iter().map(|run| run.packets).sum();
                        let total: usize = all[..taken].iter().map(|run| run.bytes).sum();
                        self.stats.sent(to, packets, total);
                        (done, at) = (done + packets, at + total);
                        continue;
                    }
                    Err(e) if is_full(&e) => {
                        self.stats.full += 1;
                        break;
                    }
                    // Of the first run what follows says more.
                    Err(_) => {}
                }
            }
            let Run { packets: count, bytes: total, segment } = all[0];
            let contents = &bytes[at..at + total];
            let segment_size = (count > 1).then_some(usize::from(segment));
            let transmit = Transmit { destination, ecn: self.ecn, contents, segment_size, src_ip };
            self.stats.syscalls += 1;
            let (socket, state) = self.sender(way);
            match state.try_send(socket.into(), &transmit) {
                Ok(()) => self.stats.sent(to, count, total),
                Err(e) if is_full(&e) => {
                    self.stats.full += 1;
                    break;
                }
                // The interface cannot segment, as the state has noticed: from here on one by one.
                Err(_) if self.sender(way).1.max_gso_segments() < segments => continue,
                Err(_) => self.stats.dropped += count as u64,
            }
            done += count;
            at += total;
        }
        Ok(done)
    }

    /// The socket of a way, or the link's own.
    #[inline]
    fn sender(&self, way: Option<usize>) -> (&UdpSocket, &UdpSocketState) {
        match way.and_then(|way| self.ways.get(way)) {
            Some(way) => (&way.socket, &way.state),
            None => (self.port.socket(), &self.state),
        }
    }
}

impl Drop for UdpLink {
    fn drop(&mut self) {
        self.port.give_back();
    }
}

impl Link for UdpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn max_mtu(&self) -> usize {
        ib_mtu(self.interface_mtu)
    }

    fn send(&mut self, to: IpAddr, bytes: &mut [u8], lens: &[u16]) -> io::Result<usize> {
        check_lens(bytes, lens)?;
        if !self.ways.lead_to(to, &self.port) {
            return self.send_by(None, to, bytes, lens);
        }
        let (mut done, mut at) = (0, 0);
        while done < lens.len() {
            let way = self.ways.of(&bytes[at..]);
            let (mut count, mut end) = (0, at);
            while let Some(&len) = lens.get(done + count)
                && self.ways.of(&bytes[end..]) == way
            {
                (count, end) = (count + 1, end + usize::from(len));
            }
            let taken = self.send_by(way, to, &mut bytes[at..end], &lens[done..done + count])?;
            done += taken;
            if taken < count {
                break;
            }
            at = end;
        }
        Ok(done)
    }

    /// One datagram a call, maybe of many packets: asking for more costs a busy poller 5 % of its round trip, and gains
    /// nothing when packets come in runs. In a flood of single ones the system call is most of what each costs: then more
    /// are asked for.
    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        let strays = self.port.strays().map_or(0, |strays| self.deliver_strays(strays, sink));
        let came = match self.busy {
            0..4 => self.take::<1>(sink),
            _ => self.take::<RX_BATCH>(sink),
        };
        Ok(came? + strays)
    }

    fn admit(&mut self, admission: &Admission<'_>) {
        // Where it cannot be, all come in, as to any socket.
        let _ = match admission.is_all() {
            true => detach_filter(self.port.socket()),
            false => attach_filter(self.port.socket(), &admission.program()),
        };
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.groups.join(group, self.local, self.interface)
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.leave(group);
    }

    fn recv_groups(&mut self, sink: &mut dyn FnMut(IpAddr, IpAddr, &[u8])) -> io::Result<usize> {
        self.groups.recv(self.local, &mut self.stats, sink)
    }

    fn wait_fds(&self, out: &mut Vec<RawFd>) {
        out.push(self.port.socket().as_raw_fd());
        out.extend(self.port.stray_fd());
        self.groups.wait_fds(out);
    }

    /// A socket stays readable as long as packets wait in it: nothing to arm.
    fn arm(&mut self) -> bool {
        true
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

/// How many packets from the first go into one send, and their bytes: as many as are equally long, and one shorter.
fn run(lens: &[u16], max_segments: usize) -> (usize, usize) {
    let (mut count, mut total) = (0, 0);
    for &len in lens {
        if count == max_segments || len > lens[0] || total + usize::from(len) > TX_BYTES {
            break;
        }
        count += 1;
        total += usize::from(len);
        if len < lens[0] {
            break;
        }
    }
    (count, total)
}

fn endpoint(ip: IpAddr, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if scope != 0 => SocketAddrV6::new(ip, UDP_PORT, 0, scope).into(),
        _ => SocketAddr::new(ip, UDP_PORT),
    }
}

/// The destination is known when bound to one address, and every control message costs time a packet. So do marks, of which
/// a loopback address sees none.
fn stop_reporting_destination(socket: &UdpSocket, ip: IpAddr) -> io::Result<()> {
    let (level, destination, marks) = match ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_RECVTOS),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS),
    };
    set_int_option(socket, level, destination, 0)?;
    if ip.is_loopback() { set_int_option(socket, level, marks, 0) } else { Ok(()) }
}

/// Switches may mark packets instead of dropping them.
fn ask_for_marks(socket: &UdpSocket, ip: IpAddr) -> io::Result<()> {
    match ip {
        IpAddr::V4(_) => set_int_option(socket, libc::IPPROTO_IP, libc::IP_TOS, ECT.into()),
        IpAddr::V6(_) => set_int_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ECT.into()),
    }
}

#[cfg(test)]
mod tests;
