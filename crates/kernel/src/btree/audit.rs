//! Looks a whole tree over: for tests, and for who suspects his memory.

use super::access::Tree;
use super::node::NodeView;
use super::{FIRST, ROOT, TreeKey};
use crate::call::Status;
use crate::memory::Memory;
use std::borrow::Borrow;
use std::collections::BTreeSet;

/// What a tree that nobody writes holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit<K = u64> {
    /// All keys and values, in order.
    pub pairs: Vec<(K, u64)>,
    /// Levels, the leaves included.
    pub levels: u8,
    /// Nodes of the tree.
    pub nodes: usize,
    /// Nodes that wait to be used again.
    pub free: usize,
    /// Nodes that are neither: who took them out was gone before they were of use.
    pub lost: usize,
    /// Leaves whose keys are in the other part of an index.
    pub away: usize,
    /// Nodes that their parents do not know: a pointer from the left leads to them.
    pub orphans: usize,
}

/// Why a tree is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// An access failed, or a node stays locked.
    #[error("slot {0} cannot be read: {1:?}")]
    Access(u32, Status),
    /// A node that is not what it must be.
    #[error("slot {0}: {1}")]
    NodeView(u32, &'static str),
}

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// Looks at every node: each level is one chain whose fences meet, keys ascend within fences, children are those that
    /// their parents take them for, and no slot is in two places.
    pub async fn audit(&self) -> Result<Audit<K::Owned>, AuditError> {
        let mut copy = Vec::new();
        let mut audit = Audit { pairs: Vec::new(), levels: 0, nodes: 0, free: 0, lost: 0, away: 0, orphans: 0 };
        let mut used = BTreeSet::from([0]);
        self.look(ROOT, &mut copy).await?;
        let wrong = |slot: u32, what: &'static str| AuditError::NodeView(slot, what);
        let mut level = NodeView(&copy).level().ok_or(wrong(ROOT, "the root is free"))?;
        audit.levels = level + 1;
        let mut first = ROOT;
        // Children that the level above names.
        let mut named: Option<BTreeSet<u32>> = None;
        loop {
            let (mut slot, mut low, mut children, mut chain) = (first, K::least(), BTreeSet::new(), BTreeSet::new());
            loop {
                if !used.insert(slot) {
                    return Err(wrong(slot, "in two places"));
                }
                chain.insert(slot);
                self.look(slot, &mut copy).await?;
                let node = NodeView(&copy);
                if node.level() != Some(level) || K::low(node) != low {
                    return Err(wrong(slot, "not the node that its left neighbour or parent takes it for"));
                }
                if node.is_away() && (level > 0 || K::count(node) > 0) {
                    return Err(wrong(slot, "away, and no leaf without keys"));
                }
                audit.away += usize::from(node.is_away());
                let keys: Vec<K::Owned> = (0..K::count(node)).map(|at| K::key(node, at)).collect();
                if !keys.is_sorted_by(|a, b| a < b) || !keys.iter().all(|key| K::covers(node, key.borrow())) {
                    return Err(wrong(slot, "keys that do not ascend between the fences"));
                }
                match level {
                    0 => audit.pairs.extend((0..).zip(keys).map(|(at, key)| (key, K::what(node, at)))),
                    _ if keys.first() != Some(&low) => {
                        return Err(wrong(slot, "a first key that is not the low fence"));
                    }
                    _ => children.extend((0..keys.len()).map(|at| K::what(node, at) as u32)),
                }
                if slot == first {
                    first = if level > 0 { K::what(node, 0) as u32 } else { 0 };
                }
                match K::next(node) {
                    None => break,
                    Some(_) if node.right() == 0 => {
                        return Err(wrong(slot, "nothing to the right of it, though keys are missing"));
                    }
                    Some(next) => (slot, low) = (node.right(), next),
                }
            }
            if let Some(named) = named {
                audit.orphans += chain.difference(&named).count();
                if let Some(gone) = named.difference(&chain).next() {
                    return Err(wrong(*gone, "a parent names it, and its level has it not"));
                }
            }
            audit.nodes += chain.len();
            if level == 0 {
                break;
            }
            (named, level) = (Some(children), level - 1);
        }
        let mut slot = self.word(FIRST.free).await? as u32;
        while slot != 0 {
            if !used.insert(slot) {
                return Err(wrong(slot, "free, and in another place"));
            }
            audit.free += 1;
            self.look(slot, &mut copy).await?;
            if NodeView(&copy).level().is_some() {
                return Err(wrong(slot, "in the list of free nodes, and not free"));
            }
            slot = NodeView(&copy).right();
        }
        audit.lost = (self.word(FIRST.next).await? as usize).saturating_sub(used.len());
        Ok(audit)
    }

    async fn look(&self, slot: u32, copy: &mut Vec<u8>) -> Result<(), AuditError> {
        let read = match self.node_slot(slot) {
            Ok(slot) => self.load(slot, copy).await,
            Err(status) => Err(status),
        };
        read.map_err(|status| AuditError::Access(slot, status))
    }

    async fn word(&self, offset: usize) -> Result<u64, AuditError> {
        let mut word = [0; 8];
        let read = self.peek(self.va(0, offset), &mut word).await;
        read.map(|()| u64::from_le_bytes(word)).map_err(|fault| AuditError::Access(0, fault.into()))
    }
}
