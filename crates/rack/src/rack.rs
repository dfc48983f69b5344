//! The rack: buffers that pass from node to node by reference (section 4.3).
//!
//! A node asks its daemon for a buffer, fills it, and posts its reference. From then on it is the destination's: that
//! one reads it, passes it on, or frees it to the daemon it came from. At each moment a buffer has one holder. What a
//! node holds when it dies comes back; what others hold of a dead node's memory stays until they free it.

use std::collections::BTreeMap;

use crate::address::{FabricAddress, Location, NodeId, Section};
use crate::buffers::{BufferDaemon, BufferError};
use crate::dispatcher::{Coalescing, Dispatcher, Notice};
use crate::pool::{Device, Pool, PoolError, Rights};
use crate::queue::Descriptor;

/// Why the rack refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RackError {
    /// Nobody of that number is in the rack.
    #[error("{0:?} is not in the rack")]
    Unknown(NodeId),
    /// The node is in the rack already.
    #[error("{0:?} is in the rack already")]
    Present(NodeId),
    /// The buffer is another node's, or nobody's.
    #[error("{0:?} does not hold the buffer at {1:?}")]
    NotHolder(NodeId, FabricAddress),
    /// The queue has no room, or there is no such queue.
    #[error("the transmit queue has no room")]
    Full,
    /// More bytes than the buffer has.
    #[error("{0} bytes are more than the buffer has")]
    TooLong(u64),
    /// There is no buffer.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

/// A buffer in use.
#[derive(Clone, Copy, Debug, Hash)]
struct Holding {
    /// Whose daemon it came from; none if that node is dead.
    owner: Option<NodeId>,
    holder: NodeId,
    /// Posted and not received yet: its holder does not know of it.
    on_its_way: bool,
    size: u64,
}

/// Pool, daemons and queues of a rack.
#[derive(Clone, Debug, Hash)]
pub struct Rack {
    pool: Pool,
    daemons: BTreeMap<NodeId, BufferDaemon>,
    dispatcher: Dispatcher,
    held: BTreeMap<FabricAddress, Holding>,
    /// How many buffers of a section each node holds that does not own it.
    seen: BTreeMap<(NodeId, Section), usize>,
    /// Sections that a daemon keeps in reserve.
    keep: usize,
    mutation: Option<RackMutation>,
}

/// Faults that can be seeded, to see whether checks find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RackMutation {
    /// Who has posted a buffer may still free it.
    FreesPosted,
    /// What was on its way from a dead node is forgotten.
    ForgetsLost,
    /// What others hold of a dead node's memory is freed with it.
    FreesRead,
    /// What was passed does not come.
    LosesPassed,
    /// Who has passed a buffer on reaches it still.
    KeepsRights,
}

impl Rack {
    /// Over these devices, without nodes; daemons keep `keep` sections in reserve.
    ///
    /// # Errors
    ///
    /// [`PoolError::TooLarge`].
    pub fn new(devices: &[Device], keep: usize, rule: Coalescing) -> Result<Self, PoolError> {
        Ok(Self {
            pool: Pool::bootstrap(devices)?,
            daemons: BTreeMap::new(),
            dispatcher: Dispatcher::new(rule),
            held: BTreeMap::new(),
            seen: BTreeMap::new(),
            keep,
            mutation: None,
        })
    }

    /// With a seeded fault.
    pub fn mutated(mut self, mutation: Option<RackMutation>) -> Self {
        self.mutation = mutation;
        self
    }

    /// A node comes, with so many transmit queues of that depth. Its daemon takes sections in advance.
    ///
    /// # Errors
    ///
    /// [`RackError::Present`].
    pub fn join(&mut self, node: NodeId, queues: usize, depth: usize, near: Location) -> Result<(), RackError> {
        if !self.dispatcher.join(node, queues, depth) {
            return Err(RackError::Present(node));
        }
        let mut daemon = BufferDaemon::new(node, self.keep);
        daemon.prepare(&mut self.pool, near);
        self.daemons.insert(node, daemon);
        Ok(())
    }

