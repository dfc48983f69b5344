//! The tree beside `BTreeMap`, by one-sided accesses and by a core's.

use super::*;
use crate::Placement;
use crate::testing::Counted;
use crate::{Fault, HostMemory, Limits, Memory};
use proptest::prelude::*;
use remora_memory::{Access, Buffer, Pd, Registry};
use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Polls until done.
pub(super) fn drive<T>(task: impl Future<Output = T>) -> T {
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
pub(super) struct Host {
    pub registry: Arc<Registry>,
    pub pd: Pd,
    pub tree: TreeRef,
}

impl Host {
    pub fn new(bytes: Vec<u8>, node_bytes: usize) -> Host {
        let (registry, slots) = (Arc::new(Registry::new([3; 32])), bytes.len() / node_bytes);
        let pd = registry.alloc_pd();
        let buffer = Buffer::from_boxed(bytes.into());
        let region = registry.register(pd, &buffer, 0, buffer.len(), Some(64), Access::all()).unwrap();
        let (slots, node_bytes) = (slots as u32, node_bytes as u16);
        let tree = TreeRef { base: 64, key: region.key(), slots, node_bytes, owners: 0, owner: 0 };
        Host { registry, pd, tree }
    }

    pub fn memory(&self) -> HostMemory {
        HostMemory::new(self.registry.clone(), self.pd, true, Limits::default())
    }
}

#[derive(Clone, Debug)]
enum Step<K = u64> {
    Put(K, u64, Put),
    Delete(K),
    Get(K),
    Scan(K, u32),
}

fn step(keys: u64) -> impl Strategy<Value = Step> {
    step_on(0..keys)
}

fn step_on<K: Clone + Debug>(keys: impl Strategy<Value = K> + Clone) -> impl Strategy<Value = Step<K>> {
    let how = prop_oneof![Just(Put::Upsert), Just(Put::Insert), Just(Put::Update)];
    prop_oneof![
        4 => (keys.clone(), any::<u64>(), how).prop_map(|(key, value, how)| Step::Put(key, value, how)),
        4 => keys.clone().prop_map(Step::Delete),
        2 => keys.clone().prop_map(Step::Get),
        1 => (keys, 0u32..50).prop_map(|(key, count)| Step::Scan(key, count)),
    ]
}

/// One step on the tree, and what it must bring.
fn take<M: Memory, K: TreeKey + ?Sized>(
    tree: Tree<'_, M, K>,
    step: &Step<K::Owned>,
    model: &mut BTreeMap<K::Owned, u64>,
) {
    let copy = &mut Vec::new();
    match step {
        Step::Put(key, value, how) => {
            let old = model.get(key.borrow()).copied();
            let expected = match (how, old) {
                (Put::Insert, Some(_)) => Err(EXISTS),
                (Put::Update, None) => Err(Status::NotFound),
                _ => Ok(model.insert(key.clone(), *value)),
            };
            assert_eq!(drive(tree.put(key.borrow(), *value, *how, copy)), expected, "{step:?}");
        }
        Step::Delete(key) => {
            let expected = model.remove(key.borrow()).ok_or(Status::NotFound);
            assert_eq!(drive(tree.delete(key.borrow(), copy)), expected, "{step:?}");
        }
        Step::Get(key) => {
            let expected = model.get(key.borrow()).copied().ok_or(Status::NotFound);
            assert_eq!(drive(tree.get(key.borrow(), copy)), expected, "{step:?}");
        }
        Step::Scan(key, count) => {
            let (found, next) = drive(tree.pairs(key.borrow(), *count, copy)).unwrap();
            assert_eq!(next, None, "a tree by itself has all keys");
            let expected: Vec<_> =
                model.range::<K::Owned, _>(key..).take(*count as usize).map(|(k, v)| (k.clone(), *v)).collect();
            assert_eq!(found, expected, "{step:?}");
        }
    }
}

/// What a tree holds between operations: nothing is lost, and parents know their children.
fn check<M: Memory, K: TreeKey + ?Sized>(tree: Tree<'_, M, K>) -> Vec<(K::Owned, u64)> {
    let audit = drive(tree.audit()).unwrap();
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
            take(Tree::new(&near, host.tree).unwrap(), step, &mut model);
            take(Tree::new(&far, host.tree).unwrap(), step, &mut other);
        }
        let expected: Vec<_> = model.into_iter().collect();
        prop_assert_eq!(check(Tree::new(&near, host.tree).unwrap()), expected.clone());
        prop_assert_eq!(check(Tree::new(&far, host.tree).unwrap()), expected);
    }
}

