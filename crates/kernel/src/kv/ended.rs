//! Calls that are ended anywhere, as overdue ones or by a limit: what they leave is a whole store without locks, in which
//! every block is accounted for.

use super::slab::{class_bytes, slab};
use super::table::{FROZEN, ROOT, place};
use super::*;
use crate::memory::{Budget, Fault, Limits};
use crate::testing::Counted;
use crate::{Builtins, Call, Immediate, Kernel, Memory, op};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// Memory as a node's core reaches it: what can wait gives way, all else is done at once.
struct Near {
    memory: Counted,
    budget: Budget,
}

fn now<T>(access: impl Future<Output = T>) -> T {
    match pin!(access).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("an access that waits"),
    }
}

impl Memory for Near {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let mut waited = false;
        poll_fn(|_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        self.read_now(key, va, out)
    }

    async fn write(&self, _: u32, _: u64, _: &[u8]) -> Result<(), Fault> {
        panic!("a write that may wait")
    }

    async fn compare_swap(&self, _: u32, _: u64, _: u64, _: u64) -> Result<u64, Fault> {
        panic!("a compare-and-swap that may wait")
    }

    async fn fetch_add(&self, _: u32, _: u64, _: u64) -> Result<u64, Fault> {
        panic!("an addition that may wait")
    }

    fn set_limits(&self, limits: Limits) {
        self.budget.set(limits);
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }
}

impl Immediate for Near {
    fn read_now(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.budget.spend(out.len())?;
        now(self.memory.read(key, va, out))
    }

    fn write_now(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.budget.spend(data.len())?;
        now(self.memory.write(key, va, data))
    }

    fn compare_swap_now(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.budget.spend(8)?;
        now(self.memory.compare_swap(key, va, expect, new))
    }

    fn fetch_add_now(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.budget.spend(8)?;
        now(self.memory.fetch_add(key, va, n))
    }
}

const LEN: usize = 4096 + 64 + 6 * (64 << 10);
/// One chain, so that all meet.
const STORE: KvRef = KvRef::new(0, 1, 0);

/// A key's name. All go the same way from a full bucket.
fn name(key: u8) -> [u8; 2] {
    let mut names = (0..=u8::MAX).map(|other| [key, other]);
    names.find(|name| hash(name, 7) >> 48 & (BRANCHES - 1) == 0).expect("one in eight does")
}

#[derive(Clone, Copy, Debug)]
struct Ask(u64, u8, usize);

impl Ask {
    fn params(self) -> Vec<u8> {
        let (key, value, mut out) = (name(self.1), vec![self.2 as u8; self.2], Vec::new());
        let value = if matches!(self.0, op::KV_PUT | op::KV_UPDATE) { &value[..] } else { &[] };
        KvParams::new(STORE, hash(&key, 7), &key, value).encode(&mut out);
        out
    }
}

type Running<'a> = Pin<Box<dyn Future<Output = Status> + 'a>>;

fn start(memory: &Near, Ask(kernel, ..): Ask, params: Vec<u8>) -> Running<'_> {
    let mut call = Call::new(kernel, &params, 1 << 16);
    Box::pin(async move { Builtins.run(memory, &mut call).await })
}

fn poll(running: &mut Running<'_>) -> Option<Status> {
    match running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(status) => Some(status),
        Poll::Pending => None,
    }
}

fn run(memory: &Near, ask: Ask) -> Status {
    let mut running = start(memory, ask, ask.params());
    loop {
        if let Some(status) = poll(&mut running) {
            return status;
        }
    }
}

/// What a store has, of two buckets in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Tombs.
    Tombs,
    /// No tomb, and no empty entry.
    Full,
    /// As full, and the next bucket that overflows makes a larger table.
    Due,
}

const LOADS: [Load; 3] = [Load::Tombs, Load::Full, Load::Due];

