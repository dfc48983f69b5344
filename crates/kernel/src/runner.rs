//! A place's pool of running kernels, with the types of kernel and memory erased.

use crate::builtins::{Builtins, Kernel as _};
use crate::call::{Call, Status};
use crate::host::HostMemory;
use crate::lanes::Lanes;
use crate::memory::Limits;
use crate::pool::{Ends, Meter, TaskPool};
use crate::steps::Stop;
use remora_memory::{Pd, Registry};
use std::sync::Arc;

/// Protection domains whose memory a host's runner remembers.
const DOMAINS: usize = 64;
/// Turns after which the next domain is looked at for regions that are gone, and are kept mapped by being remembered.
const REFRESH: usize = 16;

/// Runs calls of kernels, many at once.
///
/// Which call is started next is up to the caller; those in flight share polls client by client, as [`TaskPool`] says.
pub trait Runner {
    /// Takes a call in, or gives it back if as many are in flight as there may be.
    fn start(&mut self, call: Call) -> Result<(), Call>;

    /// One turn: lets calls run on, each to its next memory access, and hands over those that are done. Returns how many
    /// were.
    fn poll(&mut self, done: &mut dyn FnMut(Call, Status)) -> usize;

    /// Whether the last turn took all of its time: look at the network before the next.
    fn is_spent(&self) -> bool;

    /// Drops the call with this [`tag`](crate::CallFields::tag), with all it holds. False if there is none.
    fn cancel(&mut self, tag: u64) -> bool;

    /// Calls of a client get so many times as much time as others' from now on, where all want some: 1 if nothing is said.
    fn set_weight(&mut self, client: u32, weight: u32);

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
    Box::new(PoolRunner { pool: TaskPool::new(capacity), task, meter: Meter::default() })
}

/// A task per call.
struct PoolRunner<F: Future, T> {
    pool: TaskPool<F>,
    task: T,
    meter: Meter,
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
        self.pool.spawn_with(call.client, call.tag, &self.meter, || (self.task)(call));
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(Call, Status)) -> usize {
        self.pool.poll(&self.meter, |(call, status)| done(call, status))
    }

    fn is_spent(&self) -> bool {
        self.pool.is_spent()
    }

    fn cancel(&mut self, tag: u64) -> bool {
        self.pool.cancel(tag)
    }

    fn set_weight(&mut self, client: u32, weight: u32) {
        self.pool.set_weight(client, weight);
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

/// Like [`host_runner`], of more kernels: `task` runs a call with the memory of its protection domain, none if it has no
/// domain, and gives back both. Look-ups by built-in kernels are not left to it. A closure for the reason that [`runner`]
/// gives.
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
    let meter = Arc::<Meter>::default();
    let memories = Memories { registry, prefetching, limits, meter: meter.clone(), domains, turn: 0, next: 0 };
    Box::new(HostRunner { pool: TaskPool::with_beside(capacity), task, memories, meter, apart: Vec::new() })
}

/// A task per call, with a memory from a store of them; look-ups go in steps, in lanes.
struct HostRunner<F: Future, T> {
    pool: TaskPool<F, Lanes>,
    task: T,
    memories: Memories,
    meter: Arc<Meter>,
    /// Calls that have met what is not for their lane: empty between turns.
    apart: Vec<Call>,
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
        let Self { pool, memories, .. } = self;
        let client = call.client;
        let beside = pool.beside(client);
        let Some(pd) = beside.takes(&call) else {
            self.start_apart(call);
            return Ok(());
        };
        let limits = memories.limits;
        let work = beside.start(call, &memories.of(pd).memory, limits);
        pool.began(client, work);
        Ok(())
    }

    fn poll(&mut self, done: &mut dyn FnMut(Call, Status)) -> usize {
        let Self { pool, memories, apart, meter, .. } = self;
        memories.refresh(!pool.is_empty());
        let left = pool.poll_into(meter, Settled { memories, done, apart });
        let ended = left - apart.len();
        if !apart.is_empty() {
            self.go_on_apart();
        }
        ended
    }

    fn is_spent(&self) -> bool {
        self.pool.is_spent()
    }

    fn cancel(&mut self, tag: u64) -> bool {
        self.pool.cancel(tag)
    }

    fn set_weight(&mut self, client: u32, weight: u32) {
        self.pool.set_weight(client, weight);
    }

    fn in_flight(&self) -> usize {
        self.pool.len()
    }

    fn capacity(&self) -> usize {
        self.pool.capacity()
    }
}

