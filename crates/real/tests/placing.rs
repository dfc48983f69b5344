//! Calls that clients leave to the node, which runs them at its NIC or its host.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remora_kernel::{ConsistencyParams, Limits, Placement, Status, op};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig, Placing};
use remora_service::{CallKind, Why};

mod common;

use common::fill_object;

const OBJECTS: u64 = 64;
const OBJECT: usize = 256;

fn ip(host: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(127, 23, host, last).into()
}

fn client(host: u8, last: u8, link: LinkKind) -> Client {
    Client::connect(ClientConfig { link: Some(link), ..ClientConfig::new(ip(host, 1), ip(host, last)) })
        .expect("connection")
}

/// A client's own objects.
struct Objects {
    first: (u64, u32),
}

impl Objects {
    fn load(client: &mut Client) -> Self {
        let region = client.alloc(OBJECTS * OBJECT as u64).expect("memory");
        let mut bytes = vec![0; OBJECT];
        for index in 0..OBJECTS {
            fill_object(index, 1, &mut bytes);
            client.write(&region, index * OBJECT as u64, &bytes).expect("a write");
        }
        Self { first: (region.va, region.key) }
    }

    fn params(&self, index: u64) -> Vec<u8> {
        let (va, key) = self.first;
        let address = va + index % OBJECTS * OBJECT as u64;
        ConsistencyParams { address, key, len: OBJECT as u32, max_tries: 4 }.encode().to_vec()
    }
}

/// Calls that are left open, up to eight at once; each answer is the one that was asked for. Returns how many went to the node.
fn ask(client: &mut Client, objects: &Objects, calls: u32) -> u64 {
    let (mut started, mut ended, mut at_node) = (0, 0, 0);
    let mut expected = vec![0; OBJECT];
    while ended < calls {
        while started < calls && started < ended + 8 {
            let params = objects.params(started.into());
            let kind = CallKind::of(op::CONSISTENCY, &params);
            let place = client.submit_auto(kind, &params, true, started).expect("room");
            at_node += u64::from(place != Placement::Client);
            started += 1;
        }
        let polled = client.poll(&mut |tag, status, reply| {
            fill_object(u64::from(tag) % OBJECTS, 1, &mut expected);
            assert_eq!((status, &reply[..OBJECT - 8]), (Status::Ok, &expected[..OBJECT - 8]), "call {tag}");
        });
        ended += polled.expect("a connection") as u32;
    }
    at_node
}

#[test]
fn clients_get_right_answers_wherever_their_node_runs_what_they_leave_to_it() {
    for (host, placing) in [(1, Placing::Nic), (2, Placing::Host), (3, Placing::Auto)] {
        let node = Node::start(NodeConfig { placing, ..NodeConfig::new(ip(host, 1)) }).expect("node");
        let at_node: u64 = std::thread::scope(|scope| {
            let clients = [(2, LinkKind::Shm), (3, LinkKind::Udp)].map(|(last, link)| {
                scope.spawn(move || {
                    let mut client = client(host, last, link);
                    let objects = Objects::load(&mut client);
                    let at_node = ask(&mut client, &objects, 6000);
                    assert_eq!(
                        client.placer().counts().calls[Placement::Host as usize],
                        0,
                        "that is the node's choice"
                    );
                    let kind = CallKind::of(op::CONSISTENCY, &objects.params(0));
                    let reason = client.node_reason(kind).expect("a reason");
                    match placing {
                        Placing::Nic | Placing::Host => assert!(reason.ends_with(": pinned"), "{reason}"),
                        _ => assert!(reason.starts_with("nic: ") || reason.starts_with("host: "), "{reason}"),
                    }
                    // Who knows better is not asked again.
                    client.placer().pin(Some(Placement::Nic));
                    assert_eq!(ask(&mut client, &objects, 100), 100);
                    client.placer().pin(None);
                    client.placer().pin_op(op::CONSISTENCY, Some(Placement::Host));
                    assert_eq!(ask(&mut client, &objects, 100), 100);
                    if placing == Placing::Auto {
                        let other = CallKind { op: 0x77, class: 1 };
                        assert!(client.node_reason(other).unwrap_err().to_string().contains("kernel 0x77"));
                    }
                    at_node
                })
            });
            clients.into_iter().map(|client| client.join().expect("a client")).sum()
        });
        let placed = node.figures().placed;
        let [_, nic, host, _] = placed.calls;
        assert_eq!(nic + host, at_node, "{placing:?}: {placed:?}");
        match placing {
            Placing::Nic => assert_eq!(host, 0),
            Placing::Host => assert_eq!(nic, 0),
            _ => assert!(nic > 0 && placed.explored <= at_node),
        }
        node.shutdown();
    }
}

