//! State from node to node: to a learner while service goes on, and after the crash of all nodes from each to each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::message::{AckKind, Body, Entry};
use super::record::Record;
use super::replica::Replica;
use crate::Time;
use crate::types::{Key, NodeId, NodeSet, Timestamp};

/// Records, and about how many bytes, go in one message.
const RECORDS: usize = 64;
const BYTES: usize = 64 << 10;

/// This node's state on its way to another. One message at a time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Stream {
    number: u64,
    /// The key before the first of the message under way.
    from: Option<Key>,
    /// The message's last key; `None` if it goes to the end.
    until: Option<Key>,
    since: Time,
}

impl Stream {
    /// Is the last message under way? All that is left then is to end.
    pub(crate) fn is_last(&self) -> bool {
        self.until.is_none()
    }
}

/// A part of another's state.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Part {
    pub(super) number: u64,
    pub(super) last: bool,
    /// What of it is not durable here yet.
    pub(super) missing: BTreeSet<(Key, Timestamp)>,
    pub(super) acked: bool,
}

/// What this node takes from others.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Taking {
    /// It is a learner, and has not everything yet.
    pub learning: bool,
    /// All is here and durable: it may become a member.
    pub caught_up: bool,
    /// In recovery: not all have everyone's log yet.
    pub merging: bool,
    /// The newest part from each sender.
    pub parts: BTreeMap<NodeId, Part>,
    /// Whose state is here whole.
    pub whole: NodeSet,
    /// Who has everyone's.
    pub merged: NodeSet,
}

impl Replica {
    /// As a learner: is everything here? Then the next view may have it as a member.
    pub fn caught_up(&self) -> bool {
        self.catch_up.taking.caught_up
    }

    /// Is it in the middle of a recovery?
    pub fn merging(&self) -> bool {
        self.catch_up.taking.merging
    }

    /// The learners' donor is the first member that can be; in recovery everyone gives to everyone.
    pub(crate) fn start_streams(&mut self) {
        self.catch_up.streams.clear();
        let me = self.config.id;
        let to = if self.catch_up.taking.merging {
            self.peers()
        } else if self.view.members.iter().next() == Some(me) {
            self.view.learners
        } else {
            NodeSet::EMPTY
        };
        for node in to.iter() {
            let until = self.part_end(None);
            self.catch_up.streams.insert(node, Stream { number: 0, from: None, until, since: self.now });
            self.send_state(node);
        }
        self.look_whole();
    }

    fn send_state(&mut self, node: NodeId) {
        let Some(stream) = self.catch_up.streams.get_mut(&node) else { return };
        stream.since = self.now;
        let (number, until) = (stream.number, stream.until);
        let range = (after(stream.from), until.map_or(Bound::Unbounded, Bound::Included));
        let entry = |key: Key, record: &Record| Entry {
            write: record.as_write(key),
            glb_volatile_ts: record.meta.glb_volatile_ts,
            glb_durable_ts: record.meta.glb_durable_ts,
        };
        let entries = self.records.range(range).map(|(key, record)| entry(key, record)).collect();
        self.send(NodeSet::one(node), Body::State(number, entries, until.is_none()));
    }

    /// The last key of a message that begins after `from`; `None` if all the rest fits.
    fn part_end(&self, from: Option<Key>) -> Option<Key> {
        let mut bytes = 0;
        for (count, (key, record)) in (1..).zip(self.records.range((after(from), Bound::Unbounded))) {
            bytes += record.value.as_ref().map_or(0, |value| value.len());
            if count == RECORDS || bytes >= BYTES {
                return Some(key);
            }
        }
        None
    }

    /// The receiver has the message that is under way: the next one, if there is one.
    pub(crate) fn state_ack(&mut self, from: NodeId, number: u64) {
        let Some(stream) = self.catch_up.streams.get(&from) else { return };
        if stream.number != number {
            return;
        }
        let Some(until) = stream.until else {
            self.catch_up.streams.remove(&from);
            return;
        };
        let next = Stream { number: number + 1, from: Some(until), until: self.part_end(Some(until)), since: self.now };
        self.catch_up.streams.insert(from, next);
        self.send_state(from);
    }

