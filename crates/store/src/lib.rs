//! Data structures laid out in remote memory: linked list, hash table, key-value store, embedding tables, checked objects.
//!
//! A client builds them as images, bytes for regions whose addresses and keys it knows, and writes
//! those with one-sided verbs; the node stays passive. The kernels of `remora-kernel` read them.
//!
//! ```
//! use remora_kernel::{Call, Limits, host_runner, op};
//! use remora_memory::{Access, Buffer, Region, Registry};
//! use remora_store::{Place, hash};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut records = hash::TableBuilder::new(1);
//! records.insert(7, b"seven")?;
//! records.insert(8, b"eight")?;
//! let layout = records.build()?;
//!
//! // Regions at a node; a client has them by `Client::alloc`, and writes the image to them with WRITEs.
//! let registry = Arc::new(Registry::new([7; 32]));
//! let pd = registry.alloc_pd();
//! let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
//! let region = |len| registry.register(pd, &Buffer::from_boxed(vec![0; len].into()), 0, len, None, access);
//! let (entries, values) = (region(layout.entries_bytes())?, region(layout.values_bytes())?);
//! let at = |region: &Region| Place { va: region.va(), key: region.key() };
//! let (table, image) = layout.place(at(&entries), at(&values));
//! entries.write(entries.va(), &image.entries)?;
//! values.write(values.va(), &image.values)?;
//!
//! // The kernel that a client's call comes to, at the node's NIC or host.
//! let mut runner = host_runner(registry, true, 4, Limits::default());
//! let mut call = Call::new(op::GET, &table.get_params(7).encode(), 64);
//! call.pd = Some(pd);
//! runner.start(call).map_err(|_| "no place is free")?;
//! let mut value = None;
//! while runner.in_flight() > 0 {
//!     runner.poll(&mut |call, _status| value = Some(call.reply.clone()));
//! }
//! assert_eq!(value.as_deref(), Some(&b"seven"[..]));
//! # Ok(())
//! # }
//! ```

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
