//! A memory region: the part of memory that a key opens, its rights and its address translation.

use crate::buffer::{self, Buffer};
use crate::copy;
use crate::loan::{Place, View};
use crate::registry::Pd;
use crate::words::{Words, WordsMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// A work request, or a SEND with invalidate of a peer, may take its key away.
        const INVALIDATE = 1 << 5;
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

/// A registered memory region, or what a memory window is bound to. Made by [`crate::Registry::register`].
///
/// Holding one keeps its memory mapped. After deregistration every access fails with [`AccessError::Revoked`], except
/// those that run at that very moment.
pub struct Region {
    va: u64,
    len: AtomicU64,
    growth: Option<Growth>,
    map: Map,
    valid: AtomicBool,
    /// Until when peers may READ it; [`NO_LEASE`]: for as long as it is valid.
    lease: AtomicU64,
    access: Access,
    pd: Pd,
    key: u32,
}

/// Of a region that may get longer: how long at most, and who is asked whether it may, by its key, to be so long.
pub(crate) struct Growth {
    pub room: u64,
    pub may: Box<dyn Fn(u32, u64) -> bool + Send + Sync>,
}

/// Of a region that is not under a lease.
const NO_LEASE: u64 = u64::MAX;

/// Where the bytes are.
enum Map {
    /// One run of bytes; the pointer is that of the first. However long, it takes no table.
    Linear(*mut u8, #[allow(dead_code, reason = "keeps the bytes alive")] Buffer),
    /// For each 2 MB page of addresses from the one that holds `va` on, where its first byte is (or would be).
    Pages(Box<[*mut u8]>, #[allow(dead_code, reason = "keeps the bytes alive")] Box<[Buffer]>),
    /// A window on another region, whose addresses are greater by this (wrapping).
    Window(Arc<Region>, u64),
}

/// A region's memory, checked: it covers the region's range and, but for zero-based regions, each byte is congruent to
/// its address modulo 8.
pub(crate) enum Memory {
    /// From this byte of the buffer on.
    Linear(*mut u8, Buffer),
    /// The first bytes of each 2 MB page of addresses, which may lie before the region's first.
    Pages(Box<[*mut u8]>, Box<[Buffer]>),
    /// The range of another region that begins at this address.
    Window(Arc<Region>, u64),
}

// SAFETY: the pointers go into buffers that are held beside them, which are `Send` and `Sync`, and are used for atomic
// accesses only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(key: u32, pd: Pd, (va, len): (u64, u64), access: Access, memory: Memory) -> Region {
        let map = match memory {
            Memory::Linear(start, buffer) => Map::Linear(start, buffer),
            Memory::Pages(pages, buffers) => Map::Pages(pages, buffers),
            Memory::Window(region, at) => Map::Window(region, at.wrapping_sub(va)),
        };
        let (len, valid, lease) = (AtomicU64::new(len), AtomicBool::new(true), AtomicU64::new(NO_LEASE));
        let region = Region { va, len, growth: None, map, valid, lease, access, pd, key };
        if let Some(lendable) = region.whole().and_then(|buffer| buffer.0.lendable()) {
            lendable.regions.fetch_add(1, Ordering::Relaxed);
        }
        region
    }

    /// The region, as one that may [grow](Self::grow).
    pub(crate) fn growing(mut self, growth: Growth) -> Region {
        self.growth = Some(growth);
        self
    }

    /// A region of no bytes, with all rights, in `pd`: for accesses that move none, whatever key they name.
    pub fn nothing(pd: Pd) -> Region {
        Region::new(0, pd, (0, 0), Access::all(), Memory::Pages(Box::default(), Box::default()))
    }

    /// Whether this is what a memory window is bound to. A window is for peers alone: its key is no lkey.
    pub fn is_window(&self) -> bool {
        matches!(self.map, Map::Window(..))
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
    #[inline]
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Whether it has so many bytes, once it has grown to them if it [may](crate::Registry::register_growing): what is
    /// new of it is zero. Address and key stay, and so does whatever lies in it.
    pub fn grow(&self, len: u64) -> bool {
        if self.len() < len {
            let may = |growth: &&Growth| len <= growth.room && self.is_valid() && (growth.may)(self.key, len);
            if self.growth.as_ref().filter(may).is_none() {
                return false;
            }
            self.len.fetch_max(len, Ordering::AcqRel);
        }
        true
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

    /// From now on peers may READ it until this time (ns, by the clock of the engine that carries out their verbs) and no longer,
    /// unless this is called again: what it holds is true for as long as its owner has a lease. Before the first call
    /// it is under none. A lease is about READs of peers alone, and belongs to this registration: [`Registry::reregister`] makes
    /// a region without one.
    ///
    /// [`Registry::reregister`]: crate::Registry::reregister
    pub fn lease_until(&self, until: u64) {
        // The greatest time stands for no lease at all.
        self.lease.store(until.min(NO_LEASE - 1), Ordering::Release);
    }

    /// Until when peers may READ it, if it is under a lease, or is a window on a region that is.
    #[inline]
    pub fn lease(&self) -> Option<u64> {
        let until = match &self.map {
            // A window on it is a way to the same bytes.
            Map::Window(region, _) => &region.lease,
            _ => &self.lease,
        };
        let until = until.load(Ordering::Acquire);
        (until != NO_LEASE).then_some(until)
    }

    /// The memory, for another region over it.
    pub(crate) fn memory(&self) -> Memory {
        match &self.map {
            Map::Linear(start, buffer) => Memory::Linear(*start, buffer.clone()),
            Map::Pages(pages, buffers) => Memory::Pages(pages.clone(), buffers.clone()),
            Map::Window(region, shift) => Memory::Window(region.clone(), self.va.wrapping_add(*shift)),
        }
    }

    pub(crate) fn revoke(&self) {
        if !self.valid.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Some(buffer) = self.whole()
            && let Some(lendable) = buffer.0.lendable()
        {
            lendable.regions.fetch_sub(1, Ordering::Relaxed);
        }
        self.end_term();
    }

    /// The buffer that this region is all of.
    fn whole(&self) -> Option<&Buffer> {
        match &self.map {
            Map::Linear(_, buffer) if self.len() == buffer.len() as u64 => Some(buffer),
            _ => None,
        }
    }

    /// Where in a lendable buffer a range is. `None` unless the region is all of that buffer: a peer that is lent it sees no
    /// byte that was not registered. Checks bounds and validity, not rights.
    #[inline]
    pub fn place(&self, va: u64, len: usize) -> Option<Place<'_>> {
        let buffer = self.whole().filter(|buffer| buffer.0.lendable().is_some())?;
        // Before the region is found to be there: whoever takes it away then ends this term, or one before.
        let term = buffer.term();
        self.bounds(va, len as u64).ok()?;
        Some(Place { buffer, offset: va.wrapping_sub(self.va) as usize, term })
    }

    /// What peers were told of this region's bytes holds no longer: see [`Buffer::end_term`].
    pub fn end_term(&self) {
        match &self.map {
            Map::Linear(_, buffer) => buffer.end_term(),
            Map::Pages(_, buffers) => buffers.iter().for_each(Buffer::end_term),
            Map::Window(..) => {}
        }
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

    /// As [`check`](Self::check) of a read that comes soon, and asks the cache for its first `most` bytes.
    #[inline(always)]
    pub fn ask(&self, (pd, need): (Pd, Access), va: u64, len: usize, most: usize) -> Result<(), AccessError> {
        self.check(pd, va, len as u64, need)?;
        let len = len.min(most);
        if len > 0 {
            let (ptr, room) = self.run(va);
            copy::prefetch(ptr, len.min(room));
        }
        Ok(())
    }

    /// Copies bytes from `va` on into `out`. Checks bounds and validity, not rights.
    #[inline]
    pub fn read(&self, va: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.bounds(va, out.len() as u64)?;
        if let Map::Linear(start, _) = &self.map {
            let ptr = start.wrapping_add(va.wrapping_sub(self.va) as usize);
            // What look-ups read most: a line, where it can be copied without a call.
            if out.len() == copy::BLOCK && ptr.cast::<u64>().is_aligned() {
                // SAFETY: `bounds` checked the range, which lies in one run.
                unsafe { copy::load_block(ptr, out) };
                return Ok(());
            }
        }
        self.read_runs(va, out)
    }

    #[inline(never)]
    fn read_runs(&self, mut va: u64, mut out: &mut [u8]) -> Result<(), AccessError> {
        while !out.is_empty() {
            let (ptr, room) = self.run(va);
            let (part, rest) = out.split_at_mut(room.min(out.len()));
            // SAFETY: `bounds` checked the range, and this part of it lies in one run.
            unsafe { copy::load(ptr, part) };
            va = va.wrapping_add(part.len() as u64);
            out = rest;
        }
        Ok(())
    }

    /// The words of a range that is aligned and lies in one run of memory, to look at where they are. Checks bounds and
    /// validity, not rights.
    #[inline]
    pub fn view(&self, va: u64, len: usize) -> Option<Words<'_>> {
        let start = self.words(va, len as u64).ok()??;
        // SAFETY: the words lie within the region's memory, which it holds as long as it is borrowed.
        Some(unsafe { Words::new(start, len / 8) })
    }

    /// As [`view`](Self::view), to write as well.
    #[inline]
    pub fn view_mut(&self, va: u64, len: usize) -> Option<WordsMut<'_>> {
        let start = self.words(va, len as u64).ok()??;
        // SAFETY: as for `view`; a region's memory may be written.
        Some(unsafe { WordsMut::new(start, len / 8) })
    }

    /// Copies `data` to `va`. Checks bounds and validity, not rights.
    #[inline]
    pub fn write(&self, mut va: u64, mut data: &[u8]) -> Result<(), AccessError> {
        self.bounds(va, data.len() as u64)?;
        while !data.is_empty() {
            let (ptr, room) = self.run(va);
            let (part, rest) = data.split_at(room.min(data.len()));
            // SAFETY: `bounds` checked the range, and this part of it lies in one run.
            unsafe { copy::store(ptr, part) };
            va = va.wrapping_add(part.len() as u64);
            data = rest;
        }
        Ok(())
    }

    /// Copies bytes from `va` on to `offset` of a buffer whose readers are told of them later. Checks bounds and validity,
    /// not rights. Buffer and region have no byte in common.
    #[inline]
    pub fn lift(&self, mut va: u64, buffer: &Buffer, mut offset: usize, mut len: usize) -> Result<(), AccessError> {
        self.bounds(va, len as u64)?;
        buffer.at(offset, len).map_err(|_| AccessError::OutOfBounds)?;
        while len > 0 {
            let (src, room) = self.run(va);
            let part = room.min(len);
            let dst = buffer.at(offset, part).map_err(|_| AccessError::OutOfBounds)?;
            // SAFETY: `bounds` and `at` checked the ranges, and this part of the first lies in one run.
            unsafe { copy::lift(src, dst, part) };
            (va, offset, len) = (va.wrapping_add(part as u64), offset + part, len - part);
        }
        Ok(())
    }

    /// Copies bytes from `offset` of a buffer, where nobody is to write them any more, to `va`: as [`write`](Self::write)
    /// does, without a private copy in between. If somebody writes them all the same, any mix of old and new bytes lands.
    /// Buffer and region have no byte in common.
    #[inline]
    pub fn land(&self, mut va: u64, buffer: &Buffer, mut offset: usize, mut len: usize) -> Result<(), AccessError> {
        self.bounds(va, len as u64)?;
        buffer.at(offset, len).map_err(|_| AccessError::OutOfBounds)?;
        while len > 0 {
            let (dst, room) = self.run(va);
            let part = room.min(len);
            let src = buffer.at(offset, part).map_err(|_| AccessError::OutOfBounds)?;
            // SAFETY: `bounds` and `at` checked the ranges, and this part of the second lies in one run.
            unsafe { copy::land(src, dst, part) };
            (va, offset, len) = (va.wrapping_add(part as u64), offset + part, len - part);
        }
        Ok(())
    }

    /// Copies bytes from `offset` of what another process has lent to `va`, in increasing address order. Words that are aligned on
    /// both sides are loaded whole and stored whole. Checks bounds and validity, not rights.
    #[inline]
    pub fn fetch(&self, mut va: u64, view: &View, mut offset: usize, mut len: usize) -> Result<(), AccessError> {
        self.bounds(va, len as u64)?;
        view.at(offset, len).map_err(|_| AccessError::OutOfBounds)?;
        while len > 0 {
            let (dst, room) = self.run(va);
            let part = room.min(len);
            let src = view.at(offset, part).map_err(|_| AccessError::OutOfBounds)?;
            // SAFETY: `bounds` and `at` checked the ranges, and this part of the first lies in one run.
            unsafe { copy::carry(src, dst, part) };
            (va, offset, len) = (va.wrapping_add(part as u64), offset + part, len - part);
        }
        Ok(())
    }

    /// Like [`write`](Self::write), for whole cache lines that nobody reads soon: they go past the caches. Others see
    /// them at the latest after [`stream_fence`](crate::stream_fence). Lines that are not whole are written as usual.
    #[inline]
    pub fn write_streamed(&self, va: u64, data: &[u8]) -> Result<(), AccessError> {
        if data.is_empty() || !data.len().is_multiple_of(64) {
            return self.write(va, data);
        }
        self.bounds(va, data.len() as u64)?;
        let (start, room) = self.run(va);
        if room < data.len() || !start.addr().is_multiple_of(64) {
            return self.write(va, data);
        }
        // SAFETY: `bounds` checked the range, and it lies in one run; address and length are multiples of 64.
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

    /// Asks the cache for these bytes, the second-level cache if they are more than two lines. A hint: a range outside the
    /// region is ignored, and so is what follows the first page border.
    #[inline]
    pub fn prefetch(&self, va: u64, len: usize) {
        if self.bounds(va, len as u64).is_ok() && len > 0 {
            let (ptr, room) = self.run(va);
            match len.min(room) {
                // More may be under way to the second level than to the first.
                len if len > 2 * copy::BLOCK => copy::prefetch_bytes_near(ptr, len),
                len => copy::prefetch(ptr, len),
            }
        }
    }

    #[inline]
    fn bounds(&self, va: u64, len: u64) -> Result<(), AccessError> {
        // Below the start this wraps to a number that no region is long enough for.
        let (offset, has) = (va.wrapping_sub(self.va), self.len());
        let inside = offset <= has && len <= has - offset;
        if (inside || len == 0) && self.is_valid() {
            return Ok(());
        }
        Err(if self.is_valid() { AccessError::OutOfBounds } else { AccessError::Revoked })
    }

    /// Where the aligned words of this range are; `None` if they are not aligned there, or in several runs of memory.
    #[inline]
    pub(crate) fn words(&self, va: u64, len: u64) -> Result<Option<*mut u8>, AccessError> {
        self.bounds(va, len)?;
        if len == 0 {
            return Ok(Some(std::ptr::null_mut()));
        }
        let (start, room) = self.run(va);
        Ok((room as u64 >= len && start.cast::<u64>().is_aligned()).then_some(start))
    }

    fn word_at(&self, va: u64) -> Result<*mut u8, AccessError> {
        self.bounds(va, 8)?;
        // A word that is aligned in memory lies in one run.
        let (ptr, _) = self.run(va);
        if ptr.cast::<u64>().is_aligned() { Ok(ptr) } else { Err(AccessError::Misaligned) }
    }

    /// Where the byte at an address within the region is, and how many bytes of the region's pages follow it in order
    /// (at least; the caller stays within bounds).
    #[inline]
    fn run(&self, va: u64) -> (*mut u8, usize) {
        match &self.map {
            Map::Linear(start, _) => (start.wrapping_add(va.wrapping_sub(self.va) as usize), usize::MAX),
            Map::Pages(pages, _) => {
                let page = (va >> PAGE_SHIFT) - (self.va >> PAGE_SHIFT);
                let offset = (va & PAGE_MASK) as usize;
                (pages[page as usize].wrapping_add(offset), PAGE_BYTES - offset)
            }
            Map::Window(region, shift) => region.run(va.wrapping_add(*shift)),
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key opens the region, so it is not shown.
        write!(f, "Region({} bytes at {:#x}, {:?}, {:?})", self.len(), self.va, self.pd, self.access)
    }
}
