//! Writes of values where the nodes are: the leaf is looked at, locked if it is still as it was seen, and only what
//! changes is written. A leaf without room is split as everywhere ([`Tree::put`](super::Tree::put)).

use super::place::{Ground, InPlace, More, Next, Nodes, Visit, Way};
use super::{EXISTS, MOVED, Put, TreeRef};
use crate::call::{Call, Status};

/// A write, by who goes on though its caller has gone away, and with room for a reply.
pub(crate) struct PutInPlace<K: InPlace + ?Sized> {
    at: TreeRef,
    key: K::Kept,
    value: u64,
    how: Put,
    way: Way,
}

impl<K: InPlace + ?Sized> Visit for PutInPlace<K> {
    #[inline(always)]
    fn begin(params: &[u8]) -> Result<Self, Status> {
        let (tree, key, value, how) = K::asked(params)?;
        // What runs on the node leaves no lock, and is nobody's.
        Ok(PutInPlace { at: tree.of_nobody(), key, value, how, way: Way::BEGIN })
    }

    fn tree(&self) -> &TreeRef {
        &self.at
    }

    /// `None` too if the leaf is to be split.
    #[inline(always)]
    fn go_on<'m>(&mut self, ground: &mut impl Ground<'m>, call: &mut Call) -> Result<Option<More<'m>>, Status> {
        let Some(nodes) = Nodes::of(&self.at, ground) else { return Ok(None) };
        let key = K::sought(&self.key, &call.params);
        let leaf = match nodes.follow(key, &mut self.way)? {
            Next::Near => return Ok(Some(More::Step)),
            Next::Bring(words) => return Ok(Some(More::Bring(self.way.slot, words))),
            Next::Leaf(leaf) => leaf,
        };
        match leaf.value {
            _ if leaf.is_away() => return Err(MOVED),
            Some(_) if self.how == Put::Insert => return Err(EXISTS),
            None if self.how == Put::Update => return Err(Status::NotFound),
            None if !K::has_room(&leaf, key) => return Ok(None),
            _ => {}
        }
        let Some(node) = ground.slot_mut(&self.at, self.way.slot) else { return Ok(None) };
        // The place is right if the head is still the same.
        if !node.compare_swap(0, leaf.head.0, leaf.head.locked(self.at.owner).0) {
            self.way.try_again()?;
            return Ok(Some(More::Bring(self.way.slot, leaf.words.part(0, 1))));
        }
        // In the order of [`Tree::commit`](super::Tree).
        let head = leaf.head.next().0;
        node.set(leaf.words.bytes() / 8 - 1, head);
        K::put(&node, &leaf, key, self.value);
        node.set(0, head);
        if let Some(old) = leaf.value {
            call.grow_reply(8)?.copy_from_slice(&old.to_le_bytes());
        }
        Ok(Some(More::Done))
    }
}
