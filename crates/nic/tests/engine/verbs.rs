//! Every operation of the verbs on a clean link.

use crate::common::{A, B, CLEAN, Pair, REGION, Setup};
use remora_memory::Access;
use remora_nic::*;
use remora_wire::Psn;
use remora_wire::ip::Ipv4;
use std::net::IpAddr;

/// Where receives, READs and atomics land.
const LAND: usize = 1 << 19;

fn pair(mtu: u32) -> Pair {
    let pair = Pair::new(1, CLEAN, Setup { mtu, ..Setup::default() });
    let bytes: Vec<u8> = (0..REGION / 2).map(|i| (i * 7 % 251) as u8).collect();
    pair.a.buffer.write(0, &bytes).expect("in bounds");
    pair
}

fn wc(wr_id: u64, opcode: WcOpcode, byte_len: u32, qpn: Qpn) -> WorkCompletion {
    let status = WcStatus::Success;
    WorkCompletion { wr_id, status, opcode, byte_len, imm: None, invalidated: None, qpn, src_qp: 0, src: None }
}

fn lengths(mtu: usize) -> [usize; 9] {
    [0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 5, 9 * mtu]
}

#[test]
fn messages_of_every_length_arrive_whole_at_every_mtu() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        for len in lengths(mtu as usize) {
            let mut p = pair(mtu);
            let (list, qa, qb) = ([p.a.sge(3, len)], p.a.qp, p.b.qp);
            p.b.recv(100, LAND, 64 << 10);
            p.b.recv(101, LAND, 64 << 10);
            let (va, rkey) = (p.b.va(1), p.b.key());
            p.a.send(&SendWr::new(1, SendOp::Send, Data::List(&list)));
            p.a.send(&SendWr::new(2, SendOp::Write { va, rkey }, Data::List(&list)));
            p.a.send(&SendWr::new(3, SendOp::WriteImm { va: va + (200 << 10), rkey, imm: 9 }, Data::List(&list)));
            let back = [p.a.sge(LAND, len)];
            p.a.send(&SendWr::new(4, SendOp::Read { va, rkey }, Data::List(&back)));
            p.run(10_000);
            let n = len as u32;
            let sent = [
                wc(1, WcOpcode::Send, 0, qa),
                wc(2, WcOpcode::Write, 0, qa),
                wc(3, WcOpcode::Write, 0, qa),
                wc(4, WcOpcode::Read, n, qa),
            ];
            assert_eq!(p.a.done, sent, "mtu {mtu}, {len} B");
            let written = WorkCompletion { imm: Some(9), ..wc(101, WcOpcode::RecvWriteImm, n, qb) };
            assert_eq!(p.b.done, [wc(100, WcOpcode::Recv, n, qb), written], "mtu {mtu}, {len} B");
            let data = p.a.bytes(3, len);
            for (at, what) in [(LAND, "SEND"), (1, "WRITE"), (1 + (200 << 10), "WRITE with immediate")] {
                assert_eq!(p.b.bytes(at, len), data, "{what}, mtu {mtu}, {len} B");
                assert_eq!(p.b.bytes(at + len, 8), [0; 8], "nothing behind {what}, mtu {mtu}, {len} B");
            }
            assert_eq!(p.a.bytes(LAND, len), data, "READ, mtu {mtu}, {len} B");
        }
    }
}

#[test]
fn long_reads() {
    for (mtu, len) in [(256, 300 << 10), (1024, 512 << 10), (4096, (512 << 10) - 3)] {
        let mut p = pair(mtu);
        let data: Vec<u8> = (0..len).map(|i| (i % 253) as u8).collect();
        p.b.buffer.write(0, &data).expect("in bounds");
        let list = [p.a.sge(LAND, len)];
        let op = SendOp::Read { va: p.b.va(0), rkey: p.b.key() };
        p.a.send(&SendWr::new(1, op, Data::List(&list)));
        p.run(100_000);
        assert_eq!(p.a.done, [wc(1, WcOpcode::Read, len as u32, p.a.qp)]);
        assert_eq!(p.a.bytes(LAND, len), data);
    }
}

