use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use remora_real::link::Layers;
use remora_real::{Device, LinkKind};
use remora_replica::stream::Sizes;
use remora_testing::eventually;

use super::*;
use crate::hello::Guard;
use crate::wire::CLIENT_PORT;
use crate::{ClusterClient, ClusterClientConfig, ClusterNode, ClusterNodeConfig, link_at, streams};

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 13, 79, last).into()
}

#[test]
fn addresses_share_the_places_for_clients() {
    let mut clients = Vec::new();
    let fill = |clients: &mut Vec<IpAddr>, from: IpAddr| {
        let before = clients.len();
        while has_place(clients.iter().copied(), from) {
            clients.push(from);
        }
        clients.len() - before
    };
    let found: Vec<usize> = (1..5).map(|last| fill(&mut clients, address(last))).collect();
    assert_eq!(found, [CLIENTS / 2, CLIENTS / 4, CLIENTS / 8, 63]);
    // Who has gone makes room for others, and all come to as many.
    clients.drain(..200);
    assert_eq!(fill(&mut clients, address(1)), 0);
    assert!(fill(&mut clients, address(5)) > 60);
}

/// It makes as many connections as it can, and uses none.
#[test]
fn a_client_that_makes_connections_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = ClusterNodeConfig::new(0, vec![address(1)], dir.path().to_path_buf(), [9; 32]);
    config.sealed = false;
    let _node = ClusterNode::start(config).unwrap();
    let device = Device::new(address(2), vec![link_at(address(2), LinkKind::Shm, &Layers::default()).unwrap()], None);
    let device = device.unwrap();
    let sizes = Sizes { receives: 256, sends: 1024, favoured: 0, frame: 1 << 10 };
    let mut streams = streams(device.lock().nic(), sizes).unwrap();
    let hello = ClientHello::new(Guard::Open, false).unwrap().encode();
    let (mut stand, mut calls, mut refused) = (0, 0, 0);
    let end = Instant::now() + Duration::from_secs(60);
    while refused == 0 && Instant::now() < end {
        let mut guard = device.lock();
        guard.progress();
        let seat = &mut guard.seat();
        for event in std::mem::take(seat.events) {
            match event {
                Event::Cm(CmEvent::Established { .. }) => stand += 1,
                Event::Cm(CmEvent::Rejected { .. }) => refused += 1,
                Event::Cm(CmEvent::Unreachable { .. }) => {}
                _ => continue,
            }
            calls -= 1;
        }
        if calls < 8 && seat.links[0].reach(address(1)).unwrap() {
            let route = Route { local: address(2), remote: address(1), link: 0 };
            let attr = ConnectAttr { path_mtu: 4096, ..ConnectAttr::default() };
            let qpn = streams.open(seat.nic).unwrap();
            seat.nic.connect(seat.now.time(), qpn, route, service_id(CLIENT_PORT), attr, &hello).unwrap();
            calls += 1;
        }
        guard.transmit();
    }
    assert!(refused > 0 && (CLIENTS / 2 - 8..=CLIENTS / 2).contains(&stand), "{stand} stand");
    let mut other =
        eventually("another client", || ClusterClient::connect(ClusterClientConfig::new(vec![address(1)])).ok());
    eventually("its answer", || other.status().ok());
}
