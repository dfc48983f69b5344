//! Packets that the peer did not send, or not so: wrong addresses, cut short, with flipped bits, from its former life.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::bare::{Bare, ack, bytes_of};
use crate::common::{A, B, CLEAN, Pair, Setup};
use remora_memory::Access;
use remora_nic::*;
use remora_wire::packet::Packet;
use remora_wire::{Aeth, AtomicAckEth, ImmDt, Opcode, Syndrome};

const PSN: u32 = 100;
const AT: usize = 4096;
const LEN: usize = 4096;
const MEMORY: usize = 16384;
const GUARD: u8 = 0xc5;

fn bare() -> Bare {
    let setup = Setup { mtu: 256, psn_a: PSN, psn_b: 5000, ..Setup::default() };
    let bare = Bare::sized(setup, MEMORY);
    bare.side.buffer.fill(0, MEMORY, GUARD).expect("in bounds");
    bare
}

#[test]
fn packets_from_elsewhere_are_dropped() {
    let stranger = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9));
    // (source, destination, link)
    for (src, dst, link) in [(stranger, B, 0), (A, stranger, 0), (B, A, 0), (A, B, 1)] {
        let mut bare = bare();
        let packet =
            bytes_of(&bare.with_reth(Opcode::RcWriteOnly, PSN, (bare.side.va(0), bare.side.key(), 4), b"evil"));
        bare.side.nic.handle_packet(0, link, src, dst, &packet);
        assert_eq!((bare.said(), bare.side.bytes(0, 4)), (vec![], vec![GUARD; 4]), "{src} to {dst} on link {link}");
        assert_eq!(bare.side.nic.counters().dropped, 1);
        bare.give_bytes(&packet);
        assert_eq!(bare.side.bytes(0, 4), b"evil", "the same from the right place");
    }
}

#[test]
fn packets_for_nobody_are_dropped() {
    let mut bare = bare();
    let good = bare.with_reth(Opcode::RcWriteOnly, PSN, (bare.side.va(0), bare.side.key(), 4), b"evil");
    let qpn = bare.side.qp.0;
    for dest_qp in [0, 2, qpn ^ 0x1_0000, qpn + 1, 0xff_ffff] {
        bare.give(&Packet { bth: remora_wire::Bth { dest_qp, ..good.bth }, ..good });
    }
    for bth in [
        remora_wire::Bth { version: 1, ..good.bth },
        remora_wire::Bth { pkey: 0x1234, ..good.bth },
        remora_wire::Bth { opcode: Opcode::UcWriteOnly, ..good.bth },
        remora_wire::Bth { opcode: Opcode::UdSendOnly, ..good.bth },
    ] {
        bare.give(&Packet { bth, ..good });
    }
    assert_eq!((bare.said(), bare.side.bytes(0, 4)), (vec![], vec![GUARD; 4]));
    assert_eq!(bare.side.nic.counters().dropped, 9);
    for state in [QpState::Reset, QpState::Init, QpState::Err] {
        bare.side.nic.to_reset(bare.side.qp).expect("live");
        match state {
            QpState::Init => bare.side.nic.to_init(bare.side.qp, ALL_REMOTE, 0).expect("INIT"),
            QpState::Err => bare.side.nic.to_error(bare.side.qp).expect("ERR"),
            _ => {}
        }
        bare.give(&good);
        assert_eq!((bare.said(), bare.side.bytes(0, 4)), (vec![], vec![GUARD; 4]), "{state:?}");
    }
}

