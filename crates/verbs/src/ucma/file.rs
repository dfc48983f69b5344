//! The device as a file: the functions of the C library that librdmacm uses on its descriptors, for these only.
//!
//! Every other descriptor passes through to the next library that has the function, at the price of one look into a
//! bitmap. The functions stay as usable in signal handlers as the C library's are: they take no lock for others'
//! descriptors.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError, TryLockError, mpsc};
use std::time::{Duration, Instant};

use remora_nic::cm::{Cm, CmConfig};

use super::abi::{self, Address, UcmaCommand, UcmaRequest};
use super::state::{Host, State, Told};
use crate::adapter::{self, Adapter};
use crate::device;
use crate::events::{EventQueue, errno, set_errno};
use crate::files::next;
use crate::port::mtu_code;

/// The device's node.
pub const DEVICE: &[u8] = b"/dev/infiniband/rdma_cm";
/// How long the end of the process waits until its peers have been told, and have said that they heard.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// The response timeout of these last DREQs, nanoseconds: some are repeated before that time is over.
const LAST_TIMEOUT: u64 = 30_000_000;

/// What programs have open.
#[derive(Default)]
struct Ucma {
    state: State,
    /// The channels' events, by descriptor.
    channels: HashMap<RawFd, Arc<EventQueue<Told>>>,
}

/// Taken after the engine, never before; and by a thread that forks. The standard library's lock: one that is handed over to who
/// waits longest would be handed, in a child, to a thread that it does not have.
static UCMA: LazyLock<Mutex<Ucma>> = LazyLock::new(Mutex::default);

fn ucma() -> MutexGuard<'static, Ucma> {
    UCMA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, if it can be had soon.
