//! Words of a region that are looked at where they are.

use crate::copy;
use std::sync::atomic::{AtomicU64, Ordering};

/// Aligned words of a region, which others may write at any time: for who reads a structure in place and finds out
/// afterwards, by a version in it, whether what he saw was of one moment. Made by [`Region::view`](crate::Region::view).
#[derive(Clone, Copy)]
pub struct Words<'a> {
    start: *mut u8,
    len: usize,
    region: std::marker::PhantomData<&'a crate::Region>,
}

impl<'a> Words<'a> {
    /// # Safety
    /// For as long as the region is borrowed `len` words from `start` on meet the contract of [`copy::word`].
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        Words { start, len, region: std::marker::PhantomData }
    }

    /// Bytes of all words.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        8 * self.len
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

    /// The first words, in ascending order; 0 for those that lie outside.
    #[inline(always)]
    pub fn first<const N: usize>(&self) -> [u64; N] {
        let mut words = [0; N];
        if N <= self.len {
            for (at, out) in words.iter_mut().enumerate() {
                // SAFETY: it lies within the words.
                *out = u64::from_le(unsafe { copy::word(self.start.wrapping_add(8 * at)) }.load(Ordering::Acquire));
            }
        }
        words
    }

    /// Copies bytes from `at` on into `out`, as a buffer's [`take`](crate::Buffer::take) does; nothing if some lie outside.
    #[inline]
    pub fn take(&self, at: usize, out: &mut [u8]) {
        if at <= 8 * self.len && out.len() <= 8 * self.len - at {
            // SAFETY: the range lies within the words.
            unsafe { copy::take(self.start.wrapping_add(at), out) };
        }
    }

    /// Writes words from `first` on and words from `second` on into `out` by turns: pairs of 16 bytes, little-endian as they
    /// are in memory; 0 for those that lie outside.
    #[inline]
    pub fn pairs(&self, first: usize, second: usize, out: &mut [u8]) {
        for (at, pair) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            pair[..8].copy_from_slice(&self.get(first + at).to_le_bytes());
            pair[8..].copy_from_slice(&self.get(second + at).to_le_bytes());
        }
    }

    /// Adds rows of `f32`, little-endian, to `sums`, column by column and in the order of `which`: numbers of rows, each as
    /// long as `sums`, the first of which begins here. Rows that lie outside are left out. While it adds, it asks the
    /// second-level cache for the rows in `next`. False, and nothing is done, where the processor or the length is none that
    /// it is made for.
    #[inline]
    pub fn add_rows(&self, sums: &mut [u8], which: &[[u8; 4]], next: &[[u8; 4]]) -> bool {
        let rows = (8 * self.len).checked_div(sums.len()).unwrap_or(0);
        // SAFETY: so many rows lie within the words.
        unsafe { copy::add_rows(self.start, rows.try_into().unwrap_or(u32::MAX), sums, which, next) }
    }

    /// Asks the second-level cache for bytes from `at` on: more may be under way to it than to the first. A hint: what lies
    /// outside does no harm.
    #[inline]
    pub fn prefetch(&self, at: usize, len: usize) {
        if len > 0 && at < 8 * self.len {
            copy::prefetch_bytes_near(self.start.wrapping_add(at), len);
        }
    }

    /// These words as runs of `len` each.
    #[inline(always)]
    pub fn runs(&self, len: usize) -> Runs<'a> {
        Runs { start: self.start, len, count: self.len.checked_div(len).unwrap_or(0), region: self.region }
    }

    /// Part of these words: `len` from `from` on, or as many as there are.
    #[inline(always)]
    pub fn part(&self, from: usize, len: usize) -> Self {
        let from = from.min(self.len);
        Words { start: self.start.wrapping_add(8 * from), len: len.min(self.len - from), region: self.region }
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
        // Halves, without a branch that nobody foretells.
        let (mut rank, mut left) = (0, count);
        while left > 0 {
            let half = left.div_ceil(2);
            rank += half * usize::from(self.get(from + rank + half - 1) <= most);
            left -= half;
        }
        rank
    }
}

/// Runs of [`Words`], one behind the other and all of one length.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    start: *mut u8,
    len: usize,
    count: usize,
    region: std::marker::PhantomData<&'a crate::Region>,
}

impl<'a> Runs<'a> {
    /// The run at an index.
    #[inline(always)]
    pub fn get(&self, at: usize) -> Option<Words<'a>> {
        let start = self.start.wrapping_add(8 * self.len * at);
        (at < self.count).then_some(Words { start, len: self.len, region: self.region })
    }
}

/// [`Words`] that may be written too. Whoever sees what one store brought sees what came before it as well. Made by
/// [`Region::view_mut`](crate::Region::view_mut).
pub struct WordsMut<'a>(Words<'a>);

