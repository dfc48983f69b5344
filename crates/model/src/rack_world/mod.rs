//! Two racks of nodes whose programs talk over TCP: each node with its NIC behind ToR switches, or as DFabric has them,
//! with memory and NICs in pools.
//!
//! What decides is engine code: [`remora_rack::NicPool`] cuts flows into segments and chooses NICs, its `Dispatcher` moves
//! descriptors, its `Resequencer` puts streams together again. This world adds time: cores, ports, wires, memory devices.
//! Programs are lists of steps. Every packet says what it holds, and a run in which a byte comes to the wrong place, twice
//! or not at all is an error.

mod fabric;
mod flow;
mod host;
mod tor;

use std::collections::BTreeMap;

use remora_rack::{BeyondWindow, FlowPolicy};

use crate::component::tcp::{AfterAck, TcpParams};
use crate::event::WheelQueue;
use crate::platform::Platform;
use crate::resource::{Usage, binding};
use crate::time::Ps;

pub use fabric::{FabricSpec, MEMORY_DEVICE};
pub use host::RackStep;

use fabric::Fabric;
use flow::{Arrived, Flow, Packet};
use host::{Costs, Doing, Host};
use tor::Tor;

/// What joins the nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum RackSystem {
    /// A NIC of its own for each node, and ToR switches: so many NICs, ideally bonded, as are the links between the racks.
    Baseline {
        /// NICs of a node.
        nics: u64,
    },
    /// Pools.
    Fabric(FabricSpec),
}

