//! Keys of up to 256 bytes: how they lie in a node.
//!
//! Head, tail and the last word of the header are those of every [node](super::node). Between them:
//!
//! | bytes        | what                                                                                             |
//! |--------------|--------------------------------------------------------------------------------------------------|
//! | 8..16        | the low fence and the high one, which belongs to the right: offset (2) and length (2) of each; a length of 65,535 is no fence |
//! | 16..18       | where the heap begins                                                                            |
//! | 32..         | a *slot* of 8 bytes for each key, ascending: offset (2), length (2), and the first four bytes of the key as a number |
//! | ..n-8        | the heap, which grows downwards: of each key its value or child (8), then its bytes, with zeros up to a multiple of 8 |
//!
//! What is taken out leaves a hole in the heap; it is closed when the room is wanted.

use std::cmp::Ordering;
use std::ops::Range;

use remora_memory::Words;

use super::NODE_BYTES;
use super::keys::{Glance, TreeKey, half};
use super::node::{HEADER, NodeView, TAIL, short, word};

/// Length of a fence that is none.
const NONE: u16 = u16::MAX;
/// Where the fences are said to be.
const LOW: usize = 8;
const HIGH: usize = 12;
/// Where the heap is said to begin.
const HEAP: usize = 16;
/// Bytes of a slot, and of a value or child.
const WORD: usize = 8;

/// The longest key of all.
pub const KEY_BYTES: usize = 256;

/// The longest key of a tree with nodes of so many bytes: two fences and three pairs fit into any.
pub const fn key_bytes(node_bytes: usize) -> usize {
    let most = node_bytes.saturating_sub(HEADER + TAIL + 3 * 2 * WORD) / 5 / WORD * WORD;
    if most < KEY_BYTES { most } else { KEY_BYTES }
}

const _: () = assert!(key_bytes(NODE_BYTES[0]) == 32 && key_bytes(2048) == KEY_BYTES);

/// Bytes that a key takes in the heap.
pub(super) fn padded(key: &[u8]) -> usize {
    key.len().next_multiple_of(WORD)
}

/// Bytes that a pair takes: its slot, and its part of the heap.
pub(super) fn item(key: &[u8]) -> usize {
    2 * WORD + padded(key)
}

/// Bytes that a node has for fences and pairs.
pub(super) fn capacity(node_bytes: usize) -> usize {
    node_bytes - HEADER - TAIL
}

/// The first key behind `left` and not behind `right` that is short.
pub(super) fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    let same = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    &right[..right.len().min(same + 1)]
}

/// Eight bytes of a key from one on, zeros behind its end, as a number of the same order.
fn piece(key: &[u8], at: usize) -> u64 {
    let mut bytes = [0; WORD];
    let rest = &key[at.min(key.len())..];
    let len = rest.len().min(WORD);
    bytes[..len].copy_from_slice(&rest[..len]);
    u64::from_be_bytes(bytes)
}

/// What a slot says of its key's order.
fn first_four(key: &[u8]) -> u32 {
    (piece(key, 0) >> 32) as u32
}

/// What stands in a slot, or for a fence in its lower half.
#[derive(Clone, Copy)]
struct Slot(u64);

impl Slot {
    fn new(offset: usize, key: &[u8]) -> Slot {
        Slot(offset as u64 | (key.len() as u64) << 16 | u64::from(first_four(key)) << 32)
    }

    /// Where its part of the heap begins.
    fn offset(self) -> usize {
        usize::from(self.0 as u16)
    }

    fn len(self) -> usize {
        usize::from((self.0 >> 16) as u16)
    }

    fn first_four(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// How the bytes in a node from `at` on, so many of them, are ordered beside a key.
fn compare(words: &Words<'_>, at: usize, len: usize, key: &[u8]) -> Ordering {
    for i in (0..len.min(key.len())).step_by(WORD) {
        let there = words.get((at + i) / WORD).swap_bytes();
        match there.cmp(&piece(key, i)) {
            Ordering::Equal => {}
            // Zeros behind an end are no bytes of the key: of equal pieces the lengths decide.
            other => return other,
        }
    }
    len.cmp(&key.len())
}

impl<'a> NodeView<'a> {
    fn slot(self, at: usize) -> Slot {
        let at = HEADER + WORD * at;
        Slot(if at + WORD <= self.0.len() { word(self.0, at) } else { 0 })
    }

    /// Bytes of it, as far as there are such.
    fn part(self, offset: usize, len: usize) -> &'a [u8] {
        self.0.get(offset..offset.saturating_add(len)).unwrap_or_default()
    }

    /// The key at a place, of a node whose keys are bytes.
    pub fn bytes(self, at: usize) -> &'a [u8] {
        let slot = self.slot(at);
        self.part(slot.offset() + WORD, slot.len())
    }

    /// The value at a place, of a leaf whose keys are bytes.
    pub fn byte_value(self, at: usize) -> u64 {
        <[u8]>::what(self, at)
    }

