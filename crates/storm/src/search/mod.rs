//! Visits all states of a system: depth first in little memory, or breadth first for a shortest way to a failure.
//!
//! What is searched is a [`Space`]. Of each state that was visited a print is kept and no more (hash compaction), so that
//! a search may omit a state whose print another one has; how likely that is stands in [`CheckReport::omission`].

mod breadth;
mod depth;
mod print;
mod visited;

use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use remora_replica::ddp::Marks;

pub(crate) use print::Print;

/// A system whose states are searched.
pub(crate) trait Space: Sync {
    /// A state. Two that are equal have the same hash, and all that can come of them is the same.
    type State: Clone + Hash + Send;
    /// What leads from a state to another.
    type Action: Copy + Send;
    /// See [`Steps`]; often `&Self`.
    type Steps<'a>: Steps<State = Self::State, Action = Self::Action>
    where
        Self: 'a;

    /// The state in which nothing has happened.
    fn first(&self) -> Self::State;

    /// For one thread: it makes steps with this.
    fn steps(&self) -> Self::Steps<'_>;
}

/// How one thread makes steps.
pub(crate) trait Steps {
    /// [`Space::State`].
    type State;
    /// [`Space::Action`].
    type Action;

    /// What comes of an action. `next` is any state before, whose memory may be used again.
    fn advance(&mut self, last: &Self::State, action: Self::Action, next: &mut Self::State);

    /// Looks at a state that was not visited before: what has to be tried in it, in place of what `actions` has. False
    /// if something is wrong with it.
    fn look(&mut self, state: &mut Self::State, actions: &mut Vec<Self::Action>) -> bool;

    /// Called now and then: lets others have what this one holds.
    fn pause(&mut self) {}
}

/// What bounds a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// [`Search::limit`].
    States,
    /// [`Search::memory`].
    Memory,
    /// [`Search::time`].
    Time,
    /// Whoever follows its progress wants no more.
    Asked,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Stop after this many distinct states, or about that many.
    pub limit: u64,
    /// Stop when the process has this many bytes of memory.
    pub memory: u64,
    /// Stop after this long.
    pub time: Duration,
    /// Threads.
    pub threads: usize,
    /// Breadth first: a counterexample is a shortest one, and memory holds all states of one depth. Otherwise depth
    /// first, which keeps little more than a print of each state (9 bytes at most).
    pub shortest: bool,
}

impl Default for Search {
    fn default() -> Self {
        Self { limit: u64::MAX, memory: 2 << 30, time: Duration::MAX, threads: 1, shortest: false }
    }
}

/// What a search found: something wrong as an `F`, which is the way there while it is not told.
#[derive(Clone, Debug)]
pub struct CheckReport<F = (String, String)> {
    /// Distinct states.
    pub states: u64,
    /// States generated, the same ones again included.
    pub generated: u64,
    /// The longest way from the start.
    pub depth: usize,
    /// How long it took.
    pub seconds: f64,
    /// Which bound ended the search. If none did, and nothing is wrong, all states were visited.
    pub stopped: Option<Bound>,
    /// Bytes of memory that the process had at most.
    pub memory: u64,
    /// The chance that any state was omitted, as another has the same print (hash compaction).
    pub omission: f64,
    /// What is wrong, and a way to it as a message chart.
    pub failure: Option<F>,
    /// Which rare branches were reached, where somebody counts.
    pub marks: Marks,
}

impl<F> CheckReport<F> {
    /// Were all states visited, and nothing wrong with any?
    pub fn complete(&self) -> bool {
        self.failure.is_none() && self.stopped.is_none()
    }

    /// With the failure as `told` tells it.
    pub(crate) fn told<G>(self, told: impl FnOnce(F) -> G) -> CheckReport<G> {
        let Self { states, generated, depth, seconds, stopped, memory, omission, failure, marks } = self;
        let failure = failure.map(told);
        CheckReport { states, generated, depth, seconds, stopped, memory, omission, failure, marks }
    }
}

/// Searches. `progress` is called about once a second with the distinct states so far; when it returns false the search
/// ends with what there is.
pub(crate) fn search<S: Space>(
    space: &S,
    search: Search,
    progress: impl FnMut(u64) -> bool,
) -> CheckReport<Vec<S::Action>> {
    let tally = Tally::default();
    let (stopped, seconds, memory) = if search.shortest {
        let visit = breadth::Breadth::new(space, &tally);
        watched(search, &tally, 1, || visit.work(), || {}, progress)
    } else {
        let visit = depth::Visit::new(space, search.threads, &tally);
        watched(search, &tally, search.threads, || visit.work(), || visit.stop(), progress)
    };
    let states = tally.states.load(Ordering::Relaxed);
    CheckReport {
        states,
        generated: tally.generated.load(Ordering::Relaxed),
        depth: tally.depth.load(Ordering::Relaxed),
        seconds,
        stopped,
        memory,
        omission: visited::omission(states),
        failure: tally.failure.lock().unwrap_or_else(PoisonError::into_inner).take(),
        marks: Marks::default(),
    }
}

