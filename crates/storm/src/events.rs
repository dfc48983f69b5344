//! The event queue: what happens next, in simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub use remora_replica::Time;

/// A microsecond.
pub const US: Time = 1_000;
/// A millisecond.
pub const MS: Time = 1_000_000;
/// A second.
pub const SECOND: Time = 1_000_000_000;

/// Events by time; those of the same time in the order in which they were pushed.
///
/// Events lie still in a slab while the heap moves small keys, since messages may be large.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<(Time, u64, u32)>>,
    slots: Vec<Option<E>>,
    free: Vec<u32>,
    pushed: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), pushed: 0 }
    }
}

impl<E> Queue<E> {
    /// Adds an event.
    pub fn push(&mut self, at: Time, event: E) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(event);
        self.heap.push(Reverse((at, self.pushed, slot)));
        self.pushed += 1;
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        self.slots[slot as usize].take().map(|event| (at, event))
    }

    /// When the next event happens.
    pub fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Events waiting.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_order() {
        let mut queue = Queue::default();
        for (at, name) in [(5, "c"), (1, "a"), (5, "d"), (3, "b")] {
            queue.push(at, name);
        }
        assert_eq!(queue.next_time(), Some(1));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(1, "a"), (3, "b"), (5, "c"), (5, "d")]);
        queue.push(9, "again");
        assert_eq!((queue.slots.len(), queue.len()), (4, 1), "slots are used again");
    }
}
