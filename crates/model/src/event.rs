//! The event queue: what happens next.
//!
//! A hierarchical bucket wheel. A level has 64 buckets; a bucket of level 0 spans one picosecond, one of each further
//! level 64 times as much, so that 7 levels reach 4.4 s ahead. An event lies on the level of the highest of its time's
//! 6-bit digits that differs from the present's. When the present reaches a bucket, its events are dealt out over the
//! levels below. What lies further ahead than the wheel reaches waits in a heap.
//!
//! Buckets are first in, first out. Two events of the same time take the same way down, and a later one cannot overtake:
//! it reaches a lower bucket only once the present is past dealing out the higher. So the order is (time, sequence)
//! without anything being compared or sorted. (Varghese and Lauck, SOSP 1987, with the monotone digits of the radix
//! heap: Ahuja et al., J. ACM 37(2), 1990.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Ps;

const DIGIT_BITS: u32 = 6;
const BUCKETS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 7;
const NIL: u32 = u32::MAX;

/// Events by time; those of the same time in the order in which they were pushed.
///
/// Allocates only while more events wait than ever before.
#[derive(Clone, Debug)]
pub struct WheelQueue<E> {
    /// The time of the event popped last.
    now: u64,
    len: usize,
    /// A bit for each level that holds anything.
    levels: u32,
    /// A bit for each bucket of a level that holds anything.
    occupied: [u64; LEVELS],
    buckets: [[Bucket; BUCKETS]; LEVELS],
    nodes: Vec<Node<E>>,
    /// The first free node.
    free: u32,
    /// Time, sequence and node of what the wheel does not reach.
    overflow: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// Sequence of the next event in the overflow.
    sequence: u64,
}

/// Hears of everything that happens, in the order in which it does.
pub trait EventTrace<E> {
    /// An event happens.
    fn event(&mut self, time: Ps, event: &E);
}

/// Keeps a whole trace: two runs of the same seed are equal in it.
impl<E: Clone> EventTrace<E> for Vec<(Ps, E)> {
    fn event(&mut self, time: Ps, event: &E) {
        self.push((time, event.clone()));
    }
}

/// Nobody listens.
impl<E> EventTrace<E> for () {
    fn event(&mut self, _: Ps, _: &E) {}
}

/// A list of nodes.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node<E> {
    time: u64,
    next: u32,
    event: E,
}

impl<E: Copy> Default for WheelQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Copy> WheelQueue<E> {
    /// An empty queue at time zero.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty queue that holds `events` without allocating.
    pub fn with_capacity(events: usize) -> Self {
        Self {
            now: 0,
            len: 0,
            levels: 0,
            occupied: [0; LEVELS],
            buckets: [[Bucket { first: NIL, last: NIL }; BUCKETS]; LEVELS],
            nodes: Vec::with_capacity(events),
            free: NIL,
            overflow: BinaryHeap::with_capacity(events),
            sequence: 0,
        }
    }

    /// The time of the event popped last.
    pub fn now(&self) -> Ps {
        Ps(self.now)
    }

    /// Events waiting.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an event. One of the past happens at once: causes come before their effects, so that is an error of the
    /// model, and a debug build panics.
    ///
    /// # Panics
    ///
    /// When more than 2^32 - 1 events wait.
    #[inline]
    pub fn push(&mut self, at: Ps, event: E) {
        debug_assert!(at.0 >= self.now, "an event at {at} when it is {} already", Ps(self.now));
        let node = Node { time: at.0.max(self.now), next: NIL, event };
        let index = match self.free {
            NIL => {
                assert!(self.nodes.len() < NIL as usize, "more than 2^32 - 1 events wait");
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
            index => {
                self.free = self.nodes[index as usize].next;
                self.nodes[index as usize] = node;
                index
            }
        };
        self.len += 1;
        if level(self.now, node.time) < LEVELS {
            self.link(index, node.time);
        } else {
            self.overflow.push(Reverse((node.time, self.sequence, index)));
            self.sequence += 1;
        }
    }

    /// Takes the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Ps, E)> {
        loop {
            if self.levels == 0 && !self.refill() {
                return None;
            }
            let level = self.levels.trailing_zeros() as usize;
            let bucket = self.occupied[level].trailing_zeros() as usize;
            let first = self.buckets[level][bucket].first;
            let Node { time, next, event } = self.nodes[first as usize];
            // A bucket of level 0 holds events of one time; one event alone is next wherever it lies.
            if level == 0 || next == NIL {
                self.now = time;
                self.len -= 1;
                self.buckets[level][bucket].first = next;
                if next == NIL {
                    self.vacate(level, bucket);
                }
                self.nodes[first as usize].next = self.free;
                self.free = first;
                return Some((Ps(time), event));
            }
            self.vacate(level, bucket);
            self.now = time & (u64::MAX << (level as u32 * DIGIT_BITS));
            self.deal(first);
        }
    }

    /// Takes the next event and tells a trace of it.
    pub fn pop_traced(&mut self, trace: &mut impl EventTrace<E>) -> Option<(Ps, E)> {
        let (time, event) = self.pop()?;
        trace.event(time, &event);
        Some((time, event))
    }

