//! A memory node: memory and kernels that clients reach over RoCE v2.
//!
//! One-sided verbs and kernels on the NIC need only the device and its NIC thread. The host thread takes connections
//! and runs calls to the host; while it has some, it drives the engine itself. It also looks after clients: one that
//! died without a word, or takes no replies, is disconnected, and its memory is given back.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use remora_kernel::{Call, Limits, Runner, Status};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_nic::cm::{CmEvent, ConnId, reason, service_id};
use remora_nic::{
    ALL_REMOTE, ConnectAttr, CqId, Data, Event, QpInit, QpType, Qpn, SendOp, SendWr, Sge, SrqId, WcOpcode, WcStatus,
    WorkCompletion,
};
use remora_service::control::{PORT, op, u32_at, u64_at};
use remora_service::{HostCall, MAX_REPLY, MAX_REQUEST};
use remora_wasm::KernelSet;
use remora_wire::rpc::{RpcHeader, reply_imm};

use crate::control;
use crate::device::{Device, DeviceGuard};
use crate::kernels::{Kernels, POOL, ROUNDS};
use crate::link::Layers;
use crate::modules::{self, Modules};
use crate::sketching::Sketches;
use crate::sys::prepare_to_wait;
use crate::writer::Writer;
use crate::{Error, links, map_memory};

/// Calls to the host that may wait or run at once; more wait in the network (RNR NAK).
const CALLS: usize = 1024;
/// Replies of the host that may be under way at once.
const REPLIES: usize = 256;
/// How long the host thread polls without work before it leaves the engine to the NIC thread.
const SPIN: u64 = 500_000;
/// How often a sleeping host thread looks up.
const LOOK_UP: Duration = Duration::from_millis(100);
/// How often each client is sent an empty WRITE. One that has not taken it by the next is disconnected: it is gone, or
/// it takes no replies and so holds buffers that others wait for.
const PROBE: u64 = 2_000_000_000;
/// The work request id of those; replies have the numbers of their buffers.
const PROBE_ID: u64 = u64::MAX;
/// Memory is handed out in units of this, in bytes.
const PAGE: u64 = 4096;
/// How long a stopping node waits for calls under way.
const DRAIN: u64 = 2_000_000_000;

/// What a node is like.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The address to listen at.
    pub listen: IpAddr,
    /// Memory that clients may allocate, in bytes, all together.
    pub memory_limit: u64,
    /// Use a packet socket instead of a UDP socket: needs `CAP_NET_RAW`.
    pub packet: bool,
    /// What lies between the node's device and its links.
    pub layers: Layers,
    /// What one kernel call may do.
    pub limits: Limits,
    /// Where modules that clients want kept are kept, and found again at the next start.
    pub kernels: Option<PathBuf>,
}

impl NodeConfig {
    /// At `listen`, up to 16 GB.
    pub fn new(listen: IpAddr) -> Self {
        Self {
            listen,
            memory_limit: 16 << 30,
            packet: false,
            layers: Layers::default(),
            limits: Limits::default(),
            kernels: None,
        }
    }
}

