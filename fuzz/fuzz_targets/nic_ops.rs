//! Two NIC engines, driven by sequences of operations, packets and faults.
#![no_main]

#[path = "../../crates/nic/tests/common/ops.rs"]
mod ops;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| ops::drive(bytes));
