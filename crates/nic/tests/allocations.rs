//! After set-up no operation allocates: a counting allocator says so.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use common::{A, B, Faults, Pair, Setup, Side};
use remora_memory::{Access, Buffer, Loans, Reference, View};
use remora_nic::*;
use remora_wire::rpc::RpcHeader;

/// Counts what it passes on to the system's allocator.
struct Counting;

thread_local! {
    /// Of this thread: the runner of tests has others.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to `System` with the arguments as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller keeps `alloc`'s contract, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: `ptr` came from `System` with this layout; the caller keeps the rest of the contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Lets packets go to and fro, and time pass, until both ends are quiet.
fn settle(p: &mut Pair) {
    loop {
        let mut quiet = true;
        while p.a.nic.poll_transmit(p.now, &mut p.a.batch) {
            quiet = false;
            for packet in p.a.batch.packets() {
                p.b.nic.handle_packet(p.now, 0, A, B, packet);
            }
        }
        while let Some(mut request) = p.b.nic.poll_rpc() {
            request.reply.extend_from_slice(b"a reply");
            p.b.nic.rpc_reply(request, 0);
        }
        while let Some(chunk) = p.b.nic.poll_stream() {
            p.b.nic.recycle(chunk.data);
        }
        while p.b.nic.poll_transmit(p.now, &mut p.b.batch) {
            quiet = false;
            for packet in p.b.batch.packets() {
                p.a.nic.handle_packet(p.now, 0, B, A, packet);
            }
        }
        p.now += 1000;
        p.a.nic.handle_timeout(p.now);
        p.b.nic.handle_timeout(p.now);
        for side in [&mut p.a, &mut p.b] {
            while let Some(wc) = side.nic.poll_cq(side.cq) {
                assert_eq!(wc.status, WcStatus::Success);
            }
            while side.nic.poll_event().is_some() {}
        }
        if quiet {
            return;
        }
    }
}

#[test]
fn no_operation_allocates() {
    let mut p = Pair::new(1, Faults::default(), Setup::default());
    p.b.nic.deploy(7);
    let (va, rkey) = (p.b.va(0), p.b.key());
    let (small, large) = ([p.a.sge(0, 64)], [p.a.sge(0, 20_000)]);
    let (word, recv) = ([p.a.sge(8, 8)], [p.b.sge(65_536, 20_000)]);
    let header =
        RpcHeader { reply_va: p.a.va(65_536), reply_rkey: p.a.key(), reply_capacity: 64, ..RpcHeader::default() };
    let ops: [(&str, SendOp, &[Sge]); 8] = [
        ("WRITE", SendOp::Write { va, rkey }, &small),
        ("long WRITE", SendOp::Write { va, rkey }, &large),
        ("WRITE with immediate", SendOp::WriteImm { va, rkey, imm: 1 }, &small),
        ("READ", SendOp::Read { va, rkey }, &small),
        ("long READ", SendOp::Read { va, rkey }, &large),
        ("SEND", SendOp::Send, &large),
        ("CMP_SWAP", SendOp::CompareSwap { va, rkey, compare: 0, swap: 0 }, &word),
        ("FETCH_ADD", SendOp::FetchAdd { va, rkey, add: 1 }, &word),
    ];
    let mut round = |what: usize| {
        for id in 0..20 {
            match ops.get(what) {
                Some((_, op, list)) => {
                    p.b.nic.post_recv(p.b.qp, id, &recv).expect("room");
                    p.a.send(&SendWr::new(id, *op, Data::List(list)));
                }
                None => {
                    p.a.nic.post_recv(p.a.qp, id, &[]).expect("room");
                    // Parameters both within and beyond the inline limit.
                    let params = [id as u8; 900];
                    let params = &params[..if id % 2 == 0 { 100 } else { 900 }];
                    match what - ops.len() {
                        0 => p.a.nic.post_rpc(p.a.qp, id, 7, &header, params),
                        _ => p.a.nic.post_rpc_write(p.a.qp, id, 7, &header, params, &large),
                    }
                    .expect("posted");
                }
            }
        }
        settle(&mut p);
        // WRITE, READ and atomics leave the receives: reset the peer's supply by taking them with SENDs.
        if let Some((_, op, _)) = ops.get(what)
            && !matches!(op, SendOp::Send | SendOp::WriteImm { .. })
        {
            for id in 0..20 {
                p.a.send(&SendWr::new(id, SendOp::Send, Data::Inline(b"x")));
            }
            settle(&mut p);
        }
    };
    let kinds = ops.len() + 2;
    for _ in 0..3 {
        (0..kinds).for_each(&mut round);
    }
    for what in 0..kinds {
        let before = ALLOCATIONS.get();
        assert!(before > 0, "the counter counts");
        for _ in 0..10 {
            round(what);
        }
        let name = ops.get(what).map_or(["RPC", "RPC WRITE"][what.saturating_sub(ops.len()).min(1)], |op| op.0);
        assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in 200 x {name}");
    }
    many_regions(&mut p);
    wait_for_a_receive(&mut p);
}

/// WRITEs out of and into more regions than an engine remembers.
fn many_regions(p: &mut Pair) {
    const REGIONS: usize = 3000;
    let register = |side: &Side| -> Vec<(u64, u32)> {
        let one = |_| {
            let region = side.nic.registry().register(side.pd, &side.buffer, 0, 64, None, Access::all()).unwrap();
            (region.va(), region.key())
        };
        (0..REGIONS).map(one).collect()
    };
    let (ours, theirs) = (register(&p.a), register(&p.b));
    let mut round = || {
        for (at, (&(from, lkey), &(va, rkey))) in ours.iter().zip(&theirs).enumerate() {
            let list = [Sge { va: from, len: 64, lkey }];
            p.a.send(&SendWr::new(at as u64, SendOp::Write { va, rkey }, Data::List(&list)));
            if at % 20 == 19 {
                settle(p);
            }
        }
        settle(p);
    };
    for _ in 0..3 {
        round();
    }
    let before = ALLOCATIONS.get();
    round();
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in {REGIONS} WRITEs of as many regions");
}

/// Hands over what `from` has to send, payload by reference where it can be.
fn refer(
    now: u64,
    from: &mut Side,
    to: &mut Side,
    (ring, loans, view): (&Buffer, &Arc<Loans>, &mut Option<View>),
) -> bool {
    if let Some(route) = from.nic.next_long() {
        let room = Room { buffer: ring.clone(), start: 0, end: ring.len(), loans: Some(loans.clone()) };
        assert!(from.nic.poll_transmit_into(now, route, room, &mut from.batch));
        let mut at = 0;
        for (n, len) in from.batch.lens().iter().map(|len| usize::from(*len)).enumerate() {
            let packet = Packet::Shared { buffer: ring, offset: at + Room::GAP, len };
            let mut record = [0; 128];
            let arrived = match view {
                Some(view) if from.batch.referred() >> n & 1 == 1 => {
                    ring.read(at + Room::GAP, &mut record[..len]).expect("in bounds");
                    let (reference, headers) = Reference::parse(&record[..len]).expect("whole");
                    Packet::Referred { headers, view, reference }
                }
                _ => packet,
            };
            to.nic.handle(now, 0, (from.ip, to.ip), arrived);
            at += Room::taken(len);
        }
        if let Some((slot, buffer)) = loans.next_wanted() {
            *view = Some(View::map(buffer.file().expect("lendable"), buffer.len()).expect("sealed"));
            loans.lend(slot);
        }
        return true;
    }
    let some = from.nic.poll_transmit(now, &mut from.batch);
    for packet in from.batch.packets() {
        to.nic.handle_packet(now, 0, from.ip, to.ip, packet);
    }
    some
}

/// Hands over what one side has to send, of which every 50th packet or so is lost, and as many change places with the next.
fn lossy(now: u64, chance: &mut u64, (from, to): (&mut Side, &mut Side)) {
    let mut draw = || {
        *chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*chance >> 33) % 50
    };
    while from.nic.poll_transmit(now, &mut from.batch) {
        let mut packets = from.batch.packets();
        while let Some(packet) = packets.next() {
            match draw() {
                0 => continue,
                1 if let Some(next) = packets.next() => to.nic.handle_packet(now, 0, from.ip, to.ip, next),
                _ => {}
            }
            to.nic.handle_packet(now, 0, from.ip, to.ip, packet);
        }
    }
}

