//! What there is to receive and room to send, without doing either.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::begin::low_mark;
use super::bells::{OVER, broken, drained, ended, left_in_kernel};
use crate::link::{Link, RING, Side, WRITABLE, Word};
use crate::socket::Socket;
use crate::sys;

/// The peer is gone, not only silent: it has closed the kernel's connection, which half a close leaves alone once its
/// sender has changed over.
pub(super) fn peer_gone(link: &Link) -> bool {
    link.own(Word::Gone) != 0 || (link.own(Word::Eof) != 0 && link.peer(Word::Switched) != 0)
}

/// What is ready, as poll has it: POLLIN, POLLOUT.
pub fn readiness(socket: &Socket, link: &Link) -> (bool, bool) {
    (has_input(socket, link), has_room(link))
}

/// Whether a reader is to be told of something, as far as the rings know.
#[inline]
pub fn has_input(socket: &Socket, link: &Link) -> bool {
    has_more(socket, link, low_mark(link))
}

/// Whether there are so many bytes, or will be no more.
#[inline]
pub(super) fn has_more(socket: &Socket, link: &Link, count: usize) -> bool {
    if !drained(link) {
        return false;
    }
    has_bytes(link, count)
        || link.peer(Word::Fin) != 0
        || link.own(Word::Eof) != 0
        || socket.deaf.load(Ordering::Relaxed)
}

/// Whether the ring has so many bytes for a read, which may pass one by.
#[inline]
pub(super) fn has_bytes(link: &Link, count: usize) -> bool {
    match link.readable() {
        Ok(0) => false,
        Ok(bytes) => bytes >= count + usize::from(passes_urgent(link)),
        Err(_) => true,
    }
}

/// What is told of whether it is asked for or not, as poll has it: POLLERR while nobody was told of an error, and POLLHUP once
/// both directions have ended.
pub fn troubles(socket: &Socket, link: &Link) -> i16 {
    let eof = link.own(Word::Eof);
    let hears_no_more = link.peer(Word::Fin) != 0 || eof != 0 || socket.deaf.load(Ordering::Relaxed);
    let ended = eof & OVER != 0 || link.own(Word::Fin) != 0 && hears_no_more;
    (if eof >> 8 != 0 { libc::POLLERR } else { 0 }) | if ended { libc::POLLHUP } else { 0 }
}

/// How many bytes lie before the urgent one; none if there is none, or reading has come by it.
pub(super) fn to_urgent(link: &Link) -> Option<usize> {
    let behind = link.peer(Word::Urgent);
    let ahead = behind.wrapping_sub(1).wrapping_sub(link.peer(Word::Head));
    (behind != 0 && ahead < RING as u64).then_some(ahead as usize)
}

/// Whether reading stands before an urgent byte that is received apart.
pub(super) fn passes_urgent(link: &Link) -> bool {
    to_urgent(link) == Some(0) && link.own(Word::Inline) == 0
}

/// Whether there is an urgent byte to be told of.
pub fn has_urgent(link: &Link) -> bool {
    let has_come = |ahead| link.readable().is_ok_and(|bytes| bytes > ahead);
    to_urgent(link).is_some_and(has_come) && link.peer(Word::UrgentTaken) != link.peer(Word::Urgent)
}

/// Whether urgent bytes of the peer's come by the ring.
pub fn urgent_is_in_ring(link: &Link) -> bool {
    link.peer(Word::Urgent) != 0
}

/// `SIOCATMARK`: whether the urgent byte is what comes next.
pub fn is_at_mark(link: &Link) -> bool {
    drained(link) && to_urgent(link) == Some(0)
}

/// `FIONREAD`, once the ring's turn has come: up to what is urgent.
pub fn unread(link: &Link) -> usize {
    let readable = link.readable().unwrap_or(0);
    match to_urgent(link) {
        Some(ahead) if link.own(Word::Inline) == 0 => readable.min(ahead),
        _ => readable,
    }
}

/// The same before that, of so many bytes that the kernel has: those behind the position are bells.
pub fn unread_before(link: &Link, kernels: usize) -> usize {
    let _locked = link.lock(Side::Rx);
    left_in_kernel(link).map_or(kernels, |left| kernels.min(left) + unread(link))
}

/// Whether a write would, once this end sends by its ring.
#[inline]
pub fn has_room(link: &Link) -> bool {
    link.own(Word::Switched) != 0
        && (link.room().is_ok_and(|room| room >= WRITABLE) || link.own(Word::Fin) != 0 || peer_gone(link))
}

/// Whether a sender lacks room of which the peer may not be able to tell: bytes of the kernel's that nobody takes, and its end,
/// come before a bell, and may leave it no place. Who waits looks again and again.
pub fn is_out_of_hearing(socket: &Socket, link: &Link) -> bool {
    link.own(Word::Switched) != 0 && !has_room(link) && (!drained(link) || socket.deaf.load(Ordering::Relaxed))
}

/// Such a sender asks whether the peer is gone, as it does not hear that either.
pub fn look_for_end(link: &Link, fd: c_int) {
    if link.own(Word::Gone) != 0 {
        return;
    }
    if sys::is_over(fd) {
        broken(link, -(sys::get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0) as isize));
        // It can say nothing itself any more, whether it has changed over or not. Why, a reader asks the kernel.
        link.set_own(Word::Gone, 1);
    } else if link.own(Word::Eof) == 0 && sys::is_ended_by_peer(fd) {
        ended(link);
    }
}
