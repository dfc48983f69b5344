//! Lanes beside the same kernels as futures, and who waits for whom.

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
