//! Sending by the ring.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::begin::progress;
use super::bells::{end, ring_so, wake};
use super::look::peer_gone;
use super::sleep::{Sleep, nap, wait_for_room};
use super::{AGAIN, CLOSED, NO_BUFFERS, PIPE, Parts, RESET, non_blocking};
use crate::link::{Link, Side, WANT_DATA, WANT_ROOM, Word};
use crate::socket::Socket;
use crate::{epoll, socket, spin, sys};

/// Sends on a connection with rings. None: the kernel is to do so still.
pub fn send(socket: &Socket, link: &Link, fd: c_int, parts: &Parts<'_>, flags: c_int) -> Option<isize> {
    progress(socket, link, fd);
    // First what this process knows, as it is written last. The peer may have taken back what stands in the buffer.
    let by_ring = socket.sends_by_ring.load(Ordering::Acquire);
    if link.own(Word::Switched) == 0 {
        return by_ring.then_some(RESET);
    }
    let want = parts.len();
    let (mut sent, mut wished) = (0, false);
    let mut wants_note = flags & libc::MSG_ZEROCOPY != 0 && want > 0;
    let mut sleep = Sleep::new(socket.tx_timeout.load(Ordering::Relaxed));
    loop {
        if link.own(Word::Fin) != 0 || peer_gone(link) {
            return Some(if sent > 0 { sent as isize } else { no_more(socket, link) });
        }
        if wants_note && (link.room() != Ok(0) || !non_blocking(link, flags)) {
            if let Some(error) = note(socket, link, fd, non_blocking(link, flags), &sleep) {
                return Some(error);
            }
            wants_note = false;
        }
        match send_ring(socket, link, fd, parts, sent, flags) {
            Ok(n) => sent += n,
            Err(error) => return Some(if sent > 0 { sent as isize } else { error }),
        }
        if sent == want {
            return Some(sent as isize);
        }
        if non_blocking(link, flags) {
            if link.wishes_always() && !std::mem::replace(&mut wished, true) {
                // A signal is to tell of room.
                link.arm(WANT_ROOM);
                continue;
            }
            no_room(socket);
            return Some(if sent > 0 { sent as isize } else { AGAIN });
        }
        sleep.again &= sent == 0;
        if let Some(error) = wait_for_room(socket, link, fd, &mut sleep) {
            return Some(if sent > 0 { sent as isize } else { error });
        }
    }
}

/// What a sender is told when nobody takes anything any more.
fn no_more(socket: &Socket, link: &Link) -> isize {
    let eof = link.own(Word::Eof);
    match socket::is_open(socket) {
        false => CLOSED,
        true if link.own(Word::Fin) == 0 && eof >> 8 != 0 => end(link, eof),
        true => PIPE,
    }
}

/// How much may be sent without waiting, once there is something; a negative errno if nobody takes it, or there is nothing yet
/// and the socket does not wait.
pub fn room_to_send(socket: &Socket, link: &Link, fd: c_int) -> Result<usize, isize> {
    let mut sleep = Sleep::new(socket.tx_timeout.load(Ordering::Relaxed));
    loop {
        match link.room().map_err(|_| RESET)? {
            _ if link.own(Word::Fin) != 0 || peer_gone(link) => return Err(no_more(socket, link)),
            0 => {}
            room => return Ok(room),
        }
        if non_blocking(link, 0) {
            no_room(socket);
            return Err(AGAIN);
        }
        if let Some(error) = wait_for_room(socket, link, fd, &mut sleep) {
            return Err(error);
        }
    }
}

/// Sends without a copy have one here. The kernel's note of it, for who has asked for these, is that of a bell that is sent so:
/// its number is the next one, it is told of as all are, and room for it may be lacking.
fn note(socket: &Socket, link: &Link, fd: c_int, at_once: bool, sleep: &Sleep) -> Option<isize> {
    loop {
        match ring_so(socket, link, fd, libc::MSG_ZEROCOPY) {
            AGAIN if !at_once => {
                if let Some(error) = nap(sleep) {
                    return Some(error);
                }
            }
            error @ (AGAIN | NO_BUFFERS) => return Some(error),
            // What else is wrong the send itself finds.
            _ => return None,
        }
    }
}

/// A sender that does not wait has found too little room.
pub fn no_room(socket: &Socket) {
    socket.blocked.store(true, Ordering::Release);
    epoll::full(socket);
}

fn send_ring(
    socket: &Socket,
    link: &Link,
    fd: c_int,
    parts: &Parts<'_>,
    skip: usize,
    flags: c_int,
) -> Result<usize, isize> {
    let mut sent = 0;
    let locked = link.lock(Side::Tx);
    let rest = parts.len() - skip;
    let is_urgent = flags & libc::MSG_OOB != 0 && rest > 0 && link.room().is_ok_and(|room| room >= rest);
    if is_urgent {
        // Its last byte is. Before it is there: nobody takes it for another one.
        link.set_own(Word::Urgent, link.own(Word::Tail).wrapping_add(rest as u64));
    }
    while let Some((start, len)) = parts.at(skip + sent) {
        // SAFETY: the program's memory, which its call lends.
        let data = unsafe { std::slice::from_raw_parts(start, len) };
        let n = link.write(data).map_err(|_| RESET)?;
        sent += n;
        if n < len {
            break;
        }
    }
    drop(locked);
    spin::asked();
    if sent > 0 && link.is_wished(WANT_DATA) {
        wake(socket, link, fd, WANT_DATA);
    }
    if is_urgent
        && link.own(Word::Gone) == 0
        && let Some(touch) = socket.touch(fd)
    {
        sys::urge(touch.fd);
    }
    Ok(sent)
}
