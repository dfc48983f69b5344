//! Clients whose calls a node places, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use remora_kernel::op;

use super::super::tests::draws;
use super::*;
use crate::PlacerCounts;

const MS: Time = 1_000_000;
/// From a client to the node, or back.
const WAY: Time = 3_000;

/// A client that has so many calls under way, and rests so long after each.
#[derive(Clone, Copy)]
struct Client {
    in_flight: u32,
    rests: Time,
}

const fn client(in_flight: u32) -> Client {
    Client { in_flight, rests: 0 }
}

/// What a call of these clients takes its server, at a time and place; the host's also takes the way there and back.
type Takes<'a> = &'a dyn Fn(Time, Placement) -> Time;
const HAND_OVER: Time = 2_000;

#[derive(Default)]
struct Ran {
    /// Of each client: calls that ran at the NIC and at the host, by the millisecond in which they came.
    at: Vec<Vec<[u64; 2]>>,
    counts: PlacerCounts,
    moves: Vec<(Time, String)>,
}

impl Ran {
    /// The part of a client's calls in these milliseconds that ran at the host.
    fn at_host(&self, client: usize, when: std::ops::Range<usize>) -> f64 {
        let [nic, host] = self.at[client][when].iter().fold([0, 0], |[a, b], [nic, host]| [a + nic, b + host]);
        host as f64 / (nic + host) as f64
    }

    fn explored_little(&self) -> bool {
        let calls: u64 = self.counts.calls.iter().sum();
        self.counts.explored <= calls * 2 / 100 + 4000
    }
}

/// Clients in a closed loop until `end`. Servers do a call at a time. Noise makes some longer, and about twenty times a second
/// the machine takes a millisecond for something else.
fn run(placer: &mut NodePlacer, clients: &[Client], end: Time, takes: Takes<'_>) -> Ran {
    let mut draw = draws();
    let mut ran = Ran { at: vec![vec![[0; 2]; (end / MS) as usize + 1]; clients.len()], ..Ran::default() };
    // When something is next: a call comes to the node, or its answer leaves there.
    let mut next: BinaryHeap<Reverse<(Time, bool, usize, u64)>> = BinaryHeap::new();
    for (who, client) in clients.iter().enumerate() {
        (0..client.in_flight).for_each(|_| next.push(Reverse((WAY, false, who, 0))));
    }
    let mut free: Vec<u64> = (0..512).rev().collect();
    let (mut servers, mut hiccups) = ([0; 2], [0; 2]);
    while let Some(Reverse((now, answered, who, tag))) = next.pop().filter(|Reverse((now, ..))| *now < end) {
        if answered {
            placer.ended(tag, Status::Ok, || now);
            free.push(tag);
            next.push(Reverse((now + 2 * WAY + clients[who].rests, false, who, 0)));
        } else {
            let mut call = Call::new(op::GET, &[7; 40], 64);
            (call.tag, call.anywhere) = (free.pop().expect("a number"), true);
            let tag = call.tag;
            let place = match placer.place(call, || now) {
                Some(call) => {
                    assert_eq!(call.tag, tag);
                    Placement::Nic
                }
                None => {
                    assert_eq!(placer.poll_host().map(|call| call.tag), Some(tag));
                    Placement::Host
                }
            };
            let host = usize::from(place == Placement::Host);
            ran.at[who][(now / MS) as usize][host] += 1;
            let took = (takes(now, place) as f64 * (0.9 + 0.3 * draw())) as Time;
            let begun = now.max(servers[host]);
            while hiccups[host] + MS <= begun {
                hiccups[host] += MS + (100.0 * draw()) as Time * MS;
            }
            let begun = if begun < hiccups[host] { begun } else { hiccups[host] + MS };
            servers[host] = begun + took;
            next.push(Reverse((servers[host] + [0, HAND_OVER][host], true, who, tag)));
        }
        if let Some((_, reason)) = placer.placer().poll_move() {
            ran.moves.push((now, reason.to_string()));
        }
    }
    ran.counts = placer.placer().counts();
    ran
}

fn auto() -> NodePlacer {
    Placing::Auto.placer(1).expect("a node that chooses")
}

