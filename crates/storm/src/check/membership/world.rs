//! A state of the system: nodes with their disks, and what has been said; and how one leads to the next.
//!
//! Messages stay: each may arrive at any later time, any number of times, or never. The engine is asked once what an
//! event makes of a node; after that it is looked up, so that a state is a few numbers.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use remora_replica::ddp::View;
use remora_replica::member::{Durable, MemberOutput, Membership, Mutation, Notice, Standing, Timing};
use remora_replica::types::{NodeId, NodeSet};

use super::MemberOptions;

/// All at once: whoever is asked to wait waits until the check says so.
const TIMING: Timing = Timing { beat: 0, lease: 0, term: 0, suspect: 0, recover: None };

/// A message: from whom, to whom, what.
pub(super) type Envelope = (NodeId, NodeId, Notice);

/// What a log holds of membership.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Log {
    /// `None` while the log is empty.
    pub durable: Option<Durable>,
    /// It says that it is not what it was.
    damaged: bool,
}

/// A change of the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Entry {
    Member(u64, Durable),
    Damaged,
    /// What a learner begins with: from here on its log is whole.
    Reset,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Place {
    /// While it is up.
    pub member: Option<Membership>,
    pub log: Log,
    unsynced: Vec<Entry>,
    life: u64,
    /// The newest epoch that it has entered, in any life.
    entered: u64,
    /// Its disk came back empty, and it has had no place since.
    wiped: bool,
}

/// What happens to a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Event {
    /// A message arrives.
    Deliver(u16),
    /// Its oldest unsynced change is durable.
    Sync,
    /// It proposes the view of this number.
    Propose(u8),
    /// It looks for the state of things.
    Ask,
    /// It loses its memory. Of what was not synced, so many changes are on its disk.
    Crash(u8),
    /// It loses its memory and its disk, as the only one that has been in a view: then nothing has been done there.
    Wipe { alone: bool },
    /// It starts again.
    Start,
}

/// What can happen next: an event of a node, or all crash, each with nothing (a bit that is 0), or with all, of what it
/// had not synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    One(NodeId, Event),
    Blackout(u8),
}

/// What comes of an event.
struct Effect {
    place: u32,
    sends: Vec<u16>,
    /// Views that it learns of, and what is wrong.
    views: Vec<View>,
    fault: Option<Arc<str>>,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Left {
    proposals: u8,
    crashes: u8,
    blackouts: u8,
    wipes: u8,
}

/// Places and messages by number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub nodes: Vec<u32>,
    /// All that was ever said, in the order of the numbers.
    said: Vec<u16>,
    /// By epoch.
    decided: Vec<View>,
    left: Left,
    pub fault: Option<Arc<str>>,
}

/// Things by number, each once.
struct Table<T> {
    list: Vec<Arc<T>>,
    numbers: HashMap<Arc<T>, u32>,
}

impl<T: Eq + Hash> Table<T> {
    fn new() -> Self {
        Self { list: Vec::new(), numbers: HashMap::new() }
    }

    fn number(&mut self, thing: T) -> u32 {
        if let Some(&number) = self.numbers.get(&thing) {
            return number;
        }
        let (thing, number) = (Arc::new(thing), self.list.len() as u32);
        self.list.push(thing.clone());
        self.numbers.insert(thing, number);
        number
    }
}

/// The system, with what is known of its steps.
pub(super) struct World {
    options: MemberOptions,
    places: Table<Place>,
    messages: Table<Envelope>,
    effects: HashMap<(u32, NodeId, Event), Arc<Effect>>,
}

fn index(node: NodeId) -> usize {
    usize::from(node.0)
}

impl Place {
    fn standing(&self) -> Standing {
        match self.log {
            Log { damaged: true, .. } => Standing::Damaged,
            Log { durable: None, .. } => Standing::New,
            Log { durable: Some(durable), .. } if durable.view.epoch == 0 => Standing::Starting,
            _ => Standing::Joining,
        }
    }

    fn start(&mut self, options: &MemberOptions, id: NodeId) {
        let (nodes, durable) = (NodeSet::first(options.nodes), self.log.durable.unwrap_or_default());
        // Its clock goes on from life to life.
        let member = Membership::new(self.life, id, nodes, TIMING, durable, self.standing());
        self.member = Some(member.mutated(options.mutation));
    }

    fn crash(&mut self, keep: u8) {
        let unsynced = std::mem::take(&mut self.unsynced);
        unsynced.into_iter().take(keep.into()).for_each(|entry| self.write(entry));
        self.member = None;
        self.life += 1;
    }

    fn write(&mut self, entry: Entry) {
        match entry {
            Entry::Member(_, durable) => self.log.durable = Some(durable),
            Entry::Damaged => self.log.damaged = true,
            Entry::Reset => self.log.damaged = false,
        }
    }

