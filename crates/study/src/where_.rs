//! Where an operation should run on a platform: an analytical screen of all placements, a simulation of those that lie
//! close, what the platform's open values leave undecided, and what would have to change for another place to win.

use std::cell::Cell;

mod audit;
mod curve;
mod flips;
mod hardware;
mod kernel;
mod operation;
mod path;
pub mod rack;
mod screen;
mod simulate;
mod software;
mod uncertain;
mod world;

pub use audit::{Audit, Tally, audit};
pub use curve::{Curve, LoadPoint, curves, draw};
pub use flips::Flip;
pub use operation::{Access, Clients, Kind, Load, Memory, Operation, OperationError, TEMPLATES};
pub use path::{Path, Station, Visit};
pub use screen::{Candidate, evaluate};
pub use simulate::Simulated;
pub(crate) use software::CACHED;
pub use software::{SoftwareTimes, costs, ring_difference, times};
pub use uncertain::{Contribution, Interval, Open};
pub use world::WorldRun;

use remora_kernel::Placement;
use remora_model::platform::{NicDevice, Platform, SourceStatus};
use remora_real::LinkKind;
use serde::Serialize;

/// What decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The median latency under the operation's load.
    #[default]
    Latency,
    /// Operations a second at saturation.
    Rate,
    /// Operations per joule.
    Energy,
}

impl Goal {
    /// What is to be as small as can be.
    pub fn cost(self, candidate: &Candidate) -> f64 {
        match self {
            Self::Latency => candidate.p50_ns,
            Self::Rate => 1e9 / candidate.saturation_per_s,
            Self::Energy => candidate.ops_per_joule.map_or(f64::INFINITY, |ops| 1.0 / ops),
        }
    }
}

/// What an answer stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DecidedBy {
    /// The analytical screen alone.
    Screen,
    /// Runs of the real engine in the modelled world, of every placement that lies close, or that may be the best at other values of
    /// what is open.
    Engine,
}

/// Costs closer than this are level.
pub const LEVEL: f64 = 1.05;

/// How to decide.
#[derive(Clone, Copy, Debug)]
pub struct WhereOptions {
    /// What decides.
    pub goal: Goal,
    /// The link, on a platform whose NIC is software.
    pub link: LinkKind,
    /// The node's engines there, each on a core of its own, with as many clients that have cores of their own too.
    pub engines: u16,
    /// Points of the Latin hypercube over the open values.
    pub points: usize,
    /// Operations that each simulation runs; 0 for none.
    pub simulated: u32,
    /// Flips that the engine is to confirm.
    pub flips: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// What the engine's cost is of the screen's, for each place in the order of [`Placement::ALL`].
    pub corrections: [f64; Placement::ALL.len()],
}

impl Default for WhereOptions {
    fn default() -> Self {
        let corrections = [1.0; Placement::ALL.len()];
        Self {
            goal: Goal::Latency,
            link: LinkKind::Udp,
            engines: 1,
            points: 256,
            simulated: 20_000,
            flips: 6,
            seed: 42,
            corrections,
        }
    }
}

impl WhereOptions {
    /// What is to be as small as can be: the screen's cost, corrected by what the engine says where it was asked.
    pub fn cost(&self, candidate: &Candidate) -> f64 {
        let place = Placement::ALL.iter().position(|place| *place == candidate.place);
        self.goal.cost(candidate) * place.map_or(1.0, |place| self.corrections[place])
    }

    /// Corrected by what the engine says that places cost, where the screen says so of all of them as well.
    fn corrected(mut self, screen: &[Candidate], engine: &[(Placement, f64)]) -> Option<Self> {
        for (place, cost) in engine {
            let candidate = screen.iter().find(|candidate| candidate.place == *place)?;
            let number = Placement::ALL.iter().position(|known| known == place)?;
            // Infinite where the place does not carry the load.
            self.corrections[number] = Some(cost / self.goal.cost(candidate)).filter(|of| *of > 0.0)?;
        }
        Some(self)
    }
}

/// Where the operation should run, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The placements that the platform has, the best first.
    pub ranking: Vec<Candidate>,
    /// How far open values move each of them, in the same order.
    pub intervals: Vec<Interval>,
    /// The part of points of the open values at which the first is best or level. Where the engine was asked, the screen is as
    /// far off there as it was found to be at some of them.
    pub certainty: f64,
    /// Whether that is enough to say so.
    pub decided: bool,
    /// What the ranking stands on.
    pub by: DecidedBy,
    /// The open values, by how much they move the first two against each other, the strongest first.
    pub contributions: Vec<Contribution>,
    /// Values at which another place becomes the best, the nearest first.
    pub flips: Vec<Flip>,
    /// Simulations of the placements that lie close, in the ranking's order.
    pub simulated: Vec<Simulated>,
    /// Runs in the modelled world, with the real engine, if there is a way to run the operation there.
    pub world: Vec<WorldRun>,
    /// The answer in a sentence.
    pub line: String,
}

