//! A memory node: memory and kernels that clients reach over RoCE v2.
//!
//! One-sided verbs and kernels on the NIC need only the device and its NIC thread. The host thread takes connections
//! and runs calls to the host; while it has some, it drives the engine itself.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use remora_kernel::{Call, Limits, Runner, Status};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_nic::cm::{CmEvent, ConnId, reason};
use remora_nic::{
    ALL_REMOTE, ConnectAttr, CqId, Data, Event, QpInit, QpType, Qpn, SendOp, SendWr, Sge, SrqId, WcOpcode, WcStatus,
    WorkCompletion, cm_port,
};
use remora_wire::rpc::{RpcHeader, reply_imm};

use crate::client::MAX_REPLY;
use crate::control::{self, MAX_REQUEST, op};
use crate::device::{Device, DeviceGuard};
use crate::kernels::{Kernels, POOL};
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
    /// What one kernel call may do.
    pub limits: Limits,
}

impl NodeConfig {
    /// At `listen`, up to 16 GB.
    pub fn new(listen: IpAddr) -> Self {
        Self { listen, memory_limit: 16 << 30, packet: false, limits: Limits::default() }
    }
}

/// A running memory node.
pub struct Node {
    device: Device,
    stop: Arc<AtomicBool>,
    host: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts serving.
    pub fn start(config: NodeConfig) -> Result<Self, Error> {
        let links = links::node_links(config.listen, config.packet)?;
        let mtu = links.iter().map(|l| l.max_mtu()).min().unwrap_or(1024) as u32;
        let registry = Arc::new(Registry::new(crate::device::seed()?));
        let pd = registry.alloc_pd();
        let kernels = Kernels::builtins(&registry, config.limits);
        let device = Device::with_registry(config.listen, links, registry.clone(), Some(kernels))?;
        let stop = Arc::new(AtomicBool::new(false));
        let host = Host::new(device.clone(), registry, pd, mtu, &config, stop.clone())?;
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
    /// Keys of what it allocated.
    keys: Vec<(u32, u64)>,
}

/// A call that the host runs.
struct HostCall {
    qpn: Qpn,
    header: RpcHeader,
}

/// The host thread's state.
struct Host {
    device: Device,
    registry: Arc<Registry>,
    pd: Pd,
    mtu: u32,
    cq: CqId,
    srq: SrqId,
    requests: Buffer,
    request_region: Arc<Region>,
    replies: Buffer,
    reply_region: Arc<Region>,
    free_replies: Vec<u32>,
    peers: HashMap<Qpn, Peer>,
    kernels: Box<dyn Runner + Send>,
    calls: Vec<Option<HostCall>>,
    free_calls: Vec<u32>,
    spare: Vec<Call>,
    /// Receives taken whose calls wait for room.
    waiting: Vec<WorkCompletion>,
    /// Calls that ended and wait for a reply buffer.
    finished: Vec<(HostCall, Status, Call)>,
    memory_left: u64,
    writer: Option<Writer>,
    stop: Arc<AtomicBool>,
    stopping_since: Option<u64>,
}

impl Host {
    fn new(
        device: Device,
        registry: Arc<Registry>,
        pd: Pd,
        mtu: u32,
        config: &NodeConfig,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let requests = map_memory(CALLS * MAX_REQUEST)?;
        let request_region = registry.register(pd, &requests, 0, CALLS * MAX_REQUEST, None, Access::LOCAL_WRITE)?;
        let replies = map_memory(REPLIES * MAX_REPLY)?;
        let reply_region = registry.register(pd, &replies, 0, REPLIES * MAX_REPLY, None, Access::LOCAL_WRITE)?;
        let kernels = remora_kernel::host_runner(registry.clone(), true, POOL, config.limits);
        let (cq, srq);
        {
            let mut guard = device.lock();
            let nic = guard.nic();
            cq = nic.create_cq(2 * CALLS as u32 + REPLIES as u32);
            srq = nic.create_srq(pd, CALLS as u32, 1)?;
            for slot in 0..CALLS as u64 {
                nic.post_srq_recv(srq, slot, &[request_sge(&request_region, slot)])?;
            }
            nic.listen(cm_port(control::PORT))?;
        }
        Ok(Self {
            device,
            registry,
            pd,
            mtu,
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
            waiting: Vec::with_capacity(CALLS),
            finished: Vec::with_capacity(CALLS),
            memory_left: config.memory_limit,
            writer: None,
            stop,
            stopping_since: None,
        })
    }

