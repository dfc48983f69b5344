//! Connections that go to users who know nothing of rings: another program that takes this one's place, the C library's own
//! reads and writes on standard input and output, a process that is passed a descriptor.
//!
//! Such a one gets an end of a connection of the kernel's instead. At its other end a process of this library's, the *relay*,
//! passes the bytes on: it has the rings as a child of `fork` has them. So every program can have the connection, at the price
//! of a copy more.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{POLLIN, POLLOUT, pollfd, size_t};
use remora_preload::{errno, next};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::calls::{self, c_functions};
use crate::gate::Names;
use crate::link::Word;
use crate::rack;
use crate::socket::{self, STANDARD, Socket, stays};
use crate::spin::Spin;
use crate::{start, sys};

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

/// A descriptor that is open for a list of actions, by the list's address, which a program is to be started with.
struct ForActions {
    actions: usize,
    /// The kernel's number of the connection that it stands for.
    of: u64,
    end: OwnedFd,
}

static FOR_ACTIONS: Spin<Vec<ForActions>> = Spin::new(Vec::new());

/// A descriptor has become the copy `new` of another one.
pub fn copied(fd: c_int, new: c_int) {
    let Some(used) = socket::find(fd) else { return };
    if start::is_borrowed() {
        // The kernel's connection has a user now that this table does not know.
        used.never();
    }
    if used.link().is_some() && is_own(&used, new) {
        if STANDARD.contains(&new) {
            give_back(used.address(), fd, Some(new), new == 0);
        }
    } else if new == 0 && sys::cookie(new).is_some_and(|cookie| cookie == LAST.load(Ordering::Acquire)) {
        // Standard output came first.
        both_ways();
    }
}

