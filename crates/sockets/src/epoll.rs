//! `epoll` over connections with rings.
//!
//! The kernel's epoll stays what programs wait on. Each TCP socket is registered there under a mark instead of the
//! program's own data, so that an event of the kernel's can be looked up here. A socket with rings is *hot* while its rings
//! are looked at from here, and *cold* once it wishes for bells, which the kernel's epoll tells of: so waiting costs
//! nothing, whatever there is to wait for, and what is busy needs no kernel.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, epoll_event};

use crate::link::{Link, WANT_DATA, WANT_ROOM, Word};
use crate::socket::{self, Socket};
use crate::spin::{Guard, Spin};
use crate::wait::{NAP, SHARED};
use crate::{own, signals, spin, stream, sys};

const IN: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const OUT: u32 = (EPOLLOUT | libc::EPOLLWRNORM) as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const RDHUP: u32 = EPOLLRDHUP as u32;
const ALWAYS: u32 = (EPOLLERR | EPOLLHUP) as u32;
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

    /// Sees to it that the kernel watches what it is to.
    fn sync(&mut self, epfd: c_int, index: usize) -> c_int {
        let mut wanted = kernel_events(self.socket, self.events);
        if !socket::leads(self.fd, self.socket) {
            // It was closed while a copy stays: the number is another one's by now, or nobody's.
            return 0;
        }
        if (self.absent || self.fired) && wanted & ET == 0 {
            wanted = 0;
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
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => epoll.add(fd, socket, event),
        (libc::EPOLL_CTL_MOD, Some(event)) => epoll.change(fd, socket, event),
        (libc::EPOLL_CTL_DEL, _) => epoll.take_out(fd, socket),
        _ => kernel_ctl(epfd, op, fd, event),
    }
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

impl Inner {
    fn get(&self, index: usize, generation: u16) -> Option<&Entry> {
        self.entries.get(index)?.as_ref().filter(|entry| entry.generation == generation)
    }

    fn get_mut(&mut self, index: usize, generation: u16) -> Option<&mut Entry> {
        self.entries.get_mut(index)?.as_mut().filter(|entry| entry.generation == generation)
    }

    /// Where a socket is registered by a descriptor: another one may have been before, by the same number.
    fn find(&self, fd: c_int, socket: &Socket) -> Option<usize> {
        let index = self.by_fd.get(&fd).copied()?;
        self.entries[index].is_some_and(|entry| std::ptr::eq(entry.socket, socket)).then_some(index)
    }

    fn remove(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index).and_then(Option::take) {
            if self.by_fd.get(&entry.fd) == Some(&index) {
                self.by_fd.remove(&entry.fd);
            }
            self.hot.retain(|hot| *hot != index);
            self.free.push(index);
        }
    }

    /// What a program asks of an entry from now on.
    fn change(&mut self, index: usize, event: epoll_event) -> c_int {
        let epfd = self.fd;
        let Some(Some(entry)) = self.entries.get_mut(index) else { return -libc::ENOENT };
        if (entry.events | event.events) & EXCLUSIVE != 0 {
            return -libc::EINVAL;
        }
        let before = *entry;
        *entry = Entry { events: event.events, data: event.u64, absent: false, fired: false, seen: None, ..before };
        let by_rings = |link: &Link| link.own(Word::Switched) != 0 && link.peer(Word::Drained) != 0;
        if event.events & ET != 0 && !entry.socket.link().is_some_and(by_rings) {
            // Who is told of changes only hears again of all that there is, if the kernel is asked again, for the same.
            entry.kernel = u32::MAX;
        }
        let result = entry.sync(epfd, index);
        if result != 0 {
            *entry = before;
        } else if entry.socket.link().is_some() {
            self.heat(index);
        }
        result
    }

    fn heat(&mut self, index: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(index)
            && !entry.absent
        {
            entry.heated = entry.heated.wrapping_add(1);
            if !entry.hot {
                entry.hot = true;
                self.hot.push(index);
            }
        }
    }
}

