//! A node's clock: some offset, and a rate that is a little off.

use crate::events::Time;

/// Maps simulated time to what a node reads, and back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    since: Time,
    local: Time,
    ppm: i32,
}

const MILLION: u128 = 1_000_000;

impl Clock {
    /// A clock that reads `local` at time 0 and runs right.
    pub fn new(local: Time) -> Self {
        Self { since: 0, local, ppm: 0 }
    }

    /// From `now` on the clock is off by `ppm`. It never jumps.
    pub fn set_rate(&mut self, now: Time, ppm: i32) {
        *self = Self { since: now, local: self.local(now), ppm };
    }

    /// What the node reads at `now`.
    pub fn local(&self, now: Time) -> Time {
        let passed = u128::from(now.saturating_sub(self.since));
        self.local + (passed * self.rate() / MILLION) as Time
    }

    /// The first moment at which the node reads `local` or later.
    pub fn global(&self, local: Time) -> Time {
        let passed = u128::from(local.saturating_sub(self.local));
        self.since.saturating_add((passed * MILLION).div_ceil(self.rate()) as Time)
    }

    fn rate(&self) -> u128 {
        (1_000_000 + i64::from(self.ppm)).max(1) as u128
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let mut clock = Clock::new(500);
        for (now, ppm) in [(0, 0), (1_000, 5_000), (7_777_777, -5_000), (9_999_999_999, 1)] {
            let before = clock.local(now);
            clock.set_rate(now, ppm);
            assert_eq!(clock.local(now), before, "no jump");
            for ahead in [0, 1, 999, 123_456_789] {
                let local = clock.local(now) + ahead;
                let at = clock.global(local);
                assert!(clock.local(at) >= local && (at == now || clock.local(at - 1) < local), "{ahead} {ppm}");
            }
        }
    }
}
