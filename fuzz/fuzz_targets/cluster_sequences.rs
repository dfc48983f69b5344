//! Any bytes as a sequence of what clients, the network, disks and crashes may do to three nodes of a cluster.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| remora_replica::sequences::run(bytes));
