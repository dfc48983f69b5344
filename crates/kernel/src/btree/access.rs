//! How the tree's code reaches its nodes: whole copies, locks, and changes that come into force together.

use super::node::{HEADER, Head, NodeView};
use super::recover::{NODES, Record};
use super::{FIRST, LOCKED, ROOT, TreeKey, TreeRef};
use crate::call::Status;
use crate::memory::{Fault, Limits, Memory};
use std::marker::PhantomData;
use std::ops::Range;

/// What one operation may do before it is given up, in place of its caller's limits: one that was cut off between
/// its lock and its last write would leave a node locked.
pub(super) const LIMITS: Limits = Limits { steps: 1 << 16, bytes: 64 << 20 };
/// Looks at a node that somebody has locked, or keeps changing, before the operation ends with [`LOCKED`].
const TRIES: u32 = 1 << 14;

/// How often an operation begins anew, as somebody changed what it was about to, before it ends with [`LOCKED`]. In a tree that
/// is whole each time is another writer's progress; one whose keys are in no order could be split for as long as it has slots.
pub(super) const ROUNDS: u32 = 1 << 10;
/// Nodes taken of those that wait, and found in somebody's hands, before an operation ends with [`LOCKED`].
const TAKEN: u32 = 64;

/// What of a node is new when its keys stay, or are of no account: all of the header but the head.
#[allow(clippy::single_range_in_vec_init, reason = "one range of bytes")]
pub(super) const HEADER_ONLY: [Range<usize>; 1] = [8..HEADER];

/// A tree as one operation reaches it, whose keys are numbers, or bytes: `[u8]`.
pub struct Tree<'m, M, K: ?Sized = u64> {
    pub(super) memory: &'m M,
    pub(super) at: TreeRef,
    keys: PhantomData<fn(&K)>,
}

/// A node that an operation changes: its slot, its copy, and which bytes of it are new (all between head and tail if
/// there are no ranges).
pub(super) struct Change<'a> {
    pub slot: u32,
    pub image: &'a [u8],
    pub ranges: &'a [Range<usize>],
}

impl<'m, M: Memory> Tree<'m, M> {
    /// The tree at `at`, whose keys are numbers, for one operation.
    pub fn new(memory: &'m M, at: TreeRef) -> Result<Self, Status> {
        Self::keyed(memory, at)
    }
}

impl<'m, M: Memory> Tree<'m, M, [u8]> {
    /// The tree at `at`, whose keys are bytes, for one operation.
    pub fn of_bytes(memory: &'m M, at: TreeRef) -> Result<Self, Status> {
        Self::keyed(memory, at)
    }
}

impl<'m, M: Memory, K: TreeKey + ?Sized> Tree<'m, M, K> {
    fn keyed(memory: &'m M, at: TreeRef) -> Result<Self, Status> {
        at.check()?;
        memory.set_limits(LIMITS);
        Ok(Self::begun(memory, at))
    }

    /// The tree at `at`, as an operation goes on with it that began with a tree there.
    #[inline]
    pub(super) fn begun(memory: &'m M, at: TreeRef) -> Self {
        Tree { memory, at, keys: PhantomData }
    }

    /// Whether the locks that it takes are given back, whatever happens.
    pub(super) fn may_write(&self) -> bool {
        self.at.owner != 0 || self.memory.outlives_caller()
    }

    pub(super) fn node_bytes(&self) -> usize {
        self.at.node_bytes as usize
    }

    /// Address of a byte of a node.
    #[inline]
    pub(super) fn va(&self, slot: u32, offset: usize) -> u64 {
        self.at.base.wrapping_add(u64::from(slot) * u64::from(self.at.node_bytes) + offset as u64)
    }

    /// A slot that a pointer names, if the tree has it.
    #[inline]
    pub(super) fn node_slot(&self, slot: u32) -> Result<u32, Status> {
        if (ROOT..self.at.node_slots()).contains(&slot) { Ok(slot) } else { Err(Status::Trapped) }
    }

    /// A whole copy of a node, of one moment.
    pub(super) async fn load(&self, slot: u32, copy: &mut Vec<u8>) -> Result<(), Status> {
        copy.resize(self.node_bytes(), 0);
        for _ in 0..TRIES {
            self.read(slot, copy).await?;
            if NodeView(copy).is_whole() {
                return Ok(());
            }
        }
        Err(LOCKED)
    }

