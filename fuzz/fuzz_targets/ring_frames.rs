//! A peer that writes what it likes into the memory of a pair of rings: words anywhere, between pushes and polls of the
//! side that keeps to the rules. It ends with an error or goes on, and stays within its memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_memory::Buffer;
use remora_ring::{Notify, Receiver, RingEnd, RingShape, RingWrite, Sender};

fuzz_target!(|steps: Vec<(u8, u16, u64)>| {
    let shape = RingShape::new(8, 64).expect("a shape");
    let memory = |len: usize| Buffer::from_boxed(vec![0; len].into());
    let ring = memory(shape.memory());
    let notify = if steps.len().is_multiple_of(2) { Notify::Ring } else { Notify::Pointer };
    let mut end = RingEnd::new(Sender::new(shape, memory(shape.bytes())), Receiver::new(shape, ring.clone()), notify);
    let mut out = Vec::new();
    for (kind, at, word) in steps {
        match kind % 4 {
            0 => ring.store_u64(usize::from(at) * 8 % shape.memory(), word).expect("in bounds"),
            1 => {
                let message = vec![at as u8; usize::from(at) % 600];
                if end.push(&[&message]).is_err() {
                    return;
                }
            }
            2 => match end.poll(&mut out) {
                Ok(_) => assert!(out.len() <= shape.longest()),
                Err(_) => return,
            },
            _ => {
                while let Some(write) = end.poll_write() {
                    if let RingWrite::Frames(range) = write {
                        assert!(range.start < range.end && range.end <= shape.bytes());
                    }
                }
                let _ = end.receiver().arrived(word as u32);
            }
        }
    }
});
