//! Threads that serve rings in batches: those of the host, and those of a NIC's cores.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::memory::LINE;
use super::{Event, RingAccess, RingLoad, RingRequest, World};
use crate::component::cache::{Cache, CacheAccess, CacheParams};
use crate::component::memory::MemoryChannels;
use crate::component::nic_cores::NicCoreParams;
use crate::platform::Platform;
use crate::resource::{Order, Pool, Usage};
use crate::time::Ps;

/// Threads of a server.
#[derive(Clone, Copy, Debug)]
pub struct ThreadSpec {
    /// How many, each on a core of its own.
    pub threads: usize,
    /// Requests that one takes at once.
    pub batch: usize,
    /// Lines that one has under way; 0 is what the platform says.
    pub misses: usize,
    /// Bytes of the card's memory that keep what of the host's was used last; 0 if all is on the card.
    pub cache_bytes: u64,
    /// Bytes of what is kept there as one.
    pub cached_bytes: u64,
    /// Whether the operating system takes a thread away now and then.
    pub disturbed: bool,
}

/// What threads reach beside the host's memory.
enum Near {
    /// Nothing: they are the host's.
    Host,
    /// The card's memory.
    Card(Box<CardMemory>),
}

struct CardMemory {
    cache: Cache,
    memory: MemoryChannels,
    /// What of the host's memory is here; all of it if there is none.
    kept: Option<Cache>,
    host_read: Ps,
    host_pipelined: Ps,
}

struct Thread {
    queue: VecDeque<u32>,
    batch: Vec<u32>,
    idle: bool,
    misses: Pool,
    busy: Ps,
}

/// What a thread's work costs.
struct Costs {
    poll: Ps,
    dispatch: Ps,
    issue: Ps,
    switch: Ps,
    /// In which order requests that wait are taken.
    order: Order,
    /// Work done in a time, as a part of what a host core does.
    speed: f64,
    /// How often for a request the system takes the thread away, and for how long.
    stalls: (f64, Ps),
}

/// Threads.
pub struct Threads {
    spec: ThreadSpec,
    costs: Costs,
    threads: Vec<Thread>,
    near: Near,
    chance: ChaCha8Rng,
    /// What they are, in tables.
    name: &'static str,
}

impl Threads {
    /// Of the host.
    pub fn host(platform: &Platform, spec: &ThreadSpec, seed: u64) -> Self {
        let core = &platform.host;
        let costs = Costs {
            poll: Ps(core.poll),
            dispatch: Ps(core.dispatch),
            issue: Ps(core.issue),
            switch: Ps(core.switch),
            order: core.order,
            speed: 1.0,
            stalls: stalls(platform, spec),
        };
        Self::new(spec, costs, core.misses as usize, Near::Host, "host cores", seed)
    }

    /// Of the NIC's cores, if it has any.
    pub fn card(platform: &Platform, spec: &ThreadSpec, seed: u64) -> Option<Self> {
        let card = platform.nic_cores.as_ref()?;
        let params = NicCoreParams::new(card, &platform.host);
        let costs = Costs {
            poll: Ps(platform.host.poll),
            dispatch: Ps(card.dispatch),
            issue: Ps(card.issue),
            switch: Ps(params.cores.switch_ps),
            order: card.order,
            speed: params.speed,
            stalls: stalls(platform, spec),
        };
        let kept = (spec.cache_bytes > 0).then(|| {
            Cache::new(&CacheParams {
                size_bytes: spec.cache_bytes,
                line_bytes: spec.cached_bytes.max(1),
                ways: KEPT_WAYS,
                hit_ps: 0,
            })
        });
        let memory = CardMemory {
            cache: Cache::new(&params.cache),
            memory: MemoryChannels::new(&params.memory),
            kept,
            host_read: Ps(params.host_read_ps),
            host_pipelined: Ps(params.host_pipelined_ps),
        };
        let near = Near::Card(Box::new(memory));
        Some(Self::new(spec, costs, card.misses as usize, near, "NIC cores", seed))
    }

    fn new(spec: &ThreadSpec, costs: Costs, misses: usize, near: Near, name: &'static str, seed: u64) -> Self {
        let misses = if spec.misses > 0 { spec.misses } else { misses };
        let thread = || Thread {
            queue: VecDeque::new(),
            batch: Vec::new(),
            idle: true,
            misses: Pool::new(misses).ordered(costs.order),
            busy: Ps::ZERO,
        };
        let threads = (0..spec.threads.max(1)).map(|_| thread()).collect();
        Self { spec: *spec, costs, threads, near, chance: ChaCha8Rng::seed_from_u64(seed), name }
    }

    /// Brings to the card what it keeps of the host's memory after a long run of such requests, for which a run is too short.
    pub fn warm(&mut self, load: &mut dyn RingLoad) {
        let Near::Card(card) = &mut self.near else { return };
        let Some(kept) = &mut card.kept else { return };
        let room = self.spec.cache_bytes / kept.line_bytes();
        let (mut request, mut brought) = (RingRequest::default(), 0);
        // What is asked for may be less than there is room for.
        for _ in 0..4 * room {
            request.accesses.clear();
            load.next(&mut request);
            let mut there =
                |access: &&RingAccess| kept.access(access.address / kept.line_bytes(), CacheAccess::Load).hit;
            brought += request.accesses.iter().filter(|access| !there(access)).count() as u64;
            if brought >= room {
                return;
            }
        }
    }