    /// As [`load`](Self::load), of a node that was just looked at: it is at hand, where nodes can be so.
    pub(super) async fn load_at_hand(&self, slot: u32, copy: &mut Vec<u8>) -> Result<(), Status> {
        if self.memory.immediate().is_some() {
            copy.resize(self.node_bytes(), 0);
            self.peek(self.va(slot, 0), copy).await?;
            if NodeView(copy).is_whole() {
                return Ok(());
            }
        }
        self.load(slot, copy).await
    }

    /// The first bytes of a node, as they come.
    pub(super) async fn read(&self, slot: u32, copy: &mut [u8]) -> Result<(), Fault> {
        let va = self.va(slot, 0);
        self.memory.touch(self.at.key, va, copy.len()).await;
        self.peek(va, copy).await
    }

    /// A copy of an inner node. True if it is one that the place has kept, which may be old.
    pub(super) async fn load_stale(&self, slot: u32, copy: &mut Vec<u8>) -> Result<bool, Status> {
        copy.resize(self.node_bytes(), 0);
        if self.memory.recall(self.at.key, self.va(slot, 0), copy) && NodeView(copy).is_whole() {
            return Ok(true);
        }
        self.load(slot, copy).await?;
        if !NodeView(copy).is_leaf() {
            self.memory.keep(self.at.key, self.va(slot, 0), copy);
        }
        Ok(false)
    }

    /// Drops the copy that the place keeps of a node.
    pub(super) fn forget(&self, slot: u32) {
        self.memory.forget(self.at.key, self.va(slot, 0));
    }

    /// Locks a node whose copy is still what it holds. False if it has changed or somebody else has the lock.
    pub(super) async fn lock(&self, slot: u32, head: Head) -> Result<bool, Fault> {
        // What is done under the lock must not be cut off by what was done before.
        self.memory.set_limits(LIMITS);
        let owner = self.at.owner;
        Ok(self.swap(self.va(slot, 0), head.0, head.locked(owner).0).await? == head.0)
    }

    /// Gives a lock back; nothing has changed.
    pub(super) async fn unlock(&self, slot: u32, head: Head) -> Result<(), Fault> {
        self.write(self.va(slot, 0), &head.unlocked().0.to_le_bytes()).await
    }

    pub(super) async fn swap(&self, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.swap_at(self.at.key, va, expect, new).await
    }

    /// Swaps a word of another region.
    pub(super) async fn swap_at(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        if let Some(now) = self.memory.immediate() {
            return now.compare_swap_now(key, va, expect, new);
        }
        self.memory.compare_swap(key, va, expect, new).await
    }

    pub(super) async fn add(&self, va: u64, n: u64) -> Result<u64, Fault> {
        if let Some(now) = self.memory.immediate() {
            return now.fetch_add_now(self.at.key, va, n);
        }
        self.memory.fetch_add(self.at.key, va, n).await
    }

    pub(super) async fn write(&self, va: u64, data: &[u8]) -> Result<(), Fault> {
        if let Some(now) = self.memory.immediate() {
            return now.write_now(self.at.key, va, data);
        }
        self.memory.write(self.at.key, va, data).await
    }

