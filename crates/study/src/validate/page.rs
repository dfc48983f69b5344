//! The validation as one HTML page that needs nothing but itself.

use std::fmt::Write;

use super::judge::{Cell, RULE, Validation, Way, Winner, median_error};
use super::{GOAL, LEFT_OUT, RATE_GOAL, SystemCell, TAIL_GOAL};
use crate::machine::Machine;
use crate::operations::Operation;
use crate::report::plot::{self, Pair};
use crate::report::{STYLE, download, escape, scroll};
use remora_real::LinkKind;

/// The page, of so many rounds; `source` says what an earlier probe is that predicted.
pub fn page(validation: &Validation, machine: &Machine, rounds: usize, source: Option<&str>) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Remora: predicted and measured</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>Predicted and measured</h1>\n<p class=\"soft\">The comparison of this machine ({}), predicted from probes \
         before it ran; medians of {rounds} rounds.</p>\n",
        escape(&machine.cpu)
    );
    for remark in machine.remark().iter().map(String::as_str).chain(source) {
        let _ = writeln!(out, "<p class=\"card remark\">{}</p>", escape(remark));
    }
    let _ = writeln!(
        out,
        "<p>The median error of the latency is {}, the goal {:.0} %; that of its 99th percentile {}, the goal \
         {:.0} %; that of the rate with 64 in flight {}, the goal {:.0} %.</p>",
        median_error(validation.median_latency_error),
        GOAL * 100.0,
        median_error(validation.median_tail_error),
        TAIL_GOAL * 100.0,
        median_error(validation.median_rate_error),
        RATE_GOAL * 100.0
    );
    agreement(&mut out, validation);
    winners(&mut out, validation);
    systems(&mut out, &validation.systems);
    out.push_str("<h2>What the prediction leaves out</h2>\n<ul>\n");
    for line in LEFT_OUT {
        let _ = writeln!(out, "<li>{}</li>", escape(line));
    }
    let json = serde_json::to_string(validation).unwrap_or_default();
    let _ = writeln!(
        out,
        "</ul>\n<p>All figures: {}, {}.</p>",
        download("application/json", "remora-validation.json", &json),
        download("text/csv", "remora-validation.csv", &csv(validation))
    );
    out + "</main>\n</body>\n</html>\n"
}

/// A line for each figure that was predicted.
fn csv(validation: &Validation) -> String {
    let mut out = String::from(
        "operation,parameter,link,place,predicted_p50_ns,measured_p50_ns,predicted_p99_ns,measured_p99_ns,\
         predicted_ops_per_s,measured_ops_per_s\n",
    );
    for &Cell { operation, parameter, link, way, p50_ns, p99_ns, ops_per_s, .. } in &validation.cells {
        let parameter = parameter.map(|n| n.to_string()).unwrap_or_default();
        let ((predicted, measured), (tail, was_tail), (rate, was)) = (p50_ns, p99_ns, ops_per_s);
        let _ =
            writeln!(out, "{operation},{parameter},{link},{way},{predicted},{measured},{tail},{was_tail},{rate},{was}");
    }
    out
}

fn agreement(out: &mut String, validation: &Validation) {
    out.push_str("<h2>Median latency with one operation in flight</h2>\n<figure><div class=\"panels\">\n");
    let mut links: Vec<LinkKind> = validation.cells.iter().map(|cell| cell.link).collect();
    links.sort_unstable();
    links.dedup();
    for link in links {
        let pair = |cell: &Cell| Pair {
            placement: cell.way.placement,
            predicted: cell.p50_ns.0,
            measured: cell.p50_ns.1,
            what: format!("{} at the {}", title(cell.operation, cell.parameter), cell.way),
        };
        let pairs: Vec<Pair> = validation.cells.iter().filter(|cell| cell.link == link).map(pair).collect();
        let about = format!("predicted over measured median latency over {}", link.title());
        let svg = plot::agreement(&pairs, GOAL, &about);
        let _ = writeln!(out, "<div class=\"card\"><h3>Over {}</h3>{svg}</div>", link.title());
    }
    let _ = writeln!(
        out,
        "</div><figcaption>On the line prediction and measurement agree; the lines beside it are {:.0} % away. Both \
         axes are logarithmic.</figcaption></figure>",
        GOAL * 100.0
    );
}

