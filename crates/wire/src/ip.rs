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
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let odd = odd.first().map_or(0, |b| u64::from(*b) << 8);
    // However long the slice, no carry is lost: 2^48 words fit.
    words.iter().map(|w| u64::from(be16(w, 0))).sum::<u64>() + odd
}

/// Folds the carries of [`sum`]s in and complements.
pub(crate) fn finish(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}
