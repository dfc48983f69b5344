//! Which links a device has, and which of them reaches a peer.

use std::io;
use std::net::IpAddr;

use crate::Error;
use crate::link::{Layers, Link, LinkKind};

/// The links of one device; routes name them by their places.
pub(crate) type Links = Vec<Box<dyn Link>>;

/// A link of this kind, with its layers.
pub(crate) fn bind(kind: LinkKind, local: IpAddr, layers: &Layers) -> Result<Box<dyn Link>, Error> {
    layers.bind(kind, local).map_err(Error::link(kind, local))
}

/// The links of a node, which serves peers on any of them.
pub(crate) fn node_links(local: IpAddr, packet: bool, layers: &Layers) -> Result<Links, Error> {
    let network = if packet { LinkKind::Packet } else { LinkKind::Udp };
    let mut links = vec![bind(network, local, layers)?];
    // Shared memory is found by the address that the peer calls; the wildcard is nobody's.
    if !local.is_unspecified() {
        links.push(bind(LinkKind::Shm, local, layers)?);
    }
    Ok(links)
}

/// The link of a client at `local` that talks to `node`: of the kind `choice`, or else shared memory if the node is on
/// this host and lets us, and UDP if not.
pub(crate) fn client_link(
    local: IpAddr,
    node: IpAddr,
    choice: Option<LinkKind>,
    layers: &Layers,
) -> Result<Box<dyn Link>, Error> {
    let kind = choice.unwrap_or(LinkKind::Shm);
    let mut link = bind(kind, local, layers)?;
    match link.reach(node) {
        Ok(true) => Ok(link),
        _ if choice.is_none() => bind(LinkKind::Udp, local, layers),
        Ok(false) => {
            let why = "no node of this user listens there in this network namespace: start `remora node` on this host, \
                       or use the udp link";
            Err(Error::link(kind, node)(io::Error::other(why)))
        }
        Err(e) => Err(Error::link(kind, node)(e)),
    }
}
