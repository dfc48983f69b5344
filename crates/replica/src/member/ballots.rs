//! Which view follows: single-decree Paxos (Lamport, "Paxos Made Simple"), an instance for each epoch.
//!
//! A proposer is its own acceptor, and no other than the rest: its promise and its acceptance count once they are durable.
//! Before its ballot is, nobody hears of it; so a ballot is used by one life of one node, for one view.

use super::{Ballot, Durable, Membership, Mutation, Notice, Standing, Then};
use crate::Time;
use crate::ddp::View;
use crate::types::{NodeId, NodeSet};

/// What a node proposes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Proposal {
    pub ballot: Ballot,
    pub view: View,
    pub stage: Stage,
    /// Who has said yes in this stage.
    pub yes: NodeSet,
    /// The highest accepted that the promises told of.
    best: Option<(Ballot, View)>,
    pub since: Time,
    pub asked: Time,
}

/// How far a proposal is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Stage {
    /// Its ballot is not durable yet.
    Begun,
    /// Phase 1.
    Preparing,
    /// Phase 2.
    Accepting,
}

impl Membership {
    /// Proposes a view for the next epoch; what was accepted before takes its place. [`Membership::timeout`] does so by
    /// itself; this is for checks that try what it may do at any moment.
    pub fn propose(&mut self, view: View) {
        let promised = self.durable.promised;
        self.round = self.round.max(promised.round) + 1;
        if self.mutant(Mutation::BallotAgain) && promised.node == self.me && promised.round > 0 {
            self.round = promised.round;
        }
        let ballot = Ballot { round: self.round, node: self.me };
        let (since, asked, yes) = (self.now, self.now, NodeSet::EMPTY);
        self.proposal = Some(Proposal { ballot, view, stage: Stage::Begun, yes, best: None, since, asked });
        if self.mutant(Mutation::EarlyPrepare) {
            // The promise to itself is one like the others', but these need not wait for it.
            self.proposal.iter_mut().for_each(|proposal| proposal.stage = Stage::Preparing);
            return self.send_all(self.ask(ballot, view));
        }
        self.durable.promised = ballot;
        self.persist_then(Then::Prepare(ballot));
    }

    /// The ballot that it proposes under, whether it is in phase 2, and who has said yes there.
    pub fn proposing(&self) -> Option<(Ballot, bool, NodeSet)> {
        self.proposal.as_ref().map(|proposal| (proposal.ballot, proposal.stage == Stage::Accepting, proposal.yes))
    }

    /// Its next ballot is above this round.
    pub fn round(&self) -> u64 {
        self.round.max(self.durable.promised.round)
    }

    /// Its ballot is durable: phase 1 begins.
    pub(super) fn prepares(&mut self, ballot: Ballot) {
        let begun = |p: &&mut Proposal| p.ballot == ballot && p.stage == Stage::Begun;
        let Some(proposal) = self.proposal.as_mut().filter(begun) else { return };
        if self.durable.promised != ballot {
            // It has promised a higher one meanwhile.
            self.proposal = None;
            return;
        }
        (proposal.stage, proposal.asked) = (Stage::Preparing, self.now);
        let view = proposal.view;
        let ask = self.ask(ballot, view);
        self.bar(ask);
        for node in self.nodes.without(self.me).iter() {
            self.send(node, ask);
        }
        self.promise(self.me, ballot, self.durable.accepted);
    }

    /// Phase 1's question for a view.
    pub(super) fn ask(&self, ballot: Ballot, view: View) -> Notice {
        let base = self.durable.view;
        Notice::Prepare(base, ballot, base.members.minus(view.members))
    }

    /// Leases of those that are to be left out are not renewed for a while, so that they run out.
    fn bar(&mut self, ask: Notice) {
        if let Notice::Prepare(_, _, out) = ask {
            self.barred = (out, self.now + 2 * self.timing.suspect);
        }
    }

