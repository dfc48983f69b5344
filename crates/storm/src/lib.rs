//! The storm world: whole clusters of engines under seeded faults, the checks of their histories, and exhaustive
//! checking of small cases.

pub mod disk;
pub mod engine;
pub mod events;
pub mod linear;
pub mod net;
pub mod rng;
