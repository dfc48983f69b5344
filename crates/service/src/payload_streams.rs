//! Payload streams on their way to the kernels that read them.

use std::sync::Arc;

use remora_kernel::{Call, Feed};
use remora_memory::Lookahead;
use remora_nic::Qpn;

/// Bytes of a payload stream that may wait for their kernel, if nobody says otherwise.
pub const STREAM_BUFFER: usize = 256 << 10;

/// The streams of a place that have not come to their end, by what the ingress calls them.
#[derive(Debug)]
pub struct PayloadStreams {
    /// In the order of their ids.
    inputs: Vec<(u64, Input)>,
    capacity: usize,
    lookahead: Arc<Lookahead>,
}

#[derive(Debug)]
struct Input {
    qpn: u32,
    /// `None` once the kernel has ended: what still comes is dropped.
    feed: Option<Feed>,
    /// Bytes that it was given.
    fed: u64,
}

/// What became of a piece of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// Its kernel has it, or wants no more.
    Taken,
    /// There is no room: offer it again after the kernel has run.
    Later,
    /// No call with this stream is under way: it has yet to start, or is gone, and nobody wants the piece.
    Unknown,
}

impl PayloadStreams {
    /// Each may have so many bytes waiting.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { inputs: Vec::new(), capacity, lookahead: Arc::default() }
    }

    /// Where links say what they will bring next: kernels on streams may ask for it.
    pub fn lookahead(&self) -> &Arc<Lookahead> {
        &self.lookahead
    }

    /// A call begins whose stream has this id.
    pub(crate) fn open(&mut self, id: u64, call: &mut Call) {
        let feed = Some(call.open_stream(self.capacity));
        call.stream().look_ahead(self.lookahead.clone());
        let at = self.inputs.partition_point(|(other, _)| *other < id);
        self.inputs.insert(at, (id, Input { qpn: call.qpn, feed, fed: 0 }));
    }

    /// A call has ended: nobody reads its stream any more.
    pub(crate) fn close(&mut self, id: u64) {
        if let Ok(at) = self.find(id) {
            self.inputs[at].1.feed = None;
        }
    }

    /// Gives a piece of a stream to its kernel: the bytes change hands where that saves a copy. With `only_if_caught_up`
    /// a kernel that has not read all it was given gets it later.
    #[inline]
    pub fn offer(&mut self, id: u64, data: &mut Vec<u8>, last: bool, only_if_caught_up: bool) -> Offered {
        let Ok(at) = self.find(id) else { return Offered::Unknown };
        let len = data.len() as u64;
        let taken = match &mut self.inputs[at].1.feed {
            Some(feed) if only_if_caught_up && !feed.is_empty() => false,
            Some(feed) => feed.give(data, last),
            None => true,
        };
        if !taken {
            return Offered::Later;
        }
        self.inputs[at].1.fed += len;
        if last {
            self.inputs.remove(at);
        }
        Offered::Taken
    }

    /// Bytes that have come of a stream and found their kernel.
    pub(crate) fn fed(&self, id: u64) -> u64 {
        self.find(id).map_or(0, |at| self.inputs[at].1.fed)
    }

    /// Whether a call still has payload to come.
    pub fn is_open(&self, id: u64) -> bool {
        self.find(id).is_ok_and(|at| self.inputs[at].1.feed.is_some())
    }

    /// Breaks off the streams of queue pairs that are gone: their kernels would wait for ever.
    #[inline]
    pub fn break_off(&mut self, alive: impl Fn(Qpn) -> bool) {
        if !self.inputs.is_empty() {
            self.inputs.retain(|(_, input)| alive(Qpn(input.qpn)));
        }
    }

    /// PayloadStreams that have not come to their end.
    #[inline]
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    fn find(&self, id: u64) -> Result<usize, usize> {
        self.inputs.binary_search_by_key(&id, |(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Offered::{Later, Taken, Unknown};

    fn call(qpn: u32) -> Call {
        let mut call = Call::new(1, &[], 0);
        call.qpn = qpn;
        call
    }

    #[test]
    fn pieces_go_to_their_calls_and_ended_ones_take_no_more() {
        let mut streams = PayloadStreams::new(4);
        let mut calls = [call(1), call(1), call(2)];
        for (id, call) in [7, 3, 5].into_iter().zip(&mut calls) {
            streams.open(id, call);
        }
        let offer =
            |streams: &mut PayloadStreams, id, data: &[u8], last| streams.offer(id, &mut data.to_vec(), last, false);
        assert_eq!(offer(&mut streams, 7, b"abc", false), Taken);
        assert_eq!(offer(&mut streams, 7, b"de", false), Later, "four bytes may wait");
        assert_eq!(streams.offer(7, &mut b"d".to_vec(), false, true), Later, "the kernel has not caught up");
        assert_eq!(streams.offer(5, &mut b"d".to_vec(), false, true), Taken);
        assert_eq!(offer(&mut streams, 4, b"x", false), Unknown);
        assert!(streams.is_open(3) && !streams.is_open(4));
        streams.close(3);
        assert!(!streams.is_open(3));
        assert_eq!(offer(&mut streams, 3, &[0; 100], false), Taken, "dropped");
        assert_eq!(offer(&mut streams, 3, &[], true), Taken);
        assert_eq!(offer(&mut streams, 3, &[], true), Unknown, "at its end");
        assert_eq!(streams.len(), 2);
        streams.break_off(|qpn| qpn == Qpn(2));
        assert_eq!((streams.len(), streams.is_open(5), streams.is_open(7)), (1, true, false));
    }
}
