//! The cases that take little time.

use super::*;
use std::time::Duration;

fn checked(name: &str, fine: bool, crash: bool, mutant: Option<TreeMutant>) -> CheckReport {
    let case = TreeCase::named(name).unwrap();
    // Of a mover each access is a step, which shows more than what it does on the node.
    let near = !fine && case.border.is_none();
    let options = TreeOptions { case, crash, fine, near, mutant };
    let time = Duration::from_secs(30);
    let search =
        Search { threads: if mutant.is_some() { 1 } else { 2 }, time, shortest: mutant.is_some(), ..Search::default() };
    let report = check_tree(&options, search, |_| true);
    println!("{name}, fine {fine}, crash {crash}, {mutant:?}: {} states in {:.2} s", report.states, report.seconds);
    report
}

#[test]
fn orders_of_a_few_operations_are_right() {
    for (name, fine, crash) in [
        ("split-root", false, false),
        ("merge", false, false),
        ("same-key", false, false),
        ("same-key", false, true),
        ("torn", true, false),
        ("move-write", false, false),
        ("move-write", false, true),
        ("move-read", false, false),
        ("move-down", false, false),
        ("bytes-split-root", false, false),
        ("bytes-merge", false, false),
        ("bytes-torn", true, false),
    ] {
        let report = checked(name, fine, crash, None);
        if let Some((reason, chart)) = report.failure {
            panic!("{name}\n{chart}\n{reason}");
        }
        assert!(report.complete(), "{name} took too long");
    }
}

#[test]
fn seeded_faults_are_found() {
    for (name, fine, crash, mutant) in [
        ("torn", true, false, TreeMutant::TailLate),
        ("same-leaf", false, false, TreeMutant::Swaps),
        ("move-write", false, false, TreeMutant::Swaps),
        ("move-write", false, false, TreeMutant::Both),
        ("move-write", false, false, TreeMutant::NoLock),
        ("same-key", false, true, TreeMutant::SealEarly),
    ] {
        let report = checked(name, fine, crash, Some(mutant));
        assert!(report.failure.is_some(), "{mutant:?} in {} states", report.states);
    }
}
