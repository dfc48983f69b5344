//! The process's device: one software NIC, opened when a program first needs it and kept until the process ends.
//!
//! The environment says what it is like; `remora exec` sets it.
//!
//! | variable                | meaning                                    | default                                 |
//! |-------------------------|--------------------------------------------|-----------------------------------------|
//! | `REMORA_DEVICE_ADDRESS` | IP address of the device                   | the first of 127.0.0.2, .3, … to be had |
//! | `REMORA_MTU`            | active MTU of the port                     | what the links carry                    |
//! | `REMORA_LINK`           | `auto`, `udp` or `shm`                     | `auto`: shared memory where possible    |
//! | `REMORA_LOSS`           | `percent:seed` of received packets to lose | none                                    |

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use parking_lot::lock_api::RawMutex as _;
use remora_memory::Registry;
use remora_nic::{Nic, NicConfig, NicLimits, Route};
use remora_real::link::Link;
use remora_real::link::lossy::{Faults, Lossy};
use remora_real::link::shm::ShmLink;
use remora_real::link::udp::UdpLink;
use remora_real::{Device, DeviceGuard, LinkKind};

use crate::events::Targets;

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
    /// The generation of processes that may drive it: a forked child may not.
    generation: u32,
    links: Links,
}

/// Numbers of the links.
struct Links {
    /// To processes of this user on this host.
    shm: Option<u8>,
    udp: Option<u8>,
}

static ADAPTER: AtomicPtr<Adapter> = AtomicPtr::new(std::ptr::null_mut());
/// Held while the device is opened, and while the process forks.
static OPENING: parking_lot::RawMutex = parking_lot::RawMutex::INIT;
/// How many forks lie between this process and the one that the library was loaded in.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The device, opened now if it was not before. The reason why that fails goes to standard error too: a program shows
/// its user no more than an errno.
pub fn open() -> Result<&'static Adapter, i32> {
    if let Some(adapter) = current() {
        return Ok(adapter);
    }
    register_handlers();
    OPENING.lock();
    let result = match current() {
        Some(adapter) => Ok(adapter),
        None => Adapter::new().map(|adapter| {
            let adapter: &'static Adapter = Box::leak(Box::new(adapter));
            ADAPTER.store(std::ptr::from_ref(adapter).cast_mut(), Ordering::Release);
            adapter
        }),
    };
    // SAFETY: locked above.
    unsafe { OPENING.unlock() };
    result.map_err(|(errno, why)| {
        eprintln!("remora: {why}");
        errno
    })
}

/// The device, if it is open.
pub fn current() -> Option<&'static Adapter> {
    // SAFETY: the pointer is null or was leaked by `open`.
    unsafe { ADAPTER.load(Ordering::Acquire).as_ref() }
}

type Failure = (i32, String);

