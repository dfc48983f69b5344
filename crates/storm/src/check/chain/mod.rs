//! Exhaustive checking of a chain: every interleaving of the very engine, for two transactions of two keys and readers.
//!
//! Messages come in any order; what is to be durable becomes so at any later time; nodes crash before and after each flush,
//! with any part of what was not flushed, the next entry torn; one by one or all at once; and start again as learners.
//! Who reads by one-sided READs makes each of them at any later time, with the key that it had then.
//! Membership is replaced by its contract: views in order, and none without a node before that node's lease is over.
//! Checked is, whenever a transaction ends and when nothing can happen any more:
//!
//! 1. Some order of the transactions, in which each that ended before another began comes first, explains what all
//!    of them read, and what is there in the end (strict serializability).
//! 2. In the end all members have the same data, and nobody waits.

mod looks;
mod mutants;
#[cfg(test)]
mod tests;
mod world;

use remora_replica::chain::ChainMutation;

use super::{CheckReport, Search};
use crate::search::search;
pub use mutants::{CHAIN_MUTANTS, ChainMutant};
use world::World;

/// What to check.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChainOptions {
    /// Nodes.
    pub nodes: u8,
    /// Transactions that read two keys and write both.
    pub writes: u8,
    /// Transactions that only read both keys, at any member.
    pub reads: u8,
    /// Transactions that only read both keys, by one-sided READs of the head's window.
    pub looks: u8,
    /// Crashes of single nodes.
    pub crashes: u8,
    /// Crashed nodes that start again and catch up.
    pub restarts: u8,
    /// Nodes that are wrongly left out of a view.
    pub suspicions: u8,
    /// Crashes of all nodes at once; all start again.
    pub blackouts: u8,
    /// A seeded fault of the engine.
    pub mutation: Option<ChainMutation>,
}

impl Default for ChainOptions {
    fn default() -> Self {
        Self { nodes: 3, writes: 2, reads: 1, ..Self::SMALLEST }
    }
}

impl ChainOptions {
    /// Two nodes and a write, without faults.
    pub const SMALLEST: Self = Self {
        nodes: 2,
        writes: 1,
        reads: 0,
        looks: 0,
        crashes: 0,
        restarts: 0,
        suspicions: 0,
        blackouts: 0,
        mutation: None,
    };
}

/// Checks all states within the options. `progress` is called about once a second with the distinct states so far;
/// when it returns false the search ends with what there is.
pub fn check_chain(options: &ChainOptions, how: Search, progress: impl FnMut(u64) -> bool) -> CheckReport {
    let world = World::new(*options);
    let found = search(&world, how, progress);
    found.told(|way| world.chart(&way))
}

/// Runs one seeded fault and expects that it is found.
pub fn check_chain_mutant(mutant: &ChainMutant) -> CheckReport {
    let bounds = Search { limit: 5_000_000, memory: 3 << 30, shortest: true, ..Search::default() };
    check_chain(&mutant.options(), bounds, |_| true)
}
