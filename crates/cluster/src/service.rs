//! What a node serves, as its server drives it: an engine, and its words in frames.

use remora_nic::Now;
use remora_replica::chain::{
    ChainOutcome, ChainPacket, ChainRefusal, ChainReply, ChainRequest, Lines, LoggedChain, LoggedOutput,
};
use remora_replica::client::Split;
use remora_replica::ddp::{Body, Op, Outcome, Refusal, Reply, Request};
use remora_replica::frames::{self, Answered, Framed, decode_packet, encode_packet};
use remora_replica::node::{Change, NodeOutput, Packet, ReplicaNode};
use remora_replica::status::NodeStatus;
use remora_replica::types::{NodeId, NodeSet, Value};

use remora_nic::Time;

/// What it asks for.
pub(super) enum Wanted<S: Service> {
    Send(NodeSet, S::Packet),
    Log(u64, Change),
    Reply(u64, S::Outcome),
    /// From this offset on clients that READ are to find this, under this version.
    Data(u64, Value, u64),
}

/// What a service shows to clients that READ: how it is laid out, the data, and the version of what that is.
pub(super) struct Shown<'a> {
    pub lines: Lines,
    pub data: &'a [u8],
    pub version: u64,
}

/// See the module. Tags are the server's.
pub(super) trait Service: Sized + Send + 'static {
    type Request: Framed;
    type Packet;
    type Outcome;
    /// There is no room for it.
    const BUSY: Self::Outcome;
    /// It has more parts than may be.
    const TOO_LONG: Self::Outcome;

    fn tag(request: &mut Self::Request) -> &mut u64;
    fn writes(request: &Self::Request) -> bool;
    fn refuses(outcome: &Self::Outcome) -> bool;
    fn encode_reply(tag: u64, outcome: Self::Outcome, split: Split, out: &mut Vec<u8>);
    /// The packet, and how long (ns) its sender has held what it answers.
    fn decode(frame: &[u8]) -> Option<(Self::Packet, Time)>;
    fn encode(packet: &Self::Packet, held: Time, out: &mut Vec<u8>);
    /// A packet in several of at most so many bytes, where it can be cut.
    fn split(packet: Self::Packet, most: usize, send: impl FnMut(Self::Packet));
    /// Of what it says, what rounds of writes are measured by.
    fn body(packet: &Self::Packet) -> Option<&Body>;

    fn submit(&mut self, now: &Now, request: Self::Request);
    fn handle(&mut self, now: &Now, from: NodeId, packet: Self::Packet);
    fn persisted(&mut self, now: &Now, token: u64);
    fn set_room(&mut self, now: &Now, room: Option<usize>);
    fn compact(&mut self);
    fn timeout(&mut self, now: &Now);
    fn next_timeout(&self) -> Time;
    fn poll(&mut self, now: &Now) -> Option<Wanted<Self>>;

    /// What clients may READ, if there is something.
    fn shown(&self) -> Option<Shown<'_>> {
        None
    }
    /// Until when they may, and in which view, if they may now.
    fn window(&self) -> Option<(u64, Time)> {
        None
    }

    /// Whether somebody waits for the log.
    fn awaits_log(&self) -> bool;
    /// Whether a second acknowledgement follows the first.
    fn acks_twice(&self) -> bool;
    fn has_lost_its_log(&self) -> bool;
    /// How it is.
    fn tell(&self, now: Time, status: NodeStatus) -> NodeStatus;
}

impl Service for ReplicaNode {
    type Request = Request;
    type Packet = Packet;
    type Outcome = Outcome;
    const BUSY: Outcome = Outcome::Refused(Refusal::Busy);
    const TOO_LONG: Outcome = Outcome::Refused(Refusal::TooLong);

    fn tag(request: &mut Request) -> &mut u64 {
        &mut request.tag
    }

    fn writes(request: &Request) -> bool {
        !matches!(request.op, Op::Get(_))
    }

