//! Reading and writing.

use std::ffi::{c_int, c_long, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::{c_functions, plain, result};
use crate::far::Way;
use crate::socket::{self, state};
use crate::stream::{self, Parts};
use crate::{far, handover, signals, sys};

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
        if let Some(entered) = socket.enter_kernel_rx() {
            let got = plain();
            drop(entered);
            if flags & libc::MSG_PEEK == 0 {
                far::passed(socket, fd, Way::In, got);
            }
            return got;
        }
    }
}

/// The same for who reads as from a file: of no bytes there is an end at once, for which the kernel looks at nothing.
fn read_by(fd: c_int, parts: &Parts<'_>, flags: c_int, plain: impl Fn() -> ssize_t) -> ssize_t {
    if parts.len() == 0 {
        return plain();
    }
    receive(fd, parts, flags, plain)
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
        if let Some(entered) = socket.enter_kernel_tx() {
            let sent = plain();
            drop(entered);
            far::passed(socket, fd, Way::Out, sent);
            return sent;
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

c_functions! {
    fn read(fd: c_int, out: *mut c_void, len: size_t) -> ssize_t {
        read_by(fd, &Parts(&one(out, len)), 0, || plain!(read: fn(c_int, *mut c_void, size_t) -> ssize_t, fd, out, len))
    }

    fn __read_chk(fd: c_int, out: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        read_by(fd, &Parts(&one(out, len)), 0,
            || plain!(__read_chk: fn(c_int, *mut c_void, size_t, size_t) -> ssize_t, fd, out, len, room))
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        // SAFETY: as the program promises.
        let own = unsafe { list(parts, count.max(0) as usize) };
        read_by(fd, &own, 0, || plain!(readv: fn(c_int, *const iovec, c_int) -> ssize_t, fd, parts, count))
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
        read_by(fd, &unsafe { list(parts, count.max(0) as usize) }, waits_not(flags), plain)
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
            match handover::passing(control) {
                Ok(None) => {}
                Ok(Some(passed)) => {
                    let message = msghdr { msg_control: passed.control.as_ptr().cast_mut().cast(), ..*header };
                    return plain!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t, fd, &raw const message, flags);
                }
                Err(error) => return result(error),
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
