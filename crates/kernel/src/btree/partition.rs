//! One index in two trees, split by range: each in a region of its own, served by a place of its own.
//!
//! Both trees have leaves for all keys. Which of the two has a key is said by its leaves alone: one of them is *away*. The
//! border moves leaf by leaf: a leaf with its keys is locked in the tree that gives it, and the leaf of the same range in the
//! other, which is away; then the other one's is written, and last the giver's, which is away from then on. Who finds a
//! leaf away asks the other tree, who finds it locked waits, and who wants to lock one that he has read before finds it
//! changed. So at each moment each key is in one tree, whoever reads, writes or scans, and wherever he does so.
//!
//! The *directory* says where the trees are, who serves them, and where the border is. The border there is a hint of where
//! to ask first: old copies of it cost a question more, and no answer.

use super::access::{Change, HEADER_ONLY, Tree};
use super::node::{NodeMut, NodeView};
use super::{LOCKED, MOVED, NOT_OWNER, Put, TreeRef};
use crate::call::{Call, Status};
use crate::memory::Memory;
use crate::placement::Placement;

/// Times that an operation is sent from one tree to the other, or a mover begins anew, before it ends with [`LOCKED`].
const TRIES: u32 = 1 << 10;

/// Which part has a key, by the border: 0 has those below it, 1 all others. A border of `u64::MAX` leaves none to part 1.
#[inline]
pub fn part_of(split: u64, key: u64) -> usize {
    usize::from(split != u64::MAX && key >= split)
}

/// A tree of an index, and the place that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tree.
    pub tree: TreeRef,
    /// Where calls upon it run, unless their caller wants otherwise.
    pub place: Placement,
}

/// What clients keep a copy of: where the parts of an index are, and which keys they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The border: see [`part_of`].
    pub split: u64,
    /// The part below the border, and the other.
    pub parts: [Part; 2],
}

impl Directory {
    /// Bytes in memory, at a multiple of 8.
    pub const LEN: usize = 64;
    /// Where the border stands.
    pub const SPLIT: u64 = 8;
    /// "RemParts".
    const MAGIC: [u8; 8] = *b"RemParts";

    /// To bytes: magic (8), border (8), then for each part its tree as in [`TreeParams`](super::TreeParams), the number of
    /// the place in [`Placement::ALL`] at 20; little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..16].copy_from_slice(&self.split.to_le_bytes());
        for (part, bytes) in self.parts.iter().zip(bytes[16..].chunks_exact_mut(TreeRef::LEN)) {
            part.tree.encode(bytes);
            bytes[20] = Placement::ALL.iter().position(|place| *place == part.place).unwrap_or_default() as u8;
        }
        bytes
    }

    /// From bytes, if they make sense.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, Status> {
        if bytes[..8] != Self::MAGIC {
            return Err(Status::BadParams);
        }
        let part = |at: usize| {
            let bytes = &bytes[at..at + TreeRef::LEN];
            let place = *Placement::ALL.get(usize::from(bytes[20])).ok_or(Status::BadParams)?;
            let tree = TreeRef::decode(bytes);
            tree.check().map(|()| Part { tree, place })
        };
        let parts = [part(16)?, part(16 + TreeRef::LEN)?];
        if parts[0].tree.node_bytes != parts[1].tree.node_bytes {
            return Err(Status::BadParams);
        }
        Ok(Directory { split: super::node::word(bytes, 8), parts })
    }
}

/// An index as one operation reaches it that runs where both trees can be reached.
pub struct Index<'m, M> {
    memory: &'m M,
    trees: [TreeRef; 2],
    split: u64,
}

impl<'m, M: Memory> Index<'m, M> {
    /// The index of these trees; the border may be an old one.
    pub fn new(memory: &'m M, trees: [TreeRef; 2], split: u64) -> Self {
        Self { memory, trees, split }
    }

