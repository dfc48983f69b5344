//! DFabric: references within a rack, and between racks the pool of NICs.

use remora_rack::{
    Coalescing, Descriptor, Dispatcher, FabricAddress, FlowId, FlowPolicy, Mapping, NicPool, NodeId, Notice,
};

use super::Event;
use super::flow::Packet;
use crate::component::cxl::{CxlPort, CxlPortParams};
use crate::component::dram_cache::{DramCache, DramCacheParams};
use crate::component::ethernet::{Ethernet, EthernetParams};
use crate::component::poller::{Poller, PollerParams};
use crate::event::WheelQueue;
use crate::platform::{Accel, Platform, RackCosts};
use crate::resource::{Channel, Usage};
use crate::time::Ps;

/// A rack of DFabric: what it has, and which of its mechanisms work.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricSpec {
    /// NICs of each rack's pool.
    pub nics: usize,
    /// How segments come to them.
    pub mapping: Mapping,
    /// Subflows of a flow; 0: as many as the platform says, and no fewer than NICs.
    pub subflows: u16,
    /// Whether the receiver puts subflows together again. If not, TCP sees what is out of order.
    pub resequenced: bool,
    /// Whether nodes have a DRAM cache.
    pub cached: bool,
    /// Memory devices that receive; 0: all of the pool.
    pub devices: u64,
    /// The devices' bandwidth as a part of what the platform says.
    pub device_share: f64,
    /// Whether queues are polled all at once.
    pub polls_at_once: bool,
    /// A read of the pool's memory; `None`: what the platform says.
    pub read: Option<Ps>,
    /// Switches beyond the first.
    pub hops: u64,
}

impl FabricSpec {
    /// All mechanisms, and so many NICs.
    pub fn whole(nics: usize) -> Self {
        Self {
            nics,
            mapping: Mapping::Depth,
            subflows: 0,
            resequenced: true,
            cached: true,
            devices: 0,
            device_share: 1.0,
            polls_at_once: true,
            read: None,
            hops: 0,
        }
    }

    pub(super) fn policy(&self, costs: &RackCosts, segment: u64) -> FlowPolicy {
        let subflows = match self.subflows {
            0 => costs.subflows.max(self.nics as u64) as u16,
            subflows => subflows,
        };
        FlowPolicy {
            mapping: self.mapping,
            subflows,
            segment: segment as u32,
            window: costs.window,
            ..FlowPolicy::default()
        }
    }
}

/// What a memory device of a pool is called where it is said how busy things were.
pub const MEMORY_DEVICE: &str = "a memory device";
/// Packets below this are loaded line by line: they are filtered before the cache (section 4.6).
const FILTER: u64 = 256;
/// Descriptors that a node's receive queue has room for.
const DEPTH: usize = 1 << 16;

/// One node's part.
struct Node {
    port: CxlPort,
    cache: Option<DramCache>,
    poller: Poller,
}

/// One rack's part.
struct RackPart {
    pool: NicPool,
    dispatcher: Dispatcher,
    /// What NICs send, and who looks for what they have received.
    nics: Vec<Ethernet>,
    completions: Poller,
    devices: Vec<Channel>,
    /// Buffers that are free, and how many there are.
    free: Vec<u64>,
    buffers: u64,
    /// By the buffer's number, the packet that lies in it on its way within the rack.
    passing: std::collections::BTreeMap<u64, u32>,
}

/// Both racks.
pub(super) struct Fabric {
    nodes: Vec<Node>,
    racks: [RackPart; 2],
    in_rack: usize,
    forward: Ps,
    completion: Ps,
    latency: Ps,
    header: u64,
    /// Descriptors' references need not be buffers: acknowledgements have none.
    next_reference: u64,
}

/// What happens at the end of a packet's way: when its header and its last byte are there.
pub(super) struct Landed {
    pub header: Ps,
    pub last: Ps,
}

