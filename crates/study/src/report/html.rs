//! The report as one HTML page that needs nothing but itself.

use std::fmt::Write;

use super::{Report, plot};
use crate::format::date;
use crate::format::{count, micros, per_op, rate, time};
use crate::measure::{Load, Row};
use crate::modelled::Measured;
use crate::on::{ModelRow, OnPlatform};
use crate::operations::Operation;
use crate::verdict::{groups, summarise};
use remora_kernel::Placement;
use remora_real::LinkKind;

/// How pages look.
pub const STYLE: &str = include_str!("style.css");

/// The page.
pub fn html(report: &Report) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Remora: where should it run?</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    if !report.rows.is_empty() || report.modelled.is_none() {
        head(&mut page, report);
        let outcomes: Vec<_> = report.verdicts.iter().map(|v| (v.winner, v.level)).collect();
        tiles(&mut page, &report.placements(), &outcomes);
        in_short(&mut page, report);
        for operation in report.operations() {
            section(&mut page, report, operation);
        }
    } else {
        page.push_str("<h1>Where should it run?</h1>\n");
    }
    if let Some(since) = &report.since {
        let _ = writeln!(page, "<h2>Changes</h2>\n{}<pre>{}</pre></div>", scroll("Changes"), escape(&since.table()));
    }
    if let Some(on) = &report.modelled {
        page.push_str(&crate::on::section(on));
    }
    if !report.rows.is_empty() || report.modelled.is_none() {
        conditions(&mut page, report);
        data(&mut page, report);
    } else {
        let (command, source) = (escape(&report.command), escape(&report.source()));
        let _ = writeln!(page, "<p class=\"soft\"><code>{command}</code>, Remora {}; {source}.</p>", report.version);
        data(&mut page, report);
    }
    page + "</main>\n</body>\n</html>\n"
}

