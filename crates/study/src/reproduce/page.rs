//! The figures as one HTML page that needs nothing but itself.

use std::fmt::Write;

use super::show::{interval, number, said};
use super::study::XAxis;
use super::{Figure, Reproduction};
use crate::format::power_of_two;
use crate::report::escape;

const STYLE: &str = include_str!("../report/style.css");
const WIDTH: f64 = 670.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 128.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 50.0;
/// Labels at the ends of lines keep this distance.
const LABEL_STEP: f64 = 15.0;
/// And labels below the x axis this one.
const TICK_STEP: f64 = 20.0;

/// The page.
pub fn page(all: &Reproduction) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Remora: StRoM from the model</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>StRoM from the model</h1>\n<p class=\"soft\">Figures of Sidler et al., EuroSys 2020, from Remora's protocol \
         engine and kernels on the hardware that the paper describes. Nothing here was read off a figure.</p>\n"
    );
    claims(&mut out, all);
    for figure in &all.figures {
        section(&mut out, all, figure);
    }
    basis(&mut out, all);
    out + "</main>\n</body>\n</html>\n"
}

fn verdict(agrees: Option<bool>) -> &'static str {
    match agrees {
        Some(true) => "pass",
        Some(false) => "<b class=\"nic\">fail</b>",
        None => "",
    }
}

