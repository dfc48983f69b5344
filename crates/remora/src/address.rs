//! Addresses as people write them, and addresses of our own.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

use remora_real::{Error, LinkKind};

use crate::Result;

/// The port of RoCE v2, the same for all nodes: they are told apart by their addresses.
const PORT: u16 = 4791;
/// Addresses of our own that are tried before giving up.
const TRIES: u32 = 64;

/// What can name a node: an IP address, or a string with one or with a host's name. There is no port: RoCE v2 has one.
pub trait ToAddress {
    /// The address, looked up if it is a name.
    fn to_address(&self) -> Result<IpAddr>;
}

impl ToAddress for IpAddr {
    fn to_address(&self) -> Result<IpAddr> {
        Ok(*self)
    }
}

impl ToAddress for Ipv4Addr {
    fn to_address(&self) -> Result<IpAddr> {
        Ok((*self).into())
    }
}

impl ToAddress for Ipv6Addr {
    fn to_address(&self) -> Result<IpAddr> {
        Ok((*self).into())
    }
}

impl ToAddress for str {
    fn to_address(&self) -> Result<IpAddr> {
        if let Ok(address) = self.parse() {
            return Ok(address);
        }
        let unknown = |why: String| {
            Error::Argument(format!(
                "{self:?} is neither an IP address nor a host's name ({why}): write one such as 10.0.0.1, without a port"
            ))
        };
        let mut found = (self, PORT).to_socket_addrs().map_err(|e| unknown(e.to_string()))?;
        found.next().map(|address| address.ip()).ok_or_else(|| unknown("it has no address".into()))
    }
}

impl ToAddress for String {
    fn to_address(&self) -> Result<IpAddr> {
        self.as_str().to_address()
    }
}

impl<T: ToAddress + ?Sized> ToAddress for &T {
    fn to_address(&self) -> Result<IpAddr> {
        (**self).to_address()
    }
}

/// Does something with an address of this machine from which `node` can be reached. On loopback that is one of
/// 127.0.0.0/8 that nobody uses: another is tried when one turns out to be somebody's.
pub(crate) fn with_local<T>(node: IpAddr, mut attempt: impl FnMut(IpAddr) -> Result<T>) -> Result<T> {
    if !(node.is_loopback() && node.is_ipv4()) {
        return attempt(towards(node)?);
    }
    with_loopback(|local| match local == node {
        true => Err(taken(local)),
        false => attempt(local),
    })
}

/// Does something with an address of 127.0.0.0/8 that nobody uses.
pub(crate) fn with_loopback<T>(mut attempt: impl FnMut(IpAddr) -> Result<T>) -> Result<T> {
    let mut tries = 0;
    loop {
        tries += 1;
        let [a, b, c, ..] = remora_real::entropy()?;
        // Below 127.64 are addresses that people type.
        let local = Ipv4Addr::new(127, a | 64, b, c.clamp(1, 254)).into();
        let free = UdpSocket::bind((local, PORT)).map(drop).map_err(|source| Error::Link {
            link: LinkKind::Udp,
            address: local,
            source,
        });
        match free.and_then(|()| attempt(local)) {
            Err(Error::Link { address, source, .. })
                if tries < TRIES && address == local && source.kind() == ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
}

fn taken(address: IpAddr) -> Error {
    Error::Link { link: LinkKind::Udp, address, source: ErrorKind::AddrInUse.into() }
}

/// The address by which this machine reaches `node`.
fn towards(node: IpAddr) -> Result<IpAddr> {
    let any: IpAddr = if node.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((node, PORT)).map(|()| socket));
    let local = socket.and_then(|socket| socket.local_addr());
    local.map(|address| address.ip()).map_err(|source| Error::Link { link: LinkKind::Udp, address: node, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_addresses_in_many_ways() {
        let ten: IpAddr = Ipv4Addr::new(10, 0, 0, 1).into();
        assert_eq!("10.0.0.1".to_address().unwrap(), ten);
        assert_eq!(String::from("10.0.0.1").to_address().unwrap(), ten);
        assert_eq!(ten.to_address().unwrap(), ten);
        assert_eq!("::1".to_address().unwrap(), IpAddr::from(Ipv6Addr::LOCALHOST));
        assert!("localhost".to_address().unwrap().is_loopback());
        let error = "10.0.0.1:4791".to_address().unwrap_err().to_string();
        assert!(error.contains("without a port"), "{error}");
    }

    #[test]
    fn an_address_in_use_is_not_the_last_word() {
        let mut seen = Vec::new();
        let found = with_loopback(|local| {
            seen.push(local);
            if seen.len() < 3 { Err(taken(local)) } else { Ok(local) }
        });
        assert_eq!(found.unwrap(), seen[2]);
        assert!(with_loopback(|local| Err::<(), _>(taken(local))).is_err(), "it gives up in the end");
        let node = Ipv4Addr::LOCALHOST.into();
        assert_ne!(with_local(node, Ok).unwrap(), node);
    }
}
