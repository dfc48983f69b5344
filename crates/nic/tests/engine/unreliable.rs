//! Unreliable connections: whole on a clean link; under faults every message arrives whole or not at all. The network's
//! order and duplicates are the user's: the service has nothing to tell a repeated message from a new one by.

use crate::common::{CLEAN, Faults, Pair, Setup};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_nic::*;

const LAND: usize = 1 << 19;

fn uc(mtu: u32) -> Setup {
    Setup { kind: QpType::Uc, mtu, ..Setup::default() }
}

fn pair(mtu: u32) -> Pair {
    let pair = Pair::new(1, CLEAN, uc(mtu));
    let bytes: Vec<u8> = (0..LAND).map(|i| (i * 7 % 251) as u8).collect();
    pair.a.buffer.write(0, &bytes).expect("in bounds");
    pair
}

#[test]
fn messages_of_every_length_arrive_whole_at_every_mtu() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        let m = mtu as usize;
        for len in [0, 1, 3, m - 1, m, m + 1, 2 * m + 5, 9 * m] {
            let mut p = pair(mtu);
            p.logging = true;
            let list = [p.a.sge(3, len)];
            (0..3).for_each(|id| p.b.recv(id, LAND + (id as usize) * (40 << 10), 40 << 10));
            let (va, rkey) = (p.b.va(1), p.b.key());
            p.a.send(&SendWr::new(1, SendOp::Send, Data::List(&list)));
            p.a.send(&SendWr::new(2, SendOp::SendImm(5), Data::List(&list)));
            p.a.send(&SendWr::new(3, SendOp::Write { va, rkey }, Data::List(&list)).unsignaled());
            p.a.send(&SendWr::new(4, SendOp::WriteImm { va: va + (200 << 10), rkey, imm: 9 }, Data::List(&list)));
            p.run(10_000);
            use WcStatus::Success;
            assert_eq!(p.a.statuses(), [(1, Success), (2, Success), (4, Success)], "mtu {mtu}, {len} B");
            let told: Vec<_> = p.b.done.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len as usize, wc.imm)).collect();
            use WcOpcode::*;
            let due = [(0, Recv, len, None), (1, Recv, len, Some(5)), (2, RecvWriteImm, len, Some(9))];
            assert_eq!(told, due, "mtu {mtu}, {len} B");
            for at in [LAND, LAND + (40 << 10), 1, 1 + (200 << 10)] {
                assert_eq!(p.b.bytes(at, len), p.a.bytes(3, len), "at {at}, mtu {mtu}, {len} B");
                assert_eq!(p.b.bytes(at + len, 8), [0; 8], "nothing behind it, mtu {mtu}, {len} B");
            }
            assert!(
                p.log.iter().all(|(_, from, packet)| *from == 0 && packet[8] & 0x80 == 0),
                "nobody asks for an ACK"
            );
        }
    }
}

#[test]
fn a_lost_packet_takes_its_message_along_and_nothing_else() {
    // Three messages of three packets: whichever packet is lost, the other two messages arrive.
    for lost in 0..9 {
        let mut p = pair(256);
        let list = [p.a.sge(0, 700)];
        (0..3).for_each(|id| p.b.recv(id, LAND + id as usize * 1024, 1024));
        for id in 0..3 {
            p.a.send(&SendWr::new(id, SendOp::SendImm(id as u32), Data::List(&list)));
        }
        p.logging = true;
        p.cut[0] = true;
        p.transmit();
        p.cut[0] = false;
        let sent: Vec<Vec<u8>> = p.log.drain(..).map(|(_, _, packet)| packet).collect();
        assert_eq!(sent.len(), 9);
        for (_, packet) in sent.into_iter().enumerate().filter(|(n, _)| *n != lost) {
            p.inject(0, packet);
        }
        p.run(1000);
        let told: Vec<_> = p.b.done.iter().map(|wc| (wc.wr_id, wc.imm, wc.status)).collect();
        let others: Vec<u32> = (0..3).filter(|id| *id != lost as u32 / 3).collect();
        let due: Vec<_> = (0..).zip(&others).map(|(id, imm)| (id, Some(*imm), WcStatus::Success)).collect();
        assert_eq!(told, due, "packet {lost} lost: its receive serves the next message");
        assert_eq!(p.b.state(), QpState::Rts);
        // The receive that is left over is flushed like any other.
        p.b.nic.to_error(p.b.qp).expect("live");
        assert_eq!(p.b.take_done().last().map(|wc| (wc.wr_id, wc.status)), Some((2, WcStatus::Flushed)));
    }
}

