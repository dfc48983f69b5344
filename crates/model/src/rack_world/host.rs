//! A node: its program, and what its kernel takes of its cores.

use std::collections::BTreeMap;

use crate::platform::{Core, RackCosts};
use crate::resource::{Server, Usage};
use crate::time::Ps;

/// What a node's program does, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackStep {
    /// Sends bytes to a node: goes on when the kernel has copied them.
    Send {
        /// To which.
        to: usize,
        /// Bytes.
        bytes: u64,
    },
    /// Receives bytes from a node: goes on when it has them.
    Receive {
        /// From which.
        from: usize,
        /// Bytes.
        bytes: u64,
    },
    /// Computes for so long.
    Compute(Ps),
    /// Adds so many bytes that came to others: this belongs to the communication.
    Reduce(u64),
    /// Notes the time.
    Mark,
}

/// What the program is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Doing {
    /// About to take its next step.
    #[default]
    Next,
    /// The kernel copies bytes for a flow; so many are left after them.
    Writing { flow: usize, piece: u64, left: u64 },
    /// Copies bytes from a flow; so many are left after them.
    Reading { flow: usize, piece: u64, left: u64 },
    /// Waits for bytes of a flow.
    Waiting { flow: usize, left: u64 },
    /// Has done everything.
    Done,
}

/// A node.
pub(super) struct Host {
    /// The core of the program, and those of the kernel's protocols.
    pub app: Server,
    pub soft: Vec<Server>,
    /// How long each of them stood still for memory to answer: that is the memory's time, not the core's.
    app_stalled: Ps,
    soft_stalled: Vec<Ps>,
    pub program: Vec<RackStep>,
    pub step: usize,
    pub doing: Doing,
    pub marks: Vec<Ps>,
    pub computed: Ps,
    pub done: Ps,
    /// Flows to and from other nodes.
    pub to: BTreeMap<usize, usize>,
    pub from: BTreeMap<usize, usize>,
}

impl Host {
    /// With a program; the first of its cores is the program's.
    pub fn new(core: &Core, program: Vec<RackStep>) -> Self {
        let one = Server::new(1).ordered(core.order);
        let soft: Vec<_> = (1..core.cores.max(2)).map(|_| one.clone()).collect();
        Self {
            app: one,
            app_stalled: Ps::ZERO,
            soft_stalled: vec![Ps::ZERO; soft.len()],
            soft,
            program,
            step: 0,
            doing: Doing::Next,
            marks: Vec::new(),
            computed: Ps::ZERO,
            done: Ps::ZERO,
            to: BTreeMap::new(),
            from: BTreeMap::new(),
        }
    }

    /// The core that a flow's packets are handled on.
    pub fn soft(&mut self, flow: usize) -> &mut Server {
        let cores = self.soft.len();
        &mut self.soft[flow % cores]
    }

    /// The program's core stands still for so long of what it does.
    pub fn app_stalls(&mut self, span: Ps) {
        self.app_stalled += span;
    }

    /// So does the core that a flow's packets are handled on.
    pub fn soft_stalls(&mut self, flow: usize, span: Ps) {
        let cores = self.soft.len();
        self.soft_stalled[flow % cores] += span;
    }

    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        let working = |name, core: &Server, stalled: Ps| {
            let usage = core.usage(name, span);
            let part = stalled.0 as f64 / span.0.max(1) as f64;
            Usage { busy: (usage.busy - part).max(0.0), ..usage }
        };
        let soft = self.soft.iter().zip(&self.soft_stalled);
        let soft = soft.map(|(core, stalled)| working("kernel's core", core, *stalled));
        soft.chain([working("program's core", &self.app, self.app_stalled)]).collect()
    }
}

/// What work takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    pub send: Ps,
    pub receive: Ps,
    pub ack: Ps,
    pub interrupt: Ps,
    pub wake: Ps,
    pub delayed_ack: Ps,
    copy: f64,
    reduce: f64,
}

impl Costs {
    pub fn new(costs: &RackCosts) -> Self {
        Self {
            send: Ps(costs.send),
            receive: Ps(costs.receive),
            ack: Ps(costs.ack),
            interrupt: Ps(costs.interrupt),
            wake: Ps(costs.wake),
            delayed_ack: Ps(costs.delayed_ack),
            copy: costs.copy,
            reduce: costs.reduce,
        }
    }

    pub fn copy(&self, bytes: u64) -> Ps {
        Ps::transfer(bytes, self.copy)
    }

    pub fn reduce(&self, bytes: u64) -> Ps {
        Ps::transfer(bytes, self.reduce)
    }
}
