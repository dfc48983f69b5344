//! Words of a region that are looked at where they are.

use crate::copy;
use std::sync::atomic::Ordering;

/// Aligned words of a region, which others may write at any time: for who reads a structure in place and finds out
/// afterwards, by a version in it, whether what he saw was of one moment. Made by [`Region::view`](crate::Region::view).
#[derive(Clone, Copy)]
pub struct Words<'a> {
    start: *mut u8,
    len: usize,
    region: std::marker::PhantomData<&'a crate::Region>,
}

impl Words<'_> {
    /// # Safety
    /// For as long as the region is borrowed `len` words from `start` on meet the contract of [`copy::word`].
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        Words { start, len, region: std::marker::PhantomData }
    }

    /// The word at an index, little-endian in memory; 0 outside.
    #[inline(always)]
    pub fn get(&self, at: usize) -> u64 {
        if at >= self.len {
            return 0;
        }
        // SAFETY: it lies within the words.
        u64::from_le(unsafe { copy::word(self.start.wrapping_add(8 * at)) }.load(Ordering::Acquire))
    }

    /// Copies bytes from `at` on into `out`, as a buffer's [`take`](crate::Buffer::take) does; nothing if some lie outside.
    #[inline]
    pub fn take(&self, at: usize, out: &mut [u8]) {
        if at <= 8 * self.len && out.len() <= 8 * self.len - at {
            // SAFETY: the range lies within the words.
            unsafe { copy::take(self.start.wrapping_add(at), out) };
        }
    }

    /// Asks the cache for bytes from `at` on. A hint: what lies outside does no harm.
    #[inline]
    pub fn prefetch(&self, at: usize, len: usize) {
        if len > 0 && at < 8 * self.len {
            copy::prefetch(self.start.wrapping_add(at), len);
        }
    }

    /// How many of `count` words from `from` on, which ascend, are at most `most`. If somebody writes them meanwhile, any
    /// number up to `count`.
    #[inline(always)]
    pub fn rank(&self, from: usize, count: usize, most: u64) -> usize {
        let count = count.min(self.len.saturating_sub(from));
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if copy::has_masks() {
            // SAFETY: the words lie within; the processor has what it takes.
            return unsafe { copy::count_at_most(self.start.wrapping_add(8 * from), count, most) };
        }
        (from..from + count).filter(|at| self.get(*at) <= most).count()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Buffer, Registry};

    #[test]
    fn words_are_counted_where_they_are() {
        let words: Vec<u64> = (0..64).map(|i| 10 * i).chain([u64::MAX - 1]).collect();
        let bytes_of = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let bytes = bytes_of(&words);
        let registry = Registry::new([1; 32]);
        let buffer = Buffer::from_boxed(bytes.into());
        let region = registry.register(registry.alloc_pd(), &buffer, 0, 65 * 8, Some(0), Access::all()).unwrap();
        let view = region.view(8, 64 * 8).unwrap();
        assert_eq!((view.get(0), view.get(63), view.get(64)), (10, u64::MAX - 1, 0));
        for from in 0..64 {
            for count in 0..=65 - from {
                for most in [0, 5, 10, 155, 630, 700, u64::MAX - 1, u64::MAX] {
                    let expected = (from..(from + count).min(64)).filter(|at| words[1 + at] <= most).count();
                    assert_eq!(view.rank(from, count, most), expected, "{from} {count} {most}");
                }
            }
        }
        let mut out = [0; 24];
        view.prefetch(0, 24);
        view.take(4, &mut out);
        assert_eq!(out[..], bytes_of(&words)[12..36]);
        view.take(64 * 8 - 23, &mut out);
        view.take(usize::MAX, &mut out);
        view.prefetch(usize::MAX, 24);
        assert_eq!(out[..], bytes_of(&words)[12..36], "nothing comes from outside");
        assert!(region.view(8, 65 * 8).is_none() && region.view(4, 8).is_none());
    }
}
