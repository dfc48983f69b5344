//! Hand-made histories, and random ones against trying every order.

use super::*;
use Effect::{Blackout, Delete, Get, Put};
use proptest::prelude::*;

/// A call with a known outcome, firm in both ways.
fn call(invoked: u64, returned: u64, effect: Effect) -> Invocation {
    Invocation { invoked, returned: Some(returned), effect, firm_write: true, firm_read: true, attempt: None }
}

fn unknown(invoked: u64, effect: Effect) -> Invocation {
    Invocation { invoked, returned: None, effect, firm_write: false, firm_read: false, attempt: None }
}

/// As in a model where nothing is firm.
fn soft(call: Invocation) -> Invocation {
    Invocation { firm_write: false, firm_read: false, ..call }
}

fn swap(expected: Value, new: u64, found: Option<Value>) -> Effect {
    Effect::CompareSwap { expected, new, found }
}

fn add(delta: u64, found: Option<Value>) -> Effect {
    Effect::FetchAdd { delta, found }
}

fn good(calls: &[Invocation]) {
    assert_eq!(check(calls), Verdict::Linearizable, "{calls:?}");
}

fn bad(calls: &[Invocation]) {
    assert!(matches!(check(calls), Verdict::Violation(_)), "{calls:?}");
}

#[test]
fn reads_see_the_latest_write() {
    good(&[]);
    good(&[call(0, 1, Get(None)), call(2, 3, Put(1)), call(4, 5, Get(Some(1))), call(6, 7, Delete)]);
    bad(&[call(0, 1, Put(1)), call(2, 3, Put(2)), call(4, 5, Get(Some(1)))]);
    bad(&[call(0, 1, Put(1)), call(2, 3, Get(None))]);
    bad(&[call(0, 1, Put(1)), call(2, 3, Delete), call(4, 5, Get(Some(1)))]);
    bad(&[call(0, 1, Get(Some(9)))]);
}

#[test]
fn overlapping_calls_take_any_order() {
    let writes = [call(0, 10, Put(1)), call(0, 10, Put(2))];
    for first in [1, 2] {
        good(&[writes[0], writes[1], call(2, 3, Get(Some(first))), call(4, 5, Get(Some(3 - first)))]);
        bad(&[
            writes[0],
            writes[1],
            call(2, 3, Get(Some(first))),
            call(4, 5, Get(Some(3 - first))),
            call(6, 7, Get(Some(first))),
        ]);
    }
    // A value seen is seen by all later reads: no new-old inversion.
    bad(&[call(0, 10, Put(1)), call(1, 2, Get(Some(1))), call(3, 4, Get(None))]);
}

#[test]
fn read_modify_writes_take_effect_once() {
    good(&[call(0, 9, add(1, Some(None))), call(0, 9, add(1, Some(Some(1)))), call(10, 11, Get(Some(2)))]);
    bad(&[call(0, 9, add(1, Some(None))), call(0, 9, add(1, Some(None)))]);
    bad(&[call(0, 1, add(1, Some(None))), call(2, 3, Get(Some(2)))]);
    good(&[call(0, 1, Put(5)), call(2, 3, swap(Some(5), 6, Some(Some(5)))), call(4, 5, Get(Some(6)))]);
    good(&[call(0, 1, Put(5)), call(2, 3, swap(Some(4), 6, Some(Some(5)))), call(4, 5, Get(Some(5)))]);
    bad(&[call(0, 1, Put(5)), call(2, 3, swap(Some(4), 6, Some(Some(5)))), call(4, 5, Get(Some(6)))]);
    bad(&[call(0, 1, swap(None, 1, Some(None))), call(2, 3, swap(None, 2, Some(None)))]);
}

#[test]
fn unknown_outcomes_may_happen_late_or_never() {
    let put = unknown(0, Put(1));
    good(&[put]);
    good(&[put, call(5, 6, Get(None)), call(7, 8, Get(Some(1)))]);
    good(&[put, call(5, 6, Get(Some(1)))]);
    bad(&[put, call(5, 6, Get(Some(1))), call(7, 8, Get(None))]);
    bad(&[call(5, 6, Get(Some(1))), unknown(7, Put(1))]);
    good(&[unknown(0, add(3, None)), call(1, 2, Put(4)), call(3, 4, Get(Some(7)))]);
    good(&[unknown(0, swap(Some(4), 9, None)), call(1, 2, Put(4)), call(3, 4, Get(Some(9)))]);
}