    /// Runs an operation on a key in the tree that has it.
    async fn there<T>(&self, key: u64, run: impl AsyncFn(&Tree<'m, M>) -> Result<T, Status>) -> Result<T, Status> {
        let mut part = part_of(self.split, key);
        for _ in 0..TRIES {
            match run(&Tree::new(self.memory, self.trees[part])?).await {
                Err(MOVED) => part = 1 - part,
                result => return result,
            }
        }
        Err(LOCKED)
    }

    /// See [`Tree::get`].
    pub async fn get(&self, key: u64) -> Result<u64, Status> {
        self.there(key, async |tree| tree.get(&key, &mut Vec::new()).await).await
    }

    /// See [`Tree::put`].
    pub async fn put(&self, key: u64, value: u64, how: Put) -> Result<Option<u64>, Status> {
        self.there(key, async |tree| tree.put(&key, value, how, &mut Vec::new()).await).await
    }

    /// See [`Tree::delete`].
    pub async fn delete(&self, key: u64) -> Result<u64, Status> {
        self.there(key, async |tree| tree.delete(&key, &mut Vec::new()).await).await
    }

    /// At most `count` keys from `from` on with their values, in order. Each leaf is read at one moment of its own, be it
    /// in one tree or the other: a key that is there all the while comes once.
    pub async fn pairs(&self, mut from: u64, count: u32) -> Result<Vec<(u64, u64)>, Status> {
        let (mut pairs, mut part) = (Vec::new(), part_of(self.split, from));
        for _ in 0..TRIES {
            let tree = Tree::new(self.memory, self.trees[part])?;
            let left = count - pairs.len() as u32;
            let (found, next) = tree.pairs(&from, left, &mut Vec::new()).await?;
            pairs.extend(found);
            match next {
                Some(next) if pairs.len() < count as usize => (from, part) = (next, 1 - part),
                _ => return Ok(pairs),
            }
        }
        Err(LOCKED)
    }
}

/// Parameters of a move of the border. It runs on the node.
///
/// The reply is the border as it is then (8 bytes), and how many pairs have changed over (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveParams {
    /// Address of the [`Directory`].
    pub directory: u64,
    /// Key of its region.
    pub key: u32,
    /// Leaves to move at most. With 0 the call tells the border, wherever it runs.
    pub leaves: u32,
    /// Where the border is to be in the end.
    pub target: u64,
}

impl MoveParams {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// To bytes: the fields in order, little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.directory.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.leaves.to_le_bytes());
        bytes[16..].copy_from_slice(&self.target.to_le_bytes());
        bytes
    }

    /// From bytes, if they make sense.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Status::BadParams)?;
        let (directory, middle, target) =
            (super::node::word(bytes, 0), super::node::word(bytes, 8), super::node::word(bytes, 16));
        if !directory.is_multiple_of(8) {
            return Err(Status::BadParams);
        }
        Ok(MoveParams { directory, key: middle as u32, leaves: (middle >> 32) as u32, target })
    }
}

/// What a mover has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The border now.
    pub split: u64,
    /// Pairs that have changed over.
    pub pairs: u64,
}

pub(crate) async fn move_split<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let params = MoveParams::decode(&call.params)?;
    super::params::room(call, 16)?;
    let moved = params.run(memory).await?;
    let reply = call.grow_reply(16)?;
    reply[..8].copy_from_slice(&moved.split.to_le_bytes());
    reply[8..].copy_from_slice(&moved.pairs.to_le_bytes());
    Ok(())
}

impl MoveParams {
    /// Moves the border, as a kernel of the place that has this memory.
    pub async fn run<M: Memory>(&self, memory: &M) -> Result<Moved, Status> {
        let mut bytes = [0; Directory::LEN];
        memory.read(self.key, self.directory, &mut bytes).await?;
        let directory = Directory::decode(&bytes)?;
        let mut moved = Moved { split: directory.split, pairs: 0 };
        // Who is cut off in the middle leaves leaves locked, in one tree or both.
        if self.leaves > 0 && !memory.outlives_caller() {
            return Err(NOT_OWNER);
        }
        for _ in 0..self.leaves {
            match self.step(memory, directory.parts.map(|part| TreeRef { owner: 0, ..part.tree })).await {
                Ok(step) => moved = Moved { split: step.split, pairs: moved.pairs + step.pairs },
                // What has been done before is told first.
                Err(_) if moved.split != directory.split => break,
                Err(status) => return Err(status),
            }
            if moved.split == self.target {
                break;
            }
        }
        Ok(moved)
    }

