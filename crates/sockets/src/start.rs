//! When the library is loaded, and when its process forks.

use std::collections::HashSet;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::heap::Heap;
use crate::link::Word;
use crate::socket::{self, Socket, state};
use crate::spin::Spin;
use crate::{epoll, own, rack, sharers, signals, sys};

#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap = Heap::new();

/// This process, but not a child that only borrows its memory until it becomes another program.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether this is such a child: what it closes is closed in the kernel alone.
pub fn is_borrowed() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != sys::process_id()
}

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let _section = signals::Section::enter();
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
    sharers::begin();
    // SAFETY: functions that live as long as the process.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    sys::know_process();
    inherited();
}

/// Sockets that the program that became this one has left open.
fn inherited() {
    let Ok(list) = std::fs::read_dir("/proc/self/fd") else { return };
    let fds: Vec<c_int> = list.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in fds.into_iter().filter(|fd| is_tcp(*fd)) {
        socket::add(fd);
        // Who has started this program may have it, too.
        if rack::addresses(fd).is_some()
            && let Some(used) = socket::find(fd)
        {
            used.never();
        }
    }
}

/// Whether a descriptor is a TCP socket.
pub fn is_tcp(fd: c_int) -> bool {
    sys::get_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
        && sys::get_int(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// Connections that are the kernel's stay so, and new ones too.
pub fn keep_to_kernel() {
    socket::keep_to_kernel();
    socket::hold();
    socket::all_raw().for_each(Socket::never);
    socket::release();
}

/// The program is about to forbid itself calls of the kernel's: connections that are the kernel's stay so.
pub fn sealing() {
    keep_to_kernel();
    epoll::sealing();
    sys::seal();
}

/// One process more has a socket.
fn share(socket: &Socket) {
    if let Some(link) = socket.link() {
        link.add_own(Word::Holders, 1);
        link.set_own(Word::Forked, 1);
        return;
    }
    if socket.state() == state::NEVER {
        return;
    }
    if socket.sharers.load(Ordering::Acquire).is_null() {
        socket.sharers.store(sharers::alone(), Ordering::Release);
    }
    match socket.sharers() {
        Some(sharers) => sharers.expect(),
        None => socket.state.store(state::NEVER, Ordering::Release),
    }
}

/// A process has a socket no more.
pub fn unshare(socket: &Socket) {
    if let Some(sharers) = socket.sharers() {
        socket.sharers.store(null_mut(), Ordering::Release);
        sharers.part();
    }
}

/// The sockets that were locked before a fork. The table may lead to others after it: other threads close and make some
/// meanwhile. One thread forks at a time.
static HELD: Spin<Vec<&'static Socket>> = Spin::new(Vec::new());

/// The thread that forked last, and the sockets of which it has counted one process more.
static COUNTED: Spin<(u64, Vec<&'static Socket>)> = Spin::new((0, Vec::new()));

/// A fork of this thread came to nothing: no process more has these sockets, which are in use meanwhile.
#[cfg(not(test))]
fn not_forked(used: &[socket::Used]) {
    let mut counted = COUNTED.lock();
    if counted.0 != sys::thread_id() {
        return;
    }
    let counted = std::mem::take(&mut counted.1);
    for socket in counted.into_iter().filter(|socket| used.iter().any(|used| used.same(socket))) {
        match (socket.link(), socket.sharers()) {
            (Some(link), _) => _ = link.add_own(Word::Holders, u64::MAX),
            (None, Some(sharers)) => sharers.expect_not(),
            (None, None) => {}
        }
    }
}

#[cfg(not(test))]
crate::calls::c_names! {
    fn fork() -> libc::pid_t {
        let begin = || {
            let _section = signals::Section::enter();
            socket::all_raw().filter_map(socket::hold_on).collect::<Vec<_>>()
        };
        let used = if is_borrowed() { Vec::new() } else { begin() };
        let child = remora_preload::next!(fork: fn() -> libc::pid_t,);
        let _section = signals::Section::enter();
        if child < 0 {
            let error = remora_preload::errno();
            not_forked(&used);
            remora_preload::set_errno(error);
        }
        drop(used);
        child
    }
}

/// Before a fork.
pub extern "C" fn prepare() {
    signals::begin();
    sys::share();
    socket::hold();
    rack::hold();
    // Several descriptors may lead to one.
    let mut seen = HashSet::new();
    let held: Vec<_> = socket::all_raw().filter(|socket| seen.insert(std::ptr::from_ref(*socket).addr())).collect();
    drop(seen);
    for socket in &held {
        socket.hold();
        share(socket);
    }
    *COUNTED.lock() = (sys::thread_id(), held.clone());
    *HELD.lock() = held;
    COUNTED.hold();
    #[cfg(not(test))]
    crate::handover::hold();
    signals::hold();
    epoll::hold();
    own::hold();
    // Last: what stands above takes some.
    HEAP.hold();
}

/// After it, in the parent.
pub extern "C" fn parent() {
    let held = unlock();
    rack::release();
    share_waits(&held);
    signals::end();
}

/// After it, in the child.
pub extern "C" fn child() {
    sys::forked();
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
    let held = unlock();
    epoll::forked();
    rack::forked();
    sys::know_process();
    let own = sys::process();
    for socket in &held {
        socket.forked();
        match (socket.link(), socket.sharers()) {
            (Some(link), _) => {
                link.join(own);
                link.leave_the_rest();
            }
            (None, Some(sharers)) => sharers.join(),
            (None, None) => {}
        }
    }
    share_waits(&held);
    signals::end();
}

/// Who waits for sockets with rings looks at them again: two processes have them now.
fn share_waits(held: &[&'static Socket]) {
    held.iter().filter(|socket| socket.link().is_some()).for_each(|socket| epoll::heat(socket));
}

/// Whoever was held goes on.
fn unlock() -> Vec<&'static Socket> {
    HEAP.release();
    own::release();
    epoll::release();
    signals::release();
    #[cfg(not(test))]
    crate::handover::release();
    COUNTED.release();
    let held = std::mem::take(&mut *HELD.lock());
    held.iter().for_each(|socket| socket.release());
    socket::release();
    held
}
