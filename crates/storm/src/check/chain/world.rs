//! A state of the system: replicas with their memory, messages under way, what was asked and answered; and how one leads
//! to the next.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use remora_replica::chain::{
    Chain, ChainConfig, ChainMessage, ChainOutcome, ChainOutput, ChainRequest, Extent, Layout, Transaction, Tuple,
};
use remora_replica::ddp::View;
use remora_replica::member::{Durable, Standing};
use remora_replica::types::{NodeId, NodeSet};

use super::ChainOptions;
use super::looks::Look;
use crate::search::{Space, Steps};
use crate::shown::Shown;

/// Two keys of eight bytes, and a ring of some entries.
pub(super) const KEYS: u64 = 2;
pub(super) const CELL: u64 = 8;
const LAYOUT: Layout = Layout { ring: 512, data: (KEYS * CELL) as usize };
/// How often at most all that was not answered is sent again, along one way.
const NUDGES: u8 = 12;

/// A message: from whom, to whom, of which epoch, what.
type Envelope = (NodeId, NodeId, u64, ChainMessage);

/// What a client asked and got.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Call {
    /// Who was asked, if somebody has it.
    pub node: Option<NodeId>,
    tries: u8,
    /// Those that had ended when it began.
    after: u8,
    pub stage: Stage,
    /// The READs that it makes, and the key that it has for them.
    pub look: Option<Look>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Stage {
    Idle,
    Asked,
    /// It read this.
    Done([u64; KEYS as usize]),
    /// Nobody knows.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    pub chain: Option<Chain>,
    /// What is durable, and what is on its way there.
    image: Vec<u8>,
    unflushed: VecDeque<(u64, u64, Vec<u8>)>,
    /// What READs find, if somebody makes some.
    pub shown: Option<Shown>,
}

/// A state.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub places: Vec<Arc<Place>>,
    messages: BTreeSet<Arc<Envelope>>,
    view: View,
    pub calls: Vec<Call>,
    left: [u8; 4],
    /// Nodes that have started since the view was decided.
    fresh: NodeSet,
    nudges: u8,
    fault: Option<Arc<str>>,
}

/// What can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// The message of this number arrives.
    Deliver(u8),
    /// All that was written there is durable.
    Flush(u8),
    /// A client asks.
    Ask(u8, u8),
    /// The next of its READs comes to the node.
    Look(u8),
    /// A node hears of the newest view.
    Install(u8),
    /// It loses its memory; of what was not flushed so many writes are durable, and perhaps a part of the next.
    Crash(u8, u8, bool),
    /// All do; a bit of each says whether all of that is durable, or the first write, torn.
    Blackout(u8),
    /// It starts again.
    Start(u8),
    /// A view without this node is decided though it is up.
    Suspect(u8),
    /// The view that is due is decided.
    Decide,
    /// All that was not answered is sent again, since nothing else can happen.
    Nudge,
}

const CRASHES: usize = 0;
const RESTARTS: usize = 1;
const SUSPICIONS: usize = 2;
const BLACKOUTS: usize = 3;

pub(super) struct World {
    options: ChainOptions,
}

fn id(node: u8) -> NodeId {
    NodeId(node)
}

impl World {
    pub fn new(options: ChainOptions) -> Self {
        Self { options }
    }

    fn config(&self, node: u8) -> ChainConfig {
        let nodes = NodeSet::first(self.options.nodes);
        let mut config = ChainConfig::new(id(node), nodes, LAYOUT.data);
        (config.ring, config.cell, config.piece, config.retry) = (LAYOUT.ring, CELL, CELL as usize, 0);
        (config.sessions, config.at_once, config.mutation) = (0, 1, self.options.mutation);
        config
    }

    fn is_writer(&self, call: usize) -> bool {
        call < usize::from(self.options.writes)
    }

    pub fn is_look(&self, call: usize) -> bool {
        call >= usize::from(self.options.writes + self.options.reads)
    }

