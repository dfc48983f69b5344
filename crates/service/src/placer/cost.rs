//! What calls take: sums of some calls, and the last few of those.

use super::Time;

/// Calls that were timed together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    ns: f64,
    right: u32,
    pub calls: u32,
    /// When the first of them ended.
    pub since: Time,
}

impl Sum {
    pub fn add(&mut self, ns: u64, is_ok: bool, now: Time) {
        if self.calls == 0 {
            self.since = now;
        }
        self.ns += ns as f64;
        self.right += u32::from(is_ok);
        self.calls += 1;
    }

    /// Nanoseconds for each result: calls that fail must be made again. Without end if most fail.
    pub fn cost(&self) -> f32 {
        if self.right * 2 < self.calls || self.right == 0 {
            return f32::INFINITY;
        }
        (self.ns / f64::from(self.right)) as f32
    }
}

/// The last few costs of a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent<const N: usize> {
    costs: [f32; N],
    count: usize,
}

impl<const N: usize> Default for Recent<N> {
    fn default() -> Self {
        Self { costs: [0.0; N], count: 0 }
    }
}

impl<const N: usize> Recent<N> {
    pub fn add(&mut self, cost: f32) {
        self.costs[self.count % N] = cost;
        self.count += 1;
    }

    pub fn len(&self) -> usize {
        self.count.min(N)
    }

    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Their median: a hiccup of the machine moves it little. None if there are none. Of two the lower one: what disturbs
    /// makes calls longer.
    pub fn median(&self) -> Option<f32> {
        self.ranked(2)
    }

    /// Below a third of them: for those that a hiccup may spoil several of.
    pub fn low(&self) -> Option<f32> {
        self.ranked(3)
    }

    fn ranked(&self, part: usize) -> Option<f32> {
        let mut costs = self.costs;
        let known = &mut costs[..self.len()];
        known.sort_unstable_by(f32::total_cmp);
        known.get(known.len().saturating_sub(1) / part).copied()
    }

    /// How far they lie from their median, in parts of it: the median of that.
    pub fn spread(&self) -> f32 {
        let Some(median) = self.median().filter(|median| median.is_finite() && *median > 0.0) else { return 0.0 };
        let mut off = Self { count: self.len(), ..*self };
        off.costs.iter_mut().for_each(|cost| *cost = (*cost / median - 1.0).abs());
        off.median().unwrap_or(0.0)
    }
}
