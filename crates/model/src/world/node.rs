//! Nodes: how calls get to kernels, how these run, and how their answers go back. A client runs kernels, too.

use std::rc::Rc;
use std::sync::Arc;

use remora_kernel::{Call, Kernel, Limits, Placement, Status};
use remora_memory::{Pd, Registry};
use remora_nic::{RpcRequest, SendOp, Sge, WorkCompletion};
use remora_wire::rpc::RpcHeader;

use super::WorldError;
use super::adapter::Posted;
use super::bus::Event;
use super::client::{CLIENT, MAX_CALLS, MAX_REQUEST, NODE};
use super::fabric::Fabric;
use super::hardware::ProcessorId;
use super::processor::Arrival;
use super::site::{Site, SiteMemory};
use super::streams::{FEED_ROOM, Stream};
use super::tasks::{Tasks, Turn, tasks};
use super::verbs::{SLOT_ID, VerbMemory, Verbs};
use crate::time::Ps;

/// Whom a running kernel answers.
pub(super) enum Asker {
    /// The call of this connection and number, at the client itself.
    Here(u16, u32),
    /// A kernel call that this NIC received.
    Rpc(RpcRequest, u16),
    /// A call to the host over this connection.
    Host(u16, RpcHeader),
}

/// A place that runs kernels.
pub(super) struct Place {
    /// The NIC that its answers leave by, unless a call came over another.
    nic: u16,
    pub processor: ProcessorId,
    pub site: Rc<Site>,
    pub tasks: Box<dyn Tasks>,
    askers: Vec<Option<Asker>>,
    pub spare: Vec<Call>,
    /// The connection whose verbs are its memory, at a client.
    connection: Option<u16>,
}

/// Where a node runs kernels.
pub(super) struct Node {
    /// Places of its NICs.
    nics: Vec<usize>,
    host: usize,
    accelerator: Option<usize>,
    /// Where RPC verbs go that a NIC received, NIC by NIC.
    rpc: Vec<usize>,
}

/// Kernels of any type.
pub(super) trait Kernels {
    /// Runs them over a machine's own memory.
    fn here(&self, site: Rc<Site>, registry: Arc<Registry>, pd: Pd) -> Box<dyn Tasks>;
    /// Runs them over verbs.
    fn remote(&self, site: Rc<Site>, verbs: Rc<Verbs>) -> Box<dyn Tasks>;
}

/// Kernels of one type.
pub(super) struct AnyKernels<K>(pub K);

impl<K: Kernel + Clone + 'static> Kernels for AnyKernels<K> {
    fn here(&self, site: Rc<Site>, registry: Arc<Registry>, pd: Pd) -> Box<dyn Tasks> {
        let memory = move |call: &Call| SiteMemory::new(site.clone(), registry.clone(), pd, call.op);
        tasks(self.0.clone(), memory, MAX_CALLS, Limits::default())
    }

    fn remote(&self, site: Rc<Site>, verbs: Rc<Verbs>) -> Box<dyn Tasks> {
        let memory = move |call: &Call| VerbMemory::new(verbs.clone(), site.clone(), call.op);
        tasks(self.0.clone(), memory, MAX_CALLS, Limits::default())
    }
}

impl Fabric {
    /// Makes a machine a node, if it is none yet: it has a place for each processor that it has.
    pub(super) fn serve_at(&mut self, machine: usize) -> Result<(), WorldError> {
        if self.software[machine].node.is_some() {
            return Ok(());
        }
        let nics = self.machines[machine].nics.clone();
        for nic in nics.clone() {
            self.ops.iter().for_each(|&op| self.adapters[usize::from(nic)].nic.deploy(op));
        }
        let places = nics.clone().map(|nic| self.place(nic, Placement::Nic)).collect::<Result<Vec<_>, _>>()?;
        let host = self.place(nics.start, Placement::Host)?;
        let accelerator = match self.spec.machines[machine].accel {
            Some(_) => Some(self.place(nics.start, Placement::Accelerator)?),
            None => None,
        };
        self.software[machine].node = Some(Node { rpc: places.clone(), nics: places, host, accelerator });
        self.serve(machine as u16, self.spec.rpc_place)
    }

