use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use remora_nic::cm::CmEvent;
use remora_nic::{ConnectAttr, Event, Route};
use remora_real::link::Layers;
use remora_real::{Device, LinkKind};
use remora_replica::ddp::Request;
use remora_replica::frames::Asked;
use remora_replica::node::ReplicaNode;
use remora_replica::stream::Sizes;

use super::*;
use crate::hello::{ClientHello, Guard};
use crate::journal::Journal;
use crate::logfile::LogKind;
use crate::{link_at, streams};

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 13, 80, last).into()
}

fn device(last: u8) -> Device {
    Device::new(address(last), vec![link_at(address(last), LinkKind::Shm, &Layers::default()).unwrap()], None).unwrap()
}

/// A client sends many short frames, each of which a node works on for longer than it takes to send it. What else comes is
/// taken all the same, be it what others say or that they have taken what this node has said.
#[test]
fn a_node_that_is_asked_more_than_it_can_answer_still_takes_what_comes() {
    let (ours, theirs) = (device(1), device(2));
    let dir = tempfile::tempdir().unwrap();
    let mut config = ClusterNodeConfig::new(0, vec![address(1)], dir.path().to_path_buf(), [9; 32]);
    (config.sealed, config.suspect) = (false, Duration::from_millis(2));
    let sizes = Sizes { receives: 1024, sends: 1024, favoured: 0, frame: 1 << 20 };
    let (journal, bytes) = Journal::open(&config.dir, LogKind::default(), || ()).unwrap();
    let mut server = {
        let mut guard = ours.lock();
        let mut seat = guard.seat();
        let streams = streams(seat.nic, sizes).unwrap();
        let node = ReplicaNode::new(config.engine(), seat.now.time(), &bytes);
        Server::new(&mut seat, config, node, journal, streams, Told::default()).unwrap()
    };
    let mut streams = streams(theirs.lock().nic(), sizes).unwrap();
    let (mut qpns, mut stand, mut most) = (Vec::new(), 0, 0);
    let end = Instant::now() + Duration::from_secs(60);
    while most < 3 << 20 && Instant::now() < end {
        let mut guard = theirs.lock();
        guard.progress();
        let seat = &mut guard.seat();
        for event in std::mem::take(seat.events) {
            stand += usize::from(matches!(event, Event::Cm(CmEvent::Established { .. })));
        }
        if qpns.len() < 4 && seat.links[0].reach(address(1)).unwrap() {
            let route = Route { local: address(2), remote: address(1), link: 0 };
            let attr = ConnectAttr { path_mtu: 4096, ..ConnectAttr::default() };
            let said = ClientHello::new(Guard::Open, false).unwrap().encode();
            let qpn = streams.open(seat.nic).unwrap();
            seat.nic.connect(seat.now.time(), qpn, route, service_id(CLIENT_PORT), attr, &said).unwrap();
            qpns.push(qpn);
        }
        for &qpn in qpns.iter().filter(|_| stand == 4) {
            while streams.backlog(qpn) < 1 << 20 {
                streams.frame(qpn, |out| Asked::<Request>::Status.encode(out));
            }
        }
        while streams.poll(seat.nic, seat.now.time()).is_some() {}
        streams.flush(seat.nic, seat.now.time());
        guard.transmit();
        drop(guard);

        let mut guard = ours.lock();
        guard.progress();
        let seat = &mut guard.seat();
        server.progress(seat);
        assert!(seat.nic.poll_cq(server.cq()).is_none(), "something was left after {most} bytes");
        most = most.max(server.asking.iter().map(|&qpn| server.streams.arrived(qpn)).sum::<usize>());
        guard.transmit();
    }
    assert!(most >= 3 << 20, "{most} bytes waited");
}
