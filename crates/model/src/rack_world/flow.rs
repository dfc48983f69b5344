//! A stream from a node to another: TCP at one end, what has arrived at the other.

use std::collections::{BTreeMap, VecDeque};

use remora_rack::{BeyondWindow, FlowPolicy, Resequencer};

use crate::component::tcp::{Tcp, TcpParams};
use crate::time::Ps;

/// Segments that are acknowledged one by one at the beginning and after something was lost, as in Linux.
pub(super) const QUICK: u32 = 16;

/// A packet on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packet {
    pub flow: usize,
    /// Whether it is an acknowledgement: `offset` is then how far, and `limit` how far the sender may go.
    pub ack: bool,
    pub offset: u64,
    pub len: u32,
    /// How many of its flow have left before it.
    pub order: u64,
    pub limit: u64,
    /// Whether nothing followed when it left: it is acknowledged at once.
    pub push: bool,
    /// Of an acknowledgement: whether later bytes have arrived.
    pub gap: bool,
    /// What it holds.
    pub content: u64,
    /// The NIC of the pool, and what the pool calls it.
    pub nic: usize,
    pub tag: Option<u64>,
    /// The virtual queue.
    pub queue: usize,
    /// Where it lies at the receiver, and when its last byte is there.
    pub buffer: u64,
    pub last: Ps,
}

/// A part of a stream that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    /// Bytes that were not taken yet.
    pub len: u64,
    /// When the last can be read.
    pub last: Ps,
    pub buffer: u64,
}

/// A stream.
pub(super) struct Flow {
    pub from: usize,
    pub to: usize,
    pub tcp: Tcp,
    /// Whether the NIC pool cuts it, and whether acknowledgements of the same mean a loss.
    pub pooled: bool,
    pub in_order: bool,
    /// Bytes that the program has written, and that the pool was offered.
    pub written: u64,
    pub offered: u64,
    /// Bytes below TCP, and its sockets.
    pub queued: u64,
    pub sockets: u64,
    /// How far the receiver allows.
    pub limit: u64,
    /// What is not acknowledged: offset and length.
    pub sent: VecDeque<(u64, u32)>,
    /// Up to here what was lost has been sent again in this recovery.
    pub mended: u64,
    /// Packets that have left, and of those that have arrived the last to leave.
    pub left: u64,
    newest: u64,
    /// What was sent again, as it left: how many had before it, offset and length.
    again: VecDeque<(u64, u64, u32)>,
    /// When the timer is next looked at.
    pub timer: Option<Ps>,
    stream: Resequencer,
    early: BTreeMap<u64, Arrived>,
    pub ready: VecDeque<Arrived>,
    /// Segments that are not acknowledged, how many more are acknowledged at once, and how far the sender knows it may go.
    pub unacked: u32,
    pub quick: u32,
    pub told: u64,
}

impl Flow {
    pub fn new(from: usize, to: usize, tcp: &TcpParams, policy: &FlowPolicy, pooled: bool, in_order: bool) -> Self {
        Self {
            from,
            to,
            tcp: Tcp::new(tcp),
            pooled,
            in_order,
            written: 0,
            offered: 0,
            queued: 0,
            sockets: if pooled { policy.subflows.into() } else { 1 },
            limit: policy.window,
            sent: VecDeque::new(),
            mended: 0,
            left: 0,
            newest: 0,
            again: VecDeque::new(),
            timer: None,
            stream: Resequencer::new(policy),
            early: BTreeMap::new(),
            ready: VecDeque::new(),
            unacked: 0,
            quick: QUICK,
            told: policy.window,
        }
    }

    /// What a stream holds there: so that bytes that come to the wrong place are seen.
    pub fn content(&self, offset: u64, len: u32) -> u64 {
        let mut hash = (self.from as u64) << 32 | self.to as u64;
        for part in [offset, len.into()] {
            hash = (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        hash
    }

    /// The length of the segment that begins at `offset`, if that was sent before.
    pub fn boundary(&self, offset: u64) -> Option<u32> {
        let at = self.sent.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        Some(self.sent[at].1)
    }

    /// The next segment that is lost: what left later has arrived, one that was sent again among them, as Linux finds it (RFC 8985).
    /// What the receiver's acknowledgements say of these (RFC 2018) is read where it stands, half a round trip early.
    pub fn lost(&mut self) -> Option<(u64, u32)> {
        while let Some((_, offset, len)) = self.again.pop_front_if(|(order, ..)| *order < self.newest) {
            if self.is_missing(offset) {
                return Some((offset, len));
            }
        }
        let last = *self.early.last_key_value()?.0;
        let from = self.sent.partition_point(|(offset, _)| *offset < self.mended);
        let mut after = self.sent.range(from..).take_while(|(offset, _)| *offset < last);
        let found = *after.find(|(offset, _)| self.is_missing(*offset))?;
        self.mended = found.0 + u64::from(found.1);
        Some(found)
    }

    fn is_missing(&self, offset: u64) -> bool {
        offset >= self.stream.ready().end && !self.early.contains_key(&offset)
    }

    /// A segment is about to be sent again.
    pub fn sends_again(&mut self, (offset, len): (u64, u32)) {
        self.again.push_back((self.left, offset, len));
    }

    /// The timer went off: all is to be sent again.
    pub fn begins_anew(&mut self) {
        (self.queued, self.mended) = (0, 0);
        self.again.clear();
    }

    /// Everything up to `ack` has arrived.
    pub fn forget(&mut self, ack: u64) {
        while self.sent.front().is_some_and(|(offset, len)| offset + u64::from(*len) <= ack) {
            self.sent.pop_front();
        }
    }

    /// A segment has arrived. Whether it was the next; `None` if it had come before.
    pub fn arrive(&mut self, packet: &Packet) -> Result<Option<bool>, BeyondWindow> {
        self.newest = self.newest.max(packet.order);
        let (mut fresh, before) = (false, self.stream.ready().end);
        self.stream.accept(packet.offset, packet.len, |_| fresh = true)?;
        if !fresh {
            return Ok(None);
        }
        let arrived = Arrived { len: packet.len.into(), last: packet.last, buffer: packet.buffer };
        self.early.insert(packet.offset, arrived);
        let ready = self.stream.ready().end;
        while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() < ready) {
            self.ready.push_back(entry.remove());
        }
        Ok(Some(packet.offset == before && self.early.is_empty()))
    }

    /// Whether bytes have arrived that others are missing before.
    pub fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }

    /// How far it has come without a gap.
    pub fn whole(&self) -> u64 {
        self.stream.ready().end
    }

    /// The program has taken bytes.
    pub fn take(&mut self, len: u64) {
        self.stream.take(len);
    }

    /// How far the sender may go.
    pub fn allows(&self) -> u64 {
        self.stream.limit()
    }

    /// Bytes that the program has taken.
    pub fn taken(&self) -> u64 {
        self.stream.ready().start
    }
}
