//! Which links a device has, and which of them reaches a peer.

use std::net::IpAddr;

use crate::Error;
use crate::link::packet::PacketLink;
use crate::link::shm::ShmLink;
use crate::link::udp::UdpLink;
use crate::link::{Link, LinkKind};

/// The links of one device; routes name them by their places.
pub(crate) type Links = Vec<Box<dyn Link>>;

fn at(link: LinkKind, address: IpAddr) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Link { link, address, source }
}

/// The links of a node, which serves peers on any of them.
pub(crate) fn node_links(local: IpAddr, packet: bool) -> Result<Links, Error> {
    let mut links: Vec<Box<dyn Link>> = Vec::new();
    if packet {
        links.push(Box::new(PacketLink::bind(local).map_err(at(LinkKind::Packet, local))?));
    } else {
        links.push(Box::new(UdpLink::bind(local).map_err(at(LinkKind::Udp, local))?));
    }
    // Shared memory is found by the address that the peer calls; the wildcard is nobody's.
    if !local.is_unspecified() {
        links.push(Box::new(ShmLink::bind(local).map_err(at(LinkKind::Shm, local))?));
    }
    Ok(links)
}

/// The link of a client at `local` that talks to `node`: of the kind `choice`, or else shared memory if the node is on
/// this host and lets us, and UDP if not.
pub(crate) fn client_link(local: IpAddr, node: IpAddr, choice: Option<LinkKind>) -> Result<Box<dyn Link>, Error> {
    if matches!(choice, None | Some(LinkKind::Shm)) {
        let mut link = ShmLink::bind(local).map_err(at(LinkKind::Shm, local))?;
        match link.connect(node) {
            Ok(true) => return Ok(Box::new(link)),
            Ok(false) | Err(_) if choice.is_none() => {}
            Ok(false) => {
                let why = std::io::Error::other(
                    "no node of this user listens there in this network namespace: \
                     start `remora node` on this host, or use the udp link",
                );
                return Err(at(LinkKind::Shm, node)(why));
            }
            Err(e) => return Err(at(LinkKind::Shm, node)(e)),
        }
    }
    match choice {
        Some(LinkKind::Packet) => Ok(Box::new(PacketLink::bind(local).map_err(at(LinkKind::Packet, local))?)),
        Some(LinkKind::Loopback) => Err(Error::Argument("the loopback link reaches no other process".into())),
        None | Some(LinkKind::Udp | LinkKind::Shm) => {
            Ok(Box::new(UdpLink::bind(local).map_err(at(LinkKind::Udp, local))?))
        }
    }
}
