//! Sockets at one address, one for each of several engines, and the program by which the kernel hands datagrams to them.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{BPF_A, BPF_JA, sock_filter};
use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_H, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_MOD, BPF_RET, BPF_RSH, BPF_W};
use parking_lot::Mutex;
use remora_nic::Lane;
use rustix::event::{EventfdFlags, eventfd};
use socket2::{Domain, Protocol, Socket, Type};

use super::endpoint;
use crate::device::Numbers;
use crate::link::admission::op;
use crate::link::interface::{self, Interface};
use crate::link::packet::socket::{attach_choice, detach_filter};
use crate::link::{groups, lanes, set_buffers};

/// The sockets of one address. They end together: the kernel tells them apart by their places.
#[derive(Debug)]
struct UdpPorts {
    ip: IpAddr,
    address: SocketAddr,
    interface: Interface,
    sockets: Vec<UdpSocket>,
    /// Whether a link has each.
    taken: Vec<AtomicBool>,
    /// What tells peers these engines from others: see [`remora_nic::cm::CmConfig::instance`].
    instance: u64,
    /// What came to other sockets than their own; none where there is one.
    strays: Vec<Strays>,
}

/// Packets of one engine that came to the sockets of others: the kernel looks at the first of a run, and what follows it may be
/// for another engine.
#[derive(Debug)]
struct Strays {
    waiting: AtomicBool,
    packets: Mutex<Vec<Stray>>,
    bell: OwnedFd,
}

/// Where it came from and went to, and its bytes, whose ICRC is good.
pub(super) type Stray = ((IpAddr, IpAddr), Box<[u8]>);

/// Datagrams of a former link that are thrown away at most.
const LEFT_OVER: usize = 1 << 17;

/// Those that wait for one engine at most: a sender makes more of them only if that engine does not keep up.
const MOST_STRAYS: usize = 4096;

/// One of the sockets of an address: that of the engine with this lane.
#[derive(Clone, Debug)]
pub struct UdpPort {
    ports: Arc<UdpPorts>,
    lane: Lane,
}

impl UdpPort {
    /// Binds port 4791 of `ip`, which may be the wildcard address, for so many engines: at least one, at most
    /// [`Lane::MOST`].
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another process has the port: nodes of one machine take different addresses of 127.0.0.0/8.
    /// `AddrNotAvailable` if no interface has the address. `InvalidInput` for a number that cannot be.
    pub fn bind(ip: IpAddr, count: u16) -> io::Result<Vec<UdpPort>> {
        let lanes = lanes(count)?;
        let interface = match ip.is_unspecified() {
            true => Interface { mtu: interface::smallest_mtu()?, index: 0 },
            false => interface::owning(ip)?,
        };
        let scoped = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let address = endpoint(ip, if scoped { interface.index } else { 0 });
        let mut sockets = Vec::with_capacity(lanes.len());
        for lane in &lanes {
            // The first binds as if it were alone, so that an address that somebody has is not taken from him.
            let socket =
                bind(address, lane.index() > 0).map_err(|e| io::Error::new(e.kind(), format!("UDP {address}: {e}")))?;
            socket.set_reuse_port(count > 1)?;
            groups::send_by(&socket, ip, interface.index)?;
            sockets.push(UdpSocket::from(socket));
        }
        if count > 1 {
            attach_choice(&sockets[0], &choice(count))?;
        }
        let strays = lanes.iter().filter(|_| count > 1).map(|_| {
            let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            Ok(Strays { waiting: AtomicBool::new(false), packets: Mutex::default(), bell })
        });
        let strays = strays.collect::<io::Result<_>>()?;
        let taken = lanes.iter().map(|_| AtomicBool::new(false)).collect();
        let drawn = crate::entropy().map_err(io::Error::other)?;
        let instance = u64::from_ne_bytes(*drawn.first_chunk().expect("32 bytes"));
        let ports = Arc::new(UdpPorts { ip, address, interface, sockets, taken, instance, strays });
        Ok(lanes.into_iter().map(|lane| Self { ports: ports.clone(), lane }).collect())
    }

    /// Which of the address's engines it belongs to.
    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// The address, maybe the wildcard.
    pub fn ip(&self) -> IpAddr {
        self.ports.ip
    }

    /// What the numbers of its device begin with.
    pub(crate) fn numbers(&self) -> Numbers {
        Numbers { lane: self.lane, ids: self.lane, instance: Some(self.ports.instance) }
    }

