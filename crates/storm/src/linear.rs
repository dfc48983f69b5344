//! Is the history of one key linearizable?
//!
//! The algorithm is that of Wing and Gong with Lowe's memory of visited states (Horn and Kroening, "Faster
//! linearizability checking via P-compositionality", FORTE 2015): take each operation that may come next as early as
//! possible, remember the set of operations taken together with the state reached, and back up where an operation would
//! have to come before one that had already returned. Keys are checked one by one, as linearizability is composable.
//!
//! Three things are added. A write is not taken while somebody is still to read what it would overwrite and what nobody
//! writes again ([`Search::strands`]); where many writes overlap for long, few are left so. An operation of unknown outcome (its client gave up) may take effect at any later time, or not
//! at all. And a [`Effect::Blackout`] may take the record back: to any value that it had since the last operation whose
//! effect is *firm*. Which operations are firm is what tells the persistency models apart (see [`crate::durability`]);
//! if all are, then this checks durable linearizability (Izraelevitz, Mendes, Scott, DISC 2016). Where it is not firm that
//! a value was read, a blackout may undo an operation that has not been answered; its client asks again, and what is
//! gone is done again: see [`Attempt`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use crate::engine::Value;
use crate::rng::mix;

/// What an operation does to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It reads this value.
    Get(Value),
    /// It writes.
    Put(u64),
    /// It removes.
    Delete,
    /// It writes `new` if it finds `expected`.
    CompareSwap {
        /// What it looks for.
        expected: Value,
        /// What it writes.
        new: u64,
        /// What it found; nothing is known if the outcome is unknown.
        found: Option<Value>,
    },
    /// It adds.
    FetchAdd {
        /// How much.
        delta: u64,
        /// What it found; nothing is known if the outcome is unknown.
        found: Option<Value>,
    },
    /// All that held the record in memory failed at once.
    Blackout,
}

/// An operation on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// When it began. Any clock will do; equal times count as overlapping.
    pub invoked: u64,
    /// When it ended, if its outcome is known.
    pub returned: Option<u64>,
    /// What it does.
    pub effect: Effect,
    /// A blackout later on cannot undo what it wrote.
    pub firm_write: bool,
    /// A blackout later on cannot undo what it read.
    pub firm_read: bool,
    /// It is a former attempt at another call.
    pub attempt: Option<Attempt>,
}

/// An attempt that had its effect and was undone, before the call that it belongs to had its own. It need not have
/// happened. If it did, nobody is left who knows of it: no call on top of it is firm, and no other attempt at the same
/// call takes effect before the blackout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Index of the call.
    pub of: usize,
    /// Index of the blackout that undoes it, and all that came after it.
    pub undone_by: usize,
}

/// What a check says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains all.
    Linearizable,
    /// There is none. These operations (by index) could not be placed by the best attempt, first the one that had to
    /// come next.
    Violation(Vec<usize>),
    /// Too many orders to try.
    GaveUp,
}

/// Steps that a check may take before it gives up.
const MAX_STEPS: u64 = 5_000_000;

/// So many values are looked at that additions of unknown outcome may start from; with more any value may come again.
const MAX_SUMS: usize = 1000;

/// Checks the history of one key, which holds nothing at first.
pub fn check(calls: &[Invocation]) -> Verdict {
    let kept = told_of(calls);
    // Calls with attempts are kept if these are.
    let place = |index: usize| kept.partition_point(|&other| other < index);
    let attempt = |Attempt { of, undone_by }| Attempt { of: place(of), undone_by: place(undone_by) };
    let moved = |&index: &usize| Invocation { attempt: calls[index].attempt.map(attempt), ..calls[index] };
    let few: Vec<Invocation> = kept.iter().map(moved).collect();
    match Search::new(&few).run() {
        Verdict::Violation(rest) => {
            // Who looks at less ahead gets further before he is stuck, if he gets to an end: that tells more.
            let further = Search { ahead: false, ..Search::new(&few) }.run();
            let rest = if let Verdict::Violation(rest) = further { rest } else { rest };
            Verdict::Violation(rest.into_iter().map(|index| kept[index]).collect())
        }
        other => other,
    }
}

