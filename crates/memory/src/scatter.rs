//! Spreading words over many places of a region, each filled from its front: radix partitioning.
//!
//! By default each word is stored where it belongs at once, and the first-level cache combines what is written to a
//! line: 256 places have 16 KB of lines under way. What that would cost, a line read from memory before its first word
//! is stored, is hidden by asking for the lines that come next, one place after the other.
//!
//! Where the processor writes whole lines past its caches without holding up the stores that follow, many places of
//! much memory gather runs of words in a buffer first ([`Gathered`]): a line that is written so is not read. Which way
//! is quicker differs by the maker ([`copy::streams_well`]).

use crate::copy;
use crate::lookahead::Lookahead;
use crate::region::{AccessError, Region};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a word.
const WORD: u64 = 8;
/// Words of a line.
const LINE: usize = 8;
/// Words between two looks ahead, each at the next place in turn: a place gets about so many until its turn is back. A
/// constant number, so that the compiler unrolls the loop over them.
const BLOCK: usize = 16;
/// Lines of words in a block.
const BLOCK_LINES: usize = BLOCK / LINE;
/// Lines of a place that a look ahead asks for: those that it will need by then, and one as some get more than others.
const LINES_AHEAD: usize = BLOCK_LINES + 1;
/// Bytes that input is asked for ahead.
const INPUT_AHEAD: usize = 4096;
/// So many values, and one for each place, are worth a look at all places for the least room: fewer are checked one by
/// one.
const LEAST_LOOK: usize = 64;
/// Places above which gathering pays: the lines of so few stay in the first-level cache whatever else happens.
const FEW: usize = 32;
/// Bytes from which on it pays: less stays in the caches anyway.
const MUCH: u64 = 1 << 20;

/// Places in a region, and how far each is filled.
pub struct Scatter {
    region: Arc<Region>,
    /// The lowest address.
    base: u64,
    /// Words from the line's start in memory to that address: where the words of `next` and `ends` count from.
    skew: u32,
    /// Where the next word of each place goes. A power of two of them.
    next: Box<[u32]>,
    /// Where there is no more room.
    ends: Box<[u32]>,
    /// Bytes from `base` to the last of those.
    bytes: u64,
    /// The place whose lines are asked for next.
    turn: usize,
    /// Values for which every place has room.
    sure: usize,
    gathered: Option<Gathered>,
    lookahead: Arc<Lookahead>,
}

impl Scatter {
    /// Over a power of two of places: address and room in words of each. `None` unless they are aligned words, all in
    /// the region, no further apart than 32 GB and in a single run of memory: for others there is [`Region::write`].
    /// Rights are the caller's to check.
    pub fn new(region: Arc<Region>, places: &[(u64, u32)]) -> Option<Scatter> {
        let mut scatter = Scatter::at_once(region, places)?;
        if places.len() > FEW && scatter.bytes >= MUCH && copy::streams_well() {
            scatter.gathered = Some(Gathered::new(&scatter.next));
        }
        Some(scatter)
    }

    fn at_once(region: Arc<Region>, places: &[(u64, u32)]) -> Option<Scatter> {
        if !places.len().is_power_of_two() {
            return None;
        }
        let base = places.iter().map(|(va, _)| *va).min()?;
        let word_of = |va: u64| u32::try_from((va - base) / WORD).ok().filter(|_| (va - base).is_multiple_of(WORD));
        let next: Option<Box<[u32]>> = places.iter().map(|(va, _)| word_of(*va)).collect();
        let mut next = next?;
        let ends: Option<Box<[u32]>> = next.iter().zip(places).map(|(next, place)| next.checked_add(place.1)).collect();
        let mut ends = ends?;
        let last = *ends.iter().max()?;
        let bytes = WORD * u64::from(last);
        let skew = (region.words(base, bytes).ok()??.addr() / WORD as usize % LINE) as u32;
        last.checked_add(skew)?;
        next.iter_mut().chain(&mut ends).for_each(|word| *word += skew);
        Some(Scatter {
            region,
            base,
            skew,
            next,
            ends,
            bytes,
            turn: 0,
            sure: 0,
            gathered: None,
            lookahead: Arc::default(),
        })
    }

