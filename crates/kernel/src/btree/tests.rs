//! The tree beside `BTreeMap`, by one-sided accesses and by a core's.

use super::*;
use crate::Placement;
use crate::testing::Counted;
use crate::{Fault, HostMemory, Limits, Memory};
use proptest::prelude::*;
use remora_memory::{Access, Buffer, Pd, Registry};
use std::cell::RefCell;
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
            let (found, next) = drive(on().pairs(key, count, copy)).unwrap();
            assert_eq!(next, None, "a tree by itself has all keys");
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

/// A client's memory: it keeps copies.
struct Keeping<'a>(&'a Counted, RefCell<BTreeMap<u64, Vec<u8>>>);

impl Memory for Keeping<'_> {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.0.read(key, va, out).await
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.0.write(key, va, data).await
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.0.compare_swap(key, va, expect, new).await
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.0.fetch_add(key, va, n).await
    }

    fn recall(&self, _: u32, va: u64, out: &mut [u8]) -> bool {
        self.1.borrow().get(&va).map(|copy| out.copy_from_slice(copy)).is_some()
    }

    fn keep(&self, _: u32, va: u64, bytes: &[u8]) {
        self.1.borrow_mut().insert(va, bytes.to_vec());
    }

    fn forget(&self, _: u32, va: u64) {
        self.1.borrow_mut().remove(&va);
    }
}

#[test]
fn old_copies_of_inner_nodes_cost_a_few_reads_whatever_has_become_of_the_tree() {
    let pairs: Vec<_> = (0..3000).map(|i| (i, i)).collect();
    let bytes = image(Shape { node_bytes: 256, fill: 100 }, 1200, &pairs);
    let memory = Counted::new(64 + bytes.len());
    memory.put(64, &bytes);
    let tree = TreeRef { base: 64, key: 7, slots: 1200, node_bytes: 256, owners: 0, owner: 0 };
    let keeping = Keeping(&memory, RefCell::default());
    let found = |key| drive(Tree::new(&keeping, tree).unwrap().get(key, &mut Vec::new()));
    assert!((0..3000).all(|key| found(key) == Ok(key)));
    // Most nodes are freed, and some serve elsewhere.
    let on = || Tree::new(&memory, tree).unwrap();
    for key in 300..3000 {
        assert_eq!(drive(on().delete(key, &mut Vec::new())), Ok(key));
    }
    for key in 3000..4000 {
        assert_eq!(drive(on().put(key, key, Put::Insert, &mut Vec::new())), Ok(None));
    }
    for key in (0..4000).rev() {
        let before = memory.reads.get();
        let expected = if (300..3000).contains(&key) { Err(Status::NotFound) } else { Ok(key) };
        assert_eq!(found(key), expected);
        let reads = memory.reads.get() - before;
        assert!(reads <= 40, "{reads} reads for key {key}");
    }
}

/// Slots of each part of an index.
const PART_SLOTS: u32 = 500;

/// The memory of an index with this border: its parts, and then its directory. Addresses begin at `base`.
fn parted(pairs: &BTreeMap<u64, u64>, split: u64, fill: u8, (base, key): (u64, u32)) -> (Vec<u8>, Directory) {
    let shape = Shape { node_bytes: 256, fill };
    let part_bytes = PART_SLOTS as usize * 256;
    let mut bytes = vec![0; 2 * part_bytes + Directory::LEN];
    let trees = [0, 1].map(|part| {
        let here = match part {
            0 if split == u64::MAX => Some(0..=u64::MAX),
            0 => split.checked_sub(1).map(|last| 0..=last),
            _ => (split != u64::MAX).then_some(split..=u64::MAX),
        };
        let pairs: Vec<_> =
            pairs.iter().filter(|(key, _)| part_of(split, **key) == part).map(|(k, v)| (*k, *v)).collect();
        let built = shape.build_part(here, pairs.iter().copied(), pairs.len(), PART_SLOTS, |at, node| {
            bytes[part * part_bytes + at as usize..][..node.len()].copy_from_slice(node);
            Ok::<_, BuildError>(())
        });
        built.unwrap();
        let base = base + (part * part_bytes) as u64;
        TreeRef { base, key, slots: PART_SLOTS, node_bytes: 256, owners: 0, owner: 0 }
    });
    let places = [Placement::Host, Placement::Nic];
    let parts = [0, 1].map(|part| Part { tree: trees[part], place: places[part] });
    let directory = Directory { split, parts };
    bytes[2 * part_bytes..].copy_from_slice(&directory.encode());
    (bytes, directory)
}

#[derive(Clone, Debug)]
enum IndexStep {
    On(Step),
    /// The border moves by so many leaves at most, towards a key.
    Move(u32, u64),
}

fn index_step(keys: u64) -> impl Strategy<Value = IndexStep> {
    let target = prop_oneof![8 => 0..=keys, 1 => Just(0), 1 => Just(u64::MAX)];
    prop_oneof![6 => step(keys).prop_map(IndexStep::On), 1 => (1..9u32, target).prop_map(|(n, to)| IndexStep::Move(n, to))]
}

