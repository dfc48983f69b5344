//! Packet and message sequence numbers: wrap, duplicates, replays, lost acknowledgements and responses.

use crate::common::bare::{Bare, Said, ack, nak};
use crate::common::{CLEAN, Faults, Pair, Setup};
use remora_memory::Buffer;
use remora_nic::*;
use remora_wire::{Aeth, NakCode, Opcode, Syndrome};

const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// An engine that expects PSN 100 and sends from 5000 on, at an MTU of 256.
fn bare() -> Bare {
    Bare::new(Setup { mtu: 256, psn_a: 100, psn_b: 5000, ..Setup::default() })
}

fn word(buffer: &Buffer, at: usize) -> u64 {
    buffer.load_u64(at).expect("aligned")
}

fn msns(said: &[Said]) -> Vec<(u32, Option<u32>)> {
    said.iter().map(|s| (s.psn, s.aeth.map(|a| a.msn))).collect()
}

#[test]
fn psns_wrap_in_both_directions() {
    for start in [0xff_fff0, 0xff_ffff, 0x7f_fff8] {
        let setup = Setup { mtu: 256, psn_a: start, psn_b: start ^ 5, ..Setup::default() };
        for loss in [0, 100] {
            let mut p = Pair::new(u64::from(start), Faults { loss, ..CLEAN }, setup);
            let data: Vec<u8> = (0..20_000).map(|i| (i % 249) as u8).collect();
            p.a.buffer.write(0, &data).expect("in bounds");
            let (from, back, sum) = ([p.a.sge(0, 20_000)], [p.a.sge(1 << 19, 20_000)], [p.a.sge(1 << 18, 8)]);
            let (va, rkey, counter) = (p.b.va(0), p.b.key(), p.b.va(1 << 18));
            for id in 0..10 {
                p.a.send(&SendWr::new(4 * id, SendOp::Write { va, rkey }, Data::List(&from)));
                p.a.send(&SendWr::new(4 * id + 1, SendOp::Read { va, rkey }, Data::List(&back)));
                p.a.send(&SendWr::new(4 * id + 2, SendOp::FetchAdd { va: counter, rkey, add: 1 }, Data::List(&sum)));
                p.b.send(&SendWr::new(id, SendOp::Write { va: p.a.va(3 << 18), rkey: p.a.key() }, Data::Inline(b"b")));
            }
            p.run(100_000);
            assert!(p.a.done.iter().chain(&p.b.done).all(|wc| wc.status == WcStatus::Success), "start {start:#x}");
            assert_eq!((p.a.done.len(), p.b.done.len()), (30, 10));
            assert_eq!((p.b.bytes(0, 20_000), p.a.bytes(1 << 19, 20_000)), (data.clone(), data));
            assert_eq!((word(&p.b.buffer, 1 << 18), word(&p.a.buffer, 1 << 18)), (10, 9));
            let used = 10 * (79 + 79 + 1);
            assert_eq!(p.a.nic.qp_psns(p.a.qp).expect("live").0.get(), (start + used) & 0xff_ffff);
        }
    }
}

#[test]
fn msn_counts_messages() {
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    bare.side.recv(1, 0, 1000);
    let data = [1; 256];
    // A message counts when its last packet has come, a READ when its request has.
    let steps = [
        (bare.packet(Opcode::RcSendFirst, 100, &data), vec![(100, Some(0))]),
        (bare.packet(Opcode::RcSendMiddle, 101, &data), vec![(101, Some(0))]),
        (bare.packet(Opcode::RcSendLast, 102, &data), vec![(102, Some(1))]),
        (bare.with_reth(Opcode::RcWriteOnly, 103, (va, key, 256), &data), vec![(103, Some(2))]),
        (
            bare.with_reth(Opcode::RcReadRequest, 104, (va, key, 600), &[]),
            vec![(104, Some(3)), (105, None), (106, Some(3))],
        ),
        (bare.fetch_add(107, va, key), vec![(107, Some(4))]),
        // A duplicate is no new message.
        (bare.packet(Opcode::RcSendLast, 102, &data), vec![(103, Some(4))]),
    ];
    for (packet, expected) in steps {
        bare.give(&packet);
        assert_eq!(msns(&bare.said()), expected);
    }
}

