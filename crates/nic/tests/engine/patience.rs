//! Acknowledgements in worlds that say when nothing comes: for many messages at once, and without hurry where nobody waits.

use crate::common::{CLEAN, Pair, REGION, Setup};
use proptest::prelude::*;
use remora_memory::Access;
use remora_nic::*;
use remora_wire::{Aeth, Bth, Opcode, Syndrome};

/// Two patient ends that have heard of each other.
fn pair() -> Pair {
    let mut p = Pair::new(1, CLEAN, Setup { rts: RtsAttr { timeout: 14, ..RtsAttr::default() }, ..Setup::default() });
    p.a.nic.set_patient();
    p.b.nic.set_patient();
    let (op, list) = (SendOp::Write { va: p.a.va(0), rkey: p.a.key() }, [p.b.sge(0, 64)]);
    p.b.send(&SendWr::new(0, op, Data::List(&list)).unsignaled());
    write_unsignaled(&mut p, 0);
    p.settle();
    p.logging = true;
    p
}

fn write(p: &mut Pair, id: u64) {
    let (op, list) = (SendOp::Write { va: p.b.va(0), rkey: p.b.key() }, [p.a.sge(0, 64)]);
    p.a.send(&SendWr::new(id, op, Data::List(&list)));
}

fn write_unsignaled(p: &mut Pair, id: u64) {
    let (op, list) = (SendOp::Write { va: p.b.va(0), rkey: p.b.key() }, [p.a.sge(0, 64)]);
    p.a.send(&SendWr::new(id, op, Data::List(&list)).unsignaled());
}

/// Acknowledgements that B has sent: PSNs, and whether they are good.
fn acks(p: &Pair) -> Vec<(u32, bool)> {
    let of = |packet: &[u8]| {
        let bth = Bth::parse(packet).ok().filter(|bth| bth.opcode == Opcode::RcAck)?;
        let aeth = Aeth::parse(&packet[Bth::LEN..]).ok()?;
        Some((bth.psn.get(), matches!(aeth.syndrome, Syndrome::Ack { .. })))
    };
    p.log.iter().filter(|(_, from, _)| *from == 1).filter_map(|(_, _, packet)| of(packet)).collect()
}

#[test]
fn messages_that_nobody_waits_for_share_an_acknowledgement() {
    let mut p = pair();
    for id in 0..10 {
        write_unsignaled(&mut p, id);
        p.settle();
    }
    assert_eq!((acks(&p), p.a.nic.sends_outstanding(p.a.qp), p.b.nic.owes()), (vec![], Ok(10), true));
    // They have been carried out all the same.
    assert_eq!(p.b.nic.counters().writes, 11);
    p.b.nic.acknowledge();
    p.settle();
    assert_eq!((acks(&p), p.a.nic.sends_outstanding(p.a.qp), p.b.nic.owes()), (vec![(110, true)], Ok(0), false));
    p.b.nic.acknowledge();
    p.settle();
    assert_eq!(acks(&p).len(), 1, "nothing is owed any more");
    // So many are not left for later.
    for id in 0..64 {
        write_unsignaled(&mut p, id);
        p.settle();
    }
    assert!((4..=5).contains(&(acks(&p).len() - 1)), "{:?}", acks(&p));
    assert!(p.a.nic.sends_outstanding(p.a.qp).is_ok_and(|left| left < 16));
}