fn both_ways() {
    // SAFETY: null, or a cell of the page that is never unmapped.
    if let Some(cell) = unsafe { LAST_CELL.load(Ordering::Acquire).as_ref() } {
        let _ = cell.compare_exchange(OUTPUT_ONLY, BOTH_WAYS, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// A program has said of a descriptor whether one that takes its place is to have it.
pub fn said(fd: c_int, stays: bool) {
    let Some(used) = socket::find(fd) else { return };
    let ringed = used.link().is_some();
    if start::is_borrowed() {
        match stays {
            true if ringed && is_own(used.address(), fd) => give_back(used.address(), fd, None, true),
            true => used.never(),
            false => {}
        }
        return;
    }
    used.stays.store(if stays { stays::SAID } else { stays::NO }, Ordering::Relaxed);
    if ringed && stays {
        sys::close_on_exec(fd);
    }
}

/// Whether a descriptor leads to the socket in the kernel, too: in a child that borrows this memory it may not.
pub fn is_own(socket: &Socket, fd: c_int) -> bool {
    sys::cookie(fd) == Some(socket.cookie.load(Ordering::Relaxed))
}

/// Another program is about to take this one's place: what it is to have becomes the kernel's. That is what nobody else has,
/// what it was said of, and what the arguments name: not what a server has merely left open, as a relay would take its input.
///
/// # Safety
///
/// `args` is null or a list of strings that ends in null.
unsafe fn leaving(args: *const *const c_char) {
    for (fd, socket) in socket::descriptors() {
        let Some(link) = socket.link() else { continue };
        let alone = !start::is_borrowed() && link.own(Word::Holders) == 1;
        let is_meant = match socket.stays.load(Ordering::Relaxed) {
            stays::NO => false,
            stays::SAID => true,
            // SAFETY: as the caller promises.
            _ => alone || unsafe { is_named(args, fd) },
        };
        if is_meant && is_own(socket, fd) {
            give_back(socket, fd, None, true);
        }
    }
}

/// Whether a number stands in one of these strings.
///
/// # Safety
///
/// As of [`leaving`].
unsafe fn is_named(args: *const *const c_char, number: c_int) -> bool {
    let text = number.to_string();
    // SAFETY: as the caller promises.
    let at = |index| unsafe { args.add(index).read() };
    let mut strings = (0..if args.is_null() { 0 } else { usize::MAX }).map(at).take_while(|arg| !arg.is_null());
    strings.any(|arg| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { CStr::from_ptr(arg) }.to_bytes();
        bytes.split(|byte| !byte.is_ascii_digit()).any(|digits| digits == text.as_bytes())
    })
}

/// The descriptors of this process that lead to a socket, and its `new` one, lead to the kernel's connection from now on.
/// `input`: what comes from the peer is for their user. If it cannot be, all stays as it is.
fn give_back(socket: &'static Socket, fd: c_int, new: Option<c_int>, input: bool) {
    let Some(names) = names(fd) else { return };
    let Some(end) = relayed(socket, fd, input) else { return };
    let known = socket::descriptors().filter(|(_, other)| std::ptr::eq(*other, socket)).map(|(fd, _)| fd);
    let mut fds: Vec<c_int> = known.chain(new).filter(|fd| is_own(socket, *fd)).collect();
    fds.sort_unstable();
    fds.dedup();
    let stays = new.is_none();
    let mut first = None;
    for fd in fds {
        if !start::is_borrowed() {
            calls::closing(fd);
        }
        let flags = if stays || STANDARD.contains(&fd) { 0 } else { libc::O_CLOEXEC };
        sys::call!(SYS_dup3, end.as_raw_fd(), fd, flags);
        if start::is_borrowed() {
            continue;
        }
        match first {
            Some(first) => socket::copy(first, fd),
            None => {
                socket::add(fd);
                first = Some(fd);
                if let Some(added) = socket::find(fd) {
                    *added.names.lock() = Some(names);
                }
            }
        }
    }
}

/// The program's end of a connection of the kernel's, at whose other end a relay has the socket's rings.
fn relayed(socket: &Socket, fd: c_int, input: bool) -> Option<OwnedFd> {
    let link = socket.link().filter(|_| !sys::is_sealed())?;
    let (end, other) = pair(names(fd)?.peer.is_ipv4())?;
    if link.own(Word::NonBlocking) != 0 {
        rustix::io::ioctl_fionbio(&end, true).ok()?;
    }
    let cell = start::cell();
    // SAFETY: null, or a cell of the page that is never unmapped.
    let shared = unsafe { cell.as_ref() }?;
    shared.store(if input { BOTH_WAYS } else { OUTPUT_ONLY }, Ordering::Release);
    // Twice, so that it is no child of the program's. Signals of the one in between are nobody's business either.
    // SAFETY: all zeros are the default action.
    let (default, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: places of our own.
    unsafe { libc::sigaction(libc::SIGCHLD, &raw const default, &raw mut before) };
    // SAFETY: the child does only what one of a process with many threads may: it has this library's locks, and the C
    // library's own.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        match unsafe { libc::fork() } {
            0 => {
                drop(end);
                relay(fd, other.as_raw_fd(), shared);
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
    let stands = child > 0 && (status == 0 || errno() == libc::ECHILD);
    // SAFETY: as above.
    unsafe { libc::sigaction(libc::SIGCHLD, &raw const before, std::ptr::null_mut()) };
    if !stands {
        shared.store(0, Ordering::Release);
        return None;
    }
    LAST_CELL.store(cell, Ordering::Release);
    LAST.store(sys::cookie(end.as_raw_fd())?, Ordering::Release);
    Some(end)
}

/// What a connection's ends are called.
fn names(fd: c_int) -> Option<Names> {
    rack::addresses(fd).map(|(own, peer)| Names { own: Some(own), peer })
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
fn relay(conn: c_int, other: c_int, cell: &AtomicU32) -> ! {
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

c_functions! {
    fn execve(path: *const c_char, args: *const *const c_char, env: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        unsafe { leaving(args) };
        next!(execve: fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int, path, args, env)
    }

    fn execv(path: *const c_char, args: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        unsafe { leaving(args) };
        next!(execv: fn(*const c_char, *const *const c_char) -> c_int, path, args)
    }

    fn execvp(file: *const c_char, args: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        unsafe { leaving(args) };
        next!(execvp: fn(*const c_char, *const *const c_char) -> c_int, file, args)
    }

    fn execvpe(file: *const c_char, args: *const *const c_char, env: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        unsafe { leaving(args) };
        next!(execvpe: fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int, file, args, env)
    }

    fn fexecve(fd: c_int, args: *const *const c_char, env: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        unsafe { leaving(args) };
        next!(fexecve: fn(c_int, *const *const c_char, *const *const c_char) -> c_int, fd, args, env)
    }

    fn execveat(
        folder: c_int, path: *const c_char, args: *const *const c_char, env: *const *const c_char, flags: c_int
    ) -> c_int {
        // SAFETY: as the program promises.
        unsafe { leaving(args) };
        next!(execveat: fn(c_int, *const c_char, *const *const c_char, *const *const c_char, c_int) -> c_int,
            folder, path, args, env, flags)
    }

    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        let from = for_actions(actions.addr(), fd, new).unwrap_or(fd);
        next!(posix_spawn_file_actions_adddup2: fn(*mut c_void, c_int, c_int) -> c_int, actions, from, new)
    }

    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int {
        FOR_ACTIONS.lock().retain(|made| made.actions != actions.addr());
        next!(posix_spawn_file_actions_destroy: fn(*mut c_void) -> c_int, actions)
    }
}

/// The descriptor that a program to be started is to have as `new`, if not `fd`.
fn for_actions(actions: usize, fd: c_int, new: c_int) -> Option<c_int> {
    let used = socket::find(fd)?;
    used.never();
    used.link()?;
    let of = used.cookie.load(Ordering::Relaxed);
    let output_only = new == 1 || new == 2;
    if let Some(made) = FOR_ACTIONS.lock().iter().find(|made| (made.actions, made.of) == (actions, of)) {
        if !output_only {
            both_ways();
        }
        return Some(made.end.as_raw_fd());
    }
    let end = relayed(used.address(), fd, !output_only)?;
    let from = end.as_raw_fd();
    FOR_ACTIONS.lock().push(ForActions { actions, of, end });
    Some(from)
}

/// What is passed beside bytes, with descriptors of the kernel's connections instead of those with rings, and these, which may
/// be closed when it is passed.
pub fn passing(control: &[u8]) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    const HEAD: usize = size_of::<libc::cmsghdr>();
    const WORD: usize = size_of::<c_int>();
    let (mut control, mut ends, mut at) = (control.to_vec(), Vec::new(), 0);
    while let Some(head) = control.get(at..at + HEAD) {
        // SAFETY: so many bytes, and all of them make a header.
        let head: libc::cmsghdr = unsafe { head.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let len: usize = head.cmsg_len as _;
        if len < HEAD || at + len > control.len() {
            break;
        }
        if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for place in control[at + HEAD..at + len].chunks_exact_mut(WORD) {
                let fd = c_int::from_ne_bytes(place.try_into().unwrap_or_default());
                let Some(used) = socket::find(fd) else { continue };
                used.never();
                if let Some(end) = relayed(used.address(), fd, true) {
                    place.copy_from_slice(&end.as_raw_fd().to_ne_bytes());
                    ends.push(end);
                }
            }
        }
        at += len.next_multiple_of(size_of::<usize>());
    }
    (!ends.is_empty()).then_some((control, ends))
}
