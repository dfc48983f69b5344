//! How long calls by rings may be, and what they count of the place's memory.

use remora_ring::RingShape;

use crate::ring_call::{RingCall, RingReply};
#[cfg(doc)]
use crate::share::Shares;

/// Bytes of parameters, and of a reply, that a call has at most, by however long a ring.
pub const MAX_RING_MESSAGE: usize = 16 << 20;
/// Bytes of parameters, and of a reply, that any call may hold: what is copied in one go while others wait.
pub const SHORT_RING_MESSAGE: usize = 128 << 10;
/// Bytes of longer parameters and replies that the calls of a place hold, of which each client has its [share](Shares):
/// one alone half, and the last call that it may make on top.
pub const RING_BYTES: usize = 256 << 20;
/// What is counted at once.
pub(crate) const UNIT: usize = 64 << 10;

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

/// What a call counts by what is longer than [`SHORT_RING_MESSAGE`], its parameters and the room for its reply: nothing if
/// neither is.
#[inline]
pub(crate) fn units(params: usize, room: usize) -> u32 {
    let long = |len: usize| if len > SHORT_RING_MESSAGE { len } else { 0 };
    (long(params) + long(room)).div_ceil(UNIT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Shares;
    use proptest::prelude::*;

    #[test]
    fn calls_by_rings_as_long_as_they_are_by_default_count_nothing() {
        let shape = RingShape::default();
        assert_eq!(units(most_params(shape), most_reply(shape)), 0);
        let shape = RingShape::new(1024, 4096).unwrap();
        assert_eq!((most_params(shape), most_reply(shape)), ((4 << 20) - 9 - 16, (4 << 20) - 9 - 8));
        assert_eq!(units(100, most_reply(shape)), 64);
        assert_eq!(units(SHORT_RING_MESSAGE + 1, SHORT_RING_MESSAGE), 3);
        let shape = RingShape::new(1 << 16, 4096).unwrap();
        assert_eq!((most_params(shape), most_reply(shape)), (MAX_RING_MESSAGE, MAX_RING_MESSAGE));
    }

    proptest! {
        /// Whatever clients do: no more is held than there is and one call's, and all of it is counted.
        #[test]
        fn clients_hold_no_more_than_there_is(
            steps in prop::collection::vec((0..6u32, 0..=MAX_RING_MESSAGE, any::<bool>()), 0..400),
        ) {
            let mut bytes = Shares::new(RING_BYTES / UNIT);
            let mut calls = Vec::new();
            for (client, len, begins) in steps {
                if !begins {
                    if let Some((client, len)) = (!calls.is_empty()).then(|| calls.swap_remove(len % calls.len())) {
                        bytes.end_many(client, units(len, MAX_RING_MESSAGE - len));
                    }
                } else if bytes.may_start(client) {
                    bytes.begin_many(client, units(len, MAX_RING_MESSAGE - len));
                    calls.push((client, len));
                } else {
                    let holds = bytes.under_way(client) > 0;
                    prop_assert!(holds || calls.len() > 4, "who holds nothing is kept out by many alone");
                }
                let counted = (0..6).map(|client| bytes.under_way(client) as usize * UNIT).sum::<usize>();
                prop_assert!(counted <= RING_BYTES + 2 * MAX_RING_MESSAGE);
                let long = |len: usize| if len > SHORT_RING_MESSAGE { len } else { 0 };
                let held = calls.iter().map(|(_, len)| long(*len) + long(MAX_RING_MESSAGE - len)).sum::<usize>();
                prop_assert!((held..=held + calls.len() * UNIT).contains(&counted));
            }
        }
    }
}
