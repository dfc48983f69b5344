//! A NIC engine with its links, its clock, its kernels, and the thread that drives it when nobody else does.
//!
//! Whoever holds the [`DeviceGuard`] and calls [`DeviceGuard::progress`] drives the engine: that is the shortest path,
//! with no hand-over between threads. When nobody has done so for a moment, the NIC thread takes over; when nothing
//! happens either, it sleeps in the kernel until a packet, a timer or a caller wakes it.

mod alarm;
mod bell;
mod clock;
mod events;
mod inbox;
mod outbox;
mod polite;
mod sleep;
mod turn;
mod watch;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use remora_kernel::{Call, Status};
use remora_memory::Registry;
use remora_nic::cm::CmConfig;
use remora_nic::{Event, Lane, Nic, NicConfig, NicError, Now, Qpn, Route, Time};

use remora_service::{CallStats, NodePlacer, RingFault};

use crate::Error;
use crate::kernels::Kernels;
use crate::link::admission::Gate;
use crate::link::{Link, LinkKind, LinkStats};
use crate::rings::{RingConfig, RingMemory};
use crate::sys::start_thread;

use alarm::Alarm;
pub(crate) use bell::Bell;
pub use clock::Clock;
use events::Events;
use inbox::Inbox;
use outbox::Outbox;
pub use polite::POLITE;
use watch::Watch;

/// How long the NIC thread spins without work before it sleeps, if nobody has said otherwise.
const SPIN: u64 = 200_000;
/// Sends outstanding on a queue pair from which on further ones wait for the next poll, to share system calls.
const DEEP: u64 = 16;

/// Packets of a payload stream go to their kernel in pieces of up to so many bytes, which stay in the second-level cache.
const STREAM_CHUNK: usize = 64 << 10;

/// A software NIC. Clones are handles to the same one; with the last of them its thread ends and its links close.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
    driver: Arc<Driver>,
}

/// What a device's numbers begin with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    /// Those of queue pairs.
    pub lane: Lane,
    /// Those of connections: see [`CmConfig::ids`].
    pub ids: Lane,
    /// See [`CmConfig::instance`].
    pub instance: Option<u64>,
}

/// The NIC thread, for as long as somebody has the device.
struct Driver {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// On lines of its own: several devices may be one node's engines, each with a core for itself.
#[repr(align(128))]
struct Shared {
    core: Mutex<Core>,
    clock: Clock,
    local: IpAddr,
    turns: Turns,
    alarm: Alarm,
    watch: Watch,
}

/// Whose turn it is to drive.
struct Turns {
    /// When a user last drove the engine, in nanoseconds since the epoch.
    user_at: AtomicU64,
    /// A user drives for good: see [`Device::keep`].
    kept: AtomicBool,
    /// The NIC thread waits for a user to end his sleep.
    parked: AtomicBool,
    /// The NIC thread is to end.
    stop: AtomicBool,
    /// How long the NIC thread spins without work before it sleeps.
    spin: AtomicU64,
}

/// A program that lives on the NIC: whoever drives the engine runs it too, after kernels.
pub trait Resident: Send {
    /// Does what there is to do, and returns how much that was.
    fn progress(&mut self, seat: &mut Seat<'_>) -> usize;

    /// Does what can wait until the device has sent what it had; `busy` says whether it may have more to do. Unless it is,
    /// this may take its time. Returns how much there was, or is about to be, to do: above 0 the device stays awake.
    fn idle(&mut self, _busy: bool) -> usize {
        0
    }

    /// When it wants to run again at the latest.
    fn next_timeout(&self) -> Time;
}

/// What a program has of the device that it runs on.
pub struct Seat<'a> {
    /// The time, read when all that the engine has of others had been taken.
    pub now: Now,
    /// The clock, for what is taken later.
    pub clock: Clock,
    /// The device's address.
    pub local: IpAddr,
    /// The engine.
    pub nic: &'a mut Nic,
    /// The links; routes name them by their places.
    pub links: &'a mut [Box<dyn Link>],
    /// Events that nobody has taken yet.
    pub events: &'a mut Vec<Event>,
}

/// Sees the engine's events, in whichever thread drives it and with the engine locked, and gives back those that it has
/// no use for.
pub type EventSink = Box<dyn FnMut(Event) -> Option<Event> + Send>;

/// What the lock protects.
struct Core {
    nic: Nic,
    links: Vec<Box<dyn Link>>,
    kernels: Option<Kernels>,
    resident: Option<Box<dyn Resident>>,
    outbox: Outbox,
    inbox: Inbox,
    gate: Gate,
    events: Events,
    reading: Reading,
    /// When timers were looked at.
    timers_at: Time,
    /// Turns since something came, and since peers are owed acknowledgements.
    idle_turns: u32,
    owing_turns: u32,
    /// A user sleeps in the NIC thread's place.
    held: bool,
    /// WRITEs that had come when a user last posted.
    writes_at_post: u64,
}

/// The last reading of the clock. One poll in sixteen reads it: timers are far coarser than that. No resident goes by it.
struct Reading {
    now: Time,
    /// The coarse clock then.
    coarse: u64,
    polls: u32,
    /// The NIC thread drove since: the last reading may be old.
    stale: bool,
    /// When a user's poll last found something to do.
    busy_at: Time,
}

impl Device {
    /// A device at `local` that sends and receives by `links`. Routes name a link by its place in the list.
    pub fn new(local: IpAddr, links: Vec<Box<dyn Link>>, kernels: Option<Kernels>) -> Result<Self, Error> {
        let registry = Arc::new(Registry::new(entropy()?));
        Self::with_registry(local, links, registry, kernels)
    }