/// All calls but the writes of unknown outcome that nobody can have seen. If there is an order with such a write then a
/// write follows it before any read, and there is an order without it; each one left out halves the search.
fn told_of(calls: &[Invocation]) -> Vec<usize> {
    let mut seen: Vec<u64> = Vec::new();
    let mut added = 0;
    for call in calls {
        seen.extend(match call.effect {
            Effect::Get(value) => value,
            Effect::CompareSwap { expected, found, .. } => found.unwrap_or(expected),
            Effect::FetchAdd { delta, found } => {
                added += u128::from(delta);
                found.flatten()
            }
            _ => None,
        });
    }
    seen.sort_unstable();
    // What additions of unknown outcome made of the value counts as well. (Sums that wrap around do not occur.)
    let was_seen = |new: u64| {
        let from = seen.partition_point(|&value| value < new);
        seen.get(from).is_some_and(|&value| u128::from(value) <= u128::from(new) + added)
    };
    let keep = |call: &Invocation| match call.effect {
        Effect::Put(new) | Effect::CompareSwap { new, .. } if call.returned.is_none() => was_seen(new),
        _ => true,
    };
    (0..calls.len()).filter(|&index| keep(&calls[index])).collect()
}

const NONE: u32 = u32::MAX;

/// A register, and where a blackout may take it back to.
#[derive(Clone, Copy, Debug)]
struct State {
    /// The value, or `None` after a blackout: any in `back`.
    value: Option<Value>,
    /// The newest of the values to go back to, in `Search::values`.
    back: u32,
    /// Sum of the hashes of the values in `back`.
    hash: u64,
    /// Which attempts are in `back`, as a hash; 0 if none.
    attempts: u64,
    /// An attempt was the last to come. If nobody sees what it wrote then there is an order without it; so what comes
    /// next must, or be a blackout.
    unseen: bool,
}

impl State {
    /// With one more value to go back to. What lies above an attempt is told apart from what lies below.
    fn with(self, value: Value, attempt: u32) -> Self {
        let attempts = if attempt == NONE { self.attempts } else { mix(self.attempts ^ u64::from(attempt)) | 1 };
        let hash = if attempts == 0 { value_hash(value) } else { mix(value_hash(value) ^ attempts) };
        Self { value: Some(value), hash: self.hash.wrapping_add(hash), attempts, ..self }
    }
}

/// A call or a return in the list of what is still to be placed.
#[derive(Clone, Copy, Debug)]
struct Entry {
    call: u32,
    is_return: bool,
    prev: u32,
    next: u32,
}

/// A value that a blackout may take the record back to.
#[derive(Clone, Copy, Debug)]
struct Link {
    value: Value,
    /// The link before, or [`NONE`].
    prev: u32,
    /// The attempt that wrote it, or [`NONE`].
    attempt: u32,
}

struct Search<'a> {
    calls: &'a [Invocation],
    /// A doubly linked list; entry 0 is its head.
    entries: Vec<Entry>,
    /// The return entry of each call.
    returns: Vec<u32>,
    /// Chains of values, used as a stack.
    values: Vec<Link>,
    /// The attempts at each call; empty if there are none at all.
    attempts: Vec<Vec<u32>>,
    placed: Vec<bool>,
    /// Whether [`Search::strands`] is asked.
    ahead: bool,
    /// The blackouts, in order. Without any, where they would lead need not be told apart.
    blackouts: Vec<u32>,
    /// Who found each value.
    readers: HashMap<Value, Vec<u32>>,
    /// Who writes each value.
    writers: HashMap<Value, Vec<u32>>,
    /// Additions that found nobody knows what.
    unsure: Vec<u32>,
    seen: HashSet<u128, BuildHasherDefault<Identity>>,
}

/// A step taken: the call's entry, which of its [`Search::choices`], the state before and the length of `values` before.
struct Step {
    entry: u32,
    choice: usize,
    state: State,
    values: usize,
    /// It was a read that changed nothing: nothing else need be tried in its stead.
    idle: bool,
}

