//! Figures as tables for the terminal and as CSV for programs.

use std::fmt::Write;

use super::{Figure, Reproduction};
use crate::reproduce::{interval, number, said};

/// One file of a figure: its name without the extension, and its lines.
pub fn csv(figure: &Figure) -> String {
    let mut out = String::from("figure,series,x,x_unit,y,y_unit\n");
    let study = &figure.study;
    for (series, dots) in study.series.iter().zip(&figure.lines) {
        for (x, (y, _)) in study.x.values.iter().zip(dots) {
            let (name, unit) = (&series.name, &study.y.unit);
            let _ = writeln!(out, "{},{name},{x},{},{y:.4},{unit}", study.figure, study.x.unit);
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
    let _ = writeln!(out, "What the paper's text says, and the model (a parameter goes in; a result comes out):");
    for claim in &all.claims {
        let verdict = match claim.agrees() {
            Some(true) => "pass",
            Some(false) => "FAIL",
            None => "-",
        };
        let remark = if claim.remark.is_empty() { String::new() } else { format!(" ({})", claim.remark) };
        let _ = writeln!(
            out,
            "  {verdict:4} {} {:9} {} ({}), {}: paper {} {}, model {}{remark}",
            claim.id,
            if claim.result { "result" } else { "parameter" },
            claim.about,
            claim.section,
            claim.metric,
            interval(claim.low, claim.high),
            claim.unit,
            said(&claim.model, claim.missing),
        );
    }
    if !all.trends.is_empty() {
        out.push_str("\nTrends:\n");
    }
    for trend in &all.trends {
        let verdict = if trend.holds { "pass" } else { "FAIL" };
        let (figures, section) = (trend.figures, trend.section);
        let _ = writeln!(out, "  {verdict} figure {figures} ({section}): {}: {}", trend.what, trend.evidence);
    }
    let _ = writeln!(out, "\n{}", basis(all));
    out
}

/// What it all rests on.
pub(super) fn basis(all: &Reproduction) -> String {
    format!(
        "{}\n{} points, {} clients and {} measured requests a node, {} events; seed {}.",
        all.provenance,
        all.points,
        all.workers,
        all.requests,
        crate::format::count(all.events),
        all.seed
    )
}

fn figure_table(out: &mut String, figure: &Figure) {
    let study = &figure.study;
    let _ = writeln!(out, "Figure {}: {} ({} in {})", study.figure, study.title, study.y.name, study.y.unit);
    let head = format!("{} {}", study.x.name, study.x.unit);
    let width = study.series.iter().map(|series| series.name.len()).max().unwrap_or(0).max(head.len());
    let _ = write!(out, "{head:>width$}");
    study.x.values.iter().for_each(|x| {
        let _ = write!(out, " {x:>8}");
    });
    out.push('\n');
    for (series, dots) in study.series.iter().zip(&figure.lines) {
        let _ = write!(out, "{:>width$}", series.name);
        dots.iter().for_each(|(y, _)| {
            let _ = write!(out, " {:>8}", number(*y));
        });
        out.push('\n');
    }
    let _ = writeln!(out, "{}\n", study.note);
}
