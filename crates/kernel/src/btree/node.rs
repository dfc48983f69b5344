//! What a node of the tree looks like in memory, and the changes that writers make to a copy of one.
//!
//! All words are little-endian. A node of `n` bytes, a power of two from 256 to 4096:
//!
//! | bytes          | what                                                                           |
//! |----------------|--------------------------------------------------------------------------------|
//! | 0..8           | the *head*: version, and who has the lock                                      |
//! | 8..16, 16..24  | the lowest and the highest key that belong here (the *fences*, both inclusive) |
//! | 24..32         | slot of the node to the right (4), number of keys (2), 1 + level (1), away (1) |
//! | 32..           | keys, ascending; behind the room for them the values (8 each) or children (4)  |
//! | n-8..n         | the *tail*: the version once more                                              |
//!
//! A leaf that is *away*, 1 there, has no keys: those that belong between its fences are in the other part of an index
//! (see [`Index`](super::Index)). A node that is free has 0 in place of 1 + level. The level of a leaf is 0. Child `i` of an inner node holds the keys
//! from key `i` on; key 0 is the low fence.

use std::ops::Range;

/// Least and most bytes of a node.
pub const NODE_BYTES: [usize; 2] = [256, 4096];
/// Bytes in front of the keys.
pub const HEADER: usize = 32;
/// Bytes of the tail.
pub(super) const TAIL: usize = 8;

/// The head's bit that says that somebody has the lock; below it stands who.
const LOCKED: u64 = 1 << 16;
/// One version more.
const VERSION: u64 = 1 << 17;

/// A node's head: its version, and who has its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(pub u64);

impl Head {
    /// Whether somebody has the lock.
    #[inline]
    pub fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// Who has the lock.
    pub fn owner(self) -> u16 {
        self.0 as u16
    }

    /// The same version without a lock.
    #[inline]
    pub fn unlocked(self) -> Head {
        Head(self.0 / VERSION * VERSION)
    }

    /// The same version, locked by `owner`.
    #[inline]
    pub fn locked(self, owner: u16) -> Head {
        Head(self.unlocked().0 | LOCKED | u64::from(owner))
    }

    /// The next version, without a lock.
    #[inline]
    pub fn next(self) -> Head {
        Head(self.unlocked().0.wrapping_add(VERSION))
    }
}

/// Keys that a leaf of so many bytes holds.
#[inline]
pub const fn leaf_keys(bytes: usize) -> usize {
    bytes.saturating_sub(HEADER + TAIL) / 16
}

/// Children that an inner node of so many bytes holds.
#[inline]
pub const fn children(bytes: usize) -> usize {
    bytes.saturating_sub(HEADER + TAIL) / 12
}

/// The word at `at`.
#[inline(always)]
pub fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The two bytes at `at` as a number.
#[inline(always)]
pub(super) fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The four bytes at `at` as a number.
#[inline(always)]
pub(super) fn half(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// A copy of a node, or of its first [`HEADER`] bytes where only those are asked about.
#[derive(Clone, Copy)]
pub struct NodeView<'a>(pub &'a [u8]);

impl<'a> NodeView<'a> {
    /// Version and lock.
    #[inline]
    pub fn head(self) -> Head {
        Head(word(self.0, 0))
    }

    /// Whether the copy is of one moment: the head was read before everything else, the tail behind it, and writers
    /// change the tail first and the head last.
    #[inline]
    pub fn is_whole(self) -> bool {
        !self.head().is_locked() && word(self.0, self.0.len() - TAIL) == self.head().0
    }

    /// The lowest key that belongs here.
    #[inline]
    pub fn low(self) -> u64 {
        word(self.0, 8)
    }

    /// The highest key that belongs here.
    #[inline]
    pub fn high(self) -> u64 {
        word(self.0, 16)
    }

    /// Slot of the node to the right; 0 if there is none.
    #[inline]
    pub fn right(self) -> u32 {
        half(self.0, 24)
    }

    /// The level, 0 at the leaves; none if the node is free.
    #[inline]
    pub fn level(self) -> Option<u8> {
        self.0[30].checked_sub(1)
    }

    /// Whether it is a leaf.
    #[inline]
    pub fn is_leaf(self) -> bool {
        self.0[30] == 1
    }

    /// Whether the keys of a leaf are in the other part of an index.
    #[inline]
    pub fn is_away(self) -> bool {
        self.0[31] != 0
    }

    /// Whether a key belongs here.
    #[inline]
    pub fn covers(self, key: u64) -> bool {
        self.low() <= key && key <= self.high()
    }

    /// Keys that there is room for.
    #[inline]
    pub fn room(self) -> usize {
        if self.is_leaf() { leaf_keys(self.0.len()) } else { children(self.0.len()) }
    }