    /// Asks for what comes next while it stores: as many bytes as it is given.
    pub fn look_ahead(&mut self, lookahead: Arc<Lookahead>) {
        self.lookahead = lookahead;
    }

    /// Stores each value at the place that its low bits name. They are 8 bytes each, little-endian. Some may wait for
    /// more of their place until [`finish`](Self::finish).
    ///
    /// False if a place has no room for its values: which ones were stored is not said then, but none outside the
    /// places.
    pub fn put(&mut self, values: &[[u8; 8]]) -> Result<bool, AccessError> {
        self.spread::<false>(values, &[])
    }

    /// Stores each value at the place that the low bits of its name in `names` give; otherwise as [`put`](Self::put).
    pub fn put_named(&mut self, values: &[[u8; 8]], names: &[u64]) -> Result<bool, AccessError> {
        let count = values.len().min(names.len());
        self.spread::<true>(&values[..count], &names[..count])
    }

    /// Stores what waits. Whatever this thread does next is seen after all that was stored. False as for
    /// [`put`](Self::put).
    pub fn finish(mut self) -> Result<bool, AccessError> {
        let Some(gathered) = &self.gathered else { return Ok(true) };
        let base = self.start()?;
        let mut places = self.next.iter_mut().zip(&self.ends).enumerate();
        // SAFETY: `start` leads to the words up to the last of the ends.
        let whole = places.all(|(at, (next, end))| unsafe { gathered.write_rest(at, base, next, *end) });
        copy::stream_fence();
        Ok(whole)
    }

    /// Where words count from, in memory: those from `skew` up to the last of the ends are there.
    fn start(&self) -> Result<*mut u8, AccessError> {
        let base = self.region.words(self.base, self.bytes)?.ok_or(AccessError::OutOfBounds)?;
        Ok(base.wrapping_sub(WORD as usize * self.skew as usize))
    }

    /// To places that values name themselves, or, if `NAMED`, as many names.
    #[inline(always)]
    fn spread<const NAMED: bool>(&mut self, values: &[[u8; 8]], names: &[u64]) -> Result<bool, AccessError> {
        let base = self.start()?;
        if let Some(gathered) = &mut self.gathered {
            // SAFETY: `at` counts the values, of which there are as many names.
            let name = |at: usize, value: &[u8; 8]| unsafe { name_of::<NAMED>(at, value, names) };
            // SAFETY: as in `finish`.
            return Ok(unsafe { gathered.spread(values, name, base, &mut self.next, &self.ends) });
        }
        let mut loops = AtOnce { base, next: &mut self.next, ends: &self.ends, turn: self.turn };
        let worth = loops.next.len().max(LEAST_LOOK);
        let (mut values, mut names, mut whole) = (values, names, true);
        while whole && !values.is_empty() {
            let some = values.len().min(worth);
            if self.sure < some && some == worth {
                self.sure = loops.least_room();
            }
            let sure = self.sure >= some;
            let now = values.split_at(if sure { values.len().min(self.sure) } else { some });
            let now_names = names.split_at(if NAMED { now.0.len() } else { 0 });
            self.sure = self.sure.saturating_sub(now.0.len());
            let input = self.lookahead.take_lines(now.0.len() / BLOCK * BLOCK_LINES);
            // SAFETY: as in `finish`. Each place has room for as many values if that is sure.
            whole = unsafe {
                match sure {
                    true => loops.spread::<false, NAMED>(now.0, now_names.0, input),
                    false => loops.spread::<true, NAMED>(now.0, now_names.0, input),
                }
            };
            (values, names) = (now.1, now_names.1);
        }
        self.turn = loops.turn;
        Ok(whole)
    }
}

/// What names a value's place.
///
/// # Safety
/// If `NAMED`, `at` is an index of `names`.
#[inline(always)]
unsafe fn name_of<const NAMED: bool>(at: usize, value: &[u8; 8], names: &[u64]) -> u64 {
    // SAFETY: as the caller promises.
    if NAMED { unsafe { *names.get_unchecked(at) } } else { u64::from_le_bytes(*value) }
}