    /// Says who serves RPC verbs on a node from now on: its NICs, its accelerator, or the host for which the NICs do not.
    /// None may be under way.
    pub fn serve(&mut self, machine: u16, placement: Placement) -> Result<(), WorldError> {
        let what = self.spec.machines.get(usize::from(machine)).map(|spec| spec.processor(placement));
        let node = self.software.get_mut(usize::from(machine)).and_then(|software| software.node.as_mut());
        let (Some(node), Some(what)) = (node, what) else {
            return Err(WorldError::Unknown { what: "node", number: machine });
        };
        let all = |place: usize| vec![place; node.nics.len()];
        node.rpc = match placement {
            Placement::Nic => node.nics.clone(),
            Placement::Host => all(node.host),
            Placement::Accelerator => all(node.accelerator.ok_or(WorldError::NoProcessor { machine, what })?),
            Placement::Client => return Err(WorldError::AtClient),
        };
        Ok(())
    }

    /// A new place for kernels of a node; its processor is beside this NIC if each NIC has one.
    fn place(&mut self, nic: u16, placement: Placement) -> Result<usize, WorldError> {
        let adapter = &self.adapters[usize::from(nic)];
        let (registry, pd) = {
            let machine = &self.machines[usize::from(adapter.machine)];
            (machine.registry.clone(), machine.pd)
        };
        let writer = self.software[usize::from(adapter.machine)].writer.clone();
        let processor = self.processor(nic, placement)?;
        let site = Site::new(processor, adapter.hardware.clone(), writer);
        let tasks = self.kernels.here(site.clone(), registry, pd);
        Ok(self.add_place(Place::new(nic, processor, site, tasks, None)))
    }

    /// A new place for kernels at a client, whose memory is what a connection's verbs reach.
    pub(super) fn client_place(&mut self, nic: u16, connection: u16, verbs: &Rc<Verbs>) -> Result<usize, WorldError> {
        let processor = self.processor(nic, Placement::Client)?;
        let nobody = Default::default();
        let site = Site::new(processor, self.adapters[usize::from(nic)].hardware.clone(), nobody);
        let tasks = self.kernels.remote(site.clone(), verbs.clone());
        Ok(self.add_place(Place::new(nic, processor, site, tasks, Some(connection))))
    }

    fn processor(&self, nic: u16, placement: Placement) -> Result<ProcessorId, WorldError> {
        let adapter = &self.adapters[usize::from(nic)];
        let (machine, what) = (adapter.machine, self.spec.machines[usize::from(adapter.machine)].processor(placement));
        let found = adapter.hardware.borrow().find(what, adapter.slot);
        found.ok_or(WorldError::NoProcessor { machine, what })
    }

    fn add_place(&mut self, place: Place) -> usize {
        self.places.push(place);
        self.places.len() - 1
    }

    /// A core of a machine does what kernel `op` does with `bytes` of data. What its software does next waits for it.
    pub fn work(&mut self, machine: u16, op: u64, bytes: usize) {
        if let Some(machine) = self.machines.get(usize::from(machine)) {
            let board = &mut machine.hardware.borrow_mut().board;
            let work = board.work(op, bytes);
            if work > Ps::ZERO {
                board.cores.run(self.now, work);
            }
        }
    }

    /// The place that serves RPC verbs which a NIC of a node received.
    pub(super) fn rpc_place(&self, nic: u16) -> Option<usize> {
        let adapter = &self.adapters[usize::from(nic)];
        let node = self.software[usize::from(adapter.machine)].node.as_ref()?;
        node.rpc.get(adapter.slot).copied()
    }

