//! What happens when all instances together have no more memory. In a process of its own: they share it.

use std::sync::Arc;

use remora_kernel::{Call, Limits, Status};
use remora_memory::Registry;
use remora_wasm::{Isolation, KernelSet, ModuleLimits};

/// Starts with 64 MB and spins until its fuel is used up.
const LARGE: &str = r#"(module
  (memory (export "memory") 1024)
  (global (export "params") i32 (i32.const 1024))
  (func (export "run") (param i32) (result i32) (loop $l (br $l)) (i32.const 0)))"#;

/// All have 2 GB: of calls with 64 MB each 32 run at once, and the others are told to try again.
#[test]
fn calls_beyond_the_memory_of_all_are_turned_away_and_later_ones_are_not() {
    let (kernels, registry) = (KernelSet::default(), Arc::new(Registry::new([9; 32])));
    let limits = ModuleLimits { fuel: 50_000, memory: ModuleLimits::MAX.memory, ..ModuleLimits::default() };
    let op = kernels.deploy("large", &wat::parse_str(LARGE).unwrap(), limits, Isolation::Fresh).unwrap().op;
    let mut runner = remora_wasm::host_runner(kernels, registry.clone(), true, 64, Limits::default());
    let pd = registry.alloc_pd();
    for _ in 0..2 {
        for _ in 0..48 {
            let mut call = Call::new(op, &[], 8);
            call.pd = Some(pd);
            runner.start(call).unwrap();
        }
        let (mut ran, mut busy) = (0, 0);
        while runner.in_flight() > 0 {
            runner.poll(&mut |_, status| match status {
                Status::StepLimit => ran += 1,
                Status::Busy => busy += 1,
                other => panic!("{other:?}"),
            });
        }
        assert!((1..=32).contains(&ran) && ran + busy == 48, "{ran} ran, {busy} were turned away");
    }
}
