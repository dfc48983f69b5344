//! The figures of "A DBMS-centric evaluation of BlueField DPUs" from the model: remote B-trees and sequencers on the host
//! of a storage node and on the cores of its card.

#[cfg(test)]
mod border;
mod checks;
mod fit;
mod point;
mod study;
mod sums;

use std::sync::Arc;

use remora_model::platform::Platform;

use point::{Ground, Outcome};
use study::{At, BluefieldSeries, Setup, Study};

use crate::reproduce::{self, Claim, Dot, Figure, FigureError, Fitted, Paper, Point, ReproduceError, Trend};

/// Operations of a point of a mutant at most: its figures are held against each other's, not against the paper's.
const MUTANT_OPERATIONS: u64 = 2_000;

/// Thostrup et al., "A DBMS-centric evaluation of BlueField DPUs on fast networks", ADMS 2022.
#[derive(Clone, Copy, Debug)]
pub struct BlueField {
    /// Operations of a point at most.
    at_most: u64,
}

impl Default for BlueField {
    fn default() -> Self {
        Self { at_most: u64::MAX }
    }
}

impl Paper for BlueField {
    const SYSTEM: &'static str = "BlueField";
    const ABOUT: &'static str = "Figures of Thostrup et al., ADMS 2022, from Remora's protocol engine, B-tree and \
         sequencer on the hardware that the paper describes.";
    const PRINTED: &'static [(&'static str, &'static str, u64)] =
        &[("AD-041", "2", 1), ("AD-042", "5", 1), ("AD-045", "5", 256)];

    const DETAILS: &'static [&'static str] = &["what binds"];

    type Series = BluefieldSeries;
    type Metric = study::Metric;
    type Sets = study::Sets;
    type Outcome = Outcome;
    type Work<'a> = Work;

    fn studies(&self, figure: Option<&str>) -> Result<Vec<Study>, FigureError> {
        study::studies(figure)
    }

    fn fitted(&self, seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError> {
        fit::bluefield(seed)
    }

    fn work<'a>(
        &self,
        studies: &'a [Study],
        platforms: &'a [Platform],
        seed: u64,
    ) -> Result<Vec<Work>, ReproduceError> {
        let ground = |platform: &'a Platform| -> Result<_, ReproduceError> {
            let values: Arc<str> = reproduce::values(platform).into();
            Ok((&platform.name, values, Arc::new(Ground::new(platform, seed)?)))
        };
        let grounds = platforms.iter().map(ground).collect::<Result<Vec<_>, _>>()?;
        Study::points(studies, |study, series, x| {
            let known = grounds.iter().find(|(name, ..)| **name == series.setup.platform);
            let (_, values, ground) = known.ok_or_else(|| study.no_platform())?;
            let setup = series.setup(study.x.sets, x);
            let setup = Setup { operations: setup.operations.min(self.at_most), ..setup };
            Ok(Work { setup, values: values.clone(), ground: ground.clone(), seed })
        })
    }

    fn line(series: &BluefieldSeries, _: usize) -> (String, &'static str) {
        (series.name.clone(), class(&series.setup))
    }

    fn dot(study: &Study, _: &BluefieldSeries, x: u64, outcome: &Outcome) -> Dot {
        let y = study.y.metric.of(outcome);
        Dot { x, y, spread: (y, y), details: vec![outcome.detail.clone()] }
    }

    fn checks(&self, figures: &[Figure], platforms: &[Platform]) -> Result<(Vec<Claim>, Vec<Trend>), ReproduceError> {
        Ok((checks::claims(figures, platforms), checks::trends(figures)))
    }

    fn of_mutants(self) -> Self {
        Self { at_most: MUTANT_OPERATIONS }
    }
}

/// One point to run.
pub struct Work {
    setup: Setup,
    /// The platform's values.
    values: Arc<str>,
    ground: Arc<Ground>,
    seed: u64,
}

impl Point for Work {
    type Outcome = Outcome;

    fn key(&self) -> String {
        let setup = serde_json::to_string(&self.setup).unwrap_or_default();
        format!("bluefield {setup} seed={} {}", self.seed, self.values)
    }

    fn run(&self) -> Result<Outcome, ReproduceError> {
        Ok(point::run(&self.ground, &self.setup)?)
    }

    fn events(outcome: &Outcome) -> u64 {
        outcome.events
    }
}

