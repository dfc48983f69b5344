//! The core workloads A to F of YCSB: which operation comes next, and on which record.
//!
//! Sources: Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010 (the mixes: table 2), and the core
//! package of the benchmark (F, scrambling, latest, what inserts do to the key space); Gray et al., "Quickly generating
//! billion-record synthetic databases", SIGMOD 1994 (the zipfian).
//!
//! Records are numbers, in the order of their insertion; [`crate::workload::key`] names them as YCSB does.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::workload::{THETA, below, fnv1a_64};

/// Ranks that the scrambled zipfian draws from, however many records there are (`ITEM_COUNT`): 10^10. The benchmark's
/// `ZETAN` belongs to this number; that of 10^16, which one also reads of, would be 45.1.
pub const SCRAMBLED_RANKS: u64 = 10_000_000_000;

/// The generalised harmonic number of [`SCRAMBLED_RANKS`] at 0.99 (`ZETAN`).
pub const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// The longest scan of workload E.
pub const MAX_SCAN: u64 = 100;

/// Below this many terms a harmonic number is summed up, beyond it is an integral.
const SUMMED: u64 = 10_000;

/// A workload: a name, operations, and how records are chosen. A new one is a line of [`WORKLOADS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YcsbWorkload {
    /// As options and files spell it.
    pub name: &'static str,
    /// A heading.
    pub title: &'static str,
    /// What is done.
    pub about: &'static str,
    /// Its operations.
    pub mix: Mix,
    /// Whether the newest records are the most popular; else a scrambled zipfian says which are.
    pub latest: bool,
    /// Instead of operations, transactions of so many reads and writes of different records.
    pub transaction: Option<(u8, u8)>,
}

/// No operations.
const NONE: Mix = Mix { read: 0, update: 0, insert: 0, scan: 0, modify: 0 };

/// All workloads: updates or reads alone, and the core workloads A to F.
pub const WORKLOADS: [YcsbWorkload; 8] = [
    workload("writes", "Updates only", "Updates only", Mix::writes(100)),
    workload("reads", "Reads only", "Reads only, as in C", Mix::writes(0)),
    workload("a", "YCSB A", "Half reads, half updates", Mix { read: 50, update: 50, ..NONE }),
    workload("b", "YCSB B", "95 % reads, 5 % updates", Mix { read: 95, update: 5, ..NONE }),
    workload("c", "YCSB C", "Reads only", Mix { read: 100, ..NONE }),
    YcsbWorkload {
        latest: true,
        ..workload("d", "YCSB D", "95 % reads of the latest, 5 % inserts", Mix { read: 95, insert: 5, ..NONE })
    },
    workload("e", "YCSB E", "95 % scans, 5 % inserts", Mix { scan: 95, insert: 5, ..NONE }),
    workload("f", "YCSB F", "Half reads, half read-modify-writes", Mix { read: 50, modify: 50, ..NONE }),
];

const fn workload(name: &'static str, title: &'static str, about: &'static str, mix: Mix) -> YcsbWorkload {
    YcsbWorkload { name, title, about, mix, latest: false, transaction: None }
}

/// Transactions of reads and writes: those of RAMBDA's figure 12, and reads alone.
pub const TRANSACTIONS: [YcsbWorkload; 4] = [
    transaction("4,2", "Transactions of 4 reads and 2 writes", (4, 2)),
    transaction("0,1", "Transactions of 1 write", (0, 1)),
    transaction("4,0", "Transactions of 4 reads", (4, 0)),
    transaction("1,0", "Transactions of 1 read", (1, 0)),
];

const fn transaction(name: &'static str, title: &'static str, counts: (u8, u8)) -> YcsbWorkload {
    YcsbWorkload { transaction: Some(counts), ..workload(name, title, title, Mix::writes(0)) }
}

impl YcsbWorkload {
    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        WORKLOADS.into_iter().find(|workload| workload.name == name)
    }

    /// How its records are chosen, with this skew.
    pub const fn popularity(&self, skew: f64) -> Popularity {
        if self.latest { Popularity::Latest(skew) } else { Popularity::Zipfian(skew) }
    }
}

