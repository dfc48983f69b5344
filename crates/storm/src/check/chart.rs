//! A counterexample as a message chart: a column for each node, a line for each thing that happens.

use remora_replica::ddp::{AckKind, Body, JobId, Message};
use remora_replica::types::{NodeId, Timestamp};

use super::invariants::describe;
use super::local::{Envelope, EnvelopeId, Locals};
use super::system::{Action, System};
use super::world::State;
use super::{proof, reduce};

/// Characters of a node's column.
const COLUMN: usize = 26;

/// Draws the states along a way, each with what led to it.
pub(crate) fn chart(system: &System, path: &[(Option<Action>, State)]) -> String {
    let nodes = usize::from(system.options.nodes);
    let reason = path.last().map(|(_, last)| reason(system, last));
    let locals = &*system.locals();
    let head: String = (0..nodes).map(|id| format!("{:^COLUMN$}", format!("n{id}"))).collect();
    let mut lines = vec![head.trim_end().to_string()];
    for pair in path.windows(2) {
        let [(_, before), (Some(action), after)] = pair else { continue };
        lines.push(line(system, locals, after, action, nodes));
        if let Action::Enter(view) = action {
            let entered =
                |id: &NodeId| after.facts(locals, *id).up && after.facts(locals, *id).view.epoch == view.epoch;
            let ids = (0..nodes as u8).map(NodeId).filter(entered);
            lines.extend(ids.map(|id| line(system, locals, after, &Action::Install(id), nodes)));
        }
        if let Some(ack) = reduce::carries(system, locals, before, *action) {
            let Envelope { to, from, message } = locals.envelope(ack);
            lines.push(arrow(*from, *to, &text(message), nodes));
        }
        for (number, (old, new)) in before.ops.iter().zip(&after.ops).enumerate() {
            if let Some(outcome) = &new.outcome
                && old.outcome != new.outcome
            {
                lines.push(at_node(new.at, &format!("client {number}: {outcome:?}"), nodes));
            }
        }
        let both_up = |id: &NodeId| before.facts(locals, *id).up && after.facts(locals, *id).up;
        for id in (0..nodes as u8).map(NodeId).filter(both_up) {
            let (old, new) = (before.facts(locals, id).metas, after.facts(locals, id).metas);
            let unlocked = old.iter().zip(&new).filter(|(old, new)| old.rd_lock.is_some() && new.rd_lock.is_none());
            lines.extend(unlocked.map(|(_, new)| at_node(id, &format!("unlocked at {}", new.volatile_ts), nodes)));
        }
    }
    lines.extend(reason.map(|reason| format!("=> {reason}")));
    lines.join("\n")
}

/// What is wrong with a state.
pub(crate) fn reason(system: &System, state: &State) -> String {
    let fault = state.fault.as_ref().map(|fault| fault.to_string());
    fault.or_else(|| proof::flaw(system, state)).unwrap_or_else(|| stuck(system, &system.locals(), state))
}

fn stuck(system: &System, locals: &Locals, state: &State) -> String {
    let mut what = Vec::new();
    for replica in state.replicas(locals) {
        for owner in system.options.keys().filter_map(|key| replica.meta(key).rd_lock) {
            what.push(format!("{} waits with its RDLock held by {owner}", replica.id()));
        }
    }
    for (number, _) in state.ops.iter().enumerate().filter(|(_, op)| op.issued && op.outcome.is_none()) {
        what.push(format!("request {number} is never answered"));
    }
    format!("nothing can happen any more: {}", what.join(", "))
}

