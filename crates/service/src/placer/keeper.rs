//! Keeps the border of an index in two parts where a client's calls are answered soonest, by the calls that it makes anyway.
//!
//! It hears of each call's key, and of how long the call took. What calls take at either part, side by side, says which way
//! the border should go: whatever holds up the machine meanwhile holds up calls at both. The border goes on while one part is
//! slower in each third of some thousand calls, in steps that become smaller when it turns; a few calls stay at either part,
//! so that it shows when that has changed. The keys of the last calls say which key a part of the calls is, so that the border
//! follows, too, when other keys are asked for. It moves a step at a time, between calls.

/// Calls of a figure, and how long they take at least: shorter ones tell of the scheduler.
const FIGURE: u32 = 2304;
const FIGURE_TIME: u64 = 9_000_000;
/// A figure is of so many stretches, one after the other, which must agree.
const STRETCHES: usize = 3;
/// Calls at a part in a stretch, at least, that tell anything of it.
const LEAST: usize = 4;
/// A part is slower if calls take so many times as long.
const SLOWER: f64 = 1.1;
/// Percent of the calls that stay at either part.
const STAY: u8 = 1;
/// The smallest and the largest step, in percent of the calls.
const STEP: [u8; 2] = [1, 16];
/// Keys of the last calls that are kept.
const KEYS: usize = 1024;
/// Percent of the calls by which what goes below the border may be off: keys vary by chance.
const OFF: u8 = 6;
/// Calls from one step of a border that moves to the next.
const STEP_EVERY: u32 = 16;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct BorderKeeper {
    /// Percent of the calls that are to go below the border, once that is known.
    share: Option<u8>,
    /// The last step that it went, and whether up.
    last: Option<(u8, bool)>,
    /// Of the last calls; the oldest is at `oldest` once there are enough.
    keys: Vec<u64>,
    oldest: usize,
    /// Calls of this figure, or since the last step, and how long they took.
    calls: u32,
    ns: u64,
    /// What calls took in each stretch of this figure, below the border and above.
    took: [[Vec<u64>; 2]; STRETCHES],
    /// Where the border is on its way to.
    target: Option<u64>,
}

impl BorderKeeper {
    /// A call for a key took so many nanoseconds, with the border there. If a step of the border is due, returns where to.
    pub fn ended(&mut self, key: u64, ns: u64, border: u64) -> Option<u64> {
        match self.keys.get_mut(self.oldest) {
            Some(oldest) => *oldest = key,
            None => self.keys.push(key),
        }
        self.oldest = (self.oldest + 1) % KEYS;
        if self.target == Some(border) {
            self.stay();
        }
        self.calls += 1;
        if self.target.is_some() {
            let due = self.calls >= STEP_EVERY;
            self.calls %= STEP_EVERY;
            return self.target.filter(|_| due);
        }
        self.ns += ns;
        let stretch = (self.calls as usize - 1) * STRETCHES / FIGURE as usize;
        self.took[stretch.min(STRETCHES - 1)][usize::from(key >= border)].push(ns);
        if self.calls >= FIGURE && (self.ns >= FIGURE_TIME || self.calls >= 8 * FIGURE) {
            self.decide(border);
            self.begin();
        }
        None
    }

    /// The border is where it is to be, or can move no further for now: a new figure begins.
    pub fn stay(&mut self) {
        self.target = None;
        self.begin();
    }

    fn begin(&mut self) {
        (self.calls, self.ns) = (0, 0);
        self.took.iter_mut().flatten().for_each(Vec::clear);
    }

    fn decide(&mut self, border: u64) {
        let mut keys = self.keys.clone();
        keys.sort_unstable();
        let below = (100 * keys.partition_point(|key| *key < border) / keys.len()) as u8;
        let at = |share: u8| keys.get(keys.len() * usize::from(share) / 100).copied().unwrap_or(u64::MAX);
        let share = self.share.unwrap_or(below).clamp(STAY, 100 - STAY);
        // Where other keys are asked for than before, it goes where the same part of them is below.
        let one_part = self.took.iter().flatten().any(|took| took.len() < LEAST);
        let is_off = share.abs_diff(below) > OFF || one_part;
        let wanted = if is_off && at(share) != border { share } else { self.step_from(share) };
        self.share = Some(wanted);
        self.target = Some(at(wanted)).filter(|target| *target != border && (is_off || wanted != share));
    }

