//! Waiting until there is something, or room.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::bells::{broken, drained, take_bells};
use super::look::{look_for_end, peer_gone};
use super::{AGAIN, CLOSED};
use crate::link::{Link, WANT_ROOM, Word};
use crate::socket::Socket;
use crate::wait::{NAP, SHARED};
use crate::{signals, socket, spin, sys};

pub(super) fn wait_for_room(socket: &Socket, link: &Link, fd: c_int, sleep: &mut Sleep) -> Option<isize> {
    let room = || link.room() != Ok(0) || link.own(Word::Fin) != 0 || peer_gone(link);
    if spin::look(room) {
        return None;
    }
    let deaf = socket.deaf.load(Ordering::Relaxed);
    if !drained(link) || link.own(Word::Eof) != 0 || deaf && sys::is_sealed() {
        // Data of the kernel's would hide a bell behind them, and so does its end.
        look_for_end(link, fd);
        return nap(sleep);
    }
    if deaf {
        // The kernel lets nobody sleep who wants to hear no more: only the word does.
        sleep.dozed = false;
    }
    let error = wait(socket, link, fd, WANT_ROOM, sleep, room);
    take_bells(socket, link, fd);
    error
}

/// Sleeps until a wish comes true, for a while on its word, then in the kernel on the connection, or there at once if
/// something may come there that the rings know nothing of. An error is the kernel's.
pub(super) fn wait(
    socket: &Socket,
    link: &Link,
    fd: c_int,
    wish: u64,
    sleep: &mut Sleep,
    come: impl Fn() -> bool,
) -> Option<isize> {
    if !socket::is_open(socket) {
        return Some(CLOSED);
    }
    let _asleep = socket.falling_asleep();
    if !sleep.dozed && link.peer(Word::Drained) != 0 && link.own(Word::Holders) <= 1 {
        return match link.doze(wish, sleep.deadline, sleep.again, come) {
            0 => None,
            e if e == -(libc::EINTR as isize) => Some(e),
            _ if sleep.is_over() => Some(AGAIN),
            _ => {
                sleep.dozed = true;
                None
            }
        };
    }
    link.arm(wish);
    if come() { None } else { sleep_in_kernel(socket, link, fd, wish, sleep) }
}

/// How a call sleeps.
pub(super) struct Sleep {
    deadline: Option<u64>,
    /// It has been on the word, in vain.
    dozed: bool,
    /// After a signal, where the program wants it so; not if it has a limit of time, or has done a part.
    pub(super) again: bool,
}

impl Sleep {
    /// `limit` nanoseconds, or 0 for none.
    pub(super) fn new(limit: u64) -> Self {
        let deadline = (limit > 0).then(|| sys::now() + limit);
        Self { deadline, dozed: false, again: deadline.is_none() }
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| sys::now() >= deadline)
    }
}

/// Sleeps a little: where no bell can be heard.
pub(super) fn nap(sleep: &Sleep) -> Option<isize> {
    if sleep.is_over() {
        return Some(AGAIN);
    }
    let error = sys::sleep_until(sys::now() + NAP, sleep.again);
    (error != 0).then_some(error)
}

/// Sleeps until the kernel has something: bytes, a bell, an end. An error is the kernel's.
fn sleep_in_kernel(socket: &Socket, link: &Link, fd: c_int, wish: u64, sleep: &Sleep) -> Option<isize> {
    let is_shared = link.is_shared();
    if is_shared && wish == WANT_ROOM {
        // Another process may take the bell.
        return nap(sleep);
    }
    // Somebody may close it at any time; what is only looked at then is nobody's loss.
    let Some(fd) = socket.descriptor(fd) else { return Some(CLOSED) };
    // That another thread has ended this direction the kernel does not know, and wakes nobody.
    let looks_again = is_shared || wish == WANT_ROOM;
    // A reader's limit is none of a sender's, but the kernel would take it for one.
    let is_limited = socket.rx_timeout.load(Ordering::Relaxed) != 0;
    if sleep.again && !looks_again && !is_limited && !sys::is_sealed() {
        // A call that the kernel begins again by itself after a signal, where the program wants it so.
        return match signals::waiting(true, || sys::recv(fd, &mut [0], libc::MSG_PEEK)) {
            // The second if somebody made the descriptor non-blocking past this library.
            e if e == -(libc::EINTR as isize) || e == AGAIN || e == CLOSED => Some(e),
            e => {
                broken(link, e);
                None
            }
        };
    }
    if sleep.is_over() {
        return Some(AGAIN);
    }
    let left = sleep.deadline.map_or(u64::MAX, |deadline| deadline.saturating_sub(sys::now()));
    let left = left.min(if looks_again { SHARED } else { u64::MAX });
    let wait = left.div_ceil(1_000_000).min(1 << 30) as c_int;
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
    match sys::wait(&mut fds, wait, sleep.again) {
        // Who waits looks once more.
        0 => None,
        // It may be a note of what was sent, which nobody takes.
        1.. if fds[0].revents == libc::POLLERR => nap(sleep),
        1.. => None,
        error => Some(error),
    }
}