/// Who computes while calls are under way, and asks for their answers then, has found no place silent.
#[test]
fn a_client_that_looks_seldom_finds_no_place_silent() {
    let node = Node::start(NodeConfig::new(ip(6, 1))).expect("node");
    let mut client = client(6, 2, LinkKind::Shm);
    let objects = Objects::load(&mut client);
    let params = objects.params(0);
    let kind = CallKind::of(op::CONSISTENCY, &params);
    let mut why = Vec::new();
    for _ in 0..10 {
        ask(&mut client, &objects, 2000);
        let mut left = 8;
        for tag in 0..8 {
            if tag == 4 {
                std::thread::sleep(Duration::from_millis(70));
            }
            let _ = client.submit_auto(kind, &params, false, tag).expect("room");
            left -= client.poll(&mut |_, _, _| {}).expect("a connection");
        }
        while left > 0 {
            left -= client.poll(&mut |_, _, _| {}).expect("a connection");
        }
        why.extend(client.placer().poll_move().map(|(_, reason)| reason));
    }
    assert!(!why.iter().any(|reason| matches!(reason.why, Why::Silent { .. })), "{why:?}");
    node.shutdown();
}

#[test]
fn a_node_that_leaves_it_to_its_clients_says_so() {
    let node = Node::start(NodeConfig::new(ip(4, 1))).expect("node");
    let mut client = client(4, 2, LinkKind::Shm);
    let objects = Objects::load(&mut client);
    ask(&mut client, &objects, 500);
    let error = client.node_reason(CallKind::of(op::CONSISTENCY, &objects.params(0))).unwrap_err();
    assert!(error.to_string().contains("leaves it to its clients"), "{error}");
    assert_eq!(node.figures().placed.calls, [0; 4]);
    node.shutdown();
}

/// A sleeping host is woken for what the NIC places there; what takes too long there ends; and who goes away in the middle
/// holds nobody up.
#[test]
fn the_host_is_woken_drops_what_takes_too_long_and_forgets_who_is_gone() {
    let limits = Limits { steps: u32::MAX, bytes: u64::MAX };
    let config = NodeConfig {
        placing: Placing::Host,
        limits,
        deadline: Duration::from_millis(300),
        ..NodeConfig::new(ip(5, 1))
    };
    let node = Node::start(config).expect("node");
    let mut first = client(5, 2, LinkKind::Udp);
    let objects = Objects::load(&mut first);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(3));
        ask(&mut first, &objects, 2);
    }
    let wrong = first.alloc(4096).expect("memory");
    first.write(&wrong, 0, &[7; 4096]).expect("a write");
    let endless = |len| ConsistencyParams { address: wrong.va, key: wrong.key, len, max_tries: u32::MAX }.encode();
    let start = |client: &mut Client, tag| {
        let params = endless(4096);
        let kind = CallKind::of(op::CONSISTENCY, &params);
        client.submit_auto(kind, &params, false, tag).expect("room")
    };
    assert_eq!(start(&mut first, 1), Placement::Nic, "calls begin at the node");
    let mut ended = Vec::new();
    while ended.is_empty() {
        first.poll(&mut |tag, status, _| ended.push((tag, status))).expect("a connection");
    }
    assert_eq!(ended, [(1, Status::Overdue)]);

    let mut other = client(5, 3, LinkKind::Udp);
    assert_eq!(start(&mut other, 1), Placement::Nic);
    other.poll(&mut |_, _, _| {}).expect("a connection");
    drop(other);
    for _ in 0..20 {
        ask(&mut first, &objects, 50);
    }
    node.shutdown();
}
