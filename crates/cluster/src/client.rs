//! A client of a cluster: any number of requests under way, at one node at a time.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use remora_nic::cm::{CmEvent, ConnId, service_id};
use remora_nic::{ConnectAttr, Event, Qpn};
use remora_replica::ddp::{Op, Outcome, Refusal, Request, Session};
use remora_replica::types::{Key, ScopeId, Value};

use super::stream::{Arrival, Sizes, Streams};
use super::wire::{Answered, Asked, CLIENT_FRAME, CLIENT_PORT, client_hello};
use super::{NodeStatus, Split, link_at};
use remora_real::link::Layers;
use remora_real::{Device, Error, LinkKind, Seat, Sleeper, entropy};

/// How long a node may take to answer a call.
const DIAL: u64 = 200_000_000;
/// How long to wait before the next node is called, when all have been tried.
const PAUSE: u64 = 5_000_000;
/// How long a node may leave all requests unanswered before the client asks another one.
const SILENCE: u64 = 1_000_000_000;

/// Whom a client talks to, and how.
#[derive(Clone, Debug)]
pub struct ClusterClientConfig {
    /// The nodes' addresses, in the order of their numbers.
    pub nodes: Vec<IpAddr>,
    /// The number of the node to begin with.
    pub node: usize,
    /// The client's own address; by default a free one of 127.0.0.0/8.
    pub local: Option<IpAddr>,
    /// Shared memory or UDP, as the nodes have it.
    pub link: LinkKind,
    /// After so long without an answer a request's outcome is unknown, and without a node there is no connection.
    pub timeout: Duration,
    /// Whether a request whose outcome is unknown is sent again until `timeout`, to another node. It is done once, as
    /// records remember their last 32 such requests, unless more have changed the same record in between; that makes
    /// writes longer by some 30 bytes for each.
    pub retry: bool,
}

impl ClusterClientConfig {
    /// Shared memory, five seconds, no retries.
    pub fn new(nodes: Vec<IpAddr>) -> Self {
        Self { nodes, node: 0, local: None, link: LinkKind::Shm, timeout: Duration::from_secs(5), retry: false }
    }
}

/// Names a request that is under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// How a request ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Done {
    /// Which request.
    pub ticket: Ticket,
    /// How. [`Outcome::Unknown`]: no answer came in time, or the connection broke before one did; it may have been done
    /// or not, or may still be. [`Outcome::Refused`]: it was not done and will not be.
    pub outcome: Outcome,
    /// From [`ClusterClient::submit`] to the answer, in nanoseconds.
    pub latency_ns: u64,
    /// Where a write's time went at the node.
    pub split: Split,
}

/// A connection to a cluster. Not for sharing between threads: each takes its own.
pub struct ClusterClient {
    device: Device,
    streams: Streams,
    config: ClusterClientConfig,
    state: State,
    node: usize,
    /// Nodes called in vain since the last connection.
    failures: usize,
    /// The node has said that it does not serve.
    refused: bool,
    /// Unique in the cluster, with any number below 2^20 added: requests under way at the same time are sent under
    /// different names, as a record remembers one request of each client.
    name: u64,
    free_names: Vec<u64>,
    names: u64,
    next: u64,
    /// Requests without an answer, by ticket.
    open: BTreeMap<u64, Open>,
    /// Of those, which are still to be sent, in order.
    unsent: VecDeque<u64>,
    ended: Vec<Done>,
    /// When the node was heard last, or given something to do.
    heard: u64,
    looked: u64,
    status: Option<NodeStatus>,
    sleeper: Sleeper,
}

enum State {
    /// Nobody is called before this time.
    Apart(u64),
    Calling {
        qpn: Qpn,
        conn: ConnId,
        until: u64,
    },
    Connected {
        qpn: Qpn,
        conn: ConnId,
    },
}

struct Open {
    request: Request,
    since: u64,
    sent: bool,
}

