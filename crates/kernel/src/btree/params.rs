//! Where a tree is, the parameters of its kernels, and the kernels.

use super::byte_calls::{Work, are_bytes, run};
use super::place::Visit;
use super::{NODE_BYTES, NOT_OWNER, NodeView, Put, PutInPlace, ROOT, Range, Tree};
use crate::call::{Call, Status};
use crate::memory::Memory;
use std::ops;

/// Where a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeRef {
    /// Address of the first slot, a multiple of 8.
    pub base: u64,
    /// Key of the region. Its peers may read, write and use atomics there.
    pub key: u32,
    /// Slots of the size of a node, the first one included.
    pub slots: u32,
    /// Bytes of a node: a power of two within [`NODE_BYTES`].
    pub node_bytes: u16,
    /// Owners that have logs: the last slots.
    pub owners: u16,
    /// As whom this caller takes locks: 0 for the node's own calls, else one of the owners.
    pub owner: u16,
}

impl TreeRef {
    /// Bytes of a reference.
    pub(super) const LEN: usize = 24;

    /// The tree that a kernel's parameters name, be its keys numbers or bytes; `None` if they make no sense.
    pub fn of(params: &[u8]) -> Option<Self> {
        let tree = params.get(..Self::LEN).map(Self::decode)?;
        tree.check().is_ok().then_some(tree)
    }

    /// The same tree for the node's own calls.
    pub(super) fn of_nobody(self) -> Self {
        TreeRef { owner: 0, ..self }
    }

    /// To the first bytes: base (8), key of the region (4), slots (4), bytes of a node (2), owner (2), two that are left to
    /// others, owners (2); little-endian.
    pub(super) fn encode(&self, bytes: &mut [u8]) {
        let TreeRef { base, key, slots, node_bytes, owners, owner } = *self;
        let place = u64::from(key) | u64::from(slots) << 32;
        let shape = u64::from(node_bytes) | u64::from(owner) << 16 | u64::from(owners) << 48;
        // Whole words: whoever copies them soon after would wait for parts to come together.
        for (out, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([base, place, shape]) {
            *out = word.to_le_bytes();
        }
    }

    /// From as many bytes, be they what they may: see [`check`](Self::check).
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let [base, regions, sizes] = [0, 8, 16].map(|at| super::node::word(bytes, at));
        TreeRef {
            base,
            key: regions as u32,
            slots: (regions >> 32) as u32,
            node_bytes: sizes as u16,
            owner: (sizes >> 16) as u16,
            owners: (sizes >> 48) as u16,
        }
    }

    pub(super) fn check(&self) -> Result<(), Status> {
        let bytes = usize::from(self.node_bytes);
        let fits = bytes.is_power_of_two() && (NODE_BYTES[0]..=NODE_BYTES[1]).contains(&bytes);
        if fits && self.base.is_multiple_of(8) && self.node_slots() > ROOT && self.owner <= self.owners {
            Ok(())
        } else {
            Err(Status::BadParams)
        }
    }
}

/// Parameters of a kernel on a tree.
///
/// | kernel | `value`      | reply                                                            |
/// |--------|--------------|------------------------------------------------------------------|
/// | get    | 0            | the value                                                        |
/// | put    | the new one  | the value before; nothing if there was none                      |
/// | delete | 0            | the value before                                                 |
/// | scan   | how many     | pairs of key and value from `key` on, in order; then, if the keys from another on are in the other part of an index, that one |
/// | recover | 0           | how many locks the owner that `key` names had left               |
///
/// After [`LOCKED`](super::LOCKED) nothing is known but that the key is as it was: it may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeParams {
    /// The tree.
    pub tree: TreeRef,
    /// The key.
    pub key: u64,
    /// The value, or the most pairs to bring.
    pub value: u64,
    /// What a put does.
    pub how: Put,
}

impl TreeParams {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Of a look-up, a delete, or a scan of `value` pairs.
    pub fn new(tree: TreeRef, key: u64, value: u64) -> Self {
        TreeParams { tree, key, value, how: Put::Upsert }
    }

    /// To bytes: base (8), key of the region (4), slots (4), bytes of a node (2), owner (2), what a put does (1), 0 (1: 1
    /// stands for [keys that are bytes](super::ByteParams)), owners (2), key (8), value (8); little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        self.tree.encode(&mut bytes);
        bytes[20] = self.how.code();
        bytes[24..32].copy_from_slice(&self.key.to_le_bytes());
        bytes[32..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// From bytes, if they make sense.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Status::BadParams)?;
        let how = Put::of_code(bytes[20]).ok_or(Status::BadParams)?;
        let tree = TreeRef::decode(bytes);
        tree.check()?;
        Ok(TreeParams { tree, key: super::node::word(bytes, 24), value: super::node::word(bytes, 32), how })
    }
}

