//! Replicated records: engines.
//!
//! [`ddp`] replicates records among nodes of which any may coordinate a write, with linearizable consistency and one of
//! five persistency models (MINOS). An engine has no clock, socket, thread, file or randomness: a world hands it what
//! happened and when, and does what it asks for.

mod codec;
pub mod ddp;
pub mod log;
pub mod member;
pub mod node;

pub mod types;

/// Nanoseconds since a moment of the world's choice; never goes backwards at one node.
pub type Time = u64;
