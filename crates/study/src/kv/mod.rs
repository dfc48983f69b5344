//! Key-value stores beside each other: Remora's, at a node's NIC by rings in memory, memcached and Redis, each with one
//! core that serves and one client that keeps a batch of requests under way.

mod accesses;
mod memcached;
mod redis;
mod ring;

use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_lab::bench::{BenchGoal, BenchProgress, BenchRow};
use remora_lab::installed;
use remora_store::kv::KvShape;
use serde::Serialize;

use crate::ycsb::{Generator, Mix, Popularity};
use crate::{MeasuredRows, StudyError};

pub use accesses::Accesses;

/// Bytes of a key.
pub const KEY: usize = 16;
/// Bytes of a value: with its key 64, as RAMBDA's pairs have.
pub const VALUE: usize = 48;
/// Bytes that other stores take for a pair beside its key and value, with some to spare: an item of memcached takes about 56.
const BESIDE: usize = 96;
/// Requests under way while a store is filled.
const FILL: usize = 32;
/// The part of all that filling stores is, as far as progress tells.
const FILLING: f64 = 0.5;
/// Shares of GETs in per cent; the others are PUTs.
const GETS: [u8; 3] = [100, 50, 0];
/// How many slices a figure is measured in; stores take turns.
const SLICES: u32 = 3;

/// What to measure.
#[derive(Clone, Debug)]
pub struct KvPlan {
    /// Pairs in each store.
    pub pairs: u64,
    /// Requests under way at once: each of these is measured.
    pub batches: Vec<usize>,
    /// How long each figure is measured.
    pub time: Duration,
    /// Seed of every random choice.
    pub seed: u64,
    /// Whether other stores are measured too, where they are installed.
    pub peers: bool,
}

impl KvPlan {
    /// Bytes of memory that all stores take together, about.
    pub fn bytes(&self) -> u64 {
        let others =
            [memcached::NAME, redis::PROGRAM].into_iter().filter(|name| self.peers && installed(name).is_some());
        let others = others.count() as u64 * self.pairs.saturating_mul((KEY + VALUE + BESIDE) as u64);
        shape(self.pairs).bytes().unwrap_or(u64::MAX).saturating_add(others)
    }
}

fn shape(pairs: u64) -> KvShape {
    KvShape { pairs, key_bytes: KEY, value_bytes: VALUE }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct KvAsk {
    /// The pair's number.
    pub number: u64,
    /// What it is to have from now on; nothing for a GET.
    pub version: Option<u32>,
}

impl KvAsk {
    /// The key.
    pub fn key(self) -> [u8; KEY] {
        let mut key = [0; KEY];
        key[..8].copy_from_slice(&self.number.to_be_bytes());
        // Text, which memcached wants.
        let mut out = [0; KEY];
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = b"0123456789abcdef"[usize::from(key[at / 2] >> (4 * (1 - at % 2)) & 15)];
        }
        out
    }

    /// The value that it writes.
    pub fn value(self) -> [u8; VALUE] {
        value(self.number, self.version.unwrap_or(0))
    }
}

