//! Descriptors of this library's own, in the table that the program has, too: it may close any of them, and open something else by
//! the number.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

use crate::spin::Spin;
use crate::sys;

/// They are above this, out of the way of programs that count theirs.
const HIGH: c_int = 900;

/// Which there are.
static KNOWN: Spin<Vec<c_int>> = Spin::new(Vec::new());

/// A socket of this library's, which it closes past itself.
pub struct Own {
    fd: c_int,
    cookie: Option<u64>,
}

impl Own {
    /// A socket that was just made.
    pub fn new(fd: OwnedFd) -> Self {
        let fd = fd.into_raw_fd();
        Self { fd, cookie: sys::cookie(fd) }
    }

    /// The same out of the way, and kept from programs that close whatever they find.
    pub fn high(mut self) -> Self {
        self.fd = raise(self.fd);
        self
    }

    /// Whether the number still leads to it.
    pub fn is_ours(&self) -> bool {
        self.cookie.is_some() && sys::cookie(self.fd) == self.cookie
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        KNOWN.lock().retain(|fd| *fd != self.fd);
        if self.is_ours() {
            sys::call!(SYS_close, self.fd);
        }
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as this lives, or somebody else's who has closed it: that is asked before.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

/// Moves a descriptor out of the way, and keeps it. Its number from now on.
pub fn raise(fd: c_int) -> c_int {
    let high = sys::call!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, HIGH) as c_int;
    let kept = match high {
        0.. => {
            sys::call!(SYS_close, fd);
            high
        }
        _ => fd,
    };
    KNOWN.lock().push(kept);
    kept
}

/// Keeps a descriptor no longer.
pub fn drop_number(fd: c_int) {
    KNOWN.lock().retain(|known| *known != fd);
}

/// Whether a descriptor is one that programs know nothing of.
pub fn is_own(fd: c_int) -> bool {
    KNOWN.lock().contains(&fd)
}

/// What is left of a range of descriptors without this library's own: ranges of them.
pub fn without(first: u32, last: u32) -> Vec<(u32, u32)> {
    let mut own: Vec<u32> = KNOWN.lock().iter().map(|fd| *fd as u32).filter(|fd| (first..=last).contains(fd)).collect();
    own.sort_unstable();
    let (mut ranges, mut from) = (Vec::new(), Some(first));
    for fd in own {
        if let Some(start) = from
            && start < fd
        {
            ranges.push((start, fd - 1));
        }
        from = fd.checked_add(1);
    }
    ranges.extend(from.filter(|from| *from <= last).map(|from| (from, last)));
    ranges
}

/// Before a fork.
pub fn hold() {
    KNOWN.hold();
}

/// After it, in both.
pub fn release() {
    KNOWN.release();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_leave_out_what_is_kept() {
        *KNOWN.lock() = vec![9, 5, 6, 100];
        assert_eq!(without(3, 50), [(3, 4), (7, 8), (10, 50)]);
        assert_eq!(without(5, u32::MAX), [(7, 8), (10, 99), (101, u32::MAX)]);
        assert_eq!(without(5, 6), []);
        assert!(is_own(5) && !is_own(7));
        drop_number(5);
        assert_eq!(without(5, 6), [(5, 5)]);
        KNOWN.lock().clear();
        assert_eq!(without(0, u32::MAX), [(0, u32::MAX)]);
    }
}
