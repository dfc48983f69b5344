//! What wakes whoever sleeps as the driver of a device.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use remora_nic::Time;
use rustix::event::{EventfdFlags, eventfd};

use crate::Error;

/// A time to wake at, and a bell for what comes before.
pub(super) struct Alarm {
    /// Whoever drives sleeps until this time or until something wakes it; 0 while it is awake.
    until: AtomicU64,
    /// There is something to do since whoever drives last meant to sleep.
    nudged: AtomicBool,
    bell: OwnedFd,
    /// The bell has been rung since it was last silenced: said afterwards, so that one who finds it silent may still be woken by
    /// it once, but by none that is never silenced.
    rung: AtomicBool,
}

impl Alarm {
    pub fn new() -> Result<Self, Error> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(Error::system("eventfd"))?;
        Ok(Self { until: AtomicU64::new(0), nudged: AtomicBool::new(false), bell, rung: AtomicBool::new(false) })
    }

    /// For one about to sleep, until `deadline` at the latest. False if there is something to do.
    pub fn set(&self, deadline: Time) -> bool {
        self.until.store(deadline.max(1), Ordering::SeqCst);
        !self.nudged.swap(false, Ordering::SeqCst)
    }

    /// For one who is awake again.
    pub fn clear(&self) {
        self.until.store(0, Ordering::SeqCst);
        // Mostly something else woke us.
        if self.rung.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }

    /// Until when somebody sleeps, if so.
    pub fn sleeper_until(&self) -> Option<Time> {
        Some(self.until.load(Ordering::Relaxed)).filter(|&until| until != 0)
    }

    /// Wakes who sleeps, and keeps awake who is about to.
    pub fn nudge(&self) {
        self.nudged.store(true, Ordering::SeqCst);
        if self.until.swap(0, Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    /// Wakes who sleeps; once is enough, however long it takes to get a core.
    pub fn rouse(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.ring();
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        // A full counter means that it is being woken already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        self.rung.store(true, Ordering::SeqCst);
    }

    /// What to wait for while it is set.
    pub fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}
