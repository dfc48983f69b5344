//! The short way of what is plain beside the general one: whatever is asked of two engines, packets, completions, events,
//! counters and bytes are the same.

use std::sync::{Arc, Mutex};

use crate::common::{A, B, CLEAN, Faults, Pair, REGION, Setup, Side};
use proptest::prelude::*;
use remora_memory::{Access, Region};
use remora_nic::*;
use remora_wire::{Aeth, Bth, Opcode, Psn, Reth, Syndrome};

#[derive(Clone, Copy, Debug)]
enum What {
    Write,
    WriteImm,
    Send,
    Read,
    Invalidate,
}

/// A work request, and how much happens before the next one.
#[derive(Clone, Debug)]
struct Step {
    what: What,
    len: usize,
    at: usize,
    /// Signalled, solicited, fenced, in the command, in two elements, from B.
    flags: [bool; 6],
    /// Of a few in a hundred key, range or right is wrong.
    fault: u8,
    /// Whether the receiver has a receive for it.
    expected: bool,
    events: usize,
    acknowledge: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        6 => Just(What::Write), 4 => Just(What::Send), 1 => Just(What::WriteImm), 4 => Just(What::Read),
        1 => Just(What::Invalidate),
    ];
    let lens = prop_oneof![8 => 1..520usize, 1 => Just(0usize), 1 => 500..5000usize];
    let rest = (
        any::<[bool; 6]>(),
        any::<u8>(),
        prop::bool::weighted(0.97),
        prop_oneof![0..1usize, 0..5usize],
        prop::bool::weighted(0.1),
    );
    (what, lens, 0..REGION / 4, rest).prop_map(|(what, len, at, (flags, fault, expected, events, acknowledge))| {
        let mut flags = flags;
        // Few are fenced or come in two.
        flags[2] &= fault % 8 == 3;
        flags[4] &= fault % 4 == 1;
        Step { what, len, at, flags, fault, expected, events, acknowledge }
    })
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<u8>>>);

impl WriteTap for Notes {
    fn saw(&mut self, offset: u64, data: &[u8]) {
        let mut notes = self.0.lock().expect("one thread");
        notes.extend_from_slice(&offset.to_le_bytes());
        notes.extend_from_slice(data);
    }

    fn ended(&mut self) {
        self.0.lock().expect("one thread").push(0xee);
    }
}

/// Where regions are, so that packets of two runs can be the same.
const VA: u64 = 0x10_0000;

/// All that can be seen of a run.
#[derive(Debug, PartialEq)]
struct Seen {
    log: Vec<(u64, usize, Vec<u8>)>,
    done: [Vec<WorkCompletion>; 2],
    events: [Vec<Event>; 2],
    counters: [String; 2],
    bytes: [Vec<u8>; 2],
    notes: Vec<u8>,
}

fn region(side: &Side, access: Access) -> Arc<Region> {
    side.nic.registry().register(side.pd, &side.buffer, 0, REGION, Some(VA), access).expect("region")
}

