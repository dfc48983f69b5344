//! What must hold in every state.
//!
//! Table I of the MINOS paper, corrected: (2a) where a record can be read at all members, they have the same volatileTS
//! and glb_volatileTS; (2b, 2c) no node's glb_volatileTS is above another member's volatileTS, which says that all
//! members have updated their replicas before anybody calls it global; (3) no node's glb_durableTS is above what
//! another member has durable. Both hold for races of writes too, where the printed forms do not.

use remora_replica::ddp::{Model, Op, Outcome};
use remora_replica::types::{NodeId, Timestamp, Value};

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
            .or_else(|| one_by_one(locals, options, state, record))
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
        if options.numbered() {
            // See `one_by_one`.
            continue;
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
    // What was lost need not be: some log may have it.
    let may_be = |op: &&OpState| op.lost || op.outcome.as_ref().is_none_or(|outcome| *outcome == Outcome::Unknown);
    let open = ops().filter(|op| op.issued).filter(may_be).count() as u64;
    for (id, &node) in state.nodes.iter().enumerate() {
        if locals.facts(node).readable[record].is_none() {
            continue;
        }
        let value = locals.local(node).replica.as_ref().and_then(|replica| replica.peek(options.keys().nth(record)?));
        let value = value.as_ref().map_or(0, number);
        if value < seen || value > seen + open {
            return Some(format!("n{id} can read {value} after {seen} additions of 1 and {open} unanswered"));
        }
    }
    None
}

/// Where requests have numbers: what can be read comes of all that were answered and some of the others, each done once,
/// one after the other, in an order that clients can have seen, and their answers do too.
fn one_by_one(locals: &Locals, options: &Options, state: &State, record: usize) -> Option<String> {
    if !options.numbered() {
        return None;
    }
    let writes: Vec<Done> = writes_of(options, state, record)
        .filter(|(_, op)| op.issued)
        .map(|(number, op)| {
            let outcome = op.outcome.as_ref().filter(|outcome| happened(outcome) && !op.lost);
            Done { bit: 1 << number, before: op.before, op: options.request(number).1.op, outcome }
        })
        .collect();
    (0..).zip(&state.nodes).find_map(|(id, &node): (u8, _)| {
        let ts = locals.facts(node).readable[record]?;
        let value = locals.local(node).replica.as_ref()?.peek(options.keys().nth(record)?);
        let value = value.as_ref().map(number);
        let told = || writes.iter().map(|write| format!("{:?}", write.outcome)).collect::<Vec<_>>().join(", ");
        (!comes_of(&writes, 0, None, value))
            .then(|| format!("n{id} can read {value:?} as {ts}, which comes of no order of the requests: {}", told()))
    })
}

/// A write that was sent.
struct Done<'a> {
    bit: u8,
    /// Those that were answered before it was sent.
    before: u8,
    op: Op,
    outcome: Option<&'a Outcome>,
}

/// Do the writes that are not among those `done` make `wanted` of a value?
fn comes_of(writes: &[Done], done: u8, value: Option<u64>, wanted: Option<u64>) -> bool {
    let left = || writes.iter().filter(|write| done & write.bit == 0);
    let whole = value == wanted && left().all(|write| write.outcome.is_none());
    whole
        || left().any(|write| {
            let known = writes.iter().filter(|other| other.outcome.is_some()).fold(0, |bits, other| bits | other.bit);
            let (new, outcome) = does(&write.op, value);
            let told = write.outcome.is_none_or(|told| *told == outcome);
            let next = write.before & known & !done == 0;
            told && next && comes_of(writes, done | write.bit, new, wanted)
        })
}

/// What comes of a write, and its answer.
fn does(op: &Op, value: Option<u64>) -> (Option<u64>, Outcome) {
    match op {
        Op::Put(_, new) => (Some(number(new)), Outcome::Written),
        Op::FetchAdd(_, delta) => {
            let found = value.unwrap_or(0);
            (Some(found + delta), Outcome::Added(found))
        }
        Op::CompareSwap { expected, new, .. } if expected.as_ref().map(number) == value => {
            (new.as_ref().map(number), Outcome::Swapped)
        }
        _ => (value, Outcome::NotSwapped(value.map(|value| value.to_le_bytes().as_slice().into()))),
    }
}

fn number(value: &Value) -> u64 {
    value.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// When a request is answered: is it as durable as the model promises? That is stated here again, and not asked of
/// `Model::facts`, on purpose: the engine runs by that table.
pub(crate) fn look_answer(locals: &Locals, options: &Options, state: &mut State, number: usize, id: NodeId) {
    let op = &state.ops[number];
    let (Some(outcome), model) = (&op.outcome, options.model) else { return };
    let (mut wanted, mut wanted_marks) = ([Timestamp::ZERO; RECORDS], [0; RECORDS]);
    let mut want = |number: usize| {
        let (op, record) = (&state.ops[number], options.record(number as u8));
        if matches!(op.outcome, Some(Outcome::NotSwapped(_))) {
            // It wrote nothing that anyone relies on.
        } else if op.attempt > 0 {
            // Whichever attempt did it, or one before.
            wanted_marks[record] |= 1 << number;
        } else {
            wanted[record] = op.ts.unwrap_or_default().max(wanted[record]);
        }
    };
    match outcome {
        Outcome::Persisted => (0..state.ops.len()).filter(|before| op.before >> before & 1 == 1).for_each(want),
        outcome if happened(outcome) && matches!(model, Model::Synch | Model::Strict) => want(number),
        _ => return,
    }
    let view = state.facts(locals, id).view;
    // A node that began anew has no part in what is kept, and a newer view has left it out. Who answers may not have heard.
    for member in view.members.and(state.view.members).iter() {
        let Facts { durable, durably_done, .. } = state.facts(locals, member);
        if durably_done.iter().zip(&wanted_marks).any(|(marks, wanted)| wanted & !marks != 0) {
            state.fault = Some(format!("request {number} was answered, and {member} has no mark of it durable").into());
            return;
        }
        if let Some((durable, wanted)) = durable.iter().zip(&wanted).find(|(durable, wanted)| durable < wanted) {
            let fault = format!("request {number} was answered, and {member} has {durable} durable, not {wanted}");
            state.fault = Some(fault.into());
            return;
        }
    }
}

/// Nothing can happen any more, and something should: a deadlock or a lost wake-up.
pub(crate) fn stuck(system: &System, locals: &Locals, state: &State, actions: &[Action]) -> bool {
    let none = actions.iter().all(|&action| System::may_fail_to_come(state, action));
    none && state.fault.is_none() && !system.goes_on(locals, state) && !state.quiet(locals)
}

/// The request's operation, to name it in a chart.
pub(crate) fn describe(op: &Op) -> String {
    match op {
        Op::Put(_, value) => format!("put {}", number(value)),
        Op::FetchAdd(_, delta) => format!("add {delta}"),
        Op::CompareSwap { expected, .. } => format!("remove {}", expected.as_ref().map_or(0, number)),
        Op::Persist => "PERSIST".to_string(),
        other => format!("{other:?}"),
    }
}
