//! The tree beside `BTreeMap`, by one-sided accesses and by a core's.

use super::*;
use crate::testing::Counted;
use crate::{HostMemory, Limits, Memory};
use proptest::prelude::*;
use remora_memory::{Access, Buffer, Pd, Registry};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Polls until done.
fn drive<T>(task: impl Future<Output = T>) -> T {
    let mut task = std::pin::pin!(task);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(result) = task.as_mut().poll(&mut cx) {
            return result;
        }
    }
}

/// Bytes of a tree of so many slots.
pub(super) fn image(shape: Shape, slots: u32, pairs: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; slots as usize * shape.node_bytes];
    let built = shape.build(pairs.iter().copied(), pairs.len(), slots, |at, node| {
        bytes[at as usize..][..node.len()].copy_from_slice(node);
        Ok::<_, BuildError>(())
    });
    built.unwrap();
    bytes
}

/// Registered memory with these contents.
struct Host {
    registry: Arc<Registry>,
    pd: Pd,
    tree: TreeRef,
}

impl Host {
    fn new(bytes: Vec<u8>, node_bytes: usize) -> Host {
        let (registry, slots) = (Arc::new(Registry::new([3; 32])), bytes.len() / node_bytes);
        let pd = registry.alloc_pd();
        let buffer = Buffer::from_boxed(bytes.into());
        let region = registry.register(pd, &buffer, 0, buffer.len(), Some(64), Access::all()).unwrap();
        let (slots, node_bytes) = (slots as u32, node_bytes as u16);
        let tree = TreeRef { base: 64, key: region.key(), slots, node_bytes, owners: 0, owner: 0 };
        Host { registry, pd, tree }
    }

    fn memory(&self) -> HostMemory {
        HostMemory::new(self.registry.clone(), self.pd, true, Limits::default())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64, Put),
    Delete(u64),
    Get(u64),
    Scan(u64, u32),
}

fn step(keys: u64) -> impl Strategy<Value = Step> {
    let how = prop_oneof![Just(Put::Upsert), Just(Put::Insert), Just(Put::Update)];
    prop_oneof![
        4 => (0..keys, any::<u64>(), how).prop_map(|(key, value, how)| Step::Put(key, value, how)),
        4 => (0..keys).prop_map(Step::Delete),
        2 => (0..keys).prop_map(Step::Get),
        1 => (0..keys, 0u32..50).prop_map(|(key, count)| Step::Scan(key, count)),
    ]
}

/// One step on the tree, and what it must bring.
fn take<M: Memory>(memory: &M, tree: TreeRef, step: &Step, model: &mut BTreeMap<u64, u64>) {
    let copy = &mut Vec::new();
    let on = || Tree::new(memory, tree).unwrap();
    match *step {
        Step::Put(key, value, how) => {
            let old = model.get(&key).copied();
            let expected = match (how, old) {
                (Put::Insert, Some(_)) => Err(EXISTS),
                (Put::Update, None) => Err(Status::NotFound),
                _ => Ok(model.insert(key, value)),
            };
            assert_eq!(drive(on().put(key, value, how, copy)), expected, "{step:?}");
        }
        Step::Delete(key) => {
            let expected = model.remove(&key).ok_or(Status::NotFound);
            assert_eq!(drive(on().delete(key, copy)), expected, "{step:?}");
        }
        Step::Get(key) => {
            let expected = model.get(&key).copied().ok_or(Status::NotFound);
            assert_eq!(drive(on().get(key, copy)), expected, "{step:?}");
        }
        Step::Scan(key, count) => {
            let found = drive(on().pairs(key, count, copy)).unwrap();
            let expected: Vec<_> = model.range(key..).take(count as usize).map(|(k, v)| (*k, *v)).collect();
            assert_eq!(found, expected, "{step:?}");
        }
    }
}

