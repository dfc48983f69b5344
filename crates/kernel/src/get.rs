//! The GET kernel: a look-up in a hash table of Pilaf's shape, entries and values apart (StRoM
//! section 5.2), with chained overflow entries and misses.

use crate::call::Status;
use crate::steps::{Read, Steps, Stop};

/// Buckets of an entry.
pub const BUCKETS: usize = 3;
/// Bytes of an entry: a cache line.
pub const ENTRY_BYTES: usize = 64;

/// One key and where its value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The key.
    pub key: u64,
    /// Address of the value; 0 marks a free bucket.
    pub value: u64,
    /// Bytes of the value.
    pub len: u32,
}

/// A hash table entry.
///
/// In memory, little-endian: key and value address of each bucket in turn (48 bytes), the three
/// lengths (12), `next` (4). So [`crate::TraversalParams`] can describe it too: keys at 4-byte
/// positions 0, 4 and 8, each value pointer 2 positions after its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableEntry {
    /// The buckets.
    pub buckets: [Bucket; BUCKETS],
    /// Index of the entry where the look-up goes on, or 0: the first entry never continues another.
    pub next: u32,
}

impl TableEntry {
    /// To bytes in memory.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        for (i, bucket) in self.buckets.iter().enumerate() {
            bytes[16 * i..][..8].copy_from_slice(&bucket.key.to_le_bytes());
            bytes[16 * i + 8..][..8].copy_from_slice(&bucket.value.to_le_bytes());
            bytes[48 + 4 * i..][..4].copy_from_slice(&bucket.len.to_le_bytes());
        }
        bytes[60..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }

    /// From bytes in memory: any are an entry.
    #[inline]
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> TableEntry {
        let bucket = |i: usize| Bucket {
            key: u64_at(bytes, 16 * i),
            value: u64_at(bytes, 16 * i + 8),
            len: u32_at(bytes, 48 + 4 * i),
        };
        TableEntry { buckets: [bucket(0), bucket(1), bucket(2)], next: u32_at(bytes, 60) }
    }
}

/// Parameters. The reply is the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetParams {
    /// Address of the first entry of the table.
    pub entries: u64,
    /// The key to look up.
    pub key: u64,
    /// Index of the entry that the key hashes to.
    pub index: u32,
    /// Key of the region that holds the entries.
    pub entries_key: u32,
    /// Key of the region that holds the values.
    pub values_key: u32,
}

impl GetParams {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// To bytes: the fields in order, little-endian.
    #[inline]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.entries.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.index.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.entries_key.to_le_bytes());
        bytes[24..].copy_from_slice(&self.values_key.to_le_bytes());
        bytes
    }

    /// From bytes.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Status::BadParams)?;
        Ok(GetParams {
            entries: u64_at(bytes, 0),
            key: u64_at(bytes, 8),
            index: u32_at(bytes, 16),
            entries_key: u32_at(bytes, 20),
            values_key: u32_at(bytes, 24),
        })
    }
}

/// The kernel, between two reads.
pub(crate) struct Get(GetParams);

impl Get {
    #[inline(always)]
    fn entry(&self, index: u32) -> Read {
        let GetParams { entries, entries_key: key, .. } = self.0;
        let va = entries.wrapping_add(u64::from(index) * ENTRY_BYTES as u64);
        Read { key, va, len: ENTRY_BYTES as u32, last: false }
    }
}

impl Steps for Get {
    #[inline(always)]
    fn begin(params: &[u8]) -> Result<(Self, Read), Stop> {
        let get = Get(GetParams::decode(params)?);
        let first = get.entry(get.0.index);
        Ok((get, first))
    }

    #[inline(always)]
    fn next(&mut self, entry: &[u8; ENTRY_BYTES]) -> Result<Read, Stop> {
        match find(entry, self.0.key) {
            Ok(Bucket { value: va, len, .. }) => Ok(Read { key: self.0.values_key, va, len, last: true }),
            Err(0) => Err(Status::NotFound.into()),
            Err(next) => Ok(self.entry(next)),
        }
    }
}

/// The key's bucket, or the entry where to look next.
///
/// Which bucket it is no processor can guess, so nothing is decided by it but an index: what a core guesses while memory
/// is on its way it does in vain.
#[inline(always)]
fn find(entry: &[u8; ENTRY_BYTES], key: u64) -> Result<Bucket, u32> {
    let [first, second, third] = [0, 16, 32].map(|at| (u64_at(entry, at) == key) & (u64_at(entry, at + 8) != 0));
    if !(first | second | third) {
        return Err(u32_at(entry, 60));
    }
    // Within the entry, whatever the index is.
    let at = std::hint::black_box(usize::from(!first) << usize::from(!(first | second))) % 4;
    Ok(Bucket { key, value: u64_at(entry, 16 * at + 8), len: u32_at(entry, 48 + 4 * at) })
}

