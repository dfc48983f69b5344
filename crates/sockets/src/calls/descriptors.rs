//! Sockets and descriptors: how they are made, copied, set and closed.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::Ordering;

use libc::{sockaddr, socklen_t};
use remora_preload::set_errno;

use super::{c_functions, plain, result};
use crate::gate::{self, Names, Written};
use crate::link::{Link, OPTIONS, WANT_DATA, WANT_ROOM, Word};
use crate::socket::{self, Socket};
use crate::stream::{self};
use crate::{epoll, far, handover, own, start, sys};

c_functions! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = plain!(socket: fn(c_int, c_int, c_int) -> c_int, domain, kind, protocol);
        let stream = kind & 0xf == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
        if fd >= 0 && stream && matches!(domain, libc::AF_INET | libc::AF_INET6) {
            socket::add(fd);
        }
        fd
    }

    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        let plain = |address, len| plain!(connect: fn(c_int, *const sockaddr, socklen_t) -> c_int, fd, address, len);
        let Some(used) = socket::find(fd) else { return plain(address, len) };
        // SAFETY: the program's address.
        let Some(to) = (unsafe { gate::address(address, len) }) else {
            return disconnected(&used, || plain(address, len));
        };
        match gate::reach(&used, fd, to) {
            gate::Reach::Kernel => plain(address, len),
            gate::Reach::Failed(errno) => result(-(errno as isize)) as c_int,
            gate::Reach::Gate(at) => {
                // SAFETY: an address begins with its family.
                let family = unsafe { (*address).sa_family };
                let at = gate::Written::new(family.into(), at);
                let (at, at_len) = at.as_ptr();
                let done = plain(at, at_len);
                if done >= 0 || matches!(remora_preload::errno(), libc::EINPROGRESS | libc::EINTR) {
                    return done;
                }
                // It is gone: there may still be the kernel's way.
                *used.names.lock() = None;
                plain(address, len)
            }
        }
    }

    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let room = room(len);
        let done = plain!(getpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int, fd, address, len);
        named(fd, done, address, room, len, |names| Some(names.peer))
    }

    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let room = room(len);
        let done = plain!(getsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int, fd, address, len);
        named(fd, done, address, room, len, |names| names.own)
    }

    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let room = room(len);
        let new = plain!(accept: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int, fd, address, len);
        accepted(fd, new);
        named(new, new, address, room, len, |names| Some(names.peer))
    }

    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        let room = room(len);
        let new = plain!(accept4: fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int, fd, address, len, flags);
        accepted(fd, new);
        named(new, new, address, room, len, |names| Some(names.peer))
    }

    fn close(fd: c_int) -> c_int {
        close_by(fd, || plain!(close: fn(c_int) -> c_int, fd))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        close_range_by(first, last, flags,
            |first, last| plain!(close_range: fn(c_uint, c_uint, c_int) -> c_int, first, last, flags))
    }

    fn closefrom(first: c_int) -> () {
        let first = first.max(0);
        if start::is_borrowed() {
            return plain!(closefrom: fn(c_int) -> (), first);
        }
        closing_all(first as c_uint, c_uint::MAX);
        let ranges = own::without(first as c_uint, c_uint::MAX);
        if ranges.iter().any(|(first, last)| sys::call!(SYS_close_range, *first, *last, 0) < 0) {
            plain!(closefrom: fn(c_int) -> (), first);
        }
    }

    fn dup(fd: c_int) -> c_int {
        copied(fd, plain!(dup: fn(c_int) -> c_int, fd))
    }

    fn dup2(fd: c_int, to: c_int) -> c_int {
        dup2_by(fd, to, || plain!(dup2: fn(c_int, c_int) -> c_int, fd, to))
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        dup3_by(fd, to, flags, || plain!(dup3: fn(c_int, c_int, c_int) -> c_int, fd, to, flags))
    }

    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        controlled(fd, command, argument, plain!(fcntl: fn(c_int, c_int, c_ulong) -> c_int, fd, command, argument))
    }

    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        controlled(fd, command, argument, plain!(fcntl64: fn(c_int, c_int, c_ulong) -> c_int, fd, command, argument))
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int {
        if let Some(used) = socket::find(fd)
            && let Some(link) = used.link()
            && !argument.is_null()
        {
            if request == libc::FIONREAD as c_ulong && stream::drained(link) {
                // SAFETY: the program's place for the number.
                unsafe { argument.write_unaligned(stream::unread(link) as c_int) };
                return 0;
            }
            if request == sys::SIOCATMARK && stream::urgent_is_in_ring(link) {
                // SAFETY: as above.
                unsafe { argument.write_unaligned(c_int::from(stream::is_at_mark(link))) };
                return 0;
            }
            if request == libc::FIOASYNC as c_ulong {
                // SAFETY: a number of the program's.
                link.wish_always(unsafe { argument.read_unaligned() } != 0);
            }
            if request == libc::FIONBIO as c_ulong {
                // SAFETY: a number of the program's.
                link.set_own(Word::NonBlocking, u64::from(unsafe { argument.read_unaligned() } != 0));
            }
        }
        let done = plain!(ioctl: fn(c_int, c_ulong, *mut c_int) -> c_int, fd, request, argument);
        if done == 0
            && request == libc::FIONREAD as c_ulong
            && !argument.is_null()
            && let Some(used) = socket::find(fd)
            && let Some(link) = used.link()
        {
            // SAFETY: where the kernel has just written the number.
            let kernels = unsafe { argument.read_unaligned() }.max(0) as usize;
            // SAFETY: as above.
            unsafe { argument.write_unaligned(stream::unread_before(link, kernels) as c_int) };
        }
        if done == 0 && (request == libc::FIOCLEX as c_ulong || request == libc::FIONCLEX as c_ulong) {
            handover::said(fd, request == libc::FIONCLEX as c_ulong);
        }
        done
    }

    fn sockatmark(fd: c_int) -> c_int {
        let mut is = 0;
        // SAFETY: room for the answer.
        let done = unsafe { ioctl(fd, sys::SIOCATMARK, &raw mut is) };
        if done < 0 { done } else { is }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if let Some(used) = socket::find(fd) && !start::is_borrowed() && ended(&used, fd, how) {
            return 0;
        }
        plain!(shutdown: fn(c_int, c_int) -> c_int, fd, how)
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        let used = socket::find(fd);
        if let Some(used) = &used {
            let ringed = used.link().is_some();
            match (level, name) {
                (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) if ringed => {
                    return set_option(used, name, value, len);
                }
                (libc::IPPROTO_TCP, libc::TCP_ULP) if ringed => {
                    return result(-(libc::ENOPROTOOPT as isize)) as c_int;
                }
                (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR)
                | (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => used.never(),
                _ => {}
            }
        }
        let done = plain!(setsockopt:
            fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int, fd, level, name, value, len);
        if let Some(used) = used && level == libc::SOL_SOCKET {
            match name {
                libc::SO_RCVTIMEO => used.rx_timeout.store(sys::get_timeout(fd, name), Ordering::Relaxed),
                libc::SO_SNDTIMEO => used.tx_timeout.store(sys::get_timeout(fd, name), Ordering::Relaxed),
                _ => {}
            }
            match used.link() {
                Some(link) if name == libc::SO_OOBINLINE => stream::set_inline(link, fd),
                Some(link) if name == libc::SO_LINGER => stream::set_resets(link, fd),
                Some(link) if name == libc::SO_RCVLOWAT && done == 0 => stream::take_low_mark(link, fd),
                _ => {}
            }
        }
        done
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let done = plain!(getsockopt:
            fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int, fd, level, name, value, len);
        if done == 0
            && let Some(used) = socket::find(fd)
            && let Some(link) = used.link()
            && let Some(known) = option(link, level, name)
        {
            let known = known.to_ne_bytes();
            let written = known.len().min(room(len) as usize);
            // SAFETY: the kernel has just written as many bytes there.
            unsafe { std::ptr::copy_nonoverlapping(known.as_ptr(), value.cast(), written) };
        }
        done
    }

    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        // Who is not root says the first before the second, which may be said past the C library's function.
        // A child that only borrows this memory forbids itself, not its parent.
        if matches!(option, libc::PR_SET_NO_NEW_PRIVS | libc::PR_SET_SECCOMP) && !start::is_borrowed() {
            start::sealing();
        }
        // By the kernel's number: a program's own memory functions call this while they are made ready, and to look for the
        // next function of the name takes memory.
        result(sys::call!(SYS_prctl, option, a, b, c, d) as isize) as c_int
    }

    fn fdopen(fd: c_int, mode: *const std::ffi::c_char) -> *mut libc::FILE {
        // The C library's own reads and writes pass by here.
        if let Some(used) = socket::find(fd) && !handover::to_c_library(&used, fd) {
            set_errno(libc::ENOMEM);
            return std::ptr::null_mut();
        }
        plain!(fdopen: fn(c_int, *const std::ffi::c_char) -> *mut libc::FILE, fd, mode)
    }
}

