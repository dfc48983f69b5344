//! Calls that come by rings in memory: a node's side of all of its clients' pairs of rings at one place.
//!
//! Nobody polls them: the world sets [`Signals`] where WRITEs land. It posts what [`next_write`](Rings::next_write) says,
//! and ends the connections that [`poll_fault`](Rings::poll_fault) names.

use std::collections::VecDeque;
use std::sync::Arc;

use remora_kernel::{Call, Status};
use remora_memory::Pd;
use remora_nic::{Qpn, SendOp, Sge, Time};
use remora_ring::{Notify, PushError, RingEnd, RingError, RingScheduler, RingWrite, Signals};

use crate::MAX_CALLS;
use crate::ingress::{Ingress, Release, TakenCall};
use crate::ring_budget::{MAX_RING_MESSAGE, RING_BYTES, SHORT_RING_MESSAGE, UNIT, most_reply};
use crate::ring_call::{RingCall, RingReply};
use crate::share::Shares;

use ring::{Coming, Held, Ring, Taken};

mod ring;

/// Pairs of rings that a place may have.
pub const RINGS: u32 = 4096;
/// Calls by rings that may be under way at a place, of which each client has its [share](Shares): one alone as many as RAMBDA's
/// table of outstanding requests (section V).
pub const RING_CALLS: usize = 512;
/// Bytes of a long call's parameters, or of a reply, that are copied before others have their turn; and bytes of parameters after
/// which no more calls are taken in a turn.
const PIECE: usize = 32 << 10;
/// Nanoseconds after which a client that makes no room for its answers loses its connection.
const ANSWERS_WAIT: Time = 10_000_000_000;

/// The pairs of rings of a place, of all clients.
pub struct Rings {
    rings: Vec<Option<Ring>>,
    free: Vec<u32>,
    signals: Arc<Signals>,
    scheduler: RingScheduler,
    /// Of calls that were taken and have no answer in a ring yet.
    shares: Shares,
    /// Of bytes that long ones hold, in [`UNIT`]s: from before the parameters are copied until the reply is in the caller's
    /// ring, with all the room that there is for it. So a call that was begun never waits for bytes that others hold.
    bytes: Shares,
    /// Rings whose clients had no bytes left for the next call of theirs.
    waiting: RingScheduler,
    /// Rings whose next call is taken in part.
    coming: usize,
    /// Bytes of parameters that were taken in this turn.
    copied: usize,
    /// Rings with something to write, each once.
    dirty: VecDeque<u32>,
    /// How many rings have answers that there was no room for, and those of them whose clients wrote something since, each once.
    holding: usize,
    retries: RingScheduler,
    /// The ring that was last looked at for answers that wait too long.
    looked_at: u32,
    /// Numbers of calls that are done with.
    released: Vec<u32>,
    faults: Vec<RingFault>,
    /// Whose kernels named memory that they may not reach.
    denied: Vec<Qpn>,
    opened: u64,
}

/// What a node knows of a pair of rings.
pub struct RingPair {
    /// The queue pair that it goes by.
    pub qpn: Qpn,
    /// What its client's kernels reach.
    pub pd: Pd,
    /// The node's end.
    pub end: RingEnd,
    /// How its client tells of requests.
    pub notify: Notify,
    /// The memory that responses are written from: address and key.
    pub copy: (u64, u32),
    /// The response ring, in the client's memory: address and key.
    pub responses: (u64, u32),
}

/// Whom a call by a ring answers.
#[derive(Clone, Copy, Debug)]
pub struct RingAsker {
    ring: u32,
    id: u64,
    client: u32,
    tag: u32,
    room: u32,
    units: u32,
}

/// A WRITE to a client's memory. It needs no completion: the client's credits say that it has come.
#[derive(Clone, Copy, Debug)]
pub struct RingPost {
    /// By this queue pair.
    pub qpn: Qpn,
    /// The WRITE.
    pub op: SendOp,
    /// Its bytes.
    pub data: RingData,
}

/// Where the bytes of a [`RingPost`] are.
#[derive(Clone, Copy, Debug)]
pub enum RingData {
    /// In memory.
    Frames(Sge),
    /// Here.
    Pointer([u8; 8]),
}

impl RingData {
    /// What an end has to write to the peer's ring, from a copy of it in our memory: both given by address and key.
    #[inline]
    pub fn of(write: RingWrite, copy: (u64, u32), peer: (u64, u32)) -> (SendOp, Self) {
        match write {
            RingWrite::Frames(range) => {
                let sge = Sge { va: copy.0 + range.start as u64, len: range.len() as u32, lkey: copy.1 };
                // The peer says where its ring is: any address.
                (SendOp::Write { va: peer.0.wrapping_add(range.start as u64), rkey: peer.1 }, Self::Frames(sge))
            }
            RingWrite::Pointer { offset, word } => {
                let op = SendOp::Write { va: peer.0.wrapping_add(offset as u64), rkey: peer.1 };
                (op, Self::Pointer(word.to_le_bytes()))
            }
        }
    }
}

