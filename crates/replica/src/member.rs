//! Membership: epochs agreed by a majority, and the leases under which members serve reads.
//!
//! Each epoch's view is one instance of single-decree Paxos among all nodes of the cluster, members of the view or not
//! ([`ballots`]); the instance of epoch e + 1 begins when e is decided. A majority of nodes must be up for the view to
//! change, and any one member suffices to go on.
//!
//! A member holds a lease while a majority has lately answered its beats ([`leases`]); since two majorities meet, a view
//! without a node is decided only when its lease has run out. How a node begins, [`first`] says, and which view it would
//! have, [`desire`].
//!
//! What was promised and accepted is durable before anyone hears of it.

mod ballots;
mod desire;
mod first;
mod leases;
mod terms;

use std::collections::{BTreeMap, VecDeque};

use crate::Time;
use crate::ddp::View;
use crate::types::{NodeId, NodeSet};

use ballots::Proposal;
pub use terms::{Ballot, Durable, MemberOutput, Mutation, Notice, Standing, Timing};

/// What is done when something is durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Then {
    Send(NodeId, Notice),
    /// Phase 1 of the ballot.
    Prepare(Ballot),
    Install(View),
    /// At the first start.
    Start,
    Nothing,
}

/// What is known of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Peer {
    /// When it was last heard.
    heard: Time,
    /// What it said of itself, and in which epoch, and whether its disk is full.
    said: Standing,
    epoch: u64,
    full: bool,
    /// Until when this node has promised not to leave it out.
    granted: Time,
    /// The newest beat of mine that it answered.
    answered: Option<Time>,
}

/// One node's share of membership.
///
/// Times are by the node's own clock, which goes on from life to life, or else messages do not outlive a life: answers to
/// what was sent in a former life are told by their times, or do not come.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Membership {
    me: NodeId,
    nodes: NodeSet,
    timing: Timing,
    now: Time,
    booted: Time,
    durable: Durable,
    status: Standing,
    /// Since when.
    since: Time,
    /// The view that `status` speaks of; the newest one may not be durable here yet.
    installed: u64,
    /// By number, those too that are no nodes of the cluster.
    peers: Vec<Peer>,
    /// At the first start and with a damaged log: the epochs that others knew since then, and what they said of themselves.
    newest: BTreeMap<NodeId, (u64, Standing)>,
    /// Whose beats are not answered, until when: somebody wants to leave them out.
    barred: (NodeSet, Time),
    beat_at: Time,
    wanted_since: Option<Time>,
    proposal: Option<Proposal>,
    round: u64,
    next_persist: u64,
    after: VecDeque<(u64, Then)>,
    out: VecDeque<MemberOutput>,
    mutation: Option<Mutation>,
}

impl Peer {
    fn unheard(now: Time) -> Self {
        Self { heard: now, said: Standing::Serving, epoch: 0, full: false, granted: 0, answered: None }
    }
}

impl Membership {
    /// A node as its log has it; `status` says whether it comes from a crash, or where the first start was.
    pub fn new(now: Time, me: NodeId, nodes: NodeSet, timing: Timing, durable: Durable, status: Standing) -> Self {
        let numbers = nodes.with(me).iter().last().map_or(0, |last| usize::from(last.0) + 1);
        Self {
            me,
            nodes,
            timing,
            now,
            booted: now,
            durable,
            status,
            since: now,
            installed: durable.view.epoch,
            peers: vec![Peer::unheard(now); numbers],
            newest: BTreeMap::new(),
            barred: (NodeSet::EMPTY, 0),
            beat_at: now,
            wanted_since: None,
            proposal: None,
            round: durable.promised.round,
            next_persist: 0,
            after: VecDeque::new(),
            out: VecDeque::new(),
            mutation: None,
        }
    }

    /// With a seeded fault; for checks only.
    pub fn mutated(mut self, mutation: Option<Mutation>) -> Self {
        self.mutation = mutation;
        self
    }

    /// Forgets when others were heard and what they said of themselves. For checks in which all suspect all at once, so that
    /// nobody asks.
    pub fn forget_others(&mut self) {
        self.peers.fill(Peer::unheard(self.booted));
    }

