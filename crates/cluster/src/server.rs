//! A node's part of the cluster: the engine, and what carries its messages, requests and log.
//!
//! It runs wherever it is called: on the NIC thread as the device's resident, or on a host thread. Each turn takes what
//! has come, lets the engine work on all of it, and sends what the engine asks for with as few SENDs as possible.

mod connections;
mod under_way;
mod window;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use remora_nic::cm::{ConnId, ListenerId, service_id};
use remora_nic::{Now, Qpn, Time};
use remora_replica::bounds::Bounds;
use remora_replica::client::Split;
use remora_replica::ddp::Reply;
use remora_replica::frames::{Answered, Asked};
use remora_replica::status::NodeStatus;
use remora_replica::stream::{Arrival, Streams};
use remora_replica::types::{NodeId, NodeSet};

use self::under_way::UnderWay;
use self::window::Window;
use super::hello::{Hello, Words};
use super::journal::Journal;
use super::node::ClusterNodeConfig;
use super::service::{Service, Wanted};
use super::wire::{CLIENT_PORT, PEER_PORT};
use remora_real::{Clock, Error, Resident, Seat, process_cpu_ns};

/// Bytes that may wait for another node. What is above that is dropped, and sent again by the protocol in time.
const BACKLOG: usize = 64 << 20;
/// Bytes of answers that may wait for a client. One that takes none is cut off.
const CLIENT_BACKLOG: usize = 16 << 20;
/// Bytes that may wait for all clients, or have come from them in part. If there are more, whoever holds most is cut off.
const CLIENTS_HOLD: usize = 256 << 20;
/// Bytes of answers after which it is looked whether clients hold too much: that takes a look at each connection.
const LOOK_AFTER: usize = CLIENTS_HOLD / 8;
/// How long a client may take nothing of what is sent to it, in nanoseconds.
const TAKES: Time = 2_000_000_000;
/// For what part of the time after which a node is suspected clients' frames are taken in one turn: others are to hear of this
/// one, and it of them.
const TURN: u64 = 20;

/// See the module.
pub(super) struct Server<S> {
    config: ClusterNodeConfig,
    node: S,
    journal: Journal,
    streams: Streams,
    listeners: [ListenerId; 2],
    window: Option<Window>,
    peers: Vec<Peer>,
    roles: BTreeMap<Qpn, Role>,
    clients: usize,
    next_client: u64,
    /// Clients whose frames have not all been taken.
    asking: VecDeque<Qpn>,
    /// Connections that have no role any more, and are closed at the end of the turn.
    leaving: Vec<(Qpn, ConnId)>,
    /// Bytes of answers since it was looked last whether clients hold too much.
    answered: usize,
    under_way: UnderWay,
    /// Tokens below this have been told to the engine.
    durable: u64,
    /// The engine has been told that the disk is full.
    full: bool,
    redial_at: Time,
    started: Time,
    clock: Clock,
    status: NodeStatus,
    told: Told,
}

/// What it tells whoever runs it.
#[derive(Clone, Default)]
pub struct Told {
    /// Why it does nothing any more.
    pub failed: Arc<OnceLock<String>>,
    /// How the first node that was refused for this is configured differently.
    pub differs: Arc<OnceLock<String>>,
    /// Its log was lost, and did not say so.
    pub lost: Arc<AtomicBool>,
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
    /// Who says to be somebody, what was said, and until when it has time to prove it.
    Caller(Whom, Words, ConnId, Time),
    /// A client by its number, and from where it comes.
    Client(u64, ConnId, IpAddr),
}

/// Whom a caller says to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    Node(NodeId),
    /// One of this address.
    Client(IpAddr),
}

impl Role {
    fn conn(&self) -> ConnId {
        let (Self::Peer(_, conn) | Self::Caller(_, _, conn, _) | Self::Client(_, conn, _)) = *self;
        conn
    }

    /// From where a client comes, if it is one or says so.
    fn client(&self) -> Option<IpAddr> {
        match *self {
            Self::Client(_, _, from) | Self::Caller(Whom::Client(from), ..) => Some(from),
            Self::Peer(..) | Self::Caller(Whom::Node(_), ..) => None,
        }
    }
}

