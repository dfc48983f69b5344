//! Memory windows: what a bound one opens, to whom, and until when.

use std::sync::Arc;

use crate::common::{CLEAN, Faults, Pair, Setup};
use remora_memory::{Access, Binding, DeregisterError, Region, WindowType};
use remora_nic::*;

/// B lends a region of its own through a window.
struct Loan {
    p: Pair,
    region: Arc<Region>,
    /// The window's key as it was bound last.
    key: u32,
}

const AT: usize = 1 << 18;
const LEN: usize = 8192;

fn loan(kind: WindowType, setup: Setup, faults: Faults, seed: u64) -> Loan {
    let p = Pair::new(seed, faults, setup);
    let region = p.b.register(AT, LEN, Access::MW_BIND | Access::LOCAL_WRITE);
    let key = p.b.nic.registry().alloc_window(p.b.pd, kind).expect("window");
    Loan { p, region, key }
}

impl Loan {
    /// A binding of `len` bytes from `offset` on, under the next key.
    fn binding(&self, offset: usize, len: usize) -> SendOp {
        let new_key = self.key & !0xff | self.key.wrapping_add(1) & 0xff;
        let (region, va) = (self.region.key(), self.region.va() + offset as u64);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        SendOp::Bind(Binding { key: self.key, new_key, region, va, len: len as u64, access, zero_based: false })
    }

    /// Posts it.
    fn bind(&mut self, id: u64, offset: usize, len: usize) {
        let op = self.binding(offset, len);
        self.p.b.send(&SendWr::new(id, op, Data::List(&[])));
        let SendOp::Bind(binding) = op else { return };
        self.key = binding.new_key;
    }

    /// A writes there through the window.
    fn write(&mut self, id: u64, offset: usize, data: &[u8]) {
        let op = SendOp::Write { va: self.region.va() + offset as u64, rkey: self.key };
        self.p.a.send(&SendWr::new(id, op, Data::Inline(data)));
    }
}

#[test]
fn a_window_is_under_the_lease_of_its_region() {
    let mut l = loan(WindowType::One, Setup::default(), CLEAN, 1);
    l.bind(1, 0, 64);
    l.p.run(1000);
    l.region.lease_until(10);
    for (id, now) in [(2, 9), (3, 10)] {
        let list = [l.p.a.sge(1 << 19, 64)];
        let op = SendOp::Read { va: l.region.va(), rkey: l.key };
        l.p.a.send(&SendWr::new(id, op, Data::List(&list)));
        l.p.step();
        l.p.b.nic.clock_reads(&Now::simulated(now));
        l.p.run(1000);
    }
    assert_eq!(l.p.a.statuses(), [(2, WcStatus::Success), (3, WcStatus::RemoteAccess)]);
}

#[test]
fn a_bound_window_opens_its_part() {
    for (kind, service) in [
        (WindowType::One, QpType::Rc),
        (WindowType::Two, QpType::Rc),
        (WindowType::One, QpType::Uc),
        (WindowType::Two, QpType::Uc),
    ] {
        let mut l = loan(kind, Setup { kind: service, ..Setup::default() }, CLEAN, 1);
        l.bind(1, 100, 50);
        l.p.run(1000);
        let bound = l.p.b.take_done();
        assert_eq!((bound.len(), bound[0].opcode, bound[0].status), (1, WcOpcode::Bind, WcStatus::Success));
        l.write(2, 100, b"first");
        l.write(3, 145, b"last.");
        l.p.run(1000);
        assert_eq!(l.p.a.take_done().len(), 2);
        assert_eq!((l.p.b.bytes(AT + 100, 5), l.p.b.bytes(AT + 145, 5)), (b"first".to_vec(), b"last.".to_vec()));
        assert_eq!(l.p.b.nic.registry().deregister(l.region.key()), Err(DeregisterError::Bound(1)));
        // A byte too far.
        l.write(4, 146, b"last.");
        l.p.run(1000);
        let due = if service == QpType::Rc { WcStatus::RemoteAccess } else { WcStatus::Success };
        assert_eq!(l.p.a.take_done()[0].status, due, "{kind:?} {service:?}");
        assert_eq!(l.p.b.bytes(AT + 145, 6), b"last.\0");
    }
}

