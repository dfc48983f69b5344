//! The dispatcher (sections 4.3 and 4.7): moves descriptors from transmit queues to receive queues.
//!
//! It polls the queues in turn, one descriptor from each. A descriptor whose destination has no room stays where it is
//! and holds up only its own queue. Interrupts to receivers and completions to senders are coalesced: so many at once,
//! or after so long.

use std::collections::BTreeMap;

use crate::address::{FabricAddress, NodeId};
use crate::queue::{Descriptor, VirtualQueue};

/// When a node is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coalescing {
    /// At the latest after so many descriptors.
    pub count: u32,
    /// At the latest so long after the first of them, in nanoseconds.
    pub delay: u64,
}

/// What a node is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// So many descriptors came into the node's receive queue.
    Interrupt(NodeId, u32),
    /// So many of the node's descriptors are on their way.
    Completion(NodeId, u32),
}

/// Things to tell, gathered since the time.
#[derive(Clone, Debug, Default, Hash)]
struct Gathered {
    count: u32,
    since: u64,
}

impl Gathered {
    fn add(&mut self, now: u64) {
        if self.count == 0 {
            self.since = now;
        }
        self.count += 1;
    }

    fn due(&self, now: u64, rule: Coalescing) -> bool {
        self.count > 0 && (self.count >= rule.count || now >= self.since.saturating_add(rule.delay))
    }

    fn deadline(&self, rule: Coalescing) -> Option<u64> {
        (self.count > 0).then(|| self.since.saturating_add(rule.delay))
    }
}

#[derive(Clone, Debug, Hash)]
struct Port {
    tx: Vec<VirtualQueue>,
    rx: VirtualQueue,
    interrupts: Gathered,
    completions: Gathered,
}

/// The queues of all nodes, and what moves between them.
#[derive(Clone, Debug, Hash)]
pub struct Dispatcher {
    ports: BTreeMap<NodeId, Port>,
    rule: Coalescing,
    /// The queue that has the next turn.
    turn: (NodeId, usize),
}

impl Dispatcher {
    /// Without nodes.
    pub fn new(rule: Coalescing) -> Self {
        Self { ports: BTreeMap::new(), rule, turn: (NodeId(0), 0) }
    }

    /// A node comes, with `queues` transmit queues and a receive queue of `depth` descriptors each. False if it is there.
    pub fn join(&mut self, node: NodeId, queues: usize, depth: usize) -> bool {
        if self.ports.contains_key(&node) {
            return false;
        }
        let tx = (0..queues).map(|_| VirtualQueue::new(depth)).collect();
        let (interrupts, completions) = (Gathered::default(), Gathered::default());
        self.ports.insert(node, Port { tx, rx: VirtualQueue::new(depth), interrupts, completions });
        true
    }

    /// A node goes: what waited in its queues, and what others had for it.
    pub fn leave(&mut self, node: NodeId) -> Vec<Descriptor> {
        let Some(mut port) = self.ports.remove(&node) else { return Vec::new() };
        let mut left: Vec<Descriptor> = port.rx.drain().collect();
        port.tx.iter_mut().for_each(|queue| left.extend(queue.drain()));
        for queue in self.ports.values_mut().flat_map(|port| &mut port.tx) {
            let waiting: Vec<Descriptor> = queue.drain().collect();
            for descriptor in waiting {
                if descriptor.destination == node {
                    left.push(descriptor);
                } else {
                    let _ = queue.push(descriptor);
                }
            }
        }
        left
    }

    /// Posts a descriptor in one of its source's transmit queues.
    ///
    /// # Errors
    ///
    /// The descriptor itself if there is no such queue, no such destination, or no room.
    pub fn post(&mut self, queue: usize, descriptor: Descriptor) -> Result<(), Descriptor> {
        if !self.ports.contains_key(&descriptor.destination) {
            return Err(descriptor);
        }
        let port = self.ports.get_mut(&descriptor.source).ok_or(descriptor)?;
        port.tx.get_mut(queue).ok_or(descriptor)?.push(descriptor)
    }

    /// Whether a buffer's descriptor waits in a queue.
    pub fn is_waiting(&self, reference: FabricAddress) -> bool {
        let queues = self.ports.values().flat_map(|port| port.tx.iter().chain([&port.rx]));
        queues.flat_map(VirtualQueue::iter).any(|descriptor| descriptor.reference == reference)
    }

    /// The next descriptor that a node has received.
    pub fn receive(&mut self, node: NodeId) -> Option<Descriptor> {
        self.ports.get_mut(&node)?.rx.pop()
    }

    /// Moves up to `budget` descriptors. Returns how many.
    pub fn poll(&mut self, now: u64, budget: usize) -> usize {
        let mut moved = 0;
        loop {
            let before = moved;
            let queues: Vec<(NodeId, usize)> = self.queues_from_turn();
            for (node, queue) in queues {
                if moved == budget {
                    return moved;
                }
                if self.move_one(node, queue, now) {
                    moved += 1;
                    self.turn = (node, queue + 1);
                }
            }
            if moved == before {
                return moved;
            }
        }
    }

    /// Something to tell a node, if it is time.
    pub fn poll_notice(&mut self, now: u64) -> Option<Notice> {
        for (node, port) in &mut self.ports {
            if port.interrupts.due(now, self.rule) {
                return Some(Notice::Interrupt(*node, std::mem::take(&mut port.interrupts.count)));
            }
            if port.completions.due(now, self.rule) {
                return Some(Notice::Completion(*node, std::mem::take(&mut port.completions.count)));
            }
        }
        None
    }

