use super::*;
use crate::memory::Fault;
use crate::testing::Counted;
use crate::{Builtins, Call, Kernel, Limited, Limits, Memory, op};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Memory whose accesses wait for a turn each, and are counted.
pub(super) struct Stepped {
    pub memory: Counted,
    pub accesses: Cell<u32>,
    /// How long it may be.
    pub most: Cell<u64>,
}

impl Stepped {
    fn new(lg_buckets: u8, len: usize) -> Self {
        Self::growing(lg_buckets, len, len)
    }

    /// Of this length at first.
    pub fn growing(lg_buckets: u8, len: usize, most: usize) -> Self {
        let memory = Counted::new(most);
        memory.put(0, &header(lg_buckets, len as u64, 7).expect("room"));
        Self { memory, accesses: Cell::new(0), most: Cell::new(most as u64) }
    }

    pub fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.memory.get(at, 8).try_into().expect("a word"))
    }

    async fn step(&self) {
        self.accesses.set(self.accesses.get() + 1);
        let mut waited = false;
        poll_fn(|_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

impl Memory for Stepped {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        assert!(out.len() <= 64 << 10, "{} bytes at once", out.len());
        self.step().await;
        self.memory.read(key, va, out).await
    }

    /// In two halves, as others may see it.
    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.step().await;
        let (front, rest) = data.split_at(data.len() / 16 * 8);
        self.memory.write(key, va, front).await?;
        if !front.is_empty() {
            self.step().await;
            self.accesses.set(self.accesses.get() - 1);
        }
        self.memory.write(key, va + front.len() as u64, rest).await
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.step().await;
        self.memory.compare_swap(key, va, expect, new).await
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.step().await;
        self.memory.fetch_add(key, va, n).await
    }

    fn grow(&self, _: u32, end: u64) -> bool {
        end <= self.most.get()
    }
}

pub(super) fn store(lg_buckets: u8) -> KvRef {
    KvRef::new(0, 1, lg_buckets)
}

pub(super) fn params(store: KvRef, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    KvParams::new(store, hash(key, 7), key, value).encode(&mut out);
    out
}

type Ended = (Status, Vec<u8>);

type Running<'a> = Pin<Box<dyn Future<Output = Ended> + 'a>>;

pub(super) fn start<'a>(memory: &'a Stepped, op: u64, params: &[u8]) -> Running<'a> {
    let mut call = Call::new(op, params, 1 << 16);
    Box::pin(async move {
        let limited = Limited::new(memory, Limits::default());
        let status = Builtins.run(&limited, &mut call).await;
        (status, std::mem::take(&mut call.reply))
    })
}

pub(super) fn run(memory: &Stepped, op: u64, params: &[u8]) -> Ended {
    let mut call = start(memory, op, params);
    loop {
        if let Poll::Ready(ended) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return ended;
        }
    }
}

#[test]
fn classes_are_long_enough_and_no_longer_than_needed() {
    assert_eq!([64, 65, 96, 97, 128, 192].map(class_of), [0, 1, 1, 2, 2, 3].map(Some));
    for bytes in [1, 500, 4000, item_len(LONGEST_KEY, LONGEST_VALUE)] {
        let class = class_of(bytes).expect("a class");
        assert!(class_bytes(class) >= bytes as u64 && (class == 0 || class_bytes(class - 1) < bytes as u64));
    }
    assert_eq!(class_of(1 << 22), None);
}

#[test]
fn accesses_are_two_for_a_get_and_four_for_a_put() {
    let (memory, at) = (Stepped::new(10, 1 << 20), store(10));
    let key = |n: u32| format!("key {n}").into_bytes();
    let count = |op, value: &dyn Fn(u32) -> Vec<u8>| {
        memory.accesses.set(0);
        for n in 0..3000 {
            assert_eq!(run(&memory, op, &params(at, &key(n), &value(n))).0, Status::Ok);
        }
        f64::from(memory.accesses.get()) / 3000.0
    };
    let short = |n: u32| vec![n as u8; 40];
    let added = count(op::KV_PUT, &short);
    let changed = count(op::KV_PUT, &|n| vec![n as u8; 30 + n as usize % 10]);
    let got = count(op::KV_GET, &|_| Vec::new());
    println!("accesses: {added:.2} of a PUT that adds, {changed:.2} of one that changes, {got:.2} of a GET");
    assert!(added <= 4.2 && changed <= 4.1 && got <= 2.1);
}

