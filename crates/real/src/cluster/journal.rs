//! A node's log on disk: appended by a thread of its own, so that the protocol never waits for the disk.
//!
//! Everything that was handed over since the last sync is written and synced as one (group commit). The file is filled
//! with zeros ahead of its end: a sync then changes no metadata, which would have to go through the file system's
//! journal. Zeros after the last whole record are room, not damage.
//!
//! When the engine has the log compacted, a second thread writes the new file. Until it is durable the old one counts,
//! and goes on: what is appended meanwhile goes to both.
//!
//! A sync that failed may have lost what was written before it, and the next one would not say so (Rebello et al., "Can
//! Applications Recover from fsync Failures?", ATC 2020). So nothing is written after a failure, and the node ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use remora_replica::log;
use remora_replica::node::{Change, Snapshot};

use super::pmem::Mapped;
use crate::Error;

/// How changes become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogKind {
    /// Written, then `fdatasync`.
    #[default]
    Fdatasync,
    /// A memory-mapped file whose cache lines are written back: durable on persistent memory (a DAX file system).
    /// Elsewhere it outlives the process, not the machine.
    Pmem,
}

impl std::str::FromStr for LogKind {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        match s {
            "fdatasync" => Ok(Self::Fdatasync),
            "pmem" => Ok(Self::Pmem),
            other => Err(Error::Argument(format!("there is no log {other:?}: use fdatasync or pmem"))),
        }
    }
}

impl std::fmt::Display for LogKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fdatasync => "fdatasync",
            Self::Pmem => "pmem",
        })
    }
}

/// Zeros (bytes) that are ahead of the log's end at the start, and again whenever nothing was written for a while.
const ROOM: u64 = 32 << 20;
/// Zeros (bytes) that are written at once: a few milliseconds.
const STEP: u64 = 4 << 20;
/// How long nothing is written before the log is given room again.
const QUIET: Duration = Duration::from_millis(100);

/// A log that is open.
pub(super) struct Journal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    linger: Duration,
    /// All tokens below this are durable.
    durable: AtomicU64,
    failed: AtomicBool,
    why: Mutex<Option<String>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    length: AtomicU64,
    syncs: AtomicU64,
    written: AtomicU64,
}

#[derive(Default)]
struct Queue {
    changes: Vec<(u64, Change)>,
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
    /// Bytes written since the start.
    pub written: u64,
}

impl Journal {
    /// Opens the log in `dir`, or makes one. Gives its content too. `wake` is called, by another thread, whenever more
    /// has become durable. Changes wait for others to share their sync for `linger`, where nobody waits for them.
    pub fn open(
        dir: &Path,
        kind: LogKind,
        linger: Duration,
        wake: impl Fn() + Send + 'static,
    ) -> Result<(Self, Vec<u8>), Error> {
        let (file, content) = LogFile::open(dir, kind)?;
        Ok((Self::start(file, linger, wake)?, content))
    }

