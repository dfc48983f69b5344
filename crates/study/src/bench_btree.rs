//! The B-tree's kernels on cores of this machine, beside other ordered maps that threads share, in one run.
//!
//! All hold the same keys, each its own value, and are asked for the same ones, drawn beforehand. Remora's tree is served
//! as on a node: calls in a runner for each core, so that one's memory is fetched while others compute.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

use congee::U64Congee;
use remora_kernel::btree::Shape;
pub use remora_kernel::btree::key_bytes;
use remora_lab::bench::{BenchGoal, BenchProgress, BenchRow};
use remora_lab::stats::median;
pub use remora_store::bench_tree::Keys;
use remora_store::bench_tree::{TreeBench, Work, byte_key};
use remora_store::hash::mix;
use scc::TreeIndex;
use scc::ebr::Guard;

use crate::workload::{Distribution, Picker};
use crate::{MeasuredRows, StudyError};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct BtreeBench {
    /// Keys loaded.
    pub keys: u64,
    /// Which.
    pub spread: Keys,
    /// Bytes of a key, at least 8, if keys are bytes.
    pub key_bytes: Option<usize>,
    /// How keys are drawn.
    pub distribution: Distribution,
    /// Look-ups of each core in a round, a power of two; of scans and inserts a part.
    pub lookups: u64,
    /// Cores at work: each row for one core, then for two, and so on.
    pub cores: usize,
    /// Rounds, of which the median counts.
    pub rounds: u32,
    /// Bytes of a node of Remora's tree.
    pub node_bytes: usize,
    /// Calls in flight on each core.
    pub in_flight: usize,
    /// Seed of every random choice.
    pub seed: u64,
}

/// Keys of a scan.
const SCAN: u32 = 100;
/// What is measured.
const WORKS: [(&str, Work); 4] =
    [("look-up", Work::Get), ("scan of 100", Work::Scan(SCAN)), ("update", Work::Update), ("insert", Work::Insert)];
/// Of look-ups, one in so many as scans and as inserts.
const SCANS: u64 = 8;
const INSERTS: u64 = 4;
/// Part of a node that is filled at first, in percent: there is room for some inserts.
const FILL: u8 = 90;

/// A map that is measured.
trait Map: Sync {
    fn name(&self) -> &'static str;

    /// Does the work to these keys on this core.
    ///
    /// # Panics
    /// If an answer is wrong.
    fn run(&self, work: Work, keys: &[u64]);

    /// How many keys of a round it gets at most: fewer where each takes so long that a round would not end.
    fn most(&self, work: Work) -> usize {
        _ = work;
        usize::MAX
    }
}

struct Remora(TreeBench, usize);

impl Map for Remora {
    fn name(&self) -> &'static str {
        "Remora"
    }

    fn run(&self, work: Work, keys: &[u64]) {
        self.0.run(work, self.1, keys);
    }
}

impl Map for RwLock<BTreeMap<u64, u64>> {
    fn name(&self) -> &'static str {
        "BTreeMap under a lock"
    }

    fn run(&self, work: Work, keys: &[u64]) {
        let read = || self.read().unwrap_or_else(PoisonError::into_inner);
        for &key in keys {
            match work {
                Work::Get => assert_eq!(read().get(&key), Some(&key)),
                Work::Scan(count) => {
                    read().range(key..).take(count as usize).for_each(|pair| _ = black_box(pair));
                }
                Work::Update | Work::Insert => {
                    black_box(self.write().unwrap_or_else(PoisonError::into_inner).insert(key, key));
                }
            }
        }
    }
}

