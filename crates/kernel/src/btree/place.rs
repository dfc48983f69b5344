//! Nodes are looked at where they are: of each the header, the keys and one value or child, and its version once more
//! afterwards. Look-ups, scans and writes of numbers are [`Visit`]s of leaves that are found so.

use super::access::{LIMITS, Tree};
use super::byte_calls::are_bytes;
use super::find::RIGHTS;
use super::keys::Glance;
use super::node::{HEADER, Head, leaf_keys};
use super::params::TreeParams;
use super::{LOCKED, MOVED, ROOT, TreeKey, TreeRef};
use crate::call::{Call, Status};
use crate::host::HostMemory;
use crate::memory::Memory;
use remora_memory::Words;

/// Nodes from this level on are in the caches, as there are few: nothing is done while they come.
const NEAR: u8 = 2;
/// Looks at nodes in one turn: more than any sound tree is high. Only one whose nodes lead in circles has others wait longer.
const LOOKS: u32 = 64;
/// So many are no more work than the turn is charged for anyway, and enough for any tree that is whole.
const FEW_LOOKS: u32 = 16;
/// What a look beyond them costs, as [`Memory::spend`] counts.
const LOOK: u64 = 16;
/// Looks at nodes that somebody has locked or changes, before the visit ends with [`LOCKED`].
const TRIES: u32 = 1 << 14;
/// Words of a node's header.
pub(super) const FIRST: usize = HEADER / 8;

/// What a node says of a key.
enum Look<'m> {
    /// The next node, and its level.
    Down(u32, u8),
    /// The node to the right, of the same level.
    Right(u32),
    /// The leaf that the key belongs to.
    Leaf(Leaf<'m>),
    /// It is not the node that whoever led here took it for.
    Gone,
    /// Somebody changes it.
    Busy,
}

/// A leaf, and what it said of a key at the moment of this head.
pub(super) struct Leaf<'m> {
    pub words: Words<'m>,
    pub head: Head,
    /// The last word of its header.
    pub meta: u64,
    /// The key's value, if it has one.
    pub value: Option<u64>,
}

impl Leaf<'_> {
    /// Whether its keys are in the other part of an index.
    pub fn is_away(&self) -> bool {
        self.meta >> 56 != 0
    }

    /// Whether nobody has changed it since.
    pub fn is_as_it_was(&self) -> bool {
        self.words.get(0) == self.head.0
    }

    /// The node to its right; 0 if there is none.
    pub fn right(&self) -> u32 {
        self.meta as u32
    }

    /// Keys that it has, numbers, of those that a node of so many bytes may have.
    pub fn len(&self, bytes: usize) -> usize {
        ((self.meta >> 32) as u16 as usize).min(leaf_keys(bytes))
    }

    /// Where a number is, or would be: at most [`len`](Self::len), whatever somebody writes there meanwhile.
    pub fn place(&self, bytes: usize, key: u64) -> usize {
        self.words.rank(FIRST, self.len(bytes), key).saturating_sub(self.value.is_some().into())
    }
}

/// How far a visit is on its way to a leaf.
pub(super) struct Way {
    pub slot: u32,
    /// Of the node, once its parent has said so.
    level: Option<u8>,
    looks: u32,
    tries: u32,
    /// Nodes to the right that it went to without finding what it looks for.
    rights: u32,
}

impl Way {
    pub const BEGIN: Way = Way { slot: ROOT, level: None, looks: 0, tries: 0, rights: 0 };

    /// Goes to the leaf to the right of one.
    pub fn turn_right(&mut self, right: u32) {
        (self.slot, self.level, self.rights) = (right, Some(0), 0);
    }

    /// Somebody changes the node, which is to be looked at once more.
    pub fn try_again(&mut self) -> Result<(), Status> {
        self.tries += 1;
        if self.tries == TRIES { Err(LOCKED) } else { Ok(()) }
    }
}

/// The nodes of a tree where they are.
#[derive(Clone, Copy)]
pub(super) struct Nodes<'m> {
    words: Words<'m>,
    /// Words of a node.
    each: usize,
}

