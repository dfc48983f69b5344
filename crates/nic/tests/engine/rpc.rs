//! The RPC verbs: calls, payload streams, refusals, back-pressure, fairness.

use std::collections::HashMap;

use crate::common::bare::{Bare, bytes_of};
use crate::common::{A, B, CLEAN, Faults, Pair, Setup, Side};
use remora_nic::*;
use remora_wire::rpc::{FLAG_STREAM, RpcHeader, parse_reply_imm, status as code};
use remora_wire::{Opcode, Syndrome};

/// A kernel that replies its parameters in reverse.
const REVERSE: u64 = 0x1234_5678_9abc_def0;
/// A kernel that replies the bytes of its payload stream.
const ECHO: u64 = 2;
const UNKNOWN: u64 = 3;
/// Where replies land.
const LAND: usize = 1 << 19;

/// What the world around the engine does: runs kernels.
#[derive(Default)]
struct Kernels {
    open: HashMap<u64, (RpcRequest, Vec<u8>)>,
    order: Vec<(Qpn, u64)>,
}

impl Kernels {
    fn run(&mut self, nic: &mut Nic) {
        while let Some(mut request) = nic.poll_rpc() {
            self.order.push((request.qp(), request.op));
            if request.stream {
                self.open.insert(request.id, (request, Vec::new()));
                continue;
            }
            let reply: Vec<u8> = request.params.iter().rev().copied().collect();
            request.reply.extend_from_slice(&reply);
            nic.rpc_reply(request, 0);
        }
        while let Some(chunk) = nic.poll_stream() {
            let (_, bytes) = self.open.get_mut(&chunk.id).expect("chunks belong to calls that were handed out");
            bytes.extend_from_slice(&chunk.data);
            if chunk.last {
                let (mut request, bytes) = self.open.remove(&chunk.id).expect("just seen");
                request.reply.extend_from_slice(&bytes);
                nic.rpc_reply(request, 0);
            }
            nic.recycle(chunk.data);
        }
    }
}

fn pair(seed: u64, faults: Faults, setup: Setup) -> Pair {
    let mut pair = Pair::new(seed, faults, setup);
    pair.b.nic.deploy(REVERSE);
    pair.b.nic.deploy(ECHO);
    pair
}

fn header(side: &Side, tag: u32, at: usize, capacity: usize) -> RpcHeader {
    RpcHeader { reply_va: side.va(at), reply_rkey: side.key(), reply_capacity: capacity as u32, tag, flags: 0 }
}

fn run(p: &mut Pair, kernels: &mut Kernels) {
    for _ in 0..200_000 {
        kernels.run(&mut p.b.nic);
        if !p.step() && !p.b.nic.wants_rpc() {
            return;
        }
    }
    panic!("still busy");
}

/// Replies at A: tag, status, bytes.
fn replies(p: &Pair) -> Vec<(u32, u8, u32)> {
    let replies = p.a.done.iter().filter(|wc| wc.opcode == WcOpcode::RecvWriteImm && wc.status == WcStatus::Success);
    let imm = |wc: &WorkCompletion| parse_reply_imm(wc.imm.expect("replies have immediate data"));
    replies.map(|wc| (imm(wc).0, imm(wc).1, wc.byte_len)).collect()
}

#[test]
fn a_call_is_answered_into_the_callers_memory() {
    for mtu in [256, 1024, 4096] {
        let limit = mtu as usize - RpcHeader::LEN;
        for len in [0, 1, 200, 232, limit] {
            let mut p = pair(1, CLEAN, Setup { mtu, ..Setup::default() });
            let params: Vec<u8> = (0..len).map(|i| i as u8).collect();
            p.a.recv(9, 0, 0);
            let header = header(&p.a, 0xab_cdef, LAND, 4096);
            p.a.nic.post_rpc(p.a.qp, 1, REVERSE, &header, &params).expect("posted");
            run(&mut p, &mut Kernels::default());
            assert_eq!(replies(&p), [(0xab_cdef, code::OK, len as u32)], "mtu {mtu}, {len} B");
            assert!(
                p.a.done.iter().any(|wc| (wc.wr_id, wc.opcode, wc.status) == (1, WcOpcode::Rpc, WcStatus::Success))
            );
            let expected: Vec<u8> = params.iter().rev().copied().collect();
            assert_eq!(p.a.bytes(LAND, len), expected);
            assert_eq!(p.a.bytes(LAND + len, 8), [0; 8]);
            // The reply's completion takes no send of the node's.
            assert_eq!((p.b.done.len(), p.b.nic.sends_outstanding(p.b.qp)), (0, Ok(0)));
        }
        let mut p = pair(1, CLEAN, Setup { mtu, ..Setup::default() });
        let header = header(&p.a, 1, LAND, 64);
        let refused = p.a.nic.post_rpc(p.a.qp, 1, REVERSE, &header, &vec![0; limit + 1]);
        assert!(matches!(refused, Err(NicError::TooLarge { limit, .. }) if limit == u64::from(mtu)), "{refused:?}");
        assert_eq!(p.a.nic.sends_outstanding(p.a.qp), Ok(0));
    }
}

