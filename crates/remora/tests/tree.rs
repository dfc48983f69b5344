//! An ordered map of byte keys: beside `BTreeMap`, from every place, in scans that take many replies.

use std::collections::BTreeMap;

use remora::{Client, Node, Placement, RemoteRegion, Tree};
use remora_kernel::btree::ROOT;

/// Keys of any length up to the longest, in no order.
fn key(n: u32) -> Vec<u8> {
    let len = (n * 37 % 253) as usize;
    [&n.reverse_bits().to_be_bytes()[..], &vec![b'x'; len]].concat()[..(len + 4).min(256)].to_vec()
}

#[test]
fn a_tree_of_bytes_is_an_ordered_map_for_clients_at_every_place() {
    let node = Node::local().expect("node");
    let mut client = Client::connect(node.address()).expect("connection");
    let mut model: BTreeMap<Vec<u8>, u64> = (0..1500).map(|n| (key(n), u64::from(n))).collect();
    let mut tree = client.load_tree(model.clone()).expect("loaded");
    let places = [Some(Placement::Host), Some(Placement::Nic), Some(Placement::Client), None];
    for (at, place) in (0u32..).zip(places) {
        match place {
            Some(place) => tree.run_at(&mut client, place).expect("a place"),
            None => tree.run_auto(),
        }
        for n in 0..600 {
            let (key, value) = (key(3 * n + 1000 * at), u64::from(n) << 8 | u64::from(at));
            let found = match n % 4 {
                0 => (tree.remove(&mut client, &key), model.remove(&key)),
                1 => (tree.get(&mut client, &key), model.get(&key).copied()),
                2 => {
                    let is_new = !model.contains_key(&key);
                    assert_eq!(tree.insert(&mut client, &key, value).expect("a call"), is_new);
                    model.entry(key.clone()).or_insert(value);
                    continue;
                }
                _ => (tree.put(&mut client, &key, value), model.insert(key.clone(), value)),
            };
            assert_eq!(found.0.expect("a call"), found.1, "{n} at {place:?}");
        }
        let expected: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(tree.scan(&mut client, "", usize::MAX).expect("a scan"), expected);
        let from = key(700);
        let part: Vec<_> = model.range(from.clone()..).take(300).map(|(key, value)| (key.clone(), *value)).collect();
        assert_eq!(tree.scan(&mut client, &from, 300).expect("a scan"), part);
    }
    // Look-ups that are alike were tried at several places, and writes at the client never.
    let calls = client.placer().counts().calls;
    assert!(calls.iter().sum::<u64>() >= 600, "{calls:?}");
    for n in 0..3000 {
        tree.put(&mut client, key(n % 4), 1).expect("a call");
        model.insert(key(n % 4), 1);
    }
    assert_eq!(client.placer().counts().calls[0], calls[0], "no write at the client");
    let theirs = Tree::open(tree.place());
    assert_eq!(theirs.update(&mut client, key(1499), 7).expect("a call"), model.get(&key(1499)).copied());
    let error = theirs.put(&mut client, [0; 257], 0).unwrap_err();
    assert!(error.to_string().contains("the most is 256"), "{error}");
}

/// Its number is an owner's for as long as he is connected: afterwards it may be anybody's.
#[test]
fn a_tree_is_written_at_a_client_only_by_who_was_made_its_owner() {
    let node = Node::local().expect("node");
    let mut loader = Client::connect(node.address()).expect("connection");
    let tree = loader.load_tree((0..100).map(|n| (key(n), u64::from(n)))).expect("loaded");
    let mut first = Client::connect(node.address()).expect("connection");
    let mut theirs = Tree::open(tree.place());
    theirs.run_at(&mut first, Placement::Client).expect("an owner");
    assert_eq!(theirs.put(&mut first, "a", 1).expect("a call"), None);
    let mut second = Client::connect(node.address()).expect("connection");
    for _ in 0..2 {
        for refused in [theirs.put(&mut second, "a", 2), theirs.remove(&mut second, "a")] {
            assert!(refused.unwrap_err().to_string().contains("run_at"));
        }
        assert_eq!(theirs.get(&mut second, "a").expect("a call"), Some(1));
        // Nor once he is gone, and it has come in his place.
        first = Client::connect(node.address()).expect("connection");
    }
    let old = theirs.clone();
    theirs.run_at(&mut second, Placement::Client).expect("an owner");
    assert_eq!(theirs.put(&mut second, "a", 3).expect("a call"), Some(1));
    assert!(old.put(&mut first, "a", 4).is_err() && theirs.put(&mut first, "a", 4).is_err());
    assert_eq!(tree.get(&mut loader, "a").expect("a call"), Some(3));
}

/// Somebody stopped with the root's lock, and is there still: calls say so after a while, and the tree is whole when he goes on.
#[test]
fn a_call_to_a_tree_that_stays_locked_ends() {
    let node = Node::local().expect("node");
    let mut client = Client::connect(node.address()).expect("connection");
    let tree = client.load_tree((0..100).map(|n| (key(n), u64::from(n)))).expect("loaded");
    let at = tree.place();
    let len = u64::from(at.slots) * u64::from(at.node_bytes);
    let (region, root) = (RemoteRegion { va: at.base, key: at.key, len }, u64::from(ROOT) * u64::from(at.node_bytes));
    let mut free = [0; 8];
    client.read(&region, root, &mut free).expect("a read");
    // The bit of the lock, and an owner that nobody is.
    let locked = u64::from_le_bytes(free) | 1 << 16 | 9;
    client.write(&region, root, &locked.to_le_bytes()).expect("a write");
    let error = tree.put(&mut client, key(200), 1).unwrap_err();
    assert!(error.to_string().contains("locked"), "{error}");
    client.write(&region, root, &free).expect("a write");
    assert_eq!(tree.put(&mut client, key(200), 1).expect("a call"), None);
    assert_eq!(tree.get(&mut client, key(200)).expect("a call"), Some(1));
}
