//! Ethernet II.

use crate::ParseError;
use crate::field::{array, be16, front, front_mut, put};

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Ethernet II header, without VLAN tag and without frame check sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ethernet {
    /// Destination.
    pub dst: [u8; 6],
    /// Source.
    pub src: [u8; 6],
    /// What follows.
    pub ethertype: u16,
}

impl Ethernet {
    /// Bytes on the wire.
    pub const LEN: usize = 14;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("Ethernet", bytes)?;
        Ok(Self { dst: array(b, 0), src: array(b, 6), ethertype: be16(b, 12) })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        put(out, 0, self.dst);
        put(out, 6, self.src);
        put(out, 12, self.ethertype.to_be_bytes());
    }
}
