//! A node's side of calls at one place: which are taken in, who has asked, and what becomes of their answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use remora_kernel::{Call, Status};
use remora_nic::{Qpn, Time};

use crate::call_stats::{CallStats, Counting};
use crate::ingress::{Ingress, Release, TakenCall};
use crate::payload_streams::{PayloadStreams, STREAM_BUFFER};
use crate::ring_budget::SHORT_RING_MESSAGE;
use crate::share::Shares;
use crate::{KvBlocks, KvUse};

/// A call that has ended and is not answered: on its way from the kernel to the ingress.
#[derive(Debug)]
pub struct CallAnswer<A> {
    number: u32,
    asker: A,
    /// How the call ended.
    pub status: Status,
    /// The call with its reply.
    pub call: Call,
}

/// How long (ns) a call may take, if nobody says otherwise: far longer than any that ends by itself and is not beside
/// hundreds of its own client's.
pub const DEADLINE: Time = 10_000_000_000;
/// How much longer (ns) it may take for each byte of its payload that has come: a stream of less than 1 MB/s holds a
/// place that others want.
const DEADLINE_PER_BYTE: Time = 1_000;

/// Calls that are refused one after the other, before others have their turn.
const REFUSED: usize = 64;

/// Calls under way at one place, each with a number, which is the [`tag`](remora_kernel::CallFields::tag) of its
/// [`Call`]. Allocates when made, while the calls in flight are more and longer than ever before, and for calls longer than
/// [`SHORT_RING_MESSAGE`].
pub struct CallTable<A> {
    shares: Shares,
    /// By number: whom to answer, and the id of the stream.
    askers: Vec<Option<(A, Option<u64>)>>,
    /// By number: whose share the call counts against; none of a number that is free.
    clients: Vec<Option<u32>>,
    free: Vec<u32>,
    spare: Vec<Call>,
    streams: PayloadStreams,
    /// By number: when the call was taken.
    taken_at: Vec<Time>,
    /// How long it may take.
    deadline: Time,
    /// The number whose deadline is looked at next.
    looked_at: u32,
    /// Only where somebody wants to know.
    counting: Option<Box<Counting>>,
    /// Who has to hear of calls that reserve blocks.
    blocks: Option<Arc<Mutex<KvBlocks>>>,
    /// By number: what a call has to do with blocks.
    uses: HashMap<u32, KvUse>,
}

impl<A> CallTable<A> {
    /// Room for `capacity` calls, of which one client has [half](Shares::most) at most.
    pub fn new(capacity: usize) -> Self {
        Self::with_stream_buffer(capacity, STREAM_BUFFER)
    }

    /// Like [`new`](Self::new), with another number of bytes of a payload stream that may wait for their kernel.
    pub fn with_stream_buffer(capacity: usize, stream_buffer: usize) -> Self {
        Self {
            shares: Shares::new(capacity),
            askers: (0..capacity).map(|_| None).collect(),
            clients: vec![None; capacity],
            free: (0..capacity as u32).rev().collect(),
            spare: Vec::with_capacity(capacity),
            streams: PayloadStreams::new(stream_buffer),
            taken_at: vec![0; capacity],
            deadline: DEADLINE,
            looked_at: 0,
            counting: None,
            blocks: None,
            uses: HashMap::new(),
        }
    }

    /// Says how long (ns) a call may take, beside a microsecond for each byte of payload: see
    /// [`end_overdue`](Self::end_overdue).
    pub fn set_deadline(&mut self, deadline: Time) {
        self.deadline = deadline;
    }

    /// Tells of calls that reserve blocks of key-value stores, and of what becomes of those.
    pub fn note_blocks(&mut self, blocks: Arc<Mutex<KvBlocks>>) {
        self.blocks = Some(blocks);
    }

    /// Counts calls from now on: see [`stats`](Self::stats).
    pub fn count_calls(&mut self) {
        self.counting = Some(Box::default());
    }

    /// Calls that have ended, by op-code, if they are [counted](Self::count_calls). How long one took is known to a turn:
    /// from when it was taken to the last turn's begin before its end.
    pub fn stats(&self) -> Option<&CallStats> {
        self.counting.as_ref().map(|counting| &counting.stats)
    }

    /// Calls by this queue pair count as `client`'s, whatever other queue pairs do: numbers of clients are small.
    pub fn assign(&mut self, qpn: Qpn, client: u32) {
        self.shares.assign(qpn, client);
    }

    /// Who has how many calls under way.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Calls taken and not [done with](Release::Now).
    pub fn under_way(&self) -> usize {
        self.clients.len() - self.free.len()
    }

    /// What the ingress calls the payload stream of a call under way, if it has one.
    #[inline]
    pub fn stream(&self, number: u32) -> Option<u64> {
        self.askers.get(number as usize)?.as_ref()?.1
    }

    /// The payload streams of its calls.
    #[inline]
    pub fn streams(&self) -> &PayloadStreams {
        &self.streams
    }

    /// The payload streams of its calls, to feed.
    #[inline]
    pub fn streams_mut(&mut self) -> &mut PayloadStreams {
        &mut self.streams
    }