impl<S: Service> Server<S> {
    /// Listens for clients and nodes.
    pub fn new(
        seat: &mut Seat<'_>,
        config: ClusterNodeConfig,
        node: S,
        journal: Journal,
        streams: Streams,
        told: Told,
    ) -> Result<Self, Error> {
        let listeners = [seat.nic.listen(service_id(CLIENT_PORT))?, seat.nic.listen(service_id(PEER_PORT))?];
        let window = Window::over(seat.nic, config.guard(), node.shown())?;
        let peers = config.addresses.iter().map(|_| Peer::default()).collect();
        Ok(Self {
            config,
            node,
            journal,
            streams,
            listeners,
            window,
            peers,
            roles: BTreeMap::new(),
            clients: 0,
            next_client: 0,
            asking: VecDeque::new(),
            leaving: Vec::new(),
            answered: 0,
            under_way: UnderWay::default(),
            durable: 0,
            full: false,
            redial_at: 0,
            started: seat.now.time(),
            clock: seat.clock,
            status: NodeStatus::default(),
            told,
        })
    }

    /// Where completions go.
    pub fn cq(&self) -> remora_nic::CqId {
        self.streams.cq()
    }

    fn id(&self) -> NodeId {
        NodeId(self.config.id)
    }

    fn address(&self) -> IpAddr {
        self.config.addresses[usize::from(self.config.id)]
    }

    /// What clients ask, one after the other, for some time.
    fn asked(&mut self, seat: &mut Seat<'_>) {
        let until = seat.clock.now() + self.config.suspect.as_nanos() as u64 / TURN;
        while let Some(qpn) = self.asking.pop_front() {
            self.bytes(seat, qpn, until);
            if seat.clock.now() >= until {
                return;
            }
        }
    }

    /// Bytes on a connection; a client's until some time, and at least one frame.
    fn bytes(&mut self, seat: &mut Seat<'_>, qpn: Qpn, until: Time) {
        let Some(&role) = self.roles.get(&qpn) else { return };
        let mut inbound = self.streams.take(qpn);
        let sound = loop {
            if self.leaving.iter().any(|(left, _)| *left == qpn) {
                break true;
            }
            let frame = match inbound.next_frame() {
                Ok(Some(frame)) => inbound.bytes(frame),
                Ok(None) => break true,
                Err(_) => break false,
            };
            let understood = match role {
                Role::Peer(node, _) => self.peer_says(&seat.now, node, frame),
                Role::Client(client, ..) => self.client_says(&seat.now, client, qpn, frame),
                Role::Caller(..) if self.proves(seat, qpn, frame) => {
                    // What follows is a node's.
                    self.streams.give_back(qpn, inbound);
                    return self.bytes(seat, qpn, until);
                }
                Role::Caller(..) => false,
            };
            if !understood {
                break false;
            }
            if matches!(role, Role::Client(..)) && seat.clock.now() >= until {
                self.asking.push_back(qpn);
                break true;
            }
        };
        self.streams.give_back(qpn, inbound);
        if !sound {
            self.status.malformed += 1;
            self.cut_off(seat, qpn);
        }
    }

    fn client_says(&mut self, now: &Now, client: u64, qpn: Qpn, frame: &[u8]) -> bool {
        match Asked::decode(frame, Bounds::SHIPPED.batch) {
            Some(Asked::Request(request)) => self.submit(now, (client, qpn, frame.len()), request),
            Some(Asked::TooMany(tag)) => self.refuse(qpn, tag, S::TOO_LONG),
            Some(Asked::Status) => {
                let status = Box::new(self.tell(now.time()));
                self.tell_client(qpn, |out| Answered::<Reply>::Status(status).encode(out));
            }
            None => return false,
        }
        true
    }

    fn submit(&mut self, now: &Now, (client, qpn, bytes): (u64, Qpn, usize), mut request: S::Request) {
        let theirs = *S::tag(&mut request);
        // Reads are answered at once, and their answers wait here.
        if !self.under_way.has_room(client, bytes) || self.streams.backlog(qpn) >= CLIENT_BACKLOG / 2 {
            return self.refuse(qpn, theirs, S::BUSY);
        }
        let tag = self.under_way.begin((client, qpn, theirs), bytes, S::writes(&request), now.time());
        *S::tag(&mut request) = tag;
        self.node.submit(now, request);
        self.outputs(now, Some(tag));
    }

