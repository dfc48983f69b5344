//! Prints what partitioning costs beside copies, and what bounds it: how long its parts take in the first-level cache.
//!
//! `cargo run --release -p remora-memory --example partition_speed`

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use remora_memory::{Access, Buffer, Registry, Scatter};
use std::hint::black_box;
use std::time::Instant;

/// Values of 8 bytes, 20 MB.
const VALUES: usize = 20 << 17;
const PLACES: usize = 256;
/// Values at a time, 64 KB.
const PIECE: usize = 8192;

fn main() {
    let values: Vec<u64> = (0..VALUES as u64).map(mix).collect();
    let piece: &[u64; PIECE] = values.first_chunk().unwrap();
    let (mut lines, mut counters) = (Box::new([0u64; 8 * PLACES]), Box::new([0u32; PLACES]));
    let often = VALUES / PIECE;
    let row = |what: &str, ns: f64| println!("{what:<58} {ns:>6.2} ns a value {:>6.1} GB/s", 8.0 / ns);

    println!("copies");
    let copy = copied(40 << 20, 40);
    row("memcpy over 40 MB, over and over", copy);
    row("memcpy over 512 MB: from memory to memory", copied(512 << 20, 1));
    println!("in the first-level cache, {PLACES} places of a line each");
    row(
        "its value to a line of each place",
        best(|| {
            for _ in 0..often {
                for (i, value) in black_box(piece).iter().enumerate() {
                    lines[*value as usize % PLACES * 8 + i % 8] = *value;
                }
                black_box(&mut lines);
            }
        }),
    );
    row(
        "its counter",
        best(|| {
            for _ in 0..often {
                for value in black_box(piece) {
                    counters[*value as usize % PLACES] += 1;
                }
                black_box(&mut counters);
            }
        }),
    );
    row(
        "both",
        best(|| {
            for _ in 0..often {
                for (i, value) in black_box(piece).iter().enumerate() {
                    lines[*value as usize % PLACES * 8 + i % 8] = *value;
                    counters[*value as usize % PLACES] += 1;
                }
                black_box((&mut lines, &mut counters));
            }
        }),
    );
    let bound = best(|| {
        for _ in 0..often {
            for value in black_box(piece) {
                let counter = &mut counters[*value as usize % PLACES];
                lines[*value as usize % PLACES * 8 + *counter as usize % 8] = *value;
                *counter += 1;
            }
            black_box((&mut lines, &mut counters));
        }
    });
    row("the value where its counter says, and the counter", bound);
    println!("in memory");
    row("partitioned by `Scatter`", partitioned(&values));
    println!("In cache alone partitioning has {:.2} of that memcpy's speed.", copy / bound);
}

/// Nanoseconds a value of the best of many passes over all values.
fn best(mut pass: impl FnMut()) -> f64 {
    let round = |pass: &mut dyn FnMut()| {
        let start = Instant::now();
        pass();
        start.elapsed().as_nanos() as f64 / VALUES as f64
    };
    (0..20).map(|_| round(&mut pass)).fold(f64::INFINITY, f64::min)
}

/// Half of `bytes` to the other half so many times in a row: nanoseconds for 8 bytes, the median of some rounds.
fn copied(bytes: usize, times: usize) -> f64 {
    let (from, mut to) = (vec![1u8; bytes / 2], vec![2u8; bytes / 2]);
    median(|| {
        let start = Instant::now();
        for _ in 0..times {
            for (to, from) in to.chunks_mut(8 * PIECE).zip(from.chunks(8 * PIECE)) {
                black_box(to).copy_from_slice(black_box(from));
            }
        }
        start.elapsed().as_nanos() as f64 / (times * bytes / 16) as f64
    })
}

/// Nanoseconds a value, the median of some rounds.
fn partitioned(values: &[u64]) -> f64 {
    let mut sizes = [0u32; PLACES];
    values.iter().for_each(|value| sizes[*value as usize % PLACES] += 1);
    let len = 8 * (VALUES + 8 * PLACES);
    let buffer = Buffer::anonymous(len).unwrap();
    let registry = Registry::new([0; 32]);
    let region = registry.register(registry.alloc_pd(), &buffer, 0, len, None, Access::all()).unwrap();
    let mut va = region.va();
    let places = sizes.map(|size| {
        let at = va;
        va += (8 * u64::from(size)).next_multiple_of(64);
        (at, size)
    });
    let bytes: Vec<[u8; 8]> = values.iter().map(|value| value.to_le_bytes()).collect();
    median(|| {
        let mut scatter = Scatter::new(region.clone(), &places).unwrap();
        let start = Instant::now();
        for piece in bytes.chunks(PIECE) {
            assert!(scatter.put(piece).unwrap());
        }
        assert!(scatter.finish().unwrap());
        start.elapsed().as_nanos() as f64 / VALUES as f64
    })
}

/// After a round that pays for page faults.
fn median(mut round: impl FnMut() -> f64) -> f64 {
    round();
    let mut rounds: Vec<f64> = (0..15).map(|_| round()).collect();
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// The finalizer of MurmurHash3, of a Weyl sequence.
fn mix(n: u64) -> u64 {
    let mut value = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}
