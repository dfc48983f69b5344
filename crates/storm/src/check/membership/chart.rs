//! A counterexample in words: a line for each thing that happens.

use remora_replica::member::Notice;
use remora_replica::types::NodeId;

use super::world::{Action, Event, State, World};

/// What is wrong at the end of a way, and the way.
pub(super) fn chart(world: &mut World, way: &[Action]) -> (String, String) {
    let mut state = world.first();
    let mut lines = Vec::new();
    for &action in way {
        let next = world.after(&state, action);
        lines.push(line(world, &state, &next, action));
        state = next;
    }
    let reason = state.fault.as_ref().map(|fault| fault.to_string()).unwrap_or_default();
    lines.push(format!("=> {reason}"));
    (reason, lines.join("\n"))
}

fn line(world: &World, before: &State, after: &State, action: Action) -> String {
    let (id, event) = match action {
        Action::One(id, event) => (id, event),
        Action::Blackout(keep) => {
            return format!("          ALL CRASH, with all on the disk where a bit is 1: {keep:03b}");
        }
    };
    let member = |state: &State| world.place(state, id).member.clone();
    let at = |what: String| format!("{id}        {what}");
    match event {
        Event::Deliver(number) => {
            let (from, to, notice) = world.message(number);
            let from = if from == to { "  ".into() } else { from.to_string() };
            format!("{from} -> {to}  {}", text(notice))
        }
        Event::Sync => at(format!("durable: {}", log(world, after, id))),
        Event::Propose(_) => {
            let what = member(after).and_then(|member| member.pending().last());
            at(format!("would have {}", what.map(|view| view.to_string()).unwrap_or_default()))
        }
        Event::Ask => at(format!("asks the others: {:?}", member(before).map(|member| member.status()))),
        Event::Crash(keep) => at(format!("CRASH, {keep} changes more on its disk: {}", log(world, after, id))),
        Event::Wipe { .. } => at("CRASH, and its disk is empty".into()),
        Event::Start => at(format!("starts, with {}", log(world, after, id))),
    }
}

fn log(world: &World, state: &State, id: NodeId) -> String {
    let Some(durable) = world.place(state, id).log.durable else { return "an empty log".into() };
    let accepted =
        durable.accepted.map(|(ballot, view)| format!(", accepted {view} in {}.{}", ballot.round, ballot.node));
    let promised = durable.promised;
    format!("{}, promised {}.{}{}", durable.view, promised.round, promised.node, accepted.unwrap_or_default())
}

fn text(notice: Notice) -> String {
    match notice {
        Notice::Prepare(_, ballot, _) => format!("Prepare {}.{}", ballot.round, ballot.node),
        Notice::Promise(_, ballot, None) => format!("Promise {}.{}", ballot.round, ballot.node),
        Notice::Promise(_, ballot, Some((before, view))) => {
            format!("Promise {}.{}; accepted {view} in {}.{}", ballot.round, ballot.node, before.round, before.node)
        }
        Notice::Reject(_, ballot) => format!("Reject: {}.{}", ballot.round, ballot.node),
        Notice::Accept(ballot, view) => format!("Accept {}.{}: {view}", ballot.round, ballot.node),
        Notice::Accepted(ballot, view) => format!("Accepted {}.{}: {view}", ballot.round, ballot.node),
        Notice::Decided(view) => format!("Decided: {view}"),
        other => format!("{other:?}"),
    }
}
