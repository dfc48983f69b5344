//! An index in two parts, whose border moves while clients read, write and scan it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use remora::{Client, Index, Node, Placement, Status, TypedCall};
use remora_kernel::btree::{MoveParams, NOT_OWNER};
use remora_kernel::op;
use remora_testing::eventually;

/// Keys: each client writes those that are its number, modulo so many; nobody writes those of the last number.
const CLIENTS: u64 = 4;
const KEYS: u64 = 1200;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Reads and writes keys of its own, and remembers what they hold.
fn work(client: &mut Client, index: &mut Index, mine: u64, steps: u64) -> BTreeMap<u64, u64> {
    let mut held: BTreeMap<u64, u64> = (0..KEYS).filter(|key| key % CLIENTS == mine).map(|key| (key, key)).collect();
    let mut state = mine;
    for step in 0..steps {
        let key = random(&mut state) % (KEYS / CLIENTS) * CLIENTS + mine;
        let (found, expected) = match random(&mut state) % 10 {
            0..4 => (index.put(client, key, step), held.insert(key, step)),
            4..6 => (index.remove(client, key), held.remove(&key)),
            _ => (index.get(client, key), held.get(&key).copied()),
        };
        assert_eq!(found.expect("a call"), expected, "client {mine}, step {step}, key {key}");
    }
    held
}

/// Scans of all keys until `done`: each in order, and with those that nobody writes once.
fn scan(client: &mut Client, index: &mut Index, done: &AtomicBool) -> usize {
    let mut scans = 0;
    while !done.load(Ordering::Relaxed) || scans == 0 {
        let place = [None, Some(Placement::Client), Some(Placement::Host)][scans % 3];
        index.run_at(client, place).expect("owners");
        let found = index.scan(client, 0, u32::MAX).expect("a scan");
        assert!(found.is_sorted_by(|a, b| a.0 < b.0), "a key twice, or out of order: {found:?}");
        let still: Vec<_> = found.iter().filter(|(key, _)| key % CLIENTS == CLIENTS - 1).collect();
        assert_eq!(still.len() as u64, KEYS / CLIENTS, "a key that nobody writes was missed");
        assert!(still.iter().all(|(key, value)| key == value));
        scans += 1;
    }
    scans
}

/// Moves the border anywhere until `done`; returns how many pairs have changed over.
fn move_about(client: &mut Client, index: &mut Index, done: &AtomicBool) -> u64 {
    let (mut moved, mut state) = (0, 7);
    while !done.load(Ordering::Relaxed) {
        let target = match random(&mut state) % 4 {
            0 => 0,
            1 => u64::MAX,
            _ => random(&mut state) % KEYS,
        };
        while index.border() != target && !done.load(Ordering::Relaxed) {
            moved += index.step(client, target, 3).expect("a move");
        }
    }
    moved
}

#[test]
fn nothing_is_lost_or_twice_while_a_border_moves() {
    let node = Node::local().expect("node");
    let connect = || Client::connect(node.address()).expect("connection");
    let mut first = connect();
    let mut index = first.load_index((0..KEYS).map(|key| (key, key)), 50).expect("an index");
    let at = index.place();
    let open = |client: &mut Client| client.open_index(at).expect("a directory");

    let done = AtomicBool::new(false);
    let (held, scans, moved) = std::thread::scope(|scope| {
        // One by one-sided verbs alone, one at the NIC whatever the part, one where each part is.
        let places = [Some(Placement::Client), Some(Placement::Nic), None];
        let workers: Vec<_> = (0..CLIENTS - 1)
            .map(|mine| {
                let (mut client, place) = (connect(), places[mine as usize]);
                let mut index = open(&mut client);
                scope.spawn(move || {
                    index.run_at(&mut client, place).expect("owners");
                    work(&mut client, &mut index, mine, 4000)
                })
            })
            .collect();
        let (mut clients, done) = ([connect(), connect()], &done);
        let [mut one, mut other] = clients.each_mut().map(open);
        let [scanner, mover] = clients;
        let (mut scanner, mut mover) = (scanner, mover);
        let scans = scope.spawn(move || scan(&mut scanner, &mut one, done));
        let moved = scope.spawn(move || move_about(&mut mover, &mut other, done));
        let held: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        let held: Vec<_> = held.into_iter().map(|held| held.expect("a worker")).collect();
        (held, scans.join().expect("the scanner"), moved.join().expect("the mover"))
    });
    println!("{scans} scans, {moved} pairs moved");
    assert!(moved > 0);

    let still = (0..KEYS).filter(|key| key % CLIENTS == CLIENTS - 1).map(|key| (key, key));
    let all: BTreeMap<u64, u64> = held.into_iter().flatten().chain(still).collect();
    for (border, place) in [(KEYS / 3, Some(Placement::Client)), (0, None), (u64::MAX, Some(Placement::Nic))] {
        index.move_border(&mut first, border).expect("a move");
        assert_eq!(index.border(), border);
        index.run_at(&mut first, place).expect("owners");
        let found = index.scan(&mut first, 0, u32::MAX).expect("a scan");
        assert_eq!(found, all.clone().into_iter().collect::<Vec<_>>(), "border {border}");
    }
}

