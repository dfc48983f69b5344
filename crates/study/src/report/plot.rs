//! Plots as inline SVG. Colours come from the page's style sheet, by class, so that light and dark both work.

use std::fmt::Write;

use crate::format::{power_of_two, rate, time};
use remora_kernel::Placement;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 66.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 50.0;
/// Labels at the ends of lines keep this distance.
const LABEL_STEP: f64 = 19.0;
/// Lines stand this far beside each other, so that error bars do not hide each other.
const DODGE: f64 = 5.0;
const BAR: f64 = 17.0;
const BAR_STEP: f64 = 23.0;
/// Error bars beyond so many times the medians leave the plot.
const FAR: f64 = 4.0;

/// One line of a line plot.
pub struct PlotSeries {
    /// Whose it is: gives colour, marker and label.
    pub placement: Placement,
    /// From left to right.
    pub points: Vec<Point>,
}

/// A median with its spread.
#[derive(Clone, Copy)]
pub struct Point {
    /// List elements or bytes: at least 1, drawn on a scale of powers of two.
    pub x: u64,
    /// Nanoseconds, drawn on a logarithmic scale.
    pub median: f64,
    /// The 1st percentile.
    pub low: f64,
    /// The 99th percentile.
    pub high: f64,
}

/// The lowest and the highest value of lines, with room around: plots side by side share it. Error bars that reach far
/// beyond all medians do not count: they leave the plot, so that the medians keep their room.
pub fn range<'a>(series: impl Iterator<Item = &'a PlotSeries>) -> (f64, f64) {
    let points: Vec<&Point> = series.flat_map(|s| &s.points).collect();
    let [low, median, high] = [|p: &Point| p.low, |p: &Point| p.median, |p: &Point| p.high]
        .map(|of| points.iter().map(|p| of(p)).fold((f64::MAX, 1.0f64), |(l, h), v| (v.min(l), v.max(h))));
    let top = high.1.min(median.1 * FAR);
    let bottom = low.0.max(median.0 / FAR).clamp(1.0, top);
    (bottom / 1.15, top * 1.15)
}

