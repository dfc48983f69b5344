//! The kernels of a pair: how calls get to them, how they run, and how their answers go back.

use std::cell::RefCell;
use std::rc::Rc;

use remora_kernel::{Call, Kernel, Limits, Status};
use remora_nic::{RpcRequest, SendOp, WorkCompletion};
use remora_wire::rpc::RpcHeader;

use super::streams::{FEED_ROOM, Stream};
use super::{CLIENT, MAX_CALLS, MAX_REPLY, MAX_REQUEST, NODE, Pair};
use crate::time::Ps;
use crate::world::bus::Event;
use crate::world::machine::{Command, Machine};
use crate::world::site::{Processor, Site, SiteMemory};
use crate::world::tasks::{Tasks, Turn, tasks};
use crate::world::verbs::{SLOT_ID, VerbMemory, Verbs};
use crate::world::writer::Writer;
use crate::world::{PairSpec, Placement, WorldError};

/// Whom a running kernel answers.
pub(super) enum Asker {
    /// The call of this number, at the client itself.
    Here(u32),
    /// A kernel call of the NIC.
    Rpc(RpcRequest),
    /// A call to the host.
    Host(RpcHeader),
}

/// A place that runs kernels.
pub(super) struct Place {
    pub machine: usize,
    pub processor: Processor,
    pub site: Rc<Site>,
    pub tasks: Box<dyn Tasks>,
    askers: Vec<Option<Asker>>,
    pub spare: Vec<Call>,
}

impl Pair {
    /// The node's host sees a call.
    pub(super) fn take_request(&mut self, wc: &WorkCompletion) -> Result<(), WorldError> {
        let mut bytes = std::mem::take(&mut self.scratch.2);
        bytes.resize((wc.byte_len as usize).min(MAX_REQUEST), 0);
        let _ = self.inbox.0.read(wc.wr_id as usize * MAX_REQUEST, &mut bytes);
        self.post_inbox(wc.wr_id)?;
        if let (Ok(header), Some((op, params))) =
            (RpcHeader::parse(&bytes), bytes.get(RpcHeader::LEN..).and_then(<[u8]>::split_first_chunk::<8>))
        {
            let place = Placement::Host as usize;
            let mut call = self.places[place].spare.pop().unwrap_or_default();
            call.recycle(u64::from_le_bytes(*op), header.reply_capacity);
            call.params.extend_from_slice(params);
            let len = call.params.len();
            if let Some(task) = self.start(place, call, Asker::Host(header)) {
                self.dispatch(place, task, len, false);
            }
        }
        self.scratch.2 = bytes;
        Ok(())
    }

    /// Starts kernels that the node's NIC has calls for.
    pub(super) fn start_rpcs(&mut self) {
        let place = self.spec.rpc_place as usize;
        while self.machines[NODE].nic.wants_rpc() && self.places[place].tasks.in_flight() < MAX_CALLS {
            let Some(mut request) = self.machines[NODE].nic.poll_rpc() else { return };
            let mut call = self.places[place].spare.pop().unwrap_or_default();
            call.recycle(request.op, request.reply_capacity());
            std::mem::swap(&mut call.params, &mut request.params);
            std::mem::swap(&mut call.reply, &mut request.reply);
            let (names, len) = ((request.id, request.op), call.params.len());
            let feed = request.stream.then(|| call.open_stream(FEED_ROOM));
            if let Some(task) = self.start(place, call, Asker::Rpc(request)) {
                let begun = self.dispatch(place, task, len, true);
                self.streams.extend(feed.map(|feed| Stream::new(names, (place, task), feed, begun)));
            }
        }
    }

