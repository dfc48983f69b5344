//! What moves bytes between files and sockets inside the kernel: with rings, they pass through here.

use std::ffi::{c_int, c_uint};

use libc::{iovec, off64_t, size_t, ssize_t};
use remora_preload::{next, set_errno};

use crate::calls::{c_functions, transmit};
use crate::link::{Side, Word};
use crate::socket::{self, Socket};
use crate::stream::{self, Parts};
use crate::sys;

/// Bytes that are moved at once.
const PIECE: usize = 64 << 10;

fn has_rings(fd: c_int) -> bool {
    socket::find(fd).is_some_and(|socket| socket.link().is_some_and(|link| link.own(Word::Switched) != 0))
}

fn reads_rings(fd: c_int) -> bool {
    socket::find(fd).is_some_and(|socket| socket.link().is_some_and(|link| link.peer(Word::Ready) != 0))
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
        let plain = || next!(sendfile64: fn(c_int, c_int, *mut off64_t, size_t) -> ssize_t, out, from, offset, count);
        loop {
            let Some(used) = socket::find(out) else { return plain() };
            stream::tick(used.address(), out, count);
            if has_rings(out) {
                break;
            }
            if let Some(sent) = by_kernel(None, Some(&used), &plain) {
                return sent;
            }
        }
        // SAFETY: null, or the program's place for the offset.
        let start = if offset.is_null() { sys::call!(SYS_lseek, from, 0, libc::SEEK_CUR) } else { unsafe { *offset } };
        if start < 0 {
            set_errno(libc::EINVAL);
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
        let plain = || next!(splice:
            fn(c_int, *mut off64_t, c_int, *mut off64_t, size_t, c_uint) -> ssize_t,
            from, from_offset, out, out_offset, len, flags);
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
                return moved;
            }
        }
    }
}

/// Runs `plain` while nobody changes over. None if somebody has.
fn by_kernel(reader: Option<&Socket>, writer: Option<&Socket>, plain: &dyn Fn() -> ssize_t) -> Option<ssize_t> {
    if reader.is_some_and(|reader| !reader.enter_kernel_rx()) {
        return None;
    }
    let may = writer.is_none_or(Socket::enter_kernel_tx);
    let moved = may.then(plain);
    if let (Some(writer), true) = (writer, may) {
        writer.exit_kernel_tx();
    }
    if let Some(reader) = reader {
        reader.exit_kernel_rx();
    }
    moved
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

/// Bytes leave the ring only when they are in the pipe.
fn ring_to_pipe(from: c_int, out: c_int, len: usize, flags: c_uint) -> ssize_t {
    let Some(used) = socket::find(from) else { return -1 };
    let Some(link) = used.link() else { return -1 };
    let mut piece = vec![0u8; PIECE.min(len)];
    let dont_wait = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    let parts = part(&piece);
    let got = match stream::recv(&used, link, from, &Parts(&parts), dont_wait | libc::MSG_PEEK) {
        Some(got) if got > 0 => got as usize,
        Some(0) => return 0,
        Some(error) => {
            set_errno(-error as c_int);
            return -1;
        }
        None => {
            set_errno(libc::EAGAIN);
            return -1;
        }
    };
    let written = next!(write: fn(c_int, *const std::ffi::c_void, size_t) -> ssize_t, out, piece.as_ptr().cast(), got);
    if written > 0 {
        piece.truncate(written as usize);
        let parts = part(&piece);
        // The same bytes again, this time for good.
        let taken = stream::recv(&used, link, from, &Parts(&parts), libc::MSG_DONTWAIT | libc::MSG_WAITALL);
        debug_assert_eq!(taken, Some(written));
    }
    written
}

/// No more is taken from the pipe than there is room for.
fn pipe_to_ring(from: c_int, out: c_int, len: usize, flags: c_uint) -> ssize_t {
    let Some(used) = socket::find(out) else { return -1 };
    let Some(link) = used.link() else { return -1 };
    let blocks = flags & libc::SPLICE_F_NONBLOCK == 0 && link.own(Word::NonBlocking) == 0;
    let room = {
        let _locked = link.lock(Side::Tx);
        link.room().unwrap_or(0)
    };
    let most = if blocks { len } else { len.min(room) }.min(PIECE);
    if most == 0 {
        stream::no_room(&used);
        set_errno(libc::EAGAIN);
        return -1;
    }
    let mut piece = vec![0u8; most];
    let got = next!(read: fn(c_int, *mut std::ffi::c_void, size_t) -> ssize_t, from, piece.as_mut_ptr().cast(), most);
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