/// Two ends that are patient, and not connected yet, with noise in their memory.
fn unconnected(plain: bool, faults: Faults, signal_all: bool) -> Pair {
    let mut p = Pair::unconnected(7, faults);
    for (side, ip, seed) in [(&mut p.a, A, 1), (&mut p.b, B, 2)] {
        *side = Side::with(ip, &NicConfig { plain, ..NicConfig::new([seed; 32]) }, REGION);
        let init = side.nic.qp_init(side.qp).expect("live");
        side.renew(QpInit { max_send_wr: 12, max_send_sge: 2, max_inline: 256, sq_sig_all: signal_all, ..init });
        side.nic.set_patient();
        let noise: Vec<u8> = (0..REGION as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        side.buffer.write(0, &noise).expect("in bounds");
    }
    p
}

/// What has come of it.
fn seen(mut p: Pair, notes: &Notes) -> Seen {
    Seen {
        done: [p.a.take_done(), p.b.take_done()],
        events: [p.a.take_events(), p.b.take_events()],
        counters: [&p.a, &p.b].map(|side| format!("{:?}", side.nic.counters())),
        bytes: [p.a.bytes(0, REGION), p.b.bytes(0, REGION)],
        log: p.log,
        notes: notes.0.lock().expect("one thread").clone(),
    }
}

fn run(plain: bool, steps: &[Step], faults: Faults, (mtu, tapped, signal_all): (u32, bool, bool)) -> Seen {
    let mut p = unconnected(plain, faults, signal_all);
    p.connect(Setup { mtu, ..Setup::default() });
    let all = Access::LOCAL_WRITE | ALL_REMOTE;
    let regions = [region(&p.a, all), region(&p.b, all)];
    let closed = [region(&p.a, Access::LOCAL_WRITE), region(&p.b, Access::LOCAL_WRITE)];
    let notes = Notes::default();
    if tapped {
        p.b.nic.attach_tap(regions[1].key(), Box::new(notes.clone())).expect("room");
    }
    p.logging = true;
    for (id, step) in steps.iter().enumerate() {
        let [signaled, solicited, fence, inline, two, back] = step.flags;
        let (from, to, ours, theirs) = match back {
            true => (&mut p.b, &mut p.a, &regions[1], &regions[0]),
            false => (&mut p.a, &mut p.b, &regions[0], &regions[1]),
        };
        let (mut va, mut rkey, mut lkey) = (VA + (REGION / 2 + step.at) as u64, theirs.key(), ours.key());
        match step.fault {
            0 => rkey = closed[usize::from(!back)].key(),
            1 => rkey ^= 0x100,
            2 => va = VA + REGION as u64 - 3,
            3 => lkey ^= 0x100,
            _ => {}
        }
        let op = match step.what {
            What::Write => SendOp::Write { va, rkey },
            What::WriteImm => SendOp::WriteImm { va, rkey, imm: 9 },
            What::Send => SendOp::Send,
            What::Read => SendOp::Read { va, rkey },
            What::Invalidate => SendOp::LocalInvalidate(0x77),
        };
        if matches!(step.what, What::Send | What::WriteImm) && step.expected {
            let into = Sge { va: VA + (REGION / 2 + step.at) as u64, len: 5000, lkey: theirs.key() };
            let _ = to.nic.post_recv(to.qp, 1 << 32 | id as u64, &[into]);
        }
        let (bytes, first) = (vec![id as u8; step.len], if two { step.len / 3 } else { step.len });
        let mut list = vec![Sge { va: VA + step.at as u64, len: first as u32, lkey }];
        if two {
            list.push(Sge { va: VA + 77, len: (step.len - first) as u32, lkey: ours.key() });
        }
        let data = match step.what {
            What::Invalidate => Data::List(&[]),
            What::Write | What::Send if inline && step.len <= 256 => Data::Inline(&bytes),
            _ => Data::List(&list),
        };
        let wr = SendWr { signaled, solicited, fence, ..SendWr::new(id as u64, op, data) };
        // A queue that is full, or in error, refuses both alike.
        let _ = from.nic.post_send(from.qp, &wr);
        for _ in 0..step.events {
            p.step();
        }
        if step.acknowledge {
            p.a.nic.acknowledge();
            p.b.nic.acknowledge();
        }
    }
    for _ in 0..3 {
        for _ in 0..3000 {
            if !p.step() {
                break;
            }
        }
        p.a.nic.acknowledge();
        p.b.nic.acknowledge();
    }
    seen(p, &notes)
}

/// A packet that a peer makes up, around those that B expects.
#[derive(Clone, Debug)]
struct Made {
    op: Opcode,
    /// From the PSN that is expected, or that the oldest READ waits for.
    ahead: i32,
    /// Solicited, to be acknowledged, marked; and bits that are reserved.
    flags: [bool; 3],
    reserved7: u8,
    pad: u8,
    version: u8,
    pkey: u16,
    payload: usize,
    claims: u32,
    at: u64,
    right_key: bool,
    /// Bytes that are missing at its end, and whether it comes from somebody else.
    cut: usize,
    stranger: bool,
    /// B posts a READ before it comes.
    read: bool,
}

fn made() -> impl Strategy<Value = Made> {
    use Opcode::*;
    let op = prop_oneof![
        12 => Just(RcWriteOnly), 8 => Just(RcReadRequest), 8 => Just(RcReadResponseOnly), 1 => Just(RcWriteFirst),
        1 => Just(RcWriteLast), 1 => Just(RcSendOnly), 1 => Just(RcAck), 1 => Just(UcWriteOnly),
    ];
    // Most are as they should be: what is refused ends a connection.
    let seldom = || prop::bool::weighted(0.02);
    let form = (any::<[bool; 3]>(), seldom(), any::<u8>(), seldom(), seldom(), 0..4u8);
    let body = (prop_oneof![3 => Just(64usize), 1 => 1..1100usize], seldom(), 0..200u32, seldom(), seldom());
    let rest = (prop_oneof![12 => Just(0), 1 => -3..4i32], 0..70usize, seldom(), seldom(), prop::bool::weighted(0.4));
    (op, form, body, rest).prop_map(|(op, form, body, (ahead, cut, is_cut, stranger, read))| {
        let (flags, odd_bits, bits, odd_version, odd_pkey, pad) = form;
        let (payload, lies, other, wrong_key, beyond) = body;
        let payload = match op {
            // One MTU, and some to come.
            RcWriteFirst => 1024,
            RcReadRequest | RcAck => usize::from(bits < 6) * 8,
            RcReadResponseOnly if !lies => 64,
            _ => payload,
        };
        let whole = if op == RcWriteFirst { 1500 } else { payload.max(64) as u32 };
        Made {
            op,
            ahead,
            flags,
            // As a patient peer's, or any.
            reserved7: if odd_bits { bits & 0x7f } else { 0x60 },
            pad: if odd_bits { pad } else { (payload.wrapping_neg() & 3) as u8 },
            version: u8::from(odd_version),
            pkey: if odd_pkey { 0x1234 } else { 0xffff },
            payload,
            claims: if lies { other } else { whole },
            at: if beyond { REGION as u64 - 3 } else { u64::from(other) },
            right_key: !wrong_key,
            cut: if is_cut { cut } else { 0 },
            stranger,
            read,
        }
    })
}

/// B, to which only such packets come, of which half are marked by a switch or none.
fn hear(plain: bool, packets: &[Made], (tapped, marks): (bool, bool)) -> Seen {
    let mut p = unconnected(plain, CLEAN, false);
    p.connect(Setup::default());
    let region = region(&p.b, Access::LOCAL_WRITE | ALL_REMOTE);
    let notes = Notes::default();
    if tapped {
        p.b.nic.attach_tap(region.key(), Box::new(notes.clone())).expect("room");
    }
    for (id, made) in packets.iter().enumerate() {
        p.now += 10_000;
        if made.read {
            let into = [Sge { va: VA + 4096, len: 64, lkey: region.key() }];
            let op = SendOp::Read { va: VA, rkey: 1 };
            let _ = p.b.nic.post_send(p.b.qp, &SendWr::new(id as u64, op, Data::List(&into)));
        }
        while p.b.nic.poll_transmit(p.now, &mut p.b.batch) {
            let now = p.now;
            p.log.extend(p.b.batch.packets().map(|packet| (now, 1, packet.to_vec())));
        }
        let Ok((sent, expected)) = p.b.nic.qp_psns(p.b.qp) else { break };
        let is_response = matches!(made.op, Opcode::RcReadResponseOnly | Opcode::RcAck);
        // The oldest READ's, as long as each takes one PSN.
        let outstanding = p.b.nic.sends_outstanding(p.b.qp).unwrap_or(0) as u32;
        let base = if is_response { sent + (0x100_0000 - outstanding) } else { expected };
        let psn = Psn::new(base.get().wrapping_add_signed(made.ahead) & 0xff_ffff);
        let [solicited, ack_req, fecn] = made.flags;
        let Made { pad, version, pkey, reserved7, .. } = *made;
        let bth = Bth::new(made.op, p.b.qp.0, psn);
        let bth = Bth { solicited, ack_req, fecn: fecn && marks, pad, version, pkey, reserved7, ..bth };
        let mut packet = vec![0; Bth::LEN];
        bth.emit(&mut packet);
        let reth = Reth { va: VA + made.at, rkey: region.key() ^ u32::from(!made.right_key) << 8, len: made.claims };
        let mut header = [0; Reth::LEN];
        if is_response {
            Aeth { syndrome: Syndrome::Ack { credits: 0x1f }, msn: 0 }.emit(&mut header);
            packet.extend_from_slice(&header[..Aeth::LEN]);
        } else if made.op != Opcode::RcSendOnly && made.op != Opcode::RcWriteLast {
            reth.emit(&mut header);
            packet.extend_from_slice(&header);
        }
        packet.extend((0..made.payload + usize::from(made.pad) + 4).map(|at| (at + id) as u8));
        packet.truncate(packet.len().saturating_sub(made.cut));
        let from = if made.stranger { B } else { A };
        p.b.nic.handle_packet(p.now, 0, from, B, &packet);
    }
    while p.b.nic.poll_transmit(p.now, &mut p.b.batch) {
        p.log.extend(p.b.batch.packets().map(|packet| (0, 1, packet.to_vec())));
    }
    seen(p, &notes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_plain_comes_to_the_same(
        steps in proptest::collection::vec(step(), 1..120),
        lossy: bool,
        ways in (prop_oneof![Just(256), Just(1024)], any::<bool>(), any::<bool>()),
    ) {
        let faults = Faults { loss: 20, duplicate: 20, damage: 10, reorder: 30, jitter: 500, ..CLEAN };
        let faults = if lossy { faults } else { CLEAN };
        let [short, general] = [true, false].map(|plain| run(plain, &steps, faults, ways));
        for (at, (short, general)) in short.log.iter().zip(&general.log).enumerate() {
            prop_assert_eq!(short, general, "packet {}", at);
        }
        prop_assert!(short == general, "{:?}\n{:?}", (short.done, short.counters), (general.done, general.counters));
    }

    #[test]
    fn what_a_peer_makes_up_comes_to_the_same(packets in proptest::collection::vec(made(), 1..80), ways: (bool, bool)) {
        let [short, general] = [true, false].map(|plain| hear(plain, &packets, ways));
        for (at, (short, general)) in short.log.iter().zip(&general.log).enumerate() {
            prop_assert_eq!(short, general, "packet {}", at);
        }
        prop_assert!(short == general, "{:?}\n{:?}", (short.done, short.counters), (general.done, general.counters));
    }
}
