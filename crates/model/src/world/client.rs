//! Connections: the calls and verbs that a client makes over a queue pair, driven in modelled time.

use std::collections::BTreeMap;
use std::sync::Arc;

use remora_kernel::{Call, Placement, Status};
use remora_memory::Region;
use remora_nic::{Qpn, SendOp, Sge, WcOpcode, WorkCompletion};
use remora_service::{CallSlots, Full, HostCall, MAX_CALLS, MAX_REPLY, MAX_REQUEST, RECVS, SLOT, Staging, WorkId};

use remora_wire::rpc::{FLAG_ANYWHERE, RpcHeader};

use super::WorldError;
use super::adapter::Posted;
use super::bus::Event;
use super::carriage::{ModelCarriage, ModelStaging, SLOTS};
use super::fabric::{Fabric, NicAt};
use super::node::Front;
use crate::time::Ps;

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
    /// A message to the node, whose host sends as much back; done when that is seen. At most
    /// [`MAX_REQUEST`](remora_service::MAX_REQUEST) bytes.
    SendPingPong {
        /// Whether the command holds the payload, if it fits in.
        inline: bool,
    },
}

/// Something that software sees.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice {
    Completion(WorkCompletion),
    /// A WRITE to this queue pair has landed in memory that is polled.
    Landed(Qpn),
}

/// What the caller of a call gets back with its end, and when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    tag: u32,
    since: Ps,
}

/// A call that has ended, whose reply is the fabric's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    connection: u16,
    mark: Mark,
    status: Status,
}

/// One or several queue pairs between a client and a node, and what each has for them.
pub(super) struct Connection {
    /// The NICs of client and node.
    pub nics: [u16; 2],
    /// Their queue pairs, of which commands take the next in turn.
    qps: Vec<[Qpn; 2]>,
    turn: usize,
    calls: CallSlots<Mark>,
    /// Calls that end here without a message: how, and with what reply.
    pub local: Vec<Option<(Status, Call)>>,
    /// Calls to the host that no command holds.
    requests: Arc<Region>,
    /// The verbs of kernels that run at the client, and where they run.
    pub staging: ModelStaging,
    place: usize,
    /// The ping-pong under way.
    echo: Option<Echo>,
    /// Where messages to the client land.
    messages: Sge,
    remote_calls: u64,
}

/// A ping-pong: its call, its bytes, where they lie on the node, and for one of messages whether commands hold them.
#[derive(Clone)]
struct Echo {
    call: u32,
    len: u32,
    region: Arc<Region>,
    inline: Option<bool>,
}

/// A connection's ends.
pub(super) const CLIENT: usize = 0;
pub(super) const NODE: usize = 1;

/// Queue pairs of a NIC: the connection and the end that each belongs to.
pub(super) type Ends = BTreeMap<Qpn, (u16, usize)>;

impl Connection {
    /// Requests that waited for the network.
    pub(super) fn round_trips(&self) -> u64 {
        self.staging.posted() + self.remote_calls
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
        self.connect_by(client, node, 1)
    }

