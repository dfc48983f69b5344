//! A capture file, written by a thread of its own.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex};

use crate::sys::start_thread;

/// Bytes that wait for the disk at most; as many may be on their way to it.
const QUEUE: usize = 16 << 20;
/// How long packets gather before they are written, unless the queue is half full before.
const GATHER: Duration = Duration::from_millis(10);
/// Bytes in front of a packet: seconds, nanoseconds, bytes kept, bytes that there were.
const RECORD: usize = 16;
/// Magic number of times in nanoseconds; version 2.4; two words that are zero; the longest packet; the link type, of
/// which 101 is bare IP.
const FILE_HEADER: [u32; 6] = [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 65_535, 101];

/// A file in the classic pcap format, little-endian, with times in nanoseconds and bare IP packets (`LINKTYPE_RAW`):
/// <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>. Clones are handles to the same one.
///
/// What has come stands in the file some hundredths of a second later, whatever becomes of the process. Nobody waits for
/// the disk: packets that come faster than it takes them are counted and left out.
#[derive(Clone)]
pub struct PcapFile(Arc<Handle>);

/// What became of a capture.
#[derive(Clone, Debug)]
pub struct Captured {
    /// The file.
    pub path: PathBuf,
    /// Packets in it.
    pub packets: u64,
    /// Packets left out: the disk was too slow for them, or failed.
    pub lost: u64,
    /// Why nothing was written from some packet on, if so.
    pub failure: Option<String>,
}

impl fmt::Display for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, packets, lost, failure } = self;
        write!(f, "{packets} packets are in {}", path.display())?;
        match (failure, lost) {
            (Some(why), lost) => write!(f, "; {lost} are not: {why}"),
            (None, 0) => Ok(()),
            (None, lost) => write!(f, "; {lost} are not: the disk was too slow for them"),
        }
    }
}

/// Ends the file with its last owner.
struct Handle {
    path: PathBuf,
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<Written>>>,
    captured: Mutex<Option<Captured>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is something to write, or it has become much, or it is the end.
    ready: Condvar,
}

struct Queue {
    bytes: Vec<u8>,
    packets: u64,
    lost: u64,
    ending: bool,
}

/// What the writing thread did.
#[derive(Default)]
struct Written {
    packets: u64,
    lost: u64,
    failure: Option<String>,
}

impl PcapFile {
    /// Makes the file, or empties the one that is there.
    ///
    /// # Errors
    ///
    /// What the file system says; `ResourceBusy` if a process writes a capture there.
    pub fn create(path: &Path) -> io::Result<PcapFile> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process writes its packets there"));
            }
            // There are file systems without locks.
            Err(TryLockError::Error(_)) => {}
        }
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        file.write_all(FILE_HEADER.map(u32::to_le_bytes).as_flattened())?;
        let queue = Queue { bytes: Vec::with_capacity(QUEUE), packets: 0, lost: 0, ending: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), ready: Condvar::new() });
        let for_writer = shared.clone();
        let writer = start_thread("remora-pcap", move || for_writer.write_to(&mut file))?;
        let writer = Mutex::new(Some(writer));
        Ok(PcapFile(Arc::new(Handle { path: path.into(), shared, writer, captured: Mutex::new(None) })))
    }

    /// Writes what is left and ends the file: packets that come later are not counted. Says what became of it.
    pub fn finish(&self) -> Captured {
        self.0.finish()
    }

    /// Adds a packet of `len` bytes, which `write` appends.
    pub(super) fn record(&self, at: SystemTime, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let shared = &self.0.shared;
        let mut queue = shared.queue.lock();
        if queue.ending {
            return;
        }
        let before = queue.bytes.len();
        if before + RECORD + len > QUEUE {
            queue.lost += 1;
            return;
        }
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let len = len as u32;
        // Seconds have 32 bits, which last until 2106.
        let head = [at.as_secs() as u32, at.subsec_nanos(), len, len];
        queue.bytes.extend_from_slice(head.map(u32::to_le_bytes).as_flattened());
        write(&mut queue.bytes);
        queue.packets += 1;
        let is_half_full = before < QUEUE / 2 && queue.bytes.len() >= QUEUE / 2;
        drop(queue);
        if before == 0 || is_half_full {
            shared.ready.notify_one();
        }
    }
}

impl fmt::Debug for PcapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PcapFile").field(&self.0.path).finish()
    }
}

impl Handle {
    fn finish(&self) -> Captured {
        let mut captured = self.captured.lock();
        if let Some(captured) = &*captured {
            return captured.clone();
        }
        self.shared.queue.lock().ending = true;
        self.shared.ready.notify_one();
        let written = self.writer.lock().take().and_then(|writer| writer.join().ok()).unwrap_or_default();
        let lost = written.lost + self.shared.queue.lock().lost;
        let Written { packets, failure, .. } = written;
        captured.insert(Captured { path: self.path.clone(), packets, lost, failure }).clone()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    /// The writing thread.
    fn write_to(&self, file: &mut File) -> Written {
        let mut written = Written::default();
        let mut taken = Vec::with_capacity(QUEUE);
        let mut whole = FILE_HEADER.len() as u64 * 4;
        loop {
            let packets = {
                let mut queue = self.queue.lock();
                self.ready.wait_while(&mut queue, |queue| queue.bytes.is_empty() && !queue.ending);
                let little = |queue: &mut Queue| queue.bytes.len() < QUEUE / 2 && !queue.ending;
                self.ready.wait_while_for(&mut queue, little, GATHER);
                std::mem::swap(&mut queue.bytes, &mut taken);
                std::mem::take(&mut queue.packets)
            };
            if taken.is_empty() {
                return written;
            }
            match written.failure.is_none().then(|| file.write_all(&taken)) {
                Some(Ok(())) => {
                    written.packets += packets;
                    whole += taken.len() as u64;
                }
                Some(Err(e)) => {
                    written.lost += packets;
                    written.failure = Some(e.to_string());
                    // A packet cut short at the end would be malformed.
                    let _ = file.set_len(whole);
                }
                None => written.lost += packets,
            }
            taken.clear();
        }
    }
}
