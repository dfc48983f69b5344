//! A seeded grid of loss, duplication, reordering, delay and damage: data and completions must be exact.

use std::net::IpAddr;

use crate::common::{A, B, CLEAN, Faults, Pair, REGION, Setup, Side, V6};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_nic::*;

/// What a run posted, and what memory must look like in the end.
struct Script {
    rng: ChaCha8Rng,
    /// B's memory as A's operations leave it.
    remote: Vec<u8>,
    expected: Vec<(u64, WcStatus)>,
    /// The messages sent.
    sent: Vec<Vec<u8>>,
    /// READs since the last look: offset in the remote memory, length.
    reads: Vec<(usize, usize)>,
    counter: u64,
}

const SRC: usize = 0;
const DST: usize = 256 << 10;
const COUNTER: usize = 1 << 19;
const BACK: usize = 3 << 18;

impl Script {
    /// Posts one random operation from A to B.
    fn post(&mut self, pair: &mut Pair, id: u64) {
        let len = match self.rng.next_u32() % 4 {
            0 => self.rng.next_u32() as usize % 8,
            1 => self.rng.next_u32() as usize % 200,
            2 => self.rng.next_u32() as usize % 3000,
            _ => self.rng.next_u32() as usize % 20_000,
        };
        // Each operation has bytes of its own: a request may be gathered again after later ones were posted.
        let at = (id as usize % 8) * (32 << 10);
        let data: Vec<u8> = (0..len).map(|_| self.rng.next_u32() as u8).collect();
        let (va, rkey) = (pair.b.va(DST + at), pair.b.key());
        let data_wr = |pair: &Pair| [pair.a.sge(SRC + at, len)];
        let wr = match self.rng.next_u32() % 5 {
            0 | 1 => {
                pair.a.buffer.write(SRC + at, &data).expect("in bounds");
                self.remote[at..at + len].copy_from_slice(&data);
                let sge = data_wr(pair);
                return pair.a.send(&SendWr::new(id, SendOp::Write { va, rkey }, Data::List(&sge)));
            }
            2 => {
                pair.a.buffer.write(SRC + at, &data).expect("in bounds");
                let slot = self.sent.len() % 8;
                pair.b.recv(1000 + id, BACK + slot * (32 << 10), 32 << 10);
                self.sent.push(data);
                let sge = data_wr(pair);
                return pair.a.send(&SendWr::new(id, SendOp::Send, Data::List(&sge)));
            }
            3 => SendOp::Read { va, rkey },
            _ => {
                let wr = SendOp::FetchAdd { va: pair.b.va(COUNTER), rkey, add: 3 };
                self.counter += 3;
                let sge = [pair.a.sge(COUNTER + 8 * (id as usize % 8), 8)];
                return pair.a.send(&SendWr::new(id, wr, Data::List(&sge)));
            }
        };
        let len = len.min(16 << 10);
        self.reads.push((at, len));
        let sge = [pair.a.sge(BACK + (at >> 1), len)];
        pair.a.send(&SendWr::new(id, wr, Data::List(&sge)));
    }
}

fn run(ips: [IpAddr; 2], seed: u64, faults: Faults, mtu: u32, selective: [bool; 2]) {
    let what = format!("{ips:?}, seed {seed}, mtu {mtu}, selective {selective:?}, {faults:?}");
    let mut pair = Pair::unconnected_at(ips, seed, faults);
    let config = |at: usize| NicConfig { selective_repeat: selective[at], ..NicConfig::new([at as u8 + 1; 32]) };
    (pair.a, pair.b) = (Side::with(ips[0], &config(0), REGION), Side::with(ips[1], &config(1), REGION));
    pair.connect(Setup { mtu, ..Setup::default() });
    let mut script = Script {
        rng: ChaCha8Rng::seed_from_u64(seed ^ 0x5eed),
        remote: vec![0; 256 << 10],
        expected: Vec::new(),
        sent: Vec::new(),
        reads: Vec::new(),
        counter: 0,
    };
    for id in 0..200 {
        script.post(&mut pair, id);
        script.expected.push((id, WcStatus::Success));
        if id % 8 == 7 {
            pair.run(200_000);
            assert_eq!(pair.a.statuses(), script.expected, "{what}");
            assert_eq!(pair.b.bytes(DST, 256 << 10), script.remote, "{what}");
            for (at, len) in script.reads.drain(..) {
                assert_eq!(pair.a.bytes(BACK + (at >> 1), len), script.remote[at..at + len], "{what}");
            }
            for (n, (wc, data)) in pair.b.done.iter().zip(&script.sent).enumerate() {
                assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, data.len()), "{what}");
                if n + 8 > script.sent.len() {
                    assert_eq!(pair.b.bytes(BACK + (n % 8) * (32 << 10), data.len()), *data, "{what}");
                }
            }
            assert_eq!(pair.b.done.len(), script.sent.len(), "{what}");
        }
    }
    let mut counter = [0; 8];
    pair.b.buffer.read(COUNTER, &mut counter).expect("in bounds");
    assert_eq!(u64::from_ne_bytes(counter), script.counter, "atomics ran exactly once: {what}");
}

