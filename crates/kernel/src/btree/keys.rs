//! What a tree asks of its keys: how they lie in nodes.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::Range;

use remora_memory::Words;

use super::node::{HEADER, NodeMut, NodeView, children, leaf_keys};

/// What one look at a node where it lies says of a key. Nothing of it holds unless the node's version is the same before
/// and afterwards.
pub struct Glance {
    /// The key is less than what belongs here.
    pub below: bool,
    /// The key is greater than what belongs here.
    pub above: bool,
    /// A leaf's value of the key, or the child that has it.
    pub what: Option<u64>,
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

    /// Looks at a node of so many bytes in place; `meta` is the last word of its header.
    fn glance(words: &Words<'_>, bytes: usize, meta: u64, key: &Self) -> Glance;

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
    fn glance(words: &Words<'_>, bytes: usize, meta: u64, key: &u64) -> Glance {
        let (low, high) = (words.get(1), words.get(2));
        let (first, leaf) = (HEADER / 8, (meta >> 48) as u8 == 1);
        let room = if leaf { leaf_keys(bytes) } else { children(bytes) };
        let len = ((meta >> 32) as u16 as usize).min(room);
        let what = match words.rank(first, len, *key).checked_sub(1) {
            Some(at) if leaf => (words.get(first + at) == *key).then(|| words.get(first + room + at)),
            Some(at) => Some(words.get(first + room + at / 2) >> (32 * (at % 2)) & 0xffff_ffff),
            None => None,
        };
        Glance { below: *key < low, above: *key > high, what }
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
