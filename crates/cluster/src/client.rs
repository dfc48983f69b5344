//! A client of a cluster: any number of requests under way, at one node at a time.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use remora_nic::cm::{CmEvent, ConnId};
use remora_nic::{Event, Qpn, Time};
use remora_real::{Device, Error, LinkKind, Seat, Sleeper, entropy};
use remora_replica::bounds::Bounds;
use remora_replica::chain::{ChainExchange, ChainOutcome, ChainReply, Transaction};
use remora_replica::client::{ClientConfig, Ended, Exchange, Order, ServiceClient, StoreExchange, Ticket};
use remora_replica::ddp::{Op, Outcome, Reply, Request};
use remora_replica::frames::{Answered, Asked, Framed, encode_request};
use remora_replica::seal::End;
use remora_replica::status::NodeStatus;
use remora_replica::stream::{Arrival, Sizes, Streams};
use remora_replica::types::{Key, ScopeId, Value};

use super::caller::{Caller, Refusal, call, device, is_there, refusal};
use super::hello::{ClientHello, Guard, Words};
use super::streams;
use super::wire::{CLIENT_PORT, Secret};

/// How often (ns) it is looked whether the node's process is there.
const LOOK: Time = 1_000_000;

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
    /// writes longer by some 30 bytes for each. A chain remembers the last request of each of 1,024 sessions, of which a client
    /// has as many as it has requests under way, and never does one again that it may have forgotten.
    pub retry: bool,
    /// The clients' secret, which follows from the cluster's ([`crate::client_secret`]): both ends prove that they know it,
    /// and what leaves the host is sealed. `None` for clusters that do not seal.
    pub secret: Option<Secret>,
}

impl ClusterClientConfig {
    /// Shared memory, five seconds, no retries, no secret.
    pub fn new(nodes: Vec<IpAddr>) -> Self {
        let (link, timeout) = (LinkKind::Shm, Duration::from_secs(5));
        Self { nodes, node: 0, local: None, link, timeout, retry: false, secret: None }
    }
}

/// A kind of service, in frames.
pub trait Spoken: Exchange<Request: Framed> {
    /// An answer.
    type Reply: Framed;
    /// Whether it is a chain that is asked for transactions.
    const CHAIN: bool;

    /// Tag and outcome of an answer.
    fn parts(reply: Self::Reply) -> (u64, Self::Outcome);
}

impl Spoken for StoreExchange {
    type Reply = Reply;
    const CHAIN: bool = false;

    fn parts(Reply { tag, outcome }: Reply) -> (u64, Outcome) {
        (tag, outcome)
    }
}

impl Spoken for ChainExchange {
    type Reply = ChainReply;
    const CHAIN: bool = true;

    fn parts(ChainReply { tag, outcome }: ChainReply) -> (u64, ChainOutcome) {
        (tag, outcome)
    }
}

/// A client of a cluster that keeps records.
pub type ClusterClient = ConnectedClient<StoreExchange>;
/// A client of a cluster that keeps a chain.
pub type ChainClient = ConnectedClient<ChainExchange>;

/// A connection to a cluster. Not for sharing between threads: each takes its own.
///
/// Requests, attempts and the choice of the node are [`ServiceClient`]'s; here are its connection, clock and sleep.
pub struct ConnectedClient<X: Spoken> {
    device: Device,
    streams: Streams,
    config: ClusterClientConfig,
    requests: ServiceClient<X>,
    connection: Option<Connection>,
    looked: Time,
    status: Option<NodeStatus>,
    /// What the last node said that refused a call.
    refused: Option<Refusal>,
    sleeper: Sleeper,
}

/// A connection, or a call for one.
#[derive(Clone, Copy)]
struct Connection {
    qpn: Qpn,
    conn: ConnId,
    said: ClientHello,
}