/// What the rings know of an option instead of the kernel.
fn option(link: &Link, level: c_int, name: c_int) -> Option<c_int> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => Some(stream::low_mark(link) as c_int),
        // The kernel has told it already: to whoever took its bells.
        (libc::SOL_SOCKET, libc::SO_ERROR) => stream::take_error(link),
        (libc::IPPROTO_TCP, _) => {
            let bit = OPTIONS.iter().position(|option| *option == name)?;
            Some((link.own(Word::Options) >> bit & 1) as c_int)
        }
        _ => None,
    }
}

/// `setsockopt` of what is kept for the program, while bells are sent at once.
fn set_option(socket: &Socket, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    let (Some(link), Some(bit)) = (socket.link(), OPTIONS.iter().position(|option| *option == name)) else { return 0 };
    if (len as usize) < size_of::<c_int>() {
        return result(-(libc::EINVAL as isize)) as c_int;
    }
    if value.is_null() {
        return result(-(libc::EFAULT as isize)) as c_int;
    }
    // SAFETY: so many bytes of the program's.
    let is = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
    let others = link.own(Word::Options) & !(1 << bit);
    link.set_own(Word::Options, others | u64::from(is) << bit);
    0
}

fn accepted(listener: c_int, new: c_int) {
    if new >= 0 && (socket::find(listener).is_some() || start::is_tcp(new)) {
        socket::add(new);
        if let Some(used) = socket::find(new) {
            gate::accepted(&used, new);
        }
    }
}

