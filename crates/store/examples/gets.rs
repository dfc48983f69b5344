//! Prints how many GETs a second one core reaches on a hash table, by the number in flight; or by one number alone, for
//! profilers.
//!
//! `cargo run --release -p remora-store --example gets [MEGABYTES [IN_FLIGHT]]`

use remora_store::bench::{GetBench, GetRow, Way};

/// Rounds, of which the best counts: other work on the machine only ever slows one down.
const ROUNDS: usize = 12;

#[allow(clippy::disallowed_methods, reason = "an example is a world: it has a clock")]
fn main() {
    let megabytes = std::env::args().nth(1).map_or(1024, |arg| arg.parse().expect("a number of megabytes"));
    let bench = GetBench::new(megabytes << 20, 1).expect("a table");
    let start = std::time::Instant::now();
    let only = std::env::args().nth(2).map(|arg| arg.parse().expect("a number in flight"));
    let now = || start.elapsed().as_nanos() as u64;
    let run = || match only {
        Some(in_flight) => vec![bench.measure(Way::Calls(in_flight), 400_000, now)],
        None => bench.run(400_000, now),
    };
    let mut best: Vec<GetRow> = run();
    for rows in (1..ROUNDS).map(|_| run()) {
        for (best, row) in best.iter_mut().zip(rows) {
            *best = if row.ns_per_op < best.ns_per_op { row } else { *best };
        }
    }
    println!("{megabytes} MB of hash table on {:?} pages, best of {ROUNDS} rounds", bench.page_kind());
    println!("{:>10} {:>10} {:>10}", "in flight", "M GET/s", "ns/GET");
    for row in best {
        println!("{:>10} {:>10.1} {:>10.1}", row.way.to_string(), row.ops_per_s / 1e6, row.ns_per_op);
    }
}
