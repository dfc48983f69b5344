//! A node's log: appended wherever the protocol never waits for the disk.
//!
//! What the engine wants durable gathers until its thread has nothing else to do, and is then written and synced as one
//! (group commit) by that very thread: there is nobody to wake, and while the disk works nobody has work for it. A disk
//! that takes long, much at once, a new file, and whatever nobody waits for go to a thread of the log's own.
//!
//! When the engine has the log compacted, a second thread writes the new file. Until it is durable the old one counts,
//! and goes on: what is appended meanwhile goes to both.
//!
//! A sync that failed may have lost what was written before it, and the next one would not say so (Rebello et al., "Can
//! Applications Recover from fsync Failures?", ATC 2020). So nothing is written after a failure, and the node ends.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use remora_replica::node::{Change, Snapshot};

use super::logfile::{Copying, LogFile, LogKind, STEP};
use crate::Error;

/// How long nothing is written before the log is given room again.
const QUIET: Duration = Duration::from_millis(100);
/// How long what nobody waits for gathers before it is synced.
const LINGER: Duration = Duration::from_millis(5);
/// Bytes that the engine's thread writes at most.
const SMALL: usize = 256 << 10;
/// What a sync may take, in nanoseconds, if the engine's thread is to wait for it.
const SHORT: u64 = 1_000_000;
/// Turns in which the engine's thread had other work, after which the log's thread takes over.
const BUSY: u32 = 8;

/// A log that is open.
pub(super) struct Journal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// What gathers, how many bytes that is, and turns since it began.
    changes: Vec<(u64, Change)>,
    bytes: usize,
    turns: u32,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Locked before `queue`.
    file: Mutex<LogFile>,
    /// All tokens below this are durable.
    durable: AtomicU64,
    /// What the longest sync took lately, in nanoseconds.
    sync_ns: AtomicU64,
    wants_room: AtomicBool,
    failed: AtomicBool,
    why: Mutex<Option<String>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    length: AtomicU64,
    syncs: AtomicU64,
    inline: AtomicU64,
    written: AtomicU64,
}

/// What is left to the log's thread.
#[derive(Default)]
struct Queue {
    changes: Vec<(u64, Change)>,
    bytes: usize,
    /// Somebody waits for it.
    awaited: bool,
    /// A new file is ready.
    copied: bool,
    stop: bool,
}

/// What a log has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JournalStats {
    /// Bytes that it has.
    pub length: u64,
    /// Syncs, or write-backs.
    pub syncs: u64,
    /// Of these, by the engine's thread.
    pub inline: u64,
    /// Bytes written since the start.
    pub written: u64,
}

impl Journal {
    /// Opens the log in `dir`, or makes one. Gives its content too. `wake` is called, by another thread, whenever that
    /// has made more durable.
    pub fn open(dir: &Path, kind: LogKind, wake: impl Fn() + Send + 'static) -> Result<(Self, Vec<u8>), Error> {
        let (file, content) = LogFile::open(dir, kind)?;
        Ok((Self::start(file, wake)?, content))
    }

