//! Hand-made histories, and random ones against trying every order.

use super::*;
use Effect::{Blackout, Delete, Get, Put};
use proptest::prelude::*;

/// A call with a known outcome, firm in both ways.
fn call(invoked: u64, returned: u64, effect: Effect) -> Call {
    Call { invoked, returned: Some(returned), effect, firm_write: true, firm_read: true }
}

fn unknown(invoked: u64, effect: Effect) -> Call {
    Call { invoked, returned: None, effect, firm_write: false, firm_read: false }
}

/// As in a model where nothing is firm.
fn soft(call: Call) -> Call {
    Call { firm_write: false, firm_read: false, ..call }
}

fn swap(expected: Value, new: u64, found: Option<Value>) -> Effect {
    Effect::CompareSwap { expected, new, found }
}

fn add(delta: u64, found: Option<Value>) -> Effect {
    Effect::FetchAdd { delta, found }
}

fn good(calls: &[Call]) {
    assert_eq!(check(calls), Verdict::Linearizable, "{calls:?}");
}

fn bad(calls: &[Call]) {
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
    let history = |first: fn(Call) -> Call, seen| {
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
        let read = Call { firm_read: true, ..soft(call(4, 5, Get(Some(2)))) };
        [both[0], both[1], read, call(6, 6, Blackout), soft(call(7, 8, Get(seen)))]
    };
    good(&pinned(Some(2)));
    bad(&pinned(Some(1)));
}

#[test]
fn what_an_unknown_outcome_made_firm_stays() {
    let add = Call { firm_write: true, ..unknown(0, add(2, None)) };
    let after = |seen| {
        [soft(call(0, 0, Blackout)), add, call(0, 0, Get(Some(2))), call(8, 8, Blackout), soft(call(9, 9, Get(seen)))]
    };
    good(&after(Some(2)));
    bad(&after(None));
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
    let mut search = Search::new(&calls);
    search.blackouts = true;
    assert_eq!(search.run(), Verdict::Linearizable);
    calls.push(call(at, at + 1, Get(Some(17))));
    assert!(matches!(check(&calls), Verdict::Violation(_)));
}

/// A possible state of the register, and what it may fall back to.
type Naive = (Value, Vec<Value>);

/// All states after `call` in `state`: the definition, without any cleverness.
fn naive_apply(call: &Call, (value, back): &Naive) -> Vec<Naive> {
    let read = |value: Value| if call.firm_read { vec![value] } else { back.clone() };
    let write = |mut back: Vec<Value>, new: Value| {
        if call.firm_write {
            back.clear();
        }
        back.push(new);
        vec![(new, back)]
    };
    match call.effect {
        Blackout => back.iter().map(|&value| (value, back.clone())).collect(),
        Get(seen) if seen == *value => vec![(*value, read(*value))],
        Get(_) => vec![],
        Put(new) => write(back.clone(), Some(new)),
        Delete => write(back.clone(), None),
        effect @ (Effect::CompareSwap { found, .. } | Effect::FetchAdd { found, .. }) => {
            if found.is_some_and(|found| found != *value) {
                return vec![];
            }
            let back = if found.is_some() { read(*value) } else { back.clone() };
            match modified(effect, *value) {
                Some(new) => write(back, new),
                None => vec![(*value, back)],
            }
        }
    }
}

fn naive(calls: &[Call], placed: u32, state: &Naive) -> bool {
    let left = || (0..calls.len()).filter(move |index| placed >> index & 1 == 0);
    if left().all(|index| calls[index].returned.is_none()) {
        return true;
    }
    left().any(|index| {
        let first = left().all(|other| calls[other].returned.is_none_or(|at| at >= calls[index].invoked));
        let next = || naive_apply(&calls[index], state);
        first && next().iter().any(|state| naive(calls, placed | 1 << index, state))
    })
}

fn any_call() -> impl Strategy<Value = Call> {
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
            Call { invoked: at, returned, effect, firm_write, firm_read: firm_read && known }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn agrees_with_trying_every_order(calls in prop::collection::vec(any_call(), 0..7)) {
        let expected = naive(&calls, 0, &(None, vec![None]));
        prop_assert_eq!(check(&calls) == Verdict::Linearizable, expected);
    }
}
