//! The table for the terminal, at most 80 columns wide. JSON and the page have more: rates with one in flight, CPU time.

use std::fmt::Write;

use super::Report;
use crate::baseline::Since;
use crate::format::{count, micros, per_op, rate, time, wrap};
use crate::measure::Row;
use crate::operations::Operation;
use crate::verdict::{groups, summarise};

/// A column: its heading in two lines, and its width.
struct Column(&'static str, &'static str, usize);

const COLUMNS: [Column; 9] = [
    Column("", "", 8),
    Column("", "link", 4),
    Column("", "place", 8),
    Column("1 in", "p50 µs", 8),
    // A blank behind it keeps it beside what stands before.
    Column("flight: ", "p99 µs", 8),
    Column("", "p99.9 µs", 9),
    Column("64 in", "ops/s", 8),
    Column("round", "trips/op", 8),
    Column("wire", "bytes/op", 8),
];

/// The whole report: what was measured, row by row, then who wins; and what modelled hardware would do.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    if let Some(why) = &report.incomplete {
        wrap(&mut out, 0, "Not complete: ", why);
        out.push('\n');
    }
    out + &match &report.modelled {
        None => {
            measured(report)
                + &crate::auto::table(&report.auto, &report.auto_traces)
                + &report.since.as_ref().map_or_else(String::new, Since::table)
        }
        Some(on) if report.rows.is_empty() => crate::on::table(on),
        Some(on) => {
            measured(report) + &crate::auto::table(&report.auto, &report.auto_traces) + "\n" + &crate::on::table(on)
        }
    }
}

fn measured(report: &Report) -> String {
    let mut out = String::new();
    let rereads = report.rows.iter().any(|row| row.in_flight_1.rereads_per_op > 0.0);
    for operation in report.operations() {
        section(&mut out, report, operation);
    }
    if rereads {
        wrap(
            &mut out,
            2,
            "",
            "Repeated reads of a changing value are round trips at the client; at nic and host they stay inside.",
        );
    }
    if let Some(note) = report.repeated_note() {
        wrap(&mut out, 2, "", &note);
    }
    if let Some(note) = report.lent_note() {
        wrap(&mut out, 2, "", &note);
    }
    out += "  * lowest median latency with 1 in flight, and the second is 5 % away at least\n\nIn short\n";
    for summary in summarise(&report.verdicts) {
        let name = format!("{} over {}: ", summary.operation, summary.link);
        wrap(&mut out, 2, &name, &summary.line);
    }
    let machine = &report.machine;
    let probes = match machine.raw_udp_ns {
        Some(ns) => format!("a raw datagram there and back {}", time(ns)),
        None => "raw datagrams could not be timed".into(),
    };
    out.push('\n');
    for line in [
        format!(
            "{} operations, every result verified. {}, seed {}.",
            count(report.verified()),
            report.source(),
            report.setup.seed
        ),
        format!(
            "Loaded in {:.1} s, measured in {:.1} s on {}, {} cores.",
            report.setup.load_s, report.setup.measure_s, machine.cpu, machine.cores
        ),
        format!(
            "A cache line between two cores and back {} before, {} after; {probes}.",
            time(machine.core_to_core_before_ns),
            time(machine.core_to_core_after_ns)
        ),
    ] {
        wrap(&mut out, 0, "", &line);
    }
    wrap(&mut out, 0, "", &report.depends());
    if let Some(note) = report.trace_note() {
        wrap(&mut out, 0, "Trace ", &note);
    }
    if let Some(remark) = machine.remark() {
        wrap(&mut out, 0, "", &remark);
    }
    out
}

fn section(out: &mut String, report: &Report, operation: Operation) {
    let _ = writeln!(out, "\n{}", operation.title());
    let unit = operation.unit().unwrap_or("");
    let heading = |pick: fn(&Column) -> &'static str| -> Vec<String> {
        COLUMNS.iter().map(|column| pick(column).to_string()).collect()
    };
    line(out, &heading(|column| column.0));
    let mut second = heading(|column| column.1);
    second[0] = unit.into();
    line(out, &second);
    let rows: Vec<Row> = report.rows.iter().filter(|row| row.operation == operation).cloned().collect();
    for group in groups(&rows) {
        let verdict = report
            .verdicts
            .iter()
            .find(|v| (v.operation, v.parameter, v.link) == (operation, group[0].parameter, group[0].link));
        for (n, row) in group.iter().enumerate() {
            let wins = verdict.is_some_and(|v| !v.level && v.winner == row.placement);
            let place = format!("{:<6} {}", row.placement, if wins { "*" } else { " " });
            line(out, &cells(row, n == 0, &place));
            if let Some((place, row)) = row.of_rings() {
                line(out, &cells(&row, false, &place));
            }
        }
        if let (Some(verdict), None) = (verdict, operation.unit()) {
            wrap(out, 10, "", &verdict.line);
        }
    }
}

/// A row's cells. The parameter and the link stand in the first row of a group only.
fn cells(row: &Row, first: bool, place: &str) -> Vec<String> {
    let (one, many) = (&row.in_flight_1, &row.in_flight_64);
    let parameter = row.parameter.filter(|_| first).map(count).unwrap_or_default();
    let link = if first { row.link.name() } else { "" };
    vec![
        parameter,
        link.into(),
        place.into(),
        micros(one.p50_ns),
        micros(one.p99_ns),
        one.p999_ns.map_or("-".into(), micros),
        rate(many.ops_per_s),
        per_op(one.round_trips_per_op),
        count(one.wire_bytes_per_op.round() as u64),
    ]
}

/// Names to the left, numbers to the right.
fn line(out: &mut String, cells: &[String]) {
    let mut text = String::new();
    for (i, (cell, Column(_, _, width))) in cells.iter().zip(&COLUMNS).enumerate() {
        let _ = match i {
            0 => write!(text, "{cell:>width$}"),
            1 | 2 => write!(text, "  {cell:<width$}"),
            _ => write!(text, " {cell:>width$}"),
        };
    }
    out.push_str(text.trim_end());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::WIDTH;
    use crate::report::testing::sample;
    use remora_real::LinkKind;

    #[test]
    fn every_line_fits_and_every_row_is_there() {
        let report = sample();
        let text = table(&report);
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
            assert_eq!(line.trim_end(), line);
        }
        for (title, rows) in [("Linked-list", 36), ("key present", 6), ("key absent", 6)] {
            let body = text.split(title).nth(1).unwrap().split("\n\n").next().unwrap();
            let found = body.lines().filter(|l| ["client ", "nic ", "host "].iter().any(|p| l.contains(p))).count();
            assert!(found >= rows, "{found} rows of {rows} after {title:?}:\n{body}");
        }
        assert!(text.contains("list over udp: "), "{text}");
        assert!(text.contains("every result verified"));
        assert!(text.contains("wire bytes leave it"), "values of 4096 bytes by some hundred");
        let udp =
            Report { rows: report.rows.into_iter().filter(|row| row.link == LinkKind::Udp).collect(), ..sample() };
        assert!(!table(&udp).contains("by reference"));
    }

    #[test]
    fn long_text_is_wrapped_under_its_start() {
        let mut out = String::new();
        wrap(&mut out, 2, "name: ", &"word ".repeat(40));
        assert_eq!(out.lines().count(), 3);
        assert!(out.lines().all(|line| line.starts_with("  ")));
    }
}