#[test]
fn a_read_of_a_megabyte() {
    let mut p = pair(4096);
    p.b.buffer.fill(0, REGION, 0x5a).expect("in bounds");
    let list = [p.a.sge(0, REGION)];
    let op = SendOp::Read { va: p.b.va(0), rkey: p.b.key() };
    p.a.send(&SendWr::new(1, op, Data::List(&list)));
    p.run(100_000);
    assert_eq!(p.a.done, [wc(1, WcOpcode::Read, REGION as u32, p.a.qp)]);
    assert!(p.a.bytes(0, REGION).iter().all(|&b| b == 0x5a));
}

#[test]
fn send_variants_tell_the_receiver() {
    let mut p = pair(1024);
    let access = ALL_REMOTE | Access::LOCAL_WRITE | Access::INVALIDATE;
    let doomed = p.b.register(LAND, 4096, access);
    for id in 0..3 {
        p.b.recv(id, 0, 4096);
    }
    let list = [p.a.sge(0, 2000)];
    p.a.send(&SendWr::new(0, SendOp::SendImm(0xdead_beef), Data::List(&list)));
    p.a.send(&SendWr::new(1, SendOp::SendInvalidate(doomed.key()), Data::List(&list)));
    p.a.send(&SendWr::new(2, SendOp::SendInvalidate(p.b.key()), Data::Inline(b"x")));
    p.run(10_000);
    let ok = |id| wc(id, WcOpcode::Recv, 2000, p.b.qp);
    assert_eq!(p.b.done[0], WorkCompletion { imm: Some(0xdead_beef), ..ok(0) });
    assert_eq!(p.b.done[1], WorkCompletion { invalidated: Some(doomed.key()), ..ok(1) });
    assert!(!doomed.is_valid());
    assert_eq!((p.b.done[2].wr_id, p.b.done[2].status), (2, WcStatus::LocalProtection), "not allowed");
    use WcStatus::*;
    assert_eq!(p.a.statuses(), [(0, Success), (1, Success), (2, RemoteAccess)]);
}

#[test]
fn lists_gather_and_scatter() {
    let mut p = pair(256);
    // 700 bytes in pieces that cross packets in every way, one of them empty.
    let from = [p.a.sge(0, 5), p.a.sge(1000, 0), p.a.sge(2001, 400), p.a.sge(9000, 295)];
    let to = [p.b.sge(7, 300), p.b.sge(5000, 1), p.b.sge(6000, 399)];
    p.b.nic.post_recv(p.b.qp, 1, &to).expect("post_recv");
    p.a.send(&SendWr::new(1, SendOp::Send, Data::List(&from)));
    p.run(1000);
    let sent = [p.a.bytes(0, 5), p.a.bytes(2001, 400), p.a.bytes(9000, 295)].concat();
    let arrived = [p.b.bytes(7, 300), p.b.bytes(5000, 1), p.b.bytes(6000, 399)].concat();
    assert_eq!(arrived, sent);
    // READ scatters.
    let back = [p.a.sge(LAND, 1), p.a.sge(LAND + 10, 600), p.a.sge(LAND + 5000, 98)];
    p.a.send(&SendWr::new(2, SendOp::Read { va: p.b.va(6000), rkey: p.b.key() }, Data::List(&back)));
    p.run(1000);
    let read = [p.a.bytes(LAND, 1), p.a.bytes(LAND + 10, 600), p.a.bytes(LAND + 5000, 98)].concat();
    assert_eq!(read, p.b.bytes(6000, 699));
}

#[test]
fn inline_data_is_taken_when_posted() {
    let mut p = pair(1024);
    let mut data = *b"now";
    let op = SendOp::Write { va: p.b.va(5), rkey: p.b.key() };
    p.a.send(&SendWr::new(1, op, Data::Inline(&data)));
    data.fill(0);
    p.run(1000);
    assert_eq!((p.b.bytes(5, 3), data), (b"now".to_vec(), [0; 3]));
    let limit = p.a.nic.qp_init(p.a.qp).expect("live").max_inline as usize;
    let long = vec![0; limit + 1];
    let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(2, op, Data::Inline(&long)));
    assert!(matches!(refused, Err(NicError::TooLarge { given, .. }) if given == limit as u64 + 1), "{refused:?}");
    let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(3, SendOp::Read { va: 0, rkey: 0 }, Data::Inline(&[])));
    assert!(matches!(refused, Err(NicError::Unsupported(_))), "{refused:?}");
}

