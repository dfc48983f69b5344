//! Protection domains, and the regions registered in them under unguessable keys.

use crate::region::{Access, Growth, Memory, PAGE_BYTES, Region};
use crate::window::Window;
use crate::{Buffer, OutOfBounds};
use parking_lot::RwLock;
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::sync::Arc;

/// A protection domain: queue pairs of one reach only regions of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pd(u32);

/// The protection domain still holds memory regions or windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PdBusy {
    /// Deregister or deallocate this many first.
    #[error("protection domain still holds {0} memory regions and windows; deregister them first")]
    Regions(usize),
    /// There is no such protection domain.
    #[error("protection domain was deallocated before")]
    Unknown,
}

/// Why a region cannot be deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeregisterError {
    /// No region has this key.
    #[error("no memory region has this key")]
    Unknown,
    /// Memory windows are bound to it (IBTA vol. 1, 10.6.7.2.6).
    #[error("{0} memory windows are bound to the region; unbind them first")]
    Bound(u32),
}

/// Why a region cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The protection domain was deallocated.
    #[error("protection domain was deallocated")]
    UnknownPd,
    /// The bytes do not lie within the buffer.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The addresses would wrap around the end of the address space.
    #[error("{len} bytes from address {va:#x} on wrap around the end of the address space")]
    Wraps {
        /// First address.
        va: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Remote write or atomic access without local write access (IBTA vol. 1, 10.6.3.1).
    #[error("remote write or atomic access needs local write access too")]
    NeedsLocalWrite,
    /// The address given and the one in this process differ modulo 8, so that no word would be atomic.
    #[error("address {va:#x} and the memory at {addr:#x} are not congruent modulo 8; choose an address that is")]
    Misaligned {
        /// Address asked for.
        va: u64,
        /// Address of its byte in this process.
        addr: u64,
    },
    /// The number of pages is not what address and length need.
    #[error("{pages} pages given where {needed} pages of 2 MB are needed")]
    Pages {
        /// Pages given.
        pages: usize,
        /// Pages needed.
        needed: u64,
    },
    /// Every key is in use.
    #[error("too many memory regions")]
    Full,
    /// No region has the key that is to be registered anew.
    #[error("no memory region has this key")]
    UnknownKey,
    /// The region that is to be registered anew has memory windows bound to it.
    #[error("{0} memory windows are bound to the region; unbind them first")]
    Bound(u32),
}

/// Memory for [`Registry::reregister`]: bytes of a buffer under addresses of the caller's choice.
#[derive(Clone, Copy, Debug)]
pub struct Translation<'a> {
    /// Where the bytes are.
    pub buffer: &'a Buffer,
    /// The first of them.
    pub offset: usize,
    /// How many.
    pub len: usize,
    /// Address of the first, or `None` for its address in this process.
    pub va: Option<u64>,
}

/// All protection domains, memory regions and memory windows of one device. Shared between threads as `Arc<Registry>`.
pub struct Registry(pub(crate) RwLock<Inner>);

pub(crate) struct Inner {
    /// By the upper 24 bits of their keys: the lower eight are a window's owner's to change.
    pub entries: HashMap<u32, Entry>,
    /// Number of regions and windows of each protection domain.
    pub pds: HashMap<Pd, usize>,
    next_pd: u32,
    keys: ChaCha20Rng,
}

/// What a key may stand for.
pub(crate) enum Entry {
    Region { region: Arc<Region>, windows: u32 },
    Window(Window),
}

/// Regions and windows that there may be at once: half of the keys, so that a free one is found soon.
pub const MAX_REGIONS: u32 = 1 << 23;

