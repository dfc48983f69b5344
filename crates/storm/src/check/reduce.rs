//! What makes no difference when it happens is taken first, and alone: partial-order reduction.
//!
//! Events of two nodes meet nowhere but in messages, so all this is about events of one node, and about what all can
//! see: views, and what clients may rely on. `remora check minos --orders proof` visits all orders and looks in each
//! state whether what is said here is so ([`super::proof`]).
//!
//! **First.** The engine says of a message or job that it makes no difference when ([`Replica::is_indifferent`] and
//! [`Replica::is_indifferent_job`]; the reasons are there). To take such an event p first is right if, in every state in
//! which p is said to make no difference, for all else a that can happen:
//!
//! 1. after a, p can still happen, and still makes no difference;
//! 2. after p, a can still happen, and both orders lead to the same state, but for what clients may rely on: after p
//!    first they may have been answered earlier, or have read something newer. That is only more to rely on;
//! 3. if a is seen to break a rule before p, it is seen to after p as well.
//!
//! Then every way to a broken rule can be changed step by step into one that takes p at once, since ways are finite:
//! each event uses up a message, a job, a request or a fault. Instead of the same state the order that is taken may lead
//! to one from which the other is reached, or the other order to one from which an event of this kind leads on.
//!
//! Of acknowledgements that are only counted each but the last makes no difference, and which is the last makes none
//! either: what came after the one and before the other comes the same way with the two exchanged. So for these two
//! rule 1 asks only that the second can still happen.
//!
//! **Persists.** What a log has counts when somebody looks. In Event nobody does, so that persists go first. In Scope
//! nobody does before PERSIST is asked for: until then they commute with everything and nothing comes of them, so that
//! they may as well happen right after; and that less is durable meanwhile hides no broken rule. In the other models a
//! follower's persist is seen by its acknowledgement alone: it commutes with all that comes between the two, but for
//! what happens to its node as a whole (a crash, a view), and before that the acknowledgement may as well have arrived,
//! as the coordinator hears of it by a new view alone. So the persist waits until its acknowledgement arrives, and both
//! are one step ([`carries`]). If the acknowledgement is lost, the persist may as well have come after. All this does not
//! hold where durability is told otherwise: of learners, in recovery, and after a crash of all.
//!
//! Once all faults are over, and all nodes that are up are members of the newest view, it is as calm as without faults.
//!
//! **Views.** Who is not in the newest view yet hears nothing from those who are, and is not heard by them. So what happens
//! at nodes that are to enter a view may as well come before anybody does, and what happens at those that have, after all
//! have: a view is decided when it is entered, and by all at once ([`Action::Enter`]). But not where a client could tell: at
//! a node that can be read or may be asked now and not once it has entered ([`hides`]), as one that the view leaves out. It
//! enters later, by itself, and all orders are tried until then. The rest of a view's nodes wait for those that are late for
//! other reasons ([`late`]), such as one that was down. A view is still decided by itself where it may be another one by the
//! time that somebody enters it ([`led`]).
//!
//! **Dead messages**, which will never do anything, are taken away ([`bury`]), and so is what nobody will ask of a node that
//! is in no view ([`System::forget`]).

use remora_replica::ddp::{Ahead, Asks, Body, JobId, Model, Op, View};
use remora_replica::types::{Key, NodeId, NodeSet, Timestamp};

use super::local::{Envelope, EnvelopeId, Event, Locals, Unknown};
use super::system::{Action, System, Where};
use super::world::{OpState, State};

/// Leaves of all actions those that have to be tried.
pub(crate) fn reduce(
    system: &System,
    locals: &Locals,
    state: &State,
    actions: &mut Vec<Action>,
) -> Result<(), Unknown> {
    let calm = system.calm(locals, state);
    if let Some(&first) = actions.iter().find(|&&action| indifferent(system, locals, state, calm, action)) {
        actions.clear();
        actions.push(first);
        return Ok(());
    }
    if let Some(view) = led(locals, state, actions) {
        actions.retain(|action| !matches!(action, Action::Decide(_)));
        actions.push(Action::Enter(view));
    }
    if let Some(late) = late(system, locals, state)? {
        actions.retain(|&action| happens_at(system, locals, action).is_some_and(|id| late.has(id)));
    }
    if let Some(waiting) = waiting(system, locals, state, actions) {
        actions.retain(|action| !waiting.contains(action));
    }
    Ok(())
}

