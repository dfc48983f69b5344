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
use crate::ring_budget::{MAX_RING_MESSAGE, RING_BYTES, SHORT_RING_MESSAGE, UNIT, most_reply, units};
use crate::ring_call::{RingCall, RingReply};
use crate::share::Shares;

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

/// One client's pair.
struct Ring {
    /// No other pair of this place ever has it.
    id: u64,
    pair: RingPair,
    client: u32,
    is_dirty: bool,
    /// A call that is taken in part.
    coming: Option<Coming>,
    /// Answers that there was no room for yet, and long ones.
    held: VecDeque<Held>,
    /// Since when there are some, once somebody has looked.
    held_since: Option<Time>,
}

/// A call of which a part is taken.
struct Coming {
    call: RingCall,
    params: Vec<u8>,
    /// Bytes that are copied at once.
    piece: usize,
    /// What it counts.
    units: u32,
}

/// An answer that is not in its ring yet.
struct Held {
    /// The call's number, and what it counts.
    number: u32,
    units: u32,
    front: [u8; RingReply::LEN],
    reply: Vec<u8>,
    /// Bytes of both that are laid down.
    laid: usize,
}

/// What came of a look at a ring of long messages.
enum Taken {
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
    fn gets_dirty(&mut self) -> bool {
        self.pair.end.wants_write() && !std::mem::replace(&mut self.is_dirty, true)
    }

