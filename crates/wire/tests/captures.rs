//! Every packet of the captures in `vectors` parses, is emitted again to the same bytes, and its ICRC is right;
//! where the packet was damaged, it is refused.

#![allow(clippy::disallowed_methods, reason = "the captures are in files")]

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use remora_wire::cm::{CmMessage, Mad, RdmaCmHeader, Req};
use remora_wire::icrc::{self, IcrcFlow, IcrcVerdict};
use remora_wire::ip::{ETHERTYPE_IPV4, Ethernet, Ipv4, Ipv6, PROTOCOL_UDP, PseudoHeader, Udp};
use remora_wire::packet::Packet;
use remora_wire::{ParseError, Psn, UDP_PORT};

/// Captures with the RoCE v2 packets in them, of which damaged, and with those that connect queue pairs.
const CAPTURES: [(&str, Counts); 20] = [
    ("host_ib_read_lat_64", counts(400, 0, 0)),
    ("host_ib_read_lat_64k", counts(650, 0, 0)),
    ("host_rc_pingpong", counts(300, 0, 0)),
    ("host_rc_pingpong_64", counts(802, 0, 0)),
    ("host_udp", counts(30, 10, 0)),
    ("ib_atomic_cas_lat", counts(200, 0, 0)),
    ("ib_atomic_lat", counts(200, 0, 0)),
    ("ib_read_bw_8k", counts(180, 0, 0)),
    ("ib_read_lat", counts(200, 0, 0)),
    ("ib_send_lat", counts(418, 0, 0)),
    ("ib_write_bw_8k", counts(180, 0, 0)),
    ("ib_write_lat", counts(408, 0, 0)),
    ("ib_write_lat_rdmacm", counts(130, 0, 10)),
    ("ibv_rc_pingpong", counts(556, 0, 0)),
    ("ibv_ud_pingpong", counts(40, 0, 0)),
    ("loss5_read", counts(220, 0, 0)),
    ("loss5_send", counts(549, 0, 0)),
    ("loss5_write", counts(946, 0, 0)),
    ("mtu4096_write", counts(18, 0, 0)),
    ("rping", counts(325, 0, 5)),
];

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    roce: u32,
    damaged: u32,
    cm: u32,
}

const fn counts(roce: u32, damaged: u32, cm: u32) -> Counts {
    Counts { roce, damaged, cm }
}

#[test]
fn every_captured_packet_parses_and_is_emitted_the_same() {
    for (name, expected) in CAPTURES {
        let mut seen = Counts::default();
        for (index, frame) in frames(&capture(name)).enumerate() {
            check_frame(frame, &mut seen).unwrap_or_else(|error| panic!("{name}, packet {}: {error}", index + 1));
        }
        println!("{name}: {seen:?}");
        assert_eq!(seen, expected, "{name}");
    }
}

/// Takes one Ethernet frame apart and puts it together again.
fn check_frame(frame: &[u8], seen: &mut Counts) -> Result<(), ParseError> {
    let ethernet = Ethernet::parse(frame)?;
    assert_eq!(ethernet.ethertype, ETHERTYPE_IPV4, "these captures are all IPv4");
    let ip_packet = &frame[Ethernet::LEN..];
    let ip = Ipv4::parse(ip_packet)?;
    if ip.protocol != PROTOCOL_UDP {
        return Ok(()); // perftest's handshake over TCP
    }
    let datagram = &ip_packet[Ipv4::LEN..usize::from(ip.total_len)];
    let udp = Udp::parse(datagram)?;
    if udp.dst_port != UDP_PORT {
        return Ok(());
    }
    seen.roce += 1;
    let payload = &datagram[Udp::LEN..];

    let good = icrc::verify_ip(ip_packet)?;
    let flow = IcrcFlow::v4(ip.src, ip.dst, udp.src_port, udp.dst_port);
    assert!(ip.dont_fragment);
    assert_eq!(flow.verify(ip.id, payload) == IcrcVerdict::Good, good);
    if !good {
        // Refused without a look at the IP header as well.
        assert_eq!(flow.verify(ip.id, payload), IcrcVerdict::Bad);
        seen.damaged += 1;
        return Ok(());
    }
    let packet = Packet::parse(payload)?;
    assert_eq!(flow.compute(ip.id, &payload[..payload.len() - 4]), packet.icrc);
    assert_eq!(icrc::compute_ip(ip_packet)?, packet.icrc);
    for hint in [0, !ip.id] {
        let expected = if hint == ip.id { IcrcVerdict::Good } else { IcrcVerdict::GoodWithId(ip.id) };
        assert_eq!(flow.verify(hint, payload), expected);
    }

    let mut again = vec![0xee; frame.len()];
    ethernet.emit(&mut again);
    ip.emit(&mut again[Ethernet::LEN..]);
    udp.emit(&mut again[Ethernet::LEN + Ipv4::LEN..]);
    let len = packet.emit(&mut again[Ethernet::LEN + Ipv4::LEN + Udp::LEN..]);
    assert_eq!(len, payload.len());
    assert_eq!(again, frame);
    // host_udp sends queue pair 1 datagrams with attribute 0, which is none.
    if packet.bth.dest_qp == 1 && packet.payload[16..18] != [0, 0] {
        check_mad(packet.payload)?;
        seen.cm += 1;
    }
    Ok(())
}

