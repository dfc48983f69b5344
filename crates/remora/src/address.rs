//! Addresses as people write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};

use remora_real::Error;

use crate::Result;

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
        let mut found = (self, 0).to_socket_addrs().map_err(|e| unknown(e.to_string()))?;
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
}
