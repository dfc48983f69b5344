//! Look-ups of one client, side by side.
//!
//! Such a call is little more than where it is: a line of numbers, and no state within states. What every access of every call
//! would find out, which region a key names, is found out once a turn.

use crate::builtins::op;
use crate::call::{Call, Status};
use crate::get::Get;
use crate::host::{HostMemory, METERED_BYTES, PREFETCH_BYTES};
use crate::kv::{Find, Rewrite};
use crate::memory::{Limits, PIECE};
use crate::pool::{Beside, POLL};
use crate::steps::{Held, LINE, Read, Steps, Stop};
use crate::traversal::Traversal;
use remora_memory::{Access, Pd, Region};
use std::collections::VecDeque;

/// Calls that have begun, at most: enough to wait for memory side by side, and few enough that all they touch stays close to
/// the core.
const BEGUN: usize = 32;

/// Calls of one client, in one protection domain.
#[derive(Default)]
pub(crate) struct Lanes {
    pd: Option<Pd>,
    waiting: VecDeque<Call>,
    /// How many have begun.
    begun: usize,
    gets: Lane<Get>,
    traversals: Lane<Traversal>,
    finds: Lane<Find>,
    rewrites: Lane<Rewrite>,
}

/// Calls of one kernel that have begun.
struct Lane<S> {
    walks: Vec<Walk<S>>,
    ending: Vec<Ending>,
}

impl<S> Default for Lane<S> {
    fn default() -> Self {
        Lane { walks: Vec::new(), ending: Vec::new() }
    }
}

/// A call on its way.
struct Walk<S> {
    /// None once it has gone to those that end.
    call: Option<Call>,
    steps: S,
    /// What it has asked for.
    at: Place,
    /// What it may still read.
    accesses: u32,
    bytes: u64,
    /// Bytes that its reply may have.
    room: u32,
}

/// A call that has asked for its reply, or fails.
struct Ending {
    call: Call,
    reply: Place,
    fails: Option<Stop>,
}

#[derive(Clone, Copy)]
struct Place {
    va: u64,
    key: u32,
    len: u32,
}

/// What a call does next.
enum Next {
    Walks,
    Ends,
    Fails(Stop),
}

impl Lanes {
    /// Whether a call belongs here: of which domain it is to be.
    #[inline(always)]
    pub fn takes(&self, call: &Call) -> Option<Pd> {
        let fits = |pd: &Pd| self.pd == Some(*pd) || self.is_empty();
        call.pd.filter(|pd| {
            matches!(call.op, op::GET | op::TRAVERSAL | op::KV_GET | op::KV_PUT | op::KV_UPDATE) && fits(pd)
        })
    }

    /// Takes in a call that belongs here, and asks for what it reads first if it is to begin. Returns what that cost.
    #[inline(always)]
    pub fn start(&mut self, call: Call, memory: &HostMemory, limits: Limits) -> i64 {
        self.pd = call.pd;
        if self.begun >= BEGUN || !self.waiting.is_empty() {
            self.waiting.push_back(call);
            return 0;
        }
        let mut reads = Reads::new(memory);
        self.begin(call, limits, &mut reads);
        reads.work
    }

    #[inline(always)]
    fn begin(&mut self, call: Call, limits: Limits, reads: &mut Reads<'_>) {
        self.begun += 1;
        match call.op {
            op::GET => self.gets.begin(call, limits, reads),
            op::KV_GET => self.finds.begin(call, limits, reads),
            op::KV_PUT | op::KV_UPDATE => self.rewrites.begin(call, limits, reads),
            _ => self.traversals.begin(call, limits, reads),
        }
    }

    #[inline(never)]
    fn begin_waiting(&mut self, limits: Limits, reads: &mut Reads<'_>) {
        while self.begun < BEGUN
            && let Some(call) = self.waiting.pop_front()
        {
            self.begin(call, limits, reads);
        }
    }

    /// The domain, while there are calls.
    #[inline]
    pub fn pd(&self) -> Option<Pd> {
        self.pd.filter(|_| !self.is_empty())
    }