#[test]
fn atomics_give_the_old_value() {
    let mut p = pair(1024);
    p.b.buffer.store_u64(64, 40).expect("aligned");
    let (va, rkey, list) = (p.b.va(64), p.b.key(), [p.a.sge(LAND, 8)]);
    // (operation, old value, new value)
    let table = [
        (SendOp::FetchAdd { va, rkey, add: 2 }, 40, 42),
        (SendOp::CompareSwap { va, rkey, compare: 41, swap: 7 }, 42, 42),
        (SendOp::CompareSwap { va, rkey, compare: 42, swap: 7 }, 42, 7),
        (SendOp::FetchAdd { va, rkey, add: u64::MAX }, 7, 6),
    ];
    for (op, old, new) in table {
        p.a.send(&SendWr::new(1, op, Data::List(&list)));
        p.run(1000);
        assert_eq!((p.a.buffer.load_u64(LAND), p.b.buffer.load_u64(64)), (Ok(old), Ok(new)), "{op:?}");
        let done = p.a.take_done();
        assert_eq!((done.len(), done[0].status, done[0].byte_len), (1, WcStatus::Success, 8));
    }
    let short = [p.a.sge(LAND, 4)];
    let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(1, table[0].0, Data::List(&short)));
    assert!(matches!(refused, Err(NicError::Attribute { value: 4, .. })), "{refused:?}");
}

#[test]
fn only_signalled_sends_complete_and_free_the_queue() {
    let mut p = pair(1024);
    let (op, list) = (SendOp::Write { va: p.b.va(0), rkey: p.b.key() }, [p.a.sge(0, 64)]);
    for round in 0..5 {
        for id in 0..255 {
            p.a.send(&SendWr::new(id, op, Data::List(&list)).unsignaled());
        }
        p.a.send(&SendWr::new(1000 + round, op, Data::List(&list)));
        assert_eq!(p.a.nic.post_send(p.a.qp, &SendWr::new(0, op, Data::List(&list))), Err(NicError::Full));
        p.run(10_000);
        assert_eq!(p.a.take_done(), [wc(1000 + round, WcOpcode::Write, 0, p.a.qp)]);
    }
    p.a.send(&SendWr::new(7, op, Data::List(&list)).unsignaled());
    p.run(10_000);
    assert_eq!((p.a.take_done(), p.a.nic.sends_outstanding(p.a.qp)), (vec![], Ok(0)));
}

#[test]
fn a_fenced_write_sends_what_the_read_before_it_brought() {
    for fenced in [true, false] {
        let mut p = pair(1024);
        p.b.buffer.fill(0, 3000, 9).expect("in bounds");
        let (list, rkey) = ([p.a.sge(LAND, 3000)], p.b.key());
        p.a.send(&SendWr::new(1, SendOp::Read { va: p.b.va(0), rkey }, Data::List(&list)));
        let write = SendWr::new(2, SendOp::Write { va: p.b.va(LAND), rkey }, Data::List(&list));
        p.a.send(&if fenced { write.fenced() } else { write });
        p.run(1000);
        assert_eq!(p.a.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        let expected = if fenced { 9 } else { 0 };
        assert_eq!(p.b.bytes(LAND, 3000), vec![expected; 3000], "fenced: {fenced}");
    }
}

#[test]
fn reads_beyond_the_agreed_number_wait_their_turn() {
    let mut p = Pair::new(1, CLEAN, Setup { rd_atomic: 1, ..Setup::default() });
    let rkey = p.b.key();
    for id in 0..20 {
        let list = [p.a.sge(8 * id, 8)];
        p.a.send(&SendWr::new(id as u64, SendOp::FetchAdd { va: p.b.va(0), rkey, add: 1 }, Data::List(&list)));
    }
    p.run(1000);
    for id in 0..20 {
        assert_eq!(p.a.buffer.load_u64(8 * id), Ok(id as u64));
    }
    let mut p = Pair::new(1, CLEAN, Setup { rd_atomic: 0, ..Setup::default() });
    let read = SendOp::Read { va: p.b.va(0), rkey: p.b.key() };
    let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(1, read, Data::List(&[])));
    assert!(matches!(refused, Err(NicError::Unsupported(_))), "it would never start: {refused:?}");
}

