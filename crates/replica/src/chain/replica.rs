//! One replica: its persistent memory, its log, and its place in the chain.

use std::collections::{BTreeMap, VecDeque};

use super::layout::{self, Layout, Super};
use super::serve::{Running, Waiting};
use super::sessions::Sessions;
use super::types::{
    ChainConfig, ChainMarks, ChainMessage, ChainMutation, ChainOutcome, ChainReply, ChainRequest, Entry,
};
use super::view::State;
use super::{Table, catch_up::Learning};
use crate::Time;
use crate::ddp::View;
use crate::member::{Durable, Standing};
use crate::types::{NodeId, NodeSet};

/// What a replica asks its world for, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ChainOutput {
    /// Send this, with the epoch that it belongs to.
    Send(NodeId, u64, ChainMessage),
    /// Write these bytes at this place of persistent memory and flush them, then say [`Chain::persisted`] with the token.
    /// What was asked for first is durable first, or at the same time: until one is said, any part of it may be.
    Write(u64, u64, Vec<u8>),
    /// Tell the client.
    Reply(ChainReply),
    /// What was to be kept for membership under this number is durable.
    Kept(u64),
}

/// What is done when something is durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Then {
    /// The log is durable up to this entry.
    Logged(u64),
    /// The log that the view with this epoch began with is durable.
    Adopted(u64),
    /// The data has all up to this entry, which ends there.
    Applied(u64, u64),
    /// The superblock is as this one, and with it what membership asked for under this number.
    Super(Super, Option<u64>),
    /// All data that the learner of this epoch got is durable.
    CaughtUp(u64),
    Nothing,
}

/// What the next one in the chain has said of itself and those behind it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Acked {
    /// The last entry that is durable at all of them.
    durable: u64,
    /// The place of the ring before which all is free at all of them.
    free: u64,
    /// The last entry that all of them have applied.
    applied: u64,
}

/// One replica of a chain.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Chain {
    pub(super) config: ChainConfig,
    pub(super) now: Time,
    pub(super) view: View,
    /// What it has is from before a crash, and it has been in no view since.
    pub(super) loaded: bool,
    pub(super) lease: Time,
    /// A disk is full: nothing is written. And whether it is this node's.
    pub(super) closed: bool,
    pub(super) full: bool,
    /// The superblock as it is to be, whether it is not as it was asked to be written last, and whether that is under way.
    pub(super) wanted: Super,
    dirty: bool,
    writing: bool,
    member: Option<u64>,
    pub(super) after: VecDeque<(u64, Then)>,
    next_token: u64,
    durable_token: u64,
    pub(super) data: Vec<u8>,
    /// Entries of the ring that are not free yet, each with the place where it ends.
    pub(super) log: VecDeque<(Entry, u64)>,
    /// The last entry; where it ends in the ring; and the last that is durable here.
    pub(super) last: u64,
    pub(super) end: u64,
    pub(super) durable: u64,
    /// The last entry that was applied; where it ends; what of that is durable, and whether more of it is about to be.
    pub(super) applied: u64,
    pub(super) applied_at: u64,
    pub(super) kept_at: u64,
    checkpointing: Option<u64>,
    /// The log is the same everywhere in this view.
    pub(super) synced: bool,
    /// The head has put it together.
    pub(super) merged: bool,
    /// What the view begins with, until the next one in the chain has it: the last entry that the head had applied, where it
    /// ends, and those behind it.
    pub(super) begun_with: Option<(u64, u64, Vec<Entry>)>,
    /// What the next one in the chain has acknowledged. `None` before it has.
    pub(super) acked: Option<Acked>,
    told: Option<(u64, u64)>,
    /// The last entry that is durable everywhere, as far as is known.
    committed: u64,
    pub(super) early: BTreeMap<u64, Entry>,
    pub(super) states: BTreeMap<NodeId, State>,
    pub(super) learning: Option<Learning>,
    pub(super) caught_up: bool,
    pub(super) joined: u64,
    /// `None` before the first transaction of a view is executed.
    pub(super) sessions: Option<Sessions>,
    pub(super) table: Table,
    pub(super) requests: BTreeMap<u64, (ChainRequest, Vec<u64>)>,
    pub(super) ready: VecDeque<u64>,
    pub(super) next_ticket: u64,
    pub(super) running: BTreeMap<u64, Running>,
    /// Bytes of answers to these.
    pub(super) held: usize,
    pub(super) reads: Vec<Waiting>,
    resend_at: Time,
    pub(super) out: VecDeque<ChainOutput>,
    pub(super) marks: ChainMarks,
}