    /// The same by so many queue pairs.
    pub fn connect_by(
        &mut self,
        client: impl Into<NicAt>,
        node: impl Into<NicAt>,
        queue_pairs: u16,
    ) -> Result<ConnectionId, WorldError> {
        let nics = [self.nic(client.into())?, self.nic(node.into())?];
        self.bus.network.check(nics[CLIENT], nics[NODE])?;
        let number = self.connections.len() as u16;
        let machines = nics.map(|nic| usize::from(self.adapters[usize::from(nic)].machine));
        let (inline, mtu) = (self.spec.machines[machines[CLIENT]].nic.pipeline.inline as u32, self.spec.mtu);
        let [a, b] = nics.map(usize::from);
        self.serve_at(machines[NODE])?;
        let srq = self.fronts[b].as_ref().map(Front::srq);
        let ips = [self.adapters[a].ip, self.adapters[b].ip];
        let mut all = Vec::new();
        for _ in 0..queue_pairs.max(1) {
            let client = self.adapters[a].create_qp(inline, 0, None)?;
            let qps = [client, self.adapters[b].create_qp(inline, MAX_CALLS as u32, srq)?];
            self.adapters[a].connect(qps[CLIENT], ips[NODE], qps[NODE], mtu)?;
            self.adapters[b].connect(qps[NODE], ips[CLIENT], qps[CLIENT], mtu)?;
            self.adapters[a].ends.insert(qps[CLIENT], (number, CLIENT));
            self.adapters[b].ends.insert(qps[NODE], (number, NODE));
            all.push(qps);
        }
        let replies = self.machines[machines[CLIENT]].alloc(CallSlots::<Mark>::REPLY_BYTES)?;
        let requests = self.machines[machines[CLIENT]].alloc(MAX_CALLS * MAX_REQUEST)?;
        let staging = self.machines[machines[CLIENT]].alloc(SLOTS * SLOT)?;
        let messages = self.machines[machines[CLIENT]].alloc(MAX_REQUEST)?.1;
        let messages = Sge { va: messages.va(), len: MAX_REQUEST as u32, lkey: messages.key() };
        let (place, site) = self.client_place(nics[CLIENT], number)?;
        let staging = Staging::new(ModelCarriage::new(site), staging.0, staging.1);
        self.open_place(place, &staging);
        self.connections.push(Connection {
            nics,
            qps: all.clone(),
            turn: 0,
            calls: CallSlots::new(replies.0, replies.1),
            local: (0..MAX_CALLS).map(|_| None).collect(),
            requests: requests.1,
            staging,
            place,
            echo: None,
            messages,
            remote_calls: 0,
        });
        for [client, _] in all {
            for _ in 0..RECVS {
                self.adapters[a].nic.post_recv(client, 0, &[messages])?;
            }
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
        let connection = &mut self.connections[usize::from(number)];
        let (call, header) = connection.calls.open(Mark { tag, since: self.now })?;
        match placement {
            Placement::Client => return self.submit_here(number, call, op, params),
            Placement::Nic | Placement::Accelerator => {
                self.issue(number, CLIENT, self.now, Posted::Rpc { op, header, payload: None }, params);
            }
            Placement::Host => {
                let mut message = std::mem::take(&mut self.scratch.bytes);
                match (HostCall { header, op, params }).encode(&mut message) {
                    Ok(()) => self.send(number, self.now, &message, call),
                    // As in the real world: it never leaves.
                    Err(_) => {
                        let refused = Some((Status::BadParams, Call::default()));
                        self.connections[usize::from(number)].local[call as usize] = refused;
                        self.bus.queue.push(self.now, Event::Finish { connection: number, call });
                    }
                }
                self.scratch.bytes = message;
            }
        }
        self.connections[usize::from(number)].remote_calls += 1;
        Ok(())
    }

    /// Starts the kernel `op` at a node's NIC, or its host if the node [places](Self::place_calls) it there. `tag` comes back
    /// with the result.
    pub fn submit_anywhere(
        &mut self,
        ConnectionId(number): ConnectionId,
        op: u64,
        params: &[u8],
        tag: u32,
    ) -> Result<(), Full> {
        let connection = &mut self.connections[usize::from(number)];
        let (_, header) = connection.calls.open(Mark { tag, since: self.now })?;
        connection.remote_calls += 1;
        let header = RpcHeader { flags: FLAG_ANYWHERE, ..header };
        self.issue(number, CLIENT, self.now, Posted::Rpc { op, header, payload: None }, params);
        Ok(())
    }

    /// Starts the kernel `op` on the node as one of its own threads would, now: no network is between. `tag` comes back
    /// with the result.
    pub fn submit_at_node(
        &mut self,
        ConnectionId(number): ConnectionId,
        op: u64,
        params: &[u8],
        tag: u32,
    ) -> Result<(), Full> {
        let connection = &mut self.connections[usize::from(number)];
        let (call, _) = connection.calls.open(Mark { tag, since: self.now })?;
        let (place, nic) = (connection.place, connection.nics[NODE]);
        let kernel = self.kernel(place, op, params);
        self.start_at_node(nic, kernel, (number, call)).map_err(|kernel| self.give_back(place, kernel, (number, call)))
    }

    /// A call of a kernel, out of those that a place has to spare.
    fn kernel(&mut self, place: usize, op: u64, params: &[u8]) -> Call {
        let mut kernel = self.places[place].spare.pop().unwrap_or_default();
        kernel.recycle(op, MAX_REPLY as u32);
        kernel.params.extend_from_slice(params);
        kernel
    }

    /// A call that was not started.
    fn give_back(&mut self, place: usize, kernel: Call, (number, call): (u16, u32)) -> Full {
        self.places[place].spare.push(kernel);
        self.connections[usize::from(number)].calls.end(call);
        Full
    }

    /// Starts a kernel at the client itself.
    fn submit_here(&mut self, number: u16, call: u32, op: u64, params: &[u8]) -> Result<(), Full> {
        let place = self.connections[usize::from(number)].place;
        let kernel = self.kernel(place, op, params);
        self.start_here(place, kernel, (number, call)).map_err(|kernel| self.give_back(place, kernel, (number, call)))
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
        let (call, _) = connection.calls.open(Mark { tag, since: self.now })?;
        connection.remote_calls += 1;
        let (va, rkey) = (region.va(), region.key());
        let op = match verb {
            RawVerb::Read => SendOp::Read { va, rkey },
            RawVerb::Write | RawVerb::PingPong => SendOp::Write { va, rkey },
            RawVerb::SendPingPong { .. } => SendOp::Send,
        };
        let inline = match verb {
            RawVerb::SendPingPong { inline } => Some(inline),
            _ => None,
        };
        if inline.is_some() || verb == RawVerb::PingPong {
            connection.echo = Some(Echo { call, len, region: region.clone(), inline });
        }
        // Any bytes of the client will do; the longest verb covers all reply slots.
        let sge = Some(Sge { va: connection.calls.region().va(), len, lkey: connection.calls.region().key() });
        let (wr_id, signaled) = match connection.echo {
            Some(_) => (WorkId::Unnamed.encode(), false),
            None => (WorkId::Verb(call).encode(), true),
        };
        self.message(number, CLIENT, (wr_id, op, signaled), sge, inline == Some(true));
        Ok(())
    }

    /// A verb of these bytes, which stand in its command if they are to and fit.
    fn message(
        &mut self,
        number: u16,
        end: usize,
        (wr_id, op, signaled): (u64, SendOp, bool),
        sge: Option<Sge>,
        inline: bool,
    ) {
        let len = sge.map_or(0, |sge| sge.len as usize);
        let nic = self.connections[usize::from(number)].nics[end];
        let inline = inline && len <= self.inline(nic);
        let mut bytes = std::mem::take(&mut self.scratch.bytes);
        bytes.clear();
        // Which bytes they are is of no account.
        bytes.resize(if inline { len } else { 0 }, 0);
        let command = Posted::Verb { wr_id, op, sge: sge.filter(|_| !inline), signaled };
        self.issue(number, end, self.now, command, &bytes);
        self.scratch.bytes = bytes;
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
        let (_, header) = connection.calls.open(Mark { tag, since: self.now })?;
        connection.remote_calls += 1;
        let payload = Some(Sge { va, len, lkey: from.key() });
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
        let (call, _) = connection.calls.open(Mark { tag, since: self.now })?;
        connection.remote_calls += 1;
        let op = SendOp::Write { va: to.1, rkey: to.0.key() };
        let sge = Some(Sge { va, len, lkey: from.key() });
        let wr_id = WorkId::Verb(call).encode();
        self.issue(number, CLIENT, self.now, Posted::Verb { wr_id, op, sge, signaled: true }, &[]);
        Ok(())
    }

    /// The software at one end of a connection hands its NIC a command.
    pub(super) fn issue(&mut self, connection: u16, end: usize, at: Ps, command: Posted, bytes: &[u8]) {
        let Connection { nics, qps, turn, .. } = &mut self.connections[usize::from(connection)];
        *turn = (*turn + 1) % qps.len();
        self.adapters[usize::from(nics[end])].issue(at, qps[*turn][end], command, bytes, &mut self.bus);
    }

    /// The client sends a call to the host: in the command if it fits, else from the memory that it has for this call.
    fn send(&mut self, number: u16, at: Ps, message: &[u8], call: u32) {
        let connection = &self.connections[usize::from(number)];
        let inline = message.len() <= self.inline(connection.nics[CLIENT]);
        let sge = (!inline).then(|| {
            let va = connection.requests.va() + u64::from(call) * MAX_REQUEST as u64;
            // In bounds: no call is longer.
            let _ = connection.requests.write(va, message);
            Sge { va, len: message.len() as u32, lkey: connection.requests.key() }
        });
        let bytes = if inline { message } else { &[] };
        let wr_id = WorkId::Unnamed.encode();
        self.issue(number, CLIENT, at, Posted::Verb { wr_id, op: SendOp::Send, sge, signaled: false }, bytes);
    }

    /// Bytes that a command may hold.
    pub(super) fn inline(&self, nic: u16) -> usize {
        let machine = self.adapters[usize::from(nic)].machine;
        self.spec.machines[usize::from(machine)].nic.pipeline.inline as usize
    }

    /// Whether somebody polls the memory that WRITEs to a queue pair land in.
    pub(super) fn is_polled(&self, nic: u16, qp: Qpn) -> bool {
        let end = self.adapters[usize::from(nic)].ends.get(&qp);
        end.is_some_and(|(connection, _)| {
            self.connections[usize::from(*connection)].echo.as_ref().is_some_and(|echo| echo.inline.is_none())
        })
    }

    /// Software sees something.
    pub(super) fn see(&mut self, nic: u16, notice: Notice) -> Result<(), WorldError> {
        let qp = match notice {
            Notice::Completion(wc) => wc.qpn,
            Notice::Landed(qp) => qp,
        };
        let Some(&(number, end)) = self.adapters[usize::from(nic)].ends.get(&qp) else { return Ok(()) };
        match notice {
            Notice::Completion(wc) if wc.opcode == WcOpcode::Recv && self.echoes(number) => {
                self.echo(nic, number, end, &wc)
            }
            Notice::Completion(wc) if end == CLIENT => self.completed(number, &wc),
            Notice::Completion(wc) if wc.opcode == WcOpcode::Recv => self.take_request(nic, &wc),
            Notice::Completion(_) => Ok(()),
            Notice::Landed(_) => {
                let connection = &mut self.connections[usize::from(number)];
                let Some(Echo { call, len, region, .. }) = connection.echo.clone() else { return Ok(()) };
                if end == CLIENT {
                    connection.echo = None;
                    self.end(number, call, Status::Ok);
                    return Ok(());
                }
                let op = SendOp::Write { va: connection.calls.region().va(), rkey: connection.calls.region().key() };
                let sge = Some(Sge { va: region.va(), len, lkey: region.key() });
                self.issue(
                    number,
                    NODE,
                    self.now,
                    Posted::Verb { wr_id: WorkId::Unnamed.encode(), op, sge, signaled: false },
                    &[],
                );
                Ok(())
            }
        }
    }

    /// Whether messages go to and fro on a connection.
    fn echoes(&self, number: u16) -> bool {
        self.connections[usize::from(number)].echo.as_ref().is_some_and(|echo| echo.inline.is_some())
    }

    /// A message of a ping-pong is there: the node sends one back, the client's call ends.
    fn echo(&mut self, nic: u16, number: u16, end: usize, wc: &WorkCompletion) -> Result<(), WorldError> {
        let connection = &mut self.connections[usize::from(number)];
        let Some(Echo { call, len, region, inline }) = connection.echo.clone() else { return Ok(()) };
        if end == CLIENT {
            connection.echo = None;
            let messages = connection.messages;
            self.adapters[usize::from(nic)].nic.post_recv(wc.qpn, 0, &[messages])?;
            self.end(number, call, Status::Ok);
            return Ok(());
        }
        self.give_back_recv(nic, wc.wr_id)?;
        let sge = Some(Sge { va: region.va(), len, lkey: region.key() });
        self.message(number, NODE, (WorkId::Unnamed.encode(), SendOp::Send, false), sge, inline == Some(true));
        Ok(())
    }

    /// The client sees a completion.
    fn completed(&mut self, number: u16, wc: &WorkCompletion) -> Result<(), WorldError> {
        if wc.opcode == WcOpcode::RecvWriteImm {
            return self.take_reply(number, wc);
        }
        match WorkId::decode(wc.wr_id) {
            WorkId::Verb(call) => self.end(number, call, Status::Ok),
            WorkId::Staging(slot) => {
                let Connection { staging, place, .. } = &self.connections[usize::from(number)];
                staging.complete(slot, wc.status);
                if let Some(task) = staging.carriage().task(slot) {
                    self.run(*place, task);
                }
            }
            WorkId::Call(_) | WorkId::Stream(_) | WorkId::Unnamed => {}
        }
        Ok(())
    }

    /// A call has ended by other means than a reply.
    fn end(&mut self, number: u16, call: u32, status: Status) {
        if let Some(mark) = self.connections[usize::from(number)].calls.end(call) {
            self.reply.clear();
            self.ended = Some(Ended { connection: number, mark, status });
        }
    }

    /// A call has ended at the client itself.
    pub(super) fn end_here(&mut self, number: u16, call: u32) {
        let Some((status, mut kernel)) = self.connections[usize::from(number)].local[call as usize].take() else {
            return;
        };
        self.end(number, call, status);
        std::mem::swap(&mut self.reply, &mut kernel.reply);
        let place = self.connections[usize::from(number)].place;
        self.places[place].spare.push(kernel);
    }

    /// The reply to a call has landed in the client's memory.
    fn take_reply(&mut self, number: u16, wc: &WorkCompletion) -> Result<(), WorldError> {
        let connection = &mut self.connections[usize::from(number)];
        let adapter = &mut self.adapters[usize::from(connection.nics[CLIENT])];
        adapter.nic.post_recv(wc.qpn, 0, &[connection.messages])?;
        if let Some(reply) = connection.calls.take_reply(wc.imm, wc.byte_len) {
            self.reply.clear();
            self.reply.extend_from_slice(reply.bytes);
            self.ended = Some(Ended { connection: number, mark: reply.mark, status: reply.status });
        }
        Ok(())
    }

    /// Hands over a call that has ended.
    pub(super) fn hand_over(&mut self, ended: Ended, done: &mut dyn FnMut(Done<'_>)) {
        let Ended { connection, mark: Mark { tag, since }, status } = ended;
        let latency = self.now - since;
        done(Done { connection: ConnectionId(connection), tag, status, reply: &self.reply, latency, at: self.now });
    }
}
