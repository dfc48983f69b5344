//! A memory region: the part of memory that a key opens, its rights and its address translation.

use crate::buffer::{self, Buffer};
use crate::copy;
use crate::registry::Pd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that one entry of the translation table covers: a huge page, as in StRoM section 4.3.
pub const PAGE_BYTES: usize = 1 << PAGE_SHIFT;
const PAGE_SHIFT: u32 = 21;
const PAGE_MASK: u64 = PAGE_BYTES as u64 - 1;

bitflags::bitflags! {
    /// Rights to a memory region. Reading by its owner is always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The owner's queue pairs may write: RECV, READ responses, atomic results.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may use CMP_SWAP and FETCH_ADD. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// Why an access to a region is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The region is in another protection domain than whoever asks.
    #[error("region belongs to another protection domain")]
    WrongPd,
    /// The region was deregistered.
    #[error("region was deregistered")]
    Revoked,
    /// Some byte of the range lies outside the region, or the range wraps around the end of the address space.
    #[error("range does not lie within the region")]
    OutOfBounds,
    /// The region does not grant this right.
    #[error("region does not grant this access")]
    Denied,
    /// The address of an atomic operation is not a multiple of 8.
    #[error("address of an atomic operation is not a multiple of 8")]
    Misaligned,
}

/// A registered memory region. Made by [`crate::Registry::register`].
///
/// Holding one keeps its memory mapped. After deregistration every access fails with [`AccessError::Revoked`], except
/// those that run at that very moment.
pub struct Region {
    va: u64,
    len: u64,
    /// For each 2 MB page of addresses from the one that holds `va` on, where its first byte is (or would be).
    pages: Box<[*mut u8]>,
    valid: AtomicBool,
    access: Access,
    pd: Pd,
    key: u32,
    /// Keeps what `pages` points to alive.
    _buffers: Box<[Buffer]>,
}

