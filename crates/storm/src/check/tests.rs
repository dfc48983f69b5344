//! The short form: two writes, without and with faults; and every seeded fault is found.

use std::collections::HashSet;

use super::system::System;
use super::world::State;
use super::*;
use crate::search::{Space, Steps};
use crate::shard::Shard;

/// All states, or the first so many.
fn passes(options: Options, limit: u64) -> CheckReport {
    let search = Search { limit, ..Search::default() };
    let report = check(&options, search, |_| true);
    if let Some((reason, chart)) = &report.failure {
        panic!("{options:?}: {reason}\n{chart}");
    }
    report
}

#[test]
fn two_writes_race() {
    let whole = |orders| {
        let report = passes(Options { orders, ..Options::default() }, 1_000_000);
        assert!(report.complete(), "{report:?}");
        assert!(report.marks.snatches > 0 && report.marks.obsolete > 0 && report.marks.rmw_retries > 0, "{report:?}");
        report.states
    };
    assert!(whole(Orders::All) > 1000);
    assert!(whole(Orders::Reduced) > 500);
}

#[test]
fn what_the_reduction_leaves_out_makes_no_difference() {
    let (none, two) = (Failures::default(), Options { orders: Orders::Proof, ..Options::default() });
    for model in Model::ALL {
        for deployment in [Where::B, Where::Stepped, Where::O(5), Where::O(1)] {
            passes(Options { model, deployment, ..two.clone() }, 300);
        }
        let crash = Failures { crashes: 1, restarts: 1, ..none };
        for failures in [crash, Failures { suspicions: 1, ..none }, Failures { duplicates: 1, ..none }] {
            passes(Options { model, failures, writes: 1, ..two.clone() }, 300);
            let search = Search { limit: 300, shortest: true, ..Search::default() };
            let early = check(&Options { model, failures, ..two.clone() }, search, |_| true);
            assert!(early.failure.is_none(), "{model}: {:?}", early.failure);
        }
    }
    assert!(passes(two.clone(), u64::MAX).complete());
    // A fault that hides behind the order of VALs shows there.
    let search = Search { limit: 100_000, ..Search::default() };
    let faulty = check(&Options { ops: Ops::Puts, mutation: Some(Mutation::NoMaximum), ..two }, search, |_| true);
    assert!(faulty.failure.is_some_and(|(reason, _)| reason.contains("was to do nothing")));
}

#[test]
fn two_records_and_two_persists_hold() {
    for model in Model::ALL {
        let report = passes(Options { model, records: 2, ..Options::default() }, 1_000_000);
        assert!(report.complete(), "{report:?}");
    }
    let scope = Options { model: Model::Scope, persists: 2, ..Options::default() };
    // Here too the reduction leaves out what makes no difference.
    for (records, persists) in [(2, 1), (1, 2), (2, 2)] {
        passes(Options { records, persists, ..scope.clone() }, 10_000);
        passes(Options { orders: Orders::Proof, records, persists, ..scope.clone() }, 2000);
    }
    passes(Options { orders: Orders::Proof, records: 2, ..Options::default() }, 1000);
    // A PERSIST that asks for nothing is found with two as well.
    let search = Search { limit: 1_000_000, ..Search::default() };
    let faulty =
        check(&Options { mutation: Some(Mutation::EmptyScope), orders: Orders::All, ..scope }, search, |_| true);
    assert!(faulty.failure.is_some(), "{faulty:?}");
}

#[test]
fn two_writes_race_with_a_crash() {
    let failures = Failures { crashes: 1, ..Failures::default() };
    let visited = [Model::Synch, Model::Event].map(|model| {
        let report = passes(Options { model, failures, ..Options::default() }, 1_000_000);
        assert!(report.complete() && report.marks.replays > 0, "{report:?}");
        report.states
    });
    // Threads share the work, and visit the same states.
    let search = Search { threads: 2, ..Search::default() };
    let report = check(&Options { failures, ..Options::default() }, search, |_| true);
    assert!(report.complete() && report.states == visited[0], "{report:?}");
}

#[test]
fn every_model_and_deployment_begins_well() {
    for model in Model::ALL {
        for deployment in [Where::B, Where::Stepped, Where::O(1)] {
            passes(Options { model, deployment, ..Options::default() }, 1000);
        }
        let none = Failures::default();
        let faults = [
            Failures { duplicates: 1, crashes: 1, ..none },
            Failures { crashes: 1, restarts: 1, ..none },
            Failures { suspicions: 1, ..none },
            Failures { blackouts: 1, ..none },
        ];
        for failures in faults {
            for deployment in [Where::B, Where::Stepped, Where::O(5)] {
                passes(Options { model, deployment, failures, writes: 1, ..Options::default() }, 1000);
            }
        }
    }
}

#[test]
fn no_two_additions_find_the_same_number() {
    for model in Model::ALL {
        for deployment in [Where::B, Where::Stepped, Where::O(5), Where::O(1)] {
            passes(Options { model, deployment, ops: Ops::Adds, ..Options::default() }, 10_000);
        }
    }
}

