//! A closed loop of calls in virtual time, over places that drift.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use remora_kernel::BUILTINS;
use remora_kernel::btree::{ByteParams, TreeParams};
use remora_kernel::kv::KvRef;

use super::*;

const KIND: CallKind = CallKind { op: 7, class: 0 };
const MS: Time = 1_000_000;

/// What a place does at a time: each call takes its server for `each`, and `way` beyond.
#[derive(Clone, Copy, Debug)]
struct Does {
    each: Time,
    way: Time,
    fails: bool,
    silent: bool,
}

fn does(each: Time, way: Time) -> Does {
    Does { each, way, fails: false, silent: false }
}

struct Run {
    /// Calls that ended, and failed.
    done: u64,
    failed: u64,
    counts: PlacerCounts,
    /// When calls mainly changed places: at a look each millisecond.
    homes: Vec<(Time, Placement)>,
    reason: String,
}

/// Random numbers from 0 to 1, the same each time.
pub(crate) fn draws() -> impl FnMut() -> f64 {
    let mut random = 0x1234_5678_9abc_def1u64;
    move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A closed loop until `end`. Noise of the machine makes calls up to `noise` parts longer, and one in thousand waits a
/// millisecond. Who waits for a silent place gives up after 200 ms.
fn run(placer: &mut Placer, in_flight: usize, end: Time, noise: f64, places: &dyn Fn(Time, Placement) -> Does) -> Run {
    let mut draw = draws();
    let (mut free, mut now) = ([0; PLACES], 0);
    let mut ends: BinaryHeap<Reverse<(Time, u64)>> = BinaryHeap::new();
    let mut calls: Vec<(Option<Ticket>, bool)> = Vec::new();
    let (mut done, mut failed, mut homes, mut look) = (0, 0, Vec::<(Time, Placement)>::new(), 0);
    let mut tally = [0; PLACES];
    while now < end {
        while ends.len() < in_flight {
            let Choice { placement, ticket } = placer.choose(KIND, ends.len(), || now);
            tally[index(placement)] += 1;
            let Does { each, way, fails, silent } = places(now, placement);
            let server = &mut free[index(placement)];
            let each = (each as f64 * (1.0 + noise * draw())) as Time + MS * Time::from(draw() < 0.001 * noise);
            *server = now.max(*server) + each;
            let at = if silent { now + 200 * MS } else { *server + way };
            // Who gives up never hears of the call again.
            calls.push((ticket.filter(|_| !silent), !fails && !silent));
            ends.push(Reverse((at, calls.len() as u64 - 1)));
        }
        let Some(Reverse((at, call))) = ends.pop() else { break };
        now = at;
        let (ticket, is_ok) = calls[call as usize];
        if let Some(ticket) = ticket {
            placer.ended(ticket, now, is_ok);
        }
        done += u64::from(is_ok);
        failed += u64::from(!is_ok);
        if now >= look {
            let most = (0..PLACES).max_by_key(|&n| tally[n]).map(|n| Placement::ALL[n]);
            if let Some(place) = most.filter(|place| homes.last().is_none_or(|(_, last)| last != place)) {
                homes.push((now, place));
            }
            (tally, look) = ([0; PLACES], now + MS);
        }
    }
    let reason = placer.reason(KIND).map(|reason| reason.to_string()).unwrap_or_default();
    Run { done, failed, counts: placer.counts(), homes, reason }
}

fn placer() -> Placer {
    Placer::new(&Placement::REAL, 1)
}

fn fixed(place: Placement) -> Placer {
    let mut placer = placer();
    placer.pin(Some(place));
    placer
}

/// Less than 2 % of calls, but for those that tell places apart to begin with.
fn explored_little(counts: PlacerCounts, classes: u64) -> bool {
    let calls: u64 = counts.calls.iter().sum();
    counts.explored <= calls * 2 / 100 + classes * 4000
}

#[test]
fn the_best_place_serves_nearly_all_calls() {
    use Placement::{Client, Host, Nic};
    // Quick for one call, but the client can do few at once; and the other way round.
    let places = |_: Time, place: Placement| match place {
        Client => does(4_000, 2_000),
        Nic => does(1_500, 12_000),
        _ => does(2_500, 10_000),
    };
    for (in_flight, best, second) in [(1, Client, Host), (64, Nic, Host), (8, Nic, Host)] {
        let auto = run(&mut placer(), in_flight, 1_000 * MS, 0.2, &places);
        let [most, less] = [best, second].map(|place| run(&mut fixed(place), in_flight, 1_000 * MS, 0.2, &places).done);
        assert!(auto.done as f64 > 0.97 * most as f64, "{in_flight}: {} of {most}, {less}; {}", auto.done, auto.reason);
        assert_eq!(auto.homes.last().map(|home| home.1), Some(best), "{:?} {}", auto.homes, auto.reason);
        assert!(explored_little(auto.counts, 1), "{:?}", auto.counts);
        assert!(auto.reason.starts_with(best.name()) && auto.reason.contains(" us at the "), "{}", auto.reason);
    }
}

#[test]
fn a_change_at_home_or_elsewhere_moves_calls_within_a_tenth_of_a_second() {
    use Placement::{Client, Host, Nic};
    let at = 500 * MS;
    for in_flight in [1, 8, 64] {
        for worse in [true, false] {
            let places = |now: Time, place: Placement| match place {
                Nic if worse && now > at => does(12_000, 24_000),
                Nic => does(2_000, 8_000),
                Host if !worse && now > at => does(1_000, 4_000),
                Host => does(4_000, 12_000),
                _ => does(6_000, 20_000),
            };
            let auto = run(&mut placer(), in_flight, 1_500 * MS, 0.2, &places);
            let moved = auto.homes.iter().find(|&&(time, place)| time > at && place == Host);
            let time = moved.map(|moved| moved.0 - at);
            assert!(time.is_some_and(|time| time < 100 * MS), "{in_flight} {worse}: {:?} {}", auto.homes, auto.reason);
            assert!(auto.counts.moves <= 3 && explored_little(auto.counts, 1), "{:?} {:?}", auto.homes, auto.counts);
            let (before, after) = (Nic, Host);
            let oracle = run(&mut fixed(before), in_flight, at, 0.2, &places).done
                + run(&mut fixed(after), in_flight, 1_000 * MS, 0.2, &|now, place| places(now + at + 1, place)).done;
            assert!(auto.done as f64 > 0.93 * oracle as f64, "{in_flight} {worse}: {} of {oracle}", auto.done);
            assert!(auto.counts.calls[index(Client)] < auto.counts.calls[index(Nic)]);
        }
    }
}

#[test]
fn level_places_keep_their_calls() {
    for in_flight in [1, 64] {
        for apart in [0, 30] {
            let places = |_: Time, place: Placement| does(2_000 + index(place) as u64 * apart, 10_000);
            let auto = run(&mut placer(), in_flight, 5_000 * MS, 0.5, &places);
            assert!(auto.counts.moves <= 4, "{in_flight}: {:?} {:?}", auto.counts, auto.homes);
        }
    }
}

#[test]
fn a_place_that_fails_or_falls_silent_is_left_and_found_again_when_it_works() {
    use Placement::{Host, Nic};
    for silent in [false, true] {
        let broken = 300 * MS..900 * MS;
        let places = |now: Time, place: Placement| match place {
            Nic => Does {
                fails: !silent && broken.contains(&now),
                silent: silent && broken.contains(&now),
                ..does(2_000, 8_000)
            },
            Host => does(4_000, 12_000),
            _ => does(8_000, 30_000),
        };
        let mut placer = placer();
        let auto = run(&mut placer, 16, 2_500 * MS, 0.2, &places);
        let at_host = auto.homes.iter().find(|&&(time, place)| place == Host && broken.contains(&time));
        let left = at_host.map_or(Time::MAX, |home| home.0 - broken.start);
        assert!(left < if silent { 260 * MS } else { 100 * MS }, "{:?} {}", auto.homes, auto.reason);
        assert_eq!(auto.homes.last().map(|home| home.1), Some(Nic), "{:?} {}", auto.homes, auto.reason);
        assert!(auto.failed < 5_000, "{}", auto.failed);
    }
}

#[test]
fn a_place_that_never_answers_holds_few_calls() {
    let places = |_: Time, place: Placement| Does { silent: place == Placement::Host, ..does(2_000, 8_000) };
    let auto = run(&mut placer(), 16, 2_000 * MS, 0.2, &places);
    assert!(auto.failed < 10, "{}", auto.failed);
}

#[test]
fn the_models_word_counts_until_something_is_measured() {
    let places = |_: Time, place: Placement| does(if place == Placement::Host { 1_000 } else { 3_000 }, 8_000);
    let mut placer = placer();
    for (place, alone, each) in [(Placement::Client, 8e3, 4e3), (Placement::Nic, 1e5, 1e5), (Placement::Host, 9e3, 1e3)]
    {
        placer.set_prior(KIND, place, Prior { alone, each });
    }
    // Under load it is the rate that counts: of four at the client each waits for three others.
    let busy = placer.choose(KIND, 3, || 0);
    busy.ticket.into_iter().for_each(|ticket| placer.cancelled(ticket));
    assert_eq!(busy.placement, Placement::Host);
    let mut placer = super::tests::placer();
    for (place, alone, each) in [(Placement::Client, 8e3, 4e3), (Placement::Nic, 1e5, 1e5), (Placement::Host, 9e3, 1e3)]
    {
        placer.set_prior(KIND, place, Prior { alone, each });
    }
    assert_eq!(placer.choose(KIND, 0, || 0).placement, Placement::Client);
    assert!(placer.reason(KIND).is_some_and(|reason| reason.why == Why::Model));
    let auto = run(&mut placer, 4, 200 * MS, 0.1, &places);
    assert_eq!(auto.homes.last().map(|home| home.1), Some(Placement::Host), "{:?}", auto.homes);
}

#[test]
fn who_pins_a_place_gets_it() {
    let mut placer = placer();
    placer.pin_op(KIND.op, Some(Placement::Client));
    let other = CallKind { op: 8, ..KIND };
    for _ in 0..1000 {
        assert_eq!(placer.choose(KIND, 0, || 0).placement, Placement::Client);
    }
    assert_eq!(placer.reason(KIND).unwrap().to_string(), "client: pinned");
    assert_eq!(placer.choose(other, 0, || 0).placement, Placement::Nic);
    placer.pin(Some(Placement::Host));
    assert_eq!(placer.choose(KIND, 0, || 0).placement, Placement::Host);
    placer.pin(None);
    placer.pin_op(KIND.op, None);
    assert_eq!(placer.choose(KIND, 0, || 0).placement, Placement::Nic);
    assert_eq!(placer.counts().explored, 0);
}

#[test]
fn a_kernel_is_tried_only_where_it_may_run_however_quick_a_refusal_is() {
    for kernel in BUILTINS {
        let (mut placer, mut now) = (placer(), 0);
        for _ in 0..5000 {
            let Choice { placement, ticket } = placer.choose(CallKind { op: kernel.op, class: 0 }, 0, || now);
            now += if placement == Placement::Client { 100 } else { 10_000 };
            ticket.into_iter().for_each(|ticket| placer.ended(ticket, now, true));
        }
        let at_client = placer.counts().calls[index(Placement::Client)] > 0;
        assert_eq!(at_client, kernel.places.has(Placement::Client), "{}: {:?}", kernel.name, placer.counts());
    }
    for status in [Status::LOST, LOCKED, NOT_OWNER, NOT_HERE] {
        assert!(!is_result(status), "{status:?}");
    }
}

#[test]
fn calls_on_trees_are_told_apart_by_tree_and_scans_by_length() {
    let tree = |key| TreeRef { base: 64, key, slots: 100, node_bytes: 2048, owners: 2, owner: 0 };
    let of_numbers = |op, key, from, pairs| CallKind::of(op, &TreeParams::new(tree(key), from, pairs).encode());
    let of_bytes = |op, key, from: &[u8], pairs| {
        let mut params = Vec::new();
        ByteParams::new(tree(key), from, pairs).encode(&mut params);
        CallKind::of(op, &params)
    };
    assert_eq!(of_numbers(op::TREE_PUT, 7, 1, 2), of_numbers(op::TREE_PUT, 7, 3, 4));
    assert_eq!(of_bytes(op::TREE_GET, 7, b"a", 0), of_bytes(op::TREE_GET, 7, b"a longer key", 0));
    assert_ne!(of_numbers(op::TREE_GET, 7, 1, 0), of_numbers(op::TREE_GET, 8, 1, 0));
    assert_ne!(of_bytes(op::TREE_GET, 7, b"a", 0), of_bytes(op::TREE_GET, 8, b"a", 0));
    assert_ne!(of_numbers(op::TREE_SCAN, 7, 1, 10), of_numbers(op::TREE_SCAN, 7, 1, 1000));
    assert_ne!(of_bytes(op::TREE_SCAN, 7, b"a", 10), of_bytes(op::TREE_SCAN, 7, b"a", 1000));
    assert_eq!(of_bytes(op::TREE_SCAN, 7, b"a", 10), of_bytes(op::TREE_SCAN, 7, b"b", 11));
}

#[test]
fn more_kinds_than_are_known_at_once_do_no_harm() {
    let mut placer = placer();
    let mut tickets = Vec::new();
    for class in 0..10_000 {
        tickets.extend(placer.choose(CallKind { op: 1, class }, class as usize % 100, || class).ticket);
    }
    tickets.into_iter().for_each(|ticket| placer.ended(ticket, 1 << 40, true));
    assert!(placer.reason(CallKind { op: 1, class: 9_999 }).is_some());
}

/// Whatever places do, calls take little longer than at the best place for each stretch of time, few are explored, and homes
/// move seldom.
#[test]
fn little_is_lost_to_who_knows() {
    let (stretch, mut random) = (400 * MS, 0x9e37_79b9_7f4a_7c15u64);
    let mut draw = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for case in 0..8 {
        let stretches: Vec<[u64; 3]> = (0..=draw(4)).map(|_| std::array::from_fn(|_| 1 + draw(16))).collect();
        let (in_flight, noise) = ([1, 8, 64][draw(3) as usize], draw(40) as f64 / 100.0);
        let places = |now: Time, place: Placement| {
            let at = ((now / stretch) as usize).min(stretches.len() - 1);
            let each = 500 * stretches[at][index(place)];
            does(each, each + 3_000)
        };
        let count = stretches.len() as u64;
        let auto = run(&mut placer(), in_flight, stretch * count, noise, &places);
        let best = |n: u64| {
            let then = |now: Time, place: Placement| places(now % stretch + n * stretch, place);
            Placement::REAL.map(|place| run(&mut fixed(place), in_flight, stretch, noise, &then).done).into_iter().max()
        };
        let best: u64 = (0..count).filter_map(best).sum();
        let story = format!("case {case}: {stretches:?}, {in_flight}, {noise}: {:?} {}", auto.homes, auto.reason);
        assert!(auto.done as f64 > 0.9 * best as f64, "{} of {best}; {story}", auto.done);
        assert!(explored_little(auto.counts, 1), "{:?}; {story}", auto.counts);
        assert!(auto.counts.moves <= 4 * count, "{:?}; {story}", auto.counts);
    }
}

/// Who meets more kinds of calls than are known at once explores no more than who meets few.
#[test]
fn kinds_that_come_and_go_are_explored_little_too() {
    let (mut placer, mut now, mut draw) = (placer(), 0, draws());
    for class in (0..400).cycle().take(1600) {
        for _ in 0..600 {
            let Choice { placement, ticket } = placer.choose(CallKind { op: 1, class }, 0, || now);
            now += 10_000 + 2_000 * index(placement) as u64 + (1_000.0 * draw()) as u64;
            ticket.into_iter().for_each(|ticket| placer.ended(ticket, now, true));
        }
    }
    let counts = placer.counts();
    let calls: u64 = counts.calls.iter().sum();
    assert!(counts.explored <= calls * 2 / 100 + (SETS * WAYS) as u64 * 200, "{counts:?}");
}

/// A place that sleeps when nobody has called it for a while takes long for the first call: it is found all the same.
#[test]
fn a_place_that_has_to_be_woken_is_no_slow_one() {
    use Placement::{Host, Nic};
    for in_flight in [1, 8, 64] {
        let last = std::cell::Cell::new(0);
        let places = |now: Time, place: Placement| match place {
            Nic => does(4_000, 6_000),
            Host => {
                let asleep = now > last.replace(now) + MS / 2;
                does(2_000, if asleep { 303_000 } else { 3_000 })
            }
            _ => does(20_000, 50_000),
        };
        let auto = run(&mut placer(), in_flight, 500 * MS, 0.2, &places);
        let story = format!("{in_flight}: {:?} {:?} {}", auto.homes, auto.counts, auto.reason);
        assert!(auto.counts.calls[index(Host)] > auto.counts.calls.iter().sum::<u64>() * 9 / 10, "{story}");
    }
}

/// Clocks of machines that sleep, or are moved, jump.
#[test]
fn a_clock_that_jumps_does_no_harm() {
    let (mut placer, mut draw) = (placer(), draws());
    let mut tickets: Vec<Ticket> = Vec::new();
    for _ in 0..300_000 {
        let now = (draw() * 1e9) as Time;
        tickets.extend(placer.choose(KIND, tickets.len(), || now).ticket);
        if !tickets.is_empty() && (tickets.len() > 8 || draw() < 0.5) {
            let ticket = tickets.swap_remove((draw() * tickets.len() as f64) as usize);
            placer.ended(ticket, (draw() * 1e9) as Time, draw() < 0.9);
        }
    }
}

#[test]
fn calls_on_key_value_stores_are_told_apart_by_store_and_length() {
    let of = |op, key, value: &[u8]| {
        let mut params = Vec::new();
        KvParams::new(KvRef::new(0, key, 4), 7, b"key", value).encode(&mut params);
        CallKind::of(op, &params)
    };
    assert_ne!(of(op::KV_GET, 7, b""), of(op::KV_GET, 8, b""));
    assert_ne!(of(op::KV_PUT, 7, b"a"), of(op::KV_PUT, 8, b"a"));
    assert_ne!(of(op::KV_PUT, 7, b"a"), of(op::KV_PUT, 7, &[0; 4000]));
    assert_eq!(of(op::KV_PUT, 7, b"a"), of(op::KV_PUT, 7, b"b"));
}

/// Who computes while calls are under way, and looks for their answers then, has found no place silent.
#[test]
fn a_place_is_silent_only_to_who_looks() {
    for looks in [false, true] {
        let (mut placer, mut now) = (placer(), 0);
        let quick = |placer: &mut Placer, now: &mut Time| {
            for _ in 0..1000 {
                let ticket = placer.choose(KIND, 0, || *now).ticket;
                *now += 10_000;
                placer.looked(*now);
                ticket.into_iter().for_each(|ticket| placer.ended(ticket, *now, true));
            }
        };
        quick(&mut placer, &mut now);
        let home = placer.reason(KIND).unwrap().placement;
        let mut waits: Vec<_> = (0..64).filter_map(|_| placer.choose(KIND, 0, || now).ticket).collect();
        now += 70 * MS;
        if looks {
            placer.looked(now);
        }
        waits.extend((0..64).filter_map(|_| placer.choose(KIND, 0, || now).ticket));
        assert_eq!(placer.reason(KIND).unwrap().placement != home, looks);
    }
}
