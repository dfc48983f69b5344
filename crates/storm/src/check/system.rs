//! What is checked: the clients' requests, the faults, and how one state leads to the next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use remora_replica::ddp::{
    Config, Deployment, JobId, Marks, Model, Mutation, Offload, Op, Replica, Request, Session, View,
};
use remora_replica::types::{Key, NodeId, NodeSet, Value};

use super::alike::Alike;
use super::local::{EnvelopeId, Event, Facts, Local, Locals, Unknown};
use super::world::{OpState, State};
use super::{invariants, proof, reduce};
use crate::search::{Space, Steps};
use crate::shard::Shard;

/// The first record; others follow.
const KEY: Key = 7;
/// There are so many records at most.
pub(crate) const RECORDS: usize = 2;
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
    /// The first removes what all others put, if it is there.
    Swaps,
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

/// Which orders of events are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Orders {
    /// All.
    All,
    /// Not those that make no difference.
    Reduced,
    /// All, and in each state it is a failure if an order that is said to make no difference makes one.
    Proof,
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
    /// Writes.
    pub writes: u8,
    /// Records, 1 or 2; writes go to each in turn.
    pub records: u8,
    /// PERSISTs in the Scope model, each at the next node. The last follows all writes, the one before all but the last, and
    /// so on.
    pub persists: u8,
    /// Of which kind.
    pub ops: Ops,
    /// How often the first write may be sent again, to any node, at any time: its client has heard no answer, or the
    /// answer was lost. The first attempt may come after others. Requests have numbers then, by which attempts are known.
    pub again: u8,
    /// Faults.
    pub failures: Failures,
    /// A seeded fault of the engine.
    pub mutation: Option<Mutation>,
    /// Which orders are visited.
    pub orders: Orders,
    /// Which part of all: what the first fault is, and when, decides about what follows it. Each part has what comes before
    /// any fault, and parts meet again in states in which it no longer shows.
    pub shard: Shard,
    /// Do nodes that are alike count once?
    pub alike: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            model: Model::Synch,
            deployment: Where::B,
            nodes: 3,
            writes: 2,
            records: 1,
            persists: 1,
            ops: Ops::Mixed,
            again: 0,
            failures: Failures::default(),
            mutation: None,
            orders: Orders::Reduced,
            shard: Shard::WHOLE,
            alike: true,
        }
    }
}

impl Options {
    pub(crate) fn config(&self, id: NodeId) -> Config {
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

    /// The records.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        (0..u64::from(self.records)).map(|record| KEY + record)
    }

    /// Which record a write is of, counted from 0.
    pub(crate) fn record(&self, number: u8) -> usize {
        usize::from(number % self.records)
    }

    /// A client's request by number; the last ones of the Scope model are PERSISTs.
    pub(crate) fn request(&self, number: u8) -> (NodeId, Request) {
        let at = if self.ops == Ops::OneNode { 0 } else { number % self.nodes };
        let value = Value::from((1000 * (u64::from(number) + 1)).to_le_bytes().as_slice());
        let (scoped, key) = (self.model.facts().scopes, KEY + self.record(number) as u64);
        let swapped = Value::from(SWAPPED.to_le_bytes().as_slice());
        let op = match self.ops {
            _ if number >= self.writes => Op::Persist,
            Ops::Adds => Op::FetchAdd(key, 1),
            Ops::Mixed if number % 2 == 1 => Op::FetchAdd(key, 1),
            Ops::Swaps if number == 0 => Op::CompareSwap { key, expected: Some(swapped), new: None },
            Ops::Swaps => Op::Put(key, swapped),
            _ => Op::Put(key, value),
        };
        let at = if number >= self.writes { (number - self.writes) % self.nodes } else { at };
        (NodeId(at), Request { scope: scoped.then_some(SCOPE), ..Request::new(u64::from(number), op) })
    }

    /// Have requests numbers? All that say whose write a version is.
    pub(crate) fn numbered(&self) -> bool {
        self.again > 0 || self.ops == Ops::Swaps
    }

    /// A client's request, as it is sent when it was sent so often before.
    pub(crate) fn attempt(&self, number: u8, attempt: u8) -> Request {
        let request = self.request(number).1;
        let session = Session { client: number.into(), sequence: 1, attempt: attempt.into() };
        let session = Some(session).filter(|_| self.numbered() && number < self.writes);
        Request { tag: request.tag | u64::from(attempt) << 8, session, ..request }
    }

