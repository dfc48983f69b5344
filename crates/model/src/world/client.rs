//! Connections: the calls and verbs that a client makes over a queue pair.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use remora_kernel::{Placement, Status};
use remora_memory::{Buffer, Region};
use remora_nic::{Qpn, SendOp, Sge, WcOpcode, WorkCompletion};
use remora_wire::rpc::{RpcHeader, parse_reply_imm};

use super::WorldError;
use super::adapter::Posted;
use super::fabric::{Fabric, NicAt};
use super::node::Asker;
use super::verbs::{SLOT, SLOT_ID, SLOTS, Verbs};
use crate::time::Ps;

/// Calls that may be under way at once on a connection.
pub const MAX_CALLS: usize = 256;
/// Bytes of a reply, and of a raw verb, at most.
pub const MAX_REPLY: usize = 64 << 10;
/// Bytes of a call to the host.
pub(super) const MAX_REQUEST: usize = 4096;
/// Receives kept posted.
const RECVS: u64 = 2 * MAX_CALLS as u64;
/// Work request ids of raw verbs have this bit.
const RAW_ID: u64 = 1 << 33;

/// As many calls as may be under way are: poll, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_CALLS} calls are under way already: poll, then try again")]
pub struct Full;

/// A client's connection to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub(super) u16);

/// How a call ended.
#[derive(Debug)]
pub struct Done<'a> {
    /// Whose call it was.
    pub connection: ConnectionId,
    /// The caller's mark.
    pub tag: u32,
    /// Its outcome.
    pub status: Status,
    /// Its reply.
    pub reply: &'a [u8],
    /// From the start of its submission to the end.
    pub latency: Ps,
    /// When that was.
    pub at: Ps,
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
pub(super) enum Notice {
    Completion(WorkCompletion),
    /// A WRITE to this queue pair has landed in memory that is polled.
    Landed(Qpn),
}

/// A call under way.
#[derive(Default)]
pub(super) struct CallSlot {
    tag: u32,
    since: Ps,
    pub status: Option<Status>,
    pub reply: Vec<u8>,
    live: bool,
}

/// A queue pair between a client and a node, and what each has for it.
pub(super) struct Connection {
    /// The NICs of client and node, and their queue pairs.
    pub nics: [u16; 2],
    pub qps: [Qpn; 2],
    pub calls: Vec<CallSlot>,
    free_calls: Vec<u32>,
    replies: (Buffer, Arc<Region>),
    requests: (Buffer, Arc<Region>),
    pub inbox: (Buffer, Arc<Region>),
    pub outbox: (Buffer, Arc<Region>),
    /// The verbs of kernels that run at the client, and where they run.
    pub verbs: Rc<Verbs>,
    place: usize,
    /// The ping-pong under way.
    echo: Option<(u32, u32, Arc<Region>)>,
    remote_calls: u64,
}

/// A connection's ends.
pub(super) const CLIENT: usize = 0;
pub(super) const NODE: usize = 1;

/// Queue pairs of a NIC: the connection and the end that each belongs to.
pub(super) type Ends = BTreeMap<Qpn, (u16, usize)>;

impl Connection {
    fn open(&mut self, tag: u32, now: Ps) -> Result<u32, Full> {
        let call = self.free_calls.pop().ok_or(Full)?;
        let slot = &mut self.calls[call as usize];
        (slot.tag, slot.since, slot.status, slot.live) = (tag, now, None, true);
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

    /// A call that has finished: its slot is free, and its reply stands there until the next call.
    pub(super) fn close(&mut self, connection: ConnectionId, call: u32, now: Ps) -> Done<'_> {
        let slot = &mut self.calls[call as usize];
        slot.live = false;
        self.free_calls.push(call);
        let (tag, status, latency) = (slot.tag, slot.status.unwrap_or(Status::LOST), now - slot.since);
        Done { connection, tag, status, reply: &slot.reply, latency, at: now }
    }

    /// Requests that waited for the network.
    pub(super) fn round_trips(&self) -> u64 {
        self.verbs.posted() + self.remote_calls
    }
}

