//! A B-tree that clients write by themselves while the node's NIC and host write it too.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use remora_kernel::btree::{BuildError, BytePairs, ByteParams, LOCKED, Shape, TreeParams, TreeRef};
use remora_kernel::{Placement, Status, op};
use remora_real::{Client, ClientConfig, Node, NodeConfig};

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 15, 78, last))
}

/// Slots of the tree, those of two logs among them.
const SLOTS: u32 = 2000;
const NODE: usize = 256;

/// Whether keys are numbers or bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    Numbers,
    Bytes,
}

impl Keys {
    /// A key as bytes: of any length, and in the order of its number.
    fn bytes(key: u64) -> Vec<u8> {
        [&key.to_be_bytes()[5..], &vec![7; (key % 29) as usize]].concat()
    }

    fn params(self, tree: TreeRef, key: u64, value: u64) -> Vec<u8> {
        match self {
            Keys::Numbers => TreeParams::new(tree, key, value).encode().to_vec(),
            Keys::Bytes => {
                let mut params = Vec::new();
                ByteParams::new(tree, &Self::bytes(key), value).encode(&mut params);
                params
            }
        }
    }

    /// What a scan has brought.
    fn pairs(self, reply: &[u8]) -> Vec<(u64, u64)> {
        match self {
            Keys::Numbers => {
                let words = reply.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                words.collect::<Vec<_>>().chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
            }
            Keys::Bytes => {
                let number = |key: &[u8]| key[..3].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
                let pairs = BytePairs(reply).map(|(key, value)| {
                    assert_eq!(key, Self::bytes(number(key)));
                    (number(key), value)
                });
                pairs.collect()
            }
        }
    }
}

/// Makes steps upon keys of its own, which lie among those of the others, and remembers what they hold.
fn work(
    client: &mut Client,
    placement: Placement,
    (tree, keys): (TreeRef, Keys),
    mine: u64,
    steps: u64,
) -> BTreeMap<u64, u64> {
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
        let params = keys.params(tree, key, value);
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
    write_at_once(Keys::Numbers, 0);
}

#[test]
fn clients_and_node_write_one_tree_of_bytes_at_once() {
    write_at_once(Keys::Bytes, 100);
}

fn write_at_once(keys: Keys, net: u8) {
    let address = |last: u8| address(net + last);
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(address(1)) }).expect("node");
    let mut first = Client::connect(ClientConfig::new(address(1), address(2))).expect("connection");
    let region = first.alloc(u64::from(SLOTS) * NODE as u64).expect("memory");
    let shape = Shape { node_bytes: NODE, fill: 100 };
    let load = |at, node: &[u8]| {
        first.write(&region, at, node).expect("write");
        Ok::<_, BuildError>(())
    };
    match keys {
        Keys::Numbers => shape.build([], 0, SLOTS - 8, load),
        Keys::Bytes => shape.build_bytes(std::iter::empty::<([u8; 0], u64)>(), SLOTS - 8, load),
    }
    .expect("an empty tree");
    let tree = TreeRef { base: region.va, key: region.key, slots: SLOTS, node_bytes: NODE as u16, owners: 2, owner: 0 };

    let places = [Placement::Client, Placement::Client, Placement::Nic];
    let held: Vec<BTreeMap<u64, u64>> = std::thread::scope(|scope| {
        let worker = |n: usize| {
            let placement = places[n];
            scope.spawn(move || {
                let mut client =
                    Client::connect(ClientConfig::new(address(1), address(10 + n as u8))).expect("connection");
                let tree = if placement == Placement::Client { client.own_tree(tree).expect("an owner") } else { tree };
                work(&mut client, placement, (tree, keys), n as u64, 1500)
            })
        };
        let workers: Vec<_> = (0..places.len()).map(worker).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).collect()
    });

    let all: BTreeMap<u64, u64> = held.into_iter().flatten().collect();
    for placement in [Placement::Client, Placement::Host] {
        let (status, reply) = first.call(placement, op::TREE_SCAN, &keys.params(tree, 0, 5000)).expect("a scan");
        let pairs = keys.pairs(&reply);
        assert_eq!((status, pairs), (Status::Ok, all.clone().into_iter().collect()), "at the {placement}");
    }
}