#[test]
fn several_sends_are_posted_or_none() {
    let mut p = pair(1024);
    let (va, rkey) = (p.b.va(0), p.b.key());
    let list = [p.a.sge(0, 8)];
    let write = |id| SendWr::new(id, SendOp::Write { va, rkey }, Data::List(&list));
    let odd = SendWr::new(9, SendOp::CompareSwap { va, rkey, compare: 0, swap: 0 }, Data::List(&[]));
    let refused = p.a.nic.post_sends(p.a.qp, (0..5).map(write).chain([odd]));
    assert!(matches!(refused, Err(NicError::Attribute { value: 0, .. })), "{refused:?}");
    assert_eq!(p.a.nic.sends_outstanding(p.a.qp), Ok(0));
    // There is room for 256.
    assert_eq!(p.a.nic.post_sends(p.a.qp, (0..3).map(write)), Ok(()));
    assert_eq!(p.a.nic.post_sends(p.a.qp, (0..254).map(write)), Err(NicError::Full));
    assert_eq!(p.a.nic.post_sends(p.a.qp, (3..256).map(write)), Ok(()));
    p.run(1000);
    let ids: Vec<u64> = p.a.done.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..256).collect::<Vec<_>>());
}

#[test]
fn at_most_half_of_all_psns_are_outstanding() {
    let mut p = pair(256);
    let two_gigabytes = [Sge { va: p.a.va(0), len: 1 << 31, lkey: p.a.key() }];
    let a_packet_less = [Sge { len: (1 << 31) - 256, ..two_gigabytes[0] }];
    let (rkey, list) = (p.b.key(), [p.a.sge(0, 8)]);
    let read = SendOp::Read { va: p.b.va(0), rkey };
    let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(1, read, Data::List(&two_gigabytes)));
    assert!(matches!(refused, Err(NicError::TooLarge { limit, .. }) if limit == (1 << 31) - 256), "{refused:?}");
    p.a.send(&SendWr::new(1, read, Data::List(&a_packet_less)));
    p.a.send(&SendWr::new(2, SendOp::Write { va: p.b.va(0), rkey }, Data::List(&list)));
    p.cut[0] = true;
    p.logging = true;
    p.transmit();
    assert_eq!(p.log.len(), 1, "the WRITE waits");
}

#[test]
fn shared_receive_queue_serves_all_and_tells_its_limit() {
    let mut p = Pair::unconnected(1, CLEAN);
    let srq = p.b.nic.create_srq(p.b.pd, 8, 2).expect("shared receive queue");
    let init = QpInit { srq: Some(srq), ..QpInit::new(QpType::Rc, p.b.pd, p.b.cq, p.b.cq) };
    p.b.nic.destroy_qp(p.b.qp).expect("unused");
    p.b.qp = p.b.nic.create_qp(init).expect("queue pair");
    p.connect(Setup::default());
    assert!(matches!(p.b.nic.post_recv(p.b.qp, 1, &[]), Err(NicError::Unsupported(_))));
    for id in 0..4 {
        let list = [p.b.sge(id * 64, 64)];
        p.b.nic.post_srq_recv(srq, id as u64, &list).expect("room");
    }
    p.b.nic.modify_srq(srq, None, Some(3)).expect("live");
    p.b.take_events();
    let mut events = Vec::new();
    for id in 0..4 {
        p.a.send(&SendWr::new(id, SendOp::Send, Data::Inline(&[id as u8; 5])));
        p.run(1000);
        events.push(p.b.take_events().iter().filter(|e| matches!(e, Event::SrqLimit(_))).count());
    }
    assert_eq!(events, [0, 1, 0, 0], "told once, when fewer than 3 are left");
    let ids: Vec<_> = p.b.done.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(ids, [(0, 5), (1, 5), (2, 5), (3, 5)]);
    assert_eq!(p.b.nic.destroy_srq(srq), Err(NicError::InUse("shared receive queue")));
    p.b.nic.destroy_qp(p.b.qp).expect("live");
    assert_eq!(p.b.nic.destroy_srq(srq), Ok(()));
}

