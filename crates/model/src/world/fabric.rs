//! Machines and what joins them, and the loop that lets things happen there.

use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use remora_kernel::hll::Sketch;
use remora_kernel::{Builtins, Kernel, Placement, op};
use remora_memory::{Buffer, Region};
use remora_nic::{RpcRequest, WcOpcode, WcStatus};
use remora_service::{CallAnswer, RpcVerbs, StagedVerb, WorkId};
use remora_wire::Opcode;

use super::adapter::{Adapter, engine_time};
use super::bus::{Bus, Event, TraceEntry};
use super::client::{Connection, Done, Ended, Notice};
use super::hardware::Hardware;
use super::machine::Machine;
use super::network::{Network, NetworkSpec};
use super::node::{AnyKernels, Front, Kernels, Node, Place};
use super::spec::path_mtu;
use super::streams::Stream;
use super::writer::Writer;
use super::{MachineSpec, WorldError};
use crate::component::ethernet::EthernetParams;
use crate::component::memory_device::{MemoryDevice, MemoryDeviceParams, device_base};
use crate::platform::Platform;
use crate::resource::Usage;
use crate::time::Ps;

/// Machines, memory devices, and what joins them.
#[derive(Clone, Debug)]
pub struct FabricSpec {
    /// Machines. Their NICs are counted through, those of the first machine first.
    pub machines: Vec<MachineSpec>,
    /// Cables and switches.
    pub network: NetworkSpec,
    /// Memory devices.
    pub devices: Vec<DeviceSpec>,
    /// Bytes of payload in a packet.
    pub mtu: u32,
    /// The part of packets that are lost on their way.
    pub loss: f64,
    /// Seeds keys, numbers, and which packets are lost.
    pub seed: u64,
    /// Who serves RPC verbs on nodes at first.
    pub rpc_place: Placement,
}

/// Memory without a machine.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// Its links and its memory; of links it has one for each machine.
    pub params: MemoryDeviceParams,
    /// The machines that reach it, link by link.
    pub machines: Vec<u16>,
}

impl FabricSpec {
    /// Machines of a platform's hardware at one network: so many clients, then nodes with data of `state` bytes.
    pub fn new(
        platform: &Platform,
        (clients, nodes): (u16, u16),
        network: NetworkSpec,
        (state, seed): (u64, u64),
    ) -> Result<Self, WorldError> {
        let (client, node) = (MachineSpec::client(platform, state)?, MachineSpec::node(platform, state)?);
        let mtu = path_mtu(platform, &node)?;
        let nodes = std::iter::repeat_n(node, nodes.into());
        let machines = std::iter::repeat_n(client, clients.into()).chain(nodes).collect();
        Ok(Self { machines, network, devices: Vec::new(), mtu, loss: 0.0, seed, rpc_place: Placement::Nic })
    }
}

/// A NIC of a machine, both counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicAt {
    /// The machine.
    pub machine: u16,
    /// Which of its NICs.
    pub nic: u16,
}

impl From<u16> for NicAt {
    /// A machine's first NIC.
    fn from(machine: u16) -> Self {
        Self { machine, nic: 0 }
    }
}

/// What has been done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that waited for the network.
    pub round_trips: u64,
    /// Bytes of Ethernet frames with their gaps, all ways.
    pub wire_bytes: u64,
    /// Request packets sent again.
    pub retransmits: u64,
    /// Packets that ports without room dropped, and that were lost on their way, since usage was last forgotten.
    pub dropped: u64,
    /// Packets that ports marked as having met congestion.
    pub marked: u64,
}

/// What a machine has for what runs on it.
#[derive(Default)]
pub(super) struct Software {
    /// Its kernels, once somebody is connected to it.
    pub node: Option<Node>,
    /// What all incoming WRITEs go through.
    pub tap: Option<Sketch>,
    /// Who changes its memory.
    pub writer: Rc<RefCell<Option<Writer>>>,
}

/// Memory that is used again and again.
#[derive(Default)]
pub(super) struct Scratch {
    /// Kernels to wake, and when.
    pub wakes: Vec<(Ps, u32)>,
    /// Verbs to post, and when.
    pub verbs: Vec<(Ps, StagedVerb)>,
    /// A message.
    pub bytes: Vec<u8>,
}

