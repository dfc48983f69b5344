//! Calls: how a client asks for a kernel at a node, how a node takes the call in, and how the answer gets back.
//!
//! Everything here is an engine: it has no clock, socket or thread. Worlds drive it, and differ in time and carriage
//! alone. A call to the NIC travels as an RPC verb, one to the host as a SEND ([`HostCall`]); either is answered by a
//! WRITE with immediate into a slot of the caller's memory.
//!
//! The client's side, in the order of a call:
//!
//! 1. [`Calls::open`] gives a slot and the header that says where the reply goes; the world posts the verb.
//! 2. When a receive completes, [`Calls::take_reply`] says whose call has ended, how, and with what bytes.
//! 3. When the connection is lost, [`Calls::lose_all`] ends what is under way.

mod caller;
pub mod control;
mod host_call;

pub use caller::{Calls, Full, Reply};
pub use host_call::{HostCall, HostCallError};

/// Calls that a client may have under way at once.
pub const MAX_CALLS: usize = 256;
/// Longest reply, in bytes.
pub const MAX_REPLY: usize = 64 << 10;
/// Longest message that calls the host, in bytes, header included.
pub const MAX_REQUEST: usize = 4096;
/// Receives that a client keeps posted for replies: as many as calls, and some to spare.
pub const RECVS: usize = 2 * MAX_CALLS;
