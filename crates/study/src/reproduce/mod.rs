//! A paper's figures from the model: what is run, the figures beside what the paper's text says, and the trends.

mod cache;
mod checks;
mod fit;
mod page;
mod point;
mod show;
mod streams;
mod study;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use remora_model::platform::{Platform, PlatformError};

pub use cache::Cache;
pub use checks::{Claim, Trend};
pub use fit::Fitted;
pub use page::page;
pub use point::Outcomes;
pub use show::{csv, table};
pub(crate) use show::{interval, number, said};
pub use study::{Study, StudyError};

use point::Ground;
use study::Series;

use crate::modelled::ModelError;

/// What to reproduce, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// One figure, or all.
    pub figure: Option<String>,
    /// Threads.
    pub jobs: usize,
    /// Where results of earlier runs are, and these go.
    pub cache: Option<PathBuf>,
    /// Seeds every random choice.
    pub seed: u64,
}

/// Why figures cannot be reproduced.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A study is not what it should be.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// A platform is not what it should be.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The model cannot go on.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Points done.
    pub done: usize,
    /// Points to do.
    pub total: usize,
    /// Events taken so far.
    pub events: u64,
    /// Seconds so far.
    pub seconds: f64,
}

/// A figure and what came.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is.
    pub study: Study,
    /// Its lines: for each series a point for each x.
    pub lines: Vec<Vec<Dot>>,
}

/// A point of a line.
#[derive(Clone, Debug)]
pub struct Dot {
    /// Where.
    pub x: u64,
    /// What the figure shows.
    pub y: f64,
    /// The 1st and the 99th percentile, or the same again.
    pub spread: (f64, f64),
    /// All that came.
    pub outcome: Outcomes,
}

/// All figures, and how they compare with the paper.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// The figures.
    pub figures: Vec<Figure>,
    /// Free parameters and what they were fitted to.
    pub fitted: Vec<Fitted>,
    /// What each platform rests on, in a line.
    pub provenance: Vec<String>,
    /// The paper's calibration rows beside the model.
    pub claims: Vec<Claim>,
    /// What the paper's text says about shapes.
    pub trends: Vec<Trend>,
    /// Events taken now, without those of cached results.
    pub events: u64,
    /// Seconds of processor time that it took, of all threads together.
    pub thread_seconds: f64,
    /// Points, and those of them that were cached.
    pub points: (usize, usize),
    /// The seed.
    pub seed: u64,
}

/// Reproduces StRoM's figures. `progress` hears of every point; when it returns false the run ends.
pub fn strom(options: &Options, progress: &mut dyn FnMut(Progress) -> bool) -> Result<Reproduction, ReproduceError> {
    let studies = Study::strom(options.figure.as_deref())?;
    let (platforms, fitted) = fit::strom(options.seed)?;
    let cache = options.cache.clone().map(Cache::new);
    let mut work = Vec::new();
    for study in &studies {
        Work::add(study, &platforms, options.seed, cache.is_some(), &mut work)?;
    }
    let (results, sums) = run_all(&work, cache.as_ref(), options, progress)?;
    let mut results = results.into_iter();
    let mut figures = Vec::new();
    for study in &studies {
        let mut lines = Vec::new();
        for _ in &study.series {
            let dots = study.x.values.iter().zip(results.by_ref()).map(|(&x, outcome)| {
                let (y, low, high) = point::shown(study, &outcome);
                Dot { x, y, spread: (low, high), outcome }
            });
            lines.push(dots.collect());
        }
        figures.push(Figure { study: study.clone(), lines });
    }
    let provenance = platforms.iter().map(|p| format!("{}: {}", p.name, p.params.shares_text())).collect();
    Ok(Reproduction {
        claims: checks::claims(&figures, &platforms),
        trends: checks::trends(&figures, &platforms),
        figures,
        fitted,
        provenance,
        events: sums.events,
        thread_seconds: sums.seconds,
        points: (work.len(), sums.cached),
        seed: options.seed,
    })
}

/// One point to run.
struct Work<'a> {
    series: &'a Series,
    ground: Arc<Ground>,
    x: u64,
    /// All that the result comes from, if results are kept.
    key: Option<String>,
}