impl Epoll {
    fn add(self: Arc<Self>, fd: c_int, socket: &'static Socket, event: epoll_event) -> c_int {
        let mut inner = self.inner.lock();
        if let Some(index) = inner.by_fd.get(&fd).copied()
            && let Some(Some(entry)) = inner.entries.get_mut(index)
            && std::ptr::eq(entry.socket, socket)
        {
            if !entry.absent {
                return -libc::EEXIST;
            }
            if event.events & EXCLUSIVE == 0 {
                return self.change_entry(inner, index, event);
            }
            kernel_ctl(inner.fd, libc::EPOLL_CTL_DEL, fd, None);
            inner.remove(index);
        }
        inner.generation = inner.generation.wrapping_add(1);
        let entry = Entry {
            fd,
            socket,
            generation: inner.generation,
            events: event.events,
            data: event.u64,
            kernel: kernel_events(socket, event.events),
            hot: false,
            heated: 0,
            absent: false,
            fired: false,
            seen: None,
        };
        if event.events & EXCLUSIVE != 0 && event.events & !WITH_EXCLUSIVE != 0 {
            return -libc::EINVAL;
        }
        let index = inner.free.pop().unwrap_or(inner.entries.len());
        let result = kernel_ctl(inner.fd, libc::EPOLL_CTL_ADD, fd, Some(entry.event(index, entry.kernel)));
        if result != 0 {
            if index < inner.entries.len() {
                inner.free.push(index);
            }
            return result;
        }
        if index == inner.entries.len() {
            inner.entries.push(None);
        }
        if let Some(old) = inner.by_fd.insert(fd, index)
            && inner.entries[old].is_none_or(|old| !socket::is_open(old.socket))
        {
            // It was closed past this library. Of one that has a copy the kernel goes on telling.
            inner.remove(old);
        }
        inner.entries[index] = Some(entry);
        if socket.link().is_some() {
            inner.heat(index);
        }
        drop(inner);
        self.changed(index);
        socket.watched.lock().push(Registered { epoll: self, index, generation: entry.generation });
        0
    }

    /// What an entry is watched for has changed, of which the kernel has heard nothing: who sleeps in its wait is woken if
    /// there is something to tell now, and hears of what comes later.
    fn changed(&self, index: usize) {
        if self.sleeping.load(Ordering::SeqCst) == 0 && !self.inside.load(Ordering::SeqCst) {
            return;
        }
        let entry = self.inner.lock().entries.get(index).copied().flatten();
        if entry.is_some_and(|entry| {
            entry.wish();
            entry.is_ready() || entry.is_out_of_hearing()
        }) {
            self.wake();
        }
    }

