//! Nodes are looked at where they are: of each the header, the keys and one value or child, and its version once more
//! afterwards. Look-ups, scans and writes are [`Visit`]s of leaves that are found so.

use super::access::{LIMITS, Tree};
use super::find::RIGHTS;
use super::keys::Glance;
use super::node::{HEADER, Head};
use super::{LOCKED, MOVED, Put, ROOT, TreeKey, TreeRef};
use crate::call::{Call, Status};
use crate::memory::Memory;
use remora_memory::{Runs, Words, WordsMut};

/// Nodes from this level on are in the caches, as there are few: nothing is done while they come.
const NEAR: u8 = 2;
/// Looks at nodes in one turn: more than any sound tree is high. Only one whose nodes lead in circles has others wait longer.
pub(crate) const LOOKS: u32 = 64;
/// So many are no more work than the turn is charged for anyway, and enough for any tree that is whole.
const FEW_LOOKS: u32 = 16;
/// What a look costs where there are more, as [`Memory::spend`] counts.
const LOOK: u64 = 16;
/// Looks at nodes that somebody has locked or changes, before the visit ends with [`LOCKED`].
const TRIES: u32 = 1 << 14;
/// Words of a node's header.
pub(super) const FIRST: usize = HEADER / 8;

/// Memory where it is, as a peer with the caller's rights may use it: nothing is paid, and nothing said of why there is none.
pub(crate) trait Ground<'m> {
    /// A tree's slots, logs left out, if all may be read.
    fn slots(&mut self, tree: &TreeRef) -> Option<Runs<'m>>;

    /// A slot that may be read, written and swapped.
    fn slot_mut(&mut self, tree: &TreeRef, slot: u32) -> Option<WordsMut<'m>>;
}

impl TreeRef {
    /// Address and bytes of all nodes.
    pub(crate) fn nodes(&self) -> (u64, u64) {
        (self.base, u64::from(self.node_slots()) * u64::from(self.node_bytes))
    }

    /// Address and bytes of one.
    pub(crate) fn node(&self, slot: u32) -> (u64, u64) {
        let bytes = u64::from(self.node_bytes);
        (self.base.wrapping_add(u64::from(slot) * bytes), bytes)
    }
}

/// A memory of which some may be looked at where it is.
pub(super) struct Near<'m, M>(pub &'m M);

impl<'m, M: Memory> Ground<'m> for Near<'m, M> {
    #[inline]
    fn slots(&mut self, tree: &TreeRef) -> Option<Runs<'m>> {
        let (va, len) = tree.nodes();
        Some(self.0.immediate()?.view_now(tree.key, va, len)?.runs(usize::from(tree.node_bytes) / 8))
    }

    #[inline]
    fn slot_mut(&mut self, tree: &TreeRef, slot: u32) -> Option<WordsMut<'m>> {
        let (va, len) = tree.node(slot);
        self.0.immediate()?.view_mut_now(tree.key, va, len)
    }
}

/// A leaf, or another node that was looked for, and what it said of a key at the moment of this head.
pub(crate) struct Leaf<'m> {
    pub words: Words<'m>,
    pub head: Head,
    /// The last word of its header.
    pub meta: u64,
    /// Where the key is, or would be.
    pub place: usize,
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

    /// Its level.
    pub fn level(&self) -> Option<u8> {
        ((self.meta >> 48) as u8).checked_sub(1)
    }

    /// The node to its right; 0 if there is none.
    pub fn right(&self) -> u32 {
        self.meta as u32
    }

    /// Number of keys, as it stands there.
    pub fn count(&self) -> usize {
        (self.meta >> 32) as u16 as usize
    }
}

/// How far a visit is on its way to a leaf.
pub(super) struct Way {
    pub slot: u32,
    /// The level that it leads to.
    until: u8,
    /// Of the node, once its parent has said so.
    level: Option<u8>,
    looks: u32,
    tries: u32,
    /// Nodes to the right that it went to without finding what it looks for.
    rights: u32,
}

