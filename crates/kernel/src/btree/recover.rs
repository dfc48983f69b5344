//! What a client was about to write when it went away: its log, and how the node brings it to an end.
//!
//! A client that writes by itself takes locks as an *owner*, a number of its own from 1 on, and has a log in the tree's
//! region. A change is written there before it touches a node, in the same round trip: a connection keeps the order.
//! When the client is gone for good, and its connection with it, so that nothing of it can arrive any more, the node
//! [recovers](Tree::recover) what it left: a change that is whole in the log is made again, every other lock is given
//! back. The node's own operations have no log: they are never cut off between a lock and their last write.

use super::access::{Change, Tree};
use super::node::{Head, NodeView, half, word};
use super::{ROOT, TreeKey, TreeRef};
use crate::call::Status;
use crate::consistency::crc64;
use crate::memory::{Fault, Limits, Memory};

/// Slots of a log: the record, the image of each node of a change and the seal, one behind the other.
pub const LOG_SLOTS: u32 = 4;
/// Nodes of a change, at most.
pub(super) const NODES: usize = 3;
/// Bytes of a record: slot (8) and head (8) of each node.
const RECORD: usize = 16 * NODES;
/// Bytes of a seal.
const SEAL: usize = 8;

impl TreeRef {
    /// Slots that nodes may have: those behind them are logs.
    pub(super) fn node_slots(&self) -> u32 {
        self.slots.saturating_sub(LOG_SLOTS * u32::from(self.owners))
    }

    /// First slot of an owner's log.
    fn log(&self, owner: u16) -> Result<u32, Status> {
        let known = (1..=self.owners).contains(&owner) && self.node_slots() > ROOT;
        if known { Ok(self.slots - LOG_SLOTS * u32::from(owner)) } else { Err(Status::BadParams) }
    }
}

/// A record of a log, and the seal that says that it and all images are there: a checksum of the record. A node has a
/// head once, so that no other record has the same; bytes land in the order of their addresses.
pub(super) struct Record([u8; RECORD], [u8; SEAL]);

impl Record {
    pub fn of(changes: &[Change<'_>]) -> Record {
        let mut record = [0; RECORD];
        for (entry, change) in record.chunks_exact_mut(16).zip(changes) {
            entry[..4].copy_from_slice(&change.slot.to_le_bytes());
            entry[8..].copy_from_slice(&NodeView(change.image).head().0.to_le_bytes());
        }
        Record(record, crc64(&record).to_le_bytes())
    }

    /// The writes that put a change into an owner's log: without a gap, so that they may be one.
    pub fn pieces<'a, M: Memory, K: TreeKey + ?Sized>(
        &'a self,
        tree: &Tree<'_, M, K>,
        changes: &[Change<'a>],
        mut push: impl FnMut(u64, &'a [u8]),
    ) -> Result<(), Status> {
        let log = tree.at.log(tree.at.owner)?;
        push(tree.va(log, 0), &self.0);
        let mut at = RECORD;
        for change in changes {
            push(tree.va(log, at), change.image);
            at += change.image.len();
        }
        push(tree.va(log, at), &self.1);
        Ok(())
    }
}

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// Ends what an owner left half done, and gives back its locks: how many there were. It must be gone: a write of it
    /// that came later could fall upon somebody else's.
    pub async fn recover(&self, owner: u16, copy: &mut Vec<u8>) -> Result<u64, Status> {
        let log = self.at.log(owner)?;
        self.memory.set_limits(Limits { steps: u32::MAX, bytes: u64::MAX });
        let mut locks = 0;
        let (mut record, mut seal) = ([0; RECORD], [0; SEAL]);
        self.peek(self.va(log, 0), &mut record).await?;
        let entries = record.chunks_exact(16).map(|entry| (half(entry, 0), Head(word(entry, 8))));
        let nodes = entries.clone().take_while(|(slot, _)| *slot != 0).count();
        self.peek(self.va(log, RECORD + nodes * self.node_bytes()), &mut seal).await?;
        if seal == crc64(&record).to_le_bytes() {
            for (image, (slot, head)) in entries.take(nodes).enumerate() {
                if self.node_slot(slot).is_err() {
                    continue;
                }
                if self.head(slot).await? == head.locked(owner) {
                    copy.resize(self.node_bytes(), 0);
                    self.peek(self.va(log, RECORD + image * self.node_bytes()), copy).await?;
                    copy[..8].copy_from_slice(&head.0.to_le_bytes());
                    self.redo(slot, copy).await?;
                    if NodeView(copy).level().is_none() {
                        // A merge has freed it, which has not come to give it to who wants one.
                        self.release(slot).await?;
                    }
                    locks += 1;
                }
            }
        }
        let mut word = [0; 8];
        self.peek(self.va(0, super::FIRST.next), &mut word).await?;
        let used = u64::from_le_bytes(word).min(self.at.node_slots().into()) as u32;
        for slot in ROOT..used {
            let mut header = [0; super::HEADER];
            self.read(slot, &mut header).await?;
            let head = NodeView(&header).head();
            if head.is_locked() && head.owner() == owner {
                self.unlock(slot, head).await?;
                if NodeView(&header).level().is_none() {
                    self.release(slot).await?;
                }
                locks += 1;
            }
        }
        Ok(locks)
    }

    async fn redo(&self, slot: u32, image: &[u8]) -> Result<(), Status> {
        self.commit_as(0, &[Change { slot, image, ranges: &[] }]).await
    }

    async fn head(&self, slot: u32) -> Result<Head, Fault> {
        let mut word = [0; 8];
        self.peek(self.va(slot, 0), &mut word).await?;
        Ok(Head(u64::from_le_bytes(word)))
    }
}
