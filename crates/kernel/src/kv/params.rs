//! Parameters of the store's kernels.

use super::item::{LONGEST_KEY, LONGEST_VALUE};
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
    /// Log2 of the number of buckets, those of overflow apart.
    pub lg_buckets: u8,
}

/// Parameters: `base` u64, `hash` u64, `key` u32, `lg_buckets` u8, flags u8 (bit 0: the pair lies in a block), length of
/// the key u16, length of the value u32, 4 bytes of zeros; then the key, and the value or, for a block, its offset u64 and
/// the pair's checksum u64.
/// The reply of a GET is the value, that of a reservation the block's offset u64; others have none.
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
        let KvRef { base, key, lg_buckets } = self.store;
        out.extend_from_slice(&base.to_le_bytes());
        out.extend_from_slice(&self.hash.to_le_bytes());
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&[lg_buckets, u8::from(matches!(self.value, KvValue::Block(..)))]);
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.value_len.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
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
        if lg_buckets > 36 || key_len > LONGEST_KEY || value_len as usize > LONGEST_VALUE {
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
        let store = KvRef { base: u64_at(0), key: u32_at(16), lg_buckets };
        Ok(Self { store, hash: u64_at(8), key, value_len, value })
    }
}
