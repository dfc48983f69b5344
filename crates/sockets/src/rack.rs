//! The way to the rack's daemon: which connections this process has, and where their buffers are.
//!
//! Nothing here waits: what is said is said without blocking, and answers are picked up by later calls. Without a daemon, or
//! with one that does not listen, connections stay the kernel's.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use remora_memory::Buffer;
use remora_rack::frame::{LONGEST, Reply, Request};
use remora_rack::{Endpoint, Key, SECTION_BYTES};
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

use crate::link::{LINK_BYTES, Link};
use crate::own::Own;
use crate::socket::{self, Socket, state};
use crate::spin::Spin;
use crate::{messages, stream, sys};

/// So long after a failure nobody tries again, nanoseconds.
const PAUSE: u64 = 1_000_000_000;

/// A connection to what this user has listening under a name, in this network namespace.
pub fn connect_to(name: &str) -> Option<Own> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = Own::new(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?);
    net::connect(&socket, &net::SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?).ok()?;
    // Anybody may listen under a name.
    let ours = sockopt::socket_peercred(&socket).ok()?.uid == rustix::process::geteuid();
    ours.then_some(socket)
}

struct Daemon {
    socket: Option<Own>,
    /// Ends that wait for their other one.
    waiting: Option<HashMap<Endpoint, &'static Socket>>,
    /// Ends that are closed, of which there was no room to tell it: it would keep their buffers.
    untold: Vec<Request>,
    not_before: u64,
}

static DAEMON: Spin<Daemon> = Spin::new(Daemon { socket: None, waiting: None, untold: Vec::new(), not_before: 0 });

/// A connection that ends sooner than this after the daemon was told of it was not worth a buffer, nanoseconds.
const WORTH: u64 = 10_000_000;
/// Calls of a connection of which nothing is known.
const AFTER: u32 = 8;
/// How often these double at most.
const DOUBLED: u32 = 6;

/// How many connections in a row ended too soon.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// `REMORA_RACK_AFTER`, or 0.
fn asked_for() -> u32 {
    static ASKED: OnceLock<u32> = OnceLock::new();
    *ASKED.get_or_init(|| {
        let text = std::env::var("REMORA_RACK_AFTER").ok();
        text.and_then(|text| text.parse().ok()).map_or(0, |calls: u32| calls.max(1))
    })
}

/// Calls on a connection after which it is worth a buffer. Who has had many for nothing waits ever longer.
pub fn worth_it() -> u32 {
    match asked_for() {
        0 => AFTER << IN_VAIN.load(Ordering::Relaxed).min(DOUBLED),
        after => after,
    }
}

/// A connection that the daemon was told of has ended, so many nanoseconds later.
pub fn ended(lived: u64) {
    match lived < WORTH {
        true => IN_VAIN.store(IN_VAIN.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed),
        false => IN_VAIN.store(0, Ordering::Relaxed),
    }
}