/// Text as it may stand in an element or an attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Begins a card that can be scrolled, by keyboard too, and that screen readers can name.
pub(crate) fn scroll(about: &str) -> String {
    format!("<div class=\"card scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">", escape(about))
}

/// Words that name a place, in its colour.
pub(crate) fn with_names(text: &str) -> String {
    let word = |word: &str| {
        let name = word.trim_end_matches([',', ':', ';']);
        match Placement::ALL.iter().find(|placement| placement.name() == name) {
            Some(_) => format!("<b class=\"{name}\">{name}</b>{}", &word[name.len()..]),
            None => word.to_string(),
        }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn head(page: &mut String, report: &Report) {
    let links: Vec<String> = report.links().into_iter().map(|link| link.title().to_string()).collect();
    let _ = writeln!(
        page,
        "<h1>Where should it run?</h1>\n<p class=\"soft\">The same look-ups in each place, over {}. {}, {}; {} UTC. \
         {} operations, every result verified.</p>",
        links.join(" and "),
        escape(&report.source()),
        escape(&report.machine.cpu),
        date(report.ended_unix_s),
        count(report.verified()),
    );
    let incomplete = report.incomplete.as_ref().map(|why| format!("Not complete: {why}"));
    for remark in incomplete.into_iter().chain(report.machine.remark()) {
        let _ = writeln!(page, "<p class=\"card remark\">{}</p>", escape(&remark));
    }
}

/// What the places are, how often each wins: the legend of all that follows.
/// `outcomes` has for each verdict who wins, and whether another one is level.
pub(crate) fn tiles(page: &mut String, places: &[Placement], outcomes: &[(Placement, bool)]) {
    page.push_str("<div class=\"tiles\">\n");
    for &placement in places {
        let wins = outcomes.iter().filter(|&&(winner, level)| !level && winner == placement).count();
        let what = match placement {
            Placement::Client => "Runs here: each memory access is a one-sided READ, a round trip over the network.",
            Placement::Nic => "One RPC verb: the kernel runs on the node's NIC, next to the data.",
            Placement::Host => "One SEND: the node's host cores run the kernel and WRITE the answer back.",
            Placement::Accelerator => "The kernel runs on an accelerator that reaches the node's memory coherently.",
        };
        let mark = plot::marker(placement, 9.0, 9.0);
        let _ = writeln!(
            page,
            "<div class=\"card tile {placement}\"><svg viewBox=\"0 0 18 18\" aria-hidden=\"true\">{mark}</svg>\
             <b>{placement}</b><div class=\"wins\">{wins} of {}</div><p>lowest median latency</p><p>{what}</p></div>",
            outcomes.len()
        );
    }
    page.push_str("</div>\n");
    let level = outcomes.iter().filter(|(_, level)| *level).count();
    if level > 0 {
        let _ = writeln!(page, "<p class=\"soft\">{level} more are level: the second within 5 %.</p>");
    }
}

fn in_short(page: &mut String, report: &Report) {
    let (links, summaries) = (report.links(), summarise(&report.verdicts));
    let _ = write!(page, "<h2>In short</h2>\n{}<table class=\"short\"><thead><tr><th></th>", scroll("In short"));
    for &link in &links {
        let _ = write!(page, "<th>over {}</th>", link.title());
    }
    page.push_str("</tr></thead><tbody>\n");
    for operation in report.operations() {
        let _ = write!(page, "<tr><td>{}</td>", escape(operation.title()));
        for &link in &links {
            let found = summaries.iter().find(|s| (s.operation, s.link) == (operation, link));
            let line = with_names(&escape(found.map_or("", |s| &s.line)));
            let _ = write!(page, "<td data-over=\"over {}\">{line}</td>", link.title());
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

fn section(page: &mut String, report: &Report, operation: Operation) {
    let rows: Vec<Row> = report.rows.iter().filter(|row| row.operation == operation).cloned().collect();
    let _ = writeln!(page, "<h2>{}</h2>", escape(operation.title()));
    let (panels, caption) = match operation.unit() {
        Some(_) => (latency_panels(report, operation, &rows), caption(report, operation)),
        None => (rate_panels(report, &rows), "Operations a second with 64 in flight. The scales differ.".into()),
    };
    let _ = writeln!(
        page,
        "<figure><div class=\"panels\">\n{panels}</div><figcaption>{}</figcaption></figure>",
        escape(&caption)
    );
    let open = if operation.unit().is_none() { " open" } else { "" };
    let about = format!("All figures: {}", operation.title());
    let _ = writeln!(page, "<details{open}><summary>All figures</summary>{}", scroll(&about));
    table(page, report, operation, &rows);
    page.push_str("</div></details>\n");
}

/// A panel for each link, on one scale.
fn latency_panels(report: &Report, operation: Operation, rows: &[Row]) -> String {
    let lines = |link: LinkKind| -> Vec<plot::PlotSeries> {
        let of = |placement| rows.iter().filter(move |r| r.link == link && r.placement == placement);
        let point = |row: &Row| {
            let Load { p1_ns, p50_ns, p99_ns, .. } = row.in_flight_1;
            let [low, median, high] = [p1_ns, p50_ns, p99_ns].map(|ns| ns as f64);
            plot::Point { x: row.parameter.unwrap_or(1), median, low, high }
        };
        let series = |placement| plot::PlotSeries { placement, points: of(placement).map(point).collect() };
        report.placements().into_iter().map(series).collect()
    };
    let panels: Vec<(LinkKind, Vec<plot::PlotSeries>)> =
        report.links().into_iter().map(|link| (link, lines(link))).collect();
    let range = plot::range(panels.iter().flat_map(|(_, series)| series));
    let x_label = operation.parameters().map_or("", |parameters| parameters.axis);
    let mut out = String::new();
    for (link, series) in &panels {
        let about = format!("{}: median latency over {}, by {x_label}", operation.title(), link.title());
        let svg = plot::latency(series, range, x_label, &about);
        let _ = writeln!(out, "<div class=\"card\"><h3>Latency over {}</h3>{svg}</div>", link.title());
    }
    out
}

fn rate_panels(report: &Report, rows: &[Row]) -> String {
    let mut out = String::new();
    for link in report.links() {
        let of_link = rows.iter().filter(|row| row.link == link);
        let bars: Vec<_> = of_link.map(|row| (row.placement, row.in_flight_64.ops_per_s)).collect();
        let about = format!("operations a second with 64 in flight over {}", link.title());
        let svg = plot::rates(&bars, &about);
        let _ = writeln!(out, "<div class=\"card\"><h3>Throughput over {}</h3>{svg}</div>", link.title());
    }
    out
}

fn caption(report: &Report, operation: Operation) -> String {
    let what = operation.caption(report);
    format!(
        "{what} Bars run from the 1st to the 99th percentile, some out of the plot; one operation in flight; both axes \
         are logarithmic."
    )
}

fn table(page: &mut String, report: &Report, operation: Operation, rows: &[Row]) {
    let rereads = operation.changes();
    let unit = operation.unit().unwrap_or("");
    let _ = writeln!(
        page,
        "<table><thead><tr><th>{unit}</th><th class=\"t\">link</th><th class=\"t\">place</th>\
         <th>p50<br>µs</th><th>p99<br>µs</th><th>p99.9<br>µs</th><th>ops/s<br>1 in flight</th>\
         <th>ops/s<br>64 in flight</th><th>p99 µs<br>64 in flight</th><th>round trips<br>per op</th>\
         <th>wire bytes<br>per op</th><th>client CPU<br>ns/op at 64</th><th>node CPU<br>ns/op at 64</th>{}\
         </tr></thead><tbody>",
        if rereads { "<th>re-reads<br>per op</th>" } else { "" }
    );
    for group in groups(rows) {
        let key = (operation, group[0].parameter, group[0].link);
        let verdict = report.verdicts.iter().find(|v| (v.operation, v.parameter, v.link) == key);
        for (n, row) in group.iter().enumerate() {
            let best = verdict.is_some_and(|v| !v.level && v.winner == row.placement);
            let class = [if n == 0 { "new" } else { "" }, if best { "best" } else { "" }].join(" ");
            let _ = write!(page, "<tr class=\"{}\">", class.trim());
            let most = group.len() > 1 && verdict.is_some_and(|v| v.most_ops == row.placement);
            cells(page, row, row.placement.name(), n == 0, (rereads, most));
            page.push_str("</tr>\n");
            if let Some((place, row)) = row.of_rings() {
                page.push_str("<tr>");
                cells(page, &row, &place, false, (rereads, false));
                page.push_str("</tr>\n");
            }
        }
        if let Some(verdict) = verdict {
            let span = 12 + usize::from(rereads);
            let _ = writeln!(
                page,
                "<tr class=\"why\"><td></td><td colspan=\"{span}\">{}</td></tr>",
                with_names(&escape(&verdict.line))
            );
        }
    }
    page.push_str(
        "</tbody></table><p class=\"soft\">★ lowest median latency with 1 in flight, by 5 % at least; \
         ▲ most operations a second with 64.</p>",
    );
}

/// All figures for programs, in the page itself.
fn data(page: &mut String, report: &Report) {
    let json = report.to_json().to_string();
    let _ = writeln!(
        page,
        "<p>All figures: {}, {}.</p>",
        download("application/json", "remora-compare.json", &json),
        download("text/csv", "remora-compare.csv", &csv(report))
    );
}

/// A link to a file that the page carries.
pub(crate) fn download(kind: &str, name: &str, text: &str) -> String {
    format!("<a download=\"{name}\" href=\"data:{kind};charset=utf-8,{}\">{name}</a>", percent(text))
}

/// What may stand in a URL as it is; all else by its bytes.
fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(byte.into()),
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// A line for each operation, parameter, link, placement and number in flight.
fn csv(report: &Report) -> String {
    if let (Some(on), true) = (&report.modelled, report.rows.is_empty()) {
        return modelled_csv(on);
    }
    let mut out = String::from(
        "operation,parameter,link,placement,in_flight,verified,ops_per_s,p1_ns,p50_ns,p99_ns,p999_ns,round_trips_per_op,\
         wire_bytes_per_op,client_cpu_ns_per_op,node_cpu_ns_per_op,rereads_per_op,repeated_calls,retransmits\n",
    );
    let rings = report.rows.iter().filter_map(Row::of_rings);
    let rows = report.rows.iter().map(|row| (row.placement.to_string(), row.clone())).chain(rings);
    for (place, Row { operation, parameter, link, in_flight_1, in_flight_64, .. }) in rows {
        for (n, load) in [(1, &in_flight_1), (64, &in_flight_64)] {
            let parameter = parameter.map(|n| n.to_string()).unwrap_or_default();
            let p999 = load.p999_ns.map(|ns| ns.to_string()).unwrap_or_default();
            let Load { verified, ops_per_s, p1_ns, p50_ns, p99_ns, round_trips_per_op, wire_bytes_per_op, .. } = load;
            let Load { client_cpu_ns_per_op, node_cpu_ns_per_op, rereads_per_op, repeated_calls, retransmits, .. } =
                load;
            let _ = writeln!(
                out,
                "{operation},{parameter},{link},{place},{n},{verified},{ops_per_s},{p1_ns},{p50_ns},{p99_ns},{p999},\
                 {round_trips_per_op},{wire_bytes_per_op},{client_cpu_ns_per_op},{node_cpu_ns_per_op},{rereads_per_op},\
                 {repeated_calls},{retransmits}"
            );
        }
    }
    out
}

/// The same of modelled hardware.
fn modelled_csv(on: &OnPlatform) -> String {
    let mut out =
        String::from("platform,operation,parameter,placement,in_flight,ops_per_s,p1_ns,p50_ns,p99_ns,binding\n");
    for ModelRow { operation, parameter, placement, in_flight_1, in_flight_64, .. } in &on.rows {
        for (n, load) in [(1, in_flight_1), (64, in_flight_64)] {
            let parameter = parameter.map(|n| n.to_string()).unwrap_or_default();
            let Measured { ops_per_s, p1_ns, p50_ns, p99_ns, binding, .. } = load;
            let _ = writeln!(
                out,
                "{},{operation},{parameter},{placement},{n},{ops_per_s},{p1_ns},{p50_ns},{p99_ns},\"{binding}\"",
                on.platform
            );
        }
    }
    out
}

/// Which of a row's figures is that of operations a second with many in flight.
const RATE: usize = 3;

fn cells(page: &mut String, row: &Row, place: &str, first: bool, (rereads, most): (bool, bool)) {
    let (one, many) = (&row.in_flight_1, &row.in_flight_64);
    let parameter = row.parameter.filter(|_| first).map(count).unwrap_or_default();
    let link = if first { row.link.name() } else { "" };
    let placement = row.placement;
    let _ = write!(
        page,
        "<td>{parameter}</td><td class=\"t\">{link}</td><td class=\"t place {placement}\">{place}</td>\
         <td class=\"p50\">{}</td>",
        micros(one.p50_ns)
    );
    let numbers = [
        micros(one.p99_ns),
        one.p999_ns.map_or("–".into(), micros),
        rate(one.ops_per_s),
        rate(many.ops_per_s),
        micros(many.p99_ns),
        per_op(one.round_trips_per_op),
        count(one.wire_bytes_per_op.round() as u64),
        count(many.client_cpu_ns_per_op.round() as u64),
        count(many.node_cpu_ns_per_op.round() as u64),
    ];
    for (n, number) in numbers.iter().enumerate() {
        // Of a row only this figure can be the best at throughput.
        let class = if most && n == RATE { " class=\"most\"" } else { "" };
        let _ = write!(page, "<td{class}>{number}</td>");
    }
    if rereads {
        let _ = write!(page, "<td>{:.4}</td>", one.rereads_per_op);
    }
}

/// The machine, the set-up and what the words mean.
fn conditions(page: &mut String, report: &Report) {
    let (machine, setup) = (&report.machine, &report.setup);
    let gigabytes = machine.memory_bytes as f64 / (1u64 << 30) as f64;
    let probe = machine.raw_udp_ns.map_or("could not be timed".into(), time);
    let [before, after] = [machine.core_to_core_before_ns, machine.core_to_core_after_ns].map(time);
    let whose = if setup.node_is_child { "a child process on this machine" } else { "started by the user" };
    let mut facts = vec![
        ("Command", format!("<code>{}</code>", escape(&report.command))),
        ("Remora", report.version.clone()),
        ("Processor", format!("{}, {} cores for this process", escape(&machine.cpu), machine.cores)),
        ("Memory", format!("{gigabytes:.0} GiB, transparent huge pages: {}", escape(&machine.huge_pages))),
        ("System", escape(&machine.kernel)),
        ("Load average before", format!("{:.1}", machine.load_average)),
        ("Cache line, core to core and back", format!("{before} before, {after} after")),
        ("Raw datagram of 64 bytes, there and back", probe),
        ("Node", format!("{}, {whose}", escape(&setup.node))),
        (
            "Path MTU",
            setup.path_mtu.iter().map(|(link, mtu)| format!("{mtu} bytes over {link}")).collect::<Vec<_>>().join(", "),
        ),
        ("Records", escape(&report.source())),
        ("Keys", format!("{}, seed {}", escape(&setup.distribution), setup.seed)),
        ("Loading", format!("{:.1} s", setup.load_s)),
        ("Measuring", format!("{:.1} s, {} s for each number in flight", setup.measure_s, setup.cell_s)),
    ];
    if let Some(note) = report.lent_note() {
        facts.push(("Wire bytes", escape(&note)));
    }
    if let Some(note) = report.trace_note() {
        facts.push(("Trace", escape(&note)));
    }
    page.push_str("<h2>Conditions</h2>\n<div class=\"card\"><dl>\n");
    for (name, value) in facts {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{value}</dd>");
    }
    page.push_str(
        "</dl></div>\n<p class=\"soft\" style=\"margin-top:16px\">Latency runs from handing the operation over to \
         having its result. A round trip is a request that waits for the network. Wire bytes are those of IP packets, \
         both ways, acknowledgements included. CPU time is that of the whole process, polling included. A 99.9th \
         percentile is given from a thousand operations on. On a shared machine the neighbours change the figures from \
         run to run: compare within one report.</p>\n",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::sample;

    #[test]
    fn the_page_stands_alone_and_holds_all() {
        let mut report = sample();
        report.setup.load = Some("<b>&.tsv".into());
        let page = html(&report);
        assert!(!page.contains("://") && !page.contains("<script"), "nothing from elsewhere, nothing that runs");
        assert!(page.contains("&lt;b&gt;&amp;.tsv") && !page.contains("<b>&.tsv"));
        // Two panels for each of five operations, and the three marks of the legend.
        assert_eq!(page.matches("<svg").count(), 2 * 5 + 3);
        assert_eq!(page.matches("<polyline").count(), 3 * 2 * 3);
        assert_eq!(page.matches("class=\"t place").count(), report.rows.len());
        assert!(page.contains("data:application/json") && page.contains("remora-compare.csv"));
        let lines = csv(&report).lines().count();
        assert_eq!(lines, 1 + 2 * report.rows.len());
        assert_eq!(percent("a b\"µ"), "a%20b%22%C2%B5");
        assert!(page.contains("figure 7") && page.contains("figure 8") && page.contains("figure 9"));
        for tag in ["table", "svg", "details", "div", "td", "dl", "figure"] {
            let (open, close) = (page.matches(&format!("<{tag}")).count(), page.matches(&format!("</{tag}>")).count());
            assert_eq!(open, close, "<{tag}>");
        }
        if let Ok(path) = std::env::var("REMORA_SAMPLE_HTML") {
            std::fs::write(path, page).unwrap();
        }
    }
}
