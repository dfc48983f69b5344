//! The clients of a chain whose nodes are killed, or stand still: they read several lists at any node, or by one-sided READ of the head's
//! window, and append to them in one transaction that expects what they have read. What they saw must be strictly serializable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remora_cluster::{
    ChainClient, ChainOutcome, ChainReader, ChainRefusal, ClusterClientConfig, Guard, Ticket, Transaction,
};
use remora_storm::chain::lists::{self, LIST, MOST};
use remora_storm::chain::{ChainEnd, ChainOp, ChainTxn, elle};

use super::check::Seen;
use super::{Crowd, Random};
use crate::StudyError;
use crate::nodes::ClusterSettings;

/// Transactions under way of each client thread.
const WINDOW: u64 = 4;
/// Lists that are in use at a time. Those that are full are left behind.
const KEYS: u64 = 16;
/// Lists of a transaction at most.
const AT_ONCE: u64 = 3;
/// A read that found no window, or met writes: it reads anew.
const NOT_READ: ChainOutcome = ChainOutcome::Refused(ChainRefusal::Busy);
/// A client's pause before each transaction, at most: what is to be checked must not become too much.
const PAUSE: Duration = Duration::from_millis(4);

/// What all threads share.
pub(super) struct Lists {
    settings: ClusterSettings,
    seed: u64,
    start: Instant,
    /// The first list that is in use, and how many there is room for.
    first: AtomicU64,
    room: u64,
    next: AtomicU32,
    /// Reads that were one-sided.
    looked: AtomicUsize,
    stop: AtomicBool,
    history: Mutex<Vec<ChainTxn>>,
    wrong: Mutex<Option<String>>,
}

/// Whom a transaction is asked of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    /// Some node.
    Reader,
    /// The head.
    Writer,
    /// The head's NIC, by READs.
    Window,
}

/// A client with one transaction at a time.
struct Session {
    name: usize,
    /// What it has read, to append to.
    found: Vec<(u64, Vec<u32>)>,
    pause_until: Instant,
}

impl Lists {
    /// For a cluster of these settings with so many bytes.
    pub fn new(settings: ClusterSettings, bytes: u64, seed: u64) -> Result<Self, StudyError> {
        let room = bytes / LIST;
        if room < KEYS {
            return Err(StudyError::Usage(format!("a chain of at least {} bytes has room for the lists", KEYS * LIST)));
        }
        Ok(Self {
            settings,
            seed,
            start: Instant::now(),
            first: AtomicU64::new(0),
            room,
            next: AtomicU32::new(1),
            looked: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            history: Mutex::default(),
            wrong: Mutex::default(),
        })
    }

