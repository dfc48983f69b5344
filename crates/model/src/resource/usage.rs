//! What shared things count of themselves.

use crate::time::Ps;

/// How busy something was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// What it is.
    pub name: &'static str,
    /// The part of its time that it was busy, over all its slots.
    pub busy: f64,
    /// Mean time that requests waited for it.
    pub waited: Ps,
    /// The longest wait.
    pub longest: Ps,
    /// Requests.
    pub served: u64,
}

impl Usage {
    /// Of something that did nothing.
    pub fn idle(name: &'static str) -> Self {
        Self { name, busy: 0.0, waited: Ps::ZERO, longest: Ps::ZERO, served: 0 }
    }

    /// Of several that are alike, as one.
    pub fn together(name: &'static str, all: &[Self]) -> Self {
        let served = all.iter().map(|usage| usage.served).sum::<u64>();
        let waited: u128 = all.iter().map(|usage| u128::from(usage.waited.0) * u128::from(usage.served)).sum();
        Self {
            name,
            busy: all.iter().map(|usage| usage.busy).sum::<f64>() / all.len().max(1) as f64,
            waited: Ps((waited / u128::from(served.max(1))) as u64),
            longest: all.iter().map(|usage| usage.longest).max().unwrap_or_default(),
            served,
        }
    }
}

/// The busiest of several; of equally busy ones that with the longest queue. It is what limits the rate.
pub fn binding(usages: &[Usage]) -> Option<&Usage> {
    usages.iter().max_by(|a, b| a.busy.total_cmp(&b.busy).then(a.waited.cmp(&b.waited)))
}

/// Counts what a shared thing did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    served: u64,
    /// Picoseconds of all slots together.
    busy: u64,
    waited: u64,
    longest: Ps,
}

impl Meter {
    pub(super) fn count(&mut self, at: Ps, start: Ps, work: Ps) {
        self.wait(at, start);
        self.held(work);
    }

    pub(super) fn wait(&mut self, at: Ps, start: Ps) {
        let waited = start - at;
        self.served += 1;
        self.waited = self.waited.saturating_add(waited.0);
        self.longest = self.longest.max(waited);
    }

    /// Time of a slot that was held.
    pub(super) fn held(&mut self, span: Ps) {
        self.busy = self.busy.saturating_add(span.0);
    }

    pub(super) fn usage(&self, name: &'static str, slots: usize, span: Ps) -> Usage {
        Usage {
            name,
            busy: self.busy as f64 / (span.0.max(1) as f64 * slots as f64),
            waited: Ps(self.waited / self.served.max(1)),
            longest: self.longest,
            served: self.served,
        }
    }
}
