//! A node's log on disk.
//!
//! The file is filled with zeros ahead of its end: a sync then changes no metadata, which would have to go through the
//! file system's journal. Zeros after the last whole record are room, not damage.
//!
//! Blocks are reserved further ahead than that, which is cheap and says early that the disk is full ([`LogFile::full`]): what
//! is under way then still has its place, and so have the records of membership after that. An append for which there is none
//! all the same waits and is made again; nothing of what was durable before is touched by it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remora_replica::log;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::direct::{Direct, Landed};
use super::pmem::Mapped;
use remora_real::Error;

/// How changes become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogKind {
    /// Written past the page cache with `RWF_DSYNC` (by io_uring, where there is one) where the file system can, else
    /// written, then `fdatasync`: the same promise.
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
pub(super) const ROOM: u64 = 32 << 20;
/// Zeros (bytes) that are written at once: a few milliseconds.
pub(super) const STEP: u64 = 4 << 20;

/// Bytes beyond the end that are reserved, and what is reserved at once. The disk is full when there are fewer than [`LOW`]:
/// enough for what is under way, and for membership afterwards.
const AHEAD: u64 = 16 << 20;
const LOW: u64 = 8 << 20;
const PIECE: u64 = 1 << 20;

/// Bytes that a new log takes, with what it reserves. With fewer the disk counts as full from the start.
pub const NEW_LOG: u64 = ROOM + AHEAD;

/// Bytes from which on an append is long.
const LONG: usize = 64 << 10;

/// A new file that is being written, and what is to be appended to it by now.
pub(super) struct Copying {
    pub thread: JoinHandle<io::Result<LogFile>>,
    pub since: Vec<u8>,
}

/// An append that has begun.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    pub since: Instant,
    /// The newest token in it.
    pub last: u64,
}

/// The file, and how far it is used.
pub(super) struct LogFile {
    pub path: PathBuf,
    pub kind: LogKind,
    pub file: File,
    /// Appends that are not waited for go by the very file that is locked. So it stays open and locked, whatever becomes of
    /// this process, until the system is through with them: late ones would be written over what the next process appends.
    lock: Lock,
    mapped: Option<Mapped>,
    pub direct: Option<Direct>,
    /// Where the next record goes, and how long the file is; between them are zeros.
    pub end: u64,
    pub room: u64,
    /// How far blocks are reserved.
    reserved: u64,
    /// No more blocks could be reserved, or written.
    pub full: bool,
    /// Bytes appended since the start, to files before this one too.
    pub total: u64,
    /// What is to take the place of all that there is, before anything is appended.
    pub replacing: Option<Vec<u8>>,
    /// What is to be appended.
    pub gather: Vec<u8>,
    /// The newest token of what is gathered or to take its place.
    pub pending: Option<u64>,
    /// A new file could not be written, for want of room.
    pub uncompacted: bool,
    /// The append of `gather` that is under way.
    pub flight: Option<Flight>,
    pub copying: Option<Copying>,
}

/// For how long a lock may stay with a process that is about to end, or to become another program.
const ENDING: Duration = Duration::from_secs(1);

/// How often a log may be replaced while it is opened: its owner does so now and then, and is about to end.
const REPLACED: u32 = 10;

/// A file that this process has for itself alone.
struct Lock {
    file: File,
    /// What is written by it goes past the page cache.
    direct: bool,
}

impl Lock {
    /// Opens the file at `path`, or makes one, and waits for the lock for so long.
    fn on(path: &Path, wait: Duration) -> io::Result<Self> {
        let direct = options().custom_flags(libc::O_DIRECT).open(path);
        let (direct, file) = (direct.is_ok(), direct.or_else(|_| options().open(path))?);
        let end = Instant::now() + wait;
        loop {
            match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::other(
                        "another process has it open, or has ended and its last write has not",
                    ));
                }
                done => return Ok(done.map(|()| Self { file, direct })?),
            }
        }
    }
}

/// Has the file at `path` for this process alone. Who had it before may have put another one in its place while this one
/// waited for the lock: then that is the log, and not the file that is locked by now.
fn locked(path: &Path) -> io::Result<Lock> {
    for _ in 0..REPLACED {
        let lock = Lock::on(path, ENDING)?;
        let (ours, named) = (lock.file.metadata()?, std::fs::metadata(path)?);
        if (ours.dev(), ours.ino()) == (named.dev(), named.ino()) {
            return Ok(lock);
        }
    }
    Err(io::Error::other("it is replaced again and again"))
}