/// Values on their way to memory, each at once.
struct AtOnce<'a> {
    base: *mut u8,
    next: &'a mut [u32],
    ends: &'a [u32],
    turn: usize,
}

impl AtOnce<'_> {
    /// Values for which there is room wherever they go.
    fn least_room(&self) -> usize {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if std::is_x86_feature_detected!("avx2") {
            #[target_feature(enable = "avx2")]
            fn wide(ends: &[u32], next: &[u32]) -> u32 {
                least_between(ends, next)
            }
            // SAFETY: the processor has the instructions.
            return unsafe { wide(self.ends, self.next) } as usize;
        }
        least_between(self.ends, self.next) as usize
    }

    /// Stores values, and asks for as many lines of input: of its own, ahead, unless it is told of another. False if a
    /// place has no room; those before are stored then.
    ///
    /// A function of its own: beside other code the compiler runs out of registers, and what it keeps on the stack
    /// costs a fifth of the time.
    ///
    /// # Safety
    /// `base` and words below `ends` lead to words that meet the contract of [`copy::word`], and there are as many of
    /// `next` and `ends`, a power of two. Unless `CHECKED`, each place has room for all values. If `NAMED`, there are
    /// as many names as values.
    #[inline(never)]
    unsafe fn spread<const CHECKED: bool, const NAMED: bool>(
        &mut self,
        values: &[[u8; 8]],
        names: &[u64],
        input: Option<*const u8>,
    ) -> bool {
        let AtOnce { base, next, ends, turn: first } = self;
        let (base, next, ends, mut turn) = (*base, &mut next[..], &ends[..], *first);
        let mask = next.len() - 1;
        let at_word = |word: u32| base.wrapping_add(WORD as usize * word as usize);
        // Nothing is stored but below one of the ends.
        let put = |index: usize, value: &[u8; 8], next: &mut [u32]| {
            // SAFETY: `index` counts the values. `mask` is the last index of both. A word below its place's end is
            // there, as the caller promises.
            unsafe {
                let at = name_of::<NAMED>(index, value, names) as usize & mask;
                let next = next.get_unchecked_mut(at);
                let fits = !CHECKED || *next < *ends.get_unchecked(at);
                if fits {
                    copy::word(at_word(*next)).store(u64::from_ne_bytes(*value), Ordering::Release);
                    *next += 1;
                }
                fits
            }
        };
        let (blocks, rest) = values.as_chunks::<BLOCK>();
        let input = input.unwrap_or(values.as_ptr().cast::<u8>().wrapping_add(INPUT_AHEAD));
        for (block, values) in blocks.iter().enumerate() {
            let ahead = at_word(next[turn & mask]);
            turn += 1;
            copy::prefetch_lines(ahead.wrapping_add(64), LINES_AHEAD);
            copy::prefetch_near(input.wrapping_add(block * BLOCK * WORD as usize), BLOCK_LINES);
            for (i, value) in values.iter().enumerate() {
                if !put(block * BLOCK + i, value, next) {
                    return false;
                }
            }
        }
        *first = turn;
        let done = values.len() - rest.len();
        rest.iter().enumerate().all(|(i, value)| put(done + i, value, next))
    }
}

/// The least distance from one of `next` to its end.
#[inline(always)]
fn least_between(ends: &[u32], next: &[u32]) -> u32 {
    ends.iter().zip(next).fold(u32::MAX, |least, (end, next)| least.min(end - next))
}

/// Values that wait until they are a run of whole lines of their place.
struct Gathered {
    /// Runs of one place after the other, from `start` on, which is a line's start.
    values: Box<[[u8; 8]]>,
    start: usize,
    /// Where among them the next value of each place goes: as far into its run as its word in memory.
    fill: Box<[u32]>,
    /// Values of a run, a power of two. Longer ones have a core mispredict less often that one is full.
    run: usize,
}

/// Values that wait at most: 128 KB, which the second-level cache holds beside what else passes by.
const WAITING: usize = 16 << 10;
/// Values of a run at most.
const LONGEST: usize = 64;