    /// Something happens.
    pub fn event(&mut self, world: &mut World, now: Ps, event: Event) {
        match event {
            Event::Arrive(flight) => {
                let number = world.flights[flight as usize].ring % self.threads.len();
                let thread = &mut self.threads[number];
                thread.queue.push_back(flight);
                if std::mem::replace(&mut thread.idle, false) {
                    world.queue.push(now + self.costs.poll, Event::Thread(number as u16));
                }
            }
            Event::Thread(number) => self.turn(world, now, number),
            _ => {}
        }
    }

    /// A thread takes a batch, goes through its next accesses, or replies to it.
    fn turn(&mut self, world: &mut World, now: Ps, number: u16) {
        let thread = &mut self.threads[usize::from(number)];
        if thread.batch.is_empty() {
            let next = std::iter::from_fn(|| self.costs.order.take(&mut thread.queue));
            thread.batch.extend(next.take(self.spec.batch.max(1)));
            if thread.batch.is_empty() {
                thread.idle = true;
                return;
            }
            let mut at = now;
            for &flight in &thread.batch {
                let compute = world.flights[flight as usize].what.compute;
                at += self.costs.dispatch + Ps((compute.0 as f64 / self.costs.speed) as u64);
                let part = (self.chance.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                at += if part < self.costs.stalls.0 { self.costs.stalls.1 } else { Ps::ZERO };
            }
            thread.busy += at - now;
            world.queue.push(at, Event::Thread(number));
            return;
        }
        let (mut free, mut here, mut any, mut room) = (now, now, false, Ps::MAX);
        for index in 0..thread.batch.len() {
            let flight = thread.batch[index] as usize;
            let group: Vec<RingAccess> = world.flights[flight].group().to_vec();
            if group.is_empty() {
                continue;
            }
            any = true;
            if !group[0].together {
                free += self.costs.switch;
            }
            for (number, access) in group.iter().enumerate() {
                // What the core has no miss for yet is asked for when it has: until then memory is the others'.
                let start = thread.misses.start(free);
                if number > 0 && start > free {
                    world.flights[flight].next -= group.len() - number;
                    room = room.min(start);
                    break;
                }
                let (went_on, done) = self.near.access(world, &mut thread.misses, free, access);
                (free, here) = (went_on, here.max(done));
            }
        }
        if any {
            let end = free.max(here.min(room));
            thread.busy += end - now;
            world.queue.push(end, Event::Thread(number));
            return;
        }
        let batch = std::mem::take(&mut thread.batch);
        let issued = now + self.costs.issue;
        match (&self.near, world.network.is_some()) {
            // One doorbell for all; the NIC sees it across PCIe.
            (Near::Host, true) => {
                thread.busy += issued - now;
                let seen =
                    world.network.as_mut().map_or(issued, |network| network.ring(issued, &batch, &world.flights));
                world.reply(seen, &batch, 1);
                world.queue.push(issued, Event::Thread(number));
            }
            (Near::Card(_), _) => {
                thread.busy += issued - now;
                world.reply(issued, &batch, 0);
                world.queue.push(issued, Event::Thread(number));
            }
            // A store of a line each.
            (Near::Host, false) => {
                let end = now + self.costs.switch * batch.len() as u64;
                thread.busy += end - now;
                world.reply(end + world.remote, &batch, 0);
                world.queue.push(end, Event::Thread(number));
            }
        }
    }

    /// How busy the threads were over `span`.
    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        let busy: u64 = self.threads.iter().map(|thread| thread.busy.0).sum();
        let all = span.0.max(1) as f64 * self.threads.len() as f64;
        let mut usages = vec![Usage { busy: (busy as f64 / all).min(1.0), ..Usage::idle(self.name) }];
        if let Near::Card(card) = &self.near {
            usages.push(card.memory.usage("NIC memory", span));
        }
        usages
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.threads.iter_mut().for_each(|thread| thread.busy = Ps::ZERO);
        if let Near::Card(card) = &mut self.near {
            card.memory.reset();
        }
    }
}

/// Ways of the card's memory of what was used last.
const KEPT_WAYS: usize = 16;

fn stalls(platform: &Platform, spec: &ThreadSpec) -> (f64, Ps) {
    let costs = platform.ring_server.as_ref().filter(|_| spec.disturbed);
    costs.map_or((0.0, Ps::ZERO), |costs| (costs.stalls, Ps(costs.stall)))
}

impl Near {
    /// An access from `at` on: when the thread goes on, and when the data are here.
    fn access(&mut self, world: &mut World, misses: &mut Pool, at: Ps, access: &RingAccess) -> (Ps, Ps) {
        let lines = access.address / LINE..=(access.address + access.bytes.max(1) - 1) / LINE;
        match self {
            Self::Host => {
                let mut last = at;
                for line in lines {
                    let start = misses.start(at);
                    let done = match world.host.core(start, line, access.writes) {
                        None => at + world.host.hit_time(),
                        Some(done) => {
                            misses.acquire(at);
                            misses.release(start, done);
                            done
                        }
                    };
                    last = last.max(done);
                }
                (at, last)
            }
            Self::Card(card) => {
                if let Some(kept) = &mut card.kept {
                    let as_one = access.address / kept.line_bytes();
                    if !kept.access(as_one, CacheAccess::Load).hit {
                        let free = at + card.host_pipelined;
                        return (free, free + (card.host_read - card.host_pipelined));
                    }
                }
                let mut last = at;
                for line in lines {
                    let done = match card.cache.access(line, CacheAccess::Load).hit {
                        true => at + card.cache.hit_time(),
                        false => {
                            let start = misses.acquire(at);
                            let done = card.memory.read(start, line * LINE, LINE).1;
                            misses.release(start, done);
                            done
                        }
                    };
                    last = last.max(done);
                }
                (at, last)
            }
        }
    }
}
