//! Visits all states breadth first, so that the way to a failure is a shortest one. In memory are all states of two
//! depths, of each state a print, and how it was reached.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::system::{Action, System};
use super::visited::{Print, Visited};
use super::world::State;

/// A search, as it is watched from another thread.
pub(crate) struct Breadth<'a> {
    system: &'a System,
    visited: Visited,
    over: AtomicBool,
    pub states: AtomicU64,
    pub generated: AtomicU64,
    pub depth: AtomicUsize,
    /// The way to a state in which something is wrong.
    pub failure: Mutex<Option<Vec<Action>>>,
}

/// How a state was reached: from the state of which number, by what.
type Step = (usize, Action);

/// A state of the present depth, its number, and what can happen in it.
struct Open {
    number: usize,
    state: State,
    actions: Vec<Action>,
}

impl<'a> Breadth<'a> {
    pub fn new(system: &'a System) -> Self {
        Self {
            system,
            visited: Visited::new(),
            over: AtomicBool::new(false),
            states: AtomicU64::new(0),
            generated: AtomicU64::new(0),
            depth: AtomicUsize::new(0),
            failure: Mutex::new(None),
        }
    }

    /// Ends it, whatever is left.
    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// All of the work, until all is visited or the search is stopped.
    pub fn work(&self) {
        let first = self.system.first();
        self.visited.insert(Print::of(&first));
        // The first state has number 0; the step of number n led to state n + 1.
        let (mut steps, mut here) = (Vec::new(), Vec::new());
        let Some(first) = self.look(0, first) else { return self.fail(&steps, 0) };
        here.push(first);
        while !here.is_empty() {
            self.depth.fetch_add(1, Ordering::Relaxed);
            let mut there = Vec::new();
            for open in std::mem::take(&mut here) {
                for &action in &open.actions {
                    if self.over.load(Ordering::Relaxed) {
                        return;
                    }
                    let next = self.system.next_state(&open.state, action);
                    self.generated.fetch_add(1, Ordering::Relaxed);
                    if !self.visited.insert(Print::of(&next)) {
                        continue;
                    }
                    steps.push((open.number, action));
                    match self.look(steps.len(), next) {
                        Some(next) => there.push(next),
                        None => return self.fail(&steps, steps.len()),
                    }
                }
            }
            here = there;
        }
    }

    /// What can happen in a new state; `None` if something is wrong with it.
    fn look(&self, number: usize, state: State) -> Option<Open> {
        self.states.fetch_add(1, Ordering::Relaxed);
        let mut actions = Vec::new();
        let system = self.system;
        system.worthwhile(&system.locals(), &state, &mut actions);
        let holds = system.holds(&system.locals(), &state, &actions) && (!system.proves() || system.proven(&state));
        holds.then_some(Open { number, state, actions })
    }

    fn fail(&self, steps: &[Step], mut number: usize) {
        let mut way = Vec::new();
        while let Some(&(from, action)) = number.checked_sub(1).and_then(|step| steps.get(step)) {
            way.push(action);
            number = from;
        }
        way.reverse();
        *self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(way);
    }
}