/// Keys of which many begin alike, of any length that nodes of 256 bytes hold.
fn some_bytes() -> impl Strategy<Value = Vec<u8>> + Clone {
    let letter = prop_oneof![4 => Just(0u8), 4 => Just(1), 1 => any::<u8>()];
    prop_oneof![
        3 => prop::collection::vec(letter.clone(), 0..6),
        2 => prop::collection::vec(letter, 20..=32),
        2 => (0u64..300).prop_map(|number| format!("user{number:09}").into_bytes()),
    ]
}

/// A tree of eight nodes of 256 bytes, of which three hold these: their locks are free, and they are whole; what they say of
/// themselves may be so.
pub(crate) fn of_noise(noise: &[u8], level: u8, count: u16, heap: u16) -> Vec<u8> {
    let mut bytes = vec![0; 8 * 256];
    bytes[256..4 * 256].copy_from_slice(noise);
    bytes[8..16].copy_from_slice(&4u64.to_le_bytes());
    for node in bytes[256..4 * 256].chunks_mut(256) {
        node[..8].fill(0);
        node[248..].fill(0);
        node[16..18].copy_from_slice(&heap.to_le_bytes());
        node[28..30].copy_from_slice(&count.to_le_bytes());
        node[30..32].copy_from_slice(&[level, 0]);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..Default::default() })]

    #[test]
    fn a_tree_of_bytes_is_an_ordered_map(
        loaded in prop::collection::btree_map(some_bytes(), any::<u64>(), 0..200),
        steps in prop::collection::vec(step_on(some_bytes()), 1..600),
        fill in 30u8..=100,
    ) {
        let shape = Shape { node_bytes: 256, fill };
        let mut bytes = vec![0; 800 * 256];
        let built = shape.build_bytes(loaded.iter().map(|(key, value)| (key, *value)), 800, |at, node| {
            bytes[at as usize..][..node.len()].copy_from_slice(node);
            Ok::<_, BuildError>(())
        });
        prop_assert_eq!(built, Ok(()));
        let far = Counted::new(64 + bytes.len());
        far.put(64, &bytes);
        let host = Host::new(bytes, 256);
        let (near, mut model, mut other) = (host.memory(), loaded.clone(), loaded);
        for step in &steps {
            take(Tree::of_bytes(&near, host.tree).unwrap(), step, &mut model);
            take(Tree::of_bytes(&far, host.tree).unwrap(), step, &mut other);
        }
        let expected: Vec<_> = model.into_iter().collect();
        prop_assert_eq!(check(Tree::of_bytes(&near, host.tree).unwrap()), expected.clone());
        prop_assert_eq!(check(Tree::of_bytes(&far, host.tree).unwrap()), expected);
    }

    #[test]
    fn nodes_that_hold_anything_end_an_operation(
        noise in prop::collection::vec(any::<u8>(), 3 * 256..=3 * 256),
        level in 1u8..3,
        count in 0u16..20,
        heap in 0u16..300,
        steps in prop::collection::vec(step_on(some_bytes()), 1..20),
    ) {
        let host = Host::new(of_noise(&noise, level, count, heap), 256);
        let memory = host.memory();
        for step in &steps {
            let (tree, copy) = (Tree::of_bytes(&memory, host.tree).unwrap(), &mut Vec::new());
            match step {
                Step::Put(key, value, how) => _ = drive(tree.put(key, *value, *how, copy)),
                Step::Delete(key) => _ = drive(tree.delete(key, copy)),
                Step::Get(key) => _ = drive(tree.get(key, copy)),
                Step::Scan(key, count) => _ = drive(tree.pairs(key, *count, copy)),
            }
        }
    }
}

