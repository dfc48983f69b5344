//! The short way of what is plain beside the general one: whatever is asked of two engines, packets, completions, events,
//! counters and bytes are the same.

use std::sync::{Arc, Mutex};

use crate::common::{A, B, CLEAN, Faults, Pair, REGION, Setup, Side};
use proptest::prelude::*;
use remora_memory::{Access, Region};
use remora_nic::*;

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

fn run(plain: bool, steps: &[Step], faults: Faults, (mtu, tapped, signal_all): (u32, bool, bool)) -> Seen {
    let mut p = Pair::unconnected(7, faults);
    for (side, ip, seed) in [(&mut p.a, A, 1), (&mut p.b, B, 2)] {
        *side = Side::with(ip, &NicConfig { plain, ..NicConfig::new([seed; 32]) }, REGION);
        let init = side.nic.qp_init(side.qp).expect("live");
        side.renew(QpInit { max_send_wr: 12, max_send_sge: 2, max_inline: 256, sq_sig_all: signal_all, ..init });
        side.nic.set_patient();
        let noise: Vec<u8> = (0..REGION as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        side.buffer.write(0, &noise).expect("in bounds");
    }
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
    let notes = notes.0.lock().expect("one thread").clone();
    Seen {
        done: [p.a.take_done(), p.b.take_done()],
        events: [p.a.take_events(), p.b.take_events()],
        counters: [&p.a, &p.b].map(|side| format!("{:?}", side.nic.counters())),
        bytes: [p.a.bytes(0, REGION), p.b.bytes(0, REGION)],
        log: p.log,
        notes,
    }
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
}
