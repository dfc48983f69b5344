//! The short form; the long one is `remora check membership`.

use super::super::Search;
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
fn each_seeded_fault_is_found() {
    for mutant in MEMBER_MUTANTS.iter().filter(|mutant| mutant.quick) {
        let report = check_member_mutant(mutant);
        let Some((_, chart)) = &report.failure else { panic!("{}: {report:?}", mutant.name) };
        assert!(chart.lines().count() > 3, "{}: {chart}", mutant.name);
    }
}