#[test]
fn data_and_completions_are_exact_under_every_kind_of_fault() {
    let kinds = [
        Faults { latency: 1000, ..Faults::default() },
        Faults { latency: 1000, loss: 50, ..Faults::default() },
        Faults { latency: 1000, duplicate: 100, ..Faults::default() },
        Faults { latency: 1000, reorder: 50, ..Faults::default() },
        Faults { latency: 1000, jitter: 20_000, ..Faults::default() },
        Faults { latency: 1000, damage: 50, ..Faults::default() },
        Faults { latency: 5000, jitter: 5000, loss: 20, duplicate: 20, damage: 20, reorder: 20, per_byte: 100 },
    ];
    for (index, faults) in kinds.into_iter().enumerate() {
        for mtu in [256, 1024, 4096] {
            // One of the three by IPv6.
            let ips = if mtu == 1024 { V6 } else { [A, B] };
            let seed = index as u64 * 10 + u64::from(mtu);
            run(ips, seed, faults, mtu, [true; 2]);
            // Beside, and with, a peer that knows only to go back N.
            let other = match mtu {
                256 => [true, false],
                1024 => [false, true],
                _ => [false; 2],
            };
            run(ips, seed, faults, mtu, other);
        }
    }
}

/// Whoever changes a structure writes the word at its end first, then what lies between, then the word at its beginning: a copy of
/// which both say the same is of one moment, if READs go upwards.
#[test]
fn a_short_read_goes_upwards_whatever_is_lost() {
    const LAST: u64 = 127;
    const LEN: usize = 8 * (LAST as usize + 1);
    let mut whole = 0;
    for (seed, selective) in (0..40).zip([[true; 2], [false; 2]].into_iter().cycle()) {
        let faults = Faults { loss: 100, ..CLEAN };
        let mut pair = Pair::recovering(selective, REGION, seed, faults, Setup { mtu: 256, ..Setup::default() });
        let (va, rkey, sge) = (pair.b.va(0), pair.b.key(), pair.a.sge(0, LEN));
        let mut rng = ChaCha8Rng::seed_from_u64(!seed);
        let (mut version, mut at) = (0, 0);
        for id in 0..100 {
            pair.a.send(&SendWr::new(id, SendOp::Read { va, rkey }, Data::List(&[sge])));
            while pair.a.done.is_empty() {
                // Between two things that happen some words are written, or none.
                for _ in 0..if rng.next_u32() % 8 == 0 { rng.next_u32() % 256 } else { 0 } {
                    let set = |at: u64, value| pair.b.buffer.store_u64(8 * at as usize, value).expect("a word");
                    match at {
                        0 => (version, at) = (version + 1, LAST),
                        LAST => {
                            set(0, u64::MAX);
                            set(LAST, version);
                            at = 1;
                        }
                        _ => {
                            set(at, version);
                            at = (at + 1) % LAST;
                            if at == 0 {
                                set(0, version);
                                break;
                            }
                        }
                    }
                }
                assert!(pair.step(), "nothing left to happen");
            }
            assert_eq!(pair.a.done.drain(..).map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
            let bytes = pair.a.bytes(0, LEN);
            let words: Vec<u64> =
                bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes)).collect();
            if words[0] == words[words.len() - 1] {
                whole += 1;
                assert!(words.iter().all(|word| *word == words[0]), "seed {seed}, READ {id}: {words:?}");
            }
        }
    }
    assert!(whole > 400, "{whole} of 4000 copies were of one moment");
}