    fn history(&self) -> MutexGuard<'_, Vec<ChainTxn>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes why it cannot go on.
    fn tell(&self, why: String) {
        *self.wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    fn client(&self, nodes: &[usize], retry: bool) -> Result<ChainClient, StudyError> {
        let timeout = Duration::from_secs(10);
        // Heads are told by their numbers: all nodes are known, in their order.
        let node = nodes.first().copied().unwrap_or(0);
        Ok(ChainClient::connect(ClusterClientConfig { node, retry, timeout, ..self.settings.client() })?)
    }

    /// The session's next transaction; `None` if there is no more room for lists.
    fn next(&self, session: &mut Session, random: &mut Random) -> Option<(Transaction, Vec<ChainOp>)> {
        let first = self.first.load(Ordering::Relaxed);
        let (mut transaction, mut ops) = (Transaction::default(), Vec::new());
        let found = std::mem::take(&mut session.found);
        let appends = !found.is_empty();
        if !appends {
            if first + KEYS > self.room {
                return None;
            }
            let (count, from) = (1 + random.below(AT_ONCE), random.below(KEYS));
            ops.extend((0..count).map(|step| ChainOp::Read(first + (from + step) % KEYS, Vec::new())));
        }
        for (key, list) in found {
            ops.push(ChainOp::Read(key, Vec::new()));
            transaction.expects.push(lists::tuple(key, &list));
            if list.len() == MOST {
                self.first.fetch_max(key + 1, Ordering::Relaxed);
            } else if random.below(5) > 0 {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                ops.push(ChainOp::Append(key, number));
                transaction.writes.push(lists::tuple(key, &[list, vec![number]].concat()));
            }
        }
        if appends && transaction.writes.is_empty() {
            // All were full, or it did not want to.
            return self.next(session, random);
        }
        transaction.reads = ops.iter().filter(|op| op.is_read()).map(|op| lists::extent(op.key())).collect();
        Some((transaction, ops))
    }

    /// Notes that a transaction begins; before it is sent, as another client may see what it does at once.
    fn called(&self, client: usize, ops: Vec<ChainOp>) -> usize {
        let called = self.now();
        let mut history = self.history();
        history.push(ChainTxn { client, called, returned: 0, end: ChainEnd::Unknown, ops });
        history.len() - 1
    }

    /// Notes how it ended, and gives what it read.
    fn ended(&self, index: usize, outcome: &ChainOutcome) -> Vec<(u64, Vec<u32>)> {
        let now = self.now();
        let mut history = self.history();
        let txn = &mut history[index];
        let only_reads = txn.ops.iter().all(ChainOp::is_read);
        txn.returned = now;
        txn.end = match outcome {
            ChainOutcome::Done(read) => {
                txn.fill(read);
                ChainEnd::Done
            }
            // As if it had been asked to read.
            ChainOutcome::Unequal(read) => {
                txn.ops.retain(ChainOp::is_read);
                txn.fill(read);
                ChainEnd::Done
            }
            // Nobody says any more what it read.
            ChainOutcome::Before => {
                txn.ops.retain(|op| !op.is_read());
                ChainEnd::Done
            }
            ChainOutcome::Refused(ChainRefusal::Invalid) => {
                self.tell(format!("{:?} is refused as invalid", txn.ops));
                ChainEnd::Failed
            }
            ChainOutcome::Refused(_) => ChainEnd::Failed,
            ChainOutcome::Unknown => ChainEnd::Unknown,
        };
        if only_reads && txn.end == ChainEnd::Done { txn.reads() } else { Vec::new() }
    }
}

impl Crowd for Lists {
    fn run(&self, index: u8) -> Result<(), StudyError> {
        let count = self.settings.addresses.len();
        // Each has its own connection, so that reads are asked of every node and not of the head alone.
        let mut reader = self.client(&[usize::from(index) % count], true)?;
        let mut writer = self.client(&[0], index.is_multiple_of(2))?;
        let config = self.settings.client();
        let seals = Guard::of(config.secret.is_some(), config.link) == Guard::Sealed;
        let mut window = (!seals).then(|| ChainReader::connect(config)).transpose()?;
        let mut random = Random(self.seed ^ (u64::from(index) + 1) << 32);
        let name = |n: u64| usize::from(index) << 8 | n as usize;
        let mut sessions: Vec<Session> =
            (0..WINDOW).map(|n| Session { name: name(n), found: Vec::new(), pause_until: Instant::now() }).collect();
        let mut idle: Vec<usize> = (0..sessions.len()).collect();
        let mut open: BTreeMap<(Asked, Ticket), (usize, usize)> = BTreeMap::new();
        loop {
            let stop = self.stop.load(Ordering::Relaxed);
            if stop && open.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            for slot in idle.extract_if(.., |slot| !stop && sessions[*slot].pause_until <= now).collect::<Vec<_>>() {
                let Some((transaction, ops)) = self.next(&mut sessions[slot], &mut random) else {
                    // Trouble without a load would show nothing.
                    self.tell(format!("{} lists have filled the chain: give a larger --chain", self.room));
                    self.stop.store(true, Ordering::Relaxed);
                    idle.push(slot);
                    continue;
                };
                let noted = self.called(sessions[slot].name, ops);
                let asked = match &mut window {
                    _ if !transaction.writes.is_empty() => (Asked::Writer, writer.start(transaction)),
                    Some(window) if random.below(2) == 0 => (Asked::Window, window.start(&transaction.reads)),
                    _ => (Asked::Reader, reader.start(transaction)),
                };
                open.insert(asked, (slot, noted));
            }
            let mut ended = Vec::new();
            reader.poll(&mut |done| ended.push((Asked::Reader, done.ticket, done.outcome)));
            writer.poll(&mut |done| ended.push((Asked::Writer, done.ticket, done.outcome)));
            if let Some(window) = &mut window {
                window.poll(&mut |done| {
                    self.looked.fetch_add(done.values.is_some().into(), Ordering::Relaxed);
                    let outcome = done.values.map_or(NOT_READ, ChainOutcome::Done);
                    ended.push((Asked::Window, done.ticket, outcome));
                });
            }
            let any = !ended.is_empty();
            for (asked, ticket, outcome) in ended {
                let Some((slot, noted)) = open.remove(&(asked, ticket)) else { continue };
                sessions[slot].found = self.ended(noted, &outcome);
                sessions[slot].pause_until = Instant::now() + PAUSE * random.below(100) as u32 / 100;
                idle.push(slot);
            }
            if !any {
                writer.wait(Duration::from_millis(1));
            }
        }
    }

