//! What must hold in every state.
//!
//! Table I of the MINOS paper, corrected: (2a) where a record can be read at all members, they have the same volatileTS
//! and glb_volatileTS; (2b, 2c) no node's glb_volatileTS is above another member's volatileTS, which says that all
//! members have updated their replicas before anybody calls it global; (3) no node's glb_durableTS is above what
//! another member has durable. Both hold for races of writes too, where the printed forms do not.

use remora_replica::ddp::{Model, Op, Outcome};
use remora_replica::types::{NodeId, Timestamp};

use super::local::{Facts, Locals};
use super::system::{Action, KEY, Ops, Options, System};
use super::world::{State, happened};

/// Sets the state's fault if an invariant does not hold.
pub(crate) fn look(locals: &Locals, options: &Options, state: &mut State) {
    if state.fault.is_some() {
        return;
    }
    let found = table_one(locals, options, state)
        .or_else(|| reads(locals, options, state))
        .or_else(|| counter(locals, options, state));
    state.fault = found.map(Into::into);
}

fn table_one(locals: &Locals, options: &Options, state: &State) -> Option<String> {
    // The members of the newest view that are in it.
    let current = |facts: &&Facts| facts.up && facts.view == state.view && !facts.merging;
    let member = |id: NodeId| Some((id, Some(state.facts(locals, id)).filter(current)?));
    let members = || state.view.members.iter().filter_map(member);
    let unlocked = |(_, facts): (NodeId, &Facts)| facts.meta.rd_lock.is_none();
    if members().count() as u32 == state.view.members.len() && members().all(unlocked) {
        let mut ours = members().map(|(id, facts)| (id, (facts.meta.volatile_ts, facts.meta.glb_volatile_ts)));
        let first = ours.next();
        if let Some((first, (other, _))) = first.and_then(|first| Some((first, ours.find(|it| it.1 != first.1)?))) {
            let first = first.0;
            return Some(format!(
                "2a: all can be read, and {first} and {other} differ in volatileTS or glb_volatileTS"
            ));
        }
    }
    for (id, Facts { meta, .. }) in members() {
        for (other, Facts { meta: theirs, durable, .. }) in members() {
            if meta.glb_volatile_ts > theirs.volatile_ts {
                let (global, local) = (meta.glb_volatile_ts, theirs.volatile_ts);
                return Some(format!("2b/2c: glb_volatileTS is {global} at {id}, and volatileTS {local} at {other}"));
            }
            if meta.glb_durable_ts > *durable && options.model != Model::Event {
                let global = meta.glb_durable_ts;
                return Some(format!("3: glb_durableTS is {global} at {id}, and {durable} durable at {other}"));
            }
        }
    }
    None
}

/// Read safety: what can be read is never older than what could be read before, nor than a request answered before.
fn reads(locals: &Locals, options: &Options, state: &State) -> Option<String> {
    for (id, &node) in state.nodes.iter().enumerate() {
        let Some(ts) = locals.facts(node).readable else { continue };
        if ts < state.floor {
            return Some(format!("n{id} can read {ts} after {} could be read", state.floor));
        }
        let number = state.ops.iter().position(|op| op.ts == Some(ts));
        for (later, op) in state.ops.iter().enumerate().take(usize::from(options.writes)) {
            let answered = op.outcome.as_ref().is_some_and(happened) && !op.lost;
            let overtaken = number.is_none_or(|number| number != later && op.before >> number & 1 == 1);
            if answered && (ts == Timestamp::ZERO || number.is_some() && overtaken) {
                return Some(format!("n{id} can read {ts} after the newer request {later} was answered"));
            }
        }
    }
    None
}

/// Read-modify-writes: no two found the same number.
fn counter(locals: &Locals, options: &Options, state: &State) -> Option<String> {
    let found = |outcome: &Outcome| if let Outcome::Added(before) = outcome { Some(*before) } else { None };
    let befores = state.ops.iter().filter(|op| !op.lost).filter_map(|op| op.outcome.as_ref().and_then(found));
    let mut seen = 0_u64;
    for (index, before) in befores.clone().enumerate() {
        if befores.clone().take(index).any(|other| other == before) {
            return Some("two additions found the same number".to_string());
        }
        seen += 1;
    }
    if options.ops != Ops::Adds {
        return None;
    }
    let open = state.ops.iter().filter(|op| op.issued && op.outcome.as_ref().is_none_or(|o| *o == Outcome::Unknown));
    let open = open.count() as u64;
    for (id, &node) in state.nodes.iter().enumerate() {
        if locals.facts(node).readable.is_none() {
            continue;
        }
        let value = locals.local(node).replica.as_ref().and_then(|replica| replica.peek(KEY));
        let value = value.map_or(0, |value| value.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes)));
        if value < seen || value > seen + open {
            return Some(format!("n{id} can read {value} after {seen} additions of 1 and {open} unanswered"));
        }
    }
    None
}

/// When a request is answered: is it as durable as the model promises? That is stated here again, and not asked of
/// `Model::facts`, on purpose: the engine runs by that table.
pub(crate) fn look_answer(locals: &Locals, options: &Options, state: &mut State, number: usize, id: NodeId) {
    let op = &state.ops[number];
    let (Some(outcome), model) = (&op.outcome, options.model) else { return };
    let wanted = match (outcome, op.ts) {
        (Outcome::Persisted, _) => {
            state.ops.iter().filter(|op| op.outcome.as_ref().is_some_and(happened)).filter_map(|op| op.ts).max()
        }
        (outcome, ts) if happened(outcome) && matches!(model, Model::Synch | Model::Strict) => ts,
        _ => None,
    };
    let Some(wanted) = wanted else { return };
    let view = state.facts(locals, id).view;
    // A node that began anew has no part in what is kept, and a newer view has left it out. Who answers may not have heard.
    for member in view.members.and(state.view.members).iter() {
        let durable = state.facts(locals, member).durable;
        if durable < wanted {
            let fault = format!("request {number} was answered, and {member} has {durable} durable, not {wanted}");
            state.fault = Some(fault.into());
            return;
        }
    }
}

/// Nothing can happen any more, and something should: a deadlock or a lost wake-up.
pub(crate) fn stuck(system: &System, locals: &Locals, state: &State, actions: &[Action]) -> bool {
    actions.is_empty() && state.fault.is_none() && !system.goes_on(locals, state) && !state.quiet(locals)
}

/// The request's operation, to name it in a chart.
pub(crate) fn describe(op: &Op) -> String {
    match op {
        Op::Put(_, value) => {
            format!("put {}", value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
        }
        Op::FetchAdd(_, delta) => format!("add {delta}"),
        Op::Persist => "PERSIST".to_string(),
        other => format!("{other:?}"),
    }
}
