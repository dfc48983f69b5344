//! The header that rdma_cm puts at the front of a REQ's private data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ParseError;
use crate::field::{array, be16, front, front_mut, put};

/// IP addressing of a request for communication (annex A11): who calls whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RdmaCmHeader {
    /// Port of the caller.
    pub src_port: u16,
    /// Address of the caller.
    pub src: IpAddr,
    /// Address of the called, of the same family.
    pub dst: IpAddr,
}

impl RdmaCmHeader {
    /// Bytes at the front of the private data.
    pub const LEN: usize = 36;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer, or if the version is not 0.0 or the address
    /// family neither 4 nor 6.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        const HEADER: &str = "RDMA CM header";
        let b = front::<{ Self::LEN }>(HEADER, bytes)?;
        let wrong = |field, value: u8, expected| {
            Err(ParseError::Field { header: HEADER, field, value: value.into(), expected })
        };
        if b[0] != 0 {
            return wrong("version", b[0], "0");
        }
        // An IPv4 address stands in the last four of sixteen bytes.
        let address = |at: usize| match b[1] >> 4 {
            4 => IpAddr::V4(Ipv4Addr::from(array::<4>(b, at + 12))),
            _ => IpAddr::V6(Ipv6Addr::from(array::<16>(b, at))),
        };
        match b[1] >> 4 {
            4 | 6 => Ok(Self { src_port: be16(b, 2), src: address(4), dst: address(20) }),
            family => wrong("IP version", family, "4 or 6"),
        }
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter. Two IPv4 addresses are written as such; else
    /// both are IPv6, an IPv4 address mapped into it.
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        out.fill(0);
        put(out, 2, self.src_port.to_be_bytes());
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                out[1] = 0x40;
                put(out, 16, src.octets());
                put(out, 32, dst.octets());
            }
            (src, dst) => {
                out[1] = 0x60;
                put(out, 4, to_v6(src).octets());
                put(out, 20, to_v6(dst).octets());
            }
        }
    }
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
