//! How fast one core partitions and sketches, beside a plain copy: `cargo run --release -p remora-kernel --example
//! stream_speed`.

use remora_kernel::hll::{HllParams, Sketch};
use remora_kernel::shuffle::{Partition, Partitioner, ShuffleParams};
use remora_kernel::{Call, Limits, Status, host_runner, op};
use remora_memory::{Access, Buffer, Registry, stream_fence};
use std::sync::Arc;
use std::time::Instant;

const VALUES: usize = 4 << 20;
const PIECE: usize = 64 << 10;
const ROUNDS: usize = 9;

fn main() {
    let data = values();
    let mut copy = vec![1u8; data.len()];
    report("copy in pieces of 64 KB", || {
        copy.chunks_mut(PIECE).zip(data.chunks(PIECE)).for_each(|(to, from)| to.copy_from_slice(from));
    });
    let registry = Arc::new(Registry::new([1; 32]));
    let pd = registry.alloc_pd();
    let len = 2 * data.len();
    let buffer = Buffer::anonymous(len).expect("memory");
    buffer.fill(0, len, 1).expect("in bounds");
    let region = registry.register(pd, &buffer, 0, len, None, Access::all()).expect("region");
    for bits in [4, 6, 8, 10] {
        let room = (VALUES >> bits) * 5 / 4;
        let partitions: Vec<Partition> = (0..1u64 << bits)
            .map(|i| Partition { va: region.va() + i * (room as u64 * 8).next_multiple_of(64), values: room as u32 })
            .collect();
        for (hashed, gather) in [(false, 64), (false, 16), (true, 64)] {
            report(&format!("{} partitions, runs of {gather}, hashed {hashed}", 1 << bits), || {
                let mut partitioner = Partitioner::with_runs(hashed, &partitions, gather).expect("partitions");
                for mut piece in data.chunks(PIECE) {
                    while let Some(at) = partitioner.push(&mut piece) {
                        let run = partitioner.run(at).expect("room").expect("a run");
                        region.write_streamed(run.va, run.bytes).expect("within the region");
                    }
                }
                stream_fence();
            });
        }
        let params = ShuffleParams { bits, hashed: false, key: region.key() }.encode(&partitions);
        report(&format!("{} partitions, as a kernel", 1 << bits), || run(&registry, pd, op::SHUFFLE, &params, &data));
    }
    let mut sketch = Sketch::new(14).expect("precision");
    report("sketch of 2^14 registers", || sketch.insert_all(&data));
    let params = HllParams { lg_k: 14, want_image: false, payload_is_image: false, registers: None }.encode();
    report("sketch, as a kernel", || run(&registry, pd, op::HYPERLOGLOG, &params, &data));
    report("CRC-64", || {
        std::hint::black_box(remora_kernel::crc64(&data));
    });
}

fn values() -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..VALUES).flat_map(|_| next().to_le_bytes()).collect()
}

/// One call with the payload in pieces.
fn run(registry: &Arc<Registry>, pd: remora_memory::Pd, op: u64, params: &[u8], payload: &[u8]) {
    let mut runner = host_runner(registry.clone(), true, 1, Limits::default());
    let mut call = Call::new(op, params, 1 << 16);
    call.pd = Some(pd);
    let mut feed = call.open_stream(PIECE);
    assert!(runner.start(call).is_ok());
    let mut pieces = payload.chunks(PIECE).peekable();
    let mut status = None;
    while status.is_none() {
        if let Some(piece) = pieces.peek()
            && feed.push(piece, pieces.len() == 1)
        {
            pieces.next();
        }
        runner.poll(&mut |_, end| status = Some(end));
    }
    assert_eq!(status, Some(Status::Ok));
}

fn report(what: &str, mut work: impl FnMut()) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let rate = |time: f64| (8 * VALUES) as f64 / time / 1e9;
    println!("{what:46} median {:6.2} GB/s, best {:6.2}", rate(times[ROUNDS / 2]), rate(times[0]));
}