    /// Polls the calls, each about once, until `balance` is spent. Returns what is left of it, and what of it was not for
    /// polls.
    #[inline]
    pub fn poll(
        &mut self,
        (memory, limits): (&HostMemory, Limits),
        mut balance: i64,
        ended: &mut impl FnMut(Call, Result<(), Stop>),
    ) -> (i64, i64) {
        let mut reads = Reads::new(memory);
        // So many polls are each call's, about once.
        let last = balance - self.len() as i64 * POLL;
        loop {
            self.begun -= self.gets.poll(&mut reads, &mut balance, ended);
            self.begun -= self.traversals.poll(&mut reads, &mut balance, ended);
            self.begun -= self.finds.poll(&mut reads, &mut balance, ended);
            self.begun -= self.rewrites.poll(&mut reads, &mut balance, ended);
            if !self.waiting.is_empty() {
                self.begin_waiting(limits, &mut reads);
            }
            let others_run = memory.prefetches() && (self.waiting.is_empty() || balance <= last);
            if others_run || balance <= reads.work || self.is_empty() {
                return (balance - reads.work, reads.work);
            }
        }
    }
}

/// How many polls a balance is for.
#[inline]
fn polls(balance: i64) -> usize {
    usize::try_from((balance + POLL - 1) / POLL).unwrap_or(0)
}

impl<S: Steps> Lane<S> {
    /// Begins a call.
    #[inline(always)]
    fn begin(&mut self, call: Call, limits: Limits, reads: &mut Reads<'_>) {
        let Self { walks, ending } = self;
        let Limits { steps: accesses, bytes } = limits;
        let room = if S::ENDS { u32::MAX } else { call.reply_room() as u32 };
        let reply = Place { va: 0, key: 0, len: 0 };
        let (steps, read) = match S::begin(&call.params) {
            Ok(begun) => begun,
            Err(stop) => return ending.push(Ending { call, reply, fails: Some(stop) }),
        };
        let mut walk = Walk { call: None, steps, at: reply, accesses, bytes, room };
        match walk.ask(&read, reads) {
            Next::Walks => {
                walk.call = Some(call);
                walks.push(walk);
            }
            Next::Ends => ending.push(Ending { call, reply: walk.at, fails: None }),
            Next::Fails(stop) => ending.push(Ending { call, reply, fails: Some(stop) }),
        }
    }

    /// Lets calls go on, each once, until `balance` is spent: first those that end, as they have waited longest. Returns how
    /// many have ended.
    #[inline(always)]
    fn poll(
        &mut self,
        reads: &mut Reads<'_>,
        balance: &mut i64,
        ended: &mut impl FnMut(Call, Result<(), Stop>),
    ) -> usize {
        let count = self.ending.len().min(polls(*balance));
        *balance -= count as i64 * POLL;
        for Ending { mut call, reply, fails } in self.ending.drain(..count) {
            let result = match fails {
                Some(stop) => Err(stop),
                None => reads.reply::<S>(reply, &mut call),
            };
            ended(call, result);
        }
        if !self.walks.is_empty() {
            self.walk(reads, balance);
        }
        count
    }

    #[inline(always)]
    fn walk(&mut self, reads: &mut Reads<'_>, balance: &mut i64) {
        let Self { walks, ending } = self;
        let most = walks.len().min(polls(*balance));
        let (mut polled, mut stay) = (0, 0);
        for walk in &mut walks[..most] {
            // Long reads of other lanes leave each one step.
            if polled > 0 && reads.work >= *balance {
                break;
            }
            (polled, *balance) = (polled + 1, *balance - POLL);
            let fails = match walk.go_on(reads) {
                Next::Walks => {
                    stay += 1;
                    continue;
                }
                Next::Ends => None,
                Next::Fails(stop) => Some(stop),
            };
            if let Some(call) = walk.call.take() {
                ending.push(Ending { call, reply: walk.at, fails });
            }
        }
        if stay == 0 && polled == walks.len() {
            walks.clear();
        } else if polled < walks.len() || stay < polled {
            // Who was not polled is first next time.
            walks.retain(|walk| walk.call.is_some());
            walks.rotate_left(stay);
        }
    }