#[test]
fn heavy_loss_ends_in_success_or_in_retry_exceeded() {
    for seed in 0..20 {
        let faults = Faults { latency: 1000, loss: 400, ..Faults::default() };
        let mut pair = Pair::new(seed, faults, Setup::default());
        for id in 0..20 {
            let sge = [pair.a.sge(0, 5000)];
            let op = SendOp::Write { va: pair.b.va(0), rkey: pair.b.key() };
            pair.a.send(&SendWr::new(id, op, Data::List(&sge)));
        }
        pair.run(1_000_000);
        let statuses = pair.a.statuses();
        assert_eq!(statuses.len(), 20, "seed {seed}");
        let failed = statuses.iter().position(|(_, s)| *s != WcStatus::Success).unwrap_or(20);
        for (n, (id, status)) in statuses.iter().enumerate() {
            let expected = match n.cmp(&failed) {
                std::cmp::Ordering::Less => WcStatus::Success,
                std::cmp::Ordering::Equal => WcStatus::RetryExceeded,
                std::cmp::Ordering::Greater => WcStatus::Flushed,
            };
            assert_eq!((*id, *status), (n as u64, expected), "seed {seed}");
        }
    }
}

/// What perftest asks of two ends that lose one packet in twenty: long messages, sixteen READs and atomics outstanding
/// each way, receivers that are not always ready.
#[test]
fn long_messages_and_many_reads_each_way_survive_five_percent_loss() {
    const LEN: usize = 1 << 20;
    for (mtu, loss, len) in [(4096, 0, 8 * LEN), (1024, 50, LEN / 4), (4096, 50, LEN)] {
        let what = format!("mtu {mtu}, loss {loss}, {len} B");
        let setup = Setup { mtu, ..Setup::default() };
        let faults = Faults { latency: 10_000, loss, ..Faults::default() };
        let mut p = Pair::sized(4 * len, 5, faults, setup);
        let data: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let peers = [(p.b.va(0), p.b.key()), (p.a.va(0), p.a.key())];
        for (side, (va, rkey)) in [(&mut p.a, peers[0]), (&mut p.b, peers[1])] {
            side.buffer.write(0, &data).expect("in bounds");
            let at = |n: usize| n * len;
            let (mine, back) = ([side.sge(0, len)], [side.sge(at(3), len)]);
            let op = SendOp::Write { va: va + at(1) as u64, rkey };
            side.send(&SendWr::new(0, op, Data::List(&mine)));
            side.send(&SendWr::new(1, SendOp::Send, Data::List(&mine)));
            side.send(&SendWr::new(2, SendOp::Read { va, rkey }, Data::List(&back)));
        }
        // The receives come late.
        p.run_for(if loss == 0 { 1_000_000 } else { 30_000_000 });
        for side in [&mut p.a, &mut p.b] {
            side.recv(9, 2 * len, len);
        }
        p.run(2_000_000);
        for side in [&mut p.a, &mut p.b] {
            let done = side.take_done();
            assert!(done.len() == 4 && done.iter().all(|wc| wc.status == WcStatus::Success), "{what}: {done:?}");
            for at in 1..4 {
                assert!(side.bytes(at * len, len) == data, "{what}, copy {at}");
            }
        }
        assert!(p.a.nic.counters().rnr_naks > 0, "{what}");
        // Sixteen READs and atomics at a time, both ways.
        for id in 0..64u64 {
            for (side, (base, rkey)) in [(&mut p.a, peers[0]), (&mut p.b, peers[1])] {
                let va = base + len as u64;
                let list = [side.sge(3 * len + 4096 * id as usize, if id % 2 == 0 { 8 } else { 3000 })];
                let op = match id % 2 {
                    0 => SendOp::FetchAdd { va, rkey, add: 1 },
                    _ => SendOp::Read { va: va + 4096 * id, rkey },
                };
                side.send(&SendWr::new(id, op, Data::List(&list)));
            }
        }
        p.run(1_000_000);
        let first = u64::from_ne_bytes(data[..8].try_into().expect("8 bytes"));
        for side in [&mut p.a, &mut p.b] {
            assert_eq!(side.take_done().iter().filter(|wc| wc.status == WcStatus::Success).count(), 64, "{what}");
            for n in 0..32usize {
                assert_eq!(side.buffer.load_u64(3 * len + 8192 * n), Ok(first + n as u64), "{what}");
                let (at, from) = (3 * len + 8192 * n + 4096, 4096 * (2 * n + 1));
                assert!(side.bytes(at, 3000) == data[from..from + 3000], "{what}, READ {n}");
            }
        }
    }
}
