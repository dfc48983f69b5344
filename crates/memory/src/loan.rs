//! Memory that a process on this host may read where it is: loans, and views of what others lend.
//!
//! A lendable buffer ([`Buffer::lendable`]) lies in a memory file, with a page behind it that holds its *term*: a number that goes up
//! whenever something that was said of its bytes holds no longer. Who has been lent it maps both, and cannot write to either. A
//! [`Reference`] names bytes and the term that they were named in; whoever has copied them asks whether the term still
//! runs, as a reader of a sequence lock does, and otherwise has copied nothing.

use crate::buffer::{Buffer, Inner, OutOfBounds};
use crate::copy;
use parking_lot::Mutex;
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes behind a lendable buffer's: the term.
pub(crate) const TERM_BYTES: usize = 4096;

/// Buffers that may be lent to one peer at once.
pub const MAX_LOANS: usize = 64;

/// What a lendable buffer has beside its bytes.
pub(crate) struct Lendable {
    /// Its memory file.
    pub file: OwnedFd,
    /// No other buffer of this process has it, or had.
    pub id: u64,
    /// Regions over all of it.
    pub regions: AtomicU32,
}

impl Lendable {
    pub fn new(file: OwnedFd) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { file, id: NEXT.fetch_add(1, Ordering::Relaxed), regions: AtomicU32::new(0) }
    }
}

/// Bytes of a buffer that a peer has been lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Which of the lender's loans.
    pub slot: u32,
    /// How many bytes.
    pub len: u32,
    /// The term in which they are these.
    pub term: u64,
    /// The first.
    pub offset: u64,
}

impl Reference {
    /// Bytes that it takes.
    pub const LEN: usize = 24;

    /// As bytes. Both ends are on one host, and of one byte order.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.slot.to_ne_bytes());
        out[4..8].copy_from_slice(&self.len.to_ne_bytes());
        out[8..16].copy_from_slice(&self.term.to_ne_bytes());
        out[16..].copy_from_slice(&self.offset.to_ne_bytes());
        out
    }

    /// Of the first bytes of `from`, if there are enough. Any will do: nothing is believed that [`View`] does not check.
    pub fn parse(from: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = from.split_first_chunk::<{ Self::LEN }>()?;
        let [slot, len] = [0, 4].map(|at| head[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)));
        let [term, offset] = [8, 16].map(|at| head[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)));
        Some((Self { slot, len, term, offset }, rest))
    }
}

/// What a process on this host has lent: mapped, to be read. Its owner may write it at any time.
pub struct View {
    ptr: NonNull<u8>,
    len: usize,
    size: usize,
}

// SAFETY: the memory is read by atomic accesses and in assembly, and is mapped as long as the view lives.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Maps the first `len` bytes of a lender's memory file, and the term behind them, for reading.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the file may shrink, is not of ordinary pages, or is shorter than that: see [`Buffer::map_fd`]; or what the
    /// system says.
    pub fn map(fd: impl AsFd, len: usize) -> io::Result<View> {
        let data = crate::buffer::round_up(len, crate::buffer::SMALL_PAGE)?;
        let size = data.checked_add(TERM_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        crate::buffer::check_file(&fd, size)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the seal keeps its pages from going away.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, fd, 0)? };
        let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(View { ptr, len, size })
    }

    /// Bytes that can be named.
    #[allow(clippy::len_without_is_empty, reason = "no caller asks whether a view is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The lender's term now, read after all that this thread has read of the memory.
    #[inline]
    pub fn term(&self) -> u64 {
        fence(Ordering::Acquire);
        // SAFETY: the page behind the bytes is mapped, and so aligned.
        unsafe { copy::word(self.ptr.as_ptr().wrapping_add(self.size - TERM_BYTES)) }.load(Ordering::Acquire)
    }

    /// Copies bytes from `offset` on into `out`, as whole words.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let ptr = self.at(offset, out.len())?;
        // SAFETY: `at` checked the range, which is mapped with all of its pages.
        unsafe { copy::load(ptr, out) };
        Ok(())
    }

    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        if offset > self.len || len > self.len - offset {
            return Err(OutOfBounds { offset, len, size: self.len });
        }
        Ok(self.ptr.as_ptr().wrapping_add(offset))
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({} bytes)", self.len)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping is this view's own. Failing would only leak it.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.size) };
    }
}

/// Where in a lendable buffer bytes of a region are, and in which term they were its.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) offset: usize,
    pub(crate) term: u64,
}

