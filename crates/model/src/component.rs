//! Hardware, one component a file: what shared things it has, and when a request that arrives then is done.
//!
//! A component is made of plain parameters, whose names end in their units where they have any: `_ps` picoseconds,
//! `_bytes` bytes, `_bytes_per_s` bytes a second, `_hz` hertz. Those that a platform file has come from its section by
//! `From`. Its methods take the time at which a request arrives and return times at once, by reservation (see
//! [`crate::resource`]); it has no clock, no events and no randomness but what a seed decides. `usage` says how busy each of its shared things
//! was over a span of time, `reset` starts counting anew.

pub mod cache;
pub mod coherent;
pub mod controller;
pub mod core;
pub mod cpoll;
pub mod cxl;
pub mod device_writes;
pub mod disk;
pub mod dram_cache;
pub mod ethernet;
pub mod hierarchy;
pub mod jitter;
pub mod memory;
pub mod memory_device;
pub mod nic;
pub mod nic_cores;
pub mod nic_state;
pub mod nvm;
pub mod pcie;
pub mod poller;
pub mod socket;
pub mod sq_handler;
pub mod switch;
pub mod tcp;