    fn run(mut self) {
        let mut busy_at = self.device.now();
        loop {
            let work = self.turn();
            let now = self.device.now();
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
        self.waiting.is_empty() && self.finished.is_empty() && self.free_calls.len() == CALLS
    }

    /// One round: drive the engine, take calls, run them, send replies. Returns how much there was to do.
    fn turn(&mut self) -> usize {
        let device = self.device.clone();
        let mut guard = device.lock();
        guard.progress();
        let mut work = 0;
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            work += 1;
            self.complete(&mut guard, wc);
        }
        for event in guard.take_events() {
            work += 1;
            self.handle_event(&mut guard, event);
        }
        work += self.send_replies(&mut guard);
        drop(guard);
        self.start_calls();
        self.run_kernels();
        work + self.kernels.in_flight()
    }

    fn complete(&mut self, guard: &mut DeviceGuard<'_>, wc: WorkCompletion) {
        match (wc.opcode, wc.status) {
            (WcOpcode::Recv, WcStatus::Success) => self.waiting.push(wc),
            (WcOpcode::Recv | WcOpcode::RecvWriteImm, _) => self.repost(guard, wc.wr_id),
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
                if let Some(peer) = self.peers.get(&qpn) {
                    let now = guard.now();
                    // If it is closing already, its end comes by itself.
                    let _ = guard.nic().disconnect(now, peer.conn);
                }
            }
            _ => {}
        }
    }

    fn accept(&mut self, guard: &mut DeviceGuard<'_>, conn: ConnId) -> Result<(), Error> {
        let now = guard.now();
        let nic = guard.nic();
        let init = QpInit {
            srq: Some(self.srq),
            max_send_wr: REPLIES as u32,
            max_inline: 0,
            max_rpc: 512,
            max_send_sge: 1,
            ..QpInit::new(QpType::Rc, self.pd, self.cq, self.cq)
        };
        let qp = nic.create_qp(init)?;
        let attr = ConnectAttr { path_mtu: self.mtu, min_rnr_timer: 1, ..ConnectAttr::default() };
        let accepted = nic
            .to_init(qp, ALL_REMOTE, 0)
            .map_err(Error::from)
            .and_then(|()| Ok(nic.accept(now, conn, qp, attr, &[])?));
        if accepted.is_err() {
            nic.destroy_qp(qp)?;
            return accepted;
        }
        self.peers.insert(qp, Peer { conn, keys: Vec::new() });
        Ok(())
    }

