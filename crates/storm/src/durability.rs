//! What each persistency model promises when all members of the view fail at once, as a predicate on operations.
//!
//! While one member keeps its memory nothing may be lost, under any model: the survivors hold every acknowledged write.
//! After a [`Effect::Blackout`] a record may be back at an earlier value, but none from before the last *firm*
//! operation (MINOS, ISCA 2024, sections II-A and III-C):
//!
//! | model  | an acknowledged write | a value that was read |
//! |--------|-----------------------|-----------------------|
//! | Synch  | firm                  | firm                  |
//! | Strict | firm                  | may be lost           |
//! | REnf   | may be lost           | firm                  |
//! | Event  | may be lost           | may be lost           |
//! | Scope  | firm once `[PERSIST]sc` was answered | may be lost |
//!
//! An operation that has not been answered by then may be undone too, also one that others have read where that may be
//! lost. The mark by which a later attempt at it would know that it has been done is undone with it, so that the later
//! attempt does it again: once, in what is left.

use remora_replica::ddp::Model;

use crate::engine::{Action, End, Value};
use crate::history::{History, Record};
use crate::linear::{Attempt, Effect, Invocation, Verdict, check};

// These two state the promises for themselves, and do not ask `Model::facts`, on purpose: the engine runs by that table,
// and a mistake there must show here.

/// Whether a blackout cannot undo a write that was answered.
fn keeps_acknowledged(model: Model, persisted_scope: bool) -> bool {
    matches!(model, Model::Synch | Model::Strict) || model == Model::Scope && persisted_scope
}

/// Whether a blackout cannot undo a value that was read.
fn keeps_read(model: Model) -> bool {
    matches!(model, Model::Synch | Model::REnf)
}

/// What is wrong with the history of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The key.
    pub key: u32,
    /// Operations (indices in [`History::records`]) that fit no order, first the one that had to come next. Empty if
    /// the check gave up.
    pub records: Vec<usize>,
}

/// Checks all keys. `Err` has the first violation; `Ok` the keys whose check gave up.
pub fn check_history(history: &History, model: Model) -> Result<Vec<u32>, Finding> {
    let mut too_hard = Vec::new();
    let mut by_key = vec![Vec::new(); history.keys() as usize];
    for (index, record) in history.records.iter().enumerate() {
        by_key[record.key as usize].push(index);
    }
    for (key, indices) in by_key.iter().enumerate() {
        let key = key as u32;
        let (mut calls, names) = calls_of(history, indices, model);
        let mut verdict = check(&calls);
        if verdict != Verdict::Linearizable && !keeps_read(model) {
            // Few histories need them, and they make all harder.
            let attempts = attempts_at(&calls);
            if !attempts.is_empty() {
                calls.extend(attempts);
                verdict = check(&calls);
            }
        }
        match verdict {
            Verdict::Linearizable => {}
            Verdict::GaveUp => too_hard.push(key),
            Verdict::Violation(rest) => {
                return Err(Finding {
                    key,
                    records: rest.into_iter().filter_map(|index| *names.get(index)?).collect(),
                });
            }
        }
    }
    Ok(too_hard)
}

/// The calls of one key and, for each, which record it is.
fn calls_of(history: &History, indices: &[usize], model: Model) -> (Vec<Invocation>, Vec<Option<usize>>) {
    let mut calls = Vec::with_capacity(indices.len() + history.blackouts.len());
    let mut names = Vec::with_capacity(calls.capacity());
    for &index in indices {
        let record = &history.records[index];
        if let Some(call) = call_of(record, model, history.persisted.contains(&record.scope)) {
            calls.push(call);
            names.push(Some(index));
        }
    }
    for &at in &history.blackouts {
        let effect = Effect::Blackout;
        calls.push(Invocation {
            invoked: at,
            returned: Some(at),
            effect,
            firm_write: false,
            firm_read: false,
            attempt: None,
        });
        names.push(None);
    }
    (calls, names)
}

/// Attempts at `calls` that a blackout may have undone before they were answered. Only such as somebody may have seen:
/// the others are as if they had not been.
fn attempts_at(calls: &[Invocation]) -> Vec<Invocation> {
    let added: u128 =
        calls.iter().map(|call| if let Effect::FetchAdd { delta, .. } = call.effect { delta.into() } else { 0 }).sum();
    let from = |new: u64, value: u64| (u128::from(new)..=u128::from(new) + added).contains(&value.into());
    let may_see = |effect: Effect, seen: Value| match effect {
        Effect::Put(new) | Effect::CompareSwap { new, .. } => seen.is_some_and(|seen| from(new, seen)),
        Effect::Delete => seen.is_none_or(|seen| from(0, seen)),
        Effect::FetchAdd { .. } => true,
        Effect::Get(_) | Effect::Blackout => false,
    };
    let mut attempts = Vec::new();
    for (undone_by, blackout) in calls.iter().enumerate().filter(|(_, call)| call.effect == Effect::Blackout) {
        let before = |call: &Invocation| call.invoked < blackout.invoked;
        let pending = |call: &Invocation| before(call) && call.returned.is_none_or(|at| at > blackout.invoked);
        for (of, call) in calls.iter().enumerate().filter(|(_, call)| pending(call)) {
            let sees = |other: &Invocation| {
                let later = before(other) && other.returned.is_none_or(|at| at > call.invoked);
                later && seen_by(other.effect).is_some_and(|seen| may_see(call.effect, seen))
            };
            if !calls.iter().enumerate().any(|(index, other)| index != of && sees(other)) {
                continue;
            }
            let effect = match call.effect {
                Effect::CompareSwap { expected, new, .. } => Effect::CompareSwap { expected, new, found: None },
                Effect::FetchAdd { delta, .. } => Effect::FetchAdd { delta, found: None },
                other => other,
            };
            let attempt = Some(Attempt { of, undone_by });
            attempts.push(Invocation { returned: None, effect, firm_write: false, firm_read: false, attempt, ..*call });
        }
    }
    attempts
}