    /// Of a reply's tag the request's number, and which attempt at it was answered.
    pub(crate) fn answered(tag: u64) -> (u8, u8) {
        (tag as u8, (tag >> 8) as u8)
    }

    /// At most so many versions are made. A read-modify-write, as all attempts but the first are, begins again after another
    /// request has ended that overtook it.
    pub(crate) fn versions(&self) -> usize {
        let reads = |number: &u8| matches!(self.request(*number).1.op, Op::FetchAdd(..) | Op::CompareSwap { .. });
        let (writes, again) = (usize::from(self.writes), usize::from(self.again));
        let reads = (0..self.writes).filter(reads).count() + again;
        writes + again - reads + reads * (writes + again)
    }

    /// Has this shard a part of it? Without faults there is nothing to split: each model is one shard's.
    pub fn is_shards(&self) -> bool {
        self.failures != Failures::default() || self.shard.has(self.model as u64)
    }

    /// How many requests there are.
    pub(crate) fn requests(&self) -> u8 {
        self.writes + if self.model.facts().scopes { self.persists } else { 0 }
    }
}

/// What can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// A client sends its request.
    Submit(u8),
    /// The first client sends it again, to this node.
    Again(NodeId),
    /// A message arrives.
    Deliver(EnvelopeId),
    /// A message arrives, and will again.
    Duplicate(EnvelopeId),
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
    /// It is, and all nodes that are up enter it at once, but those where a client could tell.
    Enter(View),
    /// A node enters the newest view.
    Install(NodeId),
    /// Nothing else can happen: everyone sends again what was not answered.
    Timeout,
}

/// What swaps compare with.
const SWAPPED: u64 = 1000;

/// How often everyone sends again.
const TIMEOUTS: u8 = 6;

/// The system under check.
pub(crate) struct System {
    pub options: Options,
    pub alike: Alike,
    locals: RwLock<Locals>,
    reached: Arc<Mutex<Marks>>,
}

impl System {
    pub fn new(options: Options) -> Self {
        Self { alike: Alike::new(&options), options, locals: RwLock::default(), reached: Arc::default() }
    }

    /// What was reached, over all states.
    pub fn reached(&self) -> Arc<Mutex<Marks>> {
        self.reached.clone()
    }

