//! The receiving end of a flow (section 4.4): what its subflows bring becomes one stream again.

use std::ops::Range;

use crate::nics::{FlowMutation, FlowPolicy};
use crate::ranges::Ranges;

/// A peer sent bytes that it was not allowed to send yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes up to {end} came, and {limit} is the limit")]
pub struct BeyondWindow {
    /// Where they end.
    pub end: u64,
    /// What was allowed.
    pub limit: u64,
}

/// A stream as far as it has come. The bytes are its owner's, at their position modulo the window for instance: never more
/// than a window of them is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resequencer {
    arrived: Ranges,
    taken: u64,
    window: u64,
    mutation: Option<FlowMutation>,
}

impl Resequencer {
    /// Of a new stream, whose sender has the same policy.
    pub fn new(policy: &FlowPolicy) -> Self {
        Self { arrived: Ranges::default(), taken: 0, window: policy.window, mutation: policy.mutation }
    }

    /// Bytes have come by a subflow. `fresh` is told of those that had not come before: these are to be kept, and no others.
    ///
    /// # Errors
    ///
    /// [`BeyondWindow`]: there is no room for them.
    pub fn accept(&mut self, offset: u64, len: u32, fresh: impl FnMut(Range<u64>)) -> Result<(), BeyondWindow> {
        let end = offset.saturating_add(len.into());
        if end > self.limit() {
            return Err(BeyondWindow { end, limit: self.limit() });
        }
        let mut fresh = fresh;
        if self.mutation == Some(FlowMutation::TakesTwice) && self.arrived.has(&(offset..end)) {
            fresh(offset..end);
        }
        self.arrived.add(offset..end, fresh);
        Ok(())
    }

    /// Bytes that may be taken: all before them were taken or can be, too.
    pub fn ready(&self) -> Range<u64> {
        if self.mutation == Some(FlowMutation::SkipsGaps) {
            let last = self.arrived.last();
            return self.taken..last.max(self.taken);
        }
        self.taken..self.arrived.whole()
    }

    /// Where the last of what has come ends, whatever is missing before it.
    pub fn last(&self) -> u64 {
        self.arrived.last().max(self.arrived.whole())
    }

    /// Gaps before bytes that have come.
    pub fn gaps(&self) -> usize {
        self.arrived.gaps()
    }

    /// So many of them were taken. What lies behind them has room now.
    pub fn take(&mut self, len: u64) {
        self.taken = self.ready().end.min(self.taken.saturating_add(len));
    }

    /// How far the sender may go.
    pub fn limit(&self) -> u64 {
        self.taken.saturating_add(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_bounds_what_is_held() {
        let policy = FlowPolicy { window: 100, ..FlowPolicy::default() };
        let mut stream = Resequencer::new(&policy);
        let mut fresh = Vec::new();
        assert_eq!(stream.accept(50, 51, |_| ()), Err(BeyondWindow { end: 101, limit: 100 }));
        stream.accept(50, 50, |range| fresh.push(range)).unwrap();
        assert_eq!(stream.ready(), 0..0);
        stream.accept(0, 60, |range| fresh.push(range)).unwrap();
        assert_eq!((fresh, stream.ready()), (vec![50..100, 0..50], 0..100));
        stream.take(30);
        assert_eq!((stream.ready(), stream.limit()), (30..100, 130));
        stream.take(1000);
        assert_eq!((stream.ready(), stream.limit()), (100..100, 200));
        assert!(stream.accept(u64::MAX, 5, |_| ()).is_err());
    }
}