    fn request(&self, call: usize) -> ChainRequest {
        let reads = (0..KEYS).map(|key| Extent { offset: key * CELL, length: CELL as u32 }).collect();
        let value = (call as u64 + 1).to_le_bytes();
        let writes = (0..KEYS).map(|key| Tuple { offset: key * CELL, data: value.as_slice().into() });
        let writes = if self.is_writer(call) { writes.collect() } else { Vec::new() };
        ChainRequest {
            tag: call as u64,
            session: None,
            transaction: Transaction { reads, expects: Vec::new(), writes },
        }
    }

    /// Can anything be lost any more?
    fn calm(state: &State) -> bool {
        state.left[CRASHES] == 0 && state.left[BLACKOUTS] == 0
    }

    fn enter(&self, state: &mut State, node: u8) {
        let view = state.view;
        self.turn(state, node, |chain| {
            chain.install(0, view);
            chain.set_lease(0, 1);
        });
    }

    /// Something happens to a node, and it does what comes of that.
    fn turn(&self, state: &mut State, node: u8, what: impl FnOnce(&mut Chain)) {
        let mut place = (*state.places[usize::from(node)]).clone();
        let (Some(chain), shown) = (&mut place.chain, &mut place.shown) else { return };
        what(chain);
        loop {
            while let Some(output) = chain.poll() {
                match output {
                    ChainOutput::Send(to, epoch, message) => {
                        state.messages.insert(Arc::new((id(node), to, epoch, message)));
                    }
                    ChainOutput::Write(token, at, bytes) => {
                        if let Some(shown) = shown {
                            shown.write(chain, at, &bytes);
                        }
                        place.unflushed.push_back((token, at, bytes));
                    }
                    ChainOutput::Reply(reply) => {
                        let call = &mut state.calls[reply.tag as usize];
                        call.stage = match reply.outcome {
                            ChainOutcome::Done(read) => Stage::Done([0, 1].map(|key| number(&read[key]))),
                            ChainOutcome::Unequal(_) | ChainOutcome::Refused(_) => Stage::Idle,
                            ChainOutcome::Before | ChainOutcome::Unknown => Stage::Unknown,
                        };
                        call.node = None;
                    }
                    ChainOutput::Kept(_) => {}
                }
            }
            match place.unflushed.back() {
                Some((token, ..)) if Self::calm(state) => {
                    chain.persisted(0, *token);
                    place.unflushed.clear();
                }
                _ => break,
            }
        }
        if Self::calm(state) {
            // Nobody looks at it any more: a node that starts again later is down now.
            place.image.clear();
        }
        chain.forget_marks();
        state.places[usize::from(node)] = Arc::new(place);
    }

    fn crash(&self, state: &mut State, node: u8, keep: usize, torn: bool) {
        let mut place = (*state.places[usize::from(node)]).clone();
        let unflushed = std::mem::take(&mut place.unflushed);
        for (index, (_, at, mut bytes)) in unflushed.into_iter().enumerate() {
            if index == keep && torn {
                // Torn behind the words that say which entry it is.
                bytes.truncate((bytes.len() / 2).next_multiple_of(8).min(32));
            } else if index >= keep {
                break;
            }
            place.image[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        (place.chain, place.shown) = (None, None);
        state.places[usize::from(node)] = Arc::new(place);
        for call in state.calls.iter_mut().filter(|call| call.node == Some(id(node))) {
            (call.node, call.stage, call.look) = (None, Stage::Unknown, None);
        }
    }

    fn chain<'a>(&self, state: &'a State, node: NodeId) -> Option<&'a Chain> {
        state.places[usize::from(node.0)].chain.as_ref()
    }

    /// The view that is due, if another one is: whoever is down, or comes from a crash, is no member; who has caught up is.
    fn due(&self, state: &State) -> Option<View> {
        self.due_without(state, NodeSet::EMPTY)
    }

