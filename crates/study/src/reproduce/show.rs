//! Figures as tables for the terminal and as CSV for programs.

use std::fmt::Write;

use super::checks::{Count, KINDS};
use super::{Figure, Fitted, Line, Reproduction, Sums};

/// One file of a figure: its name without the extension, and its lines.
pub fn csv(figure: &Figure) -> String {
    let mut out = String::from("figure,series,x,x_unit,y,y_unit\n");
    for Line { name, dots, .. } in &figure.lines {
        let mut line = |name: &str, x: u64, y: f64| {
            let _ = writeln!(out, "{},{name},{x},{},{y:.4},{}", figure.number, figure.x.1, figure.y.1);
        };
        dots.iter().for_each(|dot| line(name, dot.x, dot.y));
        if figure.spread {
            dots.iter().for_each(|dot| line(&format!("{name} p1"), dot.x, dot.spread.0));
            dots.iter().for_each(|dot| line(&format!("{name} p99"), dot.x, dot.spread.1));
        }
    }
    out
}

/// Everything in columns.
pub fn table(all: &Reproduction) -> String {
    let mut out = all.incomplete.as_ref().map_or_else(String::new, |why| format!("Not complete: {why}\n\n"));
    for figure in &all.figures {
        figure_table(&mut out, figure);
    }
    claims(&mut out, all);
    trends(&mut out, all);
    out.push_str(&basis(all));
    out
}

/// A row for each line: figures have more lines than points.
fn figure_table(out: &mut String, figure: &Figure) {
    let _ = writeln!(out, "Figure {}: {} ({} in {})", figure.number, figure.title, figure.y.0, figure.y.1);
    let head = axis_label(&figure.x);
    let width = figure.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max(head.chars().count());
    let _ = write!(out, "{head:>width$}");
    let xs = figure.lines.first().map(|line| &line.dots[..]).unwrap_or_default();
    xs.iter().for_each(|dot| {
        let _ = write!(out, " {:>8}", dot.x);
    });
    out.push('\n');
    for line in &figure.lines {
        let _ = write!(out, "{:>width$}", line.name);
        line.dots.iter().for_each(|dot| {
            let _ = write!(out, " {:>8}", number(dot.y));
        });
        out.push('\n');
    }
    let _ = writeln!(out, "{}\n", figure.note);
}

/// `payload (B)`, and `threads` where the unit is the name.
pub(super) fn axis_label((name, unit): &(String, String)) -> String {
    if name == unit { name.clone() } else { format!("{name} ({unit})") }
}

/// Four digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// One number, or a range.
pub fn interval(low: f64, high: f64) -> String {
    if low == high { short(low) } else { format!("{} to {}", short(low), short(high)) }
}

fn short(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value}") }
}

/// What the model says to a claim, in words.
pub fn said(model: &[f64], missing: &str) -> String {
    match model {
        [] => format!("- ({missing})"),
        values => values.iter().map(|&value| number(value)).collect::<Vec<_>>().join(" to "),
    }
}

fn claims(out: &mut String, all: &Reproduction) {
    let _ = writeln!(out, "What the paper's text says, and the model ({KINDS}):");
    for claim in &all.claims {
        let verdict = match claim.agrees() {
            Some(true) => "pass",
            Some(false) => "FAIL",
            None => "-",
        };
        let _ = writeln!(
            out,
            "  {:4} {} {:11} {} ({}), {}: paper {} {}, model {}{}",
            verdict,
            claim.id,
            claim.kind.name(),
            claim.about,
            claim.section,
            claim.metric,
            interval(claim.low, claim.high),
            claim.unit,
            said(&claim.model, claim.missing),
            if claim.remark.is_empty() { String::new() } else { format!(" ({})", claim.remark) },
        );
    }
    for count in Count::of(&all.claims) {
        let _ = writeln!(out, "  {}", count.text());
    }
    out.push('\n');
}

fn trends(out: &mut String, all: &Reproduction) {
    if all.trends.is_empty() {
        return;
    }
    let _ = writeln!(out, "Trends:");
    for trend in &all.trends {
        let verdict = if trend.holds { "pass" } else { "FAIL" };
        let _ = writeln!(
            out,
            "  {verdict} figure {} ({}): {}: {}",
            trend.figures, trend.section, trend.what, trend.evidence
        );
    }
    out.push('\n');
}

fn basis(all: &Reproduction) -> String {
    let mut out = String::new();
    if !all.fitted.is_empty() {
        let _ = writeln!(out, "Fitted, within their ranges, to the text's figures only:");
    }
    for fitted in &all.fitted {
        let _ = writeln!(out, "  {}", fitted_text(fitted));
    }
    for line in &all.provenance {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "{}", effort(all));
    out
}

/// What a parameter was fitted to, in a line.
pub(super) fn fitted_text(fitted: &Fitted) -> String {
    let end = if fitted.at_end { ", at the end of its range" } else { "" };
    let Fitted { what, value, range, source, to, .. } = fitted;
    format!("{what} = {value} (range {range}; {source}){end}: {to}")
}

/// What running it took, in a line.
pub(super) fn effort(all: &Reproduction) -> String {
    let Sums { points, cached, events, thread_seconds } = all.sums;
    let seed = all.seed;
    if points == cached {
        return format!("{points} points, all from the cache; seed {seed}.");
    }
    let (count, rate) = (crate::format::count(events), events as f64 / thread_seconds.max(1e-9) / 1e6);
    format!(
        "{points} points, {cached} of them from the cache; {count} events, {rate:.2} M a second of processor time; seed \
         {seed}."
    )
}