#[test]
fn streams_of_any_length_arrive_whole_and_in_order_whatever_the_network_does() {
    let lossy = Faults { latency: 3000, jitter: 3000, loss: 30, duplicate: 30, damage: 10, reorder: 30, per_byte: 0 };
    for (seed, faults) in [(1, CLEAN), (2, lossy), (3, lossy)] {
        let mut p = pair(seed, faults, Setup { mtu: 256, ..Setup::default() });
        let data: Vec<u8> = (0..20_000).map(|i| (i % 247) as u8).collect();
        p.a.buffer.write(0, &data).expect("in bounds");
        let lens = [0, 1, 255, 256, 257, 5000, 20_000];
        for (tag, len) in lens.into_iter().enumerate() {
            p.a.recv(100, 0, 0);
            let header = header(&p.a, tag as u32, LAND + tag * 32_768, 32_768);
            let payload = [p.a.sge(0, len / 2), p.a.sge(len / 2, len - len / 2)];
            p.a.nic.post_rpc_write(p.a.qp, tag as u64, ECHO, &header, b"x", &payload).expect("posted");
        }
        run(&mut p, &mut Kernels::default());
        let ids: Vec<_> = p.a.done.iter().filter(|wc| wc.opcode == WcOpcode::Rpc).map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6], "one completion each, seed {seed}");
        let mut got = replies(&p);
        got.sort_by_key(|r| r.0);
        for (tag, len) in lens.into_iter().enumerate() {
            assert_eq!(got[tag], (tag as u32, code::OK, len as u32), "seed {seed}");
            assert_eq!(p.a.bytes(LAND + tag * 32_768, len), data[..len], "seed {seed}");
        }
        assert_eq!(got.len(), lens.len());
    }
}

#[test]
fn a_call_with_a_stream_completes_once_however_it_ends() {
    // (signal everything, the peer is gone)
    for (all, silent) in [(true, false), (true, true), (false, true)] {
        let mut p = Pair::unconnected(1, CLEAN);
        p.a.nic.destroy_qp(p.a.qp).expect("unused");
        let init = QpInit { sq_sig_all: all, ..QpInit::new(QpType::Rc, p.a.pd, p.a.cq, p.a.cq) };
        p.a.qp = p.a.nic.create_qp(init).expect("queue pair");
        p.connect(Setup::default());
        p.b.nic.deploy(ECHO);
        p.cut = [silent; 2];
        p.a.recv(100, 0, 0);
        let (head, payload) = (header(&p.a, 1, LAND, 4096), [p.a.sge(0, 2000)]);
        for id in 0..3 {
            p.a.recv(101 + id, 0, 0);
            p.a.nic.post_rpc_write(p.a.qp, id, ECHO, &head, &[0; 500], &payload).expect("posted");
        }
        run(&mut p, &mut Kernels::default());
        if silent {
            p.a.nic.post_rpc_write(p.a.qp, 3, ECHO, &head, b"", &payload).expect("posted");
            p.a.nic.post_rpc(p.a.qp, 4, ECHO, &head, &[0; 500]).expect("posted");
        }
        use WcStatus::*;
        let done = p.a.take_done();
        let calls = done.iter().filter(|wc| wc.opcode == WcOpcode::Rpc).map(|wc| (wc.wr_id, wc.status));
        let expected = match silent {
            true => vec![(0, RetryExceeded), (1, Flushed), (2, Flushed), (3, Flushed), (4, Flushed)],
            false => vec![(0, Success), (1, Success), (2, Success)],
        };
        assert_eq!(calls.collect::<Vec<_>>(), expected);
        assert_eq!(p.a.nic.sends_outstanding(p.a.qp), Ok(0));
    }
}

