//! MINOS's figures from the model: the engine of `remora_replica` on a modelled cluster, under YCSB's operations.

mod checks;
mod login;
mod page;
mod point;
mod show;
mod study;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use remora_model::cluster::Spec;
use remora_model::platform::{Platform, PlatformError};

pub use page::page;
pub use point::{Login, Outcome, PointError, Setup, Step};
pub use show::{csv, table};
pub use study::Study;

use crate::reproduce::{Claim, Progress, StudyError, Trend};

/// What to reproduce, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// One figure, or all.
    pub figure: Option<String>,
    /// Threads.
    pub jobs: usize,
    /// Requests of each node that are measured; the paper has 100,000.
    pub requests: u64,
    /// Clients of each node instead of the platform's.
    pub workers: Option<u16>,
    /// Seeds every random choice.
    pub seed: u64,
}

/// Why figures cannot be reproduced.
#[derive(Debug, thiserror::Error)]
pub enum MinosError {
    /// A study is not what it should be, or there is none of this number.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// The platform is not what it should be.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// A point cannot be run.
    #[error(transparent)]
    Point(#[from] PointError),
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

/// A figure and what came.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is.
    pub study: Study,
    /// Its lines: for each series what is shown, and all that came, for each x.
    pub lines: Vec<Vec<(f64, Outcome)>>,
}

/// All figures, and how they compare with the paper.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// The figures.
    pub figures: Vec<Figure>,
    /// The paper's calibration rows beside the model.
    pub claims: Vec<Claim>,
    /// What the paper's text says about shapes.
    pub trends: Vec<Trend>,
    /// What the platform rests on, in a line.
    pub provenance: String,
    /// Clients of each node.
    pub workers: u64,
    /// Requests of each node that were measured.
    pub requests: u64,
    /// Points.
    pub points: usize,
    /// Events taken.
    pub events: u64,
    /// The seed.
    pub seed: u64,
}

/// Reproduces the figures. `progress` hears of every point; when it returns false the run ends.
pub fn reproduce(options: &Options, progress: &mut dyn FnMut(Progress) -> bool) -> Result<Reproduction, MinosError> {
    let studies = Study::all(options.figure.as_deref())?;
    let mut platform = Platform::load("minos")?;
    if let Some(workers) = options.workers {
        platform = platform.with(&[("replication.workers", f64::from(workers))])?;
    }
    let mut work = Vec::new();
    for study in &studies {
        for series in &study.series {
            for &x in &study.x.values {
                let setup = study.setup(series, x)?;
                let spec = setup.spec(&platform)?;
                work.push((setup, spec));
            }
        }
    }
    let outcomes = run_all(&work, options, progress)?;
    let events = outcomes.iter().map(|outcome| outcome.events).sum();
    let mut outcomes = outcomes.into_iter();
    let figures: Vec<Figure> = studies.into_iter().map(|study| Figure::new(study, &mut outcomes)).collect();
    Ok(Reproduction {
        claims: checks::claims(&figures, &platform),
        trends: checks::trends(&figures),
        figures,
        provenance: format!("{}: {}", platform.name, platform.params.shares_text()),
        workers: platform.replication.as_ref().map_or(0, |replication| replication.workers),
        requests: options.requests,
        points: work.len(),
        events,
        seed: options.seed,
    })
}

impl Figure {
    fn new(study: Study, outcomes: &mut impl Iterator<Item = Outcome>) -> Self {
        let lines = study.series.iter().map(|series| {
            let metric = series.metric.unwrap_or(study.y.metric);
            let dots = outcomes.by_ref().take(study.x.values.len());
            let mut dots: Vec<(f64, Outcome)> = dots.map(|outcome| (metric.of(&outcome), outcome)).collect();
            if study.relative_to_last
                && let Some(last) = dots.last().map(|dot| dot.0)
            {
                dots.iter_mut().for_each(|dot| dot.0 /= last);
            }
            dots
        });
        let lines = lines.collect();
        Self { study, lines }
    }
}

/// Runs all points on some threads; their results in order.
fn run_all(
    work: &[(Setup, Spec)],
    options: &Options,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Vec<Outcome>, MinosError> {
    let start = Instant::now();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![None; work.len()]));
    let (sender, receiver) = std::sync::mpsc::channel();
    let (mut events, mut failed) = (0, None);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, 256) {
            let (sender, next, results) = (sender.clone(), &next, &results);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((setup, spec)) = work.get(number) else { return };
                    let told = setup.run_on(spec, options.requests, options.seed).map(|outcome| {
                        let events = outcome.events;
                        if let Ok(mut results) = results.lock() {
                            results[number] = Some(outcome);
                        }
                        events
                    });
                    if sender.send(told).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for done in 1..=work.len() {
            match receiver.recv() {
                Ok(Ok(more)) => events += more,
                Ok(Err(e)) => failed = failed.take().or(Some(MinosError::from(e))),
                Err(_) => break,
            }
            let seconds = start.elapsed().as_secs_f64();
            if !progress(Progress { done, total: work.len(), events, seconds }) {
                failed = failed.take().or(Some(MinosError::Interrupted));
            }
            if failed.is_some() {
                next.store(work.len(), Ordering::Relaxed);
                break;
            }
        }
        drop(receiver);
    });
    match failed {
        Some(e) => Err(e),
        None => Ok(results.into_inner().unwrap_or_default().into_iter().map(Option::unwrap_or_default).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(figure: &str, jobs: usize) -> Options {
        Options { figure: Some(figure.into()), jobs, requests: 60, workers: None, seed: 42 }
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
        let other = reproduce(&Options { seed: 43, ..options("12", 2) }, &mut |_| true).unwrap();
        assert_ne!(first.figures, other.figures);
        assert!(table(&first).contains("MI-023") && page(&first).contains("<svg"));
    }

    #[test]
    fn every_study_names_setups_that_exist() {
        for study in Study::all(None).unwrap() {
            for series in &study.series {
                let platform = Platform::load("minos").unwrap();
                let setup = study.setup(series, study.x.values[0]).unwrap();
                setup.run(&platform, 4, 1).unwrap_or_else(|e| panic!("figure {}, {}: {e}", study.figure, series.name));
            }
        }
    }

    #[test]
    fn it_stops_when_told_to_and_knows_its_figures() {
        let result = reproduce(&options("4", 2), &mut |progress| progress.done < 3);
        assert!(matches!(result, Err(MinosError::Interrupted)));
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
