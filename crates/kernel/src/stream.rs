//! The payload that follows a call: chunks go in as packets bring them, and the kernel awaits them.

use crate::memory::Fault;
use remora_memory::Lookahead;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// A call's input stream, as its kernel reads it.
#[derive(Debug, Default)]
pub struct Stream {
    queue: Arc<Mutex<Queue>>,
    /// Bytes on the kernel's side, of which those before `at` were read.
    chunk: Vec<u8>,
    at: usize,
    /// Whether a feed was ever made.
    opened: bool,
    /// What will be fed.
    lookahead: Arc<Lookahead>,
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
    /// All the bytes that came and were not read; `None` at the end of the stream.
    pub async fn next_chunk(&mut self) -> Result<Option<&[u8]>, Fault> {
        self.next_whole(1).await
    }

    /// As many items of `unit` bytes as came, back to back; `None` at the end of the stream. An item that is not whole
    /// waits for its rest; one that never became whole is [`unread`](Self::unread) at the end.
    pub async fn next_whole(&mut self, unit: usize) -> Result<Option<&[u8]>, Fault> {
        let whole = self.fill(unit).await? / unit * unit;
        Ok(self.take(whole))
    }

    /// The next `len` bytes; `None` if the stream ends before.
    pub async fn next_exact(&mut self, len: usize) -> Result<Option<&[u8]>, Fault> {
        let enough = self.fill(len).await? >= len;
        Ok(if enough && len > 0 { self.take(len) } else { enough.then_some(&[]) })
    }

    /// The next bytes, at most `len` of them; `None` at the end of the stream.
    pub async fn next_up_to(&mut self, len: usize) -> Result<Option<&[u8]>, Fault> {
        let some = self.fill(1).await?.min(len);
        Ok(self.take(some))
    }

    /// Where the bytes may lie that will be fed after those that were: a kernel asks for as many as it works through.
    /// Nothing is there unless the place knows.
    pub fn lookahead(&self) -> Arc<Lookahead> {
        self.lookahead.clone()
    }

    /// Says what [`lookahead`](Self::lookahead) gives.
    pub fn look_ahead(&mut self, lookahead: Arc<Lookahead>) {
        self.lookahead = lookahead;
    }

    /// Bytes on the kernel's side that were not read.
    pub fn unread(&self) -> usize {
        self.chunk.len() - self.at
    }

    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let start = self.at;
        self.at += len;
        (len > 0).then(|| &self.chunk[start..start + len])
    }

    /// Waits until at least `len` bytes can be read or the stream is at its end. Returns how many can be read.
    async fn fill(&mut self, len: usize) -> Result<usize, Fault> {
        poll_fn(|cx| {
            if self.unread() >= len {
                return Poll::Ready(Ok(self.unread()));
            }
            let mut queue = lock(&self.queue);
            if !queue.bytes.is_empty() {
                self.chunk.drain(..self.at);
                self.at = 0;
                if self.chunk.is_empty() {
                    std::mem::swap(&mut queue.bytes, &mut self.chunk);
                } else {
                    self.chunk.append(&mut queue.bytes);
                }
                if self.chunk.len() >= len {
                    return Poll::Ready(Ok(self.chunk.len()));
                }
            }
            match queue.state {
                State::Ended => Poll::Ready(Ok(self.unread())),
                State::Broken => Poll::Ready(Err(Fault::Lost)),
                State::Open => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        })
        .await
    }

    pub(crate) fn open(&mut self, capacity: usize) -> Feed {
        self.close();
        self.opened = true;
        let mut queue = lock(&self.queue);
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
        self.at = 0;
        // A feed of the stream that was must not reach the one to come.
        match Arc::get_mut(&mut self.queue) {
            Some(queue) => {
                let queue = queue.get_mut().unwrap_or_else(PoisonError::into_inner);
                queue.bytes.clear();
                queue.state = State::Ended;
                // The larger buffer waits for what comes, so that one is enough where a stream comes in one piece.
                if queue.bytes.capacity() < self.chunk.capacity() {
                    std::mem::swap(&mut queue.bytes, &mut self.chunk);
                }
            }
            None => self.queue = Arc::default(),
        }
    }
}

impl Feed {
    /// Whether the kernel has taken all that it was given.
    pub fn is_empty(&self) -> bool {
        lock(&self.queue).bytes.is_empty()
    }

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

    /// Like [`push`](Self::push), but the bytes change hands where that saves a copy: `bytes` is left with others that
    /// are of no use. Unchanged if there is no room.
    #[must_use]
    pub fn give(&mut self, bytes: &mut Vec<u8>, last: bool) -> bool {
        {
            let mut queue = lock(&self.queue);
            if queue.bytes.is_empty() && queue.state == State::Open {
                std::mem::swap(&mut queue.bytes, bytes);
                bytes.clear();
                if last {
                    queue.state = State::Ended;
                }
                return true;
            }
        }
        self.push(bytes, last)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    /// What a read gives now; `None` if it waits.
    fn now<T>(read: impl Future<Output = T>) -> Option<T> {
        match pin!(read).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    #[test]
    fn items_wait_until_they_are_whole() {
        let mut stream = Stream::default();
        let mut feed = stream.open(100);
        assert!(feed.push(b"abcdefg", false));
        assert_eq!(now(stream.next_whole(3)), Some(Ok(Some(&b"abcdef"[..]))));
        assert_eq!(now(stream.next_whole(3)), None);
        assert!(feed.push(b"h", false));
        assert_eq!(now(stream.next_whole(3)), None);
        assert!(feed.push(b"ijkl", true));
        assert_eq!(now(stream.next_whole(3)), Some(Ok(Some(&b"ghijkl"[..]))));
        assert_eq!(now(stream.next_whole(3)), Some(Ok(None)));
        assert_eq!(stream.unread(), 0);
    }

    #[test]
    fn bytes_change_hands() {
        let mut stream = Stream::default();
        let mut feed = stream.open(8);
        let mut bytes = b"abcd".to_vec();
        assert!(feed.give(&mut bytes, false));
        assert!(bytes.is_empty());
        bytes = b"efgh".to_vec();
        assert!(feed.give(&mut bytes, false));
        bytes = b"i".to_vec();
        assert!(!feed.give(&mut bytes, true), "full");
        assert_eq!(bytes, b"i");
        assert_eq!(now(stream.next_chunk()), Some(Ok(Some(&b"abcdefgh"[..]))));
        assert!(feed.give(&mut bytes, true));
        assert_eq!(now(stream.next_chunk()), Some(Ok(Some(&b"i"[..]))));
        assert_eq!(now(stream.next_chunk()), Some(Ok(None)));
    }

    #[test]
    fn exact_reads_and_an_item_that_is_never_whole() {
        let mut stream = Stream::default();
        let mut feed = stream.open(100);
        assert_eq!(now(stream.next_exact(0)), Some(Ok(Some(&[][..]))));
        assert!(feed.push(b"abcde", false));
        assert_eq!(now(stream.next_exact(2)), Some(Ok(Some(&b"ab"[..]))));
        assert_eq!(now(stream.next_exact(4)), None);
        assert_eq!(now(stream.next_up_to(2)), Some(Ok(Some(&b"cd"[..]))));
        assert!(feed.push(b"f", true));
        assert_eq!(now(stream.next_exact(3)), Some(Ok(None)));
        assert_eq!(now(stream.next_whole(3)), Some(Ok(None)));
        assert_eq!(stream.unread(), 2);
        assert_eq!(now(stream.next_chunk()), Some(Ok(Some(&b"ef"[..]))));
        assert_eq!(now(stream.next_chunk()), Some(Ok(None)));
    }
}
