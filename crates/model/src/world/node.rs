//! Nodes: how calls get to kernels, how these run, and how their answers go back. A client runs kernels, too.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use remora_kernel::{Call, Kernel, Limits, Placement, Status};
use remora_memory::{Pd, Region, Registry};
use remora_nic::{RpcRequest, SrqId, WorkCompletion};
use remora_service::{
    CallTable, HostAsker, MAX_CALLS, MAX_REPLY, MAX_REQUEST, NodePlacer, Placer, Placing, RECVS, RemoteMemory,
    RpcVerbs, Sends, WorkId,
};

use super::WorldError;
use super::adapter::{Posted, engine_time};
use super::bus::Event;
use super::carriage::ModelStaging;
use super::client::CLIENT;
use super::fabric::Fabric;
use super::hardware::ProcessorId;
use super::processor::Arrival;
use super::site::{Site, SiteMemory};
use super::streams::{FEED_ROOM, Stream};
use super::tasks::{Tasks, Turn, tasks};
use crate::resource::Order;
use crate::time::Ps;

/// RPC verbs that run at once of what one NIC received; one client has half.
const RPCS: usize = 2 * MAX_CALLS;
/// Calls to the host that a NIC brought and whose answers have not all arrived; one client has half.
const SENDS: usize = MAX_CALLS;

/// It only spreads which calls a node times.
const SEED: u64 = 1;

/// Whom a running kernel answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// The call of this connection and number, at the client itself.
    Here(u16, u32),
    /// A kernel call that this NIC received.
    Rpc(u16),
    /// A call to the host by a SEND that this NIC received.
    Send(u16),
}

/// What a NIC of a node has for calls.
pub(super) struct Front {
    /// Calls by RPC verbs.
    pub rpcs: CallTable<RpcRequest>,
    /// Calls to the host, where they come in, and their answers' bytes.
    sends: CallTable<HostAsker>,
    ingress: Sends,
    replies: Arc<Region>,
    srq: SrqId,
    /// Of a node that places calls.
    pub placer: Option<NodePlacer>,
}

impl Front {
    /// Where calls to the host are received.
    pub(super) fn srq(&self) -> SrqId {
        self.srq
    }
}

/// A place that runs kernels.
pub(super) struct Place {
    /// The NIC that its answers leave by, unless a call came over another.
    nic: u16,
    pub processor: ProcessorId,
    pub site: Rc<Site>,
    pub tasks: Box<dyn Tasks>,
    askers: Vec<Option<Asker>>,
    /// Calls to use again, at a client.
    pub spare: Vec<Call>,
    /// The connection whose verbs are its memory, at a client.
    connection: Option<u16>,
    /// Threads that take its calls one after the other, if it has such.
    threads: Option<Threads>,
}

/// Threads of a place: each takes a call and stays with it until it has handed over its answer.
#[derive(Default)]
struct Threads {
    /// Those without a call, by when they are free.
    free: BinaryHeap<Reverse<(Ps, u16)>>,
    /// Calls that no thread has yet: the kernel, and the way of its request unless the call is a thread's own.
    waiting: VecDeque<(u32, Option<u16>, usize)>,
    /// Who of these is next.
    order: Order,
    /// The thread of each kernel, and since when it has it.
    of: Vec<(u16, Ps)>,
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
    fn here(&self, site: Rc<Site>, registry: Arc<Registry>, pd: Pd, capacity: usize) -> Box<dyn Tasks>;
    /// Runs them over verbs.
    fn remote(&self, staging: ModelStaging) -> Box<dyn Tasks>;
}

/// Kernels of one type.
pub(super) struct AnyKernels<K>(pub K);