/// The view that may be decided, if that may as well happen when the first node enters it.
pub(crate) fn led(locals: &Locals, state: &State, actions: &[Action]) -> Option<View> {
    let decided = |action: &Action| if let Action::Decide(view) = action { Some(*view) } else { None };
    let ready = |id: NodeId| state.facts(locals, id).caught_up;
    actions.iter().find_map(decided).filter(|view| !view.recovery && state.view.learners.iter().all(ready))
}

/// Is this a persist that nobody looks at, and that makes no room in a FIFO?
fn unwatched(system: &System, locals: &Locals, state: &State, action: Action) -> bool {
    let room = match system.options.deployment {
        Where::O(entries) => system.options.versions() <= usize::from(entries),
        _ => true,
    };
    // A learner tells when it has everything durable, and after a crash of all what is durable is all there is.
    let catches_up = |id| {
        let facts = state.facts(locals, id);
        facts.view.learners.has(id) || facts.merging
    };
    matches!(action, Action::Done(id, JobId::Persist(..)) if room && state.left.blackouts == 0 && !catches_up(id))
}

/// Persists that may wait until PERSIST is asked for, if something else is certain to happen.
pub(crate) fn waiting(system: &System, locals: &Locals, state: &State, actions: &[Action]) -> Option<Vec<Action>> {
    let asked = state.ops[usize::from(system.options.writes)..].iter().any(|persist| persist.issued);
    if !system.options.model.facts().scopes || asked {
        return None;
    }
    let (waiting, others): (Vec<_>, Vec<_>) =
        actions.iter().partition(|&&action| unwatched(system, locals, state, action));
    let certain = |action: &Action| {
        let fault = matches!(
            action,
            Action::Duplicate(_) | Action::Crash(_) | Action::Blackout | Action::Restart(_) | Action::Suspect(_)
        );
        !fault && !System::may_fail_to_come(state, *action)
    };
    others.iter().any(certain).then_some(waiting)
}

/// Nodes that are not in the newest view yet, if they may go before all others; also those that may start again.
pub(crate) fn late(system: &System, locals: &Locals, state: &State) -> Result<Option<NodeSet>, Unknown> {
    // Until then there are no other views and no faults.
    let alone = !state.installed_everywhere(locals) && state.left.duplicates == 0 && state.left.blackouts == 0;
    if !alone {
        return Ok(None);
    }
    let mut late = NodeSet::EMPTY;
    for id in NodeSet::first(system.options.nodes).iter() {
        let facts = state.facts(locals, id);
        let behind = if facts.up { facts.view.epoch < state.view.epoch } else { state.left.restarts > 0 };
        if !behind {
            continue;
        }
        if facts.up && hides(system, locals, state, id)? {
            return Ok(None);
        }
        late = late.with(id);
    }
    Ok(Some(late).filter(|late| !late.is_empty()))
}

/// Can something be seen or asked at a node before it enters the newest view that cannot be once it has?
pub(crate) fn hides(system: &System, locals: &Locals, state: &State, id: NodeId) -> Result<bool, Unknown> {
    let facts = state.facts(locals, id);
    let then = locals.facts(locals.effect(state.node(id), Event::Install(state.view))?.next);
    let open = |op: &OpState| !op.issued || op.late;
    let asked = |number| open(&state.ops[usize::from(number)]) && system.options.request(number).0 == id;
    let mut records = facts.readable.iter().zip(&then.readable);
    Ok(records.any(|(now, then)| now.is_some() && then != now)
        || facts.serves && !then.serves && (system.asks_again(state) || (0..system.options.requests()).any(asked)))
}