    fn is(&self, status: Standing) -> bool {
        self.member.as_ref().is_some_and(|member| member.status() == status)
    }

    fn asks(&self) -> bool {
        let status = self.member.as_ref().map(Membership::status);
        matches!(status, Some(Standing::New | Standing::Starting | Standing::Damaged))
    }
}

impl World {
    pub fn new(options: MemberOptions) -> Self {
        Self { options, places: Table::new(), messages: Table::new(), effects: HashMap::new() }
    }

    pub fn first(&mut self) -> State {
        let options = self.options;
        let durable = Durable { view: View::first(NodeSet::first(options.nodes)), ..Durable::default() };
        let log = Log { durable: (!options.first_start).then_some(durable), damaged: false };
        let entered = u64::from(!options.first_start);
        let node = |id: NodeId| {
            let mut place = Place { member: None, log, unsynced: Vec::new(), life: 0, entered, wiped: false };
            place.start(&options, id);
            self.places.number(place)
        };
        let MemberOptions { proposals, crashes, blackouts, wipes, .. } = options;
        State {
            nodes: NodeSet::first(options.nodes).iter().map(node).collect(),
            said: Vec::new(),
            decided: if options.first_start { Vec::new() } else { vec![durable.view] },
            left: Left { proposals, crashes, blackouts, wipes },
            fault: None,
        }
    }

    pub fn place(&self, state: &State, id: NodeId) -> &Place {
        &self.places.list[state.nodes[index(id)] as usize]
    }

    pub fn message(&self, number: u16) -> Envelope {
        *self.messages.list[usize::from(number)]
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        NodeSet::first(self.options.nodes).iter()
    }

    /// What has to be tried.
    pub fn actions(&mut self, state: &State, actions: &mut Vec<Action>) {
        self.all_actions(state, actions);
        if let Some(&first) = actions.iter().find(|&&action| self.only_says(state, action)) {
            actions.clear();
            actions.push(first);
        }
    }