#[test]
fn a_blackout_may_undo_what_is_not_firm() {
    let history = |first: fn(Invocation) -> Invocation, seen| {
        [call(0, 1, Put(1)), first(call(2, 3, Put(2))), call(4, 4, Blackout), call(5, 6, Get(seen))]
    };
    good(&history(|firm| firm, Some(2)));
    bad(&history(|firm| firm, Some(1)));
    good(&history(soft, Some(2)));
    good(&history(soft, Some(1)));
    bad(&history(soft, None));
    // One value comes back, not one now and another one later.
    let both = [soft(call(0, 1, Put(1))), soft(call(2, 3, Put(2))), call(4, 4, Blackout)];
    let reads = |a, b| [&both[..], &[soft(call(5, 6, Get(a))), soft(call(7, 8, Get(b)))]].concat();
    good(&reads(Some(1), Some(1)));
    good(&reads(None, None));
    bad(&reads(Some(1), Some(2)));
    // A firm read pins what it saw, although the write itself was not firm.
    let pinned = |seen| {
        let read = Invocation { firm_read: true, ..soft(call(4, 5, Get(Some(2)))) };
        [both[0], both[1], read, call(6, 6, Blackout), soft(call(7, 8, Get(seen)))]
    };
    good(&pinned(Some(2)));
    bad(&pinned(Some(1)));
}

#[test]
fn what_an_unknown_outcome_made_firm_stays() {
    let add = Invocation { firm_write: true, ..unknown(0, add(2, None)) };
    let after = |seen| {
        [soft(call(0, 0, Blackout)), add, call(0, 0, Get(Some(2))), call(8, 8, Blackout), soft(call(9, 9, Get(seen)))]
    };
    good(&after(Some(2)));
    bad(&after(None));
}

#[test]
fn what_a_blackout_undid_may_be_done_again() {
    let seen = |at, value| soft(call(at, at + 1, Get(value)));
    let attempt = |invoked, effect, of, undone_by| {
        let attempt = Some(Attempt { of, undone_by });
        Invocation { attempt, ..unknown(invoked, effect) }
    };
    // Read, lost, done again and answered.
    let put = call(2, 20, Put(2));
    let gone = [call(0, 1, Put(1)), put, seen(4, Some(2)), call(6, 6, Blackout), seen(8, Some(1)), seen(22, Some(2))];
    bad(&gone);
    let again = [&gone[..], &[attempt(2, Put(2), 1, 3)]].concat();
    good(&again);
    // Not without a blackout between the two, nor twice without one.
    let mut answered = again.clone();
    answered[1].returned = Some(5);
    bad(&answered);
    bad(&[
        again[0],
        put,
        seen(4, Some(2)),
        call(6, 6, Blackout),
        seen(7, Some(2)),
        seen(9, Some(1)),
        seen(22, Some(2)),
    ]);
    let sums = |end| {
        let adds = call(0, 20, add(1, Some(Some(end))));
        let blackout = call(6, 6, Blackout);
        [call(0, 0, Put(1)), adds, seen(2, Some(2)), blackout, seen(22, Some(end + 1)), attempt(0, add(1, None), 1, 3)]
    };
    good(&sums(1));
    bad(&sums(2));
    // What came on top of it is undone with it, and cannot be firm.
    let above = |three: Invocation, left| {
        let blackout = call(6, 6, Blackout);
        [
            call(0, 1, Put(1)),
            put,
            seen(3, Some(2)),
            three,
            blackout,
            seen(8, left),
            seen(22, Some(2)),
            attempt(2, Put(2), 1, 4),
        ]
    };
    good(&above(soft(call(5, 5, Put(3))), Some(1)));
    bad(&above(call(5, 5, Put(3)), Some(1)));
    bad(&[&above(soft(call(5, 5, Put(3))), Some(3))[..], &[seen(9, Some(2)), seen(11, Some(3))]].concat());
}