    /// A part of another's state: what is newer is taken, locked unless it is known to be complete.
    pub(crate) fn state(&mut self, from: NodeId, number: u64, entries: Vec<Entry>, last: bool) {
        let wanted = self.catch_up.taking.learning || self.catch_up.taking.merging || self.catch_up.taking.caught_up;
        if !wanted {
            return;
        }
        if let Some(part) = self.catch_up.taking.parts.get(&from)
            && part.number >= number
        {
            if part.number > number || part.acked {
                self.send(NodeSet::one(from), Body::StateAck(number));
            }
            return;
        }
        let mut missing = BTreeSet::new();
        for entry in entries {
            let (key, ts) = (entry.write.key, entry.write.ts);
            let record = self.record(key);
            if ts > record.meta.volatile_ts {
                record.take(&entry.write);
                record.meta.applied_ts = ts;
                record.snatch(ts);
                record.reserved = record.reserved.max(ts.version);
            }
            if record.meta.durable_ts < ts {
                missing.insert((key, ts));
                self.persist(&entry.write, NodeSet::EMPTY);
            }
            self.unsettled.insert(key);
            if !self.catch_up.taking.merging {
                self.raise(key, entry.glb_volatile_ts, AckKind::Consistency);
                self.raise(key, entry.glb_durable_ts, AckKind::Persistency);
                self.settle(key);
            }
        }
        self.catch_up.taking.parts.insert(from, Part { number, last, missing, acked: false });
        self.look_durable();
    }

    /// Acknowledges the parts that are durable by now.
    pub(crate) fn look_durable(&mut self) {
        let records = &self.records;
        let durable = |&(key, ts): &(Key, Timestamp)| records.get(key).is_some_and(|r| r.meta.durable_ts >= ts);
        let mut done = Vec::new();
        for (&from, part) in self.catch_up.taking.parts.iter_mut().filter(|(_, part)| !part.acked) {
            part.missing.retain(|id| !durable(id));
            part.acked = part.missing.is_empty();
            if part.acked {
                done.push((from, part.number));
                if part.last {
                    self.catch_up.taking.whole = self.catch_up.taking.whole.with(from);
                }
            }
        }
        for (from, number) in done {
            self.send(NodeSet::one(from), Body::StateAck(number));
        }
        self.look_whole();
    }

    /// Is everything here?
    fn look_whole(&mut self) {
        if self.catch_up.taking.learning && !self.catch_up.taking.whole.is_empty() {
            self.catch_up.taking.learning = false;
            self.catch_up.taking.caught_up = true;
            self.marks.rejoins += 1;
        }
        let me = self.config.id;
        if self.catch_up.taking.merging
            && self.catch_up.taking.whole.covers(self.peers())
            && !self.catch_up.taking.merged.has(me)
        {
            self.catch_up.taking.merged = self.catch_up.taking.merged.with(me);
            self.send(self.peers(), Body::Merged(false));
        }
        if self.catch_up.taking.merging && self.catch_up.taking.merged.covers(self.view.all()) {
            self.end_merging();
        }
    }

    pub(crate) fn peer_merged(&mut self, from: NodeId, asks: bool) {
        if self.catch_up.taking.merging {
            self.catch_up.taking.merged = self.catch_up.taking.merged.with(from);
            self.look_whole();
        }
        // Also in the middle of it: each may have heard all but one, and ask another that has not heard all either.
        if asks && (!self.catch_up.taking.merging || self.catch_up.taking.merged.has(self.config.id)) {
            self.send(NodeSet::one(from), Body::Merged(false));
        }
    }

    /// Everyone has the newest of all logs: every record is complete.
    pub(crate) fn end_merging(&mut self) {
        self.catch_up.taking.merging = false;
        self.marks.full_recoveries += 1;
        let keys: Vec<Key> = self.records.iter().map(|(key, _)| key).collect();
        for key in keys {
            let ts = self.meta(key).volatile_ts;
            self.raise(key, ts, AckKind::Both);
            self.settle(key);
        }
    }

    /// Sends again what was not acknowledged.
    pub(crate) fn stream_timeout(&mut self) {
        let late = |stream: &Stream| self.now >= stream.since.saturating_add(self.config.retry);
        let nodes: Vec<NodeId> = self.catch_up.streams.iter().filter(|(_, s)| late(s)).map(|(&node, _)| node).collect();
        for node in nodes {
            self.marks.resends += 1;
            self.send_state(node);
        }
        if self.catch_up.taking.merging && self.catch_up.taking.merged.has(self.config.id) {
            self.send(self.peers().minus(self.catch_up.taking.merged), Body::Merged(true));
        }
    }
}

fn after(key: Option<Key>) -> Bound<Key> {
    key.map_or(Bound::Unbounded, Bound::Excluded)
}
