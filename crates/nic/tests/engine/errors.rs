//! Bad requests, bad answers and bad peers: each ends in the NAK and the completion status that the specification
//! names, and no byte outside the exposed region changes.

use std::sync::Arc;

use crate::common::bare::{Bare, PEER_QP, ack, nak};
use crate::common::{A, B, CLEAN, Pair, REGION, Setup};
use remora_memory::{Access, Region};
use remora_nic::*;
use remora_wire::packet::Packet;
use remora_wire::{Aeth, AtomicAckEth, AtomicEth, Feth, NakCode, Opcode, Psn, Syndrome};

/// The exposed region: `LEN` bytes at `AT` of a buffer that is otherwise guard bytes.
const AT: usize = 4096;
const LEN: usize = 16384;
const GUARD: u8 = 0xc5;
const PSN: u32 = 100;

/// An engine with one exposed region between guard bytes. No receive is posted.
fn exposed(access: Access) -> (Bare, Arc<Region>) {
    let bare = Bare::new(Setup { mtu: 256, psn_a: PSN, psn_b: 5000, ..Setup::default() });
    bare.side.buffer.fill(0, REGION, GUARD).expect("in bounds");
    let region = bare.side.register(AT, LEN, access);
    (bare, region)
}

fn all_rights() -> Access {
    ALL_REMOTE | Access::LOCAL_WRITE
}

/// Nothing around the region has changed; and the region neither, if `inside` says so.
fn assert_guards(bare: &Bare, inside: bool, what: &str) {
    let bytes = bare.side.bytes(0, REGION);
    let changed = bytes.iter().enumerate().find(|&(at, &b)| b != GUARD && (inside || !(AT..AT + LEN).contains(&at)));
    assert_eq!(changed, None, "{what}");
}

/// The one packet that table rows are about.
enum Ask {
    Write(u64, u32, u32, usize),
    Read(u64, u32, u32),
    FetchAdd(u64, u32),
}

fn ask<'a>(bare: &Bare, ask: &Ask, data: &'a [u8]) -> Packet<'a> {
    match *ask {
        Ask::Write(va, key, len, n) => bare.with_reth(Opcode::RcWriteOnly, PSN, (va, key, len), &data[..n]),
        Ask::Read(va, key, len) => bare.with_reth(Opcode::RcReadRequest, PSN, (va, key, len), &[]),
        Ask::FetchAdd(va, key) => bare.fetch_add(PSN, va, key),
    }
}

