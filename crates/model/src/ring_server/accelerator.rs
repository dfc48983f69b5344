//! The coherent accelerator: cpoll or polling, the scheduler of rings, requests under way, and replies by its handler of
//! send queues.

use std::collections::VecDeque;

use remora_ring::RingScheduler;

use super::{Event, POINTERS, RESPONSES, RING_BYTES, RINGS, RingAccess, RingServerError, SEND_QUEUES, World};
use crate::component::coherent::CoherentParams;
use crate::component::controller::{CoherenceController, ControllerParams};
use crate::component::cpoll::{CpollChecker, CpollRegion, POINTER};
use crate::component::memory::{MemoryChannels, MemoryParams};
use crate::component::sq_handler::{SqHandler, SqHandlerParams};
use crate::platform::{LocalMemory, Platform};
use crate::resource::{Pipeline, Usage};
use crate::time::Ps;

/// Where what requests ask for lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplicationMemory {
    /// In the host's memory, over UPI with a soft controller.
    Host,
    /// In the host's memory, over CXL with a hard one.
    HostByCxl,
    /// In DDR of the accelerator.
    LocalDdr,
    /// In HBM of the accelerator.
    LocalHbm,
}

/// How the accelerator hears of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// By cpoll, on a buffer of pointers.
    Cpoll,
    /// It polls one ring's pointer after the other.
    Polling,
}

/// An accelerator and what it does.
#[derive(Clone, Copy, Debug)]
pub struct AccelSpec {
    /// Where what requests ask for lies.
    pub memory: ApplicationMemory,
    /// How it hears of requests.
    pub notification: Notification,
    /// Replies that it rings the NIC's doorbell for.
    pub doorbell_batch: u32,
    /// Requests under way at most; 0 is what the platform says.
    pub outstanding: usize,
}

const LINE: u64 = 64;

/// An accelerator at work.
pub struct AcceleratorUnit {
    controller: CoherenceController,
    local: Option<MemoryChannels>,
    checker: CpollChecker,
    notification: Notification,
    /// From a line taken away until the accelerator knows.
    signal: Ps,
    /// How old a line is when it comes: it was read about half a read before.
    age: Ps,
    poll: Ps,
    polled: usize,
    /// Looks of the poller under way, and whether it waits for one to end.
    looking: usize,
    held: bool,
    scheduler: RingScheduler,
    rings: Vec<Ring>,
    /// Requests that it works on.
    under_way: usize,
    outstanding: usize,
    /// A step of the state machine.
    steps: Pipeline,
    handler: SqHandler,
}

#[derive(Default)]
struct Ring {
    /// Requests that landed, of which it may not know yet.
    landed: VecDeque<u32>,
    /// Those of them that it knows of.
    known: u64,
    under_way: usize,
    /// Replies whose doorbell was not rung yet.
    posted: Vec<u32>,
    /// Commands written to its send queue.
    commands: u64,
}

/// Looks of a poller under way, at most. Behind a busy link some hundred wait; one that polls in next to no time would pile
/// them up without end.
const LOOKS: usize = 1 << 12;

