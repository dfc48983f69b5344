//! A node and its clients in one process, over real links.

mod common;

use std::net::{IpAddr, Ipv4Addr};

use common::fill_object;
use remora_kernel::{ConsistencyParams, Placement, Status, crc64, op};
use remora_real::{Client, ClientConfig, Error, LinkKind, Node, NodeConfig};
use remora_testing::eventually;

/// Each test has a node address of its own, so that they can run at once.
fn node(host: u8) -> (Node, IpAddr) {
    let ip = IpAddr::V4(Ipv4Addr::new(127, 10, host, 1));
    (Node::start(NodeConfig { memory_limit: 128 << 20, ..NodeConfig::new(ip) }).expect("node"), ip)
}

fn client(node: IpAddr, last: u8, link: impl Into<Option<LinkKind>>) -> Client {
    let IpAddr::V4(v4) = node else { unreachable!("nodes here are IPv4") };
    let [a, b, c, _] = v4.octets();
    let local = IpAddr::V4(Ipv4Addr::new(a, b, c, last));
    Client::connect(ClientConfig { link: link.into(), ..ClientConfig::new(node, local) }).expect("connection")
}

const PLACEMENTS: [Placement; 3] = [Placement::Client, Placement::Nic, Placement::Host];

#[test]
fn bulk_copies_come_back_exactly_over_both_links() {
    let (node, ip) = node(1);
    for (last, link, kind) in [(2, Some(LinkKind::Udp), LinkKind::Udp), (3, None, LinkKind::Shm)] {
        let mut client = client(ip, last, link);
        assert_eq!(client.link(), kind, "both ends are local and of one user");
        let region = client.alloc(3 << 20).expect("memory");
        let data: Vec<u8> = (0..(3 << 20) - 5u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        client.write(&region, 5, &data).expect("write");
        let mut back = vec![0; data.len()];
        client.read(&region, 5, &mut back).expect("read");
        assert!(back == data, "over {kind}");
        assert!(client.write(&region, (3 << 20) - 1, &[0; 2]).is_err(), "past the region's end");
    }
    node.shutdown();
}

#[test]
fn the_same_kernel_gives_the_same_answer_in_each_placement() {
    let (node, ip) = node(2);
    for (last, link) in [(2, LinkKind::Udp), (3, LinkKind::Shm)] {
        let mut client = client(ip, last, link);
        let region = client.alloc(1 << 20).expect("memory");
        let mut object = vec![0; 1000];
        fill_object(7, 3, &mut object);
        client.write(&region, 64, &object).expect("write");
        let good = ConsistencyParams { address: region.va + 64, key: region.key, len: 1000, max_tries: 3 };
        let torn = ConsistencyParams { address: region.va + 72, ..good };
        let outside = ConsistencyParams { address: region.va + (1 << 20) - 8, ..good };
        let foreign = ConsistencyParams { key: region.key ^ 1, ..good };
        for placement in PLACEMENTS {
            let mut call = |params: ConsistencyParams| {
                client
                    .call(placement, op::CONSISTENCY, &params.encode())
                    .unwrap_or_else(|e| panic!("{placement:?}: {e}"))
            };
            let (status, reply) = call(good);
            assert_eq!((status, &reply[..992]), (Status::Ok, &object[..992]), "{placement:?}");
            assert_eq!(call(torn).0, Status::Inconsistent, "{placement:?}");
            // One-sided, a bad address ends the connection as the verbs specification says; kernels only get a status.
            if placement != Placement::Client {
                assert_eq!(call(outside).0, Status::AccessDenied, "{placement:?}");
                assert_eq!(call(foreign).0, Status::AccessDenied, "{placement:?}");
            }
        }
        assert_eq!(client.call(Placement::Nic, 999, &[]).expect("call").0, Status::UnknownOp);
        assert_eq!(client.call(Placement::Host, 999, &[]).expect("call").0, Status::UnknownOp);
        assert_eq!(client.call(Placement::Nic, op::GET, &[1, 2]).expect("call").0, Status::BadParams);
    }
    node.shutdown();
}

#[test]
fn a_bad_key_at_the_client_ends_the_connection_and_says_so() {
    let (node, ip) = node(3);
    let mut client = client(ip, 2, LinkKind::Udp);
    let region = client.alloc(4096).expect("memory");
    let params = ConsistencyParams { address: region.va, key: region.key ^ 1, len: 64, max_tries: 1 };
    let error = client.call(Placement::Client, op::CONSISTENCY, &params.encode()).map(|r| r.0);
    assert!(matches!(error, Err(Error::Lost { .. }) | Ok(Status::AccessDenied)), "{error:?}");
    let mut second = self::client(ip, 3, LinkKind::Udp);
    assert!(second.alloc(4096).is_ok(), "others notice nothing");
    node.shutdown();
}

#[test]
fn many_calls_at_once_are_all_answered() {
    let (node, ip) = node(4);
    for (last, link) in [(2, LinkKind::Udp), (3, LinkKind::Shm)] {
        let mut client = client(ip, last, link);
        let region = client.alloc(1 << 20).expect("memory");
        let mut object = vec![0; 256];
        for n in 0..64 {
            fill_object(n, 1, &mut object);
            client.write(&region, n * 256, &object).expect("write");
        }
        for placement in PLACEMENTS {
            let (mut next, mut answered) = (0u32, vec![false; 5000]);
            while answered.contains(&false) {
                while (next as usize) < answered.len() {
                    let address = region.va + u64::from(next % 64) * 256;
                    let params = ConsistencyParams { address, key: region.key, len: 256, max_tries: 1 };
                    if client.submit(placement, op::CONSISTENCY, &params.encode(), next).is_err() {
                        break;
                    }
                    next += 1;
                }
                let mut expected = vec![0; 256];
                client
                    .poll(&mut |tag, status, reply| {
                        fill_object(u64::from(tag % 64), 1, &mut expected);
                        assert_eq!((status, &reply[..248]), (Status::Ok, &expected[..248]), "{placement:?} {tag}");
                        assert!(!std::mem::replace(&mut answered[tag as usize], true), "{placement:?} {tag} twice");
                    })
                    .expect("poll");
            }
        }
    }
    node.shutdown();
}

#[test]
fn memory_is_limited_freed_and_private_to_its_key() {
    let (node, ip) = node(5);
    let mut first = client(ip, 2, LinkKind::Udp);
    let region = first.alloc(48 << 20).expect("memory");
    let refused = first.alloc(32 << 20).expect_err("over the node's limit").to_string();
    assert!(refused.contains("--memory"), "says what to do: {refused}");
    assert!(first.alloc(0).is_err());
    first.free(&region).expect("free");
    let region = first.alloc(48 << 20).expect("memory again");
    drop(first);
    let mut second = client(ip, 3, LinkKind::Udp);
    // The node hears of the first client's end by a message of its own.
    eventually("the memory of a client that ended", || second.alloc(48 << 20).ok());
    let params = ConsistencyParams { address: region.va, key: region.key, len: 64, max_tries: 1 };
    let (status, _) = second.call(Placement::Nic, op::CONSISTENCY, &params.encode()).expect("call");
    assert_eq!(status, Status::AccessDenied, "the old key is dead");
    node.shutdown();
}

#[test]
fn nobody_there_is_said_plainly() {
    let ip = IpAddr::V4(Ipv4Addr::new(127, 10, 6, 1));
    let local = IpAddr::V4(Ipv4Addr::new(127, 10, 6, 2));
    for link in [LinkKind::Udp, LinkKind::Shm] {
        let error = Client::connect(ClientConfig { link: Some(link), ..ClientConfig::new(ip, local) })
            .err()
            .expect("no node")
            .to_string();
        assert!(error.contains("remora node"), "{error}");
    }
}

#[test]
fn the_real_world_has_no_accelerator_and_says_so() {
    let (node, ip) = node(9);
    let mut client = client(ip, 2, LinkKind::Udp);
    let error = client.call(Placement::Accelerator, op::GET, &[]).expect_err("no such place");
    assert!(matches!(error, Error::Placement(Placement::Accelerator)), "{error}");
    client.submit(Placement::Accelerator, op::GET, &[], 7).expect("room");
    let mut ended = None;
    client.poll(&mut |tag, status, _| ended = Some((tag, status))).expect("connection");
    assert_eq!((ended, client.in_flight()), (Some((7, Status::UnknownOp)), 0));
    node.shutdown();
}

#[test]
fn a_payload_stream_reaches_its_kernel() {
    let (node, ip) = node(7);
    let mut client = client(ip, 2, LinkKind::Udp);
    let data: Vec<u8> = (0..100_000u32).map(|n| (n * 31) as u8).collect();
    let (status, reply) = client.call_stream(op::CHECKSUM, &[], &data).expect("call");
    assert_eq!(status, Status::Ok);
    assert_eq!(reply[..8], (data.len() as u64).to_le_bytes());
    assert_eq!(reply[8..16], crc64(&data).to_le_bytes());
    node.shutdown();
}
