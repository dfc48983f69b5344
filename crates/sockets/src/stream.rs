//! Sending and receiving on a connection that has rings.
//!
//! Results are the kernel's: bytes, or a negative errno.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use crate::link::{Link, RING, Side, WANT_DATA, WANT_ROOM, WRITABLE, Word};
use crate::socket::{self, Socket, state, stays};
use crate::wait::{NAP, SHARED};
use crate::{epoll, rack, signals, spin, sys};

const AGAIN: isize = -(libc::EAGAIN as isize);
const INVALID: isize = -(libc::EINVAL as isize);
const NO_BUFFERS: isize = -(libc::ENOBUFS as isize);
const RESET: isize = -(libc::ECONNRESET as isize);
const PIPE: isize = -(libc::EPIPE as isize);
/// Another thread has closed all descriptors.
const CLOSED: isize = -(libc::EBADF as isize);

/// Calls between two looks for an answer of the daemon, once there was none for long.
const RARELY: u32 = 64;

/// So many bytes count as a call: who sends much has few.
const CALL: usize = 64 << 10;

/// A call on a plain connection that sends so many bytes: busy ones are brought into the rack.
#[inline]
pub fn tick(socket: &'static Socket, fd: c_int, bytes: usize) {
    if socket.state() > state::WAITING || sys::is_sealed() {
        return;
    }
    if socket.state() == state::PLAIN {
        let more = 1 + (bytes / CALL).min(1 << 16) as u32;
        if socket.ops.fetch_add(more, Ordering::Relaxed) >= rack::worth_it() && !socket.in_use_elsewhere() {
            match socket.is_standard() {
                // Later perhaps.
                true => socket.ops.store(0, Ordering::Relaxed),
                false => rack::attach(socket, fd),
            }
        }
        return;
    }
    let looks = socket.looks.fetch_add(1, Ordering::Relaxed);
    if (looks < 4 * RARELY || looks.is_multiple_of(RARELY)) && !socket.in_use_elsewhere() {
        rack::hear(socket, fd);
    }
}

/// Whether the rack can do for this socket what the kernel does.
pub fn fits(socket: &Socket, fd: c_int) -> bool {
    let is = |name, value| sys::get_int(fd, libc::SOL_SOCKET, name) == Some(value);
    is(libc::SO_RCVLOWAT, 1) && !socket.in_use_elsewhere() && !socket.is_standard()
}

/// The socket has rings from now on.
pub fn begin(socket: &Socket, link: Link, fd: c_int) {
    // Bells are to be heard at once.
    sys::set_int(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 0);
    sys::set_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if !socket.stays() && !sys::closes_on_exec(fd) {
        socket.stays.store(stays::UNSAID, Ordering::Relaxed);
    }
    sys::close_on_exec(fd);
    socket.cookie.store(sys::cookie(fd).unwrap_or(0), Ordering::Relaxed);
    link.add_own(Word::Holders, 1);
    link.join(sys::process());
    let flags = sys::call!(SYS_fcntl, fd, libc::F_GETFL);
    link.set_own(Word::NonBlocking, u64::from(flags & libc::O_NONBLOCK as i64 != 0));
    link.wish_always(flags & libc::O_ASYNC as i64 != 0);
    set_inline(&link, fd);
    socket.rx_timeout.store(sys::get_timeout(fd, libc::SO_RCVTIMEO), Ordering::Relaxed);
    socket.tx_timeout.store(sys::get_timeout(fd, libc::SO_SNDTIMEO), Ordering::Relaxed);
    // Who waits for the kernel just now hears of the first bytes by a bell.
    link.arm(WANT_DATA);
    socket.set_link(link);
    if let Some(link) = socket.link() {
        progress(socket, link, fd);
    }
}

/// `SO_OOBINLINE` is as the kernel has it.
pub fn set_inline(link: &Link, fd: c_int) {
    let is = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE).is_some_and(|value| value != 0);
    link.set_own(Word::Inline, u64::from(is));
}

