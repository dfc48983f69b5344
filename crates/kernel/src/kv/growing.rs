//! Stores that grow.

use super::slab::BUMP;
use super::table::{LOCK, MOVED, ROOT, TOMB};
use super::tests::{Stepped, params, run, start, store};
use super::*;
use crate::{Status, op};
use proptest::prelude::*;
use std::collections::HashMap;
use std::task::{Context, Waker};

/// The table that a word says.
fn table(word: u64) -> Table {
    Table::from_word(word).expect("a table")
}

/// What the next bucket that overflows is one too many of.
pub(super) fn make_due(memory: &Stepped) {
    memory.memory.put(ROOT + 32, &15u64.to_le_bytes());
}

/// All entries of a store, wherever their chains are by now, and how many buckets overflow.
///
/// # Panics
/// If a chain is locked.
pub(super) fn entries(word: &dyn Fn(u64) -> u64) -> (Vec<u64>, u64) {
    let root = table(word(ROOT));
    let mut chains: Vec<(Table, u64)> = (0..1 << root.lg_buckets).map(|index| (root, index)).collect();
    let (mut found, mut overflows) = (Vec::new(), 0);
    while let Some((of, index)) = chains.pop() {
        let mut buckets = vec![of.at(index)];
        while let Some(bucket) = buckets.pop() {
            let last = word(bucket + ENTRIES as u64 * 8);
            if last & MOVED != 0 {
                chains.extend((0..BRANCHES).map(|n| (table(last & !MOVED), index * BRANCHES + n)));
                continue;
            }
            assert_eq!(last & LOCK, 0, "a chain is locked");
            found.extend((0..ENTRIES as u64).map(|n| word(bucket + n * 8)).filter(|&entry| entry > TOMB));
            if last != 0 {
                overflows += 1;
                buckets.extend((0..BRANCHES).map(|n| last + n * BUCKET_BYTES as u64));
            }
        }
    }
    (found, overflows)
}

/// As a client does that looks at the header now and then.
fn looked(memory: &Stepped, at: KvRef) -> KvRef {
    KvRef { table: table_of(&memory.memory.get(0, 16)).expect("a store"), ..at }
}

#[test]
fn a_store_that_grows_a_thousandfold_takes_as_many_accesses_as_one_that_was_made_so_large() {
    let (memory, old) = (Stepped::growing(2, 128 << 10, 64 << 20), store(2));
    let (mut at, mut pairs, mut added) = (old, 0u32, 0);
    let count = |op: u64, at: KvRef, numbers: std::ops::Range<u32>| {
        memory.accesses.set(0);
        for n in numbers.clone() {
            let value = (n ^ 5).to_le_bytes();
            let ended = run(&memory, op, &params(at, &n.to_le_bytes(), if op == op::KV_GET { &[] } else { &value }));
            assert_eq!(ended.0, Status::Ok, "{n}");
            assert!(op != op::KV_GET || ended.1 == value, "{n}");
        }
        memory.accesses.get()
    };
    for most in [16, 160, 1_600, 16_000, 64_000] {
        while pairs < most {
            // A look for each 64 calls.
            let next = most.min(pairs + 64);
            at = looked(&memory, at);
            added += count(op::KV_PUT, at, pairs..next);
            pairs = next;
        }
        let each = |accesses: u32| f64::from(accesses) / f64::from(pairs);
        let (got, changed) = (each(count(op::KV_GET, at, 0..pairs)), each(count(op::KV_PUT, at, 0..pairs)));
        let (late, added) = (each(count(op::KV_GET, old, 0..pairs)), each(added));
        let buckets = 1 << looked(&memory, at).table.lg_buckets;
        println!(
            "{pairs} pairs, {buckets} buckets: {got:.2} accesses of a GET, {changed:.2} of a PUT, {added:.2} of those that added \
             them; {late:.2} of a GET by the first table"
        );
        // What is added moves others too: all of them once, if there is a larger table just now.
        assert!(got <= 3.0 && (pairs < 1000 || changed <= 4.5 && added <= 9.0));
    }
    assert!(looked(&memory, at).table.lg_buckets >= 11);
    assert!(memory.word(BUMP + 8) > 4 << 20, "it was 128 KB long");
}