impl<'a> Search<'a> {
    fn new(calls: &'a [Invocation]) -> Self {
        let mut order: Vec<(u64, bool, u32)> = Vec::with_capacity(calls.len() * 2);
        for (index, call) in calls.iter().enumerate() {
            order.push((call.invoked, false, index as u32));
            order.extend(call.returned.map(|at| (at, true, index as u32)));
        }
        order.sort_unstable();
        let mut entries = vec![Entry { call: NONE, is_return: false, prev: NONE, next: NONE }];
        let mut returns = vec![NONE; calls.len()];
        for (_, is_return, call) in order {
            let at = entries.len() as u32;
            entries[at as usize - 1].next = at;
            entries.push(Entry { call, is_return, prev: at - 1, next: NONE });
            if is_return {
                returns[call as usize] = at;
            }
        }
        let mut blackouts: Vec<u32> =
            numbered(calls).filter(|(_, call)| call.effect == Effect::Blackout).map(|it| it.0).collect();
        blackouts.sort_by_key(|&blackout| calls[blackout as usize].invoked);
        let (mut readers, mut writers) = (HashMap::<Value, Vec<u32>>::new(), HashMap::<Value, Vec<u32>>::new());
        let mut unsure = Vec::new();
        for (index, call) in numbered(calls) {
            let (found, written) = (found(call.effect), written(call.effect));
            found.into_iter().for_each(|value| readers.entry(value).or_default().push(index));
            written.into_iter().for_each(|value| writers.entry(value).or_default().push(index));
            unsure.extend(matches!(call.effect, Effect::FetchAdd { found: None, .. }).then_some(index));
        }
        let mut attempts = Vec::new();
        for (index, attempt) in (0..).zip(calls).filter_map(|(index, call)| Some((index, call.attempt?))) {
            attempts.resize_with(calls.len(), Vec::new);
            attempts[attempt.of].push(index);
        }
        let values = vec![Link { value: None, prev: NONE, attempt: NONE }];
        let placed = vec![false; calls.len()];
        let seen = HashSet::default();
        Self {
            calls,
            entries,
            returns,
            values,
            attempts,
            placed,
            ahead: true,
            blackouts,
            readers,
            writers,
            unsure,
            seen,
        }
    }

    fn run(mut self) -> Verdict {
        let mut state = State { value: Some(None), back: 0, hash: value_hash(None), attempts: 0, unseen: false };
        let mut taken: Vec<Step> = Vec::new();
        let mut set = 0;
        // Calls with a return that are still to be placed; those without may stay.
        let mut due = self.calls.iter().filter(|call| call.returned.is_some()).count();
        let (mut best, mut rest) = (usize::MAX, Vec::new());
        let mut steps = 0;
        let (mut at, mut choice) = (self.entries[0].next, 0);
        while due > 0 {
            steps += 1;
            if steps > MAX_STEPS {
                return Verdict::GaveUp;
            }
            let entry = self.entries[at as usize];
            if !entry.is_return {
                let index = entry.call as usize;
                let values = self.values.len();
                let with = set ^ member(index);
                let next = self.apply(index, state, choice).filter(|&next| !self.strands(index, state, next));
                let idle = next.is_some_and(|next| self.is_idle(index, state, next));
                match next {
                    Some(next) if self.seen.insert(with ^ self.state_hash(next)) => {
                        taken.push(Step { entry: at, choice, state, values, idle });
                        (state, set) = (next, with);
                        due -= usize::from(self.lift(at));
                        (at, choice) = (self.idle_read(state).unwrap_or(self.entries[0].next), 0);
                    }
                    // What follows has been tried in vain.
                    _ if idle => at = NONE,
                    _ => {
                        self.values.truncate(values);
                        choice += 1;
                        if choice >= self.choices(&self.calls[index], state) {
                            (at, choice) = (entry.next, 0);
                        }
                    }
                }
                if at != NONE || due == 0 {
                    continue;
                }
            }
            if due < best {
                best = due;
                rest = self.unplaced(at);
            }
            let step = loop {
                let Some(step) = taken.pop() else { return Verdict::Violation(rest) };
                due += usize::from(self.unlift(step.entry));
                set ^= member(self.entries[step.entry as usize].call as usize);
                self.values.truncate(step.values);
                if !step.idle {
                    break step;
                }
            };
            state = step.state;
            (at, choice) = (step.entry, step.choice + 1);
            let call = &self.calls[self.entries[at as usize].call as usize];
            if choice >= self.choices(call, state) {
                (at, choice) = (self.entries[at as usize].next, 0);
            }
        }
        Verdict::Linearizable
    }

