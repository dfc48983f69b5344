//! A bounded pool of tasks, after RAMBDA's table of outstanding requests (HPCA 2023).

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Up to a fixed number of futures of one type, polled in turn. Allocates when made and never again.
///
/// Every poll visits every task: its tasks wait for memory or for a network that the same thread
/// drives, so there is nobody to wake them.
pub struct TaskPool<F> {
    slots: Vec<Pin<Box<Option<F>>>>,
    /// Slots in use, densely, and how many of them there are.
    live: Vec<u32>,
    free: Vec<u32>,
}

impl<F: Future> TaskPool<F> {
    /// Default number of tasks in flight.
    pub const DEFAULT_CAPACITY: usize = 256;

    /// A pool of `capacity` slots.
    pub fn new(capacity: usize) -> Self {
        TaskPool {
            slots: (0..capacity).map(|_| Box::pin(None)).collect(),
            live: Vec::with_capacity(capacity),
            free: (0..capacity as u32).rev().collect(),
        }
    }

    /// Takes `task` in, or gives it back if the pool is full.
    #[inline]
    pub fn try_spawn(&mut self, task: F) -> Result<(), F> {
        if self.is_full() {
            return Err(task);
        }
        self.spawn_with(|| task);
        Ok(())
    }

    /// Takes in what `task` makes, without moving it once more; does nothing if the pool is full.
    #[inline]
    pub(crate) fn spawn_with(&mut self, task: impl FnOnce() -> F) {
        if let Some(slot) = self.free.pop() {
            self.live.push(slot);
            self.slots[slot as usize].set(Some(task()));
        }
    }

    /// Polls every task once, in turn, and hands the results of those that are done to `done`.
    /// Returns how many were.
    #[inline]
    pub fn poll(&mut self, mut done: impl FnMut(F::Output)) -> usize {
        let mut cx = Context::from_waker(Waker::noop());
        let before = self.live.len();
        let mut i = 0;
        while let Some(&slot) = self.live.get(i) {
            let mut task = self.slots[slot as usize].as_mut();
            let poll = task.as_mut().as_pin_mut().map(|task| task.poll(&mut cx));
            match poll {
                Some(Poll::Pending) => i += 1,
                // The last task takes the place of this one, and so its turn.
                poll => {
                    task.set(None);
                    self.live.swap_remove(i);
                    self.free.push(slot);
                    if let Some(Poll::Ready(output)) = poll {
                        done(output);
                    }
                }
            }
        }
        before - self.live.len()
    }

    /// Tasks in flight.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether no task is in flight.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether no slot is free.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::future::poll_fn;

    /// Is pending `n` times, noting `id` at each poll.
    fn task(id: u32, mut n: u32, seen: &RefCell<Vec<u32>>) -> impl Future<Output = u32> {
        poll_fn(move |_| {
            seen.borrow_mut().push(id);
            if n == 0 {
                return Poll::Ready(id);
            }
            n -= 1;
            Poll::Pending
        })
    }

    #[test]
    fn every_task_gets_one_turn_a_poll() {
        let seen = RefCell::new(Vec::new());
        let mut pool = TaskPool::new(3);
        for (id, n) in [(0, 1), (1, 0), (2, 1)] {
            assert!(pool.try_spawn(task(id, n, &seen)).is_ok());
        }
        assert!(pool.is_full());
        let refused = pool.try_spawn(task(3, 0, &seen));
        assert!(refused.is_err(), "full: given back");

        let mut done = Vec::new();
        assert_eq!(pool.poll(|id| done.push(id)), 1);
        assert_eq!((seen.take(), std::mem::take(&mut done)), (vec![0, 1, 2], vec![1]));
        assert!(pool.try_spawn(refused.unwrap_err()).is_ok());
        assert_eq!(pool.poll(|id| done.push(id)), 3);
        done.sort_unstable();
        assert_eq!((done, pool.len(), pool.is_empty()), (vec![0, 2, 3], 0, true));
        assert_eq!(seen.take().len(), 3);
    }

    #[test]
    fn dropping_the_pool_drops_its_tasks() {
        let token = std::sync::Arc::new(());
        let mut pool = TaskPool::new(2);
        let held = token.clone();
        let spawned = pool.try_spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        assert!(spawned.is_ok());
        assert_eq!(pool.poll(|()| ()), 0);
        drop(pool);
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    }
}
