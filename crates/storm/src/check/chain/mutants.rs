//! Seeded faults of the chain, and the smallest check that finds each.

use remora_replica::chain::ChainMutation;

use super::ChainOptions;

/// A seeded fault.
#[derive(Clone, Copy, Debug)]
pub struct ChainMutant {
    /// Its name on the command line.
    pub name: &'static str,
    options: ChainOptions,
}

const NONE: ChainOptions = ChainOptions::SMALLEST;

const fn mutant(mutation: ChainMutation, name: &'static str, options: ChainOptions) -> ChainMutant {
    ChainMutant { name, options: ChainOptions { mutation: Some(mutation), ..options } }
}

/// All of them.
pub const CHAIN_MUTANTS: [ChainMutant; 10] = [
    mutant(ChainMutation::EarlyShow, "early-show", ChainOptions { writes: 2, blackouts: 1, ..NONE }),
    mutant(ChainMutation::EarlyAnswer, "early-answer", ChainOptions { crashes: 1, ..NONE }),
    mutant(ChainMutation::NoQueue, "no-queue", ChainOptions { writes: 2, ..NONE }),
    mutant(ChainMutation::DirtyRead, "dirty-read", ChainOptions { reads: 2, ..NONE }),
    mutant(ChainMutation::OwnLog, "own-log", ChainOptions { crashes: 1, restarts: 1, ..NONE }),
    mutant(ChainMutation::TrustsTorn, "trusts-torn", ChainOptions { blackouts: 1, ..NONE }),
    mutant(ChainMutation::EarlyReady, "early-ready", ChainOptions { crashes: 1, restarts: 1, ..NONE }),
    mutant(ChainMutation::SkipRedo, "skip-redo", ChainOptions { crashes: 1, restarts: 1, ..NONE }),
    mutant(ChainMutation::NoFence, "no-fence", ChainOptions { looks: 1, suspicions: 1, ..NONE }),
    mutant(ChainMutation::EarlyWindow, "early-window", ChainOptions { nodes: 3, looks: 1, crashes: 1, ..NONE }),
];

impl ChainMutant {
    /// The check that finds it.
    pub fn options(&self) -> ChainOptions {
        self.options
    }
}