#[test]
fn requests_that_the_memory_does_not_allow_are_refused() {
    use NakCode::{InvalidRequest as Invalid, RemoteAccess as Denied};
    type Row = (&'static str, Access, fn(u64, u32) -> Ask, NakCode);
    let all = all_rights();
    let table: &[Row] = &[
        ("WRITE, wrong key", all, |va, key| Ask::Write(va, key ^ 1, 8, 8), Denied),
        ("READ, wrong key", all, |va, key| Ask::Read(va, key ^ 0x100, 8), Denied),
        ("atomic, wrong key", all, |va, _| Ask::FetchAdd(va, 0), Denied),
        ("WRITE without the right", all - Access::REMOTE_WRITE, |va, key| Ask::Write(va, key, 8, 8), Denied),
        ("READ without the right", all - Access::REMOTE_READ, |va, key| Ask::Read(va, key, 8), Denied),
        ("atomic without the right", all - Access::REMOTE_ATOMIC, Ask::FetchAdd, Denied),
        ("WRITE one byte past the end", all, |va, key| Ask::Write(va + LEN as u64 - 7, key, 8, 8), Denied),
        ("WRITE one byte before", all, |va, key| Ask::Write(va - 1, key, 8, 8), Denied),
        ("READ one byte past the end", all, |va, key| Ask::Read(va, key, LEN as u32 + 1), Denied),
        ("READ of everything and more", all, |va, key| Ask::Read(va, key, 1 << 31), Denied),
        ("READ that wraps around", all, |_, key| Ask::Read(u64::MAX - 3, key, 8), Denied),
        ("WRITE that wraps around", all, |_, key| Ask::Write(u64::MAX - 3, key, 8, 8), Denied),
        ("WRITE that ends at zero", all, |_, key| Ask::Write(u64::MAX - 7, key, 8, 8), Denied),
        ("atomic past the end", all, |va, key| Ask::FetchAdd(va + LEN as u64, key), Denied),
        ("atomic that wraps around", all, |_, key| Ask::FetchAdd(u64::MAX - 7, key), Denied),
        ("misaligned atomic", all, |va, key| Ask::FetchAdd(va + 4, key), Invalid),
        ("READ over 2 GB", all, |va, key| Ask::Read(va, key, (1 << 31) + 1), Invalid),
        ("WRITE over 2 GB", all, |va, key| Ask::Write(va, key, u32::MAX, 8), Invalid),
        ("WRITE shorter than its RETH", all, |va, key| Ask::Write(va, key, 9, 8), Invalid),
        ("WRITE longer than its RETH", all, |va, key| Ask::Write(va, key, 7, 8), Invalid),
        ("WRITE of nothing with data", all, |va, key| Ask::Write(va, key, 0, 4), Invalid),
        ("WRITE ONLY over the MTU", all, |va, key| Ask::Write(va, key, 257, 257), Invalid),
    ];
    for (what, access, make, code) in table {
        let (mut bare, region) = exposed(*access);
        let packet = ask(&bare, &make(region.va(), region.key()), &[0; 300]);
        assert_eq!(bare.exchange(&packet), [nak(PSN, *code)], "{what}");
        assert_eq!(bare.side.state(), QpState::Err, "{what}");
        assert_guards(&bare, true, what);
        let why = if *code == Invalid { WcStatus::RemoteInvalidRequest } else { WcStatus::RemoteAccess };
        assert!(bare.side.take_events().contains(&Event::QpFatal(bare.side.qp, why)), "{what}");
    }
}

#[test]
fn the_queue_pair_has_rights_of_its_own() {
    type Row = (Access, fn(u64, u32) -> Ask);
    let rows: [Row; 3] = [
        (Access::REMOTE_WRITE, |va, key| Ask::Write(va, key, 8, 8)),
        (Access::REMOTE_READ, |va, key| Ask::Read(va, key, 8)),
        (Access::REMOTE_ATOMIC, Ask::FetchAdd),
    ];
    for (right, make) in rows {
        let (mut bare, region) = exposed(all_rights());
        bare.side.nic.to_reset(bare.side.qp).expect("live");
        bare.side.nic.to_init(bare.side.qp, ALL_REMOTE - right, 0).expect("INIT");
        let attr = RtrAttr {
            route: Route { local: B, remote: A, link: 0 },
            dest_qp: PEER_QP,
            rq_psn: Psn::new(PSN),
            path_mtu: 256,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
        };
        bare.side.nic.to_rtr(bare.side.qp, attr).expect("RTR");
        let packet = ask(&bare, &make(region.va(), region.key()), &[0; 8]);
        assert_eq!(bare.exchange(&packet), [nak(PSN, NakCode::RemoteAccess)], "{right:?}");
        assert_guards(&bare, true, "right of the queue pair");
    }
}

#[test]
fn another_protection_domain_is_out_of_reach() {
    let (mut bare, _) = exposed(all_rights());
    let registry = bare.side.nic.registry().clone();
    let (other, len) = (registry.alloc_pd(), LEN);
    let region = registry.register(other, &bare.side.buffer, AT, len, None, all_rights()).expect("region");
    let packet = bare.with_reth(Opcode::RcWriteOnly, PSN, (region.va(), region.key(), 8), &[0; 8]);
    assert_eq!(bare.exchange(&packet), [nak(PSN, NakCode::RemoteAccess)]);
    assert_guards(&bare, true, "another protection domain");
    // Nor can a peer take its key away.
    let (mut bare, _) = exposed(all_rights());
    let registry = bare.side.nic.registry().clone();
    let other = registry.alloc_pd();
    let region = registry.register(other, &bare.side.buffer, AT, len, None, all_rights()).expect("region");
    bare.side.recv(1, 0, 0);
    let ieth = Some(remora_wire::Ieth { rkey: region.key() });
    let packet = Packet { ieth, ..bare.packet(Opcode::RcSendOnlyInv, PSN, &[]) };
    assert_eq!(bare.exchange(&packet), [nak(PSN, NakCode::RemoteAccess)]);
    assert!(region.is_valid());
}

/// Sequences of op-codes with payload lengths; all but the last are right, the last is refused.
#[test]
fn op_codes_out_of_order_and_packets_of_wrong_length_are_refused() {
    use Opcode::*;
    const M: usize = 256;
    let table: &[&[(Opcode, usize)]] = &[
        &[(RcSendMiddle, M)],
        &[(RcSendLast, 5)],
        &[(RcWriteMiddle, M)],
        &[(RcWriteLast, 5)],
        &[(RcWriteLastImm, 5)],
        &[(RcSendFirst, M), (RcSendOnly, 5)],
        &[(RcSendFirst, M), (RcSendFirst, M)],
        &[(RcSendFirst, M), (RcWriteMiddle, M)],
        &[(RcSendFirst, M), (RcWriteLast, M)],
        &[(RcSendFirst, M), (RcReadRequest, 0)],
        &[(RcSendFirst, M), (RcFetchAdd, 0)],
        &[(RcWriteFirst, M), (RcSendLast, 5)],
        &[(RcWriteFirst, M), (RcWriteOnly, 5)],
        &[(RcWriteFirst, M), (RcReadRequest, 0)],
        &[(RcWriteFirst, M), (RpcWriteMiddle, M)],
        &[(RpcWriteOnly, 8)],
        &[(RpcWriteMiddle, M)],
        &[(RcSendFirst, M - 1)],
        &[(RcSendFirst, M + 4)],
        &[(RcSendFirst, 0)],
        &[(RcSendFirst, M), (RcSendMiddle, M - 4)],
        &[(RcSendFirst, M), (RcSendMiddle, M + 1)],
        &[(RcSendFirst, M), (RcSendLast, 0)],
        &[(RcSendFirst, M), (RcSendLast, M + 1)],
        &[(RcSendOnly, M + 1)],
        &[(RcWriteFirst, M - 4)],
        &[(RcWriteFirst, M), (RcWriteMiddle, M - 4)],
        &[(RcWriteFirst, M), (RcWriteLast, 0)],
        &[(RcWriteFirst, M), (RcWriteLast, M + 4)],
        // The RETHs below say 3 x MTU.
        &[(RcWriteFirst, M), (RcWriteLast, M)],
        &[(RcWriteFirst, M), (RcWriteMiddle, M), (RcWriteMiddle, M)],
        &[(RcReadRequest, 4)],
        &[(RcAtomicWrite, 8)],
        &[(RcFlush, 0)],
    ];
    for row in table {
        let (mut bare, region) = exposed(all_rights());
        let local = bare.side.sge(AT, LEN);
        bare.side.nic.post_recv(bare.side.qp, 1, &[local]).expect("room");
        for (n, &(opcode, len)) in row.iter().enumerate() {
            let (psn, data) = (PSN + n as u32, [1; 300]);
            let mut packet = bare.packet(opcode, psn, &data[..len]);
            if opcode.has_reth() {
                packet.reth = Some(remora_wire::Reth { va: region.va(), rkey: region.key(), len: 3 * M as u32 });
            }
            if opcode.has_atomic_eth() {
                packet.atomic_eth = Some(AtomicEth { va: region.va(), rkey: region.key(), swap_or_add: 1, compare: 0 });
            }
            packet.imm = opcode.has_imm().then_some(remora_wire::ImmDt(1));
            packet.feth = opcode.has_feth().then_some(Feth { placement: 1, selectivity: 0, reserved: 0 });
            let last = n + 1 == row.len();
            let expected = if last { nak(psn, NakCode::InvalidRequest) } else { ack(psn) };
            assert_eq!(bare.exchange(&packet), [expected], "{row:?}, packet {n}");
        }
        assert_eq!(bare.side.state(), QpState::Err, "{row:?}");
        let done: Vec<_> = bare.side.take_done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(1, WcStatus::Flushed)], "{row:?}: the receive comes back");
        assert_guards(&bare, false, &format!("{row:?}"));
    }
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut bare = Bare::new(Setup { rd_atomic: 2, psn_a: PSN, ..Setup::default() });
    let (va, key) = (bare.side.va(0), bare.side.key());
    for n in 0..3 {
        bare.give(&bare.with_reth(Opcode::RcReadRequest, PSN + n, (va, key, 8), &[]));
    }
    let said = bare.brief();
    let response = |psn| (Opcode::RcReadResponseOnly, psn, Some(0x1f));
    assert_eq!(said, [response(PSN), response(PSN + 1), nak(PSN + 2, NakCode::InvalidRequest)]);
}

