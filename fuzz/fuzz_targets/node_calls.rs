//! Calls to a node itself, of clients that come and go: memory, sketches, modules.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_real::sequences::Calls;

thread_local!(static CALLS: Calls = Calls::new().expect("a device without links"));

fuzz_target!(|bytes: &[u8]| CALLS.with(|calls| calls.run(bytes)));
