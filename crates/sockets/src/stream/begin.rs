//! A connection that proves busy gets rings, and its directions change over.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::bells::wake;
use crate::link::{Link, OPTIONS, RING, Side, WANT_DATA, WANT_ROOM, Word};
use crate::socket::Socket;
use crate::socket::state;
use crate::socket::stays;
use crate::{epoll, rack, sys};

/// Calls between two looks for an answer of the daemon, once there was none for long.
const RARELY: u32 = 64;

/// So many bytes count as a call: who sends much has few.
pub(super) const CALL: usize = 64 << 10;

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
    for (bit, option) in OPTIONS.into_iter().enumerate() {
        let is = sys::get_int(fd, libc::IPPROTO_TCP, option).is_some_and(|value| value != 0);
        link.set_own(Word::Options, link.own(Word::Options) | u64::from(is) << bit);
    }
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
    set_resets(&link, fd);
    socket.rx_timeout.store(sys::get_timeout(fd, libc::SO_RCVTIMEO), Ordering::Relaxed);
    socket.tx_timeout.store(sys::get_timeout(fd, libc::SO_SNDTIMEO), Ordering::Relaxed);
    // Who waits for the kernel just now hears of the first bytes by a bell.
    link.arm(WANT_DATA);
    socket.set_link(link);
}

/// `SO_OOBINLINE` is as the kernel has it.
pub fn set_inline(link: &Link, fd: c_int) {
    let is = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE).is_some_and(|value| value != 0);
    link.set_own(Word::Inline, u64::from(is));
}

/// `SO_LINGER` is as the kernel has it.
pub fn set_resets(link: &Link, fd: c_int) {
    link.set_own(Word::Resets, u64::from(sys::resets_on_close(fd)));
}

/// `SO_RCVLOWAT` counts for the rings instead of the kernel, of whose bells a reader hears one by one. Until the ring's turn has
/// come it is told of whatever there is.
pub fn take_low_mark(link: &Link, fd: c_int) {
    let mark = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
    // More than there is room for would never be there.
    link.set_own(Word::LowMark, (mark as u64).min(RING as u64 / 2));
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
}

/// What a reader wants to be told of. The peer may write there, too.
pub fn low_mark(link: &Link) -> usize {
    link.own(Word::LowMark).clamp(1, RING as u64 / 2) as usize
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
        socket.looks_at_ring.store(true, Ordering::Release);
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
            socket.sends_by_ring.store(true, Ordering::Release);
        }
        drop(locked);
        epoll::switched(socket);
        wake(socket, link, fd, WANT_DATA | WANT_ROOM);
    }
    socket.settled.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;

    use remora_memory::Buffer;
    use remora_rack::ConnectionEnd;

    use super::*;
    use crate::link::LINK_BYTES;
    use crate::socket;
    use crate::stream::{Parts, RESET, recv, send};

    /// Who takes back that a direction has changed over holds nobody up: a call would wait for the kernel's turn, which never comes.
    #[test]
    fn what_a_peer_takes_back_is_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = program.into_raw_fd();
        socket::add(fd);
        let socket = socket::find(fd).unwrap().address();
        socket.state.store(state::WAITING, Ordering::SeqCst);
        begin(socket, Link::new(Buffer::anonymous(LINK_BYTES).unwrap(), 0, ConnectionEnd::Low).unwrap(), fd);
        let link = socket.link().unwrap();
        let mut byte = 0u8;
        let part = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        let calls = || {
            let received = recv(socket, link, fd, &Parts(&part), libc::MSG_DONTWAIT);
            (received, send(socket, link, fd, &Parts(&part), libc::MSG_DONTWAIT))
        };
        assert_eq!(calls(), (Some(-(libc::EAGAIN as isize)), None));
        // So that nothing changes over anew.
        link.set_own(Word::Holders, 9);
        link.set_peer(Word::Ready, 0);
        assert_eq!(calls(), (Some(RESET), None));
        assert!(socket.enter_kernel_rx().is_none());
        link.set_own(Word::Holders, 1);
        link.set_own(Word::Ready, 1);
        assert_eq!(calls().1, Some(1));
        link.set_peer(Word::Ready, 0);
        link.set_own(Word::Switched, 0);
        assert_eq!(calls(), (Some(RESET), Some(RESET)));
        assert!(socket.enter_kernel_rx().is_none() && socket.enter_kernel_tx().is_none());
        socket::remove(fd, |_| ());
        sys::call!(SYS_close, fd);
    }

    #[test]
    fn nobody_waits_for_more_than_there_is_room_for() {
        let link = Link::new(Buffer::anonymous(LINK_BYTES).unwrap(), 0, ConnectionEnd::Low).unwrap();
        for (written, mark) in [(0, 1), (7, 7), (u64::MAX, RING / 2)] {
            link.set_own(Word::LowMark, written);
            assert_eq!(low_mark(&link), mark);
        }
    }
}
