//! A B-tree that clients write by themselves while the node's NIC and host write it too.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use remora_kernel::btree::{BuildError, LOCKED, Shape, TreeParams, TreeRef};
use remora_kernel::{Placement, Status, op};
use remora_real::{Client, ClientConfig, Node, NodeConfig};

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 15, 78, last))
}

/// Slots of the tree, those of two logs among them.
const SLOTS: u32 = 2000;
const NODE: usize = 256;

/// Makes steps upon keys of its own, which lie among those of the others, and remembers what they hold.
fn work(client: &mut Client, placement: Placement, tree: TreeRef, mine: u64, steps: u64) -> BTreeMap<u64, u64> {
    let mut held = BTreeMap::new();
    let mut random = mine + 1;
    for step in 0..steps {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = (random >> 33) % 400 * 3 + mine;
        // First it grows, then it shrinks.
        let puts = if step < steps / 2 { 6 } else { 2 };
        let (op, value, expected) = match (random >> 20) % 10 {
            n if n < puts => (op::TREE_PUT, step, held.insert(key, step)),
            n if n < 8 => (op::TREE_DELETE, 0, held.remove(&key)),
            _ => (op::TREE_GET, 0, held.get(&key).copied()),
        };
        let params = TreeParams::new(tree, key, value).encode();
        let (status, reply) = loop {
            match client.call(placement, op, &params).expect("a call") {
                (LOCKED, _) => {}
                answer => break answer,
            }
        };
        let found = match status {
            Status::Ok => reply.try_into().ok().map(u64::from_le_bytes),
            Status::NotFound => None,
            _ => panic!("step {step} at the {placement}: {status:?}"),
        };
        assert_eq!(found, expected, "step {step} at the {placement}: op-code {op}, key {key}");
    }
    held
}

#[test]
fn clients_and_node_write_one_tree_at_once() {
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(address(1)) }).expect("node");
    let mut first = Client::connect(ClientConfig::new(address(1), address(2))).expect("connection");
    let region = first.alloc(u64::from(SLOTS) * NODE as u64).expect("memory");
    let shape = Shape { node_bytes: NODE, fill: 100 };
    let load = |at, node: &[u8]| {
        first.write(&region, at, node).expect("write");
        Ok::<_, BuildError>(())
    };
    shape.build([], 0, SLOTS - 8, load).expect("an empty tree");
    let tree = TreeRef { base: region.va, key: region.key, slots: SLOTS, node_bytes: NODE as u16, owners: 2, owner: 0 };

    let places = [Placement::Client, Placement::Client, Placement::Nic];
    let held: Vec<BTreeMap<u64, u64>> = std::thread::scope(|scope| {
        let worker = |n: usize| {
            let placement = places[n];
            scope.spawn(move || {
                let mut client =
                    Client::connect(ClientConfig::new(address(1), address(10 + n as u8))).expect("connection");
                let tree = if placement == Placement::Client { client.own_tree(tree).expect("an owner") } else { tree };
                work(&mut client, placement, tree, n as u64, 1500)
            })
        };
        let workers: Vec<_> = (0..places.len()).map(worker).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).collect()
    });

    let all: BTreeMap<u64, u64> = held.into_iter().flatten().collect();
    for placement in [Placement::Client, Placement::Host] {
        let (status, reply) =
            first.call(placement, op::TREE_SCAN, &TreeParams::new(tree, 0, 5000).encode()).expect("a scan");
        let words: Vec<u64> = reply.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let pairs: Vec<(u64, u64)> = words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        assert_eq!((status, pairs), (Status::Ok, all.clone().into_iter().collect()), "at the {placement}");
    }
}
