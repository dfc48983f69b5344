//! A place's pool of running kernels, with the types of kernel and memory erased.

use crate::builtins::{Builtins, Kernel as _};
use crate::call::{Call, Status};
use crate::host::HostMemory;
use crate::memory::Limits;
use crate::pool::TaskPool;
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

/// A runner of calls as `task` makes futures of them; each gives its call back, and how it ended.
///
/// A closure and not a [`Kernel`](crate::Kernel): whether a kernel's future may move between threads shows only where
/// its type is known.
pub fn runner<F, T>(task: T, capacity: usize) -> Box<dyn Runner + Send>
where
    F: Future<Output = (Call, Status)> + Send + 'static,
    T: FnMut(Call) -> F + Send + 'static,
{
    Box::new(PoolRunner { pool: TaskPool::new(capacity), task })
}

/// A task per call.
struct PoolRunner<F, T> {
    pool: TaskPool<F>,
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
        self.pool.spawn_with(|| (self.task)(call));
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

/// A runner of the built-in kernels over registered memory, each call within its own protection
/// domain; a call without one is denied. For `prefetching` see [`HostMemory::new`].
pub fn host_runner(
    registry: Arc<Registry>,
    prefetching: bool,
    capacity: usize,
    limits: Limits,
) -> Box<dyn Runner + Send> {
    let task = |mut call: Call, memory: Option<HostMemory>| async move {
        let status = match &memory {
            Some(memory) => Builtins.run(memory, &mut call).await,
            None => Status::AccessDenied,
        };
        (call, status, memory)
    };
    host_runner_of(task, registry, prefetching, capacity, limits)
}

/// Like [`host_runner`], of other kernels: `task` runs a call with the memory of its protection domain, none if it has
/// no domain, and gives back both. A closure for the reason that [`runner`] gives.
pub fn host_runner_of<F, T>(
    task: T,
    registry: Arc<Registry>,
    prefetching: bool,
    capacity: usize,
    limits: Limits,
) -> Box<dyn Runner + Send>
where
    F: Future<Output = (Call, Status, Option<HostMemory>)> + Send + 'static,
    T: FnMut(Call, Option<HostMemory>) -> F + Send + 'static,
{
    let domains = Vec::with_capacity(DOMAINS);
    let memories = Memories { registry, prefetching, limits, domains, turn: 0 };
    Box::new(HostRunner { pool: TaskPool::new(capacity), task, memories })
}

/// A task per call, with a memory from a store of them.
struct HostRunner<F, T> {
    pool: TaskPool<F>,
    task: T,
    memories: Memories,
}

impl<F, T> Runner for HostRunner<F, T>
where
    F: Future<Output = (Call, Status, Option<HostMemory>)>,
    T: FnMut(Call, Option<HostMemory>) -> F,
{
    fn start(&mut self, call: Call) -> Result<(), Call> {
        if self.pool.is_full() {
            return Err(call);
        }
        let memory = call.pd.map(|pd| self.memories.take(pd));
        self.pool.spawn_with(|| (self.task)(call, memory));
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(Call, Status)) -> usize {
        let memories = &mut self.memories;
        memories.refresh();
        self.pool.poll(|(call, status, memory)| {
            if let Some(mut memory) = memory {
                memory.settle();
                memories.put_back(memory);
            }
            done(call, status);
        })
    }

    fn in_flight(&self) -> usize {
        self.pool.len()
    }

    fn capacity(&self) -> usize {
        self.pool.capacity()
    }
}

/// The memory of each protection domain, the one used last in front. A memory that a task is done with is kept for
/// another task, so that tasks do not contend for a reference count.
struct Memories {
    registry: Arc<Registry>,
    prefetching: bool,
    limits: Limits,
    domains: Vec<Domain>,
    /// The domain whose cache was looked at last.
    turn: usize,
}

struct Domain {
    memory: HostMemory,
    spare: Vec<HostMemory>,
}

impl Memories {
    #[inline]
    fn take(&mut self, pd: Pd) -> HostMemory {
        match self.domains.iter().position(|domain| domain.memory.pd() == pd) {
            Some(0) => {}
            Some(at) => self.domains.swap(0, at),
            None => {
                self.domains.truncate(DOMAINS - 1);
                let registry = self.registry.clone();
                let memory = HostMemory::new(registry, pd, self.prefetching, self.limits);
                self.domains.insert(0, Domain { memory, spare: Vec::new() });
            }
        }
        let Domain { memory, spare } = &mut self.domains[0];
        match spare.pop() {
            Some(mut memory) => {
                memory.renew(self.limits);
                memory
            }
            None => memory.another(self.limits),
        }
    }

    /// Renews the next domain's cache in turn, if it is stale.
    #[inline]
    fn refresh(&mut self) {
        self.turn = if self.turn + 1 < self.domains.len() { self.turn + 1 } else { 0 };
        if let Some(Domain { memory, spare }) = self.domains.get_mut(self.turn)
            && memory.is_stale()
        {
            *memory = memory.fresh(self.limits);
            spare.clear();
        }
    }

    #[inline]
    fn put_back(&mut self, memory: HostMemory) {
        let home = self.domains.iter_mut().find(|domain| domain.memory.is_like(&memory));
        if let Some(domain) = home {
            domain.spare.push(memory);
        }
    }
}
