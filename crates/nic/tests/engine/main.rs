//! The engine, held to the specification: two of them, or one and packets made by hand, in virtual time. One program, as each
//! that is built by itself compiles the engine's generic parts anew.

#[path = "../common/mod.rs"]
mod common;

mod against_strangers;
mod attributes;
mod captures;
mod congestion;
mod errors;
mod faults;
mod forged;
mod goodput;
mod in_place;
mod landing;
mod leases;
mod multicast;
mod patience;
mod plain;
mod psn;
mod random_ops;
mod referred;
mod rpc;
mod scale;
mod taps;
mod turns;
mod unreliable;
mod verbs;
mod windows;
