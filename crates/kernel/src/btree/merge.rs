//! Merges of nodes that have become empty, or nearly so.

use super::access::{Change, HEADER_ONLY, Tree};
use super::node::{NodeMut, NodeView};
use super::{ROOT, TreeKey};
use crate::call::Status;
use crate::memory::Memory;
use std::borrow::Borrow;

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// Merges the node below `level` that a key belongs to with a neighbour under the same parent, if both fit into three
    /// quarters of one, and nobody else is at work there: else it is left as it is.
    pub(super) async fn merge(&self, key: &K, level: u8, copy: &mut Vec<u8>) -> Result<(), Status> {
        let Some(parent_slot) = self.descend(key, level, copy).await? else { return Ok(()) };
        let parent = NodeView(copy);
        let place = K::place(parent, key).ok_or(Status::Trapped)?;
        if K::count(parent) < 2 {
            return self.lower_root(parent_slot, copy).await;
        }
        let at = place.min(K::count(parent) - 2);
        let child = |at| self.node_slot(K::what(parent, at) as u32);
        let (left_slot, right_slot) = (child(at)?, child(at + 1)?);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        self.load(left_slot, &mut left).await?;
        self.load(right_slot, &mut right).await?;
        let (l, r) = (NodeView(&left), NodeView(&right));
        let below = level.checked_sub(1);
        // A node between the two that the parent has not heard of, or one that is no longer its child.
        let (next, low) = (K::next(l), K::low(r));
        let apart = l.right() != right_slot || next.as_ref() != Some(&low) || low != K::key(parent, at + 1);
        if let (true, Some(next), true) = (apart, &next, l.right() != right_slot && l.level() == below)
            && next.borrow() < low.borrow()
        {
            let (next, orphan) = (next.clone(), self.node_slot(l.right())?);
            self.adopt(level, next.borrow(), orphan, copy).await?;
            return Ok(());
        }
        let apart = apart || l.is_away() != r.is_away();
        if apart || l.level() != below || r.level() != below || !K::fit_together(l, r) {
            return Ok(());
        }
        let heads = [(parent_slot, parent.head()), (left_slot, l.head()), (right_slot, r.head())];
        if !self.lock_all(&heads).await? {
            return Ok(());
        }
        K::set_next(&mut left, K::next(r).as_ref().map(Borrow::borrow), r.right());
        K::append(&mut left, r, 0);
        NodeMut(&mut right).free();
        let ranges = K::remove(copy, at + 1);
        let changes = [
            Change { slot: left_slot, image: &left, ranges: &[] },
            Change { slot: right_slot, image: &right, ranges: &HEADER_ONLY },
            Change { slot: parent_slot, image: copy, ranges: &ranges },
        ];
        self.commit(&changes).await?;
        self.forget(parent_slot);
        self.release(right_slot).await?;
        let parent = NodeView(copy);
        if parent_slot == ROOT || K::is_small(parent) {
            Box::pin(self.merge(key, level + 1, copy)).await?;
        }
        Ok(())
    }

    /// Puts the root's only child in its place.
    async fn lower_root(&self, slot: u32, copy: &mut Vec<u8>) -> Result<(), Status> {
        let root = NodeView(copy);
        if slot != ROOT || K::count(root) != 1 {
            return Ok(());
        }
        let child_slot = self.node_slot(K::what(root, 0) as u32)?;
        let mut child = Vec::new();
        self.load(child_slot, &mut child).await?;
        let node = NodeView(&child);
        let whole = K::low(node) == K::low(root) && K::next(node) == K::next(root);
        if !whole || node.level() != root.level().and_then(|level| level.checked_sub(1)) {
            return Ok(());
        }
        if !self.lock_all(&[(ROOT, root.head()), (child_slot, node.head())]).await? {
            return Ok(());
        }
        let tail = child.len() - 8;
        copy[8..tail].copy_from_slice(&child[8..tail]);
        NodeMut(&mut child).free();
        let changes = [
            Change { slot: ROOT, image: copy, ranges: &[] },
            Change { slot: child_slot, image: &child, ranges: &HEADER_ONLY },
        ];
        self.commit(&changes).await?;
        self.forget(ROOT);
        Ok(self.release(child_slot).await?)
    }

    /// Locks nodes in this order; none if one has changed or somebody has its lock.
    async fn lock_all(&self, nodes: &[(u32, super::node::Head)]) -> Result<bool, Status> {
        for (at, &(slot, head)) in nodes.iter().enumerate() {
            if !self.lock(slot, head).await? {
                for &(slot, head) in nodes[..at].iter().rev() {
                    self.unlock(slot, head).await?;
                }
                return Ok(false);
            }
        }
        Ok(true)
    }
}
