//! [`decide`] held against the engine over random operations: how far its word goes. Half of them have one client with a
//! number of calls under way; the others have several, unequal ones with more queue pairs or fewer, come at a rate, or lose
//! packets.

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
/// The engine by which an answer is judged has other seeds than the one that may have given it, and so many times the calls.
const JUDGE: u64 = 0x5eed;
const JUDGED: u64 = 2;
/// "Level" is wrong where the engine has this factor between the two.
const APART: f64 = 1.1;
/// Of every so many operations the nearest flip point is asked for.
const FLIPS: u64 = 10;
/// Of every so many what places serve at most is held against the engine, with as much under way as that takes: where the
/// screen has a place serve this part of it then.
const FULL: u64 = 5;
const NEARLY: f64 = 0.85;
/// For every so many operations one is looked for that open values leave uncertain, among so many at most; as many points
/// are drawn for the answer as an answer has otherwise, and so many values anew to hold it against.
const DOUBTFUL: u64 = 4;
const LOOKED_AT: usize = 60;
const DRAWN: usize = 8;
/// How sure the answers are that are looked for.
const DOUBT: std::ops::Range<f64> = 0.55..0.98;

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

/// Operations of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Who asks, and how.
    pub kind: String,
    /// The place named is the engine's best, or level with it.
    pub winner: Tally,
    /// The same by the screen alone.
    pub screen_winner: Tally,
    /// The screen's median over the engine's, as a part off: median, 90th percentile, worst.
    pub p50_off: [f64; 3],
    /// The same of operations a second.
    pub rate_off: [f64; 3],
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
    /// What the screen says that places serve at most, over what the engine serves with as much under way as it takes.
    pub most_off: [f64; 3],
    /// Flip points in platform values that the engine confirms on both sides.
    pub flips: Tally,
    /// By certainty, to the nearest tenth from 0 to 1: whether the place named is best or level by the engine with values
    /// drawn anew.
    pub certainty: [Tally; 11],
    /// By kind of operations.
    pub groups: Vec<Group>,
    /// The operations whose winner, flip point or "level" is wrong, in words.
    pub wrong: Vec<String>,
    /// Whether it was ended early.
    pub cut: bool,
}

/// Tries so many operations on all built-in platforms with hardware NICs. `progress` hears how much is done of how much;
/// no ends it.
pub fn audit(
    operations: u64,
    seed: u64,
    jobs: usize,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Audit, ReproduceError> {
    let platforms: Vec<Platform> = Platform::built_in()
        .filter_map(|name| Platform::load(name).ok())
        .filter(|platform| platform.placements.nic != Some(NicDevice::Software))
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut work: Vec<Tried<'_>> = (0..operations)
        .map(|number| {
            let platform = &platforms[below(&mut rng, platforms.len() as u64) as usize];
            let (kind, operation) = random(platform, &mut rng);
            Tried { platform, what: What::Answer(kind, operation), number, seed }
        })
        .collect();
    for number in 0..operations / DOUBTFUL {
        work.push(Tried { platform: work[number as usize].platform, what: What::Doubt, number, seed });
    }
    let options = ReproduceOptions { figure: None, jobs, cache: None, seed };
    let Ran { outcomes, incomplete, .. } = run_all(&work, &options, &mut |p| progress(p.done, p.total))?;
    let mut all = Audit { cut: incomplete.is_some(), ..Audit::default() };
    let found: Vec<Found> = outcomes.into_iter().flatten().collect();
    let off = |kind: Option<Who>| {
        let of = |found: &&Found| kind.is_none() || found.kind == kind;
        let of = || found.iter().filter(of);
        [of().flat_map(|found| &found.p50).copied().collect(), of().flat_map(|found| &found.rates).copied().collect()]
            .map(quantiles)
    };
    [all.p50_off, all.rate_off] = off(None);
    all.most_off = quantiles(found.iter().flat_map(|found| &found.most).copied().collect());
    for kind in Who::ALL {
        let mut group = Audit::default();
        found.iter().filter(|found| found.kind == Some(kind)).for_each(|found| group.add(found.audit.clone()));
        let [p50_off, rate_off] = off(Some(kind));
        let (winner, screen_winner) = (group.winner, group.screen_winner);
        all.groups.push(Group { kind: kind.name().into(), winner, screen_winner, p50_off, rate_off });
    }
    found.into_iter().for_each(|found| all.add(found.audit));
    Ok(all)
}

/// Who asks, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Who {
    /// A client with calls under way.
    One,
    /// Several, alike or not.
    Several,
    /// Calls that come at a rate.
    Rate,
    /// One whose packets are lost now and then.
    Lossy,
}