impl Registry {
    /// An empty registry. Keys are as unguessable as `seed` is.
    pub fn new(seed: [u8; 32]) -> Registry {
        Registry(RwLock::new(Inner {
            entries: HashMap::new(),
            pds: HashMap::new(),
            next_pd: 1,
            keys: ChaCha20Rng::from_seed(seed),
        }))
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Pd {
        let mut inner = self.0.write();
        loop {
            let pd = Pd(inner.next_pd);
            inner.next_pd = inner.next_pd.wrapping_add(1);
            if let MapEntry::Vacant(entry) = inner.pds.entry(pd) {
                entry.insert(0);
                return pd;
            }
        }
    }

    /// Deallocates a protection domain that holds no regions and no windows.
    pub fn dealloc_pd(&self, pd: Pd) -> Result<(), PdBusy> {
        let mut inner = self.0.write();
        match inner.pds.get(&pd) {
            Some(0) => drop(inner.pds.remove(&pd)),
            Some(&regions) => return Err(PdBusy::Regions(regions)),
            None => return Err(PdBusy::Unknown),
        }
        Ok(())
    }

    /// Registers `len` bytes of `buffer` from `offset` on, under the addresses from `va` on, or from their address in
    /// this process if that is `None`. This takes no time that grows with `len` and touches no byte.
    ///
    /// A zero-based region, `va` 0, may begin at any byte. If that is not at a multiple of 8 in memory, the words that
    /// are whole in memory and may take part in atomics are not those at multiples of 8 in the region.
    pub fn register(
        &self,
        pd: Pd,
        buffer: &Buffer,
        offset: usize,
        len: usize,
        va: Option<u64>,
        access: Access,
    ) -> Result<Arc<Region>, RegisterError> {
        let (range, memory) = Translation { buffer, offset, len, va }.check()?;
        self.insert(pd, range, access, memory)
    }

    /// Registers `len` bytes from the start of `buffer` on under addresses that are drawn at random from all below 2^63.
    /// So whoever has not been told key and address guesses both: `len` of 2^95 pairs are right. The addresses are
    /// congruent to those in this process modulo 4096.
    pub fn register_hidden(
        &self,
        pd: Pd,
        buffer: &Buffer,
        len: usize,
        access: Access,
    ) -> Result<Arc<Region>, RegisterError> {
        let va = self.hidden(buffer, len)?;
        self.register(pd, buffer, 0, len, Some(va), access)
    }

    /// As [`register_hidden`](Self::register_hidden), of a region that [may grow](Region::grow) up to the length of
    /// `buffer`: whether it may have so many bytes says `may`, to which its key and their number are given, maybe by
    /// several threads at once.
    pub fn register_growing(
        &self,
        pd: Pd,
        buffer: &Buffer,
        len: usize,
        access: Access,
        may: impl Fn(u32, u64) -> bool + Send + Sync + 'static,
    ) -> Result<Arc<Region>, RegisterError> {
        let room = buffer.len();
        let va = Some(self.hidden(buffer, room)?);
        let ((va, _), memory) = Translation { buffer, offset: 0, len: room, va }.check()?;
        buffer.at(0, len)?;
        let growth = Growth { room: room as u64, may: Box::new(may) };
        self.insert_as(pd, (va, len as u64), access, memory, |region| region.growing(growth))
    }

    /// An address for the first of these bytes.
    fn hidden(&self, buffer: &Buffer, len: usize) -> Result<u64, RegisterError> {
        const PAGE: u64 = 4096;
        let start = buffer.at(0, len)?.addr() as u64;
        let drawn = self.0.write().keys.next_u64() >> 1;
        // At least a page, so that no region of these is zero-based.
        Ok((drawn & !(PAGE - 1)).max(PAGE) | start & (PAGE - 1))
    }

    /// Registers `len` bytes under the addresses from `va` on, which lie scattered: each `(buffer, offset)` holds the
    /// bytes of one 2 MB page of addresses. `va` need not begin a page; `offset` then belongs to the page's first byte
    /// within the region.
    pub fn register_pages(
        &self,
        pd: Pd,
        pages: Vec<(Buffer, usize)>,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<Arc<Region>, RegisterError> {
        let needed = pages_needed(va, len)?;
        if pages.len() as u64 != needed {
            return Err(RegisterError::Pages { pages: pages.len(), needed });
        }
        let (mut at, mut left) = (va, len);
        let mut table = Vec::with_capacity(pages.len());
        for (buffer, offset) in &pages {
            let skew = at as usize % PAGE_BYTES;
            let part = left.min((PAGE_BYTES - skew) as u64);
            let start = buffer.at(*offset, part as usize)?;
            same_alignment(at, start)?;
            table.push(start.wrapping_sub(skew));
            // The last page may end at the very end of the address space.
            (at, left) = (at.wrapping_add(part), left - part);
        }
        let buffers = pages.into_iter().map(|(buffer, _)| buffer).collect();
        self.insert(pd, (va, len), access, Memory::Pages(table.into(), buffers))
    }

    /// Registers a region anew under the key that it has: in another protection domain, over other memory, with other
    /// rights, or all at once; what is `None` stays. Whoever comes with the key meets the old region or the new one. On
    /// an error the old one stays.
    pub fn reregister(
        &self,
        key: u32,
        pd: Option<Pd>,
        memory: Option<Translation<'_>>,
        access: Option<Access>,
    ) -> Result<Arc<Region>, RegisterError> {
        let memory = memory.map(|m| m.check()).transpose()?;
        let inner = &mut *self.0.write();
        let old = match inner.entries.get(&(key >> 8)) {
            Some(Entry::Region { windows: n @ 1.., region }) if region.key() == key => {
                return Err(RegisterError::Bound(*n));
            }
            Some(Entry::Region { region, .. }) if region.key() == key => region.clone(),
            _ => return Err(RegisterError::UnknownKey),
        };
        let (pd, access) = (pd.unwrap_or(old.pd()), access.unwrap_or(old.access()));
        check_rights(access)?;
        let (range, memory) = memory.unwrap_or_else(|| ((old.va(), old.len()), old.memory()));
        *inner.pds.get_mut(&pd).ok_or(RegisterError::UnknownPd)? += 1;
        inner.leave(old.pd());
        let region = Arc::new(Region::new(key, pd, range, access, memory));
        inner.entries.insert(key >> 8, Entry::Region { region: region.clone(), windows: 0 });
        old.revoke();
        Ok(region)
    }

    /// Takes a region away from its users. Accesses that run at this moment may still finish.
    pub fn deregister(&self, key: u32) -> Result<(), DeregisterError> {
        let inner = &mut *self.0.write();
        match inner.entries.get(&(key >> 8)) {
            Some(Entry::Region { region, windows: 0 }) if region.key() == key => {
                let pd = region.pd();
                region.revoke();
                inner.entries.remove(&(key >> 8));
                inner.leave(pd);
                Ok(())
            }
            Some(Entry::Region { region, windows }) if region.key() == key => Err(DeregisterError::Bound(*windows)),
            _ => Err(DeregisterError::Unknown),
        }
    }

    /// What this key opens for all queue pairs of its protection domain: a region, or a window of type 1.
    pub fn lookup(&self, key: u32) -> Option<Arc<Region>> {
        self.find(key, None)
    }

    /// What this key opens for one queue pair: a region, a window of type 1, or one of type 2 that is bound to it.
    pub fn lookup_for(&self, key: u32, qp: u32) -> Option<Arc<Region>> {
        self.find(key, Some(qp))
    }

    fn find(&self, key: u32, qp: Option<u32>) -> Option<Arc<Region>> {
        let inner = self.0.read();
        let region = match inner.entries.get(&(key >> 8))? {
            Entry::Region { region, .. } => region,
            Entry::Window(window) => window.opened_to(qp)?,
        };
        (region.key() == key).then(|| region.clone())
    }

    fn insert(&self, pd: Pd, range: (u64, u64), access: Access, memory: Memory) -> Result<Arc<Region>, RegisterError> {
        self.insert_as(pd, range, access, memory, |region| region)
    }

    fn insert_as(
        &self,
        pd: Pd,
        range: (u64, u64),
        access: Access,
        memory: Memory,
        finish: impl FnOnce(Region) -> Region,
    ) -> Result<Arc<Region>, RegisterError> {
        check_rights(access)?;
        let inner = &mut *self.0.write();
        let key = inner.new_key(pd)?;
        let region = Arc::new(finish(Region::new(key, pd, range, access, memory)));
        inner.entries.insert(key >> 8, Entry::Region { region: region.clone(), windows: 0 });
        Ok(region)
    }
}

impl Inner {
    /// A key whose upper 24 bits nobody has, counted in its protection domain.
    pub fn new_key(&mut self, pd: Pd) -> Result<u32, RegisterError> {
        if self.entries.len() >= MAX_REGIONS as usize {
            return Err(RegisterError::Full);
        }
        *self.pds.get_mut(&pd).ok_or(RegisterError::UnknownPd)? += 1;
        loop {
            let key = self.keys.next_u32();
            if key >> 8 != 0 && !self.entries.contains_key(&(key >> 8)) {
                return Ok(key);
            }
        }
    }

    /// One region or window less.
    pub fn leave(&mut self, pd: Pd) {
        if let Some(count) = self.pds.get_mut(&pd) {
            *count -= 1;
        }
    }
}

impl Translation<'_> {
    /// Range of addresses and memory, if they fit each other.
    fn check(self) -> Result<((u64, u64), Memory), RegisterError> {
        let start = self.buffer.at(self.offset, self.len)?;
        let (va, len) = (self.va.unwrap_or(start.addr() as u64), self.len as u64);
        pages_needed(va, len)?;
        if self.va != Some(0) {
            same_alignment(va, start)?;
        }
        Ok(((va, len), Memory::Linear(start, self.buffer.clone())))
    }
}

/// Remote write or atomic access goes with local write access only.
pub(crate) fn check_rights(access: Access) -> Result<(), RegisterError> {
    let remote_change = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if remote_change && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegisterError::NeedsLocalWrite);
    }
    Ok(())
}