/// One packet of each kind, right in every way when it is given to a fresh engine by `fresh`.
fn samples(bare: &Bare, va: u64, key: u32) -> Vec<Vec<u8>> {
    use Opcode::*;
    const DATA: &[u8] = &[7; 256];
    let aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 });
    let params: Vec<u8> = {
        let mut bytes = vec![0; 40];
        let header = remora_wire::rpc::RpcHeader { reply_va: 1, reply_rkey: 2, reply_capacity: 64, tag: 3, flags: 0 };
        header.emit(&mut bytes);
        bytes
    };
    [
        bare.packet(RcSendOnly, PSN, &DATA[..33]),
        bare.packet(RcSendFirst, PSN, DATA),
        Packet { imm: Some(ImmDt(5)), ..bare.packet(RcSendOnlyImm, PSN, &DATA[..8]) },
        bare.with_reth(RcWriteOnly, PSN, (va + 8, key, 20), &DATA[..20]),
        bare.with_reth(RcWriteFirst, PSN, (va + 8, key, 1000), DATA),
        Packet { imm: Some(ImmDt(5)), ..bare.with_reth(RcWriteOnlyImm, PSN, (va, key, 8), &DATA[..8]) },
        bare.with_reth(RcReadRequest, PSN, (va, key, 600), &[]),
        bare.fetch_add(PSN, va + 16, key),
        bare.with_reth(RpcParams, PSN, (42, 0, params.len() as u32), &params),
        Packet { aeth, ..bare.packet(RcReadResponseFirst, 5000, DATA) },
        Packet { aeth, ..bare.packet(RcAck, 5003, &[]) },
        Packet { aeth, atomic_ack_eth: Some(AtomicAckEth { original: 9 }), ..bare.packet(RcAtomicAck, 5003, &[]) },
    ]
    .iter()
    .map(bytes_of)
    .collect()
}

/// An engine that every one of `samples` suits: a receive, a kernel, a READ and an atomic outstanding.
fn fresh() -> (Bare, u64, u32) {
    let mut bare = bare();
    let region = bare.side.register(AT, LEN, ALL_REMOTE | Access::LOCAL_WRITE);
    let sge = |at: u64, len| Sge { va: region.va() + at, len, lkey: region.key() };
    bare.side.nic.deploy(42);
    bare.side.nic.post_recv(bare.side.qp, 1, &[sge(0, 300)]).expect("room");
    bare.side.send(&SendWr::new(2, SendOp::Read { va: 0, rkey: 0 }, Data::List(&[sge(512, 600)])));
    bare.side.send(&SendWr::new(3, SendOp::FetchAdd { va: 0, rkey: 0, add: 1 }, Data::List(&[sge(2048, 8)])));
    bare.side.send(&SendWr::new(4, SendOp::Send, Data::Inline(b"x")));
    assert_eq!(bare.said().len(), 3);
    (bare, region.va(), region.key())
}

/// The engine has survived, the guard bytes have, and what was posted completes once when the queue pair ends.
fn assert_sane(mut bare: Bare, what: &str) {
    bare.said();
    while let Some(request) = bare.side.nic.poll_rpc() {
        bare.side.nic.rpc_reply(request, 0);
    }
    bare.side.nic.to_error(bare.side.qp).expect("live");
    let mut ids: Vec<_> = bare.side.take_done().iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4], "{what}");
    let bytes = bare.side.bytes(0, MEMORY);
    let changed = bytes.iter().enumerate().find(|&(at, &b)| b != GUARD && !(AT..AT + LEN).contains(&at));
    assert_eq!(changed, None, "{what}");
}

#[test]
fn packets_cut_short_anywhere_do_no_harm() {
    let (bare, va, key) = fresh();
    for (n, packet) in samples(&bare, va, key).iter().enumerate() {
        for len in 0..packet.len() {
            let (mut bare, ..) = fresh();
            bare.give_bytes(&packet[..len]);
            assert_sane(bare, &format!("packet {n} cut to {len} B"));
        }
    }
}

#[test]
fn packets_grown_do_no_harm() {
    let (bare, va, key) = fresh();
    for (n, packet) in samples(&bare, va, key).iter().enumerate() {
        for extra in [1, 2, 3, 4, 5, 256, 4096, 60_000] {
            let (mut bare, ..) = fresh();
            let longer = [packet.as_slice(), &vec![0xee; extra]].concat();
            bare.give_bytes(&longer);
            assert_sane(bare, &format!("packet {n} grown by {extra} B"));
        }
    }
}

#[test]
fn a_flipped_bit_that_the_icrc_would_find_does_no_harm_without_it() {
    let (bare, va, key) = fresh();
    for (n, packet) in samples(&bare, va, key).iter().enumerate() {
        // Bits of the payload change data, and nothing else, all alike: its first bytes are enough.
        for bit in 0..packet.len().min(96) * 8 {
            let (mut bare, ..) = fresh();
            let mut bent = packet.clone();
            bent[bit / 8] ^= 0x80 >> (bit % 8);
            bare.give_bytes(&bent);
            assert_sane(bare, &format!("packet {n} with bit {bit} flipped"));
        }
    }
}

