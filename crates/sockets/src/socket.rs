//! A connection as this process has it, and the table of descriptors.
//!
//! A socket begins `Plain`: the kernel does everything, and calls are counted. When it proves busy the daemon is told
//! (`Waiting`); when the other end is there too it is `Ringed`. One for which the rack cannot do what the kernel does
//! stays with the kernel: `Never`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use remora_rack::Endpoint;

use crate::epoll::Registered;
use crate::far::Passed;
use crate::gate::Names;
use crate::link::{Link, Word};
use crate::sharers::Sharers;
use crate::spin::Spin;
use crate::{rack, sys};

/// Of a socket.
pub mod state {
    pub const PLAIN: u8 = 0;
    pub const WAITING: u8 = 1;
    pub const RINGED: u8 = 2;
    pub const NEVER: u8 = 3;
}

/// Whether a program that takes this one's place is to have a socket that has rings.
pub mod stays {
    /// It is closed then.
    pub const NO: u8 = 0;
    /// It stays, as all do of which nothing is said.
    pub const UNSAID: u8 = 1;
    /// It was said to stay.
    pub const SAID: u8 = 2;
}

/// Standard input, output and errors: what the C library reads and writes by itself, past this one.
pub const STANDARD: std::ops::Range<c_int> = 0..3;

/// One end of a connection. Never freed, but used again.
#[derive(Default)]
pub struct Socket {
    pub state: AtomicU8,
    /// Calls so far, while it is plain.
    pub ops: AtomicU32,
    /// Calls since the daemon was told of it.
    pub looks: AtomicU32,
    /// Descriptors of this process.
    fds: AtomicU32,
    /// Calls under way in this process.
    users: AtomicU32,
    /// Short calls of the kernel's on its descriptors, which stay what they are meanwhile.
    touches: AtomicU32,
    /// Of these, what is in the kernel and may send or take bytes there.
    kernel_tx: AtomicU32,
    kernel_rx: AtomicU32,
    /// No new ones may begin.
    pub no_kernel_tx: AtomicBool,
    pub no_kernel_rx: AtomicBool,
    /// This process has seen to it that sending, and receiving, are no longer the kernel's: a peer cannot take that back.
    pub sends_by_ring: AtomicBool,
    pub looks_at_ring: AtomicBool,
    /// Both directions are as they will stay.
    pub settled: AtomicBool,
    /// One thread at a time sees to that.
    pub settling: Spin<()>,
    /// Sending stays with the kernel: before this end changed over it was ended there, or something urgent was sent.
    pub kernel_sends: AtomicBool,
    /// `shutdown(SHUT_RD)`.
    pub deaf: AtomicBool,
    /// A sender was told that there is no room, and has not been told since that there is.
    pub blocked: AtomicBool,
    /// Threads of this process that sleep until a bell comes, or are about to: while there are any, bells stay where all
    /// of them hear them.
    pub sleepers: Spin<u32>,
    /// Nobody has it.
    spare: AtomicBool,
    /// Nanoseconds, or 0.
    pub rx_timeout: AtomicU64,
    pub tx_timeout: AtomicU64,
    link: UnsafeCell<Option<Link>>,
    /// When the daemon was told of it.
    pub told: AtomicU64,
    /// What the daemon knows it by.
    pub endpoint: Spin<Option<Endpoint>>,
    /// What the program takes its addresses for, if it goes by the gate.
    pub names: Spin<Option<Names>>,
    /// It may be one of the kernel's to the other rack, which is to go on by the gate once much has passed.
    pub far: AtomicBool,
    pub passed: Spin<Passed>,
    /// It has gone on so: another connection of the kernel's has taken its place.
    pub moved: AtomicBool,
    /// Where it is watched.
    pub watched: Spin<Vec<Registered>>,
    /// The kernel's number of it, once it has rings.
    pub cookie: AtomicU64,
    /// Whether a program that takes this one's place is to have it, of [`stays`].
    pub stays: AtomicU8,
    /// Which processes have it, once it was shared by a fork before it had rings; null if it never was.
    pub sharers: AtomicPtr<Sharers>,
}