    /// Nodes and messages by number.
    pub fn locals(&self) -> RwLockReadGuard<'_, Locals> {
        self.locals.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        NodeSet::first(self.options.nodes).iter()
    }

    /// The view that should follow, if there is cause.
    fn next_view(&self, locals: &Locals, state: &State) -> Option<View> {
        let newest = state.view;
        let facts = |id| state.facts(locals, id);
        if !state.installed_everywhere(locals) {
            return None;
        }
        let up = self.nodes().filter(|&id| facts(id).up).fold(NodeSet::EMPTY, NodeSet::with);
        let amnesiac = |id: NodeId| facts(id).up && facts(id).view.members.is_empty();
        if newest.members.iter().all(|id| !facts(id).up || amnesiac(id)) {
            // All members crashed: they recover when all are back.
            let (whole, epoch) = (up.covers(newest.members), newest.epoch + 1);
            return whole.then_some(View { epoch, members: newest.members, learners: NodeSet::EMPTY, recovery: true });
        }
        let merging = newest.members.iter().any(|id| facts(id).merging);
        let stay = newest.members.and(up).minus(state.suspected);
        let stay = stay.iter().filter(|&id| !amnesiac(id)).fold(NodeSet::EMPTY, NodeSet::with);
        let ready = newest.learners.and(up).iter().filter(|&id| facts(id).caught_up);
        let members = ready.fold(stay, NodeSet::with);
        let learners = up.minus(members).minus(state.suspected);
        let learners = if merging { NodeSet::EMPTY } else { learners };
        let changes = (members, learners) != (newest.members, newest.learners);
        // Epochs only have to grow, and who missed a view goes on with the next: after the same number of views more or
        // less all is the same. So what kind of view it is chooses among the next three numbers.
        let kind = match (learners.is_empty(), members.minus(newest.members).is_empty()) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        let epoch = (newest.epoch + 1..newest.epoch + 4).find(|epoch| epoch % 3 == kind).unwrap_or_default();
        let view = View { epoch, members, learners, recovery: merging };
        (changes && !stay.is_empty() && !merging).then_some(view)
    }

    /// Does nothing disturb any more: no fault, no new view? And does no message come twice, nor has any been sent again?
    pub fn calm(&self, locals: &Locals, state: &State) -> bool {
        let Failures { crashes, suspicions, restarts, blackouts, .. } = state.left;
        let view = state.view;
        let settled = |id: NodeId| {
            let facts = state.facts(locals, id);
            let member = facts.view == view && view.members.has(id) && !facts.merging;
            if facts.up { member } else { restarts == 0 && !view.all().has(id) }
        };
        // With more than one PERSIST, what one sees of a scope depends on what has arrived and on what another has ended. With
        // requests sent again, the scope's writes may go on after it; and after a fault a node may drive one attempt and
        // replay another.
        let no_faults = self.options.failures == Failures::default();
        let once = self.options.again == 0 || no_faults && !self.options.model.facts().scopes;
        (crashes, suspicions, blackouts) == (0, 0, 0)
            && self.options.persists == 1
            && once
            && self.options.failures.duplicates == 0
            && state.left_timeouts == TIMEOUTS
            && state.suspected.is_empty()
            && self.nodes().all(settled)
    }

    /// Can something happen for certain? Says so without looking at all that can.
    pub fn goes_on(&self, locals: &Locals, state: &State) -> bool {
        let arrives = |&envelope: &EnvelopeId| deliverable(locals, state, envelope);
        state.nodes.iter().any(|&node| !locals.facts(node).jobs.is_empty()) || state.net.iter().any(arrives)
    }

    /// All that can happen but faults.
    fn ordinary_actions(&self, locals: &Locals, state: &State, actions: &mut Vec<Action>) {
        for number in 0..self.options.requests() {
            if state.ops[usize::from(number)].issued {
                continue;
            }
            let (at, _) = self.options.request(number);
            // A PERSIST follows what it is about.
            let writes = (number + 1).checked_sub(self.options.persists).filter(|_| number >= self.options.writes);
            let serves = state.facts(locals, at).serves;
            if serves && state.replied(writes.unwrap_or(0)) {
                actions.push(Action::Submit(number));
            }
        }
        for &envelope in state.net.iter().filter(|&&envelope| deliverable(locals, state, envelope)) {
            actions.push(Action::Deliver(envelope));
            if state.left.duplicates > 0 {
                actions.push(Action::Duplicate(envelope));
            }
        }
        for id in self.nodes() {
            actions.extend(state.facts(locals, id).jobs.iter().map(|&job| Action::Done(id, job)));
        }
        for id in self.nodes() {
            let behind = |facts: &Facts| facts.up && facts.view.epoch < state.view.epoch;
            if behind(state.facts(locals, id)) && !state.suspected.has(id) {
                actions.push(Action::Install(id));
            }
        }
        actions.extend(self.next_view(locals, state).map(Action::Decide));
    }

    /// May the first request be sent again?
    pub fn asks_again(&self, state: &State) -> bool {
        state.ops[0].attempt < self.options.again
    }

    /// Need this not happen, though it can?
    pub fn may_fail_to_come(state: &State, action: Action) -> bool {
        matches!(action, Action::Again(_)) || action == Action::Submit(0) && state.ops[0].late
    }

    /// Attempts at the first request, of which nothing is certain.
    fn attempts(&self, locals: &Locals, state: &State, actions: &mut Vec<Action>) {
        let serves = |id| state.facts(locals, id).serves;
        if state.ops[0].late && serves(self.options.request(0).0) {
            actions.push(Action::Submit(0));
        }
        if self.asks_again(state) {
            actions.extend(self.nodes().filter(|&id| serves(id)).map(Action::Again));
        }
    }

    fn fault_actions(&self, locals: &Locals, state: &State, actions: &mut Vec<Action>) {
        if state.left == Failures::default() {
            return;
        }
        let up: Vec<NodeId> = self.nodes().filter(|&id| state.facts(locals, id).up).collect();
        let begun = state.ops.iter().any(|op| op.issued);
        if state.left.blackouts > 0 && begun {
            actions.push(Action::Blackout);
        }
        for &id in &up {
            let others = up.len() > usize::from(self.options.nodes / 2 + 1) && state.installed_everywhere(locals);
            if state.left.crashes > 0 && others && begun {
                actions.push(Action::Crash(id));
            }
            if state.left.suspicions > 0 && others && begun && state.view.members.has(id) {
                actions.push(Action::Suspect(id));
            }
        }
        for id in self.nodes() {
            if state.left.restarts > 0 && !state.facts(locals, id).up {
                actions.push(Action::Restart(id));
            }
        }
    }

    /// All that can happen, in all orders.
    pub fn all_actions(&self, locals: &Locals, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        self.ordinary_actions(locals, state, actions);
        if actions.is_empty() && state.left_timeouts > 0 && !state.quiet(locals) {
            actions.push(Action::Timeout);
        }
        self.fault_actions(locals, state, actions);
        self.attempts(locals, state, actions);
    }

    /// All that has to be tried.
    fn worthwhile(&self, locals: &Locals, state: &State, actions: &mut Vec<Action>) -> Result<(), Unknown> {
        actions.clear();
        self.all_actions(locals, state, actions);
        if self.options.orders == Orders::Reduced {
            reduce::reduce(self, locals, state, actions)?;
        }
        Ok(())
    }

    /// Leaves to other shards what is theirs: of the first fault, whom it strikes and how far the requests are then.
    fn keep_own(&self, locals: &Locals, state: &State, actions: &mut Vec<Action>) {
        if self.options.shard == Shard::WHOLE || state.left != self.options.failures {
            return;
        }
        let nodes = u64::from(self.options.nodes);
        let stage = |op: &OpState| u64::from(op.issued) + u64::from(op.outcome.is_some());
        let stages = state.ops.iter().fold(0, |stages, op| 3 * stages + stage(op));
        actions.retain(|action| {
            let struck = match action {
                Action::Crash(id) => u64::from(id.0),
                Action::Suspect(id) => nodes + u64::from(id.0),
                Action::Duplicate(envelope) => 2 * nodes + u64::from(locals.envelope(*envelope).to.0),
                Action::Blackout => 3 * nodes,
                _ => return true,
            };
            self.options.shard.has(struck + (3 * nodes + 1) * stages + self.options.model as u64)
        });
    }

    /// Notes what is wrong with a state.
    pub fn look(&self, locals: &Locals, state: &mut State) {
        invariants::look(locals, &self.options, state);
    }

    /// What comes of an action.
    pub fn after(&self, last: &State, action: Action) -> State {
        let mut state = last.clone();
        loop {
            let locals = self.locals();
            let Err(unknown) = self.step(&locals, &mut state, action) else {
                self.look(&locals, &mut state);
                return state;
            };
            drop(locals);
            self.learn(unknown);
            state.clone_from(last);
        }
    }

    /// The state after an action, as it is visited. Nobody has looked at it yet.
    pub fn advance(&self, locals: &Locals, last: &State, state: &mut State, action: Action) -> Result<(), Unknown> {
        self.take(locals, last, state, action)?;
        self.alike.choose(locals, &self.options, state)
    }

    /// The state after an action, without what makes no difference to what follows.
    pub fn take(&self, locals: &Locals, last: &State, state: &mut State, action: Action) -> Result<(), Unknown> {
        state.clone_from(last);
        self.step(locals, state, action)?;
        if self.options.orders == Orders::Reduced {
            if let Some(ack) = reduce::carries(self, locals, last, action) {
                self.step(locals, state, Action::Deliver(ack))?;
            }
            reduce::bury(locals, state);
            self.forget(locals, state);
        }
        Ok(())
    }

    /// May what is durable at nodes that have no part in a view be forgotten? A node that is down, or up again and in no
    /// view yet, has a log that counts only if all crash: before it takes part again it begins anew.
    fn goes_on_without(&self, locals: &Locals, state: &State) -> bool {
        state.left.blackouts == 0 && state.view.members.iter().any(|id| state.facts(locals, id).serves)
    }

    /// Forgets what nobody will ask. What a member has durable is looked at until a view is without it.
    fn forget(&self, locals: &Locals, state: &mut State) {
        if self.goes_on_without(locals, state) {
            let view = state.view.all();
            let gone = (0..).map(NodeId).zip(&mut state.nodes).filter(|(id, _)| !view.has(*id));
            gone.for_each(|(_, node)| *node = locals.facts(*node).plain);
        }
    }

    /// The state without what makes no difference to what can happen.
    pub fn plain(&self, state: &State) -> State {
        let (mut state, locals) = (state.clone(), self.locals());
        if self.goes_on_without(&locals, &state) {
            state.nodes.iter_mut().for_each(|node| *node = locals.facts(*node).plain);
        }
        state
    }

    /// Finds out what nobody knew.
    pub fn learn(&self, unknown: Unknown) {
        let mut locals = self.locals.write().unwrap_or_else(PoisonError::into_inner);
        let marks = locals.learn(&self.options, &self.alike.names, unknown);
        self.reached.lock().unwrap_or_else(PoisonError::into_inner).add(&marks);
    }

    /// An action. If it is not known what comes of it, the state is spoilt.
    fn step(&self, locals: &Locals, state: &mut State, action: Action) -> Result<(), Unknown> {
        match action {
            Action::Submit(number) => {
                let (at, _) = self.options.request(number);
                state.submit(number, at);
                self.node_step(locals, state, at, Event::Submit(number, 0))?;
            }
            Action::Again(id) => {
                state.ask_again(id);
                self.node_step(locals, state, id, Event::Submit(0, state.ops[0].attempt))?;
            }
            Action::Deliver(envelope) => {
                state.net.retain(|&other| other != envelope);
                self.deliver(locals, state, envelope)?;
            }
            Action::Duplicate(envelope) => {
                state.left.duplicates -= 1;
                self.deliver(locals, state, envelope)?;
            }
            Action::Done(id, job) => self.node_step(locals, state, id, Event::Done(job))?,
            Action::Crash(id) => {
                state.left.crashes -= 1;
                self.crash(locals, state, id)?;
            }
            Action::Blackout => {
                state.left.blackouts -= 1;
                self.nodes().try_for_each(|id| self.crash(locals, state, id))?;
                state.left.restarts = self.options.nodes;
                state.all_lost(&self.options);
            }
            Action::Restart(id) => {
                state.left.restarts -= 1;
                self.node_step(locals, state, id, Event::Restart)?;
            }
            Action::Suspect(id) => {
                state.left.suspicions -= 1;
                state.suspected = state.suspected.with(id);
                self.node_step(locals, state, id, Event::LoseLease)?;
            }
            Action::Decide(view) => {
                state.view = view;
                state.suspected = NodeSet::EMPTY;
            }
            Action::Enter(view) => {
                self.step(locals, state, Action::Decide(view))?;
                for id in self.nodes() {
                    if state.facts(locals, id).up && !reduce::hides(self, locals, state, id)? {
                        self.step(locals, state, Action::Install(id))?;
                    }
                }
            }
            Action::Install(id) => self.node_step(locals, state, id, Event::Install(state.view))?,
            Action::Timeout => {
                state.left_timeouts -= 1;
                self.nodes().try_for_each(|id| self.node_step(locals, state, id, Event::Timeout))?;
            }
        }
        Ok(())
    }

    fn deliver(&self, locals: &Locals, state: &mut State, envelope: EnvelopeId) -> Result<(), Unknown> {
        self.node_step(locals, state, locals.envelope(envelope).to, Event::Deliver(envelope))
    }

    fn crash(&self, locals: &Locals, state: &mut State, id: NodeId) -> Result<(), Unknown> {
        self.node_step(locals, state, id, Event::Crash)?;
        state.crashed(locals, id);
        Ok(())
    }

    fn node_step(&self, locals: &Locals, state: &mut State, id: NodeId, event: Event) -> Result<(), Unknown> {
        let effect = locals.effect(state.node(id), event)?;
        state.take(locals, &self.options, id, effect);
        state.note_done(locals, id);
        // What can be read now, nobody may read less than later.
        let readable = state.facts(locals, id).readable;
        state.floor.iter_mut().zip(readable).for_each(|(floor, ts)| *floor = ts.unwrap_or_default().max(*floor));
        Ok(())
    }
}

