//! Connections of the kernel's to another rack that go on by the gate, by every NIC there is, once they have much to carry.
//!
//! Small messages take the kernel's way, which wakes nobody in between. When much has passed the gate is told, and shown the
//! socket; once the other rack's gate has been told of the other end, it gives a socket of its own for it. That one takes the
//! place of the kernel's at a moment when no thread of this process is in a call on it, by all descriptors, and is from then
//! on a connection within this rack. What is on its way by the old one the gates bring in order.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use remora_rack::frame::{GateAnswer, Question};

use crate::own::Own;
use crate::socket::{self, Socket, state};
use crate::{epoll, gate, rack, start, stream, sys};

/// As much as this within that time is much, bytes and nanoseconds: the gate is asked for the first time.
const MUCH: u64 = 256 << 10;
const WITHIN: u64 = 100_000_000;
/// If it comes in pieces of so many bytes before the other end has its turn: who waits for answers to small messages would wait
/// longer.
const TURN: u64 = 32 << 10;
/// Each time the gate is asked in vain as often twice as much has to pass before the next.
const DOUBLED: u32 = 6;

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
}

/// What has passed on a connection.
#[derive(Debug, Default)]
pub struct Passed {
    bytes: u64,
    turns: u64,
    last: Option<Way>,
    since: u64,
    /// How often the gate was asked, and whether it is being asked.
    asked: u32,
    asking: bool,
}

impl Passed {
    /// So many bytes more have; whether the gate is to be asked now.
    fn is_much(&mut self, way: Way, bytes: u64, now: u64) -> bool {
        if self.bytes == 0 {
            (self.turns, self.since) = (0, now);
        }
        self.turns += u64::from(self.bytes == 0 || self.last != Some(way));
        (self.bytes, self.last) = (self.bytes + bytes, Some(way));
        let passed = now - self.since;
        if passed > WITHIN && u128::from(self.bytes) * u128::from(WITHIN) < u128::from(MUCH) * u128::from(passed) {
            // Too slowly.
            self.bytes = 0;
            return false;
        }
        if self.bytes < MUCH << self.asked {
            return false;
        }
        let is_much = self.bytes >= self.turns * TURN && !self.asking;
        if !is_much || self.asked == DOUBLED {
            self.bytes = 0;
        }
        if is_much {
            self.asked = (self.asked + 1).min(DOUBLED);
            self.asking = true;
        }
        is_much
    }
}

/// A call of the kernel's has passed so many bytes, or failed.
#[inline]
pub fn passed(socket: &'static Socket, fd: c_int, way: Way, bytes: isize) {
    if bytes > 0 && socket.far.load(Ordering::Relaxed) {
        count(socket, fd, way, bytes as u64);
    }
}

fn count(socket: &'static Socket, fd: c_int, way: Way, bytes: u64) {
    if !socket.passed.lock().is_much(way, bytes, sys::now()) {
        return;
    }
    if may_move(socket, fd) && socket.is_quiet() {
        // What comes of it, the next calls find out.
        let _ = ask(socket, fd);
    }
    socket.passed.lock().asking = false;
}

/// Whether another connection could take the place of this one.
fn may_move(socket: &Socket, fd: c_int) -> bool {
    let is_unset = |level, name| sys::get_int(fd, level, name).is_none_or(|value| value == 0);
    !sys::is_sealed()
        && !start::is_borrowed()
        && matches!(socket.state(), state::PLAIN | state::WAITING)
        && stream::fits(socket, fd)
        && !socket.kernel_sends.load(Ordering::Acquire)
        && !socket.deaf.load(Ordering::Acquire)
        // Notes of what was sent, and signals, are the kernel's.
        && is_unset(libc::SOL_SOCKET, libc::SO_ZEROCOPY)
        && sys::call!(SYS_fcntl, fd, libc::F_GETFL) & libc::O_ASYNC as i64 == 0
}