    /// Puts a call among the kernels of a place. `None` if there is no room.
    pub(super) fn start(&mut self, place: usize, mut call: Call, asker: Asker) -> Option<u32> {
        let place = &mut self.places[place];
        call.pd = Some(self.machines[place.machine].pd);
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

    /// The way of a request of `len` bytes from the NIC, or from what software saw, to its kernel's first step.
    fn dispatch(&mut self, place: usize, task: u32, len: usize, from_nic: bool) -> Ps {
        let Place { machine, processor, .. } = self.places[place];
        let mut hardware = self.machines[machine].hardware.borrow_mut();
        let here = match processor {
            Processor::Core if from_nic => hardware.deliver(processor, self.now, len),
            _ => self.now,
        };
        let at = hardware.dispatch(processor, here, len);
        self.bus.queue.push(at, Event::Wake { place: place as u8, task });
        at
    }

    /// A kernel goes on.
    pub(super) fn run(&mut self, number: usize, task: u32) {
        let place = &mut self.places[number];
        place.site.enter(self.now, task);
        let turn = place.tasks.poll(task);
        place.site.take_wakes(&mut self.scratch.0);
        for (time, task) in self.scratch.0.drain(..) {
            self.bus.queue.push(time, Event::Wake { place: number as u8, task });
        }
        if number == 0 {
            self.verbs.take_asks(&mut self.scratch.1);
            for ask in self.scratch.1.drain(..) {
                let (wr_id, sge) = (SLOT_ID | u64::from(ask.slot), Some(self.verbs.sge(&ask)));
                let command = Command::Verb { wr_id, op: ask.op, sge, signaled: true };
                self.machines[CLIENT].issue(ask.at, self.qps[CLIENT], command, &[], &mut self.bus);
            }
        }
        match turn {
            Turn::Done(call, status) => self.finish(number, task, call, status),
            // One that waits for its stream goes on with the next chunk.
            Turn::GaveWay if !self.has_stream(number, task) => {
                let at = self.places[number].site.at();
                self.bus.queue.push(at, Event::Wake { place: number as u8, task });
            }
            Turn::GaveWay | Turn::Waits => {}
        }
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
            Some(Asker::Here(id)) => {
                let slot = &mut self.calls[id as usize];
                slot.status = Some(status);
                std::mem::swap(&mut slot.reply, &mut call.reply);
                self.bus.queue.push(at, Event::Finish { call: id });
            }
            Some(Asker::Rpc(mut request)) => {
                std::mem::swap(&mut call.params, &mut request.params);
                std::mem::swap(&mut call.reply, &mut request.reply);
                let bytes = request.reply.len();
                let reaches = self.machines[NODE].hardware.borrow_mut().answer(place.processor, at, bytes);
                // Not by the task's number: the next call may have it before the answer arrives.
                let answer = self.free_answers.pop().unwrap_or_else(|| {
                    self.answers.push(None);
                    self.answers.len() as u32 - 1
                });
                self.answers[answer as usize] = Some((request, status));
                self.bus.queue.push(reaches, Event::Answer { answer });
            }
            Some(Asker::Host(header)) => {
                let imm = remora_wire::rpc::reply_imm(header.tag, status.code());
                let op = SendOp::WriteImm { va: header.reply_va, rkey: header.reply_rkey, imm };
                let staging = self.outbox.1.va() + u64::from(header.tag) * MAX_REPLY as u64;
                let reply = std::mem::take(&mut call.reply);
                self.post(NODE, at, op, &reply, (staging, NODE));
                call.reply = reply;
            }
            None => {}
        }
        self.places[number].spare.push(call);
    }
}

/// The places of a pair, as [`Placement`] counts them.
pub(super) fn places<K: Kernel + Clone + 'static>(
    spec: &PairSpec,
    kernels: &K,
    machines: &[Machine; 2],
    verbs: &Rc<Verbs>,
    writer: &Rc<RefCell<Option<Writer>>>,
) -> Vec<Place> {
    let nobody = Rc::new(RefCell::new(None));
    let processors =
        [Processor::Core, spec.node.nic_processor(), Processor::Core, Processor::Accel].into_iter().enumerate();
    let place = |(number, processor): (usize, Processor)| {
        let machine = if number == 0 { CLIENT } else { NODE };
        let hardware = machines[machine].hardware.clone();
        let site = Site::new(processor, hardware, if number == 0 { nobody.clone() } else { writer.clone() });
        let (registry, here) = (machines[machine].nic.registry().clone(), site.clone());
        let (pd, verbs) = (machines[machine].pd, verbs.clone());
        let (limits, kernels) = (Limits::default(), kernels.clone());
        let tasks = match number {
            0 => tasks(kernels, move |call| VerbMemory::new(verbs.clone(), here.clone(), call.op), MAX_CALLS, limits),
            _ => {
                let memory = move |call: &Call| SiteMemory::new(here.clone(), registry.clone(), pd, call.op);
                tasks(kernels, memory, MAX_CALLS, limits)
            }
        };
        let askers = (0..MAX_CALLS).map(|_| None).collect();
        Place { machine, processor, site, tasks, askers, spare: Vec::new() }
    };
    processors.map(place).collect()
}