/// What is lost or comes too early is sent again, by selective repeat or by going back, out of room that is there.
#[test]
fn making_up_for_losses_does_not_allocate() {
    const WARM: usize = 1500;
    for selective in [true, false] {
        let mut p = Pair::recovering([selective; 2], common::REGION, 1, Faults::default(), Setup::default());
        let (mut chance, mut before) = (1, 0);
        let (list, recv) = ([p.a.sge(0, 20_000)], [p.b.sge(65_536, 20_000)]);
        let (va, rkey) = (p.b.va(0), p.b.key());
        for round in 0..WARM + 300 {
            // By then as much was out of order at once as may be.
            if round == WARM {
                before = ALLOCATIONS.get();
            }
            for op in [SendOp::Write { va, rkey }, SendOp::Read { va, rkey }, SendOp::Send] {
                for id in 0..8 {
                    if op == SendOp::Send {
                        p.b.nic.post_recv(p.b.qp, id, &recv).expect("room");
                    }
                    p.a.send(&SendWr::new(id, op, Data::List(&list)));
                }
                let (mut done, mut turns) = (0, 0);
                while done < 8 {
                    turns += 1;
                    assert!(turns < 100_000, "{op:?} does not end");
                    p.now += 1000;
                    lossy(p.now, &mut chance, (&mut p.a, &mut p.b));
                    lossy(p.now, &mut chance, (&mut p.b, &mut p.a));
                    p.a.nic.handle_timeout(p.now);
                    p.b.nic.handle_timeout(p.now);
                    while let Some(wc) = p.b.nic.poll_cq(p.b.cq) {
                        assert_eq!(wc.status, WcStatus::Success);
                    }
                    while let Some(wc) = p.a.nic.poll_cq(p.a.cq) {
                        assert_eq!(wc.status, WcStatus::Success);
                        done += 1;
                    }
                    while p.a.nic.poll_event().is_some() || p.b.nic.poll_event().is_some() {}
                }
            }
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "selective repeat: {selective}");
        let sent_again = p.a.nic.counters().retransmits;
        assert!(sent_again > 1000, "{sent_again} packets were sent again");
    }
}