/// 2^24 messages and a few: the MSN comes back to where it was. Too slow with overflow checks, so run by
/// `cargo test --profile wrapping`.
#[test]
#[cfg(not(debug_assertions))]
fn msn_wraps() {
    let mut bare = bare();
    let mut packet = crate::common::bare::bytes_of(&bare.with_reth(Opcode::RcWriteOnly, 0, (0, 0, 0), &[]));
    let messages: u32 = (1 << 24) + 3;
    for n in 0..messages {
        let psn = 100u32.wrapping_add(n).to_be_bytes();
        packet[9..12].copy_from_slice(&psn[1..]);
        packet[8] = 0;
        bare.side.nic.handle_packet(0, 0, crate::common::A, crate::common::B, &packet);
    }
    let last = (100 + messages) & 0xff_ffff;
    bare.give(&bare.with_reth(Opcode::RcWriteOnly, last, (0, 0, 0), &[]));
    assert_eq!(msns(&bare.said()), [(last, Some((messages + 1) & 0xff_ffff))]);
}

/// A READ or atomic is remembered until as many others have come, however long ago it was.
#[test]
fn what_was_read_a_round_of_numbers_ago_is_no_reason_to_acknowledge_less() {
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    let add = bare.fetch_add(100, va + 64, key);
    bare.exchange(&add);
    let mut packet = crate::common::bare::bytes_of(&bare.with_reth(Opcode::RcWriteOnly, 0, (0, 0, 0), &[]));
    packet[8] = 0;
    for psn in 101..100 + (1u32 << 24) {
        packet[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
        bare.side.nic.handle_packet(0, 0, crate::common::A, crate::common::B, &packet);
    }
    assert_eq!(bare.exchange(&bare.with_reth(Opcode::RcWriteOnly, 100, (0, 0, 0), &[])), [ack(100)]);
    // Of those right before it is still as it was.
    let add = bare.fetch_add(101, va + 64, key);
    bare.exchange(&add);
    assert_eq!(bare.exchange(&bare.with_reth(Opcode::RcWriteOnly, 100, (0, 0, 0), &[])), [ack(100)], "a duplicate");
}

#[test]
fn a_gap_is_told_once() {
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    let write = |bare: &Bare, psn| {
        crate::common::bare::bytes_of(&bare.with_reth(Opcode::RcWriteOnly, psn, (va, key, 1), &[psn as u8]))
    };
    let mut exchange = |psn| {
        let bytes = write(&bare, psn);
        bare.give_bytes(&bytes);
        bare.brief()
    };
    assert_eq!(exchange(100), [ack(100)]);
    assert_eq!(exchange(102), [nak(101, NakCode::SequenceError)]);
    assert_eq!(exchange(103), []);
    assert_eq!(exchange(105), []);
    assert_eq!(exchange(101), [ack(101)]);
    assert_eq!(exchange(103), [nak(102, NakCode::SequenceError)], "a new gap");
    assert_eq!(exchange(102), [ack(102)]);
    assert_eq!(bare.side.nic.counters().sequence_naks, 2);
}

#[test]
fn duplicates_are_answered_and_not_carried_out() {
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    bare.side.recv(1, 4096, 64);
    let send = bare.packet(Opcode::RcSendOnly, 100, b"once");
    let write = bare.with_reth(Opcode::RcWriteOnly, 101, (va, key, 4), b"data");
    let add = bare.fetch_add(102, va + 64, key);
    assert_eq!(bare.exchange(&send), [ack(100)]);
    assert_eq!(bare.exchange(&write), [ack(101)]);
    bare.give(&add);
    assert_eq!(bare.said()[0].original, Some(0));
    bare.side.buffer.write(0, b"mine").expect("in bounds");
    assert_eq!(bare.exchange(&send), [ack(101)], "acknowledges all that came, but for the atomic");
    assert_eq!(bare.exchange(&write), [ack(101)]);
    // The saved value, however often it is asked for and whatever the word is now.
    for _ in 0..3 {
        bare.give(&add);
        let said = bare.said();
        assert_eq!((said.len(), said[0].psn, said[0].original), (1, 102, Some(0)));
    }
    assert_eq!((bare.side.take_done().len(), bare.side.bytes(0, 4)), (1, b"mine".to_vec()));
    assert_eq!(word(&bare.side.buffer, 64), 1);
    assert_eq!(bare.side.nic.counters().duplicates, 5);
}

/// A peer whose acknowledgements and responses were lost begins again with the SEND. It must not hear of its READs and
/// atomics but by their responses: rdma_rxe takes an ACK with a READ's PSN for the READ's end, and has no data.
#[test]
fn an_ack_never_stands_for_a_response() {
    use Opcode::*;
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    bare.side.recv(1, 4096, 64);
    let send = bare.packet(RcSendOnly, 100, b"look");
    let reads = [(101, 600), (104, 8)].map(|(psn, len)| bare.with_reth(RcReadRequest, psn, (va, key, len), &[]));
    let add = bare.fetch_add(105, va, key);
    let write = bare.with_reth(RcWriteOnly, 106, (va, key, 4), b"data");
    assert_eq!(bare.exchange(&send), [ack(100)]);
    for request in [&reads[0], &reads[1], &add] {
        bare.give(request);
        assert!(bare.said().iter().all(|said| said.opcode != RcAck));
        assert_eq!(bare.exchange(&send), [ack(100)]);
    }
    // An ACK of something later says to the peer that responses are lost.
    assert_eq!(bare.exchange(&write), [ack(106)]);
    assert_eq!(bare.exchange(&send), [ack(106)]);
    // A duplicate and a new READ in one turn: the response goes first, and the ACK does not speak for it.
    bare.give(&send);
    bare.give(&bare.with_reth(RcReadRequest, 107, (va, key, 8), &[]));
    bare.give(&send);
    assert_eq!(bare.brief(), [(RcReadResponseOnly, 107, Some(0x1f)), ack(106)]);
}

#[test]
fn duplicate_reads_are_replayed_from_where_the_peer_asks() {
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    let data: Vec<u8> = (0..1000).map(|i| (i % 241) as u8).collect();
    bare.side.buffer.write(0, &data).expect("in bounds");
    use Opcode::*;
    let whole = [
        (RcReadResponseFirst, 100, Some(0x1f)),
        (RcReadResponseMiddle, 101, None),
        (RcReadResponseMiddle, 102, None),
        (RcReadResponseLast, 103, Some(0x1f)),
    ];
    let read = |bare: &Bare, psn, at, len| bare.with_reth(RcReadRequest, psn, (va + at, key, len), &[]);
    assert_eq!(bare.exchange(&read(&bare, 100, 0, 1000)), whole);
    assert_eq!(bare.exchange(&read(&bare, 100, 0, 1000)), whole);
    bare.give(&read(&bare, 102, 512, 488));
    let part = bare.said();
    let brief: Vec<_> = part.iter().map(Said::brief).collect();
    assert_eq!(brief, [(RcReadResponseFirst, 102, Some(0x1f)), (RcReadResponseLast, 103, Some(0x1f))]);
    assert_eq!([part[0].payload.as_slice(), &part[1].payload].concat(), data[512..]);
    assert_eq!(bare.exchange(&read(&bare, 103, 768, 232)), [(RcReadResponseOnly, 103, Some(0x1f))]);
    // What was not granted is not read on the strength of what was.
    for (psn, at, len) in [(100, 8, 1000), (100, 0, 4096), (102, 512, 489), (102, 0, 488), (99, 0, 256)] {
        assert_eq!(bare.exchange(&read(&bare, psn, at, len)), [], "PSN {psn}, {len} B at {at}");
    }
    // After a deregistration there is nothing to replay.
    bare.side.nic.registry().deregister(key).expect("live");
    assert_eq!(bare.exchange(&read(&bare, 100, 0, 1000)), [nak(100, NakCode::RemoteAccess)]);
}

/// A duplicate that arrives together with the next request must not use up the next one's place.
#[test]
fn a_replay_gives_way_to_a_new_read() {
    for replay in ["READ", "atomic"] {
        let mut bare = Bare::new(Setup { rd_atomic: 1, psn_a: 100, ..Setup::default() });
        let (va, key) = (bare.side.va(0), bare.side.key());
        let first = match replay {
            "READ" => bare.with_reth(Opcode::RcReadRequest, 100, (va, key, 8), &[]),
            _ => bare.fetch_add(100, va, key),
        };
        let second = bare.with_reth(Opcode::RcReadRequest, 101, (va, key, 16), &[]);
        assert_eq!(bare.exchange(&first).len(), 1);
        bare.give(&first);
        bare.give(&second);
        assert_eq!(bare.brief(), [(Opcode::RcReadResponseOnly, 101, Some(0x1f))], "{replay}");
        assert_eq!(bare.exchange(&second), [(Opcode::RcReadResponseOnly, 101, Some(0x1f))], "{replay}");
    }
}

#[test]
fn a_lost_ack_costs_one_timeout_and_no_second_delivery() {
    let mut bare = bare();
    bare.side.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"a")));
    bare.side.send(&SendWr::new(2, SendOp::Send, Data::Inline(b"b")));
    let sent = bare.brief();
    assert_eq!(sent, [(Opcode::RcSendOnly, 5000, None), (Opcode::RcSendOnly, 5001, None)]);
    assert!(bare.next_timer());
    let again = bare.said();
    assert_eq!(again.iter().map(Said::brief).collect::<Vec<_>>(), sent);
    assert!(again[0].ack_req, "one acknowledgement is enough to learn where the peer is");
    // The last one's acknowledgement is everyone's.
    bare.give(&bare.aeth(5001, ACK));
    let done: Vec<_> = bare.side.take_done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let counters = bare.side.nic.counters();
    assert_eq!((counters.timeouts, counters.retransmits), (1, 2));
    assert!(!bare.next_timer() || bare.said().is_empty(), "nothing is left to do");
}

