use super::*;
use crate::link::RECEIVE_BUFFER;
use crate::link::testing::{collect, in_namespace, in_veth_pair, ip_command, packets, readable};
use rustix::net::sockopt;
use std::net::{Ipv4Addr, Ipv6Addr};

fn v4(c: u8, d: u8) -> IpAddr {
    Ipv4Addr::new(127, 1, c, d).into()
}

fn without_icrc(packet: &[u8]) -> &[u8] {
    &packet[..packet.len() - 4]
}

#[test]
fn runs_are_equal_packets_and_one_shorter() {
    assert_eq!(run(&[100, 100, 100, 40, 100], 64), (4, 340));
    assert_eq!(run(&[100, 120], 64), (1, 100));
    assert_eq!(run(&[96; 100], 64), (64, 64 * 96));
    assert_eq!(run(&[4112; 20], 64), (15, 15 * 4112));
    assert_eq!(run(&[100, 100], 1), (1, 100));
}

fn exchange(a: IpAddr, b: IpAddr) {
    let (from, to) = (a, b);
    let (mut a, mut b) = (UdpLink::bind(a).unwrap(), UdpLink::bind(b).unwrap());
    let (mut bytes, lens) = packets(&[100, 100, 100, 60, 16, 4116, 4116, 32]);
    assert_eq!(a.send(to, &mut bytes, &lens).unwrap(), lens.len());
    let got = collect(&mut b, lens.len());
    let mut at = 0;
    for ((source, packet), len) in got.iter().zip(&lens) {
        let sent = &bytes[at..at + usize::from(*len)];
        assert_eq!((*source, without_icrc(packet)), (from, without_icrc(sent)));
        at += sent.len();
    }
    assert_eq!(b.stats().bad_icrc, 0);
    assert_eq!(a.stats().tx_bytes, b.stats().rx_bytes);
    assert_eq!(a.stats().syscalls, 1, "equal packets share a send, and all sends a call");
}

#[test]
fn packets_arrive_whole_with_good_icrc() {
    exchange(v4(0, 1), v4(0, 2));
}

#[test]
fn ipv6_carries_them_too() {
    match UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => exchange_with_itself(Ipv6Addr::LOCALHOST.into()),
        Err(e) => remora_testing::skip(format!("no IPv6 here ({e})"), "sysctl net.ipv6.conf.lo.disable_ipv6=0"),
    }
}

/// IPv6 has one loopback address, so one link plays both parts.
fn exchange_with_itself(ip: IpAddr) {
    let mut link = UdpLink::bind(ip).unwrap();
    let (mut bytes, lens) = packets(&[100, 100, 40]);
    assert_eq!(link.send(ip, &mut bytes, &lens).unwrap(), 3);
    let got: Vec<u8> = collect(&mut link, 3).into_iter().flat_map(|(_, packet)| packet).collect();
    assert_eq!(got, bytes);
}

#[test]
fn a_wildcard_node_answers_from_the_address_that_was_asked() {
    // In a namespace of its own, as the wildcard collides with every other socket on the port.
    in_namespace(|| {
        let mut node = UdpLink::bind(Ipv4Addr::UNSPECIFIED.into()).unwrap();
        let (peer_ip, asked) = (Ipv4Addr::new(127, 1, 1, 1), Ipv4Addr::new(127, 1, 1, 2));
        let peer = UdpSocket::bind((peer_ip, 0)).unwrap();
        let mut packet = [7; 64];
        IcrcFlow::v4(peer_ip, asked, peer.local_addr().unwrap().port(), UDP_PORT).fill(0, &mut packet);
        peer.send_to(&packet, (asked, UDP_PORT)).unwrap();
        assert_eq!(collect(&mut node, 1)[0].0, IpAddr::V4(peer_ip));
        assert!(node.aim(peer_ip.into(), UDP_PORT).unwrap());
        assert_eq!(node.tx.from.ip(), IpAddr::V4(asked));
        assert!(node.aim(Ipv4Addr::new(127, 0, 0, 9).into(), UDP_PORT).unwrap(), "and elsewhere as the routes say");
        assert_eq!(node.max_mtu(), 4096);
    });
}

