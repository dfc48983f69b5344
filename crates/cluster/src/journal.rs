//! A node's log: appended wherever the protocol never waits for the disk.
//!
//! What the engine wants durable gathers until it has sent what it had to send, and is then written and synced as one
//! (group commit). Its own thread begins that, by io_uring, and looks whether it is done: there is nobody to wake, and
//! while the disk works the engine goes on. Without io_uring it waits, but only when it has nothing else to do, and for
//! disks that are quick. A disk that takes long, much at once, a new file, and whatever nobody waits for go to a thread
//! of the log's own.
//!
//! When the engine has the log compacted, a second thread writes the new file. Until it is durable the old one counts,
//! and goes on: what is appended meanwhile goes to both.
//!
//! A disk that is full is no failure: what there is no room for waits, and is tried again until there is
//! ([`Journal::left`] says how much there is before that).
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

use super::logfile::{Copying, Flight, LogFile, LogKind, STEP, is_full};
use remora_real::{Error, start_thread};

/// How long nothing is written before the log is given room again.
const QUIET: Duration = Duration::from_millis(100);
/// How long what nobody waits for gathers before it is synced.
const LINGER: Duration = Duration::from_millis(5);
/// Bytes that the engine's thread writes at most.
const SMALL: usize = 256 << 10;
/// What a sync may take, in nanoseconds, if the engine's thread is to wait for it.
const SHORT: u64 = 1_000_000;
/// How long until a new file is tried again for which there was no room.
const AGAIN: Duration = Duration::from_secs(5);
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
    /// An append was begun, and not seen to end.
    flying: bool,
    /// Bytes to be appended, since the start.
    submitted: u64,
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
    /// The disk is full; bytes that have their place, of those bytes appended since the start.
    full: AtomicBool,
    left: AtomicU64,
    appended: AtomicU64,
    /// Since when a new file is still to be written, for which there was no room.
    uncompacted: Mutex<Option<Instant>>,
    failed: AtomicBool,
    why: Mutex<Option<String>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    length: AtomicU64,
    syncs: AtomicU64,
    inline: AtomicU64,
}

/// What is left to the log's thread.
#[derive(Default)]
struct Queue {
    changes: Vec<(u64, Change)>,
    bytes: usize,
    /// An empty buffer, to be used again.
    spare: Vec<u8>,
    /// Somebody waits for it.
    awaited: bool,
    /// A new file is ready.
    copied: bool,
    /// An append that was begun takes long: it is to be waited for.
    landing: bool,
    stop: bool,
}

