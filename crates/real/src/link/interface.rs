//! The network interface that owns an address: its index and MTU.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

/// A network interface of this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub index: u32,
    /// Longest IP packet in bytes.
    pub mtu: usize,
}

/// The interface that `ip` stands on, or belongs to as 127.0.0.2 does to `lo`.
///
/// # Errors
///
/// `AddrNotAvailable` if no interface that is up has the address.
pub(super) fn owning(ip: IpAddr) -> io::Result<Interface> {
    match interface_of(ip)? {
        Some(name) => describe(&name),
        None => {
            let message = format!("{ip} is no address of an interface that is up; `ip address` lists them");
            Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message))
        }
    }
}

/// The name of the interface that `ip` stands on, or belongs to as 127.0.0.2 does to `lo`; `None` if no interface that is
/// up has it.
///
/// # Errors
///
/// What getifaddrs(3) says.
pub fn interface_of(ip: IpAddr) -> io::Result<Option<String>> {
    let addresses = addresses()?;
    let owner = addresses.iter().find(|a| a.ip == ip).or_else(|| addresses.iter().find(|a| a.loopback && a.covers(ip)));
    Ok(owner.map(|owner| owner.name.clone()))
}

/// The smallest MTU of the interfaces that are up, loopback left out unless it is alone.
pub(super) fn smallest_mtu() -> io::Result<usize> {
    let addresses = addresses()?;
    let outward = addresses.iter().any(|a| !a.loopback);
    let mut smallest = usize::MAX;
    for address in addresses.iter().filter(|a| !(outward && a.loopback)) {
        smallest = smallest.min(describe(&address.name)?.mtu);
    }
    Ok(if smallest == usize::MAX { 1500 } else { smallest })
}

/// The networks that interfaces of this host stand in.
pub(super) struct Networks(Vec<Address>);

impl Networks {
    /// As they are now.
    ///
    /// # Errors
    ///
    /// What getifaddrs(3) says.
    pub fn ask() -> io::Result<Self> {
        addresses().map(Self)
    }

    /// Whether an address is of one of them, so that no router lies between. Of IPv6 and of groups that is not asked: they
    /// always are.
    pub fn has(&self, ip: IpAddr) -> bool {
        ip.is_ipv6() || ip.is_loopback() || ip.is_multicast() || self.0.iter().any(|a| a.covers(ip))
    }
}

struct Address {
    name: String,
    loopback: bool,
    ip: IpAddr,
    mask: IpAddr,
}

impl Address {
    fn covers(&self, other: IpAddr) -> bool {
        match (self.ip, self.mask, other) {
            (IpAddr::V4(ip), IpAddr::V4(mask), IpAddr::V4(other)) => ip & mask == other & mask,
            _ => false,
        }
    }
}

/// The IP addresses of the interfaces that are up.
fn addresses() -> io::Result<Vec<Address>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: getifaddrs(3) stores a list there, or fails and stores nothing that is read.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: `at` is null or an entry of the list, which is freed only below.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        let flags = entry.ifa_flags as i32;
        // SAFETY: the addresses of an entry are null or valid socket addresses of their family.
        let (ip, mask) = unsafe { (ip_of(entry.ifa_addr), ip_of(entry.ifa_netmask)) };
        if let (Some(ip), Some(mask), true) = (ip, mask, flags & libc::IFF_UP != 0) {
            // SAFETY: the name is a C string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
            found.push(Address { name, loopback: flags & libc::IFF_LOOPBACK != 0, ip, mask });
        }
    }
    // SAFETY: the list came from getifaddrs, and nothing above kept a reference into it.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
///
/// `address` is null or points to a socket address as long as its family says.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: by the contract the family is there, and after it what the family says.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = &*address.cast::<libc::sockaddr_in>();
                Some(IpAddr::V4(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes())))
            }
            libc::AF_INET6 => {
                let v6 = &*address.cast::<libc::sockaddr_in6>();
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

/// Asks by ioctl, which answers for the thread's network namespace; /sys would for that of its mount.
fn describe(name: &str) -> io::Result<Interface> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .or_else(|_| std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)))?;
    let ask = |request: libc::c_ulong| -> io::Result<libc::ifreq> {
        // SAFETY: an ifreq is plain integers, for which zero is valid.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in ifreq.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
            *to = from as libc::c_char;
        }
        // SAFETY: the SIOCGIF requests read and write one ifreq. C libraries differ in the request's type.
        match unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &mut ifreq) } {
            0 => Ok(ifreq),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: each request filled in the member of the union that is read.
    let (index, mtu) =
        unsafe { (ask(libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex, ask(libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu) };
    Ok(Interface { index: index as u32, mtu: mtu as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_127_stands_on_lo() {
        for ip in [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 9, 8, 7)] {
            let lo = owning(ip.into()).unwrap();
            assert!(lo.index > 0 && lo.mtu >= 1500, "{lo:?}");
        }
    }

    #[test]
    fn an_address_of_nobody_is_refused() {
        let error = owning(Ipv4Addr::new(192, 0, 2, 1).into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(error.to_string().contains("192.0.2.1"));
    }
}
