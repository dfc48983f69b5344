//! Bytes that the kernel carries once the rings are the way: bells for who sleeps, and the end.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use super::{AGAIN, CLOSED, RESET};
use crate::link::{Link, RING, Side, WANT_DATA, Word};
use crate::socket::Socket;
use crate::{epoll, sys};

/// Rings at the peer. Only after this end's sending direction has changed over: before, the byte would be data. Not at one
/// that has closed: the kernel would answer with a reset, which takes what is on its way with it.
fn ring(socket: &Socket, link: &Link, fd: c_int) {
    ring_so(socket, link, fd, 0);
}

/// The same with flags of `send`. A negative errno if that could not be.
pub(super) fn ring_so(socket: &Socket, link: &Link, fd: c_int, flags: c_int) -> isize {
    let Some(touch) = socket.touch(fd) else { return CLOSED };
    link.add_own(Word::Bells, 1);
    fence(Ordering::SeqCst);
    let mut result = 0;
    if link.own(Word::Gone) == 0 {
        result = sys::ring(touch.fd, flags);
        if result == 1 {
            return result;
        }
    }
    link.add_own(Word::Bells, 1u64.wrapping_neg());
    broken(link, result);
    result
}

/// How long to wait for a bell that was rung; who rang may have been killed in between.
const ON_ITS_WAY: u64 = 50_000_000;

/// This end is about to be closed: after this no bell comes any more.
pub fn silence(socket: &Socket, link: &Link, fd: c_int) {
    link.set_peer(Word::Gone, 1);
    fence(Ordering::SeqCst);
    if !drained(link) {
        return;
    }
    let end = sys::now() + ON_ITS_WAY;
    loop {
        take_bells_by(socket, link, fd);
        let missing = link.peer(Word::Bells).wrapping_sub(link.peer(Word::BellsTaken)) as i64;
        if missing <= 0 || link.own(Word::Eof) != 0 || sys::now() > end {
            return;
        }
        sys::give_way();
    }
}

/// Sees to it that the ring is where bytes come from; true if so. False while the kernel still has some, or will have.
pub fn drained(link: &Link) -> bool {
    if link.peer(Word::Drained) != 0 {
        return true;
    }
    if link.peer(Word::Switched) == 0 || link.peer(Word::Ready) == 0 {
        return false;
    }
    let _locked = link.lock(Side::Rx);
    left_in_kernel(link) == Some(0)
}

/// Bytes of the stream that are to come by the kernel still, once that is settled; under the lock.
pub(super) fn left_in_kernel(link: &Link) -> Option<usize> {
    let switched = link.peer(Word::Switched);
    if switched == 0 {
        return None;
    }
    if link.peer(Word::Drained) != 0 {
        return Some(0);
    }
    let left = (switched - 1).saturating_sub(link.peer(Word::Taken));
    if left == 0 {
        link.set_peer(Word::Drained, 1);
    }
    Some(left as usize)
}

/// Takes bells, and hears of the connection's end; only once all else was taken from the kernel. Bells that other threads
/// sleep for stay: these wake by them.
pub fn take_bells(socket: &Socket, link: &Link, fd: c_int) {
    if link.own(Word::Holders) > 1 {
        // They are for others, too. What comes from now on has one of its own, and what is there already keeps its.
        link.arm(WANT_DATA);
        if link.readable() != Ok(0) {
            return;
        }
    }
    if let Some(touch) = socket.touch(fd) {
        take_bells_by(socket, link, touch.fd);
    }
}

/// The same by a descriptor that nobody closes meanwhile.
fn take_bells_by(socket: &Socket, link: &Link, fd: c_int) {
    let mut bells = [0; 64];
    let mut rung = false;
    {
        let sleepers = socket.sleepers.lock();
        loop {
            match sys::recv_now(fd, &mut bells, if *sleepers > 0 { libc::MSG_PEEK } else { 0 }) {
                1.. if *sleepers > 0 => {}
                n @ 1.. => {
                    count_bells(link, &bells[..n as usize]);
                    rung = true;
                    if n as usize == bells.len() {
                        continue;
                    }
                }
                // It was told otherwise before.
                0 if link.own(Word::Eof) != 0 => {}
                // Who wants to hear no more is told of an end, whether the peer has ended or not.
                0 if socket.deaf.load(Ordering::Acquire) && !sys::is_ended_by_peer(fd) => {}
                0 => ended(link),
                e if e == AGAIN || e == -(libc::EINTR as isize) => {}
                e => link.set_own(Word::Eof, failed(link, e)),
            }
            break;
        }
    }
    if rung {
        epoll::heat(socket);
    }
}

/// Bells were taken, and what told of something urgent between them.
pub(super) fn count_bells(link: &Link, bytes: &[u8]) {
    let bells = bytes.iter().filter(|byte| **byte == sys::BELL).count();
    link.set_peer(Word::BellsTaken, link.peer(Word::BellsTaken).wrapping_add(bells as u64));
}

/// Rings if the peer wishes for one of these.
pub fn wake(socket: &Socket, link: &Link, fd: c_int, wishes: u64) {
    if link.take_wish(wishes) {
        ring(socket, link, fd);
    }
}

/// The kernel has said of a connection what it says only once: a reader is to hear of it after all that came before.
pub(super) fn broken(link: &Link, error: isize) {
    if matches!(-error as c_int, libc::ECONNRESET | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) {
        link.set_own(Word::Eof, failed(link, error));
    }
}

/// In `Eof`: not only the peer has ended.
pub(super) const OVER: u64 = 2;

/// What `Eof` says of an error that nobody was told of yet.
fn failed(link: &Link, error: isize) -> u64 {
    // Bells that nobody took are nothing that was unread.
    let left_bells = link.own(Word::Bells).wrapping_sub(link.own(Word::BellsTaken)) as i64 > 0;
    let is_end = left_bells && link.peer(Word::Resets) == 0 && has_ended_by_itself(link) && !left_bytes(link);
    let error = if error == RESET && is_end { 0 } else { error };
    1 | OVER | (error.unsigned_abs() as u64) << 8
}

/// The kernel has told of the connection's end. It knows only of bells, and not of what was left unread.
pub(super) fn ended(link: &Link) {
    let resets = has_ended_by_itself(link) && left_bytes(link);
    link.set_own(Word::Eof, if resets { failed(link, RESET) } else { 1 });
}

/// Whether no call has closed the peer's end: its process did so by its own end.
fn has_ended_by_itself(link: &Link) -> bool {
    link.own(Word::Switched) != 0 && link.own(Word::Drained) != 0 && link.own(Word::Gone) == 0
}

/// Whether it has not read everything.
fn left_bytes(link: &Link) -> bool {
    link.room() != Ok(RING)
}

/// An error that nobody was told of yet: whoever asks is, and then nobody else. None if there is none.
pub fn take_error(link: &Link) -> Option<c_int> {
    let error = link.own(Word::Eof) >> 8;
    (error != 0).then(|| {
        end(link, link.own(Word::Eof));
        error as c_int
    })
}

/// How a stream that has ended ends: an errno once, then nothing more.
pub(super) fn end(link: &Link, eof: u64) -> isize {
    link.set_own(Word::Eof, eof & (1 | OVER));
    -((eof >> 8) as isize)
}
