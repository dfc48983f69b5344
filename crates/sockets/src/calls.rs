//! The C library's functions of sockets and descriptors.
//!
//! Each looks whether its descriptor is one that the rack may have, and passes the call on if not. A program's pointers are
//! what the C library's manual pages ask for; nothing here looks at more than these say.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::Ordering;

use libc::{
    epoll_event, iovec, mmsghdr, msghdr, off64_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
    timeval,
};
use remora_preload::set_errno;

use crate::gate::{self, Names, Written};
use crate::link::{WANT_DATA, WANT_ROOM, Word};
use crate::socket::{self, Socket, state};
use crate::stream::{self, Parts};
use crate::wait::Sets;
use crate::{epoll, handover, own, signals, start, sys, wait};

/// What a function of the C library returns for a result of the kernel's.
fn result(result: isize) -> ssize_t {
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

/// Receives by `plain` if the kernel is to, else from the ring.
pub fn receive(fd: c_int, parts: &Parts<'_>, flags: c_int, plain: impl Fn() -> ssize_t) -> ssize_t {
    signals::may_end();
    let Some(used) = socket::find(fd) else { return plain() };
    let socket = used.address();
    if flags & libc::MSG_ERRQUEUE != 0 {
        return plain();
    }
    if flags & libc::MSG_OOB != 0 {
        return match socket.link().filter(|link| stream::urgent_is_in_ring(link)) {
            Some(link) => result(stream::recv_urgent(socket, link, parts, flags)),
            None => plain(),
        };
    }
    loop {
        stream::tick(socket, fd, 0);
        if let Some(link) = socket.link() {
            if let Some(got) = stream::recv(socket, link, fd, parts, flags) {
                return result(got);
            }
        } else if socket.state() == state::NEVER {
            return plain();
        }
        if let Some(_entered) = socket.enter_kernel_rx() {
            return plain();
        }
    }
}

/// Sends by `plain` if the kernel is to, else by the ring.
pub fn transmit(fd: c_int, parts: &Parts<'_>, flags: c_int, plain: impl Fn() -> ssize_t) -> ssize_t {
    signals::may_end();
    let Some(used) = socket::find(fd) else { return plain() };
    let socket = used.address();
    // Positions in the kernel's stream do not tell of what is urgent there.
    if flags & libc::MSG_FASTOPEN != 0 || flags & libc::MSG_OOB != 0 && stream::keeps_to_kernel(socket) {
        return plain();
    }
    loop {
        stream::tick(socket, fd, parts.len());
        if let Some(link) = socket.link() {
            if let Some(sent) = stream::send(socket, link, fd, parts, flags) {
                if sent == -(libc::EPIPE as isize) && flags & libc::MSG_NOSIGNAL == 0 {
                    // SAFETY: a signal to this thread, as the kernel would send it.
                    unsafe { libc::raise(libc::SIGPIPE) };
                }
                return result(sent);
            }
        } else if socket.state() == state::NEVER {
            return plain();
        }
        if let Some(_entered) = socket.enter_kernel_tx() {
            return plain();
        }
    }
}

fn one(start: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: start.cast_mut(), iov_len: len }]
}

/// A program's list of parts.
///
/// # Safety
///
/// `count` parts stand there.
unsafe fn list<'a>(parts: *const iovec, count: usize) -> Parts<'a> {
    if parts.is_null() || count == 0 {
        return Parts(&[]);
    }
    // SAFETY: as the caller promises.
    Parts(unsafe { std::slice::from_raw_parts(parts, count) })
}

/// Flags of `recv` and `send` for those of `preadv2`.
fn waits_not(flags: c_int) -> c_int {
    if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 }
}

/// Defines functions of the C library's names.
macro_rules! c_names {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result $body
    )* };
}
pub(crate) use c_names;

/// Defines functions of the C library's names, amid which no handler runs but where they say so.
macro_rules! c_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $crate::calls::c_names! { $(
            fn $name($($argument: $type),*) -> $result {
                let _section = $crate::signals::Section::enter();
                $body
            }
        )* }
    };
}
pub(crate) use c_functions;

/// The C library's own function, as of `next!`: what it does is not this library's work.
macro_rules! plain {
    ($($call:tt)*) => { $crate::signals::apart(|| remora_preload::next!($($call)*)) };
}
pub(crate) use plain;

