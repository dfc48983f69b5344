//! How much of a link that loses packets is left, in virtual time: with selective repeat, and with go-back-N beside it.

use crate::common::bare::{Bare, ack, bytes_of, nak};
use crate::common::{CLEAN, Faults, Pair, Setup};
use remora_nic::*;
use remora_wire::packet::Packet;
use remora_wire::{Bth, NakCode, Opcode, Syndrome};

/// A link of 1 Gbit/s, half a millisecond long.
const LINK: Faults = Faults { latency: 500_000, per_byte: 8000, ..CLEAN };
/// The bits of the BTH's reserved ones: the sender keeps what comes early; what comes next is there; what has come?
const SELECTIVE: u8 = 0x40;
const RESUME: u8 = 0x20;
const PROBE: u8 = 0x10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Write,
    Send,
    Read,
}

/// Carries `total` bytes in messages of `len`, so many at a time, over the link that loses so many packets of 1,000.
fn carry(selective: bool, (what, len, at_once): (What, usize, usize), total: usize, loss: u32) -> Pair {
    let setup = Setup { mtu: 4096, ..Setup::default() };
    let setup = Setup { rts: RtsAttr { timeout: 14, ..setup.rts }, ..setup };
    let mut pair = Pair::recovering([selective; 2], len.max(1 << 20), 7, Faults { loss, ..LINK }, setup);
    let (va, rkey) = (pair.b.va(0), pair.b.key());
    let (mut posted, mut done) = (0, 0);
    while done < total / len {
        while posted < total / len && posted - done < at_once {
            let sge = [pair.a.sge(0, len)];
            let op = match what {
                What::Write => SendOp::Write { va, rkey },
                What::Send => SendOp::Send,
                What::Read => SendOp::Read { va, rkey },
            };
            if what == What::Send {
                pair.b.recv(posted as u64, 0, len);
            }
            pair.a.send(&SendWr::new(posted as u64, op, Data::List(&sge)));
            posted += 1;
        }
        assert!(pair.step(), "{what:?} of {len} B: nothing left to happen");
        done += pair.a.done.drain(..).inspect(|wc| assert_eq!(wc.status, WcStatus::Success)).count();
        pair.b.done.clear();
    }
    pair
}

#[test]
fn one_packet_lost_in_a_hundred_leaves_four_fifths_of_the_link() {
    const TOTAL: usize = 12 << 20;
    for load in [(What::Write, 65536, 64), (What::Send, 4096, 64), (What::Read, 65536, 64), (What::Read, 1 << 18, 8)] {
        let [clean, selective, back] = [(true, 0), (true, 10), (false, 10)].map(|(selective, loss)| {
            let pair = carry(selective, load, TOTAL, loss);
            TOTAL as f64 * 8.0 / pair.now as f64
        });
        println!("{load:?}: {clean:.3} of the link; with loss {selective:.3}, going back N {back:.3}");
        assert!(clean > 0.95 && selective > 0.8 && back < 0.7, "{load:?}: {clean:.3}, {selective:.3}, {back:.3}");
    }
}

#[test]
fn who_waits_for_one_message_at_a_time_waits_for_few_round_trips_when_one_is_lost() {
    for what in [What::Write, What::Send, What::Read] {
        let load = (what, 512, 1);
        let [clean, lossy] = [0, 10].map(|loss| carry(true, load, 600 * 512, loss));
        // One message in fifty needs one more probe, or the first time the ACK timeout, of 67 ms.
        let counters = lossy.a.nic.counters();
        println!("{what:?}: {} ms, with loss {} ms, {counters:?}", clean.now / 1_000_000, lossy.now / 1_000_000);
        assert!(counters.timeouts == 1 && lossy.now < clean.now * 6 / 5, "{what:?}: {counters:?}");
    }
}

/// The peer of `bare`'s engine keeps what comes early, and both know it.
fn acquainted() -> (Bare, u64, u32) {
    let mut bare = Bare::new(Setup { mtu: 256, psn_a: 100, psn_b: 5000, ..Setup::default() });
    let (va, key) = (bare.side.va(0), bare.side.key());
    let first = write(&bare, (va, key), 100, 1, SELECTIVE);
    bare.give_bytes(&first);
    assert_eq!(bare.brief(), [ack(100)]);
    (bare, va, key)
}