    fn mutant(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The newest view that is known; epoch 0 before the first.
    pub fn view(&self) -> View {
        self.durable.view
    }

    /// What this node says of itself.
    pub fn status(&self) -> Standing {
        self.status
    }

    /// What it knows and does, for people.
    pub fn describe(&self) -> String {
        let Self { status, installed, durable, .. } = self;
        let Durable { view, promised: Ballot { round, node }, accepted } = durable;
        let accepted = accepted
            .map_or("nothing".into(), |(ballot, view)| format!("{view} by {} in round {}", ballot.node, ballot.round));
        let proposal = self.proposal.as_ref().map_or("nothing".into(), |p| format!("{} with {}", p.view, p.yes));
        format!(
            "{status:?} in {view} (installed {installed}), heard {}, promised {node} round {round}, accepted {accepted}, \
             proposes {proposal}, wants {:?}",
            self.alive(),
            self.desired().map(|(view, _)| view.to_string())
        )
    }

    /// Views that this node has accepted or proposes, and that may be decided.
    pub fn pending(&self) -> impl Iterator<Item = View> {
        self.durable.accepted.map(|(_, view)| view).into_iter().chain(self.proposal.as_ref().map(|p| p.view))
    }

    /// What must survive a crash, as it is now.
    pub fn durable(&self) -> Durable {
        self.durable
    }

    /// Is it a member by the newest view, but was only learning?
    pub fn astray(&self) -> bool {
        self.installed == self.durable.view.epoch
            && self.durable.view.members.has(self.me)
            && matches!(self.status, Standing::Learning | Standing::Ready)
    }

    /// What this node says of itself from now on.
    pub fn set_status(&mut self, status: Standing) {
        if status != self.status {
            self.status = status;
            self.beat_at = self.now;
            self.since = self.now;
            self.newest.clear();
        }
    }

    /// This node's disk is full, or no more: others hear of it at once.
    pub fn set_full(&mut self, full: bool) {
        if std::mem::replace(&mut self.peer(self.me).full, full) != full {
            self.beat_at = self.now;
        }
    }

    /// Members and learners of the newest view whose disks are full, as far as they have said.
    pub fn full(&self) -> NodeSet {
        let full = |node: &NodeId| self.peers.get(usize::from(node.0)).is_some_and(|peer| peer.full);
        self.durable.view.all().iter().filter(full).fold(NodeSet::EMPTY, NodeSet::with)
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<MemberOutput> {
        self.out.pop_front()
    }

    /// When [`Membership::timeout`] is next due.
    pub fn next_timeout(&self) -> Time {
        self.beat_at
    }

    /// Whoever stood still has heard nobody meanwhile, and holds that against nobody: it listens first.
    fn passes(&mut self, now: Time) {
        let still = now.saturating_sub(self.now);
        if still > self.timing.suspect / 2 {
            self.peers.iter_mut().for_each(|peer| peer.heard += still);
        }
        self.now = now;
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        self.passes(now);
        if now < self.beat_at {
            return;
        }
        self.beat_at = now + self.timing.beat;
        // With a damaged log it has no place in any epoch before it knows where it may have one.
        let epoch = if self.lost() { 0 } else { self.installed };
        let full = self.peer(self.me).full;
        for node in self.nodes.without(self.me).iter() {
            self.send(node, Notice::Beat(now, epoch, self.status, full));
        }
        self.beat_itself();
        self.look_first();
        self.consider();
    }

    /// What was asked to be made durable under this number is.
    pub fn persisted(&mut self, now: Time, number: u64) {
        self.passes(now);
        while let Some((_, then)) = self.after.pop_front_if(|(first, _)| *first <= number) {
            match then {
                Then::Send(to, notice) => self.send(to, notice),
                Then::Prepare(ballot) => self.prepares(ballot),
                Then::Install(view) => self.enter(view),
                Then::Start => self.started(),
                Then::Nothing => {}
            }
        }
        if self.after.is_empty() {
            // So that equal states look the same.
            self.next_persist = 0;
        }
    }

    /// Takes a notice from `from`.
    pub fn handle(&mut self, now: Time, from: NodeId, notice: Notice) {
        self.passes(now);
        if !self.nodes.has(from) || !self.sensible(from, notice) {
            return;
        }
        self.peer(from).heard = now;
        let epoch = self.durable.view.epoch;
        match notice {
            Notice::Beat(sent, theirs, status, full) => {
                self.peer(from).full = full;
                self.beat(from, sent, theirs, status);
            }
            Notice::Grant(sent) => self.granted(from, sent),
            Notice::Prepare(base, ballot, _) => {
                self.learn(base);
                if base.epoch == self.durable.view.epoch {
                    self.prepare(from, ballot, notice);
                } else {
                    self.send(from, Notice::Decided(self.durable.view));
                }
            }
            Notice::Promise(next, ballot, accepted) if next == epoch + 1 => self.promise(from, ballot, accepted),
            Notice::Reject(next, ballot) if next == epoch + 1 => self.round = self.round.max(ballot.round),
            Notice::Accept(ballot, view) if view.epoch == epoch + 1 => self.accept(from, ballot, view),
            Notice::Accept(_, view) if view.epoch <= epoch => self.send(from, Notice::Decided(self.durable.view)),
            Notice::Accepted(ballot, view) if view.epoch == epoch + 1 => self.accepted(from, ballot, view),
            Notice::Decided(view) => self.learn(view),
            Notice::Newest(sent, epoch, theirs) => self.answered(from, sent, epoch, theirs),
            _ => {}
        }
    }

    /// Could the notice come from a node like this one?
    fn sensible(&self, from: NodeId, notice: Notice) -> bool {
        // So that one can be added to it.
        let number = |number: u64| number < u64::MAX / 2;
        let view = |view: View| number(view.epoch) && self.nodes.covers(view.all()) && !view.members.is_empty();
        // A ballot is used by the node whose it is.
        let theirs = |ballot: Ballot| number(ballot.round) && ballot.node == from;
        match notice {
            Notice::Beat(_, epoch, ..) => number(epoch),
            Notice::Grant(sent) => sent <= self.now,
            Notice::Prepare(base, ballot, _) => view(base) && theirs(ballot),
            Notice::Promise(epoch, ballot, accepted) => {
                number(epoch) && number(ballot.round) && accepted.is_none_or(|(_, accepted)| view(accepted))
            }
            Notice::Reject(epoch, ballot) => number(epoch) && number(ballot.round),
            Notice::Accept(ballot, next) => theirs(ballot) && view(next),
            Notice::Accepted(ballot, next) => number(ballot.round) && view(next),
            Notice::Newest(sent, epoch, _) => sent <= self.now && number(epoch),
            Notice::Decided(decided) => view(decided),
        }
    }

    fn known(&self, node: NodeId) -> Option<&Peer> {
        self.peers.get(usize::from(node.0))
    }

    /// Of a node of the cluster.
    fn peer(&mut self, node: NodeId) -> &mut Peer {
        &mut self.peers[usize::from(node.0)]
    }

    fn majority(&self) -> usize {
        self.nodes.len() as usize / 2 + 1
    }

    fn send(&mut self, to: NodeId, notice: Notice) {
        if to == self.me {
            self.handle(self.now, to, notice);
        } else {
            self.out.push_back(MemberOutput::Send(to, notice));
        }
    }

    fn send_all(&mut self, notice: Notice) {
        for node in self.nodes.iter() {
            self.send(node, notice);
        }
    }

    /// Has the state made durable, and something done after that.
    fn persist_then(&mut self, then: Then) {
        let number = self.next_persist;
        self.next_persist += 1;
        self.after.push_back((number, then));
        self.out.push_back(MemberOutput::Persist(number, self.durable));
    }

    /// The view is durable.
    fn enter(&mut self, view: View) {
        self.installed = view.epoch;
        if self.may_enter(view) {
            self.out.push_back(MemberOutput::Install(view));
        }
    }
}