/// The reply's own bytes are room for a node until there is a reply.
macro_rules! on_tree {
    ($memory:ident, $call:ident, |$tree:ident, $params:ident, $copy:ident| $run:expr) => {{
        let $params = TreeParams::decode(&$call.params)?;
        // What runs on the node leaves no lock, and is nobody's.
        let at = if $memory.outlives_caller() { $params.tree.of_nobody() } else { $params.tree };
        let $tree = Tree::new($memory, at)?;
        let mut copy = std::mem::take(&mut $call.reply);
        let $copy = &mut copy;
        let result: Result<Option<u64>, Status> = $run;
        copy.clear();
        $call.reply = copy;
        if let Some(value) = result? {
            $call.grow_reply(8)?.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }};
}

#[inline]
pub(crate) async fn get<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    if are_bytes(&call.params) {
        return Box::pin(run(memory, call, Work::Get)).await;
    }
    on_tree!(memory, call, |tree, params, copy| tree.get(&params.key, copy).await.map(Some))
}

/// Whether there is room for a reply of so many bytes: what changes a tree asks first.
pub(super) fn room(call: &Call, bytes: usize) -> Result<(), Status> {
    if call.reply_room() < bytes { Err(Status::ReplyTooLong) } else { Ok(()) }
}

pub(crate) async fn put<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    room(call, 8)?;
    let bytes = are_bytes(&call.params);
    if memory.outlives_caller() {
        let done = match bytes {
            true => PutInPlace::<[u8]>::begin(&call.params)?.run(memory, call).await?,
            false => PutInPlace::<u64>::begin(&call.params)?.run(memory, call).await?,
        };
        if done {
            return Ok(());
        }
    }
    // By copies of whole nodes: also where a leaf is to be split.
    if bytes {
        return Box::pin(run(memory, call, Work::Put)).await;
    }
    on_tree!(memory, call, |tree, params, copy| match tree.may_write() {
        true => tree.put(&params.key, params.value, params.how, copy).await,
        false => Err(NOT_OWNER),
    })
}

pub(crate) async fn delete<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    room(call, 8)?;
    if are_bytes(&call.params) {
        return Box::pin(run(memory, call, Work::Delete)).await;
    }
    on_tree!(memory, call, |tree, params, copy| match tree.may_write() {
        true => tree.delete(&params.key, copy).await.map(Some),
        false => Err(NOT_OWNER),
    })
}

pub(crate) async fn recover<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    on_tree!(memory, call, |tree, params, copy| {
        let owner = u16::try_from(params.key).map_err(|_| Status::BadParams)?;
        tree.recover(owner, copy).await.map(Some)
    })
}

pub(crate) async fn scan<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    if are_bytes(&call.params) {
        return Box::pin(run(memory, call, Work::Scan)).await;
    }
    let mut range = Range::<u64>::begin(&call.params)?;
    if range.run(memory, call).await? {
        return Ok(());
    }
    // Nodes are not at hand, or not any more.
    let (tree, from, count) = (Tree::new(memory, *range.tree())?, range.from, range.left as u32);
    let found = |leaf: NodeView<'_>, places: ops::Range<usize>| {
        let reply = call.grow_reply(16 * places.len())?;
        for (pair, at) in reply.chunks_exact_mut(16).zip(places) {
            pair[..8].copy_from_slice(&leaf.key(at).to_le_bytes());
            pair[8..].copy_from_slice(&leaf.value(at).to_le_bytes());
        }
        Ok(())
    };
    if let Some(next) = tree.scan(&from, count, &mut Vec::new(), found).await? {
        call.grow_reply(8)?.copy_from_slice(&next.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_come_back_as_they_went() {
        let tree = TreeRef { base: 1 << 40, key: 7, slots: 99, node_bytes: 512, owners: 4, owner: 3 };
        for how in [Put::Upsert, Put::Insert, Put::Update] {
            let params = TreeParams { tree, key: u64::MAX - 1, value: 1 << 33, how };
            assert_eq!(TreeParams::decode(&params.encode()), Ok(params));
        }
        let good = TreeParams::new(tree, 1, 2).encode();
        for (at, value) in [(0, 1), (16, 1), (17, 0), (17, 0x20), (20, 3), (18, 9)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(TreeParams::decode(&bad), Err(Status::BadParams), "byte {at}");
        }
        assert_eq!(TreeParams::decode(&good[1..]), Err(Status::BadParams));
    }
}
