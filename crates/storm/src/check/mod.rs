//! Exhaustive checking of small cases: every interleaving of the very engine.
//!
//! A few nodes, a few writes to one record; messages in any order, some twice; local writes, drains and persists at any
//! later time; crashes, restarts and view changes at any moment. The invariants are those of table I of the MINOS paper
//! as corrected (see [`invariants`]), read safety, durability as the model promises it, and that nothing is stuck.

mod alike;
pub mod chain;
mod chart;
mod invariants;
mod local;
pub mod membership;
mod mutants;
mod proof;
pub mod rack;
mod reduce;
mod system;
#[cfg(test)]
mod tests;
pub mod tree;
mod world;

use std::sync::PoisonError;

use remora_replica::ddp::{Model, Mutation};

use crate::search;
pub use crate::search::{Bound, CheckReport, Search};
use chart::chart;
pub use mutants::{MUTANTS, Mutant};
pub use system::{Failures, Ops, Options, Orders, Where};

/// Checks all states within the options. `progress` is called about once a second with the distinct states so far;
/// when it returns false the search ends with what there is.
pub fn check(options: &Options, search: Search, progress: impl FnMut(u64) -> bool) -> CheckReport {
    let system = system::System::new(options.clone());
    let found = search::search(&system, search, progress);
    let marks = *system.reached().lock().unwrap_or_else(PoisonError::into_inner);
    CheckReport { marks, ..found.told(|way| told(&system, &way)) }
}

/// What is wrong at the end of a way, and the way as a message chart.
fn told(system: &system::System, way: &[system::Action]) -> (String, String) {
    let path = system.path(way);
    let reason = path.last().map(|(_, state)| chart::reason(system, state));
    (reason.unwrap_or_default(), chart(system, &path))
}

/// Runs one seeded fault and expects that it is found.
pub fn check_mutant(mutation: Mutation, model: Option<Model>, threads: usize) -> CheckReport {
    let mutant = MUTANTS.iter().find(|mutant| mutant.mutation == mutation);
    let options = mutant.map_or_else(Options::default, |mutant| mutant.options(model));
    let search = Search { limit: 1_000_000, memory: 3 << 30, threads, shortest: true, ..Search::default() };
    check(&Options { mutation: Some(mutation), ..options }, search, |_| true)
}