impl<X: Spoken> ConnectedClient<X> {
    /// Connects to a node of the cluster.
    pub fn connect(config: ClusterClientConfig) -> Result<Self, Error> {
        let device = device(&config)?;
        let sizes = Sizes { receives: 256, sends: 256, favoured: 0, frame: Bounds::SHIPPED.client_frame };
        let streams = streams(device.lock().nic(), sizes)?;
        let mut name = [0; 8];
        name.copy_from_slice(&entropy()?[..8]);
        let requests = ServiceClient::new(ClientConfig {
            node: config.node,
            timeout: config.timeout.as_nanos() as Time,
            retry: config.retry,
            ..ClientConfig::new(config.nodes.len(), u64::from_le_bytes(name) << 20)
        });
        let (connection, status, sleeper) = (None, None, Sleeper::new());
        let timeout = config.timeout;
        let client = Self { device, streams, config, requests, connection, looked: 0, status, refused: None, sleeper };
        client.up_within(timeout)
    }

    /// The number of the node that it talks to, or calls.
    pub fn node(&self) -> usize {
        self.requests.node()
    }

    /// Whether a connection stands. [`ConnectedClient::poll`] makes one.
    pub fn is_connected(&self) -> bool {
        self.requests.is_connected()
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.requests.under_way()
    }

    /// Starts a request. The next [`ConnectedClient::poll`] sends it, together with others.
    pub fn start(&mut self, wish: X::Wish) -> Ticket {
        self.requests.start(self.device.now(), wish)
    }

    /// Sends, takes answers, keeps the connection. `done` gets each request that has ended. Returns how many have.
    pub fn poll(&mut self, done: &mut dyn FnMut(Ended<X::Outcome>)) -> usize {
        self.drive_or_yield();
        self.take_ended(done)
    }

    fn take_ended(&mut self, mut done: impl FnMut(Ended<X::Outcome>)) -> usize {
        let mut count = 0;
        while let Some(ended) = self.requests.poll_ended() {
            count += 1;
            done(ended);
        }
        count
    }

    /// Polls several clients of one thread: `done` gets the client's place too. If none has anything to do, other
    /// threads may have the core once, not once for each.
    pub fn poll_any(clients: &mut [Self], done: &mut dyn FnMut(usize, Ended<X::Outcome>)) -> usize {
        let (mut work, mut ended) = (0, 0);
        for (index, client) in clients.iter_mut().enumerate() {
            work += client.drive();
            ended += client.take_ended(|it| done(index, it));
        }
        if work == 0 {
            std::thread::yield_now();
        }
        ended
    }

    /// Sleeps until an answer comes, or something else to be polled for, but no longer than `timeout`.
    pub fn wait(&mut self, timeout: Duration) {
        self.device.sleep(self.streams.cq(), timeout.min(self.patience()), &mut self.sleeper);
    }

    /// How long it may sleep: no completion tells that a node has ended, or that it is time to call one.
    fn patience(&self) -> Duration {
        match self.is_connected() {
            true if self.under_way() == 0 => Duration::MAX,
            true => Duration::from_millis(5),
            false => Duration::from_millis(1),
        }
    }

    /// Sleeps in the same way for several clients of one thread.
    pub fn wait_any(clients: &mut [Self], timeout: Duration) {
        let Some(first) = clients.first_mut() else { return };
        let mut sleeper = std::mem::take(&mut first.sleeper);
        let all = clients.iter().map(|client| (&client.device, client.streams.cq()));
        Device::sleep_any(all, clients.iter().map(Self::patience).fold(timeout, Duration::min), &mut sleeper);
        clients[0].sleeper = sleeper;
    }

    /// One request from start to end. Nothing else may be under way.
    pub fn finish(&mut self, wish: X::Wish) -> X::Outcome {
        let ticket = self.start(wish);
        self.finish_by(|this| {
            let mut outcome = None;
            this.poll(&mut |done| outcome = (done.ticket == ticket).then_some(done.outcome));
            outcome
        })
    }