    /// The same if these are taken to be down.
    fn due_without(&self, state: &State, suspected: NodeSet) -> Option<View> {
        let view = state.view;
        let all = NodeSet::first(self.options.nodes);
        let up = all.iter().filter(|&node| self.chain(state, node).is_some()).fold(NodeSet::EMPTY, NodeSet::with);
        // Those that have kept their memory.
        let alive = up.minus(state.fresh).minus(suspected);
        let stay = view.members.and(alive);
        let serves = |node: NodeId| {
            let chain = self.chain(state, node);
            chain.is_some_and(|it| it.view().epoch == view.epoch && it.status() == Some(Standing::Serving))
        };
        // As long as nobody serves after all were down, what a member has may be in its log alone.
        if stay.is_empty() || view.recovery && !view.members.iter().any(serves) {
            let members = view.members.and(up).minus(suspected);
            let changes = members != view.members || !members.and(state.fresh).is_empty();
            let next = View { epoch: view.epoch + 1, members, learners: NodeSet::EMPTY, recovery: true };
            return (changes && !members.is_empty()).then_some(next);
        }
        let ready = |node: &NodeId| {
            let chain = self.chain(state, *node);
            chain.is_some_and(|it| it.view().epoch == view.epoch && it.status() == Some(Standing::Ready))
        };
        let members = view.learners.iter().filter(ready).fold(stay, NodeSet::with);
        // READs are answered without anybody's help: then it matters how long a node that is left out knows nothing of it.
        let unheard = if self.options.looks > 0 { suspected } else { NodeSet::EMPTY };
        let learners = up.minus(members).minus(unheard);
        let back = !view.learners.and(up).minus(alive).is_empty();
        let changes = (members, learners) != (view.members, view.learners) || back;
        changes.then_some(View { epoch: view.epoch + 1, members, learners, recovery: false })
    }

