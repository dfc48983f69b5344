//! Splits of full nodes.

use super::ROOT;
use super::access::{Change, HEADER_ONLY, Tree};
use super::node::{NodeMut, NodeView};
use crate::call::Status;
use crate::memory::Memory;

impl<M: Memory> Tree<'_, M> {
    /// Splits a full node, whose copy of one moment is `copy`, unless it has changed since; a key is to come in at `at`.
    pub(super) async fn split(&self, slot: u32, at: usize, copy: &mut Vec<u8>) -> Result<(), Status> {
        let node = NodeView(copy);
        // Keys that come in order fill the nodes that they leave behind.
        let appended = node.right() == 0 && at == node.len();
        let half = if appended { node.len() - node.len() / 8 - 1 } else { node.len() / 2 };
        self.split_at(slot, node.key(half), copy).await
    }

    /// Splits a node, as [`split`](Self::split), in front of a key that lies between its fences, and is not the lowest.
    pub(super) async fn split_at(&self, slot: u32, sep: u64, copy: &mut Vec<u8>) -> Result<(), Status> {
        let node = NodeView(copy);
        let (head, level) = (node.head(), node.level().ok_or(Status::Trapped)?);
        let half = node.search(sep).unwrap_or_else(|at| at);
        let mut right = Vec::new();
        let right_slot = self.allocate(&mut right).await?;
        NodeMut(&mut right).clear(level, (sep, node.high()), node.right());
        NodeMut(&mut right).set_away(node.is_away());
        NodeMut(&mut right).append(node, half);
        if slot == ROOT {
            return self.split_root(copy, sep, (right_slot, right)).await;
        }
        if !self.lock(slot, head).await? {
            return self.give_back(&[(right_slot, &mut right)]).await;
        }
        let mut left = NodeMut(copy);
        let low = left.node().low();
        left.set_range(low, sep.wrapping_sub(1), right_slot);
        left.truncate(half);
        let changed = [
            Change { slot: right_slot, image: &right, ranges: &[] },
            Change { slot, image: copy, ranges: &HEADER_ONLY },
        ];
        self.commit(&changed).await?;
        self.adopt(level + 1, sep, right_slot, copy).await
    }

    /// Splits the root, which stays where it is: both halves move.
    async fn split_root(
        &self,
        root: &mut [u8],
        sep: u64,
        (right_slot, mut right): (u32, Vec<u8>),
    ) -> Result<(), Status> {
        let node = NodeView(root);
        let (head, level) = (node.head(), node.level().ok_or(Status::Trapped)?);
        let (low, high, half) = (node.low(), node.high(), node.search(sep).unwrap_or_else(|at| at));
        let mut left = Vec::new();
        let left_slot = match self.allocate(&mut left).await {
            Ok(slot) => slot,
            Err(status) => {
                self.give_back(&[(right_slot, &mut right)]).await?;
                return Err(status);
            }
        };
        NodeMut(&mut left).clear(level, (low, sep.wrapping_sub(1)), right_slot);
        NodeMut(&mut left).set_away(node.is_away());
        (0..half).for_each(|at| {
            let what = if level == 0 { node.value(at) } else { node.child(at).into() };
            NodeMut(&mut left).push(node.key(at), what);
        });
        if !self.lock(ROOT, head).await? {
            return self.give_back(&[(left_slot, &mut left), (right_slot, &mut right)]).await;
        }
        let mut root = NodeMut(root);
        root.clear(level + 1, (low, high), 0);
        root.push(low, left_slot.into());
        root.push(sep, right_slot.into());
        let all = [(right_slot, &right[..]), (left_slot, &left[..]), (ROOT, &*root.0)];
        let changed = all.map(|(slot, image)| Change { slot, image, ranges: &[] });
        self.commit(&changed).await
    }

    /// Makes nodes free again that were allocated in vain.
    async fn give_back(&self, nodes: &[(u32, &mut Vec<u8>)]) -> Result<(), Status> {
        for (slot, image) in nodes {
            self.unlock(*slot, NodeView(image).head()).await?;
            self.release(*slot).await?;
        }
        Ok(())
    }

    /// Tells the level above of a node that a split has made, unless somebody else has, or the node is gone.
    pub(super) async fn adopt(&self, level: u8, sep: u64, child: u32, copy: &mut Vec<u8>) -> Result<(), Status> {
        loop {
            let Some(slot) = self.descend(sep, level, copy).await? else { return Ok(()) };
            let parent = NodeView(copy);
            let head = parent.head();
            let at = match parent.search(sep) {
                Ok(_) => return Ok(()),
                Err(at) => at,
            };
            if parent.len() == parent.room() {
                Box::pin(self.split(slot, at, copy)).await?;
                continue;
            }
            let mut header = Vec::new();
            self.load(child, &mut header).await?;
            let child_node = NodeView(&header);
            if child_node.level() != Some(level - 1) || child_node.low() != sep {
                return Ok(());
            }
            let seen = child_node.head();
            if !self.lock(slot, head).await? {
                continue;
            }
            // Only who has the parent's lock can free it: if it is the same now, it stays.
            let mut now = [0; 8];
            self.peek(self.va(child, 0), &mut now).await?;
            if NodeView(&now).head().unlocked() != seen {
                self.unlock(slot, head).await?;
                continue;
            }
            let ranges = NodeMut(copy).insert(at, sep, child.into());
            self.commit(&[Change { slot, image: copy, ranges: &ranges }]).await?;
            self.forget(slot);
            return Ok(());
        }
    }
}
