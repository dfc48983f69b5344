//! Runs of shared bytes and where they come from.

use crate::copy;
use crate::loan::{Lendable, SEALS, TERM_BYTES};
use crate::region::AccessError;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of a small page, to which mappings are rounded up.
pub(crate) const SMALL_PAGE: usize = 4096;
/// The file system of memory files with ordinary pages (`TMPFS_MAGIC`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
/// Bytes of a huge page.
const HUGE_PAGE: usize = crate::PAGE_BYTES;

/// Bytes that peers may read and write at any time; see the crate's documentation for what that means.
///
/// Clones share the bytes, which live until the last clone and the last region over them are gone.
#[derive(Clone)]
pub struct Buffer(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    /// Start of the bytes. Every aligned word that overlaps them is valid for atomic access while `owner` lives.
    ptr: NonNull<u8>,
    len: usize,
    page_kind: PageKind,
    owner: Owner,
}

enum Owner {
    /// A mapping of this many bytes from `ptr` on, of memory that nobody else maps.
    Anonymous(usize),
    /// A mapping of this many bytes from `ptr` on.
    Mapping(usize),
    /// A mapping of so many bytes from `ptr` on and of the term behind them, which other processes may be lent.
    Lendable(usize, Lendable),
    /// Whatever keeps the memory alive.
    Other(#[allow(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>),
}

// SAFETY: the pointer is used for atomic accesses only, and what it points to lives as long as `Inner`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The pages under a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Explicit huge pages of 2 MB, reserved by the system's administrator.
    Huge,
    /// Ordinary pages which the kernel was asked to back with huge ones where it can.
    Transparent,
    /// Ordinary pages, or memory of the caller, of which nothing is known.
    Small,
}

/// The range does not lie within the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie within a buffer of {size} bytes")]
pub struct OutOfBounds {
    /// First byte asked for.
    pub offset: usize,
    /// Number of bytes asked for.
    pub len: usize,
    /// Bytes in the buffer.
    pub size: usize,
}