#[test]
fn memory_that_is_used_up_refuses_and_what_is_freed_is_used_again() {
    let (memory, at) = (Stepped::new(2, 4096 + 256 + (64 << 10) * 3), store(2));
    let key = |n: u32| n.to_le_bytes();
    let put = |n: u32, len: usize| run(&memory, op::KV_PUT, &params(at, &key(n), &vec![n as u8; len])).0;
    let fill = |len: usize| (0..100_000).take_while(|&n| put(n, len) == Status::Ok).count();
    let filled = fill(300);
    assert!(filled > 150, "{filled}");
    assert_eq!([put(50_000, 300), put(50_000, 300), put(3, 280)], [NO_ROOM, NO_ROOM, Status::Ok]);
    for n in 0..filled as u32 {
        assert_eq!(run(&memory, op::KV_DELETE, &params(at, &key(n), &[])).0, Status::Ok);
        assert_eq!(run(&memory, op::KV_GET, &params(at, &key(n), &[])).0, Status::NotFound);
    }
    assert_eq!(fill(300), filled, "every block came back");
    assert_eq!(run(&memory, op::KV_GET, &params(at, &key(9), &[])), (Status::Ok, vec![9; 300]));
}

#[test]
fn a_long_pair_is_written_by_its_caller_and_then_put() {
    let (memory, at) = (Stepped::new(2, 4 << 20), store(2));
    let (key, value) = (b"long".as_slice(), vec![5; 300_000]);
    let hash = hash(key, 7);
    for (round, value) in [(0, &value[..]), (1, &value[..200_000])] {
        let mut reserve = Vec::new();
        let params = KvParams { value_len: value.len() as u32, ..KvParams::of_key(at, hash, key) };
        params.encode(&mut reserve);
        let (status, block) = run(&memory, op::KV_RESERVE, &reserve);
        assert_eq!(status, Status::Ok);
        let block = u64::from_le_bytes(block.try_into().unwrap());
        let (bytes, sum) = pair(key, value);
        memory.memory.put(block, &bytes);
        let mut put = Vec::new();
        KvParams { value: KvValue::Block(block, sum), ..params }.encode(&mut put);
        assert_eq!(run(&memory, op::KV_PUT, &put).0, Status::Ok, "{round}");
        let mut get = Vec::new();
        KvParams::of_key(at, hash, key).encode(&mut get);
        assert_eq!(run(&memory, op::KV_GET, &get).0, Status::ReplyTooLong);
        let (first, depth) = locate(at, hash, None).1.unwrap();
        let bucket = memory.memory.get(first, BUCKET_BYTES);
        let (blocks, next) = locate(at, hash, Some((&bucket.try_into().unwrap(), depth)));
        assert_eq!((blocks.len(), blocks[0].0, next), (1, block, None));
        let bytes = memory.memory.get(block, blocks[0].1 as usize);
        assert_eq!(&bytes[value_in(&bytes, key).unwrap()], value);
    }
}

/// Two keys of which entries say the same.
fn alike() -> [Vec<u8>; 2] {
    let mut seen = HashMap::new();
    (0u32..)
        .map(|n| n.to_le_bytes())
        .find_map(|key| seen.insert(hash(&key, 7) >> 48, key).map(|other| [other.to_vec(), key.to_vec()]))
        .expect("two of some hundreds")
}

