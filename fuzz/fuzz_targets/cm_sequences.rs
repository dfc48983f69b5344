//! What a stranger may forge, message after message with time between, against two connection managers that keep honest
//! connections: those never end, and memory is bounded.
#![no_main]

#[path = "../../crates/nic/tests/common/strangers.rs"]
mod strangers;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| strangers::drive(bytes));
