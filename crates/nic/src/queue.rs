//! Send, receive and completion queues: rings whose storage is allocated when they are created.

use std::collections::VecDeque;
use std::sync::Arc;

use remora_memory::{Buffer, Loans, Place, Reference, Region};
use remora_wire::Psn;

use crate::types::{CqId, Event, MAX_SGE, Qpn, Route, SendOp, Sge, UdDest, WcStatus, WorkCompletion};

/// A send work queue element. Its scatter list and inline bytes lie in the queue's side arrays.
#[derive(Debug)]
pub(crate) struct SendWqe {
    pub wr_id: u64,
    pub op: SendOp,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub dest: Option<UdDest>,
    /// The parameters of a kernel call whose payload stream is the next element: one work request in two elements.
    pub has_stream: bool,
    /// Bytes of the message.
    pub len: u32,
    pub source: Source,
    /// Valid once transmission has started.
    pub first_psn: Psn,
    /// PSNs the request takes: packets sent, or response packets expected for a READ.
    pub psns: u32,
    /// READ: response packets that have arrived. Atomics: 1 once the value is here.
    pub answered: u32,
    /// Bytes of the NIC's own, returned to its pool on completion.
    pub buffer: Vec<u8>,
}

/// Where a send's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The first `n` elements of the slot's scatter list.
    List(u32),
    /// The slot's inline bytes.
    Inline,
    /// The element's own buffer: parameters of a kernel call.
    Buffer,
    /// The element's own buffer: a kernel's reply, which is no work request of the user's.
    Reply,
}

