//! Calls under way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use remora_kernel::{Placement, Status};
use remora_real::Error;

use crate::oneshot::{Receiver, Sender};
use crate::{Result, TypedCall};

/// What a place has answered, before it has a type.
pub(crate) type Answer = Result<(Placement, Status, Vec<u8>)>;
/// Where the answer goes.
pub(crate) type Asker = Sender<Answer>;

/// A call that was submitted. Give it to [`Client::wait`](crate::Client::wait); dropped, the call goes on and its reply
/// is thrown away.
#[must_use = "the reply is had by `Client::wait`"]
pub struct Pending<C> {
    call: C,
    answer: Receiver<Answer>,
    /// The client whose polls end it, if that is one to be polled.
    client: Option<u64>,
}

impl<C: TypedCall> Pending<C> {
    pub(crate) fn new(call: C, answer: Receiver<Answer>, client: Option<u64>) -> Self {
        Self { call, answer, client }
    }

    /// Whether polls of this client end it.
    pub(crate) fn is_of(&self, client: u64) -> bool {
        self.client == Some(client)
    }

    /// Whether it has ended, so that waiting for it takes no time. Calls end while the client polls.
    pub fn is_done(&self) -> bool {
        self.answer.is_ready()
    }

    /// The reply, if it is there.
    pub(crate) fn try_finish(&mut self) -> Option<Result<C::Reply>> {
        let answer = self.answer.try_take()?.unwrap_or(Err(Error::Closed));
        Some(finish(&self.call, answer))
    }

    /// The reply, if it is there; otherwise whoever polls is woken when it comes.
    pub(crate) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<C::Reply>> {
        let answer = Pin::new(&mut self.answer).poll(context);
        answer.map(|answer| finish(&self.call, answer.unwrap_or(Err(Error::Closed))))
    }
}

/// Gives an answer its type.
pub(crate) fn finish<C: TypedCall>(call: &C, answer: Answer) -> Result<C::Reply> {
    let (placement, status, reply) = answer?;
    let op = call.op();
    match (call.decode(status, &reply), status) {
        (Some(reply), _) => Ok(reply),
        (None, Status::Ok) => Err(Error::Reply { op, len: reply.len() }),
        (None, status) => Err(Error::Kernel { op, placement, status }),
    }
}
