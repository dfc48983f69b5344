//! A node: its engine, its processors, and what waits for them.

use std::collections::{BTreeMap, VecDeque};

use remora_replica::ddp::{Config, Replica, Where};
use remora_replica::types::{Key, Timestamp};

use super::{Pending, Spec};
use crate::time::Ps;

/// Cores behind one queue.
#[derive(Debug)]
pub(super) struct Processor {
    pub idle: u64,
    pub queue: VecDeque<u32>,
    pub busy: Ps,
}

pub(super) struct Node {
    pub replica: Replica,
    host: Processor,
    nic: Processor,
    /// Each worker's request.
    pub workers: Vec<Option<Pending>>,
    /// Scopes that each worker has ended.
    pub scopes: Vec<u64>,
    /// Writes that wait for room in a FIFO, in order.
    pub stalled: VecDeque<(Where, u32)>,
    /// FIFO entries, if there are FIFOs.
    entries: Option<u64>,
    /// Writes between host and NIC, in the vFIFO, and in the dFIFO.
    pub crossing: u64,
    pub in_vfifo: u64,
    pub in_dfifo: u64,
    /// Communication so far of the writes that are under way.
    pub communication: BTreeMap<(Key, Timestamp), Ps>,
    /// Who had a record's metadata last.
    owners: BTreeMap<Key, Where>,
}

impl Node {
    pub(super) fn new(config: Config, spec: &Spec) -> Self {
        let processor = |on| Processor { idle: spec.costs.cores(on), queue: VecDeque::new(), busy: Ps::ZERO };
        let workers = usize::from(spec.workers);
        Self {
            entries: config.offload().and_then(|offload| offload.fifos).map(u64::from),
            replica: Replica::new(config),
            host: processor(Where::Host),
            nic: processor(Where::Nic),
            workers: vec![None; workers],
            scopes: vec![0; workers],
            stalled: VecDeque::new(),
            crossing: 0,
            in_vfifo: 0,
            in_dfifo: 0,
            communication: BTreeMap::new(),
            owners: BTreeMap::new(),
        }
    }

    pub(super) fn processor(&mut self, on: Where) -> &mut Processor {
        match on {
            Where::Host => &mut self.host,
            Where::Nic => &mut self.nic,
        }
    }

    pub(super) fn busy(&self, on: Where) -> Ps {
        match on {
            Where::Host => self.host.busy,
            Where::Nic => self.nic.busy,
        }
    }

    /// Does the engine have room for one more write? As it counts itself.
    pub(super) fn has_room(&self) -> bool {
        self.entries
            .is_none_or(|entries| self.crossing + self.in_vfifo < entries && self.in_dfifo + self.crossing < entries)
    }

    /// Takes a record's metadata to one side. Had the other side it?
    pub(super) fn fetch(&mut self, key: Key, on: Where) -> bool {
        self.owners.insert(key, on).is_some_and(|owner| owner != on)
    }
}
