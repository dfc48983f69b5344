//! A state of the system: replicas, messages under way, jobs, logs, and what clients know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use remora_replica::ddp::{
    Body, Job, JobId, Marks, Message, Model, Op, Outcome, Output, Refusal, Replica, Reply, View, Write,
};
use remora_replica::types::{Key, NodeId, NodeSet, Timestamp};

use super::system::{Failures, KEY, System};

/// A client's request.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct OpState {
    pub issued: bool,
    pub outcome: Option<Outcome>,
    /// Requests that had been answered when this one was sent, as bits.
    pub before: u8,
    /// Its write's timestamp, once seen. A read-modify-write that begins again gets another.
    pub ts: Option<Timestamp>,
    /// It was answered, and then everything that its model does not promise to keep was lost.
    pub lost: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    pub nodes: Vec<Option<Arc<Replica>>>,
    /// Receiver, sender, message. A message sent again while it is under way is one.
    pub net: BTreeSet<(NodeId, NodeId, Message)>,
    pub jobs: Vec<BTreeMap<JobId, Job>>,
    /// The newest version in each node's log.
    pub logs: Vec<BTreeMap<Key, Write>>,
    pub scope_logged: NodeSet,
    /// The epoch that each node's log knows.
    pub epochs: Vec<u64>,
    pub view: View,
    pub suspected: NodeSet,
    pub ops: Vec<OpState>,
    /// The newest version that could be read anywhere so far.
    pub floor: Timestamp,
    pub left: Failures,
    pub left_timeouts: u8,
    pub fault: Option<String>,
}

impl State {
    pub fn replica(&self, id: NodeId) -> Option<&Replica> {
        self.nodes[usize::from(id.0)].as_deref()
    }

    pub fn with(&mut self, id: NodeId, act: impl FnOnce(&mut Replica)) {
        if let Some(replica) = &mut self.nodes[usize::from(id.0)] {
            act(Arc::make_mut(replica));
        }
    }

    /// Notes what had been answered before a request.
    pub fn issue(&mut self, number: u8) {
        let answered = |op: &OpState| op.outcome.as_ref().is_some_and(happened) && !op.lost;
        let before = (0..).zip(&self.ops).filter(|(_, op)| answered(op)).fold(0, |bits, (bit, _)| bits | 1 << bit);
        let op = &mut self.ops[usize::from(number)];
        (op.issued, op.before) = (true, before);
    }

    /// Have all writes before this request been answered?
    pub fn writes_replied(&self, number: u8) -> bool {
        self.ops[..usize::from(number)].iter().all(|op| op.outcome.is_some())
    }

    /// Is every living node that is in the newest view in it by its own account?
    pub fn installed_everywhere(&self) -> bool {
        let here = |id: NodeId| self.replica(id).is_none_or(|replica| replica.view().epoch >= self.view.epoch);
        self.view.all().iter().all(here)
    }

    /// Is nothing left to do?
    pub fn quiet(&self) -> bool {
        self.ops.iter().all(|op| !op.issued || op.outcome.is_some())
            && self.nodes.iter().flatten().all(|replica| {
                let serving = replica.view().members.has(replica.id()) && replica.view().epoch == self.view.epoch;
                !serving || replica.meta(KEY).rd_lock.is_none() && !replica.merging()
            })
    }

    pub fn done(&mut self, id: NodeId, job: JobId) {
        let index = usize::from(id.0);
        match self.jobs[index].remove(&job) {
            Some(Job::Persist(write)) => {
                let newer = self.logs[index].get(&write.key).is_none_or(|old| old.ts < write.ts);
                if newer {
                    self.logs[index].insert(write.key, write);
                }
            }
            Some(Job::PersistScope(_)) => self.scope_logged = self.scope_logged.with(id),
            _ => {}
        }
        self.with(id, |replica| replica.done(0, job));
    }

    /// The node's memory and jobs are gone. Its messages may still arrive.
    pub fn crash(&mut self, id: NodeId) {
        let index = usize::from(id.0);
        self.nodes[index] = None;
        self.jobs[index].clear();
        self.net.retain(|(to, _, _)| *to != id);
        self.suspected = self.suspected.without(id);
    }

