//! Exhaustive checking of small cases: every interleaving of the very engine.
//!
//! A few nodes, a few writes to one record; messages in any order, some twice; local writes, drains and persists at any
//! later time; crashes, restarts and view changes at any moment. The invariants are those of table I of the MINOS paper
//! as corrected (see [`invariants`]), read safety, durability as the model promises it, and that nothing is stuck.

mod breadth;
mod chart;
mod invariants;
mod local;
mod mutants;
mod proof;
mod reduce;
mod search;
mod system;
#[cfg(test)]
mod tests;
mod visited;
mod world;

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_replica::ddp::{Marks, Model, Mutation};

use chart::chart;
pub use mutants::{MUTANTS, Mutant};
pub use system::{Failures, Ops, Options, Orders, Where};

/// What a check found.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Distinct states.
    pub states: u64,
    /// States generated, the same ones again included.
    pub generated: u64,
    /// The longest way from the start.
    pub depth: usize,
    /// How long it took.
    pub seconds: f64,
    /// Which bound ended the search. If none did, and nothing is wrong, all states were visited.
    pub stopped: Option<Bound>,
    /// Bytes of memory that the process had at most.
    pub memory: u64,
    /// What is wrong, and a way to it as a message chart.
    pub failure: Option<(String, String)>,
    /// Which rare branches were reached.
    pub marks: Marks,
}

impl CheckReport {
    /// Were all states visited, and nothing wrong with any?
    pub fn complete(&self) -> bool {
        self.failure.is_none() && self.stopped.is_none()
    }
}

/// What bounds a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// [`Search::limit`].
    States,
    /// [`Search::memory`].
    Memory,
    /// [`Search::time`].
    Time,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Stop after this many distinct states, or about that many.
    pub limit: u64,
    /// Stop when the process has this many bytes of memory.
    pub memory: u64,
    /// Stop after this long.
    pub time: Duration,
    /// Threads.
    pub threads: usize,
    /// Breadth first: a counterexample is a shortest one, and memory holds all states of one depth. Otherwise depth
    /// first, which keeps little more than a print of each state (12 bytes at most).
    pub shortest: bool,
}

impl Default for Search {
    fn default() -> Self {
        Self { limit: u64::MAX, memory: 2 << 30, time: Duration::MAX, threads: 1, shortest: false }
    }
}

/// Checks all states within the options. `progress` is called about once a second with the distinct states so far.
pub fn check(options: &Options, search: Search, progress: impl FnMut(u64)) -> CheckReport {
    let system = system::System::new(options.clone());
    let reached = system.reached();
    let report = if search.shortest { breadth(&system, search, progress) } else { depth(&system, search, progress) };
    let marks = *reached.lock().unwrap_or_else(PoisonError::into_inner);
    CheckReport { marks, ..report }
}

/// Breadth first, by one thread.
fn breadth(system: &system::System, search: Search, progress: impl FnMut(u64)) -> CheckReport {
    let visit = breadth::Breadth::new(system);
    let (stopped, seconds, memory) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| visit.work());
        let states = || visit.states.load(Ordering::Relaxed);
        watch(search, || thread.is_finished(), states, || visit.stop(), progress)
    });
    let way = visit.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    CheckReport {
        states: visit.states.load(Ordering::Relaxed),
        generated: visit.generated.load(Ordering::Relaxed),
        depth: visit.depth.load(Ordering::Relaxed),
        seconds,
        stopped,
        memory,
        failure: way.map(|way| told(system, &way)),
        marks: Marks::default(),
    }
}

/// Depth first.
fn depth(system: &system::System, search: Search, progress: impl FnMut(u64)) -> CheckReport {
    let visit = search::Visit::new(system, search.threads);
    let states = || visit.states.load(Ordering::Relaxed);
    let (stopped, seconds, memory) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..search.threads).map(|_| scope.spawn(|| visit.work())).collect();
        let done = || {
            if threads.iter().any(|thread| thread.is_finished()) {
                // Also if it ended by a panic, which comes out when the scope ends.
                visit.stop();
            }
            threads.iter().all(|thread| thread.is_finished())
        };
        watch(search, done, states, || visit.stop(), progress)
    });
    let way = visit.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    CheckReport {
        states: states(),
        generated: visit.generated.load(Ordering::Relaxed),
        depth: visit.depth.load(Ordering::Relaxed),
        seconds,
        stopped,
        memory,
        failure: way.map(|way| told(system, &way)),
        marks: Marks::default(),
    }
}

/// What is wrong at the end of a way, and the way as a message chart.
fn told(system: &system::System, way: &[system::Action]) -> (String, String) {
    let path = system.path(way);
    (chart::reason(system, path.last().map_or(&system.first(), |(_, state)| state)), chart(system, &path))
}

/// Waits for a search, and stops it where it is bounded. Returns the bound, how long it took, and bytes of memory.
fn watch(
    search: Search,
    done: impl Fn() -> bool,
    states: impl Fn() -> u64,
    stop: impl Fn(),
    mut progress: impl FnMut(u64),
) -> (Option<Bound>, f64, u64) {
    let (started, mut told) = (Instant::now(), Instant::now());
    let (mut stopped, mut memory) = (None, 0);
    while !done() {
        std::thread::sleep(Duration::from_millis(5));
        memory = resident().max(memory);
        let bounds = [
            (Bound::States, states() >= search.limit),
            (Bound::Memory, memory > search.memory),
            (Bound::Time, started.elapsed() >= search.time),
        ];
        if let Some((bound, _)) = bounds.into_iter().find(|(_, reached)| *reached && stopped.is_none()) {
            stopped = Some(bound);
            stop();
        }
        if told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            progress(states());
        }
    }
    (stopped, started.elapsed().as_secs_f64(), memory)
}

/// Bytes of memory that this process has; 0 where nobody says.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Runs one seeded fault and expects that it is found.
pub fn check_mutant(mutation: Mutation, model: Option<Model>, threads: usize) -> CheckReport {
    let mutant = MUTANTS.iter().find(|mutant| mutant.mutation == mutation);
    let options = mutant.map_or_else(Options::default, |mutant| mutant.options(model));
    let search = Search { limit: 1_000_000, memory: 3 << 30, threads, shortest: true, ..Search::default() };
    check(&Options { mutation: Some(mutation), ..options }, search, |_| {})
}
