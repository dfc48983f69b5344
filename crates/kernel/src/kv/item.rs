//! A pair as it lies in its block: a word with both lengths, key, value, zeros to the end of a word, checksum.

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

/// A pair, as it lies in its block.
pub fn pair(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(key, value, &mut out);
    out
}

/// Replaces what is in `out` by a pair.
pub(super) fn encode(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&front(key.len(), value.len()).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    out.resize(item_len(key.len(), value.len()) - 8, 0);
    let sum = checksum(out);
    out.extend_from_slice(&sum.to_le_bytes());
}

fn front(key: usize, value: usize) -> u64 {
    key as u64 | (value as u64) << 32
}

/// What bytes of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A pair with this key: its checksum, where that is, and where the value is.
    Whole { sum: u64, sum_at: usize, value_at: usize, value_len: usize },
    /// A pair with another key.
    Other,
    /// No pair, or one that is being written.
    Torn,
}

/// Looks at a block for the pair with this key.
#[inline]
pub(super) fn parse(block: &[u8], key: &[u8]) -> Item {
    let word = |at: usize| block.get(at..at + 8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let Some(front) = word(0) else { return Item::Torn };
    let (key_len, value_len) = (front as u32 as usize, (front >> 32) as usize);
    if key_len > LONGEST_KEY || value_len > LONGEST_VALUE {
        return Item::Torn;
    }
    let sum_at = item_len(key_len, value_len) - 8;
    let Some(sum) = word(sum_at) else { return Item::Torn };
    if sum != checksum(&block[..sum_at]) {
        return Item::Torn;
    }
    match block[8..8 + key_len] == *key {
        true => Item::Whole { sum, sum_at, value_at: 8 + key_len, value_len },
        false => Item::Other,
    }
}

/// Of whole words.
fn checksum(words: &[u8]) -> u64 {
    match hash(words, 0x6b76) {
        LOCKED => LOCKED >> 1,
        sum => sum,
    }
}

/// A hash of all bytes and their number: words folded by multiplication. Whoever does not know the seed does not know
/// which keys come together.
#[inline]
pub fn hash(bytes: &[u8], seed: u64) -> u64 {
    let mut state = seed ^ (bytes.len() as u64).wrapping_mul(ODD);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word));
    }
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