    /// Whether a call is a read that changes nothing. If there is an order that has it later then there is one that has it
    /// now, as what lies between does not notice.
    fn is_idle(&self, index: usize, before: State, after: State) -> bool {
        let call = &self.calls[index];
        let alone = call.attempt.is_none() && self.attempts.get(index).is_none_or(Vec::is_empty);
        matches!(call.effect, Effect::Get(_)) && alone && self.state_hash(before) == self.state_hash(after)
    }

    /// Whether a call overwrites what another one is still to find, and nobody writes again before that returned: then no
    /// order begins so. A blackout may bring it back, but not for a call that returned before that.
    fn strands(&self, index: usize, before: State, after: State) -> bool {
        let (Some(old), Some(new)) = (before.value, after.value) else { return false };
        if old == new || !self.ahead {
            return false;
        }
        let unplaced = |call: u32| call as usize != index && !self.placed[call as usize];
        let blackout = self.blackouts.iter().find(|&&blackout| !self.placed[blackout as usize]);
        let end = blackout.map_or(u64::MAX, |&blackout| self.calls[blackout as usize].invoked);
        let due = |&call: &u32| self.calls[call as usize].returned.filter(|&at| unplaced(call) && at < end);
        let first = self.readers.get(&old).and_then(|readers| readers.iter().filter_map(due).min());
        first.is_some_and(|due| {
            !self.may_write(old, new, |&call| unplaced(call) && self.calls[call as usize].invoked <= due)
        })
    }

    /// Whether one of the calls that are open may write this, when the record holds `from`.
    fn may_write(&self, value: Value, from: Value, open: impl Fn(&u32) -> bool) -> bool {
        let writes = |value: Value| self.writers.get(&value).is_some_and(|calls| calls.iter().any(&open));
        if writes(value) {
            return true;
        }
        let Some(value) = value else { return false };
        // What additions that found nobody knows what may make of something else; of nothing, as after a deletion, too.
        let mut sums = BTreeSet::from([value]);
        for &call in self.unsure.iter().filter(|&call| open(call)) {
            let Effect::FetchAdd { delta, .. } = self.calls[call as usize].effect else { continue };
            let less: Vec<u64> = sums.iter().filter_map(|sum| sum.checked_sub(delta)).collect();
            sums.extend(less);
            if sums.len() > MAX_SUMS {
                return true;
            }
        }
        sums.remove(&value);
        let made = |value: Value| value == from || writes(value);
        sums.into_iter().any(|sum| made(Some(sum)) || sum == 0 && made(None))
    }

    /// The first read that may come now and changes nothing.
    fn idle_read(&mut self, state: State) -> Option<u32> {
        let mut at = self.entries[0].next;
        while at != NONE && !self.entries[at as usize].is_return {
            let Entry { call, next, .. } = self.entries[at as usize];
            if matches!(self.calls[call as usize].effect, Effect::Get(_)) {
                let values = self.values.len();
                let after = self.apply(call as usize, state, 0);
                self.values.truncate(values);
                if after.is_some_and(|after| self.is_idle(call as usize, state, after)) {
                    return Some(at);
                }
            }
            at = next;
        }
        None
    }

    /// How many ways a call may go in a state: one, but for a read-modify-write of unknown outcome upon a record of
    /// unknown value, which may find each of the values.
    fn choices(&self, call: &Invocation, state: State) -> usize {
        match call.effect {
            Effect::CompareSwap { found: None, .. } | Effect::FetchAdd { found: None, .. } if state.value.is_none() => {
                self.chain(state.back).count()
            }
            _ => 1,
        }
    }

