//! `epoll` over connections with rings.
//!
//! The kernel's epoll stays what programs wait on. Each TCP socket is registered there under a mark instead of the
//! program's own data, so that an event of the kernel's can be looked up here. A socket with rings is *hot* while its rings
//! are looked at from here, and *cold* once it wishes for bells, which the kernel's epoll tells of: so waiting costs
//! nothing, whatever there is to wait for, and what is busy needs no kernel.

mod entries;
mod wait;

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, epoll_event};

use crate::link::Word;
use crate::socket::{self, Socket};
use crate::spin::Spin;
use crate::{own, sys};

pub use wait::{late, wait};

const IN: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const OUT: u32 = (EPOLLOUT | libc::EPOLLWRNORM) as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const RDHUP: u32 = EPOLLRDHUP as u32;
const HUP: u32 = EPOLLHUP as u32;
const ALWAYS: u32 = EPOLLERR as u32 | HUP;
const ET: u32 = EPOLLET as u32;
const ONESHOT: u32 = EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// What the kernel takes beside it.
const WITH_EXCLUSIVE: u32 = (EPOLLIN | EPOLLOUT | libc::EPOLLWAKEUP) as u32 | ALWAYS | ET | EXCLUSIVE;

/// First bits of the data of what is registered here.
const MARK: u64 = 0xd1ce << 48;
/// The place of what is no socket but the alarm.
const ALARM: u64 = 0xffff_ffff;
/// What the kernel tells of it.
const ALARM_EVENT: epoll_event = epoll_event { events: EPOLLIN as u32 | ET, u64: MARK | ALARM };
/// Waits that the rings serve, between two looks at the kernel.
const SERVED: u32 = 16;

/// Where a socket is watched.
pub struct Registered {
    epoll: Arc<Epoll>,
    index: usize,
    generation: u16,
}

/// A registration.
#[derive(Clone, Copy)]
struct Entry {
    fd: c_int,
    socket: &'static Socket,
    generation: u16,
    events: u32,
    data: u64,
    /// What the kernel watches.
    kernel: u32,
    hot: bool,
    /// How often it was made hot, or was to be.
    heated: u32,
    /// The program has taken it out; the kernel still has it.
    absent: bool,
    /// One that is to be told once has been.
    fired: bool,
    /// Edge-triggered: where the stream was when it was told of last; none if all is to be told.
    seen: Option<u64>,
}

#[derive(Default)]
struct Inner {
    /// One of its descriptors; -1 once all are closed. It is closed only after another one stands here: what is asked of the
    /// kernel under the lock is asked of this epoll.
    fd: c_int,
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    by_fd: HashMap<c_int, usize>,
    hot: Vec<usize>,
    generation: u16,
}

/// An epoll with TCP sockets in it, by whichever of its descriptors they are put there or waited for.
pub struct Epoll {
    inner: Spin<Inner>,
    /// An eventfd that the kernel watches too and that can always be read, to wake who sleeps; negative before the first time.
    alarm: AtomicI32,
    /// The kernel's has other processes, too.
    forked: AtomicBool,
    /// Threads in the kernel's wait.
    sleeping: AtomicU32,
    /// It is waited for itself, by another epoll or by `poll`: what is hot wishes for bells all the same.
    inside: AtomicBool,
    /// Waits since the kernel was asked.
    served: AtomicU32,
}

/// By descriptor: copies lead to the same one.
static EPOLLS: Spin<Option<HashMap<c_int, Arc<Epoll>>>> = Spin::new(None);
/// How many there have been.
static MADE: AtomicUsize = AtomicUsize::new(0);
/// Descriptors within an epoll that are no TCP sockets: there may be an epoll among them.
static INSIDE: Spin<Option<HashSet<c_int>>> = Spin::new(None);

fn find(epfd: c_int) -> Option<Arc<Epoll>> {
    EPOLLS.lock().as_ref()?.get(&epfd).cloned()
}