impl<K: Kernel + Clone + 'static> Kernels for AnyKernels<K> {
    fn here(&self, site: Rc<Site>, registry: Arc<Registry>, pd: Pd, capacity: usize) -> Box<dyn Tasks> {
        let memory = move |call: &Call| SiteMemory::new(site.clone(), registry.clone(), pd, call.op);
        tasks(self.0.clone(), memory, capacity, Limits::default())
    }

    fn remote(&self, staging: ModelStaging) -> Box<dyn Tasks> {
        let memory = move |call: &Call| RemoteMemory::new(staging.clone(), call.op);
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
            self.open_front(nic)?;
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

    /// A NIC of a node gets what it needs for calls.
    fn open_front(&mut self, nic: u16) -> Result<(), WorldError> {
        let adapter = &mut self.adapters[usize::from(nic)];
        let machine = &mut self.machines[usize::from(adapter.machine)];
        let (requests, replies) = (machine.alloc(RECVS * MAX_REQUEST)?, machine.alloc(SENDS * MAX_REPLY)?);
        let front = Front {
            rpcs: CallTable::with_stream_buffer(RPCS, FEED_ROOM),
            sends: CallTable::new(SENDS),
            replies: replies.1.clone(),
            ingress: Sends::new(requests, replies),
            srq: adapter.nic.create_srq(machine.pd, RECVS as u32, 1)?,
            placer: None,
        };
        self.fronts[usize::from(nic)] = Some(front);
        self.post_recvs(nic)
    }

    /// Posts receive buffers for calls to the host.
    fn post_recvs(&mut self, nic: u16) -> Result<(), WorldError> {
        let Some(front) = &mut self.fronts[usize::from(nic)] else { return Ok(()) };
        while let Some((wr_id, sge)) = front.ingress.next_recv() {
            self.adapters[usize::from(nic)].nic.post_srq_recv(front.srq, wr_id, &[sge])?;
        }
        Ok(())
    }

    /// A new place for kernels of a node; its processor is beside this NIC if each NIC has one.
    fn place(&mut self, nic: u16, placement: Placement) -> Result<usize, WorldError> {
        let adapter = &self.adapters[usize::from(nic)];
        let machine = &self.machines[usize::from(adapter.machine)];
        let writer = self.software[usize::from(adapter.machine)].writer.clone();
        let processor = self.processor(nic, placement)?;
        let site = Site::new(processor, adapter.hardware.clone(), writer);
        // As many as all NICs may bring to it.
        let capacity = machine.nics.len() * (RPCS + if placement == Placement::Host { SENDS } else { 0 });
        let tasks = self.kernels.here(site.clone(), machine.registry.clone(), machine.pd, capacity);
        let mut place = Place::new(nic, processor, site, (tasks, capacity));
        let threads = self.spec.machines[usize::from(machine.index)].threads.as_ref();
        place.threads = threads.filter(|_| placement == Placement::Host).map(|threads| Threads {
            free: (0..threads.cores as u16).map(|thread| Reverse((Ps::ZERO, thread))).collect(),
            waiting: VecDeque::new(),
            order: threads.order,
            of: vec![(0, Ps::ZERO); capacity],
        });
        Ok(self.add_place(place))
    }

    /// A new place for kernels at a client, which is open when their memory is there.
    pub(super) fn client_place(&mut self, nic: u16, connection: u16) -> Result<(usize, Rc<Site>), WorldError> {
        let processor = self.processor(nic, Placement::Client)?;
        let site = Site::new(processor, self.adapters[usize::from(nic)].hardware.clone(), Default::default());
        let mut place = Place::new(nic, processor, site.clone(), (Box::new(Closed), MAX_CALLS));
        place.connection = Some(connection);
        Ok((self.add_place(place), site))
    }

    /// Kernels at a client have the memory that a connection's verbs reach.
    pub(super) fn open_place(&mut self, place: usize, staging: &ModelStaging) {
        self.places[place].tasks = self.kernels.remote(staging.clone());
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

    /// The host of the node that a NIC is of.
    fn host_place(&self, nic: u16) -> Option<usize> {
        let machine = usize::from(self.adapters[usize::from(nic)].machine);
        self.software[machine].node.as_ref().map(|node| node.host)
    }

    /// Says who places calls that clients [leave](Self::submit_anywhere) to a node; none may be under way.
    pub fn place_calls(&mut self, machine: u16, placing: Placing) {
        let nics = self.machines.get(usize::from(machine)).map(|machine| machine.nics.clone()).unwrap_or_default();
        for nic in nics {
            self.fronts[usize::from(nic)].iter_mut().for_each(|front| front.placer = placing.placer(SEED));
        }
    }

    /// What places calls that come to a NIC of a node, if anything does.
    pub fn placer(&mut self, nic: u16) -> Option<&mut Placer> {
        self.fronts.get_mut(usize::from(nic))?.as_mut()?.placer.as_mut().map(NodePlacer::placer)
    }

    /// A node's host sees a call.
    pub(super) fn take_request(&mut self, nic: u16, wc: &WorkCompletion) -> Result<(), WorldError> {
        if let Some(front) = &mut self.fronts[usize::from(nic)]
            && front.ingress.received(wc.wr_id, wc.qpn, front.sends.shares().client_of(wc.qpn), wc.byte_len).is_err()
        {
            return Err(WorldError::Flood);
        }
        self.start_sends(nic);
        self.post_recvs(nic)
    }

    /// A receive of a node has brought a message that is no call.
    pub(super) fn give_back_recv(&mut self, nic: u16, wr_id: u64) -> Result<(), WorldError> {
        if let Some(front) = &mut self.fronts[usize::from(nic)] {
            front.ingress.give_back(wr_id);
        }
        self.post_recvs(nic)
    }

    /// Starts calls to the host that wait, as far as there is room.
    fn start_sends(&mut self, nic: u16) {
        let Some(place) = self.host_place(nic) else { return };
        let now = engine_time(self.now);
        while let Some(front) = &mut self.fronts[usize::from(nic)] {
            let Some(call) = front.sends.take(now, &mut front.ingress) else { return };
            self.start(place, call, Asker::Send(nic));
        }
    }

    /// An answer of the host has arrived: its buffer is free.
    pub(super) fn release(&mut self, nic: u16, number: u32) {
        if let Some(front) = &mut self.fronts[usize::from(nic)] {
            front.sends.release(number);
            self.start_sends(nic);
        }
    }

    /// Starts kernels that a NIC of a node has calls for.
    pub(super) fn start_rpcs(&mut self, nic: u16) {
        let Some(place) = self.rpc_place(nic) else { return };
        let now = engine_time(self.now);
        while let Some(front) = &mut self.fronts[usize::from(nic)] {
            let mut ingress = RpcVerbs::new(&mut self.adapters[usize::from(nic)].nic);
            let Some(call) = front.rpcs.take(now, &mut ingress) else { return };
            let stream = front.rpcs.stream(call.tag as u32).map(|id| (nic, id, call.op));
            let (call, at_host) = match &mut front.placer {
                Some(placer) => match placer.place(call, || now) {
                    Some(call) => (call, false),
                    None => (placer.poll_host().unwrap_or_default(), true),
                },
                None => (call, false),
            };
            let place = if at_host { self.host_place(nic).unwrap_or(place) } else { place };
            if let Some((task, begun)) = self.start(place, call, Asker::Rpc(nic)) {
                self.streams.extend(stream.map(|names| Stream::new(names, (place, task), begun)));
            }
        }
    }

    /// Starts a call that came from elsewhere: its number at the place, and when its first step begins.
    fn start(&mut self, place: usize, call: Call, asker: Asker) -> Option<(u32, Ps)> {
        let (nic, seen) = match asker {
            Asker::Rpc(nic) => (nic, false),
            Asker::Send(nic) => (nic, true),
            Asker::Here(..) => return None,
        };
        let len = call.params.len();
        match self.add(place, call, asker) {
            Ok(task) if self.places[place].threads.is_some() => Some((task, self.queue(place, task, Some(nic), len))),
            Ok(task) => Some((task, self.dispatch(place, task, nic, (len, seen, self.now)))),
            Err(call) => {
                self.answer(asker, self.places[place].processor, call, (Status::Busy, self.now));
                None
            }
        }
    }

    /// Starts a call at the client itself, now. It is given back if there is no room.
    pub(super) fn start_here(&mut self, place: usize, call: Call, (connection, slot): (u16, u32)) -> Result<(), Call> {
        let task = self.add(place, call, Asker::Here(connection, slot))?;
        self.run(place, task);
        Ok(())
    }

    /// Puts a call among the kernels of a place.
    fn add(&mut self, place: usize, mut call: Call, asker: Asker) -> Result<u32, Call> {
        let place = &mut self.places[place];
        let machine = self.adapters[usize::from(place.nic)].machine;
        call.pd = Some(self.machines[usize::from(machine)].pd);
        let task = place.tasks.start(call)?;
        place.askers[task as usize] = Some(asker);
        Ok(task)
    }

    /// The way of a request of `len` bytes, from a NIC or from what software saw, to its kernel's first step.
    fn dispatch(&mut self, place: usize, task: u32, nic: u16, (len, seen, now): (usize, bool, Ps)) -> Ps {
        let adapter = &self.adapters[usize::from(nic)];
        let mut hardware = adapter.hardware.borrow_mut();
        let (processor, board) = hardware.processor(self.places[place].processor);
        let at = processor.dispatch(board, Arrival { nic: adapter.slot, seen }, now, len);
        self.bus.queue.push(at, Event::Wake { place: place as u16, task });
        at
    }

    /// A call waits for a thread of its place, or has one at once: when its kernel's first step begins, if that is known.
    fn queue(&mut self, place: usize, task: u32, nic: Option<u16>, len: usize) -> Ps {
        let Some(threads) = &mut self.places[place].threads else { return self.now };
        match threads.free.pop() {
            Some(Reverse((free, thread))) => self.take_up(place, (task, nic, len), (thread, free.max(self.now))),
            None => {
                threads.waiting.push_back((task, nic, len));
                self.now
            }
        }
    }

    /// A thread takes a call up: when its kernel's first step begins.
    fn take_up(&mut self, place: usize, (task, nic, len): (u32, Option<u16>, usize), (thread, at): (u16, Ps)) -> Ps {
        if let Some(threads) = &mut self.places[place].threads {
            threads.of[task as usize] = (thread, at);
        }
        match nic {
            Some(nic) => self.dispatch(place, task, nic, (len, true, at)),
            None => {
                self.bus.queue.push(at, Event::Wake { place: place as u16, task });
                at
            }
        }
    }

    /// The thread of a kernel has handed over its answer, and takes the next call.
    fn free_thread(&mut self, place: usize, task: u32, at: Ps) {
        let Some(threads) = &self.places[place].threads else { return };
        let (thread, since) = threads.of[task as usize];
        self.places[place].site.hardware().borrow_mut().board.was_busy(since, at);
        let Some(threads) = &mut self.places[place].threads else { return };
        match threads.order.take(&mut threads.waiting) {
            Some(next) => _ = self.take_up(place, next, (thread, at)),
            None => threads.free.push(Reverse((at, thread))),
        }
    }

    /// A thread of a node calls a kernel there by itself, now: no network is between. It is given back if there is no room.
    pub(super) fn start_at_node(&mut self, nic: u16, call: Call, (connection, slot): (u16, u32)) -> Result<(), Call> {
        let Some(place) = self.host_place(nic) else { return Err(call) };
        let task = self.add(place, call, Asker::Here(connection, slot))?;
        match self.places[place].threads {
            Some(_) => _ = self.queue(place, task, None, 0),
            None => self.run(place, task),
        }
        Ok(())
    }

    /// A kernel goes on.
    pub(super) fn run(&mut self, number: usize, task: u32) {
        let place = &mut self.places[number];
        if let Some(threads) = &place.threads {
            place.site.hardware().borrow_mut().board.set_thread(threads.of[task as usize].0.into());
        }
        place.site.enter(self.now, task);
        let turn = place.tasks.poll(task);
        place.site.take_wakes(&mut self.scratch.wakes);
        for (time, task) in self.scratch.wakes.drain(..) {
            self.bus.queue.push(time, Event::Wake { place: number as u16, task });
        }
        if let Some(connection) = place.connection {
            self.post_asked(connection);
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
    fn post_asked(&mut self, connection: u16) {
        let mut asked = std::mem::take(&mut self.scratch.verbs);
        self.connections[usize::from(connection)].staging.carriage().take_asked(&mut asked);
        for (at, verb) in asked.drain(..) {
            let wr_id = WorkId::Staging(verb.slot).encode();
            let command = Posted::Verb { wr_id, op: verb.op, sge: Some(verb.sge), signaled: true };
            self.issue(connection, CLIENT, at, command, &[]);
        }
        self.scratch.verbs = asked;
    }

    /// A kernel has ended: its answer goes on its way.
    fn finish(&mut self, number: usize, task: u32, call: Call, status: Status) {
        let place = &mut self.places[number];
        let (at, processor) = (place.site.at(), place.processor);
        if let Some(asker) = place.askers[task as usize].take() {
            let machine = self.adapters[usize::from(place.nic)].machine;
            let sends = !matches!(asker, Asker::Here(..));
            let issue = Ps(if sends { self.spec.machines[usize::from(machine)].core.issue } else { 0 });
            self.answer(asker, processor, call, (status, at));
            self.free_thread(number, task, at + issue);
        }
    }

    fn answer(&mut self, asker: Asker, processor: ProcessorId, mut call: Call, (status, at): (Status, Ps)) {
        match asker {
            Asker::Here(connection, slot) => {
                if status != Status::Ok {
                    call.reply.clear();
                }
                self.connections[usize::from(connection)].local[slot as usize] = Some((status, call));
                self.bus.queue.push(at, Event::Finish { connection, call: slot });
            }
            Asker::Rpc(nic) => {
                let front = self.fronts[usize::from(nic)].as_mut();
                let Some(answer) = front.and_then(|front| front.rpcs.end(call, status)) else { return };
                let adapter = &self.adapters[usize::from(nic)];
                let reaches = {
                    let mut hardware = adapter.hardware.borrow_mut();
                    let (processor, board) = hardware.processor(processor);
                    processor.answer(board, adapter.slot, at, answer.call.reply.len())
                };
                // Not by the task's number: the next call may have it before the answer arrives.
                let number = self.free_answers.pop().unwrap_or_else(|| {
                    self.answers.push(None);
                    self.answers.len() as u32 - 1
                });
                self.answers[number as usize] = Some((nic, answer));
                self.bus.queue.push(reaches, Event::Answer { answer: number });
            }
            Asker::Send(nic) => {
                if let Some(front) = &mut self.fronts[usize::from(nic)] {
                    front.sends.finish(&mut front.ingress, call, status);
                }
                self.send_answers(nic, at);
            }
        }
    }

    /// The host sends what it has answered: in the command if it fits, else from its buffer.
    fn send_answers(&mut self, nic: u16, at: Ps) {
        let mut bytes = std::mem::take(&mut self.scratch.bytes);
        let inline = self.inline(nic);
        while let Some(reply) = self.fronts[usize::from(nic)].as_mut().and_then(|front| front.ingress.next_send()) {
            let fits = reply.sge.len as usize <= inline;
            bytes.clear();
            if let (true, Some(front)) = (fits, &self.fronts[usize::from(nic)]) {
                bytes.resize(reply.sge.len as usize, 0);
                // In bounds: it is a buffer of this region.
                let _ = front.replies.read(reply.sge.va, &mut bytes);
            }
            let (wr_id, sge) = (WorkId::Call(reply.number).encode(), (!fits).then_some(reply.sge));
            let command = Posted::Verb { wr_id, op: reply.op, sge, signaled: true };
            self.adapters[usize::from(nic)].issue(at, reply.qpn, command, &bytes, &mut self.bus);
        }
        self.scratch.bytes = bytes;
    }
}

impl Place {
    fn new(nic: u16, processor: ProcessorId, site: Rc<Site>, (tasks, capacity): (Box<dyn Tasks>, usize)) -> Self {
        let askers = vec![None; capacity];
        Self { nic, processor, site, tasks, askers, spare: Vec::new(), connection: None, threads: None }
    }
}

/// A place that is not open yet.
struct Closed;

impl Tasks for Closed {
    fn start(&mut self, call: Call) -> Result<u32, Call> {
        Err(call)
    }

    fn poll(&mut self, _: u32) -> Turn {
        Turn::Waits
    }
}