#[test]
fn a_peer_that_restarts_with_the_same_number() {
    // Its new PSNs lie ahead: one NAK, then silence; nothing is written.
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    let write = |bare: &Bare, psn, data: &'static [u8; 4]| {
        bytes_of(&bare.with_reth(Opcode::RcWriteOnly, psn, (va, key, 4), data))
    };
    let old = write(&bare, PSN, b"old!");
    bare.give_bytes(&old);
    assert_eq!(bare.brief(), [ack(PSN)]);
    for n in 0..5 {
        let new = write(&bare, PSN + 5000 + n, b"new!");
        bare.give_bytes(&new);
    }
    assert_eq!(bare.brief(), [crate::common::bare::nak(PSN + 1, remora_wire::NakCode::SequenceError)]);
    // They lie behind: taken for duplicates, acknowledged and not carried out.
    let new = write(&bare, PSN - 50, b"new!");
    bare.give_bytes(&new);
    assert_eq!(bare.brief(), [ack(PSN)]);
    assert_eq!(bare.side.bytes(0, 4), b"old!");

    // The one that restarted gets answers to questions that it has not asked.
    let mut p = Pair::new(1, CLEAN, Setup::default());
    let (op, list) = (SendOp::Write { va: p.b.va(0), rkey: p.b.key() }, [p.a.sge(0, 3000)]);
    p.a.send(&SendWr::new(1, op, Data::List(&list)));
    p.step();
    p.b.nic.to_reset(p.b.qp).expect("live");
    p.b.bring_up(A, p.a.qp, (77, 9_000_000), Setup::default());
    p.b.send(&SendWr::new(1, SendOp::Write { va: p.a.va(0), rkey: p.a.key() }, Data::Inline(b"hi")));
    p.run(100_000);
    assert_eq!(p.a.statuses(), [(1, WcStatus::RetryExceeded)]);
    assert_eq!(p.b.statuses(), [(1, WcStatus::RetryExceeded)]);
    assert_eq!((p.a.bytes(0, 2), p.b.bytes(0, 2)), (vec![0; 2], vec![0; 2]));
}

#[test]
fn a_peer_that_floods_receives_is_held_off() {
    let mut bare = bare();
    bare.side.recv(1, 0, 64);
    let mut naks = 0;
    for n in 0..10_000 {
        bare.give(&bare.packet(Opcode::RcSendOnly, PSN + n, b"flood"));
        naks += bare
            .said()
            .iter()
            .filter(|s| matches!(s.aeth, Some(a) if matches!(a.syndrome, Syndrome::RnrNak { .. })))
            .count();
    }
    assert_eq!((naks, bare.side.take_done().len()), (1, 1), "told once, until it tries again");
    assert_eq!(bare.side.state(), QpState::Rts);
}

#[test]
fn an_ack_of_what_was_never_sent_is_none() {
    const PACKETS: u32 = 1000;
    let setup = Setup { mtu: 256, psn_a: PSN, psn_b: 5000, ..Setup::default() };
    let mut bare = Bare::sized(setup, 256 * PACKETS as usize);
    let list = [bare.side.sge(0, 256 * PACKETS as usize)];
    bare.side.send(&SendWr::new(1, SendOp::Write { va: 0, rkey: 0 }, Data::List(&list)));
    let sent = bare.said().len() as u32;
    assert!(sent < PACKETS, "as many as the window holds");
    for psn in [4999, 5000 + sent, 5000 + PACKETS - 1, 5000 + PACKETS] {
        for syndrome in [Syndrome::Ack { credits: 31 }, Syndrome::Nak(remora_wire::NakCode::RemoteAccess)] {
            let forged = bare.aeth(psn, syndrome);
            bare.give(&forged);
            assert_eq!((bare.said().len(), bare.side.take_done().len()), (0, 0), "{psn}");
        }
    }
    let last = bare.aeth(5000 + sent - 1, Syndrome::Ack { credits: 31 });
    bare.give(&last);
    assert!(!bare.said().is_empty(), "what was sent can be acknowledged");
}

