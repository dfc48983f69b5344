//! A client's calls under way: each has a slot, which its reply lands in and whose number is its tag on the wire.

use std::sync::Arc;

use remora_kernel::Status;
use remora_memory::{Buffer, Region};
use remora_wire::rpc::{RpcHeader, parse_reply_imm};

use crate::{MAX_CALLS, MAX_REPLY};

/// As many calls as may be under way are: poll, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_CALLS} calls are under way already: poll, then try again")]
pub struct Full;

/// Calls under way to a node, with a mark of the world's for each.
pub struct CallSlots<T> {
    replies: Buffer,
    region: Arc<Region>,
    /// The mark of each slot's call.
    marks: Vec<Option<T>>,
    free: Vec<u32>,
    /// The reply handed out last.
    reply: Vec<u8>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallReply<'a, T> {
    /// The call's mark.
    pub mark: T,
    /// Its outcome, as the node says.
    pub status: Status,
    /// What the node wrote, at most [`MAX_REPLY`] bytes.
    pub bytes: &'a [u8],
}

impl<T> CallSlots<T> {
    /// Bytes of memory for replies.
    pub const REPLY_BYTES: usize = MAX_CALLS * MAX_REPLY;

    /// No calls yet. `replies` has [`REPLY_BYTES`](Self::REPLY_BYTES), and `region` is all of it, for the node to write to.
    pub fn new(replies: Buffer, region: Arc<Region>) -> Self {
        Self {
            replies,
            region,
            marks: (0..MAX_CALLS).map(|_| None).collect(),
            free: (0..MAX_CALLS as u32).rev().collect(),
            reply: Vec::with_capacity(MAX_REPLY),
        }
    }

    /// The memory that replies land in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Begins a call: its slot, and the header to send.
    #[inline]
    pub fn open(&mut self, mark: T) -> Result<(u32, RpcHeader), Full> {
        let slot = self.free.pop().ok_or(Full)?;
        self.marks[slot as usize] = Some(mark);
        let header = RpcHeader {
            reply_va: self.region.va() + u64::from(slot) * MAX_REPLY as u64,
            reply_rkey: self.region.key(),
            reply_capacity: MAX_REPLY as u32,
            tag: slot,
            flags: 0,
        };
        Ok((slot, header))
    }

    /// Ends a call without a reply: it was never sent, or the world has seen its end by other means. `None` if there is
    /// no such call.
    #[inline]
    pub fn end(&mut self, slot: u32) -> Option<T> {
        let mark = self.marks.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(mark)
    }

    /// A reply of `len` bytes has landed: the call that it ends. `None` for a node that answers what was never asked.
    #[inline]
    pub fn take_reply(&mut self, imm: Option<u32>, len: u32) -> Option<CallReply<'_, T>> {
        let (slot, code) = parse_reply_imm(imm?);
        let mark = self.end(slot)?;
        self.reply.resize((len as usize).min(MAX_REPLY), 0);
        // In bounds: a slot is MAX_REPLY long.
        let _ = self.replies.read(slot as usize * MAX_REPLY, &mut self.reply);
        Some(CallReply { mark, status: Status::from_code(code), bytes: &self.reply })
    }

    /// Ends all calls: no reply will come any more.
    pub fn lose_all(&mut self) -> impl Iterator<Item = T> {
        let Self { marks, free, .. } = self;
        (0..).zip(marks).filter_map(|(slot, mark)| mark.take().inspect(|_| free.push(slot)))
    }

    /// Calls under way.
    pub fn len(&self) -> usize {
        MAX_CALLS - self.free.len()
    }

    /// Whether no call is under way.
    pub fn is_empty(&self) -> bool {
        self.free.len() == MAX_CALLS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use remora_memory::{Access, Registry};
    use remora_wire::rpc::reply_imm;

    fn calls() -> CallSlots<u64> {
        let registry = Registry::new([1; 32]);
        let replies = Buffer::anonymous(CallSlots::<u64>::REPLY_BYTES).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = registry.register(registry.alloc_pd(), &replies, 0, replies.len(), None, access).unwrap();
        CallSlots::new(replies, region)
    }

    /// What may happen to a client's calls. Numbers are any: a node may lie.
    #[derive(Clone, Debug)]
    enum Step {
        Open,
        CallReply { imm: Option<u32>, len: u32 },
        End(u32),
        Lose,
    }

    fn step() -> impl Strategy<Value = Step> {
        let slot = prop_oneof![0..8u32, Just(MAX_CALLS as u32), Just(0xff_ffff)];
        let imm = (slot.clone(), any::<u8>()).prop_map(|(slot, code)| reply_imm(slot, code));
        let len = prop_oneof![0..100u32, Just(u32::MAX)];
        prop_oneof![
            8 => Just(Step::Open),
            6 => (prop::option::weighted(0.9, imm), len).prop_map(|(imm, len)| Step::CallReply { imm, len }),
            2 => slot.prop_map(Step::End),
            1 => Just(Step::Lose),
        ]
    }

    proptest! {
        #[test]
        fn every_call_ends_once_and_none_ends_that_was_not_asked(steps in prop::collection::vec(step(), 0..400)) {
            let mut calls = calls();
            let mut open: std::collections::BTreeMap<u32, u64> = Default::default();
            for (mark, step) in (0..).zip(steps) {
                match step {
                    Step::Open => match calls.open(mark) {
                        Ok((slot, header)) => {
                            prop_assert_eq!(header.tag, slot);
                            prop_assert_eq!(header.reply_va, calls.region().va() + u64::from(slot) * MAX_REPLY as u64);
                            prop_assert_eq!(open.insert(slot, mark), None, "a slot is one call's");
                        }
                        Err(Full) => prop_assert_eq!(open.len(), MAX_CALLS),
                    },
                    Step::CallReply { imm, len } => {
                        let asked = imm.and_then(|imm| open.remove(&(imm >> 8)));
                        match calls.take_reply(imm, len) {
                            Some(reply) => {
                                prop_assert_eq!(Some(reply.mark), asked);
                                prop_assert_eq!(Some(reply.status.code()), imm.map(|imm| imm as u8));
                                prop_assert_eq!(reply.bytes.len(), (len as usize).min(MAX_REPLY));
                            }
                            None => prop_assert_eq!(asked, None),
                        }
                    }
                    Step::End(slot) => prop_assert_eq!(calls.end(slot), open.remove(&slot)),
                    Step::Lose => {
                        let lost: Vec<_> = calls.lose_all().collect();
                        prop_assert_eq!(lost, std::mem::take(&mut open).into_values().collect::<Vec<_>>());
                    }
                }
                prop_assert_eq!((calls.len(), calls.is_empty()), (open.len(), open.is_empty()));
            }
        }
    }

    #[test]
    fn a_reply_is_what_landed_in_the_calls_slot() {
        let mut calls = calls();
        let slots = [7, 8].map(|mark| calls.open(mark).unwrap());
        for (slot, header) in slots {
            calls.region().write(header.reply_va, &[slot as u8 + 1; 3]).unwrap();
        }
        for ((slot, _), mark) in slots.into_iter().zip([7, 8]) {
            let reply = calls.take_reply(Some(reply_imm(slot, Status::NotFound.code())), 3);
            let bytes = &[slot as u8 + 1; 3][..];
            assert_eq!(reply, Some(CallReply { mark, status: Status::NotFound, bytes }));
        }
    }
}