/// Pages of addresses that `len` bytes from `va` on touch.
fn pages_needed(va: u64, len: u64) -> Result<u64, RegisterError> {
    let Some(last) = va.checked_add(len.saturating_sub(1)) else {
        return Err(RegisterError::Wraps { va, len });
    };
    let page = PAGE_BYTES as u64;
    Ok(if len == 0 { 0 } else { last / page - va / page + 1 })
}

fn same_alignment(va: u64, start: *mut u8) -> Result<(), RegisterError> {
    let addr = start.addr() as u64;
    if va % 8 == addr % 8 { Ok(()) } else { Err(RegisterError::Misaligned { va, addr }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AccessError;
    use proptest::prelude::*;

    const ALL: Access = Access::all();
    const PAGE: u64 = PAGE_BYTES as u64;

    fn registry() -> (Registry, Pd) {
        let registry = Registry::new([7; 32]);
        let pd = registry.alloc_pd();
        (registry, pd)
    }

    fn boxed(len: usize) -> Buffer {
        Buffer::from_boxed(vec![0; len].into())
    }

    #[test]
    fn streamed_writes_are_writes() {
        let registry = Registry::new([1; 32]);
        let pd = registry.alloc_pd();
        let buffer = Buffer::from_boxed(vec![0; 1024].into());
        let region = registry.register(pd, &buffer, 0, 1024, Some(0), Access::all()).unwrap();
        for (va, len) in [(0, 128), (64, 64), (8, 64), (3, 100), (512, 512), (0, 0), (960, 64)] {
            let data: Vec<u8> = (0..len).map(|i| (va + i) as u8 ^ 0x5a).collect();
            region.write_streamed(va as u64, &data).unwrap();
            crate::stream_fence();
            let mut back = vec![0; len];
            region.read(va as u64, &mut back).unwrap();
            assert_eq!(back, data, "{len} bytes at {va}");
        }
        for (va, len) in [(960, 128), (1024, 64), (u64::MAX - 63, 64)] {
            assert_eq!(region.write_streamed(va, &vec![1; len]), Err(AccessError::OutOfBounds), "{len} bytes at {va}");
        }
    }

    #[test]
    fn a_region_that_may_grow_does_where_it_is() {
        let registry = Registry::new([1; 32]);
        let (pd, buffer) = (registry.alloc_pd(), Buffer::reserved(1 << 30).unwrap());
        let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let may = {
            let asked = asked.clone();
            move |key, len| {
                asked.lock().push((key, len));
                len <= 1 << 22
            }
        };
        let region = registry.register_growing(pd, &buffer, 4096, ALL, may).unwrap();
        let last = region.va() + (1 << 22) - 8;
        region.write(region.va(), &[7; 4096]).unwrap();
        assert_eq!((region.len(), region.write(last, &[1; 8])), (4096, Err(AccessError::OutOfBounds)));
        // Who asks for what there is asks nobody, and nobody is asked for what there is no room for.
        assert_eq!(
            [100, 1 << 22, 1 << 22, 1 << 23, (1 << 30) + 1].map(|len| region.grow(len)),
            [true, true, true, false, false]
        );
        assert_eq!(*asked.lock(), [(region.key(), 1 << 22), (region.key(), 1 << 23)]);
        let mut word = [9; 8];
        region.read(region.va() + 4096, &mut word).unwrap();
        assert_eq!((word, region.fetch_add(last, 5)), ([0; 8], Ok(0)));
        assert_eq!(region.write(last + 8, &[1]), Err(AccessError::OutOfBounds));
        region.read(region.va() + 4088, &mut word).unwrap();
        assert_eq!(word, [7; 8]);
        registry.deregister(region.key()).unwrap();
        assert!(!region.grow(1 << 22 | 1));
        let plain = registry.register(pd, &buffer, 0, 4096, None, ALL).unwrap();
        assert!(plain.grow(4096) && !plain.grow(4097));
    }

    #[test]
    fn hidden_addresses_are_anywhere_and_whole() {
        let (registry, pd) = registry();
        let buffer = Buffer::anonymous(3 * 4096).unwrap();
        let (mut ones, mut zeros) = (0, 0);
        for _ in 0..64 {
            let region = registry.register_hidden(pd, &buffer, 8200, ALL).unwrap();
            assert_eq!(region.va() % 4096, 0);
            assert!(region.va() >> 63 == 0 && region.va() >= 4096);
            region.write(region.va() + 8192, &[7; 8]).unwrap();
            assert_eq!(region.write(region.va() + 8193, &[7; 8]), Err(AccessError::OutOfBounds));
            (ones, zeros) = (ones | region.va(), zeros | !region.va());
        }
        // 51 bits, each of which is the same 64 times once in 2^63.
        assert_eq!((ones, zeros & ((1 << 63) - 1)), ((1 << 63) - 4096, (1 << 63) - 1));
    }

    #[test]
    fn rights_matrix() {
        let (registry, pd) = registry();
        let other = registry.alloc_pd();
        let buffer = boxed(64);
        for granted in (0..16).map(Access::from_bits_truncate) {
            let region = registry.register(pd, &buffer, 0, 64, None, granted);
            let remote_change = granted.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            if remote_change && !granted.contains(Access::LOCAL_WRITE) {
                assert_eq!(region.unwrap_err(), RegisterError::NeedsLocalWrite);
                continue;
            }
            let region = region.unwrap();
            for need in (0..16).map(Access::from_bits_truncate) {
                let expect = if granted.contains(need) { Ok(()) } else { Err(AccessError::Denied) };
                assert_eq!(region.check(pd, region.va(), 64, need), expect, "{granted:?} for {need:?}");
                assert_eq!(region.check(other, region.va(), 64, need), Err(AccessError::WrongPd));
            }
        }
    }

    #[test]
    fn bounds_and_wrapping_addresses() {
        let (registry, pd) = registry();
        let buffer = boxed(64);
        for va in [0, 8, u64::MAX - 63] {
            let region = registry.register(pd, &buffer, 0, 64, Some(va), ALL).unwrap();
            for (offset, len) in [(0, 64), (63, 1), (64, 0), (0, 0), (1000, 0)] {
                assert_eq!(region.check(pd, va.wrapping_add(offset), len, ALL), Ok(()), "{va:#x} {offset} {len}");
            }
            for (offset, len) in [(0, 65), (64, 1), (63, 2), (u64::MAX, 1), (u64::MAX, 2), (1, u64::MAX), (0, u64::MAX)]
            {
                let at = va.wrapping_add(offset);
                assert_eq!(region.check(pd, at, len, ALL), Err(AccessError::OutOfBounds), "{va:#x} {offset} {len}");
            }
            assert_eq!(region.write(va.wrapping_add(60), &[0; 5]), Err(AccessError::OutOfBounds));
            assert_eq!(region.read(va.wrapping_sub(1), &mut [0]), Err(AccessError::OutOfBounds));
            assert_eq!(region.fetch_add(va + 4, 1), Err(AccessError::Misaligned));
            assert_eq!(region.compare_swap(va.wrapping_add(60), 0, 1), Err(AccessError::OutOfBounds));
            region.write(va, &[1; 64]).unwrap();
            region.read(va.wrapping_add(500), &mut []).unwrap();
        }
        let refused = |va| registry.register(pd, &buffer, 0, 64, Some(va), ALL).unwrap_err();
        assert_eq!(refused(u64::MAX - 55), RegisterError::Wraps { va: u64::MAX - 55, len: 64 });
        assert!(matches!(refused(4), RegisterError::Misaligned { va: 4, .. }));
        let beyond = registry.register(pd, &buffer, 8, 57, None, ALL).unwrap_err();
        assert!(matches!(beyond, RegisterError::OutOfBounds(_)));
        assert!(matches!(registry.register(pd, &buffer, 8, usize::MAX, None, ALL), Err(RegisterError::OutOfBounds(_))));
    }

    #[test]
    fn keys_are_unlike_and_revocable() {
        let (registry, pd) = registry();
        let buffer = boxed(64);
        let regions: Vec<_> = (0..100).map(|_| registry.register(pd, &buffer, 0, 64, None, ALL).unwrap()).collect();
        let keys: std::collections::HashSet<_> = regions.iter().map(|r| r.key()).collect();
        assert_eq!(keys.len(), 100);
        assert!(keys.iter().any(|&k| k > 1 << 31) && !keys.contains(&0));
        assert_eq!(registry.dealloc_pd(pd), Err(PdBusy::Regions(100)));
        for region in &regions {
            assert!(registry.lookup(region.key()).is_some());
            registry.deregister(region.key()).unwrap();
            assert_eq!(registry.deregister(region.key()), Err(DeregisterError::Unknown));
            assert!(registry.lookup(region.key()).is_none() && !region.is_valid());
            assert_eq!(region.read(region.va(), &mut [0]), Err(AccessError::Revoked));
            assert_eq!(region.check(pd, region.va(), 0, Access::empty()), Err(AccessError::Revoked));
        }
        registry.dealloc_pd(pd).unwrap();
        assert_eq!(registry.dealloc_pd(pd), Err(PdBusy::Unknown));
        assert_eq!(registry.register(pd, &buffer, 0, 64, None, ALL).unwrap_err(), RegisterError::UnknownPd);
    }

    /// A region whose pages lie in reverse order and in two buffers reads and writes like one run of bytes.
    #[test]
    #[cfg_attr(miri, ignore = "large")]
    fn scattered_pages_split_accesses() {
        let (registry, pd) = registry();
        let (a, b) = (boxed(2 * PAGE_BYTES), boxed(PAGE_BYTES + 4096));
        let va = 7 * PAGE - 4096;
        let len = 4096 + 2 * PAGE + 100;
        let pages = vec![(b.clone(), PAGE_BYTES), (a.clone(), PAGE_BYTES), (a.clone(), 0), (b.clone(), 8)];
        let short = registry.register_pages(pd, pages[..3].to_vec(), va, len, ALL).unwrap_err();
        assert_eq!(short, RegisterError::Pages { pages: 3, needed: 4 });
        let region = registry.register_pages(pd, pages, va, len, ALL).unwrap();

        let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 255) as u8).collect();
        region.write(va, &data).unwrap();
        let mut seen = vec![0; len as usize];
        region.read(va, &mut seen).unwrap();
        assert!(seen == data);
        let mut part = [0; 9];
        a.read(PAGE_BYTES, &mut part).unwrap();
        assert_eq!(part, data[4096..4105], "second page of addresses");
        a.read(0, &mut part).unwrap();
        assert_eq!(part, data[4096 + PAGE_BYTES..][..9], "third page");
        b.read(8 + 91, &mut part).unwrap();
        assert_eq!(part, data[len as usize - 9..], "end of the fourth page");
        b.read(0, &mut part).unwrap();
        assert_eq!(
            (part[..8] == [0; 8], part[8]),
            (true, data[4096 + 2 * PAGE_BYTES]),
            "what is before it is untouched"
        );
        region.read(7 * PAGE - 5, &mut part).unwrap();
        assert_eq!(part, data[4091..4100], "across a border");
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..Default::default()
        })]

        /// Any sequence of accesses does what it does to a plain vector, across a page border.
        #[test]
        fn behaves_like_a_vector(
            ops in prop::collection::vec((0u8..4, 0u64..400, prop::collection::vec(any::<u8>(), 0..200)), 1..30),
            before_border in 0u64..40,
        ) {
            let (registry, pd) = registry();
            let buffer = boxed(336);
            let va = PAGE - 8 * before_border;
            let region = registry.register(pd, &buffer, 16, 300, Some(va), ALL).unwrap();
            let mut model = vec![0u8; 300];
            for (op, offset, data) in ops {
                let (from, to) = (offset as usize, offset as usize + data.len());
                let ok = to <= 300 || data.is_empty();
                let word = |model: &[u8]| model.get(from..from + 8).map(|w| u64::from_ne_bytes(w.try_into().unwrap()));
                match op {
                    0 => {
                        prop_assert_eq!(region.write(va + offset, &data).is_ok(), ok);
                        if ok && !data.is_empty() {
                            model[from..to].copy_from_slice(&data);
                        }
                    }
                    1 => {
                        let mut seen = vec![0; data.len()];
                        prop_assert_eq!(region.read(va + offset, &mut seen).is_ok(), ok);
                        if ok && !data.is_empty() {
                            prop_assert_eq!(&seen, &model[from..to]);
                        }
                    }
                    _ => {
                        let old = word(&model);
                        let expect = if op == 2 { old.unwrap_or(0) } else { 1 };
                        let seen = region.compare_swap(va + offset, expect, data.len() as u64);
                        match old {
                            None => prop_assert_eq!(seen, Err(AccessError::OutOfBounds)),
                            Some(_) if offset % 8 != 0 => prop_assert_eq!(seen, Err(AccessError::Misaligned)),
                            Some(old) => {
                                prop_assert_eq!(seen, Ok(old));
                                if old == expect {
                                    model[from..from + 8].copy_from_slice(&(data.len() as u64).to_ne_bytes());
                                }
                            }
                        }
                    }
                }
                let mut whole = vec![0; 336];
                buffer.read(0, &mut whole).unwrap();
                prop_assert_eq!(&whole[16..316], &model[..]);
                prop_assert!(whole[..16].iter().chain(&whole[316..]).all(|&b| b == 0), "nothing outside is touched");
            }
        }
    }
}