/// Two racks, and what their nodes do.
#[derive(Clone, Debug)]
pub struct RackWorldSpec {
    /// What joins them.
    pub system: RackSystem,
    /// Bytes a second of a NIC.
    pub nic_bytes_per_s: f64,
    /// Programs of the nodes: those of the first rack, then as many of the second.
    pub programs: Vec<Vec<RackStep>>,
    /// Whether programs copy what they receive.
    pub receive_copied: bool,
    /// Whether TCP has only little of a socket below itself.
    pub small_queues: bool,
    /// The span over which traffic is counted.
    pub slice: Ps,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RackFigures {
    /// When the last program was done.
    pub end: Ps,
    /// The times that programs noted.
    pub marks: Vec<Vec<Ps>>,
    /// The most that a program computed.
    pub computed: Ps,
    /// Bytes that programs received.
    pub delivered: u64,
    /// Packets that switches dropped.
    pub dropped: u64,
    /// Segments that were sent again, and timeouts.
    pub resent: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Bytes that came to nodes in each slice of time: from their own rack, and from the other.
    pub slices: Vec<(u64, u64)>,
    /// What was busiest, and how busy.
    pub binding: (String, f64),
    /// Of each kind of thing how busy the busiest was.
    pub busy: BTreeMap<&'static str, f64>,
    /// Events that it took.
    pub events: u64,
}

/// Why there is no such world, or why it does not go on.
#[derive(Debug, thiserror::Error)]
pub enum RackWorldError {
    /// The platform lacks something.
    #[error("platform {0} describes no {1}")]
    Lacks(String, &'static str),
    /// Two racks have as many nodes each.
    #[error("{0} programs are not those of two racks of the same size")]
    Uneven(usize),
    /// A program names a node that is not there, or itself.
    #[error("node {0} talks to node {1}, which is not another one of the racks")]
    NoSuchNode(usize, usize),
    /// Nothing goes on although programs are not done.
    #[error("{0} programs never end")]
    Stuck(usize),
    /// A packet held what belongs elsewhere.
    #[error("bytes {offset} and on of the stream from node {from} to node {to} are not what was sent")]
    Wrong {
        /// Who sent.
        from: usize,
        /// To whom.
        to: usize,
        /// Where.
        offset: u64,
    },
    /// A sender went beyond what its receiver allows.
    #[error(transparent)]
    Beyond(#[from] BeyondWindow),
    /// Not all that was sent was received.
    #[error("{sent} B were sent from node {from} to node {to}, and {received} B received")]
    Missing {
        /// Who sent.
        from: usize,
        /// To whom.
        to: usize,
        /// Bytes.
        sent: u64,
        /// Bytes.
        received: u64,
    },
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A node's program goes on.
    App(u32),
    /// The kernel has a packet ready.
    Transmit(u32),
    /// A packet's first bit is at its rack's switch.
    AtSwitch(u32),
    /// A packet's first bit is at the port to its node.
    AtPort(u32),
    /// The logic of a port has a descriptor.
    Seen(u32),
    /// A NIC of the pool has a packet.
    NicReceived(u32),
    /// A segment of the pool is known to be in the other rack's memory.
    Arrived(u32, u64),
    /// A node is interrupted for a packet.
    Arrive(u32),
    /// A node's kernel is done with a packet.
    Processed(u32),
    /// Bytes of a flow have left the node.
    Freed(u32, u32),
    /// A flow's timer may be due.
    Timer(u32),
    /// Segments of a flow may have waited long enough for others to be acknowledged with.
    Unacknowledged(u32),
}

enum Network {
    Tor(Box<Tor>),
    Fabric(Box<Fabric>),
}

struct World {
    queue: WheelQueue<Event>,
    hosts: Vec<Host>,
    flows: Vec<Flow>,
    packets: Vec<Packet>,
    spare: Vec<u32>,
    network: Network,
    costs: Costs,
    /// Payload of a segment.
    segment: u64,
    in_rack: usize,
    nics: usize,
    receive_copied: bool,
    small_queue: Option<u64>,
    slice: Ps,
    running: usize,
    figures: RackFigures,
}

/// IP's and TCP's headers.
const HEADERS: u64 = 40;
/// The kernel copies so much at once.
const PIECE: u64 = 64 << 10;

/// Runs programs to their end.
pub fn run(platform: &Platform, spec: &RackWorldSpec) -> Result<RackFigures, RackWorldError> {
    let mut world = World::new(platform, spec)?;
    for host in 0..world.hosts.len() {
        world.queue.push(Ps::ZERO, Event::App(host as u32));
    }
    while world.running > 0 {
        let Some((now, event)) = world.queue.pop() else { return Err(RackWorldError::Stuck(world.running)) };
        world.figures.events += 1;
        world.happens(now, event)?;
    }
    world.finish()
}

#[cfg(test)]
mod tests;

impl World {
    fn new(platform: &Platform, spec: &RackWorldSpec) -> Result<Self, RackWorldError> {
        let lacks = |what| RackWorldError::Lacks(platform.name.clone(), what);
        let costs = platform.rack.as_ref().ok_or_else(|| lacks("racks that share memory and NICs"))?;
        let ethernet = &platform.nic.as_ref().ok_or_else(|| lacks("NIC"))?.ethernet;
        let nodes = spec.programs.len();
        if nodes == 0 || nodes % 2 == 1 {
            return Err(RackWorldError::Uneven(nodes));
        }
        let in_rack = nodes / 2;
        let segment = ethernet.mtu.saturating_sub(HEADERS).max(1);
        let overhead = crate::component::ethernet::FRAME_OVERHEAD + HEADERS;
        let (network, policy, nics) = match &spec.system {
            RackSystem::Baseline { nics } => {
                let rate = spec.nic_bytes_per_s * *nics as f64;
                let tor = Tor::new(platform, costs, in_rack, rate, overhead).ok_or_else(|| lacks("switch"))?;
                let policy = FlowPolicy { window: costs.window, ..FlowPolicy::default() };
                (Network::Tor(Box::new(tor)), policy, 1)
            }
            RackSystem::Fabric(fabric) => {
                let what = (spec.nic_bytes_per_s, overhead, segment);
                let made = Fabric::new(platform, costs, fabric, in_rack, what);
                let made = made.ok_or_else(|| lacks("CXL link"))?;
                (Network::Fabric(Box::new(made)), fabric.policy(costs, segment), fabric.nics.max(1))
            }
        };
        let mut world = Self {
            queue: WheelQueue::new(),
            hosts: spec.programs.iter().map(|program| Host::new(&platform.host, program.clone())).collect(),
            flows: Vec::new(),
            packets: Vec::new(),
            spare: Vec::new(),
            network,
            costs: Costs::new(costs),
            segment,
            in_rack,
            nics,
            receive_copied: spec.receive_copied,
            small_queue: spec.small_queues.then_some(costs.small_queue),
            slice: spec.slice,
            running: nodes,
            figures: RackFigures::default(),
        };
        let tcp = TcpParams {
            segment_bytes: segment,
            initial_window: costs.initial_window,
            min_rto_ps: costs.min_rto,
            window_bytes: costs.window,
        };
        world.connect(spec, &tcp, &policy)?;
        Ok(world)
    }

    /// A flow for each pair of nodes of which one sends to the other.
    fn connect(&mut self, spec: &RackWorldSpec, tcp: &TcpParams, policy: &FlowPolicy) -> Result<(), RackWorldError> {
        let nodes = self.hosts.len();
        for (node, program) in spec.programs.iter().enumerate() {
            for step in program {
                let (from, to) = match *step {
                    RackStep::Send { to, .. } => (node, to),
                    RackStep::Receive { from, .. } => (from, node),
                    _ => continue,
                };
                let other = if from == node { to } else { from };
                if from == to || other >= nodes {
                    return Err(RackWorldError::NoSuchNode(node, other));
                }
                if self.hosts[from].to.contains_key(&to) {
                    continue;
                }
                let number = self.flows.len();
                let between = from / self.in_rack != to / self.in_rack;
                let (pooled, in_order) = match (&mut self.network, &spec.system) {
                    (Network::Fabric(fabric), RackSystem::Fabric(spec)) if between => {
                        fabric.open(number, from);
                        (true, !spec.resequenced)
                    }
                    _ => (false, true),
                };
                self.hosts[from].to.insert(to, number);
                self.hosts[to].from.insert(from, number);
                self.flows.push(Flow::new(from, to, tcp, policy, pooled, in_order));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<RackFigures, RackWorldError> {
        for flow in &self.flows {
            let (sent, received) = (flow.written, flow.taken());
            if sent != received || !flow.ready.is_empty() {
                return Err(RackWorldError::Missing { from: flow.from, to: flow.to, sent, received });
            }
        }
        let end = self.hosts.iter().map(|host| host.done).max().unwrap_or_default();
        let mut usages: Vec<Usage> = self.hosts.iter().flat_map(|host| host.usage(end)).collect();
        match &self.network {
            Network::Tor(tor) => {
                self.figures.dropped = tor.dropped();
                usages.extend(tor.usage(end));
            }
            Network::Fabric(fabric) => usages.extend(fabric.usage(end)),
        }
        if let Some(most) = binding(&usages) {
            self.figures.binding = (most.name.into(), most.busy.min(1.0));
        }
        for usage in &usages {
            let most = self.figures.busy.entry(usage.name).or_default();
            *most = most.max(usage.busy.min(1.0));
        }
        self.figures.end = end;
        self.figures.computed = self.hosts.iter().map(|host| host.computed).max().unwrap_or_default();
        self.figures.marks = self.hosts.into_iter().map(|host| host.marks).collect();
        Ok(self.figures)
    }

    fn happens(&mut self, now: Ps, event: Event) -> Result<(), RackWorldError> {
        match event {
            Event::App(host) => self.app(now, host as usize),
            Event::Transmit(number) => self.transmit(now, number),
            Event::AtSwitch(number) | Event::AtPort(number) => {
                let packet = self.packets[number as usize];
                let ends = self.ends(&packet);
                let Network::Tor(tor) = &mut self.network else { return Ok(()) };
                let forwarded = match event {
                    Event::AtSwitch(_) => tor.at_switch(now, (number, &packet), ends, &mut self.queue),
                    _ => tor.at_port(now, (number, &packet), ends.1, &mut self.queue),
                };
                if !forwarded {
                    self.spare.push(number);
                }
            }
            Event::Seen(number) => self.seen(now, number),
            Event::NicReceived(number) => {
                let ends = self.ends(&self.packets[number as usize]);
                let packet = &mut self.packets[number as usize];
                let Network::Fabric(fabric) = &mut self.network else { return Ok(()) };
                let (written, told) = fabric.received(now, packet, ends.1);
                self.queue.push(told, Event::Arrive(number));
                if let Some(tag) = packet.tag {
                    self.queue.push(written + fabric.back(), Event::Arrived(ends.0 as u32, tag));
                }
            }
            Event::Arrived(node, tag) => {
                if let Network::Fabric(fabric) = &mut self.network {
                    fabric.done(now, node as usize, tag);
                }
                self.hand_out(now, node as usize);
            }
            Event::Arrive(number) => self.arrive(now, number),
            Event::Processed(number) => self.processed(now, number)?,
            Event::Freed(flow, bytes) => {
                let queued = &mut self.flows[flow as usize].queued;
                *queued = queued.saturating_sub(bytes.into());
                self.pump(now, flow as usize);
            }
            Event::Timer(flow) => self.timer(now, flow as usize),
            // One that came later may be meant: it is acknowledged a little early.
            Event::Unacknowledged(flow) if self.flows[flow as usize].unacked > 0 => {
                self.acknowledge(now, flow as usize);
            }
            Event::Unacknowledged(_) => {}
        }
        Ok(())
    }

    /// The nodes that a packet comes from and goes to.
    fn ends(&self, packet: &Packet) -> (usize, usize) {
        let flow = &self.flows[packet.flow];
        if packet.ack { (flow.to, flow.from) } else { (flow.from, flow.to) }
    }

    /// A program goes on.
    fn app(&mut self, now: Ps, number: usize) {
        match std::mem::take(&mut self.hosts[number].doing) {
            Doing::Done => return self.hosts[number].doing = Doing::Done,
            Doing::Writing { flow, piece, left } => {
                self.flows[flow].written += piece;
                self.pump(now, flow);
                if left > 0 {
                    return self.write(now, number, flow, left);
                }
            }
            Doing::Reading { flow, piece, left } => {
                self.took(now, flow, piece);
                if left > 0 {
                    return self.read(now, number, flow, left);
                }
            }
            Doing::Waiting { flow, left } => return self.read(now, number, flow, left),
            Doing::Next => {}
        }
        let host = &mut self.hosts[number];
        let Some(&step) = host.program.get(host.step) else {
            (host.doing, host.done) = (Doing::Done, now);
            return self.running -= 1;
        };
        host.step += 1;
        match step {
            RackStep::Send { to, bytes } => {
                if let Some(&flow) = host.to.get(&to) {
                    self.write(now, number, flow, bytes);
                }
            }
            RackStep::Receive { from, bytes } => {
                if let Some(&flow) = host.from.get(&from) {
                    self.read(now, number, flow, bytes);
                }
            }
            RackStep::Compute(span) => {
                host.computed += span;
                self.busy(now, number, span);
            }
            RackStep::Reduce(bytes) => self.busy(now, number, self.costs.reduce(bytes)),
            RackStep::Mark => {
                host.marks.push(now);
                self.queue.push(now, Event::App(number as u32));
            }
        }
    }

    fn busy(&mut self, now: Ps, number: usize, span: Ps) {
        let (_, end) = self.hosts[number].app.serve(now, span);
        self.queue.push(end, Event::App(number as u32));
    }

    fn write(&mut self, now: Ps, number: usize, flow: usize, left: u64) {
        let piece = left.min(PIECE);
        self.hosts[number].doing = Doing::Writing { flow, piece, left: left - piece };
        self.busy(now, number, self.costs.copy(piece));
    }

    /// Takes what has come of a flow, or waits for it.
    fn read(&mut self, now: Ps, number: usize, flow: usize, left: u64) {
        let Some(&Arrived { len, last, buffer }) = self.flows[flow].ready.front() else {
            self.hosts[number].doing = if left == 0 { Doing::Next } else { Doing::Waiting { flow, left } };
            if left == 0 {
                self.queue.push(now, Event::App(number as u32));
            }
            return;
        };
        let piece = left.min(len);
        self.hosts[number].doing = Doing::Reading { flow, piece, left: left - piece };
        if !self.receive_copied {
            return self.busy(now, number, Ps::ZERO);
        }
        let stalls = match &mut self.network {
            Network::Tor(_) => Ps::ZERO,
            Network::Fabric(fabric) => {
                let (begins, waits) = fabric.read(now, (buffer, last), piece, number);
                begins - now + waits
            }
        };
        // While the bytes are on their way the core has nothing else to do: its program waits for them.
        self.hosts[number].app_stalls(stalls);
        self.busy(now, number, stalls + self.costs.copy(piece));
    }

    /// A program has bytes of a flow.
    fn took(&mut self, now: Ps, number: usize, piece: u64) {
        self.figures.delivered += piece;
        let flow = &mut self.flows[number];
        let to = flow.to;
        let mut empty = None;
        if let Some(front) = flow.ready.front_mut() {
            front.len -= piece;
            empty = (front.len == 0).then_some(front.buffer);
        }
        if let Some(buffer) = empty {
            flow.ready.pop_front();
            if let Network::Fabric(fabric) = &mut self.network {
                fabric.free(buffer, to);
            }
        }
        flow.take(piece);
        // A sender that may have come to its limit hears of room.
        if flow.told < flow.whole() + 2 * self.segment && flow.allows() > flow.told {
            self.acknowledge(now, number);
        }
    }

    /// Sends what TCP, its receiver and the queues below it allow.
    fn pump(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        let limit = flow.tcp.limit().min(flow.limit).min(flow.written);
        if flow.pooled {
            // Of several subflows each is a socket.
            let room = self.small_queue.map_or(u64::MAX, |queue| (queue * flow.sockets).saturating_sub(flow.queued));
            let from = flow.offered;
            let mut end = limit.min(from.saturating_add(room));
            if end < flow.written {
                end = from + (end.saturating_sub(from)) / self.segment * self.segment;
            }
            if end > from {
                flow.offered = end;
                flow.queued += end - from;
                let node = flow.from;
                if let Network::Fabric(fabric) = &mut self.network {
                    fabric.offer(number, node, end);
                }
                self.hand_out(now, node);
            }
            return;
        }
        loop {
            let flow = &mut self.flows[number];
            let next = flow.tcp.next();
            let room = limit.saturating_sub(next);
            let again = flow.boundary(next);
            let len = again.unwrap_or((flow.written - next).min(self.segment) as u32);
            let queue_full =
                self.small_queue.is_some_and(|most| flow.queued > 0 && flow.queued + u64::from(len) > most);
            if len == 0 || u64::from(len) > room || queue_full {
                return;
            }
            if again.is_none() {
                flow.sent.push_back((next, len));
            } else {
                self.figures.resent += 1;
            }
            flow.queued += u64::from(len);
            self.send(now, number, (next, len), None);
        }
    }

    /// The pool's NICs get what they have room for, of all flows of a node's rack.
    fn hand_out(&mut self, now: Ps, node: usize) {
        loop {
            let Network::Fabric(fabric) = &mut self.network else { return };
            let Some(segment) = fabric.poll(now, node) else { return };
            let flow = segment.flow.0 as usize;
            self.flows[flow].sent.push_back((segment.offset, segment.len));
            self.send(now, flow, (segment.offset, segment.len), Some(segment));
        }
    }

    /// The kernel makes a packet of a segment.
    fn send(&mut self, now: Ps, number: usize, (offset, len): (u64, u32), by: Option<remora_rack::Segment>) {
        let flow = &mut self.flows[number];
        let end = offset + u64::from(len);
        flow.tcp.sent(now, end);
        let packet = Packet {
            flow: number,
            offset,
            len,
            order: flow.left,
            push: end == flow.written,
            content: flow.content(offset, len),
            nic: by.map_or(number % self.nics, |segment| segment.nic.0.into()),
            tag: by.map(|segment| segment.tag),
            queue: by.map_or(0, |segment| usize::from(segment.subflow) + 1),
            ..Packet::default()
        };
        flow.left += 1;
        let from = flow.from;
        self.arm(now, number);
        let work = self.costs.send;
        let (_, ready) = self.hosts[from].soft(number).serve(now, work);
        let packet = self.keep(packet);
        self.queue.push(ready, Event::Transmit(packet));
    }

    fn keep(&mut self, packet: Packet) -> u32 {
        match self.spare.pop() {
            Some(number) => {
                self.packets[number as usize] = packet;
                number
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    fn transmit(&mut self, now: Ps, number: u32) {
        let packet = self.packets[number as usize];
        let (from, _) = self.ends(&packet);
        match &mut self.network {
            Network::Tor(tor) => {
                let left = tor.send(now, (number, &packet), from, &mut self.queue);
                self.left(left + self.costs.interrupt, &packet);
            }
            Network::Fabric(fabric) => {
                let seen = fabric.posted(now, from, packet.queue);
                self.queue.push(seen, Event::Seen(number));
            }
        }
    }

    fn seen(&mut self, now: Ps, number: u32) {
        let packet = self.packets[number as usize];
        let ends = self.ends(&packet);
        let Network::Fabric(fabric) = &mut self.network else { return };
        let free = if ends.0 / self.in_rack == ends.1 / self.in_rack {
            fabric.pass(now, (number, &mut self.packets[number as usize]), ends, &mut self.queue);
            fabric.freed(now)
        } else {
            fabric.transmit(now, (number, &packet), ends.0, &mut self.queue)
        };
        self.left(free, &packet);
    }

    /// A packet is no longer below TCP from `at` on.
    fn left(&mut self, at: Ps, packet: &Packet) {
        if self.small_queue.is_some() && !packet.ack {
            self.queue.push(at, Event::Freed(packet.flow as u32, packet.len));
        }
    }

    /// A node's kernel takes a packet: the first of several has to interrupt it.
    fn arrive(&mut self, now: Ps, number: u32) {
        let packet = self.packets[number as usize];
        let (from, to) = self.ends(&packet);
        self.count(now, &packet, from / self.in_rack != to / self.in_rack);
        let work = if packet.ack { self.costs.ack } else { self.costs.receive };
        let core = self.hosts[to].soft(packet.flow);
        let interrupt = if core.end() <= now { self.costs.interrupt } else { Ps::ZERO };
        let begins = core.start(now, work) + interrupt;
        let header = match &mut self.network {
            Network::Tor(_) => begins,
            Network::Fabric(fabric) => {
                let landed = fabric.land(begins, &packet, (from, to));
                self.packets[number as usize].last = landed.last;
                landed.header
            }
        };
        let stalls = header - begins;
        self.hosts[to].soft_stalls(packet.flow, stalls);
        let (_, end) = self.hosts[to].soft(packet.flow).serve(now, interrupt + stalls + work);
        self.queue.push(end, Event::Processed(number));
    }

    fn count(&mut self, now: Ps, packet: &Packet, between: bool) {
        let slice = (now.0 / self.slice.0.max(1)) as usize;
        if self.figures.slices.len() <= slice {
            self.figures.slices.resize(slice + 1, (0, 0));
        }
        let (within, other) = &mut self.figures.slices[slice];
        *(if between { other } else { within }) += u64::from(packet.len) + HEADERS;
    }

    /// TCP takes a packet.
    fn processed(&mut self, now: Ps, number: u32) -> Result<(), RackWorldError> {
        let packet = self.packets[number as usize];
        self.spare.push(number);
        if packet.ack {
            self.acknowledged(now, &packet);
            return Ok(());
        }
        let flow = &mut self.flows[packet.flow];
        let (from, to) = (flow.from, flow.to);
        if flow.content(packet.offset, packet.len) != packet.content {
            return Err(RackWorldError::Wrong { from, to, offset: packet.offset });
        }
        let next = flow.arrive(&packet)?;
        flow.unacked += 1;
        let expected = next == Some(true);
        flow.quick = if expected { flow.quick.saturating_sub(1) } else { flow::QUICK };
        let at_once = flow.unacked >= 2 || packet.push || flow.quick > 0 || (flow.in_order && !expected);
        if next.is_none()
            && let Network::Fabric(fabric) = &mut self.network
        {
            fabric.free(packet.buffer, to);
        }
        match at_once {
            true => self.acknowledge(now, packet.flow),
            false => self.queue.push(now + self.costs.delayed_ack, Event::Unacknowledged(packet.flow as u32)),
        }
        let waits = matches!(self.hosts[to].doing, Doing::Waiting { flow, .. } if flow == packet.flow);
        if waits && let Some(ready) = self.flows[packet.flow].ready.front().copied() {
            // Once: from now on it is about to read.
            let Doing::Waiting { flow, left } = self.hosts[to].doing else { return Ok(()) };
            self.hosts[to].doing = Doing::Reading { flow, piece: 0, left };
            debug_assert!(ready.len > 0);
            self.queue.push(now + self.costs.wake, Event::App(to as u32));
        }
        Ok(())
    }

    /// A receiver says how far it has come and how far its sender may go.
    fn acknowledge(&mut self, now: Ps, number: usize) {
        let work = self.costs.ack;
        let flow = &mut self.flows[number];
        (flow.unacked, flow.told) = (0, flow.allows());
        let packet = Packet {
            flow: number,
            ack: true,
            offset: flow.whole(),
            limit: flow.told,
            gap: flow.has_gap(),
            nic: number % self.nics,
            ..Packet::default()
        };
        let to = flow.to;
        let (_, ready) = self.hosts[to].soft(number).serve(now, work);
        let packet = self.keep(packet);
        self.queue.push(ready, Event::Transmit(packet));
    }

    fn acknowledged(&mut self, now: Ps, packet: &Packet) {
        let flow = &mut self.flows[packet.flow];
        flow.limit = flow.limit.max(packet.limit);
        // Who puts subflows together again does not take what is out of order for a loss.
        let news = packet.offset > flow.tcp.acknowledged();
        if news || (flow.in_order && packet.gap) {
            let after = flow.tcp.acked(now, packet.offset);
            flow.forget(packet.offset);
            match after {
                AfterAck::GoOn => {}
                AfterAck::Retransmit => self.resend(now, packet.flow),
                AfterAck::Another => match flow.lost().filter(|_| !flow.pooled) {
                    Some(segment) => self.send_again(now, packet.flow, segment),
                    None => flow.tcp.grow(),
                },
            }
        }
        self.pump(now, packet.flow);
        self.arm(now, packet.flow);
    }

    /// Sends the first segment again that was not acknowledged.
    fn resend(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        let Some(&(offset, len)) = flow.sent.front() else { return };
        // Once in a recovery: it is under way again.
        if flow.mended <= offset {
            flow.mended = offset + u64::from(len);
            self.send_again(now, number, (offset, len));
        } else if let Some(segment) = flow.lost() {
            self.send_again(now, number, segment);
        }
    }

    fn send_again(&mut self, now: Ps, number: usize, segment: (u64, u32)) {
        let flow = &mut self.flows[number];
        flow.queued += u64::from(segment.1);
        flow.sends_again(segment);
        self.figures.resent += 1;
        self.send(now, number, segment, None);
    }

    /// Looks at a flow's timer when it may go off, and no later.
    fn arm(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        let Some(deadline) = flow.tcp.deadline().map(|at| at.max(now)) else { return };
        if flow.timer.is_none_or(|at| deadline < at) {
            flow.timer = Some(deadline);
            self.queue.push(deadline, Event::Timer(number as u32));
        }
    }

    fn timer(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        // An earlier look has come since, and later ones.
        if flow.timer.is_none_or(|at| at > now) {
            return;
        }
        flow.timer = None;
        let Some(deadline) = flow.tcp.deadline() else { return };
        if deadline > now {
            return self.arm(now, number);
        }
        if flow.tcp.lost_patience(now) {
            self.resend(now, number);
        } else {
            self.figures.timeouts += 1;
            flow.tcp.timed_out(now);
            flow.begins_anew();
            if flow.pooled {
                self.resend(now, number);
            }
        }
        if !self.flows[number].pooled {
            self.pump(now, number);
        }
        self.arm(now, number);
    }
}
