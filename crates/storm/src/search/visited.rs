//! States that were visited: of each a print of 68 bits, in 6 to 9 bytes.

use std::sync::{Mutex, PoisonError};

use super::print::Print;

/// Tables, each with the prints that have the same 12 bits.
const TABLES: usize = 1 << 12;
/// Bits of a print beside those.
const BITS: u32 = 56;

/// The chance that of so many states any two have the same print.
pub(super) fn omission(states: u64) -> f64 {
    let (states, prints) = (states as f64, TABLES as f64 * 2_f64.powi(BITS as i32));
    -(-states * (states - 1.0) / 2.0 / prints).exp_m1()
}

/// A set of prints that several threads fill.
#[derive(Debug)]
pub(super) struct Visited {
    tables: Vec<Mutex<Table>>,
}

impl Visited {
    pub fn new() -> Self {
        Self { tables: (0..TABLES).map(|_| Mutex::default()).collect() }
    }

    /// Is it new?
    pub fn insert(&self, Print(which, print): Print) -> bool {
        let table = &self.tables[which as usize % TABLES];
        table.lock().unwrap_or_else(PoisonError::into_inner).insert(print >> (64 - BITS))
    }
}

/// Numbers of 56 bits in order, with gaps; they are spread as a hash spreads them. Each belongs to a slot, its home, in proportion to its value, and stands there
/// or behind its predecessors. So its place says most of what it is, and the slot only the rest: how far it is from home,
/// and which of the numbers that have this home it is.
#[derive(Debug, Default)]
struct Table {
    slots: Slots,
    /// Homes. Some more slots follow for what stands behind the last.
    homes: u64,
    used: u64,
}

/// Bits for how far a number is from home, and one; 0 is a gap.
const AWAY_BITS: u32 = 6;
const AWAY: u64 = (1 << AWAY_BITS) - 1;

/// A number as its table has it: its home, and which of those with that home it is. In the order of numbers.
type Place = (u64, u64);

impl Table {
    fn insert(&mut self, number: u64) -> bool {
        // Seven eighths full at most.
        if self.used * 8 >= self.homes * 7 {
            self.grow();
        }
        loop {
            if let Some(new) = self.put(self.place(number)) {
                self.used += u64::from(new);
                return new;
            }
            self.grow();
        }
    }

    fn place(&self, number: u64) -> Place {
        let product = u128::from(number) * u128::from(self.homes);
        let rest = product as u64 & ((1 << BITS) - 1);
        // Numbers with the same home are this far apart in what is left: it says which it is.
        ((product >> BITS) as u64, rest / self.homes)
    }

    /// Is it new? `None` if something would stand too far from home.
    fn put(&mut self, place: Place) -> Option<bool> {
        let mut at = place.0;
        loop {
            match self.get(at) {
                Some(other) if other == place => return Some(false),
                Some(other) if other < place => at += 1,
                _ => break,
            }
        }
        let gap = self.gap(at, place.0)?;
        for to in (at..gap).rev() {
            // One further from home.
            let slot = self.slots.get(to);
            self.slots.set(to + 1, slot + 1);
        }
        self.slots.set(at, place.1 << AWAY_BITS | (at - place.0 + 1));
        Some(true)
    }

    /// The first gap from `at` on, if what is before it may move by one, and what has this home may stand at `at`.
    fn gap(&self, at: u64, home: u64) -> Option<u64> {
        let mut slots = (at..).map(|at| (at, self.slots.get(at) & AWAY));
        let movable = slots.find(|(_, away)| *away == 0 || *away == AWAY)?;
        (movable.1 == 0 && at - home < AWAY).then_some(movable.0)
    }

    fn get(&self, at: u64) -> Option<Place> {
        let slot = self.slots.get(at);
        (slot != 0).then(|| (at + 1 - (slot & AWAY), slot >> AWAY_BITS))
    }

    /// More homes, by a sixth or, should something stand too far from home, some more.
    fn grow(&mut self) {
        let mut homes = self.homes;
        *self = loop {
            homes = (homes + homes / 6).max(16);
            if let Some(table) = self.spread(homes) {
                break table;
            }
        };
    }

    fn spread(&self, homes: u64) -> Option<Self> {
        let mut table = Self { slots: Slots::new(homes), homes, used: self.used };
        let mut end = 0;
        for number in self.numbers() {
            let (home, which) = table.place(number);
            let at = home.max(end);
            if at - home >= AWAY {
                return None;
            }
            table.slots.set(at, which << AWAY_BITS | (at - home + 1));
            end = at + 1;
        }
        Some(table)
    }