    /// A device over regions that exist already; otherwise as [`new`](Self::new).
    pub fn with_registry(
        local: IpAddr,
        links: Vec<Box<dyn Link>>,
        registry: Arc<Registry>,
        kernels: Option<Kernels>,
    ) -> Result<Self, Error> {
        Self::in_lane(local, links, registry, kernels, Numbers::default())
    }

    /// One of several devices over the same regions, whose numbers are these; otherwise as
    /// [`with_registry`](Self::with_registry).
    pub(crate) fn in_lane(
        local: IpAddr,
        links: Vec<Box<dyn Link>>,
        registry: Arc<Registry>,
        kernels: Option<Kernels>,
        Numbers { lane, ids, instance }: Numbers,
    ) -> Result<Self, Error> {
        let config = NicConfig { stream_chunk_bytes: STREAM_CHUNK, ..NicConfig::new(entropy()?) };
        let cm = CmConfig { ids, instance, ..config.cm };
        let nic = Nic::new(&NicConfig { lane, cm, ..config }, registry);
        Self::with_events(local, links, nic, kernels, Box::new(Some))
    }

    /// A device with an engine that exists already, and whose events `sink` sees first.
    pub fn with_events(
        local: IpAddr,
        mut links: Vec<Box<dyn Link>>,
        mut nic: Nic,
        kernels: Option<Kernels>,
        sink: EventSink,
    ) -> Result<Self, Error> {
        for op in kernels.iter().flat_map(|k| k.ops()) {
            nic.deploy(*op);
        }
        if let Some(kernels) = &kernels {
            links.iter_mut().for_each(|link| link.look_ahead(kernels.lookahead()));
        }
        nic.set_patient();
        let core = Core {
            inbox: Inbox::new(links.len()),
            gate: Gate::default(),
            nic,
            links,
            kernels,
            resident: None,
            outbox: Outbox::new(),
            events: Events::new(sink),
            reading: Reading { now: 0, coarse: 0, polls: 0, stale: true, busy_at: 0 },
            timers_at: 0,
            idle_turns: 0,
            owing_turns: 0,
            held: false,
            writes_at_post: 0,
        };
        let turns = Turns {
            user_at: AtomicU64::new(0),
            kept: AtomicBool::new(false),
            parked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            spin: AtomicU64::new(SPIN),
        };
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            clock: Clock::start(),
            local,
            turns,
            alarm: Alarm::new()?,
            watch: Watch::default(),
        });
        let runner = shared.clone();
        let thread = start_thread("remora-nic", move || runner.run())
            .map_err(|e| Error::System { what: "starting the NIC thread", source: e })?;
        let driver = Arc::new(Driver { shared: shared.clone(), thread: Mutex::new(Some(thread)) });
        Ok(Self { shared, driver })
    }

    /// Its address.
    pub fn local(&self) -> IpAddr {
        self.shared.local
    }

    /// Nanoseconds since the device was made: the engine's clock.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// The engine's clock, for who holds something else of this.
    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Takes the engine. The NIC thread stays away for as long as somebody does this often.
    pub fn lock(&self) -> DeviceGuard<'_> {
        DeviceGuard { core: self.shared.core.lock(), shared: &self.shared }
    }

    /// Takes the engine, as [`lock`](Self::lock) does, if that takes no longer than `patience`.
    pub fn try_lock_for(&self, patience: Duration) -> Option<DeviceGuard<'_>> {
        let core = self.shared.core.try_lock_for(patience)?;
        Some(DeviceGuard { core, shared: &self.shared })
    }

    /// For loops that poll: call it at each poll that finds nothing, with how long (ns) that has been so. After a few
    /// microseconds, or at once if the core has turned out to be shared, it lets another thread have the core.
    #[inline]
    pub fn relax(&self, idle: Time) {
        polite::relax(idle, || self.now());
    }

    /// How long (ns) the NIC thread spins without work before it sleeps.
    pub fn set_spin(&self, spin: Time) {
        self.shared.turns.spin.store(spin, Ordering::Relaxed);
    }

    /// For a thread that drives the engine for as long as it lives, asleep and awake: the NIC thread stays away, however
    /// long that thread waits for a core, until it says that it ends.
    pub fn keep(&self, kept: bool) {
        self.shared.turns.kept.store(kept, Ordering::Relaxed);
        self.release();
    }

    /// Has a program live on the NIC from now on, in place of the one that did.
    pub fn settle(&self, resident: Option<Box<dyn Resident>>) {
        let former = std::mem::replace(&mut self.lock().core.resident, resident);
        // It may take its time to end.
        drop(former);
        self.release();
    }

    /// Wakes whoever sleeps as the driver of this device: there is something to do that no packet tells of.
    pub fn nudge(&self) {
        self.shared.alarm.nudge();
    }

    /// Hands the engine to the NIC thread at once, instead of after a moment without polls.
    pub fn release(&self) {
        self.driver.release();
    }

    /// Stops the NIC thread. Further packets wait for a user to drive the engine.
    pub fn stop(&self) {
        self.driver.stop();
    }

    /// Whether the NIC thread runs: false after [`Device::stop`], or if it panicked.
    pub fn is_running(&self) -> bool {
        self.driver.thread.lock().as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Driver {
    fn release(&self) {
        self.shared.turns.user_at.store(0, Ordering::Relaxed);
        self.shared.alarm.ring();
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(thread) = &*self.thread.lock() {
            thread.thread().unpark();
        }
    }

    fn stop(&self) {
        self.shared.turns.stop.store(true, Ordering::Relaxed);
        self.release();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            // A NIC thread that panicked has said so on stderr already.
            let _ = thread.join();
        }
        // Nobody may be left to say that nothing comes any more.
        if let Some(mut core) = self.shared.core.try_lock() {
            core.acknowledge(self.shared.now());
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The engine, for as long as this is held.
pub struct DeviceGuard<'a> {
    core: MutexGuard<'a, Core>,
    shared: &'a Shared,
}

impl DeviceGuard<'_> {
    /// The engine itself: post, poll, modify.
    pub fn nic(&mut self) -> &mut Nic {
        &mut self.core.nic
    }

    /// Sends what waits, takes what arrived, runs timers and kernels. Returns how much there was to do.
    pub fn progress(&mut self) -> usize {
        self.drive(true)
    }

    /// As [`progress`](Self::progress), without keeping the NIC thread away: for a user who is about to sleep.
    pub fn progress_once(&mut self) -> usize {
        self.drive(false)
    }

    #[inline]
    fn drive(&mut self, stay: bool) -> usize {
        let now = self.tick();
        if stay {
            self.shared.turns.user_at.store(now, Ordering::Relaxed);
        }
        let work = self.core.progress(now, self.shared.clock, self.shared.local);
        if work > 0 {
            self.core.reading.busy_at = now;
        }
        work
    }

    /// Sends what was posted, at once. The NIC thread sees to the rest if no user does.
    #[inline]
    pub fn transmit(&mut self) {
        let now = self.tick_to_send();
        self.core.transmit(now);
    }

    /// Acknowledges all that was received, as a NIC does that is in no position to wait: what follows may end a queue pair.
    pub fn settle(&mut self) {
        let now = self.tick_to_send();
        self.core.acknowledge(now);
    }

    /// Sends what was posted on `qpn`: at once, or, if much is under way there, with the next poll or after some more of
    /// the same. So sends that have to wait for others anyway share system calls.
    #[inline]
    pub fn transmit_from(&mut self, qpn: Qpn) {
        let now = self.tick_to_send();
        let core = &mut *self.core;
        core.writes_at_post = core.nic.counters().writes;
        let outstanding = core.nic.sends_outstanding(qpn).unwrap_or(0);
        if outstanding > DEEP {
            // A user in the midst of many posts is not about to fall asleep.
            self.shared.turns.user_at.store(now, Ordering::Relaxed);
        }
        if outstanding <= DEEP || outstanding.is_multiple_of(2 * DEEP) {
            core.transmit(now);
        }
    }

    /// What a program needs that this thread runs.
    pub fn seat(&mut self) -> Seat<'_> {
        let Shared { clock, local, .. } = *self.shared;
        // What the engine has was taken before.
        let ((), now) = Now::after(|| (), || clock.now());
        self.core.seat(now, clock, local)
    }

    /// How long users' polls have found nothing to do.
    pub fn idle(&self) -> Time {
        self.core.reading.now.saturating_sub(self.core.reading.busy_at)
    }

    /// The time, read anew where that is due.
    #[inline]
    fn tick(&mut self) -> Time {
        let reading = &mut self.core.reading;
        if reading.polls.is_multiple_of(16) || reading.stale {
            reading.stale = false;
            (reading.now, reading.coarse) = (self.shared.now(), clock::coarse());
        }
        reading.polls = reading.polls.wrapping_add(1);
        reading.now
    }

    /// The same, for what is sent and may arm a timer: a user who polls seldom has a reading from long ago, by which it would
    /// be over before it began.
    #[inline]
    fn tick_to_send(&mut self) -> Time {
        let reading = &mut self.core.reading;
        reading.stale |= reading.coarse != clock::coarse();
        self.tick()
    }

    /// The time by the clock that [`progress`](Self::progress) uses.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// Takes the events that are not about armed completion queues.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.core.events.taken)
    }

    /// Calls to the kernels here that have ended, by op-code, if they are counted.
    pub(crate) fn call_stats(&self) -> CallStats {
        self.core.kernels.as_ref().and_then(Kernels::stats).cloned().unwrap_or_default()
    }

    /// Calls to the kernels here by this queue pair count as `client`'s, which has this weight.
    pub(crate) fn assign(&mut self, qpn: Qpn, client: u32, weight: u32) {
        self.core.nic.assign_client(qpn, client);
        if let Some(kernels) = &mut self.core.kernels {
            kernels.assign(qpn, client, weight);
        }
    }

    /// From now on the kernels here place calls: see [`Kernels::place_by`].
    pub(crate) fn place_by(&mut self, placer: NodePlacer, bell: Arc<Bell>) {
        if let Some(kernels) = &mut self.core.kernels {
            kernels.place_by(placer, bell);
        }
    }

    /// What places calls here, if anything does.
    pub(crate) fn placer(&mut self) -> Option<&mut NodePlacer> {
        self.core.kernels.as_mut().and_then(Kernels::placer)
    }

    /// Answers a call that the host has run for the kernels here.
    pub(crate) fn answer(&mut self, call: Call, status: Status) {
        let Core { nic, kernels, .. } = &mut *self.core;
        if let Some(kernels) = kernels {
            kernels.answer(nic, call, status);
        }
    }

    /// Opens a pair of rings to the kernels here for the client behind a queue pair, whose response ring is at `responses`
    /// (address and key). Returns its number.
    pub fn open_rings(
        &mut self,
        qpn: Qpn,
        memory: &RingMemory,
        config: RingConfig,
        responses: (u64, u32),
    ) -> Result<u32, Error> {
        let Core { nic, kernels, .. } = &mut *self.core;
        let kernels = kernels.as_mut().ok_or_else(|| Error::Argument("the device has no kernels".into()))?;
        kernels.open_rings(nic, qpn, memory, (config, responses))
    }

    /// Closes a pair of rings, whose requests lie in the region with this key.
    pub fn close_rings(&mut self, ring: u32, key: u32) {
        let Core { nic, kernels, .. } = &mut *self.core;
        nic.detach_tap(key);
        if let Some(kernels) = kernels {
            kernels.close_rings(ring);
        }
    }

    /// Queue pairs whose clients wrote to rings what none writes that keeps to the rules.
    pub(crate) fn ring_fault(&mut self) -> Option<RingFault> {
        self.core.kernels.as_mut().and_then(Kernels::ring_fault)
    }

    /// Lets engine and kernels forget memory that is no longer registered, which they would otherwise keep mapped.
    pub(crate) fn forget_gone_regions(&mut self) {
        let Core { nic, kernels, .. } = &mut *self.core;
        nic.forget_gone_regions();
        if let Some(kernels) = kernels {
            kernels.refresh(nic);
        }
    }

    /// Attaches a datagram queue pair to a multicast group, and has every link that can bring in what others send to it.
    pub fn attach(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), NicError> {
        let Core { nic, links, inbox, .. } = &mut *self.core;
        nic.attach(qpn, group)?;
        for link in links {
            // Without a link for it, the group is one of this device alone.
            if link.join(group).is_ok() {
                inbox.listen_to_groups();
            }
        }
        Ok(())
    }

    /// Takes a queue pair out of a multicast group; with the last one the links leave it.
    pub fn detach(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), NicError> {
        let Core { nic, links, .. } = &mut *self.core;
        nic.detach(qpn, group)?;
        if nic.group_members(group) == 0 {
            links.iter_mut().for_each(|link| link.leave(group));
        }
        Ok(())
    }

    /// The link with this number.
    pub fn link(&mut self, index: u8) -> Option<&mut (dyn Link + 'static)> {
        self.core.links.get_mut(usize::from(index)).map(|l| &mut **l)
    }

    /// What kind the link with this number is; there is one with number 0.
    pub(crate) fn link_kind(&self, index: u8) -> LinkKind {
        self.core.links.get(usize::from(index)).or(self.core.links.first()).map_or(LinkKind::Udp, |link| link.kind())
    }

    /// Each link's name and counts.
    pub fn link_stats(&self) -> Vec<(LinkKind, LinkStats)> {
        self.core.links.iter().map(|l| (l.kind(), l.stats())).collect()
    }

    /// Whether the link with this number has, or makes, a way to `peer`.
    pub fn reach(&mut self, index: u8, peer: IpAddr) -> bool {
        let reached = self.link(index).is_some_and(|link| link.reach(peer).unwrap_or(false));
        // A sleeping NIC thread knows nothing of a new peer's descriptor.
        self.shared.alarm.rouse();
        reached
    }

    /// How to reach `remote` by the link with this number.
    pub fn route(&self, remote: IpAddr, link: u8) -> Route {
        Route { local: self.shared.local, remote, link }
    }
}

impl Drop for DeviceGuard<'_> {
    fn drop(&mut self) {
        // Whoever waits for what the caller brought about need not wait for the next poll.
        self.core.dispatch_events();
        // Work was left behind, or a timer started, that a sleeping NIC thread knows nothing about.
        if let Some(until) = self.shared.alarm.sleeper_until() {
            let unsent = self.core.nic.wants_transmit() || self.core.outbox.has_unsent();
            if unsent || self.core.nic.poll_timeout().is_some_and(|t| t < until) {
                self.shared.alarm.rouse();
            }
        }
    }
}

impl Shared {
    fn now(&self) -> Time {
        self.clock.now()
    }
}

/// 32 bytes of the system's entropy.
pub fn entropy() -> Result<[u8; 32], Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::System { what: "reading entropy", source: std::io::Error::other(e.to_string()) })?;
    Ok(bytes)
}
