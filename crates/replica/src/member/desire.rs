//! Which view a node would have follow, and when it proposes it.

use super::ballots::Stage;
use super::{Membership, Notice, Standing};
use crate::ddp::View;
use crate::types::{NodeId, NodeSet};

impl Membership {
    /// Looks whether the view should change, and by whom.
    pub(super) fn consider(&mut self) {
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
            let (ballot, stage, view, yes) = (proposal.ballot, proposal.stage, proposal.view, proposal.yes);
            if self.now < proposal.asked + self.timing.beat {
                return;
            }
            proposal.asked = self.now;
            let (ask, to) = match stage {
                Stage::Begun => return,
                Stage::Preparing => (self.ask(ballot, view), self.nodes.without(self.me)),
                // It may have been bound itself when it was asked first.
                Stage::Accepting => (Notice::Accept(ballot, view), self.nodes),
            };
            to.minus(yes).iter().for_each(|node| self.send(node, ask));
            return;
        }
        // One after the other, so that proposals do not fight.
        if self.now >= since + u64::from(rank) * self.timing.suspect {
            self.propose(view);
        }
    }

    pub(super) fn alive(&self) -> NodeSet {
        let fresh = |node: NodeId| self.known(node).is_some_and(|peer| self.now < peer.heard + self.timing.suspect);
        self.nodes.iter().filter(|&node| fresh(node)).fold(NodeSet::one(self.me), NodeSet::with)
    }

    /// Can the others go on without this node, as far as it knows?
    pub fn is_spare(&self) -> bool {
        let (others, members) = (self.alive().without(self.me), self.durable.view.members);
        let stay = self.are(members.and(others), |status| !status.crashed());
        others.len() as usize >= self.majority() && (!members.has(self.me) || !stay.is_empty())
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
    pub(super) fn desired(&self) -> Option<(View, u32)> {
        let base = self.durable.view;
        let alive = self.alive();
        if (alive.len() as usize) < self.majority() {
            return None;
        }
        let stay = self.are(base.members.and(alive), |status| !status.crashed());
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
        let back =
            !self.are(view.members, Standing::crashed).or(self.are_now(view.learners, Standing::crashed)).is_empty();
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