#[test]
fn a_request_sent_again_is_done_once() {
    for ops in [Ops::Adds, Ops::Mixed, Ops::Puts, Ops::Swaps] {
        let report = passes(Options { ops, again: 1, ..Options::default() }, 1_000_000);
        assert!(report.complete() && report.marks.duplicates > 0, "{ops:?}: {report:?}");
        // Elsewhere, with crashes or with what else comes between, it begins as well.
        let crash = Failures { crashes: 1, ..Failures::default() };
        let suspicion = Failures { suspicions: 1, ..Failures::default() };
        for model in Model::ALL {
            for deployment in [Where::B, Where::Stepped, Where::O(5)] {
                for failures in [Failures::default(), crash, suspicion] {
                    passes(Options { model, deployment, ops, failures, again: 1, ..Options::default() }, 2000);
                }
            }
        }
    }
    let failures = Failures { crashes: 1, ..Failures::default() };
    let one = Options { model: Model::Event, ops: Ops::Adds, writes: 1, failures, again: 1, ..Options::default() };
    let report = passes(one.clone(), 1_000_000);
    assert!(report.complete() && report.marks.duplicates > 0 && report.marks.replays > 0, "{report:?}");
    let failures = Failures { blackouts: 1, ..Failures::default() };
    for model in Model::ALL {
        passes(Options { model, failures, ..one.clone() }, 10_000);
    }
    // What the reduction leaves out makes no difference to it.
    for model in Model::ALL {
        passes(Options { model, orders: Orders::Proof, ..one.clone() }, 300);
    }
}

#[test]
fn a_node_that_begins_anew_does_not_count_for_what_was_durable() {
    let failures = Failures { crashes: 1, restarts: 1, ..Failures::default() };
    let search = Search { shortest: true, limit: 50_000, ..Search::default() };
    let report = check(&Options { failures, ..Options::default() }, search, |_| true);
    assert!(report.failure.is_none(), "{:?}", report.failure);
}

#[test]
fn a_replay_that_is_refused_does_not_hold_up_persist() {
    let failures = Failures { crashes: 1, ..Failures::default() };
    passes(Options { model: Model::Scope, failures, orders: Orders::All, ..Options::default() }, 20_000);
}

#[test]
fn seeded_faults_are_found() {
    for mutant in MUTANTS.iter().filter(|mutant| mutant.quick) {
        let report = check_mutant(mutant.mutation, None, 1);
        let Some((reason, chart)) = report.failure else {
            panic!("{}: not found in {} states", mutant.name, report.states);
        };
        assert!(chart.contains("=> ") && !reason.is_empty(), "{chart}");
    }
}

#[test]
fn shards_visit_together_what_one_run_visits() {
    let failures = Failures { crashes: 1, ..Failures::default() };
    let whole = passes(Options { failures, ..Options::default() }, 1_000_000);
    let parts = (0..3).map(|index| {
        let report = passes(Options { failures, shard: Shard { index, of: 3 }, ..Options::default() }, 1_000_000);
        assert!(report.complete() && report.states < whole.states, "{index}: {report:?}");
        report.states
    });
    assert!(parts.sum::<u64>() >= whole.states);
    // A fault that needs a crash is found by the shard whose crash it is, and by no run without any.
    let lost = MUTANTS.iter().find(|mutant| mutant.name == "no-replay").expect("a mutant");
    let search = Search { shortest: true, limit: 1_000_000, memory: 3 << 30, ..Search::default() };
    let found = (0..3).filter(|&index| {
        let options = Options { shard: Shard { index, of: 3 }, ..lost.options(None) };
        check(&options, search, |_| true).failure.is_some()
    });
    assert!(found.count() > 0);
}

/// All states that are reached, in all orders, and whether nothing is wrong with any.
fn reached(system: &System, alike: bool) -> (HashSet<State>, bool) {
    let (first, mut actions, mut holds) = (system.first(), Vec::new(), true);
    let (mut all, mut open) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(mut state) = open.pop() {
        holds &= system.steps().look(&mut state, &mut actions);
        for &action in &actions {
            let mut next = state.clone();
            system.knowing(|locals| match alike {
                true => system.advance(locals, &state, &mut next, action),
                false => system.take(locals, &state, &mut next, action),
            });
            if all.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (all, holds)
}

/// The state that stands for this one.
fn chosen_of(system: &System, state: &State) -> State {
    let mut chosen = state.clone();
    system.knowing(|locals| {
        chosen.clone_from(state);
        system.alike.choose(locals, &system.options, &mut chosen)
    });
    chosen
}

#[test]
fn nodes_that_are_alike_count_once() {
    let two_idle = Options { ops: Ops::OneNode, orders: Orders::All, ..Options::default() };
    let failures = Failures { crashes: 1, ..Failures::default() };
    let cases = [
        Options { model: Model::REnf, ..two_idle.clone() },
        Options { failures, writes: 1, ..two_idle.clone() },
        Options { nodes: 4, writes: 1, ..two_idle.clone() },
    ];
    for options in cases {
        // Both ask the same system, whose states have the same names for the same things.
        let system = System::new(options.clone());
        let ((chosen, holds), (all, all_hold)) = (reached(&system, true), reached(&system, false));
        assert!(holds && all_hold && chosen.len() < all.len(), "{options:?}");
        let stand_for: HashSet<State> = all.iter().map(|state| chosen_of(&system, state)).collect();
        assert!(stand_for == chosen, "{options:?}: {} of {} for {}", stand_for.len(), chosen.len(), all.len());
    }
}