/// A `connect` to no address of the internet's. If it is to none at all, there is no connection any more, and the next one that the
/// socket has is the kernel's.
fn disconnected(socket: &Socket, plain: impl FnOnce() -> c_int) -> c_int {
    let Some(link) = socket.link() else { return plain() };
    let before = link.own(Word::Resets);
    link.set_own(Word::Resets, 1);
    let done = plain();
    match done {
        0 => {
            link.part(sys::process());
            socket.leave_rings();
            epoll::left(socket);
        }
        _ => link.set_own(Word::Resets, before),
    }
    done
}

/// The room that a program has for an address.
fn room(len: *const socklen_t) -> socklen_t {
    // SAFETY: null, or a length of the program's.
    if len.is_null() { 0 } else { unsafe { len.read_unaligned() } }
}

/// After a call that gives a socket's address, and what it returned: a connection by the gate is what it stands for.
fn named(
    fd: c_int,
    done: c_int,
    address: *mut sockaddr,
    room: socklen_t,
    len: *mut socklen_t,
    which: impl FnOnce(Names) -> Option<std::net::SocketAddr>,
) -> c_int {
    if done < 0 || address.is_null() || (room as usize) < size_of::<libc::sa_family_t>() {
        return done;
    }
    let Some(used) = socket::find(fd) else { return done };
    let Some(name) = (*used.names.lock()).and_then(which) else { return done };
    // SAFETY: the kernel has just written an address there, which begins with its family.
    let family = unsafe { (*address).sa_family };
    // SAFETY: the program's room, as it said before the call.
    unsafe { Written::new(family.into(), name).give(address, room, len) };
    done
}

/// A descriptor is to become another one's copy, and to be closed before, unless the kernel will refuse.
fn replacing(fd: c_int, to: c_int, flags: c_int) {
    if fd != to && flags & !libc::O_CLOEXEC == 0 && sys::is_open(fd) {
        closing(to);
    }
}

fn copied(fd: c_int, new: c_int) -> c_int {
    if new < 0 {
        return new;
    }
    if let Some(used) = socket::find(fd)
        && used.link().is_some()
        && handover::is_own(&used, new)
    {
        handover::may_stay(&used, new);
        sys::close_on_exec(new);
    }
    if !start::is_borrowed() {
        match socket::find(fd) {
            Some(_) => socket::copy(fd, new),
            None => epoll::copied(fd, new),
        }
    }
    handover::copied(fd, new);
    far::copied(fd, new);
    new
}

fn controlled(fd: c_int, command: c_int, argument: c_ulong, done: c_int) -> c_int {
    if done < 0 {
        return done;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return copied(fd, done),
        libc::F_SETFD => handover::said(fd, argument & libc::FD_CLOEXEC as c_ulong == 0),
        libc::F_GETFD if socket::find(fd).is_some_and(|socket| socket.link().is_some() && socket.stays()) => {
            return done & !libc::FD_CLOEXEC;
        }
        libc::F_SETFL => {
            if let Some(used) = socket::find(fd)
                && let Some(link) = used.link()
            {
                link.set_own(Word::NonBlocking, u64::from(argument & libc::O_NONBLOCK as c_ulong != 0));
                link.wish_always(argument & libc::O_ASYNC as c_ulong != 0);
            }
        }
        _ => {}
    }
    done
}