fn ucma_soon() -> Option<MutexGuard<'static, Ucma>> {
    let until = Instant::now() + LAST_WORDS;
    loop {
        match UCMA.try_lock() {
            Ok(ucma) => return Some(ucma),
            Err(TryLockError::Poisoned(ucma)) => return Some(ucma.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// While this is, nobody is amid anything with identifiers: a process may fork, and its child finds them whole.
pub struct Still(MutexGuard<'static, Ucma>);

/// Waits until nobody is.
pub fn still() -> Still {
    Still(ucma())
}

impl Still {
    /// In the child.
    pub fn orphan(mut self) {
        self.0.state.orphan();
    }
}

/// From now on channels are this process's.
pub fn own() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

/// A bit for each descriptor that is a channel.
static OURS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// The process whose memory this is.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The word and the bit of a descriptor.
fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether a descriptor is a channel.
#[inline]
pub fn is_channel(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Whether this process may say what becomes of the channels. The child of a `vfork` may not: it has its parent's memory,
/// and only its descriptors are its own.
fn is_own() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

impl Ucma {
    /// Puts what the state has to say into the channels.
    fn deliver(&mut self, host: &mut Option<Host<'_>>) {
        for told in self.state.take_told() {
            if let Some(channel) = self.channels.get(&told.channel) {
                channel.push(told);
            }
        }
        loop {
            let gone = self.state.take_retracted();
            let Some(host) = host.as_mut().filter(|_| !gone.is_empty()) else { return };
            let back: Vec<Told> =
                self.channels.values().flat_map(|channel| channel.retract(|told| gone.contains(&told.id))).collect();
            // Requests that nobody will hear of.
            for new in back.iter().filter_map(|told| told.new) {
                let _ = self.state.command(host, -1, UcmaCommand::DestroyId { id: new });
            }
        }
    }
}

/// Opens a channel.
fn open_channel(flags: c_int) -> Result<RawFd, i32> {
    let channel = EventQueue::new()?;
    let fd = channel.fd();
    let (word, bit) = bit(fd).ok_or(libc::EMFILE)?;
    if flags & libc::O_NONBLOCK != 0 {
        // SAFETY: a descriptor of our own.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    }
    ucma().channels.insert(fd, Arc::new(channel));
    word.fetch_or(bit, Ordering::Relaxed);
    Ok(fd)
}

/// Closes a channel and whatever was made through it. False if it could not be found out what that is: in a child of
/// the process that opened it, which has the descriptor but not the device.
fn close_channel(fd: RawFd) -> bool {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    if adapter::current().is_some() {
        let _ = with_host(None, |ucma, host| ucma.state.close(host, fd));
    }
    // This may be a child that was made past the handlers, and another thread have held it.
    let channel = ucma_soon().map(|mut ucma| ucma.channels.remove(&fd));
    // To drop it closes the descriptor, unless somebody waits on it.
    matches!(channel, Some(Some(_)))
}

/// Calls `f` with the engine's connection manager, and sends what comes of it. `peer` is made reachable before.
fn with_host<R>(peer: Option<std::net::IpAddr>, f: impl FnOnce(&mut Ucma, &mut Host<'_>) -> R) -> Result<R, i32> {
    let adapter = adapter::open()?;
    prepare(adapter);
    let mut guard = adapter.lock().ok_or(libc::ENODEV)?;
    let route = peer.and_then(|peer| adapter.route(&mut guard, peer));
    let now = guard.now();
    let nic = guard.nic();
    if let Some(route) = route {
        nic.cm().set_link(route.remote, route.link);
    }
    let random = nic.random_psn().get();
    let host = Host {
        now,
        address: adapter.address,
        guid: device::guid(adapter.address),
        mtu: mtu_code(adapter.limits.port_mtu) as u8,
        reachable: route.is_some(),
        random,
        cm: nic.cm(),
    };
    let result = {
        let ucma = &mut *ucma();
        let mut host = Some(host);
        let result = host.as_mut().map(|host| f(ucma, host));
        ucma.deliver(&mut host);
        result
    };
    // The engine's events come back here: the lock above is free by now.
    guard.progress_once();
    result.ok_or(libc::EIO)
}

/// Once for each adapter, of which a child of the process has its own: takes the connection manager's events and sets its
/// times. And sees to the end of the process.
fn prepare(adapter: &'static Adapter) {
    static EXIT: Once = Once::new();
    // SAFETY: the function lives as long as the process.
    EXIT.call_once(|| _ = unsafe { libc::atexit(at_exit) });
    adapter.prepared.call_once(|| {
        adapter.targets.on_cm(Box::new(|event| {
            let random = remora_real::entropy().map_or(0, |[a, b, c, ..]| u32::from_be_bytes([0, a, b, c]));
            let mut ucma = ucma();
            ucma.state.follow(event, random);
            ucma.deliver(&mut None);
        }));
        if let Some(mut guard) = adapter.lock() {
            guard.nic().cm().configure(config(adapter));
        }
    });
}

/// Retries are far closer to each other than those of Linux: 0.5 s, as peers are near and links lose little.
fn config(adapter: &Adapter) -> CmConfig {
    CmConfig {
        ca_guid: u64::from_be_bytes(device::guid(adapter.address)),
        max_path_mtu: mtu_code(adapter.limits.port_mtu) as u8,
        // As Linux has it, with n = 24: programs may take a minute to accept.
        request_delay: 4096 << 24,
        max_delay: 120_000_000_000,
        peer_timeout: 5_000_000_000,
        listen_grace: 4_000_000_000,
        call_grace: 1_000_000_000,
        // Linux waits for the program for as long as the peer repeats itself.
        farewell: 500_000_000,
        timewait_events: true,
        ..CmConfig::default()
    }
}

/// The kernel would close a dead process's connections. A thread of its own does so here, as the one that ends may hold
/// any lock.
extern "C" fn at_exit() {
    if adapter::current().is_none() {
        // A child of the process that opened the device.
        return;
    }
    let (done, ended) = mpsc::channel();
    let last_words = move || {
        hang_up();
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(last_words).is_ok() {
        let _ = ended.recv_timeout(LAST_WORDS);
    }
}

/// Ends every connection, and waits until the peers have answered. Those that a program closed just before are among
/// them: a kernel would go on to repeat their DREQs.
fn hang_up() {
    let until = Instant::now() + LAST_WORDS;
    let told = with_host(None, |_, host| end_connections(host.cm, host.now));
    while told.is_ok() && Instant::now() < until {
        let Some(mut guard) = adapter::current().and_then(Adapter::lock) else { return };
        guard.settle();
        let idle = guard.progress_once() == 0;
        if !guard.nic().wants_transmit() && !guard.nic().cm().is_disconnecting() {
            return;
        }
        drop(guard);
        if idle {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Sends a DREQ for each connection, to be repeated as often as the last words allow.
pub(super) fn end_connections(cm: &mut Cm, now: u64) {
    cm.configure(CmConfig { response_timeout: LAST_TIMEOUT, ..cm.config().clone() });
    cm.disconnect_all(now);
}

/// Carries out a command that a program wrote to a channel.
///
/// # Safety
///
/// The addresses in it are those of the program's own memory, good for the lengths beside them.
unsafe fn command(fd: RawFd, bytes: &[u8]) -> Result<(), i32> {
    let request = abi::parse(bytes)?;
    let answer = match request.command {
        UcmaCommand::GetEvent => take_event(fd)?,
        UcmaCommand::SetOption { id, level, name, value: (address, len) } => {
            if address == 0 || len > 64 {
                return Err(libc::EINVAL);
            }
            // SAFETY: as the caller promises.
            let value = unsafe { std::slice::from_raw_parts(address as *const u8, len as usize) };
            ucma().state.set_option(id, level, name, value)?;
            Vec::new()
        }
        UcmaCommand::MigrateId { id, .. } => migrate(id, fd)?,
        ref command => {
            let peer = match command {
                UcmaCommand::ResolveAddr { destination: Address::Ip(address), .. } => Some(address.ip()),
                _ => None,
            };
            with_host(peer, |ucma, host| ucma.state.command(host, fd, command.clone()))??
        }
    };
    // SAFETY: as the caller promises.
    unsafe { respond(&request, &answer) }
}

/// Writes an answer where the program wants it.
///
/// # Safety
///
/// The request's address is good for writing as many bytes as it has room for.
unsafe fn respond(request: &UcmaRequest, answer: &[u8]) -> Result<(), i32> {
    /// What was added at the end of answers since the first programs.
    const ADDED: usize = 12;
    if answer.is_empty() {
        return Ok(());
    }
    if request.response == 0 {
        return Err(libc::EFAULT);
    }
    if request.room + ADDED < answer.len() || request.room < 4 {
        return Err(libc::ENOSPC);
    }
    let len = answer.len().min(request.room);
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(answer.as_ptr(), request.response as *mut u8, len) };
    Ok(())
}

/// The next event of a channel; waits for one unless its descriptor does not block.
fn take_event(fd: RawFd) -> Result<Vec<u8>, i32> {
    let channel = ucma().channels.get(&fd).cloned().ok_or(libc::EBADF)?;
    // Who waits does not poll: the NIC thread drives from now on.
    if let Some(adapter) = adapter::current() {
        adapter.device.release();
    }
    loop {
        channel.wait()?;
        // Locked in this order, as where events are told.
        let ucma = &mut *ucma();
        if let Some(told) = channel.take(|told| ucma.state.took(told.id)) {
            return Ok(told.bytes.to_vec());
        }
    }
}

/// Moves an identifier and its waiting events to a channel.
fn migrate(id: u32, to: RawFd) -> Result<Vec<u8>, i32> {
    let ucma = &mut *ucma();
    let target = ucma.channels.get(&to).cloned().ok_or(libc::EBADF)?;
    let (from, answer) = ucma.state.migrate(id, to)?;
    if let Some(channel) = ucma.channels.get(&from) {
        channel.retract(|told| told.id == id).into_iter().for_each(|told| target.push(told));
    }
    Ok(answer)
}

/// What opening the device's node comes to: a channel.
pub fn open(flags: c_int) -> c_int {
    open_channel(flags).unwrap_or_else(|code| {
        set_errno(code);
        -1
    })
}

/// `write`: to a channel, a command.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    if !is_channel(fd) {
        return next!(write: fn(c_int, *const c_void, usize) -> isize, fd, bytes, len);
    }
    if bytes.is_null() {
        set_errno(libc::EFAULT);
        return -1;
    }
    // SAFETY: as the caller promises.
    match unsafe { command(fd, std::slice::from_raw_parts(bytes.cast(), len)) } {
        Ok(()) => len as isize,
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}

/// `close`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_channel(fd) && is_own() {
        let before = errno();
        if close_channel(fd) {
            set_errno(before);
            return 0;
        }
    }
    next!(close: fn(c_int) -> c_int, fd)
}

/// `dup2`: what the new descriptor was is closed.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    give_way(old, new);
    next!(dup2: fn(c_int, c_int) -> c_int, old, new)
}

/// `dup3`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    give_way(old, new);
    next!(dup3: fn(c_int, c_int, c_int) -> c_int, old, new, flags)
}

/// Closes a channel whose descriptor is about to become another's.
fn give_way(old: c_int, new: c_int) {
    // SAFETY: a question about a descriptor.
    if old != new && is_channel(new) && is_own() && unsafe { libc::fcntl(old, libc::F_GETFD) } >= 0 {
        close_channel(new);
    }
}

/// `close_range`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first <= last && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        close_channels(first, last);
    }
    // musl has no such function, but programs that look for one find this.
    // SAFETY: the caller's arguments.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}

/// `closefrom`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    close_channels(first.max(0) as c_uint, c_uint::MAX);
    next!(closefrom: fn(c_int) -> (), first);
}

/// Closes the channels among these descriptors.
fn close_channels(first: c_uint, last: c_uint) {
    let last = last.min(OURS.len() as c_uint * 64 - 1);
    for fd in (first..=last).map(|fd| fd as c_int).filter(|&fd| is_channel(fd)) {
        if is_own() {
            close_channel(fd);
        }
    }
}
