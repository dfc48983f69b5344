//! Is what [`super::reduce`] leaves out really without a difference? Looked at state by state, in a search of all orders.

use remora_replica::ddp::Body;
use remora_replica::types::{NodeId, NodeSet};

use super::local::{Envelope, Locals};
use super::reduce::{self, bury, carries, happens_at, indifferent, waiting};
use super::system::{Action, System};
use super::world::State;

/// Where the reduction would be wrong in this state.
pub(crate) fn flaw(system: &System, state: &State) -> Option<String> {
    let mut buried = state.clone();
    bury(&system.locals(), &mut buried);
    let is_dead = |action: &&Action| matches!(action, Action::Deliver(envelope) if !buried.net.contains(envelope));
    if let Some(live) = all(system, state).iter().filter(is_dead).find(|&&dead| after(system, state, dead) != buried) {
        return Some(format!("{live:?} was to do nothing"));
    }
    let state = &buried;
    let actions = all(system, state);
    let late = late(system, state).unwrap_or_default();
    let (first, waiting, late) = {
        let locals = system.locals();
        let calm = system.calm(&locals, state);
        let of_late = |action: &&Action| happens_at(system, &locals, **action).is_some_and(|id| late.has(id));
        let first = |action: &&Action| indifferent(system, &locals, state, calm, **action);
        let first: Vec<Action> = actions.iter().filter(first).copied().collect();
        let waiting = waiting(system, &locals, state, &actions).unwrap_or_default();
        (first, waiting, actions.iter().filter(of_late).copied().collect::<Vec<_>>())
    };
    let acked = actions.iter().find_map(|&persist| acks(system, state, persist));
    let opens = || waiting.iter().find_map(|&persist| opens(system, state, &actions, persist));
    let views = || decides(system, state, &actions).or_else(|| enters(system, state, &actions));
    acked.or_else(|| forgets(system, state, &actions)).or_else(views).or_else(opens).or_else(|| {
        let looked_at = |_: &&Action| !first.is_empty() || !waiting.is_empty() || !late.is_empty();
        actions.iter().filter(looked_at).find_map(|&other| {
            let then = after(system, state, other);
            let mut early = first.iter().filter(|&&first| first != other);
            let mut waiting = waiting.iter().filter(|&&persist| persist != other);
            let late = if late.contains(&other) { &[] } else { &late[..] };
            early
                .find_map(|&first| goes_first(system, state, first, other, &then))
                .or_else(|| waiting.find_map(|&persist| waits(system, state, persist, other, &then)))
                .or_else(|| comes_later(system, state, late, other, &then))
        })
    })
}

/// Where a persist and the arrival of its acknowledgement are one step ([`carries`]): can every other event that may
/// come between the two as well come before both, or after both? And can the persist wait if the acknowledgement is
/// lost?
fn acks(system: &System, state: &State, persist: Action) -> Option<String> {
    let between = after(system, state, persist);
    let (ack, envelope, coordinator) = {
        let locals = system.locals();
        let envelope = carries(system, &locals, state, persist)?;
        (Action::Deliver(envelope), envelope, locals.envelope(envelope).to)
    };
    let before = all(system, state);
    all(system, &between).into_iter().filter(|&other| other != ack).find_map(|other| {
        let flaw = |what: &str| Some(format!("{other:?} between {persist:?} and {ack:?} {what}"));
        if !before.contains(&other) {
            return flaw("is possible only there");
        }
        let (then, other_first) = (after(system, &between, other), after(system, state, other));
        if other_first.fault.is_some() {
            return None;
        }
        let again = all(system, &other_first).contains(&persist);
        let without = if again { after(system, &other_first, persist) } else { other_first };
        if again && then.fault.is_none() && covers(system, &without, &then) {
            return None;
        }
        // It has to come after both then, and nothing at the coordinator may wait for it.
        if let Some(why) = exchange(system, &between, ack, other, &then) {
            return flaw(&why);
        }
        let mut lost = then.clone();
        lost.net.retain(|&other| other != envelope);
        if !reaches(system, &without, &lost) {
            return flaw("differs if the acknowledgement is lost");
        }
        let here = |action: &Action| happens_at(system, &system.locals(), *action) == Some(coordinator);
        let enabled =
            all(system, &then).into_iter().filter(here).find(|action| !all(system, &between).contains(action));
        enabled.and_then(|enabled| flaw(&format!("makes {enabled:?} possible")))
    })
}

