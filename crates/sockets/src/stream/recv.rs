//! Receiving: from the kernel at first, then from the ring.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::begin::{CALL, low_mark, progress};
use super::bells::{count_bells, drained, end, left_in_kernel, take_bells, wake};
use super::look::{has_bytes, has_more, has_urgent, passes_urgent, to_urgent};
use super::sleep::{Sleep, wait};
use super::{AGAIN, CLOSED, INVALID, Parts, RESET, non_blocking};
use crate::link::{Link, RING, Side, WANT_DATA, WANT_ROOM, WRITABLE, Word};
use crate::socket::Socket;
use crate::{spin, sys};

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
    if want == 0 && !sys::is_sealed() {
        // TCP waits for something all the same, and takes nothing of it.
        let mut byte = 0u8;
        let part = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        let flags = flags & !(libc::MSG_WAITALL | libc::MSG_TRUNC) | libc::MSG_PEEK;
        return recv(socket, link, fd, &Parts(&part), flags).map(|seen| seen.min(0));
    }
    let least = if flags & libc::MSG_WAITALL != 0 { want } else { low_mark(link).min(want) };
    let peeks = flags & libc::MSG_PEEK != 0;
    let mut got = 0;
    let mut sleep = Sleep::new(socket.rx_timeout.load(Ordering::Relaxed));
    loop {
        // As in `send`.
        let looks = socket.looks_at_ring.load(Ordering::Acquire);
        if link.peer(Word::Ready) == 0 {
            return looks.then_some(RESET);
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
            let result = if result == AGAIN { end(link, link.own(Word::Eof)) } else { result };
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
pub(super) fn rest(parts: &Parts<'_>, mut skip: usize) -> Vec<libc::iovec> {
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
