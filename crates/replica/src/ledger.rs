//! A log as its writer knows it: how long it is, what of it is durable, and when a shorter one is due.

use std::collections::VecDeque;

use crate::log::{self, Record};
use crate::node::{Change, Snapshot};

/// See the module. Each change of the log stands for a `T`, which is given back when the change is durable.
#[derive(Clone, Debug)]
pub(crate) struct Ledger<T> {
    next_token: u64,
    /// What is not durable yet, and how long (bytes) the log is with it.
    tokens: VecDeque<(u64, T, usize)>,
    /// Bytes in the log, how many are known to be durable, and how many it may have before it is compacted.
    length: usize,
    durable: usize,
    compact_at: usize,
    slack: usize,
    /// If the disk is full: for how many bytes there is room all the same.
    room: Option<usize>,
}

impl<T> Ledger<T> {
    /// Of a log of so many bytes, all durable, that is compacted when it is `slack` bytes longer than twice what it holds.
    pub fn new(length: usize, slack: usize) -> Self {
        let tokens = VecDeque::new();
        Self { next_token: 0, tokens, length, durable: length, compact_at: slack, slack, room: None }
    }

    /// A record at the log's end: the change, and its token.
    pub fn append(&mut self, record: &Record, stands_for: T) -> (u64, Change) {
        let mut bytes = Vec::new();
        log::encode(record, self.durable, &mut bytes);
        self.room = self.room.map(|room| room.saturating_sub(bytes.len()));
        self.length += bytes.len();
        self.change(Change::Append(bytes), stands_for)
    }

    /// A change that is none of the records.
    pub fn change(&mut self, change: Change, stands_for: T) -> (u64, Change) {
        let number = self.next_token;
        self.next_token += 1;
        self.tokens.push_back((number, stands_for, self.length));
        (number, change)
    }

    /// Just this instead of all that there is.
    pub fn replace(
        &mut self,
        snapshot: Snapshot,
        stands_for: T,
        change: impl FnOnce(Snapshot) -> Change,
    ) -> (u64, Change) {
        // What went before is in another file.
        self.tokens.iter_mut().for_each(|(_, _, length)| *length = 0);
        self.length = snapshot.length();
        self.durable = self.length;
        self.compact_at = 2 * self.length + self.slack;
        self.change(change(snapshot), stands_for)
    }

    /// All changes up to this token are durable: what the next of them stands for, if there is one more.
    pub fn persisted(&mut self, token: u64) -> Option<T> {
        let (_, stands_for, length) = self.tokens.pop_front_if(|(number, ..)| *number <= token)?;
        self.durable = self.durable.max(length);
        Some(stands_for)
    }

    /// What is not durable yet stands for.
    pub fn open(&mut self) -> impl Iterator<Item = &mut T> {
        self.tokens.iter_mut().map(|(_, stands_for, _)| stands_for)
    }

    /// How many changes are not durable yet.
    pub fn awaited(&self) -> usize {
        self.tokens.len()
    }

    /// For how many bytes a full disk has room.
    pub fn set_room(&mut self, room: Option<usize>) {
        self.room = room;
    }

    /// Whether there is room for a record, if the disk is full, and for so many bytes beside it.
    pub fn fits(&self, record: &Record, beside: usize) -> bool {
        self.room.is_none_or(|room| log::length(record) + beside <= room)
    }

    /// Whether a shorter log is due.
    pub fn is_long(&self) -> bool {
        self.length > self.compact_at && self.room.is_none()
    }
}
