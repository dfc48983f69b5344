//! Exhaustive checking of the rack: every interleaving of the very engine, for a few buffers and for one flow.
//!
//! *Buffers*: nodes ask for buffers, pass them on by reference, receive and free them, and die at any moment. Checked is, in
//! every state: no buffer is handed out twice, each is reached by who holds it, none is lost, and what is passed comes.
//!
//! *Flow*: NICs take a flow's segments, deliver them at any later time and tell of it later still; they fail with any part of
//! them delivered and come back, what they had may arrive long after, and some are silent for a while. Checked is: every
//! byte is taken once and in order, as it was sent, never more are held than the window has room for, no NIC that is
//! down is given any, and in the end all have arrived.

mod buffers;
mod flow;
mod mutants;
#[cfg(test)]
mod tests;

use remora_rack::{FlowMutation, Mapping, RackMutation};

use super::{CheckReport, Search};
use crate::search::{Space, Steps, search};
use buffers::Buffers;
use flow::Flow;
pub use mutants::{RACK_MUTANTS, RackMutant, RackSeeded, check_rack_mutant};

/// Nodes that pass buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferOptions {
    /// Nodes.
    pub nodes: u8,
    /// Buffers that there are.
    pub buffers: u8,
    /// How often one is asked for.
    pub allocations: u8,
    /// Nodes that die.
    pub deaths: u8,
    /// A seeded fault of the engine.
    pub mutation: Option<RackMutation>,
}

impl Default for BufferOptions {
    fn default() -> Self {
        Self { nodes: 3, buffers: 2, allocations: 3, deaths: 2, mutation: None }
    }
}

/// A flow between two racks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowOptions {
    /// How segments come to NICs.
    pub mapping: Mapping,
    /// NICs.
    pub nics: u8,
    /// Segments, of a byte each.
    pub segments: u8,
    /// Bytes of the receiver's window.
    pub window: u8,
    /// How often NICs fail.
    pub failures: u8,
    /// How often NICs that have something count as silent.
    pub silences: u8,
    /// A seeded fault of the engine.
    pub mutation: Option<FlowMutation>,
}

impl Default for FlowOptions {
    fn default() -> Self {
        let mapping = Mapping::Rate;
        Self { mapping, nics: 2, segments: 4, window: 2, failures: 1, silences: 1, mutation: None }
    }
}

/// A system of which a counterexample can be told.
trait Told: Space {
    /// What an action does in a state, in words.
    fn line(&self, before: &Self::State, action: Self::Action) -> String;
    /// What comes of it.
    fn next(&self, before: &Self::State, action: Self::Action) -> Self::State;
    /// What is wrong with a state.
    fn fault(&self, state: &Self::State) -> Option<String>;
}

/// What is wrong at the end of a way, and the way: a line for each thing that happens.
fn told<S: Told>(system: &S, way: &[S::Action]) -> (String, String) {
    let (mut state, mut lines) = (system.first(), Vec::new());
    for &action in way {
        lines.push(system.line(&state, action));
        state = system.next(&state, action);
    }
    let reason = system.fault(&state).unwrap_or_default();
    lines.push(format!("=> {reason}"));
    (reason, lines.join("\n"))
}

/// Nodes do so many things, each chosen by `pick` among as many as there are. What is wrong in the end, and how it came about.
pub(crate) fn pass_buffers(
    options: BufferOptions,
    steps: usize,
    mut pick: impl FnMut(usize) -> usize,
) -> Result<(), (String, String)> {
    let system = Buffers(options);
    let (mut state, mut way, mut actions) = (system.first(), Vec::new(), Vec::new());
    for _ in 0..steps {
        if !system.steps().look(&mut state, &mut actions) {
            return Err(told(&system, &way));
        }
        if actions.is_empty() {
            break;
        }
        let action = actions[pick(actions.len())];
        way.push(action);
        state = system.next(&state, action);
    }
    Ok(())
}

/// Checks all states of buffers. `progress` is called about once a second with the distinct states so far; when it returns
/// false the search ends with what there is.
pub fn check_buffers(options: BufferOptions, how: Search, progress: impl FnMut(u64) -> bool) -> CheckReport {
    let system = Buffers(options);
    search(&system, how, progress).told(|way| told(&system, &way))
}

/// The same for a flow.
pub fn check_flow(options: FlowOptions, how: Search, progress: impl FnMut(u64) -> bool) -> CheckReport {
    let system = Flow(options);
    search(&system, how, progress).told(|way| told(&system, &way))
}
