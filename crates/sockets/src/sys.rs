//! The kernel's own calls, past every library, and the few things asked of it. Results are those of the kernel: a negative
//! one is an errno.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_long};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::signals;

/// A byte that says "look".
pub const BELL: u8 = 0xbe;
/// Of `ioctl`: whether the next byte is the urgent one.
pub const SIOCATMARK: libc::c_ulong = 0x8905;
/// One that says nothing: what is urgent stands in the ring.
const URGENT: u8 = 0;

macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {{
        // SAFETY: what is passed is the caller's own memory, or that of the program, for which the kernel answers.
        unsafe { $crate::raw::raw(libc::$number $(, $argument)*) }
    }};
}
pub(crate) use call;

/// Whether this process has taken calls of the kernel's away from itself.
static SEALED: AtomicBool = AtomicBool::new(false);

/// From now on only calls are made that such a process has kept, as it reads, writes and waits itself: for all others it
/// would be killed. Without them bytes still go both ways, and nothing new begins.
pub fn seal() {
    thread_id();
    SEALED.store(true, Ordering::SeqCst);
}

/// Whether that is so.
#[inline]
pub fn is_sealed() -> bool {
    SEALED.load(Ordering::Relaxed)
}

/// Receives without waiting.
pub fn recv_now(fd: c_int, out: &mut [u8], flags: c_int) -> isize {
    match is_sealed() {
        false => recv(fd, out, flags | libc::MSG_DONTWAIT),
        // Looked at by nobody: bells stay where they are.
        true if flags & libc::MSG_PEEK != 0 => -(libc::EAGAIN as isize),
        true => read_now(fd, out),
    }
}

/// The same by calls that every process has kept.
pub fn read_now(fd: c_int, out: &mut [u8]) -> isize {
    match ready(fd, libc::POLLIN | libc::POLLRDHUP) {
        true => call!(SYS_read, fd, out.as_mut_ptr(), out.len()) as isize,
        false => -(libc::EAGAIN as isize),
    }
}

fn ready(fd: c_int, events: i16) -> bool {
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    // An error alone may be a note of what was sent.
    poll(&mut fds, 0) > 0 && fds[0].revents != libc::POLLERR
}

/// Receives without waiting, or looks.
pub fn recv(fd: c_int, out: &mut [u8], flags: c_int) -> isize {
    call!(SYS_recvfrom, fd, out.as_mut_ptr(), out.len(), flags, 0usize, 0usize) as isize
}

/// A program that takes this one's place finds no connection there, rather than one whose kernel has only bells.
pub fn close_on_exec(fd: c_int) {
    if is_sealed() {
        return;
    }
    call!(SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC);
}

/// Whether it does so already.
pub fn closes_on_exec(fd: c_int) -> bool {
    call!(SYS_fcntl, fd, libc::F_GETFD) as c_int & libc::FD_CLOEXEC != 0
}

/// How many descriptors the kernel's table of them has room for; 0 if that cannot be found out.
pub fn descriptors() -> usize {
    if is_sealed() {
        return 0;
    }
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.and_then(|size| size.trim().parse().ok()).unwrap_or(0)
}

/// Whether a descriptor is open, as far as can be found out.
pub fn is_open(fd: c_int) -> bool {
    is_sealed() || call!(SYS_fcntl, fd, libc::F_GETFD) >= 0
}

/// Rings, with these flags of `send`. The peer's kernel keeps the byte for it: 1, or a negative errno, as if there is no room for
/// one, as there are others then.
pub fn ring(fd: c_int, flags: c_int) -> isize {
    if is_sealed() {
        return match ready(fd, libc::POLLOUT) {
            true => call!(SYS_write, fd, std::ptr::from_ref(&BELL), 1usize) as isize,
            false => -(libc::EAGAIN as isize),
        };
    }
    send_now(fd, &BELL, flags)
}

fn send_now(fd: c_int, byte: &'static u8, flags: c_int) -> isize {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    call!(SYS_sendto, fd, std::ptr::from_ref(byte), 1usize, flags, 0usize, 0usize) as isize
}

/// Tells the peer's kernel that there is something urgent, for signals.
pub fn urge(fd: c_int) {
    if !is_sealed() {
        send_now(fd, &URGENT, libc::MSG_OOB);
    }
}

