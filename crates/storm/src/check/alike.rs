//! Nodes that are alike count once: symmetry reduction.
//!
//! A node at which no client asks for anything coordinates no write, so that no timestamp ever names it. Nodes of that kind
//! may have each other's names: the order of timestamps, which ties by nodes, is among others alone and stays as it is, and
//! the engine asks of a name only whether it is another's. With one exception: the first member gives learners the state. So
//! names are exchanged only where a node that comes before all of these, as one at which clients ask does, is a member and
//! stays one, or where there will be no learner ([`Alike::hold`]). A state and the same with names exchanged then lead to the
//! same, with names exchanged, for ever; one stands for all. `replica`'s [`Names`] does the exchanging.
//!
//! Nodes at which clients ask are not alike: of two that write at once the one with the higher number wins.

use remora_replica::ddp::Names;
use remora_replica::types::{NodeId, NodeSet};

use super::local::{Locals, Unknown};
use super::system::{Failures, Options};
use super::world::State;

/// Which nodes are alike.
#[derive(Debug)]
pub(crate) struct Alike {
    /// At which nobody asks.
    idle: NodeSet,
    /// All ways to exchange their names, but to leave them.
    pub names: Vec<Names>,
}

impl Alike {
    pub fn new(options: &Options) -> Self {
        let nodes = NodeSet::first(options.nodes);
        let asked = (0..options.requests()).map(|number| options.request(number).0).fold(NodeSet::EMPTY, NodeSet::with);
        // A request may be sent again to any.
        let asked = if options.again > 0 { nodes } else { asked };
        let idle: Vec<NodeId> = nodes.minus(asked).iter().collect();
        let named = |order: Vec<NodeId>| {
            let mut names: Vec<NodeId> = nodes.iter().collect();
            idle.iter().zip(order).for_each(|(id, name)| names[usize::from(id.0)] = name);
            Names::new(names)
        };
        let names = if options.alike { orders(&idle).into_iter().skip(1).map(named).collect() } else { Vec::new() };
        Self { idle: nodes.minus(asked), names }
    }

    /// May names be exchanged, here and in all that follows?
    fn hold(&self, locals: &Locals, options: &Options, state: &State) -> bool {
        let Failures { crashes, suspicions, restarts, blackouts, .. } = options.failures;
        let (left, first) = (state.left, self.idle.iter().next());
        let asked = NodeSet::first(options.nodes).minus(self.idle);
        let before: Vec<NodeId> = asked.iter().filter(|&id| Some(id) < first).collect();
        let stays = |&id: &NodeId| {
            let spared = left.crashes == 0 && left.suspicions == 0 && left.blackouts == 0 && !state.suspected.has(id);
            let facts = state.facts(locals, id);
            spared && state.view.members.has(id) && facts.view.members.has(id) && facts.up
        };
        let no_learners = suspicions == 0 && restarts == 0 && blackouts == 0;
        let some_stay = blackouts == 0 && before.len() > usize::from(crashes) + usize::from(suspicions);
        no_learners || some_stay || before.iter().any(stays)
    }

    /// Puts the state in the place of this one that stands for all that are alike.
    pub fn choose(&self, locals: &Locals, options: &Options, state: &mut State) -> Result<(), Unknown> {
        if self.names.is_empty() || !self.hold(locals, options, state) {
            return Ok(());
        }
        let mut least: Option<State> = None;
        for which in 0..self.names.len() {
            let other = self.renamed(locals, state, which)?;
            let best = least.as_ref().unwrap_or(state);
            if key(&other) < key(best) {
                least = Some(other);
            }
        }
        if let Some(least) = least {
            *state = least;
        }
        Ok(())
    }

    /// The state under other names.
    fn renamed(&self, locals: &Locals, state: &State, which: usize) -> Result<State, Unknown> {
        let (names, mut other) = (&self.names[which], state.clone());
        for (id, &node) in (0..).map(NodeId).zip(&state.nodes) {
            other.nodes[usize::from(names.node(id).0)] = locals.renamed_local(which, node)?;
        }
        for (envelope, &old) in other.net.iter_mut().zip(&state.net) {
            *envelope = locals.renamed_envelope(which, old)?;
        }
        other.net.sort_unstable();
        (other.view, other.suspected) = (names.view(state.view), names.set(state.suspected));
        Ok(other)
    }
}

/// What differs between states that are alike.
fn key(state: &State) -> impl PartialOrd {
    (state.nodes.clone(), state.net.clone(), state.view, state.suspected)
}

/// All orders of these, the first as they are.
fn orders(of: &[NodeId]) -> Vec<Vec<NodeId>> {
    let Some(last) = of.len().checked_sub(1) else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for first in 0..=last {
        let rest: Vec<NodeId> = of.iter().enumerate().filter(|(at, _)| *at != first).map(|(_, &id)| id).collect();
        all.extend(orders(&rest).into_iter().map(|rest| [&[of[first]], &rest[..]].concat()));
    }
    all
}
