//! Taps: each payload of a WRITE is seen once, in order, and written as ever.

use std::sync::{Arc, Mutex};

use crate::common::{CLEAN, Faults, Pair, Setup};
use remora_memory::Access;
use remora_nic::*;

/// Where each payload was written, and what it was.
type Payloads = Vec<(u64, Vec<u8>)>;

/// Notes what it sees.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Payloads>>);

impl WriteTap for Notes {
    fn saw(&mut self, offset: u64, data: &[u8]) {
        self.0.lock().expect("one thread").push((offset, data.to_vec()));
    }
}

impl Notes {
    /// The bytes of all that was seen, which must follow each other from `offset` on.
    fn run_from(&self, mut offset: u64) -> Vec<u8> {
        let mut all = Vec::new();
        for (at, data) in self.0.lock().expect("one thread").drain(..) {
            assert_eq!(at, offset);
            offset += data.len() as u64;
            all.extend(data);
        }
        all
    }
}

fn write(p: &mut Pair, (from, to, len): (usize, usize, usize), rkey: u32) {
    let sge = [p.a.sge(from, len)];
    p.a.send(&SendWr::new(1, SendOp::Write { va: p.b.va(to), rkey }, Data::List(&sge)));
}

#[test]
fn retransmitted_and_repeated_packets_are_seen_once() {
    for seed in 0..20 {
        let faults =
            Faults { loss: 30, duplicate: 30, damage: 0, reorder: 30, latency: 1000, jitter: 2000, per_byte: 0 };
        let mut p = Pair::new(seed, faults, Setup::default());
        let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        p.a.buffer.write(0, &data).expect("in bounds");
        let (notes, key) = (Notes::default(), p.b.key());
        p.b.nic.attach_tap(key, Box::new(notes.clone())).expect("room");
        write(&mut p, (0, 16, 60_000), key);
        write(&mut p, (60_000, 60_016, 40_000), key);
        p.run(1_000_000);
        assert!(p.a.statuses().iter().all(|(_, status)| *status == WcStatus::Success), "seed {seed}");
        assert!(notes.run_from(16) == data, "seed {seed}");
        assert!(p.b.bytes(16, data.len()) == data, "seed {seed}");
    }
}

#[test]
fn a_tap_sees_what_names_its_key_until_it_is_taken_away() {
    let clean = CLEAN;
    let mut p = Pair::new(1, clean, Setup::default());
    let key = p.b.key();
    let other = p.b.register(0, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    p.a.buffer.write(0, &[5; 4096]).expect("in bounds");
    let (first, second) = (Notes::default(), Notes::default());
    p.b.nic.attach_tap(key, Box::new(first.clone())).expect("room");
    p.b.nic.attach_tap(key, Box::new(second.clone())).expect("in place of the first");
    write(&mut p, (0, 0, 100), key);
    write(&mut p, (0, 0, 100), other.key());
    write(&mut p, (0, 0, 0), key);
    p.run(10_000);
    assert_eq!((first.run_from(0), second.run_from(0)), (vec![], vec![5; 100]));
    assert!(p.b.nic.detach_tap(key).is_some());
    assert!(p.b.nic.detach_tap(key).is_none());
    write(&mut p, (0, 0, 100), key);
    p.run(10_000);
    assert_eq!(second.run_from(0), []);

    for extra in 0..MAX_TAPS as u32 {
        p.b.nic.attach_tap(extra, Box::new(Notes::default())).expect("room");
    }
    assert_eq!(p.b.nic.attach_tap(key, Box::new(first)), Err(NicError::Full));
}

#[test]
fn packets_part_between_aligned_words() {
    let clean = CLEAN;
    let mut p = Pair::new(3, clean, Setup { mtu: 4096, ..Setup::default() });
    let (notes, key) = (Notes::default(), p.b.key());
    p.b.nic.attach_tap(key, Box::new(notes.clone())).expect("room");
    for start in [0, 3, 1000, 1023] {
        let len = 3072;
        write(&mut p, (0, start, len), key);
        p.run(100_000);
        let within = |at: &&(u64, Vec<u8>)| at.0 != start as u64;
        let pieces = notes.0.lock().expect("one thread").clone();
        assert!(pieces.iter().filter(within).all(|(at, _)| at.is_multiple_of(8)), "{start}");
        assert_eq!(notes.run_from(start as u64).len(), len);
    }
}

#[test]
fn what_is_refused_is_not_seen() {
    let clean = CLEAN;
    let mut p = Pair::new(2, clean, Setup::default());
    let readable = p.b.register(0, 4096, Access::REMOTE_READ);
    let notes = Notes::default();
    p.b.nic.attach_tap(readable.key(), Box::new(notes.clone())).expect("room");
    write(&mut p, (0, 0, 100), readable.key());
    p.run(10_000);
    assert_eq!(p.a.statuses()[0].1, WcStatus::RemoteAccess);
    assert_eq!(notes.run_from(0), []);
}

/// Notes how many bytes it had seen when messages ended.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<(usize, Vec<usize>)>>);

impl WriteTap for Ends {
    fn saw(&mut self, _offset: u64, data: &[u8]) {
        self.0.lock().expect("one thread").0 += data.len();
    }

    fn ended(&mut self) {
        let mut guard = self.0.lock().expect("one thread");
        let seen = guard.0;
        guard.1.push(seen);
    }
}

#[test]
fn a_tap_hears_of_the_end_of_each_message_after_its_last_packet() {
    let clean = CLEAN;
    let mut p = Pair::new(2, clean, Setup::default());
    let (ends, key) = (Ends::default(), p.b.key());
    p.b.nic.attach_tap(key, Box::new(ends.clone())).expect("room");
    write(&mut p, (0, 0, 10_000), key);
    write(&mut p, (0, 0, 8), key);
    p.run(100_000);
    assert_eq!(ends.0.lock().expect("one thread").1, [10_000, 10_008]);
}