/// The value that an operation saw, if it is known.
fn seen_by(effect: Effect) -> Option<Value> {
    match effect {
        Effect::Get(value) => Some(value),
        Effect::CompareSwap { expected, found, .. } => Some(found.unwrap_or(expected)),
        Effect::FetchAdd { found, .. } => found,
        Effect::Put(_) | Effect::Delete | Effect::Blackout => None,
    }
}

fn call_of(record: &Record, model: Model, persisted_scope: bool) -> Option<Invocation> {
    let found: Option<Value> = match record.end {
        End::Refused => return None,
        End::Unknown => None,
        End::Done(value) => Some(value),
    };
    let effect = match record.action {
        Action::Get => Effect::Get(found?),
        Action::Put(value) => Effect::Put(value),
        Action::Delete => Effect::Delete,
        Action::CompareSwap { expected, new } => Effect::CompareSwap { expected, new, found },
        Action::FetchAdd(delta) => Effect::FetchAdd { delta, found },
    };
    Some(Invocation {
        invoked: record.called,
        returned: found.map(|_| record.returned),
        effect,
        firm_write: found.is_some() && keeps_acknowledged(model, persisted_scope),
        firm_read: found.is_some() && keeps_read(model),
        attempt: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(operations: &[(Action, End, u64)], blackout_after: usize, persisted: &[u64]) -> History {
        let mut history = History { persisted: persisted.iter().copied().collect(), ..History::default() };
        for (index, &(action, end, scope)) in operations.iter().enumerate() {
            let at = index as u64 * 10;
            if index == blackout_after {
                history.blackouts.push(at);
            }
            let (called, returned) = (at + 1, at + 5);
            history.call(Record { client: 1, number: 1, key: 0, action, scope, called, returned, end });
        }
        history
    }

    /// Models under which the history is fine.
    fn allowed_by(history: &History) -> Vec<Model> {
        Model::ALL.into_iter().filter(|&model| check_history(history, model) == Ok(vec![])).collect()
    }

    #[test]
    fn models_differ_in_what_a_blackout_may_undo() {
        use Model::*;
        let done = End::Done(None);
        let put = |value, scope| (Action::Put(value), done, scope);
        let get = |value| (Action::Get, End::Done(value), 9);
        let all = Model::ALL;
        // Acknowledged and never read.
        let lost = [put(1, 1), get(Some(1)), put(2, 2), get(Some(1))];
        assert_eq!(allowed_by(&history(&lost, 3, &[])), [REnf, Event, Scope]);
        assert_eq!(allowed_by(&history(&lost, 3, &[1])), [REnf, Event, Scope]);
        assert_eq!(allowed_by(&history(&lost, 3, &[2])), [REnf, Event]);
        assert_eq!(allowed_by(&history(&lost, 9, &[])), []);
        // Read, of unknown outcome.
        let read = [put(1, 1), (Action::Put(2), End::Unknown, 2), get(Some(2)), get(Some(1))];
        assert_eq!(allowed_by(&history(&read, 3, &[])), [Strict, Event, Scope]);
        // Nothing may come back that was never there, or older than what was firm.
        assert_eq!(allowed_by(&history(&[put(1, 1), put(2, 1), get(Some(3))], 2, &[])), []);
        assert_eq!(allowed_by(&history(&[put(1, 1), put(2, 1), get(Some(2))], 2, &[])), all);
        assert_eq!(allowed_by(&history(&[put(1, 1), put(2, 2), get(None)], 2, &[1])), [REnf, Event]);
    }

    #[test]
    fn what_was_read_and_lost_may_be_done_again() {
        use Model::*;
        let record = |number, action, end, called, returned| Record {
            client: number,
            number: 1,
            key: 0,
            action,
            scope: number,
            called,
            returned,
            end,
        };
        let seen = |number, at, value| record(number, Action::Get, End::Done(value), at, at + 1);
        let history = |answered| {
            let mut history = History { blackouts: vec![20], ..History::default() };
            history.call(record(1, Action::Put(7), End::Done(None), 1, answered));
            history.call(seen(2, 5, Some(7)));
            history.call(seen(3, 25, None));
            history.call(seen(4, 45, Some(7)));
            history
        };
        assert_eq!(allowed_by(&history(40)), [Strict, Event, Scope]);
        // Once it is answered nobody asks again.
        assert_eq!(allowed_by(&history(10)), []);
    }

    #[test]
    fn refused_operations_did_not_happen() {
        let refused = (Action::Put(1), End::Refused, 1);
        let get = |value| (Action::Get, End::Done(value), 1);
        assert_eq!(check_history(&history(&[refused, get(None)], 9, &[]), Model::Synch), Ok(vec![]));
        let finding = check_history(&history(&[refused, get(Some(1))], 9, &[]), Model::Synch).unwrap_err();
        assert_eq!(finding, Finding { key: 0, records: vec![1] });
    }
}
