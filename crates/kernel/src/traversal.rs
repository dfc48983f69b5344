//! The traversal kernel: follows a linked structure to a value (StRoM section 6.2, Table 2).
//!
//! From the first element on, the kernel compares the keys in an element with the one given. At a
//! match it reads the value that the element points to; else it goes on to the next element, until
//! there is none: its address is 0, or elements have no next pointer. How structures are expressed:
//!
//! - *Linked list, hash chain*: one key, `EQUAL`, a next pointer.
//! - *Hash table entry*: several keys, `EQUAL`, each value pointer relative to its key.
//! - *Tree*: the keys of an inner node bound its children from above (the last one is `u64::MAX`),
//!   so the first key that is greater leads to the right child. A next pointer can lead to the
//!   right sibling, as in a B-link tree.
//! - *Skip list*: on each express lane, an element's key is the one where its span ends; the next
//!   pointer leads along the lane and the value pointer down to the span's first element. A miss
//!   runs along the lowest lane to its end: nothing in Table 2 stops it at a greater key.
//!
//! In Table 2 a match is the end, so a tree or a skip list takes one call per level. The parameter
//! `descents` is Remora's addition, which makes it one call in all: that many matches, by `LESS`,
//! lead down one level each before the predicate given applies. With 0 it is StRoM's kernel.

use crate::call::Status;
use crate::steps::{Read, Steps, Stop};

/// Bytes of the longest element.
pub const ELEMENT_BYTES: usize = 64;
/// Bytes of the unit in which positions count.
const UNIT: usize = 4;
const WORD: usize = 8;

/// How the key given (left) must compare with a key in an element (right).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Predicate {
    /// Equal.
    Equal = 0,
    /// Less than the element's.
    Less = 1,
    /// Greater than the element's.
    Greater = 2,
    /// Not equal.
    NotEqual = 3,
}

/// Parameters: those of StRoM's Table 2, the keys of the regions, the length of elements and the
/// number of descents. Positions count 4-byte units; keys and pointers are 8 bytes, little-endian.
/// The reply is the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraversalParams {
    /// `remoteAddress`: address of the first element.
    pub remote_address: u64,
    /// `key`: the key to look up.
    pub key: u64,
    /// Key of the region that holds the elements.
    pub element_key: u32,
    /// Key of the region that holds the values.
    pub value_key: u32,
    /// `valueSize`: bytes of the value.
    pub value_size: u32,
    /// `keyMask`: bit i says that a key is at position i.
    pub key_mask: u16,
    /// `predicateOpCode`: what makes a match.
    pub predicate: Predicate,
    /// `valuePtrPosition`: where the value pointer is.
    pub value_ptr_position: u8,
    /// `isRelativePosition`: whether that counts from the key that matched.
    pub is_relative_position: bool,
    /// `nextElementPtrPosition`: where the pointer to the next element is.
    pub next_element_ptr_position: u8,
    /// `nextElementPtrValid`: whether elements have such a pointer.
    pub next_element_ptr_valid: bool,
    /// Bytes of an element, at most [`ELEMENT_BYTES`].
    pub element_size: u8,
    /// Matches that lead to another element before one leads to the value.
    pub descents: u8,
}

impl TraversalParams {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// Parameters for a list of 64-byte elements as StRoM's figure 6 has it: key at position 0,
    /// next pointer at 2, value pointer at 4.
    pub fn list(head: u64, key: u64, value_size: u32, element_key: u32, value_key: u32) -> Self {
        TraversalParams {
            remote_address: head,
            key,
            element_key,
            value_key,
            value_size,
            key_mask: 1,
            predicate: Predicate::Equal,
            value_ptr_position: 4,
            is_relative_position: false,
            next_element_ptr_position: 2,
            next_element_ptr_valid: true,
            element_size: ELEMENT_BYTES as u8,
            descents: 0,
        }
    }