impl Map for TreeIndex<u64, u64> {
    fn name(&self) -> &'static str {
        "scc::TreeIndex"
    }

    fn run(&self, work: Work, keys: &[u64]) {
        for &key in keys {
            match work {
                Work::Get => assert_eq!(self.peek_with(&key, |_, value| *value), Some(key)),
                Work::Scan(count) => {
                    let guard = Guard::new();
                    self.range(key.., &guard).take(count as usize).for_each(|pair| _ = black_box(pair));
                }
                Work::Update => {
                    // It has no other way: who looks meanwhile finds nothing.
                    black_box(self.remove(&key));
                    _ = black_box(self.insert(key, key));
                }
                Work::Insert => _ = black_box(self.insert(key, key)),
            }
        }
    }

    /// A range takes a time that grows with the map (scc 2.4: minutes for a round of scans of a million keys).
    fn most(&self, work: Work) -> usize {
        if matches!(work, Work::Scan(_)) { 16 } else { usize::MAX }
    }
}

/// A key as bytes of its own.
fn bytes_of(key: u64, len: usize) -> Box<[u8]> {
    let mut bytes = vec![0; len];
    byte_key(key, &mut bytes);
    bytes.into()
}

/// A `BTreeMap` whose keys are so many bytes.
struct ByteMap(RwLock<BTreeMap<Box<[u8]>, u64>>, usize);

impl Map for ByteMap {
    fn name(&self) -> &'static str {
        "BTreeMap under a lock"
    }

    fn run(&self, work: Work, keys: &[u64]) {
        let read = || self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut room = vec![0; self.1];
        for &key in keys {
            byte_key(key, &mut room);
            match work {
                Work::Get => assert_eq!(read().get(&room[..]), Some(&key)),
                Work::Scan(count) => {
                    let from = (Bound::Included(&room[..]), Bound::Unbounded);
                    read().range::<[u8], _>(from).take(count as usize).for_each(|pair| _ = black_box(pair));
                }
                Work::Update | Work::Insert => {
                    let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
                    black_box(map.insert(room[..].into(), key));
                }
            }
        }
    }
}

/// A `TreeIndex` whose keys are so many bytes.
struct ByteIndex(TreeIndex<Box<[u8]>, u64>, usize);

impl Map for ByteIndex {
    fn name(&self) -> &'static str {
        "scc::TreeIndex"
    }

    fn run(&self, work: Work, keys: &[u64]) {
        let mut room = vec![0; self.1];
        for &key in keys {
            byte_key(key, &mut room);
            match work {
                Work::Get => assert_eq!(self.0.peek_with(&room[..], |_, value| *value), Some(key)),
                Work::Scan(count) => {
                    let guard = Guard::new();
                    let from = bytes_of(key, self.1)..;
                    self.0.range(from, &guard).take(count as usize).for_each(|pair| _ = black_box(pair));
                }
                Work::Update => {
                    black_box(self.0.remove(&room[..]));
                    _ = black_box(self.0.insert(room[..].into(), key));
                }
                Work::Insert => _ = black_box(self.0.insert(room[..].into(), key)),
            }
        }
    }

    /// As of keys that are numbers.
    fn most(&self, work: Work) -> usize {
        if matches!(work, Work::Scan(_)) { 16 } else { usize::MAX }
    }
}

impl Map for U64Congee<usize> {
    fn name(&self) -> &'static str {
        "congee (radix tree)"
    }

    fn run(&self, work: Work, keys: &[u64]) {
        let mut room = vec![([0; 8], 0); SCAN as usize];
        for &key in keys {
            let guard = congee::epoch::pin();
            match work {
                Work::Get => assert_eq!(self.get(key, &guard), Some(key as usize)),
                Work::Scan(count) => {
                    black_box(self.range(key, u64::MAX, &mut room[..count as usize], &guard));
                }
                Work::Update | Work::Insert => _ = black_box(self.insert(key, key as usize, &guard)),
            }
        }
    }
}

impl BtreeBench {
    /// Keys of each map in the end.
    pub fn keys_in_all(&self) -> u64 {
        self.keys + self.inserts()
    }

