//! Kernels: small programs that run next to the data, written once and placed anywhere.
//!
//! A [`Kernel`] is an `async fn` over a [`Memory`]. What one access is depends on the place that
//! polls it: a verb over the network at the client, a prefetched load at the host and its NIC
//! ([`HostMemory`]). A [`Runner`] keeps a bounded number of calls in flight in a [`TaskPool`].
//!
//! | op-code             | kernel                   | parameters            | reply                   |
//! |---------------------|--------------------------|-----------------------|-------------------------|
//! | [`op::TRAVERSAL`]   | follow a linked structure | [`TraversalParams`]   | the value               |
//! | [`op::GET`]         | look a key up in a table | [`GetParams`]         | the value               |
//! | [`op::CONSISTENCY`] | read until the CRC holds | [`ConsistencyParams`] | payload, tries `u32`    |
//! | [`op::CHECKSUM`]    | CRC of a payload stream  | none                  | length `u64`, CRC `u64` |
//! | [`op::FILTER`] | filter and aggregate rows | [`filter::FilterParams`] | rows, counts or groups |
//! | [`op::COMPRESS`] | compress what memory holds | [`compress::CompressParams`] | blocks |
//! | [`op::DECOMPRESS`] | restore blocks into memory | [`compress::CompressParams`] | length `u64` |
//! | [`op::SHUFFLE`] | partition a payload stream | [`shuffle::ShuffleParams`] | values `u64` |
//! | [`op::HYPERLOGLOG`] | distinct values of a stream | [`hll::HllParams`] | estimate `f64`, values `u64`, image |
//! | [`op::TREE_GET`] | look a key up in a B-tree | [`btree::TreeParams`] | the value |
//! | [`op::TREE_PUT`] | write a key of a B-tree | [`btree::TreeParams`] | the value before |
//! | [`op::TREE_DELETE`] | take a key out of a B-tree | [`btree::TreeParams`] | the value before |
//! | [`op::TREE_SCAN`] | keys of a B-tree in order | [`btree::TreeParams`] | pairs of key and value |
//! | [`op::TREE_RECOVER`] | end what a client left half done | [`btree::TreeParams`] | locks `u64` |
//! | [`op::TREE_MOVE`] | move the border of an index in two parts | [`btree::MoveParams`] | border `u64`, pairs `u64` |
//! | [`op::KV_GET`] | look a key of bytes up | [`kv::KvParams`] | the value |
//! | [`op::KV_PUT`], [`op::KV_UPDATE`], [`op::KV_DELETE`] | write a pair, or take it away | [`kv::KvParams`] | none |
//! | [`op::KV_RESERVE`] | a block for a long pair | [`kv::KvParams`] | its offset `u64` |
//! | [`op::KV_RELEASE`] | give such a block back | [`kv::KvParams`] | nothing |
//! | [`op::EMBED`] | reduce rows of an embedding table | [`embed::EmbedRequest`] | the row, or a number each, `f32` |
//! | [`op::SEQUENCER`] | numbers that nobody else gets | [`SequencerParams`] | the first of them |
//!
//! All numbers are little-endian. The first three kernels are those of StRoM (EuroSys 2020,
//! sections 5.2, 6.2 and 6.3).

pub mod btree;
mod builtins;
mod call;
mod checksum;
pub mod compress;
mod consistency;
pub mod embed;
pub mod filter;
mod get;
pub mod hll;
mod host;
pub mod kv;
mod lanes;
mod memory;
mod placement;
mod pool;
mod runner;
mod sequencer;
pub mod shuffle;
mod steps;
mod stream;
#[cfg(test)]
mod testing;
mod traversal;
mod vectored;

pub use builtins::{BUILTINS, Builtin, Builtins, Input, Kernel, Places, op};
pub use call::{Call, CallFields, Status};
pub use consistency::{ConsistencyParams, TRIES_BYTES, crc64};
pub use get::{BUCKETS, Bucket, ENTRY_BYTES, GetParams, TableEntry};
pub use host::HostMemory;
pub use memory::{Fault, Immediate, Limited, Limits, Memory};
pub use placement::{Placement, UnknownPlacement};
pub use pool::{Meter, TURN, TaskPool};
pub use runner::{Runner, host_runner, host_runner_of, runner};
pub use sequencer::SequencerParams;
pub use stream::{Feed, Stream};
pub use traversal::{ELEMENT_BYTES, Predicate, TraversalParams};