    /// For a link that begins: nobody else has the socket, and nothing is in it of one before.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another link has it.
    pub(super) fn take(&self) -> io::Result<()> {
        if self.taken().swap(true, Ordering::AcqRel) {
            let why = format!("UDP {}: another client has this port of it", self.ports.address);
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        // There may be none.
        let _ = detach_filter(self.socket());
        self.socket().set_nonblocking(true).inspect_err(|_| self.give_back())?;
        let mut byte = [0];
        for _ in 0..LEFT_OVER {
            if self.socket().recv(&mut byte).is_err() {
                break;
            }
        }
        drop(self.strays());
        Ok(())
    }

    /// The link has ended.
    pub(super) fn give_back(&self) {
        self.taken().store(false, Ordering::Release);
    }

    fn taken(&self) -> &AtomicBool {
        &self.ports.taken[usize::from(self.lane.index())]
    }

    /// The address with port and scope.
    pub(super) fn address(&self) -> SocketAddr {
        self.ports.address
    }

    /// The interface that has the address; for the wildcard the smallest MTU, and index 0.
    pub(super) fn interface(&self) -> Interface {
        self.ports.interface
    }

    #[inline]
    pub(super) fn socket(&self) -> &UdpSocket {
        &self.ports.sockets[usize::from(self.lane.index())]
    }

    /// Whether a packet is for another engine, which then gets it; false in the second place if that has too many already.
    #[inline]
    pub(super) fn passes_on(&self, way: (IpAddr, IpAddr), packet: &[u8]) -> Option<bool> {
        match self.lane.of() {
            1 => None,
            of => {
                let whose = whose(packet, of);
                (whose != self.lane.index()).then(|| self.ports.strays[usize::from(whose)].put(way, packet))
            }
        }
    }

    /// The packets that came to others' sockets, if there are any.
    #[inline]
    pub(super) fn strays(&self) -> Option<Vec<Stray>> {
        let strays = self.ports.strays.get(usize::from(self.lane.index()))?;
        if !strays.waiting.load(Ordering::Acquire) {
            return None;
        }
        let (mut packets, mut rung) = (strays.packets.lock(), [0; 8]);
        // Whoever put some has rung before he let go of them.
        let _ = rustix::io::read(&strays.bell, &mut rung);
        strays.waiting.store(false, Ordering::Release);
        Some(std::mem::take(&mut *packets))
    }

    /// What becomes readable when there are some.
    pub(super) fn stray_fd(&self) -> Option<RawFd> {
        self.ports.strays.get(usize::from(self.lane.index())).map(|strays| strays.bell.as_raw_fd())
    }
}

/// A socket with the buffers that links want, bound to an address, with others or alone.
pub(super) fn bind(address: SocketAddr, with_others: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(with_others)?;
    socket.bind(&address.into())?;
    set_buffers(&socket)?;
    Ok(socket)
}

impl Strays {
    #[cold]
    fn put(&self, way: (IpAddr, IpAddr), packet: &[u8]) -> bool {
        let mut packets = self.packets.lock();
        if packets.len() >= MOST_STRAYS {
            return false;
        }
        packets.push((way, packet.into()));
        if !self.waiting.swap(true, Ordering::AcqRel) {
            // A full counter means that it is being woken already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        true
    }
}

/// The index of the engine, of `of`, that a packet is for, as [`choice`] has it.
fn whose(packet: &[u8], of: u16) -> u8 {
    // What is too short for a look is for the first one.
    named(packet).map_or(0, |first| (first as u16 % of) as u8)
}

/// The first byte of the number that a packet names.
fn named(packet: &[u8]) -> Option<u32> {
    let number = |at: u32| packet.get(at as usize..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let qpn = number(QPN)? & 0xff_ffff;
    if qpn != 1 {
        return Some(qpn >> 16);
    }
    let attribute = packet.get(ATTRIBUTE as usize..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))?;
    let receivers = if BY_FIRST.contains(&attribute.into()) { 0 } else { number(RECEIVERS)? };
    Some(if receivers == 0 { number(SENDERS)? } else { receivers } >> 24)
}

/// Where things stand in a datagram: the BTH's queue pair, behind a byte; and of connection management, behind BTH and DETH,
/// the attribute and the communication ids of sender and receiver (IBTA volume 1, 9.2, 13.4.3 and 12.6).
const QPN: u32 = 4;
const ATTRIBUTE: u32 = 20 + 16;
const SENDERS: u32 = 20 + 24;
const RECEIVERS: u32 = SENDERS + 4;
/// Messages that know no number of their receiver's, or that have its number in the first place: REQ, SIDR REQ and SIDR
/// REP. So does the REJ of a caller who has heard nothing, whose receiver's id is 0.
const BY_FIRST: [u32; 3] = [0x10, 0x17, 0x18];

/// The program: of a datagram, the place of the socket that it is for. What is too short is for the first one.
fn choice(count: u16) -> Vec<sock_filter> {
    let load = |width: u32, at: u32| op(BPF_LD | width | BPF_ABS, 0, 0, at);
    let compute = |what: u32, k: u32| op(BPF_ALU | what | BPF_K, 0, 0, k);
    let equal = |yes: u8, no: u8, k: u32| op(BPF_JMP | BPF_JEQ | BPF_K, yes, no, k);
    let to = |skip: u32| op(BPF_JMP | BPF_JA, 0, 0, skip);
    vec![
        load(BPF_W, QPN),
        compute(BPF_AND, 0xff_ffff),
        equal(2, 0, 1),
        compute(BPF_RSH, 16),
        to(8),
        load(BPF_H, ATTRIBUTE),
        equal(4, 0, BY_FIRST[0]),
        equal(3, 0, BY_FIRST[1]),
        equal(2, 0, BY_FIRST[2]),
        load(BPF_W, RECEIVERS),
        equal(0, 1, 0),
        load(BPF_W, SENDERS),
        compute(BPF_RSH, 24),
        compute(BPF_MOD, count.into()),
        op(BPF_RET | BPF_A, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::link::admission::Admission;
    use crate::link::testing::{collect, ip, readable};
    use crate::link::udp::UdpLink;
    use remora_wire::cm::{CmMessage, Drep, Mad, Rej, Rep, Req, SidrRep, SidrReq};
    use remora_wire::icrc::IcrcFlow;
    use remora_wire::packet::Packet;
    use remora_wire::{Bth, Deth, Opcode, Psn, UDP_PORT};
    use std::net::Ipv4Addr;

    /// A packet for a queue pair.
    fn packet(qpn: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        let len = Packet::new(Bth::new(Opcode::UcWriteOnly, qpn, Psn::new(0)), &[7; 16]).emit(&mut bytes);
        bytes.truncate(len);
        bytes
    }

    /// A message of connection management.
    fn message(message: CmMessage) -> Vec<u8> {
        let (mut mad, mut bytes) = ([0; Mad::LEN], vec![0; 512]);
        Mad { status: 0, transaction_id: 3, message }.emit(&mut mad);
        let deth = Deth { qkey: 0x8001_0000, reserved: 0, src_qp: 1 };
        let packet = Packet::new(Bth::new(Opcode::UdSendOnly, 1, Psn::new(0)), &mad);
        let len = Packet { deth: Some(deth), ..packet }.emit(&mut bytes);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn datagrams_come_to_the_engine_whose_numbers_they_name() {
        let (here, there) = (Ipv4Addr::new(127, 1, 9, 1), Ipv4Addr::new(127, 1, 9, 2));
        let ports = UdpPort::bind(here.into(), 3).unwrap();
        let taken = UdpPort::bind(here.into(), 2).expect_err("another process' engines are not let in");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let mut links: Vec<UdpLink> = ports.into_iter().map(|port| UdpLink::at(port).unwrap()).collect();
        let peer = UdpSocket::bind((there, 0)).unwrap();
        let flow = IcrcFlow::v4(there, here, peer.local_addr().unwrap().port(), UDP_PORT);
        let (ours, theirs) = (|n: u32| n << 24 | 0x55, 0xff00_0001);
        for n in [0u32, 1, 2, 3, 7, 200, 254, 255] {
            let sent = [
                packet(n << 16 | 9),
                message(CmMessage::Req(Req { local_comm_id: ours(n), ..Req::default() })),
                message(CmMessage::Rep(Rep { local_comm_id: theirs, remote_comm_id: ours(n), ..Rep::default() })),
                message(CmMessage::Drep(Drep { local_comm_id: theirs, remote_comm_id: ours(n), ..Drep::default() })),
                message(CmMessage::Rej(Rej { local_comm_id: ours(n), remote_comm_id: 0, ..Rej::default() })),
                message(CmMessage::Rej(Rej { local_comm_id: theirs, remote_comm_id: ours(n), ..Rej::default() })),
                message(CmMessage::SidrReq(SidrReq { request_id: ours(n), ..SidrReq::default() })),
                message(CmMessage::SidrRep(SidrRep { request_id: ours(n), ..SidrRep::default() })),
            ];
            for mut datagram in sent {
                flow.fill(0, &mut datagram);
                peer.send_to(&datagram, (here, UDP_PORT)).unwrap();
                let lane = n as usize % 3;
                assert_eq!(whose(&datagram, 3), lane as u8, "{n}");
                assert_eq!(collect(&mut links[lane], 1), [(there.into(), datagram)], "{n}");
            }
        }
        // What names nobody.
        peer.send_to(&[1; 3], (here, UDP_PORT)).unwrap();
        remora_testing::eventually("the short one", || {
            links[0].recv(&mut |_, _| panic!("it is too short")).unwrap();
            (links[0].stats().malformed == 1).then_some(())
        });
        // One that ends leaves the others where they are.
        drop(links.remove(0));
        let mut datagram = packet(2 << 16 | 1);
        flow.fill(0, &mut datagram);
        peer.send_to(&datagram, (here, UDP_PORT)).unwrap();
        assert_eq!(collect(&mut links[1], 1).len(), 1);
    }

    #[test]
    fn a_run_of_packets_for_several_engines_comes_to_each() {
        let (here, there) = (ip(78), ip(79));
        let mut links: Vec<UdpLink> =
            UdpPort::bind(here, 3).unwrap().into_iter().map(|port| UdpLink::at(port).unwrap()).collect();
        let mut peer = UdpLink::bind(there).unwrap();
        // In one send, which the kernel takes for a datagram until somebody has it.
        let sent: Vec<Vec<u8>> = (0..60u32).map(|n| packet((n * 7 % 256) << 16 | n)).collect();
        let (mut bytes, lens) = (sent.concat(), vec![sent[0].len() as u16; sent.len()]);
        assert_eq!(peer.send(here, &mut bytes, &lens).unwrap(), sent.len());
        assert_eq!(peer.stats().syscalls, 1);
        let mut got: [Vec<u32>; 3] = Default::default();
        remora_testing::eventually("all of them", || {
            for (link, got) in links.iter_mut().zip(&mut got) {
                link.recv(&mut |from, packet| {
                    assert_eq!(from, there);
                    got.push(u32::from_be_bytes([0, packet[5], packet[6], packet[7]]));
                })
                .unwrap();
            }
            (got.iter().map(Vec::len).sum::<usize>() == sent.len()).then_some(())
        });
        for (lane, got) in (0..).zip(&got) {
            assert!(!got.is_empty() && got.iter().all(|qpn| (qpn >> 16) % 3 == lane), "{lane}: {got:x?}");
            assert!(got.is_sorted_by_key(|qpn| qpn & 0xffff), "in their order");
        }
        // Who sleeps is woken by what came to another's socket.
        let asleep = links.remove(2);
        assert!(!readable(&asleep));
        let mut bytes = [packet(0), packet(2 << 16)].concat();
        peer.send(here, &mut bytes, &[lens[0]; 2]).unwrap();
        assert_eq!(collect(&mut links[0], 1).len(), 1);
        assert!(readable(&asleep));
    }

    #[test]
    fn strays_are_all_had_and_their_bell_is_silent_after_the_last() {
        let ports = UdpPort::bind(ip(82), 2).unwrap();
        let (count, from) = (200_000u32, (ip(83), ip(82)));
        let put = |n: u32| {
            while ports[0].passes_on(from, &packet(1 << 16 | n & 0xffff)) != Some(true) {
                std::thread::yield_now();
            }
        };
        let mut got = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..count).for_each(put));
            while got < count {
                for (way, bytes) in ports[1].strays().unwrap_or_default() {
                    assert!(way == from && bytes[..] == packet(1 << 16 | got & 0xffff)[..], "{got}, in their order");
                    got += 1;
                }
            }
        });
        let mut rung = [0; 8];
        assert!(ports[1].strays().is_none_or(|strays| strays.is_empty()));
        assert!(rustix::io::read(&ports[0].ports.strays[1].bell, &mut rung).is_err(), "whoever sleeps is not woken");
        // Of one that does not keep up, no more wait than may.
        let taken = (0..2 * MOST_STRAYS).filter(|_| ports[0].passes_on(from, &packet(1 << 16)) == Some(true)).count();
        assert_eq!(taken, MOST_STRAYS);
    }

