//! The process's device: one software NIC, opened when a program first needs it and kept until the process ends.
//!
//! [`Settings`] says what it is like.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use remora_memory::{Access, DeregisterError, Pd, Region, RegisterError, Registry, Translation};
use remora_nic::{Nic, NicConfig, NicLimits, Route};
use remora_real::link::Link;
use remora_real::link::pcap::PcapFile;
use remora_real::presence::{self, DeviceState};
use remora_real::{Device, DeviceGuard, LinkKind};

use crate::cancel::Whole;
use crate::events::Targets;
use crate::manners::Manners;
use crate::settings::{Failure, Settings, say, wrong};
use crate::{tree, ucma};

/// Last byte of the addresses tried by default.
const ADDRESSES: std::ops::RangeInclusive<u8> = 2..=254;

/// The device of this process.
pub struct Adapter {
    pub device: Device,
    pub registry: Arc<Registry>,
    pub address: IpAddr,
    pub limits: NicLimits,
    /// Whom events are for.
    pub targets: Arc<Targets>,
    /// Of all that poll.
    pub manners: Manners,
    /// The generation of processes that may drive it: a forked child may not.
    generation: u32,
    links: Links,
    /// Where all that the links carry goes, if it is kept.
    pcap: Option<PcapFile>,
    /// Whether to say at the end what it did, and the process that says so even if that is nothing.
    summary: Option<u32>,
    /// Whether the connection manager's events are taken.
    pub prepared: Once,
}

/// Numbers of the links.
struct Links {
    /// To processes of this user on this host.
    shm: Option<u8>,
    udp: Option<u8>,
}

/// The engine, for as long as this is held.
pub struct Engine<'a> {
    guard: DeviceGuard<'a>,
    whole: Whole,
}

impl<'a> Engine<'a> {
    /// The guard, and what is to outlive it.
    pub fn parts(self) -> (DeviceGuard<'a>, Whole) {
        (self.guard, self.whole)
    }
}

impl<'a> Deref for Engine<'a> {
    type Target = DeviceGuard<'a>;

    #[inline]
    fn deref(&self) -> &DeviceGuard<'a> {
        &self.guard
    }
}

impl DerefMut for Engine<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}

static ADAPTER: AtomicPtr<Adapter> = AtomicPtr::new(std::ptr::null_mut());
/// Held while the device is opened, and while the process forks. The standard library's lock: one that is handed over to who
/// waits longest would be handed, in a child, to a thread that it does not have.
static OPENING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Held by this thread, which forks: what no other thread may be amid then.
    static AMID_FORK: Cell<Option<(ucma::Still, MutexGuard<'static, ()>)>> = const { Cell::new(None) };
}

fn opening() -> MutexGuard<'static, ()> {
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many forks lie between this process and the one that the library was loaded in.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The device, opened now if it was not before. The reason why that fails goes to standard error too: a program shows
/// its user no more than an errno.
pub fn open() -> Result<&'static Adapter, i32> {
    if let Some(adapter) = current() {
        return Ok(adapter);
    }
    let _whole = Whole::new();
    let opening = opening();
    register_handlers();
    let result = match current() {
        Some(adapter) => Ok(adapter),
        None => Adapter::new().map(|adapter| {
            let adapter: &'static Adapter = Box::leak(Box::new(adapter));
            ADAPTER.store(std::ptr::from_ref(adapter).cast_mut(), Ordering::Release);
            announce(adapter);
            adapter
        }),
    };
    drop(opening);
    result.map_err(|(errno, why)| {
        say(why);
        errno
    })
}

/// Lets others of this user see the device. It works without that.
fn announce(adapter: &'static Adapter) {
    if let Some(tree) = tree::get() {
        tree::fill(adapter);
        let _ = tree.presence().announce(adapter.address, || adapter.state());
    }
}

/// The device, if it is open.
pub fn current() -> Option<&'static Adapter> {
    // SAFETY: the pointer is null or was leaked by `open`.
    unsafe { ADAPTER.load(Ordering::Acquire).as_ref() }
}

impl Adapter {
    fn new() -> Result<Self, Failure> {
        let settings = Settings::read()?;
        let (address, links, carried) = match settings.address {
            Some(address) => bind(address, &settings)?,
            None => first_free(&settings)?,
        };
        let port_mtu = match settings.mtu {
            None => carried,
            Some(mtu) if mtu <= carried => mtu,
            Some(mtu) => return Err(wrong("REMORA_MTU", &mtu.to_string(), &format!("up to {carried} here"))),
        };
        let system = |e: remora_real::Error| (libc::EIO, e.to_string());
        let registry = Arc::new(Registry::new(remora_real::entropy().map_err(system)?));
        let config = NicConfig::new(remora_real::entropy().map_err(system)?);
        let config = NicConfig { port_mtu, selective_repeat: !settings.go_back_n, ..config };
        let nic = Nic::new(&config, registry.clone());
        let limits = nic.limits();
        let targets = Arc::new(Targets::default());
        let sink = targets.clone();
        let device = Device::with_events(address, links, nic, None, Box::new(move |event| sink.deliver(event)))
            .map_err(system)?;
        let number = |kind| settings.links.iter().position(|&link| link == kind).map(|n| n as u8);
        let links = Links { shm: number(LinkKind::Shm), udp: number(LinkKind::Udp) };
        let pcap = settings.layers.pcap;
        let generation = GENERATION.load(Ordering::Relaxed);
        let manners = Manners::default();
        Ok(Self {
            device,
            registry,
            address,
            limits,
            targets,
            manners,
            generation,
            links,
            pcap,
            summary: settings.summary,
            prepared: Once::new(),
        })
    }