impl ClusterClient {
    /// Connects to a node of the cluster.
    pub fn connect(config: ClusterClientConfig) -> Result<Self, Error> {
        if config.nodes.is_empty() {
            return Err(Error::Argument("a cluster has at least one node".into()));
        }
        let (local, link) = match config.local {
            Some(local) => (local, link_at(local, config.link, &Layers::default())?),
            None => free_link(config.link)?,
        };
        let device = Device::new(local, vec![link], None)?;
        let sizes = Sizes { receives: 256, sends: 256, favoured: 0, frame: CLIENT_FRAME };
        let streams = Streams::new(device.lock().nic(), sizes)?;
        let mut name = [0; 8];
        name.copy_from_slice(&entropy()?[..8]);
        let mut client = Self {
            device,
            streams,
            node: config.node % config.nodes.len(),
            config,
            state: State::Apart(0),
            failures: 0,
            refused: false,
            name: u64::from_le_bytes(name) << 20,
            free_names: Vec::new(),
            names: 0,
            next: 0,
            open: BTreeMap::new(),
            unsent: VecDeque::new(),
            ended: Vec::new(),
            heard: 0,
            looked: 0,
            status: None,
            sleeper: Sleeper::new(),
        };
        let end = Instant::now() + client.config.timeout;
        while !client.is_connected() {
            if Instant::now() > end {
                return Err(Error::Unreachable(client.config.nodes[client.node]));
            }
            client.poll(&mut |_| {});
            client.wait(Duration::from_millis(1));
        }
        Ok(client)
    }

    /// The number of the node that it talks to, or calls.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Whether a connection stands. [`ClusterClient::poll`] makes one.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected { .. })
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    /// Starts a request. The next [`ClusterClient::poll`] sends it, together with others.
    pub fn submit(&mut self, op: Op) -> Ticket {
        self.submit_in(None, op)
    }

    /// The same within a scope, of the Scope model. [`Op::Persist`] ends it.
    pub fn submit_in(&mut self, scope: Option<ScopeId>, op: Op) -> Ticket {
        let tag = self.next;
        self.next += 1;
        let stamped = self.config.retry && !matches!(op, Op::Get(_) | Op::Persist);
        let session = stamped.then(|| Session { client: self.take_name(), sequence: tag + 1, attempt: 0 });
        let now = self.device.now();
        if self.open.is_empty() {
            self.heard = now;
        }
        let request = Request { tag, session, scope, op };
        self.open.insert(tag, Open { request, since: now, sent: false });
        self.unsent.push_back(tag);
        Ticket(tag)
    }

    fn take_name(&mut self) -> u64 {
        self.free_names.pop().unwrap_or_else(|| {
            self.names += 1;
            self.name + self.names
        })
    }

    /// Sends, takes answers, keeps the connection. `done` gets each request that has ended. Returns how many have.
    pub fn poll(&mut self, done: &mut dyn FnMut(Done)) -> usize {
        if self.drive() == 0 {
            // There may be fewer cores than pollers: a node that shares this one has what is waited for.
            std::thread::yield_now();
        }
        let ended = self.ended.len();
        self.ended.drain(..).for_each(done);
        ended
    }

    /// The same for several clients of one thread: `done` gets the client's place too. If none has anything to do, other
    /// threads may have the core once, not once for each.
    pub fn poll_any(clients: &mut [Self], done: &mut dyn FnMut(usize, Done)) -> usize {
        let (mut work, mut ended) = (0, 0);
        for (index, client) in clients.iter_mut().enumerate() {
            work += client.drive();
            ended += client.ended.len();
            client.ended.drain(..).for_each(|it| done(index, it));
        }
        if work == 0 {
            std::thread::yield_now();
        }
        ended
    }

    /// Returns how much there was to do.
    fn drive(&mut self) -> usize {
        let device = self.device.clone();
        let mut guard = device.lock();
        let mut work = guard.progress();
        work += self.turn(&mut guard.seat());
        if work > 0 {
            guard.transmit();
        }
        work
    }

    /// Sleeps until an answer comes, or something else to be polled for, but no longer than `timeout`.
    pub fn wait(&mut self, timeout: Duration) {
        self.device.sleep(self.streams.cq(), timeout.min(self.patience()), &mut self.sleeper);
    }

    /// How long it may sleep: no completion tells that a node has ended, or that it is time to call one.
    fn patience(&self) -> Duration {
        match self.state {
            State::Connected { .. } if self.open.is_empty() => Duration::MAX,
            State::Connected { .. } => Duration::from_millis(5),
            _ => Duration::from_millis(1),
        }
    }

