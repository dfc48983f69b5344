//! Keys of up to 256 bytes: how they lie in a node.
//!
//! Head, tail and the last word of the header are those of every [node](super::node). Between them:
//!
//! | bytes        | what                                                                                             |
//! |--------------|--------------------------------------------------------------------------------------------------|
//! | 8..16        | the low fence and the high one, which belongs to the right: offset (2) and length (2) of each; a length of 65,535 is no fence |
//! | 16..18       | where the heap begins                                                                            |
//! | 18..20       | how many bytes both fences begin with: all keys here begin so, and only their *rests* are kept   |
//! | 32..         | a *slot* of 8 bytes for each key, ascending: offset (2), the rest's length (2), and its first four bytes as a number |
//! | ..n-8        | the heap, which grows downwards: of each key its value or child (8), then its rest, if that is longer than four bytes; whole fences. With zeros up to a multiple of 8 |
//!
//! What is taken out leaves a hole in the heap; it is closed when the room is wanted.

use std::cmp::Ordering;
use std::ops::Range;

use remora_memory::{Words, WordsMut};

use super::byte_calls::FIXED;
use super::keys::{Glance, TreeKey, half};
use super::node::{HEADER, NodeView, TAIL, short, word};
use super::place::{FIRST, InPlace, Leaf};
use super::{ByteParams, NODE_BYTES, Put, TreeRef};
use crate::call::{Call, Status};

/// Length of a fence that is none.
const NONE: u16 = u16::MAX;
/// Where the fences are said to be.
const LOW: usize = 8;
const HIGH: usize = 12;
/// Where the heap is said to begin.
const HEAP: usize = 16;
/// Where it is said how much all keys have in common.
const SAME: usize = 18;
/// Bytes of a rest that its slot holds.
const SHORT: usize = 4;
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

/// Bytes that a fence takes in the heap.
pub(super) fn padded(key: &[u8]) -> usize {
    key.len().next_multiple_of(WORD)
}

/// Bytes that a rest of such a length takes in the heap.
fn rest_bytes(len: usize) -> usize {
    if len <= SHORT { 0 } else { len.next_multiple_of(WORD) }
}

/// Bytes that a pair with such a rest takes: its slot, and its part of the heap.
pub(super) fn item(rest: usize) -> usize {
    2 * WORD + rest_bytes(rest)
}

/// Bytes that two keys begin with.
pub(super) fn same(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}

/// Bytes that a node has for fences and pairs.
pub(super) fn capacity(node_bytes: usize) -> usize {
    node_bytes - HEADER - TAIL
}

/// The first key behind `left` and not behind `right` that is short.
pub(super) fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    &right[..right.len().min(same(left, right) + 1)]
}

/// Eight bytes of a key from one on, zeros behind its end, as a number of the same order.
#[inline(always)]
fn piece(key: &[u8], at: usize) -> u64 {
    if let Some(bytes) = key.get(at..).and_then(|rest| rest.first_chunk()) {
        return u64::from_be_bytes(*bytes);
    }
    match key.last_chunk() {
        // The last eight, without those in front.
        Some(bytes) if at < key.len() => u64::from_be_bytes(*bytes) << (8 * (WORD - (key.len() - at))),
        Some(_) => 0,
        None => key.iter().skip(at).zip((0..WORD).rev()).map(|(byte, place)| u64::from(*byte) << (8 * place)).sum(),
    }
}

/// What a slot says of its rest's order.
#[inline(always)]
fn first_four(key: &[u8], at: usize) -> u32 {
    (piece(key, at) >> 32) as u32
}

/// What stands in a slot, or for a fence in its lower half.
#[derive(Clone, Copy)]
struct Slot(u64);

