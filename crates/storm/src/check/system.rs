//! What is checked: the clients' requests, the faults, and how one state leads to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use remora_replica::ddp::{
    Config, Deployment, Job, JobId, Marks, Message, Model, Mutation, Offload, Op, Replica, Request, View, Write,
};
use remora_replica::types::{Key, NodeId, NodeSet, Value};
use stateright::Property;

use super::invariants;
use super::world::State;

/// The one record.
pub(crate) const KEY: Key = 7;
/// The one scope.
pub(crate) const SCOPE: u64 = 1;

/// Which deployment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// MINOS-B; local writes happen at once.
    B,
    /// MINOS-B; local writes take time, under the WRLock.
    Stepped,
    /// MINOS-O with FIFOs of this many entries.
    O(u16),
}

/// What the clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ops {
    /// Each node's client puts a value of its own.
    Puts,
    /// Each adds 1.
    Adds,
    /// Puts and additions in turn.
    Mixed,
    /// All at the first node.
    OneNode,
}

/// Faults within a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Failures {
    /// Messages that arrive twice.
    pub duplicates: u8,
    /// Crashes of single nodes. The cluster goes on without them.
    pub crashes: u8,
    /// Nodes wrongly suspected: they are left out of a view while they live.
    pub suspicions: u8,
    /// Crashed nodes start again and catch up.
    pub restarts: u8,
    /// Crashes of all nodes at once, each followed by recovery from the logs.
    pub blackouts: u8,
}

/// What to check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The persistency model.
    pub model: Model,
    /// The deployment.
    pub deployment: Where,
    /// Nodes.
    pub nodes: u8,
    /// Writes. In the Scope model one PERSIST follows.
    pub writes: u8,
    /// Of which kind.
    pub ops: Ops,
    /// Faults.
    pub failures: Failures,
    /// A seeded fault of the engine.
    pub mutation: Option<Mutation>,
    /// Leave out orders of events that make no difference.
    pub reduce: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            model: Model::Synch,
            deployment: Where::B,
            nodes: 3,
            writes: 2,
            ops: Ops::Mixed,
            failures: Failures::default(),
            mutation: None,
            reduce: true,
        }
    }
}

impl Options {
    fn config(&self, id: NodeId) -> Config {
        let mut config = Config::new(id, NodeSet::first(self.nodes), self.model);
        // Time stands still: whatever is late is late at once, when the check says so.
        config.retry = 0;
        config.stepped = self.deployment != Where::B;
        if let Where::O(entries) = self.deployment {
            config.deployment = Deployment::Offload(Offload { fifos: Some(entries), ..Offload::FULL });
        }
        config.mutation = self.mutation;
        config
    }

    /// A client's request by number; the last of the Scope model ends the scope.
    pub(crate) fn request(&self, number: u8) -> (NodeId, Request) {
        let at = if self.ops == Ops::OneNode { 0 } else { number % self.nodes };
        let value = Value::from((1000 * (u64::from(number) + 1)).to_le_bytes().as_slice());
        let scoped = self.model == Model::Scope;
        let op = match self.ops {
            _ if number == self.writes => Op::Persist,
            Ops::Adds => Op::FetchAdd(KEY, 1),
            Ops::Mixed if number % 2 == 1 => Op::FetchAdd(KEY, 1),
            _ => Op::Put(KEY, value),
        };
        let at = if number == self.writes { 0 } else { at };
        (NodeId(at), Request { scope: scoped.then_some(SCOPE), ..Request::new(u64::from(number), op) })
    }

    /// How many requests there are.
    pub(crate) fn requests(&self) -> u8 {
        self.writes + u8::from(self.model == Model::Scope)
    }
}

/// What can happen next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// A client sends its request.
    Submit(u8),
    /// A message arrives.
    Deliver(NodeId, NodeId, Message),
    /// A message arrives, and will again.
    Duplicate(NodeId, NodeId, Message),
    /// A job is done.
    Done(NodeId, JobId),
    /// A node loses all but its log.
    Crash(NodeId),
    /// All nodes do.
    Blackout,
    /// A node starts again with its log.
    Restart(NodeId),
    /// A node's lease runs out; the next view is without it.
    Suspect(NodeId),
    /// The next view is decided: who is gone is left out, who is back learns, who has caught up is a member.
    Decide(View),
    /// A node enters the newest view.
    Install(NodeId),
    /// Nothing else can happen: everyone sends again what was not answered.
    Timeout,
}

