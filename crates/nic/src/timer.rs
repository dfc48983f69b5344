//! One deadline per queue pair, kept in a heap of hints.
//!
//! A deadline moves with every acknowledgement, so moving it must cost nothing: the heap holds, for each queue pair,
//! one entry that is at or before its deadline. When the entry comes up early, it is put back at the real deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::qp::QueuePair;
use crate::types::Time;

/// The engine's timers.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Timers {
    /// Makes sure that an entry at or before the queue pair's deadline exists.
    pub fn update(&mut self, qp: &mut QueuePair) {
        if let Some(deadline) = qp.next_timer()
            && qp.timer_entry.is_none_or(|entry| deadline < entry)
        {
            qp.timer_entry = Some(deadline);
            self.heap.push(Reverse((deadline, qp.qpn.0)));
        }
    }

    /// When something may be due.
    pub fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((time, _))| *time)
    }

    /// Drops stale entries once there are more than `limit`: a deadline that moves earlier leaves one behind.
    pub fn prune(&mut self, limit: usize, is_current: impl Fn(Time, u32) -> bool) {
        if self.heap.len() > limit {
            self.heap.retain(|Reverse((time, qpn))| is_current(*time, *qpn));
        }
    }

    /// The next entry that is due: the queue pair's number and the entry's time.
    pub fn pop(&mut self, now: Time) -> Option<(Time, u32)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}