impl AcceleratorUnit {
    /// An idle accelerator that serves so many rings; `None` if the platform does not describe the memory.
    pub fn new(platform: &Platform, spec: &AccelSpec, rings: usize) -> Result<Option<Self>, RingServerError> {
        let (Some(accel), Some(soft)) = (&platform.accel, &platform.coherence_controller) else { return Ok(None) };
        let (wqe, nic) = (platform.nic.as_ref().map_or(LINE, |nic| nic.pipeline.wqe), &platform.ring_server);
        let Some(costs) = nic else { return Ok(None) };
        let mut params = ControllerParams::new(accel, soft);
        let mut clock = accel.clock;
        let (mut signal, mut local) = (Ps(accel.signal), None);
        match (spec.memory, &platform.accel_ddr, &platform.accel_hbm, &platform.accel_cxl) {
            (ApplicationMemory::Host, ..) => {}
            (ApplicationMemory::HostByCxl, _, _, Some(cxl)) => {
                params.link = CoherentParams {
                    read_ps: cxl.read_latency,
                    bandwidth_bytes_per_s: cxl.bandwidth,
                    issue_ps: Ps::cycles(cxl.issue_cycles, cxl.clock).0,
                    in_flight: accel.in_flight as usize,
                    order: cxl.order,
                };
                // A snoop goes one way.
                signal = Ps(cxl.read_latency / 2);
            }
            (ApplicationMemory::LocalDdr, Some(memory), ..) | (ApplicationMemory::LocalHbm, _, Some(memory), _) => {
                clock = memory.clock;
                local = Some(MemoryChannels::new(&memory.into()));
            }
            _ => return Ok(None),
        }
        let mut controller = CoherenceController::new(&params);
        // Where the accelerator has memory of its own, rings and pointers lie there: the second way of cpoll.
        let region = if local.is_some() { CpollRegion::Local } else { CpollRegion::Pinned };
        let checker = CpollChecker::pointers(region, rings);
        if spec.notification == Notification::Cpoll && region == CpollRegion::Pinned {
            controller.pin(POINTERS, checker.bytes())?;
        }
        let handler = SqHandlerParams {
            doorbell_ps: accel.doorbell,
            batch: spec.doorbell_batch.max(1),
            signalled: costs.signalled as u32,
            wqe_bytes: wqe,
            order: accel.order,
        };
        Ok(Some(Self {
            age: Ps(params.link.read_ps / 2),
            controller,
            local,
            checker,
            notification: spec.notification,
            signal,
            // No look in less than a cycle.
            poll: Ps::cycles(soft.poll_cycles.max(1.0), accel.clock),
            polled: 0,
            looking: 0,
            held: false,
            scheduler: RingScheduler::default(),
            rings: (0..rings).map(|_| Ring::default()).collect(),
            under_way: 0,
            outstanding: if spec.outstanding > 0 { spec.outstanding } else { accel.in_flight as usize },
            steps: Pipeline::new(Ps::cycles(1.0, clock), Ps::cycles(soft.step_cycles, clock)).ordered(soft.order),
            handler: SqHandler::new(&handler, rings),
        }))
    }

    /// Begins to poll, if it does.
    pub fn start(&mut self, world: &mut World) {
        if self.notification == Notification::Polling {
            world.queue.push(self.poll, Event::Poll);
        }
    }

    /// Something happens.
    pub fn event(&mut self, world: &mut World, now: Ps, event: Event) {
        match event {
            Event::Arrive(flight) => {
                let ring = world.flights[flight as usize].ring;
                self.rings[ring].landed.push_back(flight);
                if self.checker.write(now, ring) && self.notification == Notification::Cpoll {
                    world.queue.push(now + self.signal, Event::Signal(ring as u16));
                }
            }
            Event::Signal(ring) => {
                let pointer = POINTERS + u64::from(ring) * POINTER;
                let (here, as_of) = match self.local {
                    // The pointer passed the controller: nothing is fetched.
                    Some(_) => (now, now),
                    None => {
                        let here = self.controller.fetch(now, pointer, POINTER);
                        (here, here - self.age)
                    }
                };
                world.queue.push(here, Event::Looked(ring, as_of));
            }
            Event::Poll => {
                let ring = self.polled;
                self.polled = (ring + 1) % self.rings.len();
                let here = self.controller.fetch(now, POINTERS + ring as u64 * POINTER, POINTER);
                world.queue.push(here, Event::Looked(ring as u16, here - self.age));
                self.looking += 1;
                self.held = self.looking >= LOOKS;
                if !self.held {
                    world.queue.push(now + self.poll, Event::Poll);
                }
            }
            Event::Looked(ring, as_of) => {
                self.looking = self.looking.saturating_sub(1);
                if std::mem::take(&mut self.held) {
                    world.queue.push(now + self.poll, Event::Poll);
                }
                let (found, again) = self.checker.look(as_of, usize::from(ring));
                if again && self.notification == Notification::Cpoll {
                    world.queue.push(now + self.signal, Event::Signal(ring));
                }
                for (ring, count) in found {
                    self.rings[ring].known += count;
                    self.scheduler.wake(ring as u32, ring as u32);
                }
                self.take(world, now);
            }
            Event::Step(flight) => self.step(world, now, flight),
            Event::Sent(_) | Event::Replied(_) | Event::Thread(_) | Event::Done(_) => {}
        }
    }