/// A running memory node. It keeps what a client allocated until the client leaves or is found to be gone, which
/// takes a few seconds: its queue pair failed, or did not answer from one probe to the next.
pub struct Node {
    device: Device,
    stop: Arc<AtomicBool>,
    host: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts serving.
    pub fn start(config: NodeConfig) -> Result<Self, Error> {
        let links = links::node_links(config.listen, config.packet, &config.layers)?;
        let registry = Arc::new(Registry::new(crate::device::entropy()?));
        let pd = registry.alloc_pd();
        let set = KernelSet::default();
        if let Some(dir) = &config.kernels {
            modules::restore(&set, dir)?;
        }
        let kernels = Kernels::of(&set, &registry, config.limits);
        let device = Device::with_registry(config.listen, links, registry.clone(), Some(kernels))?;
        let stop = Arc::new(AtomicBool::new(false));
        let host = Host::new(device.clone(), registry, pd, set, &config, stop.clone())?;
        let host = std::thread::Builder::new()
            .name("remora-host".into())
            .spawn(move || host.run())
            .map_err(|e| Error::System { what: "starting the host thread", source: e })?;
        Ok(Self { device, stop, host: Some(host) })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> IpAddr {
        self.device.local()
    }

    /// The node's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether its threads run. False only if one of them panicked: then end the process.
    pub fn is_serving(&self) -> bool {
        self.device.is_running() && self.host.as_ref().is_some_and(|host| !host.is_finished())
    }

    /// Takes no more calls, finishes those under way, takes leave of clients, stops. Within about two seconds.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(host) = self.host.take() {
            host.thread().unpark();
            // A host thread that panicked has said so on stderr already.
            let _ = host.join();
        }
        self.device.stop();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// One client.
struct Peer {
    conn: ConnId,
    /// What it allocated: keys, and bytes counted against the limit.
    keys: Vec<(u32, u64)>,
    /// A probe is under way.
    probed: bool,
}

/// A call that the host has taken and not answered.
struct Asker {
    qpn: Qpn,
    header: RpcHeader,
}

/// The host thread's state.
struct Host {
    device: Device,
    registry: Arc<Registry>,
    pd: Pd,
    cq: CqId,
    srq: SrqId,
    requests: Buffer,
    request_region: Arc<Region>,
    replies: Buffer,
    reply_region: Arc<Region>,
    free_replies: Vec<u32>,
    peers: HashMap<Qpn, Peer>,
    kernels: Box<dyn Runner + Send>,
    /// The call with tag `n`.
    calls: Vec<Option<Asker>>,
    free_calls: Vec<u32>,
    spare: Vec<Call>,
    /// Receives taken whose calls wait for room.
    waiting: VecDeque<WorkCompletion>,
    /// Receives to post again.
    spent: Vec<u64>,
    /// Calls that ended and wait for a reply buffer.
    finished: VecDeque<(Status, Call)>,
    memory_left: u64,
    /// Memory was given back since kernels last looked.
    released: bool,
    /// The writer and the client that started it.
    writer: Option<(Qpn, Writer)>,
    /// What clients brought; a call waits while its module is compiled.
    modules: Modules<Call>,
    /// Sketches that clients attached to regions.
    sketches: Sketches,
    probe_at: u64,
    stop: Arc<AtomicBool>,
    stopping_since: Option<u64>,
}

impl Host {
    fn new(
        device: Device,
        registry: Arc<Registry>,
        pd: Pd,
        set: KernelSet,
        config: &NodeConfig,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let requests = map_memory(CALLS * MAX_REQUEST)?;
        let request_region = registry.register(pd, &requests, 0, CALLS * MAX_REQUEST, None, Access::LOCAL_WRITE)?;
        let replies = map_memory(REPLIES * MAX_REPLY)?;
        let reply_region = registry.register(pd, &replies, 0, REPLIES * MAX_REPLY, None, Access::LOCAL_WRITE)?;
        let kernels = remora_wasm::host_runner(set.clone(), registry.clone(), true, POOL, config.limits);
        let (cq, srq);
        {
            let mut guard = device.lock();
            let nic = guard.nic();
            cq = nic.create_cq(2 * CALLS as u32 + REPLIES as u32)?;
            srq = nic.create_srq(pd, CALLS as u32, 1)?;
            for slot in 0..CALLS as u64 {
                nic.post_srq_recv(srq, slot, &[request_sge(&request_region, slot)])?;
            }
            nic.listen(service_id(PORT))?;
        }
        Ok(Self {
            device,
            registry,
            pd,
            cq,
            srq,
            requests,
            request_region,
            replies,
            reply_region,
            free_replies: (0..REPLIES as u32).rev().collect(),
            peers: HashMap::new(),
            kernels,
            calls: (0..CALLS).map(|_| None).collect(),
            free_calls: (0..CALLS as u32).rev().collect(),
            spare: Vec::with_capacity(CALLS),
            waiting: VecDeque::with_capacity(CALLS),
            spent: Vec::with_capacity(CALLS),
            finished: VecDeque::with_capacity(CALLS),
            memory_left: config.memory_limit,
            released: false,
            writer: None,
            modules: Modules::new(set, config.kernels.clone()),
            sketches: Sketches::default(),
            probe_at: 0,
            stop,
            stopping_since: None,
        })
    }