    fn decide(&self, state: &mut State, view: View) {
        state.view = view;
        state.fresh = NodeSet::EMPTY;
        for node in 0..self.options.nodes {
            if !view.members.has(id(node)) {
                self.turn(state, node, |chain| chain.set_lease(0, 0));
            }
        }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, envelope) in state.messages.iter().enumerate() {
            let (_, to, epoch, _) = &**envelope;
            if self.chain(state, *to).is_some_and(|chain| chain.view().epoch >= *epoch) {
                actions.push(Action::Deliver(number as u8));
            }
        }
        for node in 0..self.options.nodes {
            let place = &state.places[usize::from(node)];
            match &place.chain {
                Some(chain) => {
                    if !place.unflushed.is_empty() {
                        actions.push(Action::Flush(node));
                    }
                    if chain.view().epoch < state.view.epoch && state.view.all().has(id(node)) {
                        actions.push(Action::Install(node));
                    }
                }
                None if state.left[RESTARTS] > 0 => actions.push(Action::Start(node)),
                None => {}
            }
        }
        if self.due(state).is_some() {
            actions.push(Action::Decide);
        }
        let calls = state.calls.iter().enumerate();
        actions.extend(calls.filter(|(_, call)| call.look.is_some()).map(|(number, _)| Action::Look(number as u8)));
        let busy = !actions.is_empty();
        for (number, call) in state.calls.iter().enumerate().filter(|(_, call)| call.stage == Stage::Idle) {
            for node in (0..self.options.nodes).filter(|_| call.tries < 2) {
                let serves = self.chain(state, id(node)).is_some_and(|chain| {
                    if self.is_look(number) {
                        return chain.window().is_some();
                    }
                    let here = chain.view().members.has(id(node));
                    here && (!self.is_writer(number) || chain.head() == Some(id(node)))
                });
                if serves {
                    actions.push(Action::Ask(number as u8, node));
                }
            }
        }
        if !busy {
            let waits = state.calls.iter().any(|call| call.stage == Stage::Asked);
            let learns = (state.view.learners.iter()).any(|node| self.chain(state, node).is_some());
            let uneven = self.uneven(state).is_some();
            if waits || learns || uneven {
                actions.push(Action::Nudge);
            }
        }
        for node in 0..self.options.nodes {
            let place = &state.places[usize::from(node)];
            let up = place.chain.is_some();
            let others = state.view.members.without(id(node)).iter().any(|other| self.chain(state, other).is_some());
            if up && others && state.left[CRASHES] > 0 {
                for keep in 0..=place.unflushed.len() as u8 {
                    actions.push(Action::Crash(node, keep, false));
                    actions.push(Action::Crash(node, keep, true));
                }
            }
            if up && others && state.left[SUSPICIONS] > 0 && state.view.members.has(id(node)) {
                actions.push(Action::Suspect(node));
            }
        }
        if state.left[BLACKOUTS] > 0 {
            let bits = (0..self.options.nodes).filter(|&node| !state.places[usize::from(node)].unflushed.is_empty());
            let mask = bits.fold(0, |mask, node| mask | 1 << node);
            actions.extend((0..1 << self.options.nodes).filter(|keep| keep & !mask == 0).map(Action::Blackout));
        }
    }

    fn after(&self, last: &State, action: Action) -> State {
        let mut state = last.clone();
        match action {
            Action::Deliver(number) => {
                let envelope = state.messages.iter().nth(number.into()).cloned();
                if let Some(envelope) = envelope {
                    state.messages.remove(&envelope);
                    let (from, to, epoch, message) = (*envelope).clone();
                    self.turn(&mut state, to.0, |chain| chain.handle(0, from, epoch, message));
                }
            }
            Action::Flush(node) => {
                let mut place = (*state.places[usize::from(node)]).clone();
                let mut token = 0;
                for (number, at, bytes) in place.unflushed.drain(..) {
                    token = number;
                    if place.image.is_empty() {
                        continue;
                    }
                    place.image[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                }
                state.places[usize::from(node)] = Arc::new(place);
                self.turn(&mut state, node, |chain| chain.persisted(0, token));
            }
            Action::Ask(number, node) => {
                let after = (0..).zip(&last.calls).filter(|(_, call)| matches!(call.stage, Stage::Done(_)));
                let after = after.fold(0, |mask, (bit, _)| mask | 1 << bit);
                let tries = last.calls[usize::from(number)].tries + 1;
                let look = self.is_look(number.into()).then(|| self.begins_to_look(last, id(node))).flatten();
                let looks = look.is_some();
                let call = Call { node: Some(id(node)), tries, after, stage: Stage::Asked, look };
                state.calls[usize::from(number)] = call;
                if !looks {
                    let request = self.request(number.into());
                    self.turn(&mut state, node, |chain| chain.submit(0, request));
                }
            }
            Action::Look(number) => self.looks(&mut state, number.into()),
            Action::Install(node) => self.enter(&mut state, node),
            Action::Crash(node, keep, torn) => {
                state.left[CRASHES] -= 1;
                self.crash(&mut state, node, keep.into(), torn);
            }
            Action::Blackout(keep) => {
                state.left[BLACKOUTS] -= 1;
                for node in 0..self.options.nodes {
                    let whole = keep >> node & 1 == 1;
                    self.crash(&mut state, node, if whole { usize::MAX } else { 0 }, !whole);
                    self.start(&mut state, node);
                }
                state.messages.clear();
            }
            Action::Start(node) => {
                state.left[RESTARTS] -= 1;
                self.start(&mut state, node);
            }
            Action::Suspect(node) => {
                state.left[SUSPICIONS] -= 1;
                if let Some(view) = self.due_without(&state, NodeSet::EMPTY.with(id(node))) {
                    self.decide(&mut state, view);
                }
            }
            Action::Decide => {
                if let Some(view) = self.due(&state) {
                    self.decide(&mut state, view);
                }
            }
            Action::Nudge => {
                state.nudges += 1;
                (0..self.options.nodes).for_each(|node| self.turn(&mut state, node, |chain| chain.timeout(0)));
            }
        }
        self.forget_lost(&mut state);
        self.judge(&mut state, action);
        state
    }

    fn start(&self, state: &mut State, node: u8) {
        let mut place = (*state.places[usize::from(node)]).clone();
        if place.image.is_empty() {
            place.image = vec![0; LAYOUT.bytes()];
        }
        let chain = Chain::new(self.config(node), 0, &place.image);
        place.shown = (self.options.looks > 0).then(|| Shown::new(&chain));
        place.chain = Some(chain);
        state.fresh = state.fresh.with(id(node));
        state.places[usize::from(node)] = Arc::new(place);
        self.turn(state, node, |_| {});
    }

    /// Messages that nobody takes any more.
    fn forget_lost(&self, state: &mut State) {
        let messages = std::mem::take(&mut state.messages);
        let reaches = |envelope: &Arc<Envelope>| {
            let (_, to, epoch, _) = &**envelope;
            self.chain(state, *to).is_some_and(|chain| chain.view().epoch <= *epoch)
        };
        state.messages = messages.into_iter().filter(reaches).collect();
    }

    /// In the end all members have the same data.
    fn uneven(&self, state: &State) -> Option<String> {
        let data = |node: NodeId| self.chain(state, node).map(|chain| (chain.data(), chain.log_ends()));
        let members: Vec<_> = state.view.members.iter().filter_map(|node| Some((node, data(node)?))).collect();
        let (first, rest) = members.split_first()?;
        let other = rest.iter().find(|(_, data)| data != &first.1);
        let open = members.iter().find(|(_, (_, (last, applied)))| last != applied);
        let text = |node| format!("{} and {node} have different data in the end", first.0);
        other.map(|(node, _)| text(*node)).or(open.map(|(node, _)| format!("{node} has an entry under way in the end")))
    }

    fn judge(&self, state: &mut State, action: Action) {
        if state.fault.is_some() {
            return;
        }
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        let over = !actions.iter().any(|action| {
            !matches!(action, Action::Crash(..) | Action::Blackout(_) | Action::Suspect(_) | Action::Ask(..))
        });
        let end = over.then(|| state.view.members.iter().find_map(|node| self.chain(state, node))).flatten();
        let end = end.map(|chain| [0, 1].map(|key| number(&chain.data()[key * CELL as usize..])));
        let fault = if matches!(action, Action::Nudge) && state.nudges > NUDGES {
            Some(self.uneven(state).unwrap_or_else(|| "somebody waits for ever".into()))
        } else {
            (!self.explained(state, end)).then(|| "no order of the transactions explains what was read".into())
        };
        state.fault = fault.map(Into::into);
    }

    /// Is there an order of the transactions that explains what they read, and what is there in the end?
    fn explained(&self, state: &State, end: Option<[u64; 2]>) -> bool {
        self.orders(&state.calls, 0, [0, 0], end)
    }

    fn orders(&self, calls: &[Call], placed: u8, data: [u64; 2], end: Option<[u64; 2]>) -> bool {
        let is_done = |call: &Call| matches!(call.stage, Stage::Done(_));
        let all = (0..).zip(calls).filter(|(_, call)| is_done(call)).all(|(bit, _)| placed >> bit & 1 == 1);
        if all && end.is_none_or(|end| end == data) {
            return true;
        }
        (0_u8..).zip(calls).any(|(bit, call)| {
            let possible = placed >> bit & 1 == 0 && call.stage != Stage::Idle && call.after & !placed == 0;
            let right = match call.stage {
                Stage::Done(read) => read == data,
                _ => self.is_writer(bit.into()),
            };
            let next = if self.is_writer(bit.into()) { [u64::from(bit) + 1; 2] } else { data };
            possible && right && self.orders(calls, placed | 1 << bit, next, end)
        })
    }

    /// What is wrong at the end of a way, and the way.
    pub fn chart(&self, way: &[Action]) -> (String, String) {
        let (mut state, mut lines) = (self.first(), Vec::new());
        for &action in way {
            let next = self.after(&state, action);
            lines.push(self.line(&state, &next, action));
            state = next;
        }
        let reason = state.fault.as_ref().map(|fault| fault.to_string()).unwrap_or_default();
        lines.push(format!("=> {reason}"));
        (reason, lines.join("\n"))
    }

    fn line(&self, before: &State, after: &State, action: Action) -> String {
        let ended = before.calls.iter().zip(&after.calls).enumerate().filter(|(_, (old, new))| old.stage != new.stage);
        let ended: String = ended.map(|(number, (_, new))| format!("; T{number} {:?}", new.stage)).collect();
        let what = match action {
            Action::Deliver(number) => match before.messages.iter().nth(number.into()) {
                Some(envelope) => format!("{} -> {}  [{}] {}", envelope.0, envelope.1, envelope.2, say(&envelope.3)),
                None => String::new(),
            },
            Action::Flush(node) => format!("n{node}        flushes"),
            Action::Ask(call, node) => format!("T{call} -> n{node}"),
            Action::Look(call) => format!("T{call} READs"),
            Action::Install(node) => format!("n{node}        enters {}", before.view),
            Action::Crash(node, keep, torn) => {
                format!(
                    "n{node}        CRASH, {keep} writes more are durable{}",
                    if torn { ", the next is torn" } else { "" }
                )
            }
            Action::Blackout(keep) => {
                format!("          ALL CRASH and start, with all writes where a bit is 1: {keep:03b}")
            }
            Action::Start(node) => format!("n{node}        starts again"),
            Action::Suspect(node) => format!("          decided without n{node}, which is up: {}", after.view),
            Action::Decide => format!("          decided: {}", after.view),
            Action::Nudge => "          what was not answered is sent again".into(),
        };
        what + &ended
    }
}