    /// The share after a step away from the part that is slower, if one is.
    fn step_from(&mut self, share: u8) -> u8 {
        let mut ratios = [0.0; STRETCHES];
        for (ratio, took) in ratios.iter_mut().zip(&mut self.took) {
            let [below, above] = took.each_mut().map(|took| usual(took));
            *ratio = below / above;
        }
        let up = ratios.iter().all(|ratio| *ratio < 1.0 / SLOWER);
        if !up && !ratios.iter().all(|ratio| *ratio > SLOWER) {
            return share;
        }
        let step = match self.last {
            Some((step, before)) if before == up => (2 * step).min(STEP[1]),
            Some((step, _)) => (step / 2).max(STEP[0]),
            None => STEP[1],
        };
        self.last = Some((step, up));
        let wanted = if up { share + step } else { share.saturating_sub(step) };
        wanted.clamp(STAY, 100 - STAY)
    }
}

/// What a call usually takes: the mean but for the longest in sixteen, which tell of what holds up the machine. Not a number
/// without calls.
fn usual(took: &mut [u64]) -> f64 {
    took.sort_unstable();
    let kept = &took[..took.len() - took.len() / 16];
    kept.iter().sum::<u64>() as f64 / kept.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's calls on an index whose parts take the longer the more of the load they have.
    struct World {
        keeper: BorderKeeper,
        border: u64,
        /// Keys that are asked for.
        keys: std::ops::Range<u64>,
        /// What a call takes at each part alone, and beside all others.
        ns: [[f64; 2]; 2],
        random: u64,
        calls: u64,
        steps: u64,
    }

    impl World {
        fn below(&self) -> f64 {
            let (first, count) = (self.keys.start, self.keys.end - self.keys.start);
            self.border.clamp(first, self.keys.end).saturating_sub(first) as f64 / count as f64
        }

        /// What a call takes on average if such a part of them goes below the border.
        fn mean(&self, below: f64) -> f64 {
            let [low, high] = self.ns;
            let part = |[alone, more]: [f64; 2], part: f64| part * (alone + more * part);
            part(low, below) + part(high, 1.0 - below)
        }

        fn run(&mut self, calls: u64) {
            for _ in 0..calls {
                self.random =
                    self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let key = self.keys.start + (self.random >> 33) % (self.keys.end - self.keys.start);
                let (part, share) = if key < self.border { (0, self.below()) } else { (1, 1.0 - self.below()) };
                let [alone, more] = self.ns[part];
                // One call in a thousand waits a millisecond for the machine.
                let held_up = if self.random >> 20 & 1023 == 0 { 1e6 } else { 0.0 };
                let ns = alone + more * share + held_up;
                self.calls += 1;
                if let Some(target) = self.keeper.ended(key, ns as u64, self.border) {
                    self.steps += 1;
                    self.border = match target {
                        // Above its last key an index has nothing to move.
                        _ if target > self.border && self.border + 500 >= self.keys.end => target,
                        _ if target > self.border => target.min(self.border + 500),
                        _ => target.max(self.border.min(self.keys.end).saturating_sub(500)),
                    };
                }
            }
        }
    }

    #[test]
    fn a_border_follows_what_parts_take_and_which_keys_are_asked_for() {
        for start in [0, 30_000, u64::MAX] {
            let ns = [[5_000.0, 20_000.0], [5_000.0, 20_000.0]];
            let (keeper, keys) = (BorderKeeper::default(), 0..100_000);
            let mut world = World { keeper, border: start, keys, ns, random: start, calls: 0, steps: 0 };
            let good = |world: &mut World, what: &str| {
                world.run(400_000);
                let best = (0..=100).map(|share| world.mean(f64::from(share) / 100.0)).fold(f64::MAX, f64::min);
                let mean = world.mean(world.below());
                let story = format!("from {start}, {what}: {} below, {mean:.0} ns of {best:.0}", world.below());
                assert!(mean < 1.06 * best, "{story}");
                assert!(world.steps * u64::from(STEP_EVERY) <= world.calls, "{story}: {} steps", world.steps);
            };
            good(&mut world, "even");
            world.ns[0] = [20_000.0, 60_000.0];
            good(&mut world, "the host is busy");
            world.keys = 300_000..340_000;
            good(&mut world, "other keys");
            world.ns = [[2_000.0, 4_000.0], [20_000.0, 60_000.0]];
            good(&mut world, "the NIC is busy");
            // Where nothing changes it stays.
            let (steps, border) = (world.steps, world.border);
            world.run(200_000);
            assert!(
                world.steps <= steps + 40 && world.border.abs_diff(border) < 4_000,
                "{} steps",
                world.steps - steps
            );
        }
    }

    #[test]
    fn a_key_that_most_ask_for_and_a_border_that_cannot_move_hold_nobody_up() {
        let mut keeper = BorderKeeper::default();
        let mut asked = 0;
        for n in 0..100_000u64 {
            let key = if n % 3 == 0 { n % 1000 } else { 500 };
            let slow = if key < 200 { 40_000 } else { 10_000 };
            if keeper.ended(key, slow, 200).is_some() {
                asked += 1;
                keeper.stay();
            }
        }
        assert!(asked > 0 && asked <= 100_000 / FIGURE, "{asked}");
    }
}