    fn watch(&self, _: usize) -> Result<(), StudyError> {
        // Every client reads at some node.
        Ok(())
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn read_all(&self, node: usize) -> Result<(), StudyError> {
        let nodes = vec![self.settings.addresses[node]];
        let timeout = Duration::from_secs(10);
        let mut client = ChainClient::connect(ClusterClientConfig { nodes, timeout, ..self.settings.client() })?;
        let end = (self.first.load(Ordering::Relaxed) + KEYS).min(self.room);
        for from in (0..end).step_by(64) {
            let keys = from..end.min(from + 64);
            let reads = keys.clone().map(lists::extent).collect();
            let ops = keys.map(|key| ChainOp::Read(key, Vec::new())).collect();
            let noted = self.called(usize::MAX - node, ops);
            let outcome = client.transact(Transaction { reads, ..Transaction::default() });
            self.ended(noted, &outcome);
            if !matches!(outcome, ChainOutcome::Done(_)) {
                let why = format!("lists from {from} on cannot be read at node {node}: {outcome:?}");
                return Err(StudyError::Failed(why));
            }
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    fn killed(&self, _: u64, _: bool) {}

    fn in_turn(&self) -> bool {
        true
    }

    fn wrong(&self) -> Option<String> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn read_late(&self, from: u64, to: u64) -> usize {
        let late = |txn: &&ChainTxn| {
            let read = txn.end == ChainEnd::Done && txn.ops.iter().all(ChainOp::is_read);
            read && txn.called > from && txn.called < to && txn.returned >= to
        };
        self.history().iter().filter(late).count()
    }

    fn seen(&self) -> (Seen, Vec<(u64, u64)>) {
        let history = std::mem::take(&mut *self.history());
        let writes = |txn: &&ChainTxn| txn.end == ChainEnd::Done && !txn.ops.iter().all(ChainOp::is_read);
        let writes: Vec<(u64, u64)> = history.iter().filter(writes).map(|txn| (txn.called, txn.returned)).collect();
        let seen = Seen {
            operations: history.len(),
            answered: writes.len(),
            unknown: history.iter().filter(|txn| txn.end == ChainEnd::Unknown).count(),
            one_sided: self.looked.load(Ordering::Relaxed),
            too_hard: 0,
            wrong: elle::check(&history).err().map(|why| (why, Vec::new())),
            well: "all transactions are strictly serializable, and nothing is lost",
        };
        (seen, writes)
    }
}
