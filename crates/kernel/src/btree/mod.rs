//! A B-tree in registered memory, of values of 8 bytes, whose keys are numbers of 64 bits, or up to 256 bytes ([`TreeKey`]).
//!
//! The very same code runs where calls run: on the node's host and NIC, and at the client by one-sided READ,
//! compare-and-swap and WRITE; all may read and write a tree at once. Nodes are locked by writers and read without locks
//! (optimistic lock coupling: Leis et al., DaMoN 2016). A node carries its fences and a pointer to the right (Lehman and
//! Yao's B-link tree, TODS 6(4), 1981), so that any node that somebody finds says by itself whether it is the one that
//! he looks for: old pointers and old copies of inner nodes do no harm.
//!
//! **Reading.** A READ goes upwards. Writers lock a node's head, change the tail, then what lies between, then the
//! head. So a copy whose head is not locked and equals its tail is of one moment.
//!
//! **Memory.** A node that is freed stays a node: its version goes on, and whoever still points there sees that it is
//! free, or another. So nothing has to be waited for before it is used again. A client that went away in the middle of
//! a split or a merge may leave a node unused.
//!
//! **Splits** change a node and a new one together; the parent hears of it afterwards, and till then the pointer to the
//! right leads on. If who split it was cut off before, the parent hears of it when the node is split or merged next. **Merges** change two nodes and their parent together. Locks are taken from the top down and from the
//! left, those of a merge only if nobody has them, so that nobody waits in a circle.

mod access;
#[cfg(test)]
mod at_once;
mod audit;
mod build;
mod build_bytes;
mod byte_calls;
mod bytes;
mod find;
mod keys;
mod merge;
mod node;
mod params;
mod partition;
mod place;
mod plan;
mod put;
mod range;
mod recover;
mod split;
#[cfg(test)]
pub(crate) mod tests;
mod write;

pub use access::Tree;
pub use audit::{Audit, AuditError};
pub use build::{BuildError, Shape};
pub(crate) use byte_calls::are_bytes;
pub use byte_calls::{BytePairs, ByteParams, pairs_of_scan};
pub use bytes::{KEY_BYTES, key_bytes};
pub use keys::TreeKey;
pub use node::{HEADER, Head, NODE_BYTES, NodeMut, NodeView, children, leaf_keys};
pub use params::{TreeParams, TreeRef};
pub(crate) use params::{delete, get, put, recover, scan};
pub(crate) use partition::move_split;
pub use partition::{Directory, Index, MoveParams, Moved, Part, part_of};
pub(crate) use place::{Ground, LOOKS, LookIn, More, Visit, cost_of_look};
pub use plan::Plan;
pub(crate) use put::PutInPlace;
pub(crate) use range::Range;
pub use recover::LOG_SLOTS;
pub use write::Put;

use crate::call::Status;

/// Somebody kept a node of the tree locked, or changed it again and again: try again.
pub const LOCKED: Status = Status::Other(16);
/// All nodes that the tree has room for are in use.
pub const FULL: Status = Status::Other(17);
/// A client that writes by itself has to be an owner of the tree: nobody could give its locks back.
pub const NOT_OWNER: Status = Status::Other(19);
/// The key is in the other part of an index: ask there.
pub const MOVED: Status = Status::Other(20);
/// The key is there already.
pub const EXISTS: Status = Status::Other(18);

/// Slot of the root, which stays where it is.
pub const ROOT: u32 = 1;

/// What the first slot holds, which is no node: offsets of words.
pub struct First {
    /// Marks a tree: [`First::MAGIC`].
    pub magic: usize,
    /// Slots that have never been used begin here.
    pub next: usize,
    /// The first node of the list of free ones (4 bytes), and how often it has changed (4 bytes).
    pub free: usize,
}

/// Where the first slot holds what.
pub const FIRST: First = First { magic: 0, next: 8, free: 16 };

impl First {
    /// "RemBtree" as a word.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"RemBtree");
}