/// Is what nobody will ask of a node really never asked? See [`System::plain`].
fn forgets(system: &System, state: &State, actions: &[Action]) -> Option<String> {
    let plain = system.plain(state);
    let changed = |id: NodeId| plain.node(id) != state.node(id);
    let touched = |action: &&Action| {
        let of_node = happens_at(system, &system.locals(), **action);
        matches!(action, Action::Crash(id) | Action::Suspect(id) if changed(*id))
            || of_node.is_some_and(changed)
            || matches!(action, Action::Timeout)
    };
    if plain == *state {
        return None;
    }
    let same = all(system, &plain) == actions;
    let differs = actions
        .iter()
        .filter(touched)
        .find(|&&action| system.plain(&after(system, state, action)) != system.plain(&after(system, &plain, action)));
    match differs {
        Some(action) => Some(format!("{action:?} depends on what was to be forgotten")),
        None => (!same).then(|| "other things can happen where something was to be forgotten".to_string()),
    }
}

/// The state after an action, without dead messages.
fn after(system: &System, state: &State, action: Action) -> State {
    let mut after = system.after(state, action);
    bury(&system.locals(), &mut after);
    after
}

/// Does a state cover the other, or one that follows it?
fn reaches(system: &System, state: &State, other: &State) -> bool {
    let then = |action| covers(system, &after(system, state, action), other);
    covers(system, state, other) || all(system, state).into_iter().any(then)
}

/// Does it make no difference when something happens in a state after which the other covers it?
fn settles(system: &System, state: &State, other: &State) -> bool {
    let first = |action: &Action| {
        let locals = system.locals();
        indifferent(system, &locals, state, system.calm(&locals, state), *action)
    };
    all(system, state).into_iter().filter(first).any(|first| covers(system, other, &after(system, state, first)))
}

/// Is a state the other, but that clients may rely on more, and but for what nobody asks?
fn covers(system: &System, state: &State, other: &State) -> bool {
    system.plain(state).relies_on_more(&system.plain(other))
}

/// Rules 1 to 3 for `first` and `other`, after which the state is `then`.
fn goes_first(system: &System, state: &State, first: Action, other: Action, then: &State) -> Option<String> {
    exchange(system, state, first, other, then).or_else(|| {
        let gone = then.fault.is_some() || !all(system, then).contains(&first);
        let locals = system.locals();
        let still = indifferent(system, &locals, then, system.calm(&locals, then), first);
        let counted = counted(&locals, first).is_some_and(|what| counted(&locals, other) == Some(what));
        (!gone && !still && !counted).then(|| format!("{first:?} before {other:?} would no longer be first after it"))
    })
}

/// May `other`, after which the state is `then`, wait for all of the late nodes' steps?
fn comes_later(system: &System, state: &State, late: &[Action], other: Action, then: &State) -> Option<String> {
    let exchange = late.iter().find_map(|&first| exchange(system, state, first, other, then));
    exchange.or_else(|| {
        if late.is_empty() || then.fault.is_some() {
            return None;
        }
        let (possible, nodes) = (all(system, then), self::late(system, then)?);
        let locals = system.locals();
        let of_late = |action: &&Action| happens_at(system, &locals, **action).is_some_and(|id| nodes.has(id));
        let more = possible.iter().filter(of_late).find(|action| !late.contains(action));
        more.map(|more| format!("{other:?} would have to come before {more:?}"))
    })
}

/// Is all that comes of `first` after `other`, after which the state is `then`, seen when they are exchanged?
fn exchange(system: &System, state: &State, first: Action, other: Action, then: &State) -> Option<String> {
    let flaw = |what: &str| Some(format!("{first:?} before {other:?} {what}"));
    let before = after(system, state, first);
    if before.fault.is_some() {
        return None;
    }
    // What arrives may be dead by now.
    let dead = matches!(&other, Action::Deliver(envelope) if !before.net.contains(envelope));
    if !dead && !all(system, &before).contains(&other) {
        return flaw("makes it impossible");
    }
    let early = if dead { before } else { after(system, &before, other) };
    if early.fault.is_some() || then.fault.is_some() {
        return if early.fault.is_none() { flaw("hides a fault") } else { None };
    }
    // It may be lost with the node that it would have changed, or nothing comes of it any more.
    let possible = all(system, then).contains(&first);
    let late = if possible { after(system, then, first) } else { then.clone() };
    if reaches(system, &early, &late) || settles(system, &late, &early) { None } else { flaw("leads elsewhere") }
}

