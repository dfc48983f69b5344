//! IPv4.

use std::net::Ipv4Addr;

use super::{finish, sum};
use crate::ParseError;
use crate::field::{array, be16, front, front_mut, put};

/// IPv4 header (RFC 791) without options, which RoCE v2 does not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv4 {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Bytes of the IP packet, this header included.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Do not fragment.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Protocol; 17 is UDP.
    pub protocol: u8,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer, on options, on a fragment, on a total length
    /// under the header's or over what is there, and if the checksum is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("IPv4", bytes)?;
        let wrong = |field, value: u16, expected| {
            Err(ParseError::Field { header: "IPv4", field, value: value.into(), expected })
        };
        if b[0] != 0x45 {
            return wrong("version and header length", b[0].into(), "0x45 (version 4, no options)");
        }
        let total_len = be16(b, 2);
        if usize::from(total_len) < Self::LEN {
            return wrong("total length", total_len, "at least 20");
        }
        if usize::from(total_len) > bytes.len() {
            return Err(ParseError::Truncated { header: "IPv4 packet", need: total_len.into(), got: bytes.len() });
        }
        let flags = be16(b, 6);
        if flags & !0x4000 != 0 {
            return wrong("flags and fragment offset", flags, "0 or 0x4000 (do not fragment)");
        }
        let got = be16(b, 10);
        let computed = checksum(b);
        if got != computed {
            return Err(ParseError::Checksum { header: "IPv4", got, computed });
        }
        Ok(Self {
            tos: b[1],
            total_len,
            id: be16(b, 4),
            dont_fragment: flags != 0,
            ttl: b[8],
            protocol: b[9],
            src: array(b, 12).into(),
            dst: array(b, 16).into(),
        })
    }

    /// Writes [`LEN`](Self::LEN) bytes, checksum included; panics if `out` is shorter.
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        out[0] = 0x45;
        out[1] = self.tos;
        put(out, 2, self.total_len.to_be_bytes());
        put(out, 4, self.id.to_be_bytes());
        put(out, 6, (u16::from(self.dont_fragment) << 14).to_be_bytes());
        out[8] = self.ttl;
        out[9] = self.protocol;
        put(out, 12, self.src.octets());
        put(out, 16, self.dst.octets());
        let checksum = checksum(out);
        put(out, 10, checksum.to_be_bytes());
    }
}

/// The checksum of a header, whatever its checksum field holds.
fn checksum(header: &[u8; Ipv4::LEN]) -> u16 {
    finish(sum(&header[..10]) + sum(&header[12..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_roce_does_not_send_is_refused() {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let good = Ipv4 { tos: 0, total_len: 24, id: 7, dont_fragment: true, ttl: 64, protocol: 17, src, dst };
        let mut bytes = [0; 24];
        good.emit(&mut bytes);
        assert_eq!(Ipv4::parse(&bytes), Ok(good));
        for (at, value, refusal) in [
            (0, 0x46, "IPv4: version and header length is 0x46, not 0x45 (version 4, no options)"),
            (3, 19, "IPv4: total length is 0x13, not at least 20"),
            (3, 25, "IPv4 packet takes 25 bytes and only 24 are left: drop the packet, it was cut short"),
            (6, 0x20, "IPv4: flags and fragment offset is 0x2000, not 0 or 0x4000 (do not fragment)"),
            (16, 11, "IPv4: checksum is 0x26cc, its bytes say 0x25cc: damaged on the way"),
        ] {
            let mut bad = bytes;
            bad[at] = value;
            assert_eq!(Ipv4::parse(&bad).unwrap_err().to_string(), refusal);
        }
    }
}
