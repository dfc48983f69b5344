//! Parameters of the store's kernels.

use super::item::{LONGEST_KEY, LONGEST_VALUE};
use super::table::{BUCKET_BYTES, HEADER_BYTES};
use crate::call::Status;

/// Bytes in front of the key.
const FRONT: usize = 32;

/// Where a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvRef {
    /// Address of its first byte.
    pub base: u64,
    /// Key of its region.
    pub key: u32,
    /// The buckets that its caller knows of: if there are others by now, the way there is one access more.
    pub table: Table,
}

impl KvRef {
    /// A store with the buckets that it was made with, 2 to the power of `lg_buckets`.
    pub const fn new(base: u64, key: u32, lg_buckets: u8) -> Self {
        Self { base, key, table: Table::first(lg_buckets) }
    }
}

/// A table of buckets, those of overflow apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Log2 of their number.
    pub lg_buckets: u8,
    /// Where it begins in the store, in units of [`HEADER_BYTES`].
    pub place: u32,
}

impl Table {
    /// Log2 of the most buckets of a table.
    pub const MOST: u8 = 36;

    /// The one that a store is made with, behind its header.
    pub const fn first(lg_buckets: u8) -> Self {
        Self { lg_buckets, place: 1 }
    }

    /// It as a word of 40 bits: the number's logarithm, and above it the place.
    pub const fn word(self) -> u64 {
        (self.place as u64) << 8 | self.lg_buckets as u64
    }

    /// What a word says; `None` if it is no table's.
    pub fn from_word(word: u64) -> Option<Self> {
        let table = Self { lg_buckets: word as u8, place: u32::try_from(word >> 8).ok()? };
        (table.lg_buckets <= Self::MOST && table.place > 0).then_some(table)
    }

    /// Bytes that its buckets take.
    pub const fn bytes(self) -> u64 {
        (BUCKET_BYTES as u64) << self.lg_buckets
    }

    /// The offset of a bucket.
    pub(super) fn at(self, index: u64) -> u64 {
        u64::from(self.place) * HEADER_BYTES + index * BUCKET_BYTES as u64
    }

    /// Which bucket a hash's chain begins with: bits from 47 on down, so that buckets that take the place of one lie
    /// side by side. Those above are in entries.
    pub(super) fn index(self, hash: u64) -> u64 {
        (hash << 16).checked_shr(64 - u32::from(self.lg_buckets)).unwrap_or(0)
    }

    /// Its offset.
    pub(super) fn bucket(self, hash: u64) -> u64 {
        self.at(self.index(hash))
    }
}

/// Parameters: `base` u64, `hash` u64, `key` u32, `lg_buckets` u8, flags u8 (bit 0: the pair lies in a block), length of
/// the key u16, length of the value u32, the table's place u32 (0: the first one's); then the key, and the value or,
/// for a block, its offset u64 and the pair's checksum u64. The reply of a GET is the value, that of a reservation the
/// block's offset u64; others have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvParams<'a> {
    /// The store.
    pub store: KvRef,
    /// The key's [hash](super::hash), with the store's seed.
    pub hash: u64,
    /// The key.
    pub key: &'a [u8],
    /// Bytes of the value.
    pub value_len: u32,
    /// The value, or where a pair lies that was written to a reserved block. A GET has none.
    pub value: KvValue<'a>,
}

/// What is to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvValue<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// What lies in the block at this offset, and its checksum, which the block has not yet: see [`pair`](super::pair). A
    /// release needs none.
    Block(u64, u64),
}

impl<'a> KvParams<'a> {
    /// Bytes in front of the key.
    pub const LEN: usize = FRONT;

    /// For a key alone.
    pub fn of_key(store: KvRef, hash: u64, key: &'a [u8]) -> Self {
        Self::new(store, hash, key, &[])
    }

    /// For a pair.
    pub fn new(store: KvRef, hash: u64, key: &'a [u8], value: &'a [u8]) -> Self {
        Self { store, hash, key, value_len: value.len() as u32, value: KvValue::Bytes(value) }
    }

    /// Appends the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let KvRef { base, key, table: Table { lg_buckets, place } } = self.store;
        out.extend_from_slice(&base.to_le_bytes());
        out.extend_from_slice(&self.hash.to_le_bytes());
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&[lg_buckets, u8::from(matches!(self.value, KvValue::Block(..)))]);
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.value_len.to_le_bytes());
        out.extend_from_slice(&place.to_le_bytes());
        out.extend_from_slice(self.key);
        match self.value {
            KvValue::Bytes(bytes) => out.extend_from_slice(bytes),
            KvValue::Block(offset, sum) => out.extend([offset, sum].iter().flat_map(|word| word.to_le_bytes())),
        }
    }

    /// Whether parameters, if they are such, name a block.
    #[inline]
    pub fn are_of_block(bytes: &[u8]) -> bool {
        bytes.get(21).is_some_and(|flags| flags & 1 != 0)
    }

    /// From bytes. `with_value` says whether a value stands behind the key.
    #[inline]
    pub fn decode(bytes: &'a [u8], with_value: bool) -> Result<Self, Status> {
        let (front, rest) = bytes.split_first_chunk::<FRONT>().ok_or(Status::BadParams)?;
        let u64_at = |at: usize| front[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let u32_at = |at: usize| front[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let key_len = usize::from(u16::from_le_bytes([front[22], front[23]]));
        let (lg_buckets, value_len) = (front[20], u32_at(24));
        if lg_buckets > Table::MOST || key_len > LONGEST_KEY || value_len as usize > LONGEST_VALUE {
            return Err(Status::BadParams);
        }
        let (key, value) = rest.split_at_checked(key_len).ok_or(Status::BadParams)?;
        let value = match Self::are_of_block(front) {
            true => {
                let ([offset, sum], []) = value.as_chunks() else { return Err(Status::BadParams) };
                KvValue::Block(u64::from_le_bytes(*offset), u64::from_le_bytes(*sum))
            }
            false if with_value && value.len() != value_len as usize => return Err(Status::BadParams),
            false => KvValue::Bytes(value),
        };
        let table = Table { lg_buckets, place: u32_at(28).max(1) };
        let store = KvRef { base: u64_at(0), key: u32_at(16), table };
        Ok(Self { store, hash: u64_at(8), key, value_len, value })
    }
}
