//! What WRITEs, SENDs and READs leave behind, whatever way their packets take.

use std::sync::{Arc, Mutex};

use crate::common::{Pair, REGION};
use proptest::prelude::*;
use remora_nic::*;

#[derive(Clone, Copy, Debug)]
enum What {
    Write,
    Send,
    Read,
}

/// An operation from `a` to `b`, with a list of two elements whose bytes do not follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    what: What,
    local: usize,
    remote: usize,
    pub len: usize,
    /// Bytes of the first element.
    pub cut: usize,
}

/// Some of them.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![Just(What::Write), Just(What::Send), Just(What::Read)];
    let half = REGION / 2;
    let step = (what, 0..half - 40_000, half..REGION - 40_000, 1..20_000usize, 0..20_000usize);
    let step = step.prop_map(|(what, local, remote, len, cut)| Step { what, local, remote, len, cut: cut.min(len) });
    proptest::collection::vec(step, 1..12)
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<u8>>>);

impl WriteTap for Notes {
    fn saw(&mut self, _: u64, data: &[u8]) {
        self.0.lock().expect("one thread").extend_from_slice(data);
    }
}

/// What both regions are to hold, and what a tap on `b`'s is to have seen.
pub struct Landing {
    here: Vec<u8>,
    there: Vec<u8>,
    seen: Vec<u8>,
    notes: Option<Notes>,
    posted: u64,
}

impl Landing {
    /// Fills both regions.
    pub fn new(p: &mut Pair, tapped: bool) -> Self {
        let noise: Vec<u8> = (0..REGION as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        p.a.buffer.write(0, &noise).expect("in bounds");
        p.b.buffer.write(0, &noise).expect("in bounds");
        let notes = tapped.then(Notes::default);
        if let Some(notes) = &notes {
            p.b.nic.attach_tap(p.b.key(), Box::new(notes.clone())).expect("room");
        }
        Self { here: noise.clone(), there: noise, seen: Vec::new(), notes, posted: 0 }
    }

    /// Posts an operation.
    pub fn post(&mut self, p: &mut Pair, step: Step) {
        let Step { what, local, remote, len, cut } = step;
        let Self { here, there, seen, posted, .. } = self;
        let id = *posted;
        let list = [p.a.sge(local, cut), p.a.sge(local + 20_000, len - cut)];
        let gathered = [&here[local..local + cut], &here[local + 20_000..local + 20_000 + len - cut]].concat();
        let (va, rkey) = (p.b.va(remote), p.b.key());
        match what {
            What::Write => {
                p.a.send(&SendWr::new(id, SendOp::Write { va, rkey }, Data::List(&list)));
                there[remote..remote + len].copy_from_slice(&gathered);
                seen.extend_from_slice(&gathered);
            }
            What::Send => {
                p.b.recv(id, remote, len);
                p.a.send(&SendWr::new(id, SendOp::Send, Data::List(&list)));
                there[remote..remote + len].copy_from_slice(&gathered);
            }
            What::Read => {
                p.a.send(&SendWr::new(id, SendOp::Read { va, rkey }, Data::List(&list)));
                here[local..local + cut].copy_from_slice(&there[remote..remote + cut]);
                here[local + 20_000..][..len - cut].copy_from_slice(&there[remote + cut..remote + len]);
            }
        }
        *posted += 1;
    }

    /// All have ended, and all bytes are where they belong.
    pub fn check(&self, p: &mut Pair) {
        assert!(p.a.take_done().iter().all(|wc| wc.status == WcStatus::Success));
        assert!(p.a.bytes(0, REGION) == self.here && p.b.bytes(0, REGION) == self.there);
        if let Some(notes) = &self.notes {
            assert!(*notes.0.lock().expect("one thread") == self.seen);
        }
    }
}
