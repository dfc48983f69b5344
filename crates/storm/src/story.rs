//! The story of a storm: what happened and when, in lines for a reader.

use crate::cluster::{Failure, PATIENCE, StormReport};
use remora_replica::client::Ticket;
use remora_replica::ddp::Outcome;

use crate::engine::{Action, Body, End, Engine, Value};
use crate::events::{MS, SECOND, Time};
use crate::history::Record;
use crate::workload::Flight;

/// Lines of a story, or none if nobody listens.
#[derive(Debug, Default)]
pub struct Story {
    lines: Option<Vec<(Time, String)>>,
    /// Tell of messages and operations on this key only.
    key: Option<u32>,
}

impl Story {
    /// Tells nothing, and costs next to nothing.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Tells all that concerns `key`; without a key, everything but messages.
    pub fn about(key: Option<u32>) -> Self {
        Self { lines: Some(Vec::new()), key }
    }

    /// Adds a line.
    pub fn say(&mut self, now: Time, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push((now, text()));
        }
    }

    pub(crate) fn message<E: Engine>(&mut self, now: Time, from: usize, to: usize, message: &E::Message) {
        if self.lines.is_some() && self.key.is_some_and(|key| E::concerns(message, key)) {
            self.say(now, || format!("  {from} -> {to}  {}", E::describe(message)));
        }
    }

    pub(crate) fn call(&mut self, now: Time, client: usize, ticket: Ticket, flight: &Flight) {
        if self.wants(&flight.body) {
            self.say(now, || format!("client {client} asks: {}", describe(client, ticket, flight)));
        }
    }

    pub(crate) fn calls(&mut self, now: Time, client: usize, node: usize) {
        self.say(now, || format!("client {client} calls node {node}"));
    }

    pub(crate) fn ended(
        &mut self,
        now: Time,
        client: usize,
        ticket: Ticket,
        flight: &Flight,
        outcome: &Outcome,
        ends: &[End],
    ) {
        if self.wants(&flight.body) {
            let what = match ends {
                [] => format!("{outcome:?}"),
                _ => ends.iter().map(|&end| describe_end(end)).collect::<Vec<_>>().join(", "),
            };
            self.say(now, || format!("client {client} gets [{what}] for {}", describe(client, ticket, flight)));
        }
    }

    fn wants(&self, body: &Body) -> bool {
        let touches = |key| match body {
            Body::Ops(ops) => ops.iter().any(|op| op.key == key),
            Body::PersistScope => true,
        };
        self.lines.is_some() && self.key.is_none_or(touches)
    }

    /// The last `most` lines before the failure, and what failed.
    pub fn tell(&self, report: &StormReport, most: usize) -> String {
        let records = &report.history.records;
        let (until, end) = match &report.failure {
            Some(Failure::Wrong(finding)) => {
                let misfits: Vec<&Record> = finding.records.iter().map(|&index| &records[index]).collect();
                let mut end = format!("\nNo order explains what clients saw of k{}. What fits nowhere:\n", finding.key);
                misfits.iter().take(8).for_each(|record| end.push_str(&format!("  {}\n", describe_record(record))));
                if let Some(End::Done(Some(value))) = misfits.first().map(|record| record.end) {
                    end.push_str(&format!("Who else wrote or saw {value:#x}:\n"));
                    let others = records.iter().filter(|record| record.key == finding.key && touches(record, value));
                    others.take(8).for_each(|record| end.push_str(&format!("  {}\n", describe_record(record))));
                }
                (misfits.first().map_or(Time::MAX, |record| record.returned), end)
            }
            Some(Failure::Stuck(requests)) => {
                let mut end = "\nWhat the nodes have come to:\n".to_string();
                self.at(report.simulated).for_each(|line| end.push_str(&format!("  {line}\n")));
                end.push_str("Never finished, although all faults have ended:\n");
                requests
                    .iter()
                    .for_each(|(node, body)| end.push_str(&format!("  {} at node {node}\n", describe_body(body))));
                // What happens in the first seconds of the calm; the rest is the same over and over.
                (report.simulated.saturating_sub(PATIENCE) + 2 * SECOND, end)
            }
            Some(Failure::Broken(what)) => (Time::MAX, format!("\nThe engine broke: {what}\n")),
            None => (Time::MAX, String::new()),
        };
        self.lines_until(until, most) + &end
    }

    fn at(&self, time: Time) -> impl Iterator<Item = &str> {
        self.lines.iter().flatten().filter(move |line| line.0 == time).map(|line| line.1.as_str())
    }

    /// The last `most` lines up to a time, and how many there are before and behind them.
    pub fn lines_until(&self, until: Time, most: usize) -> String {
        let all = self.lines.as_deref().unwrap_or_default();
        let lines = &all[..all.partition_point(|line| line.0 <= until)];
        let skipped = lines.len().saturating_sub(most);
        let note =
            |count, which| if count > 0 { format!("{:>14}  ({count} {which} lines)\n", "") } else { String::new() };
        let mut text = note(skipped, "earlier");
        for (at, line) in &lines[skipped..] {
            text.push_str(&format!("{:>11.3} ms  {line}\n", *at as f64 / MS as f64));
        }
        text + &note(all.len() - lines.len(), "later")
    }
}

fn touches(record: &Record, value: u64) -> bool {
    let wrote = match record.action {
        Action::Put(new) | Action::CompareSwap { new, .. } => new == value,
        Action::FetchAdd(delta) => matches!(record.end, End::Done(Some(found)) if found.wrapping_add(delta) == value),
        Action::Get | Action::Delete => false,
    };
    wrote || record.end == End::Done(Some(value))
}

fn describe_record(record: &Record) -> String {
    let Record { client, number, key, action, called, returned, end, .. } = *record;
    let (from, to) = (called as f64 / MS as f64, returned as f64 / MS as f64);
    format!("#{client:x}.{number} {} = {} ({from:.3} to {to:.3} ms)", describe_action(key, action), describe_end(end))
}

/// A value, or a dash.
pub fn show(value: Value) -> String {
    value.map_or("-".into(), |number| format!("{number:#x}"))
}

fn describe_end(end: End) -> String {
    match end {
        End::Done(value) => show(value),
        other => format!("{other:?}"),
    }
}

/// An action and its key.
pub fn describe_action(key: u32, action: Action) -> String {
    match action {
        Action::Get => format!("get k{key}"),
        Action::Put(value) => format!("put k{key} {value:#x}"),
        Action::Delete => format!("delete k{key}"),
        Action::CompareSwap { expected, new } => format!("swap k{key} {} for {new:#x}", show(expected)),
        Action::FetchAdd(delta) => format!("add k{key} {delta}"),
    }
}

fn describe(client: usize, ticket: Ticket, flight: &Flight) -> String {
    format!("#{client:x}.{} [scope {:x}] {}", ticket.0, flight.scope, describe_body(&flight.body))
}

fn describe_body(body: &Body) -> String {
    match body {
        Body::PersistScope => "persist".into(),
        Body::Ops(ops) => ops.iter().map(|op| describe_action(op.key, op.action)).collect::<Vec<_>>().join(", "),
    }
}