/// A store with pairs of two lengths.
fn loaded(load: Load) -> Near {
    let near = Near { memory: Counted::new(LEN), budget: Budget::new(Limits::default()) };
    near.memory.put(0, &header(0, LEN as u64, 7).expect("room"));
    for key in 0..14 {
        assert_eq!(run(&near, Ask(op::KV_PUT, key, 20 + 60 * (key as usize % 2))), Status::Ok);
    }
    if load == Load::Due {
        near.memory.put(ROOT + 32, &15u64.to_le_bytes());
    }
    if load == Load::Tombs {
        for key in [1, 4, 13] {
            assert_eq!(run(&near, Ask(op::KV_DELETE, key, 0)), Status::Ok);
        }
    }
    near
}

/// The values' lengths by key.
///
/// # Panics
/// If something is locked, torn or lost.
fn audit(near: &Near) -> BTreeMap<u8, usize> {
    let word = |at: u64| u64::from_le_bytes(near.memory.get(at, 8).try_into().expect("a word"));
    let (mut pairs, mut bytes) = (BTreeMap::new(), 0);
    let (entries, overflows) = growing::entries(&word);
    for entry in entries {
        assert_eq!(entry & FROZEN, 0);
        let (block, class) = place(entry);
        let content = near.memory.get(block, class_bytes(class) as usize);
        let key = content[8];
        let value = value_in(&content, &name(key)).expect("a whole pair");
        assert!(content[value.clone()].iter().all(|&byte| usize::from(byte) == value.len()), "key {key}");
        assert_eq!(pairs.insert(key, value.len()), None, "key {key} has two entries");
        bytes += class_bytes(class);
    }
    bytes += overflows * BRANCHES * BUCKET_BYTES as u64;
    for class in 0..CLASSES {
        let (blocks, _) = slab(class);
        let at = 128 + u64::from(class) * 16;
        bytes += blocks.saturating_sub(word(at) & 0xff_ffff) * class_bytes(class) * u64::from(word(at) >> 24 != 0);
        let mut free = (word(at + 8) & ((1 << 42) - 1)) * 32;
        while free != 0 {
            bytes += class_bytes(class);
            free = (word(free + 8) & ((1 << 42) - 1)) * 32;
        }
    }
    let slabs = HEADER_BYTES + BUCKET_BYTES as u64;
    // No table has come, and taken room and what overflowed.
    if word(ROOT + 16) == STORE.table.word() {
        assert_eq!(bytes, word(64) - slabs, "bytes of blocks, and of slabs");
    }
    pairs
}

const ASKS: [Ask; 7] = [
    Ask(op::KV_PUT, 50, 30),
    Ask(op::KV_PUT, 50, 90),
    Ask(op::KV_PUT, 6, 30),
    Ask(op::KV_PUT, 6, 200),
    Ask(op::KV_UPDATE, 5, 100),
    Ask(op::KV_DELETE, 6, 0),
    Ask(op::KV_GET, 6, 0),
];

