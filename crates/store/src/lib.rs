//! Data structures laid out in remote memory: linked list, hash table, key-value store, embedding tables, checked objects.
//!
//! A client builds them as images, bytes for regions whose addresses and keys it knows, and writes
//! those with one-sided verbs; the node stays passive. The kernels of `remora-kernel` read them.

mod arena;
pub mod bench;
pub mod bench_tree;
pub mod btree;
pub mod checked;
pub mod embedding;
pub mod hash;
pub mod kv;
pub mod list;
pub mod memo;
pub mod text;

pub use arena::Arena;

/// Bytes of a cache line, which a list's element takes.
const CACHE_LINE: usize = 64;

/// Where a structure, or a part of one, is to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address of its first byte, a multiple of 64 for the sake of cache lines.
    pub va: u64,
    /// Key of the region.
    pub key: u32,
}
