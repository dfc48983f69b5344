//! What makes no difference when it happens is taken first, and alone: partial-order reduction.
//!
//! The engine says of a message or job that it makes no difference when ([`Replica::is_indifferent`] and
//! [`Replica::is_indifferent_job`]; the reasons are there). To take such an event p first is right if, in every state in
//! which p is said to make no difference, for all else a that can happen:
//!
//! 1. after a, p can still happen, and still makes no difference;
//! 2. after p, a can still happen, and both orders lead to the same state, but for what clients may rely on: after p
//!    first they may have been answered earlier, or have read something newer. That is only more to rely on;
//! 3. if a is seen to break a rule before p, it is seen to after p as well.
//!
//! Then every way to a broken rule can be changed step by step into one that takes p at once, since ways are finite:
//! each event uses up a message, a job, a request or a fault. [`flaw`] looks whether all three hold, state by state, in
//! a search of all orders (`remora check minos --orders proof`).
//!
//! Messages that will never do anything are taken away ([`bury`]), and states are compared without them.
//!
//! Events of two nodes meet nowhere but in messages, so all this is about events of one node.
//!
//! Of acknowledgements that are only counted each but the last makes no difference, and which is the last makes none
//! either: what came after the one and before the other comes the same way with the two exchanged. So for these two
//! rule 1 asks only that the second can still happen.
//!
//! Persists wait until somebody looks at what is durable: in Event nobody ever does, in Scope nobody before PERSIST is
//! asked for. Until then they commute with everything and nothing comes of them, so that they may as well happen right
//! after; and that less is durable meanwhile hides no broken rule.

use remora_replica::ddp::{Ahead, Asks, Body, JobId, Model, Op};
use remora_replica::types::{NodeId, Timestamp};

use super::local::{Envelope, Locals};
use super::system::{Action, KEY, System, Where};
use super::world::State;

/// Leaves of all actions those that have to be tried.
pub(crate) fn reduce(system: &System, locals: &Locals, state: &State, actions: &mut Vec<Action>) {
    let calm = system.calm(state);
    if let Some(&first) = actions.iter().find(|&&action| indifferent(system, locals, state, calm, action)) {
        actions.clear();
        actions.push(first);
    } else if calm && unwatched(system, state) {
        let first = actions.first().copied();
        actions.retain(|action| !persists(action));
        if actions.is_empty() {
            actions.extend(first);
        }
    }
}

/// Does nobody look at what is durable, until the PERSIST that is still to come? In bounded FIFOs persists make room.
fn unwatched(system: &System, state: &State) -> bool {
    let room = match system.options.deployment {
        Where::O(entries) => system.options.versions() <= usize::from(entries),
        _ => true,
    };
    room && match system.options.model {
        Model::Event => true,
        Model::Scope => state.ops.last().is_none_or(|persist| !persist.issued),
        _ => false,
    }
}

fn persists(action: &Action) -> bool {
    matches!(action, Action::Done(_, JobId::Persist(..)))
}

/// Does it make no difference when this happens?
fn indifferent(system: &System, locals: &Locals, state: &State, calm: bool, action: Action) -> bool {
    match action {
        Action::Deliver(envelope) if system.options.failures.duplicates == 0 => {
            let Envelope { to, from, message } = locals.envelope(envelope);
            let replica = state.replica(locals, *to);
            replica
                .is_some_and(|replica| replica.is_indifferent(*from, message, &ahead(system, locals, state, calm, *to)))
        }
        Action::Done(id, job) => {
            let replica = state.replica(locals, id);
            replica.is_some_and(|replica| replica.is_indifferent_job(job, &ahead(system, locals, state, calm, id)))
        }
        _ => false,
    }
}

/// What may still come to a node.
fn ahead(system: &System, locals: &Locals, state: &State, calm: bool, id: NodeId) -> Ahead {
    let options = &system.options;
    let open = (0..options.writes).filter(|&number| !state.ops[usize::from(number)].issued);
    let asks = open.map(|number| options.request(number)).filter(|(at, _)| *at == id).fold(
        Asks::Nothing,
        |asks, (_, request)| match request.op {
            Op::Put(..) if asks != Asks::Anything => Asks::Puts,
            _ => Asks::Anything,
        },
    );
    let late_acks = calm && late_acks(system, locals, state, id);
    Ahead { calm, asks, late_acks, versions: options.versions() }
}

/// May acknowledgements come to a node of what it no longer drives?
fn late_acks(system: &System, locals: &Locals, state: &State, id: NodeId) -> bool {
    let Some(replica) = state.replica(locals, id) else { return false };
    let late = |ts: Timestamp| ts.node == id && !replica.drives(KEY, ts);
    let acks = state.net.iter().any(|&envelope| {
        let Envelope { to, message, .. } = locals.envelope(envelope);
        *to == id && matches!(message.body, Body::Ack(_, ts, _) if late(ts))
    });
    let others = state.nodes.iter().enumerate().filter(|(other, _)| *other != usize::from(id.0));
    // Where a job's end is acknowledged.
    let (persists, applies) = (system.options.model.acks_persists(), system.options.deployment == Where::Stepped);
    acks || others.flat_map(|(_, &node)| locals.local(node).jobs.keys()).any(|job| match *job {
        JobId::Persist(_, ts) => persists && late(ts),
        JobId::Apply(_, ts) => applies && late(ts),
        _ => false,
    })
}

