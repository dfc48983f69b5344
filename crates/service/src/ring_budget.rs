//! How long calls by rings may be, and what of the place's memory long ones may hold.

use remora_ring::RingShape;

use crate::ring_call::{RingCall, RingReply};
use crate::share::Shares;

/// Bytes of parameters, and of a reply, that a call has at most, by however long a ring.
pub const MAX_RING_MESSAGE: usize = 16 << 20;
/// Bytes of parameters, and of a reply, that any call may hold: what is copied in one go while others wait.
pub const SHORT_RING_MESSAGE: usize = 128 << 10;
/// Bytes of parameters and replies beyond those that the calls of a place hold, of which each client has its [share](Shares):
/// one alone half, and the last call that it may make on top.
pub const RING_BYTES: usize = 256 << 20;
/// What is counted at once.
const UNIT: usize = 64 << 10;

/// Bytes of parameters that a call by a ring of this shape has at most.
pub const fn most_params(shape: RingShape) -> usize {
    least(shape.longest() - RingCall::LEN, MAX_RING_MESSAGE)
}

/// Bytes of a reply by a ring of this shape at most.
pub const fn most_reply(shape: RingShape) -> usize {
    least(shape.longest() - RingReply::LEN, MAX_RING_MESSAGE)
}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

/// What a long call holds, counted from before its parameters are copied until its reply is in the caller's ring, with all
/// the room that the caller has for that. So a call that was begun never waits for bytes that others hold.
#[derive(Debug)]
pub(crate) struct RingBudget {
    shares: Shares,
    /// By client: what `ended` was when it had no bytes for its next call.
    waits: Vec<u64>,
    /// Long calls that have ended, and one.
    ended: u64,
}

impl RingBudget {
    pub fn new(bytes: usize) -> Self {
        Self { shares: Shares::new(bytes / UNIT), waits: Vec::new(), ended: 1 }
    }

    /// What a call counts: nothing if it is short.
    #[inline]
    pub fn units(params: usize, room: usize) -> u32 {
        let long = |len: usize| len.saturating_sub(SHORT_RING_MESSAGE);
        (long(params) + long(room)).div_ceil(UNIT) as u32
    }

    /// Whether it is worth asking for a client's next call: not if there were no bytes for it, and no call has ended since.
    #[inline]
    pub fn may_ask(&self, client: u32) -> bool {
        self.waits.get(client as usize) != Some(&self.ended)
    }

    /// A call begins, if it may.
    pub fn begin(&mut self, client: u32, units: u32) -> bool {
        if units == 0 {
            return true;
        }
        if !self.shares.may_start(client) {
            let at = client as usize;
            self.waits.resize(self.waits.len().max(at + 1), 0);
            self.waits[at] = self.ended;
            return false;
        }
        self.shares.begin_many(client, units);
        true
    }

    /// A call has ended.
    #[inline]
    pub fn end(&mut self, client: u32, units: u32) {
        if units > 0 {
            self.shares.end_many(client, units);
            self.ended += 1;
        }
    }

    /// Bytes that a client's long calls hold.
    #[cfg(test)]
    pub fn held(&self, client: u32) -> usize {
        self.shares.under_way(client) as usize * UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calls_by_rings_as_long_as_they_are_by_default_count_nothing() {
        let shape = RingShape::default();
        assert_eq!(RingBudget::units(most_params(shape), most_reply(shape)), 0);
        let shape = RingShape::new(1024, 4096).unwrap();
        assert_eq!((most_params(shape), most_reply(shape)), ((4 << 20) - 9 - 16, (4 << 20) - 9 - 8));
        assert_eq!(RingBudget::units(100, most_reply(shape)), 62);
        let shape = RingShape::new(1 << 16, 4096).unwrap();
        assert_eq!((most_params(shape), most_reply(shape)), (MAX_RING_MESSAGE, MAX_RING_MESSAGE));
    }

    proptest! {
        /// Whatever clients do: no more is held than there is and one call's, no short call waits, and who waits may ask again
        /// once a call has ended.
        #[test]
        fn clients_hold_no_more_than_there_is(
            steps in prop::collection::vec((0..6u32, 0..=MAX_RING_MESSAGE, any::<bool>()), 0..400),
        ) {
            let mut budget = RingBudget::new(RING_BYTES);
            let mut calls = Vec::new();
            for (client, len, begins) in steps {
                let units = RingBudget::units(len, MAX_RING_MESSAGE - len);
                prop_assert!(budget.begin(client, 0));
                if begins {
                    let held = budget.held(client);
                    match budget.begin(client, units) {
                        true => calls.push((client, units)),
                        false => prop_assert!(held > 0 || calls.len() > 4, "who holds nothing is kept out by many alone"),
                    }
                } else if !calls.is_empty() {
                    let (client, units) = calls.swap_remove(len % calls.len());
                    budget.end(client, units);
                    prop_assert!(units == 0 || (0..6).all(|client| budget.may_ask(client)));
                }
                let held: usize = (0..6).map(|client| budget.held(client)).sum();
                prop_assert!(held <= RING_BYTES + 2 * MAX_RING_MESSAGE);
                prop_assert_eq!(held, calls.iter().map(|(_, units)| *units as usize * UNIT).sum::<usize>());
            }
        }
    }
}
