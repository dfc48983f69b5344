//! A server of requests that come by rings: served by host cores in batches, by the cores of its NIC, or by a coherent
//! accelerator (RAMBDA, HPCA 2023).
//!
//! A request is described by the bytes that it brings and takes back and by the accesses that it makes, one after the other
//! or some at once; the load says what they are. Requests come from clients on the other socket, which write rings in the
//! server's memory themselves, or from clients behind a network, whose WRITEs land there.

mod accelerator;
mod memory;
mod network;
mod threads;
pub mod transaction;

use crate::event::WheelQueue;
use crate::platform::{AccelDevice, Platform};
use crate::resource::{Usage, binding};
use crate::time::Ps;

pub use accelerator::{AccelSpec, ApplicationMemory, Notification};
pub use memory::HostMemory;
pub use network::NetworkSpec;
pub use threads::ThreadSpec;

use accelerator::AcceleratorUnit;
use memory::Host;
use network::Network;
use threads::Threads;

/// An access of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAccess {
    /// Where.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether it writes.
    pub writes: bool,
    /// Whether it goes on at once with the one before it, rather than after it.
    pub together: bool,
}

impl RingAccess {
    /// A read that needs what came before.
    pub fn read(address: u64, bytes: u64) -> Self {
        Self { address, bytes, writes: false, together: false }
    }

    /// A write that needs what came before.
    pub fn write(address: u64, bytes: u64) -> Self {
        Self { writes: true, ..Self::read(address, bytes) }
    }
}

/// What a request asks for.
#[derive(Clone, Debug, Default)]
pub struct RingRequest {
    /// Bytes that it brings.
    pub request: u64,
    /// Bytes that it takes back.
    pub reply: u64,
    /// What a host core computes for it beside its accesses.
    pub compute: Ps,
    /// Its accesses.
    pub accesses: Vec<RingAccess>,
}

/// What clients ask.
pub trait RingLoad {
    /// Fills in the next request.
    fn next(&mut self, request: &mut RingRequest);
}

/// Who serves.
#[derive(Clone, Debug)]
pub enum Unit {
    /// Cores of the host.
    Host(ThreadSpec),
    /// Cores of the NIC.
    Card(ThreadSpec),
    /// The coherent accelerator.
    Accelerator(AccelSpec),
}

/// Where requests come from.
#[derive(Clone, Copy, Debug)]
pub enum Feed {
    /// Cores of the other socket, with one ring each and so many requests under way.
    Socket {
        /// Rings.
        rings: usize,
        /// Requests under way in each.
        window: u32,
    },
    /// Clients behind the network.
    Network(NetworkSpec),
}