    fn fence(self, at: usize) -> Option<&'a [u8]> {
        let len = short(self.0, at + 2);
        (len != NONE).then(|| self.part(short(self.0, at).into(), len.into()))
    }

    /// Bytes that its fences take.
    fn fences(self) -> usize {
        [LOW, HIGH].into_iter().filter_map(|at| self.fence(at)).map(padded).sum()
    }

    /// Bytes that its pairs take.
    fn items(self) -> usize {
        (0..<[u8]>::count(self)).map(|at| item(self.bytes(at))).sum()
    }

    /// How many keys are less than or equal to this one.
    fn rank_of(self, key: &[u8]) -> usize {
        let first = first_four(key);
        let (mut low, mut len) = (0, <[u8]>::count(self));
        while len > 0 {
            let middle = low + len / 2;
            let order = self.slot(middle).first_four().cmp(&first).then_with(|| self.bytes(middle).cmp(key));
            if order.is_le() {
                (low, len) = (middle + 1, len - len / 2 - 1);
            } else {
                len /= 2;
            }
        }
        low
    }
}

/// Takes room at the heap's lower end, and says where; none if there is not so much in front of it.
fn take(image: &mut [u8], bytes: usize, slots: usize) -> Option<usize> {
    let heap = usize::from(short(image, HEAP)).min(image.len() - TAIL) / WORD * WORD;
    let at = heap.checked_sub(bytes).filter(|at| *at >= HEADER + WORD * slots)?;
    image[HEAP..HEAP + 2].copy_from_slice(&(at as u16).to_le_bytes());
    Some(at)
}