#[test]
fn what_the_receiver_cannot_take_is_dropped_in_silence() {
    let mut p = pair(1024);
    let list = [p.a.sge(0, 3000)];
    let good = SendOp::Write { va: p.b.va(0), rkey: p.b.key() };
    let table = [
        SendOp::Send,
        SendOp::WriteImm { va: p.b.va(0), rkey: p.b.key(), imm: 1 },
        SendOp::Write { va: p.b.va(0), rkey: p.b.key() ^ 1 },
        SendOp::Write { va: p.b.va(crate::common::REGION - 2999), rkey: p.b.key() },
    ];
    for op in table {
        p.a.send(&SendWr::new(1, op, Data::List(&list)));
        p.a.send(&SendWr::new(2, good, Data::List(&list)));
        p.run(1000);
        assert_eq!(p.a.take_done().len(), 2);
        assert_eq!((p.b.state(), p.b.take_done()), (QpState::Rts, vec![]), "{op:?}");
        assert_eq!(p.b.bytes(0, 3000), p.a.bytes(0, 3000), "the next message arrives: {op:?}");
    }
    // A receive that is too short is an error of the receiver's own.
    p.b.recv(7, LAND, 2999);
    p.a.send(&SendWr::new(3, SendOp::Send, Data::List(&list)));
    p.run(1000);
    assert_eq!((p.b.statuses(), p.b.state()), (vec![(7, WcStatus::LocalLength)], QpState::Err));
}

#[test]
fn a_send_error_stops_the_send_queue_alone() {
    let mut p = pair(256);
    let bad = [p.a.sge(0, 600), Sge { va: 0, len: 4, lkey: 1 }];
    p.a.send(&SendWr::new(1, SendOp::Send, Data::List(&bad)));
    p.a.send(&SendWr::new(2, SendOp::Send, Data::Inline(b"a")));
    p.run(1000);
    use WcStatus::*;
    assert_eq!((p.a.statuses(), p.a.state()), (vec![(1, LocalProtection), (2, Flushed)], QpState::Sqe));
    // Receiving goes on, and so does sending when asked to.
    p.a.recv(9, 0, 64);
    p.b.send(&SendWr::new(5, SendOp::Send, Data::Inline(b"hello")));
    p.run(1000);
    assert_eq!(p.a.take_done().last().map(|wc| wc.wr_id), Some(9));
    p.a.nic.to_rts(p.a.qp, RtsAttr::default()).expect("SQE to RTS");
    p.b.recv(3, LAND, 64);
    p.a.send(&SendWr::new(4, SendOp::Send, Data::Inline(b"again")));
    p.run(1000);
    assert_eq!((p.a.statuses(), p.b.bytes(LAND, 5)), (vec![(4, Success)], b"again".to_vec()));
}

#[test]
fn draining_ends_with_the_message_that_has_begun() {
    let mut p = pair(256);
    let list = [p.a.sge(0, 100_000)];
    let op = SendOp::Write { va: p.b.va(0), rkey: p.b.key() };
    p.a.send(&SendWr::new(1, op, Data::List(&list)));
    p.a.send(&SendWr::new(2, op, Data::List(&list)));
    assert!(p.a.nic.poll_transmit(0, &mut p.a.batch), "the first packets");
    p.a.nic.to_sqd(p.a.qp).expect("RTS to SQD");
    p.run(1000);
    assert_eq!(p.a.statuses(), [(1, WcStatus::Success)]);
    assert!(p.a.events.iter().any(|e| matches!(e, Event::SqDrained(_))));
}