#[test]
fn what_was_long_and_is_short_is_read_by_who_has_little_room_and_so_is_its_neighbour() {
    let (memory, at) = (Stepped::new(0, 8 << 20), store(0));
    let [long, short] = alike();
    let put = |key: &[u8], len: usize| run(&memory, op::KV_PUT, &params(at, key, &vec![3; len])).0;
    let get = |key: &[u8]| run(&memory, op::KV_GET, &params(at, key, &[]));
    assert_eq!([put(&long, 1 << 20), put(&short, 20)], [Status::Ok; 2]);
    assert_eq!(get(&long).0, Status::ReplyTooLong);
    assert_eq!(get(&short), (Status::Ok, vec![3; 20]), "another's pair is too long, and not this one");
    assert_eq!(run(&memory, op::KV_DELETE, &params(at, &short, &[])).0, Status::Ok);
    assert_eq!(get(&short).0, Status::NotFound);
    for len in [500_000, 5] {
        assert_eq!(put(&long, len), Status::Ok);
    }
    assert_eq!(get(&long), (Status::Ok, vec![3; 5]));
    // However it was changed: who has just enough room reads it.
    let mut len = 0;
    for next in (0..400).map(|n: usize| n * n * 7919 % 60_000) {
        len = if next % 3 == 0 { len / 2 + 1 } else { next };
        assert_eq!(put(&long, len), Status::Ok);
        let mut call = Call::new(op::KV_GET, &params(at, &long, &[]), len as u32);
        let mut running = Box::pin(Builtins.run(&memory, &mut call));
        while running.as_mut().poll(&mut Context::from_waker(Waker::noop())) != Poll::Ready(Status::Ok) {}
        drop(running);
        assert_eq!(call.reply, vec![3; len]);
    }
}

#[test]
fn a_pair_in_a_reserved_block_is_nobodys_until_it_is_put() {
    let (bytes, sum) = pair(b"key", b"value");
    assert_eq!(value_in(&bytes, b"key"), Err(true));
    let whole = [&bytes[..bytes.len() - 8], &sum.to_le_bytes()].concat();
    assert_eq!(value_in(&whole, b"key").map(|value| &whole[value]), Ok(&b"value"[..]));
}

#[test]
fn a_reservation_without_room_for_its_answer_takes_nothing() {
    let (memory, at) = (Stepped::new(0, 1 << 20), store(0));
    let before = memory.memory.get(0, 4096);
    let mut call = Call::new(op::KV_RESERVE, &params(at, b"key", &[]), 7);
    let mut running = Box::pin(Builtins.run(&memory, &mut call));
    assert_eq!(running.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Status::ReplyTooLong));
    drop(running);
    assert_eq!(memory.memory.get(0, 4096), before);
}

#[test]
fn a_call_keeps_no_room_for_the_longest_pair_that_it_looked_at() {
    let (memory, at, long) = (Stepped::new(0, 4 << 20), store(0), vec![1; 300_000]);
    for (op, value) in [(op::KV_PUT, &long[..]), (op::KV_PUT, &long), (op::KV_UPDATE, b"short"), (op::KV_DELETE, &[])] {
        let mut call = Call::new(op, &params(at, b"key", value), 1 << 16);
        let mut running = Box::pin(Builtins.run(&memory, &mut call));
        let status = loop {
            if let Poll::Ready(status) = running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                break status;
            }
        };
        drop(running);
        assert_eq!(status, Status::Ok);
        assert!(call.reply.capacity() <= 1 << 16, "{} bytes after {op}", call.reply.capacity());
    }
}

/// A pair is taken away and put anew with the same value while somebody else is about to take it away or to move it: it lies
/// in the same block and has the same checksum, and its entry is another.
#[test]
fn a_pair_that_is_put_anew_is_not_taken_for_the_one_that_was_there() {
    let (at, key, short, long) = (store(0), b"key".as_slice(), vec![7; 30_000], vec![8; 40_000]);
    let mut met = 0;
    for op in [op::KV_PUT, op::KV_UPDATE, op::KV_DELETE] {
        for turns in 0..20 {
            let memory = Stepped::new(0, 1 << 20);
            let put = |value: &[u8]| run(&memory, op::KV_PUT, &params(at, key, value)).0;
            let get = || run(&memory, op::KV_GET, &params(at, key, &[]));
            let delete = || run(&memory, op::KV_DELETE, &params(at, key, &[])).0;
            // A slab has two blocks of this length: the next one that is wanted is one that was given back.
            assert_eq!(run(&memory, op::KV_PUT, &params(at, b"other", &short)).0, Status::Ok);
            assert_eq!(put(&short), Status::Ok);
            let value = if op == op::KV_DELETE { &[] } else { &long[..] };
            let mut first = start(&memory, op, &params(at, key, value));
            let mut poll = || first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let over = (0..turns).find_map(|_| match poll() {
                Poll::Ready(ended) => Some(ended),
                Poll::Pending => None,
            });
            // Who finds the pair locked gives up, and has done nothing.
            let anew = delete() == Status::Ok && put(&short) == Status::Ok;
            let is_over = over.is_some();
            let (status, _) = over.unwrap_or_else(|| {
                loop {
                    if let Poll::Ready(ended) = poll() {
                        break ended;
                    }
                }
            });
            assert_eq!(status, Status::Ok, "{op} after {turns} turns");
            met += u32::from(anew && !is_over);
            // Whichever was last; who changes a pair may be done but for giving the old block back.
            let (found, value) = get();
            let is_last = match op {
                op::KV_DELETE => found == Status::NotFound,
                _ => found == Status::Ok && value == long,
            };
            assert!(
                is_last || (anew && (found, &value) == (Status::Ok, &short)),
                "{op} after {turns} turns: {found:?}"
            );
            // No other entry has its block, or comes to it.
            assert_eq!(delete(), found, "{op} after {turns} turns");
            assert_eq!((get().0, put(&long), put(&short)), (Status::NotFound, Status::Ok, Status::Ok));
            assert!(get() == (Status::Ok, short.clone()));
        }
    }
    assert!(met > 10, "{met}");
}

