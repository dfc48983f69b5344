//! Exhaustive checking of the B-tree: every interleaving of a few operations, access by access.
//!
//! Clients run the very kernels' code by one-sided accesses, the node runs it with accesses of its own. In fine cases a
//! READ of a node comes in four pieces, a write as the pieces that are sent, and anything may come between two of them;
//! elsewhere each is one step. A client may go away before any of its accesses, and between any two of its writes; the node
//! then recovers what it left, at any later time. Checked is:
//!
//! 1. What each operation answered is linearizable, key by key, with what the tree holds in the end.
//! 2. In the end the tree is whole, and no node is lost or unknown to its parent (unless a client went away).
//! 3. Somebody can always go on until all is done.
//!
//! Cases with a border are of an index in two trees. Tasks know the border only as it was at first, and a mover makes one
//! access at a time, as no node's does: an index is right without either.
//!
//! Who reads a node that is locked waits there: he would only read again. What a task has seen so far decides what it does
//! next, so that two orders after which memory and all that was seen are the same count once.

mod cases;
mod memory;
#[cfg(test)]
mod tests;
mod world;

use super::{CheckReport, Search};
use crate::search::{Space, Steps, search};
pub use cases::{TREE_CASES, TreeCase, TreeOp};
pub use memory::TreeMutant;
use world::World;

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// The case.
    pub case: &'static TreeCase,
    /// The first task is a client that may go away at any time.
    pub crash: bool,
    /// Reads of nodes come in pieces and each write by itself, for all tasks. Otherwise a read is one step, once the node
    /// is not locked: what lies between is the business of small cases.
    pub fine: bool,
    /// The last of the tasks runs on the node instead of at a client.
    pub near: bool,
    /// A seeded fault.
    pub mutant: Option<TreeMutant>,
}

/// Tasks that have made a step, in order, and a print of what came of it.
#[derive(Clone, Debug)]
pub(crate) struct State {
    way: Vec<u8>,
    print: u64,
}

impl std::hash::Hash for State {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.print);
    }
}

impl Space for TreeOptions {
    type State = State;
    type Action = u8;
    type Steps<'a> = Walk<'a>;

    fn first(&self) -> State {
        State { way: Vec::new(), print: World::new(self).print() }
    }

    fn steps(&self) -> Walk<'_> {
        Walk { options: self, way: Vec::new(), world: World::new(self) }
    }
}

/// The world at the end of the way that was gone last. It cannot be copied: only a way that goes on from there is not gone from
/// the beginning.
pub(crate) struct Walk<'a> {
    options: &'a TreeOptions,
    way: Vec<u8>,
    world: World,
}

impl Walk<'_> {
    fn at(&mut self, way: &[u8]) -> &World {
        if !way.starts_with(&self.way) {
            (self.way, self.world) = (Vec::new(), World::new(self.options));
        }
        for action in &way[self.way.len()..] {
            self.way.push(*action);
            self.world.step(*action);
        }
        &self.world
    }
}

impl Steps for Walk<'_> {
    type State = State;
    type Action = u8;

    fn advance(&mut self, last: &State, action: u8, next: &mut State) {
        next.way.clone_from(&last.way);
        next.way.push(action);
        next.print = self.at(&next.way).print();
    }

    fn look(&mut self, state: &mut State, actions: &mut Vec<u8>) -> bool {
        actions.clear();
        let world = self.at(&state.way);
        world.actions(actions);
        !actions.is_empty() || world.fault().is_none()
    }
}

/// Checks all interleavings. `progress` is called about once a second with the distinct states so far;
/// when it returns false the search ends with what there is.
pub fn check_tree(options: &TreeOptions, how: Search, progress: impl FnMut(u64) -> bool) -> CheckReport {
    let found = search(options, how, progress);
    found.told(|way| world::told(options, &way))
}
