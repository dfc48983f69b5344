//! The short form; the long one is `remora check chain`.

use super::*;

fn holds(options: ChainOptions) -> u64 {
    let report = check_chain(&options, Search::default(), |_| true);
    if let Some((reason, chart)) = &report.failure {
        panic!("{options:?}: {reason}\n{chart}");
    }
    assert!(report.complete(), "{options:?}: {report:?}");
    report.states
}

#[test]
fn two_transactions_of_two_keys_are_serialized() {
    assert!(holds(ChainOptions { reads: 0, ..ChainOptions::default() }) > 50);
}

/// Three nodes, two transactions of two keys, one node crashes at any time and the others go on without it.
#[test]
fn two_transactions_are_serialized_when_one_of_three_nodes_crashes() {
    assert!(holds(ChainOptions { reads: 0, crashes: 1, ..ChainOptions::default() }) > 100_000);
}

#[test]
fn a_chain_goes_on_without_a_node_and_takes_it_back() {
    let small = ChainOptions { nodes: 2, writes: 1, reads: 0, ..ChainOptions::default() };
    assert!(holds(ChainOptions { crashes: 1, ..small }) > 50);
    assert!(holds(ChainOptions { crashes: 1, restarts: 1, ..small }) > 100);
    assert!(holds(ChainOptions { suspicions: 1, writes: 2, ..small }) > 100);
}

#[test]
fn nothing_that_was_answered_is_lost_when_all_crash() {
    let small = ChainOptions { nodes: 2, writes: 1, reads: 1, ..ChainOptions::default() };
    assert!(holds(ChainOptions { blackouts: 1, ..small }) > 50);
    assert!(holds(ChainOptions { blackouts: 1, writes: 2, reads: 0, ..small }) > 50);
    // Somebody who is up may be left out of the view in which they recover.
    assert!(holds(ChainOptions { blackouts: 1, suspicions: 1, reads: 0, ..small }) > 50);
}

#[test]
fn reads_of_the_heads_window_are_serialized_with_all_else() {
    let small = ChainOptions { nodes: 2, writes: 1, reads: 0, looks: 1, ..ChainOptions::default() };
    assert!(holds(ChainOptions { writes: 2, ..small }) > 50);
    // An ordinary reader sees no less than who looked before it, and the other way round.
    assert!(holds(ChainOptions { reads: 1, ..small }) > 50);
    assert!(holds(ChainOptions { suspicions: 1, ..small }) > 50);
    assert!(holds(ChainOptions { nodes: 3, crashes: 1, ..small }) > 50);
    assert!(holds(ChainOptions { crashes: 1, restarts: 1, ..small }) > 50);
    assert!(holds(ChainOptions { blackouts: 1, ..small }) > 50);
}

#[test]
fn each_seeded_fault_is_found() {
    for mutant in &CHAIN_MUTANTS {
        let report = check_chain_mutant(mutant);
        let Some((_, chart)) = &report.failure else { panic!("{}: {report:?}", mutant.name) };
        assert!(chart.lines().count() > 3, "{}: {chart}", mutant.name);
    }
}