    /// Takes the engine; `None` in a child of the process that opened the device, where nobody may touch it.
    #[inline]
    pub fn lock(&self) -> Option<Engine<'_>> {
        (self.generation == GENERATION.load(Ordering::Relaxed)).then(|| {
            let guard = self.device.lock();
            Engine { guard, whole: Whole::if_need_be() }
        })
    }

    /// How it is doing; `None` in a child of the process that opened it.
    pub fn state(&self) -> Option<DeviceState> {
        Some(DeviceState::of(&mut *self.lock()?))
    }

    /// Takes a region away from its users, and returns when none of them is at it: from then on the program may free the
    /// memory.
    #[expect(clippy::disallowed_methods, reason = "the wait follows")]
    pub fn deregister(&self, key: u32) -> Result<(), DeregisterError> {
        let done = self.registry.deregister(key);
        self.wait_for_engine();
        done
    }

    /// Registers a region anew under its key, and returns when nobody is at the memory that it had before.
    #[expect(clippy::disallowed_methods, reason = "the wait follows")]
    pub fn reregister(
        &self,
        key: u32,
        pd: Option<Pd>,
        memory: Option<Translation<'_>>,
        access: Option<Access>,
    ) -> Result<Arc<Region>, RegisterError> {
        let region = self.registry.reregister(key, pd, memory, access)?;
        self.wait_for_engine();
        Ok(region)
    }

    /// Until all accesses to memory are over that are under way now: the engine looks regions up and copies with its lock
    /// held, and after the next look-up meets what is registered then. (In a forked child nobody copies.)
    fn wait_for_engine(&self) {
        drop(self.lock());
    }

    /// How to reach `remote`: another process here over shared memory, or anybody by UDP. The device itself finds its
    /// way back to this process.
    pub fn route(&self, guard: &mut DeviceGuard<'_>, remote: IpAddr) -> Option<Route> {
        let remote = remote.to_canonical();
        if remote == self.address {
            return Some(guard.route(remote, 0));
        }
        if let Some(shm) = self.links.shm
            && guard.reach(shm, remote)
        {
            return Some(guard.route(remote, shm));
        }
        self.links.udp.map(|udp| guard.route(remote, udp))
    }
}

/// Links at an address, and the MTU that they carry.
fn bind(address: IpAddr, settings: &Settings) -> Result<Bound, Failure> {
    let failed = |e: std::io::Error| (e.raw_os_error().unwrap_or(libc::EADDRINUSE), presence::refusal(address, &e));
    let links = settings.links.iter().map(|&kind| settings.layers.bind(kind, address).map_err(failed));
    let links: Vec<Box<dyn Link>> = links.collect::<Result<_, _>>()?;
    let mtu = links.iter().map(|link| link.max_mtu()).min().unwrap_or(1024) as u32;
    Ok((address, links, mtu))
}

type Bound = (IpAddr, Vec<Box<dyn Link>>, u32);

fn first_free(settings: &Settings) -> Result<Bound, Failure> {
    let mut last = (libc::EADDRINUSE, "no device address".to_string());
    for byte in ADDRESSES {
        match bind(Ipv4Addr::new(127, 0, 0, byte).into(), settings) {
            Ok(bound) => return Ok(bound),
            Err(failure) => last = failure,
        }
    }
    Err((last.0, format!("none of 127.0.0.2 to .254 can be had for a device; {}", last.1)))
}

/// From now on a panic ends the process, in whatever thread: with the NIC thread gone, programs would wait for ever for events.
fn end_with_panics() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::abort();
    }));
}

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static START: extern "C" fn() = start;

/// When the library is loaded: who only saw to forks when a device is opened might be amid that when another thread forks.
extern "C" fn start() {
    extern "C" fn prepare() {
        let _ = AMID_FORK.try_with(|amid| amid.set(Some((ucma::still(), opening()))));
    }
    extern "C" fn parent() {
        let _ = AMID_FORK.try_with(Cell::take);
    }
    extern "C" fn child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        ADAPTER.store(std::ptr::null_mut(), Ordering::Release);
        ucma::own();
        if let Ok(Some((still, _opening))) = AMID_FORK.try_with(Cell::take) {
            still.orphan();
        }
    }
    ucma::own();
    // SAFETY: the handlers live as long as the process, as this library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// For who holds [`OPENING`].
fn register_handlers() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    /// What waits to be sent leaves before the process ends: a NIC would have sent it long ago.
    extern "C" fn last_words() {
        if let Some(adapter) = current()
            && let Some(mut guard) = adapter.device.try_lock_for(std::time::Duration::from_millis(100))
        {
            guard.settle();
            drop(guard);
            // A capture that is whole needs no words: they would stand in the middle of the program's.
            if let Some(captured) = adapter.pcap.as_ref().map(PcapFile::finish)
                && captured.lost > 0
            {
                say(captured);
            }
            let process = std::process::id();
            if let (Some(first), Some(state)) = (adapter.summary, adapter.state())
                && (first == process || state.is_used())
            {
                say(format_args!("device {} of process {process}: {state}", adapter.address));
            }
        }
    }
    ONCE.call_once(|| {
        end_with_panics();
        // SAFETY: as in `start`.
        unsafe { libc::atexit(last_words) };
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    /// In a process of its own, which this test starts.
    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        const AGAIN: &str = "REMORA_TEST_PANICS";
        if std::env::var_os(AGAIN).is_some() {
            super::end_with_panics();
            let _ = std::thread::spawn(|| panic!("as a defect would")).join();
            return;
        }
        let name = "adapter::tests::a_panic_in_any_thread_ends_the_process";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ended = again.args(["--exact", name]).env(AGAIN, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{ended:?}");
    }
}
