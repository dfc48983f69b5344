//! Who runs kernels on a machine. Each kind of processor is one object in one file; it works with what the machine's
//! [`Board`] has for all: cores, caches, memory, PCIe.

mod accelerator;
mod host_core;
mod nic_core;
mod pipeline;

use std::fmt;

pub use accelerator::Accelerator;
pub use host_core::HostCore;
pub use nic_core::NicCore;
pub use pipeline::Pipeline;

use super::board::Board;
use super::site::Reach;
use crate::resource::Usage;
use crate::time::Ps;

/// Kinds of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessorKind {
    /// A core of the host.
    HostCore,
    /// The data path of the NIC.
    Pipeline,
    /// A core on the card of the NIC.
    NicCore,
    /// The accelerator.
    Accelerator,
}

impl fmt::Display for ProcessorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::HostCore => "core of the host",
            Self::Pipeline => "kernels in the NIC's data path",
            Self::NicCore => "core on the NIC",
            Self::Accelerator => "accelerator",
        })
    }
}

/// From where a request or a chunk of payload comes to its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The NIC that received it, by its number on the machine.
    pub nic: usize,
    /// Whether the host's software has seen it already; if not, it is in the NIC's engine.
    pub seen: bool,
}

/// What a kernel does, and what it takes. Whoever asks learns at once when it is done (see [`crate::resource`]).
pub trait Processor {
    /// What it is.
    fn kind(&self) -> ProcessorKind;

    /// Whether payload that comes for its kernels may take all of the host's memory.
    fn has_host_memory(&self) -> bool {
        false
    }

    /// A kernel's step begins: where the processor is when it is done with what no access costs.
    fn step(&mut self, board: &mut Board, now: Ps) -> Ps;

    /// A kernel works through `bytes` of data that have arrived. In the data path and on an accelerator they go through
    /// at the width of its bus in each cycle (StRoM sections 3.4 and 5.2); a core takes time where each byte counts.
    fn compute(&mut self, board: &mut Board, at: Ps, op: u64, bytes: usize) -> Ps;

    /// A kernel computes: counted instructions one after the other, on a core or in logic.
    fn instructions(&mut self, board: &mut Board, at: Ps, count: u64) -> Ps;

    /// The way of a chunk of payload from a NIC's engine to the place of its kernel: when that has it.
    fn deliver(&mut self, board: &mut Board, nic: usize, now: Ps, bytes: usize) -> Ps;

    /// The way of a request to its kernel: when that begins.
    fn dispatch(&mut self, board: &mut Board, from: Arrival, now: Ps, bytes: usize) -> Ps;

    /// The way of a kernel's reply back to the NIC's engine.
    fn answer(&mut self, board: &mut Board, nic: usize, at: Ps, bytes: usize) -> Ps;

    /// An access of a kernel: when the first and the last line are there.
    fn reach(&mut self, board: &mut Board, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps);

    /// When a kernel that made an access at `at` can make the next one, beside it.
    fn issued(&self, at: Ps) -> Ps {
        at
    }

    /// How busy what it has for itself was over `span`.
    fn usage(&self, span: Ps, all: &mut Vec<Usage>);

    /// Forgets how busy that was.
    fn reset(&mut self);
}