/// A NAK must not overtake the responses to the requests before it.
#[test]
fn reads_before_a_bad_request_are_answered() {
    let mut p = Pair::new(1, CLEAN, Setup::default());
    p.b.buffer.fill(0, 8192, 3).expect("in bounds");
    let (list, rkey) = ([p.a.sge(0, 8192)], p.b.key());
    p.a.send(&SendWr::new(1, SendOp::Read { va: p.b.va(0), rkey }, Data::List(&list)));
    p.a.send(&SendWr::new(2, SendOp::Write { va: p.b.va(0), rkey: rkey ^ 1 }, Data::Inline(b"bad")));
    p.a.send(&SendWr::new(3, SendOp::Write { va: p.b.va(0), rkey }, Data::Inline(b"late")));
    p.run(1000);
    use WcStatus::*;
    assert_eq!(p.a.statuses(), [(1, Success), (2, RemoteAccess), (3, Flushed)]);
    assert_eq!((p.a.bytes(0, 8192), p.b.bytes(0, 4)), (vec![3; 8192], vec![3; 4]));
}

#[test]
fn a_send_longer_than_the_receive_fails_at_both_ends() {
    for len in [65, 300, 5000] {
        let mut p = Pair::new(1, CLEAN, Setup { mtu: 256, ..Setup::default() });
        p.b.buffer.fill(0, 8192, GUARD).expect("in bounds");
        p.b.recv(1, 1024, 64);
        p.b.recv(2, 1024, 64);
        let list = [p.a.sge(0, len)];
        p.a.send(&SendWr::new(1, SendOp::Send, Data::List(&list)));
        p.a.send(&SendWr::new(2, SendOp::Send, Data::List(&list)));
        p.run(1000);
        use WcStatus::*;
        assert_eq!(p.a.statuses(), [(1, RemoteInvalidRequest), (2, Flushed)], "{len} B");
        assert_eq!(p.b.statuses(), [(1, LocalLength), (2, Flushed)], "{len} B");
        let told = |event: &Event| matches!(event, Event::QpRequestError(_));
        assert!(!p.b.take_events().iter().any(told), "the receive says it");
        let outside = [p.b.bytes(0, 1024), p.b.bytes(1024 + 64, 4096)].concat();
        assert!(outside.iter().all(|&b| b == GUARD), "{len} B");
    }
}