    /// Moves the leaf beside the border, or as much of it as is to be moved.
    async fn step<M: Memory>(&self, memory: &M, trees: [TreeRef; 2]) -> Result<Moved, Status> {
        let trees = [Tree::new(memory, trees[0])?, Tree::new(memory, trees[1])?];
        let border = self.directory.wrapping_add(Directory::SPLIT);
        let (mut copy, mut room) = (Vec::new(), Vec::new());
        for _ in 0..TRIES {
            let mut word = [0; 8];
            memory.read(self.key, border, &mut word).await?;
            let split = u64::from_le_bytes(word);
            if split == self.target {
                return Ok(Moved { split, pairs: 0 });
            }
            let down = self.target < split;
            let (giver, taker) = if down { (&trees[0], &trees[1]) } else { (&trees[1], &trees[0]) };
            // The key beside the border, and the last one of those that are to change over.
            let (beside, last) = match (down, split) {
                (true, u64::MAX) => (u64::MAX, self.target),
                (true, _) => (split - 1, self.target),
                (false, _) if self.target == u64::MAX => (split, u64::MAX),
                (false, _) => (split, self.target - 1),
            };
            let slot = giver.leaf(&beside, &mut copy).await?;
            let theirs = taker.leaf(&beside, &mut room).await?;
            let (leaf, free) = (NodeView(&copy), NodeView(&room));
            if leaf.is_away() || !free.is_away() {
                // Somebody else has just moved it.
                continue;
            }
            // What lies between the fences of both, and on this side of the last one.
            let (mut low, mut high) = (leaf.low().max(free.low()), leaf.high().min(free.high()));
            if down {
                (low, high) = (low.max(last), beside);
            } else {
                (low, high) = (beside, high.min(last));
            }
            let cut = |node: NodeView<'_>| match (node.low() < low, high < node.high()) {
                (true, _) => Some(low),
                (_, true) => Some(high + 1),
                _ => None,
            };
            if let Some(sep) = cut(leaf) {
                giver.split_at(slot, &sep, &mut copy, None).await?;
                continue;
            }
            if let Some(sep) = cut(free) {
                taker.split_at(theirs, &sep, &mut room, None).await?;
                continue;
            }
            let (here, there) = (leaf.head(), free.head());
            if !giver.lock(slot, here).await? {
                continue;
            }
            if !taker.lock(theirs, there).await? {
                giver.unlock(slot, here).await?;
                continue;
            }
            // Of two movers that go different ways one begins anew: there is one border.
            let next = match down {
                true => low,
                false => high.saturating_add(1),
            };
            if trees[0].swap_at(self.key, border, split, next).await? != split {
                taker.unlock(theirs, there).await?;
                giver.unlock(slot, here).await?;
                continue;
            }
            let pairs = leaf.len() as u64;
            NodeMut(&mut room).set_away(false);
            NodeMut(&mut room).append(leaf, 0);
            taker.commit(&[Change { slot: theirs, image: &room, ranges: &[] }]).await?;
            NodeMut(&mut copy).truncate(0);
            NodeMut(&mut copy).set_away(true);
            giver.commit(&[Change { slot, image: &copy, ranges: &HEADER_ONLY }]).await?;
            // Nodes that are away side by side become one, whatever comes of it; and the small one that a cut left.
            let _ = Box::pin(giver.merge(&low, 1, &mut copy)).await;
            if NodeView(&room).is_small() {
                let _ = Box::pin(taker.merge(&low, 1, &mut room)).await;
            }
            return Ok(Moved { split: next, pairs });
        }
        Err(LOCKED)
    }
}