    /// How the node is that it talks to.
    pub fn status(&mut self) -> Result<NodeStatus, Error> {
        self.status = None;
        let end = Instant::now() + self.config.timeout;
        let mut asked = None;
        while Instant::now() < end {
            if let Some(Connection { qpn, .. }) = self.connection.filter(|_| self.is_connected())
                && asked != Some(qpn)
            {
                self.streams.frame(qpn, |out| Asked::<Request>::Status.encode(out));
                asked = Some(qpn);
            }
            self.drive();
            if let Some(status) = self.status.take() {
                return Ok(status);
            }
            self.wait(Duration::from_millis(1));
        }
        Err(Error::Unreachable(self.address()))
    }

    fn event(&mut self, seat: &mut Seat<'_>, event: Event) {
        let Some(Connection { qpn, conn, .. }) = self.connection else { return };
        match event {
            Event::Cm(CmEvent::Established { conn: c, private_data, .. }) if c == conn => {
                self.established(seat, &private_data);
            }
            Event::Cm(CmEvent::Rejected { conn: c, reason, private_data }) if c == conn => {
                self.refused = Some(refusal(reason, &private_data));
                self.lost(seat, qpn);
            }
            Event::Cm(CmEvent::Unreachable { conn: c } | CmEvent::Disconnected { conn: c }) if c == conn => {
                self.lost(seat, qpn);
            }
            Event::QpFatal(qpn, _) => self.lost(seat, qpn),
            _ => {}
        }
    }

    fn guard(&self) -> Guard {
        Guard::of(self.config.secret.is_some(), self.config.link)
    }

    /// The node has answered. Unless connections are open, it has proved that it knows the secret, and gets the same
    /// proof.
    fn established(&mut self, seat: &mut Seat<'_>, said: &[u8]) {
        let Some(Connection { qpn, said: caller, .. }) = self.connection else { return };
        if let Some(secret) = self.config.secret {
            let Some((words, _)) = Words::answered(&secret, caller.encode(), said) else {
                self.refused = Some(("it does not know the clients' secret".into(), 0));
                return self.lost(seat, qpn);
            };
            self.streams.seal(qpn, self.guard().seal(&words, &secret, End::Caller));
            let proof = words.prove(&secret, End::Caller);
            self.streams.frame(qpn, |out| out.extend_from_slice(&proof));
        }
        self.refused = None;
        self.requests.connected(seat.now.time());
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
            match Answered::decode(frame, Bounds::SHIPPED.batch) {
                Some(Answered::Reply(reply, split)) => {
                    let (tag, outcome) = X::parts(reply);
                    self.requests.answered(seat.now.time(), tag, outcome, split);
                }
                Some(Answered::Status(status)) => self.status = Some(*status),
                None => broken = true,
            }
        }
        self.streams.give_back(qpn, inbound);
        self.requests.heard(seat.now.time());
        if broken {
            self.lost(seat, qpn);
        }
    }

    /// The connection is gone, or is good for nothing.
    fn lost(&mut self, seat: &mut Seat<'_>, qpn: Qpn) {
        if self.connection.is_some_and(|current| current.qpn == qpn) {
            self.hang_up(seat);
            self.requests.lost(seat.now.time());
        }
    }

    fn hang_up(&mut self, seat: &mut Seat<'_>) {
        if let Some(Connection { qpn, conn, .. }) = self.connection.take() {
            let _ = seat.nic.disconnect(seat.now.time(), conn);
            self.streams.close(seat.nic, qpn);
        }
    }

    fn call_node(&mut self, seat: &mut Seat<'_>, node: usize) {
        self.connection = self.dial(seat, self.config.nodes[node]);
        if self.connection.is_none() {
            self.requests.lost(seat.now.time());
        }
    }

    /// Calls a node, if it can be called.
    fn dial(&mut self, seat: &mut Seat<'_>, node: IpAddr) -> Option<Connection> {
        if !is_there(seat, node) {
            return None;
        }
        let said = ClientHello::new(self.guard(), X::CHAIN).ok()?;
        let qpn = self.streams.open(seat.nic).ok()?;
        match call(seat, qpn, (node, CLIENT_PORT), &said, self.config.secret.as_ref()) {
            Some(conn) => Some(Connection { qpn, conn, said }),
            None => {
                self.streams.close(seat.nic, qpn);
                None
            }
        }
    }

    /// Over shared memory it shows at once that a process has ended.
    fn look(&mut self, seat: &mut Seat<'_>) {
        let Some(Connection { qpn, .. }) = self.connection else { return };
        let node = self.config.nodes[self.requests.node()];
        if seat.links.first_mut().is_some_and(|link| matches!(link.reach(node), Ok(false))) {
            self.lost(seat, qpn);
        }
    }
}