impl WordsMut<'_> {
    /// # Safety
    /// As for [`Words::new`], and the words may be written.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        // SAFETY: the caller's promise.
        WordsMut(unsafe { Words::new(start, len) })
    }

    /// The word at an index, if there is one.
    #[inline(always)]
    fn at(&self, at: usize) -> Option<&AtomicU64> {
        // SAFETY: it lies within the words.
        (at < self.0.len).then(|| unsafe { copy::word(self.0.start.wrapping_add(8 * at)) })
    }

    /// Stores a word, little-endian in memory; nothing outside.
    #[inline(always)]
    pub fn set(&self, at: usize, value: u64) {
        if let Some(word) = self.at(at) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Moves `count` words from `from` on one up, the last one first; what would go outside is lost.
    #[inline]
    pub fn shift(&self, from: usize, count: usize) {
        for at in (from..from + count).rev() {
            self.set(at + 1, self.0.get(at));
        }
    }

    /// Stores `new` in place of `expect`; false if the word is another, or outside.
    #[inline]
    pub fn compare_swap(&self, at: usize, expect: u64, new: u64) -> bool {
        let swap = |word: &AtomicU64| {
            word.compare_exchange(expect.to_le(), new.to_le(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        self.at(at).is_some_and(swap)
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
        let step = if cfg!(miri) { 21 } else { 1 };
        for from in (0..64).step_by(step) {
            for count in (0..=65 - from).step_by(step) {
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
        let mut out = [0; 48];
        view.pairs(62, 1, &mut out);
        assert_eq!(
            out[..],
            bytes_of(&[words[63], words[2], words[64], words[3], 0, words[4]]),
            "nothing comes from outside"
        );
        assert!(region.view(8, 65 * 8).is_none() && region.view(4, 8).is_none());

        assert!(region.view_mut(8, 65 * 8).is_none() && region.view_mut(4, 8).is_none());
        let cells = region.view_mut(8, 64 * 8).unwrap();
        assert!(!cells.compare_swap(3, 41, 7) && cells.compare_swap(3, 40, 7) && !cells.compare_swap(64, 0, 7));
        cells.shift(61, 2);
        cells.shift(63, 1);
        cells.set(2, 0x0102);
        cells.set(64, 9);
        let left: Vec<u64> = [0, 1, 2, 3, 4, 60, 61, 62, 63].map(|at| view.get(at)).to_vec();
        assert_eq!(left, [10, 20, 0x0102, 7, 50, 610, 620, 620, 630]);
        let runs = view.runs(31);
        let first = |at| runs.get(at).map(|run| (run.bytes(), run.first::<2>()));
        assert_eq!((first(0), first(1)), (Some((248, [10, 20])), Some((248, [320, 330]))));
        assert!(first(2).is_none() && view.runs(0).get(0).is_none() && view.runs(65).get(0).is_none());
        assert_eq!(view.part(62, 9).first::<3>(), [0; 3], "not all are there");
        assert_eq!((view.part(62, 9).bytes(), view.part(65, 1).bytes()), (16, 0));
        assert_eq!(view.part(62, 9).get(1), 630);
        let mut all = vec![0; 65 * 8];
        buffer.read(0, &mut all).unwrap();
        assert_eq!((all[..8].to_vec(), &all[24..26]), (bytes_of(&[0]), &[2, 1][..]), "nothing outside, little-endian");
    }

    #[test]
    fn rows_are_added_in_their_order_and_none_outside() {
        const ROWS: usize = 20;
        let registry = Registry::new([1; 32]);
        for (dim, skew) in [(16, 0), (32, 8), (64, 24), (128, 0), (256, 8), (24, 0), (0, 0)] {
            let number = |row: usize, column: usize| (row * 37 + column) as f32 * 0.1;
            let bytes = (0..ROWS).flat_map(|row| (0..dim).flat_map(move |column| number(row, column).to_le_bytes()));
            let bytes: Vec<u8> = std::iter::repeat_n(0xff, skew).chain(bytes).chain([0xff; 64]).collect();
            let buffer = Buffer::from_boxed(bytes.into());
            let pd = registry.alloc_pd();
            let region = registry.register(pd, &buffer, 0, buffer.len(), Some(0), Access::all()).unwrap();
            let view = region.view(skew as u64, ROWS * dim * 4).unwrap();
            let which: Vec<[u8; 4]> = [3u32, 19, 0, 20, 3, u32::MAX, 7].iter().map(|row| row.to_le_bytes()).collect();
            let mut sums: Vec<u8> = (0..dim).flat_map(|column| (column as f32).to_le_bytes()).collect();
            let before = sums.clone();
            if !view.add_rows(&mut sums, &which, &which[2..]) {
                assert_eq!(sums, before, "nothing is done");
                continue;
            }
            let expected: Vec<u8> = (0..dim)
                .flat_map(|column| {
                    let rows = [3, 19, 0, 3, 7];
                    rows.iter().fold(column as f32, |sum, &row| sum + number(row, column)).to_le_bytes()
                })
                .collect();
            assert_eq!(sums, expected, "{dim} numbers a row");
        }
    }
}
