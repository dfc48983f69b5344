//! The invariant CRC of RoCE v2 (annex A17): CRC-32 over what no router may change.
//!
//! It starts with 8 bytes of ones, where an InfiniBand packet has its local route header, and covers the packet from
//! the IP header through payload and padding. Type of service, time to live, the IP and UDP checksums and byte 4 of the
//! BTH count as ones; over IPv6 traffic class, flow label and hop limit. It is stored with its low byte first.
//!
//! It covers the IP identification, which a UDP socket neither chooses nor sees: see [`IcrcFlow::verify`].

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::crc::{field, rewind, update};
use crate::ip::{Ipv4, Ipv6, PROTOCOL_UDP, Udp};
use crate::{Bth, ICRC_LEN, ParseError, UDP_PORT};

/// Byte of the BTH that holds FECN, BECN and 6 reserved bits.
const BTH_MASKED: usize = 4;
/// Bytes of IPv4 and UDP header.
const V4: usize = Ipv4::LEN + Udp::LEN;
/// Bytes of IPv6 and UDP header.
const V6: usize = Ipv6::LEN + Udp::LEN;

static V4_TOTAL_LEN: [[u32; 256]; 2] = field(V4 - 2);
static V4_ID: [[u32; 256]; 2] = field(V4 - 4);
static V6_PAYLOAD_LEN: [[u32; 256]; 2] = field(V6 - 4);
static UDP_LEN: [[u32; 256]; 2] = field(4);

/// What [`IcrcFlow::verify`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IcrcVerdict {
    /// Right, with the IP identification that was expected: a check of 32 bits.
    Good,
    /// Right if the packet had this IP identification: a check of 16 bits.
    GoodWithId(u16),
    /// Wrong, or too short to have one.
    Bad,
}

/// Packets from one address and port to another: the constant part of their headers, summed up.
///
/// It takes "do not fragment" to be set and a header without options, which is what RoCE v2 implementations send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcrcFlow {
    /// State after the headers, lengths and identification taken for 0.
    headers: u32,
    v4: bool,
}

impl IcrcFlow {
    /// Packets over IPv4; `dst_port` is [`UDP_PORT`] but for captures that say otherwise.
    pub fn v4(src: Ipv4Addr, dst: Ipv4Addr, src_port: u16, dst_port: u16) -> Self {
        let ip = Ipv4 { tos: 0, total_len: 0, id: 0, dont_fragment: true, ttl: 0, protocol: PROTOCOL_UDP, src, dst };
        let mut headers = [0; V4];
        ip.emit(&mut headers);
        Udp { src_port, dst_port, len: 0, checksum: 0 }.emit(&mut headers[Ipv4::LEN..]);
        Self { headers: masked_v4(&headers), v4: true }
    }