/// The system under check.
pub(crate) struct System {
    pub options: Options,
    reached: Arc<Mutex<Marks>>,
    stop: Arc<AtomicBool>,
}

impl System {
    pub fn new(options: Options) -> Self {
        Self { options, reached: Arc::default(), stop: Arc::default() }
    }

    /// What was reached, over all states.
    pub fn reached(&self) -> Arc<Mutex<Marks>> {
        self.reached.clone()
    }

    /// Raised when no further state shall be visited.
    pub fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    fn replica(&self, id: NodeId) -> Replica {
        Replica::new(self.options.config(id))
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        NodeSet::first(self.options.nodes).iter()
    }

    /// The view that should follow, if there is cause.
    fn next_view(&self, state: &State) -> Option<View> {
        let newest = state.view;
        if !state.installed_everywhere() {
            return None;
        }
        let up = self.nodes().filter(|&id| state.replica(id).is_some()).fold(NodeSet::EMPTY, NodeSet::with);
        let epoch = newest.epoch + 1;
        let amnesiac = |id: &NodeId| state.replica(*id).is_some_and(|replica| replica.view().members.is_empty());
        if newest.members.iter().all(|id| state.replica(id).is_none() || amnesiac(&id)) {
            // All members crashed: they recover when all are back.
            let whole = up.covers(newest.members);
            return whole.then_some(View { epoch, members: newest.members, learners: NodeSet::EMPTY, recovery: true });
        }
        let merging = newest.members.iter().any(|id| state.replica(id).is_some_and(Replica::merging));
        let stay = newest.members.and(up).minus(state.suspected);
        let stay = stay.iter().filter(|id| !amnesiac(id)).fold(NodeSet::EMPTY, NodeSet::with);
        let ready = newest.learners.and(up).iter().filter(|&id| state.replica(id).is_some_and(Replica::caught_up));
        let members = ready.fold(stay, NodeSet::with);
        let learners = up.minus(members).minus(state.suspected);
        let learners = if merging { NodeSet::EMPTY } else { learners };
        let changes = (members, learners) != (newest.members, newest.learners);
        let view = View { epoch, members, learners, recovery: merging };
        (changes && !stay.is_empty() && !merging).then_some(view)
    }

    /// What makes no difference when it happens: it happens at once, and alone (partial-order reduction). Of several
    /// acknowledgements that a write awaits all but the last are such, in any order: which of them is the last makes no
    /// difference either. So are messages that change nothing, and persists of Event, while nobody can crash or learn:
    /// nothing in that model looks at them.
    fn indifferent(&self, state: &State) -> Option<Action> {
        let counted = |(to, from, message): &&(NodeId, NodeId, Message)| {
            state.replica(*to).is_some_and(|replica| replica.is_indifferent(*from, message))
        };
        if let Some((to, from, message)) = state.net.iter().find(counted).filter(|_| state.left.duplicates == 0) {
            return Some(Action::Deliver(*from, *to, message.clone()));
        }
        let Failures { crashes, suspicions, blackouts, .. } = state.left;
        if self.options.model != Model::Event || state.view.epoch > 1 || crashes + suspicions + blackouts > 0 {
            return None;
        }
        (0..).zip(&state.jobs).find_map(|(node, jobs)| {
            let persist = jobs.keys().find(|job| matches!(job, JobId::Persist(..)))?;
            Some(Action::Done(NodeId(node), *persist))
        })
    }