impl Fabric {
    /// The number of a NIC.
    fn nic(&self, at: NicAt) -> Result<u16, WorldError> {
        let machine = self.machines.get(usize::from(at.machine));
        let machine = machine.ok_or(WorldError::Unknown { what: "machine", number: at.machine })?;
        let nic = machine.nics.clone().nth(at.nic.into());
        nic.ok_or(WorldError::Unknown { what: "NIC of the machine", number: at.nic })
    }

    /// Connects a client's NIC to a node's.
    pub fn connect(&mut self, client: impl Into<NicAt>, node: impl Into<NicAt>) -> Result<ConnectionId, WorldError> {
        let nics = [self.nic(client.into())?, self.nic(node.into())?];
        self.bus.network.check(nics[CLIENT], nics[NODE])?;
        let number = self.connections.len() as u16;
        let machines = nics.map(|nic| usize::from(self.adapters[usize::from(nic)].machine));
        let (inline, mtu) = (self.spec.machines[machines[CLIENT]].nic.pipeline.inline as u32, self.spec.mtu);
        let [a, b] = nics.map(usize::from);
        let qps = [self.adapters[a].create_qp(inline, 0)?, self.adapters[b].create_qp(inline, MAX_CALLS as u32)?];
        let ips = [self.adapters[a].ip, self.adapters[b].ip];
        self.adapters[a].connect(qps[CLIENT], ips[NODE], qps[NODE], mtu)?;
        self.adapters[b].connect(qps[NODE], ips[CLIENT], qps[CLIENT], mtu)?;
        self.adapters[a].ends.insert(qps[CLIENT], (number, CLIENT));
        self.adapters[b].ends.insert(qps[NODE], (number, NODE));
        let replies = self.machines[machines[CLIENT]].alloc(MAX_CALLS * MAX_REPLY)?;
        let requests = self.machines[machines[CLIENT]].alloc(MAX_CALLS * MAX_REQUEST)?;
        let staging = self.machines[machines[CLIENT]].alloc(SLOTS * SLOT)?;
        let inbox = self.machines[machines[NODE]].alloc(RECVS as usize * MAX_REQUEST)?;
        let outbox = self.machines[machines[NODE]].alloc(MAX_CALLS * MAX_REPLY)?;
        self.serve_at(machines[NODE])?;
        let verbs = Verbs::new(staging.0, staging.1);
        let place = self.client_place(nics[CLIENT], number, &verbs)?;
        self.connections.push(Connection {
            nics,
            qps,
            calls: (0..MAX_CALLS).map(|_| CallSlot::default()).collect(),
            free_calls: (0..MAX_CALLS as u32).rev().collect(),
            replies,
            requests,
            inbox,
            outbox,
            verbs,
            place,
            echo: None,
            remote_calls: 0,
        });
        for recv in 0..RECVS {
            self.adapters[a].nic.post_recv(qps[CLIENT], 0, &[])?;
            self.post_inbox(number, recv)?;
        }
        Ok(ConnectionId(number))
    }

    /// Starts the kernel `op` in a placement, now. `tag` comes back with the result.
    pub fn submit(
        &mut self,
        ConnectionId(number): ConnectionId,
        placement: Placement,
        op: u64,
        params: &[u8],
        tag: u32,
    ) -> Result<(), Full> {
        let now = self.now;
        let connection = &mut self.connections[usize::from(number)];
        let call = connection.open(tag, now)?;
        if placement == Placement::Client {
            let place = connection.place;
            let mut kernel = self.places[place].spare.pop().unwrap_or_default();
            kernel.recycle(op, MAX_REPLY as u32);
            kernel.params.extend_from_slice(params);
            return match self.start(place, kernel, Asker::Here(number, call)) {
                Some(task) => {
                    self.run(place, task);
                    Ok(())
                }
                None => Err(Full),
            };
        }
        connection.remote_calls += 1;
        let header = connection.header(call);
        if placement == Placement::Host {
            let mut bytes = [0; RpcHeader::LEN];
            header.emit(&mut bytes);
            let message = [&bytes[..], &op.to_le_bytes(), params].concat();
            self.post(number, CLIENT, now, SendOp::Send, &message, call);
        } else {
            self.issue(number, CLIENT, now, Posted::Rpc { op, header, payload: None }, params);
        }
        Ok(())
    }

