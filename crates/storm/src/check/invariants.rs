//! What must hold in every state.
//!
//! Table I of the MINOS paper, corrected: (2a) where a record can be read at all members, they have the same volatileTS
//! and glb_volatileTS; (2b, 2c) no node's glb_volatileTS is above another member's volatileTS, which says that all
//! members have updated their replicas before anybody calls it global; (3) no node's glb_durableTS is above what
//! another member has durable. Both hold for races of writes too, where the printed forms do not.

use remora_replica::ddp::{Model, Op, Outcome};
use remora_replica::types::{NodeId, Timestamp};

use super::local::{Facts, Locals};
use super::system::{Action, Ops, Options, RECORDS, System};
use super::world::{OpState, State, happened};

/// Sets the state's fault if an invariant does not hold.
pub(crate) fn look(locals: &Locals, options: &Options, state: &mut State) {
    if state.fault.is_some() {
        return;
    }
    let found = (0..usize::from(options.records)).find_map(|record| {
        table_one(locals, options, state, record)
            .or_else(|| reads(locals, options, state, record))
            .or_else(|| counter(locals, options, state, record))
    });
    state.fault = found.map(Into::into);
}

fn table_one(locals: &Locals, options: &Options, state: &State, record: usize) -> Option<String> {
    // The members of the newest view that are in it.
    let current = |facts: &&Facts| facts.up && facts.view == state.view && !facts.merging;
    let member = |id: NodeId| Some((id, Some(state.facts(locals, id)).filter(current)?));
    let members = || state.view.members.iter().filter_map(member);
    let unlocked = |(_, facts): (NodeId, &Facts)| facts.metas[record].rd_lock.is_none();
    if members().count() as u32 == state.view.members.len() && members().all(unlocked) {
        let times = |facts: &Facts| (facts.metas[record].volatile_ts, facts.metas[record].glb_volatile_ts);
        let mut ours = members().map(|(id, facts)| (id, times(facts)));
        let first = ours.next();
        if let Some((first, (other, _))) = first.and_then(|first| Some((first, ours.find(|it| it.1 != first.1)?))) {
            let first = first.0;
            return Some(format!(
                "2a: all can be read, and {first} and {other} differ in volatileTS or glb_volatileTS"
            ));
        }
    }
    for (id, Facts { metas, .. }) in members() {
        let meta = metas[record];
        for (other, Facts { metas, durable, .. }) in members() {
            let (theirs, durable) = (metas[record], durable[record]);
            if meta.glb_volatile_ts > theirs.volatile_ts {
                let (global, local) = (meta.glb_volatile_ts, theirs.volatile_ts);
                return Some(format!("2b/2c: glb_volatileTS is {global} at {id}, and volatileTS {local} at {other}"));
            }
            if meta.glb_durable_ts > durable && options.model != Model::Event {
                let global = meta.glb_durable_ts;
                return Some(format!("3: glb_durableTS is {global} at {id}, and {durable} durable at {other}"));
            }
        }
    }
    None
}

/// Read safety: what can be read is never older than what could be read before, nor than a request answered before.
fn reads(locals: &Locals, options: &Options, state: &State, record: usize) -> Option<String> {
    for (id, &node) in state.nodes.iter().enumerate() {
        let Some(ts) = locals.facts(node).readable[record] else { continue };
        if ts < state.floor[record] {
            return Some(format!("n{id} can read {ts} after {} could be read", state.floor[record]));
        }
        let writes = || writes_of(options, state, record);
        let number = writes().find(|(_, op)| op.ts == Some(ts)).map(|(number, _)| number);
        for (later, op) in writes() {
            let answered = op.outcome.as_ref().is_some_and(happened) && !op.lost;
            let overtaken = number.is_none_or(|number| number != later && op.before >> number & 1 == 1);
            if answered && (ts == Timestamp::ZERO || number.is_some() && overtaken) {
                return Some(format!("n{id} can read {ts} after the newer request {later} was answered"));
            }
        }
    }
    None
}

/// A record's writes.
fn writes_of<'a>(options: &Options, state: &'a State, record: usize) -> impl Iterator<Item = (u8, &'a OpState)> {
    let ours = move |number: &u8, options: &Options| options.record(*number) == record;
    let numbers: Vec<u8> = (0..options.writes).filter(|number| ours(number, options)).collect();
    numbers.into_iter().map(|number| (number, &state.ops[usize::from(number)]))
}

/// Read-modify-writes: no two found the same number.
fn counter(locals: &Locals, options: &Options, state: &State, record: usize) -> Option<String> {
    let found = |outcome: &Outcome| if let Outcome::Added(before) = outcome { Some(*before) } else { None };
    let ops = || writes_of(options, state, record).map(|(_, op)| op);
    let befores = || ops().filter(|op| !op.lost).filter_map(|op| op.outcome.as_ref().and_then(found));
    let mut seen = 0_u64;
    for (index, before) in befores().enumerate() {
        if befores().take(index).any(|other| other == before) {
            return Some("two additions found the same number".to_string());
        }
        seen += 1;
    }
    if options.ops != Ops::Adds {
        return None;
    }
    let open = ops().filter(|op| op.issued && op.outcome.as_ref().is_none_or(|o| *o == Outcome::Unknown));
    let open = open.count() as u64;
    for (id, &node) in state.nodes.iter().enumerate() {
        if locals.facts(node).readable[record].is_none() {
            continue;
        }
        let value = locals.local(node).replica.as_ref().and_then(|replica| replica.peek(options.keys().nth(record)?));
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
    let mut wanted = [Timestamp::ZERO; RECORDS];
    let mut want = |number: usize| {
        let newest = &mut wanted[options.record(number as u8)];
        *newest = state.ops[number].ts.unwrap_or_default().max(*newest);
    };
    match outcome {
        Outcome::Persisted => (0..state.ops.len()).filter(|before| op.before >> before & 1 == 1).for_each(want),
        outcome if happened(outcome) && matches!(model, Model::Synch | Model::Strict) => want(number),
        _ => return,
    }
    let view = state.facts(locals, id).view;
    // A node that began anew has no part in what is kept, and a newer view has left it out. Who answers may not have heard.
    for member in view.members.and(state.view.members).iter() {
        let durable = state.facts(locals, member).durable;
        if let Some((durable, wanted)) = durable.iter().zip(&wanted).find(|(durable, wanted)| durable < wanted) {
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