/// The part of points at which the first must be best to be called so.
const CERTAIN: f64 = 0.95;
/// Placements within this factor of the best are simulated.
const CLOSE: f64 = 1.5;
/// Places within this factor of the best by the engine are run again, so many times with so many times the calls: what lies in
/// the draw of a run, or in how long it is, may come to as much.
const ALIKE: f64 = 1.2;
const AGAIN: u64 = 2;
const AGAIN_CALLS: u64 = 2;
/// What is level in the mean is not called so if a run has one of the two so far ahead.
const NOT_LEVEL: f64 = 1.08;
/// How far the screen is off at other values of what is open, the engine says under so many draws of them: with fewer calls each
/// than for the answer, but with so many at least, and so many for each that is under way.
const DRAWS: usize = 8;
/// About which part of an answer is there when places were simulated, when the engine has run them, and when it has run
/// them under draws; the rest are flips.
const SIMULATED: f64 = 0.05;
const RUN: f64 = 0.2;
const DRAWN: f64 = 0.4;
const DRAWN_CALLS: u64 = 100;
const DRAWN_CALLS_EACH: u64 = 4;

/// What a platform says too little for, if it does: what is asked, and the section that is missing.
pub fn missing(platform: &Platform, operation: &Operation, goal: Goal) -> Option<String> {
    let name = &platform.name;
    if goal == Goal::Energy && platform.power.is_none() {
        return Some(format!("{name} has no section [power]: energy is not known"));
    }
    let far = operation.memory == Memory::Far && platform.sockets.is_none();
    far.then(|| format!("{name} has no section [host.sockets]: how far the other socket's memory is, is not known"))
}

/// What a reader of an answer must know of its figures, a sentence each.
pub fn notes(operation: &Operation, goal: Goal, answer: &Answer) -> Vec<String> {
    let mut notes = Vec::new();
    let (loss, engine) = (operation.clients.loss, !answer.world.is_empty());
    if loss > 0.0 {
        notes.push(match engine {
            true => "the table is without lost packets; what the engine says is with them".into(),
            false => "warning: lost packets are left out, as the engine does not run this operation".into(),
        });
    }
    let most = world::most(&operation.clients);
    match operation.load {
        _ if !engine => {}
        _ if goal == Goal::Rate => notes.push(format!("the engine runs with {most} under way, for the rate")),
        Load::Closed(under_way) if under_way > most => {
            notes.push(format!("the engine runs with {most} of {under_way} under way"));
        }
        _ => {}
    }
    notes
}

/// Decides; `None` if the platform has no placement.
pub fn decide(platform: &Platform, operation: &Operation, options: &WhereOptions) -> Option<Answer> {
    decide_until(platform, operation, options, &|_| false)
}