impl Buffer {
    /// Maps `len` zeroed bytes, on huge pages where the system has them.
    pub fn anonymous(len: usize) -> io::Result<Buffer> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        if len >= HUGE_PAGE {
            let size = round_up(len, HUGE_PAGE)?;
            let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            let nowhere = std::ptr::null_mut();
            // SAFETY: a fresh mapping at an address of the kernel's choice disturbs no other memory.
            let mapped = unsafe { rustix::mm::mmap_anonymous(nowhere, size, prot, flags) };
            if let Ok(ptr) = mapped {
                return Ok(Buffer::mapping(ptr.cast(), len, Owner::Anonymous(size), PageKind::Huge));
            }
        }
        Buffer::ordinary(len, MapFlags::PRIVATE)
    }

    /// Maps `len` zeroed bytes of which the system is to set aside none before they are touched: for memory that grows,
    /// as long as it may ever be.
    pub fn reserved(len: usize) -> io::Result<Buffer> {
        Buffer::ordinary(len, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn ordinary(len: usize, flags: MapFlags) -> io::Result<Buffer> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // Room to begin on a 2 MB border, without which the kernel has no place for huge pages.
        let slack = if len >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let size = round_up(len, SMALL_PAGE)?;
        let total = size.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), total, prot, flags)? };
        let skip = if slack > 0 { start.addr().next_multiple_of(HUGE_PAGE) - start.addr() } else { 0 };
        let ptr = start.wrapping_byte_add(skip);
        for (ptr, len) in [(start, skip), (ptr.wrapping_byte_add(size), slack - skip)] {
            if len > 0 {
                // SAFETY: the slack on either side belongs to this fresh mapping and nobody has seen it.
                unsafe { rustix::mm::munmap(ptr, len)? };
            }
        }
        Ok(Buffer::mapping(ptr.cast(), len, Owner::Anonymous(size), advise_huge(ptr, size)))
    }

    /// Maps `len` zeroed bytes that processes on this host may be lent, to read them where they are; or, where the system does not
    /// allow that, as [`anonymous`](Self::anonymous).
    pub fn lendable(len: usize) -> io::Result<Buffer> {
        Buffer::in_file(len).or_else(|_| Buffer::anonymous(len))
    }

    fn in_file(len: usize) -> io::Result<Buffer> {
        let data = round_up(len, SMALL_PAGE)?;
        let size = data.checked_add(TERM_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = rustix::fs::memfd_create("remora-lent", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, size as u64)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the seals keep its pages from going away.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, &file, 0)? };
        // From here on nobody can map it to write to it.
        let sealed = rustix::fs::fcntl_add_seals(&file, SEALS);
        let kind = advise_huge(ptr, data);
        let buffer = Buffer::mapping(ptr.cast(), len, Owner::Lendable(data, Lendable::new(file)), kind);
        sealed?;
        // No two buffers ever have the same term, so that a reference to one is never taken for one to another.
        let first = buffer.0.lendable().map_or(0, |lendable| lendable.id << 32);
        buffer.term_word().inspect(|word| word.store(first, Ordering::Release));
        Ok(buffer)
    }

    /// The memory file of a lendable buffer: its bytes, and a page that holds its term. See [`View::map`](crate::View::map).
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.lendable()?.file.as_fd())
    }

    fn term_word(&self) -> Option<&AtomicU64> {
        let Owner::Lendable(data, _) = &self.0.owner else { return None };
        // SAFETY: the page behind the bytes is mapped as long as the buffer lives, and only accessed so.
        Some(unsafe { copy::word(self.0.ptr.as_ptr().wrapping_add(*data)) })
    }

    /// The term that runs: who sees a new one sees what its beginning was for.
    #[inline]
    pub(crate) fn term(&self) -> u64 {
        self.term_word().map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Begins a new term: whoever reads bytes that were named before finds out, before this thread's later writes show. Nothing
    /// for a buffer that is not lendable.
    pub fn end_term(&self) {
        if let Some(word) = self.term_word() {
            word.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// Maps `len` zeroed bytes that another process can map too, given the descriptor (see [`Buffer::map_fd`]).
    pub fn shared(len: usize) -> io::Result<(Buffer, OwnedFd)> {
        let fd = rustix::fs::memfd_create("remora", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, round_up(len, SMALL_PAGE)? as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Buffer::map_fd(&fd, len)?, fd))
    }

    /// Maps the first `len` bytes of a memory file, as [`Buffer::shared`] makes one.
    ///
    /// A file that is not sealed against shrinking is refused: its owner could cut it short and so kill every process
    /// that touches the mapping afterwards. A hole that is punched into it does not: the next access finds a new page. So a
    /// file of huge pages is refused too, of which there may be no new one.
    pub fn map_fd(fd: impl AsFd, len: usize) -> io::Result<Buffer> {
        let size = round_up(len, SMALL_PAGE)?;
        check_file(&fd, size)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the seal keeps its pages from going away.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, fd, 0)? };
        Ok(Buffer::mapping(ptr.cast(), len, Owner::Mapping(size), advise_huge(ptr, size)))
    }

    /// A buffer with the contents of `bytes`, moved to memory that is aligned to words.
    #[allow(clippy::boxed_local, reason = "the bytes become the buffer's own")]
    pub fn from_boxed(bytes: Box<[u8]>) -> Buffer {
        let len = bytes.len();
        let mut words = vec![0u64; len.div_ceil(8)].into_boxed_slice();
        for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(whole);
        }
        let words = OwnedWords(NonNull::from(Box::leak(words)));
        // SAFETY: whole words, which `OwnedWords` keeps alive and nobody else knows.
        unsafe { Buffer::from_raw(words.0.cast(), len, Box::new(words)) }
    }

    /// A buffer over the caller's memory, which stays where it is until `owner` is dropped.
    ///
    /// # Safety
    /// Until `owner` is dropped, every aligned 8-byte word that overlaps `len` bytes at `ptr` must be valid for reads
    /// (and writes, if anything writes through the buffer or a region over it), and all of this program's accesses to
    /// those words must be atomic and of 8 bytes. Bytes of the first and last word outside the range keep their values.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize, owner: Box<dyn Any + Send + Sync>) -> Buffer {
        Buffer(Arc::new(Inner { ptr, len, page_kind: PageKind::Small, owner: Owner::Other(owner) }))
    }

    fn mapping(ptr: *mut u8, len: usize, owner: Owner, page_kind: PageKind) -> Buffer {
        let ptr = NonNull::new(ptr).expect("the kernel never maps address 0 unless asked to");
        Buffer(Arc::new(Inner { ptr, len, page_kind, owner }))
    }

    /// Gives the system back what is under some bytes, from a multiple of 2 MB on: they are zero when they are next
    /// touched. So large memory can be given up step by step. Nothing for memory that [`Buffer::anonymous`] did not map.
    pub fn discard(&self, offset: usize, len: usize) {
        let Owner::Anonymous(size) = self.0.owner else { return };
        let end = offset.saturating_add(len).next_multiple_of(SMALL_PAGE).min(size);
        if !offset.is_multiple_of(HUGE_PAGE) || offset >= end {
            return;
        }
        let start = self.0.ptr.as_ptr().wrapping_add(offset).cast();
        // SAFETY: pages of a mapping of our own, whose bytes may change at any time. What fails is only not given back.
        let _ = unsafe { rustix::mm::madvise(start, end - offset, Advice::LinuxDontNeed) };
    }

    /// Number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "no caller asks whether a buffer is empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Address of the first byte in this process.
    pub fn addr(&self) -> u64 {
        self.0.ptr.addr().get() as u64
    }

    /// The pages under the bytes.
    pub fn page_kind(&self) -> PageKind {
        self.0.page_kind
    }

    /// Copies bytes from `offset` on into `out`.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let ptr = self.at(offset, out.len())?;
        // SAFETY: `at` checked the range, whose words are valid as `Inner` says.
        unsafe { copy::load(ptr, out) };
        Ok(())
    }

    /// Copies `data` to `offset`.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let ptr = self.at(offset, data.len())?;
        // SAFETY: `at` checked the range, whose words are valid as `Inner` says.
        unsafe { copy::store(ptr, data) };
        Ok(())
    }

    /// As [`write`](Self::write), where others look only later: in whatever order and pieces is quickest. Who looks all the same
    /// sees any mix of old and new bytes.
    #[inline]
    pub fn put(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        let ptr = self.at(offset, data.len())?;
        // SAFETY: `at` checked the range, whose words are valid as `Inner` says.
        unsafe { copy::put(ptr, data) };
        Ok(())
    }

    /// Sets `len` bytes from `offset` on to `byte`, in increasing address order.
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), OutOfBounds> {
        let ptr = self.at(offset, len)?;
        // SAFETY: `at` checked the range, whose words are valid as `Inner` says.
        unsafe { copy::fill(ptr, len, byte) };
        Ok(())
    }

    /// Loads the word at `offset` with `Acquire`. Its address must be a multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, AccessError> {
        let ptr = self.word_at(offset)?;
        // SAFETY: `word_at` checked range and alignment.
        Ok(unsafe { copy::word(ptr) }.load(Ordering::Acquire))
    }

    /// The same in the one order that [`compare_swap`](Self::compare_swap) and [`fetch_add`](Self::fetch_add) have: who changes one
    /// word and looks at another sees it, or is seen by who does so the other way round.
    #[inline]
    pub fn load_ordered(&self, offset: usize) -> Result<u64, AccessError> {
        let ptr = self.word_at(offset)?;
        // SAFETY: `word_at` checked range and alignment.
        Ok(unsafe { copy::word(ptr) }.load(Ordering::SeqCst))
    }

    /// Stores the word at `offset` with `Release`. Its address must be a multiple of 8.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), AccessError> {
        let ptr = self.word_at(offset)?;
        // SAFETY: `word_at` checked range and alignment.
        unsafe { copy::word(ptr) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Stores `new` if the word at `offset` is `expect`; returns what it was. Its address must be a multiple of 8.
    #[inline]
    pub fn compare_swap(&self, offset: usize, expect: u64, new: u64) -> Result<u64, AccessError> {
        let ptr = self.word_at(offset)?;
        // SAFETY: `word_at` checked range and alignment.
        Ok(unsafe { compare_swap(ptr, expect, new) })
    }

    /// Adds `n` to the word at `offset`, wrapping; returns what it was. Its address must be a multiple of 8.
    #[inline]
    pub fn fetch_add(&self, offset: usize, n: u64) -> Result<u64, AccessError> {
        let ptr = self.word_at(offset)?;
        // SAFETY: `word_at` checked range and alignment.
        Ok(unsafe { copy::word(ptr) }.fetch_add(n, Ordering::SeqCst))
    }

    /// Copies bytes from `offset` on into `out`, where nobody is to write any more: unlike [`read`](Self::read) in
    /// whatever order and pieces is quickest. If somebody writes all the same, any mix of old and new bytes comes out.
    #[inline]
    pub fn take(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let ptr = self.at(offset, out.len())?;
        // SAFETY: the bytes are in the buffer.
        unsafe { copy::take(ptr, out) };
        Ok(())
    }

    /// Asks the cache for these bytes. A hint: a range outside the buffer is ignored.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize) {
        if let Ok(ptr) = self.at(offset, len) {
            copy::prefetch(ptr, len);
        }
    }

    /// Asks for the lines of these bytes, which are to be written soon. A hint: a range outside the buffer is ignored.
    #[inline]
    pub fn claim(&self, offset: usize, len: usize) {
        if let Ok(ptr) = self.at(offset, len) {
            copy::claim(ptr, len);
        }
    }

    /// Where `len` bytes at `offset` begin, if all of them lie within the buffer.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        if offset > self.0.len || len > self.0.len - offset {
            return Err(OutOfBounds { offset, len, size: self.0.len });
        }
        Ok(self.0.ptr.as_ptr().wrapping_add(offset))
    }

    #[inline]
    fn word_at(&self, offset: usize) -> Result<*mut u8, AccessError> {
        let ptr = self.at(offset, 8).map_err(|_| AccessError::OutOfBounds)?;
        if ptr.cast::<u64>().is_aligned() { Ok(ptr) } else { Err(AccessError::Misaligned) }
    }
}