    /// Takes the next call, or a piece of it. One that there are no bytes for stays in the ring.
    fn take(&mut self, bytes: &mut Shares, params: &mut Vec<u8>) -> Result<Taken, RingError> {
        let Self { pair: RingPair { end, .. }, client, coming, .. } = self;
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
            let taken = match ring.is_long() {
                true => ring.take(bytes, &mut call.params),
                false => {
                    let mut front = [0; RingCall::LEN];
                    let mut rest = &mut front[..];
                    match ring.pair.end.poll_split(&mut rest, &mut call.params) {
                        Ok(true) if rest.len() == RingCall::LEN => Ok(Taken::Whole(RingCall::decode(&front), 0)),
                        Ok(true) => Err(RingError::Short { len: rest.len() as u32, least: RingCall::LEN as u32 }),
                        Ok(false) => Ok(Taken::None),
                        Err(error) => Err(error),
                    }
                }
            };
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
mod tests {
    use super::*;
    use crate::CallTable;
    use remora_memory::{Buffer, Registry};
    use remora_ring::{Receiver, RingShape, Sender};

    /// A client's end, and the memory of both sides.
    struct Caller {
        qpn: Qpn,
        end: RingEnd,
        requests: Buffer,
        copy: Buffer,
        /// Where the node lays responses down, and where they land.
        responses: [Buffer; 2],
    }

    fn open(rings: &mut Rings, client: u32) -> (Caller, u32) {
        open_of(rings, client, RingShape::new(512, 64).unwrap())
    }

    fn open_of(rings: &mut Rings, client: u32, shape: RingShape) -> (Caller, u32) {
        let memory = |len: usize| Buffer::anonymous(len).unwrap();
        let [requests, copy, laid, landed] = [0; 4].map(|_| memory(shape.memory()));
        let end = |copy: &Buffer, ring: &Buffer| {
            RingEnd::new(Sender::new(shape, copy.clone()), Receiver::new(shape, ring.clone()), Notify::Ring)
        };
        let pd = Registry::new([1; 32]).alloc_pd();
        let pair = RingPair {
            qpn: Qpn(client),
            pd,
            end: end(&laid, &requests),
            notify: Notify::Ring,
            copy: (0, 0),
            responses: (0, 0),
        };
        let ring = rings.open(client, pair).unwrap();
        let mut end = end(&copy, &landed);
        end.expect(0);
        (Caller { qpn: Qpn(client), end, requests, copy, responses: [laid, landed] }, ring)
    }

    impl Caller {
        /// Makes so many calls with room for so much, which land.
        fn call(&mut self, rings: &Rings, ring: u32, calls: u32, room: u32) {
            for tag in 0..calls {
                let call = RingCall { op: 7, tag, room };
                self.end.push(&[&call.encode()]).unwrap().unwrap();
            }
            self.post(rings, ring);
        }

        /// What it writes lands.
        fn post(&mut self, rings: &Rings, ring: u32) {
            while let Some(write) = self.end.poll_write() {
                match write {
                    RingWrite::Frames(range) => {
                        let mut bytes = vec![0; range.len()];
                        self.copy.read(range.start, &mut bytes).unwrap();
                        self.requests.write(range.start, &bytes).unwrap();
                    }
                    RingWrite::Pointer { offset, word } => self.requests.store_u64(offset, word).unwrap(),
                }
                rings.signals().set(ring);
            }
        }

        /// What the node writes lands; tag, status and reply of each answer.
        fn answers(&mut self, rings: &mut Rings) -> Vec<(u32, Status, Vec<u8>)> {
            let [laid, landed] = &self.responses;
            let (mut answers, mut front) = (Vec::new(), [0; RingReply::LEN]);
            loop {
                rings.begin_turn(0);
                while let Some(RingPost { op: SendOp::Write { va, .. }, data, .. }) =
                    rings.next_write(|qpn| qpn == self.qpn)
                {
                    match data {
                        RingData::Frames(sge) => {
                            let mut bytes = vec![0; sge.len as usize];
                            laid.read(va as usize, &mut bytes).unwrap();
                            landed.write(va as usize, &bytes).unwrap();
                        }
                        RingData::Pointer(word) => landed.store_u64(va as usize, u64::from_le_bytes(word)).unwrap(),
                    }
                }
                if rings.retries.is_empty() {
                    break;
                }
            }
            let mut reply = Vec::new();
            while self.end.poll_split(&mut &mut front[..], &mut reply).unwrap() {
                let RingReply { tag, status } = RingReply::decode(&front);
                answers.push((tag, status, reply.clone()));
            }
            answers
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
        rings.begin_turn(0);
        assert!(rings.next_write(|_| true).is_some());
        assert_eq!(std::iter::from_fn(|| rings.poll_released()).count(), 2);
        for now in [0, ANSWERS_WAIT, ANSWERS_WAIT + 1] {
            assert_eq!(rings.poll_fault(), None);
            (0..2).for_each(|_| rings.begin_turn(now));
        }
        let error = RingError::Unread { answers: 252 };
        assert_eq!(rings.poll_fault(), Some(RingFault { qpn: Qpn(1), error }));
        rings.close(first);
        assert_eq!(std::iter::from_fn(|| rings.poll_released()).count(), 252);
        assert_eq!((rings.shares.under_way(1), rings.holding), (0, 0));
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn long_calls_are_as_long_as_the_ring_and_others_have_their_turns_between_their_pieces() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
        let shape = RingShape::new(1024, 4096).unwrap();
        let (mut long, first) = open_of(&mut rings, 1, shape);
        let (mut short, second) = open(&mut rings, 2);
        // One after the other, so that each begins elsewhere in the ring and goes round its end.
        for len in [100_000, 3_000_000, crate::most_params(shape), 200_000, 0] {
            let params = bytes(len);
            let call = RingCall { op: 9, tag: len as u32, room: u32::MAX };
            while long.end.push(&[&call.encode(), &params]).unwrap().is_err() {
                assert!(long.answers(&mut rings).is_empty());
                long.post(&rings, first);
            }
            long.post(&rings, first);
            let (mut turns, mut others) = (0_usize, 0);
            let mut call = loop {
                short.call(&rings, second, 1, 8);
                turns += 1;
                let mut taken = Vec::from_iter(std::iter::from_fn(|| table.take(0, &mut rings)));
                let call = taken.iter().position(|call| call.op == 9).map(|at| taken.remove(at));
                others += taken.len();
                taken.into_iter().for_each(|call| table.finish(&mut rings, call, Status::Ok));
                short.answers(&mut rings);
                if let Some(call) = call {
                    break call;
                }
                assert!(rings.is_copying() && !rings.is_still());
            };
            let pieces = if len > SHORT_RING_MESSAGE { len.div_ceil(PIECE) } else { 1 };
            assert!(turns.abs_diff(pieces) <= 1 && others + 1 >= turns, "{len}: {turns} turns, {others} others");
            assert!(call.params == params && call.reply_limit as usize == most_reply(shape));

            // As long a reply comes back.
            let reply = bytes(len.min(most_reply(shape)));
            call.reply.extend_from_slice(&reply);
            table.finish(&mut rings, call, Status::Ok);
            let mut answers = long.answers(&mut rings);
            while answers.is_empty() {
                // It was asked for room.
                assert!(long.end.wants_write());
                long.post(&rings, first);
                answers = long.answers(&mut rings);
            }
            assert!(answers == [(len as u32, Status::Ok, reply)], "{len}");
            while let Some(number) = rings.poll_released() {
                table.release(number);
            }
            assert_eq!((table.under_way(), rings.bytes.under_way(1), rings.is_copying()), (0, 0, false));
        }
        assert!(rings.poll_fault().is_none());

        // One that ends in the middle holds nothing.
        long.end.push(&[&[0; RingCall::LEN], &bytes(1 << 20)]).unwrap().unwrap();
        long.post(&rings, first);
        assert!(table.take(0, &mut rings).is_none() && rings.is_copying());
        assert!(rings.bytes.under_way(1) as usize * UNIT >= 1 << 20);
        rings.close(first);
        rings.begin_turn(0);
        assert_eq!((rings.bytes.under_way(1), rings.is_copying()), (0, false));
    }

    /// A client is an address: those are as many processes.
    #[test]
    fn a_client_whose_bytes_are_used_up_by_calls_that_come_waits_for_none_of_its_own() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(1024));
        let shape = RingShape::new(1 << 12, 4096).unwrap();
        let mut callers: Vec<_> = (0..20).map(|_| open_of(&mut rings, 1, shape)).collect();
        for (caller, ring) in &mut callers {
            let call = RingCall { op: 9, tag: 0, room: u32::MAX };
            caller.end.push(&[&call.encode(), &bytes(200_000)]).unwrap().unwrap();
            caller.post(&rings, *ring);
        }
        let (mut short, ring) = open(&mut rings, 1);
        let (mut ended, mut others) = (0, 0);
        for _ in 0..400 {
            rings.begin_turn(0);
            short.call(&rings, ring, 1, 8);
            while let Some(call) = table.take(0, &mut rings) {
                *(if call.op == 9 { &mut ended } else { &mut others }) += 1;
                table.finish(&mut rings, call, Status::Ok);
            }
        }
        assert_eq!((ended, others, rings.is_copying(), rings.bytes.under_way(1)), (20, 400, false, 0));
    }

    /// However many rings it has.
    #[test]
    fn a_client_with_many_long_answers_leaves_others_their_turns() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
        let shape = RingShape::new(512, 4096).unwrap();
        let mut callers = Vec::from_iter((0..21).map(|n| open_of(&mut rings, if n < 20 { 1 } else { 2 }, shape)));
        callers.iter_mut().for_each(|(caller, ring)| caller.call(&rings, *ring, 1, u32::MAX));
        for mut call in Vec::from_iter(std::iter::from_fn(|| table.take(0, &mut rings))) {
            call.reply.resize(1 << 20, 7);
            table.finish(&mut rings, call, Status::Ok);
        }
        assert_eq!(rings.holding, 21);
        let last = callers[20].1 as usize;
        let holds = |rings: &Rings| !rings.rings[last].as_ref().unwrap().held.is_empty();
        let turns = std::iter::from_fn(|| holds(&rings).then(|| rings.begin_turn(0))).count();
        let pieces = (1 << 20) / PIECE + 1;
        assert!(turns <= 2 * pieces + 1, "{turns} turns for {pieces} pieces");
    }