    pub(super) fn prepare(&mut self, from: NodeId, ballot: Ballot, ask: Notice) {
        if !self.votes() {
            return;
        }
        let next = self.durable.view.epoch + 1;
        if ballot < self.durable.promised {
            return self.send(from, Notice::Reject(next, self.durable.promised));
        }
        self.bar(ask);
        let again = ballot == self.durable.promised;
        self.durable.promised = ballot;
        let accepted = self.durable.accepted.filter(|_| !self.mutant(Mutation::ForgetsAccepted));
        let promise = Notice::Promise(next, ballot, accepted);
        if self.mutant(Mutation::EarlyPromise) {
            self.persist_then(Then::Nothing);
            return self.send(from, promise);
        }
        self.say(from, promise, again);
    }

    /// Says something once it is durable, or again if it is: whoever asks before that hears it then.
    fn say(&mut self, to: NodeId, what: Notice, again: bool) {
        if !again {
            self.persist_then(Then::Send(to, what));
        } else if self.after.is_empty() {
            self.send(to, what);
        }
    }

    pub(super) fn accept(&mut self, from: NodeId, ballot: Ballot, view: View) {
        if !self.votes() {
            return;
        }
        if ballot < self.durable.promised && !self.mutant(Mutation::AcceptsOld) {
            return self.send(from, Notice::Reject(view.epoch, self.durable.promised));
        }
        if self.is_bound(view) {
            return;
        }
        let again = self.durable.accepted == Some((ballot, view));
        self.durable.promised = ballot;
        self.durable.accepted = Some((ballot, view));
        let accepted = Notice::Accepted(ballot, view);
        if self.mutant(Mutation::EarlyAccepted) {
            self.persist_then(Then::Nothing);
            return self.send(from, accepted);
        }
        self.say(from, accepted, again);
    }

    /// A node that may have forgotten what it promised casts no vote, and neither does one that has not begun.
    fn votes(&self) -> bool {
        !matches!(self.status, Standing::New | Standing::Starting | Standing::Damaged)
    }

    pub(super) fn promise(&mut self, from: NodeId, ballot: Ballot, accepted: Option<(Ballot, View)>) {
        let (majority, last, own) =
            (self.majority(), self.mutant(Mutation::TakesLast), self.mutant(Mutation::KeepsOwn));
        let preparing = |p: &&mut Proposal| p.ballot == ballot && p.stage == Stage::Preparing;
        let Some(proposal) = self.proposal.as_mut().filter(preparing) else { return };
        proposal.yes = proposal.yes.with(from);
        if let Some((_, view)) = accepted
            && (accepted > proposal.best || last)
            && !own
        {
            proposal.best = accepted;
            proposal.view = view;
        }
        if proposal.yes.len() as usize >= majority {
            proposal.stage = Stage::Accepting;
            proposal.yes = NodeSet::EMPTY;
            let view = proposal.view;
            self.send_all(Notice::Accept(ballot, view));
        }
    }

    pub(super) fn accepted(&mut self, from: NodeId, ballot: Ballot, view: View) {
        let majority = self.majority() - usize::from(self.mutant(Mutation::Minority));
        let accepting = |p: &&mut Proposal| p.ballot == ballot && p.view == view && p.stage == Stage::Accepting;
        let Some(proposal) = self.proposal.as_mut().filter(accepting) else { return };
        proposal.yes = proposal.yes.with(from);
        if proposal.yes.len() as usize >= majority {
            self.send_all(Notice::Decided(view));
        }
    }

    /// A view has been decided, which others know.
    pub(super) fn learn(&mut self, view: View) {
        if view.epoch <= self.durable.view.epoch {
            return;
        }
        match self.status {
            // The others have begun: so has this node, and its log is gone.
            Standing::New => self.forgot(),
            // They have begun with it, or gone on without: it has acknowledged nothing yet.
            Standing::Starting if view.epoch > 1 => self.set_status(Standing::Joining),
            _ => {}
        }
        self.durable = Durable { view, promised: Ballot::default(), accepted: None };
        self.proposal = None;
        self.wanted_since = None;
        self.barred.0 = NodeSet::EMPTY;
        for node in view.members.iter().filter(|_| view.recovery) {
            // One may have crashed since it was proposed, and have said what it has lost.
            if self.peer(node).said != Standing::Damaged {
                self.peer(node).said = Standing::Merging;
            }
        }
        self.round = 0;
        if self.mutant(Mutation::EarlyInstall) {
            self.persist_then(Then::Nothing);
            return self.enter(view);
        }
        self.persist_then(Then::Install(view));
    }
}