/// What a tree holds between operations: nothing is lost, and parents know their children.
fn check<M: Memory>(memory: &M, tree: TreeRef) -> Vec<(u64, u64)> {
    let audit = drive(Tree::new(memory, tree).unwrap().audit()).unwrap();
    assert_eq!((audit.lost, audit.orphans), (0, 0));
    audit.pairs
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..Default::default() })]

    #[test]
    fn a_tree_is_an_ordered_map(
        keys in prop_oneof![Just(40u64), Just(600)],
        loaded in prop::collection::btree_map(0u64..600, any::<u64>(), 0..400),
        mut more in prop::collection::vec(step(600), 1..600),
        fill in 30u8..=100,
    ) {
        let mut model = loaded;
        model.retain(|key, _| *key < keys);
        for step in &mut more {
            match step {
                Step::Put(key, ..) | Step::Delete(key) | Step::Get(key) | Step::Scan(key, _) => *key %= keys,
            }
        }
        let pairs: Vec<_> = model.iter().map(|(k, v)| (*k, *v)).collect();
        let bytes = image(Shape { node_bytes: 256, fill }, 400, &pairs);
        let far = Counted::new(64 + bytes.len());
        far.put(64, &bytes);
        let host = Host::new(bytes, 256);
        let (near, mut other) = (host.memory(), model.clone());
        for step in &more {
            take(&near, host.tree, step, &mut model);
            take(&far, host.tree, step, &mut other);
        }
        let expected: Vec<_> = model.into_iter().collect();
        prop_assert_eq!(check(&near, host.tree), expected.clone());
        prop_assert_eq!(check(&far, host.tree), expected);
    }
}

#[test]
fn trees_grow_and_shrink_in_any_order_and_give_their_memory_back() {
    for order in [|i: u64| i, |i| 4999 - i, |i| (i * 2503) % 5000] {
        let bytes = image(Shape { node_bytes: 256, fill: 100 }, 1200, &[]);
        let host = Host::new(bytes, 256);
        let memory = host.memory();
        let copy = &mut Vec::new();
        let on = || Tree::new(&memory, host.tree).unwrap();
        for _ in 0..2 {
            for i in 0..5000 {
                assert_eq!(drive(on().put(order(i), i, Put::Insert, copy)), Ok(None));
            }
            let found = check(&memory, host.tree);
            assert!(found.len() == 5000 && found.iter().all(|(key, value)| order(*value) == *key));
            for i in 0..5000 {
                assert_eq!(drive(on().delete(order((i * 7) % 5000), copy)), Ok((i * 7) % 5000));
            }
            assert_eq!(check(&memory, host.tree), []);
            drive(on().load(ROOT, copy)).unwrap();
            assert!(NodeView(copy).level() <= Some(1), "a tree without keys is low");
        }
    }
}

#[test]
fn a_full_tree_says_so_and_stays_whole() {
    let host = Host::new(image(Shape { node_bytes: 256, fill: 100 }, 8, &[]), 256);
    let memory = host.memory();
    let on = || Tree::new(&memory, host.tree).unwrap();
    let mut keys = 0;
    while drive(on().put(keys, keys, Put::Upsert, &mut Vec::new())) == Ok(None) {
        keys += 1;
    }
    assert_eq!(drive(on().put(keys, 0, Put::Upsert, &mut Vec::new())), Err(FULL));
    for key in 0..keys {
        assert_eq!(drive(on().get(key, &mut Vec::new())), Ok(key));
    }
}

#[test]
fn loading_says_what_is_wrong() {
    let shape = Shape { node_bytes: 256, fill: 100 };
    let load = |shape: Shape, pairs: &[(u64, u64)], len, slots| {
        shape.build(pairs.iter().copied(), len, slots, |_, _| Ok::<_, BuildError>(()))
    };
    assert_eq!(load(shape, &[(1, 0), (1, 0)], 2, 9), Err(BuildError::Unsorted { key: 1, at: 1 }));
    assert_eq!(load(shape, &[(1, 0)], 2, 9), Err(BuildError::TooFewPairs { came: 1, promised: 2 }));
    assert_eq!(load(Shape { node_bytes: 300, ..shape }, &[], 0, 9), Err(BuildError::NodeBytes(300)));
    assert_eq!(load(shape, &[], 100, 9), Err(BuildError::TooManyPairs { pairs: 100, needed: 10, slots: 9 }));
    assert_eq!([0, 13, 14, 234, 235].map(|pairs| shape.slots(pairs)), [2, 2, 4, 20, 23]);
}
