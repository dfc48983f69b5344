//! Serving calls allocates nothing once the buffers have been used.

use remora_kernel::embed::{Element, EmbedRequest, EmbedTable, Reduction};
use remora_kernel::hll::Tap;
use remora_kernel::{Bucket, Call, ENTRY_BYTES, GetParams, Limits, Runner, Status, TableEntry, host_runner, op};
use remora_memory::{Access, Buffer, Registry};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CAPACITY: usize = 64;

/// Serves `calls` once each, in batches; hands each back with its status.
fn serve(runner: &mut dyn Runner, calls: &mut Vec<Call>, done: &mut Vec<(Call, Status)>) {
    loop {
        while let Some(call) = calls.pop() {
            if let Err(call) = runner.start(call) {
                calls.push(call);
                break;
            }
        }
        if runner.in_flight() == 0 {
            return;
        }
        runner.poll(&mut |call, status| done.push((call, status)));
    }
}

#[test]
fn calls_allocate_nothing_after_set_up() {
    let registry = Arc::new(Registry::new([1; 32]));
    let pd = registry.alloc_pd();
    let buffer = Buffer::from_boxed(vec![0; 4096].into());
    let region = registry.register(pd, &buffer, 0, 4096, Some(4096), Access::REMOTE_READ).unwrap();
    let bucket = |key| Bucket { key, value: 4096 + 1024 + 64 * key, len: 64 };
    let entry = TableEntry { buckets: [bucket(0), bucket(1), bucket(2)], next: 0 };
    assert_eq!(entry.encode().len(), ENTRY_BYTES);
    region.write(4096, &entry.encode()).unwrap();

    let mut runner = host_runner(registry.clone(), true, CAPACITY, Limits::default());
    let mut calls: Vec<Call> = (0..2 * CAPACITY).map(|_| Call::default()).collect();
    let mut done = Vec::with_capacity(calls.len());
    let mut counts = Vec::with_capacity(4);
    let rows: Vec<u32> = (0..100).map(|row| row % 64).collect();
    for round in 0..4 {
        let before = ALLOCATIONS.get();
        for (i, call) in calls.iter_mut().enumerate() {
            if i % 8 == 4 {
                call.recycle(op::EMBED, 64);
                let table = EmbedTable { base: 4096, key: region.key(), rows: 64, dim: 16, element: Element::F32 };
                let request = EmbedRequest { table, reduction: Reduction::Sum, rows: &rows, numbers: &[], items: 100 };
                request.encode(&mut call.params);
            } else if i % 8 == 0 {
                call.recycle(op::CHECKSUM, 16);
                assert!(call.open_stream(256).push(&[7; 200], true));
            } else {
                call.recycle(op::GET, 64);
                let key = i as u64 % 4;
                let params =
                    GetParams { entries: 4096, key, index: 0, entries_key: region.key(), values_key: region.key() };
                call.params.extend_from_slice(&params.encode());
            }
            call.pd = Some(pd);
            call.tag = i as u64;
        }
        serve(&mut *runner, &mut calls, &mut done);
        for (call, status) in done.drain(..) {
            let hit = call.op != op::GET || call.tag % 4 < 3;
            assert_eq!(status, if hit { Status::Ok } else { Status::NotFound }, "round {round}");
            calls.push(call);
        }
        // Each buffer to the use that the first round sized it for.
        calls.sort_unstable_by_key(|call| call.tag);
        counts.push(ALLOCATIONS.get() - before);
    }
    assert_eq!(counts[1..], [0; 3], "allocations by round: {counts:?}");
}

#[test]
fn sketching_what_passes_by_allocates_nothing() {
    let registry = Registry::new([2; 32]);
    let pd = registry.alloc_pd();
    let buffer = Buffer::from_boxed(vec![0; 4096].into());
    let region = registry.register(pd, &buffer, 0, 4096, Some(0), Access::all()).unwrap();
    let mut tap = Tap::new(region, 0, 12).unwrap();
    let packet: Vec<u8> = (0..512u64).flat_map(|i| remora_kernel::shuffle::hash(i).to_le_bytes()).collect();
    let before = ALLOCATIONS.get();
    for offset in 0..64 {
        tap.saw(offset, &packet);
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
