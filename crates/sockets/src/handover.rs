//! Connections that go to users who know nothing of rings: another program that takes this one's place, the C library's own
//! reads and writes on standard input and output, a process that is passed a descriptor.
//!
//! Such a one gets an end of a connection of the kernel's instead, at whose other end a [`relay`] has the rings.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use remora_preload::next;

use crate::calls::{self, c_functions, c_names, plain};
use crate::link::Word;
use crate::sharers::Sharers;
use crate::socket::{self, STANDARD, Socket, Used, stays};
use crate::spin::Spin;
use crate::{gate, relay, signals, start, sys};

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
    } else if new == 0 && relay::is_last(new) {
        // Standard output came first.
        relay::both_ways();
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

/// A new descriptor of a socket with rings: the next program has it, unless that is said of it.
pub fn may_stay(socket: &Socket, new: c_int) {
    if !start::is_borrowed() && !socket.stays() && !sys::closes_on_exec(new) {
        socket.stays.store(stays::UNSAID, Ordering::Relaxed);
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
unsafe fn leaving(args: *const *const c_char) -> Leaving {
    let _section = signals::Section::enter();
    let mut left: Vec<&'static Socket> = Vec::new();
    let mut plain: Vec<(&'static Socket, bool)> = Vec::new();
    for (fd, socket) in socket::descriptors() {
        let Some(link) = socket.link() else {
            if !start::is_borrowed() && socket.sharers().is_some() {
                let closes = sys::closes_on_exec(fd);
                match plain.iter_mut().find(|(known, _)| std::ptr::eq(*known, socket)) {
                    Some((_, all)) => *all &= closes,
                    None => plain.push((socket, closes)),
                }
            }
            continue;
        };
        let alone = !start::is_borrowed() && link.own(Word::Holders) == 1;
        let is_meant = match socket.stays.load(Ordering::Relaxed) {
            stays::NO => false,
            stays::SAID => true,
            // SAFETY: as the caller promises.
            _ => alone || unsafe { is_named(args, fd) },
        };
        if is_meant && is_own(socket, fd) {
            give_back(socket, fd, None, true);
        } else if !start::is_borrowed()
            && link.own(Word::Holders) > 1
            && left.iter().all(|was| !std::ptr::eq(*was, socket))
        {
            // The new program has it no more, but lives on by this one's number.
            link.part(sys::process());
            left.push(socket);
        }
    }
    let plain: Vec<_> = plain.into_iter().filter(|(_, all)| *all).map(|(socket, _)| socket).collect();
    plain.iter().filter_map(|socket| socket.sharers()).for_each(Sharers::part);
    Leaving(left, plain)
}

/// Connections that this process has no more, unless it stays after all: those with rings, and those without.
struct Leaving(Vec<&'static Socket>, Vec<&'static Socket>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let _section = signals::Section::enter();
        for link in self.0.iter().filter_map(|socket| socket.link()) {
            link.add_own(Word::Holders, 1);
            link.join(sys::process());
        }
        for sharers in self.1.iter().filter_map(|socket| socket.sharers()) {
            sharers.expect();
            sharers.join();
        }
        self.0.clear();
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
    let Some(names) = gate::names(socket, fd) else { return };
    let Some(end) = relay::begin(socket, fd, input) else { return };
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

/// The C library itself is about to read and write what a descriptor leads to: that is the kernel's from now on. False if it
/// cannot be.
pub fn to_c_library(used: &Used, fd: c_int) -> bool {
    used.never();
    if used.link().is_none() {
        return true;
    }
    let stays = used.stays();
    give_back(used.address(), fd, None, true);
    let Some(new) = socket::find(fd).filter(|new| !new.same(used)) else { return false };
    new.never();
    if !stays {
        socket::descriptors().filter(|(_, other)| new.same(other)).for_each(|(fd, _)| sys::close_on_exec(fd));
    }
    true
}

// No section: nobody comes back from these, and who only borrows this memory leaves it to its owner as it was.
c_names! {
    fn execve(path: *const c_char, args: *const *const c_char, env: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        let _leaving = unsafe { leaving(args) };
        next!(execve: fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int, path, args, env)
    }

    fn execv(path: *const c_char, args: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        let _leaving = unsafe { leaving(args) };
        next!(execv: fn(*const c_char, *const *const c_char) -> c_int, path, args)
    }

    fn execvp(file: *const c_char, args: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        let _leaving = unsafe { leaving(args) };
        next!(execvp: fn(*const c_char, *const *const c_char) -> c_int, file, args)
    }

    fn execvpe(file: *const c_char, args: *const *const c_char, env: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        let _leaving = unsafe { leaving(args) };
        next!(execvpe: fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int, file, args, env)
    }

    fn fexecve(fd: c_int, args: *const *const c_char, env: *const *const c_char) -> c_int {
        // SAFETY: as the program promises.
        let _leaving = unsafe { leaving(args) };
        next!(fexecve: fn(c_int, *const *const c_char, *const *const c_char) -> c_int, fd, args, env)
    }

    fn execveat(
        folder: c_int, path: *const c_char, args: *const *const c_char, env: *const *const c_char, flags: c_int
    ) -> c_int {
        // SAFETY: as the program promises.
        let _leaving = unsafe { leaving(args) };
        next!(execveat: fn(c_int, *const c_char, *const *const c_char, *const *const c_char, c_int) -> c_int,
            folder, path, args, env, flags)
    }
}

c_functions! {
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        let from = for_actions(actions.addr(), fd, new).unwrap_or(fd);
        plain!(posix_spawn_file_actions_adddup2: fn(*mut c_void, c_int, c_int) -> c_int, actions, from, new)
    }

    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int {
        FOR_ACTIONS.lock().retain(|made| made.actions != actions.addr());
        plain!(posix_spawn_file_actions_destroy: fn(*mut c_void) -> c_int, actions)
    }
}

/// Before a fork.
pub fn hold() {
    FOR_ACTIONS.hold();
}

/// After it, in both.
pub fn release() {
    FOR_ACTIONS.release();
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
            relay::both_ways();
        }
        return Some(made.end.as_raw_fd());
    }
    let end = relay::begin(&used, fd, !output_only)?;
    let from = end.as_raw_fd();
    FOR_ACTIONS.lock().push(ForActions { actions, of, end });
    Some(from)
}

/// What is passed beside bytes instead of what the program gave.
pub struct Passed {
    pub control: Vec<u8>,
    /// Descriptors of the kernel's connections that stand there: when it is passed they may be closed.
    _ends: Vec<OwnedFd>,
}

/// What is passed beside bytes, with descriptors of the kernel's connections instead of those with rings; nothing if there are
/// none of these. A negative errno if one cannot be had: who was passed a descriptor with rings would take bells for data.
pub fn passing(control: &[u8]) -> Result<Option<Passed>, isize> {
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
                if used.link().is_none() {
                    continue;
                }
                let end = relay::begin(&used, fd, true).ok_or(-(libc::ENOMEM as isize))?;
                place.copy_from_slice(&end.as_raw_fd().to_ne_bytes());
                ends.push(end);
            }
        }
        at += len.next_multiple_of(size_of::<usize>());
    }
    Ok((!ends.is_empty()).then_some(Passed { control, _ends: ends }))
}
