//! Look-ups where the nodes are: of each the header, the keys and one value or child are looked at, and its version once
//! more afterwards. Writes and scans find their leaf so.

use super::access::Tree;
use super::byte_calls::are_bytes;
use super::keys::Glance;
use super::node::Head;
use super::params::TreeParams;
use super::{LOCKED, ROOT, TreeKey, TreeRef};
use crate::call::{Call, Status};
use crate::host::HostMemory;
use crate::memory::Memory;

/// Nodes from this level on are in the caches, as there are few: nothing is done while they come.
const NEAR: u8 = 2;
/// Looks at nodes that somebody has locked or changes, before the look-up ends with [`LOCKED`].
const TRIES: u32 = 1 << 14;

/// What a node says of a key.
enum Look {
    /// The next node, and its level.
    Down(u32, u8),
    /// The node to the right, of the same level.
    Right(u32),
    /// The key's value, if it has one.
    Found(Option<u64>),
    /// Its keys are in the other part of an index.
    Away,
    /// It is not the node that whoever led here took it for.
    Gone,
    /// Somebody changes it.
    Busy,
}

/// How far a look-up is.
pub(super) struct Way {
    pub slot: u32,
    /// Of the node, once its parent has said so.
    level: Option<u8>,
    tries: u32,
}

/// What comes after the nodes that were at hand.
pub(super) enum Next {
    /// So many bytes of the node where the look-up is are to be brought.
    Bring(usize),
    /// The key's value.
    Value(u64),
    /// The node is the leaf that the key belongs to, unless somebody has changed that.
    Leaf,
}

impl Way {
    pub const BEGIN: Way = Way { slot: ROOT, level: None, tries: 0 };

    /// Goes to the leaf to the right of one.
    pub fn turn_right(&mut self, right: u32) {
        (self.slot, self.level) = (right, Some(0));
    }

    /// Begins anew: it is not the node that whoever led here took it for.
    pub fn begin_anew(&mut self) {
        (self.slot, self.level) = (ROOT, None);
    }

    /// Somebody changes the node: its head is to be looked at once more.
    pub fn try_again(&mut self) -> Result<Next, Status> {
        self.tries += 1;
        if self.tries == TRIES { Err(LOCKED) } else { Ok(Next::Bring(8)) }
    }
}

/// A look-up in registered memory, between two nodes: what runners keep of it.
pub(crate) struct InPlace {
    at: TreeRef,
    key: u64,
    way: Way,
}

impl InPlace {
    /// A look-up of a number with these parameters, if all nodes can be looked at where they are.
    pub fn of(memory: &HostMemory, params: &[u8]) -> Option<Self> {
        let TreeParams { tree: at, key, .. } = can_be_looked_at(memory, params)?;
        Some(InPlace { at, key, way: Way::BEGIN })
    }

    /// Looks at nodes until one is to be brought, and asks for that. True when the value is in the reply.
    #[inline(always)]
    pub fn step(&mut self, memory: &HostMemory, call: &mut Call) -> Result<bool, Status> {
        let tree = Tree::<_, u64>::begun(memory, self.at);
        match tree.follow(&self.key, &mut self.way)? {
            Some(Next::Value(value)) => {
                call.grow_reply(8)?.copy_from_slice(&value.to_le_bytes());
                Ok(true)
            }
            Some(Next::Bring(len)) => {
                memory.hint(self.at.key, tree.va(self.way.slot, 0), len);
                Ok(false)
            }
            // It was there when the call began; and a look-up looks at leaves.
            None | Some(Next::Leaf) => Err(Status::AccessDenied),
        }
    }
}