#[test]
fn unknown_op_codes_are_refused_or_go_to_the_host() {
    for stream in [false, true] {
        for fallback in [false, true] {
            let mut p = pair(1, CLEAN, Setup { mtu: 256, ..Setup::default() });
            p.b.nic.set_fallback(fallback);
            p.a.recv(9, 0, 0);
            let (head, payload) = (header(&p.a, 7, LAND, 4096), [p.a.sge(0, 1000)]);
            match stream {
                true => p.a.nic.post_rpc_write(p.a.qp, 1, UNKNOWN, &head, b"abc", &payload),
                false => p.a.nic.post_rpc(p.a.qp, 1, UNKNOWN, &head, b"abc"),
            }
            .expect("posted");
            for _ in 0..20 {
                p.step();
            }
            let request = p.b.nic.poll_rpc();
            assert_eq!(request.as_ref().map(|r| (r.op, r.fallback)), fallback.then_some((UNKNOWN, true)));
            let mut streamed = 0;
            while let Some(chunk) = p.b.nic.poll_stream() {
                streamed += chunk.data.len();
            }
            assert_eq!(streamed, if fallback && stream { 1000 } else { 0 }, "nobody waits for a refused call's stream");
            if let Some(mut request) = request {
                request.reply.extend_from_slice(b"host");
                p.b.nic.rpc_reply(request, code::OK);
            }
            p.run(1000);
            let expected = if fallback { (7, code::OK, 4) } else { (7, code::UNKNOWN_OP, 0) };
            assert_eq!(replies(&p), [expected], "stream {stream}, fallback {fallback}");
        }
    }
    // Undeployed is unknown.
    let mut p = pair(1, CLEAN, Setup::default());
    p.b.nic.undeploy(REVERSE);
    p.a.recv(9, 0, 0);
    let head = header(&p.a, 7, LAND, 64);
    p.a.nic.post_rpc(p.a.qp, 1, REVERSE, &head, b"").expect("posted");
    p.run(1000);
    assert_eq!(replies(&p), [(7, code::UNKNOWN_OP, 0)]);
}

#[test]
fn a_reply_longer_than_the_room_for_it_is_refused_whole() {
    for local in [false, true] {
        let mut p = pair(1, CLEAN, Setup::default());
        p.a.nic.deploy(REVERSE);
        p.a.recv(9, 0, 0);
        for (tag, capacity, status) in [(1, 10, code::OK), (2, 9, code::REPLY_TOO_LONG)] {
            p.a.buffer.fill(LAND, 64, 0xee).expect("in bounds");
            let head = header(&p.a, tag, LAND, capacity);
            let params = b"0123456789";
            if local {
                p.a.nic.post_local_rpc(p.a.qp, 5, REVERSE, &head, params).expect("posted");
                Kernels::default().run(&mut p.a.nic);
                let done = p.a.take_done()[0];
                assert_eq!((done.wr_id, done.status, done.opcode), (5, WcStatus::Success, WcOpcode::LocalRpc));
                assert_eq!(parse_reply_imm(done.imm.expect("imm")), (tag, status));
            } else {
                p.a.recv(9, 0, 0);
                p.a.nic.post_rpc(p.a.qp, 5, REVERSE, &head, params).expect("posted");
                run(&mut p, &mut Kernels::default());
                assert_eq!(replies(&p).last().map(|r| (r.0, r.1)), Some((tag, status)));
            }
            let expected = if status == code::OK { *b"9876543210" } else { [0xee; 10] };
            assert_eq!((p.a.bytes(LAND, 10), p.a.bytes(LAND + 10, 8)), (expected.to_vec(), vec![0xee; 8]));
        }
    }
}

#[test]
fn local_calls_complete_once_also_when_the_queue_pair_ends() {
    let mut p = pair(1, CLEAN, Setup::default());
    p.a.nic.deploy(REVERSE);
    let head = header(&p.a, 1, LAND, 64);
    for id in 0..3 {
        p.a.nic.post_local_rpc(p.a.qp, id, REVERSE, &head, b"abc").expect("posted");
    }
    let running = p.a.nic.poll_rpc().expect("posted");
    p.a.nic.to_error(p.a.qp).expect("live");
    assert!(p.a.nic.poll_rpc().is_none());
    p.a.nic.rpc_reply(running, 0);
    let mut ids: Vec<_> = p.a.take_done().iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2]);
    assert_eq!(p.a.nic.post_local_rpc(p.a.qp, 9, REVERSE, &head, b""), Err(NicError::State(QpState::Err)));
    // A reply to memory that the caller does not own.
    let mut p = pair(1, CLEAN, Setup::default());
    p.a.nic.deploy(REVERSE);
    let bad = RpcHeader { reply_rkey: p.a.key() ^ 1, ..header(&p.a, 1, LAND, 64) };
    p.a.nic.post_local_rpc(p.a.qp, 1, REVERSE, &bad, b"abc").expect("posted");
    Kernels::default().run(&mut p.a.nic);
    assert_eq!(p.a.take_done()[0].status, WcStatus::LocalProtection);
}

