//! What would have to change for another place to be the best: values of the platform and of the operation, each alone.

use std::cell::Cell;

use remora_model::platform::Platform;
use serde::Serialize;

use super::operation::{Load, Operation};
use super::screen::Candidate;
use remora_kernel::Placement;

use super::{WhereOptions, rank};

/// A value at which the best place changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flip {
    /// The value, by its path in the platform, or of the operation.
    pub what: String,
    /// What it is now.
    pub now: String,
    /// Where the best place changes.
    pub at: String,
    /// The best place beyond that.
    pub then: Placement,
    /// Whether the best place of now stays the best while the value is under `at`, or while it is over.
    pub while_under: bool,
    /// Whether the value can be so: it lies in the range that the platform gives.
    pub in_range: bool,
    /// `at` over now.
    pub factor: f64,
    /// Whether the engine has the best place of now on one side and the other on the other, a tenth away; nothing if it was
    /// not asked.
    pub confirmed: Option<bool>,
}

impl Flip {
    /// A little before it, where the best place of now is to win, and a little beyond, where the other one is; over now.
    pub(super) fn beside(&self) -> (f64, f64) {
        let (low, high) = (self.factor / BESIDE, self.factor * BESIDE);
        if self.while_under { (low, high) } else { (high, low) }
    }

    /// `nic wins while host.pcie.read_latency is under 1.1 us (now 1.5 us); then client`.
    pub fn line(&self, best: Placement) -> String {
        let side = if self.while_under { "under" } else { "over" };
        let reach = if self.in_range { ", which its range allows" } else { "" };
        let by = if self.confirmed == Some(true) { ", by the engine" } else { "" };
        let Self { what, at, now, then, .. } = self;
        format!("{best} wins while {what} is {side} {at} (now {now}{reach}); else {then}{by}")
    }
}

/// How far to look: this factor up and down, in steps of two, then by bisection.
const DOUBLINGS: i32 = 4;
const BISECTIONS: usize = 24;

/// Of the nearest so many times as many as are to be confirmed are held against the engine at most.
const ASKED: usize = 4;
/// How far on either side the engine is asked.
const BESIDE: f64 = 1.1;

/// Something that can be turned.
struct Knob<'a> {
    what: String,
    now: f64,
    range: Option<(f64, f64)>,
    text: Box<dyn Fn(f64) -> String + 'a>,
    at: Box<dyn Fn(f64) -> Option<(Platform, Operation)> + 'a>,
}

/// Asks the engine what each place costs on a platform; `None` where it has no word.
pub type Engine<'a> = dyn Fn(&Platform, &Operation) -> Option<Vec<(Placement, f64)>> + 'a;

