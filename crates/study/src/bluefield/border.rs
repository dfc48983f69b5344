//! The controller of an index's border on the modelled BlueField-2.

use std::collections::BTreeMap;

use remora_model::platform::Platform;
use remora_service::BorderClimber;

use super::fit;
use super::point::{self, Ground};
use super::study::{Run, Setup};

/// What calls on a tree of so many keys reach with so many percent of them on the card; run once for each.
struct Splits {
    ground: Ground,
    keys: u64,
    writes: u64,
    rates: BTreeMap<u8, f64>,
}

impl Splits {
    fn rate(&mut self, share: u8) -> f64 {
        let Self { ground, keys, writes, rates } = self;
        *rates.entry(share).or_insert_with(|| {
            let setup = Setup {
                run: Run::TreeCalls,
                share: share.into(),
                keys: *keys,
                writes: *writes,
                operations: 1500,
                ..Setup::default()
            };
            point::run(ground, &setup).expect("a point").ops_per_s
        })
    }
}

/// From each of these splits; the best is that of all in steps of so many percent.
fn comes_to_the_best_static_split(platform: &Platform, keys: u64, step: usize, starts: &[u8]) {
    // With updates locks and lines that others have changed cost something, too.
    for writes in [0, 50] {
        let ground = Ground::new(platform, 1).expect("a ground");
        let mut splits = Splits { ground, keys, writes, rates: BTreeMap::new() };
        let best = (0..=100).step_by(step).map(|share| splits.rate(share)).fold(0.0, f64::max);
        for &start in starts {
            let mut climber = BorderClimber::new(start);
            let steps = (1..100).find(|_| {
                let rate = splits.rate(climber.share());
                climber.measured(rate);
                climber.is_settled()
            });
            let (share, found) = (climber.share(), splits.rate(climber.share()));
            println!(
                "{writes} % updates, from {start} %: {share} % after {steps:?} figures, {found:.0} of {best:.0} a second"
            );
            assert!(steps.is_some(), "from {start} % it goes on and on");
            assert!(
                found >= 0.95 * best,
                "from {start} %: {share} % brings {found:.0} a second, and {best:.0} can be had"
            );
        }
    }
}

/// A tree of a quarter of the paper's keys, on the card as its file has it.
#[test]
fn the_border_comes_to_the_best_static_split() {
    comes_to_the_best_static_split(&Platform::load("bluefield2").expect("a platform"), 250_000, 10, &[0, 45, 100]);
}

#[test]
#[ignore = "minutes long: run with --ignored"]
fn so_it_does_from_any_split_with_as_many_keys_as_the_paper_has_on_the_fitted_card() {
    let (platforms, _) = fit::bluefield(1).expect("platforms");
    let platform = platforms.iter().find(|platform| platform.name == "bluefield2").expect("bluefield2");
    let all: Vec<u8> = (0..=100).step_by(5).collect();
    comes_to_the_best_static_split(platform, 1_000_000, 5, &all);
}
