//! Acknowledgements that nobody asked for come soon, whatever else a device has to do, and timers run from when they are set.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use remora_memory::{Access, Buffer, Region, Registry};
use remora_nic::{ALL_REMOTE, CqId, Data, QpInit, QpType, Qpn, Route, RtrAttr, RtsAttr, SendOp, SendWr, Sge, WcStatus};
use remora_real::{Device, LinkKind};

struct End {
    device: Device,
    cq: CqId,
    region: Arc<Region>,
}

fn end(last: u8, reach: Option<IpAddr>) -> (End, IpAddr) {
    let ip = IpAddr::V4(Ipv4Addr::new(127, 9, 41, last));
    let mut link = LinkKind::Shm.bind(ip).unwrap();
    if let Some(peer) = reach {
        link.reach(peer).unwrap();
    }
    let registry = Arc::new(Registry::new(remora_real::entropy().unwrap()));
    let device = Device::with_registry(ip, vec![link], registry, None).unwrap();
    device.keep(true);
    let buffer = Buffer::anonymous(4096).unwrap();
    let mut guard = device.lock();
    let pd = guard.nic().registry().alloc_pd();
    let access = Access::LOCAL_WRITE | ALL_REMOTE;
    let region = guard.nic().registry().register(pd, &buffer, 0, 4096, None, access).unwrap();
    let cq = guard.nic().create_cq(64).unwrap();
    drop(guard);
    (End { device, cq, region }, ip)
}

fn queue_pair(end: &End) -> Qpn {
    let mut guard = end.device.lock();
    let init = QpInit { max_send_wr: 64, max_send_sge: 1, ..QpInit::new(QpType::Rc, end.region.pd(), end.cq, end.cq) };
    let qp = guard.nic().create_qp(init).unwrap();
    guard.nic().to_init(qp, ALL_REMOTE, 0).unwrap();
    qp
}

fn join(from: &End, qp: Qpn, to: &End, dest: Qpn, timeout: u8) {
    let route = Route { local: from.device.local(), remote: to.device.local(), link: 0 };
    let rq_psn = remora_wire::Psn::new(1);
    let attr = RtrAttr { route, dest_qp: dest.0, rq_psn, path_mtu: 4096, max_dest_rd_atomic: 4, min_rnr_timer: 1 };
    let mut guard = from.device.lock();
    guard.nic().to_rtr(qp, attr).unwrap();
    guard.nic().to_rts(qp, RtsAttr { sq_psn: rq_psn, timeout, ..RtsAttr::default() }).unwrap();
}

fn write(from: &End, qp: Qpn, to: &End, signaled: bool) {
    let sge = [Sge { va: from.region.va(), len: 64, lkey: from.region.key() }];
    let op = SendOp::Write { va: to.region.va(), rkey: to.region.key() };
    let wr = SendWr::new(0, op, Data::List(&sge));
    let wr = if signaled { wr } else { wr.unsignaled() };
    from.device.lock().nic().post_send(qp, &wr).unwrap();
}

#[test]
fn writes_complete_though_others_keep_their_peer_busy() {
    let (server, ip) = end(1, None);
    let ends = [end(2, Some(ip)).0, end(3, Some(ip)).0];
    let pairs = ends.each_ref().map(|end| {
        let (here, there) = (queue_pair(end), queue_pair(&server));
        // Nothing is sent again: what does not come by an acknowledgement does not come.
        join(end, here, &server, there, 0);
        join(&server, there, end, here, 0);
        here
    });
    let [quiet, busy] = &ends;
    let mut done = 0;
    let mut turn = |of_busy: bool| {
        if of_busy {
            write(busy, pairs[1], &server, false);
        }
        [busy, &server, quiet].iter().for_each(|end| _ = end.device.lock().progress());
        while let Some(wc) = quiet.device.lock().nic().poll_cq(quiet.cq) {
            assert_eq!(wc.status, WcStatus::Success);
            done += 1;
        }
        done
    };
    // The first tells both that the other acknowledges by itself, once the server has looked for new peers.
    write(quiet, pairs[0], &server, true);
    assert!((0..100_000).any(|_| turn(false) == 1));
    // Of the second eight none is asked about: they leave while the first eight are under way.
    for _ in 0..2 {
        (0..8).for_each(|_| write(quiet, pairs[0], &server, true));
        quiet.device.lock().progress();
        (0..2).for_each(|_| _ = server.device.lock().progress());
    }
    assert!((0..1000).any(|_| turn(true) == 17), "{} of 17 completed", turn(false));
}

#[test]
fn who_polls_seldom_waits_as_long_for_an_acknowledgement_as_others() {
    let (server, ip) = end(4, None);
    let (client, _) = end(5, Some(ip));
    let (here, there) = (queue_pair(&client), queue_pair(&server));
    // 67 ms.
    join(&client, here, &server, there, 14);
    join(&server, there, &client, here, 14);
    for _ in 0..3 {
        client.device.lock().progress();
        std::thread::sleep(std::time::Duration::from_millis(100));
        write(&client, here, &server, true);
        client.device.lock().transmit();
        // Long enough for it to look at the clock, and far too short for a timer.
        (0..40).for_each(|_| _ = client.device.lock().progress());
        assert_eq!(client.device.lock().nic().counters().retransmits, 0);
        assert!((0..100_000).any(|_| {
            [&client, &server].iter().for_each(|end| _ = end.device.lock().progress());
            client.device.lock().nic().poll_cq(client.cq).is_some()
        }));
    }
}
