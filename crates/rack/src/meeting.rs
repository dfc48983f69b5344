//! Both ends of a connection find each other in the rack, and get a buffer that only their processes see.
//!
//! A connection is known by its network namespace and its two addresses with ports, which both ends know; nobody else
//! has the same at the same time. Of ends that have them one after the other the kernel's number of the socket tells which is
//! meant: one that is closed late closes no other. When both have said that they are there, the pair's daemon cuts a buffer from a section
//! that is passed to these two processes and to nobody else. It is free again when both ends are closed, or their
//! processes dead.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::address::{FabricAddress, Location, NodeId, Section};
use crate::buffers::BufferDaemon;
use crate::pool::{Device, Pool, PoolError, Rights};

/// A connection: the same for both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    namespace: u64,
    addresses: [SocketAddr; 2],
}

impl Key {
    /// The key of a connection, and which end `own` is.
    pub fn new(namespace: u64, own: SocketAddr, peer: SocketAddr) -> (Self, ConnectionEnd) {
        // A socket connected to itself has one end only, the lower one.
        let end = if own <= peer { ConnectionEnd::Low } else { ConnectionEnd::High };
        let addresses = if end == ConnectionEnd::Low { [own, peer] } else { [peer, own] };
        (Self { namespace, addresses }, end)
    }

    /// The network namespace.
    pub fn namespace(&self) -> u64 {
        self.namespace
    }

    /// The addresses of both ends.
    pub fn addresses(&self) -> [SocketAddr; 2] {
        self.addresses
    }
}

/// An end of a connection: the one with the lower address and port, or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionEnd {
    /// The lower.
    Low = 0,
    /// The higher.
    High = 1,
}

impl ConnectionEnd {
    /// The other one.
    pub fn other(self) -> Self {
        if self == Self::Low { Self::High } else { Self::Low }
    }
}

/// An end of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Which connection.
    pub key: Key,
    /// Which end.
    pub end: ConnectionEnd,
    /// What tells it from all that have had the same addresses: the kernel's number of the socket.
    pub cookie: u64,
}

/// How a meeting place is set up.
#[derive(Clone, Copy, Debug)]
pub struct MeetingConfig {
    /// Sections in the pool.
    pub sections: u32,
    /// Bytes of a connection's buffer.
    pub buffer_bytes: u64,
    /// Connections that wait for their other end, of one process at most.
    pub waiting: usize,
}

/// What a process is told: both ends are here, and there is their buffer. Its section is to be passed along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Whom to tell.
    pub node: NodeId,
    /// Which end it has.
    pub endpoint: Endpoint,
    /// Where the buffer is.
    pub buffer: FabricAddress,
}

#[derive(Debug)]
struct Link {
    /// Whose they are, with the socket's number.
    ends: [Option<(NodeId, u64)>; 2],
    buffer: Option<FabricAddress>,
    pair: (NodeId, NodeId),
    /// Another process may still have it.
    tainted: bool,
}

/// The meeting place.
#[derive(Debug)]
pub struct Meeting {
    config: MeetingConfig,
    pool: Pool,
    links: BTreeMap<Key, Link>,
    /// Buffers by the two processes that see them.
    daemons: BTreeMap<(NodeId, NodeId), BufferDaemon>,
    waiting: BTreeMap<NodeId, usize>,
    /// Buffers that a process may still see of which nothing is known here: not used again, until their whole section is
    /// given up.
    spent: BTreeMap<Section, Vec<FabricAddress>>,
}

const NEAR: Location = Location(0);