    /// To bytes: the fields in order, little-endian, the two booleans in one byte (bits 0 and 1)
    /// after the positions.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.remote_address.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.element_key.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.value_key.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.value_size.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.key_mask.to_le_bytes());
        bytes[30..].copy_from_slice(&[
            self.predicate as u8,
            self.value_ptr_position,
            self.next_element_ptr_position,
            u8::from(self.is_relative_position) | u8::from(self.next_element_ptr_valid) << 1,
            self.element_size,
            self.descents,
        ]);
        bytes
    }

    /// From bytes, if every position lies within an element.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Status::BadParams)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let [predicate, value_ptr, next_ptr, flags, element_size, descents] = bytes[30..] else {
            return Err(Status::BadParams);
        };
        let params = TraversalParams {
            remote_address: long(0),
            key: long(8),
            element_key: word(16),
            value_key: word(20),
            value_size: word(24),
            key_mask: u16::from_le_bytes([bytes[28], bytes[29]]),
            predicate: match predicate {
                0 => Predicate::Equal,
                1 => Predicate::Less,
                2 => Predicate::Greater,
                3 => Predicate::NotEqual,
                _ => return Err(Status::BadParams),
            },
            value_ptr_position: value_ptr,
            is_relative_position: flags & 1 != 0,
            next_element_ptr_position: next_ptr,
            next_element_ptr_valid: flags & 2 != 0,
            element_size,
            descents,
        };
        if flags <= 3 && params.fits() { Ok(params) } else { Err(Status::BadParams) }
    }

    /// Whether every field that the kernel may look at lies within an element.
    fn fits(&self) -> bool {
        let holds = |position: usize| position * UNIT + WORD <= self.element_size.into();
        let value = usize::from(self.value_ptr_position);
        let next = usize::from(self.next_element_ptr_position);
        usize::from(self.element_size) <= ELEMENT_BYTES
            && self.key_positions().all(|key| holds(key) && (!self.is_relative_position || holds(key + value)))
            && (self.is_relative_position || holds(value))
            && (!self.next_element_ptr_valid || holds(next))
    }

    fn key_positions(&self) -> impl Iterator<Item = usize> {
        let mask = self.key_mask;
        (0..u16::BITS as usize).filter(move |i| mask >> i & 1 != 0)
    }

    /// Position of the first key in `element` that matches.
    fn find(&self, element: &[u8], predicate: Predicate) -> Option<usize> {
        self.key_positions().find(|&position| {
            let key = field(element, position);
            match predicate {
                Predicate::Equal => self.key == key,
                Predicate::Less => self.key < key,
                Predicate::Greater => self.key > key,
                Predicate::NotEqual => self.key != key,
            }
        })
    }
}

/// The kernel, between two reads.
pub(crate) struct Traversal {
    params: TraversalParams,
    descents: u8,
}

impl Traversal {
    /// The element at an address, if there is one.
    #[inline]
    fn element(&self, va: u64) -> Result<Read, Status> {
        let TraversalParams { element_key: key, element_size, .. } = self.params;
        if va == 0 { Err(Status::NotFound) } else { Ok(Read { key, va, len: element_size.into(), last: false }) }
    }
}

impl Steps for Traversal {
    #[inline]
    fn begin(params: &[u8]) -> Result<(Self, Read), Stop> {
        let params = TraversalParams::decode(params)?;
        let traversal = Traversal { params, descents: params.descents };
        let first = traversal.element(params.remote_address)?;
        Ok((traversal, first))
    }

    #[inline]
    fn next(&mut self, element: &[u8; ELEMENT_BYTES]) -> Result<Read, Stop> {
        let Self { params, descents } = self;
        let predicate = if *descents > 0 { Predicate::Less } else { params.predicate };
        match params.find(element, predicate) {
            Some(position) => {
                let base = if params.is_relative_position { position } else { 0 };
                let va = field(element, base + usize::from(params.value_ptr_position));
                if *descents == 0 && va != 0 {
                    return Ok(Read { key: params.value_key, va, len: params.value_size, last: true });
                }
                *descents = descents.saturating_sub(1);
                Ok(self.element(va)?)
            }
            None if params.next_element_ptr_valid => {
                let next = field(element, params.next_element_ptr_position.into());
                Ok(self.element(next)?)
            }
            None => Err(Status::NotFound.into()),
        }
    }
}