fn deliverable(locals: &Locals, state: &State, envelope: EnvelopeId) -> bool {
    let envelope = locals.envelope(envelope);
    let facts = state.facts(locals, envelope.to);
    facts.up && facts.view.epoch >= envelope.message.epoch
}

impl Space for System {
    type State = State;
    type Action = Action;
    type Steps<'a> = SystemSteps<'a>;

    fn first(&self) -> State {
        let view = View::first(NodeSet::first(self.options.nodes));
        let mut locals = self.locals.write().unwrap_or_else(PoisonError::into_inner);
        let local = |id| {
            let mut replica = Replica::new(self.options.config(id));
            replica.install(0, view);
            replica.set_lease(0, u64::MAX);
            let local = Local { id, replica: Some(replica), jobs: BTreeMap::new(), log: BTreeMap::new(), epoch: 1 };
            locals.number(&self.options, local)
        };
        State {
            nodes: self.nodes().map(local).collect(),
            net: Vec::new(),
            view,
            suspected: NodeSet::EMPTY,
            ops: vec![Default::default(); usize::from(self.options.requests())],
            floor: Default::default(),
            done: 0,
            left: self.options.failures,
            left_timeouts: TIMEOUTS,
            fault: None,
        }
    }

    fn steps(&self) -> SystemSteps<'_> {
        SystemSteps { system: self, locals: Some(self.locals()) }
    }
}

