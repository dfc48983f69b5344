//! A client and a node of modelled hardware: the calls of the real world's client, in modelled time.

mod kernels;
mod streams;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use remora_kernel::hll::Sketch;
use remora_kernel::{Builtins, Kernel, Status, op};
use remora_memory::{Buffer, Region};
use remora_nic::{Qpn, RpcRequest, SendOp, Sge, WcOpcode, WcStatus, WorkCompletion};
use remora_wire::Opcode;
use remora_wire::rpc::{RpcHeader, parse_reply_imm};

use super::bus::{Bus, Event};
use super::hardware::Hardware;
use super::machine::{Command, Machine};
use super::verbs::{Ask, SLOT, SLOT_ID, SLOTS, Verbs};
use super::writer::Writer;
use super::{PairSpec, Placement, WorldError};
use crate::time::Ps;
use kernels::{Asker, Place, places};
use streams::Stream;

/// Calls that may be under way at once.
pub const MAX_CALLS: usize = 256;
/// Bytes of a reply, and of a raw verb, at most.
pub const MAX_REPLY: usize = 64 << 10;
/// Bytes of a call to the host.
const MAX_REQUEST: usize = 4096;
/// Receives kept posted.
const RECVS: u64 = 2 * MAX_CALLS as u64;
/// Work request ids of raw verbs have this bit.
const RAW_ID: u64 = 1 << 33;
/// Kernels that the NIC answers to.
const OPS: [u64; 6] = [op::TRAVERSAL, op::GET, op::CONSISTENCY, op::CHECKSUM, op::SHUFFLE, op::HYPERLOGLOG];

const CLIENT: usize = 0;
const NODE: usize = 1;

/// As many calls as may be under way are: poll, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_CALLS} calls are under way already: poll, then try again")]
pub struct Full;

/// How a call ended.
#[derive(Debug)]
pub struct Done<'a> {
    /// The caller's mark.
    pub tag: u32,
    /// Its outcome.
    pub status: Status,
    /// Its reply.
    pub reply: &'a [u8],
    /// From the start of its submission to the end.
    pub latency: Ps,
    /// When it ended.
    pub at: Ps,
}

/// What the client's side has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that waited for the network.
    pub round_trips: u64,
    /// Bytes of Ethernet frames with their gaps, both ways.
    pub wire_bytes: u64,
    /// Request packets sent again.
    pub retransmits: u64,
}

/// A verb as perftest sends them, without a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawVerb {
    /// From the node's memory.
    Read,
    /// Into the node's memory; done when acknowledged.
    Write,
    /// Into the node's memory, whose host, polling there, writes as much back; done when that is seen.
    PingPong,
}

/// Something that software sees.
#[derive(Clone, Copy, Debug)]
enum Notice {
    Completion(WorkCompletion),
    /// A WRITE of so many bytes has landed in memory that is polled.
    Landed,
}

/// A call under way.
#[derive(Default)]
struct CallSlot {
    tag: u32,
    since: Ps,
    status: Option<Status>,
    reply: Vec<u8>,
    live: bool,
}

/// A client and a node.
pub struct Pair {
    bus: Bus,
    now: Ps,
    machines: [Machine; 2],
    qps: [Qpn; 2],
    spec: PairSpec,
    /// Client, NIC, host, accelerator, as [`Placement`] counts them.
    places: Vec<Place>,
    verbs: Rc<Verbs>,
    calls: Vec<CallSlot>,
    free_calls: Vec<u32>,
    finished: Vec<u32>,
    notices: Vec<Notice>,
    free_notices: Vec<u32>,
    replies: (Buffer, Arc<Region>),
    requests: (Buffer, Arc<Region>),
    inbox: (Buffer, Arc<Region>),
    outbox: (Buffer, Arc<Region>),
    /// Replies on their way from a kernel to the NIC's engine.
    answers: Vec<Option<(RpcRequest, Status)>>,
    free_answers: Vec<u32>,
    streams: Vec<Stream>,
    /// What all incoming WRITEs go through.
    tap: Option<Sketch>,
    echo: Option<(u32, u32, Arc<Region>)>,
    writer: Rc<RefCell<Option<Writer>>>,
    remote_calls: u64,
    failed: Option<WcStatus>,
    scratch: (Vec<(Ps, u32)>, Vec<Ask>, Vec<u8>),
}

