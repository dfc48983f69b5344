//! A node's part of the cluster: the engine, and what carries its messages, requests and log.
//!
//! It runs wherever it is called: on the NIC thread as the device's resident, or on a host thread. Each turn takes what
//! has come, lets the engine work on all of it, and sends what the engine asks for with as few SENDs as possible.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use remora_nic::cm::{CmEvent, ConnId, ListenerId, reason, service_id};
use remora_nic::{ConnectAttr, Event, Qpn, Route, Time};
use remora_replica::ddp::{Body, Op, Outcome, Refusal, Reply, Request};
use remora_replica::node::{Node, Output, Packet};
use remora_replica::types::{Key, NodeId, NodeSet, Timestamp};

use super::Split;
use super::journal::Journal;
use super::node::NodeConfig;
use super::status::Status;
use super::stream::{Arrival, Streams};
use super::wire::{
    Answered, Asked, CLIENT_FRAME, CLIENT_PORT, PEER_FRAME, PEER_PORT, check_client_hello, check_hello, decode_packet,
    encode_packet, hello,
};
use crate::Error;
use crate::device::{Resident, Seat};

/// How often a node that is not connected is called, in nanoseconds.
const REDIAL: u64 = 20_000_000;
/// How long a call may take.
const DIAL: u64 = 200_000_000;
/// Bytes that may wait for another node. What is above that is dropped, and sent again by the protocol in time.
const BACKLOG: usize = 64 << 20;
/// Bytes of answers that may wait for a client. One that takes none is cut off.
const CLIENT_BACKLOG: usize = 16 << 20;
/// Clients at one time, and requests of all of them.
const CLIENTS: usize = 1000;
const REQUESTS: usize = 1 << 16;
/// Operations of one batch.
const BATCH: usize = 1024;
/// Writes of others whose arrival is remembered, to tell how long they were worked on.
const HELD: usize = 1 << 16;

/// See the module.
pub(super) struct Server {
    config: NodeConfig,
    node: Node,
    journal: Journal,
    streams: Streams,
    listeners: [ListenerId; 2],
    peers: Vec<Peer>,
    roles: HashMap<Qpn, Role>,
    clients: usize,
    next_client: u64,
    /// Requests under way; a tag is an index, and above it a count that makes it unique.
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    tags: u64,
    /// Which request a write of this node answers.
    rounds: HashMap<(Key, Timestamp), u64>,
    /// When writes of others came.
    held: HashMap<(Key, Timestamp), Time>,
    /// Tokens below this have been told to the engine.
    durable: u64,
    redial_at: Time,
    started: Time,
    /// When the seat's time was taken.
    turn: Instant,
    status: Status,
    failed: Arc<OnceLock<String>>,
}

/// Another node.
#[derive(Default)]
struct Peer {
    connected: Option<Qpn>,
    calling: Option<(Qpn, ConnId, Time)>,
}

/// Whom a queue pair leads to.
#[derive(Clone, Copy)]
enum Role {
    Peer(NodeId, ConnId),
    Client(u64, ConnId),
}

/// A client's request.
struct Pending {
    tag: u64,
    client: u64,
    qpn: Qpn,
    theirs: u64,
    writes: bool,
    since: Time,
    /// The write, when the INVs left, and communication so far.
    round: Option<((Key, Timestamp), Time, u64)>,
}

impl Server {
    /// Listens for clients and nodes.
    pub fn new(
        seat: &mut Seat<'_>,
        config: NodeConfig,
        node: Node,
        journal: Journal,
        streams: Streams,
        failed: Arc<OnceLock<String>>,
    ) -> Result<Self, Error> {
        let listeners = [seat.nic.listen(service_id(CLIENT_PORT))?, seat.nic.listen(service_id(PEER_PORT))?];
        let peers = config.addresses.iter().map(|_| Peer::default()).collect();
        Ok(Self {
            config,
            node,
            journal,
            streams,
            listeners,
            peers,
            roles: HashMap::new(),
            clients: 0,
            next_client: 0,
            pending: Vec::new(),
            free: Vec::new(),
            tags: 0,
            rounds: HashMap::new(),
            held: HashMap::new(),
            durable: 0,
            redial_at: 0,
            started: seat.now,
            turn: Instant::now(),
            status: Status::default(),
            failed,
        })
    }

