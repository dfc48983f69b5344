//! Look-ups where the nodes are: of each the header, the keys and one value or child are looked at, and its version once
//! more afterwards.

use super::access::Tree;
use super::keys::Glance;
use super::node::Head;
use super::{LOCKED, ROOT, TreeKey};
use crate::call::Status;
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

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// The value of a key, if nodes can be looked at in place; `None` if they cannot.
    #[inline]
    pub(super) async fn get_in_place(&self, key: &K) -> Result<Option<u64>, Status> {
        let (mut slot, mut level, mut tries) = (ROOT, None, 0);
        loop {
            if level.is_some_and(|level| level < NEAR) {
                self.memory.touch(self.at.key, self.va(slot, 0), self.node_bytes()).await;
            }
            match self.look_at(slot, level, key)? {
                None => return Ok(None),
                Some(Look::Down(child, below)) => (slot, level) = (child, Some(below)),
                Some(Look::Right(right)) => slot = right,
                Some(Look::Found(value)) => return value.map(Some).ok_or(Status::NotFound),
                Some(Look::Away) => return Err(super::MOVED),
                Some(Look::Gone) => (slot, level) = (ROOT, None),
                Some(Look::Busy) => {
                    tries += 1;
                    if tries == TRIES {
                        return Err(LOCKED);
                    }
                    self.memory.touch(self.at.key, self.va(slot, 0), 8).await;
                }
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
