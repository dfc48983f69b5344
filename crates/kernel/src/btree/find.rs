//! Finding nodes, look-ups and scans.

use std::borrow::Borrow;

use super::access::Tree;
use super::node::NodeView;
use super::place::found;
use super::{ROOT, TreeKey};
use crate::call::Status;
use crate::memory::Memory;
use std::ops::Range;

/// The highest level that a tree may have: with three children a node it would hold more keys than there are.
const HIGHEST: u8 = 40;
/// Nodes to the right of one that was found wanting, before the search begins anew, once: it may have been freed on the way there
/// and serve far to the left now.
pub(super) const RIGHTS: u32 = 16;

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// Finds the node at `level` that a key belongs to: its slot, and its copy, of one moment, in `copy`. `None` if the
    /// tree is not that high.
    pub(super) async fn descend(&self, key: &K, level: u8, copy: &mut Vec<u8>) -> Result<Option<u32>, Status> {
        let found = self.in_place(key, level, |slot, node| Ok((slot, node.level()))).await?;
        if let Some((slot, at)) = found {
            if at < Some(level) {
                return Ok(None);
            }
            self.load_at_hand(slot, copy).await?;
            let node = NodeView(copy);
            if node.level() == Some(level) && K::covers(node, key) {
                return Ok(Some(slot));
            }
        }
        let mut rights = 0;
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
                if (kept || led_by_copy) && !K::covers(node, key) {
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
                if K::is_above(node, key) && node.right() != 0 {
                    // A split that the parent has not heard of.
                    self.forget(from);
                    rights += 1;
                    if rights == RIGHTS {
                        continue 'down;
                    }
                    (slot, expected) = (self.node_slot(node.right())?, Some(at));
                    continue;
                }
                if !K::covers(node, key) {
                    self.forget(from);
                    self.forget(slot);
                    continue 'down;
                }
                if at == level {
                    return Ok(Some(slot));
                }
                let place = K::place(node, key).ok_or(Status::Trapped)?;
                (from, slot, expected, led_by_copy) =
                    (slot, self.node_slot(K::what(node, place) as u32)?, Some(at - 1), kept);
            }
        }
    }

    /// The leaf that a key belongs to: its slot, and its copy.
    pub(super) async fn leaf(&self, key: &K, copy: &mut Vec<u8>) -> Result<u32, Status> {
        self.descend(key, 0, copy).await?.ok_or(Status::Trapped)
    }

    /// As [`leaf`](Self::leaf), if its keys are in this tree: else [`MOVED`](super::MOVED).
    pub(super) async fn leaf_here(&self, key: &K, copy: &mut Vec<u8>) -> Result<u32, Status> {
        let slot = self.leaf(key, copy).await?;
        if NodeView(copy).is_away() { Err(super::MOVED) } else { Ok(slot) }
    }

    /// The value of a key. `copy` is room for a node.
    pub async fn get(&self, key: &K, copy: &mut Vec<u8>) -> Result<u64, Status> {
        if let Some(value) = self.in_place(key, 0, |_, leaf| found(leaf)).await? {
            return Ok(value);
        }
        self.leaf_here(key, copy).await?;
        let leaf = NodeView(copy);
        K::search(leaf, key).map(|at| K::what(leaf, at)).map_err(|_| Status::NotFound)
    }

    /// At most `count` keys from `from` on with their values, in order, and from which key on to go on in the other part
    /// of an index, if the keys are there. Each leaf is read at one moment of its own.
    pub async fn pairs(
        &self,
        from: &K,
        count: u32,
        copy: &mut Vec<u8>,
    ) -> Result<(Vec<(K::Owned, u64)>, Option<K::Owned>), Status> {
        let mut pairs = Vec::new();
        let found = |leaf: NodeView<'_>, places: Range<usize>| {
            pairs.extend(places.map(|at| (K::key(leaf, at), K::what(leaf, at))));
            Ok(())
        };
        let next = self.scan(from, count, copy, found).await?;
        Ok((pairs, next))
    }

    /// Hands over leaves, and which places of theirs hold the next of at most `count` keys from `from` on. Returns from
    /// where on the keys are in the other part, if it comes there.
    pub(super) async fn scan(
        &self,
        from: &K,
        count: u32,
        copy: &mut Vec<u8>,
        mut found: impl FnMut(NodeView<'_>, Range<usize>) -> Result<(), Status>,
    ) -> Result<Option<K::Owned>, Status> {
        let mut left = count as usize;
        let mut from = from.to_owned();
        self.leaf(from.borrow(), copy).await?;
        loop {
            let leaf = NodeView(copy);
            if leaf.is_away() {
                return Ok(Some(from));
            }
            let first = K::search(leaf, from.borrow()).unwrap_or_else(|at| at);
            let places = first..K::count(leaf).min(first.saturating_add(left));
            left -= places.len();
            found(leaf, places)?;
            let Some(next) = K::next(leaf).filter(|_| left > 0) else { return Ok(None) };
            if leaf.right() == 0 {
                return Ok(None);
            }
            from = next;
            self.load(self.node_slot(leaf.right())?, copy).await?;
            let leaf = NodeView(copy);
            if !(leaf.is_leaf() && K::covers(leaf, from.borrow())) {
                self.leaf(from.borrow(), copy).await?;
            }
        }
    }
}
