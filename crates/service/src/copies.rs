//! Copies of remote memory that a client keeps, for kernels that find out by themselves whether a copy still holds.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// Bytes of all copies. The inner nodes of a tree of 10 million keys take a tenth.
const MOST: usize = 64 << 20;

/// Copies by region and address.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    copies: HashMap<(u32, u64), Box<[u8]>, BuildHasherDefault<DefaultHasher>>,
    bytes: usize,
}

impl Copies {
    /// The copy of these bytes, if there is one of this length.
    pub fn recall(&self, key: u32, va: u64, out: &mut [u8]) -> bool {
        let Some(copy) = self.copies.get(&(key, va)).filter(|copy| copy.len() == out.len()) else { return false };
        out.copy_from_slice(copy);
        true
    }

    /// Keeps a copy. When there is no room all others go: what is asked for comes back soon.
    pub fn keep(&mut self, key: u32, va: u64, bytes: &[u8]) {
        if let Some(copy) = self.copies.get_mut(&(key, va)).filter(|copy| copy.len() == bytes.len()) {
            return copy.copy_from_slice(bytes);
        }
        self.forget(key, va);
        if self.bytes + bytes.len() > MOST {
            *self = Self::default();
        }
        if bytes.len() <= MOST {
            self.bytes += bytes.len();
            self.copies.insert((key, va), bytes.into());
        }
    }

    /// Drops a copy.
    pub fn forget(&mut self, key: u32, va: u64) {
        if let Some(copy) = self.copies.remove(&(key, va)) {
            self.bytes -= copy.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_bounded_and_the_last_one_stands() {
        let mut copies = Copies::default();
        let mut out = [0; 4];
        copies.keep(1, 64, &[1; 4]);
        copies.keep(1, 64, &[2; 4]);
        assert!(copies.recall(1, 64, &mut out) && out == [2; 4]);
        assert!(!copies.recall(1, 64, &mut [0; 5]) && !copies.recall(2, 64, &mut out));
        copies.keep(1, 64, &[3; 8]);
        assert!(!copies.recall(1, 64, &mut out) && copies.bytes == 8);
        copies.keep(1, 128, &vec![0; MOST + 1]);
        copies.keep(1, 256, &vec![0; MOST]);
        assert_eq!((copies.copies.len(), copies.bytes), (1, MOST));
        copies.forget(1, 256);
        assert_eq!((copies.copies.len(), copies.bytes), (0, 0));
    }
}
