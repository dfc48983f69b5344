//! Calls by rings in memory, in the real world.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remora_kernel::{ConsistencyParams, Placement, Status, crc64, op};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig, RemoteRegion, RingConfig};
use remora_ring::{Notify, RingShape};
use remora_service::control::op::{KERNEL_REMOVE, PATH, RING_OPEN};
use remora_service::control::{RingParams, RingPlace};
use remora_service::{MAX_REPLY, MAX_REQUEST, most_reply};
use remora_testing::eventually;

const PLACES: [Placement; 2] = [Placement::Nic, Placement::Host];

fn ip(host: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(127, 19, host, last).into()
}

fn node(host: u8) -> Node {
    Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(ip(host, 1)) }).expect("node")
}

fn client(host: u8, last: u8, link: LinkKind) -> Client {
    Client::connect(ClientConfig { link: Some(link), ..ClientConfig::new(ip(host, 1), ip(host, last)) })
        .expect("connection")
}

/// An object of so many bytes at the start of a region, and parameters that read it.
fn object(client: &mut Client, len: usize) -> (RemoteRegion, Vec<u8>, Vec<u8>) {
    let region = client.alloc(len as u64).expect("memory");
    let mut object: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
    let checksum = crc64(&object[..len - 8]);
    object[len - 8..].copy_from_slice(&checksum.to_le_bytes());
    client.write(&region, 0, &object).expect("write");
    object.truncate(len - 8);
    let params = ConsistencyParams { address: region.va, key: region.key, len: len as u32, max_tries: 1 };
    (region, object, params.encode().to_vec())
}

/// Makes so many calls, some at once, and checks each reply.
fn call(client: &mut Client, placement: Placement, params: &[u8], expected: &[u8], (calls, at_once): (u32, u32)) {
    let (mut next, mut ended) = (0, 0);
    while ended < calls {
        while next < calls && next < ended + at_once {
            if client.submit_by_ring(placement, op::CONSISTENCY, params, next).is_err() {
                break;
            }
            next += 1;
        }
        let check = &mut |_, status, reply: &[u8]| {
            assert!(status == Status::Ok && reply[..expected.len()] == *expected, "{status:?}");
        };
        ended += client.poll(check).expect("connection") as u32;
    }
}

#[test]
fn calls_by_rings_reach_the_kernels_of_both_places() {
    let _node = node(1);
    for (last, link) in [(2, LinkKind::Shm), (3, LinkKind::Udp)] {
        let mut client = client(1, last, link);
        let (_small, small, few) = object(&mut client, 72);
        let (_large, large, many) = object(&mut client, 60_000);
        for (notify, shape) in [
            (Notify::Ring, RingShape::default()),
            (Notify::Pointer, RingShape::default()),
            // So small that it is full all the time.
            (Notify::Ring, RingShape::new(4, 64).unwrap()),
        ] {
            for placement in PLACES {
                client.open_rings(placement, RingConfig { shape, notify }).expect("rings");
                call(&mut client, placement, &few, &small, (1200, 64));
                call(&mut client, placement, &few, &small, (20, 1));
                if shape.longest() > large.len() {
                    call(&mut client, placement, &many, &large, (40, 8));
                }
            }
        }
        for placement in PLACES {
            client.close_rings(placement).expect("closed");
            assert!(!client.has_rings(placement));
            client.submit_by_ring(placement, op::CONSISTENCY, &few, 7).expect("room");
            let mut ended = None;
            client.poll(&mut |tag, status, _| ended = Some((tag, status))).expect("connection");
            assert_eq!(ended, Some((7, Status::UnknownOp)));
        }
    }
}

