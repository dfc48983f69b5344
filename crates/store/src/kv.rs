//! A key-value store for the kernels of [`remora_kernel::kv`]: made in a node's memory, and asked by parameters.

use std::fmt;
use std::str::FromStr;

use remora_kernel::kv::{BUCKET_BYTES, ENTRIES, HEADER_BYTES, KvParams, KvRef, class_bytes, class_of};
use remora_kernel::kv::{LONGEST_KEY, LONGEST_VALUE, Table, hash, header, item_len, table_of};

use crate::{Arena, Place};

/// A store, as who asks it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv {
    at: KvRef,
    seed: u64,
    len: u64,
}

/// What a store is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Pairs. There may be more: the store grows while it serves, as long as its node has memory for whoever made it.
    pub pairs: u64,
    /// Bytes of a key, about.
    pub key_bytes: usize,
    /// Bytes of a value, about.
    pub value_bytes: usize,
}

/// No store has such pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The key is too long.
    #[error("a key of {0} bytes: the most is {LONGEST_KEY}")]
    Key(usize),
    /// The value is too long.
    #[error("a value of {0} bytes: the most is {LONGEST_VALUE}")]
    Value(usize),
    /// No kernel finds its way among so many buckets.
    #[error("room for {0} pairs: the most is {MOST_PAIRS}")]
    Pairs(u64),
}

/// Pairs that a store may be made for.
const MOST_PAIRS: u64 = 1 << 38;

impl KvShape {
    /// Log2 of the number of buckets: of seven entries four are used, so that few chains have a second bucket.
    fn lg_buckets(&self) -> u8 {
        (self.pairs / (ENTRIES as u64 - 3)).max(1).next_power_of_two().ilog2() as u8
    }

    /// Bytes of memory that it takes at first, with a quarter more blocks than pairs, and some slabs.
    pub fn bytes(&self) -> Result<u64, KvError> {
        check(self.key_bytes, self.value_bytes)?;
        if self.pairs > MOST_PAIRS {
            return Err(KvError::Pairs(self.pairs));
        }
        let block = class_of(item_len(self.key_bytes, self.value_bytes)).map_or(0, class_bytes);
        let buckets = (BUCKET_BYTES as u64) << self.lg_buckets();
        Ok(HEADER_BYTES + buckets + (self.pairs + self.pairs / 4) * block + (4 << 20))
    }
}

/// Whether a pair may have so long a key and value.
fn check(key: usize, value: usize) -> Result<(), KvError> {
    match (key <= LONGEST_KEY, value <= LONGEST_VALUE) {
        (false, _) => Err(KvError::Key(key)),
        (_, false) => Err(KvError::Value(value)),
        _ => Ok(()),
    }
}

impl Kv {
    /// An empty store in memory that it allocates. Who knows the seed may choose keys that make chains long: give it to
    /// nobody but who asks the store.
    pub fn create<A: Arena + ?Sized>(
        shape: &KvShape,
        seed: u64,
        arena: &mut A,
    ) -> Result<Result<Kv, KvError>, A::Error> {
        let len = match shape.bytes() {
            Ok(len) => len,
            Err(e) => return Ok(Err(e)),
        };
        let place = arena.alloc_growing(len)?;
        let lg_buckets = shape.lg_buckets();
        if let Some(header) = header(lg_buckets, len, seed) {
            arena.write(place, &header)?;
        }
        Ok(Ok(Kv { at: KvRef::new(place.va, place.key, lg_buckets), seed, len }))
    }

    /// Where it lies.
    pub fn place(&self) -> Place {
        Place { va: self.at.base, key: self.at.key }
    }

    /// Where kernels find it.
    pub fn at(&self) -> KvRef {
        self.at
    }

    /// The same store, with the buckets that its first bytes (16 at least) say it has by now: calls find their way by
    /// those that it had before too, by an access more for each eightfold of them. `None` if these are no store's.
    pub fn seen(&self, first_bytes: &[u8]) -> Option<Kv> {
        let table = table_of(first_bytes)?;
        Some(Kv { at: KvRef { table, ..self.at }, ..*self })
    }

    /// Bytes that it was made with.
    #[allow(clippy::len_without_is_empty, reason = "of memory, not of pairs")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The hash of a key.
    pub fn hash(&self, key: &[u8]) -> u64 {
        hash(key, self.seed)
    }

    /// Parameters of a GET or DELETE, or of a reservation once it says how long the value is.
    #[inline]
    pub fn key<'k>(&self, key: &'k [u8]) -> Result<KvParams<'k>, KvError> {
        self.pair(key, &[])
    }

    /// Parameters of a PUT or UPDATE.
    #[inline]
    pub fn pair<'k>(&self, key: &'k [u8], value: &'k [u8]) -> Result<KvParams<'k>, KvError> {
        check(key.len(), value.len())?;
        Ok(KvParams::new(self.at, self.hash(key), key, value))
    }
}

