//! What is in front of a RoCE v2 packet: Ethernet, IPv4 or IPv6, UDP.
//!
//! For captures, raw sockets and packet taps; a UDP socket leaves all of it to the kernel.

mod ethernet;
mod ipv4;
mod ipv6;
mod udp;

pub use ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet};
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use udp::{PseudoHeader, Udp};

use crate::field::be16;

/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// Ones' complement sum of 16-bit words (RFC 1071), an odd byte padded with zero, not yet complemented.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let (words, odd) = bytes.as_chunks::<2>();
    let odd = odd.first().map_or(0, |b| u32::from(*b) << 8);
    // 65535 bytes of 0xffff words stay under 2^31: no carry is lost.
    words.iter().map(|w| u32::from(be16(w, 0))).sum::<u32>() + odd
}

/// Folds the carries of [`sum`]s in and complements.
pub(crate) fn finish(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
