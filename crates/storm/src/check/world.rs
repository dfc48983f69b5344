//! A state of the system: nodes, messages under way, and what clients know.

use std::sync::Arc;

use remora_replica::ddp::{Model, Outcome, Refusal, Replica, Reply, View};
use remora_replica::types::{NodeId, NodeSet, Timestamp};

use super::local::{Effect, EnvelopeId, Facts, LocalId, Locals};
use super::system::{Failures, Options, RECORDS};

/// A client's request.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct OpState {
    pub issued: bool,
    /// Where it was sent last, and how often before.
    pub at: NodeId,
    pub attempt: u8,
    /// The first attempt is still to come, though another has.
    pub late: bool,
    /// The answer to that attempt, which alone its client listens to.
    pub outcome: Option<Outcome>,
    /// What any attempt was said to have found or swapped, if one was.
    pub told: Option<Outcome>,
    /// Requests that had been answered when this one was sent, as bits.
    pub before: u8,
    /// Its write's timestamp, once seen. A read-modify-write that begins again gets a newer one, as do later attempts.
    pub ts: Option<Timestamp>,
    /// It was answered, and then everything that its model does not promise to keep was lost.
    pub lost: bool,
}

#[derive(PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    pub nodes: Vec<LocalId>,
    /// Messages under way, in order. One that is sent again while it is under way is one.
    pub net: Vec<EnvelopeId>,
    pub view: View,
    pub suspected: NodeSet,
    pub ops: Vec<OpState>,
    /// Of each record the newest version that could be read anywhere so far.
    pub floor: [Timestamp; RECORDS],
    /// Requests of which could be read anywhere that they were done, as bits.
    pub done: u8,
    pub left: Failures,
    pub left_timeouts: u8,
    pub fault: Option<Arc<str>>,
}

impl Clone for State {
    fn clone(&self) -> Self {
        let Self { nodes, net, ops, fault, .. } = self;
        Self { nodes: nodes.clone(), net: net.clone(), ops: ops.clone(), fault: fault.clone(), ..*self }
    }

    /// Keeps the memory that it has.
    fn clone_from(&mut self, other: &Self) {
        let Self { nodes, net, view, suspected, ops, floor, done, left, left_timeouts, fault } = other;
        self.nodes.clone_from(nodes);
        self.net.clone_from(net);
        self.ops.clone_from(ops);
        self.fault.clone_from(fault);
        (self.view, self.suspected, self.floor) = (*view, *suspected, *floor);
        (self.done, self.left, self.left_timeouts) = (*done, *left, *left_timeouts);
    }
}

impl State {
    pub fn node(&self, id: NodeId) -> LocalId {
        self.nodes[usize::from(id.0)]
    }