impl Adapter {
    fn new() -> Result<Self, Failure> {
        let (udp, shm) = match setting("REMORA_LINK") {
            None => (true, true),
            Some(text) if text == "auto" => (true, true),
            Some(text) => match text.parse() {
                Ok(LinkKind::Udp) => (true, false),
                Ok(LinkKind::Shm) => (false, true),
                _ => return Err(wrong("REMORA_LINK", &text, "auto, udp or shm")),
            },
        };
        let faults = loss()?;
        let (address, links, carried) = match setting("REMORA_DEVICE_ADDRESS") {
            Some(text) => {
                let address = text
                    .parse()
                    .map_err(|_| wrong("REMORA_DEVICE_ADDRESS", &text, "an IP address, such as 127.0.0.2"))?;
                bind(address, udp, shm, faults)?
            }
            None => first_free(udp, shm, faults)?,
        };
        let port_mtu = match setting("REMORA_MTU") {
            None => carried,
            Some(text) => match text.parse() {
                Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) if mtu <= carried => mtu,
                _ => return Err(wrong("REMORA_MTU", &text, &format!("256, 512, 1024, 2048 or 4096, up to {carried}"))),
            },
        };
        let system = |e: remora_real::Error| (libc::EIO, e.to_string());
        let registry = Arc::new(Registry::new(remora_real::entropy().map_err(system)?));
        let config = NicConfig { port_mtu, ..NicConfig::new(remora_real::entropy().map_err(system)?) };
        let nic = Nic::new(&config, registry.clone());
        let limits = nic.limits();
        let targets = Arc::new(Targets::default());
        let sink = targets.clone();
        let device = Device::with_events(address, links, nic, None, Box::new(move |event| sink.deliver(event)))
            .map_err(system)?;
        let links = Links { shm: shm.then_some(0), udp: udp.then_some(u8::from(shm)) };
        let generation = GENERATION.load(Ordering::Relaxed);
        Ok(Self { device, registry, address, limits, targets, generation, links })
    }

    /// Takes the engine; `None` in a child of the process that opened the device, where nobody may touch it.
    #[inline]
    pub fn lock(&self) -> Option<DeviceGuard<'_>> {
        (self.generation == GENERATION.load(Ordering::Relaxed)).then(|| self.device.lock())
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
fn bind(address: IpAddr, udp: bool, shm: bool, faults: Option<(Faults, u64)>) -> Result<Bound, Failure> {
    let failed = |e: std::io::Error| {
        let why = match e.kind() {
            std::io::ErrorKind::AddrInUse => "another device has it: give each process its own address",
            std::io::ErrorKind::AddrNotAvailable => "no interface of this machine has it",
            _ => "it cannot be bound",
        };
        (e.raw_os_error().unwrap_or(libc::EADDRINUSE), format!("device address {address}: {why} ({e})"))
    };
    let mut links: Vec<Box<dyn Link>> = Vec::new();
    if shm {
        links.push(lossy(ShmLink::bind(address).map_err(failed)?, faults));
    }
    if udp {
        links.push(lossy(UdpLink::bind(address).map_err(failed)?, faults));
    }
    let mtu = links.iter().map(|link| link.max_mtu()).min().unwrap_or(1024) as u32;
    Ok((address, links, mtu))
}

type Bound = (IpAddr, Vec<Box<dyn Link>>, u32);

fn lossy(link: impl Link + 'static, faults: Option<(Faults, u64)>) -> Box<dyn Link> {
    match faults {
        Some((faults, seed)) => Box::new(Lossy::new(link, faults, seed)),
        None => Box::new(link),
    }
}

fn first_free(udp: bool, shm: bool, faults: Option<(Faults, u64)>) -> Result<Bound, Failure> {
    let mut last = (libc::EADDRINUSE, "no device address".to_string());
    for byte in ADDRESSES {
        match bind(Ipv4Addr::new(127, 0, 0, byte).into(), udp, shm, faults) {
            Ok(bound) => return Ok(bound),
            Err(failure) => last = failure,
        }
    }
    Err((last.0, format!("none of 127.0.0.2 to .254 can be had for a device; {}", last.1)))
}

/// `REMORA_LOSS=percent:seed`.
fn loss() -> Result<Option<(Faults, u64)>, Failure> {
    let Some(text) = setting("REMORA_LOSS") else { return Ok(None) };
    let (percent, seed) = text.split_once(':').unwrap_or((&text, "1"));
    match (percent.parse::<f64>(), seed.parse()) {
        (Ok(percent), Ok(seed)) if (0.0..=100.0).contains(&percent) => {
            Ok((percent > 0.0).then_some((Faults { drop: percent / 100.0, ..Faults::default() }, seed)))
        }
        _ => Err(wrong("REMORA_LOSS", &text, "percent:seed, such as 5:42")),
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn wrong(name: &str, value: &str, allowed: &str) -> Failure {
    (libc::EINVAL, format!("{name} is {value:?}: use {allowed}"))
}

fn register_handlers() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    extern "C" fn prepare() {
        OPENING.lock();
    }
    extern "C" fn parent() {
        // SAFETY: `prepare` locked it, in this thread.
        unsafe { OPENING.unlock() };
    }
    extern "C" fn child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        ADAPTER.store(std::ptr::null_mut(), Ordering::Release);
        parent();
    }
    /// What waits to be sent leaves before the process ends: a NIC would have sent it long ago.
    extern "C" fn last_words() {
        if let Some(adapter) = current()
            && let Some(mut guard) = adapter.device.try_lock_for(std::time::Duration::from_millis(100))
        {
            guard.transmit();
        }
    }
    ONCE.call_once(|| {
        // SAFETY: the handlers live as long as the process, as this library is never unloaded: it has threads.
        unsafe {
            libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
            libc::atexit(last_words);
        }
    });
}