/// A buffer that was lent, for who does not keep it alive.
pub struct Lent(Weak<Inner>);

impl Lent {
    /// Of a lendable buffer.
    pub fn of(buffer: &Buffer) -> Lent {
        Lent(std::sync::Arc::downgrade(&buffer.0))
    }

    /// Whether a region over all of it is still registered.
    pub fn is_registered(&self) -> bool {
        self.0
            .upgrade()
            .is_some_and(|inner| inner.lendable().is_some_and(|lendable| lendable.regions.load(Ordering::Relaxed) > 0))
    }
}

/// What one peer has been lent. Who sends to it looks buffers up and wishes for those that are missing; who drives the link lends
/// them.
pub struct Loans {
    /// The ids of buffers; 0 is a free slot.
    slots: [AtomicU64; MAX_LOANS],
    /// Bit by bit: the peer has it.
    ready: AtomicU64,
    /// A buffer that is to be lent.
    wanted: Mutex<Option<Buffer>>,
}

impl Default for Loans {
    fn default() -> Self {
        Self { slots: [const { AtomicU64::new(0) }; MAX_LOANS], ready: AtomicU64::new(0), wanted: Mutex::new(None) }
    }
}

impl Loans {
    /// Names bytes to the peer. `None` if it has not been lent their buffer, which it may be soon.
    #[inline]
    pub fn name(&self, place: &Place<'_>, len: usize) -> Option<Reference> {
        let lendable = place.buffer.0.lendable()?;
        let is = |slot: &AtomicU64| slot.load(Ordering::Relaxed) == lendable.id;
        let Some(slot) = self.slots.iter().position(is) else {
            *self.wanted.lock() = Some(place.buffer.clone());
            return None;
        };
        if self.ready.load(Ordering::Relaxed) & 1 << slot == 0 {
            return None;
        }
        let (len, offset) = (u32::try_from(len).ok()?, place.offset as u64);
        Some(Reference { slot: slot as u32, len, term: place.term, offset })
    }

    /// The buffer that is to be lent next, and the slot that it has from now on: there was a free one.
    pub fn next_wanted(&self) -> Option<(usize, Buffer)> {
        let buffer = self.wanted.lock().take()?;
        let id = buffer.0.lendable()?.id;
        if self.slots.iter().any(|slot| slot.load(Ordering::Relaxed) == id) {
            return None;
        }
        let slot = self.slots.iter().position(|slot| slot.load(Ordering::Relaxed) == 0)?;
        self.slots[slot].store(id, Ordering::Relaxed);
        Some((slot, buffer))
    }

    /// The peer has what it was lent in `slot`.
    pub fn lend(&self, slot: usize) {
        self.ready.fetch_or(1 << slot, Ordering::Relaxed);
    }

    /// Nothing in `slot` is named any more. The slot is not free yet.
    pub fn recall(&self, slot: usize) {
        self.ready.fetch_and(!(1 << slot), Ordering::Relaxed);
        // No buffer has this number.
        self.slots[slot].store(u64::MAX, Ordering::Relaxed);
    }