    /// What wakes who sleeps in the kernel's wait; -1 if there is none.
    fn alarm(&self) -> c_int {
        let inner = self.inner.lock();
        if self.alarm.load(Ordering::Relaxed) < 0 && !sys::is_sealed() {
            // It can be read, and told of as often as it is written.
            let alarm = sys::call!(SYS_eventfd2, 1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as c_int;
            if alarm >= 0 {
                let alarm = own::raise(alarm);
                kernel_ctl(inner.fd, libc::EPOLL_CTL_ADD, alarm, Some(ALARM_EVENT));
                self.alarm.store(alarm, Ordering::Relaxed);
            }
        }
        self.alarm.load(Ordering::Relaxed)
    }

    /// Wakes who sleeps in the kernel's wait, once.
    fn wake(&self) {
        if sys::is_sealed() {
            let one = 1u64;
            sys::call!(SYS_write, self.alarm(), &raw const one, 8usize);
            return;
        }
        // Watched anew it is told of anew; another file by its number the kernel does not take for it.
        let rings = |alarm: c_int| {
            alarm >= 0 && kernel_ctl(self.inner.lock().fd, libc::EPOLL_CTL_MOD, alarm, Some(ALARM_EVENT)) == 0
        };
        let alarm = self.alarm();
        if rings(alarm) {
            return;
        }
        if alarm >= 0 {
            // The program has closed it.
            own::drop_number(alarm);
            let _ = self.alarm.compare_exchange(alarm, -1, Ordering::SeqCst, Ordering::SeqCst);
        }
        if !rings(self.alarm()) {
            self.wake_by_socket();
        }
    }

    /// The same without a descriptor, where there is none: the kernel can send on a socket with rings, and says so.
    fn wake_by_socket(&self) {
        let mut inner = self.inner.lock();
        let epfd = inner.fd;
        for (index, entry) in inner.entries.iter_mut().enumerate() {
            let Some(entry) = entry.as_mut().filter(|entry| entry.events & EXCLUSIVE == 0) else { continue };
            if socket::leads(entry.fd, entry.socket) && entry.socket.link().is_some() {
                let event = entry.event(index, kernel_events(entry.socket, entry.events) | EPOLLOUT as u32 | ET);
                if kernel_ctl(epfd, libc::EPOLL_CTL_MOD, entry.fd, Some(event)) == 0 {
                    // As it was when that is told.
                    entry.kernel = u32::MAX;
                    return;
                }
            }
        }
    }

    fn change_entry(&self, mut inner: Guard<'_, Inner>, index: usize, event: epoll_event) -> c_int {
        let result = inner.change(index, event);
        drop(inner);
        self.changed(index);
        result
    }

    fn change(&self, fd: c_int, socket: &Socket, event: epoll_event) -> c_int {
        let inner = self.inner.lock();
        match inner.find(fd, socket) {
            Some(index) if inner.entries[index].is_some_and(|entry| entry.absent) => -libc::ENOENT,
            Some(index) => self.change_entry(inner, index, event),
            None => kernel_ctl(inner.fd, libc::EPOLL_CTL_MOD, fd, Some(event)),
        }
    }

    fn take_out(self: &Arc<Self>, fd: c_int, socket: &Socket) -> c_int {
        let mut inner = self.inner.lock();
        let (epfd, index) = (inner.fd, inner.find(fd, socket));
        let Some((index, Some(entry))) = index.map(|index| (index, inner.entries[index].as_mut())) else {
            return kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        };
        if entry.absent {
            return -libc::ENOENT;
        }
        // Programs that take out what they put in a moment later need no kernel for that.
        if entry.kernel & ET != 0 && entry.kernel & EXCLUSIVE == 0 && socket.link().is_some() {
            entry.absent = true;
            entry.hot = false;
            inner.hot.retain(|hot| *hot != index);
            return 0;
        }
        let result = kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        if result == 0 {
            inner.remove(index);
            drop(inner);
            socket.watched.lock().retain(|at| !(Arc::ptr_eq(&at.epoll, self) && at.index == index));
        }
        result
    }

    /// The hot entries, to be looked at without the lock.
    fn hot(&self) -> Vec<(usize, Entry)> {
        let inner = self.inner.lock();
        inner.hot.iter().filter_map(|index| Some((*index, (*inner.entries.get(*index)?)?))).collect()
    }

    /// What an entry is to be told: what its rings say, and `kernel`, what the kernel says beside. Marks it as told.
    fn tell(&self, index: usize, entry: &Entry, kernel: u32, by_kernel: bool) -> u32 {
        let Some(used) = socket::hold_on(entry.socket) else { return 0 };
        let told = match used.link() {
            Some(link) => look(&used, link, entry, kernel),
            None => Some((kernel & (entry.events | ALWAYS), 0)),
        };
        let Some((mask, place)) = told else { return 0 };
        let mut inner = self.inner.lock();
        let epfd = inner.fd;
        let Some(entry) = inner.get_mut(index, entry.generation) else { return 0 };
        if entry.fired || entry.absent {
            return 0;
        }
        if entry.events & ET != 0 && used.link().is_some() {
            entry.seen = Some(place);
            if mask & OUT != 0 {
                used.blocked.store(false, Ordering::Release);
            }
        }
        if entry.events & ONESHOT != 0 {
            entry.fired = true;
            // The kernel has forgotten what it watched, if the event was its own.
            entry.kernel = if by_kernel && entry.kernel & ONESHOT != 0 { 0 } else { entry.kernel };
        } else if kernel & ALWAYS != 0 && entry.events & ET == 0 {
            // The kernel tells of it again as long as it is so.
            entry.kernel = u32::MAX;
        }
        entry.sync(epfd, index);
        mask
    }

    /// Events of the hot entries.
    fn scan(&self, hot: &[(usize, Entry)], out: &mut [epoll_event]) -> usize {
        let mut count = 0;
        // Whoever is last today is first tomorrow.
        let turn = self.served.load(Ordering::Relaxed) as usize;
        for step in 0..hot.len() {
            let (index, entry) = &hot[(turn + step) % hot.len()];
            if count == out.len() {
                break;
            }
            let mask = self.tell(*index, entry, 0, false);
            if mask != 0 {
                out[count] = epoll_event { events: mask, u64: entry.data };
                count += 1;
            }
        }
        count
    }

    /// Turns the kernel's events into the program's; those that are only bells are left out.
    fn translate(&self, events: &mut [epoll_event]) -> usize {
        let mut count = 0;
        for index in 0..events.len() {
            let epoll_event { events: kernel, u64: data } = events[index];
            let (at, generation) = ((data & 0xffff_ffff) as usize, (data >> 32) as u16);
            let marked = data & (0xffff << 48) == MARK;
            let entry = marked.then(|| self.inner.lock().get(at, generation).copied()).flatten();
            let Some(entry) = entry else {
                if !marked {
                    events[count] = events[index];
                    count += 1;
                }
                continue;
            };
            let mask = self.heard(at, entry, kernel);
            if mask != 0 {
                events[count] = epoll_event { events: mask, u64: entry.data };
                count += 1;
            }
        }
        count
    }

    /// The kernel has an event for an entry.
    fn heard(&self, index: usize, mut entry: Entry, kernel: u32) -> u32 {
        if let Some(used) = socket::hold_on(entry.socket)
            && let Some(link) = used.link()
        {
            stream::progress(&used, link, entry.fd);
            let mut inner = self.inner.lock();
            inner.heat(index);
            // It may have changed over just now.
            entry = inner.get(index, entry.generation).copied().unwrap_or(entry);
            drop(inner);
            if stream::drained(link) {
                stream::take_bells(&used, link, entry.fd);
            }
        }
        self.tell(index, &entry, kernel, true)
    }

    /// Merges so many more events into those before them, of which they may tell as well.
    fn merge(out: &mut [epoll_event], count: usize, more: usize) -> usize {
        let mut end = count;
        for index in count..count + more {
            let event = out[index];
            let data = event.u64;
            match (0..count).find(|known| {
                let known = out[*known].u64;
                known == data
            }) {
                Some(known) => out[known].events |= event.events,
                None => {
                    out[end] = event;
                    end += 1;
                }
            }
        }
        end
    }

    /// Nobody looks at the rings from here any more: who waits for this epoll hears of them by bells, and at once of what is
    /// there already.
    fn leave(&self) {
        if self.inside.load(Ordering::SeqCst) && self.cool().is_none() {
            self.wake();
        }
    }

    /// Wishes for bells of all that is hot, and says how long to sleep at most, in nanoseconds; none if something is ready all
    /// the same. What is watched for may have changed since the caller looked: whoever changes it from now on sees that there
    /// is one who sleeps. What no bell may be heard of stays hot, and is looked at again soon.
    fn cool(&self) -> Option<u64> {
        let mut hot = self.hot();
        hot.iter().for_each(|(_, entry)| entry.wish());
        if hot.iter().any(|(_, entry)| entry.is_ready()) {
            return None;
        }
        let all = hot.len();
        hot.retain(|(_, entry)| !entry.is_out_of_hearing());
        let mut most = if hot.len() < all { NAP } else { u64::MAX };
        let heard = hot.len();
        hot.retain(|(_, entry)| !entry.is_shared());
        if hot.len() < heard {
            most = most.min(SHARED);
        }
        let mut inner = self.inner.lock();
        // What was made hot since was so for a reason that this look may have missed.
        let again = |(index, entry): &(usize, Entry)| {
            inner.get(*index, entry.generation).is_some_and(|now| now.heated != entry.heated)
        };
        if inner.hot.len() > all || hot.iter().any(again) {
            return None;
        }
        for (index, entry) in &hot {
            if let Some(entry) = inner.get_mut(*index, entry.generation) {
                entry.hot = false;
            }
            inner.hot.retain(|hot| hot != index);
        }
        Some(most)
    }
}

impl Entry {
    /// Wishes for bells of what it is watched for.
    fn wish(&self) {
        if let Some(used) = socket::hold_on(self.socket)
            && let Some(link) = used.link()
        {
            // Only who lacks room: of others every read of the peer's would ring.
            let room = if self.events & OUT != 0 && !stream::has_room(link) { WANT_ROOM } else { 0 };
            link.arm(WANT_DATA | room);
        }
    }

