//! What a link carries, in a file for Wireshark, tshark and whoever reads pcap.
//!
//! A link has packets from BTH to ICRC; a capture wants them whole. So [`Pcap`] makes the IP and UDP headers up, over
//! shared memory too. Addresses and lengths are the true ones; both ports are 4791, as a peer's source port is not known
//! above the link; over IPv4 there is no UDP checksum, as RoCE v2 has it. Where the link carries an ICRC, the file has
//! that one, with the IP identification that it tells of. Where it carries none, and where a peer's source port was
//! another, the file has the ICRC that belongs to the headers made up: every packet of a capture is valid.
//!
//! tshark takes payload that begins with the number of an Ethernet protocol for such a packet, which is then malformed as
//! a rule; `--disable-heuristic eth_over_ib` keeps it from guessing.

mod file;

use std::io;
use std::net::IpAddr;
use std::time::SystemTime;

use remora_wire::UDP_PORT;
use remora_wire::icrc::{IcrcFlow, IcrcVerdict};
use remora_wire::ip::{Ipv4, Ipv6, PROTOCOL_UDP, PseudoHeader, Udp};

pub use file::{Captured, PcapFile};

use super::{Link, forward, overhead};

/// A link whose packets go into a [`PcapFile`] too: those it sends when it has taken them, those it receives before
/// anybody else sees them.
pub struct Pcap<L> {
    inner: L,
    local: IpAddr,
    file: PcapFile,
    sent: Headers,
    received: Headers,
}

impl<L: Link> Pcap<L> {
    /// Wraps `inner`, whose own address is `local`.
    pub fn new(inner: L, local: IpAddr, file: PcapFile) -> Pcap<L> {
        let headers = || Headers::new(local, local);
        Pcap { inner, local, file, sent: headers(), received: headers() }
    }
}

impl<L: Link> Link for Pcap<L> {
    forward!(self => self.inner; kind max_mtu reach look_ahead admit join leave wait_fds arm disarm stats);

    fn send(&mut self, to: IpAddr, bytes: &mut [u8], lens: &[u16]) -> io::Result<usize> {
        let at = SystemTime::now();
        let taken = self.inner.send(to, bytes, lens)?;
        let (icrc, mut rest) = (self.inner.kind().carries_icrc(), &*bytes);
        self.sent.aim(self.local, to);
        for &len in &lens[..taken] {
            let (packet, after) = rest.split_at(usize::from(len));
            self.file.record(at, self.sent.len(packet), |out| self.sent.write(packet, icrc, out));
            rest = after;
        }
        Ok(taken)
    }

    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        let Self { inner, local, file, received, .. } = self;
        let icrc = inner.kind().carries_icrc();
        inner.recv(&mut |from, packet| {
            received.aim(from, *local);
            file.record(SystemTime::now(), received.len(packet), |out| received.write(packet, icrc, out));
            sink(from, packet);
        })
    }

    fn recv_groups(&mut self, sink: &mut dyn FnMut(IpAddr, IpAddr, &[u8])) -> io::Result<usize> {
        let Self { inner, file, received, .. } = self;
        let icrc = inner.kind().carries_icrc();
        inner.recv_groups(&mut |from, group, packet| {
            received.aim(from, group);
            file.record(SystemTime::now(), received.len(packet), |out| received.write(packet, icrc, out));
            sink(from, group, packet);
        })
    }
}

/// The headers of packets from one address to another.
struct Headers {
    from: IpAddr,
    to: IpAddr,
    flow: IcrcFlow,
}