    /// The peer has nothing in `slot` any more.
    pub fn free(&self, slot: usize) {
        self.slots[slot].store(0, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Loans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loans({:#x})", self.ready.load(Ordering::Relaxed))
    }
}

/// The seals of a lendable buffer's file, whose one writable mapping is its owner's.
pub(crate) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Registry};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn view(buffer: &Buffer) -> io::Result<View> {
        View::map(buffer.file().expect("lendable"), buffer.len())
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn who_is_lent_memory_sees_it_and_can_do_nothing_to_it() {
        let buffer = Buffer::lendable(10_000).unwrap();
        let view = view(&buffer).unwrap();
        buffer.write(9_990, b"seen there").unwrap();
        let mut seen = [0; 10];
        view.read(9_990, &mut seen).unwrap();
        assert_eq!(&seen, b"seen there");
        assert_eq!(view.read(9_991, &mut seen), Err(OutOfBounds { offset: 9_991, len: 10, size: 10_000 }));
        assert!(view.read(usize::MAX, &mut seen).is_err());
        // Neither to write to it, nor to cut it short, nor to take a page away.
        let file = buffer.file().unwrap();
        assert!(Buffer::map_fd(file, 4096).is_err() && ftruncate(file, 0).is_err());
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(file, hole, 0, 4096).is_err() && rustix::io::pwrite(file, b"x", 0).is_err());
        // It outlives its owner.
        drop(buffer);
        view.read(9_990, &mut seen).unwrap();
        assert_eq!(&seen, b"seen there");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn what_could_kill_its_reader_is_not_mapped() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 8192).unwrap();
        assert!(View::map(&file, 4096).unwrap_err().to_string().contains("F_SEAL_SHRINK"));
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(View::map(&file, 4096).is_ok());
        assert!(View::map(&file, 4097).unwrap_err().to_string().contains("8192 bytes"), "no room for the term");
        assert!(View::map(&file, 0).is_err() && View::map(&file, usize::MAX).is_err());
        let executable = rustix::fs::open("/proc/self/exe", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        assert!(View::map(executable.unwrap(), 4096).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn a_term_ends_with_the_region() {
        let registry = Registry::new([1; 32]);
        let pd = registry.alloc_pd();
        let buffer = Buffer::lendable(8192).unwrap();
        let (view, lent) = (view(&buffer).unwrap(), Lent::of(&buffer));
        assert!(!lent.is_registered());
        let one = registry.register(pd, &buffer, 0, 8192, None, Access::all()).unwrap();
        let two = registry.register(pd, &buffer, 0, 8192, Some(0), Access::empty()).unwrap();
        let part = registry.register(pd, &buffer, 0, 8184, None, Access::all()).unwrap();
        assert!(one.place(one.va() + 8, 8184).is_some() && one.place(one.va() + 8, 8185).is_none());
        assert!(part.place(part.va(), 8).is_none(), "the rest of the buffer is not the peer's");
        let mut terms = vec![view.term()];
        for key in [part.key(), one.key(), two.key()] {
            assert!(lent.is_registered());
            registry.deregister(key).unwrap();
            terms.push(view.term());
        }
        assert!(terms.windows(2).all(|pair| pair[0] < pair[1]) && !lent.is_registered());
        assert!(one.place(one.va(), 8).is_none());
        // Nor does what is named a moment later say that the bytes are still the region's: its owner may have others there by then.
        let again = registry.register(pd, &buffer, 0, 8192, None, Access::all()).unwrap();
        let loans = Loans::default();
        assert_eq!(loans.name(&again.place(again.va(), 600).unwrap(), 600), None);
        loans.lend(loans.next_wanted().unwrap().0);
        let place = again.place(again.va(), 600).unwrap();
        assert_eq!(loans.name(&place, 600).unwrap().term, view.term());
        registry.deregister(again.key()).unwrap();
        assert!(loans.name(&place, 600).unwrap().term < view.term(), "named in a term that is over");
        let other = Buffer::lendable(8192).unwrap();
        assert!(super::tests::view(&other).unwrap().term() > view.term() + (1 << 30), "no two have the same");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn a_peer_is_lent_what_was_wished_for_and_no_more_than_there_is_room_for() {
        let registry = Registry::new([1; 32]);
        let pd = registry.alloc_pd();
        let loans = Loans::default();
        let lend = || {
            let buffer = Buffer::lendable(4096).unwrap();
            registry.register(pd, &buffer, 0, 4096, None, Access::empty()).unwrap()
        };
        let regions: Vec<_> = (0..=MAX_LOANS).map(|_| lend()).collect();
        let name = |region: &crate::Region| loans.name(&region.place(region.va() + 40, 100).unwrap(), 100);
        assert!(loans.next_wanted().is_none());
        for (at, region) in regions.iter().enumerate() {
            assert_eq!((name(region), name(region)), (None, None));
            let slot = loans.next_wanted().map(|(slot, _)| slot);
            assert_eq!(slot, Some(at).filter(|at| *at < MAX_LOANS));
            assert!(loans.next_wanted().is_none());
            assert_eq!(name(region), None, "the peer has not said that it has it");
            if let Some(slot) = slot {
                loans.lend(slot);
                let named = name(region).unwrap();
                assert_eq!((named.slot, named.len, named.offset), (slot as u32, 100, 40));
                assert_eq!(Reference::parse(&named.to_bytes()), Some((named, &[][..])));
            }
        }
        loans.recall(7);
        assert_eq!((name(&regions[7]), loans.next_wanted().is_some()), (None, false), "not free yet");
        loans.free(7);
        assert_eq!(name(&regions[MAX_LOANS]), None);
        assert_eq!(loans.next_wanted().map(|(slot, _)| slot), Some(7));
    }
}