impl LogFile {
    pub fn open(dir: &Path, kind: LogKind) -> Result<(Self, Vec<u8>), Error> {
        let path = dir.join("log");
        let failed =
            |what: &str, source: io::Error| Error::Argument(format!("{what} the log {}: {source}", path.display()));
        let lock = locked(&path).map_err(|e| failed("locking", e))?;
        let file = options().open(&path).map_err(|e| failed("opening", e))?;
        // What a crash left of a replacement that never happened.
        let _ = std::fs::remove_file(dir.join("log.new"));
        let length = file.metadata().map_err(|e| failed("reading", e))?.len();
        let read = |bytes: &mut [u8], at| file.read_exact_at(bytes, at);
        let content = read_all(length as usize, read).map_err(|e| failed("reading", e))?;
        let room = content.len() as u64;
        let content = log::without_room(content);
        let end = content.len() as u64;
        let mut this = Self::new(&path, kind, (file, lock), end, room);
        // What a failed sync has left in memory alone reads like any other, and no further sync would write it: it is
        // written again before anybody relies on it.
        this.file.write_all_at(&content, 0).map_err(|e| failed("writing again", e))?;
        match this.fill(end + ROOM) {
            Err(e) if !is_full(&e) => return Err(failed("making room in", e)),
            // It goes on with the room that it has.
            _ => this.reserve(),
        }
        this.file.sync_all().map_err(|e| failed("making room in", e))?;
        this.prepare().map_err(|e| failed("mapping", e))?;
        sync_directory(dir).map_err(|e| failed("creating", e))?;
        Ok((this, content))
    }

    fn new(path: &Path, kind: LogKind, (file, lock): (File, Lock), end: u64, room: u64) -> Self {
        Self {
            path: path.to_path_buf(),
            kind,
            file,
            lock,
            mapped: None,
            direct: None,
            end,
            room,
            reserved: room,
            full: false,
            total: 0,
            replacing: None,
            gather: Vec::new(),
            pending: None,
            uncompacted: false,
            flight: None,
            copying: None,
        }
    }

    /// Prepares what appends go by, once the content is durable.
    fn prepare(&mut self) -> io::Result<()> {
        match self.kind {
            LogKind::Pmem => self.mapped = Some(Mapped::new(&self.file, self.room as usize)?),
            LogKind::Fdatasync if self.lock.direct => {
                self.direct = Some(Direct::new(self.lock.file.try_clone()?, &self.file, self.end)?);
            }
            LogKind::Fdatasync => {}
        }
        Ok(())
    }

    pub fn wants_room(&self) -> bool {
        self.mapped.is_none() && self.room - self.end < ROOM
    }

    /// Bytes that certainly have their place.
    pub fn left(&self) -> u64 {
        self.room.max(self.reserved).saturating_sub(self.end)
    }

