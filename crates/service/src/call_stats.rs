//! How calls went, by op-code: for whoever watches a node.

use std::collections::BTreeMap;

use remora_kernel::Status;
use remora_nic::Time;

/// Upper bounds of the latency classes, in nanoseconds; above the last there is one more.
pub const CLASSES: [Time; 9] = [1_000, 4_000, 16_000, 64_000, 256_000, 1_024_000, 4_096_000, 16_384_000, 65_536_000];

/// Calls of one op-code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Calls that have ended.
    pub calls: u64,
    /// Those of them that failed: neither with an answer nor with a status of the kernel's own.
    pub failed: u64,
    /// Nanoseconds that they took, all together.
    pub ns: u64,
    /// How many took up to each bound of [`CLASSES`] and more than the one before; last those above all.
    pub classes: [u64; CLASSES.len() + 1],
}

impl OpStats {
    /// The sum of two.
    pub fn add(&mut self, other: &Self) {
        (self.calls, self.failed, self.ns) =
            (self.calls + other.calls, self.failed + other.failed, self.ns.saturating_add(other.ns));
        self.classes.iter_mut().zip(other.classes).for_each(|(mine, others)| *mine += others);
    }
}

/// Calls of a place, by op-code.
pub type CallStats = BTreeMap<u64, OpStats>;

/// Counts calls of a place.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub stats: CallStats,
    /// The present, as it was when the place began its turn.
    pub now: Time,
    /// By number: the op-code of the call under way.
    ops: Vec<u64>,
}

/// Op-codes that are counted apart: as many as a node has. Whoever makes up others shares one.
const OPS: usize = 256;

impl Counting {
    pub fn began(&mut self, number: u32, op: u64) {
        let at = number as usize;
        if at >= self.ops.len() {
            self.ops.resize(at + 1, 0);
        }
        self.ops[at] = op;
    }

    pub fn ended(&mut self, number: u32, began: Time, status: Status) {
        let op = self.ops.get(number as usize).copied().unwrap_or_default();
        let op = if self.stats.len() < OPS || self.stats.contains_key(&op) { op } else { u64::MAX };
        let (stats, ns) = (self.stats.entry(op).or_default(), self.now.saturating_sub(began));
        stats.calls += 1;
        stats.failed += u64::from(!matches!(status, Status::Ok | Status::NotFound | Status::Other(_)));
        stats.ns = stats.ns.saturating_add(ns);
        stats.classes[CLASSES.iter().position(|&bound| ns <= bound).unwrap_or(CLASSES.len())] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_op_code_and_time() {
        let mut counting = Counting { now: 5_000, ..Counting::default() };
        counting.began(3, 7);
        counting.ended(3, 0, Status::Ok);
        counting.began(0, 7);
        counting.ended(0, 5_000, Status::Trapped);
        let stats = counting.stats[&7];
        assert_eq!((stats.calls, stats.failed, stats.ns), (2, 1, 5_000));
        assert_eq!((stats.classes[0], stats.classes[2]), (1, 1));
        counting.now = Time::MAX;
        (0..1000).for_each(|op| {
            counting.began(1, op);
            counting.ended(1, 0, Status::NotFound);
        });
        assert!(counting.stats.len() <= OPS + 1);
        let mut sum = OpStats::default();
        counting.stats.values().for_each(|stats| sum.add(stats));
        assert_eq!((sum.calls, sum.failed), (1002, 1));
    }
}