    fn run(mut self) {
        prepare_to_wait();
        let mut busy_at = self.device.now();
        loop {
            let work = self.turn();
            let now = self.device.now();
            if now >= self.probe_at {
                self.probe_at = now + PROBE;
                self.probe();
            }
            if work > 0 {
                busy_at = now;
            } else {
                self.device.relax(busy_at);
            }
            if self.stop.load(Ordering::Relaxed) {
                let since = *self.stopping_since.get_or_insert(now);
                if self.is_idle() || now - since > DRAIN {
                    return self.take_leave();
                }
            } else if now - busy_at > SPIN {
                self.device.wait(self.cq, LOOK_UP);
                busy_at = self.device.now();
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.free_calls.len() == CALLS && self.free_replies.len() == REPLIES
    }

    /// One round: send replies, drive the engine, take calls, run them. Returns how much there was to do.
    fn turn(&mut self) -> usize {
        let device = self.device.clone();
        let mut guard = device.lock();
        self.finish_deployment(&mut guard);
        let mut work = self.send_replies(&mut guard);
        while let Some(slot) = self.spent.pop() {
            self.repost(&mut guard, slot);
        }
        if std::mem::take(&mut self.released) {
            guard.refresh_kernels();
        }
        guard.progress();
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            work += 1;
            self.complete(&mut guard, wc);
        }
        for event in guard.take_events() {
            work += 1;
            self.handle_event(&mut guard, event);
        }
        drop(guard);
        if self.stopping_since.is_none() {
            self.start_calls();
        }
        self.run_kernels();
        work + self.kernels.in_flight() + usize::from(self.modules.is_busy())
    }

    fn complete(&mut self, guard: &mut DeviceGuard<'_>, wc: WorkCompletion) {
        match (wc.opcode, wc.status) {
            (WcOpcode::Recv, WcStatus::Success) => self.waiting.push_back(wc),
            (WcOpcode::Recv | WcOpcode::RecvWriteImm, _) => self.repost(guard, wc.wr_id),
            _ if wc.wr_id == PROBE_ID => {
                if let Some(peer) = self.peers.get_mut(&wc.qpn) {
                    peer.probed = false;
                }
            }
            _ => self.free_replies.push(wc.wr_id as u32),
        }
    }

    fn repost(&self, guard: &mut DeviceGuard<'_>, slot: u64) {
        // There is room: as many receives exist as the queue holds.
        let _ = guard.nic().post_srq_recv(self.srq, slot, &[request_sge(&self.request_region, slot)]);
    }

    fn handle_event(&mut self, guard: &mut DeviceGuard<'_>, event: Event) {
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, .. }) => {
                if let Err(e) = self.accept(guard, conn) {
                    // The reason goes to the peer as text, which its tools can show.
                    let now = guard.now();
                    let _ = guard.nic().reject(now, conn, reason::CONSUMER, clip(&e.to_string()));
                }
            }
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) => {
                let gone = self.peers.iter().find(|(_, peer)| peer.conn == conn).map(|(qpn, _)| *qpn);
                if let Some(qpn) = gone {
                    self.forget(guard, qpn);
                }
            }
            Event::QpFatal(qpn, _) => {
                // The NAK that tells the client why goes first.
                guard.progress();
                self.cut_off(guard, qpn);
            }
            _ => {}
        }
    }

    fn accept(&mut self, guard: &mut DeviceGuard<'_>, conn: ConnId) -> Result<(), Error> {
        if self.stopping_since.is_some() {
            return Err(Error::Argument("the node is stopping".into()));
        }
        let now = guard.now();
        let nic = guard.nic();
        let init = QpInit {
            srq: Some(self.srq),
            // All replies and a probe: posting one never fails for want of room.
            max_send_wr: REPLIES as u32 + 1,
            max_inline: 0,
            max_rpc: 512,
            max_send_sge: 1,
            ..QpInit::new(QpType::Rc, self.pd, self.cq, self.cq)
        };
        let qp = nic.create_qp(init)?;
        let attr = ConnectAttr { min_rnr_timer: 1, ..ConnectAttr::default() };
        let accepted = nic
            .to_init(qp, ALL_REMOTE, 0)
            .map_err(Error::from)
            .and_then(|()| Ok(nic.accept(now, conn, qp, attr, &[])?));
        if accepted.is_err() {
            nic.destroy_qp(qp)?;
            return accepted;
        }
        self.peers.insert(qp, Peer { conn, keys: Vec::new(), probed: false });
        Ok(())
    }

    /// Ends a connection that has failed, or whose client does not behave.
    fn cut_off(&mut self, guard: &mut DeviceGuard<'_>, qpn: Qpn) {
        if let Some(peer) = self.peers.get(&qpn) {
            let now = guard.now();
            // It may be closing already.
            let _ = guard.nic().disconnect(now, peer.conn);
            self.forget(guard, qpn);
        }
    }

    /// A client is gone: its memory goes too.
    fn forget(&mut self, guard: &mut DeviceGuard<'_>, qpn: Qpn) {
        let Some(peer) = self.peers.remove(&qpn) else { return };
        self.sketches.forget(guard.nic(), qpn);
        for (key, charge) in peer.keys {
            self.sketches.released(guard.nic(), key);
            self.release(key, charge);
        }
        // Its completions in the queue are harmless: they only free slots.
        let _ = guard.nic().to_error(qpn);
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            self.complete(guard, wc);
        }
        let _ = guard.nic().destroy_qp(qpn);
    }

    /// Gives allocated memory back.
    fn release(&mut self, key: u32, charge: u64) {
        if self.writer.as_ref().is_some_and(|(_, writer)| writer.key() == key) {
            self.writer = None;
        }
        // A client may have invalidated its key by itself.
        let _ = self.registry.deregister(key);
        self.memory_left += charge;
        self.released = true;
    }

    /// Sends each client an empty WRITE, which needs no key. Sends complete in order, so that it also tells whether the
    /// client takes its replies.
    fn probe(&mut self) {
        let device = self.device.clone();
        let mut guard = device.lock();
        let silent: Vec<Qpn> = self.peers.iter().filter(|(_, peer)| peer.probed).map(|(qpn, _)| *qpn).collect();
        for qpn in silent {
            self.cut_off(&mut guard, qpn);
        }
        let probe = SendWr::new(PROBE_ID, SendOp::Write { va: 0, rkey: 0 }, Data::List(&[]));
        for (qpn, peer) in &mut self.peers {
            peer.probed = guard.nic().post_send(*qpn, &probe).is_ok();
        }
    }

    /// Starts waiting calls as long as there is room, in the order in which they came.
    fn start_calls(&mut self) {
        while !self.free_calls.is_empty()
            && self.kernels.in_flight() < self.kernels.capacity()
            && let Some(wc) = self.waiting.pop_front()
        {
            if let Some((asker, call)) = self.parse(&wc) {
                self.start(asker, call);
            }
            self.spent.push(wc.wr_id);
        }
    }

    fn start(&mut self, asker: Asker, mut call: Call) {
        let Some(index) = self.free_calls.pop() else { return };
        let qpn = asker.qpn;
        self.calls[index as usize] = Some(asker);
        call.tag = index.into();
        if call.op == op::KERNEL_DEPLOY {
            self.deploy(call);
        } else if call.op >= op::FIRST {
            let status = self.control(qpn, &mut call);
            self.finished.push_back((status, call));
        } else if let Err(call) = self.kernels.start(call) {
            self.finished.push_back((Status::Busy, call));
        }
    }

    /// Reads a request out of its receive buffer. `None` if it is no call: such a message cannot be answered.
    fn parse(&mut self, wc: &WorkCompletion) -> Option<(Asker, Call)> {
        let mut front = [0; HostCall::FRONT];
        let at = wc.wr_id as usize * MAX_REQUEST;
        let len = (wc.byte_len as usize).checked_sub(HostCall::FRONT)?;
        self.requests.read(at, &mut front).ok()?;
        let (header, op) = HostCall::parse_front(&front).ok()?;
        let mut call = self.spare.pop().unwrap_or_default();
        call.recycle(op, header.reply_capacity.min(MAX_REPLY as u32));
        call.qpn = wc.qpn.0;
        call.pd = Some(self.pd);
        call.params.resize(len, 0);
        self.requests.read(at + HostCall::FRONT, &mut call.params).ok()?;
        Some((Asker { qpn: wc.qpn, header }, call))
    }

    fn run_kernels(&mut self) {
        let Self { kernels, finished, .. } = self;
        // A look-up ends within one turn, so that its reply leaves with the acknowledgement of its request.
        for _ in 0..ROUNDS {
            if kernels.in_flight() == 0 {
                break;
            }
            kernels.poll(&mut |mut call, status| {
                // Only a whole reply is worth sending.
                if status != Status::Ok {
                    call.reply.clear();
                }
                finished.push_back((status, call));
            });
        }
    }

    /// Sends the replies of calls that ended, as far as there are buffers. Until then a call keeps its place, so that a
    /// client which takes no replies cannot have more and more of them made.
    fn send_replies(&mut self, guard: &mut DeviceGuard<'_>) -> usize {
        let mut sent = 0;
        while !self.free_replies.is_empty()
            && let Some((status, call)) = self.finished.pop_front()
        {
            let index = call.tag as usize;
            if let Some(asker) = self.calls[index].take() {
                self.send_reply(guard, &asker, status, &call.reply);
            }
            self.free_calls.push(index as u32);
            self.spare.push(call);
            sent += 1;
        }
        sent
    }

    fn send_reply(&mut self, guard: &mut DeviceGuard<'_>, asker: &Asker, status: Status, reply: &[u8]) {
        let Some(slot) = self.free_replies.pop() else { return };
        let header = &asker.header;
        let (status, reply) = match reply.len() <= header.reply_capacity as usize {
            true => (status, reply),
            false => (Status::ReplyTooLong, &[][..]),
        };
        let at = slot as usize * MAX_REPLY;
        // In bounds: kernels keep to the call's limit, which is a slot's length at most; the node's replies are short.
        let _ = self.replies.write(at, reply);
        let sge =
            [Sge { va: self.reply_region.va() + at as u64, len: reply.len() as u32, lkey: self.reply_region.key() }];
        let imm = reply_imm(header.tag, status.code());
        let op = SendOp::WriteImm { va: header.reply_va, rkey: header.reply_rkey, imm };
        let wr = SendWr::new(slot.into(), op, Data::List(&sge)).solicited();
        if guard.nic().post_send(asker.qpn, &wr).is_err() {
            // The client is gone.
            self.free_replies.push(slot);
        }
    }

    /// The node's own calls.
    fn control(&mut self, qpn: Qpn, call: &mut Call) -> Status {
        let result = match call.op {
            op::ALLOC => self.alloc(qpn, call),
            op::FREE => self.free(qpn, call),
            op::CPU => {
                call.reply.extend_from_slice(&crate::sys::process_cpu_ns().to_le_bytes());
                Ok(())
            }
            op::KERNEL_LIST => {
                self.modules.kernels().list().iter().for_each(|entry| control::encode_entry(&mut call.reply, entry));
                Ok(())
            }
            op::KERNEL_REMOVE => self.remove(call),
            op::SKETCH_START if self.peers.contains_key(&qpn) => {
                let memory = (&*self.registry, self.pd);
                self.sketches.start(self.device.lock().nic(), memory, qpn, &call.params)
            }
            op::SKETCH_STOP => self.sketches.stop(self.device.lock().nic(), qpn, &call.params),
            op::WRITER_START => self.start_writer(qpn, call),
            op::WRITER_STOP => {
                let writer = self.writer.take_if(|(owner, _)| *owner == qpn);
                let updates = writer.map_or(0, |(_, writer)| writer.stop());
                call.reply.extend_from_slice(&updates.to_le_bytes());
                Ok(())
            }
            _ => return Status::UnknownOp,
        };
        match result {
            Ok(()) => Status::Ok,
            Err(why) => {
                call.reply.clear();
                call.reply.extend_from_slice(why.as_bytes());
                Status::BadParams
            }
        }
    }

    /// Starts to compile a module: the call is answered when that is done.
    fn deploy(&mut self, call: Call) {
        let outcome = match control::Deploy::decode(&call.params) {
            Some(deploy) => self.modules.deploy(&self.registry, self.pd, deploy, call),
            None => Err((call, "the parameters are cut short".into())),
        };
        if let Err((call, why)) = outcome {
            self.refuse(call, &why);
        }
    }

    /// Answers the call that waits for its module, once that is compiled.
    fn finish_deployment(&mut self, guard: &mut DeviceGuard<'_>) {
        match self.modules.poll() {
            None => {}
            Some((mut call, Ok(entry))) => {
                guard.nic().deploy(entry.op);
                call.reply.extend_from_slice(&entry.op.to_le_bytes());
                call.reply.extend_from_slice(&entry.version.to_le_bytes());
                self.finished.push_back((Status::Ok, call));
            }
            Some((call, Err(why))) => self.refuse(call, &why),
        }
    }

    fn refuse(&mut self, mut call: Call, why: &str) {
        call.reply.clear();
        let room = why.len().min(call.reply_limit as usize);
        call.reply.extend_from_slice(&why.as_bytes()[..room]);
        self.finished.push_back((Status::BadParams, call));
    }

    fn remove(&mut self, call: &Call) -> Result<(), String> {
        let op = self.modules.remove(&String::from_utf8_lossy(&call.params))?;
        self.device.lock().nic().undeploy(op);
        Ok(())
    }

    fn alloc(&mut self, qpn: Qpn, call: &mut Call) -> Result<(), String> {
        let len = u64_at(&call.params, 0).ok_or("the length is missing")?;
        // Before anything is made for a client that has gone since it called.
        let peer = self.peers.get_mut(&qpn).ok_or(CLOSING)?;
        let left = self.memory_left;
        let charge =
            len.checked_next_multiple_of(PAGE).filter(|&charge| len > 0 && charge <= left).ok_or_else(|| {
                format!("{len} bytes asked for, {left} left: ask for less, or start the node with a larger --memory")
            })?;
        let buffer = Buffer::anonymous(len as usize).map_err(|e| e.to_string())?;
        let access = Access::LOCAL_WRITE | ALL_REMOTE;
        let region =
            self.registry.register(self.pd, &buffer, 0, len as usize, None, access).map_err(|e| e.to_string())?;
        peer.keys.push((region.key(), charge));
        self.memory_left -= charge;
        call.reply.extend_from_slice(&region.va().to_le_bytes());
        call.reply.extend_from_slice(&region.key().to_le_bytes());
        Ok(())
    }

    fn free(&mut self, qpn: Qpn, call: &Call) -> Result<(), String> {
        let key = u32_at(&call.params, 0).ok_or("the key is missing")?;
        let peer = self.peers.get_mut(&qpn).ok_or(CLOSING)?;
        let at = peer.keys.iter().position(|(k, _)| *k == key).ok_or(FOREIGN)?;
        let (_, charge) = peer.keys.swap_remove(at);
        self.sketches.released(self.device.lock().nic(), key);
        self.release(key, charge);
        Ok(())
    }

    fn start_writer(&mut self, qpn: Qpn, call: &Call) -> Result<(), String> {
        let (key, va, config) = control::decode_writer(&call.params).ok_or("the parameters are cut short")?;
        let peer = self.peers.get(&qpn).ok_or(CLOSING)?;
        if !peer.keys.iter().any(|(k, _)| *k == key) {
            return Err(FOREIGN.into());
        }
        if self.writer.as_ref().is_some_and(|(owner, _)| *owner != qpn) {
            return Err("another client's writer runs, and a node has one".into());
        }
        let region = self.registry.lookup(key).ok_or(FOREIGN)?;
        self.writer = Some((qpn, Writer::start(region, self.pd, va, config)?));
        Ok(())
    }

    /// The node ends: clients are told.
    fn take_leave(&mut self) {
        self.writer = None;
        let end = self.device.now() + 50_000_000;
        let mut guard = self.device.lock();
        let now = guard.now();
        for peer in self.peers.values() {
            let _ = guard.nic().disconnect(now, peer.conn);
        }
        let mut left = self.peers.len();
        while left > 0 && guard.now() < end {
            guard.progress();
            let events = guard.take_events();
            left -= events.iter().filter(|e| matches!(e, Event::Cm(CmEvent::Disconnected { .. }))).count().min(left);
        }
    }
}

/// Why the node refuses a call about a region.
const FOREIGN: &str = "this client has no region with that key";
/// Why it refuses a call that arrived just before its connection ended.
const CLOSING: &str = "the connection is closing";

fn request_sge(region: &Region, slot: u64) -> Sge {
    Sge { va: region.va() + slot * MAX_REQUEST as u64, len: MAX_REQUEST as u32, lkey: region.key() }
}

/// What of an explanation fits into a rejection.
fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(140)]
}
