//! Membership: epochs agreed by a majority, and the leases under which members serve reads.
//!
//! Each epoch's view is one instance of single-decree Paxos (Lamport, "Paxos Made Simple") among all nodes of the
//! cluster, members of the view or not; the instance of epoch e + 1 begins when e is decided. A majority of nodes must
//! be up for the view to change, and any one member suffices to go on.
//!
//! A member holds a lease while a majority has lately answered its beats. Whoever answers promises not to accept a view
//! without that member before the answer's term is over, by its own clock, with an allowance for drift; since two
//! majorities meet, a view without a node is decided only when its lease has run out.
//!
//! What was promised and accepted is durable before anyone hears of it.

use std::collections::{BTreeMap, VecDeque};

use crate::Time;
use crate::ddp::View;
use crate::types::{NodeId, NodeSet};

/// A proposal's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ballot {
    /// Counts up.
    pub round: u64,
    /// Who proposes.
    pub node: NodeId,
}

/// What a node says of itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Standing {
    /// It comes from a crash with its log whole.
    Joining,
    /// It comes from a crash, and its log is damaged.
    Damaged,
    /// It is a learner that has not everything yet.
    Learning,
    /// It is a learner that has everything.
    Ready,
    /// It takes part in the merge of logs after the crash of all.
    Merging,
    /// It is a member.
    Serving,
}

/// What nodes say to each other about membership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Notice {
    /// I live; I ask for a lease from the time of sending, by my clock.
    Beat(Time, u64, Standing),
    /// The answer to the beat of that time.
    Grant(Time),
    /// Phase 1 for the epoch after that of the decided view, by someone who wants to leave these out.
    Prepare(View, Ballot, NodeSet),
    /// The answer for the epoch, with what was accepted before.
    Promise(u64, Ballot, Option<(Ballot, View)>),
    /// No: a higher one has been promised for the epoch.
    Reject(u64, Ballot),
    /// Phase 2.
    Accept(Ballot, View),
    /// The answer for the epoch.
    Accepted(u64, Ballot),
    /// The view has been decided.
    Decided(View),
    /// The answer to the beat of that time by a node with a damaged log: the newest epoch that is known.
    Newest(Time, u64),
}

/// What must survive a crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Durable {
    /// The newest decided view that is known.
    pub view: View,
    /// For the epoch after it, the highest ballot promised.
    pub promised: Ballot,
    /// For the epoch after it, what was accepted.
    pub accepted: Option<(Ballot, View)>,
}

/// What membership asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemberOutput {
    /// Send this.
    Send(NodeId, Notice),
    /// Make this durable, then say [`Membership::persisted`] with the number.
    Persist(u64, Durable),
    /// Enter this view.
    Install(View),
    /// Reads may be served until then.
    Lease(Time),
}

/// Times (ns), and what the model allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timing {
    /// Between two beats, and before something is asked again.
    pub beat: Time,
    /// A lease's length.
    pub lease: Time,
    /// For how long an answered beat binds: the lease with an allowance for drift.
    pub term: Time,
    /// A node silent for this long is suspected.
    pub suspect: Time,
    /// After the crash of all, some of the last members' logs are enough after this long; otherwise all are needed.
    pub recover: Option<Time>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Proposal {
    ballot: Ballot,
    view: View,
    accepting: bool,
    yes: NodeSet,
    /// The highest accepted that the promises told of.
    best: Option<Ballot>,
    since: Time,
    asked: Time,
}

/// What is known of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Peer {
    /// When it was last heard.
    heard: Time,
    /// What it said of itself, and in which epoch.
    said: Standing,
    epoch: u64,
    /// Until when this node has promised not to leave it out.
    granted: Time,
    /// The newest beat of mine that it answered.
    answered: Option<Time>,
}

