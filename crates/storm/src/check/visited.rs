//! States that were visited: of each a print of 76 bits, in 9 to 12 bytes.

use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// A hash of two words that is quick, and the same in each run: multiplications of 64 by 64 bits, both halves kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Print(u64, u64);

impl Default for Print {
    fn default() -> Self {
        Self(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344)
    }
}

impl Print {
    pub fn of(thing: &impl Hash) -> Self {
        let mut print = Self::default();
        thing.hash(&mut print);
        Self(mix(print.0, print.1 ^ 0xa409_3822_299f_31d1), mix(print.1, print.0 ^ 0x082e_fa98_ec4e_6c89))
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

impl Hasher for Print {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word, 0x9e37_79b9_7f4a_7c15);
        self.1 = mix(self.1 ^ word.rotate_left(32), 0xd6e8_feb8_6659_fd93).wrapping_add(self.0);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        mix(self.0, self.1 ^ 0xa409_3822_299f_31d1)
    }
}

/// Tables, each with the prints that have the same 12 bits.
const TABLES: usize = 1 << 12;

/// A set of prints that several threads fill.
#[derive(Debug)]
pub(crate) struct Visited {
    tables: Vec<Mutex<Table>>,
}

impl Visited {
    pub fn new() -> Self {
        Self { tables: (0..TABLES).map(|_| Mutex::default()).collect() }
    }

    /// Is it new?
    pub fn insert(&self, Print(which, print): Print) -> bool {
        let table = &self.tables[which as usize % TABLES];
        table.lock().unwrap_or_else(PoisonError::into_inner).insert(print.max(1))
    }
}

/// Prints in order, with gaps (zeros): each is where its value puts it, or behind its predecessors.
#[derive(Debug, Default)]
struct Table {
    slots: Vec<u64>,
    /// Slots that values are spread over; some more follow for those at the end.
    spread: usize,
    used: usize,
}

impl Table {
    fn insert(&mut self, print: u64) -> bool {
        // Five sixths full at most.
        if self.used * 6 >= self.spread * 5 {
            self.grow();
        }
        let mut at = self.place(print);
        while let Some(&slot) = self.slots.get(at)
            && slot != 0
            && slot < print
        {
            at += 1;
        }
        if self.slots.get(at) == Some(&print) {
            return false;
        }
        self.used += 1;
        let mut print = print;
        for slot in &mut self.slots[at..] {
            print = std::mem::replace(slot, print);
            if print == 0 {
                return true;
            }
        }
        // Behind all others: in order, as all after its place are full.
        self.slots.push(print);
        true
    }

    /// Where a print belongs. A larger one belongs further behind.
    fn place(&self, print: u64) -> usize {
        ((u128::from(print) * self.spread as u128) >> 64) as usize
    }

    fn grow(&mut self) {
        self.spread = (self.spread + self.spread / 4).max(64);
        let old = std::mem::replace(&mut self.slots, Vec::with_capacity(self.spread + 64));
        self.slots.resize(self.spread, 0);
        let mut next = 0;
        for print in old.into_iter().filter(|&print| print != 0) {
            next = self.place(print).max(next);
            if next < self.slots.len() {
                self.slots[next] = print;
            } else {
                self.slots.push(print);
            }
            next += 1;
        }
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
        // Prints that crowd at the end of a table.
        let crowd = || (0..1000).map(|number| Print(7, u64::MAX - number));
        assert!(crowd().all(|print| visited.insert(print)));
        assert!(!crowd().any(|print| visited.insert(print)));
    }
}