    /// A buffer for a node.
    ///
    /// # Errors
    ///
    /// [`RackError::Unknown`], or what the daemon says.
    pub fn alloc(&mut self, node: NodeId, len: u64, prefer: Location) -> Result<FabricAddress, RackError> {
        let daemon = self.daemons.get_mut(&node).ok_or(RackError::Unknown(node))?;
        let at = daemon.alloc(&mut self.pool, len, prefer)?;
        let size = daemon.size(at).unwrap_or(len);
        self.held.insert(at, Holding { owner: Some(node), holder: node, on_its_way: false, size });
        Ok(at)
    }

    /// Passes a buffer to another node by reference. On an error the source holds it still.
    ///
    /// # Errors
    ///
    /// [`RackError::NotHolder`], [`RackError::TooLong`], [`RackError::Unknown`] for the destination, [`RackError::Full`].
    pub fn post(&mut self, queue: usize, descriptor: Descriptor) -> Result<(), RackError> {
        let Descriptor { source, destination, reference, length } = descriptor;
        let holding = self.holding(source, reference)?;
        if length > holding.size {
            return Err(RackError::TooLong(length));
        }
        if !self.daemons.contains_key(&destination) {
            return Err(RackError::Unknown(destination));
        }
        self.dispatcher.post(queue, descriptor).map_err(|_| RackError::Full)?;
        // First the new holder, then the old one: in between the section must not become free.
        self.see(destination, reference);
        if self.mutation != Some(RackMutation::KeepsRights) {
            self.unsee(source, reference);
        }
        if self.mutation == Some(RackMutation::FreesPosted) {
            return Ok(());
        }
        self.held.insert(reference, Holding { holder: destination, on_its_way: true, ..holding });
        Ok(())
    }

    /// Moves up to `budget` descriptors.
    pub fn poll(&mut self, now: u64, budget: usize) -> usize {
        self.dispatcher.poll(now, budget)
    }

    /// Something to tell a node, if it is time.
    pub fn poll_notice(&mut self, now: u64) -> Option<Notice> {
        self.dispatcher.poll_notice(now)
    }

    /// When there is something to tell at the latest.
    pub fn next_timeout(&self) -> Option<u64> {
        self.dispatcher.next_timeout()
    }

    /// The next buffer that a node was passed: it holds it now.
    pub fn receive(&mut self, node: NodeId) -> Option<Descriptor> {
        let descriptor = self.dispatcher.receive(node)?;
        if self.mutation == Some(RackMutation::LosesPassed) {
            return None;
        }
        if let Some(holding) = self.held.get_mut(&descriptor.reference) {
            holding.on_its_way = false;
        }
        Some(descriptor)
    }

    /// Frees a buffer to the daemon that it came from.
    ///
    /// # Errors
    ///
    /// [`RackError::NotHolder`].
    pub fn free(&mut self, node: NodeId, at: FabricAddress) -> Result<(), RackError> {
        self.holding(node, at)?;
        self.release(at);
        Ok(())
    }

    /// A node is dead: what it held comes back, and what was on its way to it.
    pub fn node_died(&mut self, node: NodeId) {
        self.dispatcher.leave(node);
        let held = self.held.iter().filter(|(_, holding)| holding.holder == node);
        let held: Vec<FabricAddress> = held.map(|(at, _)| *at).collect();
        held.into_iter().for_each(|at| self.release(at));
        // What it posted to others and these have not received stays on its way: its bytes are in the pool, not in it.
        let lost: Vec<FabricAddress> = self.lost_on_the_way(node);
        if self.mutation != Some(RackMutation::ForgetsLost) {
            lost.into_iter().for_each(|at| self.release(at));
        }
        if self.mutation == Some(RackMutation::FreesRead) {
            let read = self.held.iter().filter(|(_, holding)| holding.owner == Some(node));
            let read: Vec<FabricAddress> = read.map(|(at, _)| *at).collect();
            read.into_iter().for_each(|at| self.release(at));
        }
        for holding in self.held.values_mut().filter(|holding| holding.owner == Some(node)) {
            holding.owner = None;
        }
        self.daemons.remove(&node);
        self.pool.node_died(node);
    }

