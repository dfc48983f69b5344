//! MINOS's figures from the model: the engine of `remora_replica` on a modelled cluster, under YCSB's operations.

mod checks;
mod fit;
mod login;
mod point;
mod readings;
mod study;

use std::sync::Arc;

use remora_model::cluster::ClusterSpec;
use remora_model::platform::Platform;

pub use point::{AblationStep, Login, PointError, PointFigures, Setup};
pub use readings::{Chosen, Reading, ReadingsTable, readings};

use study::{MinosSeries, Study};

use crate::reproduce::{self, Claim, Dot, Figure, FigureError, Fitted, Paper, Point, ReproduceError, Trend};

/// Psistakis et al., MINOS, HPCA 2025.
#[derive(Clone, Copy, Debug)]
pub struct Minos {
    /// Requests of each node that are measured; the paper has 100,000.
    pub requests: u64,
    /// Clients of each node, instead of as many as fit the text best.
    pub workers: Option<u16>,
    /// How the text is read.
    pub readings: Chosen,
}

fn workers(platform: &Platform) -> u64 {
    platform.replication.as_ref().map_or(0, |replication| replication.workers)
}

impl Paper for Minos {
    const SYSTEM: &'static str = "MINOS";
    const ABOUT: &'static str =
        "Remora's replication engine on a modelled cluster with the parameters that the paper prints.";

    const DETAILS: &'static [&'static str] = &["host and NIC cores busy"];

    type Series = MinosSeries;
    type Metric = study::Metric;
    type Sets = study::Sets;
    type Outcome = PointFigures;
    type Work<'a> = Work;

    fn studies(&self, figure: Option<&str>) -> Result<Vec<Study>, FigureError> {
        study::studies(figure)
    }

    fn fitted(&self, seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError> {
        let (platform, fitted) = fit::minos(&Platform::load("minos")?, self, seed)?;
        Ok((vec![platform], fitted))
    }

    fn work<'a>(
        &self,
        studies: &'a [Study],
        platforms: &'a [Platform],
        seed: u64,
    ) -> Result<Vec<Work>, ReproduceError> {
        let Self { requests, readings, .. } = *self;
        let platform = reproduce::only(platforms)?;
        let values: Arc<str> = reproduce::values(platform).into();
        Study::points(studies, |study, series, x| {
            let setup = series.setup(study.x.sets, x)?;
            let spec = setup.spec(platform, readings)?;
            Ok(Work { setup, spec, values: values.clone(), requests, readings, seed })
        })
    }

    fn line(series: &MinosSeries, number: usize) -> (String, &'static str) {
        (series.name.clone(), class(series, number))
    }

    fn dot(study: &Study, series: &MinosSeries, x: u64, outcome: &PointFigures) -> Dot {
        let y = series.metric.unwrap_or(study.y.metric).of(outcome);
        let (host, nic) = outcome.busy;
        Dot { x, y, spread: (y, y), details: vec![format!("{:.0} and {:.0} %", host * 100.0, nic * 100.0)] }
    }

    fn checks(&self, figures: &[Figure], platforms: &[Platform]) -> Result<(Vec<Claim>, Vec<Trend>), ReproduceError> {
        let platform = reproduce::only(platforms)?;
        Ok((checks::claims(figures, platform), checks::trends(figures, workers(platform))))
    }

    fn provenance(&self, platforms: &[Platform]) -> Vec<String> {
        let line = |platform| {
            let clients = workers(platform);
            let run = format!("{clients} clients and {} measured requests a node", self.requests);
            [reproduce::provenance(platform), run]
        };
        platforms.iter().flat_map(line).collect()
    }
}

/// Lines of a figure that shows each model once.
const MODELS: usize = 5;

/// One point to run.
pub struct Work {
    setup: Setup,
    spec: ClusterSpec,
    /// The platform's values.
    values: Arc<str>,
    requests: u64,
    readings: Chosen,
    seed: u64,
}

impl Point for Work {
    type Outcome = PointFigures;

    fn key(&self) -> String {
        let Self { values, requests, readings, seed, .. } = self;
        let setup = serde_json::to_string(&self.setup).unwrap_or_default();
        format!("minos {setup} requests={requests} seed={seed} {readings:?} {values}")
    }

    fn run(&self) -> Result<PointFigures, ReproduceError> {
        Ok(self.setup.run_on(&self.spec, self.requests, self.seed)?)
    }

