//! A process that passes bytes between a connection with rings and one of the kernel's, for who knows nothing of rings.
//!
//! It has the rings as a child of `fork` has them. So every program can have the connection, at the price of a copy more.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use libc::{POLLIN, POLLOUT, pollfd, size_t};
use remora_preload::errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::calls;
use crate::link::Word;
use crate::socket::{self, Socket};
use crate::{rack, sharers, sys};

/// Bytes under way in a relay, each way.
const ROOM: usize = 64 << 10;
/// So long after its start a relay may still be told to take input, milliseconds.
const UNDECIDED: u64 = 1000;
/// How often it looks for that, milliseconds.
const LOOK: c_int = 5;

/// In the cell of a relay, where no count of processes comes: what comes from the peer is for others, so far.
const OUTPUT_ONLY: u32 = u32::MAX - 1;
/// It is for the program.
const BOTH_WAYS: u32 = u32::MAX;

/// The relay that was made last, by the kernel's number of the program's end, and its cell.
static LAST: AtomicU64 = AtomicU64::new(0);
static LAST_CELL: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// The C library's own.
fn plain_fork() -> libc::pid_t {
    remora_preload::next!(fork: fn() -> libc::pid_t,)
}

/// The program's end of a connection of the kernel's, at whose other end a relay has the socket's rings.
pub fn begin(socket: &Socket, fd: c_int, input: bool) -> Option<OwnedFd> {
    let link = socket.link().filter(|_| !sys::is_sealed())?;
    let (end, other) = pair(rack::addresses(fd)?.1.is_ipv4())?;
    if link.own(Word::NonBlocking) != 0 {
        rustix::io::ioctl_fionbio(&end, true).ok()?;
    }
    for (which, limit) in [(Timeout::Recv, &socket.rx_timeout), (Timeout::Send, &socket.tx_timeout)] {
        let limit = Duration::from_nanos(limit.load(Ordering::Relaxed));
        sockopt::set_socket_timeout(&end, which, (!limit.is_zero()).then_some(limit)).ok()?;
    }
    let shared = sharers::word()?;
    shared.store(if input { BOTH_WAYS } else { OUTPUT_ONLY }, Ordering::Release);
    // Twice, so that it is no child of the program's. Signals of the one in between are nobody's business either.
    // SAFETY: all zeros are the default action.
    let (default, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: places of our own.
    unsafe { libc::sigaction(libc::SIGCHLD, &raw const default, &raw mut before) };
    // The child does only what one of a process with many threads may: it has this library's locks, and the C library's own.
    let child = plain_fork();
    if child == 0 {
        match plain_fork() {
            0 => {
                drop(end);
                run(fd, other.as_raw_fd(), shared);
            }
            relay => {
                close_all_but([-1, -1]);
                // SAFETY: ends this process, and nothing else of the program's.
                unsafe { libc::_exit(i32::from(relay < 0)) }
            }
        }
    }
    let mut status = -1;
    // SAFETY: a place of our own.
    while child > 0 && unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 && errno() == libc::EINTR {}
    // Another thread that waits for any child may have had it.
    let stands = child > 0 && (status == 0 || status == -1 && errno() == libc::ECHILD);
    // SAFETY: as above.
    unsafe { libc::sigaction(libc::SIGCHLD, &raw const before, std::ptr::null_mut()) };
    if !stands {
        shared.store(0, Ordering::Release);
        return None;
    }
    LAST_CELL.store(std::ptr::from_ref(shared).cast_mut(), Ordering::Release);
    LAST.store(sys::cookie(end.as_raw_fd())?, Ordering::Release);
    Some(end)
}

/// Whether a descriptor leads to the end that was made last.
pub fn is_last(fd: c_int) -> bool {
    sys::cookie(fd).is_some_and(|cookie| cookie == LAST.load(Ordering::Acquire))
}

/// What comes from the peer is for the program of the relay that was made last, too.
pub fn both_ways() {
    // SAFETY: null, or a cell of the page that is never unmapped.
    if let Some(cell) = unsafe { LAST_CELL.load(Ordering::Acquire).as_ref() } {
        let _ = cell.compare_exchange(OUTPUT_ONLY, BOTH_WAYS, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Two ends of a connection of the kernel's, of which this library knows nothing.
fn pair(ipv4: bool) -> Option<(OwnedFd, OwnedFd)> {
    let (family, here) = match ipv4 {
        true => (AddressFamily::INET, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        false => (AddressFamily::INET6, SocketAddr::from((Ipv6Addr::LOCALHOST, 0))),
    };
    let new = || net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok();
    let (listener, end) = (new()?, new()?);
    net::bind(&listener, &here).ok()?;
    net::listen(&listener, 1).ok()?;
    net::connect(&end, &net::getsockname(&listener).ok()?).ok()?;
    let (other, peer) = net::acceptfrom_with(&listener, SocketFlags::CLOEXEC).ok()?;
    // Somebody else may have been quicker.
    (peer? == net::getsockname(&end).ok()?).then_some(())?;
    for socket in [&end, &other] {
        sockopt::set_tcp_nodelay(socket, true).ok()?;
    }
    Some((end, other))
}

/// Closes the program's descriptors, which are not this process's: their ends would not be heard of. What is shared is counted.
fn close_all_but([low, high]: [c_int; 2]) {
    socket::descriptors().filter(|(fd, _)| *fd != low && *fd != high).for_each(|(fd, _)| calls::closing(fd));
    for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, c_int::MAX)] {
        if first <= last {
            sys::call!(SYS_close_range, first, last, 0);
        }
    }
}

/// Bytes on their way.
struct Way {
    bytes: Vec<u8>,
    from: usize,
    /// More may come.
    open: bool,
}

impl Way {
    fn new() -> Self {
        Self { bytes: Vec::with_capacity(ROOM), from: 0, open: true }
    }

    fn is_empty(&self) -> bool {
        self.from == self.bytes.len()
    }

    /// Takes what there is. False if the connection is broken.
    fn fill(&mut self, fd: c_int) -> bool {
        self.bytes.resize(ROOM, 0);
        // SAFETY: room for so many bytes.
        let got =
            unsafe { calls::recv(fd, self.bytes.as_mut_ptr().cast::<c_void>(), ROOM as size_t, libc::MSG_DONTWAIT) };
        self.from = 0;
        self.bytes.truncate(got.max(0) as usize);
        self.open = got != 0;
        got >= 0 || is_for_now()
    }

    /// Passes on what there is room for. False if nobody takes it.
    fn drain(&mut self, fd: c_int) -> bool {
        let rest = &self.bytes[self.from..];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: so many bytes.
        let sent = unsafe { calls::send(fd, rest.as_ptr().cast::<c_void>(), rest.len() as size_t, flags) };
        self.from += sent.max(0) as usize;
        sent >= 0 || is_for_now()
    }
}

fn is_for_now() -> bool {
    matches!(errno(), libc::EAGAIN | libc::EINTR)
}

/// How a relay ends.
enum End {
    /// All was passed on.
    Whole,
    /// Something was not: who is left hears of a reset.
    Broken,
}

/// Passes bytes between a connection with rings and the kernel's `other`, until both have ended.
fn run(conn: c_int, other: c_int, cell: &AtomicU32) -> ! {
    let name = c"remora-relay";
    // SAFETY: this process is of the program's making, and nothing of its own is left: no handler may run.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        libc::setsid();
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    close_all_but([conn.min(other), conn.max(other)]);
    let broken = matches!(pass(conn, other, cell), End::Broken);
    cell.store(0, Ordering::Release);
    if broken {
        sys::reset_on_close(other);
        let alone = socket::find(conn).is_some_and(|used| used.link().is_some_and(|link| link.own(Word::Holders) == 1));
        if alone {
            sys::reset_on_close(conn);
        }
    }
    // SAFETY: ours. The connection with rings ends as any: whoever has it beside this process still does.
    unsafe {
        calls::close(conn);
        libc::_exit(0)
    }
}

fn pass(conn: c_int, other: c_int, cell: &AtomicU32) -> End {
    let (mut down, mut up) = (Way::new(), Way::new());
    let begin = sys::now();
    loop {
        let both = cell.load(Ordering::Acquire) == BOTH_WAYS;
        let event = |on: bool, event: i16| if on { event } else { 0 };
        let of_conn = event(both && down.open && down.is_empty(), POLLIN) | event(!up.is_empty(), POLLOUT);
        let of_other = event(up.open && up.is_empty(), POLLIN) | event(!down.is_empty(), POLLOUT);
        if of_conn == 0 && of_other == 0 {
            return End::Whole;
        }
        let entry = |fd, events| pollfd { fd: if events == 0 { -1 } else { fd }, events, revents: 0 };
        let mut fds = [entry(conn, of_conn), entry(other, of_other)];
        let undecided = !both && sys::now() - begin < UNDECIDED * 1_000_000;
        // SAFETY: two entries.
        let ready = unsafe { calls::poll(fds.as_mut_ptr(), 2, if undecided { LOOK } else { -1 }) };
        if ready < 0 && !is_for_now() {
            return End::Broken;
        }
        let [of_conn, of_other] = fds.map(|entry| (entry.revents, entry.events));
        // What is over can be read and written, too, and says so then.
        let said =
            |(heard, asked): (i16, i16), event: i16| asked & event != 0 && heard & (event | !(POLLIN | POLLOUT)) != 0;
        if said(of_conn, POLLIN) {
            if !down.fill(conn) {
                return End::Broken;
            }
            if !down.open {
                sys::call!(SYS_shutdown, other, libc::SHUT_WR);
            }
        }
        if said(of_other, POLLIN) {
            if !up.fill(other) {
                return End::Broken;
            }
            if !up.open {
                if is_closed(other) {
                    return if down.is_empty() { End::Whole } else { End::Broken };
                }
                // SAFETY: as the program has ended it.
                unsafe { calls::shutdown(conn, libc::SHUT_WR) };
            }
        }
        if said(of_conn, POLLOUT) && !up.drain(conn) || said(of_other, POLLOUT) && !down.drain(other) {
            return End::Broken;
        }
    }
}

/// Whether nobody has the other end of a connection of this host's any more, rather than having ended one direction.
fn is_closed(fd: c_int) -> bool {
    let Some((own, peer)) = rack::addresses(fd) else { return true };
    let table = match own.is_ipv4() {
        true => "/proc/thread-self/net/tcp",
        false => "/proc/thread-self/net/tcp6",
    };
    let Ok(text) = std::fs::read_to_string(table) else { return true };
    let ports = |line: &str| {
        let mut words = line.split_whitespace();
        let mut port = || u16::from_str_radix(words.next()?.rsplit_once(':')?.1, 16).ok();
        Some((port()?, port()?))
    };
    let of_peer = text.lines().find(|line| {
        let rest = line.split_once(": ").map_or("", |(_, rest)| rest);
        ports(rest) == Some((peer.port(), own.port()))
    });
    // A socket that no descriptor leads to has no file.
    of_peer.and_then(|line| line.split_whitespace().nth(9)).is_none_or(|inode| inode == "0")
}