    fn start(mut file: LogFile, linger: Duration, wake: impl Fn() + Send + 'static) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            linger,
            durable: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            why: Mutex::new(None),
            counts: Counts::default(),
        });
        shared.counts.length.store(file.end, Ordering::Relaxed);
        let worker = shared.clone();
        let thread = std::thread::Builder::new()
            .name("remora-log".into())
            .spawn(move || worker.run(&mut file, &wake))
            .map_err(|source| Error::System { what: "starting the log's thread", source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Has a change made. Tokens ascend.
    pub fn submit(&self, token: u64, change: Change) {
        let mut queue = self.shared.queue.lock();
        queue.changes.push((token, change));
        if queue.changes.len() == 1 {
            drop(queue);
            self.shared.wake.notify_one();
        }
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
        let Counts { length, syncs, written } = &self.shared.counts;
        JournalStats { length: get(length), syncs: get(syncs), written: get(written) }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on stderr already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(self: &Arc<Self>, file: &mut LogFile, wake: &dyn Fn()) {
        let mut changes = Vec::new();
        loop {
            let copied;
            {
                let mut queue = self.queue.lock();
                while queue.changes.is_empty() && !queue.copied {
                    if queue.stop {
                        return;
                    }
                    if !file.wants_room() {
                        self.wake.wait(&mut queue);
                    } else if self.wake.wait_for(&mut queue, QUIET).timed_out() {
                        break;
                    }
                }
                if !self.linger.is_zero() && !queue.stop {
                    MutexGuard::unlocked(&mut queue, || std::thread::sleep(self.linger));
                }
                std::mem::swap(&mut changes, &mut queue.changes);
                copied = std::mem::take(&mut queue.copied);
            }
            let made = if copied { file.change_over() } else { Ok(()) };
            if let Err(e) = made.and_then(|()| self.make(file, &mut changes)) {
                *self.why.lock() = Some(format!("writing the log {}: {e}", file.path.display()));
                self.failed.store(true, Ordering::Release);
                wake();
                return;
            }
            wake();
        }
    }

    /// Makes all changes durable; without any, makes room.
    fn make(self: &Arc<Self>, file: &mut LogFile, changes: &mut Vec<(u64, Change)>) -> io::Result<()> {
        let Some(&(last, _)) = changes.last() else {
            return if file.wants_room() { file.make_room(STEP) } else { Ok(()) };
        };
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
        self.durable.store(last + 1, Ordering::Release);
        Ok(())
    }
}

impl Shared {
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

/// A new file that is being written, and what is to be appended to it by now.
struct Copying {
    thread: JoinHandle<io::Result<LogFile>>,
    since: Vec<u8>,
}

/// The file, and how far it is used.
struct LogFile {
    path: PathBuf,
    kind: LogKind,
    file: File,
    mapped: Option<Mapped>,
    /// Where the next record goes, and how long the file is; between them are zeros.
    end: u64,
    room: u64,
    /// What is to be appended.
    gather: Vec<u8>,
    copying: Option<Copying>,
}

impl LogFile {
    fn open(dir: &Path, kind: LogKind) -> Result<(Self, Vec<u8>), Error> {
        let path = dir.join("log");
        let failed =
            |what: &str, source: io::Error| Error::Argument(format!("{what} the log {}: {source}", path.display()));
        let file = options().open(&path).map_err(|e| failed("opening", e))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| failed("locking", io::Error::other("another process has it open")))?;
        // What a crash left of a replacement that never happened.
        let _ = std::fs::remove_file(dir.join("log.new"));
        let content = std::fs::read(&path).map_err(|e| failed("reading", e))?;
        let room = content.len() as u64;
        let content = log::without_room(content);
        let end = content.len() as u64;
        let mut this = Self::new(&path, kind, file, end, room);
        this.fill(end + ROOM).map_err(|e| failed("making room in", e))?;
        this.map().map_err(|e| failed("mapping", e))?;
        this.file.sync_all().map_err(|e| failed("making room in", e))?;
        sync_directory(dir).map_err(|e| failed("creating", e))?;
        Ok((this, content))
    }

    fn new(path: &Path, kind: LogKind, file: File, end: u64, room: u64) -> Self {
        Self { path: path.to_path_buf(), kind, file, mapped: None, end, room, gather: Vec::new(), copying: None }
    }

    fn map(&mut self) -> io::Result<()> {
        if self.kind == LogKind::Pmem {
            self.mapped = Some(Mapped::new(&self.file, self.room as usize)?);
        }
        Ok(())
    }

    fn wants_room(&self) -> bool {
        self.mapped.is_none() && self.room - self.end < ROOM
    }

    /// Fills the file with zeros up to so many bytes more.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        self.fill(self.room + bytes)?;
        self.file.sync_data()
    }

    fn fill(&mut self, length: u64) -> io::Result<()> {
        const PIECE: u64 = 1 << 20;
        let zeros = vec![0; PIECE as usize];
        while self.room < length {
            let step = (length - self.room).min(PIECE) as usize;
            self.file.write_all_at(&zeros[..step], self.room)?;
            self.room += step as u64;
        }
        Ok(())
    }

    /// Appends what was gathered, durably.
    fn append(&mut self) -> io::Result<()> {
        if self.gather.is_empty() {
            return Ok(());
        }
        let end = self.end + self.gather.len() as u64;
        if let Some(mapped) = &mut self.mapped {
            if end > self.room {
                let length = self.room + ROOM.max(self.gather.len() as u64);
                self.fill(length)?;
                self.file.sync_all()?;
                self.mapped = Some(Mapped::new(&self.file, self.room as usize)?);
                return self.append();
            }
            mapped.write(self.end as usize, &self.gather);
        } else {
            if end > self.room {
                self.fill(end + STEP)?;
            }
            self.file.write_all_at(&self.gather, self.end)?;
            self.file.sync_data()?;
        }
        self.end = end;
        if let Some(copying) = &mut self.copying {
            copying.since.extend_from_slice(&self.gather);
        }
        self.gather.clear();
        Ok(())
    }

    /// Puts a new file in the log's place: after a crash there is one or the other.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let new = Self::written(&self.path, self.kind, bytes)?;
        self.take_over(new)
    }

    /// The new file is ready: it gets what the old one got meanwhile, and its place.
    fn change_over(&mut self) -> io::Result<()> {
        let Some(Copying { thread, since }) = self.copying.take() else { return Ok(()) };
        let mut new = thread.join().map_err(|_| io::Error::other("the thread that compacts it panicked"))??;
        new.gather = since;
        new.append()?;
        self.take_over(new)
    }

    /// A file beside the log with this content, durable, and with some room: what is appended soon need not change
    /// metadata.
    fn written(path: &Path, kind: LogKind, bytes: &[u8]) -> io::Result<Self> {
        let file = options().truncate(true).open(path.with_extension("new"))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        file.write_all_at(bytes, 0)?;
        let length = bytes.len() as u64;
        let mut this = Self::new(path, kind, file, length, length);
        this.fill(length + ROOM)?;
        this.map()?;
        this.file.sync_all()?;
        Ok(this)
    }

    fn take_over(&mut self, mut new: Self) -> io::Result<()> {
        std::fs::rename(self.path.with_extension("new"), &self.path)?;
        sync_directory(self.path.parent().unwrap_or(Path::new(".")))?;
        new.gather = std::mem::take(&mut self.gather);
        *self = new;
        Ok(())
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options
}

fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_replica::log::{End, Record, decode, encode};
    use std::time::Instant;

    fn record(scope: u64, durable: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&Record::Scope(scope), durable, &mut bytes);
        bytes
    }

    fn wait(journal: &Journal, token: u64) {
        let end = Instant::now() + Duration::from_secs(20);
        while journal.durable() <= token {
            assert!(Instant::now() < end && !journal.has_failed(), "{:?}", journal.failure());
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_durable_is_there_after_opening_again() {
        for kind in [LogKind::Fdatasync, LogKind::Pmem] {
            let dir = tempfile::tempdir().unwrap();
            let (journal, content) = Journal::open(dir.path(), kind, Duration::ZERO, || {}).unwrap();
            assert!(content.is_empty());
            assert!(Journal::open(dir.path(), kind, Duration::ZERO, || {}).is_err(), "one process at a time");
            let mut all = Vec::new();
            for token in 0..50 {
                let bytes = record(token, all.len());
                all.extend_from_slice(&bytes);
                journal.submit(token, Change::Append(bytes));
            }
            wait(&journal, 49);
            assert_eq!(journal.stats().length, all.len() as u64);
            drop(journal);
            let (journal, content) = Journal::open(dir.path(), kind, Duration::ZERO, || {}).unwrap();
            assert!(content == all, "{kind}");
            // Appends before a replacement are nobody's; appends after it follow it.
            let snapshot = record(100, 0);
            journal.submit(0, Change::Append(record(7, 0)));
            journal.submit(1, Change::Replace(snapshot.clone()));
            journal.submit(2, Change::Append(record(101, snapshot.len())));
            wait(&journal, 2);
            drop(journal);
            let (_, content) = Journal::open(dir.path(), kind, Duration::ZERO, || {}).unwrap();
            assert_eq!(decode(&content).records, [Record::Scope(100), Record::Scope(101)]);
            assert_eq!(decode(&content).end, End::Whole);
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_says_so_and_acknowledges_nothing_more() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, _) = LogFile::open(dir.path(), LogKind::Fdatasync).unwrap();
        (file.file, file.room) = (File::open(&file.path).unwrap(), 2 * ROOM);
        let journal = Journal::start(file, Duration::ZERO, || {}).unwrap();
        assert_eq!((journal.durable(), journal.failure()), (0, None));
        (0..3).for_each(|token| journal.submit(token, Change::Append(record(token, 0))));
        let end = Instant::now() + Duration::from_secs(20);
        while !journal.has_failed() {
            assert!(Instant::now() < end);
        }
        assert!(journal.failure().is_some_and(|why| why.starts_with("writing the log ")) && journal.durable() == 0);
    }

    #[test]
    fn appends_go_on_while_the_log_is_compacted() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(dir.path(), LogKind::Fdatasync, Duration::ZERO, || {}).unwrap();
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
            wait(&journal, token);
            token += 1;
        }
        drop(journal);
        let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, Duration::ZERO, || {}).unwrap();
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
        let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, Duration::ZERO, || {}).unwrap();
        assert_eq!((decode(&content).end, decode(&content).length), (End::Torn, first.len()));
        torn[2] ^= 1;
        torn[first.len()..first.len() + second.len()].copy_from_slice(&second);
        std::fs::write(&path, &torn).unwrap();
        let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, Duration::ZERO, || {}).unwrap();
        assert_eq!(decode(&content).end, End::Damaged(0));
    }
}