    /// When [`Dispatcher::poll_notice`] has something to say at the latest.
    pub fn next_timeout(&self) -> Option<u64> {
        let gathered = self.ports.values().flat_map(|port| [&port.interrupts, &port.completions]);
        gathered.filter_map(|gathered| gathered.deadline(self.rule)).min()
    }

    /// All queues that have something, the one whose turn it is first.
    fn queues_from_turn(&self) -> Vec<(NodeId, usize)> {
        let all = self.ports.iter().flat_map(|(node, port)| {
            port.tx.iter().enumerate().filter(|(_, queue)| !queue.is_empty()).map(|(index, _)| (*node, index))
        });
        let (mut later, earlier): (Vec<_>, Vec<_>) = all.partition(|queue| *queue >= self.turn);
        later.extend(earlier);
        later
    }

    fn move_one(&mut self, node: NodeId, queue: usize, now: u64) -> bool {
        let next = self.ports.get(&node).and_then(|port| port.tx.get(queue)?.peek().copied());
        let Some(descriptor) = next else { return false };
        let Some(to) = self.ports.get_mut(&descriptor.destination) else { return false };
        if to.rx.push(descriptor).is_err() {
            return false;
        }
        to.interrupts.add(now);
        if let Some(from) = self.ports.get_mut(&node) {
            from.tx[queue].pop();
            from.completions.add(now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Coalescing = Coalescing { count: 4, delay: 1000 };

    fn dispatcher(nodes: u32, depth: usize) -> Dispatcher {
        let mut dispatcher = Dispatcher::new(RULE);
        (1..=nodes).for_each(|node| assert!(dispatcher.join(NodeId(node), 2, depth)));
        dispatcher
    }

    fn descriptor(source: u32, destination: u32, n: u64) -> Descriptor {
        Descriptor { source: NodeId(source), destination: NodeId(destination), reference: FabricAddress(n), length: 64 }
    }

    #[test]
    fn descriptors_arrive_in_order_and_full_queues_hold_up_only_themselves() {
        let mut dispatcher = dispatcher(3, 2);
        for n in 0..2 {
            dispatcher.post(0, descriptor(1, 2, n)).unwrap();
            dispatcher.post(1, descriptor(1, 3, 10 + n)).unwrap();
        }
        assert_eq!(dispatcher.poll(0, 100), 4);
        for n in 2..4 {
            dispatcher.post(0, descriptor(1, 2, n)).unwrap();
        }
        assert_eq!(dispatcher.post(0, descriptor(1, 2, 9)), Err(descriptor(1, 2, 9)), "full");
        dispatcher.post(1, descriptor(1, 3, 12)).unwrap();
        assert_eq!(dispatcher.poll(0, 100), 0);
        assert_eq!(dispatcher.receive(NodeId(3)).map(|d| d.reference.0), Some(10));
        assert_eq!(dispatcher.poll(0, 100), 1, "node 2 has no room, node 3 has");
        for n in 0..2 {
            assert_eq!(dispatcher.receive(NodeId(2)).map(|d| d.reference.0), Some(n));
        }
        assert_eq!(dispatcher.poll(0, 100), 2);
        assert_eq!(dispatcher.receive(NodeId(2)).map(|d| d.reference.0), Some(2));
    }

    #[test]
    fn turns_are_fair() {
        let mut dispatcher = dispatcher(3, 8);
        for n in 0..4 {
            dispatcher.post(0, descriptor(1, 3, n)).unwrap();
            dispatcher.post(0, descriptor(2, 3, 10 + n)).unwrap();
        }
        for _ in 0..4 {
            dispatcher.poll(0, 1);
        }
        let order: Vec<u64> = std::iter::from_fn(|| dispatcher.receive(NodeId(3))).map(|d| d.reference.0).collect();
        assert_eq!(order, [0, 10, 1, 11]);
    }

    #[test]
    fn notices_are_coalesced() {
        let mut dispatcher = dispatcher(2, 8);
        dispatcher.post(0, descriptor(1, 2, 0)).unwrap();
        dispatcher.poll(5, 100);
        assert_eq!((dispatcher.poll_notice(5), dispatcher.next_timeout()), (None, Some(1005)));
        for n in 1..4 {
            dispatcher.post(0, descriptor(1, 2, n)).unwrap();
        }
        dispatcher.poll(6, 100);
        let notices: Vec<Notice> = std::iter::from_fn(|| dispatcher.poll_notice(6)).collect();
        assert_eq!(notices, [Notice::Completion(NodeId(1), 4), Notice::Interrupt(NodeId(2), 4)]);
        dispatcher.post(0, descriptor(1, 2, 4)).unwrap();
        dispatcher.poll(7, 100);
        assert_eq!(dispatcher.poll_notice(1006), None);
        assert_eq!(dispatcher.poll_notice(1007), Some(Notice::Completion(NodeId(1), 1)));
    }

    #[test]
    fn nobody_waits_for_the_dead() {
        let mut dispatcher = dispatcher(2, 8);
        dispatcher.post(0, descriptor(1, 2, 0)).unwrap();
        dispatcher.post(0, descriptor(1, 1, 1)).unwrap();
        let left = dispatcher.leave(NodeId(2));
        assert_eq!(left, [descriptor(1, 2, 0)]);
        assert_eq!(dispatcher.post(0, descriptor(1, 2, 2)), Err(descriptor(1, 2, 2)));
        assert_eq!(dispatcher.poll(0, 100), 1);
    }
}
