//! Multicast groups: who gets a datagram that was sent to one, and IPv6 besides IPv4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::common::{A, B, CLEAN, Pair, Setup, Side, V6};
use remora_nic::*;
use remora_wire::ip::Ipv6;

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
const OTHER: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x77));

/// `count` datagram queue pairs in RTS with four receives each; receive `n` of queue pair `q` has the id `10 q + n`.
fn members(side: &mut Side, count: u64) -> Vec<Qpn> {
    let init = QpInit::new(QpType::Ud, side.pd, side.cq, side.cq);
    let mut qps = Vec::new();
    for q in 0..count {
        side.qp = side.nic.create_qp(init).expect("room");
        side.bring_up(B, Qpn(1), (0, 0), Setup { kind: QpType::Ud, ..Setup::default() });
        (0..4).for_each(|n| side.recv(10 * q + n, (40 * q + 10 * n) as usize * 1024, 4096));
        qps.push(side.qp);
    }
    qps
}

fn ids(side: &mut Side) -> Vec<u64> {
    side.take_done().iter().filter(|wc| wc.opcode == WcOpcode::Recv).map(|wc| wc.wr_id).collect()
}

fn to(group: IpAddr, qkey: u32) -> UdDest {
    UdDest { route: Route { local: A, remote: group, link: 0 }, qpn: MULTICAST_QP, qkey }
}

#[test]
fn a_datagram_to_a_group_goes_to_every_other_member() {
    let mut side = Side::new(A, 1);
    let qps = members(&mut side, 4);
    for qp in &qps[..3] {
        side.nic.attach(*qp, GROUP).expect("room");
        side.nic.attach(*qp, GROUP).expect("once is enough");
    }
    side.nic.attach(qps[3], OTHER).expect("room");
    side.qp = qps[0];
    side.send(&SendWr::new(1, SendOp::SendImm(5), Data::Inline(b"to all")).to(to(GROUP, 0)));
    assert!(side.nic.poll_transmit(0, &mut side.batch), "and onto the wire");
    assert_eq!((side.batch.len(), side.batch.route().map(|r| r.remote)), (1, Some(GROUP)));
    assert_eq!(ids(&mut side), [10, 20]);
    assert_eq!(side.bytes(40 * 1024 + GRH_LEN, 6), b"to all");
    // From outside, all of them; with another queue key, to another group or to no group, none.
    let packet = side.batch.packets().next().expect("one").to_vec();
    side.nic.handle_packet(0, 0, B, GROUP, &packet);
    assert_eq!(ids(&mut side), [0, 11, 21]);
    side.nic.handle_packet(0, 0, B, A, &packet);
    side.send(&SendWr::new(2, SendOp::Send, Data::Inline(b"x")).to(to(GROUP, 1)));
    side.nic.poll_transmit(0, &mut side.batch);
    assert_eq!(ids(&mut side), []);
    side.nic.detach(qps[1], GROUP).expect("a member");
    side.nic.handle_packet(0, 0, B, GROUP, &packet);
    assert_eq!(ids(&mut side), [1, 22]);
}

#[test]
fn membership_has_rules() {
    let mut side = Side::new(A, 1);
    assert!(matches!(side.nic.attach(side.qp, GROUP), Err(NicError::Unsupported(_))), "a connection");
    let qp = members(&mut side, 1)[0];
    assert!(matches!(side.nic.attach(qp, B), Err(NicError::Unsupported(_))), "no multicast address");
    assert!(matches!(side.nic.attach(Qpn(9), GROUP), Err(NicError::NoSuch(_))));
    assert!(matches!(side.nic.detach(qp, GROUP), Err(NicError::NoSuch(_))));
    side.nic.attach(qp, GROUP).expect("room");
    side.nic.attach(qp, OTHER).expect("room");
    assert_eq!(side.nic.destroy_qp(qp), Err(NicError::InUse("queue pair")));
    side.nic.detach(qp, GROUP).expect("a member");
    side.nic.detach(qp, OTHER).expect("a member");
    assert!(matches!(side.nic.detach(qp, OTHER), Err(NicError::NoSuch(_))));
    side.nic.destroy_qp(qp).expect("in no group");
    let limit = side.nic.limits().group_members;
    let init =
        QpInit { max_send_wr: 1, max_recv_wr: 1, max_rpc: 0, ..QpInit::new(QpType::Ud, side.pd, side.cq, side.cq) };
    for _ in 0..limit {
        let qp = side.nic.create_qp(init).expect("room");
        side.nic.attach(qp, GROUP).expect("within the limit");
    }
    let one_more = side.nic.create_qp(init).expect("room");
    assert!(matches!(side.nic.attach(one_more, GROUP), Err(NicError::Exhausted(_))));
}

#[test]
fn every_service_works_over_ipv6() {
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut p = Pair::unconnected_at(V6, 1, CLEAN);
        p.connect(Setup { kind, ..Setup::default() });
        let route = Route { local: V6[0], remote: V6[1], link: 0 };
        let dest = UdDest { route, qpn: p.b.qp.0, qkey: 0 };
        p.b.recv(1, 0, 4096);
        p.a.send(&SendWr::new(1, SendOp::SendImm(6), Data::Inline(b"over IPv6")).to(dest));
        p.run(1000);
        let skip = if kind == QpType::Ud { GRH_LEN } else { 0 };
        assert_eq!(p.b.done[0].byte_len as usize, skip + 9, "{kind:?}");
        assert_eq!(p.b.bytes(skip, 9), b"over IPv6");
        if kind == QpType::Ud {
            // What follows the header: 8 UDP, 12 BTH, 8 DETH, 4 immediate, 9 + 3 pad, 4 ICRC.
            let ip = Ipv6::parse(&[p.b.bytes(0, GRH_LEN), vec![0; 48]].concat()).expect("a whole header");
            assert_eq!((IpAddr::V6(ip.src), IpAddr::V6(ip.dst)), (V6[0], V6[1]));
            assert_eq!((ip.payload_len, ip.next_header, ip.hop_limit), (48, 17, 64));
            assert_eq!((p.b.done[0].src, p.b.done[0].src_qp), (Some(V6[0]), p.a.qp.0));
        }
    }
}