#[test]
fn a_receive_into_forbidden_memory_is_an_operational_error() {
    let mut p = Pair::new(1, CLEAN, Setup::default());
    let constant = p.b.register(0, 4096, Access::REMOTE_READ);
    let list = [Sge { va: constant.va(), len: 64, lkey: constant.key() }];
    p.b.nic.post_recv(p.b.qp, 1, &list).expect("room");
    p.a.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"abc")));
    p.run(1000);
    assert_eq!(p.a.statuses(), [(1, WcStatus::RemoteOperation)]);
    assert_eq!(p.b.statuses(), [(1, WcStatus::LocalProtection)]);
}

#[test]
fn a_local_protection_error_lets_earlier_sends_finish() {
    let good = |p: &Pair| p.a.sge(0, 3000);
    type Bad = fn(&Pair) -> Sge;
    let rows: [(&str, Bad); 4] = [
        ("wrong key", |p| Sge { lkey: p.a.key() ^ 1, ..p.a.sge(0, 10) }),
        ("past the end", |p| p.a.sge(REGION - 5, 10)),
        ("wraps around", |p| Sge { va: u64::MAX - 2, ..p.a.sge(0, 10) }),
        ("in the third packet", |p| Sge { lkey: 0, ..p.a.sge(0, 10) }),
    ];
    // With no timeout, nothing but an acknowledgement can end the earlier, unsignalled sends.
    for timeout in [0, 8] {
        for (what, bad) in rows {
            let rts = RtsAttr { timeout, ..RtsAttr::default() };
            let mut p = Pair::new(1, CLEAN, Setup { rts, ..Setup::default() });
            let op = SendOp::Write { va: p.b.va(0), rkey: p.b.key() };
            let (first, second) = ([good(&p)], [p.a.sge(0, if what.contains("third") { 2048 } else { 0 }), bad(&p)]);
            p.a.buffer.fill(0, 3000, 6).expect("in bounds");
            let wr = SendWr::new(1, op, Data::List(&first));
            p.a.send(&if timeout == 0 { wr.unsignaled() } else { wr });
            p.a.send(&SendWr::new(2, op, Data::List(&first)).unsignaled());
            p.a.send(&SendWr::new(3, op, Data::List(&second)).unsignaled());
            p.a.send(&SendWr::new(4, op, Data::List(&first)));
            p.run(1000);
            use WcStatus::*;
            let expected = [(1, Success), (3, LocalProtection), (4, Flushed)];
            assert_eq!(p.a.statuses(), expected[usize::from(timeout == 0)..], "{what}, timeout {timeout}");
            assert_eq!(p.b.bytes(0, 3000), [6; 3000], "{what}");
            assert_eq!(p.a.state(), QpState::Err, "{what}");
        }
    }
    // READ and atomic results need the right to write.
    let mut p = Pair::new(1, CLEAN, Setup::default());
    let constant = p.a.register(0, 64, Access::REMOTE_READ);
    let list = [Sge { va: constant.va(), len: 8, lkey: constant.key() }];
    p.a.send(&SendWr::new(1, SendOp::Write { va: p.b.va(0), rkey: p.b.key() }, Data::Inline(b"a")).unsignaled());
    p.a.send(&SendWr::new(2, SendOp::Read { va: p.b.va(0), rkey: p.b.key() }, Data::List(&list)));
    p.run(1000);
    assert_eq!(p.a.statuses(), [(2, WcStatus::LocalProtection)]);
    assert_eq!(p.b.bytes(0, 1), b"a");
}

