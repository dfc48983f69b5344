//! What takes a core away from who polls on it: the timer's interrupts, and the scheduler, which lets somebody else run.
//!
//! Each is a Poisson process of its own on every core, and takes an exponentially distributed time. The seed decides when: the
//! same one has the same times.

use std::collections::BinaryHeap;

use crate::draw::{exponential, mixed};
use crate::platform;
use crate::resource::Server;
use crate::time::Ps;

/// What interrupts cores.
#[derive(Clone, Debug, PartialEq)]
pub struct JitterParams {
    /// The mean time between two interrupts of a core.
    pub interrupt_every_ps: u64,
    /// What one takes, on the mean.
    pub interrupt_ps: u64,
    /// The mean time between two turns of somebody else on a core.
    pub preempted_every_ps: u64,
    /// How long that takes, on the mean.
    pub preempted_ps: u64,
}

impl From<&platform::Jitter> for JitterParams {
    fn from(jitter: &platform::Jitter) -> Self {
        Self {
            interrupt_every_ps: jitter.interrupt_every,
            interrupt_ps: jitter.interrupt,
            preempted_every_ps: jitter.preempted_every,
            preempted_ps: jitter.preempted,
        }
    }
}

/// Who takes a core away next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    at: std::cmp::Reverse<Ps>,
    core: usize,
    preempts: bool,
}

/// Interrupts of some cores.
#[derive(Clone, Debug)]
pub struct Jitter {
    params: JitterParams,
    next: BinaryHeap<Next>,
    drawn: u64,
}

impl Jitter {
    /// Of so many cores.
    pub fn new(params: &JitterParams, cores: usize, seed: u64) -> Self {
        let mut jitter = Self { params: params.clone(), next: BinaryHeap::new(), drawn: mixed(seed) };
        for core in 0..cores.max(1) {
            for preempts in [false, true] {
                jitter.plan(Ps::ZERO, core, preempts);
            }
        }
        jitter
    }

    /// Takes the cores away for what has happened until `at`.
    pub fn catch_up(&mut self, at: Ps, cores: &mut Server) {
        while let Some(next) = self.next.peek().copied().filter(|next| next.at.0 <= at) {
            self.next.pop();
            let (Next { at: std::cmp::Reverse(since), core, preempts }, params) = (next, &self.params);
            let mean = if preempts { params.preempted_ps } else { params.interrupt_ps };
            let taken = self.exponential(mean);
            cores.serve_on(core, since, taken);
            self.plan(since + taken, core, preempts);
        }
    }

    fn plan(&mut self, from: Ps, core: usize, preempts: bool) {
        let every = if preempts { self.params.preempted_every_ps } else { self.params.interrupt_every_ps };
        if every > 0 {
            let at = std::cmp::Reverse(from + self.exponential(every) + Ps(1));
            self.next.push(Next { at, core, preempts });
        }
    }

    fn exponential(&mut self, mean: u64) -> Ps {
        self.drawn = self.drawn.wrapping_add(1);
        Ps(exponential(self.drawn, mean as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> JitterParams {
        JitterParams {
            interrupt_every_ps: 4_000_000_000,
            interrupt_ps: 3_000_000,
            preempted_every_ps: 0,
            preempted_ps: 0,
        }
    }

    /// Waits of a task of 1 us that comes each 10 us, on one core.
    fn waits(params: &JitterParams, seed: u64) -> Vec<Ps> {
        let (mut jitter, mut cores) = (Jitter::new(params, 1, seed), Server::new(1));
        let mut waits: Vec<Ps> = (0..200_000u64)
            .map(|n| {
                let at = Ps(n * 10_000_000);
                jitter.catch_up(at, &mut cores);
                cores.serve(at, Ps(1_000_000)).0 - at
            })
            .collect();
        waits.sort_unstable();
        waits
    }

    #[test]
    fn few_wait_and_those_as_long_as_interrupts_take() {
        let waits = waits(&params(), 1);
        // 500 interrupts of 3 us in 2 s: 0.075 % of the time is taken, and as many come while it is.
        let hit = waits.iter().filter(|wait| **wait > Ps::ZERO).count();
        assert!((60..260).contains(&hit), "{hit} of 200,000 waited");
        let (half, last) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        assert!(half == Ps::ZERO && last > Ps(6_000_000) && last < Ps(60_000_000), "{last:?}");
    }

    #[test]
    fn the_same_seed_has_the_same_times_and_another_has_others() {
        assert_eq!(waits(&params(), 1), waits(&params(), 1));
        assert_ne!(waits(&params(), 1), waits(&params(), 2));
    }

    #[test]
    fn who_is_preempted_waits_long_and_seldom() {
        let params = JitterParams { preempted_every_ps: 100_000_000_000, preempted_ps: 1_000_000_000, ..params() };
        let waits = waits(&params, 1);
        let long = waits.iter().filter(|wait| **wait > Ps(100_000_000)).count() as f64 / waits.len() as f64;
        // 1 ms in each 100 ms: about a hundredth waits.
        assert!((0.002..0.03).contains(&long), "{long}");
    }
}