#[test]
fn memory_grows_for_slabs_until_it_may_not() {
    let (memory, at) = (Stepped::growing(2, 70 << 10, 1 << 20), store(2));
    let put = |n: u32| run(&memory, op::KV_PUT, &params(at, &n.to_le_bytes(), &vec![n as u8; 3000])).0;
    let filled = (0..100_000).take_while(|&n| put(n) == Status::Ok).count() as u32;
    assert!((250..350).contains(&filled), "{filled} pairs in 1 MB");
    for n in 0..filled {
        assert_eq!(run(&memory, op::KV_GET, &params(at, &n.to_le_bytes(), &[])), (Status::Ok, vec![n as u8; 3000]));
    }
    assert_eq!([put(filled), put(0)], [NO_ROOM, Status::Ok]);
}

/// What overflows while there is no room for a larger table stays where it is, and there is one once there is room.
#[test]
fn a_table_that_there_is_no_room_for_is_made_later() {
    let (memory, at) = (Stepped::growing(8, 200 << 10, 4 << 20), store(8));
    memory.most.set(260 << 10);
    let key = |n: u32| n.to_le_bytes();
    let put = |n: u32| run(&memory, op::KV_PUT, &params(at, &key(n), &[])).0;
    let filled = (0..).take_while(|&n| put(n) == Status::Ok).count() as u32;
    assert!(filled > 1200, "{filled}");
    assert_eq!((memory.word(ROOT), memory.word(ROOT + 16)), (at.table.word(), at.table.word()));
    for n in 0..filled {
        assert_eq!(run(&memory, op::KV_GET, &params(at, &key(n), &[])).0, Status::Ok);
    }
    assert_eq!(entries(&|at| memory.word(at)).0.len(), filled as usize);
    memory.most.set(4 << 20);
    let more = (filled..).take_while(|&n| put(n) == Status::Ok && memory.word(ROOT) == at.table.word()).count() as u32;
    assert!(more < filled && looked(&memory, at).table.lg_buckets == 11, "{more}");
    assert_eq!(entries(&|at| memory.word(at)).0.len() as u32, filled + more + 1);
}

/// A store of two chains, of which the second has been moved to the next table; and the keys of the first chain, and those
/// of the second.
fn half_moved(memory: &Stepped) -> (KvRef, Table, impl Fn(u64) -> Box<dyn Iterator<Item = [u8; 4]>>) {
    let (at, next) = (store(1), Table { lg_buckets: 4, place: 32 });
    for (at, word) in [
        (BUMP, next.at(1 << next.lg_buckets)),
        (at.table.at(1) + ENTRIES as u64 * 8, MOVED | next.word()),
        (ROOT + 16, next.word()),
        (ROOT + 24, u64::from(next.lg_buckets) << 48),
    ] {
        memory.memory.put(at, &word.to_le_bytes());
    }
    let keys = move |index| -> Box<dyn Iterator<Item = [u8; 4]>> {
        Box::new((0u32..).map(u32::to_le_bytes).filter(move |key| at.table.index(hash(key, 7)) == index))
    };
    (at, next, keys)
}

/// A peer that writes what it likes holds nobody up: a chain without an end is not moved, and nothing stays locked or
/// frozen.
#[test]
fn a_chain_without_an_end_is_left_where_it_is() {
    let memory = Stepped::growing(1, 256 << 10, 256 << 10);
    let (at, next, keys) = half_moved(&memory);
    let [stays, moved] = [0, 1].map(|index| keys(index).next().expect("half of them"));
    let last = at.table.at(0) + ENTRIES as u64 * 8;
    assert_eq!(run(&memory, op::KV_PUT, &params(at, &stays, b"stays")).0, Status::Ok);
    let entry = memory.word(at.table.at(0));
    memory.memory.put(last, &at.table.at(0).to_le_bytes());
    assert_eq!(run(&memory, op::KV_PUT, &params(at, &moved, b"moved")).0, Status::Ok);
    assert_eq!(run(&memory, op::KV_GET, &params(at, &moved, &[])), (Status::Ok, b"moved".to_vec()));
    assert_eq!((memory.word(at.table.at(0)), memory.word(last)), (entry, at.table.at(0)));
    assert_eq!(run(&memory, op::KV_GET, &params(at, &stays, &[])), (Status::Ok, b"stays".to_vec()));
    // It is moved once it ends.
    memory.memory.put(last, &[0; 8]);
    assert_eq!(run(&memory, op::KV_PUT, &params(at, &moved, b"again")).0, Status::Ok);
    assert_eq!((memory.word(last), memory.word(ROOT)), (MOVED | next.word(), next.word()));
    assert_eq!(run(&memory, op::KV_GET, &params(at, &stays, &[])), (Status::Ok, b"stays".to_vec()));
}