#[test]
fn a_window_is_no_local_key() {
    let mut l = loan(WindowType::One, Setup::default(), CLEAN, 1);
    l.bind(1, 0, 100);
    let list = [Sge { va: l.region.va(), len: 8, lkey: l.key }];
    l.p.b.send(&SendWr::new(2, SendOp::Send, Data::List(&list)));
    l.p.run(1000);
    assert_eq!(l.p.b.statuses(), [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]);
}

#[test]
fn invalidation_from_either_side_closes_a_window_of_type_two() {
    for remote in [false, true] {
        let mut l = loan(WindowType::Two, Setup::default(), CLEAN, 1);
        l.bind(1, 0, 100);
        l.p.run(1000);
        if remote {
            l.p.b.recv(9, 0, 64);
            l.p.a.send(&SendWr::new(2, SendOp::SendInvalidate(l.key), Data::Inline(b"done")));
        } else {
            l.p.b.send(&SendWr::new(2, SendOp::LocalInvalidate(l.key), Data::List(&[])));
        }
        l.p.run(1000);
        let done = l.p.b.take_done();
        let last = done.last().expect("both sides told");
        match remote {
            true => assert_eq!((last.opcode, last.invalidated), (WcOpcode::Recv, Some(l.key))),
            false => assert_eq!((last.opcode, last.status), (WcOpcode::LocalInvalidate, WcStatus::Success)),
        }
        // Bound again under another key, the old one stays closed.
        let old = l.key;
        l.bind(3, 0, 100);
        l.write(4, 0, b"new key");
        l.p.run(1000);
        assert_eq!(l.p.b.bytes(AT, 7), b"new key");
        l.key = old;
        l.write(5, 0, b"old key");
        l.p.run(1000);
        assert_eq!(l.p.a.statuses().last(), Some(&(5, WcStatus::RemoteAccess)));
    }
}

#[test]
fn a_window_of_type_two_serves_the_queue_pair_that_bound_it() {
    let mut l = loan(WindowType::Two, Setup::default(), CLEAN, 1);
    // Another queue pair of B binds it: A's peer does not have it.
    let ours = l.p.b.qp;
    let init = QpInit::new(QpType::Uc, l.p.b.pd, l.p.b.cq, l.p.b.cq);
    l.p.b.qp = l.p.b.nic.create_qp(init).expect("queue pair");
    let setup = Setup { kind: QpType::Uc, ..Setup::default() };
    l.p.b.bring_up(crate::common::A, Qpn(1), (0, 0), setup);
    l.bind(1, 0, 100);
    l.p.run(1000);
    assert_eq!(l.p.b.take_done()[0].status, WcStatus::Success);
    let other = std::mem::replace(&mut l.p.b.qp, ours);
    // With the queue pair that bound it the window closes.
    let key = l.key;
    assert!(l.p.b.nic.registry().lookup_for(key, other.0).is_some());
    l.write(2, 0, b"not mine");
    l.p.run(1000);
    assert_eq!(l.p.a.statuses(), [(2, WcStatus::RemoteAccess)]);
    l.p.b.nic.destroy_qp(other).expect("live");
    assert!(l.p.b.nic.registry().lookup_for(key, other.0).is_none());
    assert_eq!(l.p.b.nic.registry().deregister(l.region.key()), Ok(()));
}