// SAFETY: the link is written before the state says that it is there, and taken away when nobody uses the socket.
unsafe impl Sync for Socket {}

impl<T: Default> Default for Spin<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl Socket {
    pub fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// Whether a program that takes this one's place is to have it.
    pub fn stays(&self) -> bool {
        self.stays.load(Ordering::Relaxed) != stays::NO
    }

    /// Whether the C library may read or write it by itself.
    pub fn is_standard(&self) -> bool {
        STANDARD.clone().any(|fd| find(fd).is_some_and(|found| found.same(self)))
    }

    /// The rings, once there are any.
    #[inline]
    pub fn link(&self) -> Option<&Link> {
        if self.state() != state::RINGED {
            return None;
        }
        // SAFETY: written before the state, and not changed while the caller's use of the socket lasts.
        unsafe { (*self.link.get()).as_ref() }
    }

    /// From now on it has rings, unless it has become one that never will.
    pub fn set_link(&self, link: Link) {
        // SAFETY: the state does not say yet that it may be read, and one thread at a time comes here.
        unsafe { *self.link.get() = Some(link) };
        let (waiting, ringed) = (state::WAITING, state::RINGED);
        let _ = self.state.compare_exchange(waiting, ringed, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The rack does nothing for it, if it has no rings yet.
    pub fn never(&self) {
        let change = |now| (now != state::RINGED).then_some(state::NEVER);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// Its connection is no more, and the next one it has is the kernel's.
    pub fn leave_rings(&self) {
        let known = self.endpoint.lock().take();
        // Who is in a call looks at the rings until that ends.
        known.into_iter().for_each(|endpoint| rack::detach(endpoint, false));
        self.state.store(state::NEVER, Ordering::Release);
        for flag in [&self.no_kernel_tx, &self.no_kernel_rx, &self.kernel_sends, &self.deaf, &self.blocked] {
            flag.store(false, Ordering::SeqCst);
        }
    }

    /// Begins a call that sends by the kernel. None if the ring is the way by now.
    pub fn enter_kernel_tx(&self) -> Option<Entered<'_>> {
        enter(&self.kernel_tx, &self.no_kernel_tx, || self.sends_by_ring())
    }

    /// Begins a call that receives from the kernel. None if the receiver is to look at both by now.
    pub fn enter_kernel_rx(&self) -> Option<Entered<'_>> {
        enter(&self.kernel_rx, &self.no_kernel_rx, || self.looks_at_ring())
    }

    /// Whether what is sent goes by the ring.
    pub fn sends_by_ring(&self) -> bool {
        let seen = || self.sends_by_ring.load(Ordering::Acquire);
        self.link().is_some_and(|link| link.own(Word::Switched) != 0 || seen())
    }

    /// Whether who receives looks at both, the kernel's and the ring's.
    pub fn looks_at_ring(&self) -> bool {
        let seen = || self.looks_at_ring.load(Ordering::Acquire);
        self.link().is_some_and(|link| link.peer(Word::Ready) != 0 || seen())
    }

    /// A descriptor that leads here: this one if it does, else another one.
    pub fn descriptor(&self, fd: c_int) -> Option<c_int> {
        if leads(fd, self) {
            return Some(fd);
        }
        descriptors().find(|(_, other)| std::ptr::eq(*other, self)).map(|(fd, _)| fd)
    }

    /// A descriptor for a short call of the kernel's, which nobody closes meanwhile. None if all are closed: the number may be
    /// another one's by now.
    #[inline]
    pub fn touch(&self, fd: c_int) -> Option<Touch<'_>> {
        self.touches.fetch_add(1, Ordering::SeqCst);
        let touch = Touch { socket: self, fd };
        if leads(fd, self) {
            return Some(touch);
        }
        let fd = self.descriptor(fd)?;
        leads(fd, self).then(|| {
            std::mem::forget(touch);
            Touch { socket: self, fd }
        })
    }