impl Gathered {
    /// For places whose next words these are.
    fn new(next: &[u32]) -> Gathered {
        let run = (WAITING / next.len()).next_power_of_two().clamp(LINE, LONGEST);
        let values = vec![[0; 8]; next.len() * run + LINE].into_boxed_slice();
        let start = values.as_ptr().align_offset(LINE * WORD as usize).min(LINE);
        let fill = next.iter().enumerate().map(|(at, word)| (at * run) as u32 + word % run as u32).collect();
        Gathered { values, start, fill, run }
    }

    /// Puts values to those of their places, and writes the runs that are whole. False if a place has no room.
    ///
    /// # Safety
    /// `base` and words below `ends` lead to words that meet the contract of [`copy::store`], and there are as many of
    /// `next` and `ends` as of `fill`, a power of two.
    #[inline(always)]
    unsafe fn spread(
        &mut self,
        values: &[[u8; 8]],
        name: impl Fn(usize, &[u8; 8]) -> u64,
        base: *mut u8,
        next: &mut [u32],
        ends: &[u32],
    ) -> bool {
        let Gathered { values: slots, start, fill, run } = self;
        let (slots, fill) = (&mut slots[*start..], &mut fill[..]);
        let (mask, last) = (fill.len() - 1, *run - 1);
        let mut put = |index: usize, value: &[u8; 8]| {
            let at = name(index, value) as usize & mask;
            // SAFETY: `mask` is the last index of all three. `fill` stays within its place's run, and `slots` has all
            // runs.
            unsafe {
                let fill = fill.get_unchecked_mut(at);
                let slot = *fill as usize;
                *slots.get_unchecked_mut(slot) = *value;
                *fill = slot as u32 + 1;
                if slot & last != last {
                    return true;
                }
                let next = next.get_unchecked_mut(at);
                // Of the first run a part may be before the place.
                let first = slot - last + (*next as usize & last);
                let fits = write(&slots[first..=slot], base, next, *ends.get_unchecked(at));
                *fill = (slot - last + (*next as usize & last)) as u32;
                fits
            }
        };
        let (blocks, rest) = values.as_chunks::<LINE>();
        for (block, values) in blocks.iter().enumerate() {
            copy::prefetch_lines(values.as_ptr().cast::<u8>().wrapping_add(INPUT_AHEAD), 1);
            for (i, value) in values.iter().enumerate() {
                if !put(block * LINE + i, value) {
                    return false;
                }
            }
        }
        let first = values.len() - rest.len();
        rest.iter().enumerate().all(|(i, value)| put(first + i, value))
    }

    /// Writes what waits for a place, the first value to the word `next`. False if there is no room.
    ///
    /// # Safety
    /// As for [`spread`](Self::spread).
    unsafe fn write_rest(&self, at: usize, base: *mut u8, next: &mut u32, end: u32) -> bool {
        let first = at * self.run + *next as usize % self.run;
        let values = &self.values[self.start..][first..self.fill[at] as usize];
        // SAFETY: as the caller promises.
        unsafe { write(values, base, next, end) }
    }
}