impl<X: Spoken> Caller for ConnectedClient<X> {
    fn device(&self) -> &Device {
        &self.device
    }

    fn address(&self) -> IpAddr {
        self.config.nodes[self.node()]
    }

    fn is_up(&self) -> bool {
        self.is_connected()
    }

    fn refused(&mut self) -> Option<Refusal> {
        self.refused.take()
    }

    fn sleep(&mut self, timeout: Duration) {
        self.wait(timeout);
    }

    fn turn(&mut self, seat: &mut Seat<'_>) -> usize {
        let mut work = 0;
        for event in std::mem::take(seat.events) {
            work += 1;
            self.event(seat, event);
        }
        while let Some(arrival) = self.streams.poll(seat.nic, seat.now.time()) {
            work += 1;
            match arrival {
                Arrival::Bytes(qpn) => self.bytes(seat, qpn),
                Arrival::Broken(qpn) => self.lost(seat, qpn),
            }
        }
        if seat.now.time().saturating_sub(self.looked) > LOOK {
            self.looked = seat.now.time();
            self.look(seat);
        }
        self.requests.handle_timeout(seat.now.time());
        while let Some(order) = self.requests.poll_order(seat.now.time()) {
            match order {
                Order::HangUp => self.hang_up(seat),
                Order::Call(node) => self.call_node(seat, node),
            }
        }
        if let Some(Connection { qpn, .. }) = self.connection {
            while let Some(request) = self.requests.poll_transmit() {
                self.streams.frame(qpn, |out| encode_request(request, out));
            }
        }
        work + self.streams.flush(seat.nic, seat.now.time())
    }
}

impl ClusterClient {
    /// Starts a request. The next [`ConnectedClient::poll`] sends it, together with others.
    pub fn submit(&mut self, op: Op) -> Ticket {
        self.submit_in(None, op)
    }

    /// Starts a request within a scope, of the Scope model. [`Op::Persist`] ends it.
    pub fn submit_in(&mut self, scope: Option<ScopeId>, op: Op) -> Ticket {
        self.start((scope, op))
    }

    /// One request from start to end. Nothing else may be under way.
    pub fn call(&mut self, op: Op) -> Outcome {
        self.call_in(None, op)
    }

    /// One request within a scope from start to end. Nothing else may be under way.
    pub fn call_in(&mut self, scope: Option<ScopeId>, op: Op) -> Outcome {
        self.finish((scope, op))
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
}

impl ChainClient {
    /// One transaction from start to end. Nothing else may be under way.
    pub fn transact(&mut self, transaction: Transaction) -> ChainOutcome {
        self.finish(transaction)
    }
}

impl<X: Spoken> Drop for ConnectedClient<X> {
    fn drop(&mut self) {
        if let Some(Connection { conn, .. }) = self.connection.filter(|_| self.is_connected()) {
            let mut guard = self.device.lock();
            let now = guard.now();
            if guard.nic().disconnect(now, conn).is_ok() {
                guard.progress();
            }
        }
    }
}