impl SendWqe {
    /// READ and atomics end with a response, everything else with an acknowledgement.
    pub fn wants_response(&self) -> bool {
        matches!(self.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Full packets are sent for it, out of regions.
    pub fn has_long(&self, mtu: u32) -> bool {
        self.len >= mtu && matches!(self.source, Source::List(_)) && !self.wants_response()
    }

    /// Its payload comes out of regions and goes to one, looked at by nobody: packets may refer to it.
    pub fn is_moved_alone(&self) -> bool {
        let looked_at = matches!(self.op, SendOp::Rpc { .. } | SendOp::RpcWrite { .. });
        matches!(self.source, Source::List(_)) && !looked_at && !self.wants_response()
    }

    /// Concerns this side alone: no packet is sent for it.
    pub fn is_local(&self) -> bool {
        matches!(self.op, SendOp::LocalInvalidate(_) | SendOp::Bind(_))
    }

    /// The last PSN it takes. Meaningless before transmission has started.
    pub fn last_psn(&self) -> Psn {
        self.first_psn + (self.psns - 1)
    }
}

/// The send queue. Positions count up for ever; `head <= started <= tail`.
#[derive(Debug)]
pub(crate) struct SendQueue {
    slots: Box<[SendWqe]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    max_sge: usize,
    max_inline: usize,
    /// The oldest element that is not complete.
    pub head: u64,
    /// The first element whose transmission has not started.
    pub started: u64,
    /// Where the next one is posted.
    pub tail: u64,
    /// Work requests of the user in the queue (replies of kernels have slots of their own).
    pub user: u32,
    pub max_user: u32,
}

impl SendQueue {
    pub fn new(max_user: u32, replies: u32, max_sge: u32, max_inline: u32) -> Self {
        let slots = (max_user + replies).next_power_of_two() as usize;
        let empty = || SendWqe {
            wr_id: 0,
            op: SendOp::Send,
            signaled: false,
            fence: false,
            solicited: false,
            dest: None,
            has_stream: false,
            len: 0,
            source: Source::Inline,
            first_psn: Psn::new(0),
            psns: 1,
            answered: 0,
            buffer: Vec::new(),
        };
        Self {
            slots: (0..slots).map(|_| empty()).collect(),
            sges: vec![Sge::default(); slots * max_sge as usize].into(),
            inline: vec![0; slots * max_inline as usize].into(),
            max_sge: max_sge as usize,
            max_inline: max_inline as usize,
            head: 0,
            started: 0,
            tail: 0,
            user: 0,
            max_user,
        }
    }

    fn slot(&self, at: u64) -> usize {
        (at as usize) & (self.slots.len() - 1)
    }

    pub fn get(&self, at: u64) -> &SendWqe {
        &self.slots[self.slot(at)]
    }

    pub fn get_mut(&mut self, at: u64) -> &mut SendWqe {
        let slot = self.slot(at);
        &mut self.slots[slot]
    }

    /// The element, its whole scatter-list storage and its whole inline storage.
    pub fn parts_mut(&mut self, at: u64) -> (&mut SendWqe, &mut [Sge], &mut [u8]) {
        let slot = self.slot(at);
        let (s, i) = (slot * self.max_sge, slot * self.max_inline);
        (&mut self.slots[slot], &mut self.sges[s..s + self.max_sge], &mut self.inline[i..i + self.max_inline])
    }

    /// The element, its scatter list and its inline bytes.
    pub fn parts(&self, at: u64) -> (&SendWqe, &[Sge], &[u8]) {
        let slot = self.slot(at);
        let wqe = &self.slots[slot];
        let (s, i) = (slot * self.max_sge, slot * self.max_inline);
        match wqe.source {
            Source::List(n) => (wqe, &self.sges[s..s + n as usize], &[]),
            Source::Inline => (wqe, &[], &self.inline[i..i + (wqe.len as usize).min(self.max_inline)]),
            Source::Buffer | Source::Reply => (wqe, &[], &wqe.buffer),
        }
    }

    pub fn has_slot(&self) -> bool {
        ((self.tail - self.head) as usize) < self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Half of its slots are taken, or of what its user may post.
    pub fn is_half_full(&self) -> bool {
        2 * self.user >= self.max_user || 2 * (self.tail - self.head) >= self.slots.len() as u64
    }
}

/// A receive that was taken from its queue.
#[derive(Debug)]
pub(crate) struct RecvWqe {
    pub wr_id: u64,
    pub sges: Vec<Sge>,
}

impl RecvWqe {
    /// None yet, with room for any.
    pub fn new() -> Self {
        Self { wr_id: 0, sges: Vec::with_capacity(MAX_SGE as usize) }
    }
}

/// A receive queue, of one queue pair or shared. Positions count up for ever.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    /// Each receive's id and the length of its scatter list.
    slots: Box<[(u64, u32)]>,
    sges: Box<[Sge]>,
    max_sge: usize,
    head: u64,
    tail: u64,
}

impl RecvQueue {
    pub fn new(capacity: u32, max_sge: u32) -> Self {
        let (slots, max_sge) = (capacity as usize, max_sge as usize);
        let sges = vec![Sge::default(); slots * max_sge].into();
        Self { slots: vec![(0, 0); slots].into(), sges, max_sge, head: 0, tail: 0 }
    }

    /// Receives waiting.
    pub fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn max_sge(&self) -> u32 {
        self.max_sge as u32
    }

    /// Room for `capacity` receives; no fewer than are there.
    pub fn resize(&mut self, capacity: u32) {
        let mut larger = Self::new(capacity.max(self.len()), self.max_sge());
        let mut wqe = RecvWqe::new();
        while self.pop_into(&mut wqe) {
            larger.push(wqe.wr_id, &wqe.sges);
        }
        *self = larger;
    }

    /// Appends a receive. The caller has checked that there is room, for it and for its list.
    pub fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        let slot = (self.tail % self.slots.len() as u64) as usize;
        self.slots[slot] = (wr_id, sges.len() as u32);
        let at = slot * self.max_sge;
        self.sges[at..at + sges.len()].copy_from_slice(sges);
        self.tail += 1;
    }

    /// Takes the oldest receive. False if there is none.
    pub fn pop_into(&mut self, out: &mut RecvWqe) -> bool {
        if self.head == self.tail {
            return false;
        }
        let slot = (self.head % self.slots.len() as u64) as usize;
        let (wr_id, count) = self.slots[slot];
        let at = slot * self.max_sge;
        out.wr_id = wr_id;
        out.sges.clear();
        out.sges.extend_from_slice(&self.sges[at..at + count as usize]);
        self.head += 1;
        true
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub ring: VecDeque<WorkCompletion>,
    pub capacity: usize,
    pub overrun: bool,
    pub armed: Armed,
    /// Completions so far, and how many they were with the last solicited or failed one.
    pushed: u64,
    urgent: u64,
    /// Queue pairs that complete here.
    pub users: u32,
}

/// Whether a completion raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

impl CompletionQueue {
    pub fn new(capacity: u32) -> Self {
        Self {
            ring: VecDeque::with_capacity(capacity as usize),
            capacity: capacity as usize,
            overrun: false,
            armed: Armed::No,
            pushed: 0,
            urgent: 0,
            users: 0,
        }
    }

    /// Whether there is a completion, or a solicited or failed one.
    pub fn has(&self, solicited_only: bool) -> bool {
        !self.ring.is_empty() && (!solicited_only || self.urgent > self.pushed - self.ring.len() as u64)
    }

    /// Drops the completions of a queue pair.
    pub fn forget(&mut self, qpn: Qpn) {
        let (before, urgent) = (self.ring.len(), self.has(true));
        self.ring.retain(|wc| wc.qpn != qpn);
        if urgent && self.ring.len() < before {
            // Which of those that are left are solicited was known by their places: now any may be.
            self.urgent = self.pushed;
        }
    }

    /// Appends a completion. False if the queue overran: the queue pair must go to the error state.
    #[inline]
    pub fn push(&mut self, id: CqId, wc: WorkCompletion, solicited: bool, events: &mut VecDeque<Event>) -> bool {
        if self.ring.len() == self.capacity {
            if !self.overrun {
                self.overrun = true;
                events.push_back(Event::CqOverrun(id));
            }
            return false;
        }
        self.ring.push_back(wc);
        self.pushed += 1;
        let urgent = solicited || wc.status != WcStatus::Success;
        if urgent {
            self.urgent = self.pushed;
        }
        let fire = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => urgent,
        };
        if fire {
            self.armed = Armed::No;
            events.push_back(Event::Completion(id));
        }
        true
    }
}

/// Packets for one destination, back to back in one buffer: what `poll_transmit` fills and a link sends.
///
/// Or put together where the link wants them, in memory that it shares with the peer ([`Room`]): payload is then copied
/// there once, out of its region.
#[derive(Debug)]
pub struct TxBatch {
    bytes: Box<[u8]>,
    room: Option<Room>,
    /// How much of the packet being built stands in the room already.
    placed: Placed,
    /// Bit by bit: the packet refers to its payload.
    referred: u64,
    used: usize,
    lens: [u16; TxBatch::PACKETS],
    fetched: [u16; TxBatch::PACKETS],
    count: usize,
    route: Option<Route>,
}

/// Where in shared memory packets may be put together.
#[derive(Clone, Debug)]
pub struct Room {
    /// The memory. Peers may read and write it at any time.
    pub buffer: Buffer,
    /// The first byte that is free: a multiple of 8.
    pub start: usize,
    /// The first byte behind it that is not.
    pub end: usize,
    /// What of this side's memory the peer has been lent, if it can be: packets refer to payload there.
    pub loans: Option<Arc<Loans>>,
}

/// How much of a packet stands in the room that it is sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// Nothing yet.
    No,
    /// All of it.
    Whole,
    /// So many bytes: a reference to its payload, and its headers.
    Referred(usize),
}