    /// All numbers, in order.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        // The first number of a home is its home * 2^56 / homes, rounded up; homes come in order, so no division is needed.
        let (whole, part) = ((1 << BITS) / self.homes.max(1), (1 << BITS) % self.homes.max(1));
        let (mut home, mut first, mut over) = (0, 0, 0);
        (0..self.slots.len).filter_map(|at| self.get(at)).map(move |(of, which)| {
            while home < of {
                home += 1;
                (first, over) = (first + whole, over + part);
                if over >= self.homes {
                    (first, over) = (first + 1, over - self.homes);
                }
            }
            first + u64::from(over > 0) + which
        })
    }
}

/// Words of memory that is asked for at once. Tables grow one after the other, and each may have what another has left.
const CHUNK: usize = 2048;

/// Numbers of so many bits each, one behind the other.
#[derive(Debug, Default)]
struct Slots {
    chunks: Vec<Box<[u64]>>,
    bits: u32,
    len: u64,
}

impl Slots {
    /// For a table with so many homes.
    fn new(homes: u64) -> Self {
        let most = ((1 << BITS) - 1) / homes;
        let (bits, len) = (u64::BITS - most.leading_zeros() + AWAY_BITS, homes + AWAY + 1);
        let words = (len * u64::from(bits)).div_ceil(64) as usize + 1;
        let sizes = (0..words).step_by(CHUNK).map(|from| CHUNK.min(words - from));
        Self { chunks: sizes.map(|size| vec![0; size].into_boxed_slice()).collect(), bits, len }
    }

    fn get(&self, at: u64) -> u64 {
        let (word, shift) = self.find(at);
        (self.both(word) >> shift) as u64 & (u64::MAX >> (64 - self.bits))
    }

    fn set(&mut self, at: u64, value: u64) {
        let (word, shift) = self.find(at);
        let mask = u128::from(u64::MAX >> (64 - self.bits)) << shift;
        let both = self.both(word) & !mask | u128::from(value) << shift;
        self.chunks[word / CHUNK][word % CHUNK] = both as u64;
        self.chunks[(word + 1) / CHUNK][(word + 1) % CHUNK] = (both >> 64) as u64;
    }

    fn find(&self, at: u64) -> (usize, u32) {
        let bit = at * u64::from(self.bits);
        ((bit / 64) as usize, (bit % 64) as u32)
    }

    /// A word and the next.
    fn both(&self, word: usize) -> u128 {
        let get = |word: usize| u128::from(self.chunks[word / CHUNK][word % CHUNK]);
        get(word) | get(word + 1) << 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_in_it_once() {
        let visited = Visited::new();
        let prints = || (0_u64..500_000).map(|number| Print::of(&number));
        assert!(prints().all(|print| visited.insert(print)));
        assert!(!prints().any(|print| visited.insert(print)));
    }

    #[test]
    fn numbers_are_kept_whole_where_they_crowd_and_at_the_ends() {
        let top = (1 << BITS) - 1;
        let mut all = std::collections::BTreeSet::new();
        let mut table = Table::default();
        let spread = (0..3000_u64).map(|number| number * number * 0x9e37_79b9 % top);
        for number in (0..50).chain(top - 50..=top).chain(spread).chain(0..10) {
            assert_eq!(table.insert(number), all.insert(number), "{number}");
        }
        assert!(table.numbers().eq(all.iter().copied()));
        assert_eq!(table.used, all.len() as u64);
    }

    #[test]
    fn a_million_prints_take_eleven_bytes_each_at_most() {
        let visited = Visited::new();
        let new = (0_u64..1_000_000).filter(|number| visited.insert(Print::of(number))).count();
        assert_eq!(new, 1_000_000);
        let bytes: usize = visited
            .tables
            .iter()
            .map(|table| table.lock().unwrap().slots.chunks.iter().map(|chunk| chunk.len() * 8).sum::<usize>())
            .sum();
        assert!(bytes <= 11_000_000, "{bytes}");
    }

    #[test]
    fn the_chance_of_an_omission_grows_with_the_square() {
        assert_eq!(omission(1), 0.0);
        let (small, large) = (omission(1_000_000), omission(1_000_000_000));
        assert!((large / small - 1e6).abs() < 1e4 && (1.0 / large - 590.0).abs() < 1.0, "{small} {large}");
    }
}