impl Fabric {
    pub fn new(
        platform: &Platform,
        costs: &RackCosts,
        spec: &FabricSpec,
        in_rack: usize,
        (rate, header, segment): (f64, u64, u64),
    ) -> Option<Self> {
        let (accel, ethernet) = (platform.accel.as_ref()?, &platform.nic.as_ref()?.ethernet);
        let policy = spec.policy(costs, segment);
        let port = port(platform, accel, costs, spec);
        let look_ps = port.round_trip().0;
        // A queue for each subflow, and one for what stays in the rack.
        let queues = usize::from(policy.subflows) + 1;
        let poller = |queues| Poller::new(&PollerParams { queues, look_ps, at_once: spec.polls_at_once });
        let cache = DramCacheParams {
            size_bytes: accel.cache_size,
            granule_bytes: ethernet.mtu,
            ways: costs.cache_ways as usize,
            hit_ps: accel.cache_latency,
        };
        let node =
            || Node { port: port.clone(), cache: spec.cached.then(|| DramCache::new(&cache)), poller: poller(queues) };
        let wire = EthernetParams {
            rate_bytes_per_s: rate,
            latency_ps: ethernet.latency,
            overhead_bytes: header,
            order: ethernet.order,
        };
        let device = Channel::new(costs.device_bandwidth * spec.device_share).ordered(costs.order);
        let devices = if spec.devices == 0 { costs.devices } else { spec.devices };
        let rack = || {
            let mut dispatcher = Dispatcher::new(Coalescing { count: 1, delay: 0 });
            (0..in_rack).for_each(|node| _ = dispatcher.join(NodeId(node as u32), queues, DEPTH));
            RackPart {
                pool: NicPool::new(policy, spec.nics as u16, 0),
                dispatcher,
                nics: vec![Ethernet::new(&wire); spec.nics],
                completions: poller(spec.nics),
                devices: vec![device.clone(); devices as usize],
                free: Vec::new(),
                buffers: 0,
                passing: std::collections::BTreeMap::new(),
            }
        };
        Some(Self {
            nodes: (0..2 * in_rack).map(|_| node()).collect(),
            racks: [rack(), rack()],
            in_rack,
            forward: Ps(costs.forward),
            completion: Ps(costs.completion),
            latency: Ps(ethernet.latency),
            header,
            next_reference: 0,
        })
    }

    fn rack(&mut self, node: usize) -> &mut RackPart {
        &mut self.racks[node / self.in_rack]
    }

    /// A flow between racks begins.
    pub fn open(&mut self, flow: usize, from: usize) {
        let pool = &mut self.rack(from).pool;
        pool.open(FlowId(flow as u64));
        // TCP says how much may be under way.
        pool.allow(FlowId(flow as u64), u64::MAX);
    }

    /// A flow has bytes up to this one for the pool.
    pub fn offer(&mut self, flow: usize, from: usize, end: u64) {
        self.rack(from).pool.offer(FlowId(flow as u64), end);
    }

    /// The next segment that a NIC of a node's rack has room for.
    pub fn poll(&mut self, now: Ps, node: usize) -> Option<remora_rack::Segment> {
        self.rack(node).pool.poll(now.0 / 1000)
    }

    /// A segment is in the other rack's memory.
    pub fn done(&mut self, now: Ps, node: usize, tag: u64) {
        self.rack(node).pool.done(now.0 / 1000, tag);
    }

    /// A descriptor is in a node's transmit queue: when its port's logic has it.
    pub fn posted(&mut self, now: Ps, node: usize, queue: usize) -> Ps {
        self.nodes[node].poller.see(now, queue) + self.forward
    }

    /// The logic of a port passes a reference on within the rack. Packets that it is time to tell their receivers of, with
    /// the time at which they are interrupted, go to `queue`.
    pub fn pass(
        &mut self,
        now: Ps,
        (number, packet): (u32, &mut Packet),
        (from, to): (usize, usize),
        queue: &mut WheelQueue<Event>,
    ) {
        let (in_rack, reference) = (self.in_rack, self.next_reference);
        self.next_reference += 1;
        let post = self.nodes[to].port.post(Ps::ZERO);
        let rack = &mut self.racks[from / in_rack];
        if !packet.ack {
            packet.buffer = rack.take();
        }
        rack.passing.insert(reference, number);
        let [source, destination] = [from, to].map(|node| NodeId((node % in_rack) as u32));
        let length = u64::from(packet.len) + self.header;
        let descriptor = Descriptor { source, destination, reference: FabricAddress(reference), length };
        let ns = now.0 / 1000;
        let _ = rack.dispatcher.post(0, descriptor);
        rack.dispatcher.poll(ns, DEPTH);
        while let Some(notice) = rack.dispatcher.poll_notice(ns) {
            let Notice::Interrupt(node, _) = notice else { continue };
            while let Some(descriptor) = rack.dispatcher.receive(node) {
                if let Some(number) = rack.passing.remove(&descriptor.reference.0) {
                    queue.push(now + post, Event::Arrive(number));
                }
            }
        }
    }

