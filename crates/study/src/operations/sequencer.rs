//! A sequencer: numbers that nobody else gets.

use std::cell::RefCell;
use std::collections::BTreeMap;

use remora_kernel::{SequencerParams, Status, op};
use remora_service::NumberBatches;
use remora_store::{Arena, Place};

use super::{Common, Loaded, Operation, Parameters, Workload};
use crate::StudyError;
use crate::calling::{Calls, Checked};
use crate::records::Records;
use crate::store::Loader;
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;

/// Take numbers of a sequencer. Parameter: how many callers wait for one addition.
pub const SEQUENCER: Operation = Operation(&Sequencer);

struct Sequencer;

/// A word on the node, and what it has given.
pub(crate) struct Numbers {
    place: Place,
    given: RefCell<Given>,
}

impl Workload for Sequencer {
    fn name(&self) -> &'static str {
        "sequencer"
    }

    fn title(&self) -> &'static str {
        "Sequencer"
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(Parameters { unit: "numbers", axis: "callers that wait for one addition", values: &[1, 16, 64] })
    }

    /// Only if it is asked for by name.
    fn is_measured(&self, _: bool) -> bool {
        false
    }

    fn load(&self, loader: &mut Loader<'_>, _: &Records) -> Result<Box<dyn Loaded>, StudyError> {
        Ok(Box::new(Numbers::new(loader.alloc(64)?)))
    }

    /// One access, as a READ: no probe tells what an atomic operation takes beyond that.
    fn predict(&self, prediction: &Prediction<'_>, _: f64) -> Option<(SoftwareTimes, f64)> {
        Some((prediction.chain((1.0, 8.0), 8.0, 64.0)?, 0.0))
    }
}

impl Loaded for Numbers {
    fn calls<'a>(&'a self, _: &'a Common<'_>, count: u64, _: u64) -> Option<Box<dyn Calls + 'a>> {
        Some(Box::new(self.takes(count.max(1) as u32)))
    }
}

impl Numbers {
    /// That have not been given yet.
    pub(crate) fn new(place: Place) -> Self {
        Self { place, given: RefCell::default() }
    }

    /// Calls that take so many numbers each.
    pub(crate) fn takes(&self, count: u32) -> Takes<'_> {
        Takes { numbers: self, count, batches: RefCell::new(NumberBatches::new(usize::MAX)), callers: 0 }
    }
}

/// Calls that take numbers.
pub(crate) struct Takes<'a> {
    numbers: &'a Numbers,
    /// Callers that one addition is for.
    count: u32,
    batches: RefCell<NumberBatches<u64>>,
    /// Callers so far, each of which wants one number.
    callers: u64,
}

impl Calls for Takes<'_> {
    fn op(&self) -> u64 {
        op::SEQUENCER
    }

    fn next(&mut self) -> u64 {
        let batches = self.batches.get_mut();
        (self.callers..self.callers + u64::from(self.count)).for_each(|caller| batches.ask(caller));
        self.callers += u64::from(self.count);
        // As many additions may be under way as there are.
        batches.next_addition().map_or(0, |addition| addition.number)
    }

    fn params(&self, _: u64, params: &mut Vec<u8>) {
        let Place { va: address, key } = self.numbers.place;
        params.extend_from_slice(&SequencerParams { address, key, count: self.count }.encode());
    }

    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        match <[u8; 8]>::try_from(reply) {
            Ok(first) if status == Status::Ok => {
                let (first, mut served, mut in_order) = (u64::from_le_bytes(first), 0, true);
                self.batches.borrow_mut().answered(id, first, |_, number| {
                    in_order &= number == first + u64::from(served);
                    served += 1;
                });
                match in_order && served == self.count {
                    true => self.numbers.given.borrow_mut().take(first, served.into()).map(|()| Checked::RIGHT),
                    false => Err(format!("an addition for {} callers served {served}", self.count)),
                }
            }
            _ => Err(format!("taking {} numbers ended with {status:?}", self.count)),
        }
    }
}

/// Numbers that were given, as runs: begin and end of each. There are few, as numbers come in order but for those under
/// way.
#[derive(Debug, Default)]
struct Given(BTreeMap<u64, u64>);

impl Given {
    /// Notes a run of numbers; an error if one was given before.
    fn take(&mut self, first: u64, count: u64) -> Result<(), String> {
        let (mut begin, mut end) = (first, first.saturating_add(count));
        let before = self.0.range(..end).next_back().map(|(begin, end)| (*begin, *end));
        if let Some((other, stop)) = before {
            if stop > first {
                return Err(format!("numbers {first} to {} came, and {other} to {} before", end - 1, stop - 1));
            }
            if stop == first {
                self.0.remove(&other);
                begin = other;
            }
        }
        if let Some(stop) = self.0.remove(&end) {
            end = stop;
        }
        self.0.insert(begin, end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_come_twice_are_found() {
        let mut given = Given::default();
        for first in [0, 20, 10, 40] {
            assert_eq!(given.take(first, 10), Ok(()));
        }
        assert_eq!(given.0, BTreeMap::from([(0, 30), (40, 50)]));
        for (first, count) in [(0, 1), (29, 1), (25, 20), (30, 11), (49, 1), (0, 100)] {
            assert!(given.take(first, count).is_err(), "{first} {count}");
        }
        assert_eq!(given.take(30, 10), Ok(()));
        assert_eq!(given.0, BTreeMap::from([(0, 50)]));
    }
}