impl Room {
    /// Bytes left free before each packet, which begins at a multiple of 8.
    pub const GAP: usize = 8;

    /// Bytes that a packet takes with its gap.
    pub const fn taken(len: usize) -> usize {
        Self::GAP + len.next_multiple_of(8)
    }
}

/// Where a payload goes.
pub(crate) enum Target<'a> {
    Private(&'a mut [u8]),
    /// So many bytes of a shared buffer from this offset on.
    Shared(&'a Buffer, usize, usize),
}

impl Target<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Private(out) => out.len(),
            Self::Shared(_, _, len) => *len,
        }
    }

    /// Fills the first `n` bytes from `va` of a region on. What is left; `None` if they are not there.
    pub fn fill(self, region: &Region, va: u64, n: usize) -> Option<Self> {
        Some(match self {
            Self::Private(out) => {
                let (head, tail) = out.split_at_mut(n);
                region.read(va, head).ok()?;
                Self::Private(tail)
            }
            Self::Shared(buffer, at, len) => {
                region.lift(va, buffer, at, n).ok()?;
                Self::Shared(buffer, at + n, len - n)
            }
        })
    }
}

/// Payload from which on it goes straight into shared memory, or is referred to. Shorter ones are copied along with their headers.
pub(crate) const STRAIGHT: usize = 512;