impl<'m> Nodes<'m> {
    /// A node; nothing if there is none.
    #[inline(always)]
    pub fn node(self, slot: u32) -> Words<'m> {
        self.words.part(slot as usize * self.each, self.each)
    }
}

/// What comes after the nodes that were at hand.
pub(super) enum Next<'m> {
    /// These words of the node where the visit is are to be brought.
    Bring(Words<'m>),
    /// The leaf.
    Leaf(Leaf<'m>),
}

/// What comes after the leaves that were at hand.
pub(crate) enum More<'m> {
    /// These words of a slot are to be brought.
    Bring(u32, Words<'m>),
    /// The reply has all.
    Done,
}

/// What a kernel does with the leaves of a tree of numbers.
pub(crate) trait Visit: Sized {
    /// A visit with these parameters.
    fn new(params: &TreeParams) -> Self;

    /// The tree.
    fn tree(&self) -> TreeRef;

    /// Looks at nodes until one is to be brought; `None` if it cannot be done in place.
    fn go_on<'m, M: Memory>(&mut self, memory: &'m M, call: &mut Call) -> Result<Option<More<'m>>, Status>;

    /// A visit with these parameters, if they are of a tree of numbers and all its nodes can be looked at where they are.
    fn of(memory: &HostMemory, params: &[u8]) -> Option<Self> {
        if are_bytes(params) {
            return None;
        }
        let params = TreeParams::decode(params).ok()?;
        Tree::new(memory, params.tree).ok()?.nodes()?;
        Some(Self::new(&params))
    }

    /// Goes on, and asks for what is to be brought. True when the reply has all; `None` as above.
    #[inline(always)]
    fn step(&mut self, memory: &HostMemory, call: &mut Call) -> Result<Option<bool>, Status> {
        Ok(match self.go_on(memory, call)? {
            Some(More::Done) => Some(true),
            Some(More::Bring(_, words)) => {
                if memory.prefetches() {
                    words.prefetch(0, words.bytes());
                }
                Some(false)
            }
            None => None,
        })
    }

    /// Goes on to the end. False if it cannot be done in place, or not any more.
    async fn run<M: Memory>(&mut self, memory: &M, call: &mut Call) -> Result<bool, Status> {
        loop {
            let (slot, len) = match self.go_on(memory, call)? {
                Some(More::Bring(slot, words)) => (slot, words.bytes()),
                Some(More::Done) => return Ok(true),
                None => return Ok(false),
            };
            let at = self.tree();
            memory.touch(at.key, Tree::<_, u64>::begun(memory, at).va(slot, 0), len).await;
        }
    }
}

/// A look-up.
pub(crate) struct LookIn {
    at: TreeRef,
    key: u64,
    way: Way,
}

impl Visit for LookIn {
    fn new(&TreeParams { tree: at, key, .. }: &TreeParams) -> Self {
        LookIn { at, key, way: Way::BEGIN }
    }

    fn tree(&self) -> TreeRef {
        self.at
    }

    #[inline(always)]
    fn go_on<'m, M: Memory>(&mut self, memory: &'m M, call: &mut Call) -> Result<Option<More<'m>>, Status> {
        let tree = Tree::<_, u64>::begun(memory, self.at);
        let Some(nodes) = tree.nodes() else { return Ok(None) };
        Ok(Some(match tree.follow(nodes, &self.key, &mut self.way)? {
            Next::Leaf(leaf) => {
                let value = found(&leaf)?;
                call.grow_reply(8)?.copy_from_slice(&value.to_le_bytes());
                More::Done
            }
            Next::Bring(words) => More::Bring(self.way.slot, words),
        }))
    }
}

/// The value that a look-up of a leaf's key brings.
pub(super) fn found(leaf: &Leaf<'_>) -> Result<u64, Status> {
    if leaf.is_away() { Err(MOVED) } else { leaf.value.ok_or(Status::NotFound) }
}

