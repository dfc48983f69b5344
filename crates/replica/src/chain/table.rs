//! The table for concurrency control: who has which keys, and who waits for them, in the order of arrival.

use std::collections::{BTreeMap, VecDeque};

/// Keys and the transactions that want them. One has a key at a time.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Table {
    /// By key: who has it, and behind him who waits.
    queues: BTreeMap<u64, VecDeque<u64>>,
    /// Of each who waits, for how many keys.
    short: BTreeMap<u64, usize>,
    /// How many keys those who have or want some have and want, all together.
    wanted: usize,
}

impl Table {
    /// A transaction wants these keys, of which none is named twice. True if it has all of them; otherwise it waits for all
    /// at once, behind those who came before it, so that no two wait for each other.
    pub fn enter(&mut self, ticket: u64, keys: &[u64]) -> bool {
        let mut short = 0;
        self.wanted += keys.len();
        for &key in keys {
            let queue = self.queues.entry(key).or_default();
            short += usize::from(!queue.is_empty());
            queue.push_back(ticket);
        }
        if short > 0 {
            self.short.insert(ticket, short);
        }
        short == 0
    }

    /// A transaction gives up its keys. `ready` hears of those that have all of theirs now.
    pub fn leave(&mut self, ticket: u64, keys: &[u64], mut ready: impl FnMut(u64)) {
        for &key in keys {
            let Some(queue) = self.queues.get_mut(&key).filter(|queue| queue.front() == Some(&ticket)) else {
                continue;
            };
            queue.pop_front();
            self.wanted -= 1;
            let Some(next) = queue.front() else {
                self.queues.remove(&key);
                continue;
            };
            if let Some(short) = self.short.get_mut(next) {
                *short -= 1;
                if *short == 0 {
                    self.short.remove(next);
                    ready(*next);
                }
            }
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.short.len()
    }

    /// How many keys all have and want together, those counted several times that several do.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Nobody has or wants anything any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_had_in_the_order_of_arrival() {
        let mut table = Table::default();
        assert!(table.enter(1, &[7, 8]));
        assert!(!table.enter(2, &[8, 9]));
        assert!(!table.enter(3, &[9]), "behind one that waits itself");
        assert!(table.enter(4, &[5]));
        let mut ready = Vec::new();
        table.leave(1, &[7, 8], |ticket| ready.push(ticket));
        table.leave(2, &[8, 9], |ticket| ready.push(ticket));
        assert_eq!((ready, table.waiting()), (vec![2, 3], 0));
    }

    proptest! {
        #[test]
        fn everybody_gets_his_keys_and_nobody_else_has_them(wants in proptest::collection::vec(1u64..64, 1..40)) {
            let keys = |wanted: u64| (0..6).filter(|bit| wanted >> bit & 1 == 1).collect::<Vec<u64>>();
            let mut table = Table::default();
            let mut run: VecDeque<u64> = VecDeque::new();
            for (ticket, &wanted) in (0..).zip(&wants) {
                if table.enter(ticket, &keys(wanted)) {
                    run.push_back(ticket);
                }
            }
            let mut done = 0;
            while !run.is_empty() {
                let held = run.iter().map(|&ticket| wants[ticket as usize]);
                prop_assert_eq!(held.clone().fold(0, |all, keys| all | keys).count_ones(), held.map(u64::count_ones).sum());
                // The last one first: who has keys may give them up in any order.
                let Some(ticket) = run.pop_back() else { break };
                table.leave(ticket, &keys(wants[ticket as usize]), |next| run.push_front(next));
                done += 1;
            }
            prop_assert_eq!((done, table), (wants.len(), Table::default()));
        }
    }
}
