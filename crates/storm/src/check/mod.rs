//! Exhaustive checking of small cases: every interleaving of the very engine.
//!
//! A few nodes, a few writes to one record; messages in any order, some twice; local writes, drains and persists at any
//! later time; crashes, restarts and view changes at any moment. The invariants are those of table I of the MINOS paper
//! as corrected (see [`invariants`]), read safety, durability as the model promises it, and that nothing is stuck.

mod chart;
mod invariants;
mod mutants;
mod system;
#[cfg(test)]
mod tests;
mod world;

use std::time::{Duration, Instant};

use remora_replica::ddp::{Marks, Model, Mutation};
use stateright::{Checker, HasDiscoveries, Model as _};

use chart::chart;
pub use mutants::{MUTANTS, Mutant};
pub use system::{Failures, Options, Ops, Where};

/// What a check found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Distinct states.
    pub states: u64,
    /// States generated, the same ones again included.
    pub generated: u64,
    /// The longest way from the start.
    pub depth: usize,
    /// How long it took.
    pub seconds: f64,
    /// All states were visited; otherwise `limit` ended it.
    pub complete: bool,
    /// What is wrong, and a way to it as a message chart.
    pub failure: Option<(String, String)>,
    /// Which rare branches were reached.
    pub marks: Marks,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Stop after this many states generated.
    pub limit: Option<usize>,
    /// Threads.
    pub threads: usize,
    /// Breadth first: a counterexample is a shortest one, and memory holds all states of one depth. Otherwise depth
    /// first, which keeps little more than a fingerprint (16 bytes) of each state.
    pub shortest: bool,
}

/// Checks all states within the options. `progress` is called about once a second with the distinct states so far.
pub fn check(options: &Options, search: Search, mut progress: impl FnMut(u64)) -> Report {
    let system = system::System::new(options.clone());
    let reached = system.reached();
    let started = Instant::now();
    let mut builder = system.checker().threads(search.threads).finish_when(HasDiscoveries::AnyFailures);
    if let Some(limit) = search.limit {
        builder = builder.target_state_count(limit);
    }
    let report = if search.shortest {
        watch(builder.spawn_bfs(), search.limit, &mut progress)
    } else {
        watch(builder.spawn_dfs(), search.limit, &mut progress)
    };
    let marks = *reached.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Report { seconds: started.elapsed().as_secs_f64(), marks, ..report }
}

/// Waits for a checker, and reads its result.
fn watch(checker: impl Checker<system::System>, limit: Option<usize>, progress: &mut impl FnMut(u64)) -> Report {
    let mut told = Instant::now();
    while !checker.is_done() {
        std::thread::sleep(Duration::from_millis(5));
        if told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            progress(checker.unique_state_count() as u64);
        }
    }
    let checker = checker.join();
    let failure = checker.discoveries().into_iter().next().map(|(_, path)| {
        let reason = path.last_state().fault.clone().unwrap_or_else(|| "nothing can happen any more".to_string());
        (reason, chart(checker.model(), path))
    });
    Report {
        states: checker.unique_state_count() as u64,
        generated: checker.state_count() as u64,
        depth: checker.max_depth(),
        seconds: 0.0,
        complete: failure.is_none() && limit.is_none_or(|limit| checker.state_count() < limit),
        failure,
        marks: Marks::default(),
    }
}

/// Runs one seeded fault and expects that it is found.
pub fn check_mutant(mutation: Mutation, model: Option<Model>, threads: usize) -> Report {
    let mutant = MUTANTS.iter().find(|mutant| mutant.mutation == mutation);
    let options = mutant.map_or_else(Options::default, |mutant| mutant.options(model));
    let search = Search { limit: Some(2_000_000), threads, shortest: true };
    check(&Options { mutation: Some(mutation), ..options }, search, |_| {})
}
