//! Prints how many look-ups, scans, updates and inserts a second one core reaches on a B-tree; or of one kind alone, for profilers.
//!
//! `cargo run --release -p remora-store --example trees [KEYS [KEY_BYTES [KIND [ROUNDS [IN_FLIGHT [NODE_BYTES]]]]]]`,
//! with 0 bytes for keys that are numbers, and all kinds for an empty one

use remora_kernel::btree::Shape;
use remora_store::bench_tree::{Keys, TreeBench, Work};
use remora_store::hash::mix;

/// Operations of a round; of scans an eighth.
const ROUND: u64 = 1 << 18;

#[allow(clippy::disallowed_methods, reason = "an example is a world: it has a clock")]
fn main() {
    let arg = |n: usize| std::env::args().nth(n);
    let number = |n, otherwise| arg(n).map_or(otherwise, |arg| arg.parse().expect("a number"));
    let (keys, rounds) = (number(1, 10_000_000), number(4, 8));
    let bytes = Some(number(2, 0) as usize).filter(|bytes| *bytes > 0);
    let (in_flight, node_bytes) = (number(5, 16) as usize, number(6, 512) as usize);
    let shape = Shape { node_bytes, fill: 90 };
    let bench = TreeBench::new(shape, Keys::Dense, keys, rounds * ROUND, bytes).expect("a tree");
    let start = std::time::Instant::now();
    let mut inserted = keys;
    for (what, work) in
        [("look-up", Work::Get), ("scan of 100", Work::Scan(100)), ("update", Work::Update), ("insert", Work::Insert)]
    {
        if arg(3).is_some_and(|only| !what.starts_with(&*only)) {
            continue;
        }
        let mut best = f64::INFINITY;
        for round in 0..rounds {
            let count = if matches!(work, Work::Scan(_)) { ROUND / 8 } else { ROUND };
            let drawn: Vec<u64> = match work {
                Work::Insert => (0..count).map(|i| inserted + (i.wrapping_mul(0x9e37_79b1) & (count - 1))).collect(),
                _ => (0..count).map(|i| mix(round << 32 | i) % (keys - 100)).collect(),
            };
            inserted += if work == Work::Insert { count } else { 0 };
            let before = start.elapsed();
            bench.run(work, in_flight, &drawn);
            best = best.min((start.elapsed() - before).as_nanos() as f64 / count as f64);
        }
        println!("{what:<12} {:>8.2} M/s {best:>8.1} ns", 1e3 / best);
    }
}