impl Pair {
    /// A connected pair of this hardware, with the built-in kernels.
    pub fn new(spec: &PairSpec) -> Result<Self, WorldError> {
        Self::with_kernels(spec, Builtins, &OPS)
    }

    /// A connected pair of this hardware with kernels of the caller's; the NIC answers to `ops`.
    pub fn with_kernels<K>(spec: &PairSpec, kernels: K, ops: &[u64]) -> Result<Self, WorldError>
    where
        K: Kernel + Clone + 'static,
    {
        let [client, node] = [&spec.client, &spec.node].map(Hardware::new);
        let mut machines = [Machine::new(0, client, spec.seed)?, Machine::new(1, node, spec.seed)?];
        let inline = spec.client.nic.pipeline.inline as u32;
        let qps = [machines[0].create_qp(inline, 0)?, machines[1].create_qp(inline, MAX_CALLS as u32)?];
        let ips = [machines[0].ip, machines[1].ip];
        machines[0].connect(qps[0], ips[1], qps[1], spec.mtu)?;
        machines[1].connect(qps[1], ips[0], qps[0], spec.mtu)?;
        ops.iter().for_each(|&op| machines[NODE].nic.deploy(op));
        let replies = machines[CLIENT].alloc(MAX_CALLS * MAX_REPLY)?;
        let requests = machines[CLIENT].alloc(MAX_CALLS * MAX_REQUEST)?;
        let staging = machines[CLIENT].alloc(SLOTS * SLOT)?;
        let inbox = machines[NODE].alloc(RECVS as usize * MAX_REQUEST)?;
        let outbox = machines[NODE].alloc(MAX_CALLS * MAX_REPLY)?;
        let verbs = Verbs::new(staging.0, staging.1);
        let writer = Rc::new(RefCell::new(None));
        let places = places(spec, &kernels, &machines, &verbs, &writer);
        let mut pair = Self {
            bus: Bus::new(),
            now: Ps::ZERO,
            machines,
            qps,
            spec: spec.clone(),
            places,
            verbs,
            calls: (0..MAX_CALLS).map(|_| CallSlot::default()).collect(),
            free_calls: (0..MAX_CALLS as u32).rev().collect(),
            finished: Vec::with_capacity(MAX_CALLS),
            notices: Vec::new(),
            free_notices: Vec::new(),
            replies,
            requests,
            inbox,
            outbox,
            answers: Vec::with_capacity(MAX_CALLS),
            free_answers: Vec::with_capacity(MAX_CALLS),
            streams: Vec::new(),
            tap: None,
            echo: None,
            writer,
            remote_calls: 0,
            failed: None,
            scratch: Default::default(),
        };
        for recv in 0..RECVS {
            pair.machines[CLIENT].nic.post_recv(pair.qps[CLIENT], 0, &[])?;
            pair.post_inbox(recv)?;
        }
        Ok(pair)
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
    pub fn trace(&mut self) -> Vec<super::TraceEntry> {
        self.bus.trace.replace(Vec::new()).unwrap_or_default()
    }

    /// What the pair was made of.
    pub fn spec(&self) -> &PairSpec {
        &self.spec
    }

    /// The hardware of client and node.
    pub fn hardware(&self) -> [std::cell::Ref<'_, Hardware>; 2] {
        [self.machines[CLIENT].hardware.borrow(), self.machines[NODE].hardware.borrow()]
    }

    /// Counts since the pair was made.
    pub fn counts(&self) -> Counts {
        Counts {
            round_trips: self.verbs.posted() + self.remote_calls,
            wire_bytes: self.hardware().iter().map(|hardware| hardware.wire_bytes()).sum(),
            retransmits: self.machines.iter().map(|machine| machine.nic.counters().retransmits).sum(),
        }
    }

    /// Lets the NIC or the accelerator serve RPC verbs from now on, as the placement says; none may be under way.
    pub fn serve(&mut self, placement: Placement) {
        self.spec = self.spec.clone().serving(placement);
    }

    /// Forgets how busy everything was.
    pub fn reset_usage(&mut self) {
        self.machines.iter().for_each(|machine| machine.hardware.borrow_mut().reset(self.now));
    }

    /// Zeroed memory on the node.
    pub fn alloc(&mut self, len: u64) -> Result<Arc<Region>, WorldError> {
        Ok(self.machines[NODE].alloc(len as usize)?.1)
    }

    /// Lets somebody change the node's memory, or nobody.
    pub fn set_writer(&mut self, writer: Option<Writer>) {
        *self.writer.borrow_mut() = writer;
    }

    fn open(&mut self, tag: u32) -> Result<u32, Full> {
        let call = self.free_calls.pop().ok_or(Full)?;
        let slot = &mut self.calls[call as usize];
        (slot.tag, slot.since, slot.status, slot.live) = (tag, self.now, None, true);
        slot.reply.clear();
        Ok(call)
    }

    fn header(&self, call: u32) -> RpcHeader {
        RpcHeader {
            reply_va: self.replies.1.va() + u64::from(call) * MAX_REPLY as u64,
            reply_rkey: self.replies.1.key(),
            reply_capacity: MAX_REPLY as u32,
            tag: call,
            flags: 0,
        }
    }

    /// Starts the kernel `op` in a placement, now. `tag` comes back with the result.
    pub fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        let call = self.open(tag)?;
        if placement == Placement::Client {
            let mut kernel = self.places[0].spare.pop().unwrap_or_default();
            kernel.recycle(op, MAX_REPLY as u32);
            kernel.params.extend_from_slice(params);
            return match self.start(0, kernel, Asker::Here(call)) {
                Some(task) => {
                    self.run(0, task);
                    Ok(())
                }
                None => Err(Full),
            };
        }
        self.remote_calls += 1;
        let header = self.header(call);
        if placement == Placement::Host {
            let mut bytes = [0; RpcHeader::LEN];
            header.emit(&mut bytes);
            let parts = [&bytes[..], &op.to_le_bytes(), params];
            let staging = self.requests.1.va() + u64::from(call) * MAX_REQUEST as u64;
            let message = parts.concat();
            self.post(CLIENT, self.now, SendOp::Send, &message, (staging, CLIENT));
        } else {
            let command = Command::Rpc { op, header, payload: None };
            let (machine, qp) = (&mut self.machines[CLIENT], self.qps[CLIENT]);
            machine.issue(self.now, qp, command, params, &mut self.bus);
        }
        Ok(())
    }