/// Of `futex_waitv`: a word of 32 bits, which other processes have too.
#[repr(C)]
struct Waited {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Sleeps while the 32 bits at an address are these, until [`futex_wake`] or so late. 0, or a negative errno; after a signal
/// the kernel begins `again` by itself where the program wants it so, which the older call does not do with a deadline.
pub fn futex_wait(address: u64, value: u32, until: u64, again: bool) -> isize {
    const WORD: u32 = 2;
    if is_sealed() {
        return -(libc::ETIMEDOUT as isize);
    }
    let waited = Waited { value: value.into(), address, flags: WORD, reserved: 0 };
    let (second, rest) = ((until / 1_000_000_000) as i64, (until % 1_000_000_000) as i64);
    let time = libc::timespec { tv_sec: second, tv_nsec: rest };
    let (time, clock) = (&raw const time, libc::CLOCK_MONOTONIC);
    let older = || {
        let (op, all) = (libc::FUTEX_WAIT_BITSET, u32::MAX);
        call!(SYS_futex, address, op, value, time, 0usize, all) as isize
    };
    let result = signals::waiting(again, || match again {
        true => match call!(SYS_futex_waitv, &raw const waited, 1usize, 0usize, time, clock) as isize {
            // Before Linux 5.16, or kept from this process.
            error if matches!(-error as c_int, libc::ENOSYS | libc::EPERM) => older(),
            done => done,
        },
        false => older(),
    });
    // Not these bits any more: as if it had been woken.
    if result == -(libc::EAGAIN as isize) { 0 } else { result.min(0) }
}

/// Sleeps until then. 0, or a negative errno after a signal, as of [`futex_wait`].
pub fn sleep_until(until: u64, again: bool) -> isize {
    static NOBODYS: AtomicU32 = AtomicU32::new(0);
    let result = match is_sealed() {
        true => wait(&mut [], until.saturating_sub(now()).div_ceil(1_000_000) as c_int, again),
        false => futex_wait(NOBODYS.as_ptr().addr() as u64, 0, until, again),
    };
    if result == -(libc::EINTR as isize) { result } else { 0 }
}

/// Wakes all who sleep at an address.
pub fn futex_wake(address: u64) {
    call!(SYS_futex, address, libc::FUTEX_WAKE, c_int::MAX, 0usize, 0usize, 0usize);
}

/// Waits for one of these as [`poll`] does, as [`signals::waiting`].
pub fn wait(fds: &mut [libc::pollfd], timeout: c_int, again: bool) -> isize {
    signals::waiting(again, || poll(fds, timeout) as isize)
}

/// Waits for one of these, for so many milliseconds, or for ever if that is negative.
pub fn poll(fds: &mut [libc::pollfd], timeout: c_int) -> c_int {
    let time = libc::timespec { tv_sec: i64::from(timeout / 1000), tv_nsec: i64::from(timeout % 1000) * 1_000_000 };
    let time = if timeout < 0 { std::ptr::null() } else { &raw const time };
    call!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), time, 0usize, 0usize) as c_int
}

pub fn get_int(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    if is_sealed() {
        return None;
    }
    let (mut value, mut len) = (0 as c_int, size_of::<c_int>() as libc::socklen_t);
    (call!(SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len) == 0).then_some(value)
}

/// The kernel's number of a socket, which no other one has had.
pub fn cookie(fd: c_int) -> Option<u64> {
    if is_sealed() {
        return None;
    }
    let (mut value, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let got = call!(SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_COOKIE, &raw mut value, &raw mut len);
    (got == 0).then_some(value)
}

pub fn set_int(fd: c_int, level: c_int, name: c_int, value: c_int) {
    if is_sealed() {
        return;
    }
    call!(SYS_setsockopt, fd, level, name, &raw const value, size_of::<c_int>());
}

/// Closing sends a reset, as the kernel does when data were not read.
pub fn reset_on_close(fd: c_int) {
    linger(fd, 1);
}

/// It does not.
pub fn end_on_close(fd: c_int) {
    linger(fd, 0);
}

fn linger(fd: c_int, l_onoff: c_int) {
    if is_sealed() {
        return;
    }
    let linger = libc::linger { l_onoff, l_linger: 0 };
    call!(SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, &raw const linger, size_of::<libc::linger>());
}

/// What a program may have set of a connection, and is to find again when another one takes its place.
const OPTIONS: [(c_int, c_int); 12] = [
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
];

/// Sets one option of a socket as it is at another one.
pub fn copy_option(from: c_int, to: c_int, (level, name): (c_int, c_int)) {
    let (mut value, mut len) = ([0u8; 16], 16 as libc::socklen_t);
    if call!(SYS_getsockopt, from, level, name, value.as_mut_ptr(), &raw mut len) == 0 {
        call!(SYS_setsockopt, to, level, name, value.as_ptr(), len);
    }
}

/// A connection is to take another one's place, of which nothing is held back from now on.
pub fn copy_options(from: c_int, to: c_int) {
    OPTIONS.into_iter().for_each(|option| copy_option(from, to, option));
    let flags = call!(SYS_fcntl, from, libc::F_GETFL);
    call!(SYS_fcntl, to, libc::F_SETFL, flags);
    set_int(from, libc::IPPROTO_TCP, libc::TCP_CORK, 0);
}

/// Whether it does so.
pub fn resets_on_close(fd: c_int) -> bool {
    if is_sealed() {
        return false;
    }
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut len = size_of::<libc::linger>() as libc::socklen_t;
    let got = call!(SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, &raw mut linger, &raw mut len);
    got == 0 && linger.l_onoff != 0 && linger.l_linger == 0
}

/// Whether a descriptor is an epoll's; none if that cannot be found out.
pub fn is_epoll(fd: c_int) -> Option<bool> {
    const KIND: &[u8] = b"anon_inode:[eventpoll]";
    if is_sealed() {
        return None;
    }
    let (mut path, mut target) = ([0u8; 40], [0u8; KIND.len() + 1]);
    write!(&mut path[..], "/proc/thread-self/fd/{fd}\0").ok()?;
    let len = call!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), target.as_mut_ptr(), target.len());
    Some(target.get(..usize::try_from(len).ok()?)? == KIND)
}

