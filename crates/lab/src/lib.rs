//! What measures the product and is no part of it.
//!
//! [`probe`] asks the machine what it gives without Remora; [`mod@bench`] holds Remora's NIC against that in the same run.
//! [`guest`] has clients that take all they may, [`stranger`] forges packets, and [`writer`] changes a node's memory while
//! it is read. [`stats`] is how all measurements are summed up, and [`MeasuredRows`] what an interrupted one leaves. Everything here uses [`remora_real`] as any program does:
//! nothing in the product knows of it.

pub mod bench;
pub mod guest;
pub mod probe;
mod programs;
mod rows;
pub mod stats;
pub mod stranger;
pub mod writer;

pub use programs::{bound, installed};
pub use rows::MeasuredRows;
