//! Appends past the system's page cache: one write of whole blocks, durable when it returns.
//!
//! By io_uring it need not be waited for: [`Direct::begin`] hands the write to the kernel, and [`Direct::landed`] sees,
//! without a system call, whether it is done. Where there is no io_uring, as in many containers, only the other way is
//! left, which waits.
//!
//! Beside a write to the cache and `fdatasync` that is one request to the disk and no work on pages, and writes of several
//! processes go on side by side. The last block, if it is not full, is written again with the next append; what had
//! been durable of it is the same then.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use io_uring::{IoUring, opcode, types};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

/// What offsets, lengths and memory are multiples of, in bytes; no disk asks for more.
const BLOCK: usize = 4096;

/// A file that is appended to, and its last block.
pub(super) struct Direct {
    file: File,
    /// Whole blocks from `shift` on, of which the first begins with the `tail` bytes after the last full one.
    blocks: Vec<u8>,
    shift: usize,
    tail: usize,
    /// How a write is begun without waiting for it, where the kernel allows that.
    ring: Option<IoUring>,
    /// Of the write under way: bytes of the blocks in use with it. Until it is over the blocks are the kernel's.
    flight: Option<usize>,
}

/// How a write is that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landed {
    /// Under way.
    NotYet,
    /// Durable.
    Yes,
    /// It has come to nothing, or to a part: it is to be made again.
    No,
}

impl Direct {
    /// For a file of `end` bytes, and room, that is open past the page cache, and as `cached` by it.
    pub fn new(file: File, cached: &File, end: u64) -> io::Result<Self> {
        let (ring, tail) = (IoUring::new(2).ok(), end as usize % BLOCK);
        let mut this = Self { file, blocks: Vec::new(), shift: 0, tail, ring, flight: None };
        this.resize(this.tail);
        let range = this.shift..this.shift + this.tail;
        cached.read_exact_at(&mut this.blocks[range], end - this.tail as u64)?;
        Ok(this)
    }

    /// How many bytes an append of so many writes behind the end.
    pub fn reach(&self, bytes: usize) -> usize {
        (self.tail + bytes).next_multiple_of(BLOCK) - self.tail
    }