impl Who {
    const ALL: [Self; 4] = [Self::One, Self::Several, Self::Rate, Self::Lossy];

    fn name(self) -> &'static str {
        match self {
            Self::One => "one client",
            Self::Several => "2 to 16 unequal clients",
            Self::Rate => "calls that come at a rate",
            Self::Lossy => "up to 1 packet of 1000 lost",
        }
    }
}

/// What is tried.
enum What {
    /// The answer to this one.
    Answer(Who, Operation),
    /// How sure an answer is, to one that is looked for.
    Doubt,
}

/// One operation to try.
struct Tried<'a> {
    platform: &'a Platform,
    what: What,
    number: u64,
    seed: u64,
}

/// What came of one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Found {
    kind: Option<Who>,
    audit: Audit,
    /// How far the screen's medians and rates are off.
    p50: Vec<f64>,
    rates: Vec<f64>,
    /// The same of what places serve at most.
    most: Vec<f64>,
}

impl Point for Tried<'_> {
    type Outcome = Found;

    fn key(&self) -> String {
        let what = match &self.what {
            What::Answer(_, operation) => &operation.title,
            What::Doubt => "doubt",
        };
        format!("where {what} {} {} {}", self.platform.name, self.number, self.seed)
    }

    fn run(&self) -> Result<Found, ReproduceError> {
        let mut found = Found::default();
        match &self.what {
            What::Answer(kind, operation) => {
                found.kind = Some(*kind);
                one(self.platform, operation, (self.number, self.seed), &mut found);
                found.audit.operations = 1;
            }
            What::Doubt => doubtful(self.platform, (self.number, self.seed), &mut found.audit),
        }
        Ok(found)
    }

    fn events(_: &Found) -> u64 {
        0
    }
}

/// An operation that the engine can run: half of them chains of reads, the others of all kinds.
fn random(platform: &Platform, rng: &mut ChaCha8Rng) -> (Who, Operation) {
    // Between two powers of two, all powers alike.
    let mut power = |low: u64, high: u64| (1u64 << (low + below(rng, high - low + 1))) as f64;
    let (elements, value, state, under_way) = (power(0, 4), power(6, 12), power(20, 33), power(0, 8) as u32);
    let (machines, threads, lost) = (power(1, 4) as u32, power(0, 2) as u32, power(0, 6));
    let connections = power(0, 17) as u64;
    let (node, cycles, per_cycle, rows, word) = (power(6, 12), power(4, 11), power(0, 5), power(2, 6), power(6, 20));
    let one = under_way.min(world::most(&Clients::default()));
    let access = |count, bytes| Access { count, bytes, kind: Kind::Read, dependent: true };
    let what = below(rng, 8);
    let (accesses, request, reply, state, what) = match what {
        0 => {
            let rows = Access { dependent: false, ..access(rows, value.min(1024.0)) };
            (vec![rows], 36.0, value.min(1024.0), state, format!("{} rows of {} B at once", rows.count, rows.bytes))
        }
        1 => (vec![access(elements, node)], 36.0, 64.0, state, format!("{elements} nodes of {node} B")),
        2 => {
            let add = Access { kind: Kind::Atomic, ..access(1.0, 8.0) };
            (vec![add], 36.0, 8.0, word, "an atomic operation".into())
        }
        3 => {
            let (find, put) = (access(elements.min(4.0), 64.0), value.min(2048.0));
            let put = Access { kind: Kind::Write, ..access(1.0, put) };
            let what = format!("{} reads and a write of {} B", find.count, put.bytes);
            (vec![find, put], 36.0 + put.bytes, 8.0, state, what)
        }
        _ => {
            let chain = vec![access(elements, 64.0), access(1.0, value)];
            (chain, 36.0, value, state, format!("{elements} elements, {value} B"))
        }
    };
    let computes = below(rng, 2) == 0;
    let skew = if below(rng, 4) == 0 { below(rng, 1200) as f64 / 1000.0 } else { 0.0 };
    let mut operation = Operation {
        title: String::new(),
        item: accesses.iter().map(|access| access.bytes).fold(64.0, f64::max),
        accesses,
        request,
        reply,
        uneven: false,
        cycles: if computes { cycles } else { 0.0 },
        pipeline_cycles: if computes { cycles / per_cycle } else { 0.0 },
        state,
        skew,
        writes: 0.0,
        memory: Memory::Host,
        load: Load::Closed(one),
        clients: Clients::default(),
    };
    // From a part of 1024 to all but one.
    let part = (1 + below(rng, 1022)) as f64 / 1024.0;
    let mut load = format!("{one} under way");
    let kind = match below(rng, 6) {
        0..3 => Who::One,
        3 => {
            // None has more under way than a modelled client takes.
            let connections = connections.max(u64::from(machines * threads));
            let (skew, connections) = (1.5 * part, Some(connections));
            operation.clients = Clients { machines, threads, skew, connections, ..Clients::default() };
            let under_way = under_way.min(world::most(&operation.clients));
            operation.load = Load::Closed(under_way);
            load = format!("{under_way} under way of {machines} clients of {threads} threads, unequal by {skew:.2}, ");
            load += &format!("by {} queue pairs", operation.clients.queue_pairs());
            Who::Several
        }
        4 => {
            let places = rank(platform, &operation, &WhereOptions::default());
            let most = places.iter().map(|candidate| candidate.saturation_per_s).fold(0.0, f64::max);
            operation.load = Load::Open(SERVED * part * most);
            load = format!("{:.0} a second", SERVED * part * most);
            Who::Rate
        }
        _ => {
            operation.clients.loss = MOST_LOST / lost;
            load += &format!(", {:.6} of packets lost", operation.clients.loss);
            Who::Lossy
        }
    };
    let computes = if computes { format!(" and {cycles} cycles") } else { String::new() };
    let skewed = if skew > 0.0 { format!(" by {skew:.2}") } else { String::new() };
    operation.title = format!("{what}{computes}, over {state} B{skewed}, {load}");
    (kind, operation)
}

