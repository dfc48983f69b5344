//! A client of a memory node: memory on the node, and kernels run against it in any placement.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use remora_kernel::{Call, Limits, Placement, Runner, Status};
use remora_memory::{Access, Buffer, Pd, Registry};
use remora_nic::cm::{CmEvent, ConnId};
use remora_nic::{
    CqId, Data, Event, NicError, QpInit, QpType, Qpn, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use remora_service::control::{op, u32_at, u64_at};
use remora_service::{Calls, Full, HostCall, MAX_CALLS, MAX_REPLY, MAX_REQUEST, RECVS};
use remora_wasm::KernelSet;

use crate::compressed::{Compressor, client_kernels};
use crate::control::{self, WriterConfig};
use crate::device::Device;
use crate::dial::dial;
use crate::link::{Layers, LinkKind};
use crate::links::client_link;
use crate::remote::{RemoteMemory, SLOT, SLOT_ID, SLOTS, Verbs};
use crate::sys::prepare_to_wait;
use crate::{Error, map_memory};

/// Whom to talk to, and how.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The node's address.
    pub node: IpAddr,
    /// Our address. On one machine, another of 127.0.0.0/8 than the node's.
    pub local: IpAddr,
    /// Which link; without a choice shared memory if the node is on this host and lets us, else UDP.
    pub link: Option<LinkKind>,
    /// What lies between the client's device and its link.
    pub layers: Layers,
}

impl ClientConfig {
    /// By shared memory where that is possible, else by UDP.
    pub fn new(node: IpAddr, local: IpAddr) -> Self {
        Self { node, local, link: None, layers: Layers::default() }
    }
}

/// Memory on the node that belongs to this client until it disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Its address there.
    pub va: u64,
    /// Its key.
    pub key: u32,
    /// Bytes.
    pub len: u64,
}

/// What the client's NIC has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientCounters {
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of both as IP packets, headers included.
    pub wire_bytes: u64,
    /// Requests that waited for the network: verbs of kernels here, calls to the node.
    pub round_trips: u64,
    /// Request packets sent more than once.
    pub retransmits: u64,
}

/// How long to wait for a node to hear that a client leaves, in nanoseconds.
const GOODBYE: u64 = 20_000_000;
/// The work request id of a payload stream has this bit.
const STREAM_ID: u64 = 1 << 33;
/// Verbs of a bulk READ in flight.
const WINDOW: usize = 16;

/// A connection to a node. Not for sharing between threads: each takes its own.
pub struct Client {
    device: Device,
    link: LinkKind,
    node: IpAddr,
    cq: CqId,
    qp: Qpn,
    conn: ConnId,
    /// The caller's tag of each call under way to the node.
    calls: Calls<u32>,
    /// Calls whose parameters are too long for their placement.
    refused: Vec<u32>,
    /// Payload streams that are being sent.
    streaming: u32,
    /// Made when first used.
    pub(crate) compressor: Option<Compressor>,
    /// Receives to post again.
    spent_recvs: usize,
    verbs: Rc<Verbs>,
    kernels: Box<dyn Runner>,
    pub(crate) modules: KernelSet,
    spare_calls: Vec<Call>,
    remote_calls: u64,
    wcs: Vec<WorkCompletion>,
    scratch: Vec<u8>,
    lost: Option<WcStatus>,
    /// When there was work last.
    busy_at: u64,
}