#[test]
fn completion_events_come_once_and_as_armed() {
    // (armed for solicited only, the send is solicited, an event is due)
    for (only, solicited, due) in [(false, false, 1), (false, true, 1), (true, false, 0), (true, true, 1)] {
        let mut p = pair(1024);
        for id in 0..4 {
            p.b.recv(id, 0, 64);
        }
        p.b.nic.arm_cq(p.b.cq, only).expect("live");
        for _ in 0..2 {
            let wr = SendWr::new(1, SendOp::Send, Data::Inline(b"a"));
            p.a.send(&if solicited { wr.solicited() } else { wr });
        }
        p.run(1000);
        let told = p.b.events.iter().filter(|e| **e == Event::Completion(p.b.cq)).count();
        assert_eq!(told, due, "only {only}, solicited {solicited}");
    }
    // A failed completion is solicited by its nature.
    let mut p = pair(1024);
    p.b.recv(1, 0, 64);
    p.b.nic.arm_cq(p.b.cq, true).expect("live");
    p.b.nic.to_error(p.b.qp).expect("live");
    assert!(p.b.take_events().contains(&Event::Completion(p.b.cq)));
}

/// A program frees what a work request's number stands for once its queue pair is gone.
#[test]
fn who_has_destroyed_a_queue_pair_hears_of_it_no_more() {
    let mut p = pair(1024);
    let init = QpInit::new(QpType::Rc, p.b.pd, p.b.cq, p.b.cq);
    let other = p.b.nic.create_qp(init).expect("queue pair");
    p.b.nic.to_init(other, ALL_REMOTE, 0).expect("new");
    p.b.nic.post_recv(other, 7, &[]).expect("room");
    p.b.recv(1, 0, 64);
    p.b.recv(2, 0, 64);
    for qp in [p.b.qp, other] {
        p.b.nic.to_error(qp).expect("live");
    }
    assert_eq!(p.b.nic.cq_len(p.b.cq), 3, "all are flushed");
    p.b.nic.destroy_qp(p.b.qp).expect("live");
    let left = std::iter::from_fn(|| p.b.nic.poll_cq(p.b.cq)).map(|wc| (wc.qpn, wc.wr_id)).collect::<Vec<_>>();
    assert_eq!(left, [(other, 7)], "only what is the other's");
}

#[test]
fn an_overrun_completion_queue_is_an_error_not_a_loss() {
    let mut p = Pair::unconnected(1, CLEAN);
    let small = p.b.nic.create_cq(2).expect("completion queue");
    p.b.nic.destroy_qp(p.b.qp).expect("unused");
    p.b.qp = p.b.nic.create_qp(QpInit::new(QpType::Rc, p.b.pd, p.b.cq, small)).expect("queue pair");
    p.connect(Setup::default());
    for id in 0..4 {
        p.b.recv(id, 0, 64);
    }
    for id in 0..4 {
        p.a.send(&SendWr::new(id, SendOp::Send, Data::Inline(b"a")));
    }
    p.run(1000);
    assert!(p.b.events.contains(&Event::CqOverrun(small)));
    assert!(p.b.events.contains(&Event::QpFatal(p.b.qp, WcStatus::LocalQpOperation)));
    use WcStatus::*;
    assert_eq!(p.a.statuses(), [(0, Success), (1, Success), (2, RemoteOperation), (3, Flushed)]);
    assert_eq!(p.b.nic.cq_len(small), 2);
}

#[test]
fn draining_finishes_what_started_and_nothing_else() {
    let mut p = pair(1024);
    let (op, list) = (SendOp::Write { va: p.b.va(0), rkey: p.b.key() }, [p.a.sge(0, 100_000)]);
    p.a.send(&SendWr::new(1, op, Data::List(&list)));
    p.step();
    p.a.nic.to_sqd(p.a.qp).expect("RTS to SQD");
    p.a.send(&SendWr::new(2, op, Data::List(&list)));
    p.run(10_000);
    assert_eq!(p.a.statuses(), [(1, WcStatus::Success)]);
    let drained = |p: &mut Pair| p.a.take_events().iter().filter(|e| matches!(e, Event::SqDrained(_))).count();
    assert_eq!((drained(&mut p), p.a.state()), (1, QpState::Sqd));
    assert_eq!(p.b.bytes(0, 100_000), p.a.bytes(0, 100_000));
    // The receive side works on.
    p.a.recv(9, LAND, 64);
    p.b.send(&SendWr::new(5, SendOp::Send, Data::Inline(b"hello")));
    p.run(10_000);
    assert_eq!(p.a.bytes(LAND, 5), b"hello");
    p.a.nic.to_rts(p.a.qp, RtsAttr::default()).expect("SQD to RTS");
    p.run(10_000);
    assert!(p.a.statuses().contains(&(2, WcStatus::Success)));
    // Nothing under way: drained at once.
    p.a.nic.to_sqd(p.a.qp).expect("RTS to SQD");
    assert_eq!(drained(&mut p), 1);
}