#[inline(always)]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Counted, run_limited, run_on};
    use crate::{Limits, op};
    use proptest::prelude::*;
    use std::collections::HashMap;

    const TABLE: u64 = 1024;

    fn params(index: u32, key: u64) -> [u8; GetParams::LEN] {
        GetParams { entries: TABLE, key, index, entries_key: 7, values_key: 7 }.encode()
    }

    fn bucket(key: u64, value: u64, len: u32) -> Bucket {
        Bucket { key, value, len }
    }

    #[test]
    fn hits_misses_and_overflow() {
        let memory = Counted::new(8192);
        let entries = [
            TableEntry { buckets: [bucket(1, 4096, 3), bucket(0, 4100, 0), bucket(u64::MAX, 4104, 9)], next: 1 },
            TableEntry { buckets: [bucket(5, 4200, 64), Bucket::default(), Bucket::default()], next: 0 },
        ];
        for (i, entry) in entries.iter().enumerate() {
            assert_eq!(TableEntry::decode(&entry.encode()), *entry);
            memory.put(TABLE + 64 * i as u64, &entry.encode());
        }
        memory.put(4096, b"one");
        memory.put(4104, b"maximum!!");
        memory.put(4200, &[5; 64]);
        let get = |key| {
            memory.reads.set(0);
            let (status, reply) = run_on(&memory, op::GET, &params(0, key));
            (status, reply, memory.reads.get())
        };
        assert_eq!(get(1), (Status::Ok, b"one".to_vec(), 2));
        assert_eq!(get(u64::MAX), (Status::Ok, b"maximum!!".to_vec(), 2));
        assert_eq!(get(0), (Status::Ok, vec![], 2), "key 0 and an empty value");
        assert_eq!(get(5), (Status::Ok, vec![5; 64], 3), "in the overflow entry");
        assert_eq!((get(6).0, get(6).2), (Status::NotFound, 2));
    }

    #[test]
    fn bad_tables_and_parameters_end_in_an_error() {
        let memory = Counted::new(8192);
        let circle = TableEntry { next: 1, ..TableEntry::default() };
        memory.put(TABLE + 64, &circle.encode());
        let limits = Limits { steps: 50, bytes: 1 << 20 };
        assert_eq!(run_limited(&memory, op::GET, &params(1, 9), limits).0, Status::StepLimit);
        assert_eq!(memory.reads.get(), 50);
        let limits = Limits { steps: 50, bytes: 640 };
        assert_eq!(run_limited(&memory, op::GET, &params(1, 9), limits).0, Status::ByteLimit);
        assert_eq!(memory.reads.get(), 60);

        let wild = TableEntry {
            buckets: [bucket(1, 8190, 3), bucket(2, 0, 1 << 30), bucket(3, 4096, 1 << 30)],
            next: u32::MAX,
        };
        memory.put(TABLE, &wild.encode());
        assert_eq!(run_on(&memory, op::GET, &params(0, 1)).0, Status::AccessDenied);
        assert_eq!(run_on(&memory, op::GET, &params(0, 2)).0, Status::AccessDenied, "free bucket, wild next");
        assert_eq!(run_on(&memory, op::GET, &params(0, 3)).0, Status::ReplyTooLong);
        assert_eq!(run_on(&memory, op::GET, &params(u32::MAX, 3)).0, Status::AccessDenied);
        assert_eq!(run_on(&memory, op::GET, &params(0, 1)[1..]).0, Status::BadParams);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Chains of entries filled at random answer like a map.
        #[test]
        fn looks_up_like_a_map(
            keys in prop::collection::hash_set(0u64..60, 0..40),
            chains in 1u32..5,
        ) {
            let memory = Counted::new(1 << 16);
            let mut table = vec![TableEntry::default(); chains as usize];
            let mut model = HashMap::new();
            for (i, &key) in keys.iter().enumerate() {
                let (value, len) = (8192 + 100 * i as u64, (key % 7) as u32);
                memory.put(value, &vec![key as u8; len as usize]);
                model.insert(key, vec![key as u8; len as usize]);
                let mut at = key as usize % chains as usize;
                loop {
                    if let Some(free) = table[at].buckets.iter_mut().find(|b| b.value == 0) {
                        *free = bucket(key, value, len);
                        break;
                    }
                    if table[at].next == 0 {
                        table[at].next = table.len() as u32;
                        table.push(TableEntry::default());
                    }
                    at = table[at].next as usize;
                }
            }
            for (i, entry) in table.iter().enumerate() {
                memory.put(TABLE + 64 * i as u64, &entry.encode());
            }
            for key in 0..60 {
                let (status, reply) = run_on(&memory, op::GET, &params(key as u32 % chains, key));
                match model.get(&key) {
                    Some(value) => prop_assert_eq!((status, &reply), (Status::Ok, value)),
                    None => prop_assert_eq!(status, Status::NotFound),
                }
            }
        }

        #[test]
        fn any_parameters_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..40), op in 0u64..6) {
            run_on(&Counted::new(4096), op, &bytes);
        }

        #[test]
        fn parameters_survive_encoding(entries: u64, key: u64, index: u32, entries_key: u32, values_key: u32) {
            let params = GetParams { entries, key, index, entries_key, values_key };
            prop_assert_eq!(GetParams::decode(&params.encode()), Ok(params));
        }
    }
}
