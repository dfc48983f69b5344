//! A new view: whose log counts, and who has it.
//!
//! Each member tells the head what it has behind what it has applied. Logs differ only in how long they are: all
//! are begins of one head's, and whoever had a view's log has all that was committed before. So the longest
//! of the newest view is everybody's. What was committed is in all of them; what was not may be in it, and is committed then.

use super::catch_up::Learning;
use super::replica::{Chain, Then};
use super::types::{ChainMessage, ChainMutation, Entry};
use crate::Time;
use crate::ddp::View;
use crate::types::NodeId;

/// What a member has.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub synced: u64,
    pub applied: u64,
    pub entries: Vec<Entry>,
}

impl State {
    fn last(&self) -> u64 {
        self.entries.last().map_or(self.applied, |entry| entry.seq)
    }
}

impl Chain {
    /// Enters a view, as all nodes that hear of it do, in the order of epochs. Before any node enters it, the leases of
    /// those that it leaves out must have run out.
    pub fn install(&mut self, now: Time, view: View) {
        self.now = now;
        if view.epoch <= self.view.epoch {
            return;
        }
        let me = self.config.id;
        let (before, was_head) = (std::mem::replace(&mut self.view, view), self.is_head());
        let fit = before.members.has(me) || before.learners.has(me) && self.caught_up && self.synced;
        let stays = fit && view.members.has(me);
        // Only at the start, or when everyone comes from a crash, is a log of its own what a member has: a whole one, whoever
        // proposed the view before they knew.
        let from_log = self.loaded && view.recovery && !self.is_damaged() || before.all().is_empty() && view.epoch == 1;
        self.begin_view();
        let loaded = self.loaded;
        self.loaded &= !view.all().has(me);
        if stays || from_log && view.members.has(me) {
            self.caught_up = false;
            if !(was_head && self.is_head()) {
                self.dismiss(true);
            }
        } else if view.members.has(me) {
            // They took it for its former life. It keeps its log, and silent until a view has it as a learner.
            self.loaded = loaded;
            self.view.members = view.members.without(me);
            self.dismiss(false);
        } else {
            self.dismiss(false);
            if view.learners.has(me) {
                // Also if it was a member, or had caught up: it may have what nobody else has, or have missed a view.
                self.begin_anew();
                self.learning = Some(Learning::default());
                self.joined += 1;
            }
        }
        if self.view.members.has(me) {
            self.marks.recoveries += u64::from(view.recovery);
            self.send_state();
        }
    }

    fn state(&self) -> State {
        let entries = self.entries_after(self.applied).cloned().collect();
        State { synced: self.wanted.synced, applied: self.applied, entries }
    }

    pub(super) fn send_state(&mut self) {
        let state = self.state();
        match self.head() {
            Some(head) if head == self.config.id => self.told_state(head, state),
            Some(head) => self.send(head, ChainMessage::State(state.synced, state.applied, state.entries)),
            None => {}
        }
    }

    /// A member tells the head what it has.
    pub(super) fn told_state(&mut self, from: NodeId, state: State) {
        if !self.is_head() || !self.view.members.has(from) {
            return;
        }
        if self.merged {
            // It comes along the chain.
            return;
        }
        self.states.insert(from, state);
        if self.view.members.iter().all(|member| self.states.contains_key(&member)) {
            let states = std::mem::take(&mut self.states);
            let longest = states.into_values().max_by_key(|state| (state.synced, state.last()));
            if longest.as_ref().is_some_and(|state| state.applied > self.last) {
                return self.falls_short();
            }
            let own = self.mutant(ChainMutation::OwnLog);
            let entries = longest.filter(|_| !own).map_or(Vec::new(), |state| state.entries);
            self.adopt(entries);
            let entries = self.entries_after(self.applied).cloned().collect();
            self.begun_with = Some((self.applied, self.applied_at, entries));
        }
    }

    /// Something was applied that its log has never had: it was durable here, and is lost. The node keeps silent until it is a
    /// learner.
    fn falls_short(&mut self) {
        self.view.members = self.view.members.without(self.config.id);
        self.dismiss(false);
        self.damage();
    }

    /// The log is what it has with these behind it.
    fn adopt(&mut self, entries: Vec<Entry>) {
        self.merged = true;
        for entry in entries {
            if entry.seq == self.last + 1 {
                self.marks.merged += 1;
                self.append(entry);
            }
        }
        self.when_durable(Then::Adopted(self.view.epoch));
    }

    /// The next one in the chain is told what the view begins with, when that is durable here.
    pub(super) fn send_log(&mut self) {
        if let (Some(next), Some((applied, at, entries))) = (self.next(), self.begun_with.clone()) {
            self.send(next, ChainMessage::Sync(applied, at, entries));
        }
    }

    /// The one before it tells what everybody has.
    pub(super) fn told_log(&mut self, applied: u64, at: u64, entries: Vec<Entry>) {
        if self.synced {
            return self.acknowledge(true);
        }
        if self.merged {
            return;
        }
        if self.learning.is_some() {
            self.begin_at(applied, at);
        } else if applied > self.last {
            return self.falls_short();
        }
        self.begun_with = Some((applied, at, entries.clone()));
        self.adopt(entries);
    }

    /// What the view began with is durable here.
    pub(super) fn adopted(&mut self) {
        (self.wanted.synced, self.wanted.floor) = (self.view.epoch, self.last);
        self.change_super();
    }

    /// And that it is, is durable too.
    pub(super) fn begins(&mut self) {
        self.synced = true;
        self.send_log();
        self.take_early();
        self.advance();
        self.acknowledge(true);
        self.ask_for_piece();
    }
}