    /// Takes requests while there is room for them, and fetches their entries.
    fn take(&mut self, world: &mut World, now: Ps) {
        while self.under_way < self.outstanding {
            let Some(ring) = self.scheduler.next(|_| true) else { return };
            let entries = &mut self.rings[ring as usize];
            let Some(flight) = entries.landed.pop_front() else {
                self.scheduler.sleep(ring);
                continue;
            };
            entries.known -= 1;
            entries.under_way += 1;
            self.under_way += 1;
            if entries.known == 0 {
                self.scheduler.sleep(ring);
            }
            let what = &world.flights[flight as usize];
            let (_, begun) = self.steps.serve(now, 1);
            let here = match &mut self.local {
                Some(memory) => memory.read(begun, what.entry, what.what.request).1,
                None => self.controller.fetch(begun, what.entry, what.what.request),
            };
            world.queue.push(here, Event::Step(flight));
        }
    }

    /// A request's next accesses, or its reply.
    fn step(&mut self, world: &mut World, now: Ps, flight: u32) {
        let group: Vec<RingAccess> = world.flights[flight as usize].group().to_vec();
        let (_, begun) = self.steps.serve(now, 1);
        if !group.is_empty() {
            let here = group.iter().map(|access| self.access(world, begun, access)).max().unwrap_or(begun);
            world.queue.push(here, Event::Step(flight));
            return;
        }
        let World { flights, network, .. } = world;
        let what = &flights[flight as usize];
        let (ring, reply) = (what.ring, what.what.reply);
        // The entry is reset to zero.
        let (entry, bytes) = (what.entry, what.what.request);
        match &mut self.local {
            Some(memory) => memory.write(begun, entry, bytes),
            None => self.controller.write(begun, entry, bytes),
        };
        let entries = &mut self.rings[ring];
        entries.under_way -= 1;
        self.under_way -= 1;
        match network {
            None => {
                let taken = self.controller.write(begun, entry - RINGS + RESPONSES, reply);
                world.reply(taken + self.age, &[flight], 0);
            }
            Some(_) => {
                let last = entries.under_way == 0 && entries.known == 0;
                let address = SEND_QUEUES + ring as u64 * RING_BYTES + entries.commands * 128 % RING_BYTES;
                entries.commands += 1;
                entries.posted.push(flight);
                let rung = self.handler.post((ring, address), (begun, reply), last, &mut self.controller);
                if let Some(rung) = rung {
                    let posted = std::mem::take(&mut entries.posted);
                    world.reply(rung.at, &posted, rung.signalled);
                }
            }
        }
        self.take(world, now);
    }

    /// An access to what requests ask for: when it is done.
    fn access(&mut self, world: &mut World, at: Ps, access: &RingAccess) -> Ps {
        let RingAccess { address, bytes, writes, .. } = *access;
        match (&mut self.local, writes) {
            (Some(memory), false) => memory.read(at, address, bytes).1,
            (Some(memory), true) => memory.write(at, address, bytes),
            (None, false) => {
                let here = self.controller.read(at, address, bytes);
                here + world.host.beyond_dram(at, address, bytes, false)
            }
            (None, true) => {
                let taken = self.controller.write(at, address, bytes);
                taken + world.host.beyond_dram(taken, address, bytes, true)
            }
        }
    }

    /// How busy all parts were over `span`.
    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        let mut all = self.controller.usage(span).to_vec();
        all.push(self.steps.usage("accelerator steps", span));
        all.push(self.handler.usage(span));
        all.extend(self.local.iter().map(|memory| memory.usage("accelerator memory", span)));
        all
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.controller.reset();
        self.steps.reset();
        self.handler.reset();
        self.local.iter_mut().for_each(MemoryChannels::reset);
    }
}

impl From<&LocalMemory> for MemoryParams {
    fn from(memory: &LocalMemory) -> Self {
        Self {
            latency_ps: memory.latency,
            bandwidth_bytes_per_s: memory.bandwidth,
            channels: memory.channels as usize,
            interleave_bytes: memory.interleave,
            line_bytes: LINE,
            order: memory.order,
        }
    }
}