/// The same; `watch` is told about which part of it is done, and may say to stop: then what is left of the simulations is
/// left out.
pub fn decide_until(
    platform: &Platform,
    operation: &Operation,
    options: &WhereOptions,
    watch: &dyn Fn(f64) -> bool,
) -> Option<Answer> {
    let goal = options.goal;
    let done = Cell::new(0.0);
    let stop = || watch(done.get());
    let mut ranking = rank(platform, operation, options);
    let least = goal.cost(ranking.first()?);
    // The screen knows nothing of lost packets, and of several clients what they are together: with them the engine has to say how
    // far places lie apart. Of a load that a place does not carry it would say how long one looked.
    let asks_all = operation.clients.loss > 0.0 || operation.clients.machines > 1;
    let points = uncertain::points(platform, operation, options);
    let open = uncertain::weigh(&points, &ranking, &[*options]);
    let is_open = |place| open.certainty < CERTAIN && open.winners.contains(&place);
    let close = |candidate: &&Candidate| {
        let cost = goal.cost(candidate);
        let is_close = asks_all || cost <= CLOSE * least || is_open(candidate.place);
        options.simulated > 0 && cost.is_finite() && is_close
    };
    let close: Vec<Placement> = ranking.iter().filter(close).map(|candidate| candidate.place).collect();
    let simulated = close.iter().take_while(|_| !stop()).filter_map(|&place| {
        let path = path_of(platform, operation, place, (options.link, options.engines))?;
        simulate::run(place, &path, operation.load, options.simulated, options.seed)
    });
    let simulated = simulated.collect();
    done.set(SIMULATED);
    // A placement that the world cannot run is one that it says nothing of.
    let count = u64::from(options.simulated / 10).max(1);
    let asked = world::loaded(operation, goal);
    let run = |&place: &Placement| world::run(platform, &asked, place, (count, options.seed))?.ok();
    let world: Vec<WorldRun> = close.iter().take_while(|_| !stop()).filter_map(run).collect();
    let engine = |platform: &Platform, operation: &Operation, places: &[Placement], (count, seed)| -> Option<Costs> {
        let asked = world::loaded(operation, goal);
        let run = |&place: &Placement| {
            let cost = world::run(platform, &asked, place, (count, seed))?.ok()?.cost(goal)?;
            Some((place, cost))
        };
        if stop() { None } else { places.iter().map(run).collect() }
    };
    // Where every place that lies close was run, the engine's word counts, and the screen says only what moves it.
    let costs = |place: &Placement| Some((*place, world.iter().find(|run| run.place == *place)?.cost(goal)?));
    let costs: Option<Costs> = close.iter().map(costs).collect();
    let costs = costs.filter(|costs| costs.len() > 1 && world::is_whole(&asked));
    let runs = costs.map_or(Vec::new(), |costs| {
        let least = costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
        let alike = costs.iter().filter(|(_, cost)| *cost < ALIKE * least).map(|(place, _)| *place);
        let alike: Vec<Placement> = alike.collect();
        let again = (1..=AGAIN).filter(|_| alike.len() > 1);
        let again = again.filter_map(|n| engine(platform, operation, &alike, (AGAIN_CALLS * count, options.seed ^ n)));
        std::iter::once(costs).chain(again).collect()
    });
    done.set(RUN);
    let corrected = if runs.is_empty() { None } else { options.corrected(&ranking, &means(&runs)) };
    let (plain, options, by) = match &corrected {
        Some(corrected) => (options, corrected, DecidedBy::Engine),
        None => (options, options, DecidedBy::Screen),
    };
    ranking.sort_by(|a, b| options.cost(a).total_cmp(&options.cost(b)));
    let mut open = uncertain::weigh(&points, &ranking, &[*options]);
    if by == DecidedBy::Engine && open.near.len() > 1 {
        let each = match asked.load {
            Load::Closed(under_way) => DRAWN_CALLS_EACH * u64::from(under_way),
            Load::Open(_) => 0,
        };
        let fewer = (count / DRAWS as u64).max(DRAWN_CALLS).max(each).min(count);
        let draws = uncertain::hypercube(&platform.params, DRAWS, !options.seed);
        let draws = draws.iter().zip(1..).filter_map(|(values, n)| {
            done.set(RUN + (DRAWN - RUN) * (n - 1) as f64 / DRAWS as f64);
            let drawn = platform.with(values).ok()?;
            let screen = rank(&drawn, operation, plain);
            // Of a place that does not carry the load there the screen is enough.
            let near = screen.iter().filter(|c| open.near.contains(&c.place) && goal.cost(c).is_finite());
            let near: Vec<Placement> = near.map(|candidate| candidate.place).collect();
            options.corrected(&screen, &engine(&drawn, operation, &near, (fewer, options.seed ^ n))?)
        });
        let draws: Vec<WhereOptions> = draws.collect();
        if !draws.is_empty() {
            open = uncertain::weigh(&points, &ranking, &draws);
        }
    }
    let places: Vec<Placement> = ranking.iter().map(|candidate| candidate.place).collect();
    // Flips are held against the engine wherever it has a word, though the screen has decided.
    let confirms = options.flips > 0 && options.simulated > 0 && world::runs(platform, &asked);
    let of_all =
        |platform: &Platform, operation: &Operation| engine(platform, operation, &places, (count, options.seed));
    let engine: Option<&flips::Engine<'_>> = if confirms { Some(&of_all) } else { None };
    // Where no place carries the load, none is the best until another is.
    let carried = ranking.first().is_some_and(|best| options.cost(best).is_finite());
    let tell = |part: f64| done.set(DRAWN + (1.0 - DRAWN) * part);
    tell(0.0);
    let flips = if carried { flips::find(platform, operation, &ranking, options, engine, &tell) } else { Vec::new() };
    let Open { intervals, certainty, .. } = open;
    let contributions = uncertain::contributions(platform, operation, &ranking, options);
    let mut answer = Answer {
        decided: certainty >= CERTAIN,
        by,
        certainty,
        intervals,
        contributions,
        flips,
        simulated,
        world,
        line: String::new(),
        ranking,
    };
    answer.line = line(platform, &answer, options, &runs);
    Some(answer)
}