/// One step on an index by a caller whose copy of the border is from the beginning, and what it must bring.
fn take_on_index<M: Memory>(memory: &M, directory: &Directory, step: &IndexStep, model: &mut BTreeMap<u64, u64>) {
    let trees = directory.parts.map(|part| part.tree);
    let index = Index::new(memory, trees, directory.split);
    match *step {
        IndexStep::On(Step::Put(key, value, how)) => {
            let old = model.get(&key).copied();
            let expected = match (how, old) {
                (Put::Insert, Some(_)) => Err(EXISTS),
                (Put::Update, None) => Err(Status::NotFound),
                _ => Ok(model.insert(key, value)),
            };
            assert_eq!(drive(index.put(key, value, how)), expected, "{step:?}");
        }
        IndexStep::On(Step::Delete(key)) => {
            assert_eq!(drive(index.delete(key)), model.remove(&key).ok_or(Status::NotFound), "{step:?}");
        }
        IndexStep::On(Step::Get(key)) => {
            assert_eq!(drive(index.get(key)), model.get(&key).copied().ok_or(Status::NotFound), "{step:?}");
        }
        IndexStep::On(Step::Scan(key, count)) => {
            let expected: Vec<_> = model.range(key..).take(count as usize).map(|(k, v)| (*k, *v)).collect();
            assert_eq!(drive(index.pairs(key, count)), Ok(expected), "{step:?}");
        }
        IndexStep::Move(leaves, target) => {
            let at = trees[1].base + u64::from(PART_SLOTS) * 256;
            let params = MoveParams { directory: at, key: trees[0].key, leaves, target };
            let moved = drive(params.run(memory)).unwrap();
            // All of what the border passes changes over, and each part has what the border says.
            let pairs = drive(index.pairs(0, u32::MAX)).unwrap();
            assert_eq!(pairs.len(), model.len(), "{step:?}");
            for (part, tree) in trees.into_iter().enumerate() {
                let audit = drive(Tree::new(memory, tree).unwrap().audit()).unwrap();
                assert_eq!((audit.lost, audit.orphans), (0, 0), "{step:?}");
                let held = model.iter().filter(|(key, _)| part_of(moved.split, **key) == part);
                assert_eq!(audit.pairs, held.map(|(k, v)| (*k, *v)).collect::<Vec<_>>(), "{step:?}: part {part}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..Default::default() })]

    #[test]
    fn an_index_in_two_parts_is_an_ordered_map_wherever_its_border_goes(
        loaded in prop::collection::btree_map(0u64..600, any::<u64>(), 0..400),
        split in prop_oneof![4 => 0u64..600, 1 => Just(0), 1 => Just(u64::MAX)],
        steps in prop::collection::vec(index_step(600), 1..300),
        fill in 30u8..=100,
    ) {
        let (bytes, _) = parted(&loaded, split, fill, (64, 7));
        let host = Host::new(bytes, 256);
        let (mut model, mut other) = (loaded.clone(), loaded.clone());
        let (bytes, at_host) = parted(&loaded, split, fill, (64, host.tree.key));
        let near = host.memory();
        drive(near.write(host.tree.key, 64, &bytes)).unwrap();
        let (bytes, at_client) = parted(&loaded, split, fill, (64, 7));
        let far = Counted::new(64 + bytes.len());
        far.put(64, &bytes);
        for step in &steps {
            take_on_index(&near, &at_host, step, &mut model);
            take_on_index(&far, &at_client, step, &mut other);
        }
    }
}

#[test]
fn a_border_that_goes_to_and_fro_leaves_no_memory_behind() {
    let loaded: BTreeMap<u64, u64> = (0..2000).map(|i| (3 * i, i)).collect();
    let (bytes, directory) = parted(&loaded, 3000, 80, (64, 7));
    let memory = Counted::new(64 + bytes.len());
    memory.put(64, &bytes);
    let mut model = loaded;
    for _ in 0..4 {
        for target in [0, 3001, u64::MAX, 100] {
            take_on_index(&memory, &directory, &IndexStep::Move(u32::MAX, target), &mut model);
        }
    }
    let nodes: usize =
        directory.parts.iter().map(|part| drive(Tree::new(&memory, part.tree).unwrap().audit()).unwrap().nodes).sum();
    assert!(nodes < 500, "{nodes} nodes for 2000 pairs, of which one holds 13");
}

#[test]
fn a_client_does_not_move_a_border_and_no_directory_is_none() {
    let (bytes, directory) = parted(&BTreeMap::new(), 10, 80, (64, 7));
    let memory = Counted::new(64 + bytes.len());
    memory.put(64, &bytes);
    let at = directory.parts[1].tree.base + u64::from(PART_SLOTS) * 256;
    let params = MoveParams { directory: at, key: 7, leaves: 1, target: 0 };
    assert_eq!(MoveParams::decode(&params.encode()), Ok(params));
    assert_eq!(Directory::decode(&directory.encode()), Ok(directory));
    assert_eq!(drive(MoveParams { directory: at - 64, ..params }.run(&memory)), Err(Status::BadParams));
    let unmoved = drive(MoveParams { leaves: 0, ..params }.run(&memory));
    assert_eq!(unmoved, Ok(Moved { split: 10, pairs: 0 }));
    assert_eq!(drive(params.run(&memory)), Ok(Moved { split: 0, pairs: 0 }));
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
    let part = |here, pairs: &[(u64, u64)]| {
        shape.build_part(here, pairs.iter().copied(), pairs.len(), 9, |_, _| Ok::<_, BuildError>(()))
    };
    assert_eq!(part(Some(5..=9), &[(7, 0), (10, 0)]), Err(BuildError::Outside(10)));
    assert_eq!(part(None, &[(7, 0)]), Err(BuildError::Outside(7)));
    assert_eq!([0, 13, 14, 234, 235].map(|pairs| shape.slots(pairs)), [2, 2, 4, 20, 23]);
}
