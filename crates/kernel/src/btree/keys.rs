//! What a tree asks of its keys: how they lie in nodes.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::Range;

use remora_memory::{Words, WordsMut};

use super::node::{NodeMut, NodeView, children, leaf_keys};
use super::place::{FIRST, InPlace, Leaf};
use super::{Put, TreeParams, TreeRef};
use crate::call::{Call, Status};

/// What one look at a node where it lies says of a key. Nothing of it holds unless the node's version is the same before
/// and afterwards.
pub enum Glance {
    /// The key is less than what belongs here.
    Below,
    /// It is greater.
    Above,
    /// It belongs here: where it is, or would be, and a leaf's value of it, or the child that has it.
    Here(usize, Option<u64>),
}

/// Keys of a tree: 64-bit numbers, or bytes. The tree's code is the same; how keys, fences and values lie in a node is theirs.
///
/// Nodes may hold anything, as clients write them: no function panics because of what it finds there.
pub trait TreeKey: ToOwned<Owned: Borrow<Self> + Clone + Debug + Ord> + Ord {
    /// Whether a tree with nodes of so many bytes may have such a key.
    fn is_allowed(&self, node_bytes: usize) -> bool;

    /// The least key of all.
    fn least() -> Self::Owned;

    /// The lowest key that belongs into a node.
    fn low(node: NodeView<'_>) -> Self::Owned;

    /// The lowest key that belongs to the right of a node; none if all that are not below it belong here.
    fn next(node: NodeView<'_>) -> Option<Self::Owned>;

    /// Whether a key is less than what belongs here.
    fn is_below(node: NodeView<'_>, key: &Self) -> bool;

    /// Whether a key is greater than what belongs here.
    fn is_above(node: NodeView<'_>, key: &Self) -> bool;

    /// Whether a key belongs here.
    fn covers(node: NodeView<'_>, key: &Self) -> bool {
        !Self::is_below(node, key) && !Self::is_above(node, key)
    }

    /// Number of keys.
    fn count(node: NodeView<'_>) -> usize;

    /// The key at a place.
    fn key(node: NodeView<'_>, at: usize) -> Self::Owned;

    /// The value, or child, at a place.
    fn what(node: NodeView<'_>, at: usize) -> u64;

    /// Where a key is, or where it would be.
    fn search(node: NodeView<'_>, key: &Self) -> Result<usize, usize>;

    /// The place of the child that holds a key; none in an inner node without children, which no tree has.
    fn place(node: NodeView<'_>, key: &Self) -> Option<usize> {
        match Self::search(node, key) {
            Ok(at) => Some(at),
            Err(at) => at.checked_sub(1),
        }
    }

    /// Looks at a node in place, whose header this was.
    fn glance(words: &Words<'_>, header: &[u64; FIRST], key: &Self) -> Glance;

    /// Whether a key more has room.
    fn fits(node: NodeView<'_>, key: &Self) -> bool;

    /// Whether so little is in it that it should be merged with a neighbour.
    fn is_small(node: NodeView<'_>) -> bool;

    /// Whether what neighbours hold fits into three quarters of one node.
    fn fit_together(left: NodeView<'_>, right: NodeView<'_>) -> bool;

    /// Where a node without room for a key at this place is to be split: the lowest key of its right half. None if it has
    /// fewer than two keys, as no full node of a tree has.
    fn middle(node: NodeView<'_>, at: usize) -> Option<Self::Owned>;

    /// Makes it a node without keys. Its head stays.
    fn clear(image: &mut [u8], level: u8, range: (&Self, Option<&Self>), right: u32);

    /// Ends its range at another key, or at none, with another right neighbour. There is room. Returns which bytes changed: all if none.
    fn set_next(image: &mut [u8], next: Option<&Self>, right: u32) -> &'static [Range<usize>];

    /// Replaces a value. Returns which bytes changed.
    fn set_value(image: &mut [u8], at: usize, value: u64) -> Range<usize>;

    /// Puts a key in at a place, with its value or child. It [fits](Self::fits). Returns which bytes changed.
    fn insert(image: &mut [u8], at: usize, key: &Self, what: u64) -> [Range<usize>; 3];

    /// Takes the key at a place out, with its value or child. Returns which bytes changed.
    fn remove(image: &mut [u8], at: usize) -> [Range<usize>; 3];

    /// Drops the keys from a place on.
    fn truncate(image: &mut [u8], len: usize);

    /// Appends the keys of a node from a place on, with their values or children.
    fn append(image: &mut [u8], other: NodeView<'_>, from: usize) {
        for at in from..Self::count(other) {
            let len = Self::count(NodeView(image));
            Self::insert(image, len, Self::key(other, at).borrow(), Self::what(other, at));
        }
    }
}

impl TreeKey for u64 {
    fn is_allowed(&self, _: usize) -> bool {
        true
    }

    fn least() -> u64 {
        0
    }

    fn low(node: NodeView<'_>) -> u64 {
        node.low()
    }

    fn next(node: NodeView<'_>) -> Option<u64> {
        node.high().checked_add(1)
    }

    fn is_below(node: NodeView<'_>, key: &u64) -> bool {
        *key < node.low()
    }

    fn is_above(node: NodeView<'_>, key: &u64) -> bool {
        *key > node.high()
    }

    fn count(node: NodeView<'_>) -> usize {
        node.len()
    }

    fn key(node: NodeView<'_>, at: usize) -> u64 {
        node.key(at)
    }

    fn what(node: NodeView<'_>, at: usize) -> u64 {
        if node.is_leaf() { node.value(at) } else { node.child(at).into() }
    }

    fn search(node: NodeView<'_>, key: &u64) -> Result<usize, usize> {
        node.search(*key)
    }

    #[inline(always)]
    fn glance(words: &Words<'_>, &[_, low, high, meta]: &[u64; FIRST], key: &u64) -> Glance {
        // One comparison for both fences: what is below wraps to what is above.
        if key.wrapping_sub(low) > high.wrapping_sub(low) {
            return if *key < low { Glance::Below } else { Glance::Above };
        }
        let (leaf, bytes) = ((meta >> 48) as u8 == 1, words.bytes());
        let room = if leaf { leaf_keys(bytes) } else { children(bytes) };
        let len = ((meta >> 32) as u16 as usize).min(room);
        let rank = words.rank(FIRST, len, *key);
        match rank.checked_sub(1) {
            Some(at) if !leaf => {
                Glance::Here(rank, Some(words.get(FIRST + room + at / 2) >> (32 * (at % 2)) & 0xffff_ffff))
            }
            Some(at) if words.get(FIRST + at) == *key => Glance::Here(at, Some(words.get(FIRST + room + at))),
            _ => Glance::Here(rank, None),
        }
    }

    fn fits(node: NodeView<'_>, _: &u64) -> bool {
        node.len() < node.room()
    }

    fn is_small(node: NodeView<'_>) -> bool {
        node.is_small()
    }

    fn fit_together(left: NodeView<'_>, right: NodeView<'_>) -> bool {
        4 * (left.len() + right.len()) <= 3 * left.room()
    }

    fn middle(node: NodeView<'_>, at: usize) -> Option<u64> {
        (node.len() > 1).then(|| node.key(half(node, at, node.len() / 2)))
    }

    fn clear(image: &mut [u8], level: u8, (low, next): (&u64, Option<&u64>), right: u32) {
        NodeMut(image).clear(level, (*low, high(next)), right);
    }

    fn set_next(image: &mut [u8], next: Option<&u64>, right: u32) -> &'static [Range<usize>] {
        let low = NodeView(image).low();
        NodeMut(image).set_range(low, high(next), right);
        &super::access::HEADER_ONLY
    }

    fn set_value(image: &mut [u8], at: usize, value: u64) -> Range<usize> {
        NodeMut(image).set_value(at, value)
    }

    fn insert(image: &mut [u8], at: usize, key: &u64, what: u64) -> [Range<usize>; 3] {
        NodeMut(image).insert(at, *key, what)
    }

    fn remove(image: &mut [u8], at: usize) -> [Range<usize>; 3] {
        NodeMut(image).remove(at)
    }

    fn truncate(image: &mut [u8], len: usize) {
        NodeMut(image).truncate(len);
    }

    fn append(image: &mut [u8], other: NodeView<'_>, from: usize) {
        NodeMut(image).append(other, from);
    }
}

/// A key more, in the last word of a node's header.
const ONE_MORE: u64 = 1 << 32;

impl Leaf<'_> {
    /// Keys that it has, numbers, and those that there is room for.
    #[inline(always)]
    fn len_and_room(&self) -> (usize, usize) {
        let room = leaf_keys(self.words.bytes());
        (self.count().min(room), room)
    }
}

impl InPlace for u64 {
    type Kept = u64;

    #[inline(always)]
    fn asked(params: &[u8]) -> Result<(TreeRef, u64, u64, Put), Status> {
        let TreeParams { tree, key, value, how } = TreeParams::decode(params)?;
        Ok((tree, key, value, how))
    }

    #[inline(always)]
    fn sought<'a>(kept: &'a u64, _: &'a [u8]) -> &'a u64 {
        kept
    }

    #[inline(always)]
    fn pairs(leaf: &Leaf<'_>, most: usize, call: &mut Call) -> Result<usize, Status> {
        let (len, room) = leaf.len_and_room();
        let count = len.saturating_sub(leaf.place).min(most);
        let first = FIRST + leaf.place;
        leaf.words.pairs(first, first + room, call.grow_reply(16 * count)?);
        Ok(count)
    }

    #[inline(always)]
    fn fence(leaf: &Leaf<'_>, next: &mut u64) -> bool {
        let high = leaf.words.get(2);
        *next = high.wrapping_add(1);
        high < u64::MAX
    }

    #[inline(always)]
    fn turn(kept: &mut u64, next: &mut u64) {
        *kept = *next;
    }

    fn away(from: &u64, call: &mut Call) -> Result<(), Status> {
        call.grow_reply(8)?.copy_from_slice(&from.to_le_bytes());
        Ok(())
    }

    #[inline(always)]
    fn has_room(leaf: &Leaf<'_>, _: &u64) -> bool {
        let (len, room) = leaf.len_and_room();
        len < room
    }

    #[inline(always)]
    fn put(node: &WordsMut<'_>, leaf: &Leaf<'_>, key: &u64, value: u64) {
        let ((len, room), at) = (leaf.len_and_room(), leaf.place);
        let (keys, values) = (FIRST, FIRST + room);
        if leaf.value.is_none() {
            node.set(FIRST - 1, (leaf.meta & !(0xffff * ONE_MORE)) | ((len as u64 + 1) * ONE_MORE));
            node.shift(keys + at, len.saturating_sub(at));
            node.shift(values + at, len.saturating_sub(at));
            node.set(keys + at, *key);
        }
        node.set(values + at, value);
    }
}

/// The high fence of a node whose right neighbour begins there.
fn high(next: Option<&u64>) -> u64 {
    next.map_or(u64::MAX, |next| next.wrapping_sub(1))
}

/// In front of which key a full node is split: in the middle, or, if keys come in order, so that they fill the nodes that they
/// leave behind.
pub(super) fn half(node: NodeView<'_>, at: usize, middle: usize) -> usize {
    let len = node.count();
    if node.right() == 0 && at == len { len - len / 8 - 1 } else { middle }
}
