//! The way to another rack: connections that the gate of this one makes, and what programs take their addresses for.
//!
//! Before a program's `connect` the gate is asked whether it leads there; if so, and the kernel has no way, the program's socket is
//! connected to the gate instead. What it is told of its own address and its peer's is as if it had reached the peer itself.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{sockaddr, socklen_t};
use remora_rack::Refusal;
use remora_rack::frame::{GATE_SOURCE, GateAnswer, LONGEST, Question, gate_name};
use rustix::event::{PollFd, PollFlags};
use rustix::net;

use crate::own::Own;
use crate::rack::connect_to;
use crate::socket::Socket;
use crate::spin::Spin;
use crate::{messages, rack, signals, sys};

/// How long the gate may take to answer, nanoseconds: longer than it gives the other rack.
const PATIENCE: u64 = 8_000_000_000;
/// The same where the program does not wait, or not for long: after that the kernel has its turn.
pub const SHORT: u64 = 250_000_000;
/// So long does it hold what the gate has said of an address, nanoseconds: links go down.
const BELIEVED: u64 = 50_000_000;
/// So long after there was no gate nobody asks again, nanoseconds.
const PAUSE: u64 = 1_000_000_000;

/// What a program is to take a connection's addresses for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    pub own: Option<SocketAddr>,
    pub peer: SocketAddr,
}

static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
/// When there was one last.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Where a program has connected to last, what the gate has said of it, and until when that holds.
static LAST: Spin<Option<(IpAddr, GateAnswer, u64)>> = Spin::new(None);

/// A connection to the gate, if there is one.
pub fn call() -> Option<Own> {
    let now = sys::now();
    if now < NOT_BEFORE.load(Ordering::Relaxed) {
        return None;
    }
    let gate = connect_to(&gate_name(rustix::process::geteuid().as_raw()));
    let (word, until) = if gate.is_some() { (&SEEN, now) } else { (&NOT_BEFORE, now + PAUSE) };
    word.store(until, Ordering::Relaxed);
    gate
}

/// Whether there has been one just now.
fn is_there() -> bool {
    sys::now() < SEEN.load(Ordering::Relaxed) + PAUSE || call().is_some()
}

/// Says something to the gate, with a descriptor beside it or none.
pub fn say(gate: &Own, question: &Question, file: Option<BorrowedFd<'_>>) -> Option<()> {
    messages::say(gate, question.emit().as_slice(), file).ok()
}

/// Asks the gate, if there is one.
fn ask(question: &Question, patience: u64) -> Option<GateAnswer> {
    let gate = call()?;
    say(&gate, question, None)?;
    hear(&gate, patience).map(|(answer, _)| answer)
}

