//! Whose request is next.

use std::collections::VecDeque;

/// Clients whose rings have requests take turns, and so do the rings of each: as many requests are taken in a turn as the client
/// has weight, one if nothing is said. With one ring for each client this is round-robin, as in RAMBDA's prototype (section V).
#[derive(Debug, Default)]
pub struct RingScheduler {
    /// By ring: whose it is, if it waits.
    rings: Vec<Option<u32>>,
    /// By client: each of its rings that waits, once.
    clients: Vec<VecDeque<u32>>,
    /// Each client that has such rings, once.
    waiting: VecDeque<u32>,
    /// How many requests the first of them has had in its turn, and whether the first of its rings has had one of these.
    had: u32,
    had_ring: bool,
    /// By client: how many requests it has in a turn, if more than one.
    weights: Vec<u32>,
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

    /// A client has so many requests in a turn from now on, at least one.
    pub fn set_weight(&mut self, client: u32, weight: u32) {
        let (at, weight) = (client as usize, weight.max(1));
        if at >= self.weights.len() {
            if weight == 1 {
                return;
            }
            self.weights.resize(at + 1, 1);
        }
        self.weights[at] = weight;
    }

    /// The ring whose request is to be taken: the next of the next client that `may`, each of which is asked once.
    #[inline]
    pub fn next(&mut self, may: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..=self.waiting.len() {
            let client = *self.waiting.front()?;
            let rings = &mut self.clients[client as usize];
            rings.rotate_left(usize::from(std::mem::take(&mut self.had_ring)));
            let weight = self.weights.get(client as usize).copied().unwrap_or(1);
            if self.had < weight && may(client) {
                self.had += 1;
                self.had_ring = true;
                return rings.front().copied();
            }
            self.end_turn();
        }
        None
    }

    /// A ring has no more requests, as the one that [`next`](Self::next) named last.
    #[inline]
    pub fn sleep(&mut self, ring: u32) {
        let Some(client) = self.rings.get_mut(ring as usize).and_then(Option::take) else { return };
        let (rings, is_first) = (&mut self.clients[client as usize], self.waiting.front() == Some(&client));
        if rings.front() == Some(&ring) {
            rings.pop_front();
            self.had_ring &= !is_first;
        } else {
            rings.retain(|&other| other != ring);
        }
        match (rings.is_empty(), is_first) {
            (true, true) => {
                self.waiting.pop_front();
                self.had = 0;
            }
            (true, false) => self.waiting.retain(|&other| other != client),
            (false, _) => {}
        }
    }

    fn end_turn(&mut self) {
        self.waiting.rotate_left(1);
        self.had = 0;
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
    fn who_has_more_weight_has_more_in_a_turn() {
        let mut scheduler = RingScheduler::default();
        scheduler.set_weight(1, 3);
        scheduler.set_weight(2, 0);
        [(1, 5), (2, 7), (1, 9)].into_iter().for_each(|(client, ring)| scheduler.wake(client, ring));
        let turns: Vec<_> = (0..9).filter_map(|_| scheduler.next(|_| true)).collect();
        assert_eq!(turns, [5, 9, 5, 7, 9, 5, 9, 7, 5]);
        scheduler.sleep(5);
        let turns: Vec<_> = (0..4).filter_map(|_| scheduler.next(|_| true)).collect();
        assert_eq!(turns, [9, 9, 7, 9], "its turn goes on with the other one");
        assert_eq!(scheduler.next(|client| client != 1), Some(7), "a turn that may not go on is over");
        scheduler.set_weight(1, 1);
        let turns: Vec<_> = (0..4).filter_map(|_| scheduler.next(|_| true)).collect();
        assert_eq!(turns, [9, 7, 9, 7]);
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