fn winners(out: &mut String, validation: &Validation) {
    let _ = writeln!(
        out,
        "<h2>Who wins</h2>\n<p class=\"soft\">{}</p>\n{}<table><thead><tr>\
         <th class=\"t\">operation</th><th class=\"t\">link</th><th class=\"t\">predicted</th>\
         <th class=\"t\">measured</th><th class=\"t\">by medians, within 5 %</th><th class=\"t\"></th></tr></thead>\
         <tbody>",
        escape(RULE),
        scroll("Who wins")
    );
    for winner in &validation.winners {
        let Winner { operation, parameter, link, predicted, measured, by_medians, .. } = winner;
        let verdict = match (winner.is_right(), winner.rules_out()) {
            (false, _) => "<b class=\"nic\">wrong</b>",
            (true, true) => "right",
            (true, false) => "level",
        };
        let _ = writeln!(
            out,
            "<tr class=\"new\"><td class=\"t\">{}</td><td class=\"t\">{link}</td><td class=\"t\">{}</td>\
             <td class=\"t\">{}</td><td class=\"t\">{}</td><td class=\"t\">{verdict}</td></tr>",
            escape(&title(*operation, *parameter)),
            names(&[*predicted]),
            names(measured),
            names(by_medians)
        );
    }
    out.push_str("</tbody></table></div>\n");
}

/// What stands on the NIC, if that was asked for.
fn systems(out: &mut String, cells: &[SystemCell]) {
    if cells.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>What stands on it</h2>\n{}<table><thead><tr><th class=\"t\">what</th><th>predicted</th><th>measured</th>\
         <th>rounds</th><th>error</th></tr></thead><tbody>",
        scroll("What stands on it")
    );
    for cell in cells {
        let [predicted, measured, low, high] = cell.texts();
        let _ = writeln!(
            out,
            "<tr class=\"new\"><td class=\"t\">{}</td><td>{predicted}</td><td>{measured}</td><td>{low} to {high}</td>\
             <td>{:.0} %</td></tr>",
            escape(&cell.what),
            cell.error() * 100.0
        );
    }
    out.push_str("</tbody></table></div>\n");
}

fn title(operation: Operation, parameter: Option<u64>) -> String {
    match parameter.zip(operation.unit()) {
        Some((n, unit)) => format!("{operation}, {n} {unit}"),
        None => operation.to_string(),
    }
}

fn names(ways: &[Way]) -> String {
    let name = |way: &Way| format!("<b class=\"{}\">{way}</b>", way.placement);
    ways.iter().map(name).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Row;
    use crate::operations::LIST;
    use remora_kernel::Placement;

    #[test]
    fn the_page_stands_alone_and_shows_every_cell_and_winner() {
        let row = |link, placement, p50_ns| {
            let (operation, parameter) = (LIST, Some(8));
            let mut row = Row {
                operation,
                parameter,
                link,
                placement,
                in_flight_1: Default::default(),
                in_flight_64: Default::default(),
                by_ring: None,
            };
            (row.in_flight_1.p50_ns, row.in_flight_64.ops_per_s) = (p50_ns, 1.0);
            row
        };
        let rows = |ns: u64| {
            let of = |link| {
                Placement::REAL.map(move |place| row(link, place, ns * if place == Placement::Nic { 1 } else { 3 }))
            };
            [LinkKind::Udp, LinkKind::Shm].into_iter().flat_map(of).collect::<Vec<_>>()
        };
        let validation = super::super::judge(&vec![(rows(1000), rows(1100)); 5]);
        let page = page(&validation, &Machine::describe(), 5, Some("Predicted from a.toml."));
        assert!(!page.contains("://") && !page.contains("<script"), "nothing from elsewhere, nothing that runs");
        assert_eq!((page.matches("<svg").count(), page.matches("<title>list, 8 elements at the").count()), (2, 6));
        assert_eq!(page.matches("<td class=\"t\">right</td>").count(), 2);
        for tag in ["table", "svg", "div", "td", "figure", "ul"] {
            let (open, close) = (page.matches(&format!("<{tag}")).count(), page.matches(&format!("</{tag}>")).count());
            assert_eq!(open, close, "<{tag}>");
        }
        if let Ok(path) = std::env::var("REMORA_VALIDATE_HTML") {
            std::fs::write(path, page).unwrap();
        }
    }
}