    /// Packets over IPv6.
    pub fn v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16, dst_port: u16) -> Self {
        let ip =
            Ipv6 { traffic_class: 0, flow_label: 0, payload_len: 0, next_header: PROTOCOL_UDP, hop_limit: 0, src, dst };
        let mut headers = [0; V6];
        ip.emit(&mut headers);
        Udp { src_port, dst_port, len: 0, checksum: 0 }.emit(&mut headers[Ipv6::LEN..]);
        Self { headers: masked_v6(&headers), v4: false }
    }

    /// The ICRC of a packet, BTH to padding, that goes out with this IP identification (ignored over IPv6). Bytes that
    /// are too few for a BTH have none: the result says nothing.
    #[inline]
    pub fn compute(&self, ip_id: u16, packet_without_icrc: &[u8]) -> u32 {
        let udp_len = (Udp::LEN + packet_without_icrc.len() + ICRC_LEN) as u16;
        let mut state = self.headers ^ add(&UDP_LEN, udp_len);
        if self.v4 {
            state ^= add(&V4_TOTAL_LEN, udp_len.wrapping_add(Ipv4::LEN as u16)) ^ add(&V4_ID, ip_id);
        } else {
            state ^= add(&V6_PAYLOAD_LEN, udp_len);
        }
        !transport(state, packet_without_icrc)
    }

    /// Writes the ICRC into the last four bytes of `packet`. Panics if it is shorter than those.
    #[inline]
    pub fn fill(&self, ip_id: u16, packet: &mut [u8]) {
        let Some((body, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() else {
            panic!("a packet of {} bytes has no room for its ICRC", packet.len())
        };
        *icrc = self.compute(ip_id, body).to_le_bytes();
    }

    /// Checks a packet whose IP identification is probably `ip_id_hint`.
    ///
    /// If the ICRC is wrong for that one, it may be right for another. CRC is linear: the difference between the ICRC
    /// in the packet and the computed one is the difference of the identifications, moved on by the bytes between them
    /// and the end. Moving it back leaves 32 bits; if the high half is zero, the low half is the difference, and no
    /// other identification fits. A damaged packet passes by this way with a probability of 2^-16, not 2^-32. Who
    /// cannot live with that refuses [`IcrcVerdict::GoodWithId`], or reads the IP header and uses [`verify_ip`].
    #[inline]
    pub fn verify(&self, ip_id_hint: u16, packet: &[u8]) -> IcrcVerdict {
        let Some((body, icrc)) = packet.split_last_chunk::<ICRC_LEN>() else {
            return IcrcVerdict::Bad;
        };
        if body.len() < Bth::LEN {
            return IcrcVerdict::Bad;
        }
        match self.compute(ip_id_hint, body) ^ u32::from_le_bytes(*icrc) {
            0 => IcrcVerdict::Good,
            difference if self.v4 => explain(ip_id_hint, difference, body.len()),
            _ => IcrcVerdict::Bad,
        }
    }
}

/// The IP identification with which `difference` to the ICRC for `hint` would be none.
#[cold]
fn explain(hint: u16, difference: u32, body: usize) -> IcrcVerdict {
    // To the state in which the identification's bytes are the next two: they enter in the register's low half.
    match rewind(difference, V4 - 4 + body).map(u16::try_from) {
        Some(Ok(bytes)) => IcrcVerdict::GoodWithId(hint ^ u16::from_be_bytes(bytes.to_le_bytes())),
        _ => IcrcVerdict::Bad,
    }
}

/// The ICRC that belongs on a whole IP packet of a capture or a raw socket, with the headers that it has. The last four
/// bytes of the UDP payload are where it stands and are not covered; bytes after the IP packet are ignored.
///
/// Fails if it is not an intact UDP datagram to [`UDP_PORT`] over IPv4 or IPv6 (no extension headers) that has room for
/// a BTH and an ICRC.
pub fn compute_ip(packet: &[u8]) -> Result<u32, ParseError> {
    Ok(split_ip(packet)?.0)
}

/// Whether the ICRC of a whole IP packet is right. Fails as [`compute_ip`] does.
pub fn verify_ip(packet: &[u8]) -> Result<bool, ParseError> {
    let (computed, icrc) = split_ip(packet)?;
    Ok(computed == icrc)
}

/// Computed and actual ICRC.
fn split_ip(packet: &[u8]) -> Result<(u32, u32), ParseError> {
    let expect = |field, value: u16, expected, is: bool| match is {
        true => Ok(()),
        false => Err(ParseError::Field { header: "RoCE v2", field, value: value.into(), expected }),
    };
    let v4 = packet.first().is_none_or(|b| b >> 4 == 4);
    let (protocol, ip_len, end) = if v4 {
        let ip = Ipv4::parse(packet)?;
        (ip.protocol, Ipv4::LEN, ip.total_len.into())
    } else {
        let ip = Ipv6::parse(packet)?;
        (ip.next_header, Ipv6::LEN, Ipv6::LEN + usize::from(ip.payload_len))
    };
    expect("IP protocol", protocol.into(), "17 (UDP)", protocol == PROTOCOL_UDP)?;
    let datagram = &packet[ip_len..end];
    let udp = Udp::parse(datagram)?;
    expect("UDP port", udp.dst_port, "4791", udp.dst_port == UDP_PORT)?;
    // The ICRC covers one length field as it does the other; a datagram shorter than its packet has no place for it.
    expect("UDP length", udp.len, "that of the IP packet", usize::from(udp.len) == datagram.len())?;
    let payload = &datagram[Udp::LEN..];
    let (need, got) = (Bth::LEN + ICRC_LEN, payload.len());
    let short = ParseError::Truncated { header: "BTH and ICRC", need, got };
    let (body, icrc) = payload.split_last_chunk::<ICRC_LEN>().filter(|(b, _)| b.len() >= Bth::LEN).ok_or(short)?;
    let state =
        if v4 { masked_v4(packet.first_chunk().ok_or(short)?) } else { masked_v6(packet.first_chunk().ok_or(short)?) };
    Ok((!transport(state, body), u32::from_le_bytes(*icrc)))
}

/// State after the ones and the headers.
fn masked_v4(headers: &[u8; V4]) -> u32 {
    let mut masked = *headers;
    for at in [1, 8, 10, 11, V4 - 2, V4 - 1] {
        masked[at] = 0xff;
    }
    update(update(!0, &[0xff; 8]), &masked)
}

/// State after the ones and the headers.
fn masked_v6(headers: &[u8; V6]) -> u32 {
    let mut masked = *headers;
    masked[0] |= 0x0f;
    for at in [1, 2, 3, 7, V6 - 2, V6 - 1] {
        masked[at] = 0xff;
    }
    update(update(!0, &[0xff; 8]), &masked)
}

/// State after a packet's BTH, extension headers, payload and padding.
#[inline]
fn transport(state: u32, packet: &[u8]) -> u32 {
    let Some((bth, rest)) = packet.split_first_chunk::<{ Bth::LEN }>() else {
        return update(state, packet); // No packet; any value does.
    };
    let mut masked = *bth;
    masked[BTH_MASKED] = 0xff;
    update(update(state, &masked), rest)
}

/// What a field adds to the state at the end of the headers.
#[inline(always)]
fn add(tables: &[[u32; 256]; 2], value: u16) -> u32 {
    let [high, low] = value.to_be_bytes().map(usize::from);
    tables[0][high] ^ tables[1][low]
}