impl<'a> Work<'a> {
    /// Adds a study's points, line by line.
    fn add(
        study: &'a Study,
        platforms: &[Platform],
        seed: u64,
        keyed: bool,
        to: &mut Vec<Self>,
    ) -> Result<(), ReproduceError> {
        for series in &study.series {
            let platform = platforms.iter().find(|platform| platform.name == series.platform);
            let unknown = || StudyError(format!("figure {} names no platform of the paper's", study.figure));
            let platform = platform.ok_or_else(unknown)?;
            let ground = Arc::new(Ground::new(platform, seed)?);
            to.extend(study.x.values.iter().map(|&x| {
                let key = keyed.then(|| cache::key(series, platform, x, seed));
                Work { series, ground: ground.clone(), x, key }
            }));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Default)]
struct Sums {
    events: u64,
    seconds: f64,
    cached: usize,
}

/// Runs all points on some threads; their results in order.
fn run_all(
    work: &[Work<'_>],
    cache: Option<&Cache>,
    options: &Options,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<(Vec<Outcomes>, Sums), ReproduceError> {
    let (start, cpu) = (Instant::now(), remora_real::process_cpu_ns());
    let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![None; work.len()]));
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut sums = Sums::default();
    let mut failed = None;
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, 256) {
            let (sender, next, results) = (sender.clone(), &next, &results);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(work) = work.get(number) else { return };
                    let told = run_one(work, cache).map(|(outcome, cached)| {
                        let events = if cached { 0 } else { outcome.events };
                        if let Ok(mut results) = results.lock() {
                            results[number] = Some(outcome);
                        }
                        Sums { events, cached: usize::from(cached), ..Sums::default() }
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
                Ok(Ok(sum)) => {
                    sums.events += sum.events;
                    sums.cached += sum.cached;
                }
                Ok(Err(e)) => failed = failed.take().or(Some(e)),
                Err(_) => break,
            }
            let seconds = start.elapsed().as_secs_f64();
            let go_on = progress(Progress { done, total: work.len(), events: sums.events, seconds });
            if !go_on || failed.is_some() {
                next.store(work.len(), Ordering::Relaxed);
                failed = failed.take().or_else(|| (!go_on).then_some(ModelError::Interrupted));
                break;
            }
        }
        drop(receiver);
    });
    sums.seconds = (remora_real::process_cpu_ns() - cpu) as f64 / 1e9;
    match failed {
        Some(e) => Err(e.into()),
        None => {
            let results = results.into_inner().unwrap_or_default();
            Ok((results.into_iter().map(Option::unwrap_or_default).collect(), sums))
        }
    }
}

fn run_one(work: &Work<'_>, cache: Option<&Cache>) -> Result<(Outcomes, bool), ModelError> {
    let kept = cache.zip(work.key.as_ref());
    if let Some(outcome) = kept.and_then(|(cache, key)| cache.get(key)) {
        return Ok((outcome, true));
    }
    let outcome = point::run(&work.ground, work.series, work.x)?;
    if let Some((cache, key)) = kept {
        cache.put(key, &outcome);
    }
    Ok((outcome, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(jobs: usize, cache: Option<PathBuf>) -> Reproduction {
        let options = Options { figure: Some("7".into()), jobs, cache, seed: 42 };
        strom(&options, &mut |_| true).unwrap()
    }

    #[test]
    fn a_figure_is_the_same_from_any_number_of_threads_and_from_the_cache() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Some(directory.path().to_path_buf());
        let (first, second, third) = (run(1, None), run(3, cache.clone()), run(2, cache));
        let csvs = |all: &Reproduction| all.figures.iter().map(csv).collect::<Vec<_>>();
        assert!(csvs(&first) == csvs(&second) && csvs(&first) == csvs(&third));
        assert_eq!((second.points, third.points), ((18, 0), (18, 18)));
        assert!(first.events > 10_000 && third.events == 0);
        // Three series of six lengths.
        assert_eq!(csvs(&first)[0].lines().count(), 1 + 18);
        assert!(csvs(&first)[0].starts_with("figure,series,x,x_unit,y,y_unit\n7,READ,1,elements,"));
        assert_eq!(first.trends.len(), 3);
        assert!(first.trends.iter().all(|trend| trend.holds), "{:?}", first.trends);
        let element = first.claims.iter().find(|claim| claim.id == "ST-047").unwrap();
        assert_eq!(element.agrees(), Some(true), "{element:?}");
        let elsewhere = first.claims.iter().find(|claim| claim.id == "ST-075").unwrap();
        assert_eq!(elsewhere.agrees(), None, "its figure was not run");
        for (text, least) in [(table(&first), 30), (page(&first), 60)] {
            assert!(text.lines().count() > least && text.contains("tx_depth"), "{text}");
        }
    }

    #[test]
    fn it_stops_when_told_to() {
        let options = Options { figure: Some("5a".into()), jobs: 2, cache: None, seed: 1 };
        let result = strom(&options, &mut |progress| progress.done < 3);
        assert!(matches!(result, Err(ReproduceError::Model(ModelError::Interrupted))));
        let options = Options { figure: Some("6".into()), ..options };
        let error = strom(&options, &mut |_| true).unwrap_err().to_string();
        assert!(error.starts_with("there is no figure 6: choose one of 5a, 5b"), "{error}");
    }
}
