//! Appends past the system's page cache: one write of whole blocks, durable when it returns.
//!
//! Beside a write to the cache and `fdatasync` that is one request to the disk and no work on pages, and writes of several
//! processes go on side by side. The last block, if it is not full, is written again with the next append; what had
//! been durable of it is the same then.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

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
}

impl Direct {
    /// For a file of `end` bytes, and room. `None` where the file system has nothing like it.
    pub fn open(path: &Path, end: u64) -> Option<Self> {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
        let mut this = Self { file, blocks: Vec::new(), shift: 0, tail: end as usize % BLOCK };
        this.resize(this.tail);
        let range = this.shift..this.shift + this.tail;
        File::open(path).ok()?.read_exact_at(&mut this.blocks[range], end - this.tail as u64).ok()?;
        Some(this)
    }

    /// How many bytes an append of so many writes behind the end.
    pub fn reach(&self, bytes: usize) -> usize {
        (self.tail + bytes).next_multiple_of(BLOCK) - self.tail
    }

    /// Appends at `end`, durably. False if that is not possible here; then nothing was written.
    pub fn append(&mut self, end: u64, bytes: &[u8]) -> io::Result<bool> {
        let used = self.tail + bytes.len();
        self.resize(used);
        let whole = used.next_multiple_of(BLOCK);
        let blocks = &mut self.blocks[self.shift..self.shift + whole];
        blocks[self.tail..used].copy_from_slice(bytes);
        blocks[used..].fill(0);
        let (mut written, start) = (0, end - self.tail as u64);
        while written < whole {
            let rest = [IoSlice::new(&blocks[written..])];
            match pwritev2(&self.file, &rest, start + written as u64, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(Errno::INVAL | Errno::OPNOTSUPP) if written == 0 => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        self.tail = used % BLOCK;
        blocks.copy_within(used - self.tail..used, 0);
        Ok(true)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_of_any_length_stand_one_behind_the_other() {
        // Not in memory: that file system may know no direct writes.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut expected = vec![9; 5000];
        std::fs::write(&path, &expected).unwrap();
        let Some(mut direct) = Direct::open(&path, 5000) else { return };
        for (number, length) in [1, 3190, 1, 4095, 4096, 4097, 0, 100_000, 7, 8192, 50].into_iter().enumerate() {
            let bytes = vec![number as u8 + 1; length];
            let (end, reach) = (expected.len(), direct.reach(length));
            if !direct.append(end as u64, &bytes).unwrap() {
                return;
            }
            expected.extend_from_slice(&bytes);
            let content = std::fs::read(&path).unwrap();
            assert_eq!(content.len(), (end + reach).max(end), "append {number}");
            assert!(content[..expected.len()] == expected && content[expected.len()..].iter().all(|&byte| byte == 0));
            if number % 3 == 0 {
                direct = Direct::open(&path, expected.len() as u64).unwrap();
            }
        }
    }
}
