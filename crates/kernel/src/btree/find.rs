//! Finding nodes, look-ups and scans.

use super::ROOT;
use super::access::Tree;
use super::node::NodeView;
use crate::call::Status;
use crate::memory::Memory;
use std::ops::Range;

/// The highest level that a tree may have: with three children a node it would hold more keys than there are.
const HIGHEST: u8 = 40;

impl<M: Memory> Tree<'_, M> {
    /// Finds the node at `level` that a key belongs to: its slot, and its copy, of one moment, in `copy`. `None` if the
    /// tree is not that high.
    pub(super) async fn descend(&self, key: u64, level: u8, copy: &mut Vec<u8>) -> Result<Option<u32>, Status> {
        'down: loop {
            let (mut slot, mut expected, mut from, mut led_by_copy) = (ROOT, None, ROOT, false);
            loop {
                let kept = if expected == Some(level) {
                    self.load(slot, copy).await?;
                    false
                } else {
                    self.load_stale(slot, copy).await?
                };
                let mut node = NodeView(copy);
                if (kept || led_by_copy) && !node.covers(key) {
                    // To the right of old copies there are other old ones, and in the end a node that is gone.
                    self.forget(from);
                    self.forget(slot);
                    continue 'down;
                }
                if expected.is_none() && level > 0 && node.level().is_some_and(|at| at <= level) {
                    // The root's level shows only now; a copy that was kept may be from when the tree was lower.
                    self.load(slot, copy).await?;
                    node = NodeView(copy);
                }
                let fits = |at: &u8| *at <= HIGHEST && expected.is_none_or(|level| level == *at);
                let Some(at) = node.level().filter(fits) else {
                    self.forget(from);
                    self.forget(slot);
                    continue 'down;
                };
                if at < level {
                    return Ok(None);
                }
                if key > node.high() && node.right() != 0 {
                    // A split that the parent has not heard of.
                    self.forget(from);
                    (slot, expected) = (self.node_slot(node.right())?, Some(at));
                    continue;
                }
                if !node.covers(key) {
                    self.forget(from);
                    self.forget(slot);
                    continue 'down;
                }
                if at == level {
                    return Ok(Some(slot));
                }
                let place = node.place(key).ok_or(Status::Trapped)?;
                (from, slot, expected, led_by_copy) = (slot, self.node_slot(node.child(place))?, Some(at - 1), kept);
            }
        }
    }

    /// The leaf that a key belongs to: its slot, and its copy.
    pub(super) async fn leaf(&self, key: u64, copy: &mut Vec<u8>) -> Result<u32, Status> {
        self.descend(key, 0, copy).await?.ok_or(Status::Trapped)
    }

    /// As [`leaf`](Self::leaf), if its keys are in this tree: else [`MOVED`](super::MOVED).
    pub(super) async fn leaf_here(&self, key: u64, copy: &mut Vec<u8>) -> Result<u32, Status> {
        let slot = self.leaf(key, copy).await?;
        if NodeView(copy).is_away() { Err(super::MOVED) } else { Ok(slot) }
    }

    /// The value of a key. `copy` is room for a node.
    pub async fn get(&self, key: u64, copy: &mut Vec<u8>) -> Result<u64, Status> {
        if let Some(value) = self.get_in_place(key).await? {
            return Ok(value);
        }
        self.leaf_here(key, copy).await?;
        let leaf = NodeView(copy);
        leaf.search(key).map(|at| leaf.value(at)).map_err(|_| Status::NotFound)
    }

    /// At most `count` keys from `from` on with their values, in order, and from which key on to go on in the other part
    /// of an index, if the keys are there. Each leaf is read at one moment of its own.
    pub async fn pairs(
        &self,
        from: u64,
        count: u32,
        copy: &mut Vec<u8>,
    ) -> Result<(Vec<(u64, u64)>, Option<u64>), Status> {
        let mut pairs = Vec::new();
        let found = |leaf: NodeView<'_>, places: Range<usize>| {
            pairs.extend(places.map(|at| (leaf.key(at), leaf.value(at))));
            Ok(())
        };
        let next = self.scan(from, count, copy, found).await?;
        Ok((pairs, next))
    }

    /// Hands over leaves, and which places of theirs hold the next of at most `count` keys from `from` on. Returns from
    /// where on the keys are in the other part, if it comes there.
    pub(super) async fn scan(
        &self,
        mut from: u64,
        count: u32,
        copy: &mut Vec<u8>,
        mut found: impl FnMut(NodeView<'_>, Range<usize>) -> Result<(), Status>,
    ) -> Result<Option<u64>, Status> {
        let mut left = count as usize;
        self.leaf(from, copy).await?;
        loop {
            let leaf = NodeView(copy);
            if leaf.is_away() {
                return Ok(Some(from));
            }
            let first = leaf.search(from).unwrap_or_else(|at| at);
            let places = first..leaf.len().min(first.saturating_add(left));
            left -= places.len();
            found(leaf, places)?;
            let Some(next) = leaf.high().checked_add(1).filter(|_| left > 0) else { return Ok(None) };
            if leaf.right() == 0 {
                return Ok(None);
            }
            from = next;
            self.load(self.node_slot(leaf.right())?, copy).await?;
            let leaf = NodeView(copy);
            if !(leaf.is_leaf() && leaf.covers(from)) {
                self.leaf(from, copy).await?;
            }
        }
    }
}
