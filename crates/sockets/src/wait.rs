//! `poll` and `select` over connections with rings.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM, pollfd};

use crate::link::{Link, WANT_DATA, WANT_ROOM, Word};
use crate::socket::{self, Still, Used};
use crate::{epoll, signals, spin, stream, sys};

/// How long to sleep where a bell may not be heard, nanoseconds.
pub const NAP: u64 = 1_000_000;

/// How long where another process has the connection as well, and may take a bell that it has no use for, or another thread may end
/// the direction in which there is no room, nanoseconds.
pub const SHARED: u64 = 100_000_000;

const IN: i16 = POLLIN | POLLRDNORM;
const OUT: i16 = POLLOUT | POLLWRNORM;

/// An entry whose socket has rings.
struct Ringed {
    index: usize,
    used: Used,
}

impl Ringed {
    /// What the rings say of what is asked.
    fn ready(&self, asked: &pollfd) -> i16 {
        let Some(link) = self.used.link() else { return 0 };
        let (input, room) = stream::readiness(&self.used, link);
        let ended = link.peer(Word::Fin) != 0 || link.own(Word::Eof) != 0;
        let mut events = 0;
        if input {
            events |= IN;
            if ended {
                events |= POLLRDHUP;
            }
        }
        if room {
            events |= OUT;
        }
        if stream::has_urgent(link) {
            events |= POLLPRI;
        }
        events & asked.events | stream::troubles(&self.used, link)
    }

    /// What the kernel is to be asked: a socket that sends by its ring is always writable for the kernel, and one always
    /// readable whose bytes there nobody wants. What is urgent in the ring is only so there.
    fn for_kernel(&self, asked: &pollfd) -> i16 {
        let Some(link) = self.used.link() else { return asked.events };
        let mut events = asked.events;
        if link.own(Word::Switched) != 0 {
            let is_heard = !stream::is_out_of_hearing(&self.used, link);
            events = events & !OUT | if is_heard { POLLIN } else { 0 };
        }
        if stream::urgent_is_in_ring(link) { events & !POLLPRI } else { events }
    }

    /// Waits for room of which no bell may be heard.
    fn is_out_of_hearing(&self, asked: &pollfd) -> bool {
        let waits = |link: &&Link| asked.events & OUT != 0 && stream::is_out_of_hearing(&self.used, link);
        let Some(link) = self.used.link().filter(waits) else { return false };
        stream::look_for_end(link, asked.fd);
        true
    }

    /// Another process has it, too.
    fn is_shared(&self) -> bool {
        self.used.link().is_some_and(Link::is_shared)
    }

    /// Waits for room.
    fn lacks_room(&self, asked: &pollfd) -> bool {
        asked.events & OUT != 0 && self.used.link().is_some_and(|link| !stream::has_room(link))
    }

    /// What the kernel has said, without what only the rings know. Takes the bells.
    fn heard(&self, asked: &pollfd, kernel: i16) -> i16 {
        let Some(link) = self.used.link() else { return kernel };
        let mut events = kernel & (POLLERR | POLLHUP | POLLNVAL | POLLPRI | (POLLRDHUP & asked.events));
        if stream::drained(link) {
            if kernel & (IN | POLLHUP | POLLERR | POLLRDHUP) != 0 {
                stream::take_bells(&self.used, link, asked.fd);
            }
        } else {
            events |= kernel & IN & asked.events;
        }
        if link.own(Word::Switched) == 0 {
            events |= kernel & OUT & asked.events;
        }
        events | self.ready(asked)
    }
}

/// `poll`; nanoseconds, or none for ever. If nothing there has rings, the kernel is to do all, while the sockets that it is given
/// stay what they are.
pub fn poll(fds: &mut [pollfd], timeout: Option<u64>, mask: *const libc::sigset_t) -> Result<c_int, Vec<Still>> {
    let (mut ringed, mut still) = (Vec::new(), Vec::new());
    for (index, asked) in fds.iter().enumerate() {
        let Some(used) = socket::find(asked.fd) else {
            epoll::waited_for(asked.fd);
            continue;
        };
        if let Some(link) = used.link() {
            stream::progress(&used, link, asked.fd);
            ringed.push(Ringed { index, used });
        } else if used.far.load(Ordering::Relaxed) {
            still.push(Still::new(used));
        }
    }
    if ringed.is_empty() {
        return Err(still);
    }
    let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
    let mut first = true;
    loop {
        let ready = |fds: &[pollfd]| ringed.iter().any(|at| at.ready(&fds[at.index]) != 0);
        let mut sleep = !ready(fds) && timeout != Some(0);
        if sleep && !first {
            sleep = !spin::look(|| ready(fds));
        }
        let mut asleep = Vec::new();
        if sleep && !first {
            asleep.extend(ringed.iter().map(|at| at.used.falling_asleep()));
            for at in &ringed {
                if let Some(link) = at.used.link() {
                    link.arm(WANT_DATA | if at.lacks_room(&fds[at.index]) { WANT_ROOM } else { 0 });
                }
            }
            sleep = !ready(fds);
        }
        // The first time round the kernel is only asked: what it has comes before any looking.
        let wait = match deadline.map(|deadline| deadline.saturating_sub(sys::now())) {
            _ if !sleep || first => Some(0),
            left if ringed.iter().any(|at| at.is_out_of_hearing(&fds[at.index])) => left.min(Some(NAP)).or(Some(NAP)),
            left if ringed.iter().any(|at| at.lacks_room(&fds[at.index]) || at.is_shared()) => {
                left.min(Some(SHARED)).or(Some(SHARED))
            }
            left => left,
        };
        let asked: Vec<i16> = fds.iter().map(|at| at.events).collect();
        ringed.iter().for_each(|at| fds[at.index].events = at.for_kernel(&fds[at.index]));
        let result = kernel_poll(fds, wait, mask);
        drop(asleep);
        fds.iter_mut().zip(asked).for_each(|(at, asked)| at.events = asked);
        if result < 0 {
            return Ok(result);
        }
        for at in &ringed {
            let kernel = fds[at.index].revents;
            fds[at.index].revents = at.heard(&fds[at.index], kernel);
        }
        let count = fds.iter().filter(|at| at.revents != 0).count();
        let over = deadline.is_some_and(|deadline| sys::now() >= deadline);
        if count > 0 || over {
            return Ok(count as c_int);
        }
        first = false;
    }
}

