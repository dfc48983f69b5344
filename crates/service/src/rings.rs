//! Calls that come by rings in memory: a node's side of all of its clients' pairs of rings at one place.
//!
//! Nobody polls them: the world sets [`Signals`] where WRITEs land. It posts what [`next_write`](Rings::next_write) says,
//! and ends the connections that [`poll_fault`](Rings::poll_fault) names.

use std::collections::VecDeque;
use std::sync::Arc;

use remora_kernel::{Call, Status};
use remora_memory::Pd;
use remora_nic::{Qpn, SendOp, Sge, Time};
use remora_ring::{Notify, RingEnd, RingError, RingScheduler, RingWrite, Signals};

use crate::ingress::{Ingress, Release, TakenCall};
use crate::ring_call::{RingCall, RingReply};
use crate::share::Shares;
use crate::{MAX_CALLS, MAX_REPLY};

/// Pairs of rings that a place may have.
pub const RINGS: u32 = 4096;
/// Calls by rings that may be under way at a place, of which each client has its [share](Shares): one alone as many as RAMBDA's
/// table of outstanding requests (section V).
pub const RING_CALLS: usize = 512;
/// Bytes of a call's parameters at most: what one call copies while others wait.
pub const MAX_RING_PARAMS: usize = 64 << 10;
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
    /// Rings with something to write, each once.
    dirty: VecDeque<u32>,
    /// How many rings have answers that there was no room for, and those of them whose clients wrote something since, each once.
    holding: usize,
    retries: Vec<u32>,
    /// The ring that was last looked at for answers that wait too long.
    looked_at: u32,
    /// Numbers of calls that are done with.
    released: Vec<u32>,
    faults: Vec<RingFault>,
    /// Whose kernels named memory that they may not reach.
    denied: Vec<Qpn>,
    opened: u64,
}

/// One client's pair.
struct Ring {
    /// No other pair of this place ever has it.
    id: u64,
    pair: RingPair,
    client: u32,
    is_dirty: bool,
    /// Answers that there was no room for yet: the call's number, and the message.
    held: VecDeque<(u32, Vec<u8>)>,
    /// Since when there are some, once somebody has looked.
    held_since: Option<Time>,
    retries: bool,
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
            dirty: VecDeque::new(),
            holding: 0,
            retries: Vec::new(),
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
    }

    /// A client, by its [number](Shares::client_of), has a pair of rings from now on. Returns the pair's number, which
    /// its signals have.
    pub fn open(&mut self, client: u32, mut pair: RingPair) -> Result<u32, TooManyRings> {
        let has = self.rings.iter().flatten().filter(|ring| ring.client == client).count();
        if has >= RINGS as usize - self.len() {
            return Err(TooManyRings);
        }
        pair.end.accept_up_to(RingCall::LEN + MAX_RING_PARAMS);
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
            Some(Ring { id, pair, client, is_dirty: false, held, held_since: None, retries: false });
        // What came before its taps were there.
        self.signals.set(ring);
        Ok(ring)
    }

    /// Closes a pair. Calls that came by it have no answer.
    pub fn close(&mut self, ring: u32) {
        let Some(closed) = self.rings.get_mut(ring as usize).and_then(Option::take) else { return };
        self.scheduler.sleep(ring);
        self.holding -= usize::from(!closed.held.is_empty());
        for (number, _) in closed.held {
            self.shares.end(closed.client);
            self.released.push(number);
        }
        self.dirty.retain(|&other| other != ring);
        self.retries.retain(|&other| other != ring);
        self.free.push(ring);
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
        let waits =
            !self.scheduler.is_empty() || !self.dirty.is_empty() || self.holding > 0 || !self.released.is_empty();
        !waits && (self.rings.is_empty() || !self.signals.any())
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
        !self.dirty.is_empty() || self.holding > 0 && (!self.retries.is_empty() || self.signals.any())
    }

    /// The next WRITE to post, by a queue pair that has `room` for one.
    pub fn next_write(&mut self, room: impl Fn(Qpn) -> bool) -> Option<RingPost> {
        if self.holding > 0 {
            self.hear();
            self.push_held();
        }
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

    /// Looks at one pair, another each time: who has made no room for its answers for too long holds what others wait for.
    pub fn end_unread(&mut self, now: Time) {
        if self.holding == 0 {
            return;
        }
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
            if !ring.held.is_empty() && !std::mem::replace(&mut ring.retries, true) {
                retries.push(number);
            }
        });
    }

    /// Answers that had no room may have some now: where the client has written since.
    fn push_held(&mut self) {
        let Self { rings, holding, retries, dirty, faults, released, shares, scheduler, .. } = self;
        for number in retries.drain(..) {
            let Some(Some(ring)) = rings.get_mut(number as usize) else { continue };
            ring.retries = false;
            while let Some((call, message)) = ring.held.front() {
                match ring.pair.end.push(&[message]) {
                    Ok(Ok(())) => released.push(*call),
                    Ok(Err(_)) => break,
                    Err(error) => {
                        faults.push(RingFault { qpn: ring.pair.qpn, error });
                        break;
                    }
                }
                shares.end(ring.client);
                ring.held.pop_front();
                ring.held_since = None;
                if !std::mem::replace(&mut ring.is_dirty, true) {
                    dirty.push_back(number);
                }
            }
            if ring.held.is_empty() {
                *holding -= 1;
                scheduler.wake(ring.client, number);
            }
        }
    }
}

