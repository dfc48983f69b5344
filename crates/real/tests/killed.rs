//! Clients that are killed (SIGKILL) amid what they write: to a B-tree, by one-sided verbs, after any of their accesses; to a
//! key-value store, by calls. Others go on, and what the dead had locked is free again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use remora_kernel::btree::{BuildError, LOCKED, Shape, TreeParams, TreeRef};
use remora_kernel::kv::{KvParams, KvRef, hash, header, table_of};
use remora_kernel::{Placement, Status, op};
use remora_real::{Client, ClientConfig, Node, NodeConfig, RingConfig};
use remora_testing::eventually;

/// What a child does, and its numbers.
const ROLE: &str = "REMORA_KILLED";
const CHILDREN: u64 = 12;
const KEYS: u64 = 90;

fn address(last: u64) -> IpAddr {
    Ipv4Addr::new(127, 21, 9, last as u8).into()
}

fn connect(node: u64, last: u64) -> Client {
    let config = ClientConfig { timeout: Duration::from_secs(30), ..ClientConfig::new(address(node), address(last)) };
    Client::connect(config).expect("connection")
}

/// Starts this test program once more, as a client that kills itself.
fn child(role: &str, numbers: &[u64]) -> Child {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_client_that_is_killed", "--nocapture"]).stdout(Stdio::null());
    command.env(ROLE, format!("{role} {}", words.join(" "))).spawn().expect("a child")
}

fn die() -> ! {
    // SAFETY: a signal to this process, which ends it.
    unsafe { libc::raise(libc::SIGKILL) };
    unreachable!("SIGKILL was taken")
}

/// What children run; nothing in the parent.
#[test]
fn a_client_that_is_killed() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(' ');
    let role = words.next().expect("a role").to_string();
    let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
    match (&role[..], &numbers[..]) {
        ("tree", &[mine, accesses, base, key, slots, owners]) => {
            let tree = TreeRef {
                base,
                key: key as u32,
                slots: slots as u32,
                node_bytes: NODE as u16,
                owners: owners as u16,
                owner: 0,
            };
            write_tree(mine, accesses, tree)
        }
        ("kv", &[mine, turns, base, key]) => write_kv(mine, turns, KvRef::new(base, key as u32, 2)),
        other => panic!("{other:?}"),
    }
}

/// Killed, and not ended otherwise.
fn was_killed(mut child: Child) {
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().expect("a child");
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
}

const NODE: usize = 256;
const SLOTS: u32 = 1500;

/// Writes until so many accesses are done, and dies.
fn write_tree(mine: u64, accesses: u64, tree: TreeRef) -> ! {
    let mut client = connect(1, 20 + mine);
    let tree = client.own_tree(tree).expect("an owner");
    let before = client.counters().round_trips;
    let mut random = mine;
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = (random >> 33) % KEYS * 20 + mine;
        let op = if random >> 20 & 3 == 0 { op::TREE_DELETE } else { op::TREE_PUT };
        client.submit(Placement::Client, op, &TreeParams::new(tree, key, key ^ mine).encode(), 0).expect("room");
        let mut ended = false;
        while !ended {
            let done = &mut |_: u32, status: Status, _: &[u8]| {
                assert!(matches!(status, Status::Ok | Status::NotFound | LOCKED), "{status:?}");
                ended = true;
            };
            client.poll(done).expect("connection");
            if client.counters().round_trips - before >= accesses {
                die();
            }
        }
    }
}

#[test]
fn a_tree_is_whole_again_whenever_its_writers_are_killed() {
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(address(1)) }).expect("node");
    let mut owner = connect(1, 2);
    let region = owner.alloc(u64::from(SLOTS) * NODE as u64).expect("memory");
    let owners = CHILDREN as u16 + 1;
    let load = |at, node: &[u8]| {
        owner.write(&region, at, node).expect("write");
        Ok::<_, BuildError>(())
    };
    let shape = Shape { node_bytes: NODE, fill: 100 };
    shape.build([], 0, SLOTS - 4 * u32::from(owners), load).expect("an empty tree");
    let tree = TreeRef { base: region.va, key: region.key, slots: SLOTS, node_bytes: NODE as u16, owners, owner: 0 };
    // A write that splits nothing is a READ or two, a swap, and the writes.
    let children: Vec<Child> = (0..CHILDREN)
        .map(|n| child("tree", &[n, 150 + n, tree.base, tree.key.into(), SLOTS.into(), owners.into()]))
        .collect();
    // Others write meanwhile, at the node and by themselves.
    let write_on = |last: u64, placement: Placement| {
        let mut client = connect(1, last);
        let tree = if placement == Placement::Client { client.own_tree(tree).expect("an owner") } else { tree };
        let mut held = BTreeMap::new();
        for round in 0..3 {
            for key in (0..KEYS).map(|n| n * 20 + last) {
                let put = TreeParams::new(tree, key, key ^ round).encode();
                let status = eventually("a lock that a dead client had is free", || {
                    Some(client.call(placement, op::TREE_PUT, &put).expect("a call").0)
                        .filter(|status| *status != LOCKED)
                });
                assert_eq!(status, Status::Ok, "key {key}");
                held.insert(key, key ^ round);
            }
        }
        held
    };
    let held: BTreeMap<u64, u64> = std::thread::scope(|scope| {
        let workers = [(16, Placement::Client), (17, Placement::Nic), (18, Placement::Host)]
            .map(|(last, placement)| scope.spawn(move || write_on(last, placement)));
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    });
    children.into_iter().for_each(was_killed);
    // All owners can be had again, so all are recovered.
    let again: Vec<(Client, u16)> = (0..u64::from(owners))
        .map(|n| {
            let mut client = connect(1, 40 + n);
            let owned = eventually("an owner that is recovered", || client.own_tree(tree).ok());
            (client, owned.owner)
        })
        .collect();
    assert_eq!(again.iter().map(|(_, owner)| owner).max(), Some(&owners));
    let (status, reply) =
        owner.call(Placement::Host, op::TREE_SCAN, &TreeParams::new(tree, 0, 4000).encode()).expect("a scan");
    assert_eq!(status, Status::Ok);
    let words: Vec<u64> = reply.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let mut pairs: BTreeMap<u64, u64> = words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    for (key, value) in held {
        assert_eq!(pairs.remove(&key), Some(value), "key {key}");
    }
    assert!(pairs.iter().all(|(key, value)| *value == key ^ (key % 20) && key % 20 < CHILDREN), "{pairs:?}");
    // No lock is left anywhere.
    for key in (0..KEYS).map(|n| n * 20 + 19) {
        let put = TreeParams::new(tree, key, 1).encode();
        assert_eq!(owner.call(Placement::Nic, op::TREE_PUT, &put).expect("a call").0, Status::Ok);
    }
}

