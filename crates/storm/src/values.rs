//! What a storm's numbers are in requests and answers: values of many lengths, which say which number they hold.

use remora_replica::ddp::{Op as DdpOp, Outcome, Refusal};
use remora_replica::types::Value as Bytes;

use crate::engine::{Action, Body, End, Op, Value, is_counter};
use crate::rng::mix;

/// Room for the longest value, in whole words.
const MAX_VALUE: usize = 8 + 704;

/// A number as a value: eight bytes for counters; for others more, whose length and content follow from the number.
pub fn encode(key: u32, number: u64) -> Bytes {
    let mut bytes = [0; MAX_VALUE];
    let length = fill(&mut bytes, key, number);
    bytes[..length].into()
}

/// Writes a number's value to `bytes` and says how long it is.
fn fill(bytes: &mut [u8; MAX_VALUE], key: u32, number: u64) -> usize {
    let padding = if is_counter(key) { 0 } else { (mix(number) % 700) as usize };
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    for (at, word) in (0..).zip(bytes[8..].chunks_exact_mut(8).take(padding.div_ceil(8))) {
        word.copy_from_slice(&mix(number ^ at).to_le_bytes());
    }
    8 + padding
}

/// The number of a value. One that was never written is the engine's fault: the storm stops at the panic.
pub fn decode(key: u32, bytes: &Bytes) -> u64 {
    let Some(number) = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
        panic!("a value of {} bytes that nobody wrote", bytes.len())
    };
    let mut expected = [0; MAX_VALUE];
    let length = fill(&mut expected, key, number);
    assert!(**bytes == expected[..length], "a value that nobody wrote: {bytes:?}");
    number
}

/// What a client asks for, as a request says it.
pub fn request(body: &Body) -> DdpOp {
    match body {
        Body::PersistScope => DdpOp::Persist,
        Body::Ops(ops) if ops.len() == 1 => operation(&ops[0]),
        Body::Ops(ops) => DdpOp::Batch(ops.iter().map(operation).collect()),
    }
}

fn operation(op: &Op) -> DdpOp {
    let key = u64::from(op.key);
    let value = |number| encode(op.key, number);
    match op.action {
        Action::Get => DdpOp::Get(key),
        Action::Put(number) => DdpOp::Put(key, value(number)),
        Action::Delete => DdpOp::Delete(key),
        Action::CompareSwap { expected, new } => {
            DdpOp::CompareSwap { key, expected: expected.map(value), new: Some(value(new)) }
        }
        Action::FetchAdd(delta) => DdpOp::FetchAdd(key, delta),
    }
}

/// How a request's operations ended; none for a scope. An outcome of another kind than what was asked for is the
/// engine's fault: the storm stops at the panic.
pub fn ends(body: &Body, outcome: &Outcome) -> Vec<End> {
    let ops = match body {
        Body::Ops(ops) => ops,
        Body::PersistScope => {
            assert!(
                matches!(outcome, Outcome::Persisted | Outcome::Unknown) || refused(outcome),
                "{outcome:?} for a scope"
            );
            return Vec::new();
        }
    };
    match outcome {
        Outcome::Unknown => vec![End::Unknown; ops.len()],
        _ if refused(outcome) => vec![End::Refused; ops.len()],
        Outcome::Batch(parts) if parts.len() == ops.len() => {
            ops.iter().zip(parts).map(|(op, part)| end(op, part)).collect()
        }
        _ if ops.len() == 1 => vec![end(&ops[0], outcome)],
        _ => panic!("{outcome:?} for {ops:?}"),
    }
}

fn refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused(Refusal::Busy | Refusal::NotServing | Refusal::UnknownScope | Refusal::Full))
}

