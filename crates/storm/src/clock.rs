//! A node's clock: some offset, and a rate that is a little off.

use crate::events::Time;

/// Maps simulated time to what a node reads, and back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    since: Time,
    local: Time,
    ppm: i32,
}

const MILLION: u64 = 1_000_000;

impl Clock {
    /// A clock that reads `local` at time 0 and runs right.
    pub fn new(local: Time) -> Self {
        Self { since: 0, local, ppm: 0 }
    }

    /// From `now` on the clock is off by `ppm`. It never jumps.
    pub fn set_rate(&mut self, now: Time, ppm: i32) {
        *self = Self { since: now, local: self.local(now), ppm };
    }

    /// The clock has stood still since it read `local`, and goes on.
    pub fn go_on(&mut self, now: Time, local: Time) {
        (self.since, self.local) = (now, local);
    }

    /// What the node reads at `now`.
    pub fn local(&self, now: Time) -> Time {
        self.local + scaled(now.saturating_sub(self.since), self.rate(), MILLION, false)
    }

    /// The first moment at which the node reads `local` or later.
    pub fn global(&self, local: Time) -> Time {
        self.since.saturating_add(scaled(local.saturating_sub(self.local), MILLION, self.rate(), true))
    }

    fn rate(&self) -> u64 {
        (MILLION as i64 + i64::from(self.ppm)).max(1) as u64
    }
}

/// `time` by `up` over `down`, rounded up or down. Both are near a million, so that short times need no wide numbers.
fn scaled(time: Time, up: u64, down: u64, round_up: bool) -> Time {
    if up == down {
        return time;
    }
    let more = if round_up { down - 1 } else { 0 };
    match time.checked_mul(up).and_then(|product| product.checked_add(more)) {
        Some(product) => product / down,
        None => ((u128::from(time) * u128::from(up) + u128::from(more)) / u128::from(down)) as Time,
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
