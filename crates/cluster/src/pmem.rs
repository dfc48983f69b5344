//! A mapped file as persistent memory: stores, then write-back of their cache lines, then a fence.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A file in memory.
pub(super) struct Mapped {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone, and is written through `&mut self` only.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the first `length` bytes, which the file must have: with `MAP_SYNC` where the file system can.
    pub fn new(file: &File, length: usize) -> io::Result<Self> {
        let map = |flags| {
            // SAFETY: a new mapping at an address of the kernel's choice; nobody has it yet.
            unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags, file.as_fd(), 0) }
        };
        let sync = MapFlags::from_bits_retain((libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC) as u32);
        let start = map(sync).or_else(|_| map(MapFlags::SHARED))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { start, length })
    }

    /// Writes `bytes` at `offset`, and waits until they are on their way out of the caches. After an error nobody knows what
    /// of them is durable.
    ///
    /// # Panics
    ///
    /// If that is outside the mapping.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len()).filter(|&end| end <= self.length);
        assert!(end.is_some(), "{} bytes at {offset} in a log of {}", bytes.len(), self.length);
        // SAFETY: inside the mapping, as just checked, which nobody else in this process touches.
        let target = unsafe { self.start.add(offset) };
        // SAFETY: as above; `bytes` is elsewhere.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        write_back(target, bytes.len())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's and ends with it. An error would leave it mapped: no harm.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Writes the cache lines of this range back. These instructions do not fail.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it is a system call that may")]
fn write_back(start: NonNull<u8>, length: usize) -> io::Result<()> {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_clflush, _mm_sfence};
    use std::sync::OnceLock;
    /// Bytes of a cache line.
    const LINE: usize = 64;
    static CLWB: OnceLock<bool> = OnceLock::new();
    // CPUID leaf 7, EBX bit 24.
    let clwb = *CLWB.get_or_init(|| __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx >> 24 & 1 == 1);
    let first = start.as_ptr() as usize / LINE * LINE;
    for line in (first..start.as_ptr() as usize + length).step_by(LINE) {
        if clwb {
            // SAFETY: CLWB exists here, and the line lies in a mapping of ours (mappings are whole pages).
            unsafe { std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
        } else {
            // SAFETY: every x86-64 has CLFLUSH; the line as above.
            unsafe { _mm_clflush(line as *const u8) };
        }
    }
    // SAFETY: every x86-64 has SFENCE.
    unsafe { _mm_sfence() };
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
use write_back_pages as write_back;

/// Writes the pages of this range back, as there is no portable instruction for lines.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn write_back_pages(start: NonNull<u8>, length: usize) -> io::Result<()> {
    let page = rustix::param::page_size();
    let first = start.as_ptr() as usize / page * page;
    let length = start.as_ptr() as usize + length - first;
    // SAFETY: it changes no memory; what is not mapped is an error.
    Ok(unsafe { rustix::mm::msync(first as *mut _, length, rustix::mm::MsyncFlags::SYNC) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_back_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mut mapped = Mapped::new(&file, 8192).unwrap();
        mapped.write(4000, &[7; 200]).unwrap();
        write_back_pages(mapped.start, 8192).unwrap();
        // Nobody has anything at address zero.
        assert!(write_back_pages(NonNull::dangling(), 1).is_err());
    }
}
