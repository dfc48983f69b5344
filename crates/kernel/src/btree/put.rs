//! Writes of numbers' values where the nodes are: the leaf is looked at, locked if it is still as it was seen, and only what
//! changes is written. A leaf without room is split as everywhere ([`Tree::put`]).

use super::access::Tree;
use super::node::{HEADER, Head, leaf_keys};
use super::params::TreeParams;
use super::place::{Next, Way, can_be_looked_at};
use super::range::More;
use super::{EXISTS, MOVED, Put, TreeRef};
use crate::call::{Call, Status};
use crate::host::HostMemory;
use crate::memory::{Immediate, Memory};
use remora_memory::Words;

/// Words of a node's header.
const FIRST: usize = HEADER / 8;
/// A key more, in the header's last word.
const ONE_MORE: u64 = 1 << 32;

/// A write, between two nodes.
pub(crate) struct PutInPlace {
    at: TreeRef,
    key: u64,
    value: u64,
    how: Put,
    way: Way,
    /// The leaf has been brought.
    there: bool,
}

/// What became of a look at a leaf.
enum Look {
    /// The value is written; the key had this one.
    Done(Option<u64>),
    /// The key belongs to the right of it, into this node.
    Right(u32),
    /// It is not the leaf that whoever led here took it for.
    Gone,
    /// Somebody changes it.
    Busy,
    /// It is to be split first.
    Full,
}

/// A leaf that was seen as it was at one moment.
struct Leaf<'a> {
    slot: u32,
    words: Words<'a>,
    head: Head,
    /// The header's last word.
    meta: u64,
    /// Keys that it has, and has room for.
    len: usize,
    room: usize,
}

impl PutInPlace {
    /// A write with these parameters, if all nodes can be looked at where they are.
    pub fn of(memory: &HostMemory, params: &[u8]) -> Option<Self> {
        can_be_looked_at(memory, params).map(|params| Self::new(&params))
    }

    pub(super) fn new(params: &TreeParams) -> Self {
        let TreeParams { tree, key, value, how } = *params;
        PutInPlace { at: tree.of_nobody(), key, value, how, way: Way::BEGIN, there: false }
    }

    /// Looks at nodes until one is to be brought, and asks for that. True when the value is written; `None` if that cannot be
    /// done in place.
    #[inline(always)]
    pub fn step(&mut self, memory: &HostMemory, call: &mut Call) -> Result<Option<bool>, Status> {
        Ok(match self.go_on(memory, call)? {
            Some(More::Done) => Some(true),
            Some(More::Bring(slot, len)) => {
                memory.hint(self.at.key, Tree::<_, u64>::begun(memory, self.at).va(slot, 0), len);
                Some(false)
            }
            None => None,
        })
    }

    /// Looks at nodes until one is to be brought; `None` if they cannot be looked at, or the leaf is to be split.
    pub(super) fn go_on<M: Memory>(&mut self, memory: &M, call: &mut Call) -> Result<Option<More>, Status> {
        let tree = Tree::<_, u64>::begun(memory, self.at);
        let Some(now) = memory.immediate().filter(|_| memory.outlives_caller()) else { return Ok(None) };
        if !self.there {
            return Ok(match tree.lead(&self.key, &mut self.way)? {
                Some(Next::Leaf) => {
                    self.there = true;
                    Some(More::Bring(self.way.slot, tree.node_bytes()))
                }
                Some(Next::Bring(len)) => Some(More::Bring(self.way.slot, len)),
                None | Some(Next::Value(_)) => None,
            });
        }
        let len = match self.write(&tree, now, &mut call.reply)? {
            None | Some(Look::Full) => return Ok(None),
            Some(Look::Done(old)) => {
                if let Some(old) = old {
                    call.grow_reply(8)?.copy_from_slice(&old.to_le_bytes());
                }
                return Ok(Some(More::Done));
            }
            Some(Look::Right(right)) => {
                self.way.turn_right(right);
                tree.node_bytes()
            }
            Some(Look::Gone) => {
                self.there = false;
                self.way.begin_anew();
                8
            }
            Some(Look::Busy) => match self.way.try_again()? {
                Next::Bring(len) => len,
                Next::Leaf | Next::Value(_) => 8,
            },
        };
        Ok(Some(More::Bring(self.way.slot, len)))
    }

