//! Clients' transactions: who waits for what, what is executed, and what is answered.

use super::layout::{self, MAX_TUPLES, frame_length_of};
use super::replica::Chain;
use super::sessions::{self, MARK};
use super::types::{ChainMutation, ChainOutcome, ChainRefusal, ChainRequest, Extent, Transaction, Tuple};
use crate::Time;
use crate::bounds::Bounds;
use crate::types::Value;

/// Bytes of answers that are made in one go, and that wait for entries under way; what more there is comes when something else
/// happens, or with the next beat. A client asks for gigabytes with little.
const ANSWERS: usize = 16 << 20;

/// A transaction whose entry is under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Running {
    ticket: u64,
    keys: Vec<u64>,
    /// Whom to tell how it ended.
    client: Option<(u64, ChainOutcome)>,
}

impl Running {
    /// Bytes of what it has read.
    fn answer(&self) -> usize {
        match &self.client {
            Some((_, ChainOutcome::Done(read) | ChainOutcome::Unequal(read))) => bytes(read),
            _ => 0,
        }
    }
}

fn bytes(read: &[Value]) -> usize {
    read.iter().map(|value| value.len()).sum()
}

/// A transaction that only reads, and waits until this entry is applied.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Waiting {
    needs: u64,
    request: ChainRequest,
}

impl Chain {
    /// Takes a client's request.
    pub fn submit(&mut self, now: Time, request: ChainRequest) {
        self.now = now;
        if let Err(refusal) = self.accepts(&request) {
            return self.reply(request.tag, ChainOutcome::Refused(refusal));
        }
        if request.transaction.writes.is_empty() {
            let needs = self.needs(&request.transaction);
            self.marks.dirty_reads += u64::from(needs > self.applied);
            self.reads.push(Waiting { needs, request });
        } else {
            let ticket = self.ticket();
            let mut keys = self.keys(request.transaction.extents());
            keys.extend(request.session.as_ref().map(sessions::key));
            let free = self.table.enter(ticket, &keys) || self.mutant(ChainMutation::NoQueue);
            self.marks.queued += u64::from(!free);
            self.requests.insert(ticket, (request, keys));
            if free {
                self.ready.push_back(ticket);
            }
        }
        self.advance();
    }

    fn accepts(&self, request: &ChainRequest) -> Result<(), ChainRefusal> {
        let transaction = &request.transaction;
        if !self.is_valid(request) {
            return Err(ChainRefusal::Invalid);
        }
        if !self.serves() {
            return Err(ChainRefusal::NotServing);
        }
        let wants = if transaction.writes.is_empty() { 0 } else { 1 + self.cells(transaction.extents()) };
        match self.head() {
            _ if wants > self.config.keys => Err(ChainRefusal::Invalid),
            Some(head) if head != self.config.id && !transaction.writes.is_empty() => Err(ChainRefusal::NotHead(head)),
            _ if self.closed && !transaction.writes.is_empty() => Err(ChainRefusal::Full),
            _ if self.requests.len() + self.reads.len() >= self.config.waiting
                || wants > self.config.keys.saturating_sub(self.table.wanted()) =>
            {
                Err(ChainRefusal::Busy)
            }
            _ => Ok(()),
        }
    }

    fn is_valid(&self, request: &ChainRequest) -> bool {
        let transaction = &request.transaction;
        let Transaction { reads, expects, writes } = transaction;
        let within = |extent: Extent| {
            let end = extent.offset.checked_add(extent.length.into());
            extent.length > 0 && end.is_some_and(|end| end <= self.config.data as u64)
        };
        let mut written: Vec<Extent> = writes.iter().map(Tuple::extent).collect();
        written.sort_unstable();
        let apart = written.windows(2).all(|pair| pair[1].offset - pair[0].offset >= u64::from(pair[0].length));
        let tuples = writes.len() + usize::from(request.session.is_some());
        let few = [reads.len(), expects.len(), tuples].iter().all(|&count| count <= MAX_TUPLES);
        let read: u64 = reads.iter().map(|extent| u64::from(extent.length)).sum();
        let few = few && read <= Bounds::SHIPPED.client_frame as u64 / 2;
        let marked =
            request.session.is_none_or(|session| self.config.sessions > 0 && session.sequence <= sessions::LAST);
        few && marked && transaction.extents().all(within) && apart && entry_length(request) <= self.config.ring / 4
    }