c_functions! {
    fn read(fd: c_int, out: *mut c_void, len: size_t) -> ssize_t {
        receive(fd, &Parts(&one(out, len)), 0, || plain!(read: fn(c_int, *mut c_void, size_t) -> ssize_t, fd, out, len))
    }

    fn __read_chk(fd: c_int, out: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        receive(fd, &Parts(&one(out, len)), 0,
            || plain!(__read_chk: fn(c_int, *mut c_void, size_t, size_t) -> ssize_t, fd, out, len, room))
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: as the program promises.
        let own = unsafe { list(parts, count.max(0) as usize) };
        receive(fd, &own, 0, || plain!(readv: fn(c_int, *const iovec, c_int) -> ssize_t, fd, parts, count))
    }

    fn recv(fd: c_int, out: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        receive(fd, &Parts(&one(out, len)), flags,
            || plain!(recv: fn(c_int, *mut c_void, size_t, c_int) -> ssize_t, fd, out, len, flags))
    }

    fn __recv_chk(fd: c_int, out: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        receive(fd, &Parts(&one(out, len)), flags,
            || plain!(__recv_chk: fn(c_int, *mut c_void, size_t, size_t, c_int) -> ssize_t, fd, out, len, room, flags))
    }

    fn recvfrom(
        fd: c_int, out: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, room: *mut socklen_t
    ) -> ssize_t {
        // The kernel names no sender on a connection, and leaves the length as it was.
        receive(fd, &Parts(&one(out, len)), flags, || plain!(recvfrom:
            fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t,
            fd, out, len, flags, from, room))
    }

    fn __recvfrom_chk(
        fd: c_int, out: *mut c_void, len: size_t, whole: size_t, flags: c_int, from: *mut sockaddr, room: *mut socklen_t
    ) -> ssize_t {
        receive(fd, &Parts(&one(out, len)), flags, || plain!(__recvfrom_chk:
            fn(c_int, *mut c_void, size_t, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t,
            fd, out, len, whole, flags, from, room))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        let plain = || plain!(recvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t, fd, message, flags);
        if message.is_null() {
            return plain();
        }
        // SAFETY: a header of the program's, and its parts.
        let parts = unsafe { list((*message).msg_iov, (*message).msg_iovlen) };
        let by_kernel = std::cell::Cell::new(false);
        let got = receive(fd, &parts, flags, || { by_kernel.set(true); plain() });
        if !by_kernel.get() && got >= 0 {
            // SAFETY: as above.
            unsafe { ((*message).msg_namelen, (*message).msg_controllen) = (0, 0) };
            // SAFETY: as above.
            unsafe { (*message).msg_flags = flags & libc::MSG_OOB };
        }
        got
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        let plain = || plain!(recvmmsg:
            fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int, fd, messages, count, flags, timeout);
        if socket::find(fd).is_none() || messages.is_null() {
            return plain();
        }
        let mut flags = flags;
        for index in 0..count as usize {
            // SAFETY: so many headers stand there.
            let got = unsafe { recvmsg(fd, &raw mut (*messages.add(index)).msg_hdr, flags & !libc::MSG_WAITFORONE) };
            if got < 0 {
                return if index > 0 { index as c_int } else { -1 };
            }
            // SAFETY: as above.
            unsafe { (*messages.add(index)).msg_len = got as c_uint };
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            if got == 0 {
                return index as c_int + 1;
            }
        }
        count as c_int
    }

    fn write(fd: c_int, data: *const c_void, len: size_t) -> ssize_t {
        transmit(fd, &Parts(&one(data, len)), 0,
            || plain!(write: fn(c_int, *const c_void, size_t) -> ssize_t, fd, data, len))
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: as the program promises.
        let own = unsafe { list(parts, count.max(0) as usize) };
        transmit(fd, &own, 0, || plain!(writev: fn(c_int, *const iovec, c_int) -> ssize_t, fd, parts, count))
    }

    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        let plain = || plain!(preadv2: fn(c_int, *const iovec, c_int, off64_t, c_int) -> ssize_t,
            fd, parts, count, offset, flags);
        if offset != -1 {
            return plain();
        }
        // SAFETY: as the program promises.
        receive(fd, &unsafe { list(parts, count.max(0) as usize) }, waits_not(flags), plain)
    }

    fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        // SAFETY: the same.
        unsafe { preadv2(fd, parts, count, offset, flags) }
    }

    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        let plain = || plain!(pwritev2: fn(c_int, *const iovec, c_int, off64_t, c_int) -> ssize_t,
            fd, parts, count, offset, flags);
        if offset != -1 {
            return plain();
        }
        // SAFETY: as the program promises.
        transmit(fd, &unsafe { list(parts, count.max(0) as usize) }, waits_not(flags), plain)
    }

    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        // SAFETY: the same.
        unsafe { pwritev2(fd, parts, count, offset, flags) }
    }

    fn send(fd: c_int, data: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        transmit(fd, &Parts(&one(data, len)), flags,
            || plain!(send: fn(c_int, *const c_void, size_t, c_int) -> ssize_t, fd, data, len, flags))
    }

    fn sendto(
        fd: c_int, data: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t
    ) -> ssize_t {
        transmit(fd, &Parts(&one(data, len)), flags, || plain!(sendto:
            fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t,
            fd, data, len, flags, to, to_len))
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let plain = || plain!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t, fd, message, flags);
        if message.is_null() {
            return plain();
        }
        // SAFETY: a header of the program's, and its parts.
        let (header, parts) = unsafe { (&*message, list((*message).msg_iov, (*message).msg_iovlen)) };
        if header.msg_controllen > 0 && socket::find(fd).is_some_and(|socket| socket.link().is_some()) {
            // What goes beside bytes is the kernel's to refuse; what it takes means nothing to a connection.
            let alone = msghdr { msg_iov: std::ptr::null_mut(), msg_iovlen: 0, ..*header };
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            let refused = sys::call!(SYS_sendmsg, fd, &raw const alone, flags);
            if refused == -c_long::from(libc::EINVAL) {
                return result(refused as isize);
            }
        } else if header.msg_controllen > 0 && !header.msg_control.is_null() {
            // SAFETY: the program's bytes, as its header says.
            let control = unsafe { std::slice::from_raw_parts(header.msg_control.cast::<u8>(), header.msg_controllen as _) };
            if let Some((control, _ends)) = handover::passing(control) {
                let message = msghdr { msg_control: control.as_ptr().cast_mut().cast(), ..*header };
                return plain!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t, fd, &raw const message, flags);
            }
        }
        transmit(fd, &parts, flags, plain)
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        // SAFETY: so many headers stand there.
        let is_alone = |index| unsafe { (*messages.add(index)).msg_hdr.msg_controllen == 0 };
        if messages.is_null() || socket::find(fd).is_none() && (0..count as usize).all(is_alone) {
            return plain!(sendmmsg: fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int, fd, messages, count, flags);
        }
        for index in 0..count as usize {
            // SAFETY: so many headers stand there.
            let sent = unsafe { sendmsg(fd, &raw const (*messages.add(index)).msg_hdr, flags) };
            if sent < 0 {
                return if index > 0 { index as c_int } else { -1 };
            }
            // SAFETY: as above.
            unsafe { (*messages.add(index)).msg_len = sent as c_uint };
        }
        count as c_int
    }
}

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
        let Some(to) = (unsafe { gate::address(address, len) }) else { return plain(address, len) };
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
                // Bells are to be heard at once.
                (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) if ringed => return 0,
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
            && (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
            && let Some(used) = socket::find(fd)
            && let Some(link) = used.link()
        {
            let mark = (stream::low_mark(link) as c_int).to_ne_bytes();
            let written = mark.len().min(room(len) as usize);
            // SAFETY: the kernel has just written as many bytes there.
            unsafe { std::ptr::copy_nonoverlapping(mark.as_ptr(), value.cast(), written) };
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
        let sets = Sets { count: count.max(0) as usize, sets: [read, write, except] };
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
        let sets = Sets { count: count.max(0) as usize, sets: [read, write, except] };
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
    if let Some(done) = wait::poll(fds, timeout, mask) {
        return result(done as isize) as c_int;
    }
    let done = plain();
    let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
    let again = if done > 0 { wait::poll(fds, left, mask) } else { None };
    again.map_or(done, |done| result(done as isize) as c_int)
}

/// The same for sets.
fn selected(sets: &Sets, timeout: Option<u64>, mask: *const sigset_t, plain: impl FnOnce() -> c_int) -> c_int {
    signals::may_end();
    let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
    let before = sets.copy();
    if let Some(done) = wait::select(sets, timeout, mask) {
        return result(done as isize) as c_int;
    }
    let done = plain();
    if done <= 0 || !before.has_rings() {
        return done;
    }
    let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
    let after = sets.copy();
    sets.set(&before);
    match wait::select(sets, left, mask) {
        Some(done) => result(done as isize) as c_int,
        None => {
            sets.set(&after);
            done
        }
    }
}

fn accepted(listener: c_int, new: c_int) {
    if new >= 0 && (socket::find(listener).is_some() || start::is_tcp(new)) {
        socket::add(new);
        if let Some(used) = socket::find(new) {
            gate::accepted(&used, new);
        }
    }
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
    if socket::find(fd).is_some_and(|used| used.link().is_some() && handover::is_own(&used, new)) {
        sys::close_on_exec(new);
    }
    if !start::is_borrowed() {
        match socket::find(fd) {
            Some(_) => socket::copy(fd, new),
            None => epoll::copied(fd, new),
        }
    }
    handover::copied(fd, new);
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
    if unread {
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
    true
}

const _: () = assert!(size_of::<c_long>() == 8);