/// The page's colour of a line.
fn class(setup: &Setup) -> &'static str {
    match setup.place {
        Some(At::Card) if setup.platform == "bluefield1" => "client",
        Some(At::Card) => "nic",
        Some(At::Host) | None => "host",
    }
}

#[cfg(test)]
mod tests {
    use super::study::Run;
    use super::*;
    use crate::reproduce::{ReproduceOptions, Reproduction, csv, page, reproduce, table};

    fn run(figure: &str, jobs: usize) -> Reproduction {
        let options = ReproduceOptions { figure: Some(figure.into()), jobs, cache: None, seed: 42 };
        reproduce(&BlueField::default(), &options, &mut |_| true).unwrap()
    }

    /// A point with few keys.
    fn point(setup: Setup) -> Outcome {
        let platform = Platform::load(&setup.platform).unwrap();
        let setup = Setup { keys: setup.keys.min(50_000), operations: 1_000, ..setup };
        point::run(&Ground::new(&platform, 42).unwrap(), &setup).unwrap()
    }

    #[test]
    fn every_study_names_what_can_be_run() {
        let studies = study::studies(None).unwrap();
        assert_eq!(studies.len(), 11);
        for study in &studies {
            for series in &study.series {
                let setup = series.setup(study.x.sets, study.x.values[0]);
                assert!(study.y.metric.of(&point(setup)) > 0.0, "figure {}, {}", study.figure, series.name);
            }
        }
    }

    #[test]
    fn threads_wait_for_their_loads_and_for_each_other() {
        let local = Setup { run: Run::LocalTree, place: Some(At::Card), ahead: 1, ..Setup::default() };
        let rate = |threads| point(Setup { threads, clients: threads, ..local.clone() }).ops_per_s;
        // A thread has one look-up at a time: its time is that of the look-up. Two of them are twice as fast.
        let (one, two) = (point(Setup { threads: 1, clients: 1, ..local.clone() }), rate(2));
        assert!((one.ops_per_s * one.mean_ns / 1e9 - 1.0).abs() < 0.05, "{one:?}");
        assert!((two / one.ops_per_s - 2.0).abs() < 0.2, "{two} and {}", one.ops_per_s);
        // More calls than threads wait.
        let waiting = point(Setup { threads: 1, clients: 4, ..local.clone() });
        assert!((waiting.mean_ns / one.mean_ns - 4.0).abs() < 0.4, "{waiting:?}");
        // A word that all add to goes from thread to thread: more of them give no more numbers.
        let numbers = |threads| {
            let setup = Setup { run: Run::SequencerCalls, place: Some(At::Host), threads, ..Setup::default() };
            point(setup).ops_per_s
        };
        assert!(numbers(4) < 4.0 * numbers(1));
        // Updates are locks, and lines that others then have to fetch.
        let updates = point(Setup { writes: 100, ..local.clone() });
        assert!(updates.ops_per_s < rate(8), "{updates:?}");
    }

    #[test]
    fn a_tree_of_256_million_keys_answers_rightly_and_is_not_built() {
        // All results are checked: a wrong one is an error.
        let platform = Platform::load("bluefield2").unwrap();
        let ground = Ground::new(&platform, 42).unwrap();
        for (run, levels) in [(Run::TreeReads, 6.0), (Run::LocalTree, 0.0)] {
            let setup = Setup {
                run,
                keys: 256_000_000,
                writes: 0,
                share: 50,
                clients: 2,
                ahead: 1,
                operations: 500,
                ..Setup::default()
            };
            let outcome = point::run(&ground, &setup).unwrap();
            // A READ takes 2 us and more.
            assert!(outcome.mean_ns > 2_000.0 * levels, "{outcome:?}");
        }
    }

    #[test]
    fn memory_is_the_same_from_any_number_of_threads_and_its_trends_hold() {
        let (first, second) = (run("8", 1), run("8", 3));
        let bits = |all: &Reproduction| all.figures.iter().map(csv).collect::<String>();
        assert_eq!(bits(&first), bits(&second));
        assert!(first.trends.len() == 20 && first.trends.iter().all(|trend| trend.holds), "{:?}", first.trends);
        for (text, least) in [(table(&first), 20), (page(&first), 60)] {
            assert!(text.lines().count() > least && text.contains("AD-056"), "{text}");
        }
    }
}
