//! The RoCE v2 transport engine: queue pairs, completions, retransmission, RPC verbs.
//!
//! [`Nic`] is a pure state machine in the manner of quinn-proto: time is an argument, packets and completions go in
//! and out through methods of four kinds, and nothing here reads a clock, opens a socket or starts a thread.
//!
//! - getters, such as [`Nic::qp_state`] and [`Nic::counters`];
//! - `handle_*`: a packet arrived, a time was reached;
//! - mutators: create, modify, post;
//! - `poll_*`: packets to send, completions, events, kernel calls, the next timeout.
//!
//! The packets are those of RoCE v2 (InfiniBand specification, volume 1, with annex A17), from BTH to ICRC. The link
//! adds the UDP and IP headers and the ICRC, and checks them on arrival. Kernel calls (StRoM section 5) are packets of
//! the manufacturer's op-code space.

mod arrival;
mod attr;
pub mod cm;
mod congestion;
mod connect;
mod cq;
mod ctx;
mod lane;
mod local;
mod met;
mod multicast;
mod nic;
mod now;
mod numbers;
mod packet;
mod plain;
mod post;
mod qp;
mod queue;
mod reorder;
mod requester;
mod responder;
mod rpc;
mod selective;
mod tap;
mod timer;
mod types;
mod uc;
mod ud;

pub use arrival::Packet;
pub use attr::{AddressVector, QpAttr, QpMask, qp_masks};
pub use connect::{ConnectAttr, ConnectError};
pub use lane::Lane;
pub use multicast::MULTICAST_QP;
pub use nic::{Nic, NicConfig};
pub use now::Now;
pub use queue::{Room, TxBatch};
pub use rpc::{RpcRequest, StreamChunk};
pub use tap::{MAX_TAPS, WriteTap};
pub use types::*;
pub use ud::GRH_LEN;
