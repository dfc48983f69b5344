//! [`decide`] held against the engine over random operations: how far its word goes.

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use remora_kernel::Placement;
use remora_model::platform::{NicDevice, Platform};
use serde::{Deserialize, Serialize};

use super::operation::{Access, Clients, Kind, Load, Memory, Operation};
use super::{Candidate, DecidedBy, LEVEL, WhereOptions, WorldRun, decide, rank, uncertain, world};
use crate::reproduce::{Point, Ran, ReproduceError, ReproduceOptions, run_all};
use crate::workload::below;

/// Calls of each run of the engine, and for each that is under way: at its end fewer are, which is not to count.
const CALLS: u64 = 200;
const CALLS_EACH: u64 = 16;
/// Points of the Latin hypercube of each answer.
const POINTS: usize = 64;
/// "Level" is wrong where the engine has this factor between the two.
const APART: f64 = 1.1;
/// Of every so many operations the nearest flip point is asked for.
const FLIPS: u64 = 10;

/// So many of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// So many.
    pub right: u64,
    /// Of so many.
    pub of: u64,
}

impl Tally {
    fn add(&mut self, right: bool) {
        self.sum(Self { right: u64::from(right), of: 1 });
    }

    fn sum(&mut self, other: Self) {
        *self = Self { right: self.right + other.right, of: self.of + other.of };
    }

    /// As a part; 1 of none.
    pub fn part(self) -> f64 {
        if self.of == 0 { 1.0 } else { self.right as f64 / self.of as f64 }
    }
}

/// What it came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// Operations tried.
    pub operations: u64,
    /// The place named is the engine's best, or level with it.
    pub winner: Tally,
    /// Of those, the ones that the screen alone would have named.
    pub screen_winner: Tally,
    /// Answers that the engine gave.
    pub by_engine: Tally,
    /// Two places called level are within a tenth by the engine.
    pub level: Tally,
    /// The screen's median over the engine's, as a part off: median, 90th percentile, worst.
    pub p50_off: [f64; 3],
    /// The same of operations a second.
    pub rate_off: [f64; 3],
    /// Flip points in platform values that the engine confirms on both sides.
    pub flips: Tally,
    /// By certainty, from 0 to 1 in tenths: whether the place named is best or level by the engine with values drawn anew.
    pub certainty: [Tally; 10],
    /// The operations whose winner is wrong, in words.
    pub wrong: Vec<String>,
    /// Whether it was ended early.
    pub cut: bool,
}

/// Tries so many operations on all built-in platforms with hardware NICs. `progress` hears of each; no ends it.
pub fn audit(
    operations: u64,
    seed: u64,
    jobs: usize,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Audit, ReproduceError> {
    let platforms: Vec<Platform> = Platform::built_in()
        .filter_map(|name| Platform::load(name).ok())
        .filter(|platform| platform.placements.nic != Some(NicDevice::Software))
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let work: Vec<Tried<'_>> = (0..operations)
        .map(|number| {
            let platform = &platforms[below(&mut rng, platforms.len() as u64) as usize];
            Tried { platform, operation: random(&mut rng), number, seed }
        })
        .collect();
    let options = ReproduceOptions { figure: None, jobs, cache: None, seed };
    let Ran { outcomes, incomplete, .. } = run_all(&work, &options, &mut |p| progress(p.done as u64))?;
    let mut all = Audit { cut: incomplete.is_some(), ..Audit::default() };
    let (mut p50, mut rates) = (Vec::new(), Vec::new());
    for found in outcomes.into_iter().flatten() {
        p50.extend(found.p50);
        rates.extend(found.rates);
        all.add(found.audit);
    }
    (all.p50_off, all.rate_off) = (quantiles(p50), quantiles(rates));
    Ok(all)
}

/// One operation to try.
struct Tried<'a> {
    platform: &'a Platform,
    operation: Operation,
    number: u64,
    seed: u64,
}

/// What came of one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Found {
    audit: Audit,
    /// How far the screen's medians and rates are off.
    p50: Vec<f64>,
    rates: Vec<f64>,
}