/// Whether a key is right shows in nothing as long as no byte is named.
#[test]
fn no_bytes_tell_nothing_of_a_key() {
    let answers = |key: &dyn Fn(&Bare) -> u32| {
        let mut bare = bare();
        let (va, key) = (bare.side.va(0), key(&bare));
        let mut said = Vec::new();
        for (n, opcode) in [Opcode::RcReadRequest, Opcode::RcWriteOnly, Opcode::RcWriteOnly].into_iter().enumerate() {
            for va in [va, 0, u64::MAX] {
                let psn = PSN + said.len() as u32;
                let packet = bytes_of(&bare.with_reth(opcode, psn, (va, key, 0), &[]));
                bare.give_bytes(&packet);
                said.push((n, bare.said()));
            }
        }
        assert_eq!(bare.side.state(), QpState::Rts);
        said
    };
    let right = answers(&|bare| bare.side.key());
    assert_eq!(right, answers(&|bare| bare.side.key() ^ 0x100));
    assert_eq!(right, answers(&|bare| bare.side.key() ^ 1));
    assert!(right.iter().all(|(_, said)| said.len() == 1));
}

#[test]
fn wrong_keys_of_kernels_end_the_connection_unless_they_are_rare() {
    const DENIED: u8 = remora_wire::rpc::status::ACCESS_DENIED;
    let denied = |bare: &mut Bare, psn: u32| {
        let mut params = vec![0; 24];
        remora_wire::rpc::RpcHeader { reply_capacity: 64, ..Default::default() }.emit(&mut params);
        let call = bytes_of(&bare.with_reth(Opcode::RpcParams, psn, (42, 0, 24), &params));
        bare.give_bytes(&call);
        let request = bare.side.nic.poll_rpc().expect("a call");
        bare.side.nic.rpc_reply(request, DENIED);
        let reply = bare.said().iter().map(|said| said.psn).max();
        if let Some(psn) = reply {
            let ack = bare.aeth(psn, Syndrome::Ack { credits: 31 });
            bare.give(&ack);
        }
    };
    // One a minute goes on for ever.
    let mut bare = bare();
    bare.side.nic.deploy(42);
    for n in 0..100 {
        bare.now += 60_000_000_000;
        denied(&mut bare, PSN + n);
        assert_eq!(bare.side.state(), QpState::Rts, "{n}");
    }
    // At once there are 16, of which one has been used up.
    for n in 100..115 {
        denied(&mut bare, PSN + n);
        assert_eq!(bare.side.state(), QpState::Rts, "{n}");
    }
    denied(&mut bare, PSN + 115);
    assert_eq!(bare.side.state(), QpState::Err);
    let fatal = Event::QpFatal(bare.side.qp, WcStatus::RemoteAccess);
    assert!(std::iter::from_fn(|| bare.side.nic.poll_event()).any(|event| event == fatal));
}

/// Every forged call is answered, and an honest request among them leaves with the second packet at the latest.
#[test]
fn answers_to_forged_calls_do_not_hold_up_others_packets() {
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    let call = {
        let mut mad = [0; 256];
        let message = remora_wire::cm::CmMessage::Req(remora_wire::cm::Req { service_id: 1, ..Default::default() });
        remora_wire::cm::Mad { status: 0, transaction_id: 1, message }.emit(&mut mad);
        mad
    };
    let deth = remora_wire::Deth { qkey: 0x8001_0000, reserved: 0, src_qp: 1 };
    let plain = bare.packet(Opcode::UdSendOnly, 0, &call);
    let forged = Packet { bth: remora_wire::Bth { dest_qp: 1, ..plain.bth }, deth: Some(deth), ..plain };
    let forged = bytes_of(&forged);
    for _ in 0..100 {
        bare.give_bytes(&forged);
    }
    for n in 0..20 {
        let write = bytes_of(&bare.with_reth(Opcode::RcWriteOnly, PSN + n, (va, key, 4), b"true"));
        bare.give_bytes(&write);
        let mut batch = TxBatch::new();
        let acknowledged = (0..2).any(|_| {
            bare.side.nic.poll_transmit(0, &mut batch);
            let opcode = |packet: &[u8]| remora_wire::Bth::parse(packet).expect("a packet").opcode;
            batch.packets().any(|packet| opcode(packet) == Opcode::RcAck)
        });
        assert!(acknowledged, "request {n}");
    }
}
