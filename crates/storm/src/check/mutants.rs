//! Seeded faults of the engine, and the smallest check that finds each.

use remora_replica::ddp::{Model, Mutation};

use crate::shard::Shard;

use super::system::{Failures, Ops, Options, Orders, Where};

/// A seeded fault.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What is wrong with the engine.
    pub mutation: Mutation,
    /// Its name on the command line.
    pub name: &'static str,
    /// Found within a second or so.
    pub quick: bool,
    model: Model,
    deployment: Where,
    ops: Ops,
    writes: u8,
    failures: Failures,
}

const NONE: Failures = Failures { duplicates: 0, crashes: 0, suspicions: 0, restarts: 0, blackouts: 0 };

const fn mutant(mutation: Mutation, name: &'static str) -> Mutant {
    let (model, deployment) = (Model::Synch, Where::B);
    Mutant { mutation, name, quick: true, model, deployment, ops: Ops::Puts, writes: 2, failures: NONE }
}

/// All of them.
pub const MUTANTS: [Mutant; 13] = [
    mutant(Mutation::SkipAck, "skip-ack"),
    mutant(Mutation::EarlyVal, "early-val"),
    mutant(Mutation::NoMaximum, "no-maximum"),
    mutant(Mutation::UnlockByNonOwner, "unlock-by-non-owner"),
    mutant(Mutation::AckBeforePersist, "ack-before-persist"),
    mutant(Mutation::NoConsistencySpin, "no-consistency-spin"),
    mutant(Mutation::NoObsolete, "no-obsolete"),
    Mutant { ops: Ops::Adds, ..mutant(Mutation::AcceptStaleRmw, "accept-stale-rmw") },
    Mutant { quick: false, failures: Failures { crashes: 1, ..NONE }, ..mutant(Mutation::NoReplay, "no-replay") },
    Mutant { quick: false, failures: Failures { suspicions: 1, ..NONE }, ..mutant(Mutation::NoLease, "no-lease") },
    Mutant { model: Model::Scope, writes: 1, ..mutant(Mutation::EmptyScope, "empty-scope") },
    Mutant { ops: Ops::Adds, ..mutant(Mutation::LostWakeup, "lost-wakeup") },
    Mutant { deployment: Where::O(5), ops: Ops::Adds, ..mutant(Mutation::StaleRead, "stale-read") },
];

impl Mutant {
    /// The check that finds it; with another model if one is given.
    pub fn options(&self, model: Option<Model>) -> Options {
        Options {
            model: model.unwrap_or(self.model),
            deployment: self.deployment,
            nodes: 3,
            writes: self.writes,
            records: 1,
            persists: 1,
            ops: self.ops,
            failures: self.failures,
            mutation: Some(self.mutation),
            // What makes no difference to the engine may make one to a faulty one.
            orders: Orders::All,
            shard: Shard::WHOLE,
            alike: true,
        }
    }
}