/// Tells the gate of it. If it is to go on there, it does when this returns.
fn ask(socket: &'static Socket, fd: c_int) -> Option<()> {
    let Some(gate) = gate::call() else {
        socket.far.store(false, Ordering::Relaxed);
        return None;
    };
    let shown = socket.touch(fd)?;
    // SAFETY: nobody closes it meanwhile.
    gate::say(&gate, &Question::Much, Some(unsafe { BorrowedFd::borrow_raw(shown.fd) }))?;
    drop(shown);
    match gate::hear(&gate, gate::SHORT)? {
        (GateAnswer::Yours, Some(new)) => take_place(socket, fd, &gate, &new),
        (GateAnswer::No, _) => {
            socket.far.store(false, Ordering::Relaxed);
            None
        }
        _ => None,
    }
}

/// No thread begins a call that sends or takes bytes by the kernel.
struct Stopped<'a>(&'a Socket);

impl<'a> Stopped<'a> {
    fn new(socket: &'a Socket) -> Option<Self> {
        if !socket.stop_kernel_tx() {
            return None;
        }
        if !socket.stop_kernel_rx() {
            socket.no_kernel_tx.store(false, Ordering::SeqCst);
            return None;
        }
        Some(Self(socket))
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.no_kernel_tx.store(false, Ordering::SeqCst);
        self.0.no_kernel_rx.store(false, Ordering::SeqCst);
    }
}

/// All of this process's descriptors of a socket lead to `new` from now on, and the gate has what they led to. None if that cannot
/// be now: nothing has changed then.
fn take_place(socket: &'static Socket, fd: c_int, gate: &Own, new: &OwnedFd) -> Option<()> {
    let mut known = socket.endpoint.lock();
    let still = socket.settling.lock();
    let stopped = Stopped::new(socket)?;
    if !may_move(socket, fd) {
        return None;
    }
    let touch = socket.touch(fd)?;
    let (watched, sleepers) = (socket.watched.lock(), socket.sleepers.lock());
    let (sent, taken) = (sys::bytes_sent(touch.fd)?, sys::bytes_taken(touch.fd)?);
    let names = gate::names(socket, touch.fd)?;
    let before = sys::cookie(touch.fd)?;
    if *sleepers > 0 {
        return None;
    }
    // A copy that is made from now on is looked at when it is known.
    socket.moved.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let moves = || {
        sys::copy_options(touch.fd, new.as_raw_fd());
        // If the gate ends amid this, that is not to look like the connection's end.
        sys::reset_on_close(touch.fd);
        if gate::say(gate, &Question::Moved { sent, taken }, None).is_none() {
            sys::copy_option(new.as_raw_fd(), touch.fd, (libc::SOL_SOCKET, libc::SO_LINGER));
            return false;
        }
        let fds = socket::descriptors().filter(|(_, other)| std::ptr::eq(*other, socket)).map(|(fd, _)| fd);
        fds.filter(|fd| sys::cookie(*fd) == Some(before)).for_each(|fd| lead(fd, new.as_raw_fd()));
        true
    };
    if !epoll::moved(&watched, moves) {
        return None;
    }
    *socket.names.lock() = Some(names);
    socket.far.store(false, Ordering::Relaxed);
    let _ = socket.state.compare_exchange(state::WAITING, state::PLAIN, Ordering::AcqRel, Ordering::Acquire);
    let endpoint = known.take();
    // Who has the daemon's lock may wait for these.
    drop((sleepers, watched, touch, stopped, still, known));
    endpoint.into_iter().for_each(|endpoint| rack::detach(endpoint, true));
    Some(())
}

/// A descriptor leads where another one does, and goes with the next program as before.
fn lead(fd: c_int, to: c_int) {
    let flags = if sys::closes_on_exec(fd) { libc::O_CLOEXEC } else { 0 };
    sys::call!(SYS_dup3, to, fd, flags);
}

