//! An accelerator's handler of send queues (RAMBDA, section III-C): it writes commands into the queue of a connection in the
//! host's memory and rings the NIC's doorbell, once for some commands. Only some of them ask for a completion.

use super::controller::CoherenceController;
use crate::resource::{Order, Server, Usage};
use crate::time::Ps;

/// What a handler is like.
#[derive(Clone, Debug, PartialEq)]
pub struct SqHandlerParams {
    /// Ringing a doorbell, until the NIC sees it: a store over the coherent link with a fence behind it. The next command
    /// waits so long.
    pub doorbell_ps: u64,
    /// Commands that one doorbell is rung for.
    pub batch: u32,
    /// One command in so many asks for a completion.
    pub signalled: u32,
    /// Bytes of a command without what it has inline.
    pub wqe_bytes: u64,
    /// How its queues are served.
    pub order: Order,
}

/// A doorbell that was rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// When the NIC sees it.
    pub at: Ps,
    /// Commands that wait for the NIC.
    pub commands: u32,
    /// Those of them that ask for a completion.
    pub signalled: u32,
}

/// A connection's queue: all that the handler keeps of it.
#[derive(Clone, Copy, Debug, Default)]
struct SendQueue {
    /// Commands written since the doorbell was rung.
    waiting: u32,
    /// Commands since one asked for a completion.
    unsignalled: u32,
    /// Those that wait and ask for a completion.
    signalled: u32,
    /// When the last was written.
    written: Ps,
}

/// A handler.
#[derive(Clone, Debug)]
pub struct SqHandler {
    params: SqHandlerParams,
    queues: Vec<SendQueue>,
    doorbells: Server,
}

impl SqHandler {
    /// For so many connections.
    pub fn new(params: &SqHandlerParams, connections: usize) -> Self {
        let queues = vec![SendQueue::default(); connections];
        Self { params: params.clone(), queues, doorbells: Server::new(1).ordered(params.order) }
    }

    /// Writes a command with so many bytes inline into a connection's queue at `address`, and rings the doorbell if that is
    /// full or this is the `last` for now.
    pub fn post(
        &mut self,
        (connection, address): (usize, u64),
        (at, inline): (Ps, u64),
        last: bool,
        controller: &mut CoherenceController,
    ) -> Option<Doorbell> {
        let written = controller.write(at, address, self.params.wqe_bytes + inline);
        let queue = &mut self.queues[connection];
        queue.written = queue.written.max(written);
        queue.waiting += 1;
        queue.unsignalled += 1;
        if queue.unsignalled >= self.params.signalled {
            queue.unsignalled = 0;
            queue.signalled += 1;
        }
        if queue.waiting < self.params.batch && !last {
            return None;
        }
        let (_, seen) = self.doorbells.serve(queue.written, Ps(self.params.doorbell_ps));
        let rung = Doorbell { at: seen, commands: queue.waiting, signalled: queue.signalled };
        (queue.waiting, queue.signalled) = (0, 0);
        Some(rung)
    }

    /// How busy it was with doorbells over `span`.
    pub fn usage(&self, span: Ps) -> Usage {
        self.doorbells.usage("doorbells", span)
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.doorbells.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::super::controller::{ControllerParams, tests::params};
    use super::*;

    fn controller() -> CoherenceController {
        CoherenceController::new(&ControllerParams { tlb_miss_ps: 0, ..params() })
    }

    fn handler(batch: u32, signalled: u32) -> SqHandler {
        SqHandler::new(
            &SqHandlerParams { doorbell_ps: 500_000, batch, signalled, wqe_bytes: 64, order: Order::InTurn },
            2,
        )
    }

    /// The doorbells of 64 commands of one connection that are all there at once.
    fn rung(mut handler: SqHandler) -> Vec<Doorbell> {
        let mut controller = controller();
        (0..64).filter_map(|_| handler.post((0, 0), (Ps::ZERO, 0), false, &mut controller)).collect()
    }

    #[test]
    fn one_doorbell_for_many_commands() {
        let (each, many) = (rung(handler(1, 1)), rung(handler(32, 1)));
        assert_eq!((each.len(), many.len()), (64, 2));
        // A doorbell each 500 ns bounds those that come one by one: 2 M/s.
        assert!(each[63].at - each[0].at == Ps(63 * 500_000) && many[1].at < Ps(2_000_000));
        assert_eq!(many[1].commands, 32);
    }

    #[test]
    fn some_ask_for_a_completion() {
        let signalled = |each| rung(handler(16, each)).iter().map(|rung| rung.signalled).sum::<u32>();
        assert_eq!((signalled(1), signalled(16), signalled(32)), (64, 4, 2));
    }

    #[test]
    fn the_last_command_for_now_is_not_left_lying() {
        let (mut handler, mut controller) = (handler(32, 32), controller());
        assert_eq!(handler.post((1, 0), (Ps::ZERO, 0), false, &mut controller), None);
        let rung = handler.post((1, 64), (Ps::ZERO, 0), true, &mut controller).unwrap();
        assert_eq!((rung.commands, rung.signalled), (2, 0));
    }
}
