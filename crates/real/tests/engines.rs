//! A node of several engines: what is one for all of them, and what each has.

use std::net::{IpAddr, Ipv4Addr};

use remora_kernel::{ConsistencyParams, Placement, Status, crc64, op};
use remora_real::{Client, ClientConfig, Error, LinkKind, Node, NodeConfig, RemoteRegion, RingConfig, UdpPort};
use remora_service::control::op::SKETCH_START;
use remora_testing::eventually;

const PLACES: [Placement; 3] = [Placement::Client, Placement::Nic, Placement::Host];

fn ip(host: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(127, 20, host, last).into()
}

fn node(host: u8, engines: u16) -> Node {
    let config = NodeConfig { engines, memory_limit: 64 << 20, count_calls: true, ..NodeConfig::new(ip(host, 1)) };
    Node::start(config).expect("node")
}

fn client(host: u8, last: u8, link: LinkKind) -> Client {
    Client::connect(ClientConfig { link: Some(link), ..ClientConfig::new(ip(host, 1), ip(host, last)) })
        .expect("connection")
}

/// Queue pairs of each engine.
fn connections(node: &Node) -> Vec<u32> {
    node.devices().iter().map(|device| device.lock().nic().qp_count()).collect()
}

/// Parameters that read a checked object of 64 bytes, which anybody wrote to the start of a region.
fn object(client: &mut Client, region: &RemoteRegion) -> Vec<u8> {
    let mut object = [7; 72];
    let checksum = crc64(&object[..64]);
    object[64..].copy_from_slice(&checksum.to_le_bytes());
    client.write(region, 0, &object).expect("write");
    ConsistencyParams { address: region.va, key: region.key, len: 72, max_tries: 1 }.encode().to_vec()
}

#[test]
fn clients_are_shared_out_and_have_one_memory() {
    let node = node(1, 3);
    let mut clients: Vec<Client> =
        (0..6).map(|n| client(1, 2 + n, if n < 3 { LinkKind::Shm } else { LinkKind::Udp })).collect();
    // Those over shared memory one each, the others as it comes.
    let each = connections(&node);
    assert!(each.iter().all(|&n| n >= 1) && each.iter().sum::<u32>() == 6, "{each:?}");
    let region = clients[0].alloc(4096).expect("memory");
    let params = object(&mut clients[0], &region);
    for (n, client) in clients.iter_mut().enumerate() {
        // What one has allocated all reach that know of it, by verbs and by kernels in every place, by any ingress.
        let mut seen = [0; 64];
        client.read(&region, 0, &mut seen).expect("read");
        assert_eq!(seen, [7; 64]);
        assert_eq!(client.fetch_add(&region, 128, 1).expect("an atomic"), n as u64);
        for place in PLACES {
            let (status, reply) = client.call(place, op::CONSISTENCY, &params).expect("call");
            assert_eq!((status, &reply[..64]), (Status::Ok, &seen[..]), "client {n}, {place}");
        }
        for place in [Placement::Nic, Placement::Host] {
            client.open_rings(place, RingConfig::default()).expect("rings");
            client.submit_by_ring(place, op::CONSISTENCY, &params, 3).expect("room");
            eventually("the answer", || {
                let mut answered = None;
                client.poll(&mut |tag, status, _| answered = Some((tag, status))).expect("connection");
                answered.map(|answered| assert_eq!(answered, (3, Status::Ok)))
            });
        }
    }
    let figures = eventually("figures of all", || {
        let figures = node.figures();
        (figures.host_calls.get(&op::CONSISTENCY).is_some_and(|calls| calls.calls == 12)).then_some(figures)
    });
    assert_eq!((figures.queue_pairs, figures.clients.len()), (6, 6));
    assert_eq!(figures.nic_calls[&op::CONSISTENCY].calls, 12);
    assert_eq!(figures.links.len(), 2, "one row a link");
    assert!(figures.memory_lent >= 4096);
    // Memory that one frees is nobody's at once, whatever engine an access comes by.
    clients[0].free(&region).expect("freed");
    for client in &mut clients[1..] {
        let (status, _) = client.call(Placement::Nic, op::CONSISTENCY, &params).expect("call");
        assert_eq!(status, Status::AccessDenied);
    }
    drop(clients);
    eventually("the clients' memory", || (node.figures().memory_lent == 0).then_some(()));
    node.shutdown();
}