/// Shares of the operations in per cent; together 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Reads of a record.
    pub read: u8,
    /// Writes of a record.
    pub update: u8,
    /// New records.
    pub insert: u8,
    /// Scans.
    pub scan: u8,
    /// Reads of a record followed by its write.
    pub modify: u8,
}

impl Mix {
    /// Reads and writes, so many per cent of them (at most 100) writes.
    pub const fn writes(share: u8) -> Self {
        let update = if share > 100 { 100 } else { share };
        Self { read: 100 - update, update, insert: 0, scan: 0, modify: 0 }
    }
}

/// How records are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// Scrambled zipfian with this skew, between 0 and 1: popular records lie anywhere.
    Zipfian(f64),
    /// Zipfian with this skew over the records themselves, scattered over them. YCSB's has ten billion ranks, whose tail
    /// makes what is scattered over fewer records flatter.
    Ranked(f64),
    /// Zipfian with this skew by age: the newest are the most popular.
    Latest(f64),
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YcsbOperation {
    /// Read this record.
    Read(u64),
    /// Write this record.
    Update(u64),
    /// Add this record.
    Insert(u64),
    /// Read records from the first on, in the order of keys.
    Scan {
        /// The first.
        start: u64,
        /// How many, 1 to [`MAX_SCAN`].
        count: u64,
    },
    /// Read this record, then write it.
    ReadModifyWrite(u64),
}

/// Draws operations. The same seed draws the same ones; drawing allocates nothing.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: ChaCha8Rng,
    mix: Mix,
    /// Records that are there.
    records: u64,
    chooser: Chooser,
}

#[derive(Clone, Debug)]
enum Chooser {
    Uniform {
        records: u64,
    },
    /// A zipfian over [`SCRAMBLED_RANKS`], and the numbers that the ranks are scattered over.
    Scrambled {
        zipfian: Zipfian,
        space: u64,
    },
    Latest(Zipfian),
}

impl Generator {
    /// A mix of operations over `records` records (0 counts as 1), of which about `operations` will be drawn.
    pub fn with(mix: Mix, popularity: Popularity, records: u64, operations: u64, seed: u64) -> Self {
        let records = records.max(1);
        // Popular records must stay so while others are added: the numbers scattered over include twice as many new
        // ones as are expected, and those that are not there yet are passed over.
        let new = (u128::from(operations) * u128::from(mix.insert) * 2 / 100) as u64;
        let chooser = match popularity {
            Popularity::Uniform => Chooser::Uniform { records },
            Popularity::Zipfian(theta) => {
                let space = if new == 0 { records } else { records.saturating_add(new).saturating_add(1) };
                Chooser::Scrambled { zipfian: Zipfian::scrambled(theta), space }
            }
            Popularity::Ranked(theta) => Chooser::Scrambled { zipfian: Zipfian::new(records, theta), space: records },
            Popularity::Latest(theta) => Chooser::Latest(Zipfian::new(records, theta)),
        };
        Self { rng: ChaCha8Rng::seed_from_u64(seed), mix, records, chooser }
    }

    /// Records that are there by now.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The next operation.
    pub fn draw(&mut self) -> YcsbOperation {
        let Mix { read, update, insert, scan, .. } = self.mix;
        let mut share = below(&mut self.rng, 100) as u8;
        let mut falls = |part: u8| {
            let in_it = share < part;
            share = share.saturating_sub(part);
            in_it
        };
        if falls(read) {
            YcsbOperation::Read(self.record())
        } else if falls(update) {
            YcsbOperation::Update(self.record())
        } else if falls(insert) {
            YcsbOperation::Insert(self.insert())
        } else if falls(scan) {
            let start = self.record();
            YcsbOperation::Scan { start, count: 1 + below(&mut self.rng, MAX_SCAN) }
        } else {
            YcsbOperation::ReadModifyWrite(self.record())
        }
    }

    /// A record that is there.
    pub fn record(&mut self) -> u64 {
        let Self { rng, records, chooser, .. } = self;
        match chooser {
            Chooser::Uniform { records } => below(rng, *records),
            Chooser::Scrambled { zipfian, space } => loop {
                let record = scatter(zipfian.rank(unit(rng)), *space);
                if record < *records {
                    return record;
                }
            },
            Chooser::Latest(zipfian) => *records - 1 - zipfian.rank(unit(rng)),
        }
    }

