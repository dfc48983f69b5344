//! The kinds of links: one word each in every option, report and error, and how each is made.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Link;
use super::packet::PacketLink;
use super::shm::ShmLink;
use super::udp::UdpLink;

/// What kind of link carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// RoCE v2 over a UDP socket.
    Udp,
    /// Shared memory between two processes of one user on one host.
    Shm,
    /// RoCE v2 in whole IPv4 packets through raw and packet sockets: needs `CAP_NET_RAW`.
    Packet,
    /// Within one process, for tests.
    Loopback,
}

/// No link has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no link {0:?}: use {known}", known = known())]
pub struct UnknownLink(pub String);

impl LinkKind {
    /// Those by which a node is reached, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Udp, Self::Shm, Self::Packet];

    /// As options and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
            Self::Packet => "packet",
            Self::Loopback => "loopback",
        }
    }

    /// As headings spell it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Shm => "shared memory",
            Self::Packet => "Ethernet frames",
            Self::Loopback => "loopback",
        }
    }

    /// What it is, in a few words.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Udp => "RoCE v2 over a UDP socket",
            Self::Shm => "Shared memory between two processes of one host",
            Self::Packet => "Whole IPv4 packets through packet and raw sockets",
            Self::Loopback => "Within one process, for tests",
        }
    }

    /// A link of this kind at `local`.
    ///
    /// # Errors
    ///
    /// What the link's own `bind` says; `Unsupported` for [`Loopback`](Self::Loopback), whose links
    /// [join a hub](super::loopback::Hub::join).
    pub fn bind(self, local: IpAddr) -> io::Result<Box<dyn Link>> {
        Ok(match self {
            Self::Udp => Box::new(UdpLink::bind(local)?),
            Self::Shm => Box::new(ShmLink::bind(local)?),
            Self::Packet => Box::new(PacketLink::bind(local)?),
            Self::Loopback => {
                let why = "the loopback link reaches no other process";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
        })
    }

    /// Whether packets travel with an ICRC, which the link fills in and checks. Where they do not, the bytes for it say
    /// nothing.
    pub const fn carries_icrc(self) -> bool {
        match self {
            Self::Udp | Self::Packet => true,
            Self::Shm | Self::Loopback => false,
        }
    }
}

/// The names of [`LinkKind::ALL`], as in "udp, shm or packet".
fn known() -> String {
    let [rest @ .., last] = LinkKind::ALL.map(LinkKind::name);
    format!("{} or {last}", rest.join(", "))
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for LinkKind {
    type Err = UnknownLink;

    /// One of [`ALL`](Self::ALL), by its name.
    fn from_str(text: &str) -> Result<Self, UnknownLink> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| UnknownLink(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_as_written() {
        for kind in LinkKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("ib".parse::<LinkKind>().unwrap_err().to_string().contains("udp, shm or packet"));
    }
}
