//! Packets that stand in memory which both ends share: put together there, and carried out from there.

use crate::common::{CLEAN, Pair, REGION, Setup, Side};
use crate::landing::{Landing, steps};
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
        let mut landing = Landing::new(&mut p, tapped);
        for step in steps {
            landing.post(&mut p, step);
            let in_place = settle(&mut p, &shared, start);
            prop_assert!(in_place > 0 || step.len < mtu as usize, "a long message goes by shared memory");
        }
        landing.check(&mut p);
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