/// `SO_RCVLOWAT` counts for the rings instead of the kernel, of whose bells a reader hears one by one. Until the ring's turn has
/// come it is told of whatever there is.
pub fn take_low_mark(link: &Link, fd: c_int) {
    let mark = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
    // More than there is room for would never be there.
    link.set_own(Word::LowMark, (mark as u64).min(RING as u64 / 2));
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
}

/// What a reader wants to be told of.
pub fn low_mark(link: &Link) -> usize {
    link.own(Word::LowMark).max(1) as usize
}

/// Leaves sending to the kernel for good, if that is not over. False if the ring is the way by now.
pub fn keeps_to_kernel(socket: &Socket) -> bool {
    // Whoever settles a direction finds that said, or has settled it before.
    let _one_at_a_time = socket.settling.lock();
    let is_kernels = socket.link().is_none_or(|link| link.own(Word::Switched) == 0);
    if is_kernels {
        socket.kernel_sends.store(true, Ordering::Release);
        socket.never();
    }
    is_kernels
}

/// Changes directions over as soon as that can be.
#[inline]
pub fn progress(socket: &Socket, link: &Link, fd: c_int) {
    if !socket.settled.load(Ordering::Acquire) {
        settle(socket, link, fd);
    }
}

#[cold]
fn settle(socket: &Socket, link: &Link, fd: c_int) {
    if sys::is_sealed() {
        return;
    }
    let _one_at_a_time = socket.settling.lock();
    let Some(touch) = socket.touch(fd) else { return };
    let fd = touch.fd;
    let alone = !link.is_shared();
    if link.peer(Word::Ready) == 0 {
        if !alone || !socket.stop_kernel_rx() {
            return;
        }
        let Some(taken) = sys::bytes_taken(fd) else {
            socket.no_kernel_rx.store(false, Ordering::SeqCst);
            return;
        };
        link.set_peer(Word::Taken, taken);
        link.set_peer(Word::Ready, 1);
    }
    if link.own(Word::Switched) == 0 {
        // No other thread's bytes may be between the position and what follows it.
        let may = link.own(Word::Ready) != 0 && alone && !socket.kernel_sends.load(Ordering::Acquire);
        if !may || !socket.stop_kernel_tx() {
            return;
        }
        let locked = link.lock(Side::Tx);
        if link.own(Word::Switched) == 0 {
            let Some(sent) = sys::bytes_sent(fd) else {
                drop(locked);
                socket.no_kernel_tx.store(false, Ordering::SeqCst);
                return;
            };
            link.set_own(Word::Switched, sent + 1);
        }
        drop(locked);
        epoll::switched(socket);
        wake(socket, link, fd, WANT_DATA | WANT_ROOM);
    }
    socket.settled.store(true, Ordering::Release);
}

/// Rings at the peer. Only after this end's sending direction has changed over: before, the byte would be data. Not at one
/// that has closed: the kernel would answer with a reset, which takes what is on its way with it.
fn ring(socket: &Socket, link: &Link, fd: c_int) {
    ring_so(socket, link, fd, 0);
}

/// The same with flags of `send`. A negative errno if that could not be.
fn ring_so(socket: &Socket, link: &Link, fd: c_int, flags: c_int) -> isize {
    let Some(touch) = socket.touch(fd) else { return CLOSED };
    link.add_own(Word::Bells, 1);
    fence(Ordering::SeqCst);
    let mut result = 0;
    if link.own(Word::Gone) == 0 {
        result = sys::ring(touch.fd, flags);
        if result == 1 {
            return result;
        }
        broken(link, result);
    }
    link.add_own(Word::Bells, 1u64.wrapping_neg());
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
fn left_in_kernel(link: &Link) -> Option<usize> {
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
                0 => link.set_own(Word::Eof, 1),
                e if e == AGAIN || e == -(libc::EINTR as isize) => {}
                e => link.set_own(Word::Eof, 1 | (e.unsigned_abs() as u64) << 8),
            }
            break;
        }
    }
    if rung {
        epoll::heat(socket);
    }
}