/// Five numbers in hexadecimal with `-` between them: address, key of the region, the [table](Table::word) of buckets,
/// seed and bytes. It says all that another process needs to open the store.
impl fmt::Display for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at: KvRef { base, key, table }, seed, len } = self;
        write!(f, "{base:x}-{key:x}-{:x}-{seed:x}-{len:x}", table.word())
    }
}

/// No place of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not where a store is: that is five numbers in hexadecimal with `-` between them, as its `Display` writes them"
)]
pub struct NotAPlace;

impl FromStr for Kv {
    type Err = NotAPlace;

    fn from_str(text: &str) -> Result<Self, NotAPlace> {
        let numbers: Vec<u64> = text
            .trim()
            .split('-')
            .map(|part| u64::from_str_radix(part, 16))
            .collect::<Result<_, _>>()
            .map_err(|_| NotAPlace)?;
        let [base, key, table, seed, len] = numbers[..] else { return Err(NotAPlace) };
        let (Ok(key), Some(table)) = (key.try_into(), Table::from_word(table)) else { return Err(NotAPlace) };
        // Of a store so long, or one that has grown since; what is there else only the node knows.
        let fits = (table.place > 1 || table.bytes() <= len) && base.checked_add(len).is_some();
        fits.then_some(Self { at: KvRef { base, key, table }, seed, len }).ok_or(NotAPlace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    struct Counting(u64);

    impl Arena for Counting {
        type Error = Infallible;

        fn alloc(&mut self, len: u64) -> Result<Place, Infallible> {
            self.0 = len;
            Ok(Place { va: 1 << 40, key: 9 })
        }

        fn write(&mut self, _: Place, bytes: &[u8]) -> Result<(), Infallible> {
            assert_eq!(bytes.len(), 80);
            Ok(())
        }
    }

    #[test]
    fn a_store_has_room_for_its_pairs_and_refuses_long_ones() {
        let shape = KvShape { pairs: 1_000_000, key_bytes: 16, value_bytes: 48 };
        let mut arena = Counting(0);
        let Ok(Ok(kv)) = Kv::create(&shape, 5, &mut arena) else { panic!("a store") };
        assert_eq!((kv.len(), kv.at().table.lg_buckets), (arena.0, 18));
        assert!(arena.0 > 96 * shape.pairs && arena.0 < 192 * shape.pairs, "{}", arena.0);
        assert_eq!(kv.key(&[0; LONGEST_KEY + 1]), Err(KvError::Key(LONGEST_KEY + 1)));
        assert_eq!(kv.pair(b"k", &vec![0; LONGEST_VALUE + 1]), Err(KvError::Value(LONGEST_VALUE + 1)));
        // So many that the bytes of all of them, or of their buckets, would come round to few.
        for pairs in [MOST_PAIRS + 1, 1 << 61, u64::MAX] {
            let shape = KvShape { pairs, ..shape };
            assert_eq!(Kv::create(&shape, 5, &mut arena), Ok(Err(KvError::Pairs(pairs))));
        }
        let most = KvShape { pairs: MOST_PAIRS, key_bytes: LONGEST_KEY, value_bytes: LONGEST_VALUE };
        assert!(most.bytes().is_ok_and(|bytes| bytes > MOST_PAIRS << 20) && most.lg_buckets() == 36);
        assert_eq!(kv.to_string().parse(), Ok(kv));
        let mut first = header(20, kv.len(), 5).expect("room");
        let grown = kv.seen(&first[..16]).expect("a store");
        assert_eq!((grown.at().table.lg_buckets, grown.to_string().parse()), (20, Ok(grown)));
        first[0] ^= 1;
        assert_eq!((kv.seen(&first), kv.seen(&[])), (None, None));
        for text in [
            "",
            "1-2-3-4",
            "1-2-103-4-5",
            "1-2-3-4-5000",
            "0-0-140-0-0",
            "10000000000-9-112-5-60cf000-1",
            "x-9-112-5-60cf000",
            "1-2-103-4-ffffffffffffffff",
        ] {
            assert_eq!(text.parse::<Kv>(), Err(NotAPlace), "{text}");
        }
        let mut out = Vec::new();
        kv.pair(b"k", b"v").unwrap().encode(&mut out);
        assert_eq!(KvParams::decode(&out, true).unwrap().hash, kv.hash(b"k"));
    }
}
