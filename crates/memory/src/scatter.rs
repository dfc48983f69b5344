//! Spreading words over many places of a region, each filled from its front: radix partitioning.
//!
//! Each word is stored where it belongs at once, and the first-level cache combines what is written to a line: 256 places
//! have 16 KB of lines under way. What that would cost, a line read from memory before its first word is stored, is
//! hidden by asking for the lines that come next, one place after the other. Buffers of a line or two that are written
//! out past the caches came to half the speed: a core commits its stores in order, so those of whole lines hold up all
//! that follow, and it mispredicts a branch for each buffer that is full.

use crate::copy;
use crate::region::{AccessError, Region};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a word.
const WORD: u64 = 8;
/// Words between two looks ahead, each at the next place in turn: a place gets about so many until its turn is back. A
/// constant number, so that the compiler unrolls the loop over them.
const BLOCK: usize = 8;
/// Lines of a place that a look ahead asks for: one that it will need by then, and one as some get more than others.
const LINES_AHEAD: usize = 2;
/// Bytes that input is asked for ahead.
const INPUT_AHEAD: usize = 4096;

/// Places in a region, and how far each is filled.
pub struct Scatter {
    region: Arc<Region>,
    /// The lowest address: where the words of `next` and `ends` count from.
    base: u64,
    /// Where the next word of each place goes. A power of two of them.
    next: Box<[u32]>,
    /// Where there is no more room.
    ends: Box<[u32]>,
    /// Bytes from `base` to the last of those.
    bytes: u64,
    /// The place whose lines are asked for next.
    turn: usize,
}

impl Scatter {
    /// Over a power of two of places: address and room in words of each. `None` unless they are aligned words, all in the
    /// region, no further apart than 32 GB and in a single run of memory: for others there is [`Region::write`].
    /// Rights are the caller's to check.
    pub fn new(region: Arc<Region>, places: &[(u64, u32)]) -> Option<Scatter> {
        if !places.len().is_power_of_two() {
            return None;
        }
        let base = places.iter().map(|(va, _)| *va).min()?;
        let word_of = |va: u64| u32::try_from((va - base) / WORD).ok().filter(|_| (va - base).is_multiple_of(WORD));
        let next: Option<Box<[u32]>> = places.iter().map(|(va, _)| word_of(*va)).collect();
        let next = next?;
        let ends: Option<Box<[u32]>> = next.iter().zip(places).map(|(next, place)| next.checked_add(place.1)).collect();
        let ends = ends?;
        let bytes = WORD * u64::from(*ends.iter().max()?);
        region.words(base, bytes).ok()??;
        Some(Scatter { region, base, next, ends, bytes, turn: 0 })
    }

    /// Stores each value at the place that its low bits name, and ends before one whose place is full. Returns how many
    /// it has stored. They are 8 bytes each, little-endian.
    pub fn put(&mut self, values: &[[u8; 8]]) -> Result<usize, AccessError> {
        self.spread(values, |_, value| u64::from_le_bytes(*value))
    }

    /// The same with places that the low bits of `names` give, one for each value.
    pub fn put_named(&mut self, values: &[[u8; 8]], names: &[u64]) -> Result<usize, AccessError> {
        let values = &values[..values.len().min(names.len())];
        // SAFETY: `at` counts the values, of which there are as many names.
        self.spread(values, |at, _| unsafe { *names.get_unchecked(at) })
    }

