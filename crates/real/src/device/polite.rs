//! When a poller without work lets another thread have its core.
//!
//! With fewer cores than pollers, the one that has the work may be waiting for the core of one without. To offer a core that
//! nobody wants takes as long as a dozen polls, though, and whoever has work of its own keeps it.

use std::cell::Cell;

/// How long a poller without work keeps its core to itself, as long as it seems to have it for itself (ns).
const POLITE: u64 = 5_000;
/// Who is without its core for so long has had another poller run there, which gave it back when it found nothing more. After
/// less nobody wanted it, and after more somebody who keeps it: to offer it to him at each poll would be to wait for him each time (ns).
const AWAY: std::ops::Range<u64> = 2_000..50_000;

thread_local! {
    /// Whether another poller ran here when this thread last offered its core.
    static SHARED: Cell<bool> = const { Cell::new(false) };
}

/// For who has found nothing for `idle` nanoseconds. A core that turns out to be shared with other pollers is offered at each
/// poll, until none takes it.
pub(super) fn relax(idle: u64, clock: impl Fn() -> u64) {
    offer(idle, clock, std::thread::yield_now);
}

fn offer(idle: u64, clock: impl Fn() -> u64, give: impl FnOnce()) {
    SHARED.with(|shared| {
        if shared.get() || idle > POLITE {
            let left = clock();
            give();
            shared.set(AWAY.contains(&clock().saturating_sub(left)));
        }
    });
}

/// How long a driver looks for more before it sleeps, where that is not in vain (ns): as an answer takes whose way leads through
/// sleeping threads, of which each takes tens of microseconds to wake.
const LOOK: u64 = 300_000;
/// Looks in vain after which they become shorter.
const PATIENT: u32 = 4;

/// When a driver sleeps: some time after there was something to do, ever less where nothing comes within it.
#[derive(Default)]
pub(crate) struct Looks {
    /// When there was something to do last.
    busy_at: u64,
    /// It has looked since.
    looks: bool,
    /// How often in a row that was in vain.
    vain: u32,
}

impl Looks {
    /// Whether to look again before sleeping: for who found so much to do now. Who found nothing offers its core.
    pub fn again(&mut self, work: usize, now: u64, clock: impl Fn() -> u64) -> bool {
        if work > 0 {
            self.vain = if self.looks { 0 } else { self.vain };
            (self.busy_at, self.looks) = (now, false);
            return true;
        }
        let idle = now.saturating_sub(self.busy_at);
        if idle < LOOK >> (self.vain / PATIENT).min(6) {
            self.looks = true;
            relax(idle, clock);
            return true;
        }
        self.vain = self.vain.saturating_add(u32::from(std::mem::take(&mut self.looks)));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_core_is_offered_at_each_poll_and_one_of_ones_own_after_a_while() {
        let (now, offered) = (Cell::new(0), Cell::new(0));
        let poll = |idle, away| {
            offer(
                idle,
                || now.get(),
                || {
                    now.set(now.get() + away);
                    offered.set(offered.get() + 1);
                },
            );
            offered.replace(0) == 1
        };
        assert!(!poll(POLITE, 0), "it seems to be its own");
        assert!(poll(POLITE + 1, AWAY.start), "another poller took it");
        assert!(poll(0, 500), "and may want it again");
        assert!(!poll(0, 0), "nobody took it");
        assert!(poll(POLITE + 1, AWAY.end), "somebody took it who keeps it");
        assert!(!poll(POLITE, 0), "it is offered no sooner than before");
    }

    #[test]
    fn a_driver_looks_ever_shorter_in_vain_and_as_long_as_at_first_once_it_was_not() {
        let mut looks = Looks::default();
        // Something comes, and then after so long.
        let mut comes_after = |now: &mut u64, wait: u64| {
            assert!(looks.again(1, *now, || 0));
            let until = *now + wait;
            while *now < until {
                if !looks.again(0, *now, || 0) {
                    let looked = wait + *now - until;
                    *now = until;
                    return looked;
                }
                *now += 100;
            }
            wait
        };
        let now = &mut 1_000_000;
        assert_eq!(comes_after(now, LOOK / 2), LOOK / 2, "not asleep yet");
        for halved in [0, 1, 2] {
            for _ in 0..PATIENT {
                assert_eq!(comes_after(now, 10 * LOOK), LOOK >> halved);
            }
        }
        comes_after(now, 1000);
        assert_eq!(comes_after(now, 10 * LOOK), LOOK);
    }
}