/// How long chains are is up to who may write to the store, and nobody else runs while one is moved.
#[test]
fn a_write_moves_no_more_than_takes_little_however_long_chains_are() {
    for groups in [0, 15, 100] {
        let memory = Stepped::growing(4, 4 << 20, 4 << 20);
        let (at, next) = (store(4), Table { lg_buckets: 7, place: 256 });
        let put = |key: &[u8]| run(&memory, op::KV_PUT, &params(at, key, b"value")).0;
        let in_chain = |wanted: std::ops::Range<u64>| {
            let mut keys = (0u32..).map(u32::to_le_bytes);
            keys.find(|key| wanted.contains(&at.table.index(hash(key, 7)))).expect("half of them")
        };
        let (stays, moved) = (in_chain(0..1), in_chain(8..16));
        assert_eq!(put(&stays), Status::Ok);
        let entry = memory.word(at.table.at(0));
        let word = |at: u64, word: u64| memory.memory.put(at, &word.to_le_bytes());
        let last = |index: u64| at.table.at(index) + ENTRIES as u64 * 8;
        word(BUMP, 3 << 20);
        word(ROOT + 16, next.word());
        word(ROOT + 24, u64::from(next.lg_buckets) << 48);
        (8..16).for_each(|index| word(last(index), MOVED | next.word()));
        // What overflows from eight chains lies in the same buckets, all full.
        let group = |n: u64| (2 << 20) + n * BRANCHES * BUCKET_BYTES as u64;
        for n in 0..groups {
            for bucket in (0..BRANCHES).map(|bucket| group(n) + bucket * BUCKET_BYTES as u64) {
                (0..ENTRIES as u64).for_each(|at| word(bucket + at * 8, entry));
            }
            word(group(n) + ENTRIES as u64 * 8, if n + 1 < groups { group(n + 1) } else { 0 });
        }
        if groups > 0 {
            (0..8).for_each(|index| word(last(index), group(0)));
        }
        for _ in 0..10 {
            memory.accesses.set(0);
            assert_eq!(put(&moved), Status::Ok);
            assert!(memory.accesses.get() < 6000, "{} accesses, {groups} overflow", memory.accesses.get());
        }
        let all = (0..8).all(|index| memory.word(last(index)) == MOVED | next.word());
        assert_eq!(all, groups < 100, "{groups}");
    }
}

/// Who moves a chain takes what was put in place of a tomb just before he locked it along.
#[test]
fn what_is_put_into_a_chain_that_is_about_to_be_moved_goes_with_it() {
    let mut put_before = 0;
    for turns in 0..120 {
        let memory = Stepped::growing(1, 256 << 10, 256 << 10);
        let (at, _, keys) = half_moved(&memory);
        let moving = keys(1).next().expect("half of them");
        let there: Vec<_> = keys(0).take(ENTRIES + 1).collect();
        let put = |key: &[u8]| run(&memory, op::KV_PUT, &params(at, key, b"value")).0;
        assert!(there[..ENTRIES].iter().all(|key| put(key) == Status::Ok));
        assert_eq!(run(&memory, op::KV_DELETE, &params(at, &there[0], &[])).0, Status::Ok);
        let mut mover = start(&memory, op::KV_PUT, &params(at, &moving, b"value"));
        let mut poll = || mover.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let is_over = (0..turns).any(|_| poll());
        let status = put(&there[ENTRIES]);
        // He gives up who finds the chain locked.
        assert!(matches!(status, Status::Ok | Status::Inconsistent), "{status:?}");
        while !is_over && !poll() {}
        put_before += u32::from(status == Status::Ok && !is_over);
        for key in &there[1..ENTRIES + usize::from(status == Status::Ok)] {
            let found = run(&memory, op::KV_GET, &params(at, key, &[]));
            assert_eq!(found, (Status::Ok, b"value".to_vec()), "after {turns} turns");
        }
    }
    assert!(put_before > 10, "{put_before}");
}

