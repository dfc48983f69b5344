//! Queue pairs by number, and the numbers that new ones get.
//!
//! A number is all that a stranger has to guess to be heard by a queue pair, beside its peer's address and a packet
//! sequence number. So each is drawn at random from all 24 bits, and the place in the table follows from the number:
//! no two that live have the same low bits, of which the table has places for at least twice as many as there are.

use rand_core::RngCore;

use crate::lane::Lane;

/// Numbers 0 and 1 are the management queue pairs', the highest is that of multicast.
const NUMBERS: std::ops::Range<u32> = 2..0xff_ffff;
/// Places in the largest table: 16 bits tell queue pairs that live apart, for whoever keeps a table of his own.
const MAX_PLACES: usize = 1 << 16;
/// Places in the smallest.
const MIN_PLACES: usize = 64;
/// Queue pairs that a table takes: half of its places, so that a number is found in two draws.
pub(crate) const MAX_QPS: u32 = MAX_PLACES as u32 / 2;

/// What belongs to queue pairs, by their numbers.
#[derive(Debug)]
pub(crate) struct QpTable<T> {
    /// As many as a power of two, or none yet.
    places: Vec<Option<(u32, T)>>,
    live: usize,
}

impl<T> Default for QpTable<T> {
    fn default() -> Self {
        Self { places: Vec::new(), live: 0 }
    }
}

impl<T> QpTable<T> {
    /// All numbers.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.places.iter().flatten().map(|(number, _)| *number)
    }

    /// What all have, to change it.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten().map(|(_, entry)| entry)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.live
    }

    #[inline]
    fn place(&self, qpn: u32) -> usize {
        // Of an empty table every place is out of bounds.
        qpn as usize & self.places.len().wrapping_sub(1)
    }

    /// What this queue pair has.
    #[inline]
    pub fn get(&self, qpn: u32) -> Option<&T> {
        match self.places.get(self.place(qpn)) {
            Some(Some((number, entry))) if *number == qpn => Some(entry),
            _ => None,
        }
    }

    /// What this queue pair has, to change it.
    #[inline]
    pub fn get_mut(&mut self, qpn: u32) -> Option<&mut T> {
        let place = self.place(qpn);
        match self.places.get_mut(place) {
            Some(Some((number, entry))) if *number == qpn => Some(entry),
            _ => None,
        }
    }

    /// A number of this lane that no queue pair in the table has, nor any like it; the caller has seen that there are fewer than
    /// [`MAX_QPS`].
    pub fn draw(&mut self, lane: Lane, rng: &mut impl RngCore) -> u32 {
        if 4 * self.live >= self.places.len() && self.places.len() < MAX_PLACES {
            self.grow();
        }
        loop {
            let number = lane.draw(rng) >> 8;
            if NUMBERS.contains(&number) && self.places[self.place(number)].is_none() {
                return number;
            }
        }
    }

    /// Puts in what a queue pair has, whose number [`draw`](Self::draw) gave, be it that of another table.
    pub fn insert(&mut self, qpn: u32, entry: T) {
        while self.places.get(self.place(qpn)).is_none_or(|held| held.as_ref().is_some_and(|(other, _)| *other != qpn))
        {
            // Ends: numbers that live differ in the bits that the largest table looks at.
            self.grow();
        }
        let place = self.place(qpn);
        self.live += usize::from(self.places[place].replace((qpn, entry)).is_none());
    }

    /// Takes out what a queue pair has.
    pub fn remove(&mut self, qpn: u32) -> Option<T> {
        self.get(qpn)?;
        let place = self.place(qpn);
        self.live -= 1;
        self.places[place].take().map(|(_, entry)| entry)
    }

    fn grow(&mut self) {
        let places = (2 * self.places.len()).max(MIN_PLACES);
        assert!(places <= MAX_PLACES, "two queue pairs with the same low bits");
        let old = std::mem::take(&mut self.places);
        self.places.resize_with(places, || None);
        for (qpn, entry) in old.into_iter().flatten() {
            let place = self.place(qpn);
            self.places[place] = Some((qpn, entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_full_table_finds_each_and_nothing_else() {
        let mut rng = ChaCha12Rng::seed_from_u64(1);
        let mut table = QpTable::default();
        let mut other = QpTable::default();
        let mut numbers = BTreeMap::new();
        for n in 0..MAX_QPS {
            let number = table.draw(Lane::ONLY, &mut rng);
            table.insert(number, n);
            other.insert(number, n);
            assert_eq!(numbers.insert(number, n), None);
        }
        let low: BTreeSet<u32> = numbers.keys().map(|number| number & 0xffff).collect();
        assert_eq!(low.len(), numbers.len());
        for number in 0..1 << 24 {
            assert_eq!(table.get(number), numbers.get(&number));
        }
        assert_eq!(table.get(1 << 24 | *numbers.keys().next().unwrap()), None);
        for (number, n) in &numbers {
            assert_eq!(
                (other.get_mut(*number), table.remove(*number), table.remove(*number)),
                (Some(&mut n.clone()), Some(*n), None)
            );
        }
        assert_eq!(table.len(), 0);
    }

    /// As often as chance has it, the next number has a bit set: none tells of another.
    #[test]
    fn every_bit_of_a_number_is_random() {
        let mut rng = ChaCha12Rng::seed_from_u64(2);
        let mut table = QpTable::default();
        let (mut set, draws) = ([0; 24], 4096);
        let mut before = 0;
        for n in 0..draws {
            let number = table.draw(Lane::ONLY, &mut rng);
            table.insert(number, n);
            for (bit, count) in set.iter_mut().enumerate() {
                *count += (number ^ before) >> bit & 1;
            }
            before = number;
        }
        // Six standard deviations of 4096 fair throws are 192.
        assert!(set.iter().all(|count| count.abs_diff(draws / 2) < 192), "{set:?}");
    }
}
