//! How a node begins: for the first time with all others, or as one whose log is damaged or gone.
//!
//! An empty log may be that of a new cluster, or what is left of a disk. So a node that finds one says that it is *new*,
//! and waits. Once all others have answered that they have begun nothing either, it notes in its log that it *starts*.
//! Once all others are that far, it enters the first view. Nobody does anything in a view before, so a node whose log is
//! empty though another one is in a view has lost it, whoever is up, and goes on as one with a damaged log. The first
//! start needs all nodes; no other one does.
//!
//! A node with a damaged log may have forgotten its place in a view, and what it promised and accepted for the next one.
//! The newest view that it knew was accepted by a majority, of whom each knew the one before; so it enters none before the
//! second after the newest that a majority of others knows.

use super::{MemberOutput, Membership, Mutation, Notice, Standing, Then};
use crate::Time;
use crate::ddp::View;
use crate::types::NodeId;

impl Membership {
    /// Answers the beat of one that looks for the state of things, if this node knows it.
    pub(super) fn answer(&mut self, from: NodeId, sent: Time, status: Standing) {
        let knows = match status {
            Standing::New | Standing::Starting => self.status != Standing::Damaged,
            _ => !self.status.asks(),
        };
        if status.asks() && knows {
            self.send(from, Notice::Newest(sent, self.durable.view.epoch, self.status));
        }
    }

    /// The answer to a beat of this life, sent when this node was what it is.
    pub(super) fn answered(&mut self, from: NodeId, sent: Time, epoch: u64, theirs: Standing) {
        if sent < self.since && !self.mutant(Mutation::OldAnswers) {
            return;
        }
        match self.status {
            // The first of each: later ones would move the place that it waits for.
            Standing::Damaged if self.newest.len() < self.majority() => {
                self.newest.entry(from).or_insert((epoch, theirs));
            }
            Standing::New if epoch > 0 => self.forgot(),
            Standing::New | Standing::Starting => {
                self.newest.insert(from, (epoch, theirs));
            }
            _ => {}
        }
        self.look_first();
    }

    /// At the first start: are the others as far as this node?
    pub(super) fn look_first(&mut self) {
        let others = self.nodes.without(self.me);
        let all = |as_far: fn(Standing) -> bool| {
            others.iter().all(|node| self.newest.get(&node).is_some_and(|&(_, theirs)| as_far(theirs)))
        };
        let new = all(|_| true) || self.mutant(Mutation::EmptyIsNew);
        let noted = || self.after.iter().any(|(_, then)| *then == Then::Start);
        match self.status {
            Standing::New if new && !noted() => self.persist_then(Then::Start),
            Standing::Starting if self.durable.view.epoch == 0 && all(|theirs| theirs != Standing::New) => {
                self.learn(View::first(self.nodes));
            }
            _ => {}
        }
    }

    /// The log says that this node takes part.
    pub(super) fn started(&mut self) {
        if self.status == Standing::New {
            self.set_status(Standing::Starting);
            if self.mutant(Mutation::EmptyIsNew) {
                self.learn(View::first(self.nodes));
            }
            self.look_first();
        }
    }

    /// The others know this node, and its log does not.
    pub(super) fn forgot(&mut self) {
        self.set_status(Standing::Damaged);
        self.out.push_back(MemberOutput::Forgot);
    }

    /// May a node with a damaged log enter a view? See above.
    pub(super) fn may_enter(&self, view: View) -> bool {
        let enough = self.newest.len() >= self.majority() || self.mutant(Mutation::DamagedEnters);
        let known = self.newest.values().map(|&(epoch, _)| epoch).max().unwrap_or(0);
        let far = view.epoch >= known + 2 || self.mutant(Mutation::DamagedEnters);
        self.status != Standing::Damaged || enough && far
    }

    /// Does it know of no epoch yet in which it may have a place?
    pub(super) fn lost(&self) -> bool {
        self.status == Standing::Damaged && self.newest.len() < self.majority()
    }
}