/// What these parameters say, if they are of a tree of numbers and all its nodes can be looked at where they are.
pub(super) fn can_be_looked_at(memory: &HostMemory, params: &[u8]) -> Option<TreeParams> {
    if are_bytes(params) {
        return None;
    }
    let params = TreeParams::decode(params).ok()?;
    let TreeRef { slots, node_bytes, key, base, .. } = params.tree;
    if !memory.has_words(key, base, u64::from(slots) * u64::from(node_bytes)) {
        return None;
    }
    Tree::new(memory, params.tree).ok()?;
    Some(params)
}

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// The value of a key, if nodes can be looked at in place; `None` if they cannot.
    #[inline]
    pub(super) async fn get_in_place(&self, key: &K) -> Result<Option<u64>, Status> {
        let mut way = Way::BEGIN;
        loop {
            match self.follow(key, &mut way)? {
                Some(Next::Value(value)) => return Ok(Some(value)),
                Some(Next::Bring(len)) => self.memory.touch(self.at.key, self.va(way.slot, 0), len).await,
                None | Some(Next::Leaf) => return Ok(None),
            }
        }
    }

    /// The slot of the leaf that a key belongs to, unless somebody changes that, if nodes can be looked at in place; `None`
    /// if they cannot. The leaf is still to be read.
    pub(super) async fn leaf_in_place(&self, key: &K) -> Result<Option<u32>, Status> {
        let mut way = Way::BEGIN;
        loop {
            match self.lead(key, &mut way)? {
                Some(Next::Leaf) => return Ok(Some(way.slot)),
                Some(Next::Bring(len)) => self.memory.touch(self.at.key, self.va(way.slot, 0), len).await,
                None | Some(Next::Value(_)) => return Ok(None),
            }
        }
    }

    /// Looks at nodes until one is to be brought.
    #[inline(always)]
    fn follow(&self, key: &K, way: &mut Way) -> Result<Option<Next>, Status> {
        loop {
            match self.look_at(way.slot, way.level, key)? {
                None => return Ok(None),
                Some(Look::Found(value)) => return value.map(Next::Value).map(Some).ok_or(Status::NotFound),
                Some(Look::Away) => return Err(super::MOVED),
                Some(look) => {
                    if let Some(next) = self.go_on(way, look)? {
                        return Ok(Some(next));
                    }
                }
            }
        }
    }

    /// Looks at nodes above the leaves until one is to be brought, or it is known where the key's leaf is.
    #[inline(always)]
    pub(super) fn lead(&self, key: &K, way: &mut Way) -> Result<Option<Next>, Status> {
        while way.level != Some(0) {
            match self.look_at(way.slot, way.level, key)? {
                None => return Ok(None),
                // The root is a leaf.
                Some(Look::Found(_) | Look::Away) => break,
                Some(look) => match self.go_on(way, look)? {
                    Some(next) if way.level != Some(0) => return Ok(Some(next)),
                    _ => {}
                },
            }
        }
        Ok(Some(Next::Leaf))
    }

    /// Goes where a look leads that found no leaf of the key; the node there may be to be brought.
    #[inline(always)]
    fn go_on(&self, way: &mut Way, look: Look) -> Result<Option<Next>, Status> {
        match look {
            Look::Down(child, below) => (way.slot, way.level) = (child, Some(below)),
            Look::Right(right) => way.slot = right,
            Look::Gone => way.begin_anew(),
            Look::Busy => return way.try_again().map(Some),
            Look::Found(_) | Look::Away => {}
        }
        Ok(way.level.is_some_and(|level| level < NEAR).then(|| Next::Bring(self.node_bytes())))
    }

    /// One node; nothing that it says is believed unless its version is the same afterwards.
    #[inline(always)]
    fn look_at(&self, slot: u32, level: Option<u8>, key: &K) -> Result<Option<Look>, Status> {
        let Some(now) = self.memory.immediate() else { return Ok(None) };
        let bytes = self.node_bytes();
        let Some(words) = now.words_now(self.at.key, self.va(slot, 0), bytes)? else { return Ok(None) };
        let head = Head(words.get(0));
        if head.is_locked() {
            return Ok(Some(Look::Busy));
        }
        let meta = words.get(3);
        let (kind, away) = ((meta >> 48) as u8, meta >> 56 != 0);
        let Glance { below, above, what } = K::glance(&words, bytes, meta, key);
        if words.get(0) != head.0 {
            return Ok(Some(Look::Busy));
        }
        let fits = kind > 0 && level.is_none_or(|level| level + 1 == kind);
        Ok(Some(match what {
            _ if !fits || below => Look::Gone,
            _ if above && meta as u32 != 0 => Look::Right(self.node_slot(meta as u32)?),
            _ if above => Look::Gone,
            _ if away => Look::Away,
            what if kind == 1 => Look::Found(what),
            Some(child) => Look::Down(self.node_slot(child as u32)?, kind - 2),
            None => return Err(Status::Trapped),
        }))
    }
}
