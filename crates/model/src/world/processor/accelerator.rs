//! Kernels on an accelerator beside the host, as in RAMBDA.

use super::pipeline::KERNEL_BUS;
use super::{Arrival, Processor, ProcessorKind};
use crate::component::cache::{Cache, CacheAccess, CacheParams};
use crate::component::coherent::{Coherent, CoherentParams};
use crate::platform;
use crate::resource::{Server, Usage};
use crate::time::Ps;
use crate::world::board::{Board, LINE, is_resident};
use crate::world::site::Reach;

/// Ways of its cache.
const WAYS: usize = 16;

/// An accelerator.
pub struct Accelerator {
    clock: f64,
    issue_cycles: f64,
    signal: Ps,
    doorbell: Ps,
    link: Coherent,
    /// Its own cache: lines there are not asked for over the link.
    cache: Cache,
    cache_bytes: u64,
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
            cache: Cache::new(&CacheParams {
                size_bytes: accel.cache_size,
                line_bytes: LINE,
                ways: WAYS,
                hit_ps: accel.cache_latency,
            }),
            cache_bytes: accel.cache_size,
            unit: Server::new(1).ordered(accel.order),
        }
    }
}

impl Accelerator {
    /// Line by line: from its cache, or over the link. What others write meanwhile takes no lines away from it.
    fn read(&mut self, board: &mut Board, at: Ps, va: u64, bytes: u64) -> (Ps, Ps) {
        let (mut first, mut last) = (None, at);
        for line in self.cache.lines(va, bytes) {
            let hit = match board.spec.state {
                0 => self.cache.access(line, CacheAccess::Load).hit,
                state => is_resident(line, state, self.cache_bytes),
            };
            let here = match hit {
                true => at + self.cache.hit_time(),
                false => {
                    let at = board.beyond(at, line * LINE, LINE);
                    self.link.read(at, line * LINE, LINE).1
                }
            };
            first = first.or(Some(here));
            last = last.max(here);
        }
        (first.unwrap_or(last), last)
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
        match kind {
            Reach::Write | Reach::Stream => {
                let at = board.beyond(at, va, bytes);
                let taken = self.link.write(at, va, bytes);
                (taken, taken)
            }
            // The word is changed where its owner is.
            Reach::Atomic => self.link.read(board.beyond(at, va, bytes), va, bytes),
            Reach::Read | Reach::Search => self.read(board, at, va, bytes),
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
