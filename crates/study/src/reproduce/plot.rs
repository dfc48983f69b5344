//! A figure as a drawing.

use std::fmt::Write;

use super::show::{axis_label, interval, number};
use super::{Figure, Line, Printed};
use crate::format::power_of_two;
use crate::report::escape;
use crate::report::plot::{DASHES, SERIES, shape};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 50.0;
/// A letter of the labels at the ends of lines, which lie beside the plot.
const LETTER: f64 = 9.0;
/// Labels at the ends of lines keep this distance.
const LABEL_STEP: f64 = 17.0;
/// And labels below the x axis this one.
const TICK_STEP: f64 = 40.0;

/// Where values lie on paper.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    fn part(&self, value: f64) -> f64 {
        let (low, high) = (self.low, self.high);
        let part = match self.log {
            true => (value.max(1e-9) / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.5 }
    }

    fn ticks(&self) -> Vec<f64> {
        let ticks: Vec<f64> = if self.log {
            let steps: &[f64] = if self.high / self.low > 200.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            (-6..8).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power))).collect()
        } else {
            let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
                .into_iter()
                .find(|step| self.high / step <= 6.0)
                .unwrap_or(100.0);
            (0..8).map(|n| (f64::from(n) * step * 10.0).round() / 10.0).collect()
        };
        ticks.into_iter().filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

/// Lines over x: logarithmic where x spans more than sixteenfold, and y more than eightfold. Of many lines there are
/// several drawings on one scale: more than six cannot be told apart.
pub(super) fn plot(figure: &Figure) -> String {
    let count = figure.lines.len().div_ceil(SERIES).max(1);
    let each = figure.lines.len().div_ceil(count).max(1);
    match figure.lines.len() {
        0 => panel(figure, &[]),
        _ => figure.lines.chunks(each).map(|lines| panel(figure, lines)).collect(),
    }
}

fn panel(figure: &Figure, lines: &[Line]) -> String {
    let dots = || figure.lines.iter().flat_map(|line| &line.dots);
    let low = dots().map(|dot| dot.y.min(dot.spread.0)).fold(f64::MAX, f64::min);
    let printed = figure.printed.iter().map(|printed| printed.high);
    let high = dots().map(|dot| dot.y.max(dot.spread.1)).chain(printed).fold(1e-9, f64::max);
    let log = high > 8.0 * low;
    let y = Scale { low: if log { low / 1.2 } else { 0.0 }, high: high * 1.1, log };
    let xs: Vec<u64> = figure.lines.first().map(|line| line.dots.iter().map(|dot| dot.x).collect()).unwrap_or_default();
    let (first, last) = (xs.first().copied().unwrap_or(0), xs.last().copied().unwrap_or(1));
    let x = Scale { low: first as f64, high: last as f64, log: first > 0 && last >= 16 * first };
    let letters = figure.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let right = WIDTH - (LETTER * letters as f64 + 28.0);
    let at = |value: f64| LEFT + 10.0 + (right - LEFT - 20.0) * x.part(value);
    let up = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y.part(value);
    let about = format!("{} in {} by {}", figure.y.0, figure.y.1, figure.x.0);
    let mut svg = format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#, escape(&about));
    for tick in y.ticks() {
        let level = up(tick);
        let _ = write!(svg, r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{level:.1}" y2="{level:.1}"/>"#);
        text(&mut svg, LEFT - 8.0, level + 4.0, "end", "", &plain(tick));
    }
    let base = HEIGHT - BOTTOM;
    let _ = write!(svg, r#"<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>"#);
    let mut last = f64::MIN;
    for &value in &xs {
        let x = at(value as f64);
        if x - last >= TICK_STEP {
            text(&mut svg, x, base + 18.0, "middle", "", &power_of_two(value));
            last = x;
        }
    }
    let x_label = axis_label(&figure.x);
    text(&mut svg, (LEFT + right) / 2.0, HEIGHT - 10.0, "middle", "label", &x_label);
    text(&mut svg, LEFT, TOP - 2.0, "start", "", &format!("{}, {}", figure.y.0, figure.y.1));
    let mut labels: Vec<(f64, &str, &str, usize)> = Vec::new();
    for (n, Line { name, class, dots }) in lines.iter().enumerate() {
        let path: Vec<String> = dots.iter().map(|dot| format!("{:.1},{:.1}", at(dot.x as f64), up(dot.y))).collect();
        let (points, dashes) = (path.join(" "), DASHES[n]);
        let _ = write!(svg, r#"<g class="{class}"><polyline points="{points}" stroke-dasharray="{dashes}"/>"#);
        for dot in dots {
            let (x, y) = (at(dot.x as f64), up(dot.y));
            let title = format!("{name}, {}: {} {}", dot.x, number(dot.y), figure.y.1);
            let _ = write!(svg, "<g><title>{}</title>", escape(&title));
            if figure.spread {
                let (top, bottom) = (up(dot.spread.1), up(dot.spread.0));
                let _ = write!(svg, r#"<path class="spread" d="M{x:.1} {top:.1}V{bottom:.1}"/>"#);
            }
            let _ = write!(svg, "{}</g>", shape(n, x, y));
        }
        svg.push_str("</g>");
        labels.extend(dots.last().map(|dot| (up(dot.y), *class, &name[..], n)));
    }
    for Printed { x, low, high, about, .. } in &figure.printed {
        let (x, top, bottom) = (at(*x as f64), up(*high), up(*low));
        let said = format!("the paper: {about}, {} {}", interval(*low, *high), figure.y.1);
        // A ring around the point, or a bracket around the range.
        let (y, reach) = ((top + bottom) / 2.0, (bottom - top).abs() / 2.0 + 7.0);
        let _ = write!(
            svg,
            r#"<g class="printed"><title>{}</title><rect x="{:.1}" y="{:.1}" width="14" height="{:.1}" rx="3"/></g>"#,
            escape(&said),
            x - 7.0,
            y - reach,
            2.0 * reach
        );
        text(&mut svg, x, y + reach + 13.0, "middle", "", "paper");
    }
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Each as near to its line's end as the one above leaves room, and all of them on the paper.
    let mut next = f64::MIN;
    for (left, (level, class, name, n)) in (0..labels.len()).rev().zip(labels) {
        next = level.max(next + LABEL_STEP).min(HEIGHT - 8.0 - LABEL_STEP * left as f64);
        let _ = write!(svg, r#"<g class="{class}">{}</g>"#, shape(n, right + 10.0, next));
        text(&mut svg, right + 20.0, next + 4.0, "start", &format!("name {class}"), name);
    }
    svg + "</svg>"
}

/// A tick's digits.
fn plain(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { format!("{value}") }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
    let text = escape(text);
    let _ = write!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}