fn check_mad(payload: &[u8]) -> Result<(), ParseError> {
    let mad = Mad::parse(payload)?;
    let mut again = [0xee; Mad::LEN];
    mad.emit(&mut again);
    assert_eq!(again, payload, "{mad:?}");
    if let CmMessage::Req(req) = mad.message {
        let header = RdmaCmHeader::parse(&req.private_data)?;
        let mut again = [0xee; RdmaCmHeader::LEN];
        header.emit(&mut again);
        assert_eq!(again, req.private_data[..RdmaCmHeader::LEN]);
        assert_eq!(header.src, IpAddr::V6(req.local_gid.into()).to_canonical());
        assert_eq!(header.dst, IpAddr::V6(req.remote_gid.into()).to_canonical());
    }
    Ok(())
}

/// The fields of rping's first message.
#[test]
fn a_captured_request_for_communication() {
    let bytes = capture("rping");
    let payload = &frames(&bytes).next().unwrap()[Ethernet::LEN + Ipv4::LEN + Udp::LEN..];
    let mad = Mad::parse(Packet::parse(payload).unwrap().payload).unwrap();
    assert_eq!((mad.status, mad.transaction_id), (0, 0x2_017f_f186));
    let CmMessage::Req(req) = mad.message else { panic!("rping begins with a REQ, not {mad:?}") };
    let (src, dst) = (Ipv4Addr::new(10, 77, 0, 12), Ipv4Addr::new(10, 77, 0, 11));
    let mut private_data = [0; 92];
    RdmaCmHeader { src_port: 0xd381, src: src.into(), dst: dst.into() }.emit(&mut private_data);
    let expected = Req {
        local_comm_id: 0x86f1_7f01,
        service_id: 0x0106_1c06,
        ca_guid: 0x5054_00ff_fe77_0012,
        local_qpn: 0x30,
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_timeout: 20,
        starting_psn: Psn::new(0x3a_bd4e),
        local_cm_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: src.to_ipv6_mapped().octets(),
        remote_gid: dst.to_ipv6_mapped().octets(),
        flow_label: 0x9_b8a5,
        hop_limit: 64,
        local_ack_timeout: 19,
        private_data,
        ..Req::default()
    };
    assert_eq!(req, expected);
}

/// Over IPv6 there is no capture: put into an IPv6 packet, a captured one agrees with itself, and no bit of it can
/// change unnoticed but those that the ICRC leaves out.
#[test]
fn ipv6_icrc_covers_all_but_the_mutable_fields() {
    let bytes = capture("ib_atomic_lat");
    let transport = frames(&bytes)
        .map(|frame| &frame[Ethernet::LEN + Ipv4::LEN..])
        .find(|datagram| Udp::parse(datagram).is_ok_and(|udp| udp.dst_port == UDP_PORT))
        .expect("the capture has RoCE v2 packets");
    let (src, dst) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
    let payload_len = transport.len() as u16;
    let ip = Ipv6 { traffic_class: 2, flow_label: 77, payload_len, next_header: 17, hop_limit: 64, src, dst };
    let mut packet = vec![0; Ipv6::LEN];
    ip.emit(&mut packet);
    packet.extend_from_slice(transport);
    let src_port = Udp::parse(transport).unwrap().src_port;
    IcrcFlow::v6(src, dst, src_port, UDP_PORT).fill(0, &mut packet[Ipv6::LEN + Udp::LEN..]);
    assert_eq!(icrc::verify_ip(&packet), Ok(true));
    assert_eq!(Ipv6::parse(&packet), Ok(ip));

    let mutable = |bit: usize| {
        let udp = Ipv6::LEN * 8;
        matches!(bit, 4..32 | 56..64) || (udp + 48..udp + 64).contains(&bit) || (udp + 96..udp + 104).contains(&bit)
    };
    for bit in 0..packet.len() * 8 {
        packet[bit / 8] ^= 0x80 >> (bit % 8);
        assert_eq!(icrc::verify_ip(&packet) == Ok(true), mutable(bit), "bit {bit}");
        packet[bit / 8] ^= 0x80 >> (bit % 8);
    }
}

#[test]
fn udp_checksum_of_an_odd_datagram() {
    let addresses = PseudoHeader { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    let mut datagram = [0xc0, 0, 0x12, 0xb7, 0, 11, 0, 0, b'a', b'b', b'c'];
    assert_eq!(addresses.checksum(&datagram), 0x54bb);
    datagram[6..8].copy_from_slice(&[0x54, 0xbb]);
    assert_eq!(addresses.checksum(&datagram), 0x54bb, "the field itself does not count");
}

/// The capture `vectors/<name>.pcap.zst`.
fn capture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/vectors/{name}.pcap.zst"));
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(file).expect("a zstd file");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut decoder, &mut bytes).expect("a whole zstd file");
    bytes
}

/// The frames of a little-endian pcap file of link type Ethernet, none of them cut short.
fn frames(pcap: &[u8]) -> impl Iterator<Item = &[u8]> {
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(pcap, 0), word(pcap, 20)), (0xa1b2_c3d4, 1), "microsecond pcap, Ethernet");
    let mut rest = &pcap[24..];
    std::iter::from_fn(move || {
        let (header, after) = rest.split_at_checked(16)?;
        let (captured, original) = (word(header, 8), word(header, 12));
        assert_eq!(captured, original);
        let (frame, next) = after.split_at(captured as usize);
        rest = next;
        Some(frame)
    })
}
