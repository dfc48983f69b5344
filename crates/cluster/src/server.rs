//! A node's part of the cluster: the engine, and what carries its messages, requests and log.
//!
//! It runs wherever it is called: on the NIC thread as the device's resident, or on a host thread. Each turn takes what
//! has come, lets the engine work on all of it, and sends what the engine asks for with as few SENDs as possible.

mod connections;
mod under_way;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use remora_nic::cm::{ConnId, ListenerId, service_id};
use remora_nic::{Qpn, Time};
use remora_replica::bounds::Bounds;
use remora_replica::client::Split;
use remora_replica::ddp::{Op, Outcome, Refusal, Reply, Request};
use remora_replica::frames::{Answered, Asked, decode_packet, encode_packet, split, within};
use remora_replica::node::{NodeOutput, Packet, ReplicaNode};
use remora_replica::status::NodeStatus;
use remora_replica::stream::{Arrival, Streams};
use remora_replica::types::{NodeId, NodeSet};

use self::under_way::UnderWay;
use super::hello::Hello;
use super::journal::Journal;
use super::node::ClusterNodeConfig;
use super::wire::{CLIENT_PORT, PEER_PORT};
use remora_real::{Error, Resident, Seat, process_cpu_ns};

/// Bytes that may wait for another node. What is above that is dropped, and sent again by the protocol in time.
const BACKLOG: usize = 64 << 20;
/// Bytes of answers that may wait for a client. One that takes none is cut off.
const CLIENT_BACKLOG: usize = 16 << 20;
/// Requests of all clients at one time.
const REQUESTS: usize = 1 << 16;
/// See the module.
pub(super) struct Server {
    config: ClusterNodeConfig,
    node: ReplicaNode,
    journal: Journal,
    streams: Streams,
    listeners: [ListenerId; 2],
    peers: Vec<Peer>,
    roles: BTreeMap<Qpn, Role>,
    clients: usize,
    next_client: u64,
    under_way: UnderWay,
    /// Tokens below this have been told to the engine.
    durable: u64,
    redial_at: Time,
    started: Time,
    /// When the seat's time was taken.
    turn: Instant,
    status: NodeStatus,
    failed: Arc<OnceLock<String>>,
    differs: Arc<OnceLock<String>>,
}

/// Another node.
#[derive(Default)]
struct Peer {
    connected: Option<Qpn>,
    calling: Option<Call>,
}

/// A call to another node.
#[derive(Clone, Copy)]
struct Call {
    qpn: Qpn,
    conn: ConnId,
    until: Time,
    said: Hello,
}

/// Whom a queue pair leads to.
#[derive(Clone, Copy)]
enum Role {
    Peer(NodeId, ConnId),
    /// Who says to be a node, what it was answered, and until when it has time to prove it.
    Caller(Hello, Hello, ConnId, Time),
    Client(u64, ConnId),
}

impl Role {
    fn conn(&self) -> ConnId {
        let (Self::Peer(_, conn) | Self::Caller(_, _, conn, _) | Self::Client(_, conn)) = *self;
        conn
    }
}