impl Inner {
    pub(crate) fn lendable(&self) -> Option<&Lendable> {
        match &self.owner {
            Owner::Lendable(_, lendable) => Some(lendable),
            _ => None,
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x}, {:?} pages)", self.len(), self.addr(), self.page_kind())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mapped = match self.owner {
            Owner::Anonymous(size) | Owner::Mapping(size) => Some(size),
            Owner::Lendable(size, _) => Some(size + TERM_BYTES),
            Owner::Other(_) => None,
        };
        if let Some(size) = mapped {
            // SAFETY: the mapping is this buffer's own and, with the last clone, unused. Failing would only leak it.
            let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), size) };
        }
    }
}

/// # Safety
/// As for [`copy::word`], for writes too.
#[inline]
pub(crate) unsafe fn compare_swap(ptr: *mut u8, expect: u64, new: u64) -> u64 {
    // SAFETY: as the caller promises.
    let word = unsafe { copy::word(ptr) };
    match word.compare_exchange(expect, new, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(old) | Err(old) => old,
    }
}

/// Words of a leaked box, freed on drop.
struct OwnedWords(NonNull<[u64]>);

// SAFETY: the words are accessed atomically only, through the buffer that this owns them for.
unsafe impl Send for OwnedWords {}
// SAFETY: as above.
unsafe impl Sync for OwnedWords {}