/// A time limit of a socket, in nanoseconds; 0 for none.
pub fn get_timeout(fd: c_int, name: c_int) -> u64 {
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    if call!(SYS_getsockopt, fd, libc::SOL_SOCKET, name, &raw mut value, &raw mut len) != 0 {
        return 0;
    }
    value.tv_sec as u64 * 1_000_000_000 + value.tv_usec as u64 * 1000
}

/// States of a connection whose peer has closed.
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;
/// One that is over: whether there was a FIN is not known any more.
const CLOSED: u8 = 7;

/// Of `TCP_INFO`.
struct Counts {
    acked: u64,
    received: u64,
    /// Bytes that were given to the kernel to send.
    given: u64,
}

/// `TCP_INFO`, which begins with the state. Linux has counted the bytes sent since 4.19.
fn info(fd: c_int) -> Option<[u8; 216]> {
    let mut info = [0u8; 216];
    let mut len = info.len() as libc::socklen_t;
    let got = call!(SYS_getsockopt, fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr(), &raw mut len);
    (got == 0 && len as usize == info.len()).then_some(info)
}

/// Whether the peer has ended the kernel's connection, or it is over: what a receiver that wants to hear no more is not told.
pub fn is_ended_by_peer(fd: c_int) -> bool {
    !is_sealed() && info(fd).is_some_and(|info| matches!(info[0], CLOSE_WAIT | LAST_ACK | CLOSING | CLOSED))
}

/// Whether the kernel's connection is over, in both directions.
pub fn is_over(fd: c_int) -> bool {
    !is_sealed() && info(fd).is_some_and(|info| info[0] == CLOSED)
}

fn counts(fd: c_int) -> Option<Counts> {
    let info = info(fd).filter(|info| info[0] != CLOSED)?;
    let long = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().unwrap_or_default());
    let word = |at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().unwrap_or_default());
    let (not_sent, sent, again) = (word(144), long(200), long(208));
    let given = sent.checked_sub(again)?.checked_add(u64::from(not_sent))?;
    // The peer's FIN counts as a byte there, but not among those that wait to be read.
    let fin = matches!(info[0], CLOSE_WAIT | LAST_ACK | CLOSING);
    Some(Counts { acked: long(120), received: long(128).checked_sub(u64::from(fin))?, given })
}

/// How often positions are looked at that move.
const LOOKS: usize = 4;

/// Bytes that the program has given to the kernel to send, while it gives no more. None if the kernel does not tell.
pub fn bytes_sent(fd: c_int) -> Option<u64> {
    (0..LOOKS).find_map(|_| {
        let before = queued(fd, libc::TIOCOUTQ)?;
        let counts = counts(fd)?;
        // Counted twice: what is acknowledged and what is not is the same, but for an SYN that counts as a byte.
        let other = counts.acked.checked_add(queued(fd, libc::TIOCOUTQ).filter(|after| *after == before)?)?;
        (other == counts.given || other == counts.given + 1).then_some(counts.given)
    })
}

/// Bytes that the program has taken from the kernel, while it takes no more. None if more come just now.
pub fn bytes_taken(fd: c_int) -> Option<u64> {
    (0..LOOKS).find_map(|_| {
        let before = queued(fd, libc::FIONREAD)?;
        let received = counts(fd)?.received;
        queued(fd, libc::FIONREAD).filter(|after| *after == before).and_then(|unread| received.checked_sub(unread))
    })
}

/// Whether the kernel has bytes that nobody has read.
pub fn unread(fd: c_int) -> bool {
    queued(fd, libc::FIONREAD).is_some_and(|unread| unread > 0)
}

fn queued(fd: c_int, what: libc::Ioctl) -> Option<u64> {
    if is_sealed() {
        return None;
    }
    let mut count: c_int = 0;
    (call!(SYS_ioctl, fd, what, &raw mut count) == 0).then_some(count.max(0) as u64)
}

/// Nanoseconds on a clock that never goes back.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