    /// The same for several clients of one thread.
    pub fn wait_any(clients: &mut [Self], timeout: Duration) {
        let Some(first) = clients.first_mut() else { return };
        let mut sleeper = std::mem::take(&mut first.sleeper);
        let all = clients.iter().map(|client| (&client.device, client.streams.cq()));
        Device::sleep_any(all, clients.iter().map(Self::patience).fold(timeout, Duration::min), &mut sleeper);
        clients[0].sleeper = sleeper;
    }

    /// One request from start to end. Nothing else may be under way.
    pub fn call(&mut self, op: Op) -> Outcome {
        self.call_in(None, op)
    }

    /// The same within a scope.
    pub fn call_in(&mut self, scope: Option<ScopeId>, op: Op) -> Outcome {
        let ticket = self.submit_in(scope, op);
        let mut outcome = None;
        let mut idle = 0;
        loop {
            self.poll(&mut |done| outcome = (done.ticket == ticket).then_some(done.outcome));
            if let Some(outcome) = outcome {
                return outcome;
            }
            idle += 1;
            if idle > 20 {
                self.wait(Duration::from_millis(10));
            }
        }
    }

    /// Reads a record.
    pub fn get(&mut self, key: Key) -> Outcome {
        self.call(Op::Get(key))
    }

    /// Writes a record.
    pub fn put(&mut self, key: Key, value: &[u8]) -> Outcome {
        self.call(Op::Put(key, Value::from(value)))
    }

    /// Removes a record.
    pub fn delete(&mut self, key: Key) -> Outcome {
        self.call(Op::Delete(key))
    }

    /// Writes `new` if the record is `expected`; `None` is absence.
    pub fn compare_swap(&mut self, key: Key, expected: Option<&[u8]>, new: Option<&[u8]>) -> Outcome {
        self.call(Op::CompareSwap { key, expected: expected.map(Value::from), new: new.map(Value::from) })
    }

    /// Adds to a record of eight bytes.
    pub fn fetch_add(&mut self, key: Key, delta: u64) -> Outcome {
        self.call(Op::FetchAdd(key, delta))
    }

    /// Makes all writes of a scope durable.
    pub fn persist(&mut self, scope: ScopeId) -> Outcome {
        self.call_in(Some(scope), Op::Persist)
    }

    /// How the node is that it talks to.
    pub fn status(&mut self) -> Result<NodeStatus, Error> {
        self.status = None;
        let end = Instant::now() + self.config.timeout;
        let mut asked = None;
        while Instant::now() < end {
            if let State::Connected { qpn, .. } = self.state
                && asked != Some(qpn)
            {
                self.streams.frame(qpn, |out| Asked::Status.encode(out));
                asked = Some(qpn);
            }
            let mut ended = Vec::new();
            self.poll(&mut |done| ended.push(done));
            self.ended.append(&mut ended);
            if let Some(status) = self.status.take() {
                return Ok(status);
            }
            self.wait(Duration::from_millis(1));
        }
        Err(Error::Unreachable(self.config.nodes[self.node]))
    }

    fn turn(&mut self, seat: &mut Seat<'_>) -> usize {
        let mut work = 0;
        for event in std::mem::take(seat.events) {
            work += 1;
            self.event(seat, event);
        }
        while let Some(arrival) = self.streams.poll(seat.nic) {
            work += 1;
            match arrival {
                Arrival::Bytes(qpn) => self.bytes(seat, qpn),
                Arrival::Broken(qpn) => self.lost(seat, qpn),
            }
        }
        self.keep(seat);
        self.send();
        if seat.now.saturating_sub(self.looked) > 1_000_000 {
            self.looked = seat.now;
            self.give_up(seat);
            self.look(seat);
        }
        work + self.streams.flush(seat.nic)
    }

