//! The real world: links, threads, clocks, nodes and clients.
//!
//! [`Node`] exposes memory and runs kernels next to it; [`Client`] reads, writes and calls. Both stand on a
//! [`Device`]: a NIC engine ([`remora_nic::Nic`]) with its [`link`]s and the thread that drives it.

mod address;
mod client;
mod deployers;
mod device;
mod error;
mod gate;
mod kernels;
pub mod link;
mod links;
mod messages;
mod module_calls;
mod node;
pub mod presence;
mod rack;
mod rings;
mod sys;
mod trunk;

pub use address::{at_free_loopback, at_local, free_loopbacks, local_towards};
pub use client::{Client, ClientConfig, ClientCounters, RemoteRegion, SharedClient};
pub use deployers::{DeployToken, Deployers};
pub use device::{Clock, Device, DeviceGuard, EventSink, POLITE, Resident, Seat, entropy};
pub use error::Error;
pub use gate::{Gate, GateFigures};
pub use kernels::{Kernels, POOL};
pub use link::udp::UdpPort;
pub use link::{LinkKind, UnknownLink};
#[doc(hidden)]
pub use node::sequences;
pub use node::{Node, NodeConfig, NodeEvent, NodeFigures};
pub use rack::{RackConfig, RackDaemon, RackFigures};
pub use remora_service::Placing;
pub use rings::{RingConfig, RingMemory, RingPort};
pub use sys::{Sleeper, cores, on_core, pin, prepare_to_wait, process_cpu_ns, start_thread};
pub use trunk::{Driven, Trunk, TrunkConfig, TrunkSleeper};

/// So many bytes of zeroed memory of this process, page by page, which peers on this host may be [lent](remora_memory::Loans).
pub fn map_memory(len: usize) -> Result<remora_memory::Buffer, Error> {
    remora_memory::Buffer::lendable(len).map_err(|source| Error::System { what: "mapping memory", source })
}
