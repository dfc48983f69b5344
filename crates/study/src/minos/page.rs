//! The figures as one HTML page that needs nothing but itself.

use std::fmt::Write;

use super::show::basis;
use super::{Figure, Reproduction};
use crate::report::escape;
use crate::reproduce::{interval, number, said};

const STYLE: &str = include_str!("../report/style.css");
const WIDTH: f64 = 650.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 46.0;
/// Labels at the ends of lines keep this distance.
const LABEL_STEP: f64 = 15.0;
const CLASSES: [&str; 3] = ["client", "host", "nic"];

/// The page.
pub fn page(all: &Reproduction) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Remora: MINOS from the model</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>MINOS from the model</h1>\n<p class=\"soft\">Remora's replication engine on a modelled cluster with the \
         parameters that the paper prints. Nothing here was read off a figure.</p>\n"
    );
    claims(&mut out, all);
    all.figures.iter().for_each(|figure| section(&mut out, figure));
    let _ = writeln!(out, "<h2>What this rests on</h2>\n<p>{}</p>", escape(&basis(all)));
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
        "<h2>What the paper's text says</h2>\n<div class=\"card scroll\"><table><thead><tr><th class=\"t\">section</th>\
         <th class=\"t\">about</th><th>paper</th><th>model</th><th class=\"t\"></th></tr></thead><tbody>\n",
    );
    for claim in &all.claims {
        let _ = writeln!(
            out,
            "<tr><td class=\"t\">{}</td><td class=\"t\">{}: {}</td><td>{} {}</td><td>{}</td>\
             <td class=\"t\">{} {}</td></tr>",
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
    for trend in &all.trends {
        let _ = writeln!(
            out,
            "<tr><td class=\"t\">{} figure {}</td><td class=\"t\">{}</td><td></td><td class=\"t\">{}</td>\
             <td class=\"t\">{}</td></tr>",
            trend.section,
            trend.figures,
            escape(trend.what),
            escape(&trend.evidence),
            verdict(Some(trend.holds))
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn section(out: &mut String, figure: &Figure) {
    let study = &figure.study;
    let _ = writeln!(
        out,
        "<h2 id=\"figure-{0}\">Figure {0}: {1}</h2>\n<figure><div class=\"card\">{2}</div><figcaption>{3}</figcaption>\
         </figure>\n<details><summary>All figures</summary><div class=\"card scroll\"><table><thead><tr>\
         <th class=\"t\">{4} ({5})</th>",
        study.figure,
        escape(&study.title),
        plot(figure),
        escape(&study.note),
        escape(&study.y.name),
        escape(&study.y.unit),
    );
    study.x.values.iter().for_each(|x| {
        let _ = write!(out, "<th>{x} {}</th>", escape(&study.x.unit));
    });
    out.push_str("</tr></thead><tbody>\n");
    for (series, dots) in study.series.iter().zip(&figure.lines) {
        let _ = write!(out, "<tr><td class=\"t\">{}</td>", escape(&series.name));
        dots.iter().for_each(|(y, _)| {
            let _ = write!(out, "<td>{}</td>", number(*y));
        });
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></details>\n");
}

/// Lines over x: logarithmic where x spans more than a hundredfold, and y likewise.
fn plot(figure: &Figure) -> String {
    let study = &figure.study;
    let mut svg = format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#, escape(&study.title));
    let xs: Vec<f64> = study.x.values.iter().map(|&x| x as f64).collect();
    let ys: Vec<f64> = figure.lines.iter().flatten().map(|dot| dot.0).collect();
    let (x_part, y_part) = (scale(&xs, false), scale(&ys, true));
    let at = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * x_part(x);
    let up = |y: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y_part(y);
    let (base, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let _ = write!(svg, r#"<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>"#);
    let top = ys.iter().copied().fold(0.0, f64::max);
    for y in [top, top / 2.0, top / 4.0] {
        let level = up(y);
        let _ = write!(svg, r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{level:.1}" y2="{level:.1}"/>"#);
        text(&mut svg, (LEFT - 8.0, level + 4.0), "end", "", &number(y));
    }
    xs.iter().for_each(|&x| text(&mut svg, (at(x), base + 18.0), "middle", "", &format!("{x}")));
    let x_label = format!("{} ({})", study.x.name, study.x.unit);
    text(&mut svg, ((LEFT + right) / 2.0, HEIGHT - 8.0), "middle", "label", &x_label);
    text(&mut svg, (LEFT, TOP - 6.0), "start", "", &format!("{}, {}", study.y.name, study.y.unit));
    let mut labels = Vec::new();
    for (number_of, (series, dots)) in study.series.iter().zip(&figure.lines).enumerate() {
        let class = match series.name.as_bytes().first() {
            Some(b'B') => "host",
            Some(b'O') => "nic",
            _ => CLASSES[number_of % CLASSES.len()],
        };
        let points: Vec<String> =
            xs.iter().zip(dots).map(|(&x, (y, _))| format!("{:.1},{:.1}", at(x), up(*y))).collect();
        let dashes = if series.metric.is_some() { r#" stroke-dasharray="5 4""# } else { "" };
        let _ = write!(svg, r#"<g class="{class}"><polyline points="{}"{dashes}/>"#, points.join(" "));
        for (&x, (y, _)) in xs.iter().zip(dots) {
            let title = escape(&format!("{}, {x}: {} {}", series.name, number(*y), study.y.unit));
            let (cx, cy) = (at(x), up(*y));
            let _ =
                write!(svg, r#"<circle class="mark" cx="{cx:.1}" cy="{cy:.1}" r="3"><title>{title}</title></circle>"#);
        }
        svg.push_str("</g>");
        labels.extend(dots.last().map(|(y, _)| (up(*y), class, &series.name)));
    }
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut next = f64::MIN;
    for (level, class, name) in labels {
        next = level.max(next + LABEL_STEP);
        text(&mut svg, (right + 8.0, next + 4.0), "start", &format!("name {class}"), name);
    }
    svg + "</svg>"
}

/// Where values lie between their ends, 0 to 1; from zero on if asked for and the span is short.
fn scale(values: &[f64], from_zero: bool) -> impl Fn(f64) -> f64 + use<> {
    let low = values.iter().copied().fold(f64::MAX, f64::min);
    let high = values.iter().copied().fold(f64::MIN, f64::max);
    let log = low > 0.0 && high / low > 100.0;
    let low = if from_zero && !log { 0.0 } else { low };
    move |value| {
        let part = if log { (value / low).ln() / (high / low).ln() } else { (value - low) / (high - low) };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.5 }
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, class: &str, text: &str) {
    let text = escape(text);
    let _ = write!(svg, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}