/// What the threads of a search count.
#[derive(Debug)]
struct Tally<A> {
    states: AtomicU64,
    generated: AtomicU64,
    depth: AtomicUsize,
    over: AtomicBool,
    failure: Mutex<Option<Vec<A>>>,
}

impl<A> Default for Tally<A> {
    fn default() -> Self {
        Self {
            states: AtomicU64::new(0),
            generated: AtomicU64::new(0),
            depth: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }
}

impl<A> Tally<A> {
    fn add(&self, states: u64, generated: u64) {
        self.states.fetch_add(states, Ordering::Relaxed);
        self.generated.fetch_add(generated, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn fail(&self, way: Vec<A>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(way);
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Waits for a search, and stops it where it is bounded. Returns the bound, how long it took, and bytes of memory. A search is
/// work of this machine's cores, not of a modelled one: its time and threads are real, and what it searches has neither.
fn watched<A: Send>(
    search: Search,
    tally: &Tally<A>,
    threads: usize,
    work: impl Fn() + Sync,
    wake: impl Fn(),
    mut progress: impl FnMut(u64) -> bool,
) -> (Option<Bound>, f64, u64) {
    let (started, mut told) = (Instant::now(), Instant::now());
    let (mut stopped, mut memory) = (None, 0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            if threads.iter().any(|thread| thread.is_finished()) {
                // Also if it ended by a panic, which comes out when the scope ends.
                tally.over.store(true, Ordering::Relaxed);
                wake();
            }
            std::thread::sleep(Duration::from_millis(5));
            memory = resident().max(memory);
            let states = tally.states.load(Ordering::Relaxed);
            let tells = told.elapsed() > Duration::from_secs(1);
            if tells {
                told = Instant::now();
            }
            let bounds = [
                (Bound::States, states >= search.limit),
                (Bound::Memory, memory > search.memory),
                (Bound::Time, started.elapsed() >= search.time),
                (Bound::Asked, tells && !progress(states)),
            ];
            if let Some((bound, _)) = bounds.into_iter().find(|(_, reached)| *reached && stopped.is_none()) {
                stopped = Some(bound);
                tally.over.store(true, Ordering::Relaxed);
                wake();
            }
        }
    });
    (stopped, started.elapsed().as_secs_f64(), memory)
}

/// Bytes of memory that this process has; 0 where nobody says.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two counters up to a bound; a state in which both stand at `bad` is wrong.
    struct Counters {
        bad: u32,
    }

    impl Space for Counters {
        type State = [u32; 2];
        type Action = usize;
        type Steps<'a> = &'a Self;

        fn first(&self) -> [u32; 2] {
            [0, 0]
        }

        fn steps(&self) -> &Self {
            self
        }
    }

    impl Steps for &Counters {
        type State = [u32; 2];
        type Action = usize;

        fn advance(&mut self, last: &[u32; 2], which: usize, next: &mut [u32; 2]) {
            *next = *last;
            next[which] += 1;
        }

        fn look(&mut self, state: &mut [u32; 2], actions: &mut Vec<usize>) -> bool {
            actions.clear();
            actions.extend((0..2).filter(|&which| state[which] < 99));
            *state != [self.bad, self.bad]
        }
    }

    #[test]
    fn all_states_are_visited_once() {
        let whole = Counters { bad: 1000 };
        for (threads, shortest) in [(1, false), (3, false), (1, true)] {
            let found = search(&whole, Search { threads, shortest, ..Search::default() }, |_| true);
            assert_eq!((found.states, found.stopped), (10_000, None));
            assert!(found.failure.is_none() && found.generated == 1 + 2 * 99 * 100, "{found:?}");
            assert!(found.omission > 0.0 && found.omission < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_found_by_a_shortest_way() {
        let faulty = Counters { bad: 40 };
        let found = search(&faulty, Search { shortest: true, ..Search::default() }, |_| true);
        assert_eq!(found.failure.map(|way| way.len()), Some(80));
        let found = search(&faulty, Search { threads: 2, ..Search::default() }, |_| true);
        assert!(found.failure.is_some_and(|way| way.len() == 80));
    }

    #[test]
    fn a_bound_that_ends_a_search_is_named() {
        struct Endless;
        impl Space for Endless {
            type State = u64;
            type Action = ();
            type Steps<'a> = &'a Self;
            fn first(&self) -> u64 {
                0
            }
            fn steps(&self) -> &Self {
                self
            }
        }
        impl Steps for &Endless {
            type State = u64;
            type Action = ();
            fn advance(&mut self, last: &u64, (): (), next: &mut u64) {
                *next = last + 1;
            }
            fn look(&mut self, _: &mut u64, actions: &mut Vec<()>) -> bool {
                actions.clear();
                actions.push(());
                true
            }
        }
        let ends = |search: Search| super::search(&Endless, search, |_| false).stopped;
        assert_eq!(ends(Search { limit: 1000, ..Search::default() }), Some(Bound::States));
        assert_eq!(ends(Search { time: Duration::from_millis(20), ..Search::default() }), Some(Bound::Time));
        assert_eq!(ends(Search { memory: 1 << 20, shortest: true, ..Search::default() }), Some(Bound::Memory));
        assert_eq!(ends(Search::default()), Some(Bound::Asked));
    }
}