/// One thread's steps. While it makes them it may read what is known of nodes; it lets go of that to learn more.
pub(crate) struct SystemSteps<'a> {
    system: &'a System,
    locals: Option<RwLockReadGuard<'a, Locals>>,
}

impl SystemSteps<'_> {
    /// Lets others learn while this is done, or learns.
    fn without<T>(&mut self, act: impl FnOnce(&System) -> T) -> T {
        self.locals = None;
        let result = act(self.system);
        self.locals = Some(self.system.locals());
        result
    }
}

impl Steps for SystemSteps<'_> {
    type State = State;
    type Action = Action;

    fn advance(&mut self, last: &State, action: Action, next: &mut State) {
        while let Some(locals) = &self.locals
            && let Err(unknown) = self.system.advance(locals, last, next, action)
        {
            self.without(|system| system.learn(unknown));
        }
    }

    fn look(&mut self, state: &mut State, actions: &mut Vec<Action>) -> bool {
        let system = self.system;
        while let Some(locals) = &self.locals
            && let Err(unknown) = system.worthwhile(locals, state, actions)
        {
            self.without(|system| system.learn(unknown));
        }
        let Some(locals) = &self.locals else { return true };
        invariants::look(locals, &system.options, state);
        let holds = state.fault.is_none() && !invariants::stuck(system, locals, state, actions);
        system.keep_own(locals, state, actions);
        if holds && system.options.orders == Orders::Proof {
            return self.without(|system| proof::flaw(system, state).is_none());
        }
        holds
    }

    fn pause(&mut self) {
        self.without(|_| ());
    }
}