fn line(system: &System, locals: &Locals, after: &State, action: &Action, nodes: usize) -> String {
    let sent = |envelope: &EnvelopeId, kept: &str| {
        let Envelope { to, from, message } = locals.envelope(*envelope);
        arrow(*from, *to, &format!("{}{kept}", text(message)), nodes)
    };
    match action {
        Action::Submit(number) => {
            let (at, request) = system.options.request(*number);
            at_node(at, &format!("client {number}: {}", describe(&request.op)), nodes)
        }
        Action::Again(id) => {
            let op = describe(&system.options.request(0).1.op);
            at_node(*id, &format!("client 0 again: {op}"), nodes)
        }
        Action::Deliver(envelope) => sent(envelope, ""),
        Action::Duplicate(envelope) => sent(envelope, "(kept)"),
        Action::Done(id, job) => at_node(*id, &done(job), nodes),
        Action::Crash(id) => at_node(*id, "CRASH", nodes),
        Action::Blackout => "-- all crash --".to_string(),
        Action::Restart(id) => at_node(*id, "starts again", nodes),
        Action::Suspect(id) => at_node(*id, "suspected, lease over", nodes),
        Action::Decide(view) | Action::Enter(view) => format!("-- decided: {view} --"),
        Action::Install(id) => {
            let epoch = after.replica(locals, *id).map_or(0, |replica| replica.view().epoch);
            at_node(*id, &format!("enters epoch {epoch}"), nodes)
        }
        Action::Timeout => "-- what was not answered is sent again --".to_string(),
    }
}

fn at_node(id: NodeId, what: &str, nodes: usize) -> String {
    let line: String = (0..nodes)
        .map(|index| if index == usize::from(id.0) { format!("{what:^COLUMN$}") } else { format!("{:^COLUMN$}", "|") })
        .collect();
    line.trim_end().to_string()
}

/// An arrow from the middle of one column to the middle of another, with its text.
fn arrow(from: NodeId, to: NodeId, what: &str, nodes: usize) -> String {
    let middle = |id: NodeId| usize::from(id.0) * COLUMN + COLUMN / 2;
    let (left, right) = (middle(from).min(middle(to)), middle(from).max(middle(to)));
    let mut line: Vec<char> = (0..nodes * COLUMN).map(|at| if at % COLUMN == COLUMN / 2 { '|' } else { ' ' }).collect();
    line[left + 1..right].fill('-');
    if from < to {
        line[right - 1] = '>'
    } else {
        line[left + 1] = '<'
    }
    let start = left + (right - left).saturating_sub(what.chars().count()) / 2;
    for (at, c) in (start..).zip(what.chars()).take_while(|(at, _)| *at + 2 < right) {
        line[at] = c;
    }
    line.into_iter().collect::<String>().trim_end().to_string()
}

fn text(message: &Message) -> String {
    let kind = |kind: &AckKind| match kind {
        AckKind::Both => "",
        AckKind::Consistency => "_C",
        AckKind::Persistency => "_P",
    };
    let acked = |word: &str, ts: &Timestamp, of: &AckKind| format!(" {word}{} {ts} ", kind(of));
    match &message.body {
        Body::Inv(writes) => {
            let list: Vec<String> = writes.iter().map(|write| write.ts.to_string()).collect();
            let rmw = if writes.iter().any(|write| write.rmw) { " rmw" } else { "" };
            format!(" INV{rmw} {} ", list.join(","))
        }
        Body::Ack(_, ts, of) => acked("ACK", ts, of),
        Body::Val(_, ts, of) => acked("VAL", ts, of),
        Body::Refuse(_, ts) => format!(" refuse {ts} "),
        Body::Busy(_, ts) => format!(" busy {ts} "),
        Body::Persist(..) => " [PERSIST]sc ".to_string(),
        Body::PersistAck(..) => " [ACK_P]sc ".to_string(),
        Body::PersistVal(..) => " [VAL_P]sc ".to_string(),
        Body::State(number, entries, _) => format!(" state {number}: {} ", entries.len()),
        Body::StateAck(number) => format!(" has state {number} "),
        Body::Merged(_) => " merged ".to_string(),
    }
}

fn done(job: &JobId) -> String {
    match job {
        JobId::Persist(_, ts) => format!("durable {ts}"),
        JobId::PersistScope(_) => "durable: scope's end".to_string(),
        JobId::Apply(_, ts) => format!("local write {ts}"),
        JobId::Drain(_, ts) => format!("dFIFO drained {ts}"),
        JobId::Cross(_, ts) => format!("at NIC {ts}"),
    }
}
