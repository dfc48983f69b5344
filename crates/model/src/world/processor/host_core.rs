//! Kernels on cores of the host, of a client or of a node.

use super::{Arrival, Processor, ProcessorKind};
use crate::resource::Usage;
use crate::time::Ps;
use crate::world::board::Board;
use crate::world::site::Reach;

/// Cores of the host. They are the board's: software runs on them, too.
pub struct HostCore;

impl Processor for HostCore {
    fn kind(&self) -> ProcessorKind {
        ProcessorKind::HostCore
    }

    fn has_host_memory(&self) -> bool {
        true
    }

    fn step(&mut self, board: &mut Board, now: Ps) -> Ps {
        board.turn(now)
    }

    fn compute(&mut self, board: &mut Board, at: Ps, op: u64, bytes: usize) -> Ps {
        let work = board.work(op, bytes);
        board.run(at, work)
    }

    fn instructions(&mut self, board: &mut Board, at: Ps, count: u64) -> Ps {
        let time = board.core_instructions(count);
        board.run(at, time)
    }

    /// By DMA into memory, where a core polls.
    fn deliver(&mut self, board: &mut Board, nic: usize, now: Ps, bytes: usize) -> Ps {
        let landed = board.store(nic, now, bytes);
        board.notice(nic, now, landed, false)
    }

    fn dispatch(&mut self, board: &mut Board, from: Arrival, now: Ps, bytes: usize) -> Ps {
        let here = if from.seen { now } else { self.deliver(board, from.nic, now, bytes) };
        board.dispatch(here)
    }

    /// A command to the NIC.
    fn answer(&mut self, board: &mut Board, nic: usize, at: Ps, _: usize) -> Ps {
        board.issue(nic, at, 0).1
    }

    fn reach(&mut self, board: &mut Board, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps) {
        match kind {
            Reach::Stream => {
                // Past the caches: the core goes on while memory takes them.
                board.write_memory(at, va, bytes);
                (at, at)
            }
            Reach::Read | Reach::Search | Reach::Write | Reach::Atomic => board.load(at, va, bytes, kind),
        }
    }

    fn usage(&self, _: Ps, _: &mut Vec<Usage>) {}

    fn reset(&mut self) {}
}