    /// Where completions go.
    pub fn cq(&self) -> remora_nic::CqId {
        self.streams.cq()
    }

    fn id(&self) -> NodeId {
        NodeId(self.config.id)
    }

    fn event(&mut self, seat: &mut Seat<'_>, event: Event) {
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, listener, remote_ip, private_data, .. }) => {
                let taken = if listener == self.listeners[0] {
                    self.take_client(seat, conn, &private_data)
                } else {
                    self.take_peer(seat, conn, remote_ip, &private_data)
                };
                if let Err(e) = taken {
                    let text = e.to_string();
                    let text = &text.as_bytes()[..text.len().min(100)];
                    let _ = seat.nic.reject(seat.now, conn, reason::CONSUMER, text);
                }
            }
            Event::Cm(CmEvent::Established { conn, private_data, .. }) => self.established(seat, conn, &private_data),
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) => {
                let has = |role: &Role| matches!(role, Role::Peer(_, c) | Role::Client(_, c) if *c == conn);
                if let Some(qpn) = self.roles.iter().find(|(_, role)| has(role)).map(|(&qpn, _)| qpn) {
                    self.cut_off(seat, qpn);
                }
            }
            Event::QpFatal(qpn, _) => self.cut_off(seat, qpn),
            _ => {}
        }
    }

    fn take_client(&mut self, seat: &mut Seat<'_>, conn: ConnId, said: &[u8]) -> Result<(), Error> {
        if !check_client_hello(said) {
            return Err(Error::Argument("not a client of this version".into()));
        }
        if self.clients >= CLIENTS {
            return Err(Error::Argument(format!("the node has {CLIENTS} clients already")));
        }
        let qpn = self.accept(seat, conn, &[])?;
        self.next_client += 1;
        self.clients += 1;
        self.roles.insert(qpn, Role::Client(self.next_client, conn));
        Ok(())
    }

    fn take_peer(
        &mut self,
        seat: &mut Seat<'_>,
        conn: ConnId,
        from: std::net::IpAddr,
        said: &[u8],
    ) -> Result<(), Error> {
        let node = check_hello(&self.config.secret, said)
            .filter(|node| *node != self.id() && self.config.addresses.get(usize::from(node.0)) == Some(&from))
            .ok_or_else(|| Error::Argument("not a node of this cluster".into()))?;
        let peer = &self.peers[usize::from(node.0)];
        if peer.calling.is_some() && self.id() > node {
            // Both call at once: the call of the node with the higher number counts.
            return Err(Error::Argument("a call to you is under way".into()));
        }
        let qpn = self.accept(seat, conn, &hello(&self.config.secret, self.id()))?;
        self.connected(seat, node, qpn, conn);
        Ok(())
    }

    fn accept(&mut self, seat: &mut Seat<'_>, conn: ConnId, say: &[u8]) -> Result<Qpn, Error> {
        let qpn = self.streams.open(seat.nic)?;
        let attr = ConnectAttr { min_rnr_timer: 1, ..ConnectAttr::default() };
        if let Err(e) = seat.nic.accept(seat.now, conn, qpn, attr, say) {
            self.streams.close(seat.nic, qpn);
            return Err(e.into());
        }
        Ok(qpn)
    }

    /// A node called, or answered a call. It may have been connected before, in a former life.
    fn connected(&mut self, seat: &mut Seat<'_>, node: NodeId, qpn: Qpn, conn: ConnId) {
        let peer = &mut self.peers[usize::from(node.0)];
        let calling = peer.calling.take().filter(|(called, ..)| *called != qpn);
        let former = peer.connected.replace(qpn);
        self.streams.set_frame(qpn, PEER_FRAME);
        self.roles.insert(qpn, Role::Peer(node, conn));
        if let Some((called, conn, _)) = calling {
            let _ = seat.nic.disconnect(seat.now, conn);
            self.streams.close(seat.nic, called);
            self.roles.remove(&called);
        }
        if let Some(former) = former {
            self.status.reconnects += 1;
            self.cut_off(seat, former);
        }
    }

    fn established(&mut self, seat: &mut Seat<'_>, conn: ConnId, said: &[u8]) {
        let called = self.peers.iter().position(|peer| peer.calling.is_some_and(|(_, called, _)| called == conn));
        let Some(index) = called else { return };
        let Some((qpn, ..)) = self.peers[index].calling else { return };
        match check_hello(&self.config.secret, said) {
            Some(node) if usize::from(node.0) == index => self.connected(seat, node, qpn, conn),
            _ => self.cut_off(seat, qpn),
        }
    }

    /// Ends a connection.
    fn cut_off(&mut self, seat: &mut Seat<'_>, qpn: Qpn) {
        let Some(role) = self.roles.remove(&qpn) else { return };
        let (Role::Peer(_, conn) | Role::Client(_, conn)) = role;
        // It may be closing already.
        let _ = seat.nic.disconnect(seat.now, conn);
        self.streams.close(seat.nic, qpn);
        match role {
            Role::Client(..) => self.clients -= 1,
            Role::Peer(node, _) => {
                let peer = &mut self.peers[usize::from(node.0)];
                // A call that failed is repeated when the time has come.
                peer.calling = peer.calling.filter(|(calling, ..)| *calling != qpn);
                if peer.connected == Some(qpn) {
                    peer.connected = None;
                    self.status.reconnects += 1;
                    self.redial_at = seat.now;
                }
            }
        }
    }

    /// Calls the nodes that are not connected.
    fn redial(&mut self, seat: &mut Seat<'_>) {
        self.redial_at = seat.now + REDIAL;
        for index in 0..self.peers.len() {
            let node = NodeId(index as u8);
            if let Some((qpn, _, until)) = self.peers[index].calling
                && seat.now >= until
            {
                self.cut_off(seat, qpn);
            }
            let peer = &self.peers[index];
            if node != self.id() && peer.connected.is_none() && peer.calling.is_none() {
                self.peers[index].calling = self.dial(seat, node);
            }
        }
    }

    fn dial(&mut self, seat: &mut Seat<'_>, node: NodeId) -> Option<(Qpn, ConnId, Time)> {
        let remote = self.config.addresses[usize::from(node.0)];
        let link = seat.links.first_mut()?;
        if !link.reach(remote).unwrap_or(false) {
            return None;
        }
        // Retries as often as may be, but soon: a node that does not answer for some 0.1 s is called anew.
        let path_mtu = link.max_mtu() as u32;
        let attr = ConnectAttr { path_mtu, min_rnr_timer: 1, ack_timeout: 12, ..ConnectAttr::default() };
        let route = Route { local: seat.local, remote, link: 0 };
        let qpn = self.streams.open(seat.nic).ok()?;
        let say = hello(&self.config.secret, self.id());
        match seat.nic.connect(seat.now, qpn, route, service_id(PEER_PORT), attr, &say) {
            Ok(conn) => {
                self.roles.insert(qpn, Role::Peer(node, conn));
                Some((qpn, conn, seat.now + DIAL))
            }
            Err(_) => {
                self.streams.close(seat.nic, qpn);
                None
            }
        }
    }

    /// Bytes on a connection.
    fn bytes(&mut self, seat: &mut Seat<'_>, qpn: Qpn) {
        let Some(&role) = self.roles.get(&qpn) else { return };
        let mut inbound = self.streams.take(qpn);
        let sound = loop {
            let frame = match inbound.next_frame() {
                Ok(Some(frame)) => inbound.bytes(frame),
                Ok(None) => break true,
                Err(_) => break false,
            };
            let understood = match role {
                Role::Peer(node, _) => self.peer_says(seat.now, node, frame),
                Role::Client(client, _) => self.client_says(seat.now, client, qpn, frame),
            };
            if !understood {
                break false;
            }
        };
        self.streams.give_back(qpn, inbound);
        if !sound {
            self.status.malformed += 1;
            self.cut_off(seat, qpn);
        }
    }

    fn client_says(&mut self, now: Time, client: u64, qpn: Qpn, frame: &[u8]) -> bool {
        match Asked::decode(frame) {
            Some(Asked::Request(request)) => self.submit(now, client, qpn, request),
            Some(Asked::Status) => {
                let status = Box::new(self.tell(now));
                self.streams.frame(qpn, |out| Answered::Status(status).encode(out));
            }
            None => return false,
        }
        true
    }

    fn submit(&mut self, now: Time, client: u64, qpn: Qpn, request: Request) {
        let refusal = match &request.op {
            Op::Batch(ops) if ops.len() > BATCH => Some(Refusal::TooLong),
            _ if self.pending.len() - self.free.len() >= REQUESTS => Some(Refusal::Busy),
            // Reads are answered at once, and their answers wait here.
            _ if self.streams.backlog(qpn) >= CLIENT_BACKLOG / 2 => Some(Refusal::Busy),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.status.refused += 1;
            let reply = Reply { tag: request.tag, outcome: Outcome::Refused(refusal) };
            return self.streams.frame(qpn, |out| Answered::Reply(reply, Split::default()).encode(out));
        }
        let index = self.free.pop().unwrap_or(self.pending.len() as u32);
        self.tags += 1;
        let tag = self.tags << 32 | u64::from(index);
        let writes = !matches!(request.op, Op::Get(_));
        let pending = Pending { tag, client, qpn, theirs: request.tag, writes, since: now, round: None };
        match self.pending.get_mut(index as usize) {
            Some(place) => *place = Some(pending),
            None => self.pending.push(Some(pending)),
        }
        self.node.submit(now, Request { tag, ..request });
        self.outputs(now, Some(tag));
    }

    fn peer_says(&mut self, now: Time, from: NodeId, frame: &[u8]) -> bool {
        let Some((packet, held)) = decode_packet(frame) else { return false };
        if let Packet::Replica(message) = &packet {
            match &message.body {
                Body::Inv(writes) if self.held.len() < HELD => {
                    self.held.extend(writes.iter().map(|write| ((write.key, write.ts), now)));
                }
                Body::Inv(_) => self.held.clear(),
                Body::Ack(key, ts, _) => self.acknowledged(now, (*key, *ts), held),
                _ => {}
            }
        }
        self.node.handle(now, from, packet);
        self.outputs(now, None);
        true
    }

    /// The last acknowledgement is the one that the answer waits for.
    fn acknowledged(&mut self, now: Time, write: (Key, Timestamp), held: u64) {
        let Some(&tag) = self.rounds.get(&write) else { return };
        if let Some(Some(pending)) = self.pending.get_mut(tag as u32 as usize)
            && pending.tag == tag
            && let Some((_, sent, communication)) = &mut pending.round
        {
            *communication = now.saturating_sub(*sent).saturating_sub(held);
        }
    }

    /// Does what the engine asks for; `asked` is the request that it is working on.
    fn outputs(&mut self, now: Time, asked: Option<u64>) {
        while let Some(output) = self.node.poll() {
            match output {
                Output::Send(to, packet) => self.send(now, to, &packet, asked),
                Output::Log(token, change) => self.journal.submit(token, change),
                Output::Reply(reply) => self.reply(now, reply),
                Output::Job(job) => self.node.done(now, job.id()),
                Output::Step(_) => {}
            }
        }
    }

    fn send(&mut self, now: Time, to: NodeSet, packet: &Packet, asked: Option<u64>) {
        let mut held = 0;
        if let Packet::Replica(message) = packet {
            match &message.body {
                Body::Inv(writes) => self.begin_round(now, asked, writes.first().map(|write| (write.key, write.ts))),
                Body::Ack(key, ts, _) => {
                    held = self.held.get(&(*key, *ts)).map_or(0, |since| now.saturating_sub(*since));
                }
                Body::Val(key, ts, _) => drop(self.rounds.remove(&(*key, *ts))),
                _ => {}
            }
        }
        for node in to.iter() {
            let connected = self.peers.get(usize::from(node.0)).and_then(|peer| peer.connected);
            if let Some(qpn) = connected.filter(|&qpn| self.streams.backlog(qpn) < BACKLOG) {
                self.streams.frame(qpn, |out| encode_packet(packet, held, out));
            }
        }
    }

    fn begin_round(&mut self, now: Time, asked: Option<u64>, write: Option<(Key, Timestamp)>) {
        let (Some(tag), Some(write)) = (asked, write) else { return };
        if let Some(Some(pending)) = self.pending.get_mut(tag as u32 as usize)
            && pending.tag == tag
            && pending.round.is_none()
        {
            pending.round = Some((write, now, 0));
            self.rounds.insert(write, tag);
        }
    }

    fn reply(&mut self, now: Time, Reply { tag, outcome }: Reply) {
        let Some(place) = self.pending.get_mut(tag as u32 as usize) else { return };
        let Some(pending) = place.take_if(|pending| pending.tag == tag) else { return };
        self.free.push(tag as u32);
        // To the moment: most requests are answered in the turn in which they came.
        let now = now + self.turn.elapsed().as_nanos() as Time;
        let mut split = Split { total_ns: now.saturating_sub(pending.since), communication_ns: 0 };
        if let Some((write, _, communication)) = pending.round {
            self.rounds.remove(&write);
            split.communication_ns = communication.min(split.total_ns);
            self.status.measured_writes += 1;
            self.status.write_ns += split.total_ns;
            self.status.write_communication_ns += split.communication_ns;
        }
        *match outcome {
            Outcome::Refused(_) => &mut self.status.refused,
            _ if pending.writes => &mut self.status.writes,
            _ => &mut self.status.reads,
        } += 1;
        let current =
            matches!(self.roles.get(&pending.qpn), Some(Role::Client(client, _)) if *client == pending.client);
        if current {
            // No client would take it. What it wrote is done, so that it is not refused.
            let outcome = if bytes_of(&outcome) > CLIENT_FRAME / 2 { Outcome::Unknown } else { outcome };
            let reply = Reply { tag: pending.theirs, outcome };
            self.streams.frame(pending.qpn, |out| Answered::Reply(reply, split).encode(out));
        }
    }

    /// Clients that take no answers do not keep their memory here for ever.
    fn look_after_clients(&mut self, seat: &mut Seat<'_>) {
        let lazy = |qpn: &Qpn| self.streams.backlog(*qpn) > CLIENT_BACKLOG;
        let clients = self.roles.iter().filter(|(_, role)| matches!(role, Role::Client(..)));
        let lazy: Vec<Qpn> = clients.map(|(&qpn, _)| qpn).filter(lazy).collect();
        lazy.into_iter().for_each(|qpn| self.cut_off(seat, qpn));
    }

    fn tell(&self, now: Time) -> Status {
        let (view, log, marks) = (self.node.view(), self.journal.stats(), self.node.marks());
        Status {
            node: self.config.id.into(),
            process: std::process::id().into(),
            epoch: view.epoch,
            members: view.members.0,
            learners: view.learners.0,
            serves: self.node.replica().serves().into(),
            uptime_ns: now.saturating_sub(self.started),
            cpu_ns: crate::process_cpu_ns(),
            clients: self.clients as u64,
            under_way: (self.pending.len() - self.free.len()) as u64,
            log_bytes: log.length,
            log_syncs: log.syncs,
            log_written: log.written,
            resends: marks.resends,
            replays: marks.replays,
            rejoins: marks.rejoins,
            full_recoveries: marks.full_recoveries,
            ..self.status
        }
    }
}