// SAFETY: `pages` point into `_buffers`, which are `Send` and `Sync`, and are used for atomic accesses only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The caller has checked that `pages` covers `len` bytes from `va` on and that `buffers` hold all of them, each
    /// congruent to its address modulo 8.
    pub(crate) fn new(
        key: u32,
        pd: Pd,
        (va, len): (u64, u64),
        access: Access,
        (pages, buffers): (Box<[*mut u8]>, Box<[Buffer]>),
    ) -> Region {
        Region { va, len, pages, valid: AtomicBool::new(true), access, pd, key, _buffers: buffers }
    }

    /// The key, which is both lkey and rkey.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The protection domain.
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// Address of the first byte, as work requests and peers name it.
    pub fn va(&self) -> u64 {
        self.va
    }

    /// Number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "no caller asks whether a region is empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The rights that it grants.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether it is still registered.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.valid.load(Ordering::Acquire)
    }

    pub(crate) fn revoke(&self) {
        self.valid.store(false, Ordering::Release);
    }

    /// Whether `pd` may access `len` bytes at `va` with the rights `need`. For no bytes at all the
    /// address does not matter: such a request names no memory.
    #[inline]
    pub fn check(&self, pd: Pd, va: u64, len: u64, need: Access) -> Result<(), AccessError> {
        if pd != self.pd {
            return Err(AccessError::WrongPd);
        }
        if !self.access.contains(need) {
            return Err(AccessError::Denied);
        }
        self.bounds(va, len)
    }

    /// Copies bytes from `va` on into `out`. Checks bounds and validity, not rights.
    #[inline]
    pub fn read(&self, va: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.bounds(va, out.len() as u64)?;
        let room = (PAGE_BYTES as u64 - (va & PAGE_MASK)) as usize;
        if out.len() <= room {
            if !out.is_empty() {
                // SAFETY: `bounds` checked the range, and it lies in one page.
                unsafe { copy::load(self.pointer(va), out) };
            }
            return Ok(());
        }
        let (head, rest) = out.split_at_mut(room);
        // SAFETY: as above; the rest follows on the next pages.
        unsafe { copy::load(self.pointer(va), head) };
        for (i, part) in rest.chunks_mut(PAGE_BYTES).enumerate() {
            // SAFETY: as above.
            unsafe { copy::load(self.pointer(va + (room + i * PAGE_BYTES) as u64), part) };
        }
        Ok(())
    }

    /// Copies `data` to `va`. Checks bounds and validity, not rights.
    #[inline]
    pub fn write(&self, va: u64, data: &[u8]) -> Result<(), AccessError> {
        self.bounds(va, data.len() as u64)?;
        let room = (PAGE_BYTES as u64 - (va & PAGE_MASK)) as usize;
        if data.len() <= room {
            if !data.is_empty() {
                // SAFETY: `bounds` checked the range, and it lies in one page.
                unsafe { copy::store(self.pointer(va), data) };
            }
            return Ok(());
        }
        let (head, rest) = data.split_at(room);
        // SAFETY: as above; the rest follows on the next pages.
        unsafe { copy::store(self.pointer(va), head) };
        for (i, part) in rest.chunks(PAGE_BYTES).enumerate() {
            // SAFETY: as above.
            unsafe { copy::store(self.pointer(va + (room + i * PAGE_BYTES) as u64), part) };
        }
        Ok(())
    }

    /// Like [`write`](Self::write), for whole cache lines that nobody reads soon: they go past the caches. Others see
    /// them at the latest after [`stream_fence`](crate::stream_fence). Lines that are not whole are written as usual.
    #[inline]
    pub fn write_streamed(&self, va: u64, data: &[u8]) -> Result<(), AccessError> {
        let len = data.len() as u64;
        // Lines do not cross a page border if there is only one page that they lie on.
        let one_page = va & !PAGE_MASK == va.wrapping_add(len.wrapping_sub(1)) & !PAGE_MASK;
        if !one_page || !(va | len).is_multiple_of(64) {
            return self.write(va, data);
        }
        self.bounds(va, len)?;
        let start = self.pointer(va);
        if !start.addr().is_multiple_of(64) {
            return self.write(va, data);
        }
        // SAFETY: `bounds` checked the range, and it lies in one page; address and length are multiples of 64.
        unsafe { copy::stream(start, data) };
        Ok(())
    }

    /// Stores `new` if the word at `va` is `expect`; returns what it was. Checks bounds and validity, not rights.
    pub fn compare_swap(&self, va: u64, expect: u64, new: u64) -> Result<u64, AccessError> {
        let ptr = self.word_at(va)?;
        // SAFETY: `word_at` checked range and alignment.
        Ok(unsafe { buffer::compare_swap(ptr, expect, new) })
    }

    /// Adds `n` to the word at `va`, wrapping; returns what it was. Checks bounds and validity, not rights.
    pub fn fetch_add(&self, va: u64, n: u64) -> Result<u64, AccessError> {
        let ptr = self.word_at(va)?;
        // SAFETY: `word_at` checked range and alignment.
        Ok(unsafe { copy::word(ptr) }.fetch_add(n, Ordering::SeqCst))
    }

    /// Asks the cache for these bytes. A hint: a range outside the region is ignored, and so is what follows the first
    /// page border.
    #[inline]
    pub fn prefetch(&self, va: u64, len: usize) {
        // No check of bounds: within its pages any address is harmless.
        let page = (va >> PAGE_SHIFT).wrapping_sub(self.va >> PAGE_SHIFT) as usize;
        if let Some(start) = self.pages.get(page) {
            let offset = (va & PAGE_MASK) as usize;
            copy::prefetch(start.wrapping_add(offset), len.min(PAGE_BYTES - offset));
        }
    }

    #[inline]
    fn bounds(&self, va: u64, len: u64) -> Result<(), AccessError> {
        // Below the start this wraps to a number that no region is long enough for.
        let offset = va.wrapping_sub(self.va);
        let inside = offset <= self.len && len <= self.len - offset;
        if (inside || len == 0) && self.is_valid() {
            return Ok(());
        }
        Err(if self.is_valid() { AccessError::OutOfBounds } else { AccessError::Revoked })
    }

    fn word_at(&self, va: u64) -> Result<*mut u8, AccessError> {
        self.bounds(va, 8)?;
        if va.is_multiple_of(8) { Ok(self.pointer(va)) } else { Err(AccessError::Misaligned) }
    }

    /// Translates an address that lies within the region.
    #[inline]
    fn pointer(&self, va: u64) -> *mut u8 {
        let page = (va >> PAGE_SHIFT) - (self.va >> PAGE_SHIFT);
        self.pages[page as usize].wrapping_add((va & PAGE_MASK) as usize)
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key opens the region, so it is not shown.
        write!(f, "Region({} bytes at {:#x}, {:?}, {:?})", self.len, self.va, self.pd, self.access)
    }
}
