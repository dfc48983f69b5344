//! Scans of numbers where the nodes are: keys and values go from the leaf into the reply, and the leaf's version is looked at
//! once more afterwards.

use super::TreeRef;
use super::access::Tree;
use super::node::leaf_keys;
use super::params::TreeParams;
use super::place::{FIRST, Leaf, More, Next, Visit, Way};
use crate::call::{Call, Status};
use crate::memory::Memory;

/// A scan.
pub(crate) struct Range {
    at: TreeRef,
    /// The least key that is still to come.
    pub(super) from: u64,
    /// How many pairs are.
    pub(super) left: usize,
    way: Way,
}

/// What became of a look at a leaf.
enum Taken {
    /// Its pairs are in the reply, and what comes next begins there, in this node.
    Pairs(u64, u32),
    /// The reply has all.
    All,
    /// Somebody changes it.
    Busy,
}

impl Visit for Range {
    fn new(&TreeParams { tree: at, key: from, value, .. }: &TreeParams) -> Self {
        Range { at, from, left: u32::try_from(value).unwrap_or(u32::MAX) as usize, way: Way::BEGIN }
    }

    fn tree(&self) -> TreeRef {
        self.at
    }

    fn go_on<'m, M: Memory>(&mut self, memory: &'m M, call: &mut Call) -> Result<Option<More<'m>>, Status> {
        let tree = Tree::<_, u64>::begun(memory, self.at);
        let Some(nodes) = tree.nodes() else { return Ok(None) };
        let words = match tree.follow(nodes, &self.from, &mut self.way)? {
            Next::Bring(words) => words,
            Next::Leaf(leaf) => match self.take(&leaf, tree.node_bytes(), call)? {
                Taken::All => return Ok(Some(More::Done)),
                Taken::Busy => {
                    self.way.try_again()?;
                    leaf.words.part(0, 1)
                }
                Taken::Pairs(next, right) => {
                    self.from = next;
                    self.way.turn_right(tree.node_slot(right)?);
                    nodes.node(self.way.slot)
                }
            },
        };
        Ok(Some(More::Bring(self.way.slot, words)))
    }
}

impl Range {
    fn take(&mut self, leaf: &Leaf<'_>, bytes: usize, call: &mut Call) -> Result<Taken, Status> {
        if leaf.is_away() {
            // From there on the keys are in the other part.
            call.grow_reply(8)?.copy_from_slice(&self.from.to_le_bytes());
            return Ok(Taken::All);
        }
        let (first, high) = (leaf.place(bytes, self.from), leaf.words.get(2));
        let count = (leaf.len(bytes) - first).min(self.left);
        if !leaf.is_as_it_was() {
            return Ok(Taken::Busy);
        }
        let before = call.reply.len();
        leaf.words.pairs(FIRST + first, FIRST + leaf_keys(bytes) + first, call.grow_reply(16 * count)?);
        if !leaf.is_as_it_was() {
            call.reply.truncate(before);
            return Ok(Taken::Busy);
        }
        self.left -= count;
        Ok(match high.checked_add(1).filter(|_| leaf.right() != 0 && self.left > 0) {
            Some(next) => Taken::Pairs(next, leaf.right()),
            None => Taken::All,
        })
    }
}