/// Takes messages away that will never do anything.
pub(crate) fn bury(locals: &Locals, state: &mut State) {
    let replicas: Vec<_> = state.nodes.iter().map(|&node| locals.local(node).replica.as_ref()).collect();
    state.net.retain(|&envelope| {
        let Envelope { to, message, .. } = locals.envelope(envelope);
        replicas[usize::from(to.0)].is_none_or(|replica| !replica.is_dead(message))
    });
}

/// Where the reduction would be wrong in this state.
pub(crate) fn flaw(system: &System, state: &State) -> Option<String> {
    let actions = possible(system, state);
    let (first, waiting) = {
        let locals = system.locals();
        let calm = system.calm(state);
        let first = |action: &&Action| indifferent(system, &locals, state, calm, **action);
        let late = calm && unwatched(system, state);
        let first: Vec<Action> = actions.iter().filter(first).copied().collect();
        (first, actions.iter().filter(|action| late && persists(action)).copied().collect::<Vec<_>>())
    };
    let opens = waiting.iter().find_map(|&persist| opens(system, state, &actions, persist));
    opens.or_else(|| {
        actions.iter().filter(|_| !first.is_empty() || !waiting.is_empty()).find_map(|&other| {
            let then = system.after(state, other);
            let mut early = first.iter().filter(|&&first| first != other);
            let mut late = waiting.iter().filter(|&&persist| persist != other);
            early
                .find_map(|&first| goes_first(system, state, first, other, &then))
                .or_else(|| late.find_map(|&persist| waits(system, state, persist, other, &then)))
        })
    })
}

/// Rules 1 to 3 for `first` and `other`, after which the state is `then`.
fn goes_first(system: &System, state: &State, first: Action, other: Action, then: &State) -> Option<String> {
    let flaw = |what: &str| Some(format!("{first:?} before {other:?} {what}"));
    let before = system.after(state, first);
    if before.fault.is_some() {
        return None;
    }
    if !possible(system, &before).contains(&other) {
        return flaw("makes it impossible");
    }
    let mut early = system.after(&before, other);
    bury(&system.locals(), &mut early);
    if early.fault.is_some() || then.fault.is_some() {
        return if early.fault.is_none() { flaw("hides a fault") } else { None };
    }
    let mut then = then.clone();
    bury(&system.locals(), &mut then);
    if !possible(system, &then).contains(&first) {
        // Lost with the node that it would have changed, or nothing comes of it any more.
        return if early.relies_on_more(&then) { None } else { flaw("is not possible the other way round") };
    }
    let locals = system.locals();
    let still = indifferent(system, &locals, &then, system.calm(&then), first);
    let counted = counted(&locals, first).is_some_and(|what| counted(&locals, other) == Some(what));
    drop(locals);
    if !still && !counted {
        return flaw("would no longer be first after it");
    }
    let mut late = system.after(&then, first);
    bury(&system.locals(), &mut late);
    if early.relies_on_more(&late) { None } else { flaw("leads elsewhere") }
}

/// May a persist wait for `other`, after which the state is `then`?
fn waits(system: &System, state: &State, persist: Action, other: Action, then: &State) -> Option<String> {
    if then.fault.is_some() {
        return None;
    }
    let early = system.after(&system.after(state, persist), other);
    let same = possible(system, then).contains(&persist) && system.after(then, persist) == early;
    (!same).then(|| format!("{persist:?} after {other:?} leads elsewhere"))
}

/// Does something come of a persist that was to wait?
fn opens(system: &System, state: &State, actions: &[Action], persist: Action) -> Option<String> {
    let after = system.after(state, persist);
    let new = possible(system, &after).into_iter().find(|&action| {
        let locals = system.locals();
        !actions.contains(&action) && !indifferent(system, &locals, &after, system.calm(&after), action)
    });
    let broken = after.fault.is_some();
    (broken || new.is_some()).then(|| format!("{persist:?} was to wait, and leads to {new:?} {:?}", after.fault))
}

fn possible(system: &System, state: &State) -> Vec<Action> {
    let mut actions = Vec::new();
    system.all_actions(&system.locals(), state, &mut actions);
    actions
}

/// Of which acknowledgements this is one.
fn counted(locals: &Locals, action: Action) -> Option<(NodeId, &Body)> {
    let Action::Deliver(envelope) = action else { return None };
    let Envelope { to, message, .. } = locals.envelope(envelope);
    matches!(message.body, Body::Ack(..) | Body::PersistAck(_)).then_some((*to, &message.body))
}
