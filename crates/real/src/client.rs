//! A client of a memory node: memory on the node, and kernels run against it in any placement.

mod atomics;
mod auto;
mod bulk;
mod compressed;
mod connection;
mod dial;
mod kernels;
mod modules;
mod rings;
mod shared;
mod sketching;
mod trees;

use std::net::IpAddr;
use std::time::Duration;

use remora_kernel::btree::TreeRef;
use remora_kernel::{Placement, Status};
use remora_memory::{Access, Buffer, Pd};
use remora_nic::{Data, NicError, SendOp, SendWr, Sge, WorkCompletion};
use remora_service::control::{op, u32_at, u64_at};
use remora_service::{CallKind, CallSlots, Full, HostCall, MAX_CALLS, MAX_REQUEST, WorkId};

use remora_wire::rpc::RpcHeader;

use crate::device::Device;
use crate::link::udp::UdpPort;
use crate::link::{Layers, LinkKind};
use crate::sys::prepare_to_wait;
use crate::{DeployToken, Error};
use auto::Auto;
use compressed::Compressor;
use connection::Connection;
use dial::MIN_MTU;
use kernels::LocalKernels;
use rings::ClientRings;

pub use shared::SharedClient;

/// Whom to talk to, and how.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The node's address.
    pub node: IpAddr,
    /// Our address. On one machine, another of 127.0.0.0/8 than the node's.
    pub local: IpAddr,
    /// Which link; without a choice shared memory if the node is on this host and lets us, else UDP.
    pub link: Option<LinkKind>,
    /// The client's socket, if there are [several](UdpPort::bind) at its address, one for each of its threads. Then the link is
    /// UDP.
    pub port: Option<UdpPort>,
    /// What lies between the client's device and its link.
    pub layers: Layers,
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096. Without one it is as much as both links and the way between
    /// them carry.
    pub mtu: Option<u32>,
    /// How long the node may take to take the connection.
    pub timeout: Duration,
    /// What the node asks of who deploys modules there.
    pub deploy_token: Option<DeployToken>,
}

