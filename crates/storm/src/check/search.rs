//! Visits all states depth first. In memory are the ways that are being gone, and a print of each state.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::system::{Action, System};
use super::visited::{Print, Visited};
use super::world::State;

/// A state, what led to it, and what is still to be tried in it.
struct Open {
    by: Option<Action>,
    state: State,
    actions: Vec<Action>,
}

/// A part of the search: the way to a state, and the state.
struct Part {
    way: Vec<Action>,
    open: Open,
}

/// Parts that nobody has taken, and how many threads wait for one.
struct Parts {
    left: Vec<Part>,
    waiting: usize,
}

/// A search, as its threads share it.
pub(crate) struct Visit<'a> {
    system: &'a System,
    threads: usize,
    visited: Visited,
    parts: Mutex<Parts>,
    wakes: Condvar,
    /// Threads that wait.
    wanted: AtomicUsize,
    over: AtomicBool,
    pub states: AtomicU64,
    pub generated: AtomicU64,
    pub depth: AtomicUsize,
    /// The way to a state in which something is wrong.
    pub failure: Mutex<Option<Vec<Action>>>,
}

/// So many steps are made between two looks at what other threads want.
const STRIDE: usize = 256;

impl<'a> Visit<'a> {
    pub fn new(system: &'a System, threads: usize) -> Self {
        let visited = Visited::new();
        let part = |state: State| {
            let mut actions = Vec::new();
            system.worthwhile(&system.locals(), &state, &mut actions);
            visited.insert(Print::of(&state));
            Part { way: Vec::new(), open: Open { by: None, state, actions } }
        };
        let left = vec![part(system.first())];
        let first = 1;
        Self {
            system,
            threads,
            visited,
            parts: Mutex::new(Parts { left, waiting: 0 }),
            wakes: Condvar::new(),
            wanted: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            states: AtomicU64::new(first),
            generated: AtomicU64::new(first),
            depth: AtomicUsize::new(1),
            failure: Mutex::new(None),
        }
    }

    /// Ends it, whatever is left.
    pub fn stop(&self) {
        let parts = self.parts();
        self.over.store(true, Ordering::Relaxed);
        drop(parts);
        self.wakes.notify_all();
    }

    /// One thread's work, until all is visited or the search is stopped.
    pub fn work(&self) {
        while let Some(part) = self.take() {
            self.go(part);
        }
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Part> {
        let mut parts = self.parts();
        parts.waiting += 1;
        loop {
            if parts.left.is_empty() && parts.waiting == self.threads {
                self.over.store(true, Ordering::Relaxed);
                self.wakes.notify_all();
            }
            if self.over.load(Ordering::Relaxed) {
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

    fn go(&self, Part { way, open }: Part) {
        let mut next = open.state.clone();
        let (mut stack, mut unused) = (vec![open], Vec::new());
        while !stack.is_empty() && !self.over.load(Ordering::Relaxed) {
            if self.wanted.load(Ordering::Relaxed) > 0 {
                self.share(&way, &mut stack);
            }
            if !self.stride(&mut stack, &mut unused, &mut next) {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                *failure = Some(way_to(&way, &stack));
                drop(failure);
                return self.stop();
            }
            self.depth.fetch_max(way.len() + stack.len(), Ordering::Relaxed);
        }
    }

    /// Some steps. False if something is wrong with the last state.
    fn stride(&self, stack: &mut Vec<Open>, unused: &mut Vec<Open>, next: &mut State) -> bool {
        let (system, mut locals) = (self.system, self.system.locals());
        let (mut states, mut generated, mut holds) = (0, 0, true);
        for _ in 0..STRIDE {
            let Some(top) = stack.last_mut() else { break };
            let Some(action) = top.actions.pop() else {
                unused.extend(stack.pop());
                continue;
            };
            while let Err(unknown) = system.advance(&locals, &top.state, next, action) {
                drop(locals);
                system.learn(unknown);
                locals = system.locals();
            }
            generated += 1;
            if !self.visited.insert(Print::of(next)) {
                continue;
            }
            states += 1;
            let mut open = unused.pop().unwrap_or_else(|| Open { by: None, state: next.clone(), actions: Vec::new() });
            system.look(&locals, next);
            open.by = Some(action);
            open.state.clone_from(next);
            system.worthwhile(&locals, next, &mut open.actions);
            holds = system.holds(&locals, next, &open.actions);
            stack.push(open);
            if system.proves() && holds {
                // This makes steps of its own.
                drop(locals);
                holds = system.proven(next);
                locals = system.locals();
            }
            if !holds {
                break;
            }
        }
        self.states.fetch_add(states, Ordering::Relaxed);
        self.generated.fetch_add(generated, Ordering::Relaxed);
        holds
    }

    /// Leaves half of what is to be tried in the first state that has something to others.
    fn share(&self, way: &[Action], stack: &mut [Open]) {
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
fn way_to(way: &[Action], stack: &[Open]) -> Vec<Action> {
    way.iter().copied().chain(stack.iter().filter_map(|open| open.by)).collect()
}