#[test]
fn acknowledgements_of_what_was_not_sent_are_ignored() {
    for psn in [4999, 5001, 6000, 5000 + (1 << 23), 0] {
        for syndrome in [ACK, Syndrome::Nak(NakCode::RemoteAccess), Syndrome::RnrNak { timer: 0 }] {
            let mut bare = bare();
            bare.side.send(&SendWr::new(1, SendOp::Send, Data::Inline(b"a")));
            assert_eq!(bare.said().len(), 1);
            bare.give(&bare.aeth(psn, syndrome));
            assert_eq!((bare.side.take_done(), bare.side.state()), (vec![], QpState::Rts), "{psn} {syndrome:?}");
            bare.give(&bare.aeth(5000, ACK));
            assert_eq!(bare.side.take_done().len(), 1);
        }
    }
}

#[test]
fn a_sequence_nak_goes_back_to_where_it_says() {
    let mut bare = bare();
    let (op, list) = (SendOp::Write { va: 0, rkey: 0 }, [bare.side.sge(0, 1000)]);
    bare.side.send(&SendWr::new(1, op, Data::List(&list)));
    bare.side.send(&SendWr::new(2, SendOp::Send, Data::Inline(b"a")));
    assert_eq!(bare.said().len(), 5);
    use Opcode::*;
    let expected = [(RcWriteMiddle, 5002, None), (RcWriteLast, 5003, None), (RcSendOnly, 5004, None)];
    assert_eq!(bare.exchange(&bare.aeth(5002, Syndrome::Nak(NakCode::SequenceError))), expected);
    assert_eq!(bare.exchange(&bare.aeth(5004, ACK)), []);
    assert_eq!(bare.side.take_done().len(), 2);
}