/// A modelled fabric.
pub struct Fabric {
    pub(super) bus: Bus,
    pub(super) now: Ps,
    pub(super) spec: FabricSpec,
    pub(super) machines: Vec<Machine>,
    pub(super) software: Vec<Software>,
    pub(super) adapters: Vec<Adapter>,
    /// What a NIC of a node has for calls.
    pub(super) fronts: Vec<Option<Front>>,
    devices: Vec<Rc<RefCell<MemoryDevice>>>,
    /// Addresses of devices that are still free.
    device_vas: Vec<u64>,
    pub(super) kernels: Box<dyn Kernels>,
    /// Op-codes that NICs answer to.
    pub(super) ops: Vec<u64>,
    pub(super) connections: Vec<Connection>,
    pub(super) places: Vec<Place>,
    /// The call that has just ended, and its reply.
    pub(super) ended: Option<Ended>,
    pub(super) reply: Vec<u8>,
    notices: Vec<Notice>,
    free_notices: Vec<u32>,
    /// Replies on their way from a kernel to a NIC's engine.
    pub(super) answers: Vec<Option<(u16, CallAnswer<RpcRequest>)>>,
    pub(super) free_answers: Vec<u32>,
    pub(super) streams: Vec<Stream>,
    failed: Option<WcStatus>,
    pub(super) scratch: Scratch,
}

impl Fabric {
    /// A fabric whose nodes have the built-in kernels.
    pub fn new(spec: &FabricSpec) -> Result<Self, WorldError> {
        Self::with_kernels(spec, Builtins, &op::BUILTINS)
    }

    /// A fabric whose nodes have these kernels; NICs answer to `ops`.
    pub fn with_kernels<K>(spec: &FabricSpec, kernels: K, ops: &[u64]) -> Result<Self, WorldError>
    where
        K: Kernel + Clone + 'static,
    {
        let (mut machines, mut adapters, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for (index, machine_spec) in (0..).zip(&spec.machines) {
            let first = adapters.len() as u16;
            let machine = Machine::new(index, first, machine_spec, spec.seed);
            for (slot, nic) in machine.nics.clone().enumerate() {
                adapters.push(Adapter::new(nic, &machine, slot, spec.seed)?);
                links.push(EthernetParams::from(&machine_spec.nic.ethernet));
            }
            machines.push(machine);
        }
        let mut devices = Vec::new();
        for device in &spec.devices {
            let links = device.machines.len();
            let made = MemoryDevice::new(&MemoryDeviceParams { links, ..device.params.clone() });
            let made = Rc::new(RefCell::new(made));
            for machine in &mut machines {
                let link = device.machines.iter().position(|at| *at == machine.index);
                machine.hardware.borrow_mut().board.attach(link.map(|link| (made.clone(), link)));
            }
            devices.push(made);
        }
        Ok(Self {
            bus: Bus::new(Network::new(&spec.network, &links), (spec.loss, spec.seed)),
            now: Ps::ZERO,
            software: machines.iter().map(|_| Software::default()).collect(),
            machines,
            fronts: adapters.iter().map(|_| None).collect(),
            adapters,
            device_vas: (0..devices.len()).map(device_base).collect(),
            devices,
            kernels: Box::new(AnyKernels(kernels)),
            ops: ops.to_vec(),
            connections: Vec::new(),
            places: Vec::new(),
            ended: None,
            reply: Vec::new(),
            notices: Vec::new(),
            free_notices: Vec::new(),
            answers: Vec::new(),
            free_answers: Vec::new(),
            streams: Vec::new(),
            failed: None,
            scratch: Scratch::default(),
            spec: spec.clone(),
        })
    }

    /// The present.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.bus.events
    }

    /// Keeps a trace from now on, or hands over the one kept so far.
    pub fn trace(&mut self) -> Vec<TraceEntry> {
        self.bus.trace.replace(Vec::new()).unwrap_or_default()
    }

    /// What the fabric was made of.
    pub fn spec(&self) -> &FabricSpec {
        &self.spec
    }