#[test]
fn a_full_table_holds_callers_off_and_loses_nothing() {
    let mut p = Pair::unconnected(1, CLEAN);
    p.b.nic.destroy_qp(p.b.qp).expect("unused");
    let init = QpInit { max_rpc: 4, ..QpInit::new(QpType::Rc, p.b.pd, p.b.cq, p.b.cq) };
    p.b.qp = p.b.nic.create_qp(init).expect("queue pair");
    p.connect(Setup::default());
    p.b.nic.deploy(REVERSE);
    for tag in 0..100 {
        p.a.recv(tag, 0, 0);
        let head = header(&p.a, tag as u32, LAND + 8 * tag as usize, 8);
        p.a.nic.post_rpc(p.a.qp, tag, REVERSE, &head, &tag.to_be_bytes()).expect("posted");
    }
    // Nobody runs kernels for a while.
    p.run_for(1_000_000);
    assert!(p.b.nic.counters().rnr_naks > 1);
    assert_eq!(replies(&p), []);
    let mut waiting = Vec::new();
    while let Some(request) = p.b.nic.poll_rpc() {
        waiting.push(request);
    }
    assert_eq!(waiting.len(), 4, "as many as agreed");
    for mut request in waiting {
        let reply: Vec<u8> = request.params.iter().rev().copied().collect();
        request.reply.extend_from_slice(&reply);
        p.b.nic.rpc_reply(request, 0);
    }
    run(&mut p, &mut Kernels::default());
    let tags: Vec<_> = replies(&p).iter().map(|r| (r.0, r.1)).collect();
    assert_eq!(tags, (0..100).map(|tag| (tag, code::OK)).collect::<Vec<_>>());
    for tag in 0..100 {
        assert_eq!(p.a.bytes(LAND + 8 * tag, 8), (tag as u64).to_le_bytes());
    }
}

#[test]
fn streams_wait_while_nobody_takes_their_chunks() {
    let mut bare = Bare::new(Setup { mtu: 256, psn_a: 100, ..Setup::default() });
    bare.side.nic.deploy(ECHO);
    let mut params = [0; RpcHeader::LEN];
    RpcHeader { flags: FLAG_STREAM, reply_capacity: 1 << 20, ..RpcHeader::default() }.emit(&mut params);
    bare.give(&bare.with_reth(Opcode::RpcParams, 100, (ECHO, 0, params.len() as u32), &params));
    let data = [5; 256];
    bare.give(&bare.with_reth(Opcode::RpcWriteFirst, 101, (ECHO, 0, 256 * 2000), &data));
    bare.said();
    let call = bare.side.nic.poll_rpc().expect("the parameters came");
    // One queue pair has half of 2,048 chunks.
    for n in 1..1024 {
        bare.give(&bare.packet(Opcode::RpcWriteMiddle, 101 + n, &data));
        assert_eq!(bare.said()[0].aeth.map(|a| a.syndrome), Some(Syndrome::Ack { credits: 31 }));
    }
    let next = bytes_of(&bare.packet(Opcode::RpcWriteMiddle, 101 + 1024, &data));
    bare.give_bytes(&next);
    assert_eq!(bare.said()[0].aeth.map(|a| a.syndrome), Some(Syndrome::RnrNak { timer: 1 }));
    let chunk = bare.side.nic.poll_stream().expect("a thousand wait");
    assert_eq!((chunk.data.len(), chunk.last), (256, false));
    bare.give_bytes(&next);
    assert_eq!(bare.said()[0].aeth.map(|a| a.syndrome), Some(Syndrome::Ack { credits: 31 }));
    bare.side.nic.rpc_reply(call, code::OK);
}

#[test]
fn a_stream_that_nobody_reads_holds_up_no_other_queue_pairs() {
    let mut p = pair(5, CLEAN, Setup::default());
    let [first, second] = [(p.a.qp, p.b.qp), more(&mut p)];
    let payload = [p.a.sge(0, 1 << 20)];
    let head = header(&p.a, 0, LAND, 16);
    for (qp, _) in [first, second] {
        p.a.nic.post_rpc_write(qp, 1, ECHO, &head, b"", &payload).expect("posted");
    }
    let (mut unread, mut bytes) = (None, 0);
    for _ in 0..100_000 {
        while let Some(request) = p.b.nic.poll_rpc() {
            if request.qp() == first.1 {
                unread = Some(request.id);
            }
        }
        while let Some(chunk) = p.b.nic.poll_stream_of(|chunk| Some(chunk.id) != unread) {
            bytes += chunk.data.len();
            if chunk.last {
                return assert_eq!(bytes, 1 << 20);
            }
            p.b.nic.recycle(chunk.data);
        }
        p.step();
    }
    panic!("{bytes} bytes came of the stream that is read");
}

