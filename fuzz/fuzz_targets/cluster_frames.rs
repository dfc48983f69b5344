//! Any bytes as what clients and nodes of a cluster say to each other: what is understood is written back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| remora_cluster::fuzz(bytes));