    /// Brings changes of nodes into force that this operation has locked, and unlocks them: one round trip for a client.
    ///
    /// Of each node the tail comes first and the head last, so that who reads a node upwards meanwhile sees that the two
    /// differ, or the lock. What changes between them goes at once where each write is a message: what lies between two
    /// ranges is as it was.
    pub(super) async fn commit(&self, changes: &[Change<'_>]) -> Result<(), Status> {
        self.commit_as(self.at.owner, changes).await
    }

    /// As [`commit`](Self::commit), with a record in the log of an owner that is not 0.
    pub(super) async fn commit_as(&self, owner: u16, changes: &[Change<'_>]) -> Result<(), Status> {
        let tail = self.node_bytes() - 8;
        let mut heads = [[0; 8]; NODES];
        for (bytes, change) in heads.iter_mut().zip(changes) {
            *bytes = NodeView(change.image).head().next().0.to_le_bytes();
        }
        let record = (owner != 0).then(|| Record::of(changes));
        // Of a record itself, an image for each node, and the seal; of each node tail, three ranges and head.
        let mut pieces: [(u64, &[u8]); 2 + NODES + 5 * NODES] = [(0, &[]); _];
        let mut len = 0;
        let mut push = |va, bytes| {
            pieces[len] = (va, bytes);
            len += 1;
        };
        if let Some(record) = &record {
            record.pieces(self, changes, &mut push)?;
        }
        for (change, head) in changes.iter().zip(&heads) {
            push(self.va(change.slot, tail), head);
            if change.ranges.is_empty() {
                push(self.va(change.slot, 8), &change.image[8..tail]);
            }
            let ranges = change.ranges.iter().filter(|range| !range.is_empty());
            if self.memory.immediate().is_some() {
                ranges.for_each(|range| push(self.va(change.slot, range.start), &change.image[range.clone()]));
            } else {
                let ends = ranges.map(|range| (range.start, range.end));
                let span = ends.reduce(|(start, end), range| (start.min(range.0), end.max(range.1)));
                span.into_iter().for_each(|(start, end)| push(self.va(change.slot, start), &change.image[start..end]));
            }
            push(self.va(change.slot, 0), head);
        }
        if let Some(now) = self.memory.immediate() {
            pieces[..len].iter().try_for_each(|(va, data)| now.write_now(self.at.key, *va, data))?;
            return Ok(());
        }
        Ok(self.memory.write_in_order(self.at.key, &pieces[..len]).await?)
    }

    /// A free node, locked, with its head as it was; `copy` becomes its image. Who `holds` another one already is not
    /// suspended, and nobody is between the taking of a node and its lock: one that is cancelled there would lose it.
    pub(super) async fn allocate(&self, copy: &mut Vec<u8>, holds: bool) -> Result<u32, Status> {
        copy.resize(self.node_bytes(), 0);
        for _ in 0..TAKEN {
            let slot = self.take_slot(holds).await?;
            let mut header = [0; 32];
            self.peek(self.va(slot, 0), &mut header).await?;
            let head = NodeView(&header).head();
            if !head.is_locked() && NodeView(&header).level().is_none() && self.lock(slot, head).await? {
                copy.fill(0);
                copy[..8].copy_from_slice(&head.0.to_le_bytes());
                return Ok(slot);
            }
            // Somebody who was long gone holds on to it: it is left to him.
        }
        Err(LOCKED)
    }

    async fn take_slot(&self, holds: bool) -> Result<u32, Status> {
        let list = self.va(0, FIRST.free);
        let mut word = [0; 8];
        loop {
            self.peek(list, &mut word).await?;
            let first = u64::from_le_bytes(word);
            let slot = first as u32;
            if slot == 0 {
                break;
            }
            let mut header = [0; 32];
            match (self.node_slot(slot)?, holds) {
                (slot, true) => self.peek(self.va(slot, 0), &mut header).await?,
                (slot, false) => self.read(slot, &mut header).await?,
            }
            // The upper half counts, so that a list that has changed and changed back is not taken for the same.
            let rest = u64::from(NodeView(&header).right()) | ((first >> 32) + 1) << 32;
            if self.swap(list, first, rest).await? == first {
                return Ok(slot);
            }
        }
        self.peek(self.va(0, FIRST.next), &mut word).await?;
        if u64::from_le_bytes(word) >= u64::from(self.at.node_slots()) {
            return Err(super::FULL);
        }
        match self.add(self.va(0, FIRST.next), 1).await? {
            slot if slot < u64::from(self.at.node_slots()) => self.node_slot(slot as u32),
            _ => Err(super::FULL),
        }
    }

    // Where accesses never wait they are made so, but for the first of a node: who holds a lock there is never suspended,
    // and so never cancelled.

    /// Reads, at once where that is possible.
    pub(super) async fn peek(&self, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        if let Some(now) = self.memory.immediate() {
            return now.read_now(self.at.key, va, out);
        }
        self.memory.read(self.at.key, va, out).await
    }

    /// Gives a node that is free and unlocked to who wants one.
    pub(super) async fn release(&self, slot: u32) -> Result<(), Fault> {
        self.forget(slot);
        let list = self.va(0, FIRST.free);
        let mut word = [0; 8];
        loop {
            self.peek(list, &mut word).await?;
            let first = u64::from_le_bytes(word);
            self.write(self.va(slot, 24), &u64::from(first as u32).to_le_bytes()).await?;
            let new = u64::from(slot) | ((first >> 32) + 1) << 32;
            if self.swap(list, first, new).await? == first {
                return Ok(());
            }
        }
    }
}
