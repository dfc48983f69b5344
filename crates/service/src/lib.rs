//! Calls: how a client asks for a kernel at a node, how a node takes the call in, and how the answer gets back.
//!
//! Everything here is an engine: it has no clock, socket or thread. Worlds drive it, and differ in time and carriage
//! alone. A call to the NIC travels as an RPC verb, one to the host as a SEND ([`HostCall`]); either is answered by a
//! WRITE with immediate into a slot of the caller's memory. A call by a ring ([`RingCall`]) is a WRITE, and so is its answer.
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
//! Where a call runs may be left to a [`Placer`], which a client has one of, and a node, for calls that clients leave to it
//! ([`NodePlacer`]). [`NumberBatches`] makes one addition for all callers that wait for a sequencer's numbers.
//! [`IndexRouter`] knows which part of an index to ask.
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
//! 4. [`CallTable::end_overdue`] ends calls that take longer than they may: that compute for too long, or whose payload
//!    does not come.
//! 5. An ingress that still uses a call's number after the answer (the host's reply buffers) has it given back by
//!    [`CallTable::release`].
//!
//! [`Clients`] says whose a connection is; [`Shares`], the turns of a pool of kernels and the [`Ledger`] share by client.
//!
//! Calls with op-codes from [`control::op::FIRST`] on are the node's own: memory, of which a [`Ledger`] keeps account, and
//! what an [`Extension`](control::Extension) adds.
//!
//! [`RpcVerbs`], [`Sends`] and [`Rings`] are ingresses, and [`Two`] makes one of two; a new one is a type that takes calls from its carriage and puts answers
//! there, and nothing here changes.

mod batch;
mod call_slots;
mod call_stats;
mod call_table;
mod clients;
mod combiner;
pub mod control;
mod copies;
mod host_call;
mod index;
mod ingress;
mod kv_blocks;
mod ledger;
mod payload_streams;
mod placer;
mod ring_budget;
mod ring_call;
mod rings;
mod rpc_verbs;
mod sends;
mod share;
mod staging;
mod tree_owners;
mod turns;
mod two;
mod work_id;

pub use batch::{Addition, NumberBatches};
pub use call_slots::{CallReply, CallSlots, Full};
pub use call_stats::{CLASSES, CallStats, OpStats};
pub use call_table::{CallAnswer, CallTable, DEADLINE};
pub use clients::{CONNECTIONS, Clients, TooManyConnections};
pub use combiner::{Combined, Combiner};
pub use host_call::{HostCall, HostCallError};
pub use index::{IndexCall, IndexOp, IndexReply, IndexRouter};
pub use ingress::{Ingress, Release, TakenCall};
pub use kv_blocks::{KvBlock, KvBlocks, KvUse, RESERVED_BLOCKS};
pub use ledger::{Ledger, LedgerError, Reclaimed};
pub use payload_streams::{Offered, PayloadStreams, STREAM_BUFFER};
pub use placer::{
    BorderClimber, BorderKeeper, CallKind, Choice, NodePlacer, Placer, PlacerCounts, Placing, PlacingError, Prior,
    Reason, Ticket, Why, is_result,
};
pub use ring_budget::{MAX_RING_MESSAGE, RING_BYTES, SHORT_RING_MESSAGE, most_params, most_reply};
pub use ring_call::{RingCall, RingReply};
pub use rings::{RING_CALLS, RINGS, RingAsker, RingData, RingFault, RingPair, RingPost, Rings, TooManyRings};
pub use rpc_verbs::RpcVerbs;
pub use sends::{Flood, HostAsker, ReplyWrite, Sends};
pub use share::Shares;
pub use staging::{Carriage, RemoteMemory, SLOT, StagedVerb, Staging};
pub use tree_owners::{OWNED_TREES, TreeOwners};
pub use two::{Asker, Two};
pub use work_id::WorkId;

/// Calls that a client may have under way at once.
pub const MAX_CALLS: usize = 256;
/// Longest reply, in bytes.
pub const MAX_REPLY: usize = 64 << 10;
/// Longest message that calls the host, in bytes, header included.
pub const MAX_REQUEST: usize = 4096;
/// Receives that a client keeps posted for replies: as many as calls, and some to spare.
pub const RECVS: usize = 2 * MAX_CALLS;