/// A WRITE of one byte with these reserved bits.
fn write(bare: &Bare, (va, key): (u64, u32), psn: u32, byte: u8, reserved7: u8) -> Vec<u8> {
    let packet = bare.with_reth(Opcode::RcWriteOnly, psn, (va, key, 1), std::slice::from_ref(&byte));
    bytes_of(&Packet { bth: Bth { reserved7, ..packet.bth }, ..packet })
}

#[test]
fn what_came_early_is_carried_out_in_its_turn_once_the_peer_says_so() {
    let (mut bare, va, key) = acquainted();
    let mut exchange = |psn: u32, byte, bits| {
        let bytes = write(&bare, (va + u64::from(psn - 100), key), psn, byte, SELECTIVE | bits);
        bare.give_bytes(&bytes);
        let said = bare.said();
        let map: Vec<u8> = said.iter().flat_map(|said| said.payload.iter().take(2).copied()).collect();
        (said.iter().map(|said| said.brief()).collect::<Vec<_>>(), map, bare.side.bytes(0, 8))
    };
    let gap = nak(101, NakCode::SequenceError);
    assert_eq!(exchange(102, 2, 0), (vec![gap], vec![0b10, 0], vec![1, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(exchange(103, 3, 0), (vec![gap], vec![0b110, 0], vec![1, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(exchange(105, 5, 0), (vec![gap], vec![0b1_0110, 0], vec![1, 0, 0, 0, 0, 0, 0, 0]));
    // The missing one, from a peer that knows what is there. The next gap is told at once.
    let gap = nak(104, NakCode::SequenceError);
    assert_eq!(exchange(101, 9, RESUME), (vec![gap], vec![0b10, 0], vec![1, 9, 2, 3, 0, 0, 0, 0]));
    assert_eq!(exchange(104, 4, RESUME), (vec![ack(105)], vec![], vec![1, 9, 2, 3, 4, 5, 0, 0]));
}

#[test]
fn a_forged_packet_ahead_of_its_turn_gives_way_to_the_genuine_one() {
    let (mut bare, va, key) = acquainted();
    let mut give = |psn: u32, byte| {
        let bytes = write(&bare, (va + u64::from(psn - 100), key), psn, byte, SELECTIVE);
        bare.give_bytes(&bytes);
        bare.said();
        bare.side.bytes(0, 4)
    };
    assert_eq!(give(102, 66), [1, 0, 0, 0]);
    // The stream goes on as if nothing had been: nobody says that 102 is there.
    assert_eq!(give(101, 2), [1, 2, 0, 0]);
    assert_eq!(give(102, 3), [1, 2, 3, 0]);
    assert_eq!(give(103, 4), [1, 2, 3, 4]);
}

#[test]
fn who_asks_is_told_what_has_come_and_no_receive_is_taken_for_it() {
    let (mut bare, ..) = acquainted();
    bare.side.recv(1, 100, 10);
    let mut ask = |psn| {
        let packet = bare.packet(Opcode::RcSendOnly, psn, &[]);
        let bytes = bytes_of(&Packet { bth: Bth { reserved7: SELECTIVE | PROBE, ..packet.bth }, ..packet });
        bare.give_bytes(&bytes);
        let said = bare.said();
        (said.iter().map(|said| said.brief()).collect::<Vec<_>>(), said[0].payload.len())
    };
    assert_eq!(ask(99), (vec![nak(101, NakCode::SequenceError)], 32));
    assert_eq!(ask(100), (vec![nak(101, NakCode::SequenceError)], 32));
    assert!(bare.side.take_done().is_empty());
    // A peer that does not keep what comes early gets an ACK, as ever.
    let mut other = Bare::new(Setup { mtu: 256, psn_a: 100, psn_b: 5000, ..Setup::default() });
    let packet = other.packet(Opcode::RcSendOnly, 99, &[]);
    let bytes = bytes_of(&Packet { bth: Bth { reserved7: PROBE, ..packet.bth }, ..packet });
    other.give_bytes(&bytes);
    assert_eq!(other.brief(), [ack(99)]);
}

#[test]
fn a_peer_that_dies_after_the_first_loss_is_given_up() {
    for what in [What::Write, What::Read] {
        let setup = Setup { mtu: 4096, ..Setup::default() };
        let mut pair = Pair::recovering([true; 2], 1 << 20, 3, CLEAN, setup);
        let (va, rkey) = (pair.b.va(0), pair.b.key());
        let post = |pair: &mut Pair, id| {
            let op = if what == What::Write { SendOp::Write { va, rkey } } else { SendOp::Read { va, rkey } };
            let sge = [pair.a.sge(0, 4096)];
            pair.a.send(&SendWr::new(id, op, Data::List(&sge)));
        };
        post(&mut pair, 0);
        pair.run(1000);
        // One is lost, the next tells of it, and then there is silence.
        pair.cut[0] = true;
        post(&mut pair, 1);
        pair.transmit();
        pair.cut[0] = false;
        post(&mut pair, 2);
        pair.transmit();
        pair.cut[0] = true;
        pair.run(100_000);
        let last = |wc: &WorkCompletion| (wc.wr_id, wc.status);
        let done: Vec<_> = pair.a.done.iter().map(last).collect();
        assert_eq!(done[1..], [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)], "{what:?}");
    }
}

#[test]
fn a_forged_packet_that_is_kept_slows_nobody_down() {
    let mut pair = Pair::recovering([true; 2], 1 << 20, 3, CLEAN, Setup::default());
    let (va, rkey) = (pair.b.va(0), pair.b.key());
    let run = |pair: &mut Pair| {
        let start = pair.now;
        for id in 0..100 {
            let sge = [pair.a.sge(0, 3000)];
            pair.a.send(&SendWr::new(id, SendOp::Write { va, rkey }, Data::List(&sge)));
            pair.run(1000);
        }
        assert!(pair.a.take_done().iter().all(|wc| wc.status == WcStatus::Success));
        pair.now - start
    };
    let before = run(&mut pair);
    let expected = pair.b.nic.qp_psns(pair.b.qp).unwrap().1;
    for ahead in [1, 50, 200] {
        let bth = Bth { reserved7: SELECTIVE, ..Bth::new(Opcode::RcSendOnly, pair.b.qp.0, expected + ahead) };
        pair.inject(0, bytes_of(&Packet::new(bth, b"forged")));
    }
    let after = run(&mut pair);
    let counters = pair.a.nic.counters();
    assert!(after < before * 5 / 4 && counters.timeouts == 0, "{before} and {after} ns, {counters:?}");
}

#[test]
fn a_read_of_eight_windows_loses_time_in_proportion() {
    let [clean, lossy] = [0, 10].map(|loss| {
        let pair = carry(true, (What::Read, 8 << 20, 1), 8 << 20, loss);
        (pair.now, pair.a.nic.counters())
    });
    println!("{clean:?}, {lossy:?}");
    assert!(lossy.0 < clean.0 * 3, "{clean:?}, {lossy:?}");
}

#[test]
fn only_a_gap_is_told_at_a_psn_that_was_never_sent() {
    let (mut bare, ..) = acquainted();
    let sge = [bare.side.sge(0, 256)];
    let op = SendOp::Read { va: 0, rkey: 0 };
    bare.side.send(&SendWr::new(1, op, Data::List(&sge)));
    assert_eq!(bare.said().len(), 1);
    // It is probed as soon as it has lost something: here at the ACK timeout.
    while bare.side.nic.counters().timeouts == 0 && bare.next_timer() {}
    bare.said();
    for syndrome in [Syndrome::RnrNak { timer: 1 }, Syndrome::Ack { credits: 0 }, Syndrome::Nak(NakCode::RemoteAccess)]
    {
        let packet = bare.aeth(5001, syndrome);
        let bytes = bytes_of(&Packet { bth: Bth { reserved7: SELECTIVE | PROBE, ..packet.bth }, ..packet });
        bare.give_bytes(&bytes);
        assert!(bare.side.take_done().is_empty() && bare.side.state() == QpState::Rts, "{syndrome:?}");
    }
}