    fn cancel(&mut self, tag: u64) -> bool {
        let walks = self.walks.iter().position(|walk| walk.call.as_ref().is_some_and(|call| call.tag == tag));
        let ending = self.ending.iter().position(|ending| ending.call.tag == tag);
        walks.map(|at| self.walks.remove(at)).is_some() || ending.map(|at| self.ending.remove(at)).is_some()
    }
}

impl<S: Steps> Walk<S> {
    /// Makes the read that was asked for, and asks for the next.
    #[inline(always)]
    fn go_on(&mut self, reads: &mut Reads<'_>) -> Next {
        let mut line = [0; LINE];
        let there = match self.at.len as usize {
            // Of a length that the compiler knows.
            LINE => reads.bring(self.at, &mut line),
            len => reads.bring(self.at, &mut line[..len]),
        };
        if !there {
            return Next::Fails(Status::AccessDenied.into());
        }
        match self.steps.next(&line) {
            Ok(read) => self.ask(&read, reads),
            Err(status) => Next::Fails(status),
        }
    }

    /// Pays for the next read, and asks for its bytes.
    #[inline(always)]
    fn ask(&mut self, &Read { va, key, len, last }: &Read, reads: &mut Reads<'_>) -> Next {
        if last && len > self.room {
            return Next::Fails(Status::ReplyTooLong.into());
        }
        if last && len as usize > PIECE {
            // It is read in pieces, between which others run.
            return Next::Fails(Stop::Apart);
        }
        // A kernel that makes more of its reads says by itself how it ends without them.
        let ends = |status| Next::Fails(if S::ENDS { Stop::Apart } else { Stop::Ends(status) });
        if self.accesses == 0 {
            return ends(Status::StepLimit);
        }
        if u64::from(len) > self.bytes {
            return ends(Status::ByteLimit);
        }
        self.accesses -= 1;
        self.bytes -= u64::from(len);
        self.at = Place { va, key, len };
        match reads.ask(self.at, last) {
            false => Next::Fails(Status::AccessDenied.into()),
            true if last => Next::Ends,
            true => Next::Walks,
        }
    }
}

impl Beside for Lanes {
    #[inline(always)]
    fn len(&self) -> usize {
        self.begun + self.waiting.len()
    }

    fn cancel(&mut self, tag: u64) -> bool {
        if let Some(at) = self.waiting.iter().position(|call| call.tag == tag) {
            return self.waiting.remove(at).is_some();
        }
        let began =
            self.gets.cancel(tag) || self.traversals.cancel(tag) || self.finds.cancel(tag) || self.rewrites.cancel(tag);
        self.begun -= usize::from(began);
        began
    }
}

/// The memory as the calls of one turn read it.
struct Reads<'m> {
    memory: &'m HostMemory,
    /// The regions that were read last, on the way and for a reply.
    way: Known<'m>,
    replies: Known<'m>,
    /// What long reads cost, in half nanoseconds.
    work: i64,
}

/// A region that was found.
#[derive(Clone, Copy)]
struct Known<'m> {
    key: u32,
    region: Option<&'m Region>,
}

impl<'m> Known<'m> {
    /// The region of a key that may be read, which may be another than at the last step: unless the memory has no room to
    /// remember it, or there is none.
    #[inline(always)]
    fn find(&mut self, memory: &'m HostMemory, key: u32) -> Option<&'m Region> {
        if self.region.is_none() || self.key != key {
            let may = |region: &&Region| region.access().contains(Access::REMOTE_READ);
            *self = Known { key, region: memory.remembered(key).filter(may) };
        }
        self.region
    }
}

impl<'m> Reads<'m> {
    #[inline(always)]
    fn new(memory: &'m HostMemory) -> Self {
        let known = Known { key: 0, region: None };
        Reads { memory, way: known, replies: known, work: 0 }
    }

    /// Asks for bytes. False if they may not be read.
    #[inline(always)]
    fn ask(&mut self, Place { va, key, len }: Place, last: bool) -> bool {
        let len = len as usize;
        if len >= METERED_BYTES {
            self.work += len as i64 / 8;
        }
        let known = if last { &mut self.replies } else { &mut self.way };
        // A read of no bytes names no memory.
        if len > 0
            && let Some(region) = known.find(self.memory, key)
        {
            let most = if self.memory.prefetches() { PREFETCH_BYTES } else { 0 };
            return region.ask((self.memory.pd(), Access::REMOTE_READ), va, len, most).is_ok();
        }
        true
    }