fn claims(out: &mut String, all: &Reproduction) {
    out.push_str(
        "<h2>What the paper's text says</h2>\n<div class=\"card scroll\"><table class=\"said\"><thead><tr>\
         <th class=\"t\">section</th><th class=\"t\">about</th><th class=\"t\">kind</th><th>paper</th><th>model</th>\
         <th class=\"t\"></th></tr></thead>\n<tbody>\n",
    );
    for claim in &all.claims {
        let kind = if claim.result { "result" } else { "parameter" };
        let _ = writeln!(
            out,
            "<tr><td class=\"t\">{}</td><td class=\"t\">{}: {}</td><td class=\"t\">{kind}</td><td>{} {}</td>\
             <td>{}</td><td class=\"t\">{} {}</td></tr>",
            escape(&claim.section),
            escape(&claim.about),
            escape(&claim.metric),
            interval(claim.low, claim.high),
            escape(&claim.unit),
            escape(&said(&claim.model, claim.missing)),
            verdict(claim.agrees()),
            escape(claim.remark),
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn section(out: &mut String, all: &Reproduction, figure: &Figure) {
    let study = &figure.study;
    let _ = writeln!(
        out,
        "<h2 id=\"figure-{}\">Figure {}: {}</h2>\n<figure><div class=\"card\">{}</div><figcaption>{}</figcaption></figure>",
        study.figure,
        study.figure,
        escape(&study.title),
        plot(figure),
        escape(&study.note),
    );
    let is_about = |figures: &str| figures.split(", ").any(|name| name == study.figure);
    let trends: Vec<_> = all.trends.iter().filter(|trend| is_about(trend.figures)).collect();
    if !trends.is_empty() {
        out.push_str("<ul>\n");
        for trend in trends {
            let _ = writeln!(
                out,
                "<li>{}: {} (section {}): {}</li>",
                verdict(Some(trend.holds)),
                escape(trend.what),
                trend.section,
                escape(&trend.evidence)
            );
        }
        out.push_str("</ul>\n");
    }
    figures_table(out, figure);
}

fn figures_table(out: &mut String, figure: &Figure) {
    let study = &figure.study;
    let _ = write!(
        out,
        "<details><summary>All figures</summary><div class=\"card scroll\"><table><thead><tr><th>{}</th>",
        escape(&axis_label(&study.x)),
    );
    for series in &study.series {
        let name = escape(&series.name);
        let _ = write!(out, "<th>{name}, {}</th><th>busiest</th><th>energy</th>", escape(&study.y.unit));
    }
    out.push_str("</tr></thead><tbody>\n");
    for (row, x) in study.x.values.iter().enumerate() {
        let _ = write!(out, "<tr><td>{x}</td>");
        for dot in figure.lines.iter().filter_map(|dots| dots.get(row)) {
            let o = &dot.outcome;
            let busiest = match o.binding.is_empty() {
                true => "-".into(),
                false => format!("{}, {:.0} %", escape(&o.binding), o.binding_busy * 100.0),
            };
            let energy = o.joules_per_op.map_or("-".into(), |joules| format!("{} µJ", number(joules * 1e6)));
            let _ = write!(out, "<td>{}</td><td>{busiest}</td><td>{energy}</td>", number(dot.y));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></details>\n");
}

fn basis(out: &mut String, all: &Reproduction) {
    out.push_str("<h2>What this rests on</h2>\n<ul>\n");
    for fitted in &all.fitted {
        let _ = writeln!(
            out,
            "<li>{} = {}, fitted to {}. Range {}; {}</li>",
            escape(&fitted.what),
            escape(&fitted.value),
            escape(&fitted.to),
            escape(&fitted.range),
            escape(&fitted.source)
        );
    }
    for line in &all.provenance {
        let _ = writeln!(out, "<li>{}</li>", escape(line));
    }
    let _ = writeln!(out, "<li>Seed {}.</li>\n</ul>", all.seed);
}

/// The page's colour of a line: by what it is, else by its place.
fn class(name: &str, number: usize) -> &'static str {
    match name {
        "READ" | "READ+SW" if number < 2 => ["client", "host"][number],
        "WRITE" if number == 2 => "client",
        "WRITE + HLL" => "host",
        _ if name.starts_with("StRoM") || name == "WRITE" => "nic",
        _ if name.starts_with("READ") => "client",
        _ => "host",
    }
}

/// Lines that lie on others, or are like them, are dashed: the second pair of four, and what all else is measured by.
fn dashes(name: &str, number: usize, lines: usize) -> &'static str {
    let dashed = lines == 4 && number >= 2 || name == "WRITE + HLL" || name == "WRITE" && number == 2;
    if dashed { r#" stroke-dasharray="5 4""# } else { "" }
}

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
            let step =
                [1.0, 2.0, 5.0, 10.0, 20.0, 50.0].into_iter().find(|step| self.high / step <= 6.0).unwrap_or(100.0);
            (0..8).map(|n| f64::from(n) * step).collect()
        };
        ticks.into_iter().filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

fn plot(figure: &Figure) -> String {
    let study = &figure.study;
    let dots = || figure.lines.iter().flatten();
    let low = dots().map(|dot| dot.y.min(dot.spread.0)).fold(f64::MAX, f64::min);
    let high = dots().map(|dot| dot.y.max(dot.spread.1)).fold(1e-9, f64::max);
    let log = high > 8.0 * low;
    let y = Scale { low: if log { low / 1.2 } else { 0.0 }, high: high * 1.1, log };
    let (first, last) = (study.x.values.first().copied().unwrap_or(0), study.x.values.last().copied().unwrap_or(1));
    let x = Scale { low: first as f64, high: last as f64, log: first > 0 && last >= 16 * first };
    let at = |value: f64| LEFT + 10.0 + (WIDTH - LEFT - RIGHT - 20.0) * x.part(value);
    let up = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y.part(value);
    let about = format!("{} in {} by {}", study.y.name, study.y.unit, study.x.name);
    let mut svg = format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#, escape(&about));
    for tick in y.ticks() {
        let (level, right) = (up(tick), WIDTH - RIGHT);
        let _ = write!(svg, r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{level:.1}" y2="{level:.1}"/>"#);
        text(&mut svg, LEFT - 8.0, level + 4.0, "end", "", &plain(tick));
    }
    let base = HEIGHT - BOTTOM;
    let _ = write!(svg, r#"<line class="axis" x1="{LEFT}" x2="{}" y1="{base}" y2="{base}"/>"#, WIDTH - RIGHT);
    let mut last = f64::MIN;
    for &value in &study.x.values {
        let x = at(value as f64);
        if x - last >= TICK_STEP {
            text(&mut svg, x, base + 18.0, "middle", "", &power_of_two(value));
            last = x;
        }
    }
    let x_label = axis_label(&study.x);
    text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0, "middle", "label", &x_label);
    text(&mut svg, LEFT, TOP - 2.0, "start", "", &format!("{}, {}", study.y.name, study.y.unit));
    let mut labels: Vec<(f64, &str, &str)> = Vec::new();
    for (number, (series, dots)) in study.series.iter().zip(&figure.lines).enumerate() {
        let class = class(&series.name, number);
        let path: Vec<String> = dots.iter().map(|dot| format!("{:.1},{:.1}", at(dot.x as f64), up(dot.y))).collect();
        let dashes = dashes(&series.name, number, study.series.len());
        let _ = write!(svg, r#"<g class="{class}"><polyline points="{}"{dashes}/>"#, path.join(" "));
        for dot in dots {
            let (x, y) = (at(dot.x as f64), up(dot.y));
            let title = format!("{}, {}: {} {}", series.name, dot.x, super::show::number(dot.y), study.y.unit);
            let _ = write!(svg, "<g><title>{}</title>", escape(&title));
            if study.spread {
                let (top, bottom) = (up(dot.spread.1), up(dot.spread.0));
                let _ = write!(svg, r#"<path class="spread" d="M{x:.1} {top:.1}V{bottom:.1}"/>"#);
            }
            let _ = write!(svg, r#"<circle class="mark" cx="{x:.1}" cy="{y:.1}" r="4"/></g>"#);
        }
        svg.push_str("</g>");
        labels.extend(dots.last().map(|dot| (up(dot.y), class, &series.name[..])));
    }
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut next = f64::MIN;
    for (level, class, name) in labels {
        next = level.max(next + LABEL_STEP);
        text(&mut svg, WIDTH - RIGHT + 8.0, next + 4.0, "start", &format!("name {class}"), name);
    }
    svg + "</svg>"
}

/// `payload (B)`, and `threads` where the unit is the name.
fn axis_label(axis: &XAxis) -> String {
    if axis.name == axis.unit { axis.name.clone() } else { format!("{} ({})", axis.name, axis.unit) }
}

/// A tick's digits.
fn plain(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { format!("{value}") }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
    let text = escape(text);
    let _ = write!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}
