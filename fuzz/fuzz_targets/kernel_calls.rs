//! Built-in kernels over registered memory, with any parameters and payload.
#![no_main]

#[path = "../../crates/kernel/tests/common/calls.rs"]
mod calls;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| calls::drive(bytes));
