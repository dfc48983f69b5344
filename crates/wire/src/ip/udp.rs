//! UDP.

use std::net::IpAddr;

use super::{PROTOCOL_UDP, finish, sum};
use crate::ParseError;
use crate::field::{be16, front, front_mut, put};

/// UDP header (RFC 768).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Udp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of this header and the payload.
    pub len: u16,
    /// Checksum; 0 is none, which is what RoCE v2 sends.
    pub checksum: u16,
}

/// The addresses that a UDP checksum covers beside the datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PseudoHeader {
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
}

impl Udp {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer, or if the length is under the header's or
    /// over what is there. The checksum is for [`PseudoHeader::checksum`]: with offload, captures hold part of it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("UDP", bytes)?;
        let len = be16(b, 4);
        if usize::from(len) < Self::LEN {
            return Err(ParseError::Field {
                header: "UDP",
                field: "length",
                value: len.into(),
                expected: "at least 8",
            });
        }
        if usize::from(len) > bytes.len() {
            return Err(ParseError::Truncated { header: "UDP datagram", need: len.into(), got: bytes.len() });
        }
        Ok(Self { src_port: be16(b, 0), dst_port: be16(b, 2), len, checksum: be16(b, 6) })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        for (at, value) in [self.src_port, self.dst_port, self.len, self.checksum].into_iter().enumerate() {
            put(out, at * 2, value.to_be_bytes());
        }
    }
}

impl PseudoHeader {
    /// The checksum of a whole datagram, whatever its checksum field holds; never 0. A datagram shorter than its header
    /// is summed as it is.
    pub fn checksum(&self, datagram: &[u8]) -> u16 {
        let address = |address| match address {
            IpAddr::V4(v4) => sum(&v4.octets()),
            IpAddr::V6(v6) => sum(&v6.octets()),
        };
        let (head, tail) = datagram.split_at(datagram.len().min(6));
        let total = address(self.src)
            + address(self.dst)
            + u64::from(PROTOCOL_UDP)
            + datagram.len() as u64
            + sum(head)
            + sum(tail.get(2..).unwrap_or_default());
        match finish(total) {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// All ones add nothing, so that length and protocol are left: 3412 modulo 65535. A sum of 32 bits would overflow.
    #[test]
    fn no_carry_is_lost_however_long_the_bytes() {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let header = PseudoHeader { src: nowhere, dst: nowhere };
        assert_eq!(header.checksum(&[0xff; 200_000]), !3412);
    }
}