    /// Counts the caller as one that sleeps. Before it makes its wish: a bell that comes after that is then not taken by
    /// another thread.
    pub fn falling_asleep(&self) -> Asleep<'_> {
        *self.sleepers.lock() += 1;
        Asleep(self)
    }

    /// Whether no thread sends, receives or waits by the kernel.
    pub fn is_quiet(&self) -> bool {
        let calls = [&self.kernel_tx, &self.kernel_rx].map(|count| count.load(Ordering::SeqCst));
        calls == [0; 2] && *self.sleepers.lock() == 0
    }

    /// Keeps calls out of the kernel's sending side. False if there are some.
    pub fn stop_kernel_tx(&self) -> bool {
        stop(&self.kernel_tx, &self.no_kernel_tx)
    }

    pub fn stop_kernel_rx(&self) -> bool {
        stop(&self.kernel_rx, &self.no_kernel_rx)
    }

    pub fn in_use_elsewhere(&self) -> bool {
        self.sharers().is_some_and(Sharers::are_several)
    }

    /// Which processes have it, if it was ever shared before it had rings.
    pub fn sharers(&self) -> Option<&'static Sharers> {
        // SAFETY: null, or one that is never unmapped.
        unsafe { self.sharers.load(Ordering::Acquire).as_ref() }
    }

    /// The last descriptor is closed and no call is under way.
    fn free(&'static self) {
        let mut free = FREE.lock();
        let used = self.fds.load(Ordering::SeqCst) != 0 || self.users.load(Ordering::SeqCst) != 0;
        if used || self.spare.swap(true, Ordering::SeqCst) {
            return;
        }
        let forked = self.link().is_some_and(|link| link.own(Word::Forked) != 0);
        let known = self.endpoint.lock().take();
        if let Some(endpoint) = known {
            rack::detach(endpoint, !forked);
            rack::ended(sys::now() - self.told.load(Ordering::Relaxed));
        }
        // SAFETY: nobody is in a call, and no descriptor leads here.
        unsafe { *self.link.get() = None };
        free.push(self);
    }
}

/// A thread sleeps, as far as others know.
pub struct Asleep<'a>(&'a Socket);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        // There are none after a fork.
        let mut sleepers = self.0.sleepers.lock();
        *sleepers = sleepers.saturating_sub(1);
    }
}

/// A thread is in the kernel's wait for a socket, which stays what it is meanwhile.
pub struct Still(Used);

impl Still {
    pub fn new(used: Used) -> Self {
        *used.sleepers.lock() += 1;
        Self(used)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        // There are none after a fork.
        let mut sleepers = self.0.sleepers.lock();
        *sleepers = sleepers.saturating_sub(1);
    }
}

/// A short call of the kernel's may be made on this descriptor.
pub struct Touch<'a> {
    socket: &'a Socket,
    /// The descriptor.
    pub fd: c_int,
}

impl Drop for Touch<'_> {
    fn drop(&mut self) {
        self.socket.touches.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A call is in the kernel and may send or take bytes there.
pub struct Entered<'a>(&'a AtomicU32);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn enter<'a>(count: &'a AtomicU32, stopped: &AtomicBool, changed: impl Fn() -> bool) -> Option<Entered<'a>> {
    loop {
        count.fetch_add(1, Ordering::SeqCst);
        let entered = Entered(count);
        if !stopped.load(Ordering::SeqCst) {
            return Some(entered);
        }
        drop(entered);
        if changed() {
            return None;
        }
        sys::give_way();
    }
}

fn stop(count: &AtomicU32, stopped: &AtomicBool) -> bool {
    stopped.store(true, Ordering::SeqCst);
    if count.load(Ordering::SeqCst) == 0 {
        return true;
    }
    stopped.store(false, Ordering::SeqCst);
    false
}

/// Sockets to be used again.
static FREE: Spin<Vec<&'static Socket>> = Spin::new(Vec::new());

/// Descriptors in a chunk of the table.
const CHUNK: usize = 1024;
/// Chunks: descriptors beyond are the kernel's alone.
const CHUNKS: usize = 1024;

