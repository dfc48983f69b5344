//! Scans of numbers where the nodes are: keys and values go from the leaf into the reply, and the leaf's version is looked at
//! once more afterwards.

use super::TreeRef;
use super::access::Tree;
use super::node::{HEADER, Head, leaf_keys};
use super::params::TreeParams;
use super::place::{Next, Way, can_be_looked_at};
use crate::call::{Call, Status};
use crate::host::HostMemory;
use crate::memory::Memory;

/// Words of a node's header.
const FIRST: usize = HEADER / 8;

/// A scan, between two leaves.
pub(crate) struct Range {
    at: TreeRef,
    /// The least key that is still to come.
    pub(super) from: u64,
    /// How many pairs are.
    pub(super) left: usize,
    way: Way,
    /// The leaf has been brought.
    there: bool,
}

/// What comes after the leaves that were at hand.
pub(super) enum More {
    /// So many bytes of a slot are to be brought.
    Bring(u32, usize),
    /// The scan has ended.
    Done,
}

impl Range {
    /// A scan with these parameters, if all nodes can be looked at where they are.
    pub fn of(memory: &HostMemory, params: &[u8]) -> Option<Self> {
        can_be_looked_at(memory, params).map(|params| Self::new(&params))
    }

    pub(super) fn new(params: &TreeParams) -> Self {
        let TreeParams { tree: at, key: from, value, .. } = *params;
        let left = u32::try_from(value).unwrap_or(u32::MAX) as usize;
        Range { at, from, left, way: Way::BEGIN, there: false }
    }

    /// Looks at nodes until one is to be brought, and asks for that. True when the reply has all.
    #[inline(always)]
    pub fn step(&mut self, memory: &HostMemory, call: &mut Call) -> Result<bool, Status> {
        match self.go_on(memory, call)? {
            Some(More::Done) => Ok(true),
            Some(More::Bring(slot, len)) => {
                memory.hint(self.at.key, Tree::<_, u64>::begun(memory, self.at).va(slot, 0), len);
                Ok(false)
            }
            // It was there when the call began.
            None => Err(Status::AccessDenied),
        }
    }

    /// Looks at nodes until one is to be brought; `None` if they cannot be looked at in place.
    pub(super) fn go_on<M: Memory>(&mut self, memory: &M, call: &mut Call) -> Result<Option<More>, Status> {
        let tree = Tree::<_, u64>::begun(memory, self.at);
        loop {
            if !self.there {
                match tree.lead(&self.from, &mut self.way)? {
                    Some(Next::Leaf) => self.there = true,
                    Some(Next::Bring(len)) => return Ok(Some(More::Bring(self.way.slot, len))),
                    None | Some(Next::Value(_)) => return Ok(None),
                }
                return Ok(Some(More::Bring(self.way.slot, tree.node_bytes())));
            }
            match self.take(&tree, call)? {
                Some(Taken::Pairs) => {}
                Some(Taken::All) => return Ok(Some(More::Done)),
                Some(Taken::Gone) => {
                    self.there = false;
                    self.way.begin_anew();
                    continue;
                }
                Some(Taken::Busy) => {
                    let Next::Bring(len) = self.way.try_again()? else { continue };
                    return Ok(Some(More::Bring(self.way.slot, len)));
                }
                None => return Ok(None),
            }
            return Ok(Some(More::Bring(self.way.slot, tree.node_bytes())));
        }
    }

    /// Takes what a leaf has; nothing that it says is believed unless its version is the same afterwards.
    fn take<M: Memory>(&mut self, tree: &Tree<'_, M>, call: &mut Call) -> Result<Option<Taken>, Status> {
        let Some(now) = tree.memory.immediate() else { return Ok(None) };
        let bytes = tree.node_bytes();
        let Some(words) = now.words_now(self.at.key, tree.va(self.way.slot, 0), bytes)? else { return Ok(None) };
        let head = Head(words.get(0));
        let (low, high, meta) = (words.get(1), words.get(2), words.get(3));
        let (right, kind, away) = (meta as u32, (meta >> 48) as u8, meta >> 56 != 0);
        let room = leaf_keys(bytes);
        let len = ((meta >> 32) as u16 as usize).min(room);
        let rank = words.rank(FIRST, len, self.from);
        let first = rank - usize::from(rank > 0 && words.get(FIRST + rank - 1) == self.from);
        let count = (len - first).min(self.left);
        if head.is_locked() || words.get(0) != head.0 {
            return Ok(Some(Taken::Busy));
        }
        if kind != 1 || self.from < low || self.from > high {
            if kind == 1 && self.from > high && right != 0 {
                // A split that the parent has not heard of.
                self.way.turn_right(tree.node_slot(right)?);
                return Ok(Some(Taken::Pairs));
            }
            return Ok(Some(Taken::Gone));
        }
        if away {
            call.grow_reply(8)?.copy_from_slice(&self.from.to_le_bytes());
            return Ok(Some(Taken::All));
        }
        let before = call.reply.len();
        words.pairs(FIRST + first, FIRST + room + first, call.grow_reply(16 * count)?);
        if words.get(0) != head.0 {
            call.reply.truncate(before);
            return Ok(Some(Taken::Busy));
        }
        self.left -= count;
        match high.checked_add(1).filter(|_| right != 0 && self.left > 0) {
            Some(next) => {
                self.from = next;
                self.way.turn_right(tree.node_slot(right)?);
                Ok(Some(Taken::Pairs))
            }
            None => Ok(Some(Taken::All)),
        }
    }
}

/// What became of a look at a leaf.
enum Taken {
    /// Its pairs are in the reply, and the way leads to the next.
    Pairs,
    /// The reply has all.
    All,
    /// It is not the leaf that whoever led here took it for.
    Gone,
    /// Somebody changes it.
    Busy,
}