/// What is known of an epoll, from now on.
fn find_or_make(epfd: c_int) -> Arc<Epoll> {
    // Before the other lock: who forks takes them in this order.
    let inside = INSIDE.lock().as_ref().is_some_and(|inside| inside.contains(&epfd));
    let epoll = || {
        Arc::new(Epoll {
            inner: Spin::new(Inner { fd: epfd, ..Inner::default() }),
            alarm: AtomicI32::new(-1),
            forked: AtomicBool::new(false),
            sleeping: AtomicU32::new(0),
            inside: AtomicBool::new(inside),
            served: AtomicU32::new(0),
        })
    };
    MADE.fetch_add(1, Ordering::Relaxed);
    EPOLLS.lock().get_or_insert_default().entry(epfd).or_insert_with(epoll).clone()
}

/// A descriptor has become the copy `new` of another one. What is put into an epoll by either is told to who waits by either,
/// so it is to be known from now on, also if there is no TCP socket yet.
pub fn copied(fd: c_int, new: c_int) {
    let epoll = match sys::is_epoll(fd) {
        Some(false) => return,
        Some(true) => find_or_make(fd),
        None => match find(fd) {
            Some(epoll) => epoll,
            None => return,
        },
    };
    // Of a descriptor of that number that was closed past this library.
    closed(new);
    EPOLLS.lock().get_or_insert_default().insert(new, epoll);
}

/// A descriptor is closed that may be an epoll's.
pub fn closed(fd: c_int) {
    if let Some(inside) = INSIDE.lock().as_mut() {
        inside.remove(&fd);
    }
    let mut epolls = EPOLLS.lock();
    let Some(known) = epolls.as_mut() else { return };
    let Some(gone) = known.remove(&fd) else { return };
    let other = known.iter().find(|(_, epoll)| Arc::ptr_eq(epoll, &gone)).map(|(other, _)| *other);
    let mut inner = gone.inner.lock();
    if let Some(other) = other {
        inner.fd = if inner.fd == fd { other } else { inner.fd };
        return;
    }
    inner.fd = -1;
    let watched = std::mem::take(&mut inner.entries);
    *inner = Inner { fd: -1, ..Inner::default() };
    drop(inner);
    drop(epolls);
    let alarm = gone.alarm.swap(-1, Ordering::SeqCst);
    if alarm >= 0 {
        own::drop_number(alarm);
        // Only the kernel knows whether the number still leads to it.
        if !gone.forked.load(Ordering::Relaxed) && kernel_ctl(fd, libc::EPOLL_CTL_DEL, alarm, None) == 0 {
            sys::call!(SYS_close, alarm);
        }
    }
    for entry in watched.into_iter().flatten() {
        entry.socket.watched.lock().retain(|at| !Arc::ptr_eq(&at.epoll, &gone));
    }
}

/// Those of all epolls that are known.
pub fn descriptors() -> Vec<c_int> {
    EPOLLS.lock().iter().flat_map(|epolls| epolls.keys().copied()).collect()
}

/// A descriptor that is no TCP socket is put into an epoll.
pub fn put_inside(fd: c_int) {
    INSIDE.lock().get_or_insert_default().insert(fd);
    waited_for(fd);
}

/// A descriptor that is no TCP socket is waited for, by whatever means.
pub fn waited_for(fd: c_int) {
    if MADE.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(epoll) = find(fd)
        && !epoll.inside.swap(true, Ordering::SeqCst)
    {
        epoll.leave();
    }
}

fn kernel_ctl(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>) -> c_int {
    let event = event.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    sys::call!(SYS_epoll_ctl, epfd, op, fd, event) as c_int
}

/// What the kernel is to watch. Once both directions have changed over that is always the same: bells and the end, each
/// told once. So programs may change their minds without the kernel. Before, a socket that sends by its ring is always
/// writable for the kernel.
fn kernel_events(socket: &Socket, events: u32) -> u32 {
    match events & EXCLUSIVE {
        0 => kernel_events_for_all(socket, events),
        _ => kernel_events_for_all(socket, events) & WITH_EXCLUSIVE | EXCLUSIVE,
    }
}

