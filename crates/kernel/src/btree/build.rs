//! Bulk loading: the image of a tree, node by node.

use std::ops::RangeInclusive;

use super::node::{NodeMut, children, leaf_keys};
use super::{FIRST, First, ROOT, TreeRef};

/// Why a tree cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A key that is not greater than the one before.
    #[error("key {key:#x}, pair {at} counted from 0, is not greater than the one before: sort them, each once")]
    Unsorted {
        /// The key.
        key: u64,
        /// Its number.
        at: usize,
    },
    /// A key that is for the other part of an index.
    #[error("key {0:#x} is not within the range of the part that is loaded")]
    Outside(u64),
    /// More nodes than the tree has slots.
    #[error("{pairs} pairs take {needed} slots of a tree that has {slots}")]
    TooManyPairs {
        /// Pairs to load.
        pairs: usize,
        /// Slots that they take.
        needed: u64,
        /// Slots that there are.
        slots: u32,
    },
    /// Keys that are bytes and do not ascend.
    #[error("pair {0}, counted from 0, has a key that is not greater than the one before: sort them, each once")]
    UnsortedBytes(usize),
    /// A key that no node holds.
    #[error("pair {at}, counted from 0, has a key of {len} bytes: nodes of this size hold up to {most}")]
    LongKey {
        /// Its number.
        at: usize,
        /// Bytes of the key.
        len: usize,
        /// Bytes that it may have.
        most: usize,
    },
    /// Nodes of a size that none has.
    #[error("nodes of {0} bytes: a power of two from 256 to 4096, please")]
    NodeBytes(usize),
    /// Fewer pairs came than were promised.
    #[error("{came} pairs came of {promised}")]
    TooFewPairs {
        /// Pairs that came.
        came: usize,
        /// Pairs that were to come.
        promised: usize,
    },
}

/// How a tree is laid out when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a node.
    pub node_bytes: usize,
    /// Keys of a node in percent of those that it has room for: inserts find room in what is left.
    pub fill: u8,
}

impl Shape {
    /// Whether nodes may have this size.
    pub(super) fn check(self) -> Result<(), BuildError> {
        let node_bytes = self.node_bytes.min(1 << 15) as u16;
        let probe = TreeRef { base: 0, key: 0, slots: ROOT + 1, node_bytes, owners: 0, owner: 0 };
        probe.check().map_err(|_| BuildError::NodeBytes(self.node_bytes))
    }

    /// Keys or children of a node, at least 3.
    pub(super) fn share(self, room: usize) -> usize {
        (room * usize::from(self.fill.clamp(1, 100)) / 100).clamp(3, room)
    }

    /// Nodes of each level of a tree that so many pairs are put into in order, leaves first.
    pub fn levels(self, pairs: usize) -> Vec<u64> {
        self.levels_of(pairs, leaf_keys(self.node_bytes))
    }

    /// Of so many pairs or children, of which a node of the lowest level has room for so many; up to the root.
    fn levels_of(self, mut items: usize, mut room: usize) -> Vec<u64> {
        let mut levels = Vec::new();
        while items > room {
            items = items.div_ceil(self.share(room));
            levels.push(items as u64);
            room = children(self.node_bytes);
        }
        levels.push(1);
        levels
    }

    /// Slots that so many pairs take, the first slot included.
    pub fn slots(self, pairs: usize) -> u64 {
        self.slots_beside(pairs, 0)
    }

    /// As [`slots`](Self::slots), with so many leaves that are away.
    fn slots_beside(self, pairs: usize, away: usize) -> u64 {
        let slots = |levels: Vec<u64>| 1 + levels.iter().sum::<u64>();
        match away {
            0 => slots(self.levels(pairs)),
            _ => {
                let leaves = self.leaves(pairs) + away;
                leaves as u64 + slots(self.levels_of(leaves, children(self.node_bytes)))
            }
        }
    }

    /// Leaves that so many pairs take.
    fn leaves(self, pairs: usize) -> usize {
        let room = leaf_keys(self.node_bytes);
        if pairs <= room { 1 } else { pairs.div_ceil(self.share(room)) }
    }

    /// Lays a tree of `len` pairs out in zeroed memory of `slots` slots: `write` gets an offset in it and what stands
    /// there, upwards but for the first two slots, which come last.
    pub fn build<E: From<BuildError>>(
        self,
        pairs: impl IntoIterator<Item = (u64, u64)>,
        len: usize,
        slots: u32,
        write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.build_part(Some(0..=u64::MAX), pairs, len, slots, write)
    }