impl ClientConfig {
    /// By shared memory where that is possible, else by UDP; five seconds.
    pub fn new(node: IpAddr, local: IpAddr) -> Self {
        let timeout = Duration::from_secs(5);
        Self { node, local, link: None, port: None, layers: Layers::default(), mtu: None, timeout, deploy_token: None }
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

/// A connection to a node. Not for sharing between threads, but it may move: each thread takes its own.
pub struct Client {
    connection: Connection,
    /// The mark of each call under way to the node: its tag, or the ticket of one whose place was chosen.
    calls: CallSlots<u64>,
    /// Calls that are refused here: they end with the next poll.
    refused: Vec<(u32, Status)>,
    /// Calls that went to the node.
    remote_calls: u64,
    kernels: LocalKernels,
    /// The trees that it writes by itself, as who.
    owned: Vec<TreeRef>,
    auto: Auto,
    /// Pairs of rings, to the NIC and the host.
    rings: Vec<ClientRings>,
    /// Made when first used.
    compressor: Option<Compressor>,
    deploy_token: Option<DeployToken>,
    /// Receives that brought replies.
    replies: Vec<WorkCompletion>,
    /// The message being built.
    message: Vec<u8>,
}

impl Client {
    /// Connects to a node, and makes sure that packets of the path MTU get through. Where they vanish without a word,
    /// and no MTU is asked for, smaller ones are tried.
    pub fn connect(config: ClientConfig) -> Result<Self, Error> {
        prepare_to_wait();
        let mut most = config.mtu.unwrap_or(u32::MAX);
        loop {
            let mut client = Self::connect_once(&config, most)?;
            match client.try_path(config.timeout) {
                Err(Error::Lost { address, .. }) => {
                    let mtu = client.path_mtu();
                    if config.mtu.is_some() || mtu <= MIN_MTU {
                        return Err(Error::Path { address, mtu });
                    }
                    most = mtu / 2;
                }
                tried => return tried.map(|()| client),
            }
        }
    }

    fn connect_once(config: &ClientConfig, most: u32) -> Result<Self, Error> {
        let (connection, (buffer, region)) = Connection::open(config, most, CallSlots::<u64>::REPLY_BYTES)?;
        let (kernels, auto) = (LocalKernels::new(&connection.staging), Auto::new(connection.offer));
        let mut client = Self {
            connection,
            calls: CallSlots::new(buffer, region),
            refused: Vec::with_capacity(MAX_CALLS),
            remote_calls: 0,
            kernels,
            owned: Vec::new(),
            auto,
            rings: Vec::new(),
            compressor: None,
            deploy_token: config.deploy_token.clone(),
            replies: Vec::with_capacity(1024),
            message: Vec::with_capacity(MAX_REQUEST),
        };
        client.drive()?;
        Ok(client)
    }

    /// The link in use.
    pub fn link(&self) -> LinkKind {
        self.connection.link
    }

    /// The path MTU in bytes.
    pub fn path_mtu(&self) -> u32 {
        self.connection.mtu
    }

    /// Sends a packet of the path MTU and has one sent back. Shared memory has no way on which they could vanish.
    fn try_path(&mut self, timeout: Duration) -> Result<(), Error> {
        if self.link() == LinkKind::Shm {
            return Ok(());
        }
        let mtu = self.path_mtu();
        let mut params = vec![0; (mtu as usize).min(MAX_REQUEST) - HostCall::FRONT];
        params[..4].copy_from_slice(&mtu.to_le_bytes());
        self.submit(Placement::Host, op::PATH, &params, 0).map_err(|full| Error::Argument(full.to_string()))?;
        let end = self.connection.device.now().saturating_add(timeout.as_nanos() as u64);
        let mut came = false;
        while !came {
            self.poll(&mut |_, _, _| came = true)?;
            if !came && self.connection.device.now() > end {
                return Err(Error::TimedOut { after: timeout });
            }
        }
        self.remote_calls = 0;
        Ok(())
    }

    /// The device, for verbs of one's own.
    pub fn device(&self) -> &Device {
        &self.connection.device
    }

    /// Counts since the connection was made.
    pub fn counters(&self) -> ClientCounters {
        let counters = self.connection.counters();
        ClientCounters { round_trips: counters.round_trips + self.remote_calls, ..counters }
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.calls.len() + self.kernels.in_flight()
    }

    /// Starts the kernel `op` in a placement. `tag` comes back with the result. Parameters that are too long for the
    /// placement (one MTU to the NIC, [`MAX_REQUEST`] bytes to the host, headers included) end in
    /// [`Status::BadParams`]; a call to an accelerator, which no node of the real world has, in [`Status::UnknownOp`].
    pub fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        self.start(placement, (op, 0), params, tag.into())
    }

    /// Starts a kernel, to the node with these flags of the RPC header.
    fn start(&mut self, placement: Placement, (op, flags): (u64, u32), params: &[u8], mark: u64) -> Result<(), Full> {
        let (slot, header) = match placement {
            Placement::Client => return self.kernels.start(op, params, mark),
            _ => self.calls.open(mark)?,
        };
        let header = RpcHeader { flags, ..header };
        let (id, qp) = (WorkId::Call(slot).encode(), self.connection.qp);
        let posted = match placement {
            Placement::Nic => self.connection.device.lock().nic().post_rpc(qp, id, op, &header, params),
            Placement::Host => match (HostCall { header, op, params }).encode(&mut self.message) {
                Ok(()) => {
                    let wr = SendWr::new(id, SendOp::Send, Data::Inline(&self.message)).solicited();
                    self.connection.device.lock().nic().post_send(qp, &wr)
                }
                Err(_) => return self.refuse(slot, Status::BadParams),
            },
            Placement::Client | Placement::Accelerator => return self.refuse(slot, Status::UnknownOp),
        };
        match posted {
            Ok(()) => self.remote_calls += 1,
            Err(NicError::TooLarge { .. }) => return self.refuse(slot, Status::BadParams),
            Err(_) => {
                self.calls.end(slot);
                return Err(Full);
            }
        }
        Ok(())
    }

    fn refuse(&mut self, slot: u32, status: Status) -> Result<(), Full> {
        self.refused.push((slot, status));
        Ok(())
    }

    /// Drives the NIC and the kernels here; `done` gets each finished call's tag, status and reply.
    /// Returns how many finished. When the connection is lost, all calls under way end with [`Status::LOST`], and this
    /// poll and later ones return the error.
    pub fn poll(&mut self, done: &mut dyn FnMut(u32, Status, &[u8])) -> Result<usize, Error> {
        let driven = self.drive();
        let mut finished = 0;
        let (auto, at) = (&mut self.auto, (self.connection.drove_at, self.connection.device.clock()));
        let mut told = auto.telling(at, done);
        let done = &mut told;
        for wc in self.replies.drain(..) {
            if let Some(reply) = self.calls.take_reply(wc.imm, wc.byte_len) {
                done(reply.mark, reply.status, reply.bytes);
                finished += 1;
            }
        }
        let mut driven = driven;
        for rings in &mut self.rings {
            match rings.poll(&mut self.calls, done) {
                Ok(replies) => finished += replies,
                Err(e) => driven = driven.and(Err(e)),
            }
        }
        while let Some((slot, status)) = self.refused.pop() {
            if let Some(mark) = self.calls.end(slot) {
                done(mark, status, &[]);
                finished += 1;
            }
        }
        if driven.is_err() {
            for mark in self.calls.lose_all() {
                done(mark, Status::LOST, &[]);
                finished += 1;
            }
        }
        loop {
            finished += self.kernels.poll(done);
            // On a lost connection every verb fails at once, and so kernels end.
            if driven.is_ok() || self.kernels.in_flight() == 0 {
                return driven.map(|()| finished);
            }
        }
    }

    fn drive(&mut self) -> Result<(), Error> {
        self.connection.drive(&mut self.replies, &mut self.rings)
    }

    /// Runs one call from start to end. Nothing else may be under way.
    pub fn call(&mut self, placement: Placement, op: u64, params: &[u8]) -> Result<(Status, Vec<u8>), Error> {
        self.idle()?;
        if placement == Placement::Accelerator {
            return Err(Error::Placement(placement));
        }
        self.check_params(op, placement, false, params.len())?;
        self.submit(placement, op, params, 0).map_err(|full| Error::Argument(full.to_string()))?;
        self.finish()
    }

    /// Runs one call from start to end where it is answered quickest: see [`submit_auto`](Self::submit_auto). Nothing else
    /// may be under way.
    pub fn call_auto(&mut self, kind: CallKind, params: &[u8]) -> Result<(Status, Vec<u8>), Error> {
        self.idle()?;
        self.submit_auto(kind, params, false, 0).map_err(|full| Error::Argument(full.to_string()))?;
        self.finish()
    }

    /// Calls a kernel on the node's NIC with a payload stream behind the parameters, from start to end.
    pub fn call_stream(&mut self, op: u64, params: &[u8], payload: &[u8]) -> Result<(Status, Vec<u8>), Error> {
        self.idle()?;
        let len = u32::try_from(payload.len())
            .map_err(|_| Error::Argument(format!("a payload stream of {} bytes: at most 2 GB", payload.len())))?;
        let buffer = Buffer::from_boxed(payload.into());
        let registry = self.connection.device.lock().nic().registry().clone();
        let region = registry.register(self.connection.pd(), &buffer, 0, payload.len(), None, Access::empty())?;
        let outcome = self.run_stream(op, params, Sge { va: region.va(), len, lkey: region.key() });
        // The key must not outlive the buffer's use, whatever happened.
        self.connection.take_back(region.key());
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
        let (slot, header) = self.calls.open(tag.into()).map_err(|full| Error::Argument(full.to_string()))?;
        let (id, qp) = (WorkId::Stream(slot).encode(), self.connection.qp);
        let posted = self.connection.device.lock().nic().post_rpc_write(qp, id, op, &header, params, &[payload]);
        if let Err(e) = posted {
            self.calls.end(slot);
            return Err(e.into());
        }
        self.remote_calls += 1;
        self.connection.begin_stream();
        Ok(())
    }

    /// Waits until payload streams are sent: a kernel may answer before it has seen all of one, and the NIC still sends.
    pub(crate) fn await_streams(&mut self) -> Result<(), Error> {
        while self.connection.is_streaming() {
            self.drive()?;
        }
        Ok(())
    }

    /// The protection domain of its queue pair.
    pub(crate) fn pd(&self) -> Pd {
        self.connection.pd()
    }

    pub(crate) fn idle(&self) -> Result<(), Error> {
        match self.in_flight() {
            0 => self.connection.alive(),
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

    /// Calls the node itself or an extension of it. `what` goes into the error if it refuses: "the node could not ...".
    pub fn node_call(&mut self, what: &'static str, op: u64, params: &[u8]) -> Result<Vec<u8>, Error> {
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
        self.alloc_by(len, &len.to_le_bytes())
    }

    /// As [`alloc`](Self::alloc), for what grows by itself while kernels work on it, as a key-value store does: up to
    /// half of the node's memory.
    pub fn alloc_growing(&mut self, len: u64) -> Result<RemoteRegion, Error> {
        let mut params = len.to_le_bytes().to_vec();
        params.push(1);
        self.alloc_by(len, &params)
    }

    fn alloc_by(&mut self, len: u64, params: &[u8]) -> Result<RemoteRegion, Error> {
        let reply = self.node_call("allocate memory", op::ALLOC, params)?;
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
}

// Each thread takes its own client, and may get it from another.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Client>()
};