impl Slot {
    fn new(offset: usize, rest: &[u8]) -> Slot {
        Slot(offset as u64 | (rest.len() as u64) << 16 | u64::from(first_four(rest, 0)) << 32)
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

    /// How its rest is ordered beside one of such a length with the same first four bytes, if that can be told without the heap:
    /// zeros behind an end are no bytes of a rest, so the longer is the greater.
    fn order_of_short(self, len: usize) -> Option<Ordering> {
        (self.len() <= SHORT || len <= SHORT).then(|| self.len().cmp(&len))
    }
}

/// How the bytes in a node from `at` on, so many of them, are ordered beside those of a key, of which `from` are known to be the
/// same.
#[inline(always)]
fn compare(words: &Words<'_>, at: usize, len: usize, key: &[u8], from: usize) -> Ordering {
    let mut i = from;
    while i < len.min(key.len()) {
        let there = words.get((at + i) / WORD).swap_bytes();
        match there.cmp(&piece(key, i)) {
            Ordering::Equal => i += WORD,
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

    /// What all keys begin with.
    fn prefix(self) -> &'a [u8] {
        let low = self.fence(LOW).unwrap_or_default();
        &low[..low.len().min(short(self.0, SAME).into())]
    }

    /// Puts the key at a place into `key`.
    pub(super) fn key_to(self, at: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        self.push_rest(at, key);
    }

    /// Appends the rest of the key at a place.
    fn push_rest(self, at: usize, key: &mut Vec<u8>) {
        let slot = self.slot(at);
        match slot.len() {
            len @ ..=SHORT => key.extend_from_slice(&slot.first_four().to_be_bytes()[..len]),
            len => key.extend_from_slice(self.part(slot.offset() + WORD, len)),
        }
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
        (0..<[u8]>::count(self)).map(|at| item(self.slot(at).len())).sum()
    }

    /// How many keys are less than or equal to this one.
    fn rank_of(self, key: &[u8]) -> usize {
        let (prefix, count) = (self.prefix(), <[u8]>::count(self));
        let Some(rest) = key.strip_prefix(prefix) else { return if key < prefix { 0 } else { count } };
        let first = first_four(rest, 0);
        let (mut low, mut len) = (0, count);
        while len > 0 {
            let middle = low + len / 2;
            let slot = self.slot(middle);
            let order = slot.first_four().cmp(&first).then_with(|| {
                let long = || self.part(slot.offset() + WORD, slot.len()).cmp(rest);
                slot.order_of_short(rest.len()).unwrap_or_else(long)
            });
            if order.is_le() {
                (low, len) = (middle + 1, len - len / 2 - 1);
            } else {
                len /= 2;
            }
        }
        low
    }

    /// Whether this is the key at a place.
    fn is_at(self, at: usize, key: &[u8]) -> bool {
        let (slot, prefix) = (self.slot(at), self.prefix());
        match key.strip_prefix(prefix) {
            Some(rest) if slot.len() == rest.len() && slot.first_four() == first_four(rest, 0) => {
                rest.len() <= SHORT || self.part(slot.offset() + WORD, slot.len()) == rest
            }
            _ => false,
        }
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
        let mut key = Vec::new();
        node.key_to(at, &mut key);
        key
    }

    fn what(node: NodeView<'_>, at: usize) -> u64 {
        let bytes = node.part(node.slot(at).offset(), WORD);
        if bytes.is_empty() { 0 } else { word(bytes, 0) }
    }

    fn search(node: NodeView<'_>, key: &[u8]) -> Result<usize, usize> {
        let rank = node.rank_of(key);
        if rank > 0 && node.is_at(rank - 1, key) { Ok(rank - 1) } else { Err(rank) }
    }

    #[inline(always)]
    fn glance(words: &Words<'_>, &[_, fences, heap, meta]: &[u64; FIRST], key: &[u8]) -> Glance {
        let (low, high, same) = (Slot(fences), Slot(fences >> 32), usize::from((heap >> 16) as u16));
        // Whole words in which the fences are alike; of a node that says anything no more than the key has.
        let (mut at, alike) = (0, same.min(key.len()));
        while at + WORD <= alike {
            match words.get((low.offset() + at) / WORD).swap_bytes().cmp(&piece(key, at)) {
                Ordering::Equal => at += WORD,
                Ordering::Greater => return Glance::Below,
                Ordering::Less => return Glance::Above,
            }
        }
        if low.len() != usize::from(NONE) && compare(words, low.offset(), low.len(), key, at).is_gt() {
            return Glance::Below;
        }
        if high.len() != usize::from(NONE) && compare(words, high.offset(), high.len(), key, at).is_le() {
            return Glance::Above;
        }
        let (leaf, rest) = ((meta >> 48) as u8 == 1, key.get(same..).unwrap_or_default());
        let count = ((meta >> 32) as u16 as usize).min(capacity(words.bytes()) / (2 * WORD));
        let first = u64::from(first_four(key, same)) << 32;
        // As many begin no later than it does; of those that begin as it does few are more than one.
        let mut rank = words.rank(FIRST, count, first | u64::from(u32::MAX));
        let mut least = None;
        while let Some(at) = rank.checked_sub(1) {
            let slot = Slot(words.get(FIRST + at));
            let order = if slot.0 >> 32 != first >> 32 { Ordering::Less } else { order_of(words, slot, rest) };
            match order {
                Ordering::Equal => {
                    let what = Some(words.get(slot.offset() / WORD));
                    return Glance::Here(if leaf { at } else { rank }, what);
                }
                Ordering::Less => {
                    return Glance::Here(rank, (!leaf).then(|| words.get(slot.offset() / WORD)));
                }
                Ordering::Greater => {
                    // By halves, of those that begin as it does.
                    let least = *least.get_or_insert_with(|| match first.checked_sub(1) {
                        Some(below) => words.rank(FIRST, count, below),
                        None => 0,
                    });
                    let (mut from, mut left) = (least, at.saturating_sub(least));
                    while left > 0 {
                        let middle = from + left / 2;
                        if order_of(words, Slot(words.get(FIRST + middle)), rest).is_le() {
                            (from, left) = (middle + 1, left - left / 2 - 1);
                        } else {
                            left /= 2;
                        }
                    }
                    rank = from.min(at);
                }
            }
        }
        Glance::Here(0, None)
    }

    fn fits(node: NodeView<'_>, key: &[u8]) -> bool {
        let rest = key.len().saturating_sub(node.prefix().len());
        node.fences() + node.items() + item(rest) <= capacity(node.0.len())
    }

    fn is_small(node: NodeView<'_>) -> bool {
        4 * node.items() < capacity(node.0.len())
    }

    fn fit_together(left: NodeView<'_>, right: NodeView<'_>) -> bool {
        let (low, next) = (left.fence(LOW).unwrap_or_default(), right.fence(HIGH));
        let common = next.map_or(0, |next| same(low, next));
        let items = |node: NodeView<'_>| -> usize {
            let more = node.prefix().len().saturating_sub(common);
            (0..<[u8]>::count(node)).map(|at| item(node.slot(at).len() + more)).sum()
        };
        let (items, room) = (items(left) + items(right), capacity(left.0.len()));
        let fences = padded(low) + next.map_or(0, padded);
        4 * items <= 3 * room && fences + items <= room
    }

    fn middle(node: NodeView<'_>, at: usize) -> Option<Vec<u8>> {
        let (len, half_of_it) = (<[u8]>::count(node), node.items() / 2);
        if len < 2 {
            return None;
        }
        let mut bytes = 0;
        let full = (0..len).take_while(|at| {
            bytes += item(node.slot(*at).len());
            bytes < half_of_it
        });
        let at = half(node, at, full.count() + 1).clamp(1, len - 1);
        let mut key = <[u8]>::key(node, at);
        if node.is_leaf() {
            // Of an inner node the first key is the low fence.
            let len = separator(&<[u8]>::key(node, at - 1), &key).len();
            key.truncate(len);
        }
        Some(key)
    }

    fn clear(image: &mut [u8], level: u8, (low, next): (&[u8], Option<&[u8]>), right: u32) {
        let tail = image.len() - TAIL;
        image[8..].fill(0);
        image[HEAP..HEAP + 2].copy_from_slice(&(tail as u16).to_le_bytes());
        image[24..28].copy_from_slice(&right.to_le_bytes());
        image[30] = level + 1;
        let common = next.map_or(0, |next| same(low, next)) as u16;
        image[SAME..SAME + 2].copy_from_slice(&common.to_le_bytes());
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
        let rest = |image: &[u8]| key.get(NodeView(image).prefix().len()..).unwrap_or_default();
        let size = WORD + rest_bytes(rest(image).len());
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
        let rest = rest(image);
        image[offset..offset + WORD].copy_from_slice(&what.to_le_bytes());
        if size > WORD {
            image[offset + WORD..offset + size].fill(0);
            image[offset + WORD..offset + WORD + rest.len()].copy_from_slice(rest);
        }
        let slots = HEADER + WORD * at..HEADER + WORD * (len + 1);
        image.copy_within(slots.start..slots.end - WORD, slots.start + WORD);
        image[slots.start..slots.start + WORD].copy_from_slice(&Slot::new(offset, rest).0.to_le_bytes());
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

    fn append(image: &mut [u8], other: NodeView<'_>, from: usize) {
        let mut key = other.prefix().to_vec();
        let prefix = key.len();
        for at in from..<[u8]>::count(other) {
            key.truncate(prefix);
            other.push_rest(at, &mut key);
            let len = <[u8]>::count(NodeView(image));
            <[u8]>::insert(image, len, &key, <[u8]>::what(other, at));
        }
    }
}

/// How the rest in a slot is ordered beside one that begins with the same four bytes.
#[inline(always)]
fn order_of(words: &Words<'_>, slot: Slot, rest: &[u8]) -> Ordering {
    let long = || compare(words, slot.offset() + WORD, slot.len(), rest, 0);
    slot.order_of_short(rest.len()).unwrap_or_else(long)
}

impl InPlace for [u8] {
    /// None as long as it is the one in the parameters.
    type Kept = Option<Vec<u8>>;

    fn asked(params: &[u8]) -> Result<(TreeRef, Self::Kept, u64, Put), Status> {
        let ByteParams { tree, value, how, .. } = ByteParams::decode(params)?;
        Ok((tree, None, value, how))
    }

    #[inline(always)]
    fn sought<'a>(kept: &'a Self::Kept, params: &'a [u8]) -> &'a [u8] {
        kept.as_deref().unwrap_or(params.get(FIXED..).unwrap_or_default())
    }

    fn pairs(leaf: &Leaf<'_>, most: usize, call: &mut Call) -> Result<usize, Status> {
        let len = leaf.count().min(capacity(leaf.words.bytes()) / (2 * WORD));
        let count = len.saturating_sub(leaf.place).min(most);
        let same = usize::from((leaf.words.get(HEAP / WORD) >> 16) as u16).min(KEY_BYTES);
        let slot = |at| Slot(leaf.words.get(FIRST + at));
        let places = leaf.place..leaf.place + count;
        let rests: usize = places.clone().map(|at| slot(at).len().min(KEY_BYTES - same)).sum();
        let bytes = count * (2 + same + WORD) + rests;
        if bytes > call.reply_room() {
            return Err(Status::ReplyTooLong);
        }
        // What all begin with, behind room for the length: blocks of it are written, what is too much being written over.
        let mut begin = [0; (2 + KEY_BYTES).next_multiple_of(BLOCK)];
        leaf.words.take(Slot(leaf.words.get(LOW / WORD)).offset(), &mut begin[2..2 + same]);
        let start = call.reply.len();
        call.reply.resize(start + bytes + BLOCK, 0);
        let (out, mut at) = (&mut call.reply[start..], 0);
        for place in places {
            let slot = slot(place);
            let rest = slot.len().min(KEY_BYTES - same);
            for from in (0..2 + same).step_by(BLOCK) {
                lay::<BLOCK>(out, at + from, begin[from..].first_chunk());
            }
            lay(out, at, Some(&((same + rest) as u16).to_le_bytes()));
            at += 2 + same;
            lay(out, at, Some(&slot.first_four().to_be_bytes()));
            for from in (0..rest_bytes(rest)).step_by(WORD) {
                let word = leaf.words.get((slot.offset() + WORD + from) / WORD);
                lay(out, at + from, Some(&word.to_le_bytes()));
            }
            at += rest;
            lay(out, at, Some(&leaf.words.get(slot.offset() / WORD).to_le_bytes()));
            at += WORD;
        }
        call.reply.truncate(start + bytes);
        Ok(count)
    }

    fn fence(leaf: &Leaf<'_>, next: &mut Vec<u8>) -> bool {
        let fence = Slot(leaf.words.get(LOW / WORD) >> 32);
        if fence.len() == usize::from(NONE) {
            return false;
        }
        next.clear();
        next.resize(fence.len().min(KEY_BYTES), 0);
        leaf.words.take(fence.offset(), next);
        true
    }

    fn turn(kept: &mut Self::Kept, next: &mut Vec<u8>) {
        std::mem::swap(kept.get_or_insert_default(), next);
    }

    /// An index has no keys that are bytes.
    fn away(_: &Self::Kept, _: &mut Call) -> Result<(), Status> {
        Ok(())
    }

    fn has_room(leaf: &Leaf<'_>, key: &[u8]) -> bool {
        free(leaf, key).is_some()
    }

    fn put(node: &WordsMut<'_>, leaf: &Leaf<'_>, key: &[u8], value: u64) {
        if leaf.value.is_some() {
            let slot = Slot(leaf.words.get(FIRST + leaf.place));
            return node.set(slot.offset() / WORD, value);
        }
        let Some((offset, rest)) = free(leaf, key) else { return };
        let (len, heap) = (leaf.count(), leaf.words.get(HEAP / WORD));
        node.set(HEAP / WORD, heap & !0xffff | offset as u64);
        node.set(FIRST - 1, (leaf.meta & !(0xffff << 32)) | (len as u64 + 1) << 32);
        node.shift(FIRST + leaf.place, len.saturating_sub(leaf.place));
        node.set(FIRST + leaf.place, Slot::new(offset, rest).0);
        node.set(offset / WORD, value);
        for at in (0..rest_bytes(rest.len())).step_by(WORD) {
            node.set((offset + WORD + at) / WORD, piece(rest, at).swap_bytes());
        }
    }
}

/// Bytes that are laid at once.
const BLOCK: usize = 32;

/// Lays bytes, a number that the compiler knows.
#[inline(always)]
fn lay<const N: usize>(out: &mut [u8], at: usize, bytes: Option<&[u8; N]>) {
    if let (Some(room), Some(bytes)) = (out.get_mut(at..at + N), bytes) {
        room.copy_from_slice(bytes);
    }
}

/// Where in a leaf's heap a pair more would lie, if there is room in front of it, and the rest of its key.
fn free<'k>(leaf: &Leaf<'_>, key: &'k [u8]) -> Option<(usize, &'k [u8])> {
    let word = leaf.words.get(HEAP / WORD);
    let rest = key.get(usize::from((word >> 16) as u16)..)?;
    let heap = usize::from(word as u16).min(leaf.words.bytes() - TAIL) / WORD * WORD;
    let offset = heap.checked_sub(WORD + rest_bytes(rest.len()))?;
    (offset >= HEADER + WORD * (leaf.count() + 1)).then_some((offset, rest))
}