#[test]
fn damaged_and_foreign_datagrams_are_dropped_and_counted() {
    let (node_ip, peer_ip) = (Ipv4Addr::new(127, 1, 2, 1), Ipv4Addr::new(127, 1, 2, 2));
    let mut node = UdpLink::bind(node_ip.into()).unwrap();
    let peer = UdpSocket::bind((peer_ip, 0)).unwrap();
    let flow = IcrcFlow::v4(peer_ip, node_ip, peer.local_addr().unwrap().port(), UDP_PORT);
    let mut good = [3; 64];
    flow.fill(0, &mut good);
    let mut numbered = [4; 64];
    flow.fill(0x1234, &mut numbered);
    // Two flipped bits 20 apart: no IP ID explains that. (One that an ID explains is the price of not seeing it.)
    let mut bad = good;
    bad[30] ^= 1;
    bad[50] ^= 0x10;
    for datagram in [&bad[..], &[], &[1; 15], &good, &numbered] {
        peer.send_to(datagram, (node_ip, UDP_PORT)).unwrap();
    }
    let got = collect(&mut node, 2);
    assert_eq!((got[0].1.as_slice(), got[1].1.as_slice()), (&good[..], &numbered[..]));
    assert_eq!(node.stats().bad_icrc, 1);
    assert_eq!(node.stats().malformed, 2);
}

#[test]
fn a_peer_that_is_not_there_does_not_kill_the_link() {
    let (mut a, absent) = (UdpLink::bind(v4(3, 1)).unwrap(), v4(3, 2));
    let (mut bytes, lens) = packets(&[64, 64]);
    for _ in 0..3 {
        assert_eq!(a.send(absent, &mut bytes, &lens).unwrap(), 2);
        assert_eq!(a.recv(&mut |_, _| panic!("nothing was sent")).unwrap(), 0);
    }
    assert!(a.send(Ipv6Addr::LOCALHOST.into(), &mut bytes, &lens).is_err());
    let mut b = UdpLink::bind(absent).unwrap();
    assert!(!readable(&b));
    a.send(absent, &mut bytes, &lens).unwrap();
    assert!(readable(&b));
    assert_eq!(collect(&mut b, 2).len(), 2);
}

#[test]
fn a_message_of_eight_megabytes_waits_for_a_receiver_without_a_core() {
    let (mut a, mut b) = (UdpLink::bind(v4(6, 1)).unwrap(), UdpLink::bind(v4(6, 2)).unwrap());
    if sockopt::socket_recv_buffer_size(b.port.socket()).unwrap() < RECEIVE_BUFFER {
        let remedy = format!("Run it as root, or: sysctl net.core.rmem_max={RECEIVE_BUFFER}");
        return remora_testing::skip("sockets may not have 32 MB of buffer", &remedy);
    }
    let (bytes, lens) = packets(&[4116; 15]);
    let sends = (8 << 20) / bytes.len() + 1;
    for _ in 0..sends {
        assert_eq!(a.send(v4(6, 2), &mut bytes.clone(), &lens).unwrap(), lens.len());
    }
    assert_eq!(collect(&mut b, sends * lens.len()).len(), sends * lens.len());
}

#[test]
fn groups_reach_who_has_joined() {
    // In a namespace of its own: the group's socket shares its port with other tests' wildcards.
    in_namespace(|| {
        let (mut a, mut b, mut c) =
            (UdpLink::bind(v4(5, 1)).unwrap(), UdpLink::bind(v4(5, 2)).unwrap(), UdpLink::bind(v4(5, 3)).unwrap());
        let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
        for link in [&mut a, &mut b] {
            link.join(group).unwrap();
            link.join(group).unwrap();
        }
        assert!(b.join(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 9).into()).is_err(), "another family");
        let (mut bytes, lens) = packets(&[100, 4116]);
        assert_eq!(a.send(group, &mut bytes, &lens).unwrap(), 2);
        let mut got = Vec::new();
        b.recv_groups(&mut |from, to, packet| got.push((from, to, packet.to_vec()))).unwrap();
        assert!(a.ways.get(0).is_none(), "groups are near");
        assert_eq!(got, [(v4(5, 1), group, bytes[..100].to_vec()), (v4(5, 1), group, bytes[100..].to_vec())]);
        assert!(readable(&a), "its own come back");
        assert_eq!(a.recv_groups(&mut |_, _, _| panic!("and are left out")).unwrap(), 0);
        assert_eq!(c.recv_groups(&mut |_, _, _| panic!("not joined")).unwrap(), 0);
        b.leave(group);
        a.send(group, &mut bytes, &lens).unwrap();
        assert_eq!(b.recv_groups(&mut |_, _, _| panic!("has left")).unwrap(), 0);
    });
}

