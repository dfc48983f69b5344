//! Kernels on an accelerator beside the host, as in RAMBDA.

use super::pipeline::KERNEL_BUS;
use super::{Arrival, Processor, ProcessorKind};
use crate::component::coherent::{Coherent, CoherentParams};
use crate::platform;
use crate::resource::{Server, Usage};
use crate::time::Ps;
use crate::world::board::Board;
use crate::world::site::Reach;

/// An accelerator.
pub struct Accelerator {
    clock: f64,
    issue_cycles: f64,
    signal: Ps,
    doorbell: Ps,
    link: Coherent,
    /// What works through data.
    unit: Server,
}

impl Accelerator {
    /// An idle accelerator.
    pub fn new(accel: &platform::Accel) -> Self {
        Self {
            clock: accel.clock,
            issue_cycles: accel.issue_cycles,
            signal: Ps(accel.signal),
            doorbell: Ps(accel.doorbell),
            link: Coherent::new(&CoherentParams::from(accel)),
            unit: Server::new(1),
        }
    }
}

impl Processor for Accelerator {
    fn kind(&self) -> ProcessorKind {
        ProcessorKind::Accelerator
    }

    fn step(&mut self, _: &mut Board, now: Ps) -> Ps {
        now + Ps::cycles(self.issue_cycles, self.clock)
    }

    fn compute(&mut self, _: &mut Board, at: Ps, _: u64, bytes: usize) -> Ps {
        let words = (bytes as u64).div_ceil(KERNEL_BUS) as f64;
        self.unit.serve(at, Ps::cycles(words, self.clock)).1
    }

    fn instructions(&mut self, board: &mut Board, at: Ps, count: u64) -> Ps {
        self.unit.serve(at, board.logic_instructions(count, self.clock)).1
    }

    fn deliver(&mut self, board: &mut Board, nic: usize, now: Ps, bytes: usize) -> Ps {
        board.store(nic, now, bytes)
    }

    /// The NIC writes the request to memory, and the coherent link tells the accelerator.
    fn dispatch(&mut self, board: &mut Board, from: Arrival, now: Ps, bytes: usize) -> Ps {
        board.store(from.nic, now, bytes) + self.signal
    }

    /// The accelerator rings the NIC, which fetches command and reply.
    fn answer(&mut self, board: &mut Board, nic: usize, at: Ps, bytes: usize) -> Ps {
        let wqe = board.spec.nic.pipeline.wqe + bytes as u64;
        board.fetch(nic, at + self.doorbell, wqe)
    }

    fn reach(&mut self, board: &mut Board, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps) {
        let at = board.beyond(at, va, bytes);
        match kind {
            Reach::Write | Reach::Stream => {
                let taken = self.link.write(at, va, bytes);
                (taken, taken)
            }
            Reach::Read | Reach::Search | Reach::Atomic => self.link.read(at, va, bytes),
        }
    }

    fn usage(&self, span: Ps, all: &mut Vec<Usage>) {
        all.extend(self.link.usage(span));
        all.push(self.unit.usage("accelerator", span));
    }

    fn reset(&mut self) {
        self.link.reset();
        self.unit.reset();
    }
}