/// May a persist wait for `other`, after which the state is `then`?
fn waits(system: &System, state: &State, persist: Action, other: Action, then: &State) -> Option<String> {
    if then.fault.is_some() {
        return None;
    }
    let early = after(system, &after(system, state, persist), other);
    let possible = all(system, then).contains(&persist);
    let late = if possible { after(system, then, persist) } else { then.clone() };
    (!reaches(system, &late, &early)).then(|| format!("{persist:?} after {other:?} leads elsewhere"))
}

/// Does something come of a persist that was to wait?
fn opens(system: &System, state: &State, actions: &[Action], persist: Action) -> Option<String> {
    let after = after(system, state, persist);
    let new = all(system, &after).into_iter().find(|&action| {
        let locals = system.locals();
        !actions.contains(&action) && !indifferent(system, &locals, &after, system.calm(&locals, &after), action)
    });
    let broken = after.fault.is_some();
    (broken || new.is_some()).then(|| format!("{persist:?} was to wait, and leads to {new:?} {:?}", after.fault))
}

/// Nodes that may go before all others.
fn late(system: &System, state: &State) -> Option<NodeSet> {
    loop {
        let found = reduce::late(system, &system.locals(), state);
        match found {
            Ok(late) => return late,
            Err(unknown) => system.learn(unknown),
        }
    }
}

/// May a view as well be decided when the first node enters it?
fn decides(system: &System, state: &State, actions: &[Action]) -> Option<String> {
    let view = reduce::led(&system.locals(), state, actions)?;
    let decide = Action::Decide(view);
    let decided = after(system, state, decide);
    let possible = all(system, &decided);
    let enters = |action: &&Action| matches!(action, Action::Install(_));
    possible.iter().filter(|action| !enters(action)).find_map(|&other| {
        let flaw = |what: &str| Some(format!("{other:?} between {decide:?} and the first who enters {what}"));
        let then = after(system, &decided, other);
        if !actions.contains(&other) {
            return flaw("is possible only there");
        }
        if let Action::Restart(_) = other {
            // It may come after the first who enters.
            let differs = possible
                .iter()
                .filter(enters)
                .find(|&&enter| after(system, &then, enter) != after(system, &after(system, &decided, enter), other));
            return differs.and_then(|_| flaw("cannot come later"));
        }
        let first = after(system, state, other);
        if first.fault.is_some() || then.fault.is_some() {
            return if first.fault == then.fault { None } else { flaw("hides a fault") };
        }
        let same = all(system, &first).contains(&decide) && after(system, &first, decide) == then;
        if same { None } else { flaw("cannot come earlier") }
    })
}

/// May all that happens at nodes which are to enter a view come before any does?
fn enters(system: &System, state: &State, actions: &[Action]) -> Option<String> {
    // Whoever enters at once: what happens elsewhere is not to depend on it.
    let behind = late(system, state)?;
    let enter = |action: &Action| matches!(action, Action::Install(_));
    let pairs = actions.iter().filter(|action| enter(action)).flat_map(|&first| {
        let others = actions.iter().filter(|action| !enter(action)).map(move |&other| (first, other));
        others.filter(move |(first, other)| {
            let at = |action: Action| happens_at(system, &system.locals(), action);
            at(*first) != at(*other) && at(*other).is_some_and(|id| behind.has(id))
        })
    });
    pairs.into_iter().find_map(|(first, other)| {
        let flaw = |what: &str| Some(format!("{other:?} after {first:?} {what}"));
        let (entered, before) = (after(system, state, first), after(system, state, other));
        if before.fault.is_some() {
            return None;
        }
        let early = after(system, &before, first);
        let gone = matches!(other, Action::Deliver(envelope) if !entered.net.contains(&envelope));
        let late = if gone { entered } else { after(system, &entered, other) };
        if late.fault.is_some() {
            return flaw("shows a fault");
        }
        if covers(system, &early, &late) { None } else { flaw("leads elsewhere") }
    })
}

fn all(system: &System, state: &State) -> Vec<Action> {
    let mut actions = Vec::new();
    system.all_actions(&system.locals(), state, &mut actions);
    actions
}

/// Of which acknowledgements this is one.
fn counted(locals: &Locals, action: Action) -> Option<(NodeId, &Body)> {
    let Action::Deliver(envelope) = action else { return None };
    let Envelope { to, message, .. } = locals.envelope(envelope);
    matches!(message.body, Body::Ack(..) | Body::PersistAck(..)).then_some((*to, &message.body))
}
