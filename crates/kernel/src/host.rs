//! Memory as a host core or the NIC beside it reaches it: registered regions, touched directly.
//!
//! A call has one try at keys and addresses: after an access that is denied all others fail unseen, and the call ends as
//! denied whatever its kernel makes of it. An access of no bytes names no memory, so that its key is not looked at.

use crate::call::Status;
use crate::memory::{Budget, Fault, Immediate, Limits, Memory};
use crate::pool::Meter;
use remora_memory::{Access, AccessError, Pd, Region, Registry, Scatter, Words, WordsMut};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

/// Regions remembered, so that an access takes no lock: as many as a place has numbers for. Others are looked up each time.
const CACHED: usize = 1 << u8::BITS;
/// Places that a key may have, one behind the other.
const TRIED: u8 = 8;
/// Bytes of an access that are prefetched; what follows is left to the hardware.
pub(crate) const PREFETCH_BYTES: usize = 1024;
/// Accesses of fewer bytes cost no more than the poll that makes them.
pub(crate) const METERED_BYTES: usize = 256;

/// The regions of one protection domain, with a peer's rights and the limits of one call.
///
/// An access prefetches its cache lines and lets other tasks run before it copies, unless told to
/// copy at once.
pub struct HostMemory(Box<Inner>);

/// Boxed, because it goes from call to call.
struct Inner {
    domain: Arc<Domain>,
    budget: Budget,
    /// Whether there were streamed writes, which may still be on their way. Atomic only so that a task may move.
    streamed: AtomicBool,
    /// Whether an access was denied.
    denied: AtomicBool,
}

struct Domain {
    registry: Arc<Registry>,
    pd: Pd,
    prefetching: bool,
    /// Where calls note what they cost.
    meter: Arc<Meter>,
    /// What accesses of no bytes go to.
    nothing: Region,
    /// By key: see [`places`].
    regions: Box<[Place; CACHED]>,
    /// The place that was last looked at for a region that is gone.
    looked_at: AtomicU8,
}

/// Where a region is remembered, with its key.
type Place = OnceLock<(u32, Arc<Region>)>;

/// Where the region of a key may be, in the order in which places are filled: its bits are random but for the last 8.
#[inline]
fn places(key: u32) -> impl Iterator<Item = u8> {
    let first = (key >> 8) as u8;
    (0..TRIED).map(move |n| first.wrapping_add(n))
}

impl Inner {
    fn new(domain: Arc<Domain>, limits: Limits) -> Self {
        let (streamed, denied) = (AtomicBool::new(false), AtomicBool::new(false));
        Inner { domain, budget: Budget::new(limits), streamed, denied }
    }

    /// What the kernel is told of an error. One that may tell of a key ends the call's accesses.
    #[cold]
    fn fault(&self, error: AccessError) -> Fault {
        if error == AccessError::Misaligned {
            // Only who has key, address and rights is told so.
            return Fault::Misaligned;
        }
        self.denied.store(true, Ordering::Relaxed);
        self.budget.set(Limits { steps: 0, bytes: 0 });
        Fault::Access
    }
}

impl HostMemory {
    /// The regions of `pd`. Without `prefetching` an access copies at once.
    pub fn new(registry: Arc<Registry>, pd: Pd, prefetching: bool, limits: Limits) -> Self {
        Self::metered(registry, pd, prefetching, limits, Arc::default())
    }

    /// Like [`new`](Self::new); what its calls cost is noted at `meter`.
    pub(crate) fn metered(
        registry: Arc<Registry>,
        pd: Pd,
        prefetching: bool,
        limits: Limits,
        meter: Arc<Meter>,
    ) -> Self {
        let nothing = Region::nothing(pd);
        let regions = Box::new([const { OnceLock::new() }; CACHED]);
        let domain = Domain { registry, pd, prefetching, meter, nothing, regions, looked_at: AtomicU8::new(0) };
        HostMemory(Box::new(Inner::new(Arc::new(domain), limits)))
    }