    fn ordinary_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let serving = |id: NodeId| state.replica(id).is_some_and(Replica::serves);
        for number in 0..self.options.requests() {
            let (at, _) = self.options.request(number);
            let persist = number == self.options.writes;
            if !state.ops[usize::from(number)].issued && serving(at) && (!persist || state.writes_replied(number)) {
                actions.push(Action::Submit(number));
            }
        }
        for (to, from, message) in &state.net {
            let deliverable = state.replica(*to).is_some_and(|r| r.view().epoch >= message.epoch);
            if deliverable {
                actions.push(Action::Deliver(*from, *to, message.clone()));
                if state.left.duplicates > 0 {
                    actions.push(Action::Duplicate(*from, *to, message.clone()));
                }
            }
        }
        for (index, jobs) in state.jobs.iter().enumerate() {
            actions.extend(jobs.keys().map(|&job| Action::Done(NodeId(index as u8), job)));
        }
        for id in self.nodes() {
            if state.replica(id).is_some_and(|replica| replica.view().epoch < state.view.epoch)
                && !state.suspected.has(id)
            {
                actions.push(Action::Install(id));
            }
        }
        actions.extend(self.next_view(state).map(Action::Decide));
    }

    fn fault_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let up: Vec<NodeId> = self.nodes().filter(|&id| state.replica(id).is_some()).collect();
        let begun = state.ops.iter().any(|op| op.issued);
        if state.left.blackouts > 0 && begun {
            actions.push(Action::Blackout);
        }
        for &id in &up {
            let others = up.len() > usize::from(self.options.nodes / 2 + 1) && state.installed_everywhere();
            if state.left.crashes > 0 && others && begun {
                actions.push(Action::Crash(id));
            }
            if state.left.suspicions > 0 && others && begun && state.view.members.has(id) {
                actions.push(Action::Suspect(id));
            }
        }
        for id in self.nodes() {
            if state.replica(id).is_none() && state.left.restarts > 0 {
                actions.push(Action::Restart(id));
            }
        }
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Submit(number) => {
                let (at, request) = self.options.request(number);
                state.issue(number);
                state.with(at, |replica| replica.submit(0, request));
            }
            Action::Deliver(from, to, message) => {
                state.net.remove(&(to, from, message.clone()));
                state.with(to, |replica| replica.handle(0, from, message));
            }
            Action::Duplicate(from, to, message) => {
                state.left.duplicates -= 1;
                state.with(to, |replica| replica.handle(0, from, message));
            }
            Action::Done(id, job) => state.done(id, job),
            Action::Crash(id) => {
                state.left.crashes -= 1;
                state.crash(id);
            }
            Action::Blackout => {
                state.left.blackouts -= 1;
                self.nodes().for_each(|id| state.crash(id));
                state.left.restarts = self.options.nodes;
                state.all_lost(self.options.model);
            }
            Action::Restart(id) => {
                state.left.restarts -= 1;
                let mut replica = self.replica(id);
                let log: Vec<Write> = state.logs[usize::from(id.0)].values().cloned().collect();
                replica.load(state.epochs[usize::from(id.0)], log);
                state.nodes[usize::from(id.0)] = Some(Arc::new(replica));
            }
            Action::Suspect(id) => {
                state.left.suspicions -= 1;
                state.suspected = state.suspected.with(id);
                state.with(id, |replica| replica.set_lease(0, 0));
            }
            Action::Decide(view) => {
                state.view = view;
                state.suspected = NodeSet::EMPTY;
            }
            Action::Install(id) => state.install(id),
            Action::Timeout => {
                state.left_timeouts -= 1;
                for id in self.nodes() {
                    state.with(id, |replica| replica.timeout(0));
                }
            }
        }
    }
}

impl stateright::Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let view = View::first(NodeSet::first(self.options.nodes));
        let replica = |id| {
            let mut replica = self.replica(id);
            replica.install(0, view);
            replica.set_lease(0, u64::MAX);
            Some(Arc::new(replica))
        };
        let count = usize::from(self.options.nodes);
        vec![State {
            nodes: self.nodes().map(replica).collect(),
            net: BTreeSet::new(),
            jobs: vec![BTreeMap::<JobId, Job>::new(); count],
            logs: vec![BTreeMap::new(); count],
            scope_logged: NodeSet::EMPTY,
            epochs: vec![1; count],
            view,
            suspected: NodeSet::EMPTY,
            ops: vec![Default::default(); usize::from(self.options.requests())],
            floor: Default::default(),
            left: self.options.failures,
            left_timeouts: 6,
            fault: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        if let Some(action) = self.indifferent(state).filter(|_| self.options.reduce) {
            actions.push(action);
            return;
        }
        self.ordinary_actions(state, actions);
        if actions.is_empty() && state.left_timeouts > 0 && !state.quiet() {
            actions.push(Action::Timeout);
        }
        self.fault_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        let marks = state.absorb(self);
        if marks != Marks::default()
            && let Ok(mut reached) = self.reached.lock()
        {
            reached.add(&marks);
        }
        invariants::look(self, &mut state);
        Some(state)
    }

    fn within_boundary(&self, _: &State) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("nothing is wrong", |system: &Self, state: &State| {
            state.fault.is_none() && !invariants::stuck(system, state)
        })]
    }
}