/// A descriptor has become the copy `new` of another one, which may have been led elsewhere just then.
pub fn copied(fd: c_int, new: c_int) {
    let Some(used) = socket::find(new) else { return };
    fence(Ordering::SeqCst);
    if used.moved.load(Ordering::SeqCst) && !start::is_borrowed() {
        let _still = used.settling.lock();
        if socket::leads(fd, &used) && sys::cookie(fd) != sys::cookie(new) {
            lead(new, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;
    use std::time::{Duration, Instant};

    use remora_rack::{Endpoint, Key};
    use rustix::net;

    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// A thread that forks has the daemon's lock, and waits for those of all sockets.
    #[test]
    fn who_moves_keeps_nobody_from_a_fork() {
        let connected = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            [TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap().0]
        };
        let ([program, _peer], [new, _gate]) = (connected(), connected());
        let ends = (program.local_addr().unwrap(), program.peer_addr().unwrap());
        let fd = program.into_raw_fd();
        socket::add(fd);
        let socket = socket::find(fd).unwrap().address();
        socket.state.store(state::WAITING, Ordering::SeqCst);
        let (key, end) = Key::new(1, ends.0, ends.1);
        *socket.endpoint.lock() = Some(Endpoint { key, end, cookie: 7 });
        let (family, kind) = (net::AddressFamily::UNIX, net::SocketType::SEQPACKET);
        let (gate, _hears) = net::socketpair(family, kind, net::SocketFlags::CLOEXEC, None).unwrap();
        let (gate, new) = (Own::new(gate), OwnedFd::from(new));
        rack::hold();
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| take_place(socket, fd, &gate, &new));
            while socket.state() != state::PLAIN && !mover.is_finished() {
                std::thread::yield_now();
            }
            let forks = scope.spawn(|| {
                socket.hold();
                socket.release();
            });
            let end = Instant::now() + Duration::from_secs(5);
            while !forks.is_finished() && Instant::now() < end {
                std::thread::yield_now();
            }
            let goes_on = forks.is_finished();
            rack::release();
            assert!(mover.join().unwrap().is_some() && goes_on);
        });
        socket::remove(fd, |_| ());
        sys::call!(SYS_close, fd);
    }

    /// After how many messages of a size there and an answer of a size back, at such a pace, the gate is asked.
    fn asked(sizes: (u64, u64), pace: u64, most: usize) -> Option<usize> {
        let (mut passed, mut now) = (Passed::default(), 5);
        (0..most).find(|_| {
            now += pace;
            let there = passed.is_much(Way::Out, sizes.0, now);
            there || sizes.1 > 0 && passed.is_much(Way::In, sizes.1, now)
        })
    }

    #[test]
    fn what_has_much_to_carry_is_told_from_what_waits_for_answers() {
        assert_eq!(asked((128 << 10, 0), MILLISECOND, 100), Some(1), "a stream");
        assert_eq!(asked((64, 0), 1000, 100_000), Some(4095), "of small pieces");
        assert_eq!(asked((100, 1 << 20), MILLISECOND, 10), Some(0), "a long answer");
        assert_eq!(asked((64 << 10, 64 << 10), MILLISECOND, 10), Some(1), "both ways at once");
        assert_eq!(asked((100, 4000), 20_000, 1_000_000), None, "small messages, as fast as they come");
        assert_eq!(asked((1000, 0), MILLISECOND, 1_000_000), None, "a stream that is no hurry");
    }

    #[test]
    fn who_has_asked_in_vain_asks_ever_more_rarely() {
        let mut passed = Passed::default();
        let mut at = Vec::new();
        for piece in 0..1_000_000u64 {
            if passed.is_much(Way::Out, 64 << 10, piece * 500_000) {
                passed.asking = false;
                at.push(piece + 1);
            }
        }
        assert_eq!(at[..6], [4, 8, 16, 32, 64, 128]);
        assert!(at.windows(2).skip(8).all(|pair| pair[1] - pair[0] == 256), "16 MB, for ever");
    }
}
