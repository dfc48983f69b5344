//! Which links a device has, and which of them reaches a peer.

use std::io;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use remora_nic::Lane;

use crate::device::Numbers;
use crate::link::shm::{ShmLink, ShmPort};
use crate::link::udp::{UdpLink, UdpPort};
use crate::link::{Layers, Link, LinkKind};
use crate::{ClientConfig, Error};

/// The links of one device; routes name them by their places.
pub(crate) type Links = Vec<Box<dyn Link>>;

/// A link of this kind, with its layers.
pub(crate) fn bind(kind: LinkKind, local: IpAddr, layers: &Layers) -> Result<Box<dyn Link>, Error> {
    layers.bind(kind, local).map_err(Error::link(kind, local))
}

/// The links of a node, which serves peers on any of them: those of each of so many engines, and what its numbers begin with.
pub(crate) fn node_links(
    local: IpAddr,
    packet: bool,
    layers: &Layers,
    engines: u16,
) -> Result<Vec<(Numbers, Links)>, Error> {
    let mut all: Vec<(Numbers, Links)> = if packet {
        if engines != 1 {
            return Err(Error::Argument("packet sockets serve one engine: use the UDP link for several".into()));
        }
        vec![(Numbers::default(), vec![bind(LinkKind::Packet, local, layers)?])]
    } else {
        let open = |port: UdpPort| Ok((port.numbers(), vec![layers.around(Box::new(UdpLink::at(port)?), local)]));
        let ports = UdpPort::bind(local, engines).and_then(|ports| ports.into_iter().map(open).collect());
        ports.map_err(Error::link(LinkKind::Udp, local))?
    };
    // Shared memory is found by the address that the peer calls; the wildcard is nobody's.
    if !local.is_unspecified() {
        let ports = ShmPort::bind(local, engines).map_err(Error::link(LinkKind::Shm, local))?;
        for ((_, links), port) in all.iter_mut().zip(ports) {
            links.push(layers.around(Box::new(ShmLink::at(port)), local));
        }
    }
    Ok(all)
}

/// The link of a client: of the kind that is asked for, or else shared memory if the node is on this host and lets us, and UDP
/// if not. And what its device's numbers begin with.
pub(crate) fn client_link(config: &ClientConfig) -> Result<(Box<dyn Link>, Numbers), Error> {
    let ClientConfig { local, node, layers, .. } = config;
    if let Some(port) = &config.port {
        let wrong = port.ip() != *local || config.link.is_some_and(|kind| kind != LinkKind::Udp);
        if wrong {
            return Err(Error::Argument(format!("the port is one of {}, over UDP", port.ip())));
        }
        let link = UdpLink::at(port.clone()).map_err(Error::link(LinkKind::Udp, *local))?;
        return Ok((layers.around(Box::new(link), *local), port.numbers()));
    }
    let numbers = Numbers { ids: in_turn(), ..Numbers::default() };
    let kind = config.link.unwrap_or(LinkKind::Shm);
    let mut link = bind(kind, *local, layers)?;
    match link.reach(*node) {
        Ok(true) => Ok((link, numbers)),
        _ if config.link.is_none() => Ok((bind(LinkKind::Udp, *local, layers)?, numbers)),
        Ok(false) => {
            let why = "no node of this user listens there in this network namespace: start `remora node` on this host, \
                       or use the udp link";
            Err(Error::link(kind, *node)(io::Error::other(why)))
        }
        Err(e) => Err(Error::link(kind, *node)(e)),
    }
}

/// What the next connection's numbers begin with: those of one process spread over a node's engines.
fn in_turn() -> Lane {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    static FIRST: OnceLock<u8> = OnceLock::new();
    // Other processes begin elsewhere.
    let first = FIRST.get_or_init(|| crate::entropy().map_or(0, |bytes| bytes[0]));
    let byte = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(*first);
    Lane::new(byte, Lane::MOST).unwrap_or_default()
}
