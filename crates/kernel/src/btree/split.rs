//! Splits of full nodes.

use super::access::{Change, ROUNDS, Tree};
use super::node::{NodeMut, NodeView};
use super::{LOCKED, ROOT, TreeKey};
use crate::call::Status;
use crate::memory::Memory;
use std::borrow::Borrow;
use std::ops::Range;

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// Splits a full node, whose copy of one moment is `copy`, unless it has changed since; a key is to come in at `at`. If it is
    /// given with its value it comes at once, where there is room for it then: whether it did.
    pub(super) async fn split(
        &self,
        slot: u32,
        at: usize,
        copy: &mut Vec<u8>,
        pair: Option<(&K, u64)>,
    ) -> Result<bool, Status> {
        let sep = K::middle(NodeView(copy), at).ok_or(Status::Trapped)?;
        self.split_at(slot, sep.borrow(), copy, pair).await
    }

    /// Splits a node, as [`split`](Self::split), in front of a key that lies between its fences, and is not the lowest.
    pub(super) async fn split_at(
        &self,
        slot: u32,
        sep: &K,
        copy: &mut Vec<u8>,
        pair: Option<(&K, u64)>,
    ) -> Result<bool, Status> {
        let node = NodeView(copy);
        let (head, level) = (node.head(), node.level().ok_or(Status::Trapped)?);
        let half = K::search(node, sep).unwrap_or_else(|at| at);
        let mut right = Vec::new();
        let right_slot = self.allocate(&mut right, false).await?;
        K::clear(&mut right, level, (sep, K::next(node).as_ref().map(Borrow::borrow)), node.right());
        NodeMut(&mut right).set_away(node.is_away());
        K::append(&mut right, node, half);
        let (to_left, to_right) = (pair.filter(|(key, _)| *key < sep), pair.filter(|(key, _)| *key >= sep));
        let came = come_in(&mut right, to_right).is_some();
        if slot == ROOT {
            let left = self.split_root(copy, sep, (right_slot, right), to_left).await?;
            return Ok(left.is_some_and(|left| left || came));
        }
        if !self.lock(slot, head).await? {
            return self.give_back(&[(right_slot, &mut right)]).await.map(|()| false);
        }
        K::truncate(copy, half);
        let mut ranges = K::set_next(copy, Some(sep), right_slot).to_vec();
        let inserted = come_in(copy, to_left);
        let came = came || inserted.is_some();
        if !ranges.is_empty() {
            ranges.extend(inserted.into_iter().flatten());
        }
        let changed =
            [Change { slot: right_slot, image: &right, ranges: &[] }, Change { slot, image: copy, ranges: &ranges }];
        self.commit(&changed).await?;
        let told = self.tell(level + 1, (sep, right_slot), slot, copy).await;
        // The key is there, whatever becomes of this.
        if came { Ok(true) } else { told.map(|()| false) }
    }

    /// Tells the level above of a node that a split has made.
    async fn tell(&self, level: u8, (sep, right): (&K, u32), left: u32, copy: &mut Vec<u8>) -> Result<(), Status> {
        let low = K::low(NodeView(copy));
        let before = self.adopt(level, sep, right, copy).await?;
        if before.is_some_and(|before| before != left) {
            // Whoever made the node that was split now was cut off before its parent had heard of it.
            self.adopt(level, low.borrow(), left, copy).await?;
        }
        Ok(())
    }

    /// Splits the root, which stays where it is: both halves move. Whether the pair has come into the left one; none if somebody
    /// else has changed the root.
    async fn split_root(
        &self,
        root: &mut [u8],
        sep: &K,
        (right_slot, mut right): (u32, Vec<u8>),
        pair: Option<(&K, u64)>,
    ) -> Result<Option<bool>, Status> {
        let node = NodeView(root);
        let (head, level) = (node.head(), node.level().ok_or(Status::Trapped)?);
        let (low, next, half) = (K::low(node), K::next(node), K::search(node, sep).unwrap_or_else(|at| at));
        let mut left = Vec::new();
        let left_slot = match self.allocate(&mut left, true).await {
            Ok(slot) => slot,
            Err(status) => {
                self.give_back(&[(right_slot, &mut right)]).await?;
                return Err(status);
            }
        };
        K::clear(&mut left, level, (low.borrow(), Some(sep)), right_slot);
        NodeMut(&mut left).set_away(node.is_away());
        for at in 0..half {
            K::insert(&mut left, at, K::key(node, at).borrow(), K::what(node, at));
        }
        let came = come_in(&mut left, pair).is_some();
        if !self.lock(ROOT, head).await? {
            self.give_back(&[(left_slot, &mut left), (right_slot, &mut right)]).await?;
            return Ok(None);
        }
        K::clear(root, level + 1, (low.borrow(), next.as_ref().map(Borrow::borrow)), 0);
        K::insert(root, 0, low.borrow(), left_slot.into());
        K::insert(root, 1, sep, right_slot.into());
        let all = [(right_slot, &right[..]), (left_slot, &left[..]), (ROOT, &*root)];
        let changed = all.map(|(slot, image)| Change { slot, image, ranges: &[] });
        self.commit(&changed).await?;
        Ok(Some(came))
    }

    /// Makes nodes free again that were allocated in vain.
    async fn give_back(&self, nodes: &[(u32, &mut Vec<u8>)]) -> Result<(), Status> {
        for (slot, image) in nodes {
            self.unlock(*slot, NodeView(image).head()).await?;
            self.release(*slot).await?;
        }
        Ok(())
    }

    /// Tells the level above of a node that a split has made, unless somebody else has, or the node is gone. If it did, the slot
    /// of the node that it knew in front of this one.
    pub(super) async fn adopt(
        &self,
        level: u8,
        sep: &K,
        child: u32,
        copy: &mut Vec<u8>,
    ) -> Result<Option<u32>, Status> {
        for _ in 0..ROUNDS {
            let Some(slot) = self.descend(sep, level, copy).await? else { return Ok(None) };
            let parent = NodeView(copy);
            let head = parent.head();
            let at = match K::search(parent, sep) {
                Ok(_) => return Ok(None),
                Err(at) => at,
            };
            let before = at.checked_sub(1).map(|at| K::what(parent, at) as u32);
            if !K::fits(parent, sep) {
                Box::pin(self.split(slot, at, copy, None)).await?;
                continue;
            }
            let mut header = Vec::new();
            self.load(child, &mut header).await?;
            let child_node = NodeView(&header);
            if child_node.level() != Some(level - 1) || K::low(child_node).borrow() != sep {
                return Ok(None);
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
            let ranges = K::insert(copy, at, sep, child.into());
            self.commit(&[Change { slot, image: copy, ranges: &ranges }]).await?;
            self.forget(slot);
            return Ok(before);
        }
        Err(LOCKED)
    }
}

/// Puts a pair into a node, if it has room for it. Returns which bytes changed.
fn come_in<K: TreeKey + ?Sized>(image: &mut [u8], pair: Option<(&K, u64)>) -> Option<[Range<usize>; 3]> {
    let ((key, value), node) = (pair?, NodeView(image));
    let at = K::search(node, key).err().filter(|_| K::fits(node, key))?;
    Some(K::insert(image, at, key, value))
}