impl Drop for OwnedWords {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `Buffer::from_boxed`, and given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

fn advise_huge(ptr: *mut std::ffi::c_void, size: usize) -> PageKind {
    // SAFETY: advice on a mapping that is the caller's own changes no byte of it.
    let advised = size >= HUGE_PAGE && unsafe { rustix::mm::madvise(ptr, size, Advice::LinuxHugepage) }.is_ok();
    if advised { PageKind::Transparent } else { PageKind::Small }
}

/// Whether the first `size` bytes of a memory file of somebody else's can be mapped without harm.
pub(crate) fn check_file(fd: impl AsFd, size: usize) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
        return refuse("memory file is not sealed against shrinking; add F_SEAL_SHRINK before sharing it".into());
    }
    if rustix::fs::fstatfs(&fd)?.f_type != TMPFS {
        return refuse("memory file is not of ordinary pages, so that it may run out of them".into());
    }
    let has = rustix::fs::fstat(&fd)?.st_size;
    if u64::try_from(has).unwrap_or(0) < size as u64 {
        return refuse(format!("memory file has {has} bytes, which is less than the {size} to map"));
    }
    Ok(())
}

pub(crate) fn round_up(len: usize, page: usize) -> io::Result<usize> {
    match len.checked_next_multiple_of(page) {
        Some(size @ 1..=0x7fff_ffff_ffff_0000) => Ok(size),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("cannot map {len} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn mappings_are_zeroed_and_bounded() {
        for len in [1, 4096, 4097, HUGE_PAGE, HUGE_PAGE + 1, 5 * HUGE_PAGE] {
            let buffer = Buffer::anonymous(len).unwrap();
            let mut bytes = vec![1; len];
            buffer.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&b| b == 0));
            assert_eq!(buffer.len(), len);
            if len >= HUGE_PAGE {
                assert_eq!(buffer.addr() % HUGE_PAGE as u64, 0);
            }
            buffer.write(len - 1, &[7]).unwrap();
            assert_eq!(buffer.write(len, &[7]), Err(OutOfBounds { offset: len, len: 1, size: len }));
            assert!(buffer.read(usize::MAX, &mut [0; 2]).is_err());
        }
        assert!(Buffer::anonymous(0).is_err());
        assert!(Buffer::anonymous(usize::MAX - 5).is_err());
    }

    /// Whatever way is quickest for so many bytes, those and no others are copied.
    #[test]
    fn what_is_put_and_taken_is_what_was_given() {
        let buffer = Buffer::from_boxed(vec![0xaa; 512].into());
        let data: Vec<u8> = (0..300u32).map(|n| (n * 7 + 1) as u8).collect();
        for (offset, len) in
            (0..17).flat_map(|offset| [0, 1, 7, 8, 63, 64, 65, 96, 127, 128, 129, 200, 300].map(|len| (offset, len)))
        {
            buffer.fill(0, 512, 0xaa).unwrap();
            buffer.put(offset, &data[..len]).unwrap();
            let (mut all, mut taken) = ([0; 512], vec![0; len]);
            buffer.read(0, &mut all).unwrap();
            assert!(all[offset..offset + len] == data[..len]);
            assert!(all[..offset].iter().chain(&all[offset + len..]).all(|byte| *byte == 0xaa), "{offset}, {len}");
            buffer.take(offset, &mut taken).unwrap();
            assert_eq!(taken, data[..len]);
        }
        assert!(buffer.put(512, &[1]).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn memory_is_given_up_piece_by_piece() {
        let buffer = Buffer::anonymous(3 * HUGE_PAGE + 5).unwrap();
        let ends = [0, HUGE_PAGE - 1, HUGE_PAGE, 2 * HUGE_PAGE - 1, 2 * HUGE_PAGE, 3 * HUGE_PAGE + 4];
        let bytes = || {
            ends.map(|at| {
                let mut byte = [0];
                buffer.read(at, &mut byte).map(|()| byte[0])
            })
        };
        ends.iter().for_each(|&at| buffer.write(at, &[7]).unwrap());
        buffer.discard(HUGE_PAGE, HUGE_PAGE);
        assert_eq!(bytes(), [7, 7, 0, 0, 7, 7].map(Ok));
        buffer.discard(4096, HUGE_PAGE);
        buffer.discard(4 * HUGE_PAGE, HUGE_PAGE);
        assert_eq!(bytes(), [7, 7, 0, 0, 7, 7].map(Ok), "no border, no memory");
        buffer.discard(2 * HUGE_PAGE, 2 * HUGE_PAGE);
        assert_eq!(bytes(), [7, 7, 0, 0, 0, 0].map(Ok));
        let (shared, _fd) = Buffer::shared(HUGE_PAGE).unwrap();
        shared.write(0, &[7]).unwrap();
        shared.discard(0, HUGE_PAGE);
        let mut byte = [0];
        shared.read(0, &mut byte).unwrap();
        assert_eq!(byte, [7], "another process may have it");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn shared_memory_has_two_views() {
        let (ours, fd) = Buffer::shared(10_000).unwrap();
        let theirs = Buffer::map_fd(&fd, 10_000).unwrap();
        assert_ne!(ours.addr(), theirs.addr());
        ours.write(9_990, b"both see it").unwrap_err();
        ours.write(9_980, b"both see it").unwrap();
        let mut seen = [0; 11];
        theirs.read(9_980, &mut seen).unwrap();
        assert_eq!(&seen, b"both see it");
        assert!(Buffer::map_fd(&fd, 20_000).is_err(), "beyond the end");
        drop(ours);
        theirs.fill(0, 10_000, 9).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn files_that_may_shrink_are_refused() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(Buffer::map_fd(&fd, 4096).unwrap_err().to_string().contains("F_SEAL_SHRINK"));
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        Buffer::map_fd(&fd, 4096).unwrap();
    }

    /// Nobody who shares it can take a page away: a hole reads as zeros and can be written.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn a_hole_that_a_peer_punches_is_zeros() {
        let (buffer, fd) = Buffer::shared(4 * SMALL_PAGE).unwrap();
        buffer.fill(0, 4 * SMALL_PAGE, 7).unwrap();
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&fd, hole, 0, 3 * SMALL_PAGE as u64).unwrap();
        let mut bytes = vec![1; 4 * SMALL_PAGE];
        buffer.read(0, &mut bytes).unwrap();
        assert!(bytes[..3 * SMALL_PAGE].iter().all(|&byte| byte == 0) && bytes[3 * SMALL_PAGE..] == [7; SMALL_PAGE]);
        rustix::fs::fallocate(&fd, hole, 0, 3 * SMALL_PAGE as u64).unwrap();
        buffer.fill(0, 4 * SMALL_PAGE, 9).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "it cannot shrink");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn files_of_huge_pages_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // Not every kernel has them, and none need be free.
        let Ok(fd) = rustix::fs::memfd_create("test", flags) else { return };
        rustix::fs::ftruncate(&fd, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(Buffer::map_fd(&fd, 4096).unwrap_err().to_string().contains("ordinary pages"));
    }

    #[test]
    fn words_are_atomic_and_aligned() {
        let buffer = Buffer::from_boxed((0..20).collect());
        assert_eq!(buffer.load_u64(8), Ok(u64::from_ne_bytes([8, 9, 10, 11, 12, 13, 14, 15])));
        assert_eq!(buffer.load_u64(4), Err(AccessError::Misaligned));
        assert_eq!(buffer.load_u64(16), Err(AccessError::OutOfBounds));
        buffer.store_u64(8, 5).unwrap();
        assert_eq!(buffer.compare_swap(8, 4, 9), Ok(5));
        assert_eq!(buffer.compare_swap(8, 5, u64::MAX), Ok(5));
        assert_eq!(buffer.fetch_add(8, 2), Ok(u64::MAX));
        assert_eq!(buffer.load_u64(8), Ok(1));
        buffer.fill(1, 18, 0xEE).unwrap();
        let mut bytes = [0; 20];
        buffer.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, *[&[0][..], &[0xEE; 18], &[19]].concat());
    }

    #[test]
    fn fill_sets_its_range_and_nothing_else() {
        let buffer = Buffer::from_boxed(vec![1; 1200].into());
        let lens: &[usize] =
            if cfg!(miri) { &[0, 7, 8, 505] } else { &[0, 1, 7, 8, 64, 120, 504, 505, 512, 520, 1100] };
        for offset in [0, 3, 8] {
            for &len in lens {
                buffer.fill(0, 1200, 1).unwrap();
                buffer.fill(offset, len, 2).unwrap();
                let mut bytes = [0; 1200];
                buffer.read(0, &mut bytes).unwrap();
                let expected: Vec<u8> =
                    (0..1200).map(|at| 1 + u8::from((offset..offset + len).contains(&at))).collect();
                assert_eq!(bytes[..], expected[..], "{len} bytes at {offset}");
            }
        }
        assert!(buffer.fill(1199, 2, 0).is_err() && buffer.fill(1201, 0, 0).is_err());
    }

    #[test]
    fn callers_memory_outlives_the_buffer() {
        struct Told(Arc<std::sync::atomic::AtomicBool>);
        impl Drop for Told {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let dropped = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let words: Arc<[std::sync::atomic::AtomicU64; 2]> = Arc::default();
        let ptr = NonNull::new(words.as_ptr().cast_mut().cast()).unwrap();
        // SAFETY: whole words, atomic, kept alive beside the buffer.
        let buffer = unsafe { Buffer::from_raw(ptr, 16, Box::new((words.clone(), Told(dropped.clone())))) };
        let other = buffer.clone();
        buffer.write(0, &[1]).unwrap();
        drop(buffer);
        assert!(!dropped.load(Ordering::SeqCst));
        drop(other);
        assert!(dropped.load(Ordering::SeqCst));
        assert_eq!(words[0].load(Ordering::SeqCst).to_ne_bytes()[0], 1);
    }
}