#[test]
fn a_sketch_sees_what_comes_by_any_engine() {
    let node = node(2, 2);
    let (mut one, mut other) = (client(2, 2, LinkKind::Shm), client(2, 3, LinkKind::Shm));
    assert_eq!(connections(&node), [1, 1]);
    let (data, registers) = (one.alloc(1 << 16).expect("memory"), one.alloc(4096).expect("memory"));
    one.attach_sketch(&data, &registers, 12).expect("attached");
    assert!(other.node_call("sketch", SKETCH_START, &[0; 32]).is_err(), "nonsense of another engine");
    let values = |from: u64| (from..from + 4096).flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    one.write(&data, 0, &values(0)).expect("write");
    other.write(&data, 32768, &values(4096)).expect("write by the other engine");
    let estimate = one.estimate(&registers, 12).expect("an estimate");
    assert!((estimate / 8192.0 - 1.0).abs() < 0.1, "{estimate} of 8192 values");
    one.detach_sketch(&data).expect("detached");
}

#[test]
fn an_address_has_its_connections_whatever_engines_they_are_at() {
    let config = NodeConfig { engines: 3, connections: 2, ..NodeConfig::new(ip(3, 1)) };
    let node = Node::start(config).expect("node");
    let ports = UdpPort::bind(ip(3, 2), 3).expect("ports");
    let connect = |at: usize| {
        Client::connect(ClientConfig { port: Some(ports[at].clone()), ..ClientConfig::new(ip(3, 1), ip(3, 2)) })
    };
    let (first, second) = (connect(0).expect("connection"), connect(1).expect("connection"));
    assert_eq!(connections(&node), [1, 1, 0], "as many ports as engines: each leads to its own");
    let Err(Error::Refused { why, .. }) = connect(2) else { panic!("one too many") };
    assert!(why.contains("2 connections"), "{why}");
    drop(first);
    let mut third = eventually("a place", || connect(2).ok());
    drop(second);
    let region = third.alloc(64).expect("memory");
    third.write(&region, 0, &[1; 64]).expect("write");
    // A port is one of one address, and of UDP.
    let port = Some(ports[0].clone());
    for wrong in [
        ClientConfig { port: port.clone(), ..ClientConfig::new(ip(3, 1), ip(3, 9)) },
        ClientConfig { port, link: Some(LinkKind::Shm), ..ClientConfig::new(ip(3, 1), ip(3, 2)) },
    ] {
        assert!(matches!(Client::connect(wrong), Err(Error::Argument(why)) if why.contains("over UDP")));
    }
}

#[test]
fn a_client_that_vanishes_at_one_engine_harms_nobody_at_another() {
    let node = node(5, 2);
    let (mut stays, mut dead) = (client(5, 2, LinkKind::Shm), client(5, 3, LinkKind::Shm));
    assert_eq!(connections(&node), [1, 1]);
    dead.alloc(24 << 20).expect("memory");
    // Nothing of it moves any more, and it takes no leave: so a killed process looks from outside.
    dead.device().stop();
    std::mem::forget(dead);
    let region = stays.alloc(4096).expect("memory");
    let params = object(&mut stays, &region);
    let mut got = None;
    eventually("the memory of the dead, which leaves the other too little", || {
        let (status, _) = stays.call(Placement::Nic, op::CONSISTENCY, &params).expect("call");
        assert_eq!(status, Status::Ok);
        got = stays.alloc(24 << 20).ok();
        got
    });
    assert_eq!(connections(&node).iter().sum::<u32>(), 1);
    node.shutdown();
}

#[test]
fn numbers_of_engines_that_cannot_be_are_refused() {
    for (engines, packet) in [(0, false), (300, false), (2, true)] {
        let refused = Node::start(NodeConfig { engines, packet, ..NodeConfig::new(ip(4, 1)) });
        let why = refused.err().expect("refused").to_string();
        assert!(why.contains("at most 256") || why.contains("serve one engine"), "{why}");
    }
    // More cores than there are: they go round.
    let config = NodeConfig { engines: 3, cores: vec![0, 1], memory_limit: 1 << 20, ..NodeConfig::new(ip(4, 1)) };
    let node = Node::start(config).expect("node");
    assert!(client(4, 2, LinkKind::Udp).alloc(64).is_ok());
    assert!(node.is_serving());
}