    /// All volatile memory is gone: what the model does not promise to keep need not be there any more.
    pub fn all_lost(&mut self, model: Model) {
        let floor = self.floor;
        for op in &mut self.ops {
            op.lost = match model {
                Model::Synch | Model::Strict => false,
                // What was read is durable everywhere.
                Model::REnf => op.ts.is_none_or(|ts| ts > floor),
                Model::Event => true,
                Model::Scope => true,
            } || op.lost;
            if op.issued && op.outcome.is_none() {
                op.outcome = Some(Outcome::Unknown);
            }
        }
        let persisted = self.ops.last().and_then(|op| op.outcome.clone()) == Some(Outcome::Persisted);
        if persisted {
            self.ops.iter_mut().for_each(|op| op.lost = false);
        }
        if !matches!(model, Model::Synch | Model::REnf) {
            self.floor = Timestamp::ZERO;
        }
    }

    pub fn install(&mut self, id: NodeId) {
        let view = self.view;
        let index = usize::from(id.0);
        let joined = self.replica(id).map(Replica::joined);
        self.epochs[index] = view.epoch;
        self.with(id, |replica| {
            replica.install(0, view);
            let serves = replica.view().members.has(id);
            replica.set_lease(0, if serves { u64::MAX } else { 0 });
        });
        if self.replica(id).map(Replica::joined) != joined {
            // It begins anew, and its log with it.
            self.logs[index].clear();
            self.jobs[index].clear();
        }
    }

    /// Takes what the replicas put out. Gives what they counted, which must not tell states apart.
    pub fn absorb(&mut self, system: &System) -> Marks {
        let mut marks = Marks::default();
        for index in 0..self.nodes.len() {
            let id = NodeId(index as u8);
            let Some(replica) = &mut self.nodes[index] else { continue };
            if !replica.has_output() && *replica.marks() == Marks::default() {
                continue;
            }
            let replica = Arc::make_mut(replica);
            marks.add(&replica.take_marks());
            let outputs: Vec<Output> = std::iter::from_fn(|| replica.poll()).collect();
            for output in outputs {
                self.take(system, id, output);
            }
        }
        // A crashed node's clients never hear.
        for (number, op) in (0..).zip(&mut self.ops) {
            let at = system.options.request(number).0;
            if op.issued && op.outcome.is_none() && self.nodes[usize::from(at.0)].is_none() {
                op.outcome = Some(Outcome::Unknown);
            }
        }
        marks
    }

    fn take(&mut self, system: &System, id: NodeId, output: Output) {
        match output {
            Output::Send { to, message } => {
                if let Body::Inv(writes) = &message.body {
                    writes.iter().for_each(|write| self.see(system, write));
                }
                let alive = to.iter().filter(|&to| self.replica(to).is_some()).collect::<Vec<_>>();
                self.net.extend(alive.into_iter().map(|to| (to, id, message.clone())));
            }
            Output::Job(job) => {
                self.jobs[usize::from(id.0)].insert(job.id(), job);
            }
            Output::Reply(Reply { tag, outcome }) => {
                let op = &mut self.ops[tag as usize];
                let refused = matches!(outcome, Outcome::Refused(Refusal::NotServing | Refusal::Busy));
                if refused {
                    // The client tries again later.
                    (op.issued, op.before) = (false, 0);
                } else if op.outcome.is_some() && op.outcome != Some(Outcome::Unknown) {
                    self.fault = Some(format!("request {tag} was answered twice"));
                } else {
                    op.outcome = Some(outcome);
                    super::invariants::look_answer(system, self, tag as usize, id);
                }
            }
            Output::Step(_) => {}
        }
    }

    /// Notes which timestamp a request's write has.
    fn see(&mut self, system: &System, write: &Write) {
        for number in 0..system.options.writes {
            let (at, request) = system.options.request(number);
            let ours = match &request.op {
                Op::Put(_, value) => write.value.as_ref() == Some(value),
                _ => write.rmw && write.ts.node == at,
            };
            if ours {
                self.ops[usize::from(number)].ts = Some(write.ts);
            }
        }
    }
}

/// Did the request do what it should?
pub(crate) fn happened(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Unknown | Outcome::Refused(_))
}
