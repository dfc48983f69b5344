//! Kernels in steps: look-ups that read, decide, and read again.
//!
//! What such a kernel decides stands once, in [`Steps`], which waits for nothing. Where accesses are awaited, [`run`] drives
//! it; a runner over registered memory drives it itself ([`Lanes`](crate::lanes::Lanes)), as it then keeps of a call little more
//! than where it is: in the future of all kernels every turn passes through the states of several that lie in one another.

use crate::call::{Call, Status};
use crate::memory::{Memory, PIECE};
use remora_memory::{Pd, Region};

/// Bytes that a step looks at, at most: a cache line.
pub(crate) const LINE: usize = 64;

/// A read that a kernel waits for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Read {
    pub key: u32,
    pub va: u64,
    /// At most [`LINE`], unless it is the last.
    pub len: u32,
    /// Whether the bytes are the reply; the others are the next step's.
    pub last: bool,
}

/// Why a kernel in steps makes no more of them.
pub(crate) enum Stop {
    /// It ends so.
    Ends(Status),
    /// It has met what is not for a step: all begins anew, as a future.
    Apart,
}

impl From<Status> for Stop {
    fn from(status: Status) -> Self {
        Self::Ends(status)
    }
}

/// What a kernel does between its reads. The last one brings the reply.
pub(crate) trait Steps: Sized {
    /// Whether the last read brings what [`end`](Self::end) makes the reply of, however long that may be.
    const ENDS: bool = false;

    /// The kernel with these parameters, and its first read.
    fn begin(params: &[u8]) -> Result<(Self, Read), Stop>;

    /// The next read, after one that brought `seen`.
    fn next(&mut self, seen: &[u8; LINE]) -> Result<Read, Stop>;

    /// Makes the reply of what the last read brought.
    fn end(_: &mut Call, _: &Held<'_>) -> Result<(), Stop> {
        Ok(())
    }
}

/// Where a read was.
pub(crate) struct Held<'m> {
    pub region: &'m Region,
    pub pd: Pd,
    pub va: u64,
}

