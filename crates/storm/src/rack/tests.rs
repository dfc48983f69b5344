//! The short form; the long one is `remora storm rack`.

use super::*;
use crate::check::rack::RACK_MUTANTS;

#[test]
fn storms_end_with_every_byte() {
    let (mut twice, mut silent, mut faults) = (0, 0, [0; RACK_FAULTS.len()]);
    for seed in 1..=60 {
        let case = RackCase { seed, seeded: None };
        let report = run(&case);
        assert_eq!(report.failure, None, "{}", case.command());
        (twice, silent) = (twice + report.twice, silent + report.silent);
        faults.iter_mut().zip(report.faults).for_each(|(sum, count)| *sum += count);
    }
    assert!(twice > 0 && silent > 0 && faults.iter().all(|count| *count > 0), "{twice} {silent} {faults:?}");
}

#[test]
fn storms_find_each_seeded_fault() {
    for mutant in &RACK_MUTANTS {
        let found = (1..500).find(|&seed| run(&RackCase { seed, seeded: Some(mutant.seeded) }).failure.is_some());
        println!("{}: {found:?}", mutant.name);
        assert!(found.is_some(), "{}", mutant.name);
    }
}

/// Four links of 1 Gbit/s.
const LINK: RackLink = RackLink { rate: 1_000_000_000, latency: 100 * US, lost: 0 };

fn share(links: &[RackLink; 4], mapping: Mapping, cut: Option<(Time, u16)>, when: [Time; 2]) -> f64 {
    let policy = FlowPolicy { mapping, ..FlowPolicy::default() };
    let share = goodput(policy, links, when, cut) / 4e9;
    println!("{mapping:?}: {:.1} % of four links, {:?} cut", 100.0 * share, cut);
    share
}

#[test]
fn one_flow_has_all_links() {
    let second = [100 * MS, 600 * MS];
    for mapping in Mapping::ALL {
        assert!(share(&[LINK; 4], mapping, None, second) >= 0.9);
    }
    let lossy = [RackLink { lost: 10_000, ..LINK }, LINK, LINK, LINK];
    assert!(share(&lossy, Mapping::Rate, None, second) >= 0.85);
    // From 200 ms after the cut on, and before the sender is told of it.
    assert!(share(&[LINK; 4], Mapping::Rate, Some((300 * MS, 2)), [500 * MS, 600 * MS]) >= 0.65);
}

#[test]
fn a_slow_link_holds_up_no_other() {
    let slow = [RackLink { rate: 10_000_000, ..LINK }, LINK, LINK, LINK];
    let when = [300 * MS, 1300 * MS];
    let [fixed, depth, rate] = Mapping::ALL.map(|mapping| share(&slow, mapping, None, when));
    assert!(rate > 0.7 && rate > depth && depth >= fixed, "{rate} {depth} {fixed}");
}
