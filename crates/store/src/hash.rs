//! A hash table for the GET kernel: entries and values apart, as in Pilaf and StRoM section 5.2.
//!
//! An entry has [`BUCKETS`] buckets in one cache line; a fourth key goes on to an overflow entry
//! behind the others. Two thirds as many entries as records keep chains short: about one record in
//! thirty lies in an overflow entry.

use crate::{CACHE_LINE, Place};
use remora_kernel::{BUCKETS, Bucket, ENTRY_BYTES, GetParams, TableEntry};

/// Bytes in front of which no value begins: so no value pointer is ever 0.
const LINE: usize = CACHE_LINE;

/// Why a table cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A key that occurs twice.
    #[error("key {key:#x} occurs twice, as records {first} and {second} (counted from 0)")]
    DuplicateKey {
        /// The key.
        key: u64,
        /// The record that has it.
        first: usize,
        /// The record that has it too.
        second: usize,
    },
    /// A value of 4 GB or more.
    #[error("value of {0} bytes is too long; the most is 4294967295")]
    ValueTooLong(usize),
    /// More entries than an index of 32 bits can name.
    #[error("{0} records are too many for one table; the most is about 2863311530")]
    TooManyRecords(usize),
}

/// Collects the records of a table to be.
pub struct TableBuilder {
    seed: u64,
    records: Vec<Bucket>,
    values: Vec<u8>,
}

impl TableBuilder {
    /// No records yet. Tables with different seeds put keys in different entries.
    pub fn new(seed: u64) -> TableBuilder {
        TableBuilder { seed, records: Vec::new(), values: vec![0; LINE] }
    }

    /// Adds a record.
    pub fn insert(&mut self, key: u64, value: &[u8]) -> Result<(), TableError> {
        let len = value.len().try_into().map_err(|_| TableError::ValueTooLong(value.len()))?;
        // A value that fits in a cache line lies in one.
        let align = value.len().next_power_of_two().clamp(8, LINE);
        let offset = self.values.len().next_multiple_of(align);
        self.values.resize(offset, 0);
        self.values.extend_from_slice(value);
        self.records.push(Bucket { key, value: offset as u64, len });
        Ok(())
    }

    /// Puts every record in its entry.
    pub fn build(mut self) -> Result<Layout, TableError> {
        self.take_layout()
    }

    /// As [`TableBuilder::build`], but leaves the records to ask about after an error.
    pub(crate) fn take_layout(&mut self) -> Result<Layout, TableError> {
        let (heads, entries) = self.entries()?;
        Ok(Layout { seed: self.seed, heads, entries, values: std::mem::take(&mut self.values) })
    }

    /// The entries, and how many of them are not overflow entries.
    fn entries(&self) -> Result<(u32, Vec<TableEntry>), TableError> {
        let heads = (self.records.len() * 2).div_ceil(BUCKETS).max(1);
        // Overflow entries number less than a quarter of the records.
        let heads = u32::try_from(heads).ok().filter(|&n| n <= u32::MAX / 3 * 2);
        let heads = heads.ok_or(TableError::TooManyRecords(self.records.len()))?;
        let mut entries = vec![TableEntry::default(); heads as usize];
        for (i, &record) in self.records.iter().enumerate() {
            let mut at = index_of(record.key, self.seed, heads) as usize;
            loop {
                if entries[at].buckets.iter().any(|b| b.value != 0 && b.key == record.key) {
                    return Err(self.duplicate(record.key, i));
                }
                if let Some(free) = entries[at].buckets.iter_mut().find(|b| b.value == 0) {
                    *free = record;
                    break;
                }
                if entries[at].next == 0 {
                    entries[at].next = entries.len() as u32;
                    entries.push(TableEntry::default());
                }
                at = entries[at].next as usize;
            }
        }
        Ok((heads, entries))
    }

    /// The value of the record inserted as number `i`.
    pub(crate) fn value(&self, i: usize) -> &[u8] {
        let Bucket { value, len, .. } = self.records[i];
        &self.values[value as usize..][..len as usize]
    }

    fn duplicate(&self, key: u64, second: usize) -> TableError {
        let first = self.records.iter().position(|record| record.key == key).unwrap_or(second);
        TableError::DuplicateKey { key, first, second }
    }
}