    fn refuses(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Refused(_))
    }

    fn encode_reply(tag: u64, outcome: Outcome, split: Split, out: &mut Vec<u8>) {
        let outcome = frames::within(outcome, &mut (remora_replica::bounds::Bounds::SHIPPED.client_frame / 2));
        Answered::Reply(Reply { tag, outcome }, split).encode(out);
    }

    fn decode(frame: &[u8]) -> Option<(Packet, Time)> {
        decode_packet(frame)
    }

    fn encode(packet: &Packet, held: Time, out: &mut Vec<u8>) {
        encode_packet(packet, held, out);
    }

    fn split(packet: Packet, most: usize, send: impl FnMut(Packet)) {
        frames::split(packet, most, send);
    }

    fn body(packet: &Packet) -> Option<&Body> {
        match packet {
            Packet::Replica(message) => Some(&message.body),
            Packet::Member(_) => None,
        }
    }

    fn submit(&mut self, now: &Now, request: Request) {
        self.submit(now, request);
    }

    fn handle(&mut self, now: &Now, from: NodeId, packet: Packet) {
        self.handle(now, from, packet);
    }

    fn persisted(&mut self, now: &Now, token: u64) {
        self.persisted(now, token);
    }

    fn set_room(&mut self, now: &Now, room: Option<usize>) {
        self.set_room(now, room);
    }

    fn compact(&mut self) {
        self.compact();
    }

    fn timeout(&mut self, now: &Now) {
        self.timeout(now);
    }

    fn next_timeout(&self) -> Time {
        self.next_timeout()
    }

    fn poll(&mut self, now: &Now) -> Option<Wanted<Self>> {
        loop {
            return Some(match self.poll()? {
                NodeOutput::Send(to, packet) => Wanted::Send(to, packet),
                NodeOutput::Log(token, change) => Wanted::Log(token, change),
                NodeOutput::Reply(Reply { tag, outcome }) => Wanted::Reply(tag, outcome),
                NodeOutput::Job(job) => {
                    self.done(now, job.id());
                    continue;
                }
                NodeOutput::Step(_) => continue,
            });
        }
    }

    fn awaits_log(&self) -> bool {
        // In event nobody does, but the engine has had writes gather.
        !self.replica().config().model.facts().scopes || self.replica().persists_scope()
    }

    fn acks_twice(&self) -> bool {
        self.replica().config().model.facts().acks_twice()
    }

    fn has_lost_its_log(&self) -> bool {
        self.has_lost_its_log()
    }

    fn tell(&self, _: Time, status: NodeStatus) -> NodeStatus {
        let (view, marks) = (self.view(), self.marks());
        NodeStatus {
            epoch: view.epoch,
            members: view.members.0,
            learners: view.learners.0,
            serves: self.replica().serves().into(),
            full: self.full().0,
            resends: marks.resends,
            replays: marks.replays,
            rejoins: marks.rejoins,
            full_recoveries: marks.full_recoveries,
            ..status
        }
    }
}

impl Service for LoggedChain {
    type Request = ChainRequest;
    type Packet = ChainPacket;
    type Outcome = ChainOutcome;
    const BUSY: ChainOutcome = ChainOutcome::Refused(ChainRefusal::Busy);
    const TOO_LONG: ChainOutcome = ChainOutcome::Refused(ChainRefusal::Invalid);

    fn tag(request: &mut ChainRequest) -> &mut u64 {
        &mut request.tag
    }

    fn writes(request: &ChainRequest) -> bool {
        !request.transaction.writes.is_empty()
    }

    fn refuses(outcome: &ChainOutcome) -> bool {
        matches!(outcome, ChainOutcome::Refused(_))
    }

    fn encode_reply(tag: u64, outcome: ChainOutcome, split: Split, out: &mut Vec<u8>) {
        Answered::Reply(ChainReply { tag, outcome }, split).encode(out);
    }

    fn decode(frame: &[u8]) -> Option<(ChainPacket, Time)> {
        Some((ChainPacket::decode(frame).ok()?, 0))
    }

    fn encode(packet: &ChainPacket, _: Time, out: &mut Vec<u8>) {
        packet.encode(out);
    }

    fn split(packet: ChainPacket, _: usize, mut send: impl FnMut(ChainPacket)) {
        // It holds no more than a ring.
        send(packet);
    }

    fn body(_: &ChainPacket) -> Option<&Body> {
        None
    }

    fn submit(&mut self, now: &Now, request: ChainRequest) {
        self.submit(now, request);
    }

    fn handle(&mut self, now: &Now, from: NodeId, packet: ChainPacket) {
        self.handle(now, from, packet);
    }

    fn persisted(&mut self, now: &Now, token: u64) {
        self.persisted(now, token);
    }

    fn set_room(&mut self, now: &Now, room: Option<usize>) {
        self.set_room(now, room);
    }

    fn compact(&mut self) {
        self.compact();
    }

    fn timeout(&mut self, now: &Now) {
        self.timeout(now);
    }

    fn next_timeout(&self) -> Time {
        self.next_timeout()
    }

    fn poll(&mut self, _: &Now) -> Option<Wanted<Self>> {
        Some(match self.poll()? {
            LoggedOutput::Send(to, packet) => Wanted::Send(NodeSet::one(to), packet),
            LoggedOutput::Log(token, change) => Wanted::Log(token, change),
            LoggedOutput::Reply(ChainReply { tag, outcome }) => Wanted::Reply(tag, outcome),
            LoggedOutput::Data(offset, bytes) => Wanted::Data(offset, bytes, self.node().chain().log_ends().1),
        })
    }

    fn shown(&self) -> Option<Shown<'_>> {
        let chain = self.node().chain();
        let lines = chain.lines()?;
        Some(Shown { lines, data: &chain.data()[..lines.data() as usize], version: chain.log_ends().1 })
    }

    fn window(&self) -> Option<(u64, Time)> {
        let chain = self.node().chain();
        Some((chain.view().epoch, chain.window()?))
    }

    fn awaits_log(&self) -> bool {
        true
    }

    fn acks_twice(&self) -> bool {
        false
    }

    fn has_lost_its_log(&self) -> bool {
        self.node().has_lost_its_memory()
    }

    fn tell(&self, now: Time, status: NodeStatus) -> NodeStatus {
        let (node, view) = (self.node(), self.node().view());
        let marks = node.chain().marks();
        NodeStatus {
            epoch: view.epoch,
            members: view.members.0,
            learners: view.learners.0,
            serves: node.chain().answers(now).into(),
            full: node.full().0,
            replays: marks.repeated,
            rejoins: marks.caught_up,
            full_recoveries: marks.recoveries,
            ..status
        }
    }
}