fn kernel_events_for_all(socket: &Socket, events: u32) -> u32 {
    match socket.link() {
        Some(link)
            if link.own(Word::Switched) != 0
                // Of bells behind bytes that nobody takes the kernel tells once each, too.
                && (link.peer(Word::Drained) != 0 || events & IN == 0 && events & OUT != 0) =>
        {
            events & PRI | EPOLLIN as u32 | RDHUP | ET
        }
        Some(link) if link.own(Word::Switched) != 0 => events & !OUT,
        _ => events,
    }
}

impl Entry {
    fn event(&self, index: usize, events: u32) -> epoll_event {
        epoll_event { events, u64: MARK | u64::from(self.generation) << 32 | index as u64 }
    }

    /// What the kernel is to watch now.
    fn wanted(&self) -> u32 {
        let wanted = kernel_events(self.socket, self.events);
        if (self.absent || self.fired) && wanted & ET == 0 { 0 } else { wanted }
    }

    /// Has the kernel watch it, which does not yet.
    fn watch(&mut self, epfd: c_int, index: usize) {
        self.kernel = self.wanted();
        kernel_ctl(epfd, libc::EPOLL_CTL_ADD, self.fd, Some(self.event(index, self.kernel)));
    }

    /// Sees to it that the kernel watches what it is to.
    fn sync(&mut self, epfd: c_int, index: usize) -> c_int {
        let wanted = self.wanted();
        if !socket::leads(self.fd, self.socket) {
            // It was closed while a copy stays: the number is another one's by now, or nobody's.
            return 0;
        }
        if self.kernel == wanted {
            return 0;
        }
        let mut op = libc::EPOLL_CTL_MOD;
        if self.events & EXCLUSIVE != 0 {
            // It cannot be changed otherwise.
            kernel_ctl(epfd, libc::EPOLL_CTL_DEL, self.fd, None);
            op = libc::EPOLL_CTL_ADD;
        }
        let result = kernel_ctl(epfd, op, self.fd, Some(self.event(index, wanted)));
        if result == 0 {
            self.kernel = wanted;
        }
        result
    }
}

/// `epoll_ctl` for a TCP socket. A negative errno on failure.
pub fn control(epfd: c_int, op: c_int, fd: c_int, socket: &'static Socket, event: Option<epoll_event>) -> c_int {
    let epoll = match find(epfd) {
        Some(epoll) => epoll,
        None if op == libc::EPOLL_CTL_ADD => find_or_make(epfd),
        None => return kernel_ctl(epfd, op, fd, event),
    };
    // Another connection of the kernel's may take the place of one that is far.
    let _still = socket.far.load(Ordering::Relaxed).then(|| socket.settling.lock());
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => epoll.add(fd, socket, event),
        (libc::EPOLL_CTL_MOD, Some(event)) => epoll.change(fd, socket, event),
        (libc::EPOLL_CTL_DEL, _) => epoll.take_out(fd, socket),
        _ => kernel_ctl(epfd, op, fd, event),
    }
}

/// After `change` a socket's descriptors lead to another connection of the kernel's, which is watched as this one was. False, before
/// that, if it cannot be: the kernel watches by a number that is closed.
pub fn moved(watched: &[Registered], change: impl FnOnce() -> bool) -> bool {
    let mut epolls: Vec<&Arc<Epoll>> = watched.iter().map(|at| &at.epoll).collect();
    // Whoever takes several takes them in this order.
    epolls.sort_unstable_by_key(|epoll| Arc::as_ptr(epoll));
    epolls.dedup_by(|one, other| Arc::ptr_eq(one, other));
    let mut inners: Vec<_> = epolls.iter().map(|epoll| epoll.inner.lock()).collect();
    let place = |at: &Registered| epolls.iter().position(|epoll| Arc::ptr_eq(epoll, &at.epoll));
    let places: Vec<_> = watched.iter().filter_map(|at| Some((place(at)?, at))).collect();
    let entry = |inner: &Inner, at: &Registered| inner.get(at.index, at.generation).copied();
    let known = |(place, at): &(usize, &Registered)| {
        entry(&inners[*place], at).map(|entry| (inners[*place].fd, entry.fd, entry.socket))
    };
    let all: Vec<_> = places.iter().filter_map(known).collect();
    if all.iter().any(|(_, fd, socket)| !socket::leads(*fd, socket)) {
        return false;
    }
    // It is not closed, and would be told of for ever.
    all.iter().for_each(|(epfd, fd, _)| _ = kernel_ctl(*epfd, libc::EPOLL_CTL_DEL, *fd, None));
    let done = change();
    for (place, at) in places {
        let epfd = inners[place].fd;
        if let Some(entry) = inners[place].get_mut(at.index, at.generation) {
            entry.watch(epfd, at.index);
        }
    }
    done
}