    fn insert(&mut self) -> u64 {
        let record = self.records;
        self.records += 1;
        if let Chooser::Latest(zipfian) = &mut self.chooser {
            zipfian.grow();
        }
        record
    }
}

/// Where the benchmark puts a rank: the absolute value of the FNV-1a hash as a signed number, modulo the records.
fn scatter(rank: u64, records: u64) -> u64 {
    (fnv1a_64(rank) as i64).unsigned_abs() % records
}

/// Ranks by Gray et al.'s method: rank 0 is the most popular. It can grow.
#[derive(Clone, Debug)]
pub struct Zipfian {
    ranks: u64,
    theta: f64,
    zeta: f64,
    zeta_2: f64,
    eta: f64,
}

impl Zipfian {
    /// Over so many ranks (at least one) with skew `theta`, between 0 and 1.
    pub fn new(ranks: u64, theta: f64) -> Self {
        Self::with_zeta(ranks.max(1), theta, harmonic(ranks.max(1), theta))
    }

    /// That of the scrambled generator, with its published constant where there is one.
    pub fn scrambled(theta: f64) -> Self {
        let zeta = if theta == THETA { SCRAMBLED_ZETA } else { harmonic(SCRAMBLED_RANKS, theta) };
        Self::with_zeta(SCRAMBLED_RANKS, theta, zeta)
    }

    fn with_zeta(ranks: u64, theta: f64, zeta: f64) -> Self {
        let mut zipfian = Self { ranks, theta, zeta, zeta_2: 1.0 + 0.5f64.powf(theta), eta: 0.0 };
        zipfian.prepare();
        zipfian
    }

    fn prepare(&mut self) {
        let head = (2.0 / self.ranks as f64).powf(1.0 - self.theta);
        self.eta = (1.0 - head) / (1.0 - self.zeta_2 / self.zeta);
    }

    /// One rank more.
    pub fn grow(&mut self) {
        self.ranks += 1;
        self.zeta += (self.ranks as f64).powf(-self.theta);
        self.prepare();
    }

    /// The rank that the number `u`, uniform in 0..1, stands for.
    pub fn rank(&self, u: f64) -> u64 {
        let area = u * self.zeta;
        if area < 1.0 || self.ranks == 1 {
            return 0;
        }
        if area < self.zeta_2 || self.ranks == 2 {
            return 1;
        }
        let rank = self.ranks as f64 * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
        (rank as u64).min(self.ranks - 1)
    }
}

/// The generalised harmonic number: the sum of 1 / i^theta for i from 1 to `n`. What is not summed up is its integral
/// with half a term at either end and the next correction (Euler and Maclaurin), right to ten digits.
pub fn harmonic(n: u64, theta: f64) -> f64 {
    let term = |i: f64| i.powf(-theta);
    let head: f64 = (1..=n.min(SUMMED)).map(|i| term(i as f64)).sum();
    if n <= SUMMED {
        return head;
    }
    let (m, n) = (SUMMED as f64, n as f64);
    let integral = (n.powf(1.0 - theta) - m.powf(1.0 - theta)) / (1.0 - theta);
    let slope = |i: f64| -theta * i.powf(-theta - 1.0);
    head + integral + (term(n) - term(m)) / 2.0 + (slope(n) - slope(m)) / 12.0
}

