//! Tables whose keys are byte strings of any length.
//!
//! The hash table knows 64-bit keys only. A string's hash stands in for it there, and the string
//! itself at the front of the value, so that a look-up tells it from others with the same hash.
//! A record is the length of the key (`u32`, little-endian), the key, the value.

use crate::hash::{self, Layout, Table};
use remora_kernel::GetParams;

/// Bytes of the length in front of a record's key.
pub const LEN_BYTES: usize = 4;

/// Why a table cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// A key that occurs twice.
    #[error("key {:?} occurs twice", String::from_utf8_lossy(.0))]
    DuplicateKey(Vec<u8>),
    /// Two keys with one hash, of which a look-up would find only the first.
    #[error(
        "keys {:?} and {:?} have the same 64-bit hash; build the table with another seed",
        String::from_utf8_lossy(.0), String::from_utf8_lossy(.1)
    )]
    Collision(Vec<u8>, Vec<u8>),
    /// What the table underneath refuses.
    #[error(transparent)]
    Table(#[from] hash::TableError),
}

/// Collects the records of a table to be.
pub struct RecordsBuilder {
    table: hash::TableBuilder,
    seed: u64,
    record: Vec<u8>,
}

impl RecordsBuilder {
    /// No records yet. The seed goes into the hash of keys.
    pub fn new(seed: u64) -> RecordsBuilder {
        RecordsBuilder { table: hash::TableBuilder::new(seed), seed, record: Vec::new() }
    }

    /// Adds a record.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), RecordsError> {
        let len = u32::try_from(key.len()).map_err(|_| hash::TableError::ValueTooLong(key.len()))?;
        self.record.clear();
        self.record.extend_from_slice(&len.to_le_bytes());
        self.record.extend_from_slice(key);
        self.record.extend_from_slice(value);
        Ok(self.table.insert(hash_of(key, self.seed), &self.record)?)
    }

    /// Puts every record in its entry.
    pub fn build(mut self) -> Result<Layout, RecordsError> {
        self.table.take_layout().map_err(|error| match error {
            hash::TableError::DuplicateKey { first, second, .. } => self.same_hash(first, second),
            error => error.into(),
        })
    }

    fn same_hash(&self, first: usize, second: usize) -> RecordsError {
        let key = |i| split(self.table.value(i)).map_or(vec![], |(key, _)| key.to_vec());
        let (first, second) = (key(first), key(second));
        if first == second { RecordsError::DuplicateKey(first) } else { RecordsError::Collision(first, second) }
    }
}

/// Parameters of the GET kernel that look `key` up. Give the reply to [`value`].
pub fn get_params(table: &Table, key: &[u8]) -> GetParams {
    table.get_params(hash_of(key, table.seed()))
}

/// The value in the reply to a look-up of `key`; `None` if the reply is another key's.
pub fn value<'a>(reply: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    split(reply).filter(|(found, _)| *found == key).map(|(_, value)| value)
}

/// Key and value of a record.
fn split(record: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = record.split_first_chunk::<LEN_BYTES>()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

/// FNV-1a of 64 bits (Fowler, Noll and Vo) from a seeded start, mixed for its weak high bits.
fn hash_of(key: &[u8], seed: u64) -> u64 {
    let start = 0xCBF2_9CE4_8422_2325 ^ hash::mix(seed);
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    hash::mix(key.iter().fold(start, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_one_hash_are_both_named() {
        let mut builder = RecordsBuilder::new(1);
        builder.insert(b"apple", b"1").unwrap();
        // A record under the hash of another key, as a collision would bring it about.
        builder.table.insert(hash_of(b"apple", 1), b"\x04\0\0\0pear2").unwrap();
        let error = builder.build().err().unwrap();
        assert_eq!(error, RecordsError::Collision(b"apple".to_vec(), b"pear".to_vec()));
        assert!(error.to_string().starts_with(r#"keys "apple" and "pear" have the same 64-bit hash"#));
    }

    #[test]
    fn replies_of_any_bytes_are_safe() {
        assert_eq!(value(b"\x01\0\0\0kvalue", b"k"), Some(&b"value"[..]));
        assert_eq!(value(b"\x00\0\0\0", b""), Some(&b""[..]));
        for reply in [&b""[..], b"\x01\0\0", b"\x09\0\0\0short", b"\xff\xff\xff\xff"] {
            assert_eq!(value(reply, b"short"), None);
        }
    }

    #[test]
    fn hashes_depend_on_seed_and_every_byte() {
        let hashes: Vec<u64> =
            [(&b"a"[..], 1), (b"b", 1), (b"a", 2), (b"", 1), (b"a\0", 1)].map(|(key, seed)| hash_of(key, seed)).into();
        let distinct: std::collections::HashSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), hashes.len());
    }
}