    /// When the next event happens.
    pub fn next_time(&self) -> Option<Ps> {
        if self.levels == 0 {
            return self.overflow.peek().map(|Reverse((time, ..))| Ps(*time));
        }
        let level = self.levels.trailing_zeros() as usize;
        let bucket = self.occupied[level].trailing_zeros() as usize;
        self.list(self.buckets[level][bucket].first).map(|node| Ps(node.time)).min()
    }

    /// Deals out a list over the levels below.
    fn deal(&mut self, first: u32) {
        let mut index = first;
        while index != NIL {
            let Node { time, next, .. } = self.nodes[index as usize];
            self.nodes[index as usize].next = NIL;
            self.link(index, time);
            index = next;
        }
    }

    /// Moves the present to what waits beyond the wheel, and what that makes near into the wheel.
    fn refill(&mut self) -> bool {
        let Some(&Reverse((time, ..))) = self.overflow.peek() else { return false };
        // The present itself must not pass the first event: only its digits above the wheel change.
        self.now = time & !((1 << (LEVELS as u32 * DIGIT_BITS)) - 1);
        while let Some(&Reverse((time, _, index))) = self.overflow.peek() {
            if level(self.now, time) >= LEVELS {
                break;
            }
            self.overflow.pop();
            self.link(index, time);
        }
        true
    }

    /// Appends a node whose `next` is NIL to its bucket.
    fn link(&mut self, index: u32, time: u64) {
        let level = level(self.now, time);
        let digit = (time >> (level as u32 * DIGIT_BITS)) as usize % BUCKETS;
        let bucket = &mut self.buckets[level][digit];
        if bucket.first == NIL {
            bucket.first = index;
            self.occupied[level] |= 1 << digit;
            self.levels |= 1 << level;
        } else {
            self.nodes[bucket.last as usize].next = index;
        }
        bucket.last = index;
    }

    fn vacate(&mut self, level: usize, bucket: usize) {
        self.buckets[level][bucket].first = NIL;
        self.occupied[level] &= !(1 << bucket);
        self.levels &= !(u32::from(self.occupied[level] == 0) << level);
    }

    fn list(&self, first: u32) -> impl Iterator<Item = &Node<E>> {
        let get = |index: u32| self.nodes.get(index as usize);
        std::iter::successors(get(first), move |node| get(node.next))
    }
}

/// The level of a time: that of the highest digit in which it differs from the present.
fn level(now: u64, time: u64) -> usize {
    ((63 - ((now ^ time) | 1).leading_zeros()) / DIGIT_BITS) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_is_by_time_then_sequence_over_all_levels_and_the_overflow() {
        let mut queue = WheelQueue::new();
        let times =
            [0, 1, 63, 64, 64, 4095, 4096, 1 << 41, 1 << 42, 1 << 42, (1 << 42) + 1, 1 << 63, u64::MAX, u64::MAX];
        for (n, time) in times.into_iter().enumerate().rev() {
            queue.push(Ps(time), n);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        let expect: Vec<_> = [0, 1, 2, 4, 3, 5, 6, 7, 9, 8, 10, 11, 13, 12].map(|n| (Ps(times[n]), n)).into();
        assert_eq!(order, expect);
        assert_eq!(queue.now(), Ps::MAX);
    }

    #[test]
    fn an_event_for_the_present_comes_after_those_already_there() {
        let mut queue = WheelQueue::new();
        queue.push(Ps(7), 'a');
        queue.push(Ps(7), 'b');
        assert_eq!(queue.pop(), Some((Ps(7), 'a')));
        queue.push(Ps(7), 'c');
        assert_eq!(queue.pop(), Some((Ps(7), 'b')));
        assert_eq!(queue.pop(), Some((Ps(7), 'c')));
        assert_eq!(queue.pop(), None);
    }

    /// A heap of time and sequence, to compare with.
    #[derive(Default)]
    struct Reference {
        heap: BinaryHeap<Reverse<(u64, u32)>>,
        now: u64,
    }

    impl Reference {
        fn pop(&mut self) -> Option<(Ps, u32)> {
            let Reverse((time, number)) = self.heap.pop()?;
            self.now = time;
            Some((Ps(time), number))
        }
    }

    proptest! {
        #[test]
        fn the_wheel_pops_what_a_heap_of_time_and_sequence_pops(
            steps in prop::collection::vec((0u32..48, any::<u64>(), 0u8..3), 1..600),
        ) {
            let (mut queue, mut reference) = (WheelQueue::new(), Reference::default());
            for (number, (bits, random, pops)) in (0u32..).zip(steps) {
                // Any distance, all magnitudes alike; equal times are frequent.
                let time = reference.now + (random & ((1 << bits) - 1));
                queue.push(Ps(time), number);
                reference.heap.push(Reverse((time, number)));
                for _ in 0..pops {
                    prop_assert_eq!(queue.next_time(), reference.heap.peek().map(|Reverse((time, _))| Ps(*time)));
                    prop_assert_eq!(queue.pop(), reference.pop());
                }
                prop_assert_eq!(queue.len(), reference.heap.len());
            }
            while let Some(next) = reference.pop() {
                prop_assert_eq!(queue.pop(), Some(next));
            }
            prop_assert!(queue.is_empty() && queue.pop().is_none());
        }
    }
}
