//! The storm world: whole clusters of engines under seeded faults, the checks of their histories, and exhaustive
//! checking of small cases.

pub mod carriage;
pub mod chain;
pub mod check;
mod clients;
mod clock;
pub mod cluster;
pub mod disk;
pub mod durability;
pub mod engine;
pub mod events;
pub mod export;
mod faults;
pub mod history;
pub mod linear;
pub mod minos;
pub mod nemesis;
pub mod net;
pub mod rack;
pub mod rng;
mod search;
pub mod shard;
mod shown;
pub mod shrink;
pub mod story;
pub mod totals;
#[cfg(test)]
mod toy;
mod turns;
mod values;
pub mod workload;