    /// As [`build`](Self::build), for a part of an index that has the keys of this range, or none; leaves beside it are away.
    pub fn build_part<E: From<BuildError>>(
        self,
        here: Option<RangeInclusive<u64>>,
        pairs: impl IntoIterator<Item = (u64, u64)>,
        len: usize,
        slots: u32,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = self.node_bytes;
        self.check()?;
        let is_here = here.is_some();
        let here = here.unwrap_or(0..=u64::MAX);
        let away = [*here.start() > 0, *here.end() < u64::MAX].map(usize::from);
        let needed = self.slots_beside(len, away[0] + away[1]);
        if needed > u64::from(slots) {
            return Err(BuildError::TooManyPairs { pairs: len, needed, slots }.into());
        }
        let mut image = vec![0; bytes];
        let mut next = ROOT + 1;
        let mut level = 0;
        let mut items = Vec::new();
        let mut pairs = Sorted { pairs: pairs.into_iter(), came: 0, last: None };
        let mut count = len;
        loop {
            let room = if level == 0 { leaf_keys(bytes) } else { children(bytes) };
            let beside = if level == 0 { away } else { [0, 0] };
            let full = if count <= room { 1 } else { count.div_ceil(self.share(room)) };
            let nodes = full + beside[0] + beside[1];
            let mut above = Vec::with_capacity(nodes);
            let mut from = std::mem::take(&mut items).into_iter();
            let mut take = || match level {
                0 => pairs.next(),
                _ => Ok(from.next()),
            };
            let (mut low, mut first) = (0, take()?);
            for node in 0..nodes {
                let slot = if nodes == 1 { ROOT } else { next + node as u32 };
                NodeMut(&mut image).clear(level, (low, u64::MAX), 0);
                NodeMut(&mut image).set_away(level == 0 && (!is_here || node < beside[0] || node >= beside[0] + full));
                // Those beside have no share.
                let ends = |node: usize| count * node.saturating_sub(beside[0]).min(full) / full;
                let share = ends(node + 1) - ends(node);
                for _ in 0..share {
                    let Some((key, what)) = first else { break };
                    if level == 0 && !(is_here && here.contains(&key)) {
                        return Err(BuildError::Outside(key).into());
                    }
                    // The first child of all holds what is less than all keys, too.
                    let key =
                        if level > 0 && above.is_empty() && NodeMut(&mut image).node().len() == 0 { 0 } else { key };
                    NodeMut(&mut image).push(key, what);
                    first = take()?;
                }
                above.push((low, u64::from(slot)));
                // Where the next one begins.
                let begins = match node + 1 {
                    next if next == nodes => None,
                    next if next == beside[0] => Some(*here.start()),
                    next if next == beside[0] + full => here.end().checked_add(1),
                    _ => first.map(|(key, _)| key),
                };
                if let Some(key) = begins {
                    NodeMut(&mut image).set_range(low, key.wrapping_sub(1), slot + 1);
                    low = key;
                }
                write(u64::from(slot) * bytes as u64, &image)?;
            }
            if level == 0 && (pairs.came != len || first.is_some()) {
                return Err(BuildError::TooFewPairs { came: pairs.came, promised: len }.into());
            }
            if nodes == 1 {
                break;
            }
            next += nodes as u32;
            (items, count) = (above, nodes);
            level += 1;
        }
        first_slot(next, &mut image);
        write(0, &image)
    }
}

/// What stands in the first slot of a tree whose unused slots begin there.
pub(super) fn first_slot(next: u32, image: &mut [u8]) {
    image.fill(0);
    image[FIRST.magic..][..8].copy_from_slice(&First::MAGIC.to_le_bytes());
    image[FIRST.next..][..8].copy_from_slice(&u64::from(next).to_le_bytes());
}

/// Pairs that are checked to ascend.
struct Sorted<I> {
    pairs: I,
    came: usize,
    last: Option<u64>,
}

impl<I: Iterator<Item = (u64, u64)>> Sorted<I> {
    fn next(&mut self) -> Result<Option<(u64, u64)>, BuildError> {
        let Some((key, value)) = self.pairs.next() else { return Ok(None) };
        if self.last.is_some_and(|last| last >= key) {
            return Err(BuildError::Unsorted { key, at: self.came });
        }
        (self.last, self.came) = (Some(key), self.came + 1);
        Ok(Some((key, value)))
    }
}
