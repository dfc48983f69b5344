//! What holds for every header and for any bytes. A failure prints the seed that replays it.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use remora_wire::cm::{Mad, RdmaCmHeader};
use remora_wire::icrc::{self, IcrcFlow, IcrcVerdict};
use remora_wire::ip::{Ethernet, Ipv4, Ipv6, PROTOCOL_UDP, PseudoHeader, Udp};
use remora_wire::packet::Packet;
use remora_wire::rpc::RpcHeader;
use remora_wire::*;

/// `$parse` of what `$header` emits is `$header`, also with bytes after it; one byte less is cut short.
macro_rules! survives {
    ($type:ident, $header:expr) => {{
        let header: $type = $header;
        let mut bytes = [0xee; $type::LEN + 3];
        header.emit(&mut bytes);
        prop_assert_eq!($type::parse(&bytes), Ok(header));
        prop_assert_eq!(&bytes[$type::LEN..], [0xee; 3]);
        let cut_short = matches!($type::parse(&bytes[..$type::LEN - 1]), Err(ParseError::Truncated { .. }));
        prop_assert!(cut_short);
    }};
}

fn opcode() -> impl Strategy<Value = Opcode> {
    select(Opcode::ALL)
}

prop_compose! {
    fn bth()(
        opcode in opcode(),
        (solicited, mig_req, fecn, becn, ack_req) in any::<(bool, bool, bool, bool, bool)>(),
        (pad, version, reserved6, reserved7) in (0u8..4, 0u8..16, 0u8..64, 0u8..128),
        pkey: u16,
        dest_qp in 0u32..1 << 24,
        psn: u32,
    ) -> Bth {
        let psn = Psn::new(psn);
        Bth {
            opcode, solicited, mig_req, pad, version, pkey, fecn, becn, reserved6, dest_qp, ack_req, reserved7, psn,
        }
    }
}

prop_compose! {
    /// The bytes of a packet: any headers that its op-code has, any payload and padding, any ICRC.
    fn packet_bytes()(bth in bth(), rest in vec(any::<u8>(), 100)) -> Vec<u8> {
        let most = rest.len();
        let least = bth.opcode.header_len() - Bth::LEN + usize::from(bth.pad) + ICRC_LEN;
        let len = least + (bth.psn.get() as usize) % (most - least);
        let mut bytes = vec![0; Bth::LEN];
        bth.emit(&mut bytes);
        bytes.extend_from_slice(&rest[..len]);
        bytes
    }
}

/// A MAD of some message with any body.
fn mad_bytes() -> impl Strategy<Value = [u8; Mad::LEN]> {
    (0x10u8..0x1b, vec(any::<u8>(), Mad::LEN)).prop_map(|(attribute, bytes)| {
        let mut mad: [u8; Mad::LEN] = bytes.try_into().unwrap();
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&[0, attribute]);
        mad
    })
}