    /// The hardware of a machine.
    pub fn hardware(&self, machine: u16) -> Option<Ref<'_, Hardware>> {
        Some(self.machines.get(usize::from(machine))?.hardware.borrow())
    }

    /// How busy everything of a machine was since usage was last forgotten, with the switch ports that it has for itself and the
    /// one to it that others share.
    pub fn usage(&self, machine: u16) -> Vec<Usage> {
        let Some(machine) = self.machines.get(usize::from(machine)) else { return Vec::new() };
        let hardware = machine.hardware.borrow();
        let (network, span) = (&self.bus.network, self.now - hardware.since());
        hardware.usage(self.now, machine.nics.clone().flat_map(|nic| network.usage_of(nic, span)))
    }

    /// How busy all ports of switches were since usage was last forgotten, in the order of the cables, a trunk's two
    /// one after the other.
    pub fn ports(&self) -> Vec<Usage> {
        let since = self.machines.first().map_or(Ps::ZERO, |machine| machine.hardware.borrow().since());
        self.bus.network.usage(self.now - since)
    }

    /// Time for which ports held packets back at their senders since usage was last forgotten, all together.
    pub fn paused(&self) -> Ps {
        self.bus.network.paused()
    }

    /// How busy a memory device was since usage was last forgotten.
    pub fn device_usage(&self, device: u16) -> Vec<Usage> {
        let since = self.machines.first().map_or(Ps::ZERO, |machine| machine.hardware.borrow().since());
        let device = self.devices.get(usize::from(device));
        device.map_or_else(Vec::new, |device| device.borrow().usage(self.now - since))
    }

    /// Counts since the fabric was made.
    pub fn counts(&self) -> Counts {
        let bytes = |machine: &Machine| machine.hardware.borrow().board.wire_bytes();
        Counts {
            round_trips: self.connections.iter().map(Connection::round_trips).sum(),
            wire_bytes: self.machines.iter().map(bytes).sum(),
            retransmits: self.adapters.iter().map(|adapter| adapter.nic.counters().retransmits).sum(),
            dropped: self.bus.network.dropped() + self.bus.lost,
            marked: self.bus.marked,
        }
    }

    /// Forgets how busy everything was.
    pub fn reset_usage(&mut self) {
        self.machines.iter().for_each(|machine| machine.hardware.borrow_mut().reset(self.now));
        self.devices.iter().for_each(|device| device.borrow_mut().reset());
        self.bus.network.reset();
        self.bus.lost = 0;
    }

    fn machine(&mut self, number: u16) -> Result<&mut Machine, WorldError> {
        self.machines.get_mut(usize::from(number)).ok_or(WorldError::Unknown { what: "machine", number })
    }

    /// Zeroed memory of a machine.
    pub fn alloc(&mut self, machine: u16, len: u64) -> Result<Arc<Region>, WorldError> {
        Ok(self.machine(machine)?.alloc(len as usize)?.1)
    }

    /// Zeroed memory of a machine, of which only pages that are written take memory here.
    pub fn alloc_sparse(&mut self, machine: u16, len: u64) -> Result<Arc<Region>, WorldError> {
        Ok(self.machine(machine)?.alloc_sparse(len as usize)?.1)
    }

    /// Zeroed memory of a memory device, as each of its machines has it registered: at one address, under a key of its
    /// own.
    pub fn alloc_on_device(&mut self, device: u16, len: u64) -> Result<Vec<Arc<Region>>, WorldError> {
        let unknown = WorldError::Unknown { what: "memory device", number: device };
        let Some(spec) = self.spec.devices.get(usize::from(device)) else { return Err(unknown) };
        let buffer = Buffer::anonymous(len.max(8) as usize)?;
        let next = &mut self.device_vas[usize::from(device)];
        let va = *next;
        *next += len.max(8).next_multiple_of(remora_memory::PAGE_BYTES as u64);
        let machines = spec.machines.clone();
        machines.into_iter().map(|machine| self.machine(machine)?.register(&buffer, va, len.max(8) as usize)).collect()
    }

    /// From now on all links of machines have this part of their rates, 1 for all of it.
    pub fn cap_links(&mut self, part: f64) {
        self.machines.iter().for_each(|machine| machine.hardware.borrow_mut().board.cap_links(part));
    }

    /// Lets somebody change a machine's memory, or nobody.
    pub fn set_writer(&mut self, machine: u16, writer: Option<Writer>) {
        if let Some(software) = self.software.get(usize::from(machine)) {
            *software.writer.borrow_mut() = writer;
        }
    }

    /// From now on the values of all WRITEs to a machine go through a sketch on its NIC, or no more.
    pub fn set_tap(&mut self, machine: u16, sketch: Option<Sketch>) {
        if let Some(software) = self.software.get_mut(usize::from(machine)) {
            software.tap = sketch;
        }
    }

    /// A machine's sketch.
    pub fn tap(&self, machine: u16) -> Option<&Sketch> {
        self.software.get(usize::from(machine))?.tap.as_ref()
    }

    /// Lets a thread of a machine search a node of a tree that lies there, before anything is measured: caches are then as
    /// they are after a while. Nothing else happens.
    pub fn warm(&mut self, machine: u16, thread: usize, va: u64, bytes: u64) {
        if let Some(machine) = self.machines.get(usize::from(machine)) {
            machine.hardware.borrow_mut().board.warm(thread, va, bytes);
        }
    }

    /// Goes on until a call has ended, and hands it over. False if nothing is left to happen.
    pub fn poll(&mut self, done: &mut dyn FnMut(Done<'_>)) -> Result<bool, WorldError> {
        self.poll_until(Ps::MAX, done)
    }

    /// As [`poll`](Self::poll), but no further than `until`: then it is that time, and nothing has ended.
    pub fn poll_until(&mut self, until: Ps, done: &mut dyn FnMut(Done<'_>)) -> Result<bool, WorldError> {
        loop {
            if let Some(status) = self.failed {
                return Err(WorldError::Verb(status));
            }
            if until < Ps::MAX && self.bus.queue.next_time().is_none_or(|next| next > until) {
                self.now = self.now.max(until);
                return Ok(true);
            }
            let Some((time, event)) = self.bus.take_next() else { return Ok(false) };
            self.now = self.now.max(time);
            self.handle(event)?;
            // An event ends one call at most.
            if let Some(ended) = self.ended.take() {
                self.hand_over(ended, done);
                return Ok(true);
            }
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), WorldError> {
        let now = self.now;
        match event {
            Event::Command { nic, post } => self.adapters[usize::from(nic)].see_command(now, post, &mut self.bus)?,
            Event::Take { nic, post } => self.adapters[usize::from(nic)].take_command(now, post, &mut self.bus)?,
            Event::Transmit { nic } => {
                self.look(nic, false);
                self.adapters[usize::from(nic)].transmit(now, &mut self.bus);
            }
            Event::Hop { packet } => self.bus.hop(packet),
            Event::Arrive { packet } => {
                let nic = self.bus.packet(packet).to;
                self.adapters[usize::from(nic)].arrive(now, packet, &mut self.bus);
            }
            Event::Receive { packet } => self.receive(packet)?,
            Event::Timer { nic } => self.adapters[usize::from(nic)].run_timers(now, &mut self.bus),
            Event::Notice { nic, notice } => {
                self.free_notices.push(notice);
                let notice = self.notices[notice as usize];
                self.see(nic, notice)?;
            }
            Event::Wake { place, task } => self.run(place.into(), task),
            Event::Chunk { nic, call } => self.chunk_done(nic, call),
            Event::Answer { answer } => {
                self.free_answers.push(answer);
                if let Some((nic, answer)) = self.answers[answer as usize].take() {
                    let adapter = &mut self.adapters[usize::from(nic)];
                    if let Some(front) = &mut self.fronts[usize::from(nic)] {
                        if let Some(placer) = &mut front.placer {
                            placer.ended(answer.call.tag, answer.status, || engine_time(now));
                        }
                        front.rpcs.answer(&mut RpcVerbs::new(&mut adapter.nic), answer);
                    }
                    adapter.pump(now, &mut self.bus);
                    self.start_rpcs(nic);
                }
            }
            Event::Finish { connection, call } => self.end_here(connection, call),
        }
        Ok(())
    }

    /// Brings a machine's memory up to date with its writer.
    fn look(&mut self, nic: u16, reading: bool) {
        let machine = self.adapters[usize::from(nic)].machine;
        if let Some(writer) = self.software[usize::from(machine)].writer.borrow_mut().as_mut() {
            writer.catch_up(self.now, reading);
        }
    }

    /// A NIC takes a packet; software will see what it completed.
    fn receive(&mut self, packet: u32) -> Result<(), WorldError> {
        let (now, nic) = (self.now, self.bus.packet(packet).to);
        let machine = usize::from(self.adapters[usize::from(nic)].machine);
        let passed = if self.software[machine].tap.is_some() { self.tap_packet(nic, packet) } else { now };
        let (what, landed) = self.adapters[usize::from(nic)].receive(passed, packet, &mut self.bus);
        if let Some((Opcode::RcReadRequest, _)) = what {
            self.look(nic, true);
        }
        while let Some(wc) = self.adapters[usize::from(nic)].poll_cq() {
            // What follows the first is flushed, and says nothing.
            if wc.status != WcStatus::Success {
                self.failed.get_or_insert(wc.status);
            }
            match (wc.opcode, WorkId::decode(wc.wr_id)) {
                (_, WorkId::Unnamed) => continue,
                // Nobody looks for what says that an answer has arrived: its buffer is free.
                (WcOpcode::Write, WorkId::Call(number)) => {
                    self.release(nic, number);
                    continue;
                }
                _ => {}
            }
            self.notify(nic, landed, Notice::Completion(wc));
        }
        if let Some((Opcode::RcWriteOnly | Opcode::RcWriteLast, qp)) = what
            && self.is_polled(nic, qp)
        {
            self.notify(nic, landed, Notice::Landed(qp));
        }
        if self.software[machine].node.is_some() {
            self.start_rpcs(nic);
            self.feed_streams(nic);
        }
        self.adapters[usize::from(nic)].pump(now, &mut self.bus);
        Ok(())
    }

    fn notify(&mut self, nic: u16, landed: Ps, notice: Notice) {
        let number = self.free_notices.pop().unwrap_or_else(|| {
            self.notices.push(notice);
            self.notices.len() as u32 - 1
        });
        self.notices[number as usize] = notice;
        let completion = matches!(notice, Notice::Completion(_));
        let adapter = &self.adapters[usize::from(nic)];
        let seen = adapter.hardware.borrow_mut().board.notice(adapter.slot, self.now, landed, completion);
        self.bus.queue.push(seen, Event::Notice { nic, notice: number });
    }
}

#[cfg(test)]
mod tests;