#[test]
fn what_met_congestion_says_so_to_the_engine() {
    let (node_ip, peer_ip) = (Ipv4Addr::new(10, 77, 1, 1), Ipv4Addr::new(10, 77, 1, 2));
    in_veth_pair(node_ip, peer_ip, move |other| {
        let mut node = UdpLink::bind(node_ip.into()).unwrap();
        let (mut link, peer) =
            other.run(|| (UdpLink::bind(peer_ip.into()).unwrap(), UdpSocket::bind((peer_ip, 0)).unwrap()));
        let mut packet = [7; 64];
        IcrcFlow::v4(peer_ip, node_ip, peer.local_addr().unwrap().port(), UDP_PORT).fill(0, &mut packet);
        for tos in [ECT, super::super::CE] {
            set_int_option(&peer, libc::IPPROTO_IP, libc::IP_TOS, tos.into()).unwrap();
            peer.send_to(&packet, (node_ip, UDP_PORT)).unwrap();
        }
        let fecn: Vec<bool> = collect(&mut node, 2).iter().map(|(_, packet)| packet[4] & 0x80 != 0).collect();
        assert_eq!(fecn, [false, true]);
        // What the link itself sends may be marked: one run, and several in a call.
        let socket = node.port.socket().try_clone().unwrap();
        set_int_option(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1).unwrap();
        for lens in [&[64][..], &[64, 100, 64]] {
            let (mut bytes, lens) = packets(lens);
            assert_eq!(link.send(node_ip.into(), &mut bytes, &lens).unwrap(), lens.len());
            let came = remora_testing::eventually("packets", || {
                let mut metas = [RecvMeta::default()];
                let mut room = [0; RX_BYTES];
                node.state.recv((&socket).into(), &mut [IoSliceMut::new(&mut room)], &mut metas).ok().map(|_| metas[0])
            });
            assert_eq!(came.ecn, Some(EcnCodepoint::Ect0));
        }
    });
}

#[test]
fn the_port_is_named_when_taken() {
    let _first = UdpLink::bind(v4(4, 1)).unwrap();
    let error = UdpLink::bind(v4(4, 1)).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("127.1.4.1:4791"));
}

#[test]
fn queue_pairs_have_source_ports_of_their_own_beyond_a_router() {
    let (ours, router, far) = (Ipv4Addr::new(10, 77, 2, 1), Ipv4Addr::new(10, 77, 2, 2), Ipv4Addr::new(10, 78, 0, 1));
    in_veth_pair(ours, router, move |other| {
        ip_command(&format!("route add {far}/32 via {router}")).unwrap();
        let receivers = other.run(|| {
            ip_command(&format!("address add {far}/32 dev theirs")).unwrap();
            [far, router].map(|at| UdpSocket::bind((at, UDP_PORT)).unwrap())
        });
        receivers.iter().for_each(|r| r.set_read_timeout(Some(remora_testing::PATIENCE)).unwrap());
        let mut link = UdpLink::bind(ours.into()).unwrap();
        // Two packets for each of forty queue pairs, some side by side, and messages of connection management.
        let order: Vec<u32> = (0..40u32).flat_map(|n| [n * 999 + 5, n * 999 + 5, 1]).collect();
        let (mut bytes, lens) = packets(&vec![64; order.len()]);
        for (packet, qpn) in bytes.chunks_mut(64).zip(&order) {
            packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        }
        let mut ports = std::collections::HashMap::new();
        for (to, receiver) in [far, router].iter().zip(&receivers) {
            assert_eq!(link.send((*to).into(), &mut bytes, &lens).unwrap(), lens.len());
            for _ in &order {
                let mut packet = [0; 128];
                let (len, from) = receiver.recv_from(&mut packet).unwrap();
                let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
                assert_eq!(from.ip(), IpAddr::V4(ours));
                // Numbered as one of a run, or alone.
                let flow = IcrcFlow::v4(ours, *to, from.port(), UDP_PORT);
                assert!((0..64).any(|id| flow.verify(id, &packet[..len]) == IcrcVerdict::Good), "{qpn:x}");
                let port = *ports.entry((*to, qpn)).or_insert(from.port());
                assert_eq!(port, from.port(), "always the same");
                match (*to == far, qpn) {
                    (true, 2..) => assert!(port >= 0xc000),
                    _ => assert_eq!(port, UDP_PORT),
                }
            }
        }
        let used: std::collections::HashSet<u16> = ports.values().copied().collect();
        assert!(used.len() > 8, "{used:?}");
    });
}
