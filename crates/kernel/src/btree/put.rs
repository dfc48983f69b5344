//! Writes of numbers' values where the nodes are: the leaf is looked at, locked if it is still as it was seen, and only what
//! changes is written. A leaf without room is split as everywhere ([`Tree::put`]).

use super::access::Tree;
use super::node::leaf_keys;
use super::params::TreeParams;
use super::place::{FIRST, Leaf, More, Next, Visit, Way};
use super::{EXISTS, MOVED, Put, TreeRef};
use crate::call::{Call, Status};
use crate::memory::Memory;
use remora_memory::WordsMut;

/// A key more, in the last word of a node's header.
const ONE_MORE: u64 = 1 << 32;

/// A write.
pub(crate) struct PutInPlace {
    at: TreeRef,
    key: u64,
    value: u64,
    how: Put,
    way: Way,
}

impl Visit for PutInPlace {
    fn new(&TreeParams { tree, key, value, how }: &TreeParams) -> Self {
        // What runs on the node leaves no lock, and is nobody's.
        PutInPlace { at: tree.of_nobody(), key, value, how, way: Way::BEGIN }
    }

    fn tree(&self) -> TreeRef {
        self.at
    }

    /// `None` too if the leaf is to be split.
    fn go_on<'m, M: Memory>(&mut self, memory: &'m M, call: &mut Call) -> Result<Option<More<'m>>, Status> {
        let tree = Tree::<_, u64>::begun(memory, self.at);
        let Some(now) = memory.immediate().filter(|_| memory.outlives_caller()) else { return Ok(None) };
        let Some(nodes) = tree.nodes() else { return Ok(None) };
        let leaf = match tree.follow(nodes, &self.key, &mut self.way)? {
            Next::Bring(words) => return Ok(Some(More::Bring(self.way.slot, words))),
            Next::Leaf(leaf) => leaf,
        };
        match leaf.value {
            _ if leaf.is_away() => return Err(MOVED),
            Some(_) if self.how == Put::Insert => return Err(EXISTS),
            None if self.how == Put::Update => return Err(Status::NotFound),
            None if leaf.len(tree.node_bytes()) == leaf_keys(tree.node_bytes()) => return Ok(None),
            _ => {}
        }
        let (at, va) = (leaf.place(tree.node_bytes(), self.key), tree.va(self.way.slot, 0));
        let Some(node) = now.view_mut_now(self.at.key, va, self.at.node_bytes.into()) else { return Ok(None) };
        // The place is right if the head is still the same.
        if !node.compare_swap(0, leaf.head.0, leaf.head.locked(self.at.owner).0) {
            self.way.try_again()?;
            return Ok(Some(More::Bring(self.way.slot, leaf.words.part(0, 1))));
        }
        self.write(&node, &leaf, at, tree.node_bytes());
        if let Some(old) = leaf.value {
            call.grow_reply(8)?.copy_from_slice(&old.to_le_bytes());
        }
        Ok(Some(More::Done))
    }
}

impl PutInPlace {
    /// Writes into the leaf, which is locked, at a place, and unlocks it: in the order of [`Tree::commit`].
    fn write(&self, node: &WordsMut<'_>, leaf: &Leaf<'_>, at: usize, bytes: usize) {
        let head = leaf.head.next().0;
        let (keys, values) = (FIRST, FIRST + leaf_keys(bytes));
        node.set(bytes / 8 - 1, head);
        if leaf.value.is_none() {
            let len = leaf.len(bytes);
            node.set(FIRST - 1, (leaf.meta & !(0xffff * ONE_MORE)) | ((len as u64 + 1) * ONE_MORE));
            node.shift(keys + at, len - at);
            node.shift(values + at, len - at);
            node.set(keys + at, self.key);
        }
        node.set(values + at, self.value);
        node.set(0, head);
    }
}