/// Payload that one packet refers to at most: it may stand for as many packets of the path's MTU in a row.
pub(crate) const RUN_BYTES: usize = 64 << 10;

/// Packets of the MTU that one may stand for.
pub(crate) const fn run_packets(mtu: u32) -> u32 {
    let packets = RUN_BYTES as u32 / mtu;
    if packets > 1 { packets } else { 1 }
}

impl TxBatch {
    /// Packets in a batch at most. Linux segments one UDP send into as many.
    pub const PACKETS: usize = 64;
    /// The largest packet: 4096 B of payload, headers, ICRC.
    pub const PACKET_BYTES: usize = 4096 + 96;

    /// An empty batch; its storage is allocated here, once.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; Self::PACKETS * Self::PACKET_BYTES].into(),
            room: None,
            placed: Placed::No,
            referred: 0,
            used: 0,
            lens: [0; Self::PACKETS],
            fetched: [0; Self::PACKETS],
            count: 0,
            route: None,
        }
    }

    /// The packets' bytes, back to back, and their lengths.
    pub fn parts_mut(&mut self) -> (&mut [u8], &[u16]) {
        (&mut self.bytes[..self.used], &self.lens[..self.count])
    }

    /// Each packet, in order.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = 0;
        self.lens[..self.count].iter().map(move |&len| {
            let start = at;
            at += len as usize;
            &self.bytes[start..at]
        })
    }

    /// Payload bytes of each packet, in order, that came out of registered memory: what a NIC in hardware would have
    /// read over its bus. Inline data, kernels' replies and headers do not count.
    pub fn fetched(&self) -> impl Iterator<Item = usize> {
        self.fetched[..self.count].iter().map(|&bytes| bytes.into())
    }

    /// Where all its packets go; `None` when empty.
    pub fn route(&self) -> Option<Route> {
        self.route
    }

    /// Packets in it.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Bytes of all packets.
    pub fn byte_len(&self) -> usize {
        self.used
    }

    /// Whether it holds no packet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The lengths of its packets; of those that refer to their payload without it.
    pub fn lens(&self) -> &[u16] {
        &self.lens[..self.count]
    }

    /// Bit by bit, those that refer to their payload: a [`Reference`](remora_memory::Reference) and headers stand in the room.
    pub fn referred(&self) -> u64 {
        self.referred
    }

    /// Makes it empty.
    pub fn clear(&mut self) {
        self.referred = 0;
        self.used = 0;
        self.count = 0;
        self.route = None;
        self.room = None;
    }

    /// Makes it empty, for packets of one route in `room`.
    pub(crate) fn settle(&mut self, route: Route, room: Room) {
        self.clear();
        self.route = Some(route);
        self.room = Some(room);
    }

    /// Bytes of the packet that was built last.
    pub(crate) fn last_len(&self) -> usize {
        self.count.checked_sub(1).map_or(0, |last| self.lens[last].into())
    }

    pub(crate) fn is_full(&self) -> bool {
        let cramped = |room: &Room| room.end.saturating_sub(room.start) < Room::taken(Self::PACKET_BYTES);
        self.count == Self::PACKETS || self.room.as_ref().is_some_and(cramped)
    }

    pub(crate) fn accepts(&self, route: Route) -> bool {
        !self.is_full() && self.route.is_none_or(|r| r == route)
    }

    /// Room for the next packet. Call `commit` with the bytes used.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.fetched[self.count] = 0;
        &mut self.bytes[self.used..self.used + Self::PACKET_BYTES]
    }

    /// As [`space`](Self::space), and where in shared memory the packet goes, if it does.
    pub(crate) fn spaces(&mut self) -> (&mut [u8], Option<&Room>) {
        self.fetched[self.count] = 0;
        (&mut self.bytes[self.used..self.used + Self::PACKET_BYTES], self.room.as_ref())
    }

    /// Whether packets are put together in shared memory.
    pub(crate) fn has_room(&self) -> bool {
        self.room.is_some()
    }

    /// Whether payload may be referred to.
    pub(crate) fn may_refer(&self) -> bool {
        self.room.as_ref().is_some_and(|room| room.loans.is_some())
    }

    /// Names `len` bytes of payload to whom the packets go, if it is much and has been lent.
    pub(crate) fn name(&self, place: &Place<'_>, len: usize) -> Option<Reference> {
        self.room.as_ref()?.loans.as_ref().filter(|_| len >= STRAIGHT)?.name(place, len)
    }

    /// The packet being built has `bytes` of registered memory in it.
    pub(crate) fn note_fetched(&mut self, bytes: usize) {
        self.fetched[self.count] = bytes as u16;
    }

    pub(crate) fn commit(&mut self, route: Route, len: usize) {
        let placed = std::mem::replace(&mut self.placed, Placed::No);
        let len = match placed {
            Placed::Referred(there) => {
                self.referred |= 1 << self.count;
                there
            }
            _ => len,
        };
        debug_assert!(self.accepts(route) && len <= Self::PACKET_BYTES);
        if self.route.is_none() {
            self.route = Some(route);
        }
        self.lens[self.count] = len as u16;
        self.count += 1;
        match &mut self.room {
            None => self.used += len,
            Some(room) => {
                if placed == Placed::No {
                    let there = room.buffer.write(room.start + Room::GAP, &self.bytes[..len.next_multiple_of(8)]);
                    debug_assert!(there.is_ok(), "the room lies in the buffer, and is not full");
                }
                room.start += Room::taken(len);
            }
        }
    }

    /// As [`commit`](Self::commit) of a packet that has so many bytes of registered memory in it, where there is no room.
    #[inline]
    pub(crate) fn commit_plain(&mut self, route: Route, len: usize, fetched: usize) {
        debug_assert!(self.accepts(route) && len <= Self::PACKET_BYTES && !self.has_room());
        if self.route.is_none() {
            self.route = Some(route);
        }
        (self.lens[self.count], self.fetched[self.count]) = (len as u16, fetched as u16);
        self.count += 1;
        self.used += len;
    }

    /// So much of the packet being built stands in the room already.
    pub(crate) fn note_placed(&mut self, placed: Placed) {
        self.placed = placed;
    }
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WcOpcode;

    #[test]
    fn what_is_in_a_completion_queue_counts_until_it_is_taken() {
        let wc = |status| WorkCompletion {
            wr_id: 0,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qpn: Qpn(1),
            src_qp: 0,
            src: None,
        };
        let (mut queue, mut events) = (CompletionQueue::new(8), VecDeque::new());
        let has = |queue: &CompletionQueue| [false, true].map(|solicited_only| queue.has(solicited_only));
        assert_eq!(has(&queue), [false, false]);
        for (status, solicited) in [(WcStatus::Success, true), (WcStatus::Flushed, false), (WcStatus::Success, false)] {
            assert!(queue.push(CqId(0), wc(status), solicited, &mut events));
        }
        let mut seen = Vec::new();
        while queue.ring.pop_front().is_some() {
            seen.push(has(&queue));
        }
        assert_eq!((seen, events.len()), (vec![[true, true], [true, false], [false, false]], 0));

        // What another queue pair leaves behind is as urgent as it was.
        let of = |qpn| WorkCompletion { qpn: Qpn(qpn), ..wc(WcStatus::Success) };
        for (qpn, solicited) in [(1, true), (2, false), (2, false)] {
            assert!(queue.push(CqId(0), of(qpn), solicited, &mut events));
        }
        queue.forget(Qpn(2));
        assert_eq!((queue.ring.len(), has(&queue)), (1, [true, true]));
        queue.forget(Qpn(1));
        assert!(queue.push(CqId(0), of(1), false, &mut events));
        queue.forget(Qpn(2));
        assert_eq!(has(&queue), [true, false], "nor is it more so");
    }
}
