//! Figures as tables for the terminal and as CSV for programs.

use std::fmt::Write;

use super::{Figure, Reproduction};

/// One file of a figure: its name without the extension, and its lines.
pub fn csv(figure: &Figure) -> String {
    let mut out = String::from("figure,series,x,x_unit,y,y_unit\n");
    let study = &figure.study;
    for (series, dots) in study.series.iter().zip(&figure.lines) {
        let mut line = |name: &str, x: u64, y: f64| {
            let _ = writeln!(out, "{},{name},{x},{},{y:.4},{}", study.figure, study.x.unit, study.y.unit);
        };
        dots.iter().for_each(|dot| line(&series.name, dot.x, dot.y));
        if study.spread {
            dots.iter().for_each(|dot| line(&format!("{} p1", series.name), dot.x, dot.spread.0));
            dots.iter().for_each(|dot| line(&format!("{} p99", series.name), dot.x, dot.spread.1));
        }
    }
    out
}

/// Everything in columns.
pub fn table(all: &Reproduction) -> String {
    let mut out = String::new();
    for figure in &all.figures {
        figure_table(&mut out, figure);
    }
    claims(&mut out, all);
    trends(&mut out, all);
    basis(&mut out, all);
    out
}

fn figure_table(out: &mut String, figure: &Figure) {
    let study = &figure.study;
    let _ = writeln!(out, "Figure {}: {} ({} in {})", study.figure, study.title, study.y.name, study.y.unit);
    let _ = write!(out, "{:>12}", format!("{} {}", study.x.name, study.x.unit));
    for series in &study.series {
        let _ = write!(out, " {:>12}", series.name);
    }
    out.push('\n');
    for (row, x) in study.x.values.iter().enumerate() {
        let width = format!("{} {}", study.x.name, study.x.unit).len().max(12);
        let _ = write!(out, "{x:>width$}");
        for (series, dots) in study.series.iter().zip(&figure.lines) {
            let (y, width) = (dots.get(row).map_or(String::new(), |dot| number(dot.y)), series.name.len().max(12));
            let _ = write!(out, " {y:>width$}");
        }
        out.push('\n');
    }
    out.push('\n');
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
    let _ = writeln!(out, "What the paper's text says, and the model (a parameter goes in; a result comes out):");
    for claim in &all.claims {
        let verdict = match claim.agrees() {
            Some(true) => "pass",
            Some(false) => "FAIL",
            None => "-",
        };
        let _ = writeln!(
            out,
            "  {:4} {} {:9} {} ({}), {}: paper {} {}, model {}{}",
            verdict,
            claim.id,
            if claim.result { "result" } else { "parameter" },
            claim.about,
            claim.section,
            claim.metric,
            interval(claim.low, claim.high),
            claim.unit,
            said(&claim.model, claim.missing),
            if claim.remark.is_empty() { String::new() } else { format!(" ({})", claim.remark) },
        );
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

fn basis(out: &mut String, all: &Reproduction) {
    let _ = writeln!(out, "Fitted, within their ranges, to the text's figures only:");
    for fitted in &all.fitted {
        let end = if fitted.at_end { ", at the end of its range" } else { "" };
        let _ = writeln!(
            out,
            "  {} = {} (range {}; {}){end}: {}",
            fitted.what, fitted.value, fitted.range, fitted.source, fitted.to
        );
    }
    for line in &all.provenance {
        let _ = writeln!(out, "{line}");
    }
    let (points, cached) = all.points;
    let rate = all.events as f64 / all.thread_seconds.max(1e-9) / 1e6;
    let _ = match points - cached {
        0 => writeln!(out, "{points} points, all from the cache; seed {}.", all.seed),
        _ => writeln!(
            out,
            "{points} points, {cached} of them from the cache; {} events, {rate:.2} M a second of processor time; seed {}.",
            crate::format::count(all.events),
            all.seed
        ),
    };
}