    fn start(file: LogFile, wake: impl Fn() + Send + 'static) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            durable: AtomicU64::new(0),
            sync_ns: AtomicU64::new(0),
            wants_room: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            why: Mutex::new(None),
            counts: Counts { length: AtomicU64::new(file.end), ..Counts::default() },
            file: Mutex::new(file),
        });
        let worker = shared.clone();
        let thread = std::thread::Builder::new()
            .name("remora-log".into())
            .spawn(move || worker.run(&wake))
            .map_err(|source| Error::System { what: "starting the log's thread", source })?;
        Ok(Self { shared, thread: Some(thread), changes: Vec::new(), bytes: 0, turns: 0 })
    }

    /// Has a change made. Tokens ascend. See [`Journal::turn`] and [`Journal::idle`] for when.
    pub fn submit(&mut self, token: u64, change: Change) {
        self.bytes += match &change {
            Change::Append(bytes) => bytes.len(),
            // Not for the engine's thread.
            Change::Replace(_) | Change::Compact(_) => SMALL,
        };
        self.changes.push((token, change));
    }

    /// The engine's thread has other work. What gathers waits, but not for long; `awaited` says whether somebody waits.
    pub fn turn(&mut self, awaited: bool) {
        self.turns += u32::from(!self.changes.is_empty());
        if !awaited || self.turns > BUSY || !self.is_short(self.bytes) {
            self.hand_over(awaited);
        }
    }

    /// The engine's thread has nothing else to do. Whether it has made something durable.
    pub fn idle(&mut self, awaited: bool) -> bool {
        let synced = awaited && self.sync();
        if !synced {
            self.hand_over(awaited);
        }
        synced
    }

    /// All tokens below this are durable.
    pub fn durable(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Whether the log can be written no more, if only as its thread has panicked.
    pub fn has_failed(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(|thread| thread.is_finished());
        ended || self.shared.failed.load(Ordering::Acquire)
    }

    /// Why the log can be written no more.
    pub fn failure(&self) -> Option<String> {
        self.shared.why.lock().clone()
    }

    /// What it has done.
    pub fn stats(&self) -> JournalStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { length, syncs, inline, written } = &self.shared.counts;
        JournalStats { length: get(length), syncs: get(syncs), inline: get(inline), written: get(written) }
    }

    /// Whether so many bytes are for the engine's thread.
    fn is_short(&self, bytes: usize) -> bool {
        bytes < SMALL && self.shared.sync_ns.load(Ordering::Relaxed) < SHORT
    }

    fn hand_over(&mut self, awaited: bool) {
        self.turns = 0;
        if self.changes.is_empty() && !awaited {
            return;
        }
        let mut queue = self.shared.queue.lock();
        let before = (queue.changes.is_empty(), queue.awaited);
        queue.changes.append(&mut self.changes);
        queue.bytes += std::mem::take(&mut self.bytes);
        queue.awaited |= awaited && !queue.changes.is_empty();
        let now = (queue.changes.is_empty(), queue.awaited);
        drop(queue);
        if now != before {
            self.shared.wake.notify_one();
        }
    }

    /// Syncs all there is, here. Not if the log's thread is at work, or should be.
    fn sync(&mut self) -> bool {
        let Some(mut file) = self.shared.file.try_lock() else { return false };
        if self.shared.failed.load(Ordering::Acquire) {
            return false;
        }
        {
            let mut queue = self.shared.queue.lock();
            let bytes = queue.bytes + self.bytes;
            if bytes == 0 || !self.is_short(bytes) {
                return false;
            }
            queue.changes.append(&mut self.changes);
            std::mem::swap(&mut queue.changes, &mut self.changes);
            (queue.bytes, queue.awaited) = (0, false);
        }
        (self.bytes, self.turns) = (0, 0);
        self.shared.counts.inline.fetch_add(1, Ordering::Relaxed);
        self.shared.make_or_fail(&mut file, &mut self.changes);
        true
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.hand_over(true);
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on stderr already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(self: &Arc<Self>, wake: &dyn Fn()) {
        let mut changes = Vec::new();
        while self.wait() {
            let mut file = self.file.lock();
            if self.failed.load(Ordering::Acquire) {
                return;
            }
            let copied = {
                let mut queue = self.queue.lock();
                std::mem::swap(&mut changes, &mut queue.changes);
                (queue.bytes, queue.awaited) = (0, false);
                std::mem::take(&mut queue.copied)
            };
            let made = if copied { file.change_over() } else { Ok(()) };
            let made = match made {
                Ok(()) => self.make_or_fail(&mut file, &mut changes),
                Err(e) => self.fail(&file, &e),
            };
            drop(file);
            wake();
            if !made {
                return;
            }
        }
    }

    /// Until there is something to do; false at the end.
    fn wait(&self) -> bool {
        let mut queue = self.queue.lock();
        while queue.changes.is_empty() && !queue.copied {
            if queue.stop {
                return false;
            }
            let syncs = self.counts.syncs.load(Ordering::Relaxed);
            if !self.wants_room.load(Ordering::Relaxed) {
                self.wake.wait(&mut queue);
            } else if self.wake.wait_for(&mut queue, QUIET).timed_out()
                && self.counts.syncs.load(Ordering::Relaxed) == syncs
            {
                break;
            }
        }
        let end = Instant::now() + LINGER;
        while !queue.awaited && !queue.stop && !queue.copied && !queue.changes.is_empty() {
            if self.wake.wait_until(&mut queue, end).timed_out() {
                break;
            }
        }
        true
    }

    fn make_or_fail(self: &Arc<Self>, file: &mut LogFile, changes: &mut Vec<(u64, Change)>) -> bool {
        match self.make(file, changes) {
            Ok(()) => true,
            Err(e) => self.fail(file, &e),
        }
    }

    fn fail(&self, file: &LogFile, error: &io::Error) -> bool {
        *self.why.lock() = Some(format!("writing the log {}: {error}", file.path.display()));
        self.failed.store(true, Ordering::Release);
        false
    }

    /// Makes all changes durable; without any, makes room.
    fn make(self: &Arc<Self>, file: &mut LogFile, changes: &mut Vec<(u64, Change)>) -> io::Result<()> {
        let Some(&(last, _)) = changes.last() else {
            let made = if file.wants_room() { file.make_room(STEP) } else { Ok(()) };
            self.wants_room.store(file.wants_room(), Ordering::Relaxed);
            return made;
        };
        let begin = Instant::now();
        for (_, change) in changes.drain(..) {
            match change {
                Change::Append(bytes) => file.gather.extend_from_slice(&bytes),
                Change::Replace(bytes) => {
                    // Nobody needs what the old log would get.
                    file.gather.clear();
                    self.stop_copying(file);
                    file.replace(&bytes)?;
                }
                Change::Compact(snapshot) => {
                    file.append()?;
                    self.copy(file, snapshot)?;
                }
            }
        }
        self.counts.written.fetch_add(file.gather.len() as u64, Ordering::Relaxed);
        file.append()?;
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        self.counts.length.store(file.end, Ordering::Relaxed);
        let (took, lately) = (begin.elapsed().as_nanos() as u64, self.sync_ns.load(Ordering::Relaxed));
        // One that took long is remembered for some time: a disk that others keep busy is not to be waited for.
        self.sync_ns.store(took.max(lately - lately / 8), Ordering::Relaxed);
        self.durable.store(last + 1, Ordering::Release);
        if file.wants_room() && !self.wants_room.swap(true, Ordering::Relaxed) {
            // The log's thread may sleep, and not know.
            drop(self.queue.lock());
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Has a new file written by another thread. One that is being written is superseded.
    fn copy(self: &Arc<Self>, file: &mut LogFile, snapshot: Snapshot) -> io::Result<()> {
        self.stop_copying(file);
        let (path, kind, shared) = (file.path.clone(), file.kind, self.clone());
        let write = move || {
            let written = LogFile::written(&path, kind, &snapshot.encode());
            shared.queue.lock().copied = true;
            shared.wake.notify_one();
            written
        };
        let thread = std::thread::Builder::new().name("remora-log-copy".into()).spawn(write)?;
        file.copying = Some(Copying { thread, since: Vec::new() });
        Ok(())
    }

    fn stop_copying(&self, file: &mut LogFile) {
        if let Some(former) = file.copying.take() {
            // Whatever came of it, nobody needs it.
            let _ = former.thread.join();
            self.queue.lock().copied = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::logfile::ROOM;
    use remora_replica::log::{End, Record, decode, encode};
    use std::fs::File;

    fn record(scope: u64, durable: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&Record::Scope(scope), durable, &mut bytes);
        bytes
    }

    fn wait(journal: &mut Journal, token: u64) {
        let end = Instant::now() + Duration::from_secs(20);
        while journal.durable() <= token {
            journal.idle(true);
            assert!(Instant::now() < end && !journal.has_failed(), "{:?}", journal.failure());
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_durable_is_there_after_opening_again() {
        for kind in [LogKind::Fdatasync, LogKind::Pmem] {
            let dir = tempfile::tempdir().unwrap();
            let (mut journal, content) = Journal::open(dir.path(), kind, || {}).unwrap();
            assert!(content.is_empty());
            assert!(Journal::open(dir.path(), kind, || {}).is_err(), "one process at a time");
            let mut all = Vec::new();
            for token in 0..50 {
                let bytes = record(token, all.len());
                all.extend_from_slice(&bytes);
                journal.submit(token, Change::Append(bytes));
            }
            wait(&mut journal, 49);
            assert_eq!(journal.stats().length, all.len() as u64);
            drop(journal);
            let (mut journal, content) = Journal::open(dir.path(), kind, || {}).unwrap();
            assert!(content == all, "{kind}");
            // Appends before a replacement are nobody's; appends after it follow it.
            let snapshot = record(100, 0);
            journal.submit(0, Change::Append(record(7, 0)));
            journal.submit(1, Change::Replace(snapshot.clone()));
            journal.submit(2, Change::Append(record(101, snapshot.len())));
            wait(&mut journal, 2);
            drop(journal);
            let (_, content) = Journal::open(dir.path(), kind, || {}).unwrap();
            assert_eq!(decode(&content).records, [Record::Scope(100), Record::Scope(101)]);
            assert_eq!(decode(&content).end, End::Whole);
        }
    }

    #[test]
    fn whoever_has_nothing_else_to_do_syncs_and_the_thread_does_it_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
        // Other threads of the machine may make a sync take long: then it is not for this one.
        let inline = (0..200).any(|token| {
            journal.submit(token, Change::Append(record(token, 0)));
            let here = journal.idle(true);
            wait(&mut journal, token);
            here
        });
        assert!(inline && journal.stats().inline > 0);
        // With other work for ever, or nobody who waits, the thread does it.
        let next = journal.durable();
        journal.submit(next, Change::Append(record(1, 0)));
        let end = Instant::now() + Duration::from_secs(20);
        while journal.durable() <= next {
            journal.turn(true);
            assert!(Instant::now() < end);
        }
        journal.submit(next + 1, Change::Append(record(2, 0)));
        while journal.durable() <= next + 1 {
            assert!(!journal.idle(false) && Instant::now() < end);
        }
    }

    #[test]
    fn what_is_read_is_written_again_before_it_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
        journal.submit(0, Change::Append(record(1, 0)));
        wait(&mut journal, 0);
        drop(journal);
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        let file = File::options().write(true).open(dir.path().join("log")).unwrap();
        file.set_len(record(1, 0).len() as u64 + ROOM).unwrap();
        file.set_modified(long_ago).unwrap();
        drop(file);
        // There is room: nothing else is to be written.
        let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
        assert_eq!(content, record(1, 0));
        assert!(std::fs::metadata(dir.path().join("log")).unwrap().modified().unwrap() > long_ago);
    }

    #[test]
    fn a_log_that_cannot_be_written_says_so_and_acknowledges_nothing_more() {
        for inline in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (mut file, _) = LogFile::open(dir.path(), LogKind::Fdatasync).unwrap();
            (file.file, file.room, file.direct) = (File::open(&file.path).unwrap(), 2 * ROOM, None);
            let mut journal = Journal::start(file, || {}).unwrap();
            assert_eq!((journal.durable(), journal.failure()), (0, None));
            (0..3).for_each(|token| journal.submit(token, Change::Append(record(token, 0))));
            let end = Instant::now() + Duration::from_secs(20);
            while !journal.has_failed() {
                assert!(Instant::now() < end);
                match inline {
                    true => assert!(journal.idle(true) || journal.has_failed()),
                    false => journal.turn(true),
                }
            }
            assert!(journal.failure().is_some_and(|why| why.starts_with("writing the log ")) && journal.durable() == 0);
            // Nor is it tried again.
            assert!(!journal.idle(true) && journal.durable() == 0);
        }
    }

    #[test]
    fn appends_go_on_while_the_log_is_compacted() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
        journal.submit(0, Change::Append(record(1, 0)));
        let snapshot = |from: u64| Snapshot::new((from..from + 2000).map(Record::Scope).collect());
        // The second one supersedes the first.
        journal.submit(1, Change::Compact(snapshot(10)));
        journal.submit(2, Change::Append(record(2, 0)));
        journal.submit(3, Change::Compact(snapshot(20)));
        let mut token = 4;
        let mut appended = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        // Until the new file has taken the old one's place, and on.
        while appended.len() < 10 || std::fs::metadata(dir.path().join("log.new")).is_ok() {
            assert!(Instant::now() < end);
            appended.push(Record::Scope(token << 32));
            journal.submit(token, Change::Append(record(token << 32, 0)));
            wait(&mut journal, token);
            token += 1;
        }
        drop(journal);
        let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
        let expected: Vec<Record> = (20..2020).map(Record::Scope).chain(appended).collect();
        assert!(decode(&content).records == expected && decode(&content).end == End::Whole);
    }

    #[test]
    fn a_torn_tail_and_damage_are_left_to_the_engine() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (record(1, 0), record(u64::MAX, record(1, 0).len()));
        let path = dir.path().join("log");
        let mut torn = [first.as_slice(), &second[..second.len() - 3], &[0; 5000]].concat();
        std::fs::write(&path, &torn).unwrap();
        let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
        assert_eq!((decode(&content).end, decode(&content).length), (End::Torn, first.len()));
        torn[2] ^= 1;
        torn[first.len()..first.len() + second.len()].copy_from_slice(&second);
        std::fs::write(&path, &torn).unwrap();
        let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
        assert_eq!(decode(&content).end, End::Damaged(0));
    }
}