#[test]
fn who_waits_for_one_message_hears_of_it_at_once() {
    let mut p = pair();
    for id in 0..5 {
        write(&mut p, id);
        p.settle();
        assert_eq!(p.a.take_done().len(), 1);
    }
    assert_eq!(acks(&p).len(), 5);
    // Of many at once those behind complete together with those before.
    for id in 0..40 {
        write(&mut p, id);
    }
    p.settle();
    p.b.nic.acknowledge();
    p.settle();
    assert_eq!(p.a.take_done().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
    assert!(acks(&p).len() < 5 + 10, "{:?}", acks(&p));
}

/// A completion still says that the peer has checked and done it: what is refused is told at once, and what came before it is good.
#[test]
fn errors_are_told_at_once() {
    let mut p = pair();
    for id in 0..6 {
        write(&mut p, id);
        p.settle();
    }
    for id in 6..12 {
        write_unsignaled(&mut p, id);
    }
    let list = [p.a.sge(0, 64)];
    let beyond = SendOp::Write { va: p.b.va(REGION - 63), rkey: p.b.key() };
    p.a.send(&SendWr::new(12, beyond, Data::List(&list)).unsignaled());
    write(&mut p, 13);
    p.settle();
    let done: Vec<_> = p.a.take_done().into_iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let good = (0..6).map(|id| (id, WcStatus::Success));
    let bad = [(12, WcStatus::RemoteAccess), (13, WcStatus::Flushed)];
    assert_eq!(done, good.chain(bad).collect::<Vec<_>>());
    assert_eq!(acks(&p).last(), Some(&(113, false)));
    assert_eq!(p.b.nic.counters().writes, 13);
    // Nothing is owed to a connection that is over.
    p.b.nic.acknowledge();
    let sent = p.log.len();
    p.settle();
    assert_eq!(p.log.len(), sent);
}

/// Work that waits for what came before it, and a queue that has little room left, have acknowledgements sent.
#[test]
fn work_that_waits_is_not_left_waiting() {
    let mut p = pair();
    let own = p.a.register(0, 64, Access::LOCAL_WRITE | Access::INVALIDATE);
    write_unsignaled(&mut p, 1);
    p.a.send(&SendWr::new(2, SendOp::LocalInvalidate(own.key()), Data::List(&[])));
    p.settle();
    assert_eq!(p.a.take_done().len(), 1);
    let (op, list) = (SendOp::Read { va: p.b.va(0), rkey: p.b.key() }, [p.a.sge(0, 64)]);
    for round in 0..1000 {
        write_unsignaled(&mut p, round);
        p.settle();
    }
    // A READ's response acknowledges all before it.
    p.a.send(&SendWr::new(3, op, Data::List(&list)));
    p.settle();
    assert_eq!((p.a.take_done().len(), p.a.nic.sends_outstanding(p.a.qp)), (1, Ok(0)));
    let before = acks(&p).len();
    p.b.nic.acknowledge();
    p.settle();
    assert_eq!(acks(&p).len(), before);
}

/// Whose peer's world does not say when nothing comes has everything acknowledged at once, and so has a peer that keeps nothing.
#[test]
fn others_are_asked_as_ever() {
    for (selective, patient) in [([true; 2], [true, false]), ([true; 2], [false, true]), ([true, false], [true; 2])] {
        let mut p = Pair::recovering(selective, REGION, 1, CLEAN, Setup::default());
        let _ = patient[0].then(|| p.a.nic.set_patient());
        let _ = patient[1].then(|| p.b.nic.set_patient());
        for id in 0..30 {
            write_unsignaled(&mut p, id);
            p.settle();
            assert_eq!(p.a.nic.sends_outstanding(p.a.qp), Ok(0));
        }
        assert!(!p.b.nic.owes());
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Read,
    Send,
    Add,
    /// Nothing comes for a while.
    Idle,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Whatever is posted, signalled or not, at whichever end, completes in order when the peer has had nothing to do for a while;
    /// no timer has to help.
    #[test]
    fn everything_completes(
        steps in proptest::collection::vec((
            prop_oneof![Just(Step::Write), Just(Step::Read), Just(Step::Send), Just(Step::Add), Just(Step::Idle)],
            1..5000usize,
            any::<bool>(),
            any::<bool>(),
        ), 1..80),
    ) {
        let mut p = pair();
        p.logging = false;
        let mut posted = [vec![], vec![]];
        for (id, (step, len, signaled, back)) in steps.into_iter().enumerate() {
            let id = id as u64;
            let (from, to) = if back { (&mut p.b, &mut p.a) } else { (&mut p.a, &mut p.b) };
            let (va, rkey) = (to.va(0), to.key());
            let op = match step {
                Step::Write => SendOp::Write { va, rkey },
                Step::Read => SendOp::Read { va, rkey },
                Step::Send => SendOp::Send,
                Step::Add => SendOp::FetchAdd { va, rkey, add: 1 },
                Step::Idle => {
                    p.settle();
                    p.a.nic.acknowledge();
                    p.b.nic.acknowledge();
                    continue;
                }
            };
            if let Step::Send = step {
                to.recv(1 << 32, 1 << 19, 8192);
            }
            let list = [from.sge(0, if let Step::Add = step { 8 } else { len })];
            let wr = SendWr::new(id, op, Data::List(&list));
            from.send(&if signaled { wr } else { wr.unsignaled() });
            if signaled {
                posted[usize::from(back)].push(id);
            }
        }
        for _ in 0..3 {
            p.settle();
            p.a.nic.acknowledge();
            p.b.nic.acknowledge();
        }
        for (side, posted) in [(&mut p.a, &posted[0]), (&mut p.b, &posted[1])] {
            let done = side.take_done();
            prop_assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
            let sent: Vec<u64> = done.iter().map(|wc| wc.wr_id).filter(|id| *id < 1 << 32).collect();
            prop_assert_eq!(&sent, posted);
            prop_assert_eq!(side.nic.sends_outstanding(side.qp), Ok(0));
            prop_assert_eq!((side.nic.counters().timeouts, side.nic.counters().retransmits), (0, 0));
        }
    }
}
