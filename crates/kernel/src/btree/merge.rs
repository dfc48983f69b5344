//! Merges of nodes that have become empty, or nearly so.

use super::ROOT;
use super::access::{Change, HEADER_ONLY, Tree};
use super::node::{NodeMut, NodeView};
use crate::call::Status;
use crate::memory::Memory;

impl<M: Memory> Tree<'_, M> {
    /// Merges the node below `level` that a key belongs to with a neighbour under the same parent, if both fit into three
    /// quarters of one, and nobody else is at work there: else it is left as it is.
    pub(super) async fn merge(&self, key: u64, level: u8, copy: &mut Vec<u8>) -> Result<(), Status> {
        let Some(parent_slot) = self.descend(key, level, copy).await? else { return Ok(()) };
        let parent = NodeView(copy);
        let place = parent.place(key).ok_or(Status::Trapped)?;
        if parent.len() < 2 {
            return self.lower_root(parent_slot, copy).await;
        }
        let at = place.min(parent.len() - 2);
        let (left_slot, right_slot) = (self.node_slot(parent.child(at))?, self.node_slot(parent.child(at + 1))?);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        self.load(left_slot, &mut left).await?;
        self.load(right_slot, &mut right).await?;
        let (l, r) = (NodeView(&left), NodeView(&right));
        let below = level.checked_sub(1);
        // A node between the two that the parent has not heard of, or one that is no longer its child.
        let apart =
            l.right() != right_slot || l.high().checked_add(1) != Some(r.low()) || r.low() != parent.key(at + 1);
        let apart = apart || l.is_away() != r.is_away();
        if apart || l.level() != below || r.level() != below || 4 * (l.len() + r.len()) > 3 * l.room() {
            return Ok(());
        }
        let heads = [(parent_slot, parent.head()), (left_slot, l.head()), (right_slot, r.head())];
        if !self.lock_all(&heads).await? {
            return Ok(());
        }
        let low = l.low();
        NodeMut(&mut left).set_range(low, r.high(), r.right());
        NodeMut(&mut left).append(r, 0);
        NodeMut(&mut right).free();
        let ranges = NodeMut(copy).remove(at + 1);
        let changes = [
            Change { slot: left_slot, image: &left, ranges: &[] },
            Change { slot: right_slot, image: &right, ranges: &HEADER_ONLY },
            Change { slot: parent_slot, image: copy, ranges: &ranges },
        ];
        self.commit(&changes).await?;
        self.forget(parent_slot);
        self.release(right_slot).await?;
        let parent = NodeView(copy);
        if parent_slot == ROOT || 4 * parent.len() < parent.room() {
            Box::pin(self.merge(key, level + 1, copy)).await?;
        }
        Ok(())
    }

    /// Puts the root's only child in its place.
    async fn lower_root(&self, slot: u32, copy: &mut Vec<u8>) -> Result<(), Status> {
        let root = NodeView(copy);
        if slot != ROOT || root.len() != 1 {
            return Ok(());
        }
        let child_slot = self.node_slot(root.child(0))?;
        let mut child = Vec::new();
        self.load(child_slot, &mut child).await?;
        let node = NodeView(&child);
        let whole = node.low() == root.low() && node.high() == root.high();
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