/// Finds them, the nearest first. With an engine the nearest are held against it, and only those that it confirms are given;
/// `tell` is told which part of them were.
pub fn find(
    platform: &Platform,
    operation: &Operation,
    ranking: &[Candidate],
    options: &WhereOptions,
    engine: Option<&Engine<'_>>,
    tell: &dyn Fn(f64),
) -> Vec<Flip> {
    let [best, _, ..] = ranking else { return Vec::new() };
    let knobs = knobs(platform, operation);
    let mut flips: Vec<(&Knob<'_>, Flip)> = knobs
        .iter()
        .flat_map(|knob| [-1, 1].map(|direction| Some((knob, flip(knob, best.place, (direction, knob.now), options)?))))
        .flatten()
        .collect();
    let nearness = |flip: &Flip| flip.factor.ln().abs();
    flips.sort_by(|a, b| nearness(&a.1).total_cmp(&nearness(&b.1)));
    let Some(engine) = engine else { return flips.into_iter().map(|(_, flip)| flip).collect() };
    let most = flips.len().min(ASKED * options.flips);
    let asked = flips.into_iter().take(most).enumerate();
    let sure = Cell::new(0);
    let confirmed = asked.filter_map(|(n, (knob, found))| {
        // It ends with the last that there is, or with as many as are wanted.
        tell((n as f64 / most as f64).max(f64::from(sure.get()) / options.flips as f64));
        let flip = confirm(knob, best.place, found, options, engine);
        sure.set(sure.get() + u32::from(flip.is_some()));
        flip
    });
    let mut confirmed: Vec<Flip> = confirmed.take(options.flips).collect();
    confirmed.sort_by(|a, b| nearness(a).total_cmp(&nearness(b)));
    confirmed
}

/// The flip as the engine has it: where the screen puts it, or where it does once it knows what the engine has there.
fn confirm(knob: &Knob<'_>, best: Placement, found: Flip, options: &WhereOptions, engine: &Engine<'_>) -> Option<Flip> {
    let mut flip_at = found;
    for _ in 0..3 {
        let value = knob.now * flip_at.factor;
        let wins = |value: f64, place| {
            let (platform, operation) = (knob.at)(value)?;
            let costs = engine(&platform, &operation)?;
            let least = costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
            let ours = costs.iter().find(|(known, _)| *known == place)?.1;
            Some(ours <= least * super::LEVEL)
        };
        let (near, far) = flip_at.beside();
        if wins(knob.now * near, best)? && wins(knob.now * far, flip_at.then)? {
            return Some(Flip { confirmed: Some(true), ..flip_at });
        }
        let (platform, operation) = (knob.at)(value)?;
        let there = options.corrected(&rank(&platform, &operation, options), &engine(&platform, &operation)?)?;
        let direction = if flip_at.while_under { 1 } else { -1 };
        // From where the best place of now still is the best by these corrections, if anywhere nearer.
        let from = (0..=DOUBLINGS).map(|step| knob.now * flip_at.factor / 1.5f64.powi(direction * step));
        let from = from.into_iter().find(|value| first(knob, *value, &there) == Some(best))?;
        flip_at = flip(knob, best, (direction, from), &there)?;
    }
    None
}

/// The best place with a value.
fn first(knob: &Knob<'_>, value: f64, options: &WhereOptions) -> Option<Placement> {
    let (platform, operation) = (knob.at)(value)?;
    rank(&platform, &operation, options).first().map(|candidate| candidate.place)
}

/// Looks from a value on, where a place is the best.
fn flip(knob: &Knob<'_>, best: Placement, (direction, from): (i32, f64), options: &WhereOptions) -> Option<Flip> {
    let stays = |value: f64| first(knob, value, options).map(|place| place == best);
    let mut near = from;
    for step in 1..=DOUBLINGS {
        let far = from * 2f64.powi(direction * step);
        if stays(far)? {
            near = far;
            continue;
        }
        let mut far = far;
        for _ in 0..BISECTIONS {
            let middle = (near * far).sqrt();
            if stays(middle)? { near = middle } else { far = middle }
        }
        let factor = far / knob.now;
        // What lies on the other side of now says nothing of what would have to change.
        if (factor > 1.0) != (direction > 0) {
            return None;
        }
        return Some(Flip {
            what: knob.what.clone(),
            now: (knob.text)(knob.now),
            at: (knob.text)(far),
            then: first(knob, far, options)?,
            while_under: direction > 0,
            in_range: knob.range.is_some_and(|(low, high)| (low..=high).contains(&far)),
            factor,
            confirmed: None,
        });
    }
    None
}

fn knobs<'a>(platform: &'a Platform, operation: &'a Operation) -> Vec<Knob<'a>> {
    let of_platform = platform.params.iter().filter(|param| param.value > 0.0).map(move |param| Knob {
        what: param.path.clone(),
        now: param.value,
        range: Some(param.range),
        text: Box::new(|value| three_digits(param, value)),
        at: Box::new(move |value| Some((platform.with(&[(&param.path, value)]).ok()?, operation.clone()))),
    });
    let of_operation = operation_knobs(operation).into_iter().map(move |(what, unit, now, set)| Knob {
        what: what.into(),
        now,
        range: None,
        text: Box::new(move |value| format!("{}{unit}", crate::format::digits(value))),
        at: Box::new(move |value| {
            let mut other = operation.clone();
            set(&mut other, value);
            Some((platform.clone(), other))
        }),
    });
    of_platform.chain(of_operation).collect()
}

type Set = fn(&mut Operation, f64);

/// What of an operation can be turned: name, unit, value, and how to set it.
fn operation_knobs(operation: &Operation) -> Vec<(&'static str, &'static str, f64, Set)> {
    let mut knobs: Vec<(&'static str, &'static str, f64, Set)> = vec![
        ("the request", " B", operation.request, |operation, value| operation.request = value),
        ("the reply", " B", operation.reply, |operation, value| operation.reply = value),
        ("the state", " B", operation.state, |operation, value| operation.state = value),
        ("the computation", " cycles", operation.cycles, |operation, value| {
            operation.pipeline_cycles *= value / operation.cycles.max(1e-9);
            operation.cycles = value;
        }),
        ("the number of accesses", "", operation.count(), |operation, value| {
            let factor = value / operation.count().max(1e-9);
            operation.accesses.iter_mut().for_each(|access| access.count *= factor);
        }),
    ];
    knobs.push(match operation.load {
        Load::Closed(under_way) => ("the concurrency", "", f64::from(under_way), |operation, value| {
            operation.load = Load::Closed((value.round() as u32).max(1));
        }),
        Load::Open(rate) => {
            ("the load", " operations a second", rate, |operation, value| operation.load = Load::Open(value))
        }
    });
    knobs.retain(|(_, _, now, _)| *now > 0.0);
    knobs
}

/// A value in the unit that the file has, with three digits.
fn three_digits(param: &remora_model::platform::Param, value: f64) -> String {
    let text = param.text(value);
    match text.split_once(' ').and_then(|(number, unit)| Some((number.parse::<f64>().ok()?, unit))) {
        Some((number, unit)) => format!("{} {unit}", crate::format::digits(number)),
        None => text,
    }
}