#[test]
fn the_error_state_flushes_in_order_and_reset_forgets() {
    let mut p = pair(1024);
    p.cut = [true; 2];
    let (op, list) = (SendOp::Write { va: p.b.va(0), rkey: p.b.key() }, [p.a.sge(0, 5000)]);
    for id in 0..3 {
        p.a.send(&SendWr::new(id, op, Data::List(&list)).unsignaled());
        p.a.recv(10 + id, 0, 64);
    }
    p.transmit();
    p.a.nic.to_error(p.a.qp).expect("live");
    p.a.send(&SendWr::new(3, op, Data::List(&list)));
    p.a.recv(13, 0, 64);
    p.a.collect();
    let ids = |opcode| p.a.done.iter().filter(move |wc| wc.opcode == opcode).map(|wc| wc.wr_id).collect::<Vec<_>>();
    assert_eq!((ids(WcOpcode::Write), ids(WcOpcode::Recv)), (vec![0, 1, 2, 3], vec![10, 11, 12, 13]));
    assert!(p.a.done.iter().all(|wc| wc.status == WcStatus::Flushed));
    assert!(!p.a.nic.wants_transmit());

    let mut p = pair(1024);
    p.cut = [true; 2];
    p.a.recv(1, 0, 64);
    p.a.send(&SendWr::new(1, op, Data::List(&[])));
    p.a.nic.to_reset(p.a.qp).expect("live");
    p.b.nic.to_reset(p.b.qp).expect("live");
    assert_eq!((p.a.take_done(), p.a.nic.sends_outstanding(p.a.qp)), (vec![], Ok(0)));
    // And everything works again.
    p.cut = [false; 2];
    p.connect(Setup { psn_a: 7, psn_b: 8, ..Setup::default() });
    p.a.send(&SendWr::new(4, SendOp::Write { va: p.b.va(0), rkey: p.b.key() }, Data::Inline(b"again")));
    p.run(1000);
    assert_eq!((p.a.statuses(), p.b.bytes(0, 5)), (vec![(4, WcStatus::Success)], b"again".to_vec()));
}

/// What the queue pair is in each state allowed to become (specification, figure 10-3).
#[test]
fn the_state_diagram() {
    use QpState::*;
    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
    let allowed = |from, to| match to {
        Reset | Err => true,
        Init => matches!(from, Reset | Init),
        Rtr => from == Init,
        Rts => matches!(from, Rtr | Sqd | Sqe),
        Sqd => from == Rts,
        Sqe => false,
    };
    for from in states {
        for to in states.into_iter().filter(|s| *s != Sqe) {
            let mut p = ud_pair();
            reach(&mut p, from);
            let result = go(&mut p, to);
            let expected = if allowed(from, to) { Ok(()) } else { Result::Err(NicError::Transition { from, to }) };
            assert_eq!(result, expected, "{from:?} to {to:?}");
            assert_eq!(p.a.state(), if allowed(from, to) { to } else { from }, "{from:?} to {to:?}");
        }
        // Posting.
        let mut p = ud_pair();
        reach(&mut p, from);
        let wr = SendWr::new(1, SendOp::Send, Data::Inline(b"a")).to(dest(&p, 1));
        let sends = p.a.nic.post_send(p.a.qp, &wr);
        let receives = p.a.nic.post_recv(p.a.qp, 2, &[]);
        let refused = Result::Err(NicError::State(from));
        assert_eq!(sends, if matches!(from, Reset | Init | Rtr) { refused } else { Ok(()) }, "{from:?}");
        assert_eq!(receives, if from == Reset { refused } else { Ok(()) }, "{from:?}");
    }
}