    /// Takes the next call: run it, then [`finish`](Self::finish) it. `None` if there is none, or no room for it.
    #[inline]
    pub fn take<I: Ingress<Asker = A>>(&mut self, now: Time, ingress: &mut I) -> Option<Call> {
        for _ in 0..REFUSED {
            let call = self.take_any(now, ingress)?;
            let Some(status) = self.refuses(&call) else { return Some(call) };
            self.finish(ingress, call, status);
        }
        None
    }

    /// How a call ends before it has begun, if it does.
    #[inline]
    fn refuses(&mut self, call: &Call) -> Option<Status> {
        let blocks = self.blocks.as_ref().filter(|_| KvBlocks::concerns(call))?;
        match blocks.lock().unwrap_or_else(PoisonError::into_inner).began(call) {
            Ok(of) => of.and_then(|of| self.uses.insert(call.tag as u32, of)).and(None),
            Err(status) => Some(status),
        }
    }

    #[inline]
    fn take_any<I: Ingress<Asker = A>>(&mut self, now: Time, ingress: &mut I) -> Option<Call> {
        if let Some(counting) = &mut self.counting {
            counting.now = now;
        }
        if !ingress.is_waiting() || self.free.is_empty() {
            return None;
        }
        let mut call = self.spare.pop().unwrap_or_default();
        let Some(TakenCall { client, stream, asker }) = ingress.poll(&self.shares, &mut call) else {
            self.spare.push(call);
            return None;
        };
        let number = self.free.pop()?;
        self.shares.begin(client);
        self.clients[number as usize] = Some(client);
        self.taken_at[number as usize] = now;
        (call.tag, call.client) = (number.into(), client);
        if let Some(counting) = &mut self.counting {
            counting.began(number, call.op);
        }
        if let Some(id) = stream {
            self.streams.open(id, &mut call);
        }
        self.askers[number as usize] = Some((asker, stream));
        Some(call)
    }

    /// A call has ended: its answer goes out at once.
    #[inline]
    pub fn finish<I: Ingress<Asker = A>>(&mut self, ingress: &mut I, call: Call, status: Status) {
        if let Some(answer) = self.end(call, status) {
            self.answer(ingress, answer);
        }
    }

    /// Answers a call that is refused, with as much of the reason as the caller has room for.
    pub fn refuse<I: Ingress<Asker = A>>(&mut self, ingress: &mut I, call: Call, why: &str) {
        if let Some(mut answer) = self.end(call, Status::BadParams) {
            let room = why.len().min(answer.call.reply_limit as usize);
            answer.call.reply.extend_from_slice(&why.as_bytes()[..room]);
            self.answer(ingress, answer);
        }
    }

    /// Looks at one call, another each time: if it takes longer than it may, `cancel` has its runner drop it by its tag, and
    /// if it did it ends with [`Status::Overdue`]. One at a time, so that ending many takes many turns.
    #[inline]
    pub fn end_overdue<I: Ingress<Asker = A>>(&mut self, now: Time, ingress: &mut I, cancel: impl FnOnce(u64) -> bool) {
        let number = self.looked_at;
        self.looked_at = if number as usize + 1 < self.askers.len() { number + 1 } else { 0 };
        let Some(Some((_, stream))) = self.askers.get(number as usize) else { return };
        let spent = now.saturating_sub(self.taken_at[number as usize]);
        if spent <= self.deadline {
            return;
        }
        let fed = stream.map_or(0, |id| self.streams.fed(id));
        if spent <= self.deadline.saturating_add(fed.saturating_mul(DEADLINE_PER_BYTE)) || !cancel(number.into()) {
            return;
        }
        let mut call = Call::default();
        call.tag = number.into();
        self.finish(ingress, call, Status::Overdue);
    }

    /// A call has ended. Where it takes time to get the answer to the ingress, [`answer`](Self::answer) is for when it is
    /// there. `None` if the call is none of this table's.
    #[inline]
    pub fn end(&mut self, mut call: Call, status: Status) -> Option<CallAnswer<A>> {
        let number = call.tag as u32;
        let (asker, stream) = self.askers.get_mut(number as usize)?.take()?;
        if !self.uses.is_empty()
            && let Some(of) = self.uses.remove(&number)
            && let Some(blocks) = &self.blocks
        {
            blocks.lock().unwrap_or_else(PoisonError::into_inner).ended(of, &call, status);
        }
        if let Some(id) = stream {
            self.streams.close(id);
        }
        if let Some(counting) = &mut self.counting {
            counting.ended(number, self.taken_at[number as usize], status);
        }
        // Only a whole reply is worth sending.
        if status != Status::Ok {
            call.reply.clear();
        }
        Some(CallAnswer { number, asker, status, call })
    }

    /// Hands an answer to the ingress.
    #[inline]
    pub fn answer<I: Ingress<Asker = A>>(&mut self, ingress: &mut I, answer: CallAnswer<A>) {
        let CallAnswer { number, asker, status, mut call } = answer;
        if ingress.reply(number, asker, status, &mut call) == Release::Now {
            self.release(number);
        }
        // Few are long: what those took is not kept.
        call.shrink(SHORT_RING_MESSAGE);
        self.spare.push(call);
    }

    /// The ingress is done with an answered call. Nothing happens if it was before.
    #[inline]
    pub fn release(&mut self, number: u32) {
        if let Some(client) = self.clients.get_mut(number as usize).and_then(Option::take) {
            self.shares.end(client);
            self.free.push(number);
        }
    }
}
