//! The short form; the long one is `remora check membership`.

use std::collections::HashSet;

use super::super::Search;
use super::world::{Action, State, World};
use super::*;

fn holds(options: MemberOptions) -> u64 {
    let report = check_membership(&options, Search::default(), |_| true);
    if let Some((reason, chart)) = &report.failure {
        panic!("{options:?}: {reason}\n{chart}");
    }
    assert!(report.complete(), "{options:?}: {report:?}");
    report.states
}

#[test]
fn two_proposals_race_and_one_view_is_decided() {
    assert!(holds(MemberOptions::default()) > 1000);
}

#[test]
fn a_first_start_is_one_though_nodes_crash_and_lose_their_disks() {
    let first = MemberOptions { nodes: 2, proposals: 0, first_start: true, ..MemberOptions::default() };
    assert!(holds(MemberOptions { crashes: 1, wipes: 1, ..first }) > 1000);
}

#[test]
fn a_first_start_of_three_is_one_though_a_node_crashes() {
    let first = MemberOptions { proposals: 0, first_start: true, ..MemberOptions::default() };
    assert!(holds(MemberOptions { crashes: 1, ..first }) > 10_000);
}

/// All that nodes come to be, whatever has been said.
fn reached(world: &mut World, actions: fn(&mut World, &State, &mut Vec<Action>)) -> HashSet<State> {
    let first = world.first();
    let (mut visited, mut open) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(state) = open.pop() {
        let mut all = Vec::new();
        actions(world, &state, &mut all);
        for action in all {
            let next = world.after(&state, action);
            if visited.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    visited.iter().map(World::unsaid).collect()
}

#[test]
fn nodes_come_to_be_the_same_when_what_is_only_said_is_said_first() {
    let first = MemberOptions { nodes: 2, proposals: 0, first_start: true, ..MemberOptions::default() };
    let races = MemberOptions::default();
    for options in
        [MemberOptions { crashes: 1, wipes: 1, ..first }, races, MemberOptions { wipes: 1, proposals: 1, ..races }]
    {
        let mut world = World::new(options);
        let all = reached(&mut world, |world, state, actions| world.all_actions(state, actions));
        let few = reached(&mut world, World::actions);
        assert!(all == few && all.len() > 100, "{options:?}: {} and {}", all.len(), few.len());
    }
}

#[test]
fn each_seeded_fault_is_found() {
    for mutant in MEMBER_MUTANTS.iter().filter(|mutant| mutant.quick) {
        let report = check_member_mutant(mutant);
        let Some((_, chart)) = &report.failure else { panic!("{}: {report:?}", mutant.name) };
        assert!(chart.lines().count() > 3, "{}: {chart}", mutant.name);
    }
}