/// A client wrote what none writes that keeps to the rules: end its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFault {
    /// Which.
    pub qpn: Qpn,
    /// What was wrong.
    pub error: RingError,
}

/// A place has as many pairs of rings as it may, or this client its share of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a place has {RINGS} pairs of rings, and no client more of them than are left: close some, or share one between threads"
)]
pub struct TooManyRings;

impl Default for Rings {
    fn default() -> Self {
        Self {
            rings: Vec::new(),
            free: Vec::new(),
            signals: Arc::new(Signals::new(RINGS)),
            scheduler: RingScheduler::default(),
            shares: Shares::new(RING_CALLS),
            bytes: Shares::new(RING_BYTES / UNIT),
            waiting: RingScheduler::default(),
            coming: 0,
            copied: 0,
            dirty: VecDeque::new(),
            holding: 0,
            retries: RingScheduler::default(),
            looked_at: 0,
            released: Vec::new(),
            faults: Vec::new(),
            denied: Vec::new(),
            opened: 0,
        }
    }
}

impl Rings {
    /// What is to be set when something lands in the memory of a ring.
    pub fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// As many requests of a client are taken in a turn from now on.
    pub fn set_weight(&mut self, client: u32, weight: u32) {
        self.scheduler.set_weight(client, weight);
        self.retries.set_weight(client, weight);
    }

    /// A client, by its [number](Shares::client_of), has a pair of rings from now on. Returns the pair's number, which
    /// its signals have.
    pub fn open(&mut self, client: u32, mut pair: RingPair) -> Result<u32, TooManyRings> {
        let has = self.rings.iter().flatten().filter(|ring| ring.client == client).count();
        if has >= RINGS as usize - self.len() {
            return Err(TooManyRings);
        }
        pair.end.accept_up_to(RingCall::LEN + MAX_RING_MESSAGE);
        let ring = match self.free.pop() {
            Some(ring) => ring,
            None if self.rings.len() as u32 >= RINGS => return Err(TooManyRings),
            None => {
                self.rings.push(None);
                self.rings.len() as u32 - 1
            }
        };
        self.opened += 1;
        self.signals.clear(ring);
        let (id, held) = (self.opened, VecDeque::new());
        self.rings[ring as usize] =
            Some(Ring { id, pair, client, is_dirty: false, coming: None, held, held_since: None });
        // What came before its taps were there.
        self.signals.set(ring);
        Ok(ring)
    }

    /// Closes a pair. Calls that came by it have no answer.
    pub fn close(&mut self, ring: u32) {
        let Some(closed) = self.rings.get_mut(ring as usize).and_then(Option::take) else { return };
        self.scheduler.sleep(ring);
        self.waiting.sleep(ring);
        self.holding -= usize::from(!closed.held.is_empty());
        for Held { number, units, .. } in closed.held {
            self.ended(closed.client, units);
            self.released.push(number);
        }
        if let Some(Coming { units, .. }) = closed.coming {
            self.ended_long(closed.client, units);
            self.coming -= 1;
        }
        self.dirty.retain(|&other| other != ring);
        self.retries.sleep(ring);
        self.free.push(ring);
    }

    /// A call has its answer in the ring, or needs none any more.
    #[inline]
    fn ended(&mut self, client: u32, units: u32) {
        self.shares.end(client);
        self.ended_long(client, units);
    }

    #[inline]
    fn ended_long(&mut self, client: u32, units: u32) {
        if units > 0 {
            self.bytes.end_many(client, units);
        }
    }

