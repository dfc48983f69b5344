//! Whose request is next.

use std::collections::VecDeque;

/// Clients whose rings have requests take turns, and so do the rings of each: one request is taken in a turn. With one ring
/// for each client this is round-robin, as in RAMBDA's prototype (section V).
#[derive(Debug, Default)]
pub struct RingScheduler {
    /// By ring: whose it is, if it waits.
    rings: Vec<Option<u32>>,
    /// By client: each of its rings that waits, once.
    clients: Vec<VecDeque<u32>>,
    /// Each client that has such rings, once.
    waiting: VecDeque<u32>,
    /// Whether the first of them has had its turn.
    had: bool,
}

impl RingScheduler {
    /// Whether no ring waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A ring of this client, a small number, has requests.
    #[inline]
    pub fn wake(&mut self, client: u32, ring: u32) {
        let (at, of) = (ring as usize, client as usize);
        if at >= self.rings.len() {
            self.rings.resize(at + 1, None);
        }
        if self.rings[at].is_some() {
            return;
        }
        if of >= self.clients.len() {
            self.clients.resize_with(of + 1, VecDeque::new);
        }
        self.rings[at] = Some(client);
        if self.clients[of].is_empty() {
            self.waiting.push_back(client);
        }
        self.clients[of].push_back(ring);
    }

    /// The ring whose request is to be taken: the next of the next client that `may`, each of which is asked once.
    #[inline]
    pub fn next(&mut self, may: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..=self.waiting.len() {
            let client = *self.waiting.front()?;
            let rings = &mut self.clients[client as usize];
            if !self.had && may(client) {
                self.had = true;
                return rings.front().copied();
            }
            rings.rotate_left(usize::from(self.had));
            self.end_turn();
        }
        None
    }

    /// A ring has no more requests, as the one that [`next`](Self::next) named last.
    #[inline]
    pub fn sleep(&mut self, ring: u32) {
        let Some(client) = self.rings.get_mut(ring as usize).and_then(Option::take) else { return };
        let (rings, is_first) = (&mut self.clients[client as usize], self.waiting.front() == Some(&client));
        let had = is_first && self.had && rings.front() == Some(&ring);
        if rings.front() == Some(&ring) {
            rings.pop_front();
        } else {
            rings.retain(|&other| other != ring);
        }
        match (rings.is_empty(), is_first) {
            (true, true) => {
                self.waiting.pop_front();
                self.had = false;
            }
            (true, false) => self.waiting.retain(|&other| other != client),
            (false, _) if had => self.end_turn(),
            (false, _) => {}
        }
    }

    fn end_turn(&mut self) {
        self.waiting.rotate_left(1);
        self.had = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    #[test]
    fn clients_take_turns_and_so_do_their_rings() {
        let mut scheduler = RingScheduler::default();
        [(1, 5), (2, 7), (1, 9), (2, 7), (1, 11)].into_iter().for_each(|(client, ring)| scheduler.wake(client, ring));
        let turns: Vec<_> = (0..9).filter_map(|_| scheduler.next(|_| true)).collect();
        assert_eq!(turns, [5, 7, 9, 7, 11, 7, 5, 7, 9]);
        let turns: Vec<_> = (0..4).filter_map(|_| scheduler.next(|client| client != 2)).collect();
        assert_eq!(turns, [11, 5, 9, 11], "who may not is passed over");
        assert_eq!(scheduler.next(|_| false), None);
        scheduler.sleep(9);
        scheduler.sleep(7);
        assert_eq!([scheduler.next(|_| true), scheduler.next(|_| true)], [Some(5), Some(11)]);
        scheduler.sleep(11);
        assert_eq!([scheduler.next(|_| true), scheduler.next(|_| true)], [Some(5); 2]);
        scheduler.sleep(5);
        assert!(scheduler.is_empty() && scheduler.next(|_| true).is_none());
    }

    #[test]
    fn a_client_that_may_not_is_asked_once_however_many_rings_it_has() {
        let mut scheduler = RingScheduler::default();
        (0..2048).for_each(|ring| scheduler.wake(1, ring));
        scheduler.wake(2, 4000);
        let asked = Cell::new(0);
        for turn in 1..100 {
            let next = scheduler.next(|client| {
                asked.set(asked.get() + u32::from(client == 1));
                client != 1
            });
            assert_eq!(next, Some(4000));
            assert!(asked.get() <= turn, "{} times in {turn} turns", asked.get());
        }
        assert_eq!(scheduler.next(|_| true), Some(0), "its rings wait all the same");
    }

    proptest! {
        /// Whatever wakes and sleeps: a client that waits is served before any other has been twice, and so is each of its
        /// rings.
        #[test]
        fn nobody_starves(steps in prop::collection::vec((0..6u32, 0..4u8), 0..300)) {
            let mut scheduler = RingScheduler::default();
            let of = |ring: u32| ring / 2;
            let mut waits = [false; 6];
            // Of what waits: how often each other was served since it was itself.
            let (mut rings, mut clients) = ([[0; 6]; 6], [[0; 3]; 3]);
            for (ring, step) in steps {
                let at = ring as usize;
                match step {
                    0 => {
                        if !waits[at] && !waits[at ^ 1] {
                            clients[of(ring) as usize] = [0; 3];
                        }
                        scheduler.wake(of(ring), ring);
                        if !std::mem::replace(&mut waits[at], true) {
                            rings[at] = [0; 6];
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
                        rings[next as usize] = [0; 6];
                        let neighbour = next as usize ^ 1;
                        if waits[neighbour] {
                            rings[neighbour][next as usize] += 1;
                            prop_assert!(rings[neighbour][next as usize] <= 1);
                        }
                        clients[of(next) as usize] = [0; 3];
                        for other in (0..3).filter(|&other| other != of(next) as usize) {
                            if waits[2 * other] || waits[2 * other + 1] {
                                clients[other][of(next) as usize] += 1;
                                prop_assert!(clients[other][of(next) as usize] <= 1);
                            }
                        }
                    }
                }
            }
        }
    }
}