/// Round trips that a call takes at the client, and how it ends.
fn trips(client: &mut Client, op: u64, params: &[u8]) -> (u64, Status) {
    let before = client.counters().round_trips;
    let (status, _) = client.call(Placement::Client, op, params).expect("a call");
    (client.counters().round_trips - before, status)
}

#[test]
fn a_client_that_keeps_inner_nodes_looks_up_in_one_round_trip_and_writes_in_three() {
    const KEYS: u64 = 4000;
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(address(200)) }).expect("node");
    let mut loader = Client::connect(ClientConfig::new(address(200), address(201))).expect("connection");
    let mut client = Client::connect(ClientConfig::new(address(200), address(202))).expect("connection");
    for (keys, node_bytes) in [(Keys::Numbers, 256), (Keys::Numbers, 512), (Keys::Numbers, 4096), (Keys::Bytes, 512)] {
        let shape = Shape { node_bytes, fill: 70 };
        // Every other number is there.
        let numbers = (0..KEYS).map(|i| 2 * i);
        let pairs = numbers.clone().map(|key| (Keys::bytes(key), key));
        let nodes = match keys {
            Keys::Numbers => shape.slots(KEYS as usize),
            Keys::Bytes => shape.byte_slots(pairs.clone()).expect("sorted"),
        };
        let slots = 2 * nodes as u32 + 4;
        let region = loader.alloc(u64::from(slots) * node_bytes as u64).expect("memory");
        let load = |at, node: &[u8]| {
            loader.write(&region, at, node).expect("write");
            Ok::<_, BuildError>(())
        };
        match keys {
            Keys::Numbers => shape.build(numbers.map(|key| (key, key)), KEYS as usize, slots - 4, load),
            Keys::Bytes => shape.build_bytes(pairs, slots - 4, load),
        }
        .expect("a tree");
        let (base, key) = (region.va, region.key);
        let tree = TreeRef { base, key, slots, node_bytes: node_bytes as u16, owners: 1, owner: 0 };
        let tree = client.own_tree(tree).expect("an owner");
        let mut random = node_bytes as u64;
        let mut draw = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % KEYS
        };

        // A look-up, while somebody else splits and merges leaves now and then: their parents change.
        let (mut all, mut calls) = (0, 0);
        for i in 0..2 * KEYS {
            if i % 20 == 0 {
                let params = keys.params(tree, 2 * draw() + 1, 1);
                let put = loader.call(Placement::Nic, op::TREE_PUT, &params).expect("a call");
                assert_eq!(put.0, Status::Ok);
            }
            let (taken, status) = trips(&mut client, op::TREE_GET, &keys.params(tree, 2 * draw(), 0));
            assert_eq!(status, Status::Ok);
            (all, calls) = (all + taken, calls + 1);
        }
        let average = all as f64 / calls as f64;
        println!("{keys:?}, nodes of {node_bytes} B: {average:.4} round trips a look-up");
        assert!(average <= 1.05, "{average} round trips a look-up of {keys:?} in nodes of {node_bytes} B");

        // READ, compare-and-swap, and all that the write changes at once, with its log and the unlocking. No leaf is
        // split or merged: what is taken out comes back.
        for i in 0..KEYS / 8 {
            let params = keys.params(tree, 2 * draw(), i);
            assert_eq!(trips(&mut client, op::TREE_GET, &params).1, Status::Ok);
            for op in [op::TREE_PUT, op::TREE_DELETE, op::TREE_PUT] {
                let write = trips(&mut client, op, &params);
                assert_eq!(write, (3, Status::Ok), "op-code {op}, {keys:?}, nodes of {node_bytes} B");
            }
        }
    }
}
