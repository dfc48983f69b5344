//! Points on threads.

use std::sync::Mutex;
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
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

/// One point to run.
pub(crate) trait Point: Sync {
    /// What it comes to.
    type Outcome: Clone + Default + Send + Serialize + DeserializeOwned;
    /// All that its outcome comes from, but for the code.
    fn key(&self) -> String;
    /// Runs it.
    fn run(&self) -> Result<Self::Outcome, ReproduceError>;
    /// Events that it took.
    fn events(outcome: &Self::Outcome) -> u64;
}

/// Runs all points on some threads; their results in order. `progress` hears of each; when it says no, the run ends.
pub(crate) fn run_all<P: Point>(
    work: &[P],
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<(Vec<P::Outcome>, Sums), ReproduceError> {
    let (start, cpu) = (Instant::now(), remora_real::process_cpu_ns());
    let cache = options.cache.clone().map(Cache::new);
    let (next, results) = (AtomicUsize::new(0), Mutex::new(vec![None; work.len()]));
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut sums = Sums { points: work.len(), ..Sums::default() };
    let mut failed = None;
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, 256) {
            let (sender, next, results, cache) = (sender.clone(), &next, &results, cache.as_ref());
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(point) = work.get(number) else { return };
                    let told = run_one(point, cache).map(|(outcome, cached)| {
                        let events = if cached { 0 } else { P::events(&outcome) };
                        if let Ok(mut results) = results.lock() {
                            results[number] = Some(outcome);
                        }
                        (events, cached)
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
                Ok(Ok((events, cached))) => {
                    sums.events += events;
                    sums.cached += usize::from(cached);
                }
                Ok(Err(e)) => failed = failed.take().or(Some(e)),
                Err(_) => break,
            }
            let seconds = start.elapsed().as_secs_f64();
            let go_on = progress(ReproduceProgress { done, total: work.len(), events: sums.events, seconds });
            if !go_on || failed.is_some() {
                next.store(work.len(), Ordering::Relaxed);
                failed = failed.take().or(Some(ReproduceError::Interrupted));
                break;
            }
        }
        drop(receiver);
    });
    sums.thread_seconds = (remora_real::process_cpu_ns() - cpu) as f64 / 1e9;
    match failed {
        Some(e) => Err(e),
        None => {
            let results = results.into_inner().unwrap_or_default();
            Ok((results.into_iter().map(Option::unwrap_or_default).collect(), sums))
        }
    }
}

fn run_one<P: Point>(point: &P, cache: Option<&Cache>) -> Result<(P::Outcome, bool), ReproduceError> {
    let Some(cache) = cache else { return Ok((point.run()?, false)) };
    let key = point.key();
    if let Some(outcome) = cache.get(&key) {
        return Ok((outcome, true));
    }
    let outcome = point.run()?;
    cache.put(&key, &outcome);
    Ok((outcome, false))
}
