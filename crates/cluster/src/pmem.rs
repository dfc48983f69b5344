//! A mapped file as persistent memory: stores, then write-back of their cache lines, then a fence.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a cache line.
const LINE: usize = 64;

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

    /// Writes `bytes` at `offset`, and waits until they are on their way out of the caches.
    ///
    /// # Panics
    ///
    /// If that is outside the mapping.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len()).filter(|&end| end <= self.length);
        assert!(end.is_some(), "{} bytes at {offset} in a log of {}", bytes.len(), self.length);
        // SAFETY: inside the mapping, as just checked, which nobody else in this process touches.
        let target = unsafe { self.start.add(offset) };
        // SAFETY: as above; `bytes` is elsewhere.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        write_back(target, bytes.len());
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's and ends with it. An error would leave it mapped: no harm.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Writes the cache lines of this range back.
#[cfg(target_arch = "x86_64")]
fn write_back(start: NonNull<u8>, length: usize) {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_clflush, _mm_sfence};
    use std::sync::OnceLock;
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
}

/// Writes the pages of this range back, as there is no portable instruction for lines.
#[cfg(not(target_arch = "x86_64"))]
fn write_back(start: NonNull<u8>, length: usize) {
    let page = rustix::param::page_size();
    let first = start.as_ptr() as usize / page * page;
    let length = start.as_ptr() as usize + length - first;
    // SAFETY: whole pages of a mapping of ours.
    let _ = unsafe { rustix::mm::msync(first as *mut _, length, rustix::mm::MsyncFlags::SYNC) };
}
