//! What can go wrong in the real world.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use remora_kernel::btree::BuildError;
use remora_kernel::{Placement, Status};
use remora_memory::RegisterError;
use remora_nic::{ConnectError, NicError, WcStatus, cm::CmError};
use remora_service::MAX_RING_MESSAGE;

use crate::link::LinkKind;
use crate::presence;

/// An error of a node or a client. Its message says what was wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A link cannot be had. Whose the address is stands there, if it is one of this user's devices'.
    #[error("the {link} link at {address}: {why}")]
    Link {
        /// Which link.
        link: LinkKind,
        /// Where.
        address: IpAddr,
        /// Why, in words.
        why: String,
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
    #[error("the connection to {address} broke ({status:?}): {}", broke(*.status))]
    Lost {
        /// The node.
        address: IpAddr,
        /// The completion that said so.
        status: WcStatus,
    },
    /// Small packets come through, and ones of the path MTU do not.
    #[error(
        "packets of {mtu} bytes get no answer from {address}, though small ones do: give a smaller MTU (--mtu), or look at \
         what lies between"
    )]
    Path {
        /// The node.
        address: IpAddr,
        /// The path MTU.
        mtu: u32,
    },
    /// A client at its node's own address.
    #[error(
        "node and client are both at {0}: on one machine each needs an address of its own, such as 127.0.0.2 and 127.0.0.3; \
         IPv6 has only one for loopback"
    )]
    SameAddress(IpAddr),
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
    /// Parameters that no call to a place can have.
    #[error(
        "{len} bytes of parameters for kernel {op:#x} at the {placement}: a call that goes as this one has {most} at most, and \
         by rings as much as they are long, up to {MAX_RING_MESSAGE}: open rings, or longer ones"
    )]
    TooLong {
        /// The kernel's op-code.
        op: u64,
        /// The place.
        placement: Placement,
        /// Bytes of the parameters.
        len: usize,
        /// Bytes that there may be.
        most: usize,
    },
    /// A kernel ended otherwise than its caller takes for an answer.
    #[error("kernel {op:#x} at the {placement} ended with {status:?}: {}", advice(*.status))]
    Kernel {
        /// Its op-code.
        op: u64,
        /// Where it ran.
        placement: Placement,
        /// How it ended.
        status: Status,
    },
    /// A kernel's reply is not what its caller reads it as.
    #[error("kernel {op:#x} replied {len} bytes that are no reply of the type that its call was given: check the type")]
    Reply {
        /// Its op-code.
        op: u64,
        /// Bytes of the reply.
        len: usize,
    },
    /// A call took longer than its caller waits.
    #[error(
        "no reply within {after:?}: the node is busy, or the kernel waits for something; wait longer, or ask again"
    )]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// The client ended before the call did, or before it began.
    #[error("the client is closed: connect again")]
    Closed,
    /// An argument is out of range.
    #[error("{0}")]
    Argument(String),
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Error::Argument(error.to_string())
    }
}

/// Why a connection broke.
fn broke(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RemoteAccess => {
            "the node refused a one-sided access: is the region still allocated, do address and key belong to it, and does \
             the access end within it?"
        }
        _ => "the node stopped, or the network between failed or carries only smaller packets (--mtu)",
    }
}

/// What to do about a kernel's end.
fn advice(status: Status) -> &'static str {
    match status {
        Status::Ok => "all is well",
        Status::NotFound => "what was asked for is not there",
        Status::UnknownOp => "there is no such kernel in that place: deploy it, or look at its op-code",
        Status::BadParams => {
            "the kernel does not understand its parameters, or they are longer than one packet (NIC) or 4096 bytes (host)"
        }
        Status::AccessDenied => {
            "it touched memory that its caller may not: is the region still allocated, and do address and key belong to it?"
        }
        Status::StepLimit => {
            "it made as many accesses or instructions as it may: look for a cycle in the data, or raise the limits of the \
             node or of the deployed kernel"
        }
        Status::ByteLimit => {
            "it moved as many bytes as it may: ask for less, or raise the limits of the node or of the deployed kernel"
        }
        Status::ReplyTooLong => {
            "its reply is longer than 64 KB, or than the rings that it would come by: ask for less in one call, or open longer \
             rings"
        }
        Status::Inconsistent => "the object changed during every try to read it: allow more tries, or ask again",
        Status::Trapped => "it failed: look for a trap, such as an index out of bounds, in its code",
        Status::Busy => "the place is full: ask again",
        Status::Overdue => {
            "it took longer than the node lets a call take (--deadline), or its payload did not come: ask for less, have \
             fewer calls under way, or raise the limit"
        }
        Status::LOST => "the connection went away: connect again",
        Status::Other(_) => "that is a status of the kernel's own: see its documentation",
    }
}

impl Error {
    /// Whether the node refused a one-sided access, which costs the connection.
    pub fn is_denied(&self) -> bool {
        matches!(self, Error::Lost { status: WcStatus::RemoteAccess, .. })
    }

    /// For `map_err` on system calls.
    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |errno| Error::System { what, source: errno.into() }
    }
}

impl Error {
    /// What a failure to have a link at an address becomes. Who has the address is looked up now: later it may be another.
    pub fn link(link: LinkKind, address: IpAddr) -> impl Fn(io::Error) -> Self {
        move |source| {
            let local = matches!(source.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable);
            let why = if local { presence::refusal(address, &source) } else { source.to_string() };
            Self::Link { link, address, why, source }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_cannot_be_had_says_whose_the_address_is_and_one_to_a_peer_what_the_system_says() {
        let address: IpAddr = "127.88.7.7".parse().unwrap();
        let told = |kind: io::ErrorKind| Error::link(LinkKind::Shm, address)(kind.into()).to_string();
        assert!(told(io::ErrorKind::AddrInUse).contains("another device has it: give each process its own address"));
        assert!(told(io::ErrorKind::AddrNotAvailable).contains("no interface of this machine has it"));
        let peer = told(io::ErrorKind::NotFound);
        assert!(peer.starts_with("the shm link at 127.88.7.7: ") && !peer.contains("bound"), "{peer}");
    }
}
