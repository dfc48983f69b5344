//! Small system calls that more than one module needs.

use std::os::fd::{BorrowedFd, RawFd};
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
