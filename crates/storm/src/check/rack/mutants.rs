//! Seeded faults of the rack, and the smallest check that finds each.

use remora_rack::{FlowMutation, RackMutation};

use super::{BufferOptions, CheckReport, FlowOptions, Search, check_buffers, check_flow};

/// A seeded fault, by the part of the engine that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RackSeeded {
    /// Buffers that are passed.
    Buffers(RackMutation),
    /// Flows that go by several NICs.
    Flow(FlowMutation),
}

/// A seeded fault.
#[derive(Clone, Copy, Debug)]
pub struct RackMutant {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is wrong with the engine.
    pub seeded: RackSeeded,
}

const fn buffers(name: &'static str, mutation: RackMutation) -> RackMutant {
    RackMutant { name, seeded: RackSeeded::Buffers(mutation) }
}

const fn flow(name: &'static str, mutation: FlowMutation) -> RackMutant {
    RackMutant { name, seeded: RackSeeded::Flow(mutation) }
}

/// All of them.
pub const RACK_MUTANTS: [RackMutant; 12] = [
    buffers("frees-posted", RackMutation::FreesPosted),
    buffers("forgets-lost", RackMutation::ForgetsLost),
    buffers("frees-read", RackMutation::FreesRead),
    buffers("loses-passed", RackMutation::LosesPassed),
    buffers("keeps-rights", RackMutation::KeepsRights),
    flow("forgets", FlowMutation::Forgets),
    flow("early-done", FlowMutation::EarlyDone),
    flow("no-limit", FlowMutation::NoLimit),
    flow("stays-down", FlowMutation::StaysDown),
    flow("uses-down", FlowMutation::UsesDown),
    flow("takes-twice", FlowMutation::TakesTwice),
    flow("skips-gaps", FlowMutation::SkipsGaps),
];

/// Runs one seeded fault and expects that it is found.
pub fn check_rack_mutant(mutant: &RackMutant) -> CheckReport {
    let how = Search { limit: 5_000_000, memory: 3 << 30, shortest: true, ..Search::default() };
    match mutant.seeded {
        RackSeeded::Buffers(mutation) => {
            check_buffers(BufferOptions { mutation: Some(mutation), ..BufferOptions::default() }, how, |_| true)
        }
        // Two failures, so that none is left that did not fail.
        RackSeeded::Flow(mutation) => {
            check_flow(FlowOptions { mutation: Some(mutation), failures: 2, ..FlowOptions::default() }, how, |_| true)
        }
    }
}