/// Latency against list length or value size, logarithmic both ways, with error bars from the 1st to the 99th
/// percentile.
pub fn latency(series: &[PlotSeries], (low, high): (f64, f64), x_label: &str, about: &str) -> String {
    let mut xs: Vec<u64> = series.iter().flat_map(|s| s.points.iter().map(|p| p.x)).collect();
    xs.sort_unstable();
    xs.dedup();
    let log = |x: u64| (x.max(1) as f64).log2();
    let (first, last) = (xs.first().copied().map_or(0.0, log), xs.last().copied().map_or(1.0, log));
    let x_at = |x: u64| {
        let inner = WIDTH - LEFT - RIGHT - 24.0;
        LEFT + 12.0 + inner * if last > first { (log(x) - first) / (last - first) } else { 0.5 }
    };
    let y_at = |ns: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (ns.max(1.0) / low).ln() / (high / low).ln();

    let mut svg = open(HEIGHT, about);
    for ns in ticks(low, high) {
        let (y, right) = (y_at(ns), WIDTH - RIGHT);
        let _ = write!(svg, r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/>"#);
        text(&mut svg, LEFT - 8.0, y + 4.0, "end", "", &tick_label(ns));
    }
    let base = HEIGHT - BOTTOM;
    let _ = write!(svg, r#"<line class="axis" x1="{LEFT}" x2="{}" y1="{base}" y2="{base}"/>"#, WIDTH - RIGHT);
    for &x in &xs {
        let at = x_at(x);
        let _ = write!(svg, r#"<line class="axis" x1="{at:.1}" x2="{at:.1}" y1="{base}" y2="{}"/>"#, base + 4.0);
        text(&mut svg, at, base + 18.0, "middle", "", &power_of_two(x));
    }
    text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0, "middle", "label", x_label);

    let mut labels = Vec::new();
    for (n, line) in series.iter().enumerate() {
        let dodge = (n as f64 - (series.len() as f64 - 1.0) / 2.0) * DODGE;
        draw_line(&mut svg, line, &|x| x_at(x) + dodge, &y_at);
        labels.extend(line.points.last().map(|p| (line.placement, y_at(p.median))));
    }
    spread(&mut labels);
    for (placement, y) in labels {
        text(&mut svg, WIDTH - RIGHT + 8.0, y + 4.0, "start", &format!("name {placement}"), placement.name());
    }
    svg + "</svg>"
}

fn draw_line(svg: &mut String, line: &PlotSeries, x_at: &dyn Fn(u64) -> f64, y_at: &dyn Fn(f64) -> f64) {
    let class = line.placement.name();
    let dashes = match line.placement {
        Placement::Client => DASHES[0],
        Placement::Nic => DASHES[1],
        Placement::Host => DASHES[2],
        Placement::Accelerator => DASHES[3],
    };
    let path: Vec<String> = line.points.iter().map(|p| format!("{:.1},{:.1}", x_at(p.x), y_at(p.median))).collect();
    let _ = write!(svg, r#"<g class="{class}"><polyline points="{}" stroke-dasharray="{dashes}"/>"#, path.join(" "));
    for point in &line.points {
        let (x, y) = (x_at(point.x), y_at(point.median));
        let about = format!(
            "{class}, {}: median {}, 1 % under {}, 99 % under {}",
            power_of_two(point.x),
            time(point.median),
            time(point.low),
            time(point.high),
        );
        let (top, bottom) = (y_at(point.high).max(0.0), y_at(point.low).min(HEIGHT - BOTTOM));
        let _ = write!(svg, r#"<g><title>{about}</title><path class="spread" d="M{x:.1} {top:.1}V{bottom:.1}"#);
        // A bar that leaves the plot has no end there.
        for end in [top, bottom].into_iter().filter(|&end| end > 0.0 && end < HEIGHT - BOTTOM) {
            let _ = write!(svg, "M{:.1} {end:.1}h6", x - 3.0);
        }
        svg.push_str(r#""/>"#);
        let _ = write!(svg, "{}</g>", marker(line.placement, x, y));
    }
    svg.push_str("</g>");
}

/// Each placement has a shape of its own, for those who cannot tell the colours apart.
pub fn marker(placement: Placement, x: f64, y: f64) -> String {
    let n = match placement {
        Placement::Client => 0,
        Placement::Nic => 1,
        Placement::Host => 2,
        Placement::Accelerator => 3,
    };
    shape(n, x, y)
}

/// Series of a plot that can be told apart, at most: each has a shape and dashes of its own.
pub const SERIES: usize = 6;

/// How the line of each series is dashed.
pub const DASHES: [&str; SERIES] = ["none", "7 4", "2 3", "10 4 2 4", "14 4", "4 2"];

/// The mark of the series with this number.
pub fn shape(n: usize, x: f64, y: f64) -> String {
    match n % SERIES {
        0 => format!(r#"<circle class="mark" cx="{x:.1}" cy="{y:.1}" r="4.2"/>"#),
        1 => format!(r#"<rect class="mark" x="{:.1}" y="{:.1}" width="8" height="8"/>"#, x - 4.0, y - 4.0),
        2 => format!(r#"<path class="mark" d="M{x:.1} {:.1}l5 8.6h-10z"/>"#, y - 5.4),
        3 => format!(r#"<path class="mark" d="M{x:.1} {:.1}l5 5l-5 5l-5 -5z"/>"#, y - 5.0),
        4 => format!(r#"<path class="mark" d="M{x:.1} {:.1}l5 -8.6h-10z"/>"#, y + 5.4),
        _ => format!(r#"<path class="mark" d="M{:.1} {y:.1}h3v-3h4v3h3v4h-3v3h-4v-3h-3z"/>"#, x - 5.0),
    }
}

/// Operations a second as bars from zero, one for each placement.
pub fn rates(bars: &[(Placement, f64)], about: &str) -> String {
    draw_bars(bars, |per_s| format!("{}/s", rate(per_s)), about)
}

/// Times as bars from zero, one for each placement.
pub fn times(bars: &[(Placement, f64)], about: &str) -> String {
    draw_bars(bars, time, about)
}

fn draw_bars(bars: &[(Placement, f64)], said: fn(f64) -> String, about: &str) -> String {
    let most = bars.iter().map(|&(_, value)| value).fold(1.0, f64::max);
    let left = 72.0;
    let inner = WIDTH - left - 84.0;
    let mut svg = open(bars.len() as f64 * BAR_STEP, about);
    for (n, &(placement, value)) in bars.iter().enumerate() {
        let top = n as f64 * BAR_STEP;
        let (length, middle) = ((inner * value / most).max(1.0), top + BAR / 2.0 + 4.0);
        let _ = write!(
            svg,
            r#"<rect class="bar {placement}" x="{left}" y="{top:.1}" width="{length:.1}" height="{BAR}"/>"#
        );
        text(&mut svg, left - 8.0, middle, "end", &format!("name {placement}"), placement.name());
        text(&mut svg, left + length + 6.0, middle, "start", "", &said(value));
    }
    svg + "</svg>"
}

/// A prediction and its measurement.
pub struct Pair {
    /// Whose it is.
    pub placement: Placement,
    /// Nanoseconds, predicted.
    pub predicted: f64,
    /// Nanoseconds, measured.
    pub measured: f64,
    /// What it is of.
    pub what: String,
}

/// Predictions over measurements, logarithmic both ways and on one scale. On the line from corner to corner they agree;
/// the band around it goes `within` that part of the measurement.
pub fn agreement(pairs: &[Pair], within: f64, about: &str) -> String {
    let all = || pairs.iter().flat_map(|pair| [pair.predicted, pair.measured]).map(|ns| ns.max(1.0));
    let (low, high) = (all().fold(f64::MAX, f64::min).min(1e9) / 1.3, all().fold(2.0, f64::max) * 1.3);
    let side = HEIGHT - TOP - BOTTOM;
    let at = |ns: f64| (side * (ns.max(1.0) / low).ln() / (high / low).ln()).clamp(0.0, side);
    let (x_at, y_at) = (|ns: f64| LEFT + at(ns), |ns: f64| HEIGHT - BOTTOM - at(ns));
    let mut svg = open(HEIGHT, about);
    for ns in ticks(low, high) {
        let (x, y, right, base) = (x_at(ns), y_at(ns), LEFT + side, HEIGHT - BOTTOM);
        let _ = write!(svg, r#"<path class="grid" d="M{LEFT} {y:.1}H{right:.1}M{x:.1} {TOP}V{base:.1}"/>"#);
        text(&mut svg, LEFT - 8.0, y + 4.0, "end", "", &tick_label(ns));
        text(&mut svg, x, base + 18.0, "middle", "", &tick_label(ns));
    }
    for part in [1.0 - within, 1.0, 1.0 + within] {
        let (from, to) = (low.max(low / part), high.min(high / part));
        let class = if part == 1.0 { "axis" } else { "grid" };
        let [x1, x2, y1, y2] = [x_at(from), x_at(to), y_at(from * part), y_at(to * part)];
        let _ = write!(svg, r#"<line class="{class}" x1="{x1:.1}" x2="{x2:.1}" y1="{y1:.1}" y2="{y2:.1}"/>"#);
    }
    for Pair { placement, predicted, measured, what } in pairs {
        let mark = marker(*placement, x_at(*measured), y_at(*predicted));
        let about = format!("{what}: predicted {}, measured {}", time(*predicted), time(*measured));
        let about = super::html::escape(&about);
        let _ = write!(svg, r#"<g class="{placement}"><title>{about}</title>{mark}</g>"#);
    }
    text(&mut svg, LEFT + side / 2.0, HEIGHT - 10.0, "middle", "label", "measured");
    text(&mut svg, LEFT + 8.0, TOP + 14.0, "start", "label", "predicted");
    for (n, placement) in Placement::REAL.into_iter().enumerate() {
        let (x, y) = (LEFT + side + 26.0, TOP + 12.0 + n as f64 * LABEL_STEP * 1.4);
        let _ = write!(svg, r#"<g class="{placement}">{}</g>"#, marker(placement, x, y - 4.0));
        text(&mut svg, x + 12.0, y, "start", &format!("name {placement}"), placement.name());
    }
    svg + "</svg>"
}

fn open(height: f64, about: &str) -> String {
    let about = super::html::escape(about);
    format!(r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{about}">"#)
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
    let text = super::html::escape(text);
    let _ = write!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}

/// 1, 2 and 5 times powers of ten; the powers alone if those are enough.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = if high / low > 2000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = (0..12).map(|power| 10f64.powi(power));
    powers.flat_map(|power| steps.iter().map(move |step| power * step)).filter(|v| (low..=high).contains(v)).collect()
}

/// A tick is one digit and zeros.
fn tick_label(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

/// Moves labels apart, from the top down, then back into the plot from the bottom up.
fn spread(labels: &mut [(Placement, f64)]) {
    labels.sort_by(|a, b| a.1.total_cmp(&b.1));
    for i in 1..labels.len() {
        labels[i].1 = labels[i].1.max(labels[i - 1].1 + LABEL_STEP);
    }
    let mut floor = HEIGHT - BOTTOM;
    for label in labels.iter_mut().rev() {
        label.1 = label.1.min(floor);
        floor = label.1 - LABEL_STEP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(placement: Placement, medians: &[f64]) -> PlotSeries {
        let point = |(n, &median): (usize, &f64)| Point { x: 1 << n, median, low: median * 0.9, high: median * 2.0 };
        PlotSeries { placement, points: medians.iter().enumerate().map(point).collect() }
    }

    #[test]
    fn lines_have_a_point_for_each_figure_and_stay_inside() {
        let lines = [series(Placement::Client, &[900.0, 1500.0, 2e5]), series(Placement::Nic, &[1e3, 1e3, 1.1e3])];
        let svg = latency(&lines, range(lines.iter()), "elements", "latency <by> length");
        assert_eq!(svg.matches("<title>").count(), 6);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("latency &lt;by&gt; length"));
        assert!(svg.contains("nic, 4: median 1.10 µs"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        for y in svg.split("cy=\"").skip(1) {
            let y: f64 = y.split('"').next().unwrap().parse().unwrap();
            assert!((TOP..HEIGHT - BOTTOM + 0.1).contains(&y), "{y}");
        }
    }

    #[test]
    fn odd_input_draws_nothing_odd() {
        for lines in [vec![], vec![series(Placement::Host, &[])], vec![series(Placement::Host, &[0.0])]] {
            let svg = latency(&lines, range(lines.iter()), "bytes", "");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(!rates(&[(Placement::Nic, 0.0)], "").contains("NaN"));
        for measured in [0.0, 1.0, 1e12] {
            let pair = Pair { placement: Placement::Nic, predicted: 0.0, measured, what: String::new() };
            let svg = agreement(&[pair], 0.15, "") + &agreement(&[], 0.15, "");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(ticks(400.0, 30_000.0), [500.0, 1e3, 2e3, 5e3, 1e4, 2e4]);
        assert_eq!(ticks(1.0, 1e6).len(), 7);
        assert_eq!([500.0, 2e4, 1e6].map(tick_label), ["500 ns", "20 µs", "1 ms"]);
    }

    #[test]
    fn labels_keep_their_distance() {
        let mut labels = [(Placement::Client, 285.0), (Placement::Nic, 286.0), (Placement::Host, 289.0)];
        spread(&mut labels);
        assert!(labels.windows(2).all(|w| w[1].1 - w[0].1 >= LABEL_STEP - 1e-9), "{labels:?}");
        assert!(labels[2].1 <= HEIGHT - BOTTOM);
    }
}
