//! A node's side of calls at one place: which are taken in, who has asked, and what becomes of their answers.

use remora_kernel::{Call, Status};

use crate::share::Shares;
use crate::streams::{STREAM_BUFFER, Streams};

/// Where calls come from, and where their answers go: RPC verbs, SENDs, or a ring in memory that both sides share.
pub trait Ingress {
    /// What has to be kept of a call until it is answered.
    type Asker;

    /// Whether calls wait.
    fn is_waiting(&self) -> bool;

    /// Takes the next call of a client that may start one, one client after the other. Writes op-code, parameters,
    /// reply limit, queue pair and protection domain to `call`, after [recycling](Call::recycle) it.
    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<Taken<Self::Asker>>;

    /// Gives call `number` its answer, which is in `call`. Says whether the ingress is done with the number: if not, it
    /// names something of its own that is in use, and the driver [releases](Server::release) it later.
    fn reply(&mut self, number: u32, asker: Self::Asker, status: Status, call: &mut Call) -> Number;
}

/// A call that an ingress has taken.
#[derive(Debug)]
pub struct Taken<A> {
    /// The client's number among those of the ingress: a small one.
    pub client: u32,
    /// What the ingress calls the call's payload stream, if it has one.
    pub stream: Option<u64>,
    /// Whom to answer.
    pub asker: A,
}

/// What becomes of the number of a call that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Number {
    /// The next call may have it.
    Free,
    /// Not before it is released.
    InUse,
}

/// A call that has ended and is not answered: on its way from the kernel to the ingress.
#[derive(Debug)]
pub struct Answer<A> {
    number: u32,
    asker: A,
    /// How the call ended.
    pub status: Status,
    /// The call with its reply.
    pub call: Call,
}

/// Calls under way at one place, each with a number, which is the [`tag`](remora_kernel::CallFields::tag) of its
/// [`Call`]. Allocates when made, and while the calls in flight are more and longer than ever before.
pub struct Server<A> {
    shares: Shares,
    /// By number: whom to answer, and the id of the stream.
    askers: Vec<Option<(A, Option<u64>)>>,
    /// By number: whose share the call counts against.
    clients: Vec<u32>,
    free: Vec<u32>,
    spare: Vec<Call>,
    streams: Streams,
}

impl<A> Server<A> {
    /// Room for `capacity` calls, of which one client has [half](Shares::most) at most.
    pub fn new(capacity: usize) -> Self {
        Self::with_stream_buffer(capacity, STREAM_BUFFER)
    }

    /// Like [`new`](Self::new), with another number of bytes of a payload stream that may wait for their kernel.
    pub fn with_stream_buffer(capacity: usize, stream_buffer: usize) -> Self {
        Self {
            shares: Shares::new(capacity),
            askers: (0..capacity).map(|_| None).collect(),
            clients: vec![0; capacity],
            free: (0..capacity as u32).rev().collect(),
            spare: Vec::with_capacity(capacity),
            streams: Streams::new(stream_buffer),
        }
    }

    /// Calls taken and not [done with](Number::Free).
    pub fn under_way(&self) -> usize {
        self.clients.len() - self.free.len()
    }

    /// The payload streams of its calls.
    #[inline]
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// The payload streams of its calls, to feed.
    #[inline]
    pub fn streams_mut(&mut self) -> &mut Streams {
        &mut self.streams
    }

    /// Takes the next call: run it, then [`finish`](Self::finish) it. `None` if there is none, or no room for it.
    #[inline]
    pub fn take<I: Ingress<Asker = A>>(&mut self, ingress: &mut I) -> Option<Call> {
        if !ingress.is_waiting() || self.free.is_empty() {
            return None;
        }
        let mut call = self.spare.pop().unwrap_or_default();
        let Some(Taken { client, stream, asker }) = ingress.poll(&self.shares, &mut call) else {
            self.spare.push(call);
            return None;
        };
        let number = self.free.pop()?;
        self.shares.begin(client);
        self.clients[number as usize] = client;
        call.tag = number.into();
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

    /// A call has ended. Where it takes time to get the answer to the ingress, [`answer`](Self::answer) is for when it is
    /// there. `None` if the call is none of this server's.
    #[inline]
    pub fn end(&mut self, mut call: Call, status: Status) -> Option<Answer<A>> {
        let number = call.tag as u32;
        let (asker, stream) = self.askers.get_mut(number as usize)?.take()?;
        if let Some(id) = stream {
            self.streams.close(id);
        }
        // Only a whole reply is worth sending.
        if status != Status::Ok {
            call.reply.clear();
        }
        Some(Answer { number, asker, status, call })
    }

    /// Hands an answer to the ingress.
    #[inline]
    pub fn answer<I: Ingress<Asker = A>>(&mut self, ingress: &mut I, answer: Answer<A>) {
        let Answer { number, asker, status, mut call } = answer;
        if ingress.reply(number, asker, status, &mut call) == Number::Free {
            self.release(number);
        }
        self.spare.push(call);
    }

    /// The ingress is done with an answered call.
    #[inline]
    pub fn release(&mut self, number: u32) {
        if let Some(&client) = self.clients.get(number as usize) {
            self.shares.end(client);
            self.free.push(number);
        }
    }
}
