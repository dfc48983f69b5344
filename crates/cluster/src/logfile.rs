//! A node's log on disk.
//!
//! The file is filled with zeros ahead of its end: a sync then changes no metadata, which would have to go through the
//! file system's journal. Zeros after the last whole record are room, not damage.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remora_replica::log;
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
    mapped: Option<Mapped>,
    pub direct: Option<Direct>,
    /// Where the next record goes, and how long the file is; between them are zeros.
    pub end: u64,
    pub room: u64,
    /// What is to be appended.
    pub gather: Vec<u8>,
    /// The append of `gather` that is under way.
    pub flight: Option<Flight>,
    pub copying: Option<Copying>,
}

/// For how long a lock may stay with a process that is about to end, or to become another program.
const ENDING: Duration = Duration::from_secs(1);

/// Has the file for this process alone.
fn lock(file: &File) -> io::Result<()> {
    let end = Instant::now() + ENDING;
    loop {
        match rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::WOULDBLOCK) => return Err(io::Error::other("another process has it open")),
            done => return Ok(done?),
        }
    }
}

impl LogFile {
    pub fn open(dir: &Path, kind: LogKind) -> Result<(Self, Vec<u8>), Error> {
        let path = dir.join("log");
        let failed =
            |what: &str, source: io::Error| Error::Argument(format!("{what} the log {}: {source}", path.display()));
        let file = options().open(&path).map_err(|e| failed("opening", e))?;
        lock(&file).map_err(|e| failed("locking", e))?;
        // What a crash left of a replacement that never happened.
        let _ = std::fs::remove_file(dir.join("log.new"));
        let content = std::fs::read(&path).map_err(|e| failed("reading", e))?;
        let room = content.len() as u64;
        let content = log::without_room(content);
        let end = content.len() as u64;
        let mut this = Self::new(&path, kind, file, end, room);
        // What a failed sync has left in memory alone reads like any other, and no further sync would write it: it is
        // written again before anybody relies on it.
        this.file.write_all_at(&content, 0).map_err(|e| failed("writing again", e))?;
        this.fill(end + ROOM).map_err(|e| failed("making room in", e))?;
        this.file.sync_all().map_err(|e| failed("making room in", e))?;
        this.prepare(&path).map_err(|e| failed("mapping", e))?;
        sync_directory(dir).map_err(|e| failed("creating", e))?;
        Ok((this, content))
    }

    fn new(path: &Path, kind: LogKind, file: File, end: u64, room: u64) -> Self {
        Self {
            path: path.to_path_buf(),
            kind,
            file,
            mapped: None,
            direct: None,
            end,
            room,
            gather: Vec::new(),
            flight: None,
            copying: None,
        }
    }

    /// Opens what appends go by, once the content is durable. `path` is where the file is now.
    fn prepare(&mut self, path: &Path) -> io::Result<()> {
        match self.kind {
            LogKind::Pmem => self.mapped = Some(Mapped::new(&self.file, self.room as usize)?),
            LogKind::Fdatasync => self.direct = Direct::open(path, self.end),
        }
        Ok(())
    }

    pub fn wants_room(&self) -> bool {
        self.mapped.is_none() && self.room - self.end < ROOM
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
                self.fill(length)?;
                self.file.sync_all()?;
                self.mapped = Some(Mapped::new(&self.file, self.room as usize)?);
                return self.append();
            }
            mapped.write(self.end as usize, &self.gather);
        } else {
            let reach = self.direct.as_ref().map_or(self.gather.len(), |direct| direct.reach(self.gather.len()));
            let reached = self.end + reach as u64;
            if reached > self.room && self.gather.len() < LONG {
                self.fill(end + STEP)?;
            }
            // What is long takes its room as it is written: zeros would be as much to write again.
            self.room = self.room.max(reached);
            let done = match &mut self.direct {
                Some(direct) => direct.append(self.end, &self.gather)?,
                None => false,
            };
            if !done {
                self.direct = None;
                self.file.write_all_at(&self.gather, self.end)?;
                self.file.sync_data()?;
            }
        }
        self.appended();
        Ok(())
    }

    /// What was gathered is durable.
    fn appended(&mut self) {
        self.end += self.gather.len() as u64;
        if let Some(copying) = &mut self.copying {
            copying.since.extend_from_slice(&self.gather);
        }
        self.gather.clear();
    }

    /// Puts a new file in the log's place: after a crash there is one or the other.
    pub fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let new = Self::written(&self.path, self.kind, bytes)?;
        self.take_over(new)
    }

    /// The new file is ready: it gets what the old one got meanwhile, and its place.
    pub fn change_over(&mut self) -> io::Result<()> {
        let Some(Copying { thread, since }) = self.copying.take() else { return Ok(()) };
        let mut new = thread.join().map_err(|_| io::Error::other("the thread that compacts it panicked"))??;
        new.gather = since;
        new.append()?;
        self.take_over(new)
    }

    /// A file beside the log with this content, durable, and with some room: what is appended soon need not change
    /// metadata.
    pub fn written(path: &Path, kind: LogKind, bytes: &[u8]) -> io::Result<Self> {
        let file = options().truncate(true).open(path.with_extension("new"))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        file.write_all_at(bytes, 0)?;
        let length = bytes.len() as u64;
        let mut this = Self::new(path, kind, file, length, length);
        this.fill(length + STEP)?;
        this.file.sync_all()?;
        this.prepare(&path.with_extension("new"))?;
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