impl<F, T> HostRunner<F, T>
where
    F: Future<Output = (Call, Status, Option<HostMemory>)>,
    T: FnMut(Call, Option<HostMemory>) -> F,
{
    #[cold]
    fn go_on_apart(&mut self) {
        while let Some(call) = self.apart.pop() {
            self.start_apart(call);
        }
    }

    /// Starts a call that has a slot for itself.
    #[inline(never)]
    fn start_apart(&mut self, call: Call) {
        let Self { pool, task, memories, meter, .. } = self;
        let (client, tag) = (call.client, call.tag);
        let memory = call.pd.map(|pd| memories.take(pd));
        pool.spawn_with(client, tag, meter, || task(call, memory));
    }
}

/// Calls that have ended give back their memory.
struct Settled<'a, 'd> {
    memories: &'a mut Memories,
    done: &'a mut (dyn FnMut(Call, Status) + 'd),
    /// Those that go on as futures.
    apart: &'a mut Vec<Call>,
}

impl Ends<(Call, Status, Option<HostMemory>), Lanes> for Settled<'_, '_> {
    #[inline]
    fn future(&mut self, (call, status, memory): (Call, Status, Option<HostMemory>)) {
        let status = match memory {
            Some(mut memory) => {
                let status = memory.settle(status);
                self.memories.put_back(memory);
                status
            }
            None => status,
        };
        (self.done)(call, status);
    }

    #[inline]
    fn beside(&mut self, tasks: &mut Lanes, balance: i64) -> (i64, i64) {
        match tasks.pd() {
            Some(pd) => {
                let limits = self.memories.limits;
                let Self { memories, done, apart } = self;
                let mut ended = |mut call: Call, result| match result {
                    Ok(()) => done(call, Status::Ok),
                    Err(Stop::Ends(status)) => done(call, status),
                    Err(Stop::Apart) => {
                        call.reply.clear();
                        apart.push(call);
                    }
                };
                tasks.poll((&memories.of(pd).memory, limits), balance, &mut ended)
            }
            None => (balance, 0),
        }
    }
}

/// The memory of each protection domain, the one used last in front. A memory that a task is done with is kept for
/// another task, so that tasks do not contend for a reference count.
struct Memories {
    registry: Arc<Registry>,
    prefetching: bool,
    limits: Limits,
    /// What their accesses cost.
    meter: Arc<Meter>,
    domains: Vec<Domain>,
    /// Turns so far, and the domain whose cache was looked at last.
    turn: usize,
    next: usize,
}

struct Domain {
    memory: HostMemory,
    spare: Vec<HostMemory>,
}

impl Memories {
    /// What there is of a domain.
    #[inline(always)]
    fn of(&mut self, pd: Pd) -> &mut Domain {
        if self.domains.first().is_none_or(|domain| domain.memory.pd() != pd) {
            self.put_first(pd);
        }
        &mut self.domains[0]
    }

    #[inline(never)]
    fn put_first(&mut self, pd: Pd) {
        if let Some(at) = self.domains.iter().position(|domain| domain.memory.pd() == pd) {
            return self.domains.swap(0, at);
        }
        self.domains.truncate(DOMAINS - 1);
        let registry = self.registry.clone();
        let memory = HostMemory::metered(registry, pd, self.prefetching, self.limits, self.meter.clone());
        self.domains.insert(0, Domain { memory, spare: Vec::new() });
    }

    #[inline]
    fn take(&mut self, pd: Pd) -> HostMemory {
        let limits = self.limits;
        let Domain { memory, spare } = self.of(pd);
        match spare.pop() {
            Some(mut memory) => {
                memory.renew(limits);
                memory
            }
            None => memory.another(limits),
        }
    }

    /// Renews the next domain's cache in turn, if it is stale: now and then, where the place is `busy`.
    #[inline]
    fn refresh(&mut self, busy: bool) {
        self.turn = self.turn.wrapping_add(1);
        if !busy || self.turn.is_multiple_of(REFRESH) {
            self.refresh_next();
        }
    }

    #[cold]
    fn refresh_next(&mut self) {
        self.next = if self.next + 1 < self.domains.len() { self.next + 1 } else { 0 };
        if let Some(Domain { memory, spare }) = self.domains.get_mut(self.next)
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