    /// Appends at `end`, durably; nothing may be under way. False if that is not possible here; then nothing was written.
    pub fn append(&mut self, end: u64, bytes: &[u8]) -> io::Result<bool> {
        let used = self.stage(bytes);
        let blocks = &self.blocks[self.shift..self.shift + used.next_multiple_of(BLOCK)];
        let (mut written, start) = (0, end - self.tail as u64);
        while written < blocks.len() {
            let rest = [IoSlice::new(&blocks[written..])];
            match pwritev2(&self.file, &rest, start + written as u64, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(Errno::INVAL | Errno::OPNOTSUPP) if written == 0 => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        self.keep_tail(used);
        Ok(true)
    }

    /// Whether [`Direct::begin`] may work.
    pub fn flies(&self) -> bool {
        self.ring.is_some()
    }

    /// Begins to append at `end`; nothing may be under way. False if that is not possible here; then nothing will be
    /// written.
    pub fn begin(&mut self, end: u64, bytes: &[u8]) -> bool {
        if self.ring.is_none() {
            return false;
        }
        let used = self.stage(bytes);
        let blocks = &self.blocks[self.shift..self.shift + used.next_multiple_of(BLOCK)];
        let write = opcode::Write::new(types::Fd(self.file.as_raw_fd()), blocks.as_ptr(), blocks.len() as u32)
            .offset(end - self.tail as u64)
            .rw_flags(libc::RWF_DSYNC)
            .build();
        let begun = self.ring.as_mut().is_some_and(|ring| {
            // SAFETY: file and blocks live, unmoved and unchanged, until the write is over: all that changes them begins
            // with `landed`, and `drop` waits. What the kernel has not taken goes with the ring, below.
            unsafe { ring.submission().push(&write) }.is_ok() && matches!(ring.submit(), Ok(1))
        });
        if begun {
            self.flight = Some(used);
        } else {
            self.ring = None;
        }
        begun
    }

    /// What has become of the write that was begun. May wait until it is over. It is told once.
    ///
    /// # Errors
    ///
    /// As of a write: nobody knows what is durable of it.
    pub fn landed(&mut self, wait: bool) -> io::Result<Landed> {
        let (Some(used), Some(ring)) = (self.flight, &mut self.ring) else { return Ok(Landed::No) };
        let result = loop {
            if let Some(entry) = ring.completion().next() {
                break entry.result();
            }
            if !wait {
                return Ok(Landed::NotYet);
            }
            match ring.submit_and_wait(1) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
        };
        self.flight = None;
        match -result {
            libc::EINVAL | libc::EOPNOTSUPP => self.ring = None,
            libc::EAGAIN | libc::EINTR => {}
            error @ 1.. => return Err(io::Error::from_raw_os_error(error)),
            written if -written as usize == used.next_multiple_of(BLOCK) => {
                self.keep_tail(used);
                return Ok(Landed::Yes);
            }
            _ => {}
        }
        Ok(Landed::No)
    }

    /// What is written by.
    #[cfg(test)]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// As where there is no io_uring.
    #[cfg(test)]
    pub fn ground(&mut self) {
        self.ring = None;
    }

    /// Has another file written.
    #[cfg(test)]
    pub fn write_to(&mut self, file: File) {
        self.file = file;
    }

    /// Puts what is to be appended behind the tail, and zeros behind it. How many bytes of the blocks are in use then.
    fn stage(&mut self, bytes: &[u8]) -> usize {
        let used = self.tail + bytes.len();
        self.resize(used);
        let blocks = &mut self.blocks[self.shift..self.shift + used.next_multiple_of(BLOCK)];
        blocks[self.tail..used].copy_from_slice(bytes);
        blocks[used..].fill(0);
        used
    }

    /// What is in use has been written: what the next append begins with is put in front.
    fn keep_tail(&mut self, used: usize) {
        self.tail = used % BLOCK;
        let end = self.shift + used;
        self.blocks.copy_within(end - self.tail..end, self.shift);
    }

    /// Makes room for so many bytes, and keeps the tail.
    fn resize(&mut self, bytes: usize) {
        let length = (bytes + 1).next_multiple_of(BLOCK);
        if self.blocks.len() >= self.shift + length {
            return;
        }
        let old = std::mem::replace(&mut self.blocks, vec![0; 2 * length + BLOCK]);
        let tail = old.get(self.shift..self.shift + self.tail).unwrap_or(&[]);
        self.shift = self.blocks.as_ptr().align_offset(BLOCK).min(BLOCK);
        self.blocks[self.shift..self.shift + tail.len()].copy_from_slice(tail);
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        while self.flight.is_some() {
            // The blocks must not go before the kernel is through with them.
            if self.landed(true).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    use super::*;

    fn open(path: &Path, end: u64) -> Option<Direct> {
        let mut options = File::options();
        let file = options.write(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
        Some(Direct::new(file, &File::open(path).unwrap(), end).unwrap())
    }

    #[test]
    fn appends_of_any_length_stand_one_behind_the_other() {
        // Not in memory: that file system may know no direct writes.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut expected = vec![9; 5000];
        std::fs::write(&path, &expected).unwrap();
        let Some(mut direct) = open(&path, 5000) else { return };
        let lengths = [1, 3190, 1, 4095, 4096, 4097, 1, 0, 100_000, 7, 8192, 50, 1, 5000, 1];
        for (number, length) in lengths.into_iter().enumerate() {
            let bytes = vec![number as u8 + 1; length];
            let (end, reach) = (expected.len(), direct.reach(length));
            // Both ways, in turn.
            let begun = number % 2 == 0 && direct.begin(end as u64, &bytes);
            let done = begun && direct.landed(true).unwrap() == Landed::Yes;
            if !done && !direct.append(end as u64, &bytes).unwrap() {
                return;
            }
            expected.extend_from_slice(&bytes);
            let content = std::fs::read(&path).unwrap();
            assert_eq!(content.len(), (end + reach).max(end), "append {number}");
            assert!(content[..expected.len()] == expected && content[expected.len()..].iter().all(|&byte| byte == 0));
            if number % 3 == 0 {
                direct = open(&path, expected.len() as u64).unwrap();
            }
        }
    }
}