    /// The protection domain.
    #[inline]
    pub fn pd(&self) -> Pd {
        self.0.domain.pd
    }

    /// For a call beside this one: it shares the memory and the cache, and has limits of its own.
    pub(crate) fn another(&self, limits: Limits) -> Self {
        HostMemory(Box::new(Inner::new(self.0.domain.clone(), limits)))
    }

    /// For a call elsewhere: it shares the memory, and its cache is empty.
    pub(crate) fn fresh(&self, limits: Limits) -> Self {
        let Domain { registry, pd, prefetching, meter, .. } = &*self.0.domain;
        HostMemory::metered(registry.clone(), *pd, *prefetching, limits, meter.clone())
    }

    /// Makes this the memory of the next call.
    #[inline]
    pub(crate) fn renew(&mut self, limits: Limits) {
        self.0.budget = Budget::new(limits);
        *self.0.denied.get_mut() = false;
    }

    /// Ends a call: what it streamed is seen by others before anything that this thread does next. Returns how it ended,
    /// which its kernel says was by `status`.
    #[inline]
    pub(crate) fn settle(&mut self, status: Status) -> Status {
        if std::mem::take(self.0.streamed.get_mut()) {
            remora_memory::stream_fence();
        }
        if *self.0.denied.get_mut() { Status::AccessDenied } else { status }
    }

    /// Whether it shares its cache with `other`.
    #[inline]
    pub(crate) fn is_like(&self, other: &HostMemory) -> bool {
        Arc::ptr_eq(&self.0.domain, &other.0.domain)
    }

    /// Whether the next place of the cache, in turn, holds a region that is deregistered, and so keeps its memory mapped:
    /// after [`CACHED`] calls all have been looked at.
    #[inline]
    pub(crate) fn is_stale(&self) -> bool {
        let Domain { regions, looked_at, .. } = &*self.0.domain;
        // No other thread need see it: that two look at one place harms nobody.
        let at = looked_at.load(Ordering::Relaxed).wrapping_add(1);
        looked_at.store(at, Ordering::Relaxed);
        regions[usize::from(at)].get().is_some_and(|(_, region)| !region.is_valid())
    }