    /// Pairs that are open.
    pub fn len(&self) -> usize {
        self.rings.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is nothing to do: no signal, no call that waits, nothing to write or to release.
    #[inline]
    pub fn is_still(&self) -> bool {
        let waits = !self.scheduler.is_empty() || !self.waiting.is_empty() || !self.dirty.is_empty();
        let waits = waits || self.holding > 0 || !self.released.is_empty();
        !waits && (self.rings.is_empty() || !self.signals.any())
    }

    /// Whether the next turn has something to copy, or may, whoever else has something to do.
    #[inline]
    pub fn is_copying(&self) -> bool {
        self.coming > 0 || self.copied >= PIECE || !self.retries.is_empty()
    }

    /// The number of a call that is done with, whose answer had to wait: [release](crate::CallTable::release) it.
    #[inline]
    pub fn poll_released(&mut self) -> Option<u32> {
        self.released.pop()
    }

    /// A client that lied.
    #[inline]
    pub fn poll_fault(&mut self) -> Option<RingFault> {
        self.faults.pop()
    }

    /// A client whose call named memory that it may not reach: see [`Nic::wrong_key`](remora_nic::Nic::wrong_key).
    #[inline]
    pub fn poll_denied(&mut self) -> Option<Qpn> {
        self.denied.pop()
    }

    /// Whether there may be something to write.
    #[inline]
    pub fn wants_write(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The next WRITE to post, by a queue pair that has `room` for one.
    pub fn next_write(&mut self, room: impl Fn(Qpn) -> bool) -> Option<RingPost> {
        for _ in 0..self.dirty.len() {
            let number = *self.dirty.front()?;
            let Some(Some(ring)) = self.rings.get_mut(number as usize) else {
                self.dirty.pop_front();
                continue;
            };
            if !room(ring.pair.qpn) {
                self.dirty.rotate_left(1);
                continue;
            }
            let RingPair { end, copy, responses, qpn, .. } = &mut ring.pair;
            if let Some(write) = end.poll_write() {
                let (op, data) = RingData::of(write, *copy, *responses);
                return Some(RingPost { qpn: *qpn, op, data });
            }
            ring.is_dirty = false;
            self.dirty.pop_front();
        }
        None
    }

    /// A turn begins, of which there is one for each time that the driver takes calls, runs and answers them.
    pub fn begin_turn(&mut self, now: Time) {
        self.copied = 0;
        if self.holding > 0 {
            self.hear();
            self.push_held();
            self.end_unread(now);
        }
    }

    /// Looks at one pair, another each time: who has made no room for its answers for too long holds what others wait for.
    fn end_unread(&mut self, now: Time) {
        self.looked_at = if (self.looked_at as usize) + 1 < self.rings.len() { self.looked_at + 1 } else { 0 };
        let Some(Some(ring)) = self.rings.get_mut(self.looked_at as usize) else { return };
        if ring.held.is_empty() {
            return;
        }
        if now.saturating_sub(*ring.held_since.get_or_insert(now)) > ANSWERS_WAIT {
            ring.held_since = Some(now);
            self.faults.push(RingFault { qpn: ring.pair.qpn, error: RingError::Unread { answers: ring.held.len() } });
        }
    }

    /// Takes signals in. A pointer came with them where a client tells of its requests so: it is no further on than its ring is
    /// long.
    #[inline]
    fn hear(&mut self) {
        let Self { rings, signals, scheduler, retries, faults, .. } = self;
        if !signals.any() {
            return;
        }
        signals.take(|number| {
            let Some(Some(ring)) = rings.get_mut(number as usize) else { return };
            if ring.pair.notify == Notify::Pointer
                && let Err(error) = ring.pair.end.receiver().arrived(signals.pointer(number))
            {
                faults.push(RingFault { qpn: ring.pair.qpn, error });
                return;
            }
            scheduler.wake(ring.client, number);
            if !ring.held.is_empty() {
                retries.wake(ring.client, number);
            }
        });
    }

    /// Answers that had no room may have some now, where the client has written since; and long ones go on. A piece in all, so
    /// that others have their turns.
    fn push_held(&mut self) {
        let mut left = PIECE;
        while left > 0
            && let Some(number) = self.retries.next(|_| true)
        {
            let Some(Some(ring)) = self.rings.get_mut(number as usize) else {
                self.retries.sleep(number);
                continue;
            };
            while left > 0
                && let Some(held) = ring.held.front_mut()
            {
                let before = held.laid;
                let pushed = ring.pair.end.push_part(&[&held.front, &held.reply], &mut held.laid, left);
                left -= held.laid - before;
                if let Ok(Ok(is_in)) = pushed {
                    ring.held_since = None;
                    if is_in {
                        let Some(Held { number, units, .. }) = ring.held.pop_front() else { break };
                        self.released.push(number);
                        self.shares.end(ring.client);
                        if units > 0 {
                            self.bytes.end_many(ring.client, units);
                        }
                    }
                    continue;
                }
                if let Err(error) = pushed {
                    self.faults.push(RingFault { qpn: ring.pair.qpn, error });
                }
                self.retries.sleep(number);
                break;
            }
            // It may also have asked for room.
            if ring.gets_dirty() {
                self.dirty.push_back(number);
            }
            if ring.held.is_empty() {
                self.holding -= 1;
                self.retries.sleep(number);
                self.scheduler.wake(ring.client, number);
            }
        }
    }
}

impl Ingress for Rings {
    type Asker = RingAsker;

    #[inline]
    fn is_waiting(&self) -> bool {
        self.signals.any() || !self.scheduler.is_empty() || !self.waiting.is_empty()
    }

    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<RingAsker>> {
        // However many calls there are: others have their turns between those that bring much.
        if self.copied >= PIECE {
            return None;
        }
        self.hear();
        let Self { rings, scheduler, waiting, shares: own, bytes, coming, copied, faults, dirty, .. } = self;
        // One at a time: the others of its client may have to wait on.
        if let Some(number) = waiting.next(|client| bytes.may_start(client)) {
            waiting.sleep(number);
            if let Some(Some(ring)) = rings.get(number as usize) {
                scheduler.wake(ring.client, number);
            }
        }
        loop {
            let number = scheduler.next(|client| own.may_start(client) && shares.may_start(client))?;
            let ring = rings.get_mut(number as usize).and_then(Option::as_mut);
            // One whose answers have no room has no more calls taken: it is to read first, and wakes then.
            let Some(ring) = ring.filter(|ring| ring.held.is_empty()) else {
                scheduler.sleep(number);
                continue;
            };
            call.recycle(0, 0);
            let was_coming = ring.coming.is_some();
            let taken = ring.take(bytes, &mut call.params);
            *coming = *coming + usize::from(ring.coming.is_some()) - usize::from(was_coming);
            let (RingCall { op, tag, room }, units) = match taken {
                Ok(Taken::Whole(call, units)) => (call, units),
                Ok(Taken::Part) => {
                    *copied = PIECE;
                    return None;
                }
                Ok(waits @ (Taken::Waits | Taken::None)) => {
                    if ring.gets_dirty() {
                        dirty.push_back(number);
                    }
                    scheduler.sleep(number);
                    // Others of its client may have short ones.
                    if let Taken::Waits = waits {
                        waiting.wake(ring.client, number);
                    }
                    continue;
                }
                Err(error) => {
                    faults.push(RingFault { qpn: ring.pair.qpn, error });
                    scheduler.sleep(number);
                    continue;
                }
            };
            // One that comes later signals again: the next turn need not look.
            if !ring.pair.end.receiver().has_begun() {
                if ring.gets_dirty() {
                    dirty.push_back(number);
                }
                scheduler.sleep(number);
            }
            let room = room.min(most_reply(ring.pair.end.shape()) as u32);
            (call.op, call.reply_limit) = (op, room);
            (call.qpn, call.pd) = (ring.pair.qpn.0, Some(ring.pair.pd));
            own.begin(ring.client);
            *copied += call.params.len();
            let asker = RingAsker { ring: number, id: ring.id, client: ring.client, tag, room, units };
            return Some(TakenCall { client: ring.client, stream: None, asker });
        }
    }

    fn reply(&mut self, number: u32, asker: RingAsker, status: Status, call: &mut Call) -> Release {
        let RingAsker { ring: at, id, client, tag, room, units } = asker;
        let found = self.rings.get_mut(at as usize).and_then(Option::as_mut).filter(|ring| ring.id == id);
        let Some(ring) = found else {
            self.ended(client, units);
            return Release::Now;
        };
        let mut status = status;
        if call.reply.len() > room as usize {
            status = Status::ReplyTooLong;
            call.reply.clear();
        }
        if status == Status::AccessDenied {
            self.denied.push(ring.pair.qpn);
        }
        let front = RingReply { tag, status }.encode();
        let is_long = call.reply.len() > SHORT_RING_MESSAGE;
        if ring.held.is_empty() {
            let pushed = if is_long { Ok(Err(PushError::Full)) } else { ring.pair.end.push(&[&front, &call.reply]) };
            if ring.gets_dirty() {
                self.dirty.push_back(at);
            }
            match pushed {
                Ok(Ok(())) => {
                    self.ended(client, units);
                    return Release::Now;
                }
                Ok(Err(_)) => self.holding += 1,
                Err(error) => {
                    self.faults.push(RingFault { qpn: ring.pair.qpn, error });
                    self.ended(client, units);
                    return Release::Now;
                }
            }
            // A long one is laid down from the next turn on.
            if is_long {
                self.retries.wake(client, at);
            }
        }
        let reply = std::mem::take(&mut call.reply);
        ring.held.push_back(Held { number, units, front, reply, laid: 0 });
        Release::Later
    }
}

// A client has no more calls under way than it has places for replies.
const _: () = assert!(Shares::most(RING_CALLS) <= MAX_CALLS);

#[cfg(test)]
mod tests;