/// What the gate answers, and what comes with that.
pub fn hear(gate: &Own, patience: u64) -> Option<(GateAnswer, Option<OwnedFd>)> {
    let end = sys::now() + patience;
    let mut bytes = [0; LONGEST];
    loop {
        match messages::hear(gate, &mut bytes) {
            Ok((len, file)) => return Some((GateAnswer::parse(&bytes[..len]).ok()?, file)),
            Err(rustix::io::Errno::AGAIN) if sys::now() < end => {
                let mut fds = [PollFd::new(gate, PollFlags::IN)];
                let left = (end - sys::now().min(end)) as i64;
                let timeout = rustix::time::Timespec { tv_sec: left / 1_000_000_000, tv_nsec: left % 1_000_000_000 };
                // A signal of the program's is heard when it is back in its own call.
                signals::apart(|| {
                    let _ = rustix::event::poll(&mut fds, Some(&timeout));
                });
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// What became of a `connect`.
pub enum Reach {
    /// The kernel is to do it.
    Kernel,
    /// To be connected here instead.
    Gate(SocketAddr),
    /// It is to fail so.
    Failed(c_int),
}

/// A socket is to be connected to `to`.
pub fn reach(socket: &Socket, fd: c_int, to: SocketAddr) -> Reach {
    let to = plain(to);
    // Of a connection that it had before.
    if socket.names.lock().is_some() && sys::is_over(fd) {
        *socket.names.lock() = None;
    }
    let far = !sys::is_sealed() && !to.ip().is_loopback() && !to.ip().is_unspecified() && to.port() != 0;
    if !far || socket.names.lock().is_some() || sys::now() < NOT_BEFORE.load(Ordering::Relaxed) {
        return Reach::Kernel;
    }
    match whither(to.ip()) {
        Some(GateAnswer::Leads) => {}
        answer => {
            socket.far.store(answer == Some(GateAnswer::Direct), Ordering::Relaxed);
            return Reach::Kernel;
        }
    }
    let Some(own) = bound(fd) else { return Reach::Kernel };
    // SAFETY: the descriptor is the program's, and open while its call lasts.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let blocks = rustix::fs::fcntl_getfl(borrowed).is_ok_and(|flags| !flags.contains(rustix::fs::OFlags::NONBLOCK));
    // Who has a limit to it (`SO_SNDTIMEO`) is to have it from the kernel, too.
    let waits = blocks && socket.tx_timeout.load(Ordering::Relaxed) == 0;
    match ask(&Question::Reach { to, own }, if waits { PATIENCE } else { SHORT }) {
        Some(GateAnswer::Way { at, own }) => {
            *socket.names.lock() = Some(Names { own: Some(own), peer: to });
            Reach::Gate(at)
        }
        Some(GateAnswer::Refused(Refusal::Refused)) => Reach::Failed(libc::ECONNREFUSED),
        _ => Reach::Kernel,
    }
}

/// Whether the gate leads there.
fn whither(to: IpAddr) -> Option<GateAnswer> {
    let now = sys::now();
    let known = LAST.lock().filter(|(known, _, until)| *known == to && now < *until);
    known.map(|(_, answer, _)| answer).or_else(|| {
        let answer = ask(&Question::Whither { to }, SHORT)?;
        *LAST.lock() = Some((to, answer, now + BELIEVED));
        Some(answer)
    })
}

/// What a socket is bound to, after it has got a port. None if it is connected already, or cannot have one.
fn bound(fd: c_int) -> Option<SocketAddr> {
    // SAFETY: the descriptor is the program's, and open while its call lasts.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let own = || SocketAddr::try_from(net::getsockname(socket).ok()?).ok();
    let at = own()?;
    if at.port() != 0 {
        return net::getpeername(socket).is_err().then_some(plain(at));
    }
    // Else the kernel may put it off until the socket connects.
    sys::set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 0);
    net::bind(socket, &at).ok()?;
    own().map(plain).filter(|at| at.port() != 0)
}

/// What a connection's ends are called.
pub fn names(socket: &Socket, fd: c_int) -> Option<Names> {
    let ((own, peer), told) = (rack::addresses(fd)?, *socket.names.lock());
    Some(Names { own: told.and_then(|told| told.own).or(Some(own)), peer: told.map_or(peer, |told| told.peer) })
}

/// A connection was accepted: if it is the gate's, who is behind it?
pub fn accepted(socket: &Socket, fd: c_int) {
    if sys::is_sealed() {
        return;
    }
    // SAFETY: the descriptor was just made for the program.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let peer = net::getpeername(borrowed).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    let Some(peer) = peer.map(plain) else { return };
    if !peer.ip().is_loopback() {
        // It may be of the other rack.
        return socket.far.store(is_there(), Ordering::Relaxed);
    }
    if peer.ip() != IpAddr::V4(GATE_SOURCE) && peer.ip() != IpAddr::V6(Ipv6Addr::LOCALHOST) {
        return;
    }
    if let Some(GateAnswer::Origin { from }) = ask(&Question::Whence { peer }, PATIENCE) {
        *socket.names.lock() = Some(Names { own: None, peer: from });
    }
}

fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The address that a program passes.
///
/// # Safety
///
/// So many bytes stand there.
pub unsafe fn address(at: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if at.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: as the caller promises; longer ones are looked at only when they are that long.
    unsafe {
        match c_int::from((*at).sa_family) {
            libc::AF_INET if len as usize >= size_of::<libc::sockaddr_in>() => {
                let four = at.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(four.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::from((ip, u16::from_be(four.sin_port))))
            }
            libc::AF_INET6 if len as usize >= size_of::<libc::sockaddr_in6>() => {
                let six = at.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(six.sin6_addr.s6_addr);
                // An address of one link is that link's.
                (six.sin6_scope_id == 0).then(|| SocketAddr::from((ip, u16::from_be(six.sin6_port))))
            }
            _ => None,
        }
    }
}

/// An address as the kernel would give it for a socket of this family.
pub enum Written {
    Four(libc::sockaddr_in),
    Six(libc::sockaddr_in6),
}

impl Written {
    pub fn new(family: c_int, address: SocketAddr) -> Self {
        match address.ip() {
            IpAddr::V4(ip) if family == libc::AF_INET => {
                let sin_addr = libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
                let (sin_family, sin_port) = (libc::AF_INET as libc::sa_family_t, address.port().to_be());
                Self::Four(libc::sockaddr_in { sin_family, sin_port, sin_addr, sin_zero: [0; 8] })
            }
            ip => {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                Self::Six(libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                    sin6_scope_id: 0,
                })
            }
        }
    }

    pub fn as_ptr(&self) -> (*const sockaddr, socklen_t) {
        match self {
            Self::Four(four) => (std::ptr::from_ref(four).cast(), size_of_val(four) as socklen_t),
            Self::Six(six) => (std::ptr::from_ref(six).cast(), size_of_val(six) as socklen_t),
        }
    }

    /// Writes it where a program wants it, as far as there is room, and says how long it is.
    ///
    /// # Safety
    ///
    /// `room` bytes may be written at `at`, and a length at `len`.
    pub unsafe fn give(&self, at: *mut sockaddr, room: socklen_t, len: *mut socklen_t) {
        let (bytes, whole) = self.as_ptr();
        // SAFETY: as the caller promises.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.cast::<u8>(), at.cast::<u8>(), room.min(whole) as usize);
            len.write_unaligned(whole);
        }
    }
}
