//! Waiting for several descriptors.

use std::ffi::c_int;

use libc::{epoll_event, pollfd, sigset_t, size_t, timespec, timeval};
use remora_preload::set_errno;

use super::{c_functions, plain, result};
use crate::socket::{self};
use crate::wait::Sets;
use crate::{epoll, signals, sys, wait};

c_functions! {
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let Some(used) = socket::find(fd) else {
            if op == libc::EPOLL_CTL_ADD {
                epoll::put_inside(fd);
            }
            return plain!(epoll_ctl: fn(c_int, c_int, c_int, *mut epoll_event) -> c_int, epfd, op, fd, event);
        };
        // SAFETY: null, or the program's event.
        let event = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
        result(epoll::control(epfd, op, fd, used.address(), event) as isize) as c_int
    }

    fn epoll_wait(epfd: c_int, out: *mut epoll_event, room: c_int, timeout: c_int) -> c_int {
        waited(epfd, out, room, milliseconds(timeout), std::ptr::null(), ||
            plain!(epoll_wait: fn(c_int, *mut epoll_event, c_int, c_int) -> c_int, epfd, out, room, timeout))
    }

    fn epoll_pwait(epfd: c_int, out: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        waited(epfd, out, room, milliseconds(timeout), mask, || plain!(epoll_pwait:
            fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int, epfd, out, room, timeout, mask))
    }

    fn epoll_pwait2(
        epfd: c_int, out: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        let plain = || plain!(epoll_pwait2:
            fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int,
            epfd, out, room, timeout, mask);
        match nanoseconds(timeout) {
            Ok(time) => waited(epfd, out, room, time, mask, plain),
            Err(NoTime) => plain(),
        }
    }

    fn poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
        polled(fds, count, milliseconds(timeout), std::ptr::null(),
            || plain!(poll: fn(*mut pollfd, libc::nfds_t, c_int) -> c_int, fds, count, timeout))
    }

    fn __poll_chk(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int, room: size_t) -> c_int {
        polled(fds, count, milliseconds(timeout), std::ptr::null(),
            || plain!(__poll_chk: fn(*mut pollfd, libc::nfds_t, c_int, size_t) -> c_int, fds, count, timeout, room))
    }

    fn ppoll(fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let plain = || plain!(ppoll:
            fn(*mut pollfd, libc::nfds_t, *const timespec, *const sigset_t) -> c_int, fds, count, timeout, mask);
        match nanoseconds(timeout) {
            Ok(time) => polled(fds, count, time, mask, plain),
            Err(NoTime) => plain(),
        }
    }

    fn __ppoll_chk(
        fds: *mut pollfd, count: libc::nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t
    ) -> c_int {
        let plain = || plain!(__ppoll_chk:
            fn(*mut pollfd, libc::nfds_t, *const timespec, *const sigset_t, size_t) -> c_int,
            fds, count, timeout, mask, room);
        match nanoseconds(timeout) {
            Ok(time) => polled(fds, count, time, mask, plain),
            Err(NoTime) => plain(),
        }
    }

    fn select(count: c_int, read: *mut u64, write: *mut u64, except: *mut u64, timeout: *mut timeval) -> c_int {
        let plain = || plain!(select:
            fn(c_int, *mut u64, *mut u64, *mut u64, *mut timeval) -> c_int, count, read, write, except, timeout);
        let time = match timeout.is_null() {
            true => None,
            false => {
                // SAFETY: the program's time.
                let timeval { tv_sec, tv_usec } = unsafe { timeout.read() };
                let (Ok(seconds), Ok(micros)) = (u64::try_from(tv_sec), u64::try_from(tv_usec)) else { return plain() };
                Some(seconds.saturating_mul(1_000_000_000).saturating_add(micros.saturating_mul(1000)))
            }
        };
        let begin = sys::now();
        let sets = Sets::new(count, [read, write, except]);
        let by_kernel = std::cell::Cell::new(false);
        let done = selected(&sets, time, std::ptr::null(), || { by_kernel.set(true); plain() });
        if let (Some(time), false) = (time, by_kernel.get()) {
            // What is left of it, as the kernel says, which does not mind if it may not.
            let left = time.saturating_sub(sys::now() - begin) / 1000;
            let left = timeval { tv_sec: (left / 1_000_000) as i64, tv_usec: (left % 1_000_000) as i64 };
            let error = remora_preload::errno();
            sys::give(timeout.cast(), std::ptr::from_ref(&left).cast(), size_of::<timeval>());
            set_errno(error);
        }
        done
    }

    fn pselect(
        count: c_int, read: *mut u64, write: *mut u64, except: *mut u64, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        let sets = Sets::new(count, [read, write, except]);
        let plain = || plain!(pselect:
            fn(c_int, *mut u64, *mut u64, *mut u64, *const timespec, *const sigset_t) -> c_int,
            count, read, write, except, timeout, mask);
        match nanoseconds(timeout) {
            Ok(time) => selected(&sets, time, mask, plain),
            Err(NoTime) => plain(),
        }
    }
}