/// The screen of all placements, the best first.
pub fn rank(platform: &Platform, operation: &Operation, options: &WhereOptions) -> Vec<Candidate> {
    let mut ranking: Vec<_> = Placement::ALL
        .into_iter()
        .filter_map(|place| {
            let path = path_of(platform, operation, place, (options.link, options.engines))?;
            Some(evaluate(platform, place, &path, operation))
        })
        .collect();
    ranking.sort_by(|a, b| options.cost(a).total_cmp(&options.cost(b)));
    ranking
}

/// The way of an operation in a placement; `None` if the platform has no such place. Of a software NIC also the link, and
/// how many engines a node has.
pub fn path_of(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    software: (LinkKind, u16),
) -> Option<Path> {
    match platform.placements.nic {
        Some(NicDevice::Software) => software::path(platform, operation, place, software),
        _ => hardware::path(platform, operation, place),
    }
}

/// What places cost in a run of the engine each.
type Costs = Vec<(Placement, f64)>;

/// What each of the first run's costs in the mean of those that it is in.
fn means(runs: &[Costs]) -> Costs {
    let of = |place| runs.iter().flatten().filter(move |(known, _)| *known == place).map(|(_, cost)| *cost);
    let mean = |place| of(place).sum::<f64>() / of(place).count() as f64;
    runs.iter().take(1).flatten().map(|&(place, _)| (place, mean(place))).collect()
}

/// The answer in a sentence. `runs` are the engine's at the platform's values.
fn line(platform: &Platform, answer: &Answer, options: &WhereOptions, runs: &[Costs]) -> String {
    let Answer { ranking, contributions, certainty, .. } = answer;
    let [best, rest @ ..] = &ranking[..] else { return String::new() };
    let Some(second) = rest.first() else {
        return format!("{} is the only place on {}", best.place, platform.name);
    };
    let ratio = options.cost(second) / options.cost(best);
    let by = match answer.by {
        DecidedBy::Engine => ", by the engine",
        DecidedBy::Screen => ", by the screen",
    };
    // A load that a place does not carry has it wait for ever there.
    if options.cost(best).is_infinite() {
        return format!("no place on {} carries the offered load", platform.name);
    }
    if ratio.is_infinite() {
        return format!(
            "{} wins on {}: {} does not carry the offered load{by}",
            best.place, platform.name, second.place
        );
    }
    if !answer.decided {
        // What somebody printed or measured is not worth measuring again before what nobody did.
        let weak = |value: &&Contribution| matches!(value.status, SourceStatus::Estimate | SourceStatus::Literature);
        let measure = contributions.iter().find(weak).or(contributions.first());
        let next = match measure {
            Some(Contribution { path, status: SourceStatus::Measured, .. }) => {
                format!("probe again on a quieter machine: most hangs on {path}")
            }
            Some(Contribution { path, .. }) => format!("measure {path}"),
            None => "measure an open value".into(),
        };
        return format!(
            "cannot tell {} from {} on {}: {} is best at {:.0} % of what open values may be; {next}",
            best.place,
            second.place,
            platform.name,
            best.place,
            certainty * 100.0
        );
    }
    let apart = runs.iter().filter_map(|run| {
        let of = |place| run.iter().find(|(known, _)| *known == place).map(|(_, cost)| *cost);
        Some(of(second.place)? / of(best.place)?)
    });
    let (least, most) = apart.fold((ratio, ratio), |(least, most), apart| (apart.min(least), apart.max(most)));
    if ratio < LEVEL && most.max(1.0 / least) > NOT_LEVEL {
        return format!(
            "{} is as good as any on {}{by}: {} takes {least:.2} to {most:.2} x as much, run by run",
            best.place, platform.name, second.place
        );
    }
    if ratio < LEVEL {
        return format!("{} and {} are level on {}{by}", best.place, second.place, platform.name);
    }
    let what = match options.goal {
        Goal::Latency => "faster",
        Goal::Rate => "more operations a second",
        Goal::Energy => "more operations per joule",
    };
    format!("{} wins on {}: {ratio:.2} x {what} than {}{by}", best.place, platform.name, second.place)
}

#[cfg(test)]
mod tests;
