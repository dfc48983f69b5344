//! Visits all states depth first. In memory are the ways that are being gone, and a print of each state.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::print::Print;
use super::visited::Visited;
use super::{Space, Steps, Tally};

/// A state, what led to it, and what is still to be tried in it.
struct Open<S: Space> {
    by: Option<S::Action>,
    state: S::State,
    actions: Vec<S::Action>,
}

/// A part of the search: the way to a state, and the state.
struct Part<S: Space> {
    way: Vec<S::Action>,
    open: Open<S>,
}

/// Parts that nobody has taken, and how many threads wait for one.
struct Parts<S: Space> {
    left: Vec<Part<S>>,
    waiting: usize,
}

/// A search, as its threads share it.
pub(super) struct Visit<'a, S: Space> {
    space: &'a S,
    threads: usize,
    tally: &'a Tally<S::Action>,
    visited: Visited,
    parts: Mutex<Parts<S>>,
    wakes: Condvar,
    /// Threads that wait.
    wanted: AtomicUsize,
}

/// So many steps are made between two looks at what other threads want.
const STRIDE: usize = 256;

impl<'a, S: Space> Visit<'a, S> {
    pub fn new(space: &'a S, threads: usize, tally: &'a Tally<S::Action>) -> Self {
        let visited = Visited::new();
        let (mut state, mut actions) = (space.first(), Vec::new());
        visited.insert(Print::of(&state));
        tally.add(1, 1);
        tally.depth.store(1, Ordering::Relaxed);
        if !space.steps().look(&mut state, &mut actions) {
            tally.fail(Vec::new());
        }
        let left = vec![Part { way: Vec::new(), open: Open { by: None, state, actions } }];
        let parts = Mutex::new(Parts { left, waiting: 0 });
        Self { space, threads, tally, visited, parts, wakes: Condvar::new(), wanted: AtomicUsize::new(0) }
    }

    /// Wakes threads that wait: it is over, whatever is left.
    pub fn stop(&self) {
        drop(self.parts());
        self.wakes.notify_all();
    }

    /// One thread's work, until all is visited or the search is over.
    pub fn work(&self) {
        while let Some(part) = self.take() {
            self.go(part);
        }
    }

    fn parts(&self) -> MutexGuard<'_, Parts<S>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Part<S>> {
        let mut parts = self.parts();
        parts.waiting += 1;
        loop {
            if parts.left.is_empty() && parts.waiting == self.threads {
                self.tally.over.store(true, Ordering::Relaxed);
                self.wakes.notify_all();
            }
            if self.tally.is_over() {
                return None;
            }
            if let Some(part) = parts.left.pop() {
                parts.waiting -= 1;
                self.wanted.store(parts.waiting.saturating_sub(parts.left.len()), Ordering::Relaxed);
                return Some(part);
            }
            self.wanted.store(parts.waiting, Ordering::Relaxed);
            parts = self.wakes.wait(parts).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn go(&self, Part { way, open }: Part<S>) {
        let mut next = open.state.clone();
        let (mut stack, mut unused) = (vec![open], Vec::new());
        let mut steps = self.space.steps();
        while !stack.is_empty() && !self.tally.is_over() {
            if self.wanted.load(Ordering::Relaxed) > 0 {
                self.share(&way, &mut stack);
            }
            if !self.stride(&mut steps, &mut stack, &mut unused, &mut next) {
                self.tally.fail(way_to(&way, &stack));
                return self.stop();
            }
            self.tally.depth.fetch_max(way.len() + stack.len(), Ordering::Relaxed);
            steps.pause();
        }
    }

    /// Some steps. False if something is wrong with the last state.
    fn stride(
        &self,
        steps: &mut S::Steps<'_>,
        stack: &mut Vec<Open<S>>,
        unused: &mut Vec<Open<S>>,
        next: &mut S::State,
    ) -> bool {
        let (mut states, mut generated, mut holds) = (0, 0, true);
        for _ in 0..STRIDE {
            let Some(top) = stack.last_mut() else { break };
            let Some(action) = top.actions.pop() else {
                unused.extend(stack.pop());
                continue;
            };
            steps.advance(&top.state, action, next);
            generated += 1;
            if !self.visited.insert(Print::of(next)) {
                continue;
            }
            states += 1;
            let mut open = unused.pop().unwrap_or_else(|| Open { by: None, state: next.clone(), actions: Vec::new() });
            open.by = Some(action);
            open.state.clone_from(next);
            holds = steps.look(&mut open.state, &mut open.actions);
            stack.push(open);
            if !holds {
                break;
            }
        }
        self.tally.add(states, generated);
        holds
    }

    /// Leaves half of what is to be tried in the first state that has something to others.
    fn share(&self, way: &[S::Action], stack: &mut [Open<S>]) {
        let Some(at) = stack.iter().position(|open| !open.actions.is_empty()) else { return };
        let way = way_to(way, &stack[..=at]);
        let Open { state, actions, .. } = &mut stack[at];
        let half = actions.drain(..actions.len().div_ceil(2)).collect();
        let open = Open { by: None, state: state.clone(), actions: half };
        let mut parts = self.parts();
        parts.left.push(Part { way, open });
        self.wanted.store(parts.waiting.saturating_sub(parts.left.len()), Ordering::Relaxed);
        drop(parts);
        self.wakes.notify_one();
    }
}

/// The way to the last of these states.
fn way_to<S: Space>(way: &[S::Action], stack: &[Open<S>]) -> Vec<S::Action> {
    way.iter().copied().chain(stack.iter().filter_map(|open| open.by)).collect()
}