fn end(op: &Op, outcome: &Outcome) -> End {
    let value = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| decode(op.key, bytes));
    match (op.action, outcome) {
        (_, Outcome::Unknown) => End::Unknown,
        (_, Outcome::Refused(Refusal::Busy | Refusal::NotServing | Refusal::Full)) => End::Refused,
        (Action::Get, Outcome::Value(found)) => End::Done(value(found)),
        (Action::Put(_) | Action::Delete, Outcome::Written) => End::Done(None),
        (Action::CompareSwap { expected, .. }, Outcome::Swapped) => End::Done(expected),
        (Action::CompareSwap { .. }, Outcome::NotSwapped(found)) => End::Done(value(found)),
        // No counter is ever 0 but by absence: numbers written are not, and additions are of at least 1.
        (Action::FetchAdd(_), Outcome::Added(found)) => End::Done((*found != 0).then_some(*found)),
        _ => panic!("{outcome:?} for {op:?}"),
    }
}

/// What a request asks for, for engines that speak of numbers themselves.
#[cfg(test)]
pub fn operations(op: &DdpOp) -> Vec<Op> {
    let one = |op: &DdpOp| {
        let (key, action) = match op {
            DdpOp::Get(key) => (*key, Action::Get),
            DdpOp::Put(key, value) => (*key, Action::Put(decode(*key as u32, value))),
            DdpOp::Delete(key) => (*key, Action::Delete),
            DdpOp::CompareSwap { key, expected, new } => {
                let number = |value: &Bytes| decode(*key as u32, value);
                let new = new.as_ref().map_or(0, number);
                (*key, Action::CompareSwap { expected: expected.as_ref().map(number), new })
            }
            DdpOp::FetchAdd(key, delta) => (*key, Action::FetchAdd(*delta)),
            DdpOp::Batch(_) | DdpOp::Persist => panic!("{op:?} is not one operation"),
        };
        Op { key: key as u32, action }
    };
    match op {
        DdpOp::Batch(ops) => ops.iter().map(one).collect(),
        DdpOp::Persist => Vec::new(),
        op => vec![one(op)],
    }
}

/// The answer to operations that found these values.
#[cfg(test)]
pub fn answer(ops: &[Op], found: &[Value]) -> Outcome {
    let one = |(op, &found): (&Op, &Value)| {
        let value = found.map(|number| encode(op.key, number));
        match op.action {
            Action::Get => Outcome::Value(value),
            Action::Put(_) | Action::Delete => Outcome::Written,
            Action::CompareSwap { expected, .. } if expected == found => Outcome::Swapped,
            Action::CompareSwap { .. } => Outcome::NotSwapped(value),
            Action::FetchAdd(_) => Outcome::Added(found.unwrap_or(0)),
        }
    };
    let mut outcomes: Vec<Outcome> = ops.iter().zip(found).map(one).collect();
    match outcomes.len() {
        0 => Outcome::Persisted,
        1 => outcomes.remove(0),
        _ => Outcome::Batch(outcomes),
    }
}

/// What the operations of an answered request found.
#[cfg(test)]
pub fn found(ops: &[Op], outcome: &Outcome) -> Vec<(Op, Value)> {
    let body = Body::Ops(ops.to_vec());
    let done = |(op, end): (&Op, End)| if let End::Done(found) = end { Some((*op, found)) } else { None };
    ops.iter().zip(ends(&body, outcome)).filter_map(done).collect()
}

/// What an operation leaves of the value that it found.
pub fn after(action: Action, found: Value) -> Value {
    match action {
        Action::Get => found,
        Action::Put(value) => Some(value),
        Action::Delete => None,
        Action::CompareSwap { expected, new } => {
            if found == expected {
                Some(new)
            } else {
                found
            }
        }
        Action::FetchAdd(delta) => Some(found.unwrap_or(0).wrapping_add(delta)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_say_which_number_they_hold() {
        for (key, number) in [(0, 1), (1, 1), (1, 77 << 20), (3, u64::MAX)] {
            assert_eq!(decode(key, &encode(key, number)), number);
        }
        assert_eq!(encode(0, 9).len(), 8);
        assert!(encode(1, 9) != encode(1, 10) && (0..50).any(|number| encode(1, number).len() > 500));
    }
}