    /// A verb on `len` bytes at the start of a region of the node.
    pub fn submit_raw(&mut self, verb: RawVerb, region: &Arc<Region>, len: u32, tag: u32) -> Result<(), Full> {
        let call = self.open(tag)?;
        self.remote_calls += 1;
        let (va, rkey) = (region.va(), region.key());
        let op = match verb {
            RawVerb::Read => SendOp::Read { va, rkey },
            RawVerb::Write | RawVerb::PingPong => SendOp::Write { va, rkey },
        };
        if verb == RawVerb::PingPong {
            self.echo = Some((call, len, region.clone()));
        }
        // Any bytes of the client will do; the longest verb covers all reply slots.
        let sge = Some(Sge { va: self.replies.1.va(), len, lkey: self.replies.1.key() });
        let command = Command::Verb { wr_id: RAW_ID | u64::from(call), op, sge, signaled: verb != RawVerb::PingPong };
        let (machine, qp) = (&mut self.machines[CLIENT], self.qps[CLIENT]);
        machine.issue(self.now, qp, command, &[], &mut self.bus);
        Ok(())
    }

    /// Software posts bytes: in the command if they fit, else from memory.
    fn post(&mut self, who: usize, at: Ps, op: SendOp, bytes: &[u8], staging: (u64, usize)) {
        let inline = bytes.len() <= self.spec.client.nic.pipeline.inline as usize;
        let region = if staging.1 == CLIENT { &self.requests.1 } else { &self.outbox.1 };
        let sge = (!inline && !bytes.is_empty()).then(|| {
            let _ = region.write(staging.0, bytes);
            Sge { va: staging.0, len: bytes.len() as u32, lkey: region.key() }
        });
        let command = Command::Verb { wr_id: u64::MAX, op, sge, signaled: false };
        let bytes = if inline { bytes } else { &[] };
        self.machines[who].issue(at, self.qps[who], command, bytes, &mut self.bus);
    }

