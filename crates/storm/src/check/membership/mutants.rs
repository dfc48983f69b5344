//! Seeded faults of membership, and the smallest check that finds each.

use remora_replica::member::Mutation;

use super::MemberOptions;

/// A seeded fault.
#[derive(Clone, Copy, Debug)]
pub struct MemberMutant {
    /// What is wrong with the engine.
    pub mutation: Mutation,
    /// Its name on the command line.
    pub name: &'static str,
    /// Found within some seconds.
    pub quick: bool,
    nodes: u8,
    proposals: u8,
    crashes: u8,
    wipes: u8,
    first_start: bool,
}

const fn mutant(mutation: Mutation, name: &'static str) -> MemberMutant {
    MemberMutant { mutation, name, quick: true, nodes: 3, proposals: 2, crashes: 0, wipes: 0, first_start: false }
}

/// All of them.
pub const MEMBER_MUTANTS: [MemberMutant; 13] = [
    MemberMutant { crashes: 1, ..mutant(Mutation::EarlyPrepare, "early-prepare") },
    MemberMutant { crashes: 1, ..mutant(Mutation::BallotAgain, "ballot-again") },
    MemberMutant { quick: false, crashes: 1, ..mutant(Mutation::EarlyPromise, "early-promise") },
    MemberMutant { crashes: 1, ..mutant(Mutation::EarlyAccepted, "early-accepted") },
    mutant(Mutation::ForgetsAccepted, "forgets-accepted"),
    mutant(Mutation::KeepsOwn, "keeps-own"),
    MemberMutant { proposals: 3, ..mutant(Mutation::TakesLast, "takes-last") },
    mutant(Mutation::AcceptsOld, "accepts-old"),
    mutant(Mutation::Minority, "minority"),
    MemberMutant { crashes: 1, ..mutant(Mutation::EarlyInstall, "early-install") },
    MemberMutant { wipes: 1, ..mutant(Mutation::EmptyIsNew, "empty-is-new") },
    MemberMutant { nodes: 2, proposals: 0, wipes: 1, first_start: true, ..mutant(Mutation::OldAnswers, "old-answers") },
    MemberMutant { wipes: 1, ..mutant(Mutation::DamagedEnters, "damaged-enters") },
];

impl MemberMutant {
    /// The check that finds it.
    pub fn options(&self) -> MemberOptions {
        let Self { mutation, nodes, proposals, crashes, wipes, first_start, .. } = *self;
        let mutation = Some(mutation);
        MemberOptions { nodes, proposals, crashes, wipes, first_start, mutation, ..MemberOptions::default() }
    }
}
