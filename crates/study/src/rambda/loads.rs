//! What clients of RAMBDA's three services ask.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_model::platform::Platform;
use remora_model::ring_server::{RingAccess, RingLoad, RingRequest};
use remora_model::time::Ps;

use crate::workload::below;
use crate::ycsb::{Generator, Mix, Popularity, YcsbOperation};

/// Nodes of the list, a line each (section VI-A).
const NODES: u64 = 10_000_000;

/// Walks of a permuted list: a node, and two that follow.
pub struct Walks(ChaCha8Rng);

impl Walks {
    /// All walks begin anywhere.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }
}

impl RingLoad for Walks {
    fn next(&mut self, request: &mut RingRequest) {
        (request.request, request.reply) = (16, 16);
        for _ in 0..3 {
            request.accesses.push(RingAccess::read(below(&mut self.0, NODES) * 64, 64));
        }
    }
}

/// GETs and PUTs of a key-value store: a GET has three accesses, a PUT four (section IV-A).
pub struct Store {
    generator: Generator,
    hash: Ps,
    records: u64,
}

impl Store {
    /// The model's store, and each cache of it, is so much smaller than the paper's 100 M pairs: parts of it that fit stay
    /// what they are.
    pub const SCALE: u64 = 16;
    /// Bytes of what the card keeps as one: a pair with its entry, of 100 M in 7 GB.
    pub const TOGETHER: u64 = 64;
    const PAIRS: u64 = 100_000_000 / Self::SCALE;

    /// Of pairs of 64 B.
    pub fn new(platform: &Platform, zipfian: bool, puts: u64, seed: u64) -> Self {
        let popularity = if zipfian { Popularity::Ranked(0.9) } else { Popularity::Uniform };
        let mix = Mix::writes(puts.min(100) as u8);
        let hash = Ps(platform.ring_server.as_ref().map_or(0, |costs| costs.hash));
        Self { generator: Generator::with(mix, popularity, Self::PAIRS, 1, seed), hash, records: Self::PAIRS }
    }
}

impl RingLoad for Store {
    fn next(&mut self, request: &mut RingRequest) {
        let (key, puts) = match self.generator.draw() {
            YcsbOperation::Update(key) => (key, true),
            YcsbOperation::Read(key) | YcsbOperation::Insert(key) | YcsbOperation::ReadModifyWrite(key) => (key, false),
            YcsbOperation::Scan { start, .. } => (start, false),
        };
        request.compute = self.hash;
        // A key's hash and the operation, with the pair where it is put; a value and a status, or that alone.
        (request.request, request.reply) = if puts { (24 + 64, 8) } else { (24, 72) };
        // Seven entries a bucket, then the pair, whose header is read first.
        let (bucket, pair) = (key / 7 * 64, (self.records + key) * 64);
        request.accesses.push(RingAccess::read(bucket, 64));
        request.accesses.push(RingAccess::read(pair, 16));
        request.accesses.push(if puts { RingAccess::write(pair, 64) } else { RingAccess::read(pair, 64) });
        if puts {
            request.accesses.push(RingAccess::write(bucket, 8));
        }
    }
}

/// Queries of a recommender: rows of 64 floats, summed up (section IV-C) while others are on their way. How many items a query has, and how they occur
/// together, stands in no text: lengths are lognormal about a mean, and of the items that memoization groups a part is
/// replaced by half as many sums.
pub struct Rows {
    rng: ChaCha8Rng,
    mean: f64,
    memoized: bool,
    /// Whether all accesses of a query may go on at once: else so many, and then the next.
    wide: bool,
}

impl Rows {
    /// Bytes of a row, and rows of a table.
    const ROW: u64 = 256;
    const ROWS: u64 = 2_000_000;
    /// Accesses of lines that the accelerator issues in an iteration (section IV-C).
    const ITERATION: u64 = 64;
    /// Standard deviation of the logarithm of a query's length.
    const SIGMA: f64 = 0.5;
    /// The part of the rows of a query that sums of groups save.
    const SAVED: f64 = 0.3;

    /// Queries about so many items.
    pub fn new(mean: u64, memoized: bool, wide: bool, seed: u64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed), mean: mean as f64, memoized, wide }
    }

    /// A normally distributed number, by the sum of twelve uniform ones.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }
}

impl RingLoad for Rows {
    fn next(&mut self, request: &mut RingRequest) {
        let scale = self.mean / (Self::SIGMA * Self::SIGMA / 2.0).exp();
        let items = scale * (Self::SIGMA * self.normal()).exp();
        let rows = if self.memoized { items * (1.0 - Self::SAVED) } else { items };
        let rows = (rows.round() as u64).clamp(1, 400);
        (request.request, request.reply) = (4 * items as u64, Self::ROW);
        let each = if self.wide { rows } else { Self::ITERATION * 64 / Self::ROW };
        for row in 0..rows {
            let address = below(&mut self.rng, Self::ROWS) * Self::ROW;
            request.accesses.push(RingAccess { together: row % each != 0, ..RingAccess::read(address, Self::ROW) });
        }
    }
}
