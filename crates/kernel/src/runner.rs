//! A place's pool of running kernels, with the types of kernel and memory erased.

use crate::builtins::{Builtins, Kernel};
use crate::call::{Call, Status};
use crate::host::HostMemory;
use crate::memory::{Limited, Limits, Memory};
use crate::pool::Pool;
use remora_memory::{Pd, Registry};
use std::sync::Arc;

/// Protection domains whose memory a host's runner remembers.
const DOMAINS: usize = 64;

/// Runs calls of kernels, many at once.
///
/// Which call is started next, and so fairness between connections, is up to the caller; of those
/// in flight every one gets a turn at every poll.
pub trait Runner {
    /// Takes a call in, or gives it back if as many are in flight as there may be.
    fn start(&mut self, call: Call) -> Result<(), Call>;

    /// Lets every call run on to its next memory access, and hands over those that are done.
    /// Returns how many were.
    fn poll(&mut self, done: &mut dyn FnMut(Call, Status)) -> usize;

    /// Calls in flight.
    fn in_flight(&self) -> usize;

    /// Calls that may be in flight.
    fn capacity(&self) -> usize;
}

/// A runner of `kernel` over the memory that `memory_for` finds for each call.
pub fn runner<K, M>(
    kernel: K,
    mut memory_for: impl FnMut(&Call) -> M + 'static,
    capacity: usize,
    limits: Limits,
) -> Box<dyn Runner>
where
    K: Kernel + Clone + 'static,
    M: Memory + 'static,
{
    let task = move |mut call: Call| {
        let (kernel, memory) = (kernel.clone(), memory_for(&call));
        async move {
            let limited = Limited::new(&memory, limits);
            let status = kernel.run(&limited, &mut call).await;
            (call, status)
        }
    };
    Box::new(PoolRunner { pool: Pool::new(capacity), task })
}

/// A runner of the built-in kernels over registered memory, each call within its own protection
/// domain; a call without one is denied every access. For `prefetching` see [`HostMemory::new`].
pub fn host_runner(
    registry: Arc<Registry>,
    prefetching: bool,
    capacity: usize,
    limits: Limits,
) -> Box<dyn Runner + Send> {
    let mut domains = Domains { registry, prefetching, memories: Vec::with_capacity(DOMAINS) };
    let task = move |mut call: Call| {
        let memory = call.pd.map(|pd| domains.memory(pd));
        async move {
            let Some(memory) = memory else {
                return (call, Status::AccessDenied);
            };
            let limited = Limited::new(&memory, limits);
            let status = Builtins.run(&limited, &mut call).await;
            (call, status)
        }
    };
    Box::new(PoolRunner { pool: Pool::new(capacity), task })
}

/// A task per call.
struct PoolRunner<F, T> {
    pool: Pool<F>,
    task: T,
}

impl<F, T> Runner for PoolRunner<F, T>
where
    F: Future<Output = (Call, Status)>,
    T: FnMut(Call) -> F,
{
    fn start(&mut self, call: Call) -> Result<(), Call> {
        if self.pool.is_full() {
            return Err(call);
        }
        let spawned = self.pool.try_spawn((self.task)(call));
        debug_assert!(spawned.is_ok(), "a slot was free");
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(Call, Status)) -> usize {
        self.pool.poll(|(call, status)| done(call, status))
    }

    fn in_flight(&self) -> usize {
        self.pool.len()
    }

    fn capacity(&self) -> usize {
        self.pool.capacity()
    }
}

/// The memory of each protection domain, the one used last in front.
struct Domains {
    registry: Arc<Registry>,
    prefetching: bool,
    memories: Vec<HostMemory>,
}

impl Domains {
    #[inline]
    fn memory(&mut self, pd: Pd) -> HostMemory {
        match self.memories.iter().position(|memory| memory.pd() == pd) {
            Some(0) => {}
            Some(at) => self.memories.swap(0, at),
            None => {
                self.memories.truncate(DOMAINS - 1);
                self.memories.insert(0, HostMemory::new(self.registry.clone(), pd, self.prefetching));
            }
        }
        self.memories[0].refresh();
        self.memories[0].clone()
    }
}
