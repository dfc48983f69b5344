//! Inserts, updates and deletes.

use super::access::{Change, Tree};
use super::node::{NodeMut, NodeView};
use super::{EXISTS, ROOT};
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

impl<M: Memory> Tree<'_, M> {
    /// Writes the value of a key; returns the one that it had. `copy` is room for a node.
    pub async fn put(&self, key: u64, value: u64, how: Put, copy: &mut Vec<u8>) -> Result<Option<u64>, Status> {
        loop {
            let slot = self.leaf_here(key, copy).await?;
            let node = NodeView(copy);
            let head = node.head();
            match node.search(key) {
                Ok(_) if how == Put::Insert => return Err(EXISTS),
                Err(_) if how == Put::Update => return Err(Status::NotFound),
                Ok(at) => {
                    let old = node.value(at);
                    if self.lock(slot, head).await? {
                        let range = NodeMut(copy).set_value(at, value);
                        self.commit(&[Change { slot, image: copy, ranges: &[range] }]).await?;
                        return Ok(Some(old));
                    }
                }
                Err(at) if node.len() < node.room() => {
                    if self.lock(slot, head).await? {
                        let ranges = NodeMut(copy).insert(at, key, value);
                        self.commit(&[Change { slot, image: copy, ranges: &ranges }]).await?;
                        return Ok(None);
                    }
                }
                // Rare, and boxed so that calls that do not split are small.
                Err(at) => Box::pin(self.split(slot, at, copy)).await?,
            }
        }
    }

    /// Takes a key out; returns its value. `copy` is room for a node.
    pub async fn delete(&self, key: u64, copy: &mut Vec<u8>) -> Result<u64, Status> {
        loop {
            let slot = self.leaf_here(key, copy).await?;
            let node = NodeView(copy);
            let head = node.head();
            let at = node.search(key).map_err(|_| Status::NotFound)?;
            let old = node.value(at);
            if !self.lock(slot, head).await? {
                continue;
            }
            let ranges = NodeMut(copy).remove(at);
            self.commit(&[Change { slot, image: copy, ranges: &ranges }]).await?;
            if slot != ROOT && NodeView(copy).is_small() {
                // The key is gone, whatever becomes of this.
                let _ = Box::pin(self.merge(key, 1, copy)).await;
            }
            return Ok(old);
        }
    }
}