impl Server {
    /// Listens for clients and nodes.
    pub fn new(
        seat: &mut Seat<'_>,
        config: ClusterNodeConfig,
        node: ReplicaNode,
        journal: Journal,
        streams: Streams,
        [failed, differs]: [Arc<OnceLock<String>>; 2],
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
            roles: BTreeMap::new(),
            clients: 0,
            next_client: 0,
            under_way: UnderWay::default(),
            durable: 0,
            redial_at: 0,
            started: seat.now,
            turn: Instant::now(),
            status: NodeStatus::default(),
            failed,
            differs,
        })
    }

    /// Where completions go.
    pub fn cq(&self) -> remora_nic::CqId {
        self.streams.cq()
    }

    fn id(&self) -> NodeId {
        NodeId(self.config.id)
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
                Role::Caller(..) if self.proves(seat, qpn, frame) => {
                    // What follows is a node's.
                    self.streams.give_back(qpn, inbound);
                    return self.bytes(seat, qpn);
                }
                Role::Caller(..) => false,
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
        match Asked::decode(frame, Bounds::SHIPPED.batch) {
            Some(Asked::Request(request)) => self.submit(now, client, qpn, request),
            Some(Asked::TooMany(tag)) => self.refuse(qpn, tag, Refusal::TooLong),
            Some(Asked::Status) => {
                let status = Box::new(self.tell(now));
                self.streams.frame(qpn, |out| Answered::Status(status).encode(out));
            }
            None => return false,
        }
        true
    }

    fn submit(&mut self, now: Time, client: u64, qpn: Qpn, request: Request) {
        let full = self.under_way.len() >= REQUESTS;
        // Reads are answered at once, and their answers wait here.
        if full || self.streams.backlog(qpn) >= CLIENT_BACKLOG / 2 {
            return self.refuse(qpn, request.tag, Refusal::Busy);
        }
        let writes = !matches!(request.op, Op::Get(_));
        let tag = self.under_way.begin((client, qpn, request.tag), writes, now);
        self.node.submit(now, Request { tag, ..request });
        self.outputs(now, Some(tag));
    }

    /// Not even the engine hears of it.
    fn refuse(&mut self, qpn: Qpn, tag: u64, refusal: Refusal) {
        self.status.refused += 1;
        let reply = Reply { tag, outcome: Outcome::Refused(refusal) };
        self.streams.frame(qpn, |out| Answered::Reply(reply, Split::default()).encode(out));
    }

    fn peer_says(&mut self, now: Time, from: NodeId, frame: &[u8]) -> bool {
        let Some((packet, held)) = decode_packet(frame) else { return false };
        if let Packet::Replica(message) = &packet {
            self.under_way.hears(now, &message.body, held);
        }
        self.node.handle(now, from, packet);
        self.outputs(now, None);
        true
    }

    /// Does what the engine asks for; `asked` is the request that it is working on.
    fn outputs(&mut self, now: Time, asked: Option<u64>) {
        while let Some(output) = self.node.poll() {
            match output {
                NodeOutput::Send(to, packet) => {
                    split(packet, Bounds::SHIPPED.peer_frame / 2, |packet| self.send(now, to, &packet, asked));
                }
                NodeOutput::Log(token, change) => self.journal.submit(token, change),
                NodeOutput::Reply(reply) => self.reply(now, reply),
                NodeOutput::Job(job) => self.node.done(now, job.id()),
                NodeOutput::Step(_) => {}
            }
        }
    }

    fn send(&mut self, now: Time, to: NodeSet, packet: &Packet, asked: Option<u64>) {
        let held = match packet {
            Packet::Replica(message) => {
                self.under_way.says(now, &message.body, asked, self.config.model.facts().acks_twice())
            }
            Packet::Member(_) => 0,
        };
        for node in to.iter() {
            let connected = self.peers.get(usize::from(node.0)).and_then(|peer| peer.connected);
            if let Some(qpn) = connected.filter(|&qpn| self.streams.backlog(qpn) < BACKLOG) {
                self.streams.frame(qpn, |out| encode_packet(packet, held, out));
            }
        }
    }

    fn reply(&mut self, now: Time, Reply { tag, outcome }: Reply) {
        let Some((pending, communication)) = self.under_way.end(tag) else { return };
        // To the moment: most requests are answered in the turn in which they came.
        let now = now + self.turn.elapsed().as_nanos() as Time;
        let mut split = Split { total_ns: now.saturating_sub(pending.since), communication_ns: 0 };
        if let Some(communication) = communication {
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
            let reply =
                Reply { tag: pending.theirs, outcome: within(outcome, &mut (Bounds::SHIPPED.client_frame / 2)) };
            self.streams.frame(pending.qpn, |out| Answered::Reply(reply, split).encode(out));
        }
    }

    /// Whether somebody waits for the log.
    fn log_is_awaited(&self) -> bool {
        // In event nobody does, but the engine has had writes gather.
        !self.config.model.facts().scopes || self.node.replica().persists_scope()
    }

    /// Clients that take no answers do not keep their memory here for ever.
    fn look_after_clients(&mut self, seat: &mut Seat<'_>) {
        let lazy = |qpn: &Qpn| self.streams.backlog(*qpn) > CLIENT_BACKLOG;
        let clients = self.roles.iter().filter(|(_, role)| matches!(role, Role::Client(..)));
        let lazy: Vec<Qpn> = clients.map(|(&qpn, _)| qpn).filter(lazy).collect();
        lazy.into_iter().for_each(|qpn| self.cut_off(seat, qpn));
    }

    fn tell(&self, now: Time) -> NodeStatus {
        let (view, log, marks) = (self.node.view(), self.journal.stats(), self.node.marks());
        NodeStatus {
            node: self.config.id.into(),
            process: std::process::id().into(),
            epoch: view.epoch,
            members: view.members.0,
            learners: view.learners.0,
            serves: self.node.replica().serves().into(),
            uptime_ns: now.saturating_sub(self.started),
            cpu_ns: process_cpu_ns(),
            clients: self.clients as u64,
            under_way: self.under_way.len() as u64,
            log_bytes: log.length,
            log_syncs: log.syncs,
            log_syncs_inline: log.inline,
            log_written: log.written,
            resends: marks.resends,
            replays: marks.replays,
            rejoins: marks.rejoins,
            full_recoveries: marks.full_recoveries,
            ..self.status
        }
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
        self.journal.turn(self.log_is_awaited());
        work + self.streams.flush(seat.nic)
    }

    fn idle(&mut self, busy: bool) -> usize {
        self.journal.idle(self.log_is_awaited(), busy).into()
    }

    fn next_timeout(&self) -> Time {
        self.node.next_timeout().min(self.redial_at)
    }
}