    /// Measures everything.
    pub fn run(&self, progress: &mut BenchProgress<'_>) -> MeasuredRows<BenchRow> {
        MeasuredRows::by(WORKS.len() * self.cores * self.peers(), |rows| {
            progress("loading", 0.0);
            let maps = self.maps().map_err(|e| StudyError::Failed(format!("cannot load {} keys: {e}", self.keys)))?;
            let mut inserted = 0;
            for (n, (what, work)) in WORKS.into_iter().enumerate() {
                for cores in 1..=self.cores {
                    let label = format!("{what}, {cores} core{}", if cores > 1 { "s" } else { "" });
                    let done = n * self.cores + cores - 1;
                    rows.extend(self.rows(&maps, (label, work, cores), done, &mut inserted, progress)?);
                }
            }
            progress("done", 1.0);
            Ok(())
        })
    }

    /// Remora beside each of the others, by so many cores.
    fn rows(
        &self,
        maps: &[Box<dyn Map>],
        (label, work, cores): (String, Work, usize),
        done: usize,
        inserted: &mut u64,
        progress: &mut BenchProgress<'_>,
    ) -> Result<Vec<BenchRow>, StudyError> {
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); maps.len()];
        for round in 0..self.rounds {
            let here = (f64::from(round) / f64::from(self.rounds) + done as f64 + 1.0) / self.cores as f64;
            if !progress(&label, here / (WORKS.len() as f64 + 1.0 / self.cores as f64)) {
                return Err(StudyError::Interrupted);
            }
            let keys: Vec<Vec<u64>> =
                (0..cores).map(|core| self.drawn(work, (u64::from(round) << 8) | core as u64, inserted)).collect();
            // By turns, so that what disturbs the machine for longer than a round disturbs all.
            maps.iter().zip(&mut rates).for_each(|(map, rates)| rates.push(rate(&**map, work, &keys)));
        }
        let ours = &rates[0];
        let mut rows = Vec::new();
        for (map, theirs) in maps.iter().zip(&rates).skip(1) {
            let ratio = median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs));
            let (value, peer_value) = (median(ours.iter().copied()), median(theirs.iter().copied()));
            let goal = goal(work, map.name()).filter(|_| self.key_bytes.is_none()).map(BenchGoal::RatioAtLeast);
            let (what, peer) = (label.clone(), map.name().into());
            rows.push(BenchRow { what, value, unit: "M/s", peer, peer_value, ratio, goal });
        }
        Ok(rows)
    }

    /// Remora's first.
    fn maps(&self) -> io::Result<Vec<Box<dyn Map>>> {
        let shape = Shape { node_bytes: self.node_bytes, fill: FILL };
        let remora = TreeBench::new(shape, self.spread, self.keys, self.inserts(), self.key_bytes)?;
        let remora = Remora(remora, self.in_flight);
        if let Some(len) = self.key_bytes {
            return Ok(self.byte_maps(remora, len));
        }
        let keys = || (0..self.keys).map(|number| self.spread.key(number, self.keys));
        let index = TreeIndex::new();
        let congee = U64Congee::<usize>::default();
        let guard = congee::epoch::pin();
        for key in keys() {
            let _ = index.insert(key, key);
            congee.insert(key, key as usize, &guard).map_err(|e| io::Error::other(format!("{e:?}")))?;
        }
        drop(guard);
        let map: BTreeMap<u64, u64> = keys().map(|key| (key, key)).collect();
        Ok(vec![Box::new(remora), Box::new(RwLock::new(map)), Box::new(index), Box::new(congee)])
    }

    /// As [`maps`](Self::maps), of keys that are bytes.
    fn byte_maps(&self, remora: Remora, len: usize) -> Vec<Box<dyn Map>> {
        let keys = || (0..self.keys).map(|number| self.spread.key(number, self.keys));
        let index = TreeIndex::new();
        for key in keys() {
            let _ = index.insert(bytes_of(key, len), key);
        }
        let map: BTreeMap<Box<[u8]>, u64> = keys().map(|key| (bytes_of(key, len), key)).collect();
        vec![Box::new(remora), Box::new(ByteMap(RwLock::new(map), len)), Box::new(ByteIndex(index, len))]
    }

    /// Maps beside Remora's tree: the radix tree has no keys that are bytes.
    fn peers(&self) -> usize {
        if self.key_bytes.is_some() { 2 } else { 3 }
    }

    /// Keys that a core inserts in a round.
    fn inserts_of_a_core(&self) -> u64 {
        (self.lookups / INSERTS).max(1)
    }

    /// Keys that all rounds insert: one core's, then two cores', and so on.
    fn inserts(&self) -> u64 {
        u64::from(self.rounds) * (1..=self.cores as u64).sum::<u64>() * self.inserts_of_a_core()
    }

    /// Keys for one core's round. Those to insert are not there, and come once.
    fn drawn(&self, work: Work, stream: u64, inserted: &mut u64) -> Vec<u64> {
        let count = match work {
            Work::Get | Work::Update => self.lookups,
            Work::Scan(_) => (self.lookups / SCANS).max(1),
            Work::Insert => self.inserts_of_a_core(),
        };
        if work != Work::Insert {
            let mut picker = Picker::new(self.distribution, self.keys, self.seed ^ stream);
            return (0..count).map(|_| self.spread.key(picker.pick(), self.keys)).collect();
        }
        let first = *inserted;
        *inserted += count;
        // In an order that jumps about: an odd number steps through all residues of a power of two.
        let number = |i: u64| first + ((i.wrapping_mul(0x9e37_79b1)) & (count.next_power_of_two() - 1));
        match self.spread {
            Keys::Dense => (0..count).map(|i| self.keys + number(i)).collect(),
            // Behind a key that is there, where there is room.
            Keys::Sparse => {
                let place = |i: u64| (u128::from(mix(i)) * u128::from(self.keys)) >> 64;
                (0..count).map(number).map(|i| self.spread.key(place(i) as u64, self.keys) + 1 + i).collect()
            }
        }
    }
}