    /// May it answer what depends on nobody else's having gone on without it?
    fn serves(&self) -> bool {
        let leased = self.now < self.lease || self.mutant(ChainMutation::NoLease);
        self.synced && self.view.members.has(self.config.id) && leased
    }

    /// The last entry under way that writes what the transaction reads.
    fn needs(&self, transaction: &Transaction) -> u64 {
        if self.mutant(ChainMutation::DirtyRead) {
            return 0;
        }
        // Many entries may be under way, of many parts each: what is read is put in order first.
        let mut wanted: Vec<(u64, u64)> =
            transaction.extents().map(|it| (it.offset, it.offset + u64::from(it.length))).collect();
        wanted.sort_unstable();
        wanted.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            before.1 = before.1.max(if joins { next.1 } else { 0 });
            joins
        });
        let touches = |tuple: &Tuple| {
            let first = wanted.partition_point(|(_, end)| *end <= tuple.offset);
            wanted.get(first).is_some_and(|(begin, _)| *begin < tuple.offset + tuple.data.len() as u64)
        };
        let under_way = self.log.iter().rev().map(|(entry, _)| entry).take_while(|entry| entry.seq > self.applied);
        under_way.filter(|entry| entry.writes.iter().any(touches)).map(|entry| entry.seq).next().unwrap_or(0)
    }

    fn cells_of(&self, extent: Extent) -> std::ops::RangeInclusive<u64> {
        let cell = self.config.cell;
        extent.offset / cell..=(extent.offset + u64::from(extent.length) - 1) / cell
    }

    /// How many keys these touch, those counted several times that several do: without making them.
    fn cells(&self, extents: impl Iterator<Item = Extent>) -> usize {
        let cells = extents.map(|extent| self.cells_of(extent));
        cells.map(|cells| (cells.end() - cells.start() + 1) as usize).sum()
    }

    fn keys(&self, extents: impl Iterator<Item = Extent>) -> Vec<u64> {
        let mut keys: Vec<u64> = extents.flat_map(|extent| self.cells_of(extent)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn read(&self, extents: &[Extent]) -> Vec<Value> {
        let bytes = |extent: &Extent| &self.data[extent.offset as usize..][..extent.length as usize];
        extents.iter().map(|extent| bytes(extent).into()).collect()
    }

    fn holds(&self, expects: &[Tuple]) -> bool {
        expects.iter().all(|tuple| self.data[tuple.offset as usize..].starts_with(&tuple.data))
    }

    /// Answers transactions that only read and wait for nothing any more.
    pub(super) fn answer_reads(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let (applied, serves, mut room) = (self.applied, self.serves(), ANSWERS);
        let due = |read: &mut Waiting| {
            let due = !serves || room > 0 && read.needs <= applied;
            if due && serves {
                let extents = &read.request.transaction.reads;
                room = room.saturating_sub(extents.iter().map(|extent| extent.length as usize).sum());
            }
            due
        };
        for Waiting { request, .. } in self.reads.extract_if(.., due).collect::<Vec<_>>() {
            let Transaction { reads, expects, .. } = &request.transaction;
            let outcome = match (serves, self.holds(expects)) {
                (false, _) => ChainOutcome::Refused(ChainRefusal::NotServing),
                (true, true) => ChainOutcome::Done(self.read(reads)),
                (true, false) => ChainOutcome::Unequal(self.read(reads)),
            };
            self.reply(request.tag, outcome);
        }
    }

    /// Executes transactions that have all their keys, while there is room in the ring and for their answers. The first
    /// acknowledgement in a view is one of all that the view began with: before it, entries under way might be of the same
    /// keys.
    pub(super) fn run_ready(&mut self) {
        let mut answered = 0;
        while self.synced
            && let Some(&ticket) = self.ready.front()
            && let Some((request, keys)) = self.requests.get(&ticket)
        {
            let length = entry_length(request) as u64;
            if self.next().is_some() && self.acked.is_none()
                || !self.closed && self.end + length - self.free() > self.config.ring as u64
                || answered + self.held >= ANSWERS
            {
                self.marks.full += 1;
                return;
            }
            let (request, keys) = (request.clone(), keys.clone());
            self.ready.pop_front();
            self.requests.remove(&ticket);
            answered += self.execute(ticket, request, keys);
        }
    }

    /// Returns how many bytes it has answered, if it has.
    fn execute(&mut self, ticket: u64, request: ChainRequest, keys: Vec<u64>) -> usize {
        let ChainRequest { tag, session, transaction: Transaction { reads, expects, mut writes } } = request;
        let found = self.read(&reads);
        let equal = self.holds(&expects);
        // An attempt that was made before may be on its way: it is to find that this one has come to nothing.
        let final_word = equal || session.is_some_and(|session| session.attempt > 0);
        let at_once = if !self.serves() {
            Some(ChainOutcome::Refused(ChainRefusal::NotServing))
        } else if let Some(before) = session.and_then(|session| self.ended_before(&session, &found)) {
            Some(before)
        } else if !final_word {
            Some(ChainOutcome::Unequal(found.clone()))
        } else {
            // It may have waited for long; what is reserved of a full disk is for what is under way.
            self.closed.then_some(ChainOutcome::Refused(ChainRefusal::Full))
        };
        if let Some(outcome) = at_once {
            self.reply(tag, outcome);
            self.give_up(ticket, &keys);
            return bytes(&found);
        }
        let seq = self.last + 1;
        if !equal {
            writes.clear();
        }
        writes.extend(session.map(|session| self.mark(&session, equal, seq)));
        let outcome = if equal { ChainOutcome::Done(found) } else { ChainOutcome::Unequal(found) };
        let mut client = Some((tag, outcome));
        if self.mutant(ChainMutation::EarlyAnswer)
            && let Some((tag, outcome)) = client.take()
        {
            self.reply(tag, outcome);
        }
        let running = Running { ticket, keys, client };
        self.held += running.answer();
        self.running.insert(seq, running);
        self.append(layout::entry(seq, self.view.epoch, writes));
        0
    }

    fn give_up(&mut self, ticket: u64, keys: &[u64]) {
        let ready = &mut self.ready;
        self.table.leave(ticket, keys, |next| ready.push_back(next));
    }

    /// An entry has been applied: whoever waits for it goes on.
    pub(super) fn finish(&mut self, seq: u64) {
        if let Some(running) = self.running.remove(&seq) {
            self.held -= running.answer();
            let Running { ticket, keys, client } = running;
            if let Some((tag, outcome)) = client {
                self.reply(tag, outcome);
            }
            self.give_up(ticket, &keys);
        }
    }

    /// Requests of which nothing has been done are refused. Those whose entries are under way are answered when these are
    /// applied; without the log nobody here learns what becomes of them.
    pub(super) fn dismiss(&mut self, with_log: bool) {
        let waiting = std::mem::take(&mut self.requests).into_values().map(|(request, _)| request.tag);
        let reading = std::mem::take(&mut self.reads).into_iter().map(|read| read.request.tag);
        for tag in waiting.chain(reading).collect::<Vec<_>>() {
            self.reply(tag, ChainOutcome::Refused(ChainRefusal::NotServing));
        }
        self.ready.clear();
        self.table.clear();
        if with_log {
            self.running.values_mut().for_each(|running| running.keys.clear());
            return;
        }
        self.held = 0;
        for (_, running) in std::mem::take(&mut self.running) {
            if let Some((tag, _)) = running.client {
                self.reply(tag, ChainOutcome::Unknown);
            }
        }
    }
}

/// Bytes that a request's entry takes in the ring, its session's mark with it.
fn entry_length(request: &ChainRequest) -> usize {
    let tuples = request.transaction.writes.iter().map(|tuple| tuple.data.len());
    frame_length_of(tuples.chain(request.session.map(|_| MARK)))
}