fn kernel_poll(fds: &mut [pollfd], wait: Option<u64>, mask: *const libc::sigset_t) -> c_int {
    let time = wait
        .map(|wait| libc::timespec { tv_sec: (wait / 1_000_000_000) as i64, tv_nsec: (wait % 1_000_000_000) as i64 });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut poll = || sys::call!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), time, mask, 8usize) as isize;
    match wait {
        // With a mask handlers may run: after the call the signal is kept from this thread again.
        Some(0) if mask.is_null() => poll() as c_int,
        _ => signals::waiting(false, poll) as c_int,
    }
}

/// Sets of descriptors of `select`: read, write, except. Each is null or has `count` bits at least.
pub struct Sets {
    count: usize,
    sets: [*mut u64; 3],
}

/// What each set asks for, and which answers count for it.
const KINDS: [(i16, i16); 3] = [(POLLIN, POLLIN | POLLHUP | POLLERR), (POLLOUT, POLLOUT | POLLERR), (POLLPRI, POLLPRI)];

/// What sets had in them.
pub struct Copies([Vec<u64>; 3]);

impl Copies {
    /// Whether there is a socket with rings.
    pub fn has_rings(&self) -> bool {
        (0..self.0[0].len() * 64).any(|fd| {
            let has = self.0.iter().any(|words| words[fd / 64] & 1 << (fd % 64) != 0);
            has && socket::find(fd as c_int).is_some_and(|used| used.link().is_some())
        })
    }
}

impl Sets {
    /// `count` descriptors, or as many as there may be: the kernel looks at no more, and programs need not have more.
    pub fn new(count: c_int, sets: [*mut u64; 3]) -> Self {
        let count = count.max(0) as usize;
        let count = if count > libc::FD_SETSIZE { count.min(sys::descriptors().max(libc::FD_SETSIZE)) } else { count };
        Self { count, sets }
    }

    /// What is in them; nothing in those that are null.
    pub fn copy(&self) -> Copies {
        let words = self.count.div_ceil(64);
        Copies(self.sets.map(|set| match set.is_null() {
            true => vec![0; words],
            // SAFETY: the caller of `select` lends sets of so many bits.
            false => unsafe { std::slice::from_raw_parts(set, words) }.to_vec(),
        }))
    }

    /// Puts that in again.
    pub fn set(&self, copies: &Copies) {
        for (set, words) in self.sets.into_iter().zip(&copies.0).filter(|(set, _)| !set.is_null()) {
            // SAFETY: as above.
            unsafe { set.copy_from_nonoverlapping(words.as_ptr(), words.len()) };
        }
    }

    fn has(&self, kind: usize, fd: usize) -> bool {
        let set = self.sets[kind];
        // SAFETY: the caller of `select` lends sets of so many bits.
        !set.is_null() && unsafe { *set.add(fd / 64) } & 1 << (fd % 64) != 0
    }

    fn put(&self, kind: usize, fd: usize, is: bool) {
        let set = self.sets[kind];
        if set.is_null() {
            return;
        }
        // SAFETY: as above.
        let word = unsafe { &mut *set.add(fd / 64) };
        *word = if is { *word | 1 << (fd % 64) } else { *word & !(1 << (fd % 64)) };
    }
}

/// `select`, as [`poll`].
pub fn select(sets: &Sets, timeout: Option<u64>, mask: *const libc::sigset_t) -> Result<c_int, Vec<Still>> {
    let mut fds = Vec::new();
    for fd in 0..sets.count {
        let events = (0..3).filter(|kind| sets.has(*kind, fd)).fold(0, |events, kind| events | KINDS[kind].0);
        if events != 0 {
            fds.push(pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    let result = poll(&mut fds, timeout, mask)?;
    if result < 0 {
        return Ok(result);
    }
    if fds.iter().any(|at| at.revents & POLLNVAL != 0) {
        return Ok(-libc::EBADF);
    }
    let mut count = 0;
    for at in &fds {
        for (kind, (_, counts)) in KINDS.iter().enumerate() {
            let asked = sets.has(kind, at.fd as usize);
            let is = asked && at.revents & counts != 0;
            if asked {
                sets.put(kind, at.fd as usize, is);
            }
            count += c_int::from(is);
        }
    }
    Ok(count)
}