    #[test]
    fn a_turn_takes_as_many_calls_as_bring_a_piece() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
        let (mut caller, ring) = open_of(&mut rings, 1, RingShape::new(1 << 12, 4096).unwrap());
        for tag in 0..100 {
            let call = RingCall { op: 9, tag, room: 8 };
            caller.end.push(&[&call.encode(), &bytes(SHORT_RING_MESSAGE)]).unwrap().unwrap();
        }
        caller.post(&rings, ring);
        for _ in 0..100 {
            let taken = Vec::from_iter(std::iter::from_fn(|| table.take(0, &mut rings)));
            assert_eq!(taken.len(), 1);
            rings.begin_turn(0);
        }
        caller.call(&rings, ring, 100, 8);
        assert_eq!(std::iter::from_fn(|| table.take(0, &mut rings)).count(), 100, "short ones together");
    }

    #[test]
    fn answers_that_had_no_room_are_laid_down_a_piece_at_a_time() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
        let shape = RingShape::new(512, 4096).unwrap();
        let (mut lazy, ring) = open_of(&mut rings, 1, shape);
        lazy.call(&rings, ring, 250, 16_000);
        for mut call in Vec::from_iter(std::iter::from_fn(|| table.take(0, &mut rings))) {
            call.reply.resize(16_000, 7);
            table.finish(&mut rings, call, Status::Ok);
        }
        let mut answers = lazy.answers(&mut rings).len();
        assert!(answers < 130 && rings.holding == 1, "{answers} had room");
        // It has read them all, and says so.
        lazy.post(&rings, ring);
        let filled = |rings: &Rings| rings.rings[ring as usize].as_ref().unwrap().pair.end.sender().tail();
        while answers < 250 {
            let before = filled(&rings);
            rings.begin_turn(0);
            assert!((filled(&rings) - before) as usize * 4096 <= PIECE + 16_384, "{answers} answers");
            answers += lazy.answers(&mut rings).len();
            lazy.post(&rings, ring);
        }
        assert_eq!((rings.holding, rings.is_copying()), (0, false));
    }

    #[test]
    fn a_call_longer_than_any_is_a_lie() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(8));
        let (mut caller, ring) = open_of(&mut rings, 1, RingShape::new(1 << 13, 4096).unwrap());
        caller.end.push(&[&[0; RingCall::LEN], &vec![0; MAX_RING_MESSAGE + 1]]).unwrap().unwrap();
        caller.post(&rings, ring);
        assert!(table.take(0, &mut rings).is_none());
        let most = (RingCall::LEN + MAX_RING_MESSAGE) as u32;
        let error = RingError::Length { entry: 0, len: most + 1, most };
        assert_eq!(rings.poll_fault(), Some(RingFault { qpn: Qpn(1), error }));
    }

    /// All make calls that are as long as any may be; what is under way is counted.
    #[test]
    fn long_calls_of_many_clients_hold_no_more_than_is_stated_and_others_go_on() {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(1024));
        let shape = RingShape::new(1 << 12, 4096).unwrap();
        let long = |len: usize| if len > SHORT_RING_MESSAGE { len } else { 0 };
        let mut callers: Vec<_> = (1..9).map(|client| open_of(&mut rings, client, shape)).collect();
        let params = bytes(200_000);
        for (caller, ring) in &mut callers {
            for tag in 0..40 {
                let call = RingCall { op: 9, tag, room: u32::MAX };
                caller.end.push(&[&call.encode(), &params]).unwrap().unwrap();
            }
            caller.post(&rings, *ring);
        }
        let turn = |rings: &mut Rings, table: &mut CallTable<RingAsker>| -> Vec<Call> {
            // As many turns as pieces.
            let turn = |_| {
                rings.begin_turn(0);
                Vec::from_iter(std::iter::from_fn(|| table.take(0, rings)))
            };
            (0..2000).flat_map(turn).collect()
        };
        let (mut other, ring) = open(&mut rings, 100);
        let (mut under_way, mut ended, mut most, mut alone) = (VecDeque::new(), 0, 0, 0);
        while ended < 320 {
            under_way.extend(turn(&mut rings, &mut table));
            let held = under_way.iter().map(|call: &Call| long(call.params.len()) + long(call.reply_limit as usize));
            most = most.max(held.sum());
            alone = alone.max(under_way.iter().filter(|call| call.client == 1).count());
            // Who makes short calls has as many as ever.
            other.call(&rings, ring, 100, 8);
            let short: Vec<Call> = std::iter::from_fn(|| table.take(0, &mut rings)).collect();
            assert_eq!(short.len(), 100, "beside {} long ones", under_way.len());
            short.into_iter().for_each(|call| table.finish(&mut rings, call, Status::Ok));
            other.answers(&mut rings);
            other.post(&rings, ring);
            let call = under_way.pop_front().unwrap();
            assert!(call.params == params);
            table.finish(&mut rings, call, Status::Ok);
            ended += 1;
        }
        let one = long(params.len()) + long(most_reply(shape));
        assert!((RING_BYTES - 4 * one..=RING_BYTES + one).contains(&most), "{most} bytes");
        assert!((1..=RING_BYTES / 2 / one + 1).contains(&alone), "{alone} calls of one client");
        assert_eq!((table.under_way(), (1..9).map(|client| rings.bytes.under_way(client)).sum::<u32>()), (0, 0));
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