    /// Not even the engine hears of it.
    fn refuse(&mut self, qpn: Qpn, tag: u64, refusal: S::Outcome) {
        self.status.refused += 1;
        self.tell_client(qpn, |out| S::encode_reply(tag, refusal, Split::default(), out));
    }

    /// Queues a frame for a client, unless it has taken so little that it is to go. Thousands of answers may be due at once, of
    /// a megabyte each, long before it is looked who takes none.
    fn tell_client(&mut self, qpn: Qpn, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.streams.backlog(qpn);
        if before > CLIENT_BACKLOG {
            return self.part(qpn);
        }
        self.streams.frame(qpn, write);
        self.answered += self.streams.backlog(qpn).saturating_sub(before);
        if self.answered > LOOK_AFTER {
            self.answered = 0;
            while let Some(heaviest) = self.streams.heaviest(CLIENTS_HOLD) {
                self.part(heaviest);
            }
        }
    }

    /// Cuts off who holds too much, in the midst of a turn: nothing more is queued for it, and what was is dropped.
    fn part(&mut self, qpn: Qpn) {
        self.streams.drop_queued(qpn);
        if let Some(role) = self.forget(qpn) {
            self.status.cut_off += 1;
            self.leaving.push((qpn, role.conn()));
        }
    }

    fn peer_says(&mut self, now: &Now, from: NodeId, frame: &[u8]) -> bool {
        let Some((packet, held)) = S::decode(frame) else { return false };
        if let Some(body) = S::body(&packet) {
            self.under_way.hears(now.time(), body, held);
        }
        self.node.handle(now, from, packet);
        self.outputs(now, None);
        true
    }

    /// Does what the engine asks for; `asked` is the request that it is working on.
    fn outputs(&mut self, now: &Now, asked: Option<u64>) {
        while let Some(wanted) = self.node.poll(now) {
            match wanted {
                Wanted::Send(to, packet) => {
                    let most = Bounds::SHIPPED.peer_frame / 2;
                    S::split(packet, most, |packet| self.send(now.time(), to, &packet, asked));
                }
                Wanted::Log(token, change) => self.journal.submit(token, change),
                Wanted::Reply(tag, outcome) => self.reply(tag, outcome),
                Wanted::Data(offset, bytes, version) => {
                    if let Some(window) = &self.window {
                        window.write(version, offset, &bytes);
                    }
                }
            }
        }
        if self.node.has_lost_its_log() {
            self.told.lost.store(true, Ordering::Relaxed);
        }
    }

    fn send(&mut self, now: Time, to: NodeSet, packet: &S::Packet, asked: Option<u64>) {
        let twice = self.node.acks_twice();
        let held = S::body(packet).map_or(0, |body| self.under_way.says(now, body, asked, twice));
        for node in to.iter() {
            let connected = self.peers.get(usize::from(node.0)).and_then(|peer| peer.connected);
            if let Some(qpn) = connected.filter(|&qpn| self.streams.backlog(qpn) < BACKLOG) {
                self.streams.frame(qpn, |out| S::encode(packet, held, out));
            }
        }
    }

    fn reply(&mut self, tag: u64, outcome: S::Outcome) {
        let Some((pending, communication)) = self.under_way.end(tag) else { return };
        // To the moment: most requests are answered in the turn in which they came.
        let now = self.clock.now();
        let mut split = Split { total_ns: now.saturating_sub(pending.since), communication_ns: 0 };
        if let Some(communication) = communication {
            split.communication_ns = communication.min(split.total_ns);
            self.status.measured_writes += 1;
            self.status.write_ns += split.total_ns;
            self.status.write_communication_ns += split.communication_ns;
        }
        *match () {
            () if S::refuses(&outcome) => &mut self.status.refused,
            () if pending.writes => &mut self.status.writes,
            () => &mut self.status.reads,
        } += 1;
        let current =
            matches!(self.roles.get(&pending.qpn), Some(Role::Client(client, ..)) if *client == pending.client);
        if current {
            self.tell_client(pending.qpn, |out| S::encode_reply(pending.theirs, outcome, split, out));
        }
    }