    /// A verb on `len` bytes at the start of a region of the node.
    pub fn submit_raw(
        &mut self,
        ConnectionId(number): ConnectionId,
        verb: RawVerb,
        region: &Arc<Region>,
        len: u32,
        tag: u32,
    ) -> Result<(), Full> {
        let connection = &mut self.connections[usize::from(number)];
        let call = connection.open(tag, self.now)?;
        connection.remote_calls += 1;
        let (va, rkey) = (region.va(), region.key());
        let op = match verb {
            RawVerb::Read => SendOp::Read { va, rkey },
            RawVerb::Write | RawVerb::PingPong => SendOp::Write { va, rkey },
        };
        if verb == RawVerb::PingPong {
            connection.echo = Some((call, len, region.clone()));
        }
        // Any bytes of the client will do; the longest verb covers all reply slots.
        let sge = Some(Sge { va: connection.replies.1.va(), len, lkey: connection.replies.1.key() });
        let wr_id = RAW_ID | u64::from(call);
        self.issue(number, CLIENT, self.now, Posted::Verb { wr_id, op, sge, signaled: verb != RawVerb::PingPong }, &[]);
        Ok(())
    }

    /// Calls a kernel with a payload stream: `len` bytes from `va` on of the client's memory.
    pub fn submit_stream(
        &mut self,
        ConnectionId(number): ConnectionId,
        op: u64,
        params: &[u8],
        (from, va, len): (&Arc<Region>, u64, u32),
        tag: u32,
    ) -> Result<(), Full> {
        let connection = &mut self.connections[usize::from(number)];
        let call = connection.open(tag, self.now)?;
        connection.remote_calls += 1;
        let (header, payload) = (connection.header(call), Some(Sge { va, len, lkey: from.key() }));
        self.issue(number, CLIENT, self.now, Posted::Rpc { op, header, payload }, params);
        Ok(())
    }

    /// WRITEs `len` bytes from `va` on of the client's memory to `to.1` in a region of the node; done when acknowledged.
    pub fn submit_write(
        &mut self,
        ConnectionId(number): ConnectionId,
        (from, va, len): (&Arc<Region>, u64, u32),
        to: (&Arc<Region>, u64),
        tag: u32,
    ) -> Result<(), Full> {
        let connection = &mut self.connections[usize::from(number)];
        let call = connection.open(tag, self.now)?;
        connection.remote_calls += 1;
        let op = SendOp::Write { va: to.1, rkey: to.0.key() };
        let sge = Some(Sge { va, len, lkey: from.key() });
        let wr_id = RAW_ID | u64::from(call);
        self.issue(number, CLIENT, self.now, Posted::Verb { wr_id, op, sge, signaled: true }, &[]);
        Ok(())
    }

    /// The software at one end of a connection hands its NIC a command.
    pub(super) fn issue(&mut self, connection: u16, end: usize, at: Ps, command: Posted, bytes: &[u8]) {
        let Connection { nics, qps, .. } = &self.connections[usize::from(connection)];
        self.adapters[usize::from(nics[end])].issue(at, qps[end], command, bytes, &mut self.bus);
    }

    /// Software posts bytes: in the command if they fit, else from the memory that it has for this call.
    pub(super) fn post(&mut self, number: u16, end: usize, at: Ps, op: SendOp, bytes: &[u8], call: u32) {
        let connection = &self.connections[usize::from(number)];
        let machine = self.adapters[usize::from(connection.nics[end])].machine;
        let inline = bytes.len() <= self.spec.machines[usize::from(machine)].nic.pipeline.inline as usize;
        let (region, room) =
            if end == CLIENT { (&connection.requests.1, MAX_REQUEST) } else { (&connection.outbox.1, MAX_REPLY) };
        let sge = (!inline && !bytes.is_empty()).then(|| {
            let va = region.va() + u64::from(call) * room as u64;
            let _ = region.write(va, bytes);
            Sge { va, len: bytes.len() as u32, lkey: region.key() }
        });
        let bytes = if inline { bytes } else { &[] };
        self.issue(number, end, at, Posted::Verb { wr_id: u64::MAX, op, sge, signaled: false }, bytes);
    }