    /// The logic of a port gives a descriptor to a NIC, which sends the buffer: when the buffer is free and TCP knows.
    pub fn transmit(
        &mut self,
        now: Ps,
        (number, packet): (u32, &Packet),
        node: usize,
        queue: &mut WheelQueue<Event>,
    ) -> Ps {
        let bytes = u64::from(packet.len) + self.header;
        let port = &mut self.nodes[node].port;
        let look = port.round_trip();
        let (first, last) = port.give(now, bytes);
        let wire = &mut self.racks[node / self.in_rack].nics[packet.nic];
        let (_, arrived) = wire.pass((first + look, last + look), packet.len.into());
        queue.push(arrived, Event::NicReceived(number));
        arrived - self.latency + look + self.completion
    }

    /// When a buffer that was passed on within the rack is free.
    pub fn freed(&self, now: Ps) -> Ps {
        now + self.completion
    }

    /// A NIC has a packet and writes it to a memory device: when that is done, and when its node is interrupted.
    pub fn received(&mut self, now: Ps, packet: &mut Packet, to: usize) -> (Ps, Ps) {
        let (header, forward) = (self.header, self.forward);
        let post = self.nodes[to].port.post(Ps::ZERO);
        let rack = self.rack(to);
        packet.buffer = rack.take();
        let device = (packet.buffer % rack.devices.len() as u64) as usize;
        let (_, written) = rack.devices[device].serve(now, u64::from(packet.len) + header);
        let seen = rack.completions.see(written, packet.nic);
        (written, seen + forward + post)
    }

    /// The kernel of a node looks at a packet that came from `from`: when its header is there, and when its last byte can be
    /// read.
    pub fn land(&mut self, at: Ps, packet: &Packet, (from, to): (usize, usize)) -> Landed {
        let bytes = u64::from(packet.len) + self.header;
        let within = from / self.in_rack == to / self.in_rack;
        let [source, node] = match self.nodes.get_disjoint_mut([from, to]) {
            Ok(both) => both,
            Err(_) => return Landed { header: at, last: at },
        };
        let devices = &mut self.racks[to / self.in_rack].devices;
        let device = (packet.buffer % devices.len() as u64) as usize;
        let Some(cache) = node.cache.as_mut().filter(|_| bytes >= FILTER) else {
            let (first, last) = node.port.load(at, bytes.min(64));
            return Landed { header: first, last };
        };
        let port = &mut node.port;
        let (header, last) = cache.access(at, packet.buffer, |at| {
            let there = if within { source.port.give(at, bytes) } else { devices[device].serve(at, bytes) };
            port.fetch(there, bytes)
        });
        Landed { header, last }
    }

    /// A program's core reads so many bytes of a buffer: when it may begin to copy, and what it waits beside copying.
    pub fn read(&mut self, at: Ps, (buffer, last): (u64, Ps), bytes: u64, node: usize) -> (Ps, Ps) {
        let Node { port, cache, .. } = &mut self.nodes[node];
        match cache {
            Some(cache) if bytes >= FILTER => {
                // It was fetched when its header was read; what was evicted since then is fetched again.
                let (_, last) = cache.access(at.max(last), buffer, |at| port.fetch((at, at), bytes));
                (last.max(at), Ps::ZERO)
            }
            _ => (at, port.load(at, bytes).1 - at),
        }
    }

    /// A buffer is given back.
    pub fn free(&mut self, buffer: u64, node: usize) {
        if let Some(cache) = &mut self.nodes[node].cache {
            cache.free(buffer);
        }
        self.rack(node).free.push(buffer);
    }

    /// How long a segment's arrival takes to be known at its sender.
    pub fn back(&self) -> Ps {
        self.latency
    }

    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        let mut all = Vec::new();
        for rack in &self.racks {
            all.extend(rack.nics.iter().map(|nic| Usage { name: "a NIC of the pool", ..nic.usage(span) }));
            all.extend(rack.devices.iter().map(|device| device.usage(MEMORY_DEVICE, span)));
        }
        all.extend(self.nodes.iter().flat_map(|node| node.port.usage(span)));
        all
    }
}

impl RackPart {
    fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.buffers += 1;
            self.buffers - 1
        })
    }
}

fn port(platform: &Platform, accel: &Accel, costs: &RackCosts, spec: &FabricSpec) -> CxlPort {
    CxlPort::new(&CxlPortParams {
        read_ps: spec.read.map_or(accel.read_latency, |read| read.0),
        hop_ps: costs.hop,
        hops: spec.hops,
        bandwidth_bytes_per_s: accel.bandwidth * accel.efficiency,
        // The core's own line fills, or what the instruction set's extension allows, whichever is less.
        outstanding: platform.host.misses.min(accel.in_flight) as usize,
        order: accel.order,
    })
}