    #[inline(always)]
    fn spread(&mut self, values: &[[u8; 8]], name: impl Fn(usize, &[u8; 8]) -> u64) -> Result<usize, AccessError> {
        let Scatter { region, base, next, ends, bytes, turn } = self;
        // Nothing is stored but below one of the ends.
        let base = region.words(*base, *bytes)?.ok_or(AccessError::OutOfBounds)?;
        let (next, ends) = (&mut next[..], &ends[..]);
        let mask = next.len() - 1;
        let at_word = |word: u32| base.wrapping_add(WORD as usize * word as usize);
        let put = |index: usize, value: &[u8; 8], next: &mut [u32]| {
            let at = name(index, value) as usize & mask;
            // SAFETY: `mask` is the last index of both. A word below its place's end lies in the run of memory that was
            // checked above, and is aligned there.
            unsafe {
                let next = next.get_unchecked_mut(at);
                let fits = *next < *ends.get_unchecked(at);
                if fits {
                    copy::word(at_word(*next)).store(u64::from_ne_bytes(*value), Ordering::Release);
                    *next += 1;
                }
                fits
            }
        };
        let (blocks, rest) = values.as_chunks::<BLOCK>();
        for (block, values) in blocks.iter().enumerate() {
            let ahead = at_word(next[*turn & mask]);
            *turn += 1;
            copy::prefetch_lines(ahead.wrapping_add(64), LINES_AHEAD);
            copy::prefetch_once(values.as_ptr().cast::<u8>().wrapping_add(INPUT_AHEAD), BLOCK * WORD as usize);
            for (i, value) in values.iter().enumerate() {
                if !put(block * BLOCK + i, value, next) {
                    return Ok(block * BLOCK + i);
                }
            }
        }
        let first = values.len() - rest.len();
        let full = rest.iter().enumerate().position(|(i, value)| !put(first + i, value, next));
        Ok(first + full.unwrap_or(rest.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Buffer, Registry};

    fn region(offset: usize, len: usize) -> (Registry, Arc<Region>) {
        let registry = Registry::new([6; 32]);
        let buffer = Buffer::from_boxed(vec![0; offset + len].into());
        let region = registry.register(registry.alloc_pd(), &buffer, offset, len, Some(0x1000), Access::all()).unwrap();
        (registry, region)
    }

    fn words(region: &Region, va: u64, count: usize) -> Vec<u64> {
        let mut bytes = vec![0; 8 * count];
        region.read(va, &mut bytes).unwrap();
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    fn bytes(values: impl IntoIterator<Item = u64>) -> Vec<[u8; 8]> {
        values.into_iter().map(u64::to_le_bytes).collect()
    }

    #[test]
    fn values_go_to_their_places_in_order_until_one_is_full() {
        let (_registry, region) = region(0, 400);
        let mut scatter = Scatter::new(region.clone(), &[(0x1100, 5), (0x1008, 3)]).unwrap();
        assert_eq!(scatter.put(&bytes([2, 1, 4])), Ok(3));
        assert_eq!(scatter.put_named(&bytes([6, 8, 3, 5, 10]), &[0, 0, 1, 1, 1]), Ok(4), "the fourth for place 1");
        assert_eq!(scatter.put(&bytes([12, 14])), Ok(1));
        assert_eq!(words(&region, 0x1100, 6), [2, 4, 6, 8, 12, 0]);
        assert_eq!(words(&region, 0x1000, 5), [0, 1, 3, 5, 0]);
        assert_eq!(scatter.put(&[]), Ok(0));
    }

    #[test]
    fn places_that_are_not_all_there_are_refused() {
        let (_registry, region) = region(0, 64);
        let new = |places: &[(u64, u32)]| Scatter::new(region.clone(), places).is_some();
        assert!(new(&[(0x1000, 8)]) && new(&[(0x1000, 0), (0x1038, 1)]));
        assert!(!new(&[]) && !new(&[(0x1000, 1); 3]), "not a power of two");
        assert!(!new(&[(0x1000, 9)]) && !new(&[(0xff8, 1)]) && !new(&[(0x1000, 1), (0x1040, 1)]), "outside");
        assert!(!new(&[(0x1000, 1), (0x1004, 1)]) && !new(&[(0x1004, 1)]), "misaligned");
        assert!(!new(&[(0, 1), (u64::MAX - 7, 1)]) && !new(&[(0x1000, u32::MAX)]), "too far");
    }

    #[test]
    fn nothing_is_stored_in_a_region_that_is_gone() {
        let (registry, region) = region(8, 64);
        let mut scatter = Scatter::new(region.clone(), &[(0x1000, 8)]).unwrap();
        assert_eq!(scatter.put(&bytes([1])), Ok(1));
        registry.deregister(region.key()).unwrap();
        assert_eq!(scatter.put(&bytes([2])), Err(AccessError::Revoked));
    }
}