    /// Whether somebody polls the memory that WRITEs to a queue pair land in.
    pub(super) fn is_polled(&self, nic: u16, qp: Qpn) -> bool {
        let end = self.adapters[usize::from(nic)].ends.get(&qp);
        end.is_some_and(|(connection, _)| self.connections[usize::from(*connection)].echo.is_some())
    }

    /// Software sees something.
    pub(super) fn see(&mut self, nic: u16, notice: Notice) -> Result<(), WorldError> {
        let qp = match notice {
            Notice::Completion(wc) => wc.qpn,
            Notice::Landed(qp) => qp,
        };
        let Some(&(number, end)) = self.adapters[usize::from(nic)].ends.get(&qp) else { return Ok(()) };
        match notice {
            Notice::Completion(wc) if end == CLIENT => self.completed(number, &wc),
            Notice::Completion(wc) if wc.opcode == WcOpcode::Recv => self.take_request(number, &wc),
            Notice::Completion(_) => Ok(()),
            Notice::Landed(_) => {
                let connection = &mut self.connections[usize::from(number)];
                let Some((call, len, region)) = connection.echo.clone() else { return Ok(()) };
                if end == CLIENT {
                    connection.echo = None;
                    self.end(number, call, Status::Ok);
                    return Ok(());
                }
                let op = SendOp::Write { va: connection.replies.1.va(), rkey: connection.replies.1.key() };
                let sge = Some(Sge { va: region.va(), len, lkey: region.key() });
                self.issue(number, NODE, self.now, Posted::Verb { wr_id: u64::MAX, op, sge, signaled: false }, &[]);
                Ok(())
            }
        }
    }

    /// The client sees a completion.
    fn completed(&mut self, number: u16, wc: &WorkCompletion) -> Result<(), WorldError> {
        if wc.opcode == WcOpcode::RecvWriteImm {
            return self.take_reply(number, wc);
        }
        if wc.wr_id & RAW_ID != 0 {
            self.end(number, (wc.wr_id & (RAW_ID - 1)) as u32, Status::Ok);
        } else if wc.wr_id & SLOT_ID != 0 {
            let connection = &self.connections[usize::from(number)];
            if let Some(task) = connection.verbs.complete(wc.wr_id, wc.status) {
                self.run(connection.place, task);
            }
        }
        Ok(())
    }

    fn end(&mut self, number: u16, call: u32, status: Status) {
        let slots = &mut self.connections[usize::from(number)].calls;
        let Some(slot) = slots.get_mut(call as usize).filter(|slot| slot.live && slot.status.is_none()) else {
            return;
        };
        slot.status = Some(status);
        self.finished.push((number, call));
    }

    /// The reply to a call has landed in the client's memory.
    fn take_reply(&mut self, number: u16, wc: &WorkCompletion) -> Result<(), WorldError> {
        let connection = &mut self.connections[usize::from(number)];
        let adapter = &mut self.adapters[usize::from(connection.nics[CLIENT])];
        adapter.nic.post_recv(connection.qps[CLIENT], 0, &[])?;
        let (call, status) = parse_reply_imm(wc.imm.unwrap_or(0));
        if let Some(slot) = connection.calls.get_mut(call as usize) {
            slot.reply.resize((wc.byte_len as usize).min(MAX_REPLY), 0);
            // In bounds: a slot is MAX_REPLY long.
            let _ = connection.replies.0.read(call as usize * MAX_REPLY, &mut slot.reply);
        }
        self.end(number, call, Status::from_code(status));
        Ok(())
    }
}
