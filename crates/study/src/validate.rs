//! The comparison of this machine, predicted from probes and measured beside it.
//!
//! A prediction takes what [`crate::probe`] measured of the software NIC with lists of its own, all in cache, alone and
//! beside a writer that writes elsewhere, and of memory, and puts each operation together from that. Nothing that the
//! comparison itself measures goes into it.

mod judge;
mod page;
mod predict;
mod rounds;

pub use judge::{Cell, RULE, Validation, Winner, judge};
pub use page::page;
pub use predict::{Data, Prediction, predict};
pub use rounds::{MOVED, Round, is_steady, rounds};

/// The goal for the median error of latency.
pub const GOAL: f64 = 0.15;

/// What the prediction leaves out, a line each.
pub const LEFT_OUT: [&str; 5] = [
    "the scheduler: which threads share a core is what it was when the probe ran, and a neighbour may take one",
    "a writer that loses its core half-way through an object: readers then try until it goes on",
    "percentiles: the prediction is of the median alone and of the mean rate with 64 in flight",
    "cache lines that the client's own checks of results push out",
    "which of the two cores limits the rate: loads of the node's engine are taken to be hidden behind the client's work",
];