    /// No attempt at the same call has taken effect that is not undone yet, and an attempt comes before its call, and
    /// before what undoes it.
    fn may_take_effect(&self, index: usize) -> bool {
        if self.attempts.is_empty() {
            return true;
        }
        let attempt = self.calls[index].attempt;
        if attempt.is_some_and(|attempt| self.placed[attempt.of] || self.placed[attempt.undone_by]) {
            return false;
        }
        let of = attempt.map_or(index, |attempt| attempt.of);
        let undone = |attempt: Attempt| self.placed[attempt.undone_by];
        self.attempts[of].iter().all(|&other| {
            let other = other as usize;
            !self.placed[other] || self.calls[other].attempt.is_none_or(undone)
        })
    }

    /// What a blackout may take the record back to: not to what an attempt wrote that this undoes, nor to anything
    /// newer.
    fn undo(&self, blackout: usize, mut state: State) -> State {
        state.value = None;
        if state.attempts == 0 {
            return state;
        }
        let undone = |link: &Link| {
            let call = self.calls.get(link.attempt as usize);
            call.and_then(|call| call.attempt).is_some_and(|attempt| attempt.undone_by == blackout)
        };
        if let Some(oldest) = self.chain(state.back).filter(undone).last() {
            state.back = oldest.prev;
        }
        let left: Vec<Link> = self.chain(state.back).collect();
        (state.hash, state.attempts) = (0, 0);
        for link in left.iter().rev() {
            state = state.with(link.value, link.attempt);
        }
        state.value = None;
        state
    }

    /// The state after a call, if the call can come now and go the way that `choice` numbers.
    fn apply(&mut self, index: usize, mut state: State, choice: usize) -> Option<State> {
        let call = self.calls[index];
        if !self.may_take_effect(index) {
            return None;
        }
        let unseen = std::mem::take(&mut state.unseen);
        let found = match call.effect {
            Effect::Blackout => return Some(self.undo(index, state)),
            Effect::Put(_) | Effect::Delete if unseen => return None,
            effect => found(effect),
        };
        if let Some(found) = found {
            match state.value {
                Some(value) if value != found => return None,
                None if !self.chain(state.back).any(|link| link.value == found) => return None,
                _ => state.value = Some(found),
            }
            if call.firm_read {
                state = self.put(state, found, true, NONE)?;
            }
        }
        let new = match call.effect {
            Effect::Put(new) => Some(new),
            Effect::Delete => None,
            Effect::CompareSwap { .. } | Effect::FetchAdd { .. } => {
                let value = state.value.or_else(|| Some(self.chain(state.back).nth(choice)?.value))?;
                state.value = Some(value);
                match modified(call.effect, value) {
                    Some(new) => new,
                    None if call.attempt.is_some() => return None,
                    None => return Some(state),
                }
            }
            Effect::Get(_) | Effect::Blackout => return Some(state),
        };
        state.unseen = call.attempt.is_some();
        self.put(state, new, call.firm_write, if call.attempt.is_some() { index as u32 } else { NONE })
    }

    /// The record now holds `value`; if that is firm, no blackout goes back further. Not if one must.
    fn put(&mut self, mut state: State, value: Value, firm: bool, attempt: u32) -> Option<State> {
        if self.blackouts.is_empty() {
            return Some(State { value: Some(value), ..state });
        }
        if firm && state.attempts != 0 {
            return None;
        }
        if firm {
            (state.back, state.hash) = (NONE, 0);
        }
        self.values.push(Link { value, prev: state.back, attempt });
        Some(State { back: self.values.len() as u32 - 1, ..state.with(value, attempt) })
    }

    /// The links from `back` on, newest first.
    fn chain(&self, back: u32) -> impl Iterator<Item = Link> {
        let mut at = back;
        std::iter::from_fn(move || {
            let link = *self.values.get(at as usize)?;
            at = link.prev;
            Some(link)
        })
    }