fn milliseconds(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|timeout| timeout * 1_000_000)
}

/// None is for ever. The kernel refuses what is no time.
fn nanoseconds(timeout: *const timespec) -> Result<Option<u64>, NoTime> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: the program's time.
    let timespec { tv_sec, tv_nsec } = unsafe { timeout.read() };
    match (u64::try_from(tv_sec), tv_nsec) {
        (Ok(seconds), 0..1_000_000_000) => {
            Ok(Some(seconds.saturating_mul(1_000_000_000).saturating_add(tv_nsec as u64)))
        }
        _ => Err(NoTime),
    }
}

struct NoTime;

/// `plain` while no TCP socket is there.
fn waited(
    epfd: c_int,
    out: *mut epoll_event,
    room: c_int,
    timeout: Option<u64>,
    mask: *const sigset_t,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    signals::may_end();
    if out.is_null() || room <= 0 {
        return plain();
    }
    let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
    // SAFETY: the program's room for so many events.
    let events = unsafe { std::slice::from_raw_parts_mut(out, room as usize) };
    if let Some(done) = epoll::wait(epfd, events, timeout, mask) {
        return result(done as isize) as c_int;
    }
    let count = plain();
    if let Some(count) = epoll::late(epfd, events, count) {
        return count;
    }
    let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
    epoll::wait(epfd, events, left, mask).map_or(0, |done| result(done as isize) as c_int)
}

/// `plain` while nothing has rings. What it has heard of one that another thread has brought into the rack meanwhile may be
/// bells: it is looked at again.
fn polled(
    fds: *mut pollfd,
    count: libc::nfds_t,
    timeout: Option<u64>,
    mask: *const sigset_t,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    signals::may_end();
    if fds.is_null() || count == 0 {
        return plain();
    }
    let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
    // SAFETY: the program's list.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    let still = match wait::poll(fds, timeout, mask) {
        Ok(done) => return result(done as isize) as c_int,
        Err(still) => still,
    };
    let done = plain();
    drop(still);
    let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
    let again = if done > 0 { wait::poll(fds, left, mask).ok() } else { None };
    again.map_or(done, |done| result(done as isize) as c_int)
}

/// The same for sets.
fn selected(sets: &Sets, timeout: Option<u64>, mask: *const sigset_t, plain: impl FnOnce() -> c_int) -> c_int {
    signals::may_end();
    let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
    let before = sets.copy();
    let still = match wait::select(sets, timeout, mask) {
        Ok(done) => return result(done as isize) as c_int,
        Err(still) => still,
    };
    let done = plain();
    drop(still);
    if done <= 0 || !before.has_rings() {
        return done;
    }
    let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
    let after = sets.copy();
    sets.set(&before);
    match wait::select(sets, left, mask) {
        Ok(done) => result(done as isize) as c_int,
        Err(_) => {
            sets.set(&after);
            done
        }
    }
}