#[test]
fn local_work_waits_its_turn_and_fails_in_it() {
    let mut l = loan(WindowType::Two, Setup::default(), CLEAN, 1);
    l.p.logging = true;
    let list = [l.p.b.sge(0, 3000)];
    let op = SendOp::Write { va: l.p.a.va(0), rkey: l.p.a.key() };
    // Unsignalled and not the last: local work behind it asks for its acknowledgement.
    l.p.b.send(&SendWr::new(1, op, Data::List(&list)).unsignaled());
    l.bind(2, 0, 100);
    l.p.b.send(&SendWr::new(3, op, Data::List(&list)).unsignaled());
    let refused = l.binding(0, 100);
    l.p.b.send(&SendWr::new(4, refused, Data::List(&[])));
    l.p.b.send(&SendWr::new(5, op, Data::List(&list)));
    l.p.run(1000);
    use WcStatus::*;
    assert_eq!(l.p.b.statuses(), [(2, Success), (4, MwBind), (5, Flushed)]);
    assert_eq!(l.p.log.iter().filter(|(_, from, _)| *from == 1).count(), 6, "each packet once, none for local work");

    let mut l = loan(WindowType::Two, Setup::default(), CLEAN, 1);
    l.p.b.send(&SendWr::new(1, SendOp::LocalInvalidate(l.key), Data::List(&[])));
    l.p.run(1000);
    assert_eq!((l.p.b.statuses(), l.p.b.state()), (vec![(1, LocalQpOperation)], QpState::Err));

    let mut l = loan(WindowType::Two, Setup { kind: QpType::Uc, ..Setup::default() }, CLEAN, 1);
    l.p.b.send(&SendWr::new(1, SendOp::LocalInvalidate(l.key), Data::List(&[])));
    l.p.b.send(&SendWr::new(2, SendOp::LocalInvalidate(l.key), Data::List(&[])));
    l.p.run(1000);
    assert_eq!((l.p.b.statuses(), l.p.b.state()), (vec![(1, LocalQpOperation), (2, Flushed)], QpState::Sqe));
}

/// B binds, A writes through the window and takes it away with a SEND, over and over: each write lands exactly once and
/// in its window, however the network behaves.
#[test]
fn windows_come_and_go_under_faults() {
    let kinds = [
        Faults { latency: 1000, loss: 50, ..Faults::default() },
        Faults { latency: 1000, duplicate: 100, reorder: 50, ..Faults::default() },
        Faults { latency: 5000, jitter: 5000, loss: 20, duplicate: 20, damage: 20, reorder: 20, per_byte: 0 },
    ];
    for (seed, faults) in (0..).zip(kinds) {
        let mut l = loan(WindowType::Two, Setup { mtu: 256, ..Setup::default() }, faults, seed);
        let mut expected = vec![0; LEN];
        for round in 0..40usize {
            let (id, at, len) = (round as u64 * 10, round * 131 % 4000, 1 + round * 97 % 3000);
            l.bind(id, at, len);
            l.p.b.recv(id + 1, 0, 64);
            l.p.run(10_000);
            let data: Vec<u8> = (0..len).map(|i| (i * 3 + round) as u8).collect();
            expected[at..at + len].copy_from_slice(&data);
            l.p.a.buffer.write(0, &data).expect("in bounds");
            let list = [l.p.a.sge(0, len)];
            let op = SendOp::Write { va: l.region.va() + at as u64, rkey: l.key };
            l.p.a.send(&SendWr::new(id + 2, op, Data::List(&list)));
            l.p.a.send(&SendWr::new(id + 3, SendOp::SendInvalidate(l.key), Data::Inline(b"thanks")));
            l.p.run(10_000);
            use WcStatus::Success;
            let (a, b) = (l.p.a.statuses(), l.p.b.statuses());
            assert_eq!((a, b), (vec![(id + 2, Success), (id + 3, Success)], vec![(id, Success), (id + 1, Success)]));
            l.p.a.done.clear();
            l.p.b.done.clear();
            assert!(l.p.b.nic.registry().lookup_for(l.key, l.p.b.qp.0).is_none(), "seed {seed}, round {round}");
            assert_eq!(l.p.b.bytes(AT, LEN), expected, "seed {seed}, round {round}, {faults:?}");
        }
    }
}