/// The word at `position`.
fn field(element: &[u8], position: usize) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(&element[position * UNIT..][..WORD]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Counted, run_limited, run_on};
    use crate::{Bucket, Limits, TableEntry, op};
    use proptest::prelude::*;

    const VALUES: u64 = 1 << 15;

    fn list(head: u64, key: u64) -> TraversalParams {
        TraversalParams::list(head, key, 8, 7, 7)
    }

    /// Puts words at 4-byte positions of the element at `at`.
    fn put(memory: &Counted, at: u64, fields: &[(u64, u64)]) {
        for (position, word) in fields {
            memory.put(at + 4 * position, &word.to_le_bytes());
        }
    }

    fn get(memory: &Counted, params: TraversalParams) -> Result<u64, Status> {
        let (status, reply) = run_on(memory, op::TRAVERSAL, &params.encode());
        if status == Status::Ok { Ok(u64::from_le_bytes(reply.try_into().unwrap())) } else { Err(status) }
    }

    /// A value of its own for each key.
    fn value_of(memory: &Counted, key: u64) -> u64 {
        put(memory, VALUES + 8 * key, &[(0, key + 1_000_000)]);
        VALUES + 8 * key
    }

    #[test]
    fn linked_list() {
        let memory = Counted::new(1 << 16);
        for i in 0..32 {
            let next = if i < 31 { 64 * (i + 2) } else { 0 };
            put(&memory, 64 * (i + 1), &[(0, i), (2, next), (4, value_of(&memory, i))]);
        }
        for key in 0..32 {
            memory.reads.set(0);
            assert_eq!(get(&memory, list(64, key)), Ok(key + 1_000_000));
            assert_eq!(u64::from(memory.reads.get()), key + 2, "elements, then the value");
        }
        assert_eq!(get(&memory, list(64, 32)), Err(Status::NotFound));
        let alone = TraversalParams { next_element_ptr_valid: false, ..list(64, 1) };
        assert_eq!(get(&memory, alone), Err(Status::NotFound), "the first element only");
        let nowhere = TraversalParams { value_key: 0, ..list(64, 1) };
        assert_eq!(get(&memory, nowhere), Err(Status::AccessDenied));

        // A circle ends at the limit.
        put(&memory, 64 * 32, &[(2, 64)]);
        let limits = Limits { steps: 100, bytes: 1 << 20 };
        let (status, _) = run_limited(&memory, op::TRAVERSAL, &list(64, 99).encode(), limits);
        assert_eq!(status, Status::StepLimit);
    }

    /// The entries that the GET kernel reads, and chained ones of two keys with a next pointer.
    #[test]
    fn hash_table_and_hash_chain() {
        let memory = Counted::new(1 << 16);
        let bucket = |key| Bucket { key, value: value_of(&memory, key), len: 8 };
        let entry = TableEntry { buckets: [bucket(3), bucket(5), bucket(8)], next: 0 };
        memory.put(64, &entry.encode());
        let table = |key| three_keys(64, key);
        for key in [3, 5, 8] {
            assert_eq!(get(&memory, table(key)), Ok(key + 1_000_000));
        }
        assert_eq!(get(&memory, table(4)), Err(Status::NotFound));

        for (i, next) in [(0, 1104), (1, 0)] {
            let (a, b) = (20 + 2 * i, 21 + 2 * i);
            let fields = [(0, a), (2, value_of(&memory, a)), (4, b), (6, value_of(&memory, b)), (8, next)];
            put(&memory, 1024 + 80 * i, &fields);
        }
        let chain = |key| TraversalParams {
            remote_address: 1024,
            key_mask: 1 | 1 << 4,
            next_element_ptr_position: 8,
            next_element_ptr_valid: true,
            element_size: 40,
            ..table(key)
        };
        for key in 20..24 {
            assert_eq!(get(&memory, chain(key)), Ok(key + 1_000_000));
        }
        assert_eq!(get(&memory, chain(24)), Err(Status::NotFound));
    }

    #[test]
    fn predicates() {
        let memory = Counted::new(1 << 16);
        for (i, key) in [10, 20, 30].into_iter().enumerate() {
            let i = i as u64;
            let next = if i < 2 { 64 * (i + 2) } else { 0 };
            put(&memory, 64 * (i + 1), &[(0, key), (2, next), (4, value_of(&memory, key))]);
        }
        let first = |predicate, key| get(&memory, TraversalParams { predicate, ..list(64, key) });
        assert_eq!(first(Predicate::Less, 15), Ok(1_000_020));
        assert_eq!(first(Predicate::Less, 10), Ok(1_000_020));
        assert_eq!(first(Predicate::Less, 30), Err(Status::NotFound));
        assert_eq!(first(Predicate::Greater, 11), Ok(1_000_010));
        assert_eq!(first(Predicate::Greater, 10), Err(Status::NotFound));
        assert_eq!(first(Predicate::NotEqual, 10), Ok(1_000_020));
        assert_eq!(first(Predicate::NotEqual, 11), Ok(1_000_010));
    }

    /// Builds a tree over `keys` of nodes with up to three keys, each with a pointer; returns root
    /// and height. Leaves hold keys and values.
    fn tree(memory: &Counted, keys: &[u64]) -> (u64, u8) {
        let (mut at, mut height) = (64, 0);
        // Of each node of the level below: the smallest key under it, and its address.
        let mut below: Vec<(u64, u64)> = keys.iter().map(|&k| (k, value_of(memory, k))).collect();
        loop {
            let mut level = Vec::new();
            for children in below.chunks(3) {
                for (i, &(key, child)) in children.iter().enumerate() {
                    let bound = children.get(i + 1).map_or(u64::MAX, |next| next.0);
                    let key = if height == 0 { key } else { bound };
                    put(memory, at + 16 * i as u64, &[(0, key), (2, child)]);
                }
                level.push((children[0].0, at));
                at += 64;
            }
            if let [(_, root)] = level[..] {
                return (root, height);
            }
            (below, height) = (level, height + 1);
        }
    }

    /// Up to three keys in a 64-byte element, each followed by its pointer.
    fn three_keys(root: u64, key: u64) -> TraversalParams {
        TraversalParams {
            key_mask: 1 | 1 << 4 | 1 << 8,
            value_ptr_position: 2,
            is_relative_position: true,
            next_element_ptr_valid: false,
            ..list(root, key)
        }
    }

    /// A node read whole, as the step from level to level that plain Table 2 offers.
    fn node(memory: &Counted, params: TraversalParams) -> Option<Vec<u8>> {
        let params = TraversalParams { value_size: 64, descents: 0, ..params };
        let (status, reply) = run_on(memory, op::TRAVERSAL, &params.encode());
        (status == Status::Ok).then_some(reply)
    }

    #[test]
    fn tree_one_call_per_level() {
        let memory = Counted::new(1 << 16);
        let keys: Vec<u64> = (0..9).map(|i| 10 * i + 1).collect();
        let (root, height) = tree(&memory, &keys);
        assert_eq!(height, 1);
        let child = |key| {
            let params = TraversalParams { predicate: Predicate::Less, ..three_keys(root, key) };
            let node = node(&memory, params).unwrap();
            [field(&node, 0), field(&node, 4), field(&node, 8)]
        };
        assert_eq!(child(12), [1, 11, 21]);
        assert_eq!(child(31), [31, 41, 51]);
        assert_eq!(child(1000), [61, 71, 81]);
    }

    /// Express lanes over a linked list. Lane elements: end of the span, next on the lane, first
    /// element of the span one lane down.
    fn skip_list(memory: &Counted, keys: &[u64], lanes: u8) -> u64 {
        let mut at = 64;
        let mut below: Vec<(u64, u64)> = Vec::new();
        for (i, &key) in keys.iter().enumerate() {
            let next = if i + 1 < keys.len() { at + 64 } else { 0 };
            put(memory, at, &[(0, key), (2, next), (4, value_of(memory, key))]);
            below.push((key, at));
            at += 64;
        }
        for _ in 0..lanes {
            let spans: Vec<_> = below.chunks(3).map(|span| span[0]).collect();
            below = Vec::new();
            for (i, &(first, down)) in spans.iter().enumerate() {
                let (end, next) = spans.get(i + 1).map_or((u64::MAX, 0), |s| (s.0, at + 64));
                put(memory, at, &[(0, end), (2, next), (4, down)]);
                below.push((first, at));
                at += 64;
            }
        }
        below[0].1
    }

    #[test]
    fn skip_list_one_call_per_level() {
        let memory = Counted::new(1 << 16);
        let keys: Vec<u64> = (0..27).map(|i| 10 * i + 1).collect();
        let head = skip_list(&memory, &keys, 1);
        let span = |key| TraversalParams { predicate: Predicate::Less, ..list(head, key) };
        let element = node(&memory, span(71)).unwrap();
        assert_eq!(field(&element, 0), 61, "first of the span 61, 71, 81");
        assert_eq!(get(&memory, list(field(&element, 2), 71)), Ok(1_000_071));
    }

    #[test]
    fn parameters_that_leave_the_element_are_refused() {
        let good = TraversalParams { is_relative_position: true, value_ptr_position: 2, ..list(64, 1) };
        let memory = Counted::new(1 << 16);
        let bad = [
            TraversalParams { element_size: 65, ..good },
            TraversalParams { element_size: 15, ..good },
            TraversalParams { key_mask: 1 << 15, ..good },
            TraversalParams { key_mask: 1 << 13, ..good },
            TraversalParams { value_ptr_position: 255, ..good },
            TraversalParams { value_ptr_position: 15, is_relative_position: false, ..good },
            TraversalParams { next_element_ptr_position: 15, ..good },
        ];
        for params in bad {
            assert_eq!(TraversalParams::decode(&params.encode()), Err(Status::BadParams), "{params:?}");
            assert_eq!(get(&memory, params), Err(Status::BadParams));
        }
        let mut bytes = good.encode();
        assert_eq!(TraversalParams::decode(&bytes), Ok(good));
        for (at, value) in [(30, 4), (33, 4)] {
            bytes = good.encode();
            bytes[at] = value;
            assert_eq!(TraversalParams::decode(&bytes), Err(Status::BadParams));
        }
        assert_eq!(TraversalParams::decode(&bytes[1..]), Err(Status::BadParams));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// A whole tree, descended in one call, answers like a set.
        #[test]
        fn tree_in_one_call(keys in prop::collection::btree_set(1u64..300, 1..120)) {
            let memory = Counted::new(1 << 16);
            let sorted: Vec<u64> = keys.iter().copied().collect();
            let (root, height) = tree(&memory, &sorted);
            for key in 1..300 {
                let params = TraversalParams { descents: height, ..three_keys(root, key) };
                let expect = if keys.contains(&key) { Ok(key + 1_000_000) } else { Err(Status::NotFound) };
                prop_assert_eq!(get(&memory, params), expect, "key {} height {}", key, height);
            }
        }

        /// A whole skip list, searched in one call, answers like a set, hits in few steps.
        #[test]
        fn skip_list_in_one_call(keys in prop::collection::btree_set(1u64..300, 1..120), lanes in 0u8..4) {
            let memory = Counted::new(1 << 16);
            let sorted: Vec<u64> = keys.iter().copied().collect();
            let head = skip_list(&memory, &sorted, lanes);
            for key in 1..300 {
                let expect = if keys.contains(&key) { Ok(key + 1_000_000) } else { Err(Status::NotFound) };
                memory.reads.set(0);
                let seen = get(&memory, TraversalParams { descents: lanes, ..list(head, key) });
                prop_assert_eq!(seen, expect, "key {} lanes {}", key, lanes);
                let top = sorted.len().div_ceil(3usize.pow(lanes.into())) as u32;
                let few = memory.reads.get() <= top + 3 * u32::from(lanes) + 1;
                prop_assert!(few || expect.is_err(), "{} reads", memory.reads.get());
            }
        }
    }
}
