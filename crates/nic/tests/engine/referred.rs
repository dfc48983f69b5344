//! Packets that refer to their payload, in memory that their sender has lent.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::common::{CLEAN, Pair, REGION, Setup, Side};
use crate::landing::{Landing, steps};
use proptest::prelude::*;
use remora_memory::{Access, Buffer, Loans, MAX_LOANS, Reference, View};
use remora_nic::*;
use remora_wire::rpc::RpcHeader;

const RING: usize = 64 << 10;

/// What one packet refers to at most.
const PIECE: usize = 64 << 10;

/// A packet as it arrives.
enum Arrival {
    Bytes(Vec<u8>),
    Referred(Vec<u8>, Reference),
}

/// One direction of a link over which memory can be lent.
struct Way {
    ring: Buffer,
    loans: Arc<Loans>,
    views: Vec<Option<View>>,
    flight: VecDeque<Arrival>,
}

impl Way {
    fn new() -> Self {
        let views = (0..MAX_LOANS).map(|_| None).collect();
        let ring = Buffer::anonymous(RING).expect("memory");
        Self { ring, loans: Arc::default(), views, flight: VecDeque::new() }
    }

    /// Takes what there is to send. Returns how many packets referred to their payload.
    fn take(&mut self, now: Time, from: &mut Side) -> usize {
        let mut referred = 0;
        loop {
            if let Some(route) = from.nic.next_long() {
                let room = Room { buffer: self.ring.clone(), start: 0, end: RING, loans: Some(self.loans.clone()) };
                if from.nic.poll_transmit_into(now, route, room, &mut from.batch) {
                    let mut at = 0;
                    for (n, &len) in from.batch.lens().iter().enumerate() {
                        let mut record = vec![0; len.into()];
                        self.ring.read(at + Room::GAP, &mut record).expect("in bounds");
                        at += Room::taken(len.into());
                        self.flight.push_back(if from.batch.referred() >> n & 1 == 1 {
                            referred += 1;
                            let (reference, headers) = Reference::parse(&record).expect("whole");
                            Arrival::Referred(headers.to_vec(), reference)
                        } else {
                            Arrival::Bytes(record)
                        });
                    }
                    if let Some((slot, buffer)) = self.loans.next_wanted() {
                        self.views[slot] =
                            Some(View::map(buffer.file().expect("lendable"), buffer.len()).expect("sealed"));
                        self.loans.lend(slot);
                    }
                    continue;
                }
            }
            if !from.nic.poll_transmit(now, &mut from.batch) {
                return referred;
            }
            self.flight.extend(from.batch.packets().map(|packet| Arrival::Bytes(packet.to_vec())));
        }
    }

    fn deliver(&mut self, now: Time, to: &mut Side, from: std::net::IpAddr) -> bool {
        let Some(packet) = self.flight.pop_front() else { return false };
        let ends = (from, to.ip);
        match &packet {
            Arrival::Bytes(bytes) => to.nic.handle(now, 0, ends, Packet::Private(bytes)),
            Arrival::Referred(headers, reference) => {
                let view = self.views[reference.slot as usize].as_ref().expect("lent");
                to.nic.handle(now, 0, ends, Packet::Referred { headers, view, reference: *reference });
            }
        }
        true
    }
}

/// Two engines and the ways between them.
struct Net {
    p: Pair,
    there: Way,
    back: Way,
    referred: usize,
}

impl Net {
    fn new(setup: Setup) -> Self {
        Self { p: Pair::new(1, CLEAN, setup), there: Way::new(), back: Way::new(), referred: 0 }
    }

    fn transmit(&mut self) {
        self.p.now += 1000;
        self.referred += self.there.take(self.p.now, &mut self.p.a);
        self.referred += self.back.take(self.p.now, &mut self.p.b);
    }

    /// Until nothing is left to send.
    fn settle(&mut self) {
        loop {
            self.transmit();
            if self.there.flight.is_empty() && self.back.flight.is_empty() {
                return;
            }
            while self.there.deliver(self.p.now, &mut self.p.b, self.p.a.ip) {}
            while self.back.deliver(self.p.now, &mut self.p.a, self.p.b.ip) {}
        }
    }

    /// Has both ends lend each other their memory.
    fn acquaint(&mut self) {
        let (va, rkey, list) = (self.p.b.va(0), self.p.b.key(), [self.p.a.sge(0, 8192)]);
        for op in [SendOp::Write { va, rkey }, SendOp::Read { va, rkey }] {
            self.p.a.send(&SendWr::new(0, op, Data::List(&list)));
            self.settle();
        }
        assert_eq!(self.p.a.take_done().len(), 2);
    }

