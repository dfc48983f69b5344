//! MINOS's figures from the model: the engine of `remora_replica` on a modelled cluster, under YCSB's operations.

mod checks;
mod fit;
mod login;
mod point;
mod readings;
mod study;

use remora_model::cluster::ClusterSpec;
use remora_model::platform::Platform;

pub use point::{AblationStep, Login, PointError, PointFigures, Setup};
pub use readings::{Chosen, Reading, ReadingsTable, readings};

use study::{MinosSeries, Study};

use crate::reproduce::{
    self, Change, Dot, Figure, Fitted, Judged, Mutation, Point, Ran, ReproduceError, ReproduceProgress, Reproduction,
    run_all,
};

/// What to reproduce, and how.
#[derive(Clone, Debug)]
pub struct MinosOptions {
    /// As for every paper.
    pub common: reproduce::ReproduceOptions,
    /// Requests of each node that are measured; the paper has 100,000.
    pub requests: u64,
    /// Clients of each node, instead of as many as fit the text best.
    pub workers: Option<u16>,
    /// How the text is read.
    pub readings: Chosen,
}

/// Reproduces the figures. `progress` hears of every point; when it returns false the run ends.
pub fn reproduce(
    options: &MinosOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Reproduction, ReproduceError> {
    let seed = options.common.seed;
    let (Judged { figures, claims, trends, sums, incomplete }, platform, fitted) = judged(options, progress)?;
    let workers = platform.replication.as_ref().map_or(0, |replication| replication.workers);
    Ok(Reproduction {
        system: "MINOS",
        about: "Remora's replication engine on a modelled cluster with the parameters that the paper prints.",
        claims,
        trends,
        figures,
        fitted,
        provenance: vec![
            reproduce::provenance(&platform),
            format!("{workers} clients and {} measured requests a node", options.requests),
        ],
        sums,
        incomplete,
        seed,
    })
}

/// Fits, runs and judges.
fn judged(
    options: &MinosOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<(Judged, Platform, Vec<Fitted>), ReproduceError> {
    let studies = study::studies(options.common.figure.as_deref())?;
    let (platform, fitted) = fit::minos(&Platform::load("minos")?, options)?;
    Ok((judge(&studies, &platform, options, progress)?, platform, fitted))
}

/// Tries what the checks catch of such changes to the platform, after fitting.
pub fn mutate(
    options: &MinosOptions,
    changes: &[Change],
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Mutation, ReproduceError> {
    let seed = options.common.seed;
    let studies = study::studies(options.common.figure.as_deref())?;
    let (platform, _) = fit::minos(&Platform::load("minos")?, options)?;
    let judge = &mut |platforms: &[Platform], seed, progress: &mut dyn FnMut(ReproduceProgress) -> bool| match platforms
    {
        [platform, ..] => {
            let common = reproduce::ReproduceOptions { seed, ..options.common.clone() };
            judge(&studies, platform, &MinosOptions { common, ..options.clone() }, progress)
        }
        [] => Err(ReproduceError::Interrupted),
    };
    reproduce::mutate("MINOS", (&[platform], changes), seed, judge, progress)
}

/// Runs the studies on this platform, and judges what comes.
fn judge(
    studies: &[Study],
    platform: &Platform,
    options: &MinosOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Judged, ReproduceError> {
    let (values, mut work) = (reproduce::values(platform), Vec::new());
    for study in studies {
        for series in &study.series {
            for &x in &study.x.values {
                let setup = series.setup(study.x.sets, x)?;
                let spec = setup.spec(platform, options.readings)?;
                let MinosOptions { requests, readings, .. } = *options;
                work.push(Work { setup, spec, values: &values, requests, readings, seed: options.common.seed });
            }
        }
    }
    let Ran { outcomes, sums, incomplete } = run_all(&work, &options.common, progress)?;
    let line = |series: &MinosSeries, number| (series.name.clone(), class(series, number));
    let figures = Figure::all(studies, outcomes, &["host and NIC cores busy"], line, |study, series, x, outcome| {
        let y = series.metric.unwrap_or(study.y.metric).of(outcome);
        let (host, nic) = outcome.busy;
        Dot { x, y, spread: (y, y), details: vec![format!("{:.0} and {:.0} %", host * 100.0, nic * 100.0)] }
    });
    let workers = platform.replication.as_ref().map_or(0, |replication| replication.workers);
    let (claims, trends) = (checks::claims(&figures, platform), checks::trends(&figures, workers));
    Ok(Judged { figures, claims, trends, sums, incomplete })
}

/// Lines of a figure that shows each model once.
const MODELS: usize = 5;

/// One point to run.
struct Work<'a> {
    setup: Setup,
    spec: ClusterSpec,
    /// The platform's values.
    values: &'a str,
    requests: u64,
    readings: Chosen,
    seed: u64,
}

impl Point for Work<'_> {
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
    use crate::reproduce::{csv, page, table};

    fn options(figure: &str, jobs: usize) -> MinosOptions {
        let common = reproduce::ReproduceOptions { figure: Some(figure.into()), jobs, cache: None, seed: 42 };
        MinosOptions { common, requests: 60, workers: Some(2), readings: Chosen::default() }
    }

    #[test]
    fn the_same_seed_gives_the_same_bits_from_any_number_of_threads() {
        let run = |jobs| reproduce(&options("12", jobs), &mut |_| true).unwrap();
        let (first, second) = (run(1), run(3));
        assert_eq!(first.figures, second.figures);
        let bits = |all: &Reproduction| all.figures.iter().map(csv).collect::<String>();
        assert_eq!(bits(&first), bits(&second));
        // Five models, six steps.
        assert_eq!(bits(&first).lines().count(), 1 + 5 * 6);
        assert!(bits(&first).starts_with("figure,series,x,x_unit,y,y_unit\n12,synch,1,step,"));
        let mut other = options("12", 2);
        other.common.seed = 43;
        let other = reproduce(&other, &mut |_| true).unwrap();
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
        let table = readings(&MinosOptions { workers: None, ..options("12", 2) }, &mut |_| true).unwrap();
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
        let cut = readings(&options("12", 1), &mut |progress| progress.done < 45).unwrap();
        assert!(cut.incomplete.is_some_and(|why| why.contains("1 of 14")), "{:?}", cut.outcomes);
    }

    #[test]
    fn it_stops_when_told_to_and_knows_its_figures() {
        let result = reproduce(&options("4", 2), &mut |progress| progress.done < 3);
        assert!(result.is_ok_and(|cut| cut.incomplete.is_some_and(|why| why.contains("points were run"))));
        let error = reproduce(&options("5", 1), &mut |_| true).unwrap_err().to_string();
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