impl Headers {
    fn new(from: IpAddr, to: IpAddr) -> Headers {
        let flow = match (from, to) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IcrcFlow::v4(src, dst, UDP_PORT, UDP_PORT),
            _ => IcrcFlow::v6(mapped(from), mapped(to), UDP_PORT, UDP_PORT),
        };
        Headers { from, to, flow }
    }

    /// Makes them those from `from` to `to`. The flow's constant part costs as much as the CRC of a short packet.
    fn aim(&mut self, from: IpAddr, to: IpAddr) {
        if (self.from, self.to) != (from, to) {
            *self = Headers::new(from, to);
        }
    }

    fn is_v4(&self) -> bool {
        self.from.is_ipv4() && self.to.is_ipv4()
    }

    /// Bytes of `packet` with its headers.
    fn len(&self, packet: &[u8]) -> usize {
        packet.len() + overhead(if self.is_v4() { self.from } else { mapped(self.from).into() })
    }

    /// Appends `packet` with headers in front of it and the ICRC that belongs to them.
    fn write(&self, packet: &[u8], carries_icrc: bool, out: &mut Vec<u8>) {
        let start = out.len();
        let id = match carries_icrc.then(|| self.flow.verify(0, packet)) {
            Some(IcrcVerdict::Good) => Some(0),
            Some(IcrcVerdict::GoodWithId(id)) => Some(id),
            Some(IcrcVerdict::Bad) | None => None,
        };
        let udp_len = (Udp::LEN + packet.len()) as u16;
        let udp = Udp { src_port: UDP_PORT, dst_port: UDP_PORT, len: udp_len, checksum: 0 };
        match (self.from, self.to) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let total_len = Ipv4::LEN as u16 + udp_len;
                let id = id.unwrap_or(0);
                let ip = Ipv4 { tos: 0, total_len, id, dont_fragment: true, ttl: 64, protocol: PROTOCOL_UDP, src, dst };
                out.resize(start + Ipv4::LEN + Udp::LEN, 0);
                ip.emit(&mut out[start..]);
                udp.emit(&mut out[start + Ipv4::LEN..]);
            }
            (src, dst) => {
                let (payload_len, next_header, hop_limit) = (udp_len, PROTOCOL_UDP, 64);
                let (src, dst) = (mapped(src), mapped(dst));
                let ip = Ipv6 { traffic_class: 0, flow_label: 0, payload_len, next_header, hop_limit, src, dst };
                out.resize(start + Ipv6::LEN + Udp::LEN, 0);
                ip.emit(&mut out[start..]);
                udp.emit(&mut out[start + Ipv6::LEN..]);
            }
        }
        let body = out.len();
        out.extend_from_slice(packet);
        if id.is_none() {
            self.flow.fill(0, &mut out[body..]);
        }
        if !self.is_v4() {
            // Over IPv6 a checksum is no choice (RFC 8200, 8.1).
            let (src, dst) = (mapped(self.from).into(), mapped(self.to).into());
            let checksum = PseudoHeader { src, dst }.checksum(&out[body - Udp::LEN..]);
            Udp { checksum, ..udp }.emit(&mut out[body - Udp::LEN..]);
        }
    }
}