impl Client {
    /// Connects to a node.
    pub fn connect(config: ClientConfig) -> Result<Self, Error> {
        prepare_to_wait();
        let link = client_link(config.local, config.node, config.link, &config.layers)?;
        let (kind, mtu) = (link.kind(), link.max_mtu());
        let registry = Arc::new(Registry::new(crate::entropy()?));
        let kernels = client_kernels(&registry);
        let device = Device::with_registry(config.local, vec![link], registry.clone(), Some(kernels))?;
        let (cq, qp, pd);
        {
            let mut guard = device.lock();
            let nic = guard.nic();
            pd = nic.registry().alloc_pd();
            cq = nic.create_cq(4096)?;
            let init = QpInit {
                max_send_wr: 512,
                max_recv_wr: RECVS as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: MAX_REQUEST as u32,
                max_rpc: 0,
                ..QpInit::new(QpType::Rc, pd, cq, cq)
            };
            qp = nic.create_qp(init)?;
            // The node may write replies, and nothing else.
            nic.to_init(qp, Access::REMOTE_WRITE, 0)?;
        }
        let replies = map_memory(Calls::<u32>::REPLY_BYTES)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let reply_region = registry.register(pd, &replies, 0, replies.len(), None, access)?;
        let verbs = Rc::new(Verbs::new(&device, pd, qp)?);
        let memory = RemoteMemory(verbs.clone());
        let modules = KernelSet::default();
        let kernels = remora_kernel::runner(modules.clone(), move |_| memory.clone(), MAX_CALLS, Limits::default());
        let conn = dial(&device, qp, config.node, mtu as u32)?;
        let mut client = Self {
            device,
            link: kind,
            node: config.node,
            cq,
            qp,
            conn,
            calls: Calls::new(replies, reply_region),
            refused: Vec::with_capacity(MAX_CALLS),
            streaming: 0,
            compressor: None,
            spent_recvs: RECVS,
            verbs,
            kernels,
            modules,
            spare_calls: Vec::with_capacity(MAX_CALLS),
            remote_calls: 0,
            wcs: Vec::with_capacity(1024),
            scratch: Vec::with_capacity(MAX_REPLY),
            lost: None,
            busy_at: 0,
        };
        client.drive()?;
        Ok(client)
    }

    /// The link in use.
    pub fn link(&self) -> LinkKind {
        self.link
    }

    /// The device, for verbs of one's own.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Counts since the connection was made.
    pub fn counters(&self) -> ClientCounters {
        let mut guard = self.device.lock();
        let nic = guard.nic().counters();
        let stats = guard.link_stats();
        ClientCounters {
            tx_packets: stats.iter().map(|(_, s)| s.tx_packets).sum(),
            rx_packets: stats.iter().map(|(_, s)| s.rx_packets).sum(),
            wire_bytes: stats.iter().map(|(_, s)| s.tx_bytes + s.rx_bytes).sum(),
            round_trips: self.verbs.posted() + self.remote_calls,
            retransmits: nic.retransmits,
        }
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.calls.len() + self.kernels.in_flight()
    }

