//! A replica and its membership, as one engine.

use remora_nic::Now;

use super::replica::{Chain, ChainOutput};
use super::types::{ChainConfig, ChainMessage, ChainReply, ChainRequest};
use crate::Time;
use crate::ddp::View;
use crate::member::{MemberOutput, Membership, Notice, Standing, Timing};
use crate::patience::{Patience, STUCK};
use crate::types::{NodeId, NodeSet};

/// What nodes of a chain send each other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChainPacket {
    /// Of a view's chain.
    Chain(u64, ChainMessage),
    /// Of membership.
    Member(Notice),
}

/// What a node asks its world for, in order. See [`ChainOutput`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ChainNodeOutput {
    /// Send this.
    Send(NodeId, ChainPacket),
    /// Write these bytes at this place of persistent memory and flush them, then say [`ChainNode::persisted`].
    Write(u64, u64, Vec<u8>),
    /// Tell the client.
    Reply(ChainReply),
}

/// One node of a chain.
#[derive(Clone, Debug)]
pub struct ChainNode {
    chain: Chain,
    member: Membership,
    out: std::collections::VecDeque<ChainNodeOutput>,
    lost: bool,
    patience: Patience,
}

impl ChainNode {
    /// Starts a node with its persistent memory as it was found. Memory that was never used is that of a node that takes part
    /// for the first time, if the others say so too; otherwise what it held has been lost.
    pub fn new(config: ChainConfig, now: Time, image: &[u8]) -> Self {
        Self::with_damage(config, now, image, false)
    }

    /// The same, if what was found may lack something that was durable.
    pub fn with_damage(config: ChainConfig, now: Time, image: &[u8], damaged: bool) -> Self {
        let (id, nodes, timing) = (config.id, config.nodes, timing(&config));
        let mut chain = Chain::new(config, now, image);
        if damaged && !chain.is_damaged() {
            chain.damage();
        }
        let durable = chain.found().unwrap_or_default();
        let status = match (chain.found(), durable.view.epoch) {
            _ if chain.is_damaged() => Standing::Damaged,
            (None, _) => Standing::New,
            (_, 0) => Standing::Starting,
            _ => Standing::Joining,
        };
        let member = Membership::new(now, id, nodes, timing, durable, status);
        let patience = Patience::new(STUCK, now);
        let mut node = Self { chain, member, out: Default::default(), lost: false, patience };
        node.pump(now);
        node
    }

    /// The replica's state, to look at.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The newest view that it knows.
    pub fn view(&self) -> View {
        self.member.view()
    }

    /// Views that may follow, as far as it has a part in that.
    pub fn pending(&self) -> impl Iterator<Item = View> {
        self.member.pending()
    }

    /// What it says of itself to others.
    pub fn standing(&self) -> Standing {
        self.member.status()
    }

    /// Whether the other nodes know of things that its memory must have held, and does not, though it looks whole.
    pub fn has_lost_its_memory(&self) -> bool {
        self.lost
    }

    /// Whether its disk is full. While any member's is, no transactions are taken that write.
    pub fn set_full(&mut self, now: &Now, full: bool) {
        self.member.set_full(full);
        self.pump(now.time());
    }

    /// Members and learners whose disks are full, as far as is known.
    pub fn full(&self) -> NodeSet {
        self.member.full()
    }

    /// Its state in a few words, for people.
    pub fn describe(&self) -> String {
        format!("{}; {}", self.member.describe(), self.chain.describe())
    }

    /// Takes a client's request.
    pub fn submit(&mut self, now: &Now, request: ChainRequest) {
        self.chain.submit(now.time(), request);
        self.pump(now.time());
    }

    /// Takes a packet.
    pub fn handle(&mut self, now: &Now, from: NodeId, packet: ChainPacket) {
        match packet {
            ChainPacket::Chain(epoch, message) => self.chain.handle(now.time(), from, epoch, message),
            // An answer is heard as a beat is.
            ChainPacket::Member(_) if self.patience.is_over() => {}
            ChainPacket::Member(notice) => self.member.handle(now.time(), from, notice),
        }
        self.pump(now.time());
    }

    /// All writes up to this token are durable.
    pub fn persisted(&mut self, now: &Now, token: u64) {
        self.patience.begin(now.time());
        self.chain.persisted(now.time(), token);
        self.pump(now.time());
    }

    /// When [`ChainNode::timeout`] is due.
    pub fn next_timeout(&self) -> Time {
        let member = if self.patience.is_over() { Time::MAX } else { self.member.next_timeout() };
        self.chain.next_timeout().min(member)
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: &Now) {
        let now = now.time();
        self.chain.timeout(now);
        // A full disk has a rule of its own.
        let waits = self.chain.under_way() > 0 && !self.chain.full;
        self.patience.look(now, waits, || self.member.is_spare());
        // Who says nothing is suspected.
        if !self.patience.is_over() {
            self.member.timeout(now);
        }
        self.pump(now);
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<ChainNodeOutput> {
        self.out.pop_front()
    }

    fn pump(&mut self, now: Time) {
        loop {
            if let Some(asked) = self.member.poll() {
                self.member_asks(now, asked);
            } else if let Some(asked) = self.chain.poll() {
                match asked {
                    ChainOutput::Send(to, epoch, message) => {
                        self.out.push_back(ChainNodeOutput::Send(to, ChainPacket::Chain(epoch, message)));
                    }
                    ChainOutput::Write(token, at, bytes) => {
                        self.out.push_back(ChainNodeOutput::Write(token, at, bytes))
                    }
                    ChainOutput::Reply(reply) => self.out.push_back(ChainNodeOutput::Reply(reply)),
                    ChainOutput::Kept(number) => self.member.persisted(now, number),
                }
            } else {
                break;
            }
            if let Some(status) = self.chain.status() {
                self.member.set_status(status);
            }
        }
        match self.chain.status() {
            Some(status) => self.member.set_status(status),
            None if self.chain.is_damaged() && self.member.status() != Standing::Damaged => {
                self.lost = true;
                self.member.set_status(Standing::Damaged);
            }
            None => {}
        }
        self.chain.set_full(self.member.full());
    }

    fn member_asks(&mut self, now: Time, asked: MemberOutput) {
        match asked {
            MemberOutput::Send(to, notice) => {
                self.out.push_back(ChainNodeOutput::Send(to, ChainPacket::Member(notice)))
            }
            MemberOutput::Persist(number, durable) => self.chain.keep(number, durable),
            MemberOutput::Lease(until) => self.chain.set_lease(now, until),
            MemberOutput::Forgot => {
                self.lost = true;
                self.chain.damage();
            }
            MemberOutput::Install(view) => {
                self.chain.install(now, view);
                if self.chain.status().is_none() && self.member.astray() {
                    // It has forgotten that it had caught up.
                    self.chain.damage();
                }
            }
        }
    }
}

fn timing(config: &ChainConfig) -> Timing {
    let drift = config.lease / 1_000_000 * u64::from(config.drift_ppm) * 3;
    Timing {
        beat: config.lease / 5,
        lease: config.lease,
        term: config.lease + drift + 1000,
        suspect: config.suspect,
        // Each of the last members has all that was answered.
        recover: Some(20 * config.suspect),
    }
}
