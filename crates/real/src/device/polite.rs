//! When a poller without work lets another thread have its core.
//!
//! With fewer cores than pollers, the one that has the work may be waiting for the core of one without. To offer a core that
//! nobody wants takes as long as a dozen polls, though, and whoever has work of its own keeps it.

use std::cell::Cell;

/// How long a poller without work keeps its core to itself, as long as it seems to have it for itself (ns).
pub const POLITE: u64 = 5_000;
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
}
