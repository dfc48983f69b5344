//! Visits all states breadth first, so that the way to a failure is a shortest one. In memory are all states of two
//! depths, of each state a print, and how it was reached.

use std::sync::atomic::Ordering;

use super::print::Print;
use super::visited::Visited;
use super::{Space, Steps, Tally};

/// A search, as it is watched from another thread.
pub(super) struct Breadth<'a, S: Space> {
    space: &'a S,
    tally: &'a Tally<S::Action>,
    visited: Visited,
}

/// How a state was reached: from the state of which number, by what.
type Step<A> = (usize, A);

/// A state of the present depth, its number, and what can happen in it.
struct Open<S: Space> {
    number: usize,
    state: S::State,
    actions: Vec<S::Action>,
}

impl<'a, S: Space> Breadth<'a, S> {
    pub fn new(space: &'a S, tally: &'a Tally<S::Action>) -> Self {
        Self { space, tally, visited: Visited::new() }
    }

    /// All of the work, until all is visited or the search is over.
    pub fn work(&self) {
        let first = self.space.first();
        let mut space = self.space.steps();
        let mut next = first.clone();
        self.visited.insert(Print::of(&first));
        self.tally.add(0, 1);
        // The first state has number 0; the step of number n led to state n + 1.
        let (mut steps, mut here) = (Vec::new(), Vec::new());
        let Some(first) = self.look(&mut space, 0, first) else { return self.fail(&steps, 0) };
        here.push(first);
        while !here.is_empty() {
            self.tally.depth.fetch_add(1, Ordering::Relaxed);
            let mut there = Vec::new();
            for open in std::mem::take(&mut here) {
                for &action in &open.actions {
                    if self.tally.is_over() {
                        return;
                    }
                    space.advance(&open.state, action, &mut next);
                    self.tally.add(0, 1);
                    if !self.visited.insert(Print::of(&next)) {
                        continue;
                    }
                    steps.push((open.number, action));
                    match self.look(&mut space, steps.len(), next.clone()) {
                        Some(next) => there.push(next),
                        None => return self.fail(&steps, steps.len()),
                    }
                }
                space.pause();
            }
            here = there;
        }
    }

    /// What can happen in a new state; `None` if something is wrong with it.
    fn look(&self, steps: &mut S::Steps<'_>, number: usize, mut state: S::State) -> Option<Open<S>> {
        self.tally.add(1, 0);
        let mut actions = Vec::new();
        steps.look(&mut state, &mut actions).then_some(Open { number, state, actions })
    }

    fn fail(&self, steps: &[Step<S::Action>], mut number: usize) {
        let mut way = Vec::new();
        while let Some(&(from, action)) = number.checked_sub(1).and_then(|step| steps.get(step)) {
            way.push(action);
            number = from;
        }
        way.reverse();
        self.tally.fail(way);
    }
}