    /// Starts the kernel `op` in a placement. `tag` comes back with the result. Parameters that are too long for the
    /// placement (one MTU to the NIC, [`MAX_REQUEST`] bytes to the host, headers included) end in
    /// [`Status::BadParams`].
    pub fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        if placement == Placement::Client {
            let mut call = self.spare_calls.pop().unwrap_or_default();
            call.recycle(op, MAX_REPLY as u32);
            call.params.extend_from_slice(params);
            call.tag = tag.into();
            return self.kernels.start(call).map_err(|call| {
                self.spare_calls.push(call);
                Full
            });
        }
        let (slot, header) = self.calls.open(tag)?;
        let posted = match placement {
            Placement::Nic => self.device.lock().nic().post_rpc(self.qp, u64::from(slot), op, &header, params),
            // No node of the real world has an accelerator: a call there is refused.
            Placement::Client | Placement::Accelerator => {
                Err(NicError::TooLarge { what: "accelerators", given: 1, limit: 0 })
            }
            Placement::Host => {
                if (HostCall { header, op, params }).encode(&mut self.scratch).is_err() {
                    self.refused.push(slot);
                    return Ok(());
                }
                let wr = SendWr::new(u64::from(slot), SendOp::Send, Data::Inline(&self.scratch)).solicited();
                self.device.lock().nic().post_send(self.qp, &wr)
            }
        };
        match posted {
            Ok(()) => self.remote_calls += 1,
            Err(NicError::TooLarge { .. }) => self.refused.push(slot),
            Err(_) => {
                self.calls.end(slot);
                return Err(Full);
            }
        }
        Ok(())
    }

    /// Drives the NIC and the kernels here; `done` gets each finished call's tag, status and reply.
    /// Returns how many finished. When the connection is lost, all calls under way end with [`Status::LOST`], and this
    /// poll and later ones return the error.
    pub fn poll(&mut self, done: &mut dyn FnMut(u32, Status, &[u8])) -> Result<usize, Error> {
        let driven = self.drive();
        let mut finished = 0;
        for wc in self.wcs.drain(..) {
            if wc.opcode == WcOpcode::RecvWriteImm && wc.status == WcStatus::Success {
                self.spent_recvs += 1;
                if let Some(reply) = self.calls.take_reply(wc.imm, wc.byte_len) {
                    done(reply.mark, reply.status, reply.bytes);
                    finished += 1;
                }
            }
        }
        while let Some(slot) = self.refused.pop() {
            if let Some(tag) = self.calls.end(slot) {
                done(tag, Status::BadParams, &[]);
                finished += 1;
            }
        }
        if driven.is_err() {
            for tag in self.calls.lose_all() {
                done(tag, Status::LOST, &[]);
                finished += 1;
            }
        }
        let spare = &mut self.spare_calls;
        loop {
            self.kernels.poll(&mut |call, status| {
                done(call.tag as u32, status, &call.reply);
                finished += 1;
                spare.push(call);
            });
            // On a lost connection every verb fails at once, and so kernels end.
            if driven.is_ok() || self.kernels.in_flight() == 0 {
                return driven.map(|()| finished);
            }
        }
    }

    /// Moves packets, posts receives again, notes verbs that completed; other completions stay in `wcs`.
    fn drive(&mut self) -> Result<(), Error> {
        let mut guard = self.device.lock();
        for _ in 0..self.spent_recvs {
            // There is room; a queue pair in the error state completes it at once.
            let _ = guard.nic().post_recv(self.qp, 0, &[]);
        }
        self.spent_recvs = 0;
        let work = guard.progress();
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            if wc.status != WcStatus::Success && self.lost.is_none_or(|s| s == WcStatus::Flushed) {
                self.lost = Some(wc.status);
            }
            if wc.wr_id & SLOT_ID != 0 {
                self.verbs.complete(wc.wr_id, wc.status);
            } else {
                self.streaming = self.streaming.saturating_sub(u32::from(wc.wr_id & STREAM_ID != 0));
                self.wcs.push(wc);
            }
        }
        drop(guard);
        match work {
            0 => self.device.relax(self.busy_at),
            _ => self.busy_at = self.device.now(),
        }
        self.alive().inspect_err(|_| self.verbs.set_lost())
    }

    fn alive(&self) -> Result<(), Error> {
        match self.lost {
            None => Ok(()),
            Some(status) => Err(Error::Lost { address: self.node, status }),
        }
    }

    /// Runs one call from start to end. Nothing else may be under way.
    pub fn call(&mut self, placement: Placement, op: u64, params: &[u8]) -> Result<(Status, Vec<u8>), Error> {
        self.idle()?;
        self.submit(placement, op, params, 0).map_err(|full| Error::Argument(full.to_string()))?;
        self.finish()
    }

    /// Calls a kernel on the node's NIC with a payload stream behind the parameters, from start to end.
    pub fn call_stream(&mut self, op: u64, params: &[u8], payload: &[u8]) -> Result<(Status, Vec<u8>), Error> {
        self.idle()?;
        let len = u32::try_from(payload.len())
            .map_err(|_| Error::Argument(format!("a payload stream of {} bytes: at most 2 GB", payload.len())))?;
        let buffer = Buffer::from_boxed(payload.into());
        let registry = self.device.lock().nic().registry().clone();
        let region = registry.register(self.calls.region().pd(), &buffer, 0, payload.len(), None, Access::empty())?;
        let outcome = self.run_stream(op, params, Sge { va: region.va(), len, lkey: region.key() });
        // The key must not outlive the buffer's use, whatever happened.
        let _ = registry.deregister(region.key());
        outcome
    }

    fn run_stream(&mut self, op: u64, params: &[u8], payload: Sge) -> Result<(Status, Vec<u8>), Error> {
        self.post_stream(op, params, payload, 0)?;
        let result = self.finish()?;
        self.await_streams()?;
        Ok(result)
    }

    /// Calls a kernel on the node's NIC with a payload stream that lies in memory of the queue pair's protection domain.
    pub(crate) fn post_stream(&mut self, op: u64, params: &[u8], payload: Sge, tag: u32) -> Result<(), Error> {
        let (slot, header) = self.calls.open(tag).map_err(|full| Error::Argument(full.to_string()))?;
        let id = STREAM_ID | u64::from(slot);
        let posted = self.device.lock().nic().post_rpc_write(self.qp, id, op, &header, params, &[payload]);
        if let Err(e) = posted {
            self.calls.end(slot);
            return Err(e.into());
        }
        self.remote_calls += 1;
        self.streaming += 1;
        Ok(())
    }

    /// Waits until payload streams are sent: a kernel may answer before it has seen all of one, and the NIC still sends.
    pub(crate) fn await_streams(&mut self) -> Result<(), Error> {
        while self.streaming > 0 {
            self.drive()?;
        }
        Ok(())
    }

    /// The protection domain of its queue pair.
    pub(crate) fn pd(&self) -> Pd {
        self.calls.region().pd()
    }

    pub(crate) fn idle(&self) -> Result<(), Error> {
        match self.in_flight() {
            0 => self.alive(),
            _ => Err(Error::Argument("a blocking call while others are under way: finish those first".into())),
        }
    }

    /// Waits for the only call under way.
    fn finish(&mut self) -> Result<(Status, Vec<u8>), Error> {
        let mut result = None;
        loop {
            self.poll(&mut |_, status, reply| result = Some((status, reply.to_vec())))?;
            if let Some(result) = result.take() {
                return Ok(result);
            }
        }
    }

    pub(crate) fn node_call(&mut self, what: &'static str, op: u64, params: &[u8]) -> Result<Vec<u8>, Error> {
        match self.call(Placement::Host, op, params)? {
            (Status::Ok, reply) => Ok(reply),
            (status, reply) => {
                let text = String::from_utf8_lossy(&reply);
                let why = if text.is_empty() { format!("{status:?}") } else { text.into_owned() };
                Err(Error::Node { what, why })
            }
        }
    }

    /// Registers `len` bytes of memory on the node, zeroed, readable and writable by this node's clients who know the
    /// key. It is given back when this client disconnects.
    pub fn alloc(&mut self, len: u64) -> Result<RemoteRegion, Error> {
        let reply = self.node_call("allocate memory", op::ALLOC, &len.to_le_bytes())?;
        match (u64_at(&reply, 0), u32_at(&reply, 8)) {
            (Some(va), Some(key)) => Ok(RemoteRegion { va, key, len }),
            _ => Err(Error::Node { what: "allocate memory", why: "its answer is too short".into() }),
        }
    }

    /// Gives memory back early.
    pub fn free(&mut self, region: &RemoteRegion) -> Result<(), Error> {
        self.node_call("free memory", op::FREE, &region.key.to_le_bytes()).map(drop)
    }

    /// CPU time that the node process has used, in nanoseconds.
    pub fn node_cpu_ns(&mut self) -> Result<u64, Error> {
        let reply = self.node_call("tell its CPU time", op::CPU, &[])?;
        u64_at(&reply, 0).ok_or(Error::Node { what: "tell its CPU time", why: "its answer is too short".into() })
    }

    /// Starts the node's writer thread on a region: see [`WriterConfig`].
    pub fn start_writer(&mut self, region: &RemoteRegion, config: &WriterConfig) -> Result<(), Error> {
        let params = control::encode_writer(region.key, region.va, config);
        self.node_call("start its writer", op::WRITER_START, &params).map(drop)
    }

    /// Stops the node's writer thread. Returns how many updates it made.
    pub fn stop_writer(&mut self) -> Result<u64, Error> {
        let reply = self.node_call("stop its writer", op::WRITER_STOP, &[])?;
        Ok(u64_at(&reply, 0).unwrap_or(0))
    }

    /// Copies `data` into a region, with many WRITEs in flight.
    pub fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.check_range(region, offset, data.len())?;
        let mut pieces = data.chunks(SLOT).enumerate();
        let mut next = pieces.next();
        let mut busy: Vec<u32> = Vec::with_capacity(SLOTS);
        while next.is_some() || !busy.is_empty() {
            while let Some((n, piece)) = next
                && let Some(slot) = self.verbs.take_slot()
            {
                self.verbs.fill(slot, piece);
                let va = region.va + offset + (n * SLOT) as u64;
                match self.verbs.post(slot, SendOp::Write { va, rkey: region.key }, piece.len()) {
                    Ok(()) => busy.push(slot),
                    Err(NicError::Full) => {
                        self.verbs.free_slot(slot);
                        break;
                    }
                    Err(e) => {
                        self.verbs.free_slot(slot);
                        return Err(e.into());
                    }
                }
                next = pieces.next();
            }
            self.drive()?;
            self.release_done(&mut busy);
        }
        Ok(())
    }

    /// Copies a part of a region into `out`, with many READs in flight.
    pub fn read(&mut self, region: &RemoteRegion, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.check_range(region, offset, out.len())?;
        for (n, window) in out.chunks_mut(SLOT * WINDOW).enumerate() {
            let base = region.va + offset + (n * SLOT * WINDOW) as u64;
            let mut slots = [None; WINDOW];
            for (m, piece) in window.chunks(SLOT).enumerate() {
                // All slots are free.
                let Some(slot) = self.verbs.take_slot() else { break };
                let op = SendOp::Read { va: base + (m * SLOT) as u64, rkey: region.key };
                self.verbs.post(slot, op, piece.len()).inspect_err(|_| self.verbs.free_slot(slot))?;
                slots[m] = Some(slot);
            }
            while slots.iter().flatten().any(|&s| self.verbs.status(s).is_none()) {
                self.drive()?;
            }
            for (slot, piece) in slots.into_iter().flatten().zip(window.chunks_mut(SLOT)) {
                self.verbs.drain(slot, piece);
                self.verbs.free_slot(slot);
            }
        }
        Ok(())
    }

    fn release_done(&self, busy: &mut Vec<u32>) {
        busy.retain(|&slot| {
            let done = self.verbs.status(slot).is_some();
            if done {
                self.verbs.free_slot(slot);
            }
            !done
        });
    }

    pub(crate) fn check_range(&self, region: &RemoteRegion, offset: u64, len: usize) -> Result<(), Error> {
        self.alive()?;
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= region.len);
        if !fits {
            let of = region.len;
            return Err(Error::Argument(format!("bytes {offset} to {offset} + {len} of a region of {of} bytes")));
        }
        if !self.verbs.all_free() {
            return Err(Error::Argument("a bulk copy while calls are under way: finish those first".into()));
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Tell the node, and give the message a moment to get out; a node that is gone notices nothing anyway.
        {
            let mut guard = self.device.lock();
            let now = guard.now();
            let _ = guard.nic().disconnect(now, self.conn);
        }
        let start = self.device.now();
        while self.device.now() < start + GOODBYE {
            let mut guard = self.device.lock();
            guard.progress();
            if guard.take_events().iter().any(|e| matches!(e, Event::Cm(CmEvent::Disconnected { .. }))) {
                break;
            }
            drop(guard);
            self.device.relax(start);
        }
        self.device.stop();
    }
}