#[test]
fn a_receiver_that_is_never_ready() {
    for rnr_retry in [0, 1, 6] {
        let rts = RtsAttr { timeout: 14, rnr_retry, ..RtsAttr::default() };
        let mut p = Pair::new(1, CLEAN, Setup { rts, ..Setup::default() });
        p.a.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"a")));
        p.a.send(&SendWr::new(2, SendOp::Send, Data::Inline(b"b")));
        p.run(1000);
        assert_eq!(p.a.statuses(), [(1, WcStatus::RnrRetryExceeded), (2, WcStatus::Flushed)]);
        assert_eq!(p.b.nic.counters().rnr_naks, u64::from(rnr_retry) + 1, "first try and {rnr_retry} more");
        assert_eq!(p.b.state(), QpState::Rts, "the receiver has done nothing wrong");
    }
    // 7 is for ever.
    let mut p = Pair::new(1, CLEAN, Setup::default());
    p.a.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"a")));
    p.run_for(20_000_000);
    // More and more rarely: a millisecond passes between two at last.
    let naks = p.b.nic.counters().rnr_naks;
    assert!(p.a.done.is_empty() && (20..40).contains(&naks), "{naks}");
    p.b.recv(1, 0, 8);
    p.run(1000);
    assert_eq!((p.a.statuses(), p.b.bytes(0, 1)), (vec![(1, WcStatus::Success)], b"a".to_vec()));
}