    /// Waits for room of which no bell may be heard.
    fn is_out_of_hearing(&self) -> bool {
        let Some(used) = socket::hold_on(self.socket) else { return false };
        let Some(link) = used.link() else { return false };
        let waits = self.events & OUT != 0 && !self.fired && !self.absent;
        if !waits || !stream::is_out_of_hearing(&used, link) {
            return false;
        }
        if let Some(fd) = used.descriptor(self.fd) {
            stream::look_for_end(link, fd);
        }
        true
    }

    /// Another process may take bells that it has no use for.
    fn is_shared(&self) -> bool {
        socket::hold_on(self.socket).is_some_and(|used| used.link().is_some_and(Link::is_shared))
    }

    fn is_ready(&self) -> bool {
        let Some(used) = socket::hold_on(self.socket) else { return false };
        used.link().is_some_and(|link| look(&used, link, self, 0).is_some())
    }
}

/// What there is to tell of a socket with rings, and where its stream is. None if that is nothing, or nothing new.
fn look(socket: &Socket, link: &Link, entry: &Entry, kernel: u32) -> Option<(u32, u64)> {
    if entry.fired || entry.absent {
        return None;
    }
    let drained = stream::drained(link);
    // Before what there is: what comes in between is news the next time, even if there was only room this time.
    let ended = u64::from(drained && (link.peer(Word::Fin) != 0 || link.own(Word::Eof) != 0));
    let place = link.peer(Word::Tail) << 1 | ended;
    let (input, room) = stream::readiness(socket, link);
    // Before a direction has changed over the kernel's word counts.
    let mut mask = kernel & !(IN | OUT);
    if stream::urgent_is_in_ring(link) {
        mask = mask & !PRI | if stream::has_urgent(link) { PRI } else { 0 };
    }
    mask |= if drained { if input { IN } else { 0 } } else { kernel & IN };
    mask |= if link.own(Word::Switched) != 0 { if room { OUT } else { 0 } } else { kernel & OUT };
    if ended != 0 {
        mask |= RDHUP;
    }
    mask &= entry.events | ALWAYS;
    let news = entry.events & ET == 0
        || entry.seen.is_none_or(|seen| seen != place)
        || kernel & (ALWAYS | RDHUP) != 0
        || (!drained && kernel & IN != 0)
        || (link.own(Word::Switched) == 0 && mask & OUT != 0)
        || (mask & OUT != 0 && socket.blocked.load(Ordering::Acquire));
    (mask != 0 && news).then_some((mask, place))
}

/// The kernel's wait; nanoseconds, or none for ever.
fn kernel_wait(epfd: c_int, out: &mut [epoll_event], time: Option<u64>, mask: *const libc::sigset_t) -> c_int {
    const MILLISECOND: u64 = 1_000_000;
    // Before Linux 5.11 there is no other, and sandboxes know of no other.
    let coarse = |out: &mut [epoll_event]| {
        let time = time.map_or(-1, |time| time.div_ceil(MILLISECOND).min(1 << 30) as c_int);
        sys::call!(SYS_epoll_pwait, epfd, out.as_mut_ptr(), out.len(), time, mask, 8usize) as isize
    };
    let wait = |out: &mut [epoll_event]| match time
        .filter(|time| !time.is_multiple_of(MILLISECOND) && !sys::is_sealed())
    {
        None => coarse(out),
        Some(time) => {
            let fine = libc::timespec { tv_sec: (time / 1_000_000_000) as i64, tv_nsec: (time % 1_000_000_000) as i64 };
            let done =
                sys::call!(SYS_epoll_pwait2, epfd, out.as_mut_ptr(), out.len(), &raw const fine, mask, 8usize) as isize;
            if matches!(-done as c_int, libc::ENOSYS | libc::EPERM) { coarse(out) } else { done }
        }
    };
    match time {
        // With a mask handlers may run: after the call the signal is kept from this thread again.
        Some(0) if mask.is_null() => wait(out) as c_int,
        _ => signals::waiting(false, || wait(out)) as c_int,
    }
}

/// Threads that are in the kernel's wait.
struct Sleeping<'a>(&'a AtomicU32);