thread_local! {
    static THREAD: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// Other processes may have what this one has: it was forked, or has forked.
static SHARES: AtomicBool = AtomicBool::new(false);

/// This process is about to fork.
pub fn share() {
    SHARES.store(true, Ordering::Release);
}

/// How many forks lie behind this process, and one.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// In a child: what is remembered of the parent's thread is wrong.
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The thread's number in the system.
pub fn thread_id() -> u64 {
    let generation = GENERATION.load(Ordering::Relaxed);
    let (known, id) = THREAD.get();
    if known == generation {
        return id;
    }
    let id = call!(SYS_gettid) as u64;
    THREAD.set((generation, id));
    id
}

/// Whether a thread of this number may hold what this process holds or shares with others since a fork. One whose process has
/// ended does not, whether its parent has asked or not.
pub fn thread_lives(id: u64) -> bool {
    let found = || match SHARES.load(Ordering::Acquire) {
        true if has_ended(id as u32) => -c_long::from(libc::ESRCH),
        true => call!(SYS_tkill, id as c_int, 0),
        // A peer says what it likes in memory that it has, too: no thread of another process has a lock of this one's.
        // A child that shares its memory until it is another program has a number of its own.
        false => match KNOWN.load(Ordering::Relaxed) as u32 {
            0 => call!(SYS_tgkill, process_id(), id as c_int, 0),
            known => call!(SYS_tgkill, known, id as c_int, 0),
        },
    };
    // What is no number of a thread is none.
    is_sealed()
        || c_int::try_from(id).is_ok() && ![libc::ESRCH, libc::EINVAL].map(|e| -c_long::from(e)).contains(&found())
}

static KNOWN: AtomicU64 = AtomicU64::new(0);

/// What tells this process from others: its number, and of which of the kernel's tables of them it is.
pub fn process() -> u64 {
    let (known, id) = (KNOWN.load(Ordering::Relaxed), u64::from(process_id()));
    // The same from beginning to end: the program may leave the file that tells it.
    if known as u32 == id as u32 { known } else { id | inode(c"/proc/thread-self/ns/pid") << 32 }
}

/// A process begins.
pub fn know_process() {
    KNOWN.store(process(), Ordering::Relaxed);
}

/// Whether such a process has ended, whether its parent has asked or not. What cannot be found out lives.
pub fn is_dead(process: u64) -> bool {
    !is_sealed() && process >> 32 != 0 && process >> 32 == self::process() >> 32 && has_ended(process as u32)
}

/// The same of a process by its number alone.
fn has_ended(process: u32) -> bool {
    match call!(SYS_pidfd_open, process, 0) {
        fd @ 0.. => {
            let dead = poll(&mut [libc::pollfd { fd: fd as c_int, events: libc::POLLIN, revents: 0 }], 0) > 0;
            call!(SYS_close, fd);
            dead
        }
        error => error == -c_long::from(libc::ESRCH),
    }
}

/// Writes what a program may have lent for reading alone.
pub fn give(to: *mut u8, from: *const u8, len: usize) {
    if is_sealed() {
        return;
    }
    let part = |at: *const u8| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
    let (from, to) = (part(from), part(to));
    call!(SYS_process_vm_writev, process_id(), &raw const from, 1usize, &raw const to, 1usize, 0usize);
}

/// Lets others have the core.
pub fn give_way() {
    match is_sealed() {
        true => std::hint::spin_loop(),
        false => drop(call!(SYS_sched_yield)),
    }
}

/// This process's number, asked of the kernel: in a child that shares its parent's memory it is another.
pub fn process_id() -> u32 {
    call!(SYS_getpid) as u32
}

/// What tells this thread's network namespace from others; 0 if that cannot be found out.
pub fn namespace() -> u64 {
    inode(c"/proc/thread-self/ns/net")
}

/// A file's number in its file system; 0 if that cannot be found out.
fn inode(path: &CStr) -> u64 {
    // SAFETY: all zeros are a stat.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    match call!(SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut found, 0) {
        0 => found.st_ino,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From here on this thread has no such call, as before Linux 5.16.
    fn take_away(number: c_long) {
        let line = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let lines = [
            line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number as u32),
            line(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
            line(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_ptr().cast_mut() };
        assert_eq!(call!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1usize, 0usize, 0usize, 0usize), 0);
        assert_eq!(call!(SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0usize, &raw const program), 0);
    }

    #[test]
    fn who_sleeps_without_the_newer_call_sleeps_too() {
        const WHILE: u64 = 20_000_000;
        let sleeps = std::thread::spawn(|| {
            take_away(libc::SYS_futex_waitv);
            let begin = now();
            assert_eq!(sleep_until(begin + WHILE, true), 0);
            now() - begin
        });
        assert!(sleeps.join().unwrap() >= WHILE);
    }
}