    /// Number of keys, as it stands there.
    #[inline]
    pub fn count(self) -> usize {
        short(self.0, 28).into()
    }

    /// Number of keys, which are numbers.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "no caller asks whether a node is empty")]
    pub fn len(self) -> usize {
        self.count().min(self.room())
    }

    /// Whether so little is in it that it should be merged with a neighbour.
    #[inline]
    pub fn is_small(self) -> bool {
        self.len() < self.room() / 4
    }

    /// The key at a place.
    #[inline]
    pub fn key(self, at: usize) -> u64 {
        word(self.0, HEADER + 8 * at)
    }

    /// Where a key's value or child is, in bytes from the node's start.
    #[inline]
    pub fn offset(self, at: usize) -> usize {
        let behind = HEADER + 8 * self.room();
        if self.is_leaf() { behind + 8 * at } else { behind + 4 * at }
    }

    /// The value at a place of a leaf.
    #[inline]
    pub fn value(self, at: usize) -> u64 {
        word(self.0, self.offset(at))
    }

    /// The child at a place of an inner node.
    #[inline]
    pub fn child(self, at: usize) -> u32 {
        half(self.0, self.offset(at))
    }

    /// How many keys are less than or equal to this one.
    #[inline]
    pub fn rank(self, key: u64) -> usize {
        let keys = &self.0[HEADER..HEADER + 8 * self.len()];
        let (mut low, mut len) = (0, self.len());
        while len > 0 {
            let middle = low + len / 2;
            if word(keys, 8 * middle) <= key {
                (low, len) = (middle + 1, len - len / 2 - 1);
            } else {
                len /= 2;
            }
        }
        low
    }

    /// Where the key is, or where it would be.
    #[inline]
    pub fn search(self, key: u64) -> Result<usize, usize> {
        let rank = self.rank(key);
        if rank > 0 && self.key(rank - 1) == key { Ok(rank - 1) } else { Err(rank) }
    }

    /// The place of the child that holds this key; none in an inner node without children, which no tree has.
    #[inline]
    pub fn place(self, key: u64) -> Option<usize> {
        self.rank(key).checked_sub(1)
    }
}

/// A copy of a node that is being changed. Head and tail are left to who writes it back.
pub struct NodeMut<'a>(pub &'a mut [u8]);

