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
mod sending;
mod spec;
mod tor;

use remora_rack::FlowPolicy;

use crate::component::tcp::TcpParams;
use crate::event::WheelQueue;
use crate::platform::Platform;
use crate::resource::{Usage, binding};
use crate::time::Ps;

pub use fabric::{FabricSpec, MEMORY_DEVICE};
pub use host::RackStep;
pub use spec::{RackFigures, RackSystem, RackWorldError, RackWorldSpec};

use fabric::Fabric;
use flow::{Arrived, Flow, Packet};
use host::{Costs, Doing, Host};
use tor::Tor;

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
}
