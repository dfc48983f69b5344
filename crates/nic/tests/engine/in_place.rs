//! Packets that stand in memory which both ends share: put together there, and carried out from there.

use std::sync::{Arc, Mutex};

use crate::common::{CLEAN, Pair, REGION, Setup, Side};
use proptest::prelude::*;
use remora_memory::Buffer;
use remora_nic::*;

const SHARED: usize = 64 << 10;

/// Hands over what `from` has to send: packets with much payload by way of `shared`, others as ever. Returns how many
/// packets went each way.
fn pass(now: Time, from: &mut Side, to: &mut Side, shared: &Buffer, start: usize) -> [usize; 2] {
    let mut ways = [0; 2];
    loop {
        if let Some(route) = from.nic.next_long() {
            let room = Room { buffer: shared.clone(), start, end: SHARED, loans: None };
            if from.nic.poll_transmit_into(now, route, room, &mut from.batch) {
                let mut at = start;
                for &len in from.batch.lens() {
                    let (offset, len) = (at + Room::GAP, usize::from(len));
                    let packet = Packet::Shared { buffer: shared, offset, len };
                    to.nic.handle(now, 0, (from.ip, to.ip), packet);
                    at += Room::taken(len);
                    ways[0] += 1;
                }
                continue;
            }
        }
        if !from.nic.poll_transmit(now, &mut from.batch) {
            return ways;
        }
        for packet in from.batch.packets() {
            to.nic.handle(now, 0, (from.ip, to.ip), Packet::Private(packet));
            ways[1] += 1;
        }
    }
}

/// Both ends, until nothing is left to send. Returns the packets that went by way of shared memory.
fn settle(p: &mut Pair, shared: &Buffer, start: usize) -> usize {
    let mut in_place = 0;
    loop {
        p.now += 1000;
        let there = pass(p.now, &mut p.a, &mut p.b, shared, start);
        let back = pass(p.now, &mut p.b, &mut p.a, shared, start);
        in_place += there[0] + back[0];
        if there == [0; 2] && back == [0; 2] {
            return in_place;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write,
    Send,
    Read,
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<u8>>>);

impl WriteTap for Notes {
    fn saw(&mut self, _: u64, data: &[u8]) {
        self.0.lock().expect("one thread").extend_from_slice(data);
    }
}

/// An operation: what, where here, where there, bytes, and after how many of them the list has a second element.
fn steps() -> impl Strategy<Value = Vec<(Step, usize, usize, usize, usize)>> {
    let what = prop_oneof![Just(Step::Write), Just(Step::Send), Just(Step::Read)];
    let half = REGION / 2;
    proptest::collection::vec((what, 0..half - 40_000, half..REGION - 40_000, 1..20_000usize, 0..20_000usize), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Whatever is written, sent and read lands as it would by packets of bytes, and a tap sees the same.
    #[test]
    fn bytes_land_as_they_would_otherwise(
        steps in steps(),
        mtu in prop_oneof![Just(256), Just(1024), Just(4096)],
        start in (0..8usize).prop_map(|words| words * 8),
        tapped: bool,
    ) {
        let mut p = Pair::new(1, CLEAN, Setup { mtu, ..Setup::default() });
        let shared = Buffer::anonymous(SHARED).expect("memory");
        let noise: Vec<u8> = (0..REGION as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        p.a.buffer.write(0, &noise).expect("in bounds");
        p.b.buffer.write(0, &noise[..REGION]).expect("in bounds");
        let (mut here, mut there) = (noise.clone(), noise);
        let notes = Notes::default();
        if tapped {
            p.b.nic.attach_tap(p.b.key(), Box::new(notes.clone())).expect("room");
        }
        let mut seen = Vec::new();
        for (id, (step, local, remote, len, cut)) in steps.into_iter().enumerate() {
            let (cut, id) = (cut.min(len), id as u64);
            // Two elements whose bytes do not follow each other.
            let list = [p.a.sge(local, cut), p.a.sge(local + 20_000, len - cut)];
            let gathered = [&here[local..local + cut], &here[local + 20_000..local + 20_000 + len - cut]].concat();
            let (va, rkey) = (p.b.va(remote), p.b.key());
            match step {
                Step::Write => {
                    p.a.send(&SendWr::new(id, SendOp::Write { va, rkey }, Data::List(&list)));
                    there[remote..remote + len].copy_from_slice(&gathered);
                    seen.extend_from_slice(&gathered);
                }
                Step::Send => {
                    p.b.recv(id, remote, len);
                    p.a.send(&SendWr::new(id, SendOp::Send, Data::List(&list)));
                    there[remote..remote + len].copy_from_slice(&gathered);
                }
                Step::Read => {
                    p.a.send(&SendWr::new(id, SendOp::Read { va, rkey }, Data::List(&list)));
                    here[local..local + cut].copy_from_slice(&there[remote..remote + cut]);
                    here[local + 20_000..][..len - cut].copy_from_slice(&there[remote + cut..remote + len]);
                }
            }
            let in_place = settle(&mut p, &shared, start);
            prop_assert!(in_place > 0 || len < mtu as usize, "a long message goes by shared memory");
        }
        prop_assert!(p.a.take_done().iter().all(|wc| wc.status == WcStatus::Success));
        prop_assert!(p.a.bytes(0, REGION) == here && p.b.bytes(0, REGION) == there);
        prop_assert!(!tapped || *notes.0.lock().expect("one thread") == seen);
    }

    /// Whatever a peer leaves in the memory that it shares, nothing but the packet's own claim is believed: no panic, and no
    /// byte outside what it may write.
    #[test]
    fn any_bytes_in_shared_memory_are_survived(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600),
        opcode in 0..0x20u8,
        offset in 0..100usize,
        claimed in 0..5000usize,
        valid: bool,
    ) {
        let mut p = Pair::new(1, CLEAN, Setup::default());
        let shared = Buffer::anonymous(8192).expect("memory");
        if valid && bytes.len() >= 12 {
            bytes[..12].copy_from_slice(&[opcode, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
            bytes[5..8].copy_from_slice(&p.b.qp.0.to_be_bytes()[1..]);
            bytes[9..12].copy_from_slice(&100u32.to_be_bytes()[1..]);
        }
        shared.write(offset, &bytes).expect("in bounds");
        let before = p.b.bytes(0, REGION);
        for len in [claimed, bytes.len()] {
            p.b.nic.handle(1, 0, (p.a.ip, p.b.ip), Packet::Shared { buffer: &shared, offset, len });
        }
        prop_assert!(p.b.bytes(0, REGION) == before, "it knows no key");
    }
}