    /// Has blocks reserved ahead of the end; says in [`LogFile::full`] whether there are.
    pub fn reserve(&mut self) {
        self.full = false;
        while self.reserved.max(self.room) < self.end + AHEAD {
            let from = self.reserved.max(self.room);
            match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, PIECE) {
                Ok(()) => self.reserved = from + PIECE,
                Err(Errno::NOSPC | Errno::DQUOT) => {
                    self.full = self.left() < LOW;
                    return;
                }
                // This file system cannot; it shows when something is written.
                Err(_) => return,
            }
        }
    }

    /// Fills the file with zeros up to so many bytes more.
    pub fn make_room(&mut self, bytes: u64) -> io::Result<()> {
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

    /// Whether an append can be begun here and not waited for.
    pub fn flies(&self) -> bool {
        self.direct.as_ref().is_some_and(Direct::flies)
    }

    /// Whether there is room for so many bytes.
    pub fn fits(&self, bytes: usize) -> bool {
        let reach = self.direct.as_ref().map_or(bytes, |direct| direct.reach(bytes));
        self.end + reach as u64 <= self.room
    }

    /// Begins to append what was gathered, durably. False if that cannot be done without waiting; then nothing has
    /// happened.
    pub fn begin(&mut self, flight: Flight) -> bool {
        let fits = self.fits(self.gather.len());
        let Some(direct) = &mut self.direct else { return false };
        let begun = fits && direct.begin(self.end, &self.gather);
        self.flight = begun.then_some(flight);
        begun
    }

    /// Ends the append that is under way if it is over, or waits for it. Gives it if it has ended now.
    pub fn land(&mut self, wait: bool) -> io::Result<Option<Flight>> {
        // After an error it is not asked again: what is durable then nobody knows.
        let (Some(flight), Some(direct)) = (self.flight.take(), &mut self.direct) else { return Ok(None) };
        match direct.landed(wait)? {
            Landed::NotYet => {
                self.flight = Some(flight);
                return Ok(None);
            }
            Landed::Yes => self.appended(),
            Landed::No => self.append()?,
        }
        Ok(Some(flight))
    }

    /// Appends what was gathered, durably.
    pub fn append(&mut self) -> io::Result<()> {
        if self.gather.is_empty() {
            return Ok(());
        }
        let end = self.end + self.gather.len() as u64;
        if let Some(mapped) = &mut self.mapped {
            if end > self.room {
                let length = self.room + ROOM.max(self.gather.len() as u64);
                match self.fill(length) {
                    Err(e) if is_full(&e) => self.fill(end)?,
                    filled => filled?,
                }
                self.file.sync_all()?;
                self.mapped = Some(Mapped::new(&self.file, self.room as usize)?);
                return self.append();
            }
            mapped.write(self.end as usize, &self.gather)?;
        } else {
            let reach = self.direct.as_ref().map_or(self.gather.len(), |direct| direct.reach(self.gather.len()));
            let reached = self.end + reach as u64;
            if reached > self.room && self.gather.len() < LONG {
                match self.fill(end + STEP) {
                    Err(e) if is_full(&e) => self.fill(reached)?,
                    filled => filled?,
                }
            }
            // What is long takes its room as it is written: zeros would be as much to write again.
            let done = match &mut self.direct {
                Some(direct) => direct.append(self.end, &self.gather)?,
                None => false,
            };
            if !done {
                self.direct = None;
                self.file.write_all_at(&self.gather, self.end)?;
                self.file.sync_data()?;
            }
            self.room = self.room.max(reached);
        }
        self.appended();
        Ok(())
    }

    /// What was gathered is durable.
    fn appended(&mut self) {
        self.end += self.gather.len() as u64;
        self.total += self.gather.len() as u64;
        if !self.full && self.left() < AHEAD - 4 * PIECE {
            self.reserve();
        }
        if let Some(copying) = &mut self.copying {
            copying.since.extend_from_slice(&self.gather);
        }
        self.gather.clear();
    }

    /// Puts a new file in the log's place: after a crash there is one or the other.
    pub fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let new = Self::written(&self.path, self.kind, bytes).inspect_err(|_| {
            let _ = std::fs::remove_file(self.path.with_extension("new"));
        })?;
        self.take_over(new)
    }

    /// Makes all that is pending durable.
    pub fn settle(&mut self) -> io::Result<()> {
        if let Some(bytes) = self.replacing.take() {
            let replaced = self.replace(&bytes);
            if let Err(error) = replaced {
                self.replacing = Some(bytes);
                return Err(error);
            }
        }
        self.append()
    }

    /// The new file is ready: it gets what the old one got meanwhile, and its place. If there is no room for it the old one
    /// goes on.
    pub fn change_over(&mut self) -> io::Result<()> {
        let Some(Copying { thread, since }) = self.copying.take() else { return Ok(()) };
        let new = thread.join().map_err(|_| io::Error::other("the thread that compacts it panicked"))?;
        let made = new.and_then(|mut new| {
            new.gather = since;
            new.append()?;
            Ok(new)
        });
        match made {
            Ok(new) => self.take_over(new),
            Err(error) if is_full(&error) => {
                // Its blocks may be what others need.
                let _ = std::fs::remove_file(self.path.with_extension("new"));
                self.uncompacted = true;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// A file beside the log with this content, durable, and with some room: what is appended soon need not change
    /// metadata.
    pub fn written(path: &Path, kind: LogKind, bytes: &[u8]) -> io::Result<Self> {
        let new = path.with_extension("new");
        let file = options().truncate(true).open(&new)?;
        let lock = Lock::on(&new, Duration::ZERO)?;
        file.write_all_at(bytes, 0)?;
        let length = bytes.len() as u64;
        let mut this = Self::new(path, kind, (file, lock), length, length);
        this.fill(length + STEP)?;
        this.file.sync_all()?;
        this.prepare()?;
        Ok(this)
    }

    fn take_over(&mut self, mut new: Self) -> io::Result<()> {
        std::fs::rename(self.path.with_extension("new"), &self.path)?;
        sync_directory(self.path.parent().unwrap_or(Path::new(".")))?;
        (new.gather, new.pending) = (std::mem::take(&mut self.gather), self.pending);
        new.total = self.total;
        *self = new;
        self.reserve();
        Ok(())
    }
}

/// Bytes that a disk cannot read together, at least.
const SECTOR: usize = 4096;

/// All of a log. What the disk cannot read is damage as any other: it reads as what was never written there, and what was
/// lost comes from the other nodes.
fn read_all(length: usize, read: impl Fn(&mut [u8], u64) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let cannot = |error: &io::Error| error.raw_os_error() == Some(Errno::IO.raw_os_error());
    let mut content = vec![0; length];
    match read(&mut content, 0) {
        Err(error) if cannot(&error) => {}
        done => return done.map(|()| content),
    }
    for (number, sector) in content.chunks_mut(SECTOR).enumerate() {
        match read(sector, (number * SECTOR) as u64) {
            Err(error) if cannot(&error) => sector.fill(0xff),
            done => done?,
        }
    }
    Ok(content)
}

/// Whether an error says that there is no room on the disk, or not for this user.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
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

    /// A disk that cannot read some of a log keeps no node from starting: the node has a damaged log.
    #[test]
    fn what_cannot_be_read_is_damage() {
        use remora_replica::log::{self, Known, LogEnd, Record};
        let mut bytes = Vec::new();
        for number in 0..100u64 {
            log::encode(&Record::Bytes(number, vec![7; 500].into()), Known::AllBut(0), &mut bytes);
        }
        let read = |bad: std::ops::Range<u64>, errno: Errno| {
            let bytes = &bytes;
            read_all(bytes.len(), move |out, at| {
                if at < bad.end && bad.start < at + out.len() as u64 {
                    return Err(errno.into());
                }
                out.copy_from_slice(&bytes[at as usize..][..out.len()]);
                Ok(())
            })
        };
        assert_eq!(read(0..0, Errno::IO).unwrap(), bytes);
        let found = log::decode(&read(20_000..20_001, Errno::IO).unwrap());
        let LogEnd::Damaged(at) = found.end else { panic!("{:?}", found.end) };
        assert!((15_500..20_001).contains(&at) && found.records.len() >= 29, "{at}");
        // What the disk does not say for sure is no damage.
        assert!(read(20_000..20_001, Errno::NOMEM).is_err());
    }

    /// Of a process that is killed the system goes on with what is under way.
    #[test]
    fn a_log_is_locked_until_its_last_write_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = LogFile::open(dir.path(), LogKind::Fdatasync).unwrap();
        let Some(direct) = &log.direct else {
            return remora_testing::skip("no writes past the page cache here", "Have TMPDIR where O_DIRECT is allowed");
        };
        // As the system has it for a write.
        let under_way = direct.file().try_clone().unwrap();
        drop(log);
        let refused = LogFile::open(dir.path(), LogKind::Fdatasync).map(drop).unwrap_err().to_string();
        assert!(refused.contains("its last write has not"), "{refused}");
        drop(under_way);
        LogFile::open(dir.path(), LogKind::Fdatasync).unwrap();
    }

    /// Whoever waits for the lock while the log is compacted would have a file that nobody else sees.
    #[test]
    fn a_lock_on_a_file_that_was_replaced_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let held = locked(&path).unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || locked(&path).map(|lock| lock.file.metadata().unwrap().ino())
        });
        // As `take_over` does it; the lock goes with the old file.
        let new = options().open(path.with_extension("new")).unwrap();
        std::fs::rename(path.with_extension("new"), &path).unwrap();
        drop(held);
        assert_eq!(waiting.join().unwrap().unwrap(), new.metadata().unwrap().ino());
    }
}
