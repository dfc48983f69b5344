//! How long a node waits for its disk, as all others wait for it meanwhile.

use crate::Time;

/// After so long (ns) in which nothing has become durable that is to be, a node lets the others go on without it.
pub(crate) const STUCK: Time = 10_000_000_000;

/// See the module. A node whose disk is stuck says nothing to others about membership and hears nothing: so they suspect it. It
/// goes on when something has become durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    lasts: Time,
    /// When something became durable last, or nothing was to be; and whether that is too long ago.
    moved: Time,
    stuck: bool,
}

impl Patience {
    /// It is at an end after so long.
    pub fn new(lasts: Time, now: Time) -> Self {
        Self { lasts, moved: now, stuck: false }
    }

    /// Something has become durable.
    pub fn begin(&mut self, now: Time) {
        (self.moved, self.stuck) = (now, false);
    }

    /// Time has passed. `waits` says whether something is to become durable, and `spare` whether the others can go on without
    /// this node: else its silence would only keep them from reading too.
    pub fn look(&mut self, now: Time, waits: bool, spare: impl FnOnce() -> bool) {
        if !waits {
            self.begin(now);
        }
        self.stuck = self.stuck || now.saturating_sub(self.moved) >= self.lasts && spare();
    }

    /// Whether it is at an end.
    pub fn is_over(&self) -> bool {
        self.stuck
    }
}