impl Chain {
    /// A replica with its persistent memory as it was found: [`Layout::bytes`] of it, zeros at first.
    pub fn new(config: ChainConfig, now: Time, image: &[u8]) -> Self {
        let layout = config.layout();
        let found = Super::find(image);
        let trust = config.mutation == Some(ChainMutation::TrustsTorn);
        let wanted = found.unwrap_or_default();
        let (entries, torn) = match found {
            Some(found) => layout::entries(&layout, image, &found, trust),
            None => (Vec::new(), false),
        };
        let data = match found {
            Some(_) => image[layout.data_at()..].to_vec(),
            None => vec![0; layout.data],
        };
        let mut chain = Self {
            now,
            view: View { epoch: wanted.member.view.epoch, ..View::default() },
            loaded: found.is_some(),
            lease: 0,
            closed: false,
            full: false,
            wanted,
            dirty: false,
            writing: false,
            member: None,
            after: VecDeque::new(),
            next_token: 0,
            durable_token: 0,
            data,
            log: VecDeque::new(),
            last: wanted.applied,
            end: wanted.at,
            durable: 0,
            applied: wanted.applied,
            applied_at: wanted.at,
            kept_at: wanted.at,
            checkpointing: None,
            synced: false,
            merged: false,
            begun_with: None,
            acked: None,
            told: None,
            committed: 0,
            early: BTreeMap::new(),
            states: BTreeMap::new(),
            learning: None,
            caught_up: false,
            joined: 0,
            sessions: None,
            table: Table::default(),
            requests: BTreeMap::new(),
            ready: VecDeque::new(),
            next_ticket: 0,
            running: BTreeMap::new(),
            held: 0,
            reads: Vec::new(),
            resend_at: now + config.retry,
            out: VecDeque::new(),
            marks: ChainMarks { torn: u64::from(torn), ..ChainMarks::default() },
            config,
        };
        for entry in entries {
            chain.remember(entry);
        }
        chain.durable = chain.last;
        chain
    }

    /// What was kept for membership, if the memory has been used before.
    pub fn found(&self) -> Option<Durable> {
        self.loaded.then_some(self.wanted.member)
    }

    /// Does what was found not count?
    pub fn is_damaged(&self) -> bool {
        self.wanted.damaged
    }

    /// From now on what is here does not count until it has caught up.
    pub fn damage(&mut self) {
        self.wanted.damaged = true;
        self.dirty = true;
        self.write_super();
    }

    /// Keeps this for membership, and says [`ChainOutput::Kept`] with the number when it is durable, and with it all that had
    /// lower ones.
    pub fn keep(&mut self, number: u64, member: Durable) {
        self.wanted.member = member;
        self.member = Some(number);
        self.dirty = true;
        self.write_super();
    }

    /// The data, as far as entries were applied to it, and behind it what is known of sessions.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The view that it is in.
    pub fn view(&self) -> View {
        self.view
    }

    /// The last entry of its log, and the last that it has applied.
    pub fn log_ends(&self) -> (u64, u64) {
        (self.last, self.applied)
    }

    /// What happened so far.
    pub fn marks(&self) -> ChainMarks {
        self.marks
    }

    /// The same, to begin anew. For checks, in which states are compared.
    pub fn forget_marks(&mut self) {
        self.marks = ChainMarks::default();
    }

