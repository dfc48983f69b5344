//! Addresses of our own, for whoever has none in mind.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use remora_wire::UDP_PORT;

use crate::link::LinkKind;
use crate::{Error, entropy};

/// Addresses that are tried before giving up.
const TRIES: u32 = 64;

/// Does something with an address of this machine from which `node` can be reached: the one that routing chooses, or,
/// towards a node on this machine, one of 127.0.0.0/8 that nobody uses, as [`at_free_loopback`] does. IPv6 has no such
/// addresses: there a client needs one of the machine's others.
pub fn at_local<T>(node: IpAddr, mut attempt: impl FnMut(IpAddr) -> Result<T, Error>) -> Result<T, Error> {
    if !(node.is_loopback() && node.is_ipv4()) {
        let local = local_towards(node)?;
        if local != node {
            return attempt(local);
        }
        if node.is_ipv6() {
            return Err(Error::SameAddress(node));
        }
    }
    at_free_loopback(|local| match local == node {
        true => Err(taken(local)),
        false => attempt(local),
    })
}

/// Does something with an address of 127.0.0.0/8 that nobody uses for RoCE v2. Another is tried when one turns out to be
/// somebody's after all.
pub fn at_free_loopback<T>(mut attempt: impl FnMut(IpAddr) -> Result<T, Error>) -> Result<T, Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        let [a, b, c, ..] = entropy()?;
        // Below 127.64 are addresses that people type.
        let local = Ipv4Addr::new(127, 64 | a >> 1, b, c.clamp(1, 254)).into();
        let free = UdpSocket::bind((local, UDP_PORT));
        let free = free.map_err(Error::link(LinkKind::Udp, local));
        // The socket is closed before the attempt, which may want the port.
        match free.map(drop).and_then(|()| attempt(local)) {
            Err(Error::Link { address, source, .. })
                if tries < TRIES && address == local && source.kind() == ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
}

/// So many different addresses of 127.0.0.0/8 that nobody uses for RoCE v2.
pub fn free_loopbacks(count: usize) -> Result<Vec<IpAddr>, Error> {
    let mut addresses = Vec::with_capacity(count);
    while addresses.len() < count {
        addresses.push(at_free_loopback(|local| match addresses.contains(&local) {
            true => Err(taken(local)),
            false => Ok(local),
        })?);
    }
    Ok(addresses)
}

fn taken(address: IpAddr) -> Error {
    Error::link(LinkKind::Udp, address)(ErrorKind::AddrInUse.into())
}

/// The address by which this machine reaches `node`.
pub fn local_towards(node: IpAddr) -> Result<IpAddr, Error> {
    let any: IpAddr = if node.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((node, UDP_PORT)).map(|()| socket));
    let local = socket.and_then(|socket| socket.local_addr());
    local.map(|address| address.ip()).map_err(|e| Error::Argument(format!("there is no way to {node}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_not_the_last_word() {
        let mut seen = Vec::new();
        let found = at_free_loopback(|local| {
            seen.push(local);
            if seen.len() < 3 { Err(taken(local)) } else { Ok(local) }
        });
        assert_eq!(found.unwrap(), seen[2]);
        assert!(at_free_loopback(|local| Err::<(), _>(taken(local))).is_err(), "it gives up in the end");
    }

    #[test]
    fn the_own_address_is_another_than_the_node_s() {
        let node = Ipv4Addr::LOCALHOST.into();
        let local = at_local(node, Ok).unwrap();
        assert!(local != node && local.is_loopback());
        assert!(matches!(at_local(Ipv6Addr::LOCALHOST.into(), Ok), Err(Error::SameAddress(_))));
    }
}