/// Writes values to the words from `next` on, and moves that on. False, and nothing is written, if they go beyond
/// `end`.
///
/// # Safety
/// `base` and words below `end` lead to words that meet the contract of [`copy::store`]. `base` is a line's start.
#[inline]
unsafe fn write(values: &[[u8; 8]], base: *mut u8, next: &mut u32, end: u32) -> bool {
    if (end - *next) < values.len() as u32 {
        return false;
    }
    let to = base.wrapping_add(WORD as usize * *next as usize);
    *next += values.len() as u32;
    // SAFETY: the words are below the end; lines are streamed only if they are whole.
    unsafe {
        if to.addr().is_multiple_of(LINE * WORD as usize) && values.len().is_multiple_of(LINE) {
            copy::stream(to, values.as_flattened());
        } else {
            copy::store(to, values.as_flattened());
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Buffer, Registry};
    use proptest::prelude::*;

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
        assert_eq!(scatter.put(&bytes([2, 1, 4])), Ok(true));
        assert_eq!(scatter.put_named(&bytes([6, 8, 3, 5, 10]), &[0, 0, 1, 1, 1]), Ok(false), "the fourth for place 1");
        assert_eq!(words(&region, 0x1100, 6), [2, 4, 6, 8, 0, 0]);
        assert_eq!(words(&region, 0x1000, 5), [0, 1, 3, 5, 0]);
        assert_eq!(scatter.put(&[]), Ok(true));
        assert_eq!(scatter.finish(), Ok(true));
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
        assert_eq!(scatter.put(&bytes([1])), Ok(true));
        registry.deregister(region.key()).unwrap();
        assert_eq!(scatter.put(&bytes([2])), Err(AccessError::Revoked));
    }

    proptest! {
        /// Values that are stored at once lie in their places in order, those before the first without room, and
        /// nothing else is touched, also where many come to few places and to full ones.
        #[test]
        fn values_stored_at_once_lie_in_order(
            seed: u64, count in 0usize..1500, bits in 0u32..5, room in 0u32..400, pieces in 1usize..1000, named: bool,
        ) {
            let (_registry, region) = region(0, 8 << 13);
            let place = |i| (0x1008 + i * (8 * u64::from(room) + 8), room);
            let places: Vec<(u64, u32)> = (0..1 << bits).map(place).collect();
            let mut scatter = Scatter::at_once(region.clone(), &places).unwrap();
            let value = |i: u64| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) | 1 << 63;
            let values: Vec<u64> = (0..count as u64).map(value).collect();
            let names: Vec<u64> = values.iter().map(|value| if named { value >> 7 } else { *value }).collect();
            let (mut expect, mut filled) = (vec![0; 1 << 13], vec![0; 1 << bits]);
            let mut fits = true;
            for (value, name) in values.iter().zip(&names) {
                let at = *name as usize & ((1 << bits) - 1);
                fits = fits && filled[at] < room;
                if fits {
                    expect[(places[at].0 as usize - 0x1000) / 8 + filled[at] as usize] = *value;
                    filled[at] += 1;
                }
            }
            let stored = bytes(values).chunks(pieces).zip(names.chunks(pieces)).all(|(values, names)| match named {
                true => scatter.put_named(values, names).unwrap(),
                false => scatter.put(values).unwrap(),
            });
            prop_assert_eq!(stored, fits);
            prop_assert!(words(&region, 0x1000, 1 << 13) == expect);
        }

        /// Values that gather lie where those lie that are stored at once, and nothing else is touched.
        #[test]
        fn gathered_values_lie_as_those_stored_at_once(
            seed: u64, count in 0usize..1500, bits in 0u32..7, room in 0u32..200, offset in 0usize..8,
            pieces in 1usize..300,
        ) {
            let (_registry, one) = region(8 * offset, 8 << 14);
            let (_other, two) = region(8 * offset, 8 << 14);
            let place = |i| (0x1008 + i * (8 * u64::from(room) + 16), room);
            let places: Vec<(u64, u32)> = (0..1 << bits).map(place).collect();
            let mut at_once = Scatter::at_once(one.clone(), &places).unwrap();
            let mut gathers = Scatter::at_once(two.clone(), &places).unwrap();
            gathers.gathered = Some(Gathered::new(&gathers.next));
            let mixed = |i: u64| (i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            let values = bytes((0..count as u64).map(mixed));
            let all = at_once.put(&values).unwrap();
            let mut gathered = values.chunks(pieces).all(|values| gathers.put(values).unwrap());
            gathered &= gathers.finish().unwrap();
            prop_assert_eq!(gathered, all);
            let outside = |seen: &[u64]| {
                let mut seen = seen.to_vec();
                for (va, room) in &places {
                    seen[(*va as usize - 0x1000) / 8..][..*room as usize].fill(0);
                }
                seen
            };
            let (one, two) = (words(&one, 0x1000, 1 << 14), words(&two, 0x1000, 1 << 14));
            prop_assert_eq!(outside(&two), outside(&one));
            if all {
                prop_assert!(one == two);
            }
        }
    }
}
