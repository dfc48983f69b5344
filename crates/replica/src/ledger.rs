//! A log as its writer knows it: how long it is, what of it is durable, and when a shorter one is due.

use std::collections::VecDeque;

use crate::log::{self, Known, Record};
use crate::node::{Change, Snapshot};

/// See the module. Each change of the log stands for a `T`, which is given back when the change is durable.
#[derive(Clone, Debug)]
pub(crate) struct Ledger<T> {
    next_token: u64,
    /// What is not durable yet, and how many bytes of records it is.
    tokens: VecDeque<(u64, T, usize)>,
    /// How many bytes of records are not known to be durable: the last that were appended, in whatever file they stand.
    open: usize,
    /// Bytes in the log, and how many it may have before it is compacted.
    length: usize,
    compact_at: usize,
    slack: usize,
    /// If the disk is full: for how many bytes there is room all the same.
    room: Option<usize>,
}

impl<T> Ledger<T> {
    /// Of a log of so many bytes, all durable, that is compacted when it is `slack` bytes longer than twice what it holds.
    pub fn new(length: usize, slack: usize) -> Self {
        let tokens = VecDeque::new();
        Self { next_token: 0, tokens, open: 0, length, compact_at: slack, slack, room: None }
    }

    /// A record at the log's end: the change, and its token.
    pub fn append(&mut self, record: &Record, stands_for: T) -> (u64, Change) {
        let mut bytes = Vec::new();
        log::encode(record, Known::AllBut(self.open), &mut bytes);
        let length = bytes.len();
        self.room = self.room.map(|room| room.saturating_sub(length));
        self.length += length;
        self.open += length;
        (self.token(stands_for, length), Change::Append(bytes))
    }

    /// A change that is none of the records.
    pub fn change(&mut self, change: Change, stands_for: T) -> (u64, Change) {
        (self.token(stands_for, 0), change)
    }

    fn token(&mut self, stands_for: T, bytes: usize) -> u64 {
        let number = self.next_token;
        self.next_token += 1;
        self.tokens.push_back((number, stands_for, bytes));
        number
    }

    /// Just this instead of all that there is.
    pub fn replace(
        &mut self,
        snapshot: Snapshot,
        stands_for: T,
        change: impl FnOnce(Snapshot) -> Change,
    ) -> (u64, Change) {
        // What is open stays so: of the old file, which may go on for long, it is true, and of the new one, where the snapshot
        // is durable as a whole and says so, it says too little.
        self.length = snapshot.length();
        self.compact_at = 2 * self.length + self.slack;
        self.change(change(snapshot), stands_for)
    }

    /// All changes up to this token are durable: what the next of them stands for, if there is one more.
    pub fn persisted(&mut self, token: u64) -> Option<T> {
        let (_, stands_for, bytes) = self.tokens.pop_front_if(|(number, ..)| *number <= token)?;
        self.open -= bytes;
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

    /// How many bytes of records are not durable yet.
    pub fn open_bytes(&self) -> usize {
        self.open
    }

    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        self.room.is_some()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogEnd;

    const SLACK: usize = 1 << 30;

    /// A record that takes about so many bytes.
    fn record(number: u64, bytes: usize) -> Record {
        Record::Bytes(number, vec![number as u8; bytes].into())
    }

    /// How a file ends that has room behind its last record, as a world's has.
    fn end(file: &[u8]) -> LogEnd {
        log::decode(&log::without_room([file, &[0; 1000]].concat())).end
    }

    /// A log as its world keeps it: what is appended while a new file is written goes to both.
    struct World {
        ledger: Ledger<()>,
        old: Vec<u8>,
        new: Option<Vec<u8>>,
    }

    impl World {
        fn new() -> Self {
            Self { ledger: Ledger::new(0, SLACK), old: Vec::new(), new: None }
        }

        /// Appends a record. Where it begins in the old file.
        fn append(&mut self, bytes: usize) -> (u64, usize) {
            let (token, Change::Append(bytes)) = self.ledger.append(&record(7, bytes), ()) else { panic!("no append") };
            let at = self.old.len();
            self.old.extend_from_slice(&bytes);
            self.new.iter_mut().for_each(|new| new.extend_from_slice(&bytes));
            (token, at)
        }

        fn durable(&mut self, token: u64) {
            while self.ledger.persisted(token).is_some() {}
        }

        fn compact(&mut self, bytes: usize) -> u64 {
            let snapshot = Snapshot::new(vec![record(1, bytes), record(2, bytes)]);
            let (token, Change::Compact(snapshot)) = self.ledger.replace(snapshot, (), Change::Compact) else {
                panic!("no compaction")
            };
            self.new = Some(snapshot.encode());
            token
        }
    }

    /// The process may end before the new file has taken the old one's place, however long that is.
    #[test]
    fn what_is_appended_while_the_log_is_compacted_is_right_in_both_files() {
        for (before, snapshot) in [(100, 5000), (5000, 100), (1000, 1000)] {
            let mut world = World::new();
            for _ in 0..2 {
                world.append(before);
            }
            // The last of them becomes durable after the compaction was asked for.
            world.durable(0);
            let mut token = world.compact(snapshot);
            for _ in 0..5 {
                let (next, _) = world.append(200);
                world.durable(token);
                token = next;
                assert_eq!(end(&world.old), LogEnd::Whole, "the old one: {before} to {snapshot}");
                assert_eq!(end(world.new.as_ref().expect("one")), LogEnd::Whole, "the new: {before} to {snapshot}");
            }
        }
    }

    /// What is known to be durable is damaged if it is bad, and what is not is torn, in whichever file.
    #[test]
    fn what_is_durable_while_the_log_is_compacted_is_said_in_both_files() {
        for (before, snapshot) in [(100, 5000), (5000, 100)] {
            let mut world = World::new();
            let (token, _) = world.append(before);
            world.durable(token);
            world.compact(snapshot);
            let (token, first) = world.append(200);
            world.durable(token);
            let (_, second) = world.append(200);
            let (_, third) = world.append(200);
            let shift = world.new.as_ref().expect("one").len().wrapping_sub(world.old.len());
            for (file, shift) in [(&world.old, 0), (world.new.as_ref().expect("one"), shift)] {
                let bad = |at: usize| {
                    let mut bytes = file.clone();
                    bytes[at.wrapping_add(shift) + 50] ^= 1;
                    end(&bytes)
                };
                assert_eq!(bad(first), LogEnd::Damaged(first.wrapping_add(shift)), "{before} to {snapshot}");
                assert_eq!((bad(second), bad(third)), (LogEnd::Torn, LogEnd::Torn), "{before} to {snapshot}");
            }
        }
    }

    /// A compaction that comes to nothing leaves the old log as good as it was, and one may follow another.
    #[test]
    fn a_compaction_that_comes_to_nothing_changes_nothing() {
        let mut world = World::new();
        let (token, _) = world.append(3000);
        world.durable(token);
        world.compact(9000);
        world.append(100);
        world.new = None;
        world.append(100);
        assert_eq!(end(&world.old), LogEnd::Whole);
        world.compact(50);
        let (token, last) = world.append(100);
        world.durable(token);
        world.append(10);
        world.append(10);
        assert_eq!(end(&world.old), LogEnd::Whole);
        let mut bytes = world.old.clone();
        bytes[last + 50] ^= 1;
        assert_eq!(end(&bytes), LogEnd::Damaged(last));
        assert_eq!(end(&world.new.expect("one")), LogEnd::Whole);
    }
}