impl Meeting {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// [`PoolError::TooLarge`].
    pub fn new(config: MeetingConfig) -> Result<Self, PoolError> {
        let pool = Pool::bootstrap(&[Device { location: NEAR, sections: config.sections }])?;
        let (links, daemons) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { config, pool, links, daemons, waiting: BTreeMap::new(), spent: BTreeMap::new() })
    }

    /// A process has an end of a connection. Tells both if the other end is here, and there is room. First come sections that are
    /// free now: whoever takes them again must not find what their last users still see.
    pub fn attach(&mut self, node: NodeId, endpoint: Endpoint) -> (Vec<Section>, Option<[Introduction; 2]>) {
        let Endpoint { key, end, .. } = endpoint;
        // An end of which there was one already is of a new connection with the same addresses.
        let again = self.links.get(&key).is_some_and(|link| link.ends[end as usize].is_some() || link.buffer.is_some());
        let freed = if again { self.drop_link(key, false) } else { Vec::new() };
        (freed, self.meet(node, endpoint))
    }

    fn meet(&mut self, node: NodeId, endpoint: Endpoint) -> Option<[Introduction; 2]> {
        let Endpoint { key, end, cookie } = endpoint;
        let Some(link) = self.links.get_mut(&key) else {
            let waiting = self.waiting.entry(node).or_default();
            if *waiting < self.config.waiting {
                *waiting += 1;
                let mut ends = [None; 2];
                ends[end as usize] = Some((node, cookie));
                self.links.insert(key, Link { ends, buffer: None, pair: (node, node), tainted: false });
            }
            return None;
        };
        let (peer, theirs) = link.ends[end.other() as usize]?;
        link.ends[end as usize] = Some((node, cookie));
        link.pair = (node.min(peer), node.max(peer));
        let pair = link.pair;
        self.no_longer_waiting(peer);
        let Some(buffer) = self.alloc(pair) else {
            self.links.remove(&key);
            return None;
        };
        if let Some(link) = self.links.get_mut(&key) {
            link.buffer = Some(buffer);
        }
        let other = Endpoint { key, end: end.other(), cookie: theirs };
        Some([Introduction { node, endpoint, buffer }, Introduction { node: peer, endpoint: other, buffer }])
    }

    /// An end is closed. `reusable`: no process that is unknown here can have its buffer. Returns the sections that are
    /// free now.
    pub fn detach(&mut self, node: NodeId, endpoint: Endpoint, reusable: bool) -> Vec<Section> {
        let Endpoint { key, end, cookie } = endpoint;
        let Some(link) = self.links.get_mut(&key) else { return Vec::new() };
        if link.ends[end as usize] != Some((node, cookie)) {
            return Vec::new();
        }
        link.ends[end as usize] = None;
        link.tainted |= !reusable;
        if link.buffer.is_none() {
            self.no_longer_waiting(node);
        }
        if self.links.get(&key).is_some_and(|link| link.ends == [None; 2]) {
            return self.drop_link(key, true);
        }
        Vec::new()
    }

    /// A process is gone: its ends are closed. Returns the sections that are free now.
    pub fn node_died(&mut self, node: NodeId) -> Vec<Section> {
        let both = [ConnectionEnd::Low, ConnectionEnd::High];
        let ends = self.links.iter().flat_map(|(key, link)| both.map(|end| (*key, end, link.ends[end as usize])));
        let of_node = ends.filter_map(|(key, end, whose)| {
            whose.filter(|(other, _)| *other == node).map(|(_, cookie)| Endpoint { key, end, cookie })
        });
        let of_node: Vec<Endpoint> = of_node.collect();
        // It may have children that have the connection.
        let freed = of_node.into_iter().flat_map(|endpoint| self.detach(node, endpoint, false)).collect();
        self.waiting.remove(&node);
        freed
    }

    /// Whether a process still has the end, and the buffer, that it was to be told of.
    pub fn is_current(&self, told: &Introduction) -> bool {
        let Endpoint { key, end, cookie } = told.endpoint;
        let link = self.links.get(&key);
        link.is_some_and(|link| {
            link.buffer == Some(told.buffer) && link.ends[end as usize] == Some((told.node, cookie))
        })
    }

    /// Connections whose two ends are here.
    pub fn connections(&self) -> usize {
        self.links.values().filter(|link| link.buffer.is_some()).count()
    }

    /// The sections of the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether a section is one that a process may see.
    pub fn may_see(&self, node: NodeId, section: Section) -> bool {
        self.pool.check(node, section.start(), 1, Rights::Write).is_ok()
    }

    fn alloc(&mut self, pair: (NodeId, NodeId)) -> Option<FabricAddress> {
        let daemon = self.daemons.entry(pair).or_insert_with(|| BufferDaemon::new(pair.0, 0));
        let buffer = daemon.alloc(&mut self.pool, self.config.buffer_bytes, NEAR).ok();
        match buffer {
            Some(buffer) if pair.0 != pair.1 => {
                let _ = self.pool.grant(pair.0, buffer.section(), pair.1, Rights::Write);
            }
            None if daemon.in_use() == 0 => {
                self.daemons.remove(&pair);
            }
            _ => {}
        }
        buffer
    }

    fn no_longer_waiting(&mut self, node: NodeId) {
        if let Some(waiting) = self.waiting.get_mut(&node) {
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// Forgets a connection. Its buffer is used again only if both ends have closed it and nobody else can have it.
    fn drop_link(&mut self, key: Key, closed: bool) -> Vec<Section> {
        let Some(link) = self.links.remove(&key) else { return Vec::new() };
        let Some(buffer) = link.buffer else {
            link.ends.into_iter().flatten().for_each(|(node, _)| self.no_longer_waiting(node));
            return Vec::new();
        };
        let Some(daemon) = self.daemons.get_mut(&link.pair) else { return Vec::new() };
        let section = buffer.section();
        let mut freed = None;
        if link.tainted || !closed {
            self.spent.entry(section).or_default().push(buffer);
        } else {
            freed = daemon.free(&mut self.pool, buffer).ok().flatten();
        }
        // A section that is taken again is new memory: whoever still sees the old one harms nobody.
        if self.spent.get(&section).is_some_and(|spent| spent.len() == daemon.in_use_of(section)) {
            for buffer in self.spent.remove(&section).unwrap_or_default() {
                freed = daemon.free(&mut self.pool, buffer).ok().flatten();
            }
        }
        if daemon.in_use() == 0 {
            self.daemons.remove(&link.pair);
        }
        let Some(section) = freed else { return Vec::new() };
        // Of a pair that is one process there is nobody else to let go.
        let _ = self.pool.give_back(link.pair.1, section);
        vec![section]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn meeting(sections: u32) -> Meeting {
        Meeting::new(MeetingConfig { sections, buffer_bytes: 1 << 20, waiting: 4 }).unwrap()
    }

    fn key(port: u16) -> Key {
        Key::new(1, ([127, 0, 0, 1], port).into(), ([127, 0, 0, 1], 80).into()).0
    }

    fn low(port: u16) -> Endpoint {
        Endpoint { key: key(port), end: ConnectionEnd::Low, cookie: 7 }
    }

    fn high(port: u16) -> Endpoint {
        Endpoint { end: ConnectionEnd::High, ..low(port) }
    }

    impl Meeting {
        fn told(&mut self, node: NodeId, endpoint: Endpoint) -> Option<[Introduction; 2]> {
            self.attach(node, endpoint).1
        }
    }

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);

    #[test]
    fn both_ends_have_one_key() {
        let (own, peer) = (([127, 0, 0, 1], 5000).into(), ([127, 0, 0, 1], 80).into());
        assert_eq!(Key::new(1, own, peer), (key(5000), ConnectionEnd::High));
        assert_eq!(Key::new(1, peer, own), (key(5000), ConnectionEnd::Low));
        assert_ne!(Key::new(2, peer, own).0, key(5000));
    }

    #[test]
    fn ends_meet_and_only_they_see_the_buffer() {
        let mut meeting = meeting(4);
        assert_eq!(meeting.told(A, high(5000)), None);
        let [to_b, to_a] = meeting.told(B, low(5000)).unwrap();
        assert_eq!((to_b.node, to_b.endpoint, to_a.node, to_a.endpoint), (B, low(5000), A, high(5000)));
        assert_eq!(to_a.buffer, to_b.buffer);
        assert!(meeting.is_current(&to_a) && meeting.is_current(&to_b));
        let section = to_a.buffer.section();
        assert!(meeting.may_see(A, section) && meeting.may_see(B, section) && !meeting.may_see(C, section));
        // A second connection of the pair shares the section, one of another pair does not.
        meeting.told(A, high(5001));
        assert_eq!(meeting.told(B, low(5001)).unwrap()[0].buffer.section(), section);
        meeting.told(C, high(5002));
        assert_ne!(meeting.told(B, low(5002)).unwrap()[0].buffer.section(), section);
        assert_eq!(meeting.connections(), 3);
    }

    #[test]
    fn buffers_come_back_when_both_ends_are_gone() {
        let mut meeting = meeting(4);
        meeting.told(A, high(5000));
        let section = meeting.told(B, low(5000)).unwrap()[0].buffer.section();
        assert_eq!(meeting.detach(A, high(5000), true), []);
        assert_eq!(meeting.detach(A, high(5000), true), [], "once");
        assert_eq!(meeting.detach(B, low(5000), true), [section]);
        assert_eq!(meeting.pool().free_sections(), 4);
        meeting.told(A, high(5000));
        meeting.told(B, low(5000)).unwrap();
        assert_eq!(meeting.node_died(A), []);
        assert_eq!(meeting.node_died(B).len(), 1);
        assert_eq!((meeting.pool().free_sections(), meeting.connections()), (4, 0));
    }

    #[test]
    fn a_connection_with_the_addresses_of_an_old_one_is_new() {
        let mut meeting = meeting(4);
        meeting.told(A, high(5000));
        assert_eq!(meeting.told(A, high(5000)), None, "the first was never met");
        meeting.told(B, low(5000)).unwrap();
        assert_eq!(meeting.told(B, low(5000)), None);
        assert_eq!(meeting.told(A, high(5000)).map(|told| told[0].node), Some(A));
    }

    /// A thread may close a connection after others have made the next one with the same addresses.
    #[test]
    fn who_closes_late_closes_no_other() {
        let mut meeting = meeting(4);
        let [old, new] = [1, 2].map(|cookie| Endpoint { cookie, ..high(5000) });
        meeting.told(A, old);
        meeting.told(A, new);
        assert_eq!(meeting.detach(A, old, true), []);
        let told = meeting.told(B, low(5000)).unwrap();
        assert_eq!(told.map(|told| told.endpoint), [low(5000), new]);
        assert_eq!(meeting.detach(A, old, true), []);
        assert!(told.iter().all(|told| meeting.is_current(told)));
        assert_eq!((meeting.detach(A, new, true).len(), meeting.detach(B, low(5000), true).len()), (0, 1));
    }

    #[test]
    fn who_waits_for_many_waits_in_vain() {
        let mut meeting = meeting(4);
        (5000..5010).for_each(|port| assert_eq!(meeting.told(A, high(port)), None));
        assert!(meeting.told(B, low(5003)).is_some());
        assert!(meeting.told(B, low(5009)).is_none(), "of the others none was remembered");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        /// Live connections never share bytes, and everything is free in the end.
        #[test]
        fn no_two_connections_share_a_buffer(
            steps in prop::collection::vec((0..8u8, 1..4u32, 5000..5006u16, any::<bool>(), any::<bool>(), 0..2u64), 1..200),
        ) {
            let mut meeting = meeting(3);
            let mut live: BTreeMap<Key, FabricAddress> = BTreeMap::new();
            // The memory of sections, as the daemon has it: only two processes ever see it.
            let mut memory: BTreeMap<Section, [NodeId; 2]> = BTreeMap::new();
            for (what, node, port, is_low, reusable, cookie) in steps {
                let (node, end) = (NodeId(node), if is_low { low(port) } else { high(port) });
                let end = Endpoint { cookie, ..end };
                match what {
                    0..=4 => {
                        let (freed, told) = meeting.attach(node, end);
                        freed.iter().for_each(|section| { memory.remove(section); });
                        live.remove(&key(port));
                        if let Some([one, other]) = told {
                            prop_assert_eq!(one.buffer, other.buffer);
                            prop_assert!(live.values().all(|buffer| *buffer != one.buffer));
                            prop_assert!(meeting.may_see(one.node, one.buffer.section()));
                            prop_assert!(meeting.may_see(other.node, one.buffer.section()));
                            let pair = [one.node.min(other.node), one.node.max(other.node)];
                            prop_assert_eq!(*memory.entry(one.buffer.section()).or_insert(pair), pair);
                            live.insert(key(port), one.buffer);
                        }
                    }
                    5 | 6 => meeting.detach(node, end, reusable).iter().for_each(|section| { memory.remove(section); }),
                    _ => meeting.node_died(node).iter().for_each(|section| { memory.remove(section); }),
                }
                live.retain(|key, _| meeting.links.get(key).is_some_and(|link| link.buffer.is_some()));
                prop_assert_eq!(meeting.connections(), live.len());
            }
            (1..4).for_each(|node| { meeting.node_died(NodeId(node)); });
            prop_assert_eq!((meeting.connections(), meeting.pool().free_sections(), meeting.daemons.len()), (0, 3, 0));
        }
    }
}