#[derive(Clone, Debug)]
enum Step {
    Put(u16, u16),
    Update(u16, u16),
    Delete(u16),
    Get(u16),
    /// Puts many.
    Fill(u16),
    /// Looks which table there is.
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..3000u16;
    prop_oneof![
        3 => (key.clone(), 0..700u16).prop_map(|(key, len)| Step::Put(key, len)),
        2 => (key.clone(), 0..700u16).prop_map(|(key, len)| Step::Update(key, len)),
        2 => key.clone().prop_map(Step::Delete),
        2 => key.clone().prop_map(Step::Get),
        2 => key.prop_map(Step::Fill),
        1 => Just(Step::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// However it grows, whichever table its callers know of, it is a map.
    #[test]
    fn a_store_that_grows_is_a_map(
        steps in prop::collection::vec(step(), 1..200),
        lg_buckets in 0..7u8,
        most in 17..24u32,
    ) {
        let memory = Stepped::growing(lg_buckets, 96 << 10, 1 << most);
        let (old, mut at, mut map) = (store(lg_buckets), store(lg_buckets), HashMap::<u16, Vec<u8>>::new());
        let key = |n: u16| [&n.to_le_bytes()[..], &vec![7; usize::from(n % 90)]].concat();
        let put = |map: &mut HashMap<_, _>, at, op, n, len: u16| {
            let value = vec![len as u8; len.into()];
            match run(&memory, op, &params(at, &key(n), &value)).0 {
                Status::Ok => drop(map.insert(n, value)),
                // It stays as it was.
                NO_ROOM => {}
                Status::NotFound if op == op::KV_UPDATE && !map.contains_key(&n) => {}
                other => panic!("{other:?}"),
            }
        };
        for step in steps {
            match step {
                Step::Put(n, len) => put(&mut map, at, op::KV_PUT, n, len),
                Step::Update(n, len) => put(&mut map, at, op::KV_UPDATE, n, len),
                Step::Fill(first) => (first..first + 200).for_each(|n| put(&mut map, at, op::KV_PUT, n, n % 50)),
                Step::Delete(n) => {
                    let ended = run(&memory, op::KV_DELETE, &params(at, &key(n), &[])).0;
                    prop_assert_eq!(ended, map.remove(&n).map_or(Status::NotFound, |_| Status::Ok));
                }
                Step::Get(n) => {
                    let wanted = map.get(&n).map_or((Status::NotFound, vec![]), |value| (Status::Ok, value.clone()));
                    prop_assert_eq!(run(&memory, op::KV_GET, &params(old, &key(n), &[])), wanted);
                }
                Step::Look => at = looked(&memory, at),
            }
        }
        for (n, value) in &map {
            prop_assert_eq!(&run(&memory, op::KV_GET, &params(at, &key(*n), &[])), &(Status::Ok, value.clone()));
            prop_assert_eq!(run(&memory, op::KV_GET, &params(old, &key(*n), &[])).0, Status::Ok);
        }
        prop_assert_eq!(entries(&|at| memory.word(at)).0.len(), map.len());
    }
    /// Whoever may write to a store may write anything there: calls end all the same, and the node lives.
    #[test]
    fn calls_end_on_whatever_a_store_says(
        words in prop::collection::vec((word_of_a_store(), any_word()), 0..40),
        calls in prop::collection::vec((0..6usize, 0..20u16, 0..700usize), 1..20),
    ) {
        let memory = Stepped::growing(1, 96 << 10, 128 << 10);
        for (at, word) in words {
            memory.memory.put(at, &word.to_le_bytes());
        }
        for (kind, key, len) in calls {
            let op = [op::KV_PUT, op::KV_UPDATE, op::KV_DELETE, op::KV_GET, op::KV_RESERVE, op::KV_RELEASE][kind];
            let (key, value) = (key.to_le_bytes(), vec![1; if kind < 2 { len } else { 0 }]);
            let mut out = Vec::new();
            let params = KvParams::new(store(1), hash(&key, 7), &key, &value);
            let block = KvValue::Block(len as u64 * 64 + HEADER_BYTES, 0);
            KvParams { value: if op == op::KV_RELEASE { block } else { params.value }, ..params }.encode(&mut out);
            run(&memory, op, &out);
        }
    }
}

/// The place of a word of the header, of a bucket, or of a block.
fn word_of_a_store() -> impl Strategy<Value = u64> {
    prop_oneof![0..90u64, 512..540u64, 540..2000u64].prop_map(|word| word * 8)
}

/// Any word, or one that leads somewhere.
fn any_word() -> impl Strategy<Value = u64> {
    let flag = prop_oneof![Just(0), Just(LOCK), Just(MOVED), Just(super::table::FROZEN), Just(1 << 42)];
    prop_oneof![any::<u64>(), Just(u64::MAX), 0..20u64, (flag, 0..5000u64).prop_map(|(flag, place)| flag | place << 5)]
}