/// Keys that children write to a key-value store.
const KV_KEYS: u64 = 600;

fn pair(at: KvRef, key: u64, writer: u64, number: u64) -> Vec<u8> {
    let (name, mut out) = (key.to_le_bytes(), Vec::new());
    let value: Vec<u64> = (0..1 + (number * 7 + writer) % 40).map(|at| at ^ key ^ writer << 32).collect();
    let value: Vec<u8> = value.iter().flat_map(|word| word.to_le_bytes()).collect();
    KvParams::new(at, hash(&name, 3), &name, &value).encode(&mut out);
    out
}

fn is_whole(key: u64, value: &[u8]) -> bool {
    let words: Vec<u64> = value.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let writer = words.first().map(|word| (word ^ key) >> 32);
    writer.is_some_and(|writer| (0..).zip(&words).all(|(at, word)| *word == at ^ key ^ writer << 32))
}

/// Puts, updates and deletes by every way, and dies amid it.
fn write_kv(mine: u64, turns: u64, at: KvRef) -> ! {
    let mut client = connect(60, 70 + mine);
    for place in [Placement::Nic, Placement::Host] {
        client.open_rings(place, RingConfig::default()).expect("rings");
    }
    for number in 0.. {
        let params = pair(at, (number * 7 + mine * 50) % KV_KEYS, mine, number);
        let place = if number % 2 == 0 { Placement::Nic } else { Placement::Host };
        let _ = match number % 3 {
            0 => client.submit(place, op::KV_PUT, &params, 0),
            1 => client.submit_by_ring(place, op::KV_PUT, &params, 0),
            _ => client.submit_by_ring(place, op::KV_UPDATE, &params, 0),
        };
        if number % 8 == 7 {
            client.poll(&mut |_, _, _| {}).expect("connection");
        }
        if number == 20 + turns * 13 {
            die();
        }
    }
    unreachable!("numbers end")
}

#[test]
fn a_key_value_store_is_whole_whenever_its_writers_are_killed() {
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(address(60)) }).expect("node");
    let mut owner = connect(60, 61);
    // Of few buckets and little memory: they die while there get more of both.
    let region = owner.alloc_growing(300 << 10).expect("memory");
    owner.write(&region, 0, &header(2, 300 << 10, 3).expect("room")).expect("write");
    let at = KvRef::new(region.va, region.key, 2);
    // A client would leave a lock behind, so it is not let.
    let (status, _) = owner.call(Placement::Client, op::KV_PUT, &pair(at, 1, 1, 1)).expect("a call");
    assert_eq!(status, remora_kernel::kv::NOT_HERE);
    let children: Vec<Child> = (0..CHILDREN).map(|n| child("kv", &[n, n, at.base, at.key.into()])).collect();
    children.into_iter().for_each(was_killed);
    for key in 0..KV_KEYS {
        for (place, number) in [(Placement::Nic, 5), (Placement::Host, 39)] {
            // Calls of the dead may still run.
            let (name, mut get) = (key.to_le_bytes(), Vec::new());
            KvParams::of_key(at, hash(&name, 3), &name).encode(&mut get);
            let mut ask = |op: u64, params: &[u8]| {
                eventually("a call that is not disturbed", || {
                    let (status, reply) = owner.call(place, op, params).expect("a call");
                    (status != Status::Inconsistent).then_some((status, reply))
                })
            };
            assert_eq!(ask(op::KV_PUT, &pair(at, key, 99, number)).0, Status::Ok, "key {key}");
            let (status, value) = ask(op::KV_GET, &get);
            assert!(status == Status::Ok && is_whole(key, &value), "key {key}: {status:?} {value:?}");
        }
    }
    let mut first_bytes = [0; 16];
    owner.read(&region, 0, &mut first_bytes).expect("read");
    assert!(table_of(&first_bytes).expect("a store").lg_buckets > 2);
}
