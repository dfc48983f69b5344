//! What clients saw: every operation with the times of its call and return.

use std::collections::HashSet;

use crate::engine::{Action, End};
use crate::events::Time;

/// One operation as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The client. It may have several requests under way.
    pub client: u64,
    /// The number of its request.
    pub number: u64,
    /// Index of the record.
    pub key: u32,
    /// What was asked for.
    pub action: Action,
    /// The scope it belongs to.
    pub scope: u64,
    /// When it was called, ns.
    pub called: Time,
    /// When it returned, ns; 0 as long as it has not.
    pub returned: Time,
    /// How it ended.
    pub end: End,
}

/// Everything that clients saw in a storm, and the blackouts.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Operations in the order of their calls.
    pub records: Vec<Record>,
    /// When all members of the view had lost their memory at once.
    pub blackouts: Vec<Time>,
    /// Scopes whose `[PERSIST]` was answered.
    pub persisted: HashSet<u64>,
}

impl History {
    /// Notes a call. The number comes back in [`History::end`].
    pub fn call(&mut self, record: Record) -> usize {
        self.records.push(record);
        self.records.len() - 1
    }

    /// Notes how a call ended.
    pub fn end(&mut self, index: usize, now: Time, end: End) {
        let record = &mut self.records[index];
        (record.returned, record.end) = (now, end);
    }

    /// The highest key, and one.
    pub fn keys(&self) -> u32 {
        self.records.iter().map(|record| record.key + 1).max().unwrap_or(0)
    }
}