proptest! {
    #[test]
    fn transport_headers_survive(
        bth in bth(),
        (a, b, c) in any::<(u64, u64, u64)>(),
        (d, e, byte) in any::<(u32, u32, u8)>(),
        low in 0u32..1 << 24,
    ) {
        survives!(Bth, bth);
        survives!(Reth, Reth { va: a, rkey: d, len: e });
        survives!(Aeth, Aeth { syndrome: Syndrome::from_u8(byte), msn: low });
        survives!(AtomicEth, AtomicEth { va: a, rkey: d, swap_or_add: b, compare: c });
        survives!(AtomicAckEth, AtomicAckEth { original: a });
        survives!(ImmDt, ImmDt(d));
        survives!(Ieth, Ieth { rkey: d });
        survives!(Deth, Deth { qkey: d, reserved: byte, src_qp: low });
        survives!(Feth, Feth { placement: byte & 15, selectivity: byte >> 4 & 3, reserved: d >> 6 });
        let flags = d & (rpc::FLAG_STREAM | rpc::FLAG_ANYWHERE);
        survives!(RpcHeader, RpcHeader { reply_va: a, reply_rkey: d, reply_capacity: e, tag: low, flags });
    }

    #[test]
    fn outer_headers_survive(
        (dst, src) in any::<([u8; 6], [u8; 6])>(),
        (src4, dst4) in any::<([u8; 4], [u8; 4])>(),
        (src6, dst6) in any::<([u8; 16], [u8; 16])>(),
        (a, b, c) in any::<(u16, u16, u16)>(),
        (byte, ttl, protocol, dont_fragment) in any::<(u8, u8, u8, bool)>(),
        flow_label in 0u32..1 << 20,
    ) {
        survives!(Ethernet, Ethernet { dst, src, ethertype: a });
        let (src, dst) = (src4.into(), dst4.into());
        survives!(Ipv4, Ipv4 { tos: byte, total_len: 20, id: a, dont_fragment, ttl, protocol, src, dst });
        let (src, dst) = (src6.into(), dst6.into());
        let traffic_class = byte;
        let ip = Ipv6 { traffic_class, flow_label, payload_len: 0, next_header: protocol, hop_limit: ttl, src, dst };
        survives!(Ipv6, ip);
        survives!(Udp, Udp { src_port: a, dst_port: b, len: 8, checksum: c });
        let (v4, v6) = (src4.into(), src6.into());
        survives!(RdmaCmHeader, RdmaCmHeader { src_port: a, src: v4, dst: dst4.into() });
        survives!(RdmaCmHeader, RdmaCmHeader { src_port: a, src: v6, dst: dst6.into() });
    }

    #[test]
    fn packets_survive(bytes in packet_bytes()) {
        let packet = Packet::parse(&bytes).expect("valid by construction");
        let op = packet.bth.opcode;
        let headers = [
            (packet.deth.is_some(), op.has_deth()),
            (packet.feth.is_some(), op.has_feth()),
            (packet.reth.is_some(), op.has_reth()),
            (packet.atomic_eth.is_some(), op.has_atomic_eth()),
            (packet.aeth.is_some(), op.has_aeth()),
            (packet.atomic_ack_eth.is_some(), op.has_atomic_ack_eth()),
            (packet.imm.is_some(), op.has_imm()),
            (packet.ieth.is_some(), op.has_ieth()),
        ];
        prop_assert!(headers.iter().all(|(is, has)| is == has), "{:?}", packet);
        prop_assert_eq!(op.header_len() + packet.payload.len() + packet.padding.len() + ICRC_LEN, bytes.len());
        let mut again = vec![0xee; bytes.len() + 5];
        prop_assert_eq!(packet.emit(&mut again), bytes.len());
        prop_assert_eq!(&again[..bytes.len()], &bytes[..]);
    }

    #[test]
    fn packets_cut_short_are_refused(bytes in packet_bytes()) {
        let bth = Bth::parse(&bytes).unwrap();
        let least = bth.opcode.header_len() + usize::from(bth.pad) + ICRC_LEN;
        for len in 0..least {
            prop_assert!(Packet::parse(&bytes[..len]).is_err(), "{} of {} bytes", len, least);
        }
    }

    #[test]
    fn a_new_packet_is_padded(bth in bth(), payload in vec(any::<u8>(), 0..64)) {
        let packet = Packet::new(Bth { opcode: Opcode::RcSendOnly, ..bth }, &payload);
        prop_assert_eq!(packet.len() % 4, 0);
        let mut bytes = vec![0xee; packet.len()];
        packet.emit(&mut bytes);
        prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
    }

    #[test]
    fn messages_of_connection_management_survive(bytes in mad_bytes()) {
        let mad = Mad::parse(&bytes).expect("valid by construction");
        let mut emitted = [0xee; Mad::LEN];
        mad.emit(&mut emitted);
        prop_assert_eq!(Mad::parse(&emitted), Ok(mad));
        // Nothing but reserved bits is lost, and those become zero.
        prop_assert!(emitted.iter().zip(&bytes).all(|(after, before)| after & !before == 0));
    }

    #[test]
    fn no_bytes_make_a_parser_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Packet::parse(&bytes);
        let _ = Mad::parse(&bytes);
        let _ = RdmaCmHeader::parse(&bytes);
        let _ = RpcHeader::parse(&bytes);
        let _ = Ethernet::parse(&bytes);
        let _ = Ipv4::parse(&bytes);
        let _ = Ipv6::parse(&bytes);
        let _ = Udp::parse(&bytes);
        let _ = icrc::verify_ip(&bytes);
        let addresses = PseudoHeader { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        prop_assert_ne!(addresses.checksum(&bytes), 0);
        let flow = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000, UDP_PORT);
        prop_assert_ne!(flow.verify(0, &bytes), IcrcVerdict::Good, "2^-32 by chance");
    }

    /// The flow's sums agree with the sum over a packet whose headers are really there.
    #[test]
    fn icrc_of_a_flow_is_that_of_the_whole_packet(
        (src, dst) in any::<([u8; 4], [u8; 4])>(),
        (src_port, id) in any::<(u16, u16)>(),
        mut bytes in packet_bytes(),
    ) {
        let flow = IcrcFlow::v4(src.into(), dst.into(), src_port, UDP_PORT);
        flow.fill(id, &mut bytes);
        let len = (Udp::LEN + bytes.len()) as u16;
        let mut whole = vec![0; Ipv4::LEN + Udp::LEN];
        Ipv4 {
            tos: 3,
            total_len: 20 + len,
            id,
            dont_fragment: true,
            ttl: 9,
            protocol: PROTOCOL_UDP,
            src: src.into(),
            dst: dst.into(),
        }
        .emit(&mut whole);
        Udp { src_port, dst_port: UDP_PORT, len, checksum: 0xabcd }.emit(&mut whole[Ipv4::LEN..]);
        whole.extend_from_slice(&bytes);
        prop_assert_eq!(icrc::verify_ip(&whole), Ok(true));
        prop_assert_eq!(flow.verify(id, &bytes), IcrcVerdict::Good);
    }

    #[test]
    fn a_wrong_hint_finds_the_identification(
        (id, hint) in any::<(u16, u16)>(),
        len in prop_oneof![16usize..200, 4000usize..5000, 65000usize..=65507],
        fill: u8,
    ) {
        prop_assume!(id != hint);
        let flow = IcrcFlow::v4([127, 0, 0, 1].into(), [127, 0, 0, 2].into(), 0xc123, UDP_PORT);
        let mut packet = vec![fill; len];
        flow.fill(id, &mut packet);
        prop_assert_eq!(flow.verify(hint, &packet), IcrcVerdict::GoodWithId(id));
    }

    /// Damage is never taken for the expected packet, and what is said about another identification is true.
    #[test]
    fn damage_is_found(mut bytes in packet_bytes(), id: u16, at: prop::sample::Index, flip in 1u8..) {
        let flow = IcrcFlow::v4([127, 0, 0, 1].into(), [127, 0, 0, 2].into(), 0xc123, UDP_PORT);
        flow.fill(id, &mut bytes);
        let at = at.index(bytes.len());
        prop_assume!(at != 4); // masked
        bytes[at] ^= flip;
        match flow.verify(id, &bytes) {
            IcrcVerdict::Good => prop_assert!(false, "damage at {} not found", at),
            IcrcVerdict::GoodWithId(other) => prop_assert_eq!(flow.verify(other, &bytes), IcrcVerdict::Good),
            IcrcVerdict::Bad => {}
        }
        if let Some(last) = bytes.len().checked_sub(1) {
            prop_assert_ne!(flow.verify(id, &bytes[..last]), IcrcVerdict::Good);
        }
    }
}