#[test]
fn the_rnr_timer_is_kept_and_a_doubled_nak_counts_once() {
    let rts = RtsAttr { rnr_retry: 1, ..RtsAttr::default() };
    let mut bare = Bare::new(Setup { rts, psn_b: 10, ..Setup::default() });
    bare.side.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"a")));
    assert_eq!(bare.brief(), [(Opcode::RcSendOnly, 10, None)]);
    let not_ready = bare.aeth(10, Syndrome::RnrNak { timer: 12 });
    assert_eq!(bare.exchange(&not_ready), []);
    assert_eq!(bare.exchange(&not_ready), []);
    assert_eq!(bare.side.nic.poll_timeout(), Some(640_000), "code 12 is 640 us");
    assert!(bare.next_timer());
    assert_eq!(bare.brief(), [(Opcode::RcSendOnly, 10, None)]);
    assert_eq!(bare.exchange(&bare.aeth(10, Syndrome::Ack { credits: 31 })), []);
    assert_eq!(bare.side.take_done()[0].status, WcStatus::Success);
}

#[test]
fn a_silent_peer_ends_in_retry_exceeded() {
    let data = Data::Inline(b"a");
    for retry_count in [0, 1, 7] {
        let mut bare = Bare::new(Setup {
            rts: RtsAttr { retry_count, timeout: 10, ..RtsAttr::default() },
            psn_b: 0,
            ..Setup::default()
        });
        let op = SendOp::Write { va: 0, rkey: 0 };
        bare.side.send(&SendWr::new(1, op, data));
        bare.side.send(&SendWr::new(2, op, data));
        let mut sent = 0;
        loop {
            sent += bare.said().iter().filter(|s| s.psn == 0).count();
            if !bare.next_timer() || !bare.side.nic.wants_transmit() {
                break;
            }
        }
        assert_eq!(sent, 1 + usize::from(retry_count));
        let done: Vec<_> = bare.side.take_done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
        let waited: u64 = (0..=retry_count).map(|n| (4096 << 10) << n.min(2)).sum();
        assert_eq!(bare.now, waited, "4.096 us x 2^10, doubled up to fourfold");
    }
}

#[test]
fn a_region_that_goes_away_during_a_read() {
    let (mut bare, region) = exposed(all_rights());
    bare.give(&bare.with_reth(Opcode::RcReadRequest, PSN, (region.va(), region.key(), LEN as u32), &[]));
    let side = &mut bare.side;
    assert!(side.nic.poll_transmit(0, &mut side.batch));
    let sent = side.batch.len() as u32;
    assert!(sent > 0 && sent < LEN as u32 / 256, "{sent} packets: the response is under way");
    side.nic.registry().deregister(region.key()).expect("live");
    assert_eq!(bare.brief(), [nak(PSN + sent, NakCode::RemoteAccess)]);
    assert_eq!(bare.side.state(), QpState::Err);
    // The requester's view of the same.
    let mut p = Pair::new(1, CLEAN, Setup::default());
    let list = [p.a.sge(0, 8192)];
    let doomed = p.b.register(0, 8192, all_rights());
    p.a.send(&SendWr::new(1, SendOp::Read { va: doomed.va(), rkey: doomed.key() }, Data::List(&list)));
    p.a.send(&SendWr::new(2, SendOp::Read { va: p.b.va(0), rkey: p.b.key() }, Data::List(&list)));
    p.b.nic.registry().deregister(doomed.key()).expect("live");
    p.run(1000);
    assert_eq!(p.a.statuses(), [(1, WcStatus::RemoteAccess), (2, WcStatus::Flushed)]);
}