impl<'a> Sleeping<'a> {
    fn begin(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        // There are none after a fork.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }
}

/// `epoll_wait`; nanoseconds, or none for ever. None if no TCP socket is there, and the kernel is to do all.
pub fn wait(epfd: c_int, out: &mut [epoll_event], timeout: Option<u64>, mask: *const libc::sigset_t) -> Option<c_int> {
    let epoll = find(epfd)?;
    let count = epoll.wait(epfd, out, timeout, mask);
    epoll.leave();
    Some(count)
}

impl Epoll {
    /// By the caller's own descriptor: another one may be closed at any time.
    fn wait(&self, epfd: c_int, out: &mut [epoll_event], timeout: Option<u64>, mask: *const libc::sigset_t) -> c_int {
        let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
        let mut is_kernels = self.served.fetch_add(1, Ordering::Relaxed).is_multiple_of(SERVED);
        loop {
            let hot = self.hot();
            let mut count = 0;
            // What is busy does not keep the rest waiting, however little room there is.
            if std::mem::take(&mut is_kernels) && !hot.is_empty() {
                let kernel = kernel_wait(epfd, out, Some(0), std::ptr::null());
                count = self.translate(&mut out[..kernel.max(0) as usize]);
            }
            let more = self.scan(&hot, &mut out[count..]);
            count = Self::merge(out, count, more);
            if count > 0 {
                return count as c_int;
            }
            if timeout == Some(0) {
                let kernel = kernel_wait(epfd, out, Some(0), mask);
                if kernel < 0 {
                    return kernel;
                }
                return self.translate(&mut out[..kernel as usize]) as c_int;
            }
            if !hot.is_empty() && spin::look(|| hot.iter().any(|(_, entry)| entry.is_ready())) {
                continue;
            }
            let sleeping = Sleeping::begin(&self.sleeping);
            let Some(most) = self.cool() else { continue };
            let left = deadline.map_or(u64::MAX, |deadline| deadline.saturating_sub(sys::now())).min(most);
            let kernel = kernel_wait(epfd, out, (left != u64::MAX).then_some(left), mask);
            drop(sleeping);
            if kernel < 0 {
                return kernel;
            }
            let count = self.translate(&mut out[..kernel as usize]);
            if count > 0 || (kernel == 0 && deadline.is_some_and(|deadline| sys::now() >= deadline)) {
                return count as c_int;
            }
        }
    }
}

/// What the kernel has told a thread that began to wait when no TCP socket was there yet: another thread may have put one in
/// meanwhile. None if that leaves nothing.
pub fn late(epfd: c_int, out: &mut [epoll_event], count: c_int) -> Option<c_int> {
    let Some(epoll) = find(epfd).filter(|_| count > 0) else { return Some(count) };
    let left = epoll.translate(&mut out[..count as usize]);
    (left > 0).then_some(left as c_int)
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