/// The largest part of packets that is lost, and the largest part of what the best place serves that comes: beyond,
/// latencies say how long one looked.
const MOST_LOST: f64 = 1e-3;
const SERVED: f64 = 0.9;

fn one(platform: &Platform, operation: &Operation, (number, seed): (u64, u64), found: &mut Found) {
    let Found { audit: all, p50, rates, most, .. } = found;
    let (simulated, flips) = (10 * calls(operation) as u32, usize::from(number.is_multiple_of(FLIPS)));
    let options = WhereOptions { points: POINTS, simulated, flips, seed, ..WhereOptions::default() };
    let screen = rank(platform, operation, &options);
    let runs = engine(platform, operation, seed);
    let (Some(answer), Some(best)) = (decide(platform, operation, &options), fastest(&runs)) else { return };
    let [named, rest @ ..] = &answer.ranking[..] else { return };
    for candidate in &screen {
        let served = match operation.load {
            Load::Closed(_) => true,
            Load::Open(rate) => rate < SERVED * candidate.saturation_per_s,
        };
        if let Some(run) = of(&runs, candidate.place).filter(|_| served) {
            p50.push((candidate.p50_ns / run.p50_ns as f64 - 1.0).abs());
            rates.push((candidate.ops_per_s / run.ops_per_s - 1.0).abs());
        }
    }
    if number.is_multiple_of(FULL) {
        let full = Operation { load: Load::Closed(world::most(&operation.clients)), ..operation.clone() };
        let runs = engine(platform, &full, seed);
        for candidate in rank(platform, &full, &options) {
            let is_full = candidate.ops_per_s > NEARLY * candidate.saturation_per_s;
            if let Some(run) = of(&runs, candidate.place).filter(|_| is_full) {
                most.push((candidate.saturation_per_s / run.ops_per_s - 1.0).abs());
            }
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
        let level = ratio.max(1.0 / ratio) < APART;
        all.level.add(level);
        if !level {
            all.wrong.push(format!("{} on {}: {}, {ratio:.2}", operation.title, platform.name, answer.line));
        }
    }
    drawn_anew(platform, operation, named, (answer.certainty, 1, seed ^ number), all);
    if number.is_multiple_of(FLIPS) {
        // A value of the platform has a path.
        let flip = answer.flips.iter().find(|flip| platform.params.get(&flip.what).is_some());
        if let Some((flip, param)) = flip.and_then(|flip| Some((flip, platform.params.get(&flip.what)?))) {
            let wins_at = |factor: f64, place| {
                let changed = platform.with(&[(&param.path, param.value * factor)]);
                changed.is_ok_and(|changed| wins(&engine(&changed, operation, seed), place))
            };
            let (near, far) = flip.beside();
            let confirmed = wins_at(near, named.place) && wins_at(far, flip.then);
            all.flips.add(confirmed);
            if !confirmed {
                all.wrong.push(format!("{} on {}: {}", operation.title, platform.name, flip.line(named.place)));
            }
        }
    }
}

/// Looks for an operation that open values leave uncertain, and holds how sure its answer is against the engine.
fn doubtful(platform: &Platform, (number, seed): (u64, u64), all: &mut Audit) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (number << 32));
    for _ in 0..LOOKED_AT {
        let (_, operation) = random(platform, &mut rng);
        let options = WhereOptions { points: POINTS, simulated: 0, flips: 0, seed, ..WhereOptions::default() };
        let screened = decide(platform, &operation, &options).is_some_and(|answer| DOUBT.contains(&answer.certainty));
        if !screened {
            continue;
        }
        let (points, simulated) = (WhereOptions::default().points, 10 * calls(&operation) as u32);
        let options = WhereOptions { points, simulated, ..options };
        let Some(answer) = decide(platform, &operation, &options) else { continue };
        if let Some(named) = answer.ranking.first().filter(|_| DOUBT.contains(&answer.certainty)) {
            return drawn_anew(platform, &operation, named, (answer.certainty, DRAWN, seed ^ !number), all);
        }
    }
}

