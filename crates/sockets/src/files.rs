//! What moves bytes between files and sockets inside the kernel: with rings, they pass through here.

use std::ffi::{c_int, c_uint};

use libc::{iovec, off64_t, size_t, ssize_t};
use remora_preload::set_errno;

use crate::calls::{c_functions, plain, transmit};
use crate::far::Way;
use crate::socket::{self, Socket};
use crate::stream::{self, Parts};
use crate::{far, signals, sys};

/// What `splice` may be told.
const KNOWN: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// Bytes that are moved at once.
const PIECE: usize = 64 << 10;

fn has_rings(fd: c_int) -> bool {
    socket::find(fd).is_some_and(|socket| socket.sends_by_ring())
}

fn reads_rings(fd: c_int) -> bool {
    socket::find(fd).is_some_and(|socket| socket.looks_at_ring())
}

fn part(bytes: &[u8]) -> [iovec; 1] {
    [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }]
}

c_functions! {
    fn sendfile(out: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        // SAFETY: as the program promises.
        unsafe { sendfile64(out, from, offset, count) }
    }

    fn sendfile64(out: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        let plain = || plain!(sendfile64: fn(c_int, c_int, *mut off64_t, size_t) -> ssize_t, out, from, offset, count);
        loop {
            let Some(used) = socket::find(out) else { return plain() };
            stream::tick(used.address(), out, count);
            if has_rings(out) {
                break;
            }
            if let Some(sent) = by_kernel(None, Some(&used), &plain) {
                far::passed(used.address(), out, Way::Out, sent);
                return sent;
            }
        }
        // SAFETY: null, or the program's place for the offset.
        let start = if offset.is_null() { sys::call!(SYS_lseek, from, 0, libc::SEEK_CUR) } else { unsafe { *offset } };
        if start < 0 {
            set_errno(if start == -i64::from(libc::EBADF) { libc::EBADF } else { libc::EINVAL });
            return -1;
        }
        let sent = send_file(out, from, start, count);
        let end = start + sent.max(0) as i64;
        if offset.is_null() {
            sys::call!(SYS_lseek, from, end, libc::SEEK_SET);
        } else {
            // SAFETY: as above.
            unsafe { *offset = end };
        }
        sent
    }

    fn splice(
        from: c_int, from_offset: *mut off64_t, out: c_int, out_offset: *mut off64_t, len: size_t, flags: c_uint
    ) -> ssize_t {
        let plain = || plain!(splice:
            fn(c_int, *mut off64_t, c_int, *mut off64_t, size_t, c_uint) -> ssize_t,
            from, from_offset, out, out_offset, len, flags);
        if socket::find(from).is_none() && socket::find(out).is_none() {
            return plain();
        }
        // What the kernel refuses it says.
        let is_one = from_offset.is_null() && out_offset.is_null() && len > 0 && flags & !KNOWN == 0;
        if !is_one || is_pipe(from) == is_pipe(out) {
            return plain();
        }
        signals::may_end();
        loop {
            let (reader, writer) = (socket::find(from), socket::find(out));
            if let Some(reader) = &reader {
                stream::tick(reader.address(), from, 0);
            }
            if let Some(writer) = &writer {
                stream::tick(writer.address(), out, len);
            }
            if reads_rings(from) {
                return ring_to_pipe(from, out, len, flags);
            }
            if has_rings(out) {
                return pipe_to_ring(from, out, len, flags);
            }
            if let Some(moved) = by_kernel(reader.as_deref(), writer.as_deref(), &plain) {
                for (used, fd, way) in [(&reader, from, Way::In), (&writer, out, Way::Out)] {
                    used.iter().for_each(|used| far::passed(used.address(), fd, way, moved));
                }
                return moved;
            }
        }
    }
}

/// Runs `plain` while nobody changes over. None if somebody has.
fn by_kernel(reader: Option<&Socket>, writer: Option<&Socket>, plain: &dyn Fn() -> ssize_t) -> Option<ssize_t> {
    let _reads = match reader {
        Some(reader) => Some(reader.enter_kernel_rx()?),
        None => None,
    };
    let _writes = match writer {
        Some(writer) => Some(writer.enter_kernel_tx()?),
        None => None,
    };
    Some(plain())
}

fn send_file(out: c_int, from: c_int, start: i64, count: usize) -> ssize_t {
    let mut piece = vec![0u8; PIECE.min(count)];
    let mut sent = 0;
    while sent < count {
        let most = piece.len().min(count - sent);
        let got = sys::call!(SYS_pread64, from, piece.as_mut_ptr(), most, start + sent as i64);
        if got <= 0 {
            if got < 0 && sent == 0 {
                set_errno(-got as c_int);
                return -1;
            }
            break;
        }
        let now = transmit(out, &Parts(&part(&piece[..got as usize])), 0, || {
            // The ring is the way by now, and stays it.
            set_errno(libc::EIO);
            -1
        });
        if now < 0 {
            return if sent > 0 { sent as ssize_t } else { -1 };
        }
        sent += now as usize;
        if now < got as ssize_t {
            break;
        }
    }
    sent as ssize_t
}

/// Whether a descriptor is a pipe's.
fn is_pipe(fd: c_int) -> bool {
    sys::call!(SYS_fcntl, fd, libc::F_GETPIPE_SZ) >= 0
}

