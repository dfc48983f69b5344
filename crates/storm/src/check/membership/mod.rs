//! Exhaustive checking of membership: every interleaving of the very engine, for a few proposals.
//!
//! Nodes propose views at any moment, each another one; messages come in any order, late, again and again, or never; what a node
//! wants durable becomes so at any later time; nodes crash before and after each sync, one by one or all at once, and
//! start again; a disk may come back empty. Time stands still within a life, so leases bind nobody here: what they
//! promise is the business of storms. Checked is, in every state:
//!
//! 1. For each epoch one view is decided.
//! 2. A view that was decided is not lost: whoever asks a majority of the disks that are whole finds it.
//! 3. Each node enters views in the order of their epochs, from life to life.
//! 4. A ballot is used for one view.

mod chart;
mod mutants;
mod search;
#[cfg(test)]
mod tests;
mod world;

use remora_replica::member::Mutation;

pub use mutants::{MEMBER_MUTANTS, MemberMutant};
pub use search::{check_member_mutant, check_membership};

/// What to check.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemberOptions {
    /// Nodes.
    pub nodes: u8,
    /// Of those, so many propose.
    pub proposers: u8,
    /// Proposals, all together.
    pub proposals: u8,
    /// Epochs that are decided, at most.
    pub epochs: u8,
    /// Crashes of single nodes; each starts again at any later time.
    pub crashes: u8,
    /// Crashes of all nodes at once.
    pub blackouts: u8,
    /// Disks that come back empty, one at a time.
    pub wipes: u8,
    /// From empty logs on, instead of from a first view that all are in.
    pub first_start: bool,
    /// A seeded fault of the engine.
    pub mutation: Option<Mutation>,
}

impl Default for MemberOptions {
    fn default() -> Self {
        Self {
            nodes: 3,
            proposers: 2,
            proposals: 2,
            epochs: 1,
            crashes: 0,
            blackouts: 0,
            wipes: 0,
            first_start: false,
            mutation: None,
        }
    }
}