#[test]
fn responses_that_make_no_sense() {
    use Opcode::*;
    // (what the engine asked, the peer's answer, its payload): READs are of 600 B at an MTU of 256.
    let table: &[(bool, Opcode, usize)] = &[
        (true, RcReadResponseFirst, 255),
        (true, RcReadResponseFirst, 257),
        (true, RcReadResponseFirst, 0),
        (true, RcReadResponseOnly, 256),
        (true, RcReadResponseLast, 88),
        (true, RcAtomicAck, 0),
        (false, RcReadResponseOnly, 8),
    ];
    for &(read, opcode, len) in table {
        let (mut bare, region) = exposed(all_rights());
        let list = [Sge { va: region.va(), len: if read { 600 } else { 8 }, lkey: region.key() }];
        let (va, rkey) = (0, 0);
        let op = if read { SendOp::Read { va, rkey } } else { SendOp::FetchAdd { va, rkey, add: 1 } };
        bare.side.send(&SendWr::new(1, op, Data::List(&list)));
        assert_eq!(bare.said().len(), 1);
        let data = [0; 300];
        let mut packet = bare.packet(opcode, 5000, &data[..len]);
        packet.aeth = opcode.has_aeth().then_some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 });
        packet.atomic_ack_eth = opcode.has_atomic_ack_eth().then_some(AtomicAckEth { original: 0 });
        assert_eq!(bare.exchange(&packet), []);
        let done: Vec<_> = bare.side.take_done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(1, WcStatus::BadResponse)], "{opcode:?}, {len} B");
        assert_guards(&bare, true, "a bad response");
    }
}

#[test]
fn naks_become_completion_statuses() {
    let table = [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        (NakCode::RemoteOperational, WcStatus::RemoteOperation),
    ];
    for (code, status) in table {
        let mut bare = Bare::new(Setup { psn_b: 5000, ..Setup::default() });
        for id in 0..3 {
            let op = SendOp::Write { va: 0, rkey: 0 };
            bare.side.send(&SendWr::new(id, op, Data::Inline(b"a")));
        }
        assert_eq!(bare.said().len(), 3);
        bare.give(&bare.aeth(5001, Syndrome::Nak(code)));
        let done: Vec<_> = bare.side.take_done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(0, WcStatus::Success), (1, status), (2, WcStatus::Flushed)], "{code:?}");
    }
}

/// A receive may have room for more than 4 GB, in elements that overlap. What comes ends at 2 GB all the same, before
/// its length would wrap.
#[test]
fn a_message_over_two_gigabytes_is_refused() {
    const PIECE: usize = 72 << 20;
    let setup = Setup { mtu: 4096, psn_a: 0, psn_b: 5000, ..Setup::default() };
    let mut bare = Bare::sized(setup, PIECE);
    let init = bare.side.nic.qp_init(bare.side.qp).expect("live");
    bare.side.renew(QpInit { max_recv_sge: 32, ..init });
    bare.side.bring_up(A, Qpn(PEER_QP), (5000, 0), setup);
    let sges = [bare.side.sge(0, PIECE); 32];
    bare.side.nic.post_recv(bare.side.qp, 1, &sges).expect("room");
    let data = [7; 4096];
    let mut packet = crate::common::bare::bytes_of(&bare.packet(Opcode::RcSendMiddle, 0, &data));
    let mut say = |bare: &mut Bare, opcode: Opcode, psn: u32| {
        packet[0] = opcode.as_u8();
        // The PSN, without asking for an ACK.
        packet[8..12].copy_from_slice(&psn.to_be_bytes());
        bare.give_bytes(&packet);
    };
    let packets = (1 << 31) / 4096;
    say(&mut bare, Opcode::RcSendFirst, 0);
    (1..packets).for_each(|psn| say(&mut bare, Opcode::RcSendMiddle, psn));
    assert_eq!(bare.side.take_done().len(), 0, "2 GB have come");
    say(&mut bare, Opcode::RcSendMiddle, packets);
    let done = bare.side.take_done();
    assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::LocalLength));
    assert_eq!(bare.brief(), [nak(packets, NakCode::InvalidRequest)]);
}