/// An IPv6 address, or the one that stands for an IPv4 address.
fn mapped(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::loopback::Hub;
    use crate::link::lossy::{Faults, Lossy};
    use crate::link::testing::{collect, ip, packets};
    use crate::link::udp::UdpLink;
    use remora_wire::icrc::verify_ip;
    use std::net::Ipv6Addr;

    /// The IP packets of a capture, whose records and headers must be right.
    fn read(path: &std::path::Path) -> Vec<Vec<u8>> {
        let bytes = std::fs::read(path).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(20)), (0xa1b2_3c4d, 0x0004_0002, 101));
        let (mut at, mut found, mut last) = (24, Vec::new(), (0, 0));
        while at < bytes.len() {
            let (time, kept) = ((word(at), word(at + 4)), word(at + 8));
            assert!(time.1 < 1_000_000_000 && time >= last && kept == word(at + 12));
            let packet = bytes[at + 16..at + 16 + kept as usize].to_vec();
            assert_eq!(verify_ip(&packet), Ok(true), "the ICRC of packet {}", found.len());
            at += 16 + packet.len();
            (last, found) = (time, [found, vec![packet]].concat());
        }
        found
    }

    fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
        match packet[0] >> 4 {
            4 => Ipv4::parse(packet).map(|ip| (ip.src.into(), ip.dst.into())).unwrap(),
            _ => Ipv6::parse(packet).map(|ip| (ip.src.into(), ip.dst.into())).unwrap(),
        }
    }

    fn file() -> (tempfile::TempDir, std::path::PathBuf, PcapFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("link.pcap");
        let file = PcapFile::create(&path).unwrap();
        (dir, path, file)
    }

    #[test]
    fn without_an_icrc_of_its_own_a_packet_gets_the_right_one() {
        let hub = Hub::new();
        let (_dir, path, file) = file();
        let mut a = Pcap::new(hub.join(ip(1)).unwrap(), ip(1), file.clone());
        // Between the capture and the device: what is lost there has come by.
        let faults = Faults { drop: 1.0, ..Faults::default() };
        let mut b = Lossy::new(Pcap::new(hub.join(ip(2)).unwrap(), ip(2), file.clone()), faults, 1);
        let (mut bytes, lens) = packets(&[16, 100, 4200]);
        assert_eq!(a.send(ip(2), &mut bytes, &lens).unwrap(), 3);
        assert_eq!(b.recv(&mut |_, _| panic!("all is lost")).unwrap(), 0);
        b.send(ip(1), &mut bytes[..16], &lens[..1]).unwrap();
        let captured = file.finish();
        assert_eq!((captured.packets, captured.lost), (7, 0));
        let found = read(&path);
        let lens: Vec<usize> = found.iter().map(|packet| packet.len() - 28).collect();
        assert_eq!(lens, [16, 100, 4200, 16, 100, 4200, 16]);
        assert!(found[..6].iter().all(|packet| addresses(packet) == (ip(1), ip(2))));
        assert_eq!(addresses(&found[6]), (ip(2), ip(1)));
        assert_eq!(found[1][28..124], bytes[16..112], "all but the ICRC is as it was");
    }

    #[test]
    fn what_udp_carried_keeps_its_icrc_and_tells_its_ip_id() {
        let (from, to) = (IpAddr::from([127, 1, 30, 1]), IpAddr::from([127, 1, 30, 2]));
        let (_dir, path, file) = file();
        let mut a = Pcap::new(UdpLink::bind(from).unwrap(), from, file.clone());
        let mut b = UdpLink::bind(to).unwrap();
        let (mut bytes, lens) = packets(&[100, 100, 60]);
        a.send(to, &mut bytes, &lens).unwrap();
        let carried: Vec<u8> = collect(&mut b, 3).into_iter().flat_map(|(_, packet)| packet).collect();
        file.finish();
        let found = read(&path);
        assert_eq!(found.iter().flat_map(|packet| packet[28..].to_vec()).collect::<Vec<_>>(), carried);
        // The segments of one send are numbered.
        assert_eq!(found.iter().map(|packet| Ipv4::parse(packet).unwrap().id).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn over_ipv6_the_udp_checksum_is_right_too() {
        let hub = Hub::new();
        let here = IpAddr::from(Ipv6Addr::LOCALHOST);
        let (_dir, path, file) = file();
        let mut link = Pcap::new(hub.join(here).unwrap(), here, file.clone());
        let (mut bytes, lens) = packets(&[101]);
        link.send(here, &mut bytes, &lens).unwrap();
        assert_eq!(collect(&mut link, 1).len(), 1);
        file.finish();
        for packet in read(&path) {
            let checksum = PseudoHeader { src: here, dst: here }.checksum(&packet[Ipv6::LEN..]);
            assert_eq!((packet.len(), addresses(&packet)), (149, (here, here)));
            assert_eq!(Udp::parse(&packet[Ipv6::LEN..]).unwrap().checksum, checksum);
        }
    }

    #[test]
    fn two_do_not_write_one_file_and_a_bad_path_is_told() {
        let (_dir, path, file) = file();
        let error = PcapFile::create(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        drop(file);
        // Another test may just start a child process, which holds the lock until it has become another program.
        remora_testing::eventually("the lock", || PcapFile::create(&path).ok());
        assert!(PcapFile::create(std::path::Path::new("/nowhere/link.pcap")).is_err());
    }

    #[test]
    fn nobody_waits_for_a_disk_and_what_it_did_not_take_is_counted() {
        const PACKETS: u64 = 10_000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slow");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let there = path.clone();
        // Whoever opens a pipe waits for the other end.
        let reader = std::thread::spawn(move || std::fs::File::open(there).unwrap());
        let file = PcapFile::create(&path).unwrap();
        let reader = reader.join().unwrap();
        let hub = Hub::new();
        let mut link = Pcap::new(hub.join(ip(1)).unwrap(), ip(1), file.clone());
        let (mut bytes, lens) = packets(&[4200]);
        for _ in 0..PACKETS / 2 {
            // It takes none of the 42 MB but what a pipe holds.
            assert_eq!(link.send(ip(1), &mut bytes, &lens).unwrap(), 1);
            assert_eq!(collect(&mut link, 1).len(), 1);
        }
        drop(reader);
        let captured = file.finish();
        assert_eq!((captured.packets, captured.lost), (0, PACKETS));
        assert!(captured.to_string().contains("; 10000 are not: Broken pipe"), "{captured}");
        assert_eq!(file.finish().lost, PACKETS, "it is said again");
    }
}
