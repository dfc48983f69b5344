//! Points on threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Cache, ReproduceError, ReproduceOptions};

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct ReproduceProgress {
    /// Points done.
    pub done: usize,
    /// Points to do.
    pub total: usize,
    /// Events taken so far.
    pub events: u64,
    /// Seconds so far.
    pub seconds: f64,
}

/// What running figures took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sums {
    /// Points.
    pub points: usize,
    /// Those of them that were kept from earlier.
    pub cached: usize,
    /// Events taken now, without those of kept results.
    pub events: u64,
    /// Seconds of processor time, of all threads together.
    pub thread_seconds: f64,
}

/// What came of all points.
pub(crate) struct Ran<O> {
    /// Their results in order; none of those that were not run.
    pub outcomes: Vec<Option<O>>,
    /// What it took.
    pub sums: Sums,
    /// What is missing, if the user wanted no more.
    pub incomplete: Option<String>,
}

/// What a point comes to: kept from run to run.
pub trait Outcome: Clone + Send + Serialize + DeserializeOwned {}

impl<O: Clone + Send + Serialize + DeserializeOwned> Outcome for O {}

/// One point to run.
pub trait Point: Sync {
    /// What it comes to.
    type Outcome: Outcome;
    /// All that its outcome comes from, but for the code.
    fn key(&self) -> String;
    /// Runs it.
    fn run(&self) -> Result<Self::Outcome, ReproduceError>;
    /// Events that it took.
    fn events(outcome: &Self::Outcome) -> u64;
}

/// Runs all points on some threads, those that are alike once. `progress` hears of each; when it says no, the run ends with those it heard of, and if that is
/// none with [`ReproduceError::Interrupted`].
pub(crate) fn run_all<P: Point>(
    work: &[P],
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Ran<P::Outcome>, ReproduceError> {
    let (start, cpu) = (Instant::now(), remora_real::process_cpu_ns());
    let (mut unlike, mut places, mut known): (Vec<(&P, String)>, _, _) = (Vec::new(), Vec::new(), HashMap::new());
    for point in work {
        let key = point.key();
        let place = *known.entry(key.clone()).or_insert(unlike.len());
        if place == unlike.len() {
            unlike.push((point, key));
        }
        places.push(place);
    }
    let work = &unlike;
    let cache = options.cache.clone().map(Cache::new);
    let (next, mut outcomes) = (AtomicUsize::new(0), vec![None; work.len()]);
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut sums = Sums { points: work.len(), ..Sums::default() };
    let (mut failed, mut cut) = (None, false);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, 256) {
            let (sender, next, cache) = (sender.clone(), &next, cache.as_ref());
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((point, key)) = work.get(number) else { return };
                    if sender.send(run_one(*point, key, cache).map(|ran| (number, ran))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for done in 1..=work.len() {
            match receiver.recv() {
                Ok(Ok((number, (outcome, cached)))) => {
                    sums.events += if cached { 0 } else { P::events(&outcome) };
                    sums.cached += usize::from(cached);
                    outcomes[number] = Some(outcome);
                }
                Ok(Err(e)) => failed = failed.take().or(Some(e)),
                Err(_) => break,
            }
            let seconds = start.elapsed().as_secs_f64();
            let go_on = progress(ReproduceProgress { done, total: work.len(), events: sums.events, seconds });
            if !go_on || failed.is_some() {
                next.store(work.len(), Ordering::Relaxed);
                // Who is asked at the last point has nothing to leave out.
                cut = !go_on && done < work.len();
                break;
            }
        }
        drop(receiver);
    });
    sums.thread_seconds = (remora_real::process_cpu_ns() - cpu) as f64 / 1e9;
    if let Some(e) = failed {
        return Err(e);
    }
    let done = outcomes.iter().flatten().count();
    let missing = || {
        let of = work.len();
        format!("interrupted; {done} of {of} points were run, and only lines that have all of theirs are here")
    };
    match cut {
        true if done == 0 => Err(ReproduceError::Interrupted),
        cut => Ok(Ran {
            outcomes: places.iter().map(|&place| outcomes[place].clone()).collect(),
            sums,
            incomplete: (cut && done < work.len()).then(missing),
        }),
    }
}

fn run_one<P: Point>(point: &P, key: &str, cache: Option<&Cache>) -> Result<(P::Outcome, bool), ReproduceError> {
    let Some(cache) = cache else { return Ok((point.run()?, false)) };
    if let Some(outcome) = cache.get(key) {
        return Ok((outcome, true));
    }
    let outcome = point.run()?;
    cache.put(key, &outcome);
    Ok((outcome, false))
}
