//! Kernels in the data path of a NIC, as in StRoM.

use super::{Arrival, Processor, ProcessorKind};
use crate::resource::{Server, Usage};
use crate::time::Ps;
use crate::world::board::Board;
use crate::world::site::Reach;

/// Bytes of a kernel's data bus (StRoM section 5.2).
pub(super) const KERNEL_BUS: u64 = 64;
/// Bytes of a kernel's parameter bus (StRoM section 5.2).
const PARAM_BUS: u64 = 32;

/// The kernels of one NIC.
pub struct Pipeline {
    nic: usize,
    clock: f64,
    /// Cycles of an access, memory apart.
    access_cycles: f64,
    /// Their bus.
    bus: Server,
}

impl Pipeline {
    /// Idle kernels in the data path of a NIC.
    pub fn new(nic: usize, pipeline: &crate::platform::Pipeline) -> Self {
        let bus = Server::new(1).ordered(pipeline.order);
        Self { nic, clock: pipeline.clock, access_cycles: pipeline.kernel_cycles, bus }
    }
}

impl Processor for Pipeline {
    fn kind(&self) -> ProcessorKind {
        ProcessorKind::Pipeline
    }

    fn step(&mut self, _: &mut Board, now: Ps) -> Ps {
        let (start, _) = self.bus.serve(now, Ps::cycles(1.0, self.clock));
        start + Ps::cycles(self.access_cycles, self.clock)
    }

    fn compute(&mut self, _: &mut Board, at: Ps, _: u64, bytes: usize) -> Ps {
        let words = (bytes as u64).div_ceil(KERNEL_BUS) as f64;
        self.bus.serve(at, Ps::cycles(words, self.clock)).1
    }

    fn instructions(&mut self, board: &mut Board, at: Ps, count: u64) -> Ps {
        let time = board.logic_instructions(count, self.clock);
        if board.spec.work.staged { at + time } else { self.bus.serve(at, time).1 }
    }

    /// The chunk is on the NIC already.
    fn deliver(&mut self, _: &mut Board, _: usize, now: Ps, _: usize) -> Ps {
        now
    }

    fn dispatch(&mut self, _: &mut Board, _: Arrival, now: Ps, bytes: usize) -> Ps {
        now + Ps::cycles((bytes as u64).div_ceil(PARAM_BUS) as f64, self.clock)
    }

    /// The reply is on the NIC already.
    fn answer(&mut self, _: &mut Board, _: usize, at: Ps, _: usize) -> Ps {
        at
    }

    /// A DMA over PCIe.
    fn reach(&mut self, board: &mut Board, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps) {
        board.dma(self.nic, at, va, bytes, kind)
    }

    fn usage(&self, span: Ps, all: &mut Vec<Usage>) {
        all.push(self.bus.usage("NIC kernels", span));
    }

    fn reset(&mut self) {
        self.bus.reset();
    }
}
