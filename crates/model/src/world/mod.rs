//! The modelled world: the protocol engine of `remora-nic` and the kernels of `remora-kernel`, in modelled time.
//!
//! A [`Fabric`] is machines, each with [`Hardware`] and NICs, joined by cables and switches; memory devices stand beside
//! them. A NIC is an engine with the hardware around it. A connection between two NICs takes the calls that the real
//! world's client takes; a [`Pair`] is a fabric of a client, a node and one connection. Every packet is built, sent,
//! received and answered by the code that runs for real, over real bytes, and every kernel is polled for real: the model
//! only says when. A packet's way:
//!
//! ```text
//! core --store--> NIC [--fetch command--> ] engine --fetch payload--> tx pipeline --> wire
//!     [--> switch port ...] --> rx pipeline --> engine
//!                                               kernel <--- DMA ---> memory
//! ```
//!
//! What the model leaves out: the bytes of acknowledgements of PCIe, row buffers of DRAM, what devices take of memory's
//! bandwidth, prefetchers, contention between a NIC's own data structures, turns of an accelerator's atomic operations on
//! one word, one-sided verbs' way from the host to a memory device, what pauses behind a full port spread to, cache
//! pollution by device writes, and of the operating system all but interrupts and preemption.

mod adapter;
mod board;
mod bus;
mod carriage;
mod client;
mod energy;
mod fabric;
mod hardware;
mod machine;
mod network;
mod node;
mod pair;
mod processor;
mod site;
mod spec;
mod streams;
mod tasks;
mod writer;

pub use bus::{Event, TraceEntry};
pub use client::{ConnectionId, Done, RawVerb};
pub use energy::Energy;
pub use fabric::{Counts, DeviceSpec, Fabric, FabricSpec, NicAt};
pub use hardware::Hardware;
pub use network::{Cable, NetworkSpec, SwitchSpec};
pub use pair::Pair;
pub use processor::ProcessorKind;
pub use spec::{MachineSpec, PairSpec, Work, shares};
pub use writer::{Fill, Writer};

use remora_kernel::Placement;
use remora_nic::{NicError, WcStatus};

use crate::platform::{Placements, Platform};

/// Why a world cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The platform has no such thing.
    #[error("platform {platform} has no {what}: choose another placement or platform")]
    Missing {
        /// Its name.
        platform: String,
        /// What is missing.
        what: &'static str,
    },
    /// Memory for the modelled machines.
    #[error("no memory for the modelled machines: {0}")]
    Memory(#[from] std::io::Error),
    /// A machine has no such processor.
    #[error("machine {machine} has no {what}: choose another placement or platform")]
    NoProcessor {
        /// Which machine.
        machine: u16,
        /// What it would need.
        what: ProcessorKind,
    },
    /// Calls were to be served at the client.
    #[error("a node serves calls on its NIC, its host or its accelerator, not at the client")]
    AtClient,
    /// Nothing joins two NICs.
    #[error("no cables lead from NIC {from} to NIC {to}: join them by a switch or directly")]
    NoWay {
        /// The sender.
        from: u16,
        /// The receiver.
        to: u16,
    },
    /// There is no such machine, NIC or device.
    #[error("there is no {what} {number} in the fabric")]
    Unknown {
        /// What.
        what: &'static str,
        /// Its number.
        number: u16,
    },
    /// The engine refused something.
    #[error("the modelled NIC refuses: {0}")]
    Nic(#[from] NicError),
    /// The engine's registry refused a region.
    #[error("the modelled NIC refuses a region: {0}")]
    Region(#[from] remora_memory::RegisterError),
    /// A client has more calls to a host waiting than it may have under way.
    #[error("a modelled client floods its node with calls to the host")]
    Flood,
    /// A verb failed.
    #[error("{}", verb(*.0))]
    Verb(WcStatus),
}

/// Why a verb failed.
fn verb(status: WcStatus) -> String {
    match status {
        WcStatus::RemoteAccess => {
            "a modelled one-sided access was refused (RemoteAccess): it touched memory that its caller may not; do address \
             and key belong to a region, and does the access end within it?"
                .into()
        }
        other => format!("a modelled verb ended with {other:?}"),
    }
}

/// The placements that a platform has, in the order of reports.
pub fn placements(platform: &Platform) -> Vec<Placement> {
    let Placements { client, nic, host, accel } = platform.placements;
    let there = |placement: &Placement| match placement {
        Placement::Client => client,
        Placement::Nic => nic.is_some(),
        Placement::Host => host,
        Placement::Accelerator => accel.is_some(),
    };
    Placement::ALL.into_iter().filter(there).collect()
}

#[cfg(test)]
mod tests;