#[test]
fn only_sends_and_writes_can_be_posted() {
    let mut p = pair(1024);
    let list = [p.a.sge(0, 8)];
    let (va, rkey) = (p.b.va(0), p.b.key());
    for op in [
        SendOp::Read { va, rkey },
        SendOp::FetchAdd { va, rkey, add: 1 },
        SendOp::CompareSwap { va, rkey, compare: 0, swap: 1 },
        SendOp::SendInvalidate(rkey),
        SendOp::Rpc { op: 1 },
    ] {
        let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(1, op, Data::List(&list)));
        assert!(matches!(refused, Err(NicError::Unsupported(_))), "{op:?}: {refused:?}");
    }
}

/// A message that can be told from all others.
fn message(seed: u64, id: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed << 32 | id);
    let mut data = vec![0; rng.next_u32() as usize % 8000];
    rng.fill_bytes(&mut data);
    data
}

fn run(seed: u64, faults: Faults, mtu: u32) -> (usize, usize) {
    let what = format!("seed {seed}, mtu {mtu}, {faults:?}");
    let mut p = Pair::new(seed, faults, uc(mtu));
    let (mut arrived, mut written) = (0, 0);
    for round in 0..25 {
        let ids = round * 16..round * 16 + 16;
        for id in ids.clone() {
            let (data, at) = (message(seed, id), id as usize % 16 * 8192);
            p.a.buffer.write(at, &data).expect("in bounds");
            p.b.recv(id, LAND + at, 8000);
            let list = [p.a.sge(at, data.len())];
            let op = match id % 2 {
                0 => SendOp::SendImm(id as u32),
                _ => SendOp::WriteImm { va: p.b.va(at), rkey: p.b.key(), imm: id as u32 },
            };
            p.a.send(&SendWr::new(id, op, Data::List(&list)));
        }
        p.run(100_000);
        assert_eq!(p.a.take_done().len(), 16, "{what}");
        let mut last = None;
        for wc in p.b.take_done() {
            let id = u64::from(wc.imm.expect("every message has one"));
            assert!(ids.contains(&id), "message {id}: {what}");
            if faults.reorder == 0 {
                assert!(last < Some(id) || faults.duplicate > 0 && last == Some(id), "{id} after {last:?}: {what}");
            }
            last = Some(id);
            let data = message(seed, id);
            assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, data.len()), "{what}");
            let at = match wc.opcode {
                WcOpcode::Recv => LAND + wc.wr_id as usize % 16 * 8192,
                _ => id as usize % 16 * 8192,
            };
            assert_eq!(p.b.bytes(at, data.len()), data, "message {id}, {what}");
            *if wc.opcode == WcOpcode::Recv { &mut arrived } else { &mut written } += 1;
        }
        assert_eq!(p.b.state(), QpState::Rts, "{what}");
        // Receives of lost messages are still there: start the next round without them.
        let psns = (p.a.nic.qp_psns(p.a.qp).expect("live").0.get(), 0xff_fff0);
        p.b.nic.to_reset(p.b.qp).expect("live");
        let remote = p.a.qp;
        p.b.bring_up(crate::common::A, remote, (psns.1, psns.0), uc(mtu));
    }
    (arrived, written)
}

#[test]
fn under_every_kind_of_fault_messages_arrive_whole_or_not_at_all() {
    let kinds = [
        Faults { latency: 1000, ..Faults::default() },
        Faults { latency: 1000, loss: 50, ..Faults::default() },
        Faults { latency: 1000, duplicate: 100, ..Faults::default() },
        Faults { latency: 1000, reorder: 50, ..Faults::default() },
        Faults { latency: 1000, damage: 50, ..Faults::default() },
        Faults { latency: 5000, jitter: 0, loss: 10, duplicate: 10, damage: 10, reorder: 10, per_byte: 0 },
    ];
    for (index, faults) in kinds.into_iter().enumerate() {
        for mtu in [256, 1024, 4096] {
            let (arrived, written) = run(index as u64 * 10 + u64::from(mtu), faults, mtu);
            match index {
                0 => assert_eq!((arrived, written), (200, 200)),
                _ => assert!(arrived > 10 && written > 10, "{arrived} and {written}, {faults:?}"),
            }
        }
    }
}
