//! What would have to change for another place to be the best: values of the platform and of the operation, each alone.

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
}

impl Flip {
    /// `nic wins while host.pcie.read_latency is under 1.1 us (now 1.5 us); then client`.
    pub fn line(&self, best: Placement) -> String {
        let side = if self.while_under { "under" } else { "over" };
        let reach = if self.in_range { ", which its range allows" } else { "" };
        format!("{best} wins while {} is {side} {} (now {}{reach}); else {}", self.what, self.at, self.now, self.then)
    }
}

/// How far to look: this factor up and down, in steps of two, then by bisection.
const DOUBLINGS: i32 = 4;
const BISECTIONS: usize = 24;

/// Something that can be turned.
struct Knob<'a> {
    what: String,
    now: f64,
    range: Option<(f64, f64)>,
    text: Box<dyn Fn(f64) -> String + 'a>,
    best: Box<dyn Fn(f64) -> Option<Placement> + 'a>,
}

/// Finds them, the nearest first.
pub fn find(platform: &Platform, operation: &Operation, ranking: &[Candidate], options: &WhereOptions) -> Vec<Flip> {
    let [best, _, ..] = ranking else { return Vec::new() };
    let mut flips: Vec<Flip> = knobs(platform, operation, options)
        .iter()
        .flat_map(|knob| [-1, 1].map(|direction| flip(knob, best.place, direction)))
        .flatten()
        .collect();
    flips.sort_by(|a, b| a.factor.ln().abs().total_cmp(&b.factor.ln().abs()));
    flips
}

fn flip(knob: &Knob<'_>, best: Placement, direction: i32) -> Option<Flip> {
    let stays = |value: f64| (knob.best)(value).map(|place| place == best);
    let mut near = knob.now;
    for step in 1..=DOUBLINGS {
        let far = knob.now * 2f64.powi(direction * step);
        if stays(far)? {
            near = far;
            continue;
        }
        let mut far = far;
        for _ in 0..BISECTIONS {
            let middle = (near * far).sqrt();
            if stays(middle)? { near = middle } else { far = middle }
        }
        return Some(Flip {
            what: knob.what.clone(),
            now: (knob.text)(knob.now),
            at: (knob.text)(far),
            then: (knob.best)(far)?,
            while_under: direction > 0,
            in_range: knob.range.is_some_and(|(low, high)| (low..=high).contains(&far)),
            factor: far / knob.now,
        });
    }
    None
}

fn knobs<'a>(platform: &'a Platform, operation: &'a Operation, options: &'a WhereOptions) -> Vec<Knob<'a>> {
    let first = |ranking: Vec<Candidate>| ranking.first().map(|candidate| candidate.place);
    let of_platform = platform.params.iter().filter(|param| param.value > 0.0).map(move |param| Knob {
        what: param.path.clone(),
        now: param.value,
        range: Some(param.range),
        text: Box::new(|value| three_digits(param, value)),
        best: Box::new(move |value| first(rank(&platform.with(&[(&param.path, value)]).ok()?, operation, options))),
    });
    let of_operation = operation_knobs(operation).into_iter().map(move |(what, unit, now, set)| Knob {
        what: what.into(),
        now,
        range: None,
        text: Box::new(move |value| format!("{}{unit}", crate::format::digits(value))),
        best: Box::new(move |value| {
            let mut other = operation.clone();
            set(&mut other, value);
            first(rank(platform, &other, options))
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