#[test]
fn a_violation_names_the_call_that_does_not_fit() {
    let calls = [call(0, 1, Put(1)), call(2, 3, Put(2)), call(4, 5, Get(Some(1))), call(6, 7, Get(Some(2)))];
    assert_eq!(check(&calls), Verdict::Violation(vec![2]));
}

#[test]
fn thousands_of_operations_are_quick() {
    let mut calls = Vec::new();
    let (mut value, mut at) = (None, 0);
    for round in 0..1_000 {
        let new = round + 1;
        calls.extend(
            (0..4).map(|reader| call(at + reader, at + 20, Get(if reader % 2 == 0 { value } else { Some(new) }))),
        );
        calls.push(call(at + 5, at + 15, Put(new)));
        if round % 50 == 0 {
            calls.push(unknown(at, Put(1_000_000 + new)));
        }
        (value, at) = (Some(new), at + 30);
    }
    calls.push(call(at, at, Blackout));
    good(&calls);
    calls.push(call(at + 1, at + 2, Get(Some(17))));
    assert!(matches!(check(&calls), Verdict::Violation(_)));
}

#[test]
fn many_writes_that_overlap_for_long_are_quick() {
    // All at once, and read one after the other in another order than they began in; and some that nobody answered.
    let mut calls: Vec<Invocation> = (0..40).map(|new| soft(call(new, 10_000 + new, Put(1000 * new)))).collect();
    calls.extend((0..10).map(|delta| soft(unknown(20 + delta, add(delta + 1, None)))));
    for turn in 0..40 {
        let value = Some(1000 * (turn * 7 % 40));
        calls.push(soft(call(200 * turn + 100, 200 * turn + 180, Get(value))));
    }
    calls.push(call(20_000, 20_000, Blackout));
    good(&calls);
    // What was overwritten is read once more.
    calls.retain(|call| call.returned.is_some());
    calls.push(soft(call(9_000, 9_001, Get(Some(1000)))));
    bad(&calls);
}

/// A possible state of the register, and what it may fall back to: values, and which blackout undoes them for sure.
type Naive = (Value, Vec<(Value, Option<usize>)>);

/// All states after `calls[index]` in `state`: the definition, without any cleverness.
fn naive_apply(calls: &[Invocation], index: usize, (value, back): &Naive) -> Vec<Naive> {
    let call = &calls[index];
    let undone_by = call.attempt.map(|attempt| attempt.undone_by);
    let held = back.iter().any(|(_, undone_by)| undone_by.is_some());
    let read = |value: Value| match (call.firm_read, held) {
        (true, true) => None,
        (true, false) => Some(vec![(value, None)]),
        (false, _) => Some(back.clone()),
    };
    let write = |back: Option<Vec<_>>, new: Value| {
        let mut back = if call.firm_write && held { None } else { back }?;
        if call.firm_write {
            back.clear();
        }
        back.push((new, undone_by));
        Some((new, back))
    };
    let one = |state: Option<Naive>| state.into_iter().collect();
    match call.effect {
        Blackout => {
            let from = back.iter().position(|(_, undone_by)| *undone_by == Some(index)).unwrap_or(back.len());
            back[..from].iter().map(|&(value, _)| (value, back[..from].to_vec())).collect()
        }
        Get(seen) if seen == *value => one(read(*value).map(|back| (*value, back))),
        Get(_) => vec![],
        Put(new) => one(write(Some(back.clone()), Some(new))),
        Delete => one(write(Some(back.clone()), None)),
        effect @ (Effect::CompareSwap { found, .. } | Effect::FetchAdd { found, .. }) => {
            if found.is_some_and(|found| found != *value) {
                return vec![];
            }
            let back = if found.is_some() { read(*value) } else { Some(back.clone()) };
            one(match modified(effect, *value) {
                Some(new) => write(back, new),
                None => back.map(|back| (*value, back)),
            })
        }
    }
}

