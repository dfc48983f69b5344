//! A device talks to itself, and to the members of its multicast groups, without any link.

use std::net::{IpAddr, Ipv4Addr};

use remora_memory::{Access, Buffer};
use remora_nic::*;
use remora_real::Device;
use remora_wire::Psn;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 0, 1));
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 9, 0, 1));

#[test]
fn two_queue_pairs_of_one_device_need_no_link() {
    let device = Device::new(HERE, Vec::new(), None).expect("device");
    let buffer = Buffer::anonymous(1 << 20).expect("memory");
    let mut guard = device.lock();
    let nic = guard.nic();
    let pd = nic.registry().alloc_pd();
    let access = ALL_REMOTE | Access::LOCAL_WRITE;
    let region = nic.registry().register(pd, &buffer, 0, 1 << 20, None, access).expect("region");
    let cq = nic.create_cq(64).expect("room");
    let sge = |at: u64, len| Sge { va: region.va() + at, len, lkey: region.key() };
    let mut create = |kind| {
        [0; 2].map(|_| {
            let qp = nic.create_qp(QpInit::new(kind, pd, cq, cq)).expect("room");
            nic.to_init(qp, ALL_REMOTE, 5).expect("INIT");
            qp
        })
    };
    let (connected, datagrams) = (create(QpType::Rc), create(QpType::Ud));
    let route = Route { local: HERE, remote: HERE, link: 0 };
    for (qp, peer) in [connected, datagrams].into_iter().flat_map(|[a, b]| [(a, b), (b, a)]) {
        let (rq_psn, dest_qp) = (Psn::new(0), peer.0);
        let rtr = RtrAttr { route, dest_qp, rq_psn, path_mtu: 4096, max_dest_rd_atomic: 1, min_rnr_timer: 1 };
        nic.to_rtr(qp, rtr).expect("RTR");
        nic.to_rts(qp, RtsAttr::default()).expect("RTS");
    }
    buffer.fill(0, 300_000, 7).expect("in bounds");
    let op = SendOp::Write { va: region.va() + 500_000, rkey: region.key() };
    nic.post_send(connected[0], &SendWr::new(1, op, Data::List(&[sge(0, 300_000)]))).expect("post");
    nic.post_recv(datagrams[1], 2, &[sge(900_000, 100)]).expect("post");
    for qp in datagrams {
        guard.attach(qp, GROUP).expect("attach");
    }
    let dest = UdDest { route: Route { remote: GROUP, ..route }, qpn: MULTICAST_QP, qkey: 5 };
    let wr = SendWr::new(3, SendOp::Send, Data::Inline(b"all")).to(dest);
    guard.nic().post_send(datagrams[0], &wr).expect("post");
    let mut done = Vec::new();
    for _ in 0..1000 {
        guard.progress();
        done.extend(std::iter::from_fn(|| guard.nic().poll_cq(cq)).map(|wc| (wc.wr_id, wc.status)));
    }
    done.sort_by_key(|(id, _)| *id);
    assert_eq!(done, [1, 2, 3].map(|id| (id, WcStatus::Success)));
    let mut bytes = vec![0; 300_000];
    buffer.read(500_000, &mut bytes).expect("in bounds");
    assert!(bytes.iter().all(|&b| b == 7));
    for qp in datagrams {
        guard.detach(qp, GROUP).expect("a member");
    }
}