#[test]
fn keys_of_256_bytes_fit_into_nodes_of_2_kb_and_longer_ones_into_none() {
    for node_bytes in [256, 512, 1024, 2048, 4096] {
        let most = key_bytes(node_bytes);
        let key = |i: u32| [&i.reverse_bits().to_be_bytes()[..], &vec![7; most - 4]].concat();
        let shape = Shape { node_bytes, fill: 100 };
        let mut pairs: Vec<_> = (0..100).map(|i| (key(i), u64::from(i))).collect();
        pairs.sort();
        let mut bytes = vec![0; 400 * node_bytes];
        let built = shape.build_bytes(pairs.iter().map(|(key, value)| (key, *value)), 400, |at, node| {
            bytes[at as usize..][..node.len()].copy_from_slice(node);
            Ok::<_, BuildError>(())
        });
        assert_eq!(built, Ok(()));
        let host = Host::new(bytes, node_bytes);
        let memory = host.memory();
        let on = || Tree::of_bytes(&memory, host.tree).unwrap();
        for i in 100..300 {
            assert_eq!(drive(on().put(&key(i), i.into(), Put::Insert, &mut Vec::new())), Ok(None));
        }
        for i in 0..300 {
            assert_eq!(drive(on().get(&key(i), &mut Vec::new())), Ok(i.into()));
        }
        assert_eq!(check(on()).len(), 300);
        let long = vec![7; most + 1];
        assert_eq!(drive(on().put(&long, 0, Put::Upsert, &mut Vec::new())), Err(Status::BadParams));
        assert_eq!(drive(on().get(&long, &mut Vec::new())), Err(Status::NotFound));
    }
    assert_eq!([256, 512, 1024, 2048, 4096].map(key_bytes), [32, 80, 184, 256, 256]);
    let build = |pairs: &[(&[u8], u64)], slots| {
        let shape = Shape { node_bytes: 256, fill: 100 };
        shape.build_bytes(pairs.iter().copied(), slots, |_, _| Ok::<_, BuildError>(()))
    };
    assert_eq!(build(&[(b"b", 0), (b"a", 0)], 9), Err(BuildError::UnsortedBytes(1)));
    assert_eq!(build(&[(&[1; 33], 0)], 9), Err(BuildError::LongKey { at: 0, len: 33, most: 32 }));
    assert_eq!(build(&[(b"a", 0)], 1), Err(BuildError::TooManyPairs { pairs: 1, needed: 2, slots: 1 }));
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
    let found = |key| drive(Tree::new(&keeping, tree).unwrap().get(&key, &mut Vec::new()));
    assert!((0..3000).all(|key| found(key) == Ok(key)));
    // Most nodes are freed, and some serve elsewhere.
    let on = || Tree::new(&memory, tree).unwrap();
    for key in 300..3000 {
        assert_eq!(drive(on().delete(&key, &mut Vec::new())), Ok(key));
    }
    for key in 3000..4000 {
        assert_eq!(drive(on().put(&key, key, Put::Insert, &mut Vec::new())), Ok(None));
    }
    for key in (0..4000).rev() {
        let before = memory.reads.get();
        let expected = if (300..3000).contains(&key) { Err(Status::NotFound) } else { Ok(key) };
        assert_eq!(found(key), expected);
        let reads = memory.reads.get() - before;
        assert!(reads <= 40, "{reads} reads for key {key}");
    }
}