fn naive(calls: &[Invocation], placed: u32, state: &Naive) -> bool {
    let is_placed = |index: usize| placed >> index & 1 == 1;
    let left = || (0..calls.len()).filter(|&index| !is_placed(index));
    if left().all(|index| calls[index].returned.is_none()) {
        return true;
    }
    left().any(|index| {
        let first = left().all(|other| calls[other].returned.is_none_or(|at| at >= calls[index].invoked));
        let of = calls[index].attempt.map_or(index, |attempt| attempt.of);
        let in_time = calls[index].attempt.is_none_or(|it| !is_placed(it.of) && !is_placed(it.undone_by));
        let alone = (0..calls.len())
            .filter(|&other| is_placed(other))
            .all(|other| calls[other].attempt.is_none_or(|attempt| attempt.of != of || is_placed(attempt.undone_by)));
        let next = || naive_apply(calls, index, state);
        first && in_time && alone && next().iter().any(|state| naive(calls, placed | 1 << index, state))
    })
}

fn any_call() -> impl Strategy<Value = Invocation> {
    let value = || prop::option::of(0..3u64);
    let found = || prop::option::of(value());
    let effect = prop_oneof![
        4 => value().prop_map(Get),
        3 => (0..3u64).prop_map(Put),
        1 => Just(Delete),
        2 => (value(), 0..3u64, found()).prop_map(|(expected, new, found)| swap(expected, new, found)),
        2 => (1..3u64, found()).prop_map(|(delta, found)| add(delta, found)),
        1 => Just(Blackout),
    ];
    (0..12u64, 0..6u64, effect, any::<(bool, bool, bool)>()).prop_map(
        |(at, long, mut effect, (firm_write, firm_read, known))| {
            // Reads without an outcome say nothing; a blackout happens at one moment.
            let known = known || matches!(effect, Get(_) | Blackout);
            let long = if effect == Blackout { 0 } else { long };
            if let Effect::CompareSwap { found, .. } | Effect::FetchAdd { found, .. } = &mut effect {
                *found = if known { found.or(Some(None)) } else { None };
            }
            let returned = known.then_some(at + long);
            Invocation { invoked: at, returned, effect, firm_write, firm_read: firm_read && known, attempt: None }
        },
    )
}

/// Former attempts at some of the writes, each undone by one of the blackouts.
fn with_attempts(mut calls: Vec<Invocation>, picks: &[(usize, usize)]) -> Vec<Invocation> {
    let those = |wanted: fn(&Effect) -> bool| -> Vec<usize> {
        (0..calls.len()).filter(|&index| wanted(&calls[index].effect)).collect()
    };
    let blackouts = those(|effect| *effect == Blackout);
    let writes = those(|effect| !matches!(effect, Get(_) | Blackout));
    if !blackouts.is_empty() && !writes.is_empty() {
        for (write, blackout) in picks {
            let (of, undone_by) = (writes[write % writes.len()], blackouts[blackout % blackouts.len()]);
            let effect = match calls[of].effect {
                Effect::CompareSwap { expected, new, .. } => swap(expected, new, None),
                Effect::FetchAdd { delta, .. } => add(delta, None),
                other => other,
            };
            let attempt = Some(Attempt { of, undone_by });
            calls.push(Invocation { attempt, ..unknown(calls[of].invoked, effect) });
        }
    }
    calls
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn agrees_with_trying_every_order(calls in prop::collection::vec(any_call(), 0..7)) {
        let expected = naive(&calls, 0, &(None, vec![(None, None)]));
        prop_assert_eq!(check(&calls) == Verdict::Linearizable, expected);
    }

    #[test]
    fn agrees_about_what_is_done_again(
        mut calls in prop::collection::vec(any_call(), 1..5),
        at in 0..12u64,
        picks in prop::collection::vec((0..8usize, 0..2usize), 1..3),
    ) {
        calls.push(soft(call(at, at, Blackout)));
        let calls = with_attempts(calls, &picks);
        let expected = naive(&calls, 0, &(None, vec![(None, None)]));
        prop_assert_eq!(check(&calls) == Verdict::Linearizable, expected);
    }
}
