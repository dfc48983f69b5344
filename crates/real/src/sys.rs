//! Small system calls that more than one module needs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Descriptors that there is room for before the first sleep.
const DESCRIPTORS: usize = 16;

/// Sleeps on descriptors; keeps its lists between sleeps.
#[derive(Default)]
pub struct Sleeper {
    fds: Vec<RawFd>,
    /// Those that are to have room, too.
    full: Vec<RawFd>,
    /// Empty but for the time of a sleep.
    polls: Vec<PollFd<'static>>,
}

impl Sleeper {
    /// With room for its lists.
    pub fn new() -> Self {
        Self { fds: Vec::with_capacity(DESCRIPTORS), full: Vec::new(), polls: Vec::with_capacity(DESCRIPTORS) }
    }

    /// Adds descriptors of devices, which must outlive the sleep.
    pub(crate) fn add(&mut self, add: impl FnOnce(&mut Vec<RawFd>)) {
        add(&mut self.fds);
    }

    /// Adds one that was full: there may be room for more by then.
    pub(crate) fn add_full(&mut self, fd: RawFd) {
        self.full.push(fd);
    }

    pub(crate) fn clear(&mut self) {
        self.fds.clear();
        self.full.clear();
    }

    /// Sleeps until one of them can be read, one that was full has room, or `timeout` has passed; for ever without one.
    pub(crate) fn sleep(&mut self, timeout: Option<Duration>) {
        // SAFETY: the descriptors belong to links and devices of the caller, which outlive this call, and the list is
        // emptied before it ends.
        let poll = |flags| move |&fd: &RawFd| PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, flags);
        self.polls.extend(self.fds.iter().map(poll(PollFlags::IN)).chain(self.full.iter().map(poll(PollFlags::OUT))));
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        // An interrupted or failed poll only wakes the caller early.
        let _ = rustix::event::poll(&mut self.polls, timeout.as_ref());
        self.polls.clear();
    }
}

/// Makes what this thread will wait for locks with. Otherwise its first wait would, in the middle of its work.
pub fn prepare_to_wait() {
    let lock = parking_lot::Mutex::new(());
    // Nobody wakes it: it ends at once.
    let _ = parking_lot::Condvar::new().wait_for(&mut lock.lock(), Duration::ZERO);
}

/// Starts a thread beside those of a program, which may know nothing of it. Signals are for the program's own: one that waits for a
/// signal, and keeps it from all threads that it has, would be ended by it here, and handlers would run in the midst of a device.
///
/// # Errors
///
/// What pthread_create(3) says.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: sets of our own, each filled in before it is read: where the first call fails, which it does for no valid argument,
    // the second is not. A new thread has its maker's.
    let kept = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        // What a thread brings upon itself its program may have a handler for.
        for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS] {
            libc::sigdelset(all.as_mut_ptr(), own);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    if kept {
        // SAFETY: filled in above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    thread
}

/// Cores that the calling thread may use; none if the system does not say.
pub fn cores() -> Option<usize> {
    sched_getaffinity(None).ok().map(|allowed| allowed.count() as usize)
}

/// Pins the calling thread to the `n`th core that it may use, if there are two; after the last one comes the first.
pub fn pin(n: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    let Some(n) = n.checked_rem(allowed.count() as usize) else { return };
    if let (Some(core), true) = (cores.nth(n), allowed.count() > 1) {
        let mut one = CpuSet::new();
        one.set(core);
        // Not being allowed to costs precision, no more.
        let _ = sched_setaffinity(None, &one);
    }
}

/// Runs `work` on the calling thread, pinned meanwhile to the `n`th core that it may use, as is what it starts for good.
/// Where there is one core, or none may be chosen, nothing is pinned.
pub fn on_core<R>(n: usize, work: impl FnOnce() -> R) -> R {
    let before = sched_getaffinity(None);
    pin(n);
    let result = work();
    if let Ok(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    result
}

/// CPU time that this process has used, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that the calling thread does not take, one bit each.
    fn kept() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let set = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(set.trim(), 16).unwrap()
    }

    #[test]
    fn signals_are_for_the_programs_own_threads() {
        let before = kept();
        let there = start_thread("test", kept).unwrap().join().unwrap();
        let takes = |number: i32| there & 1 << (number - 1) == 0;
        assert!(
            [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM, libc::SIGPROF, 64].iter().all(|&n| !takes(n))
        );
        // The C library's own two, and what a thread brings upon itself.
        assert!([32, 33, libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS].iter().all(|&n| takes(n)));
        assert_eq!(kept(), before, "and the maker's are as they were");
    }
}