    /// What can happen.
    pub fn all_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        if let Some(first) = self.comes_first(state) {
            return actions.push(first);
        }
        // More than one lost disk is more than is promised to be survived.
        let whole = self.ids().all(|id| !self.place(state, id).wiped);
        for id in self.ids() {
            let node = self.place(state, id);
            let mut one = |event: Event| actions.push(Action::One(id, event));
            let Some(member) = &node.member else { continue };
            let mine = |number: &&u16| self.message(**number).1 == id;
            state.said.iter().filter(mine).for_each(|&number| one(Event::Deliver(number)));
            let open = member.view().epoch < u64::from(self.options.epochs) + 1;
            if id.0 < self.options.proposers && left.proposals > 0 && !node.asks() && open {
                one(Event::Propose(self.options.proposals - left.proposals));
            }
            if !node.unsynced.is_empty() {
                one(Event::Sync);
            }
            if node.asks() {
                one(Event::Ask);
            }
            if left.crashes > 0 {
                (0..=node.unsynced.len() as u8).for_each(|keep| one(Event::Crash(keep)));
            }
            if left.wipes > 0 && whole {
                let alone = self.ids().all(|other| other == id || self.place(state, other).entered == 0);
                one(Event::Wipe { alone });
            }
        }
        if left.blackouts > 0 {
            let unsynced = |id: &NodeId| !self.place(state, *id).unsynced.is_empty();
            let some = self.ids().filter(unsynced).fold(0, |bits, id| bits | 1 << id.0);
            actions.extend((0..1 << self.options.nodes).filter(|keep| keep & !some == 0).map(Action::Blackout));
        }
    }

    /// What may as well happen first, and alone: a node starts, as one that is down does no more than one that hears
    /// nothing; and what can be lost no more becomes durable, as what waits for it may as well come late.
    fn comes_first(&self, state: &State) -> Option<Action> {
        let Left { crashes, blackouts, wipes, .. } = state.left;
        let one = |id: NodeId| {
            let node = self.place(state, id);
            match node.member {
                None => Some(Action::One(id, Event::Start)),
                Some(_) if crashes + blackouts + wipes == 0 && !node.unsynced.is_empty() => {
                    Some(Action::One(id, Event::Sync))
                }
                Some(_) => None,
            }
        };
        self.ids().find_map(one)
    }

    /// Does this change nobody, and have something said that was not? Then it may as well come first, and alone: what is said
    /// may be heard at any later time or never, so that all that can happen without it can happen after it.
    fn only_says(&mut self, state: &State, action: Action) -> bool {
        let Action::One(id, event @ (Event::Deliver(_) | Event::Ask)) = action else { return false };
        let place = state.nodes[index(id)];
        let effect = self.known(place, id, event);
        let decided = |view: &View| view.epoch == 0 || state.decided.get(view.epoch as usize - 1) == Some(view);
        let unsaid = |number| state.said.binary_search(number).is_err() && !self.is_dead(state, self.message(*number));
        effect.place == place
            && effect.fault.is_none()
            && effect.views.iter().all(decided)
            && effect.sends.iter().any(unsaid)
    }

    /// A state but for what was said.
    #[cfg(test)]
    pub fn unsaid(state: &State) -> State {
        State { said: Vec::new(), ..state.clone() }
    }

    /// What an action leads to.
    pub fn after(&mut self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        match action {
            Action::Blackout(keep) => {
                next.left.blackouts -= 1;
                for id in self.ids() {
                    let keep = if keep >> id.0 & 1 == 1 { u8::MAX } else { 0 };
                    self.take(&mut next, id, Event::Crash(keep));
                }
            }
            Action::One(id, event) => {
                match event {
                    Event::Propose(_) => next.left.proposals -= 1,
                    Event::Crash(_) => next.left.crashes -= 1,
                    Event::Wipe { .. } => next.left.wipes -= 1,
                    Event::Deliver(_) | Event::Sync | Event::Ask | Event::Start => {}
                }
                self.take(&mut next, id, event);
            }
        }
        if next != *state {
            self.look(&mut next);
            self.bury(&mut next);
        }
        next
    }

    /// Messages that change nothing any more, whenever they come, are taken away.
    fn bury(&self, state: &mut State) {
        let mut said = std::mem::take(&mut state.said);
        said.retain(|&number| !self.is_dead(state, self.message(number)));
        state.said = said;
    }

    fn is_dead(&self, state: &State, (from, to, notice): Envelope) -> bool {
        let (node, sender) = (self.place(state, to), self.place(state, from));
        // What is durable stays, whatever happens.
        let Durable { view, promised, .. } = node.log.durable.unwrap_or_default();
        let member = node.member.as_ref();
        let proposing = member.and_then(Membership::proposing);
        let heeds = self.options.mutation == Some(Mutation::OldAnswers);
        match notice {
            Notice::Prepare(base, ballot, _) => {
                base.epoch < view.epoch || base.epoch == view.epoch && ballot < promised
            }
            Notice::Accept(ballot, next) => {
                next.epoch <= view.epoch || next.epoch == view.epoch + 1 && ballot < promised
            }
            Notice::Promise(_, ballot, _) => {
                proposing.is_none_or(|(own, accepting, yes)| own != ballot || accepting || yes.has(from))
            }
            Notice::Accepted(ballot, _) => proposing.is_none_or(|(own, _, yes)| own != ballot || yes.has(from)),
            Notice::Reject(epoch, ballot) => {
                let known = member.is_none_or(|member| epoch <= member.view().epoch || ballot.round <= member.round());
                known || state.left.proposals == 0
            }
            Notice::Decided(next) => next.epoch <= view.epoch,
            // Of a life, or of a time in it, that is over.
            Notice::Beat(sent, _, status, _) => sent < sender.life || !sender.is(status),
            Notice::Newest(sent, ..) => !heeds && (sent < node.life || !node.asks()),
            Notice::Grant(_) => true,
        }
    }

    fn take(&mut self, state: &mut State, id: NodeId, event: Event) {
        let effect = self.known(state.nodes[index(id)], id, event);
        state.nodes[index(id)] = effect.place;
        if let Some(fault) = &effect.fault {
            state.fault.get_or_insert(fault.clone());
        }
        effect.views.iter().for_each(|&view| state.decide(view));
        for &number in &effect.sends {
            let Err(at) = state.said.binary_search(&number) else { continue };
            self.used_once(state, number);
            state.said.insert(at, number);
        }
    }

    /// What comes of an event, asked of the engine once.
    fn known(&mut self, place: u32, id: NodeId, event: Event) -> Arc<Effect> {
        if let Some(effect) = self.effects.get(&(place, id, event)) {
            return effect.clone();
        }
        let effect = Arc::new(self.effect(place, id, event));
        self.effects.insert((place, id, event), effect.clone());
        effect
    }

    /// The engine's step.
    fn effect(&mut self, place: u32, id: NodeId, event: Event) -> Effect {
        let mut node = Place::clone(&self.places.list[place as usize]);
        let (now, options) = (node.life, self.options);
        let (mut member, mut said) = (node.member.take(), None);
        match (event, &mut member) {
            (Event::Deliver(number), Some(member)) => {
                let (from, _, notice) = self.message(number);
                member.handle(now, from, notice);
            }
            (Event::Sync, Some(member)) => {
                let entry = node.unsynced.remove(0);
                node.write(entry);
                if let Entry::Member(number, _) = entry {
                    member.persisted(now, number);
                }
            }
            (Event::Propose(number), Some(member)) => {
                let (all, epoch) = (NodeSet::first(options.nodes), member.view().epoch + 1);
                // All are different.
                let members = NodeSet(1 + u64::from(number) % (all.0 - 1));
                member.propose(View { epoch, members, learners: all.minus(members), recovery: false });
            }
            (Event::Ask, Some(member)) => member.timeout(now),
            (Event::Crash(keep), _) => {
                node.crash(keep);
                member = None;
            }
            (Event::Wipe { alone }, _) => {
                node.crash(0);
                (node.log, member) = (Log::default(), None);
                node.entered = if alone { 0 } else { node.entered };
                node.wiped = node.entered > 0;
            }
            (Event::Start, _) => {
                node.start(&options, id);
                member = node.member.take();
            }
            (_, None) => {}
        }
        let (mut sends, mut views) = (Vec::new(), Vec::new());
        if let Some(member) = &mut member {
            while let Some(output) = member.poll() {
                match output {
                    MemberOutput::Send(to, notice) => {
                        views.extend(if let Notice::Decided(view) = notice { Some(view) } else { None });
                        // It makes no difference who says this.
                        let same = matches!(notice, Notice::Decided(_) | Notice::Reject(..));
                        sends.push(self.messages.number((if same { to } else { id }, to, notice)) as u16);
                    }
                    MemberOutput::Persist(number, durable) => node.unsynced.push(Entry::Member(number, durable)),
                    MemberOutput::Forgot => node.unsynced.push(Entry::Damaged),
                    MemberOutput::Lease(_) => {}
                    MemberOutput::Install(view) => said = node.enter(member, id, view).or(said),
                }
            }
            views.push(member.view());
            member.forget_others();
        }
        node.member = member;
        Effect { place: self.places.number(node), sends, views, fault: said }
    }

    /// A ballot is used for one view.
    fn used_once(&self, state: &mut State, number: u16) {
        let (_, _, Notice::Accept(ballot, view)) = self.message(number) else { return };
        let other = state.said.iter().find_map(|&number| match self.message(number).2 {
            Notice::Accept(same, other) if same == ballot && other.epoch == view.epoch && other != view => Some(other),
            _ => None,
        });
        if let Some(other) = other {
            state.say(format!("round {} of {} is for {other} and for {view}", ballot.round, ballot.node));
        }
    }

    /// Would every majority of whole disks tell of the newest decided view?
    fn look(&self, state: &mut State) {
        // The first view is not voted on.
        let Some(&newest) = state.decided.last().filter(|view| view.epoch > 1) else { return };
        let whole = self.ids().map(|id| self.place(state, id)).filter(|node| !node.log.damaged && !node.wiped);
        let whole: Vec<Durable> = whole.filter_map(|node| node.log.durable).collect();
        let majority = u32::from(self.options.nodes / 2 + 1);
        for some in (0_u32..1 << whole.len()).filter(|some| some.count_ones() == majority) {
            let asked = || whole.iter().enumerate().filter(|(bit, _)| some >> bit & 1 == 1).map(|(_, durable)| durable);
            let knows = asked().any(|durable| durable.view.epoch >= newest.epoch);
            let accepted = asked().filter(|durable| durable.view.epoch + 1 == newest.epoch).filter_map(|d| d.accepted);
            if !knows && accepted.max().is_none_or(|(_, view)| view != newest) {
                return state.say(format!("{newest} was decided, and a majority of the disks does not know"));
            }
        }
    }
}

impl Place {
    /// It enters a view; what is wrong with that. The rest is as the replica does with what it has of the records.
    fn enter(&mut self, member: &mut Membership, id: NodeId, view: View) -> Option<Arc<str>> {
        let damaged = member.status() == Standing::Damaged;
        if view.learners.has(id) {
            member.set_status(Standing::Learning);
            self.unsynced.extend(damaged.then_some(Entry::Reset));
            self.wiped = false;
        } else if !damaged {
            member.set_status(Standing::Serving);
        }
        let before = self.entered;
        self.entered = before.max(view.epoch);
        (view.epoch <= before).then(|| format!("{id} enters epoch {} after epoch {before}", view.epoch).into())
    }
}

impl State {
    fn decide(&mut self, view: View) {
        let Some(before) = (view.epoch as usize).checked_sub(1) else { return };
        match self.decided.get(before) {
            Some(first) if *first != view => {
                let first = *first;
                self.say(format!("two views are decided: {first}, and {view}"));
            }
            Some(_) => {}
            None if before == self.decided.len() => self.decided.push(view),
            None => self.say(format!("{view} is decided, and nothing before it")),
        }
    }

    fn say(&mut self, what: String) {
        self.fault.get_or_insert(what.into());
    }
}