fn say(message: &ChainMessage) -> String {
    match message {
        ChainMessage::Forward(entries) => {
            format!("forward {:?}", entries.iter().map(|entry| entry.seq).collect::<Vec<_>>())
        }
        ChainMessage::Ack(seq, ..) => format!("ack {seq}"),
        ChainMessage::Commit(seq) => format!("commit {seq}"),
        ChainMessage::State(synced, applied, entries) => {
            format!("my log is of view {synced}, applied up to {applied}, and {} more", entries.len())
        }
        ChainMessage::Sync(applied, _, entries) => {
            format!("the log: applied up to {applied}, and {} more", entries.len())
        }
        ChainMessage::Want(piece) => format!("wants piece {piece}"),
        ChainMessage::Piece(piece, applied, ..) => format!("piece {piece}, as of {applied}"),
    }
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Space for World {
    type State = State;
    type Action = Action;
    type Steps<'a> = &'a Self;

    fn first(&self) -> State {
        let ChainOptions { nodes, writes, reads, looks, crashes, restarts, suspicions, blackouts, .. } = self.options;
        let place = Place { chain: None, image: vec![0; LAYOUT.bytes()], unflushed: VecDeque::new(), shown: None };
        let call = Call { node: None, tries: 0, after: 0, stage: Stage::Idle, look: None };
        let mut state = State {
            places: (0..nodes).map(|_| Arc::new(place.clone())).collect(),
            messages: BTreeSet::new(),
            view: View::first(NodeSet::first(nodes)),
            calls: vec![call; (writes + reads + looks).into()],
            left: [crashes, restarts, suspicions, blackouts],
            fresh: NodeSet::EMPTY,
            nudges: 0,
            fault: None,
        };
        // The first view has begun, everywhere and for good.
        let view = state.view;
        for node in 0..nodes {
            self.start(&mut state, node);
            self.turn(&mut state, node, |chain| chain.keep(0, Durable { view, ..Durable::default() }));
            self.enter(&mut state, node);
        }
        state.fresh = NodeSet::EMPTY;
        loop {
            for node in 0..nodes {
                if !state.places[usize::from(node)].unflushed.is_empty() {
                    state = self.after(&state, Action::Flush(node));
                }
            }
            match state.messages.is_empty() {
                true => break,
                false => state = self.after(&state, Action::Deliver(0)),
            }
        }
        state
    }

    fn steps(&self) -> &Self {
        self
    }
}

impl Steps for &World {
    type State = State;
    type Action = Action;

    fn advance(&mut self, last: &State, action: Action, next: &mut State) {
        *next = self.after(last, action);
    }

    fn look(&mut self, state: &mut State, actions: &mut Vec<Action>) -> bool {
        actions.clear();
        self.actions(state, actions);
        state.fault.is_none()
    }
}
