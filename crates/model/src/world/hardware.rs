//! The hardware of one machine: its board, and the processors that run kernels on it.

use super::MachineSpec;
use super::board::Board;
use super::processor::{Accelerator, HostCore, NicCore, Pipeline, Processor, ProcessorKind};
use crate::resource::Usage;
use crate::time::Ps;

/// The hardware of one machine.
pub struct Hardware {
    /// What its software and its processors share.
    pub board: Board,
    /// Those that belong to a NIC with its number.
    processors: Vec<(Option<usize>, Box<dyn Processor>)>,
    /// When usage was last forgotten.
    since: Ps,
}

/// A processor of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorId(usize);

impl Hardware {
    /// Idle hardware.
    pub fn new(spec: &MachineSpec) -> Self {
        let mut processors: Vec<(Option<usize>, Box<dyn Processor>)> = vec![(None, Box::new(HostCore))];
        for nic in 0..spec.nics() {
            processors.push((Some(nic), Box::new(Pipeline::new(nic, &spec.nic.pipeline))));
            if let Some(card) = &spec.card {
                processors.push((Some(nic), Box::new(NicCore::new(nic, card, &spec.core))));
            }
        }
        if let Some(accel) = &spec.accel {
            processors.push((None, Box::new(Accelerator::new(accel))));
        }
        Self { board: Board::new(spec), processors, since: Ps::ZERO }
    }

    /// The processor of this kind, of a NIC if NICs have one each; `None` if there is no such thing.
    pub fn find(&self, kind: ProcessorKind, nic: usize) -> Option<ProcessorId> {
        let is_it = |(of, processor): &(Option<usize>, Box<dyn Processor>)| {
            processor.kind() == kind && of.is_none_or(|of| of == nic)
        };
        self.processors.iter().position(is_it).map(ProcessorId)
    }

    /// A processor, and the board that it works with.
    pub fn processor(&mut self, id: ProcessorId) -> (&mut dyn Processor, &mut Board) {
        (&mut *self.processors[id.0].1, &mut self.board)
    }

    /// When usage was last forgotten.
    pub fn since(&self) -> Ps {
        self.since
    }

    /// Forgets how busy everything was.
    pub fn reset(&mut self, now: Ps) {
        self.since = now;
        self.board.reset();
        self.processors.iter_mut().for_each(|(_, processor)| processor.reset());
    }

    /// How busy each shared thing was since usage was last forgotten; `ports` says the same of switch ports.
    pub fn usage(&self, now: Ps, ports: impl Iterator<Item = Usage>) -> Vec<Usage> {
        let span = now - self.since;
        let mut all = Vec::with_capacity(20);
        self.board.usage(span, &mut all);
        all.extend(ports);
        self.processors.iter().for_each(|(_, processor)| processor.usage(span, &mut all));
        all.retain(|usage| usage.served > 0);
        all
    }
}