    /// Clients that take no answers do not keep memory and buffers here for ever.
    fn look_after_clients(&mut self, seat: &mut Seat<'_>) {
        let full = |qpn: &Qpn| self.streams.backlog(*qpn) > CLIENT_BACKLOG;
        let clients = self.roles.iter().filter(|(_, role)| matches!(role, Role::Client(..)));
        let full = clients.map(|(&qpn, _)| qpn).filter(full);
        let lazy: Vec<Qpn> = full.chain(self.streams.lazy(seat.now.time(), TAKES)).collect();
        lazy.into_iter().for_each(|qpn| self.lose(seat, qpn));
        while let Some(heaviest) = self.streams.heaviest(CLIENTS_HOLD) {
            self.lose(seat, heaviest);
        }
    }

    /// Cuts off who takes too little, or holds too much.
    fn lose(&mut self, seat: &mut Seat<'_>, qpn: Qpn) {
        self.status.cut_off += u64::from(self.roles.contains_key(&qpn));
        self.cut_off(seat, qpn);
        // Whatever it was: it is not to be found again.
        self.streams.close(seat.nic, qpn);
    }

    fn tell(&self, now: Time) -> NodeStatus {
        let log = self.journal.stats();
        let status = NodeStatus {
            node: self.config.id.into(),
            process: std::process::id().into(),
            uptime_ns: now.saturating_sub(self.started),
            cpu_ns: process_cpu_ns(),
            clients: self.clients as u64,
            under_way: self.under_way.len() as u64,
            log_bytes: log.length,
            log_syncs: log.syncs,
            log_syncs_inline: log.inline,
            log_written: log.written,
            ..self.status
        };
        self.node.tell(now, status)
    }
}

impl<S: Service> Resident for Server<S> {
    fn progress(&mut self, seat: &mut Seat<'_>) -> usize {
        if self.journal.has_failed() {
            // Nothing that it says from now on could be relied upon.
            let _ =
                self.told.failed.set(self.journal.failure().unwrap_or_else(|| "the log's thread has panicked".into()));
            return 0;
        }
        let mut work = 0;
        for event in std::mem::take(seat.events) {
            work += 1;
            if !self.window_event(seat, &event) {
                self.event(seat, event);
            }
        }
        while let Some(arrival) = self.streams.poll(seat.nic, seat.now.time()) {
            work += 1;
            match arrival {
                // Other nodes come first: a client may have sent much that is to be done.
                Arrival::Bytes(qpn) if matches!(self.roles.get(&qpn), Some(Role::Client(..))) => {
                    if !self.asking.contains(&qpn) {
                        self.asking.push_back(qpn);
                    }
                }
                Arrival::Bytes(qpn) => self.bytes(seat, qpn, Time::MAX),
                Arrival::Broken(qpn) => self.cut_off(seat, qpn),
            }
        }
        work += self.asking.len();
        self.asked(seat);
        // Whoever asks faster than it is answered is not to fill the memory; and other nodes are to be heard all the while.
        if self.asking.iter().map(|&qpn| self.streams.arrived(qpn)).sum::<usize>() > LOOK_AFTER {
            while let Some(heaviest) = self.streams.heaviest(CLIENTS_HOLD) {
                self.part(heaviest);
            }
        }
        if self.journal.durable() > self.durable {
            work += 1;
            (self.durable, seat.now) = Now::after(|| self.journal.durable(), || seat.clock.now());
            self.node.persisted(&seat.now, self.durable - 1);
        }
        let left = self.journal.left();
        if left.is_some() || self.full {
            self.full = left.is_some();
            self.node.set_room(&seat.now, left);
        }
        if seat.now.time() >= self.node.next_timeout() {
            work += 1;
            self.node.timeout(&seat.now);
        }
        if seat.now.time() >= self.redial_at {
            self.redial(seat);
            self.look_after_clients(seat);
            if self.journal.is_uncompacted() {
                self.node.compact();
            }
            self.status.retransmits = seat.nic.counters().retransmits;
        }
        self.outputs(&seat.now, None);
        self.follow_window(seat);
        self.journal.turn(self.node.awaits_log());
        for (qpn, conn) in std::mem::take(&mut self.leaving) {
            self.close(seat, qpn, conn);
        }
        work + self.streams.flush(seat.nic, seat.now.time())
    }

    fn idle(&mut self, busy: bool) -> usize {
        self.journal.idle(self.node.awaits_log(), busy).into()
    }

    fn next_timeout(&self) -> Time {
        self.node.next_timeout().min(self.redial_at)
    }
}

#[cfg(test)]
mod tests;
