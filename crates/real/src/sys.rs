//! Small system calls that more than one module needs.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Sleeps on descriptors; keeps its list between sleeps.
#[derive(Default)]
pub(crate) struct Sleeper {
    /// Empty but for the time of a sleep.
    polls: Vec<PollFd<'static>>,
}

impl Sleeper {
    /// With room for so many descriptors.
    pub fn with_capacity(descriptors: usize) -> Self {
        Self { polls: Vec::with_capacity(descriptors) }
    }

    /// Sleeps until one of `fds` can be read or `timeout` has passed; for ever without one.
    pub fn wait_readable(&mut self, fds: &[RawFd], timeout: Option<Duration>) {
        // SAFETY: the descriptors belong to the links and the device of the caller, which outlive this call, and the
        // list is emptied before it ends.
        let borrowed = fds.iter().map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) });
        self.polls.extend(borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        // An interrupted or failed poll only wakes the caller early.
        let _ = rustix::event::poll(&mut self.polls, timeout.as_ref());
        self.polls.clear();
    }
}

/// Makes what this thread will wait for locks with. Otherwise its first wait would, in the middle of its work.
pub(crate) fn prepare_to_wait() {
    let lock = parking_lot::Mutex::new(());
    // Nobody wakes it: it ends at once.
    let _ = parking_lot::Condvar::new().wait_for(&mut lock.lock(), Duration::ZERO);
}

/// CPU time that this process has used, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
