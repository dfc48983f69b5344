//! Memory as a host core or the NIC beside it reaches it: registered regions, touched directly.

use crate::memory::{Fault, Memory};
use remora_memory::{Access, AccessError, Pd, Region, Registry};
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

/// Regions remembered, so that an access takes no lock.
const CACHED: usize = 8;
/// Bytes of an access that are prefetched; what follows is left to the hardware.
const PREFETCH_BYTES: usize = 1024;

/// The regions of one protection domain, with a peer's rights.
///
/// An access prefetches its cache lines and lets other tasks run before it copies, unless told to
/// copy at once. Clones are cheap and share what is cached.
#[derive(Clone)]
pub struct HostMemory(Arc<Shared>);

struct Shared {
    registry: Arc<Registry>,
    pd: Pd,
    prefetching: bool,
    regions: [OnceLock<Arc<Region>>; CACHED],
}

/// A region from the cache, or one for which the cache has no room.
enum Found<'a> {
    Cached(&'a Region),
    Held(Arc<Region>),
}

impl HostMemory {
    /// The regions of `pd`. Without `prefetching` an access copies at once.
    pub fn new(registry: Arc<Registry>, pd: Pd, prefetching: bool) -> Self {
        HostMemory(Arc::new(Shared { registry, pd, prefetching, regions: Default::default() }))
    }

    /// The protection domain.
    pub fn pd(&self) -> Pd {
        self.0.pd
    }

    /// Replaces itself by one with an empty cache if the cache is full or holds deregistered
    /// regions. Call it now and then: until then those regions' memory stays mapped.
    pub fn refresh(&mut self) {
        let last = self.0.regions[CACHED - 1].get();
        if last.is_some() || self.cached().any(|region| !region.is_valid()) {
            *self = HostMemory::new(self.0.registry.clone(), self.0.pd, self.0.prefetching);
        }
    }

    fn cached(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.0.regions.iter().map_while(|slot| slot.get())
    }

    #[inline]
    fn region(&self, key: u32) -> Result<Found<'_>, Fault> {
        let cached = self.cached().find(|region| region.key() == key);
        match cached {
            Some(region) if region.is_valid() => Ok(Found::Cached(region)),
            _ => self.look_up(key).map(Found::Held),
        }
    }

    #[cold]
    fn look_up(&self, key: u32) -> Result<Arc<Region>, Fault> {
        let region = self.0.registry.lookup(key).ok_or(Fault::Access)?;
        // Only regions of this domain: another's would keep its memory alive to no use.
        if region.pd() == self.0.pd && self.cached().all(|cached| cached.key() != key) {
            let mut spare = region.clone();
            for slot in &self.0.regions {
                let Err(back) = slot.set(spare) else { break };
                spare = back;
            }
        }
        Ok(region)
    }

    /// The region, after the check of rights and, when prefetching, a turn for the other tasks.
    #[inline]
    async fn reach(&self, key: u32, va: u64, len: usize, need: Access) -> Result<Found<'_>, Fault> {
        let region = self.region(key)?;
        region.check(self.0.pd, va, len as u64, need).map_err(fault)?;
        if self.0.prefetching {
            region.prefetch(va, len.min(PREFETCH_BYTES));
            give_way().await;
        }
        Ok(region)
    }
}

impl Memory for HostMemory {
    #[inline]
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let region = self.reach(key, va, out.len(), Access::REMOTE_READ).await?;
        region.read(va, out).map_err(fault)
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let region = self.reach(key, va, data.len(), Access::REMOTE_WRITE).await?;
        region.write(va, data).map_err(fault)
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        let region = self.reach(key, va, 8, Access::REMOTE_ATOMIC).await?;
        region.compare_swap(va, expect, new).map_err(fault)
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        let region = self.reach(key, va, 8, Access::REMOTE_ATOMIC).await?;
        region.fetch_add(va, n).map_err(fault)
    }
}

impl Deref for Found<'_> {
    type Target = Region;

    #[inline]
    fn deref(&self) -> &Region {
        match self {
            Found::Cached(region) => region,
            Found::Held(region) => region,
        }
    }
}

fn fault(error: AccessError) -> Fault {
    match error {
        AccessError::Misaligned => Fault::Misaligned,
        _ => Fault::Access,
    }
}

/// Is pending once.
#[inline]
fn give_way() -> impl Future<Output = ()> {
    let mut gave_way = false;
    poll_fn(move |cx| {
        if gave_way {
            return Poll::Ready(());
        }
        gave_way = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
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
            let memory = HostMemory::new(registry.clone(), pd, prefetching);
            let read = |key| drive(memory.read(key, 8, &mut [0; 8])).0;
            let write = |key| drive(memory.write(key, 8, &[0; 8])).0;
            let swap = |key| drive(memory.compare_swap(key, 8, 0, 0)).0;
            let add = |key| drive(memory.fetch_add(key, 8, 0)).0;
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
            let memory = HostMemory::new(registry.clone(), pd, prefetching);
            assert_eq!(drive(memory.write(key, 64, &7u64.to_ne_bytes())), (Ok(()), pending));
            assert_eq!(drive(memory.fetch_add(key, 64, 3)), (Ok(7), pending));
            assert_eq!(drive(memory.compare_swap(key, 64, 10, 1)), (Ok(10), pending));
            let mut word = [0; 8];
            assert_eq!(drive(memory.read(key, 64, &mut word)), (Ok(()), pending));
            assert_eq!(u64::from_ne_bytes(word), 1);
            assert_eq!(drive(memory.fetch_add(key, 68, 1)).0, Err(Fault::Misaligned));
            assert_eq!(drive(memory.read(key, 250, &mut word)), (Err(Fault::Access), 0));
            assert_eq!(drive(memory.read(key, u64::MAX, &mut word)), (Err(Fault::Access), 0));
        }
    }

    #[test]
    fn deregistered_regions_are_gone_and_many_are_no_trouble() {
        let (registry, pd) = registry();
        let mut memory = HostMemory::new(registry.clone(), pd, false);
        let regions: Vec<_> = (0..3 * CACHED).map(|_| region(&registry, pd, ALL)).collect();
        let read = |memory: &HostMemory, key| drive(memory.read(key, 0, &mut [0])).0;
        for round in 0..2 {
            for region in &regions {
                assert_eq!(read(&memory, region.key()), Ok(()), "round {round}");
            }
        }
        for region in &regions {
            registry.deregister(region.key()).unwrap();
            assert_eq!(read(&memory, region.key()), Err(Fault::Access));
        }
        assert!(regions.iter().any(|region| Arc::strong_count(region) > 1));
        memory.refresh();
        assert!(regions.iter().all(|region| Arc::strong_count(region) == 1), "memory is free to go");
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
        let memory = HostMemory::new(registry.clone(), pd, true);
        assert_eq!(run_on(&memory, op::TRAVERSAL, &params), (Status::Ok, 99u64.to_le_bytes().to_vec()));

        for prefetching in [false, true] {
            let mut runner = host_runner(registry.clone(), prefetching, 4, Limits::default());
            for (tag, pd) in [(0, Some(pd)), (1, Some(stranger)), (2, None), (3, Some(pd))] {
                let op = if tag == 3 { 77 } else { op::TRAVERSAL };
                runner.start(Call { pd, tag, ..Call::new(op, &params, 8) }).unwrap();
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
