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
    again: u8,
    failures: Failures,
}

const NONE: Failures = Failures { duplicates: 0, crashes: 0, suspicions: 0, restarts: 0, blackouts: 0 };
const CRASH: Failures = Failures { crashes: 1, ..NONE };

const fn mutant(mutation: Mutation, name: &'static str) -> Mutant {
    let (model, deployment) = (Model::Synch, Where::B);
    Mutant { mutation, name, quick: true, model, deployment, ops: Ops::Puts, writes: 2, again: 0, failures: NONE }
}

/// All of them.
pub const MUTANTS: [Mutant; 20] = [
    mutant(Mutation::SkipAck, "skip-ack"),
    mutant(Mutation::EarlyVal, "early-val"),
    mutant(Mutation::NoMaximum, "no-maximum"),
    mutant(Mutation::UnlockByNonOwner, "unlock-by-non-owner"),
    mutant(Mutation::AckBeforePersist, "ack-before-persist"),
    mutant(Mutation::NoConsistencySpin, "no-consistency-spin"),
    mutant(Mutation::NoObsolete, "no-obsolete"),
    Mutant { ops: Ops::Adds, ..mutant(Mutation::AcceptStaleRmw, "accept-stale-rmw") },
    Mutant { quick: false, failures: CRASH, ..mutant(Mutation::NoReplay, "no-replay") },
    Mutant { quick: false, failures: Failures { suspicions: 1, ..NONE }, ..mutant(Mutation::NoLease, "no-lease") },
    Mutant { model: Model::Scope, writes: 1, ..mutant(Mutation::EmptyScope, "empty-scope") },
    Mutant { ops: Ops::Adds, ..mutant(Mutation::LostWakeup, "lost-wakeup") },
    Mutant { deployment: Where::O(5), ops: Ops::Adds, ..mutant(Mutation::StaleRead, "stale-read") },
    Mutant { again: 1, model: Model::Event, ..mutant(Mutation::LostMarks, "lost-marks") },
    Mutant { quick: false, again: 2, model: Model::Event, ..mutant(Mutation::KeptMarks, "kept-marks") },
    Mutant {
        quick: false,
        model: Model::Event,
        deployment: Where::Stepped,
        ops: Ops::Adds,
        again: 1,
        failures: CRASH,
        ..mutant(Mutation::OldAcks, "old-acks")
    },
    Mutant { quick: false, again: 1, failures: CRASH, ..mutant(Mutation::CountsItself, "counts-itself") },
    Mutant { again: 1, ops: Ops::Adds, writes: 1, ..mutant(Mutation::DoneAnew, "done-anew") },
    Mutant { again: 1, ops: Ops::Swaps, ..mutant(Mutation::UnmarkedFailure, "unmarked-failure") },
    Mutant { again: 1, model: Model::Strict, writes: 1, ..mutant(Mutation::EarlyRepeat, "early-repeat") },
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
            again: self.again,
            failures: self.failures,
            mutation: Some(self.mutation),
            // What makes no difference to the engine may make one to a faulty one.
            orders: Orders::All,
            shard: Shard::WHOLE,
            alike: true,
        }
    }
}
