//! Prints how fast bytes go in and out of a buffer and a region, beside `memcpy` between private buffers.
//!
//! `cargo run --release -p remora-memory --example copy_speed`

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use remora_memory::{Access, Buffer, Registry};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let registry = Registry::new([0; 32]);
    let pd = registry.alloc_pd();
    println!("{:>8} {:>14} {:>14} {:>14} {:>14}", "bytes", "memcpy", "Buffer::write", "Buffer::read", "check + read");
    for len in [8, 64, 61, 256, 1024, 4096, 65536] {
        let buffer = Buffer::anonymous(len).unwrap();
        let region = registry.register(pd, &buffer, 0, len, None, Access::REMOTE_READ).unwrap();
        let (mut from, mut to) = (vec![1u8; len], vec![0u8; len]);
        let memcpy = best(len, || black_box(&mut to).copy_from_slice(black_box(&from)));
        let write = best(len, || buffer.write(0, black_box(&from)).unwrap());
        let read = best(len, || buffer.read(0, black_box(&mut from)).unwrap());
        let checked = best(len, || {
            let va = black_box(region.va());
            region.check(black_box(pd), va, len as u64, Access::REMOTE_READ).unwrap();
            region.read(va, black_box(&mut from)).unwrap();
        });
        let cell = |ns: f64| format!("{ns:.1} ns {:.0}", len as f64 / ns);
        println!("{len:>8} {:>14} {:>14} {:>14} {:>14}", cell(memcpy), cell(write), cell(read), cell(checked));
    }
    println!("each: time of one call, and GB/s");
}

/// Nanoseconds of one call: the best of several rounds.
fn best(len: usize, mut call: impl FnMut()) -> f64 {
    let calls = (1 << 22) / len.max(64) as u32;
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        call();
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    (0..20).map(|_| round(&mut || (0..calls).for_each(|_| call()))).fold(f64::INFINITY, f64::min)
}
