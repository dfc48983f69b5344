//! One client's pair of rings: its next call, which may come in parts, and answers that have no room yet.

use std::collections::VecDeque;

use remora_nic::Time;
use remora_ring::RingError;

use super::{PIECE, RingPair};
use crate::ring_budget::{SHORT_RING_MESSAGE, most_reply, units};
use crate::ring_call::{RingCall, RingReply};
use crate::share::Shares;

/// One client's pair.
pub(super) struct Ring {
    /// No other pair of this place ever has it.
    pub id: u64,
    pub pair: RingPair,
    pub client: u32,
    pub is_dirty: bool,
    /// A call that is taken in part.
    pub coming: Option<Coming>,
    /// Answers that there was no room for yet, and long ones.
    pub held: VecDeque<Held>,
    /// Since when there are some, once somebody has looked.
    pub held_since: Option<Time>,
}

/// A call of which a part is taken.
pub(super) struct Coming {
    pub call: RingCall,
    pub params: Vec<u8>,
    /// Bytes that are copied at once.
    pub piece: usize,
    /// What it counts.
    pub units: u32,
}

/// An answer that is not in its ring yet.
pub(super) struct Held {
    /// The call's number, and what it counts.
    pub number: u32,
    pub units: u32,
    pub front: [u8; RingReply::LEN],
    pub reply: Vec<u8>,
    /// Bytes of both that are laid down.
    pub laid: usize,
}

/// What came of a look at a ring of long messages.
pub(super) enum Taken {
    /// No whole message is there.
    None,
    /// There is one, for which its client has no bytes left.
    Waits,
    /// More of it is to be taken.
    Part,
    /// A call, of which the parameters are where they belong, and what it counts.
    Whole(RingCall, u32),
}

impl Ring {
    /// Whether its messages may be longer than what is copied at once.
    #[inline]
    fn is_long(&self) -> bool {
        self.pair.end.shape().bytes() > SHORT_RING_MESSAGE
    }

    /// Whether it is to be put where those are that have something to write.
    #[inline]
    pub fn gets_dirty(&mut self) -> bool {
        self.pair.end.wants_write() && !std::mem::replace(&mut self.is_dirty, true)
    }

    /// Takes the next call, or a piece of it. One that there are no bytes for stays in the ring.
    pub fn take(&mut self, bytes: &mut Shares, params: &mut Vec<u8>) -> Result<Taken, RingError> {
        let is_long = self.is_long();
        let Self { pair: RingPair { end, .. }, client, coming, .. } = self;
        if !is_long {
            // All that it brings is copied in one go, and counts nothing.
            let mut front = [0; RingCall::LEN];
            let mut rest = &mut front[..];
            let came = end.poll_split(&mut rest, params)?;
            return match rest.len() {
                _ if !came => Ok(Taken::None),
                RingCall::LEN => Ok(Taken::Whole(RingCall::decode(&front), 0)),
                len => Err(RingError::Short { len: len as u32, least: RingCall::LEN as u32 }),
            };
        }
        if coming.is_none() {
            let mut front = [0; RingCall::LEN];
            let Some(len) = end.peek(&mut front)? else { return Ok(Taken::None) };
            let Some(len) = len.checked_sub(RingCall::LEN) else {
                return Err(RingError::Short { len: len as u32, least: RingCall::LEN as u32 });
            };
            let call = RingCall::decode(&front);
            let units = units(len, (call.room as usize).min(most_reply(end.shape())));
            if units > 0 {
                if !bytes.may_start(*client) {
                    return Ok(Taken::Waits);
                }
                bytes.begin_many(*client, units);
            }
            let piece = if len <= SHORT_RING_MESSAGE { len } else { PIECE };
            *coming = Some(Coming { call, params: std::mem::take(params), piece, units });
        }
        let Some(Coming { params: taken, piece, .. }) = coming else { return Ok(Taken::None) };
        let whole = end.poll_part(RingCall::LEN, taken, *piece);
        if whole == Ok(false) {
            return Ok(Taken::Part);
        }
        let Some(Coming { call, params: taken, units, .. }) = coming.take() else { return Ok(Taken::None) };
        *params = taken;
        if whole.is_err() && units > 0 {
            bytes.end_many(*client, units);
        }
        whole.map(|_| Taken::Whole(call, units))
    }
}