type Entry = AtomicPtr<Socket>;
static TABLE: [AtomicPtr<[Entry; CHUNK]>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];

fn entry(fd: c_int) -> Option<&'static Entry> {
    let fd = usize::try_from(fd).ok()?;
    let chunk = TABLE.get(fd / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: null, or a chunk that is never freed.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[fd % CHUNK])
}

fn entry_or_new(fd: c_int) -> Option<&'static Entry> {
    let at = TABLE.get(usize::try_from(fd).ok()? / CHUNK)?;
    if at.load(Ordering::Acquire).is_null() {
        let chunk = Box::into_raw(Box::new([const { AtomicPtr::new(null_mut()) }; CHUNK]));
        if at.compare_exchange(null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was quicker; nobody has seen this one.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
    entry(fd)
}

/// A socket in use: it stays what it is while this lives.
pub struct Used(&'static Socket);

impl std::ops::Deref for Used {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        self.0
    }
}

impl Used {
    pub fn same(&self, other: &Socket) -> bool {
        std::ptr::eq(self.0, other)
    }

    pub fn address(&self) -> &'static Socket {
        self.0
    }
}

impl Drop for Used {
    #[inline]
    fn drop(&mut self) {
        let last = self.0.users.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.0.fds.load(Ordering::SeqCst) == 0 {
            self.0.free();
        }
    }
}

/// The socket behind a descriptor, if it is one that the rack may have.
#[inline]
pub fn find(fd: c_int) -> Option<Used> {
    let entry = entry(fd)?;
    loop {
        let found = entry.load(Ordering::Acquire);
        // SAFETY: null, or a socket that is never freed.
        let socket = unsafe { found.as_ref() }?;
        socket.users.fetch_add(1, Ordering::SeqCst);
        let used = Used(socket);
        if std::ptr::eq(entry.load(Ordering::SeqCst), found) {
            return Some(used);
        }
    }
}

/// Whether a descriptor leads to a socket.
#[inline]
pub fn leads(fd: c_int, socket: &Socket) -> bool {
    entry(fd).is_some_and(|entry| std::ptr::eq(entry.load(Ordering::SeqCst), socket))
}

/// A socket that is known, in use; none if its descriptors are all closed.
pub fn hold_on(socket: &'static Socket) -> Option<Used> {
    socket.users.fetch_add(1, Ordering::SeqCst);
    let used = Used(socket);
    (socket.fds.load(Ordering::SeqCst) != 0).then_some(used)
}

/// Whether any descriptor leads to a socket.
pub fn is_open(socket: &Socket) -> bool {
    socket.fds.load(Ordering::SeqCst) != 0
}

/// New sockets are the kernel's alone.
static KERNELS: AtomicBool = AtomicBool::new(false);

/// From now on they are.
pub fn keep_to_kernel() {
    KERNELS.store(true, Ordering::SeqCst);
}

/// A descriptor is a new TCP socket.
pub fn add(fd: c_int) {
    let Some(entry) = entry_or_new(fd) else { return };
    let mut free = FREE.lock();
    let spare = free.pop();
    // Before it is none of the spare ones: who has just used it would find it unused, and put it there again.
    spare.inspect(|socket| socket.fds.store(1, Ordering::SeqCst));
    drop(free);
    let socket: &'static Socket = match spare {
        Some(socket) => socket.reset(),
        None => Box::leak(Box::new(Socket { fds: AtomicU32::new(1), ..Socket::default() })),
    };
    if KERNELS.load(Ordering::SeqCst) {
        socket.never();
    }
    let before = entry.swap(std::ptr::from_ref(socket).cast_mut(), Ordering::AcqRel);
    forget(before);
}

/// A descriptor is another one's copy.
pub fn copy(from: c_int, to: c_int) {
    let Some(socket) = find(from) else { return };
    let Some(entry) = entry_or_new(to) else { return };
    socket.fds.fetch_add(1, Ordering::SeqCst);
    let before = entry.swap(std::ptr::from_ref(socket.address()).cast_mut(), Ordering::AcqRel);
    forget(before);
}

