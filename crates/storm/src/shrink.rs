//! A failing storm made small: fewer faults, fewer clients, a shorter time, as long as it still fails alike.

use crate::cluster::{Failure, Plan, StormReport, run};
use crate::engine::Engine;
use crate::events::SECOND;
use crate::nemesis::ScheduledFault;

/// Runs that shrinking may take, and messages in all of them.
const MAX_RUNS: usize = 400;
const MAX_MESSAGES: u64 = 20_000_000;

struct Shrinker<E: Engine> {
    plan: Plan<E::Config>,
    report: StormReport,
    runs: usize,
    messages: u64,
}

/// Makes a failing storm small. `progress` is told the runs made so far. Gives the plan, and what it leads to.
pub fn shrink<E: Engine>(
    plan: &Plan<E::Config>,
    report: StormReport,
    mut progress: impl FnMut(usize),
) -> (Plan<E::Config>, StormReport) {
    let mut shrinker = Shrinker::<E> { plan: plan.clone(), report, runs: 0, messages: 0 };
    loop {
        let before = (shrinker.plan.schedule.len(), shrinker.plan.calm_at, shrinker.plan.workload.clients);
        shrinker.end_early();
        shrinker.fewer_faults(&mut progress);
        shrinker.fewer_clients();
        progress(shrinker.runs);
        let after = (shrinker.plan.schedule.len(), shrinker.plan.calm_at, shrinker.plan.workload.clients);
        if before == after || shrinker.spent() {
            return (shrinker.plan, shrinker.report);
        }
    }
}

impl<E: Engine> Shrinker<E> {
    /// Keeps a smaller plan if it fails alike.
    fn keep_if_fails(&mut self, plan: Plan<E::Config>) -> bool {
        if self.spent() {
            return false;
        }
        let report = run::<E>(&plan);
        self.runs += 1;
        self.messages += report.net.sent;
        let alike = |one: &Failure, two: &Failure| one.resembles(two);
        let fails = self.report.failure.as_ref().zip(report.failure.as_ref()).is_some_and(|(a, b)| alike(a, b));
        if fails {
            (self.plan, self.report) = (plan, report);
        }
        fails
    }

    fn spent(&self) -> bool {
        self.runs >= MAX_RUNS || self.messages >= MAX_MESSAGES
    }

    /// Faults and requests after the failure tell nothing.
    fn end_early(&mut self) {
        let ends = [self.last_moment(), self.plan.calm_at / 2, self.plan.calm_at * 3 / 4, self.plan.calm_at * 7 / 8];
        for calm_at in ends {
            if (SECOND..self.plan.calm_at).contains(&calm_at) {
                let schedule = self.plan.schedule.iter().filter(|event| event.at < calm_at).copied().collect();
                self.keep_if_fails(Plan { calm_at, schedule, ..self.plan.clone() });
            }
        }
    }

    /// When the operation that does not fit ended.
    fn last_moment(&self) -> u64 {
        match &self.report.failure {
            Some(Failure::Wrong(finding)) => {
                let record = |index: &usize| self.report.history.records[*index].returned + SECOND / 10;
                finding.records.first().map_or(u64::MAX, record)
            }
            Some(Failure::Broken(_)) => self.report.simulated + SECOND / 10,
            _ => u64::MAX,
        }
    }

    /// Delta debugging (ddmin: Zeller and Hildebrandt, TSE 2002): leave out ever smaller parts of the schedule.
    fn fewer_faults(&mut self, progress: &mut impl FnMut(usize)) {
        let mut parts = 2;
        while !self.plan.schedule.is_empty() && !self.spent() {
            let len = self.plan.schedule.len();
            let size = len.div_ceil(parts);
            let without = |from: usize, schedule: &[ScheduledFault]| {
                let rest = schedule.iter().enumerate().filter(|(index, _)| !(from..from + size).contains(index));
                rest.map(|(_, event)| *event).collect()
            };
            progress(self.runs);
            let smaller = (0..len).step_by(size).any(|from| {
                let schedule = without(from, &self.plan.schedule);
                self.keep_if_fails(Plan { schedule, ..self.plan.clone() })
            });
            match smaller {
                true => parts = (parts - 1).max(2),
                false if size == 1 => return,
                false => parts = (parts * 2).min(len),
            }
        }
    }

    fn fewer_clients(&mut self) {
        for clients in 1..self.plan.workload.clients {
            let mut plan = self.plan.clone();
            plan.workload.clients = clients;
            if self.keep_if_fails(plan) {
                return;
            }
        }
    }
}