    fn event(&mut self, seat: &mut Seat<'_>, event: Event) {
        match event {
            Event::Cm(CmEvent::Established { conn: c, .. }) => {
                if let State::Calling { qpn, conn, .. } = self.state
                    && c == conn
                {
                    self.state = State::Connected { qpn, conn };
                    self.heard = seat.now;
                    self.failures = 0;
                }
            }
            Event::Cm(
                CmEvent::Rejected { conn: c, .. }
                | CmEvent::Unreachable { conn: c }
                | CmEvent::Disconnected { conn: c },
            ) => {
                if let State::Calling { qpn, conn, .. } | State::Connected { qpn, conn } = self.state
                    && c == conn
                {
                    self.lost(seat, qpn);
                }
            }
            Event::QpFatal(qpn, _) => self.lost(seat, qpn),
            _ => {}
        }
    }

    fn bytes(&mut self, seat: &mut Seat<'_>, qpn: Qpn) {
        let mut inbound = self.streams.take(qpn);
        let mut broken = false;
        loop {
            let frame = match inbound.next_frame() {
                Ok(Some(frame)) => inbound.bytes(frame),
                Ok(None) => break,
                Err(_) => {
                    broken = true;
                    break;
                }
            };
            match Answered::decode(frame) {
                Some(Answered::Reply(reply, split)) => self.answered(seat.now, reply.tag, reply.outcome, split),
                Some(Answered::Status(status)) => self.status = Some(*status),
                None => broken = true,
            }
        }
        self.streams.give_back(qpn, inbound);
        self.heard = seat.now;
        if broken {
            self.lost(seat, qpn);
        }
    }

    fn answered(&mut self, now: u64, tag: u64, outcome: Outcome, split: Split) {
        let Some(open) = self.open.get_mut(&tag) else { return };
        let again = match outcome {
            // Not done: another node may serve, or this one soon.
            Outcome::Refused(Refusal::NotServing) => true,
            // An earlier attempt may have been done, so that this is not the last word.
            Outcome::Refused(Refusal::Busy) if open.attempt() > 0 => open.again(),
            Outcome::Unknown => open.again(),
            _ => false,
        };
        if again {
            open.sent = false;
            self.unsent.push_back(tag);
            self.refused = true;
            return;
        }
        self.end(now, tag, outcome, split);
    }

    fn end(&mut self, now: u64, tag: u64, outcome: Outcome, split: Split) {
        if let Some(open) = self.open.remove(&tag) {
            self.free_names.extend(open.request.session.map(|session| session.client));
            self.ended.push(Done { ticket: Ticket(tag), outcome, latency_ns: now.saturating_sub(open.since), split });
        }
    }

    /// The connection is gone: the next node, please.
    fn lost(&mut self, seat: &mut Seat<'_>, qpn: Qpn) {
        let (State::Calling { qpn: current, conn, .. } | State::Connected { qpn: current, conn }) = self.state else {
            return;
        };
        if current != qpn {
            return;
        }
        let _ = seat.nic.disconnect(seat.now, conn);
        self.streams.close(seat.nic, qpn);
        self.go_on(seat.now);
        let sent: Vec<u64> = self.open.iter().filter(|(_, open)| open.sent).map(|(&tag, _)| tag).collect();
        for tag in sent {
            match self.open.get_mut(&tag).is_some_and(Open::again) {
                true => self.unsent.push_back(tag),
                false => self.end(seat.now, tag, Outcome::Unknown, Split::default()),
            }
        }
    }

    /// Sees to it that there is a connection.
    fn keep(&mut self, seat: &mut Seat<'_>) {
        match self.state {
            State::Apart(until) if seat.now >= until => self.call_next(seat),
            State::Calling { qpn, until, .. } if seat.now >= until => self.lost(seat, qpn),
            State::Connected { qpn, .. } => {
                let silent = !self.open.is_empty() && seat.now.saturating_sub(self.heard) > SILENCE;
                if silent || self.refused {
                    self.lost(seat, qpn);
                }
            }
            _ => {}
        }
    }

    /// To the next node; after a pause if all have been tried, or if this one does not serve: others may not know yet.
    fn go_on(&mut self, now: u64) {
        self.node = (self.node + 1) % self.config.nodes.len();
        self.failures += 1;
        let pause = std::mem::take(&mut self.refused) || self.failures.is_multiple_of(self.config.nodes.len());
        self.state = State::Apart(now + if pause { PAUSE } else { 0 });
    }

