//! Calls: how a client asks for a kernel at a node, how a node takes the call in, and how the answer gets back.
//!
//! Everything here is an engine: it has no clock, socket or thread. Worlds drive it, and differ in time and carriage
//! alone. A call to the NIC travels as an RPC verb, one to the host as a SEND ([`HostCall`]); either is answered by a
//! WRITE with immediate into a slot of the caller's memory.
//!
//! ```text
//!  client                                                  node
//!  CallSlots::open --- RPC verb, SEND, ... ---> Ingress::poll --> CallTable::take --> a kernel, or the node itself
//!  CallSlots::take_reply <---- WRITE_IMM ------ Ingress::reply <- CallTable::finish <-'
//!  RemoteMemory <--> Staging --- one-sided verbs
//! ```
//!
//! The client's side, in the order of a call:
//!
//! 1. [`CallSlots::open`] gives a slot and the header that says where the reply goes; the world posts the verb.
//! 2. When a receive completes, [`CallSlots::take_reply`] says whose call has ended, how, and with what bytes.
//! 3. When the connection is lost, [`CallSlots::lose_all`] ends what is under way.
//!
//! A kernel that runs at the client reaches the node through [`RemoteMemory`]: its accesses are verbs over slots of
//! [`Staging`] memory, which the world's [`Carriage`] posts, and whose ends it tells [`Staging::complete`].
//! [`WorkId`] says which completion is which.
//!
//! The node's side has an [`Ingress`] for each way that calls come by, and behind it a [`CallTable`] of those under way.
//! Several of these may feed the kernels of one place:
//!
//! 1. [`CallTable::take`] takes calls while there are some and there is room, each client within its share ([`Shares`]).
//!    The world runs them, on a `Runner` that polls all or on tasks that it wakes one by one.
//! 2. What arrives for the payload streams of calls goes to [`PayloadStreams::offer`].
//! 3. [`CallTable::finish`] answers a call that has ended; where the way to the ingress takes time, [`CallTable::end`] and
//!    later [`CallTable::answer`].
//! 4. An ingress that still uses a call's number after the answer (the host's reply buffers) has it given back by
//!    [`CallTable::release`].
//!
//! Calls with op-codes from [`control::op::FIRST`] on are the node's own: memory, of which a [`Ledger`] keeps account, and
//! what an [`Extension`](control::Extension) adds.
//!
//! [`RpcVerbs`] and [`Sends`] are ingresses; a new one is a type that takes calls from its carriage and puts answers
//! there, and nothing here changes.

mod call_slots;
mod call_table;
pub mod control;
mod host_call;
mod ingress;
mod ledger;
mod payload_streams;
mod rpc_verbs;
mod sends;
mod share;
mod staging;
mod work_id;

pub use call_slots::{CallReply, CallSlots, Full};
pub use call_table::{CallAnswer, CallTable};
pub use host_call::{HostCall, HostCallError};
pub use ingress::{Ingress, Release, TakenCall};
pub use ledger::{Ledger, LedgerError};
pub use payload_streams::{Offered, PayloadStreams, STREAM_BUFFER};
pub use rpc_verbs::RpcVerbs;
pub use sends::{Flood, HostAsker, ReplyWrite, Sends};
pub use share::Shares;
pub use staging::{Carriage, RemoteMemory, SLOT, StagedVerb, Staging};
pub use work_id::WorkId;

/// Calls that a client may have under way at once.
pub const MAX_CALLS: usize = 256;
/// Longest reply, in bytes.
pub const MAX_REPLY: usize = 64 << 10;
/// Longest message that calls the host, in bytes, header included.
pub const MAX_REQUEST: usize = 4096;
/// Receives that a client keeps posted for replies: as many as calls, and some to spare.
pub const RECVS: usize = 2 * MAX_CALLS;
