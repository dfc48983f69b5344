//! A pair as it lies in its block: a word with both lengths, key, value, zeros to the end of a word, checksum.

use std::ops::Range;

/// In place of a checksum: somebody writes the pair, or it is no more.
pub const LOCKED: u64 = u64::MAX;
/// Bytes of a key at most.
pub const LONGEST_KEY: usize = 4096;
/// Bytes of a value at most.
pub const LONGEST_VALUE: usize = 1 << 20;

/// Bytes of a pair.
pub const fn item_len(key: usize, value: usize) -> usize {
    8 + (key + value).next_multiple_of(8) + 8
}

/// A pair as its caller writes it to a reserved block, and the checksum that its PUT brings in place of [`LOCKED`]: nobody who
/// looks at the block by an old entry is to find what is not put yet.
pub fn pair(key: &[u8], value: &[u8]) -> (Vec<u8>, u64) {
    let mut out = Vec::new();
    encode(key, value, &mut out);
    let sum = lock(&mut out);
    (out, u64::from_le_bytes(sum))
}

/// Puts [`LOCKED`] in place of a pair's checksum, which it returns.
pub(super) fn lock(pair: &mut [u8]) -> [u8; 8] {
    pair.last_chunk_mut().map_or([0; 8], |sum| std::mem::replace(sum, LOCKED.to_le_bytes()))
}

/// Replaces what is in `out` by a pair.
pub(super) fn encode(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&front(key.len(), value.len()).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    out.resize(item_len(key.len(), value.len()) - 8, 0);
    let sum = Checksum::of(out);
    out.extend_from_slice(&sum.to_le_bytes());
}

fn front(key: usize, value: usize) -> u64 {
    key as u64 | (value as u64) << 32
}

/// What the first bytes of a block are: as many as its key has, and the word in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// Those of a pair with this key: where its value is, and its checksum.
    Its { value_at: usize, value_len: usize, sum_at: usize },
    /// Those of a pair with another key.
    Other,
    /// Of no pair, or of one that is being written.
    Torn,
}

/// Looks at the first bytes of a block for the pair with this key.
#[inline]
pub(super) fn front_of(block: &[u8], key: &[u8]) -> Front {
    let Some((front, rest)) = block.split_first_chunk() else { return Front::Torn };
    let front = u64::from_le_bytes(*front);
    let (key_len, value_len) = (front as u32 as usize, (front >> 32) as usize);
    if key_len > LONGEST_KEY || value_len > LONGEST_VALUE {
        return Front::Torn;
    }
    if key_len != key.len() {
        return Front::Other;
    }
    match rest.get(..key_len) {
        Some(found) if found == key => {
            Front::Its { value_at: 8 + key_len, value_len, sum_at: item_len(key_len, value_len) - 8 }
        }
        Some(_) => Front::Other,
        None => Front::Torn,
    }
}

/// The pair with a key that a block holds.
pub(super) struct Whole {
    pub value: Range<usize>,
    pub sum_at: usize,
    pub sum: u64,
}

impl Whole {
    /// `Err` if it is being written, or is another's.
    #[inline]
    pub fn of(block: &[u8], key: &[u8]) -> Result<Self, bool> {
        match front_of(block, key) {
            Front::Its { value_at, value_len, sum_at } => match word_at(block, sum_at) {
                Some(sum) if sum == Checksum::of(&block[..sum_at]) => {
                    Ok(Self { value: value_at..value_at + value_len, sum_at, sum })
                }
                _ => Err(true),
            },
            Front::Other => Err(false),
            Front::Torn => Err(true),
        }
    }
}

/// The word at a place of a block.
#[inline]
pub(super) fn word_at(block: &[u8], at: usize) -> Option<u64> {
    block.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// The checksum of a pair, of whole words that come one after the other.
pub(super) struct Checksum(u64);

impl Checksum {
    const SEED: u64 = 0x6b76;

    /// Of so many bytes.
    #[inline]
    pub fn new(len: usize) -> Self {
        Self(begin(len, Self::SEED))
    }

    #[inline]
    pub fn add(&mut self, words: &[u8]) {
        self.0 = add(self.0, words.as_chunks().0);
    }

    /// Never [`LOCKED`].
    #[inline]
    pub fn end(self) -> u64 {
        match end(self.0, &[], Self::SEED) {
            LOCKED => LOCKED >> 1,
            sum => sum,
        }
    }

    #[inline]
    pub fn of(words: &[u8]) -> u64 {
        let mut sum = Self::new(words.len());
        sum.add(words);
        sum.end()
    }
}

/// A hash of all bytes and their number: words folded by multiplication. Whoever does not know the seed does not know
/// which keys come together.
#[inline]
pub fn hash(bytes: &[u8], seed: u64) -> u64 {
    let (words, rest) = bytes.as_chunks();
    end(add(begin(bytes.len(), seed), words), rest, seed)
}

#[inline]
fn begin(len: usize, seed: u64) -> u64 {
    seed ^ (len as u64).wrapping_mul(ODD)
}

#[inline]
fn add(state: u64, words: &[[u8; 8]]) -> u64 {
    words.iter().fold(state, |state, word| fold(state ^ u64::from_le_bytes(*word)))
}

#[inline]
fn end(state: u64, rest: &[u8], seed: u64) -> u64 {
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(fold(state ^ u64::from_le_bytes(last)) ^ seed.rotate_left(32))
}

/// The fraction of the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Both halves of a product. What is 0 is not kept.
#[inline]
fn fold(word: u64) -> u64 {
    let product = u128::from(word ^ 0x2545_f491_4f6c_dd1d) * u128::from(ODD);
    (product as u64) ^ (product >> 64) as u64 ^ word.rotate_left(29)
}