#[test]
fn a_border_goes_where_most_calls_end() {
    let node = Node::local().expect("node");
    let mut client = Client::connect(node.address()).expect("connection");
    let keys: Vec<u64> = (0..2000).map(|key| 3 * key).collect();
    for (start, best) in [(0, 1800.0), (100, 1800.0), (70, 100.0), (50, 6000.0)] {
        let mut index = client.load_index(keys.iter().map(|key| (*key, *key)), start).expect("an index");
        let mut asked = 0;
        // What is reached falls to both sides of one border.
        let rate = |client: &mut Client, index: &mut Index| {
            asked += 1;
            assert_eq!(index.get(client, 300)?, Some(300));
            Ok(1e6 - (index.border().min(6000) as f64 - best).abs() * 100.0)
        };
        index.balance(&mut client, &keys, rate).expect("a balance");
        let found = index.border().min(6000) as f64;
        println!("from {start} %: {found} after {asked} figures");
        assert!((found - best).abs() <= 300.0, "from {start} %: {found} and not {best}");
        assert_eq!(index.scan(&mut client, 0, 9999).expect("a scan").len(), keys.len());
    }
}

#[test]
fn a_border_that_is_kept_follows_the_keys_that_are_asked_for() {
    let node = Node::local().expect("node");
    let mut client = Client::connect(node.address()).expect("connection");
    // The host has all at first.
    let mut index = client.load_index((0..KEYS).map(|key| (key, 3 * key)), 100).expect("an index");
    index.keep_balanced(true);
    let mut state = 1;
    let mut ask = |index: &mut Index, keys: &Range<u64>, calls: u32| {
        for _ in 0..calls {
            let key = keys.start + random(&mut state) % (keys.end - keys.start);
            assert_eq!(index.get(&mut client, key).expect("a call"), Some(3 * key));
        }
    };
    // Whatever calls take, it tries to give the NIC a part of them, wherever they go.
    for keys in [0..300, 600..900] {
        eventually(format!("a border within {keys:?}"), || {
            ask(&mut index, &keys, 500);
            keys.contains(&index.border()).then_some(())
        });
    }
    index.keep_balanced(false);
    let border = index.border();
    ask(&mut index, &(0..KEYS), 5000);
    assert_eq!(index.border(), border);
    // Nor does it move where no call goes by it.
    index.run_at(&mut client, Some(Placement::Host)).expect("a place");
    index.keep_balanced(true);
    for key in (0..KEYS).cycle().take(10_000) {
        assert_eq!(index.get(&mut client, key).expect("a call"), Some(3 * key));
    }
    assert_eq!(index.border(), border);
    assert_eq!(index.scan(&mut client, 0, u32::MAX).expect("a scan").len() as u64, KEYS);
}

/// A move by hand.
struct Move(MoveParams);

impl TypedCall for Move {
    type Reply = Status;

    fn op(&self) -> u64 {
        op::TREE_MOVE
    }

    fn encode(&self, params: &mut Vec<u8>) {
        params.extend(self.0.encode());
    }

    fn decode(&self, status: Status, _: &[u8]) -> Option<Status> {
        Some(status)
    }
}

#[test]
fn who_may_go_away_moves_no_border_and_what_is_no_directory_is_none() {
    let node = Node::local().expect("node");
    let mut client = Client::connect(node.address()).expect("connection");
    let index = client.load_index([], 50).expect("an index");
    assert_eq!(index.border(), u64::MAX);
    let (directory, key) = index.place();
    let params = MoveParams { directory, key, leaves: 1, target: 1 };
    for (place, status) in [(Placement::Client, NOT_OWNER), (Placement::Nic, Status::Ok), (Placement::Host, Status::Ok)]
    {
        assert_eq!(client.at(place).call(Move(params)).expect("a call"), status, "{place}");
    }
    let other = client.alloc(4096).expect("memory");
    let error = client.open_index((other.va, other.key)).unwrap_err();
    assert!(error.to_string().contains("no directory of an index"), "{error}");
}