    /// How often it began anew as a learner.
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// Its state in a few words, for people.
    pub fn describe(&self) -> String {
        let Self { view, last, applied, durable, synced, acked, .. } = self;
        format!(
            "{view}: {} entries, {durable} durable, {applied} applied, next has {acked:?}, synced {synced}, {} wait",
            last,
            self.requests.len() + self.reads.len()
        )
    }

    /// What it says of itself to others; `None` while it has no place in a view.
    pub fn status(&self) -> Option<Standing> {
        let me = self.config.id;
        if self.view.members.has(me) {
            Some(if self.view.recovery && !self.synced { Standing::Merging } else { Standing::Serving })
        } else if self.view.learners.has(me) {
            Some(if self.caught_up && self.synced { Standing::Ready } else { Standing::Learning })
        } else {
            None
        }
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<ChainOutput> {
        self.out.pop_front()
    }

    /// May it answer now?
    pub fn answers(&self, now: Time) -> bool {
        self.synced && self.view.members.has(self.config.id) && now < self.lease
    }

    /// Reads may be answered until then.
    pub fn set_lease(&mut self, now: Time, until: Time) {
        (self.now, self.lease) = (now, until);
    }

    /// Whose disks are full. While anybody's is, transactions that write are refused; and who learns waits for room of its own.
    pub fn set_full(&mut self, full: NodeSet) {
        (self.closed, self.full) = (!full.is_empty(), full.has(self.config.id));
    }

    /// When [`Chain::timeout`] is due.
    pub fn next_timeout(&self) -> Time {
        self.resend_at
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        self.now = now;
        if now >= self.resend_at {
            self.resend_at = now + self.config.retry;
            self.send_again();
        }
        // Requests may have waited for a lease that did not come.
        self.advance();
    }

    /// All writes up to this token are durable.
    pub fn persisted(&mut self, now: Time, token: u64) {
        self.now = now;
        self.durable_token = self.durable_token.max(token + 1);
        while let Some((_, then)) = self.after.pop_front_if(|(first, _)| *first <= token) {
            match then {
                Then::Logged(seq) => self.durable = self.durable.max(seq),
                Then::Adopted(epoch) if epoch == self.view.epoch => self.adopted(),
                Then::Applied(seq, at) => {
                    (self.wanted.applied, self.wanted.at) = (seq, at);
                    self.dirty = true;
                }
                Then::Super(now_there, member) => self.super_is(now_there, member),
                Then::CaughtUp(epoch) if epoch == self.view.epoch => {
                    self.caught_up = true;
                    self.marks.caught_up += 1;
                }
                Then::Adopted(_) | Then::CaughtUp(_) | Then::Nothing => {}
            }
        }
        self.write_super();
        self.go_on_learning();
        self.advance();
    }

    /// Takes a message that belongs to an epoch.
    pub fn handle(&mut self, now: Time, from: NodeId, epoch: u64, message: ChainMessage) {
        self.now = now;
        let in_view = self.view.all().has(from) && self.view.all().has(self.config.id);
        if epoch != self.view.epoch || !in_view {
            self.marks.stale += 1;
            return;
        }
        if !self.layout().takes(&message) {
            return;
        }
        match message {
            ChainMessage::Forward(entries) => self.forwarded(entries),
            ChainMessage::Ack(durable, free, applied) if Some(from) == self.next() => {
                let before = self.acked.unwrap_or_default();
                self.acked = Some(Acked {
                    durable: before.durable.max(durable),
                    free: before.free.max(free),
                    applied: before.applied.max(applied),
                });
                self.begun_with = None;
            }
            ChainMessage::Commit(seq) if Some(from) == self.previous() => self.committed = self.committed.max(seq),
            ChainMessage::State(synced, applied, entries) => self.told_state(from, State { synced, applied, entries }),
            ChainMessage::Sync(applied, at, entries) if Some(from) == self.previous() => {
                self.told_log(applied, at, entries);
            }
            ChainMessage::Want(piece) => self.wanted_piece(from, piece),
            ChainMessage::Piece(number, applied, data, last) => self.piece(number, applied, &data, last),
            ChainMessage::Ack(..) | ChainMessage::Sync(..) | ChainMessage::Commit(_) => {}
        }
        self.advance();
    }

    pub(super) fn mutant(&self, mutation: ChainMutation) -> bool {
        self.config.mutation == Some(mutation)
    }

    pub(super) fn layout(&self) -> Layout {
        self.config.layout()
    }

    /// The chain: members, then learners.
    fn chain(&self) -> impl Iterator<Item = NodeId> + use<> {
        self.view.members.iter().chain(self.view.learners.minus(self.view.members).iter())
    }

    /// Who takes transactions that write.
    pub fn head(&self) -> Option<NodeId> {
        self.chain().next()
    }

    /// The last member.
    pub fn tail(&self) -> Option<NodeId> {
        self.view.members.iter().last()
    }

    pub(super) fn is_head(&self) -> bool {
        self.head() == Some(self.config.id)
    }

    pub(super) fn next(&self) -> Option<NodeId> {
        self.chain().skip_while(|&node| node != self.config.id).nth(1)
    }

    pub(super) fn previous(&self) -> Option<NodeId> {
        self.chain().take_while(|&node| node != self.config.id).last()
    }

    pub(super) fn send(&mut self, to: NodeId, message: ChainMessage) {
        self.out.push_back(ChainOutput::Send(to, self.view.epoch, message));
    }

    pub(super) fn reply(&mut self, tag: u64, outcome: ChainOutcome) {
        self.out.push_back(ChainOutput::Reply(ChainReply { tag, outcome }));
    }

    fn write(&mut self, at: u64, bytes: Vec<u8>) {
        self.out.push_back(ChainOutput::Write(self.next_token, at, bytes));
        self.next_token += 1;
    }

    /// Writes that are not durable yet.
    pub(super) fn under_way(&self) -> u64 {
        self.next_token - self.durable_token
    }

    /// Has something done once all that was asked for is durable.
    pub(super) fn when_durable(&mut self, then: Then) {
        if self.durable_token == self.next_token {
            // Nothing is under way; one more write says so in its turn.
            self.dirty |= !self.writing;
            self.write_super();
        }
        self.after.push_back((self.next_token.saturating_sub(1), then));
    }

    fn write_super(&mut self) {
        if !self.dirty || self.writing {
            return;
        }
        (self.dirty, self.writing) = (false, true);
        self.wanted.count += 1;
        let (at, bytes) = self.wanted.encode();
        self.write(at, bytes);
        self.after.push_back((self.next_token - 1, Then::Super(self.wanted, self.member.take())));
    }

    fn super_is(&mut self, now_there: Super, member: Option<u64>) {
        self.writing = false;
        if let Some(number) = member {
            self.out.push_back(ChainOutput::Kept(number));
        }
        if now_there.at >= self.kept_at {
            self.checkpointing = self.checkpointing.filter(|&at| at > now_there.at);
            self.kept_at = now_there.at;
        }
        if now_there.synced == self.view.epoch && !self.synced && self.view.all().has(self.config.id) {
            self.begins();
        }
    }

    /// The superblock is to be written.
    pub(super) fn change_super(&mut self) {
        self.dirty = true;
        self.write_super();
    }

    /// Appends an entry to the ring. The next one gets it at once, so that it becomes durable everywhere at the same time; what
    /// the view begins with goes by [`Chain::send_log`].
    pub(super) fn append(&mut self, entry: Entry) {
        if let (true, Some(next)) = (self.synced, self.next()) {
            self.send(next, ChainMessage::Forward(vec![entry.clone()]));
        }
        let (seq, frame) = (entry.seq, entry.frame());
        for (at, bytes) in self.layout().place(self.end, frame) {
            self.write(at, bytes);
        }
        self.after.push_back((self.next_token - 1, Then::Logged(seq)));
        self.remember(entry);
    }

    fn remember(&mut self, entry: Entry) {
        self.last = entry.seq;
        self.end += entry.length() as u64;
        self.log.push_back((entry, self.end));
    }

    /// The entries behind this one.
    pub(super) fn entries_after(&self, seq: u64) -> impl Iterator<Item = &Entry> {
        // Their numbers follow each other.
        let first = self.log.front().map_or(0, |(entry, _)| entry.seq);
        let behind = ((seq + 1).saturating_sub(first)).min(self.log.len() as u64);
        self.log.range(behind as usize..).map(|(entry, _)| entry)
    }

    fn forwarded(&mut self, entries: Vec<Entry>) {
        // Whoever sends nothing, or something again, wants to hear how far this is.
        let mut asked = entries.is_empty();
        if asked && let Some(next) = self.next() {
            self.send(next, ChainMessage::Forward(Vec::new()));
        }
        for entry in entries {
            asked |= entry.seq <= self.last;
            let full = self.mutant(ChainMutation::KeepsEarly) && self.early.len() >= self.config.at_once;
            if entry.seq > self.last && !full {
                self.marks.early += u64::from(entry.seq > self.last + 1);
                self.early.insert(entry.seq, entry);
            }
            if self.early.len() > self.config.at_once {
                // Not one of the first: what all wait for may be among them.
                self.early.pop_last();
            }
        }
        if self.synced {
            self.take_early();
            self.advance();
            self.acknowledge(asked);
        }
    }

    /// Appends what follows the log.
    pub(super) fn take_early(&mut self) {
        while let Some((seq, entry)) = self.early.pop_first() {
            match seq {
                seq if seq <= self.last => {}
                seq if seq == self.last + 1 => self.append(entry),
                _ => {
                    self.early.insert(seq, entry);
                    return;
                }
            }
        }
    }

    /// The last entry that is durable from here on.
    fn durable_from_here(&self) -> u64 {
        let here = if self.mutant(ChainMutation::EarlyAck) { self.last } else { self.durable };
        match self.next() {
            None => here,
            Some(_) => here.min(self.acked.map_or(0, |acked| acked.durable)),
        }
    }

    /// What is durable from the head on is durable everywhere: it says so down the chain. Nobody applies an entry before that,
    /// as a reader could see what a crash undoes.
    fn commit(&mut self) {
        if !self.synced {
            return;
        }
        if self.is_head() {
            self.committed = self.committed.max(self.durable_from_here());
        } else if self.mutant(ChainMutation::EarlyShow) {
            self.committed = self.last;
        }
        let before = self.applied;
        while self.applied < self.committed {
            let behind = self.log.partition_point(|(entry, _)| entry.seq <= self.applied);
            let Some((entry, end)) = self.log.get(behind).cloned() else { break };
            self.apply(&entry);
            (self.applied, self.applied_at) = (entry.seq, end);
            self.finish(entry.seq);
        }
        if before < self.applied {
            self.tell_commit();
        }
    }

    fn tell_commit(&mut self) {
        if let Some(next) = self.next() {
            self.send(next, ChainMessage::Commit(self.applied));
        }
    }

    /// The place of the ring before which all is free from here on.
    pub(super) fn free(&self) -> u64 {
        match self.next() {
            None => self.kept_at,
            Some(_) => self.kept_at.min(self.acked.map_or(0, |acked| acked.free)),
        }
    }

    /// Does all that can be done.
    pub(super) fn advance(&mut self) {
        self.commit();
        self.answer_reads();
        self.run_ready();
        self.checkpoint();
        let (free, applied) = (if self.synced { self.free() } else { 0 }, self.applied);
        while self.log.pop_front_if(|(entry, end)| *end <= free && entry.seq <= applied).is_some() {}
        if self.synced {
            self.acknowledge(false);
        }
    }

    pub(super) fn apply(&mut self, entry: &Entry) {
        let base = self.layout().data_at() as u64;
        for tuple in entry.writes.iter() {
            self.put_data(base, tuple.offset, &tuple.data);
        }
    }

    pub(super) fn put_data(&mut self, base: u64, offset: u64, bytes: &[u8]) {
        let from = offset as usize;
        self.data[from..from + bytes.len()].copy_from_slice(bytes);
        self.write(base + offset, bytes.to_vec());
    }

    /// Lets the ring's begin go once the data that it stands for is durable.
    fn checkpoint(&mut self) {
        let (mut seq, mut at) = (self.applied, self.applied_at);
        if let Some(learning) = &self.learning {
            // A piece that comes needs what follows it.
            let known = self.log.iter().rev().find(|(entry, _)| entry.seq <= learning.piece_has.min(seq));
            (seq, at) = known.map_or((0, 0), |(entry, end)| (entry.seq, *end));
        }
        if self.checkpointing.is_none() && at > self.kept_at + self.config.ring as u64 / 4 {
            self.checkpointing = Some(at);
            self.when_durable(Then::Applied(seq, at));
        }
    }

    pub(super) fn acknowledge(&mut self, asked: bool) {
        if self.next().is_some() && self.acked.is_none() {
            // Whoever hears one knows that all from here on have the view's log.
            return;
        }
        let now = (self.durable_from_here(), self.free());
        if let Some(previous) = self.previous().filter(|_| asked || self.told != Some(now)) {
            self.told = Some(now);
            let applied = self.acked.map_or(self.applied, |acked| acked.applied.min(self.applied));
            self.send(previous, ChainMessage::Ack(now.0, now.1, applied));
        }
    }

    fn send_again(&mut self) {
        if !self.view.all().has(self.config.id) {
            return;
        }
        if !self.synced {
            return if self.view.members.has(self.config.id) && !self.is_head() && !self.merged {
                self.send_state()
            };
        }
        self.send_log();
        if let Some(next) = self.next()
            && let Some(acked) = self.acked
            && (acked.durable < self.last || acked.applied < self.applied || !self.ready.is_empty())
        {
            let entries = self.entries_after(acked.durable).take(self.config.at_once).cloned().collect();
            self.tell_commit();
            self.send(next, ChainMessage::Forward(entries));
        }
        self.ask_for_piece();
    }

    /// Nothing of the view before counts any more, but the log.
    pub(super) fn begin_view(&mut self) {
        (self.synced, self.merged, self.acked, self.told) = (false, false, None, None);
        (self.committed, self.begun_with) = (0, None);
        self.early.clear();
        self.states.clear();
        self.sessions = None;
        self.learning = None;
        self.resend_at = self.now + self.config.retry;
    }

    /// The log is not this life's: as if the memory had never been used.
    pub(super) fn begin_anew(&mut self) {
        self.after
            .iter_mut()
            .filter(|(_, then)| !matches!(then, Then::Super(..)))
            .for_each(|(_, then)| *then = Then::Nothing);
        self.log.clear();
        (self.last, self.end, self.durable, self.applied, self.applied_at) = (0, 0, 0, 0, 0);
        self.checkpointing = None;
        self.caught_up = false;
        self.wanted.damaged = false;
    }

    /// An empty log goes on behind this entry, which ends there.
    pub(super) fn begin_at(&mut self, seq: u64, at: u64) {
        (self.last, self.durable, self.applied) = (seq, seq, seq);
        (self.end, self.applied_at, self.kept_at) = (at, at, at);
        (self.wanted.applied, self.wanted.at) = (seq, at);
        for (_, then) in &mut self.after {
            if let Then::Super(there, _) = then {
                // That it will be durable says nothing of this log, whose ring may begin before that one's.
                there.at = 0;
            }
        }
    }
}