/// What a caller asks for and hears, and when.
#[derive(Clone, Debug)]
struct Done {
    op: u64,
    value: Vec<u8>,
    began: usize,
    ended: usize,
    outcome: Ended,
}

/// Whether some order of these, which keeps what was over before something began, explains all answers.
fn is_linearizable(calls: &[Done]) -> bool {
    // Which of them are done, and the value that there is then.
    let (mut seen, mut todo) = (HashSet::new(), vec![(0u64, None::<&[u8]>)]);
    while let Some((done, state)) = todo.pop() {
        if done.count_ones() as usize == calls.len() {
            return true;
        }
        if !seen.insert((done, state)) {
            continue;
        }
        let left = || (0..calls.len()).filter(|at| done >> at & 1 == 0);
        let first_end = left().map(|at| calls[at].ended).min().unwrap_or(0);
        for at in left().filter(|at| calls[*at].began <= first_end) {
            let Done { op, value, outcome: (status, reply), .. } = &calls[at];
            let ok = *status == Status::Ok;
            let (fits, next) = match *op {
                op::KV_GET => (state == ok.then_some(&reply[..]), state),
                op::KV_DELETE => (ok == state.is_some(), None),
                op::KV_UPDATE => (ok == state.is_some(), if ok { Some(&value[..]) } else { state }),
                _ => (ok, Some(&value[..])),
            };
            if fits {
                todo.push((done | 1 << at, next));
            }
        }
    }
    false
}