    /// One WRITE of `len` bytes, which is under way when this returns.
    fn write(&mut self, id: u64, len: usize) {
        let op = SendOp::Write { va: self.p.b.va(0), rkey: self.p.b.key() };
        self.p.a.send(&SendWr::new(id, op, Data::List(&[self.p.a.sge(0, len)])));
        let before = self.referred;
        self.transmit();
        assert!(self.referred > before, "it refers to its payload");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Whatever is written, sent and read lands as it would by packets of bytes, and a tap sees the same.
    #[test]
    fn bytes_land_as_they_would_otherwise(
        steps in steps(),
        mtu in prop_oneof![Just(512), Just(1024), Just(4096)],
        tapped: bool,
    ) {
        let mut net = Net::new(Setup { mtu, ..Setup::default() });
        net.acquaint();
        let mut landing = Landing::new(&mut net.p, tapped);
        for step in steps {
            landing.post(&mut net.p, step);
            let before = net.referred;
            net.settle();
            // All packets but those at the ends of elements.
            prop_assert!(net.referred > before || step.len < 3 * mtu as usize, "{step:?}");
        }
        landing.check(&mut net.p);
    }

    /// Whatever a peer refers to, in whatever packet: no panic, no byte outside what it may write, and none read outside what it
    /// has lent.
    #[test]
    fn any_reference_is_survived(
        mut headers in proptest::collection::vec(any::<u8>(), 0..96),
        opcode in 0..0x20u8,
        len in prop_oneof![0..9000u32, any::<u32>()],
        offset in prop_oneof![0..9000u64, any::<u64>()],
        keyed: bool,
        current: bool,
    ) {
        let mut p = Pair::new(1, CLEAN, Setup::default());
        let lent = Buffer::lendable(8000).expect("memory");
        lent.fill(0, 8000, 7).expect("in bounds");
        let view = View::map(lent.file().expect("lendable"), 8000).expect("sealed");
        if headers.len() >= 28 {
            headers[..12].copy_from_slice(&[opcode, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
            headers[5..8].copy_from_slice(&p.b.qp.0.to_be_bytes()[1..]);
            headers[9..12].copy_from_slice(&100u32.to_be_bytes()[1..]);
            if keyed {
                // It may write to the middle of the region.
                headers[12..20].copy_from_slice(&p.b.va(REGION / 2).to_be_bytes());
                headers[20..24].copy_from_slice(&p.b.key().to_be_bytes());
                headers[24..28].copy_from_slice(&len.to_be_bytes());
            }
        }
        let term = if current { view.term() } else { view.term() + 1 };
        let reference = Reference { slot: 0, len, term, offset };
        p.b.nic.handle(1, 0, (p.a.ip, p.b.ip), Packet::Referred { headers: &headers, view: &view, reference });
        prop_assert!(p.b.bytes(0, REGION / 2) == vec![0; REGION / 2], "outside");
        let landed = p.b.bytes(REGION / 2, REGION / 2).iter().filter(|byte| **byte == 7).count();
        // What it has lent, at most, and of that what it said that it writes.
        prop_assert!(landed == 0 || keyed && current && landed <= 8000.min(len as usize));
    }
}

/// One packet refers to as much as a run of packets has at most; and so is what no honest peer sends taken: a longer one, one that
/// is not of whole packets and yet not the last, one that ends after its message.
#[test]
fn runs_are_as_long_as_their_packets() {
    let mtu = 1024;
    let lent = Buffer::lendable(1 << 20).expect("memory");
    lent.fill(0, 1 << 20, 7).expect("in bounds");
    let view = View::map(lent.file().expect("lendable"), 1 << 20).expect("sealed");
    let (only, first) = (0x0a, 0x06);
    for (opcode, len, message, good) in [
        (only, PIECE, PIECE, true),
        (only, 3 * mtu + 5, 3 * mtu + 5, true),
        (only, PIECE + 1, PIECE + 1, false),
        (only, 2 * mtu, 2 * mtu + 1, false),
        (only, 2 * mtu, 2 * mtu - 1, false),
        (first, 4 * mtu, 9 * mtu, true),
        (first, 4 * mtu + 4, 9 * mtu, false),
        (first, 4 * mtu, 4 * mtu, false),
        (first, 2 * PIECE, 3 * PIECE, false),
        (first, 0, 3 * mtu, false),
    ] {
        let mut p = Pair::new(1, CLEAN, Setup { mtu: mtu as u32, ..Setup::default() });
        let mut headers = [0; 28];
        headers[..4].copy_from_slice(&[opcode, (len.wrapping_neg() as u8 & 3) << 4, 0xff, 0xff]);
        headers[5..8].copy_from_slice(&p.b.qp.0.to_be_bytes()[1..]);
        headers[9..12].copy_from_slice(&100u32.to_be_bytes()[1..]);
        headers[12..20].copy_from_slice(&p.b.va(8).to_be_bytes());
        headers[20..24].copy_from_slice(&p.b.key().to_be_bytes());
        headers[24..28].copy_from_slice(&(message as u32).to_be_bytes());
        let reference = Reference { slot: 0, len: len as u32, term: view.term(), offset: 16 };
        p.b.nic.handle(1, 0, (p.a.ip, p.b.ip), Packet::Referred { headers: &headers, view: &view, reference });
        let landed = p.b.bytes(0, REGION).iter().filter(|byte| **byte == 7).count();
        let taken = p.b.nic.qp_psns(p.b.qp).expect("live").1.get() - 100;
        match good {
            true => assert_eq!((landed, taken as usize), (len, len.div_ceil(mtu)), "{opcode:#x} of {len}"),
            false => assert_eq!((landed, p.b.state()), (0, QpState::Err), "{opcode:#x} of {len} in {message}"),
        }
    }
}

/// The peer copies before it acknowledges: what completes was copied as it was, and may be changed at once.
#[test]
fn a_send_completes_when_its_bytes_have_been_copied() {
    let mut net = Net::new(Setup { mtu: 4096, ..Setup::default() });
    net.acquaint();
    net.p.a.buffer.fill(0, REGION, 1).expect("in bounds");
    net.write(1, REGION);
    assert_eq!(net.there.flight.len(), 16);
    // Until the last packet was taken nothing is complete.
    for left in (0..16).rev() {
        assert!(net.there.deliver(net.p.now, &mut net.p.b, net.p.a.ip));
        net.transmit();
        while net.back.deliver(net.p.now, &mut net.p.a, net.p.b.ip) {}
        assert_eq!(net.p.a.take_done().len(), usize::from(left == 0));
    }
    net.p.a.buffer.fill(0, REGION, 2).expect("in bounds");
    net.settle();
    assert_eq!(net.p.b.bytes(0, REGION), vec![1; REGION]);
}

/// What is sent again refers to bytes that have been acknowledged meanwhile: the peer knows the packets and does not look.
#[test]
fn a_duplicate_is_not_copied() {
    let mut net = Net::new(Setup { mtu: 4096, ..Setup::default() });
    net.acquaint();
    net.p.a.buffer.fill(0, 4 * PIECE, 1).expect("in bounds");
    net.write(1, 4 * PIECE);
    while net.there.flight.len() == 4 {
        net.p.now = net.p.a.nic.poll_timeout().expect("it waits for an acknowledgement");
        net.p.a.nic.handle_timeout(net.p.now);
        net.transmit();
    }
    for _ in 0..4 {
        net.there.deliver(net.p.now, &mut net.p.b, net.p.a.ip);
    }
    net.transmit();
    while net.back.deliver(net.p.now, &mut net.p.a, net.p.b.ip) {}
    assert_eq!(net.p.a.take_done().len(), 1);
    net.p.a.buffer.fill(0, 4 * PIECE, 2).expect("in bounds");
    net.settle();
    assert_eq!(net.p.b.bytes(0, 4 * PIECE), vec![1; 4 * PIECE]);
}

/// A request that fails is complete too: its packets are still under way, and nobody copies what they refer to.
#[test]
fn what_has_failed_is_not_copied() {
    type End = fn(&mut Net);
    let ends: [(&str, End); 4] = [
        ("error", |net| net.p.a.nic.to_error(net.p.a.qp).expect("live")),
        ("reset", |net| net.p.a.nic.to_reset(net.p.a.qp).expect("live")),
        ("destroyed", |net| net.p.a.nic.destroy_qp(net.p.a.qp).expect("live")),
        ("deregistered", |net| net.p.a.nic.registry().deregister(net.p.a.key()).expect("no windows")),
    ];
    for (how, end) in ends {
        let mut net = Net::new(Setup { mtu: 4096, ..Setup::default() });
        net.acquaint();
        net.p.a.buffer.fill(0, REGION, 1).expect("in bounds");
        net.write(1, REGION);
        for _ in 0..3 {
            net.there.deliver(net.p.now, &mut net.p.b, net.p.a.ip);
        }
        end(&mut net);
        net.p.a.buffer.fill(0, REGION, 2).expect("in bounds");
        while net.there.deliver(net.p.now, &mut net.p.b, net.p.a.ip) {}
        let there = net.p.b.bytes(0, REGION);
        assert!(there[..3 * PIECE] == [1; 3 * PIECE] && there[3 * PIECE..] == [0; 13 * PIECE], "{how}");
        assert_eq!(net.p.b.nic.counters().sequence_naks, 1, "{how}: as if they had not come");
    }
}

/// One queue pair's failure makes another's packets that refer to the same memory void: they are sent again, and nothing is lost.
#[test]
fn a_neighbour_sends_again() {
    let mut net = Net::new(Setup { mtu: 4096, ..Setup::default() });
    net.acquaint();
    for round in 1..20u8 {
        net.p.a.buffer.fill(0, REGION, round).expect("in bounds");
        net.write(round.into(), REGION);
        for _ in 0..round % 16 {
            net.there.deliver(net.p.now, &mut net.p.b, net.p.a.ip);
        }
        // As somebody else's failure does.
        net.p.a.region.end_term();
        net.settle();
        assert_eq!(net.p.b.bytes(0, REGION), vec![round; REGION]);
        assert!(net.p.a.take_done().iter().all(|wc| wc.status == WcStatus::Success));
    }
}

/// Who takes a region away from a peer that is reading it may use the memory at once: the READ does not succeed with what comes then.
#[test]
fn a_read_of_what_was_deregistered_fails() {
    let mut net = Net::new(Setup { mtu: 4096, ..Setup::default() });
    net.acquaint();
    net.p.b.buffer.fill(0, REGION, 1).expect("in bounds");
    let op = SendOp::Read { va: net.p.b.va(0), rkey: net.p.b.key() };
    net.p.a.send(&SendWr::new(1, op, Data::List(&[net.p.a.sge(0, REGION)])));
    net.transmit();
    while net.there.deliver(net.p.now, &mut net.p.b, net.p.a.ip) {}
    net.transmit();
    assert_eq!(net.back.flight.len(), 16);
    for _ in 0..3 {
        net.back.deliver(net.p.now, &mut net.p.a, net.p.b.ip);
    }
    net.p.b.nic.registry().deregister(net.p.b.key()).expect("no windows");
    net.p.b.buffer.fill(0, REGION, 2).expect("in bounds");
    net.settle();
    while let Some(at) = net.p.a.nic.poll_timeout().filter(|_| net.p.a.done.is_empty()) {
        net.p.now = at;
        net.p.a.nic.handle_timeout(at);
        net.settle();
        net.p.a.collect();
    }
    assert_eq!(net.p.a.statuses(), [(1, WcStatus::RemoteAccess)]);
}

/// A region over a part of a buffer is not lent, as a peer would see all of the buffer; and neither is what a window opens.
#[test]
fn only_whole_buffers_are_lent() {
    let mut net = Net::new(Setup { mtu: 4096, ..Setup::default() });
    let part = net.p.a.register(0, REGION - 8, Access::LOCAL_WRITE);
    let op = SendOp::Write { va: net.p.b.va(0), rkey: net.p.b.key() };
    let list = [Sge { va: part.va(), len: 65_536, lkey: part.key() }];
    for id in 0..3 {
        net.p.a.send(&SendWr::new(id, op, Data::List(&list)));
        net.settle();
    }
    assert_eq!((net.p.a.take_done().len(), net.referred), (3, 0));
}

/// A kernel looks at its payload stream: it is copied when it is sent.
#[test]
fn payload_streams_are_copied() {
    let mut net = Net::new(Setup { mtu: 4096, ..Setup::default() });
    net.acquaint();
    net.p.b.nic.deploy(7);
    net.p.a.buffer.fill(0, 20_000, 9).expect("in bounds");
    let (before, list) = (net.referred, [net.p.a.sge(0, 20_000)]);
    net.p.a.nic.post_rpc_write(net.p.a.qp, 1, 7, &RpcHeader::default(), &[], &list).expect("posted");
    net.settle();
    assert!(net.p.b.nic.poll_rpc().is_some());
    let mut came = Vec::new();
    while let Some(chunk) = net.p.b.nic.poll_stream() {
        came.extend_from_slice(&chunk.data);
    }
    assert_eq!((came == vec![9; 20_000], net.referred), (true, before));
}

/// What stands in the send queue itself, or is too short to pay, is not referred to; nor is what nobody acknowledges.
#[test]
fn unreliable_messages_are_copied_when_they_are_sent() {
    let mut net = Net::new(Setup { mtu: 4096, kind: QpType::Uc, ..Setup::default() });
    let op = SendOp::Write { va: net.p.b.va(0), rkey: net.p.b.key() };
    for id in 0..3 {
        net.p.a.send(&SendWr::new(id, op, Data::List(&[net.p.a.sge(0, 65_536)])));
        net.settle();
    }
    assert_eq!((net.p.a.take_done().len(), net.referred), (3, 0));
}