impl Ingress for Rings {
    type Asker = RingAsker;

    #[inline]
    fn is_waiting(&self) -> bool {
        self.signals.any() || !self.scheduler.is_empty()
    }

    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<RingAsker>> {
        self.hear();
        let Self { rings, scheduler, shares: own, faults, dirty, .. } = self;
        loop {
            let number = scheduler.next(|client| own.may_start(client) && shares.may_start(client))?;
            let ring = rings.get_mut(number as usize).and_then(Option::as_mut);
            // One whose answers have no room has no more calls taken: it is to read first, and wakes then.
            let Some(ring) = ring.filter(|ring| ring.held.is_empty()) else {
                scheduler.sleep(number);
                continue;
            };
            let mut front = [0; RingCall::LEN];
            call.recycle(0, 0);
            let mut rest = &mut front[..];
            match ring.pair.end.poll_split(&mut rest, &mut call.params) {
                Ok(true) if rest.len() == RingCall::LEN => {}
                Ok(true) => {
                    let error = RingError::Short { len: rest.len() as u32, least: RingCall::LEN as u32 };
                    faults.push(RingFault { qpn: ring.pair.qpn, error });
                    scheduler.sleep(number);
                    continue;
                }
                Ok(false) => {
                    if ring.pair.end.wants_write() && !std::mem::replace(&mut ring.is_dirty, true) {
                        dirty.push_back(number);
                    }
                    scheduler.sleep(number);
                    continue;
                }
                Err(error) => {
                    faults.push(RingFault { qpn: ring.pair.qpn, error });
                    scheduler.sleep(number);
                    continue;
                }
            }
            // One that comes later signals again: the next turn need not look.
            if !ring.pair.end.receiver().has_begun() {
                if ring.pair.end.wants_write() && !std::mem::replace(&mut ring.is_dirty, true) {
                    dirty.push_back(number);
                }
                scheduler.sleep(number);
            }
            let RingCall { op, tag, room } = RingCall::decode(&front);
            let longest = ring.pair.end.shape().longest() - RingReply::LEN;
            let room = room.min(longest.min(MAX_REPLY) as u32);
            (call.op, call.reply_limit) = (op, room);
            (call.qpn, call.pd) = (ring.pair.qpn.0, Some(ring.pair.pd));
            own.begin(ring.client);
            let asker = RingAsker { ring: number, id: ring.id, client: ring.client, tag, room };
            return Some(TakenCall { client: ring.client, stream: None, asker });
        }
    }