/// Bells were taken, and what told of something urgent between them.
fn count_bells(link: &Link, bytes: &[u8]) {
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
fn broken(link: &Link, error: isize) {
    if matches!(-error as c_int, libc::ECONNRESET | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) {
        link.set_own(Word::Eof, 1 | (error.unsigned_abs() as u64) << 8);
    }
}

/// How a stream that has ended ends: an errno once, then nothing more.
fn end(link: &Link, eof: u64) -> isize {
    link.set_own(Word::Eof, 1);
    -((eof >> 8) as isize)
}

/// The peer is gone, not only silent: it has closed the kernel's connection, which half a close leaves alone once its
/// sender has changed over.
fn peer_gone(link: &Link) -> bool {
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
fn has_more(socket: &Socket, link: &Link, count: usize) -> bool {
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
fn has_bytes(link: &Link, count: usize) -> bool {
    match link.readable() {
        Ok(0) => false,
        Ok(bytes) => bytes >= count + usize::from(passes_urgent(link)),
        Err(_) => true,
    }
}

/// How many bytes lie before the urgent one; none if there is none, or reading has come by it.
fn to_urgent(link: &Link) -> Option<usize> {
    let behind = link.peer(Word::Urgent);
    let ahead = behind.wrapping_sub(1).wrapping_sub(link.peer(Word::Head));
    (behind != 0 && ahead < RING as u64).then_some(ahead as usize)
}

/// Whether reading stands before an urgent byte that is received apart.
fn passes_urgent(link: &Link) -> bool {
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

/// Receives the urgent byte.
pub fn recv_urgent(socket: &Socket, link: &Link, parts: &Parts<'_>, flags: c_int) -> isize {
    if socket.deaf.load(Ordering::Relaxed) {
        return 0;
    }
    let _locked = link.lock(Side::Rx);
    let Some(ahead) = to_urgent(link).filter(|_| link.own(Word::Inline) == 0 && has_urgent(link)) else {
        return INVALID;
    };
    let mut byte = [0];
    if link.peek(ahead, &mut byte) != Ok(1) {
        return AGAIN;
    }
    if flags & libc::MSG_PEEK == 0 {
        link.set_peer(Word::UrgentTaken, link.peer(Word::Urgent));
    }
    let Some((start, _)) = parts.at(0) else { return 0 };
    if flags & libc::MSG_TRUNC == 0 {
        // SAFETY: the program's memory, which its call lends.
        unsafe { start.write(byte[0]) };
    }
    1
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
        link.set_own(Word::Eof, 1);
    }
}

/// A program's memory, part by part.
pub struct Parts<'a>(pub &'a [libc::iovec]);

impl Parts<'_> {
    pub fn len(&self) -> usize {
        self.0.iter().map(|part| part.iov_len).sum()
    }

    /// The bytes from `skip` on, up to the end of the part that they are in.
    fn at(&self, mut skip: usize) -> Option<(*mut u8, usize)> {
        for part in self.0 {
            if skip < part.iov_len {
                return Some((part.iov_base.cast::<u8>().wrapping_add(skip), part.iov_len - skip));
            }
            skip -= part.iov_len;
        }
        None
    }

    /// Parts of the first `len` bytes.
    fn first(&self, mut len: usize) -> Vec<libc::iovec> {
        let mut first = Vec::new();
        for part in self.0 {
            let iov_len = part.iov_len.min(len);
            first.push(libc::iovec { iov_base: part.iov_base, iov_len });
            len -= iov_len;
        }
        first
    }
}

fn non_blocking(link: &Link, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || link.own(Word::NonBlocking) != 0
}

/// `recvmsg` without what is beside the bytes.
fn kernel_recv(fd: c_int, parts: &Parts<'_>, flags: c_int) -> isize {
    // SAFETY: all zeros are a message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.0.as_ptr().cast_mut();
    message.msg_iovlen = parts.0.len() as _;
    sys::call!(SYS_recvmsg, fd, &raw mut message, flags) as isize
}

/// Receives on a connection with rings. None: the kernel is to do so, as it was before.
pub fn recv(socket: &Socket, link: &Link, fd: c_int, parts: &Parts<'_>, flags: c_int) -> Option<isize> {
    progress(socket, link, fd);
    let want = parts.len();
    let least = if flags & libc::MSG_WAITALL != 0 { want } else { low_mark(link).min(want) };
    let peeks = flags & libc::MSG_PEEK != 0;
    let mut got = 0;
    let mut sleep = Sleep::new(socket.rx_timeout.load(Ordering::Relaxed));
    loop {
        if link.peer(Word::Ready) == 0 {
            return None;
        }
        let was_drained = drained(link);
        // What was only looked at comes again.
        let seen = if peeks { got } else { 0 };
        let skip = got - seen;
        let now = match was_drained {
            true => recv_ring(socket, link, fd, parts, skip, flags),
            false => recv_before(socket, link, fd, parts, skip, flags),
        };
        let result = match now {
            Ok(n) if n > 0 && n == seen => AGAIN,
            Ok(n) => {
                got = skip + n;
                if n > 0 && got < want && !was_drained && drained(link) {
                    // Programs take a short read for the last one, until they are told of more.
                    got += recv_ring(socket, link, fd, parts, got, flags).unwrap_or(0);
                }
                let data_is_in_ring = link.peer(Word::Drained) != 0;
                if data_is_in_ring && link.peer(Word::Bells) != link.peer(Word::BellsTaken) && link.readable() == Ok(0)
                {
                    take_bells(socket, link, fd);
                }
                // A read ends before what is urgent, and one that looks does not wait for the ring's turn.
                let ends = to_urgent(link) == Some(if peeks { got } else { 0 }) || peeks && !was_drained;
                if got >= least || n == 0 || ends {
                    return Some(got as isize);
                }
                continue;
            }
            Err(e) => e,
        };
        if result != AGAIN || socket.deaf.load(Ordering::Relaxed) {
            let result = if result == AGAIN { 0 } else { result };
            return Some(if got > 0 { got as isize } else { result });
        }
        if link.peer(Word::Drained) != 0 {
            let eof = link.own(Word::Eof);
            if eof == 0 {
                // The kernel alone knows whether the peer has gone.
                if non_blocking(link, flags) || !spin::look(|| has_bytes(link, seen + 1) || link.peer(Word::Fin) != 0) {
                    take_bells(socket, link, fd);
                }
            }
            if has_bytes(link, seen + 1) {
                continue;
            }
            if link.peer(Word::Fin) != 0 {
                // What was written before the end was said is there now.
                if has_bytes(link, seen + 1) {
                    continue;
                }
                return Some(got as isize);
            }
            if link.own(Word::Eof) != 0 {
                if has_bytes(link, seen + 1) {
                    continue;
                }
                return Some(if got > 0 { got as isize } else { end(link, link.own(Word::Eof)) });
            }
        }
        if link.peer(Word::Drained) != 0 && non_blocking(link, flags) {
            return Some(if got > 0 { got as isize } else { AGAIN });
        }
        // Bytes in the ring while the kernel's are not all taken: these come first, and are on their way.
        let come = || has_more(socket, link, seen + 1);
        if non_blocking(link, flags) {
            link.arm(WANT_DATA);
            if come() {
                continue;
            }
            return Some(if got > 0 { got as isize } else { AGAIN });
        }
        sleep.again &= got == 0;
        if let Some(error) = wait(socket, link, fd, WANT_DATA, &mut sleep, come) {
            return Some(if got > 0 { got as isize } else { error });
        }
    }
}

/// Takes what the ring has; into nothing if it is to be cut, as TCP does where a datagram would be: there need not be any memory
/// for it.
fn recv_ring(
    socket: &Socket,
    link: &Link,
    fd: c_int,
    parts: &Parts<'_>,
    skip: usize,
    flags: c_int,
) -> Result<usize, isize> {
    let locked = link.lock(Side::Rx);
    let want = parts.len() - skip;
    if want == 0 {
        return Ok(0);
    }
    let most = to_urgent(link).map_or(want, |ahead| if ahead > 0 { want.min(ahead) } else { want });
    let mut over = usize::from(passes_urgent(link));
    let takes = flags & libc::MSG_PEEK == 0;
    let mut got = 0;
    if flags & libc::MSG_TRUNC != 0 {
        got = link.readable().map_err(|_| RESET)?.saturating_sub(over).min(most);
        if takes && got > 0 {
            link.consume(over + got);
        }
    } else {
        while got < most
            && let Some((start, len)) = parts.at(skip + got)
        {
            let len = len.min(most - got);
            // SAFETY: the program's memory, which its call lends.
            let out = unsafe { std::slice::from_raw_parts_mut(start, len) };
            let n = link.peek(over + if takes { 0 } else { got }, out).map_err(|_| RESET)?;
            if takes && n > 0 {
                link.consume(over + n);
                over = 0;
            }
            got += n;
            if n < len {
                break;
            }
        }
    }
    drop(locked);
    if got == 0 {
        return Err(AGAIN);
    }
    if takes {
        made_room(socket, link, fd);
    }
    Ok(got)
}

/// Bytes were taken: a sender that waits for room hears of it when there is enough.
pub fn made_room(socket: &Socket, link: &Link, fd: c_int) {
    // Exactly how much takes the sender's line: only for one who wants to hear of it.
    if link.own(Word::Switched) == 0 || !link.is_wished(WANT_ROOM) {
        return;
    }
    let room = link.readable().map_or(0, |used| RING - used);
    if room >= WRITABLE {
        wake(socket, link, fd, WANT_ROOM);
    }
}

/// Takes what the kernel has, while the peer may change over at any moment: bells that follow are not data.
fn recv_before(
    socket: &Socket,
    link: &Link,
    fd: c_int,
    parts: &Parts<'_>,
    skip: usize,
    flags: c_int,
) -> Result<usize, isize> {
    if parts.len() == skip {
        return Ok(0);
    }
    let Some(touch) = socket.touch(fd) else { return Err(CLOSED) };
    let fd = touch.fd;
    let _locked = link.lock(Side::Rx);
    let rest = rest(parts, skip);
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    if sys::is_sealed() && flags & libc::MSG_PEEK == 0 {
        if flags & libc::MSG_TRUNC == 0 {
            return recv_before_sealed(link, fd, &Parts(&rest));
        }
        let mut nowhere = vec![0u8; Parts(&rest).len().min(CALL)];
        let part = libc::iovec { iov_base: nowhere.as_mut_ptr().cast(), iov_len: nowhere.len() };
        return recv_before_sealed(link, fd, &Parts(&[part]));
    }
    let most = match link.peer(Word::Switched) {
        0 => {
            let seen = kernel_recv(fd, &Parts(&rest), flags | libc::MSG_PEEK);
            if seen <= 0 {
                return if seen == 0 { end_before(link) } else { Err(seen) };
            }
            // No bell is sent before the position is said: if it is not said yet, none is among what was seen.
            match link.peer(Word::Switched) {
                0 => seen as usize,
                _ => left_in_kernel(link).unwrap_or(0),
            }
        }
        _ => left_in_kernel(link).unwrap_or(0),
    };
    if most == 0 {
        // It is the ring's turn, or positions are on the move: the caller looks again.
        return Err(AGAIN);
    }
    let result = kernel_recv(fd, &Parts(&Parts(&rest).first(most)), flags);
    if result > 0 && flags & libc::MSG_PEEK == 0 {
        link.set_peer(Word::Taken, link.peer(Word::Taken).wrapping_add(result as u64));
    }
    match result {
        0 => end_before(link),
        1.. => Ok(result as usize),
        _ => Err(result),
    }
}

/// The kernel's end, before the ring's turn has come.
fn end_before(link: &Link) -> Result<usize, isize> {
    match link.own(Word::Eof) {
        eof if eof >> 8 != 0 => Err(end(link, eof)),
        _ => Ok(0),
    }
}

/// The same by `read` alone, under the lock: what turns out to be bells is taken away again at its end.
fn recv_before_sealed(link: &Link, fd: c_int, parts: &Parts<'_>) -> Result<usize, isize> {
    let Some((start, len)) = parts.at(0) else { return Ok(0) };
    let most = match link.peer(Word::Switched) {
        0 => len,
        _ => left_in_kernel(link).unwrap_or(0).min(len),
    };
    if most == 0 {
        return Err(AGAIN);
    }
    // SAFETY: the program's memory, which its call lends.
    let out = unsafe { std::slice::from_raw_parts_mut(start, most) };
    let got = sys::read_now(fd, out);
    if got <= 0 {
        return if got == 0 { end_before(link) } else { Err(got) };
    }
    // What is known of the position now holds for all that was read.
    let data = match link.peer(Word::Switched) {
        0 => got as u64,
        switched => (switched - 1).saturating_sub(link.peer(Word::Taken)).min(got as u64),
    };
    link.set_peer(Word::Taken, link.peer(Word::Taken).wrapping_add(data));
    count_bells(link, &out[data as usize..got as usize]);
    if data == 0 { Err(AGAIN) } else { Ok(data as usize) }
}

/// The parts from `skip` on.
fn rest(parts: &Parts<'_>, mut skip: usize) -> Vec<libc::iovec> {
    let mut rest = Vec::new();
    for part in parts.0 {
        let over = skip.min(part.iov_len);
        skip -= over;
        rest.push(libc::iovec {
            iov_base: part.iov_base.cast::<u8>().wrapping_add(over).cast(),
            iov_len: part.iov_len - over,
        });
    }
    rest
}

/// Sends on a connection with rings. None: the kernel is to do so still.
pub fn send(socket: &Socket, link: &Link, fd: c_int, parts: &Parts<'_>, flags: c_int) -> Option<isize> {
    progress(socket, link, fd);
    if link.own(Word::Switched) == 0 {
        return None;
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

fn wait_for_room(socket: &Socket, link: &Link, fd: c_int, sleep: &mut Sleep) -> Option<isize> {
    let room = || link.room() != Ok(0) || peer_gone(link);
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
fn wait(
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
struct Sleep {
    deadline: Option<u64>,
    /// It has been on the word, in vain.
    dozed: bool,
    /// After a signal, where the program wants it so; not if it has a limit of time, or has done a part.
    again: bool,
}

impl Sleep {
    /// `limit` nanoseconds, or 0 for none.
    fn new(limit: u64) -> Self {
        let deadline = (limit > 0).then(|| sys::now() + limit);
        Self { deadline, dozed: false, again: deadline.is_none() }
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| sys::now() >= deadline)
    }
}

/// Sleeps a little: where no bell can be heard.
fn nap(sleep: &Sleep) -> Option<isize> {
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
    // A reader's limit is none of a sender's, but the kernel would take it for one.
    let is_limited = socket.rx_timeout.load(Ordering::Relaxed) != 0;
    if sleep.again && !is_shared && !is_limited && !sys::is_sealed() {
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
    let left = left.min(if is_shared { SHARED } else { u64::MAX });
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