/// Tells the daemon of a connection.
pub fn attach(socket: &'static Socket, fd: c_int) {
    let mut daemon = DAEMON.lock();
    // Who only tells it of connections that end soon would never hear it, and there is no room for its answers then.
    daemon.hear_all();
    let mut known = socket.endpoint.lock();
    // Another connection may take its place.
    let _still = socket.settling.lock();
    let Some(endpoint) = endpoint_of(fd) else { return socket.never() };
    let request = Request::Attach(endpoint);
    let new = socket.state.compare_exchange(state::PLAIN, state::WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if new && daemon.say(&request) {
        *known = Some(endpoint);
        socket.told.store(sys::now(), Ordering::Relaxed);
        daemon.waiting.get_or_insert_default().insert(endpoint, socket);
    } else if new {
        // Later perhaps.
        socket.ops.store(0, Ordering::Relaxed);
        let _ = socket.state.compare_exchange(state::WAITING, state::PLAIN, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// A connection is closed.
pub fn detach(endpoint: Endpoint, reusable: bool) {
    let mut daemon = DAEMON.lock();
    // Without a daemon too: a later connection may have the same addresses.
    if let Some(waiting) = &mut daemon.waiting {
        waiting.remove(&endpoint);
    }
    GIVEN.lock().retain(|(other, _)| *other != endpoint);
    if daemon.socket.is_none() {
        return;
    }
    let request = Request::Detach(endpoint, reusable);
    if !daemon.say(&request) && daemon.socket.is_some() {
        daemon.untold.push(request);
    }
}

/// Hears what the daemon has said. `fd` is a descriptor of the socket that asks: it is the only one that is given rings now,
/// as its descriptor is known.
pub fn hear(asking: &'static Socket, fd: c_int) {
    let mut daemon = DAEMON.lock();
    daemon.hear_all();
    drop(daemon);
    take(asking, fd);
}

/// Links that came while another socket asked; each is taken when its own socket has a call.
static GIVEN: Spin<Vec<(Endpoint, Link)>> = Spin::new(Vec::new());

fn take(socket: &'static Socket, fd: c_int) {
    let Some(known) = *socket.endpoint.lock() else { return };
    let mut given = GIVEN.lock();
    let Some(index) = given.iter().position(|(other, _)| *other == known) else { return };
    let (_, link) = given.swap_remove(index);
    drop(given);
    if socket.state() != state::WAITING {
        return;
    }
    if !(stream::fits(socket, fd) && begin(socket, link, fd)) {
        socket.never();
        let known = socket.endpoint.lock().take();
        if let Some(endpoint) = known {
            // Who was forked amid this may see the buffer.
            detach(endpoint, !socket.in_use_elsewhere());
        }
        return;
    }
    if let Some(link) = socket.link() {
        stream::progress(socket, link, fd);
    }
}

/// Gives a socket its rings. False if another process has it by now: none comes to have it before they are there.
fn begin(socket: &'static Socket, link: Link, fd: c_int) -> bool {
    let _no_fork = socket.settling.lock();
    let alone = !socket.in_use_elsewhere();
    if alone {
        stream::begin(socket, link, fd);
    }
    alone
}

impl Daemon {
    /// Hears all that it has said.
    fn hear_all(&mut self) {
        while let Some((reply, file)) = self.hear() {
            let Reply::Matched { endpoint, offset, .. } = reply;
            let found = self.waiting.as_mut().and_then(|waiting| waiting.remove(&endpoint));
            let Some(socket) = found else { continue };
            let link = file.and_then(|file| Buffer::map_fd(&file, SECTION_BYTES as usize).ok());
            let link = link.and_then(|section| Link::new(section, offset as usize, endpoint.end));
            match link {
                Some(link) => GIVEN.lock().push((endpoint, link)),
                None => socket.never(),
            }
        }
    }

    /// False if nobody hears it.
    fn say(&mut self, request: &Request) -> bool {
        if sys::is_sealed() {
            // It hears of this process's end.
            return false;
        }
        self.look_after();
        if self.socket.is_none() {
            let now = sys::now();
            if now < self.not_before {
                return false;
            }
            self.socket = connect();
            self.not_before = now + PAUSE;
        }
        while let Some(untold) = self.untold.pop() {
            if !self.send(&untold) {
                self.untold.push(untold);
                return false;
            }
        }
        self.send(request)
    }

    fn send(&mut self, request: &Request) -> bool {
        let Some(socket) = &self.socket else { return false };
        let bytes = request.emit();
        let sent = net::send(socket, bytes.as_slice(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if !matches!(sent, Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)) {
            self.end();
        }
        sent.is_ok()
    }

    /// It is no longer there, and takes this process for dead.
    fn end(&mut self) {
        self.socket = None;
        self.untold.clear();
    }

    /// The program may have closed the socket, and have something else by its number.
    fn look_after(&mut self) {
        if self.socket.as_ref().is_some_and(|socket| !socket.is_ours()) {
            self.end();
        }
    }

    fn hear(&mut self) -> Option<(Reply, Option<OwnedFd>)> {
        self.look_after();
        let socket = self.socket.as_ref()?;
        let mut bytes = [0; LONGEST];
        match messages::hear(socket, &mut bytes) {
            Ok((len, file)) if len > 0 => Some((Reply::parse(&bytes[..len]).ok()?, file)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            _ => {
                self.end();
                None
            }
        }
    }
}

/// A connection to the daemon of this user, in this network namespace.
fn connect() -> Option<Own> {
    let socket = connect_to(&remora_rack::frame::name(rustix::process::geteuid().as_raw()))?.high();
    let hello = Request::Hello { process: sys::process_id() }.emit();
    net::send(socket.as_fd(), hello.as_slice(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ok()?;
    Some(socket)
}

/// The addresses of a connection's two ends: this one's first.
pub fn addresses(fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    // SAFETY: the descriptor is the program's, and open while its call lasts.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let own = SocketAddr::try_from(net::getsockname(socket).ok()?).ok()?;
    Some((own, SocketAddr::try_from(net::getpeername(socket).ok()??).ok()?))
}

/// What the daemon knows an end of a connection by.
fn endpoint_of(fd: c_int) -> Option<Endpoint> {
    let plain = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    let (own, peer) = addresses(fd).map(|(own, peer)| (plain(own), plain(peer)))?;
    let (key, end) = (own != peer).then(|| Key::new(sys::namespace(), own, peer))?;
    Some(Endpoint { key, end, cookie: sys::cookie(fd)? })
}

/// Before a fork.
pub fn hold() {
    DAEMON.hold();
    GIVEN.hold();
}

/// After it, in the parent.
pub fn release() {
    GIVEN.release();
    DAEMON.release();
}

/// After it, in the child: the daemon knows the parent by this socket.
pub fn forked() {
    release();
    GIVEN.lock().clear();
    let mut daemon = DAEMON.lock();
    daemon.end();
    daemon.waiting = None;
    daemon.not_before = 0;
    drop(daemon);
    for socket in socket::all_raw() {
        if socket.state() != state::RINGED {
            *socket.endpoint.lock() = None;
        }
        let _ = socket.state.compare_exchange(state::WAITING, state::PLAIN, Ordering::AcqRel, Ordering::Acquire);
    }
}

const _: () = assert!(LINK_BYTES as u64 <= SECTION_BYTES);