/// A descriptor is about to be closed. `last` is done before if it was the process's last one of its socket.
pub fn remove(fd: c_int, last: impl FnOnce(&Socket)) {
    let Some(socket) = find(fd) else { return };
    let Some(entry) = entry(fd) else { return };
    let found = std::ptr::from_ref(socket.address()).cast_mut();
    if entry.compare_exchange(found, null_mut(), Ordering::SeqCst, Ordering::Acquire).is_err() {
        return;
    }
    // Who has seen it lead here makes a call that does not wait.
    while socket.touches.load(Ordering::SeqCst) != 0 {
        sys::give_way();
    }
    if socket.fds.fetch_sub(1, Ordering::SeqCst) == 1 {
        last(&socket);
    }
}

/// The descriptors of all sockets.
pub fn descriptors() -> impl Iterator<Item = (c_int, &'static Socket)> {
    let chunks = TABLE.iter().enumerate().filter_map(|(index, chunk)| {
        // SAFETY: null, or a chunk that is never freed.
        Some((index, unsafe { chunk.load(Ordering::Acquire).as_ref() }?))
    });
    chunks.flat_map(|(index, chunk)| {
        chunk.iter().enumerate().filter_map(move |(at, entry)| {
            // SAFETY: null, or a socket that is never freed.
            Some(((index * CHUNK + at) as c_int, unsafe { entry.load(Ordering::Acquire).as_ref() }?))
        })
    })
}

/// The sockets of all descriptors, for who keeps others from closing them.
pub fn all_raw() -> impl Iterator<Item = &'static Socket> {
    descriptors().map(|(_, socket)| socket)
}

/// What a table's entry led to, which was closed past this library.
fn forget(before: *mut Socket) {
    // SAFETY: null, or a socket that is never freed.
    let Some(socket) = (unsafe { before.as_ref() }) else { return };
    socket.users.fetch_add(1, Ordering::SeqCst);
    let _used = Used(socket);
    socket.fds.fetch_sub(1, Ordering::SeqCst);
}

impl Socket {
    fn reset(&'static self) -> &'static Self {
        self.state.store(state::PLAIN, Ordering::Release);
        for count in [&self.ops, &self.looks, &self.touches, &self.kernel_tx, &self.kernel_rx] {
            count.store(0, Ordering::Relaxed);
        }
        for flag in [
            &self.no_kernel_tx,
            &self.no_kernel_rx,
            &self.sends_by_ring,
            &self.looks_at_ring,
            &self.settled,
            &self.kernel_sends,
            &self.deaf,
            &self.blocked,
            &self.far,
            &self.moved,
            &self.spare,
        ] {
            flag.store(false, Ordering::Relaxed);
        }
        self.stays.store(0, Ordering::Relaxed);
        for time in [&self.rx_timeout, &self.tx_timeout, &self.cookie] {
            time.store(0, Ordering::Relaxed);
        }
        self.watched.lock().clear();
        *self.names.lock() = None;
        *self.passed.lock() = Passed::default();
        self.sharers.store(null_mut(), Ordering::Release);
        self
    }
}

/// Before a fork: nothing of this is half done.
pub fn hold() {
    FREE.hold();
}

pub fn release() {
    FREE.release();
}

impl Socket {
    /// Before a fork.
    pub fn hold(&self) {
        self.endpoint.hold();
        self.settling.hold();
        self.watched.hold();
        self.sleepers.hold();
        self.names.hold();
        self.passed.hold();
    }

    /// After it, in both.
    pub fn release(&self) {
        self.passed.release();
        self.names.release();
        self.sleepers.release();
        self.watched.release();
        self.settling.release();
        self.endpoint.release();
    }

    /// After it, in the child: what other threads of the parent's are at is not done here.
    pub fn forked(&self) {
        *self.sleepers.lock() = 0;
        for count in [&self.touches, &self.kernel_tx, &self.kernel_rx] {
            count.store(0, Ordering::SeqCst);
        }
    }
}
