//! The story of a storm: what happened and when, in lines for a reader.

use std::fmt;

use crate::engine::{Action, Body, End, Request, Value};
use crate::events::{MS, Time};

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

    pub(crate) fn message<M: fmt::Debug>(
        &mut self,
        now: Time,
        from: usize,
        to: usize,
        message: &M,
        concerns: fn(&M, u32) -> bool,
    ) {
        if self.lines.is_some() && self.key.is_some_and(|key| concerns(message, key)) {
            self.say(now, || format!("  {from} -> {to}  {message:?}"));
        }
    }

    pub(crate) fn call(&mut self, now: Time, client: usize, node: usize, request: &Request) {
        if self.wants(&request.body) {
            self.say(now, || format!("client {client} asks node {node}: {}", describe(request)));
        }
    }

    pub(crate) fn reply(&mut self, now: Time, client: usize, request: &Request, ends: &[End]) {
        if self.wants(&request.body) {
            let ends: Vec<String> = ends.iter().map(|&end| outcome(end)).collect();
            self.say(now, || format!("client {client} gets [{}] for {}", ends.join(", "), describe(request)));
        }
    }

    pub(crate) fn gave_up(&mut self, now: Time, client: usize, request: &Request, end: End) {
        if self.wants(&request.body) {
            self.say(now, || format!("client {client} gives up ({end:?}): {}", describe(request)));
        }
    }

    fn wants(&self, body: &Body) -> bool {
        let touches = |key| match body {
            Body::Ops(ops) => ops.iter().any(|op| op.key == key),
            Body::PersistScope => true,
        };
        self.lines.is_some() && self.key.is_none_or(touches)
    }

    /// The last `most` lines and what was left out before them.
    pub fn tail(&self, most: usize) -> String {
        let lines = self.lines.as_deref().unwrap_or_default();
        let skipped = lines.len().saturating_sub(most);
        let mut text = String::new();
        if skipped > 0 {
            text.push_str(&format!("{:>14}  ({skipped} earlier lines)\n", ""));
        }
        for (at, line) in &lines[skipped..] {
            text.push_str(&format!("{:>11.3} ms  {line}\n", *at as f64 / MS as f64));
        }
        text
    }
}

/// A value, or a dash.
pub fn show(value: Value) -> String {
    value.map_or("-".into(), |number| format!("{number:#x}"))
}

fn outcome(end: End) -> String {
    match end {
        End::Done(value) => show(value),
        other => format!("{other:?}"),
    }
}

/// An action and its key.
pub fn action(key: u32, action: Action) -> String {
    match action {
        Action::Get => format!("get k{key}"),
        Action::Put(value) => format!("put k{key} {value:#x}"),
        Action::Delete => format!("delete k{key}"),
        Action::CompareSwap { expected, new } => format!("swap k{key} {} for {new:#x}", show(expected)),
        Action::FetchAdd(delta) => format!("add k{key} {delta}"),
    }
}

fn describe(request: &Request) -> String {
    let what = match &request.body {
        Body::PersistScope => "persist".into(),
        Body::Ops(ops) => ops.iter().map(|op| action(op.key, op.action)).collect::<Vec<_>>().join(", "),
    };
    format!("#{:x}.{} [scope {:x}] {what}", request.client, request.number, request.scope)
}