    /// Whether a node reaches these bytes.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoRight`].
    pub fn check(&self, node: NodeId, at: FabricAddress, len: u64, rights: Rights) -> Result<(), PoolError> {
        self.pool.check(node, at, len, rights)
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Who holds a buffer.
    pub fn holder(&self, at: FabricAddress) -> Option<NodeId> {
        self.held.get(&at).map(|holding| holding.holder)
    }

    /// How many buffers are in use.
    pub fn in_use(&self) -> usize {
        self.held.len()
    }

    fn holding(&self, node: NodeId, at: FabricAddress) -> Result<Holding, RackError> {
        let held = self.held.get(&at).filter(|holding| holding.holder == node && !holding.on_its_way);
        held.copied().ok_or(RackError::NotHolder(node, at))
    }

    /// Buffers whose descriptor was in a queue of the dead node's and went with it.
    fn lost_on_the_way(&self, dead: NodeId) -> Vec<FabricAddress> {
        let waiting = |at: &FabricAddress| self.dispatcher.is_waiting(*at);
        let on_their_way = self.held.iter().filter(|(_, holding)| holding.on_its_way && holding.holder != dead);
        on_their_way.map(|(at, _)| *at).filter(|at| !waiting(at)).collect()
    }

    fn release(&mut self, at: FabricAddress) {
        let Some(holding) = self.held.remove(&at) else { return };
        if let Some(daemon) = holding.owner.and_then(|owner| self.daemons.get_mut(&owner)) {
            let freed = daemon.free(&mut self.pool, at);
            debug_assert!(freed.is_ok(), "a buffer in use is its daemon's: {freed:?}");
        }
        self.unsee(holding.holder, at);
    }

    /// A node begins to hold a buffer: if the section is another's, the mapping table says so.
    fn see(&mut self, node: NodeId, at: FabricAddress) {
        let section = at.section();
        let owner = self.held.get(&at).and_then(|holding| holding.owner);
        if owner == Some(node) {
            return;
        }
        let count = self.seen.entry((node, section)).or_default();
        *count += 1;
        if *count == 1 {
            self.pool.pass_on(owner, section, node, Rights::Write);
        }
    }

    fn unsee(&mut self, node: NodeId, at: FabricAddress) {
        let key = (node, at.section());
        let Some(count) = self.seen.get_mut(&key) else { return };
        *count -= 1;
        if *count == 0 {
            self.seen.remove(&key);
            let _ = self.pool.give_back(node, key.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::SECTION_BYTES;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NEAR: Location = Location(0);
    const RULE: Coalescing = Coalescing { count: 1, delay: 0 };
    const SECTIONS: u32 = 12;

    fn rack(nodes: u32) -> Rack {
        let mut rack = Rack::new(&[Device { location: NEAR, sections: SECTIONS }], 1, RULE).unwrap();
        (1..=nodes).for_each(|node| rack.join(NodeId(node), 1, 4, NEAR).unwrap());
        rack
    }

    fn pass(source: u32, destination: u32, reference: FabricAddress) -> Descriptor {
        Descriptor { source: NodeId(source), destination: NodeId(destination), reference, length: 100 }
    }

    #[test]
    fn a_buffer_passes_with_its_rights() {
        let (mut rack, a, b) = (rack(2), NodeId(1), NodeId(2));
        let at = rack.alloc(a, 100, NEAR).unwrap();
        assert_eq!(rack.post(0, Descriptor { length: 5000, ..pass(1, 2, at) }), Err(RackError::TooLong(5000)));
        rack.post(0, pass(1, 2, at)).unwrap();
        assert_eq!(rack.free(a, at), Err(RackError::NotHolder(a, at)), "it is no longer the sender's");
        assert_eq!(rack.free(b, at), Err(RackError::NotHolder(b, at)), "and not yet received");
        rack.poll(0, 1);
        assert_eq!(rack.poll_notice(0), Some(Notice::Completion(a, 1)));
        assert_eq!(rack.poll_notice(0), Some(Notice::Interrupt(b, 1)));
        assert_eq!(rack.receive(b), Some(pass(1, 2, at)));
        assert!(rack.check(b, at, 100, Rights::Write).is_ok());
        rack.free(b, at).unwrap();
        assert!(rack.check(b, at, 1, Rights::Read).is_err(), "nothing of it is left to see");
        assert_eq!(rack.in_use(), 0);
    }

    #[test]
    fn what_others_hold_outlives_its_owner() {
        let (mut rack, b) = (rack(2), NodeId(2));
        let at = rack.alloc(NodeId(1), SECTION_BYTES, NEAR).unwrap();
        rack.post(0, pass(1, 2, at)).unwrap();
        rack.poll(0, 1);
        rack.node_died(NodeId(1));
        assert_eq!(rack.receive(b).map(|d| d.reference), Some(at));
        assert!(rack.check(b, at, SECTION_BYTES, Rights::Read).is_ok());
        let free = rack.pool().free_sections();
        rack.free(b, at).unwrap();
        assert_eq!(rack.pool().free_sections(), free + 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        /// Whatever nodes do, and whoever dies: a buffer has one holder, no two overlap, none is lost.
        #[test]
        fn no_buffer_is_lost_or_handed_out_twice(
            steps in prop::collection::vec((0..6u8, 1..4u32, 1..4u32, 1..SECTION_BYTES, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut rack = rack(3);
            // Where each buffer is: with a node, or on its way to one.
            let mut model: BTreeMap<FabricAddress, (u64, NodeId, bool)> = BTreeMap::new();
            for (now, (what, one, other, len, index)) in (0..).zip(steps) {
                let (node, to) = (NodeId(one), NodeId(other));
                let mine: Vec<FabricAddress> =
                    model.iter().filter(|(_, (_, holder, way))| *holder == node && !way).map(|(at, _)| *at).collect();
                match what {
                    0 | 1 => if let Ok(at) = rack.alloc(node, len, NEAR) {
                        let clash = model.iter().any(|(start, (size, ..))| at.0 < start.0 + size && start.0 < at.0 + len);
                        prop_assert!(!clash, "handed out twice");
                        model.insert(at, (len, node, false));
                    },
                    2 if !mine.is_empty() => {
                        let at = mine[index.index(mine.len())];
                        let length = model[&at].0;
                        let passed = rack.post(0, Descriptor { source: node, destination: to, reference: at, length });
                        if passed.is_ok() {
                            model.insert(at, (length, to, true));
                        }
                    }
                    3 if !mine.is_empty() => {
                        let at = mine[index.index(mine.len())];
                        rack.free(node, at).unwrap();
                        model.remove(&at);
                    }
                    4 => {
                        rack.poll(now, 2);
                        if let Some(got) = rack.receive(node) {
                            prop_assert_eq!(model.insert(got.reference, (got.length, node, false)), Some((got.length, node, true)));
                            prop_assert!(rack.check(node, got.reference, got.length, Rights::Write).is_ok());
                        }
                    }
                    5 if len % 7 == 0 => {
                        rack.node_died(node);
                        model.retain(|at, _| rack.holder(*at).is_some());
                        prop_assert!(model.values().all(|(_, holder, _)| *holder != node));
                        rack.join(node, 1, 4, NEAR).unwrap();
                    }
                    _ => {}
                }
                prop_assert_eq!(rack.in_use(), model.len());
                for (at, (_, holder, way)) in &model {
                    prop_assert_eq!(rack.holder(*at), Some(*holder));
                    prop_assert!(*way || rack.check(*holder, *at, 1, Rights::Read).is_ok());
                }
            }
            (1..=3).for_each(|node| rack.node_died(NodeId(node)));
            prop_assert_eq!((rack.in_use(), rack.pool().free_sections()), (0, SECTIONS as usize));
        }
    }
}
