//! A hash that is quick, and the same in each run.

use std::hash::{Hash, Hasher};

/// Two words: multiplications of 64 by 64 bits, both halves kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Print(pub u64, pub u64);

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