    fn call_next(&mut self, seat: &mut Seat<'_>) {
        match self.call_node(seat) {
            Some(calling) => self.state = calling,
            None => self.go_on(seat.now),
        }
    }

    /// Calls this node, if it can be called.
    fn call_node(&mut self, seat: &mut Seat<'_>) -> Option<State> {
        let node = self.config.nodes[self.node];
        let link = seat.links.first_mut()?;
        if !link.reach(node).unwrap_or(false) {
            return None;
        }
        // A node that acknowledges nothing for some 0.1 s is gone.
        let path_mtu = link.max_mtu() as u32;
        // Answers for which this client has no room are not to keep the node busy: it tries again after 0.64 ms.
        let attr = ConnectAttr { path_mtu, min_rnr_timer: 12, ack_timeout: 12, ..ConnectAttr::default() };
        let route = remora_nic::Route { local: seat.local, remote: node, link: 0 };
        let qpn = self.streams.open(seat.nic).ok()?;
        match seat.nic.connect(seat.now, qpn, route, service_id(CLIENT_PORT), attr, &client_hello()) {
            Ok(conn) => Some(State::Calling { qpn, conn, until: seat.now + DIAL }),
            Err(_) => {
                self.streams.close(seat.nic, qpn);
                None
            }
        }
    }

    fn send(&mut self) {
        let State::Connected { qpn, .. } = self.state else { return };
        while let Some(tag) = self.unsent.pop_front() {
            // Whoever is gone has run out of time.
            let Some(open) = self.open.get_mut(&tag) else { continue };
            open.sent = true;
            self.streams.frame(qpn, |out| {
                out.push(1);
                open.request.encode(out);
            });
        }
    }

    /// Over shared memory it shows at once that a process has ended.
    fn look(&mut self, seat: &mut Seat<'_>) {
        let (State::Calling { qpn, .. } | State::Connected { qpn, .. }) = self.state else { return };
        let node = self.config.nodes[self.node];
        if seat.links.first_mut().is_some_and(|link| matches!(link.reach(node), Ok(false))) {
            self.lost(seat, qpn);
        }
    }

    /// Ends what has run out of time.
    fn give_up(&mut self, seat: &mut Seat<'_>) {
        let timeout = self.config.timeout.as_nanos() as u64;
        let late = |open: &&Open| seat.now.saturating_sub(open.since) >= timeout;
        // They are in order of their beginning.
        let late: Vec<u64> = self.open.values().take_while(late).map(|open| open.request.tag).collect();
        for tag in late {
            let never = self.open.get(&tag).is_some_and(|open| !open.sent && open.attempt() == 0);
            let outcome = if never { Outcome::Refused(Refusal::NotServing) } else { Outcome::Unknown };
            self.end(seat.now, tag, outcome, Split::default());
        }
    }
}

impl Drop for ClusterClient {
    fn drop(&mut self) {
        if let State::Connected { conn, .. } = self.state {
            let mut guard = self.device.lock();
            let now = guard.now();
            if guard.nic().disconnect(now, conn).is_ok() {
                guard.progress();
            }
        }
    }
}

impl Open {
    /// May it be sent again though it may have been done?
    fn again(&mut self) -> bool {
        self.sent = false;
        match (&mut self.request.session, &self.request.op) {
            (Some(session), _) => session.attempt += 1,
            // It changes nothing.
            (None, Op::Get(_)) => {}
            _ => return false,
        }
        true
    }

    fn attempt(&self) -> u32 {
        self.request.session.map_or(0, |session| session.attempt)
    }
}

/// A link at an address of 127.0.0.0/8 that nobody has.
fn free_link(kind: LinkKind) -> Result<(IpAddr, Box<dyn remora_real::link::Link>), Error> {
    let mut failure = None;
    for _ in 0..64 {
        let random = entropy()?;
        let local = Ipv4Addr::new(127, random[0].clamp(64, 250), random[1], random[2].clamp(1, 254)).into();
        match link_at(local, kind, &Layers::default()) {
            Ok(link) => return Ok((local, link)),
            Err(e) => failure = Some(e),
        }
    }
    Err(failure.unwrap_or_else(|| Error::Argument("no address of 127.0.0.0/8 is free".into())))
}