    fn events(outcome: &PointFigures) -> u64 {
        outcome.events
    }
}

/// MINOS-B runs on the host, MINOS-O on the NIC; other lines take turns.
fn class(series: &MinosSeries, number: usize) -> &'static str {
    match series.name.as_bytes().first() {
        Some(b'B') => "host",
        Some(b'O') => "nic",
        _ => ["client", "host", "nic"][number % MODELS % 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{ReproduceOptions, Reproduction, csv, page, reproduce, table};

    fn small() -> Minos {
        Minos { requests: 60, workers: Some(2), readings: Chosen::default() }
    }

    fn options(figure: &str, jobs: usize) -> ReproduceOptions {
        ReproduceOptions { figure: Some(figure.into()), jobs, cache: None, seed: 42 }
    }

    #[test]
    fn the_same_seed_gives_the_same_bits_from_any_number_of_threads() {
        let run = |jobs| reproduce(&small(), &options("12", jobs), &mut |_| true).unwrap();
        let (first, second) = (run(1), run(3));
        assert_eq!(first.figures, second.figures);
        let bits = |all: &Reproduction| all.figures.iter().map(csv).collect::<String>();
        assert_eq!(bits(&first), bits(&second));
        // Five models, six steps.
        assert_eq!(bits(&first).lines().count(), 1 + 5 * 6);
        assert!(bits(&first).starts_with("figure,series,x,x_unit,y,y_unit\n12,synch,1,step,"));
        let mut other = options("12", 2);
        other.seed = 43;
        let other = reproduce(&small(), &other, &mut |_| true).unwrap();
        assert_ne!(first.figures, other.figures);
        assert!(table(&first).contains("MI-023") && page(&first).contains("<svg"));
    }

    #[test]
    fn every_study_names_setups_that_exist() {
        for study in study::studies(None).unwrap() {
            for series in &study.series {
                let platform = Platform::load("minos").unwrap();
                let setup = series.setup(study.x.sets, study.x.values[0]).unwrap();
                setup.run(&platform, 4, 1).unwrap_or_else(|e| panic!("figure {}, {}: {e}", study.figure, series.name));
            }
        }
    }

    #[test]
    fn each_reading_moves_something_and_the_usual_one_nothing() {
        let table = readings(&Minos { workers: None, ..small() }, &options("12", 2), &mut |_| true).unwrap();
        assert_eq!(table.outcomes.len(), table.readings.len() + 3);
        let moved = |name: &str| {
            let outcome = table.outcomes.iter().find(|outcome| outcome.name == name).unwrap();
            outcome.moved.iter().map(|(_, by)| by.abs()).sum::<f64>()
        };
        assert_eq!(moved("usual"), 0.0);
        // Communication is in figure 4, the sweep of persists in figure 14a.
        for reading in table.readings.iter().filter(|r| !["waits-communicate", "host-sweep"].contains(&r.name)) {
            assert!(moved(reading.name) > 0.0, "{}", reading.name);
            assert!(table.table().contains(reading.source), "{}", reading.name);
        }
        let cut = readings(&small(), &options("12", 1), &mut |progress| progress.done < 45).unwrap();
        assert!(cut.incomplete.is_some_and(|why| why.contains("1 of 14")), "{:?}", cut.outcomes);
    }

    #[test]
    fn it_stops_when_told_to_and_knows_its_figures() {
        let result = reproduce(&small(), &options("4", 2), &mut |progress| progress.done < 3);
        assert!(result.is_ok_and(|cut| cut.incomplete.is_some_and(|why| why.contains("points were run"))));
        let error = reproduce(&small(), &options("5", 1), &mut |_| true).unwrap_err().to_string();
        assert!(error.starts_with("there is no figure 5: choose one of 4, 9a"), "{error}");
    }

    #[test]
    fn a_login_of_three_reads_takes_three_reads_and_one_that_misses_writes() {
        let platform = Platform::load("minos").unwrap();
        let run = |login, hit| {
            let setup = Setup { login: Some(login), hit, rtt_us: 5, ..Setup::default() };
            setup.run(&platform, 50, 1).unwrap().login_ns
        };
        let (read, three, miss) = (run(Login::Social, 100), run(Login::Media, 100), run(Login::Social, 0));
        assert!((three / read - 3.0).abs() < 0.05, "{three} against {read}");
        assert!(miss > 2.0 * read + 5_000.0, "{miss}: two reads, and a write with its round trip");
    }
}