/// A descriptor is about to be closed.
pub fn closing(fd: c_int) {
    if socket::find(fd).is_none() {
        if !start::is_borrowed() {
            epoll::closed(fd);
        }
        return;
    }
    if !start::is_borrowed() {
        socket::remove(fd, |socket| last_closing(socket, fd));
    }
}

/// `close`, which `plain` does in the kernel.
pub fn close_by(fd: c_int, plain: impl FnOnce() -> c_int) -> c_int {
    if own::is_own(fd) {
        return result(-(libc::EBADF as isize)) as c_int;
    }
    closing(fd);
    plain()
}

/// `close_range`, of which `plain` does the ranges between this library's own.
pub fn close_range_by(first: c_uint, last: c_uint, flags: c_int, plain: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    const UNSHARE: c_int = 2;
    const CLOEXEC: c_int = 4;
    if flags & CLOEXEC != 0 {
        let done = plain(first, last);
        let within = |fd: &c_int| (first..=last).contains(&(*fd as c_uint));
        let fds = socket::descriptors().map(|(fd, _)| fd).filter(within);
        fds.filter(|_| done == 0).for_each(|fd| handover::said(fd, false));
        return done;
    }
    // What the kernel refuses it says.
    if flags & !UNSHARE != 0 || last < first || start::is_borrowed() {
        return plain(first, last);
    }
    closing_all(first, last);
    own::without(first, last).into_iter().map(|(first, last)| plain(first, last)).find(|done| *done != 0).unwrap_or(0)
}

/// `dup2`.
pub fn dup2_by(fd: c_int, to: c_int, plain: impl FnOnce() -> c_int) -> c_int {
    replacing(fd, to, 0);
    let new = plain();
    if fd != to { copied(fd, new) } else { new }
}

/// `dup3`.
pub fn dup3_by(fd: c_int, to: c_int, flags: c_int, plain: impl FnOnce() -> c_int) -> c_int {
    replacing(fd, to, flags);
    copied(fd, plain())
}

/// All of these are.
fn closing_all(first: c_uint, last: c_uint) {
    let known = socket::descriptors().map(|(fd, _)| fd).chain(epoll::descriptors());
    let fds: Vec<c_int> = known.filter(|fd| (first..=last).contains(&(*fd as c_uint))).collect();
    fds.into_iter().for_each(closing);
}

/// This process's last descriptor of a socket is about to be closed.
fn last_closing(socket: &Socket, fd: c_int) {
    epoll::forget(socket);
    start::unshare(socket);
    let Some(link) = socket.link() else { return };
    // Who has ended without closing counts no more.
    link.is_shared();
    if link.part(sys::process()) != 1 {
        return;
    }
    let drained = stream::drained(link);
    let unread = link.readable() != Ok(0) || (!drained && sys::unread(fd));
    // Bells that nobody heard are no data: the kernel would answer them with a reset.
    stream::silence(socket, link, fd);
    let is_over = link.own(Word::Fin) != 0 && link.peer(Word::Fin) != 0;
    if is_over {
        // There is nothing left to reset, though the kernel knows of no end.
        sys::end_on_close(fd);
    } else if unread {
        sys::reset_on_close(fd);
    } else if link.own(Word::Switched) != 0 && !sys::resets_on_close(fd) {
        // Of a reset the kernel tells.
        link.set_own(Word::Fin, 1);
        // Who waits in the kernel hears of the close itself.
        link.take_wish(WANT_DATA | WANT_ROOM);
    }
}

/// `shutdown`. False if the kernel is to do it.
fn ended(socket: &Socket, fd: c_int, how: c_int) -> bool {
    let sends_no_more = matches!(how, libc::SHUT_WR | libc::SHUT_RDWR);
    if let Some(link) = socket.link() {
        stream::progress(socket, link, fd);
    }
    if sends_no_more && stream::keeps_to_kernel(socket) {
        if how == libc::SHUT_RDWR && socket.link().is_some() {
            socket.deaf.store(true, Ordering::Release);
        }
        return false;
    }
    if how == libc::SHUT_RD {
        // Before there are rings as well: the kernel's end is this one's own then.
        socket.deaf.store(true, Ordering::Release);
        return false;
    }
    let Some(link) = socket.link() else { return false };
    if !sends_no_more {
        return false;
    }
    // The kernel's connection goes on: what the peer sends needs bells of this end.
    link.set_own(Word::Fin, 1);
    if how == libc::SHUT_RDWR {
        socket.deaf.store(true, Ordering::Release);
        stream::silence(socket, link, fd);
        return false;
    }
    stream::wake(socket, link, fd, WANT_DATA | WANT_ROOM);
    // If the peer has ended as well, it is all over by now.
    epoll::heat(socket);
    true
}
