//! The event queue allocates nothing per event once as many events have waited as ever will.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use remora_model::event::WheelQueue;
use remora_model::time::Ps;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all work is the system allocator's; counting touches a thread-local without a destructor and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is handed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System.alloc` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(run: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    run();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn a_warm_queue_does_not_allocate() {
    let mut queue = WheelQueue::with_capacity(1000);
    let mut random = 1u64;
    let made = allocations(|| {
        for number in 0..200_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // From a picosecond to minutes: all levels and the overflow.
            let ahead = (random >> 16) >> (random >> 58).clamp(1, 47);
            queue.push(queue.now() + Ps(ahead), number);
            if number >= 999 {
                assert!(queue.pop().is_some());
            }
        }
    });
    assert_eq!((made, queue.len()), (0, 999));
}
