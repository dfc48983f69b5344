//! What values that may lie anywhere in their range leave of an answer.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_model::platform::{Params, Platform, SourceStatus};
use serde::Serialize;

use super::operation::Operation;
use super::screen::Candidate;
use remora_kernel::Placement;

use super::{CLOSE, LEVEL, WhereOptions, rank};
use crate::workload::below;

/// How far a placement's figures move over the open values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The placement.
    pub place: Placement,
    /// The least and the largest median latency, in nanoseconds.
    pub p50_ns: (f64, f64),
    /// The least and the largest rate at saturation.
    pub saturation_per_s: (f64, f64),
}

/// How much an open value moves the two best placements against each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contribution {
    /// The value's path.
    pub path: String,
    /// Its status.
    pub status: SourceStatus,
    /// Its range, as written.
    pub range: (String, String),
    /// The difference of the two costs over the range of the value, as a part of the better cost.
    pub swing: f64,
}

/// What drawing the open values found.
#[derive(Clone, Debug, Default)]
pub struct Open {
    /// One for each placement, in the ranking's order.
    pub intervals: Vec<Interval>,
    /// The part of points at which the first of the ranking is best or level.
    pub certainty: f64,
    /// Who is best at one of them or more.
    pub winners: Vec<Placement>,
    /// Who lies close to the first at one of them or more, itself among them.
    pub near: Vec<Placement>,
}

/// What the screen has with the open values drawn, all at once, at the points of a Latin hypercube.
pub fn points(platform: &Platform, operation: &Operation, options: &WhereOptions) -> Vec<Vec<Candidate>> {
    let points = hypercube(&platform.params, options.points, options.seed);
    // Values that contradict each other make no platform, and no point.
    points.iter().filter_map(|point| Some(rank(&platform.with(point).ok()?, operation, options))).collect()
}

/// What the points leave of a ranking. With several corrections of the screen each of them may hold at each point.
pub fn weigh(points: &[Vec<Candidate>], ranking: &[Candidate], corrected: &[WhereOptions]) -> Open {
    let mut open = Open { certainty: 1.0, ..Open::default() };
    open.intervals = ranking
        .iter()
        .map(|candidate| Interval {
            place: candidate.place,
            p50_ns: (candidate.p50_ns, candidate.p50_ns),
            saturation_per_s: (candidate.saturation_per_s, candidate.saturation_per_s),
        })
        .collect();
    let Some(first) = ranking.first().map(|first| first.place) else { return open };
    let (mut tried, mut wins) = (0u32, 0u32);
    for (candidates, options) in points.iter().flat_map(|point| corrected.iter().map(move |options| (point, options))) {
        let costs: Vec<(Placement, f64)> = candidates.iter().map(|c| (c.place, options.cost(c))).collect();
        let best = costs.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let ours = costs.iter().find(|(place, _)| *place == first);
        let (Some(&(best, least)), Some(&(_, ours))) = (best, ours) else { continue };
        tried += 1;
        wins += u32::from(ours <= least * LEVEL);
        open.winners.extend(Some(best).filter(|best| !open.winners.contains(best)));
        let near = costs.iter().filter(|(_, cost)| *cost <= ours * CLOSE).map(|(place, _)| *place);
        let near: Vec<_> = near.filter(|place| !open.near.contains(place)).collect();
        open.near.extend(near);
    }
    for interval in &mut open.intervals {
        for candidate in points.iter().flatten().filter(|candidate| candidate.place == interval.place) {
            widen(&mut interval.p50_ns, candidate.p50_ns);
            widen(&mut interval.saturation_per_s, candidate.saturation_per_s);
        }
    }
    if tried > 0 {
        open.certainty = f64::from(wins) / f64::from(tried);
    }
    open
}

fn widen(range: &mut (f64, f64), value: f64) {
    *range = (range.0.min(value), range.1.max(value));
}

/// The points: each open value's range is cut into as many parts as there are points, and each part is used once
/// (McKay et al., Technometrics 21(2), 1979).
pub(super) fn hypercube(params: &Params, points: usize, seed: u64) -> Vec<Vec<(&str, f64)>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut all: Vec<Vec<(&str, f64)>> = vec![Vec::new(); points];
    for param in params.open() {
        let mut parts: Vec<usize> = (0..points).collect();
        for i in (1..points).rev() {
            parts.swap(i, below(&mut rng, i as u64 + 1) as usize);
        }
        for (point, part) in all.iter_mut().zip(parts) {
            let place = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let (low, high) = param.range;
            let value = low + (high - low) * (part as f64 + place) / points as f64;
            point.push((&param.path, settled(param.dimension, value)));
        }
    }
    all
}

/// Counts and sizes stay whole.
fn settled(dimension: remora_model::platform::Dimension, value: f64) -> f64 {
    use remora_model::platform::Dimension;
    if matches!(dimension, Dimension::Count | Dimension::Size) { value.round() } else { value }
}

/// How much each open value alone moves the first two, the strongest first; those that move nothing are left out.
pub fn contributions(
    platform: &Platform,
    operation: &Operation,
    ranking: &[Candidate],
    options: &WhereOptions,
) -> Vec<Contribution> {
    let [first, second, ..] = ranking else { return Vec::new() };
    let difference = |path: &str, value: f64| {
        let candidates = rank(&platform.with(&[(path, value)]).ok()?, operation, options);
        let cost = |place| candidates.iter().find(|c| c.place == place).map(|c| options.cost(c));
        Some(cost(second.place)? - cost(first.place)?)
    };
    let scale = options.cost(first);
    let mut all: Vec<_> = platform
        .params
        .open()
        .filter_map(|param| {
            let (low, high) = param.range;
            let swing = (difference(&param.path, high)? - difference(&param.path, low)?).abs() / scale;
            let range = (param.text(low), param.text(high));
            let contribution = Contribution { path: param.path.clone(), status: param.status, range, swing };
            (swing > 1e-6).then_some(contribution)
        })
        .collect();
    all.sort_by(|a, b| b.swing.total_cmp(&a.swing));
    all
}
