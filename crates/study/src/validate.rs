//! The comparison of this machine, predicted from probes and measured beside it.
//!
//! A prediction takes what [`crate::probe`] measured of the software NIC with lists of its own, all in cache, alone and
//! beside a writer that writes elsewhere, and of memory, and puts each operation together from that. Nothing that the
//! comparison itself measures goes into it; what its client does by itself for a call, with nothing sent, is measured apart.

mod earlier;
mod judge;
mod page;
mod predict;
mod rounds;
mod systems;

pub use earlier::{Earlier, Moved};
pub use judge::{Cell, RULE, Validation, Way, Winner, judge, median_error};
pub use page::page;
#[cfg(test)]
pub(crate) use predict::tests::{machine as round_machine, machine_with};
pub use predict::{Data, Prediction, predict};
pub use rounds::{MOVED, Round, rounds};
pub use systems::{System, SystemCell, SystemMeasured, Systems, put_together};

/// The goals for the median errors: of latency, of its 99th percentile, of the rate with 64 in flight.
pub const GOAL: f64 = 0.1;
/// See [`GOAL`].
pub const TAIL_GOAL: f64 = 0.3;
/// See [`GOAL`].
pub const RATE_GOAL: f64 = 0.1;

/// What the prediction leaves out, a line each.
pub const LEFT_OUT: [&str; 5] = [
    "what else runs: client and node have cores of their own, and a neighbour may take one",
    "a writer that loses its core half-way through an object: readers then try until it goes on",
    "percentiles with 64 in flight, and what other operations' tails have that the probe's calls have not",
    "cache lines that the client's own checks of results push out",
    "which of the two cores limits the rate: loads of the node's engine are taken to be hidden behind the client's work",
];