/// Asks the engine with other values within their ranges, so many times.
fn drawn_anew(
    platform: &Platform,
    operation: &Operation,
    named: &Candidate,
    (certainty, times, seed): (f64, usize, u64),
    all: &mut Audit,
) {
    for point in uncertain::hypercube(&platform.params, times, seed) {
        let Ok(other) = platform.with(&point) else { continue };
        let runs = engine(&other, operation, seed);
        if !runs.is_empty() {
            all.certainty[tenth(certainty)].add(wins(&runs, named.place));
        }
    }
}

/// The nearest tenth, by its number.
fn tenth(certainty: f64) -> usize {
    ((certainty * 10.0).round() as usize).min(10)
}

fn calls(operation: &Operation) -> u64 {
    match operation.load {
        Load::Closed(under_way) => CALLS.max(CALLS_EACH * u64::from(under_way)),
        // Their waits differ more.
        Load::Open(_) => 5 * CALLS,
    }
}

fn engine(platform: &Platform, operation: &Operation, seed: u64) -> Vec<WorldRun> {
    let calls = JUDGED * calls(operation);
    let run = |place: Placement| world::run(platform, operation, place, (calls, seed ^ JUDGE))?.ok();
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
        let mut out = format!("{} random operations, `where` beside the engine:\n\n", self.operations);
        let tally = |what: &str, tally: Tally, goal: &str| {
            let (count, part) = (format!("{} of {}", tally.right, tally.of), tally.part() * 100.0);
            format!("{what:<42} {count:>12} {part:>6.1} %  {goal}").trim_end().to_string() + "\n"
        };
        out += &tally("the place named is best, or level with it", self.winner, "goal 99 %");
        out += &tally("the same by the screen alone", self.screen_winner, "");
        out += &tally("answered by the engine", self.by_engine, "");
        out += &tally("called level, and within a tenth", self.level, "goal 99 %");
        out += &tally("flip points confirmed on both sides", self.flips, "goal 90 %");
        out.push('\n');
        let one = |part: f64| if part < 10.0 { format!("{:.1}", part * 100.0) } else { ">999".into() };
        let percent = |off: &[f64; 3]| off.map(one).join(", ");
        let mut group = |[what, right, screen, p50, rates]: [&str; 5]| {
            out += format!("{what:<28} {right:>10} {screen:>6} {p50:>16} {rates:>16}").trim_end();
            out.push('\n');
        };
        group(["", "", "", "median", "rate"]);
        group(["", "right of", "screen", "off by, in %", "off by, in %"]);
        for Group { kind, winner, screen_winner, p50_off, rate_off } in self.groups.iter().filter(|g| g.winner.of > 0) {
            let (right, screen) = (format!("{} of {}", winner.right, winner.of), screen_winner.right.to_string());
            group([kind, &right, &screen, &percent(p50_off), &percent(rate_off)]);
        }
        group(["all; goal at the 90th", "", "", "10", "15"]);
        group(["all", "", "", &percent(&self.p50_off), &percent(&self.rate_off)]);
        group(["served at most", "", "", "", &percent(&self.most_off)]);
        out += "(the screen's figures beside the engine's: median, 90th percentile, worst)\n";
        out += "\nHow sure it is, and how often that is right with values drawn anew:\n\n";
        for (tenth, found) in self.certainty.iter().enumerate().filter(|(_, found)| found.of > 0) {
            let (low, high) = ((tenth * 10).saturating_sub(5), (tenth * 10 + 5).min(100));
            let goal = if tenth == 9 { "goal 85 to 95 %" } else { "" };
            out += &tally(&format!("{low} to {high} % sure"), *found, goal);
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
        let audit = |jobs, stop| audit(8, 7, jobs, &mut |done, _| done < stop).unwrap();
        let (first, second) = (audit(1, 99), audit(2, 99));
        assert_eq!(first, second);
        assert_eq!((first.operations, first.winner.of, first.cut), (8, 8, false));
        assert!(first.winner.part() > 0.8, "{first:?}");
        let cut = audit(1, 3);
        assert_eq!((cut.operations, cut.cut), (3, true));
    }
}
