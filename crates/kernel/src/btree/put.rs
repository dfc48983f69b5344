//! Writes of numbers' values where the nodes are: the leaf is looked at, locked if it is still as it was seen, and only what
//! changes is written. A leaf without room is split as everywhere ([`Tree::put`]).

use super::access::Tree;
use super::node::{HEADER, leaf_keys};
use super::params::TreeParams;
use super::place::{FIRST, Leaf, More, Next, Visit, Way};
use super::{EXISTS, MOVED, Put, TreeRef};
use crate::call::{Call, Status};
use crate::memory::{Immediate, Memory};

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
        let at = leaf.place(tree.node_bytes(), self.key);
        // The place is right if the head is still the same.
        if !tree.lock_now(now, self.way.slot, leaf.head)? {
            self.way.try_again()?;
            return Ok(Some(More::Bring(self.way.slot, nodes.head(self.way.slot))));
        }
        self.write(&tree, now, &leaf, at, &mut call.reply)?;
        if let Some(old) = leaf.value {
            call.grow_reply(8)?.copy_from_slice(&old.to_le_bytes());
        }
        Ok(Some(More::Done))
    }
}

impl PutInPlace {
    /// Writes into the leaf, which is locked, at a place, and unlocks it: in the order of [`Tree::commit`]. `room` is for what
    /// moves; it is left empty.
    fn write<M: Memory>(
        &self,
        tree: &Tree<'_, M>,
        now: &dyn Immediate,
        leaf: &Leaf<'_>,
        at: usize,
        room: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let (bytes, head) = (tree.node_bytes(), leaf.head.next().0.to_le_bytes());
        let (keys, values) = (HEADER, HEADER + 8 * leaf_keys(bytes));
        let write = |offset, data: &[u8]| now.write_now(self.at.key, tree.va(self.way.slot, offset), data);
        write(bytes - 8, &head)?;
        if leaf.value.is_some() {
            write(values + 8 * at, &self.value.to_le_bytes())?;
        } else {
            let len = leaf.len(bytes);
            let meta = (leaf.meta & !(0xffff * ONE_MORE)) | ((len as u64 + 1) * ONE_MORE);
            write(8 * (FIRST - 1), &meta.to_le_bytes())?;
            room.clear();
            room.resize(8 * (len - at + 1), 0);
            for (first, what) in [(keys, self.key), (values, self.value)] {
                room[..8].copy_from_slice(&what.to_le_bytes());
                leaf.words.take(first + 8 * at, &mut room[8..]);
                write(first + 8 * at, room)?;
            }
            room.clear();
        }
        Ok(write(0, &head)?)
    }
}