    fn reply(&mut self, number: u32, asker: RingAsker, status: Status, call: &mut Call) -> Release {
        let RingAsker { ring: at, id, client, tag, room } = asker;
        let found = self.rings.get_mut(at as usize).and_then(Option::as_mut).filter(|ring| ring.id == id);
        let Some(ring) = found else {
            self.shares.end(client);
            return Release::Now;
        };
        let (status, reply) = match call.reply.len() <= room as usize {
            true => (status, &call.reply[..]),
            false => (Status::ReplyTooLong, &[][..]),
        };
        if status == Status::AccessDenied {
            self.denied.push(ring.pair.qpn);
        }
        let front = RingReply { tag, status }.encode();
        if ring.held.is_empty() {
            match ring.pair.end.push(&[&front, reply]) {
                Ok(Ok(())) => {
                    self.shares.end(client);
                    if !std::mem::replace(&mut ring.is_dirty, true) {
                        self.dirty.push_back(at);
                    }
                    return Release::Now;
                }
                Ok(Err(_)) => self.holding += 1,
                Err(error) => {
                    self.shares.end(client);
                    self.faults.push(RingFault { qpn: ring.pair.qpn, error });
                    return Release::Now;
                }
            }
        }
        ring.held.push_back((number, [&front, reply].concat()));
        Release::Later
    }
}

