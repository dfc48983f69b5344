//! IPv6.

use std::net::Ipv6Addr;

use crate::ParseError;
use crate::field::{array, be16, be32, front, front_mut, put};

/// IPv6 header (RFC 8200). Extension headers are payload to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv6 {
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// What follows; 17 is UDP.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

impl Ipv6 {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer, if the version is not 6, or if the payload
    /// length says more than is there.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("IPv6", bytes)?;
        if b[0] >> 4 != 6 {
            let value = u64::from(b[0] >> 4);
            return Err(ParseError::Field { header: "IPv6", field: "version", value, expected: "6" });
        }
        let payload_len = be16(b, 4);
        let need = Self::LEN + usize::from(payload_len);
        if need > bytes.len() {
            return Err(ParseError::Truncated { header: "IPv6 packet", need, got: bytes.len() });
        }
        let word = be32(b, 0);
        Ok(Self {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            payload_len,
            next_header: b[6],
            hop_limit: b[7],
            src: array::<16>(b, 8).into(),
            dst: array::<16>(b, 24).into(),
        })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put(out, 0, word.to_be_bytes());
        put(out, 4, self.payload_len.to_be_bytes());
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        put(out, 8, self.src.octets());
        put(out, 24, self.dst.octets());
    }
}