/// Runs a kernel in steps where accesses are awaited.
#[inline]
pub(crate) async fn run<S: Steps, M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let ended = |stop| match stop {
        Stop::Ends(status) => status,
        Stop::Apart => Status::Trapped,
    };
    let (mut steps, mut read) = S::begin(&call.params).map_err(ended)?;
    while !read.last {
        let mut line = [0; LINE];
        memory.read(read.key, read.va, &mut line[..read.len as usize]).await?;
        read = steps.next(&line).map_err(ended)?;
    }
    let len = read.len as usize;
    if len > call.reply_room() {
        return Err(Status::ReplyTooLong);
    }
    for from in (0..len.max(1)).step_by(PIECE) {
        let reply = call.grow_reply(PIECE.min(len - from))?;
        memory.read(read.key, read.va.wrapping_add(from as u64), reply).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::{BytePairs, ByteParams, Put, Shape, Tree, TreeParams, TreeRef};
    use crate::builtins::op;
    use crate::host::HostMemory;
    use crate::{Builtins, GetParams, Kernel, Limits, TraversalParams, host_runner};
    use proptest::prelude::*;
    use remora_memory::{Access, Buffer, Registry};
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    const ALL: Access = Access::all();

    /// Runs what waits for nothing but its turn.
    fn run_now<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            if let Poll::Ready(it) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return it;
            }
        }
    }

    struct Place {
        registry: Arc<Registry>,
        pd: Pd,
        region: Arc<Region>,
    }

    impl Place {
        fn new(bytes: Vec<u8>, access: Access) -> Place {
            let registry = Arc::new(Registry::new([4; 32]));
            let (pd, buffer) = (registry.alloc_pd(), Buffer::from_boxed(bytes.into()));
            let region = registry.register(pd, &buffer, 0, buffer.len(), Some(0), access).unwrap();
            Place { registry, pd, region }
        }

        fn call(&self, op: u64, params: &[u8], reply_limit: u32) -> Call {
            let mut call = Call::new(op, params, reply_limit);
            call.pd = Some(self.pd);
            call
        }

        /// How a call ends in a runner, and by the kernel's future.
        fn both(&self, call: (u64, &[u8], u32), limits: Limits, prefetching: bool) -> [(Status, Vec<u8>); 2] {
            let (op, params, reply_limit) = call;
            let mut runner = host_runner(self.registry.clone(), prefetching, 1, limits);
            assert!(runner.start(self.call(op, params, reply_limit)).is_ok());
            let mut ended = None;
            while ended.is_none() {
                runner.poll(&mut |mut call, status| ended = Some((status, std::mem::take(&mut call.reply))));
            }
            assert_eq!(runner.in_flight(), 0);

            let mut memory = HostMemory::new(self.registry.clone(), self.pd, prefetching, limits);
            let mut call = self.call(op, params, reply_limit);
            let mut run = Box::pin(Builtins.run(&memory, &mut call));
            let status = loop {
                if let Poll::Ready(status) = run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    break status;
                }
            };
            drop(run);
            [ended.unwrap(), (memory.settle(status), std::mem::take(&mut call.reply))]
        }
    }

    /// Replies count only where the status says so.
    fn alike([steps, future]: [(Status, Vec<u8>); 2]) -> Result<Status, TestCaseError> {
        prop_assert_eq!(steps.0, future.0);
        if steps.0 == Status::Ok {
            prop_assert_eq!(steps.1, future.1);
        }
        Ok(steps.0)
    }

    fn access() -> impl Strategy<Value = Access> {
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        prop_oneof![8 => Just(ALL), 1 => Just(write), 1 => Just(Access::REMOTE_READ)]
    }

    fn limits() -> impl Strategy<Value = Limits> {
        let few = (0u32..6, 0u64..400).prop_map(|(steps, bytes)| Limits { steps, bytes });
        prop_oneof![2 => Just(Limits::default()), 1 => few]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Keys, bounds, rights and limits hold for each access, as they do where the kernel is a future.
        #[test]
        fn a_get_in_a_runner_ends_as_the_kernel_says(
            words in prop::collection::vec(prop_oneof![Just(0u64), 0u64..5, 0u64..600, any::<u64>()], 64),
            lengths in prop::collection::vec(prop_oneof![Just(64u32), 0u32..80, any::<u32>()], 8 * 3),
            nexts in prop::collection::vec(prop_oneof![3 => 0u32..9, 1 => any::<u32>()], 8),
            ask in (0u64..5, 0u32..9, 0u64..3, 0u32..100),
            how in (access(), limits(), any::<bool>(), any::<[bool; 2]>()),
        ) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            for (entry, next) in nexts.iter().enumerate() {
                for bucket in 0..3 {
                    let at = 64 * entry + 48 + 4 * bucket;
                    bytes[at..at + 4].copy_from_slice(&lengths[3 * entry + bucket].to_le_bytes());
                }
                bytes[64 * entry + 60..64 * entry + 64].copy_from_slice(&next.to_le_bytes());
            }
            let (access, limits, prefetching, wrong) = how;
            let place = Place::new(bytes, access);
            let (key, index, entries, reply_limit) = ask;
            let [entries_key, values_key] = wrong.map(|wrong| place.region.key() ^ u32::from(wrong && key == 4));
            let params = GetParams { entries: entries * 4, key, index, entries_key, values_key };
            alike(place.both((op::GET, &params.encode(), reply_limit), limits, prefetching))?;
        }

        #[test]
        fn a_traversal_in_a_runner_ends_as_the_kernel_says(
            words in prop::collection::vec(prop_oneof![Just(0u64), 0u64..5, 0u64..600, any::<u64>()], 64),
            ask in (0u64..600, 0u64..5, 0u32..100, 0u32..100),
            shape in (any::<u16>(), 0u8..16, any::<bool>(), 0u8..16, any::<bool>(), 0u8..70, 0u8..3),
            how in (access(), limits(), any::<bool>()),
        ) {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let (access, limits, prefetching) = how;
            let place = Place::new(bytes, access);
            let (head, key, value_size, reply_limit) = ask;
            let list = TraversalParams::list(head, key, value_size, place.region.key(), place.region.key());
            let params = TraversalParams {
                key_mask: shape.0,
                value_ptr_position: shape.1,
                is_relative_position: shape.2,
                next_element_ptr_position: shape.3,
                next_element_ptr_valid: shape.4,
                element_size: shape.5,
                descents: shape.6,
                ..list
            };
            for params in [list, params] {
                alike(place.both((op::TRAVERSAL, &params.encode(), reply_limit), limits, prefetching))?;
            }
        }

        /// The same of a tree, whose nodes anybody may have changed to anything.
        #[test]
        fn look_ups_and_scans_of_a_tree_in_a_runner_end_as_the_kernel_says(
            keys in prop::collection::btree_set(0u64..200, 1..100),
            changes in prop::collection::vec((256usize..256 * 20 / 8, any::<u64>()), 0..3),
            asked in prop::collection::vec(0u64..200, 1..8),
            how in (access(), any::<bool>(), prop_oneof![4 => Just(8u32), 1 => 0u32..8], prop_oneof![4 => Just(0u32), 1 => 0u32..40]),
        ) {
            let shape = Shape { node_bytes: 256, fill: 70 };
            let mut bytes = vec![0; 256 * 40];
            let write = |at: u64, node: &[u8]| {
                bytes[at as usize..][..node.len()].copy_from_slice(node);
                Ok::<_, crate::btree::BuildError>(())
            };
            shape.build(keys.iter().map(|&key| (key, !key)), keys.len(), 40, write).unwrap();
            for (word, value) in &changes {
                bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
            }
            let (access, prefetching, reply_limit, more) = how;
            let place = Place::new(bytes, access);
            // A tree that is said to be longer than its region is looked at by the future.
            let tree =
                TreeRef { base: 0, key: place.region.key(), slots: 40 + more, node_bytes: 256, owners: 0, owner: 0 };
            for key in asked {
                let params = TreeParams::new(tree, key, 0).encode();
                let status = alike(place.both((op::TREE_GET, &params, reply_limit), Limits::default(), prefetching))?;
                if changes.is_empty() && access.contains(Access::REMOTE_READ) && reply_limit == 8 && more == 0 {
                    let expected = if keys.contains(&key) { Status::Ok } else { Status::NotFound };
                    prop_assert_eq!(status, expected, "key {}", key);
                }
                for (count, reply_limit) in [(0, 8), (3, 48), (40, 648), (40, 200), (1 << 20, 1 << 12)] {
                    let params = TreeParams::new(tree, key, count).encode();
                    let call = (op::TREE_SCAN, &params[..], reply_limit);
                    let [steps, future] = place.both(call, Limits::default(), prefetching);
                    let reply = steps.1.clone();
                    let status = alike([steps, future])?;
                    if changes.is_empty() && access.contains(Access::REMOTE_READ) && more == 0 && status == Status::Ok {
                        let pairs = keys.range(key..).take(count as usize).flat_map(|key| [*key, !*key]);
                        let expected: Vec<u8> = pairs.flat_map(u64::to_le_bytes).collect();
                        prop_assert_eq!(reply, expected, "{} keys from {}", count, key);
                    }
                }
            }
        }
    }

    /// A tree of so many slots with these keys, each with itself as its value.
    fn tree(keys: &BTreeSet<u64>, slots: u32) -> (Place, TreeRef) {
        let shape = Shape { node_bytes: 256, fill: 100 };
        let mut bytes = vec![0; 256 * slots as usize];
        let write = |at: u64, node: &[u8]| {
            bytes[at as usize..][..node.len()].copy_from_slice(node);
            Ok::<_, crate::btree::BuildError>(())
        };
        shape.build(keys.iter().map(|&key| (key, key)), keys.len(), slots, write).unwrap();
        let place = Place::new(bytes, ALL);
        let tree = TreeRef { base: 0, key: place.region.key(), slots, node_bytes: 256, owners: 0, owner: 0 };
        (place, tree)
    }

    impl Place {
        /// All that a tree holds, if it is sound.
        fn audit(&self, at: TreeRef) -> Vec<(u64, u64)> {
            let memory = HostMemory::new(self.registry.clone(), self.pd, false, Limits::default());
            let audit = run_now(Tree::new(&memory, at).unwrap().audit()).unwrap();
            assert_eq!((audit.lost, audit.orphans), (0, 0));
            audit.pairs
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]

        /// Leaves that fill up are split, by a call that began in steps.
        #[test]
        fn a_tree_that_is_written_in_a_runner_is_an_ordered_map(
            keys in prop::collection::btree_set(0u64..300, 0..150),
            writes in prop::collection::vec(
                (0u64..300, any::<u64>(), 0usize..3, prop_oneof![9 => Just(8u32), 1 => Just(7)]),
                1..400,
            ),
        ) {
            let (place, tree) = tree(&keys, 200);
            let mut model: BTreeMap<u64, u64> = keys.iter().map(|&key| (key, key)).collect();
            let mut runner = host_runner(place.registry.clone(), true, 1, Limits::default());
            for (key, value, how, reply_limit) in writes {
                let how = [Put::Upsert, Put::Insert, Put::Update][how];
                let params = TreeParams { how, ..TreeParams::new(tree, key, value) };
                prop_assert!(runner.start(place.call(op::TREE_PUT, &params.encode(), reply_limit)).is_ok());
                let mut ended = None;
                while ended.is_none() {
                    runner.poll(&mut |call, status| ended = Some((status, call.reply.clone())));
                }
                let old = model.get(&key).copied();
                let expected = match (how, old) {
                    _ if reply_limit < 8 => Err(Status::ReplyTooLong),
                    (Put::Insert, Some(_)) => Err(crate::btree::EXISTS),
                    (Put::Update, None) => Err(Status::NotFound),
                    _ => Ok(old.map_or(Vec::new(), |old| old.to_le_bytes().to_vec())),
                };
                if expected.is_ok() {
                    model.insert(key, value);
                }
                let (status, reply) = ended.unwrap();
                prop_assert_eq!(if status == Status::Ok { Ok(reply) } else { Err(status) }, expected, "{:?}", params);
            }
            prop_assert_eq!(place.audit(tree), model.into_iter().collect::<Vec<_>>());
        }
    }

    /// Keys of which many begin alike, with rests that their slots hold and others.
    fn name(number: u16) -> Vec<u8> {
        let begin: &[u8] = [&b""[..], b"user00000000", b"user0000000001", b"w"][usize::from(number % 4)];
        let digits = (number / 8).to_be_bytes();
        [begin, &digits[usize::from(number / 8 < 256)..], &b"tail.."[..usize::from(number / 4 % 2) * 6]].concat()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]

        /// The same with keys that are bytes, which are looked up and read in order as well.
        #[test]
        fn a_tree_of_bytes_in_a_runner_is_an_ordered_map(
            loaded in prop::collection::btree_set(0u16..2400, 0..300),
            writes in prop::collection::vec((0u16..2400, any::<u64>(), 0usize..3), 1..500),
            reads in prop::collection::vec((0u16..2400, 0u64..60), 1..100),
        ) {
            let shape = Shape { node_bytes: 256, fill: 100 };
            let mut model: BTreeMap<Vec<u8>, u64> = loaded.iter().map(|&n| (name(n), n.into())).collect();
            let mut bytes = vec![0; 256 * 1000];
            let write = |at: u64, node: &[u8]| {
                bytes[at as usize..][..node.len()].copy_from_slice(node);
                Ok::<_, crate::btree::BuildError>(())
            };
            shape.build_bytes(model.iter().map(|(key, value)| (key, *value)), 1000, write).unwrap();
            let place = Place::new(bytes, ALL);
            let tree = TreeRef { base: 0, key: place.region.key(), slots: 1000, node_bytes: 256, owners: 0, owner: 0 };
            let mut runner = host_runner(place.registry.clone(), true, 1, Limits::default());
            let mut run = |op, params: ByteParams<'_>| {
                let mut encoded = Vec::new();
                params.encode(&mut encoded);
                assert!(runner.start(place.call(op, &encoded, 1 << 14)).is_ok());
                let mut ended = None;
                while ended.is_none() {
                    runner.poll(&mut |call, status| ended = Some((status, call.reply.clone())));
                }
                let (status, reply) = ended.unwrap();
                if status == Status::Ok { Ok(reply) } else { Err(status) }
            };
            for (number, value, how) in writes {
                let (key, how) = (name(number), [Put::Upsert, Put::Insert, Put::Update][how]);
                let old = model.get(&key).copied();
                let expected = match (how, old) {
                    (Put::Insert, Some(_)) => Err(crate::btree::EXISTS),
                    (Put::Update, None) => Err(Status::NotFound),
                    _ => Ok(old.map_or(Vec::new(), |old| old.to_le_bytes().to_vec())),
                };
                let got = run(op::TREE_PUT, ByteParams { how, ..ByteParams::new(tree, &key, value) });
                prop_assert_eq!(&got, &expected, "{:?} of {:?}", how, key);
                if expected.is_ok() {
                    model.insert(key, value);
                }
            }
            for (number, count) in reads {
                let key = name(number);
                let expected = model.get(&key).map(|value| value.to_le_bytes().to_vec()).ok_or(Status::NotFound);
                prop_assert_eq!(run(op::TREE_GET, ByteParams::new(tree, &key, 0)), expected);
                let reply = run(op::TREE_SCAN, ByteParams::new(tree, &key, count)).unwrap();
                let pairs: Vec<_> = BytePairs(&reply).map(|(key, value)| (key.to_vec(), value)).collect();
                let expected = model.range(key..).take(count as usize).map(|(key, value)| (key.clone(), *value));
                prop_assert_eq!(pairs, expected.collect::<Vec<_>>());
            }
            let memory = HostMemory::new(place.registry.clone(), place.pd, false, Limits::default());
            let audit = run_now(Tree::of_bytes(&memory, tree).unwrap().audit()).unwrap();
            prop_assert_eq!((audit.lost, audit.orphans), (0, 0));
            prop_assert_eq!(audit.pairs, model.into_iter().collect::<Vec<_>>());
        }

        /// Nodes that hold anything end a call, and none reaches beyond them.
        #[test]
        fn calls_of_a_tree_of_bytes_that_holds_anything_end(
            noise in prop::collection::vec(any::<u8>(), 3 * 256..=3 * 256),
            level in 1u8..3,
            shape in (0u16..20, 0u16..300, prop_oneof![0u16..40, any::<u16>()]),
            keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..33), 1..20),
        ) {
            let (count, heap, same) = shape;
            let mut bytes = crate::btree::tests::of_noise(&noise, level, count, heap);
            for node in bytes[256..4 * 256].chunks_mut(256) {
                node[18..20].copy_from_slice(&same.to_le_bytes());
            }
            // The root covers all keys.
            bytes[256 + 8..][..8].copy_from_slice(&[0, 0, 0, 0, 0, 0, 255, 255]);
            let place = Place::new(bytes, ALL);
            let tree = TreeRef { base: 0, key: place.region.key(), slots: 8, node_bytes: 256, owners: 0, owner: 0 };
            let mut runner = host_runner(place.registry.clone(), true, 1, Limits::default());
            for (key, op) in keys.iter().zip([op::TREE_GET, op::TREE_SCAN, op::TREE_PUT].into_iter().cycle()) {
                let mut params = Vec::new();
                ByteParams::new(tree, key, 30).encode(&mut params);
                prop_assert!(runner.start(place.call(op, &params, 1 << 12)).is_ok());
                while runner.in_flight() > 0 {
                    runner.poll(&mut |_, _| ());
                }
            }
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the property is about three threads")]
    fn cores_that_write_a_tree_in_steps_lose_nothing() {
        const EACH: u64 = if cfg!(miri) { 16 } else { 2000 };
        let (place, tree) = tree(&(0..100).map(|key| 50 * key).collect(), 3000);
        let place = &place;
        let core = |core: u64| {
            let mut runner = host_runner(place.registry.clone(), true, 8, Limits::default());
            // Keys of a core's own, keys that all write, and look-ups and scans beside them.
            let (mut numbers, mut again, mut ended) = (0..EACH, Vec::new(), 0);
            while ended < EACH {
                while runner.in_flight() < 8
                    && let Some(number) = again.pop().or_else(|| numbers.next())
                {
                    let (op, key, value) = match number % 4 {
                        0 => (op::TREE_PUT, 50 * (number % 100), number),
                        1 => (op::TREE_SCAN, number, 20),
                        _ => (op::TREE_PUT, 2 * (number * 7919 % 2503) + core + 10_000 * (number % 3), core),
                    };
                    let mut call = place.call(op, &TreeParams::new(tree, key, value).encode(), 400);
                    call.tag = number;
                    assert!(runner.start(call).is_ok());
                }
                runner.poll(&mut |call, status| match status {
                    crate::btree::LOCKED => again.push(call.tag),
                    Status::Ok => {
                        let pairs = call.reply.chunks_exact(16).filter(|_| call.op == op::TREE_SCAN);
                        let keys: Vec<u64> =
                            pairs.map(|pair| u64::from_le_bytes(*pair.first_chunk().unwrap())).collect();
                        assert!(keys.is_sorted(), "{keys:?}");
                        ended += 1;
                    }
                    status => panic!("{status:?}"),
                });
            }
        };
        std::thread::scope(|scope| (0..3).for_each(|number| _ = scope.spawn(move || core(number))));
        let mut expected: BTreeSet<u64> = (0..100).map(|key| 50 * key).collect();
        for core in 0..3 {
            let own = (0..EACH).filter(|number| number % 4 > 1);
            expected.extend(own.map(|number| 2 * (number * 7919 % 2503) + core + 10_000 * (number % 3)));
        }
        let found: Vec<u64> = place.audit(tree).into_iter().map(|(key, _)| key).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_region_that_goes_away_between_two_steps_is_denied() {
        let list = |place: &Place| TraversalParams::list(8, 1, 8, place.region.key(), place.region.key()).encode();
        for turns in 0..3 {
            let place = Place::new([0u64, 7, 8, 0].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>(), ALL);
            let mut runner = host_runner(place.registry.clone(), true, 4, Limits::default());
            let mut params = TraversalParams::decode(&list(&place)).unwrap();
            (params.element_size, params.value_ptr_position) = (24, 0);
            assert!(runner.start(place.call(op::TRAVERSAL, &params.encode(), 8)).is_ok());
            for _ in 0..turns {
                assert_eq!(runner.poll(&mut |_, status| panic!("ended: {status:?}")), 0, "a circle");
            }
            place.registry.deregister(place.region.key()).unwrap();
            let mut ended = Vec::new();
            while runner.in_flight() > 0 {
                runner.poll(&mut |_, status| ended.push(status));
            }
            assert_eq!(ended, [Status::AccessDenied], "after {turns} turns");
        }
    }

    #[test]
    fn a_look_up_that_is_cancelled_leaves_its_room_to_others() {
        let place = Place::new(vec![0; 64], ALL);
        let mut runner = host_runner(place.registry.clone(), true, 2, Limits::default());
        let get =
            GetParams { entries: 0, key: 1, index: 0, entries_key: place.region.key(), values_key: place.region.key() };
        for round in 0..3 {
            // The second ends when it begins.
            for (tag, params) in [(1, &get.encode()[..]), (2, &[])] {
                let mut call = place.call(op::GET, params, 8);
                call.tag = tag;
                assert!(runner.start(call).is_ok(), "round {round}");
            }
            assert!(runner.cancel(1) && runner.cancel(2) && !runner.cancel(1));
            assert_eq!((runner.in_flight(), runner.poll(&mut |_, status| panic!("ended: {status:?}"))), (0, 0));
        }
        assert!(runner.start(place.call(op::GET, &get.encode(), 8)).is_ok());
        let mut ended = Vec::new();
        while runner.in_flight() > 0 {
            runner.poll(&mut |_, status| ended.push(status));
        }
        assert_eq!(ended, [Status::NotFound]);
    }

    /// Numbers that a client has written where a tree should be.
    struct Lie(Vec<u8>);

    impl Lie {
        fn new(slots: usize) -> Lie {
            Lie(vec![0; 256 * slots])
        }

        fn put(&mut self, slot: usize, at: usize, words: &[u64]) {
            for (n, word) in words.iter().enumerate() {
                self.0[256 * slot + at + 8 * n..][..8].copy_from_slice(&word.to_le_bytes());
            }
        }

        /// Fences, the slot to the right, number of keys, 1 + level.
        fn header(&mut self, slot: usize, range: std::ops::RangeInclusive<u64>, right: u64, len: u64, kind: u64) {
            self.put(slot, 8, &[*range.start(), *range.end(), right | len << 32 | kind << 48]);
        }

        fn place(self) -> (Place, TreeRef) {
            let slots = (self.0.len() / 256) as u32;
            let place = Place::new(self.0, ALL);
            let tree = TreeRef { base: 0, key: place.region.key(), slots, node_bytes: 256, owners: 0, owner: 0 };
            (place, tree)
        }
    }

    /// Begins calls, and says after how many turns each ended, and how.
    fn turns(place: &Place, calls: impl IntoIterator<Item = (u32, u64, Vec<u8>)>) -> Vec<(u32, usize, Status)> {
        let mut runner = host_runner(place.registry.clone(), true, 64, Limits::default());
        for (client, op, params) in calls {
            let mut call = place.call(op, &params, 8);
            call.client = client;
            assert!(runner.start(call).is_ok());
        }
        let mut ended = Vec::new();
        for turn in 0.. {
            runner.poll(&mut |call, status| ended.push((call.client, turn, status)));
            if runner.in_flight() == 0 {
                break;
            }
        }
        ended
    }

    /// A leaf whose keys are in no order is found full, and split, again and again, for as long as there are slots.
    #[test]
    fn a_put_into_a_tree_that_splits_without_end_gives_way_and_ends() {
        let mut lie = Lie::new(70_000);
        lie.put(0, 8, &[3]);
        lie.header(1, 0..=u64::MAX, 0, 1, 2);
        lie.put(1, 32 + 8 * 18, &[2]);
        lie.header(2, 0..=u64::MAX, 0, 13, 1);
        lie.put(2, 32, &[10, 10, 7, 10, 7, 7, 10, 7, 7, 7, 50, 5, 50]);
        let (place, tree) = lie.place();
        let put = |client| (client, op::TREE_PUT, TreeParams::new(tree, 100, 1).encode().to_vec());
        let list = place.region.key();
        let other = (7, op::TRAVERSAL, TraversalParams::list(0, 3, 8, list, list).encode().to_vec());
        let ended = turns(&place, [put(1), other]);
        let [(7, soon, _), (1, late, status)] = ended[..] else { panic!("{ended:?}") };
        assert!(soon < 20 && late > 500, "{ended:?}");
        assert_eq!(status, crate::btree::LOCKED);
    }

    /// A put that goes on as a future is cancelled as any other, and leaves nothing locked.
    #[test]
    fn a_put_that_splits_can_be_cancelled_between_any_two_of_its_turns() {
        for turns in 0..40 {
            // The root is full, and so is each leaf: two nodes are allocated for one, and three are written.
            let (place, tree) = tree(&(0..13 * 18).map(|key| 2 * key).collect(), 100);
            let mut runner = host_runner(place.registry.clone(), true, 1, Limits::default());
            let mut call = place.call(op::TREE_PUT, &TreeParams::new(tree, 7, 7).encode(), 8);
            call.tag = 9;
            assert!(runner.start(call).is_ok());
            let over = (0..turns).any(|_| runner.poll(&mut |_, status| assert_eq!(status, Status::Ok)) > 0);
            assert_eq!(runner.cancel(9), !over);
            assert_eq!(runner.in_flight(), 0);
            let memory = HostMemory::new(place.registry.clone(), place.pd, false, Limits::default());
            let audit = run_now(Tree::new(&memory, tree).unwrap().audit()).unwrap();
            assert_eq!(audit.lost, 0, "after {turns} turns");
            assert!(!over || audit.pairs.len() == 13 * 18 + 1);
        }
    }

    /// Who is cut off between a split and telling the parent leaves a node that its parent does not know. Others tell it, as they
    /// split that node or merge what is beside it.
    #[test]
    fn a_node_that_its_parent_does_not_know_is_known_when_it_is_split_or_merged_next() {
        for (splits, deletes) in [(true, false), (false, true), (true, true)] {
            let mut orphans = 0;
            for turns in 0..40 {
                // Leaves are full and their parent is not.
                let (place, tree) = tree(&(0..13 * 4).map(|key| 10 * key).collect(), 100);
                let mut runner = host_runner(place.registry.clone(), true, 1, Limits::default());
                let mut call = place.call(op::TREE_PUT, &TreeParams::new(tree, 7, 7).encode(), 8);
                call.tag = 9;
                assert!(runner.start(call).is_ok());
                (0..turns).any(|_| runner.poll(&mut |_, _| ()) > 0);
                runner.cancel(9);
                let memory = HostMemory::new(place.registry.clone(), place.pd, false, Limits::default());
                let whole = || Tree::<_, u64>::new(&memory, tree).unwrap();
                orphans += run_now(whole().audit()).unwrap().orphans;
                if splits {
                    for key in 0..130 {
                        run_now(whole().put(&key, key, Put::Upsert, &mut Vec::new())).unwrap();
                    }
                }
                if deletes {
                    for key in 0..600 {
                        let _ = run_now(whole().delete(&key, &mut Vec::new()));
                    }
                }
                let audit = run_now(whole().audit()).unwrap();
                assert_eq!((audit.lost, audit.orphans), (0, 0), "after {turns} turns");
            }
            assert!(orphans > 0);
        }
    }

    /// Nodes that lead to the right in a circle, above the levels that are asked for ahead.
    #[test]
    fn a_look_up_in_a_tree_that_goes_in_circles_gives_way_and_pays() {
        let mut lie = Lie::new(10);
        lie.header(1, 0..=u64::MAX, 0, 1, 4);
        lie.put(1, 32 + 8 * 18, &[2]);
        lie.header(2, 0..=9, 2, 1, 3);
        let (place, tree) = lie.place();
        for op in [op::TREE_GET, op::TREE_SCAN, op::TREE_PUT, op::TREE_DELETE] {
            let params = TreeParams::new(tree, 100, 1).encode().to_vec();
            let one = turns(&place, [(1, op, params.clone())]);
            assert!(one[0].1 >= 500 && one[0].2 == Status::StepLimit, "{one:?}");
            let many = turns(&place, (0..8).map(|_| (1, op, params.clone())));
            let last = many.last().map_or(0, |(_, turn, _)| *turn);
            assert!(last > 3 * one[0].1, "eight take the turns of eight: {last} and {}", one[0].1);
        }
    }
}