    fn state_hash(&self, state: State) -> u128 {
        let value = state.value.map_or(1, value_hash);
        let back = if self.blackouts.is_empty() { 0 } else { state.hash };
        let back = if state.unseen { !back } else { back };
        u128::from(mix(value ^ mix(back))) << 64 | u128::from(mix(back.wrapping_add(mix(!value))))
    }

    /// Takes a call and its return out of the list. Says whether it had a return.
    fn lift(&mut self, at: u32) -> bool {
        self.unlink(at);
        let call = self.entries[at as usize].call as usize;
        self.placed[call] = true;
        let back = self.returns[call];
        if back != NONE {
            self.unlink(back);
        }
        back != NONE
    }

    /// Puts a call and its return back.
    fn unlift(&mut self, at: u32) -> bool {
        let call = self.entries[at as usize].call as usize;
        self.placed[call] = false;
        let back = self.returns[call];
        if back != NONE {
            self.relink(back);
        }
        self.relink(at);
        back != NONE
    }

    fn unlink(&mut self, at: u32) {
        let Entry { prev, next, .. } = self.entries[at as usize];
        self.entries[prev as usize].next = next;
        if next != NONE {
            self.entries[next as usize].prev = prev;
        }
    }

    fn relink(&mut self, at: u32) {
        let Entry { prev, next, .. } = self.entries[at as usize];
        self.entries[prev as usize].next = at;
        if next != NONE {
            self.entries[next as usize].prev = at;
        }
    }

    /// The call that had to come next, where the search is stuck, and those beside it.
    fn unplaced(&self, stuck: u32) -> Vec<usize> {
        let mut rest: Vec<usize> =
            self.entries.get(stuck as usize).map(|entry| entry.call as usize).into_iter().collect();
        let mut at = self.entries[0].next;
        while at != NONE && at != stuck {
            let call = self.entries[at as usize].call as usize;
            if !rest.contains(&call) {
                rest.push(call);
            }
            at = self.entries[at as usize].next;
        }
        rest
    }
}

fn numbered(calls: &[Invocation]) -> impl Iterator<Item = (u32, &Invocation)> {
    (0..).zip(calls)
}

/// What a call is known to have found.
fn found(effect: Effect) -> Option<Value> {
    match effect {
        Effect::Get(value) => Some(value),
        Effect::CompareSwap { found, .. } | Effect::FetchAdd { found, .. } => found,
        Effect::Put(_) | Effect::Delete | Effect::Blackout => None,
    }
}

/// What a call writes when it writes, if that is known.
fn written(effect: Effect) -> Option<Value> {
    match effect {
        Effect::Put(new) => Some(Some(new)),
        Effect::Delete => Some(None),
        Effect::CompareSwap { expected, found, .. } => modified(effect, found.unwrap_or(expected)),
        Effect::FetchAdd { found, .. } => modified(effect, found?),
        Effect::Get(_) | Effect::Blackout => None,
    }
}

/// What a read-modify-write makes of `value`, if it writes at all.
fn modified(effect: Effect, value: Value) -> Option<Value> {
    match effect {
        Effect::CompareSwap { expected, new, .. } => (value == expected).then_some(Some(new)),
        Effect::FetchAdd { delta, .. } => Some(Some(value.unwrap_or(0).wrapping_add(delta))),
        _ => None,
    }
}

fn value_hash(value: Value) -> u64 {
    value.map_or(0x6e6f_6e65, |number| mix(number ^ 0x7661_6c75))
}

/// A random-looking number for each call; a set of calls is the XOR of its members' numbers. With 128 bits, two sets
/// that a search meets are alike by chance less often than memory fails.
fn member(call: usize) -> u128 {
    let low = mix(call as u64 * 2 + 1);
    u128::from(low) | u128::from(mix(low ^ 0x5eed)) << 64
}

/// The keys are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, &byte| mix(sum ^ u64::from(byte)));
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = number as u64;
    }
}

#[cfg(test)]
#[path = "linear_tests.rs"]
mod tests;