/// The packets of a READ response that did not come are asked for as soon as something later shows that they are lost.
#[test]
fn lost_responses_are_asked_for_once() {
    use Opcode::*;
    let mut bare = bare();
    let data = [7; 256];
    let aeth = Some(Aeth { syndrome: ACK, msn: 1 });
    let list = [bare.side.sge(0, 1024)];
    bare.side.send(&SendWr::new(1, SendOp::Read { va: 0x4000, rkey: 5 }, Data::List(&list)));
    bare.side.send(&SendWr::new(2, SendOp::Write { va: 0, rkey: 0 }, Data::Inline(b"a")));
    assert_eq!(bare.brief(), [(RcReadRequest, 5000, None), (RcWriteOnly, 5004, None)]);
    let response = |bare: &Bare, opcode: Opcode, psn| {
        let packet = bare.packet(opcode, psn, &data);
        crate::common::bare::bytes_of(&remora_wire::packet::Packet {
            aeth: if opcode.has_aeth() { aeth } else { None },
            ..packet
        })
    };
    let mut give = |opcode, psn| {
        let bytes = response(&bare, opcode, psn);
        bare.give_bytes(&bytes);
        bare.said()
    };
    assert_eq!(give(RcReadResponseFirst, 5000), []);
    // 5001 is lost.
    let again = give(RcReadResponseMiddle, 5002);
    assert_eq!((again[0].opcode, again[0].psn), (RcReadRequest, 5001));
    let reth = again[0].reth.expect("READ requests have a RETH");
    assert_eq!((reth.va, reth.len), (0x4000 + 256, 768), "the part that is missing");
    assert_eq!(give(RcReadResponseLast, 5003), [], "asked once");
    assert_eq!(give(RcReadResponseFirst, 5001), []);
    assert_eq!(give(RcReadResponseMiddle, 5002), []);
    assert_eq!(give(RcReadResponseLast, 5003), []);
    bare.give(&bare.aeth(5004, ACK));
    let done: Vec<_> = bare.side.take_done().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(bare.side.bytes(0, 1024), [7; 1024]);
}