// A client has no more calls under way than it has places for replies.
const _: () = assert!(Shares::most(RING_CALLS) <= MAX_CALLS);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CallTable;
    use remora_memory::{Buffer, Registry};
    use remora_ring::{Receiver, RingShape, Sender};

    /// A client's end, and both rings' memory.
    struct Caller {
        end: RingEnd,
        requests: Buffer,
        copy: Buffer,
    }

    fn open(rings: &mut Rings, client: u32) -> (Caller, u32) {
        let shape = RingShape::new(512, 64).unwrap();
        let memory = |len: usize| Buffer::from_boxed(vec![0; len].into());
        let (requests, copy) = (memory(shape.memory()), memory(shape.bytes()));
        let end = |copy: &Buffer, ring: &Buffer| {
            RingEnd::new(Sender::new(shape, copy.clone()), Receiver::new(shape, ring.clone()), Notify::Ring)
        };
        let pd = Registry::new([1; 32]).alloc_pd();
        let pair = RingPair {
            qpn: Qpn(client),
            pd,
            end: end(&memory(shape.bytes()), &requests),
            notify: Notify::Ring,
            copy: (0, 0),
            responses: (0, 0),
        };
        let ring = rings.open(client, pair).unwrap();
        (Caller { end: end(&copy, &memory(shape.memory())), requests, copy }, ring)
    }

    impl Caller {
        /// Makes so many calls with room for so much, which land.
        fn call(&mut self, rings: &Rings, ring: u32, calls: u32, room: u32) {
            for tag in 0..calls {
                let call = RingCall { op: 7, tag, room };
                self.end.push(&[&call.encode()]).unwrap().unwrap();
            }
            while let Some(write) = self.end.poll_write() {
                if let RingWrite::Frames(range) = write {
                    let mut bytes = vec![0; range.len()];
                    self.copy.read(range.start, &mut bytes).unwrap();
                    self.requests.write(range.start, &bytes).unwrap();
                }
            }
            rings.signals().set(ring);
        }
    }

    #[test]
    fn clients_have_shares_of_what_is_under_way_and_rings_take_turns() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(2048));
        let (mut one, first) = open(&mut rings, 1);
        let (mut two, second) = open(&mut rings, 2);
        one.call(&rings, first, 300, 8);
        two.call(&rings, second, 300, 8);
        let mut calls: Vec<Call> = std::iter::from_fn(|| table.take(0, &mut rings)).collect();
        assert_eq!(calls.len(), 2 * RING_CALLS.div_ceil(3), "a third each, and a third for who comes next");
        assert!(calls.chunks(2).all(|pair| pair[0].client != pair[1].client), "round robin");
        for _ in 0..10 {
            let call = calls.pop().unwrap();
            table.finish(&mut rings, call, Status::Ok);
        }
        assert_eq!(std::iter::from_fn(|| table.take(0, &mut rings)).count(), 10);
        assert!(rings.wants_write());
        assert!(rings.next_write(|_| false).is_none(), "no room in the queue pair");
        assert!(matches!(rings.next_write(|_| true), Some(RingPost { data: RingData::Frames(_), .. })));

        // What came by a pair that is closed is not answered, and counts no more when it ends.
        rings.close(first);
        rings.close(second);
        assert!(rings.is_empty() && !rings.wants_write());
        calls.into_iter().for_each(|call| table.finish(&mut rings, call, Status::Ok));
        assert_eq!(rings.shares.under_way(1) + rings.shares.under_way(2), 10, "those that were taken last still run");
        assert!(rings.poll_fault().is_none() && rings.next_write(|_| true).is_none());
    }

    #[test]
    fn who_does_not_read_its_answers_holds_up_nobody_and_is_cut_off() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
        let (mut lazy, first) = open(&mut rings, 1);
        let (mut other, second) = open(&mut rings, 2);
        lazy.call(&rings, first, 256, 16_000);
        let calls: Vec<Call> = std::iter::from_fn(|| table.take(0, &mut rings)).collect();
        assert_eq!(calls.len(), Shares::most(RING_CALLS));
        for mut call in calls {
            call.reply.resize(16_000, 7);
            table.finish(&mut rings, call, Status::Ok);
        }
        assert!(rings.next_write(|_| true).is_some() && rings.next_write(|_| true).is_none());
        assert!(!rings.wants_write(), "nothing is tried again as long as it writes nothing");
        other.call(&rings, second, 10, 8);
        assert_eq!(std::iter::from_fn(|| table.take(0, &mut rings)).count(), 10);

        // It has read those that there was room for, two.
        let end = &rings.rings[first as usize].as_ref().unwrap().pair.end;
        let (pointer, entries) = (end.shape().pointer(), end.sender().unread());
        lazy.requests.write(pointer, &(entries << 32).to_le_bytes()).unwrap();
        rings.signals().set(first);
        assert!(rings.wants_write() && rings.next_write(|_| true).is_some());
        assert_eq!(std::iter::from_fn(|| rings.poll_released()).count(), 2);
        for now in [0, ANSWERS_WAIT, ANSWERS_WAIT + 1] {
            assert_eq!(rings.poll_fault(), None);
            (0..2).for_each(|_| rings.end_unread(now));
        }
        let error = RingError::Unread { answers: 252 };
        assert_eq!(rings.poll_fault(), Some(RingFault { qpn: Qpn(1), error }));
        rings.close(first);
        assert_eq!(std::iter::from_fn(|| rings.poll_released()).count(), 252);
        assert_eq!((rings.shares.under_way(1), rings.holding), (0, 0));
    }

    #[test]
    fn a_pointer_further_on_than_its_ring_is_long_is_a_lie() {
        for (notify, tail, lies) in [
            (Notify::Pointer, 3, false),
            (Notify::Pointer, 512, false),
            (Notify::Pointer, 513, true),
            (Notify::Pointer, u32::MAX, false),
            // Who tells by the ring itself writes its pointer seldom: an old one says nothing.
            (Notify::Ring, 1 << 30, false),
        ] {
            let (mut rings, mut table) = (Rings::default(), CallTable::new(8));
            let (_caller, ring) = open(&mut rings, 1);
            rings.rings[ring as usize].as_mut().unwrap().pair.notify = notify;
            rings.signals().set_pointer(ring, tail);
            assert!(table.take(0, &mut rings).is_none());
            let lie = RingFault { qpn: Qpn(1), error: RingError::Pointer { tail, head: 0, entries: 512 } };
            assert_eq!(rings.poll_fault(), lies.then_some(lie), "{notify:?} {tail}");
        }
    }

    #[test]
    fn one_client_does_not_take_all_pairs() {
        let mut rings = Rings::default();
        let shape = RingShape::new(2, 64).unwrap();
        let pair = |client| {
            let memory = |len: usize| Buffer::from_boxed(vec![0; len].into());
            let (sender, receiver) =
                (Sender::new(shape, memory(shape.bytes())), Receiver::new(shape, memory(shape.memory())));
            let end = RingEnd::new(sender, receiver, Notify::Ring);
            let pd = Registry::new([1; 32]).alloc_pd();
            RingPair { qpn: Qpn(client), pd, end, notify: Notify::Ring, copy: (0, 0), responses: (0, 0) }
        };
        let opened = (0..RINGS).take_while(|_| rings.open(1, pair(1)).is_ok()).count();
        assert_eq!(opened, RINGS as usize / 2);
        assert!(rings.open(2, pair(2)).is_ok());
    }
}