fn go(p: &mut Pair, to: QpState) -> Result<(), NicError> {
    let (nic, qp) = (&mut p.a.nic, p.a.qp);
    match to {
        QpState::Reset => nic.to_reset(qp),
        QpState::Init => nic.to_init(qp, ALL_REMOTE, 1),
        QpState::Rtr => nic.to_rtr(qp, rtr()),
        QpState::Rts => nic.to_rts(qp, RtsAttr::default()),
        QpState::Sqd => nic.to_sqd(qp),
        QpState::Err => nic.to_error(qp),
        QpState::Sqe => {
            // A datagram from memory that is not there.
            let bad = [Sge { va: 0, len: 4, lkey: 1 }];
            let wr = SendWr::new(1, SendOp::Send, Data::List(&bad)).to(dest(p, 1));
            p.a.send(&wr);
            p.transmit();
            Ok(())
        }
    }
}

fn reach(p: &mut Pair, state: QpState) {
    use QpState::*;
    let path: &[QpState] = match state {
        Reset => &[],
        Init => &[Init],
        Rtr => &[Init, Rtr],
        Rts => &[Init, Rtr, Rts],
        Sqd => &[Init, Rtr, Rts, Sqd],
        Sqe => &[Init, Rtr, Rts, Sqe],
        Err => &[Err],
    };
    for step in path {
        go(p, *step).expect("an arrow of the diagram");
    }
    assert_eq!(p.a.state(), state);
}

fn rtr() -> RtrAttr {
    RtrAttr {
        route: Route { local: A, remote: B, link: 0 },
        dest_qp: 0,
        rq_psn: Psn::new(0),
        path_mtu: 1024,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
    }
}

#[test]
fn attributes_out_of_range_are_refused() {
    let mut p = Pair::unconnected(1, CLEAN);
    go(&mut p, QpState::Init).expect("INIT");
    for mtu in [0, 255, 1500, 8192] {
        let refused = p.a.nic.to_rtr(p.a.qp, RtrAttr { path_mtu: mtu, ..rtr() });
        assert!(matches!(refused, Err(NicError::Attribute { .. })), "{refused:?}");
    }
    assert!(p.a.nic.to_rtr(p.a.qp, RtrAttr { min_rnr_timer: 32, ..rtr() }).is_err());
    go(&mut p, QpState::Rtr).expect("RTR");
    assert!(p.a.nic.to_rts(p.a.qp, RtsAttr { timeout: 32, ..RtsAttr::default() }).is_err());
    assert!(p.a.nic.to_rts(p.a.qp, RtsAttr { retry_count: 8, ..RtsAttr::default() }).is_err());
    let huge = QpInit { max_rpc: u32::MAX, ..QpInit::new(QpType::Rc, p.a.pd, p.a.cq, p.a.cq) };
    assert!(matches!(p.a.nic.create_qp(huge), Err(NicError::TooLarge { .. })));
    let huge = QpInit { max_recv_wr: u32::MAX, ..QpInit::new(QpType::Rc, p.a.pd, p.a.cq, p.a.cq) };
    assert!(matches!(p.a.nic.create_qp(huge), Err(NicError::TooLarge { .. })));
}

/// Two datagram queue pairs in RESET.
fn ud_pair() -> Pair {
    let mut p = Pair::unconnected(1, CLEAN);
    for side in [&mut p.a, &mut p.b] {
        side.nic.destroy_qp(side.qp).expect("unused");
        side.qp = side.nic.create_qp(QpInit::new(QpType::Ud, side.pd, side.cq, side.cq)).expect("queue pair");
    }
    p
}

fn ud_connected() -> Pair {
    let mut p = ud_pair();
    for (side, qkey) in [(&mut p.a, 1), (&mut p.b, 0x1234)] {
        side.nic.to_init(side.qp, ALL_REMOTE, qkey).expect("INIT");
        side.nic.to_rtr(side.qp, rtr()).expect("RTR");
        side.nic.to_rts(side.qp, RtsAttr::default()).expect("RTS");
    }
    p
}

fn dest(p: &Pair, qkey: u32) -> UdDest {
    UdDest { route: Route { local: A, remote: B, link: 0 }, qpn: p.b.qp.0, qkey }
}

