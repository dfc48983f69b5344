//! The short form; the long one is `remora check rack`.

use super::*;

fn whole(report: &CheckReport, least: u64) {
    if let Some((reason, chart)) = &report.failure {
        panic!("{reason}\n{chart}");
    }
    assert!(report.complete() && report.states > least, "{report:?}");
}

#[test]
fn buffers_have_one_holder_whoever_dies() {
    let options = BufferOptions { nodes: 2, ..BufferOptions::default() };
    whole(&check_buffers(options, Search::default(), |_| true), 500);
}

#[test]
fn each_byte_of_a_flow_arrives_once_whatever_nics_do() {
    for mapping in Mapping::ALL {
        let options = FlowOptions { mapping, segments: 3, ..FlowOptions::default() };
        whole(&check_flow(options, Search::default(), |_| true), 500);
    }
}

#[test]
fn each_seeded_fault_is_found() {
    for mutant in &RACK_MUTANTS {
        let report = check_rack_mutant(mutant);
        let Some((_, chart)) = &report.failure else { panic!("{}: {report:?}", mutant.name) };
        assert!(chart.lines().count() > 2, "{}: {chart}", mutant.name);
    }
}