#[test]
fn a_call_that_is_ended_anywhere_leaves_a_whole_store() {
    for (load, ask) in LOADS.into_iter().flat_map(|load| ASKS.map(|ask| (load, ask))) {
        for polls in 0.. {
            let near = loaded(load);
            let before = audit(&near);
            let mut call = start(&near, ask, ask.params());
            let ended = (0..polls).any(|_| poll(&mut call).is_some());
            drop(call);
            let after = audit(&near);
            assert!(ended || after == before, "{ask:?} was ended, and did half of it");
            for again in ASKS {
                assert!(matches!(run(&near, again), Status::Ok | Status::NotFound), "{again:?} after {ask:?}");
                audit(&near);
            }
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_call_whose_limits_end_anywhere_leaves_a_whole_store() {
    for (ask, steps) in ASKS.into_iter().flat_map(|ask| (0..80).map(move |steps| (ask, steps))) {
        let near = loaded(LOADS[1 + steps as usize % 2]);
        near.budget.set(Limits { steps: steps / 2, bytes: 1 << 20 });
        let status = run(&near, ask);
        assert!(matches!(status, Status::Ok | Status::StepLimit), "{ask:?} in {steps}: {status:?}");
        near.budget.set(Limits::default());
        audit(&near);
    }
    // A chain without an end, while it is locked and before.
    let near = loaded(Load::Full);
    let last = HEADER_BYTES + ENTRIES as u64 * 8;
    let next = near.memory.get(last, 8);
    for n in 0..BRANCHES {
        let bucket = u64::from_le_bytes(next.clone().try_into().expect("a word")) + n * BUCKET_BYTES as u64;
        near.memory.put(bucket + ENTRIES as u64 * 8, &next);
    }
    assert_eq!(run(&near, ASKS[0]), Status::StepLimit);
    assert_eq!(near.memory.get(last, 8), next);
}

/// Who walks along a chain of several buckets sees no moment of all of it: what was no room when he began is taken by another
/// with the same key, and room is made behind it by a third.
#[test]
fn two_who_add_a_key_to_a_long_chain_make_one_entry_of_it() {
    let (added, third) = (Ask(op::KV_PUT, 50, 30), Ask(op::KV_PUT, 51, 30));
    for (polls, load) in (0..).flat_map(|polls| [(polls, Load::Due), (polls, Load::Full)]) {
        let near = loaded(load);
        // A tomb in the first bucket, and no room but that.
        assert_eq!(run(&near, Ask(op::KV_DELETE, 0, 0)), Status::Ok);
        let mut slow = start(&near, added, added.params());
        let ended = (0..polls).any(|_| poll(&mut slow).is_some());
        for ask in [added, third] {
            assert_eq!(run(&near, ask), Status::Ok);
        }
        while !ended && poll(&mut slow).is_none() {}
        assert_eq!(audit(&near).get(&50), Some(&30), "after {polls} polls");
        assert_eq!(run(&near, Ask(op::KV_DELETE, 50, 0)), Status::Ok);
        assert_eq!(run(&near, Ask(op::KV_GET, 50, 0)), Status::NotFound, "after {polls} polls");
        if ended && load == Load::Full {
            break;
        }
    }
}

/// All orders in which two calls give way to each other, either of which is ended at any of its turns.
#[test]
fn two_calls_at_once_of_which_one_is_ended_leave_a_whole_store() {
    let mut orders = 0;
    for (load, first, second) in
        LOADS.into_iter().flat_map(|load| ASKS.into_iter().flat_map(move |a| ASKS.map(|b| (load, a, b))))
    {
        // Turns of the first or the second call, and the end of the first.
        let mut way: Vec<u8> = Vec::new();
        loop {
            let near = loaded(load);
            let mut calls = [Some(start(&near, first, first.params())), Some(start(&near, second, second.params()))];
            let mut at = 0;
            while calls.iter().any(Option::is_some) {
                let may = |action: u8| calls[usize::from(action % 2)].is_some();
                if at == way.len() {
                    way.push((0..3).find(|&action| may(action)).expect("a call under way"));
                }
                let which = usize::from(way[at] % 2);
                let is_over = way[at] == 2 || calls[which].as_mut().is_none_or(|call| poll(call).is_some());
                if is_over {
                    calls[which] = None;
                }
                at += 1;
            }
            orders += 1;
            audit(&near);
            // The next order: the last turn that could have been another one is.
            let mut next = None;
            while let Some(action) = way.pop() {
                let (mut over, near) = ([false; 2], loaded(load));
                let mut calls = [start(&near, first, first.params()), start(&near, second, second.params())];
                for &done in &way {
                    over[usize::from(done % 2)] |= done == 2 || poll(&mut calls[usize::from(done % 2)]).is_some();
                }
                next = (action + 1..3).find(|other| !over[usize::from(other % 2)]);
                if let Some(other) = next {
                    way.push(other);
                    break;
                }
            }
            if next.is_none() {
                break;
            }
        }
    }
    println!("{orders} orders");
    assert!(orders > 1000);
}
