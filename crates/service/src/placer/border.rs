//! Where the border of an index in two parts should be: the controller hears what its clients reach, and says where to go.
//!
//! Two places that serve parts of one load are quickest together when neither waits for the other, wherever that is: it
//! depends on their speeds, on which keys are asked for, and on what else they do. So the controller climbs. It goes a step
//! from the best border so far; if more calls end a second it goes on that way, in larger steps; if fewer, it tries the other
//! way, then smaller steps. When the smallest bring nothing it stays, and begins anew when what it reaches has changed.

/// The first step, and the largest, in percent of the keys.
const STEP: u8 = 16;
/// What counts as more: figures vary by chance.
const MORE: f64 = 1.005;
/// A change of what is reached by such a part has the controller begin anew.
const CHANGED: f64 = 0.1;

/// The controller of one border, as a share of the keys in percent.
#[derive(Clone, Debug)]
pub struct BorderClimber {
    best: u8,
    /// What was reached there, once it is known.
    rate: Option<f64>,
    /// Where the border is now.
    at: u8,
    up: bool,
    /// The step; 0 when no step brings anything any more.
    step: u8,
    /// Ways that have brought less, with this step.
    failed: u8,
}

impl BorderClimber {
    /// Of a border that is at a share from 0 to 100.
    pub fn new(share: u8) -> Self {
        let at = share.min(100);
        Self { best: at, rate: None, at, up: at < 50, step: STEP, failed: 0 }
    }

    /// Where the border should be.
    pub fn share(&self) -> u8 {
        self.at
    }

    /// Whether it has found its place, for now.
    pub fn is_settled(&self) -> bool {
        self.step == 0
    }

    /// So many calls end a second with the border where it should be. Returns where it should be next; the next figure is to
    /// be of calls that all began there.
    pub fn measured(&mut self, rate: f64) -> u8 {
        match self.rate {
            None => self.rate = Some(rate),
            Some(_) if self.at == self.best => self.stayed(rate),
            Some(best) if rate > best * MORE => {
                (self.best, self.rate, self.failed) = (self.at, Some(rate), 0);
                self.step = (2 * self.step).min(STEP);
            }
            Some(_) => self.fail(),
        }
        self.at = self.next();
        self.at
    }

    /// A figure of where it stays. What changes little by little has changed, too.
    fn stayed(&mut self, rate: f64) {
        if self.rate.is_some_and(|before| (rate / before - 1.0).abs() > CHANGED) {
            (self.rate, self.step, self.failed) = (Some(rate), STEP, 0);
        }
    }

    fn fail(&mut self) {
        (self.up, self.failed) = (!self.up, self.failed + 1);
        if self.failed == 2 {
            (self.step, self.failed) = (self.step / 2, 0);
        }
    }

    /// A step from the best; ways that lead nowhere count as tried.
    fn next(&mut self) -> u8 {
        while self.step > 0 {
            let next = if self.up { (self.best + self.step).min(100) } else { self.best.saturating_sub(self.step) };
            if next != self.best {
                return next;
            }
            self.fail();
        }
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What two servers reach together: so many callers of a closed loop, each call at the part that has its key.
    fn rate(share: u8, capacities: [f64; 2], callers: f64, calm_us: [f64; 2]) -> f64 {
        let first = f64::from(share) / 100.0;
        let calm = callers / (first * calm_us[0] + (1.0 - first) * calm_us[1]);
        let bound = |part: f64, capacity: f64| if part > 0.0 { capacity / part } else { f64::INFINITY };
        // Harmonic: nobody reaches a bound that is near another.
        let bounds = [calm, bound(first, capacities[0]), bound(1.0 - first, capacities[1])];
        bounds.iter().map(|bound| bound.powi(-8)).sum::<f64>().powf(-1.0 / 8.0)
    }

    fn settle(climber: &mut BorderClimber, rate: impl Fn(u8, u32) -> f64) -> u32 {
        for step in 0..200 {
            climber.measured(rate(climber.share(), step));
            if climber.is_settled() {
                return step;
            }
        }
        panic!("{climber:?} goes on and on");
    }

    #[test]
    fn it_finds_the_best_split_from_any_to_begin_with() {
        for (capacities, callers) in
            [([2.0, 10.0], 128.0), ([10.0, 2.0], 128.0), ([5.0, 5.0], 64.0), ([0.5, 20.0], 64.0), ([8.0, 9.0], 4.0)]
        {
            let of = |share| rate(share, capacities, callers, [8.0, 6.0]);
            let best = (0..=100).map(of).fold(0.0, f64::max);
            for start in 0..=100 {
                let mut climber = BorderClimber::new(start);
                // Figures that vary by 0.3 % either way.
                let noise = |step: u32| 1.0 + 0.003 * (f64::from(step * 7919 % 13) / 6.0 - 1.0);
                let steps = settle(&mut climber, |share, step| of(share) * noise(step));
                let found = of(climber.share());
                assert!(
                    found > 0.95 * best,
                    "{capacities:?} from {start}: {} % brings {found} of {best}",
                    climber.share()
                );
                assert!(steps < 40, "{steps} steps from {start}");
            }
        }
    }

    #[test]
    fn it_stays_until_something_changes() {
        let before = |share| rate(share, [2.0, 10.0], 128.0, [8.0, 6.0]);
        let after = |share| rate(share, [10.0, 3.0], 128.0, [8.0, 6.0]);
        let mut climber = BorderClimber::new(50);
        settle(&mut climber, |share, _| before(share));
        let home = climber.share();
        for step in 0..100 {
            assert_eq!(climber.measured(before(home) * (0.97 + 0.0006 * f64::from(step))), home);
        }
        // What changes little by little has changed, too.
        for step in 1..=4 {
            climber.measured(before(home) * (1.0 - 0.03 * f64::from(step)));
        }
        assert!(!climber.is_settled());
        settle(&mut climber, |share, _| 0.88 * before(share));
        let home = climber.share();
        climber.measured(after(home));
        assert!(!climber.is_settled());
        settle(&mut climber, |share, _| after(share));
        assert!(after(climber.share()) > 0.95 * (0..=100).map(after).fold(0.0, f64::max));
    }
}