/// One node's share of membership.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Membership {
    me: NodeId,
    nodes: NodeSet,
    timing: Timing,
    now: Time,
    booted: Time,
    durable: Durable,
    status: Standing,
    /// The view that `status` speaks of; the newest one may not be durable here yet.
    installed: u64,
    /// By number, those too that are no nodes of the cluster.
    peers: Vec<Peer>,
    /// With a damaged log: since when that is known, and the newest epochs that others knew after that.
    damaged_at: Time,
    newest: BTreeMap<NodeId, u64>,
    /// Whose beats are not answered, until when: somebody wants to leave them out.
    barred: (NodeSet, Time),
    beat_at: Time,
    wanted_since: Option<Time>,
    proposal: Option<Proposal>,
    round: u64,
    next_persist: u64,
    /// What is sent, or done, when the number is durable.
    after: VecDeque<(u64, MemberOutput)>,
    out: VecDeque<MemberOutput>,
}

impl Membership {
    /// A node as its log has it; `status` says whether it comes from a crash.
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
            installed: durable.view.epoch,
            peers: vec![Peer { heard: now, said: Standing::Serving, epoch: 0, granted: 0, answered: None }; numbers],
            damaged_at: now,
            newest: BTreeMap::new(),
            barred: (NodeSet::EMPTY, 0),
            beat_at: now,
            wanted_since: None,
            proposal: None,
            round: durable.promised.round,
            next_persist: 0,
            after: VecDeque::new(),
            out: VecDeque::new(),
        }
    }

    /// Takes part for the first time: enters the first view once the log says so. Before that a crash would have it take
    /// part for the first time again, without what it has acknowledged.
    pub fn begin(&mut self) {
        self.persist_then(MemberOutput::Install(self.durable.view));
    }

    /// The newest view that is known.
    pub fn view(&self) -> View {
        self.durable.view
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
            self.damaged_at = self.now;
            self.newest.clear();
        }
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<MemberOutput> {
        self.out.pop_front()
    }

    /// When [`Membership::timeout`] is next due.
    pub fn next_timeout(&self) -> Time {
        self.beat_at
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        self.now = now;
        if now < self.beat_at {
            return;
        }
        self.beat_at = now + self.timing.beat;
        // With a damaged log it has no place in any epoch before it knows where it may have one.
        let lost = self.status == Standing::Damaged && self.newest.len() < self.majority();
        let epoch = if lost { 0 } else { self.installed };
        for node in self.nodes.without(self.me).iter() {
            self.send(node, Notice::Beat(now, epoch, self.status));
        }
        self.peer(self.me).answered = Some(now);
        self.renew();
        self.consider();
    }

    /// What was asked to be made durable under this number is.
    pub fn persisted(&mut self, now: Time, number: u64) {
        self.now = now;
        while let Some(&(first, output)) = self.after.front()
            && first <= number
        {
            self.after.pop_front();
            match output {
                MemberOutput::Send(to, notice) => self.send(to, notice),
                MemberOutput::Install(view) => {
                    self.installed = view.epoch;
                    if self.may_enter(view) {
                        self.out.push_back(output);
                    }
                }
                other => self.out.push_back(other),
            }
        }
    }

    /// Takes a notice from `from`.
    pub fn handle(&mut self, now: Time, from: NodeId, notice: Notice) {
        self.now = now;
        if !self.nodes.has(from) || !self.sensible(notice) {
            return;
        }
        self.peer(from).heard = now;
        let epoch = self.durable.view.epoch;
        match notice {
            Notice::Beat(sent, theirs, status) => self.beat(from, sent, theirs, status),
            Notice::Grant(sent) => {
                let answered = &mut self.peer(from).answered;
                *answered = Some(sent).max(*answered);
                self.renew();
            }
            Notice::Prepare(base, ballot, out) => {
                self.learn(base);
                if base.epoch == self.durable.view.epoch {
                    self.prepare(from, ballot, out);
                } else {
                    self.send(from, Notice::Decided(self.durable.view));
                }
            }
            Notice::Promise(next, ballot, accepted) if next == epoch + 1 => self.promise(from, ballot, accepted),
            Notice::Reject(next, ballot) if next == epoch + 1 => self.round = self.round.max(ballot.round),
            Notice::Accept(ballot, view) if view.epoch == epoch + 1 => self.accept(from, ballot, view),
            Notice::Accept(_, view) if view.epoch <= epoch => self.send(from, Notice::Decided(self.durable.view)),
            Notice::Accepted(next, ballot) if next == epoch + 1 => self.accepted(from, ballot),
            Notice::Decided(view) => self.learn(view),
            Notice::Newest(sent, epoch) if sent >= self.damaged_at && self.newest.len() < self.majority() => {
                self.newest.entry(from).or_insert(epoch);
            }
            _ => {}
        }
    }

    /// Could the notice come from a node like this one?
    fn sensible(&self, notice: Notice) -> bool {
        // So that one can be added to it.
        let number = |number: u64| number < u64::MAX / 2;
        let view = |view: View| number(view.epoch) && self.nodes.covers(view.all()) && !view.members.is_empty();
        match notice {
            Notice::Beat(_, epoch, _) => number(epoch),
            Notice::Grant(sent) => sent <= self.now,
            Notice::Prepare(base, ballot, _) => view(base) && number(ballot.round),
            Notice::Promise(epoch, ballot, accepted) => {
                number(epoch) && number(ballot.round) && accepted.is_none_or(|(_, accepted)| view(accepted))
            }
            Notice::Reject(epoch, ballot) | Notice::Accepted(epoch, ballot) => number(epoch) && number(ballot.round),
            Notice::Newest(sent, epoch) => sent <= self.now && number(epoch),
            Notice::Accept(ballot, next) => number(ballot.round) && view(next),
            Notice::Decided(decided) => view(decided),
        }
    }

    fn beat(&mut self, from: NodeId, sent: Time, theirs: u64, status: Standing) {
        let view = self.durable.view;
        // What it said before it knew the view says nothing about its place in it.
        if theirs >= view.epoch || status == Standing::Damaged {
            let peer = self.peer(from);
            (peer.said, peer.epoch) = (status, theirs);
        }
        if status == Standing::Damaged && self.status != Standing::Damaged {
            self.send(from, Notice::Newest(sent, view.epoch));
        }
        if theirs < view.epoch {
            self.send(from, Notice::Decided(view));
        }
        let left_out = self.durable.accepted.is_some_and(|(_, next)| !next.members.has(from));
        let barred = self.barred.0.has(from) && self.now < self.barred.1;
        // Whoever may have forgotten a view must not let those serve whom it leaves out.
        let unsure = self.status == Standing::Damaged;
        let serving = theirs == view.epoch && view.members.has(from) && status == Standing::Serving;
        if serving && !left_out && !barred && !unsure {
            self.peer(from).granted = self.now + self.timing.term;
            self.send(from, Notice::Grant(sent));
        }
    }

    /// The lease lasts from the beat that the slowest of the fastest majority has answered.
    fn renew(&mut self) {
        if self.status != Standing::Serving {
            return;
        }
        let mut answered = [None; 64];
        let numbers = self.peers.len();
        answered.iter_mut().zip(&self.peers).for_each(|(slot, peer)| *slot = peer.answered);
        let (_, sent, _) = answered[..numbers].select_nth_unstable(numbers - self.majority());
        if let Some(sent) = *sent {
            self.out.push_back(MemberOutput::Lease(sent + self.timing.lease));
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

    /// Has the state made durable, and `output` done after that.
    fn persist_then(&mut self, output: MemberOutput) {
        let number = self.next_persist;
        self.next_persist += 1;
        self.after.push_back((number, output));
        self.out.push_back(MemberOutput::Persist(number, self.durable));
    }

    fn learn(&mut self, view: View) {
        if view.epoch <= self.durable.view.epoch {
            return;
        }
        self.durable = Durable { view, promised: Ballot::default(), accepted: None };
        self.proposal = None;
        self.wanted_since = None;
        self.barred.0 = NodeSet::EMPTY;
        for node in view.members.iter().filter(|_| view.recovery) {
            self.peer(node).said = Standing::Merging;
        }
        self.round = 0;
        self.persist_then(MemberOutput::Install(view));
    }

    /// A node with a damaged log may have forgotten its place in a view, and what it promised and accepted for the next
    /// one. The newest view that it knew was accepted by a majority, of whom each knew the one before; so it enters none
    /// before the second after the newest that a majority of others knows.
    fn may_enter(&self, view: View) -> bool {
        let known = self.newest.values().max().filter(|_| self.newest.len() >= self.majority());
        self.status != Standing::Damaged || known.is_some_and(|&known| view.epoch >= known + 2)
    }

    fn prepare(&mut self, from: NodeId, ballot: Ballot, out: NodeSet) {
        if self.status == Standing::Damaged {
            // It may have forgotten what it promised.
            return;
        }
        let next = self.durable.view.epoch + 1;
        if ballot < self.durable.promised {
            return self.send(from, Notice::Reject(next, self.durable.promised));
        }
        // Leases of those that are to be left out are not renewed for a while, so that they run out.
        self.barred = (out.without(self.me), self.now + 2 * self.timing.suspect);
        self.durable.promised = ballot;
        self.persist_then(MemberOutput::Send(from, Notice::Promise(next, ballot, self.durable.accepted)));
    }

    fn accept(&mut self, from: NodeId, ballot: Ballot, view: View) {
        if self.status == Standing::Damaged {
            return;
        }
        if ballot < self.durable.promised {
            return self.send(from, Notice::Reject(view.epoch, self.durable.promised));
        }
        let left_out = self.durable.view.members.minus(view.members);
        let bound = |node: NodeId| self.known(node).is_some_and(|peer| self.now < peer.granted);
        let since_boot = self.now.saturating_sub(self.booted);
        // After a restart nobody knows what was granted before it.
        if left_out.iter().any(bound) || !left_out.is_empty() && since_boot < self.timing.term {
            // The view may be one that was accepted before, and leave out others than its proposer asked to let go.
            let barred = self.barred.0.or(left_out).without(self.me);
            self.barred = (barred, self.now + 2 * self.timing.suspect);
            return;
        }
        self.durable.promised = ballot;
        self.durable.accepted = Some((ballot, view));
        self.persist_then(MemberOutput::Send(from, Notice::Accepted(view.epoch, ballot)));
    }

    fn promise(&mut self, from: NodeId, ballot: Ballot, accepted: Option<(Ballot, View)>) {
        let majority = self.majority();
        let Some(proposal) = self.proposal.as_mut().filter(|p| p.ballot == ballot && !p.accepting) else { return };
        proposal.yes = proposal.yes.with(from);
        if let Some((number, view)) = accepted
            && proposal.best.is_none_or(|best| number > best)
        {
            proposal.best = Some(number);
            proposal.view = view;
        }
        if proposal.yes.len() as usize >= majority {
            proposal.accepting = true;
            proposal.yes = NodeSet::EMPTY;
            let view = proposal.view;
            self.send_all(Notice::Accept(ballot, view));
        }
    }

    fn accepted(&mut self, from: NodeId, ballot: Ballot) {
        let majority = self.majority();
        let Some(proposal) = self.proposal.as_mut().filter(|p| p.ballot == ballot && p.accepting) else { return };
        proposal.yes = proposal.yes.with(from);
        if proposal.yes.len() as usize >= majority {
            let view = proposal.view;
            self.send_all(Notice::Decided(view));
        }
    }

    /// Looks whether the view should change, and by whom.
    fn consider(&mut self) {
        if self.installed < self.durable.view.epoch {
            return;
        }
        let Some((view, rank)) = self.desired().or_else(|| self.begun()) else {
            self.wanted_since = None;
            self.proposal = None;
            return;
        };
        let since = *self.wanted_since.get_or_insert(self.now);
        if let Some(proposal) = &mut self.proposal
            && self.now < proposal.since + 2 * self.timing.suspect + u64::from(rank) * self.timing.beat
        {
            let (ballot, accepting, mut to) = (proposal.ballot, proposal.accepting, self.nodes.minus(proposal.yes));
            if self.now < proposal.asked + self.timing.beat {
                to = NodeSet::EMPTY;
            } else {
                proposal.asked = self.now;
            }
            let base = self.durable.view;
            let ask = if accepting {
                Notice::Accept(ballot, proposal.view)
            } else {
                Notice::Prepare(base, ballot, base.members.minus(proposal.view.members))
            };
            to.iter().for_each(|node| self.send(node, ask));
            return;
        }
        // One after the other, so that proposals do not fight.
        if self.now < since + u64::from(rank) * self.timing.suspect {
            return;
        }
        self.round = self.round.max(self.durable.promised.round) + 1;
        let ballot = Ballot { round: self.round, node: self.me };
        let yes = NodeSet::EMPTY;
        let (since, asked) = (self.now, self.now);
        self.proposal = Some(Proposal { ballot, view, accepting: false, yes, best: None, since, asked });
        let base = self.durable.view;
        self.send_all(Notice::Prepare(base, ballot, base.members.minus(view.members)));
    }

    fn alive(&self) -> NodeSet {
        let fresh = |node: NodeId| self.known(node).is_some_and(|peer| self.now < peer.heard + self.timing.suspect);
        self.nodes.iter().filter(|&node| fresh(node)).fold(NodeSet::one(self.me), NodeSet::with)
    }

    fn are(&self, nodes: NodeSet, wanted: impl Fn(Standing) -> bool) -> NodeSet {
        let status =
            |node: NodeId| if node == self.me { Some(self.status) } else { self.known(node).map(|peer| peer.said) };
        nodes.iter().filter(|&node| status(node).is_some_and(&wanted)).fold(NodeSet::EMPTY, NodeSet::with)
    }

    /// Those of `nodes` that have said so in this epoch.
    fn are_now(&self, nodes: NodeSet, wanted: impl Fn(Standing) -> bool) -> NodeSet {
        let epoch = self.durable.view.epoch;
        let current = |node: NodeId| node == self.me || self.known(node).is_some_and(|peer| peer.epoch == epoch);
        self.are(nodes, wanted).iter().filter(|&node| current(node)).fold(NodeSet::EMPTY, NodeSet::with)
    }

    /// The view that should follow, and how many should propose it before this node.
    fn desired(&self) -> Option<(View, u32)> {
        let base = self.durable.view;
        let alive = self.alive();
        if (alive.len() as usize) < self.majority() {
            return None;
        }
        let crashed = |status| matches!(status, Standing::Joining | Standing::Damaged);
        let stay = self.are(base.members.and(alive), |status| !crashed(status));
        let (members, learners, recovery) = if stay.is_empty() {
            (self.recoverable(alive)?, NodeSet::EMPTY, true)
        } else if self.status == Standing::Merging {
            // As long as nobody serves, what a member has may be in its log alone: it is waited for as at first.
            let served = !self.are(stay, |status| status == Standing::Serving).is_empty();
            (if served { stay } else { self.recoverable(alive)? }, NodeSet::EMPTY, true)
        } else {
            let ready = self.are_now(base.learners.and(alive), |status| status == Standing::Ready);
            let members = stay.or(ready);
            (members, alive.minus(members), false)
        };
        let proposers = if recovery && stay.is_empty() { members } else { stay };
        let view = View { epoch: base.epoch + 1, members, learners, recovery };
        // A learner that has crashed has no place until a view gives it one anew.
        let back = !self.are(view.members, crashed).or(self.are_now(view.learners, crashed)).is_empty();
        let changes = (view.members, view.learners) != (base.members, base.learners) || back;
        (changes && proposers.has(self.me)).then(|| (view, self.rank(proposers)))
    }

    /// The accepted view, if there is one: even if nobody wants it any more it must be decided, since leases are refused
    /// to those whom it leaves out.
    fn begun(&self) -> Option<(View, u32)> {
        let (_, view) = self.durable.accepted?;
        let able = self.status != Standing::Damaged && self.alive().len() as usize >= self.majority();
        able.then(|| (view, self.rank(self.nodes)))
    }

    /// How many of `set` come before this node.
    fn rank(&self, set: NodeSet) -> u32 {
        set.iter().take_while(|&node| node != self.me).count() as u32
    }

    /// After the crash of all members: whose logs together are enough.
    fn recoverable(&self, alive: NodeSet) -> Option<NodeSet> {
        let members = self.durable.view.members;
        let whole = |status| matches!(status, Standing::Joining | Standing::Merging);
        let intact = self.are(members.and(alive), whole);
        let waited = self.now.saturating_sub(self.booted);
        let enough = alive.covers(members) || self.timing.recover.is_some_and(|wait| waited >= wait);
        (enough && !intact.is_empty()).then_some(intact)
    }
}
