//! Small system calls that more than one module needs.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Sleeps until one of `fds` can be read or `timeout` has passed; for ever without one.
pub(crate) fn wait_readable(fds: &[RawFd], timeout: Option<Duration>) {
    // SAFETY: the descriptors belong to the links and the device of the caller, which outlive this call.
    let borrowed = fds.iter().map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let mut polls: Vec<PollFd<'_>> = borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
    // An interrupted or failed poll only wakes the caller early.
    let _ = rustix::event::poll(&mut polls, timeout.as_ref());
}

/// CPU time that this process has used, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