    /// Writes the value into the leaf, if that is it. `room` is for keys that move; it is left empty.
    fn write<M: Memory>(
        &self,
        tree: &Tree<'_, M>,
        now: &dyn Immediate,
        room: &mut Vec<u8>,
    ) -> Result<Option<Look>, Status> {
        let (slot, bytes) = (self.way.slot, tree.node_bytes());
        let Some(words) = now.words_now(self.at.key, tree.va(slot, 0), bytes)? else { return Ok(None) };
        let head = Head(words.get(0));
        let (low, high, meta) = (words.get(1), words.get(2), words.get(3));
        let (right, kind, away) = (meta as u32, (meta >> 48) as u8, meta >> 56 != 0);
        let most = leaf_keys(bytes);
        let len = ((meta >> 32) as u16 as usize).min(most);
        let rank = words.rank(FIRST, len, self.key);
        let found = rank > 0 && words.get(FIRST + rank - 1) == self.key;
        let old = found.then(|| words.get(FIRST + most + rank - 1));
        if head.is_locked() || words.get(0) != head.0 {
            return Ok(Some(Look::Busy));
        }
        if kind != 1 || self.key < low || self.key > high {
            let to_the_right = kind == 1 && self.key > high && right != 0;
            return Ok(Some(if to_the_right { Look::Right(tree.node_slot(right)?) } else { Look::Gone }));
        }
        match old {
            _ if away => return Err(MOVED),
            Some(_) if self.how == Put::Insert => return Err(EXISTS),
            None if self.how == Put::Update => return Err(Status::NotFound),
            None if len == most => return Ok(Some(Look::Full)),
            _ => {}
        }
        if !tree.lock_now(now, slot, head)? {
            return Ok(Some(Look::Busy));
        }
        let leaf = Leaf { slot, words, head, meta, len, room: most };
        match found {
            true => self.replace(tree, now, &leaf, rank - 1)?,
            false => self.insert(tree, now, &leaf, rank, room)?,
        }
        Ok(Some(Look::Done(old)))
    }

    /// Writes a key's new value, and unlocks the leaf: in the order of [`Tree::commit`].
    fn replace<M: Memory>(
        &self,
        tree: &Tree<'_, M>,
        now: &dyn Immediate,
        leaf: &Leaf<'_>,
        at: usize,
    ) -> Result<(), Status> {
        let head = leaf.head.next().0.to_le_bytes();
        let value = HEADER + 8 * (leaf.room + at);
        for (offset, data) in [(tree.node_bytes() - 8, head), (value, self.value.to_le_bytes()), (0, head)] {
            now.write_now(self.at.key, tree.va(leaf.slot, offset), &data)?;
        }
        Ok(())
    }

    /// Writes a new key with its value, and what moves, and unlocks the leaf.
    fn insert<M: Memory>(
        &self,
        tree: &Tree<'_, M>,
        now: &dyn Immediate,
        leaf: &Leaf<'_>,
        at: usize,
        room: &mut Vec<u8>,
    ) -> Result<(), Status> {
        let head = leaf.head.next().0.to_le_bytes();
        let write = |offset, data: &[u8]| now.write_now(self.at.key, tree.va(leaf.slot, offset), data);
        write(tree.node_bytes() - 8, &head)?;
        write(24, &((leaf.meta & !(0xffff * ONE_MORE)) | ((leaf.len as u64 + 1) * ONE_MORE)).to_le_bytes())?;
        room.clear();
        room.resize(8 * (leaf.len - at + 1), 0);
        for (first, what) in [(HEADER, self.key), (HEADER + 8 * leaf.room, self.value)] {
            room[..8].copy_from_slice(&what.to_le_bytes());
            leaf.words.take(first + 8 * at, &mut room[8..]);
            write(first + 8 * at, room)?;
        }
        room.clear();
        Ok(write(0, &head)?)
    }
}
