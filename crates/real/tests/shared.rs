//! Threads that share a client, and its one pair of rings.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;

use remora_kernel::{Placement, SequencerParams, Status, op};
use remora_real::{Client, ClientConfig, Node, NodeConfig, RingConfig, SharedClient};

const THREADS: usize = 8;
const CALLS: usize = 300;

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 21, 44, last).into()
}

fn shared(last: u8, placement: Placement) -> (Node, SharedClient, Vec<u8>) {
    let node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(ip(last)) }).expect("node");
    let mut client = Client::connect(ClientConfig::new(ip(last), ip(200 + last))).expect("connection");
    let region = client.alloc(64).expect("memory");
    let params = SequencerParams { address: region.va, key: region.key, count: 1 }.encode().to_vec();
    (node, SharedClient::new(client, placement, RingConfig::default()).expect("rings"), params)
}

#[test]
fn each_thread_gets_its_own_answers_by_one_pair_of_rings() {
    for (node, placement) in [(1, Placement::Nic), (2, Placement::Host)] {
        let (_node, client, params) = shared(node, placement);
        let given = Mutex::new(BTreeSet::new());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut last = None;
                    for _ in 0..CALLS {
                        let (status, reply) = client.call(op::SEQUENCER, &params);
                        let number = u64::from_le_bytes(reply.try_into().expect("a number"));
                        assert_eq!(status, Status::Ok);
                        assert!(last.is_none_or(|last| last < number), "a thread's calls come one after the other");
                        assert!(given.lock().unwrap().insert(number), "{number} twice");
                        last = Some(number);
                    }
                });
            }
        });
        let all = (THREADS * CALLS) as u64;
        assert_eq!(given.into_inner().unwrap(), (0..all).collect::<BTreeSet<_>>());
        let (calls, posts) = client.counts();
        println!("to the {placement}: {calls} calls in {posts} posts");
        assert!(calls == all && posts <= calls);
        // What one thread has is the client itself.
        let mut client = client.into_inner();
        assert_eq!(
            client.call(placement, op::SEQUENCER, &params).expect("a call"),
            (Status::Ok, all.to_le_bytes().into())
        );
    }
}

#[test]
fn calls_of_all_threads_end_when_the_node_is_gone() {
    let (node, client, params) = shared(3, Placement::Nic);
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| while client.call(op::SEQUENCER, &params).0 == Status::Ok {})).collect();
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(node);
        callers.into_iter().for_each(|caller| caller.join().expect("a caller that ends"));
    });
    assert_eq!(client.call(op::SEQUENCER, &params), (Status::LOST, Vec::new()), "and so do later ones");
}