impl Point for Tried<'_> {
    type Outcome = Found;

    fn key(&self) -> String {
        format!("where {} {} {}", self.platform.name, self.operation.title, self.seed)
    }

    fn run(&self) -> Result<Found, ReproduceError> {
        let mut found = Found::default();
        one(self.platform, &self.operation, (self.number, self.seed), &mut found);
        found.audit.operations = 1;
        Ok(found)
    }

    fn events(_: &Found) -> u64 {
        0
    }
}

/// A chain of reads: what the engine can run.
fn random(rng: &mut ChaCha8Rng) -> Operation {
    // Between two powers of two, all powers alike.
    let mut power = |low: u64, high: u64| (1u64 << (low + below(rng, high - low + 1))) as f64;
    let (elements, value, state, under_way) = (power(0, 4), power(6, 12), power(20, 33), power(0, 6));
    let access = |count, bytes| Access { count, bytes, kind: Kind::Read, dependent: true };
    Operation {
        title: format!("{elements} elements, {value} B, over {state} B, {under_way} under way"),
        accesses: vec![access(elements, 64.0), access(1.0, value)],
        request: 36.0,
        reply: value,
        uneven: false,
        cycles: 0.0,
        pipeline_cycles: 0.0,
        state,
        item: 64.0,
        skew: 0.0,
        writes: 0.0,
        memory: Memory::Host,
        load: Load::Closed(under_way as u32),
        clients: Clients::default(),
    }
}

fn one(platform: &Platform, operation: &Operation, (number, seed): (u64, u64), found: &mut Found) {
    let Found { audit: all, p50, rates } = found;
    let (simulated, flips) = (10 * calls(operation) as u32, usize::from(number.is_multiple_of(FLIPS)));
    let options = WhereOptions { points: POINTS, simulated, flips, seed, ..WhereOptions::default() };
    let screen = rank(platform, operation, &options);
    let runs = engine(platform, operation, seed);
    let (Some(answer), Some(best)) = (decide(platform, operation, &options), fastest(&runs)) else { return };
    let [named, rest @ ..] = &answer.ranking[..] else { return };
    for candidate in &screen {
        if let Some(run) = of(&runs, candidate.place) {
            p50.push((candidate.p50_ns / run.p50_ns as f64 - 1.0).abs());
            rates.push((candidate.ops_per_s / run.ops_per_s - 1.0).abs());
        }
    }
    let right = |place: Placement| wins(&runs, place);
    all.winner.add(right(named.place));
    all.screen_winner.add(screen.first().is_some_and(|first| right(first.place)));
    all.by_engine.add(answer.by == DecidedBy::Engine);
    if !right(named.place) {
        all.wrong.push(format!("{} on {}: {}; the engine has {best}", operation.title, platform.name, answer.line));
    }
    if let (true, Some(second)) = (answer.line.contains("level"), rest.first())
        && let (Some(a), Some(b)) = (of(&runs, named.place), of(&runs, second.place))
    {
        let ratio = a.p50_ns as f64 / b.p50_ns as f64;
        all.level.add(ratio.max(1.0 / ratio) < APART);
    }
    drawn_anew(platform, operation, named, (answer.certainty, seed ^ number), all);
    if number.is_multiple_of(FLIPS) {
        // A value of the platform has a path.
        let flip = answer.flips.iter().find(|flip| platform.params.get(&flip.what).is_some());
        if let Some((flip, param)) = flip.and_then(|flip| Some((flip, platform.params.get(&flip.what)?))) {
            let wins_at = |factor: f64, place| {
                let changed = platform.with(&[(&param.path, param.value * factor)]);
                changed.is_ok_and(|changed| wins(&engine(&changed, operation, seed), place))
            };
            let (near, far) = flip.beside();
            all.flips.add(wins_at(near, named.place) && wins_at(far, flip.then));
        }
    }
}

/// Asks the engine with other values within their ranges.
fn drawn_anew(
    platform: &Platform,
    operation: &Operation,
    named: &Candidate,
    (certainty, seed): (f64, u64),
    all: &mut Audit,
) {
    for point in uncertain::hypercube(&platform.params, 1, seed) {
        let Ok(other) = platform.with(&point) else { continue };
        let runs = engine(&other, operation, seed);
        if !runs.is_empty() {
            all.certainty[((certainty * 10.0) as usize).min(9)].add(wins(&runs, named.place));
        }
    }
}