/// A socket's last descriptor is closed: the kernel forgets it, too.
pub fn forget(socket: &Socket) {
    let watched = std::mem::take(&mut *socket.watched.lock());
    for at in watched {
        let mut inner = at.epoll.inner.lock();
        if inner.get(at.index, at.generation).is_some() {
            inner.remove(at.index);
        }
    }
}

/// A socket sends by its ring now: the kernel is asked no longer whether there is room.
pub fn switched(socket: &Socket) {
    for at in socket.watched.lock().iter() {
        let mut inner = at.epoll.inner.lock();
        let epfd = inner.fd;
        if let Some(entry) = inner.get_mut(at.index, at.generation) {
            // A sender that found no room in the kernel is to hear of the ring's.
            entry.seen = None;
            entry.sync(epfd, at.index);
            inner.heat(at.index);
        }
        drop(inner);
        at.epoll.changed(at.index);
    }
}

/// A socket has rings no more: the kernel is asked for everything.
pub fn left(socket: &Socket) {
    socket.watched.lock().retain(|at| {
        let mut inner = at.epoll.inner.lock();
        let epfd = inner.fd;
        let Some(entry) = inner.get_mut(at.index, at.generation) else { return false };
        let stays = !entry.absent;
        match stays {
            true => drop(entry.sync(epfd, at.index)),
            false => {
                kernel_ctl(epfd, libc::EPOLL_CTL_DEL, entry.fd, None);
                inner.remove(at.index);
            }
        }
        stays
    });
}

/// A sender has found no room: a thread that sleeps since there was some is to hear of it when there is again.
pub fn full(socket: &Socket) {
    for at in socket.watched.lock().iter() {
        at.epoll.inner.lock().heat(at.index);
        at.epoll.changed(at.index);
    }
}

/// Bells were taken: nothing more comes of the kernel's epoll, so that rings are looked at. Who sleeps there is woken.
pub fn heat(socket: &Socket) {
    let watched = socket.watched.lock();
    for at in watched.iter() {
        at.epoll.inner.lock().heat(at.index);
        match at.epoll.sleeping.load(Ordering::SeqCst) {
            0 => at.epoll.changed(at.index),
            _ => at.epoll.wake(),
        }
    }
}

/// Before this process forbids itself to make what it may need.
pub fn sealing() {
    let epolls: Vec<_> = EPOLLS.lock().iter().flat_map(|epolls| epolls.values().cloned()).collect();
    for epoll in &epolls {
        epoll.alarm();
    }
}

/// Before a fork.
pub fn hold() {
    INSIDE.hold();
    EPOLLS.hold();
    each(|epoll| epoll.inner.hold());
}

/// After it, in both.
pub fn release() {
    each(|epoll| epoll.inner.release());
    EPOLLS.release();
    INSIDE.release();
}

/// After it, in the child: nobody sleeps here.
pub fn forked() {
    for epoll in EPOLLS.lock().iter().flat_map(|epolls| epolls.values()) {
        epoll.sleeping.store(0, Ordering::SeqCst);
        epoll.forked.store(true, Ordering::Relaxed);
    }
}

/// Each once, however many descriptors lead to it.
fn each(act: impl Fn(&Epoll)) {
    // SAFETY: the lock is held by whoever forks.
    if let Some(epolls) = unsafe { EPOLLS.held() } {
        let mut seen = HashSet::new();
        epolls.values().filter(|epoll| seen.insert(Arc::as_ptr(epoll))).for_each(|epoll| act(epoll));
    }
}