    /// One access: begins at once, and when prefetching lets other tasks run before it copies.
    ///
    /// By hand rather than an `async fn`, and inlined, so that the compiler builds the future where
    /// it stays: moving one that was written in parts stalls the core.
    #[inline(always)]
    fn access<T: Copy>(
        &self,
        key: u32,
        (va, len): (u64, usize),
        need: Access,
        mut access: impl FnMut(&Region) -> Result<T, AccessError>,
    ) -> impl Future<Output = Result<T, Fault>> {
        let begun = match self.find(key, (va, len), need) {
            Ok(Some(region)) if self.0.domain.prefetching => {
                region.prefetch(va, len.min(PREFETCH_BYTES));
                Begun::Prefetched(region)
            }
            Ok(Some(region)) => Begun::Done(access(region).map_err(|error| self.0.fault(error))),
            // It takes longer than any, and is its caller's doing: others run all the same.
            Ok(None) if self.0.domain.prefetching => {
                Begun::Uncached(self.access_uncached(key, (va, len), need, &mut access))
            }
            Ok(None) => Begun::Done(self.access_uncached(key, (va, len), need, &mut access)),
            Err(fault) => Begun::Done(Err(fault)),
        };
        let mut gave_way = false;
        poll_fn(move |cx| match begun {
            Begun::Done(result) => Poll::Ready(result),
            Begun::Prefetched(region) if gave_way => Poll::Ready(access(region).map_err(|error| self.0.fault(error))),
            Begun::Uncached(result) if gave_way => Poll::Ready(result),
            Begun::Prefetched(_) | Begun::Uncached(_) => {
                gave_way = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
    }

    /// The region for an access that is paid for and allowed, unless the cache has no room for it.
    #[inline]
    fn find(&self, key: u32, (va, len): (u64, usize), need: Access) -> Result<Option<&Region>, Fault> {
        let domain = &*self.0.domain;
        match self.pay(key, len)? {
            Asked::Nothing => Ok(Some(&domain.nothing)),
            Asked::Uncached => Ok(None),
            Asked::Cached(at) => {
                let Some(region) = domain.region(at) else { return Ok(None) };
                region.check(domain.pd, va, len as u64, need).map_err(|error| self.0.fault(error))?;
                Ok(Some(region))
            }
        }
    }

    /// Pays for an access, and finds its region.
    #[inline(always)]
    fn pay(&self, key: u32, len: usize) -> Result<Asked, Fault> {
        let Inner { domain, budget, .. } = &*self.0;
        budget.spend(len)?;
        if len >= METERED_BYTES {
            domain.meter.add(len as u64 / 8);
        } else if len == 0 {
            return Ok(Asked::Nothing);
        }
        Ok(domain.find(key).or_else(|| domain.look_up(key)).map_or(Asked::Uncached, Asked::Cached))
    }

    /// Whether accesses wait for their bytes to come.
    #[inline]
    pub(crate) fn prefetches(&self) -> bool {
        self.0.domain.prefetching
    }

    /// The region of a key, where there is room to remember it. What it may be used for is still to be checked.
    #[inline(always)]
    pub(crate) fn remembered(&self, key: u32) -> Option<&Region> {
        let domain = &*self.0.domain;
        domain.region(domain.find(key).or_else(|| domain.look_up(key))?)
    }

    /// A read of a region that is not remembered. Nothing is paid, and no fault noted.
    #[cold]
    pub(crate) fn read_unremembered(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let len = out.len();
        self.0.domain.access(key, (va, len), Access::REMOTE_READ, &mut |region| region.read(va, out))
    }

    /// Asks for bytes, if the place is one that does: whether it is. Others are to run then also where the cache has no room
    /// for the region, which is its client's doing.
    #[inline(always)]
    pub(crate) fn hint(&self, key: u32, va: u64, len: usize) -> bool {
        let domain = &*self.0.domain;
        if domain.prefetching
            && let Some(region) = self.remembered(key)
        {
            region.prefetch(va, len.min(PREFETCH_BYTES));
        }
        domain.prefetching
    }

    /// The region of bytes that may be reached so, if the cache has room for it. Nothing is paid, and no fault noted.
    #[inline(always)]
    fn allowed(&self, key: u32, (va, len): (u64, u64), need: Access) -> Option<&Region> {
        let region = self.remembered(key)?;
        region.check(self.pd(), va, len, need).ok()?;
        Some(region)
    }

    #[cold]
    fn access_uncached<T>(
        &self,
        key: u32,
        (va, len): (u64, usize),
        need: Access,
        access: &mut dyn FnMut(&Region) -> Result<T, AccessError>,
    ) -> Result<T, Fault> {
        self.0.domain.access(key, (va, len), need, access).map_err(|error| self.0.fault(error))
    }
}

/// Where the region of an access that is paid for is.
enum Asked {
    /// It names no memory, as it has no bytes.
    Nothing,
    /// Remembered, at this place.
    Cached(u8),
    /// To be looked up.
    Uncached,
}

/// How far an access got before its first turn.
#[derive(Clone, Copy)]
enum Begun<'a, T> {
    Done(Result<T, Fault>),
    Prefetched(&'a Region),
    /// Done, and others are to run before its caller goes on.
    Uncached(Result<T, Fault>),
}

impl Domain {
    /// An access to a region that is looked up for it.
    fn access<T>(
        &self,
        key: u32,
        (va, len): (u64, usize),
        need: Access,
        access: &mut dyn FnMut(&Region) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        let region = self.registry.lookup(key).ok_or(AccessError::WrongPd)?;
        region.check(self.pd, va, len as u64, need)?;
        access(&region)
    }

    /// Where the region is in the cache, if it is.
    #[inline(always)]
    fn find(&self, key: u32) -> Option<u8> {
        let first = places(key).next()?;
        match self.regions[usize::from(first)].get() {
            Some((cached, region)) if *cached == key && region.is_valid() => Some(first),
            _ => self.find_behind(key),
        }
    }

    #[cold]
    fn find_behind(&self, key: u32) -> Option<u8> {
        for at in places(key) {
            let (cached, region) = self.regions[usize::from(at)].get()?;
            if *cached == key && region.is_valid() {
                return Some(at);
            }
        }
        None
    }

    /// The region at a place of the cache.
    #[inline(always)]
    fn region(&self, at: u8) -> Option<&Region> {
        self.regions.get(usize::from(at))?.get().map(|(_, region)| &**region)
    }

    /// Puts the region in the cache, unless its places are taken. Other domains' stay out: a cache would
    /// keep their memory mapped to no use.
    #[cold]
    fn look_up(&self, key: u32) -> Option<u8> {
        let mut region = self.registry.lookup(key).filter(|region| region.pd() == self.pd)?;
        for at in places(key) {
            match self.regions[usize::from(at)].set((key, region)) {
                Ok(()) => return Some(at),
                Err((_, back)) => region = back,
            }
        }
        None
    }
}

impl Memory for HostMemory {
    #[inline(always)]
    fn read(&self, key: u32, va: u64, out: &mut [u8]) -> impl Future<Output = Result<(), Fault>> {
        self.access(key, (va, out.len()), Access::REMOTE_READ, move |region| region.read(va, out))
    }

    fn write(&self, key: u32, va: u64, data: &[u8]) -> impl Future<Output = Result<(), Fault>> {
        let len = data.len();
        self.access(key, (va, len), Access::REMOTE_WRITE, move |region| region.write(va, data))
    }

    /// At once: whole lines are stored without what they held, so there is nothing to prefetch.
    #[inline]
    async fn write_streamed(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let (len, need) = (data.len(), Access::REMOTE_WRITE);
        self.0.streamed.store(true, Ordering::Relaxed);
        match self.find(key, (va, len), need)? {
            Some(region) => region.write_streamed(va, data).map_err(|error| self.0.fault(error)),
            None => self.access_uncached(key, (va, len), need, &mut |region| region.write_streamed(va, data)),
        }
    }

    /// A core mispredicts a branch for each run, and so likes long ones.
    #[inline]
    fn streamed_run(&self) -> usize {
        512
    }

    fn scatter(&self, key: u32, places: &[(u64, u32)]) -> Option<Scatter> {
        let Domain { registry, pd, .. } = &*self.0.domain;
        let region = registry.lookup(key)?;
        let may = |&(va, words): &(u64, u32)| region.check(*pd, va, 8 * u64::from(words), Access::REMOTE_WRITE).is_ok();
        if !places.iter().all(may) {
            return None;
        }
        Scatter::new(region, places)
    }

    #[inline(always)]
    fn touch(&self, key: u32, va: u64, len: usize) -> impl Future<Output = ()> {
        let mut gave_way = !self.hint(key, va, len);
        poll_fn(move |cx| match std::mem::replace(&mut gave_way, true) {
            true => Poll::Ready(()),
            false => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
    }

    fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> impl Future<Output = Result<u64, Fault>> {
        let swap = move |region: &Region| region.compare_swap(va, expect, new);
        self.access(key, (va, 8), Access::REMOTE_ATOMIC, swap)
    }

    fn fetch_add(&self, key: u32, va: u64, n: u64) -> impl Future<Output = Result<u64, Fault>> {
        self.access(key, (va, 8), Access::REMOTE_ATOMIC, move |region| region.fetch_add(va, n))
    }

    #[inline]
    fn earn(&self, bytes: usize) {
        if !self.0.denied.load(Ordering::Relaxed) {
            self.0.budget.earn(bytes);
        }
    }

    #[inline]
    fn set_limits(&self, limits: Limits) {
        if !self.0.denied.load(Ordering::Relaxed) {
            self.0.budget.set(limits);
        }
    }

    fn grow(&self, key: u32, end: u64) -> bool {
        let Domain { registry, pd, .. } = &*self.0.domain;
        let may = |region: &Arc<Region>| region.check(*pd, region.va(), 1, Access::REMOTE_WRITE).is_ok();
        // Who has not reached its first byte by key and address is not told of it.
        let region = registry.lookup(key).filter(|region| !self.0.denied.load(Ordering::Relaxed) && may(region));
        region.is_some_and(|region| end > region.va() && region.grow(end - region.va()))
    }

    fn afford(&self, bytes: usize) -> Result<(), Fault> {
        self.0.budget.after(bytes).map(drop)
    }

    #[inline]
    fn spend(&self, cost: u64) {
        self.0.domain.meter.add(cost);
    }

    #[inline]
    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }
}

impl HostMemory {
    /// One access that is done when this returns.
    #[inline]
    fn access_now<T>(
        &self,
        key: u32,
        (va, len): (u64, usize),
        need: Access,
        mut access: impl FnMut(&Region) -> Result<T, AccessError>,
    ) -> Result<T, Fault> {
        match self.find(key, (va, len), need)? {
            Some(region) => access(region).map_err(|error| self.0.fault(error)),
            None => self.access_uncached(key, (va, len), need, &mut access),
        }
    }
}

impl Immediate for HostMemory {
    fn read_now(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.access_now(key, (va, out.len()), Access::REMOTE_READ, |region| region.read(va, out))
    }

    fn write_now(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.access_now(key, (va, data.len()), Access::REMOTE_WRITE, |region| region.write(va, data))
    }

    fn compare_swap_now(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.access_now(key, (va, 8), Access::REMOTE_ATOMIC, |region| region.compare_swap(va, expect, new))
    }

    #[inline(always)]
    fn view_now(&self, key: u32, va: u64, len: u64) -> Option<Words<'_>> {
        self.allowed(key, (va, len), Access::REMOTE_READ)?.view(va, usize::try_from(len).ok()?)
    }

    #[inline(always)]
    fn view_mut_now(&self, key: u32, va: u64, len: u64) -> Option<WordsMut<'_>> {
        let need = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.allowed(key, (va, len), need)?.view_mut(va, usize::try_from(len).ok()?)
    }

    fn fetch_add_now(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.access_now(key, (va, 8), Access::REMOTE_ATOMIC, |region| region.fetch_add(va, n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_on;
    use crate::{Call, GetParams, Limits, Status, TraversalParams, host_runner, op};
    use remora_memory::Buffer;

    const ALL: Access = Access::all();

    fn registry() -> (Arc<Registry>, Pd) {
        let registry = Arc::new(Registry::new([3; 32]));
        let pd = registry.alloc_pd();
        (registry, pd)
    }

    fn region(registry: &Registry, pd: Pd, access: Access) -> Arc<Region> {
        let buffer = Buffer::from_boxed(vec![0; 256].into());
        registry.register(pd, &buffer, 0, 256, Some(0), access).unwrap()
    }

    /// Polls until done; returns the result and how often it was pending.
    fn drive<T>(task: impl Future<Output = T>) -> (T, u32) {
        let mut task = std::pin::pin!(task);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut pending = 0;
        loop {
            match task.as_mut().poll(&mut cx) {
                Poll::Ready(result) => return (result, pending),
                Poll::Pending => pending += 1,
            }
        }
    }

    #[test]
    fn a_kernel_reaches_what_its_caller_could_by_verbs() {
        let (registry, pd) = registry();
        let other = registry.alloc_pd();
        for prefetching in [false, true] {
            // A call each, as one that is denied has had its try.
            let memory = || HostMemory::new(registry.clone(), pd, prefetching, Limits::default());
            let read = |key| drive(memory().read(key, 8, &mut [0; 8])).0;
            let write = |key| drive(memory().write(key, 8, &[0; 8])).0;
            let swap = |key| drive(memory().compare_swap(key, 8, 0, 0)).0;
            let add = |key| drive(memory().fetch_add(key, 8, 0)).0;
            for access in [
                ALL,
                Access::empty(),
                Access::REMOTE_READ,
                Access::LOCAL_WRITE,
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
                Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
            ] {
                let key = region(&registry, pd, access).key();
                let may = |need| if access.contains(need) { Ok(()) } else { Err(Fault::Access) };
                assert_eq!(read(key), may(Access::REMOTE_READ), "{access:?}");
                assert_eq!(write(key), may(Access::REMOTE_WRITE), "{access:?}");
                assert_eq!(swap(key).map(drop), may(Access::REMOTE_ATOMIC), "{access:?}");
                assert_eq!(add(key).map(drop), may(Access::REMOTE_ATOMIC), "{access:?}");
            }
            let elsewhere = region(&registry, other, ALL).key();
            assert_eq!((read(elsewhere), write(elsewhere)), (Err(Fault::Access), Err(Fault::Access)));
            assert_eq!(read(0), Err(Fault::Access));
        }
    }

    #[test]
    fn accesses_do_what_they_say_and_give_way_once() {
        let (registry, pd) = registry();
        let key = region(&registry, pd, ALL).key();
        for (prefetching, pending) in [(false, 0), (true, 1)] {
            let memory = HostMemory::new(registry.clone(), pd, prefetching, Limits::default());
            assert_eq!(drive(memory.write(key, 64, &7u64.to_ne_bytes())), (Ok(()), pending));
            assert_eq!(drive(memory.fetch_add(key, 64, 3)), (Ok(7), pending));
            assert_eq!(drive(memory.compare_swap(key, 64, 10, 1)), (Ok(10), pending));
            let mut word = [0; 8];
            assert_eq!(drive(memory.read(key, 64, &mut word)), (Ok(()), pending));
            assert_eq!(u64::from_ne_bytes(word), 1);
            assert_eq!(drive(memory.fetch_add(key, 68, 1)).0, Err(Fault::Misaligned));
            for va in [250, u64::MAX] {
                let memory = memory.another(Limits::default());
                assert_eq!(drive(memory.read(key, va, &mut word)), (Err(Fault::Access), 0));
            }
        }
    }

    /// Nothing that a kernel does after a wrong key, or without naming a byte, tells it of any key.
    #[test]
    fn a_call_has_one_try_and_no_bytes_tell_nothing() {
        let (registry, pd) = registry();
        let right = region(&registry, pd, ALL).key();
        let elsewhere = region(&registry, registry.alloc_pd(), ALL).key();
        for prefetching in [false, true] {
            let mut memory = HostMemory::new(registry.clone(), pd, prefetching, Limits::default());
            for key in [right, elsewhere, right ^ 1, 0] {
                for va in [0, 8, u64::MAX] {
                    assert_eq!(memory.read_now(key, va, &mut []), Ok(()));
                    let pending = u32::from(prefetching);
                    assert_eq!(drive(memory.read(key, va, &mut [])), (Ok(()), pending));
                    assert_eq!(drive(memory.write(key, va, &[])), (Ok(()), pending));
                    assert_eq!(drive(memory.write_streamed(key, va, &[])), (Ok(()), 0));
                }
            }
            assert_eq!(memory.settle(Status::Ok), Status::Ok);
            // Wrong in the key, the address, the domain: all alike.
            for (key, va) in [(right ^ 1, 0), (right ^ 0x100, 0), (right, 249), (right, 1 << 40), (elsewhere, 0)] {
                memory.renew(Limits::default());
                assert_eq!(memory.read_now(right, 0, &mut [0; 8]), Ok(()));
                assert_eq!(memory.read_now(key, va, &mut [0; 8]), Err(Fault::Access));
                memory.earn(1 << 20);
                memory.set_limits(Limits::default());
                assert_eq!(memory.read_now(right, 0, &mut [0; 8]), Err(Fault::StepLimit), "no second try");
                assert_eq!(memory.settle(Status::Ok), Status::AccessDenied, "whatever the kernel says");
            }
            memory.renew(Limits::default());
            assert_eq!(memory.read_now(right, 0, &mut [0; 8]), Ok(()), "the next call has its own");
        }
    }

    #[test]
    fn deregistered_regions_are_gone_and_many_are_no_trouble() {
        let (registry, pd) = registry();
        let mut memory = HostMemory::new(registry.clone(), pd, false, Limits::default());
        let regions: Vec<_> = (0..2 * CACHED).map(|_| region(&registry, pd, ALL)).collect();
        let read = |memory: &HostMemory, key| drive(memory.read(key, 0, &mut [0])).0;
        for round in 0..2 {
            for region in &regions {
                assert_eq!(read(&memory, region.key()), Ok(()), "round {round}");
            }
        }
        for region in &regions {
            registry.deregister(region.key()).unwrap();
            memory.renew(Limits::default());
            assert_eq!(read(&memory, region.key()), Err(Fault::Access));
        }
        assert!(regions.iter().any(|region| Arc::strong_count(region) > 1));
        assert!((0..CACHED).any(|_| memory.is_stale()));
        memory = memory.fresh(Limits::default());
        assert!(!(0..CACHED).any(|_| memory.is_stale()));
        assert!(regions.iter().all(|region| Arc::strong_count(region) == 1), "memory is free to go");
    }

    /// A client with more regions than are remembered is not waited for longer than others.
    #[test]
    fn accesses_to_a_region_that_the_cache_has_no_room_for_give_way() {
        let (registry, pd) = registry();
        for (prefetching, pending) in [(false, 0), (true, 1)] {
            let memory = HostMemory::new(registry.clone(), pd, prefetching, Limits::default());
            let mut regions = (0..8 * CACHED).map(|_| region(&registry, pd, ALL).key());
            let key = regions.find(|key| memory.0.domain.look_up(*key).is_none()).expect("one too many");
            assert_eq!(drive(memory.write(key, 8, &[7; 8])), (Ok(()), pending));
            let mut word = [0; 8];
            assert_eq!(drive(memory.read(key, 8, &mut word)), (Ok(()), pending));
            assert_eq!(word, [7; 8]);
            assert_eq!(drive(memory.fetch_add(key, 16, 1)), (Ok(0), pending));
            assert_eq!(drive(memory.touch(key, 8, 8)), ((), pending));
        }
    }

    /// The very same kernels, prefetching and not, over registered memory; many calls at once.
    #[test]
    fn runner_serves_calls_of_each_domain() {
        let (registry, pd) = registry();
        let stranger = registry.alloc_pd();
        let list = region(&registry, pd, Access::REMOTE_READ | Access::LOCAL_WRITE);
        // Two elements and a value.
        for (at, word) in [(64, 1u64), (72, 128), (128, 2), (144, 200), (200, 99)] {
            list.write(at, &word.to_le_bytes()).unwrap();
        }
        let params = TraversalParams::list(64, 2, 8, list.key(), list.key()).encode();
        let memory = HostMemory::new(registry.clone(), pd, true, Limits::default());
        assert_eq!(run_on(&memory, op::TRAVERSAL, &params), (Status::Ok, 99u64.to_le_bytes().to_vec()));

        for prefetching in [false, true] {
            let mut runner = host_runner(registry.clone(), prefetching, 4, Limits::default());
            for (tag, pd) in [(0, Some(pd)), (1, Some(stranger)), (2, None), (3, Some(pd))] {
                let op = if tag == 3 { 77 } else { op::TRAVERSAL };
                let mut call = Call::new(op, &params, 8);
                (call.pd, call.tag) = (pd, tag);
                runner.start(call).unwrap();
            }
            let refused = runner.start(Call::new(op::GET, &[0; GetParams::LEN], 8)).unwrap_err();
            assert_eq!((refused.op, runner.in_flight(), runner.capacity()), (op::GET, 4, 4));
            let mut done = Vec::new();
            while runner.in_flight() > 0 {
                runner.poll(&mut |call, status| done.push((call.tag, status)));
            }
            done.sort_by_key(|&(tag, _)| tag);
            let denied = Status::AccessDenied;
            assert_eq!(done, [(0, Status::Ok), (1, denied), (2, denied), (3, Status::UnknownOp)]);
        }
    }
}
