//! One value from one thread to another: looked at by who polls, awaited by who has an executor.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Whoever was to send the value is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// The end that sends.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The end that receives. Dropped early, the value is thrown away when it comes.
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

struct Shared<T>(Mutex<State<T>>);

enum State<T> {
    /// Nothing yet; whom to wake.
    Open(Option<Waker>),
    Sent(T),
    Gone,
}

/// Both ends.
pub(crate) fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared(Mutex::new(State::Open(None))));
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first end counts.
    fn end(&self, state: State<T>) {
        let mut guard = self.lock();
        let State::Open(waker) = &mut *guard else { return };
        let waker = waker.take();
        *guard = state;
        drop(guard);
        // Woken without the lock: a waker may poll at once.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Sender<T> {
    /// Sends the value.
    pub fn send(self, value: T) {
        self.0.end(State::Sent(value));
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.end(State::Gone);
    }
}

impl<T> Receiver<T> {
    /// The value, if it has come; once.
    pub fn try_take(&mut self) -> Option<Result<T, Gone>> {
        let mut guard = self.0.lock();
        match std::mem::replace(&mut *guard, State::Gone) {
            State::Sent(value) => Some(Ok(value)),
            State::Gone => Some(Err(Gone)),
            open => {
                *guard = open;
                None
            }
        }
    }

    /// Whether there is something to take.
    pub fn is_ready(&self) -> bool {
        !matches!(*self.0.lock(), State::Open(_))
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Gone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Open(waker) = &mut *self.0.lock() {
            match waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        // It ends once, so it is there.
        self.try_take().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_value_wakes_the_last_who_asked() {
        let (sender, mut receiver) = oneshot();
        let wakers: [Arc<Count>; 2] = Default::default();
        for waker in &wakers {
            let waker = Waker::from(waker.clone());
            assert_eq!(Pin::new(&mut receiver).poll(&mut Context::from_waker(&waker)), Poll::Pending);
        }
        sender.send(7);
        assert_eq!(wakers.map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
        assert!(receiver.is_ready());
        assert_eq!(receiver.try_take(), Some(Ok(7)));
    }

    #[test]
    fn a_sender_that_goes_says_so() {
        let (sender, mut receiver) = oneshot::<u8>();
        assert_eq!(receiver.try_take(), None);
        drop(sender);
        assert_eq!(receiver.try_take(), Some(Err(Gone)));
        let (sender, receiver) = oneshot();
        drop(receiver);
        sender.send(vec![1]);
    }
}
