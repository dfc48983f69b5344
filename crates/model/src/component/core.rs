//! Processor cores: clock, misses under way, the cost of turning from one task to another.

use super::jitter::{Jitter, JitterParams};
use crate::platform;
use crate::resource::{Order, Pool, Server, Usage};
use crate::time::Ps;

/// What cores are like.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreParams {
    /// Cores, alike, behind one run queue.
    pub cores: usize,
    /// Clock of each.
    pub clock_hz: f64,
    /// Cache misses that one core has under way (its line-fill buffers).
    pub misses: usize,
    /// Turning from one task to another.
    pub switch_ps: u64,
    /// How its queues are served.
    pub order: Order,
}

impl From<&platform::Core> for CoreParams {
    fn from(core: &platform::Core) -> Self {
        let (cores, misses) = (core.cores as usize, core.misses as usize);
        Self { cores, clock_hz: core.clock, misses, switch_ps: core.switch, order: core.order }
    }
}

/// Cores.
#[derive(Clone, Debug)]
pub struct Cores {
    params: CoreParams,
    run: Server,
    /// Of each core.
    misses: Vec<Pool>,
    /// The core whose misses the task has that was turned to last.
    current: usize,
    jitter: Option<Jitter>,
}

impl Cores {
    /// Idle cores.
    pub fn new(params: &CoreParams) -> Self {
        let misses = vec![Pool::new(params.misses).ordered(params.order); params.cores.max(1)];
        let run = Server::new(params.cores).ordered(params.order);
        Self { run, misses, current: 0, jitter: None, params: params.clone() }
    }

    /// Lets interrupts and the scheduler take the cores away now and then.
    pub fn disturb(&mut self, jitter: &JitterParams, seed: u64) {
        self.jitter = Some(Jitter::new(jitter, self.params.cores, seed));
    }

    fn catch_up(&mut self, at: Ps) {
        if let Some(jitter) = &mut self.jitter {
            jitter.catch_up(at, &mut self.run);
        }
    }

    /// Runs a task that is ready at `at` for a time: when it starts and ends.
    pub fn run(&mut self, at: Ps, work: Ps) -> (Ps, Ps) {
        self.catch_up(at);
        self.run.serve(at, work)
    }

    /// Runs a task that is ready at `at` for so many cycles: when it starts and ends.
    pub fn run_cycles(&mut self, at: Ps, cycles: f64) -> (Ps, Ps) {
        self.run(at, Ps::cycles(cycles, self.params.clock_hz))
    }

    /// Turns to a task that is ready at `at` and runs it for a time: when its work starts and ends. What it asks memory for takes the
    /// misses of one core, that which has one soonest.
    pub fn turn(&mut self, at: Ps, work: Ps) -> (Ps, Ps) {
        let switch = Ps(self.params.switch_ps);
        let (start, end) = self.run(at, switch + work);
        let soonest = |core: &usize| self.misses[*core].start(end);
        self.current = (0..self.misses.len()).min_by_key(soonest).unwrap_or(0);
        (start + switch, end)
    }

    /// When a task that is ready at `at` would start.
    pub fn start(&mut self, at: Ps) -> Ps {
        self.catch_up(at);
        self.run.start(at, Ps::ZERO)
    }

    /// A line that the task which was turned to last asks for at `at`, from memory or a cache that cores share. `memory` says when one
    /// that starts then is here; it waits while as many are under way as a core has misses for.
    pub fn miss(&mut self, at: Ps, memory: impl FnOnce(Ps) -> Ps) -> Ps {
        let misses = &mut self.misses[self.current];
        let start = misses.acquire(at);
        let done = memory(start);
        misses.release(start, done);
        done
    }

    /// How busy cores and misses were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 2] {
        let misses: Vec<_> = self.misses.iter().map(|misses| misses.usage("core misses", span)).collect();
        [self.run.usage("cores", span), Usage::together("core misses", &misses)]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.run.reset();
        self.misses.iter_mut().for_each(Pool::reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> CoreParams {
        CoreParams { cores: 1, clock_hz: 2e9, misses: 10, switch_ps: 11_000, order: Order::InTurn }
    }

    #[test]
    fn cycles_take_their_time_and_queue() {
        // 100 cycles at 2 GHz: 50 ns; the second waits for the first. With two cores it does not.
        let mut cores = Cores::new(&one());
        assert_eq!([0, 0].map(|_| cores.run_cycles(Ps::ZERO, 100.0).1), [Ps(50_000), Ps(100_000)]);
        let mut cores = Cores::new(&CoreParams { cores: 2, ..one() });
        assert_eq!([0, 0].map(|_| cores.run_cycles(Ps::ZERO, 100.0).1), [Ps(50_000), Ps(50_000)]);
    }

    #[test]
    fn halving_the_clock_doubles_the_time() {
        let mut slow = Cores::new(&CoreParams { clock_hz: 1e9, ..one() });
        assert_eq!(slow.run_cycles(Ps::ZERO, 100.0).1, Ps(100_000));
    }

    #[test]
    fn misses_under_way_bound_the_loads_of_a_core() {
        // Ten misses of 80 ns at once: 30 independent loads take 3 x 80 ns, which is 10 x 64 B / 80 ns = 8 GB/s.
        let mut cores = Cores::new(&one());
        let done = (0..30).map(|_| cores.miss(Ps::ZERO, |start| start + Ps(80_000))).max();
        assert_eq!(done, Some(Ps(240_000)));
        assert_eq!(cores.usage(Ps(240_000))[1].busy, 1.0);
    }

    #[test]
    fn what_one_core_asks_for_takes_its_own_misses_alone() {
        // Of 20 cores one has 30 loads: three rounds of ten, as if there were no others. On two cores it takes two rounds.
        let mut cores = Cores::new(&CoreParams { cores: 20, ..one() });
        let mut load = |at: Ps, loads: usize| {
            cores.turn(at, Ps::ZERO);
            (0..loads).map(|_| cores.miss(at, |start| start + Ps(80_000))).max()
        };
        assert_eq!(load(Ps::ZERO, 30), Some(Ps(240_000)));
        assert_eq!(load(Ps::ZERO, 15), Some(Ps(160_000)));
    }

    #[test]
    fn interleaved_tasks_hide_latency_until_the_core_is_busy() {
        // Tasks of two dependent loads of 80 ns each, 11 ns for each turn, of which a task takes three. One alone takes
        // 3 x 11 + 2 x 80 = 193 ns. 24 at once keep the core busy all the time: 24 x 3 x 11 = 792 ns, 33 ns each.
        for (tasks, total) in [(1, 193_000), (24, 792_000)] {
            let mut cores = Cores::new(&one());
            let mut ready = vec![Ps::ZERO; tasks];
            for turn in 0..3 {
                for at in &mut ready {
                    let (_, end) = cores.turn(*at, Ps::ZERO);
                    *at = if turn < 2 { cores.miss(end, |start| start + Ps(80_000)) } else { end };
                }
            }
            assert_eq!(ready.into_iter().max(), Some(Ps(total)));
        }
    }
}