/// Replies of some megabytes, and at the same time, of others, some of 64 bytes.
#[test]
fn replies_by_rings_are_as_long_as_the_ring_and_short_calls_go_on_beside_them() {
    let node = node(5);
    let shape = RingShape::new(1024, 4096).unwrap();
    for (last, link) in [(2, LinkKind::Shm), (6, LinkKind::Udp)] {
        for placement in PLACES {
            std::thread::scope(|scope| {
                for (last, len) in
                    [(last, 3_000_000), (last + 1, 500_000), (last + 2, most_reply(shape) + 4), (last + 3, 72)]
                {
                    scope.spawn(move || {
                        let mut client = client(5, last, link);
                        let (_object, expected, params) = object(&mut client, len);
                        client.open_rings(placement, RingConfig { shape, ..RingConfig::default() }).expect("rings");
                        let calls = if len > 100 { (12, 6) } else { (3000, 8) };
                        call(&mut client, placement, &params, &expected, calls);
                        call(&mut client, placement, &params, &expected, (3, 1));
                    });
                }
            });
        }
    }
    // One that has no room in the ring.
    let mut client = client(5, 10, LinkKind::Shm);
    let (_object, _, params) = object(&mut client, most_reply(RingShape::default()) + 5);
    client.open_rings(Placement::Nic, RingConfig::default()).expect("rings");
    client.submit_by_ring(Placement::Nic, op::CONSISTENCY, &params, 1).expect("room");
    let ended = |client: &mut Client| {
        let mut ended = None;
        while ended.is_none() {
            client.poll(&mut |_, status, _| ended = Some(status)).expect("connection");
        }
        ended
    };
    assert_eq!(ended(&mut client), Some(Status::ReplyTooLong));
    let most = client.most_params(Placement::Nic, true);
    assert_eq!(most, (128 << 10) - 25);
    for (len, status) in [(most, Status::UnknownOp), (most + 1, Status::BadParams)] {
        client.submit_by_ring(Placement::Nic, 0xffff_0000, &vec![1; len], 1).expect("room");
        assert_eq!(ended(&mut client), Some(status), "{len} bytes");
    }
    let error = client.call(Placement::Host, op::CONSISTENCY, &vec![1; 5000]).unwrap_err().to_string();
    assert!(error.starts_with("5000 bytes of parameters for kernel 0x3 at the host"), "{error}");
    assert!(error.contains("4064 at most") && error.contains("open rings"), "{error}");
    assert!(node.is_serving());
}

/// By however long rings: each is answered in one go.
#[test]
fn calls_to_the_node_itself_are_as_short_as_those_in_messages() {
    let _node = node(6);
    let mut client = client(6, 2, LinkKind::Shm);
    let shape = RingShape::new(1024, 4096).unwrap();
    client.open_rings(Placement::Host, RingConfig { shape, ..RingConfig::default() }).expect("rings");
    let mut ask = |op, params: &[u8]| {
        client.submit_by_ring(Placement::Host, op, params, 1).expect("room");
        let mut answer = None;
        while answer.is_none() {
            client.poll(&mut |_, status, reply| answer = Some((status, reply.to_vec()))).expect("connection");
        }
        answer.expect("one")
    };
    let (status, zeros) = ask(PATH, &(1u32 << 20).to_le_bytes());
    assert_eq!((status, zeros.len()), (Status::Ok, MAX_REPLY));
    let (status, why) = ask(KERNEL_REMOVE, &[0; MAX_REQUEST + 1]);
    let why = String::from_utf8_lossy(&why).into_owned();
    assert!(status == Status::BadParams && why.contains("4096 bytes"), "{status:?}: {why}");
}

/// Opens a pair of rings by hand: where the request ring is.
fn open_by_hand(client: &mut Client, placement: Placement, notify: Notify) -> RemoteRegion {
    let shape = RingShape::new(8, 64);
    // Replies may go nowhere: nobody reads them.
    let params = RingParams { placement, shape, notify, responses: (1 << 40, 1) };
    let reply = client.node_call("open rings", RING_OPEN, &params.encode()).expect("rings");
    let RingPlace { va, key } = RingPlace::decode(&reply).expect("an answer");
    RemoteRegion { va, key, len: shape.unwrap().memory() as u64 }
}