    /// A client is gone: its memory goes too.
    fn forget(&mut self, guard: &mut DeviceGuard<'_>, qpn: Qpn) {
        let Some(peer) = self.peers.remove(&qpn) else { return };
        for (key, len) in peer.keys {
            if self.writer.as_ref().is_some_and(|w| w.key() == key) {
                self.writer = None;
            }
            if self.registry.deregister(key).is_ok() {
                self.memory_left += len;
            }
        }
        // Its completions in the queue are harmless: they only free slots.
        let _ = guard.nic().to_error(qpn);
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            self.complete(guard, wc);
        }
        let _ = guard.nic().destroy_qp(qpn);
    }

    /// Parses waiting requests and starts what there is room for.
    fn start_calls(&mut self) {
        let mut spent: Vec<u64> = Vec::new();
        let waiting = std::mem::take(&mut self.waiting);
        let mut later = Vec::new();
        for wc in waiting {
            let Some(index) = self.free_calls.pop() else {
                later.push(wc);
                continue;
            };
            match self.parse(&wc) {
                Some((host_call, call)) => self.start(index, host_call, call, &wc, &mut spent, &mut later),
                None => {
                    self.free_calls.push(index);
                    spent.push(wc.wr_id);
                }
            }
        }
        self.waiting = later;
        if !spent.is_empty() {
            let device = self.device.clone();
            let mut guard = device.lock();
            spent.into_iter().for_each(|slot| self.repost(&mut guard, slot));
        }
    }

    fn start(
        &mut self,
        index: u32,
        host_call: HostCall,
        mut call: Call,
        wc: &WorkCompletion,
        spent: &mut Vec<u64>,
        later: &mut Vec<WorkCompletion>,
    ) {
        if call.op >= op::ALLOC {
            let status = self.control(host_call.qpn, &mut call);
            self.finished.push((host_call, status, call));
            self.free_calls.push(index);
            return spent.push(wc.wr_id);
        }
        call.tag = index.into();
        match self.kernels.start(call) {
            Ok(()) => {
                self.calls[index as usize] = Some(host_call);
                spent.push(wc.wr_id);
            }
            Err(call) => {
                self.spare.push(call);
                self.free_calls.push(index);
                later.push(*wc);
            }
        }
    }

    /// Reads a request out of its receive buffer. `None` if it is no call; such a message is dropped.
    fn parse(&mut self, wc: &WorkCompletion) -> Option<(HostCall, Call)> {
        let mut front = [0; control::HOST_HEADER];
        let at = wc.wr_id as usize * MAX_REQUEST;
        let len = (wc.byte_len as usize).checked_sub(control::HOST_HEADER)?;
        self.requests.read(at, &mut front).ok()?;
        let header = RpcHeader::parse(&front).ok()?;
        let op = control::u64_at(&front, RpcHeader::LEN)?;
        let mut call = self.spare.pop().unwrap_or_default();
        call.recycle(op, header.reply_capacity.min(MAX_REPLY as u32));
        call.qpn = wc.qpn.0;
        call.pd = Some(self.pd);
        call.params.resize(len, 0);
        self.requests.read(at + control::HOST_HEADER, &mut call.params).ok()?;
        Some((HostCall { qpn: wc.qpn, header }, call))
    }

    fn run_kernels(&mut self) {
        let Self { kernels, calls, free_calls, finished, .. } = self;
        kernels.poll(&mut |call, status| {
            let index = call.tag as usize;
            if let Some(host_call) = calls[index].take() {
                finished.push((host_call, status, call));
            }
            free_calls.push(index as u32);
        });
    }

    /// Sends the replies of calls that ended, as far as there are buffers.
    fn send_replies(&mut self, guard: &mut DeviceGuard<'_>) -> usize {
        let mut sent = 0;
        while !self.free_replies.is_empty() {
            let Some((host_call, status, call)) = self.finished.pop() else { break };
            sent += 1;
            self.send_reply(guard, &host_call, status, &call.reply);
            self.spare.push(call);
        }
        sent
    }

    fn send_reply(&mut self, guard: &mut DeviceGuard<'_>, host_call: &HostCall, status: Status, reply: &[u8]) {
        let Some(slot) = self.free_replies.pop() else { return };
        let at = slot as usize * MAX_REPLY;
        // In bounds: the call's limit is a slot's length.
        let _ = self.replies.write(at, reply);
        let sge =
            [Sge { va: self.reply_region.va() + at as u64, len: reply.len() as u32, lkey: self.reply_region.key() }];
        let header = &host_call.header;
        let imm = reply_imm(header.tag, status.code());
        let op = SendOp::WriteImm { va: header.reply_va, rkey: header.reply_rkey, imm };
        let wr = SendWr::new(slot.into(), op, Data::List(&sge)).solicited();
        if guard.nic().post_send(host_call.qpn, &wr).is_err() {
            // The client is gone, or floods us faster than it takes replies: its call stays unanswered.
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
            op::WRITER_START => self.start_writer(call),
            op::WRITER_STOP => {
                let updates = self.writer.take().map_or(0, Writer::stop);
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

    fn alloc(&mut self, qpn: Qpn, call: &mut Call) -> Result<(), String> {
        let len = control::u64_at(&call.params, 0).ok_or("the length is missing")?;
        let left = self.memory_left;
        if len == 0 || len > left {
            return Err(format!("{len} bytes asked for, {left} left: start the node with a larger --memory"));
        }
        let buffer = Buffer::anonymous(len as usize).map_err(|e| e.to_string())?;
        let access = Access::LOCAL_WRITE | ALL_REMOTE;
        let region =
            self.registry.register(self.pd, &buffer, 0, len as usize, None, access).map_err(|e| e.to_string())?;
        let peer = self.peers.get_mut(&qpn).ok_or("the connection is closing")?;
        peer.keys.push((region.key(), len));
        self.memory_left -= len;
        call.reply.extend_from_slice(&region.va().to_le_bytes());
        call.reply.extend_from_slice(&region.key().to_le_bytes());
        Ok(())
    }

    fn free(&mut self, qpn: Qpn, call: &Call) -> Result<(), String> {
        let key = control::u32_at(&call.params, 0).ok_or("the key is missing")?;
        let peer = self.peers.get_mut(&qpn).ok_or("the connection is closing")?;
        let at = peer.keys.iter().position(|(k, _)| *k == key).ok_or("this client has no region with that key")?;
        let (_, len) = peer.keys.swap_remove(at);
        self.memory_left += len;
        if self.writer.as_ref().is_some_and(|w| w.key() == key) {
            self.writer = None;
        }
        self.registry.deregister(key).map_err(|e| e.to_string())
    }

    fn start_writer(&mut self, call: &Call) -> Result<(), String> {
        let (key, va, config) = control::decode_writer(&call.params).ok_or("the parameters are cut short")?;
        let region = self.registry.lookup(key).ok_or("there is no region with that key")?;
        self.writer = Some(Writer::start(region, self.pd, va, config)?);
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

fn request_sge(region: &Region, slot: u64) -> Sge {
    Sge { va: region.va() + slot * MAX_REQUEST as u64, len: MAX_REQUEST as u32, lkey: region.key() }
}

/// What of an explanation fits into a rejection.
fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(140)]
}