/// An acknowledgement of a later WRITE says that the whole response is lost.
#[test]
fn an_ack_beyond_an_unanswered_read_or_atomic_asks_again() {
    for atomic in [false, true] {
        let mut bare = bare();
        let list = [bare.side.sge(0, 8)];
        let op = if atomic { SendOp::FetchAdd { va: 8, rkey: 5, add: 1 } } else { SendOp::Read { va: 8, rkey: 5 } };
        let opcode = if atomic { Opcode::RcFetchAdd } else { Opcode::RcReadRequest };
        bare.side.send(&SendWr::new(1, op, Data::List(&list)));
        bare.side.send(&SendWr::new(2, SendOp::Write { va: 0, rkey: 0 }, Data::Inline(b"a")));
        assert_eq!(bare.said().len(), 2);
        let again = bare.exchange(&bare.aeth(5001, ACK));
        assert_eq!(again[0], (opcode, 5000, None));
        assert_eq!(bare.side.take_done(), [], "in order: the WRITE waits for the READ");
        assert_eq!(bare.exchange(&bare.aeth(5001, ACK)), [], "asked once");
    }
}

#[test]
fn acks_are_asked_for_often_enough() {
    let mut bare = bare();
    let (op, list) = (SendOp::Write { va: 0, rkey: 0 }, [bare.side.sge(0, 256 * 1000)]);
    bare.side.send(&SendWr::new(1, op, Data::List(&list)).unsignaled());
    let mut next = 5000;
    let mut rounds = 0;
    while bare.side.nic.sends_outstanding(bare.side.qp) != Ok(0) {
        let said = bare.said();
        assert!(!said.is_empty(), "the window never stands still");
        assert!(said.iter().all(|s| (0..1000).contains(&(s.psn - 5000))));
        let asked: Vec<u32> = said.iter().filter(|s| s.ack_req).map(|s| s.psn).collect();
        assert!(!asked.is_empty());
        for psn in asked {
            bare.give(&bare.aeth(psn, ACK));
            assert!(psn >= next, "nothing twice");
            next = psn;
        }
        rounds += 1;
    }
    assert!(rounds < 20, "{rounds}");
}

#[test]
fn an_ack_without_progress_does_not_put_off_the_retransmission() {
    let mut bare = bare();
    let list = [bare.side.sge(0, 100)];
    bare.side.send(&SendWr::new(1, SendOp::Read { va: 0, rkey: 1 }, Data::List(&list)));
    bare.side.send(&SendWr::new(2, SendOp::Write { va: 0, rkey: 1 }, Data::List(&list)));
    assert_eq!(bare.brief().len(), 2);
    // The READ's response is lost. The first ACK for the WRITE has it asked for again; further ones bring nothing new.
    bare.give(&bare.aeth(5001, ACK));
    assert_eq!(bare.brief().len(), 2, "asked for again");
    // Asking was a retry, after which the timeout of 4.096 us x 2^8 is twice as long.
    let due = bare.now + 2 * (4096 << 8);
    for _ in 0..10 {
        bare.now += 1000;
        bare.give(&bare.aeth(5001, ACK));
        assert_eq!(bare.brief(), []);
    }
    while bare.side.nic.counters().timeouts == 0 {
        assert!(bare.next_timer());
    }
    assert_eq!((bare.now, bare.brief().len()), (due, 2));
}

/// A duplicate is answered with what was stored, not by doing it again (specification, 9.7.5.1.5 and 9.7.5.2).
#[test]
fn every_duplicate_of_sixteen_outstanding_atomics_and_reads_gets_its_first_answer() {
    let mut bare = bare();
    let (va, key) = (bare.side.va(0), bare.side.key());
    bare.side.buffer.store_u64(0, 1000).expect("aligned");
    let request = |bare: &Bare, n: u32| match n % 2 {
        0 => bare.fetch_add(100 + 3 * (n / 2), va, key),
        _ => bare.with_reth(Opcode::RcReadRequest, 101 + 3 * (n / 2), (va + 8, key, 300), &[]),
    };
    let answers: Vec<Vec<Said>> = (0..16)
        .map(|n| {
            bare.give(&request(&bare, n));
            bare.said()
        })
        .collect();
    assert_eq!(answers[14][0].original, Some(1007));
    let payload =
        |said: &[Said]| said.iter().map(|s| (s.opcode, s.psn, s.original, s.payload.clone())).collect::<Vec<_>>();
    // All of them again, in any order, several times over.
    for n in (0..48).map(|i| i * 7 % 16) {
        bare.give(&request(&bare, n));
        assert_eq!(payload(&bare.said()), payload(&answers[n as usize]), "request {n}");
    }
    // A READ's second half alone.
    bare.give(&bare.with_reth(Opcode::RcReadRequest, 102, (va + 8 + 256, key, 44), &[]));
    assert_eq!(bare.brief(), [(Opcode::RcReadResponseOnly, 102, Some(0x1f))]);
    assert_eq!(word(&bare.side.buffer, 0), 1008, "each ran once");
}
