//! The payload that follows a call: chunks go in as packets bring them, and the kernel awaits them.

use crate::memory::Fault;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// A call's input stream, as its kernel reads it.
#[derive(Debug, Default)]
pub struct Stream {
    queue: Arc<Mutex<Queue>>,
    /// What the kernel looks at.
    chunk: Vec<u8>,
    /// Whether a feed was ever made.
    opened: bool,
}

/// Where a call's input stream is fed. Dropping it before the last chunk is fed breaks the stream
/// off, and the kernel sees [`Fault::Lost`].
#[derive(Debug)]
pub struct Feed {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    capacity: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    Open,
    #[default]
    Ended,
    Broken,
}

impl Stream {
    /// All the bytes that came since the last chunk; `None` at the end of the stream.
    pub async fn next_chunk(&mut self) -> Result<Option<&[u8]>, Fault> {
        self.chunk.clear();
        let (queue, chunk) = (&*self.queue, &mut self.chunk);
        let some = poll_fn(|cx| {
            let mut queue = lock(queue);
            if !queue.bytes.is_empty() {
                std::mem::swap(&mut queue.bytes, chunk);
                return Poll::Ready(Ok(true));
            }
            match queue.state {
                State::Ended => Poll::Ready(Ok(false)),
                State::Broken => Poll::Ready(Err(Fault::Lost)),
                State::Open => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        })
        .await?;
        Ok(some.then_some(&*self.chunk))
    }

    pub(crate) fn open(&mut self, capacity: usize) -> Feed {
        self.close();
        self.opened = true;
        let mut queue = lock(&self.queue);
        queue.bytes.reserve(capacity);
        self.chunk.reserve(capacity);
        (queue.capacity, queue.state) = (capacity, State::Open);
        Feed { queue: self.queue.clone() }
    }

    #[inline]
    pub(crate) fn close(&mut self) {
        if self.opened {
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.opened = false;
        self.chunk.clear();
        // A feed of the stream that was must not reach the one to come.
        match Arc::get_mut(&mut self.queue) {
            Some(queue) => {
                let queue = queue.get_mut().unwrap_or_else(PoisonError::into_inner);
                queue.bytes.clear();
                queue.state = State::Ended;
            }
            None => self.queue = Arc::default(),
        }
    }
}

impl Feed {
    /// Appends `bytes`, and ends the stream if they are the `last`. Returns false, and takes
    /// nothing, if there is no room now: offer them again after the kernel has run.
    ///
    /// An empty queue takes any number of bytes.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8], last: bool) -> bool {
        let mut queue = lock(&self.queue);
        if !queue.bytes.is_empty() && queue.bytes.len() + bytes.len() > queue.capacity {
            return false;
        }
        if queue.state == State::Open {
            queue.bytes.extend_from_slice(bytes);
            if last {
                queue.state = State::Ended;
            }
        }
        true
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        if queue.state == State::Open {
            queue.state = State::Broken;
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}
