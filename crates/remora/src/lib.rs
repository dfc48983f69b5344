#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

mod address;
mod asynchronous;
mod at;
mod builtin;
mod client;
mod codec;
mod data;
mod debug;
mod deployed;
mod embeddings;
mod host_ring;
mod index;
mod kv;
pub mod model;
mod node;
mod numbers;
mod oneshot;
mod pending;
mod shared;
pub mod store;
mod tree;

pub use address::ToAddress;
pub use asynchronous::{AsyncClient, InFlight};
pub use at::{At, Caller, TypedCall};
pub use builtin::{
    Checksum, Consistent, Distinct, Estimate, Filter, Filtered, Get, ReadConsistent, Shuffle, Summed, Traverse,
};
pub use client::{Client, ClientBuilder};
pub use codec::{FromReply, ToParams};
pub use data::CheckedObject;
pub use deployed::{Deployed, DeployedCall, ModuleOptions};
pub use embeddings::{Embeddings, EmbeddingsPlace, Reduce};
pub use host_ring::HostRing;
pub use index::Index;
pub use kv::{KvGet, KvStore, KvWrite};
pub use node::{Node, NodeBuilder};
pub use numbers::{NumberCaller, Numbers, Sequencer, TakeNumbers};
pub use pending::Pending;
pub use remora_kernel::embed::{Element, EmbedTable, Reduction};
pub use remora_kernel::shuffle::Partition;
pub use remora_kernel::{ConsistencyParams, Limits, Placement, Predicate, Status, TraversalParams};
pub use remora_real::{DeployToken, Deployers, Error, LinkKind, RemoteRegion, UdpPort};
pub use remora_ring::{RingShape, ShapeError};
pub use remora_service::{
    CallKind, MAX_CALLS, MAX_REPLY, MAX_RING_MESSAGE, Placer, PlacerCounts, Placing, Prior, Reason, Why,
};
pub use remora_store::embedding::EmbeddingShape;
pub use remora_store::hash::Table;
pub use remora_store::kv::{Kv as KvPlace, KvShape, NotAPlace};
pub use remora_store::list::List;
pub use remora_store::memo::Memo;
pub use remora_wasm::{DeployedModule, Isolation, ModuleLimits};
pub use shared::Shared;
pub use tree::Tree;

/// What [`At::filter`] takes.
pub mod filter {
    pub use remora_kernel::filter::{Column, ColumnType, FilterOutput, FilterParams, Group, RowPredicate, Source};
}

/// `Ok`, or an [`Error`] that says what was wrong, where, and what to do.
pub type Result<T> = std::result::Result<T, Error>;

/// The project's README, whose example is compiled and run as this crate's own are.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ProjectReadme;
