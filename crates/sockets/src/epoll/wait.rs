//! Waiting: what is hot is looked at here, what is cold the kernel tells of.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::epoll_event;

use super::{ALWAYS, ET, Entry, Epoll, HUP, IN, OUT, PRI, RDHUP, SERVED, find};
use crate::link::{Link, WANT_DATA, WANT_ROOM, Word};
use crate::socket::{self, Socket};
use crate::{signals, spin, stream, sys};

impl Entry {
    /// Wishes for bells of what it is watched for.
    pub(super) fn wish(&self) {
        if let Some(used) = socket::hold_on(self.socket)
            && let Some(link) = used.link()
        {
            // Only who lacks room: of others every read of the peer's would ring.
            let room = if self.events & OUT != 0 && !stream::has_room(link) { WANT_ROOM } else { 0 };
            link.arm(WANT_DATA | room);
        }
    }

    /// Waits for room of which no bell may be heard.
    pub(super) fn is_out_of_hearing(&self) -> bool {
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
    pub(super) fn is_shared(&self) -> bool {
        socket::hold_on(self.socket).is_some_and(|used| used.link().is_some_and(Link::is_shared))
    }

    pub(super) fn is_ready(&self) -> bool {
        let Some(used) = socket::hold_on(self.socket) else { return false };
        used.link().is_some_and(|link| look(&used, link, self, 0).is_some())
    }
}

/// What there is to tell of a socket with rings, and where its stream is. None if that is nothing, or nothing new.
pub(super) fn look(socket: &Socket, link: &Link, entry: &Entry, kernel: u32) -> Option<(u32, u64)> {
    if entry.fired || entry.absent {
        return None;
    }
    let drained = stream::drained(link);
    // Before what there is: what comes in between is news the next time, even if there was only room this time.
    let ended = u64::from(drained && (link.peer(Word::Fin) != 0 || link.own(Word::Eof) != 0));
    let troubles = stream::troubles(socket, link) as u32;
    let place = link.peer(Word::Tail) << 2 | u64::from(troubles & HUP != 0) << 1 | ended;
    let (input, room) = stream::readiness(socket, link);
    // Before a direction has changed over the kernel's word counts.
    let mut mask = kernel & !(IN | OUT);
    if stream::urgent_is_in_ring(link) {
        mask = mask & !PRI | if stream::has_urgent(link) { PRI } else { 0 };
    }
    mask |= if drained { if input { IN } else { 0 } } else { kernel & IN };
    mask |= if link.own(Word::Switched) != 0 { if room { OUT } else { 0 } } else { kernel & OUT };
    mask |= troubles | if ended != 0 || socket.deaf.load(Ordering::Relaxed) { RDHUP } else { 0 };
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
