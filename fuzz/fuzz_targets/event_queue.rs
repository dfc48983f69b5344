//! The event queue beside a heap of time and sequence. Each step is two bytes: how far ahead an event lies, by the bits
//! of its distance and where among those of so many bits, and how many events are taken after it.
#![no_main]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use libfuzzer_sys::fuzz_target;
use remora_model::event::WheelQueue;
use remora_model::time::Ps;

fuzz_target!(|bytes: &[u8]| {
    let (mut queue, mut heap) = (WheelQueue::new(), BinaryHeap::new());
    for (number, step) in (0u32..).zip(bytes.chunks_exact(2)) {
        let (bits, pops) = (u32::from(step[0] % 60), step[1] % 4);
        let ahead = ((1u64 << bits) - 1) & (u64::from(step[1] >> 2) << bits.saturating_sub(6));
        let time = queue.now() + Ps(ahead);
        queue.push(time, number);
        heap.push(Reverse((time, number)));
        for _ in 0..pops {
            take(&mut queue, &mut heap);
        }
        assert_eq!(queue.len(), heap.len());
    }
    while !heap.is_empty() {
        take(&mut queue, &mut heap);
    }
    assert!(queue.is_empty());
});

fn take(queue: &mut WheelQueue<u32>, heap: &mut BinaryHeap<Reverse<(Ps, u32)>>) {
    let expected = heap.pop().map(|Reverse(next)| next);
    assert_eq!(queue.next_time(), expected.map(|(time, _)| time));
    assert_eq!(queue.pop(), expected);
}