impl Way {
    pub const BEGIN: Way = Way { slot: ROOT, until: 0, level: None, looks: 0, tries: 0, rights: 0 };

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

/// What a visit pays for one more look in a turn, the `look`th: who needs more than a few pays for all of them.
#[inline(always)]
pub(crate) fn cost_of_look(look: u32) -> u64 {
    match look - 1 {
        ..FEW_LOOKS => 0,
        FEW_LOOKS => u64::from(look) * LOOK,
        _ => LOOK,
    }
}

/// Looks at nodes in one turn, but for the first.
#[derive(Default)]
struct Looks(u32);

impl Looks {
    /// Counts and pays for one more. False if it is another turn's.
    fn more(&mut self, memory: &impl Memory) -> bool {
        self.0 += 1;
        memory.spend(cost_of_look(self.0 + 1));
        self.0 < LOOKS
    }
}

/// The nodes of a tree where they are.
#[derive(Clone, Copy)]
pub(super) struct Nodes<'m> {
    runs: Runs<'m>,
}

/// What comes after a look at a node.
pub(super) enum Next<'m> {
    /// A node that is in the caches.
    Near,
    /// These words of the node where the visit is are to be brought.
    Bring(Words<'m>),
    /// The leaf.
    Leaf(Leaf<'m>),
}

/// What comes after a step of a visit.
pub(crate) enum More<'m> {
    /// Another, which waits for nothing.
    Step,
    /// These words of a slot are to be brought.
    Bring(u32, Words<'m>),
    /// The reply has all.
    Done,
}

/// Keys as calls bring them, and leaves of them where they are.
pub(crate) trait InPlace: TreeKey {
    /// What a visit keeps of its key beside the parameters.
    type Kept;

    /// The tree, key and value that parameters name, and what a put does.
    fn asked(params: &[u8]) -> Result<(TreeRef, Self::Kept, u64, Put), Status>;

    /// The key.
    fn sought<'a>(kept: &'a Self::Kept, params: &'a [u8]) -> &'a Self;

    /// Puts a leaf's pairs from its place on into the reply, at most so many. Returns how many. They are true if nobody has
    /// changed the leaf since; if somebody has they may be anything.
    fn pairs(leaf: &Leaf<'_>, most: usize, call: &mut Call) -> Result<usize, Status>;

    /// The lowest key that belongs to the right of a leaf, as [`pairs`](Self::pairs) are true. False if there is none.
    fn fence(leaf: &Leaf<'_>, next: &mut Self::Owned) -> bool;

    /// Makes `next` the key.
    fn turn(kept: &mut Self::Kept, next: &mut Self::Owned);

    /// What a scan ends with that comes where keys are in the other part of an index, from this one on.
    fn away(from: &Self::Kept, call: &mut Call) -> Result<(), Status>;

    /// Whether a leaf has room for a key more, as it lies.
    fn has_room(leaf: &Leaf<'_>, key: &Self) -> bool;

    /// Writes a pair at its place into a leaf that is locked, and has the key or room for it.
    fn put(node: &WordsMut<'_>, leaf: &Leaf<'_>, key: &Self, value: u64);
}

/// What a kernel does with the leaves of a tree.
pub(crate) trait Visit: Sized {
    /// A visit with these parameters.
    fn begin(params: &[u8]) -> Result<Self, Status>;

    /// The tree.
    fn tree(&self) -> &TreeRef;

    /// Looks at a node; `None` if it cannot be done in place, or not any more.
    fn go_on<'m>(&mut self, ground: &mut impl Ground<'m>, call: &mut Call) -> Result<Option<More<'m>>, Status>;

    /// Goes on to the end. False if it cannot be done in place, or not any more.
    async fn run<M: Memory>(&mut self, memory: &M, call: &mut Call) -> Result<bool, Status> {
        let mut looks = Looks::default();
        loop {
            let (slot, len) = match self.go_on(&mut Near(memory), call)? {
                Some(More::Step) if looks.more(memory) => continue,
                Some(More::Step) => (ROOT, 8),
                Some(More::Bring(slot, words)) => (slot, words.bytes()),
                Some(More::Done) => return Ok(true),
                None => return Ok(false),
            };
            let at = *self.tree();
            memory.touch(at.key, Tree::<_, u64>::begun(memory, at).va(slot, 0), len).await;
            looks = Looks::default();
        }
    }
}

/// A look-up.
pub(crate) struct LookIn<K: InPlace + ?Sized> {
    at: TreeRef,
    key: K::Kept,
    way: Way,
}

impl<K: InPlace + ?Sized> Visit for LookIn<K> {
    #[inline(always)]
    fn begin(params: &[u8]) -> Result<Self, Status> {
        let (at, key, ..) = K::asked(params)?;
        Ok(LookIn { at, key, way: Way::BEGIN })
    }

    fn tree(&self) -> &TreeRef {
        &self.at
    }

    #[inline(always)]
    fn go_on<'m>(&mut self, ground: &mut impl Ground<'m>, call: &mut Call) -> Result<Option<More<'m>>, Status> {
        let Some(nodes) = Nodes::of(&self.at, ground) else { return Ok(None) };
        Ok(Some(match nodes.follow(K::sought(&self.key, &call.params), &mut self.way)? {
            Next::Leaf(leaf) => {
                let value = found(&leaf)?;
                call.grow_reply(8)?.copy_from_slice(&value.to_le_bytes());
                More::Done
            }
            Next::Near => More::Step,
            Next::Bring(words) => More::Bring(self.way.slot, words),
        }))
    }
}

/// The value that a look-up of a leaf's key brings.
pub(super) fn found(leaf: &Leaf<'_>) -> Result<u64, Status> {
    if leaf.is_away() { Err(MOVED) } else { leaf.value.ok_or(Status::NotFound) }
}

impl<M: Memory, K: TreeKey + ?Sized> Tree<'_, M, K> {
    /// What is made of the node at a level that a key belongs to, or of the root, if the tree is not that high, by its slot, if nodes
    /// can be looked at in place; `None` if they cannot.
    #[inline]
    pub(super) async fn in_place<T>(
        &self,
        key: &K,
        level: u8,
        what: impl Fn(u32, &Leaf<'_>) -> Result<T, Status>,
    ) -> Result<Option<T>, Status> {
        let (mut way, mut looks) = (Way { until: level, ..Way::BEGIN }, Looks::default());
        loop {
            let Some(nodes) = Nodes::of(&self.at, &mut Near(self.memory)) else { return Ok(None) };
            let len = match nodes.follow(key, &mut way)? {
                Next::Near if looks.more(self.memory) => continue,
                Next::Near => 8,
                Next::Leaf(leaf) => return what(way.slot, &leaf).map(Some),
                Next::Bring(words) => words.bytes(),
            };
            self.memory.touch(self.at.key, self.va(way.slot, 0), len).await;
            looks = Looks::default();
        }
    }
}

impl<'m> Nodes<'m> {
    /// A tree's nodes, if they can all be looked at in place.
    #[inline(always)]
    pub fn of(at: &TreeRef, ground: &mut impl Ground<'m>) -> Option<Self> {
        Some(Nodes { runs: ground.slots(at)? })
    }

    /// A node, if the tree has it.
    #[inline(always)]
    pub fn node(self, slot: u32) -> Result<Words<'m>, Status> {
        self.runs.get(slot as usize).filter(|_| slot >= ROOT).ok_or(Status::Trapped)
    }

    /// Looks at the node where the visit is.
    #[inline(always)]
    pub fn follow<K: TreeKey + ?Sized>(self, key: &K, way: &mut Way) -> Result<Next<'m>, Status> {
        way.looks += 1;
        if way.looks == LIMITS.steps {
            return Err(Status::StepLimit);
        }
        let words = self.node(way.slot)?;
        let header = words.first::<FIRST>();
        let (head, meta) = (Head(header[0]), header[FIRST - 1]);
        let (kind, right) = ((meta >> 48) as u8, meta as u32);
        let glance = K::glance(&words, &header, key);
        // Nothing that it says is believed unless its version is the same afterwards.
        if head.is_locked() || words.get(0) != head.0 {
            way.try_again()?;
            return Ok(Next::Bring(words.part(0, 1)));
        }
        let fits = kind > 0 && way.level.is_none_or(|level| level + 1 == kind);
        match glance {
            Glance::Here(place, value) if fits && kind <= way.until + 1 => {
                return Ok(Next::Leaf(Leaf { words, head, meta, place, value }));
            }
            Glance::Here(_, child) if fits => {
                let (slot, level) = (child.ok_or(Status::Trapped)? as u32, kind - 2);
                (way.slot, way.level) = (slot, Some(level));
                if level < NEAR {
                    return self.node(slot).map(Next::Bring);
                }
            }
            Glance::Above if fits && right != 0 && way.rights + 1 != RIGHTS => {
                (way.slot, way.rights) = (right, way.rights + 1);
                if kind <= NEAR {
                    return self.node(right).map(Next::Bring);
                }
            }
            // It is not the node that whoever led here took it for.
            Glance::Above if fits && right != 0 => (way.slot, way.level, way.rights) = (ROOT, None, RIGHTS),
            _ => (way.slot, way.level) = (ROOT, None),
        }
        Ok(Next::Near)
    }
}