/// What a ratio should be.
fn goal(work: Work, peer: &str) -> Option<f64> {
    match (work, peer.starts_with("congee")) {
        (Work::Get, false) => Some(6.0),
        (Work::Get, true) => Some(1.2),
        (Work::Scan(_), false) if peer.starts_with("BTreeMap") => Some(3.0),
        (Work::Insert | Work::Update, _) => Some(1.0),
        _ => None,
    }
}

/// Millions a second of all cores together.
fn rate(map: &dyn Map, work: Work, keys: &[Vec<u64>]) -> f64 {
    let keys: Vec<&[u64]> = keys.iter().map(|keys| &keys[..keys.len().min(map.most(work))]).collect();
    let start = Instant::now();
    match &keys[..] {
        [one] => map.run(work, one),
        all => std::thread::scope(|scope| all.iter().for_each(|keys| _ = scope.spawn(|| map.run(work, keys)))),
    }
    let done: usize = keys.iter().map(|keys| keys.len()).sum();
    done as f64 / start.elapsed().as_secs_f64() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_maps_answer_alike() {
        for spread in [Keys::Dense, Keys::Sparse] {
            let bench = BtreeBench {
                keys: 3000,
                spread,
                key_bytes: None,
                distribution: Distribution::Uniform,
                lookups: 512,
                cores: 2,
                rounds: 2,
                node_bytes: 256,
                in_flight: 8,
                seed: 1,
            };
            // The second inserts more keys than it begins with.
            for bench in [bench, BtreeBench { keys: 300, rounds: 3, ..bench }] {
                let rows = bench.run(&mut |_, _| true).whole().unwrap();
                assert_eq!(rows.len(), 4 * 2 * 3);
                assert!(rows.iter().all(|row| row.value > 0.0 && row.peer_value > 0.0 && row.ratio > 0.0));
                let cut = bench.run(&mut |what, _| what != "scan of 100, 2 cores");
                assert_eq!((cut.rows.len(), cut.wanted), (3 * 3, rows.len()));
                assert!(matches!(cut.cut, Some(StudyError::Interrupted)));
                let rows = BtreeBench { key_bytes: Some(20), ..bench }.run(&mut |_, _| true).whole().unwrap();
                assert_eq!(rows.len(), 4 * 2 * 2);
                assert!(rows.iter().all(|row| row.value > 0.0 && row.peer_value > 0.0 && row.goal.is_none()));
            }
        }
    }
}