/// A number uniform in 0..1, with 53 bits.
fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(name: &str, records: u64, operations: u64, seed: u64) -> Generator {
        let workload = YcsbWorkload::named(name).unwrap();
        Generator::with(workload.mix, workload.popularity(THETA), records, operations, seed)
    }

    const DRAWS: u64 = 200_000;
    /// Standard deviations that a count may be off: one of a million right runs fails. The seeds are fixed.
    const SIGMAS: f64 = 5.0;

    /// Is a count out of `draws` what a probability makes likely? `slack` is what the closed form itself is off.
    #[track_caller]
    fn likely(count: u64, draws: u64, probability: f64, slack: f64, what: &str) {
        let expected = draws as f64 * probability;
        let bound = SIGMAS * (expected * (1.0 - probability)).sqrt() + slack * expected;
        let off = (count as f64 - expected).abs();
        assert!(off <= bound, "{what}: {count} of {draws}, expected {expected:.1} within {bound:.1}");
    }

    fn kind(operation: YcsbOperation) -> usize {
        match operation {
            YcsbOperation::Read(_) => 0,
            YcsbOperation::Update(_) => 1,
            YcsbOperation::Insert(_) => 2,
            YcsbOperation::Scan { .. } => 3,
            YcsbOperation::ReadModifyWrite(_) => 4,
        }
    }

    #[test]
    fn mixes_are_the_published_ones() {
        // SoCC 2010, table 2, and F of the core package: read, update, insert, scan, read-modify-write.
        let published: [[u8; 5]; 6] = [
            [50, 50, 0, 0, 0],
            [95, 5, 0, 0, 0],
            [100, 0, 0, 0, 0],
            [95, 0, 5, 0, 0],
            [0, 0, 5, 95, 0],
            [50, 0, 0, 0, 50],
        ];
        for (seed, (workload, shares)) in (11..).zip(WORKLOADS[2..].iter().zip(published)) {
            let mut generator = core(workload.name, 1000, DRAWS, seed);
            let mut counts = [0; 5];
            (0..DRAWS).for_each(|_| counts[kind(generator.draw())] += 1);
            for (count, share) in counts.into_iter().zip(shares) {
                likely(count, DRAWS, f64::from(share) / 100.0, 0.0, &format!("{workload:?}, seed {seed}"));
            }
            assert_eq!(generator.records(), 1000 + counts[2], "every insert adds a record");
        }
    }

    #[test]
    fn constants_belong_to_ten_to_the_tenth_ranks() {
        let short = |theta: f64| (1..=200_000u64).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        for theta in [0.9, THETA] {
            assert!((harmonic(200_000, theta) - short(theta)).abs() < 1e-8, "the closed form at {theta}");
        }
        assert!((harmonic(SCRAMBLED_RANKS, THETA) - SCRAMBLED_ZETA).abs() < 1e-8);
        assert!((harmonic(10_000_000_000_000_000, THETA) - SCRAMBLED_ZETA).abs() > 10.0, "not that of 10^16");
    }

    #[test]
    fn ranks_come_as_often_as_zipf_says() {
        for (seed, (ranks, theta)) in
            (21..).zip([(1000, 0.9), (1000, THETA), (SCRAMBLED_RANKS, 0.9), (SCRAMBLED_RANKS, THETA)])
        {
            let zipfian = if ranks == SCRAMBLED_RANKS { Zipfian::scrambled(theta) } else { Zipfian::new(ranks, theta) };
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut heads = [0; 4];
            let edges = [1, 2, 100, ranks / 4];
            for _ in 0..DRAWS {
                let rank = zipfian.rank(unit(&mut rng));
                assert!(rank < ranks);
                edges.iter().zip(&mut heads).for_each(|(&edge, head)| *head += u64::from(rank < edge));
            }
            // The first two ranks are exact. Of the others the method is an approximation, whose largest error lies
            // at the third rank.
            for ((edge, count), slack) in edges.into_iter().zip(heads).zip([0.0, 0.0, 0.02, 0.01]) {
                let share = harmonic(edge, theta) / zipfian.zeta;
                likely(count, DRAWS, share, slack, &format!("ranks below {edge} of {ranks} at {theta}, seed {seed}"));
            }
        }
    }

    #[test]
    fn scrambled_records_are_as_popular_as_their_ranks() {
        let (records, seed) = (1000, 31);
        for theta in [0.9, THETA] {
            let mix = Mix::writes(50);
            let mut generator = Generator::with(mix, Popularity::Zipfian(theta), records, DRAWS, seed);
            let mut counts = vec![0u64; records as usize];
            (0..DRAWS).for_each(|_| counts[generator.record() as usize] += 1);
            let zeta = Zipfian::scrambled(theta).zeta;
            // A record's probability is that of the ranks that lie on it: the first thousands one by one, all others
            // spread evenly.
            let known = 100_000;
            let mut expected = vec![(1.0 - harmonic(known, theta) / zeta) / records as f64; records as usize];
            (0..known).for_each(|r| expected[scatter(r, records) as usize] += ((r + 1) as f64).powf(-theta) / zeta);
            for rank in [0, 1, 50, 500] {
                let record = scatter(rank, records) as usize;
                let what = format!("the record of rank {rank} at {theta}, seed {seed}");
                likely(counts[record], DRAWS, expected[record], if rank < 2 { 0.002 } else { 0.05 }, &what);
            }
        }
    }

    #[test]
    fn ranked_records_have_the_skew_of_their_own_number() {
        // Of 10,000 records the hundredth part that is asked for most: of ranks that follow 1 / r^0.9 nearly half, of ten
        // billion ranks that lie on them much less.
        let share = |popularity| {
            let mut generator = Generator::with(Mix::writes(0), popularity, 10_000, DRAWS, 7);
            let mut counts = vec![0u64; 10_000];
            (0..DRAWS).for_each(|_| counts[generator.record() as usize] += 1);
            counts.sort_unstable();
            counts[9_900..].iter().sum::<u64>() as f64 / DRAWS as f64
        };
        let by_hand = harmonic(100, 0.9) / harmonic(10_000, 0.9);
        let (ranked, scrambled) = (share(Popularity::Ranked(0.9)), share(Popularity::Zipfian(0.9)));
        assert!((ranked / by_hand - 1.0).abs() < 0.05 && scrambled < 0.5 * ranked, "{ranked}, {by_hand}, {scrambled}");
    }

    #[test]
    fn the_latest_are_the_most_popular_while_records_are_added() {
        let (records, seed) = (500, 41);
        let mut generator = core("d", records, DRAWS, seed);
        let (mut newest, mut second, mut reads, mut shares) = (0, 0, 0, (0.0, 0.0));
        let mut zeta = harmonic(records, THETA);
        for _ in 0..DRAWS {
            let there = generator.records();
            match generator.draw() {
                YcsbOperation::Read(record) => {
                    assert!(record < there);
                    reads += 1;
                    newest += u64::from(record == there - 1);
                    second += u64::from(record == there - 2);
                    shares = (shares.0 + 1.0 / zeta, shares.1 + 0.5f64.powf(THETA) / zeta);
                }
                other => {
                    assert_eq!(other, YcsbOperation::Insert(there));
                    zeta += ((there + 1) as f64).powf(-THETA);
                }
            }
        }
        for (count, share) in [(newest, shares.0), (second, shares.1)] {
            likely(count, reads, share / reads as f64, 0.0, &format!("the newest, seed {seed}"));
        }
        let Chooser::Latest(zipfian) = &generator.chooser else { panic!("D reads the latest") };
        assert!((zipfian.zeta - harmonic(generator.records(), THETA)).abs() < 1e-6, "a grown zipfian is a new one");
    }

    #[test]
    fn scans_have_every_length_from_1_to_100_alike() {
        let seed = 51;
        let mut generator = core("e", 1000, DRAWS, seed);
        let (mut lengths, mut scans) = ([0u64; MAX_SCAN as usize + 1], 0);
        for _ in 0..DRAWS {
            let there = generator.records();
            match generator.draw() {
                YcsbOperation::Scan { start, count } => {
                    assert!(start < there, "scans begin at records that are there");
                    lengths[count as usize] += 1;
                    scans += 1;
                }
                YcsbOperation::Insert(record) => assert_eq!(record, there, "new records follow the last"),
                other => panic!("{other:?} is none of E's"),
            }
        }
        assert_eq!(lengths[0], 0);
        (1..=MAX_SCAN).for_each(|n| likely(lengths[n as usize], scans, 0.01, 0.0, &format!("length {n}, seed {seed}")));
    }

    #[test]
    fn uniform_records_come_alike_and_the_seed_decides() {
        let mut generator = Generator::with(Mix::writes(20), Popularity::Uniform, 50, DRAWS, 61);
        let mut counts = [0u64; 50];
        (0..DRAWS).for_each(|_| counts[generator.record() as usize] += 1);
        counts.iter().for_each(|&count| likely(count, DRAWS, 0.02, 0.0, "uniform, seed 61"));
        let draw = |seed| {
            let mut generator = core("e", 100_000, 100, seed);
            (0..100).map(|_| generator.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        for records in [0, 1] {
            let mut one = core("d", records, 0, 3);
            assert!((0..100).all(|_| one.record() == 0));
        }
    }
}
