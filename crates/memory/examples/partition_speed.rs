//! Prints what partitioning costs beside copies, and how much of that is not the memory: the same in the caches alone.
//!
//! `cargo run --release -p remora-memory --example partition_speed`

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use remora_memory::{Access, Buffer, Region, Registry, Scatter};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// Values of 8 bytes, 20 MB.
const VALUES: usize = 20 << 17;
const PLACES: usize = 256;
const WORDS: usize = 8 * PLACES;
/// Values at a time, 64 KB.
const PIECE: usize = 8192;

fn main() {
    let values: Vec<u64> = (0..VALUES as u64).map(mix).collect();
    let row = |what: &str, ns: f64| println!("{what:<58} {ns:>6.2} ns a value {:>6.1} GB/s", 8.0 / ns);

    println!("copies");
    row("memcpy over 40 MB, over and over", copied(40 << 20, 40));
    row("memcpy over 512 MB: from memory to memory", copied(512 << 20, 1));

    println!("in the first-level cache");
    let (mut words, mut counters) = (Box::new([0u64; WORDS]), Box::new([0u32; PLACES]));
    let piece: &[u64; PIECE] = values.first_chunk().unwrap();
    row(
        "a value to a word of 16 KB, a line for each place",
        best(PIECE, || {
            black_box(piece).iter().for_each(|value| words[word(*value)] = *value);
            black_box(&mut words);
        }),
    );
    row(
        "its place's counter",
        best(PIECE, || {
            black_box(piece).iter().for_each(|value| counters[place(*value)] += 1);
            black_box(&mut counters);
        }),
    );
    row(
        "both",
        best(PIECE, || {
            for value in black_box(piece) {
                words[word(*value)] = *value;
                counters[place(*value)] += 1;
            }
            black_box((&mut words, &mut counters));
        }),
    );

    println!("partitioned, {PLACES} places");
    let (region, places) = places_for(&values);
    let values: Vec<[u8; 8]> = values.into_iter().map(u64::to_le_bytes).collect();
    let some = &values[..4 * PIECE];
    row("256 KB over and over: in the second-level cache", best(some.len(), || partition(&region, &places, some)));
    row(
        "20 MB: from memory to memory",
        median(|| {
            let start = Instant::now();
            partition(&region, &places, &values);
            start.elapsed().as_nanos() as f64 / VALUES as f64
        }),
    );
}

fn place(value: u64) -> usize {
    value as usize % PLACES
}

fn word(value: u64) -> usize {
    (value >> 32) as usize % WORDS
}

/// Nanoseconds a value of passes over so many: the best of some rounds.
fn best(values: usize, mut pass: impl FnMut()) -> f64 {
    const PASSES: usize = 200;
    let mut round = || {
        let start = Instant::now();
        (0..PASSES).for_each(|_| pass());
        start.elapsed().as_nanos() as f64 / (PASSES * values) as f64
    };
    (0..20).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Half of `bytes` to the other half so many times in a row: nanoseconds for 8 bytes.
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

/// Memory for as many values, and where those of each place go.
fn places_for(values: &[u64]) -> (Arc<Region>, [(u64, u32); PLACES]) {
    let mut sizes = [0u32; PLACES];
    values.iter().for_each(|value| sizes[place(*value)] += 1);
    let len = 8 * (values.len() + 8 * PLACES);
    let buffer = Buffer::anonymous(len).unwrap();
    let registry = Registry::new([0; 32]);
    let region = registry.register(registry.alloc_pd(), &buffer, 0, len, None, Access::all()).unwrap();
    let mut va = region.va();
    let places = sizes.map(|size| {
        let at = va;
        va += (8 * u64::from(size)).next_multiple_of(64);
        (at, size)
    });
    (region, places)
}

fn partition(region: &Arc<Region>, places: &[(u64, u32)], values: &[[u8; 8]]) {
    let mut scatter = Scatter::new(region.clone(), places).unwrap();
    assert!(values.chunks(PIECE).all(|piece| scatter.put(piece).unwrap()));
    assert!(scatter.finish().unwrap());
}

/// The median of some rounds after one that pays for page faults.
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