/// About how long an answer is.
fn bytes_of(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Value(Some(value)) | Outcome::NotSwapped(Some(value)) => value.len(),
        Outcome::Batch(outcomes) => outcomes.iter().map(|outcome| 16 + bytes_of(outcome)).sum(),
        _ => 0,
    }
}

impl Resident for Server {
    fn progress(&mut self, seat: &mut Seat<'_>) -> usize {
        self.turn = Instant::now();
        if self.journal.has_failed() {
            // Nothing that it says from now on could be relied upon.
            let _ = self.failed.set(self.journal.failure().unwrap_or_else(|| "the log's thread has panicked".into()));
            return 0;
        }
        let mut work = 0;
        for event in std::mem::take(seat.events) {
            work += 1;
            self.event(seat, event);
        }
        while let Some(arrival) = self.streams.poll(seat.nic) {
            work += 1;
            match arrival {
                Arrival::Bytes(qpn) => self.bytes(seat, qpn),
                Arrival::Broken(qpn) => self.cut_off(seat, qpn),
            }
        }
        let durable = self.journal.durable();
        if durable > self.durable {
            work += 1;
            self.durable = durable;
            self.node.persisted(seat.now, durable - 1);
        }
        if seat.now >= self.node.next_timeout() {
            work += 1;
            self.node.timeout(seat.now);
        }
        if seat.now >= self.redial_at {
            self.redial(seat);
            self.look_after_clients(seat);
            self.status.retransmits = seat.nic.counters().retransmits;
        }
        self.outputs(seat.now, None);
        work + self.streams.flush(seat.nic)
    }

    fn next_timeout(&self) -> Time {
        self.node.next_timeout().min(self.redial_at)
    }
}