#[test]
fn datagrams_bring_their_ip_header() {
    let mut p = ud_connected();
    let (to, list) = (dest(&p, 0x1234), [p.a.sge(0, 5)]);
    p.a.buffer.write(0, b"hello").expect("in bounds");
    p.b.recv(1, 0, 100);
    p.b.recv(2, 200, 100);
    p.a.send(&SendWr::new(1, SendOp::Send, Data::List(&list)).to(to));
    p.a.send(&SendWr::new(2, SendOp::SendImm(77), Data::Inline(b"")).to(to).solicited());
    p.run(1000);
    let arrived = WorkCompletion { src_qp: p.a.qp.0, src: Some(A), ..wc(1, WcOpcode::Recv, 45, p.b.qp) };
    assert_eq!(p.b.done, [arrived, WorkCompletion { wr_id: 2, byte_len: 40, imm: Some(77), ..arrived }]);
    let bytes = p.b.bytes(0, 45);
    assert_eq!(&bytes[40..], b"hello");
    // Annex A17: 20 bytes unused, then the IPv4 header: 20 IP, 8 UDP, 12 BTH, 8 DETH, 5 + 3 pad, 4 ICRC.
    let ip = Ipv4::parse(&[&bytes[20..40], &[0; 40]].concat()).expect("its checksum is right");
    assert_eq!((IpAddr::V4(ip.src), IpAddr::V4(ip.dst), ip.total_len, ip.protocol, ip.ttl), (A, B, 60, 17, 64));
    assert_eq!(p.a.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn datagrams_that_do_not_fit_are_dropped_or_refused() {
    let mut p = ud_connected();
    p.b.recv(1, 0, 4096);
    let long = [p.a.sge(0, 1025)];
    let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(1, SendOp::Send, Data::List(&long)).to(dest(&p, 1)));
    assert!(matches!(refused, Err(NicError::TooLarge { given: 1025, limit: 1024, .. })), "{refused:?}");
    let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(1, SendOp::Send, Data::Inline(b"a")));
    assert!(matches!(refused, Err(NicError::Unsupported(_))), "no destination: {refused:?}");
    let write = SendOp::Write { va: 0, rkey: 0 };
    let refused = p.a.nic.post_send(p.a.qp, &SendWr::new(1, write, Data::Inline(b"a")).to(dest(&p, 1)));
    assert!(matches!(refused, Err(NicError::Unsupported(_))), "{refused:?}");
    // Wrong queue key: gone without a trace but the counter.
    p.a.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"a")).to(dest(&p, 0x1235)));
    p.run(1000);
    assert_eq!((p.b.done.len(), p.b.nic.counters().dropped), (0, 1));
    // No receive: dropped too, the sender does not learn it.
    let good = dest(&p, 0x1234);
    for _ in 0..2 {
        p.a.send(&SendWr::new(2, SendOp::Send, Data::Inline(b"a")).to(good));
    }
    p.run(1000);
    assert_eq!((p.b.done.len(), p.b.nic.counters().dropped), (1, 2));
    // A receive without room ends in an error.
    p.b.recv(3, 0, 44);
    p.a.send(&SendWr::new(2, SendOp::Send, Data::Inline(b"hello")).to(good));
    p.run(1000);
    assert_eq!((p.b.done[1].wr_id, p.b.done[1].status, p.b.state()), (3, WcStatus::LocalLength, QpState::Err));
}

#[test]
fn a_datagram_error_stops_the_send_queue_alone() {
    let mut p = ud_connected();
    let (to, bad) = (dest(&p, 0x1234), [Sge { va: 0, len: 4, lkey: 1 }]);
    p.a.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"a")).to(to).unsignaled());
    p.a.send(&SendWr::new(2, SendOp::Send, Data::List(&bad)).to(to).unsignaled());
    p.a.send(&SendWr::new(3, SendOp::Send, Data::Inline(b"a")).to(to).unsignaled());
    p.run(1000);
    use WcStatus::*;
    assert_eq!(p.a.statuses(), [(2, LocalProtection), (3, Flushed)]);
    p.a.send(&SendWr::new(4, SendOp::Send, Data::Inline(b"a")).to(to));
    p.run(1000);
    assert_eq!((p.a.statuses(), p.a.state()), (vec![(2, LocalProtection), (3, Flushed), (4, Flushed)], QpState::Sqe));
    p.a.nic.to_rts(p.a.qp, RtsAttr::default()).expect("SQE to RTS");
    p.b.recv(1, 0, 100);
    p.a.send(&SendWr::new(5, SendOp::Send, Data::Inline(b"a")).to(to));
    p.run(1000);
    assert_eq!(p.a.done[3].status, Success);
}