impl NodeMut<'_> {
    /// The node as it stands.
    pub fn node(&self) -> NodeView<'_> {
        NodeView(self.0)
    }

    /// Makes it a node without keys. Its head stays.
    pub fn clear(&mut self, level: u8, (low, high): (u64, u64), right: u32) {
        self.0[8..].fill(0);
        self.0[30] = level + 1;
        self.set_range(low, high, right);
    }

    /// Makes it a free node. Its head stays.
    pub fn free(&mut self) {
        self.0[8..].fill(0);
    }

    /// Sets fences and right neighbour.
    pub fn set_range(&mut self, low: u64, high: u64, right: u32) {
        self.0[8..16].copy_from_slice(&low.to_le_bytes());
        self.0[16..24].copy_from_slice(&high.to_le_bytes());
        self.0[24..28].copy_from_slice(&right.to_le_bytes());
    }

    /// Says whether its keys are in the other part.
    pub fn set_away(&mut self, away: bool) {
        self.0[31] = away.into();
    }

    fn set_len(&mut self, len: usize) {
        self.0[28..30].copy_from_slice(&(len as u16).to_le_bytes());
    }

    /// Bytes of a value or child.
    fn width(&self) -> usize {
        if self.node().is_leaf() { 8 } else { 4 }
    }

    /// Appends a key with its value or child.
    pub fn push(&mut self, key: u64, what: u64) {
        self.insert(self.node().len(), key, what);
    }

    /// Replaces a value.
    pub fn set_value(&mut self, at: usize, value: u64) -> Range<usize> {
        let offset = self.node().offset(at);
        self.0[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        offset..offset + 8
    }

    /// Puts a key in at a place, with its value or child. There is room. Returns which bytes changed.
    pub fn insert(&mut self, at: usize, key: u64, what: u64) -> [Range<usize>; 3] {
        let (len, width) = (self.node().len(), self.width());
        let keys = HEADER + 8 * at..HEADER + 8 * (len + 1);
        let values = self.node().offset(at)..self.node().offset(len + 1);
        self.0.copy_within(keys.start..keys.end - 8, keys.start + 8);
        self.0.copy_within(values.start..values.end - width, values.start + width);
        self.0[keys.start..keys.start + 8].copy_from_slice(&key.to_le_bytes());
        self.0[values.start..values.start + width].copy_from_slice(&what.to_le_bytes()[..width]);
        self.set_len(len + 1);
        [24..32, keys, values]
    }

    /// Takes the key at a place out, with its value or child. Returns which bytes changed.
    pub fn remove(&mut self, at: usize) -> [Range<usize>; 3] {
        let (len, width) = (self.node().len(), self.width());
        let keys = HEADER + 8 * at..HEADER + 8 * len;
        let values = self.node().offset(at)..self.node().offset(len);
        self.0.copy_within(keys.start + 8..keys.end, keys.start);
        self.0.copy_within(values.start + width..values.end, values.start);
        self.set_len(len - 1);
        [24..32, keys.start..keys.end - 8, values.start..values.end - width]
    }

    /// Drops the keys from a place on.
    pub fn truncate(&mut self, len: usize) {
        self.set_len(len);
    }

    /// Appends the keys of a node of the same level from a place on, with their values or children: as many as have room.
    pub fn append(&mut self, other: NodeView<'_>, from: usize) {
        let (node, width) = (self.node(), self.width());
        let (len, keys) = (node.len(), HEADER + 8 * node.len());
        let (values, more) = (node.offset(len), other.len().saturating_sub(from).min(node.room() - len));
        let mut take = |into: usize, place: usize, bytes: usize| {
            self.0[into..into + bytes].copy_from_slice(&other.0[place..place + bytes]);
        };
        take(keys, HEADER + 8 * from, 8 * more);
        take(values, other.offset(from), width * more);
        self.set_len(len + more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_hold_what_they_are_said_to() {
        assert_eq!([256, 512, 1024, 4096].map(leaf_keys), [13, 29, 61, 253]);
        assert_eq!([256, 512, 1024, 4096].map(children), [18, 39, 82, 338]);
        for bytes in [256, 512, 1024, 2048, 4096] {
            for level in [0, 3] {
                let mut image = vec![0xff; bytes];
                let mut node = NodeMut(&mut image);
                node.clear(level, (10, 5000), 7);
                let room = node.node().room();
                (0..room).for_each(|i| node.push(10 + 2 * i as u64, 100 + i as u64));
                let node = NodeView(&image);
                assert_eq!((node.len(), node.level(), node.right()), (room, Some(level), 7));
                assert!(node.offset(room) <= bytes - TAIL);
                for i in 0..room {
                    let key = 10 + 2 * i as u64;
                    assert_eq!((node.search(key), node.search(key + 1)), (Ok(i), Err(i + 1)));
                    let what = if level == 0 { node.value(i) } else { node.child(i).into() };
                    assert_eq!((what, node.place(key + 1)), (100 + i as u64, Some(i)));
                }
                assert_eq!((node.search(9), node.place(9)), (Err(0), None));
                let mut halves = [vec![0; bytes], vec![0; bytes]];
                for (image, range) in halves.iter_mut().zip([0..room / 2, room / 2..room]) {
                    NodeMut(image).clear(level, (10, 5000), 7);
                    range.clone().for_each(|i| NodeMut(image).push(10 + 2 * i as u64, 100 + i as u64));
                }
                let [mut left, right] = halves;
                NodeMut(&mut left).append(NodeView(&right), 0);
                assert!(left[8..] == image[8..], "two halves are the whole");
                NodeMut(&mut left).append(NodeView(&right), 1);
                assert_eq!(NodeView(&left).len(), room, "what has no room stays out");
            }
        }
    }

    #[test]
    fn changes_say_which_bytes_they_change() {
        for level in [0, 1] {
            let mut before = vec![0; 256];
            NodeMut(&mut before).clear(level, (0, u64::MAX), 0);
            [10, 20, 30].into_iter().for_each(|key| NodeMut(&mut before).push(key, key));
            for at in 0..3 {
                for insert in [true, false] {
                    let mut after = before.clone();
                    let mut node = NodeMut(&mut after);
                    let changed = if insert { node.insert(at, 5, 6) } else { node.remove(at) };
                    let mut patched = before.clone();
                    changed.into_iter().for_each(|range| patched[range.clone()].copy_from_slice(&after[range]));
                    // What lies behind the last key is of no account.
                    let (node, patched) = (NodeView(&after), NodeView(&patched));
                    let keys =
                        |node: NodeView<'_>| (0..node.len()).map(|i| (node.key(i), node.offset(i))).collect::<Vec<_>>();
                    assert_eq!((keys(node), node.len()), (keys(patched), if insert { 4 } else { 2 }));
                    for i in 0..node.len() {
                        let range = node.offset(i)..node.offset(i) + 4;
                        assert_eq!(node.0[range.clone()], patched.0[range]);
                    }
                }
            }
        }
    }

    #[test]
    fn heads_are_version_and_owner() {
        let head = Head(0).next().next();
        let locked = head.locked(77);
        assert!(locked.is_locked() && !head.is_locked() && locked.owner() == 77);
        assert_eq!((locked.unlocked(), locked.next()), (head, head.next()));
        assert_ne!(head.next(), head);
    }
}