/// The node that an action is a step of.
pub(crate) fn happens_at(system: &System, locals: &Locals, action: Action) -> Option<NodeId> {
    match action {
        Action::Submit(number) => Some(system.options.request(number).0),
        Action::Deliver(envelope) | Action::Duplicate(envelope) => Some(locals.envelope(envelope).to),
        Action::Done(id, _) | Action::Install(id) | Action::Restart(id) | Action::Again(id) => Some(id),
        _ => None,
    }
}

/// Does it make no difference when this happens?
pub(crate) fn indifferent(system: &System, locals: &Locals, state: &State, calm: bool, action: Action) -> bool {
    match action {
        Action::Deliver(envelope) if state.left.duplicates == 0 => {
            let Envelope { to, from, message } = locals.envelope(envelope);
            let replica = state.replica(locals, *to);
            replica
                .is_some_and(|replica| replica.is_indifferent(*from, message, &ahead(system, locals, state, calm, *to)))
        }
        Action::Done(..) if system.options.model == Model::Event && unwatched(system, locals, state, action) => true,
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
    // Attempts but the first are read-modify-writes, and so is a first one that comes late.
    let late = state.ops[0].late && options.request(0).0 == id;
    let again = (late || system.asks_again(state)).then_some(Asks::Anything);
    let asks = open.map(|number| options.request(number)).filter(|(at, _)| *at == id).fold(
        again.unwrap_or(Asks::Nothing),
        |asks, (_, request)| match request.op {
            Op::Put(..) if asks != Asks::Anything => Asks::Puts,
            _ => Asks::Anything,
        },
    );
    let late_acks = calm && late_acks(locals, state, id);
    Ahead { calm, asks, late_acks, versions: options.versions() }
}

/// May acknowledgements come to a node of what it no longer drives?
fn late_acks(locals: &Locals, state: &State, id: NodeId) -> bool {
    let Some(replica) = state.replica(locals, id) else { return false };
    let late = |key: Key, ts: Timestamp| !replica.drives(key, ts);
    let acks = state.net.iter().any(|&envelope| {
        let Envelope { to, message, .. } = locals.envelope(envelope);
        *to == id && matches!(message.body, Body::Ack(key, ts, _) if late(key, ts))
    });
    let others = (0..).map(NodeId).zip(&state.nodes).filter(|(other, _)| *other != id);
    acks || others
        .filter_map(|(_, &node)| locals.local(node).replica.as_ref())
        .flat_map(|other| other.owes(id))
        .any(|(key, ts)| late(key, ts))
}

/// Takes messages away that will never do anything.
pub(crate) fn bury(locals: &Locals, state: &mut State) {
    let replicas: Vec<_> = state.nodes.iter().map(|&node| locals.local(node).replica.as_ref()).collect();
    state.net.retain(|&envelope| {
        let Envelope { to, message, .. } = locals.envelope(envelope);
        replicas[usize::from(to.0)].is_none_or(|replica| !replica.is_dead(message))
    });
}

/// The acknowledgement that a persist sends to where it can arrive at once.
pub(crate) fn carries(system: &System, locals: &Locals, before: &State, persist: Action) -> Option<EnvelopeId> {
    // In MINOS-O it makes room as well.
    let seen_otherwise = matches!(system.options.deployment, Where::O(_)) || before.left.duplicates > 0;
    if seen_otherwise || !unwatched(system, locals, before, persist) {
        return None;
    }
    let Action::Done(id, job) = persist else { return None };
    // An older one under way may be the node's own write, and durable with this one in a new view, as it looks again.
    let older = |other: &JobId| matches!(other, JobId::Persist(..)) && *other < job;
    if locals.facts(before.node(id)).jobs.iter().any(older) {
        return None;
    }
    let effect = locals.effect(before.node(id), Event::Done(job)).ok()?;
    let &[ack] = &effect.sends[..] else { return None };
    let Envelope { to, message, .. } = locals.envelope(ack);
    let facts = before.facts(locals, *to);
    let arrives = facts.up && facts.view.epoch == message.epoch && facts.view.members.has(*to);
    let new = !before.net.contains(&ack);
    (arrives && new && matches!(message.body, Body::Ack(..))).then_some(ack)
}