    pub fn facts<'a>(&self, locals: &'a Locals, id: NodeId) -> &'a Facts {
        locals.facts(self.node(id))
    }

    pub fn replica<'a>(&self, locals: &'a Locals, id: NodeId) -> Option<&'a Replica> {
        locals.local(self.node(id)).replica.as_ref()
    }

    /// All replicas that are up.
    pub fn replicas<'a>(&self, locals: &'a Locals) -> impl Iterator<Item = &'a Replica> {
        self.nodes.iter().filter_map(|&node| locals.local(node).replica.as_ref())
    }

    /// A request comes for the first time, or at last.
    pub fn submit(&mut self, number: u8, at: NodeId) {
        let late = std::mem::take(&mut self.ops[usize::from(number)].late);
        if !late {
            self.issue(number, at);
        }
    }

    /// Notes what had been answered before a request.
    fn issue(&mut self, number: u8, at: NodeId) {
        let answered = |op: &OpState| op.outcome.as_ref().is_some_and(happened) && !op.lost;
        let before = (0..).zip(&self.ops).filter(|(_, op)| answered(op)).fold(0, |bits, (bit, _)| bits | 1 << bit);
        let op = &mut self.ops[usize::from(number)];
        (op.issued, op.at, op.before, op.lost) = (true, at, before, false);
    }

    /// The first request is sent again. If it had been answered its client has not heard.
    pub fn ask_again(&mut self, at: NodeId) {
        if !self.ops[0].issued {
            self.issue(0, at);
            self.ops[0].late = true;
        }
        self.ops.iter_mut().for_each(|op| op.before &= !1);
        let op = &mut self.ops[0];
        (op.attempt, op.at, op.outcome, op.lost) = (op.attempt + 1, at, None, false);
    }

    /// Notes which requests were done, by what can be read at a node; none may be done anew then.
    pub fn note_done(&mut self, locals: &Locals, id: NodeId) {
        let facts = self.facts(locals, id);
        for (record, ts) in facts.readable.iter().enumerate().filter_map(|(record, ts)| Some((record, (*ts)?))) {
            if let Some(number) = facts.maker[record].filter(|number| self.done >> number & 1 == 1)
                && ts > self.floor[record]
            {
                self.fault = Some(format!("request {number} was done, and again as {ts}").into());
            }
            self.done |= facts.done[record];
        }
    }

    /// Have the first so many requests been answered?
    pub fn replied(&self, requests: u8) -> bool {
        self.ops[..usize::from(requests)].iter().all(|op| op.outcome.is_some())
    }

    /// Is every living node that is in the newest view in it by its own account?
    pub fn installed_everywhere(&self, locals: &Locals) -> bool {
        let here = |facts: &Facts| !facts.up || facts.view.epoch >= self.view.epoch;
        self.view.all().iter().all(|id| here(self.facts(locals, id)))
    }

    /// Is nothing left to do?
    pub fn quiet(&self, locals: &Locals) -> bool {
        self.ops.iter().all(|op| !op.issued || op.outcome.is_some())
            && (0..).map(NodeId).zip(&self.nodes).all(|(id, &node)| {
                let facts = locals.facts(node);
                let serving = facts.up && facts.view.members.has(id) && facts.view.epoch == self.view.epoch;
                !serving || facts.metas.iter().all(|meta| meta.rd_lock.is_none()) && !facts.merging
            })
    }

    /// The node's memory is gone, and so are messages to it. Its own messages may still arrive.
    pub fn crashed(&mut self, locals: &Locals, id: NodeId) {
        self.net.retain(|&envelope| locals.envelope(envelope).to != id);
        self.suspected = self.suspected.without(id);
        // Its clients never hear.
        for op in &mut self.ops {
            if op.issued && op.outcome.is_none() && op.at == id {
                op.outcome = Some(Outcome::Unknown);
            }
        }
    }

    /// All volatile memory is gone: what the model does not promise to keep need not be there any more. What it promises is
    /// stated here again, and not asked of `Model::facts`, on purpose: the engine runs by that table.
    pub fn all_lost(&mut self, options: &Options) {
        let (floor, done, model) = (self.floor, self.done, options.model);
        let persisted = self.ops.iter().filter(|op| op.outcome == Some(Outcome::Persisted));
        let kept = persisted.fold(0, |bits, op| bits | op.before);
        for (number, op) in (0..).zip(&mut self.ops) {
            op.lost = match model {
                Model::Synch | Model::Strict => false,
                // What was read is durable everywhere.
                Model::REnf if op.attempt > 0 => done >> number & 1 == 0,
                Model::REnf => op.ts.is_none_or(|ts| ts > floor[options.record(number)]),
                Model::Event => true,
                Model::Scope => kept >> number & 1 == 0,
            } || op.lost;
            if op.lost {
                op.told = None;
            }
            if op.issued && op.outcome.is_none() {
                op.outcome = Some(Outcome::Unknown);
            }
        }
        if !matches!(model, Model::Synch | Model::REnf) {
            (self.floor, self.done) = Default::default();
        }
    }

    /// Is this the other state, but that clients may rely on more?
    pub fn relies_on_more(&self, other: &Self) -> bool {
        let mut least = self.clone();
        (least.floor, least.done) = (other.floor, other.done);
        for (op, theirs) in least.ops.iter_mut().zip(&other.ops) {
            op.before = if op.before & theirs.before == theirs.before { theirs.before } else { op.before };
        }
        let done = self.done & other.done == other.done;
        least == *other && done && self.floor.iter().zip(&other.floor).all(|(ours, theirs)| ours >= theirs)
    }

    /// A node has made its step: where it is now, and what it put out.
    pub fn take(&mut self, locals: &Locals, options: &Options, id: NodeId, effect: &Effect) {
        self.nodes[usize::from(id.0)] = effect.next;
        for &envelope in &effect.sends {
            let alive = self.facts(locals, locals.envelope(envelope).to).up;
            if let Err(place) = self.net.binary_search(&envelope).map(|_| ())
                && alive
            {
                self.net.insert(place, envelope);
            }
        }
        for &(number, ts) in &effect.seen {
            let op = &mut self.ops[usize::from(number)];
            op.ts = op.ts.max(Some(ts));
        }
        for reply in &effect.replies {
            self.reply(locals, options, id, reply);
        }
    }

    fn reply(&mut self, locals: &Locals, options: &Options, id: NodeId, Reply { tag, outcome }: &Reply) {
        let (number, attempt) = Options::answered(*tag);
        let op = &mut self.ops[usize::from(number)];
        if let Some(told) = op.told.as_ref().filter(|told| happened(outcome) && *told != outcome) {
            self.fault = Some(format!("request {number} was answered {told:?}, and then {outcome:?}").into());
            return;
        }
        if options.again > 0 && matches!(outcome, Outcome::Added(_) | Outcome::Swapped) {
            op.told = Some(outcome.clone());
        }
        if attempt < op.attempt {
            return;
        }
        if attempt > 0 && matches!(outcome, Outcome::Refused(_)) {
            // The attempt before may have been taken.
            op.outcome = Some(Outcome::Unknown);
        } else if matches!(outcome, Outcome::Refused(Refusal::NotServing | Refusal::Busy)) {
            // The client tries again later.
            (op.issued, op.before) = (false, 0);
        } else if op.outcome.is_some() && op.outcome != Some(Outcome::Unknown) {
            self.fault = Some(format!("request {number} was answered twice").into());
        } else {
            op.outcome = Some(outcome.clone());
            super::invariants::look_answer(locals, options, self, usize::from(number), id);
        }
    }
}

/// Did the request do what it should?
pub(crate) fn happened(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Unknown | Outcome::Refused(_))
}
