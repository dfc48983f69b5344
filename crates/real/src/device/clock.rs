//! The device's clock.

use remora_nic::Time;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds since the device was made, by a clock that goes on while the machine sleeps: a lease that was given to a
/// machine that is then suspended is over when it wakes. (`Instant` stands still meanwhile.)
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: u64,
}

impl Clock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
        Self { epoch: read() }
    }

    /// The time.
    #[inline]
    pub fn now(&self) -> Time {
        read() - self.epoch
    }
}

/// A time that is read in a few nanoseconds and moves on every few milliseconds: only whether it has is of use.
#[inline]
pub(super) fn coarse() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::MonotonicCoarse);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

#[inline]
fn read() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}