/// A second connection: its queue pairs at A and B.
fn more(p: &mut Pair) -> (Qpn, Qpn) {
    let (a, b) = (p.a.qp, p.b.qp);
    for side in [&mut p.a, &mut p.b] {
        side.qp = side.nic.create_qp(QpInit::new(QpType::Rc, side.pd, side.cq, side.cq)).expect("queue pair");
    }
    let second = (p.a.qp, p.b.qp);
    p.a.bring_up(B, second.1, (0, 0), Setup::default());
    p.b.bring_up(A, second.0, (0, 0), Setup::default());
    (p.a.qp, p.b.qp) = (a, b);
    second
}

#[test]
fn connections_take_turns() {
    let mut p = pair(1, CLEAN, Setup::default());
    let greedy = p.b.qp;
    let head = header(&p.b, 1, LAND, 64);
    let mut all = vec![greedy];
    for _ in 0..3 {
        let init = QpInit::new(QpType::Rc, p.b.pd, p.b.cq, p.b.cq);
        p.b.qp = p.b.nic.create_qp(init).expect("queue pair");
        p.b.bring_up(A, p.a.qp, (0, 0), Setup::default());
        all.push(p.b.qp);
    }
    // Local calls get into the same table as those of peers.
    for _ in 0..20 {
        p.b.nic.post_local_rpc(greedy, 1, REVERSE, &head, b"").expect("posted");
    }
    for qp in &all[1..] {
        for _ in 0..2 {
            p.b.nic.post_local_rpc(*qp, 1, REVERSE, &head, b"").expect("posted");
        }
    }
    let mut kernels = Kernels::default();
    kernels.run(&mut p.b.nic);
    let order: Vec<_> = kernels.order.iter().map(|(qp, _)| *qp).collect();
    assert_eq!(order.len(), 26);
    assert_eq!(order[..8], [all.clone(), all].concat(), "one each before anyone's second");
    assert_eq!(B, p.b.ip);
}

#[test]
fn a_queue_pairs_former_calls_do_not_disturb_its_next_life() {
    // RESET: the reply to a former peer's call must not go to the present one.
    let mut p = pair(1, CLEAN, Setup::default());
    let head = header(&p.a, 1, LAND, 64);
    for lives in 0..100 {
        p.a.recv(9, 0, 0);
        p.a.nic.post_rpc(p.a.qp, 1, REVERSE, &head, b"abc").expect("posted");
        p.a.nic.post_rpc(p.a.qp, 2, REVERSE, &head, b"abc").expect("posted");
        p.run_for(3000);
        let request = p.b.nic.poll_rpc().unwrap_or_else(|| panic!("life {lives}"));
        p.a.nic.to_reset(p.a.qp).expect("live");
        p.b.nic.to_reset(p.b.qp).expect("live");
        p.connect(Setup { psn_a: lives, psn_b: lives, ..Setup::default() });
        p.run(1000);
        p.b.nic.rpc_reply(request, 0);
        assert!(!p.b.nic.wants_transmit(), "life {lives}");
        p.a.take_done();
    }
    // Destroyed with calls waiting: the next queue pair in its place gets its own.
    let registry = std::sync::Arc::new(remora_memory::Registry::new([3; 32]));
    let mut nic = Nic::new(&NicConfig { max_qp: 1, ..NicConfig::new([3; 32]) }, registry.clone());
    let (pd, cq) = (registry.alloc_pd(), nic.create_cq(16).expect("completion queue"));
    nic.deploy(REVERSE);
    for life in 0..5 {
        let qp = nic.create_qp(QpInit::new(QpType::Rc, pd, cq, cq)).expect("room for one");
        nic.to_init(qp, ALL_REMOTE, 0).expect("INIT");
        nic.post_local_rpc(qp, 1, REVERSE, &RpcHeader::default(), b"").expect("posted");
        nic.post_local_rpc(qp, 2, REVERSE, &RpcHeader::default(), b"").expect("posted");
        let request = nic.poll_rpc().unwrap_or_else(|| panic!("life {life}: the call never comes"));
        assert_eq!(request.qp(), qp);
        nic.destroy_qp(qp).expect("live");
        nic.rpc_reply(request, 0);
    }
    assert_eq!(nic.cq_len(cq), 0);
}