fn set_fence(image: &mut [u8], at: usize, key: Option<&[u8]>) {
    let slots = <[u8]>::count(NodeView(image));
    let place = key.and_then(|key| Some((key, take(image, padded(key), slots)?)));
    let (offset, len) = match place {
        Some((key, offset)) => {
            image[offset..offset + padded(key)].fill(0);
            image[offset..offset + key.len()].copy_from_slice(key);
            (offset as u16, key.len() as u16)
        }
        None => (0, NONE),
    };
    image[at..at + 2].copy_from_slice(&offset.to_le_bytes());
    image[at + 2..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Closes the holes, with another high fence.
fn rebuild(image: &mut [u8], next: Option<&[u8]>) {
    let old = image.to_vec();
    let node = NodeView(&old);
    let (level, away) = (node.level().unwrap_or_default(), node.is_away());
    <[u8]>::clear(image, level, (node.fence(LOW).unwrap_or_default(), next), node.right());
    image[31] = away.into();
    <[u8]>::append(image, node, 0);
}

/// What changed if all did.
fn all(image: &[u8]) -> [Range<usize>; 3] {
    [WORD..image.len() - TAIL, 0..0, 0..0]
}

impl TreeKey for [u8] {
    fn is_allowed(&self, node_bytes: usize) -> bool {
        self.len() <= key_bytes(node_bytes)
    }

    fn least() -> Vec<u8> {
        Vec::new()
    }

    fn low(node: NodeView<'_>) -> Vec<u8> {
        node.fence(LOW).unwrap_or_default().to_vec()
    }

    fn next(node: NodeView<'_>) -> Option<Vec<u8>> {
        node.fence(HIGH).map(<[u8]>::to_vec)
    }

    fn is_below(node: NodeView<'_>, key: &[u8]) -> bool {
        node.fence(LOW).is_some_and(|low| key < low)
    }

    fn is_above(node: NodeView<'_>, key: &[u8]) -> bool {
        node.fence(HIGH).is_some_and(|next| key >= next)
    }

    fn count(node: NodeView<'_>) -> usize {
        node.count().min(capacity(node.0.len()) / (2 * WORD))
    }

    fn key(node: NodeView<'_>, at: usize) -> Vec<u8> {
        node.bytes(at).to_vec()
    }

    fn what(node: NodeView<'_>, at: usize) -> u64 {
        let bytes = node.part(node.slot(at).offset(), WORD);
        if bytes.is_empty() { 0 } else { word(bytes, 0) }
    }

    fn search(node: NodeView<'_>, key: &[u8]) -> Result<usize, usize> {
        let rank = node.rank_of(key);
        if rank > 0 && node.bytes(rank - 1) == key { Ok(rank - 1) } else { Err(rank) }
    }

    fn glance(words: &Words<'_>, bytes: usize, meta: u64, key: &[u8]) -> Glance {
        let leaf = (meta >> 48) as u8 == 1;
        let fences = words.get(LOW / WORD);
        let beyond = |fence: Slot| match fence.len() {
            len if len == usize::from(NONE) => None,
            len => Some(compare(words, fence.offset(), len, key).is_le()),
        };
        let (not_below, above) = (beyond(Slot(fences)), beyond(Slot(fences >> 32)));
        let first = first_four(key);
        let (mut low, mut len) = (0, ((meta >> 32) as u16 as usize).min(capacity(bytes) / (2 * WORD)));
        let mut found = None;
        while len > 0 {
            let middle = low + len / 2;
            let slot = Slot(words.get(HEADER / WORD + middle));
            let order =
                slot.first_four().cmp(&first).then_with(|| compare(words, slot.offset() + WORD, slot.len(), key));
            if order.is_le() {
                found = Some((slot, order.is_eq()));
                (low, len) = (middle + 1, len - len / 2 - 1);
            } else {
                len /= 2;
            }
        }
        let what = found.filter(|(_, same)| *same || !leaf).map(|(slot, _)| words.get(slot.offset() / WORD));
        Glance { below: not_below == Some(false), above: above == Some(true), what }
    }

    fn fits(node: NodeView<'_>, key: &[u8]) -> bool {
        node.fences() + node.items() + item(key) <= capacity(node.0.len())
    }

    fn is_small(node: NodeView<'_>) -> bool {
        4 * node.items() < capacity(node.0.len())
    }

    fn fit_together(left: NodeView<'_>, right: NodeView<'_>) -> bool {
        let (items, room) = (left.items() + right.items(), capacity(left.0.len()));
        let fences = [left.fence(LOW), right.fence(HIGH)].into_iter().flatten().map(padded).sum::<usize>();
        4 * items <= 3 * room && fences + items <= room
    }

    fn middle(node: NodeView<'_>, at: usize) -> Option<Vec<u8>> {
        let (len, half_of_it) = (<[u8]>::count(node), node.items() / 2);
        if len < 2 {
            return None;
        }
        let mut bytes = 0;
        let full = (0..len).take_while(|at| {
            bytes += item(node.bytes(*at));
            bytes < half_of_it
        });
        let at = half(node, at, full.count() + 1).clamp(1, len - 1);
        let key = node.bytes(at);
        // Of an inner node the first key is the low fence.
        Some(if node.is_leaf() { separator(node.bytes(at - 1), key) } else { key }.to_vec())
    }

    fn clear(image: &mut [u8], level: u8, (low, next): (&[u8], Option<&[u8]>), right: u32) {
        let tail = image.len() - TAIL;
        image[8..].fill(0);
        image[HEAP..HEAP + 2].copy_from_slice(&(tail as u16).to_le_bytes());
        image[24..28].copy_from_slice(&right.to_le_bytes());
        image[30] = level + 1;
        set_fence(image, LOW, Some(low));
        set_fence(image, HIGH, next);
    }

    fn set_next(image: &mut [u8], next: Option<&[u8]>, right: u32) -> &'static [Range<usize>] {
        rebuild(image, next);
        image[24..28].copy_from_slice(&right.to_le_bytes());
        &[]
    }

    fn set_value(image: &mut [u8], at: usize, value: u64) -> Range<usize> {
        let offset = NodeView(image).slot(at).offset();
        match image.get_mut(offset..offset + WORD) {
            Some(bytes) if offset >= HEADER => {
                bytes.copy_from_slice(&value.to_le_bytes());
                offset..offset + WORD
            }
            _ => 0..0,
        }
    }

    fn insert(image: &mut [u8], at: usize, key: &[u8], what: u64) -> [Range<usize>; 3] {
        let size = WORD + padded(key);
        let room = |image: &mut [u8]| {
            let len = <[u8]>::count(NodeView(image));
            Some((take(image, size, len + 1)?, len))
        };
        let (place, closed) = match room(image) {
            Some(place) => (Some(place), false),
            None => {
                let next = <[u8]>::next(NodeView(image));
                rebuild(image, next.as_deref());
                (room(image), true)
            }
        };
        // Without room it is no node of a tree.
        let Some((offset, len)) = place else { return all(image) };
        let at = at.min(len);
        image[offset..offset + WORD].copy_from_slice(&what.to_le_bytes());
        image[offset + WORD..offset + size].fill(0);
        image[offset + WORD..offset + WORD + key.len()].copy_from_slice(key);
        let slots = HEADER + WORD * at..HEADER + WORD * (len + 1);
        image.copy_within(slots.start..slots.end - WORD, slots.start + WORD);
        image[slots.start..slots.start + WORD].copy_from_slice(&Slot::new(offset, key).0.to_le_bytes());
        image[28..30].copy_from_slice(&(len as u16 + 1).to_le_bytes());
        if closed { all(image) } else { [HEAP..HEADER, slots, offset..offset + size] }
    }

    fn remove(image: &mut [u8], at: usize) -> [Range<usize>; 3] {
        let len = <[u8]>::count(NodeView(image));
        let slots = HEADER + WORD * at..HEADER + WORD * len;
        image.copy_within(slots.start + WORD..slots.end, slots.start);
        image[28..30].copy_from_slice(&(len as u16 - 1).to_le_bytes());
        [24..HEADER, slots.start..slots.end - WORD, 0..0]
    }

    fn truncate(image: &mut [u8], len: usize) {
        image[28..30].copy_from_slice(&(len as u16).to_le_bytes());
    }
}
