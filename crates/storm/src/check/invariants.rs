//! What must hold in every state.
//!
//! Table I of the MINOS paper, corrected: (2a) where a record can be read at all members, they have the same volatileTS
//! and glb_volatileTS; (2b, 2c) no node's glb_volatileTS is above another member's volatileTS, which says that all
//! members have updated their replicas before anybody calls it global; (3) no node's glb_durableTS is above what
//! another member has durable. Both hold for races of writes too, where the printed forms do not.

use remora_replica::ddp::{Model, Op, Outcome, Replica};
use remora_replica::types::{NodeId, Timestamp};
use stateright::Model as _;

use super::system::{KEY, Ops, System};
use super::world::{State, happened};

/// Sets the state's fault if an invariant does not hold.
pub(crate) fn look(system: &System, state: &mut State) {
    if state.fault.is_some() {
        return;
    }
    let found = table_one(system, state).or_else(|| reads(system, state)).or_else(|| counter(system, state));
    state.fault = found;
    // What can be read now, nobody may read less than later.
    for id in 0..state.nodes.len() {
        if let Some(ts) = readable(state, NodeId(id as u8)) {
            state.floor = state.floor.max(ts);
        }
    }
}

/// The members of the newest view that are in it.
fn members(state: &State) -> Vec<&Replica> {
    let current = |replica: &&Replica| replica.view() == state.view && !replica.merging();
    state.view.members.iter().filter_map(|id| state.replica(id)).filter(current).collect()
}

/// The version that a client can read at a node, if it can.
fn readable(state: &State, id: NodeId) -> Option<Timestamp> {
    let replica = state.replica(id)?;
    let meta = replica.meta(KEY);
    (replica.serves() && meta.rd_lock.is_none()).then_some(meta.volatile_ts)
}

fn table_one(system: &System, state: &State) -> Option<String> {
    let members = members(state);
    let whole = members.len() as u32 == state.view.members.len();
    let metas: Vec<_> = members.iter().map(|replica| (replica.id(), replica.meta(KEY))).collect();
    if whole && metas.iter().all(|(_, meta)| meta.rd_lock.is_none()) {
        let same = |a: Timestamp, b: Timestamp| a == b;
        if let Some((id, _)) = metas.iter().find(|(_, meta)| {
            !same(meta.volatile_ts, metas[0].1.volatile_ts) || !same(meta.glb_volatile_ts, metas[0].1.glb_volatile_ts)
        }) {
            return Some(format!(
                "2a: all can be read, and {} and {id} differ in volatileTS or glb_volatileTS",
                metas[0].0
            ));
        }
    }
    let durable = |id: NodeId| state.logs[usize::from(id.0)].get(&KEY).map_or(Timestamp::ZERO, |write| write.ts);
    for (id, meta) in &metas {
        for (other, theirs) in &metas {
            if meta.glb_volatile_ts > theirs.volatile_ts {
                let (global, local) = (meta.glb_volatile_ts, theirs.volatile_ts);
                return Some(format!("2b/2c: glb_volatileTS is {global} at {id}, and volatileTS {local} at {other}"));
            }
            if meta.glb_durable_ts > durable(*other) && system.options.model != Model::Event {
                let global = meta.glb_durable_ts;
                return Some(format!(
                    "3: glb_durableTS is {global} at {id}, and {} durable at {other}",
                    durable(*other)
                ));
            }
        }
    }
    None
}

/// Read safety: what can be read is never older than what could be read before, nor than a request answered before.
fn reads(system: &System, state: &State) -> Option<String> {
    for id in 0..state.nodes.len() {
        let id = NodeId(id as u8);
        let Some(ts) = readable(state, id) else { continue };
        if ts < state.floor {
            return Some(format!("{id} can read {ts} after {} could be read", state.floor));
        }
        let number = state.ops.iter().position(|op| op.ts == Some(ts));
        for (later, op) in state.ops.iter().enumerate().take(usize::from(system.options.writes)) {
            let answered = op.outcome.as_ref().is_some_and(happened) && !op.lost;
            let overtaken = number.is_none_or(|number| number != later && op.before >> number & 1 == 1);
            if answered && (ts == Timestamp::ZERO || number.is_some() && overtaken) {
                return Some(format!("{id} can read {ts} after the newer request {later} was answered"));
            }
        }
    }
    None
}

/// Read-modify-writes: no two found the same number.
fn counter(system: &System, state: &State) -> Option<String> {
    let found = |outcome: &Outcome| if let Outcome::Added(before) = outcome { Some(*before) } else { None };
    let kept = state.ops.iter().filter(|op| !op.lost);
    let mut befores: Vec<u64> = kept.filter_map(|op| op.outcome.as_ref().and_then(found)).collect();
    befores.sort_unstable();
    let twice = befores.windows(2).any(|pair| pair[0] == pair[1]);
    if twice {
        return Some("two additions found the same number".to_string());
    }
    let sure = befores.len() as u64;
    let open = state.ops.iter().filter(|op| op.issued && op.outcome.as_ref().is_none_or(|o| *o == Outcome::Unknown));
    let open = open.count() as u64;
    for id in (0..state.nodes.len()).map(|id| NodeId(id as u8)) {
        if system.options.ops != Ops::Adds || readable(state, id).is_none() {
            continue;
        }
        let value = state.replica(id).and_then(|replica| replica.peek(KEY));
        let value = value.map_or(0, |value| value.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes)));
        if value < sure || value > sure + open {
            return Some(format!("{id} can read {value} after {sure} additions of 1 and {open} unanswered"));
        }
    }
    None
}

/// When a request is answered: is it as durable as the model promises?
pub(crate) fn look_answer(system: &System, state: &mut State, number: usize, id: NodeId) {
    let op = &state.ops[number];
    let (Some(outcome), model) = (&op.outcome, system.options.model) else { return };
    let wanted = match (outcome, op.ts) {
        (Outcome::Persisted, _) => {
            state.ops.iter().filter(|op| op.outcome.as_ref().is_some_and(happened)).filter_map(|op| op.ts).max()
        }
        (outcome, ts) if happened(outcome) && matches!(model, Model::Synch | Model::Strict) => ts,
        _ => None,
    };
    let (Some(wanted), Some(view)) = (wanted, state.replica(id).map(Replica::view)) else { return };
    for member in view.members.iter() {
        let durable = state.logs[usize::from(member.0)].get(&KEY).map_or(Timestamp::ZERO, |write| write.ts);
        if durable < wanted {
            state.fault =
                Some(format!("request {number} was answered, and {member} has {durable} durable, not {wanted}"));
            return;
        }
    }
}

/// Nothing can happen any more, and something should: a deadlock or a lost wake-up.
pub(crate) fn stuck(system: &System, state: &State) -> bool {
    let mut actions = Vec::new();
    if state.fault.is_some() || state.quiet() {
        return false;
    }
    system.actions(state, &mut actions);
    actions.is_empty()
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