/// Acknowledgements are owed until nothing else is to be done.
#[test]
fn owing_and_paying_acknowledgements_does_not_allocate() {
    let mut p = Pair::new(1, Faults::default(), Setup::default());
    p.a.nic.set_patient();
    p.b.nic.set_patient();
    let (small, op) = ([p.a.sge(0, 64)], SendOp::Write { va: p.b.va(0), rkey: p.b.key() });
    let mut before = 0;
    for round in 0..300 {
        if round == 100 {
            before = ALLOCATIONS.get();
        }
        for id in 0..40 {
            p.a.send(&SendWr::new(id, op, Data::List(&small)));
        }
        settle(&mut p);
        p.b.nic.acknowledge();
        settle(&mut p);
        assert_eq!(p.a.nic.sends_outstanding(p.a.qp), Ok(0));
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

#[test]
fn no_operation_that_refers_to_its_payload_allocates() {
    let mut p = Pair::new(1, Faults::default(), Setup::default());
    let ring = Buffer::anonymous(64 << 10).expect("memory");
    let (loans, mut views) = ([Arc::<Loans>::default(), Arc::default()], [None, None]);
    let (list, recv) = ([p.a.sge(0, 20_000)], [p.b.sge(65_536, 20_000)]);
    let (va, rkey) = (p.b.va(0), p.b.key());
    let mut before = 0;
    for round in 0..300 {
        if round == 100 {
            before = ALLOCATIONS.get();
        }
        for op in [SendOp::Write { va, rkey }, SendOp::Read { va, rkey }, SendOp::Send] {
            if op == SendOp::Send {
                p.b.nic.post_recv(p.b.qp, 1, &recv).expect("room");
            }
            p.a.send(&SendWr::new(1, op, Data::List(&list)));
            let mut done = None;
            while done.is_none() {
                p.now += 1000;
                refer(p.now, &mut p.a, &mut p.b, (&ring, &loans[0], &mut views[0]));
                refer(p.now, &mut p.b, &mut p.a, (&ring, &loans[1], &mut views[1]));
                while let Some(wc) = p.b.nic.poll_cq(p.b.cq) {
                    assert_eq!(wc.status, WcStatus::Success);
                }
                done = p.a.nic.poll_cq(p.a.cq);
            }
            assert_eq!(done.map(|wc| wc.status), Some(WcStatus::Success));
            while p.a.nic.poll_event().is_some() || p.b.nic.poll_event().is_some() {}
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(p.a.nic.counters().tx_referred >= 2 * 200 && p.b.nic.counters().tx_referred >= 200);
}

/// A peer without a receive costs two timers each round, one of them hours away: they must not pile up.
fn wait_for_a_receive(p: &mut Pair) {
    for side in [&mut p.a, &mut p.b] {
        side.nic.to_reset(side.qp).expect("live");
    }
    p.connect(Setup { rts: RtsAttr { timeout: 31, ..RtsAttr::default() }, ..Setup::default() });
    p.a.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"a")));
    let naks = |p: &Pair| p.b.nic.counters().rnr_naks;
    let mut before = ALLOCATIONS.get();
    for round in 0..10_000 {
        settle(p);
        p.now = p.a.nic.poll_timeout().expect("the RNR timer runs");
        p.a.nic.handle_timeout(p.now);
        if round == 1000 {
            before = ALLOCATIONS.get();
        }
    }
    assert!(naks(p) >= 9_999, "{}", naks(p));
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations while waiting");
}