impl<'m, M: Memory, K: TreeKey + ?Sized> Tree<'m, M, K> {
    /// Its nodes, if they can all be looked at in place.
    #[inline(always)]
    pub(super) fn nodes(&self) -> Option<Nodes<'m>> {
        let TreeRef { slots, node_bytes, key, base, .. } = self.at;
        let len = u64::from(slots) * u64::from(node_bytes);
        let words = self.memory.immediate()?.view_now(key, base, len)?;
        Some(Nodes { words, each: usize::from(node_bytes) / 8 })
    }

    /// What is made of the leaf that a key belongs to, by its slot, if nodes can be looked at in place; `None` if they cannot.
    #[inline]
    pub(super) async fn in_place<T>(
        &self,
        key: &K,
        what: impl Fn(u32, &Leaf<'_>) -> Result<T, Status>,
    ) -> Result<Option<T>, Status> {
        let mut way = Way::BEGIN;
        loop {
            let len = match self.nodes().map(|nodes| self.follow(nodes, key, &mut way)).transpose()? {
                Some(Next::Leaf(leaf)) => return what(way.slot, &leaf).map(Some),
                Some(Next::Bring(words)) => words.bytes(),
                None => return Ok(None),
            };
            self.memory.touch(self.at.key, self.va(way.slot, 0), len).await;
        }
    }

    /// Looks at nodes until one is to be brought, or it is the leaf.
    #[inline(always)]
    pub(super) fn follow(&self, nodes: Nodes<'m>, key: &K, way: &mut Way) -> Result<Next<'m>, Status> {
        let before = way.looks;
        let next = self.look_around(nodes, key, way);
        let looks = way.looks - before;
        if looks > FEW_LOOKS {
            self.memory.spend(u64::from(looks) * LOOK);
        }
        next
    }

    #[inline(always)]
    fn look_around(&self, nodes: Nodes<'m>, key: &K, way: &mut Way) -> Result<Next<'m>, Status> {
        for _ in 0..LOOKS {
            way.looks += 1;
            if way.looks == LIMITS.steps {
                return Err(Status::StepLimit);
            }
            match self.look_at(nodes.node(way.slot), way.level, key)? {
                Look::Leaf(leaf) => return Ok(Next::Leaf(leaf)),
                Look::Down(child, below) => (way.slot, way.level) = (child, Some(below)),
                Look::Right(right) => {
                    way.rights += 1;
                    (way.slot, way.level) = if way.rights == RIGHTS { (ROOT, None) } else { (right, way.level) };
                }
                Look::Gone => (way.slot, way.level) = (ROOT, None),
                Look::Busy => {
                    way.try_again()?;
                    return Ok(Next::Bring(nodes.node(way.slot).part(0, 1)));
                }
            }
            if way.level.is_some_and(|level| level < NEAR) {
                return Ok(Next::Bring(nodes.node(way.slot)));
            }
        }
        Ok(Next::Bring(nodes.node(way.slot).part(0, 1)))
    }

    /// One node; nothing that it says is believed unless its version is the same afterwards.
    #[inline(always)]
    fn look_at(&self, words: Words<'m>, level: Option<u8>, key: &K) -> Result<Look<'m>, Status> {
        let bytes = self.node_bytes();
        let head = Head(words.get(0));
        if head.is_locked() {
            return Ok(Look::Busy);
        }
        let meta = words.get(FIRST - 1);
        let kind = (meta >> 48) as u8;
        let Glance { below, above, what } = K::glance(&words, bytes, meta, key);
        if words.get(0) != head.0 {
            return Ok(Look::Busy);
        }
        let fits = kind > 0 && level.is_none_or(|level| level + 1 == kind);
        Ok(match what {
            _ if !fits || below => Look::Gone,
            _ if above && meta as u32 != 0 => Look::Right(self.node_slot(meta as u32)?),
            _ if above => Look::Gone,
            value if kind == 1 => Look::Leaf(Leaf { words, head, meta, value }),
            Some(child) => Look::Down(self.node_slot(child as u32)?, kind - 2),
            None => return Err(Status::Trapped),
        })
    }
}