    pub(super) fn post_inbox(&mut self, number: u16, recv: u64) -> Result<(), WorldError> {
        let connection = &self.connections[usize::from(number)];
        let va = connection.inbox.1.va() + recv * MAX_REQUEST as u64;
        let sge = Sge { va, len: MAX_REQUEST as u32, lkey: connection.inbox.1.key() };
        let adapter = &mut self.adapters[usize::from(connection.nics[NODE])];
        Ok(adapter.nic.post_recv(connection.qps[NODE], recv, &[sge])?)
    }

    /// A node's host sees a call.
    pub(super) fn take_request(&mut self, number: u16, wc: &WorkCompletion) -> Result<(), WorldError> {
        let mut bytes = std::mem::take(&mut self.scratch.2);
        bytes.resize((wc.byte_len as usize).min(MAX_REQUEST), 0);
        let connection = &self.connections[usize::from(number)];
        let nic = connection.nics[NODE];
        let _ = connection.inbox.0.read(wc.wr_id as usize * MAX_REQUEST, &mut bytes);
        self.post_inbox(number, wc.wr_id)?;
        let node = self.software[usize::from(self.adapters[usize::from(nic)].machine)].node.as_ref();
        if let (Ok(header), Some((op, params)), Some(place)) = (
            RpcHeader::parse(&bytes),
            bytes.get(RpcHeader::LEN..).and_then(<[u8]>::split_first_chunk::<8>),
            node.map(|node| node.host),
        ) {
            let mut call = self.places[place].spare.pop().unwrap_or_default();
            call.recycle(u64::from_le_bytes(*op), header.reply_capacity);
            call.params.extend_from_slice(params);
            let len = call.params.len();
            if let Some(task) = self.start(place, call, Asker::Host(number, header)) {
                self.dispatch(place, task, nic, (len, true));
            }
        }
        self.scratch.2 = bytes;
        Ok(())
    }

    /// Starts kernels that a NIC of a node has calls for.
    pub(super) fn start_rpcs(&mut self, nic: u16) {
        let Some(place) = self.rpc_place(nic) else { return };
        while self.adapters[usize::from(nic)].nic.wants_rpc() && self.places[place].tasks.in_flight() < MAX_CALLS {
            let Some(mut request) = self.adapters[usize::from(nic)].nic.poll_rpc() else { return };
            let mut call = self.places[place].spare.pop().unwrap_or_default();
            call.recycle(request.op, request.reply_capacity());
            std::mem::swap(&mut call.params, &mut request.params);
            std::mem::swap(&mut call.reply, &mut request.reply);
            let (names, len) = ((nic, request.id, request.op), call.params.len());
            let feed = request.stream.then(|| call.open_stream(FEED_ROOM));
            if let Some(task) = self.start(place, call, Asker::Rpc(request, nic)) {
                let begun = self.dispatch(place, task, nic, (len, false));
                self.streams.extend(feed.map(|feed| Stream::new(names, (place, task), feed, begun)));
            }
        }
    }

    /// Puts a call among the kernels of a place. `None` if there is no room.
    pub(super) fn start(&mut self, place: usize, mut call: Call, asker: Asker) -> Option<u32> {
        let place = &mut self.places[place];
        let machine = self.adapters[usize::from(place.nic)].machine;
        call.pd = Some(self.machines[usize::from(machine)].pd);
        match place.tasks.start(call) {
            Ok(task) => {
                place.askers[task as usize] = Some(asker);
                Some(task)
            }
            Err(call) => {
                place.spare.push(call);
                None
            }
        }
    }

    /// The way of a request of `len` bytes, from a NIC or from what software saw, to its kernel's first step.
    fn dispatch(&mut self, place: usize, task: u32, nic: u16, (len, seen): (usize, bool)) -> Ps {
        let adapter = &self.adapters[usize::from(nic)];
        let mut hardware = adapter.hardware.borrow_mut();
        let (processor, board) = hardware.processor(self.places[place].processor);
        let at = processor.dispatch(board, Arrival { nic: adapter.slot, seen }, self.now, len);
        self.bus.queue.push(at, Event::Wake { place: place as u16, task });
        at
    }

