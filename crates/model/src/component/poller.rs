//! The logic at a port that looks for descriptors in queues (DFabric, sections 4.3 and 4.7): in one after the other, or in
//! all at once.

use crate::time::Ps;

/// Descriptors in a line, which is what one look brings: source, destination, reference and length are 16 B.
const DESCRIPTORS: u64 = 4;

/// What it is like.
#[derive(Clone, Debug, PartialEq)]
pub struct PollerParams {
    /// Queues, at least one.
    pub queues: usize,
    /// A look at one queue: a read of its line.
    pub look_ps: u64,
    /// Whether all queues are looked at at once.
    pub at_once: bool,
}

/// It looks all the time; what that takes of links is left out.
#[derive(Clone, Debug)]
pub struct Poller {
    /// Of each queue the last look that brought something: when it began, and how many descriptors it brought.
    last: Vec<(Ps, u64)>,
    look: Ps,
    at_once: bool,
}

impl Poller {
    /// That has seen nothing yet.
    pub fn new(params: &PollerParams) -> Self {
        Self {
            last: vec![(Ps::ZERO, 0); params.queues.max(1)],
            look: Ps(params.look_ps.max(1)),
            at_once: params.at_once,
        }
    }

    /// When it has a descriptor that is written into a queue at `at`. Of each queue they are asked for in order.
    pub fn see(&mut self, at: Ps, queue: usize) -> Ps {
        let queue = queue % self.last.len();
        let turns = if self.at_once { 1 } else { self.last.len() as u64 };
        let (period, offset) = (self.look * turns, if self.at_once { Ps::ZERO } else { self.look * queue as u64 });
        let mut begins = period * (at - offset).0.div_ceil(period.0) + offset;
        let (last, count) = &mut self.last[queue];
        if begins <= *last && *count > 0 {
            begins = if *count < DESCRIPTORS { *last } else { *last + period };
        }
        *count = if begins == *last { *count + 1 } else { 1 };
        *last = begins;
        begins + self.look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: u64 = 6_500_000;

    fn poller(at_once: bool) -> Poller {
        Poller::new(&PollerParams { queues: 4, look_ps: LOOK, at_once })
    }

    #[test]
    fn one_after_the_other_takes_a_round_and_at_once_a_look() {
        // Just missed: until the next look, and that look.
        assert_eq!(poller(true).see(Ps(1), 2), Ps(2 * LOOK));
        assert_eq!(poller(false).see(Ps(1), 0), Ps(5 * LOOK));
        assert_eq!(poller(false).see(Ps(1), 2), Ps(3 * LOOK));
        assert_eq!(poller(false).see(Ps::ZERO, 0), Ps(LOOK));
    }

    #[test]
    fn a_look_brings_a_line_of_descriptors() {
        let mut poller = poller(true);
        let seen: Vec<u64> = (0..9).map(|_| poller.see(Ps::ZERO, 1).0 / LOOK).collect();
        assert_eq!(seen, [1, 1, 1, 1, 2, 2, 2, 2, 3]);
        assert_eq!(poller.see(Ps::ZERO, 0), Ps(LOOK), "another queue has looks of its own");
    }
}
