//! Kernels on cores of the NIC's card, as on BlueField.

use super::{Arrival, Processor, ProcessorKind};
use crate::component::nic_cores::{NicCoreParams, NicCores};
use crate::component::pcie::Way;
use crate::platform;
use crate::resource::Usage;
use crate::time::Ps;
use crate::world::board::Board;
use crate::world::site::Reach;

/// The cores of one NIC's card.
pub struct NicCore {
    nic: usize,
    cores: NicCores,
    /// Turning from one kernel to another, as a host core does.
    switch: Ps,
    dispatch: Ps,
    issue: Ps,
    /// When the core that made an access last had handed it over.
    free: Ps,
}

impl NicCore {
    /// Idle cores.
    pub fn new(nic: usize, card: &platform::NicCores, host: &platform::Core) -> Self {
        Self {
            nic,
            cores: NicCores::new(&NicCoreParams::new(card, host)),
            switch: Ps(host.switch),
            dispatch: Ps(card.dispatch),
            issue: Ps(card.issue),
            free: Ps::ZERO,
        }
    }
}

impl Processor for NicCore {
    fn kind(&self) -> ProcessorKind {
        ProcessorKind::NicCore
    }

    fn step(&mut self, _: &mut Board, now: Ps) -> Ps {
        self.cores.run(now, self.switch).1
    }

    fn compute(&mut self, board: &mut Board, at: Ps, op: u64, bytes: usize) -> Ps {
        match board.work(op, bytes) {
            Ps::ZERO => at,
            work => self.cores.run(at, work).1,
        }
    }

    fn instructions(&mut self, board: &mut Board, at: Ps, count: u64) -> Ps {
        self.cores.run(at, board.core_instructions(count)).1
    }

    /// From the data path over the card's own PCIe, which has more bandwidth than the wire.
    fn deliver(&mut self, board: &mut Board, _: usize, now: Ps, _: usize) -> Ps {
        now + board.spec.card_way[0]
    }

    fn dispatch(&mut self, board: &mut Board, from: Arrival, now: Ps, bytes: usize) -> Ps {
        let here = self.deliver(board, from.nic, now, bytes);
        self.cores.cores.run(here, self.dispatch).1
    }

    fn answer(&mut self, board: &mut Board, _: usize, at: Ps, _: usize) -> Ps {
        self.cores.cores.run(at, self.issue).1 + board.spec.card_way[1]
    }

    /// The round trip of a read of host memory, whatever it does there; its bytes share PCIe with those of the NIC.
    fn reach(&mut self, board: &mut Board, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps) {
        let at = board.beyond(at, va, bytes);
        let (free, first) = self.cores.host_read(at);
        self.free = free;
        let way = if matches!(kind, Reach::Write | Reach::Stream) { Way::Up } else { Way::Down };
        board.carried(self.nic, way, first, bytes)
    }

    /// A kernel is one core's at a time.
    fn issued(&self, at: Ps) -> Ps {
        self.free.max(at)
    }

    fn usage(&self, span: Ps, all: &mut Vec<Usage>) {
        all.extend(self.cores.usage(span));
    }

    fn reset(&mut self) {
        self.cores.reset();
    }
}