    /// A kernel goes on.
    pub(super) fn run(&mut self, number: usize, task: u32) {
        let place = &mut self.places[number];
        place.site.enter(self.now, task);
        let turn = place.tasks.poll(task);
        place.site.take_wakes(&mut self.scratch.0);
        for (time, task) in self.scratch.0.drain(..) {
            self.bus.queue.push(time, Event::Wake { place: number as u16, task });
        }
        if let Some(connection) = place.connection {
            self.post_asks(connection);
        }
        match turn {
            Turn::Done(call, status) => self.finish(number, task, call, status),
            // One that waits for its stream goes on with the next chunk.
            Turn::GaveWay if !self.has_stream(number, task) => {
                let at = self.places[number].site.at();
                self.bus.queue.push(at, Event::Wake { place: number as u16, task });
            }
            Turn::GaveWay | Turn::Waits => {}
        }
    }

    /// Posts the verbs that kernels at a client ask for.
    fn post_asks(&mut self, connection: u16) {
        let mut asks = std::mem::take(&mut self.scratch.1);
        self.connections[usize::from(connection)].verbs.take_asks(&mut asks);
        for ask in asks.drain(..) {
            let sge = Some(self.connections[usize::from(connection)].verbs.sge(&ask));
            let wr_id = SLOT_ID | u64::from(ask.slot);
            self.issue(connection, CLIENT, ask.at, Posted::Verb { wr_id, op: ask.op, sge, signaled: true }, &[]);
        }
        self.scratch.1 = asks;
    }

    /// A kernel has ended: its answer goes on its way.
    fn finish(&mut self, number: usize, task: u32, mut call: Call, status: Status) {
        self.close_stream(number, task);
        let place = &mut self.places[number];
        let at = place.site.at();
        if status != Status::Ok {
            call.reply.clear();
        }
        match place.askers[task as usize].take() {
            Some(Asker::Here(connection, id)) => {
                let slot = &mut self.connections[usize::from(connection)].calls[id as usize];
                slot.status = Some(status);
                std::mem::swap(&mut slot.reply, &mut call.reply);
                self.bus.queue.push(at, Event::Finish { connection, call: id });
            }
            Some(Asker::Rpc(mut request, nic)) => {
                std::mem::swap(&mut call.params, &mut request.params);
                std::mem::swap(&mut call.reply, &mut request.reply);
                let adapter = &self.adapters[usize::from(nic)];
                let mut hardware = adapter.hardware.borrow_mut();
                let (processor, board) = hardware.processor(place.processor);
                let reaches = processor.answer(board, adapter.slot, at, request.reply.len());
                // Not by the task's number: the next call may have it before the answer arrives.
                let answer = self.free_answers.pop().unwrap_or_else(|| {
                    self.answers.push(None);
                    self.answers.len() as u32 - 1
                });
                self.answers[answer as usize] = Some((nic, request, status));
                self.bus.queue.push(reaches, Event::Answer { answer });
            }
            Some(Asker::Host(connection, header)) => {
                let imm = remora_wire::rpc::reply_imm(header.tag, status.code());
                let op = SendOp::WriteImm { va: header.reply_va, rkey: header.reply_rkey, imm };
                let reply = std::mem::take(&mut call.reply);
                self.post(connection, NODE, at, op, &reply, header.tag);
                call.reply = reply;
            }
            None => {}
        }
        self.places[number].spare.push(call);
    }
}

impl Place {
    fn new(nic: u16, processor: ProcessorId, site: Rc<Site>, tasks: Box<dyn Tasks>, connection: Option<u16>) -> Self {
        let askers = (0..MAX_CALLS).map(|_| None).collect();
        Self { nic, processor, site, tasks, askers, spare: Vec::new(), connection }
    }
}
