//! Inserts, updates and deletes.

use super::access::{Change, ROUNDS, Tree};
use super::node::NodeView;
use super::{EXISTS, LOCKED, ROOT, TreeKey};
use crate::call::Status;
use crate::memory::Memory;

/// What a write does with a key that is there, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Writes in either case.
    Upsert,
    /// Refuses a key that is there, with [`EXISTS`].
    Insert,
    /// Refuses a key that is not, with [`Status::NotFound`].
    Update,
}

impl Put {
    /// As it stands in parameters.
    pub(super) fn code(self) -> u8 {
        match self {
            Put::Upsert => 0,
            Put::Insert => 1,
            Put::Update => 2,
        }
    }

    /// See [`code`](Self::code).
    pub(super) fn of_code(code: u8) -> Option<Put> {
        [Put::Upsert, Put::Insert, Put::Update].into_iter().find(|put| put.code() == code)
    }
}

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// Writes the value of a key; returns the one that it had. `copy` is room for a node.
    pub async fn put(&self, key: &K, value: u64, how: Put, copy: &mut Vec<u8>) -> Result<Option<u64>, Status> {
        if !key.is_allowed(self.node_bytes()) {
            return Err(Status::BadParams);
        }
        for _ in 0..ROUNDS {
            let slot = self.leaf_here(key, copy).await?;
            let node = NodeView(copy);
            let head = node.head();
            match K::search(node, key) {
                Ok(_) if how == Put::Insert => return Err(EXISTS),
                Err(_) if how == Put::Update => return Err(Status::NotFound),
                Ok(at) => {
                    let old = K::what(node, at);
                    if self.lock(slot, head).await? {
                        let range = K::set_value(copy, at, value);
                        self.commit(&[Change { slot, image: copy, ranges: &[range] }]).await?;
                        return Ok(Some(old));
                    }
                }
                Err(at) if K::fits(node, key) => {
                    if self.lock(slot, head).await? {
                        let ranges = K::insert(copy, at, key, value);
                        self.commit(&[Change { slot, image: copy, ranges: &ranges }]).await?;
                        return Ok(None);
                    }
                }
                // Rare, and boxed so that calls that do not split are small.
                Err(at) if Box::pin(self.split(slot, at, copy, Some((key, value)))).await? => return Ok(None),
                Err(_) => {}
            }
        }
        Err(LOCKED)
    }

    /// Takes a key out; returns its value. `copy` is room for a node.
    pub async fn delete(&self, key: &K, copy: &mut Vec<u8>) -> Result<u64, Status> {
        for _ in 0..ROUNDS {
            let slot = self.leaf_here(key, copy).await?;
            let node = NodeView(copy);
            let head = node.head();
            let at = K::search(node, key).map_err(|_| Status::NotFound)?;
            let old = K::what(node, at);
            if !self.lock(slot, head).await? {
                continue;
            }
            let ranges = K::remove(copy, at);
            self.commit(&[Change { slot, image: copy, ranges: &ranges }]).await?;
            if slot != ROOT && K::is_small(NodeView(copy)) {
                // The key is gone, whatever becomes of this.
                let _ = Box::pin(self.merge(key, 1, copy)).await;
            }
            return Ok(old);
        }
        Err(LOCKED)
    }
}