fn calls(operation: &Operation) -> u64 {
    match operation.load {
        Load::Closed(under_way) => CALLS.max(CALLS_EACH * u64::from(under_way)),
        Load::Open(_) => CALLS,
    }
}

fn engine(platform: &Platform, operation: &Operation, seed: u64) -> Vec<WorldRun> {
    let run = |place: Placement| world::run(platform, operation, place, (calls(operation), seed))?.ok();
    remora_model::world::placements(platform).into_iter().filter_map(run).collect()
}

fn of(runs: &[WorldRun], place: Placement) -> Option<&WorldRun> {
    runs.iter().find(|run| run.place == place)
}

fn fastest(runs: &[WorldRun]) -> Option<Placement> {
    runs.iter().min_by_key(|run| run.p50_ns).map(|run| run.place)
}

/// Whether a place is the best, or level with it.
fn wins(runs: &[WorldRun], place: Placement) -> bool {
    let least = runs.iter().map(|run| run.p50_ns).min().unwrap_or(0) as f64;
    of(runs, place).is_some_and(|run| run.p50_ns as f64 <= least * LEVEL)
}

/// Median, 90th percentile, worst.
fn quantiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [0.5, 0.9, 1.0].map(|q| {
        let at = ((values.len() as f64 * q) as usize).min(values.len().saturating_sub(1));
        values.get(at).copied().unwrap_or(0.0)
    })
}

impl Audit {
    /// Takes up what another has found, medians and rates apart.
    fn add(&mut self, other: Self) {
        self.operations += other.operations;
        for (tally, more) in [
            (&mut self.winner, other.winner),
            (&mut self.screen_winner, other.screen_winner),
            (&mut self.by_engine, other.by_engine),
            (&mut self.level, other.level),
            (&mut self.flips, other.flips),
        ] {
            tally.sum(more);
        }
        self.certainty.iter_mut().zip(other.certainty).for_each(|(tally, more)| tally.sum(more));
        self.wrong.extend(other.wrong);
    }

    /// In lines.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let tally = |what: &str, tally: Tally, goal: &str| {
            format!("{what:<58} {:>5} of {:<5} {:>6.1} %  {goal}\n", tally.right, tally.of, tally.part() * 100.0)
        };
        out += &format!("{} random chains of reads, `where` beside the engine:\n\n", self.operations);
        out += &tally("the place named is the engine's best, or level with it", self.winner, "(goal 99 %)");
        out += &tally("the same by the screen alone", self.screen_winner, "");
        out += &tally("answered by the engine", self.by_engine, "");
        out += &tally("called level, and within a tenth by the engine", self.level, "(goal 99 %)");
        out += &tally("flip points that the engine confirms on both sides", self.flips, "(goal 90 %)");
        let off = |what: &str, [half, most, worst]: [f64; 3], goal: &str| {
            let [half, most, worst] = [half, most, worst].map(|part| part * 100.0);
            format!("{what:<58} median {half:.1} %, 90th percentile {most:.1} %, worst {worst:.1} %  {goal}\n")
        };
        out += &off("the screen's median latency is off by", self.p50_off, "(goal 10 % at the 90th)");
        out += &off("the screen's operations a second are off by", self.rate_off, "(goal 15 % at the 90th)");
        out += "\nHow sure it is, and how often that is right with values drawn anew within their ranges:\n";
        for (tenth, found) in self.certainty.iter().enumerate().filter(|(_, found)| found.of > 0) {
            let (low, high) = (tenth * 10, tenth * 10 + 10);
            out += &tally(&format!("  {low} to {high} % sure"), *found, "");
        }
        if !self.wrong.is_empty() {
            out += "\nWrong:\n";
            self.wrong.iter().for_each(|line| out += &format!("  {line}\n"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_finds_the_same_and_who_wins_is_mostly_right() {
        let audit = |jobs, stop| audit(8, 7, jobs, &mut |done| done < stop).unwrap();
        let (first, second) = (audit(1, 9), audit(2, 9));
        assert_eq!(first, second);
        assert_eq!((first.operations, first.winner.of, first.cut), (8, 8, false));
        assert!(first.winner.part() > 0.8, "{first:?}");
        let cut = audit(1, 3);
        assert_eq!((cut.operations, cut.cut), (3, true));
    }
}
