//! Replicated records: engines.
//!
//! [`ddp`] replicates records among nodes of which any may coordinate a write, with linearizable consistency and one of
//! five persistency models (MINOS); [`node`] is one with its membership and log. [`client`] is the other half, and
//! [`frames`] what both say over the connections that [`stream`] carries. An engine has no clock, socket, thread, file or randomness: a world hands it what
//! happened and when, and does what it asks for.

pub mod bounds;
pub mod chain;
pub mod client;
mod codec;
pub mod ddp;
pub mod frames;
mod ledger;
pub mod log;
pub mod member;
pub mod node;
mod patience;
pub mod seal;
#[doc(hidden)]
pub mod sequences;
pub mod status;
pub mod stream;
pub mod types;

/// Nanoseconds since a moment of the world's choice; never goes backwards at one node.
pub type Time = u64;