/// A leaf is merged away, and the next split, far to the left, takes it, while somebody is on his way to it.
#[test]
fn a_leaf_that_serves_far_to_the_left_meanwhile_costs_a_few_looks() {
    const SLOTS: u32 = 1500;
    let pairs: Vec<_> = (0..8000).map(|i| (10 * i, i)).collect();
    let before = image(Shape { node_bytes: 256, fill: 100 }, SLOTS, &pairs);
    let host = Host::new(before.clone(), 256);
    let tree = host.tree;
    let on_node = host.memory();
    let node = || Tree::new(&on_node, tree).unwrap();
    // Of each leaf's keys one is left.
    let taken = |i: u64| (7000..7200).contains(&i) && !i.is_multiple_of(13);
    (0..8000).filter(|i| taken(*i)).for_each(|i| assert_eq!(drive(node().delete(&(10 * i), &mut Vec::new())), Ok(i)));
    (0..150).for_each(|i| assert_eq!(drive(node().put(&(10 * i + 5), i, Put::Insert, &mut Vec::new())), Ok(None)));
    assert_eq!(check(node()).len(), 8150 - (0..8000).filter(|i| taken(*i)).count());
    let mut after = vec![0; before.len()];
    on_node.immediate().unwrap().read_now(tree.key, 64, &mut after).unwrap();
    on_node.set_limits(Limits { steps: u32::MAX, bytes: u64::MAX });
    let swap = |image: &[u8]| on_node.immediate().unwrap().write_now(tree.key, 64, image).unwrap();
    let memory = Counted::new(64 + before.len());
    for i in (7000..7200).step_by(5) {
        let expected = if taken(i) { Err(Status::NotFound) } else { Ok(i) };
        for seen in 1..5 {
            memory.put(64, &before);
            memory.reads.set(0);
            memory.after(seen, 64, after.clone());
            let found = drive(Tree::new(&memory, tree).unwrap().get(&(10 * i), &mut Vec::new()));
            let reads = memory.reads.get();
            assert!(reads < 50 && (found == expected || reads <= seen), "{reads} reads for key {i}: {found:?}");

            swap(&before);
            let near = HostMemory::new(host.registry.clone(), host.pd, true, Limits::default());
            let (on, key, mut copy, mut turns) = (Tree::new(&near, tree).unwrap(), 10 * i, Vec::new(), 0);
            let mut get = std::pin::pin!(on.get(&key, &mut copy));
            let found = loop {
                match get.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(found) => break found,
                    Poll::Pending => turns += 1,
                }
                if turns == seen {
                    swap(&after);
                }
            };
            assert!(turns < 50 && (found == expected || turns < seen), "{turns} turns for key {i}: {found:?}");
        }
    }
}

/// Slots of each part of an index.
const PART_SLOTS: u32 = 500;

/// The memory of an index with this border: its parts, and then its directory. Addresses begin at `base`.
pub(super) fn parted(
    pairs: &BTreeMap<u64, u64>,
    split: u64,
    fill: u8,
    (base, key): (u64, u32),
) -> (Vec<u8>, Directory) {
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
                assert_eq!(drive(on().put(&order(i), i, Put::Insert, copy)), Ok(None));
            }
            let found = check(on());
            assert!(found.len() == 5000 && found.iter().all(|(key, value)| order(*value) == *key));
            for i in 0..5000 {
                assert_eq!(drive(on().delete(&order((i * 7) % 5000), copy)), Ok((i * 7) % 5000));
            }
            assert_eq!(check(on()), []);
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
    while drive(on().put(&keys, keys, Put::Upsert, &mut Vec::new())) == Ok(None) {
        keys += 1;
    }
    assert_eq!(drive(on().put(&keys, 0, Put::Upsert, &mut Vec::new())), Err(FULL));
    for key in 0..keys {
        assert_eq!(drive(on().get(&key, &mut Vec::new())), Ok(key));
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
