//! What can go wrong in the real world.

use std::io;
use std::net::IpAddr;

use remora_kernel::Placement;
use remora_memory::RegisterError;
use remora_nic::{ConnectError, NicError, WcStatus, cm::CmError};

use crate::link::LinkKind;

/// An error of a node or a client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A link cannot be had.
    #[error("the {link} link at {address}: {source}")]
    Link {
        /// Which link.
        link: LinkKind,
        /// Where.
        address: IpAddr,
        /// Why.
        source: io::Error,
    },
    /// The engine refused a call.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A connection call was refused.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection manager refused a call.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// Nobody answers at the address.
    #[error("no node answers at {0}: is `remora node --listen {0}` running there, and UDP port 4791 open between?")]
    Unreachable(IpAddr),
    /// The node said no.
    #[error("the node at {address} refused the connection: {why} (reason {reason})")]
    Refused {
        /// The node.
        address: IpAddr,
        /// What it gave as an explanation.
        why: String,
        /// The CM's reason code.
        reason: u16,
    },
    /// The connection broke.
    #[error("the connection to {address} broke ({status:?}): the node stopped or the network between failed")]
    Lost {
        /// The node.
        address: IpAddr,
        /// The completion that said so.
        status: WcStatus,
    },
    /// The node could not do what was asked.
    #[error("the node could not {what}: {why}")]
    Node {
        /// What was asked.
        what: &'static str,
        /// What it answered.
        why: String,
    },
    /// A placement that there is not.
    #[error("the real world has no {0}: run the kernel at the client, NIC or host, or in the modelled world")]
    Placement(Placement),
    /// An argument is out of range.
    #[error("{0}")]
    Argument(String),
}

impl Error {
    /// For `map_err` on system calls.
    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |errno| Error::System { what, source: errno.into() }
    }
}