/// A server and what it is to do.
#[derive(Clone, Debug)]
pub struct RingServerSpec {
    /// Who serves.
    pub unit: Unit,
    /// Where requests come from.
    pub feed: Feed,
    /// The host's memory, which holds rings and, unless the unit has it, what requests ask for.
    pub memory: HostMemory,
    /// Whether writes of devices to rings in persistent memory go past the cache.
    pub past_cache: bool,
    /// Requests that are measured, after an eighth as many that are not.
    pub requests: u64,
    /// Seeds chance.
    pub seed: u64,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct RingFigures {
    /// Requests a second.
    pub per_s: f64,
    /// Latencies in picoseconds, in rising order.
    pub latencies: Vec<u64>,
    /// What was busiest, and how busy.
    pub binding: (String, f64),
    /// Bytes that persistent media wrote for each that they were given.
    pub amplification: Option<f64>,
    /// Events that it took.
    pub events: u64,
}

/// Why there is no such server.
#[derive(Debug, thiserror::Error)]
pub enum RingServerError {
    /// The platform lacks something.
    #[error("platform {0} describes no {1}")]
    Lacks(String, &'static str),
    /// What is to be pinned does not fit.
    #[error(transparent)]
    Pinned(#[from] crate::component::controller::DoesNotFit),
    /// Nothing goes on although requests are missing.
    #[error("{0} requests never end")]
    Stuck(u64),
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A client's NIC sends a request.
    Sent(u32),
    /// The server's NIC sends a reply.
    Replied(u32),
    /// A request can be seen at the server.
    Arrive(u32),
    /// A thread goes on.
    Thread(u16),
    /// A signal for a ring has reached the accelerator.
    Signal(u16),
    /// The accelerator has the line of a ring's pointer, as it was at a time.
    Looked(u16, Ps),
    /// The accelerator polls the next ring.
    Poll,
    /// A request at the accelerator goes on.
    Step(u32),
    /// A client has its reply.
    Done(u32),
}

/// A request under way.
#[derive(Clone, Debug, Default)]
struct Flight {
    ring: usize,
    /// Its place in the ring's memory.
    entry: u64,
    begun: Ps,
    what: RingRequest,
    /// Its next access.
    next: usize,
}

impl Flight {
    /// The accesses that go on now, and whether there are any.
    fn group(&mut self) -> &[RingAccess] {
        let from = self.next;
        let rest = &self.what.accesses[from..];
        let more = rest.iter().skip(1).take_while(|access| access.together).count();
        self.next += if rest.is_empty() { 0 } else { 1 + more };
        &self.what.accesses[from..self.next]
    }
}

/// What all parts of a run share.
struct World {
    queue: WheelQueue<Event>,
    flights: Vec<Flight>,
    host: Host,
    network: Option<Network>,
    /// Across the sockets, until the other side can see a store.
    remote: Ps,
}

/// Bytes of a ring: 1024 entries of a kilobyte (section III-F). Requests lie in it one behind the other.
const RING_BYTES: u64 = 1 << 20;
/// Where rings of requests and of responses, pointers and send queues lie.
const RINGS: u64 = 1 << 44;
const RESPONSES: u64 = 5 << 43;
const POINTERS: u64 = 1 << 45;
const SEND_QUEUES: u64 = 3 << 44;

#[cfg(test)]
mod tests;

enum Served {
    Threads(Box<Threads>),
    Accelerator(Box<AcceleratorUnit>),
}

/// Runs a server until its requests are done.
pub fn run(
    platform: &Platform,
    spec: &RingServerSpec,
    load: &mut dyn RingLoad,
) -> Result<RingFigures, RingServerError> {
    let lacks = |what| RingServerError::Lacks(platform.name.clone(), what);
    let costs = platform.ring_server.as_ref().ok_or_else(|| lacks("server of rings"))?;
    let (rings, window) = match spec.feed {
        Feed::Socket { rings, window } => (rings, window),
        Feed::Network(network) => (network.clients, network.window),
    };
    let network = match spec.feed {
        Feed::Socket { .. } => None,
        Feed::Network(network) => {
            let pointers = matches!(spec.unit, Unit::Accelerator(_));
            let at_card = matches!(spec.unit, Unit::Card(_));
            Some(Network::new(platform, &network, pointers, at_card).ok_or_else(|| lacks("NIC"))?)
        }
    };
    let mut world = World {
        queue: WheelQueue::with_capacity(4 * rings * window as usize),
        flights: vec![Flight::default(); rings * window as usize],
        host: Host::new(platform, spec.memory, spec.past_cache, rings).ok_or_else(|| lacks("persistent memory"))?,
        network,
        remote: Ps(costs.remote),
    };
    let mut served = match &spec.unit {
        Unit::Host(threads) => Served::Threads(Box::new(Threads::host(platform, threads, spec.seed))),
        Unit::Card(threads) => {
            let mut card = Threads::card(platform, threads, spec.seed).ok_or_else(|| lacks("cores on its NIC"))?;
            card.warm(load);
            Served::Threads(Box::new(card))
        }
        Unit::Accelerator(accel) => {
            if platform.placements.accel != Some(AccelDevice::Coherent) {
                return Err(lacks("coherent accelerator"));
            }
            let unit = AcceleratorUnit::new(platform, accel, rings)?.ok_or_else(|| lacks("such memory"))?;
            Served::Accelerator(Box::new(unit))
        }
    };
    let batched = matches!(spec.feed, Feed::Network(NetworkSpec { together: true, .. }));
    let mut clients: Vec<Vec<u32>> = vec![Vec::new(); rings];
    for ring in 0..rings {
        // Not all at once: clients do not know of each other.
        let at = Ps(37_000) * ring as u64;
        let own: Vec<u32> = (0..window).map(|n| ring as u32 * window + n).collect();
        own.iter().for_each(|&flight| world.flights[flight as usize].ring = ring);
        begin(&mut world, at, &own, load);
    }
    if let Served::Accelerator(unit) = &mut served {
        unit.start(&mut world);
    }
    let warm_up = spec.requests / 8;
    let (mut done, mut since, mut figures) = (0, Ps::ZERO, RingFigures::default());
    while done < warm_up + spec.requests {
        let Some((now, event)) = world.queue.pop() else {
            return Err(RingServerError::Stuck(warm_up + spec.requests - done));
        };
        figures.events += 1;
        match (event, &mut served) {
            (Event::Done(flight), _) => {
                done += 1;
                if done > warm_up {
                    figures.latencies.push((now - world.flights[flight as usize].begun).0);
                } else if done == warm_up {
                    since = now;
                    world.reset();
                    match &mut served {
                        Served::Threads(threads) => threads.reset(),
                        Served::Accelerator(unit) => unit.reset(),
                    }
                }
                let ring = world.flights[flight as usize].ring;
                clients[ring].push(flight);
                if !batched || clients[ring].len() == window as usize {
                    let own = std::mem::take(&mut clients[ring]);
                    begin(&mut world, now, &own, load);
                }
            }
            (Event::Sent(number) | Event::Replied(number), _) => world.pass(now, number, event),
            (event, Served::Threads(threads)) => threads.event(&mut world, now, event),
            (event, Served::Accelerator(unit)) => unit.event(&mut world, now, event),
        }
    }
    let span = world.queue.now() - since;
    figures.per_s = spec.requests as f64 / span.as_secs().max(1e-12);
    figures.latencies.sort_unstable();
    let mut usages = world.usage(span);
    usages.extend(match &served {
        Served::Threads(threads) => threads.usage(span),
        Served::Accelerator(unit) => unit.usage(span),
    });
    if let Some(most) = binding(&usages) {
        figures.binding = (most.name.into(), most.busy);
    }
    figures.amplification = world.host.amplification();
    Ok(figures)
}

/// A client begins requests together.
fn begin(world: &mut World, at: Ps, flights: &[u32], load: &mut dyn RingLoad) {
    for &flight in flights {
        let flight = &mut world.flights[flight as usize];
        (flight.begun, flight.next) = (at, 0);
        flight.what.accesses.clear();
        load.next(&mut flight.what);
    }
    match &mut world.network {
        None => {
            for &number in flights {
                let flight = &mut world.flights[number as usize];
                // The next line of the client's ring.
                let bytes = flight.what.request;
                flight.entry = world.host.entry(flight.ring, bytes);
                let taken = world.host.land(at + world.remote, flight.entry, bytes);
                world.queue.push(taken, Event::Arrive(number));
            }
        }
        Some(network) => network.request(at, flights, &world.flights, &mut world.queue),
    }
}

impl World {
    fn reset(&mut self) {
        self.host.reset();
        self.network.iter_mut().for_each(Network::reset);
    }

    fn usage(&self, span: Ps) -> Vec<Usage> {
        let mut all = self.host.usage(span);
        all.extend(self.network.iter().flat_map(|network| network.usage(span)));
        all
    }

    /// A packet leaves a NIC.
    fn pass(&mut self, now: Ps, number: u32, event: Event) {
        let Self { queue, flights, host, network, .. } = self;
        let (Some(network), flight) = (network, &mut flights[number as usize]) else { return };
        match event {
            Event::Sent(_) => network.sent(now, number, flight, host, queue),
            _ => network.replied(now, number, flight, queue),
        }
    }

    /// Replies leave the server: the NIC sees that there are so many at `at`.
    fn reply(&mut self, at: Ps, flights: &[u32], signalled: u32) {
        match &mut self.network {
            Some(network) => network.reply(at, flights, signalled, &self.flights, &mut self.queue),
            None => flights.iter().for_each(|&flight| self.queue.push(at, Event::Done(flight))),
        }
    }
}