/// The value that a pair has in a version: its number, the version, and bytes that follow from both.
fn value(number: u64, version: u32) -> [u8; VALUE] {
    let mut out = [0; VALUE];
    out[..8].copy_from_slice(&number.to_le_bytes());
    out[8..12].copy_from_slice(&version.to_le_bytes());
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(version);
    for part in out[12..].chunks_mut(8) {
        word = word.rotate_left(23).wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(1);
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
    out
}

/// A store that takes requests in batches.
pub trait KvTarget {
    /// As reports spell it.
    fn name(&self) -> &'static str;

    /// Has all requests under way at once. `done` is told of each answer, by the place of its request: the value of a
    /// GET, if there is one; of a PUT, that it is done.
    fn batch(&mut self, asks: &[KvAsk], done: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), StudyError>;
}

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub struct KvRow {
    /// The share of GETs in per cent; the others are PUTs.
    pub gets: u8,
    /// `uniform` or `zipfian 0.9`.
    pub popularity: &'static str,
    /// Requests under way at once.
    pub batch: usize,
    /// Of each store, in the order of [`KvReport::stores`]: operations a second, every answer verified.
    pub ops_per_s: Vec<f64>,
}

impl KvRow {
    /// How many times the rate of that other store the first has: the median of the slices is in the rates already.
    pub fn times(&self, store: usize) -> Option<f64> {
        Some(self.ops_per_s.first()? / self.ops_per_s.get(store)?)
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct KvReport {
    /// Pairs in each store.
    pub pairs: u64,
    /// Who was measured, Remora first.
    pub stores: Vec<&'static str>,
    /// Seconds that filling each took.
    pub filled_s: Vec<f64>,
    /// Accesses of memory.
    pub accesses: Accesses,
    /// Operations in all, each answer verified.
    pub verified: u64,
}

impl KvReport {
    /// What Remora aims at, beside memcached where that is installed: five times its GETs, four times its PUTs; and the
    /// accesses of memory of RAMBDA's store (HPCA 2023, section VI-B).
    pub fn goals(&self, rows: &[KvRow]) -> Vec<BenchRow> {
        let row = |what: String, unit, peer: &str, (value, peer_value), goal| {
            let ratio = value / peer_value;
            BenchRow { what, value, unit, peer: peer.into(), peer_value, ratio, goal: Some(goal) }
        };
        let mut goals = Vec::new();
        let memcached = self.stores.iter().position(|store| *store == memcached::NAME);
        for (gets, what, times) in [(100, "GET", 5.0), (0, "PUT", 4.0)] {
            for found in rows.iter().filter(|found| found.gets == gets) {
                let Some(theirs) = memcached.and_then(|at| found.ops_per_s.get(at)) else { continue };
                let what = format!("{what}, {}, {} at once", found.popularity, found.batch);
                let figures = (found.ops_per_s[0] / 1e3, theirs / 1e3);
                goals.push(row(what, "k/s", memcached::NAME, figures, BenchGoal::RatioAtLeast(times)));
            }
        }
        let Accesses { get, add, change } = self.accesses;
        for (what, found, most) in [("a GET", get, 3.0), ("a PUT of a new key", add, 4.0), ("a PUT", change, 4.0)] {
            let what = format!("accesses of memory, {what}");
            goals.push(row(what, "", "RAMBDA's store", (found, most), BenchGoal::RatioAtMost(1.0)));
        }
        goals
    }
}

/// What its requests did to a store, to check answers by.
struct Versions {
    /// Of each pair, the last that was written.
    written: Vec<u32>,
    verified: u64,
}

impl Versions {
    /// Whether an answer is right, to a request of a batch before which the pair had version `before`.
    fn check(&mut self, ask: KvAsk, before: u32, answer: Option<&[u8]>) -> Result<(), String> {
        self.verified += 1;
        if ask.version.is_some() {
            return Ok(());
        }
        let Some(bytes) = answer else { return Err(format!("pair {} is not there", ask.number)) };
        let version = bytes.get(8..12).and_then(|word| Some(u32::from_le_bytes(*word.first_chunk()?)));
        // What the same batch writes may have come before.
        let known = version.filter(|version| (before..=self.written[ask.number as usize]).contains(version));
        match known.is_some_and(|version| bytes == value(ask.number, version)) {
            true => Ok(()),
            false => Err(format!("pair {} is {bytes:?}, and has version {before} at least", ask.number)),
        }
    }
}

/// One store with what is known of it.
struct Measured {
    target: Box<dyn KvTarget>,
    versions: Versions,
    asks: Vec<KvAsk>,
    before: Vec<u32>,
}

impl Measured {
    /// Asks once, and checks the answers.
    fn batch(&mut self) -> Result<(), StudyError> {
        let Self { target, versions, asks, before } = self;
        before.clear();
        before.extend(asks.iter().map(|ask| versions.written[ask.number as usize]));
        // Two that write one pair at once may come in either order: the second reads instead.
        for at in 1..asks.len() {
            let writes = |ask: &KvAsk| ask.version.is_some() && ask.number == asks[at].number;
            if asks[at].version.is_some() && asks[..at].iter().any(writes) {
                asks[at].version = None;
            }
        }
        // The versions that are about to be written.
        for ask in asks.iter_mut().filter(|ask| ask.version.is_some()) {
            let written = &mut versions.written[ask.number as usize];
            *written += 1;
            ask.version = Some(*written);
        }
        let (mut wrong, mut answered) = (None, 0);
        target.batch(asks, &mut |at, answer| {
            answered += 1;
            if let Err(why) = versions.check(asks[at], before[at], answer) {
                wrong = Some(why);
            }
        })?;
        match wrong {
            None if answered == asks.len() => Ok(()),
            None => Err(StudyError::Failed(format!("{}: {answered} of {} answers", target.name(), asks.len()))),
            Some(why) => Err(StudyError::Failed(format!("{}: {why}", target.name()))),
        }
    }

    /// Writes every pair once. `told` hears how many there are by now, and says whether to go on.
    fn fill(&mut self, told: &mut dyn FnMut(u64) -> bool) -> Result<(), StudyError> {
        let pairs = self.versions.written.len() as u64;
        for first in (0..pairs).step_by(FILL) {
            self.asks.clear();
            self.asks.extend((first..pairs.min(first + FILL as u64)).map(|number| KvAsk { number, version: Some(0) }));
            self.batch()?;
            if first.is_multiple_of(1 << 15) && !told(first) {
                return Err(StudyError::Interrupted);
            }
        }
        Ok(())
    }

    /// Operations a second.
    fn rate(&mut self, mix: &mut Drawn, batch: usize, time: Duration) -> Result<f64, StudyError> {
        let (start, mut done) = (Instant::now(), 0u64);
        loop {
            self.asks.clear();
            self.asks.extend((0..batch).map(|_| mix.draw()));
            self.batch()?;
            done += batch as u64;
            let elapsed = start.elapsed();
            if elapsed >= time {
                return Ok(done as f64 / elapsed.as_secs_f64());
            }
        }
    }
}

/// Requests of one mix.
struct Drawn {
    records: Generator,
    rng: ChaCha8Rng,
    gets: u8,
}

impl Drawn {
    fn draw(&mut self) -> KvAsk {
        let put = self.rng.next_u32() % 100 >= u32::from(self.gets);
        KvAsk { number: self.records.record(), version: put.then_some(0) }
    }
}

/// Fills the stores and measures them.
pub fn run(plan: &KvPlan, progress: &mut BenchProgress<'_>) -> Result<(KvReport, MeasuredRows<KvRow>), StudyError> {
    let directory = tempfile::tempdir().map_err(|e| StudyError::Failed(format!("a directory for stores: {e}")))?;
    let own = ring::Ring::start(plan)?;
    let mut targets: Vec<Box<dyn KvTarget>> = Vec::new();
    if plan.peers {
        targets
            .extend(memcached::Memcached::start(directory.path(), plan)?.map(|it| Box::new(it) as Box<dyn KvTarget>));
        targets.extend(redis::RedisKv::start(directory.path())?.map(|it| Box::new(it) as Box<dyn KvTarget>));
    }
    let accesses = Accesses::count(plan.seed)?;
    targets.insert(0, Box::new(own));
    let pairs = plan.pairs as usize;
    let measured = |target| Measured {
        target,
        versions: Versions { written: vec![0; pairs], verified: 0 },
        asks: Vec::new(),
        before: Vec::new(),
    };
    let mut stores: Vec<Measured> = targets.into_iter().map(measured).collect();
    let (mut filled_s, count) = (Vec::new(), stores.len() as f64);
    for (n, store) in stores.iter_mut().enumerate() {
        let (name, start) = (store.target.name(), Instant::now());
        let what = format!("filling {name}");
        store.fill(&mut |done| progress(&what, FILLING * (n as f64 + done as f64 / plan.pairs as f64) / count))?;
        filled_s.push(start.elapsed().as_secs_f64());
    }
    let popularities = [("uniform", Popularity::Uniform), ("zipfian 0.9", Popularity::Zipfian(0.9))];
    let cells = GETS.len() * popularities.len() * plan.batches.len();
    let measured = MeasuredRows::by(cells, |rows| {
        for gets in GETS {
            for (name, popularity) in popularities {
                for &batch in &plan.batches {
                    let part = FILLING + (1.0 - FILLING) * rows.len() as f64 / cells as f64;
                    let mut rates = vec![Vec::new(); stores.len()];
                    for slice in 0..u64::from(SLICES) {
                        for (store, rates) in stores.iter_mut().zip(&mut rates) {
                            let what = format!("{gets} % GET, {name}, {batch} at once, {}", store.target.name());
                            if !progress(&what, part) {
                                return Err(StudyError::Interrupted);
                            }
                            let seed = plan.seed ^ (slice << 32);
                            let records = Generator::with(Mix::writes(0), popularity, plan.pairs, 0, seed);
                            let mut drawn = Drawn { records, rng: ChaCha8Rng::seed_from_u64(!seed), gets };
                            rates.push(store.rate(&mut drawn, batch, plan.time / SLICES)?);
                        }
                    }
                    let ops_per_s = rates.into_iter().map(remora_lab::stats::median).collect();
                    rows.push(KvRow { gets, popularity: name, batch, ops_per_s });
                }
            }
        }
        Ok(())
    });
    let verified = stores.iter().map(|store| store.versions.verified).sum();
    let names = stores.iter().map(|store| store.target.name()).collect();
    Ok((KvReport { pairs: plan.pairs, stores: names, filled_s, accesses, verified }, measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_that_is_installed_answers_rightly() {
        let plan = KvPlan {
            pairs: 3000,
            batches: vec![1, 32],
            time: Duration::from_millis(15),
            seed: 5,
            // A node is a process of this very program, which a test is not.
            peers: true,
        };
        let directory = tempfile::tempdir().unwrap();
        let targets: [Option<Box<dyn KvTarget>>; 2] = [
            memcached::Memcached::start(directory.path(), &plan).unwrap().map(|it| Box::new(it) as Box<dyn KvTarget>),
            redis::RedisKv::start(directory.path()).unwrap().map(|it| Box::new(it) as Box<dyn KvTarget>),
        ];
        for target in targets.into_iter().flatten() {
            let versions = Versions { written: vec![0; 3000], verified: 0 };
            let mut store = Measured { target, versions, asks: Vec::new(), before: Vec::new() };
            store.fill(&mut |_| true).unwrap();
            let records = Generator::with(Mix::writes(0), Popularity::Uniform, 3000, 0, 1);
            let mut drawn = Drawn { records, rng: ChaCha8Rng::seed_from_u64(1), gets: 50 };
            assert!(store.rate(&mut drawn, 32, plan.time).unwrap() > 0.0);
            // A pair that has another value than it should is noticed.
            store.versions.written[7] = 99;
            store.asks = vec![KvAsk { number: 7, version: None }];
            assert!(store.batch().unwrap_err().to_string().contains("pair 7"));
        }
    }

    #[test]
    fn keys_and_values_are_each_pairs_own() {
        let ask = KvAsk { number: 0xabc, version: Some(3) };
        assert_eq!(&ask.key(), b"0000000000000abc");
        assert_ne!(value(1, 1), value(1, 2));
        assert_ne!(value(1, 1)[12..], value(2, 1)[12..]);
    }
}
