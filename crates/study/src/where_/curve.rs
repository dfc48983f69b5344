//! Latency against load: each place's median and 99th percentile while operations come so many a second, up to what the best
//! place can serve, and what is full first there.

use std::fmt::Write;

use remora_kernel::Placement;
use remora_model::platform::Platform;
use serde::Serialize;

use super::operation::{Load, Operation};
use super::{Candidate, WhereOptions, path_of, simulate};
use crate::format::{rate, time};

/// Parts of what the best place can serve.
const PARTS: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
/// A place is drawn as far as this part of what it can serve: beyond, latencies say how long one looked.
const SERVED: f64 = 0.97;
/// Characters of a bar.
const WIDTH: usize = 30;

/// A place's curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// The placement.
    pub place: Placement,
    /// What is full first.
    pub saturates: &'static str,
    /// Operations a second at which it is.
    pub at_per_s: f64,
    /// Its points, by rising load.
    pub points: Vec<LoadPoint>,
}

/// Latency at a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadPoint {
    /// Operations that come a second.
    pub per_s: f64,
    /// The median in nanoseconds.
    pub p50_ns: f64,
    /// The 99th percentile.
    pub p99_ns: f64,
}

/// The curves of all places of a ranking.
pub fn curves(platform: &Platform, operation: &Operation, ranking: &[Candidate], options: &WhereOptions) -> Vec<Curve> {
    let most = ranking.iter().map(|candidate| candidate.saturation_per_s).fold(0.0, f64::max);
    let curve = |candidate: &Candidate| {
        let path = path_of(platform, operation, candidate.place, (options.link, options.engines))?;
        let loads = PARTS.map(|part| part * most).into_iter();
        let loads = loads.filter(|per_s| *per_s < SERVED * candidate.saturation_per_s);
        let point = |per_s| {
            let count = options.simulated.max(1);
            let run = simulate::run(candidate.place, &path, Load::Open(per_s), count, options.seed)?;
            Some(LoadPoint { per_s, p50_ns: run.p50_ns, p99_ns: run.p99_ns })
        };
        Some(Curve {
            place: candidate.place,
            saturates: candidate.binding,
            at_per_s: candidate.saturation_per_s,
            points: loads.filter_map(point).collect(),
        })
    };
    ranking.iter().filter_map(curve).collect()
}

/// Curves as bars: the median, and from there to the 99th percentile.
pub fn draw(curves: &[Curve]) -> String {
    let mut out = String::from(
        "Latency against load as the screen has it (median #, 99th percentile -), and what is full first:\n",
    );
    let most = curves.iter().flat_map(|curve| &curve.points).map(|point| point.p99_ns).fold(1.0, f64::max);
    let least = curves.iter().flat_map(|curve| &curve.points).map(|point| point.p50_ns).fold(most, f64::min);
    // Along the logarithm: a place may take many times what another does.
    let at = |ns: f64| {
        let part = (ns / (0.8 * least)).ln() / (most / (0.8 * least)).ln();
        (part * WIDTH as f64).clamp(1.0, WIDTH as f64) as usize
    };
    for curve in curves {
        let Curve { place, saturates, at_per_s, points } = curve;
        let _ = writeln!(out, "{place}: {saturates}, at {} ops/s", rate(*at_per_s));
        for LoadPoint { per_s, p50_ns, p99_ns } in points {
            let (half, last) = (at(*p50_ns), at(*p99_ns));
            let bar = "#".repeat(half) + &"-".repeat(last.saturating_sub(half));
            let _ = writeln!(out, "  {:>8}/s {bar:<WIDTH$} {:>8} {:>8}", rate(*per_s), time(*p50_ns), time(*p99_ns));
        }
        if points.is_empty() {
            out += "  it can serve none of these loads\n";
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::rank;
    use super::*;

    #[test]
    fn more_load_never_answers_sooner_and_no_place_is_drawn_beyond_what_it_serves() {
        let (platform, operation) =
            (Platform::load("rambda").unwrap(), Operation::load(std::path::Path::new("list")).unwrap());
        let options = WhereOptions { simulated: 4_000, ..WhereOptions::default() };
        let ranking = rank(&platform, &operation, &options);
        let curves = curves(&platform, &operation, &ranking, &options);
        assert_eq!(curves.len(), ranking.len());
        for curve in &curves {
            assert!(curve.points.iter().all(|point| point.per_s < curve.at_per_s && point.p99_ns >= point.p50_ns));
            for pair in curve.points.windows(2) {
                assert!(pair[1].p50_ns > 0.97 * pair[0].p50_ns, "{curve:?}");
            }
            assert!(draw(&curves).contains(curve.saturates));
        }
    }
}
