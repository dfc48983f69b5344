//! Look-ups where the nodes are: of each the header, the keys and one value or child are looked at, and its version once
//! more afterwards.

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
struct Way {
    slot: u32,
    /// Of the node, once its parent has said so.
    level: Option<u8>,
    tries: u32,
}

/// What comes after the nodes that were at hand.
enum Next {
    /// So many bytes of the node where the look-up is are to be brought.
    Bring(usize),
    /// The key's value.
    Value(u64),
}

impl Way {
    const BEGIN: Way = Way { slot: ROOT, level: None, tries: 0 };
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
        if are_bytes(params) {
            return None;
        }
        let TreeParams { tree: at, key, .. } = TreeParams::decode(params).ok()?;
        let bytes = u64::from(at.slots) * u64::from(at.node_bytes);
        if !memory.has_words(at.key, at.base, bytes) {
            return None;
        }
        Tree::new(memory, at).ok()?;
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
            // It was there when the call began.
            None => Err(Status::AccessDenied),
        }
    }
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
                None => return Ok(None),
            }
        }
    }

    /// Looks at nodes until one is to be brought.
    #[inline(always)]
    fn follow(&self, key: &K, way: &mut Way) -> Result<Option<Next>, Status> {
        loop {
            match self.look_at(way.slot, way.level, key)? {
                None => return Ok(None),
                Some(Look::Down(child, below)) => (way.slot, way.level) = (child, Some(below)),
                Some(Look::Right(right)) => way.slot = right,
                Some(Look::Found(value)) => return value.map(Next::Value).map(Some).ok_or(Status::NotFound),
                Some(Look::Away) => return Err(super::MOVED),
                Some(Look::Gone) => (way.slot, way.level) = (ROOT, None),
                Some(Look::Busy) => {
                    way.tries += 1;
                    if way.tries == TRIES {
                        return Err(LOCKED);
                    }
                    return Ok(Some(Next::Bring(8)));
                }
            }
            if way.level.is_some_and(|level| level < NEAR) {
                return Ok(Some(Next::Bring(self.node_bytes())));
            }
        }
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