#[test]
fn all_clients_are_moved_within_a_tenth_of_a_second_when_the_host_becomes_busy() {
    use Placement::Host;
    // A client beside which others are few, and one that calls once in a while.
    let clients = [client(4), client(12), Client { in_flight: 1, rests: 500_000 }];
    let busy = 400..800;
    let takes = |now: Time, place: Placement| match place {
        Host if busy.contains(&(now / MS)) => 40_000,
        Host => 4_000,
        _ => 12_000,
    };
    let ran = run(&mut auto(), &clients, 1_200 * MS, &takes);
    for who in 0..clients.len() {
        let stretches = [(100..400, true), (500..800, false), (900..1200, true)];
        for (when, at_host) in stretches {
            let part = ran.at_host(who, when.clone());
            assert!(if at_host { part > 0.95 } else { part < 0.05 }, "{who}, {when:?}: {part}; {:?}", ran.moves);
        }
    }
    assert!(ran.moves.len() <= 5, "{:?}", ran.moves);
    assert!(ran.explored_little(), "{:?}", ran.counts);
    let left = ran.moves.iter().find(|(at, _)| *at > 400 * MS).expect("a move");
    assert!(left.1.starts_with("nic: the host took") && left.1.contains(" us at the host"), "{}", left.1);
}

#[test]
fn what_waits_at_the_nic_goes_to_the_host_and_comes_back() {
    let takes = |now: Time, place: Placement| match place {
        // Something else takes the NIC's time meanwhile.
        Placement::Nic if (300..600).contains(&(now / MS)) => 40_000,
        Placement::Nic => 6_000,
        _ => 12_000,
    };
    for in_flight in [1, 8, 40] {
        let ran = run(&mut auto(), &[client(in_flight), client(in_flight)], 900 * MS, &takes);
        for who in 0..2 {
            let parts = [100..300, 400..600, 700..900].map(|when| ran.at_host(who, when));
            let story = format!("{in_flight}, client {who}: {parts:?} {:?}", ran.moves);
            assert!(parts[0] < 0.05 && parts[1] > 0.95 && parts[2] < 0.05, "{story}");
        }
        assert!(ran.moves.len() <= 4 && ran.explored_little(), "{in_flight}: {:?} {:?}", ran.moves, ran.counts);
    }
}

#[test]
fn level_places_keep_their_calls() {
    let takes = |_: Time, place: Placement| if place == Placement::Nic { 12_000 } else { 11_800 };
    let ran = run(&mut auto(), &[client(8), client(8)], 3_000 * MS, &takes);
    assert!(ran.moves.len() <= 3 && ran.explored_little(), "{:?} {:?}", ran.moves, ran.counts);
}

#[test]
fn a_node_that_is_told_where_runs_calls_there_and_leaves_others_alone() {
    assert!(Placing::Clients.placer(1).is_none());
    for (word, at_host) in [("nic", 0.0), ("host", 1.0)] {
        let mut placer = word.parse::<Placing>().expect("a word").placer(1).expect("a node that places");
        let ran = run(&mut placer, &[client(8)], 50 * MS, &|_, _| 2_000);
        assert_eq!((ran.at_host(0, 0..50), ran.counts.explored), (at_host, 0));
        let reason = placer.placer().reason(CallKind::of(op::GET, &[7; 40])).expect("calls").to_string();
        assert_eq!(reason, format!("{word}: pinned"));
        let calls = placer.placer().counts();
        for tag in 0..9 {
            let mut call = Call::new(op::GET, &[], 64);
            call.tag = tag;
            assert!(placer.place(call, || unreachable!("nobody times it")).is_some());
            placer.ended(tag, Status::Ok, || unreachable!("nobody times it"));
        }
        assert_eq!(placer.placer().counts(), calls);
    }
    let error = "fpga".parse::<Placing>().unwrap_err().to_string();
    assert!(error.contains("fpga") && error.contains("clients, auto, nic and host"), "{error}");
}

#[test]
fn only_the_host_drops_what_it_runs_and_only_while_it_does() {
    let mut placer = Placing::Host.placer(1).expect("a node that places");
    let call = |tag| {
        let mut call = Call::new(op::GET, &[], 64);
        (call.tag, call.anywhere) = (tag, true);
        call
    };
    assert!(placer.place(call(3), || 0).is_none() && placer.place(call(4), || 0).is_none());
    assert_eq!((placer.at_host(), placer.wants_host()), (2, true));
    assert_eq!([placer.poll_host(), placer.poll_host()].map(|call| call.map(|call| call.tag)), [Some(3), Some(4)]);
    assert!(!placer.wants_host() && !placer.end_at_host(5), "a call of the NIC's");
    assert!(placer.end_at_host(3) && placer.end_at_host(3) && placer.end_at_host(4));
    // It has ended by itself, and another has its number.
    placer.ended(4, Status::Ok, || 0);
    assert!(placer.place(call(4), || 0).is_none());
    assert_eq!((placer.poll_overdue(), placer.poll_overdue(), placer.at_host()), (Some(3), None, 2));
    placer.ended(3, Status::Overdue, || 0);
    placer.ended(3, Status::Overdue, || 0);
    assert_eq!(placer.at_host(), 1);
}