impl System {
    /// Does something for which more may have to be known.
    pub fn knowing<T>(&self, mut act: impl FnMut(&Locals) -> Result<T, Unknown>) -> T {
        loop {
            let known = act(&self.locals());
            match known {
                Ok(result) => return result,
                Err(unknown) => self.learn(unknown),
            }
        }
    }

    /// The states along a way from the first on, each with what led to it. The way is one of states that stand for all
    /// that are alike; these are those that a way has on which nobody changes names.
    pub fn path(&self, way: &[Action]) -> Vec<(Option<Action>, State)> {
        let mut chosen = self.first();
        let mut path = vec![(None, chosen.clone())];
        for &action in way {
            let (last, mut actions) = (path.last().map_or_else(|| self.first(), |(_, last)| last.clone()), Vec::new());
            let mut next = last.clone();
            self.knowing(|locals| self.advance(locals, &chosen, &mut next, action));
            chosen.clone_from(&next);
            self.knowing(|locals| self.worthwhile(locals, &last, &mut actions));
            self.all_actions(&self.locals(), &last, &mut actions);
            let led = [action].into_iter().chain(actions).find(|&action| {
                let mut alike = last.clone();
                self.knowing(|locals| {
                    self.take(locals, &last, &mut next, action)?;
                    alike.clone_from(&next);
                    self.alike.choose(locals, &self.options, &mut alike)
                });
                alike == chosen
            });
            self.look(&self.locals(), &mut next);
            path.push((led, next));
        }
        path
    }
}
