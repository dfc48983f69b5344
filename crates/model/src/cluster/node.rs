//! A node: its engine, its processors, and what waits for them.

use std::collections::{BTreeMap, VecDeque};

use remora_replica::ddp::{Config, Deployment, Replica, Where};
use remora_replica::types::{Key, Timestamp};

use super::{ClusterSpec, Pending};
use crate::resource::{Order, Server};
use crate::time::Ps;

/// Cores behind one queue.
#[derive(Clone, Debug)]
pub(super) struct Processor {
    pub idle: u64,
    /// Tasks, and the host's threads that they belong to.
    pub queue: VecDeque<(u8, u32)>,
    /// Which of them is next.
    pub order: Order,
    pub busy: Ps,
}

pub(super) struct Node {
    pub replica: Replica,
    /// Each a core with a thread.
    host: Vec<Processor>,
    nic: Processor,
    /// Each worker's request.
    pub workers: Vec<Option<Pending>>,
    /// Scopes that each worker has ended.
    pub scopes: Vec<u64>,
    /// Writes that wait for room in a FIFO, in order, and the threads that they belong to.
    pub stalled: VecDeque<(u8, u32)>,
    /// FIFO entries, if there are FIFOs.
    entries: Option<u64>,
    /// Writes in the vFIFO and in the dFIFO.
    pub in_vfifo: u64,
    pub in_dfifo: u64,
    /// What the host persists goes there, and what the NIC does, if that is one device each.
    devices: Option<[Server; 2]>,
    /// Communication so far of the writes that are under way.
    pub communication: BTreeMap<(Key, Timestamp), Ps>,
    /// Who had a record's metadata last.
    owners: BTreeMap<Key, Where>,
}

impl Node {
    pub(super) fn new(config: Config, spec: &ClusterSpec) -> Self {
        let (host, nic) = spec.costs.core_orders;
        let processor = |idle, order| Processor { idle, queue: VecDeque::new(), order, busy: Ps::ZERO };
        let workers = usize::from(spec.workers);
        let entries = match spec.deployment {
            Deployment::Offload(offload) => offload.fifos.map(u64::from),
            Deployment::Baseline => None,
        };
        Self {
            entries,
            replica: Replica::new(config),
            host: vec![processor(1, host); spec.costs.host_cores as usize],
            nic: processor(spec.costs.nic_cores, nic),
            workers: vec![None; workers],
            scopes: vec![0; workers],
            stalled: VecDeque::new(),
            in_vfifo: 0,
            in_dfifo: 0,
            devices: spec.readings.one_device.then(|| [Server::new(1), Server::new(1)]),
            communication: BTreeMap::new(),
            owners: BTreeMap::new(),
        }
    }

    pub(super) fn processor(&mut self, on: Where, thread: u8) -> &mut Processor {
        match on {
            Where::Host => &mut self.host[usize::from(thread)],
            Where::Nic => &mut self.nic,
        }
    }

    /// Picoseconds, of all cores together.
    pub(super) fn busy(&self, on: Where) -> u64 {
        match on {
            Where::Host => self.host.iter().map(|core| core.busy.0).sum(),
            Where::Nic => self.nic.busy.0,
        }
    }

    /// Has each FIFO room for one more write?
    pub(super) fn has_room(&self) -> bool {
        self.entries.is_none_or(|entries| self.in_vfifo < entries && self.in_dfifo < entries)
    }

    /// When a persist that begins at `at` on this side and takes `time` is done.
    pub(super) fn persisted(&mut self, on: Where, at: Ps, time: Ps) -> Ps {
        match &mut self.devices {
            Some(devices) => devices[usize::from(on == Where::Nic)].serve(at, time).1,
            None => at + time,
        }
    }

    /// Takes a record's metadata to one side. Had the other side it?
    pub(super) fn fetch(&mut self, key: Key, on: Where) -> bool {
        self.owners.insert(key, on).is_some_and(|owner| owner != on)
    }
}
