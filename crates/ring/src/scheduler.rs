//! Whose request is next.

use std::collections::VecDeque;

/// Rings that have requests take turns. In a turn a ring has as many requests taken as its weight says; with equal
/// weights this is round-robin, as in RAMBDA's prototype (section V).
#[derive(Debug, Default)]
pub struct RingScheduler {
    /// By ring: its weight, and whether it waits.
    rings: Vec<(u32, bool)>,
    /// Each ring that waits, once.
    waiting: VecDeque<u32>,
    /// Requests that the first may still have taken in its turn.
    left: u32,
}

impl RingScheduler {
    /// Whether no ring waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A ring's weight is this from its next turn on, at least 1. Those that nothing was said of have 1.
    pub fn set_weight(&mut self, ring: u32, weight: u32) {
        self.ring(ring).0 = weight.max(1);
    }

    /// A ring has requests.
    #[inline]
    pub fn wake(&mut self, ring: u32) {
        if std::mem::replace(&mut self.ring(ring).1, true) {
            return;
        }
        if self.waiting.is_empty() {
            self.left = self.rings[ring as usize].0;
        }
        self.waiting.push_back(ring);
    }

    /// The ring whose request is to be taken, among those that `may`: the first, as long as its turn lasts.
    #[inline]
    pub fn next(&mut self, may: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..=self.waiting.len() {
            let first = *self.waiting.front()?;
            if self.left > 0 && may(first) {
                self.left -= 1;
                return Some(first);
            }
            self.waiting.rotate_left(1);
            self.begin_turn();
        }
        None
    }

    /// The ring that [`next`](Self::next) named last has no more requests.
    #[inline]
    pub fn sleep(&mut self, ring: u32) {
        let Some((_, waits)) = self.rings.get_mut(ring as usize) else { return };
        if !std::mem::replace(waits, false) {
            return;
        }
        if self.waiting.front() == Some(&ring) {
            self.waiting.pop_front();
            self.begin_turn();
        } else {
            self.waiting.retain(|&other| other != ring);
        }
    }

    fn begin_turn(&mut self) {
        self.left = self.waiting.front().map_or(0, |&first| self.rings[first as usize].0);
    }

    fn ring(&mut self, ring: u32) -> &mut (u32, bool) {
        let at = ring as usize;
        if at >= self.rings.len() {
            self.rings.resize(at + 1, (1, false));
        }
        &mut self.rings[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rings_take_turns_by_weight() {
        let mut scheduler = RingScheduler::default();
        scheduler.set_weight(7, 3);
        [5, 7, 9, 7].into_iter().for_each(|ring| scheduler.wake(ring));
        let turns: Vec<_> = (0..11).filter_map(|_| scheduler.next(|_| true)).collect();
        assert_eq!(turns, [5, 7, 7, 7, 9, 5, 7, 7, 7, 9, 5]);
        let turns: Vec<_> = (0..4).filter_map(|_| scheduler.next(|ring| ring != 7)).collect();
        assert_eq!(turns, [9, 5, 9, 5], "who may not is passed over");
        assert_eq!(scheduler.next(|_| false), None);
        scheduler.sleep(9);
        scheduler.sleep(7);
        assert_eq!([scheduler.next(|_| true), scheduler.next(|_| true)], [Some(5); 2]);
        scheduler.sleep(5);
        assert!(scheduler.is_empty() && scheduler.next(|_| true).is_none());
    }

    proptest! {
        /// Whatever wakes and sleeps: who waits is served before any other has had more than its weight.
        #[test]
        fn nobody_starves(
            weights in prop::collection::vec(1..5u32, 6),
            steps in prop::collection::vec((0..6u32, 0..4u8), 0..300),
        ) {
            let mut scheduler = RingScheduler::default();
            (0..).zip(&weights).for_each(|(ring, &weight)| scheduler.set_weight(ring, weight));
            let mut waits = [false; 6];
            // By ring that waits: how many requests of each other were taken since it was served.
            let mut since = [[0; 6]; 6];
            for (ring, step) in steps {
                let at = ring as usize;
                match step {
                    0 => {
                        scheduler.wake(ring);
                        if !std::mem::replace(&mut waits[at], true) {
                            since[at] = [0; 6];
                        }
                    }
                    1 => {
                        scheduler.sleep(ring);
                        waits[at] = false;
                    }
                    _ => {
                        let Some(next) = scheduler.next(|_| true) else {
                            prop_assert!(waits.iter().all(|waits| !waits));
                            continue;
                        };
                        prop_assert!(waits[next as usize]);
                        since[next as usize] = [0; 6];
                        for other in (0..6).filter(|&other| waits[other] && other != next as usize) {
                            since[other][next as usize] += 1;
                            prop_assert!(since[other][next as usize] <= weights[next as usize]);
                        }
                    }
                }
            }
        }
    }
}