/// Bytes that may be written to a pipe at once without waiting, if nobody else writes there; none if it is full.
fn pipe_room(pipe: c_int) -> Option<usize> {
    let mut fds = [libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 }];
    if sys::poll(&mut fds, 0) <= 0 {
        return None;
    }
    let mut unread: c_int = 0;
    let known = sys::call!(SYS_ioctl, pipe, libc::FIONREAD, &raw mut unread);
    // Without readers any write says so. A page there is for sure where others may be filled in part.
    let is_empty = known == 0 && unread == 0 && fds[0].revents & libc::POLLERR == 0;
    Some(if is_empty { sys::call!(SYS_fcntl, pipe, libc::F_GETPIPE_SZ).max(1) as usize } else { libc::PIPE_BUF })
}

/// Waits for a pipe. False after errno was set: it is not to wait, or was interrupted.
fn wait_for_pipe(pipe: c_int, events: i16, waits: bool) -> bool {
    if !waits {
        set_errno(libc::EAGAIN);
        return false;
    }
    let mut fds = [libc::pollfd { fd: pipe, events, revents: 0 }];
    match sys::wait(&mut fds, -1, true) {
        0.. => true,
        error => {
            set_errno(-error as c_int);
            false
        }
    }
}

/// Bytes leave the ring only when they are in the pipe, which takes what it has room for.
fn ring_to_pipe(from: c_int, pipe: c_int, len: usize, flags: c_uint) -> ssize_t {
    let Some(used) = socket::find(from) else { return -1 };
    let Some(link) = used.link() else { return -1 };
    let at_once = flags & libc::SPLICE_F_NONBLOCK != 0
        || sys::call!(SYS_fcntl, pipe, libc::F_GETFL) & i64::from(libc::O_NONBLOCK) != 0;
    let mut room = loop {
        match pipe_room(pipe) {
            Some(room) => break room,
            None if wait_for_pipe(pipe, libc::POLLOUT, !at_once) => {}
            None => return -1,
        }
    };
    let piece = vec![0u8; PIECE.min(len)];
    let mut moved = 0;
    while moved < piece.len() {
        let most = room.min(piece.len() - moved);
        // After the first bytes what is there is all. Whether to wait for these the socket says, and not the flags.
        let flags = libc::MSG_PEEK | if moved > 0 { libc::MSG_DONTWAIT } else { 0 };
        let got = stream::recv(&used, link, from, &Parts(&part(&piece[..most])), flags);
        let got = match got.unwrap_or(-(libc::EAGAIN as isize)) {
            got if got > 0 => got as usize,
            _ if moved > 0 => break,
            0 => return 0,
            error => {
                set_errno(-error as c_int);
                return -1;
            }
        };
        let put =
            plain!(write: fn(c_int, *const std::ffi::c_void, size_t) -> ssize_t, pipe, piece.as_ptr().cast(), got);
        if put <= 0 {
            return if moved > 0 { moved as ssize_t } else { put };
        }
        let parts = part(&piece[..put as usize]);
        // The same bytes again, this time for good.
        let taken = stream::recv(&used, link, from, &Parts(&parts), libc::MSG_DONTWAIT | libc::MSG_WAITALL);
        debug_assert_eq!(taken, Some(put));
        moved += put as usize;
        match pipe_room(pipe) {
            Some(now) => room = now,
            None => break,
        }
    }
    moved as ssize_t
}

/// No more is taken from the pipe than there is room for.
fn pipe_to_ring(pipe: c_int, out: c_int, len: usize, flags: c_uint) -> ssize_t {
    let Some(used) = socket::find(out) else { return -1 };
    let Some(link) = used.link() else { return -1 };
    let mut unread: c_int = 0;
    loop {
        if sys::call!(SYS_ioctl, pipe, libc::FIONREAD, &raw mut unread) == 0 && unread > 0 {
            break;
        }
        let mut fds = [libc::pollfd { fd: pipe, events: libc::POLLIN, revents: 0 }];
        match sys::poll(&mut fds, 0) {
            // Nobody writes there any more.
            1.. if fds[0].revents & libc::POLLIN == 0 => return 0,
            1.. => {}
            _ if wait_for_pipe(pipe, libc::POLLIN, flags & libc::SPLICE_F_NONBLOCK == 0) => {}
            _ => return -1,
        }
    }
    let room = match stream::room_to_send(&used, link, out) {
        Ok(room) => room,
        Err(error) => {
            if error == -(libc::EPIPE as isize) {
                // SAFETY: a signal to this thread, as the kernel would send it.
                unsafe { libc::raise(libc::SIGPIPE) };
            }
            set_errno(-error as c_int);
            return -1;
        }
    };
    let most = len.min(room).min(unread as usize).min(PIECE);
    let mut piece = vec![0u8; most];
    let got = plain!(read: fn(c_int, *mut std::ffi::c_void, size_t) -> ssize_t, pipe, piece.as_mut_ptr().cast(), most);
    if got <= 0 {
        return got;
    }
    let mut sent = 0;
    while sent < got as usize {
        let parts = part(&piece[sent..got as usize]);
        match stream::send(&used, link, out, &Parts(&parts), 0) {
            Some(now) if now > 0 => sent += now as usize,
            Some(error) if error != -(libc::EAGAIN as isize) && error != -(libc::EINTR as isize) => {
                set_errno(-error as c_int);
                return -1;
            }
            // Another thread took the room: these bytes are out of the pipe, so they wait for it here.
            _ => sys::give_way(),
        }
    }
    got
}