    /// Brings bytes on the way that were asked for. False if they may not be read any more.
    #[inline(always)]
    fn bring(&mut self, at: Place, out: &mut [u8]) -> bool {
        read(self.memory, &mut self.way, at, out)
    }

    /// Brings what a call ends with, which was asked for.
    #[inline(always)]
    fn reply<S: Steps>(&mut self, at: Place, call: &mut Call) -> Result<(), Stop> {
        let len = at.len as usize;
        let there = if len == LINE && !S::ENDS {
            let mut line = [0; LINE];
            let there = read(self.memory, &mut self.replies, at, &mut line);
            call.reply.extend_from_slice(&line);
            there
        } else {
            if !S::ENDS && len > call.reply_room() {
                return Err(Status::ReplyTooLong.into());
            }
            let start = call.reply.len();
            call.reply.resize(start + len, 0);
            read(self.memory, &mut self.replies, at, &mut call.reply[start..])
        };
        if !there {
            return Err(Status::AccessDenied.into());
        }
        if !S::ENDS {
            return Ok(());
        }
        if len >= METERED_BYTES {
            // It is looked through once more.
            self.work += len as i64 / 4;
        }
        match self.replies.find(self.memory, at.key) {
            Some(region) => S::end(call, &Held { region, pd: self.memory.pd(), va: at.va }),
            None => Err(Stop::Apart),
        }
    }
}

#[inline(always)]
fn read<'m>(memory: &'m HostMemory, known: &mut Known<'m>, Place { va, key, .. }: Place, out: &mut [u8]) -> bool {
    if out.is_empty() {
        return true;
    }
    match known.find(memory, key) {
        Some(region) => region.read(va, out).is_ok(),
        None => memory.read_unremembered(key, va, out).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{self, KvParams, KvRef};
    use crate::{Builtins, ConsistencyParams, GetParams, Kernel, TraversalParams, host_runner};
    use proptest::prelude::*;
    use remora_memory::{Buffer, Registry};
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    /// Two domains with a region each, of entries that lead to one another and to bytes anywhere.
    fn places(words: &[u64]) -> (Arc<Registry>, [(Pd, Arc<Region>); 2]) {
        let registry = Arc::new(Registry::new([4; 32]));
        let places = [0, 1].map(|turn| {
            let mut words = words.to_vec();
            words.rotate_left(turn * 8);
            let buffer = Buffer::from_boxed(words.iter().flat_map(|word| word.to_le_bytes()).collect());
            let pd = registry.alloc_pd();
            let region = registry.register(pd, &buffer, 0, buffer.len(), Some(0), Access::all());
            (pd, region.unwrap())
        });
        (registry, places)
    }

    fn ended(call: &Call, status: Status) -> (Status, Vec<u8>) {
        (status, if status == Status::Ok { call.reply.clone() } else { Vec::new() })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// However many there are, of whom and in which domain, and whichever of them are cancelled when: each ends once, as
        /// its kernel says.
        #[test]
        fn many_calls_end_as_each_would_alone(
            words in prop::collection::vec(prop_oneof![Just(0u64), 0u64..5, 0u64..600, Just(64u64 << 32 | 64), any::<u64>()], 64),
            calls in prop::collection::vec((0u8..3, 0u64..600, 0u64..5, 0u32..9, 0u32..3, 0usize..2), 1..150),
            cancels in prop::collection::vec((0u64..150, 0usize..20), 0..8),
            limits in prop_oneof![Just(Limits::default()), (1u32..6, 60u64..400).prop_map(|(steps, bytes)| Limits { steps, bytes })],
            prefetching in any::<bool>(),
        ) {
            let (registry, places) = places(&words);
            let make = |tag: usize| {
                let (kind, va, key, index, client, place) = calls[tag];
                let (pd, region) = &places[place];
                let key_of = region.key();
                let mut call = match kind {
                    0 => {
                        let params = TraversalParams::list(va, key, 64, key_of, key_of);
                        Call::new(op::TRAVERSAL, &params.encode(), 64)
                    }
                    _ => {
                        let params = GetParams { entries: va & !7, key, index, entries_key: key_of, values_key: key_of };
                        Call::new(op::GET, &params.encode()[..28 - usize::from(va == 0)], 100)
                    }
                };
                (call.pd, call.tag, call.client) = (Some(*pd), tag as u64, client);
                call
            };
            let mut runner = host_runner(registry.clone(), prefetching, 100, limits);
            let (mut started, mut results, mut cancelled) = (0, HashMap::new(), 0);
            for turn in 0.. {
                while started < calls.len() && runner.in_flight() < runner.capacity() {
                    prop_assert!(runner.start(make(started)).is_ok());
                    started += 1;
                }
                for (tag, _) in cancels.iter().filter(|(_, at)| *at == turn) {
                    let there = (*tag as usize) < started && !results.contains_key(tag);
                    prop_assert_eq!(runner.cancel(*tag), there);
                    if there {
                        cancelled += 1;
                        results.insert(*tag, None);
                    }
                }
                let before = runner.in_flight();
                let mut again = false;
                let count = runner.poll(&mut |call, status| {
                    again |= results.insert(call.tag, Some(ended(&call, status))).is_some();
                });
                prop_assert!(!again, "a call ended twice, or was cancelled");
                prop_assert_eq!(runner.in_flight() + count, before);
                if started == calls.len() && runner.in_flight() == 0 {
                    break;
                }
                prop_assert!(turn < 100_000);
            }
            prop_assert_eq!(results.len(), calls.len());
            prop_assert_eq!(results.values().filter(|result| result.is_none()).count(), cancelled);
            for (tag, result) in results.into_iter().filter_map(|(tag, result)| Some((tag, result?))) {
                let expected = alone(&registry, make(tag as usize), limits);
                prop_assert_eq!(result, expected, "call {}", tag);
            }
        }
    }

    /// How a call ends in a runner that has nothing else.
    fn in_runner(registry: &Arc<Registry>, call: Call, (prefetching, limits): (bool, Limits)) -> (Status, Vec<u8>) {
        let mut runner = host_runner(registry.clone(), prefetching, 1, limits);
        assert!(runner.start(call).is_ok());
        let mut result = None;
        while result.is_none() {
            let ends = runner.poll(&mut |call, status| result = Some(ended(&call, status)));
            assert_eq!((ends, runner.in_flight()), if result.is_some() { (1, 0) } else { (0, 1) });
        }
        result.unwrap()
    }

    /// How it ends by its kernel's future.
    fn alone(registry: &Arc<Registry>, mut call: Call, limits: Limits) -> (Status, Vec<u8>) {
        let mut memory = HostMemory::new(registry.clone(), call.pd.unwrap(), false, limits);
        let mut run = Box::pin(Builtins.run(&memory, &mut call));
        let Poll::Ready(status) = run.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
        drop(run);
        let status = memory.settle(status);
        ended(&call, status)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

        /// Pairs are found and written in chains of few buckets and many, short and long ones, whatever anyone has made of the
        /// store, as the kernels' futures find and write them: all bytes are the same afterwards.
        #[test]
        fn pairs_are_found_and_written_as_their_kernels_do_it(
            lengths in prop::collection::vec(prop_oneof![4 => 0usize..200, 1 => 3000usize..6000], 0..80),
            asked in prop::collection::vec((0u8..4, 0u64..90, 0usize..250, prop_oneof![Just(1u32 << 16), 0u32..300]), 1..40),
            changes in prop::collection::vec((512usize..1100, any::<u64>()), 0..3),
            how in (any::<bool>(), any::<bool>(), prop_oneof![4 => Just(Access::all()), 1 => Just(Access::REMOTE_READ)]),
            few in prop_oneof![2 => Just(None), 1 => (0u32..6, 0u64..400).prop_map(Some)],
        ) {
            let (moved, prefetching, access) = how;
            let limits = few.map_or(Limits::default(), |(steps, bytes)| Limits { steps, bytes });
            let len = 1 << 20;
            let call = |(op, key, room): (u64, u64, u32), value: &[u8], pd| {
                let (key_of, key) = (key, key.to_le_bytes());
                let mut params = Vec::new();
                let at = KvRef::new(0, 0, 2);
                KvParams::new(at, kv::hash(&key, 7), &key, value).encode(&mut params);
                let mut call = Call::new(op, &params, room);
                (call.pd, call.tag) = (Some(pd), key_of);
                call
            };
            let stores = [(); 2].map(|()| {
                let registry = Arc::new(Registry::new([4; 32]));
                let (pd, buffer) = (registry.alloc_pd(), Buffer::anonymous(len).unwrap());
                let region = registry.register(pd, &buffer, 0, len, Some(0), Access::all()).unwrap();
                region.write(0, &kv::header(2, len as u64, 7).unwrap()).unwrap();
                for (key, &len) in (0..).zip(&lengths) {
                    let mut call = call((op::KV_PUT, key, 64), &vec![key as u8; len], pd);
                    call.params[16..20].copy_from_slice(&region.key().to_le_bytes());
                    assert_eq!(alone(&registry, call, Limits::default()).0, Status::Ok);
                }
                // Words of the first buckets and of what comes behind them, or such as say that a chain is elsewhere.
                for &(at, word) in &changes {
                    let word = if moved { 1 << 62 | 2 | 1 << 8 } else { word };
                    region.write(8 * at as u64, &word.to_le_bytes()).unwrap();
                }
                let asked = registry.register(pd, &buffer, 0, len, Some(0), access).unwrap();
                (registry, pd, asked, buffer)
            });
            let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
            model.extend((0..).zip(&lengths).map(|(key, &len)| (key, vec![key as u8; len])));
            for (turn, &(what, key, len, room)) in asked.iter().enumerate() {
                let (op, value) = match what {
                    0 => (op::KV_PUT, vec![turn as u8; len]),
                    1 => (op::KV_UPDATE, vec![turn as u8; len]),
                    _ => (op::KV_GET, Vec::new()),
                };
                let make = |(_, pd, region, _): &(_, _, Arc<Region>, _)| {
                    let mut call = call((op, key, room), &value, *pd);
                    call.params[16..20].copy_from_slice(&region.key().to_le_bytes());
                    call
                };
                let found = in_runner(&stores[0].0, make(&stores[0]), (prefetching, limits));
                let expected = alone(&stores[1].0, make(&stores[1]), limits);
                prop_assert_eq!(&found, &expected, "turn {}", turn);
                if !changes.is_empty() || access != Access::all() || (op == op::KV_GET && few.is_some()) {
                    continue;
                }
                match op {
                    op::KV_GET => match model.get(&key) {
                        Some(value) if room >= value.len() as u32 => prop_assert_eq!(found, (Status::Ok, value.clone())),
                        Some(_) => prop_assert_eq!(found.0, Status::ReplyTooLong),
                        None => prop_assert_eq!(found.0, Status::NotFound),
                    },
                    op::KV_UPDATE if !model.contains_key(&key) => prop_assert_eq!(found.0, Status::NotFound),
                    _ => {
                        prop_assert_eq!(found, (Status::Ok, Vec::new()));
                        model.insert(key, value);
                    }
                }
            }
            let bytes = stores.each_ref().map(|(_, _, _, buffer)| {
                let mut bytes = vec![0; len];
                buffer.read(0, &mut bytes).unwrap();
                bytes
            });
            prop_assert!(bytes[0] == bytes[1], "the stores are not the same");
        }
    }

    /// Of one client three that begin in lanes or not, as another of the domain is there, and an object with a checksum.
    #[test]
    fn long_replies_come_in_pieces_between_which_others_run() {
        const LONG: usize = (2 << 20) + 100;
        let registry = Arc::new(Registry::new([4; 32]));
        let mut bytes = Vec::from_iter((0..4096 + LONG).map(|at| (at / 7 + at / 65_537) as u8));
        let checksum = crate::crc64(&bytes[4096..4096 + LONG - 8]).to_le_bytes();
        bytes[4096 + LONG - 8..].copy_from_slice(&checksum);
        for (at, word) in [(64, 1u64), (72, 0), (80, 4096)] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let places = [0, 1].map(|_| {
            let buffer = Buffer::from_boxed(bytes.clone().into());
            let pd = registry.alloc_pd();
            (pd, registry.register(pd, &buffer, 0, buffer.len(), Some(0), Access::all()).unwrap())
        });
        let call = |client, tag, (pd, region): &(Pd, Arc<Region>), len| {
            let params = TraversalParams::list(64, 1, len, region.key(), region.key());
            let mut call = Call::new(op::TRAVERSAL, &params.encode(), len);
            (call.pd, call.client, call.tag) = (Some(*pd), client, tag);
            call
        };
        let object = |(pd, region): &(Pd, Arc<Region>)| {
            let params = ConsistencyParams { address: 4096, key: region.key(), len: LONG as u32, max_tries: 1 };
            let mut call = Call::new(op::CONSISTENCY, &params.encode(), LONG as u32);
            (call.pd, call.client, call.tag) = (Some(*pd), 1, 4);
            call
        };
        for prefetching in [false, true] {
            let mut runner = host_runner(registry.clone(), prefetching, 100, Limits::default());
            let [one, other] = &places;
            let look_ups = [(1, one), (2, one), (3, other)].map(|(tag, place)| call(1, tag, place, LONG as u32));
            look_ups.into_iter().chain([object(one)]).for_each(|call| assert!(runner.start(call).is_ok()));
            let (mut long, mut short) = (0, 0);
            while long < 4 {
                assert!(runner.start(call(2, 0, one, 8)).is_ok());
                runner.poll(&mut |call, status| {
                    assert_eq!(status, Status::Ok);
                    match call.tag {
                        0 => short += 1,
                        4 => assert!(call.reply[..LONG - 8] == bytes[4096..4096 + LONG - 8]),
                        _ => assert!(call.reply == bytes[4096..]),
                    }
                    long += usize::from(call.tag > 0);
                });
            }
            // Where accesses do not wait, a call makes all of its own at once.
            assert!(!prefetching || short >= 4 * LONG / PIECE, "{short} others");
        }
    }

    /// Who has four times as many look-ups under way gets four times as many done at most, however long they are.
    #[test]
    fn who_has_many_look_ups_leaves_others_their_part() {
        // A list of one element that leads to itself: as many reads as a call may make.
        let mut words = [0; 64];
        (words[8], words[9]) = (7, 64);
        let (registry, [(pd, region), _]) = places(&words);
        let mut runner = host_runner(registry, true, 256, Limits { steps: 1000, bytes: 1 << 30 });
        let call = |client| {
            let params = TraversalParams::list(64, 1, 8, region.key(), region.key());
            let mut call = Call::new(op::TRAVERSAL, &params.encode(), 8);
            (call.pd, call.client) = (Some(pd), client);
            call
        };
        let mut done = [0u32; 2];
        for _ in 0..200 {
            assert!(runner.start(call(0)).is_ok());
        }
        for _ in 0..50 {
            assert!(runner.start(call(1)).is_ok());
        }
        for _ in 0..40_000 {
            let mut ended = Vec::new();
            runner.poll(&mut |call, status| {
                assert_eq!(status, Status::StepLimit);
                ended.push(call.client);
            });
            for client in ended {
                done[client as usize] += 1;
                assert!(runner.start(call(client)).is_ok());
            }
        }
        let [many, few] = done;
        assert!(many > 1000 && 10 * 4 * few > 9 * many, "{many} and {few}");
    }

    /// A list of one element, whose value is as long as a piece; who asks for another key goes round in a circle.
    fn long_values() -> (Arc<Registry>, Pd, Arc<Region>) {
        let registry = Arc::new(Registry::new([4; 32]));
        let mut bytes = vec![7; 4096 + PIECE];
        for (at, word) in [(64, 1u64), (72, 64), (80, 4096)] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let buffer = Buffer::from_boxed(bytes.into());
        let pd = registry.alloc_pd();
        let region = registry.register(pd, &buffer, 0, buffer.len(), Some(0), Access::all()).unwrap();
        (registry, pd, region)
    }

    fn list_call(region: &Region, (client, tag): (u32, u64), len: u32) -> Call {
        let params = TraversalParams::list(64, 1, len, region.key(), region.key());
        let mut call = Call::new(op::TRAVERSAL, &params.encode(), len);
        (call.pd, call.client, call.tag) = (Some(region.pd()), client, tag);
        call
    }

    /// Whose long reads take all of each turn has other look-ups done beside them, and those that wait begin in their order.
    #[test]
    fn long_reads_hold_up_no_look_up_of_their_own_client() {
        for prefetching in [false, true] {
            let (registry, pd, region) = long_values();
            let mut runner = host_runner(registry, prefetching, 256, Limits::default());
            let mut number = 100;
            let mut long = || {
                number += 1;
                list_call(&region, (1, number), PIECE as u32)
            };
            for _ in 0..40 {
                assert!(runner.start(long()).is_ok());
            }
            let mut find = Vec::new();
            KvParams::of_key(KvRef::new(0, region.key(), 0), 9, b"none").encode(&mut find);
            let mut find = Call::new(op::KV_GET, &find, 64);
            (find.pd, find.client, find.tag) = (Some(pd), 1, 1);
            assert!(runner.start(find).is_ok());
            let (mut open, mut turns): (Vec<u64>, _) = ((1..2).chain(101..141).collect(), 0);
            while !open.is_empty() {
                let mut ended = 0;
                runner.poll(&mut |call, _| {
                    open.retain(|tag| *tag != call.tag);
                    ended += 1;
                });
                (0..ended).for_each(|_| assert!(runner.start(long()).is_ok()));
                turns += 1;
                assert!(turns < 1000, "{open:?} wait for ever");
            }
        }
    }

    /// Look-ups and futures of a client that is in debt in most rounds take turns in those in which it is not.
    #[test]
    fn long_reads_of_any_length_hold_up_no_future_of_their_own_client() {
        for len in (1..=16).map(|part| PIECE / 16 * part).chain((63_800..64_000).step_by(8)) {
            let (registry, pd, region) = long_values();
            let mut runner = host_runner(registry, true, 256, Limits { steps: 1 << 20, bytes: 1 << 40 });
            for tag in 0..32 {
                assert!(runner.start(list_call(&region, (1, 100 + tag), len as u32)).is_ok());
            }
            // Another client has something to do all the while, so that debts are paid by rounds.
            let circle = TraversalParams::list(64, 2, 8, region.key(), region.key());
            let mut circle = Call::new(op::TRAVERSAL, &circle.encode(), 8);
            (circle.pd, circle.client) = (Some(pd), 2);
            assert!(runner.start(circle).is_ok());
            let params = ConsistencyParams { address: 4096, key: region.key(), len: 512, max_tries: 1 };
            let mut object = Call::new(op::CONSISTENCY, &params.encode(), 512);
            (object.pd, object.client, object.tag) = (Some(pd), 1, 1);
            assert!(runner.start(object).is_ok());
            let (mut over, mut turns) = (false, 0);
            while !over {
                let mut again = Vec::new();
                runner.poll(&mut |call, _| match call.tag {
                    1 => over = true,
                    tag => again.push(tag),
                });
                for tag in again {
                    assert!(runner.start(list_call(&region, (1, tag), len as u32)).is_ok());
                }
                turns += 1;
                assert!(turns < 100, "beside reads of {len} bytes");
            }
        }
    }

    /// What is registered anew under the same key, with fewer rights or for others, is looked at anew by each step.
    #[test]
    fn rights_that_are_taken_between_two_steps_are_gone() {
        for turns in 0..2 {
            for others in [false, true] {
                let (registry, _, region) = long_values();
                let mut runner = host_runner(registry.clone(), true, 4, Limits::default());
                assert!(runner.start(list_call(&region, (1, 1), 64)).is_ok());
                for _ in 0..turns {
                    assert_eq!(runner.poll(&mut |_, status| panic!("ended: {status:?}")), 0);
                }
                let (pd, access) = match others {
                    true => (Some(registry.alloc_pd()), None),
                    false => (None, Some(Access::LOCAL_WRITE | Access::REMOTE_WRITE)),
                };
                registry.reregister(region.key(), pd, None, access).unwrap();
                let mut ended = Vec::new();
                while runner.in_flight() > 0 {
                    runner.poll(&mut |_, status| ended.push(status));
                }
                assert_eq!(ended, [Status::AccessDenied], "after {turns} turns, {others}");
            }
        }
    }
}
