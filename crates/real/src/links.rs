//! Which links a device has, and which of them reaches a peer.

use std::net::IpAddr;

use crate::Error;
use crate::link::Link;
use crate::link::packet::PacketLink;
use crate::link::shm::ShmLink;
use crate::link::udp::UdpLink;

/// Which link to use to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkChoice {
    /// Shared memory if the node is on this host and lets us, else UDP.
    #[default]
    Auto,
    /// RoCE v2 over a UDP socket.
    Udp,
    /// Shared memory between two processes of one user on one host.
    Shm,
    /// RoCE v2 in whole IPv4 packets through raw and packet sockets: needs `CAP_NET_RAW`.
    Packet,
}

impl std::str::FromStr for LinkChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        match s {
            "auto" => Ok(Self::Auto),
            "udp" => Ok(Self::Udp),
            "shm" => Ok(Self::Shm),
            "packet" => Ok(Self::Packet),
            other => Err(Error::Argument(format!("there is no link {other:?}: use auto, udp, shm or packet"))),
        }
    }
}

/// The links of one device; routes name them by their places.
pub(crate) type Links = Vec<Box<dyn Link>>;

fn at(link: &'static str, address: IpAddr) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Link { link, address, source }
}

/// The links of a node, which serves peers on any of them.
pub(crate) fn node_links(local: IpAddr, packet: bool) -> Result<Links, Error> {
    let mut links: Vec<Box<dyn Link>> = Vec::new();
    if packet {
        links.push(Box::new(PacketLink::bind(local).map_err(at("packet", local))?));
    } else {
        links.push(Box::new(UdpLink::bind(local).map_err(at("udp", local))?));
    }
    // Shared memory is found by the address that the peer calls; the wildcard is nobody's.
    if !local.is_unspecified() {
        links.push(Box::new(ShmLink::bind(local).map_err(at("shared-memory", local))?));
    }
    Ok(links)
}

/// The links of a client at `local` that talks to `node`, with the one to use first; and that one's name.
pub(crate) fn client_links(local: IpAddr, node: IpAddr, choice: LinkChoice) -> Result<(Links, &'static str), Error> {
    if matches!(choice, LinkChoice::Auto | LinkChoice::Shm) {
        let mut link = ShmLink::bind(local).map_err(at("shared-memory", local))?;
        match link.connect(node) {
            Ok(true) => return Ok((vec![Box::new(link)], "shm")),
            Ok(false) if choice == LinkChoice::Auto => {}
            Err(_) if choice == LinkChoice::Auto => {}
            Ok(false) => {
                let why = std::io::Error::other(
                    "no node of this user listens there in this network namespace: \
                     start `remora node` on this host, or use the udp link",
                );
                return Err(at("shared-memory", node)(why));
            }
            Err(e) => return Err(at("shared-memory", node)(e)),
        }
    }
    if choice == LinkChoice::Packet {
        return Ok((vec![Box::new(PacketLink::bind(local).map_err(at("packet", local))?)], "packet"));
    }
    Ok((vec![Box::new(UdpLink::bind(local).map_err(at("udp", local))?)], "udp"))
}