    /// Goes on until calls have finished, and hands them over. False if nothing is left to happen.
    pub fn poll(&mut self, done: &mut dyn FnMut(Done<'_>)) -> Result<bool, WorldError> {
        while self.finished.is_empty() {
            if let Some(status) = self.failed {
                return Err(WorldError::Verb(status));
            }
            let Some((time, event)) = self.bus.take_next() else { return Ok(false) };
            self.now = self.now.max(time);
            self.handle(event)?;
        }
        while let Some(call) = self.finished.pop() {
            let slot = &mut self.calls[call as usize];
            slot.live = false;
            self.free_calls.push(call);
            let (tag, status, latency) = (slot.tag, slot.status.unwrap_or(Status::LOST), self.now - slot.since);
            done(Done { tag, status, reply: &slot.reply, latency, at: self.now });
        }
        Ok(true)
    }

    fn handle(&mut self, event: Event) -> Result<(), WorldError> {
        let now = self.now;
        match event {
            Event::Command { machine, post } => {
                self.machines[machine as usize].see_command(now, post, &mut self.bus)?;
            }
            Event::Take { machine, post } => {
                self.machines[machine as usize].take_command(now, post, &mut self.bus)?;
            }
            Event::Transmit { machine } => {
                self.look(machine as usize, false);
                self.machines[machine as usize].transmit(now, &mut self.bus);
            }
            Event::Arrive { packet } => {
                let machine = self.bus.packet(packet).to as usize;
                self.machines[machine].arrive(now, packet, &mut self.bus);
            }
            Event::Receive { packet } => self.receive(packet)?,
            Event::Timer { machine } => self.machines[machine as usize].run_timers(now, &mut self.bus),
            Event::Notice { machine, notice } => {
                self.free_notices.push(notice);
                let notice = self.notices[notice as usize];
                self.see(machine as usize, notice)?;
            }
            Event::Wake { place, task } => self.run(place as usize, task),
            Event::Chunk { call } => self.chunk_done(call),
            Event::Answer { answer } => {
                self.free_answers.push(answer);
                if let Some((request, status)) = self.answers[answer as usize].take() {
                    self.machines[NODE].nic.rpc_reply(request, status.code());
                    self.machines[NODE].pump(now, &mut self.bus);
                    self.start_rpcs();
                }
            }
            Event::Finish { call } => self.finished.push(call),
        }
        Ok(())
    }

    /// Brings the node's memory up to date with its writer.
    fn look(&mut self, machine: usize, reading: bool) {
        if machine == NODE
            && let Some(writer) = self.writer.borrow_mut().as_mut()
        {
            writer.catch_up(self.now, reading);
        }
    }

    /// A NIC takes a packet; software will see what it completed.
    fn receive(&mut self, packet: u32) -> Result<(), WorldError> {
        let (now, who) = (self.now, self.bus.packet(packet).to as usize);
        let passed = if who == NODE && self.tap.is_some() { self.tap_packet(packet) } else { now };
        let (opcode, landed) = self.machines[who].receive(passed, packet, &mut self.bus);
        if opcode == Some(Opcode::RcReadRequest) {
            self.look(who, true);
        }
        while let Some(wc) = self.machines[who].poll_cq() {
            if wc.status != WcStatus::Success {
                self.failed = Some(wc.status);
            }
            if wc.wr_id == u64::MAX {
                continue;
            }
            self.notify(who, landed, Notice::Completion(wc));
        }
        if self.echo.is_some() && matches!(opcode, Some(Opcode::RcWriteOnly | Opcode::RcWriteLast)) {
            self.notify(who, landed, Notice::Landed);
        }
        if who == NODE {
            self.start_rpcs();
            self.feed_streams();
        }
        self.machines[who].pump(now, &mut self.bus);
        Ok(())
    }

    fn notify(&mut self, who: usize, landed: Ps, notice: Notice) {
        let number = self.free_notices.pop().unwrap_or_else(|| {
            self.notices.push(notice);
            self.notices.len() as u32 - 1
        });
        self.notices[number as usize] = notice;
        let completion = matches!(notice, Notice::Completion(_));
        let seen = self.machines[who].hardware.borrow_mut().notice(self.now, landed, completion);
        self.bus.queue.push(seen, Event::Notice { machine: who as u16, notice: number });
    }

    /// Software sees something.
    fn see(&mut self, who: usize, notice: Notice) -> Result<(), WorldError> {
        match notice {
            Notice::Completion(wc) if who == CLIENT && wc.opcode == WcOpcode::RecvWriteImm => self.take_reply(&wc),
            Notice::Completion(wc) if who == CLIENT && wc.wr_id & RAW_ID != 0 => {
                self.end((wc.wr_id & (RAW_ID - 1)) as u32, Status::Ok);
                Ok(())
            }
            Notice::Completion(wc) if who == CLIENT && wc.wr_id & SLOT_ID != 0 => {
                if let Some(task) = self.verbs.complete(wc.wr_id, wc.status) {
                    self.run(0, task);
                }
                Ok(())
            }
            Notice::Completion(wc) if wc.opcode == WcOpcode::Recv => self.take_request(&wc),
            Notice::Completion(_) => Ok(()),
            Notice::Landed => {
                let Some((call, len, region)) = self.echo.clone() else { return Ok(()) };
                if who == CLIENT {
                    self.echo = None;
                    self.end(call, Status::Ok);
                    return Ok(());
                }
                let op = SendOp::Write { va: self.replies.1.va(), rkey: self.replies.1.key() };
                let sge = Some(Sge { va: region.va(), len, lkey: region.key() });
                let command = Command::Verb { wr_id: u64::MAX, op, sge, signaled: false };
                self.machines[NODE].issue(self.now, self.qps[NODE], command, &[], &mut self.bus);
                Ok(())
            }
        }
    }

    fn end(&mut self, call: u32, status: Status) {
        let Some(slot) = self.calls.get_mut(call as usize).filter(|slot| slot.live && slot.status.is_none()) else {
            return;
        };
        slot.status = Some(status);
        self.finished.push(call);
    }

    /// The reply to a call has landed in the client's memory.
    fn take_reply(&mut self, wc: &WorkCompletion) -> Result<(), WorldError> {
        self.machines[CLIENT].nic.post_recv(self.qps[CLIENT], 0, &[])?;
        let (call, status) = parse_reply_imm(wc.imm.unwrap_or(0));
        if let Some(slot) = self.calls.get_mut(call as usize) {
            slot.reply.resize((wc.byte_len as usize).min(MAX_REPLY), 0);
            // In bounds: a slot is MAX_REPLY long.
            let _ = self.replies.0.read(call as usize * MAX_REPLY, &mut slot.reply);
        }
        self.end(call, Status::from_code(status));
        Ok(())
    }

    fn post_inbox(&mut self, recv: u64) -> Result<(), WorldError> {
        let va = self.inbox.1.va() + recv * MAX_REQUEST as u64;
        let sge = Sge { va, len: MAX_REQUEST as u32, lkey: self.inbox.1.key() };
        Ok(self.machines[NODE].nic.post_recv(self.qps[NODE], recv, &[sge])?)
    }
}