#[test]
fn a_client_that_lies_loses_its_connection_and_nobody_else_notices() {
    let node = node(2);
    let mut honest = client(2, 2, LinkKind::Shm);
    let (_object, expected, params) = object(&mut honest, 72);
    let word = |len: u64, credit: u64| ((len + 1) | credit << 32).to_le_bytes();
    let mark = (0xa5u64 << 56).to_le_bytes();
    // A length that no frame has; credit for what was never sent; a mark that is none.
    // A message too short for a call; a pointer further on than the ring is long.
    let pointer = RingShape::new(8, 64).unwrap().pointer() as u64;
    let lies = [
        (Notify::Ring, 0, word(5000, 0).to_vec()),
        (Notify::Ring, 0, [word(0, 9), mark].concat()),
        (Notify::Ring, 0, [word(0, 0), [1; 8]].concat()),
        (Notify::Ring, 0, [word(0, 0), mark].concat()),
        (Notify::Pointer, pointer, 9u64.to_le_bytes().to_vec()),
    ];
    for placement in PLACES {
        honest.open_rings(placement, RingConfig::default()).expect("rings");
        for (notify, at, lie) in &lies {
            let mut liar = client(2, 3, LinkKind::Shm);
            let ring = open_by_hand(&mut liar, placement, *notify);
            // The connection may end before it hears that the WRITE has come.
            let _ = liar.write(&ring, *at, lie);
            // It notices with one of its next calls.
            eventually(format!("the liar at the {placement} is cut off: {lie:?}"), || liar.node_cpu_ns().err());
            call(&mut honest, placement, &params, &expected, (20, 4));
        }
        // A call whose answer goes nowhere costs the caller its connection alone.
        let mut odd = client(2, 4, LinkKind::Shm);
        let ring = open_by_hand(&mut odd, placement, Notify::Ring);
        let no_op = [&word(16, 0)[..], &[9; 16], &mark].concat();
        let _ = odd.write(&ring, 0, &no_op);
        eventually(format!("the odd one at the {placement} is cut off"), || odd.node_cpu_ns().err());
        call(&mut honest, placement, &params, &expected, (20, 4));
    }
    assert!(node.is_serving());
}

#[test]
fn rings_go_with_their_memory_and_with_their_client() {
    let node = node(3);
    let half = (32 << 20) - 8192;
    for placement in PLACES {
        let mut client = client(3, 2, LinkKind::Shm);
        let (region, _, params) = object(&mut client, 60_000);
        client.open_rings(placement, RingConfig::default()).expect("rings");
        assert!(client.open_rings(Placement::Client, RingConfig::default()).is_err());
        client.alloc(half).expect_err("it has some already");
        client.close_rings(placement).expect("closed");
        client.free(&region).expect("freed");
        let most = eventually("all that one may have", || client.alloc(half).ok());
        client.free(&most).expect("freed");

        // Its memory goes while calls are under way, and so does the client.
        let (_region, _, _) = object(&mut client, 60_000);
        client.open_rings(placement, RingConfig::default()).expect("rings");
        for tag in 0..20 {
            client.submit_by_ring(placement, op::CONSISTENCY, &params, tag).expect("room");
        }
        // So many that are denied may cost the connection already.
        let _ = client.poll(&mut |_, _, _| {});
    }
    let mut next = client(3, 4, LinkKind::Shm);
    eventually("what others left comes back", || next.alloc(half).ok());
    assert!(node.is_serving());
}

#[test]
fn a_node_that_sleeps_is_woken_by_a_ring() {
    let _node = node(4);
    let mut client = client(4, 2, LinkKind::Udp);
    let (_object, expected, params) = object(&mut client, 72);
    for placement in PLACES {
        for notify in [Notify::Ring, Notify::Pointer] {
            client.open_rings(placement, RingConfig { notify, ..RingConfig::default() }).expect("rings");
            for _ in 0..5 {
                // Its threads sleep after half a millisecond without work, and look up ten times a second.
                std::thread::sleep(Duration::from_millis(3));
                call(&mut client, placement, &params, &expected, (1, 1));
            }
        }
    }
}