    #[test]
    fn a_port_is_one_links_at_a_time_and_clean_when_it_is_taken_again() {
        let (here, there) = (ip(80), ip(81));
        let port = UdpPort::bind(here, 2).unwrap().remove(1);
        let mut first = UdpLink::at(port.clone()).unwrap();
        assert_eq!(UdpLink::at(port.clone()).err().expect("taken").kind(), io::ErrorKind::AddrInUse);
        // Nobody's packets come in, and then one that nobody takes waits.
        first.admit(&Admission { queue_pairs: Some(&[0x11_0001]), share: u32::MAX });
        let mut peer = UdpLink::bind(there).unwrap();
        let (mut listed, mut other) = (packet(0x11_0001), packet(0x31_0005));
        peer.send(here, &mut listed, &[28]).unwrap();
        drop(first);
        let mut again = UdpLink::at(port).unwrap();
        peer.send(here, &mut other, &[28]).unwrap();
        let got = collect(&mut again, 1);
        assert_eq!(got[0].1[4..8], [0, 0x31, 0, 5], "nothing of before, and no filter");
    }

    #[test]
    fn numbers_of_engines_that_cannot_be_are_refused() {
        for count in [0, 257] {
            let refused = UdpPort::bind(ip(77), count).expect_err("no lanes");
            assert!(refused.to_string().contains("at most 256"), "{refused}");
        }
    }
}