/// A table in want of addresses.
pub struct Layout {
    seed: u64,
    heads: u32,
    entries: Vec<TableEntry>,
    values: Vec<u8>,
}

/// The bytes of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The entries, of [`ENTRY_BYTES`] each.
    pub entries: Vec<u8>,
    /// The values, each within one cache line if it fits in one.
    pub values: Vec<u8>,
}

impl Layout {
    /// Bytes that the entries take.
    pub fn entries_bytes(&self) -> usize {
        self.entries.len() * ENTRY_BYTES
    }

    /// Bytes that the values take.
    pub fn values_bytes(&self) -> usize {
        self.values.len()
    }

    /// The table with entries and values at these places.
    pub fn place(mut self, entries: Place, values: Place) -> (Table, Image) {
        let mut bytes = Vec::with_capacity(self.entries_bytes());
        for entry in &mut self.entries {
            for bucket in entry.buckets.iter_mut().filter(|b| b.value != 0) {
                bucket.value = bucket.value.wrapping_add(values.va);
            }
            bytes.extend_from_slice(&entry.encode());
        }
        let table = Table { seed: self.seed, heads: self.heads, entries, values };
        (table, Image { entries: bytes, values: self.values })
    }
}

/// What a client must know of a table to look keys up in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    seed: u64,
    heads: u32,
    entries: Place,
    values: Place,
}

impl Table {
    /// Parameters of the GET kernel that look `key` up. The reply is the value.
    #[inline]
    pub fn get_params(&self, key: u64) -> GetParams {
        GetParams {
            entries: self.entries.va,
            key,
            index: index_of(key, self.seed, self.heads),
            entries_key: self.entries.key,
            values_key: self.values.key,
        }
    }

    /// The seed that it was built with.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }
}

/// The entry, of `heads`, where the look-up of `key` begins.
#[inline]
fn index_of(key: u64, seed: u64, heads: u32) -> u32 {
    let hash = mix(key ^ seed);
    ((u128::from(hash) * u128::from(heads)) >> 64) as u32
}

/// A permutation of the 64-bit numbers that looks random: the finalizer of SplitMix64 (Steele, Lea
/// and Flood, OOPSLA 2014).
#[inline]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Place = Place { va: 0, key: 1 };

    #[test]
    fn chains_stay_short() {
        let mut builder = TableBuilder::new(5);
        (0..100_000).for_each(|key| builder.insert(key, &[1; 64]).unwrap());
        let layout = builder.build().unwrap();
        let overflow = layout.entries.len() - layout.heads as usize;
        assert_eq!(layout.heads, 66_667);
        assert!(overflow < 6_000, "{overflow} overflow entries");
        assert_eq!(layout.values_bytes(), 64 * 100_001);
    }

    #[test]
    fn values_straddle_no_cache_line_without_need() {
        let mut builder = TableBuilder::new(5);
        let lens = [1, 3, 64, 7, 33, 65, 20, 40, 0, 64, 9];
        for (key, &len) in lens.iter().enumerate() {
            builder.insert(key as u64, &vec![1; len]).unwrap();
        }
        for (record, len) in builder.records.iter().zip(lens) {
            let at = record.value as usize;
            assert!(at >= LINE && at.is_multiple_of(8) && record.len as usize == len);
            assert!(len > LINE || at % LINE + len <= LINE, "{len} bytes at {at}");
        }
    }

    #[test]
    fn duplicates_are_named() {
        let mut builder = TableBuilder::new(5);
        for key in [4, 9, 11, 9] {
            builder.insert(key, b"x").unwrap();
        }
        let error = builder.build().err().unwrap();
        assert_eq!(error, TableError::DuplicateKey { key: 9, first: 1, second: 3 });
    }

    #[test]
    fn tables_are_deterministic_and_seeds_matter() {
        let image = |seed| {
            let mut builder = TableBuilder::new(seed);
            (0..50).for_each(|key| builder.insert(key, &key.to_le_bytes()).unwrap());
            builder.build().unwrap().place(HERE, HERE).1
        };
        assert_eq!(image(1), image(1));
        assert_ne!(image(1).entries, image(2).entries);
        let (table, image) = TableBuilder::new(0).build().unwrap().place(HERE, HERE);
        assert_eq!((image.entries.len(), table.get_params(7).index), (ENTRY_BYTES, 0), "an empty table");
    }
}