const OPS: [u64; 5] = [op::KV_PUT, op::KV_PUT, op::KV_UPDATE, op::KV_DELETE, op::KV_GET];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Calls of few keys in one chain or a few, some at once and in steps of any order, of which some may move chains
    /// to a larger table: each key's answers have an order.
    #[test]
    fn calls_at_once_are_as_one_after_the_other(
        calls in prop::collection::vec((0..OPS.len(), 0..6u8, 0..150usize), 1..60),
        // Which of those under way goes on, by how many accesses.
        turns in prop::collection::vec((0..4usize, 1..16u8), 100..500),
        (lg_buckets, crowded) in (0..2u8).prop_flat_map(|lg| (Just(lg), 0..12u8 << (2 * lg))),
        grows: bool,
    ) {
        let (memory, at) = (Stepped::growing(lg_buckets, 300 << 10, 1 << 20), store(lg_buckets));
        // Keys that fill the chain's first buckets, and tombs between them.
        for n in 0..crowded {
            run(&memory, op::KV_PUT, &params(at, &[n, 9], b"crowd"));
        }
        for n in (0..crowded).step_by(3) {
            run(&memory, op::KV_DELETE, &params(at, &[n, 9], &[]));
        }
        if grows {
            growing::make_due(&memory);
        }
        let mut waiting = calls.into_iter().enumerate();
        let mut under_way: Vec<(u8, Done, Running<'_>)> = Vec::new();
        let mut done: BTreeMap<u8, Vec<Done>> = BTreeMap::new();
        let mut turns = turns.into_iter().cycle();
        for now in 0.. {
            prop_assert!(now < 1_000_000, "calls end");
            while under_way.len() < 4 && let Some((number, (op, key, len))) = waiting.next() {
                let value = vec![number as u8; len];
                let call = start(&memory, OPS[op], &params(at, &[key], &value));
                let done = Done { op: OPS[op], value, began: now, ended: 0, outcome: (Status::Ok, Vec::new()) };
                under_way.push((key, done, call));
            }
            if under_way.is_empty() {
                break;
            }
            let (turn, accesses) = turns.next().unwrap_or((0, 1));
            let turn = turn % under_way.len();
            let mut poll = || under_way[turn].2.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Some(Poll::Ready(outcome)) = (0..accesses).map(|_| poll()).find(Poll::is_ready) {
                let (key, ended, _) = under_way.swap_remove(turn);
                // Who gave up has changed nothing.
                if outcome.0 != Status::Inconsistent {
                    done.entry(key).or_default().push(Done { ended: now, outcome, ..ended });
                }
            }
        }
        for (key, done) in done {
            prop_assert!(is_linearizable(&done), "key {key}: {done:?}");
        }
        // No key has two entries, and all that there is is found.
        let mut found: HashMap<Vec<u8>, u32> = HashMap::new();
        for entry in growing::entries(&|at| memory.word(at)).0 {
            let (block, _) = table::place(entry);
            let len = memory.memory.get(block, 8)[0] as usize;
            *found.entry(memory.memory.get(block + 8, len)).or_default() += 1;
        }
        for (key, entries) in found {
            prop_assert_eq!(entries, 1, "{:?}", key);
            prop_assert_eq!(run(&memory, op::KV_GET, &params(at, &key, &[])).0, Status::Ok);
        }
    }

    #[test]
    fn parameters_are_read_as_written_and_others_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), block: u64, sum: u64) {
        let at = store(20);
        for value in [KvValue::Bytes(&bytes), KvValue::Block(block, sum)] {
            let wanted = KvParams { value, ..KvParams::new(at, 77, b"key", &bytes) };
            let mut out = Vec::new();
            wanted.encode(&mut out);
            prop_assert_eq!(KvParams::decode(&out, true), Ok(wanted));
            prop_assert!((0..out.len()).all(|len| KvParams::decode(&out[..len], true).is_err()));
        }
        let _ = KvParams::decode(&bytes, false);
        let _ = value_in(&bytes, b"key");
    }
}

/// A pair goes to another block and back while somebody looks for it, and another pair lies in its block meanwhile.
#[test]
fn a_pair_that_goes_away_and_back_is_never_missed() {
    let (at, key, there, back) = (store(0), b"key".as_slice(), vec![7; 30], vec![8; 300]);
    for (first, second) in (0..8).flat_map(|first| (0..8).map(move |second| (first, second))) {
        let memory = Stepped::new(0, 1 << 20);
        let put = |key: &[u8], value: &[u8]| run(&memory, op::KV_PUT, &params(at, key, value)).0;
        // So many that blocks of this length are taken from those that were given back.
        for n in 0..1100u32 {
            assert_eq!(put(&n.to_le_bytes(), &there), Status::Ok);
            run(&memory, op::KV_DELETE, &params(at, &n.to_le_bytes(), &[]));
        }
        assert_eq!(put(key, &there), Status::Ok);
        let mut get = start(&memory, op::KV_GET, &params(at, key, &[]));
        let mut poll = |turns| {
            (0..turns).find_map(|_| match get.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready((status, _)) => Some(status),
                Poll::Pending => None,
            })
        };
        let mut ended = poll(first);
        assert_eq!([put(key, &back), put(b"another", &there)], [Status::Ok; 2]);
        ended = ended.or_else(|| poll(second));
        assert_eq!(run(&memory, op::KV_DELETE, &params(at, b"another", &[])).0, Status::Ok);
        assert_eq!(put(key, &there), Status::Ok);
        ended = ended.or_else(|| poll(1000));
        assert_eq!(ended, Some(Status::Ok), "after {first} and {second} turns");
    }
}
