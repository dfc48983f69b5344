//! When a poll that finds nothing lets others have the core.
//!
//! With fewer cores than pollers, the one with the work may be waiting for the core of one without. But a program with
//! several threads polls with a lock of its own held, for which its other threads spin: while this one has given its core
//! away, they wait in vain, and where cores are few that is nearly always. So a core is given away for no more of the time
//! than it is kept.

use std::sync::atomic::{AtomicU64, Ordering};

use remora_real::POLITE;

/// What a process's pollers remember of it.
#[derive(Default)]
pub struct Manners {
    /// Until when they keep their cores.
    keep_until: AtomicU64,
}

impl Manners {
    /// Gives the core away by `give`, if it is time: for one who has found nothing for `idle` nanoseconds.
    #[inline]
    pub fn relax(&self, idle: u64, clock: impl Fn() -> u64, give: impl FnOnce()) {
        if idle > POLITE {
            let left = clock();
            if left >= self.keep_until.load(Ordering::Relaxed) {
                give();
                let back = clock();
                self.keep_until.store(back + back.saturating_sub(left), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_core_is_kept_as_long_as_it_was_away() {
        let (manners, now, given) = (Manners::default(), Cell::new(1000), Cell::new(0));
        // Others run for 700 when they get the core; a poll takes 10.
        let poll = |idle| {
            manners.relax(
                idle,
                || now.get(),
                || {
                    now.set(now.get() + 700);
                    given.set(given.get() + 1);
                },
            );
            now.set(now.get() + 10);
        };
        poll(POLITE);
        assert_eq!(given.get(), 0, "who has just found something keeps it");
        (0..140).for_each(|_| poll(POLITE + 1));
        assert_eq!(given.get(), 2, "away for 700, there for 700");
    }
}