/// What a log has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JournalStats {
    /// Bytes that it has.
    pub length: u64,
    /// Syncs, or write-backs.
    pub syncs: u64,
    /// Of these, begun by the engine's thread.
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
            full: AtomicBool::new(file.full),
            left: AtomicU64::new(file.left()),
            appended: AtomicU64::new(0),
            uncompacted: Mutex::new(None),
            failed: AtomicBool::new(false),
            why: Mutex::new(None),
            counts: Counts { length: AtomicU64::new(file.end), ..Counts::default() },
            file: Mutex::new(file),
        });
        let worker = shared.clone();
        let thread = start_thread("remora-log", move || worker.run(&wake))
            .map_err(|source| Error::System { what: "starting the log's thread", source })?;
        Ok(Self { shared, thread: Some(thread), changes: Vec::new(), bytes: 0, turns: 0, flying: false, submitted: 0 })
    }

    /// Has a change made. Tokens ascend. See [`Journal::turn`] and [`Journal::idle`] for when.
    pub fn submit(&mut self, token: u64, change: Change) {
        self.bytes += match &change {
            Change::Append(bytes) => {
                self.submitted += bytes.len() as u64;
                bytes.len()
            }
            // Not for the engine's thread.
            Change::Replace(_) | Change::Compact(_) => SMALL,
        };
        match (self.changes.last_mut(), change) {
            (Some((last, Change::Append(all))), Change::Append(bytes)) => {
                all.extend_from_slice(&bytes);
                *last = token;
            }
            (_, Change::Append(bytes)) => {
                // A buffer that has its pages already.
                let mut all = std::mem::take(&mut self.shared.queue.lock().spare);
                all.extend_from_slice(&bytes);
                self.changes.push((token, Change::Append(all)));
            }
            (_, change) => self.changes.push((token, change)),
        }
    }

    /// The engine's thread has other work. What gathers waits, but not for long; `awaited` says whether somebody waits.
    pub fn turn(&mut self, awaited: bool) {
        self.turns += u32::from(!self.changes.is_empty());
        if self.turns > BUSY || self.bytes >= SMALL {
            self.hand_over(awaited);
        }
    }

    /// The engine has sent what it had to send; `busy` says whether it may have more to do. Whether something has become
    /// durable, or is about to, so that it is not the time to sleep.
    pub fn idle(&mut self, awaited: bool, busy: bool) -> bool {
        let syncs = (awaited || self.flying) && self.sync(busy);
        if !syncs && !busy {
            self.hand_over(awaited);
        }
        syncs
    }

    /// All tokens below this are durable.
    pub fn durable(&mut self) -> u64 {
        if self.flying
            && let Some(mut file) = self.shared.file.try_lock()
        {
            let landed = self.shared.land(&mut file, false);
            self.shared.or_fail(&file, landed);
            self.flying = file.flight.is_some();
        }
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Whether the log can be written no more, if only as its thread has panicked.
    pub fn has_failed(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(|thread| thread.is_finished());
        ended || self.shared.failed.load(Ordering::Acquire)
    }

    /// If the disk is full: for how many bytes more there is room all the same, with all that was submitted.
    pub fn left(&self) -> Option<usize> {
        let shared = &self.shared;
        shared.full.load(Ordering::Acquire).then(|| {
            let under_way = self.submitted.saturating_sub(shared.appended.load(Ordering::Acquire));
            shared.left.load(Ordering::Acquire).saturating_sub(under_way) as usize
        })
    }

    /// Whether there was no room for a new file, and may be now: it is to be asked for again. Said once.
    pub fn is_uncompacted(&self) -> bool {
        let full = self.shared.full.load(Ordering::Acquire);
        !full && self.shared.uncompacted.lock().take_if(|since| since.elapsed() > AGAIN).is_some()
    }

    /// Why the log can be written no more.
    pub fn failure(&self) -> Option<String> {
        self.shared.why.lock().clone()
    }

    /// What it has done.
    pub fn stats(&self) -> JournalStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (Counts { length, syncs, inline }, written) = (&self.shared.counts, &self.shared.appended);
        JournalStats { length: get(length), syncs: get(syncs), inline: get(inline), written: get(written) }
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

    /// Syncs all there is, or begins to. Not if the log's thread is at work, or should be.
    fn sync(&mut self, busy: bool) -> bool {
        let Some(mut file) = self.shared.file.try_lock() else { return false };
        if self.shared.failed.load(Ordering::Acquire) {
            return false;
        }
        if let Some(flight) = file.flight {
            self.turns = 0;
            let long = flight.since.elapsed().as_nanos() as u64 > SHORT;
            if long && !std::mem::replace(&mut self.shared.queue.lock().landing, true) {
                self.shared.wake.notify_one();
            }
            return !long;
        }
        if file.pending.is_some() {
            // There was no room for it. The log's thread tries again.
            return false;
        }
        let flies = file.flies();
        if !flies && (busy || self.shared.sync_ns.load(Ordering::Relaxed) >= SHORT) {
            return false;
        }
        {
            let mut queue = self.shared.queue.lock();
            let bytes = queue.bytes + self.bytes;
            if bytes == 0 || bytes >= SMALL || flies && !file.fits(bytes) {
                return false;
            }
            queue.changes.append(&mut self.changes);
            std::mem::swap(&mut queue.changes, &mut self.changes);
            (queue.bytes, queue.awaited) = (0, false);
        }
        (self.bytes, self.turns) = (0, 0);
        self.shared.counts.inline.fetch_add(1, Ordering::Relaxed);
        let begun = self.shared.begin(&mut file, &mut self.changes);
        self.shared.or_fail(&file, begun);
        self.flying = file.flight.is_some();
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
            let (copied, landing) = {
                let mut queue = self.queue.lock();
                std::mem::swap(&mut changes, &mut queue.changes);
                (queue.bytes, queue.awaited) = (0, false);
                (std::mem::take(&mut queue.copied), std::mem::take(&mut queue.landing))
            };
            let made = self.land(&mut file, true);
            let made = made.and_then(|()| if copied { file.change_over() } else { Ok(()) });
            // What waits since there was no room may have some in the new file.
            let only_landing = landing && changes.is_empty() && file.pending.is_none();
            let made = made.and_then(|()| if only_landing { Ok(()) } else { self.make(&mut file, &mut changes) });
            let made = self.or_fail(&file, made);
            self.publish(&mut file);
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
        while queue.changes.is_empty() && !queue.copied && !queue.landing {
            if queue.stop {
                return false;
            }
            let syncs = self.counts.syncs.load(Ordering::Relaxed);
            if self.full.load(Ordering::Relaxed) {
                if self.wake.wait_for(&mut queue, QUIET).timed_out() {
                    break;
                }
            } else if !self.wants_room.load(Ordering::Relaxed) {
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

    /// Whether it was made; if not, the log has failed.
    fn or_fail(&self, file: &LogFile, made: io::Result<()>) -> bool {
        let Err(error) = made else { return true };
        *self.why.lock() = Some(format!("writing the log {}: {error}", file.path.display()));
        self.failed.store(true, Ordering::Release);
        false
    }

    /// Makes all changes durable; without any, makes room.
    fn make(self: &Arc<Self>, file: &mut LogFile, changes: &mut Vec<(u64, Change)>) -> io::Result<()> {
        if changes.is_empty() && file.pending.is_none() {
            return self.make_room(file);
        }
        let begin = Instant::now();
        self.gather(file, changes)?;
        if !self.settle(file)? {
            return Ok(());
        }
        let (took, lately) = (begin.elapsed().as_nanos() as u64, self.sync_ns.load(Ordering::Relaxed));
        // One that took long is remembered for some time: a disk that others keep busy is not to be waited for.
        self.sync_ns.store(took.max(lately - lately / 8), Ordering::Relaxed);
        Ok(())
    }

    /// Nothing is to be written: room is made, or looked for.
    fn make_room(&self, file: &mut LogFile) -> io::Result<()> {
        if file.full {
            file.reserve();
        }
        let made = if file.wants_room() && !file.full { file.make_room(STEP) } else { Ok(()) };
        self.wants_room.store(file.wants_room() && !file.full, Ordering::Relaxed);
        file.full |= made.as_ref().is_err_and(is_full);
        made.or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })
    }

    /// Makes durable what was gathered. False if there is no room for it: then it waits.
    fn settle(&self, file: &mut LogFile) -> io::Result<bool> {
        match file.settle() {
            Ok(()) => {
                if file.full {
                    file.reserve();
                }
                if let Some(last) = file.pending.take() {
                    self.made(file, last);
                }
                Ok(true)
            }
            Err(error) if is_full(&error) => {
                file.full = true;
                self.publish(file);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Tells the engine's thread what room there is.
    fn publish(&self, file: &mut LogFile) {
        self.appended.store(file.total, Ordering::Release);
        self.left.store(file.left(), Ordering::Release);
        if std::mem::take(&mut file.uncompacted) {
            *self.uncompacted.lock() = Some(Instant::now());
        }
        if file.full != self.full.swap(file.full, Ordering::AcqRel) {
            // The log's thread may sleep, and not know that it is to look again.
            drop(self.queue.lock());
            self.wake.notify_one();
        }
    }

    /// Begins to make changes durable that are short, if possible without waiting for the disk.
    fn begin(self: &Arc<Self>, file: &mut LogFile, changes: &mut Vec<(u64, Change)>) -> io::Result<()> {
        let Some(&(last, Change::Append(_))) = changes.last().filter(|_| file.flies()) else {
            return self.make(file, changes);
        };
        self.gather(file, changes)?;
        if file.replacing.is_some() || !file.begin(Flight { since: Instant::now(), last }) {
            self.settle(file)?;
        }
        Ok(())
    }

    /// Ends an append that was begun, if it is over.
    fn land(&self, file: &mut LogFile, wait: bool) -> io::Result<()> {
        match file.land(wait) {
            Ok(Some(flight)) => {
                file.pending = None;
                self.made(file, flight.last);
                Ok(())
            }
            // It is still gathered, and is made again.
            Err(error) if is_full(&error) => {
                file.full = true;
                self.publish(file);
                Ok(())
            }
            landed => landed.map(drop),
        }
    }

    /// Brings changes to the file, up to what is to be appended now.
    fn gather(self: &Arc<Self>, file: &mut LogFile, changes: &mut Vec<(u64, Change)>) -> io::Result<()> {
        for (token, change) in changes.drain(..) {
            file.pending = Some(token);
            match change {
                Change::Append(mut bytes) => {
                    if file.gather.is_empty() {
                        std::mem::swap(&mut file.gather, &mut bytes);
                    } else {
                        file.gather.extend_from_slice(&bytes);
                    }
                    bytes.clear();
                    self.queue.lock().spare = bytes;
                }
                Change::Replace(bytes) => {
                    // Nobody needs what the old log would get.
                    file.gather.clear();
                    self.stop_copying(file);
                    file.replacing = Some(bytes);
                }
                Change::Compact(snapshot) => {
                    // What came before belongs to the old file alone.
                    match self.settle(file)? {
                        true => self.copy(file, snapshot)?,
                        false => file.uncompacted = true,
                    }
                    file.pending = Some(token);
                }
            }
        }
        Ok(())
    }

    /// All up to this token is durable.
    fn made(&self, file: &mut LogFile, last: u64) {
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        self.counts.length.store(file.end, Ordering::Relaxed);
        self.publish(file);
        self.durable.store(last + 1, Ordering::Release);
        if file.wants_room() && !self.wants_room.swap(true, Ordering::Relaxed) {
            // The log's thread may sleep, and not know.
            drop(self.queue.lock());
            self.wake.notify_one();
        }
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
        match start_thread("remora-log-copy", write) {
            Ok(thread) => file.copying = Some(Copying { thread, since: Vec::new() }),
            // The system has no thread to spare now: nothing was written, and later is soon enough.
            Err(_) => file.uncompacted = true,
        }
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
mod tests;
